//! The tenants of a lane with their sessions: whose turn it is, and what all paths do with sessions: deliver,
//! count, wake, end.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use takt_session::Failure;
use takt_session::layout::Outcome;
use takt_time::TrafficClass;

use super::channel::{Channel, Channels, Group};
use super::fair::{self, RoundRobin};
use super::members::Rest;
use super::reassembly::Target;
use super::session::{
    Copying, Delivery, DirectSinks, InProgress, LaneSession, LaneSource, Left, Meta, Put,
};
use crate::counters::ChannelCounters;
use crate::policing::Policer;
use crate::policy::Rates;
use crate::slots::{ChannelSlot, SessionSlot, SinkSlot, SourceSlot, Table, TenantSlot};

/// Bytes of a message that are copied before it is asked whether the turn goes on.
const PIECE: usize = 32 << 10;
/// What a lane does of what it receives, from one port, before it has all that was there: beyond that, if it serves several
/// tenants, each has its part of a round for copies to its further sinks of a channel, and what is for them beyond that part is
/// lost to them. A burst of 64 long datagrams for 64 sinks.
pub const MOST_BEHIND: i64 = 64 * fair::QUANTUM;
/// Sinks of one tenant that are shown in a round, and threads of it that are woken.
const MOST_SHOWN: usize = 256;
const MOST_WOKEN: usize = 16;

/// Sessions that are looked at in every round whether they ring or not.
const ALWAYS_WATCHED: usize = 8;
/// Further ones only as long as they have rung within this time.
const IDLE_AFTER_NS: i64 = 100_000_000;

/// How far a message has been given to the sinks of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    ToAll,
    /// The turn has run out before.
    More,
    /// A sink has no room, and its source waits.
    Waits,
}

/// That a source waits for sinks without room, and how long.
pub struct Waits {
    /// `None`: for ever.
    pub patience_ns: Option<i64>,
    /// Until when its message is of use. `None`: always. This and `now_ns` are of a time that is never stepped.
    pub until_ns: Option<i64>,
    pub now_ns: i64,
}

/// A tenant: the sessions of one listening socket, as far as they are on this lane.
#[derive(Debug)]
struct Tenant {
    id: u32,
    sessions: usize,
    /// Sessions with something to do, in the order of their turns, by the highest class of what that is.
    waiting: [VecDeque<SessionSlot>; TrafficClass::COUNT],
    /// Sinks with entries to show: indices of session and sink, each once in a class.
    pending: [VecDeque<(SessionSlot, SinkSlot)>; TrafficClass::COUNT],
    /// Of [`MOST_SHOWN`] and [`MOST_WOKEN`], what is left of the present showing.
    showing: Showing,
    sinks: usize,
    rates: Arc<Rates>,
    /// Its rates hold its messages back: none is taken until those have their turns who wait for that.
    throttled: bool,
    /// Sessions whose messages they hold back, each once, and the one of them that was the last to have some taken.
    held_back: VecDeque<SessionSlot>,
    last_taken: Option<SessionSlot>,
    /// Frames of its messages that wait in schedulers.
    departing: u32,
    /// What was done for its further sinks, of what the lane received while it was behind, beyond its part of the rounds until then;
    /// and the last of those.
    received: i64,
    received_in: u64,
}

/// What a tenant may still cause in one showing, and which one that is.
#[derive(Debug, Default)]
struct Showing {
    number: u64,
    sinks: usize,
    wakes: usize,
}

impl Showing {
    /// Begins, unless that is done, the showing with this number.
    fn begin(&mut self, number: u64) {
        if self.number != number {
            *self = Self {
                number,
                sinks: MOST_SHOWN,
                wakes: MOST_WOKEN,
            };
        }
    }

    fn is_over(&self) -> bool {
        self.sinks == 0 || self.wakes == 0
    }
}

impl Tenant {
    /// A session waits behind the others of its tenant in a class, once.
    #[inline]
    fn line_up(&mut self, at: SessionSlot, session: &mut LaneSession, class: TrafficClass) {
        let bit = 1 << class.number();
        if session.waiting & bit == 0 {
            session.waiting |= bit;
            self.waiting[usize::from(class.number())].push_back(at);
        }
    }

    /// A session has something to do in a class: it waits behind the others of its tenant, and that one for a turn.
    #[inline]
    fn enqueue(
        &mut self,
        at: SessionSlot,
        session: &mut LaneSession,
        class: TrafficClass,
        turns: &mut RoundRobin,
    ) {
        self.line_up(at, session, class);
        turns.wait(session.tenant, class);
    }

