//! Pictures of a schedule: its gates over a cycle, for a terminal and as SVG.
//!
//! Both show schedules as stated, sound or not, with what [`summary`](mod@crate::summary) says of each class.

mod svg;
mod terminal;

pub use svg::svg;
pub use terminal::{TerminalStyle, terminal};

use crate::check::readable;
use crate::schedule::Schedule;
use crate::summary::ClassSummary;

/// Steps of a scale of `length` in round numbers, at most `most` of them.
fn scale_step(length: u64, most: u64) -> u64 {
    let mut size: u64 = 1;
    loop {
        for factor in [1, 2, 5] {
            let step = size.saturating_mul(factor);
            if length / step <= most || step == u64::MAX {
                return step;
            }
        }
        size = size.saturating_mul(10);
    }
}

fn subtitle(schedule: &Schedule) -> String {
    let mut text = format!("base time {}", schedule.base_time);
    if schedule.cycle_time_extension_ns != 0 {
        text += &format!(
            ", cycle time extension {}",
            readable(schedule.cycle_time_extension_ns)
        );
    }
    let entries = schedule.entries.len();
    text += &format!(
        ", {entries} {}",
        if entries == 1 { "entry" } else { "entries" }
    );
    if !schedule.enabled {
        text += ", gates disabled";
    }
    text
}

fn wait(class: &ClassSummary) -> String {
    match class.worst_wait_ns() {
        Some(nanos) => duration(nanos),
        None => "for ever".into(),
    }
}

fn share(class: &ClassSummary) -> String {
    format!("{:.1} %", class.open_share * 100.0)
}

/// A duration to about three digits: what a picture has room for.
pub fn duration(nanos: u64) -> String {
    let digits = nanos.checked_ilog10().unwrap_or(0);
    let step = 10u64.pow(digits.saturating_sub(2));
    readable(nanos.saturating_add(step / 2) / step * step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_round_steps() {
        assert_eq!(scale_step(1_000_000, 10), 100_000);
        assert_eq!(scale_step(900_000, 8), 200_000);
        assert_eq!(scale_step(7, 10), 1);
        assert_eq!(scale_step(0, 10), 1);
        assert!(u64::MAX / scale_step(u64::MAX, 10) <= 10);
    }

    #[test]
    fn durations_are_rounded_to_duration() {
        assert_eq!(duration(762_304), "762 µs");
        assert_eq!(duration(12_304), "12.3 µs");
        assert_eq!(duration(96), "96 ns");
        assert_eq!(duration(0), "0 ns");
        assert_eq!(duration(999_999), "1 ms");
    }
}
