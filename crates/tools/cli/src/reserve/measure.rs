//! `takt reserve measure`.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use takt_reserve::input::to_yaml;
use takt_reserve::measure::{Activation, Estimate, MeasureError, estimate, jobs};
use takt_reserve::{Nanos, TaskSet};

use super::watch::{Counted, Watched, follow, until_told, watch};
use crate::failure::Failure;
use crate::output::{Align, Form, print, print_json, table, write_text};

const HELP: &str = "\
Runs a program, or follows one that runs already (--process), and watches the context switches of all
its threads by perf events of the kernel. What is started here needs no root; following does, or
CAP_PERFMON, and does nothing to the program. A job is what a thread runs between two sleeps; C is the longest job seen plus a
margin, T the shortest distance between two jobs that must be expected. The program's output is its
own: give it a file with --output to have the task set for `takt reserve plan`.

What cannot be seen:
  - the job that did not happen meanwhile: measuring bounds nothing, so drive the program hard
  - when a thread was woken: a job begins when the thread gets a core, which on a busy machine is
    later and makes the distance between jobs vary
  - where a job ends in the program's own mind: a thread that waits in the middle of a job seems to
    have two, unless --join says up to what length a sleep belongs to it; one that polls has none
  - interrupts and time stolen by a hypervisor, which count as the job's: measure on a quiet machine
  - deadlines, priorities, and locks that tasks wait for

Examples:
  takt reserve measure --seconds 20 -- ./controller --config robot.toml
  takt reserve measure --seconds 60 --only control --join 200us --output tasks.yaml -- ./controller
  takt reserve measure --seconds 60 --process \"$(pgrep -x controller)\" --output tasks.yaml
  takt reserve measure --json -- ./replay log.bin | jq '.threads[] | {name, task}'";

/// Estimates C and T of a program's threads by watching it run.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Measure {
    /// End the program, or end following it, after this time; without it, it ends by itself or with Ctrl-C
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Follow this process, and what it has started or starts, instead of starting a program; several with commas
    #[arg(
        long,
        value_name = "PID",
        value_delimiter = ',',
        conflicts_with = "command",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    process: Vec<u32>,
    #[command(flatten)]
    counted: Counted,
    /// Write the task set to this file, in YAML
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    form: Form,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "process", value_name = "CMD")]
    command: Vec<String>,
}

/// What was found.
#[derive(Serialize)]
struct Measured {
    command: Vec<String>,
    processes: Vec<u32>,
    watched_ns: u64,
    lost_records: u64,
    threads: Vec<Found>,
    left_out: Vec<LeftOut>,
}

/// A thread that is a task.
#[derive(Serialize)]
struct Found {
    thread: u32,
    name: String,
    #[serde(flatten)]
    estimate: Estimate,
}

/// A thread that is none.
#[derive(Serialize)]
struct LeftOut {
    thread: u32,
    name: String,
    reason: String,
}

impl Measure {
    pub fn run(self) -> Result<(), Failure> {
        let stop = until_told()?;
        let limit = self.seconds.map(|n| Duration::from_secs(n.into()));
        let watched = match self.process.is_empty() {
            true => watch(&self.command, limit, &stop),
            false => follow(&self.process, limit, &stop),
        };
        let watched = watched.map_err(|error| Failure::Other(error.to_string()))?;
        self.tell_doubts(&watched);
        let measured = self.judge(watched)?;
        if let Some(path) = &self.output {
            let tasks = measured.threads.iter();
            let tasks = tasks.map(|found| found.estimate.task.clone()).collect();
            let set = TaskSet::new(tasks).map_err(|error| Failure::Other(error.to_string()))?;
            write_text(path, &to_yaml(&set))?;
        }
        match self.form.json {
            true => print_json(&measured),
            false => print(&tell(&measured)),
        }
    }

    fn tell_doubts(&self, watched: &Watched) {
        if let Some(status) = watched.status
            && !watched.stopped
            && !status.success()
        {
            eprintln!(
                "takt: {} ended with {status}: what it did may not be what it does",
                self.subject()
            );
        }
        if watched.lost > 0 {
            eprintln!(
                "takt: {} records were lost, so that some jobs look shorter or longer than they were: measure again with less load",
                watched.lost
            );
        }
    }

