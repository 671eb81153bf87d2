//! What a schedule gives each class: its share of the link and its worst wait.

use serde::Serialize;
use takt_time::TrafficClass;

use crate::link::Link;
use crate::schedule::Schedule;
use crate::window::{Window, sharing, slots, windows};

/// The port that a schedule is looked at for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortModel {
    /// Rate and framing.
    pub link: Link,
    /// How many traffic classes it has, 1 to 8: 0 to `classes` - 1.
    pub classes: u8,
    /// Its largest frame, octets without FCS.
    pub largest_frame: u32,
}

impl Default for PortModel {
    /// Gigabit Ethernet, eight classes, frames of 1514 octets.
    fn default() -> Self {
        Self {
            link: Link::ethernet(1_000_000_000),
            classes: 8,
            largest_frame: 1514,
        }
    }
}

impl PortModel {
    /// The classes that the port has, lowest first.
    pub fn classes(&self) -> impl DoubleEndedIterator<Item = TrafficClass> + use<> {
        let classes = self.classes;
        TrafficClass::all().filter(move |class| class.number() < classes)
    }

    /// The largest frame of a class under its `queueMaxSDU`, octets without FCS.
    pub fn largest_frame(&self, schedule: &Schedule, class: TrafficClass) -> u32 {
        match schedule.max_sdu[usize::from(class.number())] {
            0 => self.largest_frame,
            most => self
                .largest_frame
                .min(most.saturating_add(self.link.framing.header)),
        }
    }
}

/// What a schedule gives one class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassSummary {
    /// Its number.
    pub class: u8,
    /// How long its gate is open in a cycle.
    pub open_ns: u64,
    /// The same as a share of the cycle, 0 to 1.
    pub open_share: f64,
    /// How many windows it has in a cycle.
    pub windows: usize,
    /// Its shortest window; 0 if it has none.
    pub shortest_window_ns: u64,
    /// Its longest window; 0 if it has none.
    pub longest_window_ns: u64,
    /// Its largest frame, octets without FCS.
    pub largest_frame: u32,
    /// How long before its gate closes the largest frame may start at the latest: the guard band.
    pub guard_ns: u64,
    /// How many of its largest frames fit a cycle, with no other class sending; `None` on a link
    /// without a rate.
    pub frames_per_cycle: Option<u64>,
    /// The bandwidth that makes, bits per second of frames without what the medium adds.
    pub capacity_bps: Option<u64>,
    /// The longest that its largest frame waits for its gate: from just after the last instant at
    /// which it may start to the next window that is long enough. `None` if it never may.
    pub worst_gate_wait_ns: Option<u64>,
    /// The longest that a frame already on the link may add to that: the largest frame of a lower
    /// class with which it shares time, or the gap after a frame that ended with its window.
    pub worst_blocking_ns: u64,
}

impl ClassSummary {
    /// Gate and link together: the worst wait of the first frame in the class's queue. Frames before
    /// it in the queue and frames of higher classes that share its windows come on top.
    pub fn worst_wait_ns(&self) -> Option<u64> {
        Some(
            self.worst_gate_wait_ns?
                .saturating_add(self.worst_blocking_ns),
        )
    }
}

/// What a schedule gives its classes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The cycle time.
    pub cycle_ns: u64,
    /// The share of a cycle in which any gate is open, 0 to 1.
    pub open_share: f64,
    /// The port's classes, highest first.
    pub classes: Vec<ClassSummary>,
}

/// Sums up what `schedule` gives the classes of `port`.
pub fn summary(schedule: &Schedule, port: &PortModel) -> Summary {
    let cycle_ns = schedule.cycle_time_ns;
    let some_open: u64 = slots(schedule)
        .iter()
        .filter(|slot| slot.gates.bits() != 0)
        .map(|slot| slot.length_ns)
        .sum();
    Summary {
        cycle_ns,
        open_share: share(some_open, cycle_ns),
        classes: port
            .classes()
            .rev()
            .map(|class| of_class(schedule, port, class))
            .collect(),
    }
}

