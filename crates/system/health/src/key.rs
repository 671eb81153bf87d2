//! What names a flow: a TSN stream, a 5-tuple or a Takt channel.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use takt_wire::ethernet::{EtherType, MacAddress};

/// No VLAN in a key.
const UNTAGGED: u16 = 0xffff;

/// What kind of name a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Destination address and VLAN (null stream identification, IEEE 802.1CB-2017, clause 6.4), with the EtherType.
    Stream,
    /// IPv4 addresses, protocol and ports.
    V4,
    /// IPv6 addresses, protocol and ports.
    V6,
    /// A source of a Takt channel.
    Channel,
}

/// Which way a message of a channel goes past who watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Way {
    /// From the peer.
    From,
    /// To the peer.
    To,
}

/// A source of a Takt channel, as who watches sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChannelSource {
    /// The channel's number.
    pub channel: u64,
    /// The sending lane, as datagrams carry it.
    pub lane: u32,
    /// The source's number, never used twice by its lane.
    pub source: u32,
    /// The traffic class, 0 to 7.
    pub class: u8,
    /// Which way.
    pub way: Way,
    /// The node at the other end, where it has an address.
    pub peer: Option<IpAddr>,
}

/// What names a flow, in one direction. Small and flat, since a table holds a million of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    kind: Kind,
    protocol: u8,
    vlan: u16,
    ports: [u16; 2],
    source: [u8; 16],
    destination: [u8; 16],
}

impl FlowKey {
    /// A TSN stream.
    pub fn stream(destination: MacAddress, vlan: Option<u16>, ether_type: EtherType) -> Self {
        let mut address = [0; 16];
        address[..6].copy_from_slice(&destination.0);
        Self {
            kind: Kind::Stream,
            protocol: 0,
            vlan: vlan.unwrap_or(UNTAGGED),
            ports: [ether_type.0, 0],
            source: [0; 16],
            destination: address,
        }
    }

    /// A 5-tuple over IPv4. Ports are 0 for protocols without them and for later fragments.
    #[inline]
    pub fn v4(protocol: u8, source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> Self {
        let wide = |address: [u8; 4]| {
            let mut wide = [0; 16];
            wide[..4].copy_from_slice(&address);
            wide
        };
        Self {
            kind: Kind::V4,
            protocol,
            vlan: UNTAGGED,
            ports,
            source: wide(source),
            destination: wide(destination),
        }
    }

    /// A 5-tuple over IPv6.
    #[inline]
    pub fn v6(protocol: u8, source: [u8; 16], destination: [u8; 16], ports: [u16; 2]) -> Self {
        Self {
            kind: Kind::V6,
            protocol,
            vlan: UNTAGGED,
            ports,
            source,
            destination,
        }
    }

    /// A source of a Takt channel.
    pub fn channel(source: ChannelSource) -> Self {
        let mut numbers = [0; 16];
        numbers[..8].copy_from_slice(&source.channel.to_be_bytes());
        numbers[8..12].copy_from_slice(&source.lane.to_be_bytes());
        numbers[12..].copy_from_slice(&source.source.to_be_bytes());
        let peer = match source.peer {
            Some(IpAddr::V4(peer)) => peer.to_ipv6_mapped(),
            Some(IpAddr::V6(peer)) => peer,
            None => Ipv6Addr::UNSPECIFIED,
        };
        Self {
            kind: Kind::Channel,
            protocol: source.way as u8,
            vlan: UNTAGGED,
            ports: [source.class.into(), 0],
            source: numbers,
            destination: peer.octets(),
        }
    }

    /// What kind of name it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The destination of a TSN stream.
    pub fn mac(&self) -> Option<MacAddress> {
        let [a, b, c, d, e, f, ..] = self.destination;
        (self.kind == Kind::Stream).then_some(MacAddress([a, b, c, d, e, f]))
    }

    /// The VLAN of a TSN stream; 0 for a tag that carries only a priority.
    pub fn vlan(&self) -> Option<u16> {
        (self.vlan != UNTAGGED).then_some(self.vlan)
    }

    /// The destination of a TSN stream.
    pub fn stream_destination(&self) -> Option<MacAddress> {
        let octets = self.destination.first_chunk()?;
        (self.kind == Kind::Stream).then_some(MacAddress(*octets))
    }

    /// The EtherType of a TSN stream.
    pub fn ether_type(&self) -> Option<EtherType> {
        (self.kind == Kind::Stream).then_some(EtherType(self.ports[0]))
    }

    /// Source and destination of a 5-tuple.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let v4 = |a: &[u8; 16]| IpAddr::V4(Ipv4Addr::new(a[0], a[1], a[2], a[3]));
        match self.kind {
            Kind::V4 => Some((v4(&self.source), v4(&self.destination))),
            Kind::V6 => Some((self.source.into(), self.destination.into())),
            Kind::Stream | Kind::Channel => None,
        }
    }

