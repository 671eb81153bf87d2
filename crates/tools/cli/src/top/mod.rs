//! `takt top`: what a node does, live.
//!
//! The daemon sends a picture of all its counters every period; [`rates`] makes differences of two of them, and
//! [`screen`] shows these on a terminal until a key ends it. Without a terminal, or with `--once`, the same
//! tables are printed as text.

mod plain;
mod rates;
mod screen;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use taktd::admin::client::{Client, connect};
use taktd::admin::proto::{WatchRequest, WatchResponse};
use tonic::Streaming;

use crate::admin::{Daemon, block_on};
use crate::failure::Failure;
use crate::output::{Form, print, print_json, print_json_line};
use rates::Rates;

const HELP: &str = "\
Keys: Tab changes between channels, sessions and peers; Up and Down scroll; q quits.

LOST are messages that other nodes sent and that never arrived; DROPPED are copies for which a sink
had no room. BUSY is the share of time that a lane spent with work; a lane that spins burns its core
whatever it says.

Examples:
  takt top
  takt top --interval 5s
  takt top --once
  takt top --once --json | jq '.channels[] | select(.lost_per_second > 0)'";

/// Shows what a node does, live.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Top {
    /// Time between two pictures, 100ms to 60s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = period)]
    interval: Duration,
    /// Print one picture and exit
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

fn period(text: &str) -> Result<Duration, String> {
    let period = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_millis(100)..=Duration::from_secs(60)).contains(&period) {
        Ok(period)
    } else {
        Err("write 100ms to 60s".into())
    }
}

impl Top {
    pub fn run(self) -> Result<(), Failure> {
        if self.once || self.form.json || !std::io::stdout().is_terminal() {
            block_on(self.print())
        } else {
            block_on(screen::show(&self.daemon.socket(), self.interval))
        }
    }

    async fn print(&self) -> Result<(), Failure> {
        let mut client = connect(&self.daemon.socket()).await?;
        let mut pictures = Pictures::new(&mut client, self.interval).await?;
        loop {
            let rates = pictures.next().await?;
            match (self.form.json, self.once) {
                (true, true) => return print_json(&rates),
                (true, false) => print_json_line(&rates)?,
                (false, true) => return print(&plain::text(&rates)),
                (false, false) => print(&(plain::text(&rates) + "\n"))?,
            }
        }
    }
}

/// Differences of the pictures of a node.
struct Pictures {
    stream: Streaming<WatchResponse>,
    last: Option<WatchResponse>,
}

impl Pictures {
    async fn new(client: &mut Client, period: Duration) -> Result<Self, Failure> {
        let period_ms = u32::try_from(period.as_millis()).unwrap_or(u32::MAX);
        let stream = client.watch(WatchRequest { period_ms }).await?.into_inner();
        Ok(Self { stream, last: None })
    }

    /// The next difference; the first takes two pictures.
    async fn next(&mut self) -> Result<Rates, Failure> {
        loop {
            let Some(picture) = self.stream.message().await? else {
                return Err(tonic::Status::unavailable("the node is stopping").into());
            };
            let rates = self
                .last
                .as_ref()
                .map(|last| Rates::between(last, &picture));
            self.last = Some(picture);
            if let Some(rates) = rates {
                return Ok(rates);
            }
        }
    }
}
