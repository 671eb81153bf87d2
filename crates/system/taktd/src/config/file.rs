//! The sections of the configuration file, as written. What a key means: `docs/reference/configuration.md`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use takt_datapath::plugin::Options;
use takt_runtime::config::{DEFAULT_PORT, OtherTraffic, SchedulingClass};
use takt_runtime::peering::AcceptNet;
use takt_runtime::peering::keys::{PublicKey, REKEY};
use takt_session::place::Socket;
use takt_wire::ethernet::MacAddress;

use super::value::{
    Asked, Bytes, Carrier, Channels, FileMode, Nanoseconds, PeerAddress, Prefixed, Queues, Written,
};

/// A whole file. A section that is left out has its defaults.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// `[node]`
    pub node: Node,
    /// `[[lane]]`; left out: one lane of defaults.
    pub lane: Option<Vec<Lane>>,
    /// `[[class]]`
    pub class: Vec<Class>,
    /// `[security]`
    pub security: Security,
    /// `[[peer]]`
    pub peer: Vec<Peer>,
    /// `[scout]`; left out: nodes on the link are not looked for.
    pub scout: Option<Scout>,
    /// `[[network]]`
    pub network: Vec<Network>,
    /// `[[schedule]]`
    pub schedule: Vec<Schedule>,
    /// `[[listener]]`; left out: one listener of defaults. `listener = []`: none.
    pub listener: Option<Vec<Listener>>,
    /// `[limits]`
    pub limits: Limits,
    /// `[departure]`
    pub departure: Departure,
    /// `[clock]`
    pub clock: Clock,
    /// `[balance]`
    pub balance: Balance,
    /// `[mapping]`
    pub mapping: Mapping,
    /// `[datapath.*]`
    pub datapath: Datapaths,
    /// `[admin]`
    pub admin: Admin,
    /// `[metrics]`
    pub metrics: Metrics,
    /// `[log]`
    pub log: Log,
}

/// `[node]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Node {
    /// A name for people; the host's where left out.
    pub name: Option<String>,
    /// Local address of the node's traffic.
    pub address: Written<IpAddr>,
    /// UDP port of the peering protocol; lanes follow behind it.
    pub port: u16,
    /// Networks whose runtimes may become peers by themselves.
    pub accept: Vec<Written<AcceptNet>>,
    /// How long a clean stop may take, seconds.
    pub drain_seconds: u64,
    /// Where to keep what was installed for the next start.
    pub state: Option<PathBuf>,
    /// Where datapaths that are loaded are.
    pub plugins: PathBuf,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            name: None,
            address: Written(Ipv4Addr::UNSPECIFIED.into()),
            port: DEFAULT_PORT,
            accept: Vec::new(),
            drain_seconds: 5,
            state: None,
            plugins: takt_datapath::plugin::DIRECTORY.into(),
        }
    }
}

/// `[[lane]]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lane {
    /// What to do when idle.
    pub idle: IdleKind,
    /// With `idle = "adaptive"`: how long to poll on, microseconds.
    pub spin_us: Option<u32>,
    /// Core to pin to.
    pub core: Option<usize>,
    /// Scheduling class of the lane's thread.
    pub scheduling: Written<SchedulingClass>,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            idle: IdleKind::Adaptive,
            spin_us: None,
            core: None,
            scheduling: Written(SchedulingClass::Other),
        }
    }
}

/// What a lane does when idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdleKind {
    /// Poll on.
    Spin,
    /// Poll on for a while, then sleep.
    #[default]
    Adaptive,
    /// Sleep at once.
    Park,
}

/// `[[peer]]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Its peering address.
    pub address: Written<PeerAddress>,
    /// Its public key; none: it has the group's key.
    pub key: Option<Written<PublicKey>>,
    /// Another one, which it is going to have.
    pub next_key: Option<Written<PublicKey>>,
}

/// `[scout]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scout {
    /// The interface whose link is meant; none: nothing is announced.
    pub interface: Option<String>,
    /// Multicast group and UDP port; none: the default of the node's address family.
    pub group: Option<Written<SocketAddr>>,
    /// Peering addresses of nodes that introduce others to this one.
    #[serde(default)]
    pub rendezvous: Vec<Written<PeerAddress>>,
    /// This node introduces its peers to each other.
    #[serde(default)]
    pub introduce: bool,
}

/// `[[class]]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// A traffic class, 0 to 7.
    pub number: u8,
    /// Lanes that serve its streams.
    pub lanes: Vec<usize>,
}

