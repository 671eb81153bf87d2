//! A small histogram of times, eight buckets to each power of two: what a quantile says is at most an eighth too large. Above 32 s it says
//! that there is no limit.

/// Times below this are in the first bucket.
const SMALLEST: u64 = 64;
const BUCKETS: usize = 29 * 8;

/// How many samples fell into each bucket, from 64 ns to 32 s; the last one has all that are longer.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: [u32; BUCKETS],
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            total: 0,
        }
    }
}

fn bucket(nanos: u64) -> usize {
    let value = nanos.max(SMALLEST);
    let power = value.ilog2();
    let part = (value >> (power - 3)) & 7;
    (((power - 6) * 8) as usize + part as usize).min(BUCKETS - 1)
}

/// The largest time that falls into a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket == BUCKETS - 1 {
        return u64::MAX;
    }
    let (power, part) = (bucket as u32 / 8 + 6, bucket as u64 % 8);
    ((9 + part) << (power - 3)) - 1
}

impl Histogram {
    /// Takes a sample; a negative one counts as 0.
    #[inline]
    pub fn record(&mut self, nanos: i64) {
        let count = &mut self.counts[bucket(u64::try_from(nanos).unwrap_or(0))];
        *count = count.saturating_add(1);
        self.total += 1;
    }

    /// The time that `share` (0 to 1) of the samples do not exceed; `None` without samples.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let rank = (share.clamp(0.0, 1.0) * self.total as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        for (at, count) in self.counts.iter().enumerate() {
            below += u64::from(*count);
            if below >= rank && self.total > 0 {
                return Some(upper(at));
            }
        }
        None
    }

    /// How many samples there are.
    pub fn len(&self) -> u64 {
        self.total
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_quantile_is_never_too_small_and_at_most_an_eighth_too_large(
            mut samples in proptest::collection::vec(64_i64..100_000_000_000, 1..200),
            share in 0.0_f64..1.0,
        ) {
            let mut histogram = Histogram::default();
            samples.iter().for_each(|sample| histogram.record(*sample));
            samples.sort_unstable();
            let rank = (share * samples.len() as f64).ceil().max(1.0) as usize;
            let exact = samples[rank - 1] as u64;
            let told = histogram.quantile(share).expect("samples");
            let most = match exact >= 15 << 31 {
                true => u64::MAX,
                false => exact + exact / 8 + 1,
            };
            prop_assert!(told >= exact && told <= most, "{told} for {exact}");
        }
    }

    #[test]
    fn any_time_has_a_bucket() {
        let mut histogram = Histogram::default();
        for sample in [i64::MIN, -1, 0, 1, 64, i64::MAX] {
            histogram.record(sample);
        }
        assert_eq!(histogram.len(), 6);
        assert!(histogram.quantile(1.0).is_some());
    }
}
