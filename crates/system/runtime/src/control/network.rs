//! A network: where its stations are, told by operators and followed from the kernel.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use takt_datapath::stack::{BridgeEntry, Device, DeviceKind};
use takt_session::Endpoint;
use takt_wire::ethernet::MacAddress;

use super::host::{Host, Unserved};
use super::local::{self, Behind, Rank};
use super::networks::StationError;
use crate::config::{Carrier, NetworkConfig, Station};
use crate::counters::{NetworkCounters, NetworkReading};
use crate::lane::forward::Hop;
use crate::lane::network::{NetworkTable, Place, Routed, Stations};
use crate::policy::Policy;
use crate::status::{NetworkStatus, RouteStatus, StationStatus};

/// Stations that operators may enter.
pub(super) const MOST_STATIONS: usize = 65_536;
/// Stations beyond a native network's interface that are not looked for again on this host.
const MOST_BEYOND: usize = 4096;
/// Stations that are taken from a kernel's table. Strangers may make the kernel learn more of them.
const MOST_FOLLOWED: usize = 4096;
/// Tunnel endpoints of those stations.
const MOST_ENDPOINTS: usize = 1024;
/// Stations on bridges of this host, but for tenants. Whoever sends makes a bridge learn as many as it likes.
const MOST_LOCAL: usize = 4096;
/// Destinations behind this host as a router.
const MOST_ROUTES: usize = 4096;
/// Those of them that a tenant may have asked for.
const MOST_ROUTES_OF_A_TENANT: usize = 256;

/// Notes a station that is beyond the interface. When there are too many, all are forgotten: they are looked for once more.
/// Tenants name stations as they like, so that one may always fill the list.
fn note_beyond(beyond: &mut HashSet<MacAddress>, mac: MacAddress) {
    if beyond.len() >= MOST_BEYOND {
        beyond.clear();
    }
    beyond.insert(mac);
}

/// A network.
pub(super) struct Network {
    config: NetworkConfig,
    /// Told by operators.
    stations: Vec<Station>,
    /// Read from the kernel's device.
    followed: Vec<Station>,
    /// Of all these stations: which one has an address, and which tunnel endpoint one is behind.
    by_address: HashMap<IpAddr, MacAddress>,
    by_mac: HashMap<MacAddress, Option<IpAddr>>,
    /// What that device knows beyond.
    left_out: u64,
    /// On bridges of this host.
    local: BTreeMap<MacAddress, Behind>,
    /// What those bridges know beyond.
    local_left_out: u64,
    /// Ports of those bridges but for tunnels, by interface.
    ports: Vec<u32>,
    /// Tenants with the port that they are behind.
    homes: BTreeMap<MacAddress, u32>,
    /// Stations on top of the interface (macvlan), which what leaves by it does not reach.
    siblings: Vec<MacAddress>,
    /// Stations of a native network that were beyond its interface when they were first asked for, since there were too
    /// many.
    beyond: HashSet<MacAddress>,
    /// Addresses of this host as a router for tenants of this network.
    routers: Vec<MacAddress>,
    /// Destinations behind it.
    routes: HashMap<IpAddr, Route>,
    /// The index of the device that is followed, and of the interface.
    device: Option<u32>,
    interface: Option<u32>,
    /// Why the kernel's device could not be read the last time.
    problem: Option<String>,
    /// Per lane.
    counters: Vec<Arc<NetworkCounters>>,
    /// What lanes have been told of its stations, the latest and as long as lanes have it: none of them has to free it.
    published: Vec<Arc<Stations>>,
}

/// A destination behind this host as a router.
struct Route {
    /// The kernel's answer, followed.
    way: takt_datapath::stack::Destination,
    /// Who has asked for it, and when last, in the order of questions.
    tenant: String,
    asked: u64,
    /// What the lanes have been told.
    published: Result<Routed, Unserved>,
}

/// What lanes are to be told of a network.
#[derive(Default)]
pub(super) struct Published {
    /// Where its stations are.
    pub(super) stations: bool,
    /// The ways to these destinations behind this host.
    pub(super) routes: Vec<(IpAddr, Option<Routed>)>,
}

