//! Lanes with reliable sources and sinks of them, on a network that loses, doubles, swaps and spoils, in virtual time.

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use proptest::prelude::*;
use takt_clock::Clock;
use takt_datapath::memory::{Faults, MemoryNetwork, MemoryNetworkConfig};
use takt_datapath::{
    ConnectError, Datagram, Datapath, Frame, PeerHandle, Port, PortCounters, PortRequest,
    ReserveError,
};
use takt_session::layout::{
    ArenaMap, Completion, HEADER_BYTES, LANE_DIRTY_OFFSET, LANE_STATE_OFFSET, Outcome, Release,
    RxDescriptor, SinkBlock, SourceBlock, TX_REGION, TxDescriptor,
};
use takt_session::{ChannelId, Reliability, SinkMode, SlowSinks};
use takt_shm::{
    Arena, Buddy, CHUNK, Consumer, LaneBell, LaneBellHost, NewestReader, Producer, RingLayout,
    SharedSlice,
};
use takt_time::{TaiTime, TrafficClass};
use takt_wire::channel::{Protection, RecordHeader};

use super::super::fair;
use super::super::session::{LaneSession, SessionParts};
use super::super::tenants;
use super::super::{Command, EventSender, Lane, LaneHandle, LanePort, Limits, SourceTarget};
use super::*;
use crate::counters::ChannelReading;
use crate::ids::{RemoteId, SessionId};
use crate::policy::{Policy, Rates};
use crate::slots::{InboundSlot, OutboundSlot, SinkSlot, SourceSlot};

const CHANNEL: ChannelId = ChannelId(5);
/// Virtual time between two rounds.
const STEP_NS: i64 = 5_000;
const DEPTH: u32 = 64;

const RELIABLE: Reliability = Reliability::Reliable {
    deadline: None,
    slow_sinks: SlowSinks::Wait,
};

/// Time, and what the clock was stepped by.
#[derive(Debug, Default)]
struct Virtual(AtomicI64, AtomicI64);

impl Clock for Virtual {
    fn now(&self) -> TaiTime {
        TaiTime::from_nanos(self.steady_ns() + self.1.load(Ordering::Relaxed))
    }

    /// Who waits for an instant by reading it sees it come.
    fn steady_ns(&self) -> i64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// An application with a source and a sink.
struct App {
    id: SessionId,
    arena: Arc<Arena>,
    map: ArenaMap,
    bell: LaneBell,
    source: SourceBlock,
    sink: SinkBlock,
    tx: Producer<TxDescriptor>,
    completions: Consumer<Completion>,
    rx: Consumer<RxDescriptor>,
    /// In place of the ring, of a sink that keeps the newest message alone.
    newest: Option<NewestReader<RxDescriptor>>,
    release: Producer<Release>,
    memory: Buddy,
    next: u32,
    /// What became of its messages, by token.
    told: HashMap<u32, Outcome>,
    /// Messages received and not handed back.
    held: Vec<u32>,
    /// Numbers and sequences of those received.
    received: Vec<(u32, u64)>,
}

/// The content of a message: its number, then bytes that follow from it.
fn content(number: u32, length: usize) -> Vec<u8> {
    let bytes = (0..length).map(|at| (number as usize).wrapping_mul(31).wrapping_add(at * 7) as u8);
    let mut content: Vec<u8> = bytes.collect();
    content[..4].copy_from_slice(&number.to_le_bytes());
    content
}

fn bytes(slice: SharedSlice<'_>) -> Vec<u8> {
    let mut bytes = vec![0; slice.len()];
    slice.read_into(0, &mut bytes).expect("as long");
    bytes
}

impl App {
    fn emit(&mut self, length: usize) -> bool {
        self.emit_as(length, TxDescriptor::default())
    }

    /// With the class and launch time of this descriptor.
    fn emit_as(&mut self, length: usize, descriptor: TxDescriptor) -> bool {
        let Some(chunk) = self.memory.allocate(length) else {
            return false;
        };
        let offset = self.map.tx_offset() + chunk as usize * CHUNK;
        let space = self.arena.slice(offset, length).expect("inside");
        space
            .write_from(0, &content(self.next, length))
            .expect("as long");
        let descriptor = TxDescriptor {
            chunk,
            length: length as u32,
            token: self.next,
            ..descriptor
        };
        assert!(self.tx.push(descriptor).expect("a sane ring"));
        self.bell.ring();
        self.next += 1;
        true
    }

    fn pending(&self) -> usize {
        self.next as usize - self.told.len()
    }

    fn complete(&mut self) {
        while let Some(done) = self.completions.pop().expect("a sane ring") {
            self.memory.free(done.chunk).expect("allocated");
            let outcome = Outcome::from_number(done.outcome).expect("known");
            assert!(
                self.told.insert(done.token, outcome).is_none(),
                "told twice"
            );
        }
        self.completions.release();
    }

    fn receive(&mut self, most: usize) {
        for _ in 0..most {
            let next = match &mut self.newest {
                Some(newest) => newest.take(),
                None => self.rx.pop(),
            };
            let Some(message) = next.expect("a sane ring") else {
                break;
            };
            let region = match message.chunk & TX_REGION {
                0 => self.map.rx_offset(),
                _ => self.map.tx_offset(),
            };
            let offset = region + (message.chunk & !TX_REGION) as usize * CHUNK;
            let payload = self
                .arena
                .slice(offset, message.length as usize)
                .expect("inside");
            let payload = bytes(payload);
            let number = u32::from_le_bytes([payload[0], payload[1], payload[2], payload[3]]);
            assert_eq!(payload, content(number, payload.len()), "message {number}");
            self.received.push((number, message.sequence));
            self.held.push(message.chunk);
        }
        if self.newest.is_none() {
            self.rx.release();
        }
    }

    fn hand_back(&mut self) {
        for chunk in self.held.drain(..) {
            assert!(self.release.push(chunk).expect("a sane ring"));
        }
    }
}

struct Host {
    lane: Lane,
    handle: LaneHandle,
    apps: Vec<App>,
}

impl Host {
    fn add_app(&mut self, id: u32, rx_bytes: usize) {
        self.add_app_of(id, id, rx_bytes);
    }

    fn add_app_of(&mut self, tenant: u32, id: u32, rx_bytes: usize) {
        let id = SessionId(id);
        let map = ArenaMap {
            ring_bytes: 1 << 18,
            tx_bytes: 1 << 20,
            rx_bytes,
        };
        let arena = Arc::new(Arena::create("reliable-test", map.total()).expect("an arena"));
        let source = SourceBlock {
            offset: HEADER_BYTES,
            depth: DEPTH,
        };
        let sink = SinkBlock {
            offset: HEADER_BYTES + SourceBlock::bytes(DEPTH),
            depth: DEPTH,
        };
        for ring in [
            source.tx_ring(),
            source.completion_ring(),
            sink.rx_ring(),
            sink.release_ring(),
        ] {
            RingLayout::reset(&arena, ring).expect("rings fit");
        }
        let bell = LaneBellHost::new(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET).expect("bell");
        let fd = bell.fd().try_clone_to_owned().expect("a descriptor");
        let application =
            LaneBell::attach(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET, fd).expect("bell");
        let session = LaneSession::new(SessionParts {
            id,
            tenant,
            arena: arena.clone(),
            map,
            bell,
            max_message: 1 << 19,
            classes: 0xff,
            rates: Arc::new(Rates::new(&Policy::default())),
            policer: Arc::default(),
            counters: Arc::default(),
        });
        self.handle.send(Command::AddSession(Box::new(session)));
        self.lane.poll();
        self.apps.push(App {
            id,
            map,
            bell: application,
            source,
            sink,
            tx: Producer::attach(&arena, source.tx_ring(), DEPTH).expect("rings fit"),
            completions: Consumer::attach(&arena, source.completion_ring(), DEPTH)
                .expect("rings fit"),
            rx: Consumer::attach(&arena, sink.rx_ring(), DEPTH).expect("rings fit"),
            newest: None,
            release: Producer::attach(&arena, sink.release_ring(), DEPTH).expect("rings fit"),
            arena,
            memory: Buddy::new(map.tx_bytes),
            next: 0,
            told: HashMap::new(),
            held: Vec::new(),
            received: Vec::new(),
        });
    }

    fn add_source(&mut self, app: usize, reliability: Reliability) {
        let app = &self.apps[app];
        self.handle.send(Command::AddSource {
            session: app.id,
            source: SourceSlot(0),
            block: app.source,
            target: SourceTarget::Channel(CHANNEL),
            carrier: Carrier::any(0),
            number: 900 + app.id.0,
            first: 0,
            reliability,
            waits: false,
        });
        self.lane.poll();
    }

    fn add_sink(&mut self, app: usize) {
        self.add_sink_with(app, SinkMode::default());
    }

    fn add_sink_with(&mut self, app: usize, mode: SinkMode) {
        self.add_sink_on(app, CHANNEL, mode);
    }

    fn add_sink_on(&mut self, app: usize, channel: ChannelId, mode: SinkMode) {
        let app = &mut self.apps[app];
        app.newest = mode.latest.then(|| {
            NewestReader::attach(&app.arena, app.sink.rx_ring()).expect("as large as a ring")
        });
        self.handle.send(Command::AddSink {
            session: app.id,
            sink: SinkSlot(0),
            block: app.sink,
            channel,
            notify: None,
            mode,
        });
        self.lane.poll();
    }

    fn counters(&self) -> ChannelReading {
        let channels = &self.lane.state.channels;
        let channel = channels.find(CHANNEL.0).and_then(|at| channels.get(at));
        channel.expect("in use").counters.read()
    }

    /// Bytes of receive memory in use at an application.
    fn used(&self, app: usize) -> usize {
        let id = self.apps[app].id;
        let at = self.lane.by_session[&id];
        self.lane.state.tenants.sessions[at].received_bytes()
    }
}

fn address(host: usize) -> std::net::SocketAddr {
    let address = format!("192.0.2.{}:7400", host + 1);
    address.parse().expect("an address")
}

fn network(faults: Faults, max_payload: usize) -> MemoryNetwork {
    MemoryNetwork::new(MemoryNetworkConfig {
        faults,
        max_payload,
        queue_depth: 512,
    })
}

fn open(network: &MemoryNetwork, host: usize) -> Box<dyn Port> {
    let request = PortRequest {
        lane: 0,
        lanes: 1,
        bind: address(host),
    };
    network.open(&request).expect("a port")
}

/// Hosts that all know each other. The first has a source.
struct World {
    clock: Arc<Virtual>,
    hosts: Vec<Host>,
}

impl World {
    fn new(hosts: usize, faults: Faults, max_payload: usize) -> Self {
        Self::departing(hosts, faults, max_payload, None)
    }

    /// Whose ports have schedulers.
    fn departing(
        hosts: usize,
        faults: Faults,
        max_payload: usize,
        how: Option<&crate::config::Departure>,
    ) -> Self {
        let network = network(faults, max_payload);
        Self::over(hosts, how, |host| vec![open(&network, host)])
    }

