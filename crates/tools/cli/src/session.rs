//! `takt session`.

use clap::{Args, Subcommand};
use serde::Serialize;
use taktd::admin::client;
use taktd::admin::proto::{EndSessionRequest, MoveSessionRequest};

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Form, print, print_json};
use crate::status;

const HELP: &str = "\
The application of a session that is ended gets the reason with its next call. It may attach again:
to keep it out, change or remove its listener.

A session that is moved attaches again by itself, if it reconnects, and is served by the lane that
is named: calls of its application that wait at that moment, and what it emits before it is back,
fail as when the daemon restarts. What it had emitted is sent, and what was delivered can be read;
messages that come in between are lost to it, and counted. The lane has to be one of its tenant's,
and to carry the datapaths of its streams.

Examples:
  takt session list --identity press
  takt session move 12 --lane 1
  takt session end 12 --reason maintenance";

/// Lists, moves and ends sessions of applications.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Session {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// End a session
    End(End),
    /// List sessions
    List(List),
    /// Move a session to another lane
    Move(Move),
}

#[derive(Debug, Args)]
struct End {
    /// Its number, see `takt session list`
    session: u64,
    /// Told to the application
    #[arg(long, default_value = "ended by the operator")]
    reason: String,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
struct Move {
    /// Its number, see `takt session list`
    session: u64,
    /// The lane's number, see `takt status`
    #[arg(long)]
    lane: u32,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
struct List {
    /// Only those of this tenant
    #[arg(
        long,
        value_name = "TENANT",
        default_value = "",
        hide_default_value = true
    )]
    identity: String,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Serialize)]
struct Moved {
    session: u64,
    lane: u32,
}

#[derive(Debug, Serialize)]
struct Ended {
    session: u64,
    ended: bool,
}

impl Session {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::End(end) => end.run(),
            Action::Move(to) => to.run(),
            Action::List(list) => {
                let identity = list.identity;
                let sessions = list
                    .daemon
                    .ask(async |mut client| Ok(client::sessions(&mut client, &identity).await?))?;
                if list.form.json {
                    print_json(&sessions)
                } else {
                    print(&status::sessions(&sessions))
                }
            }
        }
    }
}

impl Move {
    fn run(self) -> Result<(), Failure> {
        let (session, lane) = (self.session, self.lane);
        self.daemon.ask(async |mut client| {
            let request = MoveSessionRequest { session, lane };
            Ok(client.move_session(request).await?)
        })?;
        match self.form.json {
            true => print_json(&Moved { session, lane }),
            false => print(&format!(
                "session {session} is to come back on lane {lane}\n"
            )),
        }
    }
}

impl End {
    fn run(self) -> Result<(), Failure> {
        let (session, reason) = (self.session, self.reason);
        let ended = self.daemon.ask(async |mut client| {
            let request = EndSessionRequest { session, reason };
            Ok(client.end_session(request).await?.into_inner().ended)
        })?;
        if self.form.json {
            print_json(&Ended { session, ended })?;
        } else if ended {
            print(&format!("session {session} ended\n"))?;
        }
        if ended {
            Ok(())
        } else {
            Err(Failure::Other(format!(
                "there is no session {session}: see `takt session list`"
            )))
        }
    }
}
