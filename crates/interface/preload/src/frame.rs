//! Frames as the kernel would have built them.

use std::net::{IpAddr, SocketAddr};

use takt::Endpoint;
use takt_wire::checksum;
use takt_wire::ethernet::{self, EtherType, MacAddress};
use takt_wire::frame::{UdpFlow, UdpHeaderTemplate};
use takt_wire::ip::{Dscp, Protocol};
use takt_wire::vlan::{self, VlanTags};
use takt_wire::{ipv4, ipv6};

/// The ECN bits of a traffic class octet (RFC 3168).
const ECN: u8 = 3;

/// What the frames from a socket to one destination have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The sending interface.
    pub source_mac: [u8; 6],
    /// The next hop.
    pub destination_mac: [u8; 6],
    /// The sender.
    pub source: SocketAddr,
    /// The receiver, of the same address family.
    pub destination: SocketAddr,
    /// DSCP and ECN.
    pub traffic_octet: u8,
    /// How many hops the packets may take.
    pub hop_limit: u8,
    /// Whether IPv4 datagrams have a checksum.
    pub checksum: bool,
}

/// The headers of a flow's frames.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    template: UdpHeaderTemplate,
    four: bool,
    ecn: u8,
    checksum: bool,
}

impl Headers {
    /// `None`: no such packets, of mixed families or without a hop to take.
    pub fn new(flow: &Flow) -> Option<Self> {
        let template = UdpHeaderTemplate::new(&UdpFlow {
            src_mac: MacAddress(flow.source_mac),
            dst_mac: MacAddress(flow.destination_mac),
            vlan: None,
            src: flow.source,
            dst: flow.destination,
            dscp: Dscp::from_octet(flow.traffic_octet),
            hop_limit: flow.hop_limit,
        })
        .ok()?;
        Some(Self {
            template,
            four: flow.destination.is_ipv4(),
            ecn: flow.traffic_octet & ECN,
            checksum: flow.checksum,
        })
    }

    /// Bytes of all headers: where the payload belongs.
    pub fn len(&self) -> usize {
        self.template.header_len()
    }

    /// Bytes of the headers that count for the MTU.
    pub fn packet_header(&self) -> usize {
        self.len() - ethernet::HEADER_LEN
    }

    /// Writes the headers in front of a payload that `frame` holds from [`len`](Self::len) to its end. False:
    /// the payload is longer than a datagram's.
    pub fn emit(&self, frame: &mut [u8], identification: u16) -> bool {
        let Some(payload) = frame.len().checked_sub(self.len()) else {
            return false;
        };
        if self
            .template
            .emit(frame, payload, identification, self.checksum)
            .is_none()
        {
            return false;
        }
        if self.ecn != 0 {
            self.mark(frame);
        }
        true
    }

    /// Puts the ECN bits in, which the template leaves zero.
    fn mark(&self, frame: &mut [u8]) {
        let Some(packet) = frame.get_mut(ethernet::HEADER_LEN..) else {
            return;
        };
        if self.four {
            let Some(header) = packet.first_chunk_mut::<{ takt_wire::ipv4::HEADER_LEN }>() else {
                return;
            };
            let old = u16::from_be_bytes([header[0], header[1]]);
            header[1] |= self.ecn;
            let new = u16::from_be_bytes([header[0], header[1]]);
            let sum = u16::from_be_bytes([header[10], header[11]]);
            header[10..12].copy_from_slice(&checksum::update(sum, old, new).to_be_bytes());
        } else if let Some(octet) = packet.get_mut(1) {
            // The lower half of the traffic class is the upper half of the second byte.
            *octet |= self.ecn << 4;
        }
    }
}

/// Writes an Ethernet header in front of what a packet socket of the kind `SOCK_DGRAM` sends.
pub fn emit_link(frame: &mut [u8], source: [u8; 6], destination: [u8; 6], protocol: u16) {
    if let Some(header) = frame.first_chunk_mut::<{ ethernet::HEADER_LEN }>() {
        ethernet::Repr {
            destination: MacAddress(destination),
            source: MacAddress(source),
            ether_type: EtherType(protocol),
        }
        .emit(header);
    }
}

