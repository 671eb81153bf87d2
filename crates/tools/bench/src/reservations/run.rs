//! One task set run once, beside hogs: every job's response, and every missed deadline beside what the
//! machine took.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use serde::{Deserialize, Serialize};
use takt_reserve::Reservation;

use super::gaps::{Gap, Observer};
use super::hogs::{Hogs, Neighbour};
use super::thread::{await_reservation, cpu_ns, now_ns, reserve, sleep_until};
use super::{PlannedSet, ReservationsError, Setting, machine};

/// From when all threads are ready to the first release.
const HEAD_START_NS: u64 = 20_000_000;

/// How the threads of the tasks are scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Each in its reservation, which it gives itself.
    Reserved,
    /// Each in its reservation, which somebody else gives it, by its name: they are called as the tasks are.
    Held,
    /// Like any other.
    Ordinary,
}

/// The hogs that a set runs beside.
enum Beside {
    Own(Hogs),
    Neighbour(Neighbour),
}

impl Beside {
    fn start(setting: &Setting, neighbour: Option<&Path>) -> Result<Self, ReservationsError> {
        match neighbour {
            None => Hogs::start(setting.cores * setting.hogs_per_core).map(Self::Own),
            Some(socket) => Neighbour::connect(socket).map(Self::Neighbour),
        }
    }

    /// What they saw from an instant on.
    fn stop(self, start_ns: u64) -> Result<Vec<Gap>, ReservationsError> {
        match self {
            Self::Own(hogs) => Ok(hogs.stop(start_ns)),
            Self::Neighbour(neighbour) => neighbour.stop(start_ns),
        }
    }
}

/// What a run gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunOutcome {
    /// Each job's response over its period, in the order of tasks and releases.
    pub responses: Vec<f64>,
    /// Every missed deadline.
    pub misses: Vec<Miss>,
    /// Time the machine took from running threads, over all cores, as they observed it.
    pub gaps_ns: u64,
    /// The longest single stretch of it.
    pub longest_gap_ns: u64,
    /// Time stolen by the hypervisor, over all cores, as the kernel counts it.
    pub steal_ns: u64,
}

/// A job that was not done by its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Miss {
    /// The task, by its place in the set.
    pub task: usize,
    /// Its release, from the beginning of the run.
    pub release_ns: u64,
    /// How late it was; if it was not done when the run ended, how late by then.
    pub late_ns: u64,
    /// What the machine took, over all cores, while the job was pending or anything that it may have
    /// waited for: from the last instant before its release at which no job was.
    pub taken_ns: u64,
    /// How long, at most, the kernel had the task wait for runtime that interruptions had used up:
    /// it charges them to whom they interrupt, at the end of a job beyond its runtime.
    pub repaying_ns: u64,
}

impl Miss {
    /// Whether the machine took at least as much as the job was late by, at once or by way of the
    /// task's runtime.
    pub fn is_explained(&self) -> bool {
        self.taken_ns + self.repaying_ns >= self.late_ns
    }
}

/// What one task did.
struct Job {
    release_ns: u64,
    response_ns: u64,
    /// What it ran beyond its C, interrupted at the end of it.
    beyond_ns: u64,
}

struct Done {
    jobs: Vec<Job>,
    gaps: Vec<Gap>,
}

