//! Launch times as Linux's `etf` has them for `SO_TXTIME`, and where Takt goes further.

use std::sync::Arc;

use takt_schedule::discipline::{Accept, LatePolicy, LaunchTime, LaunchTimeConfig};
use takt_schedule::port::{
    Departure, DropReason, Dropped, RefusalReason, Timeliness, TxFlags, TxTimeError,
};
use takt_schedule::{
    Decision, GateEntry, GateList, GateMask, Item, Link, Port, PortConfig, Schedule,
};
use takt_time::{TaiTime, TrafficClass};

const TOLERANCE: i64 = 1_000;
const START: i64 = 1_000_000_000_000;

fn at(nanos: i64) -> TaiTime {
    TaiTime::from_nanos(START + nanos)
}

fn class() -> TrafficClass {
    TrafficClass::new(5).unwrap()
}

fn config() -> LaunchTimeConfig {
    LaunchTimeConfig {
        capacity: 8,
        tolerance_ns: TOLERANCE as u32,
        ..LaunchTimeConfig::default()
    }
}

fn port(config: LaunchTimeConfig) -> Port<u32> {
    let mut port = Port::new(PortConfig::default());
    port.set_discipline(class(), LaunchTime::new(config))
        .unwrap();
    port
}

/// Class 5 open for the first 100 µs of each 500 µs.
fn windowed(config: LaunchTimeConfig) -> Port<u32> {
    let mut port = port(config);
    let schedule = Schedule {
        base_time: at(0),
        cycle_time_ns: 500_000,
        entries: vec![
            GateEntry::new(GateMask::from_bits(0x20), 100_000),
            GateEntry::new(GateMask::from_bits(0xdf), 400_000),
        ],
        ..Schedule::default()
    };
    port.gates_mut()
        .install(Arc::new(GateList::new(&schedule).unwrap()), at(0));
    port
}

fn frame(handle: u32, launch: i64) -> Item<u32> {
    Item::new(60, handle)
        .at(at(launch))
        .with(TxFlags::REPORT_ERRORS)
}

fn sent(decision: Decision<u32>) -> Departure<u32> {
    match decision {
        Decision::Send(departure) => departure,
        other => panic!("not sent: {other:?}"),
    }
}

fn dropped(decision: Decision<u32>) -> Dropped<u32> {
    match decision {
        Decision::Drop(dropped) => dropped,
        other => panic!("not dropped: {other:?}"),
    }
}

#[test]
fn frames_leave_at_their_times_whatever_the_order_they_came_in() {
    let mut port = port(config());
    for (handle, launch) in [(3, 30_000), (1, 10_000), (2, 20_000)] {
        port.enqueue(class(), frame(handle, launch), at(0)).unwrap();
    }
    for (handle, launch) in [(1, 10_000), (2, 20_000), (3, 30_000)] {
        assert_eq!(port.next(at(launch - 1)), Decision::WaitUntil(at(launch)));
        let departure = sent(port.next(at(launch)));
        assert_eq!(
            (departure.item.handle, departure.start),
            (handle, at(launch))
        );
        assert_eq!(departure.timeliness, Timeliness::OnTime);
    }
    assert_eq!(port.next(at(30_001)), Decision::Idle);
}

#[test]
fn equal_times_leave_as_they_came() {
    let mut port = port(LaunchTimeConfig {
        tolerance_ns: 10_000,
        ..config()
    });
    for handle in 0..5 {
        port.enqueue(class(), frame(handle, 10_000), at(0)).unwrap();
    }
    let mut order = Vec::new();
    let mut now = at(10_000);
    loop {
        match port.next(now) {
            Decision::Send(departure) => order.push(departure.item.handle),
            Decision::WaitUntil(t) => now = t,
            Decision::Drop(dropped) => panic!("dropped: {dropped:?}"),
            Decision::Idle => break,
        }
    }
    assert_eq!(order, [0, 1, 2, 3, 4]);
}

#[test]
fn a_launch_time_in_the_past_is_refused_as_an_invalid_parameter() {
    let mut port = port(config());
    let refused = port
        .enqueue(class(), frame(1, -TOLERANCE - 1), at(0))
        .unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Late);
    let error = refused.error.unwrap();
    // sch_etf: EINVAL, SO_EE_ORIGIN_TXTIME, SO_EE_CODE_TXTIME_INVALID_PARAM, the time in two halves.
    assert_eq!((error.errno, TxTimeError::ORIGIN, error.code), (22, 6, 1));
    let time = u64::from(error.data()) << 32 | u64::from(error.info());
    assert_eq!(time as i64, START - TOLERANCE - 1);
    assert!(port.enqueue(class(), frame(2, -TOLERANCE), at(0)).is_ok());
    assert_eq!(port.counters(class()).refused.late, 1);
}

