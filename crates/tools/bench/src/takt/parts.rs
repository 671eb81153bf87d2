//! The parts of a message's way between two applications (naaas-thesis-2024, figure 7.6): a short message in each
//! millisecond, with time stamps along the way, all by the clock that the processes of a machine share.
//!
//! Where they are: before the source's `emit`; when the sender's lane took the message (its header); when its frame
//! was at the other end of its host's cable, the switch (captured there, by the kernel's stamp); when the receiver's lane had it whole (of
//! which its daemon tells the median); when the sink's `consume` returned.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use takt::{ChannelId, Error, Qos, Reliability, Session, Wait};

use super::wire::Wire;
use super::{Datapath, Form, PATIENCE, Sides, Takt, TaktError, daemon};
use crate::application::rendezvous;
use crate::experiment::Sample;
use crate::isochronous::sys::{now_ns, sleep_until};
use crate::peers::Pair;
use crate::statistics::{Latencies, median};

const CHANNEL: ChannelId = ChannelId(9);
/// From message to message.
const PERIOD_NS: i64 = 1_000_000;
/// Messages at the beginning that are not measured.
const WARM_UP: i64 = 50;
/// Tells the sink that the run is over; no time is this early.
const OVER: i64 = 1;
/// How often that is told.
const ENDS: usize = 20;
/// A run whose other side is silent for this long has failed.
const SILENCE: Wait = Wait::For(Duration::from_secs(5));
/// The instants of a message, `CLOCK_TAI`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instants {
    /// Before it was emitted; no two messages have the same.
    emitted_ns: i64,
    /// When the sender's lane took it.
    taken_ns: i64,
    /// When it was consumed.
    consumed_ns: i64,
}

/// Sends.
pub fn send(session: &Session, qos: Qos, size: usize, count: usize) -> Result<u64, Error> {
    let stream = session.stream(qos.with_reliability(Reliability::BestEffort))?;
    let source = stream.source(CHANNEL)?;
    let size = size.max(8);
    rendezvous(&source, size)?;
    let send = |stamp: fn() -> i64| {
        let mut buffer = source.buffer_wait(size, SILENCE)?;
        buffer[..8].copy_from_slice(&stamp().to_le_bytes());
        buffer.emit().map(drop)
    };
    let start = now_ns(libc::CLOCK_TAI) + PERIOD_NS;
    for number in 0..count as i64 + WARM_UP {
        sleep_until(start + number * PERIOD_NS);
        send(|| now_ns(libc::CLOCK_TAI))?;
    }
    for _ in 0..ENDS {
        send(|| OVER)?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(count as u64)
}

/// Notes the instants of what comes, until it is told that this is all.
pub fn receive(session: &Session, qos: Qos) -> Result<Vec<Instants>, Error> {
    let stream = session.stream(qos.with_reliability(Reliability::BestEffort))?;
    let sink = stream.sink(CHANNEL)?;
    let mut all = Vec::new();
    loop {
        let message = sink.consume(SILENCE)?;
        let consumed_ns = now_ns(libc::CLOCK_TAI);
        match message
            .first_chunk()
            .map_or(0, |at| i64::from_le_bytes(*at))
        {
            0 => {}
            OVER => return Ok(all),
            emitted_ns => all.push(Instants {
                emitted_ns,
                taken_ns: message.send_time().as_nanos(),
                consumed_ns,
            }),
        }
    }
}

impl Takt {
    /// The parts of the way of so many messages over a daemon on each side, medians in microseconds; the latencies are of the
    /// whole way.
    ///
    /// # Errors
    /// As [`round_trips`](Self::round_trips).
    pub fn parts(
        &self,
        path: Datapath,
        pair: &Pair<'_>,
        size: u32,
        count: u32,
    ) -> Result<Sample, TaktError> {
        let sides = Sides::start(self, Form::Daemon, path, pair)?;
        let wire = Wire::of_lane(pair.near, path)?;
        let mut far = sides.far(&["parts-sink"])?;
        let (size, count) = (size.to_string(), count.to_string());
        let mut near = sides.near(&["parts-source", "--size", &size, "--count", &count])?;
        let _sent: u64 = near.answer(PATIENCE * 2)?;
        let mut all: Vec<Instants> = far.answer(PATIENCE)?;
        all.drain(..all.len().min(WARM_UP as usize));
        let wire = wire.captured()?;
        let admin = daemon::admin(sides.scratch.path(), pair.far.name());
        let status = self.ask(&["status"], &admin)?;
        let delay_ns = status["node"]["delays"][0]["p50_ns"].as_i64();
        let delay_ns = delay_ns.ok_or_else(|| TaktError::Answer {
            command: "takt status".into(),
            line: status["node"]["delays"].to_string(),
            reason: "it has no delays".into(),
        })?;

        let mut latencies = Latencies::new();
        // In microseconds; instants of two sources may be the wrong way round by a little.
        let [mut taken, mut sent, mut received, mut consumed] = [const { Vec::new() }; 4];
        let us = |ns: i64| ns as f64 / 1e3;
        for one in &all {
            latencies.record_ns(one.consumed_ns.saturating_sub(one.emitted_ns).max(0) as u64);
            taken.push(us(one.taken_ns - one.emitted_ns));
            received.push(us(one.consumed_ns - one.taken_ns));
            if let Some(at) = wire.get(&one.emitted_ns).map(|at| at.as_nanos()) {
                sent.push(us(at - one.taken_ns));
                consumed.push(us(one.consumed_ns - at));
            }
        }
        let captured = sent.len() as f64;
        let (sent, received, whole) = (median(sent), median(received), us(delay_ns));
        let mut sample = Sample::from(latencies);
        for (name, value) in [
            ("1 emit to lane µs", median(taken)),
            ("2 lane to wire µs", sent),
            ("3 wire to lane µs", sent.map(|sent| whole - sent)),
            (
                "4 lane to consume µs",
                received.map(|received| received - whole),
            ),
            ("wire to consume µs", median(consumed)),
            ("messages", Some(all.len() as f64)),
            ("captured", Some(captured)),
        ] {
            // What was not seen has no figure.
            if let Some(value) = value {
                sample.figures.insert(name.to_owned(), value);
            }
        }
        Ok(sample)
    }
}
