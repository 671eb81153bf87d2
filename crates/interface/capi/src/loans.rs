//! What C holds of a source or sink, by keys that are never valid twice.

/// Values on loan.
#[derive(Debug)]
pub struct Loans<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Loans<T> {
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Whether nothing is lent.
    pub fn is_empty(&self) -> bool {
        self.entries.len() == self.free.len()
    }

    /// Lends a value; the key is never 0.
    #[inline]
    pub fn lend(&mut self, value: T) -> u64 {
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.entries.push(Entry {
                    generation: 0,
                    value: None,
                });
                (self.entries.len() - 1) as u32
            }
        };
        let entry = &mut self.entries[at as usize];
        entry.generation = entry.generation.wrapping_add(1).max(1);
        entry.value = Some(value);
        u64::from(entry.generation) << 32 | u64::from(at)
    }

    fn entry(&self, key: u64) -> Option<&Entry<T>> {
        let entry = self.entries.get(key as u32 as usize)?;
        (u64::from(entry.generation) == key >> 32).then_some(entry)
    }

    /// What is lent under a key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<&T> {
        self.entry(key)?.value.as_ref()
    }

    /// The same, to be changed.
    #[inline]
    pub fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        self.entry(key)?;
        self.entries.get_mut(key as u32 as usize)?.value.as_mut()
    }

    /// Undoes [`take`](Self::take).
    pub fn restore(&mut self, key: u64, value: T) {
        let at = key as u32;
        if let Some(entry) = self.entries.get_mut(at as usize) {
            self.free.retain(|free| *free != at);
            entry.generation = (key >> 32) as u32;
            entry.value = Some(value);
        }
    }

    /// Ends a loan.
    #[inline]
    pub fn take(&mut self, key: u64) -> Option<T> {
        self.entry(key)?;
        let at = key as u32;
        let value = self.entries.get_mut(at as usize)?.value.take()?;
        self.free.push(at);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_good_for_one_return() {
        let mut loans = Loans::new();
        assert!(loans.is_empty());
        let (a, b) = (loans.lend("a"), loans.lend("b"));
        assert_eq!((loans.get(a), loans.get(b)), (Some(&"a"), Some(&"b")));
        assert_eq!(loans.take(a), Some("a"));
        assert_eq!(loans.get(a), None);
        assert_eq!(loans.take(a), None);
        let c = loans.lend("c");
        assert_ne!(a, c);
        assert_eq!(
            (loans.take(a), loans.take(c), loans.take(b)),
            (None, Some("c"), Some("b"))
        );
        let d = loans.lend("d");
        loans.take(d);
        loans.restore(d, "d");
        let e = loans.lend("e");
        assert_ne!(e, d);
        assert_eq!((loans.take(d), loans.take(d)), (Some("d"), None));
        assert!(!loans.is_empty());
        assert_eq!(loans.take(0), None);
        assert_eq!(loans.take(u64::MAX), None);
        assert_eq!(loans.take(e), Some("e"));
        assert!(loans.is_empty());
    }
}
