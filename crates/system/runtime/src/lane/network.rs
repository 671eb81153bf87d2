//! Frames of tenants: checked, wrapped for the network that they are of, and sent to where the station is.
//!
//! A frame is checked on the copy that leaves, never on the application's memory, which it may change at any
//! time. With VXLAN (RFC 7348) a frame is the payload of a datagram to the tunnel endpoint that its
//! destination is behind; on a native network it leaves as it is, tagged if the network is a VLAN.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use slab::Slab;
use takt_datapath::{ConnectError, PeerHandle, ReserveError};
use takt_session::endpoint::is_source;
use takt_session::layout::{Outcome, TxDescriptor};
use takt_shm::SharedSlice;
use takt_time::{TaiTime, TrafficClass};
use takt_wire::ethernet::{self, EtherType, MacAddress};
use takt_wire::ip::Protocol;
use takt_wire::vlan::{self, TAG_LEN, VlanTag, VlanTags};
use takt_wire::{ipv4, ipv6, vxlan};

use super::departure::{Destination, Piece};
use super::egress::{NotBuilt, Sent, Step, class_of};
use super::forward::{self, Hop};
use super::remote::{datagram_overhead, usable_port};
use super::session::{InProgress, LaneSession};
use super::tap::Passed;
use super::{LanePort, State, fair};
use crate::config::Carrier;
use crate::counters::NetworkCounters;
use crate::policing::{self, Flow};
use crate::slots::{SessionSlot, SourceSlot};

/// Looks that it counts as to find, or to forget, the way to a place by the lane's ports: that may be a system call each.
pub(super) const OF_EXIT: usize = 256;
/// Octets of a frame's two addresses.
const ADDRESSES: usize = 12;
/// ICMPv6 types of neighbour discovery (RFC 4861, section 4; RFC 4443 has the registry).
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;
/// Extension headers of IPv6 that others may follow (RFC 8200, section 4).
const EXTENSIONS: [u8; 4] = [0, 43, 44, 60];

/// Whose frames a source sends.
#[derive(Debug)]
pub struct Owner {
    /// The network, by its number.
    pub network: usize,
    /// The only source of its frames.
    pub mac: MacAddress,
    /// The only sources of its packets, as the endpoint has them.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Longest packet.
    pub mtu: usize,
    /// What it may send besides IP.
    pub ether_types: Vec<EtherType>,
    /// VLANs whose tags its frames may have.
    pub vlans: Vec<u16>,
    /// Its classes, by bit: the priorities of such tags.
    pub classes: u8,
}

/// Why a frame may not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// Its source is not the tenant's.
    Source,
    /// It is too short or too long, or its header is none.
    Malformed,
    /// It is of a kind that the tenant may not send: it has a tag that is not the tenant's, controls the link, or speaks for others as ARP
    /// and neighbour discovery do, which are the kernel's.
    Kind,
    /// It is for another place than it was when it was taken.
    Moved,
}

impl Owner {
    /// Whether the frame may leave, with a tag of one of these priorities at most. It has no frame check sequence.
    pub fn check(&self, frame: &[u8], priorities: u8) -> Result<(), Foreign> {
        let header = ethernet::Packet::new_checked(frame).map_err(|_| Foreign::Malformed)?;
        let packet = header.payload();
        if packet.len() > self.mtu {
            return Err(Foreign::Malformed);
        }
        if header.source() != self.mac {
            return Err(Foreign::Source);
        }
        if header.destination().is_link_control() {
            return Err(Foreign::Kind);
        }
        let (ether_type, packet) = match header.ether_type() {
            EtherType::VLAN => self.untag(packet, priorities)?,
            ether_type => (ether_type, packet),
        };
        let (source, neighbour_discovery) = match ether_type {
            EtherType::IPV4 => {
                let packet = ipv4::Packet::new_checked(packet).map_err(|_| Foreign::Malformed)?;
                (IpAddr::V4(packet.source()), false)
            }
            EtherType::IPV6 => {
                let packet = ipv6::Packet::new_checked(packet).map_err(|_| Foreign::Malformed)?;
                let discovery = match packet.next_header() {
                    Protocol::ICMPV6 => {
                        let kind = packet.payload().first();
                        kind.is_none_or(|kind| NEIGHBOUR_DISCOVERY.contains(kind))
                    }
                    // What follows an extension header could be anything.
                    header => EXTENSIONS.contains(&header.0),
                };
                (IpAddr::V6(packet.source()), discovery)
            }
            // Never, whatever the operator has written.
            kind if kind.is_reserved() => return Err(Foreign::Kind),
            kind if self.ether_types.contains(&kind) => return Ok(()),
            _ => return Err(Foreign::Kind),
        };
        if !is_source(&self.addresses, source) {
            return Err(Foreign::Source);
        }
        if neighbour_discovery {
            return Err(Foreign::Kind);
        }
        Ok(())
    }

