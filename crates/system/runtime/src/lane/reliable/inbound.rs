//! Reliable sources elsewhere: what of them is here, put together, and delivered in their order.

use std::collections::{BTreeSet, VecDeque};

use takt_recovery::receiver::Room;
use takt_recovery::{Arrival, Delivery, MAX_GRANT_BYTES, MAX_WINDOW, Receiver};
use takt_time::TrafficClass;
use takt_wire::channel::{DatagramHeader, Kind, Record};

use super::super::receive::block_bytes;
use super::super::remote::Carrier;
use super::super::session::{Delivery as AtSink, Meta};
use super::super::shares::Pair;
use super::super::tenants::Tenants;
use super::super::track::{SourceKey, sender_number};
use super::super::{LanePort, State, fair};
use super::{AGE_EVERY_NS, Announcement, End, IDLE_NS, MOST_AGED, MOST_LEFT, Reliable, control};
use crate::slots::{ChannelSlot, InboundSlot, RemoteSlot, SessionSlot, SinkSlot, Slot};

/// Records that a receiver keeps before those that they wait for.
const WINDOW: u32 = 1024;
/// Lists of targets that a source keeps to be used again.
const MOST_SPARE: usize = 16;
/// First and longest time between two looks whether sinks without room have some.
const LOOK_NS: [i64; 2] = [50_000, 5_000_000];

/// A sink of a message: where in its memory it is put together, or why it does without.
#[derive(Clone, Copy, Debug)]
struct Target {
    session: SessionSlot,
    sink: SinkSlot,
    chunk: Result<u32, AtSink>,
}

/// A message whose records come, or are awaited.
#[derive(Debug)]
pub(super) struct Arriving {
    /// Its first record, of 64 bits as [`Receiver::extended`] has them.
    first: u64,
    count: u32,
    sequence: u32,
    length: u32,
    stride: u16,
    class: TrafficClass,
    send_time_ns: i64,
    /// It will not be delivered: some of its records will not come, or it fits nowhere.
    dead: bool,
    /// Some sink does without it.
    lacking: bool,
    /// Those of one tenant follow each other.
    targets: Vec<Target>,
}

impl Arriving {
    /// The record after its last one.
    fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }
}

/// A reliable source elsewhere.
#[derive(Debug)]
pub(in super::super) struct Inbound {
    key: SourceKey,
    /// Whose place it has.
    pub(super) pair: Pair,
    /// When it was last heard.
    heard_ns: i64,
    channel: ChannelSlot,
    channel_id: u64,
    since: u64,
    /// The number under which sinks know it.
    sender: u32,
    epoch: u32,
    /// How long a sink without room is waited for.
    patience_ns: Option<i64>,
    /// Its messages take the place of those before them.
    latest: bool,
    engine: Receiver,
    /// Its sinks get the records from this one on, if those before it were others'.
    from: Option<u32>,
    /// The number of the next message to deliver, and what its sender said last of its next one and the next record.
    expected: u64,
    announced: (u32, u32),
    /// In their order and apart, each with records that are not delivered: no more than records are kept, and one.
    pub(super) messages: VecDeque<Arriving>,
    /// Length and records of the last message: what room is counted in.
    usual: (u32, u32),
    class: TrafficClass,
    /// The port that its records come by.
    port: usize,
    look_after_ns: i64,
    pub(super) wake_ns: i64,
    /// Some sink had no room, and it has not been looked since whether it has.
    no_room: bool,
    /// Targets of messages that are done, to be used again.
    spare: Vec<Vec<Target>>,
}

/// How far a source elsewhere was when it was followed no more. Its sender may not have heard what was acknowledged last,
/// and not that the sinks of then are gone: sinks that are opened after them get what it emits from there on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    key: SourceKey,
    epoch: u32,
    /// The record and the message after all that was heard of.
    next: (u32, u32),
}

impl Inbound {
    /// Where a message with this first record is, or would be.
    fn place(&self, first: u64) -> Result<usize, usize> {
        self.messages
            .binary_search_by_key(&first, |message| message.first)
    }

