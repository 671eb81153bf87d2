//! From sources to datagrams and local sinks: take, number, deliver here, append there, complete.

use takt_datapath::ReserveError;
use takt_schedule::port::Departure;
use takt_session::layout::{Outcome, TxDescriptor};
use takt_session::{ChannelId, Failure};
use takt_time::{TaiTime, TrafficClass};

use super::departure::{Departures, Destination, End, Handed, Leaving, Piece};
use super::endpoints::Closing;
use super::reliable::Next;
use super::remote::{Appended, Cut, Outgoing, Remote};
use super::session::{InProgress, LaneSession, Meta, Target};
use super::tap::Passed;
use super::tenants::{Given, Waits};
use super::{LanePort, State, fair};
use crate::policing::Flow;
use crate::slots::{ChannelSlot, RemoteSlot, SessionSlot, SourceSlot, TenantSlot};

/// After so long a round takes no further tenant's messages: what has been received, and what is to leave at an
/// instant, is looked at again.
const ROUND_NS: i64 = 100_000;
/// After a turn that cost so much it is looked who has emitted something meanwhile: it may be of a higher class.
const LISTEN_AFTER: i64 = fair::SLICE / 4;
/// What has no launch time is not sent so shortly before a frame is to leave at an instant.
pub(super) const GUARD_NS: i64 = 20_000;
/// Frames of one tenant that wait in the schedulers of a lane.
pub(super) const PER_TENANT: u32 = 512;
/// Of these, frames of one session: what it sends far ahead keeps no other session of its tenant out.
pub(super) const PER_SESSION: u32 = PER_TENANT / 2;

/// Whether a source has more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing left in its ring.
    Empty,
    /// The turn is used up.
    More,
    /// What is next is of this class, lower than the turn's.
    Lower(TrafficClass),
    /// A port has no frame free, or the lane has not carried out yet what was told before.
    Blocked,
    /// A scheduler has no room: a departure makes some.
    Held,
    /// Its receivers have not acknowledged enough, or a sink of a reliable source has no room.
    Waits,
    /// The rates of its tenant hold its next message back. `taken`: the one before it has been taken in this look.
    Throttled { taken: bool },
}

/// What became of a look at a session.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    /// It has more to do.
    more: bool,
    /// The highest class below the turn's in which it has more to do.
    lower: Option<TrafficClass>,
    /// A port had no frame free.
    blocked: bool,
    /// The rates of its tenant hold messages of it back.
    throttled: bool,
    /// Messages of it were taken.
    taken: bool,
}

impl State {
    /// Gives the tenants that have something to do their turns, the highest class first, and looks at departures
    /// between them. True if anything was done.
    pub(super) fn egress(&mut self, ports: &mut [LanePort]) -> bool {
        self.tenants.listen();
        if self.tenants.throttled_until().is_some() {
            let steady_ns = self.round.steady_ns();
            self.tenants.unthrottle(steady_ns);
        }
        let mut worked = false;
        if !self.tenants.turns.begin_round() {
            return false;
        }
        let began_ns = self.round.now_ns();
        let mut now_ns = began_ns;
        let mut last: Option<(TenantSlot, TrafficClass)> = None;
        while let Some((tenant, class, may)) = self.tenants.turns.begin() {
            if let Some((before, of)) = last {
                if class < of {
                    // What was of a higher class is on its way before what is not.
                    self.hand_over(ports);
                }
                if before != tenant || class != of {
                    self.tenants.show();
                }
            }
            last = Some((tenant, class));
            let (spent, end) = self.turn(ports, tenant, class, may, now_ns, &mut worked);
            self.tenants.turns.end(tenant, class, spent, end);
            self.depart(ports);
            if !self.tenants.turns.goes_on() {
                // The clock is a good part of a look at one message.
                continue;
            }
            now_ns = self.round.read();
            // Not forwards: the clock was stepped.
            if !(0..ROUND_NS).contains(&(now_ns - began_ns)) {
                break;
            }
            if spent >= LISTEN_AFTER {
                self.tenants.listen();
            }
        }
        worked
    }

    /// Commits what is being filled and hands over what is committed, at all ports that take it.
    fn hand_over(&mut self, ports: &mut [LanePort]) {
        for (at, port) in ports.iter_mut().enumerate() {
            if port.dirty && !port.waits() {
                self.flush(at, port);
            }
        }
    }

