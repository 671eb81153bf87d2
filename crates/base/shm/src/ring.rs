//! Single-producer single-consumer rings of fixed-size plain entries inside an arena.
//!
//! Each side keeps its own position in private memory and only *shows* it in the arena. It reads the
//! other side's index once, checks that it is possible, and goes on with the checked copy, so a
//! hostile peer can lose or garble its own entries and nothing else. The content of an entry is as
//! untrusted as an index: the caller checks what it pops.
//!
//! Indices are free-running `u32`; the slot is the index modulo the capacity.
//!
//! Layout at an offset that is a multiple of [`RingLayout::ALIGN`]:
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | producer index, alone on its cache line |
//! | 64..68 | consumer index, alone on its cache line |
//! | 128.. | `capacity` entries, then padding to a multiple of 64 |

pub(crate) mod memory;

use core::sync::atomic::Ordering;
use std::sync::Arc;

use thiserror::Error;

use crate::arena::{Arena, OutOfBounds};
use crate::sync::Word;

use memory::ArenaRing;

/// Plain old data: what may lie in a ring.
///
/// # Safety
/// The type has no padding, and every bit pattern is a valid value.
pub unsafe trait Pod: Copy + 'static {}

// SAFETY: an integer has no padding and no invalid pattern.
unsafe impl Pod for u32 {}
// SAFETY: as above.
unsafe impl Pod for u64 {}

/// Why a ring cannot be attached or used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RingError {
    /// The ring does not lie within the arena, or not on a cache line.
    #[error("ring does not fit its arena: {0}")]
    OutOfBounds(#[from] OutOfBounds),
    /// The capacity is not one that a ring can have.
    #[error("ring capacity {capacity} is not a power of two from 1 to {max}", max = RingLayout::MAX_CAPACITY)]
    Capacity {
        /// The capacity that was asked for, in entries.
        capacity: u32,
    },
    /// The other side shows an index that it cannot have reached: it is broken or hostile.
    #[error(
        "ring is corrupt: the other side shows index {index}, which is not within {lowest}..={highest}"
    )]
    Corrupt {
        /// The index that is shown.
        index: u32,
        /// The index that it showed before: it may not go back.
        lowest: u32,
        /// The furthest index that it can have reached.
        highest: u32,
    },
}

/// Sizes and offsets of a ring in an arena.
#[derive(Debug, Clone, Copy)]
pub struct RingLayout;

impl RingLayout {
    /// Alignment of a ring's offset in bytes: one cache line.
    pub const ALIGN: usize = 64;
    /// Largest capacity in entries.
    pub const MAX_CAPACITY: u32 = 1 << 20;

    const PRODUCER: usize = 0;
    const CONSUMER: usize = 64;
    const ENTRIES: usize = 128;

    /// Bytes that a ring of `capacity` entries takes; a multiple of 64.
    pub const fn size<T: Pod>(capacity: u32) -> usize {
        (Self::ENTRIES + capacity as usize * size_of::<T>()).next_multiple_of(Self::ALIGN)
    }

    /// Shows both indices as zero. The runtime does this when it makes a ring in memory that was used
    /// before (a fresh arena is zeroed), while neither side is attached.
    ///
    /// # Errors
    /// [`RingError::OutOfBounds`] when the header does not lie within the arena.
    pub fn reset(arena: &Arena, offset: usize) -> Result<(), RingError> {
        arena.slice(offset, Self::ENTRIES)?;
        let producer = arena.atomic_u32(offset + Self::PRODUCER)?;
        let consumer = arena.atomic_u32(offset + Self::CONSUMER)?;
        producer.store(0, Ordering::Relaxed);
        consumer.store(0, Ordering::Relaxed);
        Ok(())
    }
}

/// The end of a ring that puts entries in. `Send`, not `Sync`: one thread at a time.
#[derive(Debug)]
pub struct Producer<T: Pod>(ProducerEnd<ArenaRing<T>>);

