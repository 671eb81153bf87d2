//! Sessions that are moved to other lanes, by operators, because their lane is overloaded, or by rules of network health: they
//! are ended there, attach again, and are served by the lane that was chosen.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use takt_session::layout::COMES_BACK;
use takt_session::{ErrorCode, Failure};

use super::Control;
use super::balancing::{Seen, Stays, others, work};
use super::listener::FIRST_WITHOUT;
use super::session::{Endpoint, Session};
use crate::config::Balance;
use crate::ids::SessionId;
use crate::lane::Command;
use crate::status::SessionsMoved;

/// How long the lane waits for a session that is to come back: several of a client's attempts to connect.
const WAITED_FOR: Duration = Duration::from_secs(10);
/// Sessions that are waited for at a time, of all tenants.
const MOST: usize = 1024;
/// How long an application may take to hear that it is moved, and hang up.
const HANGS_UP_WITHIN: Duration = Duration::from_secs(1);
/// How long what a moved session emits waits for what it had emitted before: that may have launch times, or receivers without room.
const BEGINS_WITHIN: Duration = Duration::from_secs(2);

/// Why a session is moved.
#[derive(Clone, Debug)]
pub enum Cause {
    /// An operator has said so.
    Operator,
    /// Its lane was overloaded, with this load, per mille.
    Overload(u32),
    /// A rule of network health.
    Rule(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator => f.write_str("by the operator"),
            Self::Overload(load) => {
                write!(f, "its lane was at work for {} % of the time", load / 10)
            }
            Self::Rule(rule) => write!(f, "rule {rule}"),
        }
    }
}

/// How a session came to its lane, if it was moved there.
#[derive(Clone, Debug)]
pub struct Moved {
    /// The session that it was.
    before: SessionId,
    at: Duration,
    /// How often it was moved.
    pub times: u64,
    /// Why the last time.
    pub why: String,
}

/// A session that is to come back, by what is known of it before it opens anything.
#[derive(Debug)]
struct Expected {
    tenant: u32,
    pid: i32,
    name: String,
    lane: usize,
    moved: Moved,
    until: Duration,
}

/// Sessions that are to come back, and how many were moved.
#[derive(Debug, Default)]
pub struct Moves {
    expected: VecDeque<Expected>,
    /// Those that were told and have not hung up, and until when they are to.
    hanging_up: Vec<(SessionId, Duration)>,
    /// By sessions that were moved, and whose lanes still send what they had emitted: who they are now, and until when those wait.
    followed: BTreeMap<SessionId, (SessionId, Duration)>,
    pub counts: SessionsMoved,
}

impl Moves {
    fn expect(&mut self, session: &Session, lane: usize, cause: &Cause, now: Duration) {
        self.expected.retain(|one| one.until > now);
        if self.expected.len() == MOST {
            self.expected.pop_front();
        }
        let before = session.moved.as_ref().map_or(0, |moved| moved.times);
        self.expected.push_back(Expected {
            tenant: session.tenant,
            pid: session.pid,
            name: session.name.clone(),
            lane,
            moved: Moved {
                before: session.id,
                at: now,
                times: before + 1,
                why: cause.to_string(),
            },
            until: now + WAITED_FOR,
        });
        match cause {
            Cause::Operator => self.counts.operator += 1,
            Cause::Overload(_) => self.counts.overload += 1,
            Cause::Rule(_) => self.counts.rule += 1,
        }
    }

    fn position(&self, session: &Session, now: Duration) -> Option<usize> {
        let before = session.says_before();
        // Which session it was is its application's word: it holds among those of one process and name.
        let is_it = |one: &Expected| {
            let known = (one.tenant, one.pid) == (session.tenant, session.pid);
            let it_was = before.is_none_or(|before| before == u64::from(one.moved.before.0));
            it_was
                && known
                && one.name == session.name
                && session.since >= one.moved.at
                && one.until > now
        };
        self.expected.iter().position(is_it)
    }

    /// The lane that a session is moved to, if it is one that is waited for.
    pub(super) fn wished(&self, session: &Session, now: Duration) -> Option<usize> {
        Some(self.expected[self.position(session, now)?].lane)
    }

    /// It is there: how it came.
    pub(super) fn take(&mut self, session: &Session, now: Duration) -> Option<Moved> {
        let at = self.position(session, now)?;
        Some(self.expected.remove(at)?.moved)
    }

    /// Sessions of a tenant that are to come back, as they were.
    fn of(&self, tenant: u32) -> impl Iterator<Item = SessionId> {
        let of_it = self.expected.iter().filter(move |one| one.tenant == tenant);
        of_it.map(|one| one.moved.before)
    }
}

