//! `takt bench local`: delivery within one host.

use clap::Args;
use takt_bench::experiment::{Experiment, Round, Variant};
use takt_bench::outcome::Outcome;
use takt_bench::peers::RoundTrips;
use takt_bench::peers::programs::{Programs, System};
use takt_bench::takt::local::{Cores, Domain};
use takt_bench::takt::{Form, Takt};
use takt_lab::{Host, LabConfig};

use super::common::{BenchError, Common, Idle, Measurement, TwoCores, hosts};

const APPLICATIONS: &str = "Takt daemon, two applications";
const DOMAIN: &str = "Takt daemon, two applications of one domain";
const SESSION: &str = "Takt daemon, one application";
const EMBEDDED: &str = "Takt embedded, one application";
const ICEORYX2: &str = "iceoryx2";

/// What to measure.
#[derive(Debug, Args)]
pub struct Local {
    /// Bytes of each message
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..))]
    size: u32,
    /// Messages of each run; a tenth more warm up
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    #[command(flatten)]
    common: Common,
}

const METHOD: &str = "\
One host. Two applications run on a core each, the daemon's lane on the receiver's; a single application runs \
on one core, the lane on the other. Applications of one domain do without it. One way: each message carries the time by a clock that both sides share, \
and is sent once the one before is acknowledged. Takt's applications wait in blocking calls, iceoryx2's poll. \
Everything is measured twice: as the machine is, and with the cores kept awake by a spinner of the idle class \
on each.";

impl Local {
    /// Measures, prints and reports.
    pub fn run(self) -> Result<(), BenchError> {
        let cores = TwoCores::choose()?;
        let takt = Takt::this_program()?;
        let lab = hosts(&LabConfig::default())?;
        let programs = self.common.programs();
        let host = lab.host(0);
        let trips = RoundTrips {
            payload: self.size as usize,
            warm_up: self.count / 10,
            count: self.count,
        };
        let mut measurement =
            Measurement::begin(&self.common, "local", "Delivery within one host", METHOD)?;
        for idle in Idle::BOTH {
            let _awake = idle.hold()?;
            let setting = format!("{} B, {}", self.size, idle.told());
            let experiment = |name: &str, variants| Experiment {
                name: name.into(),
                setting: setting.clone(),
                method: String::new(),
                rounds: self.common.rounds,
                baseline: programs.as_ref().map(|_| ICEORYX2.into()),
                variants,
            };
            let one_way = one_way(&takt, programs.as_ref(), host, cores, trips);
            let finding = lane_hop(measurement.run(experiment("One way", one_way))?);
            if let Some(finding) = finding {
                measurement.find(&finding);
            }
            let round_trips = round_trips(&takt, programs.as_ref(), host, cores, trips);
            // Within one application there is nobody to answer.
            if self.common.wants_any(&round_trips) {
                measurement.run(experiment("Round trip", round_trips))?;
            }
        }
        measurement.finish()
    }
}

fn one_way<'a>(
    takt: &'a Takt,
    programs: Option<&'a Programs>,
    host: &'a Host,
    cores: TwoCores,
    trips: RoundTrips,
) -> Vec<Variant<'a>> {
    let TwoCores { near, far } = cores;
    let on = Cores {
        near,
        far,
        lane: far,
    };
    let mut variants = vec![
        Variant::new(APPLICATIONS, move |_: &Round| {
            Ok(takt.local_one_way(Domain::None, host, on, &trips)?)
        }),
        Variant::new(DOMAIN, move |_: &Round| {
            Ok(takt.local_one_way(Domain::One, host, on, &trips)?)
        }),
        Variant::new(SESSION, move |_: &Round| {
            Ok(takt.within_session(Form::Daemon, host, on, &trips)?)
        }),
        Variant::new(EMBEDDED, move |_: &Round| {
            Ok(takt.within_session(Form::Embedded, host, on, &trips)?)
        }),
    ];
    if let Some(programs) = programs {
        variants.push(Variant::new(ICEORYX2, move |_: &Round| {
            Ok(programs.iceoryx2_one_way(&cores.pair(host, host), &trips)?)
        }));
    }
    variants
}

fn round_trips<'a>(
    takt: &'a Takt,
    programs: Option<&'a Programs>,
    host: &'a Host,
    cores: TwoCores,
    trips: RoundTrips,
) -> Vec<Variant<'a>> {
    let TwoCores { near, far } = cores;
    let on = Cores {
        near,
        far,
        lane: far,
    };
    let mut variants = vec![
        Variant::new(APPLICATIONS, move |_: &Round| {
            Ok(takt.local_round_trips(Domain::None, host, on, &trips)?)
        }),
        Variant::new(DOMAIN, move |_: &Round| {
            Ok(takt.local_round_trips(Domain::One, host, on, &trips)?)
        }),
    ];
    if let Some(programs) = programs {
        variants.push(Variant::new(ICEORYX2, move |_: &Round| {
            Ok(programs.round_trips(System::Iceoryx2, &cores.pair(host, host), &trips)?)
        }));
    }
    variants
}

/// What the way over a lane costs, by the medians; `None` when the ways to compare were not all measured.
fn lane_hop(outcome: &Outcome) -> Option<String> {
    let median = |name: &str| {
        let mut variants = outcome.variants.iter();
        let found = variants.find(|variant| variant.name == name)?;
        Some(found.summary.latency_ns?.p50 / 1e3)
    };
    let direct = median(ICEORYX2).map_or_else(String::new, |direct| {
        format!(" iceoryx2, which has no lane, takes {direct:.2} µs between two applications.")
    });
    Some(format!(
        "The lane ({}): from emit to consume, a message over a lane on a core of its own takes {:.2} µs; {:.2} µs \
         if the waiting application drives the lane itself; {:.2} µs between two applications where the lane \
         shares the receiver's core.{direct}",
        outcome.setting,
        median(SESSION)?,
        median(EMBEDDED)?,
        median(APPLICATIONS)?,
    ))
}