/// `[security]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Security {
    /// What every datagram between nodes has.
    pub protection: Protection,
    /// File with the node's own key; made at the first start. None: [`default_key_file`](crate::security::default_key_file).
    pub key_file: Option<PathBuf>,
    /// File with the key that all nodes of a group share.
    pub group_key_file: Option<PathBuf>,
    /// Public keys of nodes that are accepted from accepted networks.
    pub allow: Vec<Written<PublicKey>>,
    /// When the keys of datagrams are replaced.
    pub rekey_seconds: u64,
}

impl Default for Security {
    fn default() -> Self {
        Self {
            protection: Protection::Integrity,
            key_file: None,
            group_key_file: None,
            allow: Vec::new(),
            rekey_seconds: REKEY.as_secs(),
        }
    }
}

/// What every datagram between nodes has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protection {
    /// Nothing: whoever can send to the node reads and writes its channels.
    None,
    /// A tag that proves its sender and content.
    Integrity,
    /// In addition, what is in it is encrypted.
    Encrypt,
}

impl From<Protection> for takt_runtime::peering::keys::Protection {
    fn from(protection: Protection) -> Self {
        match protection {
            Protection::None => Self::None,
            Protection::Integrity => Self::Integrity,
            Protection::Encrypt => Self::Encrypt,
        }
    }
}

/// `[[listener]]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Listener {
    /// Path of the Unix socket.
    pub path: PathBuf,
    /// Permission bits of the socket file.
    pub mode: Written<FileMode>,
    /// The tenant.
    pub identity: String,
    /// Users that may connect; empty: whoever the file mode lets in.
    pub uids: Vec<u32>,
    /// Channels it may write.
    pub write: Vec<Written<Channels>>,
    /// Channels it may read.
    pub read: Vec<Written<Channels>>,
    /// Traffic classes it may use.
    pub classes: Vec<u8>,
    /// Most messages per second of all sessions together; 0 = unlimited.
    pub messages_per_second: u64,
    /// Most payload bytes per second of all sessions together; 0 = unlimited.
    pub bytes_per_second: Written<Bytes>,
    /// Most bytes of a session's arena.
    pub memory: Written<Bytes>,
    /// Most bytes of all its sessions' arenas; left out: half of what the daemon may use.
    pub total_memory: Option<Written<Bytes>>,
    /// Most sessions at a time.
    pub sessions: usize,
    /// Most sources, and as many sinks, of a session; and of one channel of all sessions together, if that is more than 256.
    pub endpoints: usize,
    /// Most sources and sinks of all its sessions.
    pub total_endpoints: usize,
    /// Most descriptors of the daemon that its sessions need.
    pub descriptors: usize,
    /// Lanes that serve its sessions; left out: all.
    pub lanes: Option<Vec<usize>>,
    /// `[listener.endpoint]`: its place in a network.
    pub endpoint: Option<Endpoint>,
    /// `[[listener.stream]]`: what it sends at which times.
    pub stream: Vec<Stream>,
    /// What becomes of frames of no stream in a class in which it has streams.
    pub undeclared: Undeclared,
    /// Which of its sessions exchange messages in memory of each other's.
    pub trust: Trust,
}

/// Which sessions of a listener are a trust domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// None.
    #[default]
    Nobody,
    /// Those of one user.
    User,
}

/// What becomes of a tenant's frames that are of no stream of theirs, where it has streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Undeclared {
    /// They are refused, and counted.
    #[default]
    Refuse,
    /// They are sent.
    Send,
}

/// `[[listener.stream]]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// A name that no other stream of the listener has.
    pub name: String,
    /// Its traffic class.
    pub class: u8,
    /// The channel whose messages it is.
    pub channel: Option<u64>,
    /// The address whose UDP datagrams it is, sent from the endpoint.
    pub destination: Option<Written<SocketAddr>>,
    /// From one launch to the next.
    pub period: Written<Nanoseconds>,
    /// From the begin of a period to its launch.
    #[serde(default)]
    pub offset: Written<Nanoseconds>,
    /// How much later that may be.
    #[serde(default)]
    pub window: Written<Nanoseconds>,
    /// Octets of its largest frame.
    pub frame: Written<Bytes>,
    /// Frames in a period.
    #[serde(default = "Stream::usual_frames")]
    pub frames: u32,
}

impl Stream {
    /// As most have.
    pub fn usual_frames() -> u32 {
        1
    }
}

/// `[listener.endpoint]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// The network's name.
    pub network: String,
    /// The only source of its frames.
    pub mac: Written<MacAddress>,
    /// The only sources of its packets.
    pub addresses: Vec<Written<Prefixed>>,
    /// Most bytes of a packet.
    #[serde(default = "Endpoint::usual_mtu")]
    pub mtu: u16,
    /// EtherTypes of frames that it may send besides IP.
    #[serde(default)]
    pub ethertypes: Vec<u16>,
    /// VLANs whose tags its frames may have.
    #[serde(default)]
    pub vlans: Vec<u16>,
}

