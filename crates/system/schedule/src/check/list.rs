//! Rules about the parameters and the entries of a list.

use takt_time::TaiTime;

use super::{Finding, Severity, readable};
use crate::gate::{GateList, GateMask, HORIZON_NS};
use crate::link::Link;
use crate::schedule::{GateOperation, Schedule};
use crate::summary::PortModel;

/// A base time further ahead than this is probably a mistake in the unit or the time scale.
const FAR_AHEAD_NS: i64 = 3_600_000_000_000;

pub(super) fn parameters(schedule: &Schedule, now: Option<TaiTime>, findings: &mut Vec<Finding>) {
    let mut find = |severity, code, message| findings.push(Finding::new(severity, code, message));
    let cycle_ns = schedule.cycle_time_ns;
    if cycle_ns == 0 {
        find(
            Severity::Error,
            "zero-cycle",
            "the cycle time is 0: give the duration of a cycle".into(),
        );
    } else if cycle_ns > GateList::MAX_CYCLE_NS {
        find(
            Severity::Error,
            "cycle-too-long",
            format!(
                "the cycle time of {} is longer than a day",
                readable(cycle_ns)
            ),
        );
    }
    let extension_ns = schedule.cycle_time_extension_ns;
    if extension_ns > GateList::MAX_CYCLE_NS {
        find(
            Severity::Error,
            "extension-too-long",
            format!(
                "the cycle time extension of {} is longer than a day",
                readable(extension_ns)
            ),
        );
    } else if cycle_ns > 0 && extension_ns >= cycle_ns {
        find(
            Severity::Warning,
            "extension-exceeds-cycle",
            format!(
                "the cycle time extension of {} is not shorter than the cycle of {}: before a change the last \
                 entry may hold for longer than a whole cycle",
                readable(extension_ns),
                readable(cycle_ns)
            ),
        );
    }
    if schedule.require_sync_ns == Some(0) {
        find(
            Severity::Warning,
            "require-sync-zero",
            "require-sync is 0: only a grandmaster of its own domain is never off; say how far the clock may be"
                .into(),
        );
    }
    if !schedule.enabled {
        find(
            Severity::Warning,
            "disabled",
            "the gates are disabled: the list does not run until they are enabled".into(),
        );
    }
    if schedule.initial_gates != GateMask::ALL {
        find(
            Severity::Note,
            "initial-gates",
            format!(
                "until the first cycle begins only the gates of classes {} are open",
                schedule.initial_gates
            ),
        );
    }
    base_time(schedule, now, findings);
}

fn base_time(schedule: &Schedule, now: Option<TaiTime>, findings: &mut Vec<Finding>) {
    let mut find = |severity, code, message| findings.push(Finding::new(severity, code, message));
    let base = schedule.base_time;
    let latest = HORIZON_NS - 4 * GateList::MAX_CYCLE_NS as i64;
    if !(0..=latest).contains(&base.as_nanos()) {
        find(
            Severity::Error,
            "base-time-range",
            format!(
                "the base time {base} is not between 1970 and 2115: give nanoseconds of TAI since 1970"
            ),
        );
        return;
    }
    if base.as_nanos() == 0 {
        find(
            Severity::Note,
            "base-time-unset",
            "the base time is 0: cycles begin at multiples of the cycle time since 1970; set it where the phase \
             matters to other nodes"
                .into(),
        );
    }
    let Some(now) = now else { return };
    let ahead = base.nanos_since(now);
    if ahead > FAR_AHEAD_NS {
        find(
            Severity::Warning,
            "base-time-far-ahead",
            format!(
                "the base time {base} is {} ahead: until then the running schedule goes on; check the unit \
                 (nanoseconds) and the time scale (TAI, 37 s ahead of UTC)",
                roughly(ahead.unsigned_abs())
            ),
        );
    } else if ahead < 0 && base.as_nanos() != 0 {
        find(
            Severity::Note,
            "base-time-past",
            format!(
                "the base time is {} ago: the schedule starts at its next cycle, and counts as a configuration \
                 change error if another one runs",
                roughly(ahead.unsigned_abs())
            ),
        );
    }
}

/// A time between two dates, as people say it.
fn roughly(nanos: u64) -> String {
    const UNITS: [(&str, u64); 4] = [
        ("days", 86_400),
        ("hours", 3_600),
        ("minutes", 60),
        ("seconds", 1),
    ];
    let seconds = nanos / 1_000_000_000;
    match UNITS.iter().find(|(_, size)| seconds >= 2 * size) {
        Some((unit, size)) => format!("{} {unit}", seconds / size),
        None => readable(nanos),
    }
}

