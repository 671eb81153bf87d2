//! Reliable flows: which messages are missing, what is sent again and when, who waits for whom.
//!
//! One [`Sender`] for each source, one [`Receiver`] for each source at every place that has sinks of it. Sequences,
//! byte counts and instants come in, [`Acknowledgement`]s, [`Announce`]ments and the numbers of messages to repair come
//! out: nothing here holds a payload, reads a clock or sends. Instants and durations are nanoseconds (`i64`) of one clock
//! for each end; the two clocks are never compared.
//!
//! - A message is **retained** until every peer has it, or the peer is given up, or the message is ([`Policy`]). The window
//!   is bounded in messages and bytes; when it is full, or a peer has granted no more room, [`Sender::emit`] says so.
//! - **Grants** are of numbers of the window, and of messages and bytes. Where what is numbered is a part of a message, its
//!   first part [counts](Sender::emit_part) for the whole, so that a message is begun only where there is room for all of it. A
//!   peer that has everything may always be sent the first part of one more, whatever it granted of those two, and the others
//!   when it has that: else one that is longer than any grant would never leave.
//! - A receiver says what it has and what it lacks; it repeats that while it lacks something, with back-off.
//! - **Repair is paced**: to each peer at most a share of the flow's own bytes, and beyond that its first missing message alone,
//!   in as many retransmission timeouts as it fills frames of 1500 bytes, so that the last message of a flow is repaired
//!   too. That doubles while the peer does not get on, up to [`Config::most_timeout_ns`]. Loss never multiplies the traffic.
//! - While something is not acknowledged and nothing is heard, the sender **announces** its newest sequence (tail probe):
//!   lost messages at the end, lost acknowledgements and lost grants repair themselves by it.
//! - A peer that says nothing for [`Config::silence_ns`], or takes nothing for [`Config::stall_ns`], is evicted and counted.
//!
//! With [`Policy::Latest`] what is emitted [supersedes](Sender::supersede) what was emitted before: that is repaired no more,
//! and a receiver that hears of something newer [does without it](Receiver::supersede). So neither end ever waits for what
//! nobody wants any more.
//!
//! A message here is whatever its user numbers: lanes number the records of a source, so that a long message is repaired
//! record by record.
//!
//! Every message is delivered once and in order to every peer, or counted: at the sender as `given_up` or `abandoned`, at
//! the receiver as `lost`. A best-effort flow needs neither type.
//!
//! Round trips are measured by echoed time stamps (RFC 7323, section 3.2) and smoothed as in RFC 6298. Beyond it, the least
//! and the first timeout are configured: its second is for the Internet, not for a cell's network.

#![forbid(unsafe_code)]

pub mod codec;
pub mod receiver;
pub mod rtt;
pub mod sender;

pub use receiver::{Arrival, Delivery, Receiver};
pub use sender::{Action, PeerId, Sender};

/// Most messages in a window.
pub const MAX_WINDOW: u32 = 4096;
/// Most peers of one sender.
pub const MAX_PEERS: usize = 64;
/// Most bytes that one acknowledgement grants room for.
pub const MAX_GRANT_BYTES: u32 = 1 << 30;
/// Messages that one acknowledgement tells about, from the first that is missing.
pub const SPAN: u32 = 256;

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Repaired until it arrives.
    Reliable,
    /// Repaired while the repair can arrive this long after `emit`, in nanoseconds; then given up and counted.
    Within(i64),
    /// Repaired until a newer one is emitted: see [`Sender::supersede`].
    Latest,
}

/// What a [`Sender`] may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What is promised.
    pub policy: Policy,
    /// Messages retained, 1 to [`MAX_WINDOW`].
    pub messages: u32,
    /// Bytes retained.
    pub bytes: u64,
    /// Repair for each peer, in percent of the bytes emitted, 0 to 100.
    pub repair_percent: u8,
    /// Least retransmission timeout.
    pub least_timeout_ns: i64,
    /// Timeout before a round trip was measured.
    pub first_timeout_ns: i64,
    /// Most between two probes.
    pub most_timeout_ns: i64,
    /// A peer that owes an answer and is silent for so long is evicted.
    pub silence_ns: i64,
    /// A peer that answers, but makes no progress for so long while something waits for it, is evicted. `None`: never.
    pub stall_ns: Option<i64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::Reliable,
            messages: 256,
            bytes: 16 << 20,
            repair_percent: 10,
            least_timeout_ns: 200_000,
            first_timeout_ns: 10_000_000,
            most_timeout_ns: 1_000_000_000,
            silence_ns: 5_000_000_000,
            stall_ns: None,
        }
    }
}

