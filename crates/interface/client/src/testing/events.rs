use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags};
use takt_session::transport;

use super::peer::{Peer, readable};
use super::{emit, next};
use crate::{ChannelId, Error, Outcome, Progress, Qos, Session, SinkOptions, Wait};

const NOTIFY: SinkOptions = SinkOptions {
    depth: 0,
    notify_fd: true,
    no_local: false,
    latest: false,
};

#[test]
fn an_armed_descriptor_becomes_readable_with_the_next_message() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(ChannelId(1)).expect("source");
    let sink = stream.sink_with(ChannelId(1), NOTIFY).expect("sink");
    let fd = sink.fd().expect("asked for");
    for round in 0..100_u8 {
        assert!(sink.arm(), "nothing there");
        assert!(!readable(fd));
        emit(&source, &[round]).expect("emit");
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        rustix::event::poll(&mut fds, None).expect("poll");
        assert!(!sink.arm(), "something there");
        assert_eq!(&*next(&sink), [round]);
        assert!(matches!(sink.consume(Wait::Never), Err(Error::WouldBlock)));
    }
}

#[test]
fn a_descriptor_tells_when_the_runtime_goes_and_when_it_is_back() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(ChannelId(1)).expect("source");
    let sink = stream.sink_with(ChannelId(1), NOTIFY).expect("sink");
    let fd = sink.fd().expect("asked for");
    let wait = || {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        rustix::event::poll(&mut fds, None).expect("poll");
    };
    assert!(sink.arm());
    peer.vanish();
    loop {
        wait();
        match sink.consume(Wait::Never) {
            Err(Error::Disconnected) => break,
            // The descriptor may know before the session does.
            Err(Error::WouldBlock) => _ = sink.arm(),
            other => panic!("{other:?}"),
        }
    }
    assert!(
        sink.arm(),
        "nothing more to be told until the runtime is back"
    );
    peer.come_back();
    wait();
    // Whoever comes first, the sink or the source, finds the session attached.
    emit(&source, b"again").expect("emit");
    while !sink.arm() {
        match sink.consume(Wait::Never) {
            Ok(message) => return assert_eq!(&*message, b"again"),
            Err(Error::WouldBlock) => {}
            Err(error) => panic!("{error}"),
        }
    }
    wait();
    assert_eq!(&*next(&sink), b"again");
}

#[test]
fn a_sink_without_descriptor_is_never_armed() {
    let peer = Peer::start();
    let session = peer.session();
    let sink = session
        .stream(Qos::default())
        .expect("stream")
        .sink(ChannelId(1))
        .expect("sink");
    assert!(sink.fd().is_none());
    assert!(!sink.arm());
}

struct Driver {
    peer: Peer,
    calls: AtomicU64,
    /// How often a thread went to sleep, and woke up by what comes then.
    sleeps: AtomicU64,
}

impl Progress for Driver {
    fn progress(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.peer.round();
    }

    fn sleeps(&self) {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        // Somebody else is at it.
        self.peer.with(|host| host.frozen = false);
    }
}

#[test]
fn in_the_embedded_form_a_thread_that_goes_to_sleep_says_so_and_others_wake_it() {
    let (ours, theirs) = transport::pair().expect("pair");
    let peer = Peer::over(theirs);
    peer.with(|host| host.frozen = true);
    let driver = Arc::new(Driver {
        peer,
        calls: AtomicU64::new(0),
        sleeps: AtomicU64::new(0),
    });
    let session = Session::over(ours, Some(driver.clone())).expect("session");
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(ChannelId(1)).expect("source");
    let sink = stream.sink_with(ChannelId(1), NOTIFY).expect("sink");
    let sleeps = || driver.sleeps.load(Ordering::Relaxed);
    emit(&source, b"first").expect("emit");
    assert_eq!(&*sink.consume(Wait::Forever).expect("there"), b"first");
    assert!(matches!(sink.consume(Wait::Never), Err(Error::WouldBlock)));
    assert_eq!(sleeps(), 0, "it had no need to");
    let soon = Wait::For(std::time::Duration::from_millis(20));
    assert!(matches!(sink.consume(soon), Err(Error::TimedOut)));
    assert!(sleeps() > 0, "frugal waits sleep");
    let before = sleeps();
    assert!(sink.arm());
    assert_eq!(sleeps(), before + 1, "an event loop sleeps next");
}

#[test]
fn in_the_embedded_form_the_calling_thread_moves_its_own_messages() {
    let (ours, theirs) = transport::pair().expect("pair");
    let peer = Peer::over(theirs);
    // The peer's own thread answers requests and leaves the rings alone.
    peer.with(|host| host.frozen = true);
    let driver = Arc::new(Driver {
        peer,
        calls: AtomicU64::new(0),
        sleeps: AtomicU64::new(0),
    });
    let session = Session::over(ours, Some(driver.clone())).expect("session");
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(ChannelId(1)).expect("source");
    let sink = stream.sink(ChannelId(1)).expect("sink");
    let calls = || driver.calls.load(Ordering::Relaxed);
    for number in 0..3_000_u32 {
        let before = calls();
        emit(&source, &number.to_le_bytes()).expect("emit");
        assert_eq!(calls(), before + 1, "once for each emit");
        assert_eq!(
            &*sink.consume(Wait::Never).expect("there already"),
            number.to_le_bytes()
        );
    }
    let before = calls();
    assert_eq!(sink.available(), 0);
    assert!(matches!(sink.consume(Wait::Never), Err(Error::WouldBlock)));
    assert!(calls() >= before + 2, "whoever looks drives");
    driver.peer.with(|host| host.zero_copy = true);
    let token = emit(&source, b"held").expect("emit");
    let held = sink.consume(Wait::Never).expect("there already");
    assert_eq!(source.outcome(token), Outcome::Pending);
    drop(held);
    assert_eq!(source.outcome(token), Outcome::Sent, "whoever asks drives");
    assert_eq!(source.pending(), 0);
    // Give the peer's thread the rings, so that closing finds them served.
    driver.peer.with(|host| host.frozen = false);
}

#[test]
fn a_session_over_a_given_socket_ends_with_it() {
    let (ours, theirs) = transport::pair().expect("pair");
    let peer = Peer::over(theirs);
    let session = Session::over(ours, None).expect("session");
    let sink = session
        .stream(Qos::default())
        .expect("stream")
        .sink(ChannelId(1))
        .expect("sink");
    peer.vanish();
    match sink.consume(Wait::Forever) {
        Err(Error::Ended(failure)) => assert!(failure.message.contains("does not reconnect")),
        other => panic!("{other:?}"),
    }
}