impl Control {
    /// Moves a session to a lane, which has to carry all that it has open, because an operator says so.
    pub(super) fn move_session(&mut self, id: SessionId, lane: usize) -> Result<(), Failure> {
        let refuse = |code, text: String| Err(Failure::new(code, text));
        if self.drain.is_some() {
            let text = "the node is about to stop: nobody can come again".to_owned();
            return refuse(ErrorCode::ShuttingDown, text);
        }
        let there = |session: &&Session| session.arena.is_some() && session.goes_on();
        let Some(session) = self.sessions.get(&id).filter(there) else {
            return refuse(
                ErrorCode::NotFound,
                format!("there is no session {id}: see `takt session list`"),
            );
        };
        if session.tenant >= FIRST_WITHOUT {
            return refuse(
                ErrorCode::NotPermitted,
                format!("session {id} did not come by a listener's socket and cannot come again"),
            );
        }
        let lanes = self.lanes_of(&session.policy);
        if !lanes.contains(&lane) {
            return refuse(
                ErrorCode::NotPermitted,
                format!(
                    "lanes {lanes:?} serve tenant `{}`: name one of them, or extend `lanes` of its listener",
                    session.policy.identity
                ),
            );
        }
        if session.unplaced.is_none() && session.lane == lane {
            return refuse(
                ErrorCode::InvalidArgument,
                format!("session {id} is on lane {lane}"),
            );
        }
        self.check_carries(lane, session)?;
        self.send_to(id, lane, &Cause::Operator);
        Ok(())
    }

    /// Ends a session so that it comes back on another lane.
    fn send_to(&mut self, id: SessionId, lane: usize, cause: &Cause) {
        let now = self.now();
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let (name, identity) = (&session.name, &session.policy.identity);
        tracing::info!(session = %id, application = %name, %identity, from = session.lane, to = lane, %cause, "a session moves to another lane");
        self.moves.expect(session, lane, cause, now);
        let text = format!("moved to lane {lane} ({cause}): attach again");
        self.say_ended(id, &Failure::new(ErrorCode::Disconnected, text));
        // It emits and reads until it has heard. Then it hangs up, and nothing of it stays in rings that nobody looks at.
        if let Some(session) = self.sessions.get_mut(&id) {
            session.moving = true;
        }
        let until = now + HANGS_UP_WITHIN;
        self.moves.hanging_up.push((id, until));
        self.next_tick = self.next_tick.min(until);
    }

    /// Ends sessions that were told that they are moved, and have not hung up.
    fn end_deaf(&mut self, now: Duration) {
        let hanging_up = std::mem::take(&mut self.moves.hanging_up);
        for (id, until) in hanging_up {
            if self
                .sessions
                .get(&id)
                .is_none_or(|session| !session.moving || session.ending)
            {
                continue;
            }
            if now >= until {
                self.end_here(id, None, true);
                continue;
            }
            self.moves.hanging_up.push((id, until));
            self.next_tick = self.next_tick.min(until);
        }
    }

    /// A session is there that was another one on another lane. Whether what it emits is to wait until what it had emitted there
    /// has left, so that nothing overtakes that.
    pub(super) fn follow(&mut self, id: SessionId, moved: &Moved) -> bool {
        let waits = self.sessions.contains_key(&moved.before);
        if waits {
            let until = self.now() + BEGINS_WITHIN;
            self.moves.followed.insert(moved.before, (id, until));
            self.next_tick = self.next_tick.min(until);
        }
        waits
    }

    /// Nothing of a session is on its lane any more: what it emits on another one does not wait any longer.
    pub(super) fn begin_after(&mut self, before: SessionId) {
        let Some((id, _)) = self.moves.followed.remove(&before) else {
            return;
        };
        if let Some(session) = self.sessions.get_mut(&id) {
            session.waits = false;
            let lane = &self.lanes[session.lane].handle;
            lane.send(Command::Begin(id));
        }
    }

    /// Has sessions begin that have waited long enough.
    pub(super) fn begin_overdue(&mut self, now: Duration) {
        self.end_deaf(now);
        let followed = self.moves.followed.iter();
        let overdue = followed.filter(|(_, (_, until))| now >= *until);
        let overdue: Vec<SessionId> = overdue.map(|(before, _)| *before).collect();
        overdue
            .into_iter()
            .for_each(|before| self.begin_after(before));
        let waiting = self.moves.followed.values().map(|(_, until)| *until);
        if let Some(until) = waiting.min() {
            self.next_tick = self.next_tick.min(until);
        }
    }

