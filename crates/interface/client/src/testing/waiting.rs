//! Waits that end for another reason than what they wait for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use takt_session::message::Request;

use super::peer::Peer;
use super::settle;
use crate::{ChannelId, Error, ErrorCode, Qos, Session, SourceOptions, Wait};

const CHANNEL: ChannelId = ChannelId(3);

#[test]
fn one_call_to_wake_ends_one_wait_of_a_sink_now_or_later() {
    let peer = Peer::start();
    let session = peer.session();
    for qos in [Qos::slow(), Qos::slow().unlimited()] {
        let stream = session.stream(qos).expect("stream");
        let sink = stream.sink(CHANNEL).expect("sink");
        let waker = sink.waker();
        for _ in 0..100 {
            std::thread::scope(|scope| {
                scope.spawn(|| waker.wake());
                assert!(matches!(
                    sink.consume(Wait::Forever),
                    Err(Error::Interrupted)
                ));
            });
        }
        waker.wake();
        waker.wake();
        assert!(matches!(sink.consume(Wait::Never), Err(Error::WouldBlock)));
        assert!(matches!(
            sink.consume(Wait::Forever),
            Err(Error::Interrupted)
        ));
        let short = Wait::For(Duration::from_millis(1));
        assert!(matches!(sink.consume(short), Err(Error::TimedOut)));
    }
}

#[test]
fn one_call_to_wake_ends_one_wait_for_a_buffer_or_a_reader() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::slow()).expect("stream");
    let source = stream.source_with(
        CHANNEL,
        SourceOptions {
            depth: 1,
            ..SourceOptions::default()
        },
    );
    let source = source.expect("source");
    let held = source.buffer(8).expect("buffer");
    let waker = source.waker();
    for _ in 0..20 {
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            assert!(matches!(
                source.buffer_wait(8, Wait::Forever),
                Err(Error::Interrupted)
            ));
        });
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake());
            assert!(matches!(
                source.wait_reader(Wait::Forever),
                Err(Error::Interrupted)
            ));
        });
    }
    drop(held);
}

#[test]
fn a_wait_for_the_runtime_can_be_woken() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::slow()).expect("stream");
    let sink = stream.sink(CHANNEL).expect("sink");
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    assert!(matches!(
        sink.consume(Wait::Never),
        Err(Error::Disconnected)
    ));
    sink.waker().wake();
    assert!(matches!(
        sink.consume(Wait::Forever),
        Err(Error::Interrupted)
    ));
}

extern "C" fn handler(_: libc::c_int) {}

#[test]
fn a_signal_handler_ends_a_wait_also_one_that_was_to_restart_calls() {
    // SAFETY: a handler that does nothing, for a signal that nobody else here uses.
    #[allow(unsafe_code)]
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    let peer = Peer::start();
    let session = peer.session();
    for qos in [Qos::slow(), Qos::slow().unlimited()] {
        let stream = session.stream(qos).expect("stream");
        let sink = stream.sink(CHANNEL).expect("sink");
        // SAFETY: no arguments.
        #[allow(unsafe_code)]
        let waiting = unsafe { libc::pthread_self() } as usize;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // A handler may run in the instant before the sleep.
                while !done.load(Ordering::Relaxed) {
                    // SAFETY: the thread lives until the scope ends.
                    #[allow(unsafe_code)]
                    unsafe {
                        libc::pthread_kill(waiting as libc::pthread_t, libc::SIGUSR1)
                    };
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
            let outcome = sink.consume(Wait::Forever);
            done.store(true, Ordering::Relaxed);
            assert!(matches!(outcome, Err(Error::Interrupted)));
        });
    }
}

#[test]
fn ending_a_session_ends_all_of_it_and_nothing_is_used_afterwards() {
    let peer = Peer::start();
    let session: Session = peer.session();
    let stream = session.stream(Qos::slow()).expect("stream");
    let (source, sink) = (
        stream.source(CHANNEL).expect("source"),
        stream.sink(CHANNEL).expect("sink"),
    );
    let idle = stream.sink(CHANNEL).expect("sink");
    super::emit(&source, b"held").expect("emit");
    let message = sink.consume(Wait::Forever).expect("message");
    super::emit(&source, b"too late").expect("emit");
    super::settle(|| (sink.available() == 1).then_some(()));
    let buffer = source.buffer(8).expect("buffer");
    session.end();
    session.end();
    assert_eq!(sink.available(), 0);
    let ended =
        |error: Error| matches!(error, Error::Ended(_)) && error.code() == ErrorCode::Closed;
    assert!(ended(buffer.emit().expect_err("refused")));
    assert!(ended(source.buffer(8).expect_err("refused")));
    assert!(ended(
        source.wait_reader(Wait::Forever).expect_err("refused")
    ));
    assert!(ended(sink.consume(Wait::Forever).expect_err("refused")));
    assert!(ended(stream.sink(CHANNEL).expect_err("refused")));
    assert!(ended(session.stream(Qos::slow()).expect_err("refused")));
    // The connection, by which the runtime keeps the memory, goes with the last message and not before.
    drop(idle);
    peer.with(|host| assert_eq!((host.ended, host.log.last()), (0, Some(&Request::End))));
    assert_eq!(&*message, b"held");
    assert_eq!(sink.counters().delivered, 2);
    drop(message);
    super::settle(|| peer.with(|host| (host.ended == 1).then_some(())));
}

#[test]
fn a_source_waits_for_its_first_reader() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::slow()).expect("stream");
    let source = stream.source(CHANNEL).expect("source");
    assert!(matches!(
        source.wait_reader(Wait::Never),
        Err(Error::WouldBlock)
    ));
    let short = Wait::For(Duration::from_millis(5));
    assert!(matches!(source.wait_reader(short), Err(Error::TimedOut)));
    std::thread::scope(|scope| {
        let sink = scope.spawn(|| stream.sink(CHANNEL).expect("sink"));
        assert_eq!(source.wait_reader(Wait::Forever).expect("a reader"), 1);
        sink.join().expect("no panic");
    });
}