impl Endpoint {
    /// What an interface of 1500 leaves to a VXLAN over IPv4.
    pub fn usual_mtu() -> u16 {
        1450
    }
}

/// `[[network]]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// How its frames travel.
    pub carrier: Written<Carrier>,
    /// In a VXLAN: UDP port of the tunnel endpoints.
    #[serde(default = "Network::usual_port")]
    pub port: u16,
    /// In a VXLAN: the kernel's device whose forwarding table is followed.
    pub follow: Option<String>,
    /// On a native network: the interface that frames leave by.
    pub interface: Option<String>,
    /// Destinations that this host may send tenants' packets to by any of its routes.
    #[serde(default)]
    pub routed: Vec<Written<Prefixed>>,
    /// Stations known from the start.
    #[serde(default)]
    pub stations: Vec<Station>,
}

impl Network {
    /// VXLAN's.
    fn usual_port() -> u16 {
        takt_wire::vxlan::UDP_PORT
    }
}

/// `[[schedule]]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The datapath whose link it is for.
    pub datapath: String,
    /// A file with the schedule, in any form.
    pub file: PathBuf,
    /// The link's rate, bits per second.
    #[serde(default = "Schedule::usual_rate")]
    pub rate: u64,
    /// The port inserts a VLAN tag.
    #[serde(default)]
    pub vlan: bool,
    /// Who keeps what others send by the link's interface.
    #[serde(default)]
    pub other_traffic: Written<OtherTraffic>,
}

impl Schedule {
    fn usual_rate() -> u64 {
        1_000_000_000
    }
}

/// `{ mac = "…", vtep = "…", addresses = ["…"] }`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Station {
    /// Its MAC address; zero: whatever has no entry, and groups.
    pub mac: Written<MacAddress>,
    /// The tunnel endpoint that it is behind.
    pub vtep: Option<Written<IpAddr>>,
    /// Its IP addresses.
    #[serde(default)]
    pub addresses: Vec<Written<IpAddr>>,
}

impl Default for Listener {
    fn default() -> Self {
        let everything = || vec![Written(Channels(0..=u64::MAX))];
        Self {
            path: Socket::Applications.of_own_node(),
            mode: Written(FileMode(0o660)),
            identity: "default".into(),
            uids: Vec::new(),
            write: everything(),
            read: everything(),
            classes: (0..8).collect(),
            messages_per_second: 0,
            bytes_per_second: Written(Bytes(0)),
            memory: Written(Bytes(256 << 20)),
            total_memory: None,
            sessions: 256,
            endpoints: 256,
            total_endpoints: 4096,
            descriptors: 2048,
            lanes: None,
            endpoint: None,
            stream: Vec::new(),
            undeclared: Undeclared::default(),
            trust: Trust::default(),
        }
    }
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Longest message.
    pub max_message: Written<Bytes>,
    /// Default size of a session's transmit region.
    pub tx_bytes: Written<Bytes>,
    /// Default size of a session's receive region.
    pub rx_bytes: Written<Bytes>,
    /// Incomplete fragmented messages that a lane holds at a time.
    pub reassemblies: usize,
    /// How long an incomplete message may wait for its next fragment, milliseconds.
    pub reassembly_timeout_ms: u64,
    /// How long what an application had emitted is still sent after it has left, milliseconds.
    pub linger_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message: Written(Bytes(16 << 20)),
            tx_bytes: Written(Bytes(64 << 20)),
            rx_bytes: Written(Bytes(64 << 20)),
            reassemblies: 64,
            reassembly_timeout_ms: 500,
            linger_ms: 61_000,
        }
    }
}

/// `[departure]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Departure {
    /// What becomes of messages that cannot meet their launch time.
    pub late: Late,
    /// How much later a message may leave and still count as on time, microseconds.
    pub tolerance_us: u32,
}

impl Default for Departure {
    fn default() -> Self {
        Self {
            late: Late::default(),
            tolerance_us: 100,
        }
    }
}

/// `late = "send"`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Late {
    /// They leave as soon as they can.
    #[default]
    Send,
    /// They are dropped, and their sources are told.
    Drop,
}

