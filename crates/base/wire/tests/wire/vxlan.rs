//! VXLAN headers, and a captured frame opened down to the datagram inside.

use proptest::collection::vec;
use proptest::prelude::*;
use takt_wire::frame::parse_udp_frame;
use takt_wire::vxlan::{self, NetworkId};

use crate::captures::{self, bytes};

#[test]
fn a_captured_frame_opens_down_to_the_inner_datagram() {
    let frame = bytes(captures::VXLAN);
    let outer = parse_udp_frame(&frame, true).unwrap();
    assert_eq!(outer.dst.port(), vxlan::UDP_PORT);
    let packet = vxlan::Packet::new_checked(outer.payload).unwrap();
    let header = vxlan::Repr::parse(&packet).unwrap();
    assert_eq!(header.network, NetworkId::new(0x01_2345).unwrap());
    let inner = parse_udp_frame(packet.payload(), true).unwrap();
    assert_eq!(
        (inner.dst, inner.payload),
        ("10.9.0.2:22136".parse().unwrap(), &b"takt in vxlan"[..])
    );
    let mut written = [0xff; vxlan::HEADER_LEN];
    header.emit(&mut written);
    assert_eq!(written, outer.payload[..vxlan::HEADER_LEN]);
}

#[test]
fn a_header_that_is_cut_short_or_names_no_network_is_refused() {
    for len in 0..vxlan::HEADER_LEN {
        let refused = vxlan::Packet::new_checked(&[8; 8][..len]).map(|_| ());
        assert_eq!(refused, Err(vxlan::Error::Truncated(len)));
    }
    let packet = vxlan::Packet::new_checked([0xf7, 0, 0, 0, 0, 0, 1, 0]).unwrap();
    assert_eq!(
        vxlan::Repr::parse(&packet),
        Err(vxlan::Error::NoNetwork(0xf7))
    );
}

#[test]
fn reserved_bits_are_ignored() {
    let packet = vxlan::Packet::new_checked([0xff, 1, 2, 3, 0, 0, 7, 9]).unwrap();
    assert_eq!(vxlan::Repr::parse(&packet).unwrap().network.value(), 7);
}

#[test]
fn a_network_identifier_has_24_bits() {
    assert_eq!(
        NetworkId::new(0xff_ffff).map(NetworkId::value),
        Some(0xff_ffff)
    );
    assert_eq!(NetworkId::new(0x100_0000), None);
}

proptest! {
    #[test]
    fn headers_round_trip(network in 0u32..1 << 24, payload in vec(any::<u8>(), 0..50)) {
        let sent = vxlan::Repr { network: NetworkId::new(network).unwrap() };
        let mut header = [0xff; vxlan::HEADER_LEN];
        sent.emit(&mut header);
        let datagram = [&header[..], &payload].concat();
        let packet = vxlan::Packet::new_checked(&datagram).unwrap();
        prop_assert_eq!(vxlan::Repr::parse(&packet), Ok(sent));
        prop_assert_eq!(packet.payload(), &payload);
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in vec(any::<u8>(), 0..50)) {
        if let Ok(packet) = vxlan::Packet::new_checked(&bytes) {
            let _ = vxlan::Repr::parse(&packet);
            prop_assert_eq!(packet.payload().len(), bytes.len() - vxlan::HEADER_LEN);
        }
    }
}
