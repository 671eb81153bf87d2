//! What the whole experiment gave, and the figures told of it.

use serde::{Deserialize, Serialize};

use super::{RunOutcome, SetOutcome, Setting};
use crate::machine::Machine;

/// The experiment's account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// The command line.
    pub command: Vec<String>,
    /// The machine it ran on.
    pub machine: Machine,
    /// When it began, in UTC (RFC 3339).
    pub started: String,
    /// What it is made of.
    pub setting: Setting,
    /// Sets drawn and left out because the kernel would not admit their reservations.
    pub refused: u32,
    /// Figures over all sets; in this order they are told.
    pub rows: Vec<Row>,
    /// Every set with every response.
    pub sets: Vec<SetOutcome>,
}

/// The figures of one way to run, over some of the sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What is told.
    pub name: String,
    /// How many sets.
    pub sets: usize,
    /// How many jobs.
    pub jobs: usize,
    /// Jobs that missed their deadline.
    pub missed: usize,
    /// Those of them that what the machine took does not explain: see [`Miss`](super::Miss).
    pub unexplained: usize,
    /// Sets in which some deadline was missed.
    pub sets_with_misses: usize,
    /// Response over period: its median, what 99 % and 99.9 % stay within, and the largest.
    pub normalised: Option<[f64; 4]>,
    /// Time that the machine took, in millionths of all cores' time, as the threads observed it.
    pub taken_ppm: f64,
    /// The longest single stretch of it, in nanoseconds.
    pub longest_gap_ns: u64,
    /// Time stolen by the hypervisor as the kernel counts it, in millionths of all cores' time.
    pub steal_ppm: f64,
}

/// The names of [`Row::normalised`].
pub const NORMALISED: [&str; 4] = ["p50", "p99", "p99.9", "max"];

impl Account {
    /// Figures of `sets`, which ran in `setting`.
    pub fn new(
        machine: Machine,
        started: String,
        setting: Setting,
        refused: u32,
        sets: Vec<SetOutcome>,
    ) -> Self {
        let row = |name: &str, some: &dyn Fn(&&SetOutcome) -> bool, which: Which| {
            let runs: Vec<&RunOutcome> = sets.iter().filter(some).map(which).collect();
            Row::of(name, &runs, &setting)
        };
        let rows = vec![
            row("SCHED_DEADLINE", &|_| true, |set| &set.reserved),
            row("  sets proven under global EDF", &|set| set.proven, |set| {
                &set.reserved
            }),
            row("  sets only admitted", &|set| !set.proven, |set| {
                &set.reserved
            }),
            row("SCHED_OTHER", &|_| true, |set| &set.ordinary),
        ];
        Self {
            command: std::env::args().collect(),
            machine,
            started,
            setting,
            refused,
            rows,
            sets,
        }
    }

    /// All responses over their periods with reservations, ascending.
    pub fn reserved(&self) -> Vec<f64> {
        self.responses(|set| &set.reserved)
    }

    /// The same without reservations.
    pub fn ordinary(&self) -> Vec<f64> {
        self.responses(|set| &set.ordinary)
    }

    fn responses(&self, which: Which) -> Vec<f64> {
        let runs = self.sets.iter().map(which);
        sorted(runs.flat_map(|run| run.responses.iter().copied()))
    }

    /// What the experiment shows, in a sentence or two.
    pub fn finding(&self) -> String {
        let [reserved, proven, _, ordinary] = self.rows.as_slice() else {
            return String::new();
        };
        let missed = |row: &Row| match row.missed {
            0 => format!("none of {} deadlines was missed", row.jobs),
            1 => format!("1 of {} deadlines was missed", row.jobs),
            missed => format!("{missed} of {} deadlines were missed", row.jobs),
        };
        let beyond = |row: &Row| match (row.missed, row.unexplained) {
            (0, _) => String::new(),
            (_, 0) => ", each by no more than the machine itself took at that moment".to_owned(),
            (_, unexplained) => {
                format!(
                    ", {unexplained} of them by more than what the machine itself took explains"
                )
            }
        };
        format!(
            "With reservations {}{}; of the sets that are proven under global EDF, {} of {}, {}{}. Without reservations {}.",
            missed(reserved),
            beyond(reserved),
            proven.sets,
            reserved.sets,
            missed(proven),
            beyond(proven),
            missed(ordinary),
        )
    }

