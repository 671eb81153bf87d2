//! Attaching as an application does: to a daemon, or with the runtime inside this process.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use takt::place::Socket;
use takt::{ChannelId, DatapathName, Error, Qos, Reliability, Session, Stream, TrafficClass};
use takt_embedded::{Embedded, Settings};

use crate::failure::Failure;

/// How long to wait for runtimes that have left no sign of their end.
const MEET_WITHIN: Duration = Duration::from_secs(3);
/// How long to wait between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// A channel as it is written: its number, or its name.
#[derive(Clone, Debug)]
pub struct Channel {
    /// What was written.
    pub written: String,
    /// The channel.
    pub id: ChannelId,
}

impl FromStr for Channel {
    type Err = String;

    fn from_str(written: &str) -> Result<Self, Self::Err> {
        let id = if !written.is_empty() && written.bytes().all(|byte| byte.is_ascii_digit()) {
            written.parse().map(ChannelId).map_err(|_| {
                format!(
                    "the highest number of a channel is {}: write a lower one, or a name",
                    u64::MAX
                )
            })?
        } else {
            ChannelId::named(written).map_err(|error| error.to_string())?
        };
        Ok(Self {
            written: written.to_owned(),
            id,
        })
    }
}

/// Where to attach, and with which quality.
#[derive(Clone, Debug, Args)]
pub struct Application {
    /// Socket of the runtime for applications [default: $TAKT_SOCKET, the user's own node, or
    /// /run/takt/takt.sock; if there is none of them, a runtime inside this process]
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    embedded: EmbeddedForm,
    /// Datapath acceleration: the kernel's network stack, or past it where the node can
    #[arg(long, value_enum, default_value_t = Quality::Slow, help_heading = "Quality of service")]
    qos: Quality,
    /// Cores may spin
    #[arg(long, help_heading = "Quality of service")]
    unlimited: bool,
    /// This datapath and no other, such as xdp: refused where the node has it not, and messages reach no node that it
    /// does not reach [default: what the node maps the quality to]
    #[arg(long, value_name = "NAME", help_heading = "Quality of service")]
    datapath: Option<DatapathName>,
    /// Time sensitive, in this traffic class of IEEE 802.1Q
    #[arg(
        long,
        value_name = "0-7",
        value_parser = clap::value_parser!(u8).range(0..=7),
        help_heading = "Quality of service"
    )]
    class: Option<u8>,
}

/// The runtime inside this process.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Without a daemon")]
struct EmbeddedForm {
    /// Run the runtime inside this process, also where there is a daemon: no daemon, no privileges.
    /// Without an address, port or peer it finds, and is found by, those of this user on this machine
    #[arg(long, conflicts_with = "socket")]
    embedded: bool,
    /// Local address of the embedded runtime [default: $TAKT_ADDRESS; with a port or a peer: all]
    #[arg(long, requires = "embedded")]
    address: Option<IpAddr>,
    /// Peering port of the embedded runtime, 0 for any [default: $TAKT_PORT; with an address or a
    /// peer: 7400]
    #[arg(long, requires = "embedded")]
    port: Option<u16>,
    /// Peering address with port of another runtime; may be given several times [default: $TAKT_PEERS]
    #[arg(long = "peer", value_name = "ADDRESS", requires = "embedded")]
    peers: Vec<SocketAddr>,
    /// Find other runtimes on the link of this interface, and be found: by multicast, and by the key that all have
    /// ($TAKT_GROUP_KEY) [default: $TAKT_SCOUT, or not at all]
    #[arg(long, value_name = "INTERFACE", requires = "embedded")]
    scout: Option<String>,
    /// Peering address with port of a runtime that introduces others, and this one to them; may be given several
    /// times [default: $TAKT_RENDEZVOUS]
    #[arg(long, value_name = "ADDRESS", requires = "embedded")]
    rendezvous: Vec<SocketAddr>,
    /// Interface for AF_XDP [default: $TAKT_INTERFACE, or kernel UDP alone]
    #[arg(long, requires = "embedded")]
    interface: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Quality {
    Slow,
    Fast,
}

/// A session, with what it needs to live.
pub struct Opened {
    /// The session.
    pub session: Session,
    /// The embedded runtime finds its peers by itself.
    pub local: bool,
    /// The embedded runtime. Behind the session: it goes last.
    _embedded: Option<Embedded>,
}

/// A stream, with what it needs to live.
pub struct Attached {
    /// The stream.
    pub stream: Stream,
    /// The embedded runtime finds its peers by itself.
    pub local: bool,
    /// The embedded runtime. Behind the stream: it goes last.
    _embedded: Option<Embedded>,
}

impl Application {
    /// Attaches.
    pub fn open(&self, name: &str) -> Result<Opened, Failure> {
        let (session, embedded, local) = if self.embedded.embedded {
            let settings = self.embedded.settings()?;
            inside(settings, name)?
        } else {
            self.outside(name)?
        };
        Ok(Opened {
            session,
            local,
            _embedded: embedded,
        })
    }