/// Runs a set once, beside hogs of its own or those of a [neighbour](super::hogs::serve), by its socket.
///
/// # Errors
/// When threads cannot be started, or the kernel refuses their reservations, or nobody gives them theirs; when the neighbour ends.
pub fn run(
    planned: &PlannedSet,
    setting: &Setting,
    threads: Threads,
    neighbour: Option<&Path>,
) -> Result<RunOutcome, ReservationsError> {
    let steal_before = steal_ns()?;
    let hogs = Beside::start(setting, neighbour)?;
    let mut tasks = Vec::new();
    for (task, own) in planned.set.tasks().iter().zip(&planned.plan.tasks) {
        let work = Work {
            wcet_ns: task.wcet().get(),
            period_ns: task.period().get(),
            reservation: (threads != Threads::Ordinary).then_some(own.reservation),
            given: threads == Threads::Held,
            run_ns: setting.run_ns,
        };
        tasks.push(Task::start(task.name(), work)?);
    }
    // All of them answer before any is told to go or not, so that none is left behind.
    let refused = tasks
        .iter()
        .filter_map(|task| task.ready.recv().ok()?.err())
        .fold(None, |first, error| first.or(Some(error)));
    let start_ns = now_ns() + HEAD_START_NS;
    let go = refused.is_none().then_some(start_ns);
    let running: Vec<_> = tasks.into_iter().map(|task| task.release(go)).collect();
    let done = running
        .into_iter()
        .map(|thread| thread.join().ok().flatten());
    let done: Vec<Option<Done>> = done.collect();
    let gaps = hogs.stop(start_ns);
    if let Some(error) = refused {
        return Err(match error.raw_os_error() {
            Some(libc::EPERM) => ReservationsError::Forbidden,
            Some(libc::EBUSY) => ReservationsError::NoRoom(planned.plan.total_bandwidth),
            None if error.kind() == io::ErrorKind::TimedOut => ReservationsError::NotGiven,
            _ => machine("set SCHED_DEADLINE")(error),
        });
    }
    let mut gaps = gaps?;
    let steal_ns = steal_ns()?.saturating_sub(steal_before);
    let done: Vec<Done> = done
        .into_iter()
        .collect::<Option<_>>()
        .ok_or_else(|| machine("run a task's thread to its end")(io::ErrorKind::Other.into()))?;
    gaps.extend(done.iter().flat_map(|done| done.gaps.iter().copied()));
    gaps.retain(|gap| gap.end_ns <= setting.run_ns);
    Ok(judge(planned, threads, &done, &gaps, steal_ns))
}

fn judge(
    planned: &PlannedSet,
    threads: Threads,
    done: &[Done],
    gaps: &[Gap],
    steal_ns: u64,
) -> RunOutcome {
    let periods = || planned.set.tasks().iter().map(|task| task.period().get());
    let pending = Pending::of(done);
    let mut outcome = RunOutcome {
        gaps_ns: gaps.iter().map(|gap| gap.length_ns).sum(),
        longest_gap_ns: gaps.iter().map(|gap| gap.length_ns).max().unwrap_or(0),
        steal_ns,
        ..RunOutcome::default()
    };
    for (task, (done, period)) in done.iter().zip(periods()).enumerate() {
        let mut debt = Debt::of(planned, task);
        for job in &done.jobs {
            let repaying_ns = match threads {
                Threads::Reserved | Threads::Held => debt.wait_ns(),
                Threads::Ordinary => 0,
            };
            debt.add(job.beyond_ns);
            let normalised = job.response_ns as f64 / period as f64;
            outcome.responses.push((normalised * 1e6).round() / 1e6);
            if job.response_ns > period {
                let from = pending.since(job.release_ns);
                let to = job.release_ns + job.response_ns;
                outcome.misses.push(Miss {
                    task,
                    release_ns: job.release_ns,
                    late_ns: job.response_ns - period,
                    taken_ns: gaps.iter().map(|gap| gap.within(from, to)).sum(),
                    repaying_ns,
                });
            }
        }
    }
    outcome
}

/// The runtime that a task owes its reservation.
struct Debt {
    owed_ns: u64,
    /// Q − C, which each job leaves to repay with.
    spare_ns: u64,
    runtime_ns: u64,
    period_ns: u64,
}

impl Debt {
    fn of(planned: &PlannedSet, task: usize) -> Self {
        let reservation = planned.plan.tasks[task].reservation;
        let wcet = planned.set.tasks()[task].wcet();
        Self {
            owed_ns: 0,
            spare_ns: reservation.runtime().saturating_sub(wcet).get(),
            runtime_ns: reservation.runtime().get(),
            period_ns: reservation.period().get(),
        }
    }

    /// A job ran its C and so much more.
    fn add(&mut self, beyond_ns: u64) {
        self.owed_ns = (self.owed_ns + beyond_ns).saturating_sub(self.spare_ns);
    }

    /// How long a job waits for it at most: for the periods whose runtime is owed, and, where what
    /// is left of the last one does not suffice, for the next.
    fn wait_ns(&self) -> u64 {
        match self.owed_ns {
            0 => 0,
            owed => (owed.div_ceil(self.runtime_ns) + 1) * self.period_ns,
        }
    }
}

/// From when to when jobs were pending, in order and without overlaps.
struct Pending(Vec<(u64, u64)>);

