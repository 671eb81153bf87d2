//! Which remote lanes there are and what they want, turned into commands for this node's lanes.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use takt_wire::channel::Protection;

use super::{LaneInfo, PortInfo};
use crate::ids::RemoteId;
use crate::lane::{Command, LaneKeys, RemoteEndpoint, Standing};
use crate::peering::Change;
use crate::peering::association::{KeyChange, LaneSecrets};
use crate::peering::message::{Endpoint, LaneAnnouncement, Outage, SourceProgress, Subscription};

/// Commands, each with the index of its lane.
pub(super) type Commands = Vec<(usize, Command)>;

/// Remote lanes by their peers, and lanes of this node as each other's remotes.
pub struct Routes {
    /// The node's own label.
    label: u32,
    protection: Protection,
    next_id: u64,
    peers: HashMap<SocketAddr, PeerRoutes>,
    /// Per channel: how many lanes of each peer want it.
    wanted_by: HashMap<u64, BTreeMap<SocketAddr, u32>>,
    /// Remote numbers of this node's own lanes, as the others know them.
    siblings: Vec<RemoteId>,
    /// Peers whose ways are asked for: which one has an answer.
    answered: (Sender<SocketAddr>, Receiver<SocketAddr>),
    /// Wakes the control thread.
    wake: Arc<OwnedFd>,
    /// Peers that nothing is sent to before the ways there are known.
    unknown: HashMap<SocketAddr, Unknown>,
    /// Peers that have said goodbye, and may still have datagrams on their way.
    leaving: HashMap<SocketAddr, Leaving>,
}

/// How long the last datagrams of a peer that has said goodbye are taken: that has come by the kernel's socket, and what
/// comes by another technology may be behind it.
const LAST_DATAGRAMS: Duration = Duration::from_secs(1);
/// Subscriptions that a lane is told of at a time: it carries out each command in one go.
const MOST_CHANGES: usize = 128;
/// Commands that a lane has not carried out while further subscriptions are taken; and changes of a peer that wait until the ways to it
/// are known.
const MOST_BEHIND: u64 = 128;
/// Peers whose last datagrams are waited for, at most.
const MOST_LEAVING: usize = 256;

/// The lanes of a peer that has said goodbye.
struct Leaving {
    until: Duration,
    lanes: Vec<(RemoteId, u32)>,
}

/// How long nothing is sent to a peer because the kernel's tables do not answer. From then on ports without an
/// answer are left out until it comes.
const PATIENCE: Duration = Duration::from_secs(3);

/// What waits until the ways to a peer are known.
struct Unknown {
    /// Until when at most.
    until: Duration,
    /// By lane of the peer and lane of this node: the way from each port.
    ways: Vec<(RemoteId, usize, Vec<Option<RemoteEndpoint>>)>,
    /// What the peer has wanted since, and wants no more.
    wishes: Vec<(Vec<Subscription>, Vec<Subscription>)>,
}

impl Unknown {
    fn is_over(&self, now: Duration) -> bool {
        let endpoints = self.ways.iter().flat_map(|(.., endpoints)| endpoints);
        let mut ways = endpoints.flatten().filter_map(|end| end.way.as_ref());
        now >= self.until || ways.all(|way| way.is_known())
    }
}

/// What is known of a peer.
#[derive(Default)]
struct PeerRoutes {
    /// Its lanes: our number of each, and the one that its datagrams carry.
    lanes: Vec<(RemoteId, u32)>,
    /// As it has announced them.
    announced: Vec<LaneAnnouncement>,
    /// Secrets that its lanes may use, and those that ours send under.
    secrets: Vec<Arc<LaneSecrets>>,
    sending: Option<u8>,
}

impl Routes {
    /// For a node with this label, whose datagrams to other nodes are protected so.
    pub fn new(label: u32, protection: Protection, wake: Arc<OwnedFd>) -> Self {
        Self {
            label,
            protection,
            next_id: 0,
            peers: HashMap::new(),
            wanted_by: HashMap::new(),
            siblings: Vec::new(),
            answered: channel(),
            wake,
            unknown: HashMap::new(),
            leaving: HashMap::new(),
        }
    }

    fn number(&mut self) -> RemoteId {
        self.next_id += 1;
        RemoteId(self.next_id)
    }

    /// Makes this node's lanes known to each other. `mesh` are their addresses between lanes.
    pub fn connect_lanes(&mut self, lanes: &[LaneInfo], mesh: &[SocketAddr]) -> Commands {
        let mut commands = Vec::new();
        for (index, lane) in lanes.iter().enumerate() {
            let id = self.number();
            self.siblings.push(id);
            let others = lanes.iter().enumerate();
            for (other, info) in others.filter(|(other, _)| *other != index) {
                let endpoints = info
                    .ports
                    .iter()
                    .map(|port| {
                        port.between_lanes
                            .then(|| mesh.get(index).copied())
                            .flatten()
                    })
                    .collect();
                commands.push((
                    other,
                    Command::AddRemote {
                        id,
                        incarnation: lane.announcement.incarnation,
                        label: self.label,
                        protection: Protection::None,
                        addresses: Vec::new(),
                        endpoints,
                        takes: Vec::new(),
                    },
                ));
            }
        }
        commands
    }

