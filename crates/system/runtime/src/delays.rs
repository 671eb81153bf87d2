//! How long messages from other nodes were on their way, by traffic class: histograms that a lane writes and anybody reads.
//!
//! A histogram is log-linear: 16 buckets to each power of two from 1 µs to 17 s. What a quantile says is never too small, and too
//! large by a sixteenth at most, or, below 1 µs, by that.

use std::ops::Range;

use takt_time::TrafficClass;

use crate::counters::Counter;

/// Powers of two between the first bucket and the last one.
const BITS: Range<u32> = 10..34;

/// Each is divided into so many buckets.
const PARTS: u32 = 1 << PART_BITS;
const PART_BITS: u32 = 4;

/// Buckets of a histogram: the first one counts up to 1024 ns, and the last one what is above [`bucket_end`] of the one before.
pub const BUCKETS: usize = (PARTS * (BITS.end - BITS.start)) as usize + 2;

/// Longer delays are counted as this: 17 s.
pub const LONGEST_NS: u64 = (1 << BITS.end) + 1;

/// The longest delay that a bucket counts; none of the last one.
pub fn bucket_end(bucket: usize) -> Option<u64> {
    let Some(at) = bucket.checked_sub(1) else {
        return Some(1 << BITS.start);
    };
    let (bits, part) = (BITS.start + at as u32 / PARTS, at as u64 % u64::from(PARTS));
    (bits < BITS.end).then(|| (u64::from(PARTS) + 1 + part) << (bits - PART_BITS))
}

/// The bucket of a delay.
#[inline]
fn bucket(delay_ns: u64) -> usize {
    let below = delay_ns.clamp(1, LONGEST_NS) - 1;
    let bits = below.checked_ilog2().unwrap_or(0);
    match bits.checked_sub(BITS.start) {
        None => 0,
        Some(at) => {
            let part = (below >> (bits - PART_BITS)) as u32 % PARTS;
            (1 + PARTS * at + part) as usize
        }
    }
}

/// The delays that a lane has noted: 25 KiB, of which a class in use touches what its delays are.
#[derive(Debug, Default)]
pub struct DelayCounters([Histogram; TrafficClass::COUNT]);

/// Those of a class.
#[derive(Debug)]
struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_ns: Counter,
    longest_ns: Counter,
    negative: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| Counter::default()),
            sum_ns: Counter::default(),
            longest_ns: Counter::default(),
            negative: Counter::default(),
        }
    }
}

impl DelayCounters {
    /// Notes that a message was so many nanoseconds on its way, by two clocks.
    #[inline]
    pub(crate) fn arrived(&self, class: TrafficClass, delay_ns: i64) {
        let of = &self.0[usize::from(class.number())];
        let Ok(delay_ns) = u64::try_from(delay_ns) else {
            return of.negative.add(1);
        };
        let delay_ns = delay_ns.min(LONGEST_NS);
        of.buckets[bucket(delay_ns)].add(1);
        of.sum_ns.set(of.sum_ns.get().saturating_add(delay_ns));
        if delay_ns > of.longest_ns.get() {
            of.longest_ns.set(delay_ns);
        }
    }

    /// Reads a class.
    pub fn read(&self, class: TrafficClass) -> DelayReading {
        let of = &self.0[usize::from(class.number())];
        DelayReading {
            buckets: std::array::from_fn(|bucket| of.buckets[bucket].get()),
            sum_ns: of.sum_ns.get(),
            longest_ns: of.longest_ns.get(),
            negative: of.negative.get(),
        }
    }
}

/// A reading of one class of [`DelayCounters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayReading {
    /// Messages by their delay, from when their sender's lane took them until they were whole here: see [`bucket_end`].
    pub buckets: [u64; BUCKETS],
    /// All of these delays together, each at most [`LONGEST_NS`].
    pub sum_ns: u64,
    /// The longest one, at most [`LONGEST_NS`].
    pub longest_ns: u64,
    /// Messages that came before they were sent, which are in no bucket: the clocks of the nodes differ.
    pub negative: u64,
}

impl Default for DelayReading {
    fn default() -> Self {
        Self {
            buckets: [0; BUCKETS],
            sum_ns: 0,
            longest_ns: 0,
            negative: 0,
        }
    }
}

impl std::ops::AddAssign<&Self> for DelayReading {
    fn add_assign(&mut self, other: &Self) {
        for (sum, more) in self.buckets.iter_mut().zip(other.buckets) {
            *sum = sum.saturating_add(more);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.negative = self.negative.saturating_add(other.negative);
    }
}

impl DelayReading {
    /// Messages in the buckets.
    pub fn count(&self) -> u64 {
        let add = |sum: u64, more: &u64| sum.saturating_add(*more);
        self.buckets.iter().fold(0, add)
    }

