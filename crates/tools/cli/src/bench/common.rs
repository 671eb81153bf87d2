//! What all measurements share: options, hosts, cores, the tables and the report.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use takt_bench::awake::{Awake, usable_cores};
use takt_bench::experiment::{Experiment, ExperimentError, Variant};
use takt_bench::outcome::Outcome;
use takt_bench::peers::programs::Programs;
use takt_bench::peers::{Pair, PeerError};
use takt_bench::report::{Report, ReportError, Written};
use takt_bench::reservations::ReservationsError;
use takt_bench::takt::TaktError;
use takt_bench::text;
use takt_lab::{Host, Lab, LabConfig, LabError, Wiring};

use crate::failure::Failure;
use crate::preload;

/// What every measurement takes.
#[derive(Debug, Args)]
pub struct Common {
    /// How often each variant runs; figures are medians over the rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Folder for the report; without it ./out/bench-<name>-<date>
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the report as JSON instead of tables
    #[arg(long)]
    pub json: bool,
    /// Run only variants whose names contain one of these texts
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The program takt-bench-peers (`make bench` builds it); without it where it is usually found
    #[arg(long, value_name = "PATH", env = "TAKT_BENCH_PEERS")]
    pub peers: Option<PathBuf>,
    /// Neither tables nor progress are printed but by the measurement itself.
    #[arg(skip)]
    pub quiet: bool,
}

