//! `takt bench reservations`: random task sets with and without CPU reservations.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use takt_bench::machine::Machine;
use takt_bench::reservations::account::Account;
use takt_bench::reservations::{Drawn, ReservationsError, SetOutcome, Setting};

use super::common::{BenchError, machine};

const HELP: &str = "\
After figure 6 of KubeDeadline: random task sets (RandFixedSum, 4 to 12 tasks, utilisation from 0.6
to what the kernel admits) run with reservations as `takt reserve plan --per-task` finds them, one
SCHED_DEADLINE reservation for each thread, and without, beside CPU hogs. Tasks and hogs observe
what the machine itself takes from them, and each missed deadline is held against that.

While it runs, the reservations come before everything else on the machine.

Examples:
  sudo takt bench reservations --sets 20 --seconds 1
  sudo takt bench reservations --json | jq '.rows[] | {name, jobs, missed, unexplained}'";

/// What to measure.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Reservations {
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
    /// Folder for the report; without it ./out/bench-reservations-<date>
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report as JSON instead of a table
    #[arg(long)]
    json: bool,
}

impl Reservations {
    /// Measures, prints and reports.
    pub fn run(self) -> Result<(), BenchError> {
        if !(0.2..=600.0).contains(&self.seconds) {
            return Err(BenchError::RunTime(self.seconds));
        }
        let run_ns = (self.seconds * 1e9) as u64;
        let setting = Setting::here(self.sets, run_ns, self.hogs, self.seed)?;
        let description = Machine::describe().map_err(machine("describe this machine"))?;
        let Drawn { sets, mut refused } = setting.draw()?;
        let started = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        if !self.json {
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
                    if turn + 1 < self.sets || !outcomes.is_empty() =>
                {
                    refused += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let date = started.trim_end_matches('Z').replace(':', "");
        let account = Account::new(description, started, setting, refused, outcomes);
        let folder = self
            .out
            .unwrap_or_else(|| Path::new("out").join(format!("bench-reservations-{date}")));
        let written = account.write(&folder)?;
        if self.json {
            println!("{}", serde_json::to_string(&account)?);
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

/// A set in a line.
fn progress(set: &SetOutcome) -> String {
    let worst = |responses: &[f64]| responses.iter().copied().fold(0.0, f64::max);
    let run = |name: &str, run: &takt_bench::reservations::RunOutcome| {
        format!(
            "{name} {} of {} missed, worst {:.2}",
            run.misses.len(),
            run.responses.len(),
            worst(&run.responses)
        )
    };
    format!(
        "set {}: {} tasks, U {:.2}, reserved {:.2}{}: {}; {}",
        set.number,
        set.tasks.len(),
        set.utilisation_ppm as f64 / 1e6,
        set.reserved_ppm as f64 / 1e6,
        if set.proven { ", proven" } else { "" },
        run("reserved", &set.reserved),
        run("ordinary", &set.ordinary)
    )
}
