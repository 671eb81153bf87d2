//! Many messages between two nodes: at a rate that can be sustained none is lost; above it every one is
//! received or counted.

use std::time::Duration;

use takt::{ChannelId, Sink, SinkOptions, Source, Wait};
use takt_lab::{LabConfig, Wiring};

use crate::support::application::{is_introduction, settled};
use crate::support::{Datapath, Pair, attach, introduce, number_of, put, skip, take};

const DATA: ChannelId = ChannelId(1);
const ACKNOWLEDGEMENTS: ChannelId = ChannelId(2);

const MILLION: u64 = 1_000_000;
/// How often the receiver says how far it is, and how far the sender may be ahead of that.
const STEP: u64 = 512;
const WINDOW: u64 = 4 * STEP;

/// Sends numbers below `total` in 64 bytes each, never more than the window ahead.
fn send_in_window(source: &Source, acknowledged: &Sink, total: u64) {
    let mut heard = 0;
    for number in 0..total {
        while number - heard >= WINDOW {
            source.flush();
            heard = take(acknowledged);
        }
        let mut buffer = source.buffer_wait(64, Wait::Forever).expect("a buffer");
        for (place, bytes) in (0u64..).zip(buffer.chunks_mut(8)) {
            bytes.copy_from_slice(&(number + place).to_le_bytes());
        }
        if number % 32 == 31 {
            buffer.emit().expect("emitted");
        } else {
            buffer.emit_more().expect("emitted");
        }
    }
    source.flush();
}

/// Receives them all, each whole and in its turn.
fn receive_in_order(sink: &Sink, acknowledge: &Source, total: u64) {
    let mut sequence = None;
    for number in 0..total {
        let message = sink
            .consume(Wait::For(takt_testing::PATIENCE))
            .expect("the next message");
        assert_eq!(message.len(), 64);
        let (words, _) = message.as_chunks();
        for (place, bytes) in (number..).zip(words) {
            assert_eq!(
                *bytes,
                place.to_le_bytes(),
                "lost, damaged or out of order at {number}"
            );
        }
        let expected = sequence.map_or(message.sequence(), |before: u64| before + 1);
        assert_eq!(message.sequence(), expected);
        sequence = Some(expected);
        drop(message);
        if number % STEP == STEP - 1 {
            put(acknowledge, number + 1, 8);
        }
    }
}

fn a_million_messages(datapath: Datapath) {
    if skip() {
        return;
    }
    let pair = Pair::over(datapath);
    let sessions = [0, 1].map(|at| attach(&pair.nodes[at], "volume"));
    let streams = sessions
        .each_ref()
        .map(|session| session.stream(datapath.qos()).expect("a stream"));
    assert_eq!(streams[0].datapath(), datapath.name());
    let deep = SinkOptions {
        depth: 2 * WINDOW as u32,
        ..SinkOptions::default()
    };
    let source = streams[0].source(DATA).expect("a source");
    let sink = streams[1].sink_with(DATA, deep).expect("a sink");
    let acknowledge = streams[1].source(ACKNOWLEDGEMENTS).expect("a source");
    let acknowledged = streams[0].sink(ACKNOWLEDGEMENTS).expect("a sink");
    introduce(&source, &[&sink]);
    introduce(&acknowledge, &[&acknowledged]);
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || send_in_window(&source, &acknowledged, MILLION));
        scope.spawn(move || {
            receive_in_order(&sink, &acknowledge, MILLION);
            let counters = sink.counters();
            assert_eq!(
                (
                    counters.lost,
                    counters.dropped_full,
                    counters.dropped_memory
                ),
                (0, 0, 0)
            );
        });
    });
    println!(
        "{}: {MILLION} messages in {:?}",
        datapath.name(),
        start.elapsed()
    );
}

#[test]
fn a_million_messages_over_kernel_udp_arrive_each_once_and_in_order() {
    a_million_messages(Datapath::Udp);
}

#[test]
fn a_million_messages_over_af_xdp_arrive_each_once_and_in_order() {
    a_million_messages(Datapath::Xdp);
}