    /// What a tag of the tenant's has behind it. A second tag is of no kind that leaves.
    fn untag<'f>(
        &self,
        tagged: &'f [u8],
        priorities: u8,
    ) -> Result<(EtherType, &'f [u8]), Foreign> {
        let (tags, ether_type, packet) =
            vlan::parse(EtherType::VLAN, tagged).map_err(|_| Foreign::Malformed)?;
        match tags {
            VlanTags::Single(tag)
                if self.vlans.contains(&tag.id())
                    && (self.classes & priorities) >> tag.priority() & 1 == 1 =>
            {
                Ok((ether_type, packet))
            }
            _ => Err(Foreign::Kind),
        }
    }
}

/// Where frames leave by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// To a tunnel endpoint.
    Tunnel(IpAddr),
    /// As they are, by an interface of the host; by a port's own if none is given.
    Link(Option<u32>),
}

/// Where the stations of a network are: what the control thread knows.
#[derive(Clone, Debug, Default)]
pub struct NetworkTable {
    /// Stations with where they are: behind tunnel endpoints, or on a bridge of this host. In order.
    pub stations: Vec<(MacAddress, Place)>,
    /// Where goes what is for groups and for unknown stations.
    pub others: Vec<Place>,
    /// Ports of bridges of this host that such frames go to as well, by interface.
    pub ports: Vec<u32>,
    /// Tenants with the port that they are behind: their own frames do not come back to them.
    pub homes: Vec<(MacAddress, u32)>,
    /// Stations that share the network's interface with its tenants (macvlan): what leaves by it does not reach them.
    pub siblings: Vec<MacAddress>,
    /// Addresses of this host as a router for its tenants.
    pub routers: Vec<MacAddress>,
}

type ByMac<T> = HashMap<MacAddress, T, foldhash::fast::RandomState>;

/// The same as lanes have it: the control thread makes it, once for all of them, so that what a lane has to do for it depends
/// on how many places there are, and not on how many stations.
#[derive(Debug, Default)]
pub struct Stations {
    /// Each once, by number.
    places: Vec<Place>,
    /// The numbers of the places of each station, one behind the other, and then of those that what is for groups goes to.
    at: Vec<u32>,
    /// By station, which of these are its.
    of: ByMac<(u32, u32)>,
    groups: (u32, u32),
    /// Unknown stations are where groups are.
    entered: bool,
    /// By tenant, which port would lead back to it.
    homes: ByMac<u32>,
    siblings: Vec<MacAddress>,
    /// Addresses of this host as a router; a few.
    routers: Vec<MacAddress>,
}

impl Stations {
    pub fn new(table: NetworkTable) -> Self {
        let mut new = Self::default();
        let mut numbers = HashMap::new();
        let mut number = |place: Place| {
            *numbers.entry(place).or_insert_with(|| {
                new.places.push(place);
                new.places.len() as u32 - 1
            })
        };
        for of_one in table.stations.chunk_by(|(one, _), (other, _)| one == other) {
            let from = new.at.len() as u32;
            new.at
                .extend(of_one.iter().map(|(_, place)| number(*place)));
            new.of.insert(of_one[0].0, (from, new.at.len() as u32));
        }
        let from = new.at.len() as u32;
        let ports = table.ports.iter().map(|port| Place::Link(Some(*port)));
        let groups = table.others.iter().copied().chain(ports);
        new.at.extend(groups.map(number));
        new.groups = (from, new.at.len() as u32);
        new.entered = !table.others.is_empty();
        new.homes.extend(table.homes);
        // Nobody, where they are: what leaves does not reach them.
        let nowhere = table.siblings.iter().map(|mac| (*mac, (0, 0)));
        new.of.extend(nowhere);
        new.siblings = table.siblings;
        new.routers = table.routers;
        new
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.places.len()
    }
}

/// The way to a destination behind this host as a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    pub place: Place,
    pub hop: Hop,
}

/// A network on a lane.
#[derive(Debug)]
pub struct Network {
    carrier: Carrier,
    /// What frames are sent to: tunnel endpoints, or the link. In place as long as they are of use.
    exits: Slab<Exit>,
    by_place: HashMap<Place, usize, foldhash::fast::RandomState>,
    stations: Arc<Stations>,
    /// By the number of a place in `stations`, which exit.
    via: Vec<usize>,
    /// By destination: which exit, and what is done to the frame.
    routes: HashMap<IpAddr, (usize, Hop), foldhash::fast::RandomState>,
    /// Changes with the table.
    generation: u32,
    counters: Arc<NetworkCounters>,
}

/// A table that is being taken over, over as many rounds as that takes.
#[derive(Debug)]
pub struct Update {
    pub network: usize,
    stations: Arc<Stations>,
    /// By the number of a place, which exit: of so many it is known.
    via: Vec<usize>,
}

impl Update {
    pub fn new(network: usize, stations: Arc<Stations>) -> Self {
        let via = Vec::with_capacity(stations.places());
        Self {
            network,
            stations,
            via,
        }
    }
}

