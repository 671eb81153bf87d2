use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use takt_session::layout::DEFAULT_DEPTH;

use super::peer::Peer;
use super::{LONG, emit, next, settle};
use crate::{
    ChannelId, Error, ErrorCode, Outcome, Qos, Session, Sink, SinkOptions, Source, SourceOptions,
    Stream, TaiTime, Token, TrafficClass, Wait,
};

const CHANNEL: ChannelId = ChannelId(9);

struct Ends {
    peer: Peer,
    stream: Stream,
    source: Source,
    sink: Sink,
    _session: Session,
}

fn ends(depth: u32) -> Ends {
    let peer = Peer::start();
    let session = peer.session();
    let class = TrafficClass::new(3).expect("class");
    let stream = session
        .stream(Qos::default().time_sensitive(class))
        .expect("stream");
    let source = stream
        .source_with(
            CHANNEL,
            SourceOptions {
                depth,
                ..SourceOptions::default()
            },
        )
        .expect("source");
    let sink = stream
        .sink_with(
            CHANNEL,
            SinkOptions {
                depth,
                ..SinkOptions::default()
            },
        )
        .expect("sink");
    Ends {
        peer,
        stream,
        source,
        sink,
        _session: session,
    }
}

#[test]
fn a_message_arrives_as_it_was_written_with_what_the_runtime_says_of_it() {
    let ends = ends(0);
    let Ends { source, sink, .. } = &ends;
    assert_eq!((source.channel(), sink.channel()), (CHANNEL, CHANNEL));
    for (number, text) in [&b"first"[..], b"", b"third"].into_iter().enumerate() {
        emit(source, text).expect("emit");
        let message = next(sink);
        assert_eq!(&*message, text);
        assert_eq!(message.sequence(), number as u64);
        assert_eq!(message.sender(), 77);
        assert_eq!(message.class(), TrafficClass::new(3).expect("class"));
        assert_eq!(
            message.send_time(),
            TaiTime::from_nanos(1_000 + number as i64)
        );
    }
    assert_eq!(sink.counters().delivered, 3);
    assert_eq!(sink.counters().dropped_full, 0);
}

#[test]
fn within_a_session_the_message_is_the_very_memory_that_was_written() {
    let ends = ends(0);
    let Ends {
        peer, source, sink, ..
    } = &ends;
    peer.with(|host| host.zero_copy = true);
    let mut buffer = source.buffer(4).expect("buffer");
    buffer.copy_from_slice(b"same");
    let written = buffer.as_ptr();
    let token = buffer.emit().expect("emit");
    let message = next(sink);
    assert_eq!(message.as_ptr(), written.cast_const());
    assert_eq!(&*message, b"same");
    assert_eq!(source.outcome(token), Outcome::Pending, "the sink holds it");
    drop(message);
    settle(|| (source.outcome(token) == Outcome::Sent).then_some(()));
}

#[test]
fn buffers_grow_and_shrink_within_their_capacity() {
    let ends = ends(0);
    let Ends { source, sink, .. } = &ends;
    let mut buffer = source.buffer(100).expect("buffer");
    assert_eq!(buffer.len(), 100);
    assert!(buffer.capacity() >= 100);
    let capacity = buffer.capacity();
    buffer.set_len(capacity).expect("to the full");
    assert_eq!(
        buffer.set_len(capacity + 1).expect_err("beyond").code(),
        ErrorCode::TooLarge
    );
    buffer.fill(7);
    buffer.truncate(capacity + 5);
    assert_eq!(buffer.len(), capacity);
    buffer.truncate(3);
    buffer.emit().expect("emit");
    assert_eq!(&*next(sink), [7, 7, 7]);
}

#[test]
fn a_message_up_to_the_maximum_passes_and_no_longer_one() {
    let ends = ends(0);
    let Ends { source, sink, .. } = &ends;
    let max = source.max_message();
    assert_eq!(max, 1 << 20);
    match source.buffer(max + 1) {
        Err(Error::TooLarge { length, max: told }) => assert_eq!((length, told), (max + 1, max)),
        other => panic!("{other:?}"),
    }
    for length in [max, 0, max, 70_000, max] {
        let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
        emit(source, &bytes).expect("emit");
        assert!(*next(sink) == *bytes, "message of {length} bytes");
    }
}

