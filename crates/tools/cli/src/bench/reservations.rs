//! `takt bench reservations`: random task sets with and without CPU reservations.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::json;
use takt_bench::machine::Machine;
use takt_bench::reservations::account::Account;
use takt_bench::reservations::{
    Drawn, PlannedSet, ReservationsError, RunOutcome, SetOutcome, Setting, Threads, hogs,
};

use super::common::{BenchError, machine};

const HELP: &str = "\
After figure 6 of KubeDeadline: random task sets (RandFixedSum, 4 to 12 tasks, utilisation from 0.6
to what the kernel admits) run with reservations as `takt reserve plan --per-task` finds them, one
SCHED_DEADLINE reservation for each thread, and without, beside CPU hogs. Tasks and hogs observe
what the machine itself takes from them, and each missed deadline is held against that.

While it runs, the reservations come before everything else on the machine.

In containers the sets run apart: `plan` says which reservations their threads need, `set` runs one of
them, `hogs` is its neighbour, and `account` has the figures of all (make -C kubernetes bench-figure-6
does that in a cluster).

Examples:
  sudo takt bench reservations --sets 20 --seconds 1
  sudo takt bench reservations --json | jq '.rows[] | {name, jobs, missed, unexplained}'
  takt bench reservations plan --sets 5 --json | jq '.sets[] | {number, reserved_ppm}'";

/// What to measure.
#[derive(Debug, Args)]
#[command(after_help = HELP, args_conflicts_with_subcommands = true)]
pub struct Reservations {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    drawing: Drawing,
    #[command(flatten)]
    telling: Telling,
}

/// Which sets are drawn, and how they run.
#[derive(Debug, Args)]
struct Drawing {
    /// How many task sets
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sets: u32,
    /// How long each set runs, twice
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// CPU hogs beside them on each core
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=64))]
    hogs: u32,
    /// Other seeds draw other sets
    #[arg(long, value_name = "N", default_value_t = 6)]
    seed: u64,
}

impl Drawing {
    fn setting(&self) -> Result<Setting, BenchError> {
        if !(0.2..=600.0).contains(&self.seconds) {
            return Err(BenchError::RunTime(self.seconds));
        }
        let run_ns = (self.seconds * 1e9) as u64;
        Ok(Setting::here(self.sets, run_ns, self.hogs, self.seed)?)
    }
}

/// Where the account goes.
#[derive(Debug, Args)]
struct Telling {
    /// Folder for the report; without it ./out/bench-reservations-<date>
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report as JSON instead of a table
    #[arg(long)]
    json: bool,
}

impl Telling {
    fn tell(self, started: &str, account: &Account) -> Result<(), BenchError> {
        let date = started.trim_end_matches('Z').replace(':', "");
        let folder = self
            .out
            .unwrap_or_else(|| Path::new("out").join(format!("bench-reservations-{date}")));
        let written = account.write(&folder)?;
        if self.json {
            println!("{}", serde_json::to_string(account)?);
        } else {
            println!(
                "{}\n{}\n\nReport: {}\nFigures: {}",
                account.table(),
                account.finding(),
                written.html.display(),
                written.json.display()
            );
        }
        Ok(())
    }
}

/// The experiment in parts, for sets that run in containers.
#[derive(Debug, Subcommand)]
enum Part {
    /// The task sets that would run, and the reservation of each thread
    Plan(PlanOf),
    /// One task set, once
    Set(OneSet),
    /// CPU hogs beside one task set of another program
    Hogs(HogsBeside),
    /// The figures of sets that were run apart
    Account(AccountOf),
}

