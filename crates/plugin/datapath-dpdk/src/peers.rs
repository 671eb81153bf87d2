//! The peers of a port with the headers that reach them.
//!
//! A handle is the index of a peer and the generation of that place, so that a handle of a peer that is gone
//! names nobody. Headers are rebuilt when the next hop has changed, never while a frame is written.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, MutexGuard};

use takt_datapath::stack::{NextHop, NextHops, StackError};
use takt_datapath::{ConnectError, PeerHandle, Resolver, Way};
use takt_time::TrafficClass;
use takt_wire::ethernet::MacAddress;
use takt_wire::frame::{UdpFlow, UdpHeaderTemplate};
use takt_wire::ip::Dscp;
use takt_wire::vlan::VlanTag;

use crate::device::{Device, Stack};
use crate::neighbours::Neighbours;

/// Hops that a packet may take: the kernel's own default.
const HOP_LIMIT: u8 = 64;

/// IPv4 or IPv6 header, and UDP header (RFC 791 section 3.1, RFC 8200 section 3, RFC 768).
const V4_HEADERS: usize = 20 + 8;
const V6_HEADERS: usize = 40 + 8;

/// Octets between Ethernet and payload, of this address's family.
pub(crate) fn headers(address: SocketAddr) -> usize {
    match address {
        SocketAddr::V4(_) => V4_HEADERS,
        SocketAddr::V6(_) => V6_HEADERS,
    }
}

/// Headers of each traffic class.
type Templates = [UdpHeaderTemplate; TrafficClass::COUNT];

/// Who tells how frames reach a peer.
#[derive(Debug)]
enum Route {
    /// The kernel's tables.
    Kernel(Way),
    /// The device's own: the next hop.
    Own(IpAddr),
}

/// A peer as sending sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    remote: SocketAddr,
    route: Route,
    /// A route has led there by our interface since its link came up.
    reached: bool,
    /// `None` while there is no resolved next hop on our interface.
    templates: Option<Templates>,
    /// What the templates were made of.
    link: Option<Link>,
    max_payload: usize,
}

#[derive(Debug, Default)]
struct Place {
    generation: u16,
    peer: Option<Peer>,
}

/// All peers of a port.
#[derive(Debug)]
pub(crate) struct Peers {
    device: Arc<Device>,
    /// The address to send from; unspecified: as the route says.
    bind: SocketAddr,
    /// The address that the port tells.
    local: SocketAddr,
    places: Vec<Place>,
    unused: Vec<u16>,
    by_address: HashMap<SocketAddr, PeerHandle>,
}

/// What frames to a peer begin with.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    src_mac: MacAddress,
    dst_mac: MacAddress,
    vlan: Option<u16>,
    source: IpAddr,
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

    /// `table`: the device's own neighbours.
    fn refresh(&mut self, device: &Device, table: Option<&Neighbours>, bind: SocketAddr) {
        let (mtu, link) = match (&self.route, &device.stack) {
            (Route::Kernel(way), Stack::Kernel { ifindex, .. }) => {
                let next_hop = way.next_hop().filter(|hop| hop.ifindex == *ifindex);
                // As long as the link is up: what is sent by this interface goes by no other because its route is
                // gone. When the link is back, the routes may not be.
                self.reached = device.is_up() && (self.reached || next_hop.is_some());
                match next_hop {
                    Some(hop) => (Some(hop.mtu as usize), link_of(&hop, bind)),
                    None => (None, None),
                }
            }
            (Route::Own(hop), Stack::Own(_)) => (
                Some(usize::from(device.config.mtu)),
                table.and_then(|table| own_link(device, table, *hop, bind)),
            ),
            // A port's peers are of its device's kind.
            _ => (None, None),
        };
        if let Some(mtu) = mtu {
            let mtu = mtu
                .min(usize::from(device.config.mtu))
                .min(device.longest_frame - 22);
            self.max_payload = mtu.saturating_sub(headers(self.remote));
        }
        let port = bind.port();
        if let Route::Own(_) = self.route {
            // As long as somebody answers there: no table of the kernel's tells that anybody should.
            self.reached = link.is_some();
        }
        // Whatever has changed is mostly another peer's.
        if link != self.link {
            self.templates = (link.as_ref()).and_then(|link| templates(link, port, self.remote));
            self.link = link;
        }
    }
}

impl Peers {
    pub(crate) fn new(device: Arc<Device>, bind: SocketAddr, local: SocketAddr) -> Self {
        Self {
            device,
            bind,
            local,
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
        if remote.is_ipv4() != self.bind.is_ipv4()
            || remote.ip().to_canonical().is_ipv4() != remote.is_ipv4()
        {
            return Err(ConnectError::AddressFamily {
                peer: remote,
                local: self.local,
            });
        }
        if remote.port() == 0 || remote.ip().is_unspecified() || remote.ip().is_multicast() {
            let source = std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "this addresses nobody: a peer has a host's address and a port",
            );
            return Err(ConnectError::System {
                peer: remote,
                source,
            });
        }
        let limit = usize::from(self.device.config.peers);
        if self.by_address.len() >= limit {
            return Err(ConnectError::TooManyPeers(limit));
        }
        Ok(None)
    }

    /// Takes a peer in that was [admitted](Self::admit), by the kernel's way there.
    pub(crate) fn enter_way(&mut self, remote: SocketAddr, way: Way) -> PeerHandle {
        self.enter(remote, Route::Kernel(way))
    }

