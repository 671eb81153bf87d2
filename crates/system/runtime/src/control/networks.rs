//! Networks: where their stations are, told by operators and followed from the kernel.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use takt_datapath::stack::{BridgeEntry, Device, DeviceKind};
use takt_session::message::Reply;
use takt_session::{Endpoint, ErrorCode, Failure};
use takt_wire::ethernet::{EtherType, MacAddress};

use super::host::{Host, Unserved};
use super::{Control, FOLLOW_EVERY, FOLLOW_SOONEST, RuntimeHandle, Stopped};
use crate::config::{Carrier, NetworkConfig, Station};
use crate::control::session::Finish;
use crate::counters::{NetworkCounters, NetworkReading};
use crate::ids::SessionId;
use crate::lane::Command;
use crate::lane::forward::Hop;
use crate::lane::network::{NetworkTable, Owner, Place, Routed};
use crate::policy::Policy;
use crate::status::{NetworkStatus, RouteStatus, StationStatus};

/// Stations that operators may enter.
const MOST_STATIONS: usize = 65_536;
/// Stations beyond a native network's interface that are not looked for again on this host.
const MOST_BEYOND: usize = 4096;
/// Stations that are taken from a kernel's table. Strangers may make the kernel learn more of them.
const MOST_FOLLOWED: usize = 4096;
/// Tunnel endpoints of those stations.
const MOST_ENDPOINTS: usize = 1024;
/// Stations on bridges of this host.
const MOST_LOCAL: usize = 4096;
/// Destinations behind this host as a router.
const MOST_ROUTES: usize = 4096;
/// Those of them that a tenant may have asked for.
const MOST_ROUTES_OF_A_TENANT: usize = 256;

/// How long the first look at the host's tables may keep a node from being ready.
const FIRST_WITHIN: Duration = Duration::from_secs(1);
/// Questions of a session that wait for the kernel.
const MOST_QUESTIONS: usize = 8;
/// How long they wait: then what is known is the answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// A tenant's question which station its frames are for, see [`Control::resolve`].
pub(super) struct Question {
    session: SessionId,
    request: u32,
    destination: IpAddr,
    next_hop: IpAddr,
    known: Option<[u8; 6]>,
    /// The look at the host's tables that it waits for.
    look: Option<u64>,
    until: Duration,
}

/// What is known of an answer.
enum Resolution {
    /// The station, or that there is none.
    Known(Option<[u8; 6]>),
    /// The kernel has been asked.
    Later,
}

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
    /// What that device knows beyond.
    left_out: u64,
    /// On bridges of this host, by the bridge.
    local: BTreeMap<MacAddress, u32>,
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

/// Why a station is not entered.
#[derive(Debug, thiserror::Error)]
pub enum StationError {
    /// No such network.
    #[error("there is no network `{name}` here: this node has {have}")]
    Network {
        /// As asked for.
        name: String,
        /// Those there are.
        have: String,
    },
    /// The network has another carrier.
    #[error("a station of `{0}`, a VXLAN network, is behind a tunnel endpoint: name its address")]
    NoEndpoint(String),
    /// The network has another carrier.
    #[error("`{0}` is a native network without tunnel endpoints: leave the address out")]
    Endpoint(String),
    /// Only groups of stations have such an address.
    #[error("{0} is the address of a group: enter stations, or 00:00:00:00:00:00 for the rest")]
    Group(MacAddress),
    /// The table is full.
    #[error("the network has {MOST_STATIONS} stations, its limit: remove some")]
    Full,
}

impl Network {
    pub(super) fn new(config: NetworkConfig, lanes: usize) -> Self {
        Self {
            stations: config.stations.clone(),
            config,
            followed: Vec::new(),
            left_out: 0,
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
        }
    }

    fn all(&self) -> impl Iterator<Item = &Station> {
        self.stations.iter().chain(&self.followed)
    }

