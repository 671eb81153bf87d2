//! A session as its lane sees it: rings, memory, and the checks on everything the application writes.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::SendFlags;
use takt_session::layout::{
    ArenaMap, Completion, FLAG_AT_ONCE_HERE, FLAG_DEADLINE, FLAG_LAUNCH_TIME, FLAG_NUMBERED,
    Outcome, ROOM_OFFSET, RX_REGION, Release, RxDescriptor, SinkBlock, SinkCounter, SourceBlock,
    TX_REGION, TxDescriptor,
};
use takt_session::{ErrorCode, Failure, SinkMode};
use takt_shm::{
    Arena, CHUNK, Consumer, LaneBellHost, NewestWriter, Producer, RingError, SharedSlice,
    SinkBellHost, Wake,
};
use takt_time::{TaiTime, TrafficClass};

use super::egress::class_of;
use super::fair;
use super::members::Rest;
use super::network::Owner;
use super::placed::{Holder, Placed};
use super::receive::{ReceiveMemory, block_bytes, is_large};
use super::remote::{Carrier, Cut};
use crate::counters::{Counter, SessionCounters};
use crate::ids::SessionId;
use crate::policing::{Flow, Offered, Policer, Verdict};
use crate::policy::Rates;
use crate::slots::{ChannelSlot, OutboundSlot, SinkSlot, Slots, SourceSlot, TenantSlot};
use crate::waking::Waking;

/// Releases are taken from a sink's ring once so many descriptors are out: not on every delivery.
const RECLAIM_AT: u32 = 64;

/// So many messages a sink is to hand back, or all that it holds if those are fewer, in so many times the patience of whoever
/// waits for it: one that takes little is waited for no longer than that, as one that takes nothing.
const TURN: u32 = 32;
const TURN_PATIENCE: i64 = 4;

/// Releases that are taken from a sink's ring at a time: a sink that hands back very many holds nobody up.
const MOST_RECLAIMED: u32 = 256;
/// Other sinks of a session that are looked at for released memory when it has run out.
const MOST_SEARCHED: usize = 32;

/// Messages that a sink may hold in the transmit region of its own session; further ones are copied.
const MOST_OWN: usize = 256;

/// Messages of closed sinks that are let go of at a time when memory has run out.
const MOST_ORPHANS: usize = 256;

/// What travels with a message to its sinks.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    pub length: u32,
    pub class: TrafficClass,
    pub sender: u32,
    pub sequence: u64,
    pub send_time_ns: i64,
}

/// What became of a message at one sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    Delivered,
    DroppedFull,
    DroppedMemory,
}

/// What became of putting an emitted message into a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Done(Delivery),
    /// A part is there; the rest in another turn.
    Part,
    /// There is no room now: what it would count as.
    NoRoom(Delivery),
}

/// What a source writes.
#[derive(Clone, Debug)]
pub enum Target {
    /// Messages of a channel.
    Channel(ChannelSlot),
    /// Frames of a network, from this tenant's endpoint.
    Network(Arc<Owner>),
}

/// A sink, by its number in the channel, that has a source's messages of these epochs from the source itself.
#[derive(Clone, Copy, Debug)]
struct DirectSink {
    number: u64,
    from: u16,
    to: u16,
}

/// The sinks that a source gives its messages itself, or has: of those as many as the control thread lets it have rings,
/// ended ones included.
#[derive(Clone, Debug, Default)]
pub struct DirectSinks {
    /// In ascending order of their numbers.
    sinks: Vec<DirectSink>,
    /// The last change.
    pub epoch: u16,
}

impl DirectSinks {
    /// Whether a sink has a message of this epoch.
    #[inline]
    pub fn has(&self, number: u64, epoch: u16) -> bool {
        let sinks = &self.sinks[self.first(number)..];
        let mut sinks = sinks.iter().take_while(|one| one.number == number);
        sinks.any(|one| (one.from..one.to).contains(&epoch))
    }

    fn first(&self, number: u64) -> usize {
        self.sinks.partition_point(|one| one.number < number)
    }

    pub fn len(&self) -> usize {
        self.sinks.len()
    }

    /// From this epoch on a sink has them.
    pub fn begin(&mut self, number: u64, epoch: u16) {
        let new = DirectSink {
            number,
            from: epoch,
            to: u16::MAX,
        };
        self.sinks.insert(self.first(number), new);
    }

    /// From this epoch on it has them no more.
    pub fn end(&mut self, number: u64, epoch: u16) {
        let first = self.first(number);
        let sinks = self.sinks[first..].iter_mut();
        let sinks = sinks.take_while(|one| one.number == number);
        sinks.for_each(|one| one.to = one.to.min(epoch));
    }

    /// Forgets sinks that are not there any more.
    pub fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        self.sinks.retain(|one| is_there(one.number));
    }
}

/// A source: an application's ring towards the lane.
#[derive(Debug)]
pub struct LaneSource {
    pub target: Target,
    /// What carries the messages that are taken from now on.
    pub carrier: Carrier,
    /// Its number, and the one under which sinks know it.
    pub number: u32,
    pub sender: u32,
    /// Number of its next message.
    pub next_sequence: u64,
    /// All messages below this number have left the lane.
    left: Arc<Counter>,
    tx: Consumer<TxDescriptor>,
    completions: Producer<Completion>,
    /// Some of them are not shown yet.
    completed: bool,
    pub current: Option<InProgress>,
    /// Those that have waited for their launch times, and are for sinks of this lane now.
    pub due: VecDeque<InProgress>,
    /// How many of its messages wait for that, or are due; and when the last of them is.
    pub local: u32,
    pub local_until_ns: i64,
    /// Messages taken from its ring, and up to which of them may name what a closed sink had received.
    taken: u64,
    awaited: u64,
    /// Frames of its messages that wait in schedulers.
    pub departing: u32,
    /// Its place among the lane's reliable sources.
    pub reliable: Option<OutboundSlot>,
    /// Its messages that not every sink has acknowledged.
    pub retained: u32,
    /// Its messages that sinks of its session have by reference.
    lent: u32,
    /// As many of its messages may be under way.
    depth: u32,
    /// Sinks that it gives its messages itself, and where it reads who else listens.
    pub direct: Arc<DirectSinks>,
    listeners: usize,
    /// Where it reads how many of its messages the sinks here have.
    given: usize,
    /// How many listen besides those sinks, as it was told; at least as many as do.
    pub others: u32,
    /// They are to be counted again: some have gone.
    pub recount: bool,
    /// Once the application has closed it: how many of the messages in its ring are still to be taken. It
    /// goes after the last one, whatever is emitted later.
    closing: Option<u32>,
    /// Nothing is taken from its ring yet: what the same application has emitted before goes first, on another lane.
    pub waits: bool,
    /// It goes with this round.
    pub finished: bool,
}

/// A message that is being given to sinks and sent to remote lanes.
#[derive(Clone, Copy, Debug)]
pub struct InProgress {
    pub descriptor: TxDescriptor,
    /// It begins when the lane has carried out so many commands: whom it is for they may tell. `None`: it has begun.
    pub begins: Option<u64>,
    /// Stays the same while the message is under way: it is cut for it.
    pub carrier: Carrier,
    pub sequence: u64,
    pub send_time_ns: i64,
    /// Sinks of this lane that it is still to be given to.
    pub sinks: Rest,
    /// The copy that was begun.
    pub copying: Option<Copying>,
    /// Remote lanes that it is still to be sent to; of a frame, exits of its network.
    pub destinations: Rest,
    /// Of the network's exits.
    pub generation: u32,
    /// The next fragment and for whom, and how the message is cut if it is not the first.
    fragment: u32,
    receiver: u64,
    cut: Option<Cut>,
    /// Of a reliable source: the records that are on their way to all receivers.
    pub batch: Option<Batch>,
    /// The receiver for whom its frames were admitted, from which fragment on, and whether they are a declared stream's.
    pub admitted: Option<(u64, u32, bool)>,
    pub outcome: Outcome,
}