    /// Its rates hold nothing back any more: sessions have their turns in the order that they had, but for the one that had the
    /// last.
    #[cold]
    fn resume(&mut self, sessions: &mut Table<SessionSlot, LaneSession>, turns: &mut RoundRobin) {
        for (class, waiting) in TrafficClass::all().zip(&mut self.waiting) {
            // Something else may have given them a turn meanwhile.
            waiting.retain(|at| match sessions.get_mut(*at) {
                Some(session) if session.held_back.is_some() => {
                    session.held_back = session.held_back.max(Some(class));
                    session.waiting &= !(1 << class.number());
                    false
                }
                session => session.is_some(),
            });
        }
        let behind = self.waiting.each_ref().map(VecDeque::len);
        let mut line_up = |tenant: &mut Self, at: SessionSlot| {
            if let Some(session) = sessions.get_mut(at)
                && let Some(class) = session.held_back.take()
            {
                tenant.enqueue(at, session, class, turns);
            }
        };
        let last = self.last_taken.take();
        while let Some(at) = self.held_back.pop_front() {
            if Some(at) != last {
                line_up(self, at);
            }
        }
        for (waiting, behind) in self.waiting.iter_mut().zip(behind) {
            waiting.rotate_left(behind);
        }
        if let Some(last) = last {
            line_up(self, last);
        }
    }
}

/// The session has something to do, in the highest class that its sources have: its tenant is charged for finding out.
/// One that has nothing left for that is not looked at: in a turn of the lowest class it is served whatever it has.
#[inline]
fn enqueue(
    at: SessionSlot,
    session: &mut LaneSession,
    list: &mut Table<TenantSlot, Tenant>,
    turns: &mut RoundRobin,
) {
    let Some(tenant) = list.get_mut(session.tenant) else {
        return;
    };
    let mut class = TrafficClass::BEST_EFFORT;
    if turns.may_look(session.tenant) {
        let (highest, cost) = session.highest_waiting();
        turns.charge_look(session.tenant, cost);
        class = highest;
    }
    tenant.enqueue(at, session, class, turns);
}

/// Tenants and sessions, with what the present round has changed in them.
#[derive(Debug, Default)]
pub struct Tenants {
    pub sessions: Table<SessionSlot, LaneSession>,
    /// Those whose doorbells are looked at in every round.
    watched: Vec<SessionSlot>,
    list: Table<TenantSlot, Tenant>,
    by_id: HashMap<u32, TenantSlot>,
    pub turns: RoundRobin,
    /// Tenants that their rates hold back.
    throttled: Vec<TenantSlot>,
    /// Tenants with sinks to show, by the class of what is to be shown, each once in a class.
    showing: [VecDeque<TenantSlot>; TrafficClass::COUNT],
    /// The number of the present showing.
    shown: u64,
    /// The number of the present round, as far as receiving goes.
    receiving: u64,
    /// Channels with messages that were passed over for some tenant, each once.
    passed_over: Vec<ChannelSlot>,
    /// Sessions that broke the protocol and have not been ended yet.
    failed: VecDeque<(SessionSlot, Failure)>,
}

impl Tenants {
    /// Takes a session in; it is looked at in the next round.
    pub fn insert(&mut self, mut session: LaneSession) -> SessionSlot {
        let id = session.tenant_id;
        let tenant = match self.by_id.get(&id) {
            Some(&tenant) => tenant,
            None => {
                let tenant = self.list.insert(Tenant {
                    id,
                    sessions: 0,
                    waiting: Default::default(),
                    pending: Default::default(),
                    showing: Showing::default(),
                    sinks: 0,
                    rates: session.rates.clone(),
                    throttled: false,
                    held_back: VecDeque::new(),
                    last_taken: None,
                    departing: 0,
                    received: 0,
                    received_in: 0,
                });
                self.by_id.insert(id, tenant);
                self.turns.add(tenant);
                self.throttled.reserve(self.list.len());
                for showing in &mut self.showing {
                    showing.reserve(self.list.len());
                }
                tenant
            }
        };
        session.tenant = tenant;
        session.watched = true;
        let at = self.sessions.insert(session);
        self.watched.push(at);
        // For those that are not watched, when they ring.
        self.watched
            .reserve(self.sessions.len() - self.watched.len());
        if let Some(tenant) = self.list.get_mut(tenant) {
            tenant.sessions += 1;
            for waiting in &mut tenant.waiting {
                waiting.reserve(tenant.sessions);
            }
            tenant.held_back.reserve(tenant.sessions);
        }
        self.wait(at);
        at
    }

    /// What a tenant's sessions send is held to its streams as they are now.
    pub fn police(&mut self, tenant: u32, policer: &Arc<Policer>) {
        for (_, session) in self.sessions.iter_mut() {
            if session.tenant_id == tenant {
                session.take_policer(policer.clone());
            }
        }
    }

    /// A source of a session.
    #[inline]
    pub fn source(&mut self, at: SessionSlot, source: SourceSlot) -> Option<&mut LaneSource> {
        self.sessions.get_mut(at)?.sources.get_mut(source)
    }

    /// The listener, or what is in place of one, of a tenant.
    pub fn id_of(&self, tenant: TenantSlot) -> Option<u32> {
        Some(self.list.get(tenant)?.id)
    }

    /// How many numbers tenants have.
    pub fn numbers(&self) -> usize {
        self.list
            .iter()
            .next_back()
            .map_or(0, |(last, _)| last.0 + 1)
    }

