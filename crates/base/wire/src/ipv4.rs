//! IPv4 headers (RFC 791). Options are skipped; fragments are recognised and refused.

use std::net::Ipv4Addr;

use crate::checksum::PartialSum;
use crate::ip::{Dscp, Protocol};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// The "don't fragment" flag among flags and fragment offset.
const DONT_FRAGMENT: u16 = 0x4000;
/// The "more fragments" flag and the fragment offset.
const FRAGMENT: u16 = 0x3fff;

/// Why a packet is refused, on either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The packet is shorter than a header.
    #[error("{0} bytes are left for an IPv4 header of {HEADER_LEN}")]
    Truncated(usize),
    /// The version field is not 4.
    #[error("IP version {0} in an IPv4 packet")]
    Version(u8),
    /// The header length is below 20 bytes or beyond the packet's length.
    #[error("IPv4 header length {header} outside {HEADER_LEN} to the packet's {total} bytes")]
    HeaderLength {
        /// The header's announced length in bytes.
        header: usize,
        /// The packet's announced length in bytes.
        total: usize,
    },
    /// The packet announces more bytes than there are.
    #[error("IPv4 packet of {total} bytes in {available}")]
    TotalLength {
        /// The packet's announced length in bytes.
        total: usize,
        /// Bytes at hand.
        available: usize,
    },
    /// The header checksum does not hold.
    #[error("IPv4 header checksum {0:#06x} does not hold")]
    Checksum(u16),
    /// The packet is a fragment. Takt sends none (RFC 8900 says why) and reassembles none.
    #[error("IPv4 fragment (flags and offset {0:#06x}) where whole packets are due")]
    Fragment(u16),
    /// The packet to be sent is longer than the format can say.
    #[error("{0} bytes do not fit an IPv4 packet of at most 65535")]
    TooLong(usize),
}

/// A view of bytes as an IPv4 packet. Bytes behind the packet's announced length, such as the
/// padding of short Ethernet frames, are not part of it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<T: AsRef<[u8]>> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Takes bytes whose version and lengths are right.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Version`], [`Error::HeaderLength`], [`Error::TotalLength`].
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Error> {
        let b = buffer.as_ref();
        if b.len() < HEADER_LEN {
            return Err(Error::Truncated(b.len()));
        }
        if b[0] >> 4 != 4 {
            return Err(Error::Version(b[0] >> 4));
        }
        let (header, available) = (usize::from(b[0] & 15) * 4, b.len());
        let total = usize::from(u16::from_be_bytes([b[2], b[3]]));
        if header < HEADER_LEN || header > total {
            return Err(Error::HeaderLength { header, total });
        }
        if total > available {
            return Err(Error::TotalLength { total, available });
        }
        Ok(Self { buffer })
    }

    #[inline]
    fn word(&self, at: usize) -> u16 {
        let b = self.buffer.as_ref();
        u16::from_be_bytes([b[at], b[at + 1]])
    }

    #[inline]
    fn address(&self, at: usize) -> Ipv4Addr {
        let b = self.buffer.as_ref();
        Ipv4Addr::new(b[at], b[at + 1], b[at + 2], b[at + 3])
    }

    /// Bytes of the header, options included.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.buffer.as_ref()[0] & 15) * 4
    }

    /// Bytes of the packet, its header included.
    #[inline]
    pub fn total_len(&self) -> usize {
        usize::from(self.word(2))
    }

    /// How the packet wishes to be treated.
    #[inline]
    pub fn dscp(&self) -> Dscp {
        Dscp::from_octet(self.buffer.as_ref()[1])
    }

    /// Which packet a fragment belongs to.
    #[inline]
    pub fn identification(&self) -> u16 {
        self.word(4)
    }

    /// Whether routers must not fragment the packet.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.word(6) & DONT_FRAGMENT != 0
    }

    /// Whether the packet is a part of a larger one: not the first, or not the last.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.word(6) & FRAGMENT != 0
    }

    /// How many more hops the packet may take.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.buffer.as_ref()[8]
    }

    /// What the payload is.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        Protocol(self.buffer.as_ref()[9])
    }

    /// The checksum of the header.
    #[inline]
    pub fn checksum(&self) -> u16 {
        self.word(10)
    }

    /// Who sent it.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        self.address(12)
    }

    /// Whom it is for.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        self.address(16)
    }

    /// Whether the header is as its checksum says.
    #[inline]
    pub fn header_is_intact(&self) -> bool {
        PartialSum::of(&self.buffer.as_ref()[..self.header_len()]).is_intact()
    }

    /// The bytes behind header and options, up to the announced length.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[self.header_len()..self.total_len()]
    }
}

/// The header of a whole packet without options. ECN bits are not kept, and written as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// Who sends it.
    pub source: Ipv4Addr,
    /// Whom it is for.
    pub destination: Ipv4Addr,
    /// What the payload is.
    pub protocol: Protocol,
    /// How the packet wishes to be treated.
    pub dscp: Dscp,
    /// How many hops it may take.
    pub hop_limit: u8,
    /// Which packet its fragments belong to; free to choose where fragments are forbidden (RFC 6864).
    pub identification: u16,
    /// Whether routers must not fragment it.
    pub dont_fragment: bool,
}

impl Repr {
    /// Reads the header of a packet and verifies its checksum.
    ///
    /// # Errors
    /// [`Error::Checksum`], [`Error::Fragment`].
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Result<Self, Error> {
        if !packet.header_is_intact() {
            return Err(Error::Checksum(packet.checksum()));
        }
        if packet.is_fragment() {
            return Err(Error::Fragment(packet.word(6)));
        }
        Ok(Self {
            source: packet.source(),
            destination: packet.destination(),
            protocol: packet.protocol(),
            dscp: packet.dscp(),
            hop_limit: packet.hop_limit(),
            identification: packet.identification(),
            dont_fragment: packet.dont_fragment(),
        })
    }

    /// Writes the header, checksum included, in front of the payload that `packet` holds from
    /// [`HEADER_LEN`] to its end.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::TooLong`]; nothing is written.
    pub fn emit(&self, packet: &mut [u8]) -> Result<(), Error> {
        let len = packet.len();
        let total = u16::try_from(len).map_err(|_| Error::TooLong(len))?;
        let header = packet
            .first_chunk_mut::<HEADER_LEN>()
            .ok_or(Error::Truncated(len))?;
        self.emit_header(total, header);
        Ok(())
    }

    /// Writes the header of a packet of `total` bytes.
    pub(crate) fn emit_header(&self, total: u16, header: &mut [u8; HEADER_LEN]) {
        let flags = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        header[0] = 0x45;
        header[1] = self.dscp.to_octet();
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[4..6].copy_from_slice(&self.identification.to_be_bytes());
        header[6..8].copy_from_slice(&flags.to_be_bytes());
        header[8] = self.hop_limit;
        header[9] = self.protocol.0;
        header[10..12].fill(0);
        header[12..16].copy_from_slice(&self.source.octets());
        header[16..20].copy_from_slice(&self.destination.octets());
        let checksum = PartialSum::of(header).checksum();
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}
