//! A lane driven step by step: races between commands and doorbells, each test one interleaving that two threads
//! can take; and departures, in virtual time.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize};
use std::sync::mpsc::channel;
use std::time::Duration;

use takt_clock::{SteppedClock, SystemTai};
use takt_datapath::memory::{MemoryNetwork, MemoryNetworkConfig};
use takt_datapath::{
    ConnectError, Datagram, Datapath, Frame, PeerHandle, Port, PortCounters, PortRequest,
    ReserveError,
};
use takt_session::ChannelId;
use takt_session::layout::{
    ArenaMap, Completion, DEFAULT_DEPTH, FLAG_LAUNCH_TIME, HEADER_BYTES, LANE_DIRTY_OFFSET,
    LANE_STATE_OFFSET, Outcome, Release, RxDescriptor, SinkBlock, SourceBlock, TxDescriptor,
};
use takt_shm::{Arena, Consumer, LaneBell, LaneBellHost, Producer, RingLayout, SinkBell};
use takt_time::TrafficClass;
use takt_wire::channel::{DatagramCursor, DatagramHeader, Kind, Protection, RecordHeader};
use takt_wire::ethernet::MacAddress;

use crate::counters::{DepartureCounters, NetworkCounters};
use crate::ids::{RemoteId, SessionId};
use crate::policy::{Policy, Rates};

use super::commands::MOST_LOOKS;
use super::departure::{DEVICE_LEAD_NS, ScheduleChange};
use super::destinations::OF_SUBSCRIPTION;
use super::network::{NetworkTable, OF_EXIT, Owner, Place, Stations};
use super::remote::Remote;
use super::session::{LaneSession, SessionParts};
use super::*;
use crate::slots::{SessionSlot, SinkSlot, SourceSlot};

mod delays;
mod detours;
mod direct;
mod fairness;
mod local;
mod priority;
mod restarts;
mod room;

const CHANNEL: ChannelId = ChannelId(5);
const SESSION: SessionId = SessionId(1);

/// A lane without ports, and one application at it.
struct Scene {
    lane: Lane,
    handle: LaneHandle,
    arena: Arc<Arena>,
    bell: LaneBell,
    source: SourceBlock,
    sink: SinkBlock,
}

/// What has become of the first session's launch times: those that left, the late ones among them, and those that did not.
fn launches(lane: &Lane) -> (u64, u64, u64) {
    let session = lane.state.tenants.sessions.get(SessionSlot(0));
    let counted = session.expect("it is there").counters.read();
    (
        counted.launched,
        counted.launched_late,
        counted.launches_missed,
    )
}

impl Scene {
    fn new() -> Self {
        Self::with(Vec::new(), Arc::new(SystemTai))
    }

    fn with(ports: Vec<LanePort>, clock: Arc<dyn Clock>) -> Self {
        let (events, _) = channel();
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        let wake = Arc::new(rustix::event::eventfd(0, flags).expect("an eventfd"));
        let (mut lane, handle) = Lane::new(
            0,
            1,
            2,
            ports,
            &Limits::default(),
            clock,
            Arc::default(),
            EventSender { events, wake },
        )
        .expect("a lane");
        let map = ArenaMap {
            ring_bytes: 1 << 20,
            tx_bytes: 1 << 16,
            rx_bytes: 1 << 16,
        };
        let arena = Arc::new(Arena::create("lane-test", map.total()).expect("an arena"));
        let depth = DEFAULT_DEPTH;
        let offset = HEADER_BYTES;
        let source = SourceBlock { offset, depth };
        let offset = offset + SourceBlock::bytes(depth);
        let sink = SinkBlock { offset, depth };
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
            id: SESSION,
            tenant: 0,
            arena: arena.clone(),
            map,
            bell,
            max_message: 1 << 16,
            classes: 0xff,
            rates: Arc::new(Rates::new(&Policy::default())),
            policer: Arc::default(),
            counters: Arc::default(),
        });
        handle.send(Command::AddSession(Box::new(session)));
        lane.poll();
        Self {
            lane,
            handle,
            arena,
            bell: application,
            source,
            sink,
        }
    }

    fn add_source(&self) {
        self.add_source_of(SourceTarget::Channel(CHANNEL));
    }

    fn add_frame_source(&self, owner: Owner) {
        self.add_source_of(SourceTarget::Network(Arc::new(owner)));
    }

    fn add_source_of(&self, target: SourceTarget) {
        self.handle.send(Command::AddSource {
            session: SESSION,
            source: SourceSlot(0),
            block: self.source,
            target,
            carrier: Carrier::any(0),
            number: 0,
            first: 0,
            reliability: Default::default(),
            waits: false,
        });
    }

    /// A lane elsewhere that is there, per port of this one, and reads the channel.
    fn add_reader(&self, endpoints: Vec<Option<SocketAddr>>) {
        self.handle.send(Command::AddRemote {
            id: RemoteId(7),
            incarnation: 70,
            label: 71,
            protection: Protection::None,
            addresses: vec![[192, 0, 2, 2].into()],
            endpoints,
            takes: Vec::new(),
        });
        self.handle.send(Command::Subscriptions {
            remote: RemoteId(7),
            add: vec![CHANNEL.0],
            remove: Vec::new(),
        });
    }

    fn add_sink(&self) {
        self.handle.send(Command::AddSink {
            session: SESSION,
            sink: SinkSlot(0),
            block: self.sink,
            channel: CHANNEL,
            notify: None,
            mode: takt_session::SinkMode::default(),
        });
    }

    fn emit(&self) {
        self.emit_all([TxDescriptor {
            length: 3,
            ..TxDescriptor::default()
        }]);
    }

    /// The ring of the source, in which so many messages have been emitted.
    fn tx(&self, emitted: usize) -> Producer<TxDescriptor> {
        let ring = self.source.tx_ring();
        let mut tx = Producer::attach(&self.arena, ring, self.source.depth).expect("rings fit");
        for chunk in 0..emitted {
            // In the place of what has been taken.
            let again = TxDescriptor {
                chunk: chunk as u32,
                ..TxDescriptor::default()
            };
            assert!(tx.push(again).expect("a sane ring"));
        }
        tx
    }

    fn emit_all(&self, descriptors: impl IntoIterator<Item = TxDescriptor>) {
        let mut tx =
            Producer::<TxDescriptor>::attach(&self.arena, self.source.tx_ring(), self.source.depth)
                .expect("rings fit");
        for descriptor in descriptors {
            assert!(tx.push(descriptor).expect("a sane ring"));
        }
        self.bell.ring();
    }

    fn received(&self) -> u32 {
        let mut rx =
            Consumer::<RxDescriptor>::attach(&self.arena, self.sink.rx_ring(), self.sink.depth)
                .expect("rings fit");
        rx.available().expect("a sane ring")
    }
}

#[test]
fn a_doorbell_that_is_taken_before_the_source_is_there_is_not_forgotten() {
    let mut scene = Scene::new();
    scene.add_sink();
    scene.lane.poll();
    // The lane looks at its mailbox, then comes the source and emits, then the lane takes the doorbell.
    scene.emit();
    scene.lane.state.egress(&mut []);
    scene.add_source();
    scene.lane.poll();
    assert_eq!(scene.received(), 1);
}

#[test]
fn a_message_is_for_a_sink_whose_opening_is_in_the_mailbox() {
    let mut scene = Scene::new();
    scene.add_source();
    scene.lane.poll();
    // The lane looks at its mailbox, then comes the sink, then the message.
    scene.add_sink();
    scene.emit();
    scene.lane.state.egress(&mut []);
    scene.lane.poll();
    assert_eq!(scene.received(), 1);
}