/// Records of a reliable message that are given to one receiver after the other; then come the next.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// How the message is cut for all receivers.
    pub cut: Cut,
    /// The number of the message's first record.
    pub first: u32,
    /// The fragments.
    pub from: u32,
    pub to: u32,
}

impl Batch {
    /// The records of these fragments.
    pub fn records(&self, fragments: std::ops::Range<u32>) -> std::ops::Range<u32> {
        self.first.wrapping_add(fragments.start)..self.first.wrapping_add(fragments.end)
    }
}

/// A copy that takes several turns.
#[derive(Clone, Copy, Debug)]
pub struct Copying {
    /// The sink's number in the channel.
    pub number: u64,
    /// Its memory for the message, and how many bytes are there.
    pub chunk: u32,
    pub done: usize,
}

impl InProgress {
    /// A message, or frame, of which nothing is done.
    #[inline]
    pub fn new(descriptor: TxDescriptor, now_ns: i64) -> Self {
        Self {
            descriptor,
            begins: None,
            carrier: Carrier::any(0),
            sequence: 0,
            send_time_ns: now_ns,
            sinks: Rest::default(),
            copying: None,
            destinations: Rest::default(),
            generation: 0,
            fragment: 0,
            receiver: 0,
            cut: None,
            batch: None,
            admitted: None,
            outcome: Outcome::NoSink,
        }
    }

    /// One that begins when the lane has carried out so many commands.
    #[cold]
    pub fn after(commands: u64, descriptor: TxDescriptor, now_ns: i64) -> Self {
        Self {
            begins: Some(commands),
            ..Self::new(descriptor, now_ns)
        }
    }

    /// The next fragment for a receiver, and how the message is cut for it if that is not the first.
    #[inline]
    pub fn fragment_for(&self, receiver: u64) -> (u32, Option<Cut>) {
        if let Some(batch) = &self.batch {
            let fragment = match self.receiver == receiver {
                true => self.fragment.max(batch.from),
                false => batch.from,
            };
            return (fragment, Some(batch.cut));
        }
        match self.fragment {
            0 => (0, None),
            _ if self.receiver != receiver => (0, None),
            fragment => (fragment, self.cut),
        }
    }

    /// Continues with this fragment for a receiver. The first one is cut for the route as it is then.
    pub fn continue_with(&mut self, receiver: u64, fragment: u32, cut: Option<Cut>) {
        self.destinations.next = receiver;
        self.receiver = receiver;
        self.fragment = fragment;
        self.cut = cut;
    }
}

/// A sink: the lane's ring towards an application.
#[derive(Debug)]
pub struct LaneSink {
    pub channel: ChannelSlot,
    rx: Receive,
    release: Consumer<Release>,
    bell: SinkBellHost,
    notify: Option<OwnedFd>,
    mode: SinkMode,
    block: SinkBlock,
    /// Descriptors handed out and not yet released.
    outstanding: u32,
    /// Of those, chunks of the transmit region, in the order of their delivery.
    own: VecDeque<u32>,
    /// Receive memory it holds, bytes: for small messages, and for large ones.
    held: [usize; 2],
    /// Staged entries are waiting to be shown: a bit for each class that some are of.
    pub pending: u8,
    /// It is in its session's list of those that hold its own messages.
    listed: bool,
    /// Since when a reliable source has found it without room, and none has found room. `i64::MAX`: none has.
    full_since_ns: i64,
    takes: Takes,
    /// Since when it has been waited for, and how many messages it is to hand back until that counts as over.
    turn_since_ns: i64,
    turn_left: u32,
    /// It is done without by a reliable source that waited for it.
    cut_off: bool,
    delivered: u64,
    dropped_full: u64,
    dropped_memory: u64,
    lost: u64,
    superseded: u64,
}

/// Where a sink's messages are shown.
#[derive(Debug)]
enum Receive {
    All(Producer<RxDescriptor>),
    /// The newest alone, and the chunk of the last one, which nobody may have taken yet.
    Newest(NewestWriter<RxDescriptor>, u32),
}

impl Receive {
    fn attach(arena: &Arc<Arena>, block: SinkBlock, mode: SinkMode) -> Result<Self, RingError> {
        let offset = block.rx_ring();
        Ok(match mode.latest {
            true => Self::Newest(NewestWriter::attach(arena, offset)?, 0),
            false => Self::All(Producer::attach(arena, offset, block.depth)?),
        })
    }

    /// Staged entries are seen by who looks.
    fn publish(&mut self) {
        if let Self::All(ring) = self {
            ring.publish();
        }
    }
}

/// Whether a sink hands back what it holds, as far as those want to know who wait for it or another of its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Something,
    /// Nothing since somebody began to wait, at this instant.
    NothingYet(i64),
    /// Nothing since then, and somebody has waited in vain. Others who would wait as long as it has taken nothing do not begin to.
    Nothing(i64),
}

/// When a frame of an emitted message has left.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    pub at: TaiTime,
    /// Later than its launch time and the tolerance.
    pub late: bool,
}

/// The launch time of an emitted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launch {
    /// It has none.
    None,
    /// None of it has left late.
    Timely,
    /// Some of it has.
    Late,
}

/// A session on its lane.
#[derive(Debug)]
pub struct LaneSession {
    pub id: SessionId,
    /// Whose it is: the number of the tenant in the runtime.
    pub tenant_id: u32,
    /// The same on its lane.
    pub tenant: TenantSlot,
    arena: Arc<Arena>,
    map: ArenaMap,
    pub bell: LaneBellHost,
    rx: ReceiveMemory,
    /// Who holds the messages in the receive region.
    placed: Placed,
    /// Per chunk of the transmit region, and behind them per chunk of the receive region: how many hold the emitted
    /// message that starts there (the lane itself while it sends, and each sink of this session that was given it
    /// without a copy). 0 = not ours.
    tx_holders: Vec<u16>,
    /// How many emitted messages are held.
    tx_held: u64,
    /// Per chunk: the source and token of that message, its outcome, and when its last frame left.
    tx_source: Vec<u16>,
    tx_token: Vec<u32>,
    tx_outcome: Vec<u8>,
    tx_launch: Vec<Launch>,
    /// Octets of a message that sinks of this session have by reference; 0: none has.
    tx_lent: Vec<u32>,
    /// The sum of them.
    lent_bytes: usize,
    tx_departed: Vec<u32>,
    pub sources: Slots<SourceSlot, LaneSource>,
    pub sinks: Slots<SinkSlot, LaneSink>,
    max_message: usize,
    classes: u8,
    /// What its tenant may send.
    pub rates: Arc<Rates>,
    /// The same of its declared streams.
    pub policer: Arc<Policer>,
    /// The source that is looked at next.
    pub next_source: usize,
    /// Classes, a bit each, in which it waits for a turn.
    pub waiting: u8,
    /// Its doorbell is looked at in every round; otherwise it wakes the lane through its descriptor.
    pub watched: bool,
    /// It has rung since the lane last looked which sessions are idle.
    pub rang: bool,
    /// When it had rung, as far as is known, by the time that is never stepped.
    pub rang_ns: i64,
    /// A source waits for room in a scheduler.
    pub held: bool,
    /// It is in its tenant's list of those that its rates hold back; the highest class in which it has waited for a turn.
    pub held_back: Option<TrafficClass>,
    /// Frames of its messages that wait in schedulers.
    pub departing: u32,
    /// The application has left: the session goes with its last source.
    leaving: bool,
    /// Sinks that hold messages in its transmit region, or have, and the next one to be looked at.
    own_sinks: Vec<SinkSlot>,
    next_own: usize,
    /// The sink that is looked at next for releases.
    next_reclaimed: usize,
    /// What closed sinks had received is kept until sources' messages have been taken.
    keeps_orphans: bool,
    pub counters: Arc<SessionCounters>,
    /// A sink has got a newer message in the place of one of the session's own, which may be complete by that and is to be shown.
    superseded: bool,
    /// Who waits for room at its sources.
    room: Option<Room>,
    /// What it takes to wake it by a descriptor.
    waking: Waking,
    /// Looks at sources of which nothing was at hand.
    #[cfg(test)]
    pub peeked: u64,
}