    /// The IP protocol of a 5-tuple (IANA registry "Protocol Numbers").
    pub fn protocol(&self) -> Option<u8> {
        matches!(self.kind, Kind::V4 | Kind::V6).then_some(self.protocol)
    }

    /// Source and destination port of a 5-tuple.
    pub fn ports(&self) -> Option<(u16, u16)> {
        matches!(self.kind, Kind::V4 | Kind::V6).then_some((self.ports[0], self.ports[1]))
    }

    /// The same with other ports.
    pub(crate) fn with_ports(mut self, ports: [u16; 2]) -> Self {
        self.ports = ports;
        self
    }

    /// The number of a Takt channel.
    pub fn channel_number(&self) -> Option<u64> {
        let [a, b, c, d, e, f, g, h, ..] = self.source;
        (self.kind == Kind::Channel).then_some(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// The source of a Takt channel.
    pub fn channel_source(&self) -> Option<ChannelSource> {
        let word = |at: usize| {
            let s = &self.source;
            u32::from_be_bytes([s[at], s[at + 1], s[at + 2], s[at + 3]])
        };
        let peer = Ipv6Addr::from(self.destination);
        Some(ChannelSource {
            channel: self.channel_number()?,
            lane: word(8),
            source: word(12),
            class: self.ports[0] as u8,
            way: match self.protocol {
                0 => Way::From,
                _ => Way::To,
            },
            peer: (!peer.is_unspecified())
                .then(|| peer.to_ipv4_mapped().map_or(peer.into(), IpAddr::V4)),
        })
    }
}

/// The name of an IP protocol, where it has one that everybody knows.
pub fn protocol_name(protocol: u8) -> Option<&'static str> {
    Some(match protocol {
        1 => "icmp",
        2 => "igmp",
        6 => "tcp",
        17 => "udp",
        47 => "gre",
        58 => "icmp6",
        132 => "sctp",
        _ => return None,
    })
}

/// The number of an IP protocol, from its name or as `ip89`.
pub(crate) fn protocol_number(name: &str) -> Option<u8> {
    (0..=255)
        .find(|number| protocol_name(*number) == Some(name))
        .or_else(|| name.strip_prefix("ip")?.parse().ok())
}

/// Why a text names no flow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no single flow: write \"udp 10.0.0.1:4000 > 10.0.0.2:5004\" or \"stream 91:e0:f0:00:00:01 vlan 2 type 0x22f0\", as `takt monitor` does: in small letters, addresses of one version, ports to 65535"
)]
pub struct NoFlow(String);

/// As [`Display`](fmt::Display) writes them; not of channels.
impl FromStr for FlowKey {
    type Err = NoFlow;

    fn from_str(text: &str) -> Result<Self, NoFlow> {
        read(text).ok_or_else(|| NoFlow(text.chars().take(200).collect()))
    }
}

fn read(text: &str) -> Option<FlowKey> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let stream = |mac: &str, vlan: Option<&str>, ether_type: &str| {
        let vlan = match vlan {
            Some(vlan) => Some(vlan.parse().ok().filter(|vlan| *vlan <= 0xfff)?),
            None => None,
        };
        let ether_type = u16::from_str_radix(ether_type.strip_prefix("0x")?, 16).ok()?;
        Some(FlowKey::stream(
            mac.parse().ok()?,
            vlan,
            EtherType(ether_type),
        ))
    };
    match words[..] {
        ["stream", mac, "type", ether_type] => stream(mac, None, ether_type),
        ["stream", mac, "vlan", vlan, "type", ether_type] => stream(mac, Some(vlan), ether_type),
        [protocol, source, ">", destination] => {
            let protocol = protocol_number(protocol)?;
            let ((source, from), (destination, to)) = (side(source)?, side(destination)?);
            match (source, destination) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => Some(FlowKey::v4(
                    protocol,
                    source.octets(),
                    destination.octets(),
                    [from, to],
                )),
                (IpAddr::V6(source), IpAddr::V6(destination)) => Some(FlowKey::v6(
                    protocol,
                    source.octets(),
                    destination.octets(),
                    [from, to],
                )),
                _ => None,
            }
        }
        _ => None,
    }
}

