//! From the bytes of a captured packet to its flow and payload.
//!
//! More lenient than `takt-wire`, which judges what a node is to accept: a capture holds packets that were cut short,
//! fragments and headers with options, and each still belongs to a flow. Tunnels are not looked into.

use takt_wire::ethernet::{EtherType, MacAddress};

use crate::key::FlowKey;

/// TCP, UDP, SCTP and DCCP have their ports in the first four bytes.
const WITH_PORTS: [u8; 4] = [6, 17, 132, 33];
/// VLAN tags that are skipped.
const MAX_TAGS: usize = 2;
/// IPv6 extension headers that are skipped.
const MAX_EXTENSIONS: usize = 8;

/// What the bytes of a capture begin with (registry of link types, www.tcpdump.org/linktypes.html).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// Ethernet, 1.
    Ethernet,
    /// An IP packet, 101 (12 and 14 on some systems).
    Raw,
    /// Linux cooked capture, 113.
    LinuxCooked,
    /// Linux cooked capture version 2, 276.
    LinuxCooked2,
    /// The loopback of BSD, 0.
    Null,
}

impl LinkType {
    /// By the number in a capture; `None` if flows of such packets cannot be told.
    pub fn from_number(number: i32) -> Option<Self> {
        Some(match number {
            0 => Self::Null,
            1 => Self::Ethernet,
            12 | 14 | 101 => Self::Raw,
            113 => Self::LinuxCooked,
            276 => Self::LinuxCooked2,
            _ => return None,
        })
    }
}

/// By what flows of IP packets are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identify {
    /// By 5-tuple; frames that hold no IP packet by destination address and VLAN.
    #[default]
    Tuple,
    /// All by destination address and VLAN.
    Stream,
}

/// Why a packet belongs to no flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It ends within a header that its flow is told by.
    #[error("cut short: {0} bytes captured")]
    Truncated(usize),
    /// A header contradicts itself.
    #[error("malformed {0} header")]
    Malformed(&'static str),
}

/// A packet as a monitor needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its flow.
    pub key: FlowKey,
    /// What is behind UDP's or SCTP's header, behind the IP header, or behind the EtherType; as much as was captured.
    pub payload: &'a [u8],
    /// What is behind the IP packet: a trailer or padding.
    pub behind: &'a [u8],
    /// A header contradicts itself; the flow is told by those before it.
    pub malformed: bool,
}

