//! Declared streams: what is outside them does not leave, is told and counted, and hurts nobody; what does not fit a
//! schedule is refused.

mod support;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use support::{App, Sink, Source, config, free_port, start};
use takt_clock::{Clock, SystemTai};
use takt_runtime::RuntimeHandle;
use takt_runtime::config::{Carrier, Config, LinkSchedule, ListenerConfig, NetworkConfig};
use takt_runtime::counters::StreamReading;
use takt_runtime::policing::{DeclaredStream, Flow};
use takt_runtime::policy::Policy;
use takt_schedule::admission::Talker;
use takt_schedule::{GateEntry, GateMask, Schedule};
use takt_session::layout::{FLAG_LAUNCH_TIME, Outcome, TxDescriptor};
use takt_session::{ChannelId, Endpoint, Qos};
use takt_testing::until_true;
use takt_time::TrafficClass;

const CLASS: u8 = 5;
const PERIOD: i64 = 10_000_000;
const ROUNDS: i64 = 20;

fn stream(name: &str, channel: u64, offset_ns: i64) -> DeclaredStream {
    DeclaredStream {
        name: name.into(),
        flow: Flow::Channel(ChannelId(channel)),
        talker: Talker {
            priority: TrafficClass::new(CLASS).expect("a class"),
            period_ns: PERIOD as u64,
            offset_ns: offset_ns as u64,
            window_ns: 0,
            octets: 400,
            frames: 1,
        },
    }
}

fn listener(path: &Path, identity: &str, streams: Vec<DeclaredStream>) -> ListenerConfig {
    ListenerConfig {
        path: path.to_owned(),
        mode: 0o600,
        policy: Policy {
            identity: identity.into(),
            streams,
            ..Policy::default()
        },
    }
}

fn set(handle: &RuntimeHandle, listener: ListenerConfig) -> Result<(), String> {
    let set = handle.set_listener(listener).expect("running");
    set.map_err(|error| error.to_string())
}

/// What was counted of a tenant's streams, and of what is of none.
fn counted(handle: &RuntimeHandle, identity: &str) -> (Vec<StreamReading>, u64) {
    let all = handle.listeners().expect("running");
    let found = all.into_iter().find(|l| l.policy.identity == identity);
    let found = found.expect("its listener");
    (found.streams, found.undeclared)
}

/// A program that sends at instants, and is told what became of it.
struct Talks {
    app: App,
    sources: HashMap<u64, Source>,
    stream: u32,
    sent: u32,
}

impl Talks {
    fn at(path: &Path) -> Self {
        let mut app = App::over(support::connect(path));
        let stream = app.stream(Qos::slow());
        Self {
            app,
            sources: HashMap::new(),
            stream,
            sent: 0,
        }
    }

    fn source(&mut self, channel: u64) -> &mut Source {
        let (app, stream) = (&mut self.app, self.stream);
        let open = || app.source(stream, channel, 1024);
        self.sources.entry(channel).or_insert_with(open)
    }

    /// Opens a source whose readers are known, by messages of a class that is not policed.
    fn open(&mut self, channel: u64) {
        self.source(channel);
        let source = self.sources.get_mut(&channel).expect("there");
        self.app.emit_until_heard(source, b"");
    }

    fn emit(&mut self, channel: u64, launch: Option<i64>, bytes: usize) -> Outcome {
        self.source(channel);
        let source = self.sources.get_mut(&channel).expect("there");
        self.sent += 1;
        let descriptor = TxDescriptor {
            // Of others, still on their way, too.
            chunk: 64 + self.sent % 64 * 64,
            token: self.sent,
            class: CLASS,
            flags: launch.map_or(0, |_| FLAG_LAUNCH_TIME),
            launch_time_ns: launch.unwrap_or(0),
            ..TxDescriptor::default()
        };
        let payload = vec![channel as u8; bytes];
        self.app.emit_as(source, &payload, descriptor);
        let completion = self.app.completion(source);
        assert_eq!(completion.token, self.sent);
        Outcome::from_number(completion.outcome).expect("an outcome")
    }
}

/// Messages of the class that is policed that have arrived: their channels.
fn arrived(app: &App, sinks: &mut [Sink]) -> Vec<u8> {
    let mut all = Vec::new();
    for sink in sinks {
        while let Some((_, bytes)) = app.take(sink) {
            all.extend(bytes.first());
        }
    }
    all
}