    /// The figures as a table for a terminal.
    pub fn table(&self) -> String {
        let heading = ["", "sets", "jobs", "missed", "unexplained"].map(str::to_owned);
        let mut lines: Vec<Vec<String>> = vec![
            heading
                .into_iter()
                .chain(NORMALISED.map(str::to_owned))
                .chain(["taken %", "longest ms", "stolen %"].map(str::to_owned))
                .collect(),
        ];
        lines.extend(self.rows.iter().filter(|row| row.sets > 0).map(Row::cells));
        let columns = lines[0].len();
        let width = |column: usize| {
            let cells = lines.iter().map(|line| line[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for line in &lines {
            let cells = line.iter().zip(&widths).enumerate();
            let cells: Vec<String> = cells
                .map(|(column, (cell, &width))| match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                })
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

type Which = fn(&SetOutcome) -> &RunOutcome;

impl Row {
    fn of(name: &str, runs: &[&RunOutcome], setting: &Setting) -> Self {
        let responses = sorted(runs.iter().flat_map(|run| run.responses.iter().copied()));
        let misses = || runs.iter().flat_map(|run| &run.misses);
        let time = setting.run_ns as f64 * f64::from(setting.cores) * runs.len().max(1) as f64;
        let share = |taken: fn(&RunOutcome) -> u64| {
            1e6 * runs.iter().map(|run| taken(run)).sum::<u64>() as f64 / time
        };
        Self {
            name: name.to_owned(),
            sets: runs.len(),
            jobs: responses.len(),
            missed: misses().count(),
            unexplained: misses().filter(|miss| !miss.is_explained()).count(),
            sets_with_misses: runs.iter().filter(|run| !run.misses.is_empty()).count(),
            normalised: (!responses.is_empty())
                .then(|| [0.5, 0.99, 0.999, 1.0].map(|share| at(&responses, share))),
            taken_ppm: share(|run| run.gaps_ns),
            longest_gap_ns: runs.iter().map(|run| run.longest_gap_ns).max().unwrap_or(0),
            steal_ppm: share(|run| run.steal_ns),
        }
    }

    /// The figures in the order of the table.
    pub fn cells(&self) -> Vec<String> {
        let counts = [self.sets, self.jobs, self.missed, self.unexplained];
        let counts = counts.map(|count| count.to_string());
        let normalised = match self.normalised {
            Some(values) => values.map(|value| format!("{value:.3}")),
            None => [const { String::new() }; 4],
        };
        std::iter::once(self.name.clone())
            .chain(counts)
            .chain(normalised)
            .chain([
                format!("{:.2}", self.taken_ppm / 1e4),
                format!("{:.2}", self.longest_gap_ns as f64 / 1e6),
                format!("{:.2}", self.steal_ppm / 1e4),
            ])
            .collect()
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// The value that this share of the sorted values does not exceed.
fn at(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::super::Miss;
    use super::*;

    fn account(reserved: RunOutcome, ordinary: RunOutcome) -> Account {
        let setting = Setting {
            sets: 2,
            run_ns: 1_000_000_000,
            hogs_per_core: 2,
            seed: 1,
            cores: 2,
            admitted_ppm: 1_800_000,
        };
        let set = |number, proven| SetOutcome {
            number,
            tasks: Vec::new(),
            utilisation_ppm: 1_000_000,
            reserved_ppm: 1_100_000,
            proven,
            reserved: reserved.clone(),
            ordinary: ordinary.clone(),
        };
        let machine = Machine::describe().unwrap();
        let sets = vec![set(0, true), set(1, false)];
        Account::new(machine, "2026-01-01T00:00:00Z".into(), setting, 3, sets)
    }

    fn run(responses: &[f64], misses: &[(u64, u64)]) -> RunOutcome {
        RunOutcome {
            responses: responses.to_vec(),
            misses: misses
                .iter()
                .map(|&(late_ns, taken_ns)| Miss {
                    task: 0,
                    release_ns: 0,
                    late_ns,
                    taken_ns,
                    repaying_ns: 0,
                })
                .collect(),
            gaps_ns: 20_000_000,
            longest_gap_ns: 3_000_000,
            steal_ns: 0,
        }
    }

    #[test]
    fn figures_count_sets_jobs_and_what_the_machine_does_not_explain() {
        let account = account(
            run(&[0.1, 0.4, 1.2], &[(5, 9)]),
            run(&[0.5, 3.0, 7.0], &[(5, 9), (10, 9)]),
        );
        let [all, proven, admitted, other] = account.rows.as_slice() else {
            panic!("four rows")
        };
        assert_eq!(
            (all.sets, all.jobs, all.missed, all.unexplained),
            (2, 6, 2, 0)
        );
        assert_eq!((proven.sets, admitted.sets), (1, 1));
        assert_eq!((other.missed, other.unexplained), (4, 2));
        assert_eq!(all.normalised, Some([0.4, 1.2, 1.2, 1.2]));
        assert!((all.taken_ppm - 10_000.0).abs() < 1e-6);
        let finding = account.finding();
        assert!(
            finding.starts_with("With reservations 2 of 6 deadlines were missed, each by no more"),
            "{finding}"
        );
        assert!(
            account
                .table()
                .lines()
                .nth(1)
                .unwrap()
                .starts_with("SCHED_DEADLINE")
        );
        let json = serde_json::to_string(&account).unwrap();
        assert_eq!(serde_json::from_str::<Account>(&json).unwrap(), account);
    }

    #[test]
    fn the_page_draws_both_curves_with_the_deadline() {
        let account = account(
            run(&[0.1, 0.4, 0.9], &[]),
            run(&[0.5, 3.0, 40.0], &[(1, 0)]),
        );
        let folder = std::env::temp_dir().join(format!("takt-t-account-{}", std::process::id()));
        let written = account.write(&folder).unwrap();
        let page = std::fs::read_to_string(&written.html).unwrap();
        for part in [
            "<svg",
            ">\ndeadline\n<",
            "SCHED_OTHER",
            "none of 6 deadlines was missed",
            "2 task sets",
            "3 more were left",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
