//! Worked examples, each with the clause of IEEE 802.1Q-2022 that it works.
//!
//! A gigabit port throughout: an octet takes 8 ns, a frame of 1514 octets 12 208 ns to transmit
//! (8 of preamble, 1514, 4 of FCS) and 12 304 ns until the next may begin (12 of gap).

use std::sync::Arc;

use takt_schedule::gate::{Cycle, GatesStatus};
use takt_schedule::port::{DropReason, RefusalReason};
use takt_schedule::{
    Decision, GateEntry, GateList, GateMask, Gates, Item, Port, PortConfig, Schedule,
};
use takt_time::{TaiTime, TrafficClass};

const US: i64 = 1_000;

fn at(nanos: i64) -> TaiTime {
    TaiTime::from_nanos(nanos)
}

fn class(number: u8) -> TrafficClass {
    TrafficClass::new(number).unwrap()
}

/// Class 7 for the first 250 µs of each millisecond, the others for the rest.
fn protected_window(base: i64) -> Schedule {
    Schedule {
        base_time: at(base),
        cycle_time_ns: 1_000_000,
        entries: vec![
            GateEntry::new(GateMask::from_bits(0x80), 250_000),
            GateEntry::new(GateMask::from_bits(0x7f), 750_000),
        ],
        ..Schedule::default()
    }
}

fn list(schedule: &Schedule) -> Arc<GateList> {
    Arc::new(GateList::new(schedule).unwrap())
}

fn running(schedule: &Schedule) -> Port<u32> {
    let mut port = Port::new(PortConfig::default());
    let base = schedule.base_time;
    port.gates_mut().install(list(schedule), base);
    port
}

fn sent(decision: Decision<u32>) -> (u32, i64) {
    match decision {
        Decision::Send(departure) => (departure.item.handle, departure.start.as_nanos()),
        other => panic!("not sent: {other:?}"),
    }
}

#[test]
fn clause_8_6_8_1_the_highest_class_with_an_open_gate_goes_first() {
    let mut port = Port::new(PortConfig::default());
    for (number, handle) in [(0, 10), (5, 15), (7, 17), (3, 13)] {
        port.enqueue(class(number), Item::new(60, handle), at(0))
            .unwrap();
    }
    let mut order = Vec::new();
    let mut now = at(0);
    loop {
        match port.next(now) {
            Decision::Send(departure) => order.push(departure.item.handle),
            Decision::WaitUntil(t) => now = t,
            Decision::Drop(dropped) => panic!("dropped: {dropped:?}"),
            Decision::Idle => break,
        }
    }
    assert_eq!(order, [17, 15, 13, 10]);
    // Four frames of 84 octets with preamble, padding, FCS and gap; the last needs no gap after it.
    assert_eq!(now, at(3 * 84 * 8));
}

#[test]
fn clause_8_6_8_4_a_frame_does_not_start_while_its_gate_is_closed() {
    let mut port = running(&protected_window(0));
    port.enqueue(class(7), Item::new(60, 1), at(300 * US))
        .unwrap();
    assert_eq!(port.next(at(300 * US)), Decision::WaitUntil(at(1_000 * US)));
    assert_eq!(sent(port.next(at(1_000 * US))), (1, 1_000 * US));
}

#[test]
fn clause_8_6_8_4_a_frame_starts_only_if_it_ends_before_its_gate_closes() {
    let closes = 250 * US;
    let latest = closes - 12_208;
    let mut port = running(&protected_window(0));
    port.enqueue(class(7), Item::new(1514, 1), at(0)).unwrap();
    // One nanosecond too late: the frame waits for the next cycle.
    assert_eq!(
        port.next(at(latest + 1)),
        Decision::WaitUntil(at(1_000 * US))
    );
    let mut port = running(&protected_window(0));
    port.enqueue(class(7), Item::new(1514, 1), at(0)).unwrap();
    match port.next(at(latest)) {
        Decision::Send(departure) => {
            assert_eq!(departure.start, at(latest));
            assert_eq!(departure.gate_closes, Some(at(closes)));
        }
        other => panic!("not sent: {other:?}"),
    }
}

