//! Reliable sources of this lane: their records, who has acknowledged them, and repair.

use std::collections::VecDeque;

use takt_recovery::{Acknowledgement, Action, Announce, Config, PeerId, Policy, Sender};
use takt_session::layout::{FLAG_LAUNCH_TIME, Outcome, TxDescriptor};
use takt_session::{ChannelId, Reliability, SlowSinks};
use takt_time::{TaiTime, TrafficClass};
use takt_wire::channel::{Kind, Record};

use super::super::departure::{DEVICE_LEAD_NS, Destination, HORIZON, Piece};
use super::super::egress::{PER_TENANT, class_of, schedule};
use super::super::receive::block_bytes;
use super::super::remote::{Appended, Carrier, Cut, Outgoing};
use super::super::session::{Batch, InProgress};
use super::super::tap::Passed;
use super::super::{Lane, LanePort, State, fair};
use super::{
    ANNOUNCEMENT_LEN, Announcement, End, LATEST, PATIENCE_UNIT_NS, Reliable, control, note_open,
};
use crate::policing::{Again, Flow, Offered};
use crate::slots::{ChannelSlot, OutboundSlot, RemoteSlot, SessionSlot, SourceSlot};

/// Records on their way or not acknowledged, of one source.
const RECORDS: u32 = 4096;
/// Bytes of them: repair may send a tenth of it in a go after a long time without loss.
const BYTES: u64 = 8 << 20;
/// What one source says and repairs in a round.
const ACTIONS: usize = 64;
/// A peer gets so much longer than twice the time that it gives its own sinks, and not more than the engine takes.
const SLACK_NS: i64 = 2_000_000_000;
const MOST_STALL_NS: i64 = 3_600_000_000_000;
/// A peer that was evicted is asked so often whether it is back; if it was and got nothing again, half as often each time, at last
/// every minute.
const ASK_AGAIN_NS: i64 = 1_000_000_000;
const MOST_HALVED: u32 = 6;
/// First and longest time between two looks whether a sink of this lane has room.
const LOOK_NS: [i64; 2] = [50_000, 2_000_000];

/// A remote lane that hears a source.
#[derive(Debug)]
struct Peer {
    remote: RemoteSlot,
    /// The number of the first message that it was promised.
    promised: u32,
    /// `Err`: it took nothing for too long. From when on to ask it again.
    id: Result<PeerId, i64>,
    /// The record that it was promised first, how often in turn it got nothing, and until when it is not tried again.
    since: u32,
    in_vain: u32,
    again_ns: i64,
}

impl Peer {
    /// How long after it was asked it is asked again.
    fn ask_after_ns(&self) -> i64 {
        ASK_AGAIN_NS << self.in_vain.saturating_sub(1).min(MOST_HALVED)
    }
}

/// First and longest time between two attempts to send records of a source again for which there is no frame or no room.
pub(super) const REPAIR_NS: [i64; 2] = [50_000, 2_000_000];

/// A message that not all have acknowledged.
#[derive(Debug)]
struct Retained {
    first: u32,
    cut: Cut,
    descriptor: TxDescriptor,
    message: Outgoing,
    undelivered: bool,
}

/// A reliable source.
#[derive(Debug)]
pub(in super::super) struct Outbound {
    session: SessionSlot,
    source: SourceSlot,
    number: u32,
    channel: ChannelSlot,
    channel_id: u64,
    /// What carries what it sends again, and says.
    pub(super) carrier: Carrier,
    class: TrafficClass,
    epoch: u32,
    slow_sinks: SlowSinks,
    /// Its messages take the place of those before them.
    latest: bool,
    pub(super) engine: Sender,
    peers: Vec<Peer>,
    messages: VecDeque<Retained>,
    /// The number of the next message.
    next_message: u32,
    /// It waits for acknowledgements or room.
    waits: bool,
    /// When to look again whether a sink of this lane has room, and how long after the last look that is.
    look_ns: i64,
    look_after_ns: i64,
    /// When records are sent again at the earliest, and how long after the last that could not be that is.
    repairs_from_ns: i64,
    pub(super) repairs_after_ns: i64,
    pub(super) wake_ns: i64,
}

