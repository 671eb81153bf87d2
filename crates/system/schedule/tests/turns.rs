//! Flows of one class, some of which aim at another's instants.

use proptest::prelude::*;
use takt_schedule::discipline::{LatePolicy, LaunchTime, LaunchTimeConfig};
use takt_schedule::port::TxFlags;
use takt_schedule::{Decision, Item, Link, Port, PortConfig};
use takt_time::{TaiTime, TrafficClass};

const LINK: Link = Link::ethernet(1_000_000_000);

fn at(nanos: i64) -> TaiTime {
    TaiTime::from_nanos(1_000_000_000_000 + nanos)
}

fn class() -> TrafficClass {
    TrafficClass::new(5).unwrap()
}

/// A gigabit port for so many flows whose late frames are sent.
fn port(flows: usize, lead_ns: u64) -> Port<usize> {
    let mut port = Port::new(PortConfig {
        link: LINK,
        lead_ns,
        ..PortConfig::default()
    });
    let config = LaunchTimeConfig {
        capacity: 4096,
        late: LatePolicy::Send,
        ..LaunchTimeConfig::default()
    };
    port.set_discipline(class(), LaunchTime::new(config))
        .unwrap();
    port.set_flows(flows);
    port
}

/// A frame that was sent: which, when, and until when it occupied the link.
#[derive(Clone, Copy, Debug)]
struct Sent {
    frame: usize,
    start: TaiTime,
    end: TaiTime,
}

/// Runs a port until nothing is queued.
fn run(port: &mut Port<usize>, mut now: TaiTime) -> Vec<Sent> {
    let mut list = Vec::new();
    loop {
        match port.next(now) {
            Decision::Send(departure) => {
                let busy = LINK.occupancy_ns(departure.item.len) as i64;
                list.push(Sent {
                    frame: departure.item.handle,
                    start: departure.start,
                    end: departure.start.saturating_add_nanos(busy),
                });
            }
            Decision::Drop(dropped) => panic!("dropped: {dropped:?}"),
            Decision::WaitUntil(until) => now = until,
            Decision::Idle => return list,
        }
    }
}

fn occupancy(len: u32) -> i64 {
    LINK.occupancy_ns(len) as i64
}

#[test]
fn frames_stamped_just_before_anothers_instants_delay_it_by_one_of_them() {
    const INSTANTS: i64 = 20;
    let mut port = port(2, 0);
    let now = at(0);
    for instant in 1..=INSTANTS {
        // The aiming one has 50 frames for each, which take longer than the cycle.
        let launch = instant * 100_000;
        for frame in 0..50 {
            let item = Item::new(1000, 1000 + frame).at(at(launch - 2_000)).of(1);
            port.enqueue(class(), item, now).unwrap();
        }
        let item = Item::new(64, instant as usize).at(at(launch)).of(0);
        port.enqueue(class(), item, now).unwrap();
    }
    let sent = run(&mut port, now);
    let victims: Vec<_> = sent.iter().filter(|sent| sent.frame < 1000).collect();
    assert_eq!(victims.len(), INSTANTS as usize);
    for sent in victims {
        let late = sent.start.nanos_since(at(sent.frame as i64 * 100_000));
        // The frame on the wire; the other has had its turn with it.
        assert!((0..=occupancy(1000)).contains(&late), "{late}");
    }
    assert_eq!(
        sent.len(),
        51 * INSTANTS as usize,
        "the other's leave as well"
    );
}

#[test]
fn messages_without_a_time_are_not_kept_waiting_by_anothers_strict_frames() {
    let mut port = port(2, 0);
    let now = at(0);
    // Due one after the other, so that nothing of any length fits between them.
    for frame in 0..100 {
        let item = Item::new(64, 1000).at(at(frame * 1000)).of(1);
        port.enqueue(class(), item, now).unwrap();
    }
    for frame in 0..20 {
        let item = Item::new(1000, frame)
            .at(at(1_000_000_000))
            .with(TxFlags::DEADLINE)
            .of(0);
        port.enqueue(class(), item, now).unwrap();
    }
    let sent = run(&mut port, now);
    let order: Vec<bool> = sent.iter().map(|sent| sent.frame < 1000).collect();
    let last = order.iter().rposition(|victim| *victim).unwrap();
    assert!(last <= 3 * 20, "{order:?}");
}

/// Frames of others: whose, when they come, their launch times from then, how long they are, whether that is a
/// deadline.
fn others() -> impl Strategy<Value = Vec<(u32, i64, i64, u32, bool)>> {
    prop::collection::vec(
        (
            1u32..5,
            0i64..1_000_000,
            // Aimed at the victim's instants, or anywhere.
            prop_oneof![-3_000i64..3_000, -500_000i64..500_000],
            46u32..1514,
            prop::bool::weighted(0.2),
        ),
        0..400,
    )
}

proptest! {
    /// Whatever four others queue, a frame starts at its time or when the one before it of its flow is out,
    /// but for the frame on the wire and one frame of each other flow. Once it may leave the link free for less than it
    /// takes itself, so that another's frame is in time.
    #[test]
    fn a_flow_waits_for_one_frame_of_each_other_at_most(
        others in others(),
        lengths in prop::collection::vec(46u32..1514, 1..10),
        lead in prop_oneof![Just(0u64), Just(5_000), Just(100_000)],
    ) {
        let mut port = port(5, lead);
        let now = at(0);
        let instant = |number: usize| (number as i64 + 1) * 100_000;
        for (number, len) in lengths.iter().enumerate() {
            let item = Item::new(*len, number).at(at(instant(number))).of(0);
            port.enqueue(class(), item, now).unwrap();
        }
        let mut longest = [0; 5];
        for (flow, near, off, len, deadline) in others {
            let launch = at((near / 100_000 * 100_000 + off).max(0));
            let item = Item::new(len, 1000).at(launch).of(flow);
            let item = if deadline { item.with(TxFlags::DEADLINE) } else { item };
            if port.enqueue(class(), item, now).is_ok() {
                let longest = &mut longest[flow as usize];
                *longest = (*longest).max(occupancy(len));
            }
        }
        let sent = run(&mut port, now);
        let bound: i64 = longest.iter().sum::<i64>() + longest.iter().max().unwrap();
        let mut before = at(0);
        let mut number = 0;
        for sent in sent.iter().filter(|sent| sent.frame < 1000) {
            prop_assert_eq!(sent.frame, number, "in the order of launch times");
            let due = at(instant(number)).max(before);
            let late = sent.start.nanos_since(due);
            let bound = bound + occupancy(lengths[number]);
            prop_assert!((0..=bound).contains(&late), "{} of {}", late, bound);
            before = sent.end;
            number += 1;
        }
        prop_assert_eq!(number, lengths.len());
    }
}

#[test]
fn a_frame_that_does_not_leave_occupies_no_link_and_counts_as_removed() {
    let mut port = port(1, 0);
    let now = at(0);
    for frame in 0..2 {
        port.enqueue(class(), Item::new(1514, frame).at(now), now)
            .unwrap();
    }
    let Decision::Send(first) = port.next(now) else {
        panic!("not sent");
    };
    port.not_sent(&first);
    let Decision::Send(second) = port.next(now) else {
        panic!("the link is free");
    };
    assert_eq!((second.item.handle, second.start), (1, now));
    let counters = port.counters(class());
    assert_eq!((counters.sent, counters.dropped.removed), (1, 1));
    assert_eq!(counters.expected_queued(), 0);
}
