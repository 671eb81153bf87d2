//! What a publisher keeps for late joiners.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// The last messages of a publisher, with their headers.
#[derive(Debug)]
pub(crate) struct History {
    most: usize,
    most_bytes: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    messages: VecDeque<Arc<[u8]>>,
    bytes: usize,
}

impl History {
    /// As many messages, and as many bytes of them, at most; the newest message is kept however long it is.
    pub(crate) fn new(most: usize, most_bytes: usize) -> Self {
        Self {
            most,
            most_bytes,
            kept: Mutex::default(),
        }
    }

    pub(crate) fn keep(&self, message: Arc<[u8]>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += message.len();
        kept.messages.push_back(message);
        while kept.messages.len() > 1
            && (kept.messages.len() > self.most || kept.bytes > self.most_bytes)
        {
            let oldest = kept.messages.pop_front();
            kept.bytes -= oldest.map_or(0, |oldest| oldest.len());
        }
    }

    /// The newest message was not published after all.
    pub(crate) fn forget_newest(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = kept.messages.pop_back();
        kept.bytes -= newest.map_or(0, |newest| newest.len());
    }

    /// The last `most` messages, the oldest first.
    pub(crate) fn last(&self, most: usize) -> VecDeque<Arc<[u8]>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let older = kept.messages.len().saturating_sub(most);
        kept.messages.iter().skip(older).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(history: &History, most: usize) -> Vec<u8> {
        history.last(most).iter().map(|m| m[0]).collect()
    }

    #[test]
    fn the_last_messages_are_kept_and_the_oldest_of_them_come_first() {
        let history = History::new(3, 100);
        for number in 0..5u8 {
            history.keep([number].into());
        }
        assert_eq!(last(&history, 9), [2, 3, 4]);
        assert_eq!(last(&history, 2), [3, 4]);
        history.forget_newest();
        assert_eq!(last(&history, 9), [2, 3]);
    }

    #[test]
    fn as_many_bytes_are_kept_as_there_may_be_and_the_newest_message_always() {
        let history = History::new(3, 10);
        history.keep([1; 4].into());
        history.keep([2; 4].into());
        history.keep([3; 4].into());
        assert_eq!(last(&history, 9), [2, 3]);
        history.keep([4; 40].into());
        assert_eq!(last(&history, 9), [4]);
        history.keep([5; 4].into());
        assert_eq!(last(&history, 9), [5]);
    }
}
