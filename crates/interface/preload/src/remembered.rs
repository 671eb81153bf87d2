//! What was found out, for as long as it is asked for and good.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// How much is remembered. Beyond that, what was not used for longest is forgotten.
const MOST: usize = 4096;

/// How long what is not asked for is good, in nanoseconds: shorter than it is followed for
/// ([`UNUSED`](crate::follower::UNUSED)), so that nothing is used that nobody follows.
const UNUSED: i64 = 30_000_000_000;

struct Entry<V> {
    value: V,
    /// Until when it is good.
    until: i64,
    /// When it was asked for last; the follower looks at it as well.
    used: Arc<AtomicI64>,
}

/// Answers to a kind of question. Instants are by a clock of the caller's.
pub struct Remembered<K, V> {
    entries: HashMap<K, Entry<V>>,
}

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash + Copy, V: Copy> Remembered<K, V> {
    /// Forgets all.
    pub fn forget_all(&mut self) {
        self.entries.clear();
    }

    /// The answer, if it is still good.
    pub fn known(&mut self, key: &K, now: i64) -> Option<V> {
        let entry = self.entries.get(key)?;
        let used = entry.used.load(Ordering::Relaxed);
        if now >= entry.until || now.saturating_sub(used) > UNUSED {
            return None;
        }
        entry.used.store(now, Ordering::Relaxed);
        Some(entry.value)
    }

    /// The latest answer, good or not; it is not a use of it.
    pub fn latest(&self, key: &K) -> Option<V> {
        self.entries.get(key).map(|entry| entry.value)
    }

    /// Remembers an answer of `now`, good until `until`. Returns when it was used last, which changes.
    pub fn remember(&mut self, key: K, value: V, now: i64, until: i64) -> Arc<AtomicI64> {
        let used = Arc::new(AtomicI64::new(now));
        let entry = Entry {
            value,
            until,
            used: used.clone(),
        };
        if self.entries.len() >= MOST && !self.entries.contains_key(&key) {
            let used = |entry: &Entry<V>| entry.used.load(Ordering::Relaxed);
            let oldest = self.entries.iter().min_by_key(|(_, entry)| used(entry));
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(key, entry);
        used
    }

    /// A new answer to a question that is remembered; it is not a use of it.
    pub fn renew(&mut self, key: &K, value: V, until: i64) {
        if let Some(entry) = self.entries.get_mut(key) {
            (entry.value, entry.until) = (value, until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_remembered_until_their_time_is_over() {
        let mut answers = Remembered::default();
        assert_eq!(answers.known(&1, 0), None);
        answers.remember(1, 'a', 0, 100);
        assert_eq!(answers.known(&1, 99), Some('a'));
        assert_eq!(answers.known(&1, 100), None);
        assert_eq!(answers.known(&2, 0), None);
    }

    #[test]
    fn what_was_not_used_for_longest_is_forgotten_and_none_is_kept_twice() {
        let mut answers = Remembered::default();
        for key in 0..=MOST {
            answers.remember(key, 'a', key as i64, 100_000);
            answers.remember(key, 'b', key as i64, 200_000);
        }
        assert_eq!(answers.known(&0, 0), None);
        for key in 1..=MOST {
            assert_eq!(answers.known(&key, 150_000), Some('b'), "{key}");
        }
        answers.forget_all();
        assert_eq!(answers.known(&5, 150), None);
    }

    #[test]
    fn answers_are_renewed_while_they_are_used() {
        let mut answers = Remembered::default();
        answers.remember(1, 'a', 0, 100);
        answers.remember(2, 'a', 0, 100);
        answers.renew(&2, 'b', i64::MAX);
        answers.renew(&3, 'b', i64::MAX);
        assert_eq!(answers.known(&2, 150), Some('b'));
        assert_eq!(answers.known(&1, 150), None);
        assert_eq!(answers.known(&3, 150), None, "nobody has asked for it");
        assert_eq!(answers.known(&2, 150 + UNUSED), Some('b'));
        assert_eq!(
            answers.known(&2, 151 + 2 * UNUSED),
            None,
            "nobody follows it"
        );
    }
}
