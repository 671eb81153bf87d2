//! Rules of what arrives, and in which order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use takt_time::TrafficClass;

use super::harness::{
    Patience, Received, collect, commit, connect, connect_at, exchange, flush, lane_port,
    number_of, pair, pattern, port, reserve,
};
use super::{Node, Rig};

/// From empty to the greatest, including exactly the greatest.
pub fn payloads_of_all_lengths_arrive_whole(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    let greatest = pair.left.max_payload(pair.to_right);
    assert!(greatest > 0, "a connected peer takes no payload at all");
    let lengths: Vec<usize> = (0..=greatest.min(260))
        .chain((260..greatest).step_by(89))
        .chain([greatest - 1, greatest, 0, greatest, greatest, 1])
        .collect();
    exchange(&mut pair, rig.window().min(16), &lengths);
}

/// Whatever the order in which the frames were reserved.
pub fn datagrams_leave_in_the_order_of_their_commits(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    for round in 0..50 {
        let mut frames: Vec<_> = (0..16)
            .map(|_| reserve(&mut *pair.left, pair.to_right))
            .collect();
        for number in 0..frames.len() {
            // Another frame each time: from the front, the back and the middle.
            let frame = frames.swap_remove((number * 7 + round) % frames.len());
            let payload = pattern(number, 40 + number % 3);
            pair.left.payload(&frame)[..payload.len()].copy_from_slice(&payload);
            pair.left
                .commit(frame, payload.len(), TrafficClass::BEST_EFFORT, None);
        }
        let arrived = collect(&mut *pair.right, &mut *pair.left, 16);
        let numbers: Vec<_> = arrived
            .iter()
            .map(|datagram| number_of(&datagram.payload))
            .collect();
        assert_eq!(numbers, (0..16).collect::<Vec<_>>(), "round {round}");
    }
}

/// Seen by a port that is reached at two addresses.
pub fn datagrams_to_different_peers_leave_in_the_order_of_their_commits(rig: &mut dyn Rig) {
    if !rig.reaches_a_port_at_two_addresses() {
        return datagrams_to_two_ports_arrive_in_order_at_each(rig);
    }
    let mut left = port(rig, Node::Left);
    let addresses = rig.addresses(Node::Right);
    let everywhere: IpAddr = if addresses[0].is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let mut right = lane_port(rig, Node::Right, (0, 1), (everywhere, 0).into());
    let number = right.local().port();
    let peers = addresses.map(|address| {
        connect_at(
            rig,
            Node::Left,
            &mut *left,
            (address, number).into(),
            &mut *right,
        )
    });
    assert_ne!(peers[0], peers[1], "two addresses, one peer");
    for round in 0..50 {
        for number in 0..24usize {
            // Runs of one to three for the same peer.
            let peer = peers[(number + round) / (1 + round % 3) % 2];
            commit(&mut *left, peer, &pattern(number, 32));
        }
        let arrived = collect(&mut *right, &mut *left, 24);
        let numbers: Vec<_> = arrived
            .iter()
            .map(|datagram| number_of(&datagram.payload))
            .collect();
        assert_eq!(numbers, (0..24).collect::<Vec<_>>(), "round {round}");
    }
}

fn datagrams_to_two_ports_arrive_in_order_at_each(rig: &mut dyn Rig) {
    let mut left = port(rig, Node::Left);
    let mut rights = rig
        .addresses(Node::Right)
        .map(|address| lane_port(rig, Node::Right, (0, 1), (address, 0).into()));
    let peers = rights
        .each_mut()
        .map(|right| connect(rig, Node::Left, &mut *left, &mut **right));
    for round in 0..50 {
        let to = |number: usize| (number + round) / (1 + round % 3) % 2;
        for number in 0..24 {
            commit(&mut *left, peers[to(number)], &pattern(number, 32));
        }
        for (which, right) in rights.iter_mut().enumerate() {
            let expected: Vec<_> = (0..24).filter(|number| to(*number) == which).collect();
            let arrived = collect(&mut **right, &mut *left, expected.len());
            let numbers: Vec<_> = arrived
                .iter()
                .map(|datagram| number_of(&datagram.payload))
                .collect();
            assert_eq!(numbers, expected, "round {round}, port {which}");
        }
    }
}

