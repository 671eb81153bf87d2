//! A scheduler in discrete time: fixed priorities on whatever supply it is handed, one slot after
//! the other.
//!
//! It knows nothing of the analysis and repeats none of its formulas; what the analysis accepts is
//! run here.

use takt_reserve::{Nanos, Reservation, Task, TaskSet};

/// How many nanoseconds a slot stands for: enough that rounding up by one does not matter.
pub const SLOT: u64 = 1_000;

/// Which virtual processors run in a slot.
pub trait Supply {
    /// How many of them run in the slot at `now`, in which `pending` jobs want to.
    fn running(&mut self, now: u64, pending: usize) -> usize;
}

/// A task in slots: C, T, D, its priority, J and O, and how many slots of each of its jobs, the first
/// ones, no other task interrupts.
#[derive(Clone, Copy, Debug)]
pub struct SlotTask {
    pub wcet: u64,
    pub period: u64,
    pub deadline: u64,
    pub priority: u8,
    pub jitter: u64,
    pub offset: Option<u64>,
    pub section: u64,
}

impl SlotTask {
    /// The longest section of a less urgent one of `tasks`.
    fn blocking(&self, tasks: &[SlotTask]) -> u64 {
        let less_urgent = tasks.iter().filter(|other| other.priority < self.priority);
        less_urgent.map(|other| other.section).max().unwrap_or(0)
    }
}

/// The same tasks as the analysis takes them.
pub fn task_set(tasks: &[SlotTask]) -> TaskSet {
    let of = |slots: u64| Nanos::new(slots * SLOT);
    let all = tasks;
    let tasks = tasks.iter().enumerate().map(|(number, task)| {
        let priority = takt_reserve::Priority::new(task.priority).expect("a priority from 1 to 99");
        let made = Task::new(
            format!("t{number}"),
            of(task.wcet),
            of(task.period),
            of(task.deadline),
        );
        let made = made.and_then(|made| made.released_within(of(task.jitter)));
        let made = made.and_then(|made| made.blocked_for(of(task.blocking(all))));
        let made = made.and_then(|made| match task.offset {
            Some(offset) => made.at_offset(of(offset)),
            None => Ok(made),
        });
        made.expect("a task").at(priority)
    });
    TaskSet::new(tasks.collect()).expect("a task set")
}

/// A reservation of so many slots.
pub fn reservation(runtime: u64, period: u64, cores: u32) -> Reservation {
    Reservation::new(Nanos::new(runtime * SLOT), Nanos::new(period * SLOT), cores)
        .expect("a reservation")
}

/// A job that comes: released so long after it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    pub at: u64,
    pub late: u64,
}

struct Job {
    task: usize,
    release: Release,
    left: u64,
}

/// Runs `tasks`, whose jobs come at `releases`, until slot `end`, and returns each task's worst
/// response, counted from the arrival. A job that is not done by then counts with the time it has been
/// there. Of equally urgent jobs the later one goes first if `unfair`.
pub fn run(
    tasks: &[SlotTask],
    releases: &[Vec<Release>],
    supply: &mut dyn Supply,
    end: u64,
    unfair: bool,
) -> Vec<u64> {
    let mut jobs: Vec<Job> = Vec::new();
    let mut worst = vec![0; tasks.len()];
    for now in 0..end {
        for (task, releases) in releases.iter().enumerate() {
            let now = releases.iter().filter(|release| release.at == now);
            jobs.extend(now.map(|&release| Job {
                task,
                release,
                left: tasks[task].wcet,
            }));
        }
        // Only the oldest job of each task is ready: a thread does one after the other.
        let mut ready: Vec<usize> = (0..jobs.len())
            .filter(|&one| {
                let older = jobs.iter().take(one);
                older.filter(|other| other.task == jobs[one].task).count() == 0
            })
            .collect();
        ready.sort_by_key(|&one| {
            let job = &jobs[one];
            let age = if unfair {
                u64::MAX - job.release.at
            } else {
                job.release.at
            };
            let task = &tasks[job.task];
            let done = task.wcet - job.left;
            let uninterrupted = done > 0 && done < task.section;
            (!uninterrupted, u8::MAX - task.priority, age)
        });
        let running = supply.running(now, ready.len());
        for &one in ready.iter().take(running) {
            jobs[one].left -= 1;
        }
        jobs.retain(|job| {
            let age = now + 1 - job.release.at + job.release.late;
            if job.left == 0 || now + 1 == end {
                worst[job.task] = worst[job.task].max(age);
            }
            job.left > 0
        });
    }
    worst
}

/// Releases until `end`: the first arrival is at `offset`, the others a period and whatever `delays`
/// adds apart, and each is released as late after it as `late` says, never before the one before it.
pub fn releases(
    task: &SlotTask,
    offset: u64,
    delays: &[u64],
    late: &[u64],
    end: u64,
) -> Vec<Release> {
    let mut releases: Vec<Release> = Vec::new();
    let mut arrival = offset;
    let mut delays = delays.iter().cycle();
    let mut late = late.iter().cycle();
    while arrival < end {
        let late = late.next().copied().unwrap_or(0).min(task.jitter);
        let last = releases.last().map_or(0, |last| last.at);
        let at = last.max(arrival + late);
        releases.push(Release {
            at,
            late: at - arrival,
        });
        arrival += task.period + delays.next().copied().unwrap_or(0);
    }
    releases
}

