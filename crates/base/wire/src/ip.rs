//! What IPv4 and IPv6 have in common: protocol numbers, differentiated services, pseudo headers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::checksum::PartialSum;

/// What the payload of an IP packet is (IANA registry "Protocol Numbers").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP, RFC 792.
    pub const ICMP: Self = Self(1);
    /// TCP, RFC 9293.
    pub const TCP: Self = Self(6);
    /// UDP, RFC 768.
    pub const UDP: Self = Self(17);
    /// ICMPv6, RFC 4443.
    pub const ICMPV6: Self = Self(58);
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A differentiated services code point (RFC 2474, section 3): six bits, the upper ones of the
/// traffic class octet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Dscp(u8);

impl Dscp {
    /// The default behaviour, RFC 2474 section 4.1.
    pub const BEST_EFFORT: Self = Self(0);
    /// Expedited forwarding, RFC 3246.
    pub const EXPEDITED: Self = Self(46);

    /// The code point `value`, or `None` above 63.
    pub const fn new(value: u8) -> Option<Self> {
        if value < 64 { Some(Self(value)) } else { None }
    }

    /// Its value, 0 to 63.
    #[inline]
    pub const fn value(self) -> u8 {
        self.0
    }

    /// The code point in a traffic class octet, whose lower two bits (ECN, RFC 3168) are not part of it.
    #[inline]
    pub const fn from_octet(octet: u8) -> Self {
        Self(octet >> 2)
    }

    /// The traffic class octet with this code point and no ECN.
    #[inline]
    pub const fn to_octet(self) -> u8 {
        self.0 << 2
    }
}

/// The two ends of a packet, of one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// Two IPv4 addresses.
    V4 {
        /// Who sends.
        source: Ipv4Addr,
        /// Who receives.
        destination: Ipv4Addr,
    },
    /// Two IPv6 addresses.
    V6 {
        /// Who sends.
        source: Ipv6Addr,
        /// Who receives.
        destination: Ipv6Addr,
    },
}

impl Addresses {
    /// The pair, or `None` if the two are of different families.
    #[inline]
    pub const fn new(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Self::V4 {
                source,
                destination,
            }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Self::V6 {
                source,
                destination,
            }),
            _ => None,
        }
    }

    /// Source and destination with their ports.
    #[inline]
    pub const fn with_ports(
        &self,
        source_port: u16,
        destination_port: u16,
    ) -> (SocketAddr, SocketAddr) {
        let (source, destination) = match *self {
            Self::V4 {
                source,
                destination,
            } => (IpAddr::V4(source), IpAddr::V4(destination)),
            Self::V6 {
                source,
                destination,
            } => (IpAddr::V6(source), IpAddr::V6(destination)),
        };
        (
            SocketAddr::new(source, source_port),
            SocketAddr::new(destination, destination_port),
        )
    }

    /// The sum over the pseudo header that checksums of upper layers cover, short of its length
    /// field (RFC 768 for IPv4, RFC 8200 section 8.1 for IPv6).
    #[inline]
    pub fn pseudo_header(&self, protocol: Protocol) -> PartialSum {
        let addresses = match self {
            Self::V4 {
                source,
                destination,
            } => PartialSum::of(&source.octets()).plus(PartialSum::of(&destination.octets())),
            Self::V6 {
                source,
                destination,
            } => PartialSum::of(&source.octets()).plus(PartialSum::of(&destination.octets())),
        };
        addresses.plus(PartialSum::of_word(u16::from(protocol.0)))
    }
}
