//! When each class is open within a cycle, as windows: for people and for analysis.
//!
//! Works on schedules as stated, sound or not, so that a mistake can be shown. What runs is
//! [`Gates`](crate::Gates), whose answers these agree with for every schedule that can run.

use takt_time::TrafficClass;

use crate::gate::GateMask;
use crate::schedule::Schedule;

/// A stretch of time in which the gates do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Nanoseconds from the start of the cycle.
    pub start_ns: u64,
    /// Nanoseconds; never 0.
    pub length_ns: u64,
    /// The gates.
    pub gates: GateMask,
}

/// A stretch of time in which the gate of a class is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Nanoseconds from the start of the cycle.
    pub start_ns: u64,
    /// Nanoseconds; a window may reach into the next cycle, and is never longer than one.
    pub length_ns: u64,
}

impl Window {
    /// Nanoseconds from the start of the cycle.
    pub const fn end_ns(self) -> u64 {
        self.start_ns.saturating_add(self.length_ns)
    }
}

/// The gates over a cycle: entries cut at the cycle's end, the last one held until then, entries
/// without duration left out.
pub fn slots(schedule: &Schedule) -> Vec<Slot> {
    let cycle_ns = schedule.cycle_time_ns;
    let mut slots: Vec<Slot> = Vec::with_capacity(schedule.entries.len());
    let mut start_ns = 0;
    for entry in &schedule.entries {
        let length_ns = u64::from(entry.interval_ns).min(cycle_ns - start_ns);
        if length_ns > 0 {
            slots.push(Slot {
                start_ns,
                length_ns,
                gates: entry.gates,
            });
            start_ns += length_ns;
        }
    }
    if let Some(last) = slots.last_mut() {
        last.length_ns += cycle_ns - start_ns;
    }
    slots
}

/// The windows of a class in a cycle, in order. Windows that meet are one, also over the end of the
/// cycle: the last one then reaches into the next cycle. A class that never closes has one window as
/// long as the cycle.
pub fn windows(schedule: &Schedule, class: TrafficClass) -> Vec<Window> {
    let mut windows: Vec<Window> = Vec::new();
    for slot in slots(schedule) {
        if !slot.gates.is_open(class) {
            continue;
        }
        match windows.last_mut() {
            Some(last) if last.end_ns() == slot.start_ns => last.length_ns += slot.length_ns,
            _ => windows.push(Window {
                start_ns: slot.start_ns,
                length_ns: slot.length_ns,
            }),
        }
    }
    let wraps = windows.len() > 1
        && windows[0].start_ns == 0
        && windows[windows.len() - 1].end_ns() == schedule.cycle_time_ns;
    if wraps {
        let first = windows.remove(0);
        if let Some(last) = windows.last_mut() {
            last.length_ns += first.length_ns;
        }
    }
    windows
}

/// The classes that share some time of the cycle with `class`, each with an open gate.
pub fn sharing(schedule: &Schedule, class: TrafficClass) -> GateMask {
    let together = slots(schedule)
        .into_iter()
        .filter(|slot| slot.gates.is_open(class))
        .fold(0, |mask, slot| mask | slot.gates.bits());
    TrafficClass::all()
        .filter(|other| *other != class && GateMask::from_bits(together).is_open(*other))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use takt_time::TaiTime;

    use super::*;
    use crate::gate::{GateList, Gates};
    use crate::schedule::GateEntry;

    fn schedule(cycle_time_ns: u64, entries: &[(u8, u32)]) -> Schedule {
        Schedule {
            cycle_time_ns,
            entries: entries
                .iter()
                .map(|&(gates, interval)| GateEntry::new(GateMask::from_bits(gates), interval))
                .collect(),
            ..Schedule::default()
        }
    }

    fn window(start_ns: u64, length_ns: u64) -> Window {
        Window {
            start_ns,
            length_ns,
        }
    }

    #[test]
    fn windows_over_the_end_of_the_cycle_are_one() {
        let schedule = schedule(100, &[(1, 20), (2, 50), (1, 30)]);
        assert_eq!(
            windows(&schedule, TrafficClass::BEST_EFFORT),
            [window(70, 50)]
        );
    }

    #[test]
    fn a_class_that_never_closes_has_one_window_as_long_as_the_cycle() {
        let schedule = schedule(100, &[(1, 20), (3, 50), (1, 30)]);
        assert_eq!(
            windows(&schedule, TrafficClass::BEST_EFFORT),
            [window(0, 100)]
        );
    }

    #[test]
    fn classes_share_time_when_their_gates_are_open_at_once() {
        let schedule = schedule(100, &[(0b0011, 20), (0b0110, 50), (0b1000, 30)]);
        let one = TrafficClass::new(1).unwrap_or_default();
        assert_eq!(sharing(&schedule, one).bits(), 0b0101);
    }

    proptest! {
        #[test]
        fn windows_are_when_the_gates_of_a_running_list_are_open(
            cycle in 1u64..60,
            entries in prop::collection::vec((any::<u8>(), 1u32..20), 1..8),
            number in 0u8..8,
        ) {
            let schedule = schedule(cycle, &entries);
            let class = TrafficClass::new(number).unwrap_or_default();
            let mut gates = Gates::new(GateMask::NONE);
            gates.install(Arc::new(GateList::new(&schedule).unwrap()), TaiTime::from_nanos(0));
            let windows = windows(&schedule, class);
            for t in 0..cycle {
                let expected = windows.iter().any(|window| {
                    (window.start_ns..window.end_ns()).contains(&t)
                        || (window.start_ns..window.end_ns()).contains(&(t + cycle))
                });
                prop_assert_eq!(gates.state(TaiTime::from_nanos(t as i64)).is_open(class), expected);
            }
        }
    }
}