    /// Takes a session out, and its tenant if it was the last one.
    pub fn remove(&mut self, at: SessionSlot) -> Option<LaneSession> {
        let session = self.sessions.remove(at)?;
        self.watched.retain(|watched| *watched != at);
        // Another one may have its place when their turn comes.
        self.failed.retain(|(failed, _)| *failed != at);
        let tenant = self.list.get_mut(session.tenant)?;
        tenant.sessions -= 1;
        for waiting in &mut tenant.waiting {
            waiting.retain(|waiting| *waiting != at);
        }
        tenant.held_back.retain(|waiting| *waiting != at);
        for pending in &mut tenant.pending {
            pending.retain(|(of, _)| *of != at);
        }
        if tenant.sessions == 0 {
            self.by_id.remove(&tenant.id);
            self.list.remove(session.tenant);
            self.turns.remove(session.tenant);
            self.throttled.retain(|other| *other != session.tenant);
            for showing in &mut self.showing {
                showing.retain(|other| *other != session.tenant);
            }
        }
        Some(session)
    }

    /// The session has something to do: it gets a turn.
    #[inline]
    pub fn wait(&mut self, at: SessionSlot) {
        if let Some(session) = self.sessions.get_mut(at) {
            enqueue(at, session, &mut self.list, &mut self.turns);
        }
    }

    /// Takes the doorbells of the sessions that are watched. True if any has rung.
    #[inline]
    pub fn listen(&mut self) -> bool {
        let mut rung = false;
        for &at in &self.watched {
            let Some(session) = self.sessions.get_mut(at) else {
                continue;
            };
            if session.bell.take_dirty() {
                rung = true;
                session.rang = true;
                enqueue(at, session, &mut self.list, &mut self.turns);
            }
        }
        rung
    }

    /// How many are watched.
    #[cfg(test)]
    pub fn watched(&self) -> usize {
        self.watched.len()
    }

    /// Whether some sessions are not watched: their doorbells' descriptors are to be looked at.
    #[inline]
    pub fn has_idle(&self) -> bool {
        self.watched.len() < self.sessions.len()
    }

    /// Watches sessions no more that have not rung for long, by the time that is never stepped: from then on they ring as if the lane were parked.
    /// Rounds cost as much as there are sessions at work, not as there are sessions.
    pub fn rest(&mut self, now_ns: i64) {
        let (sessions, list, turns) = (&mut self.sessions, &mut self.list, &mut self.turns);
        let mut excess = self.watched.len().saturating_sub(ALWAYS_WATCHED);
        self.watched.retain(|&at| {
            let Some(session) = sessions.get_mut(at) else {
                return false;
            };
            if std::mem::take(&mut session.rang) {
                session.rang_ns = now_ns;
            }
            if excess == 0 || now_ns.saturating_sub(session.rang_ns) < IDLE_AFTER_NS {
                return true;
            }
            session.bell.park();
            if session.bell.take_dirty() {
                session.bell.unpark();
                session.rang = true;
                enqueue(at, session, list, turns);
                return true;
            }
            excess -= 1;
            session.watched = false;
            false
        });
    }

    /// The descriptor of a session's doorbell has been written: it is watched again.
    pub fn woken(&mut self, at: SessionSlot) {
        if let Some(session) = self.sessions.get_mut(at)
            && !std::mem::replace(&mut session.watched, true)
        {
            session.bell.unpark();
            session.rang = true;
            // Room was made when it came. What it has rung for is found when the doorbells are taken.
            self.watched.push(at);
        }
    }

    /// Tells those that are watched that the lane is going to sleep.
    pub fn park(&self) {
        self.each_watched(|session| session.bell.park());
    }

    /// Tells those that are watched that the lane looks at them again.
    pub fn unpark(&self) {
        self.each_watched(|session| session.bell.unpark());
    }

    fn each_watched(&self, tell: impl Fn(&LaneSession)) {
        let sessions = self.watched.iter().filter_map(|at| self.sessions.get(*at));
        sessions.for_each(tell);
    }

    /// From when on a tenant that its rates hold back may go on; `None`: there is none.
    #[inline]
    pub fn throttled_until(&self) -> Option<i64> {
        let tenants = self.throttled.iter().filter_map(|at| self.list.get(*at));
        tenants.map(|tenant| tenant.rates.ready_at()).min()
    }

    /// Gives turns to sessions whose messages rates no longer hold back.
    pub fn unthrottle(&mut self, now_ns: i64) {
        let (sessions, list, turns) = (&mut self.sessions, &mut self.list, &mut self.turns);
        self.throttled.retain(|&at| {
            let Some(tenant) = list.get_mut(at) else {
                return false;
            };
            tenant.throttled = !tenant.rates.ready(now_ns);
            if !tenant.throttled {
                tenant.resume(sessions, turns);
            }
            tenant.throttled
        });
    }

    /// Whether no messages are taken of a session's tenant before others of it have had their turns.
    #[inline]
    pub fn is_throttled(&self, at: SessionSlot) -> bool {
        !self.throttled.is_empty()
            && (self.of_session(at).and_then(|tenant| self.list.get(tenant)))
                .is_some_and(|tenant| tenant.throttled)
    }

