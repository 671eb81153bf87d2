//! The embedded form: the runtime inside the application's own process, as the *library OS* of
//! DerechoDDS (naaas-thesis-2024, section 6.2): no daemon, no set-up and, over kernel UDP, no privilege.
//!
//! The program is the same as with a daemon; only the session comes from an [`Embedded`] runtime instead
//! of a socket. While the application waits for a message, its own thread drives the lane, which saves
//! the hop between two threads; a thread of the runtime drives it otherwise.
//!
//! ```
//! use takt::{ChannelId, Qos, Wait};
//! use takt_embedded::{Embedded, Settings};
//!
//! let node = Embedded::start(Settings { port: 0, ..Settings::default() })?;
//! let session = node.session("example")?;
//! let stream = session.stream(Qos::slow())?;
//! let (source, sink) = (stream.source(ChannelId(7))?, stream.sink(ChannelId(7))?);
//! let mut buffer = source.buffer(5)?;
//! buffer.copy_from_slice(b"hello");
//! buffer.emit()?;
//! assert_eq!(&*sink.consume(Wait::Forever)?, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The end of the process
//! Dropping the runtime, `exit` and the return of `main` wait until what was emitted is sent, up to
//! [`Settings::linger`]. After `_exit` or a signal it is lost with the process: whoever needs it sent all the
//! same uses a daemon.

mod c_abi;
mod exit;
mod rendezvous;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use takt_datapath::Datapath;
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_datapath_xdp::{XdpConfig, XdpDatapath};
use takt_runtime::policy::Policy;
use takt_runtime::{InlineLane, Runtime, RuntimeHandle, StartError, Unavailable};

use rendezvous::Rendezvous;
pub use settings::{
    GroupKey, PeerConfig, PrivateKey, Protection, PublicKey, Security, Settings, SettingsError,
};

