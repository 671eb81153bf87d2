//! An honest tenant with the rights of the hostile one that keeps the node and its cores as busy, with what they are for.

use std::path::Path;
use std::time::Instant;

use takt::{ChannelId, Qos, Session, Sink, SinkOptions, Source, Wait};

use super::{EVERY, HONEST, Tried, Work, launch_at};
use crate::support::{introduce, number_of, put, take};
use takt_testing::PATIENCE;

/// As many things at once as the hostile tenant does.
pub const ALL: [Tried; 7] = [
    ("short", short),
    ("bursts", bursts),
    ("long", long),
    ("to many sinks", to_many_sinks),
    ("across", across),
    ("come and go", come_and_go),
    ("launch", launch),
];

fn attach(socket: &Path) -> Session {
    Session::builder()
        .socket(socket)
        .tx_bytes(32 << 20)
        .rx_bytes(32 << 20)
        .request_timeout(PATIENCE)
        .open()
        .expect("a session")
}

fn open(near: &Session, far: &Session, channel: u64, sinks: usize) -> (Source, Vec<Sink>) {
    let channel = ChannelId(HONEST + channel);
    let reader = far.stream(Qos::slow()).expect("a stream");
    let sinks: Vec<_> = (0..sinks)
        .map(|_| reader.sink(channel).expect("a sink"))
        .collect();
    let writer = near.stream(Qos::slow()).expect("a stream");
    let source = writer.source(channel).expect("a source");
    introduce(&source, &sinks.iter().collect::<Vec<_>>());
    (source, sinks)
}

/// Messages of these lengths, so many at a time, all of which are consumed, by programs that wait or poll.
fn exchange(
    work: &Work,
    channel: u64,
    sinks: usize,
    lengths: &[usize],
    far: bool,
    next: fn(&Sink) -> u64,
) {
    let near = attach(&work.near);
    let elsewhere = far.then(|| attach(&work.far));
    let (source, sinks) = open(&near, elsewhere.as_ref().unwrap_or(&near), channel, sinks);
    while work.on() {
        for (number, length) in (0..).zip(lengths) {
            put(&source, number, *length);
        }
        for sink in &sinks {
            for number in 0..lengths.len() as u64 {
                assert_eq!(next(sink), number, "lost, doubled or out of order");
            }
        }
        work.did();
    }
}

/// The next number, for which the whole core is used.
fn poll(sink: &Sink) -> u64 {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        match sink.consume(Wait::Never) {
            Ok(message) => return number_of(&message),
            Err(takt::Error::WouldBlock) => std::hint::spin_loop(),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no message in {PATIENCE:?}");
}

fn short(work: &Work) {
    exchange(work, 0, 1, &[1024], false, poll);
}

fn bursts(work: &Work) {
    exchange(work, 1, 1, &[8; 64], false, take);
}

fn long(work: &Work) {
    exchange(work, 2, 1, &[4 << 20, 64 << 10], false, take);
}

fn to_many_sinks(work: &Work) {
    exchange(work, 3, 16, &[64 << 10], false, take);
}

fn across(work: &Work) {
    exchange(work, 4, 1, &[64, 900], true, poll);
}

fn come_and_go(work: &Work) {
    while work.on() {
        let session = attach(&work.near);
        let (source, sinks) = open(&session, &session, 5, 1);
        put(&source, 0, 64);
        assert_eq!(take(&sinks[0]), 0);
        let options = SinkOptions {
            notify_fd: true,
            ..SinkOptions::default()
        };
        let stream = session.stream(Qos::slow()).expect("a stream");
        let more = stream.sink_with(ChannelId(HONEST + 5), options);
        drop(more.expect("a sink"));
        work.did();
    }
}

/// As many launch times as the hostile one has, in the victim's class, half way between the victim's.
fn launch(work: &Work) {
    launch_at(work, ChannelId(HONEST + 6), EVERY / 2);
}
