//! `takt reserve plan`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use takt_reserve::packing::Request;
use takt_reserve::render;
use takt_reserve::{
    Alternative, Bandwidth, Constraints, Nanos, OwnReservation, PerTaskPlan, Periods, PlanError,
    Reservation, TaskSet, plan, plan_per_task,
};

use super::check::{Shown, style};
use super::node::{Named, Node, OnNode, for_all};
use super::source::{Costs, Percent, Source};
use crate::failure::Failure;
use crate::output::{Form, print, print_json, write_text};

const HELP: &str = "\
The smallest reservation is the one with the least bandwidth m*Q/P among the periods tried; of
equals the one with the longer period, then with fewer cores.

  one reservation     for all tasks together, who share it by priority: one thread that serves them
                      all, a real-time group, or HCBS. One core unless --max-cores allows more.
  --per-task          one for each task: what SCHED_DEADLINE gives the threads of a program on a
                      kernel without patches

Several cores count on servers that never sleep: real-time groups, but not SCHED_DEADLINE or HCBS
unless a thread of the lowest priority always runs on each core.

With --node-cores, says whether a node keeps it beside the reservations of --neighbour: as its
admission does, by the test of Goossens, Funk and Baruah where threads run on any core. With cores
set apart (--backend deadline-partition) it says which reservation goes to which core: the widest
first, each onto the first core with room, the fullest or the emptiest (--order). The threads of a
reservation of several cores are on different ones. Where one finds no room another packing may
exist; it is said where none does.

The exit code is 0 if there is a reservation, and 6 if none of those allowed suffices or the node
does not guarantee it. In JSON,
times are in nanoseconds and bandwidths in millionths of a core.

Examples:
  takt reserve plan tasks.yaml
  takt reserve plan tasks.yaml --period 5ms,10ms --switch 20us --latency 100us
  takt reserve plan tasks.csv --max-cores 4 --core-bound 80%
  takt reserve plan tasks.yaml --per-task --node-cores 2 --neighbour 4.5ms/10ms,2ms/20ms
  takt reserve plan tasks.yaml --per-task --node-cores 2 --backend deadline-partition
  takt reserve plan tasks.yaml --per-task --json | jq '.tasks[].reservation'";

/// Finds the smallest reservation that tasks need.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Plan {
    #[command(flatten)]
    source: Source,
    /// A reservation for each task instead of one for all
    #[arg(long, conflicts_with_all = ["max_cores", "svg", "alternatives", "ascii"])]
    per_task: bool,
    /// With --per-task: let a reservation have a deadline before its period's end, where its task does
    ///
    /// It caps the task at its C in every T instead of every D, and takes as much of a core. A job that
    /// takes longer than its C costs the next one, too.
    #[arg(long, requires = "per_task", conflicts_with = "period")]
    deadlines: bool,
    /// Periods to choose from; without it, ten per decade up to the shortest deadline (per task: the longest possible)
    #[arg(long, value_name = "TIME", value_delimiter = ',')]
    period: Vec<Nanos>,
    /// No shorter period is chosen while deadlines allow it
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1ms",
        conflicts_with = "period"
    )]
    shortest: Nanos,
    /// The most cores that the reservation may have
    #[arg(long, value_name = "N", default_value_t = 1)]
    max_cores: u32,
    /// The most of a core that one reservation may take
    #[arg(long, value_name = "PERCENT", default_value = "90%")]
    core_bound: Percent,
    /// Runtimes are multiples of this, and so are periods that are not listed
    #[arg(long, value_name = "TIME", default_value = "1us")]
    granularity: Nanos,
    #[command(flatten)]
    costs: Costs,
    #[command(flatten)]
    node: Node,
    /// How many other reservations to show
    #[arg(long, value_name = "N", default_value_t = 5)]
    alternatives: usize,
    /// Write the picture of supply and demand too; `-` writes it to standard output, alone
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Use only characters of ASCII
    #[arg(long)]
    ascii: bool,
    #[command(flatten)]
    form: Form,
}

#[derive(Serialize)]
struct Planned<'a> {
    #[serde(flatten)]
    verdict: Shown<'a>,
    alternatives: &'a [Alternative],
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a OnNode>,
}

#[derive(Serialize)]
struct PlannedPerTask<'a> {
    #[serde(flatten)]
    plan: &'a PerTaskPlan,
    /// On how many cores of one root domain they are proven to be kept.
    global_edf_cores: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a OnNode>,
}

impl Plan {
    pub fn run(self) -> Result<(), Failure> {
        let set = self.source.read()?;
        match self.per_task {
            true => self.run_per_task(&set),
            false => self.run_for_all(&set),
        }
    }

    fn constraints(&self) -> Constraints {
        Constraints {
            periods: match self.period.is_empty() {
                true => Periods::Auto {
                    shortest: self.shortest,
                },
                false => Periods::Listed(self.period.clone()),
            },
            max_cores: self.max_cores,
            granularity: self.granularity,
            core_bound: Bandwidth::from_ppm(self.core_bound.0),
            overheads: self.costs.overheads(),
            deadlines: self.deadlines,
        }
    }

