use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::net::SocketAddrUnix;
use takt_session::message::{Envelope, Request};
use takt_session::transport;

use super::peer::{Peer, failure};
use super::{emit, settle};
use crate::{ChannelId, ErrorCode, Qos, Session, TrafficClass};

#[test]
fn without_a_runtime_the_error_names_the_socket_and_the_remedies() {
    let error = Session::builder()
        .socket("/nonexistent/takt.sock")
        .open()
        .expect_err("nobody there");
    assert_eq!(error.code(), ErrorCode::NoRuntime);
    let text = error.to_string();
    for part in ["/nonexistent/takt.sock", "taktd", "TAKT_SOCKET", "embedded"] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

#[test]
fn a_runtime_that_accepts_no_connection_is_waited_for_as_long_as_for_an_answer() {
    let path = std::env::temp_dir().join(format!("takt-full-{}", std::process::id()));
    let (listener, connections) = full(&path);
    let open = |timeout| {
        let builder = Session::builder().socket(&path);
        builder.request_timeout(timeout).open()
    };
    let error = open(Duration::from_millis(200)).expect_err("nobody accepts it");
    assert_eq!(error.code(), ErrorCode::TimedOut, "{error}");
    // With room it comes in, however late.
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| open(Duration::from_secs(60)));
        drop(connections);
        loop {
            let accepted = rustix::net::accept(&listener).expect("a connection");
            // Those that have filled it are over.
            if let Some(asks) = transport::receive(&accepted, true).expect("a packet") {
                let first = Envelope::<Request>::decode(&asks.bytes).expect("a request");
                assert!(matches!(first.message, Request::Attach { .. }));
                break;
            }
        }
        let error = opening.join().expect("no panic").expect_err("it hung up");
        assert_eq!(error.code(), ErrorCode::Disconnected, "{error}");
    });
    std::fs::remove_file(&path).expect("the socket");
}

#[test]
fn a_session_closes_at_once_while_the_runtime_that_it_looks_for_accepts_no_connection() {
    let peer = Peer::start();
    let session = peer.session();
    let path = peer.path.with_extension("full");
    let _full = full(&path);
    std::fs::rename(&path, &peer.path).expect("in the place of the other");
    peer.end(failure(ErrorCode::ShuttingDown, "another comes"));
    settle(|| (!session.is_attached()).then_some(()));
    drop(session);
}

#[test]
fn a_request_may_take_any_time() {
    let peer = Peer::start();
    let builder = Session::builder().socket(&peer.path);
    let session = builder.request_timeout(Duration::MAX).open();
    let session = session.expect("a session");
    session.stream(Qos::default()).expect("a stream");
}

/// A listener that has no room for further connections, and those that have taken it.
fn full(path: &Path) -> (OwnedFd, Vec<OwnedFd>) {
    let listener = transport::socket().expect("a socket");
    rustix::net::bind(&listener, &SocketAddrUnix::new(path).expect("a path")).expect("bound");
    rustix::net::listen(&listener, 0).expect("listening");
    let connections = std::iter::from_fn(|| transport::connect(path).ok());
    (listener, connections.collect())
}

#[test]
fn a_stream_tells_what_it_asked_for_what_it_got_and_why() {
    let peer = Peer::start();
    peer.with(|host| host.warning = "no device".into());
    let session = peer.session();
    let qos = Qos::fast()
        .unlimited()
        .time_sensitive(TrafficClass::new(5).expect("class"));
    let stream = session.stream(qos).expect("stream");
    assert_eq!(stream.qos(), qos);
    assert_eq!(stream.datapath(), "loop");
    assert_eq!(stream.warning().as_deref(), Some("no device"));
    peer.with(|host| assert!(host.log.contains(&Request::OpenStream(qos))));
    peer.with(|host| host.warning.clear());
    assert_eq!(
        session.stream(Qos::default()).expect("stream").warning(),
        None
    );
}

