//! A clock that can be stepped: for finding out what a program does when its clock jumps, without touching the
//! machine's.

use std::sync::atomic::{AtomicI64, Ordering};

use takt_time::TaiTime;

use crate::{Clock, SystemTai};

/// Another clock plus an offset that anyone may change at any time.
#[derive(Debug, Default)]
pub struct SteppedClock<C = SystemTai> {
    inner: C,
    offset_ns: AtomicI64,
}

impl<C: Clock> SteppedClock<C> {
    /// `inner`, without an offset to begin with.
    pub fn new(inner: C) -> Self {
        Self {
            inner,
            offset_ns: AtomicI64::new(0),
        }
    }

    /// Steps the clock by `nanos`; negative: back.
    pub fn step(&self, nanos: i64) {
        // Each reader sees it at its next reading: nothing else is ordered by it.
        self.offset_ns.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl<C: Clock> Clock for SteppedClock<C> {
    fn now(&self) -> TaiTime {
        let offset_ns = self.offset_ns.load(Ordering::Relaxed);
        self.inner.now().saturating_add_nanos(offset_ns)
    }

    fn steady_ns(&self) -> i64 {
        self.inner.steady_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Still;

    impl Clock for Still {
        fn now(&self) -> TaiTime {
            TaiTime::from_nanos(1_000)
        }
    }

    #[test]
    fn steps_add_up() {
        let clock = SteppedClock::new(Still);
        assert_eq!(clock.now().as_nanos(), 1_000);
        clock.step(500);
        clock.step(-700);
        assert_eq!(clock.now().as_nanos(), 800);
        assert_eq!(clock.steady_ns(), 1_000);
    }
}
