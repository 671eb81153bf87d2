//! Messages with a launch time for sinks of this very lane.
//!
//! They wait for that time here: without a link there is no gate, no guard band and no order between tenants. Then their
//! source gives them out in the turns of its tenant, like all that it emits, before what it has emitted since.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use takt_session::layout::{FLAG_AT_ONCE_HERE, FLAG_LAUNCH_TIME, Outcome, TxDescriptor};
use takt_time::TaiTime;

use super::State;
use super::departure::HORIZON;
use super::egress::{PER_SESSION, PER_TENANT, class_of};
use super::session::{InProgress, LaneSource, Left, Target};
use super::tenants::Given;
use crate::config::{Departure, Late};
use crate::slots::{SessionSlot, SourceSlot};

/// Messages that fall due in a round.
const BUDGET: usize = 64;

/// A message that waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    launch_ns: i64,
    /// Among those of the same launch time they go as they came.
    arrival: u64,
    pub session: SessionSlot,
    pub source: SourceSlot,
    pub message: InProgress,
}

impl Waiting {
    fn order(&self) -> (i64, u64) {
        (self.launch_ns, self.arrival)
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

/// When a message is for the sinks of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Now,
    At(i64),
    /// Not at all, for this reason.
    Never(Outcome),
}

/// The messages that wait on a lane.
#[derive(Debug, Default)]
pub struct Local {
    how: Departure,
    heap: BinaryHeap<Reverse<Waiting>>,
    arrivals: u64,
}

impl Local {
    /// What becomes of late ones.
    pub fn set_departure(&mut self, how: Departure) {
        self.how = how;
    }

    /// As many tenants have room, each for as much as may wait in schedulers.
    pub fn set_tenants(&mut self, count: usize) {
        let most = count * PER_TENANT as usize;
        self.heap.reserve(most.saturating_sub(self.heap.len()));
    }

    /// When a message of a source is for sinks here. What a reliable source emits arrives in order; of others what has a launch
    /// time does not overtake what waits for the same one.
    #[inline]
    pub fn when(&self, descriptor: &TxDescriptor, source: &LaneSource, now_ns: i64) -> When {
        let waits = source.local > 0;
        let behind = (waits && source.reliable.is_some()).then_some(source.local_until_ns);
        let flags = descriptor.flags & (FLAG_LAUNCH_TIME | FLAG_AT_ONCE_HERE);
        if flags != FLAG_LAUNCH_TIME && behind.is_none() {
            return When::Now;
        }
        let launch_ns = match flags {
            FLAG_LAUNCH_TIME => descriptor.launch_time_ns,
            _ => i64::MIN,
        };
        let ahead = launch_ns.saturating_sub(now_ns);
        if ahead > HORIZON.as_nanos() as i64 {
            return When::Never(Outcome::NotScheduled);
        }
        if flags == FLAG_LAUNCH_TIME && behind.is_none() && self.is_too_late(ahead) {
            return When::Never(Outcome::Late);
        }
        match behind.map_or(launch_ns, |behind| behind.max(launch_ns)) {
            at if at > now_ns || waits => When::At(at),
            _ => When::Now,
        }
    }

    /// Whether so late a message is dropped.
    fn is_too_late(&self, ahead_ns: i64) -> bool {
        self.how.late == Late::Drop && ahead_ns < -self.tolerance_ns()
    }

    /// A message, or a frame of it, has left.
    #[inline]
    pub fn left(&self, descriptor: &TxDescriptor, at: TaiTime) -> Left {
        let past = || at.as_nanos().saturating_sub(descriptor.launch_time_ns);
        Left {
            at,
            late: descriptor.flags & FLAG_LAUNCH_TIME != 0 && past() > self.tolerance_ns(),
        }
    }

    fn tolerance_ns(&self) -> i64 {
        i64::try_from(self.how.tolerance.as_nanos()).unwrap_or(i64::MAX)
    }

    /// A message waits.
    pub fn push(
        &mut self,
        session: SessionSlot,
        source: SourceSlot,
        message: InProgress,
        launch_ns: i64,
    ) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.heap.push(Reverse(Waiting {
            launch_ns,
            arrival,
            session,
            source,
            message,
        }));
    }

    /// The first launch time.
    #[inline]
    pub fn due_ns(&self) -> Option<i64> {
        self.heap.peek().map(|Reverse(first)| first.launch_ns)
    }

    /// The next message whose time has come.
    pub fn pop(&mut self, now_ns: i64) -> Option<Waiting> {
        self.due_ns().filter(|due| *due <= now_ns)?;
        self.heap.pop().map(|Reverse(first)| first)
    }

    /// Takes out what waits of a session.
    fn remove(&mut self, session: SessionSlot) -> Vec<(SourceSlot, InProgress)> {
        let of = |other: &&Reverse<Waiting>| other.0.session == session;
        let removed = self.heap.iter().filter(of);
        let removed = removed.map(|Reverse(w)| (w.source, w.message)).collect();
        self.heap.retain(|Reverse(other)| other.session != session);
        removed
    }
}

impl State {
    /// When the first message that waits for sinks of this lane is due.
    #[inline]
    pub(super) fn due_here(&self) -> Option<TaiTime> {
        self.local.due_ns().map(TaiTime::from_nanos)
    }