    /// A lane of this node wants a channel, or no more: tells the others.
    pub fn want(&mut self, entry: Subscription, wanted: bool) -> Commands {
        let index = usize::from(entry.lane);
        let Some(&remote) = self.siblings.get(index) else {
            return Vec::new();
        };
        let others = (0..self.siblings.len()).filter(|&other| other != index);
        others
            .map(|other| {
                let (mut add, mut remove) = (Vec::new(), Vec::new());
                if wanted { &mut add } else { &mut remove }.push(entry.channel);
                (
                    other,
                    Command::Subscriptions {
                        remote,
                        add,
                        remove,
                    },
                )
            })
            .collect()
    }

    /// Whether no more of a peer's subscriptions are taken for now: a lane is behind with what it was told, or so much waits until the
    /// ways to the peer are known.
    pub fn are_behind(&self, peer: SocketAddr, lanes: &[LaneInfo]) -> bool {
        let waits = self.unknown.get(&peer).map_or(0, |u| u.wishes.len());
        waits as u64 >= MOST_BEHIND || lanes.iter().any(|l| l.handle.behind() >= MOST_BEHIND)
    }

    /// Commands that bring the lanes up to date with what a peer has announced.
    pub fn change(&mut self, change: Change, lanes: &[LaneInfo], now: Duration) -> Commands {
        match change {
            Change::Lanes {
                peer,
                label,
                lanes: announced,
            } => {
                let mut commands = self.add_lanes(peer, label, &announced, lanes);
                commands.extend(self.ask(peer, &announced, lanes, now));
                commands
            }
            Change::Gone { peer, clean } => {
                let Some(routes) = self.peers.get_mut(&peer) else {
                    return Vec::new();
                };
                self.unknown.remove(&peer);
                let gone = std::mem::take(&mut routes.lanes);
                self.want_nothing(peer);
                if clean {
                    self.leave(peer, gone, lanes, now)
                } else {
                    removed(&gone, false, lanes)
                }
            }
            Change::Subscriptions { peer, add, remove } => {
                if let Some(unknown) = self.unknown.get_mut(&peer) {
                    unknown.wishes.push((add, remove));
                    return Vec::new();
                }
                self.subscriptions(peer, &add, &remove, lanes)
            }
            Change::Back { peer, wanted } => {
                if let Some(unknown) = self.unknown.get_mut(&peer) {
                    unknown.wishes.push((wanted, Vec::new()));
                    return Vec::new();
                }
                let changed = self.count(peer, &wanted, &[]);
                let remotes = self
                    .peers
                    .get(&peer)
                    .map_or(&[][..], |routes| &routes.lanes);
                each(lanes, changed.iter(), |_, (&lane, (channels, _))| {
                    Command::WantAgain {
                        remote: remotes[usize::from(lane)].0,
                        channels: channels.clone(),
                    }
                })
            }
            Change::Silent { peer } => {
                self.want_nothing(peer);
                if let Some(unknown) = self.unknown.get_mut(&peer) {
                    // The lanes have not been told.
                    unknown.wishes.clear();
                    return Vec::new();
                }
                let routes = self.peers.get(&peer);
                let remotes = routes.map_or(&[][..], |routes| &routes.lanes);
                each(lanes, remotes.iter(), |_, &(remote, _)| {
                    Command::WantNothing { remote }
                })
            }
            Change::Failed { peer, datapaths } => self.standings(peer, &datapaths, lanes),
            Change::Progress { peer, sources } => self.progress(peer, &sources, lanes),
            Change::Keys { peer, change } => self.keys(peer, change, lanes),
        }
    }

    /// No channel is wanted by a peer any more.
    fn want_nothing(&mut self, peer: SocketAddr) {
        self.wanted_by.retain(|_, peers| {
            peers.remove(&peer);
            !peers.is_empty()
        });
    }

    /// No more messages are sent to lanes of a peer that has said goodbye, and what they have sent is still taken for a while.
    fn leave(
        &mut self,
        peer: SocketAddr,
        gone: Vec<(RemoteId, u32)>,
        lanes: &[LaneInfo],
        now: Duration,
    ) -> Commands {
        let before = self.leaving.remove(&peer);
        let mut commands =
            before.map_or_else(Vec::new, |before| removed(&before.lanes, true, lanes));
        if self.leaving.len() >= MOST_LEAVING {
            commands.extend(removed(&gone, true, lanes));
            return commands;
        }
        commands.extend(each(lanes, gone.iter(), |_, &(id, _)| {
            Command::LeaveRemote { id }
        }));
        let until = now + LAST_DATAGRAMS;
        self.leaving.insert(peer, Leaving { until, lanes: gone });
        commands
    }

