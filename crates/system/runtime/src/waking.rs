//! What it takes to wake an application by a descriptor.
//!
//! Who makes a socket readable walks over all that waits at its other end, within the call (Linux: `sk_data_ready`). An application
//! that has copies of its descriptor in an epoll instance by the ten thousand, or as many threads in `poll`, makes each such call
//! take milliseconds, of a lane or of the control thread.

use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use takt_session::{ErrorCode, Failure};

/// Processor time that none at work takes: a thread is woken within microseconds.
const LONGEST: Duration = Duration::from_millis(1);
/// So many calls in a row may take longer.
const FORGIVEN: u8 = 2;

/// How long it takes with one application.
#[derive(Debug, Default)]
pub struct Waking {
    /// The last call took long, by whoever had the core: processor time is looked at.
    looked_at: Cell<bool>,
    /// Calls in a row that have taken long by that, too.
    long: Cell<u8>,
}

impl Waking {
    /// Wakes it by `call`.
    pub fn by<T>(&self, call: impl FnOnce() -> T) -> T {
        let looked_at = self.looked_at.get();
        let now = || {
            let now = clock_gettime(match looked_at {
                true => ClockId::ThreadCPUTime,
                false => ClockId::Monotonic,
            });
            Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
        };
        let began = now();
        let result = call();
        let took_long = now().saturating_sub(began) >= LONGEST;
        self.looked_at.set(took_long);
        self.long.set(match took_long && looked_at {
            true => self.long.get().saturating_add(1),
            false => 0,
        });
        result
    }

    /// Why the application is to be woken no more.
    pub fn failure(&self) -> Option<Failure> {
        (self.long.get() > FORGIVEN).then(|| {
            Failure::new(
                ErrorCode::Protocol,
                "to wake this application by its descriptor takes more than 1 ms each time: wait on it once, not by thousands of \
                 threads or copies in epoll",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps the core for as long as it says.
    fn work(time: Duration) {
        let cpu = || clock_gettime(ClockId::ThreadCPUTime);
        let elapsed = |began: rustix::time::Timespec| {
            let now = cpu();
            Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
                - Duration::new(began.tv_sec.unsigned_abs(), began.tv_nsec as u32)
        };
        let began = cpu();
        while elapsed(began) < time {}
    }

    #[test]
    fn who_takes_long_each_time_is_woken_no_more() {
        let waking = Waking::default();
        for _ in 0..=FORGIVEN {
            assert!(waking.failure().is_none());
            waking.by(|| work(LONGEST));
        }
        assert!(
            waking.failure().is_none(),
            "the first was by the clock on the wall"
        );
        waking.by(|| work(LONGEST));
        assert!(waking.failure().is_some());
    }

    #[test]
    fn what_others_take_of_the_core_is_nobodys_fault() {
        let waking = Waking::default();
        for _ in 0..10 {
            waking.by(|| std::thread::sleep(LONGEST));
        }
        assert!(waking.failure().is_none());
    }
}
