use super::peer::Peer;
use super::{LONG, emit, next, settle};
use crate::{ChannelId, Error, Qos};

#[test]
fn memory_that_an_idle_source_does_not_use_is_there_for_the_others() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let idle = stream.source(ChannelId(1)).expect("source");
    let busy = stream.source(ChannelId(2)).expect("source");
    let max = busy.max_message();
    // Blocks in the idle source's account, and completions that it does not look at.
    for size in [1, 300, 5_000, 60_000, 100_000] {
        drop(idle.buffer(size).expect("buffer"));
        emit(&idle, &vec![0; size]).expect("emit");
    }
    for _ in 0..3 {
        emit(&busy, &vec![1; max]).expect("the whole region");
        settle(|| (busy.pending() == 0).then_some(()));
        emit(&idle, b"small").expect("emit");
    }
}

#[test]
fn memory_in_use_makes_the_caller_wait_and_comes_back_with_the_completion() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let source = stream.source(ChannelId(1)).expect("source");
    let other = stream.source(ChannelId(1)).expect("source");
    let max = source.max_message();
    peer.with(|host| host.frozen = true);
    source.buffer(max).expect("buffer").emit().expect("emit");
    assert!(matches!(source.buffer(1), Err(Error::WouldBlock)));
    assert!(matches!(other.buffer(1), Err(Error::WouldBlock)));
    peer.with(|host| host.frozen = false);
    drop(
        other
            .buffer_wait(max, LONG)
            .expect("the source that waits takes the other's completion"),
    );
}

#[test]
fn a_source_that_is_gone_withholds_nothing() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    for round in 0..200 {
        let source = stream.source(ChannelId(round)).expect("source");
        let sink = stream.sink(ChannelId(round)).expect("sink");
        peer.with(|host| host.zero_copy = round % 2 == 0);
        for size in [1, 700, 20_000] {
            emit(&source, &vec![3; size]).expect("emit");
        }
        drop(next(&sink));
        let held = next(&sink);
        drop(source); // with a message held and one waiting
        assert_eq!(held.len(), 700);
        drop(held);
    }
    let last = stream.source(ChannelId(0)).expect("source");
    let max = last.max_message();
    drop(last.buffer_wait(max, LONG).expect("all memory is free"));
}

#[test]
fn threads_that_exhaust_the_memory_all_get_on() {
    let peer = Peer::start();
    peer.with(|host| host.tx_bytes = 64 << 10);
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let source = stream.source(ChannelId(thread)).expect("source");
            scope.spawn(move || {
                for number in 0..400 {
                    emit(&source, &vec![0; 1 + number * 97 % 30_000]).expect("emit");
                }
            });
        }
    });
}
