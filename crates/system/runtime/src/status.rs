//! What a runtime tells its operators: plain snapshots, taken by the control thread.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use takt_clock::Unmet;
use takt_datapath::Capabilities;
use takt_schedule::gate::Cycle;
use takt_schedule::{ClassTable, Schedule};
use takt_session::Qos;
use takt_session::unserved::Counts;
use takt_time::TaiTime;
use takt_wire::ethernet::MacAddress;

use crate::config::{Carrier, LinkSchedule, Station};
use crate::counters::{
    ChannelReading, DepartureReading, LaneReading, NetworkReading, PortReading, SessionReading,
    StreamReading,
};
use crate::delays::DelayReading;
pub use crate::peering::PeerStatus;
use crate::peering::PeeringCounters;
use crate::peering::keys::{Protection, PublicKey};
use crate::policy::Policy;

/// A part of a list that may be long.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// In the order of the list.
    pub entries: Vec<T>,
    /// Where the next page begins; none: this is the last one.
    pub next: Option<u64>,
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            next: None,
        }
    }
}

/// The runtime as a whole.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Random at each start.
    pub incarnation: u64,
    /// Where peers reach its peering port.
    pub control_address: SocketAddr,
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Whether it is draining.
    pub draining: bool,
    /// How many sessions there are.
    pub sessions: usize,
    /// How many channels have sources or sinks here.
    pub channels: usize,
    /// How often streams were mapped to another datapath than before.
    pub streams_moved: u64,
    /// How often sessions were moved to another lane.
    pub sessions_moved: SessionsMoved,
    /// Its lanes.
    pub lanes: Vec<LaneStatus>,
    /// How long messages from other nodes were on their way to any lane, by class.
    pub delays: Vec<DelayReading>,
    /// Whether its clock follows a reference, which these delays need; none: nobody looks at it.
    pub clock: Option<takt_clock::State>,
    /// Refused peering datagrams.
    pub peering: PeeringCounters,
    /// How datagrams between nodes are protected.
    pub protection: Protection,
    /// By what peers know this node, if it has a key of its own.
    pub key: Option<PublicKey>,
    /// By what they may know it as well: the key that it is going to have.
    pub next_key: Option<PublicKey>,
    /// Whether it has a group's key.
    pub group: bool,
}

/// How often sessions were moved to another lane, by who has moved them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionsMoved {
    /// Operators.
    pub operator: u64,
    /// The node, because their lane was overloaded.
    pub overload: u64,
    /// Rules of network health.
    pub rule: u64,
}

/// How loaded a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneLoad {
    /// The share of the last second in which it was at work, per mille.
    pub load: u32,
    /// It has reached the high mark, and not yet gone down to the low one.
    pub overloaded: bool,
}

/// A lane.
#[derive(Clone, Debug)]
pub struct LaneStatus {
    /// Its number.
    pub lane: usize,
    /// What it counts.
    pub counters: LaneReading,
    /// Sessions on it.
    pub sessions: usize,
    /// How loaded it is; none on a node of one lane, and in the first second.
    pub load: Option<LaneLoad>,
    /// Its ports.
    pub ports: Vec<PortStatus>,
}

/// A lane's port.
#[derive(Clone, Debug)]
pub struct PortStatus {
    /// Technology.
    pub datapath: &'static str,
    /// Local address.
    pub local: SocketAddr,
    /// What it counts.
    pub counters: PortReading,
}

/// A datapath of the node.
#[derive(Clone, Debug)]
pub struct DatapathStatus {
    /// Technology.
    pub name: String,
    /// What it can do; or why streams do not get it.
    pub state: Result<Capabilities, String>,
    /// How often it has failed since the node started.
    pub failures: u64,
}

/// A session.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// Its number.
    pub session: u64,
    /// What the application calls itself.
    pub name: String,
    /// The tenant: from the socket, not from the application.
    pub identity: String,
    /// Process.
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// Its lane.
    pub lane: usize,
    /// How often it was moved to another lane.
    pub moved: u64,
    /// Why, the last time; empty if it was not.
    pub moved_why: String,
    /// Bytes of its arena.
    pub arena_bytes: usize,
    /// Its streams.
    pub streams: Vec<StreamStatus>,
    /// What its lane counts.
    pub counters: SessionReading,
    /// Datagrams with a launch time that it says it did not give to the runtime, by reason.
    pub unserved: Counts,
    /// Sinks of other sessions that its sources give their messages themselves.
    pub direct: Vec<DirectStatus>,
    /// Messages that it says went by no lane, and their bytes.
    pub direct_messages: [u64; 2],
}

/// A tenant: all sessions of one identity, those that have ended included, so that nothing here ever
/// counts backwards.
#[derive(Clone, Debug)]
pub struct TenantStatus {
    /// Its name.
    pub identity: String,
    /// Sessions at the moment.
    pub sessions: usize,
    /// Sessions that have ended.
    pub ended: u64,
    /// What the lanes counted for all of them.
    pub counters: SessionReading,
}

