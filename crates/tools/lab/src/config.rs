//! What a lab looks like: how many hosts, their addresses, and what joins them.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::LabError;

/// The most hosts a lab can have: a bridge carries more, but nobody needs more on one machine.
const MOST_HOSTS: usize = 64;
/// The most containers of a host.
const MOST_CONTAINERS: usize = 64;
/// Octets that a VXLAN over IPv4 adds to a packet.
pub(crate) const ENCAPSULATION: u32 = 50;
/// Slower than any link worth emulating; one frame of 1500 octets takes 0.2 s.
const LEAST_RATE: u64 = 64_000;
/// Half of all packets.
const MOST_LOSS_PPM: u32 = 500_000;
/// One terabit a second: above it `tc` has no use for a limit.
const MOST_RATE: u64 = 1_000_000_000_000;

/// The configuration of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabConfig {
    /// How many hosts, 2 to 64.
    pub hosts: usize,
    /// The MTU of every link in octets, 68 to 65535. Native XDP on veth takes about 3500 at most.
    pub mtu: u32,
    /// The network the hosts are numbered in: host `i` has the address `network + i + 1`.
    pub network: Network,
    /// Receive and transmit queues of every veth end, 1 to 64.
    pub queues: u32,
    /// The rate of every cable in both directions in bit/s, kept by a token bucket (`tc tbf`) at
    /// each end. AF_XDP in copy mode passes by the sender's queueing discipline: with
    /// [`Wiring::Bridge`] the switch's end still holds the rate towards each receiver.
    pub rate: Option<u64>,
    /// With a bridge: how many of a million packets the switch loses, each by itself, of those that come in from each host; 0 to
    /// 500000. Hosts send each segment as a packet then, also with 0, not many in one that would be lost at once.
    #[serde(default)]
    pub loss_ppm: Option<u32>,
    /// What joins the hosts.
    pub wiring: Wiring,
    /// With a rate and a bridge: the switch's ends send packets of the class selectors 4 to 7 (RFC 2474; the
    /// upper half of all DSCP values) before all others, as switches with queues do.
    #[serde(default)]
    pub priorities: bool,
    /// Containers on each host, 0 to 64: namespaces behind a bridge and a VXLAN that spans the hosts, as
    /// container networks build them. Container `j` of host `i` has the address `10.88.i+1.j+1`.
    #[serde(default)]
    pub containers: usize,
    /// How the containers' network reaches the other hosts.
    #[serde(default)]
    pub overlay: Overlay,
}

impl Default for LabConfig {
    /// Two hosts on one cable: `10.77.0.1` and `10.77.0.2`, MTU 1500, one queue, no rate limit.
    fn default() -> Self {
        Self {
            hosts: 2,
            mtu: 1500,
            network: Network {
                address: Ipv4Addr::new(10, 77, 0, 0),
                prefix_length: 24,
            },
            queues: 1,
            rate: None,
            loss_ppm: None,
            wiring: Wiring::Auto,
            priorities: false,
            containers: 0,
            overlay: Overlay::Bridged,
        }
    }
}

impl LabConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// [`LabError::Config`] naming the first field at fault.
    pub fn validate(&self) -> Result<(), LabError> {
        let fault = |field, value: String, remedy: String| {
            Err(LabError::Config {
                field,
                value,
                remedy,
            })
        };
        if !(2..=MOST_HOSTS).contains(&self.hosts) {
            return fault(
                "hosts",
                self.hosts.to_string(),
                format!("use 2 to {MOST_HOSTS}"),
            );
        }
        if !(68..=65_535).contains(&self.mtu) {
            return fault("mtu", self.mtu.to_string(), "use 68 to 65535 octets".into());
        }
        if !(1..=64).contains(&self.queues) {
            return fault("queues", self.queues.to_string(), "use 1 to 64".into());
        }
        if self.priorities && (self.rate.is_none() || !self.bridged()) {
            return fault(
                "priorities",
                "on".into(),
                "only a switch with a rate has queues: give a rate, and the wiring bridge".into(),
            );
        }
        if let Some(loss) = self.loss_ppm {
            if loss > MOST_LOSS_PPM {
                let remedy = format!("use 0 to {MOST_LOSS_PPM}");
                return fault("loss_ppm", loss.to_string(), remedy);
            }
            if !self.bridged() {
                return fault(
                    "loss_ppm",
                    loss.to_string(),
                    "only a switch loses packets: use the wiring bridge".into(),
                );
            }
        }
        if self.containers > MOST_CONTAINERS {
            return fault(
                "containers",
                self.containers.to_string(),
                format!("use 0 to {MOST_CONTAINERS}"),
            );
        }
        if self.containers > 0 && self.mtu < 68 + ENCAPSULATION {
            return fault(
                "mtu",
                self.mtu.to_string(),
                format!(
                    "a VXLAN takes {ENCAPSULATION} octets: use {} at least",
                    68 + ENCAPSULATION
                ),
            );
        }
        if let Some(rate) = self.rate
            && !(LEAST_RATE..=MOST_RATE).contains(&rate)
        {
            return fault(
                "rate",
                format!("{rate} bit/s"),
                format!("use {LEAST_RATE} to {MOST_RATE} bit/s"),
            );
        }
        if self.network.hosts() < self.hosts {
            let remedy = format!(
                "it has {} host addresses for {} hosts; use a shorter prefix",
                self.network.hosts(),
                self.hosts
            );
            return fault("network", self.network.to_string(), remedy);
        }
        if self.wiring == Wiring::Cable && self.hosts != 2 {
            return fault(
                "wiring",
                "cable".into(),
                format!(
                    "a cable joins 2 hosts, not {}; use auto or bridge",
                    self.hosts
                ),
            );
        }
        Ok(())
    }

    /// Whether the hosts hang on a bridge.
    pub(crate) fn bridged(&self) -> bool {
        match self.wiring {
            Wiring::Auto => self.hosts > 2,
            Wiring::Cable => false,
            Wiring::Bridge => true,
        }
    }
}

