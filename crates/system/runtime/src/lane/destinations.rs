//! How remote lanes and the stations of networks come and go in a lane's tables, and what is sent to whom.

use std::collections::HashSet;
use std::sync::Arc;

use takt_datapath::PeerHandle;
use takt_session::layout::Outcome;

use super::Lane;
use super::commands::MOST_LEFT;
use super::departure::{Destination, Piece};
use super::guard::Guard;
use super::mailbox::RemoteEndpoint;
use super::network::{Network, OF_EXIT, Stations, Update};
use super::remote::Remote;
use crate::config::Carrier;
use crate::counters::NetworkCounters;
use crate::ids::RemoteId;
use crate::slots::{ChannelSlot, RemoteSlot};

/// Looks that it counts as to enter or remove one: a channel may come into use by it, or out of use, and the control thread is told.
pub(super) const OF_SUBSCRIPTION: usize = 64;
/// Rounds in which the last datagrams of a peer that is gone are taken.
const LAST_ROUNDS: u32 = 64;
/// Remote lanes that are removed in a round.
const MOST_ENDED: usize = 8;

/// A remote lane that is gone.
#[derive(Debug)]
pub(super) struct Ending {
    id: RemoteId,
    clean: bool,
    /// Since then.
    rounds: u32,
}

/// A command that may take more than a round.
#[derive(Debug)]
pub(super) enum Begun {
    /// A network's new table: the exits of its places are found.
    Table(Update),
    /// It is taken over: these exits are of no use any more.
    Gone { network: usize, exits: Vec<usize> },
    /// Networks look for ways again, from this exit of this network on.
    Reconnect { network: usize, exit: usize },
}

impl Lane {
    /// The handles of a remote lane at each port.
    pub(super) fn connect(
        &mut self,
        endpoints: Vec<Option<RemoteEndpoint>>,
    ) -> Vec<Option<PeerHandle>> {
        let ports = self.ports.iter_mut().zip(endpoints);
        ports
            .map(|(port, endpoint)| {
                let RemoteEndpoint { address, way } = endpoint?;
                match port.port.connect_at_once(address, way) {
                    Ok(handle) => {
                        if !port.port.reaches(handle) {
                            tracing::warn!(datapath = %port.kind, %address, "no route to the peer by this datapath yet");
                        }
                        Some(handle)
                    }
                    Err(error) => {
                        tracing::warn!(datapath = %port.kind, %error, "peer not reachable through this datapath");
                        None
                    }
                }
            })
            .collect()
    }

    /// Takes over the handles of a remote lane at ports that had none for it.
    pub(super) fn reach(&mut self, remote: RemoteId, endpoints: Vec<Option<RemoteEndpoint>>) {
        let Some(&at) = self.by_remote.get(&remote) else {
            return;
        };
        let handles = self.connect(endpoints);
        if let Some(remote) = self.state.remotes.get_mut(at) {
            for (via, handle) in remote.via.iter_mut().zip(handles) {
                *via = via.or(handle);
            }
        }
    }

    pub(super) fn guard(&mut self, remote: RemoteId, change: impl FnOnce(&mut Guard)) {
        let remote = self.by_remote.get(&remote);
        if let Some(remote) = remote.and_then(|&at| self.state.remotes.get_mut(at)) {
            change(&mut remote.guard);
        }
    }

    /// Sends no more messages to a remote lane.
    pub(super) fn leave_remote(&mut self, id: RemoteId) {
        let Some(&at) = self.by_remote.get(&id) else {
            return;
        };
        if let Some(remote) = self.state.remotes.get_mut(at) {
            remote.leaving = true;
        }
        self.state.tracks.leave(at);
        self.want_nothing(id);
        self.withdraw(
            |piece| matches!(piece.destination, Destination::Remote { remote, .. } if remote == at),
        );
    }

    /// A remote lane has no sinks any more.
    pub(super) fn want_nothing(&mut self, id: RemoteId) {
        let at = self.by_remote.get(&id);
        if let Some(remote) = at.and_then(|&at| self.state.remotes.get_mut(at)) {
            remote.want_nothing();
            self.changing.push_back(id);
            self.go_on_with_channels(MOST_LEFT);
        }
    }

    /// It has some again.
    pub(super) fn want_again(&mut self, id: RemoteId, channels: Vec<u64>) {
        let at = self.by_remote.get(&id);
        if let Some(remote) = at.and_then(|&at| self.state.remotes.get_mut(at)) {
            remote.want_again(channels);
            self.changing.push_back(id);
            self.go_on_with_channels(MOST_LEFT);
        }
    }

