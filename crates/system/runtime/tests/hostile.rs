//! An application that writes whatever it likes all over its arena and socket, while others work.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng, rngs::StdRng};
use support::{App, Sink, Source, config, free_port, start};
use takt_clock::{Clock, SystemTai};
use takt_runtime::policy::Policy;
use takt_session::layout::{FLAG_LAUNCH_TIME, HEADER_BYTES, Outcome, TxDescriptor};
use takt_session::message::{Envelope, Reply, Request};
use takt_session::{ErrorCode, Qos, transport};
use takt_testing::until_true;

/// Two applications of one tenant that exchange numbered messages, and check each.
fn honest(a: &App, source: &mut Source, b: &App, sink: &mut Sink, number: &mut u32) {
    a.emit(source, *number % 1000, &number.to_le_bytes(), *number);
    let (_, bytes) = b.receive(sink);
    assert_eq!(bytes, number.to_le_bytes(), "cross-talk or loss");
    let completion = a.completion(source);
    assert_eq!(
        (completion.token, completion.outcome),
        (*number, Outcome::Sent as u32)
    );
    *number += 1;
}

#[test]
fn random_bytes_all_over_an_arena_end_that_session_and_disturb_nobody() {
    let runtime = start(config(free_port(), &[]));
    let (mut a, mut b) = (App::attach(runtime.handle()), App::attach(runtime.handle()));
    let (sa, sb) = (a.stream(Qos::slow()), b.stream(Qos::slow()));
    let mut sink = b.sink(sb, 5, 0);
    let mut source = a.source(sa, 5, 0);
    let mut number = 0;
    let mut rng = StdRng::seed_from_u64(2024);
    let mut reasons = std::collections::BTreeSet::new();
    for round in 0..60 {
        // The hostile one may write channel 6 and read it; 5 is not for it.
        let policy = Policy {
            identity: "hostile".into(),
            write: vec![6..=6],
            read: vec![6..=6],
            ..Policy::default()
        };
        let mut h = App::attach_with(runtime.handle(), policy);
        let stream = h.stream(Qos::slow());
        let mut sources: Vec<Source> = (0..3).map(|_| h.source(stream, 6, 64)).collect();
        let _sinks: Vec<Sink> = (0..3).map(|_| h.sink(stream, 6, 64)).collect();
        for i in 0..8 {
            h.emit(&mut sources[i % 3], i as u32, b"looks honest", i as u32);
        }
        let start = Instant::now();
        let mut ended = false;
        while !ended && start.elapsed() < Duration::from_millis(300) {
            for _ in 0..64 {
                // Mostly the rings: that is what the runtime reads.
                let end = if rng.random_bool(0.9) {
                    HEADER_BYTES + 64 * 1024
                } else {
                    h.map.total()
                };
                let offset = rng.random_range(0..end - 64);
                let mut junk = [0u8; 64];
                rng.fill(&mut junk[..]);
                let length = [1, 4, 8, 64][rng.random_range(0..4)];
                // Small numbers get past the first checks.
                if rng.random_bool(0.5) {
                    junk[1..].fill(0);
                }
                h.arena
                    .slice(offset, length)
                    .expect("in bounds")
                    .write_from(0, &junk[..length])
                    .expect("fits");
            }
            h.bell.ring();
            honest(&a, &mut source, &b, &mut sink, &mut number);
            if let Ok(Some(packet)) = transport::receive(&h.socket, false) {
                let text = String::from_utf8_lossy(&packet.bytes[14..]).into_owned();
                reasons.insert(
                    text.split(|c: char| c.is_ascii_digit())
                        .next()
                        .unwrap_or_default()
                        .to_owned(),
                );
                ended = true;
            }
        }
        if !ended && round % 2 == 0 {
            // Whatever survived the scribbling: two descriptors for one chunk never do.
            let twice = TxDescriptor {
                chunk: 1,
                length: u32::MAX,
                ..TxDescriptor::default()
            };
            let _ = sources[0].tx.push(twice);
            h.bell.ring();
        }
        drop(h);
        honest(&a, &mut source, &b, &mut sink, &mut number);
    }
    println!("{number} honest messages meanwhile; sessions ended for: {reasons:#?}");
    assert!(
        reasons.len() >= 2,
        "the scribbling reached too few checks: {reasons:?}"
    );
    until_true("the hostile sessions are gone", || {
        runtime.handle().sessions().expect("running").len() == 2
    });
}

fn end_reason(break_it: impl FnOnce(&mut App, &mut Source, &mut Sink)) -> takt_session::Failure {
    let runtime = start(config(free_port(), &[]));
    let mut h = App::attach(runtime.handle());
    let stream = h.stream(Qos::slow());
    let mut source = h.source(stream, 6, 64);
    let mut sink = h.sink(stream, 6, 64);
    break_it(&mut h, &mut source, &mut sink);
    h.bell.ring();
    let reason = h.ended();
    until_true("the session is gone", || {
        runtime.handle().sessions().expect("running").is_empty()
    });
    reason
}

