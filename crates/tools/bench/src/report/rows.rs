//! Horizontal bars or boxes in groups: one group per setting, one row per variant.

use super::ReportError;
use super::canvas::{
    Anchor, Canvas, FADED, GRID, INK, Look, draw, format_tick, format_value, linear_ticks,
    logarithmic_ticks,
};
use crate::statistics::Spread;

const WIDTH: f64 = 920.0;
const TOP: f64 = 8.0;
const ROW: f64 = 24.0;
const BAR: f64 = 16.0;
const GROUP_HEADING: f64 = 26.0;
const GROUP_GAP: f64 = 10.0;
const BELOW: f64 = 46.0;
/// Room for the value behind the longest bar.
const RIGHT: f64 = WIDTH - 86.0;
/// Units a character of a row's name takes, about, and the room names may have.
const CHARACTER: f64 = 7.2;
const NAMES: std::ops::RangeInclusive<f64> = 90.0..=300.0;

/// One row.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) look: Look,
    pub(super) mark: Mark,
}

/// What is drawn in a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    /// A bar from 0 on, and a thin line over a range.
    Bar { value: f64, range: (f64, f64) },
    /// A box over the middle half with whiskers, on a logarithmic scale.
    Spread(Spread),
}

impl Mark {
    /// The figure that stands beside it.
    fn value(self) -> f64 {
        match self {
            Self::Bar { value, .. } => value,
            Self::Spread(spread) => spread.median,
        }
    }

    /// Where it begins, of what a logarithmic scale can show.
    fn start(self) -> f64 {
        match self {
            Self::Bar { .. } => 0.0,
            Self::Spread(spread) => spread.low,
        }
    }

    /// Where it ends.
    fn end(self) -> f64 {
        match self {
            Self::Bar { value, range } => value.max(range.1),
            Self::Spread(spread) => spread.high,
        }
    }
}

/// Rows under one heading, which may be empty.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) heading: String,
    pub(super) rows: Vec<Row>,
}

impl Group {
    fn heading_height(&self) -> f64 {
        if self.heading.is_empty() {
            0.0
        } else {
            GROUP_HEADING
        }
    }

    fn height(&self) -> f64 {
        self.heading_height() + self.rows.len() as f64 * ROW + GROUP_GAP
    }
}

/// The horizontal scale.
enum Scale {
    /// From 0.
    Linear {
        end: f64,
    },
    Logarithmic {
        start: f64,
        end: f64,
    },
}

impl Scale {
    /// The scale that all marks fit on, and its ticks.
    fn of(groups: &[Group]) -> Option<(Self, Vec<f64>)> {
        let marks = || {
            groups
                .iter()
                .flat_map(|group| &group.rows)
                .map(|row| row.mark)
        };
        let start = marks().map(Mark::start).reduce(f64::min)?;
        let end = marks().map(Mark::end).fold(0.0, f64::max);
        if !(end > 0.0 && end.is_finite()) {
            return None;
        }
        if start > 0.0 {
            // Some air, and never a range so narrow that it has no tick.
            let (start, end) = (start / 1.1, (end * 1.1).max(start * 2.2));
            return Some((
                Self::Logarithmic { start, end },
                logarithmic_ticks(start, end),
            ));
        }
        let ticks = linear_ticks(end, 6.0);
        let end = ticks.last().copied().unwrap_or(end);
        Some((Self::Linear { end }, ticks))
    }

    /// How far from the left, of the whole width.
    fn share(&self, value: f64) -> f64 {
        match *self {
            Self::Linear { end } => value / end,
            Self::Logarithmic { start, end } => (value / start).ln() / (end / start).ln(),
        }
    }
}

/// Draws groups of rows of what `caption` says.
pub(super) fn plot(groups: &[Group], caption: &str) -> Result<String, ReportError> {
    let Some((scale, ticks)) = Scale::of(groups) else {
        return Ok(String::new());
    };
    let longest = groups
        .iter()
        .flat_map(|group| &group.rows)
        .map(|row| row.name.chars().count())
        .max()
        .unwrap_or(0) as f64;
    let left = (longest * CHARACTER + 16.0).clamp(*NAMES.start(), *NAMES.end());
    let x = |value: f64| left + (RIGHT - left) * scale.share(value);
    let bottom = TOP + groups.iter().map(Group::height).sum::<f64>();

    draw(WIDTH, bottom + BELOW, |canvas| {
        for &tick in &ticks {
            canvas.line(&[(x(tick), TOP), (x(tick), bottom)], GRID, 1.0)?;
            canvas.text(
                &format_tick(tick),
                (x(tick), bottom + 14.0),
                Anchor::Middle,
                12.5,
                INK,
            )?;
        }
        canvas.text(
            caption,
            ((left + RIGHT) / 2.0, bottom + 34.0),
            Anchor::Middle,
            12.5,
            FADED,
        )?;
        let mut y = TOP;
        for group in groups {
            if !group.heading.is_empty() {
                // On its own ground, so that grid lines do not run through it.
                canvas.text(
                    &group.heading,
                    (left - 10.0, y + GROUP_HEADING / 2.0 + 2.0),
                    Anchor::End,
                    13.0,
                    FADED,
                )?;
            }
            y += group.heading_height();
            for row in &group.rows {
                draw_row(canvas, row, y + ROW / 2.0, left, &x)?;
                y += ROW;
            }
            y += GROUP_GAP;
        }
        canvas.line(&[(left, TOP), (left, bottom)], FADED, 1.0)
    })
}

