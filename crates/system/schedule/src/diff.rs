//! What changes from one schedule to another, for people who are about to install it.

use std::fmt;

use serde::Serialize;
use takt_time::TrafficClass;

use crate::check::readable;
use crate::form::{Document, shown};
use crate::schedule::{GateEntry, GateOperation, Schedule};
use crate::selection::Selection;
use crate::window::{Slot, slots};

/// One thing that is different.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What: `cycle time`, `entry 3`.
    pub what: String,
    /// How it was; nothing where it is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// How it is; nothing where it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = &self.what;
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => write!(f, "{what}: {before} -> {after}"),
            (Some(before), None) => write!(f, "{what} removed: {before}"),
            (None, Some(after)) => write!(f, "{what} added: {after}"),
            (None, None) => f.write_str(what),
        }
    }
}

/// The differences of two schedules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// One by one: the parameters, then the entries. Entries that are gone have their number in the
    /// first schedule, new ones theirs in the second.
    pub changes: Vec<Change>,
    /// Whether the gates open and close at the same instants nevertheless, as when entries are only
    /// split differently or the base time is moved by whole cycles.
    pub same_gates: bool,
}

/// Compares two schedules.
pub fn diff(before: &Schedule, after: &Schedule) -> Difference {
    let mut changes = Vec::new();
    let mut compare = |what: &str, was: String, is: String| {
        if was != is {
            changes.push(Change {
                what: what.to_owned(),
                before: Some(was),
                after: Some(is),
            });
        }
    };
    let duration = |nanos: u64| format!("{} ({nanos} ns)", readable(nanos));
    compare(
        "gates enabled",
        before.enabled.to_string(),
        after.enabled.to_string(),
    );
    compare(
        "base time",
        before.base_time.to_string(),
        after.base_time.to_string(),
    );
    compare(
        "cycle time",
        duration(before.cycle_time_ns),
        duration(after.cycle_time_ns),
    );
    compare(
        "cycle time extension",
        duration(before.cycle_time_extension_ns),
        duration(after.cycle_time_extension_ns),
    );
    compare(
        "initial gates",
        before.initial_gates.to_string(),
        after.initial_gates.to_string(),
    );
    let demanded = |within: Option<u64>| within.map_or_else(|| "none".to_owned(), duration);
    compare(
        "clock demanded",
        demanded(before.require_sync_ns),
        demanded(after.require_sync_ns),
    );
    for class in TrafficClass::all() {
        let at = usize::from(class.number());
        let told = |selection: Selection| match selection {
            Selection::CreditBased {
                idle_slope_bps,
                high_credit_bits: 0,
            } => format!("{selection}, {idle_slope_bps} bit/s"),
            Selection::CreditBased {
                idle_slope_bps,
                high_credit_bits,
            } => format!("{selection}, {idle_slope_bps} bit/s, {high_credit_bits} bits"),
            _ => selection.to_string(),
        };
        compare(
            &format!("selection of class {class}"),
            told(before.selection[at]),
            told(after.selection[at]),
        );
    }
    let octets = |max_sdu: u32| match max_sdu {
        0 => "no limit".to_owned(),
        octets => format!("{octets} octets"),
    };
    for class in TrafficClass::all() {
        let at = usize::from(class.number());
        compare(
            &format!("max-sdu of class {class}"),
            octets(before.max_sdu[at]),
            octets(after.max_sdu[at]),
        );
    }
    entries(&before.entries, &after.entries, &mut changes);
    Difference {
        changes,
        same_gates: same_gates(before, after),
    }
}

/// Compares two documents: their schedules, and what is said besides in the forms they are in. What
/// only one of two forms can say is no difference.
pub fn documents(before: &Document, after: &Document) -> Difference {
    let mut changes = Vec::new();
    let mut compare = |what: String, was: String, is: String| {
        if was != is {
            let said = |text: String| (!text.is_empty()).then_some(text);
            changes.push(Change {
                what,
                before: said(was),
                after: said(is),
            });
        }
    };
    if let (Some(was), Some(is)) = (&before.interface, &after.interface) {
        compare("interface".into(), shown(was), shown(is));
    }
    if let (Some(was), Some(is)) = (before.priorities, after.priorities) {
        compare(
            "traffic classes".into(),
            was.classes.to_string(),
            is.classes.to_string(),
        );
        for (priority, (was, is)) in was.class_of.iter().zip(is.class_of).enumerate() {
            compare(
                format!("class of priority {priority}"),
                was.to_string(),
                is.to_string(),
            );
        }
    }
    if let (Some(was), Some(is)) = (&before.taprio, &after.taprio) {
        for ((what, was), (_, is)) in was.parameters().into_iter().zip(is.parameters()) {
            compare(what.to_owned(), shown(&was), shown(&is));
        }
    }
    let difference = diff(&before.schedule, &after.schedule);
    changes.extend(difference.changes);
    Difference {
        changes,
        ..difference
    }
}