    fn table(&self, lane: usize) -> NetworkTable {
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
                .map(|(mac, bridge)| (*mac, Place::Link(Some(*bridge)))),
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
            carrier: self.config.carrier,
            stations,
            others,
            ports: self.ports.clone(),
            homes: self.homes.iter().map(|(mac, port)| (*mac, *port)).collect(),
            siblings: self.siblings.clone(),
            routers: self.routers.clone(),
            counters: self.counters[lane].clone(),
        }
    }

    /// Which station frames of a tenant for an address on the link are for.
    fn resolve(
        &self,
        tenant: MacAddress,
        address: IpAddr,
        known: Option<MacAddress>,
    ) -> Option<MacAddress> {
        let told = self
            .all()
            .find(|station| station.addresses.contains(&address))
            .map(|station| station.mac);
        told.or(known)
            .filter(|mac| told.is_some() || self.reaches(tenant, *mac))
            .filter(|mac| !self.siblings.contains(mac))
    }

    /// Whether a tenant's frame for a station, or for all of a group, goes anywhere.
    fn reaches(&self, tenant: MacAddress, mac: MacAddress) -> bool {
        let native = matches!(self.config.carrier, Carrier::Native { .. });
        let entered = || self.all().any(|station| station.mac == MacAddress::ZERO);
        if mac.is_multicast() {
            // To a part of the group is not to the group.
            let beside = self.siblings.iter().any(|sibling| *sibling != tenant);
            let home = self.homes.get(&tenant);
            let neighbours = || self.ports.iter().any(|port| Some(port) != home);
            return !beside && (native || entered() || neighbours());
        }
        native
            || self.local.contains_key(&mac)
            || self.all().any(|station| station.mac == mac)
            || entered()
    }

    /// The tunnel endpoint that a station is behind.
    fn endpoint_of(&self, mac: MacAddress) -> Option<IpAddr> {
        self.all()
            .find(|station| station.mac == mac)
            .and_then(|station| station.vtep)
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

    fn say(&mut self, problem: Option<String>) {
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
        // Entries age while stations are silent, and frames for them are flooded then: they stay.
        bridges.extend(self.local.values());
        bridges.retain(|bridge| host.device(*bridge).is_some());
        let mut local = self.local.clone();
        let gone = |entry: &&BridgeEntry| host.is_tunnel(entry.port);
        for entry in entries.iter().filter(gone) {
            local.remove(&entry.mac);
        }
        local.retain(|mac, bridge| bridges.contains(bridge) && self.endpoint_of(*mac).is_none());
        for entry in entries {
            if bridges.contains(&entry.bridge)
                && !host.is_tunnel(entry.port)
                && (local.len() < MOST_LOCAL || local.contains_key(&entry.mac))
            {
                local.insert(entry.mac, entry.bridge);
            }
        }
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
}

impl RuntimeHandle {
    /// All networks.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn networks(&self) -> Result<Vec<NetworkStatus>, Stopped> {
        self.ask(|c| c.network_status())
    }

    /// Enters a station into a network, or changes what is known of the one with this MAC address. With the
    /// address zero, tunnel endpoints add up: each gets what is for groups and for unknown stations.
    ///
    /// # Errors
    /// [`Stopped`]; inside, [`StationError`]: then nothing has changed.
    pub fn set_station(
        &self,
        network: String,
        station: Station,
    ) -> Result<Result<(), StationError>, Stopped> {
        self.change(move |c| c.set_station(&network, station))
    }

    /// Takes a station out of a network; false if an operator has not entered it. With the address zero
    /// only the entry of this tunnel endpoint.
    ///
    /// # Errors
    /// [`Stopped`]; inside, [`StationError::Network`].
    pub fn remove_station(
        &self,
        network: String,
        mac: MacAddress,
        vtep: Option<IpAddr>,
    ) -> Result<Result<bool, StationError>, Stopped> {
        self.change(move |c| c.remove_station(&network, mac, vtep))
    }
}

impl Control {
    /// Tells all lanes where the stations of a network are.
    pub(super) fn publish_network(&self, at: usize) {
        for (lane, info) in self.lanes.iter().enumerate() {
            info.handle.send(Command::Network {
                network: at,
                table: self.networks[at].table(lane),
            });
        }
    }

    /// Has the host's tables looked at as soon as that is allowed again.
    pub(super) fn follow_soon(&mut self) {
        let soonest = self
            .next_follow
            .saturating_sub(FOLLOW_EVERY - FOLLOW_SOONEST);
        self.next_follow = self.next_follow.min(soonest);
        self.next_tick = self.next_tick.min(self.next_follow);
    }

    /// Has the host's tables looked at when that is due.
    pub(super) fn look_at_host(&mut self, now: Duration) {
        if self.networks.is_empty() {
            return;
        }
        if now >= self.next_follow {
            self.next_follow = now + FOLLOW_EVERY;
            if let Err(error) = self.host.begin_look() {
                self.say_unreadable(&error);
            }
        }
        self.next_tick = self.next_tick.min(self.next_follow);
    }

