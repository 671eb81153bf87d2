//! Loss, duplicates and reordering by sequence numbers of 8 to 64 bits.
//!
//! As in RFC 3550, appendix A.1 and A.3: what is expected goes by the highest number, and a jump that is too far to
//! be loss is a restart once the next number follows it. A packet that comes late is not lost, but reordered; one
//! whose number was seen among the last 64 is a duplicate. What is later than that may also be a sender that has begun
//! anew a little behind: that is told by how many follow each other.

/// Jumps forward of up to this many packets (or a quarter of the numbers, if there are fewer) are loss, by RFC 3550. Of numbers of more than
/// 16 bits also those of as many times more as there are more numbers, up to [`MOST_DROPOUT`], once the next number follows.
const MAX_DROPOUT: u64 = 3000;
/// Nearly three minutes of 100,000 packets a second.
const MOST_DROPOUT: u64 = 1 << 24;
/// As many late packets that follow each other, with none ahead between them, are a restart.
const LATE_RUN: u64 = 64;
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
    /// The next one but one, after as many lost ones: the one before this went astray.
    Jump {
        /// Packets between that and the one before it.
        lost: u64,
    },
    /// One that was taken for lost.
    Late,
    /// One that was seen.
    Duplicate,
    /// Too far away to tell; if the next one follows it, the sender has begun anew, or many are lost.
    Astray,
    /// The sender has begun anew with the number before this one, or with one so many packets earlier that were taken for late.
    Restart {
        /// How many those are.
        late: u64,
    },
}