/// Whether a tenant's packets to a destination behind this host are served.
pub(super) enum Forwarded {
    Served,
    Not,
    /// The kernel has been asked.
    Asked,
}

impl Network {
    pub(super) fn new(config: NetworkConfig, lanes: usize) -> Self {
        let mut new = Self {
            stations: config.stations.clone(),
            config,
            followed: Vec::new(),
            by_address: HashMap::new(),
            by_mac: HashMap::new(),
            left_out: 0,
            local_left_out: 0,
            local: BTreeMap::new(),
            ports: Vec::new(),
            homes: BTreeMap::new(),
            siblings: Vec::new(),
            beyond: HashSet::new(),
            routers: Vec::new(),
            routes: HashMap::new(),
            device: None,
            interface: None,
            problem: None,
            counters: (0..lanes).map(|_| Arc::default()).collect(),
            published: Vec::new(),
        };
        new.index();
        new
    }

    /// Stations have come or gone. Those that were entered go before those that were read.
    fn index(&mut self) {
        self.by_address.clear();
        self.by_mac.clear();
        for station in self.stations.iter().chain(&self.followed) {
            self.by_mac.entry(station.mac).or_insert(station.vtep);
            for address in &station.addresses {
                self.by_address.entry(*address).or_insert(station.mac);
            }
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    /// Takes over what the host's devices and tables say. `endpoints`: those of tenants of all networks.
    pub(super) fn look(&mut self, host: &Host, endpoints: &[Endpoint]) -> Published {
        let own = self.endpoints(endpoints);
        let own: Vec<MacAddress> = own.map(|endpoint| MacAddress(endpoint.mac)).collect();
        Published {
            stations: self.follow(host, &own),
            routes: self.reroute(host),
        }
    }

    fn endpoints<'e>(&self, of_all: &'e [Endpoint]) -> impl Iterator<Item = &'e Endpoint> {
        let all = of_all.iter();
        all.filter(|endpoint| endpoint.network == self.config.name)
    }

    /// An operator enters a station, or changes what is known of it.
    pub(super) fn enter(&mut self, station: Station) -> Result<(), StationError> {
        let name = || self.config.name.clone();
        match self.config.carrier {
            Carrier::Vxlan { .. } if station.vtep.is_none() => {
                return Err(StationError::NoEndpoint(name()));
            }
            Carrier::Native { .. } | Carrier::Routed if station.vtep.is_some() => {
                return Err(StationError::Endpoint(name()));
            }
            _ => {}
        }
        if station.mac.is_multicast() {
            return Err(StationError::Group(station.mac));
        }
        let same = |other: &Station| {
            other.mac == station.mac
                && (station.mac != MacAddress::ZERO || other.vtep == station.vtep)
        };
        match self.stations.iter().position(same) {
            Some(known) => self.stations[known] = station,
            None if self.stations.len() >= MOST_STATIONS => return Err(StationError::Full),
            None => self.stations.push(station),
        }
        self.index();
        Ok(())
    }

    /// An operator takes a station out. False: it was not entered.
    pub(super) fn remove(&mut self, mac: MacAddress, vtep: Option<IpAddr>) -> bool {
        let before = self.stations.len();
        let other = |s: &Station| s.mac != mac || (vtep.is_some() && s.vtep != vtep);
        self.stations.retain(other);
        self.index();
        self.stations.len() < before
    }

    pub(super) fn carrier(&self) -> Carrier {
        self.config.carrier
    }

    pub(super) fn counters(&self, lane: usize) -> Arc<NetworkCounters> {
        self.counters[lane].clone()
    }

    /// Where its stations are, for lanes.
    pub(super) fn publish(&mut self) -> Arc<Stations> {
        let stations = Arc::new(Stations::new(self.table()));
        self.published.retain(|old| Arc::strong_count(old) > 1);
        self.published.push(stations.clone());
        stations
    }