#[test]
fn with_the_policy_to_send_a_launch_time_in_the_past_is_taken_and_counted_late() {
    let mut port = port(LaunchTimeConfig {
        late: LatePolicy::Send,
        ..config()
    });
    port.enqueue(class(), frame(1, -1_000_000), at(0)).unwrap();
    assert_eq!(sent(port.next(at(0))).timeliness, Timeliness::Late);
    assert_eq!(port.counters(class()).sent_late, 1);
    assert_eq!(port.counters(class()).late(), 1);
}

#[test]
fn a_frame_that_must_not_be_late_is_dropped_where_others_are_sent() {
    let mut port = port(LaunchTimeConfig {
        late: LatePolicy::Send,
        ..config()
    });
    let strict = |handle, launch| frame(handle, launch).with(TxFlags::DROP_LATE);
    let past = port.enqueue(class(), strict(1, -1_000_000), at(0));
    assert_eq!(past.unwrap_err().reason, RefusalReason::Late);
    port.enqueue(class(), strict(2, 10_000), at(0)).unwrap();
    port.enqueue(class(), frame(3, 10_000), at(0)).unwrap();
    let late = at(10_000 + TOLERANCE + 1);
    assert_eq!(dropped(port.next(late)).item.handle, 2);
    assert_eq!(sent(port.next(late)).item.handle, 3);
}

#[test]
fn a_frame_whose_time_passes_in_the_queue_is_dropped_and_reported_as_missed() {
    let mut port = port(config());
    port.enqueue(class(), frame(1, 10_000), at(0)).unwrap();
    let dropped = dropped(port.next(at(10_000 + TOLERANCE + 1)));
    assert_eq!(dropped.reason, DropReason::Late);
    // sch_etf: ECANCELED, SO_EE_CODE_TXTIME_MISSED.
    let error = dropped.error.unwrap();
    assert_eq!(
        (error.errno, error.code, error.launch_time),
        (125, 2, at(10_000))
    );
    assert_eq!(port.counters(class()).dropped.late, 1);
}

#[test]
fn nothing_is_reported_to_a_sender_that_did_not_ask() {
    let mut port = port(config());
    let silent = Item::new(60, 1).at(at(10_000));
    port.enqueue(class(), silent, at(0)).unwrap();
    assert_eq!(dropped(port.next(at(50_000))).error, None);
    let past = Item::new(60, 2).at(at(0));
    assert_eq!(
        port.enqueue(class(), past, at(50_000)).unwrap_err().error,
        None
    );
}

#[test]
fn a_frame_within_the_tolerance_is_on_time() {
    let mut port = port(config());
    port.enqueue(class(), frame(1, 10_000), at(0)).unwrap();
    let departure = sent(port.next(at(10_000 + TOLERANCE)));
    assert_eq!(departure.timeliness, Timeliness::OnTime);
}

#[test]
fn a_deadline_frame_leaves_at_once_and_in_order_of_deadlines() {
    let mut port = port(config());
    for (handle, deadline) in [(2, 90_000), (1, 50_000)] {
        let item = frame(handle, deadline).with(TxFlags::DEADLINE);
        port.enqueue(class(), item, at(0)).unwrap();
    }
    let first = sent(port.next(at(0)));
    assert_eq!((first.item.handle, first.start), (1, at(0)));
    let second = sent(port.next(at(672)));
    assert_eq!((second.item.handle, second.start), (2, at(672)));
}

#[test]
fn a_deadline_has_no_tolerance() {
    let mut port = port(config());
    let item = frame(1, 10_000).with(TxFlags::DEADLINE);
    port.enqueue(class(), item, at(0)).unwrap();
    assert_eq!(dropped(port.next(at(10_001))).reason, DropReason::Late);
    let refused = port.enqueue(class(), item, at(10_001)).unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Late);
}

#[test]
fn a_deadline_frame_does_not_get_in_the_way_of_a_strict_one() {
    let mut port = port(config());
    port.enqueue(class(), frame(1, 5_000), at(0)).unwrap();
    let long = Item {
        len: 1514,
        ..frame(2, 90_000)
    }
    .with(TxFlags::DEADLINE);
    port.enqueue(class(), long, at(0)).unwrap();
    // 12.3 µs of link do not fit before 5 µs.
    assert_eq!(port.next(at(0)), Decision::WaitUntil(at(5_000)));
    assert_eq!(sent(port.next(at(5_000))).item.handle, 1);
    assert_eq!(sent(port.next(at(5_672))).item.handle, 2);
}