impl Outbound {
    /// What the engine is to do for a stream of this reliability. `None`: nothing.
    fn config(reliability: Reliability) -> Option<(Config, SlowSinks)> {
        let (deadline, slow_sinks) = match reliability {
            Reliability::BestEffort => return None,
            Reliability::Reliable {
                deadline,
                slow_sinks,
            } => (deadline, slow_sinks),
            Reliability::Latest => {
                let config = Config {
                    policy: Policy::Latest,
                    messages: RECORDS,
                    bytes: BYTES,
                    stall_ns: Some(Config::default().silence_ns),
                    ..Config::default()
                };
                return Some((config, SlowSinks::Drop));
            }
        };
        let nanos =
            |duration: std::time::Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        let config = Config {
            policy: deadline.map_or(Policy::Reliable, |deadline| Policy::Within(nanos(deadline))),
            messages: RECORDS,
            bytes: BYTES,
            stall_ns: match slow_sinks {
                // Receivers do without such a sink by themselves, and go on: who does not is done without.
                SlowSinks::Evict(patience) => Some(
                    nanos(patience)
                        .saturating_mul(2)
                        .saturating_add(SLACK_NS)
                        .min(MOST_STALL_NS),
                ),
                // Its sinks hold nobody up: who acknowledges nothing gets nothing.
                SlowSinks::Drop => Some(Config::default().silence_ns),
                SlowSinks::Wait => None,
            },
            ..Config::default()
        };
        Some((config, slow_sinks))
    }

    /// How long it waits for a sink: for ever, or so many nanoseconds.
    fn patience_ns(&self) -> Option<i64> {
        match self.slow_sinks {
            SlowSinks::Wait => None,
            SlowSinks::Drop => Some(0),
            SlowSinks::Evict(patience) => i64::try_from(patience.as_nanos()).ok(),
        }
    }

    fn peer(&self, remote: RemoteSlot) -> Option<PeerId> {
        let peer = self.peers.iter().find(|peer| peer.remote == remote)?;
        peer.id.ok()
    }

    fn remote(&self, id: PeerId) -> Option<RemoteSlot> {
        let peer = self.peers.iter().find(|peer| peer.id == Ok(id))?;
        Some(peer.remote)
    }

    /// A remote lane with sinks of its channel. False: there are too many.
    fn add_peer(&mut self, remote: RemoteSlot, now_ns: i64) -> bool {
        let id = self.engine.add_peer(now_ns);
        if let Ok(id) = id {
            self.peers.push(Peer {
                remote,
                promised: self.message_from(self.engine.next()),
                id: Ok(id),
                since: self.engine.next(),
                in_vain: 0,
                again_ns: i64::MIN,
            });
        }
        id.is_ok()
    }

    /// Remote lanes with sinks of its channel for which there was no place before, as far as there is one now.
    fn add_left_out(&mut self, destinations: impl Iterator<Item = RemoteSlot>, now_ns: i64) {
        for remote in destinations {
            let known = self.peers.iter().any(|peer| peer.remote == remote);
            if !known && !self.add_peer(remote, now_ns) {
                break;
            }
        }
    }

    /// The number of the first message that is whole from a record on.
    fn message_from(&self, record: u32) -> u32 {
        match self.find(record) {
            Some(message) if message.first == record => message.message.sequence,
            Some(message) => message.message.sequence.wrapping_add(1),
            None => self.next_message,
        }
    }

    /// The number of the first message of which not every record has been emitted.
    fn message_next(&self) -> u32 {
        let unfinished = self.find(self.engine.next());
        unfinished.map_or(self.next_message, |message| message.message.sequence)
    }

    fn find(&self, record: u32) -> Option<&Retained> {
        self.messages.get(self.find_at(record)?)
    }

    fn find_at(&self, record: u32) -> Option<usize> {
        let origin = self.messages.front()?.first;
        let offset = record.wrapping_sub(origin);
        let behind = |message: &Retained| message.first.wrapping_sub(origin) <= offset;
        let at = self.messages.partition_point(behind).checked_sub(1)?;
        let message = &self.messages[at];
        (record.wrapping_sub(message.first) < message.cut.count()).then_some(at)
    }

    fn announcement(&self, remote: RemoteSlot, engine: Announce) -> [u8; ANNOUNCEMENT_LEN] {
        let peer = self.peers.iter().find(|peer| peer.remote == remote);
        let unheard = peer.filter(|peer| {
            let id = peer.id.ok();
            id.is_some_and(|id| !self.engine.has_answered(id))
        });
        let announcement = Announcement {
            engine,
            // One that has said nothing yet may have missed what was given up since.
            oldest_message: match unheard {
                Some(peer) => peer.promised,
                None => self.message_from(engine.oldest),
            },
            next_message: self.message_next(),
            epoch: self.epoch,
            latest: self.latest,
            patience: self.patience_ns().map(|ns| {
                u32::try_from(ns / PATIENCE_UNIT_NS).map_or(LATEST - 1, |us| us.min(LATEST - 1))
            }),
        };
        announcement.encode()
    }

    /// A remote lane does without a record, which cannot be sent to it.
    fn give_up(&mut self, remote: RemoteSlot, record: u32, now_ns: i64) {
        if let Some(peer) = self.peer(remote) {
            self.engine.give_up(now_ns, peer, record);
        }
    }