/// Exits that what is for a station, or for a group, leaves by.
#[derive(Clone, Copy)]
enum Exits<'n> {
    /// Those of places with these numbers.
    Places {
        numbers: &'n [u32],
        via: &'n [usize],
    },
    /// That of a destination behind this host as a router, if it is known.
    Route(Option<usize>),
}

impl Exits<'_> {
    #[inline]
    fn get(&self, at: usize) -> Option<usize> {
        match self {
            Self::Places { numbers, via } => via.get(*numbers.get(at)? as usize).copied(),
            Self::Route(exit) => exit.filter(|_| at == 0),
        }
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        (0..).map_while(|at| self.get(at))
    }
}

/// A tunnel endpoint, or a link.
#[derive(Debug)]
struct Exit {
    place: Place,
    /// Per port of the lane.
    via: Vec<Option<PeerHandle>>,
}

/// A port's way to a place, if it has one.
fn connect(place: Place, carrier: Carrier, port: &mut LanePort) -> Option<PeerHandle> {
    if port.trusted {
        return None;
    }
    let connected = match (place, carrier) {
        (Place::Tunnel(vtep), Carrier::Vxlan { port: number, .. }) => port
            .port
            .connect_at_once(SocketAddr::new(vtep, number), None),
        (Place::Tunnel(_), _) => return None,
        (Place::Link(interface), _) => port.port.connect_link(interface),
    };
    connected
        .inspect_err(|error| match error {
            // Another port of the lane may have that interface.
            ConnectError::NoFrames | ConnectError::OtherInterface(_) => {
                tracing::debug!(datapath = %port.kind, %error, "not reached through this datapath");
            }
            error => {
                tracing::warn!(datapath = %port.kind, %error, "network not reachable through this datapath");
            }
        })
        .ok()
}

impl Network {
    pub fn new(carrier: Carrier, counters: Arc<NetworkCounters>) -> Self {
        Self {
            carrier,
            exits: Slab::new(),
            by_place: HashMap::default(),
            stations: Arc::default(),
            via: Vec::new(),
            routes: HashMap::default(),
            generation: 0,
            counters,
        }
    }

    /// Finds the exit of one more place of a new table: what that has cost in looks; `None`: all are found.
    pub fn prepare(&mut self, update: &mut Update, ports: &mut [LanePort]) -> Option<usize> {
        let &place = update.stations.places.get(update.via.len())?;
        let (exit, looks) = self.exit(place, ports);
        update.via.push(exit);
        Some(looks)
    }

    /// Takes over a table whose exits are all found. Returns those that are of no use any more, and what that has cost.
    pub fn take_over(&mut self, update: Update) -> (Vec<usize>, usize) {
        self.generation = self.generation.wrapping_add(1);
        (self.stations, self.via) = (update.stations, update.via);
        let mut used = vec![false; self.exits.capacity()];
        let routes = self.routes.values().map(|(exit, _)| exit);
        for &exit in self.via.iter().chain(routes) {
            used[exit] = true;
        }
        let exits = self.exits.iter().map(|(at, _)| at);
        let gone = exits.filter(|&at| !used[at]).collect();
        (gone, used.len() + self.routes.len())
    }

    /// Enters or removes the way to a destination: what that has cost in looks. Exits of no use any more go with the next table.
    pub fn route(
        &mut self,
        destination: IpAddr,
        routed: Option<Routed>,
        ports: &mut [LanePort],
    ) -> usize {
        match routed {
            Some(Routed { place, hop }) => {
                let (exit, looks) = self.exit(place, ports);
                self.routes.insert(destination, (exit, hop));
                looks
            }
            None => {
                self.routes.remove(&destination);
                1
            }
        }
    }

    /// Looks for a way again by ports that had none to the first exit from this number on: which that was, and what it has cost
    /// in looks.
    pub fn reconnect(&mut self, from: usize, ports: &mut [LanePort]) -> Option<(usize, usize)> {
        let at = (from..self.exits.capacity()).find(|at| self.exits.contains(*at))?;
        let exit = &mut self.exits[at];
        let mut looks = 1;
        for (via, port) in exit.via.iter_mut().zip(ports) {
            if via.is_none() && !port.trusted {
                looks += OF_EXIT;
                *via = connect(exit.place, self.carrier, port);
            }
        }
        Some((at, looks))
    }

    /// The exit for a place, and what it has cost to find it.
    fn exit(&mut self, place: Place, ports: &mut [LanePort]) -> (usize, usize) {
        if let Some(&at) = self.by_place.get(&place) {
            return (at, 1);
        }
        let via = ports
            .iter_mut()
            .map(|port| connect(place, self.carrier, port));
        let via = via.collect();
        let at = self.exits.insert(Exit { place, via });
        self.by_place.insert(place, at);
        (at, OF_EXIT)
    }