    /// Takes over what the kernel has answered, and answers the tenants that waited for it.
    pub(super) fn take_host(&mut self) {
        self.take_host_within(Duration::ZERO);
    }

    /// Who uses the node as soon as it is ready finds its networks known, unless the kernel is slow to answer.
    pub(super) fn take_first_of_host(&mut self) {
        self.look_at_host(self.now());
        self.take_host_within(FIRST_WITHIN);
    }

    fn take_host_within(&mut self, within: Duration) {
        match self.host.take_seen(within) {
            Some(Ok(())) => self.follow_networks(),
            Some(Err(error)) => self.say_unreadable(&error),
            None => {}
        }
        self.answer_questions();
    }

    fn say_unreadable(&mut self, error: &str) {
        for network in &mut self.networks {
            network.say(Some(format!("cannot read the host's tables: {error}")));
        }
    }

    /// Takes over what the host's devices and tables say now.
    fn follow_networks(&mut self) {
        let endpoints = || {
            let listeners = self.listeners.values();
            listeners.filter_map(|listener| listener.policy.endpoint.as_ref())
        };
        self.host.keep_arrivals(|address| {
            let mut addresses = endpoints().flat_map(|endpoint| &endpoint.addresses);
            addresses.any(|(own, _)| own == address)
        });
        for at in 0..self.networks.len() {
            let name = &self.networks[at].config.name;
            let endpoints: Vec<MacAddress> = self
                .listeners
                .values()
                .filter_map(|listener| listener.policy.endpoint.as_ref())
                .filter(|endpoint| endpoint.network == *name)
                .map(|endpoint| MacAddress(endpoint.mac))
                .collect();
            if self.networks[at].follow(&self.host, &endpoints) {
                self.publish_network(at);
            }
            for (destination, routed) in self.networks[at].reroute(&self.host) {
                self.publish_route(at, destination, routed);
            }
        }
    }

    /// Tells all lanes the way to a destination behind this host.
    fn publish_route(&self, network: usize, destination: IpAddr, routed: Option<Routed>) {
        for lane in &self.lanes {
            lane.handle.send(Command::Route {
                network,
                destination,
                routed,
            });
        }
    }

    /// The number of a network.
    pub(super) fn network(&self, name: &str) -> Result<usize, StationError> {
        let mut networks = self.networks.iter();
        networks.position(|n| n.config.name == name).ok_or_else(|| {
            let have: Vec<&str> = self.networks.iter().map(|n| &*n.config.name).collect();
            StationError::Network {
                name: name.into(),
                have: match have.is_empty() {
                    true => "none: add a [[network]] to its configuration".into(),
                    false => have.join(", "),
                },
            }
        })
    }

    fn set_station(&mut self, network: &str, station: Station) -> Result<(), StationError> {
        let at = self.network(network)?;
        let network = &mut self.networks[at];
        let name = || network.config.name.clone();
        match network.config.carrier {
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
        match network.stations.iter().position(same) {
            Some(known) => network.stations[known] = station,
            None if network.stations.len() >= MOST_STATIONS => return Err(StationError::Full),
            None => network.stations.push(station),
        }
        self.publish_network(at);
        Ok(())
    }

    fn remove_station(
        &mut self,
        network: &str,
        mac: MacAddress,
        vtep: Option<IpAddr>,
    ) -> Result<bool, StationError> {
        let at = self.network(network)?;
        let stations = &mut self.networks[at].stations;
        let before = stations.len();
        stations.retain(|s| s.mac != mac || (vtep.is_some() && s.vtep != vtep));
        let removed = stations.len() < before;
        if removed {
            self.publish_network(at);
        }
        Ok(removed)
    }

    /// A tenant's endpoint, and the number of its network.
    fn endpoint<'p>(&self, policy: &'p Policy) -> Result<(&'p Endpoint, usize), Failure> {
        let endpoint = policy.check_endpoint()?;
        let network = self
            .network(&endpoint.network)
            .map_err(|error| Failure::new(ErrorCode::NotFound, error.to_string()))?;
        Ok((endpoint, network))
    }

    /// A tenant's endpoint, and what its frames must come from.
    pub(super) fn owner(&self, policy: &Policy) -> Result<(Endpoint, Owner), Failure> {
        let (endpoint, network) = self.endpoint(policy)?;
        let owner = Owner {
            network,
            mac: MacAddress(endpoint.mac),
            addresses: endpoint
                .addresses
                .iter()
                .map(|(address, _)| *address)
                .collect(),
            mtu: endpoint.mtu.into(),
            ether_types: policy.ether_types.iter().copied().map(EtherType).collect(),
            vlans: endpoint.vlans.clone(),
            classes: policy.classes,
        };
        Ok((endpoint.clone(), owner))
    }

