//! A clock that is stepped while messages wait for their instants and a schedule runs.
//!
//! What is stated, and tested here: by the clock as it is, no message leaves before its launch time or outside its
//! gate; one whose instant the clock has jumped over is late, and sent or dropped as configured; everything
//! is sent or counted; and afterwards all is as before. Only the clock of these runtimes is stepped.

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::{App, Sink, Source, config, free_port, start};
use takt_clock::{Clock, SteppedClock, SystemTai};
use takt_runtime::Runtime;
use takt_runtime::config::{Departure, Idle, KeptSchedule, LaneConfig, Late, LinkSchedule};
use takt_runtime::counters::DepartureReading;
use takt_schedule::{GateEntry, GateMask, Schedule};
use takt_session::Qos;
use takt_session::layout::{FLAG_LAUNCH_TIME, Outcome, TxDescriptor};
use takt_testing::until_true;
use takt_time::{TaiTime, TrafficClass};

const MS: i64 = 1_000_000;
const SECOND: i64 = 1_000 * MS;
const CLASS: TrafficClass = match TrafficClass::new(5) {
    Some(class) => class,
    None => TrafficClass::BEST_EFFORT,
};
/// The gate of `CLASS` opens in the middle of each cycle and closes at its end.
const CYCLE: i64 = 50 * MS;
/// Time in which a test queues its messages and steps the clock.
const AHEAD: i64 = 2 * SECOND;
/// A step over half of eight messages: those are later than tolerated by 100 ms at least.
const JUMP: i64 = AHEAD + 500 * MS;

struct Bench {
    clock: Arc<SteppedClock>,
    near: Runtime,
    _far: Runtime,
    sender: App,
    receiver: App,
    source: Source,
    sink: Sink,
    offered: u64,
}

impl Bench {
    /// Two nodes; the clock of the one that sends can be stepped, and a schedule runs there.
    fn new(idle: Idle, late: Late) -> Self {
        let clock = Arc::new(SteppedClock::new(SystemTai));
        let (pa, pb) = (free_port(), free_port());
        let mut with = config(pa, &[pb]);
        with.clock = clock.clone();
        with.lanes = vec![LaneConfig {
            idle,
            ..LaneConfig::default()
        }];
        with.departure = Departure {
            late,
            tolerance: Duration::from_millis(100),
        };
        let (near, far) = (start(with), start(config(pb, &[pa])));
        let (mut sender, mut receiver) = (App::attach(near.handle()), App::attach(far.handle()));
        let qos = Qos::slow().time_sensitive(CLASS);
        let stream = receiver.stream(qos);
        let sink = receiver.sink(stream, 9, 0);
        let stream = sender.stream(qos);
        let mut source = sender.source(stream, 9, 0);
        sender.emit_until_heard(&mut source, b"first");
        let only: GateMask = [CLASS].into_iter().collect();
        let others: GateMask = TrafficClass::all()
            .filter(|class| *class != CLASS)
            .collect();
        let schedule = Schedule {
            cycle_time_ns: CYCLE as u64,
            entries: vec![
                GateEntry::new(others, (CYCLE / 2) as u32),
                GateEntry::new(only, (CYCLE / 2) as u32),
            ],
            ..Schedule::default()
        };
        let installed = near
            .handle()
            .install_schedule(LinkSchedule::new("udp", schedule, 0));
        installed.expect("running").expect("installed");
        let mut bench = Self {
            clock,
            near,
            _far: far,
            sender,
            receiver,
            source,
            sink,
            offered: 0,
        };
        let (receiver, sink) = (&bench.receiver, &mut bench.sink);
        receiver.receive(sink);
        until_true("the schedule runs", || {
            let schedules = bench.near.handle().schedules().expect("running");
            schedules.iter().any(|s| s.operational.is_some())
        });
        bench
    }

    fn now(&self) -> TaiTime {
        self.clock.now()
    }

    /// Queues a message whose text is its launch time.
    fn emit(&mut self, launch: TaiTime) {
        let descriptor = TxDescriptor {
            chunk: self.offered as u32,
            token: self.offered as u32,
            class: CLASS.number(),
            flags: FLAG_LAUNCH_TIME,
            launch_time_ns: launch.as_nanos(),
            ..TxDescriptor::default()
        };
        let text = launch.as_nanos().to_le_bytes();
        self.sender.emit_as(&mut self.source, &text, descriptor);
        self.offered += 1;
    }