fn of_class(schedule: &Schedule, port: &PortModel, class: TrafficClass) -> ClassSummary {
    let cycle_ns = schedule.cycle_time_ns;
    let windows = windows(schedule, class);
    let open_ns = windows.iter().map(|window| window.length_ns).sum();
    let largest_frame = port.largest_frame(schedule, class);
    let guard_ns = port.link.transmission_ns(largest_frame);
    let always_open = cycle_ns > 0 && open_ns == cycle_ns;
    let frames_per_cycle = port
        .link
        .rate_bps
        .map(|_| frames(&windows, always_open, largest_frame, &port.link));
    ClassSummary {
        class: class.number(),
        open_ns,
        open_share: share(open_ns, cycle_ns),
        windows: windows.len(),
        shortest_window_ns: windows.iter().map(|w| w.length_ns).min().unwrap_or(0),
        longest_window_ns: windows.iter().map(|w| w.length_ns).max().unwrap_or(0),
        largest_frame,
        guard_ns,
        frames_per_cycle,
        capacity_bps: frames_per_cycle.and_then(|frames| {
            let bits = u128::from(frames) * u128::from(largest_frame) * 8 * 1_000_000_000;
            u64::try_from(bits.checked_div(cycle_ns.into())?).ok()
        }),
        worst_gate_wait_ns: if always_open {
            Some(0)
        } else {
            gate_wait(&windows, guard_ns, cycle_ns)
        },
        worst_blocking_ns: blocking(schedule, port, class),
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

fn frames(windows: &[Window], always_open: bool, len: u32, link: &Link) -> u64 {
    let transmission = link.transmission_ns(len);
    let occupancy = link.occupancy_ns(len).max(1);
    windows
        .iter()
        .map(|window| {
            if always_open {
                window.length_ns / occupancy
            } else if window.length_ns < transmission {
                0
            } else {
                1 + (window.length_ns - transmission) / occupancy
            }
        })
        .sum()
}

fn gate_wait(windows: &[Window], guard_ns: u64, cycle_ns: u64) -> Option<u64> {
    let usable: Vec<Window> = windows
        .iter()
        .copied()
        .filter(|window| window.length_ns >= guard_ns)
        .collect();
    let first = *usable.first()?;
    let next = usable
        .iter()
        .skip(1)
        .map(|window| window.start_ns)
        .chain([first.start_ns.saturating_add(cycle_ns)]);
    usable
        .iter()
        .zip(next)
        .map(|(window, next)| next.saturating_sub(window.end_ns() - guard_ns))
        .max()
}

fn blocking(schedule: &Schedule, port: &PortModel, class: TrafficClass) -> u64 {
    let shared = sharing(schedule, class);
    let lower = port
        .classes()
        .filter(|other| *other < class && shared.is_open(*other))
        .map(|other| port.link.occupancy_ns(port.largest_frame(schedule, other)))
        .max();
    lower.unwrap_or_else(|| {
        if port.classes > 1 {
            port.link.duration_ns(port.link.framing.gap.into())
        } else {
            0
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::GateMask;
    use crate::schedule::GateEntry;

    fn protected_window() -> Schedule {
        Schedule {
            cycle_time_ns: 1_000_000,
            entries: vec![
                GateEntry::new(GateMask::from_bits(0x80), 250_000),
                GateEntry::new(GateMask::from_bits(0x03), 750_000),
            ],
            ..Schedule::default()
        }
    }

    fn class(summary: &Summary, number: u8) -> &ClassSummary {
        let found = summary.classes.iter().find(|class| class.class == number);
        found.expect("a class of the port")
    }

    #[test]
    fn shares_and_waits_of_a_protected_window() {
        let summary = summary(&protected_window(), &PortModel::default());
        let seven = class(&summary, 7);
        assert_eq!(
            (seven.open_ns, seven.open_share, seven.windows),
            (250_000, 0.25, 1)
        );
        assert_eq!(seven.guard_ns, 12_208);
        // From 237 792 ns, when it is too late for a full frame, to the next cycle.
        assert_eq!(seven.worst_gate_wait_ns, Some(1_000_000 - 237_792));
        // Nobody shares the window; the gap after the last frame of another class is 12 octets.
        assert_eq!(seven.worst_blocking_ns, 96);
        // One frame of 12 208 ns and 19 more at 12 304 ns each in 250 µs.
        assert_eq!(seven.frames_per_cycle, Some(20));
        assert_eq!(seven.capacity_bps, Some(20 * 1514 * 8 * 1_000));
        assert_eq!(summary.open_share, 1.0);
    }

    #[test]
    fn a_lower_class_in_the_same_window_blocks_for_its_largest_frame() {
        let mut schedule = protected_window();
        let port = PortModel::default();
        assert_eq!(
            class(&summary(&schedule, &port), 1).worst_blocking_ns,
            12_304
        );
        schedule.max_sdu[0] = 100;
        let shorter = (100 + 14 + 24) * 8;
        assert_eq!(
            class(&summary(&schedule, &port), 1).worst_blocking_ns,
            shorter
        );
        assert_eq!(class(&summary(&schedule, &port), 0).worst_blocking_ns, 96);
    }

    #[test]
    fn a_class_that_never_opens_waits_for_ever() {
        let summary = summary(&protected_window(), &PortModel::default());
        assert_eq!(class(&summary, 4).worst_wait_ns(), None);
        assert_eq!(class(&summary, 4).frames_per_cycle, Some(0));
    }

    #[test]
    fn windows_too_short_for_the_largest_frame_do_not_shorten_its_wait() {
        let mut schedule = protected_window();
        schedule.entries = vec![
            GateEntry::new(GateMask::from_bits(0x80), 250_000),
            GateEntry::new(GateMask::from_bits(0x01), 250_000),
            GateEntry::new(GateMask::from_bits(0x80), 5_000),
            GateEntry::new(GateMask::from_bits(0x01), 495_000),
        ];
        let summary = summary(&schedule, &PortModel::default());
        assert_eq!(
            class(&summary, 7).worst_gate_wait_ns,
            Some(1_000_000 - 237_792)
        );
        assert_eq!(class(&summary, 7).shortest_window_ns, 5_000);
    }

    #[test]
    fn a_class_that_never_closes_waits_for_the_link_only() {
        let mut schedule = protected_window();
        schedule.entries = vec![GateEntry::new(GateMask::from_bits(0x81), 1_000_000)];
        let summary = summary(&schedule, &PortModel::default());
        assert_eq!(class(&summary, 7).worst_wait_ns(), Some(12_304));
        assert_eq!(
            class(&summary, 7).frames_per_cycle,
            Some(1_000_000 / 12_304)
        );
    }
}