    fn run_for_all(&self, set: &TaskSet) -> Result<(), Failure> {
        let found = plan(set, &self.constraints()).map_err(refused)?;
        let reservation = &found.reservation;
        let node = self.node.holds(for_all(reservation));
        if let Some(path) = &self.svg {
            write_text(path, &render::supply_and_demand(&found.verdict))?;
        }
        if self.form.json {
            print_json(&Planned {
                verdict: Shown::from(&found.verdict),
                alternatives: found.alternatives.get(1..).unwrap_or_default(),
                node: node.as_ref(),
            })?;
        } else if self.svg.as_deref() != Some("-".as_ref()) {
            print(&format!(
                "{}\n{}\n{}{}\n",
                render::plan_table(&found, self.alternatives),
                render::chart(&found.verdict, style(self.ascii)),
                line(node.as_ref()),
                claim(reservation)
            ))?;
        }
        if reservation.cores() > 1 {
            eprintln!(
                "takt: several cores hold only while no server sleeps with work to come, as SCHED_DEADLINE and HCBS servers do: \
                 plan --per-task for those, or keep a thread of the lowest priority running on each core"
            );
        }
        if self.max_cores > 1 && set.has_blocking() {
            eprintln!(
                "takt: one core alone was tried, whatever --max-cores allows: for how long tasks keep each other waiting (`blocking`) is \
                 bounded on one core only"
            );
        }
        node.map_or(Ok(()), |node| node.verdict())
    }

    fn run_per_task(&self, set: &TaskSet) -> Result<(), Failure> {
        let found = plan_per_task(set, &self.constraints()).map_err(refused)?;
        let proven = (1..=Reservation::MAX_CORES).find(|&m| found.is_proven_under_global_edf(m));
        let node = self.node.holds(for_each(&found));
        let verdict = || node.as_ref().map_or(Ok(()), OnNode::verdict);
        if self.form.json {
            print_json(&PlannedPerTask {
                plan: &found,
                global_edf_cores: proven,
                node: node.as_ref(),
            })?;
            return verdict();
        }
        let alone = match proven {
            Some(cores) => format!(
                "global EDF, as Linux schedules them unless cores are set apart, is proven to keep all of them, and nothing else, on {}; \
                 --node-cores and --neighbour ask about a node",
                match cores {
                    1 => "one core or more".to_owned(),
                    _ => format!("{cores} cores or more"),
                }
            ),
            None => {
                "global EDF is proven to keep all of them on no number of cores: set cores apart"
                    .to_owned()
            }
        };
        let told = node.as_ref().map_or(alone, |node| node.shown());
        let claims = claims_of_tasks(&found.tasks);
        print(&format!(
            "{}{told}\nKubernetes:\n{claims}",
            render::per_task_table(&found)
        ))?;
        verdict()
    }
}

/// The reservation of each task, as it is asked of a node.
fn for_each(plan: &PerTaskPlan) -> Vec<Named> {
    let tasks = plan.tasks.iter().zip(plan.servers());
    let named = tasks.map(|(own, server)| Named {
        name: own.task.clone(),
        request: Request { server, threads: 1 },
    });
    named.collect()
}

/// What the node does, as a line of its own; nothing if none was named.
fn line(node: Option<&OnNode>) -> String {
    node.map(|node| format!("{}\n", node.shown()))
        .unwrap_or_default()
}

fn refused(error: PlanError) -> Failure {
    match error {
        PlanError::Utilisation { .. } => Failure::Insufficient(format!(
            "{error}; --max-cores allows more, --per-task plans one reservation for each task"
        )),
        PlanError::NoneSuffices { .. } | PlanError::NoneForTask { .. } => {
            Failure::Insufficient(error.to_string())
        }
        _ => Failure::Other(error.to_string()),
    }
}

/// How to ask Kubernetes for it.
fn claim(reservation: &Reservation) -> String {
    let cores = match reservation.cores() {
        1 => String::new(),
        cores => format!(" --cores {cores}"),
    };
    format!("Kubernetes: {}{cores}", claim_command(reservation))
}

/// How to ask Kubernetes for the reservation of each task: claims of different names.
fn claims_of_tasks(tasks: &[OwnReservation]) -> String {
    let mut names = BTreeSet::new();
    let claims = tasks.iter().map(|own| {
        let deadline = match own.deadline {
            Some(deadline) => format!(" --deadline {deadline}"),
            None => String::new(),
        };
        let name = label(&own.task, &mut names);
        let command = claim_command(&own.reservation);
        format!("  {command}{deadline} --name {name}\n")
    });
    claims.collect()
}

/// A name that Kubernetes takes (a label of RFC 1123), as near to the task's as that allows, and no other task's.
fn label(task: &str, taken: &mut BTreeSet<String>) -> String {
    let plain = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_alphanumeric() => c,
        _ => '-',
    };
    // Room for a number.
    let name: String = task.chars().map(plain).take(50).collect();
    let name = match name.trim_matches('-') {
        "" => "task",
        name => name,
    };
    let numbered = (2..).map(|n| format!("{name}-{n}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    let free = names.find(|name| !taken.contains(name)).unwrap_or_default();
    taken.insert(free.clone());
    free
}

fn claim_command(reservation: &Reservation) -> String {
    format!(
        "takt reserve claim --runtime {} --period {}",
        reservation.runtime(),
        reservation.period()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_get_names_that_kubernetes_takes_and_no_two_the_same() {
        let mut taken = BTreeSet::new();
        let mut name = |task| label(task, &mut taken);
        assert_eq!(name("control"), "control");
        assert_eq!(name("Control"), "control-2");
        assert_eq!(name("control-2"), "control-2-2");
        assert_eq!(name("lage regelung/x"), "lage-regelung-x");
        assert_eq!(name("\u{fc}"), "task");
        assert_eq!(name("-_-"), "task-2");
        assert!(name(&"x".repeat(500)).len() < 63);
    }
}