    fn table(&self) -> NetworkTable {
        let (mut stations, mut others) = (Vec::new(), Vec::new());
        let entered: HashSet<MacAddress> = self.stations.iter().map(|s| s.mac).collect();
        // Where an operator has entered a station, the kernel is not asked: a frame would go to both.
        let followed = self
            .followed
            .iter()
            .filter(|station| station.mac == MacAddress::ZERO || !entered.contains(&station.mac));
        for station in self.stations.iter().chain(followed) {
            match station.vtep {
                Some(vtep) if station.mac == MacAddress::ZERO => others.push(Place::Tunnel(vtep)),
                Some(vtep) => stations.push((station.mac, Place::Tunnel(vtep))),
                None => {}
            }
        }
        let elsewhere: HashSet<MacAddress> = stations.iter().map(|(mac, _)| *mac).collect();
        let here = self.local.iter();
        stations.extend(
            here.filter(|(mac, _)| !elsewhere.contains(mac))
                .map(|(mac, behind)| (*mac, Place::Link(Some(behind.bridge)))),
        );
        if let Carrier::Native { .. } = self.config.carrier {
            // A network whose interface is missing reaches nobody.
            if self.config.interface.is_none() || self.interface.is_some() {
                others.push(Place::Link(self.interface));
            }
        }
        others.sort_unstable();
        others.dedup();
        stations.sort_unstable();
        stations.dedup();
        NetworkTable {
            stations,
            others,
            ports: self.ports.clone(),
            homes: self.homes.iter().map(|(mac, port)| (*mac, *port)).collect(),
            siblings: self.siblings.clone(),
            routers: self.routers.clone(),
        }
    }

    /// Which station frames of a tenant for an address on the link are for: the one that was entered or read with it, rather
    /// than what the tenant knows of it (`known`), which whoever is on the link can have made it believe.
    pub(super) fn resolve(
        &self,
        tenant: MacAddress,
        address: IpAddr,
        known: Option<MacAddress>,
    ) -> Option<MacAddress> {
        let told = self.by_address.get(&address).copied();
        told.or(known)
            .filter(|mac| told.is_some() || self.reaches(tenant, *mac))
            .filter(|mac| !self.siblings.contains(mac))
    }

    /// Whether a tenant's frame for a station, or for all of a group, goes anywhere.
    fn reaches(&self, tenant: MacAddress, mac: MacAddress) -> bool {
        let native = matches!(self.config.carrier, Carrier::Native { .. });
        let entered = || self.by_mac.contains_key(&MacAddress::ZERO);
        if mac.is_multicast() {
            // To a part of the group is not to the group.
            let beside = self.siblings.iter().any(|sibling| *sibling != tenant);
            let home = self.homes.get(&tenant);
            let neighbours = || self.ports.iter().any(|port| Some(port) != home);
            return !beside && (native || entered() || neighbours());
        }
        native || self.local.contains_key(&mac) || self.by_mac.contains_key(&mac) || entered()
    }

    /// The tunnel endpoint that a station is behind.
    fn endpoint_of(&self, mac: MacAddress) -> Option<IpAddr> {
        self.by_mac.get(&mac).copied().flatten()
    }

    /// Takes over what the host's tables say now. `endpoints`: addresses of tenants of this network. True if
    /// lanes are to be told.
    fn follow(&mut self, host: &Host, endpoints: &[MacAddress]) -> bool {
        let interface = self.config.interface.as_deref();
        let interface = interface.and_then(|name| Some(host.named(name)?.ifindex));
        let mut changed = std::mem::replace(&mut self.interface, interface) != interface;
        if self.config.interface.is_some() {
            let missing = self.config.interface.as_deref();
            let missing = missing.filter(|_| interface.is_none());
            self.say(missing.map(|name| format!("there is no interface {name}")));
        }
        changed |= self.follow_device(host);
        changed |= self.follow_bridges(host, endpoints);
        changed |= self.follow_siblings(host);
        let known = |mac: &MacAddress| host.devices.iter().any(|d| d.mac == Some(*mac));
        let routers = self.routers.len();
        self.routers.retain(known);
        changed | (self.routers.len() != routers)
    }

    pub(super) fn say(&mut self, problem: Option<String>) {
        if let Some(problem) = &problem
            && self.problem.as_ref() != Some(problem)
        {
            tracing::warn!(network = %self.config.name, "{problem}");
        }
        self.problem = problem;
    }

