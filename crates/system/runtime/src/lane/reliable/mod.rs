//! Reliable sources and what is heard of those elsewhere: `takt-recovery` applied to the records of a lane.
//!
//! What is numbered, acknowledged and repaired is the record, so that a long message is repaired record by record. Messages are
//! put together in the memory of their sinks as they come, and delivered in the order of their source.
//!
//! Announcements, acknowledgements and repair are sent by [`State::recover`] between receiving and sending, at the instants
//! that the engines ask for. These, and how long somebody is waited for, are of a time that is never stepped (`steady_ns`); what leaves or
//! is stamped has the clock's (`now_ns`).

mod inbound;
mod outbound;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};

use takt_recovery::codec::ANNOUNCE_LEN;
use takt_time::TaiTime;
use takt_wire::channel::{Kind, RecordHeader};

use super::remote::{Carrier, Remote};
use super::shares::Shares;
use super::track::SourceKey;
use super::{LanePort, State};
use crate::slots::{ChannelSlot, InboundSlot, OutboundSlot, RemoteSlot, Table};
pub(super) use inbound::Inbound;
use inbound::Left;
pub(super) use outbound::{Next, Outbound};

/// Reliable sources elsewhere that a lane follows, and those of them that a tenant hears from one peer whatever others have;
/// those beyond are not heard until others have ended or been idle for so long.
const MOST_INBOUND: usize = 8192;
const OWN_INBOUND: usize = 16;
const IDLE_NS: i64 = 10_000_000_000;
/// Between two looks which of them are idle, and at how many of them each time.
const AGE_EVERY_NS: i64 = 100_000_000;
const MOST_AGED: usize = 2048;
/// Sources of a lane elsewhere that are not followed any more and of which is known how far they were.
const MOST_LEFT: usize = 256;
/// Ends of reliable flows that are looked at in a round; the others in the next.
const MOST_LOOKS: usize = 256;
/// And what the looks at sinks for room may cost then, in the unit of [`fair`](super::fair).
const MOST_RECOVERY: i64 = super::fair::QUANTUM;
/// When a frame is to leave in a moment, what peers say to each other waits so long.
const YIELD_NS: i64 = 2 * super::egress::GUARD_NS;
/// And when the class has no window, so long.
const NO_WINDOW_NS: i64 = 10_000_000;

/// What the sender of a source says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Announcement {
    engine: takt_recovery::Announce,
    /// The number of the first message that the receiver gets, if it knows of none, and of the one that will be emitted
    /// next.
    oldest_message: u32,
    next_message: u32,
    /// Differs from that of any other source that had the same number.
    epoch: u32,
    /// How long a sink without room is waited for. `None`: as long as it takes.
    patience: Option<u32>,
    /// Its messages take the place of those before them; `patience` is none then.
    latest: bool,
}

/// [`Announcement::patience`] is in so many nanoseconds: microseconds.
const PATIENCE_UNIT_NS: i64 = 1000;
/// As it stands for `None`, and for a source of which the newest message counts.
const FOR_EVER: u32 = u32::MAX;
const LATEST: u32 = u32::MAX - 1;

/// Bytes of an announcement.
const ANNOUNCEMENT_LEN: usize = ANNOUNCE_LEN + 16;

impl Announcement {
    fn encode(&self) -> [u8; ANNOUNCEMENT_LEN] {
        let mut bytes = [0; ANNOUNCEMENT_LEN];
        bytes[..ANNOUNCE_LEN].copy_from_slice(&self.engine.encode());
        let fields = [
            self.oldest_message,
            self.next_message,
            self.epoch,
            match self.latest {
                true => LATEST,
                false => self.patience.unwrap_or(FOR_EVER),
            },
        ];
        let (spaces, _) = bytes[ANNOUNCE_LEN..].as_chunks_mut();
        for (field, space) in fields.iter().zip(spaces) {
            *space = field.to_le_bytes();
        }
        bytes
    }