/// What joins the hosts of a lab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wiring {
    /// A cable for two hosts, a bridge for more.
    #[default]
    Auto,
    /// One veth pair from host to host.
    Cable,
    /// A Linux bridge without spanning tree in the namespace `<lab>-switch`.
    Bridge,
}

/// How the network of containers spans the hosts of a lab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlay {
    /// One segment, `10.88.0.0/16`: each host's bridge `cni0` has the VXLAN device `vxlan42` as a port.
    #[default]
    Bridged,
    /// As Flannel's VXLAN backend builds it: a subnet `10.88.i+1.0/24` for each host, whose bridge `cni0` has its
    /// first address and is the containers' gateway; the other hosts' subnets are routed by way of
    /// `vxlan42`. Container `j` of host `i` has the address `10.88.i+1.j+2`.
    Flannel,
    /// As Flannel's host-gw backend builds it: as before, with routes by way of the other hosts themselves.
    #[serde(rename = "host-gw")]
    HostGateway,
}

impl Overlay {
    /// Whether each host has a subnet of its own.
    pub(crate) fn routed(self) -> bool {
        self != Self::Bridged
    }
}

/// An IPv4 network, written `10.77.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    address: Ipv4Addr,
    prefix_length: u8,
}

impl Network {
    /// The network's own address; its host bits are zero.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The prefix length in bits, 8 to 30.
    pub fn prefix_length(&self) -> u8 {
        self.prefix_length
    }

    /// How many hosts can be numbered: all but the network's own address and the broadcast address.
    fn hosts(&self) -> usize {
        (1usize << (32 - self.prefix_length)) - 2
    }

    /// The address of host `index`, counted from 0.
    pub(crate) fn host(&self, index: usize) -> Ipv4Addr {
        debug_assert!(
            index < self.hosts(),
            "a validated configuration numbers its hosts within the network"
        );
        Ipv4Addr::from_bits(self.address.to_bits() + index as u32 + 1)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_length)
    }
}

/// A text that is no network a lab can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot use {text:?} as a network: write an IPv4 network such as 10.77.0.0/24, prefix 8 to 30, host bits zero"
)]
pub struct ParseNetworkError {
    /// The text at fault.
    pub text: String,
}

impl FromStr for Network {
    type Err = ParseNetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (address, prefix_length) = text.split_once('/')?;
            let address: Ipv4Addr = address.parse().ok()?;
            let prefix_length: u8 = prefix_length.parse().ok()?;
            let host_bits = u32::MAX.checked_shr(u32::from(prefix_length))?;
            ((8..=30).contains(&prefix_length) && address.to_bits() & host_bits == 0).then_some(
                Self {
                    address,
                    prefix_length,
                },
            )
        };
        parse().ok_or_else(|| ParseNetworkError {
            text: text.to_owned(),
        })
    }
}

impl TryFrom<String> for Network {
    type Error = ParseNetworkError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_read_as_it_is_written() {
        for text in ["10.77.0.0/24", "172.16.0.0/12", "192.168.4.8/30"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_network_with_host_bits_or_an_unusable_prefix_is_refused() {
        for text in [
            "10.77.0.1/24",
            "10.77.0.0",
            "10.77.0.0/31",
            "10.0.0.0/7",
            "0.0.0.0/32",
            "10.77.0.0/240",
            "fd00::/64",
            "",
        ] {
            assert_eq!(
                text.parse::<Network>(),
                Err(ParseNetworkError { text: text.into() }),
                "{text}"
            );
        }
    }

    #[test]
    fn hosts_are_numbered_from_one() {
        let network: Network = "192.168.4.8/30".parse().unwrap();
        assert_eq!(network.host(0), Ipv4Addr::new(192, 168, 4, 9));
        assert_eq!(network.host(1), Ipv4Addr::new(192, 168, 4, 10));
    }

    #[test]
    fn each_field_out_of_range_is_named() {
        type Change = fn(&mut LabConfig);
        let cases: [(&str, Change); 7] = [
            ("hosts", |c| c.hosts = 1),
            ("hosts", |c| c.hosts = 65),
            ("mtu", |c| c.mtu = 60),
            ("queues", |c| c.queues = 0),
            ("rate", |c| c.rate = Some(1)),
            ("network", |c| {
                c.network = "10.0.0.0/30".parse().unwrap();
                c.hosts = 3;
            }),
            ("wiring", |c| {
                c.wiring = Wiring::Cable;
                c.hosts = 3;
            }),
        ];
        for (expected, change) in cases {
            let mut config = LabConfig::default();
            change(&mut config);
            assert!(
                matches!(config.validate(), Err(LabError::Config { field, .. }) if field == expected),
                "{expected}"
            );
        }
        LabConfig::default().validate().unwrap();
    }

    #[test]
    fn two_hosts_get_a_cable_and_three_a_bridge() {
        let config = LabConfig::default();
        assert!(!config.bridged());
        assert!(
            LabConfig {
                hosts: 3,
                ..config.clone()
            }
            .bridged()
        );
        assert!(
            LabConfig {
                wiring: Wiring::Bridge,
                ..config
            }
            .bridged()
        );
    }
}