    /// The first record of the message that this one is of.
    fn first_of(&self, number: u32, index: u32) -> u64 {
        (self.engine.extended(number)).saturating_sub(index.into())
    }

    /// The first record that is missing.
    fn missing(&self) -> u64 {
        self.engine.extended(self.engine.next())
    }

    /// The record and the message after all that was announced, or has come.
    fn after_all_heard(&self) -> (u32, u32) {
        let here = self.engine.next().wrapping_add(self.placed());
        let placed = self.messages.back();
        let message = placed.map_or(self.expected as u32, |last| last.sequence.wrapping_add(1));
        (
            later(self.announced.0, here),
            later(self.announced.1, message),
        )
    }

    /// Records from the first missing one to the end of the last message that has a place.
    fn placed(&self) -> u32 {
        let Some(last) = self.messages.back() else {
            return 0;
        };
        last.end().saturating_sub(self.missing()) as u32
    }

    /// Messages that have a place and begin with the first missing record or behind it, and their bytes.
    fn placed_messages(&self) -> (u32, u64) {
        let from = self.place(self.missing()).unwrap_or_else(|place| place);
        let messages = self.messages.range(from..);
        let bytes = messages.map(|message| block_bytes(message.length as usize) as u64);
        ((self.messages.len() - from) as u32, bytes.sum())
    }
}

/// The later of two numbers that wrap.
fn later(one: u32, other: u32) -> u32 {
    if (one.wrapping_sub(other) as i32) > 0 {
        one
    } else {
        other
    }
}

/// Those that an index has under this place.
fn with<S: Slot + Ord>(index: &BTreeSet<(S, InboundSlot)>, of: S) -> Vec<InboundSlot> {
    let found = index.range((of, InboundSlot(0))..=(of, InboundSlot(usize::MAX)));
    found.map(|(_, at)| *at).collect()
}

impl Reliable {
    /// How far a source was when it was forgotten, unless its sender is past that.
    fn take_left(&mut self, key: SourceKey, said: &Announcement) -> Option<Left> {
        let of_remote = self.left.get_mut(&key.remote)?;
        let at = of_remote.iter().position(|left| left.key == key)?;
        let left = of_remote.remove(at)?;
        let behind = later(left.next.0, said.engine.oldest) != said.engine.oldest;
        (left.epoch == said.epoch && behind).then_some(left)
    }
}

impl State {
    /// A remote lane says how far a reliable source is.
    pub(in super::super) fn take_announcement(
        &mut self,
        remote: RemoteSlot,
        channel: ChannelSlot,
        record: &Record<'_>,
    ) {
        let now_ns = self.round.steady_ns();
        let Some(said) = Announcement::decode(record.payload) else {
            return self.counters.rx_malformed.add(1);
        };
        let key = SourceKey {
            remote,
            source: record.header.source,
        };
        if !self.has_part(channel) {
            return;
        }
        let Some(at) = self.heard(key, channel, &said) else {
            return;
        };
        let source = &mut self.reliable.inbound[at];
        (source.patience_ns, source.latest) = (said.patience_ns(), said.latest);
        source.class = record.header.class;
        source.heard_ns = now_ns;
        source.port = self.receiving;
        if source.engine.announce(now_ns, &said.engine).is_err() {
            return self.counters.rx_malformed.add(1);
        }
        if let Some(record) = source.from.take() {
            source.engine.supersede(now_ns, record);
        }
        source.announced = (said.engine.next, said.next_message);
        let (closed, patient) = (source.engine.is_closed(), source.patience_ns != Some(0));
        let usual = source.usual.0 as usize;
        if closed
            && patient
            && let Some(channel) = self.channels.get(channel)
        {
            let behind = self.behind + self.received_cost;
            self.received_cost += self.tenants.charge_all(channel, fair::LOOK, behind);
            self.tenants.wait_begins(channel, usual, now_ns);
        }
        self.deliver_in_order(at, now_ns);
    }

