//! The credit-based shaper of IEEE 802.1Q-2022, clause 8.6.8.2.

use std::sync::Arc;

use proptest::prelude::*;
use takt_schedule::discipline::{CreditShaper, CreditShaperConfig};
use takt_schedule::{Decision, GateEntry, GateList, GateMask, Item, Port, PortConfig, Schedule};
use takt_time::{TaiTime, TrafficClass};

const RATE: u64 = 1_000_000_000;

fn at(nanos: i64) -> TaiTime {
    TaiTime::from_nanos(nanos)
}

fn class(number: u8) -> TrafficClass {
    TrafficClass::new(number).unwrap()
}

fn port(idle_slope_bps: u64, high_credit_bits: u64) -> Port<u32> {
    let mut port = Port::new(PortConfig {
        queue_capacity: 4096,
        ..PortConfig::default()
    });
    port.set_discipline(
        class(6),
        CreditShaper::new(CreditShaperConfig {
            capacity: 4096,
            idle_slope_bps,
            high_credit_bits,
        }),
    )
    .unwrap();
    port
}

/// Runs the port and answers the class and the start of every frame sent.
fn run(port: &mut Port<u32>, from: i64, until: i64) -> Vec<(u8, i64)> {
    let mut starts = Vec::new();
    let mut now = from;
    while now < until {
        match port.next(at(now)) {
            Decision::Send(departure) => starts.push((departure.class.number(), now)),
            Decision::WaitUntil(t) => now = t.as_nanos(),
            Decision::Drop(dropped) => panic!("dropped: {dropped:?}"),
            Decision::Idle => break,
        }
    }
    starts
}

#[test]
fn clause_8_6_8_2_a_class_alone_is_spaced_to_its_idle_slope() {
    let mut port = port(RATE / 4, 12_304);
    for handle in 0..4 {
        port.enqueue(class(6), Item::new(1514, handle), at(0))
            .unwrap();
    }
    // A frame takes 12 304 ns of link; at a quarter of the rate one may start each 49 216 ns.
    let starts = run(&mut port, 0, 1_000_000);
    assert_eq!(starts, [(6, 0), (6, 49_216), (6, 98_432), (6, 147_648)]);
}

#[test]
fn clause_8_6_8_2_credit_earned_while_another_class_sends_lets_frames_follow_at_once() {
    let mut port = port(RATE / 2, 100_000);
    port.enqueue(class(7), Item::new(1514, 0), at(0)).unwrap();
    for handle in 1..4 {
        port.enqueue(class(6), Item::new(1514, handle), at(0))
            .unwrap();
    }
    // During the class 7 frame class 6 earns 6 152 bits, half a frame: the first leaves it at 0,
    // which suffices for the second, and the third waits until the debt of 6 152 is earned.
    let starts = run(&mut port, 0, 1_000_000);
    assert_eq!(starts, [(7, 0), (6, 12_304), (6, 24_608), (6, 49_216)]);
}

#[test]
fn clause_8_6_8_2_credit_is_lost_when_nothing_waits() {
    let mut port = port(RATE / 4, 1_000_000);
    port.enqueue(class(6), Item::new(1514, 0), at(0)).unwrap();
    assert_eq!(run(&mut port, 0, 1_000_000).len(), 1);
    for handle in 1..3 {
        port.enqueue(class(6), Item::new(1514, handle), at(10_000_000))
            .unwrap();
    }
    let starts = run(&mut port, 10_000_000, 11_000_000);
    assert_eq!(starts, [(6, 10_000_000), (6, 10_049_216)]);
}

