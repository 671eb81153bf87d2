//! The configuration of a node: one TOML file, read strictly.
//!
//! [`file`] has the sections as written, [`value`] the forms of single values, [`document`] finds the place of a
//! fault; here they become [`Settings`], after all rules that one value alone cannot break. An unknown key is
//! a fault: a typing error must not silently leave a default in force.

pub mod document;
pub mod file;
mod rules;
mod schedules;
#[cfg(test)]
mod tests;
pub mod value;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use takt_clock::{Ask, Sources};
use takt_datapath::plugin::Options;
use takt_datapath_udp::UdpConfig;
use takt_datapath_xdp::{BusyPoll, Mode, XdpConfig, ZeroCopy};
use takt_runtime::Config;
use takt_runtime::config::{
    Balance, Carrier, Departure, Idle, LaneConfig, Late, Limits, ListenerConfig, NetworkConfig,
    ScoutConfig, Station,
};
use takt_runtime::peering::Meeting;
use takt_runtime::peering::keys::{PeerConfig, Security};
use takt_runtime::policing::{DeclaredStream, Flow};
use takt_runtime::policy::{MappingPolicy, MappingRule, Policy, Trust, half_of_memory};
use takt_schedule::admission::Talker;
use takt_session::{ChannelId, Endpoint};
use takt_time::TrafficClass;

use crate::security::{self, KeyFileError};
use document::Document;
pub use document::Fault;
use file::{File, IdleKind, XdpMode, XdpZeroCopy};
use value::Asked;

/// Where the configuration is looked for unless told otherwise.
pub const DEFAULT_FILE: &str = "/etc/takt/takt.toml";

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}; name another file with --config")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A file that it names has no key.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// Something in it is at fault.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
}

/// What a node runs with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The file as read: what a reload compares.
    pub file: File,
    /// For the runtime.
    pub runtime: Config,
    /// How long a clean stop may take.
    pub drain: Duration,
    /// Whom to ask about the clock.
    pub clock: Sources,
    /// Kernel UDP.
    pub udp: UdpConfig,
    /// AF_XDP, if wanted.
    pub xdp: Option<XdpConfig>,
    /// Datapaths that are loaded, by name, and from where.
    pub plugins: (PathBuf, Vec<(String, Options)>),
    /// Admin API: path and permission bits of its socket.
    pub admin: (PathBuf, u32),
    /// Where to serve metrics.
    pub metrics: Option<SocketAddr>,
    /// Where to keep what was installed for the next start.
    pub state: Option<PathBuf>,
}

impl Settings {
    /// Reads the configuration `path`, or the default one. If nobody named a file and the default one is not
    /// there, the built-in defaults hold.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let file = path.unwrap_or(Path::new(DEFAULT_FILE));
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if path.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                String::new()
            }
            Err(source) => {
                return Err(ConfigError::Read {
                    path: file.to_owned(),
                    source,
                });
            }
        };
        let mut settings = Self::parse(file, &text)?;
        let document = Document::new(file, &text);
        settings.runtime.schedules = schedules::read(&settings.file, &document)?;
        schedules::admit(&settings.runtime, &document)?;
        Ok(settings)
    }

    /// Reads the keys, and makes the node's own if it has none yet.
    ///
    /// # Errors
    /// [`ConfigError::Key`].
    pub fn with_keys(mut self) -> Result<Self, ConfigError> {
        self.runtime.security = security::load(&self.file.security)?;
        Ok(self)
    }

    /// Reads `text`, called `path` in complaints, and none of the files that it names.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, Box<Fault>> {
        let document = Document::new(path, text);
        let file: File = document.read()?;
        rules::check(&file, &document)?;
        Ok(Self::from(file))
    }
}