    /// The same, of a record that was sent to it and lost.
    fn give_up_repair(&mut self, remote: RemoteSlot, record: u32, now_ns: i64) {
        if let Some(at) = self.find_at(record) {
            self.messages[at].undelivered = true;
        }
        self.give_up(remote, record, now_ns);
    }

    /// A record could not be sent again now, and no other of this source is tried for a while: longer each time until one is sent.
    fn postpone_repair(&mut self, remote: RemoteSlot, record: u32, now_ns: i64) {
        if now_ns >= self.repairs_from_ns {
            self.repairs_after_ns = (2 * self.repairs_after_ns).clamp(REPAIR_NS[0], REPAIR_NS[1]);
            self.repairs_from_ns = now_ns + self.repairs_after_ns;
        }
        if let Some(peer) = self.peer(remote) {
            self.engine.postpone(peer, record, self.repairs_from_ns);
        }
    }

    /// Sinks of a receiver lack some of the messages that it has just acknowledged: from one record to another.
    fn note_lacking(&mut self, from: u32, to: u32) {
        if (to.wrapping_sub(from) as i32) <= 0 {
            return;
        }
        for message in &mut self.messages {
            let end = message.first.wrapping_add(message.cut.count());
            let after = (end.wrapping_sub(from) as i32) > 0;
            message.undelivered |= after && (message.first.wrapping_sub(to) as i32) < 0;
        }
    }

    /// Messages from this record on will lack somebody.
    fn note_undelivered(&mut self, record: u32) {
        for message in &mut self.messages {
            let end = message.first.wrapping_add(message.cut.count());
            message.undelivered |= end.wrapping_sub(record) as i32 > 0;
        }
    }
}

/// When a message leaves that can from an instant on: at its launch time, if that is later and not beyond what is looked ahead.
fn leaves_ns(descriptor: &TxDescriptor, from_ns: i64) -> i64 {
    match descriptor.flags & FLAG_LAUNCH_TIME {
        0 => from_ns,
        _ => {
            let latest_ns = from_ns + HORIZON.as_nanos() as i64;
            descriptor.launch_time_ns.clamp(from_ns, latest_ns)
        }
    }
}

impl Reliable {
    /// Whether a source still has this remote lane as one of its receivers.
    pub(in super::super) fn is_peer(&self, source: OutboundSlot, remote: RemoteSlot) -> bool {
        let source = self.outbound.get(source);
        source.is_some_and(|source| source.peer(remote).is_some())
    }

    /// A remote lane does without records of a source: what is to carry them has refused them for good, and the source is
    /// told why.
    #[cold]
    pub(in super::super) fn give_up(
        &mut self,
        source: OutboundSlot,
        remote: RemoteSlot,
        records: std::ops::Range<u32>,
        now_ns: i64,
    ) {
        if let Some(known) = self.outbound.get_mut(source) {
            for at in 0..records.end.wrapping_sub(records.start) {
                known.give_up(remote, records.start.wrapping_add(at), now_ns);
            }
            self.wake(End::Outbound(source), now_ns);
        }
    }

    /// How long a source waits for a sink of this lane: for ever, or so many nanoseconds.
    pub(in super::super) fn patience_ns(&self, source: OutboundSlot) -> Option<i64> {
        self.outbound.get(source)?.patience_ns()
    }

    /// A sink of this lane has no room: looks again after a while.
    pub(in super::super) fn look_again(&mut self, source: OutboundSlot, now_ns: i64) {
        let Some(known) = self.outbound.get_mut(source) else {
            return;
        };
        known.waits = true;
        known.look_ns = now_ns + known.look_after_ns;
        known.look_after_ns = (2 * known.look_after_ns).min(LOOK_NS[1]);
        let look_ns = known.look_ns;
        self.wake(End::Outbound(source), look_ns);
    }

    /// The sinks of this lane had room.
    pub(in super::super) fn had_room(&mut self, source: OutboundSlot) {
        if let Some(source) = self.outbound.get_mut(source) {
            source.look_after_ns = LOOK_NS[0];
        }
    }

    /// A source begins another message: where the newest counts, the others are done.
    fn supersede(&mut self, source: OutboundSlot, now_ns: i64) {
        let Some(known) = self.outbound.get_mut(source).filter(|known| known.latest) else {
            return;
        };
        let completes = known.engine.retained() > 0;
        known.engine.supersede();
        if completes {
            self.wake(End::Outbound(source), now_ns);
        }
    }

    /// Tells something to these sources, and looks at them.
    fn tell(&mut self, sources: &[OutboundSlot], now_ns: i64, mut tell: impl FnMut(&mut Outbound)) {
        for &at in sources {
            if let Some(source) = self.outbound.get_mut(at) {
                tell(source);
                self.wake(End::Outbound(at), now_ns);
            }
        }
    }

