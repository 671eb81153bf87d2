//! Launch times for sinks of the same lane.

use takt_session::layout::FLAG_AT_ONCE_HERE;
use takt_session::{Reliability, SlowSinks};

use super::fairness::{Guest, House, no_limits};
use super::*;
use crate::config::{Departure, Late};
use crate::slots::SinkSlot;

const MS: i64 = 1_000_000;

struct Scene {
    house: House,
    clock: Arc<Ticking>,
    writer: Guest,
    source: SourceSlot,
    reader: Guest,
}

impl Scene {
    /// A writer of one tenant and a reader of another one, with the sink 0.
    fn new(reliability: Reliability) -> Self {
        let clock = Arc::new(Ticking::default());
        let mut house = House::new(Vec::new(), clock.clone());
        let mut writer = house.guest(1, 1 << 20, &no_limits());
        let source = writer.reliable_source(5, reliability);
        let mut reader = house.guest(2, 1 << 20, &no_limits());
        reader.sink(5, 1024);
        house.settle();
        Self {
            house,
            clock,
            writer,
            source,
            reader,
        }
    }

    /// Lets time pass up to an instant.
    fn until(&mut self, nanos: i64) {
        while self.clock.now().as_nanos() < nanos {
            self.house.lane.poll();
        }
    }

    /// Polls a few times, which takes no time worth mention.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.house.lane.poll();
        }
    }

    /// The chunks of the messages that have been completed, in order.
    fn completed(&mut self) -> Vec<u32> {
        self.writer.completed(self.source)
    }
}

#[test]
fn messages_reach_sinks_of_their_lane_at_their_launch_times_and_in_that_order() {
    let mut scene = Scene::new(Reliability::default());
    for (chunk, at) in [(0, 3), (1, 1), (2, 2)] {
        assert!(scene.writer.emit_at(at * 10 * MS, 5, scene.source, chunk));
    }
    assert!(scene.writer.emit(scene.source, 3, 3));
    scene.settle();
    // What has no launch time overtakes them.
    assert_eq!(
        (scene.reader.receive(SinkSlot(0)), scene.completed()),
        (1, vec![3])
    );
    for (at, chunk) in [(1, 1), (2, 2), (3, 0)] {
        let launch = at * 10 * MS;
        scene.until(launch - MS);
        assert_eq!(scene.reader.receive(SinkSlot(0)), 0, "before {launch}");
        assert_eq!(scene.house.lane.due(), Some(TaiTime::from_nanos(launch)));
        scene.until(launch + MS / 10);
        assert_eq!(scene.reader.receive(SinkSlot(0)), 1, "at {launch}");
        assert_eq!(scene.completed(), [chunk]);
    }
    assert_eq!(scene.house.lane.due(), None);
}

#[test]
fn a_source_may_ask_that_sinks_of_its_node_get_its_messages_at_once() {
    let mut scene = Scene::new(Reliability::default());
    let flags = FLAG_LAUNCH_TIME | FLAG_AT_ONCE_HERE;
    assert!(scene.writer.emit_with(flags, 10 * MS, 5, scene.source, 0));
    scene.settle();
    assert_eq!(
        (scene.reader.receive(SinkSlot(0)), scene.completed()),
        (1, vec![0])
    );
}

#[test]
fn what_a_reliable_source_emits_is_given_in_order_however_long_that_takes() {
    let mut scene = Scene::new(Reliability::Reliable {
        deadline: None,
        slow_sinks: SlowSinks::Wait,
    });
    assert!(scene.writer.emit_at(30 * MS, 5, scene.source, 0));
    assert!(scene.writer.emit_at(10 * MS, 5, scene.source, 1));
    assert!(scene.writer.emit_in(5, scene.source, 2, 3));
    scene.until(29 * MS);
    assert_eq!(scene.reader.receive(SinkSlot(0)), 0);
    scene.until(31 * MS);
    assert_eq!(scene.reader.receive(SinkSlot(0)), 3);
    assert_eq!(scene.completed(), [0, 1, 2]);
    // Then nothing is waited for any more.
    assert!(scene.writer.emit_in(5, scene.source, 3, 3));
    scene.settle();
    assert_eq!(
        (scene.reader.receive(SinkSlot(0)), scene.completed()),
        (1, vec![3])
    );
}

#[test]
fn as_many_wait_as_a_session_may_have_and_the_others_behind_them() {
    let mut scene = Scene::new(Reliability::default());
    let mut sources = vec![scene.source];
    sources.extend((1..8).map(|_| scene.writer.source(5)));
    scene.house.settle();
    // Each message is a chunk, and 8 times 64 of them are twice as many as may wait.
    for (at, source) in sources.iter().enumerate() {
        for number in 0..64 {
            let chunk = at as u32 * 64 + number;
            assert!(scene.writer.emit_at(10 * MS, 5, *source, chunk));
        }
    }
    // Another tenant is not kept out.
    let mut other = scene.house.guest(3, 1 << 16, &no_limits());
    let own = other.source(6);
    let sink = other.sink(6, 64);
    scene.house.settle();
    assert!(other.emit_at(5 * MS, 5, own, 0));
    scene.until(6 * MS);
    assert_eq!(other.receive(sink), 1);
    assert_eq!(scene.reader.receive(SinkSlot(0)), 0);
    scene.until(12 * MS);
    assert_eq!(scene.reader.receive(SinkSlot(0)), 512);
    let completed: usize = sources
        .iter()
        .map(|s| scene.writer.completed(*s).len())
        .sum();
    assert_eq!(completed, 512);
}