/// What to plan.
#[derive(Debug, Args)]
struct PlanOf {
    #[command(flatten)]
    drawing: Drawing,
    /// What may be reserved on all cores together, in cores; without it what the kernel admits
    #[arg(long, value_name = "CORES")]
    admitted: Option<f64>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// A plan, as `plan` prints it and `account` reads it.
#[derive(Debug, Deserialize, Serialize)]
struct Planned {
    setting: Setting,
    refused: u32,
    /// The numbers of the sets, and more about each, which is for others.
    sets: Vec<serde_json::Value>,
}

impl PlanOf {
    fn run(&self) -> Result<(), BenchError> {
        let mut setting = self.drawing.setting()?;
        if let Some(cores) = self.admitted {
            // What the machine does not have cannot be meant: the sets would say so one by one.
            let most = f64::from(setting.cores);
            setting.admitted_ppm = (cores.clamp(0.0, most) * 1e6) as u64;
        }
        let Drawn { sets, refused } = setting.draw()?;
        let rows = sets.iter().map(|planned| {
            let named = planned.set.tasks().iter().zip(planned.parameters());
            let tasks = named.map(|(task, of)| json!({"thread": task.name(), "runtime_ns": of.runtime_ns, "period_ns": of.reservation_period_ns}));
            json!({
                "number": planned.number,
                "utilisation_ppm": planned.set.utilisation_ppm(),
                "reserved_ppm": planned.plan.total_bandwidth.ppm(),
                "reservations": tasks.collect::<Vec<_>>(),
            })
        });
        let plan = Planned {
            setting,
            refused,
            sets: rows.collect(),
        };
        if self.json {
            println!("{}", serde_json::to_string(&plan)?);
        } else {
            println!("{:>6}{:>8}{:>8}{:>10}", "set", "tasks", "U", "reserved");
            for planned in &sets {
                println!(
                    "{:>6}{:>8}{:>8.2}{:>10.2}",
                    planned.number,
                    planned.set.tasks().len(),
                    planned.set.utilisation_ppm() as f64 / 1e6,
                    planned.plan.total_bandwidth.ppm() as f64 / 1e6
                );
            }
        }
        Ok(())
    }
}

/// How the threads of a set have their reservations.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum How {
    /// They give themselves what is planned
    Reserved,
    /// They wait to be given what is planned, by their names t1 and so on
    Held,
    /// They have none
    Ordinary,
}

/// Which set to run.
#[derive(Debug, Args)]
struct OneSet {
    /// The number of the set
    #[arg(value_name = "NUMBER")]
    number: u32,
    /// The setting, as `plan --json` has it
    #[arg(long, value_name = "JSON")]
    setting: String,
    /// Where the threads have their reservations from
    #[arg(long, value_enum, default_value_t = How::Reserved)]
    threads: How,
    /// The socket of its neighbour, `takt bench reservations hogs`; without it hogs of its own
    #[arg(long, value_name = "PATH")]
    neighbour: Option<PathBuf>,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

impl OneSet {
    fn run(&self) -> Result<(), BenchError> {
        let setting: Setting = serde_json::from_str(&self.setting)
            .map_err(|error| machine("read the setting")(error.into()))?;
        let threads = match self.threads {
            How::Reserved => Threads::Reserved,
            How::Held => Threads::Held,
            How::Ordinary => Threads::Ordinary,
        };
        let set = setting.set(self.number)?;
        let outcome = set.once(&setting, threads, self.neighbour.as_deref())?;
        if self.json {
            println!("{}", serde_json::to_string(&outcome)?);
        } else {
            println!("{}", counts(&outcome));
        }
        Ok(())
    }
}

/// Beside whom.
#[derive(Debug, Args)]
struct HogsBeside {
    /// The socket to make, which the set is told as its neighbour
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    count: u32,
}

/// Where the outcomes are.
#[derive(Debug, Args)]
struct AccountOf {
    /// What `plan --json` printed
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// The folder with reserved-NUMBER.json and ordinary-NUMBER.json, as `set --json` prints them
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    #[command(flatten)]
    telling: Telling,
}

impl AccountOf {
    fn run(self) -> Result<(), BenchError> {
        let plan = std::fs::read(&self.plan).map_err(machine("read the plan"))?;
        let Planned {
            setting,
            mut refused,
            ..
        } = serde_json::from_slice(&plan)
            .map_err(|error| machine("read the plan")(error.into()))?;
        let mut outcomes = Vec::new();
        for planned in setting.draw()?.sets {
            match self.of(&planned)? {
                Some([reserved, ordinary]) => {
                    outcomes.push(planned.outcome(&setting, reserved, ordinary));
                }
                None => refused += 1,
            }
        }
        let description = Machine::describe().map_err(machine("describe this machine"))?;
        let started = now();
        let account = Account::new(description, started.clone(), setting, refused, outcomes);
        self.telling.tell(&started, &account)
    }