impl Pending {
    fn of(done: &[Done]) -> Self {
        let jobs = done.iter().flat_map(|done| &done.jobs);
        let mut spans: Vec<(u64, u64)> = jobs
            .map(|job| (job.release_ns, job.release_ns + job.response_ns))
            .collect();
        spans.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (from, to) in spans {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Self(merged)
    }

    /// Since when there has always been a pending job until `instant`.
    fn since(&self, instant: u64) -> u64 {
        let before = self.0.partition_point(|span| span.0 <= instant);
        match before.checked_sub(1).map(|index| self.0[index]) {
            Some((from, to)) if instant <= to => from,
            _ => instant,
        }
    }
}

/// What a task's thread has to do.
struct Work {
    wcet_ns: u64,
    period_ns: u64,
    reservation: Option<Reservation>,
    /// Somebody else gives it.
    given: bool,
    run_ns: u64,
}

/// A task's thread.
struct Task {
    /// It has its reservation, or the kernel's reason why not.
    ready: Receiver<io::Result<()>>,
    /// When to begin, or not at all.
    go: SyncSender<Option<u64>>,
    thread: JoinHandle<Option<Done>>,
}

impl Task {
    fn start(name: &str, work: Work) -> Result<Self, ReservationsError> {
        let (tell_ready, ready) = sync_channel(1);
        let (go, told_to_go) = sync_channel(1);
        let thread = Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let reserved = match &work.reservation {
                    Some(reservation) if work.given => await_reservation(reservation),
                    Some(reservation) => reserve(reservation),
                    None => Ok(()),
                };
                tell_ready.send(reserved).ok()?;
                let start_ns = told_to_go.recv().ok()??;
                Some(work.run(start_ns))
            })
            .map_err(machine("start a thread"))?;
        Ok(Self { ready, go, thread })
    }

    /// Lets it begin at an instant, or end at once.
    fn release(self, start_ns: Option<u64>) -> JoinHandle<Option<Done>> {
        // A thread that could not tell has ended.
        let _ = self.go.send(start_ns);
        self.thread
    }
}

impl Work {
    /// Jobs at every period from `start_ns` on, as long as their deadlines lie within the run.
    fn run(&self, start_ns: u64) -> Done {
        let count = self.run_ns / self.period_ns;
        let end_ns = start_ns + self.run_ns;
        let mut jobs: Vec<Job> = Vec::with_capacity(count as usize);
        let mut observer = Observer::new();
        // A job has what the thread runs from one sleep to the next, its wake-up included.
        let mut slept_ns = cpu_ns();
        // A job that begins on time, with nothing to repay, has a whole runtime, and that is more than C.
        let mut throttled = false;
        for number in 0..count {
            let release_ns = start_ns + number * self.period_ns;
            sleep_until(release_ns);
            observer.resume(throttled);
            let until = slept_ns + self.wcet_ns;
            let mut now = observer.look();
            // What is not done when the run ends counts with the time it has had.
            while now < end_ns && cpu_ns() < until {
                now = observer.look();
            }
            slept_ns = cpu_ns();
            let had_ns = now.min(end_ns).saturating_sub(release_ns);
            throttled = self.reservation.as_ref().is_some_and(|reservation| {
                let spare_ns = reservation.runtime().get().saturating_sub(self.wcet_ns);
                had_ns > self.period_ns || slept_ns.saturating_sub(until) > spare_ns
            });
            jobs.push(Job {
                release_ns: release_ns - start_ns,
                response_ns: match slept_ns < until {
                    // Its deadline is the end of the run at the latest.
                    true => had_ns.max(self.period_ns + 1),
                    false => had_ns,
                },
                beyond_ns: slept_ns.saturating_sub(until),
            });
        }
        Done {
            jobs,
            gaps: observer.gaps_from(start_ns),
        }
    }
}

