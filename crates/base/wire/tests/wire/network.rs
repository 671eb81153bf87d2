//! IPv4, IPv6 and UDP headers.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use takt_wire::ip::{Addresses, Dscp, Protocol};
use takt_wire::{checksum, ethernet, ipv4, ipv6, udp};

use crate::captures::{self, bytes};

const V4: Addresses = Addresses::V4 {
    source: Ipv4Addr::new(192, 0, 2, 1),
    destination: Ipv4Addr::new(192, 0, 2, 2),
};
const V6: Addresses = Addresses::V6 {
    source: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    destination: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
};

/// The IP packet of a captured frame.
fn packet_of(frame: &str) -> Vec<u8> {
    bytes(frame)[ethernet::HEADER_LEN..].to_vec()
}

#[test]
fn a_captured_ipv4_packet_is_read_and_written() {
    let captured = packet_of(captures::IPV4);
    let packet = ipv4::Packet::new_checked(&captured).unwrap();
    let header = ipv4::Repr::parse(&packet).unwrap();
    let expected = ipv4::Repr {
        source: Ipv4Addr::new(192, 0, 2, 1),
        destination: Ipv4Addr::new(192, 0, 2, 2),
        protocol: Protocol::UDP,
        dscp: Dscp::EXPEDITED,
        hop_limit: 64,
        identification: 0,
        dont_fragment: true,
    };
    assert_eq!(header, expected);
    assert_eq!(packet.payload(), &captured[20..]);
    let mut written = vec![0xff; captured.len()];
    written[20..].copy_from_slice(&captured[20..]);
    header.emit(&mut written).unwrap();
    assert_eq!(written, captured);
}

#[test]
fn ipv4_options_are_skipped() {
    // A header of 24 bytes: the option "no operation" three times, then "end of options".
    let mut packet = packet_of(captures::IPV4);
    packet.splice(20..20, [1, 1, 1, 0]);
    packet[0] = 0x46;
    packet[3] += 4;
    packet[10..12].fill(0);
    let sum = checksum::PartialSum::of(&packet[..24]).checksum();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let view = ipv4::Packet::new_checked(&packet).unwrap();
    assert!(ipv4::Repr::parse(&view).is_ok());
    assert_eq!(view.payload(), &packet[24..]);
    // Options are under the checksum.
    packet[20] = 7;
    let refused = ipv4::Repr::parse(&ipv4::Packet::new_checked(&packet).unwrap());
    assert_eq!(refused, Err(ipv4::Error::Checksum(sum)));
}

#[test]
fn ipv4_lengths_and_version_that_cannot_be_are_refused() {
    let captured = packet_of(captures::IPV4);
    let with = |at: usize, value: u8| {
        let mut packet = captured.clone();
        packet[at] = value;
        ipv4::Packet::new_checked(packet).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(0, 0x65), ipv4::Error::Version(6));
    assert_eq!(
        with(0, 0x44),
        ipv4::Error::HeaderLength {
            header: 16,
            total: 33
        }
    );
    assert_eq!(
        with(0, 0x4f),
        ipv4::Error::HeaderLength {
            header: 60,
            total: 33
        }
    );
    assert_eq!(
        with(3, 19),
        ipv4::Error::HeaderLength {
            header: 20,
            total: 19
        }
    );
    assert_eq!(
        with(3, 34),
        ipv4::Error::TotalLength {
            total: 34,
            available: 33
        }
    );
}

#[test]
fn a_captured_ipv6_packet_is_read_and_written() {
    let captured = packet_of(captures::IPV6);
    let packet = ipv6::Packet::new_checked(&captured).unwrap();
    let header = ipv6::Repr::parse(&packet).unwrap();
    let expected = ipv6::Repr {
        source: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
        destination: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
        protocol: Protocol::UDP,
        dscp: Dscp::EXPEDITED,
        hop_limit: 64,
    };
    assert_eq!(header, expected);
    assert_eq!(
        (packet.flow_label(), packet.payload()),
        (0xe1d50, &captured[40..])
    );
    let mut written = vec![0xff; captured.len()];
    written[40..].copy_from_slice(&captured[40..]);
    header.emit(&mut written).unwrap();
    let mut unlabelled = captured;
    unlabelled[1..4].copy_from_slice(&[0x80, 0, 0]);
    assert_eq!(written, unlabelled);
}

#[test]
fn ipv6_extension_headers_are_refused_on_both_ways() {
    let mut packet = packet_of(captures::IPV6);
    let captured = packet.clone();
    let sent = ipv6::Repr::parse(&ipv6::Packet::new_checked(&captured).unwrap()).unwrap();
    for number in [0, 43, 44, 50, 51, 60, 135, 139, 140] {
        let refused = Err(ipv6::Error::UnsupportedNextHeader(Protocol(number)));
        let mut received = captured.clone();
        received[6] = number;
        let read = ipv6::Repr::parse(&ipv6::Packet::new_checked(received).unwrap());
        assert_eq!(read.map(|_| ()), refused);
        let extended = ipv6::Repr {
            protocol: Protocol(number),
            ..sent
        };
        assert_eq!(extended.emit(&mut packet), refused);
        assert_eq!(packet, captured);
    }
}

