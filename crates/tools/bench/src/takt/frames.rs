//! The streaming application of naaas-thesis-2024, section 7.4: raw frames from one host to another, as fast as they go.

use std::error::Error;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use takt::{Qos, Session, Wait};
use takt_messaging::Participant;
use takt_streaming::{Client, ClientOptions, Format, Server, ServerOptions};

use crate::frames::Frames;
use crate::statistics::Latencies;

const STREAM: &str = "bench/frames";
/// A run whose other side is silent for this long has failed.
const SILENCE: Wait = Wait::For(Duration::from_secs(20));

/// What a viewer received.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Viewed {
    /// Frames that were whole and right.
    pub frames: u64,
    /// Frames whose bytes were others than those sent.
    pub wrong: u64,
    /// Frames that lacked slices, or of which none came.
    pub lost: u64,
    /// From the first to the last, nanoseconds.
    pub nanos: u64,
    /// From before a frame was sent until it was whole.
    pub latencies: Latencies,
}

/// When frames are sent.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// From frame to frame.
    pub period: Duration,
    /// Each is spread over its period.
    pub spread: bool,
}

/// Sends frames of `size` bytes for a while, as fast as they go or at a pace; returns how many.
pub fn camera(
    session: Session,
    qos: Qos,
    size: usize,
    time: Duration,
    pace: Option<Pace>,
) -> Result<u64, Box<dyn Error>> {
    let participant = Participant::builder(session).directory(false).open()?;
    let options = match pace.filter(|pace| pace.spread) {
        Some(pace) => ServerOptions::new(qos).spread(pace.period),
        None => ServerOptions::new(qos),
    };
    let mut server = Server::open(&participant, STREAM, Format::of_bytes(size)?, options)?;
    let mut frames = Frames::new(size);
    server.wait_client(SILENCE)?;
    let start = Instant::now();
    while start.elapsed() < time {
        if let Some(pace) = pace {
            let next = pace.period * u32::try_from(server.frames())?;
            std::thread::sleep(next.saturating_sub(start.elapsed()));
        }
        let frame = frames.number(server.frames());
        server.send(frame, SILENCE)?;
    }
    Ok(server.frames())
}

/// Takes frames until the camera ends, and compares each with what was sent.
pub fn viewer(session: Session, qos: Qos, size: usize) -> Result<Viewed, Box<dyn Error>> {
    let participant = Participant::builder(session).directory(false).open()?;
    let options = ClientOptions {
        most_bytes: size,
        ..ClientOptions::new(qos).all()
    };
    let client = Client::connect(&participant, STREAM, options)?;
    let mut frames = Frames::new(size);
    let mut viewed = Viewed::default();
    let mut first = None;
    loop {
        let frame = match client.next(SILENCE) {
            Ok(frame) => frame,
            Err(error) if error.is_end() => break,
            Err(error) => return Err(error.into()),
        };
        let first = *first.get_or_insert(frame.completed());
        viewed.nanos = (frame.completed().as_nanos() - first.as_nanos()).unsigned_abs();
        let latency = frame.completed().as_nanos() - frame.captured().as_nanos();
        viewed.latencies.record_ns(latency.unsigned_abs());
        match *frame == *frames.number(frame.number()) {
            true => viewed.frames += 1,
            false => viewed.wrong += 1,
        }
    }
    let counters = client.counters();
    viewed.lost = counters.incomplete + counters.lost;
    Ok(viewed)
}