    fn follow_device(&mut self, host: &Host) -> bool {
        let Some(name) = &self.config.follow else {
            return false;
        };
        let Some(device) = host.named(name).map(|device| device.ifindex) else {
            let problem = format!("cannot follow {name}: there is no such interface");
            self.say(Some(problem));
            // What is known stays: a device that is made anew is back in a moment.
            return false;
        };
        self.device = Some(device);
        let known: HashSet<(MacAddress, IpAddr)> = self
            .followed
            .iter()
            .filter_map(|station| Some((station.mac, station.vtep?)))
            .collect();
        let mut entries: Vec<_> = host
            .forwarding
            .tunnels
            .iter()
            .filter(|entry| entry.device == device)
            .map(|entry| {
                let place = (entry.mac, entry.endpoint);
                // What was entered goes before what was learnt, and what is served before what is new: strangers
                // who have the network's identifier can make the kernel learn, and must displace nobody.
                (entry.learned, !known.contains(&place), place)
            })
            .collect();
        entries.sort_unstable();
        entries.dedup();
        let total = entries.len();
        let mut vteps = HashSet::new();
        let mut followed: Vec<_> = entries
            .into_iter()
            .map(|(_, _, place)| place)
            .filter(|(_, vtep)| {
                vteps.contains(vtep) || (vteps.len() < MOST_ENDPOINTS && vteps.insert(*vtep))
            })
            .take(MOST_FOLLOWED)
            .collect();
        let left_out = (total - followed.len()) as u64;
        let problem = (left_out > 0).then(|| {
            format!(
                "{name} has {total} stations: {left_out} beyond the limits of {MOST_FOLLOWED} stations and \
                 {MOST_ENDPOINTS} tunnel endpoints are not served"
            )
        });
        // Said once, not for each number.
        if left_out > 0 && self.left_out > 0 {
            self.problem = problem;
        } else {
            self.say(problem);
        }
        self.left_out = left_out;
        followed.sort_unstable();
        let station = |(mac, vtep)| Station {
            mac,
            vtep: Some(vtep),
            addresses: Vec::new(),
        };
        let followed: Vec<Station> = followed.into_iter().map(station).collect();
        let changed = followed != self.followed;
        self.followed = followed;
        if changed {
            self.index();
        }
        changed
    }

    /// Stations that share a bridge of this host with a tenant.
    fn follow_bridges(&mut self, host: &Host, endpoints: &[MacAddress]) -> bool {
        let entries = &host.forwarding.bridges;
        let mut bridges: HashSet<u32> = entries
            .iter()
            .filter(|entry| endpoints.contains(&entry.mac) && !host.is_tunnel(entry.port))
            .map(|entry| entry.bridge)
            .collect();
        bridges.extend(self.device.and_then(|device| host.device(device)?.bridge));
        // Entries age while stations are silent, and frames for them are flooded then: they stay for as long as their port.
        bridges.extend(self.local.values().map(|behind| behind.bridge));
        bridges.retain(|bridge| host.device(*bridge).is_some());
        let devices: HashSet<u32> = host.devices.iter().map(|d| d.ifindex).collect();
        let mut local = self.local.clone();
        let gone = |entry: &&BridgeEntry| host.is_tunnel(entry.port);
        for entry in entries.iter().filter(gone) {
            local.remove(&entry.mac);
        }
        local.retain(|mac, behind| {
            bridges.contains(&behind.bridge)
                && devices.contains(&behind.port)
                && self.endpoint_of(*mac).is_none()
        });
        for entry in entries {
            if bridges.contains(&entry.bridge) && !host.is_tunnel(entry.port) {
                let (bridge, port) = (entry.bridge, entry.port);
                local.insert(entry.mac, Behind { bridge, port });
            }
        }
        let total = local.len();
        let fullest = (total > MOST_LOCAL).then(|| local::fullest(&local));
        let local = local::share(local, MOST_LOCAL, |mac| match endpoints.contains(mac) {
            true => Rank::Tenant,
            false if self.local.contains_key(mac) => Rank::Known,
            false => Rank::New,
        });
        let left_out = (total - local.len()) as u64;
        // Said once, not for each number.
        if left_out > 0
            && self.local_left_out == 0
            && let Some((port, of_port)) = fullest.flatten()
        {
            let port = host.device(port).map(|device| device.name.as_str());
            tracing::warn!(
                network = %self.config.name, stations = total, left_out, port = port.unwrap_or_default(), of_port,
                "the bridges of tenants have more stations than are served: of ports with many, some are left out; the port named has the most of them (`bridge fdb show brport PORT`)"
            );
        }
        self.local_left_out = left_out;
        // As bridges do with what is for groups. The tunnels' port is served by tunnels, the interface's by itself.
        let own = self.interface;
        let is_port = |device: &&Device| {
            let bridge = device
                .bridge
                .filter(|bridge| Some(*bridge) != own && bridges.contains(bridge));
            bridge.is_some() && Some(device.ifindex) != own && device.kind != DeviceKind::Vxlan
        };
        let ports = host.devices.iter().filter(is_port);
        let ports: Vec<u32> = ports.map(|device| device.ifindex).collect();
        let mut homes = self.homes.clone();
        homes.retain(|mac, port| endpoints.contains(mac) && ports.contains(port));
        let of_tenant = entries.iter().filter(|e| endpoints.contains(&e.mac));
        let seen = of_tenant.filter(|entry| ports.contains(&entry.port));
        homes.extend(seen.map(|entry| (entry.mac, entry.port)));
        let changed = local != self.local || ports != self.ports || homes != self.homes;
        (self.local, self.ports, self.homes) = (local, ports, homes);
        changed
    }

