//! A ring's memory in an arena: where its words and slots are, and copies of entries that tolerate a
//! peer writing them at the same time.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use super::{Pod, RingError, RingLayout, RingMemory};
use crate::arena::{Arena, OutOfBounds};
use crate::sync::ArenaWord;

/// A ring in an arena.
#[derive(Debug)]
pub(crate) struct ArenaRing<T> {
    producer: ArenaWord,
    consumer: ArenaWord,
    entries: NonNull<T>,
    mask: u32,
    entry: PhantomData<T>,
}

// SAFETY: the words are Send and keep the arena mapped; entries are plain data reached by atomics.
// Not Sync, as an end's position belongs to one thread.
unsafe impl<T: Pod> Send for ArenaRing<T> {}

impl<T: Pod> ArenaRing<T> {
    pub(crate) fn attach(
        arena: &Arc<Arena>,
        offset: usize,
        capacity: u32,
    ) -> Result<Self, RingError> {
        const { assert!(align_of::<T>() <= RingLayout::ALIGN && size_of::<T>() > 0) };
        if !capacity.is_power_of_two() || capacity > RingLayout::MAX_CAPACITY {
            return Err(RingError::Capacity { capacity });
        }
        let size = RingLayout::size::<T>(capacity);
        if !offset.is_multiple_of(RingLayout::ALIGN) {
            return Err(RingError::OutOfBounds(OutOfBounds {
                offset,
                len: size,
                limit: arena.len(),
                align: RingLayout::ALIGN,
            }));
        }
        let ring = arena.slice(offset, size)?;
        let entries = ring.sub(RingLayout::ENTRIES, capacity as usize * size_of::<T>())?;
        Ok(ArenaRing {
            producer: ArenaWord::new(arena, offset + RingLayout::PRODUCER)?,
            consumer: ArenaWord::new(arena, offset + RingLayout::CONSUMER)?,
            entries: entries.base().cast(),
            mask: capacity - 1,
            entry: PhantomData,
        })
    }

    /// Address of the slot of `index`.
    #[inline]
    fn slot(&self, index: u32) -> *mut T {
        // SAFETY: the masked index is below the capacity, for which `attach` checked the bounds; the
        // words keep the arena mapped.
        unsafe { self.entries.as_ptr().add((index & self.mask) as usize) }
    }
}

impl<T: Pod> RingMemory for ArenaRing<T> {
    type Entry = T;
    type Word = AtomicU32;

    #[inline]
    fn producer_index(&self) -> &AtomicU32 {
        &self.producer
    }

    #[inline]
    fn consumer_index(&self) -> &AtomicU32 {
        &self.consumer
    }

    #[inline]
    fn write(&self, index: u32, entry: T) {
        let from = &raw const entry;
        let to = self.slot(index);
        // SAFETY: `from` is a whole T without padding (Pod); `to` is a mapped slot that is aligned as
        // T, hence as the words chosen by its alignment; the peer may only read or write it as
        // shared memory, for which these are atomics.
        unsafe {
            if align_of::<T>().is_multiple_of(8) {
                let (from, to) = (from.cast::<u64>(), to.cast::<u64>());
                for i in 0..size_of::<T>() / 8 {
                    AtomicU64::from_ptr(to.add(i)).store(from.add(i).read(), Ordering::Relaxed);
                }
            } else if align_of::<T>().is_multiple_of(4) {
                let (from, to) = (from.cast::<u32>(), to.cast::<u32>());
                for i in 0..size_of::<T>() / 4 {
                    AtomicU32::from_ptr(to.add(i)).store(from.add(i).read(), Ordering::Relaxed);
                }
            } else {
                let (from, to) = (from.cast::<u8>(), to.cast::<u8>());
                for i in 0..size_of::<T>() {
                    AtomicU8::from_ptr(to.add(i)).store(from.add(i).read(), Ordering::Relaxed);
                }
            }
        }
    }

    #[inline]
    fn read(&self, index: u32) -> T {
        let mut entry = core::mem::MaybeUninit::<T>::uninit();
        let from = self.slot(index);
        let to = entry.as_mut_ptr();
        // SAFETY: as in `write`, the other way round; every byte of `entry` is written, and any
        // pattern is a valid T (Pod).
        unsafe {
            if align_of::<T>().is_multiple_of(8) {
                let (from, to) = (from.cast::<u64>(), to.cast::<u64>());
                for i in 0..size_of::<T>() / 8 {
                    to.add(i)
                        .write(AtomicU64::from_ptr(from.add(i)).load(Ordering::Relaxed));
                }
            } else if align_of::<T>().is_multiple_of(4) {
                let (from, to) = (from.cast::<u32>(), to.cast::<u32>());
                for i in 0..size_of::<T>() / 4 {
                    to.add(i)
                        .write(AtomicU32::from_ptr(from.add(i)).load(Ordering::Relaxed));
                }
            } else {
                let (from, to) = (from.cast::<u8>(), to.cast::<u8>());
                for i in 0..size_of::<T>() {
                    to.add(i)
                        .write(AtomicU8::from_ptr(from.add(i)).load(Ordering::Relaxed));
                }
            }
            entry.assume_init()
        }
    }
}
