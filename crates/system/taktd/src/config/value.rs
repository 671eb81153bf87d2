//! The values that a configuration writes as text: sizes, ranges of channels, file modes, addresses.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::str::FromStr;

use bytesize::ByteSize;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use takt_clock::chrony;
use takt_runtime::config::{DEFAULT_PORT, OtherTraffic, SchedulingClass};
use takt_runtime::peering::AcceptNet;
use takt_runtime::peering::keys::PublicKey;
use takt_wire::ethernet::MacAddress;
use takt_wire::vxlan::NetworkId;

/// A value written as a string, or (some) as an integer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written<T>(pub T);

/// What can be written as a string.
pub trait FromText: Sized {
    /// How it is written, with an example: ends the sentence "write it as …".
    const FORM: &'static str;

    /// Reads it; `None` if it is not of that form.
    fn from_text(text: &str) -> Option<Self>;

    /// Reads an integer, where that is a form of it.
    fn from_integer(_: u64) -> Option<Self> {
        None
    }
}

impl<'de, T: FromText> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(std::marker::PhantomData<T>);

        impl<T: FromText> Visitor<'_> for Reader<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::FORM)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
                T::from_text(text)
                    .ok_or_else(|| E::custom(format_args!("not understood: write {}", T::FORM)))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
                T::from_integer(value)
                    .ok_or_else(|| E::custom(format_args!("not understood: write {}", T::FORM)))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
                u64::try_from(value)
                    .ok()
                    .and_then(T::from_integer)
                    .ok_or_else(|| E::custom(format_args!("not understood: write {}", T::FORM)))
            }
        }

        deserializer
            .deserialize_any(Reader(std::marker::PhantomData))
            .map(Written)
    }
}

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl FromText for Bytes {
    const FORM: &'static str =
        "a size as \"64 MiB\" (KiB, MiB, GiB, KB, MB, GB) or as a number of bytes";

    fn from_text(text: &str) -> Option<Self> {
        ByteSize::from_str(text).ok().map(|size| Self(size.0))
    }

    fn from_integer(value: u64) -> Option<Self> {
        Some(Self(value))
    }
}

/// A length of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nanoseconds(pub u64);

impl FromText for Nanoseconds {
    const FORM: &'static str = "a duration with its unit as \"250us\" (ns, us, ms, s)";

    fn from_text(text: &str) -> Option<Self> {
        let unit = text.ends_with('s') || text.trim() == "0";
        let read = takt_schedule::form::duration(text);
        read.filter(|_| unit).map(Self)
    }

    fn from_integer(value: u64) -> Option<Self> {
        (value == 0).then_some(Self(0))
    }
}

/// Channels, both ends included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channels(pub RangeInclusive<u64>);

impl FromText for Channels {
    const FORM: &'static str = "channels as \"1-99\", as one number, or as \"*\" for all";

    fn from_text(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == "*" {
            return Some(Self(0..=u64::MAX));
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first <= last).then_some(Self(first..=last))
    }

    fn from_integer(value: u64) -> Option<Self> {
        Some(Self(value..=value))
    }
}

impl fmt::Display for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self.0.start(), *self.0.end()) {
            (0, u64::MAX) => f.write_str("*"),
            (first, last) if first == last => write!(f, "{first}"),
            (first, last) => write!(f, "{first}-{last}"),
        }
    }
}

/// A program to ask about the clock, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked<A>(pub Option<A>);

impl FromText for Asked<PathBuf> {
    const FORM: &'static str =
        "the path of its Unix socket as \"/var/run/ptp4l\", or \"none\" to ask nobody";

    fn from_text(text: &str) -> Option<Self> {
        match text {
            "none" => Some(Self(None)),
            _ => text.starts_with('/').then(|| Self(Some(text.into()))),
        }
    }
}

impl FromText for Asked<chrony::Address> {
    const FORM: &'static str = "an address as \"127.0.0.1:323\", the path of a Unix socket as \
         \"/run/chrony/chronyd.sock\", or \"none\" to ask nobody";

    fn from_text(text: &str) -> Option<Self> {
        match text {
            "none" => Some(Self(None)),
            _ if text.starts_with('/') => Some(Self(Some(chrony::Address::Unix(text.into())))),
            _ => {
                let address = text.parse().ok()?;
                Some(Self(Some(chrony::Address::Udp(address))))
            }
        }
    }
}