    /// Takes an exit out that nothing waits for any more: its handles, by port.
    pub fn remove(&mut self, at: usize) -> Vec<Option<PeerHandle>> {
        let Some(exit) = self.exits.try_remove(at) else {
            return Vec::new();
        };
        self.by_place.remove(&exit.place);
        exit.via
    }

    /// The handles of a port by which exits are reached.
    pub fn handles(&self, port: usize) -> impl Iterator<Item = PeerHandle> {
        let exits = self.exits.iter();
        exits.filter_map(move |(_, exit)| exit.via.get(port).copied().flatten())
    }

    /// The tunnel endpoint that an exit is, if it is one.
    pub fn tunnel(&self, exit: usize) -> Option<IpAddr> {
        match self.exits.get(exit)?.place {
            Place::Tunnel(address) => Some(address),
            Place::Link(_) => None,
        }
    }

    /// Whether an exit is reached by this handle of a port.
    pub fn uses(&self, port: usize, handle: PeerHandle) -> bool {
        self.handles(port).any(|other| other == handle)
    }

    /// Where a tenant's frame goes whose first octets these are; but for [`is_home`](Self::is_home).
    #[inline]
    fn towards(&self, head: &[u8], owner: MacAddress) -> Exits<'_> {
        let stations = &*self.stations;
        let places = |(from, to): (u32, u32)| Exits::Places {
            numbers: stations.at.get(from as usize..to as usize).unwrap_or(&[]),
            via: &self.via,
        };
        let nowhere = Exits::Route(None);
        let Some(&station) = head.first_chunk() else {
            return nowhere;
        };
        let station = MacAddress(station);
        if station.is_multicast() {
            // Not to a part of the group.
            return match stations.siblings.iter().all(|sibling| *sibling == owner) {
                true => places(stations.groups),
                false => nowhere,
            };
        }
        if stations.routers.contains(&station) {
            let route = forward::destination(head).and_then(|address| self.routes.get(&address));
            return Exits::Route(route.map(|(exit, _)| *exit));
        }
        match stations.of.get(&station) {
            Some(&own) => places(own),
            None if stations.entered => places(stations.groups),
            None => nowhere,
        }
    }

    /// Whether an exit leads back to the tenant itself.
    #[inline]
    fn is_home(&self, owner: MacAddress, exit: usize) -> bool {
        self.stations.homes.get(&owner).is_some_and(|port| {
            let exit = self.exits.get(exit);
            exit.is_some_and(|exit| exit.place == Place::Link(Some(*port)))
        })
    }

    /// Octets on the wire that are not the tenant's frame.
    fn overhead(&self, exit: &Exit) -> usize {
        let datagram = match exit.place {
            Place::Tunnel(address) => datagram_overhead(Some(address)),
            Place::Link(_) => 0,
        };
        datagram + self.header_len(exit.place)
    }

    /// Octets in front of the tenant's frame in what a port is given.
    fn header_len(&self, place: Place) -> usize {
        match (place, self.carrier) {
            (Place::Tunnel(_), _) => vxlan::HEADER_LEN,
            (Place::Link(_), Carrier::Native { vlan: Some(_) }) => TAG_LEN,
            (Place::Link(_), _) => 0,
        }
    }

    /// Writes a frame as it leaves by an exit. Returns its length there.
    fn write(
        &self,
        space: &mut [u8],
        frame: SharedSlice<'_>,
        (owner, priorities): (&Owner, u8),
        class: TrafficClass,
        (at, exit): (usize, &Exit),
    ) -> Result<usize, Foreign> {
        let start = self.header_len(exit.place);
        let end = start + frame.len();
        let inner = space.get_mut(start..end).ok_or(Foreign::Malformed)?;
        frame.read_into(0, inner).map_err(|_| Foreign::Malformed)?;
        owner.check(inner, priorities)?;
        let to = ethernet::Packet::new_checked(&*inner).map_err(|_| Foreign::Malformed)?;
        if self.stations.routers.contains(&to.destination()) {
            // Looked up on the copy, which is what leaves, and as the route is now.
            let route = forward::destination(inner).and_then(|address| self.routes.get(&address));
            match route {
                Some((exit, hop)) if *exit == at => hop.forward(inner)?,
                _ => return Err(Foreign::Moved),
            }
        }
        match (exit.place, self.carrier) {
            (Place::Tunnel(_), Carrier::Vxlan { id, .. }) => {
                if let Some(header) = space.first_chunk_mut() {
                    vxlan::Repr { network: id }.emit(header);
                }
            }
            (Place::Link(_), Carrier::Native { vlan }) => {
                // Priorities are the classes (IEEE 802.1Q-2022, clause 6.9.3).
                if let Some(tag) = vlan.and_then(|id| VlanTag::new(id, class.number(), false)) {
                    space.copy_within(TAG_LEN..TAG_LEN + ADDRESSES, 0);
                    // Between the addresses and the EtherType, which stays where it is.
                    let tag_at = |offset| ADDRESSES + offset..ADDRESSES + offset + 2;
                    space[tag_at(0)].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
                    space[tag_at(2)].copy_from_slice(&tag.control().to_be_bytes());
                }
            }
            _ => {}
        }
        Ok(end)
    }
}

