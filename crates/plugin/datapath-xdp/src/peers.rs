//! The peers of a port with the headers that reach them.
//!
//! A handle is the index of a peer and the generation of that place, so that a handle of a peer
//! that is gone names nobody. Headers are rebuilt when the next hop has changed, never while a
//! frame is written.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use takt_datapath::stack::{NextHop, NextHops, StackError};
use takt_datapath::{ConnectError, PeerHandle, Resolver, Way};
use takt_time::TrafficClass;
use takt_wire::frame::{UdpFlow, UdpHeaderTemplate};
use takt_wire::ip::Dscp;
use takt_wire::vlan::VlanTag;

/// Hops that a packet may take: the kernel's own default.
const HOP_LIMIT: u8 = 64;

/// IPv4 or IPv6 header, and UDP header (RFC 791 section 3.1, RFC 8200 section 3, RFC 768).
const V4_HEADERS: usize = 20 + 8;
const V6_HEADERS: usize = 40 + 8;

/// Longest UDP payload over either (16-bit lengths, that of IPv4 including its header).
const LONGEST_V4: usize = 65_507;
const LONGEST_V6: usize = 65_527;

/// Headers of each traffic class.
type Templates = [UdpHeaderTemplate; TrafficClass::COUNT];

/// A peer as sending sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    remote: SocketAddr,
    destination: Way,
    /// A route has led there by our interface since its link came up.
    reached: bool,
    /// `None` while there is no resolved next hop on our interface.
    templates: Option<Templates>,
    max_payload: usize,
}

#[derive(Debug, Default)]
struct Place {
    generation: u16,
    peer: Option<Peer>,
}

/// What all peers of a port have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// The port's interface.
    pub(crate) ifindex: u32,
    /// The address to send from; unspecified: as the route says.
    pub(crate) bind: SocketAddr,
    /// The address that the port tells.
    pub(crate) local: SocketAddr,
    /// Longest payload that a frame has room for.
    pub(crate) frame_capacity: usize,
    /// Most peers.
    pub(crate) limit: u16,
}

/// All peers of a port.
#[derive(Debug)]
pub(crate) struct Peers {
    origin: Origin,
    /// The interface is up.
    up: bool,
    places: Vec<Place>,
    unused: Vec<u16>,
    by_address: HashMap<SocketAddr, PeerHandle>,
}

impl Peer {
    /// The headers for frames of `class`, `None` while the next hop is not resolved.
    #[inline]
    pub(crate) fn headers(&self, class: TrafficClass) -> Option<&UdpHeaderTemplate> {
        self.templates.as_ref()?.get(usize::from(class.number()))
    }

    /// Whether frames can leave now.
    #[inline]
    pub(crate) fn is_resolved(&self) -> bool {
        self.templates.is_some()
    }

    /// Longest payload after the route's MTU.
    #[inline]
    pub(crate) fn max_payload(&self) -> usize {
        self.max_payload
    }

    /// Whether a route has led there by our interface since its link came up.
    #[inline]
    pub(crate) fn is_reached(&self) -> bool {
        self.reached
    }

    fn refresh(&mut self, origin: &Origin, up: bool) {
        let next_hop = self
            .destination
            .next_hop()
            .filter(|next_hop| next_hop.ifindex == origin.ifindex);
        // As long as the link is up: what is sent by this interface goes by no other because its route is gone. When the
        // link is back, the routes may not be.
        self.reached = up && (self.reached || next_hop.is_some());
        if let Some(next_hop) = &next_hop {
            self.max_payload = max_payload(next_hop, self.remote.ip()).min(origin.frame_capacity);
        }
        self.templates = next_hop.and_then(|next_hop| templates(&next_hop, origin, self.remote));
    }
}

impl Peers {
    pub(crate) fn new(origin: Origin, up: bool) -> Self {
        Self {
            origin,
            up,
            places: Vec::new(),
            unused: Vec::new(),
            by_address: HashMap::new(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, handle: PeerHandle) -> Option<&Peer> {
        let place = self.places.get((handle.0 & 0xffff) as usize)?;
        if u32::from(place.generation) != handle.0 >> 16 {
            return None;
        }
        place.peer.as_ref()
    }

    /// Whose handle this address has, if any; or why it cannot have one.
    pub(crate) fn admit(&self, remote: SocketAddr) -> Result<Option<PeerHandle>, ConnectError> {
        if let Some(handle) = self.by_address.get(&remote) {
            return Ok(Some(*handle));
        }
        // A mapped address would leave by IPv4, which an IPv6 port does not serve.
        if remote.is_ipv4() != self.origin.bind.is_ipv4()
            || remote.ip().to_canonical().is_ipv4() != remote.is_ipv4()
        {
            return Err(ConnectError::AddressFamily {
                peer: remote,
                local: self.origin.local,
            });
        }
        if remote.port() == 0 {
            let source =
                std::io::Error::new(std::io::ErrorKind::InvalidInput, "port 0 addresses nobody");
            return Err(ConnectError::System {
                peer: remote,
                source,
            });
        }
        if self.by_address.len() >= usize::from(self.origin.limit) {
            return Err(ConnectError::TooManyPeers(usize::from(self.origin.limit)));
        }
        Ok(None)
    }

    /// Takes a peer in that was [admitted](Self::admit), with the way there.
    pub(crate) fn enter(&mut self, remote: SocketAddr, destination: Way) -> PeerHandle {
        let mut peer = Peer {
            remote,
            destination,
            reached: false,
            templates: None,
            max_payload: 0,
        };
        peer.refresh(&self.origin, self.up);
        let index = self.unused.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            // The limit above keeps the number of places within 16 bits.
            (self.places.len() - 1) as u16
        });
        let place = &mut self.places[usize::from(index)];
        place.peer = Some(peer);
        let handle = PeerHandle(u32::from(place.generation) << 16 | u32::from(index));
        self.by_address.insert(remote, handle);
        handle
    }