/// The first launch time of a stream that is not over yet.
fn next_launch(offset: i64) -> i64 {
    let soon = SystemTai.now().as_nanos() + 2 * PERIOD;
    soon - soon.rem_euclid(PERIOD) + offset
}

#[test]
fn what_is_outside_declared_streams_does_not_leave_and_hurts_nobody() {
    let directory = takt_testing::Directory::new();
    let (pa, pb) = (free_port(), free_port());
    let mut near = config(pa, &[pb]);
    // A busy machine may be late; whether it is, is not asked here.
    near.departure.tolerance = Duration::from_secs(4);
    let nodes = [start(near), start(config(pb, &[pa]))];
    let handle = nodes[0].handle();
    let (victims, pirates) = (directory.join("victim"), directory.join("pirate"));
    let mine = stream("axis", 5, 2_000_000);
    set(
        handle,
        listener(&victims, "victim", vec![stream("valve", 6, 5_000_000)]),
    )
    .expect("set");
    set(handle, listener(&pirates, "pirate", vec![mine.clone()])).expect("set");
    let mut far = App::attach(nodes[1].handle());
    let stream_of_far = far.stream(Qos::slow());
    let mut sinks = [5, 6, 7].map(|channel| far.sink(stream_of_far, channel, 4096));
    let (mut victim, mut pirate) = (Talks::at(&victims), Talks::at(&pirates));
    victim.open(6);
    pirate.open(5);
    pirate.open(7);
    let mut left = Vec::new();
    let mut inside = |talks: &mut Talks, channel: u64, launch: i64| {
        match talks.emit(channel, Some(launch), 100) {
            Outcome::Sent => left.push(channel as u8),
            // Whoever is stopped for seconds is late.
            Outcome::Late => {}
            other => panic!("{other:?} of channel {channel} at {launch}"),
        }
    };
    for _ in 0..ROUNDS {
        let (own, others) = (next_launch(2_000_000), next_launch(5_000_000));
        for (channel, launch, bytes) in [
            // At the victim's instant, close to its own, without one, or at once.
            (5, Some(others), 100),
            (5, Some(own - 1), 100),
            (5, Some(own + 1), 100),
            (5, None, 100),
            // Too long, also in more than one frame.
            (5, Some(own), 1000),
            (5, Some(own), 200_000),
            // On another channel.
            (7, Some(own), 100),
            (7, None, 100),
        ] {
            let outcome = pirate.emit(channel, launch, bytes);
            assert_eq!(outcome, Outcome::Refused, "{channel} {launch:?} {bytes}");
        }
        inside(&mut pirate, 5, own);
        assert_eq!(
            pirate.emit(5, Some(own), 100),
            Outcome::Refused,
            "once more"
        );
        inside(&mut victim, 6, others);
    }
    let rounds = ROUNDS as u64;
    let of_pirate = StreamReading {
        passed: rounds,
        refused_window: 4 * rounds,
        refused_size: 2 * rounds,
        refused_excess: rounds,
    };
    let (streams, undeclared) = counted(handle, "pirate");
    // A long message counts as the frames that it would be.
    assert!(streams[0].refused_size > of_pirate.refused_size);
    let streams = StreamReading {
        refused_size: of_pirate.refused_size,
        ..streams[0]
    };
    assert_eq!((streams, undeclared), (of_pirate, 2 * rounds));
    let of_victim = StreamReading {
        passed: rounds,
        ..StreamReading::default()
    };
    assert_eq!(counted(handle, "victim"), (vec![of_victim], 0));
    // All that was to leave has arrived, and nothing else.
    let mut all = Vec::new();
    until_true("all that has left arrives", || {
        all.extend(arrived(&far, &mut sinks));
        all.len() >= left.len()
    });
    all.sort_unstable();
    left.sort_unstable();
    assert_eq!(all, left);
    // The scheduler has seen no other: what it counts is shown a moment later.
    until_true("the class's frames are counted", || {
        let status = handle.schedules().expect("running");
        let class = status[0].classes[usize::from(CLASS)].frames;
        assert!(class.offered <= 2 * rounds, "{class:?}");
        class.offered == 2 * rounds
    });

    // A reload holds present sessions at once.
    let mut wider = mine;
    wider.talker.offset_ns = 3_000_000;
    set(handle, listener(&pirates, "pirate", vec![wider])).expect("set");
    // Until its lane has heard of it, it is held to what was.
    until_true("its lane knows", || {
        let outcome = pirate.emit(5, Some(next_launch(3_000_000)), 100);
        outcome != Outcome::Refused
    });
    let outcome = pirate.emit(5, Some(next_launch(2_000_000)), 100);
    assert_eq!(outcome, Outcome::Refused);
    set(handle, listener(&pirates, "pirate", Vec::new())).expect("set");
    until_true("its lane knows", || {
        pirate.emit(7, None, 100) == Outcome::Sent
    });
    // With the class it loses what it has open there, too, whatever else it may send undeclared.
    let mut without = listener(&pirates, "pirate", Vec::new());
    without.policy.classes = 1;
    without.policy.undeclared_streams = true;
    set(handle, without).expect("set");
    until_true("its lane knows", || {
        pirate.emit(7, None, 100) == Outcome::Refused
    });
    set(handle, listener(&pirates, "pirate", Vec::new())).expect("set");
    until_true("its lane knows", || {
        pirate.emit(7, None, 100) == Outcome::Sent
    });
}