    /// Over these ports of each host, which sends by the first where that reaches.
    fn over(
        hosts: usize,
        how: Option<&crate::config::Departure>,
        ports: impl Fn(usize) -> Vec<Box<dyn Port>>,
    ) -> Self {
        let clock = Arc::new(Virtual(1_000_000_000.into(), 0.into()));
        let (mut made, mut all) = (Vec::new(), Vec::new());
        for host in 0..hosts {
            let kind = MemoryNetwork::KIND;
            let ports = ports(host).into_iter();
            let ports: Vec<LanePort> = ports
                .map(|port| LanePort::new(kind, port, false, Arc::default(), how, false))
                .collect();
            let endpoints = vec![Some(address(host)); ports.len()];
            let takes = ports.iter().map(|port| port.port.longest_received());
            let takes: Vec<usize> = takes.collect();
            let (events, _) = channel();
            let flags = rustix::event::EventfdFlags::NONBLOCK;
            let wake = Arc::new(rustix::event::eventfd(0, flags).expect("an eventfd"));
            let (lane, handle) = Lane::new(
                0,
                100 + host as u32,
                200 + host as u32,
                ports,
                &Limits::default(),
                clock.clone(),
                Arc::default(),
                EventSender { events, wake },
            )
            .expect("a lane");
            let apps = Vec::new();
            made.push(Host { lane, handle, apps });
            all.push((endpoints, takes));
        }
        for (at, host) in made.iter_mut().enumerate() {
            for other in (0..hosts).filter(|other| *other != at) {
                host.handle.send(Command::AddRemote {
                    id: RemoteId(other as u64),
                    incarnation: 100 + other as u32,
                    label: 200 + other as u32,
                    protection: Protection::None,
                    addresses: vec![address(other).ip()],
                    endpoints: all[other].0.clone(),
                    takes: all[other].1.clone(),
                });
            }
            host.add_app(1, 1 << 20);
        }
        Self { clock, hosts: made }
    }

    /// One source at the first host, and a sink at each other.
    fn with(hosts: usize, faults: Faults, reliability: Reliability) -> Self {
        let mut world = Self::new(hosts, faults, 1400);
        for host in 1..hosts {
            world.hosts[host].add_sink(0);
            world.subscribe(host);
        }
        world.hosts[0].add_source(0, reliability);
        world
    }

    /// The first host learns that this one has sinks.
    fn subscribe(&mut self, host: usize) {
        self.hosts[0].handle.send(Command::Subscriptions {
            remote: RemoteId(host as u64),
            add: vec![CHANNEL.0],
            remove: Vec::new(),
        });
        self.hosts[0].lane.poll();
    }

    fn round(&mut self) {
        self.clock.0.fetch_add(STEP_NS, Ordering::Relaxed);
        for host in &mut self.hosts {
            host.lane.poll();
            for app in &mut host.apps {
                app.complete();
            }
        }
    }

    /// Rounds until this is so; the tests say within how much virtual time that must be.
    fn until(&mut self, nanos: i64, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.clock.0.load(Ordering::Relaxed) + nanos;
        while !done(self) {
            assert!(
                self.clock.0.load(Ordering::Relaxed) < end,
                "not within {nanos} ns: pending {}, received {:?}, counters {:#?}",
                self.hosts[0].apps[0].pending(),
                self.hosts
                    .iter()
                    .map(|host| host.apps[0].received.len())
                    .collect::<Vec<_>>(),
                self.hosts
                    .iter()
                    .map(|host| (
                        host.counters(),
                        host.lane.state.counters.read(),
                        &host.lane.state.reliable
                    ))
                    .collect::<Vec<_>>(),
            );
            self.round();
        }
    }

    /// A millisecond in which a message of 1,000 bytes is emitted, if there is room, and all sinks consume at once.
    fn millisecond(&mut self) {
        self.clock.0.fetch_add(1_000_000, Ordering::Relaxed);
        if self.hosts[0].apps[0].pending() < DEPTH as usize {
            self.hosts[0].apps[0].emit(1000);
        }
        self.round();
        for app in self.hosts.iter_mut().flat_map(|host| &mut host.apps) {
            app.receive(usize::MAX);
            app.hand_back();
        }
    }

    /// Emits messages of these lengths as there is room, and has all sinks consume at once.
    fn transmit(&mut self, lengths: &[usize], nanos: i64) {
        let mut left = lengths.iter().peekable();
        self.until(nanos, |world| {
            let app = &mut world.hosts[0].apps[0];
            while app.pending() < DEPTH as usize
                && let Some(length) = left.peek()
                && app.emit(**length)
            {
                left.next();
            }
            for app in world.hosts.iter_mut().flat_map(|host| &mut host.apps) {
                app.receive(usize::MAX);
                app.hand_back();
            }
            left.peek().is_none() && world.hosts[0].apps[0].pending() == 0
        });
    }
}

const SECOND: i64 = 1_000_000_000;

fn faults(seed: u64, drop_percent: u32, duplicate_percent: u32, reorder_percent: u32) -> Faults {
    Faults {
        drop_per_million: drop_percent * 10_000,
        duplicate_per_million: duplicate_percent * 10_000,
        reorder_per_million: reorder_percent * 10_000,
        corrupt_per_million: 0,
        seed,
    }
}

fn assert_all_in_order(app: &App, count: usize) {
    let numbers: Vec<u32> = app.received.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..count as u32).collect::<Vec<_>>());
    let sequences: Vec<u64> = app.received.iter().map(|(_, sequence)| *sequence).collect();
    assert_eq!(sequences, (0..count as u64).collect::<Vec<_>>());
}

/// What a [`Changing`] port's route is like.
#[derive(Debug)]
struct Way {
    reaches: AtomicBool,
    /// No frame of the port is free.
    full: AtomicBool,
    max_payload: AtomicUsize,
    /// Longer datagrams vanish on it, and nobody is told.
    swallows_above: AtomicUsize,
}

impl Way {
    fn new(max_payload: usize) -> Arc<Self> {
        Arc::new(Self {
            reaches: true.into(),
            full: false.into(),
            swallows_above: usize::MAX.into(),
            max_payload: max_payload.into(),
        })
    }
}

/// A port of the in-process network whose peers vanish and whose route carries less than the network, unless `fragments`.
struct Changing {
    inner: Box<dyn Port>,
    way: Arc<Way>,
    fragments: bool,
    longest_received: usize,
    fragmented: HashSet<u32>,
}

impl Changing {
    fn open(network: &MemoryNetwork, host: usize, way: &Arc<Way>, fragments: bool) -> Box<Self> {
        Box::new(Self {
            inner: open(network, host),
            way: way.clone(),
            fragments,
            longest_received: usize::MAX,
            fragmented: HashSet::new(),
        })
    }
}

impl Port for Changing {
    fn local(&self) -> std::net::SocketAddr {
        self.inner.local()
    }

    fn connect(&mut self, remote: std::net::SocketAddr) -> Result<PeerHandle, ConnectError> {
        self.inner.connect(remote)
    }

    fn reaches(&mut self, _peer: PeerHandle) -> bool {
        self.way.reaches.load(Ordering::Relaxed)
    }

    fn disconnect(&mut self, peer: PeerHandle) {
        self.inner.disconnect(peer);
    }

    fn max_payload(&self, _peer: PeerHandle) -> usize {
        self.way.max_payload.load(Ordering::Relaxed)
    }

    fn max_fragmented(&self, peer: PeerHandle) -> usize {
        match self.fragments {
            true => self.inner.max_payload(peer),
            false => self.max_payload(peer),
        }
    }

    fn reserve(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        match self.way.full.load(Ordering::Relaxed) {
            true => Err(ReserveError::WouldBlock),
            false => self.inner.reserve(peer),
        }
    }

    fn reserve_fragmented(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        let frame = self.inner.reserve(peer)?;
        if self.fragments {
            self.fragmented.insert(frame.0);
        }
        Ok(frame)
    }

    fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        let most = match self.fragmented.contains(&frame.0) {
            true => usize::MAX,
            false => self.way.max_payload.load(Ordering::Relaxed),
        };
        let payload = self.inner.payload(frame);
        let length = payload.len().min(most);
        &mut payload[..length]
    }

    fn commit(&mut self, frame: Frame, len: usize, class: TrafficClass, at: Option<TaiTime>) {
        self.fragmented.remove(&frame.0);
        match self.way.reaches.load(Ordering::Relaxed) {
            true => self.inner.commit(frame, len, class, at),
            false => self.inner.cancel(frame),
        }
    }

    fn cancel(&mut self, frame: Frame) {
        self.fragmented.remove(&frame.0);
        self.inner.cancel(frame);
    }

    fn flush(&mut self) -> bool {
        self.inner.flush()
    }

    fn longest_received(&self) -> usize {
        self.longest_received
    }

    fn receive(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        let passes = self.way.swallows_above.load(Ordering::Relaxed);
        let longest = self.longest_received.min(passes);
        self.inner.receive(budget, &mut |datagram| {
            if datagram.payload.len() <= longest {
                deliver(datagram);
            }
        })
    }

    fn receive_costs_syscall(&self) -> bool {
        self.inner.receive_costs_syscall()
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.wait_fds()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

/// One source and one sink, over two technologies: the first carries 16 KiB in a datagram, of which many are lost, the
/// second 1,400 bytes and longer ones in fragments.
fn over_two(ways: &[Arc<Way>; 2]) -> World {
    let networks = [
        network(faults(7, 30, 0, 0), 16_384),
        network(faults(7, 0, 0, 0), 65_507),
    ];
    let mut world = World::over(2, None, |host| {
        let port = |at: usize| -> Box<dyn Port> {
            Changing::open(&networks[at], host, &ways[at], at == 1)
        };
        vec![port(0), port(1)]
    });
    world.hosts[1].add_sink(0);
    world.subscribe(1);
    world.hosts[0].add_source(0, RELIABLE);
    world
}

#[test]
fn a_node_with_shorter_frames_is_sent_what_it_takes() {
    let network = network(faults(0, 0, 0, 0), 16_384);
    let way = Way::new(16_384);
    let mut world = World::over(2, None, |host| {
        let mut port = Changing::open(&network, host, &way, false);
        port.longest_received = [16_384, 4096][host];
        vec![port as Box<dyn Port>]
    });
    world.hosts[1].add_sink(0);
    world.subscribe(1);
    world.hosts[0].add_source(0, Reliability::BestEffort);
    // Alone, together in a datagram, and cut.
    let lengths = [4096, 3000, 3000, 10_000, 100, 100, 60_000];
    world.transmit(&lengths, SECOND);
    world.until(SECOND, |world| {
        let app = &mut world.hosts[1].apps[0];
        app.receive(usize::MAX);
        app.hand_back();
        app.received.len() == lengths.len()
    });
    assert_all_in_order(&world.hosts[1].apps[0], lengths.len());
}

#[test]
fn what_was_cut_for_a_technology_that_has_vanished_arrives_by_another() {
    let ways = [Way::new(16_384), Way::new(1400)];
    let mut world = over_two(&ways);
    let app = &mut world.hosts[0].apps[0];
    assert!((0..10).all(|_| app.emit(60_000)));
    world.round();
    ways[0].reaches.store(false, Ordering::Relaxed);
    assert!(world.hosts[1].apps[0].received.is_empty());
    world.transmit(&[60_000; 10], SECOND);
    assert_all_in_order(&world.hosts[1].apps[0], 20);
}

#[test]
fn what_was_cut_for_a_longer_route_arrives_when_that_has_shrunk() {
    let ways = [Way::new(9000), Way::new(9000)];
    ways[0].reaches.store(false, Ordering::Relaxed);
    let mut world = over_two(&ways);
    let app = &mut world.hosts[0].apps[0];
    assert!((0..10).all(|_| app.emit(60_000)));
    world.round();
    ways[1].max_payload.store(1400, Ordering::Relaxed);
    world.transmit(&[60_000; 10], SECOND);
    assert_all_in_order(&world.hosts[1].apps[0], 20);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 10, ..ProptestConfig::default() })]

    #[test]
    fn every_message_reaches_every_sink_once_and_in_order(
        seed in any::<u64>(),
        (drop, duplicate, reorder) in (0u32..15, 0u32..10, 0u32..10),
        lengths in proptest::collection::vec(prop_oneof![4 => 4usize..1300, 1 => 1300usize..60_000], 1..80),
        hosts in 2usize..4,
    ) {
        let mut world = World::with(hosts, faults(seed, drop, duplicate, reorder), RELIABLE);
        world.transmit(&lengths, 5 * SECOND);
        for host in &world.hosts[1..] {
            assert_all_in_order(&host.apps[0], lengths.len());
            prop_assert_eq!(host.counters().lost, 0);
        }
        let app = &world.hosts[0].apps[0];
        prop_assert!(app.told.values().all(|told| *told == Outcome::Sent));
        prop_assert_eq!(app.memory.allocated_bytes(), 0);
        // What was received and handed back is free again.
        world.until(SECOND, |world| (1..hosts).all(|host| world.hosts[host].used(0) == 0 || {
            let used = world.hosts[host].lane.state.tenants.sessions.iter_mut();
            used.for_each(|(_, session)| { let _ = session.reclaim(SinkSlot(0)); });
            false
        }));
    }

    /// However much is lost and however seldom a sink is looked at: what it has is newer than what it had, the source
    /// never waits, and the newest message arrives.
    #[test]
    fn the_newest_message_arrives_and_nobody_waits_for_others(
        seed in any::<u64>(),
        (drop, duplicate, reorder) in (0u32..40, 0u32..10, 0u32..10),
        steps in proptest::collection::vec((prop_oneof![4 => 4usize..1300, 1 => 1300usize..20_000], 0usize..40, 0u8..8), 1..80),
        hosts in 2usize..4,
    ) {
        let mut world = World::new(hosts, faults(seed, drop, duplicate, reorder), 1400);
        for host in 1..hosts {
            world.hosts[host].add_sink_with(0, SinkMode { latest: true, ..SinkMode::default() });
            world.subscribe(host);
        }
        world.hosts[0].add_source(0, Reliability::Latest);
        for (length, rounds, looks) in &steps {
            prop_assert!(world.hosts[0].apps[0].emit(*length), "the source waits for memory");
            for _ in 0..*rounds {
                world.round();
            }
            for (at, host) in world.hosts.iter_mut().enumerate().skip(1) {
                if looks & 1 << (at - 1) != 0 {
                    host.apps[0].receive(usize::MAX);
                }
                if looks & 4 != 0 {
                    host.apps[0].hand_back();
                }
            }
            let held = world.hosts.iter().map(|host| host.apps[0].held.len()).max();
            if held >= Some(12) {
                world.hosts.iter_mut().for_each(|host| host.apps[0].hand_back());
            }
        }
        let last = steps.len() as u32 - 1;
        world.until(5 * SECOND, |world| {
            let apps = world.hosts.iter_mut().skip(1).map(|host| &mut host.apps[0]);
            let have = apps.filter_map(|app| {
                app.receive(usize::MAX);
                app.hand_back();
                app.received.last().filter(|(number, _)| *number == last)
            });
            have.count() == hosts - 1 && world.hosts[0].apps[0].pending() == 0
        });
        let app = &world.hosts[0].apps[0];
        prop_assert!(app.told.values().all(|told| *told == Outcome::Sent));
        prop_assert_eq!(app.memory.allocated_bytes(), 0);
        for host in &world.hosts[1..] {
            let received = &host.apps[0].received;
            prop_assert!(received.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{:?}", received);
        }
        world.until(SECOND, |world| (1..hosts).all(|host| world.hosts[host].used(0) == 0 || {
            let used = world.hosts[host].lane.state.tenants.sessions.iter_mut();
            used.for_each(|(_, session)| { let _ = session.reclaim(SinkSlot(0)); });
            false
        }));
    }

    #[test]
    fn what_is_given_up_in_time_is_told_at_both_ends(
        seed in any::<u64>(),
        drop in 5u32..40,
        count in 20usize..60,
    ) {
        let deadline = Reliability::Reliable {
            deadline: Some(Duration::from_millis(2)),
            slow_sinks: SlowSinks::Wait,
        };
        let mut world = World::with(2, faults(seed, drop, 0, 0), deadline);
        // A receiver of which nothing is heard for 5 s is evicted, with what it lacks.
        world.transmit(&vec![3000; count], 20 * SECOND);
        world.until(10 * SECOND, |world| {
            world.hosts[1].apps[0].receive(usize::MAX);
            let counters = world.hosts[1].counters();
            counters.lost + counters.received == count as u64
                && world.hosts[1].apps[0].received.len() as u64 == counters.received
        });
        let received = &world.hosts[1].apps[0].received;
        prop_assert!(received.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order");
        let told = &world.hosts[0].apps[0].told;
        let got: std::collections::HashSet<u32> = received.iter().map(|(number, _)| *number).collect();
        for number in 0..count as u32 {
            // A message that arrived may still be told as undelivered: its acknowledgement came too late.
            prop_assert!(got.contains(&number) || told[&number] == Outcome::Undelivered, "message {}", number);
        }
    }
}

#[test]
fn a_long_message_is_repaired_record_by_record() {
    let mut world = World::with(2, faults(7, 2, 0, 0), RELIABLE);
    let lengths = [400_000, 12, 400_000];
    world.transmit(&lengths, 5 * SECOND);
    assert_all_in_order(&world.hosts[1].apps[0], lengths.len());
    let repaired = world.hosts[0].counters().repaired;
    // Some 580 records, of which one in 50 is lost, and repair as well.
    assert!((1..60).contains(&repaired), "{repaired}");
}

#[test]
fn without_loss_nothing_is_sent_again() {
    let mut world = World::with(3, Faults::default(), RELIABLE);
    world.transmit(&vec![1000; 500], 10 * SECOND);
    let counters = world.hosts[0].counters();
    assert_eq!(
        (counters.repaired, counters.undelivered, counters.evicted),
        (0, 0, 0)
    );
    assert_eq!(counters.sent, 1000);
    for host in &world.hosts[1..] {
        assert_all_in_order(&host.apps[0], 500);
        let lane = host.lane.state.counters.read();
        assert_eq!((lane.rx_duplicate, lane.rx_no_room), (0, 0));
    }
}

#[test]
fn a_source_waits_for_a_sink_that_consumes_slowly_and_loses_nothing() {
    let mut world = World::with(3, faults(3, 1, 0, 0), RELIABLE);
    let mut rounds = 0u64;
    let mut most = 0;
    world.until(10 * SECOND, |world| {
        rounds += 1;
        let app = &mut world.hosts[0].apps[0];
        while app.pending() < DEPTH as usize && app.next < 600 && app.emit(200) {}
        world.hosts[1].apps[0].receive(usize::MAX);
        world.hosts[1].apps[0].hand_back();
        // This one takes a message in a hundred rounds.
        let slow = &mut world.hosts[2].apps[0];
        if rounds.is_multiple_of(100) {
            slow.receive(1);
            slow.hand_back();
        }
        most =
            most.max(world.hosts[1].apps[0].received.len() - world.hosts[2].apps[0].received.len());
        world.hosts[2].apps[0].received.len() == 600
    });
    for host in &world.hosts[1..] {
        assert_all_in_order(&host.apps[0], 600);
        let counters = host.counters();
        assert_eq!(
            (
                counters.lost,
                counters.dropped_full,
                counters.dropped_memory
            ),
            (0, 0, 0)
        );
    }
    // The fast one is as far ahead as the slow one has room.
    assert!(most <= 2 * DEPTH as usize, "{most}");
}

#[test]
fn a_sink_that_takes_nothing_is_done_without_after_a_while_and_is_back_when_it_takes_again() {
    let patience = Duration::from_millis(100);
    let evicts = Reliability::Reliable {
        deadline: None,
        slow_sinks: SlowSinks::Evict(patience),
    };
    let mut world = World::with(3, Faults::default(), evicts);
    let all = |world: &mut World, upto: u32| {
        let app = &mut world.hosts[0].apps[0];
        while app.pending() < DEPTH as usize && app.next < upto && app.emit(200) {}
        world.hosts[1].apps[0].receive(usize::MAX);
        world.hosts[1].apps[0].hand_back();
        world.hosts[1].apps[0].received.len() == upto as usize
    };
    world.until(10 * SECOND, |world| all(world, 1000));
    // Where the sink is, and its node is still one of the source's receivers.
    assert_eq!(world.hosts[0].counters().evicted, 0);
    assert_eq!(world.hosts[2].counters().evicted, 1);
    let told = world.hosts[0].apps[0].told.values();
    let undelivered = told.filter(|told| **told == Outcome::Undelivered).count();
    assert!(undelivered > 800, "{undelivered}");
    // It takes what it has, and is heard again.
    let mut rounds = 0u32;
    world.until(10 * SECOND, |world| {
        rounds += 1;
        world.hosts[2].apps[0].receive(usize::MAX);
        world.hosts[2].apps[0].hand_back();
        world.hosts[1].apps[0].receive(usize::MAX);
        world.hosts[1].apps[0].hand_back();
        if rounds.is_multiple_of(1000) && world.hosts[0].apps[0].pending() == 0 {
            world.hosts[0].apps[0].emit(200);
        }
        world.hosts[2].apps[0]
            .received
            .last()
            .is_some_and(|(number, _)| *number >= 1000)
    });
    let counters = world.hosts[2].counters();
    let received = world.hosts[2].apps[0].received.len() as u64;
    let last = world.hosts[2].apps[0].received.last().expect("some").1;
    assert_eq!(
        (counters.lost, counters.dropped_full),
        (0, last + 1 - received),
        "what it did without is counted there"
    );
}

#[test]
fn sinks_that_take_nothing_are_waited_for_together_and_others_of_their_lane_go_on() {
    let patience = Duration::from_millis(100);
    let evicts = Reliability::Reliable {
        deadline: None,
        slow_sinks: SlowSinks::Evict(patience),
    };
    // On a lane elsewhere, and on the source's own.
    for host in [1, 0] {
        let mut world = World::new(2, Faults::default(), 1400);
        for app in 1..=10 {
            world.hosts[host].add_app(app as u32 + 1, 1 << 20);
            world.hosts[host].add_sink(app);
        }
        if host == 1 {
            world.subscribe(1);
        }
        world.hosts[0].add_source(0, evicts);
        let start = world.clock.0.load(Ordering::Relaxed);
        // Nine stop, each after some messages more than the one before it.
        world.until(10 * SECOND, |world| {
            let app = &mut world.hosts[0].apps[0];
            while app.pending() < DEPTH as usize && app.next < 3000 && app.emit(200) {}
            for (number, app) in world.hosts[host].apps.iter_mut().skip(1).enumerate() {
                if number == 9 || app.received.len() < number {
                    app.receive(1);
                    app.hand_back();
                }
            }
            world.hosts[host].apps[10].received.len() == 3000
                && world.hosts[0].apps[0].pending() == 0
        });
        assert_all_in_order(&world.hosts[host].apps[10], 3000);
        let took = world.clock.0.load(Ordering::Relaxed) - start;
        let together = 2 * patience.as_nanos() as i64;
        let alone = 3000 * STEP_NS;
        assert!(took < together + 2 * alone, "host {host}: {took} ns");
        let counters = world.hosts[host].counters();
        assert_eq!(counters.evicted, 9);
        assert_eq!(counters.lost, 0);
        let told = world.hosts[0].apps[0].told.values();
        let undelivered = told.filter(|told| **told == Outcome::Undelivered).count();
        // All but what the first to stop had room for.
        assert!(
            (2900..=3000 - DEPTH as usize).contains(&undelivered),
            "host {host}: {undelivered}"
        );
        assert_eq!(world.hosts[0].counters().undelivered, undelivered as u64);
    }
}

#[test]
fn a_sink_that_drops_holds_nobody_up_and_what_the_network_loses_is_still_repaired() {
    let drops = Reliability::Reliable {
        deadline: None,
        slow_sinks: SlowSinks::Drop,
    };
    let mut world = World::with(3, faults(11, 5, 0, 0), drops);
    world.until(20 * SECOND, |world| {
        let app = &mut world.hosts[0].apps[0];
        while app.pending() < DEPTH as usize && app.next < 1000 && app.emit(200) {}
        world.hosts[1].apps[0].receive(usize::MAX);
        world.hosts[1].apps[0].hand_back();
        world.hosts[1].apps[0].received.len() == 1000 && world.hosts[0].apps[0].pending() == 0
    });
    assert_all_in_order(&world.hosts[1].apps[0], 1000);
    let counters = world.hosts[2].counters();
    let dropped = 1000 - u64::from(DEPTH);
    assert_eq!((counters.dropped_full, counters.lost), (dropped, 0));
    // Told with the acknowledgement: some that it had room for may be among them.
    let told = world.hosts[0].apps[0].told.values();
    let undelivered = told.filter(|told| **told == Outcome::Undelivered).count() as u64;
    assert!(
        (dropped..=1000).contains(&undelivered) && undelivered < 1000,
        "{undelivered}"
    );
}

#[test]
fn a_source_waits_for_a_sink_of_its_own_lane() {
    let mut world = World::new(1, Faults::default(), 1400);
    world.hosts[0].add_app(2, 1 << 20);
    world.hosts[0].add_sink(1);
    world.hosts[0].add_source(0, RELIABLE);
    let mut rounds = 0u64;
    world.until(10 * SECOND, |world| {
        rounds += 1;
        let host = &mut world.hosts[0];
        while host.apps[0].pending() < DEPTH as usize
            && host.apps[0].next < 400
            && host.apps[0].emit(5000)
        {}
        if rounds.is_multiple_of(200) {
            host.apps[1].receive(1);
            host.apps[1].hand_back();
        }
        host.apps[1].received.len() == 400
    });
    assert_all_in_order(&world.hosts[0].apps[1], 400);
    assert_eq!(world.hosts[0].counters().dropped_full, 0);
    assert_eq!(world.hosts[0].counters().dropped_memory, 0);
}

#[test]
fn a_lane_sleeps_no_longer_than_until_something_is_to_be_repaired() {
    let mut world = World::with(2, faults(5, 100, 0, 0), RELIABLE);
    world.hosts[0].apps[0].emit(100);
    for _ in 0..10 {
        world.round();
    }
    let timeout = loop {
        if let Some(timeout) = world.hosts[0].lane.park() {
            break timeout.expect("something is to be asked");
        }
        world.hosts[0].lane.poll();
    };
    assert!(timeout <= Duration::from_secs(1), "{timeout:?}");
}

#[test]
fn a_node_that_is_gone_holds_its_source_no_longer_than_silence_is_borne() {
    let mut world = World::with(2, faults(5, 100, 0, 0), RELIABLE);
    for _ in 0..10 {
        world.hosts[0].apps[0].emit(100);
    }
    world.until(6 * SECOND, |world| world.hosts[0].apps[0].pending() == 0);
    let told = &world.hosts[0].apps[0].told;
    assert!(told.values().all(|told| *told == Outcome::Undelivered));
    assert_eq!(world.hosts[0].counters().evicted, 1);
}

#[test]
fn a_step_of_the_clock_holds_nobody_up_and_gives_nobody_up() {
    for step in [-3600 * SECOND, 37 * SECOND, -60 * SECOND] {
        let evicts = Reliability::Reliable {
            deadline: None,
            slow_sinks: SlowSinks::Evict(Duration::from_secs(10)),
        };
        let mut world = World::with(2, faults(3, 5, 0, 0), evicts);
        world.transmit(&[200; 200], SECOND);
        // Some are on their way.
        while world.hosts[0].apps[0].next < 220 {
            world.hosts[0].apps[0].emit(200);
        }
        world.round();
        world.clock.1.fetch_add(step, Ordering::Relaxed);
        world.transmit(&[200; 200], SECOND);
        assert_all_in_order(&world.hosts[1].apps[0], 420);
        let counters = world.hosts[0].counters();
        assert_eq!((counters.evicted, counters.undelivered), (0, 0), "{step}");
    }
}

#[test]
fn who_waits_less_for_a_sink_does_not_make_others_wait_less() {
    let evicts = |patience| Reliability::Reliable {
        deadline: None,
        slow_sinks: SlowSinks::Evict(patience),
    };
    let mut world = World::new(1, Faults::default(), 1400);
    world.hosts[0].add_app(2, 1 << 20);
    world.hosts[0].add_app(3, 1 << 20);
    world.hosts[0].add_sink(1);
    world.hosts[0].add_source(0, evicts(Duration::from_secs(10)));
    world.hosts[0].add_source(2, evicts(Duration::from_micros(100)));
    let emit = |app: &mut App| while app.next < 100 && app.pending() < 50 && app.emit(200) {};
    // The sink pauses.
    world.until(SECOND, |world| {
        let apps = &mut world.hosts[0].apps;
        emit(&mut apps[0]);
        emit(&mut apps[2]);
        apps[2].told.len() == 100
    });
    for _ in 0..2000 {
        world.round();
        emit(&mut world.hosts[0].apps[0]);
    }
    let apps = &world.hosts[0].apps;
    let done_without = |app: &App| {
        let told = app.told.values();
        told.filter(|told| **told == Outcome::Undelivered).count()
    };
    assert!(done_without(&apps[2]) > 0);
    assert_eq!(done_without(&apps[0]), 0);
    // And goes on.
    world.until(SECOND, |world| {
        let apps = &mut world.hosts[0].apps;
        emit(&mut apps[0]);
        apps[1].receive(usize::MAX);
        apps[1].hand_back();
        apps[0].told.len() == 100
    });
    assert_eq!(done_without(&world.hosts[0].apps[0]), 0);
}

#[test]
fn a_node_that_answers_and_gets_nothing_holds_up_the_others_ever_more_seldom() {
    for slow_sinks in [
        SlowSinks::Drop,
        SlowSinks::Evict(Duration::from_millis(100)),
    ] {
        let network = network(Faults::default(), 1400);
        let ways = [0, 1, 2].map(|_| Way::new(1400));
        let mut world = World::over(3, None, |host| {
            vec![Changing::open(&network, host, &ways[host], false)]
        });
        for host in [1, 2] {
            world.hosts[host].add_sink(0);
            world.subscribe(host);
        }
        ways[2].swallows_above.store(400, Ordering::Relaxed);
        world.hosts[0].add_source(
            0,
            Reliability::Reliable {
                deadline: None,
                slow_sinks,
            },
        );
        (0..60_000).for_each(|_| world.millisecond());
        let [_, gets_all, gets_none] = [0, 1, 2].map(|host| {
            let received = &world.hosts[host].apps[0].received;
            received.len()
        });
        assert_eq!(gets_none, 0);
        assert!(gets_all > 40_000, "{slow_sinks:?}: {gets_all}");
        // When more than that gets there again it is one of the receivers.
        ways[2].swallows_above.store(usize::MAX, Ordering::Relaxed);
        for _ in 0..70_000 {
            world.millisecond();
            if world.hosts[2].apps[0].received.len() > 1000 {
                break;
            }
        }
        assert!(world.hosts[2].apps[0].received.len() > 1000);
    }
}

#[test]
fn what_waited_beyond_its_deadline_is_not_sent_any_more_and_told() {
    let within = Reliability::Reliable {
        deadline: Some(Duration::from_millis(5)),
        slow_sinks: SlowSinks::Evict(Duration::from_secs(10)),
    };
    // With the sink elsewhere, and on the source's own lane.
    for host in [1, 0] {
        let mut world = World::new(2, Faults::default(), 1400);
        world.hosts[host].add_app(2, 1 << 20);
        world.hosts[host].add_sink(1);
        if host == 1 {
            world.subscribe(1);
        }
        world.hosts[0].add_source(0, within);
        // More than the sink has room for: it takes nothing.
        let count = DEPTH + 20;
        world.until(SECOND, |world| {
            let app = &mut world.hosts[0].apps[0];
            while app.pending() < DEPTH as usize && app.next < count && app.emit(200) {}
            app.told.len() == count as usize
        });
        let told = &world.hosts[0].apps[0].told;
        let late = |told: &&u32| **told >= DEPTH;
        assert!(
            told.keys()
                .filter(late)
                .all(|token| told[token] == Outcome::Undelivered),
            "{told:?}"
        );
        assert!(
            (0..DEPTH).all(|token| told[&token] == Outcome::Sent),
            "{told:?}"
        );
        assert_eq!(world.hosts[host].counters().evicted, 0);
        // It takes them, and what comes then, which says how many it did without.
        world.until(SECOND, |world| {
            let sink = &mut world.hosts[host].apps[1];
            sink.receive(usize::MAX);
            sink.hand_back();
            if sink.received.len() == DEPTH as usize && world.hosts[0].apps[0].next == count {
                world.hosts[0].apps[0].emit(200);
            }
            let last = world.hosts[host].apps[1].received.last();
            last.is_some_and(|(number, _)| *number == count)
        });
        let counters = world.hosts[host].counters();
        assert_eq!(counters.lost + counters.dropped_full, 20, "host {host}");
    }
}

#[test]
fn what_all_sinks_of_its_own_lane_have_got_is_sent_however_late_it_is() {
    let mut world = World::new(1, Faults::default(), 1400);
    world.hosts[0].add_app(2, 1 << 20);
    world.hosts[0].add_sink(1);
    let within = Reliability::Reliable {
        deadline: Some(Duration::from_millis(5)),
        slow_sinks: SlowSinks::Evict(Duration::from_secs(10)),
    };
    world.hosts[0].add_source(0, within);
    let sent = |world: &World, count: u32| {
        let told = &world.hosts[0].apps[0].told;
        (0..count).all(|token| told.get(&token) == Some(&Outcome::Sent))
    };
    (0..DEPTH).for_each(|_| assert!(world.hosts[0].apps[0].emit(200)));
    world.until(SECOND, |world| sent(world, DEPTH));
    // The next one waits for room, which comes when its time is over and the lane has not looked.
    assert!(world.hosts[0].apps[0].emit(200));
    world.round();
    world.clock.0.fetch_add(6_000_000, Ordering::Relaxed);
    let sink = &mut world.hosts[0].apps[1];
    sink.receive(usize::MAX);
    sink.hand_back();
    world.until(SECOND, |world| {
        world.hosts[0].apps[0].told.contains_key(&DEPTH)
    });
    world.hosts[0].apps[1].receive(usize::MAX);
    assert_all_in_order(&world.hosts[0].apps[1], DEPTH as usize + 1);
    assert!(sent(&world, DEPTH + 1), "{:?}", world.hosts[0].apps[0].told);
    assert_eq!(world.hosts[0].counters().undelivered, 0);
}

#[test]
fn a_source_that_closes_ends_when_all_is_acknowledged() {
    let mut world = World::with(2, faults(9, 30, 0, 0), RELIABLE);
    for _ in 0..20 {
        world.hosts[0].apps[0].emit(500);
    }
    world.hosts[0].handle.send(Command::CloseSource {
        session: SessionId(1),
        source: SourceSlot(0),
    });
    world.until(10 * SECOND, |world| {
        world.hosts[1].apps[0].receive(usize::MAX);
        world.hosts[0].lane.state.reliable.outbound.len() == 0
    });
    assert_all_in_order(&world.hosts[1].apps[0], 20);
}

#[test]
fn a_receiver_that_comes_later_gets_what_is_emitted_from_then_on() {
    let mut world = World::with(2, Faults::default(), RELIABLE);
    let mut late = World::new(3, Faults::default(), 1400);
    std::mem::swap(&mut world, &mut late);
    drop(late);
    world.hosts[1].add_sink(0);
    world.subscribe(1);
    world.hosts[0].add_source(0, RELIABLE);
    world.transmit(&[100; 50], SECOND);
    world.hosts[2].add_sink(0);
    world.subscribe(2);
    // As a reader would be waited for.
    world.transmit(&[100; 50], SECOND);
    let received = &world.hosts[2].apps[0].received;
    let numbers: Vec<u32> = received.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (50..100).collect::<Vec<_>>());
    assert_eq!(world.hosts[2].counters().lost, 0);
}