/// How a session is told that messages are complete: its sources have room then.
#[derive(Debug)]
struct Room {
    bell: SinkBellHost,
    notify: OwnedFd,
}

/// What the control thread prepares for a lane.
pub struct SessionParts {
    pub id: SessionId,
    pub tenant: u32,
    pub arena: Arc<Arena>,
    pub map: ArenaMap,
    pub bell: LaneBellHost,
    pub max_message: usize,
    pub classes: u8,
    pub rates: Arc<Rates>,
    pub policer: Arc<Policer>,
    pub counters: Arc<SessionCounters>,
}

/// Whether a set of traffic classes, a bit each, has this one.
fn permits(classes: u8, class: u8) -> bool {
    class < 8 && classes & (1 << class) != 0
}

fn violation(text: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::Protocol, text)
}

/// Makes the other end of a descriptor readable.
fn signal(waking: &Waking, fd: &OwnedFd) {
    // A full buffer means that it is readable already.
    let _ = waking.by(|| rustix::net::send(fd, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL));
}

fn ring_violation(what: &str, error: &RingError) -> Failure {
    violation(format!("{what}: {error}"))
}

impl LaneSource {
    /// Attaches to the block's rings.
    pub fn new(
        arena: &Arc<Arena>,
        block: SourceBlock,
        target: Target,
        carrier: Carrier,
        (number, sender): (u32, u32),
        first: u64,
    ) -> Result<Self, RingError> {
        let left = Arc::<Counter>::default();
        left.set(first);
        Ok(Self {
            target,
            carrier,
            number,
            sender,
            next_sequence: first,
            left,
            tx: Consumer::attach(arena, block.tx_ring(), block.depth)?,
            completions: Producer::attach(arena, block.completion_ring(), block.depth)?,
            completed: false,
            current: None,
            due: VecDeque::new(),
            local: 0,
            local_until_ns: i64::MIN,
            taken: 0,
            awaited: 0,
            departing: 0,
            reliable: None,
            retained: 0,
            lent: 0,
            depth: block.depth,
            direct: Arc::default(),
            listeners: block.listeners(),
            given: block.given(),
            others: 0,
            recount: false,
            closing: None,
            waits: false,
            finished: false,
        })
    }

    /// Tells it how many get its messages by the lane.
    pub fn tell_listeners(&mut self, arena: &Arena, count: u32) {
        self.others = count;
        if let Ok(word) = arena.atomic_u64(self.listeners) {
            let word_now = u64::from(self.direct.epoch) << 32 | u64::from(count);
            // Release: partner is the load in the application. Who has been told of a sink finds it counted.
            word.store(word_now, std::sync::atomic::Ordering::Release);
        }
    }

    /// Tells it how many of its messages the sinks here have got: what it gives a sink itself from now on comes behind those.
    /// What waits for a launch time counts as well, since that is in no order with the others.
    pub fn tell_given(&self, arena: &Arena) {
        let given = self.taken - u64::from(self.current.is_some());
        if let Ok(word) = arena.atomic_u64(self.given) {
            // Release: partner is the load in the application. What it gives a sink then, the sink finds behind these.
            word.store(given, std::sync::atomic::Ordering::Release);
        }
    }

    /// Where the lane tells how many of its messages have left.
    pub fn left(&self) -> Arc<Counter> {
        self.left.clone()
    }

    /// The application has closed it.
    fn close(&mut self) -> Result<(), Failure> {
        if self.closing.is_none() {
            let left = self.tx.available();
            self.closing = Some(left.map_err(|e| ring_violation("transmit ring", &e))?);
        }
        Ok(())
    }

    /// Closed, and nothing of it is on its way any more.
    pub fn is_finished(&self) -> bool {
        let sent = self.current.is_none() && self.departing == 0;
        self.closing == Some(0) && sent && self.retained == 0
    }

    /// The class of its next message; `None`: it has none. What is taken may be of another one, and is checked then.
    #[inline]
    pub fn next_class(&mut self) -> Option<TrafficClass> {
        let descriptor = match self.due.front().or(self.current.as_ref()) {
            Some(next) => Some(next.descriptor),
            None if self.closing == Some(0) || self.waits => None,
            // What is wrong with the ring is told when it is taken from.
            None => self.tx.peek().ok().flatten(),
        };
        descriptor.map(|descriptor| class_of(&descriptor))
    }

    /// Whether there is a message to be taken. What is wrong with the ring is told then.
    #[inline]
    pub fn has_next(&mut self) -> bool {
        self.closing != Some(0) && !self.waits && !matches!(self.tx.peek(), Ok(None))
    }

    /// Messages that wait in its ring. One that shows the impossible holds none.
    fn waiting(&mut self) -> u32 {
        self.closing.or(self.tx.available().ok()).unwrap_or(0)
    }

    /// There will be no more: what waited in schedulers is lost, and counts as such where it was awaited.
    pub fn end(&self) {
        if self.reliable.is_none() {
            self.left.set(self.next_sequence);
        }
    }

    /// Shows taken descriptors and completions to the application. True if there were completions.
    pub fn publish(&mut self) -> bool {
        // A reliable source tells its receivers itself.
        if self.departing == 0 && self.current.is_none() && self.reliable.is_none() {
            self.left.set(self.next_sequence);
        }
        self.tx.release();
        self.completions.publish();
        std::mem::take(&mut self.completed)
    }
}

impl LaneSink {
    /// Attaches to the block's rings.
    pub fn new(
        arena: &Arc<Arena>,
        block: SinkBlock,
        channel: ChannelSlot,
        notify: Option<OwnedFd>,
        mode: SinkMode,
    ) -> Result<Self, RingError> {
        Ok(Self {
            channel,
            rx: Receive::attach(arena, block, mode)?,
            release: Consumer::attach(arena, block.release_ring(), block.depth)?,
            bell: SinkBellHost::attach(arena, block.bell()).map_err(RingError::from)?,
            notify,
            mode,
            block,
            outstanding: 0,
            own: VecDeque::with_capacity(MOST_OWN),
            held: [0; 2],
            pending: 0,
            listed: false,
            full_since_ns: i64::MAX,
            takes: Takes::Something,
            turn_since_ns: 0,
            turn_left: 0,
            cut_off: false,
            delivered: 0,
            dropped_full: 0,
            dropped_memory: 0,
            lost: 0,
            superseded: 0,
        })
    }
}

impl LaneSink {
    /// Shows its new entries, and its counters before them: who has taken a message finds it counted.
    fn publish(&mut self, arena: &Arena) {
        let show = |counter, value: u64| {
            if let Ok(word) = arena.atomic_u64(self.block.counter(counter)) {
                word.store(value, std::sync::atomic::Ordering::Relaxed);
            }
        };
        show(SinkCounter::Delivered, self.delivered);
        show(SinkCounter::DroppedFull, self.dropped_full);
        show(SinkCounter::DroppedMemory, self.dropped_memory);
        show(SinkCounter::Lost, self.lost);
        show(SinkCounter::Superseded, self.superseded);
        self.rx.publish();
    }

    /// A reliable source finds no room: it waits, if it is not waiting already.
    fn is_full(&mut self, now_ns: i64) {
        self.full_since_ns = self.full_since_ns.min(now_ns);
        if self.turn_left == 0 {
            (self.turn_since_ns, self.turn_left) = (now_ns, self.outstanding.min(TURN));
        }
    }

