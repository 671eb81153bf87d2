use super::*;
use crate::ring::RingLayout;
use proptest::prelude::*;

fn arena() -> Arc<Arena> {
    Arc::new(Arena::create("newest", 4096).unwrap())
}

fn ends(arena: &Arc<Arena>) -> (NewestWriter<u64>, NewestReader<u64>) {
    RingLayout::reset(arena, 64).unwrap();
    (
        NewestWriter::attach(arena, 64).unwrap(),
        NewestReader::attach(arena, 64).unwrap(),
    )
}

proptest! {
    /// As a variable that holds the newest entry until it is taken.
    #[test]
    fn is_the_newest_entry_that_was_not_taken(puts in proptest::collection::vec(any::<bool>(), 0..200)) {
        let arena = arena();
        let (mut writer, mut reader) = ends(&arena);
        let mut held = None;
        for (at, put) in puts.into_iter().enumerate() {
            if put {
                prop_assert_eq!(writer.put(at as u64).unwrap(), held.is_none());
                held = Some(at as u64);
            } else {
                prop_assert_eq!(reader.has_news(), held.is_some());
                prop_assert_eq!(reader.take().unwrap(), held.take());
            }
        }
    }

    /// Whatever the other side writes into the word: an error, or some slot, and never one that is no slot.
    #[test]
    fn a_word_that_cannot_be_is_refused(word: u32, put: bool) {
        let arena = arena();
        let (mut writer, mut reader) = ends(&arena);
        arena.atomic_u32(64).unwrap().store(word, Ordering::Relaxed);
        let possible = |own: u32| word & !NEWS < SLOTS && word & !NEWS != own;
        if put {
            prop_assert_eq!(writer.put(7).is_ok(), possible(WRITER));
        } else if word & NEWS != 0 {
            prop_assert_eq!(reader.take().is_ok(), possible(READER));
        } else {
            prop_assert_eq!(reader.take().unwrap(), None);
        }
    }
}

#[test]
fn two_threads_see_whole_entries_in_order() {
    let arena = arena();
    let (mut writer, mut reader) = ends(&arena);
    const LAST: u64 = 200_000;
    let sender = std::thread::spawn(move || {
        (1..=LAST)
            .filter(|&entry| !writer.put(entry * 0x1_0000_0001).unwrap())
            .count() as u64
    });
    let (mut last, mut taken) = (0, 0);
    while last < LAST {
        let Some(entry) = reader.take().unwrap() else {
            std::hint::spin_loop();
            continue;
        };
        assert_eq!(entry >> 32, entry & 0xffff_ffff);
        assert!(entry >> 32 > last);
        (last, taken) = (entry >> 32, taken + 1);
    }
    assert_eq!(taken + sender.join().unwrap(), LAST);
}