    /// How long a sink without room is waited for, in nanoseconds. `None`: as long as it takes.
    fn patience_ns(&self) -> Option<i64> {
        self.patience
            .map(|units| i64::from(units) * PATIENCE_UNIT_NS)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (engine, more) = bytes.split_at_checked(ANNOUNCE_LEN)?;
        let more: &[u8; 16] = more.try_into().ok()?;
        let field =
            |at: usize| u32::from_le_bytes([more[at], more[at + 1], more[at + 2], more[at + 3]]);
        let latest = field(12) == LATEST;
        Some(Self {
            engine: takt_recovery::Announce::decode(engine).ok()?,
            oldest_message: field(0),
            next_message: field(4),
            epoch: field(8),
            patience: Some(if latest { 0 } else { field(12) }).filter(|us| *us != FOR_EVER),
            latest,
        })
    }
}

/// Reliable sources of a lane, and those elsewhere that it hears.
#[derive(Debug)]
pub(super) struct Reliable {
    pub(super) outbound: Table<OutboundSlot, Outbound>,
    by_number: HashMap<u32, OutboundSlot, foldhash::fast::RandomState>,
    pub(super) inbound: Table<InboundSlot, Inbound>,
    by_source: HashMap<SourceKey, InboundSlot, foldhash::fast::RandomState>,
    /// The same by the channel that they write, and by the lane that they are of.
    on_channel: BTreeSet<(ChannelSlot, InboundSlot)>,
    of_remote: BTreeSet<(RemoteSlot, InboundSlot)>,
    /// Who has the places of those that are heard, when it was last looked which of them are idle, and where to go on.
    shares: Shares,
    aged_ns: i64,
    aged: usize,
    /// How far those were that were forgotten last, by the lane that they are of.
    left: HashMap<RemoteSlot, VecDeque<Left>, foldhash::fast::RandomState>,
    /// When to look at whom. One that is to be looked at earlier has another entry; the later one is found to be over.
    timers: BinaryHeap<Reverse<(i64, End)>>,
}

/// One end of a reliable flow, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Outbound(OutboundSlot),
    Inbound(InboundSlot),
}

impl Default for Reliable {
    fn default() -> Self {
        Self {
            outbound: Table::default(),
            by_number: HashMap::default(),
            inbound: Table::default(),
            by_source: HashMap::default(),
            on_channel: BTreeSet::new(),
            of_remote: BTreeSet::new(),
            shares: Shares::new(MOST_INBOUND, OWN_INBOUND),
            aged_ns: i64::MIN,
            aged: 0,
            left: HashMap::default(),
            timers: BinaryHeap::new(),
        }
    }
}

impl Reliable {
    /// When something is to be said or repaired.
    #[inline]
    pub(super) fn due_ns(&self) -> Option<i64> {
        self.timers.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Looks at one end at this instant, at the latest.
    #[inline]
    fn wake(&mut self, end: End, at_ns: i64) {
        if let Some(wake_ns) = self.wake_ns(end)
            && at_ns < *wake_ns
        {
            *wake_ns = at_ns;
            if self.timers.len() >= self.most_timers() {
                self.drop_idle_timers();
            }
            self.timers.push(Reverse((at_ns, end)));
        }
    }

    /// When an end is to be looked at. `None`: it is gone.
    fn wake_ns(&mut self, end: End) -> Option<&mut i64> {
        match end {
            End::Outbound(at) => self.outbound.get_mut(at).map(|source| &mut source.wake_ns),
            End::Inbound(at) => self.inbound.get_mut(at).map(|source| &mut source.wake_ns),
        }
    }

    /// Entries of timers: two for each end, of which one is of use.
    fn most_timers(&self) -> usize {
        64 + 2 * (self.outbound.len() + self.inbound.len())
    }

    /// Leaves each end one entry, so that on average it costs each that was dropped no more than to have made it.
    #[cold]
    fn drop_idle_timers(&mut self) {
        let mut timers = std::mem::take(&mut self.timers).into_vec();
        timers.retain(|Reverse((at_ns, end))| self.wake_ns(*end).is_some_and(|ns| ns == at_ns));
        timers.sort_unstable();
        timers.dedup();
        self.timers = timers.into();
    }

    /// Takes an entry that is due: the end that is to be looked at now, if it was not looked at since the entry was made.
    fn next_due(&mut self, now_ns: i64) -> Option<Option<End>> {
        let Reverse((at_ns, end)) = *self.timers.peek()?;
        if at_ns > now_ns {
            return None;
        }
        self.timers.pop();
        let due = self.wake_ns(end).filter(|wake_ns| **wake_ns <= now_ns);
        Some(due.map(|wake_ns| {
            *wake_ns = i64::MAX;
            end
        }))
    }
}

impl State {
    /// Says, asks for and repairs what is due. True if there was anything.
    #[inline]
    pub(super) fn recover(&mut self, ports: &mut [LanePort]) -> bool {
        let Some(due_ns) = self.reliable.due_ns() else {
            return false;
        };
        let steady_ns = self.round.steady_ns();
        steady_ns >= due_ns && self.recover_now(ports, steady_ns)
    }

