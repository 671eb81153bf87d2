//! What the victim's link carried, by the kernel's stamps at the other end of its cable.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Acquire};
use std::time::Duration;

use takt_lab::{Capture, Captured};
use takt_wire::channel::DatagramHeader;

use super::victims::LAUNCHED;
use super::{Latencies, TENANT_CHANNELS};
use crate::gates::tai_offset;
use crate::support::number_of;

/// A message as it was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// 0: the victim. Another tenant by the first hundred of its channels.
    tenant: u64,
    number: u64,
    /// When its lane took it from its source, and when it was at the other end; TAI nanoseconds.
    taken: i64,
    at: i64,
}

/// `None`: not a message that leaves at an instant.
fn read(captured: &Captured, offset: i64) -> Option<Seen> {
    let (header, body) = DatagramHeader::parse(captured.datagram()).ok()?;
    let record = header.records(body.records).next()?.ok()?;
    let channel = record.header.channel;
    let tenant = match channel {
        _ if channel == LAUNCHED.0 => 0,
        _ => channel / TENANT_CHANNELS,
    };
    let victims = channel == LAUNCHED.0;
    (victims || channel >= TENANT_CHANNELS).then(|| Seen {
        tenant,
        number: if victims {
            number_of(record.payload)
        } else {
            0
        },
        taken: header.send_time_ns,
        at: captured.realtime_ns + offset,
    })
}

/// What comes until told to stop, and how much there was no room for.
pub fn watch(capture: &Capture, stop: &AtomicBool) -> (Vec<Seen>, u32) {
    let offset = tai_offset();
    let mut seen = Vec::new();
    loop {
        // Read once more after being told to stop: what has come is there.
        let last = stop.load(Acquire);
        let pause = Duration::from_millis(if last { 0 } else { 100 });
        while let Some(captured) = capture.next(pause).expect("it captures") {
            seen.extend(read(&captured, offset));
        }
        if last {
            return (seen, capture.lost().expect("a count"));
        }
    }
}

/// What the wire says of the victim's messages.
#[derive(Debug, Default)]
pub struct Departures {
    /// From its instant to its arrival at the other end.
    pub late: Latencies,
    /// Messages that were in their queue before their instant for certain.
    pub judged: usize,
    /// Most messages of others that left between such a one's instant and itself.
    pub most_before: usize,
    /// Messages of other tenants that were seen.
    pub others: usize,
}

impl Departures {
    pub fn add(&mut self, more: Self) {
        self.late.add(more.late);
        self.judged += more.judged;
        self.most_before = self.most_before.max(more.most_before);
        self.others += more.others;
    }
}

/// Holds the victim's messages, from number `first` on, against their instants.
///
/// However late a lane is, each leaves once, in order and not before its instant; and it waits for one frame that is under
/// way and, for itself and each of its own that left meanwhile, for one of each other tenant. That holds for what was in its
/// queue in time: it was, if the lane took another message of the victim in a later round and still before the instant.
pub fn check(seen: &[Seen], launches: &[i64], first: usize, missing: u32) -> Departures {
    let mut found = Departures::default();
    let victims: Vec<(usize, &Seen)> = seen
        .iter()
        .enumerate()
        .filter(|(_, one)| one.tenant == 0)
        .collect();
    found.others = seen.len() - victims.len();
    let due = launches.len() - first;
    assert!(
        victims.len() <= due && victims.len() + missing as usize >= due,
        "{} of {due} messages were captured, and {missing} frames were not",
        victims.len(),
    );
    let mut next = first as u64;
    for (nth, &(place, message)) in victims.iter().enumerate() {
        let Seen { number, at, .. } = *message;
        assert!(
            number >= next,
            "message {number} is doubled or out of order"
        );
        next = number + 1;
        let launch = launches[number as usize];
        assert!(at >= launch, "message {number} {} ns early", launch - at);
        found.late.note(at.abs_diff(launch).into());

        let taken_later = |(_, later): &&(usize, &Seen)| later.taken > message.taken;
        let later = victims[nth + 1..].iter().find(taken_later);
        if later.is_none_or(|(_, later)| later.taken > launch) {
            continue;
        }
        found.judged += 1;
        let since = seen[..place]
            .iter()
            .rev()
            .take_while(|one| one.at >= launch);
        let mut before: BTreeMap<u64, usize> = BTreeMap::new();
        for one in since {
            *before.entry(one.tenant).or_default() += 1;
        }
        let own = before.remove(&0).unwrap_or_default();
        let others = before.values().sum::<usize>();
        assert!(
            others <= 1 + before.len() * (own + 1),
            "message {number} left {} us after its instant, behind {others} of {} other tenants and {own} of its own",
            (at - launch) / 1000,
            before.len(),
        );
        found.most_before = found.most_before.max(others);
    }
    found
}

/// Messages of a tenant each, at these instants; the victim's are for 1000 and 2000, and were taken in time.
fn check_order(order: &[(u64, i64)]) -> Departures {
    let mut number = 0;
    let seen = order.iter().map(|&(tenant, at)| {
        let taken = number as i64;
        number += u64::from(tenant == 0);
        Seen {
            tenant,
            number: taken as u64,
            taken,
            at,
        }
    });
    check(&seen.collect::<Vec<_>>(), &[1000, 2000], 0, 0)
}

#[test]
fn who_waits_for_one_on_the_wire_and_one_of_each_other_has_had_its_turn() {
    let found = check_order(&[
        (1, 990),
        (1, 1001),
        (2, 1002),
        (1, 1003),
        (0, 1004),
        (0, 2000),
    ]);
    assert_eq!((found.judged, found.most_before, found.others), (1, 3, 4));
}

#[test]
#[should_panic(expected = "behind 3 of 1 other tenants and 0 of its own")]
fn a_tenant_that_goes_before_another_twice_is_found_out() {
    check_order(&[(1, 1001), (1, 1002), (1, 1003), (0, 1004), (0, 2000)]);
}

#[test]
#[should_panic(expected = "1 ns early")]
fn a_message_before_its_instant_is_found_out() {
    check_order(&[(0, 999), (0, 2000)]);
}

#[test]
#[should_panic(expected = "1 of 2 messages were captured")]
fn a_message_that_does_not_leave_is_found_out() {
    check_order(&[(0, 1000)]);
}
