//! What the programs of a stream say: slices, alone and one after another, and packets of RTP.
//!
//! Input: a message; a script of slices; or packets, each with its length before it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    takt_streaming::fuzzing::slice(bytes);
    takt_streaming::fuzzing::assembly(bytes);
    takt_streaming::fuzzing::rtp(bytes);
});