/// An address, and its port or 0.
fn side(text: &str) -> Option<(IpAddr, u16)> {
    if let Ok(address) = text.parse() {
        return Some((address, 0));
    }
    match text.parse().ok()? {
        SocketAddr::V6(address) if address.scope_id() != 0 => None,
        address => Some((address.ip(), address.port())),
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(from) = self.channel_source() {
            write!(f, "channel {} class {}", from.channel, from.class)?;
            match (from.way, from.peer) {
                (Way::From, Some(peer)) => write!(f, " from {peer}")?,
                (Way::To, Some(peer)) => write!(f, " to {peer}")?,
                (_, None) => {}
            }
            return write!(f, " lane {} source {}", from.lane, from.source);
        }
        if let (Some(mac), Some(ether_type)) = (self.mac(), self.ether_type()) {
            write!(f, "stream {mac}")?;
            if let Some(vlan) = self.vlan() {
                write!(f, " vlan {vlan}")?;
            }
            return write!(f, " type {ether_type}");
        }
        let Some((source, destination)) = self.addresses() else {
            return Ok(());
        };
        match protocol_name(self.protocol) {
            Some(name) => f.write_str(name)?,
            None => write!(f, "ip{}", self.protocol)?,
        }
        let side = |f: &mut fmt::Formatter<'_>, address: IpAddr, port: u16| match (address, port) {
            (address, 0) => write!(f, " {address}"),
            (IpAddr::V4(address), port) => write!(f, " {address}:{port}"),
            (IpAddr::V6(address), port) => write!(f, " [{address}]:{port}"),
        };
        side(f, source, self.ports[0])?;
        f.write_str(" >")?;
        side(f, destination, self.ports[1])
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_read_as_it_is_written() {
        let mac = MacAddress([0x91, 0xe0, 0xf0, 0, 0, 1]);
        let (a, b) = ([0xfd; 16], [1; 16]);
        for key in [
            FlowKey::v4(17, [10, 0, 0, 9], [10, 0, 0, 1], [7, 5004]),
            FlowKey::v4(1, [10, 0, 0, 9], [10, 0, 0, 1], [0, 0]),
            FlowKey::v4(89, [10, 0, 0, 9], [224, 0, 0, 5], [0, 0]),
            FlowKey::v6(6, a, b, [40000, 443]),
            FlowKey::v6(58, a, b, [0, 0]),
            FlowKey::stream(mac, None, EtherType(0x22f0)),
            FlowKey::stream(mac, Some(4095), EtherType(5)),
        ] {
            assert_eq!(key.to_string().parse(), Ok(key), "{key}");
        }
    }

    #[test]
    fn what_names_no_single_flow_is_refused() {
        for text in [
            "",
            "*",
            "channel 7",
            "udp * > 10.0.0.1:5004",
            "udp 10.0.0.9:7 10.0.0.1:5004",
            "udp 10.0.0.9:7 > [fd00::1]:5004",
            "udp [fe80::1%2]:7 > [fe80::2]:7",
            "udp 10.0.0.9:65536 > 10.0.0.1:5004",
            "tdp 10.0.0.9:7 > 10.0.0.1:5004",
            "ip256 10.0.0.9 > 10.0.0.1",
            "stream 91:e0:f0:00:00:01",
            "stream 91:e0:f0:00:00:01 vlan 4096 type 0x22f0",
            "stream 91:e0:f0:00:00 type 0x22f0",
            "stream 91:e0:f0:00:00:01 type 22f0",
        ] {
            assert!(text.parse::<FlowKey>().is_err(), "{text}");
        }
        let long = "x".repeat(10_000).parse::<FlowKey>().expect_err("refused");
        assert!(long.to_string().len() < 500);
    }
}
