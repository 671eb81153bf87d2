//! Random task sets of a given utilisation, the same ones for the same seed.
//!
//! Utilisations come from RandFixedSum (Stafford 2006; Emberson, Stafford and Davis, "Techniques
//! for the synthesis of multiprocessor tasksets", WATERS 2010), which draws uniformly from all
//! vectors of a given sum within given bounds, also when the sum exceeds one; periods are
//! log-uniform, as the same authors advise. kubedeadline-ecrts2025, section 5.1 draws its 150 sets
//! this way. Numbers repeat for a seed on one machine; on another, the last bit of a logarithm may
//! differ.

use std::ops::RangeInclusive;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::nanos::Nanos;
use crate::task::{Task, TaskError, TaskSet};

/// What a random task set looks like.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSetSpec {
    /// How many tasks.
    pub tasks: usize,
    /// Σ C/T.
    pub utilisation: f64,
    /// The most that one task may need of a core.
    pub most_per_task: f64,
    /// The shortest and the longest period; deadlines are periods.
    pub periods: RangeInclusive<Nanos>,
    /// Periods are multiples of this.
    pub granularity: Nanos,
}

/// Why there is no such task set.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GenerateError {
    /// No tasks, or too many.
    #[error("a task set of {0} tasks cannot be drawn: use 1 to {max}", max = TaskSet::MAX_TASKS)]
    Tasks(usize),
    /// A bound per task outside a core.
    #[error("a task cannot need at most {0} of a core: use more than 0 and at most 1")]
    MostPerTask(f64),
    /// More utilisation than the tasks may have, or none.
    #[error("{tasks} tasks of at most {most_per_task} cannot use {utilisation} of a core together: use more than 0 and at most {}", *tasks as f64 * most_per_task)]
    Utilisation {
        /// What was asked for.
        utilisation: f64,
        /// Of how many tasks.
        tasks: usize,
        /// Of what each may have.
        most_per_task: f64,
    },
    /// Periods from which none can be drawn.
    #[error("no period can be drawn from {shortest} to {longest} in steps of {granularity}: the shortest must be a step or more, and the longest no shorter than that and at most {max}", max = Nanos::MAX_PARAMETER)]
    Periods {
        /// The shortest.
        shortest: Nanos,
        /// The longest.
        longest: Nanos,
        /// The step.
        granularity: Nanos,
    },
    /// What was drawn is no task set.
    #[error("what was drawn is no task set")]
    Task(#[from] TaskError),
}

/// Many random task sets, each with a utilisation and a number of tasks drawn uniformly from a
/// range.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// How many sets.
    pub sets: u32,
    /// From what to what the utilisation goes.
    pub utilisation: RangeInclusive<f64>,
    /// From how many to how many tasks there are.
    pub tasks: RangeInclusive<usize>,
    /// The most that one task may need of a core.
    pub most_per_task: f64,
    /// The shortest and the longest period.
    pub periods: RangeInclusive<Nanos>,
    /// Periods are multiples of this.
    pub granularity: Nanos,
    /// Other seeds, other sets.
    pub seed: u64,
}

impl Experiment {
    /// The task sets of kubedeadline-ecrts2025, figure 6: 150 of them, U from 0.6 to 2.0, 4 to 12
    /// tasks. The paper does not give the periods: here 10 ms to 100 ms in whole milliseconds.
    pub fn figure_6(seed: u64) -> Self {
        Self {
            sets: 150,
            utilisation: 0.6..=2.0,
            tasks: 4..=12,
            most_per_task: 1.0,
            periods: Nanos::from_millis(10)..=Nanos::from_millis(100),
            granularity: Nanos::from_millis(1),
            seed,
        }
    }

    /// The set with this `number`, the same whatever others are drawn.
    ///
    /// # Errors
    /// As [`generate`].
    pub fn set(&self, number: u32) -> Result<TaskSet, GenerateError> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(u64::from(number));
        let (least, most) = (*self.utilisation.start(), *self.utilisation.end());
        let utilisation = least + (most - least) * unit(&mut rng);
        let (few, many) = (*self.tasks.start(), *self.tasks.end());
        let tasks = few + (unit(&mut rng) * (many.saturating_sub(few) + 1) as f64) as usize;
        let spec = TaskSetSpec {
            tasks: tasks.min(many.max(few)),
            utilisation,
            most_per_task: self.most_per_task,
            periods: self.periods.clone(),
            granularity: self.granularity,
        };
        draw(&spec, &mut rng)
    }

    /// All sets in turn.
    ///
    /// # Errors
    /// Per set, as [`generate`].
    pub fn iter(&self) -> impl Iterator<Item = Result<TaskSet, GenerateError>> + '_ {
        (0..self.sets).map(|number| self.set(number))
    }
}

/// Draws a task set by `spec`, the same for the same `seed`. Its tasks are called t1, t2, …
///
/// # Errors
/// A specification that no task set meets.
pub fn generate(spec: &TaskSetSpec, seed: u64) -> Result<TaskSet, GenerateError> {
    draw(spec, &mut ChaCha8Rng::seed_from_u64(seed))
}

