//! Messages between applications of one node and of two, over kernel UDP on loopback.

mod support;

use support::{App, Sink, Source, config, free_port, start};
use takt_runtime::config::LaneConfig;
use takt_session::layout::{Outcome, RX_REGION, RxDescriptor, TX_REGION, TxDescriptor};
use takt_session::message::{Reply, Request};
use takt_session::{ChannelId, Qos};
use takt_testing::{PATIENCE, until_true};

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

#[test]
fn a_message_reaches_a_sink_of_another_application_by_one_copy_and_of_its_own_by_none() {
    let runtime = start(config(free_port(), &[]));
    let (mut a, mut b) = (App::attach(runtime.handle()), App::attach(runtime.handle()));
    let (sa, sb) = (a.stream(Qos::slow()), b.stream(Qos::slow()));
    let mut own = a.sink(sa, 5, 0);
    let mut other = b.sink(sb, 5, 0);
    let mut source = a.source(sa, 5, 0);
    let message = pattern(1000, 1);
    a.emit(&mut source, 40, &message, 99);
    let (descriptor, bytes) = b.receive(&mut other);
    assert_eq!(bytes, message);
    assert_eq!(descriptor.chunk & TX_REGION, 0);
    let (descriptor, bytes) = a.receive(&mut own);
    assert_eq!(bytes, message);
    assert_eq!(descriptor.chunk, 40 | TX_REGION);
    let completion = a.completion(&mut source);
    assert_eq!((completion.chunk, completion.token), (40, 99));
    assert_eq!(completion.outcome, Outcome::Sent as u32);
}

#[test]
fn a_message_without_a_sink_completes_as_such() {
    let runtime = start(config(free_port(), &[]));
    let mut a = App::attach(runtime.handle());
    let stream = a.stream(Qos::slow());
    let mut source = a.source(stream, 5, 0);
    a.emit(&mut source, 0, b"nobody", 1);
    assert_eq!(a.completion(&mut source).outcome, Outcome::NoSink as u32);
}

#[test]
fn messages_of_every_size_reach_another_node_in_order() {
    let (pa, pb) = (free_port(), free_port());
    let node_a = start(config(pa, &[pb]));
    let node_b = start(config(pb, &[pa]));
    let (mut a, mut b) = (App::attach(node_a.handle()), App::attach(node_b.handle()));
    let (sa, sb) = (a.stream(Qos::slow()), b.stream(Qos::slow()));
    let mut sink = b.sink(sb, 9, 0);
    let mut source = a.source(sa, 9, 0);
    a.emit_until_heard(&mut source, b"first");
    let (first, bytes) = b.receive(&mut sink);
    assert_eq!(bytes, b"first");
    let sizes = [
        0,
        1,
        63,
        64,
        1024,
        1432,
        1433,
        8192,
        9000,
        65_536,
        1 << 20,
        16 << 20,
    ];
    for (i, size) in sizes.into_iter().enumerate() {
        let message = pattern(size, i as u8);
        a.emit(&mut source, 0, &message, i as u32);
        let (descriptor, bytes) = b.receive(&mut sink);
        assert_eq!(descriptor.sequence, first.sequence + 1 + i as u64);
        assert_eq!(bytes.len(), size);
        assert!(bytes == message, "message of {size} bytes differs");
        assert_eq!(a.completion(&mut source).token, i as u32);
    }
}

#[test]
fn delays_of_messages_from_another_node_are_told_however_they_come() {
    let (pa, pb) = (free_port(), free_port());
    let node_a = start(config(pa, &[pb]));
    let node_b = start(config(pb, &[pa]));
    let (mut a, mut b) = (App::attach(node_a.handle()), App::attach(node_b.handle()));
    for (channel, qos) in [(9, Qos::slow()), (10, Qos::slow().reliable())] {
        let (sa, sb) = (a.stream(qos), b.stream(qos));
        let mut sink = b.sink(sb, channel, 0);
        let mut source = a.source(sa, channel, 0);
        a.emit_until_heard(&mut source, b"first");
        b.receive(&mut sink);
        // It holds what it has not released.
        let mut local = a.sink(sa, channel, 0);
        // Whole, and in fragments.
        for length in [8, 100_000] {
            a.emit(&mut source, 0, &pattern(length, 1), 1);
            while b.receive(&mut sink).1.len() != length {}
            while a.receive(&mut local).1.len() != length {}
            // Before its memory is used again.
            a.completion(&mut source);
        }
    }
    until_true("all that was received is told of", || {
        let received: u64 = (node_b.handle().channels().expect("running").iter())
            .map(|channel| channel.counters.received)
            .sum();
        let told = node_b.handle().status().expect("running").delays[0];
        assert_eq!(told.negative, 0, "both nodes have one clock");
        assert!(told.longest_ns <= told.sum_ns);
        received >= 6 && told.count() == received
    });
    let told = node_a.handle().status().expect("running").delays[0];
    assert_eq!(told.count(), 0, "what does not leave a node has no delay");
}

