//! What the program hands over: a frame, and when it is to leave; and what has to be done to the frame before it can.
//!
//! The frame is the pod's, so hostile. Nothing here panics, whatever it is.

use std::net::IpAddr;
use std::ops::Range;

use takt::{Endpoint, TrafficClass};
use takt_wire::checksum::PartialSum;
use takt_wire::ethernet::{self, EtherType, MacAddress};
use takt_wire::ip::{Addresses, Protocol};
use takt_wire::vlan::{self, VlanTag};
use takt_wire::{arp, ipv4, ipv6};

/// Shares of a ring: as many as the program has.
pub const SHARES: usize = 256;
/// Octets before the frame: when it is to leave, its length, its clock.
const HEADER: usize = 16;
/// Of UDP: its length, and where its checksum is (RFC 768).
const UDP_HEADER: usize = 8;
const UDP_CHECKSUM: Range<usize> = 6..8;
/// The same of TCP, without options (RFC 9293, section 3.1).
const TCP_HEADER: usize = 20;
const TCP_CHECKSUM: Range<usize> = 16..18;
/// IP within IP (RFC 2003, RFC 4213).
const IPV4_WITHIN: Protocol = Protocol(4);
const IPV6_WITHIN: Protocol = Protocol(41);
/// Of VXLAN: its length (RFC 7348), its port and the one that Linux had before.
const VXLAN_HEADER: usize = 8;
const VXLAN_PORTS: [u16; 2] = [4789, 8472];
/// Tunnels within tunnels that are looked into.
const MOST_TUNNELS: usize = 2;
/// Nanoseconds for which no machine is up, 36 years, and which TAI has passed in 2006: a time of a socket that wanted
/// `CLOCK_TAI` and got the other clock, without a capability.
const UPTIME: u64 = 1 << 60;
/// The next header of IPv6 that multicast listeners' reports begin with: hop-by-hop options (RFC 8200, section 4.3; RFC 3810, section 5).
const HOP_BY_HOP: Protocol = Protocol(0);

/// The clock of a launch time, as the kernel tells it (`enum skb_tstamp_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchClock {
    /// `CLOCK_MONOTONIC`.
    Monotonic,
    /// `CLOCK_TAI`.
    Tai,
}

/// A frame with its launch time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// By which clock, and when, nanoseconds; none if it has no launch time.
    pub launch: Option<(LaunchClock, u64)>,
    /// Without a launch time: whose share of the ring it takes, below [`SHARES`].
    pub share: usize,
    /// From the destination address on, without frame check sequence.
    pub frame: &'a [u8],
}

impl<'a> Record<'a> {
    /// Reads a record of the ring. `None`: it is none.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
        let (launch, header) = header.split_first_chunk()?;
        let (length, clock) = header.split_first_chunk()?;
        let length = usize::try_from(u32::from_ne_bytes(*length)).ok()?;
        let launch = u64::from_ne_bytes(*launch);
        Some(Self {
            share: launch as usize % SHARES,
            launch: match u32::from_ne_bytes(*clock.first_chunk()?) {
                0 => None,
                1 if launch >= UPTIME => Some((LaunchClock::Tai, launch)),
                1 => Some((LaunchClock::Monotonic, launch)),
                2 => Some((LaunchClock::Tai, launch)),
                _ => return None,
            },
            frame: rest.get(..length)?,
        })
    }
}

/// Why a frame is not given to the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// It is not from the endpoint's addresses.
    Source,
    /// It is of a kind that is the kernel's alone: address resolution, extension headers, a service tag, control of the link.
    Kind,
    /// It has the tag of a VLAN that is not the endpoint's.
    Tag,
    /// It is not what it says, or too long.
    Malformed,
}

/// Where a frame goes, as far as the runtime has to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Towards {
    /// The station on the link.
    pub station: [u8; 6],
    /// The receiver, if it is IP.
    pub receiver: Option<IpAddr>,
}

impl Towards {
    /// Where a frame goes, whoever has sent it. `None`: it is none, or IP and not well-formed.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let header = ethernet::Packet::new_checked(frame).ok()?;
        let packet = header.payload();
        let receiver = match header.ether_type() {
            EtherType::IPV4 => Some(ipv4::Packet::new_checked(packet).ok()?.destination().into()),
            EtherType::IPV6 => Some(ipv6::Packet::new_checked(packet).ok()?.destination().into()),
            _ => None,
        };
        Some(Self {
            station: header.destination().0,
            receiver,
        })
    }
}

