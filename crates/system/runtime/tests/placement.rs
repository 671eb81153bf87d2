//! Which lane serves whom, and that a link with a schedule has one queue.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use support::{App, config, connect, free_port, start};
use takt_clock::{Clock, SystemTai};
use takt_datapath::Datapath;
use takt_datapath::memory::{MemoryNetwork, MemoryNetworkConfig};
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_runtime::config::{Config, LinkSchedule, ListenerConfig};
use takt_runtime::policy::{MappingPolicy, Policy};
use takt_runtime::{Runtime, RuntimeHandle};
use takt_session::layout::{
    APPLICATION_OFFSET, BEFORE_OFFSET, FLAG_AT_ONCE_HERE, FLAG_LAUNCH_TIME, SAYS_BEFORE,
    TxDescriptor,
};
use takt_session::message::{Reply, Request};
use takt_session::{ErrorCode, Qos};
use takt_testing::{Directory, until_true};
use takt_time::TrafficClass;

/// A node of two lanes whose datapaths are carried by these.
fn two_lanes(carriers: &[(&str, &[usize])]) -> Config {
    let carriers = carriers.iter();
    let carriers = carriers.map(|(name, lanes)| ((*name).to_owned(), lanes.to_vec()));
    Config {
        lanes: vec![Default::default(); 2],
        datapath_lanes: carriers.collect::<BTreeMap<_, _>>(),
        ..config(free_port(), &[])
    }
}

/// The lanes of all sessions, in the order in which they came.
fn lanes(handle: &RuntimeHandle) -> Vec<usize> {
    let mut sessions = handle.sessions().expect("running");
    sessions.sort_by_key(|session| session.session);
    sessions.iter().map(|session| session.lane).collect()
}

/// All gates open for half a cycle.
fn schedule() -> LinkSchedule {
    let text =
        "cycle-time = \"10ms\"\n[[entry]]\ngates = [0, 1, 2, 3, 4, 5, 6, 7]\ninterval = \"10ms\"\n";
    let read = takt_schedule::form::read(takt_schedule::form::Form::Toml, text, None);
    LinkSchedule::new(
        "udp",
        read.expect("a schedule").document.schedule,
        1_000_000_000,
    )
}

#[test]
fn a_link_that_several_lanes_carry_gets_no_schedule_and_is_told_which() {
    let runtime = start(two_lanes(&[]));
    let refused = runtime.handle().install_schedule(schedule());
    let error = refused
        .expect("running")
        .expect_err("two queues")
        .to_string();
    assert!(
        error.contains("lanes [0, 1] carry datapath `udp`"),
        "{error}"
    );
    assert!(error.contains("`lanes = [0]` in [datapath.udp]"), "{error}");
}

#[test]
fn whoever_sends_by_a_link_is_served_by_the_lane_that_carries_it() {
    let runtime = start(two_lanes(&[("udp", &[1])]));
    let handle = runtime.handle();
    let begins = handle.install_schedule(schedule()).expect("running");
    begins.expect("one queue");
    let mut apps: Vec<App> = (0..4).map(|_| App::attach(handle)).collect();
    let streams: Vec<u32> = apps.iter_mut().map(|app| app.stream(Qos::slow())).collect();
    assert_eq!(lanes(handle), [1; 4]);
    // Further streams stay there, and messages flow.
    assert_eq!(apps[0].stream(Qos::slow()), 1);
    let mut source = apps[0].source(streams[0], 5, 0);
    let mut sink = apps[3].sink(streams[3], 5, 0);
    apps[0].emit_until_heard(&mut source, b"one queue");
    assert_eq!(apps[3].receive(&mut sink).1, b"one queue");
}

#[test]
fn sessions_are_spread_over_the_lanes_of_their_tenant() {
    let runtime = start(two_lanes(&[]));
    let handle = runtime.handle();
    let pinned = Policy {
        lanes: vec![1],
        ..Policy::default()
    };
    let mut apps: Vec<App> = (0..2)
        .map(|_| App::attach_with(handle, pinned.clone()))
        .collect();
    apps.extend((0..2).map(|_| App::attach(handle)));
    apps.iter_mut().for_each(|app| {
        app.stream(Qos::slow());
    });
    assert_eq!(lanes(handle), [1, 1, 0, 0]);
}