#[test]
fn streams_that_move_to_another_listener_keep_their_place() {
    let directory = takt_testing::Directory::new();
    let runtime = start(config(free_port(), &[]));
    let handle = runtime.handle();
    let installed = handle.install_schedule(half(0)).expect("running");
    installed.expect("nobody has streams");
    let [waiting, pod] = ["waiting", "pod"].map(|name| directory.join(name));
    let of = |path: &Path, frames| {
        let mut many = stream("many", 6, 2_000_000);
        many.talker.frames = frames;
        listener(path, "talker", vec![many])
    };
    set(handle, of(&waiting, 800)).expect("fits");
    set(handle, of(&pod, 800)).expect_err("both together do not");
    let moved = |to: &Path, frames, from: &Path| {
        let moved = handle.move_streams(of(to, frames), Some(from.to_owned()));
        moved.expect("running").map_err(|error| error.to_string())
    };
    let names = || {
        let all = handle.listeners().expect("running");
        let streams = all
            .iter()
            .flat_map(|l| l.policy.streams.iter().map(|_| l.path.clone()));
        streams.collect::<Vec<_>>()
    };
    moved(&pod, 1024, &waiting).expect_err("more than there is");
    assert_eq!(names(), std::slice::from_ref(&waiting), "all is as it was");
    moved(&pod, 800, &waiting).expect("the same");
    assert_eq!(names(), std::slice::from_ref(&pod));
    moved(&pod, 700, &pod).expect("from itself");
    moved(&pod, 700, &directory.join("nowhere")).expect("from nobody");
    assert_eq!(names(), [pod]);
}

/// The class is open in the first half of each period.
fn half(base_ns: i64) -> LinkSchedule {
    let schedule = Schedule {
        base_time: takt_time::TaiTime::from_nanos(base_ns),
        cycle_time_ns: PERIOD as u64,
        entries: vec![
            GateEntry::new(GateMask::from_bits(1 << CLASS), PERIOD as u32 / 2),
            GateEntry::new(GateMask::from_bits(1), PERIOD as u32 / 2),
        ],
        ..Schedule::default()
    };
    LinkSchedule::new("udp", schedule, 1_000_000_000)
}

