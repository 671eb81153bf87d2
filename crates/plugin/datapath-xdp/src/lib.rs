//! Datapath over AF_XDP sockets: frames between user space and a network interface, past the
//! kernel's stack.
//!
//! A small XDP program on the interface picks the datagrams for Takt's addresses and ports out of
//! the receive queues and hands them to sockets that lanes poll by reading memory; all other
//! traffic takes its usual way through the kernel, which also keeps doing ARP, neighbour discovery
//! and ICMP. Routes, neighbours and addresses are the kernel's ([`takt_datapath::stack`]). Not for
//! hosts without `CAP_NET_ADMIN`, `CAP_NET_RAW` and `CAP_BPF`, and not for destinations on this
//! host: there is no wire to them.
//!
//! # Limits
//! - IP fragments and IPv6 extension headers go to the kernel, where nobody reads them for Takt: they are counted as dropped.
//! - Datagrams on queues outside [`XdpConfig::queues`] go the same way.
//! - An interface that goes down and comes back is followed. When one is deleted its sockets die with it, and a port there
//!   reports [`takt_datapath::ReserveError::Unresolved`]. When there is another one of its name, whoever asks for the
//!   [`Health`] of the datapath has it opened in its place, and ports take that over; nobody does it else.
//! - With zero copy the driver has what is in the ring when the link goes down: it counts as sent, and may leave when the link is
//!   back. With copies it is withdrawn, and counted as lost.
//! - An MTU that is raised is followed as far as frames have room: those of ports that were opened with one of 1500 at most take
//!   1920 bytes of payload, others 4 KiB less the headers, or a multiple. What is received in one chunk is 1792 bytes long there at
//!   most: longer frames need Linux 6.6, and are dropped with zero copy.
//! - A network card must leave VLAN tags in the frame (`ethtool -K … rxvlan off`) for VLAN
//!   interfaces to be told apart; their addresses count as the interface's own.
//! - veth switches segmentation offload off at the far end of an interface with an XDP program,
//!   which slows down TCP there.
//!
//! Linux 5.18 at least; 6.6 for an MTU above 3800.
//!
//! Source: naaas-thesis-2024, section 5.1.3 (plugins); Linux
//! `Documentation/networking/af_xdp.rst`.

mod attachment;
mod bare;
mod config;
mod interface;
mod maps;
mod metadata;
mod peers;
mod port;
mod privilege;
mod program;
mod prospect;
mod queue;
mod receive;
mod renewal;
mod reservation;
mod ring;
mod socket;
mod transmit;
mod umem;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use takt_datapath::stack::NextHops;
use takt_datapath::{Capabilities, Datapath, DatapathKind, Health, OpenError, Port, PortRequest};

pub use config::{XdpConfig, ZeroCopy};
pub use maps::ProgramCounters;
pub use program::Mode;
#[cfg(fuzzing)]
pub use program::fuzzing;
pub use prospect::Prospect;
pub use socket::BusyPoll;
pub use takt_xdp::AttachMode;

use attachment::{Attachment, Traits};
pub use bare::BareSocket;
use interface::Device;
use port::XdpPort;
use renewal::{Link, Site};

/// AF_XDP on one interface. The XDP program is attached as long as this or one of its ports lives, and the interface.
#[derive(Debug)]
pub struct XdpDatapath {
    site: Arc<Site>,
}

/// An interface and what was found out about it.
#[derive(Debug)]
pub(crate) struct Probed {
    device: Device,
    attachment: Arc<Attachment>,
    traits: Traits,
    /// Queues that send frames at launch times.
    launch_queues: Vec<u32>,
}

impl Probed {
    /// `next_hops`: follows the tables of the thread's namespace already.
    fn find(config: &XdpConfig, next_hops: Option<Arc<NextHops>>) -> Result<Self, OpenError> {
        let device = Device::probe(&config.interface)?;
        if let Some(range) = config
            .queues
            .as_ref()
            .filter(|range| range.end > device.queues)
        {
            return Err(OpenError::Unavailable(format!(
                "{} has {} receive queue(s), the range {range:?} asks for more: see `ethtool -l \
                 {}`",
                device.name, device.queues, device.name
            )));
        }
        let attachment = Attachment::get(&device, config.mode, next_hops)?;
        let first = config.queues.as_ref().map_or(0, |range| range.start);
        let state = attachment
            .interface_state()
            .ok_or_else(|| OpenError::Unavailable(format!("{} is gone", device.name)))?;
        let traits = attachment.traits(first, config.zero_copy, state.mtu)?;
        let launch_queues = metadata::queues(&device);
        Ok(Self {
            device,
            attachment,
            traits,
            launch_queues,
        })
    }