    /// One turn of a tenant in a class that may spend so much: what it has spent, and why the turn ends.
    fn turn(
        &mut self,
        ports: &mut [LanePort],
        tenant: TenantSlot,
        class: TrafficClass,
        may: i64,
        now_ns: i64,
        worked: &mut bool,
    ) -> (i64, fair::End) {
        let mut left = may;
        let mut blocked = 0;
        while left > 0 {
            let Some(at) = self.tenants.next_session(tenant, class) else {
                return (may - left, fair::End::Idle);
            };
            left -= fair::LOOK;
            let served = match self.serve(ports, at, class, now_ns, &mut left, worked) {
                Ok(served) => served,
                Err(failure) => {
                    self.tenants.fail(at, failure);
                    Served::default()
                }
            };
            self.tenants
                .yield_turn(tenant, class, served.more || served.blocked);
            // Not by what is held: that may be of a higher class, and has no use for a turn.
            if let Some(lower) = served.lower {
                self.tenants.wait_in(at, lower);
            }
            if served.throttled {
                self.tenants.throttle(at, class, served.taken);
            }
            if served.more {
                blocked = 0;
            } else if served.blocked {
                blocked += 1;
                if blocked >= self.tenants.sessions_waiting(tenant, class) {
                    return (may - left, fair::End::Blocked);
                }
            }
        }
        (may - left, fair::End::More)
    }

    /// Looks at the sources of a session that have something of this class or a higher one, from where the last look
    /// ended, for as long as the turn lasts.
    fn serve(
        &mut self,
        ports: &mut [LanePort],
        at: SessionSlot,
        class: TrafficClass,
        now_ns: i64,
        left: &mut i64,
        worked: &mut bool,
    ) -> Result<Served, Failure> {
        let Some(session) = self.tenants.sessions.get_mut(at) else {
            return Ok(Served::default());
        };
        session.held = false;
        let emitted = session.counters.emitted.get();
        let mut served = Served {
            more: !session.reclaim_own(left)?,
            ..Served::default()
        };
        let count = session.sources.count();
        let mut completed = false;
        let mut held_back = None;
        for _ in 0..count {
            if *left <= 0 {
                served.more = true;
                break;
            }
            let Some(session) = self.tenants.sessions.get_mut(at) else {
                break;
            };
            let number = session.next_source % count;
            let source = SourceSlot(number);
            *left -= fair::LOOK;
            let step = self.serve_source(ports, at, source, class, now_ns, left, worked)?;
            let Some(session) = self.tenants.sessions.get_mut(at) else {
                break;
            };
            match step {
                Step::More => served.more = true,
                Step::Lower(class) => served.lower = served.lower.max(Some(class)),
                Step::Blocked => served.blocked = true,
                Step::Throttled { taken } => {
                    // Of what has paid already the others are given out, and completions are shown.
                    served.throttled = true;
                    held_back.get_or_insert(number + usize::from(taken));
                }
                Step::Held => {
                    session.held = true;
                    self.held = true;
                }
                Step::Empty | Step::Waits => {}
            }
            session.next_source = number + 1;
            let Some(s) = session.sources.get_mut(source) else {
                continue;
            };
            if s.direct.epoch > 0 {
                session.tell_given(source);
            }
            let Some(s) = self.tenants.source(at, source) else {
                continue;
            };
            completed |= s.publish();
            if step == Step::Empty && s.is_finished() && !s.finished {
                s.finished = true;
                self.finished_sources.push((at, source));
            }
        }
        if let Some(session) = self.tenants.sessions.get_mut(at) {
            served.taken = session.counters.emitted.get() != emitted;
            // Whose message is held back is the next one.
            session.next_source = held_back.unwrap_or(session.next_source);
        }
        if completed
            && let Some(session) = self.tenants.sessions.get(at)
            && session.show_room()
        {
            *left -= fair::WAKE;
            if let Some(failure) = session.takes_long() {
                self.tenants.fail(at, failure);
            }
        }
        if let Some(session) = self.tenants.sessions.get_mut(at)
            && session.has_orphans_to_free()
        {
            self.closing.push_back(Closing::Kept(session.id));
            self.mailbox.again();
        }
        Ok(served)
    }

