//! The arena: what lies where, and the descriptors that its rings carry.
//!
//! ```text
//! 0        header page: magic, version, doorbell words          written by both
//! 4096     ring region: source and sink blocks                   offsets told by the runtime
//! tx       transmit region: chunks owned by the application      its allocator is private to it
//! rx       receive region: chunks owned by the runtime           its allocator is private to it
//! ```
//! All integers are in host order: both sides run on one machine. Drawn bit by bit in
//! `docs/reference/arena-layout.md`.

use takt_shm::{Pod, RingLayout};

/// First word of an arena: `TAKT` in memory order.
pub const ARENA_MAGIC: u32 = u32::from_le_bytes(*b"TAKT");

/// Offset of the magic.
pub const MAGIC_OFFSET: usize = 0;
/// Offset of the layout version, a `u32`.
pub const VERSION_OFFSET: usize = 4;
/// Offset of the word that says whether the lane is parked (see `takt_shm::LaneBell`).
pub const LANE_STATE_OFFSET: usize = 64;
/// Offset of the word that says that some ring of the session has news for the lane.
pub const LANE_DIRTY_OFFSET: usize = 128;
/// Offset of the word that says what the runtime can do besides what its version says, a `u32` of `CAN_*`: 0 of older ones.
pub const ABILITIES_OFFSET: usize = 8;
/// Offset of the word that says what the application can do besides what its version says, a `u32` of those below, which it
/// writes when it has attached: 0 of older ones.
pub const APPLICATION_OFFSET: usize = 12;
/// Offset of the word with the number of the session that the application had before it attached again, a `u64`, which it writes
/// when it has attached; 0: it had none.
pub const BEFORE_OFFSET: usize = 16;
/// Offset of the word that says whether somebody waits for room at the session's sources (see `takt_shm::SinkBell`).
pub const ROOM_OFFSET: usize = 192;
/// In the word at [`ABILITIES_OFFSET`]: it tells of room at sources by a descriptor, if asked
/// ([`Request::TellRoom`](crate::message::Request::TellRoom)).
pub const CAN_TELL_ROOM: u32 = 1;
/// In the word at [`APPLICATION_OFFSET`]: it attaches again by itself when its session ends because it is moved.
pub const COMES_BACK: u32 = 1;
/// In the word at [`APPLICATION_OFFSET`]: it says which session it was, at [`BEFORE_OFFSET`].
pub const SAYS_BEFORE: u32 = 2;
/// Bytes of the header page.
pub const HEADER_BYTES: usize = 4096;

/// Set in a chunk number that lies in the transmit region: a message delivered without a copy from a
/// source to a sink of the same session.
pub const TX_REGION: u32 = 1 << 31;

/// Set in a chunk number of a transmit descriptor, and of its completion, that lies in the receive region: a message that
/// a sink of the session has received, and gives up by emitting it.
pub const RX_REGION: u32 = 1 << 31;

/// [`TxDescriptor::flags`]: `launch_time_ns` is meant.
pub const FLAG_LAUNCH_TIME: u8 = 1;
/// [`TxDescriptor::flags`], of frames with a launch time: it is the latest instant, not the exact one
/// (`SOF_TXTIME_DEADLINE_MODE`).
pub const FLAG_DEADLINE: u8 = 2;
/// [`TxDescriptor::flags`], of messages: `sequence` and `epoch` are meant.
pub const FLAG_NUMBERED: u8 = 4;
/// [`TxDescriptor::flags`], of messages with a launch time: sinks of this node get them at once.
pub const FLAG_AT_ONCE_HERE: u8 = 8;

/// Application to runtime: send this message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TxDescriptor {
    /// First chunk of the payload, relative to the transmit region, or to the receive region with [`RX_REGION`].
    pub chunk: u32,
    /// Payload bytes.
    pub length: u32,
    /// Returned in the completion.
    pub token: u32,
    /// Traffic class, 0 to 7.
    pub class: u8,
    /// `FLAG_*`; others must be 0.
    pub flags: u8,
    /// If flagged: sinks that the source gives its messages itself since this epoch or an earlier one, and still does, have
    /// this one. 0: none has.
    pub epoch: u16,
    /// When to send, TAI nanoseconds, if flagged.
    pub launch_time_ns: i64,
    /// If flagged: the message's number at its source, at least what the lane would give it.
    pub sequence: u64,
}

/// Runtime to application: this is the end of that message; its chunk is yours again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Completion {
    /// First chunk of the payload, as emitted.
    pub chunk: u32,
    /// As emitted.
    pub token: u32,
    /// An [`Outcome`] as a number.
    pub outcome: u32,
    /// When its last frame left, if it did: the low half of TAI nanoseconds.
    pub departed_ns_low: u32,
}

