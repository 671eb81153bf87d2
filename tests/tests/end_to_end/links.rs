//! A link that goes down and comes up again.

use takt::{ChannelId, Wait};
use takt_lab::LinkState;
use taktd::admin::proto::PeerState;

use crate::support::{Datapath, Pair, attach, exchange, introduce, put, skip, take};
use takt_testing::{until, until_true};

const CHANNEL: ChannelId = ChannelId(5);

fn a_link_down_and_up(datapath: Datapath) {
    if skip() {
        return;
    }
    let pair = Pair::over(datapath);
    let near = attach(&pair.nodes[0], "near");
    let far = attach(&pair.nodes[1], "far");
    let streams = [&near, &far].map(|session| session.stream(datapath.qos()).expect("a stream"));
    let source = streams[0].source(CHANNEL).expect("a source");
    let local = streams[0].sink(CHANNEL).expect("a sink");
    let remote = streams[1].sink(CHANNEL).expect("a sink");
    introduce(&source, &[&local, &remote]);
    for round in 0..2 {
        // Either end of the cable.
        let host = pair.lab.host(round);
        let first = round as u64 * 1_000_000_000;
        exchange(&source, &[&local, &remote], first, 200);
        host.link(LinkState::Down).expect("pulled");
        let mut number = first + 1000;
        let mut silent = || {
            number += 1;
            put(&source, number, 64);
            assert_eq!(take(&local), number, "local delivery goes on");
        };
        for _ in 0..200 {
            silent();
        }
        pair.await_peers(PeerState::Down);
        silent();
        assert!(remote.consume(Wait::Never).is_err(), "through no cable");
        host.link(LinkState::Up).expect("plugged in");
        pair.await_peers(PeerState::Up);
        until("traffic resumes", || {
            silent();
            remote.consume(Wait::Never).ok().map(|_| ())
        });
        introduce(&source, &[&local, &remote]);
        exchange(&source, &[&local, &remote], first + 900_000_000, 200);
    }
    for (stream, session) in streams.iter().zip([&near, &far]) {
        assert!(session.is_attached());
        until_true("it is where it was", || {
            stream.datapath() == datapath.name()
        });
    }
    assert_eq!(local.counters().lost, 0);
}

#[test]
fn a_link_that_was_down_carries_again_by_itself_over_kernel_udp() {
    a_link_down_and_up(Datapath::Udp);
}

#[test]
fn a_link_that_was_down_carries_again_by_itself_over_af_xdp() {
    a_link_down_and_up(Datapath::Xdp);
}