#[test]
fn small_messages_for_one_node_share_datagrams() {
    let (pa, pb) = (free_port(), free_port());
    let node_a = start(config(pa, &[pb]));
    let node_b = start(config(pb, &[pa]));
    let (mut a, mut b) = (App::attach(node_a.handle()), App::attach(node_b.handle()));
    let (sa, sb) = (a.stream(Qos::slow()), b.stream(Qos::slow()));
    let mut sink = b.sink(sb, 9, 4096);
    let mut source = a.source(sa, 9, 4096);
    a.emit_until_heard(&mut source, b"first");
    b.receive(&mut sink);
    let before = node_a.handle().status().expect("running").lanes[0]
        .counters
        .tx_datagrams;
    // All in the ring before the lane is told.
    for i in 0..1000u32 {
        let descriptor = takt_session::layout::TxDescriptor {
            chunk: i,
            length: 64,
            token: i,
            ..Default::default()
        };
        assert!(source.tx.stage(descriptor).expect("ring"));
    }
    source.tx.publish();
    a.bell.ring();
    for _ in 0..1000 {
        b.receive(&mut sink);
    }
    let sent = node_a.handle().status().expect("running").lanes[0]
        .counters
        .tx_datagrams
        - before;
    assert!(sent <= 250, "{sent} datagrams for 1000 messages");
}

#[test]
fn sinks_on_all_lanes_of_a_node_get_each_message_once() {
    let (pa, pb) = (free_port(), free_port());
    let mut two = config(pa, &[pb]);
    two.lanes = vec![LaneConfig::default(); 2];
    let node_a = start(two.clone());
    let mut other = config(pb, &[pa]);
    other.lanes = vec![LaneConfig::default(); 2];
    let node_b = start(other);
    // Sessions are spread over the lanes.
    let mut apps: Vec<App> = (0..2).map(|_| App::attach(node_a.handle())).collect();
    apps.extend((0..2).map(|_| App::attach(node_b.handle())));
    let mut sinks: Vec<_> = apps
        .iter_mut()
        .map(|app| {
            let stream = app.stream(Qos::slow());
            app.sink(stream, 3, 0)
        })
        .collect();
    let stream = apps[0].stream(Qos::slow());
    let mut source = apps[0].source(stream, 3, 0);
    // Until all four are known to the source's lane.
    let mut heard = [false; 4];
    until_true("all sinks are reached", || {
        apps[0].emit(&mut source, 0, b"probe", 0);
        apps[0].receive(&mut sinks[0]);
        apps[0].completion(&mut source);
        std::thread::sleep(std::time::Duration::from_millis(1));
        for i in 0..4 {
            while apps[i].take(&mut sinks[i]).is_some() {
                heard[i] = true;
            }
        }
        heard[0] = true;
        heard.iter().all(|h| *h)
    });
    for n in 0..200u32 {
        apps[0].emit(&mut source, 1, &n.to_le_bytes(), n);
        for i in 0..4 {
            let mut got = apps[i].receive(&mut sinks[i]).1;
            while got == b"probe" {
                got = apps[i].receive(&mut sinks[i]).1;
            }
            assert_eq!(got, n.to_le_bytes(), "application {i}");
        }
        apps[0].completion(&mut source);
    }
}

#[test]
fn a_closed_sink_gets_nothing_more_and_its_rings_are_used_again() {
    let runtime = start(config(free_port(), &[]));
    let mut a = App::attach(runtime.handle());
    let stream = a.stream(Qos::slow());
    for round in 0..300 {
        let sink = a.sink(stream, 5, 1024);
        let closed = a.ask(Request::CloseSink(sink.id));
        assert_eq!(closed, Ok(Reply::Closed), "round {round}");
    }
    let source = a.source(stream, 5, 0);
    assert_eq!(a.ask(Request::CloseSource(source.id)), Ok(Reply::Closed));
    assert!(a.ask(Request::CloseSource(source.id)).is_err());
}

