//! `takt bench topics`: messaging beside other messaging systems (naaas-thesis-2024, figure 7.15).

use clap::Args;
use takt_bench::experiment::{Experiment, Round, Variant};
use takt_bench::peers::programs::{Programs, System};
use takt_bench::peers::{Pair, RoundTrips, Stream};
use takt_bench::takt::{Datapath, Form, Takt};
use takt_lab::LabConfig;

use super::common::{BenchError, Common, Idle, Measurement, TwoCores, hosts, seconds};

/// The variant that ratios are taken to.
const BASELINE: &str = "ZeroMQ";
/// Messages that Takt's application announces at a time.
const BATCH: usize = 64;

/// What to measure.
#[derive(Debug, Args)]
pub struct Topics {
    /// Bytes of each message
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [64, 1024, 8192], value_parser = clap::value_parser!(u32).range(16..=65_507))]
    sizes: Vec<u32>,
    /// Round trips of each run; a tenth more warm up
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Seconds to send in each run of a stream
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

const METHOD: &str = "\
Two hosts in network namespaces, joined by one veth cable; the publisher on one core, the subscriber on \
another, a daemon's lane on the core of its host's application. Round trips: a message is published once the echo of \
the one before has come, with the cores kept awake. Streams: messages are published as fast as they are taken, and \
rates are those of the subscriber. Takt, ZeroMQ, zenoh and Cyclone DDS wait in blocking calls; Aeron polls, with its media driver in \
the application's thread. ZeroMQ (REQ/REP, PUB/SUB) and zenoh run over TCP, Cyclone DDS and Aeron over UDP; ZeroMQ drops above \
its high-water mark, zenoh, Aeron and reliable DDS wait.";

/// A part of the experiment: round trips or streams of one size.
#[derive(Clone, Copy)]
enum Part {
    Trips(RoundTrips),
    Stream(Stream),
}

impl Topics {
    /// Measures, prints and reports.
    pub fn run(self) -> Result<(), BenchError> {
        let cores = TwoCores::choose()?;
        let takt = Takt::this_program()?.topics();
        let reliable = takt.reliable();
        let duration = seconds(self.seconds)?;
        let lab = hosts(&LabConfig::default())?;
        let programs = self.common.programs();
        let pair = cores.pair(lab.host(0), lab.host(1));
        let title = "Publish and subscribe between two hosts";
        let mut measurement = Measurement::begin(&self.common, "topics", title, METHOD)?;
        for &size in &self.sizes {
            let payload = size as usize;
            let trips = Part::Trips(RoundTrips {
                payload,
                warm_up: self.count / 10,
                count: self.count,
            });
            let stream = Part::Stream(Stream {
                payload,
                batch: BATCH,
                duration,
            });
            for (name, part) in [("Round trip by topic", trips), ("Stream by topic", stream)] {
                let _awake = match part {
                    Part::Trips(_) => Idle::KeptAwake.hold()?,
                    Part::Stream(_) => None,
                };
                measurement.run(Experiment {
                    name: name.into(),
                    setting: format!("{size} B"),
                    method: String::new(),
                    rounds: self.common.rounds,
                    baseline: Some(BASELINE.into()),
                    variants: variants([&takt, &reliable], programs.as_ref(), pair, part),
                })?;
            }
        }
        measurement.finish()
    }
}

fn variants<'a>(
    [takt, reliable]: [&'a Takt; 2],
    programs: Option<&'a Programs>,
    pair: Pair<'a>,
    part: Part,
) -> Vec<Variant<'a>> {
    let mut variants = Vec::new();
    for (form, path, name) in [
        (Form::Embedded, Datapath::Udp, "Takt embedded, UDP"),
        (Form::Embedded, Datapath::Xdp, "Takt embedded, AF_XDP"),
        (Form::Daemon, Datapath::Udp, "Takt daemon, slow (UDP)"),
        (Form::Daemon, Datapath::Xdp, "Takt daemon, fast (AF_XDP)"),
    ] {
        for (takt, how) in [(takt, ""), (reliable, ", reliable")] {
            let run = move |_: &Round| match &part {
                Part::Trips(trips) => Ok(takt.round_trips(form, path, &pair, trips)?),
                Part::Stream(stream) => Ok(takt.stream(form, path, &pair, stream)?),
            };
            variants.push(Variant::new(format!("{name}{how}"), run));
        }
    }
    let Some(programs) = programs else {
        return variants;
    };
    for (name, system) in [
        ("Cyclone DDS", System::CycloneDds { reliable: false }),
        (
            "Cyclone DDS, reliable",
            System::CycloneDds { reliable: true },
        ),
        (BASELINE, System::ZeroMq),
        ("zenoh", System::Zenoh),
        ("Aeron", System::Aeron),
    ] {
        let run = move |_: &Round| match &part {
            Part::Trips(trips) => Ok(programs.round_trips(system, &pair, trips)?),
            Part::Stream(stream) => Ok(programs.stream(system, &pair, stream)?),
        };
        variants.push(Variant::new(name, run));
    }
    variants
}
