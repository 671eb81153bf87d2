//! From what streams require to the gate control lists and launch times that keep it.
//!
//! A [`Plan`] says which streams there are, when each is sent and by when it has to be there, and over which links.
//! [`synthesize`] answers with a launch offset for each stream and a schedule for each port that they pass, or with
//! the streams that cannot be met and why. Frames are not held anywhere but until the window of their own that each
//! port opens for them: *no-wait* scheduling (Dürr and Nayak, RTNS 2016), with what clocks, switches and talkers
//! are off added to each hop, so that a frame is there before its window opens. Streams of one class on a port are kept
//! apart from the moment that the first of them may be there, since a queue gives them out in the order in which they
//! came.
//!
//! The search is a heuristic: it places one stream after the other at the earliest offset that disturbs none of those
//! placed, and begins anew with those first that found no place. What it finds is then [verified](verify): replayed on the
//! scheduler itself ([`crate::Port`]) and looked at by [`crate::admission`], which know nothing of how it was found. What it does not find may exist
//! nevertheless, unless the reason given is one that no schedule could help ([`Unmet::is_certain`]).

mod file;
mod gates;
mod place;
mod route;
mod verify;

use std::fmt;

use takt_time::TrafficClass;

use crate::check::readable;
use crate::link::Link;
use crate::schedule::Schedule;

pub use file::read;
pub use verify::{Broken, verify};

/// Most streams of a plan.
pub const MOST_STREAMS: usize = 4096;
/// How much later than its offset a talker's frame begins at most, where a plan does not say: nanoseconds.
pub const USUAL_LAUNCH_ERROR_NS: u64 = 20_000;
/// How far the clocks of two nodes are apart at most, where a plan does not say: nanoseconds.
pub const USUAL_SYNC_ERROR_NS: u64 = 1_000;
/// The longest period, nanoseconds. What every stream of a port repeats after may be no longer either.
pub const LONGEST_PERIOD_NS: u64 = crate::gate::GateList::MAX_CYCLE_NS;

/// What is to be sent, and over what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// One for each direction of each cable.
    pub ports: Vec<PlannedPort>,
    /// What is sent.
    pub streams: Vec<Stream>,
    /// How much later than its offset a talker's frame begins at most: nanoseconds.
    pub launch_error_ns: u64,
    /// How far the clocks of two nodes are apart at most: nanoseconds.
    pub sync_error_ns: u64,
}

/// One direction of a cable: the port at its beginning has a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPort {
    /// The node that sends.
    pub from: String,
    /// The node that receives.
    pub to: String,
    /// Rate and framing.
    pub link: Link,
    /// From one end to the other: nanoseconds.
    pub delay_ns: u64,
    /// From when `from` has all of a frame to when it may send it on, at most: nanoseconds. Of no account at talkers.
    pub forwarding_ns: u64,
}

impl PlannedPort {
    /// What people call it.
    pub fn name(&self) -> String {
        format!("{}-{}", self.from, self.to)
    }
}

/// What one talker sends in every period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// A name that no other has.
    pub name: String,
    /// Its traffic class, and priority, on every port.
    pub class: TrafficClass,
    /// The node that sends it.
    pub talker: String,
    /// Those that receive it.
    pub listeners: Vec<String>,
    /// From one launch to the next: nanoseconds. Periods begin at every multiple of it since 1970 (TAI).
    pub period_ns: u64,
    /// Octets of its largest frame, without FCS.
    pub octets: u32,
    /// Frames in a period, sent one after the other.
    pub frames: u32,
    /// From the launch to the last bit at the last listener: nanoseconds.
    pub deadline_ns: u64,
    /// How much later than its offset it may be handed over: nanoseconds.
    pub window_ns: u64,
    /// The earliest offset in a period, and the latest.
    pub offsets_ns: (u64, u64),
    /// What the talker's node knows it by.
    pub flow: Option<Flow>,
}

/// How a talker's node tells a stream's frames from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Messages of this channel.
    Channel(u64),
    /// UDP datagrams to this address.
    Destination(std::net::SocketAddr),
}

/// What keeps every stream of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synthesis {
    /// By the streams of the plan.
    pub streams: Vec<Placed>,
    /// Of the ports that streams pass, by their place in the plan.
    pub schedules: Vec<(usize, Schedule)>,
}

/// When a stream is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Nanoseconds from the beginning of a period to its launch.
    pub offset_ns: u64,
    /// Nanoseconds from there to its last bit at the last listener, at most, each by the clock of its node.
    pub latency_ns: u64,
    /// Its windows, from the talker's on; one that follows lies behind the one it comes from.
    pub hops: Vec<Hop>,
}