    #[cold]
    fn recover_now(&mut self, ports: &mut [LanePort], steady_ns: i64) -> bool {
        // Out of the state, which the messages are looked up in.
        let mut reliable = std::mem::take(&mut self.reliable);
        self.recovery_cost = 0;
        for _ in 0..MOST_LOOKS {
            if self.recovery_cost > MOST_RECOVERY {
                break;
            }
            let end = match reliable.next_due(steady_ns) {
                Some(Some(end)) => end,
                Some(None) => continue,
                None => break,
            };
            let again_ns = match end {
                End::Outbound(at) => match reliable.outbound.get_mut(at) {
                    Some(source) => self.recover_source(ports, source, steady_ns),
                    None => continue,
                },
                End::Inbound(at) => match reliable.inbound.get_mut(at) {
                    Some(source) => self.acknowledge(ports, source, steady_ns),
                    None => continue,
                },
            };
            // Not again in this round.
            reliable.wake(end, again_ns.max(steady_ns + 1));
        }
        self.reliable = reliable;
        true
    }

    /// Puts what one end says to the other into a datagram. `Err`: when to try again, by the time that is never stepped; the remote lane may have no path.
    ///
    /// Where a schedule is installed it leaves at once and alone, while the gate of its class is open: what was put with others
    /// would leave with the last of them.
    fn say(
        &mut self,
        ports: &mut [LanePort],
        remote: RemoteSlot,
        carrier: Carrier,
        header: &RecordHeader,
        bytes: &[u8],
    ) -> Result<(), i64> {
        let now_ns = self.round.now_ns();
        let Some(peer) = self.remotes.get_mut(remote) else {
            return Ok(());
        };
        let Some(at) = peer.port(ports, carrier) else {
            return Ok(());
        };
        let octets = peer.overhead() + bytes.len();
        let lane_port = &mut ports[at];
        if lane_port.yields(TaiTime::from_nanos(now_ns)) {
            return Err(self.round.steady_of(now_ns + YIELD_NS));
        }
        let gates = lane_port.departures.as_ref().filter(|d| d.scheduled());
        let gated = gates.is_some();
        if let Some(gates) = gates {
            // Others were said since the round began.
            let now = self.round.clock().now();
            match gates.opens(header.class, octets, now) {
                Some(opens) if opens <= now => {}
                Some(opens) => return Err(self.round.steady_of(opens.as_nanos())),
                // Another schedule may have one.
                None => return Err(self.round.steady_of(now_ns + NO_WINDOW_NS)),
            }
        }
        let Some(peer) = self.remotes.get_mut(remote) else {
            return Ok(());
        };
        let said = peer.say(at, lane_port.port.as_mut(), header, bytes, now_ns);
        note_open(peer, at, lane_port, remote);
        if gated {
            self.flush(at, lane_port);
        }
        // Lost, if the port had no frame: it is said again.
        let _ = said;
        Ok(())
    }
}

/// A remote lane's datagram is being filled at a port.
fn note_open(remote: &mut Remote, at: usize, port: &mut LanePort, index: RemoteSlot) {
    if remote.register_open(at) {
        port.open.push(index);
    }
    port.dirty = true;
}

/// The header of what peers say of a source.
fn control(
    channel: u64,
    source: u32,
    class: takt_time::TrafficClass,
    kind: Kind,
    length: usize,
) -> RecordHeader {
    RecordHeader {
        channel,
        source,
        sequence: 0,
        message_length: length as u32,
        fragment_index: 0,
        fragment_stride: 0,
        class,
        kind,
    }
}
