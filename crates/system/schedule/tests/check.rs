//! Every finding, by a schedule that has just that mistake.

use proptest::prelude::*;
use takt_schedule::check::{Finding, Severity, check};
use takt_schedule::selection::Selection;
use takt_schedule::{
    Framing, GateEntry, GateList, GateMask, GateOperation, Link, PortModel, Schedule,
};
use takt_time::TaiTime;

/// Without a finding on a port of two classes: class 1 for 250 µs, class 0 for 750 µs.
fn sound() -> Schedule {
    Schedule {
        base_time: TaiTime::from_nanos(1_000_000_000),
        cycle_time_ns: 1_000_000,
        entries: vec![
            GateEntry::new(GateMask::from_bits(2), 250_000),
            GateEntry::new(GateMask::from_bits(1), 750_000),
        ],
        ..Schedule::default()
    }
}

fn port() -> PortModel {
    PortModel {
        classes: 2,
        ..PortModel::default()
    }
}

/// The one finding about `schedule`.
fn only(schedule: &Schedule) -> Finding {
    let mut findings = check(schedule, &port(), None);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    findings.remove(0)
}

fn assert_finding(schedule: &Schedule, severity: Severity, code: &str, says: &[&str]) {
    let findings = check(schedule, &port(), None);
    let found: Vec<_> = findings.iter().filter(|f| f.code == code).collect();
    assert!(!found.is_empty(), "no {code} in {findings:#?}");
    assert!(found.iter().all(|finding| finding.severity == severity));
    for part in says {
        assert!(
            found.iter().any(|f| f.message.contains(part)),
            "no `{part}` in {found:#?}"
        );
    }
}

#[test]
fn a_sound_schedule_has_no_findings() {
    assert_eq!(check(&sound(), &port(), None), []);
    assert_eq!(check(&sound(), &port(), Some(TaiTime::from_nanos(1))), []);
}

#[test]
fn credit_that_the_link_cannot_give_is_found() {
    let shaped = |idle_slope_bps| {
        let mut schedule = sound();
        schedule.selection[1] = Selection::CreditBased {
            idle_slope_bps,
            high_credit_bits: 0,
        };
        schedule
    };
    let gigabit = port().link.rate_bps.expect("a rate").get();
    assert_eq!(check(&shaped(gigabit), &port(), None), []);
    let error = Severity::Error;
    assert_finding(
        &shaped(gigabit + 1),
        error,
        "credit-exceeds-link",
        &["lower them"],
    );
    assert_finding(&shaped(0), error, "credit-without-bandwidth", &["class 1"]);
    let unlimited = PortModel {
        link: Link::ethernet(0),
        ..port()
    };
    let found = check(&shaped(1), &unlimited, None);
    assert!(
        found
            .iter()
            .any(|f| f.code == "credit-without-rate" && f.severity == error),
        "{found:#?}"
    );
}

#[test]
fn an_empty_list_is_found() {
    let schedule = Schedule {
        entries: Vec::new(),
        ..sound()
    };
    assert_eq!(only(&schedule).code, "no-entries");
}

#[test]
fn too_many_entries_are_found() {
    let schedule = Schedule {
        cycle_time_ns: 1025 * 20_000,
        entries: (0..1025u32)
            .map(|at| GateEntry::new(GateMask::from_bits(1 + (at % 2) as u8), 20_000))
            .collect(),
        ..sound()
    };
    assert_finding(
        &schedule,
        Severity::Error,
        "too-many-entries",
        &["1025", "1024"],
    );
}

#[test]
fn an_entry_without_duration_is_found() {
    let mut schedule = sound();
    schedule
        .entries
        .insert(1, GateEntry::new(GateMask::from_bits(3), 0));
    let finding = only(&schedule);
    assert_eq!((finding.code, finding.entry), ("zero-interval", Some(1)));
}

#[test]
fn preemption_is_found_and_explained() {
    let mut schedule = sound();
    schedule.entries[0].operation = GateOperation::SetAndHold;
    let finding = only(&schedule);
    assert_eq!((finding.code, finding.entry), ("preemption", Some(0)));
    assert!(finding.message.contains("set-and-hold-mac"));
    assert!(finding.message.contains("use set-gate-states"));
}

#[test]
fn a_cycle_of_zero_is_found() {
    let schedule = Schedule {
        cycle_time_ns: 0,
        ..sound()
    };
    assert_eq!(only(&schedule).code, "zero-cycle");
}

#[test]
fn a_cycle_shorter_than_the_smallest_frame_is_found() {
    let mut schedule = sound();
    schedule.cycle_time_ns = 500;
    schedule.entries = vec![GateEntry::new(GateMask::from_bits(3), 500)];
    // 72 octets with preamble, padding and FCS.
    assert_finding(
        &schedule,
        Severity::Error,
        "cycle-too-short",
        &["500 ns", "576 ns"],
    );
    assert_finding(
        &schedule,
        Severity::Warning,
        "interval-below-smallest-frame",
        &["entry 0"],
    );
}

