//! C and T of a running program, estimated from when it was activated and what it used.
//!
//! Measuring bounds nothing: the longest job seen is not the longest there is. What comes out is a
//! starting point with a margin, and notes on how far to trust it. Where the samples come from is
//! the caller's business; [`jobs`] makes them of context switches.

mod jobs;

use std::fmt;

use serde::Serialize;

pub use self::jobs::{Change, Switch, jobs, ran};
use crate::nanos::Nanos;
use crate::task::{Task, TaskError};

/// One job of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When it was activated, on any clock that does not jump.
    pub activation: Nanos,
    /// The CPU time it used until it went to sleep again.
    pub cpu: Nanos,
}

/// How the program is activated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "activation")]
pub enum Activation {
    /// On a grid, give or take a jitter of at most half a step.
    Periodic {
        /// The step of the grid that fits best; activations left out do not count against it.
        period: Nanos,
        /// The distance between the earliest and the latest activation relative to the grid.
        jitter: Nanos,
    },
    /// Without a grid that could be seen.
    Sporadic,
}

/// What to bear in mind with an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "note")]
pub enum Note {
    /// Too few jobs to say much.
    FewJobs {
        /// How many there were.
        jobs: usize,
        /// How many there should be.
        wanted: usize,
    },
    /// The longest job is far longer than nearly all others: it may be the first of a new kind, or
    /// a disturbance.
    LongestStandsOut {
        /// The longest job.
        longest: Nanos,
        /// What 99 of 100 jobs stay within.
        p99: Nanos,
    },
    /// Activations vary so much that they cost the reservation.
    JitterCosts {
        /// The jitter.
        jitter: Nanos,
        /// The period.
        period: Nanos,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FewJobs { jobs, wanted } => {
                write!(
                    f,
                    "only {jobs} jobs were seen: measure until there are {wanted} or more"
                )
            }
            Self::LongestStandsOut { longest, p99 } => write!(
                f,
                "the longest job took {longest}, 99 of 100 stay within {p99}: find out what it was, it decides the reservation"
            ),
            Self::JitterCosts { jitter, period } => write!(
                f,
                "activations vary by {jitter} around a period of {period}: measure on a quiet machine, or the reservation pays for it"
            ),
        }
    }
}

/// Why nothing can be estimated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// Not enough jobs for a single distance between two.
    #[error("{0} job(s) are too few: at least {MIN_JOBS} activations are needed")]
    TooFew(usize),
    /// Two jobs of one instant.
    #[error("two jobs were activated at {0}: give every job an instant of its own")]
    SameInstant(Nanos),
    /// No CPU time at all.
    #[error("no job used any CPU time: was the right thread measured?")]
    Idle,
    /// What was measured is no task.
    #[error(
        "what was measured is no task one core can run; split it or measure one thread at a time"
    )]
    Task(#[from] TaskError),
}

/// The fewest activations anything is estimated from.
pub const MIN_JOBS: usize = 3;
/// How many jobs a measurement should have.
const WANTED_JOBS: usize = 100;

/// What is known of a program after watching it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// The task to plan with: C with its margin; on a grid its T and J, else T the shortest distance
    /// between activations that was seen; D = T.
    pub task: Task,
    /// How many jobs were seen.
    pub jobs: usize,
    /// The median CPU time of a job.
    pub cpu_p50: Nanos,
    /// What 99 of 100 jobs stay within.
    pub cpu_p99: Nanos,
    /// The longest job, without margin.
    pub cpu_max: Nanos,
    /// The shortest distance between two activations that was seen.
    pub min_interarrival: Nanos,
    /// How it is activated.
    #[serde(flatten)]
    pub activation: Activation,
    /// What to bear in mind.
    pub notes: Vec<Note>,
}

