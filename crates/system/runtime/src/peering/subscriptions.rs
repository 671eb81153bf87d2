//! What a node wants, as a log that every peer follows from where it stands.
//!
//! Each change has a version. A peer that holds version *n* is told what has changed since, in pages; one that holds
//! nothing, or so old a version that what was dropped since is forgotten, begins a new stream from nothing. Only the
//! latest change of an entry is kept, so the log is as long as what is wanted, and some entries that no longer are.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::message::{PAGE_ENTRIES, Page, Subscription};

/// Dropped entries that are remembered, beyond as many as there are entries.
const LEAST_DROPPED: usize = 1024;

/// Most subscriptions of a peer; further ones have no effect.
pub const MAX_SUBSCRIPTIONS: usize = 1 << 18;

/// The stream after this one: they are numbered round, and 0 is none.
pub fn next_stream(stream: u32) -> u32 {
    stream.wrapping_add(1).max(1)
}

/// Whether a stream follows another, by the shorter way round (RFC 1982).
pub fn is_newer(stream: u32, than: u32) -> bool {
    than == 0 || stream.wrapping_sub(than).cast_signed() > 0
}

/// What this node wants.
#[derive(Debug, Default)]
pub struct Wanted {
    /// The latest change.
    version: u64,
    /// Entries dropped up to this version may be forgotten.
    floor: u64,
    /// Entry to the version of its latest change, and whether it is wanted since.
    entries: HashMap<Subscription, (u64, bool)>,
    log: BTreeMap<u64, Subscription>,
    dropped: BTreeMap<u64, Subscription>,
}

impl Wanted {
    /// The latest version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Entries wanted now.
    pub fn count(&self) -> usize {
        self.log.len() - self.dropped.len()
    }

    /// Entries wanted now.
    #[cfg(test)]
    pub fn entries(&self) -> impl Iterator<Item = Subscription> + '_ {
        let wanted = self.entries.iter().filter(|(_, (_, wanted))| *wanted);
        wanted.map(|(entry, _)| *entry)
    }

    /// An entry is wanted, or no more. True if that is new.
    pub fn set(&mut self, entry: Subscription, wanted: bool) -> bool {
        match self.entries.get(&entry) {
            Some(&(_, now)) if now == wanted => return false,
            None if !wanted => return false,
            Some(&(version, _)) => {
                self.log.remove(&version);
                self.dropped.remove(&version);
            }
            None => {}
        }
        self.version += 1;
        self.entries.insert(entry, (self.version, wanted));
        self.log.insert(self.version, entry);
        if !wanted {
            self.dropped.insert(self.version, entry);
            if self.dropped.len() > LEAST_DROPPED + self.count()
                && let Some((version, entry)) = self.dropped.pop_first()
            {
                self.floor = version;
                self.log.remove(&version);
                self.entries.remove(&entry);
            }
        }
        true
    }

    /// Whether a peer that holds this version can be told what has changed since.
    pub fn follows(&self, holds: u64) -> bool {
        holds >= self.floor && holds <= self.version
    }

    /// What has changed since `base`, as far as it fits a page; with the version that the page leads to.
    pub fn page(&self, stream: u32, base: u64) -> Page {
        let mut entries = Vec::with_capacity(PAGE_ENTRIES);
        let mut to = self.version;
        for (&version, &entry) in self.log.range(base + 1..) {
            if entries.len() == PAGE_ENTRIES {
                // `to` is the version of the last entry taken.
                break;
            }
            entries.push((entry, !self.dropped.contains_key(&version)));
            to = version;
        }
        if entries.len() < PAGE_ENTRIES {
            to = self.version;
        }
        Page {
            stream,
            base,
            to,
            entries,
        }
    }
}

/// What a peer wants, as far as it has told.
#[derive(Debug, Default)]
pub struct Held {
    /// The peer's stream.
    pub stream: u32,
    /// The version in it.
    pub version: u64,
    /// What it wants.
    pub entries: HashSet<Subscription>,
    /// Per channel: how many lanes want it.
    channels: HashMap<u64, u8>,
}

/// What a page has changed, to be applied in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Wanted no more.
    pub remove: Vec<Subscription>,
    /// Wanted from now on.
    pub add: Vec<Subscription>,
    /// Without effect: there are too many.
    pub refused: u64,
}

impl Difference {
    /// An entry that was held is not any more. What the same page had added is as if it had not been named: `remove` comes before
    /// `add`.
    fn drop(&mut self, entry: Subscription) {
        match self.add.iter().position(|added| *added == entry) {
            Some(at) => _ = self.add.remove(at),
            None => self.remove.push(entry),
        }
    }
}

impl Held {
    /// Whether any lane of the peer wants a channel.
    pub fn wants(&self, channel: u64) -> bool {
        self.channels.contains_key(&channel)
    }