    /// A message found room. Whoever is behind with what it was waited for is not waited for again before.
    fn has_room(&mut self) {
        self.full_since_ns = i64::MAX;
        if self.outstanding <= self.block.depth / 4 {
            // It has caught up: what it keeps lent is its own matter.
            self.turn_left = 0;
        }
        self.cut_off &= self.turn_left > 0;
    }

    /// It has handed back fewer messages than somebody waits for who waits so long for one that takes nothing.
    fn is_slow(&self, patience_ns: i64, now_ns: i64) -> bool {
        let end_ns = patience_ns
            .saturating_mul(TURN_PATIENCE)
            .saturating_add(self.turn_since_ns);
        self.turn_left > 0 && now_ns >= end_ns
    }
}

impl LaneSession {
    pub fn new(parts: SessionParts) -> Self {
        let chunks = (parts.map.tx_bytes + parts.map.rx_bytes) / CHUNK;
        Self {
            id: parts.id,
            tenant_id: parts.tenant,
            tenant: TenantSlot(0),
            rx: ReceiveMemory::new(parts.map.rx_bytes),
            arena: parts.arena,
            map: parts.map,
            bell: parts.bell,
            placed: Placed::new(parts.map.rx_bytes / CHUNK),
            // Zero pages until touched: a session that sends little costs little.
            tx_holders: vec![0; chunks],
            tx_held: 0,
            tx_source: vec![0; chunks],
            tx_token: vec![0; chunks],
            tx_outcome: vec![0; chunks],
            tx_launch: vec![Launch::None; chunks],
            tx_lent: vec![0; chunks],
            lent_bytes: 0,
            tx_departed: vec![0; chunks],
            sources: Slots::default(),
            sinks: Slots::default(),
            max_message: parts.max_message,
            classes: parts.classes,
            rates: parts.rates,
            policer: parts.policer,
            next_source: 0,
            waiting: 0,
            watched: false,
            rang: true,
            rang_ns: 0,
            held: false,
            held_back: None,
            departing: 0,
            leaving: false,
            own_sinks: Vec::new(),
            next_own: 0,
            next_reclaimed: 0,
            keeps_orphans: false,
            superseded: false,
            room: None,
            waking: Waking::default(),
            counters: parts.counters,
            #[cfg(test)]
            peeked: 0,
        }
    }

    /// The application has closed a source.
    pub fn close_source(&mut self, source: SourceSlot) -> Result<(), Failure> {
        match self.sources.get_mut(source) {
            Some(source) => source.close(),
            None => Ok(()),
        }
    }

    /// It is told by this descriptor from now on when messages are complete.
    pub fn tell_room(&mut self, notify: OwnedFd) -> Result<(), Failure> {
        let bell = SinkBellHost::attach(&self.arena, ROOM_OFFSET);
        let bell = bell.map_err(|e| ring_violation("room's doorbell", &e.into()))?;
        self.room = Some(Room { bell, notify });
        // It may have waited before there was a descriptor.
        self.show_room();
        Ok(())
    }

    /// Completions have been shown: tells who waits for room. True if somebody did.
    pub fn show_room(&self) -> bool {
        let Some(room) = &self.room else {
            return false;
        };
        let wake = room.bell.ring();
        if wake == Wake::Fd {
            signal(&self.waking, &room.notify);
        }
        wake != Wake::None
    }

    /// Why it is to be ended, if to wake it takes too long.
    pub fn takes_long(&self) -> Option<Failure> {
        self.waking.failure()
    }

    /// Whether its sources are to be shown what newer messages have completed: said once.
    #[inline]
    pub fn take_superseded(&mut self) -> bool {
        std::mem::take(&mut self.superseded) && self.room.is_some()
    }

    /// Tells a source how many of its messages the sinks here have.
    pub fn tell_given(&self, source: SourceSlot) {
        if let Some(source) = self.sources.get(source) {
            source.tell_given(&self.arena);
        }
    }

    /// The application has left. What it had emitted is still sent.
    pub fn leave(&mut self) -> Result<(), Failure> {
        self.leaving = true;
        let mut sources = self.sources.places();
        sources.try_for_each(|source| self.close_source(source))
    }

    /// What its application had emitted on another lane has left: what it emits here may.
    pub fn begin(&mut self) {
        self.sources
            .iter_mut()
            .for_each(|source| source.waits = false);
    }

    /// The application has left, and nothing of it is on its way any more.
    pub fn has_left(&self) -> bool {
        self.leaving && self.sources.is_empty()
    }

    /// The session ends as it is, without its sinks: counts what was emitted and is not sent.
    pub fn abandon(&mut self) {
        let sources = self.sources.iter_mut();
        let waiting: u64 = sources.map(LaneSource::waiting).map(u64::from).sum();
        let mut sources = self.sources.iter();
        let under_way = |s: &LaneSource| s.current.is_some() || s.departing > 0 || s.retained > 0;
        let taken = match sources.any(under_way) {
            true => self.tx_held,
            false => 0,
        };
        // Those that wait were not counted when they were taken.
        self.counters.emitted.add(waiting);
        self.counters.abandoned.add(taken + waiting);
    }

    /// Whether one of its sinks gets what the session itself emits.
    #[inline]
    pub fn hears_itself(&self, sink: SinkSlot) -> bool {
        self.sinks.get(sink).is_some_and(|sink| !sink.mode.no_local)
    }

    /// The highest class of what its sources have next, the lowest if they have nothing; and what it cost to find out,
    /// in the unit of [`fair`].
    #[inline]
    pub fn highest_waiting(&mut self) -> (TrafficClass, i64) {
        if self.classes & !1 == 0 {
            // Its tenant may use no other.
            return (TrafficClass::BEST_EFFORT, 0);
        }
        let cost = fair::PEEK * self.sources.count() as i64;
        #[cfg(test)]
        {
            self.peeked += self.sources.count() as u64;
        }
        let allowed = self.classes;
        let sources = self.sources.iter_mut();
        let classes = sources.filter_map(LaneSource::next_class);
        // One that its tenant may not use is refused when it is taken.
        let classes = classes.filter(|class| permits(allowed, class.number()));
        (classes.max().unwrap_or(TrafficClass::BEST_EFFORT), cost)
    }

    /// Whether its tenant may use a traffic class.
    pub fn permits(&self, class: u8) -> bool {
        permits(self.classes, class)
    }

    /// Whether a message is of a class in which its tenant has declared streams.
    #[inline]
    pub fn polices(&self, descriptor: &TxDescriptor) -> bool {
        self.policer.polices(class_of(descriptor))
    }

    /// The priorities, by bit, that a tag in a frame of a message may have: none of a class that is policed, unless the message is of
    /// that class and was policed as such.
    #[inline]
    pub fn tag_priorities(&self, descriptor: &TxDescriptor) -> u8 {
        !self.policer.policed() | 1 << class_of(descriptor).number()
    }

    /// What it sends is held to its tenant's streams as they are now. It may use classes that the tenant has got; those that were
    /// taken away are the policer's.
    pub fn take_policer(&mut self, policer: Arc<Policer>) {
        self.classes |= policer.allowed();
        self.policer = policer;
    }

    /// Whether the frames of a message for a receiver, the `number`th, are a declared stream's, after its tenant's streams
    /// have had their say: once, however many turns it takes to send them.
    ///
    /// # Errors
    /// They do not leave.
    #[cold]
    pub fn police(
        &self,
        progress: &mut InProgress,
        number: u64,
        flow: Option<Flow>,
        (fragments, octets): (std::ops::Range<u32>, usize),
        now_ns: i64,
    ) -> Result<bool, Outcome> {
        let descriptor = &progress.descriptor;
        let class = class_of(descriptor);
        if let Some((admitted, from, declared)) = progress.admitted
            && (admitted, from) == (number, fragments.start)
        {
            return Ok(declared);
        }
        let strict = descriptor.flags & (FLAG_LAUNCH_TIME | FLAG_DEADLINE) == FLAG_LAUNCH_TIME;
        let offered = Offered {
            class,
            launch_ns: strict.then_some(descriptor.launch_time_ns),
            octets,
            frames: fragments.end - fragments.start,
        };
        let declared = match self.policer.decide(flow, &offered, now_ns) {
            Verdict::Undeclared => false,
            Verdict::Declared => true,
            Verdict::Refused(outcome) => return Err(outcome),
        };
        progress.admitted = Some((number, fragments.start, declared));
        Ok(declared)
    }

