//! Ethernet headers, VLAN tags and ARP.

use std::net::Ipv4Addr;

use proptest::collection::vec;
use proptest::prelude::*;
use takt_wire::ethernet::{EtherType, MacAddress};
use takt_wire::vlan::{VlanTag, VlanTags};
use takt_wire::{arp, ethernet, vlan};

use crate::captures::{self, bytes};

const FIRST: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const SECOND: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

/// The ARP packet of a captured frame.
fn arp_of(frame: &str) -> Vec<u8> {
    bytes(frame)[ethernet::HEADER_LEN..].to_vec()
}

#[test]
fn mac_addresses_know_whom_they_name() {
    let group = MacAddress([0x01, 0, 0x5e, 0, 0, 1]);
    assert!(group.is_multicast() && !group.is_broadcast() && !group.is_unicast());
    assert!(MacAddress::BROADCAST.is_multicast() && MacAddress::BROADCAST.is_broadcast());
    assert!(FIRST.is_unicast() && !FIRST.is_multicast());
    assert!(!MacAddress::ZERO.is_unicast());
    assert_eq!(
        MacAddress([0xde, 0xad, 0, 1, 2, 0xf]).to_string(),
        "de:ad:00:01:02:0f"
    );
}

#[test]
fn a_captured_ethernet_header_is_read_and_written() {
    let frame = bytes(captures::ARP_REPLY);
    let packet = ethernet::Packet::new_checked(&frame).unwrap();
    let header = ethernet::Repr::parse(&packet).unwrap();
    let expected = ethernet::Repr {
        destination: FIRST,
        source: SECOND,
        ether_type: EtherType::ARP,
    };
    assert_eq!(header, expected);
    assert_eq!(packet.payload(), &frame[14..]);
    let mut written = [0xff; ethernet::HEADER_LEN];
    header.emit(&mut written);
    assert_eq!(written, frame[..14]);
}

#[test]
fn a_short_or_802_2_frame_is_refused() {
    for len in 0..ethernet::HEADER_LEN {
        let refused = ethernet::Packet::new_checked(&[0; 14][..len]).unwrap_err();
        assert_eq!(refused, ethernet::Error::Truncated(len));
    }
    for (length, refused) in [(0x05ff, true), (0x0600, false)] {
        let header = ethernet::Repr {
            destination: FIRST,
            source: SECOND,
            ether_type: EtherType(length),
        };
        let mut frame = [0; 14];
        header.emit(&mut frame);
        let read = ethernet::Repr::parse(&ethernet::Packet::new_checked(frame).unwrap());
        let error = Err(ethernet::Error::LengthField(length));
        assert_eq!(read, if refused { error } else { Ok(header) });
    }
}

#[test]
fn a_tag_has_its_fields_where_the_standard_puts_them() {
    let tag = VlanTag::new(0x123, 5, true).unwrap();
    assert_eq!(tag.control(), 5 << 13 | 1 << 12 | 0x123);
    assert_eq!(
        (tag.id(), tag.priority(), tag.drop_eligible()),
        (0x123, 5, true)
    );
    assert_eq!(VlanTag::new(4095, 0, false), None);
    assert_eq!(VlanTag::new(1, 8, false), None);
    assert_eq!(VlanTag::from_control(0x0fff), Err(vlan::Error::ReservedId));
}

#[test]
fn every_truncation_inside_a_tag_is_refused() {
    let tags = bytes("70c8 8100 a064 0800");
    for len in 0..tags.len() {
        let left = if len < 4 { len } else { len - 4 };
        let refused = vlan::parse(EtherType::SERVICE_VLAN, &tags[..len]);
        assert_eq!(
            refused,
            Err(vlan::Error::Truncated(left)),
            "cut to {len} bytes"
        );
    }
    assert!(vlan::parse(EtherType::SERVICE_VLAN, &tags).is_ok());
}

#[test]
fn captured_arp_packets_are_read_and_written() {
    let request = arp::Repr {
        operation: arp::Operation::Request,
        sender_mac: FIRST,
        sender_ip: Ipv4Addr::new(192, 0, 2, 1),
        target_mac: MacAddress::ZERO,
        target_ip: Ipv4Addr::new(192, 0, 2, 2),
    };
    let reply = arp::Repr {
        operation: arp::Operation::Reply,
        sender_mac: SECOND,
        sender_ip: request.target_ip,
        target_mac: FIRST,
        target_ip: request.sender_ip,
    };
    for (frame, repr) in [
        (captures::ARP_REQUEST, request),
        (captures::ARP_REPLY, reply),
    ] {
        let captured = arp_of(frame);
        let packet = arp::Packet::new_checked(&captured).unwrap();
        assert_eq!(arp::Repr::parse(&packet), Ok(repr));
        let mut written = [0xff; arp::PACKET_LEN];
        repr.emit(&mut written);
        assert_eq!(written, captured[..]);
    }
}

