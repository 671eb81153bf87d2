use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Chunks that are free, wherever they are kept.
fn free_chunks(buddy: &Buddy) -> usize {
    let cached: usize = buddy
        .caches
        .iter()
        .enumerate()
        .map(|(order, cache)| cache.len << order)
        .sum();
    let mapped: usize = (0..ORDERS)
        .map(|order| {
            let tree = &buddy.free.trees[order];
            let words = (tree.blocks as usize).div_ceil(64);
            let bits: u32 = buddy.free.words[tree.at[0]..tree.at[0] + words]
                .iter()
                .map(|word| word.count_ones())
                .sum();
            (bits as usize) << order
        })
        .sum();
    cached + mapped
}

#[test]
fn a_block_is_the_smallest_power_of_two_of_chunks_that_fits() {
    let mut buddy = Buddy::new(64 * CHUNK);
    for (len, expected) in [
        (0, 256),
        (1, 256),
        (256, 256),
        (257, 512),
        (513, 1024),
        (1024, 1024),
        (1500, 2048),
        (9000, 16384),
    ] {
        let chunk = buddy.allocate(len).unwrap();
        assert_eq!(buddy.block_len(chunk), Some(expected), "length {len}");
        assert_eq!(buddy.allocated_bytes(), expected);
        buddy.free(chunk).unwrap();
        assert_eq!(buddy.allocated_bytes(), 0);
    }
}

#[test]
fn a_region_of_any_number_of_chunks_is_used_to_its_end() {
    for chunks in [0, 1, 2, 3, 63, 64, 65, 127, 1000, 4096, 4097, 70_001] {
        let mut buddy = Buddy::new(chunks * CHUNK + 255);
        let mut taken: Vec<u32> = (0..chunks).map(|_| buddy.allocate(1).unwrap()).collect();
        assert_eq!(buddy.allocate(1), None);
        assert_eq!(buddy.allocated_bytes(), chunks * CHUNK);
        taken.sort_unstable();
        assert!(taken.iter().copied().eq(0..chunks as u32));
    }
}

#[test]
fn lengths_that_no_region_holds_are_refused() {
    let mut buddy = Buddy::new(1024 * CHUNK);
    for len in [1024 * CHUNK + 1, CHUNK << 31, CHUNK << 32, usize::MAX] {
        assert_eq!(buddy.allocate(len), None, "length {len}");
    }
    assert!(buddy.allocate(1024 * CHUNK).is_some());
}

#[test]
fn a_freed_block_is_not_allocated_though_it_waits_in_a_stack() {
    let mut buddy = Buddy::new(16 * CHUNK);
    let chunk = buddy.allocate(CHUNK).unwrap();
    buddy.free(chunk).unwrap();
    assert_eq!(buddy.free(chunk), Err(NotAllocated { chunk }));
    assert_eq!(buddy.block_len(chunk), None);
    assert_eq!(buddy.allocated_bytes(), 0);
}

#[test]
fn only_the_first_chunk_of_an_allocated_block_names_it() {
    let mut buddy = Buddy::new(16 * CHUNK);
    let chunk = buddy.allocate(4 * CHUNK).unwrap();
    for wrong in [chunk + 1, chunk + 3, chunk + 4, 16, u32::MAX] {
        assert_eq!(buddy.free(wrong), Err(NotAllocated { chunk: wrong }));
        assert_eq!(buddy.block_len(wrong), None);
    }
    assert_eq!(buddy.allocated_bytes(), 4 * CHUNK);
    buddy.free(chunk).unwrap();
}

#[test]
fn small_blocks_in_stacks_are_merged_when_a_large_one_is_needed() {
    let mut buddy = Buddy::new(256 * CHUNK);
    let small: Vec<u32> = (0..256).map(|_| buddy.allocate(1).unwrap()).collect();
    for chunk in small {
        buddy.free(chunk).unwrap();
    }
    assert_eq!(buddy.allocate(256 * CHUNK), Some(0));
}

#[test]
fn a_freed_block_is_the_next_to_be_allocated() {
    let mut buddy = Buddy::new(1024 * CHUNK);
    let (first, second) = (buddy.allocate(1).unwrap(), buddy.allocate(1).unwrap());
    buddy.free(first).unwrap();
    buddy.free(second).unwrap();
    assert_eq!(buddy.allocate(1), Some(second));
    assert_eq!(buddy.allocate(1), Some(first));
}