#[test]
fn a_sink_that_never_consumes_loses_its_own_messages_only() {
    let runtime = start(config(free_port(), &[]));
    let (mut a, mut b, mut c) = (
        App::attach(runtime.handle()),
        App::attach(runtime.handle()),
        App::attach(runtime.handle()),
    );
    let (sa, sb, sc) = (
        a.stream(Qos::slow()),
        b.stream(Qos::slow()),
        c.stream(Qos::slow()),
    );
    let _lazy = b.sink(sb, 5, 16);
    let mut busy = c.sink(sc, 5, 0);
    let mut source = a.source(sa, 5, 0);
    for n in 0..1000u32 {
        a.emit(&mut source, 0, &n.to_le_bytes(), n);
        assert_eq!(c.receive(&mut busy).1, n.to_le_bytes());
        a.completion(&mut source);
    }
    let sessions = runtime.handle().sessions().expect("running");
    assert_eq!(sessions[1].counters.delivered, 16);
    assert_eq!(sessions[1].counters.dropped_full, 984);
    assert_eq!(sessions[2].counters.delivered, 1000);
    assert_eq!(sessions[2].counters.dropped_full, 0);
}

#[test]
fn a_sink_that_never_consumes_does_not_hold_up_a_source_of_its_own_session() {
    const DEPTH: u32 = 8;
    let runtime = start(config(free_port(), &[]));
    for length in [100, 1 << 20] {
        let mut app = App::attach(runtime.handle());
        let stream = app.stream(Qos::slow());
        let mut source = app.source(stream, 5, DEPTH);
        let mut lazy = app.sink(stream, 5, 64);
        let message = pattern(length, 1);
        let chunks = (length / takt_shm::CHUNK + 1) as u32;
        let mut free: Vec<u32> = (0..DEPTH).map(|at| at * chunks).collect();
        for number in 0..200 {
            while free.is_empty() {
                free.push(app.completion(&mut source).chunk);
            }
            let chunk = free.pop().expect("one is free");
            app.emit(&mut source, chunk, &message, number);
        }
        // By reference it has half of them at most.
        while free.len() < DEPTH as usize / 2 {
            free.push(app.completion(&mut source).chunk);
        }
        let sessions = runtime.handle().sessions().expect("running");
        let counted = sessions.last().expect("its session").counters;
        let dropped = counted.dropped_full + counted.dropped_memory;
        assert_eq!(counted.delivered + dropped, 200);
        assert!(counted.delivered <= 64 && dropped >= 136, "{counted:?}");
        for _ in 0..counted.delivered {
            assert_eq!(app.receive(&mut lazy).1, message);
        }
    }
}

#[test]
fn a_drain_sends_what_was_emitted_and_says_goodbye() {
    let runtime = start(config(free_port(), &[]));
    let (mut a, mut b) = (App::attach(runtime.handle()), App::attach(runtime.handle()));
    let (sa, sb) = (a.stream(Qos::slow()), b.stream(Qos::slow()));
    let mut sink = b.sink(sb, 5, 1024);
    let mut source = a.source(sa, 5, 1024);
    for n in 0..500u32 {
        a.emit(&mut source, n, &n.to_le_bytes(), n);
    }
    runtime.handle().drain(PATIENCE).expect("running");
    for n in 0..500u32 {
        assert_eq!(b.receive(&mut sink).1, n.to_le_bytes());
    }
    assert_eq!(a.ended().code, takt_session::ErrorCode::ShuttingDown);
}

#[test]
fn a_drain_that_gives_up_says_no_goodbye_so_that_peers_count_what_is_missing() {
    let (pa, pb) = (free_port(), free_port());
    let node_a = start(config(pa, &[pb]));
    let node_b = start(config(pb, &[pa]));
    let (mut a, mut b) = (App::attach(node_a.handle()), App::attach(node_b.handle()));
    let (sa, sb) = (a.stream(Qos::slow()), b.stream(Qos::slow()));
    let mut source = a.source(sa, 5, 0);
    let mut sink = b.sink(sb, 5, 0);
    until_true("the other node hears it", || {
        a.emit(&mut source, 0, &[], 0);
        a.completion(&mut source);
        b.take(&mut sink).is_some()
    });
    let later = takt_clock::Clock::now(&takt_clock::SystemTai).as_nanos() + 30_000_000_000;
    let descriptor = TxDescriptor {
        length: 4,
        flags: takt_session::layout::FLAG_LAUNCH_TIME,
        launch_time_ns: later,
        ..TxDescriptor::default()
    };
    assert!(source.tx.push(descriptor).expect("ring"));
    node_a
        .handle()
        .drain(std::time::Duration::ZERO)
        .expect("running");
    drop(node_a);
    let peers = node_b.handle().peers().expect("running");
    for peer in peers {
        node_b.handle().remove_peer(peer.address).expect("running");
    }
    until_true("the source's tail is told to be unknown", || {
        let channels = node_b.handle().channels().expect("running");
        channels[0].counters.unknown_tails > 0
    });
}

