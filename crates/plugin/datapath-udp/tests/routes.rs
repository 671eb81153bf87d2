//! What routes do to a port: their MTU, how it changes, and no route at all.

mod support;

use support::TwoHosts;
use takt_datapath::conformance::{Node, Rig};
use takt_datapath::{ConnectError, PeerHandle, Port};
use takt_datapath_udp::UdpConfig;
use takt_lab::LabConfig;
use takt_time::TrafficClass;

fn jumbo_hosts() -> Option<TwoHosts> {
    TwoHosts::new(
        &LabConfig {
            mtu: 9000,
            ..LabConfig::default()
        },
        false,
        UdpConfig::default(),
    )
}

fn commit(port: &mut dyn Port, peer: PeerHandle, len: usize) {
    let frame = port.reserve(peer).unwrap();
    port.payload(&frame)[..len].fill(len as u8);
    port.commit(frame, len, TrafficClass::BEST_EFFORT, None);
}

/// The lengths of the datagrams that arrive until there are `count`.
fn lengths(port: &mut dyn Port, count: usize) -> Vec<usize> {
    let mut arrived = Vec::new();
    while arrived.len() < count {
        port.receive(count - arrived.len(), &mut |datagram| {
            assert!(
                datagram
                    .payload
                    .iter()
                    .all(|&byte| byte == datagram.payload.len() as u8)
            );
            arrived.push(datagram.payload.len());
        });
    }
    arrived
}

/// Sends to `peer` until its greatest payload is `expected`: a route in use is asked for its MTU now and then.
fn send_until_max_payload_is(port: &mut dyn Port, peer: PeerHandle, expected: usize) {
    while port.max_payload(peer) != expected {
        commit(port, peer, 1);
        assert!(port.flush());
    }
}

#[test]
fn a_smaller_mtu_costs_only_the_datagrams_that_exceed_it() {
    let Some(mut hosts) = jumbo_hosts() else {
        return;
    };
    let (mut left, mut right) = (hosts.open(Node::Left), hosts.open(Node::Right));
    let peer = left.connect(right.local()).unwrap();
    assert_eq!(left.max_payload(peer), 8972);
    for _ in 0..3 {
        commit(&mut *left, peer, 8000);
    }
    commit(&mut *left, peer, 1400);
    commit(&mut *left, peer, 1472);
    commit(&mut *left, peer, 1473);
    hosts.ip(Node::Left, &["link", "set", "{}", "mtu", "1500"]);
    assert!(left.flush(), "what cannot leave must not stay queued");
    assert_eq!(lengths(&mut *right, 2), [1400, 1472]);
    let counters = left.counters();
    assert_eq!((counters.tx_datagrams, counters.tx_errors), (2, 4));
    assert_eq!(
        left.max_payload(peer),
        1472,
        "the new MTU is known from the first refusal on"
    );
    let frame = left.reserve(peer).unwrap();
    assert_eq!(left.payload(&frame).len(), 1472);
    left.cancel(frame);
}

#[test]
fn a_greater_mtu_is_used_while_the_port_goes_on() {
    let Some(mut hosts) = jumbo_hosts() else {
        return;
    };
    let (mut left, right) = (hosts.open(Node::Left), hosts.open(Node::Right));
    hosts.ip(Node::Left, &["link", "set", "{}", "mtu", "1500"]);
    let peer = left.connect(right.local()).unwrap();
    assert_eq!(left.max_payload(peer), 1472);
    hosts.ip(Node::Left, &["link", "set", "{}", "mtu", "4000"]);
    send_until_max_payload_is(&mut *left, peer, 3972);
}

#[test]
fn the_mtu_of_a_route_counts_before_that_of_its_interface() {
    let Some(mut hosts) = jumbo_hosts() else {
        return;
    };
    let (mut left, mut right) = (hosts.open(Node::Left), hosts.open(Node::Right));
    let peer = left.connect(right.local()).unwrap();
    assert_eq!(left.max_payload(peer), 8972);
    let remote = right.local().ip().to_string();
    hosts.ip(
        Node::Left,
        &["route", "replace", &remote, "dev", "{}", "mtu", "1280"],
    );
    send_until_max_payload_is(&mut *left, peer, 1252);
    // Another address of the same host has kept its route.
    let elsewhere = left
        .connect((hosts.addresses(Node::Right)[1], 9).into())
        .unwrap();
    assert_eq!(left.max_payload(elsewhere), 8972);
    while right.receive(64, &mut |_| {}) > 0 {}
    for len in [1252, 1252, 200] {
        commit(&mut *left, peer, len);
    }
    left.flush();
    assert_eq!(lengths(&mut *right, 3), [1252, 1252, 200]);
}

