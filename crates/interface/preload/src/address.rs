//! Socket addresses in the form that programs hand to the kernel, and back.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of a `sockaddr_in`.
pub const INET: usize = size_of::<libc::sockaddr_in>();
/// Bytes of a `sockaddr_in6`.
pub const INET6: usize = size_of::<libc::sockaddr_in6>();

fn family(bytes: &[u8]) -> Option<c_int> {
    let family = bytes.first_chunk::<2>()?;
    Some(u16::from_ne_bytes(*family).into())
}

/// An IPv4 or IPv6 address with its port; addresses of IPv4 that IPv6 sockets write as mapped come out as
/// what they are. `None`: another family, or too short.
pub fn parse(bytes: &[u8]) -> Option<SocketAddr> {
    match family(bytes)? {
        libc::AF_INET => {
            let bytes = bytes.first_chunk::<INET>()?;
            let port = u16::from_be_bytes([bytes[2], bytes[3]]);
            let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            Some((ip, port).into())
        }
        libc::AF_INET6 => {
            let bytes = bytes.first_chunk::<INET6>()?;
            let port = u16::from_be_bytes([bytes[2], bytes[3]]);
            let ip = Ipv6Addr::from(*bytes[8..].first_chunk::<16>()?);
            if let Some(mapped) = ip.to_ipv4_mapped() {
                return Some((mapped, port).into());
            }
            let scope = u32::from_ne_bytes(*bytes[24..].first_chunk()?);
            let flow = u32::from_be_bytes(*bytes[4..].first_chunk()?);
            Some(SocketAddrV6::new(ip, port, flow, scope).into())
        }
        _ => None,
    }
}

/// The address as the family of a socket writes it, for `bind`.
pub fn any(six: bool) -> Vec<u8> {
    let mut bytes = vec![0; if six { INET6 } else { INET }];
    let family = if six { libc::AF_INET6 } else { libc::AF_INET };
    bytes[0..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes
}

/// A `sockaddr_in` as it lies in memory.
pub fn inet(address: Ipv4Addr) -> [u8; INET] {
    let mut bytes = [0; INET];
    bytes[0..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    bytes[4..8].copy_from_slice(&address.octets());
    bytes
}

/// A `sockaddr_in6` as it lies in memory; addresses of IPv4 are mapped.
pub fn inet6(address: IpAddr) -> [u8; INET6] {
    let mut bytes = [0; INET6];
    bytes[0..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    bytes[8..24].copy_from_slice(&address.octets());
    bytes
}

/// An address with its port as the family of a socket writes it.
pub fn written(address: SocketAddr, six: bool) -> Vec<u8> {
    let mut bytes = match (address.ip(), six) {
        (IpAddr::V4(ip), false) => inet(ip).to_vec(),
        (ip, _) => inet6(ip).to_vec(),
    };
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    if let SocketAddr::V6(address) = address {
        bytes[4..8].copy_from_slice(&address.flowinfo().to_be_bytes());
        bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
    }
    bytes
}

/// An address of the link layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    /// The interface's number.
    pub interface: u32,
    /// An EtherType.
    pub protocol: u16,
    /// The station, if it has an address of Ethernet's length.
    pub station: Option<[u8; 6]>,
}

/// A `sockaddr_ll`. `None`: another family, or too short.
pub fn parse_link(bytes: &[u8]) -> Option<LinkAddress> {
    // The kernel takes addresses that end behind the station's.
    const STATION: usize = 12;
    if family(bytes)? != libc::AF_PACKET || bytes.len() < STATION {
        return None;
    }
    let length = usize::from(bytes[11]);
    Some(LinkAddress {
        protocol: u16::from_be_bytes([bytes[2], bytes[3]]),
        interface: u32::from_ne_bytes(*bytes[4..].first_chunk()?),
        station: match length {
            6 => Some(*bytes.get(STATION..)?.first_chunk()?),
            _ => None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_reads_them() {
        let mut four = inet(Ipv4Addr::new(192, 0, 2, 1));
        four[2..4].copy_from_slice(&4321u16.to_be_bytes());
        assert_eq!(parse(&four), Some("192.0.2.1:4321".parse().unwrap()));
        let six = inet6("2001:db8::7".parse().unwrap());
        assert_eq!(parse(&six), Some("[2001:db8::7]:0".parse().unwrap()));
        let mapped = inet6("192.0.2.1".parse().unwrap());
        assert_eq!(parse(&mapped), Some("192.0.2.1:0".parse().unwrap()));
    }

    #[test]
    fn addresses_are_written_as_they_are_read() {
        for (text, six) in [
            ("192.0.2.1:4321", false),
            ("192.0.2.1:4321", true),
            ("[2001:db8::7%3]:9", true),
        ] {
            let address = text.parse().unwrap();
            let bytes = written(address, six);
            assert_eq!(parse(&bytes), Some(address));
            assert_eq!(bytes.len(), if six { INET6 } else { INET });
        }
    }

    #[test]
    fn short_and_foreign_addresses_are_none() {
        let six = inet6("2001:db8::7".parse().unwrap());
        for length in 0..INET6 {
            assert_eq!(parse(&six[..length]), None, "{length} bytes");
        }
        assert_eq!(parse(&[0; 128]), None);
        assert_eq!(parse_link(&six), None);
    }

    #[test]
    fn an_address_of_the_link_layer_has_a_station_of_six_bytes_or_none() {
        let mut bytes = [0; size_of::<libc::sockaddr_ll>()];
        bytes[0..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&0x88f7u16.to_be_bytes());
        bytes[4..8].copy_from_slice(&3u32.to_ne_bytes());
        bytes[12..18].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        let without = LinkAddress {
            interface: 3,
            protocol: 0x88f7,
            station: None,
        };
        assert_eq!(parse_link(&bytes), Some(without));
        assert_eq!(parse_link(&bytes[..12]), Some(without));
        bytes[11] = 6;
        let station = Some([2, 0, 0, 0, 0, 9]);
        assert_eq!(parse_link(&bytes), Some(LinkAddress { station, ..without }));
        assert_eq!(parse_link(&bytes[..17]), None);
    }
}