    /// Which station a tenant's frames are for whose packets have this destination and, on the link, this next
    /// hop. `known`: what the tenant knows of that. No answer: it comes when the kernel has told more.
    pub(super) fn resolve(
        &mut self,
        session: SessionId,
        request: u32,
        destination: IpAddr,
        next_hop: IpAddr,
        known: Option<[u8; 6]>,
    ) -> Result<Option<Reply>, Failure> {
        let mut question = Question {
            session,
            request,
            destination,
            next_hop,
            known,
            look: None,
            until: self.now() + ANSWER_WITHIN,
        };
        if let Resolution::Known(found) = self.consider(&mut question)? {
            return Ok(Some(Reply::Resolved(found)));
        }
        let mut others = self.questions.iter();
        let waiting = others.by_ref().filter(|other| other.session == session);
        if waiting.count() >= MOST_QUESTIONS {
            return Err(Failure::new(
                ErrorCode::Limit,
                format!(
                    "{MOST_QUESTIONS} questions of this session wait for the kernel, its limit: ask again when they are answered"
                ),
            ));
        }
        self.next_tick = self.next_tick.min(question.until);
        self.questions.push(question);
        Ok(None)
    }

    /// Answers the questions that the kernel has told enough for, and those that have waited for too long.
    fn answer_questions(&mut self) {
        for mut question in std::mem::take(&mut self.questions) {
            let (id, request) = (question.session, question.request);
            match self.sessions.get(&id) {
                Some(session) if !session.ending && session.finish == Finish::No => {}
                _ => continue,
            }
            let reply = match self.consider(&mut question) {
                Ok(Resolution::Later) => {
                    self.next_tick = self.next_tick.min(question.until);
                    self.questions.push(question);
                    continue;
                }
                Ok(Resolution::Known(found)) => Reply::Resolved(found),
                Err(failure) => Reply::Failed(failure),
            };
            if let Err(failure) = self.reply(id, request, reply, &[]) {
                self.end_session(id, Some(failure));
            }
        }
    }

    fn consider(&mut self, question: &mut Question) -> Result<Resolution, Failure> {
        let Some(session) = self.sessions.get(&question.session) else {
            return Err(ErrorCode::Closed.into());
        };
        let policy = session.policy.clone();
        let (endpoint, at) = self.endpoint(&policy)?;
        let tenant = MacAddress(endpoint.mac);
        let (destination, next_hop) = (question.destination, question.next_hop);
        let known = question.known.map(MacAddress);
        let in_time = self.now() < question.until;
        if let Some(mac) = known
            && self.networks[at].resolve(tenant, next_hop, None).is_none()
            && self.host.devices.iter().any(|d| d.mac == Some(mac))
        {
            // This host is asked to forward. What is for itself is its kernel's.
            let forwarded = match destination == next_hop {
                true => Some(false),
                false => self.forward(&policy, at, destination, mac),
            };
            return Ok(match forwarded {
                None if in_time => Resolution::Later,
                forwarded => Resolution::Known((forwarded == Some(true)).then_some(mac.0)),
            });
        }
        let unseen = known.is_some_and(|mac| {
            let network = &self.networks[at];
            !mac.is_multicast()
                && !network.beyond.contains(&mac)
                && network.endpoint_of(mac).is_none()
                && !network.local.contains_key(&mac)
        });
        // It may have come since the tables were looked at last: as a rule it has just been resolved.
        if unseen && in_time {
            let look = *question.look.get_or_insert(self.host.next_look());
            if self.host.looks() < look {
                self.follow_soon();
                return Ok(Resolution::Later);
            }
        }
        let network = &mut self.networks[at];
        let found = network.resolve(tenant, next_hop, known);
        if let (Some(mac), Carrier::Native { .. }) = (found, network.config.carrier) {
            note_beyond(&mut network.beyond, mac);
        }
        Ok(Resolution::Known(found.map(|mac| mac.0)))
    }