    #[allow(clippy::too_many_arguments)] // one source: whose, in which class, when, how far
    fn serve_source(
        &mut self,
        ports: &mut [LanePort],
        at: SessionSlot,
        source: SourceSlot,
        class: TrafficClass,
        now_ns: i64,
        left: &mut i64,
        worked: &mut bool,
    ) -> Result<Step, Failure> {
        let throttled = self.tenants.is_throttled(at);
        let mut taken = false;
        while *left > 0 {
            let Some(session) = self.tenants.sessions.get_mut(at) else {
                return Ok(Step::Empty);
            };
            let Some(s) = session.sources.get_mut(source) else {
                return Ok(Step::Empty);
            };
            if !s.due.is_empty() {
                *worked = true;
                match self.give_due(at, source, now_ns, left) {
                    Given::ToAll => continue,
                    Given::More => return Ok(Step::More),
                    Given::Waits => return Ok(Step::Waits),
                }
            }
            if class > TrafficClass::BEST_EFFORT
                && let Some(next) = s.next_class().filter(|next| *next < class)
            {
                return Ok(Step::Lower(next));
            }
            let mut progress = match s.current.take() {
                Some(progress) => progress,
                None if throttled || !session.rates.ready(self.round.steady_of(now_ns)) => {
                    return Ok(match s.has_next() {
                        true => Step::Throttled { taken },
                        false => Step::Empty,
                    });
                }
                None => match session.take(source, self.round.steady_of(now_ns))? {
                    Some(descriptor) => {
                        *left -= fair::MESSAGE;
                        taken = true;
                        let told = self.mailbox.told();
                        match self.mailbox.has_done(told) {
                            true => self.begin(at, source, descriptor, now_ns),
                            false => InProgress::after(told, descriptor, now_ns),
                        }
                    }
                    None => return Ok(Step::Empty),
                },
            };
            if let Some(begins) = progress.begins {
                // Who emitted it may have been told of a sink or a way that is still in the mailbox.
                if !self.mailbox.has_done(begins) {
                    if let Some(session) = self.tenants.sessions.get_mut(at)
                        && let Some(s) = session.sources.get_mut(source)
                    {
                        s.current = Some(progress);
                    }
                    // It costs its tenant nothing, and keeps nobody else's from going on.
                    return Ok(Step::Blocked);
                }
                progress = self.begin(at, source, progress.descriptor, now_ns);
            }
            *worked = true;
            let mut pieces = 0;
            let given = match self.wait_here(at, source, &mut progress, now_ns, &mut pieces) {
                true => Some(self.deliver_here(at, source, &mut progress, now_ns, left)),
                false => None,
            };
            let sent = match given {
                Some(Given::ToAll) => {
                    self.send(ports, at, source, &mut progress, now_ns, &mut pieces, left)
                }
                Some(Given::More) => Sent::Unfinished(Step::More),
                Some(Given::Waits) => Sent::Unfinished(Step::Waits),
                None => Sent::Unfinished(Step::Held),
            };
            if pieces > 0 {
                let chunk = progress.descriptor.chunk;
                self.tenants.hold(at, source, chunk, pieces);
            }
            let Some(session) = self.tenants.sessions.get_mut(at) else {
                return Ok(Step::Empty);
            };
            match sent {
                Sent::Finished(outcome) => {
                    let descriptor = &progress.descriptor;
                    let now = TaiTime::from_nanos(now_ns);
                    let left = self.local.left(descriptor, now);
                    session.finish(descriptor.chunk, outcome, left)?;
                }
                Sent::Unfinished(step) => {
                    if let Some(s) = session.sources.get_mut(source) {
                        s.current = Some(progress);
                    }
                    if step != Step::More {
                        return Ok(step);
                    }
                }
            }
        }
        Ok(Step::More)
    }

    /// Numbers a message.
    #[inline]
    fn begin(
        &mut self,
        at: SessionSlot,
        source: SourceSlot,
        descriptor: TxDescriptor,
        now_ns: i64,
    ) -> InProgress {
        let mut progress = InProgress::new(descriptor, now_ns);
        let session = self.tenants.sessions.get_mut(at);
        let Some(s) = session.and_then(|session| session.sources.get_mut(source)) else {
            return progress;
        };
        progress.carrier = s.carrier;
        let Target::Channel(channel) = s.target else {
            return progress;
        };
        let Some(channel) = self.channels.get_mut(channel) else {
            return progress;
        };
        progress.sequence = s.next_sequence;
        progress.sinks = channel.sinks.all();
        progress.destinations = channel.destinations.all();
        // An application may have said that its first message has the last number.
        s.next_sequence = s.next_sequence.wrapping_add(1);
        channel.counters.emitted.add(1);
        channel
            .counters
            .emitted_bytes
            .add(u64::from(descriptor.length));
        let (sinks, tenants) = (&channel.sinks, &self.tenants);
        let hears = |(other, sink)| other != at || tenants.hears_itself(at, sink);
        if channel.destinations.is_empty() && !sinks.iter().any(hears) {
            channel.counters.no_sink.add(1);
        } else {
            progress.outcome = Outcome::Sent;
        }
        progress
    }