/// Finds the flow of captured bytes.
///
/// # Errors
/// [`Unreadable`].
#[inline]
pub fn read(link: LinkType, bytes: &[u8], identify: Identify) -> Result<Packet<'_>, Unreadable> {
    let short = Unreadable::Truncated(bytes.len());
    let (destination, ether_type, rest) = match link {
        LinkType::Ethernet => {
            let (header, rest) = bytes.split_first_chunk::<14>().ok_or(short)?;
            let [a, b, c, d, e, f, ..] = *header;
            (MacAddress([a, b, c, d, e, f]), word(header, 12), rest)
        }
        LinkType::Raw => (MacAddress::ZERO, of_ip(bytes), bytes),
        LinkType::Null => {
            let (_, rest) = bytes.split_first_chunk::<4>().ok_or(short)?;
            (MacAddress::ZERO, of_ip(rest), rest)
        }
        LinkType::LinuxCooked => {
            let (header, rest) = bytes.split_first_chunk::<16>().ok_or(short)?;
            (MacAddress::ZERO, word(header, 14), rest)
        }
        LinkType::LinuxCooked2 => {
            let (header, rest) = bytes.split_first_chunk::<20>().ok_or(short)?;
            (MacAddress::ZERO, word(header, 0), rest)
        }
    };
    let (mut ether_type, mut rest, mut vlan) = (EtherType(ether_type), rest, None);
    for _ in 0..MAX_TAGS {
        if !ether_type.is_tag() {
            break;
        }
        let (tag, inner) = rest.split_first_chunk::<4>().ok_or(short)?;
        vlan = vlan.or(Some(word(tag, 0) & 0xfff));
        ether_type = EtherType(word(tag, 2));
        rest = inner;
    }
    let found = match (identify, ether_type) {
        (Identify::Tuple, EtherType::IPV4) => ipv4(rest, short),
        (Identify::Tuple, EtherType::IPV6) => ipv6(rest, short),
        _ => Ok(Packet {
            key: FlowKey::stream(destination, vlan, ether_type),
            payload: rest,
            behind: &[],
            malformed: false,
        }),
    };
    match found {
        // A frame whose IP header is nonsense still uses the link.
        Err(Unreadable::Malformed(_)) if link == LinkType::Ethernet => Ok(Packet {
            key: FlowKey::stream(destination, vlan, ether_type),
            payload: &[],
            behind: &[],
            malformed: true,
        }),
        found => found,
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn of_ip(bytes: &[u8]) -> u16 {
    match bytes.first().map(|byte| byte >> 4) {
        Some(6) => EtherType::IPV6.0,
        _ => EtherType::IPV4.0,
    }
}

#[inline]
fn ipv4(bytes: &[u8], short: Unreadable) -> Result<Packet<'_>, Unreadable> {
    let (header, _) = bytes.split_first_chunk::<20>().ok_or(short)?;
    let length = usize::from(header[0] & 15) * 4;
    let total = usize::from(word(header, 2));
    // A total length of 0 is what segmentation offload leaves in captures of the sender.
    if header[0] >> 4 != 4 || length < 20 || (total != 0 && total < length) {
        return Err(Unreadable::Malformed("IPv4"));
    }
    let end = if total == 0 {
        bytes.len()
    } else {
        total.min(bytes.len())
    };
    let body = bytes.get(length..end).ok_or(short)?;
    let behind = &bytes[end..];
    let address = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
    let later_fragment = word(header, 6) & 0x1fff != 0;
    let (ports, payload) = transport(header[9], body, later_fragment, short)?;
    Ok(Packet {
        key: FlowKey::v4(header[9], address(12), address(16), ports),
        payload,
        behind,
        malformed: !later_fragment && is_malformed(header[9], body),
    })
}

#[inline]
fn ipv6(bytes: &[u8], short: Unreadable) -> Result<Packet<'_>, Unreadable> {
    let (header, body) = bytes.split_first_chunk::<40>().ok_or(short)?;
    if header[0] >> 4 != 6 {
        return Err(Unreadable::Malformed("IPv6"));
    }
    let length = usize::from(word(header, 4));
    // 0 is a jumbogram (RFC 2675), or segmentation offload.
    let (mut body, behind) = match length {
        0 => (body, &[][..]),
        length => body.split_at(length.min(body.len())),
    };
    let (mut next, mut later_fragment) = (header[6], false);
    for _ in 0..MAX_EXTENSIONS {
        let skip = match next {
            // Hop-by-hop, routing, destination options, mobility, HIP, shim6: in units of 8, less the first.
            0 | 43 | 60 | 135 | 139 | 140 => 8 + usize::from(*body.get(1).ok_or(short)?) * 8,
            44 => {
                later_fragment |= word(body.get(2..4).ok_or(short)?, 0) & 0xfff8 != 0;
                8
            }
            // Authentication, RFC 4302: in units of 4, less two.
            51 => 8 + usize::from(*body.get(1).ok_or(short)?) * 4,
            _ => break,
        };
        next = *body.first().ok_or(short)?;
        body = body.get(skip..).ok_or(short)?;
        if later_fragment {
            break;
        }
    }
    let address = |at: usize| {
        let mut address = [0; 16];
        address.copy_from_slice(&header[at..at + 16]);
        address
    };
    let (ports, payload) = transport(next, body, later_fragment, short)?;
    Ok(Packet {
        key: FlowKey::v6(next, address(8), address(24), ports),
        payload,
        behind,
        malformed: !later_fragment && is_malformed(next, body),
    })
}

/// Whether UDP says that it is shorter than its header; 0 is what segmentation offload and jumbograms have.
#[inline]
fn is_malformed(protocol: u8, body: &[u8]) -> bool {
    protocol == 17 && body.len() >= 8 && (1..8).contains(&word(body, 4))
}

