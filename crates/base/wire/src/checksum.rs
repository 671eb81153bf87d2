//! The Internet checksum of RFC 1071, in pieces that combine.
//!
//! A [`PartialSum`] is a one's complement sum that is not inverted yet. Sums of parts of a packet
//! are added up in any order, which lets a sender compute the constant part of its headers once.

/// A one's complement sum of 16-bit words.
///
/// It is kept in 64 bits and in the byte order of the machine: RFC 1071, section 2 (B) shows that
/// the order does not matter until the sum is read, and (C) that wider additions give the same sum.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartialSum(u64);

impl PartialSum {
    /// The sum of nothing.
    pub const ZERO: Self = Self(0);

    /// Sums `bytes` as big-endian words; an odd last byte is padded with zero on the right.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        let (blocks, rest) = bytes.as_chunks::<32>();
        let mut sum = if blocks.is_empty() {
            Self::ZERO
        } else {
            Self::of_blocks(blocks)
        };
        let (words, rest) = rest.as_chunks::<4>();
        for word in words {
            sum = sum.plus(Self(u64::from(u32::from_ne_bytes(*word))));
        }
        let last = match *rest {
            [] => return sum,
            [a] => [a, 0, 0, 0],
            [a, b] => [a, b, 0, 0],
            [a, b, c, ..] => [a, b, c, 0],
        };
        sum.plus(Self(u64::from(u32::from_ne_bytes(last))))
    }

    /// Eight independent chains of 32-bit words, each in 64 bits: no carry to handle for any slice
    /// shorter than 128 GiB, and the compiler turns the loop into vector additions. Out of line,
    /// because inlined into some callers the loop came out half as fast.
    #[inline(never)]
    fn of_blocks(blocks: &[[u8; 32]]) -> Self {
        let mut lanes = [0u64; 8];
        for block in blocks {
            for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<4>().0) {
                *lane = lane.wrapping_add(u64::from(u32::from_ne_bytes(*word)));
            }
        }
        lanes
            .into_iter()
            .fold(Self::ZERO, |sum, lane| sum.plus(Self(lane)))
    }

    /// The sum of one big-endian word whose value is `word`.
    #[inline]
    pub const fn of_word(word: u16) -> Self {
        Self(word.to_be() as u64)
    }

    /// Adds the sum of bytes that start at an even distance from those of `self`.
    #[inline]
    pub const fn plus(self, other: Self) -> Self {
        let (sum, carry) = self.0.overflowing_add(other.0);
        Self(sum + carry as u64)
    }

    /// Adds the sum of bytes that start at an odd distance from those of `self` (RFC 1071,
    /// section 2 (B): their bytes weigh the other way round).
    #[inline]
    pub const fn plus_odd(self, other: Self) -> Self {
        self.plus(Self(other.fold().swap_bytes() as u64))
    }

    /// The sum with its carries added back, in the byte order of the machine.
    #[inline]
    const fn fold(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        ((sum >> 16) + (sum & 0xffff)) as u16
    }

    /// The value of the checksum field: to be written in big-endian order, computed with the field
    /// itself at zero.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !u16::from_be(self.fold())
    }

    /// Whether the sum, taken over bytes that include their checksum, says that they are intact.
    #[inline]
    pub const fn is_intact(self) -> bool {
        self.fold() == u16::MAX
    }
}

/// A checksum after one 16-bit word under it was changed from `old` to `new` (RFC 1624, equation 3).
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    PartialSum::of_word(!checksum)
        .plus(PartialSum::of_word(!old))
        .plus(PartialSum::of_word(new))
        .checksum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Word by word, as RFC 1071 section 1 states it.
    fn by_definition(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071_sums_to_ddf2() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(PartialSum::of(&bytes).checksum(), !0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624_is_updated_to_zero() {
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn ones_in_every_bit_lose_no_carry() {
        for len in 0..200 {
            let bytes = vec![0xff; len];
            assert_eq!(
                PartialSum::of(&bytes).checksum(),
                by_definition(&bytes),
                "{len} bytes"
            );
        }
        let top = PartialSum(u64::MAX);
        assert_eq!(top.plus(top).fold(), u16::MAX);
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_the_definition(bytes in vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(PartialSum::of(&bytes).checksum(), by_definition(&bytes));
        }

        #[test]
        fn sums_of_two_parts_combine(bytes in vec(any::<u8>(), 1..300), at: prop::sample::Index) {
            let at = at.index(bytes.len());
            let (left, right) = bytes.split_at(at);
            let (left, right) = (PartialSum::of(left), PartialSum::of(right));
            let sum = if at % 2 == 0 { left.plus(right) } else { left.plus_odd(right) };
            prop_assert_eq!(sum.checksum(), by_definition(&bytes));
        }

        #[test]
        fn data_with_its_checksum_is_intact_until_a_bit_flips(
            words in vec(any::<[u8; 2]>(), 1..100), bit: prop::sample::Index,
        ) {
            let mut bytes = words.concat();
            bytes.extend(by_definition(&bytes).to_be_bytes());
            prop_assert!(PartialSum::of(&bytes).is_intact());
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!PartialSum::of(&bytes).is_intact());
        }

        #[test]
        fn an_update_gives_the_checksum_of_the_changed_data(
            words in vec(any::<u16>(), 1..40), which: prop::sample::Index, new: u16,
        ) {
            let bytes = |words: &[u16]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>();
            let mut changed = words.clone();
            let which = which.index(words.len());
            changed[which] = new;
            // Of all zeroes the sum has two forms; a packet is never all zeroes.
            prop_assume!(words.iter().any(|w| *w != 0) && changed.iter().any(|w| *w != 0));
            let updated = update(by_definition(&bytes(&words)), words[which], new);
            prop_assert_eq!(updated, by_definition(&bytes(&changed)));
        }
    }
}
