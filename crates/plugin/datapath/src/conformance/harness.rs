//! What the rules share: opening, connecting, sending and collecting.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use takt_time::TrafficClass;

use super::{Node, Rig};
use crate::{ConnectError, Frame, OpenError, PeerHandle, Port, PortRequest, ReserveError};

/// How long a rule waits for something that has to happen before it calls it lost. Far beyond what the
/// slowest machine needs: no rule tests how long something takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A datagram that a rule has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) source: SocketAddr,
    pub(super) destination_port: u16,
    pub(super) payload: Vec<u8>,
}

/// Counts down from the last progress.
pub(super) struct Patience {
    since: Instant,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
        }
    }

    pub(super) fn progress(&mut self) {
        self.since = Instant::now();
    }

    /// # Panics
    /// When there has been no progress for too long; `missing` says of what.
    pub(super) fn check(&self, missing: impl FnOnce() -> String) {
        assert!(
            self.since.elapsed() < PATIENCE,
            "for {PATIENCE:?} in vain: {}",
            missing()
        );
    }
}

/// A port on each node, the left one connected to the right one.
pub(super) struct Pair {
    pub(super) left: Box<dyn Port>,
    pub(super) right: Box<dyn Port>,
    pub(super) to_right: PeerHandle,
}

pub(super) fn pair(rig: &mut dyn Rig) -> Pair {
    let mut left = port(rig, Node::Left);
    let mut right = port(rig, Node::Right);
    let to_right = connect(rig, Node::Left, &mut *left, &mut *right);
    Pair {
        left,
        right,
        to_right,
    }
}

/// Opens the only port of a node, at its first address.
pub(super) fn port(rig: &mut dyn Rig, node: Node) -> Box<dyn Port> {
    let address = rig.addresses(node)[0];
    lane_port(rig, node, (0, 1), (address, 0).into())
}

/// Opens the port of lane `lane.0` of `lane.1`.
pub(super) fn lane_port(
    rig: &mut dyn Rig,
    node: Node,
    lane: (u16, u16),
    bind: SocketAddr,
) -> Box<dyn Port> {
    try_open(rig, node, lane, bind)
        .unwrap_or_else(|error| panic!("cannot open {bind} on {node:?}: {error}"))
}

pub(super) fn try_open(
    rig: &mut dyn Rig,
    node: Node,
    lane: (u16, u16),
    bind: SocketAddr,
) -> Result<Box<dyn Port>, OpenError> {
    let datapath = rig.datapath(node);
    let request = PortRequest {
        lane: lane.0,
        lanes: lane.1,
        bind,
    };
    let mut opened = None;
    rig.on(node, &mut || opened = Some(datapath.open(&request)));
    opened.expect("Rig::on has to run what it is given")
}

pub(super) fn try_connect(
    rig: &mut dyn Rig,
    node: Node,
    port: &mut dyn Port,
    remote: SocketAddr,
) -> Result<PeerHandle, ConnectError> {
    let mut connected = None;
    rig.on(node, &mut || connected = Some(port.connect(remote)));
    connected.expect("Rig::on has to run what it is given")
}

pub(super) fn disconnect(rig: &mut dyn Rig, node: Node, port: &mut dyn Port, peer: PeerHandle) {
    rig.on(node, &mut || port.disconnect(peer));
}

/// Connects `port` to `other` and waits until its next hop is resolved.
pub(super) fn connect(
    rig: &mut dyn Rig,
    node: Node,
    port: &mut dyn Port,
    other: &mut dyn Port,
) -> PeerHandle {
    let remote = other.local();
    connect_at(rig, node, port, remote, other)
}

/// Like [`connect`], at one of several addresses of `other`.
pub(super) fn connect_at(
    rig: &mut dyn Rig,
    node: Node,
    port: &mut dyn Port,
    remote: SocketAddr,
    other: &mut dyn Port,
) -> PeerHandle {
    let peer = try_connect(rig, node, port, remote)
        .unwrap_or_else(|error| panic!("cannot connect: {error}"));
    let patience = Patience::new();
    loop {
        match port.reserve(peer) {
            Ok(frame) => {
                port.cancel(frame);
                return peer;
            }
            Err(ReserveError::Unresolved) => {
                patience.check(|| format!("resolving the next hop to {remote}"));
                // Some datapaths learn neighbours from what they receive.
                port.flush();
                other.flush();
                nudge(port);
                nudge(other);
            }
            Err(error) => panic!("a new peer is to be resolved or not, but: {error}"),
        }
    }
}

fn nudge(port: &mut dyn Port) {
    let unexpected = port.receive(1, &mut |_| {});
    assert_eq!(unexpected, 0, "a datagram that nobody sent");
    readable_within(port, Duration::from_millis(1));
}

