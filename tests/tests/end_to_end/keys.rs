//! The keys of two nodes while messages flow: those of datagrams, which grow old, and those of nodes, which operators
//! change; and who can read what is on the wire.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use takt::{ChannelId, Qos, Session};
use takt_lab::{Capture, Lab, LabConfig};
use takt_testing::{PATIENCE, until, until_true};
use taktd::admin::proto::{Authentication, PeerState};
use taktd::security::{PrivateKey, next_file, read};

use crate::support::traffic::Flow;
use crate::support::{Admin, Datapath, Node, Pair, Stops, attach, exchange, skip};

const CHANNEL: ChannelId = ChannelId(5);
const RELIABLE: ChannelId = ChannelId(6);
/// What is looked for on the wire.
const SECRET: &[u8; 32] = b"what only the two nodes may read";
/// Where the number of the key's session is in a datagram (docs/reference/wire-format.md).
const SESSION: usize = 23;

fn protected(protection: &str) -> Pair {
    let sections = format!(
        "[security]\nprotection = \"{protection}\"\nrekey_seconds = 15\ngroup_key_file = \"DIR/group.key\"\n\
         key_file = \"DIR/node.key\"\n"
    );
    Pair::with(&LabConfig::default(), &sections)
}

/// What the first node sends to the lane of the second.
fn wire(pair: &Pair) -> Capture {
    let lanes = pair.nodes[1].admin().node().lanes;
    let mut ports = lanes.iter().flat_map(|lane| &lane.ports);
    let port = ports.find(|port| port.datapath == Datapath::Udp.name());
    let local: SocketAddr = port.expect("its port").local.parse().expect("an address");
    Capture::sent_by(pair.lab.host(0), local.port()).expect("a capture")
}

/// Messages of a source that sends once, and of a reliable one, each way.
fn flows([near, far]: &[Session; 2]) -> Vec<Flow> {
    let mut flows = Vec::new();
    for (way, (from, to)) in [(near, far), (far, near)].into_iter().enumerate() {
        for (channel, qos) in [(CHANNEL, Qos::fast()), (RELIABLE, Qos::fast().reliable())] {
            let channel = ChannelId(channel.0 + 10 * way as u64);
            flows.push(Flow::new(from, to, channel, qos));
        }
    }
    flows
}

/// Numbered messages both ways until the end: none is lost, doubled or out of order.
fn none_is_lost(flows: Vec<Flow>, end: &AtomicBool, rounds: &AtomicU64) {
    let lost = |flow: &Flow| {
        let of = flow.sink.counters();
        (of.lost, of.dropped_full, of.dropped_memory)
    };
    let before: Vec<_> = flows.iter().map(lost).collect();
    let mut number = 0;
    while !end.load(Relaxed) {
        for flow in &flows {
            exchange(&flow.source, &[&flow.sink], number, 1);
        }
        number += 1;
        rounds.store(number, Relaxed);
    }
    assert_eq!(flows.iter().map(lost).collect::<Vec<_>>(), before);
}

/// Does something while messages flow, and goes on when more of them have come.
fn under_traffic(nodes: &[Node; 2], meanwhile: impl FnOnce()) {
    let sessions = [0, 1].map(|at| attach(&nodes[at], "numbered"));
    let flows = flows(&sessions);
    let (end, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (end, rounds) = (&end, &rounds);
        let flags = [end];
        let _ends = Stops(&flags);
        let traffic = scope.spawn(move || none_is_lost(flows, end, rounds));
        meanwhile();
        let so_far = rounds.load(Relaxed);
        until_true("messages go on", || {
            traffic.is_finished() || rounds.load(Relaxed) > so_far + 10
        });
    });
    assert!(rounds.load(Relaxed) > 10);
}

#[test]
fn what_is_encrypted_cannot_be_read_on_the_wire_and_arrives() {
    if skip() {
        return;
    }
    for (protection, readable) in [("integrity", true), ("encrypt", false)] {
        let pair = protected(protection);
        let [near, far] = [0, 1].map(|at| attach(&pair.nodes[at], "secret"));
        let flow = Flow::new(&near, &far, CHANNEL, Qos::fast());
        let wire = wire(&pair);
        let mut buffer = flow.source.buffer(SECRET.len()).expect("room");
        buffer.copy_from_slice(SECRET);
        buffer.emit().expect("sent");
        let message = flow.sink.consume(takt::Wait::For(PATIENCE));
        assert_eq!(&*message.expect("it arrives"), SECRET);
        let mut seen = Vec::new();
        until("the datagram was on the wire", || {
            let next = wire.next(PATIENCE).expect("a capture")?;
            seen.push(next.datagram().to_vec());
            let last = seen.last()?;
            // A header, a record of the secret and a tag.
            (last.len() >= 24 + 24 + SECRET.len() + 16).then_some(())
        });
        let shows = |datagram: &Vec<u8>| datagram.windows(SECRET.len()).any(|part| part == SECRET);
        assert_eq!(seen.iter().any(shows), readable, "{protection}");
    }
}

/// Keys of datagrams are replaced, twice, while messages flow.
fn replaced(protection: &str) {
    if skip() {
        return;
    }
    let pair = protected(protection);
    let wire = wire(&pair);
    under_traffic(&pair.nodes, || {
        let mut sessions = BTreeSet::new();
        until_true("three keys were in use", || {
            while let Some(frame) = wire.take().expect("a capture") {
                sessions.extend(frame.datagram().get(SESSION).copied());
            }
            std::thread::sleep(Duration::from_millis(10));
            sessions.len() >= 3
        });
    });
}

