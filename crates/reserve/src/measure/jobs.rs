//! From a thread's context switches to its jobs.

use super::Sample;
use crate::nanos::Nanos;

/// What happened to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It got a core.
    On,
    /// It lost the core, with more to do.
    Preempted,
    /// It left the core to wait for something.
    Asleep,
}

/// A context switch of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// When, on a clock that does not jump.
    pub at: Nanos,
    /// What.
    pub change: Change,
}

/// The jobs of a thread whose `switches` are in order: from getting a core after a sleep to the next
/// sleep. A sleep shorter than `join` is part of a job.
///
/// What comes before the first sleep is not a job but the thread's beginning, and what is not over
/// at the end is none yet.
pub fn jobs(switches: &[Switch], join: Nanos) -> Vec<Sample> {
    let mut jobs: Vec<Sample> = Vec::new();
    let mut job: Option<Sample> = None;
    let mut since = None;
    let mut slept = None;
    for switch in switches {
        match switch.change {
            Change::On => {
                since = Some(switch.at);
                let short = slept.is_some_and(|slept| switch.at.saturating_sub(slept) < join);
                if job.is_none() && short {
                    job = jobs.pop();
                }
                job.get_or_insert(Sample {
                    activation: switch.at,
                    cpu: Nanos::ZERO,
                });
            }
            Change::Preempted | Change::Asleep => {
                // Without its beginning a stretch says nothing: that record was lost, or was before
                // the first one.
                let ran = since.take().map(|since| switch.at.saturating_sub(since));
                if let (Some(job), Some(ran)) = (&mut job, ran) {
                    job.cpu = job.cpu.saturating_add(ran);
                }
                if switch.change == Change::Asleep {
                    jobs.extend(job.take());
                    slept = Some(switch.at);
                }
            }
        }
    }
    if !jobs.is_empty() {
        jobs.remove(0);
    }
    jobs
}

/// For how long a thread whose `switches` are in order had a core.
pub fn ran(switches: &[Switch]) -> Nanos {
    let (mut since, mut sum) = (None, Nanos::ZERO);
    for switch in switches {
        match switch.change {
            Change::On => since = Some(switch.at),
            Change::Preempted | Change::Asleep => {
                if let Some(since) = since.take() {
                    sum = sum.saturating_add(switch.at.saturating_sub(since));
                }
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::Change::{Asleep, On, Preempted};
    use super::*;

    fn seen(switches: &[(u64, Change)], join: u64) -> Vec<(u64, u64)> {
        let switches: Vec<Switch> = switches
            .iter()
            .map(|&(at, change)| Switch {
                at: Nanos::new(at),
                change,
            })
            .collect();
        jobs(&switches, Nanos::new(join))
            .iter()
            .map(|job| (job.activation.get(), job.cpu.get()))
            .collect()
    }

    #[test]
    fn a_job_is_what_runs_between_two_sleeps_without_what_others_took() {
        let switches = [
            (0, On),
            (5, Asleep),
            (100, On),
            (110, Preempted),
            (140, On),
            (145, Asleep),
            (200, On),
            (203, Asleep),
            (300, On),
        ];
        assert_eq!(seen(&switches, 0), [(100, 15), (200, 3)]);
    }

    #[test]
    fn a_short_sleep_is_part_of_a_job_or_of_the_beginning() {
        let switches = [
            (0, On),
            (5, Asleep),
            (9, On),
            (20, Asleep),
            (100, On),
            (110, Asleep),
            (114, On),
            (120, Asleep),
            (125, On),
            (126, Asleep),
        ];
        assert_eq!(seen(&switches, 5), [(100, 16), (125, 1)]);
        assert_eq!(seen(&switches, 6), [(100, 17)]);
    }

    #[test]
    fn nothing_and_nonsense_have_no_jobs() {
        assert_eq!(seen(&[], 0), []);
        assert_eq!(seen(&[(3, Asleep), (4, Preempted), (5, Asleep)], 0), []);
    }

    proptest! {
        #[test]
        fn jobs_do_not_overlap_and_never_have_more_time_than_the_thread(
            steps in vec((0u64..1_000, 0u8..3), 0..200), join in 0u64..1_000,
        ) {
            let mut at = 0;
            let switches: Vec<(u64, Change)> = steps.iter().map(|&(gap, change)| {
                at += gap;
                (at, [On, Preempted, Asleep][usize::from(change)])
            }).collect();
            let jobs = seen(&switches, join);
            for pair in jobs.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{jobs:?}");
            }
            prop_assert!(jobs.iter().map(|job| job.1).sum::<u64>() <= at);
        }
    }
}
