use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags};
use takt_session::message::Request;
use takt_session::transport;

use super::peer::{Peer, readable};
use super::{emit, next, settle};
use crate::{
    Buffer, ChannelId, Error, ErrorCode, FrameSource, Progress, Qos, Session, Source,
    SourceOptions, Stream, Wait,
};

const CHANNEL: ChannelId = ChannelId(5);
/// All of a peer's transmit region.
const ALL: usize = 1 << 20;

fn told(stream: &Stream, depth: u32) -> Source {
    let options = SourceOptions {
        depth,
        notify_fd: true,
    };
    stream.source_with(CHANNEL, options).expect("source")
}

fn wait(fd: BorrowedFd<'_>) {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, None).expect("poll");
}

/// A buffer as an event loop gets one: it sleeps on the descriptor alone.
fn buffer(source: &Source, len: usize) -> Result<Buffer<'_>, Error> {
    let fd = source.fd().expect("asked for");
    loop {
        match source.buffer(len) {
            // A runtime that has gone is waited for as well.
            Err(Error::WouldBlock | Error::Disconnected) => {}
            result => return result,
        }
        if source.arm(len) {
            wait(fd);
        }
    }
}

fn is_full(source: &Source, len: usize) -> bool {
    matches!(source.buffer(len), Err(Error::WouldBlock))
}

#[test]
fn an_armed_source_is_told_when_its_messages_are_complete() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = told(&stream, 2);
    let fd = source.fd().expect("asked for");
    assert!(!source.arm(8), "there is room");
    peer.with(|host| host.frozen = true);
    for _ in 0..2 {
        emit(&source, b"waiting").expect("emit");
    }
    assert!(is_full(&source, 8) && source.arm(8));
    assert!(!readable(fd));
    peer.with(|host| host.frozen = false);
    wait(fd);
    assert!(!source.arm(8), "there is room again");
    for round in 0..2_000_u32 {
        let mut buffer = buffer(&source, 4).expect("buffer");
        buffer.copy_from_slice(&round.to_le_bytes());
        buffer.emit().expect("emit");
    }
}

#[test]
fn memory_that_one_source_gets_back_is_room_for_all_that_are_armed() {
    let peer = Peer::start();
    peer.with(|host| host.frozen = true);
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let taker = stream.source(CHANNEL).expect("source");
    let armed = [(); 3].map(|()| told(&stream, 0));
    let all_are_told = || {
        armed
            .iter()
            .for_each(|source| wait(source.fd().expect("a fd")))
    };
    let arm_all = || {
        for source in &armed {
            assert!(is_full(source, ALL / 4) && source.arm(ALL / 4));
            assert!(!readable(source.fd().expect("a fd")));
        }
    };
    // A buffer that is dropped in this process.
    let all = taker.buffer(ALL).expect("all of it");
    arm_all();
    drop(all);
    all_are_told();
    // A message that is complete.
    emit(&taker, &vec![1; ALL]).expect("emit");
    arm_all();
    peer.with(|host| host.frozen = false);
    all_are_told();
    // What is complete and taken in by its own source.
    peer.with(|host| host.frozen = true);
    let token = settle(|| emit(&taker, &vec![1; ALL]).ok());
    arm_all();
    peer.with(|host| host.frozen = false);
    settle(|| (taker.outcome(token) != crate::Outcome::Pending).then_some(()));
    all_are_told();
    for source in &armed {
        assert!(!source.arm(ALL / 4));
    }
}

#[test]
fn what_is_asked_for_is_looked_for() {
    let peer = Peer::start();
    peer.with(|host| host.frozen = true);
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = told(&stream, 0);
    let half = source.buffer(ALL / 2).expect("half of it");
    assert!(!source.arm(ALL / 2), "the other half");
    assert!(!source.arm(2 * ALL), "there never will be: an error");
    assert!(source.arm(ALL), "not all of it");
    drop(half);
    wait(source.fd().expect("a fd"));
    assert!(!source.arm(ALL));
}

#[test]
fn a_source_without_descriptor_is_never_armed_and_asks_the_runtime_for_none() {
    let peer = Peer::start();
    peer.with(|host| host.frozen = true);
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let held = source.buffer(ALL).expect("all of it");
    assert!(source.fd().is_none() && !source.arm(1));
    drop(held);
    let asked = |request: &Request| matches!(request, Request::TellRoom(_));
    assert!(!peer.with(|host| host.log.iter().any(asked)));
}

