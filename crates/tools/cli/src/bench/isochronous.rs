//! `takt bench isochronous`: the talker and the listener of kubernetsn-icc2023.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use takt_bench::experiment::{Experiment, Round, Sample, Variant};
use takt_bench::isochronous::run::{self, Flow, Run, Way};
use takt_bench::statistics::Latencies;
use takt_bench::takt::Takt;
use takt_lab::Lab;

use super::common::{BenchError, Common, Measurement, TwoCores, hosts};
use crate::preload;

/// Best effort offered, of the link's rate.
const OVERLOAD: f64 = 1.2;

/// What to measure.
#[derive(Debug, Args)]
pub struct Isochronous {
    /// Payload sizes, bytes
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [64, 256, 1024], value_parser = clap::value_parser!(u32).range(12..=1400))]
    sizes: Vec<u32>,
    /// Period, microseconds
    #[arg(long, value_name = "MICROS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    period_us: u32,
    /// Seconds of each run
    #[arg(long, value_name = "SECONDS", default_value_t = 1.5)]
    seconds: f64,
    /// The paper's lengths: 100 s for each run, one round
    #[arg(long, conflicts_with = "seconds")]
    full: bool,
    /// Rate of the link, bit/s
    #[arg(long, value_name = "BIT/S", default_value_t = 1_000_000_000)]
    rate: u64,
    #[command(flatten)]
    common: Common,
}

const METHOD: &str = "\
Two hosts joined by a link with a rate (a switch with two queues; each host's own queue is the kernel's, one for all), \
a bridge and a VXLAN on each, containers behind them: what Flannel builds. A talker sends a datagram in every period, a \
listener takes the time. Latency is from the requested launch time to the return of the listener's receiving call; \
jitter is the absolute difference between period and distance of two arrivals; the departure error is the talker's \
software time stamp against its launch time. Send-and-sleep talkers sleep until each instant; with Takt the same program \
hands its datagrams over half a period ahead with SO_TXTIME, under the preload, and everything from its host's link on is \
the kernel's. The floor is a talker on bare metal that keeps its core busy until each instant: what this machine and \
listener can do at best. Talker, lane and listener are real-time threads on one core. Beside best effort: a flow that offers 120 % of \
the link's rate in 56 KB trains, from another container, on the other core.";

