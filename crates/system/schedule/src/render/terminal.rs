//! The gates over a cycle as lines of characters.

use std::fmt::Write as _;

use super::{readable, share, subtitle, wait};
use crate::schedule::Schedule;
use crate::summary::{PortModel, summary};
use crate::window::{Window, windows};

/// How a chart looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalStyle {
    /// Columns of a line; from 60 to 1000 are used.
    pub width: usize,
    /// Only characters of ASCII.
    pub ascii: bool,
}

impl Default for TerminalStyle {
    /// 100 columns with block characters.
    fn default() -> Self {
        Self {
            width: 100,
            ascii: false,
        }
    }
}

/// Columns that are not of the chart: class, share, wait and what is between.
const AROUND: usize = 6 + 2 + 8 + 2 + 12;

/// Draws the gates of each class over a cycle, with the share of the cycle that each is open and the
/// worst wait of its largest frame. A column that is open in part only has a mark of its own.
pub fn terminal(schedule: &Schedule, port: &PortModel, style: TerminalStyle) -> String {
    let columns = style.width.clamp(60, 1000) - AROUND;
    let summary = summary(schedule, port);
    let (open, partly, closed) = if style.ascii {
        ('#', '+', '.')
    } else {
        ('█', '▒', '·')
    };
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = (|| {
        writeln!(
            text,
            "cycle {}, {}",
            readable(schedule.cycle_time_ns),
            subtitle(schedule)
        )?;
        writeln!(
            text,
            "class {:columns$}  {:>8}  {:>12}",
            "", "open", "worst wait"
        )?;
        for (class, of_class) in port.classes().rev().zip(&summary.classes) {
            let windows = windows(schedule, class);
            write!(text, "{:>5} ", class.number())?;
            for column in 0..columns {
                text.push(
                    match open_part(&windows, schedule.cycle_time_ns, column, columns) {
                        Part::All => open,
                        Part::Some => partly,
                        Part::None => closed,
                    },
                );
            }
            writeln!(text, "  {:>8}  {:>12}", share(of_class), wait(of_class))?;
        }
        writeln!(text, "{}", axis(schedule.cycle_time_ns, columns))
    })();
    if style.ascii {
        text = text.replace('µ', "u");
    }
    text
}

enum Part {
    All,
    Some,
    None,
}

fn open_part(windows: &[Window], cycle_ns: u64, column: usize, columns: usize) -> Part {
    let edge = |column: usize| (u128::from(cycle_ns) * column as u128 / columns as u128) as u64;
    let (from, to) = (edge(column), edge(column + 1).max(edge(column) + 1));
    let open: u64 = windows
        .iter()
        .flat_map(|window| {
            // A window that reaches into the next cycle is open at the beginning of this one too.
            let wrapped = window.end_ns().saturating_sub(cycle_ns);
            [(window.start_ns, window.end_ns()), (0, wrapped)]
        })
        .map(|(start, end)| end.min(to).saturating_sub(start.max(from)))
        .sum();
    if open == 0 {
        Part::None
    } else if open >= to - from {
        Part::All
    } else {
        Part::Some
    }
}

/// Four quarters of the cycle below the chart, as far as they have room.
fn axis(cycle_ns: u64, columns: usize) -> String {
    let mut line = vec![' '; 6 + columns + 12];
    let mut free = 0;
    for quarter in 0..=4 {
        let at = 6 + columns * quarter / 4;
        let label = readable((u128::from(cycle_ns) * quarter as u128 / 4) as u64);
        if at < free {
            continue;
        }
        for (offset, character) in label.chars().enumerate() {
            if let Some(place) = line.get_mut(at + offset) {
                *place = character;
            }
        }
        free = at + label.chars().count() + 2;
    }
    line.iter().collect::<String>().trim_end().to_owned()
}