    /// Whether the sinks of this lane are given a message now, as far as it is for any: otherwise it waits for its launch time,
    /// one of `pieces` more that hold it, or is not for them any more. False: there is no room for it to wait.
    #[inline]
    pub(super) fn wait_here(
        &mut self,
        at: SessionSlot,
        source: SourceSlot,
        message: &mut InProgress,
        now_ns: i64,
        pieces: &mut u16,
    ) -> bool {
        if message.sinks.is_empty() {
            return true;
        }
        let Some(s) = self.tenants.source(at, source) else {
            return true;
        };
        match self.local.when(&message.descriptor, s, now_ns) {
            // What has begun goes on.
            When::Now => true,
            _ if message.copying.is_some() => true,
            When::At(launch_ns) => self.keep_here(at, source, message, launch_ns, pieces),
            When::Never(outcome) => {
                self.lose_here(at, source, message);
                message.outcome = outcome;
                true
            }
        }
    }

    #[cold]
    fn keep_here(
        &mut self,
        at: SessionSlot,
        source: SourceSlot,
        message: &mut InProgress,
        launch_ns: i64,
        pieces: &mut u16,
    ) -> bool {
        let session = self.tenants.sessions.get(at);
        if session.is_none_or(|session| self.room(session) <= u32::from(*pieces)) {
            return false;
        }
        if let Some(s) = self.tenants.source(at, source) {
            s.local += 1;
            s.local_until_ns = launch_ns;
        }
        self.local.push(at, source, *message, launch_ns);
        *pieces += 1;
        message.sinks.next = message.sinks.end;
        true
    }

    /// The sinks of this lane do not get a message: it counts as lost there.
    #[cold]
    fn lose_here(&mut self, at: SessionSlot, source: SourceSlot, message: &mut InProgress) {
        let sinks = std::mem::take(&mut message.sinks);
        if let Some(s) = self.tenants.source(at, source)
            && let Target::Channel(channel) = s.target
            && let Some(channel) = self.channels.get(channel)
        {
            self.tenants.lose_emitted(at, channel, sinks);
        }
    }

    /// Messages whose launch times have come are their sources' to give out. True if there were any.
    #[inline]
    pub(super) fn fall_due(&mut self) -> bool {
        match self.local.due_ns() {
            Some(due_ns) => self.fall_due_from(due_ns),
            None => false,
        }
    }

    #[cold]
    fn fall_due_from(&mut self, due_ns: i64) -> bool {
        let now_ns = self.round.read();
        if due_ns > now_ns {
            return false;
        }
        for _ in 0..BUDGET {
            let Some(waiting) = self.local.pop(now_ns) else {
                break;
            };
            let (at, source) = (waiting.session, waiting.source);
            let Some(s) = self.tenants.source(at, source) else {
                continue;
            };
            if s.reliable.is_none()
                && self
                    .local
                    .is_too_late(waiting.launch_ns.saturating_sub(now_ns))
            {
                let mut message = waiting.message;
                self.lose_here(at, source, &mut message);
                self.given_here(at, source, &message, Err(Outcome::Late));
                continue;
            }
            if s.due.capacity() == 0 {
                // Its first one: as many as may ever wait.
                s.due.reserve(PER_SESSION as usize);
            }
            s.due.push_back(waiting.message);
            let class = class_of(&waiting.message.descriptor);
            self.tenants.wait_in(at, class);
        }
        self.round.work();
        true
    }

    /// Gives the sinks of this lane what is due of a source, as far as the turn goes.
    #[cold]
    pub(super) fn give_due(
        &mut self,
        at: SessionSlot,
        source: SourceSlot,
        now_ns: i64,
        left: &mut i64,
    ) -> Given {
        let due = |s: &mut Self| Some(*s.tenants.source(at, source)?.due.front()?);
        while let Some(mut message) = due(self) {
            if *left <= 0 {
                return Given::More;
            }
            let given = self.deliver_here(at, source, &mut message, now_ns, left);
            if given != Given::ToAll {
                let s = self.tenants.source(at, source);
                if let Some(front) = s.and_then(|s| s.due.front_mut()) {
                    *front = message;
                }
                return given;
            }
            if let Some(s) = self.tenants.source(at, source) {
                s.due.pop_front();
            }
            let now = TaiTime::from_nanos(self.round.read());
            self.given_here(at, source, &message, Ok(now));
        }
        self.room_available();
        Given::ToAll
    }

    /// A message does not wait for sinks of this lane any more.
    fn given_here(
        &mut self,
        at: SessionSlot,
        source: SourceSlot,
        message: &InProgress,
        given: Result<TaiTime, Outcome>,
    ) {
        if let Some(s) = self.tenants.source(at, source) {
            s.local -= 1;
        }
        let chunk = message.descriptor.chunk;
        let left = given.map(|at| self.local.left(&message.descriptor, at));
        self.tenants.departed(at, source, chunk, Some(left));
    }

    /// A session is gone: what waits of it does so no more.
    pub(super) fn withdraw_here(&mut self, at: SessionSlot) {
        let Some(session) = self.tenants.sessions.get(at) else {
            return;
        };
        let sources = session.sources.entries();
        let due = sources.flat_map(|(source, s)| s.due.iter().map(move |m| (source, *m)));
        let mut waiting: Vec<_> = due.collect();
        waiting.extend(self.local.remove(at));
        for (source, message) in waiting {
            self.given_here(at, source, &message, Err(Outcome::Unreachable));
        }
    }
}