    /// The queues of a lane, and how many ports are to share each: every `lanes`-th queue, or one
    /// shared with other lanes where there are more lanes than queues.
    fn queues_of(
        &self,
        config: &XdpConfig,
        request: &PortRequest,
    ) -> Result<(Vec<u32>, u32), OpenError> {
        let namespace = takt_xdp::namespace().map_err(|source| OpenError::System {
            action: "cannot identify the thread's network namespace".into(),
            source,
        })?;
        if namespace != self.device.namespace {
            return Err(OpenError::Unavailable(format!(
                "{} was probed in another network namespace than the port is opened in: do both \
                 in one",
                self.device.name
            )));
        }
        let all = config.queues.clone().unwrap_or(0..self.device.queues);
        Ok(share_queues(
            all,
            request.lane,
            request.lanes,
            config.ports_per_queue,
        ))
    }

    /// Whether frames may come from senders on this machine whose checksums no device has
    /// completed: always on veth, and possibly wherever the program runs on the kernel's packets
    /// and not on the device's.
    fn unfinished_checksums(&self) -> bool {
        self.device.driver == "veth" || self.attachment.mode() == AttachMode::Generic
    }
}

impl XdpDatapath {
    /// The technology's name.
    pub const KIND: DatapathKind = DatapathKind("xdp");

    /// Finds out what the interface can do and attaches the XDP program. Belongs to the calling
    /// thread's network namespace, which ports are to be opened in as well.
    ///
    /// # Errors
    /// [`OpenError::Privilege`] names the capability that is missing, [`OpenError::Unavailable`]
    /// what the interface, its driver or the configuration stand in the way with.
    pub fn probe(config: XdpConfig) -> Result<Self, OpenError> {
        config.check()?;
        privilege::check()?;
        let probed = Probed::find(&config, None)?;
        Ok(Self {
            site: Site::new(config, probed),
        })
    }

    /// What the XDP program has seen on this interface.
    ///
    /// # Errors
    /// The kernel's answer when the program's counters cannot be read.
    pub fn program_counters(&self) -> std::io::Result<ProgramCounters> {
        self.site.probed().attachment.maps().counters()
    }

    /// A bare socket on `queue` for the UDP port of `bind`: to measure what a [`Port`] adds to it.
    ///
    /// # Errors
    /// As [`Datapath::open`].
    pub fn open_bare(&self, queue: u32, bind: SocketAddr) -> Result<BareSocket, OpenError> {
        BareSocket::open(self, queue, bind)
    }
}

/// The queues of `lane` among `lanes`, and how many ports share a queue at least.
fn share_queues(all: Range<u32>, lane: u16, lanes: u16, ports_per_queue: u16) -> (Vec<u32>, u32) {
    let (lane, lanes) = (u32::from(lane), u32::from(lanes.max(1)));
    let count = all.end.saturating_sub(all.start).max(1);
    let shared = u32::from(ports_per_queue).max(lanes.div_ceil(count));
    let own: Vec<u32> = all.clone().filter(|queue| queue % lanes == lane).collect();
    if own.is_empty() {
        (vec![all.start + lane % count], shared)
    } else {
        (own, shared)
    }
}

impl Datapath for XdpDatapath {
    fn kind(&self) -> DatapathKind {
        Self::KIND
    }

    fn capabilities(&self) -> Capabilities {
        let probed = self.site.probed();
        let Probed {
            device,
            attachment,
            traits,
            launch_queues,
        } = &*probed;
        let queues = match &self.site.config.queues {
            Some(range) => format!("queues {range:?} of {}", device.queues),
            None => format!("{} queue(s)", device.queues),
        };
        let mode = match (attachment.mode(), attachment.fallback()) {
            (AttachMode::Native, _) => "native XDP".to_owned(),
            (AttachMode::Generic, None) => "generic XDP as asked for".to_owned(),
            (AttachMode::Generic, Some(reason)) => format!("generic XDP ({reason})"),
        };
        let copy = match &traits.no_zero_copy {
            None => "zero copy".to_owned(),
            Some(reason) => format!("copy mode ({reason})"),
        };
        let launch = match launch_queues.as_slice() {
            [] => String::new(),
            queues => format!(", launch times on queue {queues:?}"),
        };
        Capabilities {
            accelerated: true,
            // A parked lane is woken by the socket.
            needs_polling: false,
            hardware_launch_time: !launch_queues.is_empty(),
            speaks_udp: true,
            own_addresses: false,
            zero_copy: traits.zero_copy,
            detail: format!(
                "{} (driver {}): {mode}, {copy}, {queues}{launch}",
                device.name, device.driver
            ),
        }
    }

    fn open(&self, request: &PortRequest) -> Result<Box<dyn Port>, OpenError> {
        Ok(Box::new(XdpPort::open(&self.site, request)?))
    }