    /// Gives a message to the sinks of this lane, as far as the turn goes.
    #[inline]
    pub(super) fn deliver_here(
        &mut self,
        at: SessionSlot,
        source: SourceSlot,
        progress: &mut InProgress,
        now_ns: i64,
        left: &mut i64,
    ) -> Given {
        if progress.sinks.is_empty() {
            return Given::ToAll;
        }
        let session = self.tenants.sessions.get(at);
        let Some(s) = session.and_then(|session| session.sources.get(source)) else {
            return Given::ToAll;
        };
        let Target::Channel(channel) = s.target else {
            return Given::ToAll;
        };
        let reliable = s.reliable;
        let direct = (s.direct.epoch > 0).then(|| s.direct.clone());
        let meta = Meta {
            length: progress.descriptor.length,
            class: class_of(&progress.descriptor),
            sender: s.sender,
            sequence: progress.sequence,
            send_time_ns: progress.send_time_ns,
        };
        let Some(channel) = self.channels.get(channel) else {
            return Given::ToAll;
        };
        let waits = reliable.map(|entry| Waits {
            patience_ns: self.reliable.patience_ns(entry),
            until_ns: self.waits_until(entry, progress),
            now_ns: self.round.steady_of(now_ns),
        });
        let given = self.tenants.deliver_emitted(
            at,
            channel,
            &meta,
            progress,
            left,
            (waits.as_ref(), direct.as_deref()),
        );
        if let Some(entry) = reliable {
            match given {
                Given::ToAll => self.reliable.had_room(entry),
                Given::More => {}
                Given::Waits => {
                    let steady_ns = self.round.steady_of(now_ns);
                    self.reliable.look_again(entry, steady_ns);
                }
            }
        }
        given
    }

    /// How many more frames and messages of a session may wait for their time.
    #[inline]
    pub(super) fn room(&self, session: &LaneSession) -> u32 {
        PER_TENANT
            .saturating_sub(self.tenants.departing(session.tenant))
            .min(PER_SESSION.saturating_sub(session.departing))
    }

    /// Appends a message to the datagrams for its remote lanes, or gives it to the schedulers of their
    /// ports, as far as it and the turn go. `pieces`: how many frames wait there and hold the message.
    #[inline]
    #[allow(clippy::too_many_arguments)] // one message: whose, what, where, how far
    fn send(
        &mut self,
        ports: &mut [LanePort],
        at: SessionSlot,
        source: SourceSlot,
        progress: &mut InProgress,
        now_ns: i64,
        pieces: &mut u16,
        left: &mut i64,
    ) -> Sent {
        let Some(session) = self.tenants.sessions.get(at) else {
            return Sent::Finished(progress.outcome);
        };
        let Some(s) = session.sources.get(source) else {
            return Sent::Finished(progress.outcome);
        };
        let room = |state: &Self, pieces: u16| {
            let session = state.tenants.sessions.get(at);
            session.map_or(0, |session| {
                state.room(session).saturating_sub(u32::from(pieces))
            })
        };
        let channel = match &s.target {
            Target::Channel(channel) => *channel,
            Target::Network(owner) => {
                let from = (at, source);
                let room = room(self, *pieces);
                return self.send_frame(
                    ports, from, session, owner, progress, now_ns, room, pieces, left,
                );
            }
        };
        let Some(entry) = s.reliable else {
            let room = room(self, *pieces);
            return self.send_to_all(
                ports, at, source, channel, progress, now_ns, room, pieces, left,
            );
        };
        loop {
            // What was begun goes to the others first.
            if progress.destinations.is_empty() || progress.batch.is_none() {
                match progress.batch {
                    Some(batch) if batch.to == batch.cut.count() => {
                        return Sent::Finished(progress.outcome);
                    }
                    _ => {}
                }
                match self.next_batch(ports, entry, progress, *left, now_ns) {
                    Next::Batch(batch) => progress.batch = Some(batch),
                    Next::Nobody => {}
                    Next::Late => return Sent::Finished(Outcome::Undelivered),
                    Next::Waits => return Sent::Unfinished(Step::Waits),
                }
                if progress.batch.is_some()
                    && let Some(channel) = self.channels.get(channel)
                {
                    progress.destinations = channel.destinations.all();
                }
            }
            let room = room(self, *pieces);
            let sent = self.send_to_all(
                ports, at, source, channel, progress, now_ns, room, pieces, left,
            );
            match sent {
                Sent::Finished(_) if progress.batch.is_some() => {
                    progress.destinations.next = progress.destinations.end;
                }
                sent => return sent,
            }
        }
    }

