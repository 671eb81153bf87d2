//! The time of a round: read once where it is wanted, and not at all where nothing happens.

use std::sync::Arc;

use takt_clock::Clock;

/// One round with work of so many is timed, and counts for all: the clock is a good part of a short one.
const TIME_EVERY: u64 = 16;
/// Two readings of the clock that are further apart, or in the wrong order, may have a step between them.
const STEP_NS: i64 = 10_000_000;
/// Two clocks are read together if that takes no longer, of so many attempts.
const TOGETHER_NS: i64 = 20_000;
const ATTEMPTS: usize = 4;

/// When the present round found its first work: a round that finds none reads no clock.
pub(super) struct RoundTime {
    clock: Arc<dyn Clock>,
    began_ns: Option<i64>,
    /// What the clock said last in a round, and what is added to it for a time that is never stepped.
    last_ns: i64,
    steady_from_ns: i64,
    /// The clock was last stepped at this instant of that time, or a little before.
    stepped_ns: i64,
    /// Its duration is wanted.
    timed: bool,
    /// Rounds with work so far.
    busy: u64,
}

impl RoundTime {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let mut time = Self {
            clock,
            began_ns: None,
            last_ns: 0,
            steady_from_ns: 0,
            stepped_ns: i64::MIN,
            timed: false,
            busy: 0,
        };
        time.last_ns = time.read();
        time.steady_from_ns = time.apart_ns();
        time
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(super) fn read(&self) -> i64 {
        self.clock.now().as_nanos()
    }

    #[inline]
    pub(super) fn begin(&mut self) {
        self.began_ns = None;
        self.timed = self.busy.is_multiple_of(TIME_EVERY);
    }

    /// There is work.
    #[inline]
    pub(super) fn work(&mut self) {
        if self.timed {
            self.now_ns();
        }
    }

    /// After a round with work: the nanoseconds that this one and those not timed took.
    #[inline]
    pub(super) fn busy_ns(&mut self) -> u64 {
        self.busy += 1;
        if !self.timed {
            return 0;
        }
        let began = self.now_ns();
        self.read().saturating_sub(began).max(0) as u64 * TIME_EVERY
    }

    #[inline]
    pub(super) fn now_ns(&mut self) -> i64 {
        match self.began_ns {
            Some(began) => began,
            None => {
                let now = self.read();
                let since = now.wrapping_sub(self.last_ns);
                self.last_ns = now;
                if !(0..STEP_NS).contains(&since) {
                    self.look_for_step();
                }
                *self.began_ns.insert(now)
            }
        }
    }

    /// The same instant by a time that is never stepped: for what is told to wait, or has to answer within a while.
    #[inline]
    pub(super) fn steady_ns(&mut self) -> i64 {
        let now = self.now_ns();
        self.steady_of(now)
    }

    /// An instant of the clock, by that time.
    #[inline]
    pub(super) fn steady_of(&self, instant_ns: i64) -> i64 {
        instant_ns.saturating_add(self.steady_from_ns)
    }

    /// An instant of that time, by the clock.
    #[inline]
    pub(super) fn instant_of(&self, steady_ns: i64) -> i64 {
        steady_ns.saturating_sub(self.steady_from_ns)
    }

    /// That time as it is now, outside of a round.
    pub(super) fn read_steady(&self) -> i64 {
        self.clock.steady_ns()
    }

    /// An instant that the clock had, by that time. `None`: it has been stepped since.
    pub(super) fn steady_of_past(&self, instant_ns: i64) -> Option<i64> {
        let steady_ns = self.steady_of(instant_ns);
        (steady_ns > self.stepped_ns && instant_ns <= self.last_ns).then_some(steady_ns)
    }

    /// How far the steady time is ahead of the clock.
    fn apart_ns(&self) -> i64 {
        let mut apart_ns = 0;
        for _ in 0..ATTEMPTS {
            let before = self.clock.steady_ns();
            let now = self.read();
            let after = self.clock.steady_ns();
            apart_ns = before.saturating_sub(now);
            if after - before <= TOGETHER_NS {
                break;
            }
        }
        apart_ns
    }

    #[cold]
    fn look_for_step(&mut self) {
        let apart_ns = self.apart_ns();
        let before = std::mem::replace(&mut self.steady_from_ns, apart_ns);
        if (self.steady_from_ns.saturating_sub(before)).saturating_abs() > STEP_NS {
            self.stepped_ns = self.steady_of(self.last_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use takt_clock::{SteppedClock, SystemTai};

    use super::*;

    #[test]
    fn a_step_of_the_clock_is_none_of_the_steady_time() {
        let clock = Arc::new(SteppedClock::new(SystemTai));
        let mut round = RoundTime::new(clock.clone());
        for step in [0, 37_000_000_000, -60_000_000_000, -3_600_000_000_000] {
            let sent = round.now_ns();
            clock.step(step);
            round.begin();
            let (before, steady, after) = (clock.steady_ns(), round.steady_ns(), clock.steady_ns());
            // The two clocks are read together as far as a busy machine lets them.
            assert!(
                (before - 1_000_000_000..=after + 1_000_000_000).contains(&steady),
                "{step}: {before} {steady} {after}"
            );
            assert_eq!(round.steady_of_past(sent).is_some(), step == 0, "{step}");
            let now = round.now_ns();
            assert_eq!(round.instant_of(round.steady_of(now)), now);
        }
    }
}