#[test]
fn the_maps_of_the_largest_region_reach_its_last_chunk() {
    let mut maps = FreeMaps::new(u32::MAX);
    // 2^32 - 1 chunks: one block of every order, the largest first.
    assert_eq!(maps.orders, u32::MAX);
    assert_eq!(maps.take(31), Some(0));
    assert_eq!(maps.take(31), None);
    assert_eq!(maps.take(0), Some(u32::MAX - 1));
    assert_eq!(maps.take(0), Some(u32::MAX - 3));
    maps.merge(0, u32::MAX - 3);
    maps.merge(0, u32::MAX - 1);
    maps.merge(31, 0);
    assert_eq!(maps.orders, u32::MAX);
    assert_eq!(maps.take(1), Some(u32::MAX - 3));
}

#[derive(Debug, Clone)]
enum Step {
    Allocate(usize),
    /// Frees the allocated block at this place in the list, modulo its length.
    Free(usize),
    FreeAnything(u32),
}

fn step(chunks: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..8 * CHUNK).prop_map(Step::Allocate),
        1 => (0..=(chunks + 1) * CHUNK).prop_map(Step::Allocate),
        4 => any::<usize>().prop_map(Step::Free),
        1 => (0..chunks as u32 + 3).prop_map(Step::FreeAnything),
    ]
}

fn regions() -> impl Strategy<Value = (usize, Vec<Step>)> {
    prop_oneof![1..80_usize, 1..5000_usize]
        .prop_flat_map(|chunks| (Just(chunks), prop::collection::vec(step(chunks), 1..400)))
}

proptest! {
    #[test]
    fn blocks_never_overlap_nothing_is_lost_and_all_merges_in_the_end((chunks, steps) in regions()) {
        let mut buddy = Buddy::new(chunks * CHUNK);
        // First chunk to number of chunks.
        let mut allocated = BTreeMap::<u32, u32>::new();
        for step in steps {
            match step {
                Step::Allocate(len) => {
                    let Some(chunk) = buddy.allocate(len) else { continue };
                    let size = (len.div_ceil(CHUNK).max(1)).next_power_of_two() as u32;
                    prop_assert_eq!(chunk % size, 0);
                    prop_assert!((chunk + size) as usize <= chunks);
                    let before = allocated.range(..chunk).next_back();
                    prop_assert!(before.is_none_or(|(start, size)| start + size <= chunk));
                    prop_assert!(allocated.range(chunk..chunk + size).next().is_none());
                    allocated.insert(chunk, size);
                }
                Step::Free(place) => {
                    let Some((&chunk, _)) = allocated.iter().nth(place % allocated.len().max(1)) else {
                        continue;
                    };
                    allocated.remove(&chunk);
                    prop_assert_eq!(buddy.free(chunk), Ok(()));
                }
                Step::FreeAnything(chunk) => {
                    let expected = allocated.remove(&chunk).map(|_| ()).ok_or(NotAllocated { chunk });
                    prop_assert_eq!(buddy.free(chunk), expected);
                }
            }
            let taken = allocated.values().map(|&size| size as usize).sum::<usize>();
            prop_assert_eq!(buddy.allocated_bytes(), taken * CHUNK);
            prop_assert_eq!(free_chunks(&buddy), chunks - taken);
            for (&chunk, &size) in &allocated {
                prop_assert_eq!(buddy.block_len(chunk), Some(size as usize * CHUNK));
            }
        }
        for &chunk in allocated.keys() {
            prop_assert_eq!(buddy.free(chunk), Ok(()));
        }
        // An allocation that cannot succeed empties the stacks; then all is as at the start.
        prop_assert_eq!(buddy.allocate((chunks + 1) * CHUNK), None);
        let fresh = Buddy::new(chunks * CHUNK);
        prop_assert_eq!(&buddy.free.words, &fresh.free.words);
        prop_assert_eq!(buddy.free.orders, fresh.free.orders);
        prop_assert!(buddy.starts.iter().all(|&start| start == 0));
    }

    #[test]
    fn an_allocation_fails_only_when_no_block_is_free((chunks, steps) in regions()) {
        let mut buddy = Buddy::new(chunks * CHUNK);
        let mut used = vec![false; chunks];
        let mut allocated = Vec::new();
        for step in steps {
            match step {
                Step::Allocate(len) => {
                    let size = (len.div_ceil(CHUNK).max(1)).next_power_of_two();
                    let fits = used.chunks_exact(size).any(|block| block.iter().all(|used| !used));
                    let chunk = buddy.allocate(len);
                    prop_assert_eq!(chunk.is_some(), fits);
                    if let Some(chunk) = chunk {
                        used[chunk as usize..chunk as usize + size].fill(true);
                        allocated.push((chunk, size));
                    }
                }
                Step::Free(place) if !allocated.is_empty() => {
                    let (chunk, size) = allocated.swap_remove(place % allocated.len());
                    buddy.free(chunk).unwrap();
                    used[chunk as usize..chunk as usize + size].fill(false);
                }
                Step::Free(_) | Step::FreeAnything(_) => {}
            }
        }
    }
}
