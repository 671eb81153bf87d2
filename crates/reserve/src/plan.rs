//! The smallest reservation for a task set.
//!
//! "Smallest" is the least total bandwidth m·Q/P; of equals the one with the longer period (fewer
//! switches), then the one with fewer cores. For each period and each number of cores the least
//! runtime is found by bisection: more runtime never makes a task set unschedulable. Other periods
//! are not tried, so the result is minimal among the candidates and within the granularity of the
//! runtime.

use serde::Serialize;

use crate::check::{Verdict, check, suffices};
use crate::nanos::Nanos;
use crate::reservation::{Bandwidth, Overheads, Reservation};
use crate::task::TaskSet;

/// Which periods a plan may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Periods {
    /// Ten steps per decade (the preferred numbers of ISO 3) from `shortest` to the shortest
    /// deadline, and that deadline's first eight integer parts, within what Linux takes. `shortest`
    /// gives way when the shortest deadline is less than four times as long.
    ///
    /// Without overheads the shortest period always needs the least bandwidth: this is the knob
    /// against switching too often.
    Auto {
        /// No shorter period is tried while deadlines allow it.
        shortest: Nanos,
    },
    /// These and no others, as they are.
    Listed(Vec<Nanos>),
}

/// What a plan must respect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Constraints {
    /// The periods to choose from.
    pub periods: Periods,
    /// The most cores.
    pub max_cores: u32,
    /// Runtimes are multiples of this, and so are periods that are not listed.
    pub granularity: Nanos,
    /// The most of a core that one reservation may take.
    pub core_bound: Bandwidth,
    /// What the machine takes away.
    pub overheads: Overheads,
    /// Whether a reservation for one task may have a deadline before its period's end.
    pub deadlines: bool,
}

impl Default for Constraints {
    /// Automatic periods from 1 ms, up to four cores, whole microseconds, 90 % of a core (about
    /// what Linux admits after its fair server's share), no overheads, no deadlines before a period's
    /// end.
    fn default() -> Self {
        Self {
            periods: Periods::Auto {
                shortest: Nanos::from_millis(1),
            },
            max_cores: 4,
            granularity: Nanos::from_micros(1),
            core_bound: Bandwidth::from_ppm(900_000),
            overheads: Overheads::default(),
            deadlines: false,
        }
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A granularity of zero.
    #[error("the granularity is 0: it must be at least 1ns")]
    Granularity,
    /// A bound that leaves nothing or more than there is.
    #[error("a bound of {0} of a core is no bound: use more than 0% and at most 100%")]
    CoreBound(Bandwidth),
    /// No cores or more than there are.
    #[error("at most {0} cores is no choice: use 1 to {max}", max = Reservation::MAX_CORES)]
    Cores(u32),
    /// No period to choose from.
    #[error("the list of periods is empty: name at least one, or let them be chosen")]
    NoPeriod,
    /// A listed period that cannot be one.
    #[error("{0} cannot be a period: use 1ns to {max}", max = Nanos::MAX_PARAMETER)]
    Period(Nanos),
    /// The tasks need more than there is, however it is scheduled.
    #[error(
        "the tasks need {needed} of a core in the long run, and {cores} core(s) at {bound} each give less: allow more cores, raise the bound or shorten the jobs"
    )]
    Utilisation {
        /// Σ C/T.
        needed: Bandwidth,
        /// How many cores were allowed.
        cores: u32,
        /// How much of each.
        bound: Bandwidth,
    },
    /// Nothing that was allowed suffices.
    #[error(
        "no reservation of up to {cores} core(s) at {bound} each suffices; even with {reservation}: {reason}"
    )]
    NoneSuffices {
        /// How many cores were allowed.
        cores: u32,
        /// How much of each.
        bound: Bandwidth,
        /// The largest one with the shortest period.
        reservation: Box<Reservation>,
        /// Why that does not suffice.
        reason: String,
    },
    /// A task that waits for others, in a reservation of its own.
    #[error(
        "task `{task}` may be kept waiting by others (blocking {blocking}): how long one in another reservation holds what it waits for is not bounded; plan one reservation for all of them, or leave `blocking` out where the tasks share nothing"
    )]
    BlockingBeyondReservation {
        /// The task.
        task: String,
        /// How long others may keep it waiting while they run.
        blocking: Nanos,
    },
    /// A task on its own for which no allowed reservation suffices.
    #[error(
        "task `{task}`: no reservation of its own at up to {bound} of a core lets it meet its deadline of {deadline}: allow another period, raise the bound or allow it more time"
    )]
    NoneForTask {
        /// The task.
        task: String,
        /// Its deadline.
        deadline: Nanos,
        /// The most of a core.
        bound: Bandwidth,
    },
}

