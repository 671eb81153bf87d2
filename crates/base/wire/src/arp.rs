//! ARP for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use crate::ethernet::MacAddress;

/// Bytes of a packet.
pub const PACKET_LEN: usize = 28;

/// What the first six bytes of every packet say: Ethernet, IPv4, and the lengths of their addresses.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Why a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The packet is too short.
    #[error("{0} bytes are left for an ARP packet of {PACKET_LEN}")]
    Truncated(usize),
    /// The packet resolves other addresses than IPv4 ones to other ones than Ethernet's.
    #[error("ARP address types and lengths {0:02x?} are not those of IPv4 over Ethernet")]
    AddressTypes([u8; 6]),
    /// The operation is neither request nor reply.
    #[error("ARP operation {0} is neither request (1) nor reply (2)")]
    Operation(u16),
}

/// What a packet wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Operation {
    /// Who has the target's IP address?
    Request = 1,
    /// The sender has.
    Reply = 2,
}

/// A view of bytes as an ARP packet. Bytes behind it, the padding of its frame, are not part of it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<T: AsRef<[u8]>> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Takes bytes that hold a packet of IPv4 over Ethernet.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::AddressTypes`].
    pub fn new_checked(buffer: T) -> Result<Self, Error> {
        let b = buffer.as_ref();
        let [t0, t1, t2, t3, t4, t5, ..] = *b
            .first_chunk::<PACKET_LEN>()
            .ok_or(Error::Truncated(b.len()))?;
        match [t0, t1, t2, t3, t4, t5] {
            ETHERNET_IPV4 => Ok(Self { buffer }),
            other => Err(Error::AddressTypes(other)),
        }
    }

    fn mac(&self, at: usize) -> MacAddress {
        let b = self.buffer.as_ref();
        MacAddress([b[at], b[at + 1], b[at + 2], b[at + 3], b[at + 4], b[at + 5]])
    }

    fn ip(&self, at: usize) -> Ipv4Addr {
        let b = self.buffer.as_ref();
        Ipv4Addr::new(b[at], b[at + 1], b[at + 2], b[at + 3])
    }

    /// What the packet wants, as a number.
    pub fn operation(&self) -> u16 {
        let b = self.buffer.as_ref();
        u16::from_be_bytes([b[6], b[7]])
    }

    /// The sender's hardware address.
    pub fn sender_mac(&self) -> MacAddress {
        self.mac(8)
    }

    /// The sender's IP address.
    pub fn sender_ip(&self) -> Ipv4Addr {
        self.ip(14)
    }

    /// The target's hardware address; without meaning in a request.
    pub fn target_mac(&self) -> MacAddress {
        self.mac(18)
    }

    /// The target's IP address.
    pub fn target_ip(&self) -> Ipv4Addr {
        self.ip(24)
    }
}

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// What it wants.
    pub operation: Operation,
    /// The sender's hardware address.
    pub sender_mac: MacAddress,
    /// The sender's IP address; 0.0.0.0 in a probe (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// The target's hardware address; without meaning in a request.
    pub target_mac: MacAddress,
    /// The target's IP address.
    pub target_ip: Ipv4Addr,
}

impl Repr {
    /// Reads a packet.
    ///
    /// # Errors
    /// [`Error::Operation`].
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Result<Self, Error> {
        let operation = match packet.operation() {
            1 => Operation::Request,
            2 => Operation::Reply,
            other => return Err(Error::Operation(other)),
        };
        Ok(Self {
            operation,
            sender_mac: packet.sender_mac(),
            sender_ip: packet.sender_ip(),
            target_mac: packet.target_mac(),
            target_ip: packet.target_ip(),
        })
    }

    /// Writes the packet.
    pub fn emit(&self, packet: &mut [u8; PACKET_LEN]) {
        packet[0..6].copy_from_slice(&ETHERNET_IPV4);
        packet[6..8].copy_from_slice(&(self.operation as u16).to_be_bytes());
        packet[8..14].copy_from_slice(&self.sender_mac.0);
        packet[14..18].copy_from_slice(&self.sender_ip.octets());
        packet[18..24].copy_from_slice(&self.target_mac.0);
        packet[24..28].copy_from_slice(&self.target_ip.octets());
    }
}