/// A datagram of a lane elsewhere, with a message of the channel.
pub(crate) fn datagram_of(sender: u32) -> Vec<u8> {
    datagram_with(sender, 0)
}

/// The same with the message of this number.
fn datagram_with(sender: u32, sequence: u32) -> Vec<u8> {
    let mut bytes = vec![0; 256];
    let mut cursor = DatagramCursor::new();
    let header = RecordHeader {
        channel: CHANNEL.0,
        source: 1,
        sequence,
        message_length: 3,
        fragment_index: 0,
        fragment_stride: 0,
        class: TrafficClass::BEST_EFFORT,
        kind: Kind::Message,
    };
    cursor.push(&mut bytes, &header).expect("it fits");
    let length = cursor.finish(&mut bytes, Protection::None, sender, 5, 0);
    bytes.truncate(length);
    bytes
}

/// What a lane is told of a lane elsewhere that sends to it.
fn add_writer(incarnation: u32, address: std::net::IpAddr) -> Command {
    Command::AddRemote {
        id: RemoteId(9),
        incarnation,
        label: 78,
        protection: Protection::None,
        addresses: vec![address],
        endpoints: Vec::new(),
        takes: Vec::new(),
    }
}

#[test]
fn a_datagram_is_not_given_up_while_its_sender_is_in_the_mailbox() {
    let mut scene = Scene::new();
    scene.add_sink();
    scene.lane.poll();
    let source: SocketAddr = "192.0.2.9:7400".parse().expect("an address");
    let datagram = |payload| Datagram {
        source,
        destination_port: 7401,
        payload,
    };
    let (known, stranger) = (datagram_of(77), datagram_of(79));
    // The lane looks at its mailbox, then comes who that is, then its datagram.
    scene.handle.send(add_writer(77, source.ip()));
    let state = &mut scene.lane.state;
    state.ingress(&datagram(&known), false);
    state.ingress(&datagram(&stranger), false);
    assert_eq!(state.counters.read().rx_unknown_sender, 0);
    scene.lane.poll();
    assert_eq!(scene.received(), 1);
    // Who is not known even then is counted, and at once when all is taken over.
    let state = &mut scene.lane.state;
    assert_eq!(state.counters.read().rx_unknown_sender, 1);
    state.ingress(&datagram(&stranger), false);
    assert_eq!(state.counters.read().rx_unknown_sender, 2);
}

#[test]
fn who_names_the_number_of_a_lane_elsewhere_takes_nothing_from_it() {
    use std::net::IpAddr;
    let mut scene = Scene::new();
    scene.add_sink();
    let [honest, other, device] = [1, 2, 3].map(|last| IpAddr::from([192, 0, 2, last]));
    let add = |scene: &mut Scene, id: u64, addresses: &[IpAddr]| {
        scene.handle.send(Command::AddRemote {
            id: RemoteId(id),
            incarnation: 77,
            label: 78,
            protection: Protection::None,
            addresses: addresses.to_vec(),
            endpoints: Vec::new(),
            takes: Vec::new(),
        });
        scene.lane.poll();
    };
    let remove = |scene: &mut Scene, id: u64| {
        let id = RemoteId(id);
        let clean = false;
        scene.handle.send(Command::RemoveRemote { id, clean });
        scene.lane.poll();
    };
    // Whose a datagram is, by the number that it was told under.
    let whose = |scene: &mut Scene, from: Option<IpAddr>| {
        let at = scene.lane.state.senders.find(77, from)?;
        let mut known = scene.lane.by_remote.iter();
        known.find(|(_, known)| **known == at).map(|(id, _)| id.0)
    };
    add(&mut scene, 1, &[honest, device]);
    // Another one: at its own address, and at those that it only says are its own.
    add(&mut scene, 2, &[other, honest, device]);
    // A lane of this node.
    add(&mut scene, 3, &[]);
    for (from, id) in [(honest, 1), (device, 1), (other, 2)] {
        assert_eq!(whose(&mut scene, Some(from)), Some(id), "{from}");
    }
    assert_eq!(whose(&mut scene, None), Some(3));
    // Its datagrams are taken, whichever way they come.
    let datagram = datagram_of(77);
    let datagram = |from: IpAddr| Datagram {
        source: SocketAddr::new(from, 7400),
        destination_port: 7401,
        payload: &datagram,
    };
    scene.lane.state.ingress(&datagram(honest), false);
    scene.lane.poll();
    assert_eq!(scene.received(), 1);
    scene
        .lane
        .state
        .ingress(&datagram([192, 0, 2, 4].into()), false);
    let counters = scene.lane.state.counters.read();
    assert_eq!((scene.received(), counters.rx_unknown_sender), (1, 1));
    // Who goes leaves to others what they say is theirs.
    remove(&mut scene, 1);
    assert_eq!(whose(&mut scene, Some(device)), Some(2));
    // Who proves that it is there gets it back.
    add(&mut scene, 4, &[honest]);
    assert_eq!(whose(&mut scene, Some(honest)), Some(4));
    remove(&mut scene, 2);
    assert_eq!(whose(&mut scene, Some(other)), None);
    assert_eq!(whose(&mut scene, Some(honest)), Some(4));
}

#[test]
fn what_a_sibling_lane_passes_on_is_its_senders_and_never_the_siblings_own() {
    let network = MemoryNetwork::new(MemoryNetworkConfig::default());
    let binds = ["192.0.2.1:1", "192.0.2.1:2"];
    let [mut mesh, mut sibling] = binds.map(|bind| open(&network, bind));
    let peer = mesh.connect(sibling.local()).expect("known");
    let kind = MemoryNetwork::KIND;
    let mut mesh = LanePort::new(kind, mesh, true, Arc::default(), None, false);
    let mut scene = Scene::new();
    scene.add_sink();
    // The sibling, whose datagrams are not protected, has the number that the datagram names.
    scene.handle.send(Command::AddRemote {
        id: RemoteId(1),
        incarnation: 77,
        label: 2,
        protection: Protection::None,
        addresses: Vec::new(),
        endpoints: Vec::new(),
        takes: Vec::new(),
    });
    scene.lane.poll();
    let payload = datagram_of(77);
    let sources = ["192.0.2.9:7400", "[fd00::9]:7400"];
    for (at, source) in (0..).zip(sources) {
        let datagram = Datagram {
            source: source.parse().expect("an address"),
            destination_port: 7402,
            payload: &payload,
        };
        let siblings = [(7402, peer)];
        port::forward(
            &LaneCounters::default(),
            Some(&mut mesh),
            &siblings,
            &datagram,
        );
        assert!(mesh.port.flush());
        let state = &mut scene.lane.state;
        sibling.receive(1, &mut |datagram| state.ingress_between_lanes(&datagram));
        scene.lane.poll();
        assert_eq!(scene.received(), at, "nobody is known there");
        let address = datagram.source.ip();
        scene.handle.send(Command::AddRemote {
            id: RemoteId(2 + u64::from(at)),
            incarnation: 77,
            label: 78,
            protection: Protection::None,
            addresses: vec![address],
            endpoints: Vec::new(),
            takes: Vec::new(),
        });
        scene.lane.poll();
        port::forward(
            &LaneCounters::default(),
            Some(&mut mesh),
            &siblings,
            &datagram,
        );
        assert!(mesh.port.flush());
        let state = &mut scene.lane.state;
        sibling.receive(1, &mut |datagram| state.ingress_between_lanes(&datagram));
        scene.lane.poll();
        assert_eq!(scene.received(), at + 1);
    }
    assert_eq!(scene.lane.state.counters.read().rx_unknown_sender, 2);
}

