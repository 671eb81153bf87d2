//! Time that a running thread did not have although the kernel had not taken its core: the
//! hypervisor's, and that of interrupts.
//!
//! A thread that reads the clock all the time sees any such stretch as a gap between two readings. Where the
//! kernel switched to others in between, what it says that the thread waited (`run_delay` of
//! `/proc/thread-self/schedstat`) is taken off, which leaves what the kernel took for the thread's own time:
//! so it is when a core comes back from the hypervisor and wakes somebody. A thread that may have been
//! throttled meanwhile skips such a gap: nobody accounts for that time. Tasks and hogs keep every core busy
//! and all of them look, so that together they observe each core from beginning to end, but for what other
//! programs run.

use serde::{Deserialize, Serialize};

use super::thread::{Waiting, now_ns, switches};

/// A shorter stretch is not told from the clock being read.
const LEAST_NS: u64 = 10_000;
/// How often a thread asks what a gap was: it may be interrupted while it does.
const TRIES: u32 = 20;
/// How many gaps one thread remembers; the time of further ones goes to the last.
const MOST: usize = 20_000;

/// A stretch without a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// When it ended, in nanoseconds from the beginning of the run.
    pub end_ns: u64,
    /// How long it was.
    pub length_ns: u64,
}

impl Gap {
    /// How much of it lies between two instants.
    pub fn within(&self, from_ns: u64, to_ns: u64) -> u64 {
        let begin = self.end_ns.saturating_sub(self.length_ns).max(from_ns);
        self.end_ns.min(to_ns).saturating_sub(begin)
    }
}

/// A thread's own observer.
pub struct Observer {
    gaps: Vec<Gap>,
    last_ns: u64,
    switches: i64,
    /// The kernel's account of the thread's waiting, and what it said last.
    waiting: Option<(Waiting, u64)>,
    /// Whether the kernel may have throttled the thread.
    throttled: bool,
}

impl Observer {
    /// Begins to look, for a thread that is not throttled. All memory is taken here.
    pub fn new() -> Self {
        let waiting = Waiting::of_this_thread();
        Self {
            gaps: Vec::with_capacity(MOST),
            last_ns: now_ns(),
            switches: switches(),
            waiting: waiting.map(|waiting| {
                let waited = waiting.ns();
                (waiting, waited)
            }),
            throttled: false,
        }
    }

    /// Reads the clock; notes a gap since the last reading.
    pub fn look(&mut self) -> u64 {
        let mut now = now_ns();
        if now - self.last_ns > LEAST_NS {
            // Whoever is interrupted between the questions has no answers of one instant: once more.
            for _ in 0..TRIES {
                let switched = switches();
                let waited = self.waiting.as_ref().map(|(waiting, _)| waiting.ns());
                let asked = std::mem::replace(&mut now, now_ns());
                if now - asked <= LEAST_NS {
                    self.judge(now, switched, waited);
                    break;
                }
            }
        }
        self.last_ns = now;
        now
    }

    /// Notes the gap that ends now, if the machine took it.
    fn judge(&mut self, now: u64, switched: i64, waited: Option<u64>) {
        let account = self.waiting.as_mut().zip(waited);
        let waited_ns = account
            .map(|((_, before), waited)| waited.saturating_sub(std::mem::replace(before, waited)));
        let length_ns = now - self.last_ns;
        let waited_ns = waited_ns.filter(|_| !self.throttled);
        let taken_ns = taken_ns(length_ns, switched != self.switches, waited_ns);
        if taken_ns > LEAST_NS {
            self.note(Gap {
                // What was taken came first: then the others were woken.
                end_ns: self.last_ns + taken_ns,
                length_ns: taken_ns,
            });
        }
        self.switches = switched;
    }