#[test]
fn clause_8_6_8_4_a_short_frame_may_start_where_a_long_one_may_not() {
    let mut port = running(&protected_window(0));
    let now = at(249 * US);
    port.enqueue(class(7), Item::new(60, 1), now).unwrap();
    // 72 octets to the end of the FCS are 576 ns: out before 250 µs.
    assert_eq!(sent(port.next(now)), (1, 249 * US));
}

#[test]
fn clause_8_6_8_4_note_2_the_next_gate_close_event_is_found_in_the_pending_list_too() {
    let mut port = running(&protected_window(0));
    // The new list closes class 0 from 500 µs on, in the middle of its window under the old one.
    let mut next = protected_window(500 * US);
    next.entries = vec![GateEntry::new(GateMask::from_bits(0x80), 1_000_000)];
    port.gates_mut().install(list(&next), at(10 * US));
    let now = at(490 * US);
    port.enqueue(class(0), Item::new(60, 1), now).unwrap();
    assert_eq!(sent(port.next(now)), (1, 490 * US));
    let refused = port.enqueue(class(0), Item::new(1514, 2), now).unwrap_err();
    assert_eq!(refused.reason, RefusalReason::NoWindow);
}

#[test]
fn clause_8_6_8_4_frames_above_queue_max_sdu_are_discarded() {
    let mut schedule = protected_window(0);
    schedule.max_sdu[7] = 256;
    let mut port = running(&schedule);
    assert!(port.enqueue(class(7), Item::new(270, 1), at(0)).is_ok());
    let refused = port
        .enqueue(class(7), Item::new(271, 2), at(0))
        .unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Oversize);
    assert_eq!(port.counters(class(7)).refused.oversize, 1);
}

#[test]
fn clause_8_6_8_4_a_frame_queued_before_its_queue_max_sdu_shrank_is_discarded_later() {
    let mut port = running(&protected_window(0));
    port.enqueue(class(7), Item::new(1000, 1), at(300 * US))
        .unwrap();
    let mut next = protected_window(1_000 * US);
    next.max_sdu[7] = 256;
    port.gates_mut().install(list(&next), at(300 * US));
    match port.next(at(1_000 * US)) {
        Decision::Drop(dropped) => assert_eq!(dropped.reason, DropReason::Oversize),
        other => panic!("not dropped: {other:?}"),
    }
    assert_eq!(port.counters(class(7)).dropped.oversize, 1);
}

#[test]
fn clause_12_29_1_1_2_a_frame_on_the_wire_when_its_gate_closes_is_a_transmission_overrun() {
    let mut port = running(&protected_window(0));
    port.enqueue(class(7), Item::new(60, 1), at(0)).unwrap();
    port.enqueue(class(7), Item::new(60, 2), at(0)).unwrap();
    let Decision::Send(first) = port.next(at(249 * US)) else {
        panic!("not sent");
    };
    // 576 ns to the last bit: 424 ns late is still in time.
    assert!(!port.started(&first, at(249 * US + 424), at(249 * US + 424)));
    let Decision::WaitUntil(free) = port.next(at(249 * US + 424)) else {
        panic!("the link is taken");
    };
    assert_eq!(
        free,
        at(1_000 * US),
        "672 ns of link from 249.424 µs leave too little"
    );
    // It may have begun at any instant until it was out of hand.
    assert!(port.started(&first, at(249 * US), at(249 * US + 425)));
    assert_eq!(port.counters(class(7)).overruns, 1);
}

