//! Rules about the windows that a list gives each class.

use takt_time::TrafficClass;

use super::{Finding, Severity, readable};
use crate::gate::GateMask;
use crate::schedule::Schedule;
use crate::summary::PortModel;
use crate::window::{sharing, slots, windows};

/// What the service data unit of a frame of minimal size holds: shorter frames are padded.
const SMALLEST_SDU: u32 = 46;

pub(super) fn classes(schedule: &Schedule, port: &PortModel, findings: &mut Vec<Finding>) {
    for class in port.classes().rev() {
        max_sdu(schedule, port, class, findings);
        lengths(schedule, port, class, findings);
        shared(schedule, port, class, findings);
    }
    let closed_ns: u64 = slots(schedule)
        .iter()
        .filter(|slot| slot.gates.bits() == 0)
        .map(|slot| slot.length_ns)
        .sum();
    if closed_ns > 0 {
        findings.push(Finding::new(
            Severity::Note,
            "all-closed",
            format!(
                "all gates are closed for {} of each cycle: guard bands need no entry of their own, no frame \
                 starts that would not end in its window",
                readable(closed_ns)
            ),
        ));
    }
    if port.link.rate_bps.is_none() {
        findings.push(Finding::new(
            Severity::Warning,
            "no-rate",
            "the port has no rate: frames are taken to need no time, so there is no guard band"
                .into(),
        ));
    }
}

fn max_sdu(
    schedule: &Schedule,
    port: &PortModel,
    class: TrafficClass,
    findings: &mut Vec<Finding>,
) {
    let max_sdu = schedule.max_sdu[usize::from(class.number())];
    let header = port.link.framing.header;
    let mut find = |severity, code, message| {
        findings.push(Finding::new(severity, code, message).of_class(class));
    };
    if max_sdu == 0 {
        return;
    }
    if max_sdu < SMALLEST_SDU {
        find(
            Severity::Warning,
            "max-sdu-small",
            format!(
                "max-sdu {max_sdu} of class {class} is less than the {SMALLEST_SDU} octets that every frame carries: \
                 only padded frames pass; 0 means no limit"
            ),
        );
    }
    if max_sdu.saturating_add(header) > port.largest_frame {
        find(
            Severity::Warning,
            "max-sdu-large",
            format!(
                "max-sdu {max_sdu} of class {class} has no effect: the port's frames carry at most {} octets",
                port.largest_frame.saturating_sub(header)
            ),
        );
    }
}

fn lengths(
    schedule: &Schedule,
    port: &PortModel,
    class: TrafficClass,
    findings: &mut Vec<Finding>,
) {
    let mut find = |severity, code, message| {
        findings.push(Finding::new(severity, code, message).of_class(class));
    };
    let windows = windows(schedule, class);
    let Some(longest) = windows.iter().map(|window| window.length_ns).max() else {
        find(
            Severity::Error,
            "never-open",
            format!(
                "class {class} is never open: its frames are refused; give it a window or send it nothing"
            ),
        );
        return;
    };
    if longest == schedule.cycle_time_ns {
        return;
    }
    let largest = port.largest_frame(schedule, class);
    let needed = port.link.transmission_ns(largest);
    let short = windows.iter().filter(|window| window.length_ns < needed);
    let fits = |window_ns: u64| {
        let octets = port.link.longest_frame(window_ns);
        octets.saturating_sub(port.link.framing.header)
    };
    if longest < needed {
        let remedy = match fits(longest) {
            0 => "no frame passes at all; make it longer".to_owned(),
            sdu => format!("make it longer or set max-sdu to {sdu} or less"),
        };
        find(
            Severity::Error,
            "window-below-largest-frame",
            format!(
                "the longest window of class {class} lasts {}, its largest frame of {largest} octets takes {}: \
                 {remedy}",
                readable(longest),
                readable(needed)
            ),
        );
        return;
    }
    for window in short {
        find(
            Severity::Warning,
            "window-short",
            format!(
                "the window of class {class} at {} lasts {}: its largest frame of {largest} octets ({}) passes \
                 in other windows only",
                readable(window.start_ns),
                readable(window.length_ns),
                readable(needed)
            ),
        );
    }
    if schedule.max_sdu[usize::from(class.number())] == 0 && needed.saturating_mul(2) > longest {
        find(
            Severity::Warning,
            "guard-band-large",
            format!(
                "the guard band of class {class} ({} for a frame of {largest} octets) takes over half of its window \
                 of {}: set max-sdu to what it really sends",
                readable(needed),
                readable(longest)
            ),
        );
    }
}

/// Overlapping windows: a class that has windows of its own shares them with others.
fn shared(schedule: &Schedule, port: &PortModel, class: TrafficClass, findings: &mut Vec<Finding>) {
    let windows = windows(schedule, class);
    let closes = windows
        .first()
        .is_some_and(|window| window.length_ns < schedule.cycle_time_ns);
    if !closes {
        return;
    }
    let lower: GateMask = port
        .classes()
        .filter(|other| *other < class && sharing(schedule, class).is_open(*other))
        .collect();
    let largest = lower
        .classes()
        .map(|other| port.largest_frame(schedule, other))
        .max();
    if let Some(largest) = largest {
        findings.push(
            Finding::new(
                Severity::Note,
                "shared-window",
                format!(
                    "the windows of class {class} overlap those of classes {lower}: a frame of theirs that has \
                     begun delays it by up to {}",
                    readable(port.link.occupancy_ns(largest))
                ),
            )
            .of_class(class),
        );
    }
}
