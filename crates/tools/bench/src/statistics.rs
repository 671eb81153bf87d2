//! Latencies and rates: what is gathered while measuring, and the figures that are told of it.
//!
//! Stands alone, so that the programs in `bench-peers` write the same format.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest latency that is told apart; longer ones count as this one.
const LONGEST_NS: u64 = 1_000_000_000_000;
/// Decimal digits that are kept of each latency.
const DIGITS: u8 = 3;

/// A histogram of latencies from 1 ns to 1000 s, three significant digits each.
///
/// In JSON: the count of each latency in nanoseconds that occurred, `{"buckets": [[1200, 7], …]}`.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// An empty histogram. All its memory is taken here: recording allocates nothing.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS);
        Self(histogram.expect("the bounds are constants that hdrhistogram accepts"))
    }

    /// Records one latency.
    pub fn record(&mut self, latency: Duration) {
        self.record_ns(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Records one latency in nanoseconds; less than one counts as one.
    pub fn record_ns(&mut self, latency_ns: u64) {
        self.record_many(latency_ns, 1);
    }

    /// No logarithmic scale has a place for 0.
    fn record_many(&mut self, latency_ns: u64, count: u64) {
        self.0.saturating_record_n(latency_ns.max(1), count);
    }

    /// Adds all latencies of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.0
            .add(&other.0)
            .expect("all histograms have the same bounds");
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The share of those that took no longer than this, from 0 to 1; `None` when nothing was recorded.
    pub fn within(&self, limit: Duration) -> Option<f64> {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let all = self.0.len();
        (all > 0).then(|| self.0.count_between(0, limit) as f64 / all as f64)
    }

    /// The figures that are told, in nanoseconds; `None` when nothing was recorded.
    pub fn percentiles(&self) -> Option<Percentiles> {
        if self.0.is_empty() {
            return None;
        }
        let at = |quantile| self.0.value_at_quantile(quantile) as f64;
        Some(Percentiles {
            min: self.0.min() as f64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: self.0.max() as f64,
            mean: self.0.mean(),
        })
    }

    /// What a box plot shows, in nanoseconds; `None` when nothing was recorded.
    pub fn spread(&self) -> Option<Spread> {
        if self.0.is_empty() {
            return None;
        }
        let at = |quantile| self.0.value_at_quantile(quantile) as f64;
        Some(Spread {
            low: at(0.01),
            quarter: at(0.25),
            median: at(0.5),
            three_quarters: at(0.75),
            high: at(0.99),
        })
    }

    /// The cumulative distribution: each latency that occurred, in nanoseconds, ascending, with the
    /// share of all that are no longer.
    pub fn distribution(&self) -> impl Iterator<Item = (u64, f64)> {
        let all = self.count() as f64;
        self.buckets().scan(0, move |until, (latency, count)| {
            *until += count;
            Some((latency, *until as f64 / all))
        })
    }

    fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0
            .iter_recorded()
            .map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
    }
}

#[derive(Serialize, Deserialize)]
struct Buckets {
    buckets: Vec<(u64, u64)>,
}

impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Buckets {
            buckets: self.buckets().collect(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut latencies = Self::new();
        for (latency, count) in Buckets::deserialize(deserializer)?.buckets {
            // Sums within the histogram wrap above this, which no measurement reaches.
            if latencies.count().checked_add(count).is_none() {
                return Err(D::Error::custom(format!(
                    "cannot count {count} more latencies of {latency} ns"
                )));
            }
            latencies.record_many(latency, count);
        }
        Ok(latencies)
    }
}

/// What a box plot shows: the median, quartiles, and the 1st and 99th percentile.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "each name says all there is")]
pub struct Spread {
    pub low: f64,
    pub quarter: f64,
    pub median: f64,
    pub three_quarters: f64,
    pub high: f64,
}

impl Spread {
    /// In units of so many.
    #[must_use]
    pub fn in_units_of(self, unit: f64) -> Self {
        Self {
            low: self.low / unit,
            quarter: self.quarter / unit,
            median: self.median / unit,
            three_quarters: self.three_quarters / unit,
            high: self.high / unit,
        }
    }
}

/// The figures that are told of a distribution: in nanoseconds, or as ratios to another's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each name says all there is")]
pub struct Percentiles {
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub max: f64,
    pub mean: f64,
}

impl Percentiles {
    /// Their headings, in the order of [`Percentiles::values`].
    pub const NAMES: [&str; 7] = ["min", "p50", "p90", "p99", "p99.9", "max", "mean"];

    /// The figures in the order of [`Percentiles::NAMES`].
    pub fn values(&self) -> [f64; 7] {
        [
            self.min, self.p50, self.p90, self.p99, self.p99_9, self.max, self.mean,
        ]
    }

    fn from_values([min, p50, p90, p99, p99_9, max, mean]: [f64; 7]) -> Self {
        Self {
            min,
            p50,
            p90,
            p99,
            p99_9,
            max,
            mean,
        }
    }

    /// Each figure divided by that of `baseline`.
    pub fn ratio_to(&self, baseline: &Self) -> Self {
        let (own, base) = (self.values(), baseline.values());
        Self::from_values(std::array::from_fn(|i| own[i] / base[i]))
    }