#[test]
fn clause_8_6_8_2_credit_does_not_exceed_its_limit() {
    let mut port = port(RATE / 2, 6_152);
    for handle in 0..20 {
        port.enqueue(class(7), Item::new(1514, handle), at(0))
            .unwrap();
    }
    for handle in 20..24 {
        port.enqueue(class(6), Item::new(1514, handle), at(0))
            .unwrap();
    }
    let starts = run(&mut port, 0, 10_000_000);
    let shaped: Vec<i64> = starts.iter().filter(|s| s.0 == 6).map(|s| s.1).collect();
    // Twenty frames of class 7 earn no more than one of class 6 costs.
    assert_eq!(shaped[1] - shaped[0], 12_304);
    assert_eq!(shaped[2] - shaped[1], 24_608);
}

#[test]
fn clause_8_6_8_2_under_gates_a_class_gets_its_bandwidth_in_the_time_it_has() {
    let mut port = port(RATE / 10, 12_304);
    let schedule = Schedule {
        cycle_time_ns: 1_000_000,
        entries: vec![
            GateEntry::new(GateMask::from_bits(0x40), 200_000),
            GateEntry::new(GateMask::from_bits(0xbf), 800_000),
        ],
        ..Schedule::default()
    };
    port.gates_mut()
        .install(Arc::new(GateList::new(&schedule).unwrap()), at(0));
    for handle in 0..4000 {
        port.enqueue(class(6), Item::new(1514, handle), at(0))
            .unwrap();
    }
    let starts = run(&mut port, 0, 100_000_000);
    assert!(starts.iter().all(|(_, start)| start % 1_000_000 < 200_000));
    // A tenth of the rate over 100 ms are 813 frames; the guard bands cost part of some windows.
    let bits = starts.len() as u64 * 12_304;
    assert!(bits <= RATE / 10 / 10 + 12_304, "{bits}");
    assert!(bits >= RATE / 10 / 10 * 95 / 100, "{bits}");
}

#[test]
fn a_clock_step_back_neither_gives_nor_takes_credit() {
    let mut port = port(RATE / 4, 12_304);
    for handle in 0..3 {
        port.enqueue(class(6), Item::new(1514, handle), at(1_000_000_000))
            .unwrap();
    }
    assert_eq!(
        run(&mut port, 1_000_000_000, 1_000_000_001),
        [(6, 1_000_000_000)]
    );
    // Half a second back: what was owed at the end of the frame is earned from now on.
    let starts = run(&mut port, 500_000_000, 501_000_000);
    assert_eq!(starts, [(6, 500_036_912), (6, 500_086_128)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_class_never_sends_more_than_its_slope_and_its_credit_allow(
        share in 2u64..20,
        high_credit_bits in 0u64..30_000,
        frames in prop::collection::vec((60u32..1514, 0i64..60_000, any::<bool>()), 1..120),
    ) {
        let slope = RATE / share;
        let mut port = port(slope, high_credit_bits);
        let mut now = 0;
        let mut sent: Vec<(i64, u64)> = Vec::new();
        for (handle, (len, wait, shaped)) in frames.iter().enumerate() {
            let of = if *shaped { class(6) } else { class(7) };
            port.enqueue(of, Item::new(*len, handle as u32), at(now)).unwrap();
            let until = now + wait;
            while now < until {
                match port.next(at(now)) {
                    Decision::Send(departure) if departure.class == class(6) => {
                        let bits = port.link().occupancy_ns(departure.item.len);
                        sent.push((now, bits));
                    }
                    Decision::Send(_) => {}
                    Decision::WaitUntil(t) => now = t.as_nanos().min(until),
                    Decision::Drop(dropped) => prop_assert!(false, "{:?}", dropped),
                    Decision::Idle => now = until,
                }
            }
        }
        // Over any span the class sends no more bits than it earns in it, the credit it may bring
        // along and the frame that takes it below zero.
        for first in 0..sent.len() {
            let mut bits = 0;
            for (start, size) in &sent[first..] {
                let earned = (start - sent[first].0) as u64 * slope / 1_000_000_000;
                prop_assert!(bits <= earned + high_credit_bits + 1, "{} of {}", bits, earned);
                bits += size;
            }
        }
    }
}
