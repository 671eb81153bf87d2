//! Horizontal bars in groups: one group per setting, one bar per variant, with the range over the rounds.

use super::ReportError;
use super::canvas::{
    Anchor, Canvas, FADED, GRID, INK, Look, draw, format_tick, format_value, linear_ticks,
};

const WIDTH: f64 = 920.0;
const TOP: f64 = 8.0;
const ROW: f64 = 24.0;
const BAR: f64 = 16.0;
const GROUP_HEADING: f64 = 26.0;
const GROUP_GAP: f64 = 10.0;
const BELOW: f64 = 46.0;
/// Room for the value behind the longest bar.
const RIGHT: f64 = WIDTH - 86.0;
/// Units a character of a bar's name takes, about, and the room names may have.
const CHARACTER: f64 = 7.2;
const NAMES: std::ops::RangeInclusive<f64> = 90.0..=300.0;

/// One bar.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) look: Look,
    pub(super) value: f64,
    /// The least and the most over the rounds.
    pub(super) range: (f64, f64),
}

/// Bars under one heading, which may be empty.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) heading: String,
    pub(super) bars: Vec<Bar>,
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
        self.heading_height() + self.bars.len() as f64 * ROW + GROUP_GAP
    }
}

/// Draws groups of bars of what `caption` says.
pub(super) fn plot(groups: &[Group], caption: &str) -> Result<String, ReportError> {
    let bars = || groups.iter().flat_map(|group| &group.bars);
    let high = bars()
        .map(|bar| bar.value.max(bar.range.1))
        .fold(0.0, f64::max);
    if !(high > 0.0 && high.is_finite()) {
        return Ok(String::new());
    }
    let longest = bars()
        .map(|bar| bar.name.chars().count())
        .max()
        .unwrap_or(0) as f64;
    let left = (longest * CHARACTER + 16.0).clamp(*NAMES.start(), *NAMES.end());
    let ticks = linear_ticks(high, 6.0);
    let end = ticks.last().copied().unwrap_or(high);
    let x = |value: f64| left + (RIGHT - left) * value / end;
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
            for bar in &group.bars {
                draw_bar(canvas, bar, y + ROW / 2.0, left, &x)?;
                y += ROW;
            }
            y += GROUP_GAP;
        }
        canvas.line(&[(left, TOP), (left, bottom)], FADED, 1.0)
    })
}

fn draw_bar(
    canvas: &Canvas<'_>,
    bar: &Bar,
    middle: f64,
    left: f64,
    x: &dyn Fn(f64) -> f64,
) -> Result<(), ReportError> {
    canvas.text(
        &shorten(&bar.name),
        (left - 10.0, middle),
        Anchor::End,
        13.0,
        INK,
    )?;
    canvas.fill(
        (left, middle - BAR / 2.0),
        (x(bar.value), middle + BAR / 2.0),
        bar.look.colour(),
    )?;
    let (low, high) = bar.range;
    if high > low {
        canvas.line(&[(x(low), middle), (x(high), middle)], INK, 1.0)?;
        for end in [low, high] {
            canvas.line(&[(x(end), middle - 3.5), (x(end), middle + 3.5)], INK, 1.0)?;
        }
    }
    canvas.text(
        &format_value(bar.value),
        (x(bar.value.max(high)) + 8.0, middle),
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

    fn bar(name: &str, value: f64) -> Bar {
        Bar {
            name: name.into(),
            look: Look::of(0),
            value,
            range: (value, value),
        }
    }

    #[test]
    fn every_bar_has_its_name_and_value() {
        let groups = [
            Group {
                heading: "64 B".into(),
                bars: vec![bar("one & only", 1234.0), bar("zero", 0.0)],
            },
            Group {
                heading: String::new(),
                bars: vec![bar("three", 5.678)],
            },
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
    fn a_long_name_is_shortened() {
        let svg = plot(
            &[Group {
                heading: String::new(),
                bars: vec![bar(&"x".repeat(80), 1.0)],
            }],
            "",
        )
        .unwrap();
        assert!(svg.contains("xxx…") && !svg.contains(&"x".repeat(60)));
    }

    #[test]
    fn bars_of_nothing_draw_nothing() {
        assert_eq!(
            plot(
                &[Group {
                    heading: String::new(),
                    bars: vec![bar("a", 0.0)]
                }],
                ""
            )
            .unwrap(),
            ""
        );
        assert_eq!(plot(&[], "").unwrap(), "");
    }
}