impl<T: Pod> Producer<T> {
    /// Attaches to the ring of `capacity` entries at `offset`. Both ends start at index 0.
    ///
    /// # Errors
    /// [`RingError::Capacity`] unless it is a power of two in `1..=1 << 20`;
    /// [`RingError::OutOfBounds`] unless the ring lies within the arena at a multiple of 64.
    pub fn attach(arena: &Arc<Arena>, offset: usize, capacity: u32) -> Result<Self, RingError> {
        let memory = ArenaRing::attach(arena, offset, capacity)?;
        Ok(Producer(ProducerEnd::new(memory, capacity)))
    }

    /// Entries that can be staged now: at least this many (the consumer may have made more room), and
    /// zero only when the ring is full.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] when the consumer shows more than was published, or goes backwards.
    #[inline]
    pub fn free(&mut self) -> Result<u32, RingError> {
        self.0.free()
    }

    /// Puts an entry in without showing it yet. `Ok(false)`: the ring is full.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    #[inline]
    pub fn stage(&mut self, entry: T) -> Result<bool, RingError> {
        self.0.stage(entry)
    }

    /// Shows all staged entries to the consumer.
    #[inline]
    pub fn publish(&mut self) {
        self.0.publish();
    }

    /// Stages one entry and publishes. `Ok(false)`: the ring is full; entries staged before are
    /// published all the same.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    #[inline]
    pub fn push(&mut self, entry: T) -> Result<bool, RingError> {
        let staged = self.0.stage(entry)?;
        self.0.publish();
        Ok(staged)
    }
}

/// The end of a ring that takes entries out. `Send`, not `Sync`: one thread at a time.
#[derive(Debug)]
pub struct Consumer<T: Pod>(ConsumerEnd<ArenaRing<T>>);

impl<T: Pod> Consumer<T> {
    /// Attaches to the ring of `capacity` entries at `offset`. Both ends start at index 0.
    ///
    /// # Errors
    /// As [`Producer::attach`].
    pub fn attach(arena: &Arc<Arena>, offset: usize, capacity: u32) -> Result<Self, RingError> {
        let memory = ArenaRing::attach(arena, offset, capacity)?;
        Ok(Consumer(ConsumerEnd::new(memory, capacity)))
    }

    /// Takes the next entry. Its room is given back by [`release`](Self::release). The producer's
    /// index is read only when everything seen before is taken.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] when the producer shows more than fits, or goes backwards.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<T>, RingError> {
        self.0.pop()
    }

    /// The entry that [`pop`](Self::pop) would take. What it takes may be another one: the producer can still
    /// write it.
    ///
    /// # Errors
    /// As [`pop`](Self::pop).
    #[inline]
    pub fn peek(&mut self) -> Result<Option<T>, RingError> {
        self.0.peek()
    }

    /// Gives the room of all taken entries back to the producer.
    #[inline]
    pub fn release(&mut self) {
        self.0.release();
    }

    /// Entries that can be taken now. Always reads the producer's index.
    ///
    /// # Errors
    /// As [`pop`](Self::pop).
    #[inline]
    pub fn available(&mut self) -> Result<u32, RingError> {
        self.0.available()
    }
}

/// Where a ring lives: an arena, or loom's types. Any index is legal: the memory takes it modulo its
/// capacity.
pub(crate) trait RingMemory {
    type Entry: Copy;
    type Word: Word;
    fn producer_index(&self) -> &Self::Word;
    fn consumer_index(&self) -> &Self::Word;
    fn write(&self, index: u32, entry: Self::Entry);
    fn read(&self, index: u32) -> Self::Entry;
}

/// The index that the other side shows, once it is known to lie within `lowest..=highest` on the
/// circle of free-running indices.
#[inline]
fn checked(index: u32, lowest: u32, highest: u32) -> Result<u32, RingError> {
    if index.wrapping_sub(lowest) <= highest.wrapping_sub(lowest) {
        Ok(index)
    } else {
        Err(RingError::Corrupt {
            index,
            lowest,
            highest,
        })
    }
}