/// Whether a frame comes from an endpoint, whatever else it is: from its station and, as far as it is IP or address resolution, behind VLAN
/// tags, too, from one of its addresses. Hosts find each other on an IPv6 link by ICMPv6 from link-local addresses or from none; that is let pass.
///
/// # Errors
/// [`Foreign::Source`]: it does not. [`Foreign::Malformed`]: there is no telling.
pub fn check_source(frame: &[u8], endpoint: &Endpoint) -> Result<(), Foreign> {
    let header = ethernet::Packet::new_checked(frame).map_err(|_| Foreign::Malformed)?;
    if header.source() != MacAddress(endpoint.mac) {
        return Err(Foreign::Source);
    }
    let behind = vlan::parse(header.ether_type(), header.payload());
    let (_, ether_type, packet) = behind.map_err(|_| Foreign::Malformed)?;
    let is_own = match ether_type {
        EtherType::IPV4 => {
            let packet = ipv4::Packet::new_checked(packet).map_err(|_| Foreign::Malformed)?;
            endpoint.is_source(packet.source().into())
        }
        EtherType::IPV6 => {
            let packet = ipv6::Packet::new_checked(packet).map_err(|_| Foreign::Malformed)?;
            let source = packet.source();
            endpoint.is_source(source.into())
                || (source.is_unspecified() || source.is_unicast_link_local()) && is_icmp(&packet)
        }
        EtherType::ARP => {
            let packet = arp::Packet::new_checked(packet).map_err(|_| Foreign::Malformed)?;
            // Who asks whether an address is taken has none yet (RFC 5227).
            packet.sender_mac() == MacAddress(endpoint.mac)
                && (packet.sender_ip().is_unspecified()
                    || endpoint.is_source(packet.sender_ip().into()))
        }
        _ => true,
    };
    if is_own { Ok(()) } else { Err(Foreign::Source) }
}

/// Whether an IPv6 packet carries ICMPv6, at once or behind hop-by-hop options.
fn is_icmp(packet: &ipv6::Packet<&[u8]>) -> bool {
    match packet.next_header() {
        HOP_BY_HOP => packet.payload().first() == Some(&Protocol::ICMPV6.0),
        header => header == Protocol::ICMPV6,
    }
}

/// What a frame says of itself, of an endpoint that it may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Where to.
    pub towards: Towards,
    /// The priority of its VLAN tag, or the class selector of its DSCP (RFC 2474); 0 if it has neither.
    pub class: TrafficClass,
}

impl Summary {
    /// Reads a frame. The lane decides what leaves; this is for what is to go the kernel's way instead.
    ///
    /// # Errors
    /// Why it is not the runtime's.
    pub fn of(frame: &[u8], endpoint: &Endpoint) -> Result<Self, Foreign> {
        check_source(frame, endpoint)?;
        let header = ethernet::Packet::new_checked(frame).map_err(|_| Foreign::Malformed)?;
        let packet = header.payload();
        if packet.len() > usize::from(endpoint.mtu) {
            return Err(Foreign::Malformed);
        }
        let station = header.destination();
        if station.is_link_control() {
            return Err(Foreign::Kind);
        }
        let (receiver, dscp): (IpAddr, _) = match header.ether_type() {
            EtherType::IPV4 => {
                let packet = ipv4::Packet::new_checked(packet).map_err(|_| Foreign::Malformed)?;
                (packet.destination().into(), packet.dscp())
            }
            EtherType::IPV6 => {
                let packet = ipv6::Packet::new_checked(packet).map_err(|_| Foreign::Malformed)?;
                if ![Protocol::UDP, Protocol::TCP].contains(&packet.next_header()) {
                    return Err(Foreign::Kind);
                }
                (packet.destination().into(), packet.dscp())
            }
            EtherType::VLAN => return Self::tagged(station, packet, endpoint),
            kind if kind.is_reserved() => return Err(Foreign::Kind),
            _ => {
                return Ok(Self {
                    towards: Towards {
                        station: station.0,
                        receiver: None,
                    },
                    class: TrafficClass::default(),
                });
            }
        };
        Ok(Self {
            towards: Towards {
                station: station.0,
                receiver: Some(receiver),
            },
            class: TrafficClass::new(dscp.value() >> 3).unwrap_or_default(),
        })
    }