    /// Stations on top of the network's interface.
    fn follow_siblings(&mut self, host: &Host) -> bool {
        if !matches!(self.config.carrier, Carrier::Native { .. }) {
            return false;
        }
        let stacked = host.forwarding.stacked.iter();
        // Without an interface it is the datapath's own, whichever that is.
        let here = stacked.filter(|(on, _)| self.interface.is_none_or(|own| own == *on));
        let mut siblings: Vec<MacAddress> = here.map(|(_, mac)| *mac).collect();
        siblings.sort_unstable();
        siblings.dedup();
        let changed = siblings != self.siblings;
        self.siblings = siblings;
        changed
    }

    /// Where packets for a destination behind this host leave by.
    fn routed(&self, host: &Host, destination: IpAddr, route: &Route) -> Result<Routed, Unserved> {
        if !route.way.is_known() {
            return Err(Unserved::Asked);
        }
        let next = route.way.next_hop().ok_or(Unserved::NoRoute)?;
        let beside = matches!(next.kind, DeviceKind::Bridge | DeviceKind::Veth);
        let tunnelled = Some(next.device) == self.device;
        let direct = (beside && next.gateway.is_none()) || self.config.routes_to(destination);
        if !tunnelled && !direct {
            return Err(Unserved::Beyond(host.name(next.device)));
        }
        let mac = next.dst_mac.filter(|_| next.up);
        let mac = mac.ok_or(Unserved::Unresolved)?;
        let place = if tunnelled {
            let vtep = self.endpoint_of(mac).ok_or(Unserved::NoEndpoint(mac))?;
            Place::Tunnel(vtep)
        } else {
            Place::Link(Some(next.device))
        };
        Ok(Routed {
            place,
            hop: Hop {
                source: next.src_mac,
                destination: mac,
                mtu: next.mtu as usize,
            },
        })
    }

    /// Brings the ways to destinations up to date. Those that lanes are to be told.
    fn reroute(&mut self, host: &Host) -> Vec<(IpAddr, Option<Routed>)> {
        let destinations: Vec<IpAddr> = self.routes.keys().copied().collect();
        let changed = |destination| Some((destination, self.reroute_one(host, destination)?));
        destinations.into_iter().filter_map(changed).collect()
    }

    /// Brings the way to one destination up to date, and returns it if lanes are to be told.
    fn reroute_one(&mut self, host: &Host, destination: IpAddr) -> Option<Option<Routed>> {
        let route = self.routes.get(&destination)?;
        let now = self.routed(host, destination, route);
        if now == route.published {
            return None;
        }
        if let Err(why) = &now {
            tracing::debug!(network = %self.config.name, %destination, "not served: {why}");
        }
        let served = now.as_ref().ok().copied();
        let route = self.routes.get_mut(&destination)?;
        let before = std::mem::replace(&mut route.published, now);
        (served != before.ok()).then_some(served)
    }

