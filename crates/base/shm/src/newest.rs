//! A place for the newest entry alone: one writer replaces what its one reader has not taken yet, and neither ever waits.
//!
//! Three slots and one word that says which of them lies in the middle, and whether it is news. The writer fills a slot
//! of its own and swaps it for the one in the middle; the reader swaps its own for the one in the middle, if that is news.
//! So both always have a slot that nobody else touches ("triple buffering"). Each side knows its own slot from private
//! memory and checks the number that it gets for it; what an entry says is as untrusted as in a [ring](crate::ring).
//!
//! It lies where a ring of [`Newest::CAPACITY`] entries would: the word in place of the producer's index (bits 0 and 1 the
//! slot, bit 2 news, the others 0), the consumer's unused, and three of the entries.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use crate::arena::Arena;
use crate::ring::memory::ArenaRing;
use crate::ring::{Pod, RingError, RingMemory};
use crate::sync::Word;

/// Set in the word while nobody has taken the entry in the middle.
const NEWS: u32 = 4;
/// The slots in the beginning: in the middle (as [`RingLayout::reset`](crate::RingLayout::reset) shows it), the writer's, the
/// reader's.
const WRITER: u32 = 1;
const READER: u32 = 2;
/// Slots.
const SLOTS: u32 = 3;

/// Its size.
#[derive(Debug, Clone, Copy)]
pub struct Newest;

impl Newest {
    /// Least capacity of the ring whose memory it takes.
    pub const CAPACITY: u32 = 4;
}

/// The end that puts entries in. `Send`, not `Sync`: one thread at a time.
#[derive(Debug)]
pub struct NewestWriter<T: Pod>(WriterEnd<ArenaRing<T>>);

impl<T: Pod> NewestWriter<T> {
    /// Attaches in the memory of a ring of [`Newest::CAPACITY`] entries at `offset`.
    ///
    /// # Errors
    /// As [`Producer::attach`](crate::Producer::attach).
    pub fn attach(arena: &Arc<Arena>, offset: usize) -> Result<Self, RingError> {
        let memory = ArenaRing::attach(arena, offset, Newest::CAPACITY)?;
        Ok(Self(WriterEnd::new(memory)))
    }

    /// Puts an entry in and shows it. True: the one before it was taken, or there was none; false: this one replaces it.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] when the reader has put a slot in the middle that it cannot have had.
    #[inline]
    pub fn put(&mut self, entry: T) -> Result<bool, RingError> {
        self.0.put(entry)
    }
}

/// The end that takes entries out. `Send`, not `Sync`: one thread at a time.
#[derive(Debug)]
pub struct NewestReader<T: Pod>(ReaderEnd<ArenaRing<T>>);

impl<T: Pod> NewestReader<T> {
    /// Attaches in the memory of a ring of [`Newest::CAPACITY`] entries at `offset`.
    ///
    /// # Errors
    /// As [`Producer::attach`](crate::Producer::attach).
    pub fn attach(arena: &Arc<Arena>, offset: usize) -> Result<Self, RingError> {
        let memory = ArenaRing::attach(arena, offset, Newest::CAPACITY)?;
        Ok(Self(ReaderEnd::new(memory)))
    }

    /// Takes the newest entry, if it was not taken before.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] when the writer has put a slot in the middle that it cannot have had.
    #[inline]
    pub fn take(&mut self) -> Result<Option<T>, RingError> {
        self.0.take()
    }

    /// Whether there is an entry to take.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.0.has_news()
    }
}

/// The slot that the word says, which is not the one that was given for it.
#[inline]
fn checked(word: u32, given: u32) -> Result<u32, RingError> {
    let slot = word & !NEWS;
    if slot < SLOTS && slot != given {
        return Ok(slot);
    }
    Err(RingError::Corrupt {
        index: word,
        lowest: 0,
        highest: NEWS | (SLOTS - 1),
    })
}

#[derive(Debug)]
struct WriterEnd<M> {
    memory: M,
    own: u32,
}

impl<M: RingMemory> WriterEnd<M> {
    fn new(memory: M) -> Self {
        Self {
            memory,
            own: WRITER,
        }
    }

    #[inline]
    fn put(&mut self, entry: M::Entry) -> Result<bool, RingError> {
        self.memory.write(self.own, entry);
        // Release: partner is the Acquire of the swap in `take`, the entry is written before it is shown. Acquire: partner is
        // its Release, the reader has copied the entry of the slot that is written next.
        let middle = self
            .memory
            .producer_index()
            .swap(self.own | NEWS, Ordering::AcqRel);
        self.own = checked(middle, self.own)?;
        Ok(middle & NEWS == 0)
    }
}

#[derive(Debug)]
struct ReaderEnd<M> {
    memory: M,
    own: u32,
}

impl<M: RingMemory> ReaderEnd<M> {
    fn new(memory: M) -> Self {
        Self {
            memory,
            own: READER,
        }
    }

    #[inline]
    fn has_news(&self) -> bool {
        // Relaxed: `take` orders.
        self.memory.producer_index().load(Ordering::Relaxed) & NEWS != 0
    }

    #[inline]
    fn take(&mut self) -> Result<Option<M::Entry>, RingError> {
        if !self.has_news() {
            return Ok(None);
        }
        // As in `put`, the other way round.
        let middle = self
            .memory
            .producer_index()
            .swap(self.own, Ordering::AcqRel);
        self.own = checked(middle, self.own)?;
        Ok(Some(self.memory.read(self.own)))
    }
}

#[cfg(all(test, loom))]
mod loom_model;
#[cfg(all(test, not(loom)))]
mod tests;
