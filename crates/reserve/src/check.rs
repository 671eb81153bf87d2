//! Does a reservation suffice for a task set, and why (not)?

use std::fmt;
use std::ops::ControlFlow;

use serde::Serialize;

use crate::global;
use crate::model::Model;
use crate::nanos::Nanos;
use crate::reservation::{Overheads, Reservation};
use crate::single;
use crate::task::{Priority, TaskSet};

/// What is known of one task under a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// Every job is done by its deadline.
    Meets {
        /// The bound on the time from a job's arrival to its end.
        response: Nanos,
    },
    /// Some job may be late; on one core some legal arrival pattern and supply does make it late,
    /// on several cores it only could not be proven otherwise.
    Misses {
        /// The bound on its response nevertheless, where there is one.
        response: Option<Nanos>,
    },
    /// A more or equally urgent task may miss its deadline, and on several cores nothing can be
    /// said beyond that.
    NotAnalysed,
}

impl Outcome {
    /// The bound on the response, where there is one.
    pub fn response(self) -> Option<Nanos> {
        match self {
            Self::Meets { response } => Some(response),
            Self::Misses { response } => response,
            Self::NotAnalysed => None,
        }
    }
}

/// One task's part of a [`Verdict`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskVerdict {
    /// Its name.
    pub name: String,
    /// C as it was given, without overheads.
    pub wcet: Nanos,
    /// T.
    pub period: Nanos,
    /// D.
    pub deadline: Nanos,
    /// J.
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pub jitter: Nanos,
    /// B.
    #[serde(skip_serializing_if = "Nanos::is_zero")]
    pub blocking: Nanos,
    /// O.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<Nanos>,
    /// The priority it was analysed with.
    pub priority: Priority,
    /// The result.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl TaskVerdict {
    /// The time between the worst response and the deadline, zero when there is none.
    pub fn slack(&self) -> Nanos {
        self.outcome.response().map_or(Nanos::ZERO, |response| {
            self.deadline.saturating_sub(response)
        })
    }
}

/// Why a reservation is not said to suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// More is needed by the instant than is guaranteed.
    Supply,
    /// The search for a bound took too many steps.
    Steps,
    /// Less urgent tasks may keep one waiting, and for how long is bounded on one core only.
    Blocking,
}

/// The first instant at which a task's demand is not covered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The task, by its place in the set.
    pub task: usize,
    /// Its name.
    pub name: String,
    /// Why.
    pub cause: Cause,
    /// The deadline that may be missed, counted from the start of the worst window: the instant at
    /// which the task, all that may delay it and the worst alignment of the reservation begin
    /// together.
    pub instant: Nanos,
    /// The CPU time needed by then, on each core.
    pub demand: Nanos,
    /// The CPU time guaranteed by then, on each core.
    pub supply: Nanos,
}

/// Whether a reservation suffices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    reservation: Reservation,
    overheads: Overheads,
    tasks: Vec<TaskVerdict>,
    failure: Option<Failure>,
    #[serde(skip)]
    set: TaskSet,
}

impl Verdict {
    /// Whether every job of every task is done by its deadline.
    pub fn is_schedulable(&self) -> bool {
        self.failure.is_none()
    }

    /// What was checked.
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// At what cost of its use.
    pub fn overheads(&self) -> &Overheads {
        &self.overheads
    }

    /// The task set that was checked.
    pub fn task_set(&self) -> &TaskSet {
        &self.set
    }

    /// Task by task, in the order they were given.
    pub fn tasks(&self) -> &[TaskVerdict] {
        &self.tasks
    }

    /// Where it fails first, if it does.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The place of the task that decides: the one that fails first, else the one whose response is
    /// nearest to its deadline.
    pub fn decisive_task(&self) -> usize {
        let used = |task: &TaskVerdict| task.outcome.response().unwrap_or(Nanos::ZERO).wide();
        let tightest = (0..self.tasks.len()).max_by(|&a, &b| {
            let (a, b) = (&self.tasks[a], &self.tasks[b]);
            (used(a) * b.deadline.wide()).cmp(&(used(b) * a.deadline.wide()))
        });
        self.failure
            .as_ref()
            .map(|failure| failure.task)
            .or(tightest)
            .unwrap_or(0)
    }

