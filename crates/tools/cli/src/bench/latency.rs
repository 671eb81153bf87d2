//! `takt bench latency`: round trips between two hosts.

use clap::Args;
use takt_bench::experiment::{Experiment, Round, Variant};
use takt_bench::peers::programs::{Programs, System};
use takt_bench::peers::{Pair, RoundTrips, tcp, udp, xdp};
use takt_bench::takt::{Datapath, Form, Takt};
use takt_lab::Wiring;

use super::common::{
    BenchError, Common, Idle, Measurement, TwoCores, baseline, hosts, lossy, of_loss, repairs,
};

/// The variant that ratios are taken to.
const BASELINE: &str = "UDP, blocking";

/// What to measure.
#[derive(Debug, Args)]
pub struct Latency {
    /// Bytes of each message
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..))]
    size: u32,
    /// Round trips of each run; a tenth more warm up
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Instead of round trips: where a message's time goes on its way between two applications, by stamps along it, with a
    /// daemon on each host; at most 5,000 messages, one in each millisecond
    #[arg(long)]
    parts: bool,
    /// A switch joins the hosts and loses this share of the packets at random, such as 1%: what repairs it is measured; 0% for
    /// the same switch without loss
    #[arg(long, value_name = "SHARE", conflicts_with = "parts", value_parser = crate::lab::loss_ppm)]
    loss: Option<u32>,
    /// Beside a program on each core that never sleeps, and gets its share of the core
    #[arg(long, conflicts_with = "parts")]
    busy: bool,
    #[command(flatten)]
    common: Common,
}

/// Messages of a run with `--parts`.
const MOST_PARTS: u32 = 5_000;

const PARTS: &str = "\
Two hosts in network namespaces, joined by a switch (a bridge), a daemon on each; the near side runs on one core, the far side \
on another. The near application sends a message in each millisecond, the far one waits in blocking calls. Stamps, all by the \
machine's CLOCK_TAI: before `emit`; when the sender's lane took the message; when the frame was at the switch (a capture, \
by the kernel's stamp); when the receiver's lane had it whole (the median that its daemon tells, rounded up by a sixteenth at most); after \
`consume`. Parts are medians.";

const METHOD: &str = "\
Two hosts in network namespaces, joined by one veth cable; the near side runs on one core, the far side on \
another, a daemon's lane on the core of its host's application. A message is sent once the answer to the one \
before has come; the near side takes the time by its own clock. Takt's applications wait in blocking calls. \
Everything is measured twice: as the machine is, and with the cores kept awake by a spinner of the idle class \
on each, because a core that halts adds its wake-up to every blocking figure; with --busy instead beside a spinner of the usual class on each.";

impl Latency {
    /// Measures, prints and reports.
    pub fn run(self) -> Result<(), BenchError> {
        let cores = TwoCores::choose()?;
        let takt = Takt::this_program()?;
        let (reliable, topics) = (takt.reliable(), takt.topics());
        let mut config = lossy(self.loss);
        if self.parts {
            // AF_XDP takes frames before they can be captured: that is done at the switch.
            config.wiring = Wiring::Bridge;
        }
        let lab = hosts(&config)?;
        let programs = self.common.programs();
        let pair = cores.pair(lab.host(0), lab.host(1));
        let trips = RoundTrips {
            payload: self.size as usize,
            warm_up: self.count / 10,
            count: self.count,
        };
        if self.parts {
            let count = self.count.min(MOST_PARTS);
            let mut measurement = Measurement::begin(
                &self.common,
                "parts",
                "Parts of a message's way between two hosts",
                PARTS,
            )?;
            for idle in Idle::BOTH {
                let _awake = idle.hold()?;
                let variant = |name: &str, path| {
                    let takt = &takt;
                    Variant::new(name, move |_: &Round| {
                        Ok(takt.parts(path, &pair, self.size, count)?)
                    })
                };
                measurement.run(Experiment {
                    name: "One way between two hosts".into(),
                    setting: format!("{} B, {}", self.size, idle.told()),
                    method: String::new(),
                    rounds: self.common.rounds,
                    baseline: None,
                    variants: vec![
                        variant("Takt daemon, slow (UDP)", Datapath::Udp),
                        variant("Takt daemon, fast (AF_XDP)", Datapath::Xdp),
                    ],
                })?;
            }
            return measurement.finish();
        }
        let mut measurement =
            Measurement::begin(&self.common, "latency", "Latency between two hosts", METHOD)?;
        let idles = match self.busy {
            true => &[Idle::Busy][..],
            false => &Idle::BOTH,
        };
        for idle in idles {
            let _awake = idle.hold()?;
            measurement.run(Experiment {
                name: "Round trip between two hosts".into(),
                setting: format!("{} B, {}{}", self.size, idle.told(), of_loss(self.loss)),
                method: String::new(),
                rounds: self.common.rounds,
                baseline: Some(baseline(self.loss, BASELINE)),
                variants: repairs(
                    variants([&takt, &reliable, &topics], programs.as_ref(), pair, trips),
                    self.loss,
                ),
            })?;
        }
        measurement.finish()
    }
}