    /// Appends a message, or the records of its present batch, to the datagrams for its remote lanes.
    #[inline]
    #[allow(clippy::too_many_arguments)] // one message: whose, what, where, how far
    fn send_to_all(
        &mut self,
        ports: &mut [LanePort],
        at: SessionSlot,
        source: SourceSlot,
        channel: ChannelSlot,
        progress: &mut InProgress,
        now_ns: i64,
        room: u32,
        pieces: &mut u16,
        left: &mut i64,
    ) -> Sent {
        let Some(session) = self.tenants.sessions.get(at) else {
            return Sent::Finished(progress.outcome);
        };
        let Some(s) = session.sources.get(source) else {
            return Sent::Finished(progress.outcome);
        };
        let Some(channel) = self.channels.get(channel) else {
            return Sent::Finished(progress.outcome);
        };
        let already = u32::from(*pieces);
        let batch = progress.batch;
        let payload = session.emitted(progress.descriptor.chunk, progress.descriptor.length);
        let message = Outgoing {
            channel: channel.id,
            source: s.number,
            sequence: progress.sequence as u32,
            class: class_of(&progress.descriptor),
            // For a reliable source's receivers it tells the round trip as well: when the records leave.
            send_time_ns: if batch.is_some() {
                now_ns
            } else {
                progress.send_time_ns
            },
            first: batch.map(|batch| batch.first),
        };
        for &(number, destination) in channel.destinations.of(progress.destinations) {
            let (fragment, cut) = progress.fragment_for(number);
            progress.continue_with(number, fragment, cut);
            if *left <= 0 {
                return Sent::Unfinished(Step::More);
            }
            if let Some(entry) = s.reliable
                && !self.reliable.is_peer(entry, destination)
            {
                channel.counters.unreachable.add(1);
                progress.outcome = Outcome::Undelivered;
                progress.continue_with(number + 1, 0, None);
                continue;
            }
            let path = self.remotes.get_mut(destination).and_then(|remote| {
                let port = remote.port(ports, progress.carrier)?;
                let length = progress.descriptor.length;
                let now = || remote.cut(port, ports[port].port.as_ref(), length);
                let cut = cut.or_else(now)?;
                Some((remote, port, cut))
            });
            let Some((remote, port, cut)) = path else {
                channel.counters.unreachable.add(1);
                progress.outcome = Outcome::Unreachable;
                progress.continue_with(number + 1, 0, None);
                continue;
            };
            // Between lanes of this node there is no link.
            let policed = session.polices(&progress.descriptor);
            let declared = if policed && !ports[port].trusted {
                let flow = Some(Flow::Channel(ChannelId(channel.id)));
                let records = batch.map_or(0..cut.count(), |batch| batch.from..batch.to);
                let octets = cut.part(0).len() + remote.overhead();
                session.police(progress, number, flow, (records, octets), now_ns)
            } else {
                Ok(false)
            };
            let declared = match declared {
                Ok(declared) => declared,
                Err(outcome) => {
                    progress.outcome = outcome;
                    *left -= fair::FRAME;
                    if let (Some(entry), Some(batch)) = (s.reliable, batch) {
                        let refused = batch.records(batch.from..batch.to);
                        let steady_ns = self.round.steady_of(now_ns);
                        self.reliable
                            .give_up(entry, destination, refused, steady_ns);
                    }
                    progress.continue_with(number + 1, 0, None);
                    continue;
                }
            };
            let upto = batch.map_or(u32::MAX, |batch| batch.to);
            let most = fragments(&cut, *left).min(upto.saturating_sub(fragment));
            let (appended, refused) = if ports[port].schedules(&progress.descriptor) {
                let piece = Piece {
                    session: at,
                    source,
                    tenant: session.tenant.0 as u32,
                    descriptor: progress.descriptor,
                    declared,
                    again: false,
                    destination: Destination::Remote {
                        remote: destination,
                        message,
                        cut,
                        fragment,
                    },
                };
                let room = room.saturating_sub(u32::from(*pieces) - already);
                let now = TaiTime::from_nanos(now_ns);
                let (appended, refused, queued) =
                    schedule(remote, port, &mut ports[port], piece, room, most, now);
                *pieces += queued;
                progress.outcome = refused.unwrap_or(progress.outcome);
                if refused.is_some()
                    && let (Some(entry), Some(batch)) = (s.reliable, batch)
                {
                    let refused = batch.records(fragment + u32::from(queued)..batch.to);
                    let steady_ns = self.round.steady_of(now_ns);
                    self.reliable
                        .give_up(entry, destination, refused, steady_ns);
                }
                (appended, refused.is_some())
            } else if ports[port].yields(TaiTime::from_nanos(now_ns)) {
                progress.continue_with(number, fragment, Some(cut));
                return Sent::Unfinished(Step::Blocked);
            } else {
                let appended = remote.append(
                    port,
                    ports[port].port.as_mut(),
                    &message,
                    payload,
                    &cut,
                    fragment..fragment.saturating_add(most),
                );
                if remote.register_open(port) {
                    ports[port].open.push(destination);
                }
                ports[port].dirty = true;
                if self.taps.any() && !ports[port].trusted {
                    let end = match appended {
                        Appended::Done => cut.count(),
                        Appended::Until { fragment, .. } => fragment,
                        Appended::Held { .. } | Appended::Unreachable => fragment,
                    };
                    let to = remote.address();
                    let left = Passed::out(session.tenant_id, now_ns, to);
                    (self.taps).fragments(
                        &left,
                        self.incarnation,
                        &message,
                        payload,
                        &cut,
                        fragment..end,
                    );
                }
                (appended, false)
            };
            let next = match appended {
                Appended::Done => {
                    channel.counters.sent.add(u64::from(!refused));
                    if !refused && port != progress.carrier.port && !ports[port].trusted {
                        channel.counters.detoured.add(1);
                    }
                    *left -= cost(&cut, fragment..cut.count());
                    progress.continue_with(number + 1, 0, None);
                    continue;
                }
                Appended::Unreachable => {
                    channel.counters.unreachable.add(1);
                    progress.outcome = Outcome::Unreachable;
                    *left -= fair::FRAME;
                    progress.continue_with(number + 1, 0, None);
                    continue;
                }
                Appended::Until { fragment, .. } | Appended::Held { fragment } => fragment,
            };
            *left -= cost(&cut, fragment..next);
            if next == upto {
                progress.continue_with(number + 1, 0, None);
                continue;
            }
            progress.continue_with(number, next, Some(cut));
            return Sent::Unfinished(match appended {
                Appended::Until { blocked: true, .. } => Step::Blocked,
                Appended::Held { .. } => Step::Held,
                _ => Step::More,
            });
        }
        Sent::Finished(progress.outcome)
    }
}

