//! VXLAN (RFC 7348, section 5): Ethernet frames of a virtual network inside UDP.

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// The UDP port of VXLAN, as registered with IANA.
pub const UDP_PORT: u16 = 4789;

/// The flag that says that the network identifier is valid.
const VALID_NETWORK: u8 = 0x08;

/// Why a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The packet is shorter than its header.
    #[error("{0} bytes are left for a VXLAN header of {HEADER_LEN}")]
    Truncated(usize),
    /// The flag that must be set is not.
    #[error("VXLAN flags {0:#04x} lack 0x08, the mark of a valid network identifier")]
    NoNetwork(u8),
}

/// A VXLAN network identifier: 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct NetworkId(u32);

impl NetworkId {
    /// The network `value`, or `None` if it takes more than 24 bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value < 1 << 24 {
            Some(Self(value))
        } else {
            None
        }
    }

    /// Its value, below 2^24.
    #[inline]
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// A view of a UDP payload as a VXLAN packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<T: AsRef<[u8]>> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Takes bytes that hold at least a header.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Error> {
        match buffer.as_ref().len() {
            short @ ..HEADER_LEN => Err(Error::Truncated(short)),
            _ => Ok(Self { buffer }),
        }
    }

    /// The flags, of which only one is defined.
    #[inline]
    pub fn flags(&self) -> u8 {
        self.buffer.as_ref()[0]
    }

    /// The virtual network that the frame belongs to.
    #[inline]
    pub fn network(&self) -> NetworkId {
        let b = self.buffer.as_ref();
        NetworkId(u32::from_be_bytes([0, b[4], b[5], b[6]]))
    }

    /// The Ethernet frame inside.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[HEADER_LEN..]
    }
}

/// A VXLAN header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// The virtual network that the frame belongs to.
    pub network: NetworkId,
}

impl Repr {
    /// Reads the header of a packet. Reserved bits are ignored, as the RFC demands.
    ///
    /// # Errors
    /// [`Error::NoNetwork`].
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Result<Self, Error> {
        match packet.flags() {
            flags if flags & VALID_NETWORK == 0 => Err(Error::NoNetwork(flags)),
            _ => Ok(Self {
                network: packet.network(),
            }),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, header: &mut [u8; HEADER_LEN]) {
        header[0..4].copy_from_slice(&[VALID_NETWORK, 0, 0, 0]);
        header[4..8].copy_from_slice(&(self.network.0 << 8).to_be_bytes());
    }
}
