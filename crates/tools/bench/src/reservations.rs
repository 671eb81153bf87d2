//! Random task sets with and without CPU reservations, beside CPU hogs: figure 6 of
//! kubedeadline-ecrts2025 on one machine.
//!
//! Task sets come from RandFixedSum, reservations from `takt_reserve::plan_per_task`; each set runs with
//! them (`SCHED_DEADLINE` per thread) and without (`SCHED_OTHER`). What the machine itself takes away,
//! by its hypervisor and by interrupts, is observed by whoever runs at that moment and held against
//! each missed deadline. Unlike the paper's, each thread has a reservation of its own, and the kernel
//! schedules all of them together by global EDF, which not every set that it admits is proven under.
//!
//! The sets run here one after another, or each in a program of its own whose threads are given their reservations by
//! somebody else, beside hogs of another program: so they are run in containers.

pub mod account;
mod deadline;
mod gaps;
pub mod hogs;
mod run;
mod thread;

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use takt_reserve::generate::{Experiment, GenerateError};
use takt_reserve::{
    Bandwidth, Constraints, Nanos, Overheads, PerTaskPlan, Periods, PlanError, TaskSet,
    plan_per_task,
};

use crate::awake::usable_cores;
pub use deadline::Deadline;
pub use gaps::Gap;
use run::run;
pub use run::{Miss, RunOutcome, Threads};

/// The least utilisation of a set, as in the paper.
const LEAST_UTILISATION: f64 = 0.6;
/// The kernel's own reservation for ordinary threads, of each core: 50 ms of every second.
const FAIR_SERVER_PPM: u64 = 50_000;
/// What a reservation adds to a job, twice: for the way into the sleep, and for interrupts, which the
/// kernel charges to whom they interrupt. At the very end of its work they take a thread beyond its
/// runtime, and the kernel has it wait for that in the periods that follow.
const SWITCH: Nanos = Nanos::from_micros(100);
/// By how much a reservation's period is shorter than the task's: wake-up latency.
const WAKE_UP: Nanos = Nanos::from_micros(250);

/// Why the experiment cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ReservationsError {
    /// Not enough privileges.
    #[error(
        "cannot set SCHED_DEADLINE as this user: run it as root, or with the capability CAP_SYS_NICE"
    )]
    Forbidden,
    /// The kernel had no room for the reservations.
    #[error(
        "the kernel refuses reservations of {0} of a core in all: others hold some already, or kernel.sched_rt_runtime_us was lowered"
    )]
    NoRoom(Bandwidth),
    /// Nobody gave the threads their reservations.
    #[error(
        "threads were not given the reservations of their tasks within a minute: they are chosen by their names, t1 and so on (threads: {{select: name, name: t1}} of a claim's parameters)"
    )]
    NotGiven,
    /// There is no such set among those that can be run.
    #[error(
        "task set {0} cannot be run: no reservations that the machine admits are enough for it; see `takt bench reservations plan`"
    )]
    NoSet(u32),
    /// The machine cannot be asked or does not what it is told.
    #[error("cannot {action}: {source}")]
    Machine {
        /// What was being done.
        action: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// No task set can be drawn.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// There is nothing to draw from.
    #[error(
        "the kernel admits {0} of a core in all, and the sets of the experiment need 60% and more: raise kernel.sched_rt_runtime_us"
    )]
    TooLittle(Bandwidth),
}

pub(crate) fn machine(action: &'static str) -> impl FnOnce(io::Error) -> ReservationsError {
    move |source| ReservationsError::Machine { action, source }
}

/// What the experiment is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// How many task sets.
    pub sets: u32,
    /// How long each runs, twice, in nanoseconds.
    pub run_ns: u64,
    /// CPU hogs beside it on each core.
    pub hogs_per_core: u32,
    /// Other seeds, other sets.
    pub seed: u64,
    /// Cores there are.
    pub cores: u32,
    /// What the kernel admits on all of them together, in millionths of a core.
    pub admitted_ppm: u64,
}

