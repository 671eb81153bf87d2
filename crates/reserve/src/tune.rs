//! The runtime that a thread with a reservation needs, from watching it.

use serde::Serialize;

use crate::measure::{Activation, MeasureError, Sample, estimate};
use crate::nanos::Nanos;

/// Who has used so many millionths of what it had may have wanted more, which cannot be seen.
const ALL_OF_IT: u64 = 950_000;
/// Jobs that come by less than a quarter of a period too early or too late are on the beat.
const BEAT: (u128, u128) = (3, 4);

/// What was seen of a thread with a reservation of its own, and what it has.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Its jobs.
    pub jobs: &'a [Sample],
    /// What it ran, jobs that were not over among it.
    pub ran: Nanos,
    /// For how long it was watched.
    pub watched: Nanos,
    /// Q.
    pub runtime: Nanos,
    /// P.
    pub period: Nanos,
}

/// What a thread needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Needs {
    /// So much in every period.
    Runtime {
        /// Q.
        runtime: Nanos,
        /// The longest job that was seen.
        longest: Nanos,
    },
    /// More than it has, and nobody can say how much: twice of it is the next thing to try.
    More {
        /// Q.
        runtime: Nanos,
    },
}

impl Needs {
    /// Q.
    pub fn runtime(&self) -> Nanos {
        match self {
            Self::Runtime { runtime, .. } | Self::More { runtime } => *runtime,
        }
    }
}

/// Why it cannot be said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTuning {
    /// It was not watched for long enough.
    #[error("it was watched for {0}, less than ten periods: watch it for longer")]
    TooShort(Nanos),
    /// It is no task.
    #[error(transparent)]
    NoTask(#[from] MeasureError),
    /// No runtime does in this period.
    #[error(
        "its jobs take {runtime} in {period}, more than a core: it needs further threads, or a longer period"
    )]
    TooMuch {
        /// What they take, with the margin.
        runtime: Nanos,
        /// P.
        period: Nanos,
    },
}

