//! Attaching as an application does: to a daemon, or with the runtime inside this process.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use takt::{Qos, Session, Stream, TrafficClass};
use takt_embedded::{Embedded, Settings};

use crate::failure::Failure;

/// Where to attach, and with which quality.
#[derive(Clone, Debug, Args)]
pub struct Application {
    /// Socket of the runtime for applications
    #[arg(
        long,
        value_name = "SOCKET",
        env = takt::SOCKET_VARIABLE,
        hide_env_values = true,
        default_value = takt::DEFAULT_SOCKET
    )]
    socket: PathBuf,
    #[command(flatten)]
    embedded: EmbeddedForm,
    /// Datapath acceleration: the kernel's network stack, or past it where the node can
    #[arg(long, value_enum, default_value_t = Quality::Slow, help_heading = "Quality of service")]
    qos: Quality,
    /// Cores may spin
    #[arg(long, help_heading = "Quality of service")]
    unlimited: bool,
    /// Time sensitive, in this traffic class of IEEE 802.1Q
    #[arg(
        long,
        value_name = "0-7",
        value_parser = clap::value_parser!(u8).range(0..8),
        help_heading = "Quality of service"
    )]
    class: Option<u8>,
}

/// The runtime inside this process.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Without a daemon")]
struct EmbeddedForm {
    /// Run the runtime inside this process: no daemon, no privileges
    #[arg(long, conflicts_with = "socket")]
    embedded: bool,
    /// Local address of the embedded runtime [default: $TAKT_ADDRESS, or all]
    #[arg(long, requires = "embedded")]
    address: Option<IpAddr>,
    /// Peering port of the embedded runtime, 0 for any [default: $TAKT_PORT, or 7400]
    #[arg(long, requires = "embedded")]
    port: Option<u16>,
    /// Peering address with port of another runtime; may be given several times [default: $TAKT_PEERS]
    #[arg(long = "peer", value_name = "ADDRESS", requires = "embedded")]
    peers: Vec<SocketAddr>,
    /// Interface for AF_XDP [default: $TAKT_INTERFACE, or kernel UDP alone]
    #[arg(long, requires = "embedded")]
    interface: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Quality {
    Slow,
    Fast,
}

/// A stream, with what it needs to live.
pub struct Attached {
    /// The stream.
    pub stream: Stream,
    /// The embedded runtime. Behind the stream: it goes last.
    _embedded: Option<Embedded>,
}

impl Application {
    /// Attaches and opens a stream; says on standard error if it is less than asked for.
    pub fn attach(&self, name: &str) -> Result<Attached, Failure> {
        let embedded = match self.embedded.embedded {
            true => Some(self.embedded.start()?),
            false => None,
        };
        let session = match &embedded {
            Some(embedded) => embedded.session(name)?,
            None => Session::builder().socket(&self.socket).name(name).open()?,
        };
        let stream = session.stream(self.quality())?;
        if let Some(warning) = stream.warning() {
            eprintln!("takt: warning: {warning}");
        }
        Ok(Attached {
            stream,
            _embedded: embedded,
        })
    }

    fn quality(&self) -> Qos {
        let mut qos = match self.qos {
            Quality::Slow => Qos::slow(),
            Quality::Fast => Qos::fast(),
        };
        if self.unlimited {
            qos = qos.unlimited();
        }
        match self.class.and_then(TrafficClass::new) {
            Some(class) => qos.time_sensitive(class),
            None => qos,
        }
    }
}

impl EmbeddedForm {
    fn start(&self) -> Result<Embedded, Failure> {
        let mut settings =
            Settings::from_environment().map_err(|error| Failure::Other(error.to_string()))?;
        if let Some(address) = self.address {
            settings.address = address;
        }
        if let Some(port) = self.port {
            settings.port = port;
        }
        if !self.peers.is_empty() {
            settings.peers.clone_from(&self.peers);
        }
        if let Some(interface) = &self.interface {
            settings.interface = Some(interface.clone());
        }
        Ok(Embedded::start(settings)?)
    }
}