#[test]
fn a_cycle_or_extension_longer_than_a_day_is_found() {
    let day = GateList::MAX_CYCLE_NS;
    let schedule = Schedule {
        cycle_time_ns: day + 1,
        ..sound()
    };
    assert_finding(
        &schedule,
        Severity::Error,
        "cycle-too-long",
        &["86400.000000001 s"],
    );
    let schedule = Schedule {
        cycle_time_extension_ns: day + 1,
        ..sound()
    };
    assert_finding(
        &schedule,
        Severity::Error,
        "extension-too-long",
        &["than a day"],
    );
}

#[test]
fn an_extension_of_a_whole_cycle_is_found() {
    let schedule = Schedule {
        cycle_time_extension_ns: 1_000_000,
        ..sound()
    };
    assert_eq!(only(&schedule).code, "extension-exceeds-cycle");
}

#[test]
fn entries_beyond_the_cycle_are_found_one_by_one() {
    let mut schedule = sound();
    schedule.cycle_time_ns = 900_000;
    schedule
        .entries
        .push(GateEntry::new(GateMask::from_bits(2), 50_000));
    assert_finding(
        &schedule,
        Severity::Error,
        "entries-exceed-cycle",
        &[
            "entry 1 overlaps the next cycle: 100 µs of its 750 µs",
            "1.05 ms",
            "entry 2 would begin 1 ms",
        ],
    );
}

#[test]
fn entries_that_end_before_the_cycle_are_found() {
    let schedule = Schedule {
        cycle_time_ns: 1_200_000,
        ..sound()
    };
    let finding = only(&schedule);
    assert_eq!(finding.code, "entries-below-cycle");
    assert!(
        finding.message.contains("holds for 200 µs more"),
        "{finding}"
    );
}

#[test]
fn neighbours_with_the_same_gates_are_found() {
    let mut schedule = sound();
    schedule.entries[1].interval_ns = 700_000;
    schedule
        .entries
        .push(GateEntry::new(GateMask::from_bits(1), 50_000));
    let finding = only(&schedule);
    assert_eq!((finding.code, finding.entry), ("same-gates", Some(2)));
}

#[test]
fn a_gate_of_a_class_that_the_port_has_not_is_found() {
    let mut schedule = sound();
    schedule.entries[0].gates = GateMask::from_bits(0x82);
    let finding = only(&schedule);
    assert_eq!(finding.code, "no-such-class");
    assert!(
        finding
            .message
            .contains("classes 7, but the port has only classes 0 to 1"),
        "{finding}"
    );
}

#[test]
fn a_class_that_is_never_open_is_found() {
    let mut schedule = sound();
    schedule.entries[0].gates = GateMask::NONE;
    assert_finding(
        &schedule,
        Severity::Error,
        "never-open",
        &["class 1 is never open"],
    );
    assert_finding(
        &schedule,
        Severity::Note,
        "all-closed",
        &["250 µs of each cycle"],
    );
}

#[test]
fn a_window_shorter_than_the_largest_frame_is_found_with_the_limit_that_would_do() {
    let mut schedule = sound();
    schedule.entries[0].interval_ns = 10_000;
    schedule.entries[1].interval_ns = 990_000;
    let message = "make it longer or set max-sdu to 1224 or less";
    assert_finding(
        &schedule,
        Severity::Error,
        "window-below-largest-frame",
        &["12.208 µs", message],
    );
    schedule.max_sdu[1] = 1224;
    assert_eq!(check(&schedule, &port(), None), []);
    schedule.max_sdu[1] = 1225;
    assert_eq!(only(&schedule).code, "window-below-largest-frame");
}

#[test]
fn a_window_too_short_for_any_frame_is_found() {
    let mut schedule = sound();
    schedule.entries[0].interval_ns = 576;
    schedule.entries[1].interval_ns = 999_424;
    assert_finding(
        &schedule,
        Severity::Error,
        "window-below-largest-frame",
        &["set max-sdu to 46 or less"],
    );
    schedule.entries[0].interval_ns = 575;
    schedule.entries[1].interval_ns = 999_425;
    assert_finding(
        &schedule,
        Severity::Error,
        "window-below-largest-frame",
        &["no frame passes at all"],
    );
}

#[test]
fn one_short_window_among_others_is_found() {
    let mut schedule = sound();
    schedule.entries[1].interval_ns = 700_000;
    schedule
        .entries
        .push(GateEntry::new(GateMask::from_bits(2), 10_000));
    schedule
        .entries
        .push(GateEntry::new(GateMask::from_bits(1), 40_000));
    let finding = only(&schedule);
    assert_eq!((finding.code, finding.class), ("window-short", Some(1)));
    assert!(
        finding.message.contains("at 950 µs lasts 10 µs"),
        "{finding}"
    );
}

#[test]
fn a_guard_band_that_eats_its_window_is_found() {
    let mut schedule = sound();
    schedule.entries[0].interval_ns = 20_000;
    schedule.entries[1].interval_ns = 980_000;
    let finding = only(&schedule);
    assert_eq!((finding.code, finding.class), ("guard-band-large", Some(1)));
}

