//! Which blocks of a source's memory are with sinks of other sessions.

#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Which blocks of a source a sink has, in memory of the source alone.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) ring: u32,
    /// A bit for each chunk at which a block starts that it has.
    blocks: Box<[AtomicU64]>,
    count: AtomicU32,
    bytes: AtomicUsize,
    /// Blocks that have come back so far.
    returned: AtomicU64,
    /// It has given back what it did not have: what it has is gone until its session is.
    pub(crate) broken: AtomicBool,
}

impl Lent {
    pub(crate) fn new(ring: u32, chunks: usize) -> Self {
        let words = chunks.div_ceil(64);
        Self {
            ring,
            blocks: std::iter::repeat_with(AtomicU64::default)
                .take(words)
                .collect(),
            count: AtomicU32::new(0),
            bytes: AtomicUsize::new(0),
            returned: AtomicU64::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// The sink gets the block that starts at this chunk.
    pub(crate) fn lend(&self, chunk: u32, bytes: usize) {
        if let Some(word) = self.blocks.get(chunk as usize / 64) {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            // Release: partner is the swap in `take_back`, which subtracts what is added here.
            word.fetch_or(1 << (chunk % 64), Ordering::Release);
        }
    }

    /// The block comes back, of so many `bytes`, which are asked for when it is known that the sink has it. `None`: it does not.
    pub(crate) fn take_back(&self, chunk: u32, bytes: impl FnOnce() -> usize) -> Option<usize> {
        let bit = 1 << (chunk % 64);
        let word = self.blocks.get(chunk as usize / 64)?;
        if word.load(Ordering::Relaxed) & bit == 0
            || word.fetch_and(!bit, Ordering::Acquire) & bit == 0
        {
            return None;
        }
        let bytes = bytes();
        self.count.fetch_sub(1, Ordering::Release); // Partner: `count`.
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.returned.fetch_add(1, Ordering::Relaxed);
        Some(bytes)
    }

    /// All that the sink has.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        let words = self.blocks.iter().enumerate();
        words.flat_map(|(at, word)| {
            let word = word.load(Ordering::Relaxed);
            let set = (0..64).filter(move |bit| word & (1 << bit) != 0);
            set.map(move |bit| at as u32 * 64 + bit)
        })
    }

    /// How many blocks the sink has.
    pub(crate) fn count(&self) -> u32 {
        // Acquire: partner is the subtraction in `take_back`. The place in the return ring has been shown free.
        self.count.load(Ordering::Acquire)
    }

    /// How many have come back so far.
    pub(crate) fn returned(&self) -> u64 {
        self.returned.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}
