//! A lane: one polling thread, run to completion, single writer of everything it touches.
//!
//! A round takes what the datapaths have received, what the applications have emitted, and sends what
//! has come together: it never waits to fill a batch (naaas-thesis-2024, section 3.5). No lock, no
//! allocation and no system call but the datapath's own on this path; what changes the lane's tables
//! comes as a [`Command`] from the control thread.

mod arrivals;
mod channel;
mod commands;
pub mod departure;
mod destinations;
mod egress;
mod endpoints;
pub mod fair;
pub mod forward;
mod guard;
pub mod idle;
mod ingress;
mod listeners;
mod local;
mod mailbox;
mod members;
pub mod network;
mod parking;
mod placed;
mod port;
mod reassembly;
mod receive;
mod reliable;
mod remote;
mod round;
mod senders;
pub mod session;
mod shares;
mod tables;
pub mod tap;
mod tenants;
#[cfg(test)]
pub(crate) mod tests;
mod track;

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use rustix::event::epoll;
use takt_clock::Clock;
use takt_time::TaiTime;

use crate::config::{self, Limits};
use crate::counters::LaneCounters;
use crate::delays::DelayCounters;
use crate::ids::{RemoteId, SessionId};
use crate::slots::{RemoteSlot, SessionSlot};
use commands::MOST_LEFT;
use departure::WakeMargin;
use destinations::{Begun, Ending};
pub use guard::LaneKeys;
use ingress::Recipient;
use mailbox::Mailbox;
pub use mailbox::{Command, Event, EventSender, LaneHandle, RemoteEndpoint, SourceTarget};
pub use port::{LanePort, PASSED_ON_LEN};
use port::{RECEIVE_BUDGET, forward};
pub use remote::{Carrier, Standing};
use tables::State;
pub use track::sender_number;

/// What the datagrams taken from one port in a round may cost, in the unit of [`fair`]: fewer are taken after a
/// round in which they cost more.
const RECEIVE_COST: i64 = 4 * fair::QUANTUM;
/// Datagrams that are taken at a time, at least, whatever each may cost.
const LEAST_STEP: i64 = 8;
/// A port whose empty poll is a system call is polled in one round of so many, at the rarest, while
/// a port whose poll is free shares the lane.
const RAREST_POLL: u32 = 64;
/// Rounds between two publications of the ports' counters, and between two looks at the doorbells' descriptors of
/// sessions that are idle.
const PUBLISH_EVERY: u32 = 256;
/// Rounds between two looks which sessions are idle.
const REST_EVERY: u32 = 4096;

/// While there is work, the descriptors of idle sessions' doorbells are looked at so often.
const EDGES_EVERY_NS: i64 = 100_000;

/// A lane.
pub struct Lane {
    index: usize,
    ports: Vec<LanePort>,
    state: State,
    by_session: HashMap<SessionId, SessionSlot>,
    by_remote: HashMap<RemoteId, RemoteSlot>,
    /// Remote lanes that are still entered at channels that they want no more, or not yet at those that they want again, in their order.
    changing: VecDeque<RemoteId>,
    /// Those that are gone, and whose last messages are taken.
    ending: Vec<Ending>,
    commands: Receiver<Command>,
    /// Of these the one that it goes on with before it takes another.
    begun: Option<Begun>,
    mailbox: Arc<Mailbox>,
    events: EventSender,
    epoll: OwnedFd,
    /// Some port's poll is a memory read: others are polled more rarely.
    mixed: bool,
    margin: WakeMargin,
    tick: u32,
    /// When the doorbells of idle sessions were last looked at beside work.
    looked_ns: i64,
}

