//! UDP (RFC 768) over IPv4 and IPv6.
//!
//! A checksum of zero says that there is none. That is allowed over IPv4 and refused over IPv6
//! (RFC 8200, section 8.1); the exception for tunnels of RFC 6935 is not made.

use crate::checksum::PartialSum;
use crate::ip::{Addresses, Protocol};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// Why a datagram is refused, on either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The datagram is shorter than its header.
    #[error("{0} bytes are left for a UDP header of {HEADER_LEN}")]
    Truncated(usize),
    /// The length field is below that of the header or beyond the IP payload.
    #[error("UDP length {length} outside {HEADER_LEN} to the {available} bytes of its packet")]
    Length {
        /// The announced length in bytes, header included.
        length: usize,
        /// Bytes of the IP payload.
        available: usize,
    },
    /// The checksum does not hold.
    #[error("UDP checksum {0:#06x} does not hold")]
    Checksum(u16),
    /// The checksum is missing where it must not be.
    #[error("UDP over IPv6 without a checksum, RFC 8200 section 8.1 demands one")]
    NoChecksum,
    /// The datagram to be sent is longer than the format can say.
    #[error("{0} bytes do not fit a UDP datagram of at most 65535")]
    TooLong(usize),
}

/// A view of bytes as a UDP datagram. Bytes behind its announced length are not part of it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<T: AsRef<[u8]>> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Takes bytes whose length field is right.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Length`].
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Error> {
        let b = buffer.as_ref();
        if b.len() < HEADER_LEN {
            return Err(Error::Truncated(b.len()));
        }
        let (length, available) = (usize::from(u16::from_be_bytes([b[4], b[5]])), b.len());
        if length < HEADER_LEN || length > available {
            return Err(Error::Length { length, available });
        }
        Ok(Self { buffer })
    }

    #[inline]
    fn word(&self, at: usize) -> u16 {
        let b = self.buffer.as_ref();
        u16::from_be_bytes([b[at], b[at + 1]])
    }

    /// The sender's port; 0 if it expects no answer.
    #[inline]
    pub fn source_port(&self) -> u16 {
        self.word(0)
    }

    /// The receiver's port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        self.word(2)
    }

    /// Bytes of the datagram, its header included.
    #[inline]
    pub fn total_len(&self) -> usize {
        usize::from(self.word(4))
    }

    /// The checksum; 0 if there is none.
    #[inline]
    pub fn checksum(&self) -> u16 {
        self.word(6)
    }

    /// The bytes behind the header, up to the announced length.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[HEADER_LEN..self.total_len()]
    }

    /// Verifies the checksum against the addresses of the packet that carries the datagram.
    ///
    /// # Errors
    /// [`Error::Checksum`], [`Error::NoChecksum`].
    #[inline]
    pub fn verify(&self, addresses: &Addresses) -> Result<(), Error> {
        let checksum = self.checksum();
        if checksum == 0 {
            return match addresses {
                Addresses::V4 { .. } => Ok(()),
                Addresses::V6 { .. } => Err(Error::NoChecksum),
            };
        }
        let sum = addresses
            .pseudo_header(Protocol::UDP)
            .plus(PartialSum::of_word(self.word(4)))
            .plus(PartialSum::of(&self.buffer.as_ref()[..self.total_len()]));
        if sum.is_intact() {
            Ok(())
        } else {
            Err(Error::Checksum(checksum))
        }
    }
}

/// A UDP header, short of length and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// The sender's port; 0 if it expects no answer.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
}

impl Repr {
    /// Reads the header of a datagram and verifies its checksum.
    ///
    /// # Errors
    /// As [`Packet::verify`].
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>, addresses: &Addresses) -> Result<Self, Error> {
        packet.verify(addresses)?;
        Ok(Self {
            source_port: packet.source_port(),
            destination_port: packet.destination_port(),
        })
    }

    /// Writes the header, checksum included, in front of the payload that `datagram` holds from
    /// [`HEADER_LEN`] to its end.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::TooLong`]; nothing is written.
    pub fn emit(&self, datagram: &mut [u8], addresses: &Addresses) -> Result<(), Error> {
        let len = datagram.len();
        let length = u16::try_from(len).map_err(|_| Error::TooLong(len))?;
        let (header, payload) = datagram
            .split_first_chunk_mut::<HEADER_LEN>()
            .ok_or(Error::Truncated(len))?;
        self.emit_header(length, header);
        let sum = addresses
            .pseudo_header(Protocol::UDP)
            .plus(PartialSum::of_word(length))
            .plus(PartialSum::of(header))
            .plus(PartialSum::of(payload));
        header[6..8].copy_from_slice(&checksum_field(sum).to_be_bytes());
        Ok(())
    }

    /// Writes the header of a datagram of `length` bytes without a checksum.
    pub(crate) fn emit_header(&self, length: u16, header: &mut [u8; HEADER_LEN]) {
        header[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        header[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        header[4..6].copy_from_slice(&length.to_be_bytes());
        header[6..8].fill(0);
    }
}

/// The checksum field for a sum over pseudo header, header and payload: a result of zero is sent as
/// all ones, its other form, because zero means "no checksum" (RFC 768).
#[inline]
pub(crate) const fn checksum_field(sum: PartialSum) -> u16 {
    match sum.checksum() {
        0 => 0xffff,
        checksum => checksum,
    }
}