/// A reservation that suffices, and what it costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alternative {
    /// The reservation with the least runtime for its period and cores.
    pub reservation: Reservation,
    /// m·Q/P, rounded up.
    pub total_bandwidth: Bandwidth,
}

/// The smallest reservation for a task set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The reservation.
    pub reservation: Reservation,
    /// m·Q/P, rounded up.
    pub total_bandwidth: Bandwidth,
    /// Why it suffices, and each task's worst response.
    pub verdict: Verdict,
    /// The best for every other period and number of cores, the best first; the chosen one leads.
    pub alternatives: Vec<Alternative>,
}

/// Finds the smallest reservation that lets every task of `set` meet its deadlines.
///
/// # Errors
/// Constraints that contradict themselves, or no reservation within them that suffices.
pub fn plan(set: &TaskSet, constraints: &Constraints) -> Result<Plan, PlanError> {
    constraints.validate()?;
    let periods = constraints.candidates(set)?;
    // More cores than tasks would idle, and only on one is it known how long tasks wait for others.
    let of_use = match set.has_blocking() {
        true => 1,
        false => u32::try_from(set.tasks().len()).unwrap_or(u32::MAX),
    };
    let cores = constraints.max_cores.min(of_use);
    let available = constraints
        .core_bound
        .ppm()
        .saturating_mul(u64::from(cores));
    // Rounded up task by task: a set that only rounding takes over the edge is left to the
    // analysis.
    let needed = set.utilisation_ppm();
    if needed.saturating_sub(set.tasks().len() as u64) > available {
        return Err(PlanError::Utilisation {
            needed: Bandwidth::from_ppm(needed),
            cores,
            bound: constraints.core_bound,
        });
    }
    let mut alternatives: Vec<Alternative> = (1..=cores)
        .flat_map(|cores| periods.iter().map(move |&period| (period, cores)))
        .filter_map(|(period, cores)| least(set, constraints, period, cores))
        .map(|reservation| Alternative {
            reservation,
            total_bandwidth: reservation.total_bandwidth(),
        })
        .collect();
    alternatives.sort_by(|a, b| {
        let (a, b) = (&a.reservation, &b.reservation);
        a.cmp_total_bandwidth(b)
            .then(b.period().cmp(&a.period()))
            .then(a.cores().cmp(&b.cores()))
    });
    let Some(best) = alternatives.first() else {
        return Err(constraints.none_suffices(set, &periods, cores));
    };
    let reservation = best.reservation;
    let verdict = check(set, &reservation, &constraints.overheads);
    Ok(Plan {
        reservation,
        total_bandwidth: reservation.total_bandwidth(),
        verdict,
        alternatives,
    })
}

/// The reservation with the least runtime for a period and a number of cores, if one suffices.
fn least(
    set: &TaskSet,
    constraints: &Constraints,
    period: Nanos,
    cores: u32,
) -> Option<Reservation> {
    let granule = constraints.granularity.get();
    let at = |granules: u64| Reservation::new(Nanos::new(granules * granule), period, cores).ok();
    let enough = |granules| {
        at(granules).is_some_and(|candidate| suffices(set, &candidate, &constraints.overheads))
    };
    let mut too_little = Reservation::KERNEL_MIN_RUNTIME.get().div_ceil(granule) - 1;
    let mut sufficient = constraints.most_runtime(period).get() / granule;
    if sufficient <= too_little || !enough(sufficient) {
        return None;
    }
    while sufficient - too_little > 1 {
        let middle = too_little + (sufficient - too_little) / 2;
        if enough(middle) {
            sufficient = middle;
        } else {
            too_little = middle;
        }
    }
    at(sufficient)
}

impl Constraints {
    pub(crate) fn validate(&self) -> Result<(), PlanError> {
        if self.granularity == Nanos::ZERO {
            return Err(PlanError::Granularity);
        }
        if self.core_bound.ppm() == 0 || self.core_bound > Bandwidth::FULL_CORE {
            return Err(PlanError::CoreBound(self.core_bound));
        }
        if self.max_cores == 0 || self.max_cores > Reservation::MAX_CORES {
            return Err(PlanError::Cores(self.max_cores));
        }
        if let Periods::Listed(periods) = &self.periods {
            if periods.is_empty() {
                return Err(PlanError::NoPeriod);
            }
            let possible = Nanos::new(1)..=Nanos::MAX_PARAMETER;
            if let Some(&period) = periods.iter().find(|period| !possible.contains(period)) {
                return Err(PlanError::Period(period));
            }
        }
        Ok(())
    }

