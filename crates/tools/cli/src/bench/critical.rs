//! `takt bench critical`: a critical flow beside low-importance traffic (naaas-thesis-2024, figures 7.3 and 7.4).

use clap::Args;
use takt_bench::experiment::{Experiment, Round, Variant};
use takt_bench::pace::Steady;
use takt_bench::peers::{Beside, Critical};
use takt_bench::takt::{Datapath, Form, Takt};
use takt_lab::{LabConfig, Wiring};

use super::common::{BenchError, Common, Measurement, TwoCores, hosts, seconds};

/// The variant that ratios are taken to, if it is there.
const BASELINE: &str = "Cyclone DDS, reliable";
/// The links' rate in bit/s.
const RATE: u64 = 1_000_000_000;

/// What to measure.
#[derive(Debug, Args)]
pub struct CriticalFlow {
    /// Bytes of each message of the critical flow
    #[arg(long, value_name = "BYTES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(16..=1400))]
    size: u32,
    /// Its messages a second
    #[arg(long, value_name = "N", default_value_t = 60_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: u32,
    /// Seconds to send them
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

const METHOD: &str = "\
Two hosts in network namespaces, joined by a switch with links of 1 Gb/s (token buckets at the switch, one queue). A critical flow of short \
messages goes from one to the other, reliable and at a steady rate, and is complete when the last message is there; beside it messages of 1 KiB go the \
same way, best effort and as fast as they are taken, all the time or in bursts of 1 s after pauses of 2 s. Each flow has a publisher and a subscriber of its own. All \
publishers share one core, with the lane of their daemon, all subscribers another. Takt gives the critical flow a traffic class above the other's.";

impl CriticalFlow {
    /// Measures, prints and reports.
    pub fn run(self) -> Result<(), BenchError> {
        let cores = TwoCores::choose()?;
        let takt = Takt::this_program()?;
        let flow = Critical {
            payload: self.size as usize,
            pace: Steady {
                rate: f64::from(self.rate),
                duration: seconds(self.seconds)?,
            },
        };
        let lab = hosts(&LabConfig {
            rate: Some(RATE),
            wiring: Wiring::Bridge,
            ..LabConfig::default()
        })?;
        let programs = self.common.programs();
        let pair = cores.pair(lab.host(0), lab.host(1));
        let title = "A critical flow beside low-importance traffic";
        let mut measurement = Measurement::begin(&self.common, "critical", title, METHOD)?;
        for (setting, beside) in [
            ("alone", Beside::Nothing),
            ("beside a saturating flow", Beside::Saturating),
            ("beside bursts", Beside::Bursts),
        ] {
            let mut variants = Vec::new();
            for (path, name) in [
                (Datapath::Udp, "Takt daemon, slow (UDP)"),
                (Datapath::Xdp, "Takt daemon, fast (AF_XDP)"),
            ] {
                let (takt, pair, flow) = (&takt, &pair, &flow);
                variants.push(Variant::new(name, move |_: &Round| {
                    Ok(takt.critical(Form::Daemon, path, pair, flow, beside)?)
                }));
            }
            if let Some(programs) = &programs {
                let (pair, flow) = (&pair, &flow);
                variants.push(Variant::new(BASELINE, move |_: &Round| {
                    Ok(programs.critical(pair, flow, beside)?)
                }));
            }
            measurement.run(Experiment {
                name: format!("{} messages/s of {} B", self.rate, self.size),
                setting: setting.into(),
                method: String::new(),
                rounds: self.common.rounds,
                baseline: Some(BASELINE.into()),
                variants,
            })?;
        }
        measurement.finish()
    }
}