#[test]
fn launch_times_hold_for_sinks_of_every_lane_of_the_node() {
    let runtime = start(two_lanes(&[]));
    let on = |lane: usize| Policy {
        lanes: vec![lane],
        ..Policy::default()
    };
    let mut apps = [0, 1].map(|lane| App::attach_with(runtime.handle(), on(lane)));
    let streams = apps.each_mut().map(|app| app.stream(Qos::slow()));
    assert_eq!(lanes(runtime.handle()), [0, 1]);
    let mut source = apps[0].source(streams[0], 5, 0);
    let mut there = apps[1].sink(streams[1], 5, 0);
    until_true("the other lane's sink is known", || {
        apps[0].emit(&mut source, 0, b"there?", 0);
        apps[0].completion(&mut source);
        apps[1].take(&mut there).is_some()
    });
    let mut sinks = [apps[0].sink(streams[0], 5, 0), there];
    let launch = SystemTai.now().as_nanos() + 200_000_000;
    for (chunk, flags) in [
        (1, FLAG_LAUNCH_TIME),
        (2, FLAG_LAUNCH_TIME | FLAG_AT_ONCE_HERE),
    ] {
        let descriptor = TxDescriptor {
            chunk,
            flags,
            launch_time_ns: launch,
            ..TxDescriptor::default()
        };
        apps[0].emit_as(&mut source, &[chunk as u8], descriptor);
    }
    for (app, sink) in apps.iter().zip(&mut sinks) {
        let mut next = || loop {
            let (_, bytes) = app.receive(sink);
            if bytes != b"there?" {
                return bytes;
            }
        };
        // What is to be there at once overtakes.
        assert_eq!(next(), [2]);
        assert_eq!(next(), [1]);
        assert!(SystemTai.now().as_nanos() >= launch);
    }
}

#[test]
fn streams_of_a_class_are_served_by_its_lanes_and_by_no_other() {
    let runtime = start(Config {
        class_lanes: BTreeMap::from([(6, vec![1])]),
        ..two_lanes(&[])
    });
    let handle = runtime.handle();
    let class = TrafficClass::new(6).expect("a class");
    let control = Qos::slow().time_sensitive(class);
    let refusal = |app: &mut App, remedy: &str| {
        let refusal = app.ask(Request::OpenStream(control));
        let refusal = refusal.expect_err("no such lane");
        assert_eq!(refusal.code, ErrorCode::NotPermitted);
        let told = &refusal.message;
        assert!(
            told.contains("lanes [1] serve streams of class 6"),
            "{told}"
        );
        assert!(told.contains(remedy), "{told}");
    };
    let mut apps: Vec<App> = (0..4).map(|_| App::attach(handle)).collect();
    apps[..3].iter_mut().for_each(|app| {
        app.stream(control);
    });
    assert_eq!(lanes(handle)[..3], [1, 1, 1]);
    // Another class goes where there is room, and takes its session there for good.
    apps[3].stream(Qos::slow());
    assert_eq!(lanes(handle), [1, 1, 1, 0]);
    refusal(&mut apps[3], "in a session of its own");
    // The first one may have any stream on the lane that it is on.
    apps[0].stream(Qos::slow());
    let policy = Policy {
        lanes: vec![0],
        ..Policy::default()
    };
    let mut elsewhere = App::attach_with(handle, policy);
    refusal(&mut elsewhere, "in `lanes` of its listener");
}

#[test]
fn a_class_with_a_lane_that_is_not_there_is_refused() {
    let config = Config {
        class_lanes: BTreeMap::from([(6, vec![2])]),
        ..two_lanes(&[])
    };
    let udp: Arc<dyn Datapath> = Arc::new(UdpDatapath::new(UdpConfig::default()));
    let refused = Runtime::start(config, &[udp], Vec::new());
    let error = refused.err().expect("there are two lanes").to_string();
    assert!(error.contains("class 6 names [2] as its lanes"), "{error}");
}

