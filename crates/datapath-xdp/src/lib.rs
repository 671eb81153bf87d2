//! Datapath over AF_XDP sockets: frames between user space and a network interface, past the kernel's stack.
//!
//! A small XDP program on the interface picks the datagrams for Takt's UDP ports out of the receive queues and hands
//! them to sockets that lanes poll by reading memory; all other traffic takes its usual way through the kernel,
//! which also keeps doing ARP, neighbour discovery and ICMP. Routes, neighbours and addresses are the kernel's
//! ([`takt_datapath::stack`]). Not for hosts without `CAP_NET_ADMIN`, `CAP_NET_RAW` and `CAP_BPF`, and not for
//! destinations on this host: there is no wire to them.
//!
//! An interface that goes down and comes back is followed. One that is deleted is not: its sockets die with it, so
//! a port there reports [`takt_datapath::ReserveError::Unresolved`] for good, also when another interface of the
//! same name appears; open a new datapath then.
//!
//! Source: naaas-thesis-2024, section 5.1.3 (plugins); Linux `Documentation/networking/af_xdp.rst`.

mod attachment;
mod bare;
mod config;
mod interface;
mod link;
mod maps;
mod peers;
mod port;
mod privilege;
mod program;
mod receive;
mod reservation;
pub mod ring;
pub mod socket;
mod transmit;
pub mod umem;

use std::net::SocketAddr;
use std::sync::Arc;

use takt_datapath::{Capabilities, Datapath, DatapathKind, OpenError, Port, PortRequest};

pub use config::{XdpConfig, ZeroCopy};
pub use link::AttachMode;
pub use maps::ProgramCounters;
pub use program::Mode;
pub use socket::BusyPoll;

use attachment::{Attachment, Traits};
pub use bare::BareSocket;
use interface::Device;
use port::XdpPort;

/// AF_XDP on one interface. The XDP program is attached as long as this or one of its ports lives.
#[derive(Debug)]
pub struct XdpDatapath {
    config: XdpConfig,
    device: Device,
    attachment: Arc<Attachment>,
    traits: Traits,
}

impl XdpDatapath {
    /// The technology's name.
    pub const KIND: DatapathKind = DatapathKind("xdp");

    /// Finds out what the interface can do and attaches the XDP program. Belongs to the calling thread's network
    /// namespace, which ports are to be opened in as well.
    ///
    /// # Errors
    /// [`OpenError::Privilege`] names the capability that is missing, [`OpenError::Unavailable`] what the
    /// interface, its driver or the configuration stand in the way with.
    pub fn probe(config: XdpConfig) -> Result<Self, OpenError> {
        config.check()?;
        privilege::check()?;
        let device = Device::probe(&config.interface)?;
        if let Some(range) = config
            .queues
            .as_ref()
            .filter(|range| range.end > device.queues)
        {
            return Err(OpenError::Unavailable(format!(
                "{} has {} receive queue(s), the range {range:?} asks for more: see `ethtool -l {}`",
                device.name, device.queues, device.name
            )));
        }
        let attachment = Attachment::get(&device, config.mode)?;
        let first = config.queues.as_ref().map_or(0, |range| range.start);
        let state = attachment
            .interface_state()
            .ok_or_else(|| OpenError::Unavailable(format!("{} is gone", device.name)))?;
        let traits = attachment.traits(first, config.zero_copy, state.mtu)?;
        Ok(Self {
            config,
            device,
            attachment,
            traits,
        })
    }

    /// What the XDP program has seen on this interface.
    ///
    /// # Errors
    /// The kernel's answer when the program's counters cannot be read.
    pub fn program_counters(&self) -> std::io::Result<ProgramCounters> {
        self.attachment.maps().counters()
    }

    /// A bare socket on `queue` that receives what arrives there for the UDP port of `bind`: for programs that
    /// read and write whole frames themselves, such as the measurement of what a [`Port`] adds to it.
    ///
    /// # Errors
    /// As [`Datapath::open`].
    pub fn open_bare(&self, queue: u32, bind: SocketAddr) -> Result<BareSocket, OpenError> {
        BareSocket::open(self, queue, bind)
    }

    /// The queues of a lane: every `lanes`-th.
    fn queues_of(&self, request: &PortRequest) -> Result<Vec<u32>, OpenError> {
        let namespace = interface::namespace().map_err(|source| OpenError::System {
            action: "cannot identify the thread's network namespace".into(),
            source,
        })?;
        if namespace != self.device.namespace {
            return Err(OpenError::Unavailable(format!(
                "{} was probed in another network namespace than the port is opened in: do both in one",
                self.device.name
            )));
        }
        let lanes = u32::from(request.lanes.max(1));
        let all = self.config.queues.clone().unwrap_or(0..self.device.queues);
        let count = all.len();
        let queues: Vec<u32> = all
            .filter(|queue| queue % lanes == u32::from(request.lane))
            .collect();
        if queues.is_empty() {
            return Err(OpenError::Unavailable(format!(
                "{} has {count} receive queue(s) to use, none for lane {} of {lanes}: use fewer lanes, or raise \
                 the number of queues with `ethtool -L {}`",
                self.device.name, request.lane, self.device.name
            )));
        }
        Ok(queues)
    }

    /// Whether frames may come from senders on this machine whose checksums no device has completed: always on
    /// veth, and possibly wherever the program runs on the kernel's packets and not on the device's.
    fn unfinished_checksums(&self) -> bool {
        self.device.driver == "veth" || self.attachment.mode() == AttachMode::Generic
    }
}

impl Datapath for XdpDatapath {
    fn kind(&self) -> DatapathKind {
        Self::KIND
    }

    fn capabilities(&self) -> Capabilities {
        let queues = match &self.config.queues {
            Some(range) => format!("queues {range:?} of {}", self.device.queues),
            None => format!("{} queue(s)", self.device.queues),
        };
        let mode = match (self.attachment.mode(), self.attachment.fallback()) {
            (AttachMode::Native, _) => "native XDP".to_owned(),
            (AttachMode::Generic, None) => "generic XDP as asked for".to_owned(),
            (AttachMode::Generic, Some(reason)) => format!("generic XDP ({reason})"),
        };
        let copy = match &self.traits.no_zero_copy {
            None => "zero copy".to_owned(),
            Some(reason) => format!("copy mode ({reason})"),
        };
        Capabilities {
            accelerated: true,
            // A parked lane is woken by the socket.
            needs_polling: false,
            hardware_launch_time: false,
            zero_copy: self.traits.zero_copy,
            detail: format!(
                "{} (driver {}): {mode}, {copy}, {queues}",
                self.device.name, self.device.driver
            ),
        }
    }

    fn open(&self, request: &PortRequest) -> Result<Box<dyn Port>, OpenError> {
        Ok(Box::new(XdpPort::open(self, request)?))
    }
}
