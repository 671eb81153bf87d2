//! `takt bench sinks`: what a message costs the runtime, by the number of local sinks.

use clap::Args;
use takt_bench::experiment::{Experiment, Round, Variant};
use takt_bench::takt::sinks::{self, COST};

use super::common::{BenchError, Common, Measurement, TwoCores};

/// What to measure.
#[derive(Debug, Args)]
pub struct Sinks {
    /// Bytes of each message
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=4096))]
    size: u32,
    /// How many sinks there are
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 12, 16], value_parser = clap::value_parser!(u32).range(1..=64))]
    sinks: Vec<u32>,
    /// Messages announced to the runtime at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    burst: u32,
    /// Messages of each run; a tenth more warm up
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    #[command(flatten)]
    common: Common,
}

const METHOD: &str = "\
One runtime with a lane on one core; one application thread on the other, with a source and sinks in sessions \
of their own. The application emits a burst, takes it out of every sink, and emits the next. The cost is the \
time the lane spent in rounds that found work, by the lane's own count, over the messages emitted: what the \
application does is not in it.";

impl Sinks {
    /// Measures, prints and reports.
    pub fn run(self) -> Result<(), BenchError> {
        let cores = TwoCores::choose()?;
        let mut measurement = Measurement::begin(
            &self.common,
            "sinks",
            "Cost of a message by the number of local sinks",
            METHOD,
        )?;
        let mut counts = self.sinks.clone();
        counts.sort_unstable();
        counts.dedup();
        let variants = counts.iter().map(|&count| {
            let run = sinks::Run {
                sinks: count as usize,
                payload: self.size as usize,
                burst: self.burst as usize,
                bursts: self.count.div_ceil(self.burst) as usize,
                lane_core: cores.near,
                core: cores.far,
            };
            Variant::new(name(count), move |_: &Round| Ok(sinks::cost(&run)?))
        });
        let outcome = measurement.run(Experiment {
            name: "Cost of a message".into(),
            setting: format!("{} B, bursts of {}", self.size, self.burst),
            method: String::new(),
            rounds: self.common.rounds,
            baseline: None,
            variants: variants.collect(),
        })?;
        let points: Vec<(f64, f64)> = counts
            .iter()
            .filter_map(|&count| {
                let mut variants = outcome.variants.iter();
                let variant = variants.find(|variant| variant.name == name(count))?;
                Some((f64::from(count), *variant.summary.figures.get(COST)?))
            })
            .collect();
        if let Some((start, slope)) = sinks::fit(&points) {
            measurement.find(&format!(
                "Each further sink costs the lane {slope:.0} ns per message, beside {start:.0} ns that do not \
                 depend on the sinks (least squares through the medians)."
            ));
        }
        measurement.finish()
    }
}

/// As a variant with so many is called.
pub(super) fn name(sinks: u32) -> String {
    match sinks {
        1 => "1 sink".to_owned(),
        count => format!("{count} sinks"),
    }
}
