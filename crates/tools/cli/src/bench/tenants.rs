//! `takt bench tenants`: what a hostile tenant does to the departures of others.

use std::time::Duration;

use clap::Args;
use takt_bench::experiment::{Experiment, Round, Sample, Variant};
use takt_bench::isochronous::run::{self, Flow};
use takt_bench::isochronous::tenants;
use takt_bench::statistics::Latencies;
use takt_bench::takt::Takt;

use super::common::{BenchError, Common, Measurement, TwoCores, check_preload, hosts, seconds};

const RATE: u64 = 1_000_000_000;
const PERIOD: Duration = Duration::from_millis(1);
const SIZE: usize = 256;

/// What to measure.
#[derive(Debug, Args)]
pub struct Tenants {
    /// Seconds of each run
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

const METHOD: &str = "\
Three containers on one node, each a tenant of its runtime, all under the preload. Two send a datagram of 256 B in every \
millisecond with a launch time, half a period ahead, the one a quarter of a period after the other; runtime and talkers are real-time threads on one core. The third one \
is not there, or floods in every traffic class, from the other core and without a limit of its rate: all launch times equal, a \
minute and an hour ahead, past, negative, of the year 2300. The departure error is the two talkers' software time stamps \
against their launch times.";

impl Tenants {
    /// Measures, prints and reports.
    pub fn run(self) -> Result<(), BenchError> {
        seconds(self.seconds)?;
        let cores = TwoCores::choose()?;
        let takt = Takt::this_program()?;
        check_preload()?;
        let lab = hosts(&run::lab(RATE))?;
        let flow = Flow {
            size: SIZE,
            period: PERIOD,
            count: (self.seconds / PERIOD.as_secs_f64()).max(10.0) as u32,
            load: 0,
        };
        let (takt, lab) = (&takt, &lab);
        let variants =
            [("alone", false), ("beside a hostile tenant", true)].map(|(name, hostile)| {
                Variant::new(name, move |_: &Round| {
                    let sent = tenants::run(takt, lab, hostile, &flow, (cores.near, cores.far))?;
                    let mut departure = Latencies::new();
                    sent.iter()
                        .for_each(|sent| departure.merge(&sent.departure));
                    let mut sample = Sample::from(departure);
                    let total =
                        |part: fn(&tenants::Sent) -> u32| sent.iter().map(part).sum::<u32>();
                    let mut figure =
                        |name: &str, value| sample.figures.insert(name.to_owned(), value);
                    figure("sent", f64::from(total(|sent| sent.sent)));
                    figure("told as late", f64::from(total(|sent| sent.missed)));
                    Ok(sample)
                })
            });
        let mut measurement = Measurement::begin(
            &self.common,
            "tenants",
            "Talkers beside a hostile tenant",
            METHOD,
        )?;
        measurement.run(Experiment {
            name: "Absolute departure error".into(),
            setting: format!("{SIZE} B, two talkers"),
            method: String::new(),
            rounds: self.common.rounds,
            baseline: Some("alone".into()),
            variants: variants.into(),
        })?;
        measurement.finish()
    }
}
