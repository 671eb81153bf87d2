//! Rules of opening ports, of peers, and of receiving.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::harness::{
    Patience, await_readable, collect, commit, connect, disconnect, flush, number_of, pair,
    pattern, port, readable_within, try_connect, try_open,
};
use super::{Node, Rig};
use crate::{ConnectError, OpenError, PeerHandle, PortCounters, ReserveError};

/// And counts nothing.
pub fn idle_ports_have_nothing_to_flush_and_nothing_to_receive(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    for _ in 0..3 {
        assert!(pair.left.flush());
        assert_eq!(
            pair.left
                .receive(64, &mut |datagram| panic!("nobody sent {datagram:?}")),
            0
        );
    }
    assert_eq!(pair.left.counters(), PortCounters::default());
}

/// The port number is the technology's own, so the next one may take it at once.
pub fn an_address_in_use_is_refused_until_its_port_is_closed(rig: &mut dyn Rig) {
    let first = port(rig, Node::Left);
    let address = first.local();
    match try_open(rig, Node::Left, (1, 2), address) {
        Err(OpenError::Bind {
            address: refused, ..
        }) => assert_eq!(refused, address),
        Err(error) => panic!("refused for another reason: {error}"),
        Ok(_) => panic!("two ports at {address}"),
    }
    drop(first);
    let patience = Patience::new();
    let mut again = loop {
        match try_open(rig, Node::Left, (0, 1), address) {
            Ok(again) => break again,
            // A child that this process is just starting holds its descriptors until it runs its program.
            Err(OpenError::Bind { .. }) => patience.check(|| format!("{address} to become free")),
            Err(error) => panic!("cannot open {address} again: {error}"),
        }
        std::thread::yield_now();
    };
    assert_eq!(again.local(), address);
    let mut right = port(rig, Node::Right);
    let peer = connect(rig, Node::Right, &mut *right, &mut *again);
    commit(&mut *right, peer, b"anew");
    assert_eq!(collect(&mut *again, &mut *right, 1)[0].payload, b"anew");
}

/// Whichever thread asks, while ports are at work. A datapath that is not known to fail is well.
pub fn a_datapath_that_works_reports_no_fault(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    for node in [Node::Left, Node::Right] {
        let datapath = rig.datapath(node);
        let mut found = None;
        rig.on(node, &mut || {
            found = Some(datapath.health(Box::new(|| ())));
        });
        let Some(health) = found.expect("Rig::on has to run what it is given") else {
            continue;
        };
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| (0..1000).find_map(|_| health.fault()));
            for number in 0..8 {
                commit(&mut *pair.left, pair.to_right, &pattern(number, 50));
                let arrived = collect(&mut *pair.right, &mut *pair.left, 1);
                assert_eq!(number_of(&arrived[0].payload), number);
            }
            assert_eq!(asks.join().expect("asked"), None);
        });
    }
}

/// Also after a disconnect in between.
pub fn connecting_an_address_again_gives_the_same_handle(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    let mut other = port(rig, Node::Right);
    let to_other = connect(rig, Node::Left, &mut *pair.left, &mut *other);
    assert_ne!(to_other, pair.to_right);
    assert_eq!(
        connect(rig, Node::Left, &mut *pair.left, &mut *pair.right),
        pair.to_right
    );
    assert_eq!(
        connect(rig, Node::Left, &mut *pair.left, &mut *other),
        to_other
    );
    disconnect(rig, Node::Left, &mut *pair.left, pair.to_right);
    assert_eq!(
        connect(rig, Node::Left, &mut *pair.left, &mut *other),
        to_other
    );
}

/// Reserving for it fails, disconnecting it is nothing.
pub fn an_unknown_handle_is_refused_and_harms_nothing(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    for unknown in [u32::MAX, u32::MAX - 1, 1 << 31, 0x00ff_ff00].map(PeerHandle) {
        assert_ne!(unknown, pair.to_right);
        assert_eq!(
            pair.left.reserve(unknown).err(),
            Some(ReserveError::UnknownPeer)
        );
        assert_eq!(pair.left.max_payload(unknown), 0);
        disconnect(rig, Node::Left, &mut *pair.left, unknown);
    }
    commit(&mut *pair.left, pair.to_right, b"as ever");
    assert_eq!(
        collect(&mut *pair.right, &mut *pair.left, 1)[0].payload,
        b"as ever"
    );
}

