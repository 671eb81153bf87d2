//! Worst-case response times on one core: fixed priorities under a periodic supply.
//!
//! Joseph and Pandya's recurrence with the supply of the reservation in place of time itself, as in
//! Lipari and Bini ("Resource partitioning among real-time applications", ECRTS 2003) and Davis and
//! Burns ("Hierarchical fixed priority pre-emptive scheduling", RTSS 2005); over all jobs of the
//! busy window, as Lehoczky (RTSS 1990) does, so that deadlines may exceed periods. Job q of task i
//! (from 0), released at q·T, is done at the smallest w with
//!
//! sbf(w) ≥ (q + 1)·C_i + Σ ⌈w / T_j⌉·C_j   over the more or equally urgent j,
//!
//! when all of them are released at once, together with the worst alignment of the supply. This is
//! the exact worst case for sporadic tasks with priorities of their own on a supply that may be
//! anything within its bound.

use std::ops::ControlFlow;

use crate::model::{Demand, Model, STEP_LIMIT};

/// One job in the worst busy window of its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// Its number in the window, from 0.
    pub number: u128,
    /// When it is released, counted from the start of the window.
    pub release: u128,
    /// When it is done at the latest, on the same count; `None` when no bound was found.
    pub done: Option<u128>,
}

impl Job {
    pub fn response(&self) -> Option<u128> {
        self.done.map(|done| done - self.release)
    }

    pub fn misses(&self, deadline: u128) -> bool {
        self.response().is_none_or(|response| response > deadline)
    }
}

/// The CPU time of `task`'s first `jobs` jobs and of all its rivals' jobs that arrive within
/// `window`.
pub(crate) fn demand(
    model: &Model,
    task: usize,
    rivals: &[usize],
    jobs: u128,
    window: u128,
) -> u128 {
    let interference: u128 = rivals
        .iter()
        .map(|&rival| arrivals(&model.demands[rival], window))
        .sum();
    jobs * model.demands[task].wcet + interference
}

fn arrivals(rival: &Demand, window: u128) -> u128 {
    window.div_ceil(rival.period) * rival.wcet
}

/// Shows `visit` each job of `task`'s worst busy window in turn, until it has seen enough or the
/// window ends.
pub(crate) fn busy_window(
    model: &Model,
    task: usize,
    mut visit: impl FnMut(Job) -> ControlFlow<()>,
) {
    let rivals = model.rivals(task);
    let period = model.demands[task].period;
    let mut done = 0;
    let mut steps = 0;
    for number in 0.. {
        let release = number * period;
        let settled = loop {
            steps += 1;
            if steps > STEP_LIMIT {
                break None;
            }
            match model
                .supply
                .window_for_wide(demand(model, task, &rivals, number + 1, done))
            {
                Some(later) if later > done => done = later,
                reached => break reached,
            }
        };
        let job = Job {
            number,
            release,
            done: settled,
        };
        if visit(job).is_break() || settled.is_none_or(|done| done <= release + period) {
            return;
        }
    }
}

/// Whether every job of `task` is done by its deadline.
pub(crate) fn meets_deadline(model: &Model, task: usize) -> bool {
    if is_overloaded(model, task) {
        return false;
    }
    let deadline = model.demands[task].deadline;
    let mut meets = true;
    busy_window(model, task, |job| {
        meets = !job.misses(deadline);
        if meets {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    meets
}

/// Whether `task` and its rivals surely need more than the supply in the long run, so that no busy
/// window ends.
pub(crate) fn is_overloaded(model: &Model, task: usize) -> bool {
    const ONE: u128 = 1 << 64;
    let needed: u128 = model
        .rivals(task)
        .into_iter()
        .chain([task])
        .map(|index| model.demands[index].wcet * ONE / model.demands[index].period)
        .sum();
    let (runtime, period) = model.supply.rate();
    needed > (runtime * ONE).div_ceil(period)
}
