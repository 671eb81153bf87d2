//! Variants run in turns, and what comes of it.
//!
//! Each round runs every variant once, each round beginning with the next one. A figure is the median
//! over the rounds of that figure; a ratio is the median over the rounds of the ratio within a round,
//! so that what slowed a whole round down does not count.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::outcome::{Outcome, RoundOutcome, Summary, VariantOutcome};
use crate::statistics::{Latencies, Throughput};

/// Why a variant failed in a round: whatever it ran into.
pub type RunError = Box<dyn Error + Send + Sync>;

/// Variants to be measured under one setting.
pub struct Experiment<'a> {
    /// What is measured, such as "Round trip between two hosts". Experiments of one name are shown
    /// together in a report.
    pub name: String,
    /// What tells this experiment from others of the same name, such as "64 B"; may be empty.
    pub setting: String,
    /// How it is measured: a sentence or two for the reader of the report.
    pub method: String,
    /// How many rounds, at least 1.
    pub rounds: u32,
    /// The variant that ratios are taken to.
    pub baseline: Option<String>,
    /// The variants, in the order in which they are shown.
    pub variants: Vec<Variant<'a>>,
}

/// One way of doing what an experiment measures.
pub struct Variant<'a> {
    /// Its name, unique in the experiment.
    pub name: String,
    /// Runs it once.
    pub run: RunVariant<'a>,
}

/// What runs a variant once.
pub type RunVariant<'a> = Box<dyn FnMut(&Round) -> Result<Sample, RunError> + 'a>;

impl<'a> Variant<'a> {
    /// A variant called `name` that `run` runs.
    pub fn new(
        name: impl Into<String>,
        run: impl FnMut(&Round) -> Result<Sample, RunError> + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            run: Box::new(run),
        }
    }
}

/// Which round it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Counted from 0.
    pub index: u32,
    /// How many there are.
    pub of: u32,
}

/// What one run of a variant gave. Each part is there or not; all runs of a variant give the same parts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Latencies of single messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latencies: Option<Latencies>,
    /// What arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Throughput>,
    /// Any other figure, by a name with its unit, such as "lost pings" or "frames/s".
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
}

impl From<Latencies> for Sample {
    fn from(latencies: Latencies) -> Self {
        Self {
            latencies: Some(latencies),
            ..Self::default()
        }
    }
}

impl From<Throughput> for Sample {
    fn from(throughput: Throughput) -> Self {
        Self {
            throughput: Some(throughput),
            ..Self::default()
        }
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(p) = self.latencies.as_ref().and_then(Latencies::percentiles) {
            parts.push(format!(
                "p50 {:.2} µs, p99 {:.2} µs",
                p.p50 / 1e3,
                p.p99 / 1e3
            ));
        }
        if let Some(t) = &self.throughput {
            let rate = t.messages_per_second() / 1e3;
            parts.push(format!(
                "{rate:.1} k messages/s, {:.1} % lost",
                100.0 * t.loss()
            ));
        }
        parts.extend(
            self.figures
                .iter()
                .map(|(name, value)| format!("{name} {value:.3}")),
        );
        f.write_str(&parts.join(", "))
    }
}

/// An experiment that cannot be run as it is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExperimentError {
    /// There is nothing to run.
    #[error(
        "cannot run the experiment {0:?} without variants or rounds: give it one of each at least"
    )]
    Empty(String),
    /// Two variants cannot be told apart.
    #[error("cannot tell two variants called {0:?} apart: give each a name of its own")]
    SameName(String),
    /// The baseline is not there.
    #[error("cannot take ratios to {0:?}: name one of the variants as the baseline")]
    NoBaseline(String),
}

impl Experiment<'_> {
    /// Runs all variants in turns, with a line of progress on standard error for each run.
    ///
    /// A variant that fails is noted with its reason, and runs again in the next round.
    ///
    /// # Errors
    /// When the experiment cannot be run as it is; no variant's failure is an error.
    pub fn run(self) -> Result<Outcome, ExperimentError> {
        self.run_telling(|line| eprintln!("{line}"))
    }

    /// The same, with its lines of progress for `tell`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_telling(mut self, tell: impl Fn(&str)) -> Result<Outcome, ExperimentError> {
        self.validate()?;
        let started = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let count = self.variants.len();
        let mut rounds: Vec<Vec<RoundOutcome>> = vec![Vec::new(); count];
        for index in 0..self.rounds {
            let round = Round {
                index,
                of: self.rounds,
            };
            for turn in 0..count {
                let which = (index as usize + turn) % count;
                let variant = &mut self.variants[which];
                let outcome = match (variant.run)(&round) {
                    Ok(sample) => RoundOutcome::Sample(sample),
                    Err(error) => RoundOutcome::Failure(explain(error.as_ref())),
                };
                let told = match &outcome {
                    RoundOutcome::Sample(sample) => sample.to_string(),
                    RoundOutcome::Failure(reason) => format!("failed: {reason}"),
                };
                tell(&format!(
                    "[{}/{}] {} {}, {}: {told}",
                    index + 1,
                    round.of,
                    self.name,
                    self.setting,
                    variant.name
                ));
                rounds[which].push(outcome);
            }
        }
        let base = self
            .baseline
            .as_ref()
            .and_then(|name| self.variants.iter().position(|v| v.name == *name));
        let base = base.map(|index| rounds[index].clone());
        let variants = self
            .variants
            .into_iter()
            .zip(rounds)
            .map(|(variant, rounds)| VariantOutcome {
                name: variant.name,
                summary: Summary::of(&rounds, base.as_deref()),
                rounds,
            });
        Ok(Outcome {
            variants: variants.collect(),
            name: self.name,
            setting: self.setting,
            method: self.method,
            started,
            rounds: self.rounds,
            baseline: self.baseline,
        })
    }

    fn validate(&self) -> Result<(), ExperimentError> {
        if self.variants.is_empty() || self.rounds == 0 {
            return Err(ExperimentError::Empty(self.name.clone()));
        }
        for (index, variant) in self.variants.iter().enumerate() {
            if self.variants[..index]
                .iter()
                .any(|earlier| earlier.name == variant.name)
            {
                return Err(ExperimentError::SameName(variant.name.clone()));
            }
        }
        match &self.baseline {
            Some(name) if self.variants.iter().all(|v| v.name != *name) => {
                Err(ExperimentError::NoBaseline(name.clone()))
            }
            _ => Ok(()),
        }
    }
}