/// Which stream's a frame may be. What its program makes of it later is checked by itself when it leaves, and leaves at this
/// frame's time, as long as this one.
#[cold]
fn flow(frame: SharedSlice<'_>) -> Option<Flow> {
    let mut head = [0; policing::HEAD];
    let head = &mut head[..frame.len().min(policing::HEAD)];
    frame.sub(0, head.len()).ok()?.read_into(0, head).ok()?;
    Flow::of_frame(head)
}

impl State {
    /// Sends a frame, or gives it to the scheduler of its port, to all stations that it is for.
    ///
    /// `from`: the numbers of session and source; `room`: frames of the tenant for which schedulers have room; `left`: what the turn may still spend.
    #[allow(clippy::too_many_arguments)] // one frame: whose, where, how
    pub(super) fn send_frame(
        &self,
        ports: &mut [LanePort],
        from: (SessionSlot, SourceSlot),
        session: &LaneSession,
        owner: &Owner,
        progress: &mut InProgress,
        now_ns: i64,
        room: u32,
        pieces: &mut u16,
        left: &mut i64,
    ) -> Sent {
        let descriptor = progress.descriptor;
        let Some(network) = self.networks.get(owner.network) else {
            return Sent::Finished(Outcome::Unreachable);
        };
        let frame = session.emitted(descriptor.chunk, descriptor.length);
        let mut head = [0; forward::HEAD];
        let head = &mut head[..frame.len().min(forward::HEAD)];
        if !session.permits(descriptor.class)
            || frame.len() > owner.mtu + ethernet::HEADER_LEN
            || frame.len() < ADDRESSES
            || frame
                .sub(0, head.len())
                .and_then(|first| first.read_into(0, head))
                .is_err()
        {
            network.counters.refused.add(1);
            return Sent::Finished(Outcome::Refused);
        }
        let exits = network.towards(head, owner.mac);
        if progress.outcome == Outcome::NoSink {
            // First look at it.
            progress.generation = network.generation;
            progress.outcome = if exits.iter().all(|exit| network.is_home(owner.mac, exit)) {
                network.counters.unknown.add(1);
                Outcome::Unreachable
            } else {
                Outcome::Sent
            };
        } else if progress.generation != network.generation {
            // Of several exits some have their copy already, which ones is not known any more.
            if progress.destinations.next > 0 {
                return Sent::Finished(Outcome::Unreachable);
            }
            progress.generation = network.generation;
        }
        while let Some(to) = exits.get(progress.destinations.next as usize) {
            if *left <= 0 {
                return Sent::Unfinished(Step::More);
            }
            if network.is_home(owner.mac, to) {
                progress.destinations.next += 1;
                continue;
            }
            *left -= fair::FRAME + i64::from(descriptor.length);
            let exit = network.exits.get(to);
            let found = exit.and_then(|exit| {
                Some((exit, usable_port(&exit.via, &[], ports, progress.carrier)?))
            });
            let admitted = match found {
                Some((exit, _)) if session.polices(&descriptor) => {
                    let octets = descriptor.length as usize + network.overhead(exit);
                    let number = progress.destinations.next;
                    session.police(progress, number, flow(frame), (0..1, octets), now_ns)
                }
                _ => Ok(false),
            };
            let result = match found {
                None => {
                    network.counters.unreachable.add(1);
                    Err(Outcome::Unreachable)
                }
                Some(_) if admitted.is_err() => admitted.map(drop),
                Some((exit, port)) if ports[port].schedules(&descriptor) => {
                    if room <= u32::from(*pieces) {
                        return Sent::Unfinished(Step::Held);
                    }
                    let piece = Piece {
                        session: from.0,
                        source: from.1,
                        tenant: session.tenant.0 as u32,
                        descriptor,
                        declared: admitted == Ok(true),
                        again: false,
                        destination: Destination::Network {
                            network: owner.network,
                            exit: to,
                        },
                    };
                    let octets = descriptor.length as usize + network.overhead(exit);
                    let now = TaiTime::from_nanos(now_ns);
                    let kept = exit.via[port]
                        .is_some_and(|peer| ports[port].keeps(peer, class_of(&descriptor)));
                    match ports[port].departures.as_mut().map(|departures| {
                        if kept {
                            departures.hand_ahead(class_of(&descriptor));
                        }
                        departures.queue_frame(piece, octets, now)
                    }) {
                        Some(Ok(true)) => {
                            *pieces += 1;
                            Ok(())
                        }
                        Some(Ok(false)) => {
                            return Sent::Unfinished(Step::Held);
                        }
                        Some(Err(outcome)) => Err(outcome),
                        None => Err(Outcome::Unreachable),
                    }
                }
                Some((_, port)) if ports[port].yields(TaiTime::from_nanos(now_ns)) => {
                    return Sent::Unfinished(Step::Blocked);
                }
                Some((exit, port)) => {
                    let peer = exit.via.get(port).copied().flatten();
                    let lane_port = &mut ports[port];
                    let put = put(
                        network,
                        (to, exit),
                        peer,
                        lane_port,
                        frame,
                        (owner, session.tag_priorities(&descriptor)),
                        &descriptor,
                        None,
                    );
                    ports[port].dirty = true;
                    match put {
                        Ok(()) => {
                            self.counters.tx_datagrams.add(1);
                            if self.taps.any() {
                                let tunnel = network.tunnel(to);
                                let left = Passed::out(session.tenant_id, now_ns, tunnel);
                                self.taps.frame(&left, class_of(&descriptor), frame);
                            }
                            Ok(())
                        }
                        Err(Put::Blocked) => {
                            return Sent::Unfinished(Step::Blocked);
                        }
                        Err(Put::Failed(outcome)) => Err(outcome),
                    }
                }
            };
            if let Err(outcome) = result {
                progress.outcome = outcome;
            }
            progress.destinations.next += 1;
        }
        Sent::Finished(progress.outcome)
    }

