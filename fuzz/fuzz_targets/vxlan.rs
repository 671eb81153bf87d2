//! A VXLAN packet and the frame inside it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_wire::{frame, vxlan};

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = vxlan::Packet::new_checked(bytes) else {
        return;
    };
    let Ok(repr) = vxlan::Repr::parse(&packet) else {
        return;
    };
    let mut header = [0; vxlan::HEADER_LEN];
    repr.emit(&mut header);
    assert_eq!(header[4..7], bytes[4..7]);
    assert_eq!(vxlan::HEADER_LEN + packet.payload().len(), bytes.len());
    if let Ok(inner) = frame::parse_udp_frame(packet.payload(), true) {
        assert!(inner.payload.len() < packet.payload().len());
    }
});
