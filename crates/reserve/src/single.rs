//! Worst-case response times on one core: fixed priorities under a periodic supply.
//!
//! Joseph and Pandya's recurrence with the supply of the reservation in place of time itself, as in
//! Lipari and Bini ("Resource partitioning among real-time applications", ECRTS 2003) and Davis and
//! Burns ("Hierarchical fixed priority pre-emptive scheduling", RTSS 2005); over all jobs of the
//! busy window, as Lehoczky (RTSS 1990) does, so that deadlines may exceed periods. Job q of task i
//! (from 0), released at q·T, is done at the smallest w with
//!
//! sbf(w) ≥ B_i + (q + 1)·C_i + Σ ⌈(w + J_j) / T_j⌉·C_j   over the more or equally urgent j,
//!
//! when all of them are released at once, J after they arrived, together with the worst alignment of
//! the supply; its response is w + J_i − q·T_i (release jitter and blocking as in Audsley, Burns,
//! Richardson, Tindell and Wellings, Software Engineering Journal 8(5), 1993). Without blocking this
//! is the exact worst case for sporadic tasks with priorities of their own on a supply that may be
//! anything within its bound.
//!
//! Tasks with an offset arrive on a common clock, so not all of them are released at once: every
//! instant of their pattern at which one of them is released is tried as the window's beginning, and
//! of each the jobs count that may be released from there on (Tindell, YCS 221, University of York
//! 1994, with all such tasks as one transaction). Those without an offset are released there too.

use std::ops::ControlFlow;

use crate::model::{Demand, Model, STEP_LIMIT};

/// One job in a worst busy window of its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// When the window opens, on the clock that tasks with an offset share.
    pub start: u128,
    /// Its number in the window, from 0.
    pub number: u128,
    /// When it arrives, counted from J before the window opens.
    pub arrival: u128,
    /// The J of its task.
    pub jitter: u128,
    /// When it is done at the latest, counted from the window's opening; `None` when no bound was
    /// found.
    pub done: Option<u128>,
}

impl Job {
    /// The time from its arrival to its end.
    pub fn response(&self) -> Option<u128> {
        self.done.map(|done| done + self.jitter - self.arrival)
    }

    pub fn misses(&self, deadline: u128) -> bool {
        self.response().is_none_or(|response| response > deadline)
    }

    /// When it must be done, counted from the window's opening: never before it, since D is not
    /// shorter than J.
    pub fn due(&self, deadline: u128) -> u128 {
        (self.arrival + deadline).saturating_sub(self.jitter)
    }
}

/// The CPU time of the one less urgent section that may be under way when a window opens at `start`,
/// of `task`'s first `jobs` jobs in it, and of all its rivals' jobs that may be released within
/// `window`.
pub(crate) fn demand(
    model: &Model,
    task: usize,
    rivals: &[usize],
    start: u128,
    jobs: u128,
    window: u128,
) -> u128 {
    let interference: u128 = rivals
        .iter()
        .map(|&rival| model.demands[rival].released_within(start, window))
        .sum();
    let Demand { wcet, blocking, .. } = model.demands[task];
    blocking + jobs * wcet + interference
}

/// Shows `visit` each job of each of `task`'s worst busy windows in turn, until it has seen enough or
/// the last window ends.
pub(crate) fn busy_window(
    model: &Model,
    task: usize,
    mut visit: impl FnMut(Job) -> ControlFlow<()>,
) {
    let rivals = model.rivals(task);
    for start in model.starts(task, &rivals) {
        if window_from(model, task, &rivals, start, &mut visit).is_break() {
            return;
        }
    }
}

fn window_from(
    model: &Model,
    task: usize,
    rivals: &[usize],
    start: u128,
    visit: &mut impl FnMut(Job) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let of = &model.demands[task];
    let (mut done, mut steps) = (0, 0);
    for number in 0.. {
        let arrival = of.phase(start) + number * of.period;
        let settled = loop {
            steps += 1;
            if steps > STEP_LIMIT {
                break None;
            }
            let needed = demand(model, task, rivals, start, number + 1, done);
            match model.supply.window_for_wide(needed) {
                Some(later) if later > done => done = later,
                reached => break reached,
            }
        };
        // All is done before a job that arrives at `then`: it is in another window.
        let ends_by = |then: u128| settled.is_none_or(|done| done + of.jitter <= then);
        if settled.is_some() && ends_by(arrival) {
            break;
        }
        let job = Job {
            start,
            number,
            arrival,
            jitter: of.jitter,
            done: settled,
        };
        visit(job)?;
        if ends_by(arrival + of.period) {
            break;
        }
    }
    ControlFlow::Continue(())
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