#[test]
fn a_session_that_goes_takes_with_it_what_waits_of_it() {
    let mut scene = Scene::new(Reliability::default());
    // Of one tenant: what its sessions have waiting counts together.
    let mut heir = scene.house.guest(1, 1 << 20, &no_limits());
    let source = heir.source(5);
    scene.house.settle();
    for round in 0..4 {
        let mut going = scene.house.guest(1, 1 << 20, &no_limits());
        let sources: Vec<SourceSlot> = (0..4).map(|_| going.source(5)).collect();
        scene.house.settle();
        for (at, source) in sources.iter().enumerate() {
            for number in 0..64 {
                assert!(going.emit_at(1000 * MS, 5, *source, at as u32 * 64 + number));
            }
        }
        scene.settle();
        let id = going.id;
        scene.house.handle.send(Command::RemoveSession(id));
        scene.house.settle();
        assert_eq!(scene.house.lane.due(), None, "round {round}");
    }
    let soon = scene.clock.now().as_nanos() + MS;
    assert!(heir.emit_at(soon, 5, source, 0));
    scene.until(soon + MS);
    assert_eq!(scene.reader.receive(SinkSlot(0)), 1);
    assert_eq!(heir.completed(source), [0]);
}

#[test]
fn a_message_that_is_too_late_is_dropped_where_the_operator_wants_that_and_counts_as_lost() {
    let mut scene = Scene::new(Reliability::default());
    scene.until(10 * MS);
    assert!(scene.writer.emit_at(MS, 5, scene.source, 0));
    scene.settle();
    assert_eq!(
        (
            scene.reader.receive(SinkSlot(0)),
            scene.reader.lost(SinkSlot(0))
        ),
        (1, 0)
    );
    scene.house.lane.set_departure(Departure {
        late: Late::Drop,
        ..Departure::default()
    });
    assert!(scene.writer.emit_at(MS, 5, scene.source, 1));
    // More than 60 s ahead.
    assert!(scene.writer.emit_at(100_000 * MS, 5, scene.source, 2));
    let another = scene.reader.sink(5, 16);
    scene.house.settle();
    scene.settle();
    for sink in [SinkSlot(0), another] {
        let came = (scene.reader.receive(sink), scene.reader.lost(sink));
        assert_eq!(came, (0, 2));
    }
    // At its channel each message counts, and not each sink.
    assert_eq!(scene.house.counted(5).lost, 2);
    let outcomes = scene.writer.outcomes(scene.source);
    let told = [Outcome::Sent, Outcome::Late, Outcome::NotScheduled];
    let told = (0..).zip(told.map(|outcome| outcome as u32));
    assert_eq!(outcomes, told.collect::<Vec<_>>());
    assert_eq!(launches(&scene.house.lane), (1, 1, 2));
}

#[test]
fn a_rate_holds_back_what_is_not_taken_yet_and_nothing_that_it_was_paid_for() {
    let clock = Arc::new(Ticking::default());
    let mut house = House::new(Vec::new(), clock.clone());
    let rates = Arc::new(Rates::new(&Policy {
        bytes_per_second: 1_000_000,
        ..Policy::default()
    }));
    // Two sessions of a tenant, and a source that is closed meanwhile.
    let mut writer = house.guest(1, 4 << 20, &rates);
    let (source, idle) = (writer.source(5), writer.source(6));
    let mut second = house.guest(1, 1 << 20, &rates);
    let own = second.source(5);
    let mut reader = house.guest(2, 8 << 20, &no_limits());
    let sink = reader.sink(5, 64);
    house.settle();
    assert!(second.emit_at(100 * MS, 5, own, 0));
    assert!(writer.emit_at(100 * MS, 5, source, 0));
    let mut scene = Scene {
        house,
        clock,
        writer,
        source,
        reader,
    };
    scene.settle();
    // Of two seconds; and one that waits for their end.
    let long = 2_000_000;
    assert!(scene.writer.emit(source, 1, long));
    let behind = 1 + long.div_ceil(takt_shm::CHUNK as u32);
    assert!(scene.writer.emit(source, behind, 3));
    assert!(second.emit(own, 1, 3));
    scene.settle();
    assert_eq!(
        (scene.reader.receive(sink), scene.completed()),
        (1, vec![1])
    );
    let session = scene.writer.id;
    let of_session = |scene: &Scene| {
        let at = scene.house.lane.by_session[&session];
        let session = scene.house.lane.state.tenants.sessions.get(at);
        session.expect("there").sources.iter().count()
    };
    assert_eq!(of_session(&scene), 2);
    let close = Command::CloseSource {
        session,
        source: idle,
    };
    scene.house.handle.send(close);
    scene.settle();
    assert_eq!(of_session(&scene), 1, "it has nothing left");
    scene.until(99 * MS);
    assert_eq!(scene.reader.receive(sink), 0);
    scene.until(100 * MS + MS / 10);
    assert_eq!(scene.reader.receive(sink), 2, "at their launch time");
    assert_eq!(
        (scene.completed(), second.completed(own)),
        (vec![0], vec![0])
    );
    scene.settle();
    assert!(scene.house.lane.park().is_some(), "nothing to do by then");
    scene.house.lane.unpark();
    rates.set(&Policy::default());
    scene.settle();
    assert_eq!(scene.reader.receive(sink), 2);
    assert_eq!(
        (scene.completed(), second.completed(own)),
        (vec![behind], vec![1])
    );
}
