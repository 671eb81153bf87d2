//! A reservation of its own for every task: what `SCHED_DEADLINE` gives a thread on an unpatched
//! kernel.
//!
//! A thread alone in its reservation does better than the supply bound says, because its server
//! sleeps and wakes with it. If every job is done before the next arrives with all the periods it
//! needs (n·P ≤ T for n = ⌈C/Q⌉), the server's last deadline has passed at every arrival, so that
//! it starts afresh, with a full budget and the deadline one period away (the wake-up rule of the
//! constant bandwidth server, Abeni and Buttazzo, RTSS 1998). The n-th budget is complete n·P after
//! the arrival, and the job is done no later than n·(P − Q) + C after it. With P = D ≤ T and Q = C
//! this is the task itself under EDF: bandwidth C/D instead of what bridging a blackout of 2·(P −
//! Q) takes.
//!
//! With release jitter J, two jobs may be released only T − J apart: n·P ≤ T − J, and J comes on top
//! of the response, which counts from the arrival.
//!
//! Where that one budget is due before the next arrival (D < T), it need not come back before then:
//! the reservation may have the period T and a deadline of its own, as `SCHED_DEADLINE` does
//! ([`Constraints::deadlines`]). It keeps Q by D as before, and caps the task at Q in every T. A core
//! must have Q/D left for it all the same, the density. The budget must not be used up to the last: the
//! kernel would bring it back at T without asking, and the wake-up rule would cut what is left of it
//! down for a job that comes a little later (`update_dl_revised_wakeup`). So Q is a granule more than
//! the job takes, and a job that takes more than its C costs the next one, too.

use serde::Serialize;

use crate::admission::{self, Server};
use crate::model::Model;
use crate::nanos::Nanos;
use crate::plan::{Constraints, Periods, PlanError};
use crate::reservation::{Bandwidth, Overheads, Reservation};
use crate::single;
use crate::task::{Task, TaskSet};

/// How many periods of its reservation a job may be spread over in a search.
const MOST_PERIODS: u128 = 64;

/// A task with a reservation of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OwnReservation {
    /// The task's name.
    pub task: String,
    /// Its reservation, always of one core.
    pub reservation: Reservation,
    /// How long after the start of a period its runtime has been given at the latest, where that is
    /// before the period's end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Nanos>,
    /// How long after its arrival a job is done at the latest.
    pub response: Nanos,
}

impl OwnReservation {
    /// What a core must have left for it, Q/D or Q/P without a deadline, rounded up: reservations
    /// whose densities fit a core keep their deadlines under EDF.
    pub fn density(&self) -> Bandwidth {
        match self.deadline {
            Some(deadline) => self.reservation.density(deadline),
            None => self.reservation.core_bandwidth(),
        }
    }
}

/// A reservation for every task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PerTaskPlan {
    /// Task by task, in the order of the set.
    pub tasks: Vec<OwnReservation>,
    /// What all of them take together, rounded up.
    pub total_bandwidth: Bandwidth,
}

impl PerTaskPlan {
    /// Whether global EDF on `cores` cores is proven to give each its runtime by its deadline
    /// ([`admission::is_schedulable`]).
    pub fn is_proven_under_global_edf(&self, cores: u32) -> bool {
        admission::is_schedulable(cores, &self.servers())
    }

    /// The reservations as a node's admission sees them.
    pub fn servers(&self) -> Vec<Server> {
        let server = |own: &OwnReservation| Server::new(own.reservation, own.deadline);
        self.tasks.iter().map(server).collect()
    }
}

