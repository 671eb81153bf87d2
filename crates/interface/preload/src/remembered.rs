//! What was found out, for as long as it is asked for and good.

use std::collections::HashMap;
use std::hash::Hash;

/// How much is remembered. Beyond that, what was not used for longest is forgotten.
const MOST: usize = 4096;

#[derive(Clone, Copy)]
struct Entry<V> {
    value: V,
    /// When it was found out.
    found: i64,
    /// Until when it is good.
    until: i64,
    /// When it was asked for last.
    used: i64,
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
        let entry = self.entries.get_mut(key)?;
        entry.used = now;
        (now < entry.until).then_some(entry.value)
    }

    /// Remembers an answer of `now`, good until `until`.
    pub fn remember(&mut self, key: K, value: V, now: i64, until: i64) {
        let entry = Entry {
            value,
            found: now,
            until,
            used: now,
        };
        if self.entries.len() >= MOST && !self.entries.contains_key(&key) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(key, entry);
    }

    /// A new answer to a question that is remembered; it is not a use of it.
    pub fn renew(&mut self, key: &K, value: V, now: i64, until: i64) {
        if let Some(entry) = self.entries.get_mut(key) {
            (entry.value, entry.found, entry.until) = (value, now, until);
        }
    }

    /// Forgets what nobody has asked for since `unused`, and lists what was found out before `before`.
    pub fn due(&mut self, unused: i64, before: i64) -> Vec<K> {
        self.entries.retain(|_, entry| entry.used >= unused);
        let due = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.found <= before);
        due.map(|(key, _)| *key).collect()
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
        assert_eq!(answers.known(&2, 50), Some('a'));
        assert!(answers.due(0, -1).is_empty());
        assert_eq!(answers.due(10, 0), [2], "nobody asks for the other");
        answers.renew(&2, 'b', 60, 160);
        answers.renew(&1, 'b', 60, 160);
        assert!(answers.due(10, 50).is_empty());
        assert_eq!(answers.known(&2, 150), Some('b'));
        assert_eq!(answers.known(&1, 150), None);
    }
}