    /// Of a frame with a tag of one of the endpoint's VLANs, of the class that is its priority code point.
    fn tagged(station: MacAddress, packet: &[u8], endpoint: &Endpoint) -> Result<Self, Foreign> {
        let control = packet.first_chunk().ok_or(Foreign::Malformed)?;
        let tag = VlanTag::from_control(u16::from_be_bytes(*control));
        let tag = tag.map_err(|_| Foreign::Malformed)?;
        if !endpoint.vlans.contains(&tag.id()) {
            return Err(Foreign::Tag);
        }
        Ok(Self {
            towards: Towards {
                station: station.0,
                receiver: None,
            },
            class: TrafficClass::new(tag.priority()).unwrap_or_default(),
        })
    }
}

/// Completes the checksum of a UDP datagram or TCP segment, also behind VLAN tags, within IP and within VXLAN. A veth has it computed by
/// nobody: the kernel leaves the sum of the pseudo header there for a device (`CHECKSUM_PARTIAL`). What has another checksum, right or wrong,
/// stays as it is.
pub fn complete_checksum(frame: &mut [u8]) {
    let mut frame = frame;
    for _ in 0..=MOST_TUNNELS {
        let Some(found) = transport(frame) else {
            return;
        };
        let Some(packet) = frame.get_mut(found.place.clone()) else {
            return;
        };
        complete(packet, &found);
        if !found.is_tunnel(packet) {
            return;
        }
        let Some(within) = packet.get_mut(UDP_HEADER + VXLAN_HEADER..) else {
            return;
        };
        frame = within;
    }
}

/// Completes the checksum of what is found in a frame.
fn complete(packet: &mut [u8], found: &Transport) {
    let Ok(length) = u16::try_from(packet.len()) else {
        return;
    };
    let (protocol, checksum) = (found.protocol, found.checksum.clone());
    let pseudo = found
        .addresses
        .pseudo_header(protocol)
        .plus(PartialSum::of_word(length));
    let left = !pseudo.checksum();
    if packet[checksum.clone()] != left.to_be_bytes() {
        return;
    }
    packet[checksum.clone()].fill(0);
    let sum = pseudo.plus(PartialSum::of(packet)).checksum();
    // Zero stands for none (RFC 768).
    let sum = match sum {
        0 if protocol == Protocol::UDP => u16::MAX,
        sum => sum,
    };
    packet[checksum].copy_from_slice(&sum.to_be_bytes());
}

/// What a frame carries over IP, if that has a checksum over its addresses.
struct Transport {
    protocol: Protocol,
    /// Where in the frame it is.
    place: Range<usize>,
    /// Where in it the checksum is.
    checksum: Range<usize>,
    /// What the checksum covers beside it.
    addresses: Addresses,
}

impl Transport {
    /// Whether it carries a frame of a VXLAN.
    fn is_tunnel(&self, packet: &[u8]) -> bool {
        let port = packet.get(2..4).and_then(|port| port.first_chunk());
        self.protocol == Protocol::UDP
            && port.is_some_and(|port| VXLAN_PORTS.contains(&u16::from_be_bytes(*port)))
    }
}