fn draw(spec: &TaskSetSpec, rng: &mut ChaCha8Rng) -> Result<TaskSet, GenerateError> {
    let TaskSetSpec {
        tasks,
        utilisation,
        most_per_task,
        granularity,
        ..
    } = *spec;
    if tasks == 0 || tasks > TaskSet::MAX_TASKS {
        return Err(GenerateError::Tasks(tasks));
    }
    if !(most_per_task > 0.0 && most_per_task <= 1.0) {
        return Err(GenerateError::MostPerTask(most_per_task));
    }
    if !(utilisation > 0.0 && utilisation <= tasks as f64 * most_per_task) {
        return Err(GenerateError::Utilisation {
            utilisation,
            tasks,
            most_per_task,
        });
    }
    let (shortest, longest) = (*spec.periods.start(), *spec.periods.end());
    if granularity == Nanos::ZERO
        || shortest < granularity
        || longest < shortest
        || longest > Nanos::MAX_PARAMETER
    {
        return Err(GenerateError::Periods {
            shortest,
            longest,
            granularity,
        });
    }
    let shares = rand_fixed_sum(tasks, utilisation / most_per_task, rng);
    let drawn = shares.iter().enumerate().map(|(index, share)| {
        let period = log_uniform(shortest, longest, granularity, rng);
        let wcet = (share * most_per_task * period.get() as f64).round() as u64;
        Task::implicit(
            format!("t{}", index + 1),
            Nanos::new(wcet.clamp(1, period.get())),
            period,
        )
    });
    let tasks = drawn.collect::<Result<Vec<_>, _>>()?;
    Ok(TaskSet::new(tasks)?)
}

fn log_uniform(shortest: Nanos, longest: Nanos, granularity: Nanos, rng: &mut ChaCha8Rng) -> Nanos {
    let (shortest, longest) = (shortest.get() as f64, longest.get() as f64);
    let drawn = (shortest.ln() + (longest.ln() - shortest.ln()) * unit(rng)).exp();
    let steps = (drawn.min(longest) as u64 / granularity.get()).max(1);
    Nanos::new(steps * granularity.get())
}

