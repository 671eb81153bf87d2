//! Several lanes, several queues; and a node that has nothing to do.

use takt::{ChannelId, Session};
use takt_lab::{Lab, LabConfig};

use crate::support::{Datapath, Node, Pair, attach, introduce, put, skip, take};
use takt_testing::until;

const TWO_LANES: &str = "[[lane]]\n[[lane]]\n";
const APPLICATIONS: usize = 4;
const MESSAGES: u64 = 2000;
/// Messages that a source has on the way at most.
const WINDOW: u64 = 100;

/// Applications on both lanes of both nodes, each of which writes a channel that all others read.
fn everybody_to_everybody(datapath: Datapath, config: &LabConfig) {
    if skip() {
        return;
    }
    let pair = Pair::with(config, &format!("{TWO_LANES}{}", datapath.section()));
    let sessions: Vec<Session> = (0..2 * APPLICATIONS)
        .map(|at| attach(&pair.nodes[at % 2], &format!("application {at}")))
        .collect();
    let streams: Vec<_> = sessions
        .iter()
        .map(|session| session.stream(datapath.qos()).expect("a stream"))
        .collect();
    for stream in &streams {
        assert_eq!(stream.datapath(), datapath.name());
    }
    for node in &pair.nodes {
        let lanes = node.admin().node().lanes;
        assert_eq!(lanes.len(), 2);
        for lane in lanes {
            assert!(lane.sessions > 0, "a lane without sessions");
        }
    }
    let channel = |at: usize| ChannelId(100 + at as u64);
    let sources: Vec<_> = (0..streams.len())
        .map(|at| streams[at].source(channel(at)).expect("a source"))
        .collect();
    // By the application that reads, then by the one that writes.
    let sinks: Vec<Vec<_>> = streams
        .iter()
        .map(|stream| {
            (0..streams.len())
                .map(|from| stream.sink(channel(from)).expect("a sink"))
                .collect()
        })
        .collect();
    for (from, source) in sources.iter().enumerate() {
        let heard: Vec<_> = sinks.iter().map(|sinks| &sinks[from]).collect();
        introduce(source, &heard);
    }
    let barrier = &std::sync::Barrier::new(streams.len());
    std::thread::scope(|scope| {
        for (source, sinks) in sources.into_iter().zip(sinks) {
            scope.spawn(move || {
                for burst in 0..MESSAGES / WINDOW {
                    let numbers = burst * WINDOW..(burst + 1) * WINDOW;
                    for number in numbers.clone() {
                        put(&source, number, 200);
                    }
                    for sink in &sinks {
                        for number in numbers.clone() {
                            assert_eq!(take(sink), number);
                        }
                    }
                    // Nobody runs ahead of what a sink holds.
                    barrier.wait();
                }
                for sink in &sinks {
                    let counters = sink.counters();
                    assert_eq!((counters.lost, counters.dropped_full), (0, 0));
                }
            });
        }
    });
    for node in &pair.nodes {
        let mut admin = node.admin();
        // Lanes publish what their ports count now and then.
        until("all lanes have taken part", || {
            let took_part = admin.node().lanes.iter().all(|lane| {
                let mut ports = lane.ports.iter();
                let port = ports.find(|port| port.datapath == datapath.name());
                let counters = port.and_then(|port| port.counters).expect("counters");
                counters.tx_datagrams > 0 && counters.rx_datagrams > 0
            });
            took_part.then_some(())
        });
    }
}

#[test]
fn applications_on_two_lanes_of_two_nodes_all_hear_each_other_over_kernel_udp() {
    everybody_to_everybody(Datapath::Udp, &LabConfig::default());
}

#[test]
fn applications_on_two_lanes_with_a_queue_each_all_hear_each_other_over_af_xdp() {
    let config = LabConfig {
        queues: 2,
        ..LabConfig::default()
    };
    everybody_to_everybody(Datapath::Xdp, &config);
}

#[test]
fn applications_on_two_lanes_that_share_a_queue_all_hear_each_other_over_af_xdp() {
    everybody_to_everybody(Datapath::Xdp, &LabConfig::default());
}

/// Clock ticks that the process has used, all its threads together (proc_pid_stat(5), fields 14 and 15).
fn ticks(node: &Node) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.pid())).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let field = |number: usize| -> u64 {
        let text = fields.split_whitespace().nth(number - 3);
        text.expect("the field").parse().expect("a number")
    };
    field(14) + field(15)
}

#[test]
fn an_attached_silent_node_takes_next_to_no_cpu() {
    if skip() {
        return;
    }
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    let sections = Datapath::Xdp.section();
    let nodes = [(0, 1), (1, 0)]
        .map(|(own, other)| Node::start(lab.host(own), &[lab.host(other).address()], sections));
    for node in &nodes {
        node.await_peers(1, taktd::admin::proto::PeerState::Up);
    }
    let sessions = nodes.each_ref().map(|node| attach(node, "silent"));
    let [from, to] = sessions
        .each_ref()
        .map(|session| session.stream(takt::Qos::fast()).expect("a stream"));
    let source = from.source(ChannelId(1)).expect("a source");
    let sink = to.sink(ChannelId(1)).expect("a sink");
    introduce(&source, &[&sink]);
    let mut admin = nodes[0].admin();
    let counters = |admin: &mut crate::support::node::Admin| {
        let counters = admin.node().lanes[0].counters;
        counters.expect("counters")
    };
    until("the lane sleeps", || {
        let before = counters(&mut admin).polls;
        std::thread::sleep(std::time::Duration::from_millis(20));
        (counters(&mut admin).polls == before).then_some(())
    });
    // What is measured over this time, not a wait for something. The share of a core belongs to the machine and is
    // told; that next to nothing wakes the lane is ours and must hold on any.
    let time = std::time::Duration::from_secs(3);
    let begin = (std::time::Instant::now(), nodes.each_ref().map(ticks));
    let before = counters(&mut admin);
    std::thread::sleep(time);
    let after = counters(&mut admin);
    let (woken, polls) = (after.parks - before.parks, after.polls - before.polls);
    assert!(woken <= 10, "woken {woken} times");
    // A lane that does not sleep polls millions of times.
    assert!(polls < 100_000, "{polls} rounds");
    let elapsed = begin.0.elapsed().as_secs_f64();
    for (node, before) in nodes.iter().zip(begin.1) {
        // USER_HZ is 100 wherever Linux runs today.
        let share = (ticks(node) - before) as f64 / 100.0 / elapsed;
        println!(
            "an attached, silent node: {:.2} % of a core, woken {woken} times",
            share * 100.0
        );
    }
    put(&source, 7, 64);
    assert_eq!(take(&sink), 7);
}