/// How long after its arrival a job of `task` is done at the latest when the task is alone in
/// `reservation`, or `None` when there is no bound. Several cores are of no use to one task: only
/// one of them counts. Blocking is not bounded: who holds what the task waits for is in another
/// reservation.
pub fn own_response(
    task: &Task,
    reservation: &Reservation,
    overheads: &Overheads,
) -> Option<Nanos> {
    if !task.blocking().is_zero() {
        return None;
    }
    let awake = response_when_waking(task, reservation, overheads).map(Nanos::from_wide);
    let anyhow = response_on_any_supply(task, reservation, overheads);
    match (awake, anyhow) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

/// Finds the smallest reservation for each task on its own.
///
/// [`Periods::Auto`] gives each task the longest period its deadline allows, which is the least
/// bandwidth too; a list is tried for each task. The number of cores plays no part: how the
/// reservations share cores is for the node's admission.
///
/// # Errors
/// Constraints that contradict themselves, or a task for which nothing within them suffices.
pub fn plan_per_task(set: &TaskSet, constraints: &Constraints) -> Result<PerTaskPlan, PlanError> {
    constraints.validate()?;
    if let Some(task) = set.tasks().iter().find(|task| !task.blocking().is_zero()) {
        return Err(PlanError::BlockingBeyondReservation {
            task: task.name().to_owned(),
            blocking: task.blocking(),
        });
    }
    let tasks = set
        .tasks()
        .iter()
        .map(|task| smallest(task, constraints))
        .collect::<Result<Vec<_>, _>>()?;
    let total = tasks.iter().map(|own| own.density().ppm()).sum();
    Ok(PerTaskPlan {
        tasks,
        total_bandwidth: Bandwidth::from_ppm(total),
    })
}

/// The bound of a server that starts afresh with every job, if it does.
fn response_when_waking(
    task: &Task,
    reservation: &Reservation,
    overheads: &Overheads,
) -> Option<u128> {
    let switches = 2 * overheads.context_switch.wide();
    let (runtime, period) = (reservation.runtime().wide(), reservation.period().wide());
    let useful = runtime.checked_sub(switches).filter(|&useful| useful > 0)?;
    let budgets = task.wcet().wide().div_ceil(useful);
    let last_deadline = budgets * period + overheads.supply_latency.wide();
    let done = last_deadline - budgets * useful + task.wcet().wide();
    // A job that is released late may be followed by a punctual one.
    let jitter = task.jitter().wide();
    (last_deadline + jitter <= task.period().wide()).then_some(done + jitter)
}

/// The bound of the periodic resource model, for jobs that overlap the next arrival or come too
/// fast for the wake-up rule.
fn response_on_any_supply(
    task: &Task,
    reservation: &Reservation,
    overheads: &Overheads,
) -> Option<Nanos> {
    let alone = TaskSet::new(vec![task.clone()]).ok()?;
    let one_core = Reservation::new(reservation.runtime(), reservation.period(), 1).ok()?;
    let model = Model::new(&alone, &one_core, overheads);
    if single::is_overloaded(&model, 0) {
        return None;
    }
    let mut worst = Some(0);
    single::busy_window(&model, 0, |job| {
        worst = worst
            .zip(job.response())
            .map(|(worst, response)| worst.max(response));
        std::ops::ControlFlow::Continue(())
    });
    worst.map(Nanos::from_wide)
}

fn smallest(task: &Task, constraints: &Constraints) -> Result<OwnReservation, PlanError> {
    let periods = match &constraints.periods {
        Periods::Listed(periods) => periods.clone(),
        Periods::Auto { .. } => longest_period(task, constraints).into_iter().collect(),
    };
    let mut best: Option<Reservation> = None;
    for candidate in periods
        .iter()
        .filter_map(|&period| least(task, constraints, period))
    {
        let better = best.is_none_or(|best| {
            candidate
                .cmp_total_bandwidth(&best)
                .then(best.period().cmp(&candidate.period()))
                .is_lt()
        });
        if better {
            best = Some(candidate);
        }
    }
    best.and_then(|reservation| {
        let response = own_response(task, &reservation, &constraints.overheads)?;
        let seldom = match constraints.periods {
            Periods::Auto { .. } if constraints.deadlines => {
                as_seldom_as_the_task(task, constraints, &reservation)
            }
            _ => None,
        };
        Some(OwnReservation {
            task: task.name().to_owned(),
            reservation: seldom.unwrap_or(reservation),
            deadline: seldom.map(|_| reservation.period()),
            response,
        })
    })
    .ok_or_else(|| PlanError::NoneForTask {
        task: task.name().to_owned(),
        deadline: task.deadline(),
        bound: constraints.core_bound,
    })
}

/// The same reservation with the longest period at whose end the next job has not come yet, if one
/// budget does for a job and there is room between its period and that.
fn as_seldom_as_the_task(
    task: &Task,
    constraints: &Constraints,
    found: &Reservation,
) -> Option<Reservation> {
    let switches = 2 * constraints.overheads.context_switch.wide();
    let granule = constraints.granularity.wide();
    let least = (task.wcet().wide() + switches) / granule * granule + granule;
    let runtime = found.runtime().max(Nanos::from_wide(least));
    let one_budget = task.wcet().wide() + switches <= found.runtime().wide();
    if !one_budget || runtime > constraints.most_runtime(found.period()) {
        return None;
    }
    let room = task
        .period()
        .saturating_sub(task.jitter())
        .saturating_sub(constraints.overheads.supply_latency)
        .min(Reservation::KERNEL_MAX_PERIOD);
    let period = constraints.round_down(room);
    if period <= found.period() {
        return None;
    }
    Reservation::new(runtime, period, 1).ok()
}

/// The longest period that fits the deadline a whole number of times and that Linux takes.
fn longest_period(task: &Task, constraints: &Constraints) -> Option<Nanos> {
    let room = task
        .deadline()
        .min(task.period())
        .saturating_sub(task.jitter())
        .saturating_sub(constraints.overheads.supply_latency);
    let parts = room
        .get()
        .div_ceil(Reservation::KERNEL_MAX_PERIOD.get())
        .max(1);
    let period = constraints.round_down(Nanos::new(room.get() / parts));
    (period >= Reservation::KERNEL_MIN_PERIOD).then_some(period)
}

/// The least runtime for a period that lets the task meet its deadline, waking with it.
fn least(task: &Task, constraints: &Constraints, period: Nanos) -> Option<Reservation> {
    let granule = constraints.granularity.wide();
    let switches = 2 * constraints.overheads.context_switch.wide();
    let latency = constraints.overheads.supply_latency.wide();
    let jitter = task.jitter().wide();
    let (wcet, deadline) = (task.wcet().wide(), task.deadline().wide() - jitter);
    let most_budgets = task.period().wide().saturating_sub(latency + jitter) / period.wide();
    (1..=most_budgets.min(MOST_PERIODS))
        .filter_map(|budgets| {
            let for_the_work = wcet.div_ceil(budgets) + switches;
            // budgets·(P − useful) + C + latency ≤ D, solved for the useful part of the budget.
            let late = (budgets * period.wide() + wcet + latency).saturating_sub(deadline);
            let in_time = late.div_ceil(budgets) + switches;
            let runtime = for_the_work
                .max(in_time)
                .max(Reservation::KERNEL_MIN_RUNTIME.wide());
            let runtime = Nanos::from_wide(runtime.div_ceil(granule) * granule);
            (runtime <= constraints.most_runtime(period)).then_some(runtime)
        })
        .min()
        .and_then(|runtime| Reservation::new(runtime, period, 1).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    fn alone(task: Task, constraints: &Constraints) -> Result<OwnReservation, PlanError> {
        let plan = plan_per_task(&TaskSet::new(vec![task]).unwrap(), constraints)?;
        Ok(plan.tasks[0].clone())
    }

    #[test]
    fn a_task_alone_needs_its_wcet_every_deadline() {
        let own = alone(
            Task::new("t", ms(2), ms(10), ms(8)).unwrap(),
            &Constraints::default(),
        )
        .unwrap();
        assert_eq!(own.reservation, Reservation::new(ms(2), ms(8), 1).unwrap());
        assert_eq!((own.deadline, own.response), (None, ms(8)));
    }

    #[test]
    fn a_task_released_late_needs_its_wcet_in_less_time() {
        let late = Task::new("t", ms(2), ms(10), ms(8)).unwrap();
        let late = late.released_within(ms(3)).unwrap();
        let own = alone(late.clone(), &Constraints::default()).unwrap();
        assert_eq!(own.reservation, Reservation::new(ms(2), ms(5), 1).unwrap());
        assert_eq!(own.response, ms(8));
        let seldom = alone(late, &with_deadlines()).unwrap();
        assert_eq!(seldom.deadline, Some(ms(5)));
        assert_eq!(seldom.reservation.period(), ms(7));
    }

    #[test]
    fn who_waits_for_others_gets_no_reservation_of_its_own() {
        let task = Task::implicit("t", ms(2), ms(10)).unwrap();
        let task = task.blocked_for(ms(1)).unwrap();
        let refused = alone(task.clone(), &Constraints::default()).unwrap_err();
        assert!(
            matches!(refused, PlanError::BlockingBeyondReservation { .. }),
            "{refused}"
        );
        let reservation = Reservation::new(ms(5), ms(10), 1).unwrap();
        assert_eq!(
            own_response(&task, &reservation, &Overheads::default()),
            None
        );
    }

    fn with_deadlines() -> Constraints {
        Constraints {
            deadlines: true,
            ..Constraints::default()
        }
    }

    #[test]
    fn with_a_deadline_a_task_alone_needs_its_wcet_and_a_granule_as_seldom_as_it_comes() {
        let task = Task::new("t", ms(2), ms(10), ms(8)).unwrap();
        let own = alone(task, &with_deadlines()).unwrap();
        let runtime = Nanos::from_micros(2_001);
        assert_eq!(
            own.reservation,
            Reservation::new(runtime, ms(10), 1).unwrap()
        );
        assert_eq!((own.deadline, own.response), (Some(ms(8)), ms(8)));
        assert_eq!(own.density().ppm(), 250_125);
    }

    #[test]
    fn a_deadline_is_the_reservations_only_where_one_budget_does_for_a_job() {
        let slow = Task::new("t", ms(500), Nanos::from_secs(20), Nanos::from_secs(10)).unwrap();
        assert_eq!(alone(slow, &with_deadlines()).unwrap().deadline, None);
        let implicit = Task::implicit("t", ms(2), ms(10)).unwrap();
        assert_eq!(alone(implicit, &with_deadlines()).unwrap().deadline, None);
        let listed = Constraints {
            periods: Periods::Listed(vec![ms(8)]),
            ..with_deadlines()
        };
        let own = alone(Task::new("t", ms(2), ms(10), ms(8)).unwrap(), &listed).unwrap();
        assert_eq!((own.reservation.period(), own.deadline), (ms(8), None));
    }

    #[test]
    fn a_listed_period_spreads_the_job_over_several_budgets() {
        let constraints = Constraints {
            periods: Periods::Listed(vec![ms(2), ms(30)]),
            ..Constraints::default()
        };
        let own = alone(Task::implicit("t", ms(2), ms(10)).unwrap(), &constraints).unwrap();
        // Five budgets of 400 us, the last one done 10 ms after the arrival.
        assert_eq!(
            own.reservation,
            Reservation::new(Nanos::from_micros(400), ms(2), 1).unwrap()
        );
        assert_eq!(own.response, ms(10));
    }

    #[test]
    fn overheads_are_paid_from_the_budget_and_the_deadline() {
        let overheads = Overheads {
            context_switch: Nanos::from_micros(10),
            supply_latency: Nanos::from_micros(500),
        };
        let constraints = Constraints {
            overheads,
            ..Constraints::default()
        };
        let own = alone(Task::implicit("t", ms(2), ms(10)).unwrap(), &constraints).unwrap();
        assert_eq!(
            own.reservation,
            Reservation::new(Nanos::from_micros(2_020), Nanos::from_micros(9_500), 1).unwrap()
        );
        assert_eq!(own.response, ms(10));
    }

    #[test]
    fn a_period_that_does_not_fit_falls_back_to_the_blackout() {
        let task = Task::implicit("t", ms(2), ms(10)).unwrap();
        let too_long = Reservation::new(ms(9), ms(12), 1).unwrap();
        // 2·(12 − 9) + 2
        assert_eq!(
            own_response(&task, &too_long, &Overheads::default()),
            Some(ms(8))
        );
        let overloaded = Reservation::new(ms(1), ms(10), 1).unwrap();
        assert_eq!(
            own_response(&task, &overloaded, &Overheads::default()),
            None
        );
    }

    #[test]
    fn periods_stay_within_what_linux_takes() {
        let slow = alone(
            Task::implicit("slow", ms(500), Nanos::from_secs(10)).unwrap(),
            &Constraints::default(),
        )
        .unwrap();
        assert!(slow.reservation.is_within_kernel_limits());
        assert_eq!(slow.reservation.core_bandwidth().ppm(), 50_001);
        let fast = Task::implicit("fast", Nanos::from_micros(5), Nanos::from_micros(50)).unwrap();
        assert!(matches!(
            alone(fast, &Constraints::default()),
            Err(PlanError::NoneForTask { .. })
        ));
    }

    #[test]
    fn a_task_that_fills_a_core_is_refused_with_the_bound() {
        let full = Task::implicit("full", ms(95), ms(100)).unwrap();
        let error = alone(full, &Constraints::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`full`") && error.contains("90.0%"),
            "{error}"
        );
    }

    fn reservations(parameters: &[(u64, u64)]) -> PerTaskPlan {
        let tasks = parameters.iter().map(|&(runtime, period)| OwnReservation {
            task: String::new(),
            reservation: Reservation::new(Nanos::new(runtime), Nanos::new(period), 1).unwrap(),
            deadline: None,
            response: Nanos::new(period),
        });
        let tasks: Vec<_> = tasks.collect();
        let total = tasks
            .iter()
            .map(|own| own.reservation.total_bandwidth().ppm());
        PerTaskPlan {
            total_bandwidth: Bandwidth::from_ppm(total.sum()),
            tasks,
        }
    }

    /// Whether all budgets are given in time by global EDF, slot by slot, released at `offsets` and
    /// every period from then on.
    fn global_edf_keeps(parameters: &[(u64, u64)], offsets: &[u64], cores: usize) -> bool {
        let mut left = vec![0; parameters.len()];
        let mut due = vec![0; parameters.len()];
        for now in 0..2_000 {
            for (task, &(runtime, period)) in parameters.iter().enumerate() {
                if now >= offsets[task] && (now - offsets[task]).is_multiple_of(period) {
                    if left[task] > 0 {
                        return false;
                    }
                    (left[task], due[task]) = (runtime, now + period);
                }
            }
            let mut pending: Vec<usize> = (0..left.len()).filter(|&task| left[task] > 0).collect();
            pending.sort_by_key(|&task| due[task]);
            pending.iter().take(cores).for_each(|&task| left[task] -= 1);
        }
        true
    }

    #[test]
    fn what_global_edf_cannot_keep_is_not_proven_though_the_kernel_admits_it() {
        // Dhall and Liu 1978: two light reservations delay a heavy one with a later deadline.
        let parameters = [(4, 20), (4, 20), (20, 21)];
        assert!(!global_edf_keeps(&parameters, &[0, 0, 0], 2));
        let plan = reservations(&parameters);
        assert!(plan.total_bandwidth.ppm() < 1_800_000);
        assert!(!plan.is_proven_under_global_edf(2));
        assert!(plan.is_proven_under_global_edf(3));
        // One core: plain EDF, up to the whole of it and no further.
        assert!(reservations(&[(1, 2), (2, 4)]).is_proven_under_global_edf(1));
        assert!(reservations(&[(9, 10), (9, 10)]).is_proven_under_global_edf(2));
        assert!(!reservations(&[(1, 2), (2, 4), (1, 1_000)]).is_proven_under_global_edf(1));
    }

    proptest::proptest! {
        #[test]
        fn what_is_proven_under_global_edf_is_kept(
            drawn in proptest::collection::vec((1u64..12, 2u64..24, 0u64..24), 1..8), cores in 1u32..4,
        ) {
            let parameters: Vec<(u64, u64)> =
                drawn.iter().map(|&(runtime, period, _)| (runtime.min(period), period)).collect();
            let offsets: Vec<u64> = drawn.iter().map(|task| task.2).collect();
            if reservations(&parameters).is_proven_under_global_edf(cores) {
                let kept = global_edf_keeps(&parameters, &offsets, cores as usize);
                proptest::prop_assert!(kept, "{parameters:?} {offsets:?} on {cores}");
            }
        }
    }
}