    /// Follows the way that this host forwards a tenant's packets: to a destination, by an address of this host as a router;
    /// the number of the question.
    pub(super) fn forward(
        &mut self,
        host: &mut Host,
        policy: &Policy,
        (destination, router, asked): (IpAddr, MacAddress, u64),
    ) -> (Forwarded, Published) {
        let mut changes = Published::default();
        match self.routes.get_mut(&destination) {
            Some(route) if self.routers.contains(&router) => route.asked = asked,
            _ => {
                let way = (destination, router, asked);
                match self.begin_forwarding(host, policy, way, &mut changes) {
                    Some(true) => {}
                    Some(false) => return (Forwarded::Not, changes),
                    None => return (Forwarded::Asked, changes),
                }
            }
        }
        if let Some(change) = self.reroute_one(host, destination) {
            changes.routes.push((destination, change));
        }
        let route = self.routes.get(&destination);
        let forwarded = match route.map(|route| &route.published) {
            Some(Err(Unserved::Asked)) | None => Forwarded::Asked,
            Some(Ok(_)) => Forwarded::Served,
            Some(Err(_)) => Forwarded::Not,
        };
        (forwarded, changes)
    }

    /// Begins to follow it. False: this host does not forward for the tenant. `None` while the kernel is asked.
    fn begin_forwarding(
        &mut self,
        host: &mut Host,
        policy: &Policy,
        (destination, router, asked): (IpAddr, MacAddress, u64),
        changes: &mut Published,
    ) -> Option<bool> {
        let addresses = policy.endpoint.iter().flat_map(|e| &e.addresses);
        let source = addresses
            .map(|(address, _)| *address)
            .find(|address| address.is_ipv4() == destination.is_ipv4());
        let Some(source) = source else {
            return Some(false);
        };
        let Some(arrival) = host.arrival(source)? else {
            return Some(false);
        };
        if host.device(arrival).and_then(|device| device.mac) != Some(router) {
            return Some(false);
        }
        let way = match host.follow_forwarded(destination, source, arrival) {
            Ok(way) => way,
            Err(error) => {
                tracing::warn!(%destination, %error, "cannot follow a route");
                return Some(false);
            }
        };
        let evicted = self.make_room(&policy.identity);
        if !self.routers.contains(&router) {
            self.routers.push(router);
            changes.stations = true;
        }
        let route = Route {
            way,
            tenant: policy.identity.clone(),
            asked,
            published: Err(Unserved::Asked),
        };
        let replaced = self.routes.insert(destination, route).is_some();
        let gone = evicted.into_iter().chain(replaced.then_some(destination));
        changes.routes.extend(gone.map(|gone| (gone, None)));
        Some(true)
    }

    /// Whether nobody has said anything of a station.
    pub(super) fn has_not_seen(&self, mac: MacAddress) -> bool {
        !mac.is_multicast()
            && !self.beyond.contains(&mac)
            && self.endpoint_of(mac).is_none()
            && !self.local.contains_key(&mac)
    }

    /// The same as [`resolve`](Self::resolve), of a station that may be beyond a native network's interface: it is not looked for
    /// again.
    pub(super) fn find(
        &mut self,
        tenant: MacAddress,
        address: IpAddr,
        known: Option<MacAddress>,
    ) -> Option<MacAddress> {
        let found = self.resolve(tenant, address, known);
        if let (Some(mac), Carrier::Native { .. }) = (found, self.config.carrier) {
            note_beyond(&mut self.beyond, mac);
        }
        found
    }

