//! Frames with UDP in them, as a datapath sends and receives them.

use std::net::SocketAddr;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use takt_wire::checksum::update;
use takt_wire::ethernet::{self, EtherType, MacAddress};
use takt_wire::frame::{
    FlowError, FrameError, MAX_HEADER_LEN, UdpDatagram, UdpFlow, UdpHeaderTemplate, parse_udp_frame,
};
use takt_wire::ip::{Dscp, Protocol};
use takt_wire::vlan::{VlanTag, VlanTags};
use takt_wire::{ipv4, ipv6, udp, vlan};

use crate::captures::{self, bytes};

/// The flow of the captured frames.
fn flow(src: &str, dst: &str) -> UdpFlow {
    UdpFlow {
        src_mac: MacAddress([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddress([2, 0, 0, 0, 0, 2]),
        vlan: None,
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        dscp: Dscp::EXPEDITED,
        hop_limit: 64,
    }
}

fn flow_v4() -> UdpFlow {
    flow("192.0.2.1:4660", "192.0.2.2:22136")
}

fn flow_v6() -> UdpFlow {
    flow("[2001:db8::1]:4660", "[2001:db8::2]:22136")
}

/// Builds a frame in a buffer that starts dirty and is longer than needed.
fn build(flow: &UdpFlow, payload: &[u8], identification: u16, with_checksum: bool) -> Vec<u8> {
    let template = UdpHeaderTemplate::new(flow).unwrap();
    let at = template.header_len();
    let mut frame = vec![0xa5; at + payload.len() + 7];
    frame[at..at + payload.len()].copy_from_slice(payload);
    let len = template
        .emit(&mut frame, payload.len(), identification, with_checksum)
        .unwrap();
    assert_eq!(len, at + payload.len());
    assert!(frame[len..].iter().all(|b| *b == 0xa5));
    frame.truncate(len);
    frame
}

/// Puts tags behind the addresses of an untagged frame.
fn tagged(frame: &str, tags: &str) -> Vec<u8> {
    let mut frame = bytes(frame);
    frame.splice(12..12, bytes(tags));
    frame
}

#[test]
fn the_frames_are_those_that_linux_sends_for_the_same_flow() {
    assert_eq!(build(&flow_v4(), b"takt!", 0, true), bytes(captures::IPV4));
    let flow = UdpFlow {
        dscp: Dscp::BEST_EFFORT,
        ..flow_v4()
    };
    assert_eq!(
        build(&flow, b"takt-nocheck", 0, false),
        bytes(captures::IPV4_NO_CHECKSUM)
    );
    // Linux chooses a flow label, the template leaves it zero; no checksum covers it.
    let mut expected = bytes(captures::IPV6);
    expected[14 + 1..14 + 4].copy_from_slice(&[0x80, 0, 0]);
    assert_eq!(build(&flow_v6(), b"takt over v6", 0, true), expected);
    assert_eq!(build(&flow_v6(), b"takt over v6", 0, false), expected);
}

#[test]
fn captured_frames_are_read() {
    let read = |frame: &str, src: &str, dst: &str, payload: &[u8]| {
        let datagram = UdpDatagram {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            vlan: VlanTags::None,
            payload,
        };
        for verify in [true, false] {
            assert_eq!(parse_udp_frame(&bytes(frame), verify), Ok(datagram));
        }
    };
    let (src, dst) = ("192.0.2.1:4660", "192.0.2.2:22136");
    read(captures::IPV4, src, dst, b"takt!");
    read(captures::IPV4_NO_CHECKSUM, src, dst, b"takt-nocheck");
    read(
        captures::IPV6,
        "[2001:db8::1]:4660",
        "[2001:db8::2]:22136",
        b"takt over v6",
    );
}

#[test]
fn a_tag_is_written_between_addresses_and_ether_type() {
    let vlan = VlanTag::new(100, 5, false);
    let flow = UdpFlow { vlan, ..flow_v4() };
    assert_eq!(
        build(&flow, b"takt!", 0, true),
        tagged(captures::IPV4, "8100 a064")
    );
    let longest = UdpHeaderTemplate::new(&UdpFlow { vlan, ..flow_v6() }).unwrap();
    assert_eq!(longest.header_len(), MAX_HEADER_LEN);
}

#[test]
fn up_to_two_tags_are_read() {
    let outer = VlanTag::new(200, 3, true).unwrap();
    let inner = VlanTag::new(100, 5, false).unwrap();
    let frame = tagged(captures::IPV4, "8100 a064");
    assert_eq!(
        parse_udp_frame(&frame, true).unwrap().vlan,
        VlanTags::Single(inner)
    );
    let frame = tagged(captures::IPV6, "88a8 70c8 8100 a064");
    let datagram = parse_udp_frame(&frame, true).unwrap();
    assert_eq!(
        (datagram.vlan, datagram.payload),
        (VlanTags::Double { outer, inner }, &b"takt over v6"[..])
    );
    let frame = tagged(captures::IPV4, "88a8 70c8 8100 a064 8100 a064");
    assert_eq!(
        parse_udp_frame(&frame, true),
        Err(vlan::Error::TooDeep(EtherType::VLAN).into())
    );
    let frame = tagged(captures::IPV4, "8100 afff");
    assert_eq!(
        parse_udp_frame(&frame, true),
        Err(vlan::Error::ReservedId.into())
    );
}

#[test]
fn padding_of_short_frames_is_no_payload() {
    for (frame, payload) in [
        (captures::IPV4, &b"takt!"[..]),
        (captures::IPV6, b"takt over v6"),
    ] {
        let mut frame = bytes(frame);
        frame.resize(120, 0xee);
        assert_eq!(parse_udp_frame(&frame, true).unwrap().payload, payload);
    }
}

#[test]
fn every_truncation_of_a_frame_is_refused() {
    for frame in [
        bytes(captures::IPV4),
        bytes(captures::IPV6),
        tagged(captures::IPV4, "8100 a064"),
        tagged(captures::IPV6, "88a8 70c8 8100 a064"),
    ] {
        for len in 0..frame.len() {
            assert!(
                parse_udp_frame(&frame[..len], false).is_err(),
                "cut to {len} bytes"
            );
        }
    }
}

#[test]
fn fragments_are_refused() {
    let mut first = bytes(captures::IPV4_FRAGMENT);
    first.resize(1514, b'f');
    assert_eq!(
        parse_udp_frame(&first, false),
        Err(ipv4::Error::Fragment(0x2000).into())
    );
    // The last fragment, as it follows: offset 1480, no more fragments.
    let mut last = first;
    let checksum = update(0x3988, 0x2000, 0x00b9).to_be_bytes();
    last[20..22].copy_from_slice(&[0x00, 0xb9]);
    last[24..26].copy_from_slice(&checksum);
    assert_eq!(
        parse_udp_frame(&last, false),
        Err(ipv4::Error::Fragment(0x00b9).into())
    );
    let mut six = bytes(captures::IPV6);
    six[20] = 44;
    let refused = ipv6::Error::UnsupportedNextHeader(Protocol(44));
    assert_eq!(parse_udp_frame(&six, false), Err(refused.into()));
}

#[test]
fn what_is_valid_but_no_udp_is_told_apart_from_what_is_broken() {
    let refused = |frame: &str| parse_udp_frame(&bytes(frame), true).unwrap_err();
    assert_eq!(refused(captures::ICMP), FrameError::NotUdp(Protocol::ICMP));
    assert_eq!(
        refused(captures::ARP_REQUEST),
        FrameError::NotIp(EtherType::ARP)
    );
    let mut length = bytes(captures::IPV4);
    length[12..14].copy_from_slice(&[0, 33]);
    let error = ethernet::Error::LengthField(33);
    assert_eq!(parse_udp_frame(&length, true), Err(error.into()));
}

#[test]
fn a_flipped_bit_is_found_by_the_checksum_that_covers_it() {
    let intact = bytes(captures::IPV4);
    for at in 14..intact.len() {
        let mut frame = intact.clone();
        frame[at] ^= 0x10;
        let read = parse_udp_frame(&frame, true);
        assert!(read.is_err(), "byte {at} changed and still {read:?}");
    }
    // Without verification the payload and the ports are taken as they are, the IPv4 header is not.
    let mut frame = intact.clone();
    frame[46] ^= 1;
    assert_eq!(parse_udp_frame(&frame, false).unwrap().payload, b"takt ");
    frame[22] ^= 1;
    assert_eq!(
        parse_udp_frame(&frame, false),
        Err(ipv4::Error::Checksum(0xb610).into())
    );
}

#[test]
fn over_ipv6_a_missing_checksum_is_refused_even_if_checksums_are_not_verified() {
    let mut frame = bytes(captures::IPV6);
    frame[60..62].fill(0);
    for verify in [true, false] {
        assert_eq!(
            parse_udp_frame(&frame, verify),
            Err(udp::Error::NoChecksum.into())
        );
    }
}

#[test]
fn a_checksum_that_comes_out_as_zero_is_sent_as_all_ones() {
    for flow in [flow_v4(), flow_v6()] {
        let (start, end) = {
            let template = UdpHeaderTemplate::new(&flow).unwrap();
            (template.header_len() - 2, template.header_len())
        };
        // Putting the checksum of a frame into its payload makes the sum all ones, its inverse zero.
        let checksum = build(&flow, &[0, 0], 0, true)[start..end].to_vec();
        let frame = build(&flow, &checksum, 0, true);
        assert_eq!(frame[start..end], [0xff, 0xff]);
        assert_eq!(parse_udp_frame(&frame, true).unwrap().payload, checksum);
    }
}

#[test]
fn a_flow_that_no_packet_can_have_is_refused() {
    let (four, six) = (flow_v4(), flow_v6());
    let mixed = UdpFlow {
        dst: six.dst,
        ..four
    };
    let error = FlowError::AddressFamily {
        src: four.src.ip(),
        dst: six.dst.ip(),
    };
    assert_eq!(UdpHeaderTemplate::new(&mixed).unwrap_err(), error);
    let dead = UdpFlow {
        hop_limit: 0,
        ..four
    };
    assert_eq!(
        UdpHeaderTemplate::new(&dead).unwrap_err(),
        FlowError::HopLimit
    );
}

#[test]
fn a_payload_that_does_not_fit_leaves_the_frame_alone() {
    for (flow, most) in [(flow_v4(), 65_507), (flow_v6(), 65_527)] {
        let template = UdpHeaderTemplate::new(&flow).unwrap();
        let at = template.header_len();
        let mut frame = vec![0xa5; 70_000];
        for too_long in [most + 1, 65_528, 65_536, usize::MAX - 7, usize::MAX] {
            assert_eq!(template.emit(&mut frame, too_long, 0, true), None);
        }
        assert_eq!(template.emit(&mut frame[..at + 9], 10, 0, true), None);
        assert_eq!(template.emit(&mut frame[..at - 1], 0, 0, true), None);
        assert!(frame.iter().all(|b| *b == 0xa5));
        assert_eq!(template.emit(&mut frame, most, 0, true), Some(at + most));
        assert_eq!(
            parse_udp_frame(&frame, true).unwrap().payload,
            vec![0xa5; most]
        );
    }
}

fn any_flow() -> impl Strategy<Value = UdpFlow> {
    let ends = prop_oneof![
        any::<([u8; 4], u16, [u8; 4], u16)>().prop_map(|(src, from, dst, to)| {
            (SocketAddr::from((src, from)), SocketAddr::from((dst, to)))
        }),
        any::<([u8; 16], u16, [u8; 16], u16)>().prop_map(|(src, from, dst, to)| {
            (SocketAddr::from((src, from)), SocketAddr::from((dst, to)))
        }),
    ];
    let tag = (0u16..4095, 0u8..8, any::<bool>())
        .prop_map(|(id, priority, drop)| VlanTag::new(id, priority, drop).unwrap());
    (
        any::<([u8; 6], [u8; 6])>(),
        option::of(tag),
        ends,
        0u8..64,
        1u8..,
    )
        .prop_map(
            |((src_mac, dst_mac), vlan, (src, dst), dscp, hop_limit)| UdpFlow {
                src_mac: MacAddress(src_mac),
                dst_mac: MacAddress(dst_mac),
                vlan,
                src,
                dst,
                dscp: Dscp::new(dscp).unwrap(),
                hop_limit,
            },
        )
}

proptest! {
    #[test]
    fn what_is_sent_is_received(
        flow in any_flow(),
        payload in vec(any::<u8>(), 0..2000),
        identification: u16,
        with_checksum: bool,
    ) {
        let frame = build(&flow, &payload, identification, with_checksum);
        let datagram = parse_udp_frame(&frame, true).unwrap();
        let vlan = flow.vlan.map_or(VlanTags::None, VlanTags::Single);
        let expected = UdpDatagram { src: flow.src, dst: flow.dst, vlan, payload: &payload };
        prop_assert_eq!(datagram, expected);
        let link = ethernet::Packet::new_checked(&frame).unwrap();
        prop_assert_eq!((link.source(), link.destination()), (flow.src_mac, flow.dst_mac));
    }

    #[test]
    fn the_template_agrees_with_the_formats_layer_by_layer(
        flow in any_flow(), payload in vec(any::<u8>(), 0..200), identification: u16,
    ) {
        let frame = build(&flow, &payload, identification, true);
        let link = ethernet::Packet::new_checked(&frame).unwrap();
        let (_, ether_type, packet) = vlan::parse(link.ether_type(), link.payload()).unwrap();
        let mut again = packet.to_vec();
        let header_len = match ether_type {
            EtherType::IPV4 => {
                let repr = ipv4::Repr::parse(&ipv4::Packet::new_checked(packet).unwrap()).unwrap();
                prop_assert_eq!(repr.identification, identification);
                prop_assert!(repr.dont_fragment);
                prop_assert_eq!((repr.dscp, repr.hop_limit), (flow.dscp, flow.hop_limit));
                repr.emit(&mut again).unwrap();
                ipv4::HEADER_LEN
            }
            _ => {
                let repr = ipv6::Repr::parse(&ipv6::Packet::new_checked(packet).unwrap()).unwrap();
                prop_assert_eq!((repr.dscp, repr.hop_limit), (flow.dscp, flow.hop_limit));
                repr.emit(&mut again).unwrap();
                ipv6::HEADER_LEN
            }
        };
        let ports = udp::Repr { source_port: flow.src.port(), destination_port: flow.dst.port() };
        let addresses = takt_wire::ip::Addresses::new(flow.src.ip(), flow.dst.ip()).unwrap();
        ports.emit(&mut again[header_len..], &addresses).unwrap();
        prop_assert_eq!(again, packet);
    }

    #[test]
    fn no_bytes_make_the_parser_panic(frame in vec(any::<u8>(), 0..200), verify: bool) {
        let _ = parse_udp_frame(&frame, verify);
    }

    #[test]
    fn no_damage_to_a_frame_makes_the_parser_panic(
        flow in any_flow(),
        payload in vec(any::<u8>(), 0..40),
        damage in vec(any::<(prop::sample::Index, u8)>(), 1..8),
        verify: bool,
    ) {
        let mut frame = build(&flow, &payload, 0, true);
        for (at, value) in damage {
            *at.get_mut(&mut frame) = value;
        }
        if let Ok(datagram) = parse_udp_frame(&frame, verify) {
            prop_assert!(datagram.payload.len() < frame.len());
        }
    }
}