    /// A source is gone, with what was not acknowledged.
    pub(in super::super) fn remove_source(&mut self, at: OutboundSlot) {
        if let Some(source) = self.outbound.remove(at) {
            self.by_number.remove(&source.number);
        }
    }
}

impl State {
    /// A frame does not leave. What a scheduler has dropped is not to leave later either, and no receiver waits for it;
    /// but what was sent again and has missed its window may have another.
    #[cold]
    pub(in super::super) fn not_departed(&mut self, piece: &Piece, outcome: Outcome) {
        let Destination::Remote {
            remote,
            message,
            fragment,
            ..
        } = piece.destination
        else {
            return;
        };
        let dropped = match outcome {
            Outcome::Late => !piece.again,
            Outcome::NotScheduled => true,
            _ => false,
        };
        let Some(first) = message.first.filter(|_| dropped) else {
            return;
        };
        let now_ns = self.round.steady_ns();
        let Some(&entry) = self.reliable.by_number.get(&message.source) else {
            return;
        };
        let record = first.wrapping_add(fragment);
        if let Some(source) = self.reliable.outbound.get_mut(entry) {
            match piece.again {
                true => source.give_up_repair(remote, record, now_ns),
                false => source.give_up(remote, record, now_ns),
            }
        }
        self.reliable.wake(End::Outbound(entry), now_ns);
    }

    /// Something else carries what a source sends again.
    pub(in super::super) fn carry_reliable(&mut self, entry: OutboundSlot, carrier: Carrier) {
        if let Some(source) = self.reliable.outbound.get_mut(entry) {
            source.carrier = carrier;
        }
    }
}

impl Lane {
    /// A source of a reliable stream has come.
    pub(in super::super) fn make_reliable(
        &mut self,
        at: SessionSlot,
        source: SourceSlot,
        reliability: Reliability,
    ) {
        use super::super::session::Target;
        let state = &mut self.state;
        let now_ns = state.round.read_steady();
        let Some(session) = state.tenants.sessions.get_mut(at) else {
            return;
        };
        let Some(s) = session.sources.get_mut(source) else {
            return;
        };
        let Target::Channel(channel) = s.target else {
            return;
        };
        let Some((config, slow_sinks)) = Outbound::config(reliability) else {
            return;
        };
        let engine = match Sender::new(config) {
            Ok(engine) => engine,
            Err(error) => {
                // The session protocol has checked the durations.
                return tracing::error!(%error, "a source stays best effort");
            }
        };
        let Some(known) = state.channels.get(channel) else {
            return;
        };
        let mut outbound = Outbound {
            session: at,
            source,
            number: s.number,
            channel,
            channel_id: known.id,
            carrier: s.carrier,
            class: TrafficClass::BEST_EFFORT,
            epoch: now_ns as u32 ^ (now_ns >> 32) as u32,
            slow_sinks,
            latest: config.policy == Policy::Latest,
            engine,
            peers: Vec::new(),
            messages: VecDeque::new(),
            next_message: s.next_sequence as u32,
            waits: false,
            look_ns: i64::MAX,
            look_after_ns: LOOK_NS[0],
            repairs_from_ns: i64::MIN,
            repairs_after_ns: 0,
            wake_ns: i64::MAX,
        };
        for remote in known.destinations.iter() {
            outbound.add_peer(remote, now_ns);
        }
        let number = outbound.number;
        let entry = state.reliable.outbound.insert(outbound);
        s.reliable = Some(entry);
        state.reliable.by_number.insert(number, entry);
        if let Some(channel) = state.channels.get_mut(channel) {
            channel.reliable.push(entry);
        }
        state.reliable.wake(End::Outbound(entry), now_ns);
    }

    /// A remote lane has sinks of a channel.
    pub(in super::super) fn reliable_destination(
        &mut self,
        channel: ChannelSlot,
        remote: RemoteSlot,
    ) {
        let now_ns = self.state.round.read_steady();
        let mut refused = 0;
        let state = &mut self.state;
        let Some(channel) = state.channels.get(channel) else {
            return;
        };
        state.reliable.tell(&channel.reliable, now_ns, |source| {
            refused += u64::from(!source.add_peer(remote, now_ns));
        });
        if refused > 0 {
            tracing::warn!(
                "a node is the 65th with readers of a reliable source: it gets none of its messages. Relay them on another channel"
            );
        }
    }

