//! Whole Ethernet frames with UDP in them: what a datapath that owns the network interface sends
//! and receives on its hot path.
//!
//! Sending: a [`UdpFlow`] becomes a [`UdpHeaderTemplate`] once, and each frame copies its bytes and
//! completes lengths and checksums. Receiving: [`parse_udp_frame`] goes from the frame to the UDP
//! payload in one step. Other packets are for the formats' own modules.

use std::net::{IpAddr, SocketAddr};

use crate::checksum::PartialSum;
use crate::ethernet::{self, EtherType, MacAddress};
use crate::ip::{Addresses, Dscp, Protocol};
use crate::udp::checksum_field;
use crate::vlan::{self, VlanTag, VlanTags};
use crate::{ipv4, ipv6, udp};

/// Bytes of the longest header of a template: Ethernet, one tag, IPv6 and UDP.
pub const MAX_HEADER_LEN: usize =
    ethernet::HEADER_LEN + vlan::TAG_LEN + ipv6::HEADER_LEN + udp::HEADER_LEN;

/// Everything that the headers of one sender's frames to one receiver have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpFlow {
    /// The sending interface.
    pub src_mac: MacAddress,
    /// The next hop.
    pub dst_mac: MacAddress,
    /// The tag, if frames are to carry one.
    pub vlan: Option<VlanTag>,
    /// The sender. Flow label and scope of IPv6 are not used.
    pub src: SocketAddr,
    /// The receiver, of the same address family.
    pub dst: SocketAddr,
    /// How the packets wish to be treated.
    pub dscp: Dscp,
    /// How many hops they may take, at least 1.
    pub hop_limit: u8,
}

/// Why a flow has no headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// One address is IPv4 and the other IPv6.
    #[error("{src} and {dst} are of different address families")]
    AddressFamily {
        /// The sender.
        src: IpAddr,
        /// The receiver.
        dst: IpAddr,
    },
    /// A packet that may take no hop must not be sent (RFC 1122, section 3.2.1.7).
    #[error("hop limit 0, it must be at least 1")]
    HopLimit,
}

/// The headers of a flow's frames, computed but for what differs from frame to frame.
///
/// IPv4 packets forbid fragmentation. IPv6 packets have flow label 0.
#[derive(Clone, Copy, Debug)]
pub struct UdpHeaderTemplate {
    /// The headers, with zero for all that [`emit`](Self::emit) completes.
    bytes: [u8; MAX_HEADER_LEN],
    /// How many of `bytes` there are: one of four sums of header lengths.
    len: u8,
    version: IpVersion,
    /// Sum over the pseudo header without length, and the ports.
    udp_sum: PartialSum,
}

#[derive(Clone, Copy, Debug)]
enum IpVersion {
    /// With the sum over the header without total length, identification and checksum.
    V4(PartialSum),
    V6,
}

impl UdpHeaderTemplate {
    /// Computes the headers of a flow.
    ///
    /// # Errors
    /// [`FlowError`].
    pub fn new(flow: &UdpFlow) -> Result<Self, FlowError> {
        let (src, dst) = (flow.src.ip(), flow.dst.ip());
        let addresses = Addresses::new(src, dst).ok_or(FlowError::AddressFamily { src, dst })?;
        if flow.hop_limit == 0 {
            return Err(FlowError::HopLimit);
        }
        let mut bytes = [0; MAX_HEADER_LEN];
        let mut len = 0;
        let ip_type = match addresses {
            Addresses::V4 { .. } => EtherType::IPV4,
            Addresses::V6 { .. } => EtherType::IPV6,
        };
        let mut link = ethernet::Repr {
            destination: flow.dst_mac,
            source: flow.src_mac,
            ether_type: ip_type,
        };
        if let Some(tag) = flow.vlan {
            link.ether_type = EtherType::VLAN;
            tag.emit(ip_type, part(&mut bytes, ethernet::HEADER_LEN));
            len += vlan::TAG_LEN;
        }
        link.emit(part(&mut bytes, 0));
        len += ethernet::HEADER_LEN;
        let (dscp, hop_limit, protocol) = (flow.dscp, flow.hop_limit, Protocol::UDP);
        let version = match addresses {
            Addresses::V4 {
                source,
                destination,
            } => {
                let header = part::<{ ipv4::HEADER_LEN }>(&mut bytes, len);
                let (identification, dont_fragment) = (0, true);
                let packet = ipv4::Repr {
                    source,
                    destination,
                    protocol,
                    dscp,
                    hop_limit,
                    identification,
                    dont_fragment,
                };
                packet.emit_header(0, header);
                header[10..12].fill(0);
                len += header.len();
                IpVersion::V4(PartialSum::of(header))
            }
            Addresses::V6 {
                source,
                destination,
            } => {
                let header = part::<{ ipv6::HEADER_LEN }>(&mut bytes, len);
                let packet = ipv6::Repr {
                    source,
                    destination,
                    protocol,
                    dscp,
                    hop_limit,
                };
                packet.emit_header(0, header);
                len += header.len();
                IpVersion::V6
            }
        };
        let header = part::<{ udp::HEADER_LEN }>(&mut bytes, len);
        let ports = udp::Repr {
            source_port: flow.src.port(),
            destination_port: flow.dst.port(),
        };
        ports.emit_header(0, header);
        len += header.len();
        let udp_sum = addresses
            .pseudo_header(protocol)
            .plus(PartialSum::of(header));
        Ok(Self {
            bytes,
            len: len as u8,
            version,
            udp_sum,
        })
    }