impl FromText for OtherTraffic {
    const FORM: &'static str = "one of \"port\", \"taprio\", \"taprio-offload\" and \"auto\"";

    fn from_text(text: &str) -> Option<Self> {
        Self::named(text)
    }
}

/// Permission bits of a socket file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl FromText for FileMode {
    const FORM: &'static str = "permission bits in octal, as a string: \"0660\"";

    fn from_text(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let mode = u32::from_str_radix(digits, 8).ok()?;
        (mode <= 0o777).then_some(Self(mode))
    }
}

/// The local address of a node.
impl FromText for IpAddr {
    const FORM: &'static str =
        "an IP address as \"10.0.0.1\" or \"fd00::1\"; \"0.0.0.0\" for all of the node";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// A peer: its address, with its port unless that is the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

impl FromText for PeerAddress {
    const FORM: &'static str = "an IP address with or without port as \"10.0.0.2\", \"10.0.0.2:7400\" or \"[fd00::2]:7400\"; names are not looked up";

    fn from_text(text: &str) -> Option<Self> {
        let address = text
            .parse()
            .or_else(|_| {
                text.parse()
                    .map(|ip: IpAddr| SocketAddr::new(ip, DEFAULT_PORT))
            })
            .ok()?;
        (address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast())
            .then_some(Self(address))
    }
}

impl FromText for PublicKey {
    const FORM: &'static str =
        "a public key, 44 characters of base64, as `takt key show` prints it on the peer";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::from_text(text).ok_or_else(|| format!("`{text}` is no peer: write {}", Self::FORM))
    }
}

/// Where to serve metrics.
impl FromText for SocketAddr {
    const FORM: &'static str = "an IP address with port as \"127.0.0.1:9464\"";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl FromText for AcceptNet {
    const FORM: &'static str = "a network as \"10.0.0.0/24\" or \"fd00::/64\"";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl FromText for SchedulingClass {
    const FORM: &'static str = "\"other\", or \"fifo:50\" with a priority from 1 to 99";

    fn from_text(text: &str) -> Option<Self> {
        if text == "other" {
            return Some(Self::Other);
        }
        let priority = text.strip_prefix("fifo:")?.parse().ok()?;
        (1..=99).contains(&priority).then_some(Self::Fifo(priority))
    }
}

impl FromText for MacAddress {
    const FORM: &'static str = "a MAC address as \"02:00:00:00:00:01\"";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// How a network's frames travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// In a VXLAN with this identifier.
    Vxlan(NetworkId),
    /// Tagged with this VLAN.
    Vlan(u16),
    /// As they are.
    Native,
    /// By the routes of the hosts.
    Routed,
}

impl FromText for Carrier {
    const FORM: &'static str = "\"vxlan:42\" with an identifier up to 16777215, \"vlan:100\" with one from 1 to 4094, \"native\", or \"routed\"";

    fn from_text(text: &str) -> Option<Self> {
        match text {
            "native" => return Some(Self::Native),
            "routed" => return Some(Self::Routed),
            _ => {}
        }
        if let Some(id) = text.strip_prefix("vxlan:") {
            return NetworkId::new(id.parse().ok()?).map(Self::Vxlan);
        }
        let id = text.strip_prefix("vlan:")?.parse().ok()?;
        (1..=4094).contains(&id).then_some(Self::Vlan(id))
    }
}

/// An address of an endpoint, with the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixed(pub IpAddr, pub u8);

impl FromText for Prefixed {
    const FORM: &'static str = "an IP address with the length of its prefix as \"10.244.1.5/24\" or \"fd00::5/64\"; \"0.0.0.0/0\" or \"::/0\" for all";

    fn from_text(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let (address, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let all = prefix == 0 && address.is_unspecified();
        let one = !address.is_unspecified() && !address.is_multicast();
        let usable = all || (one && prefix <= longest);
        usable.then_some(Self(address, prefix))
    }
}

/// Receive queues of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queues(pub Range<u32>);

impl FromText for Queues {
    const FORM: &'static str = "queues as \"0-3\" or as one number; leave it out for all queues";

    fn from_text(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first <= last).then_some(Self(first..last.checked_add(1)?))
    }