    /// A remote lane has none any more. `lost`: it is gone.
    pub(in super::super) fn no_reliable_destination(
        &mut self,
        channel: ChannelSlot,
        remote: RemoteSlot,
        lost: bool,
    ) {
        let now_ns = self.state.round.read_steady();
        let state = &mut self.state;
        let Some(channel) = state.channels.get(channel) else {
            return;
        };
        state.reliable.tell(&channel.reliable, now_ns, |source| {
            let Some(at) = source.peers.iter().position(|peer| peer.remote == remote) else {
                return;
            };
            if let Ok(id) = source.peers.swap_remove(at).id {
                if lost && let Some(next) = source.engine.acknowledged(id) {
                    source.note_undelivered(next);
                }
                source.engine.remove_peer(id);
                let others = channel.destinations.iter().filter(|at| *at != remote);
                source.add_left_out(others, now_ns);
            }
        });
    }
}

/// What a reliable source's message does next.
pub(in super::super) enum Next {
    /// These records go to all receivers.
    Batch(Batch),
    /// Nobody elsewhere hears it.
    Nobody,
    /// It is of no use any more, and nothing of it was sent.
    Late,
    /// Until something is acknowledged.
    Waits,
}

impl State {
    /// Until when a message is of use, by the time that is never stepped. `None`: always.
    pub(in super::super) fn waits_until(
        &self,
        entry: OutboundSlot,
        progress: &InProgress,
    ) -> Option<i64> {
        let deadline_ns = self.reliable.outbound.get(entry)?.engine.deadline_ns()?;
        Some(self.useful_from(progress).saturating_add(deadline_ns))
    }

    /// From when on that counts: its launch time if it has one, else when the lane took it.
    fn useful_from(&self, progress: &InProgress) -> i64 {
        let from_ns = leaves_ns(&progress.descriptor, progress.send_time_ns);
        self.round.steady_of(from_ns)
    }

    /// The next records of a message, and room for them: at most `most` of them.
    pub(in super::super) fn next_batch(
        &mut self,
        ports: &mut [LanePort],
        entry: OutboundSlot,
        progress: &InProgress,
        left: i64,
        now_ns: i64,
    ) -> Next {
        let steady_ns = self.round.steady_of(now_ns);
        let since_ns = self.useful_from(progress);
        // What was begun is ended.
        let mut until_ns = None;
        let mut cut = None;
        if progress.batch.is_none() {
            cut = self.cut_for_all(ports, entry, progress);
            until_ns = self.waits_until(entry, progress);
            // To nobody elsewhere it is of use: the sinks here have it, or do without.
            if cut.is_some() && until_ns.is_some_and(|until_ns| until_ns <= steady_ns) {
                return self.too_late(entry, progress);
            }
            self.reliable.supersede(entry, steady_ns);
        }
        let Some(source) = self.reliable.outbound.get_mut(entry) else {
            return Next::Nobody;
        };
        let mut batch = match (progress.batch, cut) {
            (Some(batch), _) => Batch {
                from: batch.to,
                ..batch
            },
            (None, Some(cut)) => Batch {
                cut,
                first: source.engine.next(),
                from: 0,
                to: 0,
            },
            (None, None) => {
                source.next_message = progress.sequence.wrapping_add(1) as u32;
                return Next::Nobody;
            }
        };
        // Until then it waits in a scheduler.
        let leaves_ns = leaves_ns(&progress.descriptor, now_ns);
        let leaves_ns = self.round.steady_of(leaves_ns);
        batch.to = batch.from;
        let most = super::super::egress::fragments(&batch.cut, left);
        while batch.to < batch.cut.count() && batch.to - batch.from < most {
            let bytes = batch.cut.part(batch.to).len() as u64;
            let needed = block_bytes(progress.descriptor.length as usize) as u64;
            let begins = (batch.to == 0).then_some(needed);
            let emitted =
                (source.engine).emit_part(steady_ns, bytes.max(1), leaves_ns, since_ns, begins);
            match emitted {
                Ok(_) => batch.to += 1,
                Err(_) => break,
            }
        }
        let begun_ns = source.engine.take_begun_ns();
        self.reliable.wake(End::Outbound(entry), begun_ns);
        let Some(source) = self.reliable.outbound.get_mut(entry) else {
            return Next::Nobody;
        };
        if batch.to == batch.from {
            source.waits = true;
            source.look_ns = source.look_ns.min(until_ns.unwrap_or(i64::MAX));
            let look_ns = source.look_ns;
            self.reliable.wake(End::Outbound(entry), look_ns);
            return Next::Waits;
        }
        if batch.from == 0 {
            let class = class_of(&progress.descriptor);
            source.class = class;
            source.next_message = progress.sequence.wrapping_add(1) as u32;
            source.messages.push_back(Retained {
                first: batch.first,
                cut: batch.cut,
                descriptor: progress.descriptor,
                message: Outgoing {
                    channel: source.channel_id,
                    source: source.number,
                    sequence: progress.sequence as u32,
                    class,
                    send_time_ns: now_ns,
                    first: Some(batch.first),
                },
                undelivered: false,
            });
            let (session, source) = (source.session, source.source);
            if let Some(session) = self.tenants.sessions.get_mut(session) {
                session.retain(source, progress.descriptor.chunk);
            }
        }
        Next::Batch(batch)
    }