/// `[clock]`
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clock {
    /// Unix socket of ptp4l; left out: the usual one, if it is there.
    pub ptp4l: Option<Written<Asked<PathBuf>>>,
    /// The PTP domain.
    pub ptp_domain: u8,
    /// Where chronyd takes questions; left out: the usual place, if somebody is there.
    pub chrony: Option<Written<Asked<takt_clock::chrony::Address>>>,
    /// The PTP clock of a network device.
    pub device: Option<PathBuf>,
    /// Where the physical host answers NTP, if this machine is its guest.
    pub host: Option<SocketAddr>,
    /// What the kernels of all nodes have in `CLOCK_TAI`.
    pub timescale: Timescale,
}

/// What `CLOCK_TAI` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Timescale {
    /// TAI: the kernels know TAI - UTC.
    #[default]
    Tai,
    /// UTC, on all nodes: nobody tells the kernels.
    Utc,
}

/// `[balance]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Balance {
    /// Whether sessions leave overloaded lanes by themselves.
    pub lanes: bool,
    /// From which share of its time at work on a lane is overloaded, per cent.
    pub high_percent: u8,
    /// Until which share it stays so, per cent.
    pub low_percent: u8,
    /// How long a session that was moved stays where it is, seconds.
    pub hold_seconds: u64,
}

impl Default for Balance {
    fn default() -> Self {
        let balance = takt_runtime::config::Balance::default();
        Self {
            lanes: balance.lanes,
            high_percent: balance.high_percent,
            low_percent: balance.low_percent,
            hold_seconds: balance.hold.as_secs(),
        }
    }
}

/// `[mapping]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mapping {
    /// Datapaths to try for fast streams that are frugal, best first.
    pub fast_frugal: Vec<String>,
    /// Datapaths to try for fast streams that may spend cores, best first.
    pub fast_unlimited: Vec<String>,
    /// How long a datapath that has failed must work again before streams return to it, milliseconds.
    pub hold_down_ms: u64,
    /// `[[mapping.rule]]`
    pub rule: Vec<MappingRule>,
}

/// `[[mapping.rule]]`
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MappingRule {
    /// For people; left out: its number.
    pub name: Option<String>,
    /// Listeners' identities; empty: all.
    pub tenants: Vec<String>,
    /// Traffic classes; empty: all.
    pub classes: Vec<u8>,
    /// Datapaths to try, best first.
    pub datapaths: Vec<String>,
}

impl Default for Mapping {
    fn default() -> Self {
        let policy = takt_runtime::policy::MappingPolicy::default();
        Self {
            fast_frugal: policy.fast_frugal,
            fast_unlimited: policy.fast_unlimited,
            hold_down_ms: policy.hold_down.as_millis() as u64,
            rule: Vec::new(),
        }
    }
}

/// `[datapath.*]`
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Datapaths {
    /// `[datapath.udp]`
    pub udp: Udp,
    /// `[datapath.xdp]`; left out: no AF_XDP.
    pub xdp: Option<Xdp>,
    /// Any other: of a plugin of this name.
    pub plugins: BTreeMap<String, Loaded>,
}

// By hand: serde's `flatten` would lose where in the file a mistake is.
impl<'de> Deserialize<'de> for Datapaths {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Tables;

        impl<'de> Visitor<'de> for Tables {
            type Value = Datapaths;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table for each datapath")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Datapaths, A::Error> {
                let mut read = Datapaths::default();
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "udp" => read.udp = map.next_value()?,
                        "xdp" => read.xdp = Some(map.next_value()?),
                        _ => {
                            read.plugins.insert(name, map.next_value()?);
                        }
                    }
                }
                Ok(read)
            }
        }

        from.deserialize_map(Tables)
    }
}

/// `[datapath.NAME]` of a plugin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// Lanes that carry it; left out: all.
    pub lanes: Option<Vec<usize>>,
    /// Everything else is the plugin's.
    pub options: Options,
}

impl<'de> Deserialize<'de> for Loaded {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Keys;

        impl<'de> Visitor<'de> for Keys {
            type Value = Loaded;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Loaded, A::Error> {
                let mut read = Loaded::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "lanes" {
                        read.lanes = Some(map.next_value()?);
                        continue;
                    }
                    let Texts(values) = map.next_value()?;
                    let pairs = values.into_iter().map(|value| (key.clone(), value));
                    read.options.0.extend(pairs);
                }
                Ok(read)
            }
        }

        from.deserialize_map(Keys)
    }
}