#[test]
fn what_was_emitted_while_nobody_heard_it_is_lost_to_nobody() {
    let mut world = World::new(2, Faults::default(), 1400);
    world.hosts[0].add_source(0, RELIABLE);
    world.transmit(&[100; 5], SECOND);
    world.hosts[1].add_sink(0);
    world.subscribe(1);
    world.transmit(&[100; 5], SECOND);
    let numbers = world.hosts[1].apps[0].received.iter();
    let numbers: Vec<u32> = numbers.map(|(number, _)| *number).collect();
    assert_eq!(numbers, (5..10).collect::<Vec<_>>());
    assert_eq!(world.hosts[1].counters().lost, 0);
}

#[test]
fn a_sink_opened_after_another_gets_nothing_of_what_that_one_was_there_for() {
    let mut world = World::with(2, Faults::default(), RELIABLE);
    world.transmit(&[100; 20], SECOND);
    let [sender, receiver] = &mut world.hosts[..] else {
        unreachable!("there are two");
    };
    for _ in 0..5 {
        assert!(sender.apps[0].emit(100));
    }
    sender.lane.poll();
    receiver.lane.poll();
    receiver.apps[0].receive(usize::MAX);
    assert_all_in_order(&receiver.apps[0], 25);
    // Its sender hears of neither.
    receiver.handle.send(Command::CloseSink {
        session: receiver.apps[0].id,
        sink: SinkSlot(0),
    });
    receiver.lane.poll();
    receiver.add_app(2, 1 << 20);
    receiver.add_sink(1);
    assert_eq!(world.hosts[0].apps[0].pending(), 5, "not acknowledged");
    world.transmit(&[100; 5], SECOND);
    let received = &world.hosts[1].apps[1].received;
    let numbers: Vec<u32> = received.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (25..30).collect::<Vec<_>>());
    assert_eq!(world.hosts[1].counters().lost, 0);
}

