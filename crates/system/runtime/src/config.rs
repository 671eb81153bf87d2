//! What a runtime is told at its start, in the form that code uses. `taktd` reads it from TOML.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use takt_clock::{Clock, SystemTai};
use takt_schedule::{ClassTable, Link, Schedule};
use takt_wire::ethernet::MacAddress;
use takt_wire::vxlan::NetworkId;

use crate::peering::keys::{PeerConfig, PrivateKey, Security};
use crate::peering::{AcceptNet, Meeting};
use crate::policy::{MappingPolicy, Policy};

/// What a lane does when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Poll on: lowest latency, a whole core.
    Spin,
    /// Poll on for `spin` after the last work, then sleep until a doorbell or a datapath wakes the lane.
    Adaptive {
        /// How long to poll on.
        spin: Duration,
    },
    /// Sleep at once.
    Park,
}

impl Default for Idle {
    fn default() -> Self {
        Self::Adaptive {
            spin: Duration::from_micros(50),
        }
    }
}

/// How the kernel schedules a lane's thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedulingClass {
    /// As the process.
    #[default]
    Other,
    /// `SCHED_FIFO` with this priority, 1 to 99. Never together with [`Idle::Spin`]: the kernel's
    /// fair server takes 50 ms of every second from a thread that does not sleep.
    Fifo(u8),
}

/// One lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneConfig {
    /// What to do when idle.
    pub idle: Idle,
    /// Core to pin to.
    pub core: Option<usize>,
    /// Scheduling class.
    pub scheduling: SchedulingClass,
}

/// A socket on which applications attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Path of the Unix socket.
    pub path: PathBuf,
    /// Permission bits of the socket file.
    pub mode: u32,
    /// Rights of those who attach here.
    pub policy: Policy,
}

/// How a network's frames travel between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// In UDP datagrams between tunnel endpoints (RFC 7348).
    Vxlan {
        /// The VXLAN network identifier.
        id: NetworkId,
        /// UDP port of the tunnel endpoints.
        port: u16,
    },
    /// As they are, over the link of a datapath that sends frames.
    Native {
        /// The VLAN that they are tagged with.
        vlan: Option<u16>,
    },
    /// Not at all between hosts, which are routers: packets only, by the host's routes.
    Routed,
}

/// Where stations of a network are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Station {
    /// Its MAC address; zero: whatever has no entry of its own, and groups.
    pub mac: MacAddress,
    /// The tunnel endpoint that it is behind; none on a native network.
    pub vtep: Option<IpAddr>,
    /// Its IP addresses: frames for them need no address resolution.
    pub addresses: Vec<IpAddr>,
}

/// A network: a segment of Ethernet between tenants' endpoints on any nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Its name.
    pub name: String,
    /// How its frames travel.
    pub carrier: Carrier,
    /// Stations known from the start.
    pub stations: Vec<Station>,
    /// A VXLAN device of the kernel whose forwarding table is followed too.
    pub follow: Option<String>,
    /// On a native network: the interface that frames leave by; any datapath's own if none is given.
    pub interface: Option<String>,
    /// Destinations that this host as a router may send tenants' packets to by any of its routes, as prefixes.
    /// Those behind the device that is followed and those on this host are served anyway.
    pub routed: Vec<(IpAddr, u8)>,
}

impl NetworkConfig {
    /// Whether a destination is in one of the prefixes.
    pub fn routes_to(&self, destination: IpAddr) -> bool {
        self.routed
            .iter()
            .any(|&(prefix, length)| match (prefix, destination) {
                (IpAddr::V4(prefix), IpAddr::V4(destination)) => {
                    let shift = 32u32.saturating_sub(length.into());
                    let differs = prefix.to_bits() ^ destination.to_bits();
                    differs.checked_shr(shift).unwrap_or(0) == 0
                }
                (IpAddr::V6(prefix), IpAddr::V6(destination)) => {
                    let shift = 128u32.saturating_sub(length.into());
                    let differs = prefix.to_bits() ^ destination.to_bits();
                    differs.checked_shr(shift).unwrap_or(0) == 0
                }
                _ => false,
            })
    }
}

/// Bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest message, bytes.
    pub max_message: usize,
    /// Default bytes of a session's transmit region.
    pub tx_bytes: usize,
    /// Default bytes of a session's receive region.
    pub rx_bytes: usize,
    /// Incomplete fragmented messages that a lane holds at a time.
    pub reassemblies: usize,
    /// How long an incomplete message may wait for its next fragment.
    pub reassembly_timeout: Duration,
    /// How long what an application had emitted is still sent after it has left. A launch time may be
    /// 60 s ahead.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message: 16 << 20,
            tx_bytes: 64 << 20,
            rx_bytes: 64 << 20,
            reassemblies: 64,
            reassembly_timeout: Duration::from_millis(500),
            linger: Duration::from_secs(61),
        }
    }
}