    /// The median of each figure by itself; `None` of none.
    pub fn median_of(all: &[Self]) -> Option<Self> {
        if all.is_empty() {
            return None;
        }
        let column = |i: usize| all.iter().map(|one| one.values()[i]).collect::<Vec<_>>();
        Some(Self::from_values(std::array::from_fn(|i| {
            median(column(i)).unwrap_or(f64::NAN)
        })))
    }
}

/// The median; the mean of the middle two of an even number; `None` of none.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some(values[middle - 1].midpoint(values[middle])),
    }
}

/// What arrived in a stretch of time, and what did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throughput {
    /// Messages received.
    pub messages: u64,
    /// Payload octets received.
    pub bytes: u64,
    /// Messages sent that were not received.
    pub lost: u64,
    /// From the first message received to the last.
    pub nanoseconds: u64,
}

impl Throughput {
    /// Messages received per second; 0 before two arrived.
    pub fn messages_per_second(&self) -> f64 {
        self.per_second(self.messages)
    }

    /// Payload bits received per second.
    pub fn goodput_bits_per_second(&self) -> f64 {
        8.0 * self.per_second(self.bytes)
    }

    /// The share of what was sent that was lost, 0 to 1.
    pub fn loss(&self) -> f64 {
        let sent = self.messages + self.lost;
        if sent == 0 {
            0.0
        } else {
            self.lost as f64 / sent as f64
        }
    }

    fn per_second(&self, amount: u64) -> f64 {
        if self.nanoseconds == 0 {
            0.0
        } else {
            amount as f64 * 1e9 / self.nanoseconds as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(latencies_ns: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::new();
        latencies_ns
            .into_iter()
            .for_each(|ns| latencies.record_ns(ns));
        latencies
    }

    #[test]
    fn the_share_within_a_limit_is_right() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.within(Duration::MAX), None);
        (1..=100).for_each(|us| latencies.record(Duration::from_micros(us)));
        assert_eq!(latencies.within(Duration::from_micros(80)), Some(0.8));
        assert_eq!(latencies.within(Duration::MAX), Some(1.0));
        assert_eq!(latencies.within(Duration::ZERO), Some(0.0));
    }

    #[test]
    fn percentiles_are_right_to_three_digits() {
        let percentiles = of((1..=100_000).map(|i| i * 100)).percentiles().unwrap();
        let expected = [100.0, 5e6, 9e6, 9.9e6, 9.99e6, 1e7, 5_000_050.0];
        for ((name, value), expected) in Percentiles::NAMES
            .iter()
            .zip(percentiles.values())
            .zip(expected)
        {
            assert!(
                (value / expected - 1.0).abs() < 1e-3,
                "{name}: {value} instead of {expected}"
            );
        }
    }

    #[test]
    fn nothing_recorded_has_no_percentiles() {
        assert_eq!(Latencies::new().percentiles(), None);
    }

    #[test]
    fn a_latency_out_of_range_counts_at_the_end_of_the_range() {
        let latencies = of([0, u64::MAX]);
        assert_eq!(latencies.count(), 2);
        let percentiles = latencies.percentiles().unwrap();
        assert!(percentiles.max >= LONGEST_NS as f64);
        // Or a logarithmic scale would begin nowhere.
        assert_eq!(percentiles.min, 1.0);
    }

    #[test]
    fn merged_latencies_are_those_of_both() {
        let mut merged = of([1000, 2000]);
        merged.merge(&of([3000]));
        assert_eq!(merged, of([1000, 2000, 3000]));
    }

    #[test]
    fn json_keeps_every_bucket() {
        let latencies = of([1, 999, 5_123, 5_123, 78_000_123, u64::MAX]);
        let text = serde_json::to_string(&latencies).unwrap();
        let back: Latencies = serde_json::from_str(&text).unwrap();
        assert_eq!(
            back.distribution().collect::<Vec<_>>(),
            latencies.distribution().collect::<Vec<_>>()
        );
        assert_eq!(back.percentiles(), latencies.percentiles());
    }

    #[test]
    fn json_with_more_latencies_than_can_be_counted_is_refused() {
        let text = format!("{{\"buckets\": [[10, {}], [20, 2]]}}", u64::MAX - 1);
        assert!(serde_json::from_str::<Latencies>(&text).is_err());
    }

    #[test]
    fn the_distribution_ends_at_one() {
        let points: Vec<_> = of([10, 20, 20, 40]).distribution().collect();
        assert_eq!(points, [(10, 0.25), (20, 0.75), (40, 1.0)]);
    }

    #[test]
    fn medians_of_odd_and_even_numbers() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn rates_of_an_empty_stretch_are_zero() {
        let nothing = Throughput {
            messages: 0,
            bytes: 0,
            lost: 0,
            nanoseconds: 0,
        };
        assert_eq!(
            (
                nothing.messages_per_second(),
                nothing.goodput_bits_per_second(),
                nothing.loss()
            ),
            (0.0, 0.0, 0.0)
        );
        let some = Throughput {
            messages: 30,
            bytes: 300,
            lost: 10,
            nanoseconds: 500_000_000,
        };
        assert_eq!(
            (
                some.messages_per_second(),
                some.goodput_bits_per_second(),
                some.loss()
            ),
            (60.0, 4800.0, 0.25)
        );
    }
}