/// A number from [0, 1), of 53 random bits.
fn unit(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// `count` numbers from [0, 1] of the given `sum`, uniform over all such vectors.
///
/// Those vectors are a slice through a cube, made of simplices of known volumes. Walking through
/// the coordinates, each step goes to one of two neighbouring pieces with the probability of their
/// volumes and takes a uniform point of the simplex; shuffling the coordinates makes up for the
/// order.
fn rand_fixed_sum(count: usize, sum: f64, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let whole = (sum.floor().max(0.0) as usize).min(count - 1);
    let sum = sum.clamp(whole as f64, whole as f64 + 1.0);
    let steps = step_probabilities(count, whole, sum);
    let mut numbers = Vec::with_capacity(count);
    let (mut left, mut piece) = (sum, whole);
    let (mut base, mut scale) = (0.0, 1.0);
    for rest in (1..count).rev() {
        let up = unit(rng) < steps[rest - 1][piece];
        let shrink = unit(rng).powf(1.0 / rest as f64);
        base += (1.0 - shrink) * scale * left / (rest + 1) as f64;
        scale *= shrink;
        numbers.push(base + if up { scale } else { 0.0 });
        if up {
            left -= 1.0;
            piece -= 1;
        }
    }
    numbers.push(base + scale * left);
    for last in (1..count).rev() {
        numbers.swap(last, (unit(rng) * (last + 1) as f64) as usize);
    }
    numbers
}

/// For i + 2 coordinates (row i) and each piece: the probability that the next coordinate goes up.
fn step_probabilities(count: usize, whole: usize, sum: f64) -> Vec<Vec<f64>> {
    let above = |piece: usize| sum - whole as f64 + piece as f64;
    let below = |piece: usize| (whole + count - piece) as f64 - sum;
    // Volumes shrink with the factorial of the dimension: start at the other end of the range.
    let mut volumes = vec![0.0; count + 1];
    volumes[1] = 1e300;
    let mut rows = Vec::with_capacity(count - 1);
    for dimension in 2..=count {
        let mut next = vec![0.0; count + 1];
        let row = (0..dimension).map(|piece| {
            let (rise, fall) = (above(piece), below(count - dimension + piece));
            let staying = volumes[piece + 1] * rise / dimension as f64;
            let going_up = volumes[piece] * fall / dimension as f64;
            next[piece + 1] = staying + going_up;
            let both = next[piece + 1] + f64::MIN_POSITIVE;
            // The smaller of the two quotients is the exact one.
            if fall > rise {
                going_up / both
            } else {
                1.0 - staying / both
            }
        });
        rows.push(row.collect());
        volumes = next;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(tasks: usize, utilisation: f64) -> TaskSetSpec {
        TaskSetSpec {
            tasks,
            utilisation,
            most_per_task: 1.0,
            periods: Nanos::from_millis(10)..=Nanos::from_millis(100),
            granularity: Nanos::from_millis(1),
        }
    }

    fn vectors(count: usize, sum: f64, how_many: usize) -> Vec<Vec<f64>> {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        (0..how_many)
            .map(|_| rand_fixed_sum(count, sum, &mut rng))
            .collect()
    }

    #[test]
    fn every_vector_keeps_its_sum_and_its_bounds() {
        for (count, sum) in [
            (1, 0.3),
            (2, 1.7),
            (4, 0.6),
            (12, 2.0),
            (5, 4.9),
            (3, 3.0),
            (100, 40.5),
        ] {
            for vector in vectors(count, sum, 200) {
                assert!(
                    (vector.iter().sum::<f64>() - sum).abs() < 1e-9,
                    "{count} {sum}"
                );
                assert!(
                    vector
                        .iter()
                        .all(|number| (-1e-12..=1.0 + 1e-12).contains(number)),
                    "{vector:?}"
                );
            }
        }
    }

    /// The same vectors by trial: all coordinates but one at random, kept if the last one fits.
    fn by_rejection(count: usize, sum: f64, how_many: usize) -> Vec<Vec<f64>> {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut kept = Vec::new();
        while kept.len() < how_many {
            let mut vector: Vec<f64> = (1..count).map(|_| unit(&mut rng)).collect();
            let last = sum - vector.iter().sum::<f64>();
            if (0.0..=1.0).contains(&last) {
                vector.push(last);
                kept.push(vector);
            }
        }
        kept
    }

    #[test]
    fn the_distribution_is_that_of_drawing_by_trial_and_error() {
        for (count, sum) in [(3, 0.8), (3, 1.5), (4, 1.2), (5, 3.1)] {
            let (drawn, tried) = (
                vectors(count, sum, 20_000),
                by_rejection(count, sum, 20_000),
            );
            for coordinate in [0, count - 1] {
                for threshold in [0.1, 0.25, 0.5, 0.75, 0.9] {
                    let share = |vectors: &[Vec<f64>]| {
                        vectors
                            .iter()
                            .filter(|vector| vector[coordinate] < threshold)
                            .count() as f64
                            / 20_000.0
                    };
                    let gap = (share(&drawn) - share(&tried)).abs();
                    // Four and more standard deviations of the difference of two such counts.
                    assert!(gap < 0.02, "{count} {sum} {coordinate} {threshold}: {gap}");
                }
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_set_again_and_another_seed_another() {
        let spec = spec(6, 1.3);
        assert_eq!(generate(&spec, 7), generate(&spec, 7));
        assert_ne!(generate(&spec, 7), generate(&spec, 8));
    }

    #[test]
    fn a_set_has_the_utilisation_and_the_periods_that_were_asked_for() {
        for seed in 0..50 {
            let set = generate(&spec(9, 1.8), seed).unwrap();
            assert_eq!(set.tasks().len(), 9);
            assert!(set.utilisation_ppm().abs_diff(1_800_000) <= 10);
            for task in set.tasks() {
                assert!(
                    (Nanos::from_millis(10)..=Nanos::from_millis(100)).contains(&task.period())
                );
                assert_eq!(task.period().get() % 1_000_000, 0);
                assert_eq!(task.deadline(), task.period());
            }
        }
    }

    #[test]
    fn no_task_gets_more_than_its_share() {
        let spec = TaskSetSpec {
            most_per_task: 0.3,
            ..spec(5, 1.4)
        };
        for seed in 0..50 {
            for task in generate(&spec, seed).unwrap().tasks() {
                assert!(task.wcet().get() as f64 <= 0.3 * task.period().get() as f64 + 1.0);
            }
        }
    }

    #[test]
    fn the_experiment_of_figure_6_has_its_ranges_and_each_set_stands_for_itself() {
        let experiment = Experiment::figure_6(42);
        let sets: Vec<TaskSet> = experiment.iter().collect::<Result<_, _>>().unwrap();
        assert_eq!(sets.len(), 150);
        assert_eq!(experiment.set(149).unwrap(), sets[149]);
        for set in &sets {
            assert!((4..=12).contains(&set.tasks().len()));
            assert!((599_000..=2_001_000).contains(&set.utilisation_ppm()));
        }
        assert!(
            sets.iter().any(|set| set.tasks().len() == 4)
                && sets.iter().any(|set| set.tasks().len() == 12)
        );
    }

    #[test]
    fn specifications_that_no_set_meets_are_refused() {
        let refused = |spec: TaskSetSpec| generate(&spec, 0).unwrap_err();
        assert_eq!(refused(spec(0, 0.5)), GenerateError::Tasks(0));
        assert!(matches!(
            refused(spec(2, 2.1)),
            GenerateError::Utilisation { .. }
        ));
        assert!(matches!(
            refused(spec(2, f64::NAN)),
            GenerateError::Utilisation { .. }
        ));
        assert!(matches!(
            refused(TaskSetSpec {
                most_per_task: 1.5,
                ..spec(2, 1.0)
            }),
            GenerateError::MostPerTask(_)
        ));
        let backwards = Nanos::from_millis(20)..=Nanos::from_millis(10);
        assert!(matches!(
            refused(TaskSetSpec {
                periods: backwards,
                ..spec(2, 1.0)
            }),
            GenerateError::Periods { .. }
        ));
    }
}