    pub(crate) fn disconnect(&mut self, handle: PeerHandle) {
        if self.get(handle).is_none() {
            return;
        }
        let index = (handle.0 & 0xffff) as u16;
        let place = &mut self.places[usize::from(index)];
        if let Some(peer) = place.peer.take() {
            self.by_address.remove(&peer.remote);
        }
        place.generation = place.generation.wrapping_add(1);
        self.unused.push(index);
    }

    /// They are reached by another interface from now on, as soon as the tables say so.
    pub(crate) fn move_to(&mut self, origin: Origin, ways: &Ways) {
        self.origin = origin;
        let peers = self
            .places
            .iter_mut()
            .filter_map(|place| place.peer.as_mut());
        for peer in peers {
            peer.reached = false;
            // The tables have been asked for the way by the interface that was before. The generation tells when the answer
            // has come. Asking fails only where nothing is followed any more.
            if is_on_our_link(peer.remote)
                && let Ok(way) = ways.ask(peer.remote, || {})
            {
                peer.destination = way;
            }
        }
    }

    /// Takes over what has changed on the way to the peers, and whether the interface is up.
    pub(crate) fn refresh(&mut self, up: bool) {
        self.up = up;
        for peer in self
            .places
            .iter_mut()
            .filter_map(|place| place.peer.as_mut())
        {
            peer.refresh(&self.origin, up);
        }
    }
}

/// Asks for the ways of one port.
#[derive(Clone, Debug)]
pub(crate) struct Ways {
    next_hops: Arc<NextHops>,
    /// The address to send from; `None`: as the route says.
    source: Option<IpAddr>,
    /// The port's interface, the same for all clones.
    ifindex: Arc<AtomicU32>,
}

impl Ways {
    pub(crate) fn new(next_hops: Arc<NextHops>, origin: &Origin) -> Self {
        Self {
            next_hops,
            source: Some(origin.bind.ip()).filter(|address| !address.is_unspecified()),
            ifindex: Arc::new(AtomicU32::new(origin.ifindex)),
        }
    }

    /// Another interface is in the place of the port's.
    pub(crate) fn move_to(&self, ifindex: u32) {
        // Relaxed, as where it is read: a number that nothing else hangs on.
        self.ifindex.store(ifindex, Ordering::Relaxed);
    }

    /// The interface to ask for: ours, where the address means something on its link only.
    fn scope(&self, remote: SocketAddr) -> u32 {
        match remote {
            SocketAddr::V6(address) if address.scope_id() != 0 => address.scope_id(),
            remote if is_on_our_link(remote) => self.ifindex.load(Ordering::Relaxed),
            _ => 0,
        }
    }

    /// The way to an address, which is known when this returns.
    pub(crate) fn wait(&self, remote: SocketAddr) -> Result<Way, ConnectError> {
        let scope = self.scope(remote);
        let asked = self.next_hops.watch(remote.ip(), self.source, scope);
        asked.map(Arc::new).map_err(stopped(remote))
    }

    /// The way to an address, which is known when `answered` is called.
    pub(crate) fn ask(
        &self,
        remote: SocketAddr,
        answered: impl FnOnce() + Send + 'static,
    ) -> Result<Way, ConnectError> {
        let scope = self.scope(remote);
        let asked = (self.next_hops).ask(remote.ip(), self.source, scope, answered);
        asked.map(Arc::new).map_err(stopped(remote))
    }
}

impl Resolver for Ways {
    fn resolve(&self, remote: SocketAddr, answered: Box<dyn FnOnce() + Send>) -> Option<Way> {
        self.ask(remote, answered).ok()
    }
}

/// The monitor of the kernel's tables has ended.
fn stopped(peer: SocketAddr) -> impl Fn(StackError) -> ConnectError {
    move |error| ConnectError::System {
        peer,
        source: std::io::Error::other(error),
    }
}

/// Link-local addresses mean something on their link only: ours, where none is named.
fn is_on_our_link(remote: SocketAddr) -> bool {
    matches!(remote, SocketAddr::V6(address) if address.scope_id() == 0 && address.ip().is_unicast_link_local())
}

