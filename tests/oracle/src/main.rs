//! Makes cases for the virtual machine and compares what came out with `takt-schedule`.

#![forbid(unsafe_code)]

mod compare;
mod make;
mod model;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use takt_oracle::{Case, Kind, Observed};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write random cases
    Make {
        /// Where the random numbers begin
        #[arg(long)]
        seed: u64,
        /// How many cases of each kind
        #[arg(long)]
        cases: usize,
        /// The guest's `tc` knows `max-sdu` (iproute2 6.2)
        #[arg(long)]
        max_sdu: bool,
        /// The guest's kernel keeps frames within a last entry that the cycle cuts (before Linux 6.3)
        #[arg(long)]
        cut: bool,
        /// File to write
        file: PathBuf,
    },
    /// Compare what came out
    Compare {
        /// The cases
        cases: PathBuf,
        /// What the guest wrote
        results: PathBuf,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Make {
            seed,
            cases,
            max_sdu,
            cut,
            file,
        } => {
            let cases = make::cases(seed, cases, make::Guest { max_sdu, cut });
            let text = serde_json::to_vec(&cases).expect("JSON");
            fs::write(file, text).expect("written");
            ExitCode::SUCCESS
        }
        Command::Compare { cases, results } => {
            let cases: Vec<Case> =
                serde_json::from_slice(&fs::read(cases).expect("the cases")).expect("cases");
            let text = fs::read_to_string(results).expect("the results");
            let observed: Vec<Observed> = text
                .lines()
                .map(|line| serde_json::from_str(line).expect("a result"))
                .collect();
            report(&cases, &observed)
        }
    }
}

/// What the cases of one kind came to.
#[derive(Default)]
struct Tally {
    cases: usize,
    frames: usize,
    left: usize,
    disturbed: usize,
    differences: usize,
    latest_ns: i64,
}

fn report(cases: &[Case], observed: &[Observed]) -> ExitCode {
    if observed.len() != cases.len() {
        println!("{} of {} cases have a result", observed.len(), cases.len());
        return ExitCode::FAILURE;
    }
    let mirrored = compare::lower_class_first(&observed[0]);
    println!(
        "this kernel serves {} class first among open gates{}",
        if mirrored {
            "the lowest"
        } else {
            "the highest"
        },
        if mirrored {
            " (Linux before 6.3): classes are mirrored for the comparison of order"
        } else {
            ""
        }
    );
    let mut tallies: BTreeMap<Kind, Tally> = BTreeMap::new();
    for (number, (case, observed)) in cases.iter().zip(observed).enumerate() {
        let tally = tallies.entry(case.kind).or_default();
        tally.cases += 1;
        if compare::disturbed(case, observed) {
            tally.disturbed += 1;
            continue;
        }
        let outcome = compare::compare(case, observed, mirrored);
        tally.frames += case.frames.len();
        tally.left += observed.captured.len();
        tally.differences += outcome.differences.len();
        tally.latest_ns = tally.latest_ns.max(outcome.latest_ns);
        for difference in outcome.differences.iter().take(5) {
            println!("case {number} ({:?}): {difference}", case.kind);
        }
    }
    println!(
        "{:<16} {:>6} {:>10} {:>8} {:>8} {:>12} {:>18}",
        "kind", "cases", "disturbed", "frames", "left", "differences", "kernel behind, us"
    );
    for (kind, tally) in &tallies {
        println!(
            "{:<16} {:>6} {:>10} {:>8} {:>8} {:>12} {:>18.1}",
            format!("{kind:?}"),
            tally.cases,
            tally.disturbed,
            tally.frames,
            tally.left,
            tally.differences,
            tally.latest_ns as f64 / 1e3
        );
    }
    let too_many = |tally: &Tally| tally.disturbed > 1 && 3 * tally.disturbed > tally.cases;
    if tallies.values().any(too_many) {
        println!("too many cases were disturbed by the guest's own work to tell");
        return ExitCode::FAILURE;
    }
    match tallies
        .values()
        .map(|tally| tally.differences)
        .sum::<usize>()
    {
        0 => ExitCode::SUCCESS,
        differences => {
            println!("{differences} differences");
            ExitCode::FAILURE
        }
    }
}