    fn health(&self, changed: Box<dyn Fn() + Send>) -> Option<Box<dyn Health>> {
        let link = Link::watch(&self.site, changed).ok()?;
        Some(Box::new(link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No device here keeps launch times. The kernel takes the metadata all the same, and the frames must
    /// be what they are without it.
    #[test]
    fn frames_with_a_launch_time_arrive_whole() {
        use takt_lab::{Lab, LabConfig};
        use takt_time::{TaiTime, TrafficClass};
        // Root is needed, as everywhere with AF_XDP.
        // SAFETY: a plain call.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: network namespaces need root");
            return;
        }
        let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
        let listener = {
            let _inside = lab.host(1).enter().expect("the lab is up");
            std::net::UdpSocket::bind((lab.host(1).address(), 0)).expect("bind")
        };
        let patience = std::time::Duration::from_secs(20);
        listener
            .set_read_timeout(Some(patience))
            .expect("a time-out");
        let _inside = lab.host(0).enter().expect("the lab is up");
        let datapath = XdpDatapath::probe(XdpConfig::new("eth0")).expect("AF_XDP");
        assert!(!datapath.capabilities().hardware_launch_time, "on veth");
        let mut probed = Probed::find(&datapath.site.config, None).expect("AF_XDP");
        probed.launch_queues = vec![0];
        let site = Site::new(XdpConfig::new("eth0"), probed);
        let datapath = XdpDatapath { site };
        let detail = datapath.capabilities().detail;
        assert!(detail.ends_with("launch times on queue [0]"), "{detail}");
        let request = PortRequest {
            lane: 0,
            lanes: 1,
            bind: SocketAddr::from((lab.host(0).address(), 0)),
        };
        let mut port = datapath.open(&request).expect("a port");
        let peer = port
            .connect(listener.local_addr().expect("bound"))
            .expect("a peer");
        let class = TrafficClass::new(6).expect("a class");
        assert!(port.keeps_launch_time(peer, class));
        let launch = Some(TaiTime::from_nanos(1_900_000_000_000_000_000));
        for (number, launch) in [None, launch, None, launch, launch].into_iter().enumerate() {
            let payload = vec![number as u8; 1 + 300 * number];
            let start = std::time::Instant::now();
            let frame = loop {
                match port.reserve(peer) {
                    Ok(frame) => break frame,
                    // The neighbour is being asked for.
                    Err(_) if start.elapsed() < patience => std::thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            };
            port.payload(&frame)[..payload.len()].copy_from_slice(&payload);
            port.commit(frame, payload.len(), class, launch);
            while !port.flush() {}
            let mut buffer = [0; 2048];
            let length = listener.recv(&mut buffer).expect("a datagram");
            assert_eq!(buffer[..length], payload);
        }
        assert_eq!(port.counters().tx_errors, 0);
    }

    #[test]
    fn queues_go_round_the_lanes() {
        assert_eq!(share_queues(0..4, 0, 2, 1), (vec![0, 2], 1));
        assert_eq!(share_queues(0..4, 1, 2, 1), (vec![1, 3], 1));
        assert_eq!(share_queues(4..6, 0, 1, 3), (vec![4, 5], 3));
    }

    #[test]
    fn lanes_share_queues_where_there_are_more_of_them() {
        assert_eq!(share_queues(0..1, 0, 2, 1), (vec![0], 2));
        assert_eq!(share_queues(0..1, 1, 2, 1), (vec![0], 2));
        let shared: Vec<_> = (0..5).map(|lane| share_queues(0..2, lane, 5, 1)).collect();
        assert_eq!(
            shared,
            [
                (vec![0], 3),
                (vec![1], 3),
                (vec![0], 3),
                (vec![1], 3),
                (vec![0], 3)
            ]
        );
    }

    #[test]
    fn no_queue_is_given_to_more_ports_than_it_is_told_to_serve() {
        for (start, count) in (0..8).flat_map(|start| (1..7).map(move |count| (start, count))) {
            for lanes in 1..16 {
                let mut ports = vec![0; (start + count) as usize];
                let mut served = 0;
                for lane in 0..lanes {
                    let (queues, shared) = share_queues(start..start + count, lane, lanes, 1);
                    assert!(!queues.is_empty(), "lane {lane} of {lanes} has no queue");
                    queues.iter().for_each(|queue| ports[*queue as usize] += 1);
                    served = shared;
                }
                let (before, used) = ports.split_at(start as usize);
                assert!(before.iter().all(|ports| *ports == 0));
                assert!(
                    used.iter().all(|ports| (1..=served).contains(ports)),
                    "{count} queues from {start} for {lanes} lanes: {used:?} of {served}"
                );
            }
        }
    }

    #[test]
    fn a_lane_that_no_number_in_the_range_falls_to_shares_one() {
        assert_eq!(share_queues(2..3, 0, 2, 1), (vec![2], 2));
        assert_eq!(share_queues(2..3, 1, 2, 1), (vec![2], 2));
    }
}
