//! The shared words that the ring and doorbell protocols are written against.
//!
//! A protocol takes its words through [`Word`], so the very code that runs over an arena also runs
//! over loom's atomics, where the model checker explores its interleavings. Words in an arena are
//! always the processor's atomics: loom's have a layout of their own and cannot live there.

use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use crate::arena::{Arena, OutOfBounds};

/// A 32-bit word that both sides may change at any instant.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn swap(&self, value: u32, order: Ordering) -> u32;
    /// Stores `new` if the word is `current`; says whether it did.
    fn replace_if(&self, current: u32, new: u32, order: Ordering) -> bool;
    /// A sequentially consistent fence of the memory model that the word belongs to.
    fn fence();
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        AtomicU32::store(self, value, order);
    }

    #[inline]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        AtomicU32::swap(self, value, order)
    }

    #[inline]
    fn replace_if(&self, current: u32, new: u32, order: Ordering) -> bool {
        self.compare_exchange(current, new, order, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    fn fence() {
        core::sync::atomic::fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
impl Word for loom::sync::atomic::AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        loom::sync::atomic::AtomicU32::load(self, order)
    }

    fn store(&self, value: u32, order: Ordering) {
        loom::sync::atomic::AtomicU32::store(self, value, order);
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        loom::sync::atomic::AtomicU32::swap(self, value, order)
    }

    fn replace_if(&self, current: u32, new: u32, order: Ordering) -> bool {
        self.compare_exchange(current, new, order, Ordering::Relaxed)
            .is_ok()
    }

    fn fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// A word of an arena that keeps its arena mapped.
#[derive(Debug)]
pub(crate) struct ArenaWord {
    word: NonNull<AtomicU32>,
    _arena: Arc<Arena>,
}

impl ArenaWord {
    pub(crate) fn new(arena: &Arc<Arena>, offset: usize) -> Result<Self, OutOfBounds> {
        Ok(ArenaWord {
            word: NonNull::from(arena.atomic_u32(offset)?),
            _arena: Arc::clone(arena),
        })
    }
}

impl Deref for ArenaWord {
    type Target = AtomicU32;

    #[inline]
    fn deref(&self) -> &AtomicU32 {
        // SAFETY: `word` came from a checked reference into the arena, which `_arena` keeps mapped
        // for as long as `self` lives.
        unsafe { self.word.as_ref() }
    }
}

// SAFETY: it is an `Arc<Arena>` (Send, Sync) and a pointer to an atomic inside that arena.
unsafe impl Send for ArenaWord {}
// SAFETY: as above; only `&AtomicU32` is ever handed out.
unsafe impl Sync for ArenaWord {}
