//! What the programs of a topic say: messages, and lists of topics.
//!
//! Input: a message; or lists, each ended by a zero.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    takt_messaging::fuzzing::header(bytes);
    takt_messaging::fuzzing::directory(bytes);
});