#[test]
fn a_class_of_one_kind_refuses_the_other_as_etf_does() {
    let strict_only = LaunchTimeConfig {
        accept: Accept::StrictOnly,
        ..config()
    };
    let refused = port(strict_only)
        .enqueue(class(), frame(1, 10).with(TxFlags::DEADLINE), at(0))
        .unwrap_err();
    assert_eq!(
        (refused.reason, refused.error.unwrap().code),
        (RefusalReason::Mode, 1)
    );
    let deadline_only = LaunchTimeConfig {
        accept: Accept::DeadlineOnly,
        ..config()
    };
    let refused = port(deadline_only)
        .enqueue(class(), frame(1, 10), at(0))
        .unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Mode);
}

#[test]
fn a_frame_without_a_launch_time_is_refused() {
    let refused = port(config())
        .enqueue(class(), Item::new(60, 1), at(0))
        .unwrap_err();
    assert_eq!(
        (refused.reason, refused.error),
        (RefusalReason::NoLaunchTime, None)
    );
}

#[test]
fn a_queue_served_as_they_come_ignores_launch_times_and_counts_them() {
    let mut port: Port<u32> = Port::new(PortConfig::default());
    port.enqueue(class(), frame(1, 1_000_000), at(0)).unwrap();
    assert_eq!(sent(port.next(at(0))).start, at(0));
    assert_eq!(port.counters(class()).launch_ignored, 1);
}

#[test]
fn hostile_launch_times_neither_stay_nor_break_anything() {
    let mut port = port(config());
    let year_2300 = TaiTime::from_nanos(i64::MAX);
    let refused = port
        .enqueue(class(), Item::new(60, 1).at(year_2300), at(0))
        .unwrap_err();
    assert_eq!(refused.reason, RefusalReason::TooFarAhead);
    for time in [i64::MIN, -1, 0] {
        let refused = port
            .enqueue(
                class(),
                Item::new(60, 1).at(TaiTime::from_nanos(time)),
                at(0),
            )
            .unwrap_err();
        assert_eq!(refused.reason, RefusalReason::Late);
    }
    assert_eq!(port.next(at(0)), Decision::Idle);
}

#[test]
fn a_full_queue_refuses_and_counts() {
    let mut port = port(config());
    for handle in 0..8 {
        port.enqueue(class(), frame(handle, 10_000), at(0)).unwrap();
    }
    let refused = port.enqueue(class(), frame(8, 10_000), at(0)).unwrap_err();
    assert_eq!((refused.reason, refused.error), (RefusalReason::Full, None));
    assert_eq!(port.counters(class()).refused.full, 1);
    assert_eq!(port.queued(class()), 8);
}

#[test]
fn a_frame_due_while_its_gate_is_closed_waits_for_the_gate() {
    let mut port = windowed(config());
    port.enqueue(class(), frame(1, 300_000), at(0)).unwrap();
    assert_eq!(port.next(at(0)), Decision::WaitUntil(at(500_000)));
    let departure = sent(port.next(at(500_000)));
    assert_eq!(departure.timeliness, Timeliness::GateMissed);
    assert_eq!(port.counters(class()).gate_missed(), 1);
    assert_eq!(port.counters(class()).late(), 0);
}

#[test]
fn frames_that_waited_for_their_gate_leave_one_after_the_other_and_none_is_late() {
    let mut port = windowed(config());
    for handle in 0..8 {
        port.enqueue(class(), frame(handle, 300_000), at(0))
            .unwrap();
    }
    let mut now = at(500_000);
    for handle in 0..8 {
        let departure = sent(port.next(now));
        assert_eq!((departure.item.handle, departure.start), (handle, now));
        now = now.saturating_add_nanos(672);
    }
    assert_eq!(port.counters(class()).sent_gate_missed, 8);
}

#[test]
fn with_the_policy_to_drop_a_frame_due_while_its_gate_is_closed_is_dropped_when_due() {
    let mut port = windowed(LaunchTimeConfig {
        gate_missed: LatePolicy::Drop,
        ..config()
    });
    port.enqueue(class(), frame(1, 300_000), at(0)).unwrap();
    assert_eq!(port.next(at(0)), Decision::WaitUntil(at(300_000)));
    let dropped = dropped(port.next(at(300_000)));
    assert_eq!(dropped.reason, DropReason::GateMissed);
    assert_eq!(dropped.error.unwrap().code, 2);
    assert_eq!(port.counters(class()).dropped.gate_missed, 1);
}