#[test]
fn the_application_says_its_name_and_how_much_memory_it_wishes() {
    let peer = Peer::start();
    let session = Session::builder()
        .socket(&peer.path)
        .name("painter")
        .tx_bytes(1 << 16)
        .rx_bytes(1 << 17)
        .open()
        .expect("session");
    let attach = Request::Attach {
        name: "painter".into(),
        tx_bytes: 1 << 16,
        rx_bytes: 1 << 17,
        domain: true,
    };
    peer.with(|host| assert_eq!(host.log, [attach]));
    assert!(session.is_attached());
}

#[test]
fn a_refusal_carries_the_code_and_sentence_of_the_runtime_and_changes_nothing() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    peer.with(|host| {
        host.refuse = |request| {
            matches!(
                request,
                Request::OpenSource {
                    channel: ChannelId(13),
                    ..
                }
            )
            .then(|| failure(ErrorCode::NotPermitted, "channel 13 is not yours"))
        };
    });
    let error = stream.source(ChannelId(13)).expect_err("refused");
    assert_eq!(error.code(), ErrorCode::NotPermitted);
    assert!(error.to_string().contains("channel 13 is not yours"));
    stream.source(ChannelId(14)).expect("another channel");
}

#[test]
fn a_refused_attachment_opens_no_session() {
    let peer = Peer::start();
    peer.with(|host| host.refuse = |_| Some(failure(ErrorCode::Version, "too old")));
    let error = Session::builder()
        .socket(&peer.path)
        .open()
        .expect_err("refused");
    assert_eq!(error.code(), ErrorCode::Version);
    settle(|| peer.with(|host| (host.ended == 1).then_some(())));
}

#[test]
fn a_request_that_is_answered_too_late_is_undone() {
    let peer = Peer::start();
    let timeout = Duration::from_millis(20);
    let builder = Session::builder()
        .socket(&peer.path)
        .request_timeout(timeout);
    // On a busy machine any answer may be too late.
    let session = settle(|| builder.clone().open().ok());
    let stream = settle(|| session.stream(Qos::default()).ok());
    peer.with(|host| host.mute = true);
    let error = stream.source(ChannelId(1)).expect_err("no answer");
    assert_eq!(error.code(), ErrorCode::TimedOut);
    peer.with(|host| host.mute = false);
    settle(|| peer.with(|host| host.log.contains(&Request::CloseSource(0)).then_some(())));
}

#[test]
fn what_is_dropped_is_closed_and_the_last_handle_closes_the_session() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let other = session.stream(Qos::default()).expect("stream");
    let source = stream.source(ChannelId(1)).expect("source");
    let sink = stream.sink(ChannelId(1)).expect("sink");
    drop(stream);
    emit(&source, b"still there").expect("the source keeps its stream open");
    assert_eq!(&*super::next(&sink), b"still there");
    settle(|| (source.pending() == 0).then_some(()));
    drop(sink);
    drop(source);
    drop(session);
    let closed = [
        Request::CloseSink(0),
        Request::CloseSource(0),
        Request::CloseStream(4),
    ];
    settle(|| peer.with(|host| host.log.ends_with(&closed).then_some(())));
    peer.with(|host| assert_eq!(host.ended, 0, "the other stream keeps the session open"));
    drop(other);
    settle(|| peer.with(|host| (host.ended == 1).then_some(())));
}

#[test]
fn closing_the_session_waits_until_what_was_emitted_is_taken() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(ChannelId(1)).expect("source");
    peer.with(|host| host.frozen = true);
    for _ in 0..100 {
        emit(&source, b"last words").expect("emit");
    }
    drop((source, stream));
    let before = peer.with(|host| host.sequence);
    std::thread::scope(|scope| {
        let closing = scope.spawn(move || drop(session));
        settle(|| peer.with(|host| host.log.contains(&Request::End).then_some(())));
        peer.with(|host| host.frozen = false);
        closing.join().expect("closed");
    });
    peer.with(|host| assert_eq!(host.sequence - before, 100));
}