    /// The rates of its tenant hold messages of a session back in its turn in a class: for them it gets none until they no
    /// longer do. `taken`: it has had some taken before, and goes behind those that have not.
    #[cold]
    pub fn throttle(&mut self, at: SessionSlot, class: TrafficClass, taken: bool) {
        if let Some(session) = self.sessions.get_mut(at)
            && let Some(tenant) = self.list.get_mut(session.tenant)
        {
            if session.held_back.is_none() {
                session.counters.throttled.add(1);
                // Room was made when it came.
                tenant.held_back.push_back(at);
            }
            session.held_back = session.held_back.max(Some(class));
            if taken {
                tenant.last_taken = Some(at);
            }
            if !std::mem::replace(&mut tenant.throttled, true) {
                self.throttled.push(session.tenant);
            }
        }
    }

    /// The session of a tenant whose turn in a class it is: the next one, or the same again until it
    /// [yields](Self::yield_turn).
    #[inline]
    pub fn next_session(&self, tenant: TenantSlot, class: TrafficClass) -> Option<SessionSlot> {
        let tenant = self.list.get(tenant)?;
        tenant.waiting[usize::from(class.number())].front().copied()
    }

    /// How many sessions of a tenant wait in a class.
    #[inline]
    pub fn sessions_waiting(&self, tenant: TenantSlot, class: TrafficClass) -> usize {
        let tenant = self.list.get(tenant);
        tenant.map_or(0, |t| t.waiting[usize::from(class.number())].len())
    }

    /// The session in front goes behind the others of the class of what it has, or away if it has nothing to do.
    #[inline]
    pub fn yield_turn(&mut self, tenant: TenantSlot, class: TrafficClass, again: bool) {
        let Some(t) = self.list.get_mut(tenant) else {
            return;
        };
        let Some(at) = t.waiting[usize::from(class.number())].pop_front() else {
            return;
        };
        let Some(session) = self.sessions.get_mut(at) else {
            return;
        };
        session.waiting &= !(1 << class.number());
        if !again {
            return;
        }
        let (next, cost) = session.highest_waiting();
        self.turns.charge_look(tenant, cost);
        t.line_up(at, session, next);
        // The turn that it has goes on in its own class; another one is another turn.
        if next != class {
            self.turns.wait(tenant, next);
        }
    }

    /// The session has something to do in this class, whatever else it has.
    #[inline]
    pub fn wait_in(&mut self, at: SessionSlot, class: TrafficClass) {
        let Some(session) = self.sessions.get_mut(at) else {
            return;
        };
        if let Some(tenant) = self.list.get_mut(session.tenant) {
            tenant.enqueue(at, session, class, &mut self.turns);
        }
    }

    /// Gives turns to sessions with a source that waited for room in a scheduler.
    pub fn resume_held(&mut self) {
        for (at, session) in self.sessions.iter_mut() {
            if std::mem::take(&mut session.held) {
                enqueue(at, session, &mut self.list, &mut self.turns);
            }
        }
    }

    /// Frames of a tenant that wait in schedulers.
    #[inline]
    pub fn departing(&self, tenant: TenantSlot) -> u32 {
        self.list.get(tenant).map_or(0, |t| t.departing)
    }

    /// So many frames of an emitted message wait in schedulers: it is held until all have left.
    pub fn hold(&mut self, at: SessionSlot, source: SourceSlot, chunk: u32, frames: u16) {
        if let Some(session) = self.sessions.get_mut(at) {
            session.hold(source, chunk, frames);
            if let Some(tenant) = self.list.get_mut(session.tenant) {
                tenant.departing += u32::from(frames);
            }
        }
    }

    /// One of those frames has left at this instant, or was dropped for this reason. `None`: its message is told nothing of it.
    pub fn departed(
        &mut self,
        at: SessionSlot,
        source: SourceSlot,
        chunk: u32,
        left: Option<Result<Left, Outcome>>,
    ) {
        let Some(session) = self.sessions.get_mut(at) else {
            return;
        };
        if let Some(tenant) = self.list.get_mut(session.tenant) {
            tenant.departing = tenant.departing.saturating_sub(1);
        }
        if let Err(failure) = session.departed(source, chunk, left) {
            self.fail(at, failure);
        }
        // The completion is to be shown, and a closing source may be done.
        self.wait(at);
    }

    /// Puts a message into every sink of a channel: one copy each. Returns what that cost. `behind`: what the lane has
    /// done since it last had received all that there was.
    #[inline]
    pub fn deliver_bytes(
        &mut self,
        channel: &mut Channel,
        index: ChannelSlot,
        meta: &Meta,
        payload: &[u8],
        behind: i64,
    ) -> i64 {
        let mut spent = 0;
        let mut lost = false;
        for group in &mut channel.groups {
            let each = fair::COPY + payload.len() as i64;
            if !self.admits(group, each, behind + spent) {
                spent += self.pass_over(group, index);
                lost = true;
                continue;
            }
            spent += group.cost(each);
            for &(at, sink) in &group.sinks {
                let Some(session) = self.sessions.get_mut(at) else {
                    continue;
                };
                let result = match session.place(sink, payload.len()) {
                    Ok(Ok(chunk)) => {
                        let copied = session.placed(chunk, payload.len()).write_from(0, payload);
                        debug_assert!(copied.is_ok(), "placed memory is as long as asked for");
                        session.deliver(sink, chunk, meta)
                    }
                    Ok(Err(dropped)) => Ok(dropped),
                    Err(failure) => Err(failure),
                };
                self.account_received(at, sink, meta.class, &channel.counters, result);
            }
        }
        channel.counters.lost.add(lost.into());
        spent
    }

