//! Forwarding by this node as a router: what it does to a tenant's frame that is for another link (RFC 1812,
//! section 5.2; RFC 8200, section 3).
//!
//! A tenant sends such a frame to the address of its router, which is this host. What arrives at the far end is
//! what the host's kernel would have forwarded: from the address of the interface that it leaves by, to that
//! of the next hop, with one hop less. Which routes there are the control thread says, after the kernel's tables.

use std::net::IpAddr;

use takt_wire::ethernet::{self, EtherType, MacAddress};
use takt_wire::{ipv4, ipv6};

use super::network::Foreign;

/// Octets that tell the destination of a frame and of its packet: Ethernet's header and the longer of IP's.
pub const HEAD: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;
/// Where an IPv4 header has its hop limit and its checksum, and an IPv6 header its hop limit.
const IPV4_HOP_LIMIT: usize = 8;
const IPV4_CHECKSUM: std::ops::Range<usize> = 10..12;
const IPV6_HOP_LIMIT: usize = 7;

/// What becomes of a frame's header on its way through this router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The interface that the frame leaves by.
    pub source: MacAddress,
    /// The next router, or the destination.
    pub destination: MacAddress,
    /// Longest packet of the route.
    pub mtu: usize,
}

/// The address that a frame's packet is for, as its first octets say; `None`: it is no packet of IP.
pub fn destination(head: &[u8]) -> Option<IpAddr> {
    let ether_type = head.get(12..14)?.try_into().map(u16::from_be_bytes).ok()?;
    let address = |at: usize, octets: usize| head.get(ethernet::HEADER_LEN + at..)?.get(..octets);
    match EtherType(ether_type) {
        EtherType::IPV4 => {
            let octets: [u8; 4] = address(16, 4)?.try_into().ok()?;
            Some(octets.into())
        }
        EtherType::IPV6 => {
            let octets: [u8; 16] = address(24, 16)?.try_into().ok()?;
            Some(octets.into())
        }
        _ => None,
    }
}

