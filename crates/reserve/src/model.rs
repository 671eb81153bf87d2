//! What one core's or several cores' analysis sees: tasks with their overheads in, in order of
//! urgency.

use crate::nanos::Nanos;
use crate::reservation::{Overheads, Reservation};
use crate::supply::{HORIZON, Supply};
use crate::task::TaskSet;

/// How many steps the search for one task's response may take before it gives up, unproven.
pub(crate) const STEP_LIMIT: u32 = 100_000;

/// A task as it is analysed, its context switches included in C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub wcet: u128,
    pub period: u128,
    pub deadline: u128,
}

impl Demand {
    /// What must hold where at most one job of a task may be pending: the deadline, or the next
    /// arrival if sooner.
    pub fn constrained_deadline(&self) -> u128 {
        self.deadline.min(self.period)
    }
}

/// A task set on a reservation.
pub(crate) struct Model {
    pub supply: Supply,
    pub demands: Vec<Demand>,
    /// Task indices, groups of equal priority, the most urgent group first.
    pub levels: Vec<Vec<usize>>,
}

impl Model {
    pub fn new(set: &TaskSet, reservation: &Reservation, overheads: &Overheads) -> Self {
        // Above the horizon nothing fits: held there, so that hostile overheads cannot overflow the
        // sums.
        let inflate =
            |wcet: Nanos| (wcet.wide() + 2 * overheads.context_switch.wide()).min(HORIZON + 1);
        let demands = set
            .tasks()
            .iter()
            .map(|task| Demand {
                wcet: inflate(task.wcet()),
                period: task.period().wide(),
                deadline: task.deadline().wide(),
            })
            .collect();
        let mut order: Vec<usize> = (0..set.tasks().len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(set.priorities()[index]));
        let levels = order
            .chunk_by(|&a, &b| set.priorities()[a] == set.priorities()[b])
            .map(<[usize]>::to_vec)
            .collect();
        Self {
            supply: Supply::new(reservation, overheads),
            demands,
            levels,
        }
    }

    /// The tasks that may delay `task`: the more urgent ones, and the equally urgent ones, which
    /// `SCHED_FIFO` and `SCHED_RR` may serve first.
    pub fn rivals(&self, task: usize) -> Vec<usize> {
        let mut rivals = Vec::new();
        for level in &self.levels {
            rivals.extend(level.iter().copied().filter(|&other| other != task));
            if level.contains(&task) {
                break;
            }
        }
        rivals
    }
}