fn describe(entry: &GateEntry) -> String {
    let gates = entry.gates;
    let interval = readable(entry.interval_ns.into());
    match entry.operation {
        GateOperation::Set => format!("gates {gates} for {interval}"),
        operation => format!("gates {gates} for {interval}, {operation}"),
    }
}

/// The table of a longest common subsequence has at most so many cells; longer lists that differ all
/// over are compared entry by entry.
const MOST_CELLS: usize = 1 << 22;

fn entries(before: &[GateEntry], after: &[GateEntry], changes: &mut Vec<Change>) {
    let same = |one: &[GateEntry], other: &[GateEntry]| {
        one.iter()
            .zip(other)
            .take_while(|(one, other)| one == other)
            .count()
    };
    let head = same(before, after);
    let (old, new) = (&before[head..], &after[head..]);
    let tail = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take_while(|(one, other)| one == other)
        .count();
    let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);
    if old.len().saturating_mul(new.len()) > MOST_CELLS {
        for at in 0..old.len().max(new.len()) {
            if old.get(at) != new.get(at) {
                changes.push(Change {
                    what: format!("entry {}", head + at),
                    before: old.get(at).map(describe),
                    after: new.get(at).map(describe),
                });
            }
        }
        return;
    }
    let common = common_lengths(old, new);
    let (mut at_old, mut at_new) = (0, 0);
    while at_old < old.len() || at_new < new.len() {
        let matching = at_old < old.len() && at_new < new.len() && old[at_old] == new[at_new];
        if matching {
            at_old += 1;
            at_new += 1;
            continue;
        }
        let take_new = at_old == old.len()
            || (at_new < new.len() && common[at_old][at_new + 1] > common[at_old + 1][at_new]);
        let (what, was, is) = if take_new {
            at_new += 1;
            (head + at_new - 1, None, Some(describe(&new[at_new - 1])))
        } else {
            at_old += 1;
            (head + at_old - 1, Some(describe(&old[at_old - 1])), None)
        };
        changes.push(Change {
            what: format!("entry {what}"),
            before: was,
            after: is,
        });
    }
}

/// Length of the longest common subsequence of every pair of tails.
fn common_lengths(old: &[GateEntry], new: &[GateEntry]) -> Vec<Vec<u32>> {
    let mut common = vec![vec![0u32; new.len() + 1]; old.len() + 1];
    for at_old in (0..old.len()).rev() {
        for at_new in (0..new.len()).rev() {
            common[at_old][at_new] = if old[at_old] == new[at_new] {
                common[at_old + 1][at_new + 1] + 1
            } else {
                common[at_old + 1][at_new].max(common[at_old][at_new + 1])
            };
        }
    }
    common
}

fn same_gates(before: &Schedule, after: &Schedule) -> bool {
    let phase = |schedule: &Schedule| {
        let cycle = i128::from(schedule.cycle_time_ns.max(1));
        i128::from(schedule.base_time.as_nanos()).rem_euclid(cycle)
    };
    before.enabled == after.enabled
        && before.cycle_time_ns == after.cycle_time_ns
        && phase(before) == phase(after)
        && merged(before) == merged(after)
}