    /// Another round of receiving begins.
    #[inline]
    pub fn begin_receiving(&mut self) {
        self.receiving += 1;
    }

    /// Whether something that was received is done for a tenant's sinks of a channel, at this cost for each. While the lane is
    /// not too far behind, all of it is; else a tenant has a quantum in each round for sinks beyond the first, and pays later
    /// for what was done beyond that.
    #[inline]
    pub fn admits(&mut self, group: &Group, each: i64, behind: i64) -> bool {
        if !self.is_far(behind) {
            return true;
        }
        let has = self.has_part(group.tenant, group.sinks.len());
        if has {
            self.charge_part(group.tenant, group.cost_of_others(each));
        }
        has
    }

    /// Whether the lane is so far behind that each tenant has no more than its part. With one tenant nobody else waits.
    #[inline]
    pub fn is_far(&self, behind: i64) -> bool {
        behind > MOST_BEHIND && self.list.len() > 1
    }

    /// Whether a tenant has a part of this round left, for something that goes to so many of its sinks.
    #[cold]
    pub fn has_part(&mut self, tenant: TenantSlot, sinks: usize) -> bool {
        let Some(tenant) = self.list.get_mut(tenant) else {
            return true;
        };
        let rounds = self.receiving.saturating_sub(tenant.received_in);
        let rounds = i64::try_from(rounds).unwrap_or(i64::MAX);
        let paid = rounds.saturating_mul(fair::QUANTUM);
        tenant.received = tenant.received.saturating_sub(paid).max(0);
        tenant.received_in = self.receiving;
        tenant.received < fair::QUANTUM || sinks <= 1
    }

    /// Whose session this is.
    pub fn of_session(&self, at: SessionSlot) -> Option<TenantSlot> {
        self.sessions.get(at).map(|session| session.tenant)
    }

    /// Takes so much of a tenant's part.
    #[cold]
    pub fn charge_part(&mut self, tenant: TenantSlot, cost: i64) {
        if let Some(tenant) = self.list.get_mut(tenant) {
            tenant.received = tenant.received.saturating_add(cost);
        }
    }

    /// Whether something that was received is done for all tenants with sinks of a channel.
    #[inline]
    pub fn all_admit(&mut self, channel: &Channel, behind: i64) -> bool {
        !self.is_far(behind)
            || (channel.groups.iter()).all(|group| self.has_part(group.tenant, group.sinks.len()))
    }

    /// Takes of the parts of all tenants with sinks of a channel what was done for each sink. Returns what that cost.
    #[inline]
    pub fn charge_all(&mut self, channel: &Channel, each: i64, behind: i64) -> i64 {
        if self.is_far(behind) {
            for group in &channel.groups {
                self.charge_part(group.tenant, group.cost_of_others(each));
            }
        }
        channel.sinks.len() as i64 * each
    }

    /// A message is not given to the sinks of one tenant. Returns what counting it there will cost.
    #[cold]
    pub fn pass_over(&mut self, group: &mut Group, channel: ChannelSlot) -> i64 {
        group.missed += 1;
        if group.missed > 1 {
            return 0;
        }
        self.passed_over.push(channel);
        group.cost(fair::LOOK)
    }

    /// Counts at their sinks what was passed over in this round.
    #[inline]
    pub fn count_passed_over(&mut self, channels: &mut Channels) {
        while let Some(at) = self.passed_over.pop() {
            self.count_missed(channels, at);
        }
    }

    #[cold]
    fn count_missed(&mut self, channels: &mut Channels, at: ChannelSlot) {
        let Some(channel) = channels.get_mut(at) else {
            return;
        };
        for group in &mut channel.groups {
            let missed = std::mem::take(&mut group.missed);
            if missed == 0 {
                continue;
            }
            for &(at, sink) in &group.sinks {
                if let Some(session) = self.sessions.get_mut(at) {
                    session.add_lost(sink, missed as i64);
                    self.mark_pending(at, sink, TrafficClass::BEST_EFFORT);
                }
            }
        }
    }