    fn add_lanes(
        &mut self,
        peer: SocketAddr,
        label: u32,
        announced: &[LaneAnnouncement],
        lanes: &[LaneInfo],
    ) -> Commands {
        let mut commands = Vec::new();
        let mut added = Vec::new();
        for remote in announced {
            let id = self.number();
            let incarnation = remote.incarnation;
            added.push((id, incarnation));
            let own = remote.endpoints.iter().filter_map(|e| e.address);
            let mut addresses = vec![peer.ip()];
            addresses.extend(own);
            for (lane, info) in lanes.iter().enumerate() {
                let ports = info.ports.iter();
                let (endpoints, takes) = ports
                    .map(|port| match endpoint(port, remote) {
                        Some(endpoint) => {
                            let address = port.resolver.is_none().then(|| at(endpoint, peer));
                            (address, usize::from(endpoint.takes))
                        }
                        None => (None, 0),
                    })
                    .unzip();
                commands.push((
                    lane,
                    Command::AddRemote {
                        id,
                        incarnation,
                        label,
                        protection: self.protection,
                        addresses: addresses.clone(),
                        endpoints,
                        takes,
                    },
                ));
            }
        }
        let routes = self.peers.entry(peer).or_default();
        routes.lanes = added;
        routes.announced = announced.to_vec();
        for secrets in &routes.secrets {
            commands.extend(routes.accept(secrets, lanes));
        }
        commands.extend(routes.send(lanes));
        commands
    }

    /// Tells the lanes which of their ports lead to datapaths of a peer that have failed.
    fn standings(&self, peer: SocketAddr, failed: &[Outage], lanes: &[LaneInfo]) -> Commands {
        let Some(routes) = self.peers.get(&peer) else {
            return Vec::new();
        };
        let remotes = routes.lanes.iter().zip(&routes.announced);
        each(lanes, remotes, |lane, (&(remote, _), announced)| {
            let standing = |port: &PortInfo| {
                let end = endpoint(port, announced)?;
                failed.iter().find(|of| of.datapath == end.datapath)
            };
            let standing = |port: &PortInfo| match standing(port) {
                None => Standing::Works,
                Some(Outage { returns: true, .. }) => Standing::Returns,
                Some(_) => Standing::Failed,
            };
            Command::Standing {
                remote,
                ports: lane.ports.iter().map(standing).collect(),
            }
        })
    }

    /// Asks for the ways to a peer's lanes. They are sent to when the answers are there: a lane waits for nothing.
    fn ask(
        &mut self,
        peer: SocketAddr,
        announced: &[LaneAnnouncement],
        lanes: &[LaneInfo],
        now: Duration,
    ) -> Commands {
        let Some(routes) = self.peers.get(&peer) else {
            return Vec::new();
        };
        let (sender, wake) = (&self.answered.0, &self.wake);
        let way = |port: &PortInfo, remote: &LaneAnnouncement| {
            let resolver = port.resolver.as_ref()?;
            let address = at(endpoint(port, remote)?, peer);
            let (sender, wake) = (sender.clone(), wake.clone());
            let answered = move || {
                // Without a control thread nobody wants to know.
                let _ = sender.send(peer);
                let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
            };
            let way = resolver.resolve(address, Box::new(answered));
            Some(RemoteEndpoint { address, way })
        };
        let mut ways = Vec::new();
        for (&(id, _), remote) in routes.lanes.iter().zip(announced) {
            for (lane, info) in lanes.iter().enumerate() {
                let ports = info.ports.iter();
                let endpoints: Vec<_> = ports.map(|port| way(port, remote)).collect();
                if endpoints.iter().any(Option::is_some) {
                    ways.push((id, lane, endpoints));
                }
            }
        }
        if ways.is_empty() {
            return Vec::new();
        }
        let unknown = Unknown {
            until: now + PATIENCE,
            ways,
            wishes: Vec::new(),
        };
        self.unknown.insert(peer, unknown);
        self.take_if_known(peer, lanes, now)
    }

