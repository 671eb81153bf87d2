//! Which flows a specification or a rule is for, as people write it.
//!
//! `udp 10.0.0.1:* > 10.0.0.2:5004`, `tcp * > [fd00::1]:443`, `stream 91:e0:f0:00:00:01 vlan 2`, `channel 7`, or `*`
//! for all.

use std::fmt;
use std::net::IpAddr;

use takt_wire::ethernet::MacAddress;

use crate::key::{FlowKey, protocol_number};

/// An address and a port, or any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// The address.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: Option<u16>,
}

/// IP packets, as a pattern means them. What is `None` may be anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuple {
    /// By IANA's number.
    pub protocol: Option<u8>,
    /// From where.
    pub source: Side,
    /// To where.
    pub destination: Side,
}

/// Which flows are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    All,
    Tuple(Tuple),
    Stream {
        mac: Option<MacAddress>,
        vlan: Option<u16>,
    },
    Channel(Option<u64>),
}

/// Why a text names no flows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} names no flows: {why}; write \"udp 10.0.0.1:* > 10.0.0.2:5004\", \"stream 91:e0:f0:00:00:01 vlan 2\", \"channel 7\" or \"*\""
)]
pub struct NoPattern {
    text: String,
    why: String,
}

impl std::str::FromStr for Pattern {
    type Err = NoPattern;

    fn from_str(text: &str) -> Result<Self, NoPattern> {
        let what = read(text).map_err(|why| NoPattern {
            text: text.chars().take(200).collect(),
            why,
        })?;
        Ok(Self {
            text: text.split_whitespace().collect::<Vec<_>>().join(" "),
            what,
        })
    }
}

fn read(text: &str) -> Result<What, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["*"] => Ok(What::All),
        ["channel", "*"] => Ok(What::Channel(None)),
        ["channel", number] => match number.parse() {
            Ok(number) => Ok(What::Channel(Some(number))),
            Err(_) => Err(format!("{number} is no channel number")),
        },
        ["stream", mac] => Ok(What::Stream {
            mac: address(mac)?,
            vlan: None,
        }),
        ["stream", mac, "vlan", vlan] => Ok(What::Stream {
            mac: address(mac)?,
            vlan: Some(
                vlan.parse()
                    .ok()
                    .filter(|vlan| *vlan <= 4094)
                    .ok_or_else(|| format!("{vlan} is no VLAN (0 to 4094)"))?,
            ),
        }),
        [protocol, source, ">", destination] => Ok(What::Tuple(Tuple {
            protocol: match protocol {
                "ip" => None,
                name => Some(
                    protocol_number(name)
                        .ok_or_else(|| format!("{name} is no protocol (udp, tcp, ip for any)"))?,
                ),
            },
            source: side(source)?,
            destination: side(destination)?,
        })),
        _ => Err("it has another form".into()),
    }
}

fn address(text: &str) -> Result<Option<MacAddress>, String> {
    match text {
        "*" => Ok(None),
        text => Ok(Some(
            text.parse()
                .map_err(|_| format!("{text} is no MAC address"))?,
        )),
    }
}

fn side(text: &str) -> Result<Side, String> {
    if text == "*" {
        return Ok(Side::default());
    }
    if let Ok(address) = text.trim_matches(['[', ']']).parse() {
        return Ok(Side {
            address: Some(address),
            port: None,
        });
    }
    let (address, port) = text
        .rsplit_once(':')
        .ok_or_else(|| format!("{text} is no address"))?;
    let address = match address.trim_matches(['[', ']']) {
        "*" => None,
        text => Some(
            text.parse()
                .map_err(|_| format!("{text} is no IP address"))?,
        ),
    };
    let port = match port {
        "*" => None,
        text => Some(text.parse().map_err(|_| format!("{text} is no port"))?),
    };
    Ok(Side { address, port })
}

/// Whether all that `narrow` may be is what `wide` may be.
fn within<T: PartialEq>(narrow: Option<T>, wide: Option<T>) -> bool {
    wide.is_none() || wide == narrow
}

/// Whether something may be what both are.
fn meet<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
    one.is_none() || other.is_none() || one == other
}

impl Side {
    fn covers(&self, other: &Self) -> bool {
        within(other.address, self.address) && within(other.port, self.port)
    }

    fn overlaps(&self, other: &Self) -> bool {
        meet(self.address, other.address) && meet(self.port, other.port)
    }

    fn matches(&self, address: IpAddr, port: u16) -> bool {
        self.address.is_none_or(|wanted| wanted == address)
            && self.port.is_none_or(|wanted| wanted == port)
    }
}

impl Pattern {
    /// All flows.
    pub fn all() -> Self {
        Self {
            text: "*".into(),
            what: What::All,
        }
    }

    /// Which IP packets are meant; `None`: flows that are told apart otherwise.
    pub fn tuple(&self) -> Option<Tuple> {
        match self.what {
            What::All => Some(Tuple::default()),
            What::Tuple(tuple) => Some(tuple),
            What::Stream { .. } | What::Channel(_) => None,
        }
    }

    /// Whether everything is given: who makes up flows finds next to none that are meant.
    pub fn is_full(&self) -> bool {
        match self.what {
            What::All | What::Channel(_) => false,
            What::Stream { mac, vlan } => mac.is_some() && vlan.is_some(),
            What::Tuple(Tuple {
                protocol,
                source,
                destination,
            }) => {
                let given = |side: Side| {
                    // Of TCP, UDP, DCCP and SCTP alone there are ports.
                    let has_ports = matches!(protocol, Some(6 | 17 | 33 | 132));
                    side.address.is_some() && (side.port.is_some() || !has_ports)
                };
                protocol.is_some() && given(source) && given(destination)
            }
        }
    }

