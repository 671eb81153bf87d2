//! Tenants that want more than their share, and one beside them that wants little.

use takt_session::Reliability;
use takt_session::layout::SinkCounter;
use takt_wire::channel::{DatagramCursor, Kind, RecordHeader};

use super::super::commands::MOST_LOOKS;
use super::super::endpoints::OF_SESSION;
use super::*;
use crate::counters::ChannelReading;
use crate::ids::{RemoteId, SessionId};
use crate::slots::{SinkSlot, SourceSlot};

/// A tenant's application at a lane, at the level of rings.
pub struct Guest {
    pub id: SessionId,
    pub handle: LaneHandle,
    pub arena: Arc<Arena>,
    bell: LaneBell,
    /// Where the next block of rings goes.
    free: usize,
    sources: Vec<(Producer<TxDescriptor>, Consumer<Completion>)>,
    source_blocks: Vec<SourceBlock>,
    pub sinks: Vec<(Consumer<RxDescriptor>, Producer<Release>)>,
    pub blocks: Vec<SinkBlock>,
}

/// A lane with tenants.
pub struct House {
    pub lane: Lane,
    pub handle: LaneHandle,
    next: u32,
}

impl House {
    pub fn new(ports: Vec<LanePort>, clock: Arc<dyn Clock>) -> Self {
        let (events, _) = channel();
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        let wake = Arc::new(rustix::event::eventfd(0, flags).expect("an eventfd"));
        let events = EventSender { events, wake };
        let limits = Limits::default();
        let (lane, handle) =
            Lane::new(0, 1, 1, ports, &limits, clock, Arc::default(), events).expect("a lane");
        let next = 1;
        Self { lane, handle, next }
    }

    /// With a port of so many frames; and another port of its network.
    pub fn at_network(frames: usize) -> (Self, Box<dyn Port>) {
        Self::at_network_with(frames, 1400, |port| port)
    }

    /// With so many bytes in a frame, and with what becomes of that port.
    fn at_network_with(
        frames: usize,
        max_payload: usize,
        through: impl FnOnce(Box<dyn Port>) -> Box<dyn Port>,
    ) -> (Self, Box<dyn Port>) {
        let network = MemoryNetwork::new(MemoryNetworkConfig {
            queue_depth: frames,
            max_payload,
            ..MemoryNetworkConfig::default()
        });
        let port = LanePort::new(
            MemoryNetwork::KIND,
            through(open(&network, "192.0.2.1:1")),
            false,
            Arc::default(),
            Some(&crate::config::Departure::default()),
            false,
        );
        let house = Self::new(vec![port], Arc::new(Ticking::default()));
        (house, open(&network, "192.0.2.2:1"))
    }

    /// There is a remote lane, which receives at this port.
    pub fn add_remote(&self, id: u32, at: &dyn Port) {
        self.handle.send(Command::AddRemote {
            id: RemoteId(id.into()),
            incarnation: id,
            label: id,
            protection: Protection::None,
            addresses: vec![[192, 0, 2, 2].into()],
            endpoints: vec![Some(at.local())],
            takes: Vec::new(),
        });
    }

    /// A remote lane wants these channels.
    pub fn subscribe(&self, remote: u32, channels: Vec<u64>) {
        self.handle.send(Command::Subscriptions {
            remote: RemoteId(remote.into()),
            add: channels,
            remove: Vec::new(),
        });
    }

