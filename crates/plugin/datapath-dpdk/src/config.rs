//! What a datapath over DPDK is told: the keys of `[datapath.dpdk]`.

use std::net::IpAddr;

use takt_datapath::OpenError;
use takt_wire::ethernet::MacAddress;

/// Whether packets lie in huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Where there are enough, ordinary ones elsewhere.
    #[default]
    Auto,
    /// Or the datapath is not available.
    On,
    /// Never: slower, and no network card can be driven so.
    Off,
}

/// An address of this node and the network that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// The node's own address.
    pub address: IpAddr,
    /// Bits of the address that all of the network share.
    pub prefix: u8,
}

impl Subnet {
    /// Whether `other` is in this network: reached without a gateway.
    pub fn contains(&self, other: IpAddr) -> bool {
        let shared = |own: u128, other: u128, width: u8| {
            let rest = u32::from(width - self.prefix.min(width));
            (own ^ other).checked_shr(rest).unwrap_or(0) == 0
        };
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                shared(own.to_bits().into(), other.to_bits().into(), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => shared(own.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }
}

/// How a datapath over DPDK is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkConfig {
    /// A PCI address such as `0000:01:00.0`, or a virtual device as DPDK writes it:
    /// `net_af_packet0,iface=eth1`.
    pub device: String,
    /// The device's own addresses. None: those of the kernel interface that an `net_af_packet` device is on.
    pub addresses: Vec<Subnet>,
    /// Routers, at most one for each address family: the way to whatever is in no network of
    /// [`addresses`](Self::addresses).
    pub gateways: Vec<IpAddr>,
    /// Neighbours that are known and never asked for.
    pub neighbours: Vec<(IpAddr, MacAddress)>,
    /// Largest IP packet in bytes; 1500 unless told. With a kernel interface, its route's where that is smaller.
    pub mtu: u16,
    /// Receive and transmit queues.
    pub queues: u16,
    /// Descriptors of each queue, as near as the device has it.
    pub descriptors: u16,
    /// Whether packets lie in huge pages: for the whole process, as the first datapath asks.
    pub huge_pages: HugePages,
    /// MiB of memory for packets, where there are no huge pages: for the whole process, as the first datapath
    /// asks.
    pub memory: u32,
    /// Further arguments of DPDK's environment (EAL), as the first datapath of the process asks.
    pub eal: Vec<String>,
    /// Most peers of a port.
    pub peers: u16,
}

impl DpdkConfig {
    /// The defaults, for a device.
    pub fn new(device: &str) -> Self {
        Self {
            device: device.into(),
            addresses: Vec::new(),
            gateways: Vec::new(),
            neighbours: Vec::new(),
            mtu: 1500,
            queues: 1,
            descriptors: 512,
            huge_pages: HugePages::Auto,
            memory: 256,
            eal: Vec::new(),
            peers: 1024,
        }
    }

    /// Reads the keys of the configuration. A key that may have several values is there several times, or has
    /// them in one text, separated by spaces or commas.
    ///
    /// # Errors
    /// [`OpenError::Unavailable`] names the key, its value and what it may be.
    pub fn from_options<'a>(
        options: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, OpenError> {
        let mut config = Self::new("");
        for (key, value) in options {
            config.set(key, value.trim())?;
        }
        config.check()?;
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), OpenError> {
        let wrong = |wanted: &str| refused(format!("{key} = {value:?}: {wanted}"));
        match key {
            "device" => self.device = value.into(),
            "address" => {
                for word in words(value) {
                    let subnet = subnet(word).ok_or_else(|| {
                        wrong("write an address with its prefix, as 10.0.0.1/24 or fd00::1/64")
                    })?;
                    self.addresses.push(subnet);
                }
            }
            "gateway" => {
                for word in words(value) {
                    let gateway = word.parse().map_err(|_| wrong("write an IP address"))?;
                    self.gateways.push(gateway);
                }
            }
            "neighbour" => {
                for word in words(value) {
                    let neighbour = word.split_once('=').and_then(|(address, mac)| {
                        Some((address.parse().ok()?, mac.parse().ok()?))
                    });
                    self.neighbours.push(neighbour.ok_or_else(|| {
                        wrong("write an address and its MAC, as 10.0.0.2=02:00:00:00:00:01")
                    })?);
                }
            }
            "mtu" => {
                self.mtu = value
                    .parse()
                    .map_err(|_| wrong("write a number of bytes"))?
            }
            "queues" => self.queues = value.parse().map_err(|_| wrong("write a number"))?,
            "descriptors" => {
                self.descriptors = value.parse().map_err(|_| wrong("write a number"))?;
            }
            "hugepages" => {
                self.huge_pages = match value {
                    "auto" => HugePages::Auto,
                    "on" | "true" => HugePages::On,
                    "off" | "false" => HugePages::Off,
                    _ => return Err(wrong("write auto, on or off")),
                }
            }
            "memory" => self.memory = value.parse().map_err(|_| wrong("write a number of MiB"))?,
            "eal" => self.eal.extend(value.split_whitespace().map(Into::into)),
            "peers" => self.peers = value.parse().map_err(|_| wrong("write a number"))?,
            _ => {
                return Err(refused(format!(
                    "unknown key {key:?}; there are device, address, gateway, neighbour, mtu, queues, \
                     descriptors, hugepages, memory, eal, peers"
                )));
            }
        }
        Ok(())
    }

