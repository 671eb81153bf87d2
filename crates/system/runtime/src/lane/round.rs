//! The time of a round: read once where it is wanted, and not at all where nothing happens.

use std::sync::Arc;

use takt_clock::Clock;

/// One round with work of so many is timed, and counts for all: the clock is a good part of a short one.
const TIME_EVERY: u64 = 16;

/// When the present round found its first work: a round that finds none reads no clock.
pub(super) struct RoundTime {
    clock: Arc<dyn Clock>,
    began_ns: Option<i64>,
    /// Its duration is wanted.
    timed: bool,
    /// Rounds with work so far.
    busy: u64,
}

impl RoundTime {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            began_ns: None,
            timed: false,
            busy: 0,
        }
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
                *self.began_ns.insert(now)
            }
        }
    }
}