impl Hop {
    /// Forwards a frame whose headers are well-formed.
    ///
    /// # Errors
    /// [`Foreign::Malformed`] where a router would answer by ICMP: no hop is left, or the packet is longer than
    /// its way carries.
    pub fn forward(&self, frame: &mut [u8]) -> Result<(), Foreign> {
        let (header, packet) = frame
            .split_at_mut_checked(ethernet::HEADER_LEN)
            .ok_or(Foreign::Malformed)?;
        if packet.len() > self.mtu {
            return Err(Foreign::Malformed);
        }
        let ether_type = EtherType(u16::from_be_bytes([header[12], header[13]]));
        match ether_type {
            EtherType::IPV4 => {
                ipv4::Packet::new_checked(&*packet).map_err(|_| Foreign::Malformed)?;
                let limit = packet[IPV4_HOP_LIMIT];
                if limit <= 1 {
                    return Err(Foreign::Malformed);
                }
                packet[IPV4_HOP_LIMIT] = limit - 1;
                // RFC 1624, equation 3: the word of hop limit and protocol is less by 0x100.
                let old = u16::from_be_bytes([packet[10], packet[11]]);
                let word = u16::from_be_bytes([limit, packet[9]]);
                let sum = u32::from(!old) + u32::from(!word) + u32::from(word - 0x100);
                let folded = (sum & 0xffff) + (sum >> 16);
                let folded = (folded & 0xffff) + (folded >> 16);
                packet[IPV4_CHECKSUM].copy_from_slice(&(!(folded as u16)).to_be_bytes());
            }
            EtherType::IPV6 => {
                ipv6::Packet::new_checked(&*packet).map_err(|_| Foreign::Malformed)?;
                if packet[IPV6_HOP_LIMIT] <= 1 {
                    return Err(Foreign::Malformed);
                }
                packet[IPV6_HOP_LIMIT] -= 1;
            }
            _ => return Err(Foreign::Kind),
        }
        header[..6].copy_from_slice(&self.destination.0);
        header[6..12].copy_from_slice(&self.source.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;
    use takt_wire::frame::{UdpFlow, UdpHeaderTemplate, parse_udp_frame};
    use takt_wire::ip::Dscp;

    use super::*;

    const HOP: Hop = Hop {
        source: MacAddress([2, 0, 0, 0, 0, 0x11]),
        destination: MacAddress([2, 0, 0, 0, 0, 0x22]),
        mtu: 1450,
    };

    fn frame(from: SocketAddr, to: SocketAddr, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
        let headers = UdpHeaderTemplate::new(&UdpFlow {
            src_mac: MacAddress([2, 0, 0, 0, 0, 1]),
            dst_mac: MacAddress([2, 0, 0, 0, 0, 2]),
            vlan: None,
            src: from,
            dst: to,
            dscp: Dscp::EXPEDITED,
            hop_limit,
        })
        .expect("a flow");
        let mut frame = vec![0; headers.header_len() + payload.len()];
        frame[headers.header_len()..].copy_from_slice(payload);
        let emitted = headers.emit(&mut frame, payload.len(), 7, true);
        emitted.expect("it fits");
        frame
    }

    proptest! {
        /// What leaves is the same datagram with one hop less, and intact.
        #[test]
        fn a_forwarded_frame_has_one_hop_less_and_an_intact_header(
            hops in 2u8..=255,
            addresses: (u32, u32),
            six: bool,
            payload in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let address = |number: u32| -> IpAddr {
                if six {
                    std::net::Ipv6Addr::from(0xfd00 << 112 | u128::from(number)).into()
                } else {
                    std::net::Ipv4Addr::from(number).into()
                }
            };
            let (from, to) = (address(addresses.0), address(addresses.1));
            let mut forwarded = frame((from, 5).into(), (to, 6).into(), hops, &payload);
            prop_assert_eq!(destination(&forwarded[..HEAD.min(forwarded.len())]), Some(to));
            let before = forwarded.clone();
            prop_assert_eq!(HOP.forward(&mut forwarded), Ok(()));
            prop_assert_eq!(&forwarded[..6], &HOP.destination.0);
            prop_assert_eq!(&forwarded[6..12], &HOP.source.0);
            let limit = if six { 14 + 7 } else { 14 + 8 };
            prop_assert_eq!(forwarded[limit], hops - 1);
            let parsed = parse_udp_frame(&forwarded, true).expect("intact");
            prop_assert_eq!(parsed.payload, &payload[..]);
            // Nothing else differs.
            for (at, (new, old)) in forwarded.iter().zip(&before).enumerate().skip(12) {
                prop_assert!(new == old || at == limit || (!six && (24..26).contains(&at)), "octet {}", at);
            }
        }

        /// Whatever is offered makes nothing panic.
        #[test]
        fn nothing_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), kind in 0u8..3) {
            if kind > 0 && bytes.len() >= 14 {
                bytes[12..14].copy_from_slice(&[[8, 0], [0x86, 0xdd]][usize::from(kind) - 1]);
            }
            let _ = destination(&bytes);
            let _ = HOP.forward(&mut bytes);
        }
    }

    #[test]
    fn what_a_router_answers_by_icmp_is_refused() {
        let [from, to] = ["10.0.0.1:1", "10.0.1.1:2"].map(|a| a.parse().expect("an address"));
        let mut dying = frame(from, to, 1, b"x");
        assert_eq!(HOP.forward(&mut dying), Err(Foreign::Malformed));
        dying[14 + IPV4_HOP_LIMIT] = 0;
        assert_eq!(HOP.forward(&mut dying), Err(Foreign::Malformed));
        let mut long = frame(from, to, 64, &[0; 1450 - 27]);
        assert_eq!(HOP.forward(&mut long), Err(Foreign::Malformed));
        let mut fits = frame(from, to, 64, &[0; 1450 - 28]);
        assert_eq!(HOP.forward(&mut fits), Ok(()));
    }
}