#[test]
fn requests_that_make_no_sense_are_refused_and_change_nothing() {
    let runtime = start(config(free_port(), &[]));
    let mut a = App::attach(runtime.handle());
    let stream = a.stream(Qos::slow());
    let open = |stream, depth| Request::OpenSource {
        stream,
        channel: ChannelId(1),
        depth,
        origin: 0,
        first: 0,
    };
    assert!(
        a.ask(open(stream + 1, 0))
            .expect_err("no stream")
            .message
            .contains("no stream")
    );
    assert!(
        a.ask(open(stream, 1000))
            .expect_err("depth")
            .message
            .contains("power of two")
    );
    assert!(
        a.ask(open(stream, 1 << 20))
            .expect_err("depth")
            .message
            .contains("power of two")
    );
    a.source(stream, 1, 0);
}

#[test]
fn large_messages_that_are_held_leave_room_for_small_ones() {
    let runtime = start(config(free_port(), &[]));
    let (mut a, mut b) = (App::attach(runtime.handle()), App::attach(runtime.handle()));
    let (sa, sb) = (a.stream(Qos::slow()), b.stream(Qos::slow()));
    // A region of 64 MiB that holds what large messages may take of it, in two sinks.
    let mut sinks = [b.sink(sb, 5, 0), b.sink(sb, 6, 0)];
    let (mut five, mut six) = (a.source(sa, 5, 0), a.source(sa, 6, 0));
    let large = pattern(16 << 20, 1);
    for source in [&mut five, &mut six] {
        for _ in 0..3 {
            a.emit(source, 0, &large, 0);
            a.completion(source);
        }
    }
    let mut held = Vec::new();
    for sink in &mut sinks {
        while let Some(descriptor) = sink.rx.pop().expect("ring") {
            held.push(descriptor);
        }
    }
    assert_eq!(held.len(), 3, "the share of large messages");
    for number in 0..1000u32 {
        a.emit(&mut five, 0, &number.to_le_bytes(), 0);
        a.completion(&mut five);
        let (_, bytes) = b.receive(&mut sinks[0]);
        assert_eq!(bytes, number.to_le_bytes());
    }
    let dropped = runtime.handle().sessions().expect("running")[1].counters;
    assert_eq!((dropped.dropped_memory, dropped.dropped_full), (3, 0));
}

/// A descriptor that emits what a sink has received.
fn forwarded(received: &RxDescriptor, token: u32) -> TxDescriptor {
    TxDescriptor {
        chunk: received.chunk | RX_REGION,
        length: received.length,
        token,
        ..TxDescriptor::default()
    }
}

/// Takes a message and keeps it.
fn hold(app: &App, sink: &mut Sink) -> RxDescriptor {
    let mut held = None;
    until_true("a message", || {
        held = sink.rx.pop().expect("ring");
        held.is_some()
    });
    sink.rx.release();
    app.bell.ring();
    held.expect("a message")
}

#[test]
fn what_was_received_is_emitted_from_where_it_lies_and_its_memory_comes_back() {
    let (pa, pb) = (free_port(), free_port());
    let node_a = start(config(pa, &[pb]));
    let node_b = start(config(pb, &[pa]));
    let (mut a, mut b) = (App::attach(node_a.handle()), App::attach(node_a.handle()));
    let mut c = App::attach(node_b.handle());
    let [sa, sb, sc] = [&mut a, &mut b, &mut c].map(|app| app.stream(Qos::slow()));
    let mut source = a.source(sa, 5, 0);
    // It passes on what it hears, to a sink of its own, to one of another application here and to one elsewhere.
    let mut sink = b.sink(sb, 5, 0);
    let mut onward = b.source(sb, 6, 0);
    let mut sinks = [b.sink(sb, 6, 0), a.sink(sa, 6, 0), c.sink(sc, 6, 0)];
    let mut seen = false;
    while !seen {
        b.emit(&mut onward, 0, &[], 7);
        // By reference: completed when it is released.
        b.receive(&mut sinks[0]);
        b.completion(&mut onward);
        seen = c.take(&mut sinks[2]).is_some();
    }
    // More than the region holds, if one were kept.
    for token in 0..12 {
        let message = pattern(12 << 20, token as u8);
        a.emit(&mut source, 0, &message, token);
        let held = hold(&b, &mut sink);
        assert_eq!(a.completion(&mut source).outcome, Outcome::Sent as u32);
        let descriptor = forwarded(&held, token);
        assert!(onward.tx.push(descriptor).expect("ring"));
        b.bell.ring();
        for (app, sink) in [&b, &a, &c].into_iter().zip(&mut sinks) {
            loop {
                let (_, bytes) = app.receive(sink);
                if !bytes.is_empty() {
                    assert!(bytes == message, "other bytes");
                    break;
                }
            }
        }
        let completion = b.completion(&mut onward);
        assert_eq!(
            (completion.chunk, completion.token),
            (descriptor.chunk, token)
        );
        assert_eq!(completion.outcome, Outcome::Sent as u32);
    }
}

