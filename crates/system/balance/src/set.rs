//! A bounded set of small numbers, searched from any of them on.

/// Numbers below a bound that is fixed when the set is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    words: Box<[u64]>,
    bound: u32,
}

impl Set {
    /// Empty, for numbers below `bound`.
    pub fn new(bound: usize) -> Self {
        Self {
            words: vec![0; bound.div_ceil(64)].into(),
            bound: u32::try_from(bound).unwrap_or(u32::MAX),
        }
    }

    /// Puts a number in or takes it out. Numbers from the bound on are ignored.
    pub fn put(&mut self, number: u16, present: bool) {
        if u32::from(number) >= self.bound {
            return;
        }
        let (word, bit) = (usize::from(number / 64), 1 << (number % 64));
        match present {
            true => self.words[word] |= bit,
            false => self.words[word] &= !bit,
        }
    }

    /// Whether a number is in it.
    #[inline]
    pub fn has(&self, number: u16) -> bool {
        let word = self.words.get(usize::from(number / 64));
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// Whether no number is in it.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Numbers from the one on that `seed` stands for, and around to it. Each word is looked at twice at most.
    #[inline]
    pub fn from(&self, seed: u32) -> impl Iterator<Item = u16> + '_ {
        let start = ((u64::from(seed) * u64::from(self.bound)) >> 32) as usize;
        let count = self.words.len();
        let (first, bit) = (start / 64, start % 64);
        // The first word comes twice: its upper part at the beginning, its lower part at the end.
        let steps = if count == 0 { 0 } else { count + 1 };
        (0..steps).flat_map(move |step| {
            let at = (first + step) % count;
            let mask = match step {
                0 => u64::MAX << bit,
                _ if step == count => !(u64::MAX << bit),
                _ => u64::MAX,
            };
            Bits(self.words[at] & mask).map(move |bit| (at * 64) as u16 + bit)
        })
    }
}

/// The numbers of the bits of a word.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u16;

    #[inline]
    fn next(&mut self) -> Option<u16> {
        let bit = (self.0 != 0).then(|| self.0.trailing_zeros() as u16)?;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn every_member_comes_once_beginning_where_the_seed_says(
            bound in 0_usize..300,
            changes in proptest::collection::vec((0_u16..320, any::<bool>()), 0..200),
            seed in any::<u32>(),
        ) {
            let (mut set, mut model) = (Set::new(bound), BTreeSet::new());
            for (number, present) in changes {
                set.put(number, present);
                match present && usize::from(number) < bound {
                    true => model.insert(number),
                    false => model.remove(&number),
                };
            }
            let start = ((u64::from(seed) * bound as u64) >> 32) as u16;
            let expected: Vec<u16> = model.range(start..).chain(model.range(..start)).copied().collect();
            prop_assert_eq!(set.from(seed).collect::<Vec<_>>(), expected);
            prop_assert_eq!(set.is_empty(), model.is_empty());
            for number in 0..320 {
                prop_assert_eq!(set.has(number), model.contains(&number));
            }
        }
    }
}
