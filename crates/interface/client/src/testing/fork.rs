#![allow(unsafe_code)] // fork

use std::os::fd::{FromRawFd, OwnedFd};

use takt_session::message::Request;

use super::peer::Peer;
use super::{emit, next, settle};
use crate::{ChannelId, Error, Outcome, Qos, Session, Token, Wait};

const CHANNEL: ChannelId = ChannelId(8);

/// Runs `child` in a forked process, which ends with it; says whether it returned true.
fn in_child(child: impl FnOnce() -> bool) -> impl FnOnce() -> bool {
    // SAFETY: the child runs code of ours that takes no lock which another thread may have held, and
    // leaves with _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    move || {
        let mut status = 0;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

/// What a child has inherited, to use and drop as its own.
fn inherited<T>(value: &T) -> T {
    // SAFETY: called in a child alone, whose memory is a copy, and which ends without dropping `value`.
    unsafe { std::ptr::read(value) }
}

#[test]
fn in_a_child_every_call_says_so_and_the_parent_is_not_disturbed() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let told = crate::SourceOptions {
        depth: 1,
        notify_fd: true,
    };
    let told = stream.source_with(CHANNEL, told).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    let callback = stream.sink_callback(CHANNEL, |_| {}).expect("sink");
    emit(&source, b"held").expect("emit");
    let held = next(&sink);
    let buffer = source.buffer(4).expect("buffer");
    emit(&source, b"waiting").expect("emit");
    let child = in_child(|| {
        let (held, buffer) = (inherited(&held), inherited(&buffer));
        let good = matches!(session.stream(Qos::default()), Err(Error::Forked))
            && matches!(stream.source(CHANNEL), Err(Error::Forked))
            && matches!(stream.sink(CHANNEL), Err(Error::Forked))
            && matches!(source.buffer(1), Err(Error::Forked))
            && matches!(source.buffer_wait(1, Wait::Forever), Err(Error::Forked))
            && matches!(buffer.emit(), Err(Error::Forked))
            && matches!(sink.consume(Wait::Forever), Err(Error::Forked))
            && source.outcome(Token::from_number(0)) == Outcome::Unknown
            && source.pending() == 0
            && source.lost_at_disconnect() == 0
            && sink.available() == 0
            && sink.counters().delivered == 0
            && !sink.arm()
            && !told.arm(1)
            && stream.datapath().is_empty()
            && callback.failure().is_some()
            && !session.is_attached();
        drop(held);
        drop((inherited(&source), inherited(&told)));
        drop((inherited(&sink), inherited(&callback)));
        drop((inherited(&stream), inherited(&session)));
        good
    });
    assert!(child());
    assert_eq!(&*held, b"held");
    drop(held);
    buffer.emit().expect("the parent's buffer");
    assert_eq!(&*next(&sink), b"waiting");
    assert_eq!(next(&sink).len(), 4);
    peer.with(|host| {
        assert_eq!(host.ended, 0);
        assert!(
            !host
                .log
                .iter()
                .any(|request| matches!(request, Request::CloseSource(_)))
        );
    });
}

#[test]
fn the_parent_goes_on_and_its_end_is_seen_although_the_child_lives() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    let sink = stream.sink(CHANNEL).expect("sink");
    let mut pipe = [0; 2];
    // SAFETY: fills the two integers.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: ours, just made.
    let [read, write] = pipe.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let write = std::cell::Cell::new(Some(write));
    let child = in_child(|| {
        drop(write.take());
        // Lives until the parent closes its end.
        rustix::io::read(&read, &mut [0; 1]).is_ok()
    });
    for number in 0..100_u8 {
        emit(&source, &[number]).expect("emit");
        assert_eq!(&*next(&sink), [number]);
    }
    drop((source, sink, stream, session));
    settle(|| peer.with(|host| (host.ended == 1).then_some(())));
    drop(write.take());
    assert!(child());
}

#[test]
fn a_child_opens_a_session_of_its_own() {
    let parents = Peer::start();
    let session = parents.session();
    let childs = Peer::start();
    let path = childs.path.clone();
    let child = in_child(|| {
        let open = || -> Result<bool, Error> {
            let session = Session::builder().socket(&path).open()?;
            let stream = session.stream(Qos::default())?;
            let source = stream.source(CHANNEL)?;
            let sink = stream.sink(CHANNEL)?;
            emit(&source, b"own")?;
            Ok(*sink.consume(super::LONG)? == *b"own")
        };
        open().unwrap_or(false)
    });
    assert!(child());
    assert!(session.is_attached());
    settle(|| childs.with(|host| (host.ended == 1).then_some(())));
    parents.with(|host| assert_eq!(host.ended, 0));
}