fn emitting(descriptor: TxDescriptor) -> takt_session::Failure {
    end_reason(|_, source, _| assert!(source.tx.push(descriptor).expect("ring")))
}

#[test]
fn each_broken_rule_ends_the_session_with_its_own_reason() {
    let good = TxDescriptor {
        chunk: 1,
        length: 8,
        ..TxDescriptor::default()
    };
    let cases = [
        (
            TxDescriptor {
                length: u32::MAX,
                ..good
            },
            "longest message",
        ),
        (
            TxDescriptor {
                chunk: u32::MAX,
                ..good
            },
            "receive chunk 2147483647 emitted, but not received",
        ),
        (
            TxDescriptor {
                chunk: u32::MAX >> 1,
                ..good
            },
            "outside the transmit region",
        ),
        (
            TxDescriptor {
                chunk: (32 << 20) / 256 - 1,
                length: 257,
                ..good
            },
            "outside the transmit region",
        ),
        (TxDescriptor { class: 8, ..good }, "class 8"),
        (
            TxDescriptor {
                flags: 0x80,
                ..good
            },
            "flags",
        ),
    ];
    for (descriptor, expected) in cases {
        let reason = emitting(descriptor);
        assert_eq!(reason.code, ErrorCode::Protocol);
        assert!(
            reason.message.contains(expected),
            "{expected}: {}",
            reason.message
        );
    }
    let twice = end_reason(|_, source, _| {
        // The sink of this session holds the first, so the lane still does.
        source.tx.push(good).expect("ring");
        source.tx.push(good).expect("ring");
    });
    assert!(twice.message.contains("emitted twice"), "{}", twice.message);
    let released = end_reason(|h, source, sink| {
        h.emit(source, 1, b"x", 0);
        until_true("the message has come", || {
            sink.rx.available().expect("ring") == 1
        });
        sink.release.push(77).expect("ring");
    });
    assert!(
        released.message.contains("not received"),
        "{}",
        released.message
    );
}

/// Offsets of the indices in a ring.
const PRODUCER: usize = 0;
const CONSUMER: usize = 64;

#[derive(Clone, Copy, Debug)]
enum Ring {
    Transmit,
    Completion,
    Receive,
    Release,
}

/// Why a session ends of which an index, in a ring of 64 entries, is so much further than it was after a message.
fn jumped(ring: Ring, by: u32) -> takt_session::Failure {
    let runtime = start(config(free_port(), &[]));
    let (mut a, mut h) = (App::attach(runtime.handle()), App::attach(runtime.handle()));
    let (to_it, from_it) = (a.stream(Qos::slow()), h.stream(Qos::slow()));
    let mut sink = h.sink(from_it, 6, 64);
    let mut honest = a.source(to_it, 6, 64);
    let mut source = h.source(from_it, 7, 64);
    a.emit(&mut honest, 0, b"one", 0);
    h.receive(&mut sink);
    a.completion(&mut honest);
    h.emit(&mut source, 0, b"nobody listens", 0);
    h.completion(&mut source);
    let index = match ring {
        Ring::Transmit => source.block.tx_ring() + PRODUCER,
        Ring::Completion => source.block.completion_ring() + CONSUMER,
        Ring::Receive => sink.block.rx_ring() + CONSUMER,
        Ring::Release => sink.block.release_ring() + PRODUCER,
    };
    let index = h.arena.atomic_u32(index).expect("in bounds");
    index.store(1_u32.wrapping_add(by), Ordering::Relaxed);
    let mut emitted = 1;
    let mut reason = None;
    until_true("it is found out", || {
        match ring {
            // The runtime looks when there is something for it, or when it needs room.
            Ring::Transmit => h.bell.ring(),
            Ring::Completion => {
                // As many as fill it, none of which it takes.
                if emitted < 64 + 2 && source.tx.free().expect("ring") > 0 {
                    h.emit(&mut source, emitted, b"x", emitted);
                    emitted += 1;
                }
            }
            Ring::Receive | Ring::Release => {
                a.emit(&mut honest, 0, b"x", emitted);
                a.completion(&mut honest);
                h.bell.ring();
            }
        }
        let packet = transport::receive(&h.socket, false).ok().flatten();
        reason = packet.map(|packet| {
            let reply = Envelope::<Reply>::decode(&packet.bytes).expect("decode");
            match reply.message {
                Reply::Ended(failure) => failure,
                other => panic!("expected the end, got {other:?}"),
            }
        });
        reason.is_some()
    });
    // Who sent to it goes on.
    let mut other = a.sink(to_it, 5, 0);
    let mut source = a.source(to_it, 5, 0);
    a.emit(&mut source, 1, b"still here", 0);
    assert_eq!(a.receive(&mut other).1, b"still here");
    reason.expect("a reason")
}

