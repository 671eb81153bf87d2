//! One-way delays as a node tells them, beside what the application that receives the same messages sees of them.

use std::time::Duration;

use takt::{ChannelId, Qos, TaiTime, TrafficClass, Wait};
use takt_clock::{Clock, SystemTai};
use takt_lab::LabConfig;
use takt_testing::{PATIENCE, until};
use taktd::admin::proto;

use crate::support::{Node, Pair, attach, number_of, put, put_at, skip};

const CHANNEL: ChannelId = ChannelId(1);
const MESSAGES: u64 = 100;
/// From one launch time to the next, and before the first one.
const EVERY_NS: i64 = 3_000_000;
const AHEAD_NS: i64 = 2_000_000_000;
/// As much tolerance as there is: a busy machine is not what is tested.
const SECTIONS: &str = "[departure]\ntolerance_us = 1000000\n";

/// What a message's delay is between, by the order of events: a message with a launch time is not sent before that, and is whole at
/// the receiver's lane before the application has it.
#[derive(Clone, Copy)]
struct Bounds {
    least: i64,
    most: i64,
}

/// So many of a thousand have no more than this.
fn quantile(bounds: &[Bounds], per_mille: usize, of: impl Fn(&Bounds) -> i64) -> u64 {
    let mut delays: Vec<i64> = bounds.iter().map(of).collect();
    delays.sort_unstable();
    let rank = (delays.len() * per_mille).div_ceil(1000).max(1);
    u64::try_from(delays[rank - 1]).expect("one clock")
}

/// What a node tells of a class once it tells of so many messages.
fn told(node: &Node, class: TrafficClass, messages: usize) -> proto::ClassDelays {
    let mut admin = node.admin();
    until("all messages are told of", || {
        let delays = admin.node().delays;
        let of = |delays: &proto::ClassDelays| delays.class == u32::from(class.number());
        let found = delays.into_iter().find(of)?;
        (found.messages == messages as u64).then_some(found)
    })
}

#[test]
fn percentiles_are_those_of_the_application_that_receives() {
    if skip() {
        return;
    }
    let pair = Pair::with(&LabConfig::default(), SECTIONS);
    let (talker, listener) = (
        attach(&pair.nodes[0], "talker"),
        attach(&pair.nodes[1], "listener"),
    );
    let sink = listener
        .stream(Qos::slow())
        .and_then(|stream| stream.sink(CHANNEL));
    let sink = sink.expect("a sink");
    for class in [2, 5] {
        let class = TrafficClass::new(class).expect("a class");
        let qos = Qos::slow().time_sensitive(class);
        let source = talker.stream(qos).and_then(|stream| stream.source(CHANNEL));
        let source = source.expect("a source");
        let mut bounds: Vec<Bounds> = Vec::new();
        let mut take = |launches: &[i64], wait: Wait| {
            let message = sink.consume(wait).ok()?;
            let now = SystemTai.now().as_nanos();
            let sent = message.send_time().as_nanos();
            assert_eq!(message.class(), class);
            let number = number_of(&message);
            let launch = launches.get(number as usize).copied();
            bounds.push(Bounds {
                least: launch.map_or(0, |launch| (launch - sent).max(0)),
                most: now - sent,
            });
            Some(number)
        };
        // Those that the sink hears while it becomes known count as well.
        let mut first = u64::MAX;
        until("the sink hears the source", || {
            first -= 1;
            put(&source, first, 64);
            let short = Wait::For(Duration::from_millis(100));
            while let Some(number) = take(&[], short) {
                if number == first {
                    return Some(());
                }
            }
            None
        });
        let start = SystemTai.now().as_nanos() + AHEAD_NS;
        let launches = (0..MESSAGES as i64).map(|at| start + at * EVERY_NS);
        let launches: Vec<i64> = launches.collect();
        for (number, launch) in (0..).zip(&launches) {
            put_at(&source, number, 64, TaiTime::from_nanos(*launch));
        }
        for number in 0..MESSAGES {
            assert_eq!(take(&launches, Wait::For(PATIENCE)), Some(number));
        }

        let told = told(&pair.nodes[1], class, bounds.len());
        assert_eq!(told.negative, 0, "both nodes have one clock");
        for (name, per_mille, found) in [
            ("p50", 500, told.p50_ns),
            ("p99", 990, told.p99_ns),
            ("p99.9", 999, told.p999_ns),
            ("max", 1000, told.longest_ns),
        ] {
            let least = quantile(&bounds, per_mille, |bounds| bounds.least);
            let most = quantile(&bounds, per_mille, |bounds| bounds.most);
            // Rounded up as the reference says, and the longest not at all.
            let most = if per_mille == 1000 {
                most
            } else {
                (most + most / 16).max(1024)
            };
            assert!(
                (least..=most).contains(&found),
                "{class} {name}: {found} is not in {least}..={most}"
            );
        }
        let waited = bounds.iter().filter(|bounds| bounds.least > 0).count();
        assert!(
            waited > bounds.len() / 2,
            "they were to wait for their launch times"
        );
    }
    // The sender has received nothing.
    assert_eq!(pair.nodes[0].admin().node().delays, []);
}
