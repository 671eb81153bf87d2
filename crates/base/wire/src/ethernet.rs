//! Ethernet II frames (IEEE 802.3, clause 3.2, without preamble and frame check sequence).
//!
//! Tags are not looked into here: of a tagged frame, [`Packet::ether_type`] is the tag's protocol
//! identifier and the payload starts inside the tag; see [`vlan`](crate::vlan).

use std::fmt;

/// Bytes of the header: two addresses and the EtherType.
pub const HEADER_LEN: usize = 14;

/// Why a frame is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The frame is shorter than its header.
    #[error("frame of {0} bytes is shorter than an Ethernet header of {HEADER_LEN}")]
    Truncated(usize),
    /// The type field is a length: an IEEE 802.2 frame, not an Ethernet II frame.
    #[error("type field {0:#06x} is a length, an EtherType is at least 0x0600")]
    LengthField(u16),
}

/// A 48-bit MAC address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Whether it is one of the reserved group addresses of bridges (IEEE 802.1Q-2022, tables 8-1 to 8-3 and
    /// 10-1): frames to it control the link or its bridges, and a bridge never passes most of them on.
    pub const fn is_link_control(&self) -> bool {
        matches!(self.0, [0x01, 0x80, 0xc2, 0x00, 0x00, 0x00..=0x2f])
    }

    /// The address of every station.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// No address; what an ARP request has as its target.
    pub const ZERO: Self = Self([0; 6]);

    /// Whether it names a group of stations; the broadcast address does.
    #[inline]
    pub const fn is_multicast(&self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether it names every station.
    #[inline]
    pub fn is_broadcast(&self) -> bool {
        *self == Self::BROADCAST
    }

    /// Whether a station may send from it: neither a group nor zero.
    #[inline]
    pub fn is_unicast(&self) -> bool {
        !self.is_multicast() && *self != Self::ZERO
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Reads six pairs of hexadecimal digits with colons between them, as they are written.
impl std::str::FromStr for MacAddress {
    type Err = NoMacAddress;

    fn from_str(text: &str) -> Result<Self, NoMacAddress> {
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().ok_or(NoMacAddress)?;
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(NoMacAddress);
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| NoMacAddress)?;
        }
        match parts.next() {
            None => Ok(Self(octets)),
            Some(_) => Err(NoMacAddress),
        }
    }
}

/// A text is no MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no MAC address: write six pairs of hexadecimal digits as 02:00:00:00:00:01")]
pub struct NoMacAddress;

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What the payload of a frame is (IANA registry "IEEE 802 Numbers").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4, RFC 894.
    pub const IPV4: Self = Self(0x0800);
    /// ARP, RFC 826.
    pub const ARP: Self = Self(0x0806);
    /// A customer VLAN tag, IEEE 802.1Q-2022 clause 9.5.
    pub const VLAN: Self = Self(0x8100);
    /// IPv6, RFC 2464.
    pub const IPV6: Self = Self(0x86dd);
    /// A service VLAN tag, IEEE 802.1Q-2022 clause 9.5.
    pub const SERVICE_VLAN: Self = Self(0x88a8);

    /// MAC control, as PAUSE: IEEE 802.3 clause 31.
    pub const MAC_CONTROL: Self = Self(0x8808);
    /// Slow protocols, as LACP: IEEE 802.3 annex 57A.
    pub const SLOW: Self = Self(0x8809);
    /// EAP over LAN, IEEE 802.1X.
    pub const EAPOL: Self = Self(0x888e);
    /// LLDP, IEEE 802.1AB.
    pub const LLDP: Self = Self(0x88cc);
    /// MAC security, IEEE 802.1AE.
    pub const MACSEC: Self = Self(0x88e5);
    /// MVRP, IEEE 802.1Q-2022 clause 11.
    pub const MVRP: Self = Self(0x88f5);
    /// MMRP, IEEE 802.1Q-2022 clause 10.
    pub const MMRP: Self = Self(0x88f6);
    /// PTP and gPTP, IEEE 1588 annex F and IEEE 802.1AS.
    pub const PTP: Self = Self(0x88f7);
    /// Connectivity fault management, IEEE 802.1Q-2022 clause 20.
    pub const FAULT_MANAGEMENT: Self = Self(0x8902);

    /// Whether such frames are the link's own, or bridges': those that stand for other addresses (ARP), carry
    /// a tag, or control a link. Hosts of a network that bridges them are to send none. What has a length in
    /// the place of its type (below 0x0600, IEEE 802.3 clause 3.2.6) is: spanning trees are.
    pub const fn is_reserved(self) -> bool {
        match self {
            Self(..0x0600) | Self::ARP | Self::MAC_CONTROL | Self::SLOW | Self::EAPOL => true,
            Self::LLDP | Self::MACSEC | Self::MVRP | Self::MMRP | Self::PTP => true,
            Self::FAULT_MANAGEMENT => true,
            // Tags of old bridges, Cisco's and 802.1ah's.
            Self(0x9100 | 0x9200 | 0x9300 | 0x88e7 | 0x893f | 0x8926 | 0x2000..=0x2004) => true,
            _ => self.is_tag(),
        }
    }

    /// Whether a VLAN tag follows.
    #[inline]
    pub const fn is_tag(self) -> bool {
        matches!(self, Self::VLAN | Self::SERVICE_VLAN)
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// A view of bytes as an Ethernet frame.
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

    /// The station or group it is for.
    #[inline]
    pub fn destination(&self) -> MacAddress {
        let b = self.buffer.as_ref();
        MacAddress([b[0], b[1], b[2], b[3], b[4], b[5]])
    }

    /// The station that sent it.
    #[inline]
    pub fn source(&self) -> MacAddress {
        let b = self.buffer.as_ref();
        MacAddress([b[6], b[7], b[8], b[9], b[10], b[11]])
    }

    /// What the payload is.
    #[inline]
    pub fn ether_type(&self) -> EtherType {
        let b = self.buffer.as_ref();
        EtherType(u16::from_be_bytes([b[12], b[13]]))
    }

    /// All bytes behind the header, padding of short frames included.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[HEADER_LEN..]
    }
}

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// The station or group it is for.
    pub destination: MacAddress,
    /// The station that sends it.
    pub source: MacAddress,
    /// What the payload is.
    pub ether_type: EtherType,
}

impl Repr {
    /// Reads the header of a frame.
    ///
    /// # Errors
    /// [`Error::LengthField`] for IEEE 802.2 frames.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Result<Self, Error> {
        let ether_type = packet.ether_type();
        if ether_type.0 < 0x0600 {
            return Err(Error::LengthField(ether_type.0));
        }
        Ok(Self {
            destination: packet.destination(),
            source: packet.source(),
            ether_type,
        })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, header: &mut [u8; HEADER_LEN]) {
        header[0..6].copy_from_slice(&self.destination.0);
        header[6..12].copy_from_slice(&self.source.0);
        header[12..14].copy_from_slice(&self.ether_type.0.to_be_bytes());
    }
}
