//! Services, and the hash that names a flow's bundle: what the program has, too.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use takt_wire::ethernet::MacAddress;
use takt_wire::ip::Protocol;

use crate::error::Error;

/// A service whose packets are balanced: where they go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Service(Place);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Ip {
        tcp: bool,
        /// `None`: any.
        address: Option<IpAddr>,
        port: u16,
    },
    /// TSN streams without IP (IEEE 802.1Q-2022, clause 35).
    Stream {
        /// `None`: any, of AVTP (IEEE 1722-2016).
        destination: Option<MacAddress>,
        /// `None`: any, or none.
        vlan: Option<u16>,
    },
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Place::Ip { tcp, address, port } => {
                let protocol = if tcp { "tcp" } else { "udp" };
                match address {
                    Some(address) => write!(f, "{protocol}:{}", SocketAddr::new(address, port)),
                    None => write!(f, "{protocol}:*:{port}"),
                }
            }
            Place::Stream { destination, vlan } => {
                match destination {
                    Some(destination) => write!(f, "stream:{destination}")?,
                    None => write!(f, "stream:*")?,
                }
                vlan.map_or(Ok(()), |vlan| write!(f, "/{vlan}"))
            }
        }
    }
}

/// `udp:10.0.0.1:5004`, `tcp:[fd00::1]:443`, `udp:*:5004`, `stream:91:e0:f0:00:00:01`, `stream:91:e0:f0:00:00:01/2`,
/// `stream:*/2`.
impl FromStr for Service {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::Config(format!(
                "{text:?} is no service: write udp:10.0.0.1:5004, tcp:[fd00::1]:443, udp:*:5004, \
                 stream:91:e0:f0:00:00:01 (with its VLAN, if there is one: stream:91:e0:f0:00:00:01/2) or stream:* \
                 for all of AVTP"
            ))
        };
        let (protocol, rest) = text.split_once(':').ok_or_else(wrong)?;
        if protocol == "stream" {
            return stream(rest).map(Self).ok_or_else(wrong);
        }
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
        Ok(Self(Place::Ip { tcp, address, port }))
    }
}