impl Setting {
    /// On this machine, as it is configured.
    ///
    /// # Errors
    /// When the machine does not tell what it admits.
    pub fn here(
        sets: u32,
        run_ns: u64,
        hogs_per_core: u32,
        seed: u64,
    ) -> Result<Self, ReservationsError> {
        let cores = usable_cores().map_err(machine("ask which cores may be used"))?;
        let cores = u32::try_from(cores.len()).unwrap_or(u32::MAX);
        let number = |name: &str| {
            fs::read_to_string(format!("/proc/sys/kernel/{name}"))
                .and_then(|text| {
                    let number: Result<i64, _> = text.trim().parse();
                    number.map_err(|_| io::ErrorKind::InvalidData.into())
                })
                .map_err(machine(
                    "ask how much of a core the kernel lets be reserved",
                ))
        };
        let (runtime, period) = (
            number("sched_rt_runtime_us")?,
            number("sched_rt_period_us")?,
        );
        // Without a limit everything is admitted, which would leave nothing for the observer.
        let share = match (u64::try_from(runtime), u64::try_from(period)) {
            (Ok(runtime), Ok(period)) if period > 0 => runtime * 1_000_000 / period,
            _ => 950_000,
        };
        Ok(Self {
            sets,
            run_ns,
            hogs_per_core,
            seed,
            cores,
            admitted_ppm: share.saturating_sub(FAIR_SERVER_PPM) * u64::from(cores),
        })
    }

    /// The task sets with their reservations: as many as asked for, without those that the kernel
    /// would not admit, and how many those were.
    ///
    /// # Errors
    /// When the machine has no room for such sets.
    pub fn draw(&self) -> Result<Drawn, ReservationsError> {
        let mut drawn = Drawn {
            sets: Vec::new(),
            refused: 0,
        };
        for number in 0.. {
            if drawn.sets.len() as u64 >= u64::from(self.sets) {
                break;
            }
            match self.set(number) {
                Ok(set) => drawn.sets.push(set),
                Err(ReservationsError::NoSet(_)) => drawn.refused += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(drawn)
    }

    /// One of all that are drawn, by its place, with its reservations.
    ///
    /// # Errors
    /// [`ReservationsError::NoSet`] if the kernel would not admit them; when the machine has no room for such sets.
    pub fn set(&self, number: u32) -> Result<PlannedSet, ReservationsError> {
        let most = self.admitted_ppm as f64 / 1e6;
        if most <= LEAST_UTILISATION {
            return Err(ReservationsError::TooLittle(Bandwidth::from_ppm(
                self.admitted_ppm,
            )));
        }
        let experiment = Experiment {
            utilisation: LEAST_UTILISATION..=most,
            ..Experiment::figure_6(self.seed)
        };
        let constraints = Constraints {
            periods: Periods::Auto {
                shortest: Nanos::from_millis(1),
            },
            core_bound: Bandwidth::FULL_CORE,
            overheads: Overheads {
                context_switch: SWITCH,
                supply_latency: WAKE_UP,
            },
            ..Constraints::default()
        };
        let set = experiment.set(number)?;
        match plan_per_task(&set, &constraints) {
            Ok(plan) if plan.total_bandwidth.ppm() <= self.admitted_ppm => {
                Ok(PlannedSet { number, set, plan })
            }
            Ok(_) | Err(PlanError::NoneForTask { .. }) => Err(ReservationsError::NoSet(number)),
            Err(error) => Err(machine("plan reservations")(io::Error::other(error))),
        }
    }
}

/// Task sets to be run.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// The sets with their reservations.
    pub sets: Vec<PlannedSet>,
    /// How many were drawn and left out because their reservations are more than the kernel admits.
    pub refused: u32,
}

/// A task set and the reservation of each task.
#[derive(Clone, Debug)]
pub struct PlannedSet {
    /// Its place among all that were drawn.
    pub number: u32,
    /// The tasks.
    pub set: TaskSet,
    /// Their reservations.
    pub plan: PerTaskPlan,
}

/// What a task set gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetOutcome {
    /// Its place among all that were drawn.
    pub number: u32,
    /// Its tasks.
    pub tasks: Vec<TaskParameters>,
    /// What all tasks need, in millionths of a core.
    pub utilisation_ppm: u64,
    /// What all reservations take, in millionths of a core.
    pub reserved_ppm: u64,
    /// Whether global EDF is proven to keep all reservations.
    pub proven: bool,
    /// With reservations.
    pub reserved: RunOutcome,
    /// Without.
    pub ordinary: RunOutcome,
}