    /// Whether what a reliable source has sent is looked at in this round: else a tenant with several sinks of its channel has had
    /// its part, and it comes again.
    #[inline]
    fn has_part(&mut self, channel: ChannelSlot) -> bool {
        let behind = self.behind + self.received_cost;
        let Some(known) = self.channels.get(channel) else {
            return false;
        };
        let has = self.tenants.all_admit(known, behind);
        if !has {
            self.counters.rx_no_part.add(1);
        }
        has
    }

    /// The receiving end of a source that announces itself; a new one if it is not known. `None`: nobody listens, or
    /// there are too many.
    fn heard(
        &mut self,
        key: SourceKey,
        channel: ChannelSlot,
        said: &Announcement,
    ) -> Option<InboundSlot> {
        let listening = self.channels.get(channel).filter(|c| !c.sinks.is_empty());
        let Some(listening) = listening else {
            self.counters.rx_no_sink.add(1);
            return None;
        };
        let (id, since) = (listening.id, listening.since);
        if let Some(&at) = self.reliable.by_source.get(&key) {
            let known = &self.reliable.inbound[at];
            if known.channel_id != id {
                self.counters.rx_malformed.add(1);
                return None;
            }
            if known.since == since && known.epoch == said.epoch {
                return Some(at);
            }
            let again = known.epoch == said.epoch;
            self.forget_reliable(at, again);
        }
        let Some(pair) = self.place_for(key.remote, channel) else {
            self.counters.rx_no_place.add(1);
            return None;
        };
        let label = self.remotes.get(key.remote)?.label;
        let left = self.reliable.take_left(key, said);
        let at = self.reliable.inbound.insert(Inbound {
            key,
            pair,
            heard_ns: self.round.steady_ns(),
            channel,
            channel_id: id,
            since,
            sender: sender_number(label, key.source),
            epoch: said.epoch,
            patience_ns: said.patience_ns(),
            latest: said.latest,
            engine: Receiver::new(WINDOW).ok()?,
            from: left.map(|left| left.next.0),
            expected: left.map_or(said.oldest_message, |left| left.next.1).into(),
            announced: (said.engine.next, said.next_message),
            messages: VecDeque::new(),
            usual: (1, 1),
            class: TrafficClass::BEST_EFFORT,
            port: 0,
            look_after_ns: LOOK_NS[0],
            wake_ns: i64::MAX,
            no_room: false,
            spare: Vec::new(),
        });
        self.reliable.by_source.insert(key, at);
        self.reliable.on_channel.insert((channel, at));
        self.reliable.of_remote.insert((key.remote, at));
        self.reliable.shares.take(pair);
        Some(at)
    }

    /// Whose place a source of a lane gets, of the tenants with sinks of its channel. `None`: there is none.
    fn place_for(&mut self, remote: RemoteSlot, channel: ChannelSlot) -> Option<Pair> {
        let free = |state: &Self| {
            let groups = state.channels.get(channel)?.groups.iter();
            let mut pairs = groups.map(|group| Pair {
                remote,
                tenant: group.tenant,
            });
            pairs.find(|pair| state.reliable.shares.has_room(*pair))
        };
        free(self).or_else(|| self.age_reliable().then(|| free(self))?)
    }

    /// Forgets sources that have been idle for long, of those that have more than their own places: they announce themselves
    /// when they emit again. True if there were any.
    #[cold]
    pub(super) fn age_reliable(&mut self) -> bool {
        let now_ns = self.round.steady_ns();
        if now_ns.saturating_sub(self.reliable.aged_ns) < AGE_EVERY_NS {
            return false;
        }
        self.reliable.aged_ns = now_ns;
        let before = self.reliable.inbound.len();
        let places = self.reliable.inbound.capacity();
        for _ in 0..MOST_AGED.min(places) {
            let at = InboundSlot(self.reliable.aged % places);
            self.reliable.aged = at.0 + 1;
            let Some(source) = self.reliable.inbound.get(at) else {
                continue;
            };
            let quiet = source.engine.is_idle() && source.messages.is_empty();
            let idle = quiet && now_ns.saturating_sub(source.heard_ns) >= IDLE_NS;
            if idle && self.reliable.shares.exceeds(source.pair) {
                self.forget_reliable(at, true);
            }
        }
        self.reliable.inbound.len() < before
    }

