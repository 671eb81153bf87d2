//! `takt stream serve`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use takt::{Outcome, Token, Wait};
use takt_streaming::{Pace, Pixels, Server, ServerOptions};

use super::source::{self, From, Source, Told};
use super::{Size, pixels_by_name};
use crate::application::Application;
use crate::failure::Failure;
use crate::output::{Form, counted, name, print_json, size};
use crate::publish::{PAUSE, Reliable, SETTLE_AT_SIGNAL};
use crate::signals::Stop;
use crate::subscribe::LOOK_EVERY;
use crate::topic::Joined;

const HELP: &str = "\
Frames are sent once unless --reliable or --within asks for more. With --spread each slice of a frame has a launch time, so
that a frame takes nine tenths of its period and does not burst: what else uses the link hardly notices.

A camera of Video4Linux, or anything else that GStreamer reads, is the source of a pipeline, or comes as RTP:
  takt stream serve camera/1 --from /dev/video0 --size 640x480
  takt stream serve camera/1 --from 'gst:videotestsrc is-live=true pattern=ball'
  gst-launch-1.0 videotestsrc ! video/x-raw,format=UYVY,width=640,height=480,framerate=30/1 ! \\
    rtpvrawpay ! udpsink host=127.0.0.1 port=5004 &
  takt stream serve camera/1 --from rtp://127.0.0.1:5004 --size 640x480 --pixels uyvy

Examples:
  takt stream serve camera/1
  takt stream serve camera/1 --rate 60 --size 1920x1080 --spread --within 20ms
  takt stream serve slides --from ./pictures --rate 1 --reliable";

/// How long it waits for viewers at the end before it says so.
const TELL_AFTER: Duration = Duration::from_millis(500);

/// Sends frames.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
// It is refused: it would lose the other slices of a frame.
#[command(mut_arg("latest", |argument| argument.hide(true)))]
pub struct Serve {
    /// The stream: a name as topics have
    stream: String,
    /// Where frames come from: `pattern`, a directory of pictures, `-` for raw frames on standard input,
    /// rtp://ADDRESS:PORT for packets of RFC 4175, gst:PIPELINE for what GStreamer makes, or /dev/videoN
    #[arg(long, value_name = "SOURCE", default_value = "pattern")]
    from: From,
    /// Width and height [default: that of the first picture, or 1280x720]
    #[arg(long, value_name = "WIDTHxHEIGHT")]
    size: Option<Size>,
    /// What lies where a pixel is: rgb, rgba, bgr, bgra, uyvy, gray, or bytes
    #[arg(long, default_value = "rgb", value_parser = pixels_by_name)]
    pixels: Pixels,
    /// Frames a second; of live sources what is told to viewers, and what --spread goes by
    #[arg(long, value_name = "FPS", default_value_t = 30.0, value_parser = rate)]
    rate: f64,
    /// Spread each frame over its period, by launch times
    #[arg(long)]
    spread: bool,
    /// Bytes of a slice [default: whole lines of at most 8 KiB with --spread, else of 32 KiB]
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 0,
        hide_default_value = true
    )]
    slice: u32,
    /// Most slices on their way at once, a power of two [default: two frames, or a little more, 1024 at most; without --spread 64 at least]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    depth: u32,
    /// End after this many frames
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Wait this long for somebody to view it before the first frame [default: not at all]
    #[arg(long, value_name = "TIME", value_parser = crate::time::parse)]
    wait: Option<Duration>,
    #[command(flatten)]
    reliable: Reliable,
    #[command(flatten)]
    application: Application,
    #[command(flatten)]
    form: Form,
}

fn rate(written: &str) -> Result<f64, String> {
    match written.parse() {
        Ok(rate) if (0.25..=100_000.0).contains(&rate) => Ok(rate),
        _ => Err("write frames a second, from 0.25 to 100000".into()),
    }
}

/// What was sent, as JSON.
#[derive(Debug, Serialize)]
struct Summary {
    stream: String,
    format: String,
    frames: u64,
    slice_bytes: usize,
    seconds: f64,
    /// Frames that could not be sent in the time of their period.
    behind: u64,
    /// Frames that some viewer does without.
    undelivered: u64,
    /// Frames that went nowhere, in part at least: no viewer was there, or it was taken for gone.
    unviewed: u64,
    /// Frames of which it was not known at the end whether all viewers get them.
    unknown: u64,
    datapath: String,
    /// What the source did not hand on.
    #[serde(flatten)]
    source: Option<Told>,
}