/// Destination and VLAN of a stream.
fn stream(text: &str) -> Option<Place> {
    let (destination, vlan) = match text.split_once('/') {
        Some((destination, vlan)) => (destination, Some(vlan.parse().ok()?)),
        None => (text, None),
    };
    let destination = match destination {
        "*" => None,
        text => Some(text.parse().ok()?),
    };
    // What bridges keep to themselves (IEEE 802.1Q-2022, table 8-1) is nobody's stream.
    let kept = |mac: &MacAddress| {
        *mac == MacAddress::ZERO || mac.0[..5] == [1, 0x80, 0xc2, 0, 0] && mac.0[5] < 16
    };
    let fits = !destination.as_ref().is_some_and(kept) && vlan.is_none_or(|vlan| vlan < 4095);
    fits.then_some(Place::Stream { destination, vlan })
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

/// In place of a VLAN: any, or none.
const ANY_VLAN: u16 = 0xffff;
/// In place of IP's version.
const STREAM: u8 = 2;

impl Service {
    /// Whether it is a stream without IP, which its destination names.
    pub fn is_stream(&self) -> bool {
        matches!(self.0, Place::Stream { .. })
    }

    /// Whether the program takes a whole datagram or segment to this destination for one of the service's.
    pub fn takes(&self, protocol: u8, destination: SocketAddr) -> bool {
        let Place::Ip { tcp, address, port } = self.0 else {
            return false;
        };
        let own = if tcp { Protocol::TCP } else { Protocol::UDP };
        let ip = destination.ip();
        // What is for several hosts is no neighbour's to answer.
        let group = ip.is_multicast() || ip == Ipv4Addr::BROADCAST;
        let meant = address.map_or(!group, |address| address == ip);
        protocol == own.0 && port == destination.port() && meant
    }

    /// Whether the program takes a frame without IP for one of the service's streams; `avtp`: it is one of AVTP.
    pub fn takes_stream(&self, to: MacAddress, in_vlan: Option<u16>, avtp: bool) -> bool {
        let Place::Stream { destination, vlan } = self.0 else {
            return false;
        };
        let meant = destination.map_or(avtp, |destination| destination == to);
        meant && (vlan.is_none() || vlan == in_vlan)
    }

    /// As the program looks it up: one for each version of IP.
    pub(crate) fn keys(&self) -> Vec<ServiceKey> {
        let (tcp, address, port) = match self.0 {
            Place::Ip { tcp, address, port } => (tcp, address, port),
            Place::Stream { destination, vlan } => {
                let mut address = [0; 16];
                address[..6].copy_from_slice(&destination.unwrap_or(MacAddress::ZERO).0);
                return vec![ServiceKey {
                    address,
                    port: vlan.unwrap_or(ANY_VLAN).to_be_bytes(),
                    protocol: 0,
                    version: STREAM,
                }];
            }
        };
        let key = |version, address| ServiceKey {
            address,
            port: port.to_be_bytes(),
            protocol: match tcp {
                true => Protocol::TCP.0,
                false => Protocol::UDP.0,
            },
            version,
        };
        match address {
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
    Some(finish(stir(hash, ports)))
}

/// The same of a stream: of its destination and, if it has one, its VLAN.
pub fn hash_of_stream(destination: MacAddress, vlan: Option<u16>) -> u32 {
    let [a, b, c, d, e, f] = destination.0;
    let words = [
        0,
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, 0, 0]),
        vlan.unwrap_or(ANY_VLAN).into(),
    ];
    finish(words.into_iter().fold(0, stir))
}

fn stir(hash: u32, word: u32) -> u32 {
    let word = word.wrapping_mul(0xcc9e_2d51).rotate_left(15);
    let hash = (hash ^ word.wrapping_mul(0x1b87_3593)).rotate_left(13);
    hash.wrapping_mul(5).wrapping_add(0xe654_6b64)
}

fn finish(mut hash: u32) -> u32 {
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_takes_what_the_program_takes() {
        let service = |text: &str| text.parse::<Service>().expect("a service");
        let to = |text: &str| text.parse::<SocketAddr>().expect("an address");
        for (text, protocol, destination, takes) in [
            ("udp:10.0.0.1:5004", 17, "10.0.0.1:5004", true),
            ("udp:10.0.0.1:5004", 6, "10.0.0.1:5004", false),
            ("udp:10.0.0.1:5004", 17, "10.0.0.2:5004", false),
            ("udp:10.0.0.1:5004", 17, "10.0.0.1:5005", false),
            ("tcp:*:80", 6, "[fd00::1]:80", true),
            ("tcp:*:80", 6, "10.0.0.7:80", true),
            ("udp:*:80", 17, "224.0.0.1:80", false),
            ("stream:*", 17, "10.0.0.1:5004", false),
        ] {
            assert_eq!(
                service(text).takes(protocol, to(destination)),
                takes,
                "{text}"
            );
        }
        let mac = MacAddress([0x91, 0xe0, 0xf0, 0, 0, 1]);
        for (text, vlan, avtp, takes) in [
            ("stream:91:e0:f0:00:00:01/2", Some(2), false, true),
            ("stream:91:e0:f0:00:00:01/2", Some(3), true, false),
            ("stream:91:e0:f0:00:00:01/2", None, true, false),
            ("stream:91:e0:f0:00:00:01", Some(2), false, true),
            ("stream:91:e0:f0:00:00:02", None, true, false),
            ("stream:*/2", Some(2), true, true),
            ("stream:*/2", Some(2), false, false),
            ("udp:*:80", None, true, false),
        ] {
            assert_eq!(service(text).takes_stream(mac, vlan, avtp), takes, "{text}");
        }
    }

    #[test]
    fn services_are_read_as_they_are_written_and_others_refused() {
        for text in [
            "udp:10.0.0.1:5004",
            "tcp:[fd00::1]:443",
            "udp:*:5004",
            "stream:91:e0:f0:00:00:01",
            "stream:91:e0:f0:00:00:01/2",
            "stream:*",
            "stream:*/0",
        ] {
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
            "stream:",
            "stream:91:e0:f0:00:00",
            "stream:*/4095",
            "stream:*/",
            "stream:01:80:c2:00:00:0e",
            "stream:00:00:00:00:00:00",
        ] {
            let error = text.parse::<Service>().expect_err(text).to_string();
            assert!(error.contains("udp:*:5004"), "{error}");
        }
    }
}