    /// Bytes of all headers: where the payload belongs in the frame.
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.len as usize
    }

    /// Writes the headers in front of a payload that `frame` holds at
    /// [`header_len`](Self::header_len), and returns the length of the frame in bytes.
    ///
    /// `identification` is used by IPv4 only. Without `with_checksum` IPv4 datagrams have no UDP
    /// checksum; those of IPv6 always have one (RFC 8200, section 8.1).
    ///
    /// `None`, with nothing written, if `frame` is shorter than headers and payload, or if the
    /// payload is longer than a UDP datagram's: 65507 bytes over IPv4, 65527 over IPv6.
    #[inline]
    #[must_use]
    pub fn emit(
        &self,
        frame: &mut [u8],
        payload_len: usize,
        identification: u16,
        with_checksum: bool,
    ) -> Option<usize> {
        let header_len = self.header_len();
        let udp_len = u16::try_from(payload_len.checked_add(udp::HEADER_LEN)?).ok()?;
        let frame_len = header_len + payload_len;
        let (headers, payload) = frame
            .get_mut(..frame_len)?
            .split_at_mut_checked(header_len)?;
        match self.version {
            IpVersion::V4(sum) => {
                let total = udp_len.checked_add(ipv4::HEADER_LEN as u16)?;
                headers.copy_from_slice(self.bytes.get(..header_len)?);
                let header = headers.get_mut(header_len - udp::HEADER_LEN - ipv4::HEADER_LEN..)?;
                let header = header.first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
                let checksum = sum
                    .plus(PartialSum::of_word(total))
                    .plus(PartialSum::of_word(identification))
                    .checksum();
                header[2..4].copy_from_slice(&total.to_be_bytes());
                header[4..6].copy_from_slice(&identification.to_be_bytes());
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            IpVersion::V6 => {
                headers.copy_from_slice(self.bytes.get(..header_len)?);
                let header = headers.get_mut(header_len - udp::HEADER_LEN - ipv6::HEADER_LEN..)?;
                let header = header.first_chunk_mut::<{ ipv6::HEADER_LEN }>()?;
                header[4..6].copy_from_slice(&udp_len.to_be_bytes());
            }
        }
        let header = headers.last_chunk_mut::<{ udp::HEADER_LEN }>()?;
        header[4..6].copy_from_slice(&udp_len.to_be_bytes());
        if with_checksum || matches!(self.version, IpVersion::V6) {
            // The length is summed twice: in the pseudo header and in the header proper.
            let sum = self
                .udp_sum
                .plus(PartialSum::of_word(udp_len))
                .plus(PartialSum::of_word(udp_len))
                .plus(PartialSum::of(payload));
            header[6..8].copy_from_slice(&checksum_field(sum).to_be_bytes());
        }
        Some(frame_len)
    }
}

