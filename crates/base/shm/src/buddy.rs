//! A buddy allocator over a region of an arena, with all bookkeeping in its owner's private memory.
//!
//! The application hands out its transmit region with it, the runtime the receive region. It is pure
//! logic on chunk numbers: no block carries a header that the other side could change, and a chunk
//! number that comes back from the other side is checked against the owner's own record.
//!
//! - A block is a power of two of [`CHUNK`]-byte chunks and starts at a multiple of its size.
//! - Free blocks are bits in one map per order, each a 64-ary tree of words whose upper levels say which
//!   words below are not zero. Finding, adding and removing one is a handful of word operations.
//! - One byte per chunk says which order of allocated block starts there. All tables are zero at first,
//!   so the kernel backs only what is touched.
//! - In front of it, a small bounded stack of recently freed blocks per small order: allocating and
//!   freeing in turn neither splits nor merges. When an allocation finds nothing, the stacks are
//!   emptied into the tables and it is tried once more.
//!
//! Nothing is allocated after [`Buddy::new`].

use thiserror::Error;

/// Bytes of the smallest block.
pub const CHUNK: usize = 256;

/// Orders that have a stack: blocks of 256 bytes to 32 KiB.
const CACHED_ORDERS: usize = 8;
/// Blocks in a stack.
const CACHED_BLOCKS: usize = 64;
/// Orders of blocks: chunk numbers are `u32`, the largest block is 2^31 chunks.
const ORDERS: usize = 32;
/// Levels of a map: 64^6 > 2^32.
const LEVELS: usize = 6;

/// No allocated block starts at the chunk: a double free, or a number from a hostile peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no allocated block starts at chunk {chunk}; free each block once, by its first chunk")]
pub struct NotAllocated {
    /// The chunk that was named.
    pub chunk: u32,
}

/// The allocator. See the [module](self).
#[derive(Debug)]
pub struct Buddy {
    /// Per chunk: 0, or 1 + the order of the allocated block that starts there.
    starts: Vec<u8>,
    free: FreeMaps,
    caches: Box<[Cache; CACHED_ORDERS]>,
    allocated_chunks: usize,
}

impl Buddy {
    /// An allocator for a region of `len` bytes: any multiple of [`CHUNK`] (a rest is left unused, as
    /// is what lies beyond 2^32 - 1 chunks).
    pub fn new(len: usize) -> Buddy {
        let chunks = u32::try_from(len / CHUNK).unwrap_or(u32::MAX);
        Buddy {
            starts: vec![0; chunks as usize],
            free: FreeMaps::new(chunks),
            caches: Box::new([Cache::EMPTY; CACHED_ORDERS]),
            allocated_chunks: 0,
        }
    }

    /// Allocates the smallest power-of-two number of chunks that holds `len` bytes (one for zero).
    /// Returns the number of the first chunk; the block starts at that number times [`CHUNK`] bytes.
    ///
    /// O(log n); a failing call empties the stacks first, at most 512 blocks.
    #[inline]
    pub fn allocate(&mut self, len: usize) -> Option<u32> {
        let order = order_of(len);
        if let Some(cache) = self.caches.get_mut(order)
            && let Some(chunk) = cache.pop()
        {
            self.mark(chunk, order);
            return Some(chunk);
        }
        self.allocate_uncached(order)
    }

    fn allocate_uncached(&mut self, order: usize) -> Option<u32> {
        if order >= ORDERS {
            return None;
        }
        let mut found = self.free.take(order);
        if found.is_none() && self.drain() {
            found = self.free.take(order);
        }
        let chunk = found?;
        self.mark(chunk, order);
        Some(chunk)
    }

    #[inline]
    fn mark(&mut self, chunk: u32, order: usize) {
        self.starts[chunk as usize] = order as u8 + 1;
        self.allocated_chunks += 1 << order;
    }

    /// Frees the block that starts at `chunk`.
    ///
    /// # Errors
    /// [`NotAllocated`] when no allocated block starts there; nothing changes.
    #[inline]
    pub fn free(&mut self, chunk: u32) -> Result<(), NotAllocated> {
        let order = self.allocated_order(chunk).ok_or(NotAllocated { chunk })?;
        self.starts[chunk as usize] = 0;
        self.allocated_chunks -= 1 << order;
        let cached = self
            .caches
            .get_mut(order)
            .is_some_and(|cache| cache.push(chunk));
        if !cached {
            self.free.merge(order, chunk);
        }
        Ok(())
    }

    /// Bytes of the allocated block that starts at `chunk`; `None` when none does.
    #[inline]
    pub fn block_len(&self, chunk: u32) -> Option<usize> {
        self.allocated_order(chunk).map(|order| CHUNK << order)
    }

    /// Bytes of all allocated blocks.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        self.allocated_chunks * CHUNK
    }

    #[inline]
    fn allocated_order(&self, chunk: u32) -> Option<usize> {
        match self.starts.get(chunk as usize) {
            Some(&start) if start > 0 => Some(usize::from(start) - 1),
            _ => None,
        }
    }

    /// Empties the stacks into the free maps, where blocks merge. False when they were empty.
    #[cold]
    fn drain(&mut self) -> bool {
        let mut any = false;
        for (order, cache) in self.caches.iter_mut().enumerate() {
            while let Some(chunk) = cache.pop() {
                self.free.merge(order, chunk);
                any = true;
            }
        }
        any
    }
}

