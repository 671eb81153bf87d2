//! Which sessions leave their lane by themselves, and for which: a part that is told loads and sessions, and knows neither.
//!
//! A lane's load is the share of the last second in which it was at work. When it is overloaded and when no longer the crate
//! `takt-balance` says: from the high mark on until the low one. In each second one session leaves an overloaded lane, if
//! another lane is less loaded with it than its own is now, and stays below the high mark. Of the tenants that have one the one
//! goes first of which none was moved for the longest time: whoever has many sessions takes nobody else's turn.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use takt_balance::resource::{MAX_CORES, Marks, Report, Resources};

use crate::config::Balance;
use crate::counters::{LaneReading, SessionReading};
use crate::ids::SessionId;
use crate::lane::fair::{COPY, MESSAGE};

/// Time between two looks at the loads.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A lane that is at work all the time has this load.
const FULL: u64 = 1000;

/// What the lane has done for a session so far, in the unit of `lane::fair`: from its messages and their bytes, which tells
/// sessions of a lane apart well enough.
pub fn work(counted: &SessionReading) -> u64 {
    let messages = counted.emitted.saturating_mul(MESSAGE as u64);
    let copies = counted.delivered.saturating_mul(COPY as u64);
    let bytes = counted
        .emitted_bytes
        .saturating_add(counted.delivered_bytes);
    messages.saturating_add(copies).saturating_add(bytes)
}

/// What the lane has done so far for datagrams of which no session has anything, in the same unit: those of strangers, those that come
/// twice or too early, those for others.
pub fn others(counted: &LaneReading) -> u64 {
    let datagrams = [
        counted.rx_malformed,
        counted.rx_unknown_sender,
        counted.rx_unauthentic,
        counted.rx_replayed,
        counted.rx_forwarded,
        counted.rx_misdirected,
        counted.rx_no_sink,
        counted.rx_duplicate,
        counted.rx_stale_fragments,
        counted.rx_early,
        counted.rx_no_part,
        counted.rx_no_place,
    ];
    let sum = datagrams
        .iter()
        .fold(0u64, |sum, of| sum.saturating_add(*of));
    sum.saturating_mul(MESSAGE as u64)
}

/// A session, as far as it matters where it is.
#[derive(Clone, Debug)]
pub struct Seen {
    pub id: SessionId,
    pub tenant: u32,
    pub lane: usize,
    /// What its lane has done for it so far: [`work`].
    pub work: u64,
    /// When it was moved last.
    pub moved: Option<Duration>,
    /// Lanes that may serve it, its own among them or not. None: it stays.
    pub lanes: Vec<usize>,
}

/// A session is to go to another lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub session: SessionId,
    pub to: usize,
    /// The load of the lane that it leaves, per mille.
    pub load: u32,
}

/// Why a session stays although it was asked to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stays {
    /// No other lane may serve it as it is, or it can not be moved without losing something.
    #[error("no other lane may serve it with its streams as they are")]
    Bound,
    /// It was moved within the hold time.
    #[error("it was moved less than `balance.hold_seconds` ago")]
    Held,
    /// It would gain nothing.
    #[error("no other lane has less to do than its own, with it")]
    NoBetter,
}

/// Loads, and who was moved when.
pub struct Balancing {
    config: Balance,
    /// Of a node with one lane, or more than can be balanced, there is nothing to decide.
    lanes: Option<Resources>,
    /// Of each lane, with what was moved there since the last look, per mille.
    loads: Vec<u32>,
    /// For how long each had been at work at the last look, nanoseconds.
    busy: Vec<u64>,
    /// What each had done that is no session's: [`others`].
    others: Vec<u64>,
    looked: Option<Duration>,
    /// What was done for each session until the last look, and its part of the lane's load between the last two, per mille.
    sessions: HashMap<SessionId, (u64, u32)>,
    /// When a session of a tenant was moved last.
    tenants: HashMap<u32, Duration>,
}

fn resources(config: &Balance, lanes: usize) -> Option<Resources> {
    let [high, low] = [config.high_percent, config.low_percent];
    let [high, low] = [high, low].map(|percent| u32::from(percent) * FULL as u32 / 100);
    let marks = Marks::new(high, low).ok()?;
    let several = (2..=MAX_CORES).contains(&lanes);
    several.then(|| Resources::new(lanes, 0, marks, marks, None).ok())?
}

fn nanos(now: Duration) -> i64 {
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}

impl Balancing {
    pub fn new(config: Balance, lanes: usize) -> Self {
        Self {
            lanes: resources(&config, lanes),
            config,
            loads: vec![0; lanes],
            busy: vec![0; lanes],
            others: vec![0; lanes],
            looked: None,
            sessions: HashMap::new(),
            tenants: HashMap::new(),
        }
    }

    /// Goes by other figures from now on. What is overloaded is seen at the next look.
    pub fn set(&mut self, config: Balance) {
        self.lanes = resources(&config, self.loads.len());
        self.config = config;
    }

    /// When to look at the loads next. `None`: never.
    pub fn next(&self) -> Option<Duration> {
        self.lanes.as_ref()?;
        Some(self.looked.map_or(Duration::ZERO, |last| last + LOOK_EVERY))
    }

    /// Of each lane its load, per mille, and whether it is overloaded. `None`: nothing is known of it.
    pub fn load(&self, lane: usize) -> Option<(u32, bool)> {
        self.looked?;
        let of = self.lanes.as_ref()?;
        let load = *self.loads.get(lane)?;
        Some((load, of.core_overloaded(lane as u16, u32::MAX)))
    }