/// How many fragments a turn that may still spend so much is good for.
#[inline]
pub(super) fn fragments(cut: &Cut, left: i64) -> u32 {
    match cut.count() {
        1 => 1,
        _ => {
            let each = fair::FRAME + cut.part(0).len() as i64;
            u32::try_from(left / each).unwrap_or(u32::MAX).max(1)
        }
    }
}

/// What fragments of a message cost. Short messages share frames.
#[inline]
fn cost(cut: &Cut, fragments: std::ops::Range<u32>) -> i64 {
    if cut.count() == 1 {
        return fair::COPY + cut.part(0).len() as i64;
    }
    i64::from(fragments.end - fragments.start) * (fair::FRAME + cut.part(0).len() as i64)
}

/// Gives a message, from the fragment of `piece` on, to the scheduler of a port: as many frames of it as there
/// is `room` for, and at most `most`. What became of it, why it is not taken, and how many frames wait.
#[cold]
pub(super) fn schedule(
    remote: &Remote,
    at: usize,
    port: &mut LanePort,
    piece: Piece,
    room: u32,
    most: u32,
    now: TaiTime,
) -> (Appended, Option<Outcome>, u16) {
    let unreachable = (Appended::Unreachable, None, 0);
    let Some(peer) = remote.via[at] else {
        return unreachable;
    };
    let kept = port.keeps(peer, class_of(&piece.descriptor));
    let Some(departures) = &mut port.departures else {
        return unreachable;
    };
    if kept {
        departures.hand_ahead(class_of(&piece.descriptor));
    }
    let queued = departures.queue_message(piece, room.min(most), remote.overhead(), now);
    let (appended, refused) = match queued.end {
        End::Done => (Appended::Done, None),
        End::Full { fragment } if u32::from(queued.pieces) == most && most < room => {
            let blocked = false;
            (Appended::Until { fragment, blocked }, None)
        }
        End::Full { fragment } => (Appended::Held { fragment }, None),
        End::Refused(outcome) => (Appended::Done, Some(outcome)),
    };
    (appended, refused, queued.pieces)
}