#[test]
fn what_is_passed_on_leaves_room_for_what_lanes_say_to_each_other() {
    let network = MemoryNetwork::new(MemoryNetworkConfig {
        queue_depth: 16,
        ..MemoryNetworkConfig::default()
    });
    let binds = ["192.0.2.1:1", "192.0.2.1:2"];
    let [mut mesh, mut sibling] = binds.map(|bind| open(&network, bind));
    let peer = mesh.connect(sibling.local()).expect("known");
    let kind = MemoryNetwork::KIND;
    let mut mesh = LanePort::new(kind, mesh, true, Arc::default(), None, false);
    let counters = LaneCounters::default();
    let payload = datagram_of(77);
    let datagram = Datagram {
        source: "192.0.2.9:7400".parse().expect("an address"),
        destination_port: 7402,
        payload: &payload,
    };
    for _ in 0..100 {
        port::forward(&counters, Some(&mut mesh), &[(7402, peer)], &datagram);
        assert!(mesh.port.flush());
    }
    let read = counters.read();
    assert_eq!((read.rx_forwarded, read.rx_misdirected), (12, 88));
    for _ in 0..4 {
        let frame = mesh.port.reserve(peer).expect("a frame");
        let class = TrafficClass::BEST_EFFORT;
        mesh.port.commit(frame, 1, class, None);
        assert!(mesh.port.flush());
    }
    let mut own = 0;
    sibling.receive(100, &mut |datagram| {
        own += usize::from(datagram.payload.len() == 1)
    });
    assert_eq!((own, sibling.counters().rx_dropped), (4, 0));
}

#[test]
fn what_many_pass_on_in_a_round_leaves_that_room_too() {
    const DEPTH: usize = 256;
    const LANES: usize = 4;
    let network = MemoryNetwork::new(MemoryNetworkConfig {
        queue_depth: DEPTH,
        ..MemoryNetworkConfig::default()
    });
    let mut sibling = open(&network, "192.0.2.1:1");
    let mut lanes: Vec<(LanePort, PeerHandle)> = (0..LANES)
        .map(|at| {
            let mut mesh = open(&network, &format!("192.0.2.1:{}", 2 + at));
            let peer = mesh.connect(sibling.local()).expect("known");
            let kind = MemoryNetwork::KIND;
            let mesh = LanePort::new(kind, mesh, true, Arc::default(), None, false);
            (mesh, peer)
        })
        .collect();
    let counters = LaneCounters::default();
    let payload = datagram_of(77);
    let datagram = Datagram {
        source: "192.0.2.9:7400".parse().expect("an address"),
        destination_port: 7402,
        payload: &payload,
    };
    // Each takes from its ports as much as in a round, all at once, before it sends anything.
    for _ in 0..4 {
        for (mesh, peer) in &mut lanes {
            for _ in 0..RECEIVE_BUDGET {
                port::forward(&counters, Some(mesh), &[(7402, *peer)], &datagram);
            }
        }
        for (mesh, _) in &mut lanes {
            assert!(mesh.port.flush());
        }
    }
    let most = 3 * DEPTH / 4 + LANES * port::PASSED_ON_AT_ONCE as usize;
    let own = DEPTH - most;
    let (mesh, peer) = &mut lanes[0];
    for _ in 0..own {
        let frame = mesh.port.reserve(*peer).expect("a frame");
        let class = TrafficClass::BEST_EFFORT;
        mesh.port.commit(frame, 1, class, None);
    }
    assert!(mesh.port.flush());
    let mut came = 0;
    sibling.receive(usize::MAX, &mut |datagram| {
        came += usize::from(datagram.payload.len() == 1);
    });
    assert_eq!((came, sibling.counters().rx_dropped), (own, 0));
}

#[test]
fn a_datagram_for_a_sibling_lane_is_not_given_up_while_its_sender_is_in_the_mailbox() {
    let network = MemoryNetwork::new(MemoryNetworkConfig::default());
    let binds = ["192.0.2.1:7401", "192.0.2.1:1", "192.0.2.1:2"];
    let [device, mut mesh, mut sibling] = binds.map(|bind| open(&network, bind));
    let peer = mesh.connect(sibling.local()).expect("known");
    let [mut device, mesh] = [(device, false), (mesh, true)].map(|(port, trusted)| {
        let kind = MemoryNetwork::KIND;
        LanePort::new(kind, port, trusted, Arc::default(), None, false)
    });
    device.siblings.push((7402, peer));
    let mut scene = Scene::with(vec![device, mesh], Arc::new(SystemTai));
    let source: SocketAddr = "192.0.2.9:7400".parse().expect("an address");
    let datagram = |payload| Datagram {
        source,
        destination_port: 7402,
        payload,
    };
    let (known, stranger) = (datagram_of(77), datagram_of(79));
    // The lane looks at its mailbox, then comes who that is, then its datagram.
    scene.handle.send(add_writer(77, source.ip()));
    let state = &mut scene.lane.state;
    state.receiving = 0;
    assert!(!state.admits(&datagram(&known)));
    assert_eq!(state.counters.read().rx_unknown_sender, 0);
    // Strangers have no more kept of them.
    (0..100).for_each(|_| assert!(!state.admits(&datagram(&stranger))));
    let at_once = state.counters.read().rx_unknown_sender;
    assert!((1..100).contains(&at_once), "{at_once}");
    scene.lane.poll();
    let mut came = Vec::new();
    sibling.receive(8, &mut |datagram| {
        let datagram = port::passed_on(&datagram).expect("passed on");
        came.push((datagram.source.ip(), datagram.payload.to_vec()));
    });
    assert_eq!(came, [(source.ip(), known.clone())]);
    let state = &mut scene.lane.state;
    assert_eq!(state.counters.read().rx_forwarded, 1);
    assert_eq!(state.counters.read().rx_unknown_sender, 100);
    // When all is taken over it is known at once who is a stranger.
    assert!(!state.admits(&datagram(&stranger)));
    assert_eq!(state.counters.read().rx_unknown_sender, 101);
}

/// A network with these stations.
fn network_of(
    network: usize,
    carrier: crate::config::Carrier,
    table: NetworkTable,
    counters: &Arc<NetworkCounters>,
) -> Command {
    Command::Network {
        network,
        carrier,
        stations: Arc::new(Stations::new(table)),
        counters: counters.clone(),
    }
}

fn vxlan(port: u16) -> crate::config::Carrier {
    crate::config::Carrier::Vxlan {
        id: takt_wire::vxlan::NetworkId::new(7).expect("a number"),
        port,
    }
}