    /// Begins anew after a sleep; from now on the thread may be throttled, or not.
    pub fn resume(&mut self, throttled: bool) {
        self.throttled = throttled;
        if let Some((waiting, waited)) = &mut self.waiting {
            *waited = waiting.ns();
        }
        self.switches = switches();
        self.last_ns = now_ns();
    }

    fn note(&mut self, gap: Gap) {
        if self.gaps.len() < MOST {
            self.gaps.push(gap);
        } else if let Some(last) = self.gaps.last_mut() {
            last.length_ns += gap.length_ns;
            last.end_ns = gap.end_ns;
        }
    }

    /// What was seen from the instant `start_ns` on, counted from there.
    pub fn gaps_from(self, start_ns: u64) -> Vec<Gap> {
        let seen = self.gaps.into_iter().filter(|gap| gap.end_ns > start_ns);
        seen.map(|gap| Gap {
            end_ns: gap.end_ns - start_ns,
            length_ns: gap.length_ns.min(gap.end_ns - start_ns),
        })
        .collect()
    }
}

/// How much of a gap the machine took from a thread that waited for others in it, if that is known.
fn taken_ns(length_ns: u64, switched: bool, waited_ns: Option<u64>) -> u64 {
    match (switched, waited_ns) {
        (false, _) => length_ns,
        (true, Some(waited_ns)) => length_ns.saturating_sub(waited_ns),
        (true, None) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_part_of_a_gap_between_two_instants_counts() {
        let gap = Gap {
            end_ns: 100,
            length_ns: 30,
        };
        for (from, to, part) in [
            (0, 200, 30),
            (80, 200, 20),
            (0, 90, 20),
            (75, 80, 5),
            (100, 200, 0),
            (0, 70, 0),
        ] {
            assert_eq!(gap.within(from, to), part, "{from} to {to}");
        }
    }

    #[test]
    fn what_a_thread_waited_for_others_was_not_taken_by_the_machine() {
        for (length, switched, waited, taken) in [
            (50, false, None, 50),
            (50, false, Some(0), 50),
            (50, true, Some(30), 20),
            (50, true, Some(50), 0),
            (50, true, Some(60), 0),
            (50, true, None, 0),
        ] {
            assert_eq!(super::taken_ns(length, switched, waited), taken);
        }
    }

    #[test]
    fn a_thread_knows_how_long_it_waited() {
        let core = crate::awake::usable_cores().unwrap()[0];
        let look = move || {
            crate::awake::pin_to(core).unwrap();
            let mut observer = Observer::new();
            let (_, before) = observer.waiting.as_ref()?;
            let (before, begin) = (*before, now_ns());
            while observer.look() < begin + 100_000_000 {}
            let (waiting, _) = observer.waiting.as_ref()?;
            Some(waiting.ns() - before)
        };
        // Two on one core: each waits for the other about half of the time.
        let other = std::thread::spawn(look);
        let waited = std::thread::spawn(look).join().unwrap();
        let waited = waited.zip(other.join().unwrap());
        let Some((one, other)) = waited else {
            eprintln!("skipped: the kernel does not account for waiting");
            return;
        };
        assert!(one + other > 10_000_000, "{one} {other}");
    }

    #[test]
    fn a_thread_that_may_have_been_throttled_has_no_gap_for_being_switched_out() {
        let mut observer = Observer::new();
        observer.resume(true);
        observer.look();
        let before = observer.gaps.len();
        std::thread::sleep(std::time::Duration::from_millis(5));
        observer.look();
        assert_eq!(observer.gaps.len(), before);
    }

    #[test]
    fn gaps_before_the_beginning_do_not_count() {
        let mut observer = Observer::new();
        for end_ns in [50, 120, 300] {
            observer.note(Gap {
                end_ns,
                length_ns: 40,
            });
        }
        assert_eq!(
            observer.gaps_from(100),
            [
                Gap {
                    end_ns: 20,
                    length_ns: 20
                },
                Gap {
                    end_ns: 200,
                    length_ns: 40
                }
            ]
        );
    }
}