impl From<File> for Settings {
    fn from(file: File) -> Self {
        let defaults = Config::default();
        let lanes = file
            .lane
            .clone()
            .unwrap_or_else(|| vec![file::Lane::default()]);
        let runtime = Config {
            name: file.node.name.clone().unwrap_or(defaults.name),
            address: file.node.address.0,
            port: file.node.port,
            lanes: lanes.iter().map(lane).collect(),
            datapath_lanes: datapath_lanes(&file.datapath),
            class_lanes: file
                .class
                .iter()
                .map(|class| (class.number, class.lanes.clone()))
                .collect(),
            peers: peers(&file),
            // The keys are read when the node starts.
            security: Security {
                protection: file.security.protection.into(),
                ..Security::default()
            },
            accept: file.node.accept.iter().map(|net| net.0).collect(),
            scout: file.scout.as_ref().and_then(|scout| {
                Some(ScoutConfig {
                    interface: scout.interface.clone()?,
                    group: scout.group.as_ref().map(|group| group.0),
                })
            }),
            meeting: file.scout.as_ref().map_or(Meeting::default(), meeting),
            networks: file.network.iter().map(network).collect(),
            // They are in files of their own.
            schedules: Vec::new(),
            kept_schedules: Vec::new(),
            listeners: file.listeners().iter().map(listener).collect(),
            limits: Limits {
                max_message: size(file.limits.max_message.0.0),
                tx_bytes: size(file.limits.tx_bytes.0.0),
                rx_bytes: size(file.limits.rx_bytes.0.0),
                reassemblies: file.limits.reassemblies,
                reassembly_timeout: Duration::from_millis(file.limits.reassembly_timeout_ms),
                linger: Duration::from_millis(file.limits.linger_ms),
            },
            departure: Departure {
                late: match file.departure.late {
                    file::Late::Send => Late::Send,
                    file::Late::Drop => Late::Drop,
                },
                tolerance: Duration::from_micros(file.departure.tolerance_us.into()),
            },
            balance: Balance {
                lanes: file.balance.lanes,
                high_percent: file.balance.high_percent,
                low_percent: file.balance.low_percent,
                hold: Duration::from_secs(file.balance.hold_seconds),
            },
            mapping: mapping(&file.mapping),
            clock: defaults.clock,
        };
        let udp = &file.datapath.udp;
        Self {
            runtime,
            drain: Duration::from_secs(file.node.drain_seconds),
            clock: clock(&file.clock),
            udp: UdpConfig {
                frames: udp.frames,
                frame_size: size(udp.frame_size.0.0),
                peers: udp.peers,
                receive_buffer: size(udp.receive_buffer.0.0),
                send_buffer: size(udp.send_buffer.0.0),
                segmentation: udp.segmentation,
                ..UdpConfig::default()
            },
            xdp: file.datapath.xdp.as_ref().map(xdp),
            plugins: (
                file.node.plugins.clone(),
                (file.datapath.plugins.iter())
                    .map(|(name, loaded)| (name.clone(), loaded.options.clone()))
                    .collect(),
            ),
            admin: (file.admin.socket.clone(), file.admin.mode.0.0),
            metrics: file.metrics.address.as_ref().map(|address| address.0),
            state: (file.node.state.clone())
                .or_else(|| Some(std::env::var_os("STATE_DIRECTORY")?.into())),
            file,
        }
    }
}

impl File {
    /// The listeners, with the default one where none is written.
    pub fn listeners(&self) -> Vec<file::Listener> {
        self.listener
            .clone()
            .unwrap_or_else(|| vec![file::Listener::default()])
    }
}

fn clock(clock: &file::Clock) -> Sources {
    fn ask<A: Clone>(asked: Option<&Asked<A>>, usual: Ask<A>) -> Ask<A> {
        match asked {
            None => usual,
            Some(Asked(None)) => Ask::Never,
            Some(Asked(Some(address))) => Ask::Expected(address.clone()),
        }
    }
    let usual = Sources::default();
    Sources {
        ptp4l: ask(clock.ptp4l.as_ref().map(|ptp4l| &ptp4l.0), usual.ptp4l),
        ptp_domain: clock.ptp_domain,
        chrony: ask(clock.chrony.as_ref().map(|chrony| &chrony.0), usual.chrony),
        device: clock.device.clone(),
        host: clock.host,
        utc: clock.timescale == file::Timescale::Utc,
    }
}