    /// Builds what leaves of one frame, whose time has come: whether the port keeps its start; or why it
    /// does not leave.
    pub(super) fn build_frame(
        &self,
        lane_port: &mut LanePort,
        at: usize,
        piece: &Piece,
        network: usize,
        exit: usize,
        start: TaiTime,
    ) -> Result<bool, NotBuilt> {
        let gone = NotBuilt::Failed(Outcome::Unreachable);
        let session = self.tenants.sessions.get(piece.session).ok_or(gone)?;
        let owner = session.owner(piece.source).ok_or(gone)?;
        let network = self.networks.get(network).ok_or(gone)?;
        let to = exit;
        let exit = network.exits.get(to).ok_or(gone)?;
        let frame = session.emitted(piece.descriptor.chunk, piece.descriptor.length);
        let descriptor = &piece.descriptor;
        let peer = exit.via.get(at).copied().flatten();
        let kept = peer.is_some_and(|peer| lane_port.keeps(peer, class_of(descriptor)));
        let launch = kept.then_some(start);
        let priorities = session.tag_priorities(descriptor);
        let put = |lane_port: &mut LanePort| {
            put(
                network,
                (to, exit),
                peer,
                lane_port,
                frame,
                (owner, priorities),
                descriptor,
                launch,
            )
        };
        let result = put(lane_port);
        result.map(|()| kept).map_err(|put| match put {
            Put::Failed(outcome) => NotBuilt::Failed(outcome),
            Put::Blocked => NotBuilt::Blocked,
        })
    }
}

enum Put {
    /// No frame is free.
    Blocked,
    Failed(Outcome),
}