#[test]
fn streams_and_schedules_that_do_not_fit_each_other_are_refused_by_name() {
    let directory = takt_testing::Directory::new();
    let runtime = start(config(free_port(), &[]));
    let handle = runtime.handle();
    let path = |name: &str| directory.join(name);
    let axis = || vec![stream("axis", 5, 2_000_000)];
    set(handle, listener(&path("press"), "press", axis())).expect("there is no schedule");
    let install = |schedule| {
        let answer = handle.install_schedule(schedule).expect("running");
        answer.map_err(|error| error.to_string())
    };
    let refused = install(half(PERIOD / 2)).expect_err("closed");
    assert_eq!(
        refused,
        "declared streams do not fit the schedule of datapath `udp`: stream `axis` of tenant `press`: a launch time at 7 ms of the cycle finds class 5 closed: it is open from 0 ns to 5 ms; move the offset, or the window of the schedule"
    );
    assert_eq!(handle.kept_schedules().expect("running"), []);
    install(half(0)).expect("fits");
    let closed = vec![stream("valve", 6, 7_000_000)];
    let refused = set(handle, listener(&path("valve"), "valve", closed)).expect_err("closed");
    assert!(
        refused.starts_with("stream: declared streams do not fit"),
        "{refused}"
    );
    assert!(
        refused.contains("stream `valve` of tenant `valve`"),
        "{refused}"
    );
    assert!(!path("valve").exists(), "nothing was set");
    // Beside what is there: as many frames as the rest of the window holds.
    let many = |frames| {
        let mut many = stream("many", 6, 2_000_000);
        many.talker.frames = frames;
        set(handle, listener(&path("many"), "many", vec![many]))
    };
    // 3 ms after the launch time, 3392 ns and a gap of 96 ns each.
    let refused = many(1024).expect_err("too many");
    assert!(refused.contains("behind 1 other stream"), "{refused}");
    many(800).expect("fits");
    let mut moved = axis();
    moved[0].talker.offset_ns = 8_000_000;
    set(handle, listener(&path("press"), "press", moved)).expect_err("closed");
    let (streams, _) = counted(handle, "press");
    assert_eq!(streams.len(), 1, "it is as it was");
    assert!(
        !refused.contains("press"),
        "names of others are not told: {refused}"
    );
    // Nor is a schedule installed whose window is too short for both.
    let refused = install(half(7_500_000)).expect_err("too short for many");
    assert!(refused.contains("tenant `many`"), "{refused}");
}

#[test]
fn who_takes_anothers_place_is_refused_without_that_ones_name() {
    let directory = takt_testing::Directory::new();
    let runtime = start(config(free_port(), &[]));
    let handle = runtime.handle();
    let mut both = half(0);
    both.schedule.entries[0].gates = GateMask::from_bits(0b110_0000);
    let installed = handle.install_schedule(both).expect("running");
    installed.expect("nobody has streams");
    let mut below = stream("secret", 5, 4_000_000);
    below.talker.frames = 200;
    let low = listener(&directory.join("low"), "low", vec![below]);
    set(handle, low).expect("fits");
    let mut above = stream("above", 6, 3_900_000);
    above.talker.priority = TrafficClass::new(6).expect("a class");
    above.talker.frames = 300;
    let high = || listener(&directory.join("high"), "high", vec![above.clone()]);
    let refused = set(handle, high()).expect_err("it leaves the other no time");
    assert!(
        refused.contains("a stream that another tenant has declared would lose its place: its last frame may end at")
            && !refused.contains("secret")
            && !refused.contains("low`"),
        "{refused}"
    );
    handle
        .remove_listener(directory.join("low"))
        .expect("running");
    set(handle, high()).expect("alone it fits");
}

/// A tenant with a stream of so many frames, 3 ms before its window ends: about 880 have their place.
fn of_frames(identity: &str, frames: u32) -> Policy {
    let mut stream = stream("many", 6, 2_000_000);
    stream.talker.frames = frames;
    Policy {
        identity: identity.into(),
        streams: vec![stream],
        ..Policy::default()
    }
}

#[test]
fn streams_of_who_comes_by_no_listener_are_admitted_as_all_others() {
    let directory = takt_testing::Directory::new();
    let runtime = start(config(free_port(), &[]));
    let handle = runtime.handle();
    let installed = handle.install_schedule(half(0)).expect("running");
    installed.expect("nobody has streams");
    let connect = |policy| handle.connect(policy).expect("running");
    let refused = connect(of_frames("inside", 1024)).expect_err("too many");
    assert!(
        refused
            .to_string()
            .contains("stream `many` of tenant `inside`"),
        "{refused}"
    );
    let inside = connect(of_frames("inside", 500)).expect("fits");
    // Another session of the same tenant sends no more.
    let again = connect(of_frames("inside", 500)).expect("the same streams");
    // Neither another tenant's streams nor a schedule take their place.
    connect(of_frames("other", 500)).expect_err("no place beside them");
    let path = directory.join("outside");
    let outside = ListenerConfig {
        path: path.clone(),
        mode: 0o600,
        policy: of_frames("outside", 500),
    };
    set(handle, outside.clone()).expect_err("no place beside them");
    let later = handle.install_schedule(half(PERIOD / 2)).expect("running");
    let later = later.expect_err("closed").to_string();
    assert!(
        later.contains("stream `many` of tenant `inside`"),
        "{later}"
    );
    // Who has gone needs none.
    drop((inside, again));
    until_true("its streams have gone with it", || {
        set(handle, outside.clone()).is_ok()
    });
}

