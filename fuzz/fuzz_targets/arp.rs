//! An ARP packet: what is read is written back byte for byte.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_wire::arp;

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = arp::Packet::new_checked(bytes) else {
        return;
    };
    let Ok(repr) = arp::Repr::parse(&packet) else {
        return;
    };
    let mut written = [0; arp::PACKET_LEN];
    repr.emit(&mut written);
    assert_eq!(written, bytes[..arp::PACKET_LEN]);
});
