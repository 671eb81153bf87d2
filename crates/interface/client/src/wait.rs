//! How long to wait, and how to spend the first microseconds of it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use takt_session::ResourceUse;
use takt_session::contention::Contention;

use crate::sys::HeldSignals;

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: [`Error::WouldBlock`](crate::Error::WouldBlock) when there is nothing.
    Never,
    /// As long as it takes.
    Forever,
    /// This long.
    For(Duration),
    /// Until this instant.
    Until(Instant),
}

impl Wait {
    /// The instant at which it is over; `None` when there is none. Reads the clock for `For`.
    pub fn deadline(self) -> Option<Instant> {
        match self {
            Self::Never | Self::Forever => None,
            Self::For(duration) => Instant::now().checked_add(duration),
            Self::Until(deadline) => Some(deadline),
        }
    }

    /// The same wait, with one [`deadline`](Self::deadline) however often it is taken up again.
    #[inline]
    #[must_use]
    pub fn from_now(self) -> Self {
        match self {
            Self::For(_) => self.deadline().map_or(Self::Forever, Self::Until),
            wait => wait,
        }
    }
}

/// How long a frugal wait polls before it sleeps: longer than a message takes through an idle node, so
/// that who answers at once finds the other awake.
const FRUGAL_SPIN: Duration = Duration::from_micros(50);
/// A wait that has polled for so long looks after signals.
const LONG_SPIN: Duration = Duration::from_millis(1);
/// Rounds between two yields on a core of one's own.
const ROUNDS_PER_YIELD: u32 = 32;
/// The same where each round drives the lane, which takes longer and is work.
const DRIVING_ROUNDS_PER_YIELD: u32 = 512;

/// What to do after a round that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look again.
    Poll,
    /// Sleep.
    Sleep,
    /// The deadline has passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// One wait: polls, gives way to others on a shared core, and says when to sleep instead.
pub(crate) struct Spin<'a> {
    limit: Option<Duration>,
    deadline: Option<Instant>,
    began: Option<Instant>,
    rounds: u32,
    rounds_per_yield: u32,
    /// Who else is on the core, kept from wait to wait.
    core: &'a Cell<Contention>,
    /// Of a wait that polls for long: it never sleeps, so handlers would go unnoticed.
    signals: Option<HeldSignals>,
}

impl<'a> Spin<'a> {
    pub(crate) fn new(
        resource_use: ResourceUse,
        deadline: Option<Instant>,
        driving: bool,
        core: &'a Cell<Contention>,
    ) -> Self {
        let limit = match resource_use {
            ResourceUse::Frugal => Some(FRUGAL_SPIN),
            ResourceUse::Unlimited => None,
        };
        Self {
            limit,
            deadline,
            began: None,
            rounds: 0,
            rounds_per_yield: if driving {
                DRIVING_ROUNDS_PER_YIELD
            } else {
                ROUNDS_PER_YIELD
            },
            core,
            signals: None,
        }
    }

    /// After a round that found nothing.
    #[inline]
    pub(crate) fn step(&mut self) -> Step {
        self.rounds = self.rounds.wrapping_add(1);
        let mut core = self.core.get();
        if !core.is_shared() && !self.rounds.is_multiple_of(self.rounds_per_yield) {
            std::hint::spin_loop();
            return Step::Poll;
        }
        let before = Instant::now();
        if self.deadline.is_some_and(|deadline| before >= deadline) {
            return Step::TimedOut;
        }
        let began = *self.began.get_or_insert(before);
        // Where somebody does not give the core back, what is waited for comes before a yield is over.
        if self
            .limit
            .is_some_and(|limit| before - began >= limit || core.is_crowded(before))
        {
            self.began = None;
            self.rounds = 0;
            return Step::Sleep;
        }
        if before - began >= LONG_SPIN {
            let signals = self.signals.take().or_else(HeldSignals::hold);
            if signals.as_ref().is_some_and(HeldSignals::let_through) {
                return Step::Interrupted;
            }
            self.signals = signals;
        }
        core.give_way(before);
        self.core.set(core);
        Step::Poll
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frugal_wait_sleeps_in_the_end_and_an_unlimited_one_polls_to_its_deadline() {
        let core = Cell::new(Contention::default());
        let mut frugal = Spin::new(ResourceUse::Frugal, None, false, &core);
        let start = Instant::now();
        while frugal.step() == Step::Poll {}
        assert!(start.elapsed() >= FRUGAL_SPIN);

        let deadline = Instant::now() + 4 * FRUGAL_SPIN;
        let mut unlimited = Spin::new(ResourceUse::Unlimited, Some(deadline), false, &core);
        let end = loop {
            match unlimited.step() {
                Step::Poll => {}
                step => break step,
            }
        };
        assert_eq!(end, Step::TimedOut);
        assert!(Instant::now() >= deadline);
    }

    #[test]
    fn on_a_crowded_core_a_frugal_wait_sleeps_at_once_and_an_unlimited_one_never() {
        let crowded = || {
            let mut core = Contention::default();
            for _ in 0..2 {
                core.learn(Instant::now(), Duration::from_secs(3600));
            }
            Cell::new(core)
        };
        for (resource_use, step) in [
            (ResourceUse::Frugal, Step::Sleep),
            (ResourceUse::Unlimited, Step::Poll),
        ] {
            let core = crowded();
            let mut spin = Spin::new(resource_use, None, false, &core);
            assert!((0..3).all(|_| spin.step() == step));
        }
    }
}