/// Whether one of the port's descriptors is readable, or becomes so in `time`.
///
/// # Panics
/// When they cannot be polled.
pub fn readable_within(port: &dyn Port, time: Duration) -> bool {
    let fds = port.wait_fds();
    let timeout = Timespec {
        tv_sec: time.as_secs() as _,
        tv_nsec: time.subsec_nanos() as _,
    };
    let mut fds: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::new(fd, PollFlags::IN))
        .collect();
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => fds.iter().any(|fd| fd.revents().contains(PollFlags::IN)),
        Err(rustix::io::Errno::INTR) => false,
        Err(error) => panic!("the descriptor cannot be polled: {error}"),
    }
}

/// # Panics
/// When the port's descriptor does not become readable.
pub(super) fn await_readable(port: &dyn Port) {
    let patience = Patience::new();
    while !readable_within(port, PATIENCE) {
        patience.check(|| "waiting for the descriptor to become readable".into());
    }
}

/// Reserves a frame, flushing as often as that takes.
pub(super) fn reserve(port: &mut dyn Port, peer: PeerHandle) -> Frame {
    let patience = Patience::new();
    loop {
        match port.reserve(peer) {
            Ok(frame) => return frame,
            Err(ReserveError::WouldBlock) => {
                patience.check(|| "waiting for a free frame".into());
                port.flush();
            }
            Err(error) => panic!("cannot reserve a frame: {error}"),
        }
    }
}

/// Commits one datagram; the caller flushes.
pub(super) fn commit(port: &mut dyn Port, peer: PeerHandle, payload: &[u8]) {
    let frame = reserve(port, peer);
    port.payload(&frame)[..payload.len()].copy_from_slice(payload);
    port.commit(frame, payload.len(), TrafficClass::BEST_EFFORT, None);
}

/// Flushes until nothing is queued.
pub(super) fn flush(port: &mut dyn Port) {
    let patience = Patience::new();
    while !port.flush() {
        patience.check(|| "waiting for the queue to empty".into());
        std::thread::yield_now();
    }
}

/// Receives `count` datagrams while `sender` goes on sending.
pub(super) fn collect(
    receiver: &mut dyn Port,
    sender: &mut dyn Port,
    count: usize,
) -> Vec<Received> {
    let mut arrived = Vec::with_capacity(count);
    let mut patience = Patience::new();
    while arrived.len() < count {
        sender.flush();
        let delivered = receiver.receive(count - arrived.len(), &mut |datagram| {
            arrived.push(Received {
                source: datagram.source,
                destination_port: datagram.destination_port,
                payload: datagram.payload.to_vec(),
            });
        });
        if delivered > 0 {
            patience.progress();
        } else {
            patience.check(|| {
                format!(
                    "{} of {count} datagrams have arrived; sender {:?}, receiver {:?}",
                    arrived.len(),
                    sender.counters(),
                    receiver.counters()
                )
            });
            readable_within(receiver, Duration::from_millis(1));
        }
    }
    arrived
}

/// Sends numbered datagrams of these lengths, never more than the window at a time, and checks each.
pub(super) fn exchange(pair: &mut Pair, window: usize, lengths: &[usize]) {
    let mut number = 0;
    for lengths in lengths.chunks(window) {
        for (offset, &len) in lengths.iter().enumerate() {
            commit(
                &mut *pair.left,
                pair.to_right,
                &pattern(number + offset, len),
            );
        }
        for datagram in collect(&mut *pair.right, &mut *pair.left, lengths.len()) {
            let expected = pattern(number, lengths[number % window]);
            assert!(
                datagram.payload == expected,
                "datagram {number} of {} bytes: {} bytes or other ones have arrived",
                expected.len(),
                datagram.payload.len()
            );
            number += 1;
        }
    }
}

/// A payload that differs from others of its length and from itself shifted.
pub(super) fn pattern(number: usize, len: usize) -> Vec<u8> {
    let number = number as u32;
    let mut payload: Vec<u8> = (0..len as u32)
        .map(|place| {
            (number.wrapping_mul(0x9e37_79b9) ^ place.wrapping_mul(0x85eb_ca6b)).to_be_bytes()[0]
        })
        .collect();
    if let Some(head) = payload.first_chunk_mut() {
        *head = number.to_be_bytes();
    }
    payload
}

/// The number of a datagram made by [`pattern`] with at least four bytes.
pub(super) fn number_of(payload: &[u8]) -> usize {
    let head = payload
        .first_chunk()
        .expect("a numbered datagram has four bytes at least");
    u32::from_be_bytes(*head) as usize
}