/// How long to send, as it is written: an hour at most.
///
/// # Errors
/// [`BenchError::Seconds`].
pub fn seconds(written: f64) -> Result<Duration, BenchError> {
    let seconds = Duration::try_from_secs_f64(written).ok();
    let seconds = seconds.filter(|time| !time.is_zero() && *time <= Duration::from_secs(3600));
    seconds.ok_or(BenchError::Seconds(written))
}

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Hosts and AF_XDP need privileges.
    #[error("cannot make hosts in network namespaces as this user: run it as root (sudo {0})")]
    NotRoot(String),
    /// There is nowhere for two sides to run at the same time.
    #[error("cannot measure on {0} core: two sides need one each; allow this process two cores")]
    Cores(usize),
    /// The preload is measured as users have it.
    #[error("{0}; in a source tree: cargo build --release -p takt-preload")]
    NoPreload(String),
    /// A datapath was asked for whose plugin is not there.
    #[error("{0}")]
    NoPlugin(String),
    /// What Takt promises did not hold.
    #[error("{0}")]
    Promise(&'static str),
    /// What was to be received in time was not.
    #[error("{0}")]
    Budget(String),
    /// A duration that is none.
    #[error("cannot send for {0} seconds: use more than 0 and at most 3600")]
    Seconds(f64),
    /// A duration that gives no task set its time.
    #[error("cannot run each task set for {0} seconds: use 0.2 to 600")]
    RunTime(f64),
    /// Task sets cannot be run.
    #[error(transparent)]
    Reservations(#[from] ReservationsError),
    /// A filter left nothing.
    #[error("no variant of {experiment:?} is called like {only:?}; there are: {names}")]
    NoVariant {
        /// The experiment.
        experiment: String,
        /// What was asked for.
        only: String,
        /// What there is.
        names: String,
    },
    /// Every run failed.
    #[error("no variant ran; the first reason is: {0}")]
    NothingRan(String),
    /// The machine cannot be asked or prepared.
    #[error("cannot {action}: {source}")]
    Machine {
        /// What was being done.
        action: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The hosts cannot be made.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// Takt itself could not be measured.
    #[error(transparent)]
    Takt(#[from] TaktError),
    /// The peers' program was named and is not there.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// An experiment makes no sense.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// The report cannot be written.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The report cannot be printed.
    #[error("cannot print the report: {0}")]
    Print(#[from] serde_json::Error),
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        Self::Other(error.to_string())
    }
}

/// Two cores, one for each side.
#[derive(Clone, Copy, Debug)]
pub struct TwoCores {
    /// Of the side that sends, and holds the clock.
    pub near: usize,
    /// Of the other.
    pub far: usize,
}

impl TwoCores {
    /// The first two that this process may use.
    pub fn choose() -> Result<Self, BenchError> {
        let cores = usable_cores().map_err(machine("ask which cores may be used"))?;
        match cores[..] {
            [near, far, ..] => Ok(Self { near, far }),
            _ => Err(BenchError::Cores(cores.len())),
        }
    }

    /// The first that this process may use, for both.
    pub fn one() -> Result<Self, BenchError> {
        let cores = usable_cores().map_err(machine("ask which cores may be used"))?;
        let only = cores.first().copied().ok_or(BenchError::Cores(0))?;
        Ok(Self {
            near: only,
            far: only,
        })
    }

    /// Two hosts, or one twice, with a core for each side.
    pub fn pair<'a>(self, near: &'a Host, far: &'a Host) -> Pair<'a> {
        Pair {
            near,
            far,
            near_core: self.near,
            far_core: self.far,
        }
    }
}

/// Hosts at a switch that loses so many of a million packets; without one, on a cable.
pub fn lossy(ppm: Option<u32>) -> LabConfig {
    LabConfig {
        wiring: ppm.map_or(Wiring::default(), |_| Wiring::Bridge),
        loss_ppm: ppm,
        ..LabConfig::default()
    }
}

/// What others are compared with: TCP where the usual one does not repair.
pub fn baseline(ppm: Option<u32>, usual: &str) -> String {
    match ppm {
        Some(_) => "TCP".into(),
        None => usual.into(),
    }
}

/// As figures tell it.
pub fn of_loss(ppm: Option<u32>) -> String {
    ppm.map_or_else(String::new, |ppm| {
        format!(
            ", {} % of the packets lost by a switch",
            f64::from(ppm) / 10_000.0
        )
    })
}

/// Where packets may be lost, only what repairs that has figures.
pub fn repairs(variants: Vec<Variant<'_>>, ppm: Option<u32>) -> Vec<Variant<'_>> {
    let repairs = |variant: &Variant<'_>| {
        let mut words = ["TCP", "reliable", "zenoh", "ZeroMQ", "Aeron"].iter();
        ppm.is_none() || words.any(|word| variant.name.contains(word))
    };
    variants.into_iter().filter(repairs).collect()
}

/// Makes sure that programs can be run under the preload.
pub fn check_preload() -> Result<(), BenchError> {
    let found = preload::library().map(drop);
    found.map_err(|error| BenchError::NoPreload(error.to_string()))
}

/// Makes hosts, after making sure that this process may.
pub fn hosts(config: &LabConfig) -> Result<Lab, BenchError> {
    if !takt_bench::machine::is_root() {
        let words: Vec<String> = std::env::args().collect();
        return Err(BenchError::NotRoot(words.join(" ")));
    }
    Ok(Lab::scratch(config)?)
}

/// What else cores do while an experiment runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// As the machine is.
    MayHalt,
    /// A spinner of the idle class on each core.
    KeptAwake,
    /// A spinner of the usual class on each core.
    Busy,
}

impl Idle {
    /// Both, in the order in which they are told.
    pub const BOTH: [Self; 2] = [Self::MayHalt, Self::KeptAwake];

    /// How it is told.
    pub fn told(self) -> &'static str {
        match self {
            Self::MayHalt => "cores may halt",
            Self::KeptAwake => "cores kept awake",
            Self::Busy => "beside a program on each core that never sleeps",
        }
    }

    /// Keeps cores awake for as long as the result lives, if so wanted.
    pub fn hold(self) -> Result<Option<Awake>, BenchError> {
        match self {
            Self::MayHalt => Ok(None),
            Self::KeptAwake => Awake::keep()
                .map(Some)
                .map_err(machine("keep the cores awake")),
            Self::Busy => Awake::busy()
                .map(Some)
                .map_err(machine("keep the cores busy")),
        }
    }
}

/// For `map_err` of what is asked of the machine.
pub fn machine(action: &'static str) -> impl FnOnce(io::Error) -> BenchError {
    move |source| BenchError::Machine { action, source }
}

impl Common {
    /// All variants, for this many rounds.
    pub fn brief(rounds: u32, out: Option<PathBuf>, json: bool, quiet: bool) -> Self {
        Self {
            rounds,
            out,
            json,
            only: Vec::new(),
            peers: None,
            quiet,
        }
    }

    /// Whether tables are printed.
    fn prints(&self) -> bool {
        !self.json && !self.quiet
    }

    /// The program that measures other messaging systems: `None` if it was neither named nor found.
    pub fn programs(&self) -> Option<Programs> {
        if let Some(path) = &self.peers {
            return Some(Programs::at(path));
        }
        match Programs::find() {
            Ok(programs) => Some(programs),
            Err(error) => {
                eprintln!("other messaging systems are left out: {error}");
                None
            }
        }
    }

    fn wants(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        let mut texts = self.only.iter();
        self.only.is_empty() || texts.any(|text| name.contains(&text.to_lowercase()))
    }

    /// Whether any of the variants was asked for.
    pub fn wants_any(&self, variants: &[Variant<'_>]) -> bool {
        variants.iter().any(|variant| self.wants(&variant.name))
    }

    /// The variants that were asked for.
    fn chosen<'a>(
        &self,
        experiment: &str,
        mut variants: Vec<Variant<'a>>,
    ) -> Result<Vec<Variant<'a>>, BenchError> {
        if !self.wants_any(&variants) {
            let names: Vec<&str> = variants.iter().map(|v| v.name.as_str()).collect();
            return Err(BenchError::NoVariant {
                experiment: experiment.to_owned(),
                only: self.only.join(","),
                names: names.join("; "),
            });
        }
        variants.retain(|variant| self.wants(&variant.name));
        Ok(variants)
    }
}

