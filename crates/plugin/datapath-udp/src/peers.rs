//! The peers of a port and what their routes carry. Not for name resolution or neighbour discovery:
//! the kernel does both.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use takt_datapath::stack::{self, Etf, LaunchQueues};
use takt_datapath::{ConnectError, PeerHandle};
use takt_time::TrafficClass;

use crate::address::RawAddress;
use crate::socket::Socket;

/// IPv4 header without options, and UDP header (RFC 791 section 3.1, RFC 768).
const IPV4_UDP_HEADERS: usize = 20 + 8;
/// IPv6 header without extensions, and UDP header (RFC 8200 section 3, RFC 768).
const IPV6_UDP_HEADERS: usize = 40 + 8;
/// Handles of peers leave the highest bit to those of links.
const GENERATIONS: u16 = 0x7fff;
/// How long a route's MTU is believed while the peer is in use, in milliseconds.
pub(crate) const MTU_LIFETIME_MS: u64 = 1000;

/// One peer, or an unused place for one.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) remote: SocketAddr,
    pub(crate) raw: RawAddress,
    /// After the route's MTU, never more than a frame holds.
    pub(crate) max_payload: usize,
    /// Whether trains may be handed to the kernel whole; cleared for a while after it refused one.
    pub(crate) trains: bool,
    /// Which of the table's [`LaunchQueues`] its datagrams pass: of the route that it had when it was connected.
    queues: Option<usize>,
    /// Between connect and disconnect.
    connected: bool,
    /// Committed frames not yet handed over: the place stays taken for them after a disconnect.
    queued: u32,
    /// Part of the handle, so that the handle of a former user of this place names nobody.
    generation: u16,
    checked_ms: u64,
    /// When a refusal last had the route asked for.
    refused_ms: Option<u64>,
}

/// All peers of a port, and the socket that asks the kernel about their routes.
#[derive(Debug)]
pub(crate) struct PeerTable {
    local: SocketAddr,
    /// A second socket, because only an associated one tells its route's MTU.
    probe: Socket,
    frame_size: usize,
    limit: usize,
    trains: bool,
    queues: Vec<LaunchQueues>,
    places: Vec<Peer>,
    unused: Vec<u16>,
    by_address: HashMap<SocketAddr, PeerHandle>,
}

impl PeerTable {
    /// An empty table for the port bound to `local`; `probe` is an unbound socket of the same family,
    /// `trains` tells whether the kernel splits trains, and `queues` which interfaces keep launch times.
    pub(crate) fn new(
        local: SocketAddr,
        probe: Socket,
        frame_size: usize,
        limit: u16,
        trains: bool,
        queues: Vec<LaunchQueues>,
    ) -> io::Result<Self> {
        // The source address decides the route where policy routing is in use.
        probe.bind_address_only(local)?;
        probe.forbid_fragmentation()?;
        Ok(Self {
            local,
            probe,
            frame_size,
            limit: usize::from(limit),
            trains,
            queues,
            places: Vec::new(),
            unused: Vec::new(),
            by_address: HashMap::new(),
        })
    }