#[inline]
fn transport(
    protocol: u8,
    body: &[u8],
    later_fragment: bool,
    short: Unreadable,
) -> Result<([u16; 2], &[u8]), Unreadable> {
    if later_fragment || !WITH_PORTS.contains(&protocol) {
        return Ok(([0; 2], body));
    }
    let (ports, _) = body.split_first_chunk::<4>().ok_or(short)?;
    let header = match protocol {
        17 => 8,
        132 => 12,
        _ => 4,
    };
    let payload = body.get(header..).unwrap_or(&[]);
    Ok(([word(ports, 0), word(ports, 2)], payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn udp() -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend([
            0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        frame.extend([0x13, 0x88, 0x13, 0x8c, 0, 12, 0, 0, 1, 2, 3, 4]);
        frame
    }

    #[test]
    fn a_datagram_is_of_its_tuple_and_padding_is_no_payload() {
        let mut frame = udp();
        frame.extend([0; 14]);
        let packet = read(LinkType::Ethernet, &frame, Identify::Tuple).expect("a packet");
        assert_eq!(packet.key.to_string(), "udp 10.0.0.1:5000 > 10.0.0.2:5004");
        assert_eq!(packet.payload, [1, 2, 3, 4]);
        assert_eq!(packet.behind, [0; 14]);
        let packet = read(LinkType::Raw, &frame[14..], Identify::Tuple).expect("a packet");
        assert_eq!(packet.key.ports(), Some((5000, 5004)));
    }

    #[test]
    fn tags_name_the_vlan_of_a_stream() {
        let frame = [
            0x91, 0xe0, 0xf0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0x60, 2, 0x22, 0xf0, 2, 0x80,
        ];
        let packet = read(LinkType::Ethernet, &frame, Identify::Tuple).expect("a packet");
        assert_eq!(
            packet.key.to_string(),
            "stream 91:e0:f0:00:00:01 vlan 2 type 0x22f0"
        );
    }

    #[test]
    fn later_fragments_have_no_ports_and_extension_headers_are_skipped() {
        let mut frame = udp();
        frame[20] = 0x20;
        frame[21] = 0xb9;
        let packet = read(LinkType::Ethernet, &frame, Identify::Tuple).expect("a packet");
        assert_eq!(packet.key.to_string(), "udp 10.0.0.1 > 10.0.0.2");
        let mut packet6 = vec![0x60, 0, 0, 0, 0, 20, 0, 64];
        packet6.extend([1; 16]);
        packet6.extend([2; 16]);
        packet6.extend([17, 0, 0, 0, 0, 0, 0, 0]);
        packet6.extend([0, 1, 0, 2, 0, 12, 0, 0, 9, 9, 9, 9]);
        let packet = read(LinkType::Raw, &packet6, Identify::Tuple).expect("a packet");
        assert_eq!(packet.key.ports(), Some((1, 2)));
        assert_eq!(packet.payload, [9; 4]);
    }

    #[test]
    fn a_frame_with_a_nonsensical_ip_header_is_still_counted_by_its_destination() {
        let mut frame = udp();
        frame[14] = 0x41;
        let packet = read(LinkType::Ethernet, &frame, Identify::Tuple).expect("a packet");
        assert_eq!(packet.key.ether_type(), Some(EtherType::IPV4));
        assert!(packet.malformed);
        let mut frame = udp();
        frame[39] = 1;
        let packet = read(LinkType::Ethernet, &frame, Identify::Tuple).expect("a packet");
        assert_eq!(packet.key.ports(), Some((5000, 5004)));
        assert!(packet.malformed);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_and_whatever_is_cut_short_is_refused_or_has_a_flow(
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
            number in prop_oneof![Just(0), Just(1), Just(101), Just(113), Just(276)],
        ) {
            let link = LinkType::from_number(number).expect("a known one");
            let _ = read(link, &bytes, Identify::Tuple);
            let _ = read(link, &bytes, Identify::Stream);
            let mut frame = udp();
            for (at, byte) in bytes.iter().enumerate().take(frame.len()) {
                frame[at] ^= byte & if at % 3 == 0 { 0xff } else { 0 };
            }
            let _ = read(LinkType::Ethernet, &frame[..bytes.len().min(frame.len())], Identify::Tuple);
        }
    }
}