    /// Whose frames a source sends; `None`: it is gone, or sends messages.
    pub fn owner(&self, source: SourceSlot) -> Option<&Owner> {
        match &self.sources.get(source)?.target {
            Target::Network(owner) => Some(owner),
            Target::Channel(_) => None,
        }
    }

    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Takes the next descriptor of a source, checked. `Ok(None)`: nothing there.
    pub fn take(
        &mut self,
        source: SourceSlot,
        now_ns: i64,
    ) -> Result<Option<TxDescriptor>, Failure> {
        let Some(s) = self.sources.get_mut(source) else {
            return Ok(None);
        };
        if s.closing == Some(0) || s.waits {
            return Ok(None);
        }
        let Some(descriptor) =
            s.tx.pop()
                .map_err(|e| ring_violation("transmit ring", &e))?
        else {
            return Ok(None);
        };
        if let Some(left) = &mut s.closing {
            *left -= 1;
        }
        s.taken += 1;
        let length = descriptor.length as usize;
        if length > self.max_message {
            return Err(violation(format!(
                "descriptor of {length} bytes, longest message is {} bytes",
                self.max_message
            )));
        }
        let received = descriptor.chunk & RX_REGION != 0;
        let start = (descriptor.chunk as usize).saturating_mul(CHUNK);
        if !received && start.saturating_add(length.max(1)) > self.map.tx_bytes {
            return Err(violation(format!(
                "descriptor of {length} bytes at chunk {} lies outside the transmit region of {} bytes",
                descriptor.chunk, self.map.tx_bytes
            )));
        }
        let permitted = permits(self.classes, descriptor.class);
        let possible = match s.target {
            Target::Channel(_) if permitted && s.reliable.is_none() => {
                FLAG_LAUNCH_TIME | FLAG_AT_ONCE_HERE | FLAG_NUMBERED
            }
            Target::Channel(_) if permitted => FLAG_LAUNCH_TIME | FLAG_AT_ONCE_HERE,
            // A frame's class is whatever priority its program has set: such a frame is refused by itself.
            Target::Network(_) if descriptor.class < 8 => FLAG_LAUNCH_TIME | FLAG_DEADLINE,
            _ => {
                return Err(violation(format!(
                    "traffic class {} is not permitted",
                    descriptor.class
                )));
            }
        };
        if descriptor.flags & !possible != 0 {
            return Err(violation(format!(
                "unknown descriptor flags {:#x}",
                descriptor.flags
            )));
        }
        if descriptor.flags & FLAG_NUMBERED != 0 {
            if descriptor.sequence.wrapping_sub(s.next_sequence) > u64::MAX / 2 {
                return Err(violation(format!(
                    "message number {} after {}",
                    descriptor.sequence, s.next_sequence
                )));
            }
            // Those between went by no lane.
            s.next_sequence = descriptor.sequence;
        }
        if received {
            self.take_received(descriptor.chunk & !RX_REGION, length)?;
        }
        let at = self.slot(descriptor.chunk);
        if self.tx_holders[at] != 0 {
            return Err(violation(format!(
                "chunk {} emitted twice",
                descriptor.chunk
            )));
        }
        self.tx_holders[at] = 1;
        self.tx_held += 1;
        self.tx_source[at] = source.0 as u16;
        self.tx_token[at] = descriptor.token;
        self.tx_outcome[at] = Outcome::Sent as u8;
        self.tx_launch[at] = match descriptor.flags & FLAG_LAUNCH_TIME {
            0 => Launch::None,
            _ => Launch::Timely,
        };
        self.rates.take(descriptor.length, now_ns);
        self.counters.emitted.add(1);
        self.counters
            .emitted_bytes
            .add(u64::from(descriptor.length));
        Ok(Some(descriptor))
    }

    /// Where an emitted message is accounted for.
    #[inline]
    fn slot(&self, chunk: u32) -> usize {
        match chunk & RX_REGION {
            0 => chunk as usize,
            _ => self.map.tx_bytes / CHUNK + (chunk & !RX_REGION) as usize,
        }
    }

    /// A received message is emitted: its sink holds it no more.
    fn take_received(&mut self, chunk: u32, length: usize) -> Result<(), Failure> {
        let Some(holder) = self.placed.holder(chunk) else {
            return Err(violation(format!(
                "receive chunk {chunk} emitted, but not received"
            )));
        };
        self.placed.emit(chunk);
        let bytes = self.rx.block_len(chunk);
        if let Holder::Sink(sink) = holder
            && let Some(s) = self.sinks.get_mut(sink)
        {
            let held = &mut s.held[usize::from(is_large(bytes))];
            *held = held.saturating_sub(bytes);
            s.outstanding -= 1;
        }
        if length > bytes {
            return Err(violation(format!(
                "descriptor of {length} bytes at receive chunk {chunk}, whose message has room for {bytes}"
            )));
        }
        Ok(())
    }