/// A task and its reservation, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the field's")]
pub struct TaskParameters {
    pub wcet_ns: u64,
    pub period_ns: u64,
    pub runtime_ns: u64,
    pub reservation_period_ns: u64,
}

impl PlannedSet {
    /// Runs the set both ways: with reservations first where its turn is even.
    ///
    /// # Errors
    /// When threads cannot be started or reserved for.
    pub fn measure(&self, setting: &Setting, turn: u32) -> Result<SetOutcome, ReservationsError> {
        let once = |threads| self.once(setting, threads, None);
        let (reserved, ordinary) = if turn.is_multiple_of(2) {
            let reserved = once(Threads::Reserved)?;
            (reserved, once(Threads::Ordinary)?)
        } else {
            let ordinary = once(Threads::Ordinary)?;
            (once(Threads::Reserved)?, ordinary)
        };
        Ok(self.outcome(setting, reserved, ordinary))
    }

    /// Runs the set one way, beside hogs of its own or of a [neighbour](hogs::serve), by its socket.
    ///
    /// # Errors
    /// When threads cannot be started, or do not get their reservations; when the neighbour ends.
    pub fn once(
        &self,
        setting: &Setting,
        threads: Threads,
        neighbour: Option<&Path>,
    ) -> Result<RunOutcome, ReservationsError> {
        run(self, setting, threads, neighbour)
    }

    /// What it gave both ways.
    pub fn outcome(
        &self,
        setting: &Setting,
        reserved: RunOutcome,
        ordinary: RunOutcome,
    ) -> SetOutcome {
        SetOutcome {
            number: self.number,
            tasks: self.parameters(),
            utilisation_ppm: self.set.utilisation_ppm(),
            reserved_ppm: self.plan.total_bandwidth.ppm(),
            proven: self.plan.is_proven_under_global_edf(setting.cores),
            reserved,
            ordinary,
        }
    }

    /// Its tasks with their reservations.
    pub fn parameters(&self) -> Vec<TaskParameters> {
        let tasks = self.set.tasks().iter().zip(&self.plan.tasks);
        tasks
            .map(|(task, own)| TaskParameters {
                wcet_ns: task.wcet().get(),
                period_ns: task.period().get(),
                runtime_ns: own.reservation.runtime().get(),
                reservation_period_ns: own.reservation.period().get(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(sets: u32) -> Setting {
        Setting {
            sets,
            run_ns: 1_000_000_000,
            hogs_per_core: 1,
            seed: 6,
            cores: 2,
            admitted_ppm: 1_800_000,
        }
    }

    #[test]
    fn every_set_drawn_is_one_that_the_kernel_admits_and_each_job_fits_its_reservation() {
        let drawn = setting(150).draw().unwrap();
        assert_eq!(drawn.sets.len(), 150);
        for planned in &drawn.sets {
            assert!(planned.plan.total_bandwidth.ppm() <= 1_800_000);
            assert!(planned.set.utilisation_ppm() >= 599_000);
            for (task, own) in planned.set.tasks().iter().zip(&planned.plan.tasks) {
                assert!(own.reservation.runtime() > task.wcet());
                assert!(own.reservation.period() < task.period());
                assert!(own.response <= task.deadline());
            }
        }
        let proven = |planned: &&PlannedSet| planned.plan.is_proven_under_global_edf(2);
        let proven = drawn.sets.iter().filter(proven).count();
        assert!((1..150).contains(&proven), "{proven}");
    }

    #[test]
    fn a_machine_without_room_is_told_so() {
        let setting = Setting {
            admitted_ppm: 500_000,
            ..setting(1)
        };
        assert!(matches!(
            setting.draw(),
            Err(ReservationsError::TooLittle(_))
        ));
    }
}
