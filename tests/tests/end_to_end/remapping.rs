//! Datapaths that fail while messages flow, and work again: where their streams go meanwhile.

use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use takt::{ChannelId, FrameOptions, Outcome, Qos, Session, Sink, Source, Stream, Wait};
use takt_lab::{Host, Lab, LabConfig};
use takt_testing::{Directory, PATIENCE, until_true};
use takt_wire::ethernet::MacAddress;
use takt_wire::frame::UdpFlow;
use taktd::admin::proto;

use crate::crashes::open_files;
use crate::mapping::reconfigure;
use crate::plugins::{plugin, sections};
use crate::support::overlay::{self, PORTS, frame, frames, send, udp_socket};
use crate::support::traffic::{Flow, all_arrive, all_arrive_or_count, refusal};
use crate::support::{Datapath, Node, Pair, attach, introduce, number_of, put, sent_by, skip};

const CHANNEL: ChannelId = ChannelId(5);
/// How often a link goes and comes back.
const ROUNDS: usize = 3;
const HOLD_DOWN: &str = "[mapping]\nhold_down_ms = 100\n[datapath.xdp]\ninterface = \"eth1\"\n";

fn ip(host: &Host, words: &str) {
    let mut command = host.command("ip").expect("the lab is up");
    let status = command.args(words.split_whitespace()).status();
    assert!(status.expect("ip starts").success(), "ip {words}");
}

/// The address of the other one of two hosts.
fn other(lab: &Lab, own: usize) -> std::net::Ipv4Addr {
    lab.host(1 - own).address()
}

fn lead_by_second(lab: &Lab, own: usize) {
    let to = other(lab, own);
    ip(lab.host(own), &format!("route add {to}/32 dev eth1"));
}

/// Two nodes with two links. While the second one is there, by which AF_XDP goes, everything takes it.
fn two_links(sections: &str) -> Pair {
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    lay_second(&lab);
    let node = |own: usize| Node::start(lab.host(own), &[other(&lab, own)], sections);
    let nodes = [node(0), node(1)];
    let pair = Pair { nodes, lab };
    pair.await_peers(proto::PeerState::Up);
    pair
}

/// Lays the second link between two hosts, and has everything take it.
fn lay_second(lab: &Lab) {
    let [left, right] = [0, 1].map(|at| lab.host(at).namespace());
    let laid = Command::new("ip")
        .args(["link", "add", "eth1", "netns", left, "type", "veth"])
        .args(["peer", "name", "eth1", "netns", right])
        .status();
    assert!(laid.expect("ip starts").success());
    for own in [0, 1] {
        let host = lab.host(own);
        {
            let _inside = host.enter().expect("the lab is up");
            for (key, value) in [("ignore_routes_with_linkdown", "1"), ("rp_filter", "0")] {
                for of in ["all", "eth0", "eth1"] {
                    let path = format!("/proc/sys/net/ipv4/conf/{of}/{key}");
                    std::fs::write(path, value).expect("set");
                }
            }
        }
        ip(host, &format!("address add {}/32 dev eth1", host.address()));
        ip(host, "link set eth1 up");
        lead_by_second(lab, own);
    }
}

/// Takes the second link away, and gives it back.
fn take_away(pair: &Pair) {
    ip(pair.lab.host(0), "link set eth1 down");
}

fn give_back(pair: &Pair) {
    ip(pair.lab.host(0), "link set eth1 up");
    lead_by_second(&pair.lab, 0);
}

/// Messages of this quality from the first node to the second, between sessions of their own.
fn flow(pair: &Pair, qos: Qos) -> ([Session; 2], Flow) {
    let sessions = pair.nodes.each_ref().map(|node| attach(node, "remapping"));
    let flow = Flow::new(&sessions[0], &sessions[1], CHANNEL, qos);
    (sessions, flow)
}

/// How a link goes and comes back, and what is told of it meanwhile.
struct Outage {
    take_away: fn(&Pair),
    give_back: fn(&Pair),
    why: &'static str,
}