    /// Whether all flows that another one means are meant.
    pub fn covers(&self, other: &Self) -> bool {
        match (self.what, other.what) {
            (What::All, _) => true,
            (What::Tuple(wide), What::Tuple(narrow)) => {
                within(narrow.protocol, wide.protocol)
                    && wide.source.covers(&narrow.source)
                    && wide.destination.covers(&narrow.destination)
            }
            (What::Stream { mac, vlan }, What::Stream { mac: to, vlan: of }) => {
                within(to, mac) && within(of, vlan)
            }
            (What::Channel(wide), What::Channel(narrow)) => within(narrow, wide),
            _ => false,
        }
    }

    /// Whether there may be a flow that both mean.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self.what, other.what) {
            (What::All, _) | (_, What::All) => true,
            (What::Tuple(one), What::Tuple(other)) => {
                meet(one.protocol, other.protocol)
                    && one.source.overlaps(&other.source)
                    && one.destination.overlaps(&other.destination)
            }
            (What::Stream { mac, vlan }, What::Stream { mac: to, vlan: of }) => {
                meet(to, mac) && meet(of, vlan)
            }
            (What::Channel(one), What::Channel(other)) => meet(one, other),
            _ => false,
        }
    }

    /// Whether a flow is meant.
    pub fn matches(&self, key: &FlowKey) -> bool {
        match self.what {
            What::All => true,
            What::Channel(number) => key
                .channel_number()
                .is_some_and(|channel| number.is_none_or(|number| number == channel)),
            What::Stream { mac, vlan } => key.mac().is_some_and(|at| {
                mac.is_none_or(|mac| mac == at) && (vlan.is_none() || vlan == key.vlan())
            }),
            What::Tuple(Tuple {
                protocol,
                source,
                destination,
            }) => match (key.addresses(), key.ports()) {
                (Some((from, to)), Some((from_port, to_port))) => {
                    protocol.is_none_or(|protocol| Some(protocol) == key.protocol())
                        && source.matches(from, from_port)
                        && destination.matches(to, to_port)
                }
                _ => false,
            },
        }
    }

    /// The pattern of exactly this flow, or of all sources of its channel.
    pub fn of(key: &FlowKey) -> Self {
        let text = match (key.channel_number(), key.mac(), key.vlan()) {
            (Some(channel), _, _) => format!("channel {channel}"),
            (_, Some(mac), Some(vlan)) => format!("stream {mac} vlan {vlan}"),
            (_, Some(mac), None) => format!("stream {mac}"),
            _ => key.to_string(),
        };
        text.parse().unwrap_or_else(|_| Self::all())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_what_they_name() {
        let key = FlowKey::v4(17, [10, 0, 0, 1], [10, 0, 0, 2], [4000, 5004]);
        let yes = [
            "*",
            "udp * > *",
            "ip 10.0.0.1 > *",
            "udp 10.0.0.1:* > 10.0.0.2:5004",
            "ip17 *:4000 > *:5004",
        ];
        let no = [
            "tcp * > *",
            "udp *:5004 > *",
            "udp 10.0.0.2 > *",
            "channel *",
            "stream *",
        ];
        for (texts, expected) in [(&yes, true), (&no, false)] {
            for text in texts.iter() {
                let pattern: Pattern = text.parse().expect(text);
                assert_eq!(pattern.matches(&key), expected, "{text}");
            }
        }
        let key = FlowKey::v6(6, [1; 16], [2; 16], [0, 443]);
        assert!(Pattern::of(&key).matches(&key), "{}", Pattern::of(&key));
    }

    #[test]
    fn what_patterns_have_in_common_is_known() {
        let read = |text: &str| text.parse::<Pattern>().expect(text);
        let both = |one: &str, other: &str| {
            let (one, other) = (read(one), read(other));
            assert_eq!(one.overlaps(&other), other.overlaps(&one));
            (one.covers(&other), other.covers(&one), one.overlaps(&other))
        };
        for (wide, narrow) in [
            ("*", "channel 7"),
            ("ip * > *", "udp * > 10.0.0.2:5004"),
            ("udp * > *:5004", "udp 10.0.0.1:* > 10.0.0.2:5004"),
            ("stream *", "stream 91:e0:f0:00:00:01 vlan 2"),
            ("stream * vlan 2", "stream 91:e0:f0:00:00:01 vlan 2"),
            ("channel *", "channel 7"),
        ] {
            assert_eq!(both(wide, narrow), (true, false, true), "{wide}, {narrow}");
            assert_eq!(both(narrow, narrow), (true, true, true), "{narrow}");
        }
        for (one, other, meet) in [
            ("udp * > *:5004", "udp 10.0.0.1 > *", true),
            ("udp * > *", "tcp * > *", false),
            ("udp * > *:5004", "udp * > *:5005", false),
            ("udp 10.0.0.1 > *", "udp [fd00::1] > *", false),
            ("stream * vlan 2", "stream 91:e0:f0:00:00:01", true),
            ("stream * vlan 2", "stream * vlan 3", false),
            ("channel 7", "channel 8", false),
            ("ip * > *", "channel *", false),
        ] {
            assert_eq!(both(one, other), (false, false, meet), "{one}, {other}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_word_at_fault() {
        for (text, word) in [
            ("", "another form"),
            ("udp 10.0.0.1", "another form"),
            ("udp 10.0.0.300:1 > *", "10.0.0.300"),
            ("udp *:70000 > *", "70000"),
            ("quic * > *", "quic"),
            ("stream 1:2 vlan 3", "1:2"),
            ("stream * vlan 4095", "4095"),
            ("channel seven", "seven"),
        ] {
            let error = text.parse::<Pattern>().expect_err(text).to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
