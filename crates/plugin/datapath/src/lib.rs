//! The contract between the runtime and a datapath plugin.
//!
//! A [`Datapath`] is one technology on one node (kernel UDP, AF_XDP, …). It opens [`Port`]s; a port
//! belongs to one lane, is used by that lane's thread only, and moves *datagrams* between this node
//! and its peers. A datapath knows nothing of sessions, tenants, channels or quality of service.
//!
//! Sending is `reserve` (take a frame) → write the payload through [`Port::payload`] → `commit` →
//! `flush`; a frame is an ownership token and is either committed or cancelled. Receiving lends each
//! payload to a callback. None of these calls blocks, allocates or makes a system call other than
//! the technology's own.
//!
//! Every datapath runs the suite in [`conformance`]. Source: naaas-thesis-2024, section 5.1.3.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use takt_time::{TaiTime, TrafficClass};

pub mod conformance;
pub mod memory;
#[doc(hidden)] // for examples of datapaths
pub mod overhead;
pub mod plugin;
pub mod stack;

/// The technology of a datapath: a short lower-case name such as `udp` or `xdp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatapathKind(pub &'static str);

impl fmt::Display for DatapathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// What a datapath can do, for the mapping policy and for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Bypasses the kernel's network stack: what `acceleration = fast` asks for.
    pub accelerated: bool,
    /// Needs a core that spins to receive at all: excluded by `resource use = frugal`.
    pub needs_polling: bool,
    /// The device, or the kernel's queue in front of it, sends frames at their launch time by itself: which
    /// one, says `detail`; which frames, [`Port::keeps_launch_time`].
    pub hardware_launch_time: bool,
    /// Frames move between user space and the device without a copy.
    pub zero_copy: bool,
    /// Its datagrams are UDP on the wire: ports of other technologies that speak it exchange datagrams with its own.
    pub speaks_udp: bool,
    /// Its addresses are not the kernel's: a port is bound to the unspecified address, and tells its own.
    pub own_addresses: bool,
    /// One line for people: driver, mode, queues, and what was unavailable and why.
    pub detail: String,
}

/// Which port a lane wants.
#[derive(Clone, Debug)]
pub struct PortRequest {
    /// The lane's number, from 0. Datapaths with receive queues serve queue `q` on lane `q % lanes`.
    pub lane: u16,
    /// How many lanes the runtime has.
    pub lanes: u16,
    /// Local address and UDP port. An unspecified address takes every local address.
    pub bind: SocketAddr,
}

/// A peer that a port can send to; valid until [`Port::disconnect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerHandle(pub u32);

/// A frame to be filled: an ownership token, spent by [`Port::commit`] or [`Port::cancel`].
#[derive(Debug)]
#[must_use = "a reserved frame must be committed or cancelled"]
pub struct Frame(pub u32);

/// A datagram that has arrived, lent for the duration of a callback.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Who sent it.
    pub source: SocketAddr,
    /// The local UDP port it was addressed to: lanes behind one queue tell their traffic apart by it.
    pub destination_port: u16,
    /// UDP payload.
    pub payload: &'a [u8],
}

/// Why a datapath or port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The process lacks a privilege; the text names the capability and how to grant it.
    #[error("missing privilege: {0}")]
    Privilege(String),
    /// The address or port is taken or is not local.
    #[error(
        "cannot bind {address}: {source} (choose another port or stop the program that holds it)"
    )]
    Bind {
        /// What was to be bound.
        address: SocketAddr,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The interface, driver or kernel does not offer what the datapath needs.
    #[error("not available here: {0}")]
    Unavailable(String),
    /// A system call failed for another reason.
    #[error("{action}: {source}")]
    System {
        /// What was tried, for instance "cannot create AF_XDP socket".
        action: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// Why a peer cannot be used by a port.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No route, or the route leaves by an interface that this port does not serve.
    #[error(
        "no route to {0} through this datapath: check `ip route get` and the interface in the configuration"
    )]
    NoRoute(SocketAddr),
    /// The port's table of peers is full.
    #[error("this port already has {0} peers, its limit")]
    TooManyPeers(usize),
    /// The port has no interface of its own whose link it could send frames of others to.
    #[error(
        "this datapath is bound to no interface: name the network's `interface`, or use a datapath such as xdp"
    )]
    NoFrames,
    /// The port sends frames of others by its own interface only.
    #[error("this port sends no frames by interface {0}, which is not its own")]
    OtherInterface(u32),
    /// The interface cannot be used for frames of others.
    #[error(
        "cannot send frames by interface {interface}: {source} (a packet socket needs CAP_NET_RAW)"
    )]
    Link {
        /// Its index.
        interface: u32,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// IPv4 port asked for an IPv6 peer or the reverse.
    #[error("{peer} is of another address family than the port's own {local}")]
    AddressFamily {
        /// The peer asked for.
        peer: SocketAddr,
        /// The port's own address.
        local: SocketAddr,
    },
    /// A system call failed.
    #[error("cannot prepare sending to {peer}: {source}")]
    System {
        /// The peer asked for.
        peer: SocketAddr,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// Why no frame was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// All frames are in flight: try again after the next [`Port::flush`] or `receive`.
    #[error("all frames are in flight")]
    WouldBlock,
    /// The next hop of the peer is not resolved (yet), or its interface is down. Count and drop.
    #[error("the peer's next hop is not resolved")]
    Unresolved,
    /// The handle names no peer.
    #[error("no such peer")]
    UnknownPeer,
}

/// Counters of a port since it was opened. Every datagram that a port does not deliver is in one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Datagrams handed to the technology.
    pub tx_datagrams: u64,
    /// Payload bytes handed to the technology.
    pub tx_bytes: u64,
    /// Committed datagrams that the technology refused for good (unreachable, message too long, …), some of
    /// them after they had been handed to it (launch time missed).
    pub tx_errors: u64,
    /// Datagrams delivered to the callback.
    pub rx_datagrams: u64,
    /// Payload bytes delivered to the callback.
    pub rx_bytes: u64,
    /// Datagrams lost below us before we could read them, as far as the technology tells
    /// (socket receive buffer, ring full).
    pub rx_dropped: u64,
    /// Frames refused by our checks: truncated, bad checksum, not for us.
    pub rx_invalid: u64,
}

