//! The round trip, smoothed as in RFC 6298, section 2.

use crate::receiver::QUIET;

/// Samples above it are refused: no network that a flow is repaired over is so slow.
const MOST_NS: i64 = 60_000_000_000;

/// What a tail probe waits at least: two paces of acknowledgements.
const TAIL_NS: i64 = 40_000;

/// A round trip's estimate.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    smoothed: Option<i64>,
    variation: i64,
    least: i64,
    first: i64,
    most: i64,
}

impl RoundTrip {
    /// Timeouts in nanoseconds: the least, the one before any sample, the most.
    pub fn new(least: i64, first: i64, most: i64) -> Self {
        Self {
            smoothed: None,
            variation: 0,
            least,
            first,
            most,
        }
    }

    /// A sample: `stamp` came back at `now`, having been held for `held` on the far side. Both are the peer's word: what
    /// cannot be is ignored. False then.
    pub fn sample(&mut self, now: i64, stamp: i64, held: i64) -> bool {
        let sample = now.checked_sub(stamp).and_then(|ns| ns.checked_sub(held));
        let Some(sample @ 0..=MOST_NS) = sample else {
            return false;
        };
        if held < 0 {
            return false;
        }
        match self.smoothed {
            None => {
                self.smoothed = Some(sample);
                self.variation = sample / 2;
            }
            Some(smoothed) => {
                self.variation = (3 * self.variation + (smoothed - sample).abs()) / 4;
                self.smoothed = Some((7 * smoothed + sample) / 8);
            }
        }
        true
    }

    /// The smoothed round trip; `None`: nothing measured.
    pub fn smoothed(&self) -> Option<i64> {
        self.smoothed
    }

    /// How long after the last message nothing may be heard of it, as the far side acknowledges what it has after [`QUIET`]
    /// round trips without another message: as in RFC 8985, section 7.2. Never more than the retransmission timeout.
    pub fn tail(&self) -> i64 {
        let round_trip = self.smoothed.unwrap_or(self.first);
        let quiet = round_trip.saturating_mul(1 + QUIET);
        quiet
            .saturating_add(4 * self.variation)
            .max(TAIL_NS)
            .min(self.timeout(0))
    }

    /// The retransmission timeout, doubled `backoff` times.
    pub fn timeout(&self, backoff: u32) -> i64 {
        let base = match self.smoothed {
            None => self.first,
            Some(smoothed) => (smoothed + 4 * self.variation).max(self.least),
        };
        base.saturating_mul(1 << backoff.min(20)).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smooths_as_rfc_6298_says() {
        let mut round_trip = RoundTrip::new(1, 1_000, 1_000_000);
        assert_eq!(round_trip.timeout(0), 1_000);
        assert!(round_trip.sample(900, 0, 100));
        // SRTT = R, RTTVAR = R/2, RTO = SRTT + 4 RTTVAR.
        assert_eq!(round_trip.smoothed(), Some(800));
        assert_eq!(round_trip.timeout(0), 2_400);
        assert!(round_trip.sample(1_600, 0, 0));
        // RTTVAR = 3/4 400 + 1/4 800, SRTT = 7/8 800 + 1/8 1600.
        assert_eq!(round_trip.smoothed(), Some(900));
        assert_eq!(round_trip.timeout(1), 2 * (900 + 4 * 500));
        assert_eq!(round_trip.timeout(u32::MAX), 1_000_000);
    }

    #[test]
    fn refuses_samples_that_cannot_be() {
        let mut round_trip = RoundTrip::new(1, 1_000, 1_000_000);
        for (now, stamp, held) in [
            (0, 1, 0),
            (10, 0, 11),
            (10, 0, -1),
            (i64::MAX, i64::MIN, 0),
            (0, 0, i64::MIN),
            (i64::MAX, 0, 0),
        ] {
            assert!(!round_trip.sample(now, stamp, held), "{now} {stamp} {held}");
        }
        assert_eq!(round_trip.smoothed(), None);
    }
}