#[test]
fn a_network_with_very_many_tunnel_endpoints_is_taken_over_in_many_rounds() {
    const STATIONS: u32 = 4096;
    const ENDPOINTS: u32 = 1024;
    // What a round may look at beyond what it is for.
    const OF_ONE: usize = 2 * STATIONS as usize + OF_EXIT;
    const LEAST: usize = ENDPOINTS as usize * OF_EXIT / MOST_LOOKS / 2;
    let network = MemoryNetwork::new(MemoryNetworkConfig::default());
    let port = LanePort::new(
        MemoryNetwork::KIND,
        open(&network, "192.0.2.1:1"),
        false,
        Arc::default(),
        Some(&crate::config::Departure::default()),
        false,
    );
    let mut scene = Scene::with(vec![port], Arc::new(SystemTai));
    let counters = Arc::new(NetworkCounters::default());
    let endpoint = |number: u32| Place::Tunnel(std::net::Ipv4Addr::from(10 << 24 | number).into());
    // Each endpoint from the first one on has stations.
    let table = |first: u32| {
        let station = |number: u32| {
            let [a, b, c, d] = number.to_be_bytes();
            let endpoint = endpoint(first + number % (ENDPOINTS - first));
            (MacAddress([2, 0, a, b, c, d]), endpoint)
        };
        NetworkTable {
            stations: (0..STATIONS).map(station).collect(),
            ..NetworkTable::default()
        }
    };
    let send = |scene: &Scene, number: usize, table: NetworkTable| {
        let command = network_of(number, vxlan(4789), table, &counters);
        scene.handle.send(command);
    };
    let ways = |scene: &Scene| scene.lane.state.networks[0].handles(0).count();
    send(&scene, 0, table(0));
    scene.lane.poll();
    assert!((1..ENDPOINTS as usize).contains(&ways(&scene)));
    let mailbox = scene.lane.mailbox.clone();
    assert!(!mailbox.has_done(mailbox.told()), "frames wait for it");
    assert!(rounds_of_commands(&mut scene.lane, OF_ONE) >= LEAST);
    assert!(mailbox.has_done(mailbox.told()));
    assert_eq!(ways(&scene), ENDPOINTS as usize);
    // As many as there are pods, and each costs as much as there are endpoints.
    let looks = 64 * ENDPOINTS as usize;
    for _ in 0..64 {
        send(&scene, 0, table(0));
    }
    assert!(rounds_of_commands(&mut scene.lane, OF_ONE) >= looks / MOST_LOOKS);
    // Another network uses some of the endpoints that go.
    let used = [ENDPOINTS - 2, 0].map(|at| (MacAddress([2, 0, 0, 0, 0, 9]), endpoint(at)));
    let other = NetworkTable {
        stations: used.to_vec(),
        ..NetworkTable::default()
    };
    send(&scene, 1, other);
    scene.lane.poll();
    let handles = |scene: &Scene, number: usize| -> Vec<PeerHandle> {
        scene.lane.state.networks[number].handles(0).collect()
    };
    let (before, shared) = (handles(&scene, 0), handles(&scene, 1));
    send(&scene, 0, table(ENDPOINTS - 2));
    assert!(rounds_of_commands(&mut scene.lane, OF_ONE) >= LEAST);
    let kept = handles(&scene, 0);
    assert_eq!((kept.len(), shared.len()), (2, 2));
    let port = scene.lane.ports[0].port.as_mut();
    for handle in before {
        let known = kept.contains(&handle) || shared.contains(&handle);
        assert_eq!(port.max_payload(handle) > 0, known, "{handle:?}");
    }
    // Ways are looked for again a part at a time too, and only where there is none.
    scene.handle.send(Command::ReconnectNetworks);
    rounds_of_commands(&mut scene.lane, 0);
    assert!(mailbox.has_done(mailbox.told()));
}

#[test]
fn frames_for_endpoints_that_are_gone_are_taken_out_and_others_stay() {
    let mut one = Timed::new(false, &[]);
    let counters = Arc::new(NetworkCounters::default());
    let ends = [3, 4, 5].map(|last| std::net::IpAddr::from([192, 0, 2, last]));
    let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
    let table = |ends: &[std::net::IpAddr]| {
        let stations = ends.iter().zip(3..);
        NetworkTable {
            stations: stations
                .map(|(end, last)| (mac(last), Place::Tunnel(*end)))
                .collect(),
            ..NetworkTable::default()
        }
    };
    let scene = &mut one.scene;
    (scene.handle).send(network_of(0, vxlan(1), table(&ends), &counters));
    scene.lane.poll();
    let piece = |exit: usize| super::departure::Piece {
        // None that is there: what becomes of its frames is told nobody.
        session: SessionSlot(7),
        source: SourceSlot(0),
        tenant: 0,
        descriptor: TxDescriptor {
            class: 5,
            flags: FLAG_LAUNCH_TIME,
            launch_time_ns: launch(0),
            ..TxDescriptor::default()
        },
        declared: false,
        again: true,
        destination: super::departure::Destination::Network { network: 0, exit },
    };
    let departures = scene.lane.ports[0].departures.as_mut();
    let departures = departures.expect("a scheduler");
    for exit in [0, 1, 2, 2] {
        let queued = departures.queue_frame(piece(exit), 64, TaiTime::from_nanos(0));
        assert_eq!(queued, Ok(true));
    }
    (scene.handle).send(network_of(0, vxlan(1), table(&ends[..1]), &counters));
    scene.lane.poll();
    let departures = scene.lane.ports[0].departures.as_ref();
    assert_eq!(departures.map(|departures| departures.queued()), Some(1));
    assert_eq!(scene.lane.state.networks[0].handles(0).count(), 1);
}

#[test]
fn a_frame_is_not_given_up_while_the_way_that_its_program_was_told_of_is_in_the_mailbox() {
    let mut scene = Scene::new();
    let mac = MacAddress([2, 0, 0, 0, 0, 1]);
    let counters = Arc::new(NetworkCounters::default());
    let table = |others| NetworkTable {
        others,
        ..NetworkTable::default()
    };
    let carrier = crate::config::Carrier::Native { vlan: None };
    let network = |table| network_of(0, carrier, table, &counters);
    scene.handle.send(network(table(Vec::new())));
    let owner = Owner {
        network: 0,
        mac,
        addresses: Vec::new(),
        mtu: 1500,
        ether_types: Vec::new(),
        vlans: Vec::new(),
        classes: 0xff,
    };
    scene.add_frame_source(owner);
    scene.lane.poll();
    let frame = |chunk| TxDescriptor {
        chunk,
        length: 60,
        ..TxDescriptor::default()
    };
    // The lane looks at its mailbox, then comes the way, then the frame.
    scene.handle.send(network(table(vec![Place::Link(None)])));
    scene.emit_all([frame(0)]);
    scene.lane.state.egress(&mut []);
    while scene.lane.poll() {}
    let read = counters.read();
    assert_eq!(
        (read.unknown, read.unreachable),
        (0, 1),
        "no port has a link"
    );
    // Without a way, it is given up once all is heard.
    scene.handle.send(network(table(Vec::new())));
    scene.lane.poll();
    scene.handle.send(network(table(Vec::new())));
    assert!(scene.tx(1).push(frame(1)).expect("a sane ring"));
    scene.bell.ring();
    scene.lane.state.egress(&mut []);
    assert_eq!(counters.read().unknown, 0);
    while scene.lane.poll() {}
    assert_eq!(counters.read().unknown, 1);
}

