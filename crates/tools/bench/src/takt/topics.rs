//! The ping-pong and the stress test of [`application`](crate::application) by topic: what messaging adds to a channel, and thesis
//! figure 7.15.

use std::time::{Duration, Instant};

use takt::{Qos, Session, Wait};
use takt_messaging::{Error, Participant, Publisher, SubscriberOptions};

use crate::application::Received;
use crate::statistics::Latencies;

const PING: &str = "bench/ping";
const PONG: &str = "bench/pong";
const STREAM: &str = "bench/stream";
/// Messages between two announcements to the runtime, in a stress test.
const BURST: usize = 64;
/// A run whose other side is silent for this long has failed, or is over.
const SILENCE: Duration = Duration::from_secs(5);

fn publish(publisher: &Publisher, size: usize) -> Result<(), Error> {
    publisher.fill(size, Wait::For(SILENCE), |_| {}).map(drop)
}

/// Publishes `count` messages of `size` bytes, each after the echo of the one before, and takes the times, as
/// [`ping`](crate::application::ping) does.
pub fn ping(session: &Session, qos: Qos, size: usize, count: usize) -> Result<Latencies, Error> {
    let participant = Participant::new(session.clone())?;
    let publisher = participant.publisher(PING, qos)?;
    let subscriber = participant.subscriber(PONG, qos)?;
    publisher.wait_subscriber(Wait::For(2 * SILENCE))?;
    // The first answer says that both directions are known.
    loop {
        publish(&publisher, size)?;
        if subscriber.take(Wait::For(SILENCE / 10)).is_ok() {
            break;
        }
    }
    while subscriber
        .take(Wait::For(Duration::from_millis(20)))
        .is_ok()
    {}
    let mut latencies = Latencies::new();
    for round in 0..count + count / 10 {
        let start = Instant::now();
        publish(&publisher, size)?;
        subscriber.take(Wait::For(SILENCE))?;
        if round >= count / 10 {
            latencies.record(start.elapsed());
        }
    }
    Ok(latencies)
}

/// Echoes until nothing has come for a while.
pub fn pong(session: &Session, qos: Qos) -> Result<(), Error> {
    let participant = Participant::new(session.clone())?;
    let subscriber = participant.subscriber(PING, qos)?;
    let publisher = participant.publisher(PONG, qos)?;
    loop {
        match subscriber.take(Wait::For(SILENCE)) {
            Ok(sample) => {
                let echo = |memory: &mut [u8]| memory.copy_from_slice(&sample);
                publisher.fill(sample.len(), Wait::For(SILENCE), echo)?;
            }
            Err(error) if error.is_timed_out() => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Publishes messages of `size` bytes at full speed for a while; returns how many.
pub fn source(session: &Session, qos: Qos, size: usize, time: Duration) -> Result<u64, Error> {
    let participant = Participant::new(session.clone())?;
    let publisher = participant.publisher(STREAM, qos)?;
    publisher.wait_subscriber(Wait::For(2 * SILENCE))?;
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < time {
        for _ in 1..BURST {
            publisher.fill_more(size, Wait::For(SILENCE), |_| {})?;
        }
        publish(&publisher, size)?;
        sent += BURST as u64;
    }
    Ok(sent)
}

/// Counts what comes until nothing has come for a while.
pub fn sink(session: &Session, qos: Qos) -> Result<Received, Error> {
    let participant = Participant::new(session.clone())?;
    let options = SubscriberOptions {
        depth: 4096,
        ..SubscriberOptions::new(qos)
    };
    let subscriber = participant.subscriber_with(STREAM, options)?;
    let (mut received, mut span) = (Received::default(), None);
    loop {
        let wait = match span {
            None => 2 * SILENCE,
            Some(_) => SILENCE / 10,
        };
        match subscriber.take(Wait::For(wait)) {
            Ok(sample) => {
                received.messages += 1;
                received.bytes += sample.len() as u64;
                if received.messages % 64 == 1 {
                    let now = Instant::now();
                    span = Some((span.map_or(now, |(first, _)| first), now));
                }
            }
            Err(error) if error.is_timed_out() => break,
            Err(error) => return Err(error),
        }
    }
    if let Some((first, last)) = span {
        received.nanos = (last - first).as_nanos() as u64;
    }
    let counters = subscriber.counters().channels;
    received.lost = counters.lost;
    received.dropped = counters.dropped_full + counters.dropped_memory;
    Ok(received)
}
