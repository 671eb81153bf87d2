//! The endpoint of a network that belongs to a tenant: what its frames must come from.

use std::net::IpAddr;

/// Most IP addresses of an endpoint.
pub const MOST_ADDRESSES: usize = 64;

/// Most VLANs of an endpoint.
pub const MOST_VLANS: usize = 64;

/// A tenant's place in a network. Frames leave the node with these addresses as their source, or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The network, by the name that the node's operator gave it.
    pub network: String,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its IP addresses with the lengths of their prefixes, [`MOST_ADDRESSES`] at most.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Most bytes of an IP packet, its header included.
    pub mtu: u16,
    /// Identifiers of VLANs whose tags (IEEE 802.1Q) its frames may have, [`MOST_VLANS`] at most; 0: tags with a priority alone.
    /// A tag counts as a part of the packet. Frames without a tag need none of them.
    pub vlans: Vec<u16>,
}