#[test]
fn a_tenant_whose_lanes_carry_nothing_is_told_so() {
    let runtime = start(two_lanes(&[("udp", &[1])]));
    let policy = Policy {
        lanes: vec![0],
        ..Policy::default()
    };
    let mut app = App::attach_with(runtime.handle(), policy);
    let refusal = app.ask(Request::OpenStream(Qos::slow()));
    let refusal = refusal.expect_err("no datapath there");
    assert_eq!(refusal.code, ErrorCode::NotPermitted);
    assert!(refusal.message.contains("carry no datapath"), "{refusal}");
    // Gone without a stream, it leaves nothing behind.
    drop(app);
    until_true("it is forgotten", || lanes(runtime.handle()).is_empty());
}

#[test]
fn a_second_stream_gets_what_the_lane_of_the_first_carries_and_says_why() {
    let network = MemoryNetwork::new(MemoryNetworkConfig::default());
    let name = MemoryNetwork::KIND.0;
    let config = Config {
        mapping: MappingPolicy {
            fast_frugal: vec![name.into()],
            ..MappingPolicy::default()
        },
        ..two_lanes(&[("udp", &[0]), (name, &[1])])
    };
    let udp: Arc<dyn Datapath> = Arc::new(UdpDatapath::new(UdpConfig::default()));
    let runtime = Runtime::start(config, &[udp, network.datapath()], Vec::new());
    let runtime = runtime.expect("it starts");
    let mut app = App::attach(runtime.handle());
    app.stream(Qos::fast());
    assert_eq!(lanes(runtime.handle()), [1]);
    let Ok(Reply::StreamOpened {
        datapath, warning, ..
    }) = app.ask(Request::OpenStream(Qos::slow()))
    else {
        panic!("no stream")
    };
    assert_eq!(datapath, name);
    assert!(warning.contains("only lanes [0] carry it"), "{warning}");
    let mut other = App::attach(runtime.handle());
    other.stream(Qos::slow());
    assert_eq!(lanes(runtime.handle()), [1, 0]);
}

#[test]
fn a_session_that_is_moved_is_served_by_what_its_new_lane_carries() {
    let directory = Directory::new();
    let path = directory.join("tenant.sock");
    let network = MemoryNetwork::new(MemoryNetworkConfig::default());
    let name = MemoryNetwork::KIND.0;
    let config = Config {
        mapping: MappingPolicy {
            fast_frugal: vec![name.into(), "udp".into()],
            ..MappingPolicy::default()
        },
        listeners: vec![ListenerConfig {
            path: path.clone(),
            mode: 0o600,
            policy: Policy::default(),
        }],
        ..two_lanes(&[("udp", &[0, 1]), (name, &[0])])
    };
    let udp: Arc<dyn Datapath> = Arc::new(UdpDatapath::new(UdpConfig::default()));
    let runtime = Runtime::start(config, &[udp, network.datapath()], Vec::new());
    let runtime = runtime.expect("it starts");
    let handle = runtime.handle();
    // The datapath of its stream, and its lane.
    let open = |app: &mut App, told: u64| {
        let Ok(Reply::StreamOpened { datapath, .. }) = app.ask(Request::OpenStream(Qos::fast()))
        else {
            panic!("no stream")
        };
        let sessions = handle.sessions().expect("running");
        let session = sessions.iter().find(|s| s.session == told);
        (datapath, session.expect("it is there").lane)
    };
    let newest = || {
        let sessions = handle.sessions().expect("running");
        sessions.iter().map(|s| s.session).max().expect("some")
    };
    let mut app = App::over(connect(&path));
    let told = newest();
    assert_eq!(open(&mut app, told), (name.to_owned(), 0));
    let mut other = App::over(connect(&path));
    let other_told = newest();
    let moved = handle.move_session(told, 1).expect("running");
    moved.expect("lane 1 carries a datapath for it");
    // Of the same program, and there before: it is not the one that comes back.
    assert_eq!(open(&mut other, other_told), (name.to_owned(), 0));
    let mut again = App::over(connect(&path));
    let told = newest();
    assert_eq!(open(&mut again, told), ("udp".to_owned(), 1));
}

