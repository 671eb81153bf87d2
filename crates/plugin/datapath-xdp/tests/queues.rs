//! Several queues, and several ports on one queue.

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::{Family, TwoHosts, connect, receive, reserve, send, wait_until};
use takt_datapath::conformance::{Node, readable_within};
use takt_datapath::{Datapath, OpenError, PeerHandle, Port};
use takt_datapath_xdp::BusyPoll;
use takt_lab::LabConfig;
use takt_time::TrafficClass;

/// One that is above best effort.
const MARKED: TrafficClass = TrafficClass::new(1).expect("a class");

fn two_queues() -> Option<TwoHosts> {
    TwoHosts::new(
        &LabConfig {
            queues: 2,
            ..LabConfig::default()
        },
        Family::V4,
        |_| {},
    )
}

fn lane(hosts: &mut TwoHosts, node: Node, lane: (u16, u16), port: u16) -> Box<dyn Port> {
    let bind = SocketAddr::new(hosts.address(node), port);
    hosts.open_lane(node, lane, bind).expect("open")
}

fn readable(port: &dyn Port) -> bool {
    readable_within(port, Duration::ZERO)
}

#[test]
fn one_port_receives_from_all_its_queues_and_its_descriptor_tells_of_each() {
    let Some(mut hosts) = two_queues() else {
        return;
    };
    // What a lane sends leaves by its own queue, and veth delivers it to the queue of the same
    // number.
    let mut senders = [0, 1].map(|number| lane(&mut hosts, Node::Left, (number, 2), 4000 + number));
    let mut receiver = lane(&mut hosts, Node::Right, (0, 1), 4000);
    for (number, sender) in (0u8..).zip(&mut senders) {
        let peer = connect(&mut **sender, receiver.local());
        assert!(!readable(&*receiver), "queue {number}");
        send(&mut **sender, peer, &[number]);
        wait_until("becoming readable", || readable(&*receiver));
        assert_eq!(receive(&mut *receiver), (sender.local(), vec![number]));
    }
    let detail = hosts.xdp(Node::Right).capabilities().detail;
    assert!(detail.contains("2 queue"), "{detail}");
}

#[test]
fn a_datagram_on_a_queue_of_another_lane_is_delivered_there_with_its_port() {
    let Some(mut hosts) = two_queues() else {
        return;
    };
    let mut senders = [0, 1].map(|number| lane(&mut hosts, Node::Left, (number, 2), 4000 + number));
    let mut receivers =
        [0, 1].map(|number| lane(&mut hosts, Node::Right, (number, 2), 4000 + number));
    for queue in 0..2 {
        for target in 0..2 {
            let peer = connect(&mut *senders[queue], receivers[target].local());
            send(&mut *senders[queue], peer, &[queue as u8, target as u8]);
            let mut ports = Vec::new();
            wait_until("receiving on the queue's lane", || {
                receivers[queue].receive(8, &mut |datagram| {
                    assert_eq!(datagram.payload, [queue as u8, target as u8]);
                    ports.push(datagram.destination_port);
                }) > 0
            });
            assert_eq!(ports, [4000 + target as u16]);
        }
    }
}

#[test]
fn lanes_that_share_a_queue_get_their_own_datagrams_only() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let mut sender = lane(&mut hosts, Node::Left, (0, 1), 4000);
    let mut receivers =
        [0, 1, 2].map(|number| lane(&mut hosts, Node::Right, (number, 3), 4000 + number));
    let peers = receivers
        .each_ref()
        .map(|receiver| connect(&mut *sender, receiver.local()));
    for round in 0..50 {
        for (receiver, peer) in receivers.iter_mut().zip(peers) {
            send(&mut *sender, peer, &[round]);
            let port = receiver.local().port();
            let mut got = 0;
            wait_until("receiving", || {
                receiver.receive(8, &mut |datagram| {
                    assert_eq!(
                        (datagram.destination_port, datagram.payload),
                        (port, &[round][..])
                    );
                    got += 1;
                });
                got == 1
            });
        }
    }
    assert!(
        receivers
            .iter()
            .all(|receiver| receiver.counters().rx_datagrams == 50)
    );
}