/// What the hypervisor has taken from all cores since the machine was started, as the kernel counts it.
fn steal_ns() -> Result<u64, ReservationsError> {
    let stolen = crate::machine::stolen().map_err(machine("read /proc/stat"))?;
    Ok(stolen.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: Setting = Setting {
        sets: 1,
        run_ns: 300_000_000,
        hogs_per_core: 1,
        seed: 3,
        cores: 2,
        admitted_ppm: 1_800_000,
    };

    fn planned() -> PlannedSet {
        SETTING.draw().unwrap().sets.remove(0)
    }

    #[test]
    fn pending_time_reaches_back_to_the_last_instant_without_a_job() {
        let jobs = |jobs: &[(u64, u64)]| Done {
            jobs: jobs
                .iter()
                .map(|&(release_ns, response_ns)| Job {
                    release_ns,
                    response_ns,
                    beyond_ns: 0,
                })
                .collect(),
            gaps: Vec::new(),
        };
        let pending = Pending::of(&[
            jobs(&[(0, 5), (20, 10)]),
            jobs(&[(8, 4), (25, 15), (40, 1)]),
        ]);
        assert_eq!(pending.0, [(0, 5), (8, 12), (20, 41)]);
        for (instant, since) in [(0, 0), (4, 0), (6, 6), (8, 8), (25, 20), (40, 20), (50, 50)] {
            assert_eq!(pending.since(instant), since, "{instant}");
        }
    }

    #[test]
    fn a_missed_deadline_is_explained_by_as_much_time_taken_and_by_no_less() {
        let planned = planned();
        let period = planned.set.tasks()[0].period().get();
        let late = |taken| {
            let done: Vec<Done> = (0..planned.set.tasks().len())
                .map(|task| Done {
                    jobs: match task {
                        0 => vec![Job {
                            release_ns: 0,
                            response_ns: period + 500,
                            beyond_ns: 0,
                        }],
                        _ => Vec::new(),
                    },
                    gaps: Vec::new(),
                })
                .collect();
            let gaps = [
                Gap {
                    end_ns: 10_000,
                    length_ns: taken,
                },
                Gap {
                    end_ns: 10 * period,
                    length_ns: 9_000,
                },
            ];
            judge(&planned, Threads::Reserved, &done, &gaps, 0).misses[0]
        };
        assert!(late(500).is_explained() && late(5_000).is_explained());
        assert!(!late(499).is_explained());
        assert_eq!(late(499).late_ns, 500);
    }

    #[test]
    fn runtime_that_an_interruption_used_up_is_waited_for_until_it_is_repaid() {
        let planned = planned();
        let mut debt = Debt::of(&planned, 0);
        let (runtime, period) = (debt.runtime_ns, debt.period_ns);
        assert!(debt.spare_ns > 0 && debt.spare_ns < runtime);
        // What the reservation has to spare leaves nothing owed.
        debt.add(debt.spare_ns);
        assert_eq!(debt.wait_ns(), 0);
        debt.add(debt.spare_ns + runtime + 1);
        assert_eq!(debt.wait_ns(), 3 * period);
        let jobs = (runtime + 1).div_ceil(debt.spare_ns);
        (1..jobs).for_each(|_| debt.add(0));
        assert_eq!(debt.wait_ns(), 2 * period);
        debt.add(0);
        assert_eq!(debt.wait_ns(), 0);
    }

    #[test]
    fn every_job_of_every_task_has_a_response_with_and_without_reservations() {
        let planned = planned();
        let tasks = planned.set.tasks().iter();
        let jobs: u64 = tasks.map(|task| SETTING.run_ns / task.period().get()).sum();
        for threads in [Threads::Ordinary, Threads::Reserved] {
            let outcome = match run(&planned, &SETTING, threads, None) {
                Err(error @ (ReservationsError::Forbidden | ReservationsError::NoRoom(_))) => {
                    eprintln!("skipped: {error}");
                    continue;
                }
                outcome => outcome.unwrap(),
            };
            assert_eq!(outcome.responses.len() as u64, jobs);
            // In millionths, a job that is late by a little seems punctual.
            let late = outcome.responses.iter().filter(|&&ratio| ratio > 1.0);
            let punctual = outcome.responses.iter().filter(|&&ratio| ratio < 1.0);
            let missed = outcome.misses.len();
            assert!(late.count() <= missed && punctual.count() + missed <= jobs as usize);
            // No job is done before it has run for its C, but for the way into its sleep before.
            let way_ns = 100_000;
            let mut responses = outcome.responses.iter();
            for task in planned.set.tasks() {
                let count = SETTING.run_ns / task.period().get();
                for ratio in responses.by_ref().take(count as usize) {
                    let least = task.wcet().get().saturating_sub(way_ns) as f64;
                    let least = least / task.period().get() as f64;
                    let unfinished = *ratio >= 1.0;
                    assert!(*ratio >= least - 1e-6 || unfinished, "{ratio} {least}");
                }
            }
        }
    }
}
