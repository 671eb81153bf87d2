//! `takt stream bench`: thesis figure 7.16.

use std::time::Duration;

use clap::Args;
use takt_bench::experiment::{Experiment, Round, Variant};
use takt_bench::peers::{Pair, Stream, gstreamer, sendfile};
use takt_bench::takt::control::Video;
use takt_bench::takt::{Datapath, Form, Takt};
use takt_lab::{LabConfig, Wiring};

use crate::bench::{BenchError, Common, Measurement, TwoCores, hosts, seconds};
use crate::failure::Failure;

const HELP: &str = "\
Frames go from one lab host to another as fast as the receiver takes them, and each is compared with what was sent. Needs
root. Takt's streams are reliable; beside them `sendfile` over TCP, and GStreamer's RTP, which loses what is not taken in time. With --control it is measured instead what HD at 30 frames a second does to \
a message of 128 B in each millisecond on the same link of 1 Gb/s: in bursts, and spread.

Examples:
  sudo takt stream bench
  sudo takt stream bench --control --seconds 10
  sudo takt stream bench --sizes hd,4k --rounds 3 --seconds 5";

/// The variant that ratios are taken to.
const BASELINE: &str = "sendfile, TCP";

/// The pictures of naaas-thesis-2024, table 7.3, as raw RGB: width and height.
const PICTURES: [(&str, &str, (u32, u32)); 5] = [
    ("hd", "HD, 2.76 MB", (1280, 720)),
    ("fhd", "Full HD, 6.22 MB", (1920, 1080)),
    ("2k", "2K, 11.6 MB", (2560, 1512)),
    ("4k", "4K, 24.88 MB", (3840, 2160)),
    ("8k", "8K, 99.53 MB", (7680, 4320)),
];

const METHOD: &str = "\
Two hosts in network namespaces, joined by one veth cable; the camera runs on one core, the viewer on another, a daemon's \
lane on the core of its host's application. The camera sends raw frames as fast as it is let; the viewer puts each together, \
compares all its bytes with those sent, and takes the time from before the frame was sent until it was whole. Takt's streams \
are reliable, in slices of 32 KiB; sendfile sends from the kernel's memory over TCP. GStreamer sends RTP of raw video over UDP, as \
fast as its pipeline goes; frames that did not arrive as they were sent are lost.";

/// The control flow without a video.
const ALONE: &str = "no video";
/// The links' rate in bit/s, and the video's frames a second.
const RATE: u64 = 1_000_000_000;
const FRAME_RATE: f64 = 30.0;

const METHOD_CONTROL: &str = "\
Two hosts in network namespaces, joined by a switch with links of 1 Gb/s (token buckets at the switch). A message of 128 B goes from one to the other in each \
millisecond, best effort and in the same class as all; beside it raw frames of HD, 30 a second (663 Mb/s), reliable, in bursts or \
spread over their period. Camera, controller and the lane of their daemon share one core, the viewer, the receiver and theirs another.";

/// Measures streams beside sendfile over TCP.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Bench {
    /// Which pictures
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "hd,fhd,2k,4k,8k", value_parser = ["hd", "fhd", "2k", "4k", "8k"])]
    sizes: Vec<String>,
    /// How long messages of a control flow are under way beside a video
    #[arg(long, conflicts_with = "sizes")]
    control: bool,
    /// Seconds to send in each run
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

impl Bench {
    pub fn run(self) -> Result<(), Failure> {
        self.measure().map_err(BenchError::into)
    }

    fn measure(self) -> Result<(), BenchError> {
        let duration = seconds(self.seconds)?;
        let cores = TwoCores::choose()?;
        let takt = Takt::this_program()?.reliable();
        let lab = hosts(&match self.control {
            true => LabConfig {
                rate: Some(RATE),
                wiring: Wiring::Bridge,
                ..LabConfig::default()
            },
            false => LabConfig::default(),
        })?;
        let pair = cores.pair(lab.host(0), lab.host(1));
        if self.control {
            return self.beside_video(&takt, pair, duration);
        }
        let title = "Raw frames between two hosts";
        let mut measurement = Measurement::begin(&self.common, "stream", title, METHOD)?;
        let wanted = PICTURES
            .iter()
            .filter(|(name, ..)| self.sizes.iter().any(|size| size == name));
        for &(_, setting, size) in wanted {
            let stream = Stream {
                payload: 3 * size.0 as usize * size.1 as usize,
                batch: 1,
                duration,
            };
            measurement.run(Experiment {
                name: "Frames between two hosts".into(),
                setting: setting.into(),
                method: String::new(),
                rounds: self.common.rounds,
                baseline: Some(BASELINE.into()),
                variants: variants(&takt, pair, stream, size),
            })?;
        }
        measurement.finish()
    }
}

impl Bench {
    fn beside_video(
        &self,
        takt: &Takt,
        pair: Pair<'_>,
        duration: Duration,
    ) -> Result<(), BenchError> {
        let title = "A control flow beside a video";
        let mut measurement =
            Measurement::begin(&self.common, "stream-control", title, METHOD_CONTROL)?;
        let (_, _, size) = PICTURES[0];
        let video = |spread| Video {
            size: 3 * size.0 as usize * size.1 as usize,
            rate: FRAME_RATE,
            spread,
        };
        for (setting, path) in [
            ("daemon, slow (UDP)", Datapath::Udp),
            ("daemon, fast (AF_XDP)", Datapath::Xdp),
        ] {
            let variants = [
                (ALONE, None),
                ("video in bursts", Some(video(false))),
                ("video, spread", Some(video(true))),
            ];
            measurement.run(Experiment {
                name: "One-way delay of 128 B in each millisecond".into(),
                setting: setting.into(),
                method: String::new(),
                rounds: self.common.rounds,
                baseline: Some(ALONE.into()),
                variants: variants
                    .into_iter()
                    .map(|(name, video)| {
                        Variant::new(name, move |_: &Round| {
                            Ok(takt.control(Form::Daemon, path, &pair, duration, video)?)
                        })
                    })
                    .collect(),
            })?;
        }
        measurement.finish()
    }
}

fn variants<'a>(
    takt: &'a Takt,
    pair: Pair<'a>,
    stream: Stream,
    size: (u32, u32),
) -> Vec<Variant<'a>> {
    let mut variants = vec![Variant::new(BASELINE, move |_: &Round| {
        Ok(sendfile::stream(&pair, &stream)?)
    })];
    variants.push(Variant::new("GStreamer, RTP", move |_: &Round| {
        Ok(gstreamer::stream(&pair, &stream, size)?)
    }));
    for (name, form, path) in [
        ("Takt embedded, UDP", Form::Embedded, Datapath::Udp),
        ("Takt embedded, AF_XDP", Form::Embedded, Datapath::Xdp),
        ("Takt daemon, slow (UDP)", Form::Daemon, Datapath::Udp),
        ("Takt daemon, fast (AF_XDP)", Form::Daemon, Datapath::Xdp),
    ] {
        variants.push(Variant::new(name, move |_: &Round| {
            Ok(takt.frames(form, path, &pair, &stream)?)
        }));
    }
    variants
}