fn draw_row(
    canvas: &Canvas<'_>,
    row: &Row,
    middle: f64,
    left: f64,
    x: &dyn Fn(f64) -> f64,
) -> Result<(), ReportError> {
    canvas.text(
        &shorten(&row.name),
        (left - 10.0, middle),
        Anchor::End,
        13.0,
        INK,
    )?;
    let (top, bottom) = (middle - BAR / 2.0, middle + BAR / 2.0);
    let line = |from: f64, to: f64| canvas.line(&[(x(from), middle), (x(to), middle)], INK, 1.0);
    let tick = |at: f64, half: f64, width: f64| {
        canvas.line(
            &[(x(at), middle - half), (x(at), middle + half)],
            INK,
            width,
        )
    };
    match row.mark {
        Mark::Bar { value, range } => {
            canvas.fill((left, top), (x(value), bottom), row.look.colour())?;
            let (low, high) = range;
            if high > low {
                line(low, high)?;
                tick(low, 3.5, 1.0)?;
                tick(high, 3.5, 1.0)?;
            }
        }
        Mark::Spread(spread) => {
            line(spread.low, spread.high)?;
            tick(spread.low, 3.5, 1.0)?;
            tick(spread.high, 3.5, 1.0)?;
            let (from, to) = (x(spread.quarter), x(spread.three_quarters));
            canvas.fill((from, top), (to, bottom), row.look.colour())?;
            tick(spread.median, BAR / 2.0, 2.0)?;
        }
    }
    canvas.text(
        &format_value(row.mark.value()),
        (x(row.mark.end()) + 8.0, middle),
        Anchor::Start,
        12.5,
        INK,
    )
}

/// A name that fits the room names have.
fn shorten(name: &str) -> String {
    let most = ((NAMES.end() - 16.0) / CHARACTER) as usize;
    if name.chars().count() <= most {
        return name.to_owned();
    }
    name.chars().take(most - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, value: f64) -> Row {
        Row {
            name: name.into(),
            look: Look::of(0),
            mark: Mark::Bar {
                value,
                range: (value, value),
            },
        }
    }

    fn group(heading: &str, rows: Vec<Row>) -> Group {
        Group {
            heading: heading.into(),
            rows,
        }
    }

    #[test]
    fn every_bar_has_its_name_and_value() {
        let groups = [
            group("64 B", vec![bar("one & only", 1234.0), bar("zero", 0.0)]),
            group("", vec![bar("three", 5.678)]),
        ];
        let svg = plot(&groups, "k messages/s").unwrap();
        for text in [
            "one &amp; only",
            "1234",
            "zero",
            "three",
            "5.68",
            "64 B",
            "k messages/s",
        ] {
            assert!(svg.contains(&format!(">\n{text}\n")), "{text}: {svg}");
        }
    }

    #[test]
    fn boxes_lie_on_a_scale_that_all_of_them_fit_on() {
        let spread = |median: f64| Spread {
            low: median / 10.0,
            quarter: median / 2.0,
            median,
            three_quarters: median * 2.0,
            high: median * 100.0,
        };
        let row = |median| Row {
            mark: Mark::Spread(spread(median)),
            ..bar("box", 0.0)
        };
        let groups = [group("alone", vec![row(1.0), row(50.0)])];
        let (scale, ticks) = Scale::of(&groups).unwrap();
        assert_eq!(ticks, [0.1, 1.0, 10.0, 100.0, 1000.0]);
        for value in [0.1, 5000.0] {
            assert!((0.0..=1.0).contains(&scale.share(value)), "{value}");
        }
        let svg = plot(&groups, "µs").unwrap();
        assert!(
            svg.contains(">\n50.0\n") && svg.contains(">\n1000\n"),
            "{svg}"
        );
        // All of it one value.
        let point = Spread {
            low: 3.0,
            quarter: 3.0,
            median: 3.0,
            three_quarters: 3.0,
            high: 3.0,
        };
        let rows = vec![Row {
            mark: Mark::Spread(point),
            ..bar("point", 0.0)
        }];
        assert!(plot(&[group("", rows)], "").unwrap().contains(">\n3.00\n"));
    }

    #[test]
    fn a_long_name_is_shortened() {
        let svg = plot(&[group("", vec![bar(&"x".repeat(80), 1.0)])], "").unwrap();
        assert!(svg.contains("xxx…") && !svg.contains(&"x".repeat(60)));
    }

    #[test]
    fn rows_of_nothing_draw_nothing() {
        assert_eq!(plot(&[group("", vec![bar("a", 0.0)])], "").unwrap(), "");
        assert_eq!(plot(&[], "").unwrap(), "");
    }
}