/// Estimates the task called `name` from `samples` in any order. C is the longest job and
/// `margin_ppm` millionths of it on top (rounded up). A program activated on a grid has its period as
/// T and its jitter as J: each job is to be done before the next arrives on the grid. Otherwise T is
/// the shortest distance seen.
///
/// # Errors
/// Too few samples, two of one instant, no CPU time, or a result that is no task (C and J above T).
pub fn estimate(name: &str, samples: &[Sample], margin_ppm: u32) -> Result<Estimate, MeasureError> {
    if samples.len() < MIN_JOBS {
        return Err(MeasureError::TooFew(samples.len()));
    }
    let mut activations: Vec<u64> = samples
        .iter()
        .map(|sample| sample.activation.get())
        .collect();
    activations.sort_unstable();
    if let Some(twice) = activations.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(MeasureError::SameInstant(Nanos::new(twice[0])));
    }
    let mut cpu: Vec<Nanos> = samples.iter().map(|sample| sample.cpu).collect();
    cpu.sort_unstable();
    let (cpu_p50, cpu_p99, cpu_max) = (quantile(&cpu, 50), quantile(&cpu, 99), cpu[cpu.len() - 1]);
    if cpu_max == Nanos::ZERO {
        return Err(MeasureError::Idle);
    }
    let mut gaps: Vec<u64> = activations
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .collect();
    gaps.sort_unstable();
    let min_interarrival = Nanos::new(gaps[0]);
    let activation = grid(&activations, gaps[gaps.len() / 2]);
    let (period, jitter) = match activation {
        Activation::Periodic { period, jitter } => (period, jitter),
        Activation::Sporadic => (min_interarrival, Nanos::ZERO),
    };
    let wcet = (cpu_max.wide() * (1_000_000 + u128::from(margin_ppm))).div_ceil(1_000_000);
    Ok(Estimate {
        task: Task::implicit(name, Nanos::from_wide(wcet), period)?.released_within(jitter)?,
        jobs: samples.len(),
        cpu_p50,
        cpu_p99,
        cpu_max,
        min_interarrival,
        activation,
        notes: notes(samples.len(), cpu_p99, cpu_max, activation),
    })
}

fn notes(jobs: usize, p99: Nanos, longest: Nanos, activation: Activation) -> Vec<Note> {
    let mut notes = Vec::new();
    if jobs < WANTED_JOBS {
        notes.push(Note::FewJobs {
            jobs,
            wanted: WANTED_JOBS,
        });
    }
    if longest.wide() > 2 * p99.wide() {
        notes.push(Note::LongestStandsOut { longest, p99 });
    }
    if let Activation::Periodic { period, jitter } = activation
        && jitter.wide() * 10 > period.wide()
    {
        notes.push(Note::JitterCosts { jitter, period });
    }
    notes
}