    /// The longest runtime the bound leaves in `period`, as a multiple of the granularity.
    pub(crate) fn most_runtime(&self, period: Nanos) -> Nanos {
        let bound = period.wide() * u128::from(self.core_bound.ppm())
            / u128::from(Bandwidth::FULL_CORE.ppm());
        self.round_down(Nanos::from_wide(bound))
    }

    pub(crate) fn round_down(&self, length: Nanos) -> Nanos {
        Nanos::new(length.get() - length.get() % self.granularity.get())
    }

    /// The periods to try, the shortest first.
    fn candidates(&self, set: &TaskSet) -> Result<Vec<Nanos>, PlanError> {
        let mut periods = match &self.periods {
            Periods::Listed(periods) => periods.clone(),
            Periods::Auto { shortest } => self.automatic(set, *shortest),
        };
        periods.sort_unstable();
        periods.dedup();
        if periods.is_empty() {
            Err(PlanError::NoPeriod)
        } else {
            Ok(periods)
        }
    }

    fn automatic(&self, set: &TaskSet, shortest: Nanos) -> Vec<Nanos> {
        /// The series R10 of ISO 3, in microseconds from the shortest period Linux takes.
        const STEPS: [u64; 10] = [100, 125, 160, 200, 250, 315, 400, 500, 630, 800];
        let (kernel_min, kernel_max) = (
            Reservation::KERNEL_MIN_PERIOD,
            Reservation::KERNEL_MAX_PERIOD,
        );
        let deadline = set
            .tasks()
            .iter()
            .map(|task| task.deadline().saturating_sub(task.jitter()))
            .min()
            .unwrap_or(kernel_max);
        let longest = deadline.clamp(kernel_min, kernel_max);
        let shortest = shortest.min(Nanos::new(longest.get() / 4)).max(kernel_min);
        let decades = (0..5).map(|decade| 10u64.pow(decade));
        let preferred =
            decades.flat_map(|decade| STEPS.map(|step| Nanos::from_micros(step * decade)));
        let parts = (1..=8).map(|part| Nanos::new(longest.get() / part));
        preferred
            .chain(parts)
            .map(|period| self.round_down(period))
            .filter(|period| (shortest..=longest).contains(period))
            .collect()
    }

