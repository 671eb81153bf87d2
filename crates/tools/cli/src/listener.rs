//! `takt listener`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use taktd::admin::proto::{self, RemoveListenerRequest, SetListenerRequest};
use taktd::config::document::Document;
use taktd::config::file;
use taktd::config::value::{Bytes, Channels, FileMode, FromText};

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Form, print, print_json};
use crate::status::{Listing, What};

const HELP: &str = "\
A listener is a Unix socket where applications attach; the socket is their identity, and carries
their rights. Listeners that are set here last until they are removed or the node stops; with
--keep they come back with the node, as long as the directory of the socket is there. What `takt
reload` has in force at a path is the configuration's, and nothing is kept there any more. What is
set replaces all that was, its streams too: name their file each time.

A file of streams says what the tenant sends at which times; frames outside are refused and counted:
  [[stream]]
  name = \"axis\"
  class = 3
  channel = 7              # or destination = \"10.244.1.9:4000\", from the listener's endpoint
  period = \"1ms\"
  offset = \"250us\"
  window = \"50us\"
  frame = 128              # octets of the largest

Examples:
  takt listener set /run/takt/press.sock --identity press --write 1-99 --read '*' --mode 0666
  takt listener set /run/takt/pod7.sock --identity pod7 \\
      --network pods --mac 02:00:00:00:00:07 --address 10.244.1.7/24
  takt listener set /run/takt/press.sock --identity press --streams press.toml --keep
  takt listener list
  takt listener remove /run/takt/press.sock";

/// Sets, removes and lists sockets for applications.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Listener {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Open a socket, or replace all rights of the one at this path
    Set(Box<Set>),
    /// Close a socket; its sessions go on
    Remove(Remove),
    /// List sockets with their rights
    List(Listing),
}

#[derive(Debug, Args)]
struct Set {
    /// Absolute path of the socket
    path: PathBuf,
    /// The tenant, in logs, tables and metrics
    #[arg(long, value_name = "TENANT")]
    identity: String,
    /// Permission bits of the socket file, octal
    #[arg(long, default_value = "0660", value_parser = written::<FileMode>)]
    mode: FileMode,
    /// Users that may connect, by number; none: whoever the permission bits let in
    #[arg(long = "uid", value_name = "UID", value_delimiter = ',')]
    uids: Vec<u32>,
    /// Channels that may be written: ranges such as 1-99, numbers, or * for all
    #[arg(long, value_name = "CHANNELS", default_value = "*", value_delimiter = ',', value_parser = written::<Channels>)]
    write: Vec<Channels>,
    /// Channels that may be read
    #[arg(long, value_name = "CHANNELS", default_value = "*", value_delimiter = ',', value_parser = written::<Channels>)]
    read: Vec<Channels>,
    /// May write no channel
    #[arg(long, conflicts_with = "write")]
    no_write: bool,
    /// May read no channel
    #[arg(long, conflicts_with = "read")]
    no_read: bool,
    /// Traffic classes of IEEE 802.1Q that may be used
    #[arg(long, default_value = "0,1,2,3,4,5,6,7", value_delimiter = ',')]
    classes: Vec<u32>,
    /// Most messages per second of all sessions together; 0: unlimited
    #[arg(long, value_name = "N", default_value_t = 0)]
    messages_per_second: u64,
    /// Most payload bytes per second of all sessions together, such as 10MiB; 0: unlimited
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = written::<Bytes>)]
    bytes_per_second: Bytes,
    /// Most shared memory of each session
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = written::<Bytes>)]
    memory: Bytes,
    /// Most sessions at a time
    #[arg(long, value_name = "N", default_value_t = 256)]
    sessions: u32,
    /// Most sources and sinks of each session
    #[arg(long, value_name = "N", default_value_t = 256)]
    endpoints: u32,
    /// Most shared memory of all sessions together; half of what the daemon may use where left out
    #[arg(long, value_name = "SIZE", value_parser = written::<Bytes>)]
    total_memory: Option<Bytes>,
    /// Most sources and sinks of all sessions together
    #[arg(long, value_name = "N", default_value_t = 4096)]
    total_endpoints: u32,
    /// Most descriptors of the daemon that all sessions need together: four each, and two for each sink with
    /// a descriptor to wait on
    #[arg(long, value_name = "N", default_value_t = 2048)]
    descriptors: u32,
    /// Lanes that may serve its sessions, such as 0,2; all where left out
    #[arg(long, value_name = "LANES", value_delimiter = ',')]
    lanes: Vec<u32>,
    /// The network that the tenant has an endpoint in, from which it may send frames
    #[arg(long, value_name = "NETWORK", requires = "mac")]
    network: Option<String>,
    /// The endpoint's MAC address
    #[arg(long, value_name = "MAC", requires = "network")]
    mac: Option<String>,
    /// The endpoint's IP addresses with the lengths of their prefixes, such as 10.244.1.5/24
    #[arg(
        long = "address",
        value_name = "ADDRESS/PREFIX",
        value_delimiter = ',',
        requires = "network"
    )]
    addresses: Vec<String>,
    /// Most bytes of the endpoint's IP packets
    #[arg(long, value_name = "BYTES", default_value_t = 1450)]
    mtu: u32,
    /// EtherTypes of frames that the endpoint may send besides IP, such as 0x22f0
    #[arg(
        long = "ethertype",
        value_name = "NUMBER",
        value_delimiter = ',',
        value_parser = ether_type,
        requires = "network"
    )]
    ethertypes: Vec<u32>,
    /// VLANs whose tags the endpoint's frames may have, such as 100; 0: tags with a priority alone. The priority must be one of its classes
    #[arg(
        long = "vlan",
        value_name = "NUMBER",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(0..=4094),
        requires = "network"
    )]
    vlans: Vec<u32>,
    /// A TOML file of the streams that the tenant sends: `[[stream]]`, with the keys of `[[listener.stream]]` in the
    /// configuration
    #[arg(long, value_name = "FILE")]
    streams: Option<PathBuf>,
    /// In a class with streams, send what is of none of them too, instead of refusing it
    #[arg(long, requires = "streams")]
    send_undeclared: bool,
    /// Whose sessions exchange messages in memory of each other's, without a lane: nobody's, or those of one user. Not beside
    /// a rate
    #[arg(long, value_name = "WHOSE", default_value = "nobody")]
    trust: Trust,
    /// Open it again whenever the node starts
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Trust {
    Nobody,
    User,
}