/// One technology on this node.
pub trait Datapath: Send + Sync {
    /// Which technology it is.
    fn kind(&self) -> DatapathKind;
    /// What it can do here, as probed.
    fn capabilities(&self) -> Capabilities;
    /// Opens a lane's port. Does all allocation and all privileged work.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind on failure.
    fn open(&self, request: &PortRequest) -> Result<Box<dyn Port>, OpenError>;

    /// Tells from now on whether the technology works. `changed` may be called, from another thread, when it has
    /// failed or works again; who asks looks now and then all the same. `None`: it is not known to fail.
    fn health(&self, changed: Box<dyn Fn() + Send>) -> Option<Box<dyn Health>> {
        let _ = changed;
        None
    }
}

/// Whether a technology works: its link is up, its device is there, its process answers.
pub trait Health: Send + Sync {
    /// Why nothing passes it at present, with the remedy; `None` while it works. Cheap.
    fn fault(&self) -> Option<String>;
}

/// The way to a peer by the kernel's tables, asked for ahead of [`Port::connect_at_once`].
pub type Way = Arc<stack::Destination>;

/// Asks the kernel's tables for the ways of a port to its peers, so that the port's lane never waits for them.
pub trait Resolver: Send {
    /// Begins to ask for the way to `remote`, and has `answered` called when it
    /// [is known](stack::Destination::is_known), from another thread. It does not wait. `None`: nothing can be
    /// asked, and `answered` is never called.
    fn resolve(&self, remote: SocketAddr, answered: Box<dyn FnOnce() + Send>) -> Option<Way>;
}

/// A lane's own access to a datapath. Dropping it detaches and frees everything.
pub trait Port: Send {
    /// The local address as peers must use it (the real port where 0 was asked for).
    fn local(&self) -> SocketAddr;

    /// What asks for ways that [`connect`](Port::connect) would wait for; none where it waits for nothing.
    fn resolver(&self) -> Option<Box<dyn Resolver>> {
        None
    }

    /// As [`connect`](Port::connect), but never waits for an answer about the way: `way` is what the port's
    /// [`resolver`](Port::resolver) was told. Where there is none, or it is not known yet, or no route leads there,
    /// the peer is not [reached](Port::reaches) before one does.
    ///
    /// # Errors
    /// As [`connect`](Port::connect), but for [`ConnectError::NoRoute`] where the port has a resolver.
    fn connect_at_once(
        &mut self,
        remote: SocketAddr,
        way: Option<Way>,
    ) -> Result<PeerHandle, ConnectError> {
        let _ = way;
        self.connect(remote)
    }

    /// Whether a route has led to the peer by this port since it was connected, or since the technology works again.
    /// Cheap. A peer that is reached may be unresolved, also because its route is gone: what is sent by one link does
    /// not change to another by itself, unless that link is down.
    fn reaches(&mut self, peer: PeerHandle) -> bool {
        let _ = peer;
        true
    }

    /// Prepares sending to `remote`; cold path, may allocate and call the kernel. Connecting the
    /// same address again returns the same handle.
    ///
    /// # Errors
    /// [`ConnectError`]. A next hop that is merely unresolved is no error here: `reserve` tells.
    fn connect(&mut self, remote: SocketAddr) -> Result<PeerHandle, ConnectError>;