    /// Puts an emitted message into the sinks of its channel on this lane that have not got it yet: no copy
    /// within its own session, one copy into each other. `left`: what the turn may still spend. `waits`: its source is
    /// reliable; `direct`: it gives some sinks its messages itself.
    #[inline]
    pub fn deliver_emitted(
        &mut self,
        from: SessionSlot,
        channel: &Channel,
        meta: &Meta,
        progress: &mut InProgress,
        left: &mut i64,
        (waits, direct): (Option<&Waits>, Option<&DirectSinks>),
    ) -> Given {
        let epoch = progress.descriptor.epoch;
        for &(number, (at, sink)) in channel.sinks.of(progress.sinks) {
            if *left <= 0 {
                return Given::More;
            }
            progress.sinks.next = number;
            if at == from && !self.hears_itself(at, sink)
                || direct.is_some_and(|direct| direct.has(number, epoch))
            {
                *left -= fair::LOOK;
                progress.sinks.next = number + 1;
                continue;
            }
            // A copy for a sink that has gone since is nobody's: its memory went with it.
            progress.copying = progress.copying.filter(|copy| copy.number == number);
            *left -= fair::COPY;
            let result = match self.deliver_to(from, (at, sink), number, meta, progress, left) {
                Ok(Put::Part) => return Given::More,
                Ok(Put::Done(delivery)) => Ok(delivery),
                Ok(Put::NoRoom(delivery)) => {
                    if let Some(waits) = waits {
                        if self.has_patience(channel, (at, sink), meta.length, waits) {
                            return Given::Waits;
                        }
                        let source = self.sessions.get_mut(from);
                        let chunk = progress.descriptor.chunk;
                        if source.is_some_and(|source| source.note_undelivered(chunk)) {
                            channel.counters.undelivered.add(1);
                        }
                    }
                    let session = self.sessions.get_mut(at);
                    Ok(session.map_or(delivery, |session| session.dropped(sink, delivery)))
                }
                Err(failure) => Err(failure),
            };
            progress.copying = None;
            progress.sinks.next = number + 1;
            if self.account_emitted(at, sink, meta.class, &channel.counters, result) {
                *left -= fair::WAKE;
            }
            if direct.is_some()
                && let Some(session) = self.sessions.get_mut(at)
            {
                // Before its source is told: what that gives the sink itself comes behind it.
                session.publish(sink);
            }
        }
        progress.sinks.next = progress.sinks.end;
        Given::ToAll
    }

    /// A message of a source is not given to the sinks of its lane.
    #[cold]
    pub fn lose_emitted(&mut self, from: SessionSlot, channel: &Channel, sinks: Rest) {
        let mut lost = false;
        for &(_, (at, sink)) in channel.sinks.of(sinks) {
            if at == from && !self.hears_itself(at, sink) {
                continue;
            }
            lost = true;
            if let Some(session) = self.sessions.get_mut(at) {
                session.add_lost(sink, 1);
                self.mark_pending(at, sink, TrafficClass::BEST_EFFORT);
            }
        }
        channel.counters.lost.add(lost.into());
    }

    /// Whether a reliable source goes on waiting for a sink without room.
    #[cold]
    fn has_patience(
        &mut self,
        channel: &Channel,
        (at, sink): (SessionSlot, SinkSlot),
        length: u32,
        waits: &Waits,
    ) -> bool {
        let length = length as usize;
        let Some(session) = self.sessions.get_mut(at).filter(|s| s.fits(length)) else {
            return false;
        };
        if waits.until_ns.is_some_and(|ns| ns <= waits.now_ns) {
            // Not for want of patience: the sink is not done without.
            return false;
        }
        let begins = session.is_full(sink, waits.now_ns);
        if session.is_waited_for(sink, waits.patience_ns, waits.now_ns) {
            if begins {
                self.wait_begins(channel, length, waits.now_ns);
            }
            return true;
        }
        if waits.patience_ns != Some(0) {
            self.cut_off(channel, (at, sink));
        }
        false
    }

    /// A reliable source has waited for this sink in vain, and so for all of its channel that took nothing meanwhile.
    #[cold]
    pub fn cut_off(&mut self, channel: &Channel, (at, sink): (SessionSlot, SinkSlot)) {
        if !self.sessions.get_mut(at).is_some_and(|s| s.cut_off(sink)) {
            return;
        }
        channel.counters.evicted.add(1);
        for (at, sink) in channel.sinks.iter() {
            if let Some(session) = self.sessions.get_mut(at) {
                session.wait_ends_in_vain(sink);
            }
        }
    }

    /// A reliable source waits for a sink of this channel: from now on it is known which take nothing, so that it waits for
    /// all of them together and not for one after the other.
    #[cold]
    pub fn wait_begins(&mut self, channel: &Channel, length: usize, now_ns: i64) {
        for (at, sink) in channel.sinks.iter() {
            let Some(session) = self.sessions.get_mut(at) else {
                continue;
            };
            match session.room(sink, length) {
                Ok(room) => session.wait_begins(sink, room, now_ns),
                Err(failure) => self.failed.push_back((at, failure)),
            }
        }
    }

    /// Whether a sink of a session gets what the session itself emits.
    #[inline]
    pub fn hears_itself(&self, at: SessionSlot, sink: SinkSlot) -> bool {
        self.sessions.get(at).is_some_and(|s| s.hears_itself(sink))
    }