/// Whereas another peer stays connected.
pub fn disconnected_peers_are_unknown_and_can_be_connected_again(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    let mut other = port(rig, Node::Right);
    let to_other = connect(rig, Node::Left, &mut *pair.left, &mut *other);
    for round in 0..20 {
        let former = pair.to_right;
        disconnect(rig, Node::Left, &mut *pair.left, former);
        assert_eq!(
            pair.left.reserve(former).err(),
            Some(ReserveError::UnknownPeer),
            "round {round}"
        );
        assert_eq!(pair.left.max_payload(former), 0, "round {round}");
        commit(&mut *pair.left, to_other, &pattern(round, 8));
        assert_eq!(
            number_of(&collect(&mut *other, &mut *pair.left, 1)[0].payload),
            round
        );
        pair.to_right = connect(rig, Node::Left, &mut *pair.left, &mut *pair.right);
        commit(&mut *pair.left, pair.to_right, &pattern(round, 8));
        assert_eq!(
            number_of(&collect(&mut *pair.right, &mut *pair.left, 1)[0].payload),
            round
        );
    }
}

/// Disconnecting is for the future.
pub fn committed_frames_leave_even_if_their_peer_is_disconnected(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    let mut other = port(rig, Node::Right);
    for number in 0..8 {
        commit(&mut *pair.left, pair.to_right, &pattern(number, 50));
    }
    disconnect(rig, Node::Left, &mut *pair.left, pair.to_right);
    // The place of the former peer must not be another's while its frames wait.
    let to_other = connect(rig, Node::Left, &mut *pair.left, &mut *other);
    commit(&mut *pair.left, to_other, &pattern(8, 50));
    let arrived = collect(&mut *pair.right, &mut *pair.left, 8);
    assert!(
        arrived
            .iter()
            .enumerate()
            .all(|(number, datagram)| datagram.payload == pattern(number, 50))
    );
    assert_eq!(
        collect(&mut *other, &mut *pair.left, 1)[0].payload,
        pattern(8, 50)
    );
}

/// IPv4 does not reach IPv6, nor the reverse.
pub fn peers_of_another_address_family_are_refused(rig: &mut dyn Rig) {
    let mut left = port(rig, Node::Left);
    let local = left.local();
    let other: IpAddr = if local.is_ipv4() {
        Ipv6Addr::LOCALHOST.into()
    } else {
        Ipv4Addr::LOCALHOST.into()
    };
    let remote = (other, 7).into();
    match try_connect(rig, Node::Left, &mut *left, remote) {
        Err(ConnectError::AddressFamily { peer, local: own }) => {
            assert_eq!((peer, own), (remote, local))
        }
        refused => panic!("{remote} from {local}: {refused:?}"),
    }
}

/// Which may be nothing.
pub fn receive_delivers_no_more_than_its_budget(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    for number in 0..30 {
        commit(&mut *pair.left, pair.to_right, &pattern(number, 16));
    }
    flush(&mut *pair.left);
    await_readable(&*pair.right);
    let mut next = 0;
    let mut patience = Patience::new();
    for budget in [0, 1, 0, 3, 0, 1, 2, 5, 0].into_iter().cycle() {
        let mut seen = 0;
        let delivered = pair.right.receive(budget, &mut |datagram| {
            assert_eq!(number_of(datagram.payload), next);
            next += 1;
            seen += 1;
        });
        assert_eq!(delivered, seen, "receive miscounts what it delivers");
        assert!(
            delivered <= budget,
            "{delivered} datagrams for a budget of {budget}"
        );
        if next == 30 {
            break;
        }
        if delivered > 0 {
            patience.progress();
        }
        patience.check(|| format!("{next} of 30 datagrams have arrived"));
    }
}

/// Level-triggered, from the datagram's arrival until receive finds nothing more.
pub fn the_descriptor_is_readable_while_datagrams_wait(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    for round in 0..10 {
        assert_eq!(
            pair.right.receive(64, &mut |_| {}),
            0,
            "round {round}: a datagram that nobody sent"
        );
        assert!(
            rig.wakes_by_the_clock() || !readable_within(&*pair.right, Duration::ZERO),
            "round {round}: readable, but nothing waits"
        );
        let count = 1 + round % 4;
        for number in 0..count {
            commit(&mut *pair.left, pair.to_right, &pattern(number, 16));
            flush(&mut *pair.left);
        }
        let mut received = 0;
        while received < count {
            // Again and again: it stays readable until the last one is taken.
            await_readable(&*pair.right);
            received += pair.right.receive(1, &mut |_| {});
        }
    }
    // The datagram comes while the receiver sleeps.
    let (mut left, right, to_right) = (pair.left, pair.right, pair.to_right);
    let sleeper = std::thread::spawn(move || {
        await_readable(&*right);
        right
    });
    commit(&mut *left, to_right, b"wake up");
    flush(&mut *left);
    let mut right = sleeper.join().expect("the sleeping receiver panicked");
    assert_eq!(collect(&mut *right, &mut *left, 1)[0].payload, b"wake up");
}