    /// What so many of a thousand messages were on their way at most: the end of a bucket, or the longest delay if that is
    /// shorter. None: there were no messages.
    pub fn quantile(&self, per_mille: u32) -> Option<u64> {
        let count = u128::from(self.count());
        let rank = (count * u128::from(per_mille)).div_ceil(1000).max(1);
        let mut seen = 0;
        let reaches = |messages: &u64| {
            seen += u128::from(*messages);
            seen >= rank
        };
        let bucket = self.buckets.iter().position(reaches)?;
        Some(
            bucket_end(bucket)
                .unwrap_or(LONGEST_NS)
                .min(self.longest_ns),
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLASS: TrafficClass = TrafficClass::BEST_EFFORT;

    fn noted(delays: &[i64]) -> DelayReading {
        let counters = DelayCounters::default();
        delays
            .iter()
            .for_each(|delay| counters.arrived(CLASS, *delay));
        counters.read(CLASS)
    }

    /// Delays of every size.
    fn delays() -> impl Strategy<Value = Vec<i64>> {
        let one = (0..35_u32, any::<i64>()).prop_map(|(bits, value)| value & ((2 << bits) - 1));
        proptest::collection::vec(one, 1..300)
    }

    proptest! {
        #[test]
        fn a_delay_is_in_the_first_bucket_that_does_not_end_before_it(delay_ns in 0..2 * LONGEST_NS) {
            let holds = |bucket: &usize| bucket_end(*bucket).is_none_or(|end| delay_ns <= end);
            prop_assert_eq!(Some(bucket(delay_ns)), (0..BUCKETS).find(holds));
        }

        #[test]
        fn a_quantile_is_never_too_small_and_a_sixteenth_too_large_at_most(
            mut delays in delays(),
            per_mille in 0..=1000_u32,
        ) {
            let reading = noted(&delays);
            delays.sort_unstable();
            let sorted: Vec<u64> = delays.iter().map(|delay| (*delay as u64).min(LONGEST_NS)).collect();
            let rank = (sorted.len() * per_mille as usize).div_ceil(1000).max(1);
            let exact = sorted[rank - 1];
            let told = reading.quantile(per_mille).expect("messages");
            prop_assert!(exact <= told && told <= (exact + exact / 16).max(1024), "{told} for {exact}");
            prop_assert_eq!(reading.count(), sorted.len() as u64);
            prop_assert_eq!(reading.sum_ns, sorted.iter().sum::<u64>());
            prop_assert_eq!(reading.longest_ns, *sorted.last().expect("some"));
            prop_assert_eq!(reading.quantile(1000), sorted.last().copied());
        }

        #[test]
        fn two_lanes_together_are_as_one(first in delays(), second in delays()) {
            let mut sum = noted(&first);
            sum += &noted(&second);
            prop_assert_eq!(sum, noted(&[first, second].concat()));
        }
    }

    #[test]
    fn ends_of_buckets_are_their_own_and_a_sixteenth_apart() {
        let ends: Vec<u64> = (0..BUCKETS).map_while(bucket_end).collect();
        assert_eq!(ends.len(), BUCKETS - 1);
        assert_eq!(ends[..3], [1024, 1088, 1152]);
        assert_eq!(ends[16..19], [2048, 2176, 2304]);
        assert_eq!(ends.last(), Some(&(1 << 34)));
        for (at, end) in ends.into_iter().enumerate() {
            assert_eq!([end, end + 1].map(bucket), [at, at + 1]);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn what_comes_before_it_was_sent_is_counted_apart() {
        assert_eq!(noted(&[]).quantile(500), None);
        let reading = noted(&[-1, i64::MIN, 0, i64::MAX]);
        assert_eq!((reading.count(), reading.negative), (2, 2));
        let told = [0, 500, 501, 1000].map(|per_mille| reading.quantile(per_mille));
        assert_eq!(told, [1024, 1024, LONGEST_NS, LONGEST_NS].map(Some));
        assert_eq!(reading.sum_ns, LONGEST_NS);
        // Nothing but such ones.
        assert_eq!(noted(&[-5]).quantile(500), None);
    }

    #[test]
    fn full_counters_stay_full() {
        let counters = DelayCounters::default();
        counters.0[0].sum_ns.set(u64::MAX - 1);
        counters.arrived(CLASS, 2000);
        let mut sum = counters.read(CLASS);
        assert_eq!(sum.sum_ns, u64::MAX);
        sum += &sum.clone();
        assert_eq!((sum.sum_ns, sum.count()), (u64::MAX, 2));
    }
}