/// What becomes of a message that cannot leave within the tolerance of its launch time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Late {
    /// It leaves as soon as it can, and is counted.
    #[default]
    Send,
    /// It is dropped, counted, and its source is told.
    Drop,
}

/// Sessions that leave lanes which are overloaded, by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Whether they do. Rules of network health move sessions either way.
    pub lanes: bool,
    /// From which share of its time at work on a lane is overloaded, per cent.
    pub high_percent: u8,
    /// Until which share it stays so, per cent: less than `high_percent`.
    pub low_percent: u8,
    /// How long a session that was moved stays where it is.
    pub hold: Duration,
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            lanes: false,
            high_percent: 90,
            low_percent: 70,
            hold: Duration::from_secs(30),
        }
    }
}

/// Messages with a launch time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// What becomes of late ones.
    pub late: Late,
    /// How much later than its launch time a message may leave and still count as on time; at most 4 s.
    pub tolerance: Duration,
}

impl Default for Departure {
    fn default() -> Self {
        Self {
            late: Late::default(),
            tolerance: Duration::from_micros(100),
        }
    }
}

/// A schedule for the link of a datapath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSchedule {
    /// The datapath, such as `udp`.
    pub datapath: String,
    /// The gates.
    pub schedule: Schedule,
    /// The link's rate, bits per second, from which guard bands follow; 0: frames take no time.
    pub rate_bps: u64,
    /// The port inserts a VLAN tag, which takes its time too.
    pub vlan: bool,
    /// The class whose gate frames of each priority pass.
    pub classes: ClassTable,
    /// Who keeps what others send by the link's interface.
    pub other_traffic: OtherTraffic,
}

/// Who keeps what leaves a link's interface without the runtime inside the windows of best effort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherTraffic {
    /// A port of the runtime takes over what somebody gives it (`takt uplink`, `takt veth attach --all`); the rest is beside the
    /// schedule.
    #[default]
    Port,
    /// The kernel's `taprio`.
    Taprio,
    /// The same, by the gates of the device.
    TaprioOffload,
    /// The first of these three that can, from the last one on.
    Auto,
}

impl OtherTraffic {
    /// All of them, by the names that configurations and messages have for them.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("port", Self::Port),
        ("taprio", Self::Taprio),
        ("taprio-offload", Self::TaprioOffload),
        ("auto", Self::Auto),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let mut all = Self::NAMES.iter();
        all.find(|(_, one)| *one == self)
            .map_or("port", |(name, _)| name)
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::NAMES.iter();
        all.find(|(of, _)| *of == name).map(|(_, one)| *one)
    }
}

impl LinkSchedule {
    /// For untagged frames, each priority with a class of its own.
    pub fn new(datapath: impl Into<String>, schedule: Schedule, rate_bps: u64) -> Self {
        Self {
            datapath: datapath.into(),
            schedule,
            rate_bps,
            vlan: false,
            classes: ClassTable::default(),
            other_traffic: OtherTraffic::default(),
        }
    }

    /// The link.
    pub fn link(&self) -> Link {
        Link::tagged(self.rate_bps, self.vlan)
    }
}

/// A schedule that was installed by command, as a node keeps it over a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptSchedule {
    /// As asked for.
    pub asked: LinkSchedule,
    /// It has begun, and runs from the start on whatever the clock says then.
    pub running: bool,
}

/// How nodes on one link find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoutConfig {
    /// The interface whose link is meant.
    pub interface: String,
    /// Multicast group and UDP port; none: the default of the node's address family.
    pub group: Option<SocketAddr>,
}

/// A runtime.
#[derive(Clone, Debug)]
pub struct Config {
    /// A name for people; peers show it.
    pub name: String,
    /// Local address of the node's traffic; unspecified: all of them.
    pub address: IpAddr,
    /// UDP port of the peering protocol; 0: any. Lanes follow behind it, see [`Config::data_port`].
    pub port: u16,
    /// Lanes, at least one.
    pub lanes: Vec<LaneConfig>,
    /// Numbers of the lanes that carry a datapath, by its name; all of them where it is left out. A schedule needs a
    /// datapath that one lane carries.
    pub datapath_lanes: BTreeMap<String, Vec<usize>>,
    /// Numbers of the lanes that serve streams of a traffic class, by its number; all of them where it is left out.
    pub class_lanes: BTreeMap<u8, Vec<usize>>,
    /// Peers from the start.
    pub peers: Vec<PeerConfig>,
    /// Networks whose runtimes may become peers by themselves.
    pub accept: Vec<AcceptNet>,
    /// Whether and where the node announces itself, and tries those of `accept` that announce themselves.
    pub scout: Option<ScoutConfig>,
    /// Whether the node meets others by those that it knows.
    pub meeting: Meeting,
    /// How strangers are kept out.
    pub security: Security,
    /// Networks that tenants' endpoints are in.
    pub networks: Vec<NetworkConfig>,
    /// Schedules in force from the start, as if they had been installed before: those whose base time has
    /// passed run at once, in the cycle that they would be in. Several of a datapath in the order of their base times.
    pub schedules: Vec<LinkSchedule>,
    /// Those installed by command before the start, in the same order: they come after the others.
    pub kept_schedules: Vec<KeptSchedule>,
    /// Sockets for applications.
    pub listeners: Vec<ListenerConfig>,
    /// Bounds.
    pub limits: Limits,
    /// Messages with a launch time.
    pub departure: Departure,
    /// Sessions to lanes, while they run.
    pub balance: Balance,
    /// Streams to datapaths.
    pub mapping: MappingPolicy,
    /// The clock that launch times and gates go by.
    pub clock: Arc<dyn Clock>,
}