fn max_payload(next_hop: &NextHop, destination: IpAddr) -> usize {
    let mtu = next_hop.mtu as usize;
    match destination {
        IpAddr::V4(_) => mtu.saturating_sub(V4_HEADERS).min(LONGEST_V4),
        IpAddr::V6(_) => mtu.saturating_sub(V6_HEADERS).min(LONGEST_V6),
    }
}

/// The headers of all classes. A class is marked as the priority code point of the VLAN tag, where
/// there is one (IEEE 802.1Q-2022, clause 6.9.3), and as class selector code point (RFC 2474,
/// section 4.2.2).
fn templates(next_hop: &NextHop, origin: &Origin, remote: SocketAddr) -> Option<Templates> {
    if !next_hop.up {
        return None;
    }
    let source = if origin.bind.ip().is_unspecified() {
        next_hop.src_ip
    } else {
        origin.bind.ip()
    };
    let mut flow = UdpFlow {
        src_mac: next_hop.src_mac,
        dst_mac: next_hop.dst_mac?,
        vlan: None,
        src: SocketAddr::new(source, origin.bind.port()),
        dst: remote,
        dscp: Dscp::BEST_EFFORT,
        hop_limit: HOP_LIMIT,
    };
    let mut of_class = |class: u8| {
        flow.dscp = Dscp::new(class << 3)?;
        flow.vlan = match next_hop.vlan {
            None => None,
            Some(id) => Some(VlanTag::new(id, class, false)?),
        };
        UdpHeaderTemplate::new(&flow).ok()
    };
    let mut templates = [of_class(0)?; TrafficClass::COUNT];
    for (class, template) in (0..).zip(&mut templates) {
        *template = of_class(class)?;
    }
    Some(templates)
}

#[cfg(test)]
mod tests {
    use takt_datapath::stack::DeviceKind;
    use takt_wire::ethernet::MacAddress;
    use takt_wire::frame::parse_udp_frame;

    use super::*;

    fn next_hop(vlan: Option<u16>) -> NextHop {
        NextHop {
            device: 2,
            kind: DeviceKind::Other,
            gateway: None,
            ifindex: 2,
            vlan,
            src_mac: MacAddress([2, 0, 0, 0, 0, 1]),
            dst_mac: Some(MacAddress([2, 0, 0, 0, 0, 2])),
            src_ip: "10.0.0.1".parse().expect("address"),
            mtu: 1500,
            up: true,
        }
    }

    fn origin(bind: &str) -> Origin {
        let bind = bind.parse().expect("address");
        Origin {
            ifindex: 2,
            bind,
            local: bind,
            frame_capacity: 2000,
            limit: 8,
        }
    }

    fn remote() -> SocketAddr {
        "10.0.0.2:5000".parse().expect("address")
    }

    #[test]
    fn every_class_has_headers_that_are_marked_with_it() {
        let templates =
            templates(&next_hop(Some(5)), &origin("0.0.0.0:4000"), remote()).expect("resolved");
        for (class, template) in (0u8..).zip(&templates) {
            let mut frame = [0; 100];
            let length = template.emit(&mut frame, 10, 1, true).expect("fits");
            let datagram = parse_udp_frame(&frame[..length], true).expect("a datagram");
            assert_eq!(datagram.src, "10.0.0.1:4000".parse().expect("address"));
            assert_eq!(datagram.dst, remote());
            // Tag control information: the class and VLAN 5; then IPv4's octet of services: the
            // class selector.
            assert_eq!(frame[12..16], [0x81, 0, class << 5, 5]);
            assert_eq!(frame[19], class << 5);
        }
    }

    #[test]
    fn a_bound_address_is_the_source_whatever_the_route_prefers() {
        let templates =
            templates(&next_hop(None), &origin("10.0.0.9:4000"), remote()).expect("resolved");
        let mut frame = [0; 100];
        let length = templates[0].emit(&mut frame, 10, 1, true).expect("fits");
        let datagram = parse_udp_frame(&frame[..length], true).expect("a datagram");
        assert_eq!(datagram.src, "10.0.0.9:4000".parse().expect("address"));
    }

    #[test]
    fn there_are_no_headers_without_link_or_neighbour() {
        let down = NextHop {
            up: false,
            ..next_hop(None)
        };
        let unresolved = NextHop {
            dst_mac: None,
            ..next_hop(None)
        };
        for next_hop in [down, unresolved] {
            assert!(templates(&next_hop, &origin("0.0.0.0:4000"), remote()).is_none());
        }
    }

    #[test]
    fn the_payload_is_the_mtu_without_headers() {
        let hop = |mtu| NextHop {
            mtu,
            ..next_hop(None)
        };
        let v6 = "fd00::1".parse().expect("address");
        assert_eq!(max_payload(&hop(1500), remote().ip()), 1472);
        assert_eq!(max_payload(&hop(1500), v6), 1452);
        assert_eq!(max_payload(&hop(10), v6), 0);
        assert_eq!(max_payload(&hop(100_000), remote().ip()), 65_507);
    }
}