#[test]
fn an_index_that_jumps_anywhere_it_cannot_be_ends_the_session_by_the_name_of_its_ring() {
    for (ring, name) in [
        (Ring::Transmit, "transmit ring"),
        (Ring::Completion, "completion ring"),
        (Ring::Receive, "receive ring"),
        (Ring::Release, "release ring"),
    ] {
        // Back by the whole ring, half round, and further than there are entries. Back by one is where it may have been when
        // the runtime looked last, but for what it has taken.
        let back = matches!(ring, Ring::Transmit).then_some(1_u32.wrapping_neg());
        for by in [64_u32.wrapping_neg(), 1 << 31, 1000]
            .into_iter()
            .chain(back)
        {
            let reason = jumped(ring, by);
            assert_eq!(reason.code, ErrorCode::Protocol);
            assert!(
                reason.message.contains(name) && reason.message.contains("ring is corrupt"),
                "{ring:?} by {by}: {}",
                reason.message
            );
        }
    }
}

#[test]
fn impossible_wishes_for_memory_are_refused() {
    let runtime = start(config(free_port(), &[]));
    for (tx_bytes, rx_bytes) in [(u64::MAX, 0), (0, u64::MAX - 4095), (1 << 40, 1 << 40)] {
        let socket = runtime
            .handle()
            .connect(Policy::default())
            .expect("running")
            .expect("socket pair");
        let message = Request::Attach {
            name: "greedy".into(),
            tx_bytes,
            rx_bytes,
            domain: false,
        };
        let bytes = Envelope {
            request: 1,
            message,
        }
        .encode();
        transport::send(&socket, &bytes, &[], true).expect("send");
        let packet = transport::receive(&socket, true)
            .expect("receive")
            .expect("an answer");
        let reply = Envelope::<Reply>::decode(&packet.bytes).expect("decode");
        let (Reply::Failed(failure) | Reply::Ended(failure)) = reply.message else {
            panic!("not refused: {:?}", reply.message)
        };
        assert_eq!(failure.code, ErrorCode::NoMemory, "{failure}");
    }
    let other = App::attach(runtime.handle());
    drop(other);
}

#[test]
fn who_closes_a_source_that_is_still_to_send_again_and_again_is_told_so() {
    let runtime = start(config(free_port(), &[]));
    let mut app = App::attach(runtime.handle());
    let stream = app.stream(Qos::slow());
    let mut source = app.source(stream, 5, 0);
    let _sink = app.sink(stream, 5, 0);
    let later = TxDescriptor {
        flags: FLAG_LAUNCH_TIME,
        launch_time_ns: SystemTai.now().as_nanos() + 50_000_000_000,
        ..TxDescriptor::default()
    };
    app.emit_as(&mut source, b"later", later);
    let close = Request::CloseSource(source.id);
    support::send(&app.socket, 1000, close.clone(), &[]);
    for _ in 0..3 {
        let refused = app.ask(close.clone()).expect_err("it is closed already");
        assert_eq!(refused.code, ErrorCode::NotFound, "{refused}");
    }
    app.source(stream, 5, 0);
}

#[test]
fn an_application_that_keeps_its_doorbell_ringing_slows_nobody_down_for_long() {
    let runtime = start(config(free_port(), &[]));
    let (mut a, mut b) = (App::attach(runtime.handle()), App::attach(runtime.handle()));
    let (sa, sb) = (a.stream(Qos::slow()), b.stream(Qos::slow()));
    let mut sink = b.sink(sb, 5, 0);
    let mut source = a.source(sa, 5, 0);
    let h = App::attach(runtime.handle());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                h.bell.ring();
            }
        });
        let mut number = 0;
        for _ in 0..2000 {
            honest(&a, &mut source, &b, &mut sink, &mut number);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn junk_on_the_session_socket_ends_the_session_only() {
    let runtime = start(config(free_port(), &[]));
    let other = App::attach(runtime.handle());
    let mut rng = StdRng::seed_from_u64(7);
    for _ in 0..200 {
        let h = App::attach(runtime.handle());
        let mut junk = vec![0u8; rng.random_range(1..200)];
        rng.fill(&mut junk[..]);
        if rng.random_bool(0.7) {
            junk[0] = 1;
            if let Some(kind) = junk.get_mut(1..4) {
                kind.copy_from_slice(&[0, rng.random_range(0..9), 0]);
            }
        }
        let _ = transport::send(&h.socket, &junk, &[], true);
        drop(h);
    }
    until_true("the others are gone", || {
        runtime.handle().sessions().expect("running").len() == 1
    });
    drop(other);
    until_true("all are gone", || {
        runtime.handle().sessions().expect("running").is_empty()
    });
}