/// A value of an option as text, or those of a list.
struct Texts(Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number, true or false, or a list of these: options of plugins have no tables")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Texts, E> {
                Ok(Texts(vec![value.to_string()]))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Texts, E> {
                Ok(Texts(vec![value.to_string()]))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Texts, E> {
                Ok(Texts(vec![value.to_string()]))
            }

            fn visit_str<E>(self, value: &str) -> Result<Texts, E> {
                Ok(Texts(vec![value.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Texts, A::Error> {
                let mut all = Vec::new();
                while let Some(Texts(value)) = list.next_element()? {
                    all.extend(value);
                }
                Ok(Texts(all))
            }
        }

        from.deserialize_any(Any)
    }
}

/// `[datapath.udp]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Udp {
    /// Frames that a lane can have reserved or queued at a time.
    pub frames: u32,
    /// Longest payload sent, where the route carries it.
    pub frame_size: Written<Bytes>,
    /// Peers that a lane can have at a time.
    pub peers: u16,
    /// Receive buffer of each lane's socket.
    pub receive_buffer: Written<Bytes>,
    /// Send buffer of each lane's socket.
    pub send_buffer: Written<Bytes>,
    /// Whether trains of datagrams pass the kernel as one packet.
    pub segmentation: bool,
    /// Lanes that carry it; left out: all.
    pub lanes: Option<Vec<usize>>,
}

impl Default for Udp {
    fn default() -> Self {
        let config = takt_datapath_udp::UdpConfig::default();
        Self {
            frames: config.frames,
            frame_size: Written(Bytes(config.frame_size as u64)),
            peers: config.peers,
            receive_buffer: Written(Bytes(config.receive_buffer as u64)),
            send_buffer: Written(Bytes(config.send_buffer as u64)),
            segmentation: config.segmentation,
            lanes: None,
        }
    }
}

/// `[datapath.xdp]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xdp {
    /// The network interface.
    pub interface: String,
    /// Where the XDP program runs.
    #[serde(default)]
    pub mode: XdpMode,
    /// Whether to share memory with the device.
    #[serde(default)]
    pub zero_copy: XdpZeroCopy,
    /// Receive queues to serve; all of them where left out.
    #[serde(default)]
    pub queues: Option<Written<Queues>>,
    /// Frames that can wait to be received on each queue; a quarter as many more of what is marked with a traffic class.
    #[serde(default = "xdp_defaults::rx_ring")]
    pub rx_ring: u32,
    /// Lanes that can share a queue.
    #[serde(default = "xdp_defaults::ports_per_queue")]
    pub ports_per_queue: u16,
    /// Frames that a lane can have reserved or under way.
    #[serde(default = "xdp_defaults::tx_frames")]
    pub tx_frames: u32,
    /// Peers that a lane can have at a time.
    #[serde(default = "xdp_defaults::peers")]
    pub peers: u16,
    /// Compute and verify UDP checksums over IPv4.
    #[serde(default = "xdp_defaults::checksum")]
    pub checksum: bool,
    /// Have the lanes drive the device.
    #[serde(default)]
    pub busy_poll: Option<XdpBusyPoll>,
    /// Lanes that carry it; left out: all.
    #[serde(default)]
    pub lanes: Option<Vec<usize>>,
}

mod xdp_defaults {
    use takt_datapath_xdp::XdpConfig;

    fn config() -> XdpConfig {
        XdpConfig::new("")
    }

    pub fn rx_ring() -> u32 {
        config().rx_ring
    }

    pub fn ports_per_queue() -> u16 {
        config().ports_per_queue
    }

    pub fn tx_frames() -> u32 {
        config().tx_frames
    }

    pub fn peers() -> u16 {
        config().peers
    }

    pub fn checksum() -> bool {
        config().checksum
    }
}

/// Where the XDP program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// Native where the driver can, otherwise generic.
    #[default]
    Auto,
    /// Native or not at all.
    Native,
    /// Generic even where the driver could do native.
    Generic,
}

/// Whether frames move between user space and the device without a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpZeroCopy {
    /// Where the driver can.
    #[default]
    Auto,
    /// Or not at all.
    Required,
    /// Never.
    Never,
}

/// `busy_poll = { micros = 20, budget = 64 }`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XdpBusyPoll {
    /// How long a call may spin for a frame, microseconds.
    pub micros: u32,
    /// How many frames a call may process in the driver.
    pub budget: u16,
}

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Path of the Unix socket of the admin API.
    pub socket: PathBuf,
    /// Permission bits of the socket file.
    pub mode: Written<FileMode>,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            socket: Socket::Admin.of_own_node(),
            mode: Written(FileMode(0o600)),
        }
    }
}

/// `[metrics]`
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Where to serve metrics; left out: nowhere.
    pub address: Option<Written<SocketAddr>>,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// What to log, in the form of the variable `RUST_LOG`.
    pub level: String,
    /// In which form.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info".into(),
            format: LogFormat::Text,
        }
    }
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object each.
    Json,
}