    /// Puts an emitted message into one sink.
    #[inline]
    fn deliver_to(
        &mut self,
        from: SessionSlot,
        (at, sink): (SessionSlot, SinkSlot),
        number: u64,
        meta: &Meta,
        progress: &mut InProgress,
        left: &mut i64,
    ) -> Result<Put, Failure> {
        let chunk = progress.descriptor.chunk;
        if at == from {
            let Some(session) = self.sessions.get_mut(at) else {
                return Ok(Put::NoRoom(Delivery::DroppedFull));
            };
            let begun = progress.copying.is_some();
            if !begun && let Some(put) = session.deliver_own(sink, chunk, meta)? {
                return Ok(put);
            }
            let place = match begin_copy(session, sink, number, meta, progress)? {
                Ok(place) => place,
                Err(delivery) => return Ok(Put::NoRoom(delivery)),
            };
            if !copy(session, session, chunk, meta, place, progress, left) {
                return Ok(Put::Part);
            }
            return session.deliver(sink, place.chunk, meta).map(Put::Done);
        }
        let Some((source, session)) = self.sessions.get_two_mut(from, at) else {
            return Ok(Put::NoRoom(Delivery::DroppedFull));
        };
        let place = match begin_copy(session, sink, number, meta, progress)? {
            Ok(place) => place,
            Err(delivery) => return Ok(Put::NoRoom(delivery)),
        };
        if !copy(source, session, chunk, meta, place, progress, left) {
            return Ok(Put::Part);
        }
        session.deliver(sink, place.chunk, meta).map(Put::Done)
    }

    /// Books what became of a message that was received for a sink. What is of a higher class than the lowest is in
    /// the sink at once; who waits for it is woken when all that came with it is delivered, the highest class first.
    #[inline]
    pub fn account_received(
        &mut self,
        at: SessionSlot,
        sink: SinkSlot,
        class: TrafficClass,
        counters: &ChannelCounters,
        result: Result<Delivery, Failure>,
    ) {
        if self.book(at, counters, result) {
            if class > TrafficClass::BEST_EFFORT
                && let Some(session) = self.sessions.get_mut(at)
            {
                session.publish(sink);
            }
            self.mark_pending(at, sink, class);
        }
    }

    /// Books what became of an emitted message at a sink of this lane. What is of a higher class than the lowest is
    /// shown at once: of what was emitted, the highest class is taken first. True if that woke somebody.
    #[inline]
    fn account_emitted(
        &mut self,
        at: SessionSlot,
        sink: SinkSlot,
        class: TrafficClass,
        counters: &ChannelCounters,
        result: Result<Delivery, Failure>,
    ) -> bool {
        if !self.book(at, counters, result) {
            return false;
        }
        if class > TrafficClass::BEST_EFFORT {
            return show_sink(&mut self.sessions, &mut self.failed, at, sink);
        }
        self.mark_pending(at, sink, class);
        false
    }

    /// Counts what became of a message. False: its session broke the protocol.
    #[inline]
    fn book(
        &mut self,
        at: SessionSlot,
        counters: &ChannelCounters,
        result: Result<Delivery, Failure>,
    ) -> bool {
        match result {
            Ok(Delivery::Delivered) => counters.delivered.add(1),
            Ok(Delivery::DroppedFull) => counters.dropped_full.add(1),
            Ok(Delivery::DroppedMemory) => counters.dropped_memory.add(1),
            Err(failure) => {
                self.fail(at, failure);
                return false;
            }
        }
        true
    }

    /// Corrects the count of lost messages of a channel's sinks. Returns what that cost.
    pub fn add_lost(&mut self, channel: &Channel, change: i64) -> i64 {
        for (at, sink) in channel.sinks.iter() {
            if let Some(session) = self.sessions.get_mut(at) {
                session.add_lost(sink, change);
                self.mark_pending(at, sink, TrafficClass::BEST_EFFORT);
            }
        }
        channel.sinks.len() as i64 * fair::LOOK
    }

    /// A sink does not get a message for which it had memory: that is free again, and the message counts as lost.
    pub fn lose(&mut self, target: &Target) {
        if let Some(session) = self.sessions.get_mut(target.session) {
            session.withdraw(target.sink, target.chunk);
            session.add_lost(target.sink, 1);
            self.mark_pending(target.session, target.sink, TrafficClass::BEST_EFFORT);
        }
    }

    /// The counters of a sink, or messages of this class in it, are to be shown.
    #[inline]
    pub fn mark_pending(&mut self, at: SessionSlot, sink: SinkSlot, class: TrafficClass) {
        let number = usize::from(class.number());
        let Some(session) = self.sessions.get_mut(at) else {
            return;
        };
        if session.take_superseded() {
            // They see it when the session gets a turn.
            enqueue(at, session, &mut self.list, &mut self.turns);
        }
        if let Some(s) = session.sinks.get_mut(sink)
            && s.pending & (1 << number) == 0
            && let Some(tenant) = self.list.get_mut(session.tenant)
        {
            s.pending |= 1 << number;
            if tenant.pending[number].is_empty() {
                self.showing[number].push_back(session.tenant);
            }
            // Room was made when the sink was added.
            tenant.pending[number].push_back((at, sink));
        }
    }

    /// Notes a new sink of a session: makes room for it in the lists of a round.
    pub fn sink_added(&mut self, at: SessionSlot) {
        if let Some(session) = self.sessions.get(at)
            && let Some(tenant) = self.list.get_mut(session.tenant)
        {
            tenant.sinks += 1;
            // What was pending when its sink went is in the list until it is shown.
            for pending in &mut tenant.pending {
                pending.reserve(tenant.sinks);
            }
        }
    }

