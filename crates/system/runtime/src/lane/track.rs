//! Sequence numbers of one sender on one channel: what is new, what was lost, what came twice.
//!
//! At most once: a number is accepted at most one time. The last [`WINDOW`] numbers are remembered as in
//! the anti-replay window of RFC 4303, section 3.4.3; anything older is taken for a duplicate.

/// How far behind the newest a message may arrive.
pub const WINDOW: u64 = 64;

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Deliver; so many before it have not arrived.
    New {
        /// The full sequence number.
        sequence: u64,
        /// Messages skipped.
        lost: u64,
    },
    /// Deliver; it had been counted as lost.
    Late {
        /// The full sequence number.
        sequence: u64,
    },
    /// Drop.
    Duplicate,
}

/// The receive state of a sender's channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track {
    epoch: u8,
    /// The next number expected.
    next: u64,
    /// Bit `i`: number `next - 1 - i` has been seen.
    seen: u64,
}

impl Track {
    /// Starts with the first message seen: nothing before it counts as lost.
    pub fn start(epoch: u8, sequence: u32) -> Self {
        Self {
            epoch,
            next: u64::from(sequence) + 1,
            seen: u64::MAX,
        }
    }

    /// Whether the sender has begun the channel anew since.
    pub fn is_of(&self, epoch: u8) -> bool {
        self.epoch == epoch
    }

    /// Judges the number whose low 32 bits are `low`.
    pub fn accept(&mut self, low: u32) -> Verdict {
        // The number nearest to what is expected that has these low bits.
        let ahead = i64::from(low.wrapping_sub(self.next as u32) as i32);
        let Some(sequence) = self.next.checked_add_signed(ahead) else {
            return Verdict::Duplicate;
        };
        if ahead >= 0 {
            let lost = ahead as u64;
            self.seen = if lost + 1 >= 64 {
                1
            } else {
                (self.seen << (lost + 1)) | 1
            };
            self.next = sequence + 1;
            return Verdict::New { sequence, lost };
        }
        let age = self.next - 1 - sequence;
        if age >= WINDOW || self.seen & (1 << age) != 0 {
            return Verdict::Duplicate;
        }
        self.seen |= 1 << age;
        Verdict::Late { sequence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn no_number_is_accepted_twice_and_lost_less_late_is_what_is_missing(
            start in any::<u32>(),
            steps in proptest::collection::vec(0u64..40, 1..300),
            echo in proptest::collection::vec(0usize..70, 300),
        ) {
            let mut track = Track::start(0, start);
            let mut newest = u64::from(start);
            let mut seen = HashSet::from([newest]);
            let (mut lost, mut late) = (0u64, 0u64);
            for (step, back) in steps.into_iter().zip(echo) {
                newest += step + 1;
                for number in [newest, newest.saturating_sub(back as u64)] {
                    match track.accept(number as u32) {
                        Verdict::New { sequence, lost: n } => {
                            prop_assert_eq!(sequence, number);
                            prop_assert!(seen.insert(number));
                            lost += n;
                        }
                        Verdict::Late { sequence } => {
                            prop_assert_eq!(sequence, number);
                            prop_assert!(seen.insert(number));
                            late += 1;
                        }
                        Verdict::Duplicate => {}
                    }
                }
            }
            let missing = (u64::from(start)..=newest).filter(|n| !seen.contains(n)).count() as u64;
            prop_assert_eq!(lost - late, missing);
        }
    }

    #[test]
    fn numbers_before_the_first_are_not_accepted() {
        let mut track = Track::start(0, 100);
        assert_eq!(track.accept(99), Verdict::Duplicate);
        assert_eq!(
            track.accept(101),
            Verdict::New {
                sequence: 101,
                lost: 0
            }
        );
    }

    #[test]
    fn the_low_half_wraps() {
        let mut track = Track::start(0, u32::MAX - 1);
        assert_eq!(
            track.accept(u32::MAX),
            Verdict::New {
                sequence: u64::from(u32::MAX),
                lost: 0
            }
        );
        assert_eq!(
            track.accept(0),
            Verdict::New {
                sequence: 1 << 32,
                lost: 0
            }
        );
        assert_eq!(
            track.accept(2),
            Verdict::New {
                sequence: (1 << 32) + 2,
                lost: 1
            }
        );
        assert_eq!(
            track.accept(1),
            Verdict::Late {
                sequence: (1 << 32) + 1
            }
        );
    }
}