/// A stream.
#[derive(Clone, Debug)]
pub struct StreamStatus {
    /// Its number in the session.
    pub stream: u32,
    /// What was asked for.
    pub qos: Qos,
    /// The datapath it got.
    pub datapath: String,
    /// Why that is less than asked for; empty if it is not.
    pub warning: String,
    /// The rule of the mapping that has chosen the datapath; empty if none has.
    pub rule: String,
    /// How often it was mapped to another datapath since it was opened.
    pub moved: u64,
    /// Channels that it writes.
    pub sources: Vec<u64>,
    /// Channels that it reads.
    pub sinks: Vec<u64>,
}

/// A sink that a source gives its messages itself, or did.
#[derive(Clone, Debug)]
pub struct DirectStatus {
    /// The ring's number.
    pub ring: u32,
    /// The channel.
    pub channel: u64,
    /// The sink's session.
    pub session: u64,
    /// What its application calls itself.
    pub name: String,
    /// Why the lane serves the sink again; empty if it does not.
    pub ended: String,
}

/// A channel, over all lanes.
#[derive(Clone, Debug)]
pub struct ChannelStatus {
    /// Its number.
    pub channel: u64,
    /// Sources here.
    pub sources: usize,
    /// Sinks here.
    pub sinks: usize,
    /// Peers that want it.
    pub peers: Vec<SocketAddr>,
    /// The datapath that it was mapped to, if it was.
    pub datapath: Option<String>,
    /// What the lanes count.
    pub counters: ChannelReading,
}

/// A network, over all lanes.
#[derive(Clone, Debug)]
pub struct NetworkStatus {
    /// Its name.
    pub name: String,
    /// How its frames travel.
    pub carrier: Carrier,
    /// The kernel's device whose table it follows.
    pub follow: Option<String>,
    /// Why that device could not be read; none if it could.
    pub problem: Option<String>,
    /// Listeners with an endpoint in it.
    pub endpoints: usize,
    /// The interface that frames of a native network leave by.
    pub interface: Option<String>,
    /// Where its stations are.
    pub stations: Vec<StationStatus>,
    /// Stations that the kernel's device and bridges know beyond what is taken of them.
    pub left_out: u64,
    /// Destinations behind this host as a router that were asked for.
    pub routes: Vec<RouteStatus>,
    /// What the lanes count.
    pub counters: NetworkReading,
}

/// A destination behind this host as a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteStatus {
    /// The destination.
    pub destination: IpAddr,
    /// The tunnel endpoint or the interface that it is reached by; or why it is not.
    pub via: Result<String, String>,
    /// The MAC address of the next hop, if it is served.
    pub next_hop: Option<MacAddress>,
}

/// A station of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StationStatus {
    /// The station.
    pub station: Station,
    /// Read from the kernel's device, not told by an operator.
    pub followed: bool,
}

/// A listening socket.
#[derive(Clone, Debug)]
pub struct ListenerStatus {
    /// Its path.
    pub path: PathBuf,
    /// Permission bits.
    pub mode: u32,
    /// Rights of those who attach there.
    pub policy: Policy,
    /// Sessions at the moment, with those that are not attached yet and those that have ended and are not released.
    pub sessions: usize,
    /// Bytes of their arenas.
    pub memory: usize,
    /// Their sources and sinks.
    pub endpoints: usize,
    /// Descriptors of the runtime's process that they need.
    pub descriptors: usize,
    /// Connections refused so far.
    pub refused: u64,
    /// What the sessions of its identity, ended ones included, have done.
    pub counters: SessionReading,
    /// Datagrams with a launch time that its sessions, ended ones included, say they did not give to the runtime.
    pub unserved: Counts,
    /// What has become of the frames of each declared stream, in the policy's order.
    pub streams: Vec<StreamReading>,
    /// Frames of no declared stream that were refused for that.
    pub undeclared: u64,
}

/// The scheduler of a datapath's link, over all lanes.
#[derive(Clone, Debug)]
pub struct ScheduleStatus {
    /// The datapath.
    pub datapath: String,
    /// The link's rate as it was told with the schedule that runs, or will if none does, bits per second; 0: none was.
    pub rate_bps: u64,
    /// Other datapaths of the node that send from the same address: their frames do not pass these gates.
    pub beside: Vec<String>,
    /// The address that its ports send from; none: it has no port.
    pub address: Option<IpAddr>,
    /// The port inserts a VLAN tag, by the same schedule.
    pub vlan: bool,
    /// The class whose gate frames of each priority pass, by the operational schedule.
    pub priorities: ClassTable,
    /// The schedule that runs; none: all gates are open.
    pub operational: Option<Schedule>,
    /// The schedule that will run, and from when on.
    pub pending: Option<(Schedule, TaiTime)>,
    /// The one that runs, as asked for.
    pub running: Option<LinkSchedule>,
    /// The latest of these two, as asked for.
    pub latest: Option<LinkSchedule>,
    /// The cycle in progress.
    pub cycle: Option<Cycle>,
    /// How many schedules have begun.
    pub changes: u64,
    /// How many were asked for with a base time in the past while another ran.
    pub late_changes: u64,
    /// Why the clock is not what the schedules demand, if they demand one.
    pub unmet: Option<Unmet>,
    /// How often it ceased to be.
    pub losses: u64,
    /// What became of the frames of each class, by number.
    pub classes: Vec<DepartureReading>,
}