    /// Takes remote lanes out of channels that they want no more, and enters them at those that they want again, until so much was
    /// looked at in this round.
    pub(super) fn go_on_with_channels(&mut self, most: usize) {
        while self.state.looks < most
            && let Some(id) = self.changing.front()
        {
            self.state.looks += 1;
            let at = self.by_remote.get(id).copied();
            let remote = at.and_then(|at| Some((at, self.state.remotes.get_mut(at)?)));
            let Some((at, remote)) = remote else {
                self.changing.pop_front();
                continue;
            };
            if let Some(channel) = remote.next_going() {
                // It may want it again.
                if !remote.channels.contains(&channel) {
                    let lost = remote.leaving;
                    self.remove_destination(channel, at, lost);
                }
            } else if let Some((channel, wanted)) = remote.next_coming() {
                if wanted {
                    self.add_destination(channel, at);
                }
            } else {
                self.changing.pop_front();
            }
        }
    }

    /// That lane is gone: it is removed when its last messages, which may wait at a port, have been taken.
    pub(super) fn end_remote(&mut self, id: RemoteId, clean: bool) {
        if !self.by_remote.contains_key(&id) || self.ending.iter().any(|other| other.id == id) {
            return;
        }
        self.leave_remote(id);
        let rounds = 0;
        self.ending.push(Ending { id, clean, rounds });
        self.look_at_all_ports();
    }

    /// A round has taken what there was at the ports, nothing if so: removes those that have ended.
    #[cold]
    pub(super) fn remove_ended(&mut self, received: bool) {
        let mut most = MOST_ENDED;
        let mut ending = std::mem::take(&mut self.ending);
        ending.retain_mut(|one| {
            one.rounds += 1;
            let at = self.by_remote.get(&one.id);
            let remote = at.and_then(|&at| self.state.remotes.get(at));
            let has_more = received && one.rounds < LAST_ROUNDS;
            if most == 0 || has_more || remote.is_some_and(Remote::is_going) {
                return true;
            }
            most -= 1;
            self.remove_remote(one.id, one.clean);
            false
        });
        self.ending = ending;
        if !self.ending.is_empty() {
            self.look_at_all_ports();
        }
    }

    /// The next round looks at all ports, and there is one.
    fn look_at_all_ports(&mut self) {
        self.ports.iter_mut().for_each(|p| p.skipped = p.interval);
        self.mailbox.again();
    }

    pub(super) fn remove_remote(&mut self, id: RemoteId, clean: bool) {
        self.leave_remote(id);
        let Some(at) = self.by_remote.remove(&id) else {
            return;
        };
        while let Some(remote) = self.state.remotes.get_mut(at)
            && let Some(channel) = remote.next_going()
        {
            self.remove_destination(channel, at, true);
        }
        while let Some(assembly) = self.state.reassembly.matching(|key| key.remote == at) {
            self.state.abandon(assembly);
        }
        self.state.forget_sources(at, clean);
        let state = &mut self.state;
        let Some(mut remote) = state.remotes.remove(at) else {
            return;
        };
        state.senders.leave(at, &remote, &state.remotes);
        for i in 0..self.ports.len() {
            let port = &mut self.ports[i];
            port.open.retain(|&open| open != at);
            if remote.close(i, port.port.as_mut(), None) {
                self.state.counters.tx_datagrams.add(1);
            }
            port.dirty = true;
            if let Some(handle) = remote.via[i] {
                self.disconnect(i, handle);
            }
        }
    }

    /// Begins to take a network's table. Networks come in the order of their numbers.
    pub(super) fn network(
        &mut self,
        at: usize,
        carrier: Carrier,
        stations: Arc<Stations>,
        counters: Arc<NetworkCounters>,
    ) {
        if at == self.state.networks.len() {
            self.state.networks.push(Network::new(carrier, counters));
        }
        self.begun = Some(Begun::Table(Update::new(at, stations)));
    }

    /// Goes on with what a command has begun for networks, until so much was looked at in this round.
    pub(super) fn go_on_with_networks(&mut self, most: usize) {
        while let Some(begun) = self.begun.take() {
            self.begun = match begun {
                Begun::Table(mut update) => {
                    let Some(network) = self.state.networks.get_mut(update.network) else {
                        return;
                    };
                    let prepared = network.prepare(&mut update, &mut self.ports);
                    if let Some(looks) = prepared {
                        self.state.looks += looks;
                        Some(Begun::Table(update))
                    } else {
                        let at = update.network;
                        let (exits, looks) = network.take_over(update);
                        self.state.looks += looks;
                        self.withdraw_exits(at, &exits);
                        Some(Begun::Gone { network: at, exits })
                    }
                }
                Begun::Gone { network, mut exits } => {
                    let most = most.saturating_sub(self.state.looks) / OF_EXIT + 1;
                    let rest = exits.len().saturating_sub(most);
                    let gone = exits.split_off(rest);
                    self.remove_exits(network, &gone);
                    (rest > 0).then_some(Begun::Gone { network, exits })
                }
                Begun::Reconnect { network, exit } => {
                    let Some(of) = self.state.networks.get_mut(network) else {
                        return;
                    };
                    let found = of.reconnect(exit, &mut self.ports);
                    let (network, exit) = match found {
                        Some((exit, _)) => (network, exit + 1),
                        None => (network + 1, 0),
                    };
                    self.state.looks += found.map_or(1, |(_, looks)| looks);
                    Some(Begun::Reconnect { network, exit })
                }
            };
            if self.state.looks >= most {
                return;
            }
        }
    }

