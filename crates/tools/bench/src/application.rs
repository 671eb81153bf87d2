//! The benchmarking application of naaas-thesis-2024, section 7.2.2, in Takt's API: a ping-pong for
//! latency and a stress test for throughput. Its length is compared with the paper's table 7.2.

use std::time::{Duration, Instant};

use takt::{ChannelId, Error, Outcome, Qos, Session, Sink, Source, Wait};

use crate::statistics::Latencies;

const PING: ChannelId = ChannelId(1);
const PONG: ChannelId = ChannelId(2);
pub(crate) const STREAM: ChannelId = ChannelId(3);
/// Messages between two announcements to the runtime, in a stress test.
const BURST: usize = 64;
/// A run whose other side is silent for this long has failed, or is over.
const SILENCE: Duration = Duration::from_secs(5);

/// What a sink of the stress test received.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Received {
    /// Messages.
    pub messages: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Nanoseconds from the first to the last.
    pub nanos: u64,
    /// Messages that were sent and did not come.
    pub lost: u64,
    /// Messages that came to this node and found no room.
    pub dropped: u64,
}

/// Emits until a sink is there: the first message is not part of any measurement.
pub(crate) fn rendezvous(source: &Source, size: usize) -> Result<(), Error> {
    let patience = Instant::now() + 2 * SILENCE;
    loop {
        let token = source.buffer_wait(size, Wait::Until(patience))?.emit()?;
        let outcome = loop {
            match source.outcome(token) {
                Outcome::Pending if Instant::now() < patience => std::thread::yield_now(),
                outcome => break outcome,
            }
        };
        match outcome {
            Outcome::Sent => return Ok(()),
            _ if Instant::now() >= patience => return Err(Error::TimedOut),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Sends `count` messages of `size` bytes, each after the echo of the one before, and takes the times, with that of getting memory.
pub fn ping(session: &Session, qos: Qos, size: usize, count: usize) -> Result<Latencies, Error> {
    let stream = session.stream(qos)?;
    let (source, sink) = (stream.source(PING)?, stream.sink(PONG)?);
    // The echo's first answer says that both directions are known.
    while rendezvous(&source, size)
        .and_then(|()| sink.consume(Wait::For(SILENCE / 10)).map(drop))
        .is_err()
    {}
    while sink.consume(Wait::For(Duration::from_millis(20))).is_ok() {}
    let mut latencies = Latencies::new();
    for round in 0..count + count / 10 {
        let start = Instant::now();
        source.buffer_wait(size, Wait::For(SILENCE))?.emit()?;
        sink.consume(Wait::For(SILENCE))?;
        if round >= count / 10 {
            latencies.record(start.elapsed());
        }
    }
    Ok(latencies)
}

/// Echoes until nothing has come for a while.
pub fn pong(session: &Session, qos: Qos) -> Result<(), Error> {
    let stream = session.stream(qos)?;
    let (sink, source) = (stream.sink(PING)?, stream.source(PONG)?);
    loop {
        match sink.consume(Wait::For(SILENCE)) {
            Ok(message) => {
                let mut answer = source.buffer_wait(message.len(), Wait::For(SILENCE))?;
                answer.copy_from_slice(&message);
                answer.emit()?;
            }
            Err(Error::TimedOut) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Sends messages of `size` bytes at full speed for a while; returns how many.
pub fn source(session: &Session, qos: Qos, size: usize, time: Duration) -> Result<u64, Error> {
    let stream = session.stream(qos)?;
    let source = stream.source(STREAM)?;
    rendezvous(&source, size)?;
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < time {
        for _ in 0..BURST {
            let buffer = match source.buffer(size) {
                // Tells the runtime of what is there, and lets it run.
                Err(Error::WouldBlock) => source.buffer_wait(size, Wait::For(SILENCE))?,
                result => result?,
            };
            buffer.emit_more()?;
            sent += 1;
        }
        source.flush();
    }
    Ok(sent)
}

/// Counts what comes until nothing has come for a while.
pub fn sink(session: &Session, qos: Qos) -> Result<Received, Error> {
    let stream = session.stream(qos)?;
    let sink = stream.sink_with(
        STREAM,
        takt::SinkOptions {
            depth: 4096,
            ..Default::default()
        },
    )?;
    drop(sink.consume(Wait::For(2 * SILENCE))?);
    let start = Instant::now();
    let (mut received, mut last) = (Received::default(), start);
    loop {
        match sink.consume(Wait::For(SILENCE / 10)) {
            Ok(message) => {
                received.messages += 1;
                received.bytes += message.len() as u64;
                if received.messages % 64 == 0 {
                    last = Instant::now();
                }
            }
            Err(Error::TimedOut) => break,
            Err(error) => return Err(error),
        }
    }
    received.nanos = (last - start).as_nanos() as u64;
    count_losses(&sink, &mut received);
    Ok(received)
}

fn count_losses(sink: &Sink, received: &mut Received) {
    let counters = sink.counters();
    received.lost = counters.lost;
    received.dropped = counters.dropped_full + counters.dropped_memory;
}