const FLOOD: u64 = 200_000;
const SLOW_DEPTH: u32 = 64;

/// Sends without pause through a link of 50 Mbit/s to a sink that holds little and looks at it late.
fn above_the_rate(datapath: Datapath) {
    if skip() {
        return;
    }
    let config = LabConfig {
        wiring: Wiring::Bridge,
        ..LabConfig::default()
    };
    let pair = Pair::with(&config, datapath.section());
    // Behind the first cable: there no socket's buffer holds the sender back.
    let switch = format!("{}-switch", pair.lab.name());
    let narrow = std::process::Command::new("tc")
        .args([
            "-n", &switch, "qdisc", "replace", "dev", "h2", "root", "tbf",
        ])
        .args(["rate", "50mbit", "burst", "64k", "limit", "64k"])
        .status()
        .expect("tc");
    assert!(narrow.success());

    let sessions = [0, 1].map(|at| attach(&pair.nodes[at], "flood"));
    let streams = sessions
        .each_ref()
        .map(|session| session.stream(datapath.qos()).expect("a stream"));
    assert_eq!(streams[0].datapath(), datapath.name());
    let shallow = SinkOptions {
        depth: SLOW_DEPTH,
        ..SinkOptions::default()
    };
    let source = streams[0].source(DATA).expect("a source");
    let sink = streams[1].sink_with(DATA, shallow).expect("a sink");
    introduce(&source, &[&sink]);
    let mut admins = pair.nodes.each_ref().map(|node| node.admin());
    let [sent_before, received_before] = [0, 1].map(|at| admins[at].channel(DATA.0));

    for number in 0..FLOOD {
        put(&source, number, 256);
    }
    settled(&source);
    // What is under way comes before the tail, which ends once its last message is there.
    let (mut consumed, mut tail, mut last) = (0u64, FLOOD, None);
    while last != Some(tail) {
        match sink.consume(Wait::For(Duration::from_millis(100))) {
            Ok(message) => {
                assert!(!is_introduction(&message));
                let number = number_of(&message);
                assert!(Some(number) > last, "{number} after {last:?}");
                last = Some(number);
                consumed += 1;
            }
            Err(takt::Error::TimedOut) => {
                tail += 1;
                put(&source, tail, 256);
            }
            Err(error) => panic!("{error}"),
        }
    }
    settled(&source);
    let emitted = tail;
    let [sent, received] = [0, 1].map(|at| admins[at].channel(DATA.0));
    println!(
        "{}: emitted {emitted}, consumed {consumed}\nsender {sent:?}\nreceiver {received:?}",
        datapath.name()
    );
    assert_eq!(sent.emitted - sent_before.emitted, emitted);
    // Every one has one destination, and one outcome.
    let refused = sent.unreachable - sent_before.unreachable;
    let sent = sent.sent - sent_before.sent;
    assert_eq!((sent + refused, refused), (emitted, 0));
    let lost = (received.lost - received.late) - (received_before.lost - received_before.late);
    let received_new = received.received - received_before.received;
    assert_eq!(received_new + lost, sent);
    let [full, memory] = [
        received.dropped_full - received_before.dropped_full,
        received.dropped_memory - received_before.dropped_memory,
    ];
    let delivered = received.delivered - received_before.delivered;
    assert_eq!(delivered + full + memory, received_new);
    assert_eq!(consumed, delivered);
    assert!(lost > 0, "the link carried everything");
    assert!(full > 0, "the sink held everything");
    // The application sees the same figures.
    let counters = sink.counters();
    assert_eq!(
        (counters.dropped_full, counters.dropped_memory),
        (received.dropped_full, received.dropped_memory)
    );
    assert_eq!(counters.lost, received.lost - received.late);
}

#[test]
fn above_the_sustainable_rate_over_kernel_udp_each_message_is_received_or_counted() {
    above_the_rate(Datapath::Udp);
}

#[test]
fn above_the_sustainable_rate_over_af_xdp_each_message_is_received_or_counted() {
    above_the_rate(Datapath::Xdp);
}