    /// How a message is cut for all its receivers elsewhere. `None`: it has none that hear the source and can be reached.
    fn cut_for_all(
        &mut self,
        ports: &mut [LanePort],
        entry: OutboundSlot,
        progress: &InProgress,
    ) -> Option<Cut> {
        let source = self.reliable.outbound.get(entry)?;
        let channel = self.channels.get(source.channel)?;
        let length = progress.descriptor.length;
        let mut cut: Option<Cut> = None;
        for &(_, remote) in channel.destinations.of(progress.destinations) {
            if source.peer(remote).is_none() {
                continue;
            }
            let shorter = self.remotes.get_mut(remote).and_then(|peer| {
                let port = peer.port(ports, progress.carrier)?;
                peer.reliable_cut(port, ports[port].port.as_ref(), length)
            });
            cut = match (cut, shorter) {
                (Some(one), Some(other)) => Some(one.shorter(other)),
                (one, other) => one.or(other),
            };
        }
        cut
    }

    /// A message was of no use any more when its turn came: its receivers count it as lost with the next one.
    #[cold]
    fn too_late(&mut self, entry: OutboundSlot, progress: &InProgress) -> Next {
        if let Some(source) = self.reliable.outbound.get_mut(entry) {
            source.next_message = progress.sequence.wrapping_add(1) as u32;
            if let Some(channel) = self.channels.get(source.channel) {
                channel.counters.undelivered.add(1);
            }
        }
        Next::Late
    }

    /// A remote lane acknowledges records of a source here.
    pub(in super::super) fn take_acknowledgement(
        &mut self,
        remote: RemoteSlot,
        record: &Record<'_>,
    ) {
        let now_ns = self.round.steady_ns();
        // Else it has ended since.
        let Some(&entry) = self.reliable.by_number.get(&record.header.source) else {
            return;
        };
        let Some(source) = self.reliable.outbound.get_mut(entry) else {
            return;
        };
        let Ok(mut said) = Acknowledgement::decode(record.payload) else {
            return self.counters.rx_malformed.add(1);
        };
        // What was stamped before the clock was stepped measures nothing.
        said.stamp_ns = self.round.steady_of_past(said.stamp_ns).unwrap_or(i64::MIN);
        let peers = &mut source.peers;
        let Some(at) = peers.iter().position(|peer| peer.remote == remote) else {
            return self.counters.rx_unknown_sender.add(1);
        };
        match peers[at].id {
            Ok(id) => {
                let before = source.engine.acknowledged(id);
                match (source.engine.acknowledge(now_ns, id, &said), before) {
                    (Ok(()), Some(before)) => source.note_lacking(before, said.lacking),
                    _ => self.counters.rx_malformed.add(1),
                }
            }
            // It is back: it gets what is emitted from now on.
            Err(_) if said.limit != said.next && now_ns >= peers[at].again_ns => {
                if let Ok(id) = source.engine.try_peer(now_ns) {
                    let since = source.engine.next();
                    let promised = source.message_from(since);
                    let peer = &mut source.peers[at];
                    (peer.id, peer.promised, peer.since) = (Ok(id), promised, since);
                }
            }
            Err(_) => {}
        }
        self.reliable.wake(End::Outbound(entry), now_ns);
    }