/// When a stream has a port for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The port, by its place in the plan.
    pub port: usize,
    /// The hop it comes from; `None` at the talker.
    pub from: Option<usize>,
    /// The earliest that its first frame may be there: nanoseconds from the launch offset, negative where a clock is ahead.
    pub arrives_ns: i64,
    /// When its window opens.
    pub opens_ns: i64,
    /// When it closes.
    pub closes_ns: i64,
}

/// Why a stream has no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// The stream, by its place in the plan.
    pub stream: usize,
    /// Why.
    pub reason: Reason,
}

impl Unmet {
    /// Whether no schedule of this kind could help, rather than that none was found.
    pub fn is_certain(&self) -> bool {
        !matches!(self.reason, Reason::NotFound { .. })
    }
}

/// See [`Unmet`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No cable leads there.
    NoWay {
        /// The listener.
        listener: String,
    },
    /// Several ways lead there.
    SeveralWays {
        /// The listener.
        listener: String,
    },
    /// Even alone it would be later.
    Deadline {
        /// What it needs: nanoseconds.
        needs_ns: u64,
        /// What it has: nanoseconds.
        has_ns: u64,
    },
    /// Its window on a port is longer than its period, or than it can be told.
    Period {
        /// The port.
        port: String,
        /// How long its window would be: nanoseconds.
        needs_ns: u64,
    },
    /// The streams of a port need more than the port has.
    TooMuch {
        /// The port.
        port: String,
        /// Parts of 1000 of its time.
        share: u64,
    },
    /// It and another one meet again and again, whatever their offsets.
    Meets {
        /// The port.
        port: String,
        /// The other one.
        other: String,
        /// What both need together: nanoseconds.
        need_ns: u64,
        /// In how much time they have to find room: the greatest common divisor of their periods, nanoseconds.
        within_ns: u64,
    },
    /// What all streams of a port repeat after is too long, or has too many windows.
    NoRepetition {
        /// The port.
        port: String,
    },
    /// No offset was found that disturbs none of the others.
    NotFound {
        /// The busiest port on its way.
        port: String,
        /// Parts of 1000 of its time that are taken.
        share: u64,
        /// How often the search began anew.
        attempts: usize,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoWay { listener } => write!(
                f,
                "no link leads to {listener}: add the [[link]] that is missing"
            ),
            Self::SeveralWays { listener } => write!(
                f,
                "several ways lead to {listener}: leave out the links that it does not take, a network is a tree here"
            ),
            Self::Deadline { needs_ns, has_ns } => write!(
                f,
                "it needs {} even alone, and has {}: raise its deadline, send less, or lower launch-error, sync-error and forwarding if they are less",
                readable(*needs_ns),
                readable(*has_ns)
            ),
            Self::Period { port, needs_ns } => write!(
                f,
                "it needs a window of {} at {port} in each period: lengthen its period, or send less",
                readable(*needs_ns)
            ),
            Self::TooMuch { port, share } => write!(
                f,
                "the streams of {port} need {}.{} % of its time: send fewer or shorter frames, or less often",
                share / 10,
                share % 10
            ),
            Self::Meets {
                port,
                other,
                need_ns,
                within_ns,
            } => write!(
                f,
                "it and {other} need {} at {port} together, and their periods leave them {} of each other: make one period a multiple of the other",
                readable(*need_ns),
                readable(*within_ns)
            ),
            Self::NoRepetition { port } => write!(
                f,
                "the streams of {port} repeat too rarely together, or need more entries than a gate control list has: use periods that are multiples of each other"
            ),
            Self::NotFound {
                port,
                share,
                attempts,
            } => write!(
                f,
                "no offset was found in {attempts} attempts beside the others, which take {}.{} % of {port}: widen its offsets, use periods that are multiples of each other, or send less",
                share / 10,
                share % 10
            ),
        }
    }
}

/// A launch offset for each stream and a schedule for each port that they pass.
///
/// Time grows with the square of the streams of a port; [`MOST_STREAMS`] bounds it.
///
/// # Errors
/// The streams that cannot be met, in the order of the plan.
pub fn synthesize(plan: &Plan) -> Result<Synthesis, Vec<Unmet>> {
    let streams = place::place(plan)?;
    let schedules = gates::schedules(plan, &streams)?;
    Ok(Synthesis { streams, schedules })
}

#[cfg(test)]
mod tests;