/// The order of the smallest block that holds `len` bytes.
#[inline]
fn order_of(len: usize) -> usize {
    let chunks = len.div_ceil(CHUNK);
    match chunks {
        0 | 1 => 0,
        _ => (chunks - 1).ilog2() as usize + 1,
    }
}

/// A bounded stack of free blocks of one order.
#[derive(Debug, Clone, Copy)]
struct Cache {
    blocks: [u32; CACHED_BLOCKS],
    len: usize,
}

impl Cache {
    const EMPTY: Cache = Cache {
        blocks: [0; CACHED_BLOCKS],
        len: 0,
    };

    /// False: it is full.
    #[inline]
    fn push(&mut self, chunk: u32) -> bool {
        match self.blocks.get_mut(self.len) {
            Some(place) => {
                *place = chunk;
                self.len += 1;
                true
            }
            None => false,
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        self.blocks.get(self.len).copied()
    }
}

/// The free blocks of every order. A block is named by its number: first chunk >> order.
#[derive(Debug)]
struct FreeMaps {
    /// All trees, one after the other.
    words: Vec<u64>,
    trees: [Tree; ORDERS],
    /// Orders that have a free block, one bit each.
    orders: u32,
}

/// Where a map's levels lie in `words`. Level 0 has a bit per block; a bit of level n + 1 says that the
/// word below is not zero. The top level is one word.
#[derive(Debug, Clone, Copy)]
struct Tree {
    blocks: u32,
    levels: usize,
    at: [usize; LEVELS],
}

impl FreeMaps {
    /// Maps in which all of that many chunks are free.
    fn new(chunks: u32) -> FreeMaps {
        let mut total = 0;
        let trees = core::array::from_fn(|order| {
            let mut tree = Tree {
                blocks: chunks >> order,
                levels: 0,
                at: [0; LEVELS],
            };
            let mut bits = tree.blocks as usize;
            while bits > 0 {
                let words = bits.div_ceil(64);
                tree.at[tree.levels] = total;
                tree.levels += 1;
                total += words;
                bits = if words > 1 { words } else { 0 };
            }
            tree
        });
        let mut maps = FreeMaps {
            words: vec![0; total],
            trees,
            orders: 0,
        };
        // The largest aligned blocks that tile the region.
        let mut at = 0;
        while at < chunks {
            let fits = (chunks - at).ilog2();
            let order = at.trailing_zeros().min(fits) as usize;
            maps.insert(order, at >> order);
            at += 1 << order;
        }
        maps
    }

    fn insert(&mut self, order: usize, block: u32) {
        let tree = &self.trees[order];
        let mut bit = block as usize;
        for &at in &tree.at[..tree.levels] {
            let word = &mut self.words[at + bit / 64];
            let was_empty = *word == 0;
            *word |= 1 << (bit % 64);
            if !was_empty {
                return;
            }
            bit /= 64;
        }
        self.orders |= 1 << order;
    }

    fn remove(&mut self, order: usize, block: u32) {
        let tree = &self.trees[order];
        let mut bit = block as usize;
        for &at in &tree.at[..tree.levels] {
            let word = &mut self.words[at + bit / 64];
            *word &= !(1 << (bit % 64));
            if *word != 0 {
                return;
            }
            bit /= 64;
        }
        self.orders &= !(1 << order);
    }

    fn contains(&self, order: usize, block: u32) -> bool {
        let tree = &self.trees[order];
        let bit = block as usize;
        block < tree.blocks && self.words[tree.at[0] + bit / 64] >> (bit % 64) & 1 == 1
    }

    /// The lowest free block of an order that has one.
    fn first(&self, order: usize) -> u32 {
        let tree = &self.trees[order];
        tree.at[..tree.levels].iter().rev().fold(0, |word, &at| {
            word * 64 + self.words[at + word].trailing_zeros() as usize
        }) as u32
    }

    /// Takes a block of `order` out, splitting the smallest larger one if need be. Its first chunk.
    fn take(&mut self, order: usize) -> Option<u32> {
        let candidates = self.orders & (u32::MAX << order);
        if candidates == 0 {
            return None;
        }
        let from = candidates.trailing_zeros() as usize;
        let mut block = self.first(from);
        self.remove(from, block);
        for split in (order..from).rev() {
            block *= 2;
            self.insert(split, block + 1);
        }
        Some(block << order)
    }

    /// Puts a block back, merged with its buddy as long as that is free too.
    fn merge(&mut self, mut order: usize, chunk: u32) {
        let mut block = chunk >> order;
        while order + 1 < ORDERS && self.contains(order, block ^ 1) {
            self.remove(order, block ^ 1);
            block /= 2;
            order += 1;
        }
        self.insert(order, block);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
