//! Streams that change their datapath while messages flow, and streams that have one and no other.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::net::SocketAddrUnix;
use rustix::net::sockopt::Timeout;
use takt::{ChannelId, Qos, Wait};
use takt_lab::LabConfig;
use takt_session::message::{Envelope, Reply, Request};
use takt_session::transport;
use takt_testing::{PATIENCE, until_true};

use crate::plugins::{plugin, sections};
use crate::support::traffic::{Flow, all_arrive, all_arrive_or_count, refusal};
use crate::support::{Node, Pair, attach, introduce, number_of, put, sent_by, skip};

const CHANNEL: ChannelId = ChannelId(5);
/// How often a stream moves, over all there is, to end elsewhere than it began.
const MOVES: usize = 25;

/// Two nodes with kernel UDP, AF_XDP and the plugin of the examples, which streams get at first.
pub fn three_datapaths() -> (takt_testing::Directory, Pair) {
    let directory = plugin();
    let sections = sections(&directory, "") + "[datapath.xdp]\ninterface = \"eth0\"\n";
    let pair = Pair::with(&LabConfig::default(), &sections);
    (directory, pair)
}

/// Changes what a node maps fast streams to, while it runs.
fn map_to(node: &Node, datapath: &str) {
    reconfigure(node, "fast_frugal", &format!("[\"{datapath}\"]"));
}

/// Gives a key of a node's configuration another value, while it runs.
pub fn reconfigure(node: &Node, key: &str, value: &str) {
    let path = node.directory.join("takt.toml");
    let text = std::fs::read_to_string(&path).expect("a configuration");
    let lines = text.lines().map(|line| match line.split_once(" = ") {
        Some((found, _)) if found == key => format!("{key} = {value}"),
        _ => line.to_owned(),
    });
    let text: Vec<String> = lines.collect();
    std::fs::write(path, text.join("\n")).expect("write");
    node.admin().reload();
}

/// Moves the streams of a node from one to the next, each time until more of what is sent has `passed`.
fn move_about(node: &Node, passed: impl Fn() -> u64) {
    for (round, datapath) in ["udp", "xdp", "lossy"]
        .into_iter()
        .cycle()
        .take(MOVES)
        .enumerate()
    {
        map_to(node, datapath);
        assert!(node.admin().node().streams_moved > round as u64);
        let before = passed();
        until_true(&format!("messages pass {datapath}, round {round}"), || {
            passed() > before + 100
        });
    }
}

#[test]
fn a_reliable_stream_moves_while_messages_flow_and_loses_none() {
    if skip() {
        return;
    }
    let (_plugin, pair) = three_datapaths();
    let [near, far] = pair.nodes.each_ref().map(|node| attach(node, "mapping"));
    let flow = Flow::new(&near, &far, CHANNEL, Qos::fast().reliable());
    assert_eq!(flow.stream.datapath(), "lossy");
    let stream = all_arrive(flow, |_, passed| move_about(&pair.nodes[0], passed));
    // The application and the operator see where it is.
    until_true("the application is told", || stream.datapath() == "udp");
    let status = pair.nodes[0].admin().sessions();
    let moved: u64 = status
        .iter()
        .flat_map(|s| &s.streams)
        .map(|s| s.moved)
        .sum();
    assert_eq!(moved, MOVES as u64);
    assert_eq!(pair.nodes[0].admin().node().streams_moved, moved);
    for datapath in ["udp", "xdp", "lossy"] {
        let datagrams = sent_by(&pair.nodes[0], datapath);
        assert!(datagrams > MOVES as u64, "{datagrams} by {datapath}");
    }
}

#[test]
fn what_a_moving_stream_sends_once_arrives_once_or_is_counted() {
    if skip() {
        return;
    }
    let (_plugin, pair) = three_datapaths();
    let [near, far] = pair.nodes.each_ref().map(|node| attach(node, "mapping"));
    let flow = Flow::new(&near, &far, CHANNEL, Qos::fast());
    all_arrive_or_count(flow, |_, passed| move_about(&pair.nodes[0], passed));
}

#[test]
fn a_stream_that_names_its_datapath_gets_that_one_or_none() {
    if skip() {
        return;
    }
    let (_plugin, pair) = three_datapaths();
    let [near, far] = pair.nodes.each_ref().map(|node| attach(node, "mapping"));
    let only = |name: &str| Qos::slow().only_over(name.parse().expect("a name"));
    assert!(refusal(&near, only("fabric")).contains("[datapath.fabric]"));
    let stream = near.stream(only("xdp")).expect("a stream");
    assert_eq!(
        (stream.datapath().as_str(), stream.warning()),
        ("xdp", None)
    );
    let source = stream.source(CHANNEL).expect("a source");
    let reader = far.stream(Qos::slow()).expect("a stream");
    let sink = reader.sink(CHANNEL).expect("a sink");
    introduce(&source, &[&sink]);
    // It stays there whatever the node is told to do with others.
    map_to(&pair.nodes[0], "udp");
    let before = ["xdp", "udp"].map(|datapath| sent_by(&pair.nodes[0], datapath));
    for number in 0..100 {
        put(&source, number, 64);
        let message = sink.consume(Wait::For(PATIENCE)).expect("a message");
        assert_eq!(number_of(&message), number);
    }
    until_true("the ports have told what they sent", || {
        sent_by(&pair.nodes[0], "xdp") >= before[0] + 100
    });
    assert_eq!(sent_by(&pair.nodes[0], "udp"), before[1]);
    let status = pair.nodes[0].admin().sessions();
    let streams: Vec<_> = status.iter().flat_map(|session| &session.streams).collect();
    assert_eq!(streams.len(), 1, "nothing was left of the refused one");
    assert_eq!(
        (streams[0].asked_datapath.as_str(), streams[0].moved),
        ("xdp", 0)
    );
}