#[test]
fn clause_8_6_9_1_1_cycles_begin_at_every_multiple_of_the_cycle_time_from_the_base_time() {
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(&protected_window(100 * US)), at(0));
    let cycle = |t: i64| gates.cycle(at(t));
    let start = |number, start| {
        Some(Cycle {
            number,
            start: at(start),
        })
    };
    assert_eq!(cycle(99_999), None, "a): the base time is to come");
    assert_eq!(cycle(100 * US), start(0, 100 * US));
    assert_eq!(cycle(1_099_999), start(0, 100 * US));
    assert_eq!(cycle(5_100 * US), start(5, 5_100 * US), "b)");
}

#[test]
fn clause_8_6_9_1_1_the_last_cycle_is_stretched_up_to_the_cycle_time_extension() {
    let mut first = protected_window(0);
    first.cycle_time_extension_ns = 300_000;
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(&first), at(0));
    // 300 µs into the cycle that would begin at 3 ms: d), the cycle from 2 ms lasts until then.
    gates.install(list(&protected_window(3_300 * US)), at(500 * US));
    assert_eq!(gates.state(at(2_999 * US)).bits(), 0x7f);
    assert_eq!(gates.state(at(3_000 * US)).bits(), 0x7f, "no cycle begins");
    assert_eq!(gates.state(at(3_299 * US)).bits(), 0x7f);
    assert_eq!(gates.state(at(3_300 * US)).bits(), 0x80);
}

#[test]
fn clause_8_6_9_1_1_without_enough_extension_the_last_cycle_is_cut() {
    let mut first = protected_window(0);
    first.cycle_time_extension_ns = 299_999;
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(&first), at(0));
    gates.install(list(&protected_window(3_300 * US)), at(500 * US));
    assert_eq!(
        gates.state(at(3_000 * US)).bits(),
        0x80,
        "c): one more cycle begins"
    );
    assert_eq!(gates.state(at(3_250 * US)).bits(), 0x7f);
    assert_eq!(gates.state(at(3_300 * US)).bits(), 0x80, "and is cut");
}

#[test]
fn clause_8_6_9_2_the_last_entry_holds_until_the_cycle_ends() {
    let mut schedule = protected_window(0);
    schedule.entries[1].interval_ns = 100_000;
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(&schedule), at(0));
    assert_eq!(gates.state(at(999 * US)).bits(), 0x7f);
    assert_eq!(gates.next_event(at(250 * US)), Some(at(1_000 * US)));
}

#[test]
fn clause_8_6_9_2_entries_beyond_the_cycle_time_are_cut() {
    let mut schedule = protected_window(0);
    schedule.cycle_time_ns = 400_000;
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(&schedule), at(0));
    assert_eq!(gates.state(at(399 * US)).bits(), 0x7f);
    assert_eq!(gates.state(at(400 * US)).bits(), 0x80);
}

#[test]
fn clause_8_6_9_2_before_the_first_cycle_the_gates_are_in_their_administrative_states() {
    let mut gates = Gates::new(GateMask::from_bits(0x0f));
    assert_eq!(gates.state(at(0)).bits(), 0x0f);
    gates.install(list(&protected_window(700 * US)), at(0));
    assert_eq!(gates.state(at(699 * US)).bits(), 0x0f);
    assert_eq!(gates.state(at(700 * US)).bits(), 0x80);
}

#[test]
fn clause_8_6_9_3_1_a_base_time_to_come_is_the_time_of_the_change() {
    let mut gates = Gates::new(GateMask::ALL);
    assert_eq!(
        gates.install(list(&protected_window(700 * US)), at(5)),
        Some(at(700 * US))
    );
    assert_eq!(
        gates.install(list(&protected_window(9)), at(9)),
        Some(at(9)),
        "now is not past"
    );
}

#[test]
fn clause_8_6_9_3_1_a_base_time_in_the_past_gives_the_next_cycle_of_the_new_list() {
    let mut gates = Gates::new(GateMask::ALL);
    let change = gates.install(list(&protected_window(100 * US)), at(2_500 * US));
    assert_eq!(change, Some(at(3_100 * US)));
    let status = gates.status(at(2_500 * US));
    assert_eq!(status.config_change_errors, 0, "b): no list was running");
}

