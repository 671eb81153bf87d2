//! Tenants, many of them, and the slow among them.

use takt::{ChannelId, Error, ErrorCode, Session, SinkOptions, Wait};
use takt_lab::{Lab, LabConfig};

use crate::support::{
    Datapath, Node, Pair, attach, exchange, introduce, number_of, put, skip, take,
};
use takt_testing::{PATIENCE, until_true};

/// Two tenants that share channel 50 and nothing else.
const TENANTS: &str = "\
[[listener]]
path = \"DIR/press.sock\"
identity = \"press\"
write = [\"100-199\", 50]
read = [\"100-199\", 50]
[[listener]]
path = \"DIR/oven.sock\"
identity = \"oven\"
write = [\"200-299\"]
read = [\"200-299\", 50]
";

fn tenant(node: &Node, name: &str) -> Session {
    Session::builder()
        .socket(node.directory.join(&format!("{name}.sock")))
        // Not what decides.
        .name("press")
        .request_timeout(PATIENCE)
        .open()
        .expect("a session")
}

#[test]
fn tenants_may_not_read_each_others_channels_here_or_from_another_node() {
    if skip() {
        return;
    }
    let pair = Pair::with(&LabConfig::default(), TENANTS);
    let press = pair.nodes.each_ref().map(|node| tenant(node, "press"));
    let oven = pair.nodes.each_ref().map(|node| tenant(node, "oven"));
    let [press, oven] = [&press, &oven].map(|sessions| {
        sessions
            .each_ref()
            .map(|session| session.stream(takt::Qos::slow()).expect("a stream"))
    });
    for (stream, name, foreign) in [(&press, "press", 200), (&oven, "oven", 100)] {
        for stream in stream {
            let attempts = [
                stream.sink(ChannelId(foreign)).map(|_| ()),
                stream.source(ChannelId(foreign)).map(|_| ()),
                stream.sink(ChannelId(u64::MAX)).map(|_| ()),
            ];
            for attempt in attempts {
                match attempt {
                    Err(Error::Refused(failure)) => {
                        assert_eq!(failure.code, ErrorCode::NotPermitted);
                        let text = failure.message;
                        assert!(
                            text.contains(name) && text.contains("ask the operator"),
                            "{text}"
                        );
                    }
                    other => panic!("{name} got {other:?}"),
                }
            }
        }
    }
    // What each may do works, across nodes, and what is shared is read by both.
    let own = press[0].source(ChannelId(100)).expect("a source");
    let own_sink = press[1].sink(ChannelId(100)).expect("a sink");
    let shared = press[0].source(ChannelId(50)).expect("a source");
    let shared_sinks = [&press[1], &oven[1]].map(|s| s.sink(ChannelId(50)).expect("a sink"));
    assert!(oven[0].source(ChannelId(50)).is_err(), "it may only read");
    introduce(&own, &[&own_sink]);
    introduce(&shared, &[&shared_sinks[0], &shared_sinks[1]]);
    exchange(&own, &[&own_sink], 0, 100);
    exchange(&shared, &[&shared_sinks[0], &shared_sinks[1]], 0, 100);
    let mut identities: Vec<String> = pair.nodes[0]
        .admin()
        .sessions()
        .into_iter()
        .map(|session| session.identity)
        .collect();
    identities.sort();
    assert_eq!(identities, ["oven", "press"]);
}

#[test]
fn sixty_four_clients_of_one_daemon_exchange_messages() {
    if skip() {
        return;
    }
    const CLIENTS: u64 = 64;
    const MESSAGES: u64 = 100;
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    let node = Node::start(lab.host(0), &[], "");
    let sessions: Vec<Session> = (0..CLIENTS)
        .map(|number| attach(&node, &format!("client {number}")))
        .collect();
    // Each writes its own channel and reads that of the one before it, and one that all read.
    let ends: Vec<_> = (0..CLIENTS)
        .zip(&sessions)
        .map(|(number, session)| {
            let stream = session.stream(takt::Qos::slow()).expect("a stream");
            let source = stream.source(ChannelId(1000 + number)).expect("a source");
            let before = (number + CLIENTS - 1) % CLIENTS;
            let sink = stream.sink(ChannelId(1000 + before)).expect("a sink");
            let all = stream.sink(ChannelId(1)).expect("a sink");
            (number, source, sink, all)
        })
        .collect();
    let announcer = {
        let stream = sessions[0].stream(takt::Qos::slow()).expect("a stream");
        stream.source(ChannelId(1)).expect("a source")
    };
    std::thread::scope(|scope| {
        for (number, source, sink, all) in ends {
            scope.spawn(move || {
                let before = (number + CLIENTS - 1) % CLIENTS;
                for round in 0..MESSAGES {
                    put(&source, number * MESSAGES + round, 64);
                    assert_eq!(take(&sink), before * MESSAGES + round);
                }
                for round in 0..MESSAGES {
                    assert_eq!(take(&all), round);
                }
                let counters = sink.counters();
                assert_eq!(
                    (counters.delivered, counters.lost, counters.dropped_full),
                    (MESSAGES, 0, 0)
                );
            });
        }
        for round in 0..MESSAGES {
            put(&announcer, round, 64);
        }
    });
    let mut admin = node.admin();
    assert_eq!(admin.sessions().len() as u64, CLIENTS);
    let everybody = admin.channel(1);
    assert_eq!(
        (everybody.emitted, everybody.delivered),
        (MESSAGES, MESSAGES * CLIENTS)
    );
    drop(announcer);
    drop(sessions);
    takt_testing::until("all have left", || {
        admin.sessions().is_empty().then_some(())
    });
}

fn a_sink_that_never_consumes(datapath: Datapath) {
    if skip() {
        return;
    }
    const MESSAGES: u64 = 20_000;
    const DEPTH: u32 = 64;
    let channel = ChannelId(8);
    let pair = Pair::over(datapath);
    let sessions = [
        attach(&pair.nodes[0], "writer"),
        attach(&pair.nodes[0], "near"),
        attach(&pair.nodes[1], "far"),
        attach(&pair.nodes[0], "near and deaf"),
        attach(&pair.nodes[1], "far and deaf"),
    ];
    let streams = sessions
        .each_ref()
        .map(|session| session.stream(datapath.qos()).expect("a stream"));
    let source = streams[0].source(channel).expect("a source");
    let [near, far] = [1, 2].map(|at: usize| streams[at].sink(channel).expect("a sink"));
    let shallow = SinkOptions {
        depth: DEPTH,
        ..SinkOptions::default()
    };
    let deaf = [3, 4].map(|at: usize| streams[at].sink_with(channel, shallow).expect("a sink"));
    introduce(&source, &[&near, &far]);
    // One message after the other: each crosses although the deaf sinks are full.
    exchange(&source, &[&near, &far], 0, 1000);
    // In bursts no longer than a sink that listens can hold.
    for burst in 0..(MESSAGES - 1000) / 500 {
        let first = 1000 + burst * 500;
        for number in first..first + 500 {
            put(&source, number, 64);
        }
        for sink in [&near, &far] {
            for number in first..first + 500 {
                assert_eq!(take(sink), number);
            }
        }
    }
    for sink in [&near, &far] {
        let counters = sink.counters();
        assert_eq!((counters.lost, counters.dropped_full), (0, 0));
    }
    for sink in &deaf {
        until_true("what it has no room for is counted", || {
            sink.counters().dropped_full >= MESSAGES - u64::from(DEPTH)
        });
        assert_eq!(sink.available(), DEPTH as usize);
        assert_eq!(sink.counters().lost, 0);
        // What it has is the oldest, whole.
        let first = sink.consume(Wait::Never).expect("a message");
        number_of(&first);
    }
}

#[test]
fn a_sink_that_never_consumes_slows_nobody_over_kernel_udp() {
    a_sink_that_never_consumes(Datapath::Udp);
}

#[test]
fn a_sink_that_never_consumes_slows_nobody_over_af_xdp() {
    a_sink_that_never_consumes(Datapath::Xdp);
}