proptest! {
    /// Whatever a peer says of a source, and whatever it claims to be a record of one, nothing else is lost.
    #[test]
    fn nonsense_from_a_peer_changes_nothing_for_others(
        records in proptest::collection::vec(
            (
                0u8..3,
                any::<u32>(),
                any::<u32>(),
                prop_oneof![3 => 0u32..3000, 1 => any::<u32>()],
                prop_oneof![any::<u16>(), 0u16..300],
                prop_oneof![any::<u32>(), 0u32..3],
                proptest::collection::vec(any::<u8>(), 0..80),
            ),
            1..60,
        ),
    ) {
        use takt_wire::channel::{DatagramHeader, Record};
        let mut world = World::with(3, Faults::default(), RELIABLE);
        world.transmit(&[300; 20], SECOND);
        let header = DatagramHeader {
            protection: Protection::None,
            records: 1,
            sender: 102,
            send_time_ns: 5,
            counter: 0,
        };
        for (kind, source, number, length, stride, index, payload) in &records {
            let kind = match kind {
                0 => Kind::Announce,
                1 => Kind::Acknowledge,
                _ => Kind::Reliable { number: *number },
            };
            let source = if source % 2 == 0 { 901 } else { *source };
            let record = RecordHeader {
                channel: CHANNEL.0,
                source,
                sequence: *number,
                message_length: *length,
                fragment_index: *index,
                fragment_stride: *stride,
                class: takt_time::TrafficClass::BEST_EFFORT,
                kind,
            };
            // The second host lies to the source's and to the third one. No datagram is longer.
            let length = record.payload_len().min(1 << 16);
            let bytes = content(1, length.max(4));
            let claimed = Record { header: record, payload: &bytes[..length] };
            let said = Record { header: record, payload };
            for victim in [0, 2] {
                let lane = &mut world.hosts[victim].lane;
                let Some(&remote) = lane.by_remote.get(&RemoteId(1)) else { continue };
                let record = match kind {
                    Kind::Reliable { .. } if record.check().is_ok() && length == record.payload_len() => &claimed,
                    Kind::Reliable { .. } => continue,
                    _ => &said,
                };
                lane.state.hostile(remote, &header, record);
            }
            world.round();
        }
        world.hosts[2].apps[0].receive(usize::MAX);
        world.hosts[2].apps[0].hand_back();
        let before = world.hosts[2].apps[0].received.iter().filter(|(number, _)| *number < 1_000_000).count();
        world.transmit(&[300; 20], 20 * SECOND);
        let honest = world.hosts[2].apps[0].received.len();
        prop_assert!(honest >= before + 20, "{} {}", honest, before);
    }
}

/// Two hosts with schedulers, the first of which has a source whose tenant has declared these streams of class 5.
fn policed(
    faults: Faults,
    how: &crate::config::Departure,
    streams: Vec<crate::policing::DeclaredStream>,
) -> World {
    let mut world = World::departing(2, faults, 1400, Some(how));
    world.hosts[1].add_sink(0);
    world.subscribe(1);
    let policy = Policy {
        streams,
        ..Policy::default()
    };
    let policer = crate::policing::Policer::new(&policy, &Default::default());
    let tenants = &mut world.hosts[0].lane.state.tenants;
    tenants.police(1, &Arc::new(policer));
    world.hosts[0].add_source(0, RELIABLE);
    world
}

const PERIOD_NS: i64 = 1_000_000;

/// A stream of the channel that launches once in a period, at its beginning.
fn declared(frames: u32) -> crate::policing::DeclaredStream {
    crate::policing::DeclaredStream {
        name: "axis".into(),
        flow: crate::policing::Flow::Channel(CHANNEL),
        talker: takt_schedule::admission::Talker {
            priority: takt_time::TrafficClass::new(5).expect("a class"),
            period_ns: PERIOD_NS as u64,
            offset_ns: 0,
            window_ns: 0,
            octets: 600,
            frames,
        },
    }
}

fn timed(launch_time_ns: i64) -> TxDescriptor {
    TxDescriptor {
        class: 5,
        flags: takt_session::layout::FLAG_LAUNCH_TIME,
        launch_time_ns,
        ..TxDescriptor::default()
    }
}

impl World {
    /// Emits one message of class 5 for each period of 1 ms, and lets it be consumed, until all are told.
    fn transmit_timed(&mut self, count: u32, nanos: i64) {
        let now = self.clock.0.load(Ordering::Relaxed);
        let first = now - now.rem_euclid(PERIOD_NS) + 2 * PERIOD_NS;
        self.until(nanos, |world| {
            let now = world.clock.0.load(Ordering::Relaxed);
            let app = &mut world.hosts[0].apps[0];
            let launch = first + i64::from(app.next) * PERIOD_NS;
            if app.next < count && now > launch - PERIOD_NS / 2 {
                assert!(app.emit_as(200, timed(launch)), "it waits for others");
            }
            world.hosts[1].apps[0].receive(usize::MAX);
            world.hosts[1].apps[0].hand_back();
            let app = &world.hosts[0].apps[0];
            app.next == count && app.pending() == 0
        });
    }
}

/// A busy machine reads the clock late.
fn patient() -> crate::config::Departure {
    crate::config::Departure {
        tolerance: Duration::from_micros(20),
        ..Default::default()
    }
}

#[test]
fn what_a_declared_stream_loses_is_sent_again_in_one_of_its_windows_if_those_have_room() {
    // A period has room for a message, and for one that is sent again.
    let mut world = policed(faults(17, 20, 0, 0), &patient(), vec![declared(2)]);
    world.transmit_timed(60, 5 * SECOND);
    assert_all_in_order(&world.hosts[1].apps[0], 60);
    let told = &world.hosts[0].apps[0].told;
    assert!(told.values().all(|told| *told == Outcome::Sent), "{told:?}");
    assert!(world.hosts[0].counters().repaired > 5);
}