/// Releases until `end` in the worst window that opens at slot 0: the first job is released then, J
/// after it arrived (or as much less as its offset wants, at `start` of the common clock), all others
/// when they arrive.
pub fn worst_releases(task: &SlotTask, start: u64, end: u64) -> Vec<Release> {
    let (period, jitter) = (task.period, task.jitter);
    let first = match task.offset {
        Some(offset) => (offset + jitter + period - start % period) % period,
        None => 0,
    };
    let arrivals = (0..).map(|job| first + job * period);
    let jobs = arrivals.take_while(|&arrival| arrival < end + jitter);
    jobs.map(|arrival| Release {
        at: arrival.saturating_sub(jitter),
        late: jitter.saturating_sub(arrival),
    })
    .collect()
}

/// Where a server's budget lies within a period of its own.
#[derive(Clone, Debug)]
pub enum Place {
    Early,
    Late,
    /// In the slots whose turn comes first by these random keys.
    Scattered(Vec<u64>),
}

/// Servers that hand out their budget in every period whether it is wanted or not, each in its own
/// phase.
pub struct PeriodicServers {
    pub runtime: u64,
    pub period: u64,
    /// Per server: how far into its first period slot 0 is, and the places of its budget, repeated.
    pub servers: Vec<(u64, Vec<Place>)>,
}

impl PeriodicServers {
    /// The worst alignment: every server has just served its budget early and serves all later ones
    /// late.
    pub fn worst(runtime: u64, period: u64, cores: usize) -> Self {
        // Slot 0 is in the first period, whose budget was early; no later period repeats that.
        let places = std::iter::once(Place::Early)
            .chain(std::iter::repeat_n(Place::Late, 10_000))
            .collect::<Vec<_>>();
        Self {
            runtime,
            period,
            servers: vec![(runtime, places); cores],
        }
    }
}

impl Supply for PeriodicServers {
    fn running(&mut self, now: u64, _pending: usize) -> usize {
        let runs = |(phase, places): &(u64, Vec<Place>)| {
            let (number, slot) = ((now + phase) / self.period, (now + phase) % self.period);
            match &places[number as usize % places.len()] {
                Place::Early => slot < self.runtime,
                Place::Late => slot >= self.period - self.runtime,
                Place::Scattered(keys) => {
                    let key = |slot: u64| (keys[slot as usize % keys.len()], slot);
                    (0..self.period)
                        .filter(|&other| key(other) < key(slot))
                        .count()
                        < self.runtime as usize
                }
            }
        };
        self.servers.iter().filter(|server| runs(server)).count()
    }
}

/// A constant bandwidth server as Linux has it (kernel/sched/deadline.c), on a host that lets it
/// run when it likes and otherwise as late as its deadline allows.
pub struct Cbs {
    runtime: u64,
    /// How long after a period's start the runtime is due: the period, or less.
    relative: u64,
    period: u64,
    left: u64,
    deadline: u64,
    was_pending: bool,
    /// Whether the host would let it run, slot by slot, repeated.
    host: Vec<bool>,
}

impl Cbs {
    pub fn new(runtime: u64, period: u64, host: Vec<bool>) -> Self {
        Self::with_deadline(runtime, period, period, host)
    }

    pub fn with_deadline(runtime: u64, relative: u64, period: u64, host: Vec<bool>) -> Self {
        Self {
            runtime,
            relative,
            period,
            left: 0,
            deadline: 0,
            was_pending: false,
            host,
        }
    }
}

impl Supply for Cbs {
    fn running(&mut self, now: u64, pending: usize) -> usize {
        // An exhausted budget comes back with the next period, whether or not anybody waits for it.
        let next = self.deadline + self.period - self.relative;
        if self.left == 0 && self.deadline > 0 && now >= next {
            self.left = self.runtime;
            self.deadline = next + self.relative;
        }
        let pending = pending > 0;
        if pending && !self.was_pending {
            // Waking up: go on only if what is left is no more than the share of the time to the
            // deadline.
            let throttled = self.left == 0 && now < next && self.deadline > 0;
            let late = now >= self.deadline;
            let beyond = late || self.left * self.relative > (self.deadline - now) * self.runtime;
            if late && now < next && self.deadline > 0 {
                // After a deadline before the period's end: not before the next period
                // (dl_check_constrained_dl).
                self.left = 0;
            } else if !throttled && beyond && (late || self.relative == self.period) {
                self.left = self.runtime;
                self.deadline = now + self.relative;
            } else if !throttled && beyond {
                // Before it: as much as the share allows (update_dl_revised_wakeup).
                self.left = (self.deadline - now) * self.runtime / self.relative;
            }
        }
        self.was_pending = pending;
        if !pending || self.left == 0 {
            return 0;
        }
        let must = self.deadline <= now + self.left;
        let runs = must || self.host[now as usize % self.host.len()];
        self.left -= u64::from(runs);
        usize::from(runs)
    }
}

/// Constant bandwidth servers that always have something to run, if only a thread of the lowest
/// priority.
pub struct AwakeServers(pub Vec<Cbs>);

impl Supply for AwakeServers {
    fn running(&mut self, now: u64, _pending: usize) -> usize {
        self.0.iter_mut().map(|server| server.running(now, 1)).sum()
    }
}
