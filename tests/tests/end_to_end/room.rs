//! Sources in event loops: while there is no room they sleep on their descriptors alone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags};
use takt::{
    ChannelId, Error, Qos, Reliability, Sink, SinkOptions, SlowSinks, Source, SourceOptions, Wait,
};
use takt_lab::{Lab, LabConfig};
use takt_testing::{PATIENCE, until};

use crate::support::{Node, Stops, attach, introduce, skip};

const CHANNEL: ChannelId = ChannelId(5);
const LENGTH: usize = 64;

/// A source and a sink of the same channel, in sessions of their own, which wait for each other.
fn pair(node: &Node) -> (takt::Session, Source, Sink) {
    let qos = Qos {
        reliability: Reliability::Reliable {
            deadline: None,
            slow_sinks: SlowSinks::Wait,
        },
        ..Qos::slow()
    };
    let writer = attach(node, "writer");
    let stream = writer.stream(qos).expect("a stream");
    let options = SourceOptions {
        depth: 8,
        notify_fd: true,
    };
    let source = stream.source_with(CHANNEL, options).expect("a source");
    let stream = attach(node, "reader").stream(qos).expect("a stream");
    let options = SinkOptions {
        depth: 4,
        ..SinkOptions::default()
    };
    let sink = stream.sink_with(CHANNEL, options).expect("a sink");
    introduce(&source, &[&sink]);
    (writer, source, sink)
}

/// Emits a number, as an event loop does. `sleeps`: called before each sleep.
fn emit(source: &Source, number: u64, mut sleeps: impl FnMut()) {
    let fd = source.fd().expect("asked for");
    loop {
        match source.buffer(LENGTH) {
            Ok(mut buffer) => {
                buffer[..8].copy_from_slice(&number.to_le_bytes());
                match buffer.emit() {
                    Ok(_) => return,
                    // It was of the runtime that has gone.
                    Err(Error::Disconnected) => continue,
                    Err(error) => panic!("{error}"),
                }
            }
            Err(Error::WouldBlock | Error::Disconnected) => {}
            Err(error) => panic!("{error}"),
        }
        if source.arm(LENGTH) {
            sleeps();
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            let patience = PATIENCE.try_into().ok();
            let ready = rustix::event::poll(&mut fds, patience.as_ref()).expect("poll");
            assert_eq!(ready, 1, "nobody has told the source of number {number}");
        }
    }
}

/// The numbers that have come; introductions are shorter.
fn taken(sink: &Sink) -> Vec<u64> {
    let take = || match sink.consume(Wait::Never) {
        Ok(message) => Some((first_of(&message), message.len() < LENGTH)),
        Err(Error::WouldBlock | Error::Disconnected) => None,
        Err(error) => panic!("{error}"),
    };
    let came = std::iter::from_fn(take).filter(|(_, introduces)| !introduces);
    came.map(|(number, _)| number).collect()
}

fn first_of(message: &[u8]) -> u64 {
    u64::from_le_bytes(*message.first_chunk().expect("a number"))
}

#[test]
fn a_source_that_waits_for_a_slow_sink_sleeps_and_every_message_arrives() {
    const MESSAGES: u64 = 5_000;
    if skip() {
        return;
    }
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    let mut node = Node::start(lab.host(0), &[], "");
    let (_writer, source, sink) = pair(&node);
    let mut received = Vec::new();
    std::thread::scope(|scope| {
        let sleeps = scope.spawn(move || {
            let mut sleeps = 0_u64;
            for number in 0..MESSAGES {
                emit(&source, number, || sleeps += 1);
            }
            (source, sleeps)
        });
        until("the last message has come", || {
            let came = taken(&sink);
            // Slower than who does nothing but write.
            (0..100 * came.len()).for_each(|_| std::thread::yield_now());
            received.extend(came);
            (received.last() == Some(&(MESSAGES - 1))).then_some(())
        });
        let (_source, sleeps) = sleeps.join().expect("the writer");
        assert!(sleeps > 100, "{sleeps} sleeps");
    });
    assert!(
        received.into_iter().eq(0..MESSAGES),
        "lost, doubled or out of order"
    );
    assert!(node.runs());
}

#[test]
fn a_source_that_sleeps_is_told_by_a_daemon_that_has_come_back() {
    if skip() {
        return;
    }
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    let mut node = Node::start(lab.host(0), &[], "");
    let (writer, source, sink) = pair(&node);
    let (emitted, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (emitted, stop) = (&emitted, &stop);
        let _stops = Stops(&[stop]);
        let writes = scope.spawn(move || {
            for number in 0.. {
                emit(&source, number, || {});
                emitted.store(number, Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let until_past = |number: u64| {
            until(&format!("a message after {number}"), || {
                let came = taken(&sink);
                came.iter().any(|one| *one > number).then_some(())
            });
        };
        until_past(100);
        for restart in 1..=3 {
            // Nothing is taken meanwhile: the source has no room, and sleeps.
            let full = emitted.load(Ordering::Relaxed);
            node.kill();
            node.restart();
            until("the writer is back", || {
                (writer.attachments() == restart + 1).then_some(())
            });
            until_past(full + 100);
        }
        stop.store(true, Ordering::Relaxed);
        until("it ends", || {
            taken(&sink);
            writes.is_finished().then_some(())
        });
    });
}