/// Many more than there are frames, flushed at all possible places.
pub fn more_datagrams_than_frames_arrive_in_order(rig: &mut dyn Rig) {
    let window = rig.window();
    let mut pair = pair(rig);
    let (mut sent, mut received) = (0, 0);
    let total = 5000;
    let len = pair.left.max_payload(pair.to_right).min(700);
    while received < total {
        while sent < total && sent - received < window {
            commit(&mut *pair.left, pair.to_right, &pattern(sent, len));
            sent += 1;
            if sent % 5 == 0 || sent % 17 == 0 {
                pair.left.flush();
            }
        }
        for datagram in collect(
            &mut *pair.right,
            &mut *pair.left,
            (sent - received).div_ceil(2),
        ) {
            assert_eq!(number_of(&datagram.payload), received);
            assert!(
                datagram.payload == pattern(received, len),
                "datagram {received} is not as it was sent"
            );
            received += 1;
        }
    }
}

/// Both ways.
pub fn source_and_destination_port_are_those_of_the_ports(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    let to_left = connect(rig, Node::Right, &mut *pair.right, &mut *pair.left);
    commit(&mut *pair.left, pair.to_right, b"there");
    let there = collect(&mut *pair.right, &mut *pair.left, 1);
    commit(&mut *pair.right, to_left, b"back");
    let back = collect(&mut *pair.left, &mut *pair.right, 1);
    let (left, right) = (pair.left.local(), pair.right.local());
    assert_ne!(left.port(), 0);
    assert_eq!(
        there,
        [Received {
            source: left,
            destination_port: right.port(),
            payload: b"there".to_vec()
        }]
    );
    assert_eq!(
        back,
        [Received {
            source: right,
            destination_port: left.port(),
            payload: b"back".to_vec()
        }]
    );
}

/// A port need not know who sends to it, and can answer.
pub fn a_strangers_datagram_is_delivered_with_its_source(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    commit(&mut *pair.left, pair.to_right, b"who is there?");
    let arrived = collect(&mut *pair.right, &mut *pair.left, 1);
    assert_eq!(arrived[0].source, pair.left.local());
    let stranger = connect_at(
        rig,
        Node::Right,
        &mut *pair.right,
        arrived[0].source,
        &mut *pair.left,
    );
    commit(&mut *pair.right, stranger, b"me");
    let answer = collect(&mut *pair.left, &mut *pair.right, 1);
    assert_eq!(answer[0].payload, b"me");
}

/// By the destination port, whichever port's queue a datagram has come through.
pub fn two_ports_of_a_node_tell_their_traffic_apart(rig: &mut dyn Rig) {
    let mut left = port(rig, Node::Left);
    let address = rig.addresses(Node::Right)[0];
    let mut rights = [0, 1].map(|lane| lane_port(rig, Node::Right, (lane, 2), (address, 0).into()));
    let numbers = [rights[0].local().port(), rights[1].local().port()];
    assert_ne!(numbers[0], numbers[1], "two ports with one address");
    let peers = rights
        .each_mut()
        .map(|right| connect(rig, Node::Left, &mut *left, &mut **right));
    for number in 0..40 {
        commit(&mut *left, peers[number % 2], &pattern(number, 20));
    }
    flush(&mut *left);
    let mut seen = Vec::new();
    let mut patience = Patience::new();
    while seen.len() < 40 {
        left.flush();
        for right in &mut rights {
            let delivered = right.receive(64, &mut |datagram| {
                let number = number_of(datagram.payload);
                assert_eq!(
                    datagram.destination_port,
                    numbers[number % 2],
                    "datagram {number}"
                );
                seen.push(number);
            });
            if delivered > 0 {
                patience.progress();
            }
        }
        patience.check(|| format!("{} of 40 datagrams have arrived", seen.len()));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..40).collect::<Vec<_>>());
}

/// Nobody listens, and the kernel may say so by an error message: others are served as ever.
pub fn unreachable_peers_do_not_disturb_others(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    let mut closed = port(rig, Node::Right);
    let nobody = connect(rig, Node::Left, &mut *pair.left, &mut *closed);
    drop(closed);
    for number in 0..100 {
        commit(&mut *pair.left, nobody, b"nobody reads this");
        commit(&mut *pair.left, pair.to_right, &pattern(number, 30));
        let arrived = collect(&mut *pair.right, &mut *pair.left, 1);
        assert_eq!(number_of(&arrived[0].payload), number);
    }
    // What waits for somebody who may yet appear is given up sooner or later.
    let patience = Patience::new();
    loop {
        pair.left.flush();
        pair.left.receive(64, &mut |_| {});
        let counters = pair.left.counters();
        if counters.tx_datagrams + counters.tx_errors == 200 {
            break;
        }
        patience.check(|| format!("{counters:?}"));
    }
}