/// Why the embedded form does not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The environment says something wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The runtime stopped while it was being used.
    #[error("the embedded runtime has stopped")]
    Stopped,
    /// A session cannot be made.
    #[error("cannot connect to the embedded runtime: {0}")]
    Connect(std::io::Error),
    /// Runtimes on a link, or met by another, are looked for, and no key of theirs is known.
    #[error(
        "no key is known of the runtimes {0}: set TAKT_GROUP_KEY to the key that all of them have (`takt key generate --group FILE` makes one), or TAKT_PROTECTION=none on a link that nobody else can send to"
    )]
    ScoutKey(String),
    /// Other runtimes of this user cannot be looked for.
    #[error("cannot {what} {directory}, where runtimes of this user find each other: {source}")]
    Rendezvous {
        /// What was tried.
        what: &'static str,
        /// Where.
        directory: std::path::PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The session was refused.
    #[error(transparent)]
    Session(#[from] takt::Error),
}

/// A runtime inside this process. Dropping it sends what was emitted and ends its sessions.
pub struct Embedded {
    handle: RuntimeHandle,
    lane: Arc<InlineLane>,
    linger: Duration,
    /// The process that it runs in.
    process: u32,
    /// Its name at [`exit`].
    name: u64,
    /// In front of the runtime: who looks for peers goes first.
    rendezvous: Option<Rendezvous>,
    /// There until it is dropped.
    runtime: Option<Runtime>,
}

impl Embedded {
    /// Starts a runtime over kernel UDP, and over AF_XDP if an interface is named and may be used;
    /// streams that wanted it are told otherwise.
    ///
    /// # Errors
    /// [`Error::Start`], for instance when the port is taken.
    pub fn start(settings: Settings) -> Result<Self, Error> {
        Self::start_over(settings, Vec::new())
    }

    /// The same with further datapaths, such as a [plugin's](takt_datapath::plugin::load), which fast streams are mapped to as a
    /// daemon does.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_over(mut settings: Settings, more: Vec<Arc<dyn Datapath>>) -> Result<Self, Error> {
        let mut datapaths: Vec<Arc<dyn Datapath>> =
            vec![Arc::new(UdpDatapath::new(UdpConfig::default()))];
        datapaths.extend(more);
        let mut unavailable = Vec::new();
        if let Some(interface) = &settings.interface {
            match XdpDatapath::probe(XdpConfig::new(interface)) {
                Ok(xdp) => datapaths.push(Arc::new(xdp)),
                Err(error) => unavailable.push(Unavailable {
                    name: XdpDatapath::KIND.to_string(),
                    reason: error.to_string(),
                }),
            }
        }
        let security = &settings.security;
        if let Some(address) = settings.introducers.iter().find(|address| {
            let listed = settings.peers.iter().find(|peer| peer.address == **address);
            listed.is_none_or(|peer| peer.key.is_none())
        }) && security.is_on()
            && security.group.is_none()
        {
            return Err(Error::ScoutKey(format!("met by {address}")));
        }
        if let Some(interface) = &settings.scout
            && security.is_on()
            && security.group.is_none()
            && (security.node.is_none() || security.allow.is_empty())
        {
            return Err(Error::ScoutKey(format!("on {interface}")));
        }
        let linger = settings.linger;
        let directory = settings.rendezvous.clone();
        if let Some(directory) = &directory
            && settings.security.group.is_none()
        {
            settings.security.group = Some(rendezvous::group_key(directory)?);
        }
        let start = |port| {
            let settings = Settings {
                port,
                ..settings.clone()
            };
            Runtime::start_inline(settings.into_config()?, &datapaths, unavailable.clone())
        };
        let mut started = start(settings.port);
        let others = (1..TRIES).map(|n| settings.port.saturating_add(n * PORTS));
        for port in others.chain([0]) {
            if !settings.next_port || !is_taken(&started) {
                break;
            }
            started = start(port);
        }
        let (runtime, lane) = started?;
        let handle = runtime.handle().clone();
        let rendezvous = match directory {
            Some(directory) => Some(Rendezvous::join(&directory, handle.clone())?),
            None => None,
        };
        Ok(Self {
            name: exit::remember(handle.clone(), linger),
            process: std::process::id(),
            handle,
            lane,
            linger,
            rendezvous,
            runtime: Some(runtime),
        })
    }

    /// A session with this runtime.
    ///
    /// # Errors
    /// [`Error::Session`] when it is refused.
    pub fn session(&self, name: &str) -> Result<takt::Session, Error> {
        let socket = self.connect()?;
        let progress = Arc::new(Drive(self.lane.clone()));
        Ok(takt::Session::builder()
            .name(name)
            .over(socket, Some(progress))?)
    }

    /// The socket of a new session, for a client library that is not this crate's.
    fn connect(&self) -> Result<std::os::fd::OwnedFd, Error> {
        let policy = Policy {
            identity: "embedded".into(),
            // The process keeps nobody from anything but itself.
            endpoints: 32_768,
            total_endpoints: 65_536,
            ..Policy::default()
        };
        self.handle
            .connect(policy)
            .map_err(|_| Error::Stopped)?
            .map_err(Error::Connect)
    }

    /// What an operator of the runtime would see and do.
    pub fn runtime(&self) -> &RuntimeHandle {
        &self.handle
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The parent's: its threads are not here.
            std::mem::forget(self.rendezvous.take());
            std::mem::forget(self.runtime.take());
            return;
        }
        exit::forget(self.name);
        // It has stopped: then nothing is left to be sent.
        let _ = self.handle.drain(self.linger);
    }
}

/// Ports of a runtime: of peering, and of its lane on each datapath.
const PORTS: u16 = 4;
/// Ports that are tried, before any that the kernel gives.
const TRIES: u16 = 16;

/// Whether a runtime did not start because another one has its ports.
fn is_taken<T>(started: &Result<T, StartError>) -> bool {
    match started {
        Err(StartError::Peering { source, .. }) => source.kind() == std::io::ErrorKind::AddrInUse,
        Err(StartError::Port { .. }) => true,
        _ => false,
    }
}

/// Lets a waiting application drive the lane.
struct Drive(Arc<InlineLane>);

impl takt::Progress for Drive {
    #[inline]
    fn progress(&self) {
        self.0.drive();
    }

    fn sleeps(&self) {
        self.0.hand_back();
    }
}