/// The peers that the file lists, and those that introduce others.
fn peers(file: &File) -> Vec<PeerConfig> {
    let mut peers: Vec<PeerConfig> = file.peer.iter().map(peer).collect();
    for rendezvous in file.scout.iter().flat_map(|scout| &scout.rendezvous) {
        let address = rendezvous.0.0;
        if !peers.iter().any(|peer| peer.address == address) {
            peers.push(address.into());
        }
    }
    peers
}

fn meeting(scout: &file::Scout) -> Meeting {
    Meeting {
        rendezvous: scout.rendezvous.iter().map(|address| address.0.0).collect(),
        introduce: scout.introduce,
    }
}

fn datapath_lanes(datapaths: &file::Datapaths) -> BTreeMap<String, Vec<usize>> {
    let xdp = datapaths.xdp.as_ref().and_then(|xdp| xdp.lanes.clone());
    let given = [("udp", datapaths.udp.lanes.clone()), ("xdp", xdp)];
    let plugins = datapaths.plugins.iter();
    let plugins = plugins.map(|(name, loaded)| (name.as_str(), loaded.lanes.clone()));
    given
        .into_iter()
        .chain(plugins)
        .filter_map(|(name, lanes)| Some((name.to_owned(), lanes?)))
        .collect()
}

/// The rules have checked that it fits.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn peer(peer: &file::Peer) -> PeerConfig {
    PeerConfig {
        address: peer.address.0.0,
        key: peer.key.as_ref().map(|key| key.0),
        next_key: peer.next_key.as_ref().map(|key| key.0),
    }
}

fn lane(lane: &file::Lane) -> LaneConfig {
    LaneConfig {
        idle: match (lane.idle, lane.spin_us) {
            (IdleKind::Spin, _) => Idle::Spin,
            (IdleKind::Park, _) => Idle::Park,
            (IdleKind::Adaptive, None) => Idle::default(),
            (IdleKind::Adaptive, Some(micros)) => Idle::Adaptive {
                spin: Duration::from_micros(micros.into()),
            },
        },
        core: lane.core,
        scheduling: lane.scheduling.0,
    }
}

/// Checks a listener that does not come from a file.
///
/// # Errors
/// The key at fault and what would be right.
pub fn check_listener(listener: &file::Listener) -> Result<(), String> {
    rules::listener(0, listener, &Document::new(Path::new(""), "")).map_err(|fault| {
        let key = fault.key.trim_start_matches("listener[0].");
        format!("{key}: {}", fault.problem)
    })
}

/// The mapping as the runtime takes it.
fn mapping(mapping: &file::Mapping) -> MappingPolicy {
    let rules = (1..).zip(&mapping.rule).map(|(number, rule)| MappingRule {
        name: (rule.name.clone()).unwrap_or_else(|| number.to_string()),
        tenants: rule.tenants.clone(),
        classes: class_bits(&rule.classes),
        datapaths: rule.datapaths.clone(),
    });
    MappingPolicy {
        rules: rules.collect(),
        hold_down: Duration::from_millis(mapping.hold_down_ms),
        fast_frugal: mapping.fast_frugal.clone(),
        fast_unlimited: mapping.fast_unlimited.clone(),
    }
}

fn class_bits(classes: &[u8]) -> u8 {
    classes.iter().fold(0, |bits, class| bits | 1 << class)
}

/// The traffic classes of which a bit is set.
pub fn classes_of(bits: u8) -> impl Iterator<Item = u8> {
    (0..8).filter(move |class| bits & (1 << class) != 0)
}

