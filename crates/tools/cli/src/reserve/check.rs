//! `takt reserve check`.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use takt_reserve::render::{self, ChartStyle};
use takt_reserve::{Bandwidth, Nanos, Reservation, Verdict, check};

use super::node::{Node, OnNode, for_all};
use super::source::{Costs, Source};
use crate::failure::Failure;
use crate::output::{Form, print, print_json, write_text};

const HELP: &str = "\
For each task the worst time from a job's arrival to its end is computed, from the least CPU time
that the reservation gives in any window and the most that the task and what may delay it need. The
chart shows both for the task that decides. On one core the answer is exact; on several it is safe
but cautious, and holds only while no server sleeps with work to come (docs/how-to/
plan-a-reservation.md). With --node-cores, also says whether a node keeps the reservation beside
those of --neighbour. The exit code is 0 if it suffices and the node guarantees it, and 6 if not.

In JSON, times are in nanoseconds and bandwidths in millionths of a core.

Examples:
  takt reserve check tasks.yaml --runtime 3500us --period 10ms
  takt reserve check tasks.csv --runtime 4ms --period 10ms --cores 2 --switch 20us
  takt reserve check tasks.yaml --runtime 3ms --period 10ms --svg supply.svg --task planner
  takt reserve check tasks.yaml --runtime 3ms --period 10ms --json | jq '.tasks[] | {name, response}'";

/// Says whether a reservation suffices, and why.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Check {
    #[command(flatten)]
    source: Source,
    /// Q, the CPU time of each core in every period
    #[arg(long, value_name = "TIME")]
    runtime: Nanos,
    /// P, how often the runtime comes back
    #[arg(long, value_name = "TIME")]
    period: Nanos,
    /// m, on how many cores
    #[arg(long, value_name = "N", default_value_t = 1)]
    cores: u32,
    #[command(flatten)]
    costs: Costs,
    #[command(flatten)]
    node: Node,
    /// Show the chart of this task instead of the one that decides
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
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
struct Checked<'a> {
    #[serde(flatten)]
    verdict: Shown<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a OnNode>,
}

/// A verdict with what a program wants to ask it.
#[derive(Serialize)]
pub struct Shown<'a> {
    schedulable: bool,
    reason: String,
    core_bandwidth: Bandwidth,
    total_bandwidth: Bandwidth,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

impl<'a> From<&'a Verdict> for Shown<'a> {
    fn from(verdict: &'a Verdict) -> Self {
        Self {
            schedulable: verdict.is_schedulable(),
            reason: verdict.reason(),
            core_bandwidth: verdict.reservation().core_bandwidth(),
            total_bandwidth: verdict.reservation().total_bandwidth(),
            verdict,
        }
    }
}

impl Check {
    pub fn run(self) -> Result<(), Failure> {
        let set = self.source.read()?;
        let reservation = Reservation::new(self.runtime, self.period, self.cores)
            .map_err(|error| Failure::Other(error.to_string()))?;
        let verdict = check(&set, &reservation, &self.costs.overheads());
        let node = self.node.holds(for_all(&reservation));
        let drawn = self.task.as_deref();
        if let Some(path) = &self.svg {
            let svg = match drawn {
                Some(name) => render::supply_and_demand_of(&verdict, name),
                None => Some(render::supply_and_demand(&verdict)),
            };
            write_text(path, &svg.ok_or_else(|| self.no_task(&verdict))?)?;
        }
        if self.form.json {
            print_json(&Checked {
                verdict: Shown::from(&verdict),
                node: node.as_ref(),
            })?;
        } else if self.svg.as_deref() != Some("-".as_ref()) {
            let style = style(self.ascii);
            let chart = match drawn {
                Some(name) => render::chart_of(&verdict, name, style),
                None => Some(render::chart(&verdict, style)),
            };
            let chart = chart.ok_or_else(|| self.no_task(&verdict))?;
            let node = node
                .as_ref()
                .map_or(String::new(), |node| format!("{}\n", node.shown()));
            print(&format!(
                "{}\n{chart}{node}",
                render::verdict_table(&verdict)
            ))?;
        }
        if !reservation.is_within_kernel_limits() {
            eprintln!(
                "takt: Linux takes a runtime from {} and a period from {} to {} unless configured otherwise: not {reservation}",
                Reservation::KERNEL_MIN_RUNTIME,
                Reservation::KERNEL_MIN_PERIOD,
                Reservation::KERNEL_MAX_PERIOD
            );
        }
        match verdict.is_schedulable() {
            true => node.map_or(Ok(()), |node| node.verdict()),
            false => Err(Failure::Insufficient(format!(
                "{reservation} does not suffice: `takt reserve plan` finds one that does"
            ))),
        }
    }

    fn no_task(&self, verdict: &Verdict) -> Failure {
        let names: Vec<&str> = verdict.tasks().iter().map(|t| t.name.as_str()).collect();
        Failure::Other(format!(
            "no task is called `{}`; there are: {}",
            self.task.as_deref().unwrap_or_default(),
            names.join(", ")
        ))
    }
}

/// As wide as the terminal; by default where there is none.
pub fn style(ascii: bool) -> ChartStyle {
    let default = ChartStyle::default();
    let width = match std::io::stdout().is_terminal() {
        true => ratatui::crossterm::terminal::size().map_or(default.width, |(c, _)| c.into()),
        false => default.width,
    };
    ChartStyle {
        width,
        ascii,
        ..default
    }
}
