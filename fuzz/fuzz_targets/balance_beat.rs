//! Beats of neighbours, from anybody: one that is read is written again as it came but for what is not looked at, and one
//! that a key does not fit is refused.
//!
//! Input: a datagram.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_balance_xdp::beat::{Beat, Ends, Key, LENGTH, NoBeat};

fuzz_target!(|input: &[u8]| {
    let key = Key::new(&[7; 32]).expect("a key");
    let ends = Ends {
        from: [10, 0, 0, 3].into(),
        to: [10, 0, 0, 2].into(),
    };
    match Beat::read(input, None, ends) {
        Ok(beat) => {
            assert_eq!(input.len(), LENGTH);
            let written = beat.write(None, ends);
            for part in [0..5, 8..32] {
                assert_eq!(written[part.clone()], input[part]);
            }
            assert_eq!(Beat::read(input, Some(&key), ends), Err(NoBeat::Tag));
            let written = beat.write(Some(&key), ends);
            assert_eq!(Beat::read(&written, Some(&key), ends), Ok(beat));
        }
        Err(error) => assert_eq!(Beat::read(input, Some(&key), ends), Err(error)),
    }
});