const DOWN: Outage = Outage {
    take_away,
    give_back,
    why: "xdp: the interface eth1 is down",
};

/// With both ends, and another one is made.
const REMOVED: Outage = Outage {
    take_away: |pair| ip(pair.lab.host(0), "link delete eth1"),
    give_back: |pair| lay_second(&pair.lab),
    why: "xdp: the interface eth1 has been removed: it is used again when there is one of this name",
};

fn datapath(node: &Node, name: &str) -> proto::Datapath {
    let all = node.admin().datapaths();
    let found = all.into_iter().find(|datapath| datapath.name == name);
    found.expect("it is configured")
}

/// Takes the link away and gives it back, each time until more of what is sent has passed what carries it then.
fn break_and_mend(pair: &Pair, stream: &Stream, passed: impl Fn() -> u64, outage: &Outage) {
    let passes = |datapath: &str| {
        until_true(&format!("the stream is on {datapath}"), || {
            stream.datapath() == datapath
        });
        let (before, sent) = (passed(), sent_by(&pair.nodes[0], datapath));
        until_true(&format!("messages pass {datapath}"), || {
            passed() > before + 100 && sent_by(&pair.nodes[0], datapath) > sent
        });
    };
    for _ in 0..ROUNDS {
        passes("xdp");
        (outage.take_away)(pair);
        passes("udp");
        let why = stream.warning().expect("it is not what was asked for");
        assert!(why.contains(outage.why), "{why}");
        (outage.give_back)(pair);
    }
    passes("xdp");
    assert_eq!(stream.warning(), None);
}

/// What the node says of it.
fn told(pair: &Pair) {
    let node = pair.nodes[0].admin().node();
    assert_eq!(node.streams_moved, 2 * ROUNDS as u64);
    let xdp = datapath(&pair.nodes[0], "xdp");
    assert!(xdp.available, "{xdp:?}");
    assert_eq!(xdp.failures, ROUNDS as u64);
    let log = pair.nodes[0].log();
    assert_eq!(
        log.matches("a datapath has failed").count(),
        ROUNDS,
        "{log}"
    );
}

#[test]
fn a_reliable_stream_leaves_a_link_that_fails_and_returns_and_loses_nothing() {
    if skip() {
        return;
    }
    let pair = two_links(HOLD_DOWN);
    let (_sessions, flow) = flow(&pair, Qos::fast().reliable());
    all_arrive(flow, |stream, passed| {
        break_and_mend(&pair, stream, passed, &DOWN);
    });
    told(&pair);
}

#[test]
fn what_is_sent_once_over_a_link_that_fails_arrives_or_is_counted() {
    if skip() {
        return;
    }
    let pair = two_links(HOLD_DOWN);
    let (_sessions, flow) = flow(&pair, Qos::fast());
    all_arrive_or_count(flow, |stream, passed| {
        break_and_mend(&pair, stream, passed, &DOWN);
    });
    told(&pair);
}