#[test]
fn sessions_of_one_name_that_are_moved_together_each_find_their_own_lane() {
    let directory = Directory::new();
    let path = directory.join("tenant.sock");
    let config = Config {
        listeners: vec![ListenerConfig {
            path: path.clone(),
            mode: 0o600,
            policy: Policy::default(),
        }],
        ..two_lanes(&[("udp", &[0, 1])])
    };
    let udp: Arc<dyn Datapath> = Arc::new(UdpDatapath::new(UdpConfig::default()));
    let runtime = Runtime::start(config, &[udp], Vec::new()).expect("it starts");
    let handle = runtime.handle();
    let newest = || {
        let sessions = handle.sessions().expect("running");
        sessions.iter().map(|s| s.session).max().expect("some")
    };
    let lane = |session: u64| {
        let sessions = handle.sessions().expect("running");
        let found = sessions.iter().find(|s| s.session == session);
        let found = found.expect("it is there");
        (found.lane, found.moved)
    };
    // Says which session it was, as the client does before it opens anything.
    let come = |before: Option<u64>| {
        let mut app = App::over(connect(&path));
        if let Some(before) = before {
            let word = |offset| app.arena.atomic_u32(offset).expect("in bounds");
            let place = app.arena.atomic_u64(BEFORE_OFFSET).expect("in bounds");
            place.store(before, Ordering::Relaxed);
            word(APPLICATION_OFFSET).store(SAYS_BEFORE, Ordering::Relaxed);
        }
        app.stream(Qos::slow());
        let told = newest();
        (app, told)
    };
    let ((_one, one), (_other, other)) = (come(Some(0)), come(Some(0)));
    assert_ne!(lane(one).0, lane(other).0);
    let wanted = [one, other].map(|session| 1 - lane(session).0);
    for (session, to) in [one, other].into_iter().zip(wanted) {
        handle
            .move_session(session, to)
            .expect("running")
            .expect("it may");
    }
    // A new one of the same program takes nobody's place, nor does one that was another one.
    for before in [0, 4711] {
        let (_app, stranger) = come(Some(before));
        assert_eq!(lane(stranger).1, 0, "{before}");
    }
    // The last one to be moved is back first.
    let (_other, other) = come(Some(other));
    assert_eq!(lane(other), (wanted[1], 1));
    // An older client does not say: it gets the place that is left.
    let (_one, one) = come(None);
    assert_eq!(lane(one), (wanted[0], 1));
}

#[test]
fn of_two_datapaths_that_send_from_one_address_one_gets_a_schedule() {
    let network = MemoryNetwork::new(MemoryNetworkConfig::default());
    let name = MemoryNetwork::KIND.0;
    let udp: Arc<dyn Datapath> = Arc::new(UdpDatapath::new(UdpConfig::default()));
    let config = config(free_port(), &[]);
    let runtime = Runtime::start(config, &[udp, network.datapath()], Vec::new());
    let runtime = runtime.expect("it starts");
    let handle = runtime.handle();
    let install = |datapath: &str| {
        let schedule = LinkSchedule {
            datapath: datapath.into(),
            ..schedule()
        };
        handle.install_schedule(schedule).expect("running")
    };
    install(name).expect("the first");
    install(name).expect("another one for the same");
    let refused = install("udp").expect_err("a second").to_string();
    let remedy = format!("`takt schedule remove --datapath {name}`");
    assert!(refused.contains(&remedy), "{refused}");
    // Who looks is told that there is traffic beside the gates.
    let links = handle.schedules().expect("running");
    let beside = |of: &str| {
        let mut links = links.iter().filter(|link| link.datapath == of);
        links.next().expect("a link").beside.clone()
    };
    assert_eq!(
        (beside(name), beside("udp")),
        (vec!["udp".to_owned()], vec![name.to_owned()])
    );
    assert!(handle.remove_schedule(name.into()).expect("running"));
    install("udp").expect("the only one");
}

#[test]
fn a_datapath_of_a_lane_that_is_not_there_is_refused() {
    let udp: Arc<dyn Datapath> = Arc::new(UdpDatapath::new(UdpConfig::default()));
    let started = Runtime::start(two_lanes(&[("udp", &[2])]), &[udp], Vec::new());
    let error = started.err().expect("refused").to_string();
    assert_eq!(
        error,
        "datapath udp names [2] as its lanes: this node has 0 to 1"
    );
}
