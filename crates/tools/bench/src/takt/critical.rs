//! A critical flow beside low-importance traffic (naaas-thesis-2024, figures 7.3 and 7.4): short reliable messages at a steady
//! rate, and how long it takes until all of them are there.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use takt::{
    ChannelId, Error, Outcome, Qos, Session, SinkOptions, Source, Token, TrafficClass, Wait,
};

use super::process::Process;
use super::{Datapath, Form, PATIENCE, Sides, Takt, TaktError};
use crate::application::{self, STREAM};
use crate::experiment::Sample;
use crate::pace::{BURST, PAUSE, Steady};
use crate::peers::{Beside, COMPLETION, Critical, Incoming, LINK, Pair};
use crate::statistics::Throughput;

const CRITICAL: ChannelId = ChannelId(7);
/// Its messages pass others that wait on the way out.
const CLASS: Option<TrafficClass> = TrafficClass::new(6);
/// A run whose other side is silent for this long has failed.
const SILENCE: Duration = Duration::from_secs(60);
/// Numbers of messages that are not counted: after it those that count begin, and end.
const BEGIN: u64 = u64::MAX;
const END: u64 = u64::MAX - 1;

/// What became of a critical flow.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Arrived {
    /// Messages whose number was the next one.
    pub messages: u64,
    /// Others.
    pub wrong: u64,
    /// From the first to the last, nanoseconds.
    pub nanos: u64,
    /// Messages in the second in which the fewest came; the last one, which is not whole, left out.
    pub slowest_second: u64,
}

fn emit(source: &Source, size: usize, number: u64) -> Result<Token, Error> {
    let mut buffer = source.buffer_wait(size, Wait::For(SILENCE))?;
    buffer[..8].copy_from_slice(&number.to_le_bytes());
    buffer.emit()
}

/// Sends messages of `size` bytes, 8 at least; returns how many.
pub fn send(session: &Session, qos: Qos, size: usize, pace: Steady) -> Result<u64, Error> {
    let qos = CLASS.map_or(qos, |class| qos.time_sensitive(class));
    let stream = session.stream(qos.reliable())?;
    let source = stream.source(CRITICAL)?;
    source.wait_reader(Wait::For(SILENCE))?;
    emit(&source, size, BEGIN)?;
    pace.run(|number| emit(&source, size, number).map(drop))?;
    let last = emit(&source, size, END)?;
    let patience = Instant::now() + SILENCE;
    while source.outcome(last) == Outcome::Pending {
        if Instant::now() > patience {
            return Err(Error::TimedOut);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(pace.count())
}

/// Counts what comes of them.
pub fn count(session: &Session, qos: Qos) -> Result<Arrived, Error> {
    let stream = session.stream(qos)?;
    let options = SinkOptions {
        depth: 4096,
        ..SinkOptions::default()
    };
    let sink = stream.sink_with(CRITICAL, options)?;
    let mut arrived = Arrived::default();
    let mut first = None;
    let mut seconds: Vec<u64> = Vec::new();
    loop {
        let message = sink.consume(Wait::For(SILENCE))?;
        let number = message.first_chunk().map_or(0, |n| u64::from_le_bytes(*n));
        match (number, first) {
            (BEGIN, _) => first = Some(Instant::now()),
            (_, None) => arrived.wrong += 1,
            (END, Some(first)) => {
                arrived.nanos = Instant::now().duration_since(first).as_nanos() as u64;
                break;
            }
            (number, Some(first)) => {
                match number == arrived.messages + arrived.wrong {
                    true => arrived.messages += 1,
                    false => arrived.wrong += 1,
                }
                let second = first.elapsed().as_secs() as usize;
                if seconds.len() <= second {
                    seconds.resize(second + 1, 0);
                }
                seconds[second] += 1;
            }
        }
    }
    seconds.pop();
    arrived.slowest_second = seconds.into_iter().min().unwrap_or(arrived.messages);
    Ok(arrived)
}

/// Sends messages of `size` bytes as fast as they go, with pauses between bursts or without, until it fails.
pub fn load(session: &Session, qos: Qos, size: usize, bursts: bool) -> Result<Infallible, Error> {
    loop {
        if bursts {
            std::thread::sleep(PAUSE);
        }
        application::source(session, qos, size, BURST)?;
    }
}

/// Takes what [`load`] sends, until it fails.
pub fn take_load(session: &Session, qos: Qos) -> Result<Infallible, Error> {
    let sink = session.stream(qos)?.sink(STREAM)?;
    loop {
        sink.consume(Wait::Forever)?;
    }
}

impl Takt {
    /// A critical flow beside other traffic of the same host, or alone.
    ///
    /// # Errors
    /// As [`round_trips`](Self::round_trips).
    pub fn critical(
        &self,
        form: Form,
        path: Datapath,
        pair: &Pair<'_>,
        flow: &Critical,
        beside: Beside,
    ) -> Result<Sample, TaktError> {
        let sides = Sides::start(self, form, path, pair)?;
        let mut load = Vec::new();
        if beside != Beside::Nothing {
            let size = Beside::PAYLOAD.to_string();
            let mut role = vec!["load", "--size", &size];
            if beside == Beside::Bursts {
                role.push("--bursts");
            }
            load = vec![sides.far(&["load-sink"])?, sides.near(&role)?];
        }
        let mut far = sides.far(&["critical-sink"])?;
        let (size, rate) = (flow.payload.to_string(), flow.pace.rate.to_string());
        let seconds = flow.pace.duration.as_secs_f64().to_string();
        let mut role = vec!["critical-source", "--size", &size, "--rate", &rate];
        role.extend(["--seconds", &seconds]);
        let mut near = sides.near(&role)?;
        let incoming = Incoming::begin(pair.far)?;
        let patience = 4 * flow.pace.duration + 3 * SILENCE;
        let sent: u64 = near.answer(patience)?;
        let arrived: Arrived = far.answer(PATIENCE)?;
        let link = incoming.megabits_per_second()?;
        // A load that has ended before was none.
        load.iter_mut().try_for_each(Process::check)?;
        let mut sample = Sample::from(Throughput {
            messages: arrived.messages,
            bytes: arrived.messages * flow.payload as u64,
            lost: sent.saturating_sub(arrived.messages),
            nanoseconds: arrived.nanos,
        });
        let mut figure = |name: &str, value: f64| {
            sample.figures.insert(name.to_owned(), value);
        };
        figure(COMPLETION, arrived.nanos as f64 / 1e9);
        figure(
            "k messages in the slowest second",
            arrived.slowest_second as f64 / 1e3,
        );
        figure("wrong", arrived.wrong as f64);
        figure(LINK, link);
        Ok(sample)
    }
}