#[test]
fn a_stream_that_names_its_datapath_stays_when_that_fails_and_says_why() {
    if skip() {
        return;
    }
    // It is back at once: nothing else could carry it meanwhile.
    let sections = HOLD_DOWN.replace("= 100", "= 3600000");
    let pair = two_links(&sections);
    let [near, far] = pair.nodes.each_ref().map(|node| attach(node, "remapping"));
    let only = Qos::slow().only_over("xdp".parse().expect("a name"));
    let stream = near.stream(only).expect("a stream");
    let source = stream.source(CHANNEL).expect("a source");
    let reader = far.stream(Qos::slow()).expect("a stream");
    let sink = reader.sink(CHANNEL).expect("a sink");
    introduce(&source, &[&sink]);
    let why = "the stream asks for the datapath xdp and no other: the interface eth1 is down or has no carrier: `ip link set eth1 up`, or look after its cable";

    take_away(&pair);
    until_true("it says why", || stream.warning().as_deref() == Some(why));
    assert_eq!(stream.datapath(), "xdp");
    assert_eq!(refusal(&near, only), why);
    let token = put(&source, 1, 64);
    until_true("its message is not sent", || {
        source.outcome(token) != Outcome::Pending
    });
    assert_eq!(source.outcome(token), Outcome::Unreachable);
    assert!(sink.consume(Wait::Never).is_err());
    let other = near.stream(Qos::fast()).expect("a stream");
    assert_eq!(other.datapath(), "udp");

    give_back(&pair);
    until_true("it works again", || stream.warning().is_none());
    assert_eq!(stream.datapath(), "xdp");
    let number = Cell::new(1);
    until_true("its messages arrive", || {
        number.set(number.get() + 1);
        put(&source, number.get(), 64);
        sink.consume(Wait::Never)
            .is_ok_and(|message| number_of(&message) <= number.get())
    });
    let why = other.warning().expect("it does not return yet");
    assert!(why.contains("xdp: it works again"), "{why}");
    assert_eq!(other.datapath(), "udp");
    assert_eq!(pair.nodes[0].admin().node().streams_moved, 0);
}

/// Two nodes with the plugin of the examples, which fails at the first one as long as there is the file.
fn one_end_fails(directory: &Directory, broken: &Path, hold_down_ms: u32) -> Pair {
    let text = format!("fails_with = \"{}\"", broken.display());
    let hold_down = format!("[mapping]\nhold_down_ms = {hold_down_ms}\n");
    let text = sections(directory, &text).replace("[mapping]\n", &hold_down);
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    let nodes = [
        Node::start(lab.host(0), &[other(&lab, 0)], &text),
        Node::start(lab.host(1), &[other(&lab, 1)], &sections(directory, "")),
    ];
    let pair = Pair { nodes, lab };
    pair.await_peers(proto::PeerState::Up);
    pair
}

/// Waits until a node says so of its only peer; "": it has nothing to say.
fn warned(node: &Node, text: &str) {
    until_true(&format!("its peer: {text:?}"), || {
        let warning = node.admin().peers()[0].warning.clone();
        warning.contains(text) && warning.is_empty() == text.is_empty()
    });
}

#[test]
fn what_is_for_a_node_whose_datapath_has_failed_goes_by_another_and_its_streams_stay() {
    if skip() {
        return;
    }
    let directory = plugin();
    let broken = directory.join("broken");
    let pair = one_end_fails(&directory, &broken, 3_600_000);
    let [fails, works] = &pair.nodes;
    let [reader, writer] = pair.nodes.each_ref().map(|node| attach(node, "remapping"));
    let reader = reader.stream(Qos::slow()).expect("a stream");
    let only = Qos::slow().only_over("lossy".parse().expect("a name"));
    let streams = [Qos::fast(), only].map(|qos| writer.stream(qos).expect("a stream"));
    let channels = [CHANNEL, ChannelId(CHANNEL.0 + 1)];
    let [source, picky] = [0, 1].map(|at| streams[at].source(channels[at]).expect("a source"));
    let [sink, picky_sink] = channels.map(|channel| reader.sink(channel).expect("a sink"));
    introduce(&source, &[&sink]);
    introduce(&picky, &[&picky_sink]);
    let counted = || works.admin().channel(CHANNEL.0);
    let number = Cell::new(0);
    let next = |source: &Source, sink: &Sink| {
        number.set(number.get() + 1);
        put(source, number.get(), 64);
        let message = sink.consume(Wait::For(PATIENCE)).expect("a message");
        assert_eq!(number_of(&message), number.get());
    };
    // Counters are told now and then: until none is under way.
    let detours = |count: u64| {
        let before = counted();
        (0..count).for_each(|_| next(&source, &sink));
        until_true("what was sent is counted", || {
            counted().sent == before.sent + count
        });
        counted().detoured - before.detoured
    };
    assert_eq!(detours(100), 0);

    std::fs::write(&broken, "").expect("write");
    warned(
        works,
        "lossy has failed there: what is for it goes by other datapaths",
    );
    until_true("its lane knows it", || detours(1) == 1);
    let before = sent_by(works, "udp");
    assert_eq!(detours(100), 100);
    until_true("the port has told what it sent", || {
        sent_by(works, "udp") >= before + 100
    });
    let token = put(&picky, 0, 64);
    until_true("what asks for it and no other is not sent", || {
        picky.outcome(token) != Outcome::Pending
    });
    assert_eq!(picky.outcome(token), Outcome::Unreachable);
    assert!(picky_sink.consume(Wait::Never).is_err());

    std::fs::remove_file(&broken).expect("remove");
    warned(
        works,
        "lossy works again there: what is for it goes by other datapaths for now",
    );
    until_true("what asks for it and no other arrives", || {
        put(&picky, 0, 64);
        picky_sink.consume(Wait::Never).is_ok()
    });
    assert_eq!(detours(100), 100);

    reconfigure(fails, "hold_down_ms", "0");
    warned(works, "");
    until_true("its lane knows it", || detours(1) == 0);
    assert_eq!(detours(100), 0);
    // Nothing of this concerns the streams themselves.
    for stream in &streams {
        assert_eq!(
            (stream.datapath(), stream.warning()),
            ("lossy".into(), None)
        );
    }
    assert_eq!(works.admin().node().streams_moved, 0);
    assert_eq!(sink.counters().lost, 0);
}

