//! `takt schedule show`.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use takt_schedule::check::Severity;
use takt_schedule::render::{self, TerminalStyle};
use takt_schedule::window::{slots, windows};
use takt_schedule::{PortModel, Schedule, Summary, summary};

use super::source::{One, Port, Source};
use crate::failure::Failure;
use crate::output::{Align, Form, dash, print, print_json, table, write_text};

const HELP: &str = "\
`open` is the share of the cycle in which the gate of a class is open. `worst wait` is how long the
largest frame of a class may wait for its gate and for a frame already on the link; frames ahead of
it in its queue come on top. GUARD is how long before its gate closes that frame may start at the
latest; CAPACITY is what FRAMES/CYCLE of them make.

Examples:
  takt schedule show eth0.toml
  takt schedule show eth0.toml --rate 100mbit --svg eth0.svg
  takt schedule show eth0.toml --json | jq '.classes[] | {class, worst_gate_wait_ns}'";

/// Draws the gates over a cycle.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Show {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    port: Port,
    /// Write a picture instead; `-` writes it to standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "ascii", "width"])]
    svg: Option<PathBuf>,
    /// Use only characters of ASCII
    #[arg(long)]
    ascii: bool,
    /// Columns of the drawing; without it those of the terminal, or 100
    #[arg(long, value_name = "COLUMNS")]
    width: Option<usize>,
    #[command(flatten)]
    form: Form,
}

#[derive(Serialize)]
struct Shown {
    interface: Option<String>,
    base_time_ns: i64,
    cycle_time_extension_ns: u64,
    slots: Vec<ShownSlot>,
    #[serde(flatten)]
    summary: Summary,
}

/// A stretch of the cycle in which the gates do not change.
#[derive(Serialize)]
struct ShownSlot {
    start_ns: u64,
    length_ns: u64,
    open: Vec<u8>,
}

impl Show {
    pub fn run(self) -> Result<(), Failure> {
        let source = self.one.read()?;
        let port = source.port(&self.port);
        let schedule = &source.document.schedule;
        source.tell_lost();
        tell_mistakes(&source, &port);
        if let Some(path) = &self.svg {
            let title = source.document.interface.as_deref().unwrap_or(&source.name);
            return write_text(path, &render::svg(schedule, &port, title));
        }
        if self.form.json {
            let slots = slots(schedule).into_iter().map(|slot| ShownSlot {
                start_ns: slot.start_ns,
                length_ns: slot.length_ns,
                open: slot.gates.classes().map(|class| class.number()).collect(),
            });
            return print_json(&Shown {
                base_time_ns: schedule.base_time.as_nanos(),
                cycle_time_extension_ns: schedule.cycle_time_extension_ns,
                slots: slots.collect(),
                summary: summary(schedule, &port),
                interface: source.document.interface,
            });
        }
        let width = self.width.unwrap_or_else(columns);
        let style = TerminalStyle {
            width,
            ascii: self.ascii,
        };
        let chart = render::terminal(schedule, &port, style);
        let classes = classes(schedule, &port);
        let classes = match self.ascii {
            true => classes.replace('µ', "u"),
            false => classes,
        };
        print(&format!("{chart}\n{classes}"))
    }
}

/// Columns of the terminal, 100 where there is none.
fn columns() -> usize {
    let default = TerminalStyle::default().width;
    if !std::io::stdout().is_terminal() {
        return default;
    }
    ratatui::crossterm::terminal::size().map_or(default, |(columns, _)| columns.into())
}

fn tell_mistakes(source: &Source, port: &PortModel) {
    let errors = takt_schedule::check(&source.document.schedule, port, None)
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .count();
    if errors > 0 {
        eprintln!(
            "takt: {} does not run as it is: `takt schedule check` explains why",
            source.name
        );
    }
}

fn classes(schedule: &Schedule, port: &PortModel) -> String {
    let columns = [
        ("CLASS", Align::Right),
        ("WINDOWS", Align::Left),
        ("LARGEST FRAME", Align::Right),
        ("GUARD", Align::Right),
        ("FRAMES/CYCLE", Align::Right),
        ("CAPACITY", Align::Right),
    ];
    let rows = port.classes().rev().zip(summary(schedule, port).classes);
    let rows = rows.map(|(class, summary)| {
        vec![
            class.to_string(),
            dash(&spans(schedule, class)),
            format!("{} B", summary.largest_frame),
            render::duration(summary.guard_ns),
            dash(
                &summary
                    .frames_per_cycle
                    .map_or_else(String::new, |n| n.to_string()),
            ),
            dash(&summary.capacity_bps.map_or_else(String::new, bandwidth)),
        ]
    });
    table(&columns, rows.collect())
}

/// The windows of a class: `250 µs at 0 ns`.
fn spans(schedule: &Schedule, class: takt_time::TrafficClass) -> String {
    const MOST: usize = 4;
    let windows = windows(schedule, class);
    let more = windows.len().saturating_sub(MOST);
    let mut spans: Vec<String> = windows
        .into_iter()
        .take(MOST)
        .map(|window| {
            let length = render::duration(window.length_ns);
            format!("{length} at {}", render::duration(window.start_ns))
        })
        .collect();
    if more > 0 {
        spans.push(format!("{more} more"));
    }
    spans.join(", ")
}

fn bandwidth(bps: u64) -> String {
    let (unit, size) = match bps {
        1_000_000_000.. => ("Gbit/s", 1e9),
        1_000_000.. => ("Mbit/s", 1e6),
        1_000.. => ("kbit/s", 1e3),
        _ => ("bit/s", 1.0),
    };
    format!("{:.1} {unit}", bps as f64 / size)
}