    /// Takes frames out of the schedulers that would leave by exits of a network that nothing leads to any more.
    fn withdraw_exits(&mut self, at: usize, exits: &[usize]) {
        if exits.is_empty() {
            return;
        }
        let gone: HashSet<usize> = exits.iter().copied().collect();
        let departures = self.ports.iter().filter_map(|p| p.departures.as_ref());
        self.state.looks += departures
            .map(|departures| departures.queued())
            .sum::<usize>();
        self.withdraw(|piece| {
            matches!(piece.destination, Destination::Network { network, exit } if network == at && gone.contains(&exit))
        });
    }

    /// Takes exits out, and lets ports forget those that nobody else sends to.
    fn remove_exits(&mut self, network: usize, exits: &[usize]) {
        let state = &mut self.state;
        let Some(of) = state.networks.get_mut(network) else {
            return;
        };
        let handles: Vec<_> = exits.iter().map(|&exit| of.remove(exit)).collect();
        state.looks += handles.len() * OF_EXIT;
        for (i, port) in self.ports.iter_mut().enumerate() {
            let own = handles.iter().filter_map(|exit| *exit.get(i)?);
            let mut own = own.peekable();
            if own.peek().is_none() {
                continue;
            }
            let remotes = state.remotes.iter();
            let of_remotes = remotes.filter_map(|(_, remote)| remote.via[i]);
            let of_networks = state.networks.iter().flat_map(|network| network.handles(i));
            let used: HashSet<PeerHandle> = of_remotes.chain(of_networks).collect();
            state.looks += used.len();
            for handle in own.filter(|handle| !used.contains(handle)) {
                port.port.disconnect(handle);
            }
        }
    }

    /// Lets a port forget a peer that nobody sends to any more.
    pub(super) fn disconnect(&mut self, port: usize, handle: PeerHandle) {
        let mut remotes = self.state.remotes.iter();
        let used = remotes.any(|(_, other)| other.via[port] == Some(handle))
            || self.state.networks.iter().any(|n| n.uses(port, handle));
        if !used {
            self.ports[port].port.disconnect(handle);
        }
    }

    /// Takes frames out of the schedulers: whom they are for, or from, is gone.
    pub(super) fn withdraw(&mut self, unwanted: impl Fn(&Piece) -> bool) {
        self.state.room_available();
        for port in &mut self.ports {
            if let Some(departures) = &mut port.departures {
                let state = &mut self.state;
                departures.remove(&unwanted, |piece| {
                    state.departed(&piece, Err(Outcome::Unreachable));
                });
            }
        }
    }

    pub(super) fn subscriptions(&mut self, remote: RemoteId, add: &[u64], remove: &[u64]) {
        let Some(&at) = self.by_remote.get(&remote) else {
            return;
        };
        for &id in add {
            if let Some(remote) = self.state.remotes.get_mut(at) {
                remote.told(id, true);
            }
            self.add_destination(id, at);
        }
        for &id in remove {
            if let Some(remote) = self.state.remotes.get_mut(at) {
                remote.told(id, false);
            }
            if let Some(index) = self.state.channels.find(id)
                && let Some(remote) = self.state.remotes.get_mut(at)
                && remote.channels.remove(&index)
            {
                self.remove_destination(index, at, false);
            }
        }
    }

    /// A remote lane wants a channel.
    fn add_destination(&mut self, id: u64, remote: RemoteSlot) {
        self.state.looks += OF_SUBSCRIPTION;
        let index = self.open_channel(id);
        let Some(known) = self.state.remotes.get_mut(remote) else {
            return;
        };
        if !known.channels.insert(index) {
            return;
        }
        if known.is_going() {
            // It may be entered there for what it wanted before.
            self.take_destination_out(index, remote, false);
        }
        if let Some(channel) = self.state.channels.get_mut(index) {
            channel.destinations.push(remote);
            self.state.listener_came(index, None);
            self.reliable_destination(index, remote);
        }
    }

    /// A remote lane wants a channel no more. `lost`: it is gone.
    pub(super) fn remove_destination(
        &mut self,
        index: ChannelSlot,
        remote: RemoteSlot,
        lost: bool,
    ) {
        self.take_destination_out(index, remote, lost);
        self.close_channel_if_unused(index);
    }

    fn take_destination_out(&mut self, index: ChannelSlot, remote: RemoteSlot, lost: bool) {
        self.no_reliable_destination(index, remote, lost);
        self.state.looks += OF_SUBSCRIPTION;
        if let Some(channel) = self.state.channels.get_mut(index) {
            self.state.looks += channel.destinations.len();
            channel
                .destinations
                .retain(|&destination| destination != remote);
        }
        self.state.listeners_went(index);
    }
}