    fn take_if_known(&mut self, peer: SocketAddr, lanes: &[LaneInfo], now: Duration) -> Commands {
        if !self.unknown.get(&peer).is_some_and(|u| u.is_over(now)) {
            return Vec::new();
        }
        let Some(unknown) = self.unknown.remove(&peer) else {
            return Vec::new();
        };
        if now >= unknown.until {
            tracing::warn!(
                %peer,
                "the kernel's routing tables have not answered within {} s: datapaths that need them are left out until they do",
                PATIENCE.as_secs()
            );
        }
        let ways = unknown.ways.into_iter();
        let mut commands: Commands = ways
            .map(|(remote, lane, endpoints)| (lane, Command::Reach { remote, endpoints }))
            .collect();
        for (add, remove) in unknown.wishes {
            commands.extend(self.subscriptions(peer, &add, &remove, lanes));
        }
        commands
    }

    /// Commands for peers whose ways have become known, or which are not waited for any longer.
    pub fn take_known(&mut self, lanes: &[LaneInfo], now: Duration) -> Commands {
        let mut commands = Vec::new();
        while let Ok(peer) = self.answered.1.try_recv() {
            commands.extend(self.take_if_known(peer, lanes, now));
        }
        if self.overdue().is_some_and(|overdue| now >= overdue) {
            let all: Vec<SocketAddr> = self.unknown.keys().copied().collect();
            for peer in all {
                commands.extend(self.take_if_known(peer, lanes, now));
            }
            let over = self.leaving.extract_if(|_, leaving| now >= leaving.until);
            for (_, leaving) in over {
                commands.extend(removed(&leaving.lanes, true, lanes));
            }
        }
        commands
    }

    /// When a peer is not waited for any longer: the way there, or its last datagrams.
    pub fn overdue(&self) -> Option<Duration> {
        let ways = self.unknown.values().map(|unknown| unknown.until);
        let last = self.leaving.values().map(|leaving| leaving.until);
        ways.chain(last).min()
    }

    /// Counts what a peer wants, and wants no more. Returns it by its lanes, as far as it has these.
    fn count(
        &mut self,
        peer: SocketAddr,
        add: &[Subscription],
        remove: &[Subscription],
    ) -> BTreeMap<u8, (Vec<u64>, Vec<u64>)> {
        let mut changed: BTreeMap<u8, (Vec<u64>, Vec<u64>)> = BTreeMap::new();
        let Some(routes) = self.peers.get(&peer) else {
            return changed;
        };
        let known = |entry: &&Subscription| usize::from(entry.lane) < routes.lanes.len();
        for entry in add.iter().filter(known) {
            changed.entry(entry.lane).or_default().0.push(entry.channel);
            let peers = self.wanted_by.entry(entry.channel).or_default();
            *peers.entry(peer).or_default() += 1;
        }
        for entry in remove.iter().filter(known) {
            changed.entry(entry.lane).or_default().1.push(entry.channel);
            if let Some(peers) = self.wanted_by.get_mut(&entry.channel)
                && let Some(count) = peers.get_mut(&peer)
            {
                *count -= 1;
                if *count == 0 {
                    peers.remove(&peer);
                }
                if peers.is_empty() {
                    self.wanted_by.remove(&entry.channel);
                }
            }
        }
        changed
    }

    fn subscriptions(
        &mut self,
        peer: SocketAddr,
        add: &[Subscription],
        remove: &[Subscription],
        lanes: &[LaneInfo],
    ) -> Commands {
        let changed = self.count(peer, add, remove);
        let Some(routes) = self.peers.get(&peer) else {
            return Vec::new();
        };
        // What is wanted no more first: it may be wanted again, from the beginning.
        let parts = changed.iter().flat_map(|(&lane, (add, remove))| {
            let remove = remove.chunks(MOST_CHANGES).map(|part| (&[][..], part));
            let add = add.chunks(MOST_CHANGES).map(|part| (part, &[][..]));
            remove
                .chain(add)
                .map(move |(add, remove)| (lane, add, remove))
        });
        each(lanes, parts, |_, (lane, add, remove)| {
            Command::Subscriptions {
                remote: routes.lanes[usize::from(lane)].0,
                add: add.to_vec(),
                remove: remove.to_vec(),
            }
        })
    }

    fn progress(
        &mut self,
        peer: SocketAddr,
        sources: &[(u8, SourceProgress)],
        lanes: &[LaneInfo],
    ) -> Commands {
        let Some(routes) = self.peers.get(&peer) else {
            return Vec::new();
        };
        let mut by_lane: BTreeMap<RemoteId, Vec<SourceProgress>> = BTreeMap::new();
        for &(lane, source) in sources {
            if let Some(&(id, _)) = routes.lanes.get(usize::from(lane)) {
                by_lane.entry(id).or_default().push(source);
            }
        }
        each(lanes, by_lane.iter(), |_, (&remote, sources)| {
            Command::Progress {
                remote,
                sources: sources.clone(),
            }
        })
    }