impl State {
    /// Sends what is due at the ports that have a scheduler. True if there was anything.
    pub(super) fn depart(&mut self, ports: &mut [LanePort]) -> bool {
        let mut worked = self.fall_due();
        for (at, lane_port) in ports.iter_mut().enumerate() {
            let waiting = |departures: &mut Box<Departures>| departures.due().is_some();
            let Some(mut departures) = lane_port.departures.take_if(waiting) else {
                continue;
            };
            self.round.work();
            let clock = self.round.clock().clone();
            if !departures.waits() && lane_port.dirty {
                let near = |due: TaiTime| due.nanos_since(clock.now()) <= GUARD_NS;
                // What was taken before leaves before, not with it; what the port does not take now is in front.
                if departures.due().is_some_and(near) && !self.flush(at, lane_port) {
                    lane_port.departures = Some(departures);
                    continue;
                }
            }
            worked |= departures.run(&*clock, &mut |leaving| match leaving {
                Leaving::Send(departure) => self.leave(lane_port, at, departure, None, true),
                Leaving::Again {
                    departure,
                    built,
                    tell,
                } => self.leave(lane_port, at, departure, built, tell),
                Leaving::Drop(piece, outcome) => {
                    self.departed(piece, Err(outcome));
                    Handed::Failed
                }
            });
            lane_port.departures = Some(departures);
        }
        if worked {
            self.room_available();
        }
        worked
    }

    /// Commits what is being filled at a port and hands over what is committed. True: the port has taken it all.
    #[inline]
    pub(super) fn flush(&mut self, at: usize, port: &mut LanePort) -> bool {
        for remote in port.open.drain(..) {
            if let Some(remote) = self.remotes.get_mut(remote)
                && remote.close(at, port.port.as_mut(), None)
            {
                self.counters.tx_datagrams.add(1);
            }
        }
        port.dirty = !port.port.flush();
        !port.dirty
    }

    /// Whoever was held back for want of room in a scheduler looks again.
    pub(super) fn room_available(&mut self) {
        if std::mem::take(&mut self.held) {
            self.tenants.resume_held();
        }
    }

    /// Builds the datagram of one frame, unless that is done, holds it until its start, unless the port does that, and
    /// hands it over. `tell`: its source is told what became of it.
    fn leave(
        &mut self,
        lane_port: &mut LanePort,
        at: usize,
        departure: &Departure<Piece>,
        built: Option<bool>,
        tell: bool,
    ) -> Handed {
        let piece = &departure.item.handle;
        let kept = match built {
            Some(kept) => kept,
            None => match self
                .build(lane_port, at, piece, departure.start)
                .or_else(|error| match error {
                    // What is in flight may have left by now.
                    NotBuilt::Blocked => {
                        self.flush(at, lane_port);
                        self.build(lane_port, at, piece, departure.start)
                    }
                    NotBuilt::Failed(_) => Err(error),
                }) {
                Ok(kept) => kept,
                Err(NotBuilt::Blocked) => return Handed::Waits { built: None },
                Err(NotBuilt::Failed(outcome)) => {
                    self.departed(piece, Err(outcome));
                    return Handed::Failed;
                }
            },
        };
        let start = departure.start.as_nanos();
        let mut from = self.round.read();
        // The scheduler is ahead by its lead at most: further only if the clock was stepped back.
        while !kept && from < start && start - from <= super::departure::DEVICE_LEAD_NS {
            std::hint::spin_loop();
            from = self.round.read();
        }
        if !lane_port.port.flush() {
            return Handed::Waits { built: Some(kept) };
        }
        lane_port.dirty = false;
        let mut to = self.round.read();
        if kept {
            // Its departure is the port's matter from here on: late is what was handed over late.
            (from, to) = (from.max(start), to.max(start));
        }
        self.counters.tx_datagrams.add(1);
        let (from, to) = (TaiTime::from_nanos(from), TaiTime::from_nanos(to));
        if self.taps.any() && !lane_port.trusted {
            self.tap(piece, to, tell);
        }
        if tell {
            self.departed(piece, Ok(to));
        }
        Handed::Over { from, to }
    }

