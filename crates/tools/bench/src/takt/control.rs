//! A control flow beside a stream of frames: short messages in a fixed period, and how long each is under way.
//!
//! The time under way is told by the clock that all processes of a machine share.

use std::time::Duration;

use takt::{ChannelId, Error, Qos, Reliability, Session, Wait};

use super::local::now_ns;
use super::{Datapath, Form, PATIENCE, Sides, Takt, TaktError};
use crate::application::rendezvous;
use crate::experiment::Sample;
use crate::peers::Pair;
use crate::statistics::Latencies;

const CONTROL: ChannelId = ChannelId(6);
/// From message to message.
const PERIOD_NS: u64 = 1_000_000;
/// Octets of a message.
const SIZE: usize = 128;
/// A run whose other side is silent for this long has failed.
const SILENCE: Wait = Wait::For(Duration::from_secs(5));
/// Tells the other side that this message is not measured, and that the run is over; no time is this early.
const NOT_MEASURED: u64 = 0;
const OVER: u64 = 1;
/// How often that is told.
const ENDS: usize = 20;

/// Frames beside a control flow.
#[derive(Clone, Copy, Debug)]
pub struct Video {
    /// Octets of a frame.
    pub size: usize,
    /// Frames a second.
    pub rate: f64,
    /// Each is spread over its period; else it is sent as fast as it goes.
    pub spread: bool,
}

/// What became of a control flow.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Controlled {
    /// How long each message was under way.
    pub latencies: Latencies,
    /// Messages that did not come.
    pub lost: u64,
}

/// Sends a message in each millisecond for a while.
pub fn controller(session: &Session, qos: Qos, time: Duration) -> Result<u64, Error> {
    let stream = session.stream(qos.with_reliability(Reliability::BestEffort))?;
    let source = stream.source(CONTROL)?;
    rendezvous(&source, SIZE)?;
    let send = |stamp: u64| {
        let mut buffer = source.buffer_wait(SIZE, SILENCE)?;
        buffer[..8].copy_from_slice(&stamp.to_le_bytes());
        buffer.emit().map(drop)
    };
    let start = now_ns();
    let count = time.as_nanos() as u64 / PERIOD_NS;
    for number in 0..count {
        let ahead_ns = (start + number * PERIOD_NS).saturating_sub(now_ns());
        std::thread::sleep(Duration::from_nanos(ahead_ns));
        send(now_ns())?;
    }
    for _ in 0..ENDS {
        send(OVER)?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(count)
}

/// Takes the times of what comes, until it is told that this is all.
pub fn controlled(session: &Session, qos: Qos) -> Result<Controlled, Error> {
    let stream = session.stream(qos.with_reliability(Reliability::BestEffort))?;
    let sink = stream.sink(CONTROL)?;
    let mut controlled = Controlled::default();
    loop {
        let message = sink.consume(SILENCE)?;
        let now = now_ns();
        match message
            .first_chunk()
            .map_or(NOT_MEASURED, |stamp| u64::from_le_bytes(*stamp))
        {
            NOT_MEASURED => {}
            OVER => break,
            sent => controlled.latencies.record_ns(now.saturating_sub(sent)),
        }
    }
    controlled.lost = sink.counters().lost;
    Ok(controlled)
}

impl Takt {
    /// How long the messages of a control flow are under way, each millisecond one, beside a video or without.
    ///
    /// # Errors
    /// As [`round_trips`](Self::round_trips).
    pub fn control(
        &self,
        form: Form,
        path: Datapath,
        pair: &Pair<'_>,
        time: Duration,
        video: Option<Video>,
    ) -> Result<Sample, TaktError> {
        let sides = Sides::start(self, form, path, pair)?;
        let seconds = time.as_secs_f64();
        // It goes on until the flow has ended.
        let longer = (seconds + 1.0).to_string();
        let seconds = seconds.to_string();
        let streaming = match video {
            None => None,
            Some(video) => {
                let (size, rate) = (video.size.to_string(), video.rate.to_string());
                let mut role = vec!["camera", "--size", &size, "--seconds", &longer];
                role.extend(["--rate", &rate]);
                if video.spread {
                    role.push("--spread");
                }
                let viewer = sides.far(&["viewer", "--size", &size])?;
                Some((viewer, sides.near(&role)?))
            }
        };
        let mut far = sides.far(&["controlled"])?;
        let mut near = sides.near(&["controller", "--seconds", &seconds])?;
        let sent: u64 = near.answer(time + PATIENCE)?;
        let controlled: Controlled = far.answer(PATIENCE)?;
        let mut sample = Sample::from(controlled.latencies);
        let mut figure = |name: &str, value: u64| {
            sample.figures.insert(name.to_owned(), value as f64);
        };
        figure("sent", sent);
        figure("lost", controlled.lost);
        if let Some((mut viewer, mut camera)) = streaming {
            let _sent: u64 = camera.answer(time + PATIENCE)?;
            let viewed: super::frames::Viewed = viewer.answer(PATIENCE)?;
            figure("frames", viewed.frames);
            figure("wrong frames", viewed.wrong);
            figure("lost frames", viewed.lost);
        }
        Ok(sample)
    }
}