    /// A record of a reliable source has come.
    pub(in super::super) fn take_reliable(
        &mut self,
        remote: RemoteSlot,
        channel: ChannelSlot,
        header: &DatagramHeader,
        record: &Record<'_>,
    ) {
        let now_ns = self.round.steady_ns();
        let h = &record.header;
        let Kind::Reliable { number } = h.kind else {
            return;
        };
        let key = SourceKey {
            remote,
            source: h.source,
        };
        if !self.has_part(channel) {
            return;
        }
        let Some(&at) = self.reliable.by_source.get(&key) else {
            // It was not announced yet: it is, and comes again.
            return self.counters.rx_early.add(1);
        };
        let source = &mut self.reliable.inbound[at];
        if source.channel != channel || source.channel_id != h.channel {
            return self.counters.rx_malformed.add(1);
        }
        source.class = h.class;
        source.heard_ns = now_ns;
        source.port = self.receiving;
        let first = source.first_of(number, h.fragment_index);
        if source.latest && first > source.missing() {
            source.engine.supersede(now_ns, first as u32);
            self.deliver_in_order(at, now_ns);
        }
        let source = &mut self.reliable.inbound[at];
        let arrival = source.engine.judge(number);
        if arrival == Arrival::Keep && !self.place_record(at, header, record, number) {
            return;
        }
        let source = &mut self.reliable.inbound[at];
        match source.engine.receive(now_ns, number, header.send_time_ns) {
            Arrival::Keep => {}
            Arrival::Repeated => self.counters.rx_duplicate.add(1),
            Arrival::Early | Arrival::Beyond => self.counters.rx_early.add(1),
        }
        self.deliver_in_order(at, now_ns);
    }

    /// Puts a record in its place in the memory of the sinks. False: there is no room now, or it contradicts others.
    fn place_record(
        &mut self,
        at: InboundSlot,
        header: &DatagramHeader,
        record: &Record<'_>,
        number: u32,
    ) -> bool {
        let h = &record.header;
        let source = &mut self.reliable.inbound[at];
        let count = h.fragment_count();
        let first = source.first_of(number, h.fragment_index);
        let end = first + u64::from(count);
        let known = match source.place(first) {
            Ok(known) => {
                let message = &source.messages[known];
                let same = (message.sequence, message.length, message.stride)
                    == (h.sequence, h.message_length, h.fragment_stride);
                if !same {
                    self.counters.rx_malformed.add(1);
                    return false;
                }
                known
            }
            Err(place) => {
                let before = place.checked_sub(1).map(|before| &source.messages[before]);
                let after = source.messages.get(place);
                let clear = before.is_none_or(|before| before.end() <= first)
                    && after.is_none_or(|after| end <= after.first);
                if !clear || count == 0 {
                    self.counters.rx_malformed.add(1);
                    return false;
                }
                let mut arriving = Arriving {
                    first,
                    count,
                    sequence: h.sequence,
                    length: h.message_length,
                    stride: h.fragment_stride,
                    class: h.class,
                    send_time_ns: header.send_time_ns,
                    // Its first records are not for this receiver, or were given up.
                    dead: first < source.engine.delivered(),
                    lacking: false,
                    targets: source.spare.pop().unwrap_or_default(),
                };
                // For the first that is missing those behind it make room.
                let awaited =
                    (first..end).contains(&source.missing()) && place < source.messages.len();
                if source.no_room && !arriving.dead && !awaited {
                    self.keep_spare(at, arriving.targets);
                    self.counters.rx_no_room.add(1);
                    return false;
                }
                while !arriving.dead && !self.place_message(at, &mut arriving) {
                    // Later ones may have taken the room that the first missing one needs.
                    if self.make_room(at, &arriving) {
                        continue;
                    }
                    self.keep_spare(at, arriving.targets);
                    self.counters.rx_no_room.add(1);
                    let source = &mut self.reliable.inbound[at];
                    source.no_room = true;
                    let look_ns = self.round.steady_ns() + source.look_after_ns;
                    self.reliable.wake(End::Inbound(at), look_ns);
                    return false;
                }
                let source = &mut self.reliable.inbound[at];
                source.messages.insert(place, arriving);
                source.usual = (h.message_length, count);
                place
            }
        };
        let source = &self.reliable.inbound[at];
        let message = &source.messages[known];
        let mut copies = 0;
        for target in &message.targets {
            if let Ok(chunk) = target.chunk
                && let Some(session) = self.tenants.sessions.get(target.session)
            {
                let place = session.placed(chunk, message.length as usize);
                let copied = place.write_from(h.fragment_offset(), record.payload);
                debug_assert!(copied.is_ok(), "a checked fragment lies inside its message");
                copies += 1;
            }
        }
        if copies > 0 {
            let each = fair::COPY + record.payload.len() as i64;
            let behind = self.behind + self.received_cost;
            Self::charge_holders(&mut self.tenants, &message.targets, each, behind);
            self.received_cost += copies * each;
        }
        true
    }