impl Lane {
    /// A lane with these ports; the last one connects lanes of this node if `trusted`.
    ///
    /// # Errors
    /// The kernel's, for epoll and eventfd.
    #[allow(clippy::too_many_arguments)] // built in one place
    pub fn new(
        index: usize,
        incarnation: u32,
        label: u32,
        ports: Vec<LanePort>,
        limits: &Limits,
        clock: Arc<dyn Clock>,
        counters: Arc<LaneCounters>,
        events: EventSender,
    ) -> std::io::Result<(Self, LaneHandle)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = rustix::event::eventfd(
            0,
            rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
        )?;
        epoll::add(
            &epoll,
            &wake,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )?;
        let (handle, mailbox, commands) = mailbox::new(wake);
        let mixed = ports
            .iter()
            .any(|p| !p.trusted && !p.port.receive_costs_syscall());
        let lane = Self {
            index,
            ports,
            state: State::new(incarnation, label, limits, clock, counters, mailbox.clone()),
            by_session: HashMap::new(),
            by_remote: HashMap::new(),
            changing: VecDeque::new(),
            ending: Vec::new(),
            commands,
            begun: None,
            mailbox,
            events,
            epoll,
            mixed,
            margin: WakeMargin::default(),
            tick: 0,
            looked_ns: 0,
        };
        Ok((lane, handle))
    }

    /// What becomes of messages for sinks of this lane whose launch times have passed.
    pub fn set_departure(&mut self, how: config::Departure) {
        self.state.local.set_departure(how);
    }

    /// How long messages from other nodes were on their way.
    pub fn delays(&self) -> Arc<DelayCounters> {
        self.state.arrivals.delays()
    }

    /// One round. True if there was anything to do.
    #[inline]
    pub fn poll(&mut self) -> bool {
        self.tick = self.tick.wrapping_add(1);
        let counters = &self.state.counters;
        counters.polls.add(1);
        self.state.round.begin();
        // Partner: `LaneHandle::send`.
        if self.mailbox.full.load(Ordering::Relaxed)
            && self.mailbox.full.swap(false, Ordering::Acquire)
        {
            self.commands();
            if !self.state.early.is_empty() {
                self.take_early();
            }
        }
        let mut worked = self.receive();
        if !self.ending.is_empty() {
            self.remove_ended(worked);
        }
        worked |= self.state.recover(&mut self.ports);
        // What is to leave at an instant goes before what is taken now.
        worked |= self.state.depart(&mut self.ports);
        worked |= self.state.egress(&mut self.ports);
        worked |= self.state.depart(&mut self.ports);
        worked |= self.flush();
        if self.state.tenants.has_pending() {
            self.state.tenants.show();
        }
        if let Some(at) = self.state.reassembly.next_check() {
            let now_ns = self.state.round.steady_ns();
            if now_ns >= at {
                self.state.expire(now_ns);
            }
        }
        if self.state.tenants.has_failed() || !self.state.finished_sources.is_empty() {
            self.clear();
        }
        if self.tick.is_multiple_of(PUBLISH_EVERY) {
            self.now_and_then();
        } else if worked && self.state.tenants.has_idle() {
            // Others' work must not keep what an idle session rings for.
            let now_ns = self.state.round.now_ns();
            // Not forwards: the clock was stepped.
            if !(0..EDGES_EVERY_NS).contains(&now_ns.wrapping_sub(self.looked_ns)) {
                self.looked_ns = now_ns;
                self.take_edges();
            }
        }
        if worked {
            let counters = &self.state.counters;
            counters.busy_polls.add(1);
            counters.busy_nanos.add(self.state.round.busy_ns());
        }
        worked
    }

    /// Whether the last round has left at a port what had come in.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.ports
            .iter()
            .any(|port| !port.drained && port.skipped == 0)
    }

    #[inline]
    fn receive(&mut self) -> bool {
        let mut worked = false;
        self.state.tenants.begin_receiving();
        for at in 0..self.ports.len() {
            let (before, rest) = self.ports.split_at_mut(at);
            let Some((port, after)) = rest.split_first_mut() else {
                break;
            };
            let costly = self.mixed && port.port.receive_costs_syscall();
            if costly {
                port.skipped += 1;
                if port.skipped < port.interval {
                    port.drained = false;
                    continue;
                }
                port.skipped = 0;
            }
            let state = &mut self.state;
            let (trusted, siblings) = (port.trusted, &port.siblings);
            let own = port.port.local().port();
            // The port between lanes, if there is one, is the last.
            let mut mesh = after.last_mut().or(before.last_mut()).filter(|p| p.trusted);
            let budget = port.budget;
            // In steps where a datagram may cost much, so that what would cost too much stays at the port.
            let step = (RECEIVE_COST / state.channels.widest_cost()).max(LEAST_STEP);
            let step = (step as usize).min(budget);
            state.received_cost = 0;
            state.behind = port.behind;
            state.receiving = at;
            let mut received = 0;
            port.drained = false;
            while received < budget && state.received_cost <= RECEIVE_COST {
                let most = step.min(budget - received);
                state.arrivals.begin();
                let taken = port.port.receive(most, &mut |datagram| {
                    if trusted {
                        state.ingress_between_lanes(&datagram);
                    } else if datagram.destination_port == own || siblings.is_empty() {
                        state.ingress(&datagram, false);
                    } else if state.admits(&datagram) {
                        forward(&state.counters, mesh.as_deref_mut(), siblings, &datagram);
                    }
                });
                received += taken;
                if taken < most {
                    port.drained = true;
                    break;
                }
            }
            worked |= received > 0;
            state.tenants.count_passed_over(&mut state.channels);
            state.received_cost += state.tenants.show_urgent();
            // A port may give less than it was asked for and have more.
            port.behind = match received {
                0 => 0,
                _ => state.behind.saturating_add(state.received_cost),
            };
            if state.received_cost > RECEIVE_COST {
                let fewer = received as i64 * RECEIVE_COST / state.received_cost;
                port.budget = (fewer as usize).max(1);
            } else if budget < RECEIVE_BUDGET && received > 0 {
                port.budget = (budget * 2).min(RECEIVE_BUDGET);
            }
            if costly {
                port.interval = if received > 0 {
                    1
                } else {
                    (port.interval * 2).min(RAREST_POLL)
                };
            }
        }
        self.state.arrivals.begin();
        worked
    }

    /// Judges again what came before what the control thread had told was taken over.
    #[cold]
    fn take_early(&mut self) {
        for early in std::mem::take(&mut self.state.early) {
            let state = &mut self.state;
            state.receiving = early.port;
            let datagram = early.datagram();
            match early.recipient {
                Recipient::This { mesh } => state.ingress(&datagram, mesh),
                Recipient::Sibling => {
                    if state.admits(&datagram) {
                        // The port between lanes, if there is one, is the last.
                        let (mesh, others) = self.ports.split_last_mut().unzip();
                        let mesh = mesh.filter(|port| port.trusted);
                        let port = others.as_deref().and_then(|others| others.get(early.port));
                        let siblings = port.map_or(&[][..], |port| &port.siblings);
                        forward(&state.counters, mesh, siblings, &datagram);
                    }
                }
            }
        }
    }

    /// Commits what was filled and sends what was committed. True if anything was.
    #[inline]
    fn flush(&mut self) -> bool {
        let mut worked = false;
        let state = &mut self.state;
        for (at, port) in self.ports.iter_mut().enumerate() {
            if !port.dirty {
                continue;
            }
            worked = true;
            if !port.waits() {
                state.flush(at, port);
            }
        }
        worked
    }

    /// Ends sessions that broke the protocol, and sources that are closed and empty.
    #[cold]
    fn clear(&mut self) {
        for (at, source) in std::mem::take(&mut self.state.finished_sources) {
            let Some(session) = self.state.tenants.sessions.get(at).map(|s| s.id) else {
                continue;
            };
            self.remove_source(at, source);
            self.events.send(Event::SourceClosed { session, source });
            self.remove_if_left(at);
        }
        // Many may fail together: the others wait for the next round.
        let most = self.state.looks + MOST_LEFT;
        while self.state.looks < most
            && let Some((at, failure)) = self.state.tenants.next_failed()
        {
            let Some(session) = self.state.tenants.sessions.get(at).map(|s| s.id) else {
                continue;
            };
            self.events.send(Event::SessionFailed { session, failure });
            self.remove_session(session);
        }
    }

    /// What is not worth its time in every round.
    #[cold]
    fn now_and_then(&mut self) {
        self.publish();
        if self.tick.is_multiple_of(REST_EVERY) {
            let now_ns = self.state.round.read_steady();
            self.state.tenants.rest(now_ns);
        }
        if self.state.tenants.has_idle() {
            self.take_edges();
        }
    }

    #[cold]
    fn publish(&self) {
        for port in &self.ports {
            port.publish();
        }
    }

    /// When the next frame of a scheduler, or message for sinks of this lane, is to be dealt with.
    pub fn due(&self) -> Option<TaiTime> {
        let ports = self.ports.iter().filter_map(|p| p.departures.as_ref());
        let ports = ports.filter_map(|departures| departures.due());
        ports.chain(self.state.due_here()).min()
    }
}