    fn keys(&mut self, peer: SocketAddr, change: KeyChange, lanes: &[LaneInfo]) -> Commands {
        let routes = self.peers.entry(peer).or_default();
        let commands = match change {
            KeyChange::Accept(secrets) => {
                let commands = routes.accept(&secrets, lanes);
                routes.secrets.push(secrets);
                commands
            }
            KeyChange::Send(number) => {
                routes.sending = Some(number);
                routes.send(lanes)
            }
            KeyChange::Retire(number) => {
                routes.secrets.retain(|secrets| secrets.number != number);
                routes.sending = routes.sending.filter(|&sending| sending != number);
                each(lanes, routes.lanes.iter(), |_, &(remote, _)| {
                    Command::RetireKeys { remote, number }
                })
            }
        };
        if routes.lanes.is_empty() && routes.secrets.is_empty() {
            self.peers.remove(&peer);
        }
        commands
    }

    /// Peers that want a channel.
    pub fn peers_of(&self, channel: u64) -> Vec<SocketAddr> {
        let peers = self.wanted_by.get(&channel);
        peers.map_or_else(Vec::new, |peers| peers.keys().copied().collect())
    }
}

impl PeerRoutes {
    /// Each pair of lanes has keys of its own.
    fn accept(&self, secrets: &LaneSecrets, lanes: &[LaneInfo]) -> Commands {
        each(lanes, self.lanes.iter(), |lane, &(remote, theirs)| {
            let keys = secrets.keys(lane.announcement.incarnation, theirs);
            Command::Keys {
                remote,
                keys: Box::new(LaneKeys::new(secrets.number, keys)),
            }
        })
    }

    fn send(&self, lanes: &[LaneInfo]) -> Commands {
        let Some(number) = self.sending else {
            return Vec::new();
        };
        each(lanes, self.lanes.iter(), |_, &(remote, _)| {
            Command::SendKeys { remote, number }
        })
    }
}

/// A command for each of this node's lanes and each of some things.
fn each<T: Copy>(
    lanes: &[LaneInfo],
    things: impl Iterator<Item = T>,
    command: impl Fn(&LaneInfo, T) -> Command,
) -> Commands {
    let mut commands = Vec::new();
    for thing in things {
        let all = lanes.iter().enumerate();
        commands.extend(all.map(|(at, lane)| (at, command(lane, thing))));
    }
    commands
}

/// Commands that end remote lanes.
fn removed(gone: &[(RemoteId, u32)], clean: bool, lanes: &[LaneInfo]) -> Commands {
    each(lanes, gone.iter(), |_, &(id, _)| Command::RemoveRemote {
        id,
        clean,
    })
}

/// Where a port reaches a remote lane: at its port of the same technology, else, as far as both speak UDP, at its kernel
/// socket or at any other.
fn endpoint<'a>(port: &PortInfo, remote: &'a LaneAnnouncement) -> Option<&'a Endpoint> {
    if port.between_lanes {
        return None;
    }
    let find = |name: &str| remote.endpoints.iter().find(|e| e.datapath == name);
    let same = find(port.kind.0).filter(|e| e.udp == port.speaks_udp);
    if same.is_some() || !port.speaks_udp {
        return same;
    }
    find("udp")
        .filter(|e| e.udp)
        .or_else(|| remote.endpoints.iter().find(|e| e.udp))
}