    /// Makes room for one more destination of a tenant: those that were asked for longest ago go, its own first.
    fn make_room(&mut self, tenant: &str) -> Option<IpAddr> {
        let of_tenant = |route: &Route| route.tenant == tenant;
        let own = self.routes.values().filter(|r| of_tenant(r)).count();
        let only_own = own >= MOST_ROUTES_OF_A_TENANT;
        if !only_own && self.routes.len() < MOST_ROUTES {
            return None;
        }
        let oldest = self
            .routes
            .iter()
            .filter(|(_, route)| !only_own || of_tenant(route))
            .min_by_key(|(_, route)| route.asked)
            .map(|(destination, _)| *destination)?;
        self.routes.remove(&oldest);
        Some(oldest)
    }
    pub(super) fn status(&self, host: &Host, endpoints: &[Endpoint]) -> NetworkStatus {
        let mut counters = NetworkReading::default();
        for lane in &self.counters {
            counters += lane.read();
        }
        let entered = self.stations.iter().map(|s| (s, false));
        let here: Vec<Station> = self
            .local
            .keys()
            .map(|mac| Station {
                mac: *mac,
                vtep: None,
                addresses: Vec::new(),
            })
            .collect();
        let followed = self.followed.iter().chain(&here).map(|s| (s, true));
        let mut routes: Vec<RouteStatus> = self
            .routes
            .iter()
            .map(|(destination, route)| RouteStatus {
                destination: *destination,
                via: match &route.published {
                    Ok(routed) => Ok(match routed.place {
                        Place::Tunnel(vtep) => vtep.to_string(),
                        Place::Link(interface) => {
                            interface.map_or_else(String::new, |i| host.name(i))
                        }
                    }),
                    Err(why) => Err(why.to_string()),
                },
                next_hop: route.published.as_ref().ok().map(|r| r.hop.destination),
            })
            .collect();
        routes.sort_unstable_by_key(|route| route.destination);
        NetworkStatus {
            name: self.config.name.clone(),
            carrier: self.config.carrier,
            follow: self.config.follow.clone(),
            interface: self.config.interface.clone(),
            left_out: self.left_out + self.local_left_out,
            routes,
            problem: self.problem.clone(),
            endpoints: self.endpoints(endpoints).count(),
            stations: entered
                .chain(followed)
                .map(|(station, followed)| StationStatus {
                    station: station.clone(),
                    followed,
                })
                .collect(),
            counters,
        }
    }
}

#[cfg(test)]
mod tests {
    use takt_wire::vxlan::{NetworkId, UDP_PORT};

    use super::*;

    fn station(mac: u8, vtep: u8) -> Station {
        Station {
            mac: MacAddress([0, 0, 0, 0, 0, mac]),
            vtep: Some([10, 0, 0, vtep].into()),
            addresses: Vec::new(),
        }
    }

    #[test]
    fn whoever_names_many_stations_does_not_keep_new_ones_from_being_known() {
        let mut beyond = HashSet::new();
        for number in 0..3 * MOST_BEYOND as u32 {
            let [a, b, c, d] = number.to_be_bytes();
            let mac = MacAddress([2, 0, a, b, c, d]);
            note_beyond(&mut beyond, mac);
            assert!(beyond.contains(&mac), "station {number}");
            assert!(beyond.len() <= MOST_BEYOND);
        }
    }

    #[test]
    fn no_frame_goes_twice_where_a_station_is_entered_and_followed() {
        let config = NetworkConfig {
            name: "pods".into(),
            carrier: Carrier::Vxlan {
                id: NetworkId::default(),
                port: UDP_PORT,
            },
            stations: vec![station(1, 1), station(2, 2), station(0, 8)],
            follow: Some("vxlan0".into()),
            interface: None,
            routed: Vec::new(),
        };
        let mut network = Network::new(config, 1);
        // The same, another place, one that only the kernel knows (twice), and two for the rest.
        network.followed = vec![
            station(1, 1),
            station(2, 9),
            station(3, 3),
            station(3, 3),
            station(0, 8),
            station(0, 9),
        ];
        let table = network.table();
        let place = |mac, vtep| {
            let Station { mac, vtep, .. } = station(mac, vtep);
            (mac, Place::Tunnel(vtep.expect("an endpoint")))
        };
        assert_eq!(table.stations, [place(1, 1), place(2, 2), place(3, 3)]);
        assert_eq!(table.others, [place(0, 8).1, place(0, 9).1]);
    }
}
