//! `takt bench departure`: how exactly messages leave at their launch times.

use std::time::Duration;

use clap::Args;
use takt_bench::experiment::{Experiment, Round, Variant};
use takt_bench::outcome::Outcome;
use takt_bench::peers::Pair;
use takt_bench::takt::departures::{Idle as LaneIdle, Run, bare, departures};
use takt_bench::takt::{Datapath, Form};
use takt_lab::{LabConfig, Wiring};

use super::common::{BenchError, Common, Measurement, TwoCores, hosts, seconds};

/// The variant that ratios are taken to.
const BASELINE: &str = "bare loop";

/// What to measure.
#[derive(Debug, Args)]
pub struct Departure {
    /// Time between two messages
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = period)]
    period: Duration,
    /// How long each run sends; a tenth more warms up
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// Bytes of each message
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=1024))]
    size: u32,
    #[command(flatten)]
    common: Common,
}

/// Times between messages that lanes and the bare loop can sleep in.
fn period(text: &str) -> Result<Duration, String> {
    let period = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let range = Duration::from_micros(500)..=Duration::from_secs(1);
    match range.contains(&period) {
        true => Ok(period),
        false => Err("write 500us to 1s".into()),
    }
}

const METHOD: &str = "\
Two hosts in network namespaces, joined by a bridge. An application gives each message a launch time, one \
every period, and emits it five periods ahead. Latency here is the departure error: how far from its launch time \
a message is handed to the technology, by the clock that the lane goes by, read at that very hand-over. The bare \
loop only sleeps until 250 us before the same instants, spins and sends a datagram: the machine's floor. On the wire is \
how far from its launch time a message came by at the other end of the sender's cable, by that kernel's stamps, for all \
alike: the kernel's way to the cable is in it. The lane that sends has a \
core of its own; the application, the far side and its lane share the other.";

impl Departure {
    /// Measures, prints and reports.
    pub fn run(self) -> Result<(), BenchError> {
        seconds(self.seconds)?;
        let cores = TwoCores::choose()?;
        // Where a switch is, its end of the cable sees what an XDP program of the far host would take.
        let lab = hosts(&LabConfig {
            wiring: Wiring::Bridge,
            ..LabConfig::default()
        })?;
        let pair = cores.pair(lab.host(0), lab.host(1));
        let run = Run {
            period: self.period,
            count: (self.seconds / self.period.as_secs_f64()).ceil() as u32,
            payload: self.size as usize,
        };
        let mut measurement = Measurement::begin(
            &self.common,
            "departure",
            "Departure error of messages with launch times",
            METHOD,
        )?;
        let outcome = measurement.run(Experiment {
            name: "Departure error".into(),
            setting: format!("{} B every {:?}", self.size, self.period),
            method: String::new(),
            rounds: self.common.rounds,
            baseline: Some(BASELINE.into()),
            variants: variants(pair, run),
        })?;
        if let Some(finding) = beside_the_floor(outcome) {
            measurement.find(&finding);
        }
        measurement.finish()
    }
}

fn variants<'a>(pair: Pair<'a>, run: Run) -> Vec<Variant<'a>> {
    let mut variants = vec![Variant::new(BASELINE, move |_: &Round| {
        Ok(bare(&run, &pair)?)
    })];
    for (form, name) in [(Form::Embedded, "embedded"), (Form::Daemon, "daemon")] {
        for (path, technology) in [(Datapath::Udp, "UDP"), (Datapath::Xdp, "AF_XDP")] {
            for (idle, waits) in [(LaneIdle::Spin, "spin"), (LaneIdle::default(), "adaptive")] {
                let name = format!("{name}, {technology}, {waits}");
                variants.push(Variant::new(name, move |_: &Round| {
                    Ok(departures(form, path, idle, &pair, &run)?)
                }));
            }
        }
    }
    variants
}

/// The worst of the variants beside the bare loop, in a sentence.
fn beside_the_floor(outcome: &Outcome) -> Option<String> {
    let others = || {
        let variants = outcome.variants.iter();
        variants.filter(|variant| variant.name != BASELINE)
    };
    let worst = |figure: fn(&takt_bench::outcome::Summary) -> Option<f64>| {
        others()
            .filter_map(|variant| Some((variant.name.as_str(), figure(&variant.summary)?)))
            .max_by(|one, other| one.1.total_cmp(&other.1))
    };
    let (slowest, median) = worst(|summary| Some(summary.latency_ns?.p50))?;
    let (widest, ratio) = worst(|summary| Some(summary.latency_ratio?.p99))?;
    Some(format!(
        "{}: the largest median departure error is {:.3} us ({slowest}); the largest p99 is {ratio:.2} times that of \
         the bare loop ({widest}).",
        outcome.setting,
        median / 1e3
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_that_nobody_can_sleep_in_are_refused() {
        assert_eq!(period("1ms"), Ok(Duration::from_millis(1)));
        assert!(period("100us").is_err() && period("2s").is_err() && period("soon").is_err());
    }
}