    /// Attaches and opens a stream of this reliability; says on standard error if it is less than asked for.
    pub fn attach(&self, name: &str, reliability: Reliability) -> Result<Attached, Failure> {
        let opened = self.open(name)?;
        let quality = self.quality().with_reliability(reliability);
        let stream = opened.session.stream(quality)?;
        if let Some(warning) = stream.warning() {
            eprintln!("takt: warning: {warning}");
        }
        Ok(Attached {
            stream,
            local: opened.local,
            _embedded: opened._embedded,
        })
    }

    /// A session with a daemon. Where none was named and none is there, one with a runtime in this process.
    fn outside(&self, name: &str) -> Result<(Session, Option<Embedded>, bool), Failure> {
        let named = self
            .socket
            .clone()
            .or_else(|| Socket::Applications.from_environment());
        let anywhere = named.is_none();
        let socket = named.unwrap_or_else(|| Socket::Applications.to_attach_to());
        match Session::builder().socket(&socket).name(name).open() {
            Ok(session) => Ok((session, None, false)),
            Err(Error::NoRuntime { .. }) if anywhere => {
                eprintln!(
                    "takt: no daemon at {}: other programs of this user on this machine are found without",
                    socket.display()
                );
                inside(Settings::local(), name)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The quality that was asked for, without reliability.
    pub fn quality(&self) -> Qos {
        let mut qos = match self.qos {
            Quality::Slow => Qos::slow(),
            Quality::Fast => Qos::fast(),
        };
        if self.unlimited {
            qos = qos.unlimited();
        }
        if let Some(datapath) = self.datapath {
            qos = qos.only_over(datapath);
        }
        match self.class.and_then(TrafficClass::new) {
            Some(class) => qos.time_sensitive(class),
            None => qos,
        }
    }
}

/// A session with a runtime in this process, and whether it finds its peers by itself.
fn inside(settings: Settings, name: &str) -> Result<(Session, Option<Embedded>, bool), Failure> {
    let finds = settings.rendezvous.is_some()
        || settings.scout.is_some()
        || !settings.introducers.is_empty();
    let embedded = Embedded::start(settings)?;
    if finds {
        meet(&embedded)?;
    }
    Ok((embedded.session(name)?, Some(embedded), finds))
}

/// Waits until the peers that are there have told what they read, so that the first message finds its readers.
fn meet(embedded: &Embedded) -> Result<(), Failure> {
    let deadline = Instant::now() + MEET_WITHIN;
    while Instant::now() < deadline {
        let peers = embedded
            .runtime()
            .peers()
            .map_err(|_| takt_embedded::Error::Stopped)?;
        if peers.iter().all(|peer| peer.subscriptions_known) {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

impl EmbeddedForm {
    fn settings(&self) -> Result<Settings, Failure> {
        let mut settings =
            Settings::from_environment().map_err(|error| Failure::Other(error.to_string()))?;
        let told = self.address.is_some()
            || self.port.is_some()
            || self.scout.is_some()
            || !self.rendezvous.is_empty()
            || !self.peers.is_empty();
        if told && settings.rendezvous.is_some() {
            settings = Settings {
                interface: settings.interface,
                next_port: self.port.is_none(),
                security: settings.security,
                ..Settings::default()
            };
        }
        if let Some(address) = self.address {
            settings.address = address;
        }
        if let Some(port) = self.port {
            settings.port = port;
        }
        if !self.peers.is_empty() {
            settings.peers = self.peers.iter().copied().map(Into::into).collect();
        }
        if !self.rendezvous.is_empty() {
            settings.introducers = self.rendezvous.clone();
        }
        if let Some(scout) = &self.scout {
            settings.scout = Some(scout.clone());
        }
        if let Some(interface) = &self.interface {
            settings.interface = Some(interface.clone());
        }
        Ok(settings)
    }
}