    fn none_suffices(&self, set: &TaskSet, periods: &[Nanos], cores: u32) -> PlanError {
        let bound = self.core_bound;
        // Whatever is left of the largest reservations, the one with the shortest period has the
        // shortest gaps.
        let largest = periods
            .iter()
            .find_map(|&period| Reservation::new(self.most_runtime(period), period, cores).ok());
        match largest {
            Some(reservation) => PlanError::NoneSuffices {
                cores,
                bound,
                reservation: Box::new(reservation),
                reason: check(set, &reservation, &self.overheads).reason(),
            },
            None => PlanError::Granularity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Task;

    fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    fn set(tasks: &[(u64, u64)]) -> TaskSet {
        let tasks = tasks.iter().enumerate();
        TaskSet::new(
            tasks
                .map(|(n, &(c, t))| Task::implicit(format!("t{n}"), ms(c), ms(t)).unwrap())
                .collect(),
        )
        .unwrap()
    }

    fn listed(periods: &[u64]) -> Constraints {
        Constraints {
            periods: Periods::Listed(periods.iter().copied().map(ms).collect()),
            ..Constraints::default()
        }
    }

    #[test]
    fn the_worked_example_needs_3_5_of_every_10() {
        let plan = plan(&set(&[(7, 50), (9, 75)]), &listed(&[10])).unwrap();
        assert_eq!(
            plan.reservation,
            Reservation::new(Nanos::from_micros(3_500), ms(10), 1).unwrap()
        );
        assert_eq!(plan.total_bandwidth.ppm(), 350_000);
        assert!(plan.verdict.is_schedulable());
    }

    #[test]
    fn tasks_that_wait_for_others_get_one_core() {
        let tasks = set(&[(7, 50), (9, 75)]).tasks().to_vec();
        let waiting = tasks
            .into_iter()
            .map(|task| task.blocked_for(ms(1)).unwrap());
        let waiting = TaskSet::new(waiting.collect()).unwrap();
        let several = Constraints {
            max_cores: 4,
            ..listed(&[10])
        };
        let plan = plan(&waiting, &several).unwrap();
        assert!(
            plan.alternatives
                .iter()
                .all(|other| other.reservation.cores() == 1)
        );
        assert!(plan.reservation.runtime() > Nanos::from_micros(3_500));
    }

    #[test]
    fn without_overheads_a_shorter_period_needs_less_bandwidth_and_with_them_it_does_not() {
        let set = set(&[(7, 50), (9, 75)]);
        let free = plan(&set, &listed(&[1, 10])).unwrap();
        assert_eq!(free.reservation.period(), ms(1));
        let overheads = Overheads {
            context_switch: Nanos::from_micros(100),
            ..Overheads::default()
        };
        let dear = plan(
            &set,
            &Constraints {
                overheads,
                ..listed(&[1, 10])
            },
        )
        .unwrap();
        assert_eq!(dear.reservation.period(), ms(10));
    }

    #[test]
    fn of_equal_bandwidths_the_longer_period_wins() {
        // A whole core at either period.
        let constraints = Constraints {
            core_bound: Bandwidth::FULL_CORE,
            ..listed(&[5, 10])
        };
        let plan = plan(&set(&[(10, 10)]), &constraints).unwrap();
        assert_eq!(
            plan.reservation,
            Reservation::new(ms(10), ms(10), 1).unwrap()
        );
        assert_eq!(plan.alternatives.len(), 2);
    }

    #[test]
    fn more_than_one_core_of_work_gets_more_cores() {
        let plan = plan(
            &set(&[(40, 100), (45, 110), (45, 120), (20, 130)]),
            &listed(&[5, 10]),
        )
        .unwrap();
        assert!(plan.reservation.cores() > 1);
        assert!(plan.reservation.core_bandwidth().ppm() <= 900_000);
    }

    #[test]
    fn automatic_periods_stay_between_the_shortest_wanted_and_the_shortest_deadline() {
        let constraints = Constraints::default();
        let periods = constraints.candidates(&set(&[(2, 20), (5, 100)])).unwrap();
        assert_eq!((periods[0], periods[periods.len() - 1]), (ms(1), ms(20)));
        assert!(
            periods.contains(&Nanos::from_micros(1_250))
                && periods.contains(&Nanos::from_micros(6_666))
        );
        let tight = TaskSet::new(vec![
            Task::implicit("t", Nanos::from_micros(50), Nanos::from_micros(800)).unwrap(),
        ])
        .unwrap();
        assert_eq!(
            constraints.candidates(&tight).unwrap()[0],
            Nanos::from_micros(200)
        );
        let slow = set(&[(1_000, 100_000)]);
        assert!(
            constraints
                .candidates(&slow)
                .unwrap()
                .iter()
                .all(|period| *period <= Reservation::KERNEL_MAX_PERIOD)
        );
    }

    #[test]
    fn no_plan_says_what_would_have_to_change() {
        let one_core = |set: &TaskSet, periods: &[u64]| {
            plan(
                set,
                &Constraints {
                    max_cores: 1,
                    ..listed(periods)
                },
            )
            .unwrap_err()
            .to_string()
        };
        let overfull = one_core(&set(&[(6, 10), (8, 20)]), &[10]);
        assert!(
            overfull.contains("need 100.0% of a core") && overfull.contains("allow more cores"),
            "{overfull}"
        );
        let coarse = one_core(&set(&[(2, 4)]), &[40]);
        assert!(
            coarse.contains("36ms every 40ms on 1 core")
                && coarse.contains("may miss its deadline of 4ms"),
            "{coarse}"
        );
    }

    #[test]
    fn constraints_that_contradict_themselves_are_refused() {
        let set = set(&[(1, 10)]);
        let refused = |constraints: Constraints| plan(&set, &constraints).unwrap_err();
        assert_eq!(refused(listed(&[])), PlanError::NoPeriod);
        assert_eq!(refused(listed(&[0])), PlanError::Period(Nanos::ZERO));
        assert_eq!(
            refused(Constraints {
                granularity: Nanos::ZERO,
                ..listed(&[5])
            }),
            PlanError::Granularity
        );
        assert_eq!(
            refused(Constraints {
                max_cores: 0,
                ..listed(&[5])
            }),
            PlanError::Cores(0)
        );
        let bound = Bandwidth::from_ppm(1_000_001);
        assert_eq!(
            refused(Constraints {
                core_bound: bound,
                ..listed(&[5])
            }),
            PlanError::CoreBound(bound)
        );
    }
}