#[test]
fn clause_8_6_9_3_1_a_base_time_in_the_past_is_an_error_while_a_list_runs() {
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(&protected_window(0)), at(0));
    let change = gates.install(list(&protected_window(100 * US)), at(2_500 * US));
    assert_eq!(
        change,
        Some(at(3_100 * US)),
        "c): the change is made nevertheless"
    );
    assert_eq!(gates.status(at(2_500 * US)).config_change_errors, 1);
}

#[test]
fn clause_8_6_9_3_a_change_is_pending_until_its_time_and_then_operational() {
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(&protected_window(0)), at(0));
    gates.install(list(&protected_window(5_000 * US)), at(200 * US));
    let GatesStatus {
        oper,
        pending,
        config_changes,
        ..
    } = gates.status(at(200 * US));
    assert_eq!(oper.map(|list| list.base_time()), Some(at(0)));
    assert_eq!(pending.and_then(|(_, change)| change), Some(at(5_000 * US)));
    assert_eq!(config_changes, 1);
    assert!(!gates.advance(at(4_999_999)));
    assert!(gates.advance(at(5_000 * US)));
    let GatesStatus {
        oper,
        pending,
        config_changes,
        ..
    } = gates.status(at(5_000 * US));
    assert_eq!(oper.map(|list| list.base_time()), Some(at(5_000 * US)));
    assert!(pending.is_none());
    assert_eq!(config_changes, 2);
}

#[test]
fn clause_8_6_9_3_a_change_in_mid_cycle_takes_over_at_its_instant() {
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(&protected_window(0)), at(0));
    gates.install(list(&protected_window(1_600 * US)), at(1_100 * US));
    assert_eq!(gates.state(at(1_599 * US)).bits(), 0x7f);
    assert_eq!(gates.state(at(1_600 * US)).bits(), 0x80);
    assert_eq!(gates.state(at(1_850 * US)).bits(), 0x7f);
}

#[test]
fn clause_8_6_9_3_a_later_request_replaces_a_pending_one() {
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(&protected_window(0)), at(0));
    gates.install(list(&protected_window(2_100 * US)), at(100 * US));
    gates.install(list(&protected_window(2_700 * US)), at(200 * US));
    assert_eq!(
        gates.state(at(2_100 * US)).bits(),
        0x80,
        "of the cycle from 2 ms"
    );
    assert_eq!(
        gates.state(at(2_300 * US)).bits(),
        0x7f,
        "nothing changed at 2.1 ms"
    );
    assert_eq!(gates.state(at(2_700 * US)).bits(), 0x80);
    assert!(gates.advance(at(2_700 * US)));
    assert_eq!(gates.status(at(2_700 * US)).config_changes, 2);
}

#[test]
fn a_cancelled_change_leaves_the_running_list_as_if_it_had_never_been_asked_for() {
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(&protected_window(0)), at(0));
    gates.install(list(&protected_window(2_100 * US)), at(100 * US));
    assert!(gates.cancel(at(2_050 * US)));
    assert!(!gates.cancel(at(2_050 * US)));
    assert_eq!(gates.state(at(2_240 * US)).bits(), 0x80);
    assert_eq!(gates.state(at(3_000 * US)).bits(), 0x80);
    assert!(!gates.advance(at(9_000 * US)));
}

#[test]
fn a_change_cancelled_in_a_stretched_cycle_lets_it_last_to_the_next_cycle_start() {
    let mut first = protected_window(0);
    first.cycle_time_extension_ns = 500_000;
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(&first), at(0));
    gates.install(list(&protected_window(2_400 * US)), at(100 * US));
    gates.cancel(at(2_200 * US));
    assert_eq!(
        gates.state(at(2_900 * US)).bits(),
        0x7f,
        "no list starts in its middle"
    );
    assert_eq!(gates.state(at(3_000 * US)).bits(), 0x80);
}