    /// Takes of the parts of tenants what was done for each of their sinks that has memory for a message.
    #[inline]
    fn charge_holders(tenants: &mut Tenants, targets: &[Target], each: i64, behind: i64) {
        if tenants.is_far(behind) {
            Self::charge_each_holder(tenants, targets, each);
        }
    }

    #[cold]
    fn charge_each_holder(tenants: &mut Tenants, mut targets: &[Target], each: i64) {
        // Those of one tenant follow each other.
        while let Some(first) = targets.first() {
            let tenant = tenants.of_session(first.session);
            let same = |target: &&Target| tenants.of_session(target.session) == tenant;
            let (its, others) = targets.split_at(targets.iter().take_while(same).count());
            let holders = its.iter().filter(|target| target.chunk.is_ok()).count() as i64;
            if let Some(tenant) = tenant {
                tenants.charge_part(tenant, (holders - 1).max(0) * each);
            }
            targets = others;
        }
    }

    /// Keeps a list of targets to be used again.
    fn keep_spare(&mut self, at: InboundSlot, mut targets: Vec<Target>) {
        let spare = &mut self.reliable.inbound[at].spare;
        if spare.len() < MOST_SPARE {
            targets.clear();
            spare.push(targets);
        }
    }

    /// Gives back the memory of a message at a sink.
    fn withdraw_target(tenants: &mut Tenants, target: Target) {
        if let Ok(chunk) = target.chunk
            && let Some(session) = tenants.sessions.get_mut(target.session)
        {
            session.withdraw(target.sink, chunk);
        }
    }

    /// Drops the last of the messages that wait for this one. False: it is not what all others wait for, or there are
    /// none.
    #[cold]
    fn make_room(&mut self, at: InboundSlot, message: &Arriving) -> bool {
        let now_ns = self.round.steady_ns();
        let source = &mut self.reliable.inbound[at];
        let missing = source.missing();
        if !(message.first..message.end()).contains(&missing) {
            return false;
        }
        let Some(last) = source.messages.pop_back_if(|last| last.first > missing) else {
            return false;
        };
        let records = last.first as u32..last.end() as u32;
        source.engine.forget(now_ns, records);
        for target in &last.targets {
            Self::withdraw_target(&mut self.tenants, *target);
        }
        let behind = self.behind + self.received_cost;
        Self::charge_holders(&mut self.tenants, &last.targets, fair::LOOK, behind);
        self.received_cost += last.targets.len() as i64 * fair::LOOK;
        true
    }