pub(super) fn entries(schedule: &Schedule, port: &PortModel, findings: &mut Vec<Finding>) {
    if schedule.entries.is_empty() {
        findings.push(Finding::new(
            Severity::Error,
            "no-entries",
            "the gate control list is empty: give at least one entry".into(),
        ));
        return;
    }
    if schedule.entries.len() > GateList::MAX_ENTRIES {
        findings.push(Finding::new(
            Severity::Error,
            "too-many-entries",
            format!(
                "the gate control list has {} entries: at most {} are supported",
                schedule.entries.len(),
                GateList::MAX_ENTRIES
            ),
        ));
    }
    each_entry(schedule, port, findings);
    durations(schedule, port, findings);
}

fn each_entry(schedule: &Schedule, port: &PortModel, findings: &mut Vec<Finding>) {
    let smallest_ns = port.link.transmission_ns(0);
    let missing = !port.classes().collect::<GateMask>().bits();
    let mut previous = None;
    for (at, entry) in schedule.entries.iter().enumerate() {
        let mut find = |severity, code, message| {
            findings.push(Finding::new(severity, code, message).at_entry(at));
        };
        if entry.operation != GateOperation::Set {
            find(
                Severity::Error,
                "preemption",
                format!(
                    "entry {at} asks for {}: frame preemption (IEEE 802.3, clause 99) is not available, use \
                     set-gate-states",
                    entry.operation
                ),
            );
        }
        if entry.interval_ns == 0 {
            find(
                Severity::Error,
                "zero-interval",
                format!("entry {at} has an interval of 0: give it a duration or remove it"),
            );
        } else if u64::from(entry.interval_ns) < smallest_ns {
            find(
                Severity::Warning,
                "interval-below-smallest-frame",
                format!(
                    "entry {at} lasts {}, less than the smallest frame takes ({}): Linux's taprio refuses such \
                     entries",
                    readable(entry.interval_ns.into()),
                    readable(smallest_ns)
                ),
            );
        }
        if entry.gates.bits() & missing != 0 {
            find(
                Severity::Warning,
                "no-such-class",
                format!(
                    "entry {at} opens the gates of classes {}, but the port has only classes 0 to {}",
                    GateMask::from_bits(entry.gates.bits() & missing),
                    port.classes.saturating_sub(1)
                ),
            );
        }
        if previous == Some(entry.gates) {
            find(
                Severity::Note,
                "same-gates",
                format!("entry {at} has the same gates as the one before: the two could be one"),
            );
        }
        previous = Some(entry.gates);
    }
}

fn durations(schedule: &Schedule, port: &PortModel, findings: &mut Vec<Finding>) {
    let cycle_ns = schedule.cycle_time_ns;
    let entries_ns = schedule.entries_ns();
    if cycle_ns == 0 {
        return;
    }
    if entries_ns < cycle_ns {
        findings.push(Finding::new(
            Severity::Warning,
            "entries-below-cycle",
            format!(
                "the entries last {}, the cycle {}: the last entry holds for {} more (clause 8.6.9.2); Linux's \
                 taprio begins the list anew instead",
                readable(entries_ns),
                readable(cycle_ns),
                readable(cycle_ns - entries_ns)
            ),
        ));
    }
    findings.extend(cut(schedule, &port.link));
}

/// What is lost by the length of the cycle: no frame fits into it, or it ends before the entries do.
pub(super) fn cut(schedule: &Schedule, link: &Link) -> Vec<Finding> {
    let mut findings = Vec::new();
    let cycle_ns = schedule.cycle_time_ns;
    let entries_ns = schedule.entries_ns();
    let smallest_ns = link.transmission_ns(0);
    if cycle_ns < smallest_ns {
        findings.push(Finding::new(
            Severity::Error,
            "cycle-too-short",
            format!(
                "the cycle of {} is shorter than the smallest frame ({} at the port's rate)",
                readable(cycle_ns),
                readable(smallest_ns)
            ),
        ));
    }
    if entries_ns > cycle_ns {
        let mut start = 0;
        for (at, entry) in schedule.entries.iter().enumerate() {
            let end = start + u64::from(entry.interval_ns);
            let message = if start >= cycle_ns {
                format!(
                    "entry {at} would begin {} into a cycle of {}: it never runs",
                    readable(start),
                    readable(cycle_ns)
                )
            } else if end > cycle_ns {
                format!(
                    "entry {at} overlaps the next cycle: {} of its {} are cut; make the cycle {} long or the \
                     entries shorter",
                    readable(end - cycle_ns),
                    readable(entry.interval_ns.into()),
                    readable(entries_ns)
                )
            } else {
                start = end;
                continue;
            };
            let severity = Severity::Error;
            findings.push(Finding::new(severity, "entries-exceed-cycle", message).at_entry(at));
            start = end;
        }
    }
    findings
}
