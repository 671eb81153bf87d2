//! Services, and the hash that names a flow's bundle: what the program has, too.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use takt_wire::ip::Protocol;

use crate::error::Error;

/// A service whose packets are balanced: where they go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    tcp: bool,
    /// `None`: any.
    address: Option<IpAddr>,
    port: u16,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = if self.tcp { "tcp" } else { "udp" };
        match self.address {
            Some(address) => write!(f, "{protocol}:{}", SocketAddr::new(address, self.port)),
            None => write!(f, "{protocol}:*:{}", self.port),
        }
    }
}

/// `udp:10.0.0.1:5004`, `tcp:[fd00::1]:443`, `udp:*:5004`.
impl FromStr for Service {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::Config(format!(
                "{text:?} is no service: write udp:10.0.0.1:5004, tcp:[fd00::1]:443 or udp:*:5004"
            ))
        };
        let (protocol, rest) = text.split_once(':').ok_or_else(wrong)?;
        let tcp = match protocol {
            "tcp" => true,
            "udp" => false,
            _ => return Err(wrong()),
        };
        let (address, port) = match rest.strip_prefix("*:") {
            Some(port) => (None, port.parse().map_err(|_| wrong())?),
            None => {
                let address: SocketAddr = rest.parse().map_err(|_| wrong())?;
                (Some(address.ip()), address.port())
            }
        };
        let multicast = address.is_some_and(|address| address.is_multicast());
        if port == 0 || multicast || address.is_some_and(|address| address.is_unspecified()) {
            return Err(wrong());
        }
        Ok(Self { tcp, address, port })
    }
}

/// `struct service` of the program.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ServiceKey {
    address: [u8; 16],
    port: [u8; 2],
    protocol: u8,
    version: u8,
}

// SAFETY: bytes alone, without padding; any bit pattern is a value.
unsafe impl aya::Pod for ServiceKey {}

impl Service {
    /// As the program looks it up: one for each version of IP.
    pub(crate) fn keys(&self) -> Vec<ServiceKey> {
        let key = |version, address| ServiceKey {
            address,
            port: self.port.to_be_bytes(),
            protocol: match self.tcp {
                true => Protocol::TCP.0,
                false => Protocol::UDP.0,
            },
            version,
        };
        match self.address {
            None => vec![key(4, [0; 16]), key(6, [0; 16])],
            Some(IpAddr::V4(address)) => vec![key(4, wide(address))],
            Some(IpAddr::V6(address)) => vec![key(6, address.octets())],
        }
    }
}

fn wide(address: Ipv4Addr) -> [u8; 16] {
    let mut wide = [0; 16];
    wide[..4].copy_from_slice(&address.octets());
    wide
}

/// The hash of a flow's addresses and ports, in whose low bits its bundle is: MurmurHash3 (32 bit) over the words that
/// headers have, beginning with the protocol. `None` where addresses are of two versions of IP.
pub fn hash(protocol: u8, source: SocketAddr, destination: SocketAddr) -> Option<u32> {
    let stir = |hash: u32, word: u32| {
        let word = word.wrapping_mul(0xcc9e_2d51).rotate_left(15);
        let hash = (hash ^ word.wrapping_mul(0x1b87_3593)).rotate_left(13);
        hash.wrapping_mul(5).wrapping_add(0xe654_6b64)
    };
    let words = |address: Ipv6Addr| {
        let bits = address.to_bits();
        [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
    };
    let mut hash = u32::from(protocol);
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            hash = stir(stir(hash, source.to_bits()), destination.to_bits());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            for (source, destination) in words(source).into_iter().zip(words(destination)) {
                hash = stir(stir(hash, source), destination);
            }
        }
        _ => return None,
    }
    let ports = u32::from(source.port()) << 16 | u32::from(destination.port());
    hash = stir(hash, ports);
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    Some(hash ^ hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_read_as_they_are_written_and_others_refused() {
        for text in ["udp:10.0.0.1:5004", "tcp:[fd00::1]:443", "udp:*:5004"] {
            let service: Service = text.parse().expect("a service");
            assert_eq!(service.to_string(), text);
        }
        for text in [
            "",
            "udp",
            "udp:10.0.0.1",
            "sctp:10.0.0.1:1",
            "udp:*:0",
            "udp:*:65536",
            "udp:0.0.0.0:5",
            "udp:224.0.0.1:5",
            "udp:[::]:5",
        ] {
            let error = text.parse::<Service>().expect_err(text).to_string();
            assert!(error.contains("udp:*:5004"), "{error}");
        }
    }
}