/// The numbers of one flow.
#[derive(Clone, Debug)]
pub struct Sequence {
    highest: u64,
    /// Bit n: `highest - n` was seen.
    seen: u64,
    /// What would follow a number that went astray.
    astray: u64,
    /// Late packets that follow each other, beyond what is remembered; not counted yet.
    run: u64,
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
            run: 0,
            bits: bits.clamp(8, 64),
            started: false,
            lost: 0,
            duplicates: 0,
            reordered: 0,
            restarts: 0,
        }
    }

    /// The numbers of another source, with what was counted so far.
    pub fn of_another(self) -> Self {
        Self {
            lost: self.lost,
            duplicates: self.duplicates,
            reordered: self.reordered,
            restarts: self.restarts,
            ..Self::new(self.bits)
        }
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (64 - u32::from(self.bits))
    }

    /// The longest jump that is loss.
    pub fn dropout(&self) -> u64 {
        let more = self.bits.saturating_sub(16).min(24);
        (MAX_DROPOUT << more).min(MOST_DROPOUT).min(self.mask() / 4)
    }

    fn begin(&mut self, number: u64) {
        (self.highest, self.seen, self.started) = (number, 1, true);
        (self.astray, self.run) = (u64::MAX, 0);
    }

    /// Goes on with this number, whatever was before: so much time has passed that numbers do not tell how many are missing.
    pub fn go_on(&mut self, number: u64) -> Step {
        if !self.started {
            return self.take(number);
        }
        self.begin(number & self.mask());
        Step::Restart { late: 0 }
    }

    /// Takes packets for lost that numbers say nothing of.
    pub fn lose(&mut self, lost: u64) {
        self.lost = self.lost.saturating_add(lost);
    }

    /// The run of late packets was one.
    fn end_run(&mut self) {
        self.reordered += self.run;
        self.lost = self.lost.saturating_sub(self.run);
        self.run = 0;
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
        let far = self.dropout();
        if ahead == 0 {
            self.duplicates += 1;
            return Step::Duplicate;
        }
        if ahead <= far.min(MAX_DROPOUT) {
            self.seen = if ahead < 64 {
                self.seen << ahead | 1
            } else {
                1
            };
            self.highest = number;
            self.astray = u64::MAX;
            self.end_run();
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
        let follows = self.astray == number;
        if follows && self.run == 0 && ahead - 1 <= far {
            self.begin(number);
            self.seen |= 2;
            self.lost += ahead - 2;
            return Step::Jump { lost: ahead - 2 };
        }
        let in_row = if follows { self.run } else { 0 };
        self.astray = number.wrapping_add(1) & mask;
        // Counters begin at 0 or 1: a second one from there on is none that is late.
        let begins = self.bits >= 32 && in_row == 1 && number <= 2;
        let went_astray = follows && in_row == 0;
        if behind <= far && !begins && !went_astray && in_row < LATE_RUN {
            if !follows {
                self.end_run();
            }
            self.run += 1;
            return Step::Late;
        }
        if follows {
            let late = std::mem::take(&mut self.run);
            self.begin(number);
            // The ones before it were the first.
            self.seen |= if late >= 63 {
                u64::MAX
            } else {
                (2 << late.max(1)) - 1
            };
            self.restarts += 1;
            return Step::Restart { late };
        }
        self.end_run();
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
        assert_eq!(sequence.take(100_000_000), Step::Astray);
        assert_eq!(sequence.take(100_000_001), Step::Restart { late: 0 });
        assert_eq!(sequence.take(100_000_002), Step::Next { lost: 0 });
        assert_eq!(sequence.take(100_000_000), Step::Duplicate);
        assert_eq!((sequence.lost, sequence.restarts), (0, 1));
    }

    #[test]
    fn how_far_a_jump_may_be_goes_by_how_many_numbers_there_are() {
        for (bits, most) in [
            (8, 63),
            (16, 3000),
            (24, 768_000),
            (32, 1 << 24),
            (64, 1 << 24),
        ] {
            let mut sequence = Sequence::new(bits);
            sequence.take(0);
            let lost = most - 1;
            match bits <= 16 {
                true => assert_eq!(sequence.take(most), Step::Next { lost }, "{bits}"),
                false => {
                    assert_eq!(sequence.take(most), Step::Astray, "{bits}");
                    assert_eq!(sequence.take(1), Step::Next { lost: 0 }, "{bits}");
                    assert_eq!(sequence.take(most + 1), Step::Astray, "{bits}");
                    assert_eq!(sequence.take(most + 2), Step::Jump { lost }, "{bits}");
                }
            }
            assert_eq!((sequence.lost, sequence.restarts), (lost, 0), "{bits}");
            let far = sequence.highest + most + 1;
            assert_eq!(sequence.take(far), Step::Astray, "{bits}");
            assert_eq!(sequence.take(far + 1), Step::Restart { late: 0 }, "{bits}");
        }
    }

    #[test]
    fn packets_that_are_very_late_are_no_restart() {
        let mut sequence = Sequence::new(32);
        let take = |sequence: &mut Sequence, numbers: std::ops::Range<u64>| {
            numbers.map(|number| sequence.take(number)).last()
        };
        take(&mut sequence, 1000..1100);
        take(&mut sequence, 1150..1300);
        assert_eq!(sequence.lost, 50);
        assert_eq!(take(&mut sequence, 1100..1150), Some(Step::Late));
        assert_eq!(sequence.take(1300), Step::Next { lost: 0 });
        assert_eq!(
            (sequence.lost, sequence.reordered, sequence.restarts),
            (0, 50, 0)
        );
    }

    #[test]
    fn a_sender_that_begins_anew_a_little_behind_has_begun_anew() {
        // At its first number, at once.
        let mut sequence = Sequence::new(32);
        (0..500).for_each(|number| _ = sequence.take(number));
        assert_eq!(sequence.take(0), Step::Late);
        assert_eq!(sequence.take(1), Step::Restart { late: 1 });
        // Anywhere, when it has gone on for a while.
        let mut sequence = Sequence::new(16);
        (2000..3000).for_each(|number| _ = sequence.take(number));
        let steps: Vec<_> = (2500..2600).map(|number| sequence.take(number)).collect();
        assert_eq!(steps[63], Step::Late);
        assert_eq!(steps[64], Step::Restart { late: 64 });
        assert_eq!(steps[99], Step::Next { lost: 0 });
        assert_eq!(sequence.take(2598), Step::Duplicate);
        assert_eq!(
            (sequence.lost, sequence.reordered, sequence.restarts),
            (0, 0, 1)
        );
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