#[test]
fn arp_that_is_cut_short_or_of_other_networks_is_refused() {
    let captured = arp_of(captures::ARP_REQUEST);
    for len in 0..captured.len() {
        let refused = arp::Packet::new_checked(&captured[..len]).unwrap_err();
        assert_eq!(refused, arp::Error::Truncated(len));
    }
    for at in 0..6 {
        let mut other = captured.clone();
        other[at] ^= 1;
        let types = other[..6].try_into().unwrap();
        let refused = arp::Packet::new_checked(&other).unwrap_err();
        assert_eq!(refused, arp::Error::AddressTypes(types));
    }
    for operation in [0, 3, 0x0101] {
        let mut other = captured.clone();
        other[6..8].copy_from_slice(&u16::to_be_bytes(operation));
        let refused = arp::Repr::parse(&arp::Packet::new_checked(&other).unwrap());
        assert_eq!(refused, Err(arp::Error::Operation(operation)));
    }
}

proptest! {
    #[test]
    fn arp_packets_round_trip(
        reply: bool, macs: ([u8; 6], [u8; 6]), ips: ([u8; 4], [u8; 4]), padding in 0usize..20,
    ) {
        let operation = if reply { arp::Operation::Reply } else { arp::Operation::Request };
        let sent = arp::Repr {
            operation,
            sender_mac: MacAddress(macs.0),
            sender_ip: ips.0.into(),
            target_mac: MacAddress(macs.1),
            target_ip: ips.1.into(),
        };
        let mut packet = [0; arp::PACKET_LEN];
        sent.emit(&mut packet);
        let mut padded = packet.to_vec();
        padded.resize(arp::PACKET_LEN + padding, 0);
        let received = arp::Repr::parse(&arp::Packet::new_checked(padded).unwrap());
        prop_assert_eq!(received, Ok(sent));
    }

    #[test]
    fn ethernet_headers_round_trip(
        macs: ([u8; 6], [u8; 6]), ether_type in 0x0600u16.., payload in vec(any::<u8>(), 0..50),
    ) {
        let sent = ethernet::Repr {
            destination: MacAddress(macs.0),
            source: MacAddress(macs.1),
            ether_type: EtherType(ether_type),
        };
        let mut header = [0; ethernet::HEADER_LEN];
        sent.emit(&mut header);
        let frame = [&header[..], &payload].concat();
        let packet = ethernet::Packet::new_checked(&frame).unwrap();
        prop_assert_eq!(ethernet::Repr::parse(&packet), Ok(sent));
        prop_assert_eq!(packet.payload(), &payload);
    }

    #[test]
    fn tags_round_trip(
        ids: (u16, u16), priorities: (u8, u8), drop: bool, payload in vec(any::<u8>(), 0..50),
    ) {
        let tag = |id, priority| VlanTag::new(id % 4095, priority % 8, drop).unwrap();
        let (outer, inner) = (tag(ids.0, priorities.0), tag(ids.1, priorities.1));
        let (mut first, mut second) = ([0; vlan::TAG_LEN], [0; vlan::TAG_LEN]);
        outer.emit(EtherType::VLAN, &mut first);
        inner.emit(EtherType::IPV6, &mut second);
        let single = [&second[..], &payload].concat();
        let expected = (VlanTags::Single(inner), EtherType::IPV6, &payload[..]);
        prop_assert_eq!(vlan::parse(EtherType::VLAN, &single), Ok(expected));
        let double = [&first[..], &single].concat();
        let expected = (VlanTags::Double { outer, inner }, EtherType::IPV6, &payload[..]);
        prop_assert_eq!(vlan::parse(EtherType::SERVICE_VLAN, &double), Ok(expected));
        let expected = (VlanTags::None, EtherType::ARP, &payload[..]);
        prop_assert_eq!(vlan::parse(EtherType::ARP, &payload), Ok(expected));
    }

    #[test]
    fn no_bytes_make_the_parsers_panic(bytes in vec(any::<u8>(), 0..60), ether_type: bool) {
        let ether_type = if ether_type { EtherType::VLAN } else { EtherType::SERVICE_VLAN };
        let _ = vlan::parse(ether_type, &bytes);
        let _ = ethernet::Packet::new_checked(&bytes).map(|packet| ethernet::Repr::parse(&packet));
        let _ = arp::Packet::new_checked(&bytes).map(|packet| arp::Repr::parse(&packet));
        let typed = [&[0, 1, 8, 0, 6, 4], &bytes[..]].concat();
        let _ = arp::Packet::new_checked(&typed).map(|packet| arp::Repr::parse(&packet));
    }
}