    /// Finds room for a message at every sink of its channel. False: some sink has none now, and will be waited for.
    fn place_message(&mut self, at: InboundSlot, message: &mut Arriving) -> bool {
        let source = &self.reliable.inbound[at];
        let length = message.length as usize;
        let Some(channel) = self.channels.get(source.channel) else {
            return true;
        };
        if length > self.max_message {
            (message.dead, message.lacking) = (true, true);
            return true;
        }
        let (patience_ns, now_ns) = (source.patience_ns, self.round.steady_ns());
        let behind = self.behind + self.received_cost;
        self.received_cost += self.tenants.charge_all(channel, fair::COPY, behind);
        let mut waits = false;
        // All of them, also behind one that is waited for: those that take nothing are waited for together.
        let of_tenants = channel.groups.iter().flat_map(|group| &group.sinks);
        for &(session, sink) in of_tenants {
            let Some(s) = self.tenants.sessions.get_mut(session) else {
                continue;
            };
            let chunk = match s.try_place(sink, length) {
                Ok(placed) => placed,
                Err(failure) => {
                    self.tenants.fail(session, failure);
                    continue;
                }
            };
            waits |= chunk.is_err() && s.fits(length) && s.is_waited_for(sink, patience_ns, now_ns);
            message.targets.push(Target {
                session,
                sink,
                chunk,
            });
        }
        if waits {
            for target in message.targets.drain(..) {
                Self::withdraw_target(&mut self.tenants, target);
            }
            return false;
        }
        for target in message
            .targets
            .iter()
            .filter(|target| target.chunk.is_err())
        {
            message.lacking = true;
            let session = self.tenants.sessions.get(target.session);
            if patience_ns != Some(0) && session.is_some_and(|s| s.fits(length)) {
                self.tenants.cut_off(channel, (target.session, target.sink));
            }
        }
        true
    }

    /// Delivers what comes next, as far as it is there.
    fn deliver_in_order(&mut self, at: InboundSlot, now_ns: i64) {
        loop {
            let source = &mut self.reliable.inbound[at];
            let Some(delivery) = source.engine.deliver(now_ns) else {
                break;
            };
            match delivery {
                Delivery::Message(_) => {
                    let next = source.engine.delivered();
                    let whole = |message: &mut Arriving| message.end() == next;
                    if let Some(message) = source.messages.pop_front_if(whole) {
                        self.deliver_message(at, message);
                    }
                }
                Delivery::Lost(_) => self.give_up(at),
            }
        }
        let source = &mut self.reliable.inbound[at];
        // All that was announced is here or given up: what is missing then will not come.
        if source.engine.is_idle() && source.engine.delivered() as u32 == source.announced.0 {
            let next = source.announced.1;
            self.expect(at, next);
        }
        if let Some(wake_ns) = self.reliable.inbound[at].engine.wake_ns() {
            self.reliable.wake(End::Inbound(at), wake_ns);
        }
    }

    /// The next message has this number: those before it are lost.
    fn expect(&mut self, at: InboundSlot, sequence: u32) -> u64 {
        let source = &mut self.reliable.inbound[at];
        let ahead = i64::from(sequence.wrapping_sub(source.expected as u32) as i32);
        let full = source.expected.saturating_add_signed(ahead);
        if ahead > 0 {
            source.expected = full;
            let known = self.channels.get(source.channel);
            if let Some(channel) = known.filter(|channel| channel.since == source.since) {
                channel.counters.lost.add(ahead as u64);
                self.received_cost += self.tenants.add_lost(channel, ahead);
            }
        }
        full
    }

    /// All records of a message are here, and all before it are delivered.
    fn deliver_message(&mut self, at: InboundSlot, message: Arriving) {
        if message.lacking {
            let end = message.end() as u32;
            self.reliable.inbound[at].engine.note_lacking(end);
        }
        if !message.dead {
            let sequence = self.expect(at, message.sequence);
            let source = &mut self.reliable.inbound[at];
            source.expected = source.expected.max(sequence + 1);
            let meta = Meta {
                length: message.length,
                class: message.class,
                sender: source.sender,
                sequence,
                send_time_ns: message.send_time_ns,
            };
            self.arrivals
                .whole(self.remotes.get(source.key.remote), &self.round, &meta);
            if let Some(channel) = self.channels.get(source.channel) {
                channel.counters.received.add(1);
                channel.counters.received_bytes.add(u64::from(meta.length));
                self.received_cost += message.targets.len() as i64 * fair::COPY;
                for &Target {
                    session,
                    sink,
                    chunk,
                } in &message.targets
                {
                    let Some(s) = self.tenants.sessions.get_mut(session) else {
                        continue;
                    };
                    let result = match chunk {
                        Ok(chunk) => s.deliver(sink, chunk, &meta),
                        Err(without) => Ok(s.dropped(sink, without)),
                    };
                    let counters = &channel.counters;
                    self.tenants
                        .account_received(session, sink, meta.class, counters, result);
                }
            }
        }
        self.keep_spare(at, message.targets);
    }

