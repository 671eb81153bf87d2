//! Who else wants the core of a thread that polls.
//!
//! A thread that yields lets others run, and learns from the time that this took whether there are any. Somebody who does not give the
//! core back by himself keeps it until the kernel takes it away, which is milliseconds; and since Linux 6.18 a yield also forfeits
//! what the thread had left of its slice (`yield_task_fair`), so that one that goes on yielding beside a spinner gets some hundredths of the core.
//! It is to sleep instead: whoever is woken gets the core at once, as long as it has had less than its share.

use std::time::{Duration, Instant};

/// A yield that took longer than this let somebody else run.
const SHARED: Duration = Duration::from_micros(1);
/// Two yields that took longer than this let somebody run who does not give the core back: one may have met an interrupt, or a hypervisor.
const CROWDED: Duration = Duration::from_micros(300);
/// For how long that is believed before another yield finds out; twice as long each time that it was so, and at most the second of these.
const BELIEVED: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];
/// A sleep in place of a yield.
const PAUSE: Duration = Duration::from_micros(20);

/// What a thread knows of its core.
#[derive(Clone, Copy, Debug)]
pub struct Contention {
    shared: bool,
    /// The last yield took long.
    suspected: bool,
    crowded_until: Option<Instant>,
    /// For how long the next yield that says so is believed.
    believed: Duration,
}

impl Default for Contention {
    fn default() -> Self {
        Self {
            shared: false,
            suspected: false,
            crowded_until: None,
            believed: BELIEVED[0],
        }
    }
}

impl Contention {
    /// Whether somebody else runs here, too.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether it is somebody who does not give the core back: who waits had better sleep.
    #[inline]
    pub fn is_crowded(&self, now: Instant) -> bool {
        self.crowded_until.is_some_and(|until| now < until)
    }

    /// Lets others run: by a yield, which tells how it is, or where the core is crowded by a short sleep. How long it took, if it was a yield.
    pub fn give_way(&mut self, now: Instant) -> Option<Duration> {
        if self.is_crowded(now) {
            std::thread::sleep(PAUSE);
            return None;
        }
        rustix::thread::sched_yield();
        let took = now.elapsed();
        self.learn(now, took);
        Some(took)
    }

    /// A yield at this instant took so long.
    pub fn learn(&mut self, now: Instant, took: Duration) {
        self.shared = took >= SHARED;
        let long = took >= CROWDED;
        let crowded = std::mem::replace(&mut self.suspected, long) && long;
        self.crowded_until = crowded.then(|| now + took + self.believed);
        self.believed = match crowded {
            true => (2 * self.believed).min(BELIEVED[1]),
            false => BELIEVED[0],
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(4);

    #[test]
    fn a_crowded_core_is_believed_in_for_longer_each_time_that_it_still_is() {
        let mut core = Contention::default();
        let mut now = Instant::now();
        assert!(!core.is_shared() && !core.is_crowded(now));
        core.learn(now, LONG);
        assert!(core.is_shared() && !core.is_crowded(now));
        for believed in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            core.learn(now, LONG);
            now += LONG + Duration::from_millis(believed);
            assert!(core.is_shared() && core.is_crowded(now - Duration::from_nanos(1)));
            assert!(!core.is_crowded(now));
        }
        core.learn(now, Duration::from_micros(5));
        assert!(core.is_shared() && !core.is_crowded(now));
        core.learn(now, LONG);
        core.learn(now, LONG);
        assert!(core.is_crowded(now + LONG));
        assert!(!core.is_crowded(now + LONG + BELIEVED[0]));
        core.learn(now, Duration::from_nanos(400));
        assert!(!core.is_shared());
    }

    #[test]
    fn beside_a_spinner_a_thread_finds_its_core_crowded() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        use std::sync::atomic::{AtomicBool, Ordering};
        let allowed = sched_getaffinity(None).expect("the cores of this thread");
        let core = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core));
        let mut one = CpuSet::new();
        one.set(core.expect("a core"));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sched_setaffinity(None, &one).expect("an own core");
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            scope.spawn(|| {
                sched_setaffinity(None, &one).expect("an own core");
                let mut core = Contention::default();
                // However long that takes: the spinner may not have begun.
                while !core.is_crowded(Instant::now()) {
                    core.give_way(Instant::now());
                }
                assert!(core.is_shared());
                stop.store(true, Ordering::Relaxed);
            });
        });
    }
}