    /// Takes how long each lane has been at work since the start, nanoseconds, what it has done for nobody, [`others`], and for each
    /// session: which sessions are to leave theirs.
    pub fn look(
        &mut self,
        now: Duration,
        busy: &[u64],
        others: &[u64],
        sessions: &[Seen],
    ) -> Vec<Move> {
        let Some(lanes) = &mut self.lanes else {
            return Vec::new();
        };
        let since = self
            .looked
            .replace(now)
            .map(|last| now.saturating_sub(last));
        // Nothing is known before there is something to compare with.
        if let Some(since) = since.filter(|since| !since.is_zero()) {
            for (lane, (&now_busy, before)) in busy.iter().zip(&self.busy).enumerate() {
                // The clock may have been stepped in a round that was timed.
                let worked = u128::from(now_busy.saturating_sub(*before)) * u128::from(FULL);
                let load = (worked / since.as_nanos()).min(FULL.into()) as u32;
                self.loads[lane] = load;
                let report = Report {
                    load,
                    done_before: None,
                };
                // There is one of this number.
                let _ = lanes.report_core(lane as u16, report, nanos(now));
            }
        }
        self.busy.clear();
        self.busy.extend_from_slice(busy);
        self.weigh(others, sessions);
        let hold = self.config.hold;
        self.tenants.retain(|_, moved| now < *moved + hold);
        match self.config.lanes {
            true => self.relieve(now, sessions),
            false => Vec::new(),
        }
    }

    /// Notes what part each session has had of its lane's load. What the lane has done for nobody is no session's.
    fn weigh(&mut self, others: &[u64], sessions: &[Seen]) {
        let before = std::mem::take(&mut self.sessions);
        let more = |seen: &Seen| {
            let before = before.get(&seen.id).map_or(0, |(work, _)| *work);
            seen.work.saturating_sub(before)
        };
        let more_for_others = |(now, before): (&u64, &u64)| now.saturating_sub(*before);
        let mut all: Vec<u64> = others
            .iter()
            .zip(&self.others)
            .map(more_for_others)
            .collect();
        all.resize(self.loads.len(), 0);
        self.others.clear();
        self.others.extend_from_slice(others);
        for seen in sessions {
            if let Some(sum) = all.get_mut(seen.lane) {
                *sum = sum.saturating_add(more(seen));
            }
        }
        for seen in sessions {
            let load = self.loads.get(seen.lane).copied().unwrap_or(0);
            let all = all.get(seen.lane).copied().unwrap_or(0).max(1);
            let part = u128::from(more(seen)) * u128::from(load);
            // Rounded up: who has done anything has a part.
            let part = part.div_ceil(all.into()) as u32;
            self.sessions.insert(seen.id, (seen.work, part));
        }
    }

    fn part(&self, id: SessionId) -> u32 {
        self.sessions.get(&id).map_or(0, |(_, part)| *part)
    }

    /// One session of each overloaded lane that is better served elsewhere.
    fn relieve(&mut self, now: Duration, sessions: &[Seen]) -> Vec<Move> {
        let mut moves = Vec::new();
        for lane in 0..self.loads.len() {
            if !self.load(lane).is_some_and(|(_, overloaded)| overloaded) {
                continue;
            }
            // Who does nothing suffers nothing.
            let here = sessions
                .iter()
                .filter(|seen| seen.lane == lane && self.part(seen.id) > 0);
            let able = here.filter_map(|seen| Some((seen, self.better(now, seen).ok()?)));
            let next = able.min_by_key(|(seen, _)| {
                let moved = self.tenants.get(&seen.tenant).copied();
                (moved, Reverse(self.part(seen.id)), seen.id)
            });
            if let Some((seen, to)) = next {
                moves.push(self.moved(now, seen, to));
            }
        }
        moves
    }

    /// A rule wants a session to leave its lane, whatever that lane's load.
    ///
    /// # Errors
    /// Why it stays.
    pub fn evict(&mut self, now: Duration, seen: &Seen) -> Result<Move, Stays> {
        let to = self.better(now, seen)?;
        Ok(self.moved(now, seen, to))
    }

    /// The lane that serves a session better than its own.
    fn better(&self, now: Duration, seen: &Seen) -> Result<usize, Stays> {
        if seen
            .moved
            .is_some_and(|moved| now < moved + self.config.hold)
        {
            return Err(Stays::Held);
        }
        let others = seen.lanes.iter().copied().filter(|lane| *lane != seen.lane);
        let mut others = others.peekable();
        if others.peek().is_none() {
            return Err(Stays::Bound);
        }
        let part = self.part(seen.id);
        let own = self.load(seen.lane).map_or(0, |(load, _)| load);
        let high = u32::from(self.config.high_percent) * FULL as u32 / 100;
        let with_it = others.filter_map(|lane| match self.load(lane)? {
            (_, true) => None,
            (load, false) => Some((load + part, lane)),
        });
        let best = with_it.min().filter(|(load, _)| *load < high.min(own));
        best.map(|(_, lane)| lane).ok_or(Stays::NoBetter)
    }

    /// Books a move: its load goes with it, until the next look tells what it is.
    fn moved(&mut self, now: Duration, seen: &Seen, to: usize) -> Move {
        let (part, load) = (self.part(seen.id), self.loads[seen.lane]);
        self.loads[to] += part;
        self.loads[seen.lane] = load.saturating_sub(part);
        self.tenants.insert(seen.tenant, now);
        Move {
            session: seen.id,
            to,
            load,
        }
    }
}

#[cfg(test)]
mod tests;