/// The value that `percent` of the sorted values do not exceed (nearest rank).
fn quantile(sorted: &[Nanos], percent: usize) -> Nanos {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

/// What the arithmetic of the fit may be off, in nanoseconds.
const ROUNDING: f64 = 1e-3;

/// The grid that fits `activations` best, starting from their median distance, if they stay within
/// half a step of it.
fn grid(activations: &[u64], median_gap: u64) -> Activation {
    let start = activations[0];
    let times: Vec<f64> = activations.iter().map(|&at| (at - start) as f64).collect();
    let mut period = median_gap as f64;
    let mut fit = None;
    // The second round counts left-out activations with the period of the first.
    for _ in 0..2 {
        let steps = steps(&times, period);
        let (slope, jitter) = line(&steps, &times);
        period = slope;
        fit = (jitter <= slope / 2.0).then_some((slope, jitter));
    }
    match fit {
        // Rounded so that neither promises too much.
        Some((period, jitter)) => Activation::Periodic {
            period: Nanos::new((period + ROUNDING).floor() as u64),
            jitter: Nanos::new((jitter - ROUNDING).ceil().max(0.0) as u64),
        },
        None => Activation::Sporadic,
    }
}

/// The number on the grid of each activation: at least one after the one before it.
fn steps(times: &[f64], period: f64) -> Vec<f64> {
    let mut step = 0.0;
    let mut steps = vec![0.0];
    for pair in times.windows(2) {
        step += ((pair[1] - pair[0]) / period).round().max(1.0);
        steps.push(step);
    }
    steps
}

/// The slope of the line that fits best (least squares), and the distance between the points
/// furthest above and below it.
fn line(steps: &[f64], times: &[f64]) -> (f64, f64) {
    let count = steps.len() as f64;
    let (mean_step, mean_time) = (
        steps.iter().sum::<f64>() / count,
        times.iter().sum::<f64>() / count,
    );
    let pairs = || steps.iter().zip(times);
    let covariance: f64 = pairs()
        .map(|(step, time)| (step - mean_step) * (time - mean_time))
        .sum();
    let variance: f64 = steps.iter().map(|step| (step - mean_step).powi(2)).sum();
    let slope = covariance / variance;
    let off = pairs().map(|(step, time)| time - slope * step);
    let (low, high) = off.fold((f64::MAX, f64::MIN), |(low, high), off| {
        (low.min(off), high.max(off))
    });
    (slope, high - low)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn us(micros: u64) -> Nanos {
        Nanos::from_micros(micros)
    }

    fn samples(activations: impl IntoIterator<Item = u64>, cpu: u64) -> Vec<Sample> {
        activations
            .into_iter()
            .map(|at| Sample {
                activation: us(at),
                cpu: us(cpu),
            })
            .collect()
    }

    #[test]
    fn a_punctual_program_has_its_period_and_its_longest_job() {
        let mut seen = samples((0..200).map(|job| 5_000 + job * 10_000), 1_500);
        seen[77].cpu = us(2_000);
        let estimate = estimate("p", &seen, 100_000).unwrap();
        assert_eq!(
            estimate.activation,
            Activation::Periodic {
                period: us(10_000),
                jitter: Nanos::ZERO
            }
        );
        assert_eq!(
            (estimate.task.wcet(), estimate.task.period()),
            (us(2_200), us(10_000))
        );
        assert_eq!(
            (estimate.cpu_p50, estimate.cpu_p99, estimate.cpu_max),
            (us(1_500), us(1_500), us(2_000))
        );
        assert_eq!(estimate.notes, []);
    }

    #[test]
    fn left_out_activations_do_not_hide_the_period() {
        let seen = samples(
            (0..300)
                .filter(|job| job % 7 != 3 && job % 11 != 5)
                .map(|job| job * 4_000),
            100,
        );
        let estimate = estimate("p", &seen, 0).unwrap();
        assert!(
            matches!(estimate.activation, Activation::Periodic { period, .. } if period == us(4_000))
        );
    }

    #[test]
    fn activations_beside_their_grid_are_released_late() {
        let seen = samples(
            (0..400u64).map(|job| job * 10_000 + (job * 7_919) % 2_001),
            100,
        );
        let estimate = estimate("p", &seen, 0).unwrap();
        let Activation::Periodic { period, jitter } = estimate.activation else {
            panic!("periodic")
        };
        assert!(period.get().abs_diff(10_000_000) < 10_000, "{period}");
        assert!((1_900_000..2_100_000).contains(&jitter.get()), "{jitter}");
        assert_eq!(
            (estimate.task.period(), estimate.task.jitter()),
            (period, jitter)
        );
        assert!(matches!(estimate.notes[..], [Note::JitterCosts { .. }]));
    }

    #[test]
    fn a_program_without_a_grid_is_sporadic_at_its_shortest_distance() {
        let mut at = 0;
        let seen = samples(
            (0..200u64).map(|job| {
                at += 1_000 + (job * job * 7_919) % 9_000;
                at
            }),
            100,
        );
        let estimate = estimate("p", &seen, 0).unwrap();
        assert_eq!(estimate.activation, Activation::Sporadic);
        assert_eq!(estimate.task.period(), estimate.min_interarrival);
    }

    #[test]
    fn doubtful_measurements_are_noted() {
        let mut seen = samples((0..50).map(|job| job * 10_000), 100);
        seen[20].cpu = us(900);
        let mut more = samples((0..150).map(|job| job * 10_000), 100);
        more[20].cpu = us(900);
        let few = estimate("p", &seen, 0).unwrap();
        assert!(few.notes.contains(&Note::FewJobs {
            jobs: 50,
            wanted: 100
        }));
        assert_eq!(
            estimate("p", &more, 0).unwrap().notes,
            [Note::LongestStandsOut {
                longest: us(900),
                p99: us(100)
            }]
        );
    }

    #[test]
    fn nothing_is_estimated_from_nothing() {
        assert_eq!(
            estimate("p", &samples([0, 1], 1), 0),
            Err(MeasureError::TooFew(2))
        );
        assert_eq!(
            estimate("p", &samples([0, 7, 7], 1), 0),
            Err(MeasureError::SameInstant(us(7)))
        );
        assert_eq!(
            estimate("p", &samples([0, 1, 2], 0), 0),
            Err(MeasureError::Idle)
        );
        assert!(matches!(
            estimate("p", &samples([0, 1, 2], 5), 0),
            Err(MeasureError::Task(_))
        ));
    }

    proptest! {
        #[test]
        fn the_task_covers_every_job_and_every_distance_seen(
            period in 1_000u64..100_000,
            jobs in vec((0u64..400, 1u64..300), 3..120),
            margin in 0u32..500_000,
        ) {
            let seen: Vec<Sample> = jobs.iter().enumerate().map(|(job, &(late, cpu))| Sample {
                activation: us(1_000_000 + job as u64 * period + late),
                cpu: us(cpu),
            }).collect();
            let estimate = estimate("p", &seen, margin);
            prop_assume!(estimate.is_ok());
            let task = estimate.unwrap().task;
            prop_assert!(seen.iter().all(|sample| sample.cpu <= task.wcet()));
            // There are arrivals T apart from which each job was released within J.
            let mut arrival = Nanos::ZERO;
            for (job, sample) in seen.iter().enumerate() {
                let apart = if job == 0 { Nanos::ZERO } else { task.period() };
                arrival = arrival.saturating_add(apart).max(sample.activation.saturating_sub(task.jitter()));
                prop_assert!(arrival <= sample.activation);
            }
        }
    }
}
