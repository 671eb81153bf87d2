//! The code of the newest entry over loom's types: every interleaving of its writer and its reader.

use loom::sync::Arc;

use super::*;
use crate::ring::loom_model::{LoomRing, explore};

#[test]
fn the_reader_sees_whole_entries_in_order_and_the_last_one_in_the_end() {
    explore(4, || {
        let memory = LoomRing::new(SLOTS, 0);
        let mut writer = WriterEnd::new(memory.clone());
        let mut reader = ReaderEnd::new(memory);
        let replaced = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        let counted = replaced.clone();
        let sender = loom::thread::spawn(move || {
            for entry in 1..=3 {
                let was_taken = writer.put(entry).unwrap();
                counted.fetch_add(u32::from(!was_taken), Ordering::Relaxed);
            }
        });
        let (mut last, mut taken) = (0, 0);
        for _ in 0..2 {
            if let Some(entry) = reader.take().unwrap() {
                assert!(entry > last, "{entry} after {last}");
                (last, taken) = (entry, taken + 1);
            }
        }
        sender.join().unwrap();
        if let Some(entry) = reader.take().unwrap() {
            assert!(entry > last, "{entry} after {last}");
            (last, taken) = (entry, taken + 1);
        }
        assert_eq!(last, 3);
        // Each was taken or replaced, and the writer knows which.
        assert_eq!(taken + replaced.load(Ordering::Relaxed), 3);
        assert_eq!(reader.take().unwrap(), None);
    });
}
