//! An IPv4 packet and the UDP datagram inside it: what is read can be written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_wire::ip::{Addresses, Protocol};
use takt_wire::{ipv4, udp};

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = ipv4::Packet::new_checked(bytes) else {
        return;
    };
    assert_eq!(
        packet.header_len() + packet.payload().len(),
        packet.total_len()
    );
    let Ok(repr) = ipv4::Repr::parse(&packet) else {
        return;
    };
    let mut again = vec![0; ipv4::HEADER_LEN];
    again.extend_from_slice(packet.payload());
    repr.emit(&mut again)
        .expect("a packet without its options is no longer than it was");
    let written = ipv4::Packet::new_checked(&again).expect("what was written is a packet");
    assert_eq!(ipv4::Repr::parse(&written), Ok(repr));
    assert_eq!(written.payload(), packet.payload());
    if repr.protocol == Protocol::UDP {
        let (source, destination) = (repr.source, repr.destination);
        let addresses = Addresses::V4 {
            source,
            destination,
        };
        if let Ok(datagram) = udp::Packet::new_checked(packet.payload()) {
            let _ = udp::Repr::parse(&datagram, &addresses);
            assert!(datagram.payload().len() + udp::HEADER_LEN <= packet.payload().len());
        }
    }
});