#[test]
fn no_more_than_depth_messages_are_between_buffer_and_completion() {
    let ends = ends(8);
    let Ends { peer, source, .. } = &ends;
    peer.with(|host| host.frozen = true);
    let mut buffers: Vec<_> = (0..8).map(|_| source.buffer(10).expect("buffer")).collect();
    assert!(matches!(source.buffer(10), Err(Error::WouldBlock)));
    drop(buffers.pop());
    buffers.push(source.buffer(10).expect("the dropped one"));
    for buffer in buffers {
        buffer.emit().expect("room came with the buffer");
    }
    assert!(matches!(source.buffer(10), Err(Error::WouldBlock)));
    assert!(matches!(
        source.buffer_wait(10, Wait::For(Duration::from_millis(1))),
        Err(Error::TimedOut)
    ));
    assert_eq!(source.pending(), 8);
    peer.with(|host| host.frozen = false);
    source.buffer_wait(10, LONG).expect("completed by now");
}

#[test]
fn messages_keep_order_and_content_while_rings_and_memory_wrap_around() {
    let Ends {
        peer: _peer,
        stream: _stream,
        source,
        sink,
        _session,
    } = ends(4);
    let length = |number: u32| (number as usize * 7919) % 3000 + 4;
    let count = 20_000;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let source = source;
            for number in 0..count {
                let mut buffer = source.buffer_wait(length(number), LONG).expect("buffer");
                buffer.fill(number as u8);
                buffer[..4].copy_from_slice(&number.to_le_bytes());
                buffer.emit().expect("emit");
            }
            settle(|| (source.pending() == 0).then_some(()));
            done.store(true, Ordering::Release);
        });
        let mut received = 0;
        let mut expected = 0;
        loop {
            let all_there = done.load(Ordering::Acquire);
            let message = match sink.consume(Wait::For(Duration::from_millis(1))) {
                Ok(message) => message,
                // The sink is small and the source does not wait for it: some are dropped.
                Err(Error::TimedOut) if all_there => break,
                Err(Error::TimedOut) => continue,
                Err(error) => panic!("{error}"),
            };
            let number = u32::from_le_bytes(message[..4].try_into().expect("number"));
            assert!(number >= expected, "message {number} after {expected}");
            assert_eq!(message.len(), length(number));
            assert!(message[4..].iter().all(|&byte| byte == number as u8));
            expected = number + 1;
            received += 1;
        }
        assert_eq!(received, sink.counters().delivered);
        assert_eq!(
            received + sink.counters().dropped_full,
            count.into(),
            "lost without being counted"
        );
    });
}

#[test]
fn messages_may_be_held_in_any_number_and_released_in_any_order() {
    let ends = ends(0);
    let Ends {
        peer, source, sink, ..
    } = &ends;
    for zero_copy in [false, true] {
        peer.with(|host| host.zero_copy = zero_copy);
        for number in 0..200_u32 {
            emit(source, &number.to_le_bytes()).expect("emit");
        }
        let mut held: Vec<_> = (0..200).map(|_| next(sink)).collect();
        for number in 0..200_u32 {
            assert_eq!(&*held[number as usize], number.to_le_bytes());
        }
        let odd: Vec<_> = (0..100).map(|i| held.remove(i + 1)).collect();
        drop(held);
        assert_eq!(
            peer.with(|host| host.served.as_mut().expect("session").outstanding()),
            100
        );
        drop(odd.into_iter().rev().collect::<Vec<_>>());
        assert_eq!(
            peer.with(|host| host.served.as_mut().expect("session").outstanding()),
            0
        );
    }
}

#[test]
fn a_full_sink_drops_and_counts() {
    let ends = ends(16);
    let Ends {
        peer, source, sink, ..
    } = &ends;
    let held: Vec<_> = (0..16)
        .map(|_| {
            emit(source, b"kept").expect("emit");
            next(sink)
        })
        .collect();
    for _ in 0..5 {
        emit(source, b"dropped").expect("emit");
    }
    settle(|| (source.pending() == 0).then_some(()));
    drop(held);
    peer.with(|host| host.served.as_mut().expect("session").outstanding());
    emit(source, b"after").expect("emit");
    assert_eq!(&*next(sink), b"after");
    assert_eq!(
        (sink.counters().delivered, sink.counters().dropped_full),
        (17, 5)
    );
}

