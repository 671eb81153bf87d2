//! A port of a memory network.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use takt_time::{TaiTime, TrafficClass};

use super::Shared;
use super::faults::{FaultTally, Injector};
use super::inbox::Inbox;
use crate::{ConnectError, Datagram, Frame, PeerHandle, Port, PortCounters, ReserveError};

/// Peers that a port can have: what half a handle can number.
const MOST_PEERS: usize = 1 << 16;

struct Peer {
    remote: SocketAddr,
    inbox: Option<Arc<Inbox>>,
    /// The state of the network at which `inbox` was looked up.
    as_of: u64,
}

struct Place {
    peer: Option<Peer>,
    /// Part of the handle, so that the handle of a former peer of this place names nobody.
    generation: u16,
}

struct Slot {
    buffer: Box<[u8]>,
    peer: PeerHandle,
    len: usize,
}

pub(super) struct MemoryPort {
    network: Arc<Shared>,
    local: SocketAddr,
    inbox: Arc<Inbox>,
    injector: Injector,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    queue: VecDeque<u32>,
    places: Vec<Place>,
    unused: Vec<u16>,
    by_address: HashMap<SocketAddr, PeerHandle>,
    counters: PortCounters,
}

impl MemoryPort {
    pub(super) fn new(
        network: Arc<Shared>,
        local: SocketAddr,
        inbox: Arc<Inbox>,
        injector: Injector,
    ) -> Self {
        let depth = network.config.queue_depth;
        let slot = || Slot {
            buffer: vec![0; network.config.max_payload].into_boxed_slice(),
            peer: PeerHandle(0),
            len: 0,
        };
        let slots: Box<[Slot]> = std::iter::repeat_with(slot).take(depth).collect();
        Self {
            network,
            local,
            inbox,
            injector,
            slots,
            free: (0..depth as u32).rev().collect(),
            queue: VecDeque::with_capacity(depth),
            places: Vec::new(),
            unused: Vec::new(),
            by_address: HashMap::new(),
            counters: PortCounters::default(),
        }
    }

    fn find(&self, handle: PeerHandle) -> Option<usize> {
        let index = (handle.0 & 0xffff) as usize;
        let place = self.places.get(index)?;
        (place.peer.is_some() && u32::from(place.generation) == handle.0 >> 16).then_some(index)
    }

    /// Sends one frame; the inbox it went to still has to be rung for.
    fn send(&mut self, index: u32) -> Option<Arc<Inbox>> {
        let place = self.find(self.slots[index as usize].peer);
        let slot = &mut self.slots[index as usize];
        let peer = place.and_then(|place| self.places[place].peer.as_mut());
        let Some(inbox) = peer.and_then(|peer| peer.inbox(&self.network)) else {
            self.counters.tx_errors += 1;
            return None;
        };
        self.counters.tx_datagrams += 1;
        self.counters.tx_bytes += slot.len as u64;
        if !self.injector.is_idle() {
            let tally = &self.network.faults;
            if self.injector.drops() {
                FaultTally::count(&tally.dropped);
                return None;
            }
            if self.injector.corrupts(&mut slot.buffer[..slot.len]) {
                FaultTally::count(&tally.corrupted);
            }
            if self.injector.duplicates() {
                FaultTally::count(&tally.duplicated);
                inbox.put_copy(&slot.buffer[..slot.len], self.local);
            }
        }
        inbox.put(&mut slot.buffer, slot.len, self.local);
        Some(inbox.clone())
    }

    /// The frame at the head of the queue lets its successor go first, perhaps.
    fn reorder(&mut self) {
        if self.injector.is_idle() || self.queue.len() < 2 {
            return;
        }
        let [first, second] = [0, 1].map(|place| self.slots[self.queue[place] as usize].peer);
        if first == second && self.injector.reorders() {
            FaultTally::count(&self.network.faults.reordered);
            self.queue.swap(0, 1);
        }
    }
}

impl Peer {
    /// Where the peer's datagrams wait, if there is a port at its address now.
    fn inbox(&mut self, network: &Shared) -> Option<&Arc<Inbox>> {
        let now = network.changes();
        if self.as_of != now {
            self.inbox = network.find(self.remote);
            self.as_of = now;
        }
        self.inbox.as_ref()
    }
}