#[test]
fn what_a_declared_stream_loses_without_room_for_it_is_told_and_holds_nothing_up() {
    let mut world = policed(faults(17, 20, 0, 0), &patient(), vec![declared(1)]);
    world.transmit_timed(60, 5 * SECOND);
    let got: Vec<u32> = world.hosts[1].apps[0]
        .received
        .iter()
        .map(|r| r.0)
        .collect();
    assert!(got.is_sorted() && (20..60).contains(&got.len()), "{got:?}");
    for (number, told) in &world.hosts[0].apps[0].told {
        match got.contains(number) {
            true => assert!([Outcome::Sent, Outcome::Undelivered].contains(told)),
            false => assert_eq!(*told, Outcome::Undelivered, "message {number}"),
        }
    }
    assert_eq!(world.hosts[0].counters().repaired, 0);
    world.until(SECOND, |world| {
        world.hosts[1].counters().lost == 60 - got.len() as u64
    });
}

#[test]
fn what_is_refused_when_it_is_first_sent_is_told_why_and_holds_nothing_up() {
    let mut world = policed(Faults::default(), &patient(), vec![declared(1)]);
    // Longer than declared, without a launch time, and in records of which none is admitted.
    for (length, class) in [(100, 0), (1000, 5), (100, 5), (40_000, 5), (100, 0)] {
        let descriptor = TxDescriptor {
            class,
            ..TxDescriptor::default()
        };
        assert!(world.hosts[0].apps[0].emit_as(length, descriptor));
    }
    world.until(SECOND, |world| {
        world.hosts[1].apps[0].receive(usize::MAX);
        world.hosts[0].apps[0].pending() == 0
    });
    let told = &world.hosts[0].apps[0].told;
    let told: Vec<Outcome> = (0..5).map(|number| told[&number]).collect();
    let refused = Outcome::Refused;
    assert_eq!(
        told,
        [Outcome::Sent, refused, refused, refused, Outcome::Sent]
    );
    let got: Vec<u32> = world.hosts[1].apps[0]
        .received
        .iter()
        .map(|r| r.0)
        .collect();
    assert_eq!(got, [0, 4]);
    assert_eq!(world.hosts[1].counters().lost, 3);
}

#[test]
fn a_message_that_is_told_to_be_late_is_not_sent_later_without_its_launch_time() {
    let drops = crate::config::Departure {
        late: crate::config::Late::Drop,
        ..patient()
    };
    let mut world = policed(Faults::default(), &drops, Vec::new());
    let now = world.clock.0.load(Ordering::Relaxed);
    // Late, in time, beyond the horizon, in time.
    let launches = [
        now - SECOND,
        now + SECOND / 100,
        now + 100 * SECOND,
        now + SECOND / 50,
    ];
    for launch in launches {
        assert!(world.hosts[0].apps[0].emit_as(100, timed(launch)));
    }
    world.until(SECOND, |world| {
        world.hosts[1].apps[0].receive(usize::MAX);
        world.hosts[0].apps[0].pending() == 0
    });
    let told = &world.hosts[0].apps[0].told;
    let told: Vec<Outcome> = (0..4).map(|number| told[&number]).collect();
    let sent = Outcome::Sent;
    assert_eq!(told, [Outcome::Late, sent, Outcome::NotScheduled, sent]);
    let got: Vec<u32> = world.hosts[1].apps[0]
        .received
        .iter()
        .map(|r| r.0)
        .collect();
    assert_eq!(got, [1, 3]);
    assert_eq!(world.hosts[0].counters().repaired, 0);
}

#[test]
fn a_message_that_becomes_late_while_it_waits_is_not_sent_again() {
    let drops = crate::config::Departure {
        late: crate::config::Late::Drop,
        ..patient()
    };
    let mut world = policed(Faults::default(), &drops, Vec::new());
    let now = world.clock.0.load(Ordering::Relaxed);
    assert!(world.hosts[0].apps[0].emit_as(100, timed(now + SECOND / 100)));
    assert!(world.hosts[0].apps[0].emit_as(100, timed(now + SECOND)));
    world.round();
    // The lane does not get to it in time.
    world.clock.0.fetch_add(SECOND / 50, Ordering::Relaxed);
    world.until(2 * SECOND, |world| {
        world.hosts[1].apps[0].receive(usize::MAX);
        world.hosts[0].apps[0].pending() == 0
    });
    let told = &world.hosts[0].apps[0].told;
    assert_eq!((told[&0], told[&1]), (Outcome::Late, Outcome::Sent));
    let got: Vec<u32> = world.hosts[1].apps[0]
        .received
        .iter()
        .map(|r| r.0)
        .collect();
    assert_eq!(got, [1]);
}

/// The third host hears an announcement of a source of another. Whether that has a place then.
fn announced(world: &mut World, host: u64, channel: ChannelId, source: u32) -> bool {
    announce(world, host, channel, source, (0..0, 0, None));
    let lane = &mut world.hosts[2].lane;
    let remote = lane.by_remote[&RemoteId(host)];
    let key = SourceKey { remote, source };
    lane.state.reliable.by_source.contains_key(&key)
}

/// The third host takes a record of a host, as if a datagram had held it.
fn take(world: &mut World, host: u64, header: RecordHeader, payload: &[u8]) {
    use takt_wire::channel::{DatagramHeader, Record};
    let datagram = DatagramHeader {
        protection: Protection::None,
        records: 1,
        sender: 100 + host as u32,
        send_time_ns: 5,
        counter: 0,
    };
    let lane = &mut world.hosts[2].lane;
    let remote = lane.by_remote[&RemoteId(host)];
    let record = Record { header, payload };
    lane.state.hostile(remote, &datagram, &record);
}

/// A host says which records of a source are to come, what its next message is, and how long it waits for sinks.
fn announce(
    world: &mut World,
    host: u64,
    channel: ChannelId,
    source: u32,
    (records, next_message, patience): (std::ops::Range<u32>, u32, Option<u32>),
) {
    let said = Announcement {
        engine: takt_recovery::Announce {
            oldest: records.start,
            next: records.end,
            round_trip_ns: 0,
            stamp_ns: 0,
        },
        oldest_message: 0,
        next_message,
        epoch: 1,
        patience,
        latest: false,
    };
    let payload = said.encode();
    let class = TrafficClass::BEST_EFFORT;
    let header = control(channel.0, source, class, Kind::Announce, payload.len());
    take(world, host, header, &payload);
}

/// A record of a source, with a message of 8 bytes or a part of one of 16.
fn record(world: &mut World, source: u32, number: u32, sequence: u32, part: Option<u32>) {
    let class = TrafficClass::BEST_EFFORT;
    let kind = Kind::Reliable { number };
    let header = RecordHeader {
        sequence,
        message_length: if part.is_some() { 16 } else { 8 },
        fragment_index: part.unwrap_or(0),
        fragment_stride: if part.is_some() { 8 } else { 0 },
        ..control(CHANNEL.0, source, class, kind, 8)
    };
    take(world, 1, header, &content(number, 8));
}

/// Messages of which a lane keeps that they arrive.
fn arriving(world: &World, host: u64, source: u32) -> usize {
    let lane = &world.hosts[2].lane;
    let remote = lane.by_remote[&RemoteId(host)];
    let at = lane.state.reliable.by_source[&SourceKey { remote, source }];
    lane.state.reliable.inbound[at].messages.len()
}

#[test]
fn messages_that_a_peer_claims_to_be_as_long_as_can_be_do_not_pile_up() {
    const LENGTHS: [(u32, u16); 4] = [
        (0xc000_0000, 1),
        (u32::MAX, 1),
        (u32::MAX, 256),
        (1 << 24, 1),
    ];
    for (message_length, fragment_stride) in LENGTHS {
        // Each the first record of its message, or the last one, of which all before are given up with the one before.
        for last in [false, true] {
            let mut world = World::new(3, Faults::default(), 1400);
            world.hosts[2].add_sink(0);
            let mut number = 0u32;
            announce(&mut world, 1, CHANNEL, 7, (0..0, 0, None));
            for sequence in 0..3000 {
                let mut header = RecordHeader {
                    sequence,
                    message_length,
                    fragment_stride,
                    ..control(
                        CHANNEL.0,
                        7,
                        TrafficClass::BEST_EFFORT,
                        Kind::Reliable { number },
                        0,
                    )
                };
                if last {
                    header.fragment_index = header.fragment_count() - 2;
                }
                // Others are refused where datagrams are read.
                if header.check().is_ok() {
                    let payload = vec![7; header.payload_len()];
                    take(&mut world, 1, header, &payload);
                }
                // As far as an announcement leads, but never less than to where what it has begun is past.
                number = number.wrapping_add(if last { 0x7fff_ffff } else { 1 });
                if last {
                    let records = number..number;
                    announce(&mut world, 1, CHANNEL, 7, (records, sequence, None));
                }
            }
            let kept = arriving(&world, 1, 7);
            assert!(
                kept <= 1025,
                "{kept} of {message_length} bytes in {fragment_stride}"
            );
            // What comes behind all of it is delivered, and nothing else holds memory then.
            number = number.wrapping_add(1 << 30);
            let said = (number..number, 5000, None);
            announce(&mut world, 1, CHANNEL, 7, said);
            record(&mut world, 7, number, 5000, None);
            assert_eq!(arriving(&world, 1, 7), 0);
            world.hosts[2].lane.poll();
            let app = &mut world.hosts[2].apps[0];
            app.receive(usize::MAX);
            assert_eq!(app.received.len(), 1);
            assert_eq!(world.hosts[2].used(0), CHUNK, "of that one alone");
        }
    }
}

#[test]
fn a_sink_that_closes_is_no_more_of_messages_that_wait_and_looking_for_it_there_counts() {
    const WAITING: u32 = 60;
    let mut world = World::new(3, Faults::default(), 1400);
    world.hosts[2].add_app(2, 1 << 20);
    (0..2).for_each(|app| world.hosts[2].add_sink(app));
    let records = 0..WAITING + 1;
    announce(&mut world, 1, CHANNEL, 7, (records, WAITING + 1, None));
    for number in 1..=WAITING {
        record(&mut world, 7, number, number, None);
    }
    let host = &mut world.hosts[2];
    let (session, sink) = (host.apps[1].id, SinkSlot(0));
    host.handle.send(Command::CloseSink { session, sink });
    host.lane.poll();
    let looks = host.lane.state.looks;
    assert!(looks >= 2 * WAITING as usize, "{looks} looks");
    assert_eq!(host.used(1), 0);
    record(&mut world, 7, 0, 0, None);
    let host = &mut world.hosts[2];
    host.lane.poll();
    host.apps[0].receive(usize::MAX);
    assert_eq!(host.apps[0].received.len(), WAITING as usize + 1);
}

