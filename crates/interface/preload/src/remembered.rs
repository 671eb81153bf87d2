//! What was found out lately, for a while.

/// How much is remembered.
const MOST: usize = 16;

#[derive(Clone, Copy)]
struct Entry<K, V> {
    key: K,
    value: V,
    until: i64,
}

/// The latest answers to a kind of question, each good until its instant by a clock of the caller's.
pub struct Remembered<K, V> {
    entries: [Option<Entry<K, V>>; MOST],
    /// Where the last one was found.
    latest: usize,
    /// Where the last new one went.
    last: usize,
}

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self {
            entries: [const { None }; MOST],
            latest: 0,
            last: 0,
        }
    }
}

impl<K: PartialEq, V: Copy> Remembered<K, V> {
    /// Forgets all.
    pub fn forget_all(&mut self) {
        *self = Self::default();
    }

    /// The answer, if it is still good.
    pub fn known(&mut self, key: &K, now: i64) -> Option<V> {
        let fits = |entry: &Option<Entry<K, V>>| {
            entry
                .as_ref()
                .is_some_and(|entry| entry.key == *key && now < entry.until)
        };
        if !fits(&self.entries[self.latest]) {
            self.latest = self.entries.iter().position(fits)?;
        }
        self.entries[self.latest].as_ref().map(|entry| entry.value)
    }

    /// Remembers an answer, in the place of the oldest if there are too many.
    pub fn remember(&mut self, key: K, value: V, until: i64) {
        let same =
            |entry: &Option<Entry<K, V>>| entry.as_ref().is_some_and(|entry| entry.key == key);
        let place = self.entries.iter().position(same).unwrap_or_else(|| {
            self.last = (self.last + 1) % MOST;
            self.last
        });
        self.entries[place] = Some(Entry { key, value, until });
        self.latest = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_remembered_until_their_time_is_over() {
        let mut answers = Remembered::default();
        assert_eq!(answers.known(&1, 0), None);
        answers.remember(1, 'a', 100);
        assert_eq!(answers.known(&1, 99), Some('a'));
        assert_eq!(answers.known(&1, 100), None);
        assert_eq!(answers.known(&2, 0), None);
    }

    #[test]
    fn the_oldest_of_too_many_is_forgotten_and_none_is_kept_twice() {
        let mut answers = Remembered::default();
        for key in 0..=MOST {
            answers.remember(key, 'a', 100);
            answers.remember(key, 'b', 200);
        }
        assert_eq!(answers.known(&0, 150), None);
        for key in 1..=MOST {
            assert_eq!(answers.known(&key, 150), Some('b'), "{key}");
        }
        answers.forget_all();
        assert_eq!(answers.known(&5, 150), None);
    }
}