    /// Announces, repairs, gives up, and completes messages of one source. When to look at it again.
    pub(super) fn recover_source(
        &mut self,
        ports: &mut [LanePort],
        source: &mut Outbound,
        steady_ns: i64,
    ) -> i64 {
        let mut again_ns = i64::MAX;
        let before = source.engine.counters();
        for action in 0.. {
            if action == ACTIONS {
                again_ns = steady_ns;
                break;
            }
            match source.engine.poll(steady_ns) {
                None => break,
                Some(Action::Announce(peer, said)) => {
                    if let Some(remote) = source.remote(peer)
                        && let Err(at_ns) = self.announce(ports, source, remote, said)
                    {
                        source.engine.remind(peer, at_ns);
                    }
                }
                Some(Action::Repair(peer, record)) => {
                    self.recovery_cost += fair::FRAME;
                    if let Some(remote) = source.remote(peer)
                        && !self.repair(ports, source, remote, record, steady_ns)
                    {
                        if let Some(session) = self.tenants.sessions.get(source.session) {
                            self.tenants.turns.charge(session.tenant, fair::LOOK);
                        }
                        source.postpone_repair(remote, record, steady_ns);
                        break;
                    }
                }
                Some(Action::Evicted(id, next)) => {
                    source.note_undelivered(next);
                    if let Some(channel) = self.channels.get(source.channel) {
                        channel.counters.evicted.add(1);
                    }
                    if let Some(peer) = source.peers.iter_mut().find(|peer| peer.id == Ok(id)) {
                        let nothing = next == peer.since;
                        peer.in_vain = if nothing { peer.in_vain + 1 } else { 0 };
                        let after_ns = peer.ask_after_ns();
                        peer.again_ns = steady_ns + if nothing { after_ns } else { 0 };
                        peer.id = Err(steady_ns + after_ns);
                    }
                    if let Some(channel) = self.channels.get(source.channel) {
                        source.add_left_out(channel.destinations.iter(), steady_ns);
                    }
                }
            }
        }
        let gave_up = source.engine.counters().given_up > before.given_up;
        again_ns = again_ns.min(self.ask_evicted(ports, source, steady_ns));
        let completed = self.complete_messages(source, gave_up);
        if source.waits
            && (completed || source.look_ns <= steady_ns || source.engine.room(1).is_ok())
        {
            source.waits = false;
            source.look_ns = i64::MAX;
            self.tenants.wait(source.session);
        } else if completed {
            // Its completions are to be shown, and it may be done.
            self.tenants.wait(source.session);
        }
        let engine_ns = source.engine.wake_ns(steady_ns).unwrap_or(i64::MAX);
        let next_ns = engine_ns.min(again_ns).min(source.look_ns);
        match steady_ns < source.repairs_from_ns {
            // Others of its records are due as well.
            true => next_ns.max(source.repairs_from_ns),
            false => next_ns,
        }
    }

    /// `Err`: when to say it, if it could not be said now.
    fn announce(
        &mut self,
        ports: &mut [LanePort],
        source: &Outbound,
        remote: RemoteSlot,
        mut said: Announce,
    ) -> Result<(), i64> {
        // It comes back among the stamps of messages, which are the clock's.
        said.stamp_ns = self.round.instant_of(said.stamp_ns);
        let bytes = source.announcement(remote, said);
        let header = control(
            source.channel_id,
            source.number,
            source.class,
            Kind::Announce,
            bytes.len(),
        );
        self.say(ports, remote, source.carrier, &header, &bytes)
    }

    /// Asks receivers that took nothing for too long whether they do again. When to ask next.
    fn ask_evicted(
        &mut self,
        ports: &mut [LanePort],
        source: &mut Outbound,
        steady_ns: i64,
    ) -> i64 {
        let mut next_ns = i64::MAX;
        for at in 0..source.peers.len() {
            let Peer {
                remote,
                id: Err(ask_ns),
                ..
            } = source.peers[at]
            else {
                continue;
            };
            let ask_ns = match ask_ns <= steady_ns {
                false => ask_ns,
                true => {
                    let next = source.engine.next();
                    let said = Announce {
                        oldest: next,
                        next,
                        round_trip_ns: 0,
                        stamp_ns: steady_ns,
                    };
                    let after_ns = source.peers[at].ask_after_ns();
                    let said = self.announce(ports, source, remote, said);
                    said.map_or_else(|at_ns| at_ns, |()| steady_ns + after_ns)
                }
            };
            source.peers[at].id = Err(ask_ns);
            next_ns = next_ns.min(ask_ns);
        }
        next_ns
    }