#[test]
fn ports_that_drive_the_device_by_busy_polling_talk_and_say_that_it_costs_system_calls() {
    let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), Family::V4, |config| {
        config.busy_poll = Some(BusyPoll {
            micros: 20,
            budget: 16,
        });
    }) else {
        return;
    };
    let mut left = lane(&mut hosts, Node::Left, (0, 1), 4000);
    let mut right = lane(&mut hosts, Node::Right, (0, 1), 4000);
    assert!(left.receive_costs_syscall() && right.receive_costs_syscall());
    let there = connect(&mut *left, right.local());
    let back = connect(&mut *right, left.local());
    for round in 0..100 {
        send(&mut *left, there, &[round]);
        assert_eq!(receive(&mut *right).1, [round]);
        send(&mut *right, back, &[round]);
        assert_eq!(receive(&mut *left).1, [round]);
    }
}

#[test]
fn a_lane_that_is_not_polled_does_not_starve_those_it_shares_a_queue_with() {
    let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), Family::V4, |config| {
        config.rx_ring = 64;
        config.tx_frames = 64;
    }) else {
        return;
    };
    let mut sender = lane(&mut hosts, Node::Left, (0, 1), 4000);
    let [mut polled, stuck] =
        [0, 1].map(|number| lane(&mut hosts, Node::Right, (number, 2), 4000 + number));
    let [to_polled, to_stuck] =
        [polled.local(), stuck.local()].map(|remote| connect(&mut *sender, remote));
    for round in 0..300u16 {
        send(&mut *sender, to_stuck, &round.to_be_bytes());
        send(&mut *sender, to_polled, &round.to_be_bytes());
        assert_eq!(receive(&mut *polled).1, round.to_be_bytes());
    }
    assert_eq!(polled.counters().rx_dropped, 0);
    assert_eq!(stuck.counters().rx_dropped, 300 - 64);
}

/// Sends a datagram of a traffic class.
fn send_marked(sender: &mut dyn Port, peer: PeerHandle, number: u8) {
    let frame = reserve(sender, peer);
    sender.payload(&frame)[0] = number;
    sender.commit(frame, 1, MARKED, None);
    wait_until("flushing", || sender.flush());
}

#[test]
fn what_is_marked_finds_room_beside_what_is_not_and_comes_first_and_shuts_out_nothing() {
    const RING: u8 = 64;
    for family in [Family::V4, Family::V6] {
        let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), family, |config| {
            config.rx_ring = RING.into();
            config.tx_frames = 64;
        }) else {
            return;
        };
        let mut sender = lane(&mut hosts, Node::Left, (0, 1), 4000);
        let mut receiver = lane(&mut hosts, Node::Right, (0, 1), 4000);
        let peer = connect(&mut *sender, receiver.local());
        // More than finds room.
        for number in 0..2 * RING {
            send(&mut *sender, peer, &[number]);
        }
        let marked: Vec<u8> = (200..200 + RING / 4).collect();
        for &number in &marked {
            send_marked(&mut *sender, peer, number);
        }
        let mut got = Vec::new();
        let mut take = |budget| {
            got.clear();
            receiver.receive(budget, &mut |datagram| got.push(datagram.payload[0]));
            got.clone()
        };
        assert_eq!(take(8), [&marked[..6], &[0, 1]].concat());
        // Too small to be shared: by turns.
        let alone = [take(1)[0], take(1)[0]];
        assert!(
            alone == [2, marked[6]] || alone == [marked[6], 2],
            "{alone:?}"
        );
        let rest: Vec<u8> = (3..RING).collect();
        assert_eq!(take(200), [&marked[7..], &rest].concat());
        assert_eq!(receiver.counters().rx_dropped, u64::from(RING));
        // One alone wakes.
        assert!(!readable(&*receiver));
        send_marked(&mut *sender, peer, 1);
        wait_until("becoming readable", || readable(&*receiver));
        assert_eq!(receive(&mut *receiver).1, [1]);
    }
}