    /// The verdict in one sentence.
    pub fn reason(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let task = &self.tasks[self.decisive_task()];
        let TaskVerdict {
            name,
            priority,
            deadline,
            ..
        } = task;
        let per_core = if self.reservation.cores() == 1 {
            ""
        } else {
            " on each core"
        };
        match &self.failure {
            None => write!(
                f,
                "every task meets its deadline; the tightest, `{name}` (priority {priority}), is done within {} of its {deadline}",
                task.outcome.response().unwrap_or(Nanos::ZERO),
            ),
            Some(failure) => match failure.cause {
                Cause::Supply => write!(
                    f,
                    "`{name}` (priority {priority}) may miss its deadline of {deadline}: within {} of the worst start it and what \
                     may delay it need {} of CPU time{per_core}, and {} guarantees {}",
                    failure.instant, failure.demand, self.reservation, failure.supply,
                ),
                Cause::Steps => write!(
                    f,
                    "`{name}` (priority {priority}) could not be proven to meet its deadline of {deadline}: the search took too many \
                     steps; use coarser times or a reservation with more to spare",
                ),
                Cause::Blocking => write!(
                    f,
                    "`{name}` may be kept waiting by less urgent tasks (blocking {}), and for how long is bounded on one core only: \
                     use one core, or leave `blocking` out where the tasks share nothing",
                    task.blocking,
                ),
            },
        }
    }
}

/// Checks whether `reservation` lets every task of `set` meet its deadlines, each job being
/// `overheads` dearer.
pub fn check(set: &TaskSet, reservation: &Reservation, overheads: &Overheads) -> Verdict {
    let model = Model::new(set, reservation, overheads);
    let (outcomes, failure) = if reservation.cores() == 1 {
        check_single(&model)
    } else {
        check_global(&model)
    };
    let tasks = set
        .tasks()
        .iter()
        .zip(set.priorities())
        .zip(outcomes)
        .map(|((task, &priority), outcome)| TaskVerdict {
            name: task.name().to_owned(),
            wcet: task.wcet(),
            period: task.period(),
            deadline: task.deadline(),
            jitter: task.jitter(),
            blocking: task.blocking(),
            offset: task.offset(),
            priority,
            outcome,
        })
        .collect();
    let failure = failure.map(|miss| {
        let supply = model.supply.per_core_wide(miss.instant);
        let blocked = reservation.cores() > 1 && set.has_blocking();
        Failure {
            task: miss.task,
            name: set.tasks()[miss.task].name().to_owned(),
            cause: if blocked {
                Cause::Blocking
            } else if miss.demand > supply {
                Cause::Supply
            } else {
                Cause::Steps
            },
            instant: Nanos::from_wide(miss.instant),
            demand: Nanos::from_wide(miss.demand),
            supply: Nanos::from_wide(supply),
        }
    });
    Verdict {
        reservation: *reservation,
        overheads: *overheads,
        tasks,
        failure,
        set: set.clone(),
    }
}

/// Whether `reservation` suffices: [`check`] without the account, for a search.
pub(crate) fn suffices(set: &TaskSet, reservation: &Reservation, overheads: &Overheads) -> bool {
    let model = Model::new(set, reservation, overheads);
    if reservation.cores() == 1 {
        (0..model.demands.len()).all(|task| single::meets_deadline(&model, task))
    } else {
        !set.has_blocking() && global::analyse(&model).first_miss.is_none()
    }
}

struct Miss {
    task: usize,
    instant: u128,
    demand: u128,
}

