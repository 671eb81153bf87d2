//! Messages that flow while something is done to what carries them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use takt::{ChannelId, Error, ErrorCode, Qos, Session, Sink, Source, Stream, Wait};
use takt_testing::until_true;

use super::Stops;
use super::application::{introduce, put, take};

/// The number of the message that ends a test.
const LAST: u64 = u32::MAX as u64;

/// A source of this quality and a sink, which hears it, with their streams.
pub struct Flow {
    pub stream: Stream,
    pub source: Source,
    pub sink: Sink,
    _reader: Stream,
}

impl Flow {
    pub fn new(near: &Session, far: &Session, channel: ChannelId, qos: Qos) -> Self {
        let stream = near.stream(qos).expect("a stream");
        let source = stream.source(channel).expect("a source");
        let reader = far.stream(Qos::fast()).expect("a stream");
        let sink = reader.sink(channel).expect("a sink");
        introduce(&source, &[&sink]);
        Self {
            stream,
            source,
            sink,
            _reader: reader,
        }
    }
}

/// Sends numbers until told to end: some in one datagram with others, some in several. The source, and how many.
fn send_until(end: &AtomicBool, source: Source) -> (Source, u64) {
    let mut number = 0;
    while !end.load(Relaxed) {
        put(
            &source,
            number,
            [16, 900, 1400, 20_000][number as usize % 4],
        );
        number += 1;
    }
    (source, number)
}

/// Messages of which a sink knows what became of them.
fn known(sink: &Sink) -> u64 {
    let of = sink.counters();
    of.delivered + of.lost + of.dropped_full + of.dropped_memory
}

/// All that a reliable source sends arrives once and in order, whatever is done `meanwhile`, which is told how many have.
pub fn all_arrive(flow: Flow, meanwhile: impl FnOnce(&Stream, &dyn Fn() -> u64)) -> Stream {
    let Flow {
        stream,
        source,
        sink,
        _reader,
    } = flow;
    let (end, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    let before = sink.counters();
    let sink = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_until(&end, source));
        let receiver = scope.spawn(|| {
            let mut next = 0;
            loop {
                let number = take(&sink);
                if number == LAST {
                    return (sink, next);
                }
                assert_eq!(number, next, "lost, doubled or out of order");
                next += 1;
                taken.store(next, Relaxed);
            }
        });
        let ends = Stops(&[&end]);
        meanwhile(&stream, &|| taken.load(Relaxed));
        drop(ends);
        let (source, sent) = sender.join().expect("the sender");
        put(&source, LAST, 8);
        let (sink, received) = receiver.join().expect("the receiver");
        assert_eq!(received, sent);
        sink
    });
    let after = sink.counters();
    let lost = |of: &takt::SinkCounters| (of.lost, of.dropped_full, of.dropped_memory);
    assert_eq!(lost(&after), lost(&before));
    stream
}

/// What a source sends once arrives once at most, or is counted, whatever is done `meanwhile`, which is told how many have.
pub fn all_arrive_or_count(flow: Flow, meanwhile: impl FnOnce(&Stream, &dyn Fn() -> u64)) {
    let Flow {
        stream,
        source,
        sink,
        _reader,
    } = flow;
    let (end, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    let before = known(&sink);
    let (sink, sent) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_until(&end, source));
        let receiver = scope.spawn(|| {
            let mut seen = HashSet::new();
            loop {
                let number = take(&sink);
                if number == LAST {
                    return (sink, seen.len() as u64);
                }
                assert!(seen.insert(number), "{number} came twice");
                taken.store(seen.len() as u64, Relaxed);
            }
        });
        let ends = Stops(&[&end]);
        meanwhile(&stream, &|| taken.load(Relaxed));
        drop(ends);
        let (source, sent) = sender.join().expect("the sender");
        // Sent once as well: until one arrives.
        while !receiver.is_finished() {
            put(&source, LAST, 8);
            std::thread::yield_now();
        }
        let (sink, received) = receiver.join().expect("the receiver");
        assert!(received <= sent);
        (sink, sent)
    });
    until_true("everything is delivered or counted", || {
        while sink.consume(Wait::Never).is_ok() {}
        known(&sink) - before >= sent
    });
}

/// Why a stream of this quality is refused.
pub fn refusal(session: &Session, qos: Qos) -> String {
    match session.stream(qos) {
        Err(Error::Refused(failure)) => {
            assert_eq!(failure.code, ErrorCode::NotAvailable, "{failure}");
            failure.message
        }
        other => panic!("not refused: {other:?}"),
    }
}
