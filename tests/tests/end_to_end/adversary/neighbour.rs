//! An honest tenant with the rights of the hostile one that keeps the node and its cores as busy, with what they are for.

use std::path::Path;
use std::time::Instant;

use takt::{ChannelId, Qos, Session, Sink, SinkOptions, Source, SourceOptions, Wait};

use super::{EVERY, HONEST, HONEST_MANY, Tried, Work, launch_at};
use crate::support::{introduce, number_of, put, take};
use takt_testing::PATIENCE;

/// Sessions one after the other that have as many sources and sinks as one may have.
const SESSIONS: usize = 8;
/// Entries of rings: of longer ones a session has no room for so many.
const DEPTH: u32 = 256;
const EACH: usize = 200;

/// As many things at once as the hostile tenant does.
pub const ALL: [Tried; 10] = [
    ("short", short),
    ("bursts", bursts),
    ("long", long),
    ("to many sinks", to_many_sinks),
    ("across", across),
    ("far and wide", far_and_wide),
    ("many channels", many_channels),
    ("come and go", |work| come_and_go(work, 5)),
    ("come and go too", |work| come_and_go(work, 8)),
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

fn open(
    near: &Session,
    far: &Session,
    channel: u64,
    qos: Qos,
    sinks: usize,
) -> (Source, Vec<Sink>) {
    let channel = ChannelId(HONEST + channel);
    let options = SinkOptions {
        depth: DEPTH,
        ..SinkOptions::default()
    };
    let reader = far.stream(qos).expect("a stream");
    let sinks: Vec<_> = (0..sinks)
        .map(|_| reader.sink_with(channel, options).expect("a sink"))
        .collect();
    let writer = near.stream(qos).expect("a stream");
    let options = SourceOptions {
        depth: DEPTH,
        ..SourceOptions::default()
    };
    let source = writer.source_with(channel, options).expect("a source");
    introduce(&source, &sinks.iter().collect::<Vec<_>>());
    (source, sinks)
}

/// Messages of these lengths, so many at a time, all of which are consumed, by programs that wait or poll. What is for the other
/// node is `reliable`, or so little that no socket is full of it.
fn exchange(
    work: &Work,
    channel: u64,
    sinks: usize,
    lengths: &[usize],
    far: Option<Qos>,
    next: fn(&Sink) -> u64,
) {
    let near = attach(&work.near);
    let elsewhere = far.map(|_| attach(&work.far));
    let reader = elsewhere.as_ref().unwrap_or(&near);
    let (source, sinks) = open(&near, reader, channel, far.unwrap_or(Qos::slow()), sinks);
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
    exchange(work, 0, 1, &[1024], None, poll);
}

fn bursts(work: &Work) {
    exchange(work, 1, 1, &[8; 64], None, take);
}

fn long(work: &Work) {
    exchange(work, 2, 1, &[4 << 20, 64 << 10], None, take);
}

fn to_many_sinks(work: &Work) {
    exchange(work, 3, 16, &[64 << 10], None, take);
}

fn across(work: &Work) {
    exchange(work, 4, 1, &[64, 900], Some(Qos::slow()), poll);
}

/// As long as those of the one who writes them anew, for the other node: most are cut.
fn far_and_wide(work: &Work) {
    let lengths = [64, 1_400, 20_000, 200_000];
    exchange(work, 7, 2, &lengths, Some(Qos::slow().reliable()), take);
}

/// As many sources and sinks as there may be, on a channel each, used one after the other, and then all over again.
fn many_channels(work: &Work) {
    while work.on() {
        let mut channels = HONEST_MANY - HONEST..;
        for _ in 0..SESSIONS {
            let session = attach(&work.near);
            let mut held = Vec::new();
            for channel in channels.by_ref().take(EACH) {
                if !work.on() {
                    return;
                }
                let (source, sinks) = open(&session, &session, channel, Qos::slow(), 1);
                put(&source, 0, 64);
                assert_eq!(take(&sinks[0]), 0);
                held.push((source, sinks));
                work.did();
            }
        }
    }
}

fn come_and_go(work: &Work, channel: u64) {
    while work.on() {
        let session = attach(&work.near);
        let (source, sinks) = open(&session, &session, channel, Qos::slow(), 1);
        put(&source, 0, 64);
        assert_eq!(take(&sinks[0]), 0);
        let options = SinkOptions {
            notify_fd: true,
            ..SinkOptions::default()
        };
        let stream = session.stream(Qos::slow()).expect("a stream");
        let more = stream.sink_with(ChannelId(HONEST + channel), options);
        drop(more.expect("a sink"));
        work.did();
    }
}

/// As many launch times as the hostile one has, in the victim's class, half way between the victim's.
fn launch(work: &Work) {
    launch_at(work, ChannelId(HONEST + 6), EVERY / 2);
}
