//! An IPv6 packet and the UDP datagram inside it: what is read can be written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_wire::ip::{Addresses, Protocol};
use takt_wire::{ipv6, udp};

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = ipv6::Packet::new_checked(bytes) else {
        return;
    };
    assert_eq!(packet.payload().len(), packet.payload_len());
    let Ok(repr) = ipv6::Repr::parse(&packet) else {
        return;
    };
    let mut again = vec![0; ipv6::HEADER_LEN];
    again.extend_from_slice(packet.payload());
    repr.emit(&mut again)
        .expect("a packet that was received can be sent");
    let written = ipv6::Packet::new_checked(&again).expect("what was written is a packet");
    assert_eq!(ipv6::Repr::parse(&written), Ok(repr));
    assert_eq!(written.payload(), packet.payload());
    if repr.protocol == Protocol::UDP {
        let (source, destination) = (repr.source, repr.destination);
        let addresses = Addresses::V6 {
            source,
            destination,
        };
        if let Ok(datagram) = udp::Packet::new_checked(packet.payload()) {
            let _ = udp::Repr::parse(&datagram, &addresses);
            assert!(datagram.payload().len() + udp::HEADER_LEN <= packet.payload().len());
        }
    }
});