/// Whether a frame has a VLAN tag.
pub fn is_tagged(frame: &[u8]) -> bool {
    ethernet::Packet::new_checked(frame).is_ok_and(|packet| packet.ether_type().is_tag())
}

/// Whether a frame is one that the runtime lets an endpoint send: from its own addresses, with no tag but of its VLANs, and nothing
/// that speaks for others. Whether the tag's priority is one of its classes, the runtime says.
pub fn may_leave(frame: &[u8], endpoint: &Endpoint) -> bool {
    let Ok(packet) = ethernet::Packet::new_checked(frame) else {
        return false;
    };
    let Ok(header) = ethernet::Repr::parse(&packet) else {
        return false;
    };
    if header.source.0 != endpoint.mac {
        return false;
    }
    let tagged = vlan::parse(header.ether_type, packet.payload());
    let (ether_type, packet) = match (header.ether_type, tagged) {
        (EtherType::VLAN, Ok((VlanTags::Single(tag), ether_type, packet)))
            if endpoint.vlans.contains(&tag.id()) =>
        {
            (ether_type, packet)
        }
        (ether_type, _) => (ether_type, packet.payload()),
    };
    let source: IpAddr = match ether_type {
        EtherType::IPV4 => match ipv4::Packet::new_checked(packet) {
            Ok(packet) => packet.source().into(),
            Err(_) => return false,
        },
        EtherType::IPV6 => match ipv6::Packet::new_checked(packet) {
            // Neighbour discovery is part of ICMPv6, and extension headers may hide it.
            Ok(packet) if packet.next_header() == Protocol::UDP => packet.source().into(),
            _ => return false,
        },
        EtherType::ARP => return false,
        tag if tag.is_tag() => return false,
        _ => return true,
    };
    endpoint.is_source(source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use takt_wire::frame::parse_udp_frame;

    fn flow(source: &str, destination: &str) -> Flow {
        Flow {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            traffic_octet: 0,
            hop_limit: 64,
            checksum: true,
        }
    }

    fn frame(flow: &Flow, payload: &[u8], identification: u16) -> Vec<u8> {
        let headers = Headers::new(flow).expect("a flow");
        let mut frame = vec![0; headers.len()];
        frame.extend(payload);
        assert!(headers.emit(&mut frame, identification));
        frame
    }

    #[test]
    fn addresses_ports_time_to_live_and_service_are_the_sockets() {
        let mut flow = flow("10.0.0.1:1000", "10.0.0.2:2000");
        (flow.traffic_octet, flow.hop_limit) = (0xb9, 3);
        let frame = frame(&flow, b"content", 77);
        assert_eq!(frame[0..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        let packet = ipv4::Packet::new_checked(&frame[14..]).expect("a packet");
        assert!(packet.header_is_intact());
        assert_eq!(frame[15], 0xb9, "with its ECN bits");
        assert_eq!((packet.hop_limit(), packet.identification()), (3, 77));
        assert!(packet.dont_fragment());
        let datagram = parse_udp_frame(&frame, true).expect("a datagram");
        assert_eq!(
            (datagram.src, datagram.dst),
            (flow.source, flow.destination)
        );
        assert_eq!(datagram.payload, b"content");
    }

    #[test]
    fn ipv6_keeps_the_whole_traffic_class() {
        let mut flow = flow("[fd00::1]:1000", "[fd00::2]:2000");
        flow.traffic_octet = 0xff;
        let frame = frame(&flow, &[], 0);
        assert_eq!(frame[14..16], [0x6f, 0xf0]);
        let packet = ipv6::Packet::new_checked(&frame[14..]).expect("a packet");
        assert_eq!(packet.flow_label(), 0);
        assert!(parse_udp_frame(&frame, true).is_ok());
    }

    #[test]
    fn a_checksum_is_left_out_on_wish_over_ipv4_alone() {
        let mut four = flow("10.0.0.1:1", "10.0.0.2:2");
        four.checksum = false;
        assert_eq!(frame(&four, b"x", 0)[40..42], [0, 0]);
        let mut six = flow("[fd00::1]:1", "[fd00::2]:2");
        six.checksum = false;
        assert_ne!(frame(&six, b"x", 0)[60..62], [0, 0]);
    }

    #[test]
    fn what_is_no_flow_has_no_headers() {
        assert!(Headers::new(&flow("10.0.0.1:1", "[fd00::2]:2")).is_none());
        let mut flow = flow("10.0.0.1:1", "10.0.0.2:2");
        flow.hop_limit = 0;
        assert!(Headers::new(&flow).is_none());
    }

    #[test]
    fn only_frames_from_the_endpoint_may_leave() {
        let endpoint = Endpoint {
            network: "n".into(),
            mac: [2, 0, 0, 0, 0, 1],
            addresses: vec![
                ("10.0.0.1".parse().unwrap(), 24),
                ("fd00::1".parse().unwrap(), 64),
            ],
            mtu: 1450,
            vlans: vec![100],
        };
        let four = frame(&flow("10.0.0.1:1", "10.0.0.2:2"), b"x", 0);
        assert!(may_leave(&four, &endpoint));
        assert!(may_leave(
            &frame(&flow("[fd00::1]:1", "[fd00::2]:2"), b"x", 0),
            &endpoint
        ));
        assert!(!may_leave(
            &frame(&flow("10.0.0.9:1", "10.0.0.2:2"), b"x", 0),
            &endpoint
        ));
        for (at, byte, what) in [
            (11, 9, "a foreign station"),
            (12, 0, "a length"),
            (13, 6, "ARP"),
            (14, 0x65, "no IPv4"),
        ] {
            let mut bad = four.clone();
            bad[at] = byte;
            assert!(!may_leave(&bad, &endpoint), "{what}");
        }
        let mut other = four.clone();
        other[12..14].copy_from_slice(&[0x88, 0xf7]);
        assert!(may_leave(&other, &endpoint), "PTP");
        other[12..14].copy_from_slice(&[0x81, 0x00]);
        assert!(!may_leave(&other, &endpoint), "a tag");
        let tagged = |kind: [u8; 2], id: u8, frame: &[u8]| {
            [&frame[..12], &kind, &[0xa0, id], &frame[12..]].concat()
        };
        assert!(may_leave(&tagged([0x81, 0], 100, &four), &endpoint));
        assert!(!may_leave(&tagged([0x81, 0], 101, &four), &endpoint));
        assert!(!may_leave(&tagged([0x88, 0xa8], 100, &four), &endpoint));
        let twice = tagged([0x81, 0], 100, &tagged([0x81, 0], 100, &four));
        assert!(!may_leave(&twice, &endpoint));
        let mut foreign = tagged([0x81, 0], 100, &four);
        foreign[18 + 15] ^= 1;
        assert!(!may_leave(&foreign, &endpoint), "a foreign address");
        assert!(!may_leave(&tagged([0x81, 0], 100, &four)[..17], &endpoint));
        assert!(!may_leave(&four[..13], &endpoint));
    }

    proptest! {
        #[test]
        fn every_frame_is_intact(
            payload in vec(any::<u8>(), 0..1500), six: bool, octet: u8, limit in 1u8.., identification: u16,
            ports: (u16, u16),
        ) {
            let mut flow = if six { flow("[fd00::1]:0", "[fd00::2]:0") } else { flow("10.0.0.1:0", "10.0.0.2:0") };
            flow.source.set_port(ports.0);
            flow.destination.set_port(ports.1);
            (flow.traffic_octet, flow.hop_limit) = (octet, limit);
            let frame = frame(&flow, &payload, identification);
            let datagram = parse_udp_frame(&frame, true).expect("a datagram");
            prop_assert_eq!(datagram.payload, &payload[..]);
            prop_assert_eq!((datagram.src, datagram.dst), (flow.source, flow.destination));
        }
    }
}