#[test]
fn no_message_is_lost_when_keys_are_replaced_that_prove_integrity() {
    replaced("integrity");
}

#[test]
fn no_message_is_lost_when_keys_are_replaced_that_encrypt() {
    replaced("encrypt");
}

/// Two nodes that know each other by keys of their own.
struct Rotating {
    nodes: [Node; 2],
    lab: Lab,
}

impl Rotating {
    fn start() -> Self {
        let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
        let nodes = [0, 1].map(|own| Node::start(lab.host(own), &[], ""));
        let pair = Self { nodes, lab };
        for own in 0..2 {
            pair.add(1 - own, &pair.key(own), "");
        }
        for node in &pair.nodes {
            node.await_peers(1, PeerState::Up);
        }
        pair
    }

    fn admin(&self, at: usize) -> Admin {
        self.nodes[at].admin()
    }

    fn key(&self, at: usize) -> String {
        self.admin(at).node().key
    }

    /// The node at `at` lists the other one with these keys.
    fn add(&self, at: usize, key: &str, next_key: &str) -> bool {
        let other = self.lab.host(1 - at).address().to_string();
        self.admin(at).add_peer(&other, key, next_key)
    }

    /// The node has a next key, which the other one lists.
    fn prepare(&self, at: usize) -> String {
        let mut admin = self.admin(at);
        let next = admin.next_key();
        assert_eq!(admin.next_key(), next, "there is one at a time");
        assert_ne!(next, self.key(at));
        assert!(self.add(1 - at, &self.key(at), &next));
        next
    }

    /// The node has its next key from now on, and the other one lists that alone when it has seen it.
    fn switch(&self, at: usize, next: &str) {
        assert_eq!(self.admin(at).switch_key(), next);
        assert_eq!(self.key(at), next);
        let mut other = self.admin(1 - at);
        until_true("the other one knows it by the new key", || {
            other.peers()[0].key == next
        });
        let mut own = self.admin(at);
        until_true("and it knows that", || own.peers()[0].warning.is_empty());
        assert!(self.add(1 - at, next, ""));
    }

    fn key_file(&self, at: usize) -> std::path::PathBuf {
        self.nodes[at].directory.join("node.key")
    }
}

#[test]
fn no_message_is_lost_when_nodes_change_their_keys_and_the_old_ones_are_refused_then() {
    if skip() {
        return;
    }
    let mut pair = Rotating::start();
    let incarnations = |pair: &Rotating| [0, 1].map(|at| pair.admin(at).peers()[0].incarnation);
    let before = incarnations(&pair);
    let old = std::fs::read(pair.key_file(1)).expect("a key");
    under_traffic(&pair.nodes, || {
        for at in [0, 1] {
            let next = pair.prepare(at);
            pair.switch(at, &next);
        }
        // Both at once.
        let next = [0, 1].map(|at| pair.prepare(at));
        std::thread::scope(|scope| {
            let (pair, next) = (&pair, &next);
            for at in [0, 1] {
                scope.spawn(move || pair.switch(at, &next[at]));
            }
        });
    });
    assert_eq!(incarnations(&pair), before, "nobody was forgotten");
    for at in [0, 1] {
        let file = pair.key_file(at);
        let kept: PrivateKey = read(&file).expect("a key");
        assert_eq!(kept.public().to_string(), pair.key(at));
        assert!(!next_file(&file).exists());
        let peer = &pair.admin(at).peers()[0];
        assert_eq!(peer.authentication(), Authentication::Node);
        assert_eq!((&*peer.key, &*peer.next_key), (&*pair.key(1 - at), ""));
    }
    // The key of before.
    let new = std::fs::read(pair.key_file(1)).expect("a key");
    let own = pair.key(0);
    let restart = |pair: &mut Rotating, key: &[u8]| {
        pair.nodes[1].kill();
        std::fs::write(pair.key_file(1), key).expect("written");
        pair.nodes[1].restart();
        pair.add(1, &own, "");
    };
    let mut first = pair.admin(0);
    let refused = |first: &mut Admin| first.node().peering.expect("counters").unauthenticated;
    let so_far = refused(&mut first);
    restart(&mut pair, &old);
    until_true("it is refused", || refused(&mut first) > so_far + 3);
    let back = first.peers()[0].incarnation != before[0];
    assert!(!back, "it is a peer again");
    // And the new one again.
    restart(&mut pair, &new);
    pair.nodes[1].await_peers(1, PeerState::Up);
    pair.nodes[0].await_peers(1, PeerState::Up);
}

#[test]
fn a_node_that_dies_between_the_steps_comes_back_with_the_one_key_or_the_other() {
    if skip() {
        return;
    }
    let mut pair = Rotating::start();
    let (own, old) = (pair.key(0), pair.key(1));
    let next = pair.prepare(1);
    for (switched, key) in [(false, &old), (true, &next)] {
        if switched {
            // It is killed before it has told anybody.
            assert_eq!(pair.admin(1).switch_key(), next);
        }
        pair.nodes[1].kill();
        pair.nodes[1].restart();
        let node = pair.admin(1).node();
        let waits = if switched { "" } else { &*next };
        assert_eq!((&node.key, &*node.next_key), (key, waits));
        pair.add(1, &own, "");
        for node in &pair.nodes {
            node.await_peers(1, PeerState::Up);
        }
        let mut first = pair.admin(0);
        until_true("it is known by its key", || first.peers()[0].key == *key);
    }
}