    /// Prepares sending whole Ethernet frames, without frame check sequence, as they are: what such a peer's
    /// [`payload`](Port::payload) holds. They leave by the interface with this index, the port's own if none
    /// is given. As [`connect`](Port::connect) otherwise.
    ///
    /// # Errors
    /// [`ConnectError::NoFrames`], [`ConnectError::OtherInterface`] where the technology cannot,
    /// [`ConnectError::Link`] where the kernel refuses.
    fn connect_link(&mut self, interface: Option<u32>) -> Result<PeerHandle, ConnectError> {
        Err(interface.map_or(ConnectError::NoFrames, ConnectError::OtherInterface))
    }

    /// Forgets a peer. Frames reserved for it must have been committed or cancelled.
    fn disconnect(&mut self, peer: PeerHandle);

    /// Most payload bytes that one datagram to `peer` carries without IP fragmentation, after the
    /// route's present MTU. Cheap; may change between calls as the route does. 0 for an unknown peer.
    fn max_payload(&self, peer: PeerHandle) -> usize;

    /// Most payload bytes of a datagram that the port takes, whoever sends it: what senders are told.
    fn longest_received(&self) -> usize {
        usize::MAX
    }

    /// Takes a frame with room for `max_payload(peer)` bytes. Several frames may be reserved at a
    /// time; they leave in the order of their commits.
    ///
    /// # Errors
    /// [`ReserveError`]; nothing changes.
    fn reserve(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError>;

    /// Most payload bytes of a datagram to `peer` that IP may fragment on its way: what was cut for a longer route
    /// still leaves so. No less than [`max_payload`](Port::max_payload); the same where the technology never
    /// fragments. Cheap.
    fn max_fragmented(&self, peer: PeerHandle) -> usize {
        self.max_payload(peer)
    }

    /// As [`reserve`](Port::reserve), with room for `max_fragmented(peer)` bytes. Few such frames exist, and they
    /// cost more than others to send: for what cannot be cut anew.
    ///
    /// # Errors
    /// [`ReserveError`]; nothing changes.
    fn reserve_fragmented(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        self.reserve(peer)
    }

    /// The payload of a reserved frame, `max_payload` bytes long as of its reservation.
    fn payload(&mut self, frame: &Frame) -> &mut [u8];

    /// Queues the frame with its first `len` payload bytes. `launch_time`, by the kernel's `CLOCK_TAI`, is
    /// honoured only where [`keeps_launch_time`](Port::keeps_launch_time) says so; the runtime waits by
    /// itself elsewhere. A frame whose launch time has passed is sent as soon as possible.
    fn commit(
        &mut self,
        frame: Frame,
        len: usize,
        class: TrafficClass,
        launch_time: Option<TaiTime>,
    );

    /// Whether frames of `class` to `peer` may be handed over ahead of their launch time, because the
    /// technology sends them at that time and not before. Cheap; only where
    /// [`Capabilities::hardware_launch_time`] says so at all.
    fn keeps_launch_time(&self, peer: PeerHandle, class: TrafficClass) -> bool {
        let _ = (peer, class);
        false
    }

    /// Whether so much waits for the peer that what is least worth is better not sent: the little room that is left is for
    /// the rest. Cheap; false where the technology does not know.
    fn is_crowded(&self, peer: PeerHandle) -> bool {
        let _ = peer;
        false
    }

    /// Gives a reserved frame back unsent.
    fn cancel(&mut self, frame: Frame);

    /// Hands all committed frames to the technology, as many as it takes; the rest stays queued for
    /// the next call, in order. Returns true when nothing is left queued.
    fn flush(&mut self) -> bool;

    /// Delivers up to `budget` datagrams that have arrived, in order of arrival. Returns how many.
    fn receive(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize;

    /// Whether an empty [`receive`](Port::receive) costs a system call: such ports are polled more
    /// rarely beside one whose poll is a memory read.
    fn receive_costs_syscall(&self) -> bool;

    /// One of them is readable when datagrams wait: what a parked lane sleeps on (level triggered). A lane parks only
    /// after a [`receive`](Port::receive) that delivered less than its budget: what a port holds of a
    /// train that exceeded the budget does not show here. Ports of plugins have a single one.
    fn wait_fds(&self) -> Vec<BorrowedFd<'_>>;

    /// How often [`wait_fds`](Self::wait_fds) have become other descriptors. Most keep theirs.
    fn wait_fd_changes(&self) -> u32 {
        0
    }

    /// Counters since the port was opened.
    fn counters(&self) -> PortCounters;
}