/// What became of an emitted message. `Sent` means handed to every sink known at that moment;
/// delivery is at most once and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Outcome {
    /// Handed to all local sinks and to the datapath for all remote ones.
    Sent = 0,
    /// No sink is known on this channel; the message went nowhere.
    NoSink = 1,
    /// At least one remote sink could not be reached: no path to its node at that moment.
    Unreachable = 2,
    /// Its launch time had passed or could not be met (the lane, the link or its gate): not sent to
    /// remote sinks.
    Late = 3,
    /// Its launch time is too far ahead, or the schedule has no window of its class that is long
    /// enough: not sent to remote sinks.
    NotScheduled = 4,
    /// It is no frame that its endpoint may send: not sent. Or it is outside what is declared of its tenant's streams: not
    /// sent to remote sinks.
    Refused = 5,
    /// Reliable, and at least one sink does without it: its deadline has passed, or the sink or its node took nothing for
    /// too long, or went.
    Undelivered = 6,
}

impl Outcome {
    /// The outcome with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Sent),
            1 => Some(Self::NoSink),
            2 => Some(Self::Unreachable),
            3 => Some(Self::Late),
            4 => Some(Self::NotScheduled),
            5 => Some(Self::Refused),
            6 => Some(Self::Undelivered),
            _ => None,
        }
    }
}

/// Runtime to application: a message for this sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RxDescriptor {
    /// First chunk of the payload, relative to the receive region, or to the transmit region with [`TX_REGION`].
    pub chunk: u32,
    /// Payload bytes.
    pub length: u32,
    /// Traffic class, 0 to 7.
    pub class: u32,
    /// The sending runtime's lane: its incarnation, random at each start.
    pub sender: u32,
    /// Number of the message on its channel at that sender.
    pub sequence: u64,
    /// When the sender's runtime took the message, TAI nanoseconds.
    pub send_time_ns: i64,
}

/// Application to runtime: this chunk (as in [`RxDescriptor::chunk`]) may be used again.
pub type Release = u32;

const _: () = assert!(size_of::<TxDescriptor>() == 32 && size_of::<RxDescriptor>() == 32);
const _: () = assert!(size_of::<Completion>() == 16);

// SAFETY: only integers, sizes asserted above equal the sums of the fields: no padding, any bit pattern valid.
#[allow(unsafe_code)]
unsafe impl Pod for TxDescriptor {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Pod for Completion {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Pod for RxDescriptor {}

/// Entries of a ring unless the application asks for others.
pub const DEFAULT_DEPTH: u32 = 1024;
/// The same of a sink that keeps the newest message alone: how many its application may hold besides.
pub const LATEST_DEPTH: u32 = 16;
/// Most entries of a ring.
pub const MAX_DEPTH: u32 = 1 << 16;

/// Offsets inside a source's block of the ring region.
///
/// ```text
/// 0    transmit ring (TxDescriptor), application to runtime
/// ..   completion ring (Completion), runtime to application
/// ..   who else listens, a u64 written by the runtime: the epoch in the upper half, and in the lower one how many sinks and
///      lanes get messages of that epoch by the lane; behind it, written by the application, u64 each: messages and bytes
///      that did not go by the lane; and behind these, a u64 written by the runtime: how many messages of the transmit ring
///      the sinks here have got, of a source that has had rings (see [`DirectBlock`])
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceBlock {
    /// Where the block starts in the arena.
    pub offset: usize,
    /// Entries of each of its rings.
    pub depth: u32,
}

impl SourceBlock {
    /// Bytes of a block with rings of `depth`.
    pub const fn bytes(depth: u32) -> usize {
        RingLayout::size::<TxDescriptor>(depth)
            + RingLayout::size::<Completion>(depth)
            + RingLayout::ALIGN
    }

    /// Arena offset of the transmit ring.
    pub const fn tx_ring(&self) -> usize {
        self.offset
    }

    /// Arena offset of the completion ring.
    pub const fn completion_ring(&self) -> usize {
        self.offset + RingLayout::size::<TxDescriptor>(self.depth)
    }

    /// Arena offset of the word that says who else listens.
    pub const fn listeners(&self) -> usize {
        self.completion_ring() + RingLayout::size::<Completion>(self.depth)
    }

    /// Arena offset of the count of messages that did not go by the lane.
    pub const fn direct_messages(&self) -> usize {
        self.listeners() + 8
    }

    /// Arena offset of the count of their bytes.
    pub const fn direct_bytes(&self) -> usize {
        self.listeners() + 16
    }

