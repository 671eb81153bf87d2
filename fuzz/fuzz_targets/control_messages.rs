//! Control messages (`cmsg(3)`) of a preloaded program's sends: bytes of a stranger, read as the kernel reads them.
//!
//! Input: the kind of socket, and the bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/interface/preload/src/abi.rs"]
mod abi;
// The preload's own, which a program cannot link.
#[allow(dead_code)]
#[path = "../../crates/interface/preload/src/control.rs"]
mod control;
#[path = "../../crates/interface/preload/src/kind.rs"]
mod kind;

use control::{ALIGN, Control, HEADER, next};
use kind::Kind;

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    let kind = match kind % 4 {
        0 => Kind::Udp { six: false },
        1 => Kind::Udp { six: true },
        2 => Kind::Frames,
        _ => Kind::Packets,
    };
    // Every message makes progress and lies inside.
    let (mut rest, mut count) = (bytes, 0);
    while let Some(message) = next(&mut rest) {
        let Ok((_, _, content)) = message else {
            break;
        };
        assert!(content.len() <= bytes.len());
        count += 1;
        assert!(count <= bytes.len() / HEADER, "no progress");
    }
    let Ok(control) = Control::parse(kind, bytes) else {
        return;
    };
    // What is said last counts: the same once more changes nothing.
    let mut twice = bytes.to_vec();
    twice.resize(bytes.len().next_multiple_of(ALIGN), 0);
    twice.extend(bytes);
    if bytes.len() % ALIGN == 0 && rest.is_empty() {
        assert_eq!(Control::parse(kind, &twice), Ok(control));
    }
});