#[test]
fn trains_leave_again_when_the_mtu_that_they_exceeded_is_restored() {
    let Some(mut hosts) = jumbo_hosts() else {
        return;
    };
    let (mut left, mut right) = (hosts.open(Node::Left), hosts.open(Node::Right));
    let peer = left.connect(right.local()).unwrap();
    hosts.ip(Node::Left, &["link", "set", "{}", "mtu", "1500"]);
    for _ in 0..2 {
        commit(&mut *left, peer, 8000);
    }
    assert!(left.flush());
    assert_eq!(left.counters().tx_errors, 2);
    hosts.ip(Node::Left, &["link", "set", "{}", "mtu", "9000"]);
    send_until_max_payload_is(&mut *left, peer, 8972);
    while right.receive(64, &mut |_| {}) > 0 {}
    let before = hosts.packets_sent(Node::Left);
    for _ in 0..16 {
        commit(&mut *left, peer, 8000);
    }
    assert!(left.flush());
    assert_eq!(lengths(&mut *right, 16), [8000; 16]);
    let packets = hosts.packets_sent(Node::Left) - before;
    assert!(packets < 8, "{packets} packets for two trains");
}

#[test]
fn a_host_without_a_route_cannot_be_connected() {
    let Some(mut hosts) = jumbo_hosts() else {
        return;
    };
    let mut left = hosts.open(Node::Left);
    let remote = "203.0.113.1:9".parse().unwrap();
    match left.connect(remote) {
        Err(ConnectError::NoRoute(refused)) => assert_eq!(refused, remote),
        refused => panic!("{refused:?}"),
    }
    hosts.ip(Node::Left, &["route", "add", "203.0.113.0/24", "dev", "{}"]);
    left.connect(remote).unwrap();
}

#[test]
fn a_pulled_cable_loses_and_counts_until_it_is_plugged_in_again() {
    let Some(mut hosts) = jumbo_hosts() else {
        return;
    };
    let (mut left, mut right) = (hosts.open(Node::Left), hosts.open(Node::Right));
    let peer = left.connect(right.local()).unwrap();
    hosts.ip(Node::Left, &["link", "set", "{}", "down"]);
    for len in [100, 100, 50, 60] {
        commit(&mut *left, peer, len);
    }
    assert!(left.flush(), "what cannot leave must not stay queued");
    assert_eq!(
        (left.counters().tx_datagrams, left.counters().tx_errors),
        (0, 4)
    );
    hosts.ip(Node::Left, &["link", "set", "{}", "up"]);
    commit(&mut *left, peer, 77);
    while !left.flush() {}
    assert_eq!(lengths(&mut *right, 1), [77]);
}

#[test]
fn a_full_send_buffer_keeps_the_rest_queued_in_order() {
    // Ten megabits a second: what is sent fills the send buffer at once.
    let lab = LabConfig {
        rate: Some(10_000_000),
        ..LabConfig::default()
    };
    let config = UdpConfig {
        send_buffer: 1 << 14,
        ..UdpConfig::default()
    };
    let Some(mut hosts) = TwoHosts::new(&lab, false, config) else {
        return;
    };
    let (mut left, mut right) = (hosts.open(Node::Left), hosts.open(Node::Right));
    let peer = left.connect(right.local()).unwrap();
    let sent: Vec<usize> = (0..200).map(|number| 1000 + number * 2).collect();
    let (mut stopped, mut arrived) = (0, Vec::new());
    for &len in &sent {
        commit(&mut *left, peer, len);
    }
    while arrived.len() < sent.len() {
        stopped += usize::from(!left.flush());
        right.receive(64, &mut |datagram| arrived.push(datagram.payload.len()));
    }
    assert!(stopped > 0, "the send buffer was never full");
    assert_eq!(arrived, sent);
    assert_eq!(left.counters().tx_errors, 0);
}

#[test]
fn what_was_cut_for_a_longer_route_leaves_in_fragments_and_nothing_else_does() {
    let Some(mut hosts) = jumbo_hosts() else {
        return;
    };
    let (mut left, mut right) = (hosts.open(Node::Left), hosts.open(Node::Right));
    let peer = left.connect(right.local()).unwrap();
    hosts.ip(Node::Left, &["link", "set", "{}", "mtu", "1500"]);
    hosts.ip(Node::Right, &["link", "set", "{}", "mtu", "1500"]);
    send_until_max_payload_is(&mut *left, peer, 1472);
    while right.receive(64, &mut |_| {}) > 0 {}
    let lost = left.counters().tx_errors;
    // Between others, which form trains around it.
    for len in [1400, 1400, 16_000, 65_507, 1400, 1400] {
        if len == 1400 {
            commit(&mut *left, peer, len);
            continue;
        }
        assert!(left.max_fragmented(peer) >= len);
        let frame = left.reserve_fragmented(peer).unwrap();
        left.payload(&frame)[..len].fill(len as u8);
        left.commit(frame, len, TrafficClass::BEST_EFFORT, None);
    }
    while !left.flush() {}
    assert_eq!(
        lengths(&mut *right, 6),
        [1400, 1400, 16_000, 65_507, 1400, 1400]
    );
    assert_eq!(left.counters().tx_errors, lost);
    // They come back, however many there were.
    for _ in 0..40 {
        let frame = left.reserve_fragmented(peer).unwrap();
        left.commit(frame, 2000, TrafficClass::BEST_EFFORT, None);
        while !left.flush() {}
    }
    let frame = left.reserve(peer).unwrap();
    assert_eq!(left.payload(&frame).len(), 1472);
    left.cancel(frame);
}
