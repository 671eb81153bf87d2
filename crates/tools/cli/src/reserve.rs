//! `takt reserve`: which CPU reservation tasks need, and how to ask a cluster for it. No daemon is asked.
//!
//! The analysis is `takt-reserve`; what it promises and what not is in `docs/concepts/reservation-analysis.md`.

mod check;
mod claim;
mod cluster;
mod measure;
mod node;
mod plan;
mod source;
mod status;
mod tune;
mod watch;

use clap::{Args, Subcommand};

use crate::failure::Failure;

const HELP: &str = "\
A reservation is CPU time Q in every period P on each of m cores. Tasks are read from YAML or CSV:
  tasks:
    - {name: control, wcet: 2ms, period: 10ms, deadline: 8ms, priority: 90}
    - {name: camera, wcet: 7ms, period: 50ms, priority: 50}
or, with the same fields, name,wcet,period,deadline,priority. `wcet` (C) is the longest CPU time of
a job, `period` (T) the shortest time between the arrivals of two, `deadline` (D), counted from the
arrival, the period if left out, `priority` 1 to 99 (larger is more urgent; without any, the shorter
deadline is the more urgent one). Where there is more to say:
  jitter (J)    up to how long after its arrival a job is released: a late timer, a message
  blocking (B)  the longest section of a less urgent task that this one may have to wait for; one
                core, and not with --per-task
  offset (O)    its jobs arrive exactly at O, O+T, O+2T on a clock shared by all tasks with an
                offset; of use on one core
Units are ns, us, ms and s. What the answers rest on: docs/concepts/reservation-analysis.md.

Examples:
  takt reserve measure --seconds 20 --output tasks.yaml -- ./controller
  takt reserve plan tasks.yaml
  takt reserve check tasks.yaml --runtime 3500us --period 10ms --svg supply.svg
  takt reserve claim --runtime 2ms --period 10ms --cores 2 | kubectl apply -f -
  takt reserve tune --process \"$(pgrep -x controller)\"
  takt reserve status";

/// Finds, checks and asks for CPU reservations.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Reserve {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Find the smallest reservation that tasks need
    Plan(plan::Plan),
    /// Say whether a reservation suffices, and why
    Check(check::Check),
    /// Estimate C and T of a program's threads by watching it run
    Measure(measure::Measure),
    /// Compare what a running program's threads have reserved with what they need, and set it
    Tune(tune::Tune),
    /// Write the Kubernetes manifest of a reservation
    Claim(claim::Claim),
    /// Say who holds which reservation of a cluster, what is free, and where a claim would fit
    Status(status::Status),
}

impl Reserve {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Plan(plan) => plan.run(),
            Action::Check(check) => check.run(),
            Action::Measure(measure) => measure.run(),
            Action::Tune(tune) => tune.run(),
            Action::Claim(claim) => claim.run(),
            Action::Status(status) => status.run(),
        }
    }
}