    /// Records were given up: messages that have some of them will not be whole.
    fn give_up(&mut self, at: InboundSlot) {
        let source = &mut self.reliable.inbound[at];
        let delivered = source.engine.delivered();
        for message in &mut source.messages {
            // One that begins before what is delivered next, and is still here, lacks something.
            if message.first >= delivered {
                break;
            }
            message.dead = true;
            for target in message.targets.drain(..) {
                Self::withdraw_target(&mut self.tenants, target);
            }
        }
        let is_over = |message: &mut Arriving| message.end() <= delivered;
        while let Some(message) = self.reliable.inbound[at].messages.pop_front_if(is_over) {
            self.keep_spare(at, message.targets);
        }
    }

    /// Says what is here and for how much there is room. When to look at it again.
    pub(super) fn acknowledge(
        &mut self,
        ports: &mut [LanePort],
        source: &mut Inbound,
        now_ns: i64,
    ) -> i64 {
        let Some(channel) = self.channels.get(source.channel) else {
            return i64::MAX;
        };
        source.no_room = false;
        let (length, records) = source.usual;
        let mut room = Room {
            window: WINDOW,
            messages: MAX_WINDOW,
            bytes: MAX_GRANT_BYTES.into(),
        };
        if source.patience_ns != Some(0) {
            self.recovery_cost += channel.sinks.len() as i64 * fair::LOOK;
            for (session, sink) in channel.sinks.iter() {
                let Some(s) = self.tenants.sessions.get_mut(session) else {
                    continue;
                };
                let (entries, free) = match s.space(sink, length as usize) {
                    Ok(space) => space,
                    Err(failure) => {
                        self.tenants.fail(session, failure);
                        continue;
                    }
                };
                let alike = u32::try_from(free / block_bytes(length as usize)).unwrap_or(u32::MAX);
                match entries.min(alike) {
                    // It is waited for no longer, or never.
                    0 if !s.fits(length as usize) => {}
                    0 if s.is_done_without(sink, source.patience_ns, now_ns) => {}
                    messages => {
                        room.window = room.window.min(messages.saturating_mul(records));
                        room.messages = room.messages.min(entries);
                        room.bytes = room.bytes.min(free as u64);
                    }
                }
            }
        }
        // What has a place already has it.
        let (messages, bytes) = source.placed_messages();
        room.window = room.window.saturating_add(source.placed());
        room.messages = room.messages.saturating_add(messages);
        room.bytes = room.bytes.saturating_add(bytes);
        source.engine.set_room(now_ns, room);
        let mut again_ns = i64::MAX;
        if let Some(said) = source.engine.poll(now_ns) {
            let bytes = said.encode();
            let header = control(
                source.channel_id,
                source.key.source,
                source.class,
                Kind::Acknowledge,
                bytes.len(),
            );
            if let Err(at_ns) = self.say(
                ports,
                source.key.remote,
                Carrier::any(source.port),
                &header,
                &bytes,
            ) {
                source.engine.remind(at_ns);
            }
        }
        // Sinks tell nobody when they have room again.
        if source.engine.is_closed() {
            again_ns = now_ns + source.look_after_ns;
            source.look_after_ns = (2 * source.look_after_ns).min(LOOK_NS[1]);
        } else {
            source.look_after_ns = LOOK_NS[0];
        }
        let engine_ns = source.engine.wake_ns().unwrap_or(i64::MAX);
        engine_ns.min(again_ns)
    }

