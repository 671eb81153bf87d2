//! A plan of streams from an operator's file: reading, computing and verifying it never fail otherwise than by what they say,
//! and what is found holds on the scheduler.
//!
//! Input: text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_schedule::synthesis::{read, synthesize, verify};

/// Each instant of it may be replayed.
const LONGEST_CYCLE_NS: u64 = 20_000_000;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let Ok(plan) = read(text) else {
        return;
    };
    // Many take long, by design, and long cycles do.
    if plan.streams.len() > 8 {
        return;
    }
    if let Ok(found) = synthesize(&plan) {
        let mut cycles = found
            .schedules
            .iter()
            .map(|(_, schedule)| schedule.cycle_time_ns);
        if cycles.any(|cycle| cycle > LONGEST_CYCLE_NS) {
            return;
        }
        verify(&plan, &found).unwrap_or_else(|broken| panic!("{broken}"));
    }
});