    /// What a set gave with reservations and without, if it was run.
    fn of(&self, planned: &PlannedSet) -> Result<Option<[RunOutcome; 2]>, BenchError> {
        let read = |way: &str| -> Result<Option<RunOutcome>, BenchError> {
            let file = self.from.join(format!("{way}-{}.json", planned.number));
            match std::fs::read(&file) {
                Ok(text) => serde_json::from_slice(&text)
                    .map(Some)
                    .map_err(|error| machine("read an outcome")(error.into())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(machine("read an outcome")(error)),
            }
        };
        Ok(read("reserved")?
            .zip(read("ordinary")?)
            .map(|(reserved, ordinary)| [reserved, ordinary]))
    }
}

fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

impl Reservations {
    /// Measures, prints and reports.
    pub fn run(self) -> Result<(), BenchError> {
        match self.part {
            None => measure(&self.drawing, self.telling),
            Some(Part::Plan(plan)) => plan.run(),
            Some(Part::Set(set)) => set.run(),
            Some(Part::Hogs(hogs)) => Ok(hogs::serve(&hogs.socket, hogs.count)?),
            Some(Part::Account(account)) => account.run(),
        }
    }
}

/// All sets one after another, here.
fn measure(drawing: &Drawing, telling: Telling) -> Result<(), BenchError> {
    let setting = drawing.setting()?;
    let description = Machine::describe().map_err(machine("describe this machine"))?;
    let Drawn { sets, mut refused } = setting.draw()?;
    let started = now();
    if !telling.json {
        println!("Random task sets with and without CPU reservations");
        for (heading, value) in description.rows() {
            println!("  {heading:<19} {value}");
        }
        println!();
    }
    let mut outcomes = Vec::with_capacity(sets.len());
    for (turn, planned) in (0..).zip(&sets) {
        let outcome = planned.measure(&setting, turn);
        let told = match &outcome {
            Ok(outcome) => progress(outcome),
            Err(error) => format!("set {}: left out: {error}", planned.number),
        };
        eprintln!("[{}/{}] {told}", turn + 1, sets.len());
        match outcome {
            Ok(outcome) => outcomes.push(outcome),
            // Somebody else's reservations come and go.
            Err(ReservationsError::NoRoom(_))
                if turn + 1 < setting.sets || !outcomes.is_empty() =>
            {
                refused += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let account = Account::new(description, started.clone(), setting, refused, outcomes);
    telling.tell(&started, &account)
}

/// A set in a line.
fn progress(set: &SetOutcome) -> String {
    format!(
        "set {}: {} tasks, U {:.2}, reserved {:.2}{}: reserved {}; ordinary {}",
        set.number,
        set.tasks.len(),
        set.utilisation_ppm as f64 / 1e6,
        set.reserved_ppm as f64 / 1e6,
        if set.proven { ", proven" } else { "" },
        counts(&set.reserved),
        counts(&set.ordinary)
    )
}

fn counts(run: &RunOutcome) -> String {
    format!(
        "{} of {} missed, worst {:.2}",
        run.misses.len(),
        run.responses.len(),
        run.responses.iter().copied().fold(0.0, f64::max)
    )
}