    /// The payload of an emitted message, checked by [`take`](Self::take).
    #[inline]
    pub fn emitted(&self, chunk: u32, length: u32) -> SharedSlice<'_> {
        let region = match chunk & RX_REGION {
            0 => self.map.tx_offset(),
            _ => self.map.rx_offset(),
        };
        let offset = region + (chunk & !RX_REGION) as usize * CHUNK;
        self.arena
            .slice(offset, length as usize)
            .unwrap_or_else(|_| self.empty())
    }

    /// What takes the place of a window that its checks make impossible.
    #[cold]
    fn empty(&self) -> SharedSlice<'_> {
        self.arena
            .slice(0, 0)
            .unwrap_or_else(|_| unreachable!("offset 0 lies in every arena"))
    }

    /// The lane has done its part with a message; completes it unless sinks or schedulers still hold it.
    pub fn finish(&mut self, chunk: u32, outcome: Outcome, left: Left) -> Result<(), Failure> {
        let at = self.slot(chunk);
        self.note_left(at, left);
        let told = &mut self.tx_outcome[at];
        // Frames that wait or have left may have failed since.
        if outcome != Outcome::Sent || *told == Outcome::Sent as u8 {
            *told = outcome as u8;
        }
        self.release(chunk)
    }

    /// Some of an emitted message has left.
    fn note_left(&mut self, slot: usize, left: Left) {
        self.tx_departed[slot] = left.at.as_nanos() as u32;
        if left.late {
            self.tx_launch[slot] = Launch::Late;
        }
    }

    /// So many frames of an emitted message wait in schedulers: it is held until all have left.
    pub fn hold(&mut self, source: SourceSlot, chunk: u32, frames: u16) {
        let at = self.slot(chunk);
        if let Some(holders) = self.tx_holders.get_mut(at) {
            *holders = holders.saturating_add(frames);
        }
        self.departing += u32::from(frames);
        if let Some(source) = self.sources.get_mut(source) {
            source.departing += u32::from(frames);
        }
    }

    /// One of those frames has left at this instant, or was dropped for this reason. `None`: its message is told nothing of it.
    pub fn departed(
        &mut self,
        source: SourceSlot,
        chunk: u32,
        left: Option<Result<Left, Outcome>>,
    ) -> Result<(), Failure> {
        self.departing -= 1;
        if let Some(source) = self.sources.get_mut(source) {
            source.departing -= 1;
        }
        let slot = self.slot(chunk);
        match left {
            Some(Ok(left)) => self.note_left(slot, left),
            Some(Err(outcome)) => self.tx_outcome[slot] = outcome as u8,
            None => {}
        }
        self.release(chunk)
    }

    /// One holder less of an emitted message: the last one completes it.
    fn release(&mut self, chunk: u32) -> Result<(), Failure> {
        let at = self.slot(chunk);
        match self.tx_holders.get_mut(at) {
            Some(0) | None => {
                return Err(violation(format!(
                    "transmit chunk {chunk} released, but not held"
                )));
            }
            Some(holders) => *holders -= 1,
        }
        if self.tx_holders[at] > 0 {
            return Ok(());
        }
        self.tx_held -= 1;
        self.count_launch(at);
        let lent = std::mem::take(&mut self.tx_lent[at]);
        self.lent_bytes -= lent as usize;
        if chunk & RX_REGION != 0 {
            let chunk = chunk & !RX_REGION;
            self.placed.emitted(chunk);
            // It was received.
            let _ = self.rx.free(chunk);
        }
        // The source may be closed by now: then nobody waits for the completion.
        let Some(source) = self.sources.get_mut(self.source_of(at)) else {
            return Ok(());
        };
        source.lent = source.lent.saturating_sub(u32::from(lent > 0));
        let completion = Completion {
            chunk,
            token: self.tx_token[at],
            outcome: u32::from(self.tx_outcome[at]),
            departed_ns_low: self.tx_departed[at],
        };
        match source.completions.stage(completion) {
            Ok(true) => {
                source.completed = true;
                Ok(())
            }
            Ok(false) => Err(violation(
                "completion ring full: more messages in flight than it has entries",
            )),
            Err(e) => Err(ring_violation("completion ring", &e)),
        }
    }

    /// A message is complete: what has become of its launch time.
    #[inline]
    fn count_launch(&self, at: usize) {
        if self.tx_launch[at] == Launch::None {
            return;
        }
        match Outcome::from_number(self.tx_outcome[at].into()) {
            Some(Outcome::NoSink) => {}
            Some(Outcome::Sent | Outcome::Undelivered) => {
                self.counters.launched.add(1);
                let late = self.tx_launch[at] == Launch::Late;
                self.counters.launched_late.add(u64::from(late));
            }
            _ => self.counters.launches_missed.add(1),
        }
    }

    /// Takes releases if they have piled up, and says whether the sink has room for a descriptor.
    fn admit(&mut self, sink: SinkSlot) -> Result<bool, Failure> {
        let Some(s) = self.sinks.get(sink) else {
            return Ok(false);
        };
        if s.outstanding >= RECLAIM_AT.min(s.block.depth / 2).max(1) {
            self.reclaim(sink)?;
        }
        let sink = self.sinks.get(sink);
        Ok(sink.is_some_and(|s| s.outstanding < s.block.depth))
    }

    /// Room for a message at a sink: a place for its descriptor and memory for its payload. What has none is dropped,
    /// and counts as such.
    pub fn place(
        &mut self,
        sink: SinkSlot,
        length: usize,
    ) -> Result<Result<u32, Delivery>, Failure> {
        let placed = self.try_place(sink, length)?;
        Ok(placed.map_err(|delivery| self.dropped(sink, delivery)))
    }

    /// The same, without a count of what has no room: it may come again.
    pub fn try_place(
        &mut self,
        sink: SinkSlot,
        length: usize,
    ) -> Result<Result<u32, Delivery>, Failure> {
        if !self.admit(sink)? {
            return Ok(Err(Delivery::DroppedFull));
        }
        // A sink that never consumes may not take the memory of its session's other sinks.
        let quota = self.quota(length);
        let kind = usize::from(is_large(length));
        let exceeded = |s: Option<&LaneSink>| s.is_some_and(|s| s.held[kind] + length > quota);
        if exceeded(self.sinks.get(sink)) {
            self.reclaim(sink)?;
            if exceeded(self.sinks.get(sink)) {
                return Ok(Err(Delivery::DroppedMemory));
            }
        }
        let mut chunk = self.rx.allocate(length);
        if chunk.is_none() {
            // Some others, from where the last search ended: a session may have very many.
            self.free_orphans(MOST_ORPHANS);
            for _ in 0..self.sinks.count().min(MOST_SEARCHED) {
                self.next_reclaimed = (self.next_reclaimed + 1) % self.sinks.count();
                self.reclaim(SinkSlot(self.next_reclaimed))?;
            }
            chunk = self.rx.allocate(length);
        }
        let Some(chunk) = chunk else {
            return Ok(Err(Delivery::DroppedMemory));
        };
        self.placed.give(chunk, Holder::Sink(sink));
        if let Some(s) = self.sinks.get_mut(sink) {
            s.held[kind] += self.rx.block_len(chunk);
            // Reserved from now on: fragments of a message arrive over a while.
            s.outstanding += 1;
            s.has_room();
        }
        Ok(Ok(chunk))
    }

    /// A reliable source waits, and this sink has no room. False: that is known already.
    pub fn is_full(&mut self, sink: SinkSlot, now_ns: i64) -> bool {
        let Some(s) = self.sinks.get_mut(sink) else {
            return false;
        };
        let begins = s.full_since_ns == i64::MAX;
        s.is_full(now_ns);
        begins
    }

    /// The same, and whether a source of this patience goes on waiting: `None` for ever.
    pub fn is_waited_for(&mut self, sink: SinkSlot, patience_ns: Option<i64>, now_ns: i64) -> bool {
        self.is_full(sink, now_ns);
        !self.is_done_without(sink, patience_ns, now_ns)
    }

    /// Whether a source of this patience has waited long enough for this sink.
    pub fn is_done_without(&self, sink: SinkSlot, patience_ns: Option<i64>, now_ns: i64) -> bool {
        let Some(s) = self.sinks.get(sink) else {
            return true;
        };
        patience_ns.is_some_and(|patience_ns| {
            let nothing = |since_ns: i64| now_ns >= since_ns.saturating_add(patience_ns);
            matches!(s.takes, Takes::Nothing(since_ns) if nothing(since_ns))
                || now_ns >= s.full_since_ns.saturating_add(patience_ns)
                || s.is_slow(patience_ns, now_ns)
        })
    }

    /// Somebody begins to wait for sinks of its channel, of which it may be one. `room`: for how many messages it has some.
    pub fn wait_begins(&mut self, sink: SinkSlot, room: u32, now_ns: i64) {
        if let Some(s) = self.sinks.get_mut(sink) {
            if s.takes == Takes::Something && s.outstanding > 0 {
                s.takes = Takes::NothingYet(now_ns);
            }
            if room == 0 {
                s.is_full(now_ns);
            }
        }
    }

    /// Somebody has waited in vain for a sink of its channel.
    pub fn wait_ends_in_vain(&mut self, sink: SinkSlot) {
        if let Some(s) = self.sinks.get_mut(sink)
            && let Takes::NothingYet(since_ns) = s.takes
        {
            s.takes = Takes::Nothing(since_ns);
        }
    }

    /// It is done without. False: it is already.
    pub fn cut_off(&mut self, sink: SinkSlot) -> bool {
        let sink = self.sinks.get_mut(sink);
        sink.is_some_and(|s| !std::mem::replace(&mut s.cut_off, true))
    }

    /// Most bytes of messages of this length that one sink may hold.
    fn quota(&self, length: usize) -> usize {
        (self.map.rx_bytes / 2).max(length)
    }

    /// Whether a message of this length can ever be put into a sink.
    pub fn fits(&self, length: usize) -> bool {
        length <= self.max_message && length.next_power_of_two() <= self.map.rx_bytes
    }

    /// For how many messages a sink has entries, and for how many bytes of those that are large or small like this length it has
    /// memory, as far as it alone decides.
    pub fn space(&mut self, sink: SinkSlot, length: usize) -> Result<(u32, usize), Failure> {
        self.reclaim(sink)?;
        let quota = self.quota(length);
        Ok(self.sinks.get(sink).map_or((0, 0), |s| {
            let free = quota.saturating_sub(s.held[usize::from(is_large(length))]);
            (s.block.depth.saturating_sub(s.outstanding), free)
        }))
    }

    /// For how many messages of this length a sink has room, as far as it alone decides.
    pub fn room(&mut self, sink: SinkSlot, length: usize) -> Result<u32, Failure> {
        let (entries, free) = self.space(sink, length)?;
        Ok(entries.min(u32::try_from(free / block_bytes(length)).unwrap_or(u32::MAX)))
    }

    /// An emitted message is held until every receiver has acknowledged it.
    pub fn retain(&mut self, source: SourceSlot, chunk: u32) {
        let at = self.slot(chunk);
        if let Some(holders) = self.tx_holders.get_mut(at) {
            *holders += 1;
        }
        if let Some(source) = self.sources.get_mut(source) {
            source.retained += 1;
        }
    }

    /// Every receiver has it, or does without.
    pub fn acknowledged(&mut self, source: SourceSlot, chunk: u32) -> Result<(), Failure> {
        if let Some(source) = self.sources.get_mut(source) {
            source.retained -= 1;
        }
        self.release(chunk)
    }

    /// Some sink does without an emitted message. False: that is known already.
    pub fn note_undelivered(&mut self, chunk: u32) -> bool {
        let at = self.slot(chunk);
        let undelivered = Outcome::Undelivered as u8;
        let told = self.tx_outcome.get_mut(at);
        told.is_some_and(|told| std::mem::replace(told, undelivered) != undelivered)
    }

    /// Messages that its sinks have by reference.
    #[cfg(test)]
    pub fn own(&self) -> usize {
        self.sinks.iter().map(|sink| sink.own.len()).sum()
    }

    /// Bytes of its receive region that are in use.
    #[cfg(test)]
    pub fn received_bytes(&self) -> usize {
        self.rx.allocated_bytes()
    }

    /// The memory of a placed message.
    pub fn placed(&self, chunk: u32, length: usize) -> SharedSlice<'_> {
        let offset = self.map.rx_offset() + chunk as usize * CHUNK;
        self.arena
            .slice(offset, length)
            .unwrap_or_else(|_| self.empty())
    }

    /// Gives a placed message to its sink. The entry is shown by [`show`](Self::show).
    pub fn deliver(
        &mut self,
        sink: SinkSlot,
        chunk: u32,
        meta: &Meta,
    ) -> Result<Delivery, Failure> {
        let Some(s) = self.sinks.get_mut(sink) else {
            return Ok(Delivery::DroppedFull);
        };
        let entry = RxDescriptor {
            chunk,
            length: meta.length,
            class: u32::from(meta.class.number()),
            sender: meta.sender,
            sequence: meta.sequence,
            send_time_ns: meta.send_time_ns,
        };
        let staged = match &mut s.rx {
            // `outstanding <= depth` leaves room unless the application shows a wrong index.
            Receive::All(ring) => ring.stage(entry).map(|room| (room, None)),
            Receive::Newest(newest, last) => newest.put(entry).map(|taken| {
                let last = std::mem::replace(last, chunk);
                (true, (!taken).then_some(last))
            }),
        };
        match staged {
            Ok((true, superseded)) => {
                s.delivered += 1;
                s.superseded += u64::from(superseded.is_some());
                self.counters.delivered.add(1);
                self.counters.delivered_bytes.add(meta.length.into());
                if let Some(chunk) = superseded {
                    self.superseded |= chunk & TX_REGION != 0;
                    self.withdraw(sink, chunk);
                }
                Ok(Delivery::Delivered)
            }
            Ok((false, _)) => {
                self.withdraw(sink, chunk);
                Ok(self.dropped(sink, Delivery::DroppedFull))
            }
            Err(e) => Err(ring_violation("receive ring", &e)),
        }
    }

    /// Gives a sink of the same session the very memory of the emitted message: no copy. `None`: such sinks
    /// hold too much already, or the message was received; copy this one.
    pub fn deliver_own(
        &mut self,
        sink: SinkSlot,
        chunk: u32,
        meta: &Meta,
    ) -> Result<Option<Put>, Failure> {
        if chunk & RX_REGION != 0 {
            return Ok(None);
        }
        if !self.admit(sink)? {
            return Ok(Some(Put::NoRoom(Delivery::DroppedFull)));
        }
        let may_lend = self.may_lend(chunk as usize, meta.length as usize);
        let Some(s) = self.sinks.get_mut(sink) else {
            return Ok(Some(Put::NoRoom(Delivery::DroppedFull)));
        };
        if s.own.len() == MOST_OWN || !may_lend {
            return Ok(None);
        }
        s.outstanding += 1;
        s.has_room();
        s.own.push_back(chunk);
        if !std::mem::replace(&mut s.listed, true) {
            // Room was made when the sink was added.
            self.own_sinks.push(sink);
        }
        let at = chunk as usize;
        self.tx_holders[at] += 1;
        if self.tx_lent[at] == 0
            && let Some(source) = self.sources.get_mut(self.source_of(at))
        {
            self.tx_lent[at] = meta.length.max(1);
            self.lent_bytes += self.tx_lent[at] as usize;
            source.lent += 1;
        }
        let delivered = self.deliver(sink, chunk | TX_REGION, meta)?;
        Ok(Some(Put::Done(delivered)))
    }

    /// The source of the emitted message that starts at a place.
    fn source_of(&self, slot: usize) -> SourceSlot {
        SourceSlot(usize::from(self.tx_source[slot]))
    }

    /// Whether sinks of this session may have a message by reference: at most half of what its source may have under way, and
    /// half of the session's memory to send from, or one message. A sink that takes nothing does not hold up its source.
    fn may_lend(&self, chunk: usize, length: usize) -> bool {
        if self.tx_lent[chunk] > 0 {
            return true;
        }
        let source = self.sources.get(self.source_of(chunk));
        source.is_some_and(|source| source.lent < source.depth / 2)
            && (self.lent_bytes == 0 || self.lent_bytes + length <= self.map.tx_bytes / 2)
    }

    /// Takes back a placed message that will not be delivered.
    pub fn withdraw(&mut self, sink: SinkSlot, chunk: u32) {
        // Placed or held by the lane itself, so it is there and letting go cannot be a violation.
        let _ = self.give_back(sink, chunk);
    }

    /// One message less at a sink: its memory is free again if nobody else holds it. Returns what that cost.
    fn give_back(&mut self, sink: SinkSlot, chunk: u32) -> Result<i64, Failure> {
        let Some(s) = self.sinks.get_mut(sink) else {
            return Ok(0);
        };
        if chunk & TX_REGION != 0 {
            let chunk = chunk & !TX_REGION;
            let Some(at) = s.own.iter().position(|&own| own == chunk) else {
                return Err(violation(format!(
                    "transmit chunk {chunk} released, but not received"
                )));
            };
            s.own.remove(at);
            s.outstanding -= 1;
            self.release(chunk)?;
            // It was looked for among those that came before it.
            return Ok(fair::LOOK + (at * size_of::<u32>()) as i64);
        }
        if self.placed.holder(chunk) != Some(Holder::Sink(sink)) {
            return Err(violation(format!(
                "receive chunk {chunk} released, but not received by this sink"
            )));
        }
        self.placed.take(chunk);
        let bytes = self.rx.block_len(chunk);
        let held = &mut s.held[usize::from(is_large(bytes))];
        *held = held.saturating_sub(bytes);
        s.outstanding -= 1;
        self.rx
            .free(chunk)
            .map_err(|_| violation(format!("receive chunk {chunk} released twice")))?;
        Ok(fair::LOOK)
    }

    /// A sink does without a message: counts it.
    pub fn dropped(&mut self, sink: SinkSlot, delivery: Delivery) -> Delivery {
        if let Some(s) = self.sinks.get_mut(sink) {
            match delivery {
                Delivery::DroppedFull => {
                    s.dropped_full += 1;
                    self.counters.dropped_full.add(1);
                }
                Delivery::DroppedMemory => {
                    s.dropped_memory += 1;
                    self.counters.dropped_memory.add(1);
                }
                Delivery::Delivered => {}
            }
        }
        delivery
    }

    /// Corrects a sink's count of lost messages.
    pub fn add_lost(&mut self, sink: SinkSlot, change: i64) {
        if let Some(s) = self.sinks.get_mut(sink) {
            s.lost = s.lost.saturating_add_signed(change);
            if change > 0 {
                self.counters.lost.add(change as u64);
            }
        }
    }

    /// Takes what the application has released at a sink.
    pub fn reclaim(&mut self, sink: SinkSlot) -> Result<(), Failure> {
        let mut left = i64::MAX;
        self.reclaim_within(sink, &mut left).map(drop)
    }

    /// The same, as far as the turn goes. True: all of it.
    fn reclaim_within(&mut self, sink: SinkSlot, left: &mut i64) -> Result<bool, Failure> {
        let Some(s) = self.sinks.get_mut(sink) else {
            return Ok(true);
        };
        let released = s
            .release
            .available()
            .map_err(|e| ring_violation("release ring", &e))?;
        let mut count = 0;
        while count < released.min(MOST_RECLAIMED) && *left > 0 {
            let Some(s) = self.sinks.get_mut(sink) else {
                return Ok(true);
            };
            let Some(chunk) = s
                .release
                .pop()
                .map_err(|e| ring_violation("release ring", &e))?
            else {
                break;
            };
            *left -= self.give_back(sink, chunk)?;
            count += 1;
        }
        if count > 0
            && let Some(s) = self.sinks.get_mut(sink)
        {
            s.release.release();
            s.takes = Takes::Something;
            s.turn_left = s.turn_left.saturating_sub(count);
        }
        Ok(count == released)
    }

    /// Takes releases of messages that a source of this session waits for, of some sinks, from where the last
    /// call ended, as far as the turn goes. True: of all, begin anew.
    pub fn reclaim_own(&mut self, left: &mut i64) -> Result<bool, Failure> {
        for _ in 0..MOST_SEARCHED {
            let Some(&sink) = self.own_sinks.get(self.next_own) else {
                self.next_own = 0;
                return Ok(true);
            };
            if *left <= 0 {
                return Ok(false);
            }
            *left -= fair::LOOK;
            if !self.reclaim_within(sink, left)? {
                continue;
            }
            match self.sinks.get_mut(sink) {
                Some(s) if !s.own.is_empty() => self.next_own += 1,
                Some(s) => {
                    s.listed = false;
                    self.own_sinks.swap_remove(self.next_own);
                }
                None => {
                    self.own_sinks.swap_remove(self.next_own);
                }
            }
        }
        Ok(false)
    }

    /// Attaches a sink to its rings, at its number.
    pub fn add_sink(
        &mut self,
        at: SinkSlot,
        block: SinkBlock,
        channel: ChannelSlot,
        notify: Option<OwnedFd>,
        mode: SinkMode,
    ) -> Result<(), RingError> {
        let sink = LaneSink::new(&self.arena, block, channel, notify, mode)?;
        self.placed.open(at);
        self.sinks.put(at, sink);
        self.own_sinks
            .reserve(self.sinks.count() - self.own_sinks.len().min(self.sinks.count()));
        Ok(())
    }

    /// Shows a sink's new entries and counters, and wakes who waits. True if somebody did.
    pub fn show(&mut self, sink: SinkSlot) -> bool {
        let Some(s) = self.sinks.get_mut(sink) else {
            return false;
        };
        s.publish(&self.arena);
        let wake = s.bell.ring();
        if wake == Wake::Fd
            && let Some(fd) = &s.notify
        {
            signal(&self.waking, fd);
        }
        wake != Wake::None
    }

    /// Shows a sink's new entries to who looks at them by itself. Who waits is woken by [`show`](Self::show).
    pub fn publish(&mut self, sink: SinkSlot) {
        if let Some(s) = self.sinks.get_mut(sink) {
            s.publish(&self.arena);
        }
    }

    /// Closes all sinks of a session that gets no other: its memory goes with it. Returns their channels, and how many messages they
    /// held of the session's own.
    pub fn remove_sinks(&mut self) -> (Vec<ChannelSlot>, usize) {
        let removed = self.sinks.take_all();
        self.own_sinks.clear();
        let mut own = 0;
        for chunk in removed.iter().flat_map(|sink| &sink.own) {
            let _ = self.release(*chunk);
            own += 1;
        }
        (removed.iter().map(|sink| sink.channel).collect(), own)
    }

    /// Lets go of what a closed sink had received, or keeps it for sources that may have emitted it, as far as so many messages go:
    /// how many it was, and whether that is all.
    pub fn let_go(&mut self, sink: SinkSlot, keep: bool, most: usize) -> (usize, bool) {
        let mut gone = 0;
        while gone < most
            && let Some(chunk) = self.placed.take_any(Holder::Sink(sink))
        {
            match keep {
                true => self.placed.give(chunk, Holder::Orphan),
                // A block of ours, by its holder.
                false => _ = self.rx.free(chunk),
            }
            gone += 1;
        }
        (gone, self.placed.has_none(Holder::Sink(sink)))
    }

    /// Frees what was kept of closed sinks, as far as so many messages go: how many it was, and whether there is nothing more to be done
    /// now. Where sources have emitted something by then that is not taken, that is [asked later](Self::has_orphans_to_free).
    pub fn free_orphans(&mut self, most: usize) -> (usize, bool) {
        if self.placed.has_none(Holder::Orphan) {
            return (0, true);
        }
        if !self.has_taken_awaited() {
            self.keeps_orphans = true;
            return (0, true);
        }
        let mut gone = 0;
        while gone < most
            && let Some(chunk) = self.placed.take_any(Holder::Orphan)
        {
            // A block of ours, by its holder.
            let _ = self.rx.free(chunk);
            gone += 1;
        }
        (gone, self.placed.has_none(Holder::Orphan))
    }

    /// Whether all has been taken that sources had emitted when a sink was closed.
    fn has_taken_awaited(&self) -> bool {
        let mut sources = self.sources.iter();
        sources.all(|source| source.taken >= source.awaited)
    }

    /// Whether what was kept of closed sinks can be freed by now: said once.
    #[inline]
    pub fn has_orphans_to_free(&mut self) -> bool {
        let free = self.keeps_orphans && self.has_taken_awaited();
        self.keeps_orphans &= !free;
        free
    }

    /// Closes a sink: its application no longer looks at it. What it had received is to be [let go](Self::let_go) of before there is
    /// another one of its number: kept, if sources may have emitted it. Returns how much was looked at for that, and whether it is kept.
    pub fn remove_sink(&mut self, sink: SinkSlot) -> Option<(LaneSink, usize, bool)> {
        let mut removed = self.sinks.remove(sink)?;
        let mut looks = 0;
        if removed.listed {
            looks += self.own_sinks.len();
            self.own_sinks.retain(|own| *own != sink);
        }
        let mut awaited = false;
        if removed.held != [0; 2] {
            looks += self.sources.count();
            // What it had received may be in the rings of sources by now.
            for source in self.sources.iter_mut() {
                let waiting = u64::from(source.waiting());
                source.awaited = source.taken + waiting;
                awaited |= waiting > 0;
            }
        }
        let own = std::mem::take(&mut removed.own);
        looks += own.len();
        for chunk in own {
            let _ = self.release(chunk);
        }
        Some((removed, looks, awaited))
    }
}
