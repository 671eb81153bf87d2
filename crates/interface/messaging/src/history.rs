//! What a publisher keeps for late joiners.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// The last messages of a publisher, with their headers.
#[derive(Debug)]
pub(crate) struct History {
    most: usize,
    kept: Mutex<VecDeque<Arc<[u8]>>>,
}

impl History {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            kept: Mutex::default(),
        }
    }

    pub(crate) fn keep(&self, message: Arc<[u8]>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.len() >= self.most {
            kept.pop_front();
        }
        kept.push_back(message);
    }

    /// The last `most` messages, the oldest first.
    pub(crate) fn last(&self, most: usize) -> VecDeque<Arc<[u8]>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let older = kept.len().saturating_sub(most);
        kept.iter().skip(older).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_messages_are_kept_and_the_oldest_of_them_come_first() {
        let history = History::new(3);
        for number in 0..5u8 {
            history.keep([number].into());
        }
        let last = |most| -> Vec<u8> { history.last(most).iter().map(|m| m[0]).collect() };
        assert_eq!(last(9), [2, 3, 4]);
        assert_eq!(last(2), [3, 4]);
    }
}
