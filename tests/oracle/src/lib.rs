//! What goes into the virtual machine and what comes out of it.
//!
//! `oracle` makes [`Case`]s, runs them in a virtual machine whose kernel is a distribution's, where
//! `oracle-guest` carries them out, and compares the [`Observed`] with what `takt-schedule` does.

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// The ethertype of the frames: local experimental (IEEE 802).
pub const ETHERTYPE: u16 = 0x88b5;
/// Octets of the Ethernet header.
pub const HEADER: usize = 14;
/// Octets before the payload of a datagram: Ethernet, IPv4, UDP.
pub const ETHERNET_TO_PAYLOAD: usize = HEADER + 20 + 8;
/// Where the datapath of a case sends from.
pub const OWN_ADDRESS: &str = "10.88.0.1:5000";
/// Where it sends to.
pub const PEER: &str = "10.88.0.2:5001";
/// UDP port of [`PEER`].
pub const PEER_PORT: u16 = 5001;

/// One experiment: a queueing discipline, and frames sent through it. Times are nanoseconds from the
/// start of the case, as the guest chooses it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// What is compared.
    pub kind: Kind,
    /// The interface that frames are sent on.
    pub device: String,
    /// The interface whose frames are captured: the same, or the other end. One in another network
    /// namespace has that in front: `peer/veth1`. (Within one namespace frames keep their launch time for
    /// a time stamp.)
    pub capture: String,
    /// Commands before the first frame. `base-time N` in them is counted from the start.
    pub setup: Vec<String>,
    /// Commands later on, each at its time.
    pub later: Vec<(i64, String)>,
    /// The frames, in the order in which they are sent.
    pub frames: Vec<Frame>,
    /// How long to wait for frames.
    pub run_ns: i64,
}

/// What a case compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Which class the kernel serves first.
    Probe,
    /// taprio, one frame at a time: when it leaves.
    Windows,
    /// taprio, many frames at once: in which windows and in which order they leave.
    Order,
    /// taprio, one frame at a time, over a change of the schedule.
    Change,
    /// etf with launch times to be met: which frames leave, when, in which order; what is reported.
    Launch,
    /// etf with more frames for one instant than it can send: what is reported.
    Crowd,
    /// etf with deadlines.
    Deadline,
    /// etf below taprio: which frames leave, and when.
    LaunchInWindows,
    /// etf at the root or below mqprio, with frames of Takt's datapath over kernel UDP: when they leave.
    Datapath,
    /// The same with an etf that misses what it takes: that the datapath counts it.
    Missed,
}

impl Case {
    /// Whether Takt's datapath sends its frames.
    pub fn by_datapath(&self) -> bool {
        matches!(self.kind, Kind::Datapath | Kind::Missed)
    }

    /// Whether packets of this priority pass etf.
    pub fn keeps(&self, priority: u32) -> bool {
        let below = self.setup.iter().any(|command| command.contains("mqprio"));
        !below || priority >= KEPT_FROM
    }
}

/// Below mqprio the priorities from here on pass etf.
pub const KEPT_FROM: u32 = 4;

/// A frame to send.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Frame {
    /// When to send it.
    pub at_ns: i64,
    /// Its `SO_PRIORITY`.
    pub priority: u32,
    /// Octets with the Ethernet header.
    pub len: usize,
    /// Its launch time (`SCM_TXTIME`).
    pub launch_ns: Option<i64>,
    /// Whether the launch time is a deadline.
    pub deadline: bool,
}

/// What a case did to the kernel. Times are TAI.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Observed {
    /// The start of the case.
    pub start_ns: i64,
    /// What commands that failed said.
    pub failures: Vec<String>,
    /// Before and after each frame's system call, in the order of the frames.
    pub sent: Vec<(i64, i64)>,
    /// The frames that came out, by their numbers in the case, in their order.
    pub captured: Vec<(usize, i64)>,
    /// When each later command was done.
    pub changed: Vec<i64>,
    /// What the kernel told the sender.
    pub reports: Vec<Report>,
    /// What Takt's datapath counts as not sent.
    pub lost: u64,
}

/// `struct sock_extended_err` of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// `ee_errno`.
    pub errno: u32,
    /// `ee_origin`.
    pub origin: u8,
    /// `ee_code`.
    pub code: u8,
    /// `ee_info`.
    pub info: u32,
    /// `ee_data`.
    pub data: u32,
}