    fn from_integer(value: u64) -> Option<Self> {
        let queue = u32::try_from(value).ok()?;
        Some(Self(queue..queue.checked_add(1)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_documented() {
        assert_eq!(Bytes::from_text("64 MiB"), Some(Bytes(64 << 20)));
        assert_eq!(Bytes::from_text("1GiB"), Some(Bytes(1 << 30)));
        assert_eq!(Bytes::from_text("10 MB"), Some(Bytes(10_000_000)));
        assert_eq!(Bytes::from_integer(7), Some(Bytes(7)));
        assert_eq!(Channels::from_text("1-99"), Some(Channels(1..=99)));
        assert_eq!(Channels::from_text("*"), Some(Channels(0..=u64::MAX)));
        assert_eq!(Channels::from_integer(7), Some(Channels(7..=7)));
        assert_eq!(FileMode::from_text("0660"), Some(FileMode(0o660)));
        assert_eq!(FileMode::from_text("0o600"), Some(FileMode(0o600)));
        assert_eq!(
            PeerAddress::from_text("10.0.0.2"),
            Some(PeerAddress(SocketAddr::from(([10, 0, 0, 2], DEFAULT_PORT))))
        );
        assert_eq!(
            PeerAddress::from_text("[fd00::2]:9"),
            "[fd00::2]:9".parse().ok().map(PeerAddress)
        );
        assert_eq!(
            SchedulingClass::from_text("fifo:50"),
            Some(SchedulingClass::Fifo(50))
        );
        assert_eq!(Queues::from_text("0-3"), Some(Queues(0..4)));
        assert_eq!(Queues::from_integer(2), Some(Queues(2..3)));
    }

    #[test]
    fn values_of_another_form_are_refused() {
        assert_eq!(Bytes::from_text("much"), None);
        assert_eq!(Channels::from_text("9-1"), None);
        assert_eq!(Channels::from_text("a-b"), None);
        assert_eq!(Channels::from_text("-1"), None);
        assert_eq!(FileMode::from_text("0999"), None);
        assert_eq!(FileMode::from_text("+660"), None);
        assert_eq!(FileMode::from_text("7777"), None);
        assert_eq!(FileMode::from_integer(660), None);
        assert_eq!(PeerAddress::from_text("node2:7400"), None);
        assert_eq!(PeerAddress::from_text("10.0.0.2:0"), None);
        assert_eq!(PeerAddress::from_text("0.0.0.0"), None);
        assert_eq!(SchedulingClass::from_text("fifo:0"), None);
        assert_eq!(SchedulingClass::from_text("fifo"), None);
        assert_eq!(Queues::from_text("3-0"), None);
        assert_eq!(Queues::from_text("0-4294967295"), None);
    }

    #[test]
    fn addresses_of_endpoints_are_read_with_their_prefix() {
        let read = Prefixed::from_text("10.244.1.5/24");
        assert_eq!(read, Some(Prefixed([10, 244, 1, 5].into(), 24)));
        let all = Prefixed::from_text("0.0.0.0/0");
        assert_eq!(all, Some(Prefixed([0; 4].into(), 0)));
        for wrong in [
            "10.244.1.5",
            "10.244.1.5/33",
            "0.0.0.0/8",
            "::/64",
            "224.0.0.1/4",
            "fd00::1/129",
            "/8",
        ] {
            assert_eq!(Prefixed::from_text(wrong), None, "{wrong}");
        }
        let mac = MacAddress::from_text("02:00:00:00:00:0a");
        assert_eq!(mac, Some(MacAddress([2, 0, 0, 0, 0, 10])));
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:0a:01",
            "2:0:0:0:0:a",
            "0g:00:00:00:00:00",
            "+2:00:00:00:00:00",
        ] {
            assert_eq!(MacAddress::from_text(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn carriers_are_read_as_documented() {
        assert_eq!(
            Carrier::from_text("vxlan:42"),
            NetworkId::new(42).map(Carrier::Vxlan)
        );
        assert_eq!(Carrier::from_text("vlan:100"), Some(Carrier::Vlan(100)));
        assert_eq!(Carrier::from_text("native"), Some(Carrier::Native));
        assert_eq!(Carrier::from_text("routed"), Some(Carrier::Routed));
        for wrong in [
            "",
            "vxlan",
            "vxlan:16777216",
            "vlan:0",
            "vlan:4095",
            "gre:1",
        ] {
            assert_eq!(Carrier::from_text(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn channels_are_written_as_they_are_read() {
        for text in ["*", "7", "1-99"] {
            let channels = Channels::from_text(text).expect("a range");
            assert_eq!(channels.to_string(), text);
        }
    }
}