    /// Follows the way that this host forwards a tenant's packets to a destination. Whether it is served now;
    /// `None` while the kernel is asked.
    fn forward(
        &mut self,
        policy: &Policy,
        at: usize,
        destination: IpAddr,
        router: MacAddress,
    ) -> Option<bool> {
        self.asked += 1;
        let asked = self.asked;
        let Network {
            routes, routers, ..
        } = &mut self.networks[at];
        match routes.get_mut(&destination) {
            Some(route) if routers.contains(&router) => route.asked = asked,
            _ => {
                if !self.begin_forwarding(policy, at, destination, router)? {
                    return Some(false);
                }
            }
        }
        if let Some(change) = self.networks[at].reroute_one(&self.host, destination) {
            self.publish_route(at, destination, change);
        }
        match &self.networks[at].routes.get(&destination)?.published {
            Err(Unserved::Asked) => None,
            published => Some(published.is_ok()),
        }
    }

    /// Begins to follow it. False: this host does not forward for the tenant. `None` while the kernel is asked.
    fn begin_forwarding(
        &mut self,
        policy: &Policy,
        at: usize,
        destination: IpAddr,
        router: MacAddress,
    ) -> Option<bool> {
        let addresses = policy.endpoint.iter().flat_map(|e| &e.addresses);
        let source = addresses
            .map(|(address, _)| *address)
            .find(|address| address.is_ipv4() == destination.is_ipv4());
        let Some(source) = source else {
            return Some(false);
        };
        let Some(arrival) = self.host.arrival(source)? else {
            return Some(false);
        };
        if self.host.device(arrival).and_then(|device| device.mac) != Some(router) {
            return Some(false);
        }
        let way = match self.host.follow_forwarded(destination, source, arrival) {
            Ok(way) => way,
            Err(error) => {
                tracing::warn!(%destination, %error, "cannot follow a route");
                return Some(false);
            }
        };
        let network = &mut self.networks[at];
        let evicted = network.make_room(&policy.identity);
        let new_router = !network.routers.contains(&router);
        if new_router {
            network.routers.push(router);
        }
        let route = Route {
            way,
            tenant: policy.identity.clone(),
            asked: self.asked,
            published: Err(Unserved::Asked),
        };
        let replaced = network.routes.insert(destination, route).is_some();
        if new_router {
            self.publish_network(at);
        }
        for gone in evicted.into_iter().chain(replaced.then_some(destination)) {
            self.publish_route(at, gone, None);
        }
        Some(true)
    }

    fn network_status(&self) -> Vec<NetworkStatus> {
        let status = |network: &Network| {
            let mut counters = NetworkReading::default();
            for lane in &network.counters {
                counters += lane.read();
            }
            let entered = network.stations.iter().map(|s| (s, false));
            let here: Vec<Station> = network
                .local
                .keys()
                .map(|mac| Station {
                    mac: *mac,
                    vtep: None,
                    addresses: Vec::new(),
                })
                .collect();
            let followed = network.followed.iter().chain(&here).map(|s| (s, true));
            let mut routes: Vec<RouteStatus> = network
                .routes
                .iter()
                .map(|(destination, route)| RouteStatus {
                    destination: *destination,
                    via: match &route.published {
                        Ok(routed) => Ok(match routed.place {
                            Place::Tunnel(vtep) => vtep.to_string(),
                            Place::Link(interface) => {
                                interface.map_or_else(String::new, |i| self.host.name(i))
                            }
                        }),
                        Err(why) => Err(why.to_string()),
                    },
                    next_hop: route.published.as_ref().ok().map(|r| r.hop.destination),
                })
                .collect();
            routes.sort_unstable_by_key(|route| route.destination);
            let endpoints = self.listeners.values();
            let endpoints = endpoints.filter_map(|listener| listener.policy.endpoint.as_ref());
            NetworkStatus {
                name: network.config.name.clone(),
                carrier: network.config.carrier,
                follow: network.config.follow.clone(),
                interface: network.config.interface.clone(),
                left_out: network.left_out,
                routes,
                problem: network.problem.clone(),
                endpoints: endpoints
                    .filter(|endpoint| endpoint.network == network.config.name)
                    .count(),
                stations: entered
                    .chain(followed)
                    .map(|(station, followed)| StationStatus {
                        station: station.clone(),
                        followed,
                    })
                    .collect(),
                counters,
            }
        };
        self.networks.iter().map(status).collect()
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
        let table = network.table(0);
        let place = |mac, vtep| {
            let Station { mac, vtep, .. } = station(mac, vtep);
            (mac, Place::Tunnel(vtep.expect("an endpoint")))
        };
        assert_eq!(table.stations, [place(1, 1), place(2, 2), place(3, 3)]);
        assert_eq!(table.others, [place(0, 8).1, place(0, 9).1]);
    }
}
