//! `takt bench throughput`: one-way streams between two hosts.

use clap::Args;
use takt_bench::experiment::{Experiment, Round, Variant};
use takt_bench::peers::programs::{Programs, System};
use takt_bench::peers::{Pair, Stream, tcp, udp_batch, xdp};
use takt_bench::takt::{Datapath, Form, Takt};

use super::common::{
    BenchError, Common, Measurement, TwoCores, baseline, hosts, lossy, of_loss, repairs, seconds,
};
use super::sinks::name;

/// The variant that ratios are taken to.
const BASELINE: &str = "UDP, sendmmsg";
/// The most that bare AF_XDP carries: one frame of an MTU of 1500 octets.
const MOST_IN_A_FRAME: u32 = 1500 - 20 - 8;
/// Messages to a system call of the peers that take several; Takt's application announces as many.
const BATCH: usize = 64;

/// What to measure.
#[derive(Debug, Args)]
pub struct Throughput {
    /// Bytes of each message
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [64, 1024, 8192], value_parser = clap::value_parser!(u32).range(8..=65_507))]
    sizes: Vec<u32>,
    /// Seconds to send in each run
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// So many applications receive, each all of it; by a daemon on each host alone
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    sinks: Vec<u32>,
    /// A switch joins the hosts and loses this share of the packets at random, such as 1%; 0% for the same without loss
    #[arg(long, value_name = "SHARE", value_parser = crate::lab::loss_ppm)]
    loss: Option<u32>,
    #[command(flatten)]
    common: Common,
}

const METHOD: &str = "\
Two hosts in network namespaces, joined by one veth cable; the sender runs on one core, the receiver on \
another, a daemon's lane on the core of its host's application. The sender sends as fast as it is let; the \
receiver counts, and rates are those of the receiver. UDP sends and receives 64 messages with each \
sendmmsg/recvmmsg, TCP writes as many at once, AF_XDP 64 frames; Takt's application announces 64 at a time; zenoh and ZeroMQ batch as \
they choose, over TCP, which waits instead of losing.";

impl Throughput {
    /// Measures, prints and reports.
    pub fn run(self) -> Result<(), BenchError> {
        let cores = TwoCores::choose()?;
        let takt = Takt::this_program()?;
        let reliable = takt.reliable();
        let duration = seconds(self.seconds)?;
        let lab = hosts(&lossy(self.loss))?;
        let programs = self.common.programs();
        let pair = cores.pair(lab.host(0), lab.host(1));
        let mut measurement = Measurement::begin(
            &self.common,
            "throughput",
            "Throughput between two hosts",
            METHOD,
        )?;
        for &size in &self.sizes {
            let stream = Stream {
                payload: size as usize,
                batch: BATCH,
                duration,
            };
            if !self.sinks.is_empty() {
                self.by_sinks(&mut measurement, &takt, &pair, &stream)?;
                continue;
            }
            let variants = variants([&takt, &reliable], programs.as_ref(), pair, stream, size);
            let variants = repairs(variants, self.loss);
            measurement.run(Experiment {
                name: "Stream between two hosts".into(),
                setting: format!("{size} B{}", of_loss(self.loss)),
                method: String::new(),
                rounds: self.common.rounds,
                baseline: Some(baseline(self.loss, BASELINE)),
                variants,
            })?;
        }
        measurement.finish()
    }

    fn by_sinks(
        &self,
        measurement: &mut Measurement,
        takt: &Takt,
        pair: &Pair<'_>,
        stream: &Stream,
    ) -> Result<(), BenchError> {
        for (form, path) in [
            ("daemon, slow (UDP)", Datapath::Udp),
            ("daemon, fast (AF_XDP)", Datapath::Xdp),
        ] {
            let variants = self.sinks.iter().map(|&sinks| {
                Variant::new(name(sinks), move |_: &Round| {
                    Ok(takt.fan_out(path, pair, stream, sinks)?)
                })
            });
            measurement.run(Experiment {
                name: "What each sink receives on average".into(),
                setting: format!("{} B, {form}", stream.payload),
                method: "The sinks are applications of their own, all on the receiving host's core with its lane.".into(),
                rounds: self.common.rounds,
                baseline: self.sinks.first().map(|&sinks| name(sinks)),
                variants: variants.collect(),
            })?;
        }
        Ok(())
    }
}

fn variants<'a>(
    [takt, reliable]: [&'a Takt; 2],
    programs: Option<&'a Programs>,
    pair: Pair<'a>,
    stream: Stream,
    size: u32,
) -> Vec<Variant<'a>> {
    let mut variants = vec![Variant::new(BASELINE, move |_: &Round| {
        Ok(udp_batch::stream(&pair, &stream)?)
    })];
    variants.push(Variant::new("TCP", move |_: &Round| {
        Ok(tcp::stream(&pair, &stream)?)
    }));
    if size <= MOST_IN_A_FRAME {
        variants.push(Variant::new("AF_XDP, bare", move |_: &Round| {
            Ok(xdp::stream(&pair, &stream)?)
        }));
    }
    let (embedded, daemon) = (Form::Embedded, Form::Daemon);
    for (name, takt, form, path) in [
        ("Takt embedded, UDP", takt, embedded, Datapath::Udp),
        (
            "Takt embedded, UDP, reliable",
            reliable,
            embedded,
            Datapath::Udp,
        ),
        ("Takt embedded, AF_XDP", takt, embedded, Datapath::Xdp),
        (
            "Takt embedded, AF_XDP, reliable",
            reliable,
            embedded,
            Datapath::Xdp,
        ),
        ("Takt daemon, slow (UDP)", takt, daemon, Datapath::Udp),
        (
            "Takt daemon, slow (UDP), reliable",
            reliable,
            daemon,
            Datapath::Udp,
        ),
        ("Takt daemon, fast (AF_XDP)", takt, daemon, Datapath::Xdp),
        (
            "Takt daemon, fast (AF_XDP), reliable",
            reliable,
            daemon,
            Datapath::Xdp,
        ),
    ] {
        variants.push(Variant::new(name, move |_: &Round| {
            Ok(takt.stream(form, path, &pair, &stream)?)
        }));
    }
    if let Some(programs) = programs {
        for (name, system) in [("zenoh", System::Zenoh), ("ZeroMQ", System::ZeroMq)] {
            variants.push(Variant::new(name, move |_: &Round| {
                Ok(programs.stream(system, &pair, &stream)?)
            }));
        }
    }
    variants
}
