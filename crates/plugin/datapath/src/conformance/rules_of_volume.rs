//! Rules of many datagrams: nothing gets lost that is not counted.

use std::sync::atomic::{AtomicU64, Ordering};

use takt_time::TrafficClass;

use super::Rig;
use super::harness::{Pair, Patience, exchange, flush, number_of, pair, pattern, reserve};
use crate::{Port, PortCounters};

/// Datagrams after which a receiver that takes none must be full.
const BOUNDLESS: u64 = 4_000_000;

/// What has become of the datagrams sent to a port.
fn accounted(port: &dyn Port) -> u64 {
    let counters = port.counters();
    counters.rx_datagrams + counters.rx_dropped + counters.rx_invalid
}

/// On both sides.
pub fn counters_account_for_every_datagram_and_byte(rig: &mut dyn Rig) {
    let window = rig.window();
    let mut pair = pair(rig);
    let greatest = pair.left.max_payload(pair.to_right);
    let lengths: Vec<usize> = (0..300)
        .map(|number| number * 37 % (greatest + 1))
        .collect();
    exchange(&mut pair, window.min(16), &lengths);
    let bytes = lengths.iter().sum::<usize>() as u64;
    let sent = PortCounters {
        tx_datagrams: 300,
        tx_bytes: bytes,
        ..PortCounters::default()
    };
    let received = PortCounters {
        rx_datagrams: 300,
        rx_bytes: bytes,
        ..PortCounters::default()
    };
    assert_eq!(pair.left.counters(), sent);
    assert_eq!(pair.right.counters(), received);
}

/// Two threads at full speed; the sender is held back only so far that nothing between them overflows.
pub fn one_hundred_thousand_datagrams_are_each_delivered_or_counted(rig: &mut dyn Rig) {
    const TOTAL: u64 = 100_000;
    let window = rig.window() as u64;
    let Pair {
        mut left,
        mut right,
        to_right,
    } = pair(rig);
    let len = left.max_payload(to_right).min(256);
    // What the sender could not send, and what has become of the rest.
    let (refused, arrived) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut patience = Patience::new();
            for number in 0..TOTAL {
                // Acquire here and below: pairs with the Release of the other thread.
                while number.saturating_sub(arrived.load(Ordering::Acquire)) >= window {
                    left.flush();
                    refused.store(left.counters().tx_errors, Ordering::Release);
                    patience.check(|| format!("sending datagram {number}: {:?}", left.counters()));
                    std::thread::yield_now();
                }
                patience.progress();
                let frame = reserve(&mut *left, to_right);
                left.payload(&frame)[..len].copy_from_slice(&pattern(number as usize, len));
                left.commit(frame, len, TrafficClass::BEST_EFFORT, None);
                if number % 16 == 15 {
                    left.flush();
                }
            }
            flush(&mut *left);
            refused.store(left.counters().tx_errors, Ordering::Release);
        });
        let mut patience = Patience::new();
        let mut next = 0;
        while arrived.load(Ordering::Relaxed) < TOTAL {
            let delivered = right.receive(64, &mut |datagram| {
                let number = number_of(datagram.payload);
                assert!(number >= next, "datagram {number} after {next} others");
                assert!(
                    datagram.payload == pattern(number, len),
                    "datagram {number} is not as it was sent"
                );
                next = number + 1;
            });
            if delivered > 0 {
                patience.progress();
            } else {
                std::thread::yield_now();
            }
            patience.check(|| format!("receiving: {:?}", right.counters()));
            arrived.store(
                accounted(&*right) + refused.load(Ordering::Acquire),
                Ordering::Release,
            );
        }
    });
    let (sent, received) = (left.counters(), right.counters());
    assert_eq!(sent.tx_datagrams + sent.tx_errors, TOTAL, "{sent:?}");
    assert_eq!(
        sent.tx_datagrams,
        accounted(&*right),
        "{sent:?} {received:?}"
    );
    assert_eq!(sent.tx_bytes, sent.tx_datagrams * len as u64);
    assert_eq!(received.rx_bytes, received.rx_datagrams * len as u64);
}

/// And what it then receives is what came first. Where it holds its sender back, the sender counts what it has to
/// give up, and all the rest arrives.
pub fn what_finds_its_receiver_full_is_counted(rig: &mut dyn Rig) {
    if rig.holds_senders_back() {
        return what_is_held_back_arrives_or_is_counted(rig);
    }
    let Pair {
        mut left,
        mut right,
        to_right,
    } = pair(rig);
    let mut committed = 0;
    while right.counters().rx_dropped < 100 {
        assert!(
            committed < BOUNDLESS,
            "the receiver is never full: {:?}",
            right.counters()
        );
        for _ in 0..100 {
            let frame = reserve(&mut *left, to_right);
            left.payload(&frame)[..8].copy_from_slice(&pattern(committed as usize, 8));
            left.commit(frame, 8, TrafficClass::BEST_EFFORT, None);
            committed += 1;
            // One by one: what a technology passes on together it may lose and count together.
            left.flush();
        }
    }
    flush(&mut *left);
    let mut received = Vec::new();
    while right.receive(64, &mut |datagram| {
        received.push(number_of(datagram.payload))
    }) > 0
    {}
    assert!(
        !received.is_empty(),
        "a full receiver has nothing to deliver"
    );
    assert_eq!(received[0], 0);
    assert!(
        received.is_sorted_by(|first, second| first < second),
        "datagrams came twice or out of order"
    );
    let (sent, all) = (left.counters(), accounted(&*right));
    assert_eq!(sent.tx_datagrams + sent.tx_errors, committed, "{sent:?}");
    if rig.counts_each_overflow() {
        assert_eq!(all, sent.tx_datagrams, "{:?}", right.counters());
    } else {
        assert!(
            all <= sent.tx_datagrams,
            "more datagrams than were sent: {:?}",
            right.counters()
        );
    }
}

fn what_is_held_back_arrives_or_is_counted(rig: &mut dyn Rig) {
    let Pair {
        mut left,
        mut right,
        to_right,
    } = pair(rig);
    let mut committed = 0;
    let mut next = 0;
    let rounds = Patience::new();
    // Again where the link was not up yet, so that all was given up.
    while left.counters().tx_datagrams == 0 {
        rounds.check(|| format!("nothing has left: {:?}", left.counters()));
        // Until nothing more can be reserved and nothing more leaves.
        while let Ok(frame) = left.reserve(to_right) {
            assert!(committed < BOUNDLESS, "nothing holds the sender back");
            left.payload(&frame)[..8].copy_from_slice(&pattern(committed as usize, 8));
            left.commit(frame, 8, TrafficClass::BEST_EFFORT, None);
            committed += 1;
            left.flush();
        }
        let mut patience = Patience::new();
        loop {
            let done = left.flush();
            let delivered = right.receive(64, &mut |datagram| {
                let number = number_of(datagram.payload);
                assert!(number >= next, "datagram {number} after {next} others");
                next = number + 1;
            });
            let sent = left.counters();
            if done && accounted(&*right) == sent.tx_datagrams {
                assert_eq!(sent.tx_datagrams + sent.tx_errors, committed, "{sent:?}");
                break;
            }
            if delivered > 0 {
                patience.progress();
            }
            patience.check(|| format!("{sent:?}, {:?}", right.counters()));
        }
    }
}