#[test]
fn a_record_without_room_costs_its_tenant_and_others_are_refused_without_a_look_until_the_next() {
    const SINKS: usize = 20;
    let mut world = World::new(3, Faults::default(), 1400);
    for app in 1..SINKS {
        world.hosts[2].add_app(app as u32 + 1, 1 << 20);
    }
    for app in 0..SINKS {
        world.hosts[2].add_sink(app);
    }
    announce(&mut world, 1, CHANNEL, 7, (0..DEPTH + 10, DEPTH + 10, None));
    for number in 0..DEPTH {
        record(&mut world, 7, number, number, None);
    }
    let spent = |world: &mut World| std::mem::take(&mut world.hosts[2].lane.state.received_cost);
    spent(&mut world);
    record(&mut world, 7, DEPTH, DEPTH, None);
    assert!(spent(&mut world) >= SINKS as i64 * fair::COPY);
    record(&mut world, 7, DEPTH + 1, DEPTH + 1, None);
    assert_eq!(spent(&mut world), 0);
    assert_eq!(world.hosts[2].lane.state.counters.read().rx_no_room, 2);
    // Sinks that take something are found to have room.
    world.round();
    for app in &mut world.hosts[2].apps {
        app.receive(usize::MAX);
        app.hand_back();
    }
    world.clock.0.fetch_add(SECOND, Ordering::Relaxed);
    world.round();
    record(&mut world, 7, DEPTH, DEPTH, None);
    assert_eq!(world.hosts[2].counters().received, u64::from(DEPTH) + 1);
}

#[test]
fn who_takes_nothing_pays_for_no_copies_of_what_others_get() {
    const FULL: usize = 20;
    const PARTS: u32 = 16;
    const STRIDE: u32 = 1024;
    let mut world = World::new(3, Faults::default(), 1400);
    for app in 1..FULL + 2 {
        let tenant = if app < FULL { 1 } else { 2 };
        world.hosts[2].add_app_of(tenant, app as u32 + 1, 1 << 20);
    }
    // Those of one tenant do not all come after each other.
    for app in (0..FULL + 2)
        .rev()
        .step_by(2)
        .chain((0..FULL + 2).step_by(2))
    {
        world.hosts[2].add_sink(app);
    }
    let records = DEPTH + PARTS;
    announce(&mut world, 1, CHANNEL, 7, (0..records, DEPTH + 1, Some(0)));
    let lane = |world: &mut World, behind| {
        let state = &mut world.hosts[2].lane.state;
        (state.behind, state.received_cost) = (behind, 0);
        state.tenants.show();
    };
    for number in 0..DEPTH {
        record(&mut world, 7, number, number, None);
        lane(&mut world, 0);
        for app in &mut world.hosts[2].apps[FULL..] {
            app.receive(usize::MAX);
            app.hand_back();
        }
    }
    lane(&mut world, tenants::MOST_BEHIND + 1);
    let whole = content(DEPTH, (PARTS * STRIDE) as usize);
    for (part, payload) in whole.chunks(STRIDE as usize).enumerate() {
        let number = DEPTH + part as u32;
        let kind = Kind::Reliable { number };
        let header = RecordHeader {
            sequence: DEPTH,
            message_length: PARTS * STRIDE,
            fragment_index: part as u32,
            fragment_stride: STRIDE as u16,
            ..control(CHANNEL.0, 7, TrafficClass::BEST_EFFORT, kind, payload.len())
        };
        take(&mut world, 1, header, payload);
    }
    lane(&mut world, 0);
    assert_eq!(world.hosts[2].lane.state.counters.read().rx_no_part, 0);
    let counted = world.hosts[2].counters();
    assert_eq!(counted.dropped_full, FULL as u64);
    for app in &mut world.hosts[2].apps[FULL..] {
        app.receive(usize::MAX);
        assert_eq!(app.received.len(), DEPTH as usize + 1);
    }
}

#[test]
fn what_is_refused_because_a_tenant_has_had_its_part_is_not_counted_as_for_want_of_room() {
    const SINKS: usize = 20;
    let mut world = World::new(3, Faults::default(), 1400);
    for app in 1..=SINKS {
        let tenant = if app < SINKS { 1 } else { 2 };
        world.hosts[2].add_app_of(tenant, app as u32 + 1, 1 << 20);
    }
    for app in 0..=SINKS {
        world.hosts[2].add_sink(app);
    }
    announce(&mut world, 1, CHANNEL, 7, (0..DEPTH, DEPTH, None));
    world.hosts[2].lane.state.behind = tenants::MOST_BEHIND + 1;
    for number in 0..DEPTH {
        record(&mut world, 7, number, number, None);
    }
    let counted = world.hosts[2].lane.state.counters.read();
    let received = world.hosts[2].counters().received;
    assert!((1..u64::from(DEPTH)).contains(&received), "{received}");
    let refused = u64::from(DEPTH) - received;
    assert_eq!((counted.rx_no_part, counted.rx_no_room), (refused, 0));
}

#[test]
fn a_message_that_is_given_up_is_lost_and_not_dropped_for_want_of_room_too() {
    let mut world = World::new(3, Faults::default(), 1400);
    world.hosts[2].add_sink(0);
    announce(
        &mut world,
        1,
        CHANNEL,
        7,
        (0..DEPTH + 3, DEPTH + 2, Some(0)),
    );
    for number in 0..DEPTH {
        record(&mut world, 7, number, number, None);
    }
    let counted = |world: &World| {
        let counters = world.hosts[2].counters();
        (counters.dropped_full, counters.lost)
    };
    // Of two parts, of which the second is given up.
    record(&mut world, 7, DEPTH, DEPTH, Some(0));
    let rest = DEPTH + 2..DEPTH + 3;
    announce(&mut world, 1, CHANNEL, 7, (rest, DEPTH + 2, Some(0)));
    record(&mut world, 7, DEPTH + 2, DEPTH + 1, None);
    assert_eq!(counted(&world), (1, 1));
}

#[test]
fn looks_that_were_put_forward_leave_no_more_behind_than_there_are_ends() {
    let mut world = World::with(2, Faults::default(), RELIABLE);
    world.transmit(&[100; 2], SECOND);
    let reliable = &mut world.hosts[0].lane.state.reliable;
    let (end, now_ns) = (End::Outbound(OutboundSlot(0)), i64::MAX / 2);
    while reliable.next_due(now_ns).is_some() {}
    for later in 0..1000 {
        reliable.wake(end, now_ns + later);
        reliable.wake(end, now_ns - 1);
        assert_eq!(reliable.next_due(now_ns - 1), Some(Some(end)));
        reliable.wake(end, now_ns + 5);
        reliable.wake(end, now_ns - 1);
        assert_eq!(reliable.next_due(now_ns - 1), Some(Some(end)));
    }
    assert!(reliable.timers.len() <= reliable.most_timers());
    reliable.wake(end, now_ns + 2000);
    let mut found = Vec::new();
    while let Some(due) = reliable.next_due(now_ns + 2000) {
        found.extend(due);
    }
    assert_eq!(found, [end], "once, after all that is left of others");
}

#[test]
fn a_peer_with_many_sources_has_nothing_forgotten_of_what_others_sources_had_sent() {
    let mut world = World::new(3, Faults::default(), 1400);
    world.hosts[2].add_sink(0);
    let forget = |world: &mut World, host: u64, source: u32| {
        assert!(announced(world, host, CHANNEL, source));
        let state = &mut world.hosts[2].lane.state;
        let all = state.reliable.inbound.iter();
        let heard: Vec<InboundSlot> = all.map(|(at, _)| at).collect();
        heard
            .into_iter()
            .for_each(|at| state.forget_reliable(at, true));
    };
    forget(&mut world, 0, 1);
    for source in 0..2 * MOST_LEFT as u32 {
        forget(&mut world, 1, source);
    }
    let lane = &mut world.hosts[2].lane;
    let [of, by] = [0, 1].map(|host: u64| lane.by_remote[&RemoteId(host)]);
    let left = &lane.state.reliable.left;
    assert_eq!((left[&of].len(), left[&by].len()), (1, MOST_LEFT));
    // Nor is anything kept of who is gone.
    lane.state.forget_reliable_of(by, true);
    assert!(!lane.state.reliable.left.contains_key(&by));
}

#[test]
fn who_comes_after_a_tenant_that_has_gone_does_not_have_its_places_counted_as_its_own() {
    let mut world = World::new(3, Faults::default(), 1400);
    world.hosts[2].add_app(2, 1 << 20);
    world.hosts[2].add_sink(0);
    world.hosts[2].add_sink(1);
    for source in 0..100 {
        assert!(announced(&mut world, 1, CHANNEL, source));
    }
    let of = |world: &World, app: u32| {
        let lane = &world.hosts[2].lane;
        let tenant = lane.state.tenants.sessions[lane.by_session[&SessionId(app)]].tenant;
        let all = lane.state.reliable.inbound.iter();
        all.filter(|(_, source)| source.pair.tenant == tenant)
            .count()
    };
    assert_eq!((of(&world, 1), of(&world, 2)), (100, 0));
    let host = &mut world.hosts[2];
    host.handle.send(Command::RemoveSession(SessionId(1)));
    host.lane.poll();
    assert_eq!(of(&world, 2), 100);
}

#[test]
fn what_cannot_be_sent_again_for_want_of_a_frame_is_sent_when_there_is_one_and_counts_then() {
    let network = network(faults(7, 30, 0, 0), 1400);
    let ways = [Way::new(1400), Way::new(1400)];
    let mut world = World::over(2, None, |host| {
        vec![Changing::open(&network, host, &ways[host], false)]
    });
    world.hosts[1].add_sink(0);
    world.subscribe(1);
    world.hosts[0].add_source(0, RELIABLE);
    world.transmit(&[1000; 10], SECOND);
    let before = world.hosts[0].counters().repaired;
    for _ in 0..30 {
        assert!(world.hosts[0].apps[0].emit(1000));
    }
    world.round();
    ways[0].full.store(true, Ordering::Relaxed);
    for _ in 0..20_000 {
        world.round();
    }
    assert_eq!(world.hosts[0].counters().repaired, before);
    // Nor is it tried all the time.
    let source = &world.hosts[0].lane.state.reliable.outbound[OutboundSlot(0)];
    assert_eq!(source.repairs_after_ns, outbound::REPAIR_NS[1]);
    ways[0].full.store(false, Ordering::Relaxed);
    world.transmit(&[], 5 * SECOND);
    assert!(world.hosts[0].counters().repaired > before);
    assert_all_in_order(&world.hosts[1].apps[0], 40);
}

