use std::time::Duration;

use takt_session::layout::Completion;
use takt_session::message::Request;

use super::peer::{Peer, failure};
use super::{LONG, emit, next, settle};
use crate::descriptors::first_registered;
use crate::{ChannelId, Error, ErrorCode, Outcome, Qos, Session, SourceOptions, Wait};

const CHANNEL: ChannelId = ChannelId(5);

fn attachments(peer: &Peer) -> usize {
    let is_attach = |request: &&Request| matches!(request, Request::Attach { .. });
    peer.with(|host| host.log.iter().filter(is_attach).count())
}

#[test]
fn a_blocked_call_learns_of_the_loss_and_the_next_finds_everything_open_again() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    emit(&source, b"before").expect("emit");
    assert_eq!(&*next(&sink), b"before");
    let sink = std::thread::scope(|scope| {
        let blocked = scope.spawn(move || {
            let error = sink
                .consume(Wait::Forever)
                .expect_err("the runtime goes away");
            (sink, error)
        });
        settle(|| peer.with(|host| host.served.as_ref()?.sleeps(0).then_some(())));
        peer.vanish();
        let (sink, error) = blocked.join().expect("thread");
        assert_eq!(error.code(), ErrorCode::Disconnected);
        sink
    });
    assert!(!session.is_attached());
    assert!(matches!(
        sink.consume(Wait::Never),
        Err(Error::Disconnected)
    ));
    assert!(matches!(source.buffer(1), Err(Error::Disconnected)));
    assert!(matches!(
        session.stream(Qos::default()),
        Err(Error::Disconnected)
    ));
    assert!(matches!(
        sink.consume(Wait::For(Duration::from_millis(5))),
        Err(Error::Disconnected)
    ));
    peer.with(|host| host.log.clear());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            // Begun while detached: waits for the runtime, then for a message.
            let message = sink.consume(LONG);
            (message.map(|message| message.to_vec()), sink)
        });
        peer.come_back();
        emit(&source, b"after").expect("waits for the runtime as well");
        let (message, sink) = waiting.join().expect("thread");
        assert_eq!(message.expect("message"), b"after");
        assert_eq!(sink.counters().delivered, 2, "counters go on");
    });
    let reopened = |request: &Request| {
        matches!(request, Request::OpenStream(qos) if *qos == Qos::fast())
            || matches!(
                request,
                Request::OpenSource {
                    channel: CHANNEL,
                    stream: 4,
                    ..
                }
            )
            || matches!(
                request,
                Request::OpenSink {
                    channel: CHANNEL,
                    stream: 4,
                    ..
                }
            )
    };
    assert_eq!(
        peer.with(|host| host.log.iter().filter(|request| reopened(request)).count()),
        3
    );
}

#[test]
fn an_attachment_is_told_of_what_did_not_go_by_the_runtime_since_the_one_before() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::fast()).expect("stream");
    let source = stream.frame_source(SourceOptions::default());
    let source = source.expect("source");
    let counts = |count| std::array::from_fn(|at| u64::from(at == 4) * count);
    let told = || {
        peer.with(|host| {
            let log = host.log.iter();
            let counts = log.filter_map(|request| match request {
                Request::Unserved(counts) => Some(counts[4]),
                _ => None,
            });
            counts.collect::<Vec<_>>()
        })
    };
    source.tell_unserved(counts(3)).expect("told");
    source.tell_unserved(counts(2)).expect("told");
    assert_eq!(
        told(),
        [3, 5],
        "the sum, so that one that is told twice counts once"
    );
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    assert!(source.tell_unserved(counts(1)).is_err());
    peer.come_back();
    settle(|| session.is_attached().then_some(()));
    source.tell_unserved(counts(7)).expect("told");
    assert_eq!(
        told(),
        [3, 5, 7],
        "not those that another attachment has counted"
    );
}

#[test]
fn descriptors_of_a_session_are_registered_and_where_they_are_wanted() {
    const LOWEST: i32 = 700;
    let peer = Peer::start();
    let builder = Session::builder().socket(&peer.path);
    let session = builder.descriptors_from(LOWEST).open().expect("session");
    let own = || {
        let all = std::iter::successors(first_registered(LOWEST, LOWEST + 50), |fd| {
            first_registered(fd + 1, LOWEST + 50)
        });
        all.filter(|fd| std::fs::exists(format!("/proc/self/fd/{fd}")).expect("proc"))
            .count()
    };
    // The socket, what wakes its reader, the arena, the doorbell; and perhaps what children get in their place.
    assert!((4..=5).contains(&own()), "{}", own());
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    peer.come_back();
    settle(|| session.is_attached().then_some(()));
    assert!((4..=5).contains(&own()), "{}", own());
    drop(session);
    assert!(own() <= 1, "{}", own());
}