    /// Sends a record again. False: there is no frame or no room for it now.
    fn repair(
        &mut self,
        ports: &mut [LanePort],
        source: &mut Outbound,
        remote: RemoteSlot,
        record: u32,
        steady_ns: i64,
    ) -> bool {
        let now_ns = self.round.instant_of(steady_ns);
        let Some(message) = source.find(record) else {
            return true;
        };
        let fragment = record.wrapping_sub(message.first);
        let Some(session) = self.tenants.sessions.get(source.session) else {
            return true;
        };
        let Some(peer) = self.remotes.get_mut(remote) else {
            return true;
        };
        let part = message.cut.part(fragment);
        let Some(at) = peer.port_for(ports, source.carrier, part.len()) else {
            return true;
        };
        let now = TaiTime::from_nanos(now_ns);
        let tenant = session.tenant;
        let room = PER_TENANT.saturating_sub(self.tenants.departing(tenant));
        // Before it takes its stream's room in a period.
        let held = ports[at].departures.is_some() && room == 0;
        let yields = || !ports[at].schedules(&message.descriptor) && ports[at].yields(now);
        if steady_ns < source.repairs_from_ns || held || yields() {
            return false;
        }
        let mut descriptor = message.descriptor;
        // Its launch time is over, or it waits in a scheduler for it.
        descriptor.flags &= !FLAG_LAUNCH_TIME;
        let declared = if session.polices(&descriptor) && !ports[at].trusted {
            let offered = Offered {
                class: message.message.class,
                launch_ns: None,
                octets: part.len() + peer.overhead(),
                frames: message.cut.count(),
            };
            let flow = Some(Flow::Channel(ChannelId(source.channel_id)));
            let from_ns = now_ns + DEVICE_LEAD_NS;
            match session
                .policer
                .decide_again(flow, &offered, from_ns, now_ns)
            {
                Again::Undeclared => false,
                Again::At(launch_ns) => {
                    descriptor.flags |= FLAG_LAUNCH_TIME;
                    descriptor.launch_time_ns = launch_ns;
                    true
                }
                Again::Later(until_ns) => {
                    if let Some(peer) = source.peer(remote) {
                        let until_ns = self.round.steady_of(until_ns);
                        source.engine.postpone(peer, record, until_ns);
                    }
                    return true;
                }
                Again::Never => {
                    source.give_up_repair(remote, record, steady_ns);
                    return true;
                }
            }
        } else {
            false
        };
        let chunk = message.descriptor.chunk;
        if ports[at].schedules(&descriptor) {
            let piece = Piece {
                session: source.session,
                source: source.source,
                tenant: tenant.0 as u32,
                descriptor,
                declared,
                again: true,
                destination: Destination::Remote {
                    remote,
                    message: message.message,
                    cut: message.cut,
                    fragment,
                },
            };
            let (_, refused, queued) = schedule(peer, at, &mut ports[at], piece, room, 1, now);
            if refused.is_some() {
                source.give_up_repair(remote, record, steady_ns);
                return true;
            }
            if queued == 0 {
                return false;
            }
            self.tenants
                .hold(source.session, source.source, chunk, queued);
            if declared && let Some(peer) = source.peer(remote) {
                let leaves_ns = self.round.steady_of(descriptor.launch_time_ns);
                source.engine.repair_leaves(peer, record, leaves_ns);
            }
        } else {
            let payload = session.emitted(chunk, message.descriptor.length);
            let appended = peer.append(
                at,
                ports[at].port.as_mut(),
                &message.message,
                payload,
                &message.cut,
                fragment..fragment + 1,
            );
            note_open(peer, at, &mut ports[at], remote);
            match appended {
                Appended::Unreachable => return true,
                Appended::Until { blocked: true, .. } => return false,
                Appended::Done | Appended::Until { .. } | Appended::Held { .. } => {}
            }
            if self.taps.any() && !ports[at].trusted {
                let to = peer.address();
                let left = Passed::out(session.tenant_id, now_ns, to);
                let (cut, one) = (&message.cut, fragment..fragment + 1);
                (self.taps).fragments(&left, self.incarnation, &message.message, payload, cut, one);
            }
        }
        source.repairs_after_ns = 0;
        if let Some(channel) = self.channels.get(source.channel) {
            channel.counters.repaired.add(1);
        }
        if let Some(session) = self.tenants.sessions.get_mut(source.session) {
            // It counts against what its tenant may send, without having to wait for it: it is a tenth at most.
            session.rates.take(part.len() as u32, steady_ns);
            self.tenants
                .turns
                .charge(session.tenant, fair::FRAME + part.len() as i64);
        }
        true
    }

    /// Completes what all receivers have, or do without. True if there was any.
    fn complete_messages(&mut self, source: &mut Outbound, gave_up: bool) -> bool {
        let oldest = source.engine.oldest();
        if gave_up {
            let begun = |message: &&mut Retained| (oldest.wrapping_sub(message.first) as i32) > 0;
            let lacking = source.messages.iter_mut().take_while(begun);
            lacking.for_each(|message| message.undelivered = true);
        }
        let mut any = false;
        while let Some(message) = source.messages.front() {
            let end = message.first.wrapping_add(message.cut.count());
            if (oldest.wrapping_sub(end) as i32) < 0 {
                break;
            }
            let undelivered = message.undelivered;
            let chunk = message.descriptor.chunk;
            source.messages.pop_front();
            any = true;
            let Some(session) = self.tenants.sessions.get_mut(source.session) else {
                continue;
            };
            if undelivered
                && session.note_undelivered(chunk)
                && let Some(channel) = self.channels.get(source.channel)
            {
                channel.counters.undelivered.add(1);
            }
            if let Err(failure) = session.acknowledged(source.source, chunk) {
                self.tenants.fail(source.session, failure);
            }
        }
        any
    }
}
