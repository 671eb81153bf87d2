//! `takt channel`.

use clap::{Args, Subcommand};
use serde::Serialize;
use taktd::admin::proto::MapChannelRequest;

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Form, print, print_json};
use crate::status::{Listing, What};

const HELP: &str = "\
Which datapath carries a stream is decided by what its application asks for and by `[mapping]`.
A channel that is mapped by hand goes before that, for the streams that write it on this node, now
and later, until it is mapped back or the node restarts. Streams whose applications have asked for
one datapath and no other stay; so do all while the datapath does not work or their lanes do not
carry it. Messages that were emitted before leave as they were begun: some of the next ones may overtake
them, unless the stream is reliable.

`takt session list` shows where each stream is; `takt monitor --node --remap` maps by rules.

Examples:
  takt channel list
  takt channel map 7 udp
  takt channel unmap 7";

/// Shows channels, and has another datapath carry one.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Channel {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the channels in use here, and those that are mapped
    List(Listing),
    /// Have a datapath carry what is written on a channel here
    Map(Map),
    /// Leave it to the node's mapping again
    Unmap(Unmap),
}

#[derive(Debug, Args)]
struct Map {
    /// Its number
    channel: u64,
    /// The datapath, as `takt datapaths` calls it
    datapath: String,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
struct Unmap {
    /// Its number
    channel: u64,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Serialize)]
struct Mapped {
    channel: u64,
    /// Empty: the node's mapping decides.
    datapath: String,
    /// Streams that may be moved.
    streams: u32,
}

impl Channel {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::List(list) => list.show(What::Channels),
            Action::Map(Map {
                channel,
                datapath,
                daemon,
                form,
            }) => map(channel, datapath, &daemon, &form),
            Action::Unmap(Unmap {
                channel,
                daemon,
                form,
            }) => map(channel, String::new(), &daemon, &form),
        }
    }
}

/// Has a node map a channel to a datapath, or, without one, back: how many streams may be moved.
pub fn ask(daemon: &Daemon, channel: u64, datapath: &str) -> Result<u32, Failure> {
    let datapath = datapath.to_owned();
    let request = MapChannelRequest { channel, datapath };
    daemon.ask(async |mut client| Ok(client.map_channel(request).await?.into_inner().streams))
}

fn map(channel: u64, datapath: String, daemon: &Daemon, form: &Form) -> Result<(), Failure> {
    let streams = ask(daemon, channel, &datapath)?;
    let mapped = Mapped {
        channel,
        datapath,
        streams,
    };
    if form.json {
        return print_json(&mapped);
    }
    let of = match streams {
        1 => "1 stream writes".to_owned(),
        more => format!("{more} streams write"),
    };
    print(&match &*mapped.datapath {
        "" => format!("channel {channel} is left to the node's mapping; {of} it here\n"),
        datapath => format!("channel {channel} is mapped to {datapath}; {of} it here\n"),
    })
}