#[test]
fn a_reliable_stream_leaves_an_interface_that_is_removed_and_returns_to_the_next_of_its_name() {
    if skip() {
        return;
    }
    let pair = two_links(HOLD_DOWN);
    let held = || pair.nodes.each_ref().map(|node| open_files(node, ""));
    let once = Cell::new(None);
    let (_sessions, flow) = flow(&pair, Qos::fast().reliable());
    all_arrive(flow, |stream, passed| {
        break_and_mend(&pair, stream, passed, &REMOVED);
        once.set(Some(held()));
        break_and_mend(&pair, stream, passed, &REMOVED);
    });
    let xdp = datapath(&pair.nodes[0], "xdp");
    assert!(xdp.available, "{xdp:?}");
    assert_eq!(xdp.failures, 2 * ROUNDS as u64);
    until_true("nothing is left of those before", || {
        Some(held()) <= once.get()
    });
}

#[test]
fn what_is_sent_once_over_an_interface_that_is_removed_arrives_or_is_counted() {
    if skip() {
        return;
    }
    let pair = two_links(HOLD_DOWN);
    let (_sessions, flow) = flow(&pair, Qos::fast());
    all_arrive_or_count(flow, |stream, passed| {
        break_and_mend(&pair, stream, passed, &REMOVED);
    });
}

#[test]
fn an_interface_that_is_there_again_and_cannot_be_used_is_told_and_used_as_soon_as_it_can() {
    if skip() {
        return;
    }
    let pair = two_links(HOLD_DOWN);
    let near = attach(&pair.nodes[0], "remapping");
    let stream = near.stream(Qos::fast()).expect("a stream");
    assert_eq!(stream.datapath(), "xdp");
    let host = pair.lab.host(0);
    (REMOVED.take_away)(&pair);
    until_true("it is left", || stream.datapath() == "udp");
    // No Ethernet.
    ip(host, "tuntap add dev eth1 mode tun");
    let told = |part: &str| {
        until_true(part, || {
            let xdp = datapath(&pair.nodes[0], "xdp");
            !xdp.available && xdp.reason.contains(part)
        });
    };
    told(
        "the interface eth1 is there again, and cannot be used: not available here: eth1 is not an Ethernet interface",
    );
    ip(host, "link delete eth1");
    told("has been removed");
    (REMOVED.give_back)(&pair);
    until_true("it is used", || stream.datapath() == "xdp");
}

