//! The datapath over kernel UDP sockets: works everywhere, needs no privilege.
//!
//! A port is a nonblocking socket, and a second one that receives what is marked with a traffic class. What the
//! kernel offers to spare system calls and passes through its network stack is used: trains of datagrams (UDP GSO and
//! GRO) and many messages by one call. Datagrams are not fragmented, but for those that were cut for a longer route: a port tells how much each peer's route carries. Each is marked with its traffic
//! class, and where an interface has a queueing discipline that keeps launch times (`etf`), it is given them.
//! Whole frames of others leave by packet sockets, one for each interface. Not for bypassing the kernel. Source: naaas-thesis-2024, section 5.1.3 (the plugin layer).

mod address;
mod frames;
mod launch;
mod links;
mod peers;
mod port;
mod priorities;
mod receive;
mod socket;
mod transmit;

use std::net::{Ipv4Addr, SocketAddr};

use takt_datapath::stack;
use takt_datapath::{Capabilities, Datapath, DatapathKind, OpenError, Port, PortRequest};

use port::UdpPort;
pub use priorities::Priorities;
use socket::Socket;

/// Longest payload that a UDP datagram can have over IPv4.
const LONGEST_PAYLOAD: usize = 65_507;

/// Sizes of each port. [`UdpConfig::default`] suits a node of some thousand peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// Frames that can be reserved or queued at a time.
    pub frames: u32,
    /// Bytes of a frame: the longest payload sent, where the route carries it.
    pub frame_size: usize,
    /// Peers that a port can have at a time.
    pub peers: u16,
    /// Bytes of the socket's receive buffer, as far as permitted: all of it with CAP_NET_ADMIN,
    /// `net.core.rmem_max` without. Best effort's: a quarter more is for what is marked with a traffic class.
    pub receive_buffer: usize,
    /// Whether what is marked with a traffic class above 0 has a receive buffer of its own, by a second socket at the
    /// same address, where the kernel permits it.
    pub class_buffers: bool,
    /// Bytes of the socket's send buffer, as far as permitted (`net.core.wmem_max`). When it is full,
    /// [`Port::flush`] leaves the rest queued. What it holds has passed the runtime's scheduler: the
    /// less it holds, the sooner an urgent datagram leaves.
    pub send_buffer: usize,
    /// Whether trains of datagrams pass the kernel as one packet, where it can: UDP GSO and GRO.
    pub segmentation: bool,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            frames: 1024,
            frame_size: 9216,
            peers: 4096,
            receive_buffer: 32 << 20,
            class_buffers: true,
            send_buffer: 256 << 10,
            segmentation: true,
        }
    }
}

impl UdpConfig {
    fn check(&self) -> Result<(), OpenError> {
        let refuse = |what: String| Err(OpenError::Unavailable(what));
        if self.frames == 0 || self.frames > 1 << 20 {
            return refuse(format!(
                "a UDP port of {} frames: choose 1 to {}",
                self.frames,
                1 << 20
            ));
        }
        if self.frame_size == 0 || self.frame_size > LONGEST_PAYLOAD {
            return refuse(format!(
                "UDP frames of {} bytes: choose 1 to {LONGEST_PAYLOAD}",
                self.frame_size
            ));
        }
        Ok(())
    }
}

/// Kernel UDP on this node.
#[derive(Clone, Debug)]
pub struct UdpDatapath {
    config: UdpConfig,
    launch_times: bool,
    detail: String,
    priorities: Priorities,
}

impl UdpDatapath {
    /// The technology's name.
    pub const KIND: DatapathKind = DatapathKind("udp");

    /// The datapath whose ports have these sizes. Probes the kernel; opens nothing that stays.
    pub fn new(config: UdpConfig) -> Self {
        let mut detail = describe(&config);
        let launch_times = match probe_launch_times() {
            Ok(None) => false,
            Ok(Some(found)) => {
                detail.push_str(&format!(", launch times: {found}"));
                true
            }
            Err(why) => {
                detail.push_str(&format!(", no launch times: {why}"));
                false
            }
        };
        Self {
            config,
            launch_times,
            detail,
            priorities: Priorities::default(),
        }
    }

    /// Those of the packets of all its ports.
    pub fn priorities(&self) -> Priorities {
        self.priorities.clone()
    }
}

impl Default for UdpDatapath {
    fn default() -> Self {
        Self::new(UdpConfig::default())
    }
}

impl Datapath for UdpDatapath {
    fn kind(&self) -> DatapathKind {
        Self::KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            accelerated: false,
            needs_polling: false,
            hardware_launch_time: self.launch_times,
            speaks_udp: true,
            own_addresses: false,
            zero_copy: false,
            detail: self.detail.clone(),
        }
    }

    fn open(&self, request: &PortRequest) -> Result<Box<dyn Port>, OpenError> {
        Ok(Box::new(UdpPort::open(
            &self.config,
            request,
            self.priorities(),
        )?))
    }
}

/// What keeps launch times here, if anything does; an error is why that cannot be used, or found out.
fn probe_launch_times() -> Result<Option<String>, String> {
    let queues = stack::launch_queues().map_err(|error| format!("queues not read: {error}"))?;
    if queues.is_empty() {
        return Ok(None);
    }
    let found = launch::describe(&queues);
    match Socket::new(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))
        .and_then(|socket| socket.announce_launch_times())
    {
        Ok(()) => Ok(Some(found)),
        Err(error) => Err(format!("{found}, but {error}: grant CAP_NET_ADMIN")),
    }
}

/// Whether the kernel lets two sockets share an address by class.
fn offers_class_buffers() -> Result<(), Box<dyn std::error::Error>> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket = Socket::new(any)?;
    socket.beside(socket.bind(any)?)?;
    Ok(())
}

fn describe(config: &UdpConfig) -> String {
    let probed = Socket::new(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).and_then(|socket| {
        socket.size_buffers(config.receive_buffer, config.send_buffer)?;
        Ok((
            socket.offers_segmentation(),
            socket.coalesce_received(),
            socket.receive_buffer()?,
            config.class_buffers && offers_class_buffers().is_ok(),
        ))
    });
    match probed {
        Ok((gso, gro, receive_buffer, class_buffers)) => {
            let offload = |offered: bool| match (config.segmentation, offered) {
                (false, _) => "off",
                (true, false) => "not offered by this kernel",
                (true, true) => "on",
            };
            let classes = match class_buffers {
                true => " and one for what is marked with a class",
                false => " for all classes",
            };
            format!(
                "kernel UDP sockets, GSO {}, GRO {}, receive buffer {} KiB{classes}",
                offload(gso),
                offload(gro),
                receive_buffer >> 10
            )
        }
        Err(error) => format!("kernel UDP sockets, not probed: {error}"),
    }
}