#[test]
fn overlapping_windows_are_found() {
    let mut schedule = sound();
    schedule.entries[0].gates = GateMask::from_bits(3);
    let finding = only(&schedule);
    assert_eq!((finding.code, finding.class), ("shared-window", Some(1)));
    assert!(finding.message.contains("up to 12.304 µs"), "{finding}");
}

#[test]
fn senseless_limits_of_the_service_data_unit_are_found() {
    let mut schedule = sound();
    schedule.max_sdu = [45, 1501, 0, 0, 0, 0, 0, 0];
    assert_finding(
        &schedule,
        Severity::Warning,
        "max-sdu-small",
        &["max-sdu 45 of class 0"],
    );
    assert_finding(
        &schedule,
        Severity::Warning,
        "max-sdu-large",
        &["max-sdu 1501 of class 1", "1500"],
    );
}

#[test]
fn base_times_are_looked_at() {
    let now = Some(TaiTime::from_nanos(1_800_000_000_000_000_000));
    let with = |base: i64| Schedule {
        base_time: TaiTime::from_nanos(base),
        ..sound()
    };
    let code = |base: i64| {
        check(&with(base), &port(), now)
            .iter()
            .map(|f| f.code)
            .collect::<Vec<_>>()
    };
    assert_eq!(code(0), ["base-time-unset"]);
    assert_eq!(code(-1), ["base-time-range"]);
    assert_eq!(code(i64::MAX), ["base-time-range"]);
    assert_eq!(code(1_799_999_999_000_000_000), ["base-time-past"]);
    assert_eq!(code(1_800_000_001_000_000_000), [""; 0]);
    assert_eq!(code(1_900_000_000_000_000_000), ["base-time-far-ahead"]);
}

#[test]
fn gates_that_do_not_work_or_start_closed_are_found() {
    let disabled = Schedule {
        enabled: false,
        ..sound()
    };
    assert_eq!(only(&disabled).code, "disabled");
    let closed = Schedule {
        initial_gates: GateMask::from_bits(2),
        ..sound()
    };
    assert_eq!(only(&closed).code, "initial-gates");
}

#[test]
fn a_clock_that_is_never_off_is_found() {
    let schedule = Schedule {
        require_sync_ns: Some(0),
        ..sound()
    };
    assert_finding(
        &schedule,
        Severity::Warning,
        "require-sync-zero",
        &["grandmaster"],
    );
    assert_eq!(only(&schedule).code, "require-sync-zero");
}

#[test]
fn a_port_without_a_rate_is_found() {
    let port = PortModel {
        link: Link {
            rate_bps: None,
            framing: Framing::ETHERNET,
        },
        ..port()
    };
    let findings = check(&sound(), &port, None);
    assert_eq!(
        findings.iter().map(|f| f.code).collect::<Vec<_>>(),
        ["no-rate"]
    );
}

#[test]
fn errors_come_before_warnings_before_notes() {
    let mut schedule = sound();
    schedule.entries[0].gates = GateMask::from_bits(3);
    schedule.enabled = false;
    schedule
        .entries
        .push(GateEntry::new(GateMask::from_bits(1), 0));
    let severities: Vec<_> = check(&schedule, &port(), None)
        .iter()
        .map(|f| f.severity)
        .collect();
    assert!(
        severities.is_sorted_by(|one, other| one >= other),
        "{severities:?}"
    );
    assert_eq!(severities.first(), Some(&Severity::Error));
}

proptest! {
    #[test]
    fn a_schedule_without_errors_runs_and_one_that_cannot_run_has_an_error(
        base in any::<i64>(),
        cycle in prop_oneof![0u64..2_000_000, any::<u64>(), u64::MAX - 5..=u64::MAX],
        extension in prop_oneof![Just(0u64), any::<u64>()],
        entries in prop::collection::vec((any::<u8>(), 0u32..400_000, 0u8..12), 0..6),
        max_sdu in any::<[u32; 8]>(),
        classes in 0u8..10,
        rate in prop_oneof![0u64..5, any::<u64>()],
    ) {
        let schedule = Schedule {
            base_time: TaiTime::from_nanos(base),
            cycle_time_ns: cycle,
            cycle_time_extension_ns: extension,
            entries: entries
                .into_iter()
                .map(|(gates, interval, operation)| GateEntry {
                    operation: match operation {
                        0 => GateOperation::SetAndHold,
                        1 => GateOperation::SetAndRelease,
                        _ => GateOperation::Set,
                    },
                    ..GateEntry::new(GateMask::from_bits(gates), interval)
                })
                .collect(),
            max_sdu,
            ..Schedule::default()
        };
        let port = PortModel { link: Link::ethernet(rate), classes, ..PortModel::default() };
        let findings = check(&schedule, &port, Some(TaiTime::from_nanos(5)));
        let sound = findings.iter().all(|finding| finding.severity < Severity::Error);
        let runs = GateList::new(&schedule);
        prop_assert!(!sound || runs.is_ok(), "{:?}", runs);
        takt_schedule::summary(&schedule, &port);
    }
}
