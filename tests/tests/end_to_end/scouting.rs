//! Nodes on one link that find each other, with somebody there who forges announcements.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rand::{Rng, SeedableRng, rngs::StdRng};
use takt::{ChannelId, Qos};
use takt_lab::{Host, Lab, LabConfig};
use takt_testing::until;
use taktd::admin::proto::PeerState;

use crate::support::{Node, attach, exchange, introduce, skip};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 116, 107);
const PORT: u16 = 7398;
/// Of the peering protocol (`docs/reference/wire-format.md`): others are counted as such.
const VERSION: u8 = 3;

/// Announcements that are not a member's, and those of members said again by another.
fn forge(host: &Host, stop: &AtomicBool) {
    let inside = host.enter().expect("the lab is up");
    let send = UdpSocket::bind((host.address(), 0)).expect("bind");
    let hear = UdpSocket::bind((GROUP, PORT)).expect("bind");
    hear.join_multicast_v4(&GROUP, &host.address())
        .expect("joined");
    drop(inside);
    hear.set_nonblocking(true).expect("nonblocking");
    let mut rng = StdRng::seed_from_u64(5);
    let to = SocketAddr::from((GROUP, PORT));
    let mut heard = Vec::new();
    while !stop.load(Relaxed) {
        let mut datagram = vec![0; rng.random_range(1..200)];
        rng.fill(&mut datagram[..]);
        match rng.random_range(0..4) {
            // An announcement of this host, with no tag or a wrong one (`docs/reference/wire-format.md`).
            kind @ 0..2 => {
                datagram.splice(..0, [0; 40]);
                datagram[..8].copy_from_slice(&[b'T', b'K', b'T', b'P', VERSION, 20, 0, 2 - kind]);
                let place = host.address().to_ipv6_mapped().octets();
                datagram[16..32].copy_from_slice(&place);
                datagram[32..34].copy_from_slice(&7400u16.to_le_bytes());
                datagram[34..40].fill(0);
                datagram.truncate(40 + 16 * usize::from(kind));
            }
            2 => drop(datagram.splice(..0, [b'T', b'K', b'T', b'P', VERSION, 20, 0, 1])),
            _ => {}
        }
        let mut said = [0; 2048];
        if let Ok((length, from)) = hear.recv_from(&mut said)
            && from.ip() != host.address()
        {
            heard = said[..length].to_vec();
        }
        for datagram in [&datagram, &heard] {
            // A full queue is as good.
            let _ = send.send_to(datagram, to);
        }
        std::thread::yield_now();
    }
}

#[test]
fn nodes_on_a_link_find_each_other_and_a_forger_finds_nobody() {
    if skip() {
        return;
    }
    let config = LabConfig {
        hosts: 3,
        ..LabConfig::default()
    };
    let lab = Lab::scratch(&config).expect("a lab");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let forger = lab.host(2);
        scope.spawn(|| forge(forger, &stop));
        // Also where the test fails.
        let _stop = Stop(&stop);
        let own = lab.host(0);
        let sections = format!(
            "accept = [\"{}/{}\"]\n[scout]\ninterface = \"eth0\"\n",
            own.address(),
            own.prefix_length()
        );
        let mut nodes = [0, 1].map(|index| Node::start(lab.host(index), &[], &sections));
        let met = |nodes: &[Node; 2]| nodes.iter().for_each(|n| n.await_peers(1, PeerState::Up));
        met(&nodes);
        let talk = |nodes: &[Node; 2]| {
            let near = attach(&nodes[0], "near");
            let far = attach(&nodes[1], "far");
            let source = near.stream(Qos::slow()).expect("a stream");
            let source = source.source(ChannelId(5)).expect("a source");
            let sink = far.stream(Qos::slow()).expect("a stream");
            let sink = sink.sink(ChannelId(5)).expect("a sink");
            introduce(&source, &[&sink]);
            exchange(&source, &[&sink], 0, 200);
        };
        talk(&nodes);
        for node in &nodes {
            let mut admin = node.admin();
            until("announcements are refused", || {
                let refused = admin.node().peering.expect("counters");
                (refused.unauthenticated > 1000 && refused.malformed > 100).then_some(())
            });
            // Nobody is remembered but the other one.
            assert_eq!(admin.peers().len(), 1);
        }
        // One that comes back is found again.
        nodes[1].kill();
        nodes[0].await_peers(0, PeerState::Up);
        nodes[1].restart();
        met(&nodes);
        talk(&nodes);
    });
}

#[test]
fn nodes_that_do_not_scout_hear_nobody() {
    if skip() {
        return;
    }
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    let own = lab.host(0);
    let accept = format!("accept = [\"{}/{}\"]\n", own.address(), own.prefix_length());
    let scouts = format!("{accept}[scout]\ninterface = \"eth0\"\n");
    let silent = Node::start(lab.host(0), &[], "");
    let scout = Node::start(lab.host(1), &[], &scouts);
    let inside = lab.host(0).enter().expect("the lab is up");
    let hear = UdpSocket::bind((GROUP, PORT)).expect("nobody else is there");
    hear.join_multicast_v4(&GROUP, &lab.host(0).address())
        .expect("joined");
    drop(inside);
    // Several announcements have been there.
    for _ in 0..3 {
        hear.recv(&mut [0; 2048]).expect("an announcement");
    }
    assert!(silent.admin().peers().is_empty() && scout.admin().peers().is_empty());
}

/// Ends a thread when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
