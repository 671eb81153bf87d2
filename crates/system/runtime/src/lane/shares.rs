//! Places on the receiving side that peers and tenants share: for messages that are being put together, for reliable
//! sources elsewhere.
//!
//! They are counted by the pair of the peer that they come from and the tenant that they are for. A pair gets no more of
//! them than are left for all others, and nobody, peer or tenant, gets more than three times as many with all of its
//! pairs. Whatever others hold, each pair has some of its own: there are as many more places then. Peers are
//! authenticated and tenants configured, so that pairs are few.

use crate::slots::{RemoteSlot, TenantSlot};
use std::collections::HashMap;

/// Whom something comes from, and for whom: index of the sending lane, and of the receiving tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    pub remote: RemoteSlot,
    pub tenant: TenantSlot,
}

/// How many places are in use, and by whom.
#[derive(Debug)]
pub struct Shares {
    places: usize,
    own: usize,
    used: usize,
    pairs: HashMap<Pair, usize, foldhash::fast::RandomState>,
}

impl Shares {
    /// So many places for all, and so many that each pair has of its own.
    pub fn new(places: usize, own: usize) -> Self {
        Self {
            places,
            own,
            used: 0,
            pairs: HashMap::default(),
        }
    }

    /// How many a pair has in use.
    fn of(&self, pair: Pair) -> usize {
        self.pairs.get(&pair).copied().unwrap_or(0)
    }

    /// Whether a pair gets another one.
    pub fn has_room(&self, pair: Pair) -> bool {
        let used = self.of(pair);
        if used < self.own {
            return true;
        }
        let free = self.places.saturating_sub(self.used);
        let sum = |same: &dyn Fn(&Pair) -> bool| {
            let pairs = self.pairs.iter().filter(|(pair, _)| same(pair));
            pairs.map(|(_, used)| used).sum::<usize>()
        };
        used < free
            && sum(&|other| other.remote == pair.remote) < 3 * free
            && sum(&|other| other.tenant == pair.tenant) < 3 * free
    }

    /// It takes one.
    pub fn take(&mut self, pair: Pair) {
        *self.pairs.entry(pair).or_default() += 1;
        self.used += 1;
    }

    /// It gives one back.
    pub fn give_back(&mut self, pair: Pair) {
        if let Some(used) = self.pairs.get_mut(&pair) {
            *used -= 1;
            self.used -= 1;
            if *used == 0 {
                self.pairs.remove(&pair);
            }
        }
    }

    /// Whether a pair has more than it has of its own.
    pub fn exceeds(&self, pair: Pair) -> bool {
        self.of(pair) > self.own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(remote: usize, tenant: usize) -> Pair {
        Pair {
            remote: RemoteSlot(remote),
            tenant: TenantSlot(tenant),
        }
    }

    proptest! {
        /// Whatever others take and give back: each pair finds its own places, one that is alone gets half of all at most,
        /// and no peer or tenant with all of its pairs all of them.
        #[test]
        fn everybody_finds_places_of_its_own(
            places in 8usize..200, own in 1usize..4, acts in proptest::collection::vec((0usize..4, 0usize..4, 0u8..5), 0..800),
        ) {
            let mut shares = Shares::new(places, own);
            let mut taken: HashMap<Pair, usize> = HashMap::new();
            for (remote, tenant, act) in acts {
                let pair = pair(remote, tenant);
                let held = taken.entry(pair).or_default();
                if act == 0 && *held > 0 {
                    *held -= 1;
                    shares.give_back(pair);
                } else if act > 0 && shares.has_room(pair) {
                    *held += 1;
                    shares.take(pair);
                } else {
                    prop_assert!(*held >= own || act == 0);
                }
                prop_assert_eq!(shares.of(pair), *held);
                let total: usize = taken.values().sum();
                prop_assert_eq!(shares.used, total);
                prop_assert!(total <= places + own * taken.len());
                for of in 0..4 {
                    let by = |same: &dyn Fn(&Pair) -> bool| -> usize {
                        taken.iter().filter(|(pair, _)| same(pair)).map(|(_, held)| held).sum()
                    };
                    prop_assert!(by(&|pair| pair.remote.0 == of) <= places * 3 / 4 + 1 + 4 * own);
                    prop_assert!(by(&|pair| pair.tenant.0 == of) <= places * 3 / 4 + 1 + 4 * own);
                }
            }
        }
    }

    #[test]
    fn who_takes_all_it_can_leaves_half_of_the_rest_to_others() {
        let mut shares = Shares::new(64, 1);
        let mut fill = |remote, tenant| {
            let pair = pair(remote, tenant);
            let took = std::iter::from_fn(|| shares.has_room(pair).then(|| shares.take(pair)));
            took.count()
        };
        // One peer for one tenant; the same peer for others; another peer for the same tenant; strangers to both.
        assert_eq!(fill(1, 1), 32);
        assert_eq!(fill(1, 2), 16);
        assert_eq!(fill(1, 3), 1, "the peer has its share");
        assert_eq!(fill(2, 1), 4);
        assert_eq!(fill(3, 4), 6);
        assert_eq!(
            (fill(5, 5), fill(6, 6), fill(7, 7), fill(8, 8)),
            (3, 1, 1, 1)
        );
    }
}
