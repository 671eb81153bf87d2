//! The delay of a flow over time, in bounded memory: as time goes on, neighbouring points are merged.

use takt_health::level::Level;

/// The most points of a curve.
const POINTS: usize = 1024;

/// What was seen in a step of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The smallest delay, nanoseconds.
    pub min_ns: i64,
    /// The largest delay, nanoseconds.
    pub max_ns: i64,
    /// The worst level.
    pub level: Level,
}

/// A flow's delay over time.
#[derive(Clone, Debug)]
pub struct Curve {
    start_ns: i64,
    step_ns: i64,
    points: Vec<Option<Point>>,
}

impl Curve {
    /// A curve that begins now.
    pub fn new(start_ns: i64) -> Self {
        Self {
            start_ns,
            step_ns: 1_000_000,
            points: Vec::new(),
        }
    }

    /// Takes a delay.
    pub fn take(&mut self, now_ns: i64, delay_ns: i64, level: Level) {
        let since = (now_ns - self.start_ns).max(0);
        while since / self.step_ns >= POINTS as i64 {
            self.step_ns *= 2;
            let halves: Vec<Option<Point>> = self
                .points
                .chunks(2)
                .map(|pair| pair.iter().flatten().copied().reduce(merge))
                .collect();
            self.points = halves;
        }
        let at = (since / self.step_ns) as usize;
        if self.points.len() <= at {
            self.points.resize(at + 1, None);
        }
        let point = Point {
            min_ns: delay_ns,
            max_ns: delay_ns,
            level,
        };
        let old = &mut self.points[at];
        *old = Some(old.map_or(point, |old| merge(old, point)));
    }

    /// The points that there are, with their times in nanoseconds since the first.
    pub fn points(&self) -> impl Iterator<Item = (i64, Point)> {
        let step = self.step_ns;
        let points = self.points.iter().enumerate();
        points.filter_map(move |(at, point)| Some((at as i64 * step, (*point)?)))
    }
}

fn merge(one: Point, other: Point) -> Point {
    Point {
        min_ns: one.min_ns.min(other.min_ns),
        max_ns: one.max_ns.max(other.max_ns),
        level: one.level.max(other.level),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_extremes_in_bounded_memory() {
        let mut curve = Curve::new(0);
        for at in 0..1_000_000_i64 {
            let delay = if at == 777_777 { 9_000 } else { at % 100 };
            curve.take(at * 10_000, delay, Level::Green);
        }
        assert!(curve.points.len() <= POINTS);
        let (at, point) = curve
            .points()
            .max_by_key(|(_, point)| point.max_ns)
            .expect("points");
        assert_eq!((point.min_ns, point.max_ns), (0, 9_000));
        assert!((at - 7_777_770_000).abs() <= curve.step_ns);
    }
}