impl Port for MemoryPort {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<PeerHandle, ConnectError> {
        if let Some(handle) = self.by_address.get(&remote) {
            return Ok(*handle);
        }
        if remote.is_ipv4() != self.local.is_ipv4() {
            return Err(ConnectError::AddressFamily {
                peer: remote,
                local: self.local,
            });
        }
        let as_of = self.network.changes();
        let peer = Peer {
            remote,
            inbox: self.network.find(remote),
            as_of,
        };
        let index = match self.unused.pop() {
            Some(index) => index,
            None if self.places.len() < MOST_PEERS => {
                self.places.push(Place {
                    peer: None,
                    generation: 0,
                });
                (self.places.len() - 1) as u16
            }
            None => return Err(ConnectError::TooManyPeers(MOST_PEERS)),
        };
        let place = &mut self.places[usize::from(index)];
        place.peer = Some(peer);
        let handle = PeerHandle(u32::from(place.generation) << 16 | u32::from(index));
        self.by_address.insert(remote, handle);
        Ok(handle)
    }

    fn disconnect(&mut self, peer: PeerHandle) {
        // What was committed for this peer leaves while it is known.
        self.flush();
        let Some(index) = self.find(peer) else { return };
        let place = &mut self.places[index];
        place.generation = place.generation.wrapping_add(1);
        if let Some(peer) = place.peer.take() {
            self.by_address.remove(&peer.remote);
        }
        self.unused.push(index as u16);
    }

    fn max_payload(&self, peer: PeerHandle) -> usize {
        self.find(peer)
            .map_or(0, |_| self.network.config.max_payload)
    }

    fn reserve(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        if self.find(peer).is_none() {
            return Err(ReserveError::UnknownPeer);
        }
        let index = self.free.pop().ok_or(ReserveError::WouldBlock)?;
        self.slots[index as usize].peer = peer;
        Ok(Frame(index))
    }

    fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        &mut self.slots[frame.0 as usize].buffer
    }

    /// # Panics
    /// When `len` exceeds the payload: the caller would send what it has not written.
    fn commit(
        &mut self,
        frame: Frame,
        len: usize,
        _class: TrafficClass,
        _launch_time: Option<TaiTime>,
    ) {
        let slot = &mut self.slots[frame.0 as usize];
        let room = slot.buffer.len();
        assert!(
            len <= room,
            "committed {len} bytes of a frame with room for {room}"
        );
        slot.len = len;
        self.queue.push_back(frame.0);
    }

    fn is_crowded(&self, peer: PeerHandle) -> bool {
        let peer = self.find(peer).and_then(|at| self.places[at].peer.as_ref());
        let inbox = peer.and_then(|peer| peer.inbox.as_ref());
        inbox.is_some_and(|inbox| inbox.is_crowded())
    }

    fn cancel(&mut self, frame: Frame) {
        self.free.push(frame.0);
    }

    fn flush(&mut self) -> bool {
        let mut to_ring: Option<Arc<Inbox>> = None;
        while !self.queue.is_empty() {
            self.reorder();
            let Some(index) = self.queue.pop_front() else {
                break;
            };
            let inbox = self.send(index);
            self.free.push(index);
            let Some(inbox) = inbox else { continue };
            // A train for one receiver wakes it once.
            match &to_ring {
                Some(before) if Arc::ptr_eq(before, &inbox) => {}
                Some(before) => {
                    before.ring();
                    to_ring = Some(inbox);
                }
                None => to_ring = Some(inbox),
            }
        }
        if let Some(inbox) = to_ring {
            inbox.ring();
        }
        true
    }

    fn receive(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        for delivered in 0..budget {
            let Some(packet) = self.inbox.take() else {
                self.inbox.found_empty();
                return delivered;
            };
            let payload = &packet.buffer[..packet.len];
            self.counters.rx_datagrams += 1;
            self.counters.rx_bytes += payload.len() as u64;
            deliver(Datagram {
                source: packet.source,
                destination_port: self.local.port(),
                payload,
            });
            self.inbox.give_back(packet.buffer);
        }
        budget
    }

    fn receive_costs_syscall(&self) -> bool {
        false
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.inbox.wait_fd()]
    }

    fn counters(&self) -> PortCounters {
        PortCounters {
            rx_dropped: self.inbox.dropped(),
            ..self.counters
        }
    }
}

impl Drop for MemoryPort {
    fn drop(&mut self) {
        self.network.unbind(self.local);
    }
}