#[test]
fn disabled_gates_are_in_their_administrative_states_and_resume_at_a_cycle_start() {
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(&protected_window(0)), at(0));
    gates.set_enabled(false, at(100 * US));
    assert_eq!(gates.state(at(100 * US)), GateMask::ALL);
    gates.set_enabled(true, at(1_300 * US));
    assert_eq!(gates.state(at(1_999 * US)), GateMask::ALL);
    assert_eq!(gates.state(at(2_000 * US)).bits(), 0x80);
}

#[test]
fn a_list_asked_for_while_disabled_waits_for_the_gates_to_be_enabled() {
    let mut gates = Gates::new(GateMask::ALL);
    gates.set_enabled(false, at(0));
    assert_eq!(gates.install(list(&protected_window(0)), at(0)), None);
    assert_eq!(gates.state(at(10_100 * US)), GateMask::ALL);
    gates.set_enabled(true, at(10_100 * US));
    assert_eq!(gates.state(at(11_000 * US)).bits(), 0x80);
}

#[test]
fn a_clock_step_forward_over_the_change_makes_the_new_list_operational() {
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(&protected_window(0)), at(0));
    gates.install(list(&protected_window(5_000 * US)), at(100 * US));
    assert!(gates.advance(at(1_000_000 * US)));
    assert_eq!(gates.state(at(1_000_000 * US)).bits(), 0x80);
}

#[test]
fn a_clock_step_back_before_the_change_does_not_undo_it() {
    let mut gates = Gates::new(GateMask::ALL);
    let mut first = protected_window(0);
    first.entries.truncate(1);
    gates.install(list(&first), at(0));
    gates.install(list(&protected_window(5_000 * US)), at(100 * US));
    gates.advance(at(5_000 * US));
    gates.advance(at(2_300 * US));
    assert_eq!(
        gates.state(at(2_300 * US)).bits(),
        0x7f,
        "the new list, before its base time"
    );
    assert_eq!(
        gates.cycle(at(2_300 * US)),
        Some(Cycle {
            number: -3,
            start: at(2_000 * US)
        })
    );
}

#[test]
fn after_a_clock_step_back_the_link_is_free_within_one_frame() {
    let mut port = Port::new(PortConfig::default());
    for handle in 0..2 {
        port.enqueue(class(0), Item::new(1514, handle), at(0))
            .unwrap();
    }
    let second = 1_000_000 * US;
    assert_eq!(sent(port.next(at(second))), (0, second));
    // A second back, in the middle of the frame.
    assert_eq!(
        port.next(at(6_000)),
        Decision::WaitUntil(at(6_000 + 12_304))
    );
    assert_eq!(sent(port.next(at(6_000 + 12_304))), (1, 6_000 + 12_304));
}

#[test]
fn a_frame_handed_out_ahead_of_its_start_does_not_hold_up_one_that_can_start_now() {
    let mut port = Port::new(PortConfig {
        lead_ns: 100_000,
        ..PortConfig::default()
    });
    port.gates_mut().install(list(&protected_window(0)), at(0));
    let now = 950 * US;
    port.enqueue(class(7), Item::new(60, 7), at(now)).unwrap();
    port.enqueue(class(0), Item::new(60, 0), at(now)).unwrap();
    assert_eq!(sent(port.next(at(now))), (0, now));
    assert_eq!(sent(port.next(at(now))), (7, 1_000 * US));
}

#[test]
fn a_guard_keeps_the_end_of_a_frame_off_the_end_of_its_window() {
    let mut port: Port<u32> = Port::new(PortConfig {
        guard_ns: 1_000,
        ..PortConfig::default()
    });
    port.gates_mut().install(list(&protected_window(0)), at(0));
    port.enqueue(class(7), Item::new(60, 1), at(0)).unwrap();
    let latest = 250 * US - 576 - 1_000;
    assert_eq!(
        port.next(at(latest + 1)),
        Decision::WaitUntil(at(1_000 * US))
    );
}
