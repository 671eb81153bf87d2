//! What a lane does when the control thread tells it something.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use super::Lane;
use super::destinations::Begun;
use super::mailbox::{Command, Event, RemoteEndpoint};
use super::remote::Remote;

/// Commands taken in a round: the control thread may have very many at once.
const MOST_COMMANDS: usize = 64;
/// Sources, sinks, rings and messages that are looked at for them in a round: no more is begun after that.
pub(super) const MOST_LOOKS: usize = 16 << 10;
/// Of that, what goes to what earlier commands have left to be done, first: messages wait for commands, and not for that.
pub(super) const MOST_LEFT: usize = MOST_LOOKS / 2;

impl Lane {
    #[cold]
    pub(super) fn commands(&mut self) {
        let asked = self.mailbox.asked.load(Ordering::Relaxed);
        self.mailbox.answered.store(asked, Ordering::Relaxed);
        self.state.looks = 0;
        self.let_go_of_sinks(MOST_LEFT / 2);
        self.go_on_with_channels(MOST_LEFT);
        let mut more = true;
        for _ in 0..MOST_COMMANDS {
            if self.state.looks >= MOST_LOOKS {
                break;
            }
            if self.begun.is_none() {
                let Ok(command) = self.commands.try_recv() else {
                    more = false;
                    break;
                };
                self.command(command);
            }
            self.go_on_with_networks(MOST_LOOKS);
            if self.begun.is_none() {
                self.mailbox.done.fetch_add(1, Ordering::Release); // Partner: `LaneHandle::done`.
            }
        }
        self.state.count_again(MOST_LOOKS);
        let state = &self.state;
        let left = !state.recounts.is_empty() || !state.closing.is_empty();
        if more || left || !self.changing.is_empty() || !self.ending.is_empty() {
            self.mailbox.again();
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::AddSession(session) => self.add_session(*session),
            Command::LeaveSession(id) => self.leave_session(id),
            Command::RemoveSession(id) => self.remove_session(id),
            Command::AddSource {
                session,
                source,
                block,
                target,
                carrier,
                number,
                first,
                reliability,
                waits,
            } => {
                let attached = self.add_source(
                    session,
                    source,
                    block,
                    target,
                    carrier,
                    (number, first),
                    reliability,
                );
                if attached.is_none() {
                    let lane = self.index;
                    self.events.send(Event::SourceEnded { lane, number });
                } else if waits {
                    self.hold(session, source);
                }
            }
            Command::Begin(session) => self.begin(session),
            Command::Carry {
                session,
                source,
                carrier,
            } => self.carry(session, source, carrier),
            Command::Police { tenant, policer } => self.state.tenants.police(tenant, &policer),
            Command::CloseSource { session, source } => self.close_source(session, source),
            Command::AddSink {
                session,
                sink,
                block,
                channel,
                notify,
                mode,
            } => self.add_sink(session, sink, block, channel, notify, mode),
            Command::TellRoom { session, notify } => self.tell_room(session, notify),
            Command::Readers {
                session,
                source,
                request,
            } => {
                let count = self.readers(session, source);
                self.events.send(Event::Readers {
                    session,
                    request,
                    count,
                });
            }
            Command::Direct {
                source,
                sink,
                epoch,
                begins,
            } => self.direct(source, sink, epoch, begins),
            Command::CloseSink { session, sink } => {
                let Some(&at) = self.by_session.get(&session) else {
                    return;
                };
                self.remove_sink(at, sink);
                self.let_go_of_sinks(MOST_LEFT);
            }
            Command::AddRemote {
                id,
                incarnation,
                label,
                protection,
                addresses,
                endpoints,
                takes,
            } => {
                self.remove_remote(id, false);
                self.end_farewell(incarnation, addresses.first().copied());
                let at_once = |address: SocketAddr| RemoteEndpoint { address, way: None };
                let endpoints = endpoints.into_iter().map(|e| e.map(at_once)).collect();
                let via = self.connect(endpoints);
                let own = self.state.incarnation;
                let remote =
                    Remote::new(own, incarnation, label, addresses, protection, via, &takes);
                let state = &mut self.state;
                let at = state.remotes.insert(remote);
                self.by_remote.insert(id, at);
                state.senders.enter(at, &state.remotes[at]);
                state.tracks.enter(at, state.remotes[at].address());
            }
            Command::Reach { remote, endpoints } => self.reach(remote, endpoints),
            Command::Standing { remote, ports } => {
                let remote = self.by_remote.get(&remote);
                if let Some(remote) = remote.and_then(|&at| self.state.remotes.get_mut(at)) {
                    remote.standings = ports;
                }
            }
            Command::LeaveRemote { id } => self.leave_remote(id),
            Command::RemoveRemote { id, clean } => self.end_remote(id, clean),
            Command::Keys { remote, keys } => self.guard(remote, |guard| guard.accept(keys)),
            Command::SendKeys { remote, number } => {
                self.guard(remote, |guard| guard.send_under(number));
            }
            Command::RetireKeys { remote, number } => {
                self.guard(remote, |guard| guard.retire(number));
            }
            Command::Subscriptions {
                remote,
                add,
                remove,
            } => self.subscriptions(remote, &add, &remove),
            Command::WantNothing { remote } => self.want_nothing(remote),
            Command::WantAgain { remote, channels } => self.want_again(remote, channels),
            Command::Progress { remote, sources } => {
                if let Some(&at) = self.by_remote.get(&remote) {
                    self.state.progress(at, &sources);
                }
            }
            Command::Network {
                network,
                carrier,
                stations,
                counters,
            } => self.network(network, carrier, stations, counters),
            Command::ReconnectNetworks => {
                let (network, exit) = (0, 0);
                self.begun = Some(Begun::Reconnect { network, exit });
            }
            Command::Route {
                network,
                destination,
                routed,
            } => {
                if let Some(network) = self.state.networks.get_mut(network) {
                    self.state.looks += network.route(destination, routed, &mut self.ports);
                }
            }
            Command::Schedule { port, change } => {
                if let Some(departures) =
                    self.ports.get_mut(port).and_then(|p| p.departures.as_mut())
                {
                    departures.change(change);
                }
            }
            Command::Tap(tap) => self.state.taps.add(tap),
            Command::EndTap(capture) => {
                if let Some(tap) = self.state.taps.remove(capture) {
                    self.events.send(Event::TapEnded(tap));
                }
            }
        }
    }

    /// A lane elsewhere that had said goodbye is back: nothing more is waited for of what it was.
    fn end_farewell(&mut self, incarnation: u32, address: Option<IpAddr>) {
        let state = &mut self.state;
        let before = state.senders.find(incarnation, address);
        let leaving = before.filter(|&at| {
            let remote = state.remotes.get(at);
            remote.is_some_and(|r| r.leaving && r.address() == address)
        });
        let Some(leaving) = leaving else { return };
        let known = self.by_remote.iter().find(|(_, at)| **at == leaving);
        if let Some((&id, _)) = known {
            self.end_remote(id, true);
            // From here on it is the other one.
            let state = &mut self.state;
            state
                .senders
                .leave(leaving, &state.remotes[leaving], &state.remotes);
        }
    }
}