impl Serve {
    pub fn run(self) -> Result<(), Failure> {
        let stop = Stop::by_signals()?;
        let (mut source, format) = source::open(&self.from, self.pixels, self.size)?;
        let mut frame = source::memory(format)?;
        let joined = Joined::new(&self.application, "takt stream serve")?;
        joined.warn();
        let settle = self.reliable.settle()?;
        let period = Duration::from_secs_f64(1.0 / self.rate);
        let options = ServerOptions {
            qos: self
                .application
                .quality()
                .with_reliability(self.reliable.reliability()?),
            pace: if self.spread {
                Pace::Spread
            } else {
                Pace::Burst
            },
            period: Some(period),
            slice: self.slice,
            depth: self.depth,
        };
        let mut server = Server::open(&joined.participant, &self.stream, format, options)?;
        let publisher = server.publisher();
        stop.wakes(publisher.source().waker());
        if let Some(warning) = publisher.warning() {
            eprintln!("takt: warning: {warning}");
        }
        eprintln!(
            "stream {}: {format}, {} a frame, {} fps, over {}; view it with `takt stream view {}`",
            name(&self.stream),
            size(format.bytes() as u64),
            self.rate,
            publisher.datapath(),
            name(&self.stream)
        );
        if let Some(wait) = self.wait {
            await_viewer(&server, source.as_mut(), wait, &stop)?;
        }
        let began = Instant::now();
        let (mut next, mut behind) = (began, 0);
        let mut delivery = Delivery::default();
        let ended = loop {
            if self.count.is_some_and(|count| server.frames() >= count) || stop.asked() {
                break Ok(());
            }
            if !source.is_live() {
                let now = Instant::now();
                if !stop.sleep_until(next) {
                    break Ok(());
                }
                if now > next + period {
                    behind += 1;
                    next = now;
                }
                next += period;
            }
            let sent = match source.next(&mut frame, &stop) {
                Ok(Some(captured)) => send(&mut server, captured, &frame, &mut delivery, &stop),
                Ok(None) => break Ok(()),
                Err(failure) => Err(failure),
            };
            if sent.is_err() {
                break sent;
            }
        };
        delivery.settle(&server, settle, &stop);
        let summary = Summary {
            frames: server.frames(),
            slice_bytes: server.slice(),
            seconds: began.elapsed().as_secs_f64(),
            behind,
            undelivered: delivery.undelivered,
            unviewed: delivery.unviewed,
            unknown: delivery.ends.len() as u64,
            datapath: server.publisher().datapath(),
            format: format.to_string(),
            stream: self.stream,
            source: source.told(),
        };
        drop(server);
        if let Some(told) = &summary.source {
            eprintln!("{told}");
        }
        eprintln!("{}", summary.line());
        if self.form.json {
            print_json(&summary)?;
        }
        ended?;
        match summary.unknown {
            0 => Ok(()),
            _ if stop.asked() => Ok(()),
            unknown => Err(Failure::Other(format!(
                "{unknown} frame(s) may not have reached all viewers, which took nothing for {}: look at what holds them up, or give \
                 them longer with --patience",
                humantime::format_duration(settle)
            ))),
        }
    }
}

impl Summary {
    fn line(&self) -> String {
        let others = counted([
            (self.undelivered, "undelivered to some viewer"),
            (self.unviewed, "without a viewer"),
            (self.unknown, "on their way at the end"),
        ]);
        format!(
            "{} frame(s) sent in {:.1} s, {} of them behind their time{others}",
            self.frames, self.seconds, self.behind
        )
    }
}

/// What became of frames.
#[derive(Debug, Default)]
struct Delivery {
    /// Slices sent, and of those the ones whose outcome has been looked at.
    emitted: u64,
    settled: u64,
    /// How many slices had been sent at the end of each frame that is not settled.
    ends: VecDeque<u64>,
    /// A slice of the first of them is undelivered.
    misses: bool,
    /// A slice of the first of them has had no viewer.
    alone: bool,
    undelivered: u64,
    unviewed: u64,
}

impl Delivery {
    /// A frame has been sent.
    fn frame(&mut self, outcome: impl Fn(Token) -> Outcome) {
        self.ends.push_back(self.emitted);
        self.look(outcome);
    }