/// Runs by payload size, load, way and round.
type Runs = Rc<RefCell<HashMap<(u32, bool, &'static str, u32), Run>>>;

impl Isochronous {
    /// As the demo has it.
    pub fn brief(full: bool, common: Common) -> Self {
        Self {
            sizes: vec![64, 256, 1024],
            period_us: 1000,
            seconds: 1.5,
            full,
            rate: 1_000_000_000,
            common,
        }
    }

    /// Measures, prints and reports.
    pub fn run(mut self) -> Result<(), BenchError> {
        if self.full {
            self.seconds = 100.0;
            self.common.rounds = 1;
        }
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(BenchError::Seconds(self.seconds));
        }
        let cores = TwoCores::choose()?;
        let takt = Takt::this_program()?;
        preload::library().map_err(|error| BenchError::NoPreload(error.to_string()))?;
        let lab = hosts(&run::lab(self.rate))?;
        let mut measurement = Measurement::begin(
            &self.common,
            "isochronous",
            "Isochronous talker and listener",
            METHOD,
        )?;
        let runs = Runs::default();
        for loaded in [false, true] {
            for &size in &self.sizes {
                let cores = (cores.near, cores.far);
                self.measure(&mut measurement, &takt, &lab, size, loaded, cores, &runs)?;
            }
        }
        for finding in self.findings(&runs.borrow()) {
            measurement.find(&finding);
        }
        measurement.finish()
    }

    #[allow(clippy::too_many_arguments)] // one setting: of what, where, into what
    fn measure(
        &self,
        measurement: &mut Measurement<'_>,
        takt: &Takt,
        lab: &Lab,
        size: u32,
        loaded: bool,
        cores: (usize, usize),
        runs: &Runs,
    ) -> Result<(), BenchError> {
        let period = Duration::from_micros(self.period_us.into());
        let flow = Flow {
            size: size as usize,
            period,
            count: (self.seconds / period.as_secs_f64()).max(10.0) as u32,
            load: match loaded {
                true => (self.rate as f64 * OVERLOAD) as u64,
                false => 0,
            },
        };
        let setting = format!(
            "{size} B, {}",
            if loaded {
                "beside best effort"
            } else {
                "alone"
            }
        );
        let variants = Way::ALL.map(|way| {
            let runs = runs.clone();
            Variant::new(way.name(), move |round: &Round| {
                let run = run::run(takt, lab, way, &flow, cores)?;
                let sample = latency(&run, &flow);
                let key = (size, loaded, way.name(), round.index);
                runs.borrow_mut().insert(key, run);
                Ok(sample)
            })
        });
        let experiment = |name: &str, variants: [_; Way::ALL.len()]| Experiment {
            name: name.into(),
            setting: setting.clone(),
            method: String::new(),
            rounds: self.common.rounds,
            baseline: Some(Way::Overlay.name().into()),
            variants: variants.into(),
        };
        measurement.run(experiment("End-to-end latency", variants))?;
        // The same runs, seen from other sides.
        for (name, part) in [
            (
                "Absolute jitter",
                (|run| &run.heard.jitter) as fn(&Run) -> &Latencies,
            ),
            ("Absolute departure error", |run| &run.sent.departure),
        ] {
            let variants = Way::ALL.map(|way| {
                let runs = runs.clone();
                Variant::new(way.name(), move |round: &Round| {
                    let key = (size, loaded, way.name(), round.index);
                    let runs = runs.borrow();
                    let run = runs.get(&key).ok_or("the run that it is of has failed")?;
                    Ok(part(run).clone().into())
                })
            });
            measurement.run(experiment(name, variants))?;
        }
        Ok(())
    }

    /// What the issue of the experiment asks, answered.
    fn findings(&self, runs: &HashMap<(u32, bool, &'static str, u32), Run>) -> Vec<String> {
        let all = |loaded: bool, way: Way, part: fn(&Run) -> &Latencies| {
            let mut sum = Latencies::new();
            for ((_, of_loaded, name, _), run) in runs {
                if *of_loaded == loaded && *name == way.name() {
                    sum.merge(part(run));
                }
            }
            sum.percentiles()
        };
        let latency = |loaded, way| all(loaded, way, |run| &run.heard.latency);
        let jitter = |way| all(false, way, |run| &run.heard.jitter);
        let mut findings = Vec::new();
        if let (Some(takt), Some(overlay), Some(floor)) =
            (jitter(Way::Takt), jitter(Way::Overlay), jitter(Way::Floor))
        {
            findings.push(format!(
                "Median absolute jitter, all sizes, alone: {:.2} µs with Takt, {:.2} µs over the Flannel-like overlay ({:.1}x lower), {:.2} µs at the floor ({:.1}x lower).",
                takt.p50 / 1e3,
                overlay.p50 / 1e3,
                overlay.p50 / takt.p50,
                floor.p50 / 1e3,
                overlay.p50 / floor.p50
            ));
        }
        for way in Way::ALL {
            if let (Some(alone), Some(loaded)) = (latency(false, way), latency(true, way)) {
                findings.push(format!(
                    "Beside best effort, {}: p99 of the latency {:.1} µs, alone {:.1} µs ({:.2}x).",
                    way.name(),
                    loaded.p99 / 1e3,
                    alone.p99 / 1e3,
                    loaded.p99 / alone.p99
                ));
            }
        }
        findings
    }
}

/// The sample that the first of the tables shows.
fn latency(run: &Run, flow: &Flow) -> Sample {
    let mut sample = Sample::from(run.heard.latency.clone());
    let mut figure = |name: &str, value: f64| sample.figures.insert(name.to_owned(), value);
    let sent = flow.count + run::WARM_UP;
    figure("lost", f64::from(sent.saturating_sub(run.heard.received)));
    figure("refused as late", f64::from(run.sent.missed));
    figure("early", f64::from(run.heard.early));
    figure("best effort Mbit/s", run.drained / 1e6);
    if let Some(arrival) = run.heard.arrival.percentiles() {
        figure("p50 to the kernel's stamp µs", arrival.p50 / 1e3);
    }
    if let Some(jitter) = run.heard.arrival_jitter.percentiles() {
        figure("p50 jitter of that µs", jitter.p50 / 1e3);
    }
    sample
}