/// A whole UDP datagram or TCP segment in a frame.
fn transport(frame: &[u8]) -> Option<Transport> {
    let header = ethernet::Packet::new_checked(frame).ok()?;
    let behind = vlan::parse(header.ether_type(), header.payload());
    let (_, mut ether_type, mut packet) = behind.ok()?;
    let mut at = frame.len() - packet.len();
    for _ in 0..=MOST_TUNNELS {
        let (header, length, protocol, source, receiver) = match ether_type {
            EtherType::IPV4 => {
                let packet = ipv4::Packet::new_checked(packet).ok()?;
                if packet.is_fragment() {
                    return None;
                }
                let (source, receiver) = (packet.source().into(), packet.destination().into());
                let header = packet.header_len();
                let length = packet.total_len().checked_sub(header)?;
                (header, length, packet.protocol(), source, receiver)
            }
            EtherType::IPV6 => {
                let packet = ipv6::Packet::new_checked(packet).ok()?;
                let (source, receiver) = (packet.source().into(), packet.destination().into());
                let length = packet.payload_len();
                let header = ipv6::HEADER_LEN;
                (header, length, packet.next_header(), source, receiver)
            }
            _ => return None,
        };
        packet = packet.get(header..header + length)?;
        at += header;
        let (least, checksum) = match protocol {
            Protocol::UDP => (UDP_HEADER, UDP_CHECKSUM),
            Protocol::TCP => (TCP_HEADER, TCP_CHECKSUM),
            IPV4_WITHIN => {
                ether_type = EtherType::IPV4;
                continue;
            }
            IPV6_WITHIN => {
                ether_type = EtherType::IPV6;
                continue;
            }
            _ => return None,
        };
        if length < least {
            return None;
        }
        if protocol == Protocol::UDP {
            let told = packet.get(4..)?.first_chunk()?;
            if usize::from(u16::from_be_bytes(*told)) != length {
                return None;
            }
        }
        return Some(Transport {
            protocol,
            place: at..at + length,
            checksum,
            addresses: Addresses::new(source, receiver)?,
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use takt_wire::udp;

    use super::*;

    const LINK_HEADER: usize = ethernet::HEADER_LEN;

    fn endpoint() -> Endpoint {
        Endpoint {
            network: "pods".into(),
            mac: [2, 0, 0, 0, 0, 1],
            addresses: vec![
                ([10, 0, 0, 1].into(), 24),
                ("fd00::1".parse().expect("one"), 64),
            ],
            mtu: 1500,
            vlans: Vec::new(),
        }
    }

    /// A datagram as a pod's kernel leaves it to its veth, with the sum of the pseudo header for a checksum.
    fn frame(six: bool, traffic: u8, payload: &[u8]) -> Vec<u8> {
        let length = (UDP_HEADER + payload.len()) as u16;
        let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1];
        let (source, destination): (IpAddr, IpAddr) = match six {
            true => (
                "fd00::1".parse().expect("one"),
                "fd00::2".parse().expect("one"),
            ),
            false => ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
        };
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = vec![0x45, traffic];
                header.extend((20 + length).to_be_bytes());
                header.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
                header.extend(source.octets());
                header.extend(destination.octets());
                let checksum = PartialSum::of(&header).checksum();
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
                frame.extend([8, 0]);
                frame.extend(header);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                frame.extend([0x86, 0xdd, 0x60 | traffic >> 4, traffic << 4, 0, 0]);
                frame.extend(length.to_be_bytes());
                frame.extend([17, 64]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
            }
            _ => unreachable!(),
        }
        let sum = Addresses::new(source, destination)
            .expect("of a kind")
            .pseudo_header(Protocol::UDP)
            .plus(PartialSum::of_word(length));
        frame.extend(5000u16.to_be_bytes());
        frame.extend(5001u16.to_be_bytes());
        frame.extend(length.to_be_bytes());
        frame.extend((!sum.checksum()).to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn verify(frame: &[u8]) -> Result<(), udp::Error> {
        let found = transport(frame).expect("one");
        udp::Packet::new_checked(&frame[found.place])?.verify(&found.addresses)
    }

    fn record(launch: u64, length: u32, clock: u32, rest: &[u8]) -> Vec<u8> {
        let mut bytes = launch.to_ne_bytes().to_vec();
        bytes.extend(length.to_ne_bytes());
        bytes.extend(clock.to_ne_bytes());
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn a_record_has_the_frame_without_the_room_behind_it() {
        let bytes = record(7, 3, 2, b"abcdef");
        let read = Record::read(&bytes).expect("a record");
        assert_eq!(read.launch, Some((LaunchClock::Tai, 7)));
        assert_eq!(read.frame, b"abc");
        let bytes = record(0, 3, 0, b"abcdef");
        assert_eq!(Record::read(&bytes).expect("a record").launch, None);
    }

    #[test]
    fn a_time_by_the_monotonic_clock_that_no_machine_is_up_for_is_one_of_tai() {
        let read = |launch| Record::read(&record(launch, 3, 1, b"abc")).and_then(|r| r.launch);
        let (year, tai) = (365 * 86_400_000_000_000, 1_800_000_000_000_000_000);
        assert_eq!(read(30 * year), Some((LaunchClock::Monotonic, 30 * year)));
        assert_eq!(read(tai), Some((LaunchClock::Tai, tai)));
    }

    #[test]
    fn what_says_to_be_longer_than_it_is_or_of_no_clock_is_no_record() {
        assert_eq!(Record::read(&record(7, 7, 2, b"abcdef")), None);
        assert_eq!(Record::read(&record(7, u32::MAX, 1, b"abcdef")), None);
        assert_eq!(Record::read(&record(7, 3, 3, b"abcdef")), None);
        assert_eq!(Record::read(&[0; HEADER - 1]), None);
    }

    #[test]
    fn frames_of_others_and_what_is_the_kernels_are_told_apart() {
        let endpoint = endpoint();
        let of = |frame: &[u8]| Summary::of(frame, &endpoint).map(|summary| summary.class.number());
        assert_eq!(of(&frame(false, 0xb8, b"x")), Ok(5));
        assert_eq!(of(&frame(true, 0xb8, b"x")), Ok(5));
        let changed = |at: usize, to: u8| {
            let mut frame = frame(false, 0, b"x");
            frame[at] = to;
            frame
        };
        assert_eq!(of(&changed(11, 7)), Err(Foreign::Source));
        assert_eq!(of(&changed(LINK_HEADER + 15, 7)), Err(Foreign::Source));
        assert_eq!(of(&changed(12, 0x81)), Err(Foreign::Tag));
        assert_eq!(of(&arp([10, 0, 0, 1])), Err(Foreign::Kind));
        assert_eq!(of(&changed(LINK_HEADER, 0x4f)), Err(Foreign::Malformed));
        let mut six = frame(true, 0, b"x");
        six[LINK_HEADER + 6] = 58;
        assert_eq!(of(&six), Err(Foreign::Kind));
        let mut tagged = frame(false, 0, b"x");
        tagged.splice(12..12, [0x81, 0, 0xc0, 7]);
        assert_eq!(of(&tagged), Err(Foreign::Tag));
        let within = Endpoint {
            vlans: vec![7],
            ..endpoint.clone()
        };
        let class = Summary::of(&tagged, &within).map(|summary| summary.class.number());
        assert_eq!(class, Ok(6));
        assert_eq!(Summary::of(&tagged[..15], &within), Err(Foreign::Malformed));
        assert_eq!(of(&frame(false, 0, &[0; 1473])), Err(Foreign::Malformed));
        assert_eq!(of(&[0; 13]), Err(Foreign::Malformed));
    }

    /// A request of the endpoint's station for an address, by one that it says to have.
    fn arp(sender: [u8; 4]) -> Vec<u8> {
        let mac = endpoint().mac;
        let mut frame = [&[0xff; 6][..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        frame.extend(mac);
        frame.extend(sender);
        frame.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
        frame
    }

    #[test]
    fn a_foreign_source_is_told_whatever_else_is_wrong_with_the_frame() {
        let own = endpoint();
        let other = Endpoint {
            addresses: vec![
                ([10, 0, 0, 9].into(), 24),
                ("fd00::9".parse().expect("one"), 64),
            ],
            ..own.clone()
        };
        let changed = |mut frame: Vec<u8>, at: usize, to: u8| {
            frame[at] = to;
            frame
        };
        let tagged = |tag: &[u8], mut frame: Vec<u8>| {
            frame.splice(12..12, tag.iter().copied());
            frame
        };
        let plain = || frame(false, 0, b"x");
        let mut to_bridges = plain();
        to_bridges[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 0]);
        let frames = [
            (frame(false, 0, &[0; 1473]), Foreign::Malformed),
            (tagged(&[0x81, 0, 0, 7], plain()), Foreign::Tag),
            (
                tagged(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8], plain()),
                Foreign::Kind,
            ),
            (to_bridges, Foreign::Kind),
            // Destination options, a fragment, ICMPv6.
            (
                changed(frame(true, 0, b"x"), LINK_HEADER + 6, 60),
                Foreign::Kind,
            ),
            (
                changed(frame(true, 0, b"x"), LINK_HEADER + 6, 44),
                Foreign::Kind,
            ),
            (
                changed(frame(true, 0, b"x"), LINK_HEADER + 6, 58),
                Foreign::Kind,
            ),
            (arp([10, 0, 0, 1]), Foreign::Kind),
        ];
        for (mut frame, why) in frames {
            assert_eq!(check_source(&frame, &own), Ok(()), "{frame:?}");
            assert_eq!(Summary::of(&frame, &own), Err(why), "{frame:?}");
            assert_eq!(check_source(&frame, &other), Err(Foreign::Source));
            assert_eq!(Summary::of(&frame, &other), Err(Foreign::Source));
            frame[11] ^= 1;
            assert_eq!(check_source(&frame, &own), Err(Foreign::Source));
        }
        // Of these there is no telling.
        for frame in [
            changed(plain(), LINK_HEADER, 0x4f),
            changed(frame(true, 0, b"x"), LINK_HEADER + 4, 0xff),
            changed(arp([10, 0, 0, 1]), LINK_HEADER, 9),
            tagged(&[0x81, 0, 0, 7].repeat(3), plain()),
            tagged(&[0x81, 0, 0xff, 0xff], plain()),
        ] {
            assert_eq!(check_source(&frame, &own), Err(Foreign::Malformed));
        }
    }

    #[test]
    fn hosts_may_find_each_other_by_addresses_that_no_endpoint_has() {
        let endpoint = endpoint();
        let from = |source: &str, next: u8, first: u8| {
            let mut frame = frame(true, 0, b"x");
            let source: std::net::Ipv6Addr = source.parse().expect("one");
            frame[LINK_HEADER + 8..LINK_HEADER + 24].copy_from_slice(&source.octets());
            frame[LINK_HEADER + 6] = next;
            frame[LINK_HEADER + 40] = first;
            check_source(&frame, &endpoint)
        };
        for source in ["::", "fe80::7"] {
            assert_eq!(from(source, 58, 135), Ok(()));
            assert_eq!(from(source, 0, 58), Ok(()));
            // Nothing that is carried behind the same headers.
            assert_eq!(from(source, 0, 17), Err(Foreign::Source));
            assert_eq!(from(source, 60, 17), Err(Foreign::Source));
            assert_eq!(from(source, 17, 0), Err(Foreign::Source));
        }
        assert_eq!(from("fd00::7", 58, 135), Err(Foreign::Source));
        assert_eq!(check_source(&arp([0; 4]), &endpoint), Ok(()));
        assert_eq!(
            check_source(&arp([10, 0, 0, 7]), &endpoint),
            Err(Foreign::Source)
        );
    }

    /// A segment as a pod's kernel leaves it to its veth.
    fn segment(six: bool, payload: &[u8]) -> Vec<u8> {
        // A datagram that is twelve octets longer has a header of that length.
        let mut frame = frame(six, 0, &[&[0; TCP_HEADER - UDP_HEADER], payload].concat());
        let (at, protocol) = match six {
            true => (LINK_HEADER + 40, LINK_HEADER + 6),
            false => (LINK_HEADER + 20, LINK_HEADER + 9),
        };
        frame[protocol] = Protocol::TCP.0;
        if !six {
            frame[LINK_HEADER + 10..LINK_HEADER + 12].fill(0);
            let checksum = PartialSum::of(&frame[LINK_HEADER..at]).checksum();
            frame[LINK_HEADER + 10..LINK_HEADER + 12].copy_from_slice(&checksum.to_be_bytes());
        }
        let length = (TCP_HEADER + payload.len()) as u16;
        frame[at..at + TCP_HEADER].fill(0);
        frame[at..at + 4].copy_from_slice(&[0x13, 0x88, 0x13, 0x89]);
        frame[at + 12] = 0x50;
        let found = transport(&frame).expect("one");
        let sum = found.addresses.pseudo_header(Protocol::TCP);
        let left = !sum.plus(PartialSum::of_word(length)).checksum();
        frame[at + 16..at + 18].copy_from_slice(&left.to_be_bytes());
        frame
    }

    /// What a segment adds up to with its pseudo header: nothing, if it is right (RFC 1071).
    fn remainder(frame: &[u8]) -> u16 {
        let found = transport(frame).expect("one");
        let length = found.place.len() as u16;
        let pseudo = found.addresses.pseudo_header(Protocol::TCP);
        let sum = pseudo.plus(PartialSum::of_word(length));
        sum.plus(PartialSum::of(&frame[found.place])).checksum()
    }

    /// A packet within another one, as a tunnel of IP has it.
    fn within_ip(inner: &[u8], six: bool) -> Vec<u8> {
        let mut outer = frame(false, 0, &inner[LINK_HEADER + UDP_HEADER..]);
        outer.truncate(LINK_HEADER + 20);
        outer.extend(&inner[LINK_HEADER..]);
        outer[LINK_HEADER + 9] = if six { IPV6_WITHIN.0 } else { IPV4_WITHIN.0 };
        outer[LINK_HEADER + 10..LINK_HEADER + 12].fill(0);
        let checksum = PartialSum::of(&outer[LINK_HEADER..LINK_HEADER + 20]).checksum();
        outer[LINK_HEADER + 10..LINK_HEADER + 12].copy_from_slice(&checksum.to_be_bytes());
        outer
    }

    /// A frame within a VXLAN, whose own datagrams have no checksum.
    fn within_vxlan(inner: &[u8]) -> Vec<u8> {
        let mut outer = frame(false, 0, &[&[8, 0, 0, 0, 0, 0, 9, 0], inner].concat());
        let at = LINK_HEADER + 20;
        outer[at + 2..at + 4].copy_from_slice(&VXLAN_PORTS[0].to_be_bytes());
        outer[at + 6..at + 8].fill(0);
        outer
    }

    proptest! {
        #[test]
        fn a_segments_checksum_is_completed_once(
            six: bool, payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut frame = segment(six, &payload);
            prop_assert_eq!(Summary::of(&frame, &endpoint()).map(|s| s.class.number()), Ok(0));
            complete_checksum(&mut frame);
            prop_assert_eq!(remainder(&frame), 0);
            let complete = frame.clone();
            complete_checksum(&mut frame);
            prop_assert_eq!(frame, complete);
        }

        #[test]
        fn a_checksum_is_completed_once(
            six: bool, payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut frame = frame(six, 0, &payload);
            complete_checksum(&mut frame);
            prop_assert_eq!(verify(&frame), Ok(()));
            let complete = frame.clone();
            complete_checksum(&mut frame);
            prop_assert_eq!(frame, complete);
        }

        #[test]
        fn a_checksum_is_completed_behind_tags_and_within_tunnels(
            six: bool, tags in 0usize..3, way in 0usize..3, payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let plain = segment(six, &payload);
            let mut complete = plain.clone();
            complete_checksum(&mut complete);
            let carried = |frame: &[u8]| {
                let mut carried = match way {
                    0 => frame.to_vec(),
                    1 => within_ip(frame, six),
                    _ => within_vxlan(frame),
                };
                for _ in 0..tags {
                    carried.splice(12..12, [0x81, 0, 0, 7]);
                }
                carried
            };
            let mut frame = carried(&plain);
            complete_checksum(&mut frame);
            prop_assert_eq!(frame, carried(&complete));
        }

        #[test]
        fn a_checksum_that_is_wrong_or_absent_on_purpose_stays(
            checksum: u16, payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut frame = frame(false, 0, &payload);
            let at = LINK_HEADER + 20 + UDP_CHECKSUM.start;
            let left = frame[at..at + 2] == checksum.to_be_bytes();
            prop_assume!(!left);
            frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
            let before = frame.clone();
            complete_checksum(&mut frame);
            prop_assert_eq!(frame, before);
        }

        #[test]
        fn whatever_a_pod_sends_is_read_or_refused(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0u8..3,
        ) {
            if bytes.len() >= LINK_HEADER && kind > 0 {
                bytes[6..12].copy_from_slice(&endpoint().mac);
                let kind: [u8; 2] = if kind == 1 { [8, 0] } else { [0x86, 0xdd] };
                bytes[12..14].copy_from_slice(&kind);
            }
            if let Ok(summary) = Summary::of(&bytes, &endpoint()) {
                prop_assert_eq!(&summary.towards.station, &bytes[..6]);
            }
            let length = bytes.len();
            complete_checksum(&mut bytes);
            prop_assert_eq!(bytes.len(), length);
        }
    }
}
