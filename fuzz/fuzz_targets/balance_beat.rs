//! Beats of neighbours, from anybody: one that is read is written again as it came but for what is not looked at, and one
//! that a key does not fit is refused.
//!
//! Input: a datagram.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_balance_xdp::beat::{Beat, Key, LENGTH, NoBeat};

fuzz_target!(|input: &[u8]| {
    let key = Key::new(&[7; 32]).expect("a key");
    match Beat::read(input, None) {
        Ok(beat) => {
            assert_eq!(input.len(), LENGTH);
            let written = beat.write(None);
            for part in [0..5, 8..12, 16..32] {
                assert_eq!(written[part.clone()], input[part]);
            }
            assert_eq!(Beat::read(input, Some(&key)), Err(NoBeat::Tag));
            assert_eq!(Beat::read(&beat.write(Some(&key)), Some(&key)), Ok(beat));
        }
        Err(error) => assert_eq!(Beat::read(input, Some(&key)), Err(error)),
    }
});