#[test]
fn every_truncation_of_an_ip_packet_is_refused() {
    let (four, six) = (packet_of(captures::IPV4), packet_of(captures::IPV6));
    for len in 0..four.len() {
        assert!(
            ipv4::Packet::new_checked(&four[..len]).is_err(),
            "cut to {len} bytes"
        );
    }
    for len in 0..six.len() {
        assert!(
            ipv6::Packet::new_checked(&six[..len]).is_err(),
            "cut to {len} bytes"
        );
    }
    let error = ipv6::Packet::new_checked(&six[..45])
        .map(|_| ())
        .unwrap_err();
    assert_eq!(
        error,
        ipv6::Error::PayloadLength {
            payload: 20,
            available: 5
        }
    );
    let mut other = six;
    other[0] = 0x4b;
    assert_eq!(
        ipv6::Packet::new_checked(other).map(|_| ()),
        Err(ipv6::Error::Version(4))
    );
}

#[test]
fn captured_udp_datagrams_are_read_and_written() {
    let expected = udp::Repr {
        source_port: 4660,
        destination_port: 22136,
    };
    for (captured, addresses) in [
        (packet_of(captures::IPV4)[20..].to_vec(), V4),
        (packet_of(captures::IPV6)[40..].to_vec(), V6),
    ] {
        let packet = udp::Packet::new_checked(&captured).unwrap();
        assert_eq!(udp::Repr::parse(&packet, &addresses), Ok(expected));
        let mut written = vec![0xff; captured.len()];
        written[8..].copy_from_slice(packet.payload());
        expected.emit(&mut written, &addresses).unwrap();
        assert_eq!(written, captured);
        for len in 0..captured.len() {
            assert!(
                udp::Packet::new_checked(&captured[..len]).is_err(),
                "cut to {len} bytes"
            );
        }
    }
}

#[test]
fn a_udp_checksum_of_zero_means_none_over_ipv4_and_is_refused_over_ipv6() {
    let captured = packet_of(captures::IPV4_NO_CHECKSUM)[20..].to_vec();
    let packet = udp::Packet::new_checked(&captured).unwrap();
    assert_eq!(packet.verify(&V4), Ok(()));
    assert_eq!(packet.verify(&V6), Err(udp::Error::NoChecksum));
}

#[test]
fn a_udp_checksum_covers_addresses_ports_length_and_payload() {
    for (captured, addresses, other) in [
        (packet_of(captures::IPV4)[20..].to_vec(), V4, V6),
        (packet_of(captures::IPV6)[40..].to_vec(), V6, V4),
    ] {
        let checksum = udp::Packet::new_checked(&captured).unwrap().checksum();
        let refused = Err(udp::Error::Checksum(checksum));
        assert_eq!(
            udp::Packet::new_checked(&captured).unwrap().verify(&other),
            refused
        );
        for at in [0, 1, 2, 3, 8, captured.len() - 1] {
            let mut changed = captured.clone();
            changed[at] ^= 0x40;
            let packet = udp::Packet::new_checked(&changed).unwrap();
            assert_eq!(packet.verify(&addresses), refused, "byte {at} changed");
        }
        let mut shorter = captured.clone();
        shorter[5] -= 1;
        assert_eq!(
            udp::Packet::new_checked(&shorter)
                .unwrap()
                .verify(&addresses),
            refused
        );
    }
}

#[test]
fn bytes_behind_the_udp_length_are_no_payload() {
    let mut datagram = packet_of(captures::IPV4)[20..].to_vec();
    datagram.extend([0xee; 9]);
    let packet = udp::Packet::new_checked(&datagram).unwrap();
    assert_eq!(
        (packet.payload(), packet.verify(&V4)),
        (&b"takt!"[..], Ok(()))
    );
    datagram[5] = 7;
    let error = udp::Packet::new_checked(&datagram).map(|_| ()).unwrap_err();
    assert_eq!(
        error,
        udp::Error::Length {
            length: 7,
            available: 22
        }
    );
}