/// Puts a frame into a port's.
#[allow(clippy::too_many_arguments)] // one frame: whose, where, how
fn put(
    network: &Network,
    exit: (usize, &Exit),
    peer: Option<PeerHandle>,
    lane_port: &mut LanePort,
    frame: SharedSlice<'_>,
    owner: (&Owner, u8),
    descriptor: &TxDescriptor,
    launch_time: Option<TaiTime>,
) -> Result<(), Put> {
    let counters = &network.counters;
    let unreachable = || {
        counters.unreachable.add(1);
        Put::Failed(Outcome::Unreachable)
    };
    let peer = peer.ok_or_else(unreachable)?;
    let port = lane_port.port.as_mut();
    let place = port.reserve(peer).map_err(|error| match error {
        ReserveError::WouldBlock => Put::Blocked,
        _ => unreachable(),
    })?;
    let class = class_of(descriptor);
    let written = network.write(port.payload(&place), frame, owner, class, exit);
    match written {
        Ok(length) => {
            port.commit(place, length, class, launch_time);
            counters.sent.add(1);
            counters.sent_bytes.add(frame.len() as u64);
            Ok(())
        }
        Err(foreign) => {
            port.cancel(place);
            match foreign {
                Foreign::Source => counters.foreign.add(1),
                Foreign::Malformed | Foreign::Kind => counters.refused.add(1),
                Foreign::Moved => return Err(unreachable()),
            }
            Err(Put::Failed(Outcome::Refused))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use takt_shm::Arena;
    use takt_wire::vxlan::NetworkId;

    use super::*;

    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const ANY: u8 = 0xff;

    fn owner() -> Owner {
        Owner {
            network: 0,
            mac: MAC,
            addresses: vec![
                ([10, 0, 0, 1].into(), 24),
                ("fd00::1".parse().expect("an address"), 64),
            ],
            mtu: 1450,
            ether_types: vec![EtherType(0x22f0), EtherType(0x88f7)],
            vlans: vec![0, 100],
            classes: 1 << 0 | 1 << 5,
        }
    }

    /// A frame of an EtherType with this payload.
    fn frame(ether_type: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 9];
        frame.extend(MAC.0);
        frame.extend(ether_type.to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn v6(next_header: u8, first: u8) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 8, next_header, 255];
        packet.extend(
            "fd00::1"
                .parse::<std::net::Ipv6Addr>()
                .expect("one")
                .octets(),
        );
        packet.extend([0; 16]);
        packet.extend([first, 0, 0, 0, 0, 0, 0, 0]);
        frame(0x86dd, &packet)
    }

    #[test]
    fn a_tag_is_of_the_tenants_vlans_and_classes_and_hides_nothing() {
        let owner = owner();
        let tagged = |id: u16, priority: u16, frame: &[u8]| {
            let mut tagged = frame[..ADDRESSES].to_vec();
            tagged.extend(0x8100u16.to_be_bytes());
            tagged.extend((priority << 13 | id).to_be_bytes());
            tagged.extend(&frame[ADDRESSES..]);
            tagged
        };
        let allowed = [v6(17, 0), frame(0x22f0, &[0; 46])];
        let refused = [
            (v6(58, 135), Foreign::Kind),
            (frame(0x0806, &[0; 28]), Foreign::Kind),
            (frame(0x88b5, &[0; 46]), Foreign::Kind),
            (frame(0x0800, &[0x45; 46]), Foreign::Malformed),
            (tagged(100, 5, &allowed[0]), Foreign::Kind),
        ];
        for inner in &allowed {
            assert_eq!(owner.check(inner, ANY), Ok(()));
            for (id, priority) in [(100, 5), (100, 0), (0, 5)] {
                assert_eq!(owner.check(&tagged(id, priority, inner), ANY), Ok(()));
            }
            for (id, priority) in [(100, 1), (99, 5), (1, 0), (4094, 0)] {
                assert_eq!(
                    owner.check(&tagged(id, priority, inner), ANY),
                    Err(Foreign::Kind)
                );
            }
            // Of a class that is policed, and that the frame is not of.
            for (id, priority) in [(100, 5), (0, 5)] {
                let tagged = tagged(id, priority, inner);
                assert_eq!(owner.check(&tagged, !(1 << 5)), Err(Foreign::Kind));
                assert_eq!(owner.check(&tagged, 1 << 5), Ok(()));
            }
            assert_eq!(
                owner.check(&tagged(4095, 5, inner), ANY),
                Err(Foreign::Malformed)
            );
            let none = Owner {
                vlans: Vec::new(),
                ..self::owner()
            };
            assert_eq!(none.check(&tagged(100, 5, inner), ANY), Err(Foreign::Kind));
            let mut service = tagged(100, 5, inner);
            service[ADDRESSES..ADDRESSES + 2].copy_from_slice(&0x88a8u16.to_be_bytes());
            assert_eq!(owner.check(&service, ANY), Err(Foreign::Kind));
        }
        for (inner, why) in refused {
            assert_eq!(
                owner.check(&tagged(100, 5, &inner), ANY),
                Err(why),
                "{inner:x?}"
            );
        }
        // Of the packet, the addresses are looked at behind the tag as they are without one.
        let mut foreign = tagged(100, 5, &v6(17, 0));
        foreign[ADDRESSES + 4 + 2 + 8 + 15] ^= 1;
        assert_eq!(owner.check(&foreign, ANY), Err(Foreign::Source));
        for length in ADDRESSES + 2..ADDRESSES + 6 {
            let cut = &tagged(100, 5, &allowed[1])[..length];
            assert_eq!(owner.check(cut, ANY), Err(Foreign::Malformed), "{length}");
        }
        // The tag is a part of the packet.
        let longest = frame(0x22f0, &[0; 1446]);
        assert_eq!(owner.check(&tagged(100, 5, &longest), ANY), Ok(()));
        let longer = frame(0x22f0, &[0; 1447]);
        assert_eq!(
            owner.check(&tagged(100, 5, &longer), ANY),
            Err(Foreign::Malformed)
        );
    }

    #[test]
    fn nobody_speaks_for_others() {
        let owner = owner();
        // UDP and echo requests may leave; neighbour discovery, and what could hide it, may not.
        assert_eq!(owner.check(&v6(17, 0), ANY), Ok(()));
        assert_eq!(owner.check(&v6(58, 128), ANY), Ok(()));
        for kind in NEIGHBOUR_DISCOVERY {
            assert_eq!(owner.check(&v6(58, kind), ANY), Err(Foreign::Kind));
        }
        for extension in EXTENSIONS {
            assert_eq!(owner.check(&v6(extension, 0), ANY), Err(Foreign::Kind));
        }
        assert_eq!(
            owner.check(&frame(0x0806, &[0; 28]), ANY),
            Err(Foreign::Kind)
        );
        assert_eq!(
            owner.check(&frame(0x8100, &[0; 28]), ANY),
            Err(Foreign::Kind)
        );
        assert_eq!(
            owner.check(&frame(0x88a8, &[0; 28]), ANY),
            Err(Foreign::Kind)
        );
    }

    #[test]
    fn what_controls_a_link_never_leaves_and_other_kinds_only_where_the_operator_says() {
        let owner = owner();
        // PAUSE, LACP, EAPOL, LLDP, MACsec, MVRP, MMRP, gPTP (although it is in the list), CFM, tags, lengths.
        for kind in [
            0x8808, 0x8809, 0x888e, 0x88cc, 0x88e5, 0x88f5, 0x88f6, 0x88f7, 0x8902, 0x9100, 0x9200,
            0x88e7, 0x893f, 0x0026, 0x05ff,
        ] {
            assert_eq!(owner.check(&frame(kind, &[0; 46]), ANY), Err(Foreign::Kind));
        }
        // Audio was allowed, what nobody has thought of was not.
        assert_eq!(owner.check(&frame(0x22f0, &[0; 28]), ANY), Ok(()));
        for kind in [0x0600, 0x0842, 0x88a4, 0x8892, 0x88ba, 0x8863, 0xffff] {
            assert_eq!(owner.check(&frame(kind, &[0; 46]), ANY), Err(Foreign::Kind));
        }
        // To a bridge's or link's own address nothing goes, however honest it looks.
        let mut packet = v6(17, 0);
        for last in 0..=0xff {
            packet[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, last]);
            let expected = if last < 0x30 {
                Err(Foreign::Kind)
            } else {
                Ok(())
            };
            assert_eq!(owner.check(&packet, ANY), expected, "{last:#x}");
        }
    }

    proptest! {
        /// Whatever passes has the tenant's source; whatever is offered makes nothing panic.
        #[test]
        fn what_passes_is_the_tenants(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
            plausible in 0u8..4,
        ) {
            if plausible > 0 && bytes.len() >= 14 {
                bytes[6..12].copy_from_slice(&MAC.0);
                let ether_type: u16 = [0x0800, 0x86dd, 0x22f0][usize::from(plausible) - 1];
                bytes[12..14].copy_from_slice(&ether_type.to_be_bytes());
            }
            if owner().check(&bytes, ANY).is_ok() {
                prop_assert_eq!(&bytes[6..12], &MAC.0);
                match u16::from_be_bytes([bytes[12], bytes[13]]) {
                    0x0800 => prop_assert_eq!(&bytes[26..30], &[10, 0, 0, 1]),
                    0x86dd => prop_assert_eq!(bytes[22], 0xfd),
                    other => prop_assert_eq!(other, 0x22f0),
                }
            }
        }

        /// A network adds its header in front and changes nothing else.
        #[test]
        fn a_frame_is_whole_inside_what_leaves(
            payload in proptest::collection::vec(any::<u8>(), 0..1451),
            vlan in proptest::option::of(1u16..4095),
            tunnelled: bool,
            class in 0u8..8,
        ) {
            let arena = Arena::create("frames", 1 << 16).expect("memory");
            let bytes = frame(0x22f0, &payload);
            let shared = arena.slice(64, bytes.len()).expect("inside");
            shared.write_from(0, &bytes).expect("inside");
            let id = NetworkId::new(0x123456).expect("an identifier");
            let carrier = match tunnelled {
                true => Carrier::Vxlan { id, port: 4789 },
                false => Carrier::Native { vlan },
            };
            let network = Network::new(carrier, Arc::default());
            let exit = Exit {
                place: match tunnelled {
                    true => Place::Tunnel([10, 0, 0, 9].into()),
                    false => Place::Link(None),
                },
                via: Vec::new(),
            };
            let class = TrafficClass::new(class).expect("a class");
            let mut space = [0xee; 2048];
            let length = network
                .write(&mut space, shared, (&owner(), ANY), class, (0, &exit))
                .expect("the tenant's");
            let left = &space[..length];
            match carrier {
                Carrier::Vxlan { .. } => {
                    prop_assert_eq!(&left[..8], &[8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
                    prop_assert_eq!(&left[8..], &bytes[..]);
                }
                Carrier::Native { vlan: None } => prop_assert_eq!(left, &bytes[..]),
                Carrier::Routed => prop_assert!(false, "not made here"),
                Carrier::Native { vlan: Some(id) } => {
                    let control = u16::from(class.number()) << 13 | id;
                    prop_assert_eq!(&left[..12], &bytes[..12]);
                    prop_assert_eq!(&left[12..14], &[0x81, 0]);
                    prop_assert_eq!(&left[14..16], &control.to_be_bytes());
                    prop_assert_eq!(&left[16..], &bytes[12..]);
                }
            }
            // Too little room is an error, not a panic.
            let short = network.write(&mut [0; 10], shared, (&owner(), ANY), class, (0, &exit));
            prop_assert!(short.is_err());
        }
    }
}