    /// Queues messages 100 ms after each other, far enough ahead, and waits until they are queued.
    fn queue(&mut self, count: i64) -> Vec<TaiTime> {
        let first = self.now().saturating_add_nanos(AHEAD);
        let launches: Vec<TaiTime> = (0..count)
            .map(|at| first.saturating_add_nanos(at * 100 * MS))
            .collect();
        for launch in &launches {
            self.emit(*launch);
        }
        until_true("all are queued", || {
            self.frames().frames.offered == self.offered
        });
        launches
    }

    fn frames(&self) -> DepartureReading {
        let schedules = self.near.handle().schedules().expect("running");
        let udp = schedules.iter().find(|s| s.datapath == "udp");
        udp.expect("kernel UDP").classes[usize::from(CLASS.number())]
    }

    /// Receives a message: its launch time. It came after that and after its gate opened, by the clock as it is.
    fn receive(&mut self) -> TaiTime {
        let (_, text) = self.receiver.receive(&mut self.sink);
        let at = self.now();
        let launch = i64::from_le_bytes(text.try_into().expect("a launch time"));
        let into = launch.rem_euclid(CYCLE);
        let opens = launch + (CYCLE / 2 - into).max(0);
        assert!(at.as_nanos() >= opens, "{} ns early", opens - at.as_nanos());
        TaiTime::from_nanos(launch)
    }

    /// What became of so many messages, in the order of their ends: token and outcome.
    fn outcomes(&mut self, count: usize) -> Vec<(u32, Outcome)> {
        let mut outcomes: Vec<_> = (0..count)
            .map(|_| {
                let completion = self.sender.completion(&mut self.source);
                let outcome = Outcome::from_number(completion.outcome);
                (completion.token, outcome.expect("an outcome"))
            })
            .collect();
        outcomes.sort_by_key(|(token, _)| *token);
        outcomes
    }

    /// Everything that was offered has been sent or is counted as dropped.
    fn accounted(&self) -> DepartureReading {
        until_true("nothing waits", || self.frames().frames.queued == 0);
        let class = self.frames();
        let frames = class.frames;
        let dropped = frames.dropped + frames.dropped_late + frames.dropped_gate_missed;
        let refused = frames.refused + frames.refused_late;
        assert_eq!(
            frames.sent + dropped + refused,
            frames.offered,
            "{frames:?}"
        );
        assert_eq!(frames.offered, self.offered);
        class
    }

    /// Messages as if nothing had happened.
    fn as_before(&mut self) {
        let launches = self.queue(3);
        for launch in launches {
            assert_eq!(self.receive(), launch);
        }
        let sent = self.outcomes(3).iter().all(|(_, o)| *o == Outcome::Sent);
        assert!(sent);
    }
}

const IDLES: [Idle; 3] = [
    Idle::Park,
    Idle::Adaptive {
        spin: Duration::from_micros(50),
    },
    Idle::Spin,
];

#[test]
fn messages_that_the_clock_jumps_over_are_sent_late_and_those_that_follow_in_time() {
    for idle in IDLES {
        let mut bench = Bench::new(idle, Late::Send);
        let launches = bench.queue(8);
        bench.clock.step(JUMP);
        for launch in launches {
            assert_eq!(bench.receive(), launch, "in the order of their instants");
        }
        let sent = bench.outcomes(8);
        assert!(sent.iter().all(|(_, outcome)| *outcome == Outcome::Sent));
        let frames = bench.accounted().frames;
        assert_eq!(frames.sent, 8);
        let late = frames.sent_late + frames.sent_gate_missed;
        assert!(late >= 4, "{frames:?}");
        bench.as_before();
        bench.accounted();
    }
}

#[test]
fn messages_that_the_clock_jumps_over_are_dropped_where_that_is_wanted_and_told() {
    let mut bench = Bench::new(Idle::default(), Late::Drop);
    let launches = bench.queue(8);
    bench.clock.step(JUMP);
    let outcomes = bench.outcomes(8);
    let late = |(_, outcome): &(u32, Outcome)| *outcome == Outcome::Late;
    assert!(outcomes[..4].iter().all(late), "{outcomes:?}");
    for ((_, outcome), launch) in outcomes.iter().zip(launches) {
        if *outcome == Outcome::Sent {
            assert_eq!(bench.receive(), launch);
        }
    }
    let frames = bench.accounted().frames;
    let dropped = outcomes.iter().filter(|outcome| late(outcome)).count() as u64;
    assert_eq!(frames.dropped_late + frames.dropped_gate_missed, dropped);
    // Others may keep the lane from its core for longer than is tolerated.
    until_true("three leave in time", || {
        let launches = bench.queue(3);
        let outcomes = bench.outcomes(3);
        let sent = |outcome: &Outcome| *outcome == Outcome::Sent;
        for ((_, outcome), launch) in outcomes.iter().zip(launches) {
            if sent(outcome) {
                assert_eq!(bench.receive(), launch);
            }
        }
        outcomes.iter().all(|(_, outcome)| sent(outcome))
    });
}