#[test]
fn outcomes_are_told_until_too_many_have_followed() {
    let ends = ends(8);
    let Ends {
        peer,
        source,
        sink,
        stream,
        ..
    } = &ends;
    let sent = emit(source, b"x").expect("emit");
    assert_eq!(sent.number(), 0);
    settle(|| (source.outcome(sent) == Outcome::Sent).then_some(()));
    let nowhere = stream.source(ChannelId(1000)).expect("source");
    let token = emit(&nowhere, b"x").expect("emit");
    settle(|| (nowhere.outcome(token) == Outcome::NoSink).then_some(()));
    drop(next(sink));

    peer.with(|host| host.zero_copy = true);
    let first = emit(source, b"held").expect("emit");
    let held = next(sink);
    for _ in 0..15 {
        let token = emit(source, b"passes").expect("emit");
        drop(next(sink));
        settle(|| (source.outcome(token) == Outcome::Sent).then_some(()));
    }
    assert_eq!(source.outcome(first), Outcome::Pending);
    assert_eq!(source.outcome(sent), Outcome::Unknown);
    let latest = emit(source, b"passes").expect("emit");
    drop(next(sink));
    settle(|| (source.outcome(latest) == Outcome::Sent).then_some(()));
    assert_eq!(
        source.outcome(first),
        Outcome::Unknown,
        "held for too long to be remembered"
    );
    drop(held);
    settle(|| (source.pending() == 0).then_some(()));
    assert_eq!(
        source.outcome(latest),
        Outcome::Sent,
        "a late completion effaces no later one"
    );
    assert_eq!(
        source.outcome(Token::from_number(1 << 40)),
        Outcome::Unknown,
        "not emitted yet"
    );
}

#[test]
fn a_buffer_of_another_source_is_refused_and_goes_back_to_its_own() {
    let ends = ends(2);
    let Ends { stream, source, .. } = &ends;
    let other = stream
        .source_with(
            CHANNEL,
            SourceOptions {
                depth: 2,
                ..SourceOptions::default()
            },
        )
        .expect("source");
    for _ in 0..10 {
        let buffer = other.buffer(8).expect("buffer");
        let error = source.emit(buffer).expect_err("not its own");
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }
}

#[test]
fn waiting_ends_at_the_deadline_and_not_waiting_ends_at_once() {
    let ends = ends(0);
    let Ends { sink, .. } = &ends;
    assert!(matches!(sink.consume(Wait::Never), Err(Error::WouldBlock)));
    let pause = Duration::from_millis(5);
    let start = Instant::now();
    assert!(matches!(
        sink.consume(Wait::For(pause)),
        Err(Error::TimedOut)
    ));
    assert!(start.elapsed() >= pause);
    let deadline = Instant::now() + pause;
    assert!(matches!(
        sink.consume(Wait::Until(deadline)),
        Err(Error::TimedOut)
    ));
    assert!(Instant::now() >= deadline);
    assert!(matches!(
        sink.consume(Wait::Until(start)),
        Err(Error::TimedOut)
    ));
}

#[test]
fn a_sleeping_application_is_woken_by_the_message_whatever_it_may_spend() {
    for qos in [Qos::slow(), Qos::slow().unlimited()] {
        let peer = Peer::start();
        let session = peer.session();
        let stream = session.stream(qos).expect("stream");
        let source = stream.source(CHANNEL).expect("source");
        let sink = stream.sink(CHANNEL).expect("sink");
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                for number in 0..50_u8 {
                    let message = sink.consume(Wait::Forever).expect("message");
                    assert_eq!(&*message, [number]);
                }
            });
            for number in 0..50 {
                if number % 10 == 0 {
                    // Long enough for the reader to be asleep now and then; nothing depends on it.
                    std::thread::sleep(Duration::from_millis(1));
                }
                emit(&source, &[number]).expect("emit");
            }
            reader.join().expect("all messages");
        });
    }
}

#[test]
fn sources_in_several_threads_do_not_disturb_each_other() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let threads = 4;
    let count = 3_000;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let stream = stream.clone();
            scope.spawn(move || {
                let channel = ChannelId(thread);
                let source = stream.source(channel).expect("source");
                let sink = stream.sink(channel).expect("sink");
                for number in 0..count {
                    let text = format!("{thread} {number}");
                    emit(&source, text.as_bytes()).expect("emit");
                    assert_eq!(&*next(&sink), text.as_bytes());
                }
            });
        }
    });
}

#[test]
fn available_counts_what_waits() {
    let ends = ends(0);
    let Ends { source, sink, .. } = &ends;
    assert_eq!(sink.available(), 0);
    for _ in 0..DEFAULT_DEPTH / 2 {
        emit(source, b"x").expect("emit");
    }
    settle(|| (sink.available() == DEFAULT_DEPTH as usize / 2).then_some(()));
    drop(next(sink));
    assert_eq!(sink.available(), DEFAULT_DEPTH as usize / 2 - 1);
}

#[test]
fn a_launch_time_travels_with_its_message() {
    let ends = ends(0);
    let Ends {
        peer, source, sink, ..
    } = &ends;
    peer.with(|host| host.frozen = true);
    source
        .buffer(1)
        .expect("buffer")
        .emit_at(TaiTime::from_nanos(12_345))
        .expect("emit");
    let seen = peer.with(|host| host.served.as_mut().expect("session").peek(0));
    assert_eq!(
        (seen.flags, seen.launch_time_ns, seen.class),
        (1, 12_345, 3)
    );
    peer.with(|host| host.frozen = false);
    drop(next(sink));
}