impl Config {
    fn check(&self) -> Result<(), Refused> {
        if !(1..=MAX_WINDOW).contains(&self.messages) {
            return Err(Refused::Window(self.messages));
        }
        if self.bytes == 0 {
            return Err(Refused::Bytes);
        }
        if self.repair_percent > 100 {
            return Err(Refused::Share(self.repair_percent));
        }
        let ordered = 0 < self.least_timeout_ns
            && self.least_timeout_ns <= self.first_timeout_ns
            && self.first_timeout_ns <= self.most_timeout_ns
            && self.most_timeout_ns < self.silence_ns
            && self.silence_ns <= MAX_DURATION_NS;
        let durations = [self.stall_ns, self.policy.deadline()];
        if !ordered
            || durations
                .iter()
                .flatten()
                .any(|ns| !(1..=MAX_DURATION_NS).contains(ns))
        {
            return Err(Refused::Times);
        }
        Ok(())
    }
}

/// Longest configured time: an hour.
const MAX_DURATION_NS: i64 = 3_600_000_000_000;

impl Policy {
    fn deadline(self) -> Option<i64> {
        match self {
            Self::Reliable | Self::Latest => None,
            Self::Within(ns) => Some(ns),
        }
    }
}

/// Why a parameter is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No or too large a window.
    #[error("a window of {0} messages: 1 to {MAX_WINDOW} can be retained")]
    Window(u32),
    /// No bytes.
    #[error("a window of 0 bytes: at least the longest message must fit")]
    Bytes,
    /// More repair than flow.
    #[error("repair of {0} % of the flow: at most 100 %")]
    Share(u8),
    /// Times that contradict each other.
    #[error(
        "times must be 0 < least timeout <= first timeout <= most timeout < silence <= 1 h, deadline and stall 1 ns to 1 h"
    )]
    Times,
    /// Too many peers.
    #[error("another peer: a source has at most {MAX_PEERS}")]
    Peers,
}

/// Why a message cannot be emitted now: try again when [`Sender::room`] says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// Retained messages or bytes are at their bound.
    #[error("would block: the window is full of messages that are not acknowledged")]
    Window,
    /// A peer has no room.
    #[error("would block: a receiver has granted no more room")]
    Credit,
    /// Never possible.
    #[error("message of {0} bytes: longer than the window")]
    TooLong(u64),
}

/// Why a peer's datagram is refused: the peer is wrong or hostile, nothing was changed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Hostile {
    /// Acknowledges what was never emitted.
    #[error("acknowledges message {0}, which was not emitted")]
    NotEmitted(u32),
    /// Tells about more than [`SPAN`] messages.
    #[error("tells about {0} messages: at most {SPAN}")]
    Span(u32),
    /// Grants more than a window beyond what it has.
    #[error("grants room for {0} messages: at most {MAX_WINDOW}")]
    Grant(u32),
    /// Grants room for more whole messages than a window holds.
    #[error("grants room for {0} whole messages: at most {MAX_WINDOW}")]
    Messages(u32),
    /// Grants room for more bytes than anybody has.
    #[error("grants room for {0} bytes: at most {MAX_GRANT_BYTES}")]
    Bytes(u32),
    /// Announces more messages than a window holds.
    #[error("announces {0} messages at once: at most {MAX_WINDOW}")]
    Announced(u32),
    /// Not a peer, or not any more.
    #[error("not a peer of this source")]
    Unknown,
}

/// What a receiver says. Sequences are modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// All before it are here, or will never be.
    pub next: u32,
    /// There is room for messages before it.
    pub limit: u32,
    /// How many messages from `next` are told about: at most [`SPAN`].
    pub span: u32,
    /// Bit `i % 64` of word `i / 64`: message `next + i` is here. Clear and below `span`: missing.
    pub here: [u64; SPAN as usize / 64],
    /// Of the messages before it that were not acknowledged before, some did not get to every sink: one had no room. None,
    /// if it is not behind the `next` of an earlier acknowledgement.
    pub lacking: u32,
    /// The stamp of the newest datagram, as it came.
    pub stamp_ns: i64,
    /// How long ago that was.
    pub held_ns: i64,
    /// There is room for so many whole messages, of those that begin with `next` or behind it: at most [`MAX_WINDOW`].
    pub messages: u32,
    /// And for so many bytes of them: at most [`MAX_GRANT_BYTES`].
    pub bytes: u32,
}

/// What a sender says to one peer beside its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announce {
    /// Messages before it are not for the peer, or not retained any more.
    pub oldest: u32,
    /// The sequence that the next message will have.
    pub next: u32,
    /// The round trip as measured, for the receiver's pace; 0: not yet.
    pub round_trip_ns: i64,
    /// When it is sent, by the sender's clock: echoed.
    pub stamp_ns: i64,
}

/// The sequence near `near` whose low 32 bits these are. Counted from [`ORIGIN`], so that what lies before is a number too.
fn extend(near: u64, low: u32) -> u64 {
    let ahead = low.wrapping_sub(near as u32) as i32;
    near.wrapping_add_signed(i64::from(ahead))
}

/// Where 64-bit sequences begin.
const ORIGIN: u64 = 1 << 32;