fn check_single(model: &Model) -> (Vec<Outcome>, Option<Miss>) {
    let mut outcomes = vec![Outcome::NotAnalysed; model.demands.len()];
    let mut first: Option<Miss> = None;
    for &task in model.levels.iter().flatten() {
        let deadline = model.demands[task].deadline;
        let overloaded = single::is_overloaded(model, task);
        let mut worst = Some(0);
        let mut missed = None;
        single::busy_window(model, task, |job| {
            worst = worst
                .zip(job.response())
                .map(|(worst, response)| worst.max(response));
            if missed.is_none() && job.misses(deadline) {
                missed = Some(job);
            }
            // The window of an overloaded task has no end, and no bound is to be found in it.
            if overloaded && missed.is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        let bound = worst.filter(|_| !overloaded).map(Nanos::from_wide);
        outcomes[task] = match (missed, bound) {
            (None, Some(response)) => Outcome::Meets { response },
            (_, response) => Outcome::Misses { response },
        };
        let late = missed.map(|job| Miss {
            task,
            instant: job.due(deadline),
            demand: single::demand(
                model,
                task,
                &model.rivals(task),
                job.start,
                job.number + 1,
                job.due(deadline),
            ),
        });
        first = match (first, late) {
            (Some(first), Some(late)) if late.instant < first.instant => Some(late),
            (first, late) => first.or(late),
        };
    }
    (outcomes, first)
}

fn check_global(model: &Model) -> (Vec<Outcome>, Option<Miss>) {
    let mut by_urgency = model.levels.iter().flatten().copied();
    if let Some(task) = by_urgency.find(|&task| model.demands[task].blocking > 0) {
        let miss = Miss {
            task,
            instant: model.demands[task].constrained_deadline(),
            demand: 0,
        };
        return (vec![Outcome::NotAnalysed; model.demands.len()], Some(miss));
    }
    let answer = global::analyse(model);
    let mut outcomes: Vec<Outcome> = answer
        .responses
        .iter()
        .map(|response| match response {
            Some(response) => Outcome::Meets {
                response: Nanos::from_wide(*response),
            },
            None => Outcome::NotAnalysed,
        })
        .collect();
    let miss = answer.first_miss.map(|(task, rivals)| {
        outcomes[task] = Outcome::Misses { response: None };
        let instant = model.demands[task].constrained_deadline();
        Miss {
            task,
            instant,
            demand: global::demand_per_core(model, task, &rivals, instant),
        }
    });
    (outcomes, miss)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Task;

    fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    fn set(tasks: &[(u64, u64, u64)]) -> TaskSet {
        let tasks = tasks.iter().enumerate();
        TaskSet::new(
            tasks
                .map(|(n, &(c, t, d))| Task::new(format!("t{n}"), ms(c), ms(t), ms(d)).unwrap())
                .collect(),
        )
        .unwrap()
    }

    fn check_ms(set: &TaskSet, runtime: u64, period: u64, cores: u32) -> Verdict {
        check(
            set,
            &Reservation::new(ms(runtime), ms(period), cores).unwrap(),
            &Overheads::default(),
        )
    }

    fn responses(verdict: &Verdict) -> Vec<Option<u64>> {
        verdict
            .tasks()
            .iter()
            .map(|task| task.outcome.response().map(|r| r.get() / 1_000_000))
            .collect()
    }

    #[test]
    fn a_whole_core_gives_the_response_times_of_the_textbooks() {
        // Audsley et al. 1993: three tasks, R = 3, 6, 20.
        let verdict = check_ms(&set(&[(3, 7, 7), (3, 12, 12), (5, 20, 20)]), 1, 1, 1);
        assert_eq!(responses(&verdict), [Some(3), Some(6), Some(20)]);
        assert!(verdict.is_schedulable());
    }

    #[test]
    fn a_deadline_beyond_the_period_looks_at_every_job_of_the_busy_window() {
        // Lehoczky 1990, example 3: the fifth job of the second task is the worst, 118.
        let verdict = check_ms(&set(&[(26, 70, 70), (62, 100, 118)]), 1, 1, 1);
        assert_eq!(responses(&verdict), [Some(26), Some(118)]);
        assert!(verdict.is_schedulable());
        let late = check_ms(&set(&[(26, 70, 70), (62, 100, 117)]), 1, 1, 1);
        assert_eq!(
            late.failure().map(|failure| failure.instant),
            Some(ms(4 * 100 + 117))
        );
    }

    /// The tasks of `set` with those of the same place changed by `change`.
    fn changed(set: &TaskSet, change: impl Fn(usize, Task) -> Task) -> TaskSet {
        let tasks = set.tasks().iter().cloned().enumerate();
        TaskSet::new(tasks.map(|(n, task)| change(n, task)).collect()).unwrap()
    }

    #[test]
    fn jobs_released_late_come_closer_together_and_are_done_later() {
        // On a whole core; the first task may be released 6 ms late, so that two of its jobs are 4 ms
        // apart: 3 + 2·2 = 7 instead of 5, and its own 2 count from its arrival.
        let plain = set(&[(2, 10, 10), (3, 20, 20)]);
        let late = changed(&plain, |n, task| match n {
            0 => task.released_within(ms(6)).unwrap(),
            _ => task,
        });
        assert_eq!(responses(&check_ms(&plain, 1, 1, 1)), [Some(2), Some(5)]);
        assert_eq!(responses(&check_ms(&late, 1, 1, 1)), [Some(8), Some(7)]);
    }

    #[test]
    fn a_less_urgent_section_keeps_a_job_waiting_once() {
        let plain = set(&[(2, 10, 10), (3, 20, 20)]);
        let blocked = changed(&plain, |n, task| match n {
            0 => task.blocked_for(ms(1)).unwrap(),
            _ => task,
        });
        let verdict = check_ms(&blocked, 1, 1, 1);
        assert_eq!(responses(&verdict), [Some(3), Some(5)]);
        // For how long on several cores is not known, and that is said.
        let verdict = check_ms(&blocked, 1, 1, 2);
        assert_eq!(verdict.failure().unwrap().cause, Cause::Blocking);
        assert_eq!(responses(&verdict), [None, None]);
        let reason = verdict.reason();
        assert!(reason.contains("blocking 1ms"), "{reason}");
        assert!(reason.contains("use one core"), "{reason}");
    }

    #[test]
    fn tasks_that_never_arrive_together_do_not_delay_each_other() {
        let together = set(&[(3, 10, 10), (3, 10, 10)]);
        let apart = changed(&together, |n, task| {
            task.at_offset(ms(5 * n as u64)).unwrap()
        });
        assert_eq!(responses(&check_ms(&together, 1, 1, 1)), [Some(3), Some(6)]);
        assert_eq!(responses(&check_ms(&apart, 1, 1, 1)), [Some(3), Some(3)]);
        // 9 ms every 10 ms: 2 ms without any, and the first is done just when the second arrives.
        assert_eq!(
            responses(&check_ms(&together, 9, 10, 1)),
            [Some(5), Some(8)]
        );
        assert_eq!(responses(&check_ms(&apart, 9, 10, 1)), [Some(5), Some(5)]);
        // One without an offset comes whenever it is worst.
        let one = changed(&together, |n, task| match n {
            0 => task,
            _ => task.at_offset(ms(5)).unwrap(),
        });
        assert_eq!(responses(&check_ms(&one, 1, 1, 1)), [Some(3), Some(6)]);
        // Several cores: as if there were no offsets.
        assert_eq!(
            responses(&check_ms(&apart, 1, 1, 2)),
            responses(&check_ms(&together, 1, 1, 2))
        );
    }

    #[test]
    fn two_rate_monotonic_tasks_need_exactly_what_is_worked_out_by_hand() {
        // 2·7 + 9 = 23 must be there by 75. With 10 − 3.5 = 6.5 the first gap ends at 6.5, 68.5 are
        // left: six periods give 21, the last 8.5 give the missing 2. By 50 there would have to be
        // 16, and there are only 14.
        let workload = set(&[(7, 50, 50), (9, 75, 75)]);
        let at = |micros| {
            let reservation = Reservation::new(Nanos::from_micros(micros), ms(10), 1).unwrap();
            check(&workload, &reservation, &Overheads::default())
        };
        assert!(at(3_500).is_schedulable());
        assert!(!at(3_499).is_schedulable());
    }

    #[test]
    fn a_failure_names_the_task_the_instant_and_both_amounts() {
        let verdict = check_ms(&set(&[(2, 10, 10), (4, 20, 20)]), 2, 5, 1);
        let failure = verdict.failure().unwrap();
        assert_eq!((failure.name.as_str(), failure.instant), ("t1", ms(20)));
        assert_eq!((failure.demand, failure.supply), (ms(8), ms(6)));
        let reason = verdict.reason();
        assert!(
            reason.contains("`t1` (priority 1) may miss its deadline of 20ms"),
            "{reason}"
        );
        assert!(
            reason.contains("need 8ms") && reason.contains("guarantees 6ms"),
            "{reason}"
        );
    }

    #[test]
    fn a_late_task_still_gets_a_bound_where_the_reservation_keeps_up() {
        let verdict = check_ms(&set(&[(2, 10, 10), (4, 20, 20)]), 9, 20, 1);
        assert_eq!(
            verdict.tasks()[0].outcome,
            Outcome::Misses {
                response: Some(ms(24))
            }
        );
    }

    #[test]
    fn an_overloaded_reservation_has_no_bound() {
        let verdict = check_ms(&set(&[(2, 10, 10), (8, 20, 20)]), 5, 10, 1);
        assert!(matches!(
            verdict.tasks()[1].outcome,
            Outcome::Misses { response: None }
        ));
        assert!(!verdict.is_schedulable());
    }

    #[test]
    fn equally_urgent_tasks_delay_each_other() {
        let five = Priority::new(5).unwrap();
        let tasks = ["a", "b"].map(|name| Task::implicit(name, ms(4), ms(10)).unwrap().at(five));
        let verdict = check_ms(&TaskSet::new(tasks.to_vec()).unwrap(), 1, 1, 1);
        assert_eq!(responses(&verdict), [Some(8), Some(8)]);
    }

    #[test]
    fn two_whole_cores_give_the_bound_of_bertogna_and_cirinei() {
        // The third task waits while both others run, which is 2 ms; one nanosecond comes from
        // rounding up.
        let verdict = check_ms(&set(&[(2, 10, 10), (3, 12, 12), (4, 20, 20)]), 1, 1, 2);
        assert!(verdict.is_schedulable());
        let bounds: Vec<u64> = verdict
            .tasks()
            .iter()
            .map(|task| task.outcome.response().unwrap().get())
            .collect();
        assert_eq!(bounds, [2_000_000, 3_000_001, 6_000_001]);
    }

    #[test]
    fn of_more_urgent_tasks_fewer_than_cores_bring_work_from_before() {
        // Two whole cores. Within 17 ms the four more urgent tasks do 4, 9, 9 and 5 ms if their jobs arrive then, and the
        // fourth 1 ms more if it is the one that is late: 3 + (27 + 1)/2 = 17. With all of them late
        // the next jobs of the second and third come in by a nanosecond, and so on to 30 ms.
        let tasks = [(2, 9), (9, 17), (9, 21), (5, 27), (3, 60)];
        let verdict = check_ms(&set(&tasks.map(|(c, t)| (c, t, t))), 1, 1, 2);
        assert_eq!(verdict.tasks()[4].outcome.response(), Some(ms(17)));
        // One that is as urgent as another counts as before: it may go first, and so may the other's last job.
        let shared = tasks.iter().chain([&(1, 1_000)]).enumerate();
        let shared = shared.map(|(n, &(c, t))| {
            let priority = Priority::new(9 - n.min(4) as u8).unwrap();
            let task = Task::implicit(format!("t{n}"), ms(c), ms(t)).unwrap();
            task.at(priority)
        });
        let verdict = check_ms(&TaskSet::new(shared.collect()).unwrap(), 1, 1, 2);
        assert!(verdict.tasks()[4].outcome.response().unwrap() > ms(30));
    }

    #[test]
    fn on_several_cores_what_comes_after_a_miss_is_left_open() {
        let verdict = check_ms(
            &set(&[(8, 10, 10), (8, 12, 12), (9, 14, 14), (1, 100, 100)]),
            9,
            10,
            2,
        );
        let outcomes: Vec<_> = verdict.tasks().iter().map(|task| task.outcome).collect();
        let missed = outcomes
            .iter()
            .position(|outcome| matches!(outcome, Outcome::Misses { .. }))
            .unwrap();
        assert_eq!(verdict.failure().unwrap().task, missed);
        assert!(
            outcomes[missed + 1..]
                .iter()
                .all(|outcome| *outcome == Outcome::NotAnalysed)
        );
    }

    #[test]
    fn a_deadline_beyond_the_period_counts_as_the_period_on_several_cores() {
        let beyond = check_ms(&set(&[(6, 10, 40), (6, 10, 40)]), 5, 10, 2);
        let constrained = check_ms(&set(&[(6, 10, 10), (6, 10, 10)]), 5, 10, 2);
        assert_eq!(beyond.is_schedulable(), constrained.is_schedulable());
    }

    #[test]
    fn overheads_make_jobs_dearer_and_budgets_smaller() {
        let set = set(&[(2, 10, 10)]);
        let reservation = Reservation::new(ms(4), ms(5), 1).unwrap();
        let free = check(&set, &reservation, &Overheads::default());
        let overheads = Overheads {
            context_switch: Nanos::from_micros(100),
            supply_latency: Nanos::from_micros(50),
        };
        let dear = check(&set, &reservation, &overheads);
        assert_eq!(free.tasks()[0].outcome.response(), Some(ms(4)));
        // 2·(5 − 3.8) + 2.2 + 0.05
        assert_eq!(
            dear.tasks()[0].outcome.response(),
            Some(Nanos::from_micros(4_650))
        );
    }

    #[test]
    fn hostile_overheads_and_times_neither_overflow_nor_pass() {
        let long = Nanos::MAX_PARAMETER;
        let tasks =
            (0..50).map(|n| Task::implicit(format!("t{n}"), Nanos::new(1), Nanos::new(1)).unwrap());
        let tasks = tasks
            .chain([Task::implicit("long", long, long).unwrap()])
            .collect();
        let set = TaskSet::new(tasks).unwrap();
        let overheads = Overheads {
            context_switch: Nanos::new(u64::MAX),
            supply_latency: Nanos::new(u64::MAX),
        };
        for cores in [1, Reservation::MAX_CORES] {
            let reservation = Reservation::new(long, long, cores).unwrap();
            assert!(!check(&set, &reservation, &overheads).is_schedulable());
            assert!(
                !check(&set, &reservation, &Overheads::default()).is_schedulable() || cores > 1
            );
        }
    }
}