#[test]
fn a_queue_takes_no_more_ports_than_it_has_memory_for() {
    let Some(mut hosts) = TwoHosts::plain() else {
        return;
    };
    let first = lane(&mut hosts, Node::Left, (0, 1), 4000);
    let bind = SocketAddr::new(hosts.address(Node::Left), 4001);
    match hosts.open_lane(Node::Left, (0, 1), bind) {
        Err(OpenError::Unavailable(reason)) => {
            assert!(reason.contains("ports_per_queue"), "{reason}")
        }
        Err(error) => panic!("refused for another reason: {error}"),
        Ok(_) => panic!("a second port on a queue for one"),
    }
    // The refused port has left nothing behind.
    drop(first);
    lane(&mut hosts, Node::Left, (0, 1), 4001);
}

#[test]
fn ports_come_and_go_on_a_queue_in_use() {
    // Chunks that a port failed to give back would soon be missing.
    let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), Family::V4, |config| {
        config.rx_ring = 128;
    }) else {
        return;
    };
    let mut sender = lane(&mut hosts, Node::Left, (0, 1), 4000);
    let mut stays = lane(&mut hosts, Node::Right, (0, 2), 4000);
    let to_stays = connect(&mut *sender, stays.local());
    for round in 0..20u8 {
        let mut comes = lane(&mut hosts, Node::Right, (1, 2), 4001);
        let to_comes = connect(&mut *sender, comes.local());
        let back = connect(&mut *comes, sender.local());
        for number in 0..100 {
            send(&mut *sender, to_comes, &[round, number]);
            send(&mut *sender, to_stays, &[round, number]);
            send(&mut *comes, back, &[round, number]);
            assert_eq!(receive(&mut *stays).1, [round, number]);
            assert_eq!(receive(&mut *sender).1, [round, number]);
        }
        // It goes with datagrams that nobody has received, and with frames that nobody has flushed.
        for _ in 0..10 {
            let frame = reserve(&mut *comes, back);
            comes.commit(frame, 1, TrafficClass::BEST_EFFORT, None);
        }
    }
    assert_eq!(stays.counters().rx_dropped, 0);
    assert_eq!(
        sender.receive(8, &mut |datagram| panic!("never flushed: {datagram:?}")),
        0
    );
}

#[test]
fn lanes_that_share_a_queue_on_threads_of_their_own_lose_nothing() {
    const EACH: usize = 30_000;
    const WINDOW: usize = 32;
    const FRAMES: u32 = 48;
    let plain = LabConfig::default();
    let Some(mut hosts) = TwoHosts::new(&plain, Family::V4, |config| config.tx_frames = FRAMES)
    else {
        return;
    };
    let mut pairs = [0, 1].map(|number| {
        let mut left = lane(&mut hosts, Node::Left, (number, 2), 4000 + number);
        let right = lane(&mut hosts, Node::Right, (number, 2), 4000 + number);
        let peer = connect(&mut *left, right.local());
        (left, peer, right, AtomicUsize::new(0))
    });
    std::thread::scope(|scope| {
        for (left, peer, right, arrived) in &mut pairs {
            let arrived = &*arrived;
            scope.spawn(move || {
                for number in 0..EACH {
                    wait_until("room in the window", || {
                        left.flush();
                        // Pairs with the Release of the receiver.
                        number < arrived.load(Ordering::Acquire) + WINDOW
                    });
                    let frame = reserve(&mut **left, *peer);
                    left.payload(&frame)[..8].copy_from_slice(&number.to_be_bytes());
                    left.commit(frame, 8, TrafficClass::BEST_EFFORT, None);
                }
                wait_until("flushing", || left.flush());
            });
            scope.spawn(move || {
                let mut next = 0usize;
                wait_until("receiving everything", || {
                    right.receive(16, &mut |datagram| {
                        assert_eq!(datagram.payload, next.to_be_bytes());
                        next += 1;
                    });
                    // Pairs with the Acquire of the sender.
                    arrived.store(next, Ordering::Release);
                    next == EACH
                });
            });
        }
    });
    for (left, peer, right, _) in &mut pairs {
        assert_eq!(left.counters().tx_datagrams, EACH as u64);
        // Every frame has come back, whichever lane has found its completion.
        for _ in 0..FRAMES {
            let _kept = reserve(&mut **left, *peer);
        }
        let counters = right.counters();
        assert_eq!(
            (
                counters.rx_datagrams,
                counters.rx_dropped,
                counters.rx_invalid
            ),
            (EACH as u64, 0, 0)
        );
    }
}