/// The `N` bytes of a template from `at` on; the template is as long as the headers together.
fn part<const N: usize>(bytes: &mut [u8; MAX_HEADER_LEN], at: usize) -> &mut [u8; N] {
    bytes[at..]
        .first_chunk_mut()
        .expect("a template has room for all its headers")
}

/// A UDP datagram as found in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpDatagram<'a> {
    /// The sender.
    pub src: SocketAddr,
    /// The receiver.
    pub dst: SocketAddr,
    /// The tags of the frame.
    pub vlan: VlanTags,
    /// The datagram's content, without the padding of short frames.
    pub payload: &'a [u8],
}

/// Why a frame holds no UDP datagram for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The Ethernet header is bad.
    #[error(transparent)]
    Ethernet(#[from] ethernet::Error),
    /// The VLAN tags are bad.
    #[error(transparent)]
    Vlan(#[from] vlan::Error),
    /// The frame carries neither IPv4 nor IPv6: valid, but nothing for UDP.
    #[error("EtherType {0} is neither IPv4 nor IPv6")]
    NotIp(EtherType),
    /// The IPv4 header is bad, or the packet is a fragment.
    #[error(transparent)]
    Ipv4(#[from] ipv4::Error),
    /// The IPv6 header is bad, or has extension headers.
    #[error(transparent)]
    Ipv6(#[from] ipv6::Error),
    /// The packet does not carry UDP: valid, but nothing for us.
    #[error("IP protocol {0} is not UDP")]
    NotUdp(Protocol),
    /// The UDP header or checksum is bad.
    #[error(transparent)]
    Udp(#[from] udp::Error),
}

/// Finds the UDP datagram in an Ethernet frame: IPv4 or IPv6, behind up to two VLAN tags.
///
/// The IPv4 header checksum is always verified. The UDP checksum is if `verify_checksum` says so:
/// not to do it is right if the interface has done it, or if the frame comes from the same machine
/// over a virtual link, whose senders leave the checksum unfinished. An IPv6 datagram without a
/// checksum is refused in any case.
///
/// # Errors
/// [`FrameError`] says which header is at fault and why.
#[inline]
pub fn parse_udp_frame(frame: &[u8], verify_checksum: bool) -> Result<UdpDatagram<'_>, FrameError> {
    let Some((header, payload)) = frame.split_first_chunk::<{ ethernet::HEADER_LEN }>() else {
        return Err(ethernet::Error::Truncated(frame.len()).into());
    };
    let link = ethernet::Repr::parse(&ethernet::Packet::new_checked(header)?)?;
    let (vlan, ether_type, packet) = vlan::parse(link.ether_type, payload)?;
    let (addresses, protocol, datagram) = match ether_type {
        EtherType::IPV4 => {
            let view = ipv4::Packet::new_checked(packet)?;
            let ipv4::Repr {
                source,
                destination,
                protocol,
                ..
            } = ipv4::Repr::parse(&view)?;
            let payload = &packet[view.header_len()..view.total_len()];
            (
                Addresses::V4 {
                    source,
                    destination,
                },
                protocol,
                payload,
            )
        }
        EtherType::IPV6 => {
            let view = ipv6::Packet::new_checked(packet)?;
            let ipv6::Repr {
                source,
                destination,
                protocol,
                ..
            } = ipv6::Repr::parse(&view)?;
            let payload = &packet[ipv6::HEADER_LEN..ipv6::HEADER_LEN + view.payload_len()];
            (
                Addresses::V6 {
                    source,
                    destination,
                },
                protocol,
                payload,
            )
        }
        other => return Err(FrameError::NotIp(other)),
    };
    if protocol != Protocol::UDP {
        return Err(FrameError::NotUdp(protocol));
    }
    let view = udp::Packet::new_checked(datagram)?;
    if verify_checksum {
        view.verify(&addresses)?;
    } else if view.checksum() == 0 && matches!(addresses, Addresses::V6 { .. }) {
        return Err(udp::Error::NoChecksum.into());
    }
    let (src, dst) = addresses.with_ports(view.source_port(), view.destination_port());
    Ok(UdpDatagram {
        src,
        dst,
        vlan,
        payload: &datagram[udp::HEADER_LEN..view.total_len()],
    })
}