    /// Copies a frame that has left for captures. `held`: it is still in its application's memory.
    #[cold]
    fn tap(&self, piece: &Piece, at: TaiTime, held: bool) {
        let Some(session) = self.tenants.sessions.get(piece.session) else {
            return;
        };
        let left = |to| Passed::out(session.tenant_id, at.as_nanos(), to);
        if !held {
            return self.taps.lose(&left(None));
        }
        let payload = session.emitted(piece.descriptor.chunk, piece.descriptor.length);
        match &piece.destination {
            Destination::Remote {
                remote,
                message,
                cut,
                fragment,
            } => {
                let remote = self.remotes.get(*remote);
                let left = left(remote.and_then(Remote::address));
                let fragments = *fragment..fragment + 1;
                (self.taps).fragments(&left, self.incarnation, message, payload, cut, fragments);
            }
            Destination::Network { network, exit } => {
                let network = self.networks.get(*network);
                let left = left(network.and_then(|network| network.tunnel(*exit)));
                self.taps.frame(&left, class_of(&piece.descriptor), payload);
            }
        }
    }

    /// Commits the datagram of one frame: whether the port keeps its start.
    fn build(
        &mut self,
        lane_port: &mut LanePort,
        at: usize,
        piece: &Piece,
        start: TaiTime,
    ) -> Result<bool, NotBuilt> {
        match piece.destination {
            Destination::Remote {
                remote,
                message,
                cut,
                fragment,
            } => self.build_fragment(
                lane_port, at, piece, remote, &message, &cut, fragment, start,
            ),
            Destination::Network { network, exit } => {
                self.build_frame(lane_port, at, piece, network, exit, start)
            }
        }
    }

    /// Commits the datagram of one fragment: whether the port keeps its start.
    #[allow(clippy::too_many_arguments)] // one fragment: where, of what, when
    fn build_fragment(
        &mut self,
        lane_port: &mut LanePort,
        at: usize,
        piece: &Piece,
        remote: RemoteSlot,
        message: &Outgoing,
        cut: &Cut,
        fragment: u32,
        start: TaiTime,
    ) -> Result<bool, NotBuilt> {
        let gone = NotBuilt::Failed(Outcome::Unreachable);
        let Some(remote) = self.remotes.get_mut(remote) else {
            return Err(gone);
        };
        let Some(session) = self.tenants.sessions.get(piece.session) else {
            return Err(gone);
        };
        let Some(peer) = remote.via[at] else {
            return Err(gone);
        };
        let kept = lane_port.keeps(peer, message.class);
        let port = lane_port.port.as_mut();
        // What is being filled leaves before, not with it.
        remote.close(at, port, None);
        let payload = session.emitted(piece.descriptor.chunk, piece.descriptor.length);
        let put = remote.part(at, port, message, payload, cut, fragment);
        if let Err(error) = put {
            lane_port.dirty = true;
            return Err(match error {
                ReserveError::WouldBlock => NotBuilt::Blocked,
                _ => gone,
            });
        }
        remote.close(at, port, kept.then_some(start));
        Ok(kept)
    }

    /// A frame has left its scheduler: sent at an instant, or not for the reason given.
    pub(super) fn departed(&mut self, piece: &Piece, left: Result<TaiTime, Outcome>) {
        if let Err(outcome) = left {
            self.not_departed(piece, outcome);
        }
        let chunk = piece.descriptor.chunk;
        let left = left.map(|at| self.local.left(&piece.descriptor, at));
        let told = (!piece.again).then_some(left);
        self.tenants
            .departed(piece.session, piece.source, chunk, told);
    }
}

/// Why a frame that is to leave is not in a port's.
#[derive(Clone, Copy)]
pub(super) enum NotBuilt {
    /// None of those is free.
    Blocked,
    /// It does not leave.
    Failed(Outcome),
}

pub(super) enum Sent {
    Finished(Outcome),
    Unfinished(Step),
}

pub(super) fn class_of(descriptor: &TxDescriptor) -> TrafficClass {
    // Checked when it was taken.
    TrafficClass::new(descriptor.class).unwrap_or_default()
}