    /// Takes a page; `None`: it does not follow what is here.
    pub fn take(&mut self, page: Page) -> Option<Difference> {
        let mut difference = Difference::default();
        if page.stream != self.stream {
            // An older one was overtaken.
            if page.base != 0 || !is_newer(page.stream, self.stream) {
                return None;
            }
            difference.remove = self.entries.drain().collect();
            self.channels.clear();
            self.stream = page.stream;
        } else if page.base != self.version {
            return None;
        }
        self.version = page.to;
        for (entry, wanted) in page.entries {
            if !wanted {
                if self.entries.remove(&entry) {
                    difference.drop(entry);
                    if let Some(lanes) = self.channels.get_mut(&entry.channel) {
                        *lanes -= 1;
                        if *lanes == 0 {
                            self.channels.remove(&entry.channel);
                        }
                    }
                }
            } else if self.entries.len() >= MAX_SUBSCRIPTIONS {
                difference.refused += 1;
            } else if self.entries.insert(entry) {
                *self.channels.entry(entry.channel).or_default() += 1;
                difference.add.push(entry);
            }
        }
        Some(difference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(channel: u64) -> Subscription {
        Subscription { channel, lane: 0 }
    }

    proptest! {
        #[test]
        fn whoever_follows_the_log_from_anywhere_has_what_is_wanted(
            changes in proptest::collection::vec((0u64..400, any::<bool>(), 0u8..40), 1..2000),
        ) {
            let mut wanted = Wanted::default();
            let mut expected = HashSet::new();
            let mut held = Held::default();
            let mut stream = 1;
            for (channel, want, follow) in changes {
                wanted.set(entry(channel), want);
                if want {
                    expected.insert(entry(channel));
                } else {
                    expected.remove(&entry(channel));
                }
                prop_assert_eq!(wanted.count(), expected.len());
                if follow == 0 {
                    if !wanted.follows(held.version) {
                        stream += 1;
                    }
                    let mut base = if held.stream == stream { held.version } else { 0 };
                    loop {
                        let page = wanted.page(stream, base);
                        base = page.to;
                        prop_assert!(held.take(page).is_some());
                        if base == wanted.version() { break; }
                    }
                    prop_assert_eq!(&held.entries, &expected);
                }
            }
        }
    }

    #[test]
    fn a_page_that_came_twice_or_out_of_order_has_no_effect() {
        let mut wanted = Wanted::default();
        for channel in 0..3 * PAGE_ENTRIES as u64 {
            wanted.set(entry(channel), true);
        }
        let first = wanted.page(1, 0);
        let second = wanted.page(1, first.to);
        let mut held = Held::default();
        assert_eq!(held.take(second.clone()), None);
        assert!(held.take(first.clone()).is_some() && held.take(second).is_some());
        assert_eq!(held.take(first), None);
        assert_eq!(held.entries.len(), 2 * PAGE_ENTRIES);
    }

    #[test]
    fn an_entry_that_a_page_names_twice_is_held_as_it_was_named_last() {
        let page = |base, wanted: &[bool]| Page {
            stream: 1,
            base,
            to: base + 1,
            entries: wanted.iter().map(|wanted| (entry(5), *wanted)).collect(),
        };
        let mut held = Held::default();
        let mut take = |base, wanted: &[bool]| {
            let difference = held.take(page(base, wanted)).expect("follows");
            (difference.add.len(), difference.remove.len())
        };
        assert_eq!(take(0, &[true, false]), (0, 0));
        assert_eq!(take(1, &[true, false, true]), (1, 0));
        assert_eq!(take(2, &[false, true, false]), (0, 1));
        assert!(held.entries.is_empty() && !held.wants(5));
    }

    #[test]
    fn streams_are_numbered_round() {
        assert_eq!([0, 5, u32::MAX].map(next_stream), [1, 6, 1]);
        let page = |stream| Page {
            stream,
            base: 0,
            to: 1,
            entries: Vec::new(),
        };
        let mut held = Held::default();
        let taken = [(u32::MAX, true), (1, true), (u32::MAX, false), (2, true)];
        for (stream, newer) in taken {
            assert_eq!(held.take(page(stream)).is_some(), newer, "{stream}");
        }
    }

    #[test]
    fn what_was_dropped_is_remembered_within_bounds() {
        let mut wanted = Wanted::default();
        for channel in 0..100_000 {
            wanted.set(entry(channel), true);
            wanted.set(entry(channel), false);
        }
        assert!(wanted.log.len() <= LEAST_DROPPED + 1 && wanted.entries.len() <= LEAST_DROPPED + 1);
        assert!(!wanted.follows(5) && wanted.follows(wanted.version()));
    }

    #[test]
    fn a_peer_that_wants_too_much_keeps_what_it_has() {
        let mut held = Held::default();
        let mut refused = 0;
        for at in 0..MAX_SUBSCRIPTIONS as u64 / 64 + 10 {
            let page = Page {
                stream: 1,
                base: at,
                to: at + 1,
                entries: (0..64).map(|i| (entry(at * 64 + i), true)).collect(),
            };
            refused += held.take(page).expect("follows").refused;
        }
        assert_eq!((held.entries.len(), refused), (MAX_SUBSCRIPTIONS, 640));
    }
}