    pub(crate) fn connect(&mut self, remote: SocketAddr) -> Result<PeerHandle, ConnectError> {
        if let Some(handle) = self.by_address.get(&remote) {
            return Ok(*handle);
        }
        // A mapped address would leave by IPv4, which an IPv6 port does not serve.
        if remote.is_ipv4() != self.local.is_ipv4()
            || remote.ip().to_canonical().is_ipv4() != remote.is_ipv4()
        {
            return Err(ConnectError::AddressFamily {
                peer: remote,
                local: self.local,
            });
        }
        if remote.port() == 0 {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "port 0 addresses nobody");
            return Err(ConnectError::System {
                peer: remote,
                source,
            });
        }
        let index = match self.unused.pop() {
            Some(index) => index,
            None if self.places.len() < self.limit => self.places.len() as u16,
            None => return Err(ConnectError::TooManyPeers(self.limit)),
        };
        let raw = RawAddress::from(remote);
        let max_payload = match self.probe_route(&raw) {
            Ok(max_payload) => max_payload,
            Err(source) => {
                if usize::from(index) < self.places.len() {
                    self.unused.push(index);
                }
                return Err(match source.raw_os_error() {
                    Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => ConnectError::NoRoute(remote),
                    _ => ConnectError::System {
                        peer: remote,
                        source,
                    },
                });
            }
        };
        let generation = self
            .places
            .get(usize::from(index))
            .map_or(0, |former| former.generation.wrapping_add(1) & GENERATIONS);
        let peer = Peer {
            remote,
            raw,
            max_payload,
            trains: self.trains,
            queues: self.queues_towards(remote.ip()),
            connected: true,
            queued: 0,
            generation,
            checked_ms: now_ms(),
            refused_ms: None,
        };
        match self.places.get_mut(usize::from(index)) {
            Some(place) => *place = peer,
            None => self.places.push(peer),
        }
        let handle = PeerHandle(u32::from(generation) << 16 | u32::from(index));
        self.by_address.insert(remote, handle);
        Ok(handle)
    }

    pub(crate) fn disconnect(&mut self, handle: PeerHandle) {
        let Some(index) = self.find(handle) else {
            return;
        };
        let place = &mut self.places[usize::from(index)];
        place.connected = false;
        self.by_address.remove(&place.remote);
        if place.queued == 0 {
            self.unused.push(index);
        }
    }

    /// The place of a connected peer.
    pub(crate) fn find(&self, handle: PeerHandle) -> Option<u16> {
        let index = (handle.0 & 0xffff) as u16;
        let place = self.places.get(usize::from(index))?;
        (place.connected && u32::from(place.generation) == handle.0 >> 16).then_some(index)
    }

    /// The peer at a place that [`PeerTable::find`] gave.
    pub(crate) fn at(&self, index: u16) -> &Peer {
        &self.places[usize::from(index)]
    }

    /// The queue with launch times that datagrams of a class to the peer at this place pass.
    #[inline]
    pub(crate) fn etf(&self, index: u16, class: TrafficClass) -> Option<Etf> {
        let queues = &self.queues[self.at(index).queues?];
        queues.classes[usize::from(class.number())]
    }

    fn queues_towards(&self, remote: IpAddr) -> Option<usize> {
        if self.queues.is_empty() {
            return None;
        }
        let source = Some(self.local.ip()).filter(|local| !local.is_unspecified());
        // Without an answer, as without a route: the port keeps no launch times for this peer.
        let interface = stack::egress_interface(remote, source).ok()??;
        self.queues
            .iter()
            .position(|queues| queues.ifindex == interface)
    }

    /// Has datagrams to this peer pass the first of the queues with launch times, as if its route led there.
    #[cfg(test)]
    pub(crate) fn lead_to_queues(&mut self, index: u16) {
        self.places[usize::from(index)].queues = Some(0);
    }

    /// Notes that a frame for this peer was committed.
    pub(crate) fn enqueued(&mut self, index: u16) {
        self.places[usize::from(index)].queued += 1;
    }

    /// Notes that a frame for this peer was handed over or lost.
    pub(crate) fn dequeued(&mut self, index: u16) {
        let place = &mut self.places[usize::from(index)];
        place.queued -= 1;
        if place.queued == 0 && !place.connected {
            self.unused.push(index);
        }
    }

    /// Sends to this peer datagram by datagram until its route is asked for again.
    pub(crate) fn suspend_trains(&mut self, index: u16) {
        self.places[usize::from(index)].trains = false;
    }

    /// The kernel refused a datagram of `len` bytes as too long: learns the new MTU unless that was known.
    pub(crate) fn too_long(&mut self, index: u16, len: usize) {
        let now = now_ms();
        let place = &mut self.places[usize::from(index)];
        // The second condition bounds the cost where the kernel refuses what its MTU seems to allow.
        if len <= place.max_payload && place.refused_ms != Some(now) {
            place.refused_ms = Some(now);
            self.renew(index, now);
        }
    }

    /// Asks for the route of a peer in use again when what we know of it is old.
    pub(crate) fn renew_when_due(&mut self, index: u16) {
        let now = now_ms();
        if now.saturating_sub(self.places[usize::from(index)].checked_ms) >= MTU_LIFETIME_MS {
            self.renew(index, now);
            self.places[usize::from(index)].trains = self.trains;
        }
    }

    /// Without a route the old value stays: sending tells the error.
    fn renew(&mut self, index: u16, now: u64) {
        let raw = self.places[usize::from(index)].raw;
        let renewed = self.probe_route(&raw);
        let place = &mut self.places[usize::from(index)];
        place.checked_ms = now;
        if let Ok(max_payload) = renewed {
            place.max_payload = max_payload;
        }
    }

    fn probe_route(&self, peer: &RawAddress) -> io::Result<usize> {
        self.probe.associate(peer)?;
        let mtu = self.probe.route_mtu();
        // Releases the port that the association took, which some program may be about to bind.
        self.probe.associate(&RawAddress::unspecified())?;
        let headers = if self.local.is_ipv4() {
            IPV4_UDP_HEADERS
        } else {
            IPV6_UDP_HEADERS
        };
        Ok(mtu?.saturating_sub(headers).min(self.frame_size))
    }
}

/// A coarse monotonic clock, read without entering the kernel: good to a scheduler tick.
pub(crate) fn now_ms() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec that outlives the call. The clock exists since Linux 2.6.32,
    // so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
