//! Loss, duplicates and reordering by sequence numbers of 8 to 64 bits.
//!
//! As in RFC 3550, appendix A.1 and A.3: what is expected goes by the highest number, and a jump that is too far to
//! be loss is a restart once the next number follows it. A packet that comes late is not lost, but reordered; one
//! whose number was seen among the last 64 is a duplicate.

/// Jumps forward beyond this many packets (or a quarter of the numbers, if there are fewer) are restarts.
const MAX_DROPOUT: u64 = 3000;
/// How far back numbers are remembered.
const REMEMBERED: u64 = 64;

/// What a number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The first of all.
    First,
    /// The next one, after as many lost ones.
    Next {
        /// Packets between it and the one before.
        lost: u64,
    },
    /// One that was taken for lost.
    Late,
    /// One that was seen.
    Duplicate,
    /// Too far away to tell; if the next one follows it, the sender has begun anew.
    Astray,
    /// The sender has begun anew with the number before this one.
    Restart,
}

/// The numbers of one flow.
#[derive(Clone, Debug)]
pub struct Sequence {
    highest: u64,
    /// Bit n: `highest - n` was seen.
    seen: u64,
    /// What would follow a number that went astray.
    astray: u64,
    bits: u8,
    started: bool,
    /// How many packets were lost.
    pub lost: u64,
    /// How many came twice.
    pub duplicates: u64,
    /// How many came late.
    pub reordered: u64,
    /// How many times the sender began anew.
    pub restarts: u32,
}

impl Sequence {
    /// Numbers of `bits` bits, 8 to 64.
    pub fn new(bits: u8) -> Self {
        Self {
            highest: 0,
            seen: 0,
            astray: u64::MAX,
            bits: bits.clamp(8, 64),
            started: false,
            lost: 0,
            duplicates: 0,
            reordered: 0,
            restarts: 0,
        }
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (64 - u32::from(self.bits))
    }

    fn begin(&mut self, number: u64) {
        (self.highest, self.seen, self.started) = (number, 1, true);
        self.astray = u64::MAX;
    }

    /// Takes the number of the next packet.
    #[inline]
    pub fn take(&mut self, number: u64) -> Step {
        let mask = self.mask();
        let number = number & mask;
        if !self.started {
            self.begin(number);
            return Step::First;
        }
        let ahead = number.wrapping_sub(self.highest) & mask;
        let far = MAX_DROPOUT.min(mask / 4);
        if ahead == 0 {
            self.duplicates += 1;
            return Step::Duplicate;
        }
        if ahead <= far {
            self.seen = if ahead < 64 {
                self.seen << ahead | 1
            } else {
                1
            };
            self.highest = number;
            self.astray = u64::MAX;
            self.lost += ahead - 1;
            return Step::Next { lost: ahead - 1 };
        }
        let behind = self.highest.wrapping_sub(number) & mask;
        if behind < REMEMBERED {
            let bit = 1 << behind;
            if self.seen & bit != 0 {
                self.duplicates += 1;
                return Step::Duplicate;
            }
            self.seen |= bit;
            self.reordered += 1;
            // Numbers before the first packet were never taken for lost.
            self.lost = self.lost.saturating_sub(1);
            return Step::Late;
        }
        if self.astray == number {
            self.begin(number);
            // The one that went astray was the first.
            self.seen |= 2;
            self.restarts += 1;
            return Step::Restart;
        }
        self.astray = number.wrapping_add(1) & mask;
        Step::Astray
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_wrapped_number_follows() {
        let mut sequence = Sequence::new(16);
        for number in [65_534, 65_535, 0, 1] {
            sequence.take(number);
        }
        assert_eq!((sequence.lost, sequence.restarts), (0, 0));
        assert_eq!(sequence.take(4), Step::Next { lost: 2 });
        assert_eq!(sequence.take(2), Step::Late);
        assert_eq!(sequence.take(2), Step::Duplicate);
        assert_eq!(
            (sequence.lost, sequence.reordered, sequence.duplicates),
            (1, 1, 1)
        );
    }

    #[test]
    fn one_number_astray_is_no_restart_and_two_in_a_row_are() {
        let mut sequence = Sequence::new(32);
        sequence.take(10);
        assert_eq!(sequence.take(4_000_000_000), Step::Astray);
        assert_eq!(sequence.take(11), Step::Next { lost: 0 });
        assert_eq!(sequence.take(1_000_000), Step::Astray);
        assert_eq!(sequence.take(1_000_001), Step::Restart);
        assert_eq!(sequence.take(1_000_002), Step::Next { lost: 0 });
        assert_eq!((sequence.lost, sequence.restarts), (0, 1));
    }

    proptest! {
        #[test]
        fn what_is_dropped_doubled_and_swapped_is_counted(
            bits in prop_oneof![Just(8_u8), Just(16), Just(32), Just(64)],
            start in any::<u64>(),
            fates in proptest::collection::vec(0..20_u8, 1..400),
        ) {
            // 0 to 16: arrives; 17: dropped; 18: comes twice; 19: changes places with the next.
            let (mut sent, mut dropped, mut doubled) = (Vec::new(), 0, 0);
            let last = fates.len() - 1;
            let mut swap = None;
            let mut swapped = 0;
            let mut row = 0;
            for (at, fate) in fates.iter().enumerate() {
                let number = start.wrapping_add(at as u64);
                // The ends are seen, else their loss would not be.
                let fate = if at == 0 || at == last || row > 20 { 0 } else { *fate };
                row = if fate == 17 { row + 1 } else { 0 };
                match fate {
                    17 => dropped += 1,
                    18 => {
                        sent.extend([number, number]);
                        doubled += 1;
                    }
                    19 if swap.is_none() => {
                        swap = Some(number);
                        continue;
                    }
                    _ => sent.push(number),
                }
                if fate != 17 && let Some(late) = swap.take() {
                    sent.push(late);
                    swapped += 1;
                }
            }
            let mut sequence = Sequence::new(bits);
            for number in sent {
                sequence.take(number);
            }
            prop_assert_eq!(sequence.lost, dropped);
            prop_assert_eq!(sequence.duplicates, doubled);
            prop_assert_eq!(sequence.reordered, swapped);
            prop_assert_eq!(sequence.restarts, 0);
        }
    }
}