fn merged(schedule: &Schedule) -> Vec<Slot> {
    let mut merged: Vec<Slot> = Vec::new();
    for slot in slots(schedule) {
        match merged.last_mut() {
            Some(last) if last.gates == slot.gates => last.length_ns += slot.length_ns,
            _ => merged.push(slot),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use takt_time::TaiTime;

    use super::*;
    use crate::gate::GateMask;

    fn schedule(entries: &[(u8, u32)]) -> Schedule {
        let entries: Vec<GateEntry> = entries
            .iter()
            .map(|&(gates, interval)| GateEntry::new(GateMask::from_bits(gates), interval))
            .collect();
        Schedule {
            cycle_time_ns: entries.iter().map(|e| u64::from(e.interval_ns)).sum(),
            entries,
            ..Schedule::default()
        }
    }

    fn lines(before: &Schedule, after: &Schedule) -> Vec<String> {
        let difference = diff(before, after);
        difference.changes.iter().map(Change::to_string).collect()
    }

    #[test]
    fn a_schedule_does_not_differ_from_itself() {
        let schedule = schedule(&[(1, 5), (2, 6)]);
        assert_eq!(
            diff(&schedule, &schedule),
            Difference {
                changes: Vec::new(),
                same_gates: true
            }
        );
    }

    #[test]
    fn parameters_are_compared_one_by_one() {
        let before = schedule(&[(1, 1_000)]);
        let mut after = before.clone();
        after.enabled = false;
        after.base_time = TaiTime::from_nanos(1_000);
        after.cycle_time_ns = 2_000;
        after.cycle_time_extension_ns = 5;
        after.initial_gates = GateMask::from_bits(1);
        after.max_sdu[3] = 100;
        assert_eq!(
            lines(&before, &after),
            [
                "gates enabled: true -> false",
                "base time: 0.000000000 TAI -> 0.000001000 TAI",
                "cycle time: 1 µs (1000 ns) -> 2 µs (2000 ns)",
                "cycle time extension: 0 ns (0 ns) -> 5 ns (5 ns)",
                "initial gates: all -> 0",
                "max-sdu of class 3: no limit -> 100 octets",
            ]
        );
        assert!(!diff(&before, &after).same_gates);
    }

    #[test]
    fn an_inserted_entry_is_the_only_difference_of_a_list() {
        let before = schedule(&[(1, 5), (2, 6), (4, 7), (8, 8)]);
        let after = schedule(&[(1, 5), (2, 6), (16, 9), (4, 7), (8, 8)]);
        let cycle = "cycle time: 26 ns (26 ns) -> 35 ns (35 ns)";
        assert_eq!(
            lines(&before, &after),
            [cycle, "entry 2 added: gates 4 for 9 ns"]
        );
        let cycle = "cycle time: 35 ns (35 ns) -> 26 ns (26 ns)";
        assert_eq!(
            lines(&after, &before),
            [cycle, "entry 2 removed: gates 4 for 9 ns"]
        );
    }

    #[test]
    fn documents_differ_in_what_both_of_them_say() {
        let taprio = |text: &str| {
            let parsed = crate::form::read(crate::form::Form::Taprio, text, None);
            parsed.expect("a command line").document
        };
        let before = taprio(
            "tc qdisc replace dev eth0 root taprio num_tc 2 map 0 1 queues 1@0 1@1 sched-entry S 1 5 clockid CLOCK_TAI",
        );
        let after = taprio(
            "tc qdisc replace dev eth1 root taprio num_tc 2 map 1 1 queues 1@0 1@2 sched-entry S 1 6 flags 0x2",
        );
        let lines = |before, after| -> Vec<String> {
            let changes = documents(before, after).changes;
            changes.iter().map(Change::to_string).collect()
        };
        assert_eq!(
            lines(&before, &after),
            [
                "interface: eth0 -> eth1",
                "class of priority 0: 0 -> 1",
                "queues: 1@0 1@1 -> 1@0 1@2",
                "clockid removed: CLOCK_TAI",
                "flags added: 0x2",
                "cycle time: 5 ns (5 ns) -> 6 ns (6 ns)",
                "entry 0 removed: gates 0 for 5 ns",
                "entry 0 added: gates 0 for 6 ns",
            ]
        );
        let only_schedule = Document::from(before.schedule.clone());
        assert_eq!(lines(&before, &only_schedule), Vec::<String>::new());
    }

    #[test]
    fn entries_split_differently_open_the_same_gates() {
        let before = schedule(&[(1, 10), (2, 6)]);
        let mut after = schedule(&[(1, 4), (1, 6), (2, 6)]);
        assert!(diff(&before, &after).same_gates);
        after.base_time = TaiTime::from_nanos(32);
        assert!(diff(&before, &after).same_gates, "two cycles later");
        after.base_time = TaiTime::from_nanos(33);
        assert!(!diff(&before, &after).same_gates);
    }

    proptest! {
        #[test]
        fn the_changes_turn_one_list_into_the_other(
            before in prop::collection::vec((0u8..3, 1u32..3), 0..12),
            after in prop::collection::vec((0u8..3, 1u32..3), 0..12),
        ) {
            let (before, after) = (schedule(&before), schedule(&after));
            let changes = diff(&before, &after).changes;
            let numbers = |of: fn(&Change) -> bool| -> Vec<usize> {
                changes
                    .iter()
                    .filter(|change| change.what.starts_with("entry ") && of(change))
                    .filter_map(|change| change.what["entry ".len()..].parse().ok())
                    .collect()
            };
            let removed = numbers(|change| change.after.is_none());
            let added = numbers(|change| change.before.is_none());
            let kept = |entries: &[GateEntry], gone: &[usize]| -> Vec<GateEntry> {
                let entries = entries.iter().enumerate();
                entries.filter(|(at, _)| !gone.contains(at)).map(|(_, entry)| *entry).collect()
            };
            prop_assert_eq!(kept(&before.entries, &removed), kept(&after.entries, &added));
        }
    }
}