#[test]
fn a_source_of_frames_is_told_as_well() {
    let peer = Peer::start();
    peer.with(|host| host.frozen = true);
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let options = SourceOptions {
        depth: 1,
        notify_fd: true,
    };
    let source: FrameSource = stream.frame_source(options).expect("source");
    let frame = source.buffer(60).expect("buffer");
    assert!(source.arm(60));
    drop(frame);
    wait(source.fd().expect("asked for"));
    assert!(!source.arm(60));
}

#[test]
fn the_same_descriptor_tells_that_the_runtime_goes_and_is_back_and_of_room_there() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = told(&stream, 1);
    let fd = source.fd().expect("asked for");
    let number = fd.as_raw_fd();
    for round in 0..3 {
        settle(|| (source.pending() == 0).then_some(()));
        peer.with(|host| host.frozen = true);
        emit(&source, b"never sent").expect("emit");
        assert!(is_full(&source, 1) && source.arm(1), "round {round}");
        peer.vanish();
        wait(fd);
        loop {
            match source.buffer(1) {
                Err(Error::Disconnected) => break,
                // Its descriptor may know before the session does.
                Err(Error::WouldBlock) if source.arm(1) => wait(fd),
                Err(Error::WouldBlock) => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(
            source.arm(1),
            "nothing to be told until the runtime is back"
        );
        peer.with(|host| host.frozen = false);
        peer.come_back();
        wait(fd);
        for _ in 0..100 {
            buffer(&source, 1).expect("buffer").emit().expect("emit");
        }
        assert_eq!(source.fd().map(|fd| fd.as_raw_fd()), Some(number));
    }
}

#[test]
fn an_older_runtime_is_named_as_the_reason_and_not_asked() {
    let peer = Peer::start();
    peer.with(|host| host.tells_room = false);
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let options = SourceOptions {
        depth: 0,
        notify_fd: true,
    };
    let older = |error: Error| match error {
        Error::Refused(failure) => {
            assert_eq!(failure.code, ErrorCode::NotAvailable);
            assert!(failure.message.contains("older release"), "{failure}");
        }
        other => panic!("{other:?}"),
    };
    older(stream.source_with(CHANNEL, options).expect_err("refused"));
    let asked = |request: &Request| matches!(request, Request::TellRoom(_));
    assert!(!peer.with(|host| host.log.iter().any(asked)));
    // The session goes on.
    let plain = stream.source(CHANNEL).expect("source");
    emit(&plain, b"all the same").expect("emit");

    // A runtime that has come back may be an older one too.
    peer.with(|host| host.tells_room = true);
    peer.vanish();
    peer.come_back();
    settle(|| (session.attachments() == 2).then_some(()));
    let source = told(&stream, 0);
    peer.with(|host| host.tells_room = false);
    peer.vanish();
    peer.come_back();
    settle(|| (session.attachments() == 3).then_some(()));
    older(source.buffer(1).expect_err("refused"));
    assert!(!source.arm(1), "an error to be told");
    emit(&plain, b"all the same").expect("emit");
}

#[test]
fn in_a_trust_domain_such_a_source_uses_no_rings() {
    let peer = Peer::start();
    peer.with(|host| host.domain = true);
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let (source, sink) = (told(&stream, 0), stream.sink(CHANNEL).expect("sink"));
    emit(&source, b"by the lane").expect("emit");
    assert_eq!(&*next(&sink), b"by the lane");
    assert_eq!(source.direct_sinks(), 0);
}

struct Driver(Peer);

impl Progress for Driver {
    fn progress(&self) {
        self.0.round();
    }

    fn sleeps(&self) {
        // Somebody else is at it.
        self.0.with(|host| host.frozen = false);
    }
}

#[test]
fn in_the_embedded_form_a_thread_that_waits_for_room_lets_others_drive() {
    let (ours, theirs) = transport::pair().expect("pair");
    let peer = Peer::over(theirs);
    peer.with(|host| {
        host.frozen = true;
        host.zero_copy = true;
    });
    let session = Session::over(ours, Some(std::sync::Arc::new(Driver(peer)))).expect("session");
    let stream = session.stream(Qos::default()).expect("stream");
    let (source, sink) = (told(&stream, 1), stream.sink(CHANNEL).expect("sink"));
    emit(&source, b"held").expect("emit");
    let held = sink.consume(Wait::Never).expect("there already");
    assert!(is_full(&source, 1) && source.arm(1));
    drop(held);
    wait(source.fd().expect("asked for"));
    assert!(!source.arm(1));
}