fn variants<'a>(
    [takt, reliable, topics]: [&'a Takt; 3],
    programs: Option<&'a Programs>,
    pair: Pair<'a>,
    trips: RoundTrips,
) -> Vec<Variant<'a>> {
    let mut variants = vec![
        Variant::new(BASELINE, move |_: &Round| {
            Ok(udp::blocking_round_trips(&pair, &trips)?)
        }),
        Variant::new("UDP, polling", move |_: &Round| {
            Ok(udp::polling_round_trips(&pair, &trips)?)
        }),
        Variant::new("TCP", move |_: &Round| Ok(tcp::round_trips(&pair, &trips)?)),
        Variant::new("AF_XDP, bare", move |_: &Round| {
            Ok(xdp::round_trips(&pair, &trips)?)
        }),
    ];
    let (embedded, daemon) = (Form::Embedded, Form::Daemon);
    for (name, takt, form, path) in [
        ("Takt embedded, UDP", takt, embedded, Datapath::Udp),
        (
            "Takt embedded, UDP, by topic",
            topics,
            embedded,
            Datapath::Udp,
        ),
        (
            "Takt embedded, UDP, reliable",
            reliable,
            embedded,
            Datapath::Udp,
        ),
        ("Takt embedded, AF_XDP", takt, embedded, Datapath::Xdp),
        (
            "Takt embedded, AF_XDP, by topic",
            topics,
            embedded,
            Datapath::Xdp,
        ),
        (
            "Takt embedded, AF_XDP, reliable",
            reliable,
            embedded,
            Datapath::Xdp,
        ),
        ("Takt daemon, slow (UDP)", takt, daemon, Datapath::Udp),
        (
            "Takt daemon, slow (UDP), by topic",
            topics,
            daemon,
            Datapath::Udp,
        ),
        (
            "Takt daemon, slow (UDP), reliable",
            reliable,
            daemon,
            Datapath::Udp,
        ),
        ("Takt daemon, fast (AF_XDP)", takt, daemon, Datapath::Xdp),
        (
            "Takt daemon, fast (AF_XDP), by topic",
            topics,
            daemon,
            Datapath::Xdp,
        ),
        (
            "Takt daemon, fast (AF_XDP), reliable",
            reliable,
            daemon,
            Datapath::Xdp,
        ),
    ] {
        variants.push(Variant::new(name, move |_: &Round| {
            Ok(takt.round_trips(form, path, &pair, &trips)?)
        }));
    }
    if let Some(programs) = programs {
        for (name, system) in [("zenoh", System::Zenoh), ("ZeroMQ", System::ZeroMq)] {
            variants.push(Variant::new(name, move |_: &Round| {
                Ok(programs.round_trips(system, &pair, &trips)?)
            }));
        }
    }
    variants
}
