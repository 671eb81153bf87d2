//! Why a datagram with a launch time is not the runtime's to send, and what becomes of it: refused where the runtime
//! is required, else the kernel's, with its time. Each reason is told once, on standard error, and counted.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::announce::{self, Mode};
use crate::real;

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// There is no runtime, or it does not take this program's frames.
    Runtime,
    /// The source address is not the endpoint's.
    Source,
    /// It leaves by another interface than the endpoint's.
    Interface,
    /// It is for this machine.
    Local,
    /// There is no route, or one that the runtime cannot follow.
    Route,
    /// The network does not reach the station.
    Station,
    /// The next hop's hardware address is not known.
    Neighbour,
    /// A control message that is not known here.
    Control,
    /// A flag of the send.
    Flags,
    /// An option of the socket.
    Options,
    /// A tagged frame.
    Tag,
    /// A frame that speaks for others, or from another address.
    Frame,
    /// The message is none that can be read here.
    Malformed,
    /// The socket is of a kind that the runtime does not send for.
    Kind,
    /// It comes from a signal handler within another call, or from a `vfork` child.
    Context,
}

/// All of them, in order.
const ALL: [Reason; takt::unserved::REASONS] = [
    Reason::Runtime,
    Reason::Source,
    Reason::Interface,
    Reason::Local,
    Reason::Route,
    Reason::Station,
    Reason::Neighbour,
    Reason::Control,
    Reason::Flags,
    Reason::Options,
    Reason::Tag,
    Reason::Frame,
    Reason::Malformed,
    Reason::Kind,
    Reason::Context,
];

/// Reasons that have been told, a bit each.
static TOLD: AtomicU32 = AtomicU32::new(0);
/// How many datagrams each has been the reason for.
static COUNTS: [AtomicU64; ALL.len()] = [const { AtomicU64::new(0) }; ALL.len()];
/// How many of them have been said.
static SAID: [AtomicU64; ALL.len()] = [const { AtomicU64::new(0) }; ALL.len()];

impl Reason {
    /// What a call says that is refused for it.
    pub fn errno(self) -> c_int {
        match self {
            Self::Runtime => libc::ENOTCONN,
            Self::Source => libc::EADDRNOTAVAIL,
            Self::Interface => libc::ENODEV,
            Self::Route => libc::ENETUNREACH,
            Self::Station | Self::Neighbour => libc::EHOSTUNREACH,
            Self::Malformed => libc::EINVAL,
            Self::Context => libc::EAGAIN,
            Self::Local
            | Self::Control
            | Self::Flags
            | Self::Options
            | Self::Tag
            | Self::Frame
            | Self::Kind => libc::EOPNOTSUPP,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Runtime => "there is no runtime that takes them",
            Self::Source => "their source address is not the endpoint's",
            Self::Interface => "they leave by another interface than the endpoint's",
            Self::Local => "they are for this machine itself, or its loopback interface",
            Self::Route => {
                "there is no route to their destination that the runtime can follow (none, or a tunnel of the kernel's)"
            }
            Self::Station => "the runtime's network does not reach their station",
            Self::Neighbour => {
                "the next hop did not say its hardware address: those that waited for it were dropped"
            }
            Self::Control => {
                "they have a control message that the runtime does not know (docs: preload.md, \"What is taken\")"
            }
            Self::Flags => {
                "of a flag of the send, such as MSG_ZEROCOPY with SO_ZEROCOPY, or MSG_MORE"
            }
            Self::Options => {
                "their socket has an option that the runtime does not honour, such as UDP_CORK, UDP_SEGMENT or IP_OPTIONS"
            }
            Self::Tag => {
                "they have a VLAN tag that is not of the endpoint's `vlans`, or with a priority that is none of its classes"
            }
            Self::Frame => {
                "the runtime does not let this program send such frames (ARP, neighbour discovery, or from another \
                 address than the endpoint's)"
            }
            Self::Malformed => "the message cannot be read",
            Self::Kind => "their socket is no UDP or packet socket with launch times",
            Self::Context => {
                "they are sent by a signal handler within another send, or by a vfork child"
            }
        }
    }

    /// Says why, once in the life of the process, with what `detail` knows more exactly.
    pub fn tell(self, detail: impl FnOnce() -> String) {
        if self.is_news() {
            announce::say(&format!("{}: {}", what(), detail()));
        }
    }

    /// The same where no memory may be allocated.
    fn tell_anywhere(self) {
        if self.is_news() {
            let name = real::program_name().to_bytes();
            let (what, why) = (what().as_bytes(), self.text().as_bytes());
            real::say_parts([b"takt-preload: ", name, b": ", what, b": ", why, b"\n"]);
        }
    }

    fn is_news(self) -> bool {
        let bit = 1 << self as u32;
        TOLD.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// One datagram more. The errno that it is refused with; `None`: it is left to the kernel.
    pub fn settle(self) -> Option<c_int> {
        match self {
            Self::Context => self.tell_anywhere(),
            _ => self.tell(|| self.text().into()),
        }
        COUNTS[self as usize].fetch_add(1, Ordering::Relaxed);
        (announce::mode() == Mode::Required).then(|| self.errno())
    }
}

/// What becomes of them.
fn what() -> &'static str {
    match announce::mode() {
        Mode::Required => "datagrams with a launch time are refused",
        Mode::Wanted | Mode::Off => {
            "datagrams with a launch time go the kernel's way, which sends them at once unless the interface \
             has an etf or fq qdisc"
        }
    }
}

/// How many datagrams each has been the reason for.
pub fn counts() -> takt::unserved::Counts {
    std::array::from_fn(|at| COUNTS[at].load(Ordering::Relaxed))
}

/// Says at the end of the process how many there were of each reason; again, if it was not the end, only what is news.
pub fn say_counts() {
    for (reason, (count, said)) in ALL.iter().zip(COUNTS.iter().zip(&SAID)) {
        let count = count.load(Ordering::Relaxed);
        if count > 1 && said.swap(count, Ordering::Relaxed) != count {
            real::say(&format!(
                "takt-preload: {}: {count} datagrams in all: {}\n",
                real::program(),
                reason.text()
            ));
        }
    }
}

/// In a forked child: the parent's are not its own.
pub fn after_fork() {
    for count in COUNTS.iter().chain(&SAID) {
        count.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_place() {
        for (at, reason) in ALL.iter().enumerate() {
            assert_eq!(*reason as usize, at);
            assert!(reason.errno() > 0 && !reason.text().is_empty());
            let debug = format!("{reason:?}").to_lowercase();
            let name = match reason {
                Reason::Source => "source",
                Reason::Local => "machine",
                Reason::Neighbour => "hop",
                Reason::Flags => "flag",
                Reason::Options => "option",
                Reason::Context => "signal",
                _ => &debug,
            };
            let told = takt::unserved::NAMES[at];
            assert!(told.contains(name), "{reason:?} is told as {told}");
        }
    }
}