    /// # Errors
    /// [`OpenError::Unavailable`].
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        if self.device.is_empty() {
            return Err(refused(
                "`device` is missing: name a PCI address such as 0000:01:00.0 or a virtual device such as \
                 net_af_packet0,iface=eth1"
                    .into(),
            ));
        }
        if self.device.contains('\0') || self.eal.iter().any(|word| word.contains('\0')) {
            return Err(refused("a text with a zero byte in it".into()));
        }
        if let Some(word) = self.eal.iter().find(|word| ends_process(word)) {
            return Err(refused(format!(
                "eal = \"{word}\": DPDK would end this process instead of starting; see its documentation for help"
            )));
        }
        let ranges = [
            ("mtu", self.mtu, 1280, 9600),
            ("queues", self.queues, 1, 32),
            ("descriptors", self.descriptors, 32, 8192),
            ("peers", self.peers, 1, u16::MAX),
        ];
        for (key, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(refused(format!(
                    "{key} = {value}: choose from {least} to {most}"
                )));
            }
        }
        if !(64..=65_536).contains(&self.memory) {
            return Err(refused(format!(
                "memory = {}: choose from 64 to 65536 MiB",
                self.memory
            )));
        }
        if self.addresses.is_empty() && self.kernel_interface().is_none() {
            return Err(refused(format!(
                "{} has no kernel interface to take addresses from: set `address`, as 10.0.0.1/24",
                self.device
            )));
        }
        for subnet in &self.addresses {
            let address = subnet.address;
            if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
                return Err(refused(format!("address {address}: no host can have it")));
            }
        }
        for gateway in &self.gateways {
            if !self.addresses.iter().any(|own| own.contains(*gateway)) {
                return Err(refused(format!(
                    "gateway {gateway} is in no network of `address`"
                )));
            }
        }
        Ok(())
    }

    /// The interface whose addresses, routes and neighbours are the kernel's.
    pub(crate) fn kernel_interface(&self) -> Option<&str> {
        if !self.addresses.is_empty() || !self.device.starts_with("net_af_packet") {
            return None;
        }
        self.argument("iface")
    }

    /// The value of one of the device's arguments.
    pub(crate) fn argument(&self, key: &str) -> Option<&str> {
        let mut arguments = self.device.split(',').skip(1);
        arguments.find_map(|argument| argument.strip_prefix(key)?.strip_prefix('='))
    }

    /// The device's name without its arguments.
    pub(crate) fn device_name(&self) -> &str {
        self.device.split(',').next().unwrap_or_default()
    }
}

fn refused(text: String) -> OpenError {
    OpenError::Unavailable(format!("[datapath.dpdk]: {text}"))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split([' ', ',', '\t', '\n'])
        .filter(|word| !word.is_empty())
}

fn subnet(text: &str) -> Option<Subnet> {
    let (address, prefix) = text.split_once('/')?;
    let subnet = Subnet {
        address: address.parse().ok()?,
        prefix: prefix.parse().ok()?,
    };
    let most = if subnet.address.is_ipv4() { 32 } else { 128 };
    (subnet.prefix <= most).then_some(subnet)
}

