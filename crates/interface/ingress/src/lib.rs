//! Launch times of programs that cannot be preloaded (static ones, Go, io_uring, system calls made by hand), taken where the pod
//! cannot interfere: at the ingress of the host's end of its veth.
//!
//! The kernel keeps the time of `SO_TXTIME` with a packet across a veth (`skb->tstamp`, with its clock). An eBPF program there
//! takes packets that have one out of the kernel's path and hands them over a ring; [`Attachment::run`] gives them to the node's
//! runtime as frames of the pod's listener, whose policy counts. All else passes untouched, unless that is to be inside the
//! schedule as well ([`Options::all`]). The measurements behind that
//! are in `docs/decisions/0013`, what holds for users is in `docs/reference/veth.md`.
//!
//! | module | subject |
//! |---|---|
//! | `uplink` | what this host sends by a link without Takt, taken there |
//! | [`guest`] | the same for virtual machines: the device by which a guest sends |
//! | `runtime` | the runtime, to which frames of others are given |
//! | `programs` | loading and attaching the programs of `bpf/` |
//! | [`record`] | what the ring holds: pure |
//! | `forward` | from the ring to the runtime |
//! | `others` | the same for what has no launch time |
//! | `counters` | what is counted, by name |
//!
//! Not here: scheduling, and what may leave. That is the lane's, which trusts us no more than any application.

mod counters;
mod error;
mod forward;
pub mod guest;
mod others;
mod programs;
#[doc(hidden)] // for fuzz targets
pub mod record;
mod runtime;
mod sys;
mod uplink;

use std::path::PathBuf;

use takt::TrafficClass;

pub use error::Error;
pub use forward::Attachment;
pub use uplink::{Uplink, UplinkOptions, UplinkStatus, uplink_endpoint, uplink_status};

/// Which traffic class frames are of. The pod's `SO_PRIORITY` ends at the veth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClassFrom {
    /// The priority of its VLAN tag, or the class selector of its DSCP (RFC 2474, section 4.2.2.1), which is what `IP_TOS` and
    /// `IPV6_TCLASS` set; 0 for what has neither.
    #[default]
    Frame,
    /// This one for all.
    Fixed(TrafficClass),
}

impl ClassFrom {
    /// The class of a frame that says this one of itself.
    pub(crate) fn of(self, frame: TrafficClass) -> TrafficClass {
        match self {
            Self::Frame => frame,
            Self::Fixed(class) => class,
        }
    }
}

impl std::str::FromStr for ClassFrom {
    type Err = &'static str;

    /// 0 to 7, or `frame`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "frame" {
            return Ok(Self::Frame);
        }
        let class = text.parse().ok().and_then(TrafficClass::new);
        class
            .map(Self::Fixed)
            .ok_or("neither a class from 0 to 7 nor `frame`")
    }
}

/// What to take, and for whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// The host's end of the pod's veth.
    pub device: String,
    /// The pod's listener; `None`: as other applications find the runtime.
    pub socket: Option<PathBuf>,
    /// Drop packets with a launch time that the runtime does not send, instead of leaving them to the kernel; also when nobody takes
    /// them any more.
    pub required: bool,
    /// Their class.
    pub class: ClassFrom,
    /// The pod's directory in the hierarchy of cgroup v2: its programs may name `CLOCK_TAI` without CAP_NET_ADMIN.
    pub cgroup: Option<PathBuf>,
    /// Take what has no launch time as well, if it goes to one station that the runtime reaches: it is sent in class 0, at once as far
    /// as the schedule of the link lets it.
    pub all: bool,
}

/// What is at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether launch times are taken.
    pub taking: bool,
    /// Whether packets with a launch time that are not taken are dropped.
    pub required: bool,
    /// Whether what has no launch time is taken as well.
    pub all: bool,
    /// Whether TCP is, with that.
    pub tcp: bool,
    /// Packets by what became of them, in a fixed order; none if nothing is there.
    pub counters: Vec<(&'static str, u64)>,
}

/// Looks at a device; for that nothing has to run.
///
/// # Errors
/// [`Error::NoDevice`], [`Error::NotVeth`], [`Error::Privilege`].
pub fn status(device: &str) -> Result<Status, Error> {
    let seen = programs::look(&programs::Device::find(device)?)?;
    let mut named = Vec::new();
    let (mut all, mut tcp) = (false, false);
    if let Some((program, reader)) = &seen.taking {
        let of_program = counters::PROGRAM_COUNTERS.into_iter();
        named.extend(of_program.zip(program.iter().copied()));
        let others = named.split_off(counters::OTHERS.min(named.len()));
        // A reason may have been the program's or the process's.
        for (name, count) in counters::READER_COUNTERS.into_iter().zip(reader) {
            match named.iter_mut().find(|(other, _)| *other == name) {
                Some((_, sum)) => *sum += count,
                None => named.push((name, *count)),
            }
        }
        let takes = reader.get(counters::TAKES_OTHERS).copied();
        tcp = takes == Some(counters::ALL);
        all = tcp || takes == Some(counters::ALL_BUT_TCP);
        if all {
            named.extend(others);
            let reader = reader.iter().skip(counters::READER_COUNTERS.len()).copied();
            named.extend(counters::OTHER_COUNTERS.into_iter().zip(reader));
        }
    }
    if let Some(counts) = seen.realtimes {
        named.extend(counters::REALTIME_COUNTERS.into_iter().zip(counts));
    }
    named.extend(seen.guarded.map(|count| ("dropped", count)));
    Ok(Status {
        taking: seen.taking.is_some(),
        required: seen.guarded.is_some(),
        all,
        tcp,
        counters: named,
    })
}

/// Lifts what an attachment with [`Options::required`] has left: packets with a launch time pass again. Whether there was
/// something to lift.
///
/// # Errors
/// As [`status`].
pub fn lift(device: &str) -> Result<bool, Error> {
    programs::lift(&programs::Device::find(device)?)
}