#[test]
fn a_tag_makes_no_frame_one_of_a_class_whose_streams_are_declared() {
    let network = MemoryNetwork::new(MemoryNetworkConfig::default());
    let elsewhere = open(&network, "192.0.2.2:1");
    let port = untimed(open(&network, "192.0.2.1:1"));
    let mut scene = Scene::with(vec![port], Arc::new(SystemTai));
    let mac = MacAddress([2, 0, 0, 0, 0, 1]);
    let counters = Arc::new(NetworkCounters::default());
    let table = NetworkTable {
        others: vec![Place::Tunnel(elsewhere.local().ip())],
        ..NetworkTable::default()
    };
    let carrier = vxlan(elsewhere.local().port());
    let command = network_of(0, carrier, table, &counters);
    scene.handle.send(command);
    let owner = Owner {
        network: 0,
        mac,
        addresses: Vec::new(),
        mtu: 1300,
        ether_types: vec![takt_wire::ethernet::EtherType(0x22f0)],
        vlans: vec![0],
        classes: 1 << 0 | 1 << 5,
    };
    scene.add_frame_source(owner);
    scene.lane.poll();
    let map = ArenaMap {
        ring_bytes: 1 << 20,
        tx_bytes: 1 << 16,
        rx_bytes: 1 << 16,
    };
    let mut tx = scene.tx(0);
    let mut chunk = 0;
    let mut emit = |scene: &mut Scene, class: u8, priority: u8| {
        let mut frame = vec![2, 0, 0, 0, 0, 9];
        frame.extend(mac.0);
        frame.extend([0x81, 0, priority << 5, 0, 0x22, 0xf0]);
        frame.resize(60, 0);
        let place = map.tx_offset() + chunk as usize * takt_shm::CHUNK;
        let place = scene.arena.slice(place, frame.len()).expect("within");
        place.write_from(0, &frame).expect("as long");
        let descriptor = TxDescriptor {
            chunk,
            length: frame.len() as u32,
            class,
            ..TxDescriptor::default()
        };
        chunk += 1;
        assert!(tx.push(descriptor).expect("a sane ring"));
        scene.bell.ring();
        while scene.lane.poll() {}
        let read = counters.read();
        (read.sent, read.refused)
    };
    assert_eq!(emit(&mut scene, 0, 5), (1, 0), "nothing is declared");
    let stream = crate::policing::DeclaredStream {
        name: "axis".into(),
        flow: crate::policing::Flow::Channel(CHANNEL),
        talker: takt_schedule::admission::Talker {
            priority: TrafficClass::new(5).expect("a class"),
            period_ns: 1_000_000,
            offset_ns: 0,
            window_ns: 0,
            octets: 600,
            frames: 1,
        },
    };
    let policy = Policy {
        streams: vec![stream],
        undeclared_streams: true,
        ..Policy::default()
    };
    let policer = crate::policing::Policer::new(&policy, &Default::default());
    scene.lane.state.tenants.police(0, &Arc::new(policer));
    assert_eq!(emit(&mut scene, 0, 5), (1, 1), "of a class of its own");
    assert_eq!(emit(&mut scene, 0, 0), (2, 1));
    assert_eq!(emit(&mut scene, 5, 5), (3, 1), "policed as of its class");
    assert_eq!(emit(&mut scene, 5, 0), (4, 1), "it leaves as others do");
}

#[test]
fn a_lane_that_parks_looks_after_messages_that_came_meanwhile() {
    let mut scene = Scene::new();
    scene.add_sink();
    scene.add_source();
    scene.lane.poll();
    scene.lane.poll();
    assert!(scene.lane.park().is_some(), "nothing to do");
    scene.lane.unpark();
    scene.emit();
    assert!(scene.lane.park().is_none(), "a message is there");
    scene.lane.poll();
    assert_eq!(scene.received(), 1);
}

/// A session without sources or sinks, with the application's end of its doorbell.
fn idle_session(id: u32) -> (LaneSession, LaneBell) {
    let map = ArenaMap {
        ring_bytes: 1 << 16,
        tx_bytes: 1 << 16,
        rx_bytes: 1 << 16,
    };
    let arena = Arc::new(Arena::create("lane-test", map.total()).expect("an arena"));
    let bell = LaneBellHost::new(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET).expect("bell");
    let fd = bell.fd().try_clone_to_owned().expect("a descriptor");
    let application =
        LaneBell::attach(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET, fd).expect("bell");
    let session = LaneSession::new(SessionParts {
        id: SessionId(id),
        tenant: 0,
        arena,
        map,
        bell,
        max_message: 1 << 16,
        classes: 0xff,
        rates: Arc::new(Rates::new(&Policy::default())),
        policer: Arc::default(),
        counters: Arc::default(),
    });
    (session, application)
}

#[test]
fn sessions_that_do_nothing_are_not_looked_at_and_are_heard_when_they_ring() {
    let clock = Arc::new(Steps(AtomicI64::new(0)));
    let mut scene = Scene::with(Vec::new(), clock.clone());
    scene.add_sink();
    scene.add_source();
    let others: Vec<LaneBell> = (0..250)
        .map(|at| {
            let (session, bell) = idle_session(SESSION.0 + 1 + at);
            scene.handle.send(Command::AddSession(Box::new(session)));
            scene.lane.poll();
            bell
        })
        .collect();
    let watched = |scene: &Scene| scene.lane.state.tenants.watched();
    assert_eq!(watched(&scene), 251);
    let rounds = |scene: &mut Scene, count| {
        for _ in 0..count {
            scene.lane.poll();
        }
    };
    rounds(&mut scene, 2 * REST_EVERY);
    assert_eq!(watched(&scene), 251, "they may go on in a moment");
    clock.0.fetch_add(1_000_000_000, Ordering::Relaxed);
    rounds(&mut scene, REST_EVERY);
    assert!(watched(&scene) < 10);
    // Also the one with source and sink, unless it is one of those.
    scene.emit();
    others[249].ring();
    rounds(&mut scene, PUBLISH_EVERY);
    assert_eq!(scene.received(), 1);
    assert!(watched(&scene) < 12);
    // Of a lane that sleeps as well.
    clock.0.fetch_add(1_000_000_000, Ordering::Relaxed);
    rounds(&mut scene, 2 * REST_EVERY);
    let before = watched(&scene);
    assert!(before < 10);
    let sleeper = scene.lane.sleeper().expect("descriptors");
    while scene.lane.park().is_none() {
        scene.lane.poll();
    }
    for other in &others {
        other.ring();
    }
    sleeper.sleep(Some(Duration::from_secs(60)));
    scene.lane.unpark();
    assert_eq!(watched(&scene), 251, "all have rung");
    scene.lane.poll();
    // One that has ended is not looked at either.
    scene
        .handle
        .send(Command::RemoveSession(SessionId(SESSION.0 + 1)));
    scene.lane.poll();
    assert_eq!(watched(&scene), 250);
}

#[test]
fn sessions_that_do_nothing_are_not_looked_at_whatever_the_clock_is_stepped_by() {
    for step in [-3_600_000_000_000, 3_600_000_000_000] {
        let steady = Arc::new(Steps(AtomicI64::new(0)));
        let clock = Arc::new(SteppedClock::new(Shared(steady.clone())));
        let mut scene = Scene::with(Vec::new(), clock.clone());
        let sessions: Vec<LaneBell> = (0..50)
            .map(|at| {
                let (session, bell) = idle_session(SESSION.0 + 1 + at);
                scene.handle.send(Command::AddSession(Box::new(session)));
                scene.lane.poll();
                bell
            })
            .collect();
        let watched = |scene: &mut Scene| {
            for _ in 0..REST_EVERY {
                scene.lane.poll();
            }
            scene.lane.state.tenants.watched()
        };
        watched(&mut scene);
        clock.step(step);
        assert_eq!(watched(&mut scene), 51, "they may go on in a moment");
        steady.0.fetch_add(1_000_000_000, Ordering::Relaxed);
        assert!(watched(&mut scene) < 10);
        drop(sessions);
    }
}

/// A clock that others hold as well.
#[derive(Debug)]
struct Shared(Arc<Steps>);

impl Clock for Shared {
    fn now(&self) -> TaiTime {
        self.0.now()
    }
}