    /// The lanes that may serve a session with all that it has open, by the same datapaths. None of one that is not moved without
    /// an operator: it does not come back by itself, or loses more than it gains.
    fn lanes_for(&self, session: &Session) -> Vec<usize> {
        let scheduled = |datapath| {
            self.kind_of(datapath)
                .is_none_or(|kind| self.schedules.contains_key(&kind))
        };
        let stays = session.tenant >= FIRST_WITHOUT
            || !session.application_can(COMES_BACK)
            // Its ring would go with it, which costs its lane nothing.
            || session.is_in_domain()
            // Frames have no numbers to be told apart by.
            || session.sources.iter().any(|source| source.channel.is_none())
            || session.streams.iter().any(|stream| scheduled(&stream.datapath))
            // It is there twice for a while, as others of its tenant are that are to come back.
            || !session.charge.has_room_again(&session.policy, self.moves.of(session.tenant)
                .filter_map(|id| Some(&self.sessions.get(&id)?.charge)));
        let all = if stays {
            Vec::new()
        } else {
            self.lanes_of(&session.policy)
        };
        let may = |lane: &usize| {
            let mut streams = session.streams.iter();
            streams.all(|stream| {
                let carried = |kind| self.lanes[*lane].port_of(kind).is_some();
                self.kind_of(&stream.datapath).is_some_and(carried)
                    && self.lanes_of_class(&[*lane], stream.qos, false).is_ok()
            })
        };
        all.into_iter().filter(may).collect()
    }

    /// What there is to know of a session that a lane serves; where it may go only if that is asked.
    fn seen(&self, session: &Session, goes: bool) -> Option<Seen> {
        let served = session.arena.is_some() && session.unplaced.is_none();
        served.then(|| Seen {
            id: session.id,
            tenant: session.tenant,
            lane: session.lane,
            work: work(&session.counters.read()),
            moved: session.moved.as_ref().map(|moved| moved.at),
            // Who is about to go is work for its lane until then.
            lanes: match goes && session.goes_on() {
                true => self.lanes_for(session),
                false => Vec::new(),
            },
        })
    }

    /// Looks how loaded the lanes are, once in a while, and moves sessions from those that are overloaded.
    pub(super) fn balance_lanes(&mut self, now: Duration) {
        let Some(next) = self.balancing.next() else {
            return;
        };
        if now >= next {
            // Of a lane that has become overloaded since the last look nobody goes yet.
            let overloaded = |lane| self.balancing.load(lane).is_some_and(|(_, is)| is);
            let goes = |session: &Session| self.config.balance.lanes && overloaded(session.lane);
            let seen = self
                .sessions
                .values()
                .filter_map(|session| self.seen(session, goes(session)));
            let seen: Vec<Seen> = seen.collect();
            let busy = self.lanes.iter().map(|lane| lane.counters.busy_nanos.get());
            let busy: Vec<u64> = busy.collect();
            let of_others = self.lanes.iter().map(|lane| others(&lane.counters.read()));
            let of_others: Vec<u64> = of_others.collect();
            let moves = self.balancing.look(now, &busy, &of_others, &seen);
            // Nobody comes back to a node that is about to stop.
            let moves = moves.into_iter().filter(|_| self.drain.is_none());
            for one in moves.collect::<Vec<_>>() {
                // Another one of its tenant may have gone before it.
                let session = self.sessions.get(&one.session);
                if session.is_some_and(|session| self.lanes_for(session).contains(&one.to)) {
                    self.send_to(one.session, one.to, &Cause::Overload(one.load));
                }
            }
        }
        if let Some(next) = self.balancing.next() {
            self.next_tick = self.next_tick.min(next);
        }
    }

    /// Goes by other figures of what is overloaded from now on.
    pub(super) fn set_balance(&mut self, balance: Balance) {
        self.config.balance = balance;
        self.balancing.set(balance);
    }

    /// A rule wants the sessions that write a channel, or those that read it, to leave their lanes: how many do, and why others
    /// stay.
    pub(super) fn relieve_channel(
        &mut self,
        channel: u64,
        readers: bool,
        rule: &str,
    ) -> (usize, Option<Stays>) {
        let of_it = |end: &Endpoint| end.channel.is_some_and(|of| of.0 == channel) && !end.closing;
        let concerned = |session: &&Session| match readers {
            _ if !session.goes_on() => false,
            true => session.sinks.iter().any(of_it),
            false => session.sources.iter().any(of_it),
        };
        let (now, mut moved, mut stays) = (self.now(), 0, None);
        if self.drain.is_some() {
            return (moved, stays);
        }
        let sessions = self.sessions.values().filter(concerned);
        let mut sessions: Vec<SessionId> = sessions.map(|session| session.id).collect();
        sessions.sort();
        for id in sessions {
            // One after the other: who goes holds what its tenant may have a second time.
            let session = self.sessions.get(&id);
            let Some(seen) = session.and_then(|session| self.seen(session, true)) else {
                continue;
            };
            match self.balancing.evict(now, &seen) {
                Ok(one) => {
                    moved += 1;
                    self.send_to(one.session, one.to, &Cause::Rule(rule.to_owned()));
                }
                Err(why) => stays = Some(why),
            }
        }
        (moved, stays)
    }
}
