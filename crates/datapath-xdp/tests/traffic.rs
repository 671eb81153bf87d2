//! Traffic between two namespaces.

mod support;

use std::time::{Duration, Instant};

use support::{Namespace, Pair, privileged};
use takt_datapath::{Datapath, Frame, PeerHandle, Port, PortRequest, ReserveError};
use takt_datapath_xdp::{XdpConfig, XdpDatapath};
use takt_time::TrafficClass;

const LIMIT: Duration = Duration::from_secs(20);

fn open(namespace: &Namespace, bind: &str) -> Box<dyn Port> {
    namespace.enter(|| {
        let datapath = XdpDatapath::probe(XdpConfig::new("takt0")).expect("probe");
        println!("{}", datapath.capabilities().detail);
        datapath
            .open(&PortRequest {
                lane: 0,
                lanes: 1,
                bind: bind.parse().expect("address"),
            })
            .expect("open")
    })
}

fn reserve(port: &mut dyn Port, peer: PeerHandle) -> Frame {
    let start = Instant::now();
    loop {
        match port.reserve(peer) {
            Ok(frame) => return frame,
            Err(ReserveError::WouldBlock | ReserveError::Unresolved) => {
                assert!(start.elapsed() < LIMIT, "no frame");
                port.flush();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_datagram_arrives_with_its_source() {
    if !privileged() {
        return;
    }
    let pair = Pair::new();
    let mut left = open(&pair.left, "10.77.0.1:4000");
    let mut right = open(&pair.right, "10.77.0.2:4001");
    let peer = left.connect(right.local()).expect("connect");
    let frame = reserve(&mut *left, peer);
    left.payload(&frame)[..5].copy_from_slice(b"hello");
    left.commit(frame, 5, TrafficClass::BEST_EFFORT, None);
    assert!(left.flush());
    let mut got = Vec::new();
    let start = Instant::now();
    while got.is_empty() {
        assert!(
            start.elapsed() < LIMIT,
            "nothing arrives: {:?} {:?}",
            left.counters(),
            right.counters()
        );
        right.receive(16, &mut |datagram| {
            got.push((datagram.source, datagram.payload.to_vec()))
        });
    }
    assert_eq!(got, [(left.local(), b"hello".to_vec())]);
}