    /// A source elsewhere is heard no more: what had come of its messages is not delivered. `again`: it may be heard of again.
    pub(super) fn forget_reliable(&mut self, at: InboundSlot, again: bool) {
        let Some(source) = self.reliable.inbound.remove(at) else {
            return;
        };
        self.reliable.by_source.remove(&source.key);
        self.reliable.on_channel.remove(&(source.channel, at));
        self.reliable.of_remote.remove(&(source.key.remote, at));
        self.reliable.shares.give_back(source.pair);
        if again {
            let left = self.reliable.left.entry(source.key.remote).or_default();
            if left.len() == MOST_LEFT {
                left.pop_front();
            }
            left.push_back(Left {
                key: source.key,
                epoch: source.epoch,
                next: source.after_all_heard(),
            });
        }
        for target in source.messages.iter().flat_map(|message| &message.targets) {
            Self::withdraw_target(&mut self.tenants, *target);
        }
    }

    /// A reliable source elsewhere has ended. False: it is not known as such.
    pub(in super::super) fn reliable_ended(&mut self, remote: RemoteSlot, source: u32) -> bool {
        let known = self.reliable.by_source.get(&SourceKey { remote, source });
        let Some(&at) = known else {
            return false;
        };
        let next = self.reliable.inbound[at].announced.1;
        self.expect(at, next);
        self.forget_reliable(at, false);
        true
    }

    /// Whether a source elsewhere is known as reliable.
    pub(in super::super) fn is_reliable(&self, remote: RemoteSlot, source: u32) -> bool {
        let key = SourceKey { remote, source };
        self.reliable.by_source.contains_key(&key)
    }

    /// A remote lane is gone, with its reliable sources. Unless it went cleanly, more may be missing than is known.
    pub(in super::super) fn forget_reliable_of(&mut self, remote: RemoteSlot, clean: bool) {
        for at in with(&self.reliable.of_remote, remote) {
            let source = &self.reliable.inbound[at];
            let (next, since) = (source.announced.1, source.since);
            if let Some(channel) = self.channels.get(source.channel)
                && channel.since == since
            {
                channel.counters.unknown_tails.add((!clean).into());
            }
            self.expect(at, next);
            self.forget_reliable(at, false);
        }
        self.reliable.left.remove(&remote);
    }

    /// A channel has no sinks any more.
    pub(in super::super) fn forget_reliable_on(&mut self, channel: ChannelSlot) {
        for at in with(&self.reliable.on_channel, channel) {
            self.forget_reliable(at, true);
        }
    }

    /// Some sinks of a channel are gone: what counts as a tenant's that has none there any more counts as another's.
    pub(in super::super) fn move_reliable_places(&mut self, channel: ChannelSlot) {
        let Some(known) = self.channels.get(channel) else {
            return;
        };
        let groups = || known.groups.iter().map(|group| group.tenant);
        for at in with(&self.reliable.on_channel, channel) {
            let Some(source) = self.reliable.inbound.get_mut(at) else {
                continue;
            };
            let Pair { remote, tenant } = source.pair;
            if groups().any(|with| with == tenant) {
                continue;
            }
            let shares = &mut self.reliable.shares;
            let mut pairs = groups().map(|tenant| Pair { remote, tenant });
            let free = pairs.find(|pair| shares.has_room(*pair));
            let other = free.or_else(|| groups().next().map(|tenant| Pair { remote, tenant }));
            if let Some(pair) = other {
                shares.give_back(source.pair);
                shares.take(pair);
                source.pair = pair;
            }
        }
    }

    /// Forgets sinks of a channel that are gone.
    pub(in super::super) fn retain_reliable_targets(
        &mut self,
        channel: ChannelSlot,
        keep: impl Fn(SessionSlot, SinkSlot) -> bool,
    ) {
        for at in with(&self.reliable.on_channel, channel) {
            let Some(source) = self.reliable.inbound.get_mut(at) else {
                continue;
            };
            self.looks += 1;
            for message in &mut source.messages {
                self.looks += message.targets.len();
                (message.targets).retain(|target| keep(target.session, target.sink));
            }
        }
    }
}
