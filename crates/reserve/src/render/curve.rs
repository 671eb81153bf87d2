//! The points of the curves in the picture: supply, and the demand of one task with all that may
//! delay it.

use std::ops::ControlFlow;

use crate::check::{Outcome, Verdict};
use crate::global;
use crate::model::Model;
use crate::single::{self, Job};

/// How many corners of one kind are worth drawing one by one; beyond, they are finer than the
/// picture.
const MOST_CORNERS: u128 = 1_500;
/// How many points there are in any case.
const EVEN_POINTS: u128 = 600;

/// Both curves over the same instants, in nanoseconds.
pub(super) struct Curves {
    /// (t, supply, demand)
    pub points: Vec<(u128, u128, u128)>,
    /// When the job that is shown must be done.
    pub due: u128,
    /// When it is done, where that is known and within the picture.
    pub done: Option<u128>,
}

/// The curves of the task at place `task`, for the job that is late first, else for the one with
/// the longest response.
pub(super) fn curves(verdict: &Verdict, task: usize) -> Curves {
    let model = Model::new(
        verdict.task_set(),
        verdict.reservation(),
        verdict.overheads(),
    );
    if verdict.reservation().cores() == 1 {
        single_core(&model, verdict, task)
    } else {
        several_cores(&model, verdict, task)
    }
}

fn single_core(model: &Model, verdict: &Verdict, task: usize) -> Curves {
    let demand = model.demands[task];
    let failing = verdict.failure().filter(|failure| failure.task == task);
    let mut shown: Option<Job> = None;
    single::busy_window(model, task, |job| {
        let found = failing
            .is_some_and(|failure| job.due(demand.deadline) == failure.instant.wide())
            && job.misses(demand.deadline);
        if found || shown.is_none_or(|shown| job.response() > shown.response()) {
            shown = Some(job);
        }
        match found {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    // Without a job to be seen: alone, from the window's beginning.
    let job = shown.unwrap_or(Job {
        start: 0,
        number: 0,
        arrival: 0,
        jitter: demand.jitter,
        done: None,
    });
    let due = job.due(demand.deadline);
    let rivals = model.rivals(task);
    let mut instants = Instants::new(end(due, job.done));
    for &index in rivals.iter().chain([&task]) {
        let rival = &model.demands[index];
        let first =
            (rival.phase(job.start) + rival.period - rival.jitter % rival.period) % rival.period;
        instants.after_each(first, rival.period);
    }
    let at = |window: u128| {
        let released = demand.released_within(job.start, window) / demand.wcet;
        let own = released.min(job.number + 1);
        single::demand(model, task, &rivals, job.start, own, window)
    };
    instants.curves(model, due, job.done, at)
}

fn several_cores(model: &Model, verdict: &Verdict, task: usize) -> Curves {
    let responses: Vec<Option<u128>> = verdict
        .tasks()
        .iter()
        .map(|task| match task.outcome {
            Outcome::Meets { response } => Some(response.wide()),
            Outcome::Misses { .. } | Outcome::NotAnalysed => None,
        })
        .collect();
    let rivals = global::rivals(model, &responses, task);
    let due = model.demands[task].constrained_deadline();
    let done = responses[task];
    let instants = Instants::new(end(due, done));
    instants.curves(model, due, done, |window| {
        global::demand_per_core(model, task, &rivals, window)
    })
}

/// Where the picture ends: a little after the deadline, and after the end of the job if that is not
/// far beyond.
fn end(due: u128, done: Option<u128>) -> u128 {
    let last = done
        .filter(|done| *done <= 2 * due)
        .map_or(due, |done| done.max(due));
    last + last / 12 + 1
}

struct Instants {
    end: u128,
    at: Vec<u128>,
}

impl Instants {
    fn new(end: u128) -> Self {
        let at = (0..=EVEN_POINTS)
            .map(|point| end * point / EVEN_POINTS)
            .collect();
        Self { end, at }
    }

    /// Demand jumps just after `first` and every period from there on.
    fn after_each(&mut self, first: u128, period: u128) {
        if self.end / period <= MOST_CORNERS {
            let jumps = (0..=self.end / period).map(|number| first + number * period);
            let jumps = jumps.flat_map(|jump| [jump, jump + 1]);
            self.at.extend(jumps.filter(|&at| at <= self.end));
        }
    }

    fn curves(
        mut self,
        model: &Model,
        due: u128,
        done: Option<u128>,
        demand: impl Fn(u128) -> u128,
    ) -> Curves {
        let (runtime, period) = model.supply.rate();
        if runtime > 0 && self.end / period <= MOST_CORNERS {
            // A budget is complete where the next nanosecond of supply takes another gap.
            let corners = (0..=self.end / period).flat_map(|number| {
                let complete = model.supply.window_for_wide((number + 1) * runtime);
                complete
                    .into_iter()
                    .flat_map(|complete| [complete.saturating_sub(runtime), complete])
            });
            let end = self.end;
            self.at.extend(corners.filter(|&at| at <= end));
        }
        self.at.extend([due, done.unwrap_or(due)]);
        self.at.sort_unstable();
        self.at.dedup();
        let end = self.end;
        let points = self.at.into_iter().filter(|&at| at <= end);
        let points = points
            .map(|at| (at, model.supply.per_core_wide(at), demand(at)))
            .collect();
        Curves {
            points,
            due,
            done: done.filter(|&done| done <= end),
        }
    }
}
