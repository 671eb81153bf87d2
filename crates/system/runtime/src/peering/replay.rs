//! Which counters of a key have been used: each at most once (RFC 6479, a bitmap that is shifted by words).

/// Words of the bitmap. One of them is being reused, so the window has 64 fewer bits.
const WORDS: usize = 65;

/// How far behind the greatest counter a datagram may arrive: frames with launch times leave behind younger ones.
pub const REPLAY_WINDOW: u64 = (WORDS as u64 - 1) * 64;

/// The counters of one key that have been accepted.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// One more than the greatest counter accepted.
    next: u64,
    bits: [u64; WORDS],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self {
            next: 0,
            bits: [0; WORDS],
        }
    }
}

impl ReplayWindow {
    /// Whether this counter is new; it is not from then on. Ask only when its tag is good.
    #[inline]
    pub fn accept(&mut self, counter: u64) -> bool {
        if counter >= self.next {
            let (new, old) = (counter / 64, self.next.saturating_sub(1) / 64);
            for step in 1..=(new - old).min(WORDS as u64) {
                self.bits[((old + step) % WORDS as u64) as usize] = 0;
            }
            self.next = counter + 1;
        } else if self.next - 1 - counter >= REPLAY_WINDOW {
            return false;
        }
        let word = &mut self.bits[((counter / 64) % WORDS as u64) as usize];
        let bit = 1 << (counter % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn every_counter_of_the_window_is_accepted_once(
            steps in proptest::collection::vec((0u64..6000, 0u64..5000), 1..200),
        ) {
            let mut window = ReplayWindow::default();
            let mut seen = HashSet::new();
            let mut greatest = 0;
            for (forward, back) in steps {
                for counter in [greatest + forward, (greatest + forward).saturating_sub(back)] {
                    greatest = greatest.max(counter);
                    let wanted = greatest - counter < REPLAY_WINDOW && seen.insert(counter);
                    prop_assert_eq!(window.accept(counter), wanted, "{}", counter);
                }
            }
        }
    }

    #[test]
    fn a_leap_to_the_end_of_the_numbers_costs_a_bounded_effort() {
        let mut window = ReplayWindow::default();
        assert!(window.accept(0) && window.accept((1 << 56) - 1));
        assert!(!window.accept(0) && !window.accept((1 << 56) - 1));
        assert!(window.accept((1 << 56) - REPLAY_WINDOW));
    }
}