    /// A session of a tenant with so many bytes in each region.
    pub fn guest(&mut self, tenant: u32, bytes: usize, rates: &Arc<Rates>) -> Guest {
        let map = ArenaMap {
            ring_bytes: 8 << 20,
            tx_bytes: bytes,
            rx_bytes: bytes,
        };
        let arena = Arc::new(Arena::create("guest", map.total()).expect("an arena"));
        let host = LaneBellHost::new(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET).expect("bell");
        let fd = host.fd().try_clone_to_owned().expect("a descriptor");
        let bell =
            LaneBell::attach(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET, fd).expect("bell");
        let id = SessionId(self.next);
        self.next += 1;
        let session = LaneSession::new(SessionParts {
            id,
            tenant,
            arena: arena.clone(),
            map,
            bell: host,
            max_message: 16 << 20,
            classes: 0xff,
            rates: rates.clone(),
            policer: Arc::default(),
            counters: Arc::default(),
        });
        let handle = self.handle.clone();
        handle.send(Command::AddSession(Box::new(session)));
        self.settle();
        Guest {
            id,
            handle,
            arena,
            bell,
            free: HEADER_BYTES,
            sources: Vec::new(),
            source_blocks: Vec::new(),
            sinks: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// What is counted of a channel.
    pub fn counted(&self, channel: u64) -> ChannelReading {
        let channels = &self.lane.state.channels;
        let channel = channels.find(channel).and_then(|at| channels.get(at));
        channel.expect("in use").counters.read()
    }

    /// Lets the lane take all commands.
    pub fn settle(&mut self) {
        while self.lane.mailbox.full.load(Ordering::Acquire) {
            self.lane.poll();
        }
    }
}

pub fn no_limits() -> Arc<Rates> {
    Arc::new(Rates::new(&Policy::default()))
}

/// A thousand rounds are more than all that is asked of the lane here takes.
pub fn until_done(all: usize, mut round: impl FnMut() -> usize) {
    assert!((0..1000).any(|_| round() == all), "the lane goes on");
}

impl Guest {
    pub fn source(&mut self, channel: u64) -> SourceSlot {
        self.source_from(channel, 0)
    }

    /// A source whose first message has this number.
    pub fn source_from(&mut self, channel: u64, first: u64) -> SourceSlot {
        self.open_source(channel, first, Reliability::BestEffort)
    }

    pub fn reliable_source(&mut self, channel: u64, reliability: Reliability) -> SourceSlot {
        self.open_source(channel, 0, reliability)
    }

    fn open_source(&mut self, channel: u64, first: u64, reliability: Reliability) -> SourceSlot {
        let depth = 64;
        let offset = self.free;
        self.free += SourceBlock::bytes(depth).next_multiple_of(256);
        let block = SourceBlock { offset, depth };
        for ring in [block.tx_ring(), block.completion_ring()] {
            RingLayout::reset(&self.arena, ring).expect("rings fit");
        }
        let (tx, completions) = (block.tx_ring(), block.completion_ring());
        self.sources.push((
            Producer::attach(&self.arena, tx, depth).expect("rings fit"),
            Consumer::attach(&self.arena, completions, depth).expect("rings fit"),
        ));
        self.source_blocks.push(block);
        let source = SourceSlot(self.sources.len() - 1);
        self.handle.send(Command::AddSource {
            session: self.id,
            source,
            block,
            target: SourceTarget::Channel(ChannelId(channel)),
            carrier: Carrier::any(0),
            number: self.id.0 << 16 | source.0 as u32,
            first,
            reliability,
            waits: false,
        });
        source
    }

    pub fn sink(&mut self, channel: u64, depth: u32) -> SinkSlot {
        let offset = self.free;
        self.free += SinkBlock::bytes(depth).next_multiple_of(256);
        let block = SinkBlock { offset, depth };
        for ring in [block.rx_ring(), block.release_ring()] {
            RingLayout::reset(&self.arena, ring).expect("rings fit");
        }
        let (rx, release) = (block.rx_ring(), block.release_ring());
        self.sinks.push((
            Consumer::attach(&self.arena, rx, depth).expect("rings fit"),
            Producer::attach(&self.arena, release, depth).expect("rings fit"),
        ));
        self.blocks.push(block);
        let sink = SinkSlot(self.sinks.len() - 1);
        self.handle.send(Command::AddSink {
            session: self.id,
            sink,
            block,
            channel: ChannelId(channel),
            notify: None,
            mode: takt_session::SinkMode::default(),
        });
        sink
    }

    /// Emits a message of so many bytes that lies at a chunk. False: the ring is full.
    pub fn emit(&mut self, source: SourceSlot, chunk: u32, length: u32) -> bool {
        self.emit_in(0, source, chunk, length)
    }

    /// The same in a class.
    pub fn emit_in(&mut self, class: u8, source: SourceSlot, chunk: u32, length: u32) -> bool {
        let pushed = self.sources[source.0].0.push(TxDescriptor {
            chunk,
            length,
            class,
            ..TxDescriptor::default()
        });
        self.bell.ring();
        pushed.expect("a sane ring")
    }

    /// The same in a class, to leave at an instant.
    pub fn emit_at(
        &mut self,
        launch_time_ns: i64,
        class: u8,
        source: SourceSlot,
        chunk: u32,
    ) -> bool {
        self.emit_with(FLAG_LAUNCH_TIME, launch_time_ns, class, source, chunk)
    }

    /// The same with these flags.
    pub fn emit_with(
        &mut self,
        flags: u8,
        launch_time_ns: i64,
        class: u8,
        source: SourceSlot,
        chunk: u32,
    ) -> bool {
        let pushed = self.sources[source.0].0.push(TxDescriptor {
            chunk,
            length: 3,
            class,
            flags,
            launch_time_ns,
            ..TxDescriptor::default()
        });
        self.bell.ring();
        pushed.expect("a sane ring")
    }

    /// The same with its number, and the last change of its sinks that its source has heard of.
    pub fn emit_numbered(
        &mut self,
        source: SourceSlot,
        chunk: u32,
        sequence: u64,
        epoch: u16,
    ) -> bool {
        let pushed = self.sources[source.0].0.push(TxDescriptor {
            chunk,
            length: 3,
            flags: takt_session::layout::FLAG_NUMBERED,
            sequence,
            epoch,
            ..TxDescriptor::default()
        });
        self.bell.ring();
        pushed.expect("a sane ring")
    }

    /// Takes the completions of a source: their chunks.
    pub fn completed(&mut self, source: SourceSlot) -> Vec<u32> {
        let told = self.outcomes(source);
        told.into_iter().map(|(chunk, _)| chunk).collect()
    }

    /// The same with what became of them.
    pub fn outcomes(&mut self, source: SourceSlot) -> Vec<(u32, u32)> {
        let completions = &mut self.sources[source.0].1;
        let taken = std::iter::from_fn(|| completions.pop().expect("a sane ring"));
        let taken = taken.map(|told| (told.chunk, told.outcome)).collect();
        completions.release();
        taken
    }

    /// Takes and releases what has come to a sink: how many.
    pub fn receive(&mut self, sink: SinkSlot) -> usize {
        let (rx, release) = &mut self.sinks[sink.0];
        let mut taken = 0;
        while let Some(descriptor) = rx.pop().expect("a sane ring") {
            rx.release();
            assert!(release.push(descriptor.chunk).expect("a sane ring"));
            taken += 1;
        }
        if taken > 0 {
            self.bell.ring();
        }
        taken
    }

    /// Wants to be woken by a sink.
    pub fn arm(&self, sink: SinkSlot) {
        let bell = SinkBell::attach(&self.arena, self.blocks[sink.0].bell()).expect("within");
        assert!(bell.arm_fd(|| false));
    }

    /// Whether nobody has been woken since.
    pub fn is_armed(&self, sink: SinkSlot) -> bool {
        let bell = self
            .arena
            .atomic_u32(self.blocks[sink.0].bell())
            .expect("within");
        bell.load(Ordering::SeqCst) != 0
    }

    fn read(&self, block: &SinkBlock, counter: SinkCounter) -> u64 {
        let word = self.arena.atomic_u64(block.counter(counter));
        word.expect("within").load(Ordering::Relaxed)
    }

    /// What a sink has lost.
    pub fn lost(&self, sink: SinkSlot) -> u64 {
        self.read(&self.blocks[sink.0], SinkCounter::Lost)
    }

    /// Messages of which its sinks are told what became of them.
    fn counted(&self) -> u64 {
        let all = [
            SinkCounter::Delivered,
            SinkCounter::DroppedFull,
            SinkCounter::DroppedMemory,
            SinkCounter::Lost,
        ];
        let of_sink = |block| {
            all.map(|counter| self.read(block, counter))
                .iter()
                .sum::<u64>()
        };
        self.blocks.iter().map(of_sink).sum()
    }

    /// How many messages of a source the sinks are said to have.
    pub fn given(&self, source: SourceSlot) -> u64 {
        let word = self.arena.atomic_u64(self.source_blocks[source.0].given());
        word.expect("within").load(Ordering::Acquire)
    }

    /// What has come to a sink.
    pub fn waiting(&mut self, sink: SinkSlot) -> u32 {
        self.sinks[sink.0].0.available().expect("a sane ring")
    }
}

#[test]
fn a_long_message_to_many_sinks_is_given_out_over_many_rounds_and_holds_up_nobody() {
    const SINKS: usize = 8;
    const LENGTH: u32 = 1 << 20;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut greedy = house.guest(1, 4 << 20, &no_limits());
    let source = greedy.source(5);
    let mut crowd = house.guest(1, 16 << 20, &no_limits());
    let sinks: Vec<SinkSlot> = (0..SINKS).map(|_| crowd.sink(5, 4)).collect();
    let mut victim = house.guest(2, 1 << 16, &no_limits());
    let (own, own_sink) = (victim.source(6), victim.sink(6, 64));
    house.settle();
    assert!(greedy.emit(source, 0, LENGTH));
    let mut rounds = 0;
    while greedy.completed(source).is_empty() {
        assert!(victim.emit(own, rounds % 2, 3));
        house.lane.poll();
        assert_eq!(victim.receive(own_sink), 1, "held up in round {rounds}");
        house.lane.poll();
        assert_eq!(victim.completed(own).len(), 1);
        rounds += 1;
    }
    let copied = i64::from(LENGTH) * SINKS as i64;
    let least = copied / (2 * fair::QUANTUM) / 2;
    assert!(
        i64::from(rounds) >= least,
        "{rounds} rounds for {copied} bytes"
    );
    house.lane.poll();
    for sink in sinks {
        assert_eq!(crowd.waiting(sink), 1);
    }
}

/// In how many rounds a source beside others gets one message out, at most, and how many it got out while those had `work`.
fn beside(
    house: &mut House,
    guest: &mut Guest,
    (source, sink): (SourceSlot, SinkSlot),
    mut work: impl FnMut(&mut Guest) -> bool,
) -> (u32, u32) {
    let (mut longest, mut waited, mut out) = (0, 0, 0);
    assert!(guest.emit(source, 0, 3));
    while work(guest) {
        house.lane.poll();
        waited += 1;
        assert!(waited < 1000, "it starves after {out} messages");
        if guest.receive(sink) == 1 {
            longest = longest.max(waited);
            (waited, out) = (0, out + 1);
            until_done(1, || {
                house.lane.poll();
                guest.completed(source).len()
            });
            assert!(guest.emit(source, out % 64, 3));
        }
    }
    (longest, out)
}

#[test]
fn a_session_gets_its_turns_beside_another_of_its_tenant_with_long_messages_to_many() {
    const SINKS: usize = 8;
    const LONG: u32 = 8;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut greedy = house.guest(1, 16 << 20, &no_limits());
    let long = greedy.source(5);
    let mut crowd = house.guest(1, 96 << 20, &no_limits());
    (0..SINKS).for_each(|_| _ = crowd.sink(5, 64));
    let mut modest = house.guest(1, 1 << 16, &no_limits());
    let own = (modest.source(6), modest.sink(6, 64));
    house.settle();
    for message in 0..LONG {
        assert!(greedy.emit(long, 256 + message * 256, 1 << 20));
    }
    let mut done = 0;
    let (longest, out) = beside(&mut house, &mut modest, own, |_| {
        done += greedy.completed(long).len();
        done < LONG as usize
    });
    assert!(longest <= 3, "{longest} rounds for one message");
    assert!(out >= 8 * LONG, "{out} messages beside {LONG} long ones");
}

#[test]
fn a_source_gets_its_turns_beside_another_of_its_session_with_long_messages_to_many() {
    const SINKS: usize = 8;
    const LONG: u32 = 8;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut guest = house.guest(1, 16 << 20, &no_limits());
    let long = guest.source(5);
    let mut crowd = house.guest(1, 96 << 20, &no_limits());
    (0..SINKS).for_each(|_| _ = crowd.sink(5, 64));
    let own = (guest.source(6), guest.sink(6, 64));
    house.settle();
    for message in 0..LONG {
        assert!(guest.emit(long, 256 + message * 256, 1 << 20));
    }
    let mut done = 0;
    let (longest, out) = beside(&mut house, &mut guest, own, |guest| {
        done += guest.completed(long).len();
        done < LONG as usize
    });
    assert!(longest <= 3, "{longest} rounds for one message");
    assert!(out >= 8 * LONG, "{out} messages beside {LONG} long ones");
}

#[test]
fn a_sink_that_holds_very_many_messages_is_closed_over_several_rounds() {
    const HELD: u32 = 4096;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut reader = house.guest(1, 64 << 20, &no_limits());
    let (many, one) = (reader.sink(5, HELD), reader.sink(6, 4));
    let mut writer = house.guest(1, 1 << 20, &no_limits());
    let sources = [5, 6].map(|channel| writer.source(channel));
    house.settle();
    for chunk in 0..HELD {
        assert!(writer.emit(sources[0], chunk % 64, 3));
        until_done(1, || {
            house.lane.poll();
            writer.completed(sources[0]).len()
        });
    }
    assert!(writer.emit(sources[1], 64, 3));
    until_done(1, || {
        house.lane.poll();
        reader.waiting(one) as usize
    });
    let held = |house: &House| {
        let session = house.lane.by_session[&reader.id];
        let session = house.lane.state.tenants.sessions.get(session);
        session.expect("there").received_bytes()
    };
    assert_eq!(held(&house), (HELD as usize + 1) * takt_shm::CHUNK);
    let close = |house: &House, sink| {
        let session = reader.id;
        house.handle.send(Command::CloseSink { session, sink });
    };
    close(&house, one);
    house.lane.poll();
    let looks = house.lane.state.looks;
    assert!(looks < 64, "{looks} looks for one message");
    assert_eq!(held(&house), HELD as usize * takt_shm::CHUNK);
    close(&house, many);
    let mut rounds = 0;
    while house.lane.mailbox.full.load(Ordering::Acquire) {
        house.lane.poll();
        let looks = house.lane.state.looks;
        assert!(looks <= MOST_LOOKS + 64, "{looks} looks in a round");
        rounds += 1;
    }
    assert!(rounds > 1);
    assert!(house.lane.state.closing.is_empty());
    assert_eq!(held(&house), 0);
}

#[test]
fn messages_do_not_wait_until_closed_sinks_hold_nothing() {
    const SINKS: usize = 64;
    const HELD: u32 = 2048;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut reader = house.guest(1, 64 << 20, &no_limits());
    let sinks: Vec<SinkSlot> = (0..SINKS).map(|_| reader.sink(5, HELD)).collect();
    let mut writer = house.guest(1, 1 << 20, &no_limits());
    let source = writer.source(5);
    let mut other = house.guest(2, 1 << 16, &no_limits());
    let own = other.source(6);
    house.settle();
    for chunk in 0..HELD {
        assert!(writer.emit(source, chunk % 64, 3));
        until_done(1, || {
            house.lane.poll();
            writer.completed(source).len()
        });
    }
    let session = reader.id;
    for sink in sinks {
        house.handle.send(Command::CloseSink { session, sink });
    }
    assert!(other.emit(own, 0, 3));
    let mut rounds = 0;
    until_done(1, || {
        rounds += 1;
        house.lane.poll();
        other.completed(own).len()
    });
    assert!(rounds <= 4, "after {rounds} rounds");
    assert!(!house.lane.state.closing.is_empty());
    let most = 2 * SINKS;
    rounds_of_commands(&mut house.lane, most);
    assert!(house.lane.state.closing.is_empty());
}

#[test]
fn messages_do_not_wait_until_silent_peers_are_entered_nowhere() {
    const PEERS: u32 = 32;
    const CHANNELS: u64 = 512;
    let (mut house, other) = House::at_network(16);
    for peer in 0..PEERS {
        house.add_remote(10 + peer, other.as_ref());
        let first = 100 + u64::from(peer) * CHANNELS;
        let all = Vec::from_iter(first..first + CHANNELS);
        (all.chunks(128)).for_each(|part| house.subscribe(10 + peer, part.to_vec()));
    }
    let mut guest = house.guest(1, 1 << 16, &no_limits());
    let source = guest.source(6);
    house.settle();
    for peer in 0..PEERS {
        let remote = RemoteId(u64::from(10 + peer));
        house.handle.send(Command::WantNothing { remote });
    }
    assert!(guest.emit(source, 0, 3));
    let mut rounds = 0;
    until_done(1, || {
        rounds += 1;
        house.lane.poll();
        guest.completed(source).len()
    });
    assert!(rounds <= 4, "after {rounds} rounds");
    assert!(!house.lane.changing.is_empty());
    house.settle();
    assert!(house.lane.state.channels.find(100).is_none());
}

#[test]
fn what_is_looked_at_for_the_sinks_of_a_session_that_leaves_counts() {
    const SINKS: usize = 100;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut reader = house.guest(1, 1 << 20, &no_limits());
    for channel in [5, 6] {
        for _ in 0..SINKS {
            reader.sink(channel, 2);
        }
    }
    house.settle();
    house.handle.send(Command::LeaveSession(reader.id));
    house.lane.poll();
    let looks = house.lane.state.looks;
    assert!(looks >= 2 * SINKS, "{looks} looks");
}

#[test]
fn messages_that_are_being_put_together_for_a_closed_sink_count() {
    const SINKS: usize = 100;
    // As many as a tenant has places for.
    const UNFINISHED: u32 = 32;
    let (mut house, other) = House::at_network(512);
    let mut reader = house.guest(1, 64 << 20, &no_limits());
    let sinks: Vec<SinkSlot> = (0..SINKS).map(|_| reader.sink(5, 128)).collect();
    let mut writer = Writer::new(&house, other);
    house.settle();
    for source in 0..UNFINISHED {
        writer.fragment_of(5, source, 0, 0, 2);
    }
    while house.lane.poll() {}
    let (session, sink) = (reader.id, sinks[0]);
    house.handle.send(Command::CloseSink { session, sink });
    house.lane.poll();
    let looks = house.lane.state.looks;
    assert!(looks >= UNFINISHED as usize * SINKS, "{looks} looks");
}

#[test]
fn what_a_closed_sink_held_by_reference_counts() {
    const HELD: usize = 32;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut guest = house.guest(1, 1 << 20, &no_limits());
    let (source, sink) = (guest.source(5), guest.sink(5, 64));
    house.settle();
    (0..HELD).for_each(|chunk| assert!(guest.emit(source, chunk as u32, 3)));
    while house.lane.poll() {}
    assert_eq!(guest.waiting(sink) as usize, HELD);
    let session = guest.id;
    house.handle.send(Command::CloseSink { session, sink });
    house.lane.poll();
    let looks = house.lane.state.looks;
    assert!(looks >= HELD, "{looks} looks");
}

#[test]
fn what_was_kept_of_a_closed_sink_is_free_soon_after_what_sources_had_emitted_is_taken() {
    const REGION: usize = 1 << 20;
    const HELD: usize = REGION / 2 / takt_shm::CHUNK;
    let clock = Arc::new(Set::default());
    let mut house = House::new(Vec::new(), clock.clone());
    // Its own messages are held back by its rate.
    let rates = Arc::new(Rates::new(&Policy {
        messages_per_second: 1,
        ..Policy::default()
    }));
    let mut reader = house.guest(1, REGION, &rates);
    let (many, next) = (reader.sink(5, HELD as u32), reader.sink(6, 4));
    let own = reader.source(7);
    let mut writer = house.guest(2, 2 * REGION, &no_limits());
    let sources = [5, 6].map(|channel| writer.source(channel));
    house.settle();
    for chunk in 0..HELD {
        assert!(writer.emit(sources[0], chunk as u32 % 64, 3));
        until_done(1, || {
            house.lane.poll();
            writer.completed(sources[0]).len()
        });
    }
    assert_eq!(reader.waiting(many) as usize, HELD);
    let mut emitted = 0;
    while {
        assert!(reader.emit(own, emitted, 3));
        while house.lane.poll() {}
        emitted += 1;
        reader.completed(own).len() == 1
    } {}
    let (session, sink) = (reader.id, many);
    house.handle.send(Command::CloseSink { session, sink });
    house.settle();
    let held = |house: &House| {
        let session = house.lane.by_session[&reader.id];
        let session = house.lane.state.tenants.sessions.get(session);
        session.expect("there").received_bytes()
    };
    assert_eq!(held(&house), REGION / 2, "a source may have emitted it");
    clock.0.fetch_add(10_000_000_000, Ordering::Relaxed);
    while house.lane.poll() {}
    house.settle();
    assert_eq!(held(&house), 0);
    // It needs all of the memory.
    assert!(writer.emit(sources[1], 64, REGION as u32));
    while house.lane.poll() {}
    assert_eq!(reader.waiting(next), 1);
}

#[test]
fn what_was_copied_of_a_message_whose_sender_ends_is_given_back() {
    const LENGTH: u32 = 1 << 20;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut crowd = house.guest(1, 1 << 20, &no_limits());
    let sink = crowd.sink(5, 4);
    for _ in 0..4 {
        let mut greedy = house.guest(1, 4 << 20, &no_limits());
        let source = greedy.source(5);
        house.settle();
        assert!(greedy.emit(source, 0, LENGTH));
        house.lane.poll();
        assert_eq!(crowd.waiting(sink), 0, "takes several rounds");
        house.handle.send(Command::RemoveSession(greedy.id));
        house.settle();
    }
    // All of the memory of the sink's session is there: it takes a message that needs it all.
    let mut honest = house.guest(1, 4 << 20, &no_limits());
    let source = honest.source(5);
    house.settle();
    assert!(honest.emit(source, 0, LENGTH));
    while honest.completed(source).is_empty() {
        house.lane.poll();
    }
    house.lane.poll();
    assert_eq!(crowd.receive(sink), 1);
}

#[test]
fn sinks_that_come_and_go_meanwhile_neither_end_a_long_message_nor_get_half_of_it() {
    const LENGTH: u32 = 1 << 20;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut sender = house.guest(1, 4 << 20, &no_limits());
    let source = sender.source(5);
    let mut crowd = house.guest(1, 16 << 20, &no_limits());
    let sinks: Vec<SinkSlot> = (0..4).map(|_| crowd.sink(5, 4)).collect();
    house.settle();
    assert!(sender.emit(source, 0, LENGTH));
    for _ in 0..3 {
        house.lane.poll();
    }
    // The first is being copied to; it goes, and so does one that is still to get it. Another comes.
    for sink in [sinks[0], sinks[2]] {
        let session = crowd.id;
        house.handle.send(Command::CloseSink { session, sink });
    }
    let late = crowd.sink(5, 4);
    house.settle();
    while sender.completed(source).is_empty() {
        house.lane.poll();
    }
    house.lane.poll();
    let got: Vec<u32> = sinks.into_iter().map(|sink| crowd.waiting(sink)).collect();
    assert_eq!(got, [0, 1, 0, 1]);
    assert_eq!(crowd.waiting(late), 0);
}

#[test]
fn thousands_of_sinks_that_never_consume_cost_their_own_tenant() {
    const SINKS: usize = 2000;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut greedy = house.guest(1, 1 << 20, &no_limits());
    let source = greedy.source(5);
    let mut crowd = house.guest(1, 1 << 20, &no_limits());
    (0..SINKS).for_each(|_| {
        crowd.sink(5, 2);
    });
    let mut victim = house.guest(2, 1 << 16, &no_limits());
    let (own, own_sink) = (victim.source(6), victim.sink(6, 64));
    house.settle();
    let counters = |house: &House| {
        let channel = house.lane.state.channels.find(5).expect("in use");
        let channel = house.lane.state.channels.get(channel).expect("in use");
        let counted = channel.counters.read();
        counted.delivered + counted.dropped_full + counted.dropped_memory
    };
    (0..60).for_each(|chunk| assert!(greedy.emit(source, chunk, 100)));
    let mut before = counters(&house);
    for round in 0..200 {
        for chunk in greedy.completed(source) {
            greedy.emit(source, chunk, 100);
        }
        assert!(victim.emit(own, round % 2, 3));
        house.lane.poll();
        let now = counters(&house);
        let most = (fair::QUANTUM / fair::COPY) as u64;
        assert!(now - before <= most, "{} copies in one round", now - before);
        assert_eq!(victim.receive(own_sink), 1, "held up in round {round}");
        house.lane.poll();
        before = counters(&house);
        assert_eq!(victim.completed(own).len(), 1);
    }
    assert!(before > 20_000, "the greedy one works on: {before}");
}

/// A lane with a port of so few frames, and whom it sends to.
fn with_frames(frames: usize) -> (House, Box<dyn Port>) {
    let (house, other) = House::at_network(frames);
    house.add_remote(7, other.as_ref());
    (house, other)
}

/// Takes what has arrived: how many messages of a channel, or fragments of them.
fn arrived(port: &mut dyn Port, channel: u64) -> usize {
    let mut count = 0;
    port.receive(usize::MAX, &mut |datagram| {
        let (header, body) = DatagramHeader::parse(datagram.payload).expect("a datagram");
        let records = header.records(body.records);
        let of = |record: &takt_wire::channel::Record<'_>| record.header.channel == channel;
        count += records.map(|r| r.expect("a record")).filter(of).count();
    });
    count
}

#[test]
fn frames_of_a_port_are_shared_whoever_came_first_and_however_many_sources_it_has() {
    let (mut house, mut other) = with_frames(16);
    house.subscribe(7, vec![5, 6]);
    let mut greedy = house.guest(1, 64 << 20, &no_limits());
    let sources: Vec<SourceSlot> = (0..40).map(|_| greedy.source(5)).collect();
    let mut victim = house.guest(2, 1 << 20, &no_limits());
    let own = victim.source(6);
    house.settle();
    for (at, source) in sources.iter().enumerate() {
        assert!(greedy.emit(*source, at as u32 * 4096, 1 << 20));
    }
    let (mut sent, mut got, mut rounds) = (0, 0, 0);
    let mut free: Vec<u32> = (0..60).map(|at| at * 4).collect();
    while got < 1024 {
        while sent < 1024
            && let Some(chunk) = free.pop()
        {
            assert!(victim.emit(own, chunk, 1000));
            sent += 1;
        }
        house.lane.poll();
        got += arrived(other.as_mut(), 6);
        free.extend(victim.completed(own));
        rounds += 1;
        assert!(rounds < 1024, "{got} of the victim's after {rounds} rounds");
    }
    // 1,024 frames at 16 in a round, of which it gets at least half but for a turn of the other.
    assert!(rounds <= 2 * 1024 / 16 + 20, "{rounds} rounds");
}

#[test]
fn a_subscriber_elsewhere_that_comes_or_goes_does_not_end_a_long_message() {
    let (mut house, mut other) = with_frames(16);
    let subscribe = |house: &House, remote, add, remove| {
        house.handle.send(Command::Subscriptions {
            remote,
            add,
            remove,
        });
    };
    subscribe(&house, RemoteId(7), vec![5], vec![]);
    let mut sender = house.guest(1, 4 << 20, &no_limits());
    let source = sender.source(5);
    house.settle();
    assert!(sender.emit(source, 0, 1 << 20));
    let mut fragments = 0;
    for round in 0.. {
        house.lane.poll();
        fragments += arrived(other.as_mut(), 5);
        if !sender.completed(source).is_empty() {
            break;
        }
        if round == 2 {
            house.handle.send(Command::AddRemote {
                id: RemoteId(8),
                incarnation: 80,
                label: 80,
                protection: Protection::None,
                addresses: vec![[192, 0, 2, 3].into()],
                endpoints: vec![Some(other.local())],
                takes: Vec::new(),
            });
            subscribe(&house, RemoteId(8), vec![5], vec![]);
        }
        if round == 4 {
            subscribe(&house, RemoteId(8), vec![], vec![5]);
        }
    }
    house.lane.poll();
    fragments += arrived(other.as_mut(), 5);
    let stride = 1 << 20;
    assert!(fragments >= stride / 1400, "{fragments} fragments");
}

/// A clock that stands until it is set.
#[derive(Debug, Default)]
struct Set(AtomicI64);

impl Clock for Set {
    fn now(&self) -> TaiTime {
        TaiTime::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

#[test]
fn the_sessions_of_a_tenant_share_its_rate() {
    let clock = Arc::new(Set::default());
    let mut house = House::new(Vec::new(), clock.clone());
    let rates = Arc::new(Rates::new(&Policy {
        messages_per_second: 1000,
        ..Policy::default()
    }));
    let mut guests: Vec<Guest> = (0..5).map(|_| house.guest(1, 1 << 16, &rates)).collect();
    for guest in &mut guests {
        guest.source(5);
    }
    house.settle();
    for guest in &mut guests {
        (0..60).for_each(|chunk| assert!(guest.emit(SourceSlot(0), chunk, 3)));
    }
    let mut passed = [0; 5];
    for _ in 0..1000 {
        clock.0.fetch_add(1_000_000, Ordering::Relaxed);
        house.lane.poll();
        for (at, guest) in guests.iter_mut().enumerate() {
            for chunk in guest.completed(SourceSlot(0)) {
                passed[at] += 1;
                guest.emit(SourceSlot(0), chunk, 3);
            }
        }
    }
    let all: usize = passed.iter().sum();
    assert!((990..=1020).contains(&all), "{passed:?}");
    assert!(passed.iter().all(|one| *one >= 150), "{passed:?}");
    // What is held back leaves as soon as it may, without another doorbell than those that have rung.
    house.lane.poll();
    assert!(house.lane.park().is_some_and(|sleep| sleep.is_some()));
    house.lane.unpark();
    rates.set(&Policy::default());
    house.lane.poll();
    let passed: usize = guests
        .iter_mut()
        .map(|guest| guest.completed(SourceSlot(0)).len())
        .sum();
    assert!(passed > 0);
}

#[test]
fn the_sources_of_a_session_share_its_rate() {
    let clock = Arc::new(Set::default());
    let mut house = House::new(Vec::new(), clock.clone());
    let rates = Arc::new(Rates::new(&Policy {
        messages_per_second: 1000,
        ..Policy::default()
    }));
    let mut guest = house.guest(1, 1 << 16, &rates);
    let sources = [5, 6, 7].map(|channel| guest.source(channel));
    house.settle();
    // The third has nothing to send.
    for (at, source) in sources[..2].iter().enumerate() {
        (0..20).for_each(|chunk| assert!(guest.emit(*source, at as u32 * 20 + chunk, 3)));
    }
    let mut passed = [0; 2];
    for _ in 0..1000 {
        clock.0.fetch_add(1_000_000, Ordering::Relaxed);
        house.lane.poll();
        for (at, source) in sources[..2].iter().enumerate() {
            for chunk in guest.completed(*source) {
                passed[at] += 1;
                assert!(guest.emit(*source, chunk, 3));
            }
        }
    }
    let all: usize = passed.iter().sum();
    assert!((990..=1020).contains(&all), "{passed:?}");
    assert!(passed.iter().all(|one| *one >= 450), "{passed:?}");
}

#[test]
fn who_rings_with_thousands_of_sources_pays_for_the_looks_at_them() {
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut ringers: Vec<Guest> = (0..16)
        .map(|_| house.guest(1, 1 << 16, &no_limits()))
        .collect();
    for guest in &mut ringers {
        (0..256).for_each(|_| {
            guest.source(6);
        });
    }
    let mut victim = house.guest(2, 1 << 20, &no_limits());
    victim.source(5);
    house.settle();
    let peeked = |house: &House| -> i64 {
        let sessions = house.lane.state.tenants.sessions.iter();
        sessions.map(|(_, session)| session.peeked as i64).sum()
    };
    (0..64).for_each(|at| assert!(victim.emit(SourceSlot(0), at * 16, 4096)));
    let (before, first) = (peeked(&house), house.lane.state.tenants.turns.round());
    let mut sent = 0;
    for _ in 0..300 {
        ringers.iter().for_each(|guest| guest.bell.ring());
        house.lane.poll();
        for chunk in victim.completed(SourceSlot(0)) {
            sent += 1;
            assert!(victim.emit(SourceSlot(0), chunk, 4096));
        }
    }
    let rounds = house.lane.state.tenants.turns.round() - first;
    assert!(sent >= 64 * 100, "the victim sent {sent} messages");
    let cost = (peeked(&house) - before) * fair::PEEK;
    // A quantum in each round, and what it may owe.
    let most = (rounds as i64 + 10) * fair::QUANTUM;
    assert!(cost <= most, "{cost} of {most} in {rounds} rounds");
    // They are heard, nevertheless: each source in its turn.
    for guest in &mut ringers {
        assert!(guest.emit_in(7, SourceSlot(255), 0, 8));
    }
    let mut served = 0;
    takt_testing::until_true("all have been served", || {
        ringers.iter().for_each(|guest| guest.bell.ring());
        house.lane.poll();
        let completed = ringers
            .iter_mut()
            .map(|guest| guest.completed(SourceSlot(255)).len());
        served += completed.sum::<usize>();
        served == ringers.len()
    });
}

#[test]
fn after_the_last_number_comes_the_first() {
    let (mut house, mut other) = House::at_network(16);
    house.add_remote(7, other.as_ref());
    house.subscribe(7, vec![5]);
    let mut guest = house.guest(1, 1 << 16, &no_limits());
    let source = guest.source_from(5, u64::MAX);
    let sink = guest.sink(5, 16);
    house.settle();
    (0..2).for_each(|chunk| assert!(guest.emit(source, chunk, 8)));
    while house.lane.poll() {}
    let (rx, _) = &mut guest.sinks[sink.0];
    let came = std::iter::from_fn(|| rx.pop().expect("a sane ring"));
    let came: Vec<u64> = came.map(|descriptor| descriptor.sequence).collect();
    assert_eq!(came, [u64::MAX, 0]);
    assert_eq!(arrived(other.as_mut(), 5), 2);
}

/// What a peer sends.
struct Writer {
    port: Box<dyn Port>,
    to: PeerHandle,
    sequences: HashMap<u64, u32>,
    sent: u64,
    /// Bytes of a fragment.
    stride: u16,
}

impl Writer {
    /// A peer of the house, with the incarnation 7.
    fn new(house: &House, mut port: Box<dyn Port>) -> Self {
        house.add_remote(7, port.as_ref());
        let lane = house.lane.ports[0].port.local();
        let to = port.connect(lane).expect("known");
        let sequences = HashMap::new();
        Self {
            port,
            to,
            sequences,
            sent: 0,
            stride: 1024,
        }
    }

    fn next(&mut self, channel: u64) -> u32 {
        let next = self.sequences.entry(channel).or_default();
        *next += 1;
        *next - 1
    }

    /// Sends a datagram with these records. They reach the lane, or its port's queue has overflowed.
    fn send(&mut self, records: &[RecordHeader]) {
        let frame = self.port.reserve(self.to).expect("a frame");
        let mut cursor = DatagramCursor::new();
        let buf = self.port.payload(&frame);
        for record in records {
            cursor.push(buf, record).expect("it fits").fill(7);
        }
        let length = cursor.finish(buf, Protection::None, 7, 0, self.sent);
        self.port
            .commit(frame, length, TrafficClass::BEST_EFFORT, None);
        assert!(self.port.flush());
        self.sent += 1;
    }

    /// A datagram with so many short messages of a channel.
    fn short(&mut self, channel: u64, count: usize) {
        let header = |sequence| RecordHeader {
            channel,
            source: channel as u32,
            sequence,
            message_length: 8,
            fragment_index: 0,
            fragment_stride: 0,
            class: TrafficClass::BEST_EFFORT,
            kind: Kind::Message,
        };
        let records: Vec<RecordHeader> = (0..count).map(|_| header(self.next(channel))).collect();
        self.send(&records);
    }

    /// A long message in so many fragments, a datagram each.
    fn long(&mut self, channel: u64, fragments: u32) {
        let sequence = self.next(channel);
        for fragment_index in 0..fragments {
            self.fragment(channel, sequence, fragment_index, fragments);
        }
    }

    /// One of so many fragments of a message.
    fn fragment(&mut self, channel: u64, sequence: u32, fragment_index: u32, fragments: u32) {
        let source = channel as u32;
        self.fragment_of(channel, source, sequence, fragment_index, fragments);
    }

    /// The same of this source.
    fn fragment_of(
        &mut self,
        channel: u64,
        source: u32,
        sequence: u32,
        fragment_index: u32,
        fragments: u32,
    ) {
        self.send(&[RecordHeader {
            channel,
            source,
            sequence,
            message_length: fragments * u32::from(self.stride),
            fragment_index,
            fragment_stride: self.stride,
            class: TrafficClass::BEST_EFFORT,
            kind: Kind::Message,
        }]);
    }
}

/// Thousands of sinks of one tenant, on channels that a peer floods, beside another tenant.
fn flood_of_many_sinks(
    flood: impl Fn(&mut Writer, u64),
    rounds: u32,
    through: impl FnOnce(Box<dyn Port>) -> Box<dyn Port>,
) {
    const CHANNELS: u64 = 8;
    const SINKS: usize = 256;
    const VICTIM: u64 = 50;
    let (mut house, other) = House::at_network_with(512, 1400, through);
    let crowds: Vec<Guest> = (0..CHANNELS)
        .map(|channel| {
            let mut crowd = house.guest(1, 4 << 20, &no_limits());
            (0..SINKS).for_each(|_| _ = crowd.sink(100 + channel, 2));
            crowd
        })
        .collect();
    let mut victim = house.guest(2, 1 << 20, &no_limits());
    let sink = victim.sink(VICTIM, 1024);
    let mut writer = Writer::new(&house, other);
    house.settle();
    let read = |house: &House| {
        let channels = &house.lane.state.channels;
        let all = (0..CHANNELS).map(|of| channels.get(channels.find(100 + of).expect("known")));
        let all = all.map(|channel| channel.expect("in use").counters.read());
        all.fold((0, 0), |(copies, lost), counted| {
            let here = counted.delivered + counted.dropped_full + counted.dropped_memory;
            (copies + here, lost + counted.lost)
        })
    };
    let (mut before, mut got) = (0, 0);
    for round in 0..rounds {
        flood(&mut writer, 100 + u64::from(round) % CHANNELS);
        writer.short(VICTIM, 1);
        house.lane.poll();
        got += victim.receive(sink);
        let (now, ..) = read(&house);
        let most = (tenants::MOST_BEHIND + 4 * fair::QUANTUM) / fair::COPY;
        assert!(
            now - before <= most as u64,
            "{} copies in round {round}",
            now - before
        );
        before = now;
    }
    // Once in all as much as a burst, and its part of each round: one message more than that may begin in each.
    let most = tenants::MOST_BEHIND + i64::from(rounds) * 2 * fair::QUANTUM;
    let copied = before as i64 * fair::COPY;
    assert!(copied <= most, "{copied} of {most} in all rounds");
    // What is for others was taken from the port all the time: its queue has not overflowed.
    takt_testing::until_true("all of the victim's has come", || {
        house.lane.poll();
        got += victim.receive(sink);
        got == rounds as usize
    });
    let channels = &house.lane.state.channels;
    let own = channels.find(VICTIM).and_then(|at| channels.get(at));
    assert_eq!(own.map(|channel| channel.counters.read().lost), Some(0));
    let (_, lost) = read(&house);
    assert!(lost > 0, "the flood was more than its tenant's part");
    // All is counted, at the sinks that it was for.
    let sent: u32 = (0..CHANNELS).map(|of| writer.sequences[&(100 + of)]).sum();
    takt_testing::until_true("the counters are shown", || {
        house.lane.poll();
        !house.lane.state.tenants.has_pending()
    });
    let counted: u64 = crowds.iter().map(Guest::counted).sum();
    assert_eq!(counted, u64::from(sent) * SINKS as u64);
}

#[test]
fn short_messages_for_thousands_of_sinks_cost_their_own_tenant() {
    let flood = |writer: &mut Writer, channel| (0..12).for_each(|_| writer.short(channel, 20));
    flood_of_many_sinks(flood, 400, |port| port);
}

#[test]
fn long_messages_for_thousands_of_sinks_cost_their_own_tenant() {
    flood_of_many_sinks(|writer, channel| writer.long(channel, 12), 400, |port| port);
}

#[test]
fn a_burst_for_many_sinks_reaches_all_of_them() {
    let (mut house, other) = House::at_network(512);
    let mut crowd = house.guest(1, 64 << 20, &no_limits());
    let sinks: Vec<SinkSlot> = (0..64).map(|_| crowd.sink(5, 256)).collect();
    let mut writer = Writer::new(&house, other);
    house.settle();
    (0..64).for_each(|_| writer.short(5, 3));
    while house.lane.poll() {}
    for sink in sinks {
        assert_eq!(crowd.receive(sink), 3 * 64);
    }
}

#[test]
fn a_port_that_gives_little_at_a_time_is_no_way_around_that() {
    let flood = |writer: &mut Writer, channel| (0..5).for_each(|_| writer.short(channel, 20));
    flood_of_many_sinks(flood, 400, |inner| {
        Box::new(Keeper {
            inner,
            class: TrafficClass::BEST_EFFORT,
            most: Arc::new(AtomicUsize::new(usize::MAX)),
            clock: Arc::default(),
            committed: Vec::new(),
            handed_over: HandedOver::default(),
            full: Arc::default(),
            at_once: 7,
        })
    });
}

/// A message in so many fragments of so many bytes is more than a lane does at once for all, and one round more than a part.
const LONG: u32 = (2 * tenants::MOST_BEHIND) as u32 / LONG_STRIDE as u32;
const LONG_STRIDE: u16 = 8192;

#[test]
fn one_tenant_gets_all_that_the_lane_can_do() {
    let (mut house, other) = House::at_network_with(LONG as usize + 64, 9000, |port| port);
    let mut only = house.guest(1, 64 << 20, &no_limits());
    let sinks = [only.sink(5, 8), only.sink(5, 8), only.sink(5, 8)];
    let mut writer = Writer::new(&house, other);
    house.settle();
    writer.stride = LONG_STRIDE;
    writer.long(5, LONG);
    while house.lane.poll() {}
    assert_eq!(sinks.map(|sink| only.receive(sink)), [1; 3]);
}

#[test]
fn one_sink_of_a_channel_gets_all_that_the_lane_can_do() {
    let (mut house, other) = House::at_network_with(LONG as usize + 64, 9000, |port| port);
    let mut guests = [1, 2].map(|tenant| house.guest(tenant, 32 << 20, &no_limits()));
    let sinks: Vec<SinkSlot> = guests.iter_mut().map(|guest| guest.sink(5, 8)).collect();
    let mut writer = Writer::new(&house, other);
    house.settle();
    writer.stride = LONG_STRIDE;
    writer.long(5, LONG);
    while house.lane.poll() {}
    for (guest, sink) in guests.iter_mut().zip(sinks) {
        assert_eq!(guest.receive(sink), 1);
    }
}

#[test]
fn what_comes_of_a_message_that_is_given_up_does_not_count_as_doubled() {
    let (mut house, other) = House::at_network(512);
    let mut guest = house.guest(1, 1 << 20, &no_limits());
    guest.sink(5, 2);
    let mut writer = Writer::new(&house, other);
    house.settle();
    writer.short(5, 2);
    // There is no room for it: it is given up at its first fragment.
    writer.long(5, 4);
    writer.sequences.insert(5, 0);
    writer.short(5, 1);
    while house.lane.poll() {}
    let counted = house.lane.state.counters.read();
    assert_eq!((counted.rx_stale_fragments, counted.rx_duplicate), (3, 1));
}

#[test]
fn a_message_that_stays_unfinished_is_lost_once_to_each_sink() {
    let (mut house, other) = House::at_network(512);
    let mut crowd = house.guest(1, 64 << 20, &no_limits());
    (0..128).for_each(|_| _ = crowd.sink(5, 8));
    let mut one = house.guest(2, 32 << 20, &no_limits());
    let sink = one.sink(5, 8);
    let mut writer = Writer::new(&house, other);
    house.settle();
    // It is given up for the tenant with many sinks, and then its end does not come.
    let sequence = writer.next(5);
    for fragment_index in 0..200 {
        writer.fragment(5, sequence, fragment_index, 300);
    }
    while house.lane.poll() {}
    // The next one has all.
    writer.long(5, 2);
    takt_testing::until_true("the next one is there, and the counters", || {
        house.lane.poll();
        one.waiting(sink) == 1 && !house.lane.state.tenants.has_pending()
    });
    let counted = house.counted(5);
    // Of two messages each sink knows what became of them; the channel counts one as lost.
    assert_eq!((crowd.counted(), one.counted()), (2 * 128, 2));
    assert_eq!(counted.lost, 1, "{counted:?}");
}

#[test]
fn a_message_that_is_left_out_for_several_tenants_is_lost_once() {
    const SENT: u32 = 400;
    let (mut house, other) = House::at_network(512);
    let mut crowds = [1, 2].map(|tenant| house.guest(tenant, 4 << 20, &no_limits()));
    let sinks = crowds
        .each_mut()
        .map(|crowd| Vec::from_iter((0..128).map(|_| crowd.sink(5, 2))));
    let mut writer = Writer::new(&house, other);
    house.settle();
    // At once: a lane that had all that came before would not be behind.
    (0..SENT).for_each(|_| writer.short(5, 1));
    while house.lane.poll() {}
    takt_testing::until_true("the counters are shown", || {
        house.lane.poll();
        !house.lane.state.tenants.has_pending()
    });
    let counted = house.counted(5);
    let lost = [0, 1].map(|at| crowds[at].lost(sinks[at][0]));
    assert!(
        lost.iter().all(|lost| *lost > u64::from(SENT) / 2),
        "{lost:?}"
    );
    assert!(counted.lost <= u64::from(SENT), "{lost:?} {counted:?}");
    assert!(
        lost.iter().all(|lost| *lost <= counted.lost),
        "{lost:?} {counted:?}"
    );
}

#[test]
fn what_a_scheduler_refuses_was_not_sent() {
    let (mut house, mut other) = House::at_network(64);
    house.add_remote(70, other.as_ref());
    house.subscribe(70, vec![5]);
    let mut guest = house.guest(1, 1 << 16, &no_limits());
    let source = guest.source(5);
    house.settle();
    // Two minutes ahead: further than a message may wait.
    assert!(guest.emit_at(120_000_000_000, 5, source, 0));
    while house.lane.poll() {}
    let refused = Outcome::NotScheduled as u32;
    assert_eq!(guest.outcomes(source), [(0, refused)]);
    assert_eq!(house.counted(5).sent, 0);
    assert!(guest.emit_in(5, source, 1, 3));
    while house.lane.poll() {}
    assert_eq!(house.counted(5).sent, 1);
    assert_eq!(arrived(other.as_mut(), 5), 1);
}

#[test]
fn what_a_session_hands_back_of_its_own_is_paid_for_and_holds_up_nobody() {
    const SINKS: usize = 128;
    const SOURCES: usize = 8;
    // As many of each source's as sinks may have by reference.
    const OF_EACH: usize = 32;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut greedy = house.guest(1, 1 << 20, &no_limits());
    let sinks = Vec::from_iter((0..SINKS).map(|_| greedy.sink(5, 256)));
    let sources = Vec::from_iter((0..SOURCES).map(|_| greedy.source(5)));
    let mut victim = house.guest(2, 1 << 16, &no_limits());
    let (own, own_sink) = (victim.source(6), victim.sink(6, 64));
    house.settle();
    let held = |house: &House| {
        let session = house.lane.by_session[&greedy.id];
        let session = house.lane.state.tenants.sessions.get(session);
        session.expect("there").own()
    };
    let all = SINKS * SOURCES * OF_EACH;
    for (at, source) in sources.iter().enumerate() {
        for number in 0..OF_EACH {
            let chunk = (at * OF_EACH + number) as u32;
            let pushed = greedy.sources[source.0].0.push(TxDescriptor {
                chunk,
                length: 3,
                ..TxDescriptor::default()
            });
            assert!(pushed.expect("a sane ring"));
        }
    }
    greedy.bell.ring();
    until_done(all, || {
        house.lane.poll();
        held(&house)
    });
    while house.lane.poll() {}
    for sink in sinks {
        let (rx, release) = &mut greedy.sinks[sink.0];
        let mut taken = Vec::new();
        while let Some(descriptor) = rx.pop().expect("a sane ring") {
            taken.push(descriptor.chunk);
        }
        rx.release();
        for chunk in taken.into_iter().rev() {
            assert!(release.push(chunk).expect("a sane ring"));
        }
    }
    greedy.bell.ring();
    assert!(victim.emit(own, 0, 3));
    let mut before = all;
    until_done(0, || {
        house.lane.poll();
        let now = held(&house);
        let taken = (before - now) as i64;
        assert!(
            taken * fair::LOOK <= 2 * fair::QUANTUM,
            "{taken} in a round"
        );
        before = now;
        now
    });
    while house.lane.poll() {}
    assert_eq!(victim.receive(own_sink), 1);
    let completed = sources.iter().map(|source| greedy.completed(*source).len());
    assert_eq!(completed.sum::<usize>(), SOURCES * OF_EACH);
}

/// A message with it breaks the protocol.
const UNKNOWN_FLAG: u8 = 1 << 7;

#[test]
fn sessions_that_fail_together_are_ended_over_several_rounds() {
    const FAILING: usize = 32;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut failing = Vec::from_iter((0..FAILING).map(|_| house.guest(1, 1 << 16, &no_limits())));
    let sources = Vec::from_iter(failing.iter_mut().map(|guest| guest.source(5)));
    let mut honest = house.guest(2, 1 << 16, &no_limits());
    let (own, own_sink) = (honest.source(6), honest.sink(6, 64));
    house.settle();
    for (guest, source) in failing.iter_mut().zip(sources) {
        assert!(guest.emit_with(UNKNOWN_FLAG, 0, 0, source, 0));
    }
    let most = commands::MOST_LEFT / OF_SESSION;
    let mut there = FAILING + 1;
    let mut rounds = 0;
    until_done(1, || {
        assert!(honest.emit(own, rounds % 64, 3));
        house.lane.poll();
        rounds += 1;
        assert_eq!(honest.receive(own_sink), 1, "in round {rounds}");
        let now = house.lane.by_session.len();
        assert!(there - now <= most, "{} in round {rounds}", there - now);
        there = now;
        if there > 1 {
            assert!(house.lane.park().is_none(), "some are still to be ended");
        }
        there
    });
    assert!(rounds as usize >= FAILING / most);
}

#[test]
fn who_comes_in_the_place_of_a_session_that_is_still_to_be_ended_stays() {
    const FAILING: usize = 32;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut failing = Vec::from_iter((0..FAILING).map(|_| house.guest(1, 1 << 16, &no_limits())));
    let sources = Vec::from_iter(failing.iter_mut().map(|guest| guest.source(5)));
    house.settle();
    for (guest, source) in failing.iter_mut().zip(sources) {
        assert!(guest.emit_with(UNKNOWN_FLAG, 0, 0, source, 0));
    }
    house.lane.poll();
    // Its application leaves before its turn to be ended comes.
    let last = failing[FAILING - 1].id;
    let place = house.lane.by_session[&last];
    house.handle.send(Command::RemoveSession(last));
    let heir = house.guest(2, 1 << 16, &no_limits());
    assert_eq!(house.lane.by_session[&heir.id], place);
    assert!(house.lane.state.tenants.has_failed());
    until_done(1, || {
        house.lane.poll();
        house.lane.by_session.len()
    });
    assert!(house.lane.by_session.contains_key(&heir.id));
}

#[test]
fn who_asks_for_the_readers_of_a_source_has_the_sinks_looked_at_counted() {
    const SINKS: usize = 1024;
    // Fewer than a round takes of such as cost nothing.
    const REQUESTS: usize = 60;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut guest = house.guest(1, 1 << 16, &no_limits());
    let source = guest.source(5);
    (0..SINKS).for_each(|_| _ = guest.sink(5, 2));
    house.settle();
    let session = guest.id;
    for request in 0..REQUESTS as u32 {
        house.handle.send(Command::Readers {
            session,
            source,
            request,
        });
    }
    let rounds = rounds_of_commands(&mut house.lane, SINKS);
    assert!(rounds >= REQUESTS * SINKS / MOST_LOOKS, "{rounds} rounds");
}