    /// What is measured, for people.
    fn subject(&self) -> String {
        match &self.command[..] {
            [program, ..] => program.clone(),
            [] => {
                let numbers: Vec<String> = self.process.iter().map(u32::to_string).collect();
                format!("process {}", numbers.join(", "))
            }
        }
    }

    /// Every thread that was asked for, as a task or with the reason why it is none.
    fn judge(&self, watched: Watched) -> Result<Measured, Failure> {
        let margin = self.counted.margin()?;
        let mut names = Names::default();
        let (mut threads, mut left_out) = (Vec::new(), Vec::new());
        let seen = watched.threads.into_iter();
        for thread in seen.filter(|thread| self.counted.wants(thread)) {
            let name = names.unique(&thread.name, thread.id);
            match estimate(&name, &jobs(&thread.switches, self.counted.join), margin) {
                Ok(estimate) => threads.push(Found {
                    thread: thread.id,
                    name,
                    estimate,
                }),
                Err(error) => left_out.push(LeftOut {
                    thread: thread.id,
                    name,
                    reason: reason(&error),
                }),
            }
        }
        if threads.is_empty() {
            const MOST: usize = 5;
            let mut reasons: Vec<String> = left_out
                .iter()
                .take(MOST)
                .map(|left| format!("{}: {}", left.name, left.reason))
                .collect();
            if left_out.len() > MOST {
                reasons.push(format!("{} more", left_out.len() - MOST));
            }
            if reasons.is_empty() {
                reasons.push("none was seen of those asked for".to_owned());
            }
            return Err(Failure::Other(format!(
                "no thread of {} is a task; watch it for longer while it works as it will, or --join what belongs together\n  {}",
                self.subject(),
                reasons.join("\n  ")
            )));
        }
        Ok(Measured {
            command: self.command.clone(),
            processes: self.process.clone(),
            watched_ns: u64::try_from(watched.watched.as_nanos()).unwrap_or(u64::MAX),
            lost_records: watched.lost,
            threads,
            left_out,
        })
    }
}

/// Why a thread is no task, with the values at fault.
fn reason(error: &MeasureError) -> String {
    match error {
        MeasureError::Task(task) => format!("{error}: {task}"),
        error => error.to_string(),
    }
}

/// Names of tasks, none twice.
#[derive(Default)]
struct Names(HashSet<String>);

impl Names {
    /// What the thread is called, with its number where another one is called the same.
    fn unique(&mut self, name: &str, thread: u32) -> String {
        let printable: String = name.chars().filter(|c| !c.is_control()).collect();
        let mut unique = match printable.trim() {
            "" => "thread".to_owned(),
            text => text.to_owned(),
        };
        if !self.0.insert(unique.clone()) {
            unique = format!("{unique}-{thread}");
            self.0.insert(unique.clone());
        }
        unique
    }
}

fn tell(measured: &Measured) -> String {
    let columns = [
        ("TASK", Align::Left),
        ("JOBS", Align::Right),
        ("CPU P50", Align::Right),
        ("P99", Align::Right),
        ("LONGEST", Align::Right),
        ("PERIOD", Align::Right),
        ("JITTER", Align::Right),
        ("SHORTEST", Align::Right),
        ("C", Align::Right),
        ("T", Align::Right),
        ("J", Align::Right),
    ];
    let rows = measured.threads.iter().map(|found| {
        let Estimate { task, .. } = &found.estimate;
        let (period, jitter) = match found.estimate.activation {
            Activation::Periodic { period, jitter } => (short(period), short(jitter)),
            Activation::Sporadic => ("none".to_owned(), "-".to_owned()),
        };
        vec![
            found.name.clone(),
            found.estimate.jobs.to_string(),
            short(found.estimate.cpu_p50),
            short(found.estimate.cpu_p99),
            short(found.estimate.cpu_max),
            period,
            jitter,
            short(found.estimate.min_interarrival),
            short(task.wcet()),
            short(task.period()),
            short(task.jitter()),
        ]
    });
    let mut text = table(&columns, rows.collect());
    for found in &measured.threads {
        for note in &found.estimate.notes {
            text.push_str(&format!("\n{}: {note}", found.name));
        }
    }
    for left in &measured.left_out {
        text.push_str(&format!("\n{} is left out: {}", left.name, left.reason));
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// A time in four digits or so: no measurement has more.
pub fn short(time: Nanos) -> String {
    let unit = 10u64.pow(time.get().max(1).ilog10().saturating_sub(3));
    Nanos::new(time.get() / unit * unit).to_string()
}
