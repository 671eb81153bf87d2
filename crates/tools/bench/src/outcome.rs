//! What an experiment gave: every sample, and the figures told of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::experiment::Sample;
use crate::statistics::{Latencies, Percentiles, Throughput, median};

/// What an experiment gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// As in [`Experiment`](crate::experiment::Experiment).
    pub name: String,
    /// As in [`Experiment`](crate::experiment::Experiment).
    pub setting: String,
    /// As in [`Experiment`](crate::experiment::Experiment).
    pub method: String,
    /// When it began, in UTC (RFC 3339).
    pub started: String,
    /// How many rounds there were.
    pub rounds: u32,
    /// As in [`Experiment`](crate::experiment::Experiment).
    pub baseline: Option<String>,
    /// What each variant gave, in the experiment's order.
    pub variants: Vec<VariantOutcome>,
}

/// What the runs of one variant gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariantOutcome {
    /// The variant's name.
    pub name: String,
    /// The figures to tell.
    pub summary: Summary,
    /// What each round gave, for those who want to look closer.
    pub rounds: Vec<RoundOutcome>,
}

/// What a variant gave in one round: a sample or a reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundOutcome {
    /// It ran.
    Sample(Sample),
    /// It failed, for this reason.
    Failure(String),
}

/// Medians over the rounds in which a variant ran. Ratios are to the baseline in the same round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// In nanoseconds.
    pub latency_ns: Option<Percentiles>,
    /// Latency over that of the baseline.
    pub latency_ratio: Option<Percentiles>,
    /// Messages received per second.
    pub messages_per_second: Option<f64>,
    /// Payload bits received per second.
    pub goodput_bits_per_second: Option<f64>,
    /// The share of messages lost.
    pub loss: Option<f64>,
    /// Messages per second over those of the baseline.
    pub throughput_ratio: Option<f64>,
    /// All other figures.
    pub figures: BTreeMap<String, f64>,
}

impl VariantOutcome {
    /// The samples of the rounds in which the variant ran.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.rounds.iter().filter_map(RoundOutcome::sample)
    }

    /// The reasons of the rounds in which it failed.
    pub fn failures(&self) -> impl Iterator<Item = &str> {
        self.rounds.iter().filter_map(|round| match round {
            RoundOutcome::Sample(_) => None,
            RoundOutcome::Failure(reason) => Some(reason.as_str()),
        })
    }

    /// The latencies of all rounds together; `None` when none was measured.
    pub fn latencies(&self) -> Option<Latencies> {
        self.samples()
            .filter_map(|sample| sample.latencies.as_ref())
            .fold(None, |all, one| {
                let mut all: Latencies = all.unwrap_or_default();
                all.merge(one);
                Some(all)
            })
    }
}

impl RoundOutcome {
    fn sample(&self) -> Option<&Sample> {
        match self {
            Self::Sample(sample) => Some(sample),
            Self::Failure(_) => None,
        }
    }

    fn percentiles(&self) -> Option<Percentiles> {
        self.sample()?.latencies.as_ref()?.percentiles()
    }

    fn throughput(&self) -> Option<&Throughput> {
        self.sample()?.throughput.as_ref()
    }
}

impl Summary {
    /// Sums up the rounds of a variant, beside those of the baseline.
    pub(crate) fn of(rounds: &[RoundOutcome], baseline: Option<&[RoundOutcome]>) -> Self {
        let percentiles: Vec<_> = rounds
            .iter()
            .filter_map(RoundOutcome::percentiles)
            .collect();
        let over = |rate: fn(&Throughput) -> f64| {
            median(
                rounds
                    .iter()
                    .filter_map(RoundOutcome::throughput)
                    .map(rate)
                    .collect(),
            )
        };
        // Runs are gathered in round order, one each, so that those of one round share an index.
        let pairs = || rounds.iter().zip(baseline.unwrap_or_default());
        let latency_ratios: Vec<_> = pairs()
            .filter_map(|(own, base)| Some(own.percentiles()?.ratio_to(&base.percentiles()?)))
            .collect();
        let throughput_ratios = pairs().filter_map(|(own, base)| {
            let base = base.throughput()?.messages_per_second();
            (base > 0.0).then_some(own.throughput()?.messages_per_second() / base)
        });
        let mut figures: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (name, value) in rounds
            .iter()
            .filter_map(RoundOutcome::sample)
            .flat_map(|sample| &sample.figures)
        {
            figures.entry(name.clone()).or_default().push(*value);
        }
        Self {
            latency_ns: Percentiles::median_of(&percentiles),
            latency_ratio: Percentiles::median_of(&latency_ratios),
            messages_per_second: over(Throughput::messages_per_second),
            goodput_bits_per_second: over(Throughput::goodput_bits_per_second),
            loss: over(Throughput::loss),
            throughput_ratio: median(throughput_ratios.collect()),
            figures: figures
                .into_iter()
                .filter_map(|(name, values)| Some((name, median(values)?)))
                .collect(),
        }
    }
}