/// The address of an endpoint: the node's, unless it has one of its own.
fn at(endpoint: &Endpoint, peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(endpoint.address.unwrap_or(peer.ip()), endpoint.port)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use takt_clock::SystemTai;
    use takt_datapath::memory::{MemoryNetwork, MemoryNetworkConfig};
    use takt_datapath::{Datapath, DatapathKind, PeerHandle, Port, PortRequest};
    use takt_time::TrafficClass;

    use super::*;
    use crate::config::Limits;
    use crate::counters::LaneCounters;
    use crate::lane::tests::datagram_of;
    use crate::lane::{EventSender, Lane, LanePort};
    use crate::peering::keys::{PeerConfig, Security};
    use crate::peering::message::{Message, Page, encode};
    use crate::peering::subscriptions::{Difference, Held};
    use crate::peering::{Effects, Local, Peering};

    fn port(kind: &'static str, speaks_udp: bool) -> PortInfo {
        PortInfo {
            kind: DatapathKind(kind),
            local: SocketAddr::from(([0, 0, 0, 0], 1)),
            traffic: Arc::default(),
            departures: None,
            speaks_udp,
            between_lanes: false,
            resolver: None,
        }
    }

    fn announced(datapath: &str, port: u16, udp: bool, address: Option<[u8; 4]>) -> Endpoint {
        Endpoint {
            datapath: datapath.into(),
            port,
            takes: 9000,
            udp,
            address: address.map(Into::into),
        }
    }

    #[test]
    fn a_port_reaches_its_like_or_whoever_speaks_udp_as_it_does() {
        let peer = SocketAddr::from(([192, 0, 2, 1], 7400));
        let lane = |endpoints: Vec<Endpoint>| LaneAnnouncement {
            incarnation: 1,
            endpoints,
        };
        let reached = |port: &PortInfo, lane: &LaneAnnouncement| {
            endpoint(port, lane).map(|endpoint| at(endpoint, peer).to_string())
        };
        let [udp, xdp, dpdk] = ["udp", "xdp", "dpdk"].map(|kind| port(kind, true));
        let fabric = port("fabric", false);
        let all = lane(vec![
            announced("fabric", 4, false, None),
            announced("dpdk", 3, true, Some([10, 9, 0, 2])),
            announced("udp", 1, true, None),
        ]);
        let at = |address: &str| Some(address.to_owned());
        assert_eq!(reached(&udp, &all), at("192.0.2.1:1"));
        assert_eq!(reached(&xdp, &all), at("192.0.2.1:1"), "kernel UDP");
        assert_eq!(reached(&dpdk, &all), at("10.9.0.2:3"), "its own address");
        assert_eq!(reached(&fabric, &all), at("192.0.2.1:4"));
        let plain = lane(vec![announced("udp", 1, true, None)]);
        assert_eq!(reached(&fabric, &plain), None, "no socket of the kernel's");
        let strange = lane(vec![
            announced("fabric", 4, false, None),
            announced("xdp", 2, true, None),
        ]);
        assert_eq!(reached(&udp, &strange), at("192.0.2.1:2"));
        let other = lane(vec![announced("fabric", 4, true, None)]);
        assert_eq!(
            reached(&fabric, &other),
            None,
            "something else of that name"
        );
    }

    /// A lane that hears a peer, without sinks.
    struct Hearing {
        routes: Routes,
        lanes: [LaneInfo; 1],
        lane: Lane,
        writer: Box<dyn Port>,
        to: PeerHandle,
    }

    const PEER: &str = "192.0.2.9:7000";

    impl Hearing {
        fn new() -> Self {
            let network = MemoryNetwork::new(MemoryNetworkConfig::default());
            let binds = ["192.0.2.1:7401", "192.0.2.9:7402"];
            let [own, mut writer] = binds.map(|bind| {
                let bind = bind.parse().expect("an address");
                let (lane, lanes) = (0, 1);
                let port = network.open(&PortRequest { lane, lanes, bind });
                port.expect("a port")
            });
            let to = writer.connect(own.local()).expect("known");
            let eventfd = || {
                let flags = rustix::event::EventfdFlags::NONBLOCK;
                Arc::new(rustix::event::eventfd(0, flags).expect("an eventfd"))
            };
            let (events, _) = channel();
            let wake = eventfd();
            let events = EventSender { events, wake };
            let kind = MemoryNetwork::KIND;
            let ports = vec![LanePort::new(kind, own, false, Arc::default(), None, false)];
            let counters = Arc::<LaneCounters>::default();
            let (limits, clock) = (Limits::default(), Arc::new(SystemTai));
            let (lane, handle) =
                Lane::new(0, 1, 2, ports, &limits, clock, counters.clone(), events)
                    .expect("a lane");
            let info = LaneInfo {
                handle,
                counters,
                delays: lane.delays(),
                ports: vec![port("memory", true)],
                announcement: LaneAnnouncement {
                    incarnation: 1,
                    endpoints: Vec::new(),
                },
                sessions: 0,
            };
            Self {
                routes: Routes::new(2, Protection::None, eventfd()),
                lanes: [info],
                lane,
                writer,
                to,
            }
        }

        fn tell(&mut self, commands: Commands) {
            for (_, command) in commands {
                self.lanes[0].handle.send(command);
            }
            self.lane.poll();
        }

        fn change(&mut self, change: Change, now: Duration) {
            let commands = self.routes.change(change, &self.lanes, now);
            self.tell(commands);
        }

        fn comes(&mut self, incarnation: u32, now: Duration) {
            self.comes_as(PEER, incarnation, now);
        }

        fn comes_as(&mut self, peer: &str, incarnation: u32, now: Duration) {
            let announcement = LaneAnnouncement {
                incarnation,
                endpoints: Vec::new(),
            };
            let change = Change::Lanes {
                peer: peer.parse().expect("an address"),
                label: 3,
                lanes: vec![announcement],
            };
            self.change(change, now);
        }

        fn goes(&mut self, clean: bool, now: Duration) {
            self.goes_as(PEER, clean, now);
        }

        fn goes_as(&mut self, peer: &str, clean: bool, now: Duration) {
            let peer = peer.parse().expect("an address");
            self.change(Change::Gone { peer, clean }, now);
        }

        fn waits_until(&mut self, now: Duration) {
            let commands = self.routes.take_known(&self.lanes, now);
            self.tell(commands);
        }

        /// Whether a datagram of this incarnation is taken.
        fn hears(&mut self, incarnation: u32) -> bool {
            let before = self.lanes[0].counters.read();
            let frame = self.writer.reserve(self.to).expect("a frame");
            let datagram = datagram_of(incarnation);
            self.writer.payload(&frame)[..datagram.len()].copy_from_slice(&datagram);
            let class = TrafficClass::BEST_EFFORT;
            (self.writer).commit(frame, datagram.len(), class, None);
            assert!(self.writer.flush());
            self.lane.poll();
            let after = self.lanes[0].counters.read();
            let taken = after.rx_no_sink - before.rx_no_sink;
            let refused = after.rx_unknown_sender - before.rx_unknown_sender;
            assert_eq!(taken + refused, 1);
            taken == 1
        }
    }

    #[test]
    fn what_comes_behind_a_goodbye_is_taken_for_a_while() {
        let mut hearing = Hearing::new();
        let now = Duration::from_secs(10);
        hearing.comes(77, now);
        assert!(hearing.hears(77));
        hearing.goes(true, now);
        assert!(hearing.hears(77));
        let until = hearing.routes.overdue().expect("a time");
        hearing.waits_until(until - Duration::from_nanos(1));
        assert!(hearing.hears(77));
        hearing.waits_until(until);
        assert!(!hearing.hears(77));
        assert_eq!(hearing.routes.overdue(), None);
        // Nothing is waited for of one that fell silent.
        hearing.comes(78, now);
        hearing.goes(false, now);
        assert!(!hearing.hears(78));
    }

    #[test]
    fn a_lane_is_told_of_few_subscriptions_at_a_time_and_at_once_that_there_are_none() {
        const WANTED: u64 = 1000;
        let mut hearing = Hearing::new();
        let now = Duration::from_secs(10);
        hearing.comes(77, now);
        let peer = PEER.parse().expect("an address");
        let entries = |from| (from..from + WANTED).map(|channel| Subscription { channel, lane: 0 });
        let change = Change::Subscriptions {
            peer,
            add: entries(WANTED / 2).collect(),
            remove: entries(0).collect(),
        };
        let mut told: Vec<u64> = (0..WANTED).collect();
        for (_, command) in hearing.routes.change(change, &hearing.lanes, now) {
            let Command::Subscriptions { add, remove, .. } = command else {
                panic!("another command");
            };
            assert!(add.len() + remove.len() <= MOST_CHANGES);
            told.retain(|channel| !remove.contains(channel));
            told.extend(add);
        }
        // What is no more wanted, and wanted again.
        assert_eq!(told, Vec::from_iter(WANTED / 2..3 * WANTED / 2));
        let change = Change::Silent { peer };
        let commands = hearing.routes.change(change, &hearing.lanes, now);
        assert!(matches!(commands[..], [(0, Command::WantNothing { .. })]));
        assert!(hearing.routes.wanted_by.is_empty());
        let wanted = entries(0).collect();
        let change = Change::Back { peer, wanted };
        let commands = hearing.routes.change(change, &hearing.lanes, now);
        let [(0, Command::WantAgain { channels, .. })] = &commands[..] else {
            panic!("other commands");
        };
        assert_eq!(*channels, Vec::from_iter(0..WANTED));
        assert_eq!(hearing.routes.peers_of(0), [peer]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Whatever a peer's pages name, and however often, a lane has entered what counts as held.
        #[test]
        fn a_lane_is_told_to_enter_what_a_peer_holds_and_nothing_else(
            pages in proptest::collection::vec(
                (1u32..3, proptest::collection::vec((0u64..8, any::<bool>()), 0..12)),
                1..12,
            ),
        ) {
            let mut hearing = Hearing::new();
            let now = Duration::from_secs(10);
            hearing.comes(77, now);
            let peer = PEER.parse().expect("an address");
            let (mut held, mut entered) = (Held::default(), BTreeSet::new());
            for (stream, entries) in pages {
                let entries = entries.into_iter();
                let page = Page {
                    stream,
                    base: if stream == held.stream { held.version } else { 0 },
                    to: held.version + 1,
                    entries: entries.map(|(channel, wanted)| (Subscription { channel, lane: 0 }, wanted)).collect(),
                };
                let Some(Difference { add, remove, .. }) = held.take(page) else {
                    continue;
                };
                let change = Change::Subscriptions { peer, add, remove };
                for (_, command) in hearing.routes.change(change, &hearing.lanes, now) {
                    let Command::Subscriptions { add, remove, .. } = command else {
                        panic!("another command");
                    };
                    // As a lane does.
                    entered.extend(add);
                    remove.iter().for_each(|channel| _ = entered.remove(channel));
                }
                let wanted: BTreeSet<u64> = held.entries.iter().map(|entry| entry.channel).collect();
                prop_assert_eq!(&entered, &wanted);
                let counted: BTreeSet<u64> = hearing.routes.wanted_by.keys().copied().collect();
                prop_assert_eq!(&counted, &wanted);
            }
        }
    }

    #[test]
    fn a_peer_whose_wishes_change_faster_than_lanes_take_them_is_heard_when_they_have() {
        const PAGES: u64 = 10_000;
        let mut hearing = Hearing::new();
        let now = Duration::from_secs(10);
        let peer = PEER.parse().expect("an address");
        let announcement = LaneAnnouncement {
            incarnation: 77,
            endpoints: vec![announced("udp", 1, true, None)],
        };
        let local = Local {
            incarnation: 1,
            name: "here".into(),
            label: 2,
            lanes: vec![announcement.clone()],
        };
        let mut peering = Peering::new(local, Security::none(), Vec::new());
        peering.add(PeerConfig::from(peer), now, &mut Effects::default());
        // Whether it was acknowledged.
        let mut tell = |hearing: &mut Hearing, message: &Message| {
            let mut effects = Effects::default();
            peering.set_behind(hearing.routes.are_behind(peer, &hearing.lanes));
            peering.receive(peer, &encode(9, message), now, &mut effects);
            for change in effects.changes {
                for (_, command) in hearing.routes.change(change, &hearing.lanes, now) {
                    hearing.lanes[0].handle.send(command);
                }
            }
            let too_many = peering.counters().too_many;
            (!effects.datagrams.is_empty(), too_many)
        };
        let hello = Message::Hello {
            name: "there".into(),
            seen: 1,
            stream: 0,
            holds: 0,
            label: 3,
            lanes: vec![announcement],
            failed: Vec::new(),
        };
        tell(&mut hearing, &hello);
        let page = |base: u64| {
            let entry = |channel| Subscription { channel, lane: 0 };
            let entries = (0..100).map(|channel| (entry(channel), base.is_multiple_of(2)));
            Message::Subscriptions(Page {
                stream: 1,
                base,
                to: base + 1,
                entries: entries.collect(),
            })
        };
        let (mut version, mut refused) = (0, 0);
        for _ in 0..PAGES {
            match tell(&mut hearing, &page(version)) {
                (true, _) => version += 1,
                (false, too_many) => refused = too_many,
            }
            assert!(hearing.lanes[0].handle.behind() <= MOST_BEHIND);
        }
        assert!(version < PAGES && version + refused == PAGES);
        while hearing.lanes[0].handle.behind() > 0 {
            hearing.lane.poll();
        }
        assert!(tell(&mut hearing, &page(version)).0);
    }

    #[test]
    fn a_peer_that_is_back_before_its_last_datagrams_are_there_stays() {
        let mut hearing = Hearing::new();
        let now = Duration::from_secs(10);
        hearing.comes(77, now);
        hearing.goes(true, now);
        // As the same, or started again.
        hearing.comes(77, now);
        let until = hearing.routes.overdue().expect("a time");
        hearing.waits_until(until);
        assert!(hearing.hears(77));
        hearing.goes(true, until);
        hearing.comes(78, until);
        assert!(hearing.hears(77) && hearing.hears(78));
        // One farewell of a peer at a time.
        hearing.goes(true, until);
        assert!(!hearing.hears(77) && hearing.hears(78));
    }

    #[test]
    fn who_says_that_it_is_another_and_goodbye_takes_nothing_from_that_one() {
        const OTHER: &str = "192.0.2.8:7000";
        let mut hearing = Hearing::new();
        let now = Duration::from_secs(10);
        hearing.comes(77, now);
        for clean in [false, true] {
            hearing.comes_as(OTHER, 77, now);
            hearing.goes_as(OTHER, clean, now);
            if let Some(until) = hearing.routes.overdue() {
                hearing.waits_until(until);
            }
            assert!(hearing.hears(77));
        }
    }

    #[test]
    fn so_many_that_leave_at_once_are_waited_for_and_no_more() {
        let mut hearing = Hearing::new();
        let now = Duration::from_secs(10);
        for at in 0..2 * MOST_LEAVING {
            let peer = SocketAddr::from(([192, 0, 2, 9], 1000 + at as u16));
            let announcement = LaneAnnouncement {
                incarnation: 1000 + at as u32,
                endpoints: Vec::new(),
            };
            let lanes = vec![announcement];
            let label = 3;
            hearing.change(Change::Lanes { peer, label, lanes }, now);
            hearing.change(Change::Gone { peer, clean: true }, now);
        }
        let heard = (0..2 * MOST_LEAVING).filter(|at| hearing.hears(1000 + *at as u32));
        assert_eq!(heard.count(), MOST_LEAVING);
    }
}