/// The peering port unless configured otherwise.
pub const DEFAULT_PORT: u16 = 7400;

impl Default for Config {
    fn default() -> Self {
        Self {
            name: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: DEFAULT_PORT,
            lanes: vec![LaneConfig::default()],
            datapath_lanes: BTreeMap::new(),
            class_lanes: BTreeMap::new(),
            peers: Vec::new(),
            accept: Vec::new(),
            scout: None,
            meeting: Meeting::default(),
            security: Security::default(),
            networks: Vec::new(),
            schedules: Vec::new(),
            kept_schedules: Vec::new(),
            listeners: Vec::new(),
            limits: Limits::default(),
            departure: Departure::default(),
            balance: Balance::default(),
            mapping: MappingPolicy::default(),
            clock: Arc::new(SystemTai),
        }
    }
}

impl Config {
    /// The lanes that carry a datapath.
    pub fn lanes_of(&self, datapath: &str) -> Vec<usize> {
        let all = || (0..self.lanes.len()).collect();
        self.datapath_lanes
            .get(datapath)
            .cloned()
            .unwrap_or_else(all)
    }

    /// UDP port of a lane's port on the `datapath`-th datapath: each datapath has a block of lanes, so
    /// that kernel sockets and frame datapaths on one interface never claim the same port. 0 where
    /// the peering port is 0: the kernel chooses.
    pub fn data_port(&self, datapath: usize, lane: usize) -> u16 {
        if self.port == 0 {
            0
        } else {
            self.port + 1 + (datapath * self.lanes.len() + lane) as u16
        }
    }
}

/// A peer cannot be authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyMissing {
    /// It has no key, and there is no group key.
    #[error(
        "peer {0} has no key: give its public key (`key` of the peer, `takt peer add --key`; `takt key show` there tells it), a key that all nodes have (`security.group_key_file`, or TAKT_GROUP_KEY of a program with the runtime inside), or set `security.protection = \"none\"` (TAKT_PROTECTION=none)"
    )]
    Peer(SocketAddr),
    /// It has a key, but this node has none.
    #[error(
        "peer {0} has a key, but this node has none to answer with: configure `security.key_file` (`takt key generate` makes it)"
    )]
    Node(SocketAddr),
    /// The key that is said to be its own is this node's.
    #[error(
        "the key of peer {0} is this node's own: `takt key show` at the peer prints that of the peer"
    )]
    Own(SocketAddr),
    /// Peers are accepted, and there is no key by which.
    #[error(
        "peers are accepted from networks, but no key of theirs is known: configure `security.group_key_file` on all nodes, list their public keys in `security.allow`, or set `security.protection = \"none\"`"
    )]
    Accept,
}

impl KeyMissing {
    /// Whether a peer can be authenticated.
    ///
    /// # Errors
    /// Which key is missing.
    pub fn check(security: &Security, peer: &PeerConfig) -> Result<(), Self> {
        match peer.key {
            _ if !security.is_on() => Ok(()),
            None if security.group.is_none() => Err(Self::Peer(peer.address)),
            Some(_) if security.node.is_none() => Err(Self::Node(peer.address)),
            _ => {
                let own = security.node.iter().chain(&security.next);
                let mut own = own.map(PrivateKey::public).map(Some);
                match own.any(|own| own == peer.key || own == peer.next_key) {
                    true => Err(Self::Own(peer.address)),
                    false => Ok(()),
                }
            }
        }
    }

    /// Whether all peers of a configuration can be authenticated.
    ///
    /// # Errors
    /// Which key is missing first.
    pub fn check_all(config: &Config) -> Result<(), Self> {
        let security = &config.security;
        let some =
            security.group.is_some() || security.node.is_some() && !security.allow.is_empty();
        if security.is_on() && !config.accept.is_empty() && !some {
            return Err(Self::Accept);
        }
        let mut peers = config.peers.iter();
        peers.try_for_each(|peer| Self::check(security, peer))
    }
}