    /// Counts frames in order, as far as their outcomes are known. Those of a frame with more slices than are
    /// remembered are taken for good.
    fn look(&mut self, outcome: impl Fn(Token) -> Outcome) {
        while let Some(end) = self.ends.front() {
            if self.settled >= *end {
                let [misses, alone] = [&mut self.misses, &mut self.alone].map(std::mem::take);
                self.undelivered += u64::from(misses);
                self.unviewed += u64::from(alone && !misses);
                self.ends.pop_front();
                continue;
            }
            match outcome(Token::from_number(self.settled)) {
                Outcome::Pending => return,
                Outcome::Sent | Outcome::Unknown => {}
                Outcome::NoSink => self.alone = true,
                // Late and their like: not sent to other nodes.
                _ => self.misses = true,
            }
            self.settled += 1;
        }
    }

    /// Waits until all outcomes are known, or for so long.
    fn settle(&mut self, server: &Server, within: Duration, stop: &Stop) {
        let source = server.publisher().source();
        source.flush();
        let began = Instant::now();
        let mut told = false;
        loop {
            self.look(|token| source.outcome(token));
            let waited = began.elapsed();
            let within = match stop.asked() {
                true => within.min(SETTLE_AT_SIGNAL),
                false => within,
            };
            if self.ends.is_empty() || waited >= within {
                return;
            }
            if waited >= TELL_AFTER && !std::mem::replace(&mut told, true) {
                eprintln!("waiting for viewers that do not have the last frames yet");
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Sends a frame whole, however long its clients and its launch times make it wait; or not if it is told to stop.
fn send(
    server: &mut Server,
    captured: takt_time::TaiTime,
    frame: &[u8],
    delivery: &mut Delivery,
    stop: &Stop,
) -> Result<(), Failure> {
    let copy = |offset: usize, memory: &mut [u8]| {
        memory.copy_from_slice(&frame[offset..offset + memory.len()]);
        delivery.emitted += 1;
    };
    let sent = server.fill(captured, Wait::Forever, copy);
    delivery.frame(|token| server.publisher().outcome(token));
    match sent {
        Ok(_) => Ok(()),
        // By a signal: one that asks for the end, or the terminal's new size, which costs this frame.
        Err(error) if error.is_interrupted() => Ok(()),
        Err(takt_streaming::Error::Topic(takt_messaging::Error::Channel(
            takt::Error::Disconnected,
        ))) => {
            if !stop.asked() {
                eprintln!("takt: the runtime went away: waiting for it");
                std::thread::sleep(LOOK_EVERY);
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn await_viewer(
    server: &Server,
    source: &mut dyn Source,
    wait: Duration,
    stop: &Stop,
) -> Result<(), Failure> {
    let until = Instant::now() + wait;
    loop {
        if stop.asked() {
            return Err(Failure::Other(
                "nobody views the stream yet, and nothing was sent: run `takt stream view` on it, or leave --wait out".into(),
            ));
        }
        match server.wait_client(Wait::For(LOOK_EVERY)) {
            Ok(_) => return Ok(()),
            Err(error) if error.is_timed_out() || error.is_interrupted() => {}
            Err(error) => return Err(error.into()),
        }
        source.look()?;
        if Instant::now() >= until {
            return Err(Failure::Other(format!(
                "nobody views the stream after {}: run `takt stream view` on it, or leave --wait out",
                humantime::format_duration(wait)
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_undelivered_with_any_of_its_slices_and_once() {
        let mut delivery = Delivery::default();
        let outcomes = [
            Outcome::Sent,
            Outcome::Sent,
            Outcome::Undelivered,
            Outcome::Undelivered,
            Outcome::NoSink,
            Outcome::Sent,
            Outcome::Pending,
        ];
        for end in [2, 4, 6, 8] {
            delivery.emitted = end;
            delivery.frame(|token| outcomes[token.number() as usize]);
        }
        let counted = (delivery.undelivered, delivery.settled, delivery.ends.len());
        assert_eq!(counted, (1, 6, 1));
        assert_eq!(delivery.unviewed, 1);
        delivery.look(|_| Outcome::Lost);
        assert_eq!((delivery.undelivered, delivery.ends.len()), (2, 0));
    }
}
