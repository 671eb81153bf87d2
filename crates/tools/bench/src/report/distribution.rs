//! The latency plot: the share of messages that were at least this fast, with room for the tail.

use super::ReportError;
use super::canvas::{Anchor, Canvas, FADED, GRID, INK, Look, draw, format_tick, logarithmic_ticks};
use crate::statistics::Latencies;

/// The shares that have a line of their own. The vertical scale counts nines, so the axis ends here.
const SHARES: [(f64, &str); 6] = [
    (0.0, "0 %"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
];
/// Fewer latencies than this above a share say nothing about it.
const LEAST_ABOVE: f64 = 10.0;

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = HEIGHT - 50.0;

/// A unit of time, in nanoseconds, and its sign.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Unit(pub(super) f64, pub(super) &'static str);

impl Unit {
    /// The unit in which `typical_ns` reads well.
    pub(super) fn for_latency(typical_ns: f64) -> Self {
        match typical_ns {
            ns if ns < 1e3 => Self(1.0, "ns"),
            ns if ns < 1e7 => Self(1e3, "µs"),
            ns if ns < 1e10 => Self(1e6, "ms"),
            _ => Self(1e9, "s"),
        }
    }
}

/// Draws the distribution of each variant.
pub(super) fn plot(curves: &[(Look, Latencies)], unit: Unit) -> Result<String, ReportError> {
    let Some(scale) = Scale::of(curves, unit) else {
        return Ok(String::new());
    };
    draw(WIDTH, HEIGHT, |canvas| {
        scale.draw_grid(canvas, unit)?;
        // The first variant is drawn last: it is the one the others are compared to.
        for (look, latencies) in curves.iter().rev() {
            let points = scale.curve(latencies, unit);
            if look.dashed() {
                canvas.dashed_line(&points, look.colour(), 1.8)?;
            } else {
                canvas.line(&points, look.colour(), 1.8)?;
            }
        }
        Ok(())
    })
}

struct Scale {
    /// The latency at the left edge and at the right one, in the plot's unit.
    latency: (f64, f64),
    /// The share at the top, and how many nines that is.
    top: (f64, f64),
}

fn nines(share: f64) -> f64 {
    -(1.0 - share).log10()
}

impl Scale {
    fn of(curves: &[(Look, Latencies)], unit: Unit) -> Option<Self> {
        let most = curves
            .iter()
            .map(|(_, latencies)| latencies.count())
            .max()? as f64;
        let shares = SHARES.iter().map(|(share, _)| *share);
        let top = shares
            .filter(|share| most * (1.0 - share) >= LEAST_ABOVE)
            .fold(0.9, f64::max);
        let mut range: Option<(f64, f64)> = None;
        for (latency, share) in curves
            .iter()
            .flat_map(|(_, latencies)| latencies.distribution())
        {
            // Beyond the top of the plot nothing is drawn, but for the end of the line that leads there.
            if share <= top || range.is_none() {
                let latency = latency as f64 / unit.0;
                let (low, high) = range.unwrap_or((latency, latency));
                range = Some((low.min(latency), high.max(latency)));
            }
        }
        let (low, high) = range?;
        // Some air, and never a range so narrow that it has no tick.
        Some(Self {
            latency: (low / 1.08, (high * 1.08).max(low * 2.2)),
            top: (top, nines(top)),
        })
    }

    fn x(&self, latency: f64) -> f64 {
        let (low, high) = self.latency;
        LEFT + (RIGHT - LEFT) * (latency / low).ln() / (high / low).ln()
    }

    fn y(&self, share: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * (nines(share) / self.top.1).min(1.0)
    }

    fn draw_grid(&self, canvas: &Canvas<'_>, unit: Unit) -> Result<(), ReportError> {
        for (share, label) in SHARES.iter().filter(|(share, _)| *share <= self.top.0) {
            let y = self.y(*share);
            canvas.line(&[(LEFT, y), (RIGHT, y)], GRID, 1.0)?;
            canvas.text(label, (LEFT - 10.0, y), Anchor::End, 12.5, INK)?;
        }
        for tick in logarithmic_ticks(self.latency.0, self.latency.1) {
            let x = self.x(tick);
            canvas.line(&[(x, TOP), (x, BOTTOM)], GRID, 1.0)?;
            canvas.text(
                &format_tick(tick),
                (x, BOTTOM + 16.0),
                Anchor::Middle,
                12.5,
                INK,
            )?;
        }
        canvas.line(&[(LEFT, BOTTOM), (RIGHT, BOTTOM)], FADED, 1.0)?;
        let caption = format!("latency in {}", unit.1);
        canvas.text(
            &caption,
            ((LEFT + RIGHT) / 2.0, HEIGHT - 12.0),
            Anchor::Middle,
            12.5,
            FADED,
        )
    }

    /// The points of a curve that differ on paper.
    fn curve(&self, latencies: &Latencies, unit: Unit) -> Vec<(f64, f64)> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (latency, share) in latencies.distribution() {
            let x = self.x(latency as f64 / unit.0);
            let y = self.y(share);
            if points.is_empty() {
                points.push((x, BOTTOM));
            }
            if points
                .last()
                .is_none_or(|last| (x - last.0).abs() + (y - last.1).abs() > 0.7)
            {
                points.push((x.min(RIGHT), y));
            }
            if share >= self.top.0 || x >= RIGHT {
                break;
            }
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(values_ns: impl Iterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::new();
        values_ns.for_each(|value| latencies.record_ns(value));
        latencies
    }

    #[test]
    fn the_plot_shows_no_share_that_too_few_latencies_speak_for() {
        let plot_of = |count: u64| {
            let curve = [(Look::of(0), latencies((1..=count).map(|i| 1000 + i)))];
            plot(&curve, Unit::for_latency(1000.0)).unwrap()
        };
        assert!(!plot_of(500).contains(">\n99 %\n"));
        assert!(plot_of(2000).contains(">\n99 %\n"), "{}", plot_of(2000));
        assert!(!plot_of(2000).contains("99.9 %"));
    }

    #[test]
    fn every_curve_stays_on_the_sheet() {
        let curves = [
            (Look::of(0), latencies([5000; 1000].into_iter())),
            (Look::of(1), latencies((1..100_000).map(|i| i * i))),
        ];
        let scale = Scale::of(&curves, Unit(1e3, "µs")).unwrap();
        for (_, latencies) in &curves {
            for (x, y) in scale.curve(latencies, Unit(1e3, "µs")) {
                assert!(
                    (LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y),
                    "({x}, {y})"
                );
            }
        }
    }

    #[test]
    fn nothing_measured_draws_nothing() {
        assert_eq!(plot(&[], Unit(1.0, "ns")).unwrap(), "");
        assert_eq!(
            plot(&[(Look::of(0), Latencies::new())], Unit(1.0, "ns")).unwrap(),
            ""
        );
    }
}
