//! `takt bench sends`: what a send costs the program that makes it.

use std::time::Duration;

use clap::Args;
use takt_bench::experiment::{Experiment, Round, Sample, Variant};
use takt_bench::isochronous::run::{self, Flow};
use takt_bench::isochronous::sends::{self, Carrier};
use takt_bench::reservations::hogs::Hogs;
use takt_bench::takt::Takt;

use super::common::{BenchError, Common, Measurement, TwoCores, check_preload, hosts, seconds};

const RATE: u64 = 1_000_000_000;
const PERIOD: Duration = Duration::from_micros(500);
const SIZE: usize = 256;

/// What to measure.
#[derive(Debug, Args)]
pub struct Sends {
    /// Seconds of each run
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

const METHOD: &str = "\
A program without privileges, in the ordinary scheduling class, sends a datagram of 256 B every 500 µs from a container of Flannel's network: by the \
kernel, which carries it through its bridge and VXLAN within the call; under the preload with launch times; and under the preload with none \
(--all). The time is that of the call sendmsg, as the program sees it. The runtime's lane is a real-time thread on the other core that \
sleeps in between, or one that never sleeps. A wake-up alone is the write to an eventfd that wakes a thread on the other core, without Takt. \
Beside it is nobody, or a thread on each core that wants all the time there is.";

impl Sends {
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
            count: (self.seconds / PERIOD.as_secs_f64()).max(100.0) as u32,
            load: 0,
        };
        let (takt, lab, flow) = (&takt, &lab, &flow);
        let mut measurement =
            Measurement::begin(&self.common, "sends", "What a send takes", METHOD)?;
        for (setting, neighbours) in [("alone", 0), ("beside busy neighbours", 2)] {
            let mut variants = Vec::from(Carrier::ALL.map(|carrier| {
                Variant::new(carrier.name(), move |_: &Round| {
                    let hogs = Hogs::start(neighbours)?;
                    let sent = sends::run(takt, lab, carrier, flow, (cores.near, cores.far))?;
                    drop(hogs);
                    let mut sample = Sample::from(sent.calls);
                    let told = f64::from(sent.missed);
                    sample.figures.insert("told as late".to_owned(), told);
                    Ok(sample)
                })
            }));
            variants.push(Variant::new("a wake-up alone", move |_: &Round| {
                let hogs = Hogs::start(neighbours)?;
                let calls = sends::wakes(flow, (cores.near, cores.far))?;
                drop(hogs);
                Ok(Sample::from(calls))
            }));
            measurement.run(Experiment {
                name: "Time of a send".into(),
                setting: format!("{SIZE} B, {setting}"),
                method: String::new(),
                rounds: self.common.rounds,
                baseline: Some(Carrier::Kernel.name().into()),
                variants,
            })?;
        }
        measurement.finish()
    }
}
