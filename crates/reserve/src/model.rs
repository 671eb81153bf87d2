//! What one core's or several cores' analysis sees: tasks with their overheads in, in order of
//! urgency.

use crate::nanos::Nanos;
use crate::reservation::{Overheads, Reservation};
use crate::supply::{HORIZON, Supply};
use crate::task::{TaskSet, pattern};

/// How many steps the search for one task's response may take before it gives up, unproven.
pub(crate) const STEP_LIMIT: u32 = 100_000;

/// A task as it is analysed, its context switches included in C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub wcet: u128,
    pub period: u128,
    pub deadline: u128,
    pub jitter: u128,
    pub blocking: u128,
    pub offset: Option<u128>,
}

impl Demand {
    /// How long after J before a window that opens at `start` of the common clock the first job
    /// arrives that may be released within it: at once, if its arrivals keep to no clock.
    pub fn phase(&self, start: u128) -> u128 {
        self.offset.map_or(0, |offset| {
            (offset + self.jitter + self.period - start % self.period) % self.period
        })
    }

    /// The CPU time of the jobs that may be released within the first `window` of a window that opens
    /// at `start`.
    pub fn released_within(&self, start: u128, window: u128) -> u128 {
        let reach = (window + self.jitter).saturating_sub(self.phase(start));
        reach.div_ceil(self.period) * self.wcet
    }

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
                jitter: task.jitter().wide(),
                blocking: task.blocking().wide(),
                offset: task.offset().map(Nanos::wide),
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

    /// Where on the common clock the worst window of `task` among `rivals` may open: with a job of one
    /// that has an offset, released as late as it may be; anywhere, if none of them has one.
    ///
    /// A window that opens elsewhere is no worse than the one that opens later with the next such
    /// job: that one has in it every job that the first has, as early or earlier after its start.
    pub fn starts(&self, task: usize, rivals: &[usize]) -> Vec<u128> {
        let on_clock = rivals
            .iter()
            .chain([&task])
            .map(|&index| self.demands[index]);
        let on_clock: Vec<(u128, Demand)> = on_clock
            .filter_map(|demand| Some((demand.offset?, demand)))
            .collect();
        if on_clock.is_empty() {
            return vec![0];
        }
        // Of all tasks it is short enough, or there would be no such set.
        let periods = on_clock.iter().map(|(_, demand)| demand.period);
        let length = periods.fold(1, pattern);
        let mut starts: Vec<u128> = on_clock
            .iter()
            .flat_map(|(offset, demand)| {
                let latest = offset + demand.jitter;
                (0..length / demand.period).map(move |job| (latest + job * demand.period) % length)
            })
            .collect();
        starts.sort_unstable();
        starts.dedup();
        starts
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