#[test]
fn frames_of_a_native_network_leave_by_an_interface_that_was_removed_and_is_there_again() {
    if skip() {
        return;
    }
    for interface in ["", "interface = \"eth1\"\n"] {
        let pair = two_links(&format!(
            "[listener.endpoint]\nnetwork = \"line\"\nmac = \"02:00:00:00:00:50\"\n\
             addresses = [\"10.77.0.50/24\"]\nmtu = 1500\n\
             [[network]]\nname = \"line\"\ncarrier = \"native\"\n{interface}{HOLD_DOWN}"
        ));
        let session = attach(&pair.nodes[0], "talker");
        let source = frames(&session, Datapath::Xdp);
        let (here, there) = (pair.lab.host(0), pair.lab.host(1));
        let listener = udp_socket(there, (there.address(), PORTS[1]));
        // Each time that it is laid, the link's other end has another address: to all of them.
        let flow = UdpFlow {
            src_mac: MacAddress([2, 0, 0, 0, 0, 0x50]),
            src: ([10, 77, 0, 50], PORTS[0]).into(),
            ..overlay::flow(here, there, [0xff; 6])
        };
        let mut number = 0u64;
        let mut passes = || {
            until_true("a frame leaves by AF_XDP, and arrives", || {
                number += 1;
                let by = |datapath| sent_by(&pair.nodes[0], datapath);
                let before = [by("xdp"), by("udp")];
                let payload = number.to_le_bytes();
                let sent = send(&source, &frame(&flow, &payload), &FrameOptions::default());
                if sent != Outcome::Sent {
                    return false;
                }
                listener
                    .set_read_timeout(Some(Duration::from_millis(100)))
                    .expect("a time-out");
                let mut got = [0; 8];
                while listener.recv(&mut got).is_ok() {
                    if got == payload {
                        until_true("the port has told what it sent", || {
                            [by("xdp"), by("udp")] != before
                        });
                        return by("xdp") > before[0];
                    }
                }
                false
            });
        };
        for _ in 0..ROUNDS {
            passes();
            (REMOVED.take_away)(&pair);
            until_true("it is told", || !datapath(&pair.nodes[0], "xdp").available);
            (REMOVED.give_back)(&pair);
        }
        passes();
    }
}

#[test]
fn a_plugin_that_reports_its_failure_is_left_until_it_works_again() {
    if skip() {
        return;
    }
    let directory = plugin();
    let broken = directory.join("broken");
    let broken = broken.as_path();
    let pair = one_end_fails(&directory, broken, 100);
    let [near, far] = pair.nodes.each_ref().map(|node| attach(node, "remapping"));
    let stream = near.stream(Qos::fast()).expect("a stream");
    assert_eq!(stream.datapath(), "lossy");
    let source = stream.source(CHANNEL).expect("a source");
    let reader = far.stream(Qos::slow()).expect("a stream");
    let sink = reader.sink(CHANNEL).expect("a sink");
    introduce(&source, &[&sink]);
    for round in 0..ROUNDS as u64 {
        std::fs::write(broken, "").expect("write");
        until_true("it is left", || stream.datapath() == "udp");
        let lossy = datapath(&pair.nodes[0], "lossy");
        assert!(!lossy.available);
        assert_eq!(lossy.failures, round + 1);
        let why = format!("there is a file {}: remove it", broken.display());
        assert_eq!(lossy.reason, why);
        let before = sent_by(&pair.nodes[0], "udp");
        for number in 0..100 {
            put(&source, number, 64);
            let message = sink.consume(Wait::For(PATIENCE)).expect("a message");
            assert_eq!(number_of(&message), number);
        }
        until_true("the port has told what it sent", || {
            sent_by(&pair.nodes[0], "udp") >= before + 100
        });
        std::fs::remove_file(broken).expect("remove");
        until_true("it is returned to", || stream.datapath() == "lossy");
    }
}
