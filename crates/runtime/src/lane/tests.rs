//! Races between commands and doorbells, step by step: each test is one interleaving that two threads can take.

use std::sync::mpsc::channel;

use takt_clock::SystemTai;
use takt_session::layout::{
    ArenaMap, DEFAULT_DEPTH, HEADER_BYTES, LANE_DIRTY_OFFSET, LANE_STATE_OFFSET, RxDescriptor,
    SinkBlock, SourceBlock, TxDescriptor,
};
use takt_shm::{Arena, Consumer, LaneBell, LaneBellHost, Producer, RingLayout};

use super::session::SessionParts;
use super::*;

const CHANNEL: ChannelId = ChannelId(5);
const SESSION: u64 = 1;

/// A lane without ports, and one application at it.
struct Scene {
    lane: Lane,
    handle: LaneHandle,
    arena: Arc<Arena>,
    bell: LaneBell,
    source: SourceBlock,
    sink: SinkBlock,
}

impl Scene {
    fn new() -> Self {
        let (events, _) = channel();
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        let wake = Arc::new(rustix::event::eventfd(0, flags).expect("an eventfd"));
        let (mut lane, handle) = Lane::new(
            0,
            1,
            Vec::new(),
            &Limits::default(),
            Arc::new(SystemTai),
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
            messages_per_second: 0,
            bytes_per_second: 0,
            now_ns: 0,
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
        self.handle.send(Command::AddSource {
            session: SESSION,
            source: 0,
            block: self.source,
            target: SourceTarget::Channel(CHANNEL),
            port: 0,
        });
    }

    fn add_sink(&self) {
        self.handle.send(Command::AddSink {
            session: SESSION,
            sink: 0,
            block: self.sink,
            channel: CHANNEL,
            notify: None,
        });
    }

    fn emit(&self) {
        let mut tx =
            Producer::<TxDescriptor>::attach(&self.arena, self.source.tx_ring(), self.source.depth)
                .expect("rings fit");
        let descriptor = TxDescriptor {
            length: 3,
            ..TxDescriptor::default()
        };
        assert!(tx.push(descriptor).expect("a sane ring"));
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