    /// Notes that so many sinks of a session have gone.
    pub fn sinks_removed(&mut self, at: SessionSlot, count: usize) {
        if let Some(session) = self.sessions.get(at)
            && let Some(tenant) = self.list.get_mut(session.tenant)
        {
            tenant.sinks = tenant.sinks.saturating_sub(count);
        }
    }

    /// Notes that a session broke the protocol: it ends with the round, or one of the next.
    pub fn fail(&mut self, at: SessionSlot, failure: Failure) {
        fail(&mut self.failed, at, failure);
    }

    /// Whether sinks wait to be shown.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.showing.iter().any(|showing| !showing.is_empty())
    }

    /// Shows what has been put into sinks, the highest class first, and wakes who waits: of each tenant as much as it
    /// may cause in a round, the rest in the next.
    #[inline]
    pub fn show(&mut self) {
        self.show_down_to(0);
    }

    /// As [`show`](Self::show), what is above the lowest class only. What waking who waits for it has cost.
    #[inline]
    pub fn show_urgent(&mut self) -> i64 {
        if self.showing[1..].iter().all(VecDeque::is_empty) {
            return 0;
        }
        self.show_down_to(1)
    }

    fn show_down_to(&mut self, lowest: usize) -> i64 {
        self.shown += 1;
        let mut woken = 0;
        for class in (lowest..TrafficClass::COUNT).rev() {
            for _ in 0..self.showing[class].len() {
                let Some(at) = self.showing[class].pop_front() else {
                    break;
                };
                woken += self.show_of(at, class);
            }
        }
        woken * fair::WAKE
    }

    /// Shows what a tenant has in a class, as far as it may: how many threads that woke.
    fn show_of(&mut self, at: TenantSlot, class: usize) -> i64 {
        let Some(tenant) = self.list.get_mut(at) else {
            return 0;
        };
        tenant.showing.begin(self.shown);
        let mut woken = 0;
        while !tenant.showing.is_over() {
            let Some((session, sink)) = tenant.pending[class].pop_front() else {
                break;
            };
            tenant.showing.sinks -= 1;
            if let Some(s) = self
                .sessions
                .get_mut(session)
                .and_then(|s| s.sinks.get_mut(sink))
            {
                s.pending &= !(1 << class);
            }
            if show_sink(&mut self.sessions, &mut self.failed, session, sink) {
                tenant.showing.wakes -= 1;
                woken += 1;
            }
        }
        if !tenant.pending[class].is_empty() {
            self.showing[class].push_back(at);
        }
        if woken > 1 {
            self.turns.charge(at, fair::WAKE * (woken - 1));
        }
        woken
    }

    /// The next session to end.
    pub fn next_failed(&mut self) -> Option<(SessionSlot, Failure)> {
        self.failed.pop_front()
    }

    /// Whether a session is to be ended.
    pub fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }
}

/// Notes that a session is to be ended, once.
fn fail(failed: &mut VecDeque<(SessionSlot, Failure)>, at: SessionSlot, failure: Failure) {
    if !failed.iter().any(|(known, _)| *known == at) {
        failed.push_back((at, failure));
    }
}

/// Shows a sink what it has, and wakes who waits for it: whether somebody did. A session that takes long to be woken is to be ended.
fn show_sink(
    sessions: &mut Table<SessionSlot, LaneSession>,
    failed: &mut VecDeque<(SessionSlot, Failure)>,
    at: SessionSlot,
    sink: SinkSlot,
) -> bool {
    let Some(session) = sessions.get_mut(at) else {
        return false;
    };
    let woken = session.show(sink);
    if woken && let Some(failure) = session.takes_long() {
        fail(failed, at, failure);
    }
    woken
}

/// The memory of a sink for a message: what was begun, or a new place.
#[inline]
fn begin_copy(
    session: &mut LaneSession,
    sink: SinkSlot,
    number: u64,
    meta: &Meta,
    progress: &InProgress,
) -> Result<Result<Copying, Delivery>, Failure> {
    if let Some(copying) = progress.copying {
        return Ok(Ok(copying));
    }
    let placed = session.try_place(sink, meta.length as usize)?;
    Ok(placed.map(|chunk| Copying {
        number,
        chunk,
        done: 0,
    }))
}

/// Copies a message into its place at a sink, as far as the turn goes. True: all of it.
#[inline]
fn copy(
    from: &LaneSession,
    to: &LaneSession,
    chunk: u32,
    meta: &Meta,
    mut place: Copying,
    progress: &mut InProgress,
    left: &mut i64,
) -> bool {
    let length = meta.length as usize;
    let (payload, space) = (
        from.emitted(chunk, meta.length),
        to.placed(place.chunk, length),
    );
    while place.done < length {
        if *left <= 0 {
            progress.copying = Some(place);
            return false;
        }
        let piece = PIECE.min(length - place.done);
        let (Ok(part), Ok(gap)) = (payload.sub(place.done, piece), space.sub(place.done, piece))
        else {
            debug_assert!(false, "both are as long as the message");
            break;
        };
        let copied = part.copy_to(gap);
        debug_assert!(copied.is_ok(), "placed memory is as long as asked for");
        place.done += piece;
        *left -= piece as i64;
    }
    true
}