#[test]
fn who_writes_a_channel_that_is_mapped_by_hand_goes_that_way_and_nobody_else() {
    if skip() {
        return;
    }
    let (_plugin, pair) = three_datapaths();
    let node = &pair.nodes[0];
    let session = attach(node, "mapping");
    let writer = |qos: Qos, channel| {
        let stream = session.stream(qos).expect("a stream");
        let source = stream.source(channel).expect("a source");
        (stream, source)
    };
    let (free, source) = writer(Qos::fast(), CHANNEL);
    let (other, _others) = writer(Qos::fast(), ChannelId(6));
    let only = Qos::slow().only_over("xdp".parse().expect("a name"));
    let (fixed, _fixed) = writer(only, CHANNEL);
    let map = |datapath: &str| node.admin().map_channel(CHANNEL.0, datapath);

    // Only the first one may move: the third has asked for its datapath by name.
    assert_eq!(map("udp"), Ok(1));
    let now = || [&free, &other, &fixed].map(|stream| stream.datapath());
    until_true("the application is told", || {
        now() == ["udp", "lossy", "xdp"]
    });
    // One that comes to the channel later goes there as well, and one that leaves it goes back.
    let (late, second) = writer(Qos::fast(), CHANNEL);
    until_true("the second stream goes there", || late.datapath() == "udp");
    drop(second);
    until_true("it goes back", || late.datapath() == "lossy");
    let sessions = node.admin().sessions();
    let rules: Vec<_> = sessions
        .iter()
        .flat_map(|s| &s.streams)
        .map(|s| &*s.rule)
        .collect();
    assert_eq!(
        rules.iter().filter(|rule| **rule == "channel 5").count(),
        1,
        "{rules:?}"
    );
    // Another mapping of the node changes nothing there.
    map_to(node, "xdp");
    until_true("the others follow it", || now() == ["udp", "xdp", "xdp"]);
    drop(source);
    until_true("the last of it goes back", || {
        now() == ["xdp", "xdp", "xdp"]
    });
    assert_eq!(map(""), Ok(0));

    let refused = map("carrier-pigeon").expect_err("there is none");
    assert!(
        refused.contains("no datapath `carrier-pigeon`"),
        "{refused}"
    );
}

/// The next that a runtime says to an application without a library.
fn said(socket: &OwnedFd) -> Reply {
    let packet = transport::receive(socket, true).expect("a packet");
    let packet = packet.expect("the session goes on");
    let envelope = Envelope::<Reply>::decode(&packet.bytes).expect("a reply");
    envelope.message
}

fn ask(socket: &OwnedFd, request: u32, message: Request) {
    let bytes = Envelope { request, message }.encode();
    transport::send(socket, &bytes, &[], true).expect("sent");
}

#[test]
fn an_application_that_stands_still_is_told_where_its_streams_are_when_it_goes_on() {
    if skip() {
        return;
    }
    let (_plugin, pair) = three_datapaths();
    let node = &pair.nodes[0];
    let socket = transport::socket().expect("a socket");
    let address = SocketAddrUnix::new(node.socket()).expect("a short path");
    rustix::net::connect(&socket, &address).expect("the daemon listens");
    // What is missing fails the test and does not hang it.
    let patience = Some(takt_testing::PATIENCE);
    rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Recv, patience).expect("set");
    ask(
        &socket,
        1,
        Request::Attach {
            name: "still".into(),
            tx_bytes: 0,
            rx_bytes: 0,
            domain: false,
        },
    );
    assert!(matches!(said(&socket), Reply::Attached { .. }));
    const STREAMS: u32 = 1000;
    for number in 0..STREAMS {
        ask(&socket, 2 + number, Request::OpenStream(Qos::fast()));
        let opened = said(&socket);
        assert!(matches!(&opened, Reply::StreamOpened { datapath, .. } if datapath == "lossy"));
    }
    // All of this would fill its socket many times over.
    for (moves, datapath) in ["udp", "xdp", "lossy"]
        .into_iter()
        .cycle()
        .take(10)
        .enumerate()
    {
        map_to(node, datapath);
        let moved = node.admin().node().streams_moved;
        assert_eq!(moved, u64::from(STREAMS) * (moves as u64 + 1));
    }
    assert_eq!(node.admin().sessions().len(), 1, "it was not ended");
    // There is still room for what it is answered.
    ask(&socket, 5000, Request::OpenStream(Qos::fast()));
    let mut last: HashMap<u32, String> = HashMap::new();
    let mut answered = false;
    while !answered
        || last.values().filter(|datapath| *datapath == "udp").count() < STREAMS as usize
    {
        match said(&socket) {
            Reply::StreamMoved {
                stream, datapath, ..
            } => drop(last.insert(stream, datapath)),
            Reply::StreamOpened { .. } => answered = true,
            other => panic!("{other:?}"),
        }
    }
}
