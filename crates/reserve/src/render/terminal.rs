//! Supply and demand in characters, for a terminal.

use std::fmt::Write;

use super::curve::{Curves, curves};
use crate::check::Verdict;
use crate::nanos::Nanos;

/// The size of a chart, and what it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChartStyle {
    /// Columns, with the scale at the left; held within 40 and 400.
    pub width: usize,
    /// Rows of the plot; held within 4 and 100.
    pub height: usize,
    /// Only characters of ASCII.
    pub ascii: bool,
}

impl Default for ChartStyle {
    fn default() -> Self {
        Self {
            width: 100,
            height: 14,
            ascii: false,
        }
    }
}

struct Marks {
    supply: char,
    demand: char,
    deadline: char,
    axis: char,
    corner: char,
    floor: char,
}

const UNICODE: Marks = Marks {
    supply: '░',
    demand: '●',
    deadline: '┊',
    axis: '│',
    corner: '└',
    floor: '─',
};
const ASCII: Marks = Marks {
    supply: '.',
    demand: 'o',
    deadline: ':',
    axis: '|',
    corner: '+',
    floor: '-',
};

/// The chart for the task that decides: the one that fails first, else the one nearest to its
/// deadline.
pub fn chart(verdict: &Verdict, style: ChartStyle) -> String {
    draw(verdict, verdict.decisive_task(), style)
}

/// The chart for the task of that name, or `None` when there is none.
pub fn chart_of(verdict: &Verdict, name: &str, style: ChartStyle) -> Option<String> {
    let task = verdict.tasks().iter().position(|task| task.name == name)?;
    Some(draw(verdict, task, style))
}

fn draw(verdict: &Verdict, task: usize, style: ChartStyle) -> String {
    let marks = if style.ascii { &ASCII } else { &UNICODE };
    let curves = curves(verdict, task);
    let end = curves.points.last().map_or(1, |point| point.0).max(1);
    let highest = curves.points.iter().map(|point| point.1.max(point.2)).max();
    let most = highest.unwrap_or(1).max(1);
    let (top, middle) = (rounded(most), rounded(most / 2));
    let margin = [top.len(), middle.len()].into_iter().max().unwrap_or(0);
    let columns = style.width.clamp(40, 400) - margin - 1;
    let rows = style.height.clamp(4, 100);

    let at = |column: usize| end * column as u128 / (columns - 1).max(1) as u128;
    let column_of = |at: u128| ((at * (columns - 1) as u128 / end) as usize).min(columns - 1);
    let row_of = |amount: u128| (amount * (rows - 1) as u128 / most) as usize;
    let deadline = column_of(curves.due);

    let mut cells = vec![vec![' '; columns]; rows];
    let mut before = None;
    for column in 0..columns {
        let (supply, demand) = values(&curves, at(column));
        let (supply, demand) = (row_of(supply), row_of(demand));
        // A step is drawn as the wall that it is.
        let from = before.unwrap_or(demand).min(demand);
        for (row, cells) in cells.iter_mut().enumerate() {
            cells[column] = if (from..=demand).contains(&row) {
                marks.demand
            } else if row < supply {
                marks.supply
            } else if column == deadline {
                marks.deadline
            } else {
                ' '
            };
        }
        before = Some(demand);
    }

    let mut text = String::new();
    for (row, cells) in cells.iter().enumerate().rev() {
        let label = match row {
            _ if row == rows - 1 => top.as_str(),
            _ if row == (rows - 1) / 2 => middle.as_str(),
            0 => "0",
            _ => "",
        };
        let line: String = cells.iter().collect();
        let line = format!("{label:>margin$}{}{line}", marks.axis);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let floor = marks.floor.to_string().repeat(columns);
    let _ = writeln!(text, "{:margin$}{}{floor}", "", marks.corner);
    let due = format!("deadline {}", Nanos::from_wide(curves.due));
    let last = rounded(end);
    let due_at = (deadline + 1).saturating_sub(due.len()).max(2);
    let mut scale = format!("0{:>width$}", due, width = due_at - 1 + due.len());
    if scale.len() + 2 + last.len() <= columns {
        scale = format!("{scale}{last:>width$}", width = columns - scale.len());
    }
    let _ = writeln!(text, "{:margin$} {scale}", "");
    let per_core = match verdict.reservation().cores() {
        1 => "",
        _ => ", per core",
    };
    let _ = writeln!(
        text,
        "{} CPU time guaranteed{per_core}  {} needed by {} and what may delay it{per_core}",
        marks.supply,
        marks.demand,
        verdict.tasks()[task].name
    );
    text
}

/// Supply and demand at an instant: those of the last point that is not after it.
fn values(curves: &Curves, at: u128) -> (u128, u128) {
    let after = curves.points.partition_point(|point| point.0 <= at);
    let point = curves.points[after.max(1) - 1];
    (point.1, point.2)
}

/// An amount in three digits: an axis needs no more.
fn rounded(amount: u128) -> String {
    let mut unit = 1;
    while amount / unit >= 1_000 {
        unit *= 10;
    }
    Nanos::from_wide(amount / unit * unit).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::reservation::{Overheads, Reservation};
    use crate::task::{Task, TaskSet};

    fn verdict(runtime: u64) -> Verdict {
        let ms = Nanos::from_millis;
        let set = TaskSet::new(vec![
            Task::implicit("camera", ms(7), ms(50)).unwrap(),
            Task::implicit("planner", ms(9), ms(75)).unwrap(),
        ])
        .unwrap();
        let reservation = Reservation::new(Nanos::from_micros(runtime), ms(10), 1).unwrap();
        check(&set, &reservation, &Overheads::default())
    }

    const STYLE: ChartStyle = ChartStyle {
        width: 60,
        height: 10,
        ascii: true,
    };

    #[test]
    fn supply_covers_demand_at_the_deadline_exactly_when_it_suffices() {
        for (runtime, covered) in [(4_500, true), (3_000, false)] {
            let verdict = verdict(runtime);
            let text = chart_of(&verdict, "planner", STYLE).unwrap();
            let curves = curves(&verdict, 1);
            let (supply, demand) = values(&curves, curves.due);
            assert_eq!(supply >= demand, covered, "{text}");
            assert_eq!(verdict.is_schedulable(), covered);
            assert!(text.contains("deadline 75ms"), "{text}");
        }
    }

    #[test]
    fn lines_fit_the_width_and_ascii_is_ascii() {
        for width in [0, 40, 57, 100, 1_000] {
            let style = ChartStyle { width, ..STYLE };
            let text = chart(&verdict(3_500), style);
            let (plot, _) = text.split_at(text.rfind(". CPU").unwrap());
            let most = plot.lines().map(str::len).max().unwrap();
            assert!(most <= width.clamp(40, 400), "{width}: {most}\n{text}");
            assert!(text.is_ascii(), "{text}");
        }
        assert!(chart_of(&verdict(3_500), "radar", STYLE).is_none());
    }
}
