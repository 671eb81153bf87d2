//! IPv6 headers (RFC 8200, section 3). Packets with extension headers are refused.

use std::net::Ipv6Addr;

use crate::ip::{Dscp, Protocol};

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

/// Why a packet is refused, on either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The packet is shorter than its header.
    #[error("{0} bytes are left for an IPv6 header of {HEADER_LEN}")]
    Truncated(usize),
    /// The version field is not 6.
    #[error("IP version {0} in an IPv6 packet")]
    Version(u8),
    /// The packet announces more payload than there is.
    #[error("IPv6 payload of {payload} bytes in {available}")]
    PayloadLength {
        /// The announced length of the payload in bytes.
        payload: usize,
        /// Bytes behind the header.
        available: usize,
    },
    /// An extension header follows; a fragment is one of them (44).
    #[error("IPv6 extension header {0} is not supported, the payload must follow the fixed header")]
    UnsupportedNextHeader(Protocol),
    /// The payload to be sent is longer than the format can say.
    #[error("{0} bytes do not fit the payload of an IPv6 packet of at most 65535")]
    TooLong(usize),
}

/// Whether the number names an extension header (IANA registry "IPv6 Extension Header Types").
const fn is_extension(next_header: Protocol) -> bool {
    matches!(
        next_header.0,
        0 | 43 | 44 | 50 | 51 | 60 | 135 | 139 | 140 | 253 | 254
    )
}

/// A view of bytes as an IPv6 packet. Bytes behind the packet's announced length, such as the
/// padding of short Ethernet frames, are not part of it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<T: AsRef<[u8]>> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Takes bytes whose version and lengths are right.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Version`], [`Error::PayloadLength`].
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Error> {
        let b = buffer.as_ref();
        if b.len() < HEADER_LEN {
            return Err(Error::Truncated(b.len()));
        }
        if b[0] >> 4 != 6 {
            return Err(Error::Version(b[0] >> 4));
        }
        let payload = usize::from(u16::from_be_bytes([b[4], b[5]]));
        let available = b.len() - HEADER_LEN;
        if payload > available {
            return Err(Error::PayloadLength { payload, available });
        }
        Ok(Self { buffer })
    }

    #[inline]
    fn address(&self, at: usize) -> Ipv6Addr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&self.buffer.as_ref()[at..at + 16]);
        Ipv6Addr::from(octets)
    }

    /// How the packet wishes to be treated.
    #[inline]
    pub fn dscp(&self) -> Dscp {
        let b = self.buffer.as_ref();
        Dscp::from_octet(b[0] << 4 | b[1] >> 4)
    }

    /// The flow label, 20 bits (RFC 6437).
    #[inline]
    pub fn flow_label(&self) -> u32 {
        let b = self.buffer.as_ref();
        u32::from_be_bytes([0, b[1] & 15, b[2], b[3]])
    }

    /// Bytes of the payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        let b = self.buffer.as_ref();
        usize::from(u16::from_be_bytes([b[4], b[5]]))
    }

    /// What the payload is; possibly an extension header.
    #[inline]
    pub fn next_header(&self) -> Protocol {
        Protocol(self.buffer.as_ref()[6])
    }

    /// How many more hops the packet may take.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.buffer.as_ref()[7]
    }

    /// Who sent it.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        self.address(8)
    }

    /// Whom it is for.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        self.address(24)
    }

    /// The bytes behind the fixed header, up to the announced length.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[HEADER_LEN..HEADER_LEN + self.payload_len()]
    }
}

/// The header of a packet without extension headers. ECN bits and flow label are not kept, and
/// written as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// Who sends it.
    pub source: Ipv6Addr,
    /// Whom it is for.
    pub destination: Ipv6Addr,
    /// What the payload is; never an extension header.
    pub protocol: Protocol,
    /// How the packet wishes to be treated.
    pub dscp: Dscp,
    /// How many hops it may take.
    pub hop_limit: u8,
}

impl Repr {
    /// Reads the header of a packet.
    ///
    /// # Errors
    /// [`Error::UnsupportedNextHeader`].
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Result<Self, Error> {
        let protocol = packet.next_header();
        if is_extension(protocol) {
            return Err(Error::UnsupportedNextHeader(protocol));
        }
        Ok(Self {
            source: packet.source(),
            destination: packet.destination(),
            protocol,
            dscp: packet.dscp(),
            hop_limit: packet.hop_limit(),
        })
    }

    /// Writes the header in front of the payload that `packet` holds from [`HEADER_LEN`] to its end.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::TooLong`], and [`Error::UnsupportedNextHeader`] if `protocol`
    /// is an extension header; nothing is written.
    pub fn emit(&self, packet: &mut [u8]) -> Result<(), Error> {
        if is_extension(self.protocol) {
            return Err(Error::UnsupportedNextHeader(self.protocol));
        }
        let len = packet.len();
        let (header, payload) = packet
            .split_first_chunk_mut::<HEADER_LEN>()
            .ok_or(Error::Truncated(len))?;
        let payload_len =
            u16::try_from(payload.len()).map_err(|_| Error::TooLong(payload.len()))?;
        self.emit_header(payload_len, header);
        Ok(())
    }

    /// Writes the header of a packet with `payload_len` bytes behind the header.
    pub(crate) fn emit_header(&self, payload_len: u16, header: &mut [u8; HEADER_LEN]) {
        let traffic_class = u32::from(self.dscp.to_octet());
        header[0..4].copy_from_slice(&(6 << 28 | traffic_class << 20).to_be_bytes());
        header[4..6].copy_from_slice(&payload_len.to_be_bytes());
        header[6] = self.protocol.0;
        header[7] = self.hop_limit;
        header[8..24].copy_from_slice(&self.source.octets());
        header[24..40].copy_from_slice(&self.destination.octets());
    }
}