/// A measurement under way: tables are printed as they come, the report is written in the end.
pub struct Measurement<'a> {
    common: &'a Common,
    name: &'static str,
    report: Report,
}

impl<'a> Measurement<'a> {
    /// Begins; prints the machine and the method.
    pub fn begin(
        common: &'a Common,
        name: &'static str,
        title: &str,
        method: &str,
    ) -> Result<Self, BenchError> {
        let report = Report::new(title, method)?;
        if common.prints() {
            println!("{title}");
            for (heading, value) in report.machine.rows() {
                println!("  {heading:<19} {value}");
            }
            println!("{method}\n");
        }
        Ok(Self {
            common,
            name,
            report,
        })
    }

    /// Runs an experiment over the chosen variants. The baseline counts only if it is among them.
    pub fn run(&mut self, mut experiment: Experiment<'_>) -> Result<&Outcome, BenchError> {
        experiment.variants = self.common.chosen(&experiment.name, experiment.variants)?;
        if let Some(baseline) = &experiment.baseline
            && experiment.variants.iter().all(|v| v.name != *baseline)
        {
            experiment.baseline = None;
        }
        let outcome = match self.common.quiet {
            true => experiment.run_telling(|_| {})?,
            false => experiment.run()?,
        };
        if self.common.prints() {
            println!("{}", text::table(&outcome));
        }
        let index = self.report.outcomes.len();
        self.report.outcomes.push(outcome);
        Ok(&self.report.outcomes[index])
    }

    /// Adds a finding to the introduction of the report, and prints it.
    pub fn find(&mut self, finding: &str) {
        self.report.introduction.push_str("\n\n");
        self.report.introduction.push_str(finding);
        if self.common.prints() {
            println!("{finding}\n");
        }
    }

    /// The one sentence that the report begins with, above its first picture.
    pub fn headline(&mut self, sentence: String) {
        self.report.headline = Some(sentence);
    }

    /// Writes the report and says where it is.
    pub fn finish(self) -> Result<(), BenchError> {
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let date = now.trim_end_matches('Z').replace(':', "");
        let folder = self
            .common
            .out
            .clone()
            .unwrap_or_else(|| Path::new("out").join(format!("bench-{}-{date}", self.name)));
        let Written { json, html } = self.report.write(&folder, self.name)?;
        if self.common.json {
            println!("{}", serde_json::to_string(&self.report)?);
        } else {
            println!("Report: {}\nFigures: {}", html.display(), json.display());
        }
        let variants = || self.report.outcomes.iter().flat_map(|o| &o.variants);
        if variants().all(|variant| variant.samples().next().is_none()) {
            let reason = variants().find_map(|variant| variant.failures().next());
            return Err(BenchError::NothingRan(reason.unwrap_or("none").to_owned()));
        }
        Ok(())
    }
}
