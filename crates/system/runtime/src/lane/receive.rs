//! The receive region of a session, shared so that large messages cannot starve small ones.
//!
//! An eighth of the region is for messages of [`SMALL`] bytes at most, whatever large ones are held or being put
//! together beside them. What a client is told of it when a sink opens is in `takt_session::layout`.

use takt_session::layout::{SMALL_MESSAGE, large_share};
use takt_shm::{Buddy, CHUNK, NotAllocated};

/// The blocks of a receive region.
#[derive(Debug)]
pub struct ReceiveMemory {
    buddy: Buddy,
    /// Bytes of blocks for large messages, and most such bytes.
    large: usize,
    most_large: usize,
}

/// Whether a message is large, or a block one of a large message.
pub fn is_large(bytes: usize) -> bool {
    bytes > SMALL_MESSAGE
}

/// Bytes of the block that a message takes.
pub fn block_bytes(length: usize) -> usize {
    length.max(CHUNK).next_power_of_two()
}

impl ReceiveMemory {
    /// A region of this many bytes.
    pub fn new(bytes: usize) -> Self {
        Self {
            buddy: Buddy::new(bytes),
            large: 0,
            most_large: large_share(bytes),
        }
    }

    /// A block for a message of `length` bytes.
    #[inline]
    pub fn allocate(&mut self, length: usize) -> Option<u32> {
        if !is_large(length) {
            return self.buddy.allocate(length);
        }
        // A single one may be larger than the share of its kind, else it could never come.
        let bytes = length.next_power_of_two();
        if self.large > 0 && self.large + bytes > self.most_large {
            return None;
        }
        let chunk = self.buddy.allocate(length)?;
        self.large += bytes;
        Some(chunk)
    }

    /// Gives a block back.
    ///
    /// # Errors
    /// [`NotAllocated`] when none starts there.
    #[inline]
    pub fn free(&mut self, chunk: u32) -> Result<(), NotAllocated> {
        let bytes = self.block_len(chunk);
        self.buddy.free(chunk)?;
        if is_large(bytes) {
            self.large -= bytes;
        }
        Ok(())
    }

    /// Bytes of all blocks.
    #[cfg(test)]
    pub fn allocated_bytes(&self) -> usize {
        self.buddy.allocated_bytes()
    }

    /// Bytes of the block that starts at `chunk`; 0 when none does.
    #[inline]
    pub fn block_len(&self, chunk: u32) -> usize {
        self.buddy.block_len(chunk).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REGION: usize = 1 << 20;

    proptest! {
        #[test]
        fn whatever_large_messages_are_there_small_ones_have_their_share(
            lengths in proptest::collection::vec(SMALL_MESSAGE + 1..REGION / 2, 1..40),
            freed in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let mut memory = ReceiveMemory::new(REGION);
            let mut held: Vec<u32> = lengths.iter().filter_map(|&length| memory.allocate(length)).collect();
            for index in freed {
                if !held.is_empty() {
                    let chunk = held.swap_remove(index.index(held.len()));
                    prop_assert!(memory.free(chunk).is_ok());
                }
            }
            held.extend(lengths.iter().filter_map(|&length| memory.allocate(length)));
            let mut small = 0;
            while small < (REGION - large_share(REGION)) / SMALL_MESSAGE {
                prop_assert!(memory.allocate(SMALL_MESSAGE).is_some());
                small += 1;
            }
        }
    }

    #[test]
    fn a_message_as_large_as_the_region_fits_an_empty_one() {
        let mut memory = ReceiveMemory::new(REGION);
        let chunk = memory.allocate(REGION).expect("room");
        assert_eq!(memory.allocate(1), None);
        assert!(memory.free(chunk).is_ok());
        assert!(memory.free(chunk).is_err());
        assert!(memory.allocate(REGION / 2).is_some());
        assert_eq!(memory.allocate(REGION / 2), None);
    }
}