/// A listener as the runtime takes it.
pub fn listener(listener: &file::Listener) -> ListenerConfig {
    let ranges = |list: &[value::Written<value::Channels>]| {
        list.iter().map(|channels| channels.0.0.clone()).collect()
    };
    ListenerConfig {
        path: listener.path.clone(),
        mode: listener.mode.0.0,
        policy: Policy {
            identity: listener.identity.clone(),
            uids: listener.uids.clone(),
            write: ranges(&listener.write),
            read: ranges(&listener.read),
            classes: class_bits(&listener.classes),
            messages_per_second: listener.messages_per_second,
            bytes_per_second: listener.bytes_per_second.0.0,
            memory: size(listener.memory.0.0),
            total_memory: match &listener.total_memory {
                Some(bytes) => size(bytes.0.0),
                None => half_of_memory(),
            },
            sessions: listener.sessions,
            endpoints: listener.endpoints,
            total_endpoints: listener.total_endpoints,
            descriptors: listener.descriptors,
            lanes: listener.lanes.clone().unwrap_or_default(),
            endpoint: listener.endpoint.as_ref().map(|endpoint| Endpoint {
                network: endpoint.network.clone(),
                mac: endpoint.mac.0.0,
                addresses: endpoint.addresses.iter().map(|a| (a.0.0, a.0.1)).collect(),
                mtu: endpoint.mtu,
                vlans: endpoint.vlans.clone(),
            }),
            ether_types: listener
                .endpoint
                .as_ref()
                .map_or_else(Vec::new, |endpoint| endpoint.ethertypes.clone()),
            streams: listener.stream.iter().filter_map(stream).collect(),
            undeclared_streams: listener.undeclared == file::Undeclared::Send,
            trust: match listener.trust {
                file::Trust::Nobody => Trust::Nobody,
                file::Trust::User => Trust::User,
            },
        },
    }
}

/// `None`: it is of nothing, which the rules do not let pass.
fn stream(stream: &file::Stream) -> Option<DeclaredStream> {
    let channel = stream
        .channel
        .map(|channel| Flow::Channel(ChannelId(channel)));
    let destination = || Some(Flow::Destination(stream.destination.as_ref()?.0));
    Some(DeclaredStream {
        name: stream.name.clone(),
        flow: channel.or_else(destination)?,
        talker: Talker {
            priority: TrafficClass::new(stream.class)?,
            period_ns: stream.period.0.0,
            offset_ns: stream.offset.0.0,
            window_ns: stream.window.0.0,
            octets: u32::try_from(stream.frame.0.0).ok()?,
            frames: stream.frames,
        },
    })
}

fn network(network: &file::Network) -> NetworkConfig {
    NetworkConfig {
        name: network.name.clone(),
        carrier: match network.carrier.0 {
            value::Carrier::Vxlan(id) => Carrier::Vxlan {
                id,
                port: network.port,
            },
            value::Carrier::Vlan(id) => Carrier::Native { vlan: Some(id) },
            value::Carrier::Native => Carrier::Native { vlan: None },
            value::Carrier::Routed => Carrier::Routed,
        },
        stations: network.stations.iter().map(station).collect(),
        follow: network.follow.clone(),
        interface: network.interface.clone(),
        routed: network.routed.iter().map(|p| (p.0.0, p.0.1)).collect(),
    }
}

fn station(station: &file::Station) -> Station {
    Station {
        mac: station.mac.0,
        vtep: station.vtep.as_ref().map(|vtep| vtep.0),
        addresses: station.addresses.iter().map(|address| address.0).collect(),
    }
}

fn xdp(xdp: &file::Xdp) -> XdpConfig {
    XdpConfig {
        interface: xdp.interface.clone(),
        queues: xdp.queues.as_ref().map(|queues| queues.0.0.clone()),
        mode: match xdp.mode {
            XdpMode::Auto => Mode::Auto,
            XdpMode::Native => Mode::Native,
            XdpMode::Generic => Mode::Generic,
        },
        zero_copy: match xdp.zero_copy {
            XdpZeroCopy::Auto => ZeroCopy::Auto,
            XdpZeroCopy::Required => ZeroCopy::Required,
            XdpZeroCopy::Never => ZeroCopy::Never,
        },
        rx_ring: xdp.rx_ring,
        ports_per_queue: xdp.ports_per_queue,
        tx_frames: xdp.tx_frames,
        peers: xdp.peers,
        checksum: xdp.checksum,
        busy_poll: xdp.busy_poll.map(|busy| BusyPoll {
            micros: busy.micros,
            budget: busy.budget,
        }),
    }
}