#[test]
fn very_many_sources_for_one_tenant_leave_places_to_others_and_idle_ones_make_room() {
    const OTHER: ChannelId = ChannelId(6);
    const LAST: u32 = 2 * MOST_INBOUND as u32 - 1;
    let mut world = World::new(3, Faults::default(), 1400);
    world.hosts[2].add_app(2, 1 << 20);
    world.hosts[2].add_sink(0);
    world.hosts[2].add_sink_on(1, OTHER, SinkMode::default());
    let all = 0..=LAST;
    let heard = all.filter(|source| announced(&mut world, 1, CHANNEL, *source));
    assert_eq!(heard.count(), MOST_INBOUND / 2);
    let refused = world.hosts[2].lane.state.counters.read();
    assert_eq!(
        (refused.rx_no_place, refused.rx_no_sink),
        (3 * MOST_INBOUND as u64 / 2, 0)
    );
    // Another tenant, from the same peer, and the same one from another peer.
    let numbers = 100_000..100_500;
    assert!(
        numbers
            .clone()
            .all(|source| announced(&mut world, 1, OTHER, source))
    );
    assert!(
        numbers
            .clone()
            .all(|source| announced(&mut world, 0, CHANNEL, source))
    );
    assert!(!announced(&mut world, 1, CHANNEL, LAST));
    world.clock.0.fetch_add(IDLE_NS, Ordering::Relaxed);
    world.round();
    assert!(
        announced(&mut world, 1, OTHER, 100_000),
        "it is heard all the time"
    );
    assert!(announced(&mut world, 1, CHANNEL, LAST), "others are idle");
    assert!(announced(&mut world, 1, OTHER, 100_000));
    let before = world.hosts[2].lane.state.reliable.inbound.len();
    assert!(
        before > MOST_INBOUND / 2 - MOST_AGED,
        "at some of them in each look"
    );
    for _ in 0..=MOST_INBOUND / MOST_AGED {
        world.clock.0.fetch_add(AGE_EVERY_NS, Ordering::Relaxed);
        world.round();
        world.hosts[2].lane.state.age_reliable();
    }
    assert!(announced(&mut world, 1, OTHER, 100_000));
    let reliable = &world.hosts[2].lane.state.reliable;
    assert!(reliable.inbound.len() < 100);
    assert_eq!(reliable.on_channel.len(), reliable.inbound.len());
    assert_eq!(reliable.of_remote.len(), reliable.inbound.len());
}

#[test]
fn an_idle_source_that_was_forgotten_goes_on_without_loss() {
    let mut world = World::with(2, faults(3, 10, 0, 0), RELIABLE);
    world.transmit(&[100; 20], 5 * SECOND);
    let lane = &mut world.hosts[1].lane;
    let at = lane.state.reliable.inbound.iter().next().expect("heard").0;
    lane.state.forget_reliable(at, true);
    world.transmit(&[100; 20], 5 * SECOND);
    assert_all_in_order(&world.hosts[1].apps[0], 40);
    assert_eq!(world.hosts[1].counters().lost, 0);
}

#[test]
fn a_lane_that_came_on_top_of_the_most_receivers_hears_a_source_when_another_goes() {
    let mut world = World::new(2, Faults::default(), 1400);
    for other in 0..takt_recovery::MAX_PEERS as u64 {
        let address = format!("198.51.100.{}:7400", other + 1);
        let address: std::net::SocketAddr = address.parse().expect("an address");
        world.hosts[0].handle.send(Command::AddRemote {
            id: RemoteId(1000 + other),
            incarnation: 1000 + other as u32,
            label: 3000 + other as u32,
            protection: Protection::None,
            addresses: vec![address.ip()],
            endpoints: vec![Some(address)],
            takes: Vec::new(),
        });
        world.hosts[0].handle.send(Command::Subscriptions {
            remote: RemoteId(1000 + other),
            add: vec![CHANNEL.0],
            remove: Vec::new(),
        });
    }
    world.hosts[0].add_source(0, RELIABLE);
    world.hosts[1].add_sink(0);
    world.subscribe(1);
    world.hosts[0].apps[0].emit(100);
    for _ in 0..100 {
        world.round();
    }
    world.hosts[1].apps[0].receive(usize::MAX);
    assert!(
        world.hosts[1].apps[0].received.is_empty(),
        "there are too many"
    );
    world.hosts[0].handle.send(Command::Subscriptions {
        remote: RemoteId(1000),
        add: Vec::new(),
        remove: vec![CHANNEL.0],
    });
    world.round();
    world.hosts[0].apps[0].emit(100);
    world.until(SECOND, |world| {
        world.hosts[1].apps[0].receive(usize::MAX);
        !world.hosts[1].apps[0].received.is_empty()
    });
    assert_eq!(world.hosts[1].apps[0].received[0].0, 1);
}

/// A message in so long is taken at one sink, everything at the other: how long that takes, and how many the slow one got.
fn trickle(host: usize, every: Duration, count: u32) -> (i64, usize) {
    let evicts = Reliability::Reliable {
        deadline: None,
        slow_sinks: SlowSinks::Evict(Duration::from_millis(10)),
    };
    let mut world = World::new(2, Faults::default(), 1400);
    for app in 1..=2 {
        world.hosts[host].add_app(app as u32 + 1, 1 << 20);
        world.hosts[host].add_sink(app);
    }
    if host == 1 {
        world.subscribe(1);
    }
    world.hosts[0].add_source(0, evicts);
    let start = world.clock.0.load(Ordering::Relaxed);
    let mut next = start;
    world.until(60 * SECOND, |world| {
        let now = world.clock.0.load(Ordering::Relaxed);
        let app = &mut world.hosts[0].apps[0];
        while app.pending() < DEPTH as usize && app.next < count && app.emit(200) {}
        let apps = &mut world.hosts[host].apps;
        apps[1].receive(usize::MAX);
        apps[1].hand_back();
        if now >= next {
            next = now + every.as_nanos() as i64;
            apps[2].receive(1);
            apps[2].hand_back();
        }
        world.hosts[host].apps[1].received.len() == count as usize
    });
    let apps = &world.hosts[host].apps;
    assert_all_in_order(&apps[1], count as usize);
    let took = world.clock.0.load(Ordering::Relaxed) - start;
    (took, apps[2].received.len())
}

#[test]
fn a_sink_that_takes_a_message_now_and_then_is_waited_for_as_long_as_it_keeps_pace() {
    for host in [1, 0] {
        // One in 9 of the 10 ms that one is waited for which takes nothing; without an end it took 8 s.
        let (took, got) = trickle(host, Duration::from_millis(9), 1000);
        assert!(took < SECOND / 2, "host {host}: {took} ns");
        assert!(got < 100, "host {host}: {got}");
        // One in 1 ms is fast enough, and sets the pace.
        let (took, got) = trickle(host, Duration::from_millis(1), 300);
        assert!(got + 2 * DEPTH as usize >= 300, "host {host}: {got}");
        assert!(took > 150_000_000, "host {host}: {took} ns");
    }
}

/// Announcements, acknowledgements and repair leave while the gate of their class is open, as messages do.
#[test]
fn nothing_that_reliable_sources_and_their_receivers_say_leaves_through_a_closed_gate() {
    use takt_schedule::{GateEntry, GateList, GateMask, Link, Schedule};
    const CYCLE: i64 = 1_000_000;
    const OPEN: i64 = 200_000;
    let mut world = World::departing(2, faults(5, 10, 0, 0), 1400, Some(&patient()));
    let base = world.clock.0.load(Ordering::Relaxed);
    // All classes have the first 200 µs of each millisecond: afterwards nothing leaves.
    let schedule = Schedule {
        base_time: TaiTime::from_nanos(base),
        cycle_time_ns: CYCLE as u64,
        entries: vec![
            GateEntry::new(GateMask::ALL, OPEN as u32),
            GateEntry::new(GateMask::from_bits(0), (CYCLE - OPEN) as u32),
        ],
        ..Schedule::default()
    };
    for host in &mut world.hosts {
        let change = super::super::departure::ScheduleChange::Install {
            list: Arc::new(GateList::new(&schedule).expect("a schedule")),
            initial: GateMask::ALL,
            link: Link::ethernet(1_000_000_000),
            now: TaiTime::from_nanos(base - 1),
            classes: takt_schedule::ClassTable::default(),
            selection: Default::default(),
            begins: TaiTime::from_nanos(base),
            at_once: false,
        };
        host.handle.send(Command::Schedule { port: 0, change });
        host.lane.poll();
    }
    world.hosts[1].add_sink(0);
    world.subscribe(1);
    world.hosts[0].add_source(0, RELIABLE);
    let mut sent = [0; 2];
    let end = base + 10 * SECOND;
    while world.hosts[1].apps[0].received.len() < 300 || world.hosts[0].apps[0].pending() > 0 {
        let app = &mut world.hosts[0].apps[0];
        while app.pending() < DEPTH as usize && app.next < 300 && app.emit(200) {}
        world.clock.0.fetch_add(STEP_NS, Ordering::Relaxed);
        for (at, host) in world.hosts.iter_mut().enumerate() {
            let left = |host: &Host| host.lane.ports[0].port.counters().tx_datagrams;
            let before = left(host);
            host.lane.poll();
            if left(host) > before {
                // Whatever left in this round did so before now, and after the last one.
                let phase = (world.clock.0.load(Ordering::Relaxed) - base).rem_euclid(CYCLE);
                assert!(
                    phase < OPEN,
                    "host {at} sends {phase} ns after the cycle began"
                );
                sent[at] += left(host) - before;
            }
            for app in &mut host.apps {
                app.complete();
                app.receive(usize::MAX);
                app.hand_back();
            }
        }
        let now = world.clock.0.load(Ordering::Relaxed);
        assert!(
            now < end,
            "{} have come",
            world.hosts[1].apps[0].received.len()
        );
    }
    assert_all_in_order(&world.hosts[1].apps[0], 300);
    // The second says nothing but acknowledgements.
    assert!(sent[1] > 5, "{sent:?}");
    assert!(world.hosts[0].counters().repaired > 0);
}

#[test]
fn a_source_begins_no_message_that_a_sink_has_no_memory_for() {
    let mut world = World::with(2, Faults::default(), RELIABLE);
    let long = |app: &mut App, count| (0..count).for_each(|_| assert!(app.emit(60_000)));
    // All but an eighth of what the sink may hold, and then what tells nothing of how long the next ones are.
    let mut left = 7;
    world.until(SECOND, |world| {
        let app = &mut world.hosts[0].apps[0];
        if left > 0 && app.pending() < 4 {
            long(app, 1);
            left -= 1;
        }
        left == 0 && app.pending() == 0
    });
    (0..3).for_each(|_| assert!(world.hosts[0].apps[0].emit(300)));
    long(&mut world.hosts[0].apps[0], 6);
    for _ in 0..2000 {
        world.round();
    }
    // One is tried, by its first record alone.
    let source = world.hosts[0].lane.state.reliable.outbound.iter().next();
    assert_eq!(source.expect("a source").1.engine.retained(), 1);
    world.until(SECOND, |world| {
        world.hosts[1].apps[0].receive(usize::MAX);
        world.hosts[1].apps[0].hand_back();
        world.hosts[0].apps[0].pending() == 0
    });
    assert_all_in_order(&world.hosts[1].apps[0], 16);
}