#[test]
fn messages_wait_longer_when_the_clock_is_stepped_back() {
    for idle in IDLES {
        let mut bench = Bench::new(idle, Late::Send);
        let launches = bench.queue(4);
        bench.clock.step(-SECOND);
        for launch in launches {
            assert_eq!(bench.receive(), launch);
        }
        assert_eq!(bench.accounted().frames.sent, 4);
        bench.outcomes(4);
        // Back and forth: as it was, and nothing is sent twice.
        let launches = bench.queue(4);
        bench.clock.step(-SECOND);
        bench.clock.step(2 * SECOND);
        for launch in launches {
            assert_eq!(bench.receive(), launch);
        }
        bench.outcomes(4);
        bench.as_before();
        bench.accounted();
    }
}

/// A schedule of all gates that begins so long after `now`.
fn from(datapath: &str, now: TaiTime, ahead: i64) -> LinkSchedule {
    let schedule = Schedule {
        base_time: now.saturating_add_nanos(ahead),
        cycle_time_ns: CYCLE as u64,
        entries: vec![GateEntry::new(GateMask::ALL, CYCLE as u32)],
        ..Schedule::default()
    };
    LinkSchedule::new(datapath, schedule, 0)
}

#[test]
fn a_schedule_that_ran_before_a_restart_runs_though_the_clock_has_fallen_behind_and_the_next_one_follows()
 {
    const HOUR: i64 = 3600 * SECOND;
    let clock = Arc::new(SteppedClock::new(SystemTai));
    let kept = [(HOUR, true), (2 * HOUR, false)].map(|(ahead, running)| KeptSchedule {
        asked: from("udp", clock.now(), ahead),
        running,
    });
    let mut with = config(free_port(), &[]);
    with.clock = clock.clone();
    with.kept_schedules = kept.to_vec();
    let node = start(with);
    let told = || node.handle().schedules().expect("running").remove(0);
    let [running, pending] = kept.each_ref().map(|kept| &kept.asked.schedule);
    let before = told();
    assert_eq!(before.operational.as_ref(), Some(running));
    assert_eq!(before.pending, Some((pending.clone(), pending.base_time)));
    assert!(before.cycle.is_some_and(|cycle| cycle.number < 0));
    assert_eq!(node.handle().kept_schedules().expect("running"), kept);
    clock.step(3 * HOUR);
    let after = told();
    assert_eq!(after.operational.as_ref(), Some(pending));
    assert_eq!(after.pending, None);
    let next = KeptSchedule {
        running: true,
        ..kept[1].clone()
    };
    assert_eq!(node.handle().kept_schedules().expect("running"), [next]);
}

#[test]
fn a_configured_schedule_runs_from_the_start_though_the_clock_is_behind_its_base_time() {
    let asked = from("udp", SystemTai.now(), 3600 * SECOND);
    let mut with = config(free_port(), &[]);
    with.schedules = vec![asked.clone()];
    let node = start(with);
    let told = node.handle().schedules().expect("running").remove(0);
    assert_eq!(told.operational, Some(asked.schedule));
    assert_eq!(told.pending, None);
    assert!(told.cycle.is_some_and(|cycle| cycle.number < 0));
}

#[test]
fn what_is_kept_is_what_was_asked_for_by_command_also_where_its_datapath_is_not_there() {
    let now = SystemTai.now();
    let absent = KeptSchedule {
        asked: from("xdp", now, -SECOND),
        running: true,
    };
    let mut with = config(free_port(), &[]);
    with.schedules = vec![from("udp", now, -SECOND)];
    with.kept_schedules = vec![absent.clone()];
    let node = start(with);
    let handle = node.handle();
    let told = handle.schedules().expect("running").remove(0);
    assert!(told.operational.is_some(), "the configured one runs");
    assert_eq!(
        handle.kept_schedules().expect("running"),
        std::slice::from_ref(&absent)
    );
    let asked = from("udp", now, 3600 * SECOND);
    let installed = handle.install_schedule(asked.clone()).expect("running");
    installed.expect("installed");
    let kept = KeptSchedule {
        asked,
        running: false,
    };
    assert_eq!(handle.kept_schedules().expect("running"), [kept, absent]);
    let remove = |datapath: &str| handle.remove_schedule(datapath.into()).expect("running");
    assert!(remove("xdp") && remove("udp"));
    assert!(!remove("xdp"), "it is forgotten");
    assert_eq!(handle.kept_schedules().expect("running"), []);
}