#[test]
fn what_is_too_short_or_too_long_to_send_is_refused() {
    let four = ipv4::Repr::parse(&ipv4::Packet::new_checked(packet_of(captures::IPV4)).unwrap());
    let six = ipv6::Repr::parse(&ipv6::Packet::new_checked(packet_of(captures::IPV6)).unwrap());
    let (four, six) = (four.unwrap(), six.unwrap());
    let ports = udp::Repr {
        source_port: 1,
        destination_port: 2,
    };
    let mut buffer = vec![0xa5; 70_000];
    assert_eq!(
        four.emit(&mut buffer[..19]),
        Err(ipv4::Error::Truncated(19))
    );
    assert_eq!(
        four.emit(&mut buffer[..65_536]),
        Err(ipv4::Error::TooLong(65_536))
    );
    assert_eq!(six.emit(&mut buffer[..39]), Err(ipv6::Error::Truncated(39)));
    assert_eq!(
        six.emit(&mut buffer[..40 + 65_536]),
        Err(ipv6::Error::TooLong(65_536))
    );
    assert_eq!(
        ports.emit(&mut buffer[..7], &V4),
        Err(udp::Error::Truncated(7))
    );
    assert_eq!(
        ports.emit(&mut buffer[..65_536], &V6),
        Err(udp::Error::TooLong(65_536))
    );
    assert!(buffer.iter().all(|b| *b == 0xa5));
    assert_eq!(four.emit(&mut buffer[..65_535]), Ok(()));
    assert_eq!(six.emit(&mut buffer[..40 + 65_535]), Ok(()));
    assert_eq!(ports.emit(&mut buffer[..65_535], &V6), Ok(()));
}

#[test]
fn addresses_of_two_families_are_no_pair() {
    let (four, six) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    assert_eq!(Addresses::new(four, six), None);
    assert_eq!(Addresses::new(six, four), None);
    assert!(Addresses::new(four, four).is_some() && Addresses::new(six, six).is_some());
}

proptest! {
    #[test]
    fn ipv4_headers_round_trip(
        addresses: ([u8; 4], [u8; 4]),
        octets: (u8, u8, u8),
        identification: u16,
        dont_fragment: bool,
        payload in vec(any::<u8>(), 0..100),
    ) {
        let sent = ipv4::Repr {
            source: addresses.0.into(),
            destination: addresses.1.into(),
            protocol: Protocol(octets.0),
            dscp: Dscp::from_octet(octets.1),
            hop_limit: octets.2,
            identification,
            dont_fragment,
        };
        let mut packet = [&[0xff; ipv4::HEADER_LEN][..], &payload].concat();
        sent.emit(&mut packet).unwrap();
        let packet = ipv4::Packet::new_checked(&packet).unwrap();
        prop_assert_eq!(ipv4::Repr::parse(&packet), Ok(sent));
        prop_assert_eq!(packet.payload(), &payload);
    }

    #[test]
    fn ipv6_headers_round_trip(
        addresses: ([u8; 16], [u8; 16]),
        octets: (u8, u8),
        protocol in prop_oneof![Just(Protocol::TCP), Just(Protocol::UDP), Just(Protocol::ICMPV6)],
        payload in vec(any::<u8>(), 0..100),
    ) {
        let sent = ipv6::Repr {
            source: addresses.0.into(),
            destination: addresses.1.into(),
            protocol,
            dscp: Dscp::from_octet(octets.0),
            hop_limit: octets.1,
        };
        let mut packet = [&[0xff; ipv6::HEADER_LEN][..], &payload].concat();
        sent.emit(&mut packet).unwrap();
        let packet = ipv6::Packet::new_checked(&packet).unwrap();
        prop_assert_eq!(ipv6::Repr::parse(&packet), Ok(sent));
        prop_assert_eq!(packet.payload(), &payload);
    }

    #[test]
    fn udp_headers_round_trip(
        source_port: u16, destination_port: u16, six: bool, payload in vec(any::<u8>(), 0..100),
    ) {
        let addresses = if six { V6 } else { V4 };
        let sent = udp::Repr { source_port, destination_port };
        let mut datagram = [&[0xff; udp::HEADER_LEN][..], &payload].concat();
        sent.emit(&mut datagram, &addresses).unwrap();
        let packet = udp::Packet::new_checked(&datagram).unwrap();
        prop_assert_eq!(udp::Repr::parse(&packet, &addresses), Ok(sent));
        prop_assert_eq!(packet.payload(), &payload);
    }

    #[test]
    fn no_bytes_make_the_parsers_panic(mut bytes in vec(any::<u8>(), 0..100)) {
        let _ = udp::Packet::new_checked(&bytes).map(|packet| packet.verify(&V6));
        for first in [None, Some(0x45), Some(0x4f), Some(0x60)] {
            if let (Some(byte), Some(first)) = (bytes.first_mut(), first) {
                *byte = first;
            }
            if let Ok(packet) = ipv4::Packet::new_checked(&bytes) {
                let _ = ipv4::Repr::parse(&packet);
                prop_assert!(packet.payload().len() < bytes.len());
            }
            if let Ok(packet) = ipv6::Packet::new_checked(&bytes) {
                let _ = ipv6::Repr::parse(&packet);
                prop_assert!(packet.payload().len() < bytes.len());
            }
        }
    }
}