#[test]
fn what_a_closed_sink_had_received_is_still_sent_if_it_was_emitted_before() {
    let runtime = start(config(free_port(), &[]));
    let (mut a, mut b) = (App::attach(runtime.handle()), App::attach(runtime.handle()));
    let (sa, sb) = (a.stream(Qos::slow()), b.stream(Qos::slow()));
    let mut source = a.source(sa, 5, 0);
    let mut heard = a.sink(sa, 6, 0);
    let mut onward = b.source(sb, 6, 0);
    // Held by nobody in the end: as much as the region holds twice over.
    for token in 0..300 {
        let mut sink = b.sink(sb, 5, 0);
        let message = pattern(1 << 19, token as u8);
        a.emit(&mut source, 0, &message, token);
        let held = hold(&b, &mut sink);
        a.completion(&mut source);
        // The doorbell is not rung: the lane may look before or after the sink is closed.
        assert!(onward.tx.push(forwarded(&held, token)).expect("ring"));
        match b.ask(Request::CloseSink(sink.id)) {
            Ok(Reply::Closed) => {}
            other => panic!("{other:?}"),
        }
        b.bell.ring();
        let (_, bytes) = a.receive(&mut heard);
        assert!(bytes == message, "{token}: other bytes");
        b.completion(&mut onward);
    }
}

#[test]
fn a_session_that_emits_what_it_does_not_hold_is_ended_and_nobody_else() {
    let runtime = start(config(free_port(), &[]));
    let mut a = App::attach(runtime.handle());
    let sa = a.stream(Qos::slow());
    let mut source = a.source(sa, 5, 0);
    type Crime = fn(RxDescriptor, &mut Source);
    let crimes: [(&str, Crime); 4] = [
        ("emitted, but not received", |held, onward| {
            let other = RxDescriptor {
                chunk: held.chunk + 1,
                ..held
            };
            onward.tx.push(forwarded(&other, 1)).expect("ring");
        }),
        ("emitted, but not received", |held, onward| {
            let other = RxDescriptor {
                chunk: TX_REGION - 1,
                ..held
            };
            onward.tx.push(forwarded(&other, 1)).expect("ring");
        }),
        ("emitted, but not received", |held, onward| {
            onward.tx.push(forwarded(&held, 1)).expect("ring");
            onward.tx.push(forwarded(&held, 2)).expect("ring");
        }),
        ("has room for", |held, onward| {
            let longer = RxDescriptor {
                length: held.length + 4096,
                ..held
            };
            onward.tx.push(forwarded(&longer, 1)).expect("ring");
        }),
    ];
    for (reason, crime) in crimes {
        let mut h = App::attach(runtime.handle());
        let stream = h.stream(Qos::slow());
        let mut sink = h.sink(stream, 5, 2);
        let mut onward = h.source(stream, 6, 0);
        a.emit(&mut source, 0, &pattern(1000, 3), 1);
        let held = hold(&h, &mut sink);
        a.completion(&mut source);
        crime(held, &mut onward);
        h.bell.ring();
        let ended = h.ended();
        assert!(ended.message.contains(reason), "{reason}: {ended:?}");
    }
    // Who gives a message up twice, by emitting and by releasing it, spoils what is its own.
    let mut h = App::attach(runtime.handle());
    let stream = h.stream(Qos::slow());
    let mut spoiled = h.sink(stream, 5, 8);
    let mut onward = h.source(stream, 6, 0);
    let mut sink = a.sink(sa, 5, 0);
    for number in 0..1000u32 {
        let message = number.to_le_bytes();
        // Its own sink has it by reference: the source goes on once it is released.
        a.emit(&mut source, number, &message, number);
        if let Ok(Some(held)) = spoiled.rx.pop() {
            spoiled.rx.release();
            let _ = onward.tx.push(forwarded(&held, number));
            let _ = spoiled.release.push(held.chunk);
            h.bell.ring();
        }
        // And the others go on.
        assert_eq!(a.receive(&mut sink).1, message);
        a.completion(&mut source);
    }
}
