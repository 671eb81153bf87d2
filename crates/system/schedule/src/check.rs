//! What is wrong, doubtful or noteworthy about a schedule, all at once and in words.
//!
//! A schedule without an [`Error`](Severity::Error) runs ([`GateList::new`]); warnings say where it will
//! not do what its author probably meant, notes what is worth knowing. Each finding has a code that
//! stays the same, for tools.

mod list;
mod windows;

use std::fmt;

use serde::Serialize;
use takt_time::{TaiTime, TrafficClass};

use crate::link::Link;
use crate::schedule::Schedule;
use crate::summary::PortModel;

#[cfg(doc)]
use crate::gate::GateList;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Runs, but probably not as meant.
    Warning,
    /// Cannot run, or a class can never send.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One thing about a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// A short name that stays the same: `zero-interval`.
    pub code: &'static str,
    /// The entry it is about, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<usize>,
    /// The class it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<u8>,
    /// What is the matter, with the values, and what would be right.
    pub message: String,
}

impl Finding {
    pub(crate) fn new(severity: Severity, code: &'static str, message: String) -> Self {
        Self {
            severity,
            code,
            entry: None,
            class: None,
            message,
        }
    }

    fn at_entry(self, entry: usize) -> Self {
        Self {
            entry: Some(entry),
            ..self
        }
    }

    fn of_class(self, class: TrafficClass) -> Self {
        Self {
            class: Some(class.number()),
            ..self
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} [{}]", self.severity, self.message, self.code)
    }
}

/// Looks at a schedule for a port: errors first, then warnings, then notes. With `now` the base time
/// is looked at too.
pub fn check(schedule: &Schedule, port: &PortModel, now: Option<TaiTime>) -> Vec<Finding> {
    let mut findings = Vec::new();
    list::parameters(schedule, now, &mut findings);
    list::entries(schedule, port, &mut findings);
    if let Err(error) = crate::selection::check(&schedule.selection, &port.link) {
        let code = error.code();
        findings.push(Finding::new(Severity::Error, code, error.to_string()));
    }
    if schedule.cycle_time_ns > 0 && schedule.entries.iter().any(|entry| entry.interval_ns > 0) {
        windows::classes(schedule, port, &mut findings);
    }
    // Stable: within a severity in the order of the rules.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// What of a schedule is lost by the length of its cycle: entries that it cuts or never comes to (a cycle begins anew
/// whether or not the list is at its end: clause 8.6.9.1), or all, where not even the smallest frame fits into it. Such a list
/// runs, but nobody means it: nodes do not install it.
pub fn cut(schedule: &Schedule, link: &Link) -> Vec<Finding> {
    list::cut(schedule, link)
}

/// A duration for people: `250 µs`, `1.5 ms`, `800 ns`.
pub(crate) fn readable(nanos: u64) -> String {
    let (unit, size) = match nanos {
        1_000_000_000.. => ("s", 1_000_000_000),
        1_000_000.. => ("ms", 1_000_000),
        1_000.. => ("µs", 1_000),
        _ => ("ns", 1),
    };
    let (whole, rest) = (nanos / size, nanos % size);
    if rest == 0 {
        return format!("{whole} {unit}");
    }
    let digits = size.ilog10() as usize;
    let fraction = format!("{rest:0digits$}");
    format!("{whole}.{} {unit}", fraction.trim_end_matches('0'))
}