#[test]
fn streams_of_a_removed_listener_keep_their_place_as_long_as_it_has_sessions() {
    let directory = takt_testing::Directory::new();
    let runtime = start(config(free_port(), &[]));
    let handle = runtime.handle();
    let installed = handle.install_schedule(half(0)).expect("running");
    installed.expect("nobody has streams");
    let at = |name: &str| ListenerConfig {
        path: directory.join(name),
        mode: 0o600,
        policy: of_frames(name, 500),
    };
    set(handle, at("left")).expect("fits");
    let app = App::over(support::connect(&at("left").path));
    let removed = handle.remove_listener(at("left").path).expect("running");
    assert!(removed);
    // Neither another tenant's streams, nor its own once more, nor a schedule take their place.
    set(handle, at("other")).expect_err("no place beside them");
    set(handle, at("left")).expect_err("they would be there twice");
    let later = handle.install_schedule(half(PERIOD / 2)).expect("running");
    let later = later.expect_err("closed").to_string();
    assert!(later.contains("stream `many` of tenant `left`"), "{later}");
    // Nor has somebody else of the same name and streams, who comes by no listener, part in it.
    let inside = handle.connect(at("left").policy).expect("running");
    inside.expect_err("they would be there twice");
    drop(app);
    until_true("its streams have gone with it", || {
        set(handle, at("other")).is_ok()
    });
}

#[test]
fn streams_of_an_endpoint_that_has_gone_with_its_listener_need_no_place() {
    let directory = takt_testing::Directory::new();
    let runtime = start(Config {
        networks: vec![NetworkConfig {
            name: "pods".into(),
            carrier: Carrier::Routed,
            stations: Vec::new(),
            follow: None,
            interface: None,
            routed: Vec::new(),
        }],
        ..config(free_port(), &[])
    });
    let handle = runtime.handle();
    let installed = handle.install_schedule(half(0)).expect("running");
    installed.expect("nobody has streams");
    let at = |name: &str| ListenerConfig {
        path: directory.join(name),
        mode: 0o600,
        policy: of_frames(name, 500),
    };
    let mut left = at("left");
    left.policy.endpoint = Some(Endpoint {
        network: "pods".into(),
        mac: [2, 0, 0, 0, 0, 7],
        addresses: vec![([10, 244, 1, 7].into(), 24)],
        mtu: 1450,
        vlans: Vec::new(),
    });
    left.policy.streams[0].flow = Flow::Destination(([10, 244, 1, 9], 4000).into());
    let path = left.path.clone();
    set(handle, left).expect("fits");
    let _app = App::over(support::connect(&path));
    set(handle, at("other")).expect_err("no place beside them");
    assert!(handle.remove_listener(path).expect("running"));
    set(handle, at("other")).expect("nothing leaves from the endpoint any more");
}

#[test]
fn of_streams_that_are_declared_at_the_same_time_those_are_admitted_that_fit_together() {
    let directory = takt_testing::Directory::new();
    let runtime = start(config(free_port(), &[]));
    let handle = runtime.handle();
    let installed = handle.install_schedule(half(0)).expect("running");
    installed.expect("nobody has streams");
    for round in 0..20 {
        let names = ["left", "right"].map(|side| format!("{side}-{round}"));
        let listeners = names.map(|name| ListenerConfig {
            path: directory.join(&name),
            mode: 0o600,
            policy: of_frames(&name, 500),
        });
        let admitted = std::thread::scope(|scope| {
            let setting = listeners
                .clone()
                .map(|listener| scope.spawn(|| set(handle, listener).is_ok()));
            setting.map(|thread| thread.join().expect("no panic"))
        });
        assert_eq!(admitted.iter().filter(|admitted| **admitted).count(), 1);
        for listener in listeners {
            handle.remove_listener(listener.path).expect("running");
        }
    }
}
