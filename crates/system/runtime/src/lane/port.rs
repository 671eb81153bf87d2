//! A port of a datapath with what its lane knows of it: its scheduler, whom it fills datagrams for, how often
//! it is polled.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use takt_datapath::{Datagram, DatapathKind, PeerHandle, Port};
use takt_session::layout::{FLAG_AT_ONCE_HERE, FLAG_LAUNCH_TIME, TxDescriptor};
use takt_time::{TaiTime, TrafficClass};

use super::departure::Departures;
use super::egress;
use crate::counters::{DepartureCounters, LaneCounters, PortTraffic};
use crate::slots::RemoteSlot;

/// Most datagrams taken from one port in a round.
pub(super) const RECEIVE_BUDGET: usize = 64;

/// Datagrams that are passed on between two flushes: what was not flushed does not count as waiting at the other lane. All lanes
/// together pass the mark by fewer than the quarter of the room that is kept there.
pub(super) const PASSED_ON_AT_ONCE: u32 = 8;

/// A port with what its lane knows of it.
pub struct LanePort {
    /// Its technology.
    pub kind: DatapathKind,
    /// The port.
    pub port: Box<dyn Port>,
    /// Connects lanes of this node: the sender's address means nothing.
    pub trusted: bool,
    /// UDP ports of the other lanes behind the same device, with their handles on the port between lanes.
    pub siblings: Vec<(u16, PeerHandle)>,
    /// Its counters as others see them.
    pub traffic: Arc<PortTraffic>,
    /// It keeps some launch times itself, by the lane's clock.
    pub(super) kept: bool,
    /// Its scheduler. Between lanes, where there is no link, it keeps launch times alone.
    pub(super) departures: Option<Box<Departures>>,
    /// Remote lanes with a datagram being filled here.
    pub(super) open: Vec<RemoteSlot>,
    /// Frames may be waiting for `flush`.
    pub(super) dirty: bool,
    /// Datagrams that were passed on by it, counted round.
    passed_on: u32,
    pub(super) interval: u32,
    pub(super) skipped: u32,
    /// Datagrams taken from it at a time, after what they cost lately.
    pub(super) budget: usize,
    /// What was received from it has cost so much since nothing was left.
    pub(super) behind: i64,
    /// The last look at it found less than the budget: nothing waits that its descriptor does not show.
    pub(super) drained: bool,
}

impl LanePort {
    /// A port, ready to be polled. `kept`: it keeps some launch times itself, by the lane's clock.
    pub fn new(
        kind: DatapathKind,
        port: Box<dyn Port>,
        trusted: bool,
        traffic: Arc<PortTraffic>,
        departures: Option<&crate::config::Departure>,
        kept: bool,
    ) -> Self {
        Self {
            kept,
            departures: departures.map(|how| Box::new(Departures::new(how, kept, Arc::default()))),
            kind,
            port,
            trusted,
            siblings: Vec::new(),
            traffic,
            open: Vec::new(),
            dirty: false,
            passed_on: 0,
            interval: 1,
            skipped: 0,
            budget: RECEIVE_BUDGET,
            behind: 0,
            drained: false,
        }
    }

    pub(super) fn publish(&self) {
        self.traffic.set(&self.port.counters());
        if let Some(departures) = &self.departures {
            departures.publish();
        }
    }

    /// The counters of its scheduler.
    pub fn departure_counters(&self) -> Option<Arc<DepartureCounters>> {
        Some(self.departures.as_ref()?.counters().clone())
    }

    /// Whether frames of this class to this peer are handed over ahead of their start.
    #[inline]
    pub(super) fn keeps(&self, peer: PeerHandle, class: TrafficClass) -> bool {
        self.kept && self.port.keeps_launch_time(peer, class)
    }

    /// Whether it has a frame that it could not hand over: nothing is put behind it.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.departures.as_ref().is_some_and(|d| d.waits())
    }

    /// Whether what has no launch time lets others go first: a frame is to leave in a moment, or has not left.
    #[inline]
    pub(super) fn yields(&self, now: TaiTime) -> bool {
        let near = |d: &Departures| !self.trusted && d.is_near(now, egress::GUARD_NS);
        self.departures
            .as_ref()
            .is_some_and(|d| d.waits() || near(d))
    }

    /// Whether a message passes the scheduler.
    #[inline]
    pub(super) fn schedules(&self, descriptor: &TxDescriptor) -> bool {
        let timed = match self.trusted {
            // To sinks of this node.
            true => FLAG_LAUNCH_TIME | FLAG_AT_ONCE_HERE,
            false => FLAG_LAUNCH_TIME,
        };
        self.departures.as_ref().is_some_and(|departures| {
            departures.scheduled() || descriptor.flags & timed == FLAG_LAUNCH_TIME
        })
    }
}

/// What is in front of a datagram that is passed on: where it comes from. Begins with what is no version of a datagram, and
/// keeps its records aligned.
pub const PASSED_ON_LEN: usize = 24;
const PASSED_ON: u8 = 0xff;
const _: () = assert!(PASSED_ON != takt_wire::channel::VERSION);

/// The datagram that a lane of this node has passed on, if it is one.
#[inline]
pub(super) fn passed_on<'a>(datagram: &Datagram<'a>) -> Option<Datagram<'a>> {
    let (front, payload) = datagram.payload.split_first_chunk::<PASSED_ON_LEN>()?;
    let (&[PASSED_ON, ..], address) = front.split_first_chunk::<8>()? else {
        return None;
    };
    let address: [u8; 16] = address.try_into().ok()?;
    let address = IpAddr::from(address).to_canonical();
    Some(Datagram {
        source: SocketAddr::new(address, 0),
        destination_port: datagram.destination_port,
        payload,
    })
}

/// Passes a datagram on to the lane that it was meant for: a device's queues know nothing of lanes. Only that lane can tell
/// whether it is authentic: what the node's lanes say to each other has room that it does not take.
pub(super) fn forward(
    counters: &LaneCounters,
    mesh: Option<&mut LanePort>,
    siblings: &[(u16, PeerHandle)],
    datagram: &Datagram<'_>,
) {
    let sent = mesh.is_some_and(|mesh| {
        let Some((_, peer)) = siblings
            .iter()
            .find(|(port, _)| *port == datagram.destination_port)
        else {
            return false;
        };
        if mesh.port.is_crowded(*peer) {
            return false;
        }
        let Ok(frame) = mesh.port.reserve(*peer) else {
            return false;
        };
        let length = PASSED_ON_LEN + datagram.payload.len();
        let space = mesh.port.payload(&frame).get_mut(..length);
        let Some((front, space)) = space.and_then(|s| s.split_first_chunk_mut::<PASSED_ON_LEN>())
        else {
            mesh.port.cancel(frame);
            return false;
        };
        let source = match datagram.source.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        *front = [0; PASSED_ON_LEN];
        front[0] = PASSED_ON;
        front[8..].copy_from_slice(&source.octets());
        space.copy_from_slice(datagram.payload);
        mesh.port
            .commit(frame, length, TrafficClass::BEST_EFFORT, None);
        mesh.dirty = true;
        mesh.passed_on = mesh.passed_on.wrapping_add(1);
        if mesh.passed_on.is_multiple_of(PASSED_ON_AT_ONCE) && !mesh.waits() {
            // What it does not take yet stays for the flush of the round.
            let _ = mesh.port.flush();
        }
        true
    });
    if sent {
        counters.rx_forwarded.add(1)
    } else {
        counters.rx_misdirected.add(1)
    }
}