#[test]
fn what_was_on_its_way_is_counted_as_lost_and_told_by_its_token() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let told = emit(&source, b"told").expect("emit");
    settle(|| (source.pending() == 0).then_some(()));
    peer.with(|host| host.frozen = true);
    let lost: Vec<_> = (0..7)
        .map(|_| emit(&source, b"untold").expect("emit"))
        .collect();
    let held = source.buffer(10).expect("buffer");
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    assert_eq!(source.lost_at_disconnect(), 7);
    assert_eq!(source.outcome(lost[0]), Outcome::Lost);
    assert_eq!(source.pending(), 0, "their outcome is known");
    assert!(matches!(held.emit(), Err(Error::Disconnected)));
    peer.with(|host| host.frozen = false);
    peer.come_back();
    let new = emit(&source, b"new").expect("emit");
    assert_eq!(new.number(), 8);
    assert_eq!(source.lost_at_disconnect(), 7);
    settle(|| (source.outcome(new) == Outcome::NoSink).then_some(()));
    assert!(
        lost.iter()
            .all(|&token| source.outcome(token) == Outcome::Lost)
    );
    assert_eq!(source.outcome(told), Outcome::NoSink);
}

#[test]
fn a_buffer_that_was_put_aside_is_sent_when_no_other_is_free_and_gone_with_its_runtime() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let options = SourceOptions {
        depth: 4,
        ..SourceOptions::default()
    };
    let source = stream.source_with(CHANNEL, options).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    assert!(source.reserved().is_none());
    for _ in 0..2 {
        source.reserve(8, Wait::Never).expect("reserved");
    }
    let others = [(); 3].map(|()| source.buffer(8).expect("a buffer"));
    assert!(matches!(source.buffer(8), Err(Error::WouldBlock)));
    let mut last = source.reserved().expect("it was kept");
    assert!(source.reserved().is_none(), "there is one");
    last.copy_from_slice(b"the last");
    last.emit().expect("emitted");
    assert_eq!(&*next(&sink), b"the last");
    // Given back, and to be had again.
    drop(others);
    settle(|| (source.pending() == 0).then_some(()));
    source.reserve(8, Wait::Never).expect("reserved");
    drop(source.reserved());
    drop([(); 4].map(|()| source.buffer(8).expect("a buffer")));

    source.reserve(8, Wait::Never).expect("reserved");
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    peer.come_back();
    settle(|| source.reserve(8, Wait::Never).ok());
    let mut last = source.reserved().expect("it was kept");
    last.copy_from_slice(b"returned");
    last.emit().expect("emitted");
    assert_eq!(&*next(&sink), b"returned");
    drop([(); 4].map(|()| source.buffer_wait(8, Wait::Forever).expect("a buffer")));
    source.reserve(8, Wait::Never).expect("reserved");
    drop(source);
}

#[test]
fn buffers_and_messages_of_the_former_arena_stay_readable_until_they_are_dropped() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    emit(&source, b"held").expect("emit");
    let message = next(&sink);
    let mut buffer = source.buffer(6).expect("buffer");
    buffer.copy_from_slice(b"unsent");
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    peer.come_back();
    emit(&source, b"new").expect("emit");
    let new = next(&sink);
    assert_eq!(
        (&*message, &*buffer, &*new),
        (&b"held"[..], &b"unsent"[..], &b"new"[..])
    );
    buffer.fill(0);
    assert!(matches!(buffer.emit(), Err(Error::Disconnected)));
    drop(message);
    drop(new);
    assert_eq!(
        peer.with(|host| host.served.as_mut().expect("session").outstanding()),
        0
    );
}

#[test]
fn what_was_delivered_before_the_loss_still_comes() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    for number in 0..10 {
        emit(&source, &[number]).expect("emit");
    }
    settle(|| (source.pending() == 0).then_some(()));
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    assert_eq!(sink.available(), 10);
    for number in 0..5 {
        assert_eq!(&*sink.consume(Wait::Never).expect("delivered"), [number]);
    }
    peer.come_back();
    settle(|| session.is_attached().then_some(()));
    for number in 5..10 {
        assert_eq!(&*sink.consume(Wait::Never).expect("delivered"), [number]);
    }
    assert!(matches!(sink.consume(Wait::Never), Err(Error::WouldBlock)));
}

#[test]
fn messages_missed_while_detached_are_counted_by_the_sequence_of_their_sender() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    emit(&source, b"1").expect("emit");
    drop(next(&sink));
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    peer.with(|host| host.sequence += 41);
    peer.come_back();
    emit(&source, b"2").expect("emit");
    drop(next(&sink));
    assert_eq!(sink.counters().lost_at_disconnect, 41);
}