/// Whether a word of DPDK's command line asks for help, after which `rte_eal_init` calls `exit`.
fn ends_process(word: &str) -> bool {
    // Long options may be cut short, short ones without a value stand in a row.
    let long = word.starts_with("--he") && "--help".starts_with(word);
    let short = word
        .strip_prefix('-')
        .is_some_and(|letters| letters.trim_start_matches('v').starts_with('h'));
    long || short || word == "help" || word.ends_with("=help")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &[(&str, &str)]) -> Result<DpdkConfig, String> {
        DpdkConfig::from_options(options.iter().copied()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_is_read() {
        let config = read(&[
            ("device", "net_memif0,role=server,socket=/run/m.sock"),
            ("address", "10.0.0.1/24 fd00::1/64"),
            ("gateway", "10.0.0.254, fd00::ff"),
            ("neighbour", "10.0.0.2=02:00:00:00:00:01"),
            ("mtu", "9000"),
            ("queues", "2"),
            ("descriptors", "1024"),
            ("hugepages", "off"),
            ("memory", "128"),
            ("eal", "--log-level=8 -m 64"),
            ("peers", "10"),
        ])
        .expect("a configuration");
        assert_eq!(config.device_name(), "net_memif0");
        assert_eq!(config.argument("socket"), Some("/run/m.sock"));
        assert_eq!(config.addresses.len(), 2);
        assert_eq!(config.gateways.len(), 2);
        assert_eq!(config.neighbours[0].1, MacAddress([2, 0, 0, 0, 0, 1]));
        assert_eq!(
            (config.mtu, config.queues, config.descriptors),
            (9000, 2, 1024)
        );
        assert_eq!(config.huge_pages, HugePages::Off);
        assert_eq!((config.memory, config.peers), (128, 10));
        assert_eq!(config.eal, ["--log-level=8", "-m", "64"]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_value() {
        for (options, said) in [
            (&[("mtu", "9000")] as &[_], "`device` is missing"),
            (&[("device", "net_memif0")], "set `address`"),
            (&[("device", "x"), ("address", "10.0.0.1")], "10.0.0.1/24"),
            (
                &[("device", "x"), ("address", "10.0.0.1/33")],
                "10.0.0.1/33",
            ),
            (&[("device", "x"), ("address", "0.0.0.0/0")], "no host"),
            (&[("device", "x"), ("gateway", "here")], "here"),
            (
                &[
                    ("device", "x"),
                    ("address", "10.0.0.1/24"),
                    ("gateway", "10.0.1.1"),
                ],
                "in no network",
            ),
            (&[("device", "x"), ("neighbour", "10.0.0.2")], "10.0.0.2"),
            (
                &[("device", "net_af_packet0,iface=a"), ("mtu", "40")],
                "mtu = 40",
            ),
            (
                &[("device", "net_af_packet0,iface=a"), ("queues", "0")],
                "queues = 0",
            ),
            (
                &[("device", "net_af_packet0,iface=a"), ("eal", "--hel")],
                "would end this process",
            ),
            (
                &[("device", "net_af_packet0,iface=a"), ("eal", "-vh")],
                "would end this process",
            ),
            (
                &[
                    ("device", "net_af_packet0,iface=a"),
                    ("eal", "--log-level=help"),
                ],
                "would end this process",
            ),
            (&[("hugepages", "maybe")], "auto, on or off"),
            (&[("color", "red")], "color"),
        ] {
            let error = read(options).expect_err("refused");
            assert!(error.contains(said), "{options:?}: {error}");
        }
    }

    #[test]
    fn a_network_is_what_shares_its_prefix() {
        let network = |text: &str| subnet(text).expect("a network");
        let within =
            |own: &str, other: &str| network(own).contains(other.parse().expect("address"));
        assert!(within("10.0.0.1/24", "10.0.0.255"));
        assert!(!within("10.0.0.1/24", "10.0.1.0"));
        assert!(within("10.0.0.1/0", "192.168.0.1"));
        assert!(!within("10.0.0.1/32", "10.0.0.0"));
        assert!(within("fd00::1/64", "fd00::2"));
        assert!(!within("fd00::1/64", "fd00:0:0:1::2"));
        assert!(within("fd00::1/0", "::2"));
        assert!(!within("fd00::1/0", "1.2.3.4"));
    }
}
