//! Which remote lanes there are and what they want, turned into commands for this node's lanes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use super::LaneInfo;
use crate::lane::Command;
use crate::peering::Change;
use crate::peering::message::{LaneAnnouncement, Subscription};

/// Remote lanes by their peers, and lanes of this node as each other's remotes.
#[derive(Default)]
pub struct Routes {
    next_id: u64,
    peers: HashMap<SocketAddr, PeerRoutes>,
    /// Remote numbers of this node's own lanes, as the others know them.
    siblings: Vec<u64>,
    /// What each own lane wants, as last told to its siblings.
    wanted: Vec<BTreeSet<u64>>,
}

struct PeerRoutes {
    /// A number per remote lane.
    lanes: Vec<u64>,
    wants: BTreeMap<u64, BTreeSet<u16>>,
}

impl Routes {
    fn number(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Makes this node's lanes known to each other. `mesh` are their addresses between lanes.
    pub fn connect_lanes(
        &mut self,
        lanes: &[LaneInfo],
        mesh: &[SocketAddr],
    ) -> Vec<(usize, Command)> {
        let mut commands = Vec::new();
        for lane in lanes {
            let id = self.number();
            self.siblings.push(id);
            self.wanted.push(BTreeSet::new());
            let index = self.siblings.len() - 1;
            for (other, info) in lanes
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != index)
            {
                let endpoints = info
                    .ports
                    .iter()
                    .map(|port| {
                        port.between_lanes
                            .then(|| mesh.get(index).copied())
                            .flatten()
                    })
                    .collect();
                let incarnation = lane.announcement.incarnation;
                commands.push((
                    other,
                    Command::AddRemote {
                        id,
                        incarnation,
                        label: lane.announcement.label,
                        address: None,
                        endpoints,
                    },
                ));
            }
        }
        commands
    }

    /// This node's wishes have changed: tells the sibling lanes.
    pub fn subscribe(
        &mut self,
        wanted: &BTreeSet<Subscription>,
        lanes: usize,
    ) -> Vec<(usize, Command)> {
        let mut commands = Vec::new();
        for (index, &remote) in self.siblings.iter().enumerate() {
            let now: BTreeSet<u64> = wanted
                .iter()
                .filter(|s| usize::from(s.lane) == index)
                .map(|s| s.channel)
                .collect();
            if self.wanted[index] == now {
                continue;
            }
            for other in (0..lanes).filter(|&other| other != index) {
                commands.push((other, difference(remote, &self.wanted[index], &now)));
            }
            self.wanted[index] = now;
        }
        commands
    }

    /// Commands that bring the lanes up to date with what a peer has announced.
    pub fn change(&mut self, change: &Change, lanes: &[LaneInfo]) -> Vec<(usize, Command)> {
        match change {
            Change::Lanes {
                peer,
                lanes: announced,
            } => self.peer_lanes(*peer, announced, lanes),
            Change::Subscriptions { peer, entries } => {
                let Some(routes) = self.peers.get_mut(peer) else {
                    return Vec::new();
                };
                let before = std::mem::take(&mut routes.wants);
                for entry in entries {
                    routes
                        .wants
                        .entry(entry.channel)
                        .or_default()
                        .insert(entry.lane);
                }
                let mut commands = Vec::new();
                for (index, &remote) in routes.lanes.iter().enumerate() {
                    let of_lane = |wants: &BTreeMap<u64, BTreeSet<u16>>| -> BTreeSet<u64> {
                        let lane = index as u16;
                        let wanted = wants.iter().filter(|(_, lanes)| lanes.contains(&lane));
                        wanted.map(|(channel, _)| *channel).collect()
                    };
                    let (old, new) = (of_lane(&before), of_lane(&routes.wants));
                    for lane in 0..lanes.len() {
                        commands.push((lane, difference(remote, &old, &new)));
                    }
                }
                commands
            }
        }
    }

    fn peer_lanes(
        &mut self,
        peer: SocketAddr,
        announced: &[LaneAnnouncement],
        lanes: &[LaneInfo],
    ) -> Vec<(usize, Command)> {
        let mut commands = Vec::new();
        if let Some(old) = self.peers.remove(&peer) {
            for id in old.lanes {
                commands.extend((0..lanes.len()).map(|lane| (lane, Command::RemoveRemote(id))));
            }
        }
        if announced.is_empty() {
            return commands;
        }
        let mut ids = Vec::new();
        for remote in announced {
            let id = self.number();
            ids.push(id);
            for (lane, info) in lanes.iter().enumerate() {
                let endpoints = info
                    .ports
                    .iter()
                    .map(|port| endpoint(port.kind.0, port.between_lanes, peer, remote))
                    .collect();
                let (incarnation, address) = (remote.incarnation, Some(peer.ip()));
                commands.push((
                    lane,
                    Command::AddRemote {
                        id,
                        incarnation,
                        label: remote.label,
                        address,
                        endpoints,
                    },
                ));
            }
        }
        self.peers.insert(
            peer,
            PeerRoutes {
                lanes: ids,
                wants: BTreeMap::new(),
            },
        );
        commands
    }

    /// Peers that want a channel.
    pub fn peers_of(&self, channel: u64) -> Vec<SocketAddr> {
        let mut peers: Vec<SocketAddr> = self
            .peers
            .iter()
            .filter(|(_, routes)| routes.wants.contains_key(&channel))
            .map(|(peer, _)| *peer)
            .collect();
        peers.sort_unstable();
        peers
    }
}

/// Tells a lane what has changed in the wishes of a remote one.
fn difference(remote: u64, old: &BTreeSet<u64>, new: &BTreeSet<u64>) -> Command {
    Command::Subscriptions {
        remote,
        add: new.difference(old).copied().collect(),
        remove: old.difference(new).copied().collect(),
    }
}

/// Where a port of technology `kind` reaches a remote lane: at its port of the same technology, else at
/// its kernel socket, else at any: all of them speak UDP.
fn endpoint(
    kind: &str,
    between_lanes: bool,
    peer: SocketAddr,
    remote: &LaneAnnouncement,
) -> Option<SocketAddr> {
    if between_lanes {
        return None;
    }
    let find = |name: &str| remote.endpoints.iter().find(|e| e.datapath == name);
    let endpoint = find(kind)
        .or_else(|| find("udp"))
        .or_else(|| remote.endpoints.first())?;
    Some(SocketAddr::new(peer.ip(), endpoint.port))
}