impl Seen<'_> {
    /// What it ran of what it had while it was watched, in millionths.
    pub fn used_ppm(&self) -> u64 {
        let had = self.watched.wide() * self.runtime.wide() / self.period.wide().max(1);
        let used = self.ran.wide() * 1_000_000 / had.max(1);
        u64::try_from(used).unwrap_or(u64::MAX)
    }

    /// The least runtime in every period of its reservation for the most CPU time that its jobs took of so many periods as pass
    /// until the next one comes (at least one), and `margin_ppm` millionths more; or, of a thread that used up all that it had,
    /// twice of that. It is what the jobs seen would have needed, not a bound: [`crate::plan_per_task`] has those.
    ///
    /// # Errors
    /// Too little was seen, or no runtime does.
    pub fn needs(&self, margin_ppm: u32) -> Result<Needs, NoTuning> {
        let period = self.period.wide();
        if self.watched.wide() < 10 * period {
            return Err(NoTuning::TooShort(self.watched));
        }
        if self.used_ppm() >= ALL_OF_IT {
            let twice = Nanos::from_wide((2 * self.runtime.wide()).min(period));
            return Ok(Needs::More { runtime: twice });
        }
        let seen = match estimate("thread", self.jobs, margin_ppm) {
            Ok(seen) => seen,
            // Not a task by itself, but its jobs are there.
            Err(MeasureError::Task(_)) => return self.for_periods(0, margin_ppm),
            Err(error) => return Err(error.into()),
        };
        let apart = match seen.activation {
            Activation::Periodic { period, .. } => period,
            Activation::Sporadic => seen.min_interarrival,
        };
        // Nearly three periods are three.
        let until_the_next =
            (apart.wide() * BEAT.1 + (BEAT.1 - BEAT.0) * period) / (BEAT.1 * period);
        self.for_periods(until_the_next, margin_ppm)
    }

    /// For the most that jobs took of so many periods in a row; of one where several come in each: 0.
    fn for_periods(&self, until_the_next: u128, margin_ppm: u32) -> Result<Needs, NoTuning> {
        let (periods, period) = (until_the_next.max(1), self.period.wide());
        let early = match until_the_next {
            0 => 0,
            _ => period * (BEAT.1 - BEAT.0) / BEAT.1,
        };
        let window = periods * period - early;
        let mut jobs = self.jobs.to_vec();
        jobs.sort_unstable_by_key(|job| job.activation);
        let (mut most, mut sum, mut first) = (0, 0, 0);
        for job in &jobs {
            sum += job.cpu.wide();
            while job.activation.wide() - jobs[first].activation.wide() >= window {
                sum -= jobs[first].cpu.wide();
                first += 1;
            }
            most = most.max(sum);
        }
        let with_margin = (most * (1_000_000 + u128::from(margin_ppm))).div_ceil(1_000_000);
        let runtime = with_margin.div_ceil(periods);
        if runtime > self.period.wide() {
            return Err(NoTuning::TooMuch {
                runtime: Nanos::from_wide(runtime),
                period: self.period,
            });
        }
        Ok(Needs::Runtime {
            runtime: Nanos::from_wide(runtime),
            longest: jobs.iter().map(|job| job.cpu).max().unwrap_or(Nanos::ZERO),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    /// Jobs of `cpu` every `period`, for a second.
    fn every(cpu: Nanos, period: Nanos) -> Vec<Sample> {
        (0..ms(1000).get() / period.get())
            .map(|number| Sample {
                activation: Nanos::new(number * period.get()),
                cpu,
            })
            .collect()
    }

    fn seen<'a>(jobs: &'a [Sample], runtime: Nanos, period: Nanos) -> Seen<'a> {
        let ran = jobs.iter().map(|job| job.cpu.get()).sum();
        Seen {
            jobs,
            ran: Nanos::new(ran),
            watched: ms(1000),
            runtime,
            period,
        }
    }

    #[test]
    fn a_thread_needs_its_longest_job_and_the_margin_in_a_period_as_long_as_its_own() {
        let jobs = every(ms(2), ms(10));
        let needs = seen(&jobs, ms(6), ms(10)).needs(200_000).unwrap();
        assert_eq!(
            needs,
            Needs::Runtime {
                runtime: Nanos::from_micros(2400),
                longest: ms(2)
            }
        );
    }

    #[test]
    fn a_job_may_be_spread_over_the_periods_until_the_next() {
        let jobs = every(ms(8), ms(40));
        let needs = seen(&jobs, ms(6), ms(10)).needs(0).unwrap();
        assert_eq!(needs.runtime(), ms(2));
        // A little less than four periods are four, a little more than three are three.
        for (apart, runtime) in [(39, ms(2)), (32, Nanos::new(2_666_667))] {
            let jobs = every(ms(8), ms(apart));
            let needs = seen(&jobs, ms(6), ms(10)).needs(0).unwrap();
            assert_eq!(needs.runtime(), runtime, "{apart}");
        }
    }

    #[test]
    fn jobs_that_stray_from_the_beat_are_still_one_in_each_period() {
        let mut jobs = every(ms(2), ms(10));
        for (number, job) in jobs.iter_mut().enumerate() {
            let late = if number % 2 == 0 { 0 } else { 2_000_000 };
            job.activation = Nanos::new(job.activation.get() + late);
        }
        assert_eq!(
            seen(&jobs, ms(6), ms(10)).needs(0).unwrap().runtime(),
            ms(2)
        );
    }

    #[test]
    fn several_jobs_in_a_period_are_needed_together() {
        let jobs = every(Nanos::from_micros(500), ms(2));
        let needs = seen(&jobs, ms(6), ms(10)).needs(0).unwrap();
        assert_eq!(needs.runtime(), Nanos::from_micros(2500));
        // Bursts without a beat: three at once, then none for long.
        let bursts: Vec<Sample> = (0..30)
            .map(|number| Sample {
                activation: Nanos::new(
                    (number / 3 * 70 + number % 3) * 1_000_000 + number * number,
                ),
                cpu: Nanos::from_micros(300),
            })
            .collect();
        let needs = seen(&bursts, ms(6), ms(10)).needs(0).unwrap();
        assert_eq!(needs.runtime(), Nanos::from_micros(900));
    }

    #[test]
    fn who_uses_all_that_it_has_needs_more() {
        let jobs = every(ms(10), ms(100));
        let needs = seen(&jobs, ms(10), ms(100)).needs(200_000).unwrap();
        assert_eq!(needs, Needs::More { runtime: ms(20) });
        let nearly_whole = every(ms(80), ms(100));
        let needs = seen(&nearly_whole, ms(80), ms(100)).needs(0).unwrap();
        assert_eq!(needs.runtime(), ms(100), "never above a whole core");
        // One that never sleeps has no job that is over.
        let mut busy = seen(&[], ms(10), ms(100));
        busy.ran = ms(100);
        assert_eq!(busy.needs(0).unwrap().runtime(), ms(20));
    }

    #[test]
    fn what_cannot_be_said_is_not() {
        let jobs = every(ms(1), ms(10));
        let mut short = seen(&jobs, ms(5), ms(10));
        short.watched = ms(99);
        assert_eq!(short.needs(0), Err(NoTuning::TooShort(ms(99))));
        assert_eq!(
            seen(&jobs[..2], ms(5), ms(10)).needs(0),
            Err(NoTuning::NoTask(MeasureError::TooFew(2)))
        );
        // A job that is longer than all its periods, and yet not all that was had.
        let mut long = every(ms(1), ms(100));
        long[3].cpu = ms(150);
        let none = seen(&long, ms(60), ms(100)).needs(0);
        assert!(matches!(none, Err(NoTuning::TooMuch { .. })), "{none:?}");
    }
}
