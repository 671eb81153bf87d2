//! What goes into a port and what comes out of it.

use std::fmt;

use takt_time::{TaiTime, TrafficClass};

/// The port's name for a frame it was offered: unique over the life of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// The flags of `struct sock_txtime`, with the kernel's values, and one of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TxFlags(u8);

impl TxFlags {
    /// `SOF_TXTIME_DEADLINE_MODE`: the launch time is the latest, not the exact one.
    pub const DEADLINE: Self = Self(1);
    /// `SOF_TXTIME_REPORT_ERRORS`: tell the sender about frames that were not sent.
    pub const REPORT_ERRORS: Self = Self(2);
    /// Not sent late, whatever the queue does with other late frames: what a socket's sender expects.
    /// It may still wait for its gate.
    pub const DROP_LATE: Self = Self(1 << 7);

    /// The flags in `bits`; others than the kernel's are left out.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits as u8 & 3)
    }

    /// Whether all of `flags` are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These and those.
    #[must_use]
    pub const fn union(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }
}

/// A frame offered to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<T> {
    /// Octets from the destination address on, without FCS, as the kernel's `skb->len`.
    pub len: u32,
    /// When it is to be sent.
    pub launch_time: Option<TaiTime>,
    /// How its launch time is meant.
    pub flags: TxFlags,
    /// Whose it is: flows of a class take turns where its discipline knows them.
    pub flow: u32,
    /// What the caller knows it by.
    pub handle: T,
}

impl<T> Item<T> {
    /// A frame without a launch time.
    pub const fn new(len: u32, handle: T) -> Self {
        Self {
            len,
            launch_time: None,
            flags: TxFlags(0),
            flow: 0,
            handle,
        }
    }

    /// This frame, to be sent at `launch_time`.
    #[must_use]
    pub fn at(self, launch_time: TaiTime) -> Self {
        let launch_time = Some(launch_time);
        Self {
            launch_time,
            ..self
        }
    }

    /// This frame, of a flow.
    #[must_use]
    pub fn of(self, flow: u32) -> Self {
        Self { flow, ..self }
    }

    /// This frame with `flags` too.
    #[must_use]
    pub fn with(self, flags: TxFlags) -> Self {
        let flags = self.flags.union(flags);
        Self { flags, ..self }
    }
}

/// What the sender of a frame is told, in the terms of Linux's error queue (`struct
/// sock_extended_err`), exactly as `etf` fills it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxTimeError {
    /// `ee_errno`: `EINVAL` for a launch time that was not accepted, `ECANCELED` for one missed.
    pub errno: i32,
    /// `ee_code`: `SO_EE_CODE_TXTIME_INVALID_PARAM` (1) or `SO_EE_CODE_TXTIME_MISSED` (2).
    pub code: u8,
    /// The launch time of the frame.
    pub launch_time: TaiTime,
}

impl TxTimeError {
    /// `ee_origin`: `SO_EE_ORIGIN_TXTIME`.
    pub const ORIGIN: u8 = 6;
    const INVALID_PARAM: u8 = 1;
    const MISSED: u8 = 2;
    const EINVAL: i32 = 22;
    const ECANCELED: i32 = 125;

    /// `ee_info`: the low half of the launch time.
    pub const fn info(&self) -> u32 {
        self.launch_time.as_nanos() as u32
    }

    /// `ee_data`: the high half of the launch time.
    pub const fn data(&self) -> u32 {
        (self.launch_time.as_nanos() >> 32) as u32
    }

