//! The ping-pong of [`application`](crate::application) by topic: what messaging adds to a channel.

use std::time::{Duration, Instant};

use takt::{Qos, Session, Wait};
use takt_messaging::{Error, Participant, Publisher};

use crate::statistics::Latencies;

const PING: &str = "bench/ping";
const PONG: &str = "bench/pong";
/// A run whose other side is silent for this long has failed, or is over.
const SILENCE: Duration = Duration::from_secs(5);

fn publish(publisher: &Publisher, size: usize) -> Result<(), Error> {
    publisher.fill(size, Wait::For(SILENCE), |_| {}).map(drop)
}

/// Publishes `count` messages of `size` bytes, each after the echo of the one before, and takes the times: with that of getting
/// memory, which the channel's figures are without.
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