#[derive(Debug)]
pub(crate) struct ProducerEnd<M> {
    memory: M,
    capacity: u32,
    /// Index of the next entry to stage.
    next: u32,
    /// What the arena shows.
    published: u32,
    /// Last checked copy of the consumer's index.
    consumer: u32,
}

impl<M: RingMemory> ProducerEnd<M> {
    pub(crate) fn new(memory: M, capacity: u32) -> Self {
        ProducerEnd {
            memory,
            capacity,
            next: 0,
            published: 0,
            consumer: 0,
        }
    }

    #[inline]
    pub(crate) fn free(&mut self) -> Result<u32, RingError> {
        let free = self.known_free();
        if free > 0 {
            return Ok(free);
        }
        // Acquire: partner is the Release in ConsumerEnd::release. The consumer has copied the
        // entries whose slots are written next.
        let shown = self.memory.consumer_index().load(Ordering::Acquire);
        self.consumer = checked(shown, self.consumer, self.published)?;
        Ok(self.known_free())
    }

    #[inline]
    fn known_free(&self) -> u32 {
        self.capacity - self.next.wrapping_sub(self.consumer)
    }

    #[inline]
    pub(crate) fn stage(&mut self, entry: M::Entry) -> Result<bool, RingError> {
        if self.free()? == 0 {
            return Ok(false);
        }
        self.memory.write(self.next, entry);
        self.next = self.next.wrapping_add(1);
        Ok(true)
    }

    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.published != self.next {
            self.published = self.next;
            // Release: partner is the Acquire in ConsumerEnd::refresh. The entries are written
            // before they are shown.
            self.memory
                .producer_index()
                .store(self.next, Ordering::Release);
        }
    }
}

#[derive(Debug)]
pub(crate) struct ConsumerEnd<M> {
    memory: M,
    capacity: u32,
    /// Index of the next entry to take.
    next: u32,
    /// What the arena shows.
    released: u32,
    /// Last checked copy of the producer's index.
    producer: u32,
}

impl<M: RingMemory> ConsumerEnd<M> {
    pub(crate) fn new(memory: M, capacity: u32) -> Self {
        ConsumerEnd {
            memory,
            capacity,
            next: 0,
            released: 0,
            producer: 0,
        }
    }

    #[inline]
    fn refresh(&mut self) -> Result<(), RingError> {
        // Acquire: partner is the Release in ProducerEnd::publish. The entries that it shows are
        // written.
        let shown = self.memory.producer_index().load(Ordering::Acquire);
        let furthest = self.released.wrapping_add(self.capacity);
        self.producer = checked(shown, self.producer, furthest)?;
        Ok(())
    }

    #[inline]
    pub(crate) fn peek(&mut self) -> Result<Option<M::Entry>, RingError> {
        if self.next == self.producer {
            self.refresh()?;
            if self.next == self.producer {
                return Ok(None);
            }
        }
        Ok(Some(self.memory.read(self.next)))
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Result<Option<M::Entry>, RingError> {
        let entry = self.peek()?;
        if entry.is_some() {
            self.next = self.next.wrapping_add(1);
        }
        Ok(entry)
    }

    #[inline]
    pub(crate) fn release(&mut self) {
        if self.released != self.next {
            self.released = self.next;
            // Release: partner is the Acquire in ProducerEnd::free. The entries are copied before
            // their slots may be written again.
            self.memory
                .consumer_index()
                .store(self.next, Ordering::Release);
        }
    }

    #[inline]
    pub(crate) fn available(&mut self) -> Result<u32, RingError> {
        self.refresh()?;
        Ok(self.producer.wrapping_sub(self.next))
    }
}

#[cfg(all(test, loom))]
pub(crate) mod loom_model;
#[cfg(all(test, not(loom)))]
mod tests;
