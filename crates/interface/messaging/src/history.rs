//! What a publisher keeps for late joiners.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Messages that are not kept any more and that late joiners may still read.
const MOST_PAST: usize = 65_536;

/// The last messages of a publisher, with their headers.
#[derive(Debug)]
pub(crate) struct History {
    most: usize,
    most_bytes: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// In the order of their numbers, without a gap: those that are past first, then those that are kept.
    messages: VecDeque<Arc<[u8]>>,
    /// The number of the first of them.
    first: u64,
    /// Bytes of those that are kept.
    bytes: usize,
    /// Those that are there for the readers alone.
    past: usize,
    past_bytes: usize,
    readers: usize,
}

impl Kept {
    /// Past messages go when nobody reads, or there are too many of them.
    fn forget(&mut self, most_bytes: usize) {
        while self.past > 0
            && (self.readers == 0 || self.past > MOST_PAST || self.past_bytes > most_bytes)
        {
            let oldest = self.messages.pop_front();
            self.past_bytes -= oldest.map_or(0, |oldest| oldest.len());
            self.past -= 1;
            self.first += 1;
        }
    }
}

impl History {
    /// As many messages, and as many bytes of them, at most; the newest message is kept however long it is. Late joiners
    /// that read have as many bytes again kept for them.
    pub(crate) fn new(most: usize, most_bytes: usize) -> Self {
        Self {
            most,
            most_bytes,
            kept: Mutex::default(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a message that `emit` sends; nothing is changed if it fails. Who looks meanwhile waits: what has been emitted
    /// is there, and nothing else.
    pub(crate) fn keep<T, E>(
        &self,
        message: Arc<[u8]>,
        emit: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut kept = self.kept();
        let emitted = emit()?;
        kept.bytes += message.len();
        kept.messages.push_back(message);
        while kept.messages.len() - kept.past > 1
            && (kept.messages.len() - kept.past > self.most || kept.bytes > self.most_bytes)
        {
            let bytes = kept.messages[kept.past].len();
            kept.bytes -= bytes;
            kept.past_bytes += bytes;
            kept.past += 1;
        }
        kept.forget(self.most_bytes);
        Ok(emitted)
    }

    /// The last `most` messages, the oldest first.
    pub(crate) fn last(self: &Arc<Self>, most: usize) -> Reader {
        let mut kept = self.kept();
        kept.readers += 1;
        let end = kept.first + kept.messages.len() as u64;
        let wanted = most.min(kept.messages.len() - kept.past);
        Reader {
            history: self.clone(),
            next: end - wanted as u64,
            end,
        }
    }
}

/// Messages that were kept when it began. It holds none of them: what is too old when it comes there is passed over.
#[derive(Debug)]
pub(crate) struct Reader {
    history: Arc<History>,
    next: u64,
    end: u64,
}

/// What a [`Reader`] has next.
#[derive(Debug)]
pub(crate) enum Next {
    Message(Arc<[u8]>),
    /// Some are gone.
    Gone,
    End,
}

impl Reader {
    /// The message that it is at.
    pub(crate) fn next(&mut self) -> Next {
        let kept = self.history.kept();
        if self.next >= self.end {
            return Next::End;
        }
        match self.next.checked_sub(kept.first) {
            Some(at) => {
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                let message = kept.messages.get(at).cloned();
                message.map_or(Next::End, Next::Message)
            }
            None => {
                self.next = kept.first.min(self.end);
                Next::Gone
            }
        }
    }

    /// It has been handed over.
    pub(crate) fn advance(&mut self) {
        self.next += 1;
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut kept = self.history.kept();
        kept.readers -= 1;
        kept.forget(self.history.most_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(most: usize, most_bytes: usize) -> Arc<History> {
        Arc::new(History::new(most, most_bytes))
    }

    fn keep(history: &History, message: &[u8]) {
        let kept = history.keep(message.into(), || Ok::<_, ()>(()));
        kept.expect("kept");
    }

    /// What it has left, and whether some were gone.
    fn rest(reader: &mut Reader) -> (Vec<u8>, bool) {
        let (mut messages, mut gone) = (Vec::new(), false);
        loop {
            match reader.next() {
                Next::Message(message) => messages.push(message[0]),
                Next::Gone => {
                    gone = true;
                    continue;
                }
                Next::End => return (messages, gone),
            }
            reader.advance();
        }
    }

    fn last(history: &Arc<History>, most: usize) -> Vec<u8> {
        let (messages, gone) = rest(&mut history.last(most));
        assert!(!gone);
        messages
    }

    #[test]
    fn the_last_messages_are_kept_and_the_oldest_of_them_come_first() {
        let history = history(3, 100);
        for number in 0..5u8 {
            keep(&history, &[number]);
        }
        assert_eq!(last(&history, 9), [2, 3, 4]);
        assert_eq!(last(&history, 2), [3, 4]);
        assert_eq!(last(&history, 0), [0; 0]);
    }

    #[test]
    fn as_many_bytes_are_kept_as_there_may_be_and_the_newest_message_always() {
        let history = history(3, 10);
        keep(&history, &[1; 4]);
        keep(&history, &[2; 4]);
        keep(&history, &[3; 4]);
        assert_eq!(last(&history, 9), [2, 3]);
        keep(&history, &[4; 40]);
        assert_eq!(last(&history, 9), [4]);
        keep(&history, &[5; 4]);
        assert_eq!(last(&history, 9), [5]);
    }

    #[test]
    fn a_message_that_is_not_emitted_changes_nothing_and_nobody_sees_it() {
        let history = history(2, 10);
        keep(&history, &[1; 4]);
        keep(&history, &[2; 4]);
        let failed = history.keep([3; 9].into(), || {
            assert!(history.kept.try_lock().is_err(), "somebody may look");
            Err::<(), _>("disconnected")
        });
        assert_eq!(failed, Err("disconnected"));
        assert_eq!(last(&history, 9), [1, 2]);
        // Its number is the next one's.
        let mut reader = history.last(9);
        keep(&history, &[3; 4]);
        assert_eq!(rest(&mut reader), (vec![1, 2], false));
        drop(reader);
        assert_eq!(last(&history, 9), [2, 3]);
    }

    #[test]
    fn what_is_read_stays_as_long_as_as_many_bytes_again_have_room_for_it() {
        let history = history(2, 100);
        keep(&history, &[0; 50]);
        keep(&history, &[1; 50]);
        let mut slow = Vec::from_iter((0..16).map(|_| history.last(9)));
        let Next::Message(first) = slow[0].next() else {
            panic!("a message");
        };
        slow[0].advance();
        drop(first);
        for number in 2..4u8 {
            keep(&history, &[number; 50]);
        }
        assert_eq!(rest(&mut slow[1]), (vec![0, 1], false));
        for number in 4..50u8 {
            keep(&history, &[number; 50]);
            let kept = history.kept();
            assert_eq!((kept.bytes, kept.past_bytes), (100, 100));
        }
        assert_eq!(rest(&mut slow[0]), (vec![], true));
        assert_eq!(rest(&mut history.last(9)), (vec![48, 49], false));
        drop(slow);
        let kept = history.kept();
        assert_eq!((kept.messages.len(), kept.past, kept.past_bytes), (2, 0, 0));
    }

    #[test]
    fn short_messages_that_are_read_are_bounded_in_number() {
        let history = history(1, usize::MAX);
        keep(&history, &[0]);
        let reader = history.last(1);
        for _ in 0..MOST_PAST + 10 {
            keep(&history, &[1]);
        }
        assert_eq!(history.kept().messages.len(), MOST_PAST + 1);
        drop(reader);
        assert_eq!(history.kept().messages.len(), 1);
    }
}