#[test]
fn a_session_that_the_runtime_has_ended_for_a_reason_does_not_come_back() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    peer.end(failure(ErrorCode::NotPermitted, "the policy has changed"));
    let error = sink.consume(Wait::Forever).expect_err("ended");
    assert_eq!(error.code(), ErrorCode::NotPermitted);
    assert!(error.to_string().contains("the policy has changed"));
    assert!(matches!(source.buffer(1), Err(Error::Ended(_))));
    assert!(matches!(
        source.buffer_wait(1, Wait::Forever),
        Err(Error::Ended(_))
    ));
    assert!(matches!(
        session.stream(Qos::default()),
        Err(Error::Ended(_))
    ));
    assert_eq!(
        peer.with(|host| host
            .log
            .iter()
            .filter(|r| matches!(r, Request::Attach { .. }))
            .count()),
        1
    );
}

#[test]
fn a_runtime_that_shuts_down_is_looked_for_until_it_is_back() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    peer.end(failure(ErrorCode::ShuttingDown, "maintenance"));
    settle(|| (attachments(&peer) == 2 && session.is_attached()).then_some(()));
    emit(&source, b"after").expect("emit");
    assert_eq!(&*next(&sink), b"after");
}

#[test]
fn without_reconnecting_the_loss_of_the_runtime_is_the_end() {
    let peer = Peer::start();
    let session = Session::builder()
        .socket(&peer.path)
        .reconnect(false)
        .open()
        .expect("session");
    let source = session
        .stream(Qos::default())
        .expect("stream")
        .source(CHANNEL)
        .expect("source");
    peer.vanish();
    let error = settle(|| source.buffer(1).err());
    assert!(matches!(error, Error::Ended(_)), "{error:?}");
    assert_eq!(error.code(), ErrorCode::Disconnected);
}

#[test]
fn what_may_not_be_opened_again_says_so_and_the_rest_works() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let barred = stream.source(ChannelId(6)).expect("source");
    let source = stream.source(CHANNEL).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    peer.with(|host| {
        host.refuse = |request| {
            matches!(
                request,
                Request::OpenSource {
                    channel: ChannelId(6),
                    ..
                }
            )
            .then(|| failure(ErrorCode::NotPermitted, "not any more"))
        };
    });
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    peer.come_back();
    emit(&source, b"x").expect("emit");
    assert_eq!(&*next(&sink), b"x");
    match barred.buffer(1) {
        Err(Error::Refused(failure)) => assert_eq!(failure.message, "not any more"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_dropped_while_the_runtime_is_away_is_not_opened_again() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let kept = stream.sink(ChannelId(6)).expect("sink");
    peer.with(|host| host.frozen = true);
    emit(&source, b"lost").expect("emit");
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    drop(source);
    peer.with(|host| {
        host.log.clear();
        host.frozen = false;
    });
    peer.come_back();
    settle(|| session.is_attached().then_some(()));
    assert!(matches!(kept.consume(Wait::Never), Err(Error::WouldBlock)));
    peer.with(|host| {
        assert!(
            !host
                .log
                .iter()
                .any(|request| matches!(request, Request::OpenSource { .. }))
        );
    });
}

#[test]
fn impossible_completions_end_the_connection_and_not_the_application() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    for chunk in [0, 3, u32::MAX] {
        let before = attachments(&peer);
        peer.with(|host| {
            let served = host.served.as_mut().expect("session");
            let source = served.sources[0].as_mut().expect("source");
            let completion = Completion {
                chunk,
                token: 0,
                outcome: 0,
                departed_ns_low: 0,
            };
            assert!(source.completions.push(completion).expect("ring"));
        });
        source.pending();
        settle(|| (attachments(&peer) > before).then_some(()));
        emit(&source, b"on").expect("emit");
    }
}

#[test]
fn impossible_messages_end_the_connection_and_not_the_application() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    for (chunk, length) in [(0, 2 << 20), (4095, 257), (u32::MAX, 0), (1 << 30, 0)] {
        let before = attachments(&peer);
        peer.with(|host| {
            let served = host.served.as_mut().expect("session");
            let sink = served.sinks[0].as_mut().expect("sink");
            let entry = takt_session::layout::RxDescriptor {
                chunk,
                length,
                ..Default::default()
            };
            assert!(sink.rx.push(entry).expect("ring"));
        });
        let error = sink.consume(LONG).expect_err("impossible");
        assert_eq!(error.code(), ErrorCode::Protocol, "{error}");
        settle(|| (attachments(&peer) > before).then_some(()));
        emit(&source, b"on").expect("emit");
        assert_eq!(&*next(&sink), b"on");
    }
}