/// A clock that is moved by hand.
#[derive(Debug)]
struct Steps(AtomicI64);

impl Clock for Steps {
    fn now(&self) -> TaiTime {
        TaiTime::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

#[test]
fn a_lane_that_was_woken_sleeps_again() {
    let mut scene = Scene::new();
    scene.add_sink();
    scene.add_source();
    scene.lane.poll();
    scene.lane.poll();
    let sleeper = scene.lane.sleeper().expect("descriptors");
    assert!(scene.lane.park().is_some());
    scene.emit();
    // Woken by the doorbell, long before.
    let patience = Some(Duration::from_secs(60));
    sleeper.sleep(patience);
    scene.lane.unpark();
    while scene.lane.poll() {}
    assert_eq!(scene.received(), 1);
    // Nothing has come since: only the end of the time ends this sleep.
    assert!(scene.lane.park().is_some());
    let start = std::time::Instant::now();
    let short = Duration::from_millis(20);
    sleeper.sleep(Some(short));
    assert!(start.elapsed() >= short, "woken by an old doorbell");
}

/// Nanoseconds that pass between two readings.
const TICK_NS: i64 = 100;

/// A clock that goes on when it is read.
#[derive(Debug, Default)]
struct Ticking(AtomicI64);

impl Clock for Ticking {
    fn now(&self) -> TaiTime {
        TaiTime::from_nanos(self.0.fetch_add(TICK_NS, Ordering::Relaxed))
    }
}

/// What a port was handed: the launch time that came with it, and when.
type HandedOver = Arc<Mutex<Vec<(Option<TaiTime>, TaiTime)>>>;

/// A port of the in-process network that says of one class that it keeps launch times, writes down when it is
/// handed what, and whose route's MTU may change.
struct Keeper {
    inner: Box<dyn Port>,
    class: TrafficClass,
    most: Arc<AtomicUsize>,
    clock: Arc<Ticking>,
    committed: Vec<Option<TaiTime>>,
    handed_over: HandedOver,
    /// It takes nothing, as a device whose queue is full.
    full: Arc<AtomicBool>,
    /// Datagrams that it delivers at a time.
    at_once: usize,
}

impl Port for Keeper {
    fn local(&self) -> SocketAddr {
        self.inner.local()
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<PeerHandle, ConnectError> {
        self.inner.connect(remote)
    }

    fn disconnect(&mut self, peer: PeerHandle) {
        self.inner.disconnect(peer);
    }

    fn max_payload(&self, peer: PeerHandle) -> usize {
        let most = self.most.load(Ordering::Relaxed);
        self.inner.max_payload(peer).min(most)
    }

    fn reserve(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        self.inner.reserve(peer)
    }

    fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        let most = self.most.load(Ordering::Relaxed);
        let payload = self.inner.payload(frame);
        let length = payload.len().min(most);
        &mut payload[..length]
    }

    fn commit(
        &mut self,
        frame: Frame,
        len: usize,
        class: TrafficClass,
        launch_time: Option<TaiTime>,
    ) {
        self.committed.push(launch_time);
        self.inner.commit(frame, len, class, launch_time);
    }

    fn keeps_launch_time(&self, _peer: PeerHandle, class: TrafficClass) -> bool {
        class == self.class
    }

    fn cancel(&mut self, frame: Frame) {
        self.inner.cancel(frame);
    }

    fn flush(&mut self) -> bool {
        if self.full.load(Ordering::Relaxed) {
            return self.committed.is_empty();
        }
        let now = self.clock.now();
        let committed = self.committed.drain(..).map(|launch| (launch, now));
        self.handed_over.lock().expect("a list").extend(committed);
        self.inner.flush()
    }

    fn receive(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        self.inner.receive(budget.min(self.at_once), deliver)
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

/// A message that was handed over, in nanoseconds.
struct Left {
    launch: i64,
    /// The launch time that the port was told.
    told: Option<i64>,
    when: i64,
}

/// A port of an in-process network.
/// A port to other nodes, by which nothing leaves at an instant.
fn untimed(port: Box<dyn Port>) -> LanePort {
    LanePort::new(
        MemoryNetwork::KIND,
        port,
        false,
        Arc::default(),
        None,
        false,
    )
}

/// In how many rounds a lane has carried out all that it was told, none of which may be longer than a round and one command's looks.
fn rounds_of_commands(lane: &mut Lane, of_one: usize) -> usize {
    let mut rounds = 0;
    while lane.mailbox.full.load(Ordering::Acquire) {
        lane.poll();
        let looks = lane.state.looks;
        assert!(looks <= MOST_LOOKS + of_one, "{looks} looks in a round");
        rounds += 1;
    }
    rounds
}

fn open(network: &MemoryNetwork, bind: &str) -> Box<dyn Port> {
    let bind = bind.parse().expect("an address");
    let request = PortRequest {
        lane: 0,
        lanes: 1,
        bind,
    };
    network.open(&request).expect("a port")
}

/// A lane at such a port, with messages of these classes waiting that have launch times 1 ms from each other.
struct Timed {
    scene: Scene,
    /// Where the messages go.
    other: Box<dyn Port>,
    most: Arc<AtomicUsize>,
    handed_over: HandedOver,
    full: Arc<AtomicBool>,
    clock: Arc<Ticking>,
    counters: Arc<DepartureCounters>,
}

/// When the message of this place is to leave.
fn launch(at: usize) -> i64 {
    (at as i64 + 1) * 1_000_000
}

impl Timed {
    /// A port that keeps launch times of class 5; `kept`: the runtime may use that.
    fn new(kept: bool, classes: &[u8]) -> Self {
        let clock = Arc::new(Ticking::default());
        let network = MemoryNetwork::new(MemoryNetworkConfig::default());
        let other = open(&network, "192.0.2.2:1");
        let handed_over = HandedOver::default();
        let most = Arc::new(AtomicUsize::new(usize::MAX));
        let full = Arc::new(AtomicBool::new(false));
        let port = Keeper {
            most: most.clone(),
            inner: open(&network, "192.0.2.1:1"),
            class: TrafficClass::new(5).expect("a class"),
            clock: clock.clone(),
            committed: Vec::new(),
            handed_over: handed_over.clone(),
            full: full.clone(),
            at_once: usize::MAX,
        };
        let how = crate::config::Departure::default();
        let port = LanePort::new(
            MemoryNetwork::KIND,
            Box::new(port),
            false,
            Arc::default(),
            Some(&how),
            kept,
        );
        let counters = port.departure_counters().expect("a scheduler");
        let mut scene = Scene::with(vec![port], clock.clone());
        scene.add_reader(vec![Some(other.local())]);
        scene.add_source();
        scene.lane.poll();
        let messages = classes.iter().enumerate().map(|(at, class)| TxDescriptor {
            chunk: at as u32,
            length: 3,
            class: *class,
            flags: FLAG_LAUNCH_TIME,
            launch_time_ns: launch(at),
            ..TxDescriptor::default()
        });
        scene.emit_all(messages);
        Self {
            scene,
            other,
            most,
            handed_over,
            full,
            clock,
            counters,
        }
    }

    /// Lets all of them leave: what left, and the departure errors of class 5 by bucket.
    fn depart(mut self, count: usize) -> (Vec<Left>, Vec<u64>) {
        // Each round reads the clock: this is far more than there is to wait for.
        for _ in 0..1_000_000 {
            self.scene.lane.poll();
            if self.handed_over.lock().expect("a list").len() == count {
                break;
            }
        }
        let list = self.handed_over.lock().expect("a list");
        assert_eq!(list.len(), count);
        let list = list.iter().enumerate().map(|(at, (told, when))| Left {
            launch: launch(at),
            told: told.map(|told| told.as_nanos()),
            when: when.as_nanos(),
        });
        let class = TrafficClass::new(5).expect("a class");
        let errors = self.counters.read(class).errors;
        (list.collect(), errors.to_vec())
    }

    /// Lets time pass up to an instant.
    fn poll_until(&mut self, nanos: i64) {
        // A round that finds nothing reads no clock.
        while self.clock.now().as_nanos() < nanos {
            self.scene.lane.poll();
        }
    }

    /// What has been handed over, and when.
    fn handed_over(&self) -> Vec<i64> {
        let list = self.handed_over.lock().expect("a list");
        list.iter().map(|(_, when)| when.as_nanos()).collect()
    }

    /// What class 5 has counted.
    fn counted(&self) -> crate::counters::DepartureReading {
        self.scene.lane.publish();
        self.counters.read(TrafficClass::new(5).expect("a class"))
    }

    /// How long the lane would sleep now.
    fn sleep_ns(mut self) -> i64 {
        for _ in 0..100 {
            self.scene.lane.poll();
            if let Some(sleep) = self.scene.lane.park() {
                return sleep.expect("something waits").as_nanos() as i64;
            }
        }
        panic!("the lane does not go to sleep");
    }
}

/// A few readings of the clock.
const WORK: i64 = 50 * TICK_NS;

fn assert_held(left: &Left) {
    assert_eq!(left.told, None);
    let late = left.when - left.launch;
    assert!((0..WORK).contains(&late), "{late}");
}

#[test]
fn what_a_port_keeps_is_handed_over_ahead_with_its_launch_time_and_nothing_else_is() {
    let classes = [5, 2, 5, 5];
    let (list, errors) = Timed::new(true, &classes).depart(classes.len());
    for (left, class) in list.into_iter().zip(classes) {
        if class == 5 {
            assert_eq!(left.told, Some(left.launch));
            let early = left.launch - left.when;
            let wanted = DEVICE_LEAD_NS - WORK..=DEVICE_LEAD_NS;
            assert!(wanted.contains(&early), "{early}");
        } else {
            assert_held(&left);
        }
    }
    assert_eq!(errors[0], 3, "none was handed over late: {errors:?}");
    // Where launch times go by another clock, the lane holds everything itself.
    let (list, errors) = Timed::new(false, &classes).depart(classes.len());
    list.iter().for_each(assert_held);
    assert_eq!(errors.iter().sum::<u64>(), 3);
}

#[test]
fn a_lane_sleeps_on_while_there_is_time_to_hand_over_what_its_port_keeps() {
    let held = Timed::new(false, &[5]).sleep_ns();
    let kept = Timed::new(true, &[5]).sleep_ns();
    let mixed = Timed::new(true, &[5, 2]).sleep_ns();
    // Held 5 µs before its time, and handed over 30 to 100 µs before it. All alike but for readings of the clock.
    let near = |one: i64, other: i64| (one - other).abs() < WORK;
    assert!(near(held - kept, 25_000), "{held} {kept}");
    assert!(near(held - mixed, 95_000), "{held} {mixed}");
}

#[test]
fn a_frame_that_the_port_refuses_is_told_and_counted_by_when_it_really_leaves() {
    let mut timed = Timed::new(false, &[5]);
    timed.full.store(true, Ordering::Relaxed);
    timed.poll_until(3 * launch(0));
    assert!(timed.handed_over().is_empty());
    let mut completions = Consumer::<Completion>::attach(
        &timed.scene.arena,
        timed.scene.source.completion_ring(),
        timed.scene.source.depth,
    )
    .expect("rings fit");
    assert!(completions.pop().expect("a sane ring").is_none());
    assert_eq!(timed.counted().errors.iter().sum::<u64>(), 0);
    timed.full.store(false, Ordering::Relaxed);
    timed.poll_until(3 * launch(0) + 2 * WORK);
    let [left] = timed.handed_over()[..] else {
        panic!("{:?}", timed.handed_over());
    };
    let told = completions.pop().expect("a sane ring").expect("told");
    assert_eq!(told.outcome, Outcome::Sent as u32);
    let told = i64::from(told.departed_ns_low);
    assert!((left..left + WORK).contains(&told), "{left} {told}");
    let counted = timed.counted();
    assert_eq!((counted.frames.sent, counted.frames.sent_late), (1, 1));
    assert_eq!(launches(&timed.scene.lane), (1, 1, 0));
    // Two milliseconds after its time: 2^21 ns.
    assert_eq!(counted.errors[21], 1, "{:?}", counted.errors);
}

#[test]
fn a_frame_that_the_port_refuses_is_held_to_its_gate_again() {
    use takt_schedule::{GateEntry, GateList, GateMask, Link, Schedule};
    let mut timed = Timed::new(false, &[5]);
    // Class 5 has the first 200 µs of each 10 ms from 1 ms on.
    let schedule = Schedule {
        base_time: TaiTime::from_nanos(launch(0)),
        cycle_time_ns: 10_000_000,
        entries: vec![
            GateEntry::new(GateMask::from_bits(0x20), 200_000),
            GateEntry::new(GateMask::from_bits(0xdf), 9_800_000),
        ],
        ..Schedule::default()
    };
    let change = ScheduleChange::Install {
        list: Arc::new(GateList::new(&schedule).expect("a schedule")),
        initial: GateMask::ALL,
        link: Link::ethernet(1_000_000_000),
        now: TaiTime::from_nanos(0),
        classes: takt_schedule::ClassTable::default(),
        selection: Default::default(),
        begins: takt_time::TaiTime::from_nanos(0),
        at_once: false,
    };
    timed
        .scene
        .handle
        .send(Command::Schedule { port: 0, change });
    timed.full.store(true, Ordering::Relaxed);
    timed.poll_until(launch(0) + 300_000);
    timed.full.store(false, Ordering::Relaxed);
    timed.poll_until(launch(0) + 9_900_000);
    assert!(timed.handed_over().is_empty(), "its gate is closed");
    timed.poll_until(launch(0) + 10_100_000);
    let [left] = timed.handed_over()[..] else {
        panic!("{:?}", timed.handed_over());
    };
    let late = left - (launch(0) + 10_000_000);
    assert!((0..WORK).contains(&late), "{late}");
    assert_eq!(timed.counted().frames.overruns, 0);
}

#[test]
fn what_has_no_launch_time_is_not_sent_in_the_way_of_what_has() {
    let mut timed = Timed::new(false, &[5]);
    timed.scene.lane.poll();
    let mut tx = timed.scene.tx(1);
    let mut chunk = 8;
    while timed.clock.0.load(Ordering::Relaxed) < launch(0) + 100_000 {
        let free = tx.push(TxDescriptor {
            chunk,
            length: 3,
            ..TxDescriptor::default()
        });
        chunk += u32::from(free.expect("a sane ring"));
        if chunk == 200 {
            break;
        }
        timed.scene.bell.ring();
        timed.poll_until(timed.clock.0.load(Ordering::Relaxed) + 10_000);
    }
    timed.poll_until(launch(0) + 100_000);
    let list = timed.handed_over();
    assert!(list.len() > 50, "{list:?}");
    let guard = launch(0) - super::egress::GUARD_NS + WORK..launch(0);
    let near: Vec<_> = list.iter().filter(|when| guard.contains(when)).collect();
    assert!(near.is_empty(), "{near:?}");
    let at_its_time = launch(0)..launch(0) + WORK;
    assert!(
        list.iter().any(|when| at_its_time.contains(when)),
        "{list:?}"
    );
    assert!(
        *list.last().expect("some") > launch(0) + 50_000,
        "others go on"
    );
}

/// The route's MTU changes from one payload length to another while a message is under way: index and length of its
/// parts that arrive, in their order, and what its sender is told.
fn under_way(flags: u8, from: usize, to: usize) -> (Vec<(u32, u32)>, u32) {
    let mut timed = Timed::new(false, &[]);
    timed.most.store(from, Ordering::Relaxed);
    timed.scene.emit_all([TxDescriptor {
        length: LONG,
        flags,
        launch_time_ns: launch(0),
        ..TxDescriptor::default()
    }]);
    // One round takes a part of the message, or all of it into the scheduler.
    timed.scene.lane.poll();
    timed.most.store(to, Ordering::Relaxed);
    let mut completions = Consumer::<Completion>::attach(
        &timed.scene.arena,
        timed.scene.source.completion_ring(),
        timed.scene.source.depth,
    )
    .expect("rings fit");
    let mut parts = Vec::new();
    // Each round reads the clock: this is far more than there is to wait for.
    for _ in 0..1_000_000 {
        timed.scene.lane.poll();
        timed.other.receive(256, &mut |datagram| {
            let (header, body) = DatagramHeader::parse(datagram.payload).expect("a datagram");
            for record in header.records(body.records) {
                let record = record.expect("a record");
                parts.push((record.header.fragment_index, record.payload.len() as u32));
            }
        });
        if let Some(completion) = completions.pop().expect("a sane ring") {
            let counted = match (flags, completion.outcome) {
                (0, _) => (0, 0),
                (_, 0) => (1, 0),
                _ => (0, 1),
            };
            let (left, _, missed) = launches(&timed.scene.lane);
            assert_eq!((left, missed), counted);
            return (parts, completion.outcome);
        }
    }
    panic!("the message does not end");
}

fn length(parts: &[(u32, u32)]) -> u32 {
    parts.iter().map(|part| part.1).sum()
}

/// More than the fragments of one turn.
const LONG: u32 = 60_000;

#[test]
fn a_message_under_way_stays_cut_as_it_was_when_the_mtu_grows() {
    for flags in [0, FLAG_LAUNCH_TIME] {
        let (parts, outcome) = under_way(flags, 300, 9000);
        assert!(parts.len() > 64);
        assert_eq!(length(&parts), LONG);
        for (part, at) in parts.iter().zip(0..) {
            let most = parts[0].1;
            assert!(part.0 == at && part.1 <= most && most < 300, "{part:?}");
        }
        assert_eq!(outcome, Outcome::Sent as u32);
    }
}

#[test]
fn a_message_under_way_is_given_up_when_the_mtu_shrinks() {
    for flags in [0, FLAG_LAUNCH_TIME] {
        let (parts, outcome) = under_way(flags, 300, 200);
        assert!(length(&parts) < LONG);
        assert_eq!(outcome, Outcome::Unreachable as u32);
    }
}

#[test]
fn a_peer_that_wants_very_many_channels_comes_and_goes_over_many_rounds() {
    const CHANNELS: usize = 2000;
    const AGAIN: usize = 10;
    // What a command may look at beyond what a round is for.
    const OF_ONE: usize = 2 * 128 * OF_SUBSCRIPTION;
    const LEAST: usize = CHANNELS * OF_SUBSCRIPTION / MOST_LOOKS / 2;
    let mut scene = Scene::new();
    scene.add_reader(Vec::new());
    scene.lane.poll();
    let remote = RemoteId(7);
    let all: Vec<u64> = (100..).take(CHANNELS).collect();
    let want = |scene: &Scene, channels: &[u64]| {
        for part in channels.chunks(128) {
            let (add, remove) = (part.to_vec(), Vec::new());
            let wanted = Command::Subscriptions {
                remote,
                add,
                remove,
            };
            scene.handle.send(wanted);
        }
    };
    let rounds = |scene: &mut Scene| rounds_of_commands(&mut scene.lane, OF_ONE);
    let entered = |scene: &Scene| -> usize {
        let channels = &scene.lane.state.channels;
        let found = all.iter().filter_map(|id| channels.find(*id));
        let found = found.filter_map(|at| channels.get(at));
        found.map(|channel| channel.destinations.len()).sum()
    };
    want(&scene, &all);
    assert!(rounds(&mut scene) >= LEAST);
    assert_eq!(entered(&scene), CHANNELS);
    scene.handle.send(Command::WantNothing { remote });
    scene.lane.poll();
    assert!((1..CHANNELS).contains(&entered(&scene)), "a part at a time");
    // Some are wanted again by then, and once.
    want(&scene, &all[..AGAIN]);
    assert!(rounds(&mut scene) >= LEAST);
    assert_eq!(entered(&scene), AGAIN);
    // All of them, but for those that it does not want any more before it is entered there.
    let channels = all.clone();
    (scene.handle).send(Command::WantAgain { remote, channels });
    let (add, remove) = (vec![all[1]], all[..3].to_vec());
    scene.handle.send(Command::Subscriptions {
        remote,
        add: Vec::new(),
        remove,
    });
    let remove = Vec::new();
    scene.handle.send(Command::Subscriptions {
        remote,
        add,
        remove,
    });
    for _ in 0..2 {
        scene.lane.poll();
    }
    assert!(entered(&scene) < CHANNELS / 2, "a part at a time");
    assert!(
        (scene.lane.mailbox).has_done(scene.lane.mailbox.told()),
        "nobody waits for it"
    );
    assert!(rounds(&mut scene) >= LEAST);
    assert_eq!(entered(&scene), CHANNELS - 2);
    let (id, clean) = (remote, false);
    scene.handle.send(Command::RemoveRemote { id, clean });
    scene.lane.poll();
    assert!(scene.lane.by_remote.contains_key(&remote));
    assert!(rounds(&mut scene) >= LEAST);
    assert_eq!(entered(&scene), 0);
    assert!(scene.lane.by_remote.is_empty());
}

#[test]
fn the_last_messages_of_a_peer_that_is_gone_are_taken_in_ordinary_rounds() {
    const SENT: usize = 4 * RECEIVE_BUDGET;
    let (mut house, mut elsewhere) = fairness::House::at_network(SENT);
    house.add_remote(7, elsewhere.as_ref());
    house.settle();
    let to = elsewhere.connect(house.lane.ports[0].port.local());
    let to = to.expect("known");
    for _ in 0..SENT {
        let frame = elsewhere.reserve(to).expect("a frame");
        let datagram = datagram_of(7);
        elsewhere.payload(&frame)[..datagram.len()].copy_from_slice(&datagram);
        elsewhere.commit(frame, datagram.len(), TrafficClass::BEST_EFFORT, None);
        assert!(elsewhere.flush());
    }
    let (id, clean) = (RemoteId(7), true);
    house.handle.send(Command::RemoveRemote { id, clean });
    let mut taken = 0;
    while house.lane.mailbox.full.load(Ordering::Acquire) {
        house.lane.poll();
        let before = std::mem::replace(&mut taken, house.lane.state.counters.read().rx_no_sink);
        assert!(taken - before <= RECEIVE_BUDGET as u64, "in one round");
    }
    assert_eq!(taken, SENT as u64);
    assert!(house.lane.by_remote.is_empty());
}