#[test]
fn a_deadline_in_a_closed_window_is_missed_by_its_gate() {
    let mut port = windowed(LaunchTimeConfig {
        gate_missed: LatePolicy::Drop,
        ..config()
    });
    let item = frame(1, 300_000).with(TxFlags::DEADLINE);
    port.enqueue(class(), item, at(200_000)).unwrap();
    assert_eq!(port.next(at(200_000)), Decision::WaitUntil(at(300_001)));
    assert_eq!(
        dropped(port.next(at(300_001))).reason,
        DropReason::GateMissed
    );
}

#[test]
fn a_device_that_keeps_launch_times_gets_frames_ahead_of_them() {
    let mut port: Port<u32> = Port::new(PortConfig {
        lead_ns: 50_000,
        ..PortConfig::default()
    });
    port.set_discipline(class(), LaunchTime::new(config()))
        .unwrap();
    port.enqueue(class(), frame(1, 200_000), at(0)).unwrap();
    assert_eq!(port.next(at(0)), Decision::WaitUntil(at(150_000)));
    let departure = sent(port.next(at(150_000)));
    assert_eq!(departure.start, at(200_000));
}

#[test]
fn classes_have_leads_of_their_own_and_frames_are_handed_out_in_the_order_of_their_starts() {
    let mut port: Port<u32> = Port::new(PortConfig {
        lead_ns: 5_000,
        ..PortConfig::default()
    });
    let other = TrafficClass::new(2).unwrap();
    for class in [class(), other] {
        port.set_discipline(class, LaunchTime::new(config()))
            .unwrap();
    }
    port.set_lead(class(), 100_000);
    port.enqueue(class(), frame(1, 200_000), at(0)).unwrap();
    assert_eq!(port.next(at(0)), Decision::WaitUntil(at(100_000)));
    // One that leaves earlier is handed out earlier, whatever the leads are.
    port.enqueue(other, frame(2, 150_000), at(0)).unwrap();
    assert_eq!(port.next(at(120_000)), Decision::WaitUntil(at(145_000)));
    assert_eq!(sent(port.next(at(145_000))).start, at(150_000));
    assert_eq!(sent(port.next(at(145_000))).start, at(200_000));
    port.enqueue(other, frame(3, 400_000), at(200_000)).unwrap();
    assert_eq!(port.next(at(300_000)), Decision::WaitUntil(at(395_000)));
}

#[test]
fn after_a_clock_step_forward_passed_launch_times_are_late_and_after_one_back_they_wait() {
    let mut port = port(config());
    port.enqueue(class(), frame(1, 10_000), at(0)).unwrap();
    port.enqueue(class(), frame(2, 1_000_020_000), at(0))
        .unwrap();
    let second = 1_000_000_000;
    assert_eq!(dropped(port.next(at(second))).item.handle, 1);
    assert_eq!(port.next(at(0)), Decision::WaitUntil(at(1_000_020_000)));
    assert_eq!(sent(port.next(at(1_000_020_000))).item.handle, 2);
}

#[test]
fn a_discipline_is_not_replaced_over_queued_frames() {
    let mut port = port(config());
    port.enqueue(class(), frame(1, 10_000), at(0)).unwrap();
    let busy = port
        .set_discipline(class(), LaunchTime::new(config()))
        .unwrap_err();
    assert_eq!(busy.frames, 1);
    let mut removed = Vec::new();
    port.remove(|_, _, _| true, |item| removed.push(item.handle));
    assert_eq!(removed, [1]);
    assert_eq!(port.counters(class()).dropped.removed, 1);
    assert!(
        port.set_discipline(class(), LaunchTime::new(config()))
            .is_ok()
    );
}

#[test]
fn on_a_link_without_a_rate_frames_leave_at_the_same_instant() {
    let mut port = Port::new(PortConfig {
        link: Link::ethernet(0),
        ..PortConfig::default()
    });
    port.set_discipline(class(), LaunchTime::new(config()))
        .unwrap();
    for handle in 0..3 {
        port.enqueue(class(), frame(handle, 10_000), at(0)).unwrap();
    }
    for handle in 0..3 {
        assert_eq!(sent(port.next(at(10_000))).item.handle, handle);
    }
}
