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
    /// Its IP addresses with the lengths of their prefixes, [`MOST_ADDRESSES`] at most. `0.0.0.0/0` and `::/0` stand for all of
    /// their kind.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Most bytes of an IP packet, its header included.
    pub mtu: u16,
    /// Identifiers of VLANs whose tags (IEEE 802.1Q) its frames may have, [`MOST_VLANS`] at most; 0: tags with a priority alone.
    /// A tag counts as a part of the packet. Frames without a tag need none of them.
    pub vlans: Vec<u16>,
}

impl Endpoint {
    /// Whether its packets may have this source.
    pub fn is_source(&self, source: IpAddr) -> bool {
        is_source(&self.addresses, source)
    }
}

/// Whether one of an endpoint's [addresses](Endpoint::addresses) is the source of a packet, or stands for all of its kind.
pub fn is_source(addresses: &[(IpAddr, u8)], source: IpAddr) -> bool {
    let is = |(address, prefix): &(IpAddr, u8)| {
        let all = *prefix == 0 && address.is_unspecified();
        *address == source || (all && address.is_ipv4() == source.is_ipv4())
    };
    addresses.iter().any(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_itself_and_none_of_no_prefix_is_all_of_its_kind() {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let one = [(address("10.0.0.1"), 0), (address("0.0.0.0"), 8)];
        assert!(is_source(&one, address("10.0.0.1")));
        for other in ["10.0.0.2", "::1"] {
            assert!(!is_source(&one, address(other)), "{other}");
        }
        let all = [(address("0.0.0.0"), 0)];
        assert!(is_source(&all, address("192.0.2.1")));
        assert!(!is_source(&all, address("2001:db8::1")));
        assert!(is_source(&[(address("::"), 0)], address("2001:db8::1")));
    }
}
