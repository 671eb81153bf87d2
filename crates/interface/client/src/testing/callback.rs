use std::sync::mpsc;

use super::emit;
use super::peer::{Peer, failure};
use super::settle;
use crate::{ChannelId, ErrorCode, Outcome, Qos};

const CHANNEL: ChannelId = ChannelId(3);

#[test]
fn every_message_reaches_the_function_and_is_released_when_it_returns() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let (seen, messages) = mpsc::channel();
    let sink = stream
        .sink_callback(CHANNEL, move |message| {
            seen.send(message.to_vec()).expect("test waits")
        })
        .expect("sink");
    assert_eq!(sink.channel(), CHANNEL);
    let source = stream.source(CHANNEL).expect("source");
    for number in 0..100_u8 {
        emit(&source, &[number]).expect("emit");
    }
    for number in 0..100 {
        assert_eq!(messages.recv().expect("message"), [number]);
    }
    settle(|| {
        peer.with(|host| (host.served.as_mut().expect("session").outstanding() == 0).then_some(()))
    });
    drop(sink);
    assert!(messages.recv().is_err(), "the function is gone");
}

#[test]
fn a_function_that_panics_is_told_of() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let sink = stream
        .sink_callback(CHANNEL, |_| panic!("as a test wants it"))
        .expect("sink");
    let source = stream.source(CHANNEL).expect("source");
    emit(&source, b"x").expect("emit");
    let failure = settle(|| sink.failure());
    assert!(failure.to_string().contains("panicked"), "{failure}");
}

#[test]
fn dropping_it_while_it_sleeps_or_waits_for_the_runtime_does_not_hang() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    for _ in 0..50 {
        drop(stream.sink_callback(CHANNEL, |_| {}).expect("sink"));
    }
    let sink = stream.sink_callback(CHANNEL, |_| {}).expect("sink");
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    drop(sink);
}

#[test]
fn it_goes_on_when_the_runtime_is_back_and_tells_when_it_will_not_be() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let (seen, messages) = mpsc::channel();
    let sink = stream
        .sink_callback(CHANNEL, move |message| {
            seen.send(message.to_vec()).expect("test waits")
        })
        .expect("sink");
    let source = stream.source(CHANNEL).expect("source");
    peer.vanish();
    settle(|| (!session.is_attached()).then_some(()));
    peer.come_back();
    emit(&source, b"again").expect("emit");
    assert_eq!(messages.recv().expect("message"), b"again");
    assert_eq!(sink.failure(), None);
    peer.end(failure(ErrorCode::NotPermitted, "enough"));
    let failure = settle(|| sink.failure());
    assert_eq!(failure.code, ErrorCode::NotPermitted);
}

#[test]
fn it_may_be_dropped_by_its_own_function() {
    let peer = Peer::start();
    let session = peer.session();
    let stream = session.stream(Qos::default()).expect("stream");
    let (give, take) = mpsc::channel::<crate::CallbackSink>();
    let (done, finished) = mpsc::channel();
    let sink = stream
        .sink_callback(CHANNEL, move |message| {
            done.send(message.to_vec()).expect("test waits");
            drop(take.recv());
        })
        .expect("sink");
    let source = stream.source(CHANNEL).expect("source");
    let [_, last] = [b"first", b"last!"].map(|text| emit(&source, text).expect("emit"));
    settle(|| (source.outcome(last) != Outcome::Pending).then_some(()));
    give.send(sink).expect("the function has the receiver");
    // It is not called again, with whatever has come meanwhile.
    assert_eq!(finished.iter().collect::<Vec<_>>(), [b"first"]);
}
