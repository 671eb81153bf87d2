//! A plan of streams from an operator's file: reading, computing and verifying it never fail otherwise than by what they say,
//! and what is found holds on the scheduler.
//!
//! Input: text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_schedule::synthesis::{read, synthesize, verify};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let Ok(plan) = read(text) else {
        return;
    };
    // Many take long, by design.
    if plan.streams.len() > 8 {
        return;
    }
    if let Ok(found) = synthesize(&plan) {
        verify(&plan, &found).unwrap_or_else(|broken| panic!("{broken}"));
    }
});