/// An error with all its causes in one line, each told once.
fn explain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let told = error.to_string();
        // Many messages end in their cause's.
        if !text.contains(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(us: u64) -> Sample {
        let mut latencies = Latencies::new();
        latencies.record_ns(us * 1000);
        latencies.into()
    }

    fn experiment<'a>(
        rounds: u32,
        baseline: Option<&str>,
        variants: Vec<Variant<'a>>,
    ) -> Experiment<'a> {
        Experiment {
            name: "Test".into(),
            setting: String::new(),
            method: String::new(),
            rounds,
            baseline: baseline.map(str::to_owned),
            variants,
        }
    }

    #[test]
    fn variants_take_turns_and_each_round_begins_with_the_next_one() {
        let order = std::cell::RefCell::new(String::new());
        let variant = |name: &'static str| {
            let order = &order;
            Variant::new(name, move |_: &Round| {
                order.borrow_mut().push_str(name);
                Ok(Sample::default())
            })
        };
        experiment(3, None, vec![variant("a"), variant("b"), variant("c")])
            .run()
            .unwrap();
        assert_eq!(order.into_inner(), "abcbcacab");
    }

    #[test]
    fn a_ratio_is_taken_within_a_round_and_its_median_is_told() {
        // The third round is ten times slower for both: figures follow the median, ratios do not care.
        let base = Variant::new("base", |round: &Round| {
            Ok(latency([10, 10, 100][round.index as usize]))
        });
        let other = Variant::new("other", |round: &Round| {
            Ok(latency([20, 30, 200][round.index as usize]))
        });
        let outcome = experiment(3, Some("base"), vec![base, other])
            .run()
            .unwrap();
        let [base, other] = &outcome.variants[..] else {
            panic!("two variants")
        };
        assert!((other.summary.latency_ns.unwrap().p50 / 30e3 - 1.0).abs() < 1e-3);
        assert!((other.summary.latency_ratio.unwrap().p50 - 2.0).abs() < 1e-2);
        assert_eq!(base.summary.latency_ratio.unwrap().p50, 1.0);
        assert_eq!(other.latencies().unwrap().count(), 3);
    }

    #[test]
    fn a_failure_is_told_with_its_causes_and_the_other_rounds_count() {
        let cause = std::io::Error::other("no cable");
        let mut error = Some(takt_lab::LabError::Io {
            action: "reach the far end".into(),
            source: cause,
        });
        let flaky = Variant::new("flaky", move |round: &Round| match round.index {
            0 => Err(error.take().unwrap().into()),
            _ => Ok(Throughput {
                messages: 10,
                bytes: 80,
                lost: 0,
                nanoseconds: 1_000_000_000,
            }
            .into()),
        });
        let outcome = experiment(2, Some("flaky"), vec![flaky]).run().unwrap();
        let flaky = &outcome.variants[0];
        assert_eq!(
            flaky.failures().collect::<Vec<_>>(),
            ["cannot reach the far end: no cable"]
        );
        assert_eq!(flaky.summary.messages_per_second, Some(10.0));
        assert_eq!(flaky.summary.throughput_ratio, Some(1.0));
        assert_eq!(flaky.summary.latency_ns, None);
    }

    #[test]
    fn an_experiment_that_makes_no_sense_is_refused_before_anything_runs() {
        let never = |name: &str| Variant::new(name, |_: &Round| panic!("must not run"));
        let refused =
            |rounds, baseline, variants| experiment(rounds, baseline, variants).run().unwrap_err();
        assert_eq!(
            refused(0, None, vec![never("a")]),
            ExperimentError::Empty("Test".into())
        );
        assert_eq!(
            refused(1, None, vec![]),
            ExperimentError::Empty("Test".into())
        );
        assert_eq!(
            refused(1, None, vec![never("a"), never("a")]),
            ExperimentError::SameName("a".into())
        );
        assert_eq!(
            refused(1, Some("b"), vec![never("a")]),
            ExperimentError::NoBaseline("b".into())
        );
    }

    #[test]
    fn an_outcome_survives_json() {
        let mut sample = latency(7);
        sample.throughput = Some(Throughput {
            messages: 1,
            bytes: 2,
            lost: 3,
            nanoseconds: 4,
        });
        sample.figures.insert("frames/s".into(), 59.5);
        let variant = Variant::new("a", |round: &Round| match round.index {
            0 => Ok(sample.clone()),
            _ => Err("broke".into()),
        });
        let outcome = experiment(2, Some("a"), vec![variant]).run().unwrap();
        let text = serde_json::to_string(&outcome).unwrap();
        assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);
    }
}
