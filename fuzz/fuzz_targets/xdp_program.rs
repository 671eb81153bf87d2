//! Frames as they come in at an interface, given to the very XDP program by the kernel (`BPF_PROG_TEST_RUN`): none is
//! dropped, changed or refused, since no socket is there to take them. Without the privilege to load programs it says
//! so once and tries nothing.
//!
//! Input: a frame.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use takt_datapath_xdp::fuzzing::Loaded;

/// Shortest frame that the kernel takes.
const SHORTEST: usize = 14;
const LONGEST: usize = 3000;
const XDP_PASS: u32 = 2;

static PROGRAM: OnceLock<Option<Loaded>> = OnceLock::new();

fuzz_target!(|input: &[u8]| {
    let program = PROGRAM.get_or_init(|| {
        let address = "10.0.0.1:7401".parse().expect("an address");
        Loaded::new(address)
            .inspect_err(|error| eprintln!("not tried: {error}"))
            .ok()
    });
    let Some(program) = program else {
        return;
    };
    if input.len() < SHORTEST || input.len() > LONGEST {
        return;
    }
    let (action, frame) = program.run(input).expect("the kernel runs it");
    assert_eq!(action, XDP_PASS);
    assert_eq!(frame, input);
});