    fn new<T>(item: &Item<T>, code: u8) -> Option<Self> {
        let launch_time = item.launch_time?;
        item.flags.contains(TxFlags::REPORT_ERRORS).then_some(Self {
            errno: if code == Self::MISSED {
                Self::ECANCELED
            } else {
                Self::EINVAL
            },
            code,
            launch_time,
        })
    }
}

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// The class's queue is full.
    Full,
    /// It is longer than `queueMaxSDU` allows (IEEE 802.1Q-2022, clause 8.6.8.4).
    Oversize,
    /// No window of its class, now or in a pending list, is long enough for it.
    NoWindow,
    /// The class is ordered by launch time and the frame has none.
    NoLaunchTime,
    /// The class takes strict frames or deadline frames only, and this is one of the others.
    Mode,
    /// Its launch time has passed.
    Late,
    /// Its launch time is further ahead than the class's horizon.
    TooFarAhead,
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the queue of the class is full",
            Self::Oversize => "longer than the maximum service data unit of the class",
            Self::NoWindow => "no window of the class is long enough",
            Self::NoLaunchTime => "the class needs a launch time",
            Self::Mode => "the class does not take this kind of launch time",
            Self::Late => "the launch time has passed",
            Self::TooFarAhead => "the launch time is too far ahead",
        })
    }
}

/// Why a frame that had been taken was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The lane or the link was busy past its launch time.
    Late,
    /// Its gate was closed at its launch time, or its deadline.
    GateMissed,
    /// No window of its class is long enough for it since the schedule changed.
    NoWindow,
    /// Longer than `queueMaxSDU` since the schedule changed.
    Oversize,
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Late => "too late for its launch time",
            Self::GateMissed => "its gate was closed at its launch time",
            Self::NoWindow => "no window of the class is long enough any more",
            Self::Oversize => "longer than the maximum service data unit of the class",
        })
    }
}

/// Whether a frame starts when it was meant to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Timeliness {
    /// Yes, or it had no launch time.
    OnTime,
    /// Later than its class tolerates: the lane or the link was busy.
    Late,
    /// Later than its class tolerates: its gate was closed.
    GateMissed,
}

/// A frame that was not taken.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused<T> {
    /// The frame.
    pub item: Item<T>,
    /// Why.
    pub reason: RefusalReason,
    /// What its sender is to be told, where it wants to know and etf would tell.
    pub error: Option<TxTimeError>,
}

impl<T> Refused<T> {
    pub(super) fn new(item: Item<T>, reason: RefusalReason) -> Self {
        let error = match reason {
            RefusalReason::Mode
            | RefusalReason::Late
            | RefusalReason::TooFarAhead
            | RefusalReason::NoLaunchTime => TxTimeError::new(&item, TxTimeError::INVALID_PARAM),
            // For these a qdisc drops without a report.
            RefusalReason::Full | RefusalReason::Oversize | RefusalReason::NoWindow => None,
        };
        Self {
            item,
            reason,
            error,
        }
    }
}

/// A frame that had been taken and is not sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Dropped<T> {
    /// The port's name for it.
    pub token: Token,
    /// Its class.
    pub class: TrafficClass,
    /// The frame.
    pub item: Item<T>,
    /// Why.
    pub reason: DropReason,
    /// What its sender is to be told, where it wants to know.
    pub error: Option<TxTimeError>,
}

impl<T> Dropped<T> {
    pub(super) fn new(
        token: Token,
        class: TrafficClass,
        item: Item<T>,
        reason: DropReason,
    ) -> Self {
        Self {
            error: TxTimeError::new(&item, TxTimeError::MISSED),
            token,
            class,
            item,
            reason,
        }
    }
}

/// A frame to be sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Departure<T> {
    /// The port's name for it.
    pub token: Token,
    /// Its class.
    pub class: TrafficClass,
    /// When its first bit is to leave: now, or up to the port's lead later.
    pub start: TaiTime,
    /// Whether that is as it was meant.
    pub timeliness: Timeliness,
    /// When the gate of its class closes; it is out before.
    pub gate_closes: Option<TaiTime>,
    /// The frame.
    pub item: Item<T>,
}

/// What a port wants done.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame in it is no longer queued"]
pub enum Decision<T> {
    /// Send this frame.
    Send(Departure<T>),
    /// Free this frame and tell its sender.
    Drop(Dropped<T>),
    /// Nothing to do before this instant, unless a frame is enqueued or management acts.
    WaitUntil(TaiTime),
    /// Nothing is queued.
    Idle,
}