    /// Arena offset of the count of messages that the lane has given to the sinks here.
    pub const fn given(&self) -> usize {
        self.listeners() + 24
    }
}

/// The ring between a source and a sink of one trust domain: a file of its own, which both map.
///
/// ```text
/// 0    doorbell word (see takt_shm::SinkBell), the source rings
/// 64   messages dropped because the ring was full, and for want of memory, u64 each, written by the source
/// 128  message ring (RxDescriptor), source to sink; chunks are of the source's transmit region
/// ..   return ring (u32), sink to source: this chunk is yours again
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectBlock {
    /// Entries of each of its rings.
    pub depth: u32,
}

impl DirectBlock {
    /// Offset of the doorbell word.
    pub const BELL: usize = 0;
    /// Offset of the count of messages dropped because the ring was full.
    pub const DROPPED_FULL: usize = 64;
    /// Offset of the count of messages dropped because the sink held too much.
    pub const DROPPED_MEMORY: usize = 72;
    /// Offset of the message ring.
    pub const MESSAGES: usize = 128;

    /// Offset of the return ring.
    pub const fn returns(&self) -> usize {
        Self::MESSAGES + RingLayout::size::<RxDescriptor>(self.depth)
    }

    /// Bytes of all.
    pub const fn bytes(&self) -> usize {
        self.returns() + RingLayout::size::<Release>(self.depth)
    }

    /// Whether rings may have this depth.
    pub const fn is_possible(&self) -> bool {
        self.depth.is_power_of_two() && self.depth <= MAX_DEPTH
    }
}

/// Offsets inside a sink's block of the ring region.
///
/// ```text
/// 0    doorbell word (see takt_shm::SinkBell)
/// 64   counters, u64 each, written by the runtime: delivered, dropped (ring full), dropped (no memory), lost, superseded
/// 128  receive ring (RxDescriptor), runtime to application; of a sink that keeps the newest message alone, in the first
///      bytes of the same room, takt_shm::newest
/// ..   release ring (u32), application to runtime
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinkBlock {
    /// Where the block starts in the arena.
    pub offset: usize,
    /// Entries of each of its rings.
    pub depth: u32,
}

impl SinkBlock {
    /// Bytes of a block with rings of `depth`.
    pub const fn bytes(depth: u32) -> usize {
        128 + RingLayout::size::<RxDescriptor>(depth) + RingLayout::size::<Release>(depth)
    }

    /// Arena offset of the doorbell word.
    pub const fn bell(&self) -> usize {
        self.offset
    }

    /// Arena offset of a counter.
    pub const fn counter(&self, counter: SinkCounter) -> usize {
        self.offset + 64 + 8 * counter as usize
    }

    /// Arena offset of the receive ring.
    pub const fn rx_ring(&self) -> usize {
        self.offset + 128
    }

    /// Arena offset of the release ring.
    pub const fn release_ring(&self) -> usize {
        self.offset + 128 + RingLayout::size::<RxDescriptor>(self.depth)
    }
}

/// Counters that the runtime shows in a sink's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum SinkCounter {
    /// Messages put into the receive ring.
    Delivered = 0,
    /// Messages dropped because the receive ring was full.
    DroppedFull = 1,
    /// Messages dropped because the receive region had no room.
    DroppedMemory = 2,
    /// Messages of this channel that were sent and never arrived (gaps in sequence numbers).
    Lost = 3,
    /// Messages that newer ones took the place of before the application took them.
    Superseded = 4,
}

/// Longest message that may take the share of the receive region that large messages have no part in, bytes.
pub const SMALL_MESSAGE: usize = 64 << 10;

/// Bytes of a receive region that messages of more than [`SMALL_MESSAGE`] may take together; a single one may
/// take more.
pub const fn large_share(rx_bytes: usize) -> usize {
    rx_bytes - rx_bytes / 8
}

/// Where the parts of an arena lie. Told by the runtime, checked by the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaMap {
    /// Bytes of the ring region, from [`HEADER_BYTES`].
    pub ring_bytes: usize,
    /// Bytes of the transmit region, which follows the rings.
    pub tx_bytes: usize,
    /// Bytes of the receive region, which follows the transmit region.
    pub rx_bytes: usize,
}

impl ArenaMap {
    /// Arena offset of the transmit region.
    pub const fn tx_offset(&self) -> usize {
        HEADER_BYTES + self.ring_bytes
    }

    /// Arena offset of the receive region.
    pub const fn rx_offset(&self) -> usize {
        self.tx_offset() + self.tx_bytes
    }

    /// Bytes of the whole arena.
    pub const fn total(&self) -> usize {
        self.rx_offset() + self.rx_bytes
    }
}