#[derive(Debug, Args)]
struct Remove {
    /// Path of the socket
    path: PathBuf,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Serialize)]
struct Removed {
    path: String,
    removed: bool,
}

/// Reads a value in the form that the configuration has for it.
pub fn written<T: FromText>(text: &str) -> Result<T, String> {
    T::from_text(text).ok_or_else(|| format!("write {}", T::FORM))
}

impl Listener {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Set(set) => set.run(),
            Action::Remove(remove) => remove.run(),
            Action::List(list) => list.show(What::Listeners),
        }
    }
}

/// An EtherType as people write it.
fn ether_type(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let read = u16::from_str_radix(digits, 16).map(u32::from);
    read.map_err(|_| "write four hexadecimal digits, such as 0x22f0".into())
}

/// A file of streams.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Streams {
    stream: Vec<file::Stream>,
}

impl Streams {
    fn read(path: &Path) -> Result<Vec<proto::DeclaredStream>, Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::Other(format!("{}: {error}", path.display())))?;
        let read: Result<Self, _> = Document::new(path, &text).read();
        let streams = read.map_err(|fault| Failure::Other(fault.to_string()))?;
        let message = |stream: file::Stream| proto::DeclaredStream {
            name: stream.name,
            traffic_class: stream.class.into(),
            channel: stream.channel,
            destination: stream
                .destination
                .map_or_else(String::new, |to| to.0.to_string()),
            period_ns: stream.period.0.0,
            offset_ns: stream.offset.0.0,
            window_ns: stream.window.0.0,
            frame: stream.frame.0.0.try_into().unwrap_or(u32::MAX),
            frames: stream.frames,
        };
        Ok(streams.stream.into_iter().map(message).collect())
    }
}

impl Set {
    fn run(self) -> Result<(), Failure> {
        let ranges = |none: bool, channels: Vec<Channels>| {
            let channels = if none { Vec::new() } else { channels };
            channels
                .into_iter()
                .map(|Channels(range)| proto::ChannelRange {
                    first: *range.start(),
                    last: *range.end(),
                })
                .collect()
        };
        let listener = proto::Listener {
            path: self.path.to_string_lossy().into_owned(),
            mode: self.mode.0,
            identity: self.identity,
            uids: self.uids,
            write: ranges(self.no_write, self.write),
            read: ranges(self.no_read, self.read),
            classes: self.classes,
            messages_per_second: self.messages_per_second,
            bytes_per_second: self.bytes_per_second.0,
            memory_bytes: self.memory.0,
            sessions: self.sessions,
            endpoints: self.endpoints,
            total_memory_bytes: self.total_memory.map_or(0, |Bytes(bytes)| bytes),
            total_endpoints: self.total_endpoints,
            descriptors: self.descriptors,
            lanes: self.lanes,
            endpoint: self.network.map(|network| proto::Endpoint {
                network,
                mac: self.mac.unwrap_or_default(),
                addresses: self.addresses,
                mtu: self.mtu,
                ethertypes: self.ethertypes,
                vlans: self.vlans,
            }),
            streams: match &self.streams {
                Some(path) => Streams::read(path)?,
                None => Vec::new(),
            },
            undeclared_streams: self.send_undeclared,
            trust_user: self.trust == Trust::User,
        };
        let keep = self.keep;
        let sent = listener.clone();
        self.daemon.ask(async |mut client| {
            let request = SetListenerRequest {
                listener: Some(sent),
                keep,
                ..SetListenerRequest::default()
            };
            client.set_listener(request).await?;
            Ok(())
        })?;
        if self.form.json {
            print_json(&listener)
        } else {
            print(&format!("listener {} set\n", listener.path))
        }
    }
}

impl Remove {
    fn run(self) -> Result<(), Failure> {
        let path = self.path.to_string_lossy().into_owned();
        let request = RemoveListenerRequest { path: path.clone() };
        let removed = self.daemon.ask(async |mut client| {
            Ok(client.remove_listener(request).await?.into_inner().removed)
        })?;
        if self.form.json {
            let path = path.clone();
            print_json(&Removed { path, removed })?;
        } else if removed {
            print(&format!("listener {path} removed\n"))?;
        }
        if removed {
            Ok(())
        } else {
            Err(Failure::Other(format!(
                "there is no listener {path}: see `takt listener list`"
            )))
        }
    }
}