    /// Takes a peer in that was [admitted](Self::admit), by the device's own table.
    pub(crate) fn enter_own(&mut self, remote: SocketAddr) -> Result<PeerHandle, ConnectError> {
        let device = Arc::clone(&self.device);
        let Stack::Own(own) = &device.stack else {
            return Err(ConnectError::NoRoute(remote));
        };
        let hop = {
            let mut table = own.table();
            if table.is_own(remote.ip()) {
                return Err(ConnectError::NoRoute(remote));
            }
            let hop = table
                .next_hop(remote.ip())
                .ok_or(ConnectError::NoRoute(remote))?;
            table.want(hop, device.now());
            hop
        };
        Ok(self.enter(remote, Route::Own(hop)))
    }

    fn enter(&mut self, remote: SocketAddr, route: Route) -> PeerHandle {
        let mut peer = Peer {
            remote,
            reached: false,
            route,
            templates: None,
            link: None,
            max_payload: 0,
        };
        let table = own_table(&self.device);
        peer.refresh(&self.device, table.as_deref(), self.bind);
        drop(table);
        let index = self.unused.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            // The limit keeps the number of places within 16 bits.
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
            forget(&self.device, &peer);
        }
        place.generation = place.generation.wrapping_add(1);
        self.unused.push(index);
    }

    /// Takes over what has changed on the way to the peers.
    pub(crate) fn refresh(&mut self) {
        let table = own_table(&self.device);
        for place in &mut self.places {
            if let Some(peer) = &mut place.peer {
                peer.refresh(&self.device, table.as_deref(), self.bind);
            }
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for peer in self.places.iter().filter_map(|place| place.peer.as_ref()) {
            forget(&self.device, peer);
        }
    }
}

fn forget(device: &Device, peer: &Peer) {
    if let (Route::Own(hop), Stack::Own(own)) = (&peer.route, &device.stack) {
        own.table().forget(*hop);
    }
}

fn link_of(hop: &NextHop, bind: SocketAddr) -> Option<Link> {
    Some(Link {
        src_mac: hop.src_mac,
        dst_mac: hop.dst_mac.filter(|_| hop.up)?,
        vlan: hop.vlan,
        source: if bind.ip().is_unspecified() {
            hop.src_ip
        } else {
            bind.ip()
        },
    })
}

/// The device's own neighbours, if it has such.
fn own_table(device: &Device) -> Option<MutexGuard<'_, Neighbours>> {
    match &device.stack {
        Stack::Own(own) => Some(own.table()),
        Stack::Kernel { .. } => None,
    }
}

fn own_link(device: &Device, table: &Neighbours, hop: IpAddr, bind: SocketAddr) -> Option<Link> {
    if !device.is_up() {
        return None;
    }
    Some(Link {
        src_mac: MacAddress(device.traits.mac),
        dst_mac: table.resolve(hop)?,
        vlan: None,
        source: if bind.ip().is_unspecified() {
            table.source(hop)?
        } else {
            bind.ip()
        },
    })
}

/// The headers of all classes. A class is marked as the priority code point of the VLAN tag, where there is one
/// (IEEE 802.1Q-2022, clause 6.9.3), and as class selector code point (RFC 2474, section 4.2.2).
fn templates(link: &Link, port: u16, remote: SocketAddr) -> Option<Templates> {
    let mut flow = UdpFlow {
        src_mac: link.src_mac,
        dst_mac: link.dst_mac,
        vlan: None,
        src: SocketAddr::new(link.source, port),
        dst: remote,
        dscp: Dscp::BEST_EFFORT,
        hop_limit: HOP_LIMIT,
    };
    let mut of_class = |class: u8| {
        flow.dscp = Dscp::new(class << 3)?;
        flow.vlan = match link.vlan {
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

/// Asks the kernel for the ways of one port.
#[derive(Clone, Debug)]
pub(crate) struct Ways {
    next_hops: Arc<NextHops>,
    /// The address to send from; `None`: as the route says.
    source: Option<IpAddr>,
    ifindex: u32,
}

impl Ways {
    /// `None`: the kernel has nothing to do with it.
    pub(crate) fn new(device: &Device, bind: SocketAddr) -> Option<Self> {
        let Stack::Kernel {
            next_hops, ifindex, ..
        } = &device.stack
        else {
            return None;
        };
        Some(Self {
            next_hops: Arc::clone(next_hops),
            source: Some(bind.ip()).filter(|address| !address.is_unspecified()),
            ifindex: *ifindex,
        })
    }

    /// The way to an address, which is known when this returns.
    pub(crate) fn wait(&self, remote: SocketAddr) -> Result<Way, ConnectError> {
        let scope = scope(remote, self.ifindex);
        let asked = self.next_hops.watch(remote.ip(), self.source, scope);
        asked.map(Arc::new).map_err(stopped(remote))
    }

    /// The way to an address, which is known when `answered` is called.
    pub(crate) fn ask(
        &self,
        remote: SocketAddr,
        answered: impl FnOnce() + Send + 'static,
    ) -> Result<Way, ConnectError> {
        let scope = scope(remote, self.ifindex);
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
fn scope(remote: SocketAddr, ifindex: u32) -> u32 {
    match remote {
        SocketAddr::V6(address) if address.scope_id() != 0 => address.scope_id(),
        SocketAddr::V6(address) if address.ip().is_unicast_link_local() => ifindex,
        _ => 0,
    }
}
