//! The in-process network does wrong what it is asked to, and the same each time.

use std::net::SocketAddr;
use std::time::Duration;

use takt_datapath::conformance::readable_within;
use takt_datapath::memory::{FaultCounters, Faults, MemoryNetwork, MemoryNetworkConfig};
use takt_datapath::{OpenError, PeerHandle, Port, PortRequest, ReserveError};
use takt_time::TrafficClass;

const DATAGRAMS: u32 = 20_000;

fn network(faults: Faults) -> MemoryNetwork {
    MemoryNetwork::new(MemoryNetworkConfig {
        max_payload: 64,
        queue_depth: 256,
        faults,
    })
}

fn open(network: &MemoryNetwork, bind: &str) -> Box<dyn Port> {
    try_open(network, bind).unwrap()
}

fn try_open(network: &MemoryNetwork, bind: &str) -> Result<Box<dyn Port>, OpenError> {
    let bind: SocketAddr = bind.parse().unwrap();
    network.datapath().open(&PortRequest {
        lane: 0,
        lanes: 1,
        bind,
    })
}

fn send(port: &mut dyn Port, peer: PeerHandle, payload: &[u8]) {
    let frame = port.reserve(peer).unwrap();
    port.payload(&frame)[..payload.len()].copy_from_slice(payload);
    port.commit(frame, payload.len(), TrafficClass::BEST_EFFORT, None);
}

fn receive_all(port: &mut dyn Port) -> Vec<Vec<u8>> {
    let mut arrived = Vec::new();
    while port.receive(16, &mut |datagram| arrived.push(datagram.payload.to_vec())) > 0 {}
    arrived
}

/// Sends numbers, each twice in its datagram, in flushes of 100.
fn run(faults: Faults) -> (Vec<Vec<u8>>, FaultCounters) {
    let network = network(faults);
    let mut sender = open(&network, "192.0.2.1:1");
    let mut receiver = open(&network, "192.0.2.2:2");
    let peer = sender.connect(receiver.local()).unwrap();
    let mut arrived = Vec::new();
    for number in 0..DATAGRAMS {
        send(
            &mut *sender,
            peer,
            &[number.to_be_bytes(), number.to_be_bytes()].concat(),
        );
        if number % 100 == 99 {
            assert!(sender.flush());
            arrived.append(&mut receive_all(&mut *receiver));
        }
    }
    assert_eq!(sender.counters().tx_datagrams, u64::from(DATAGRAMS));
    assert_eq!(receiver.counters().rx_datagrams, arrived.len() as u64);
    (arrived, network.faults())
}

fn number(payload: &[u8]) -> u32 {
    u32::from_be_bytes(*payload.first_chunk().unwrap())
}

#[test]
fn a_network_without_faults_delivers_everything_once_and_in_order() {
    let (arrived, faults) = run(Faults {
        seed: 1,
        ..Faults::default()
    });
    assert_eq!(faults, FaultCounters::default());
    assert!(
        arrived
            .iter()
            .map(|payload| number(payload))
            .eq(0..DATAGRAMS)
    );
}

#[test]
fn about_as_many_datagrams_are_lost_as_asked_and_the_rest_keeps_its_order() {
    let (arrived, faults) = run(Faults {
        drop_per_million: 100_000,
        seed: 2,
        ..Faults::default()
    });
    assert!((1800..2200).contains(&faults.dropped), "{faults:?}");
    assert_eq!(arrived.len() as u64 + faults.dropped, u64::from(DATAGRAMS));
    assert!(arrived.is_sorted_by(|first, second| number(first) < number(second)));
}

#[test]
fn doubled_datagrams_arrive_twice_in_a_row() {
    let (arrived, faults) = run(Faults {
        duplicate_per_million: 50_000,
        seed: 3,
        ..Faults::default()
    });
    assert!((850..1150).contains(&faults.duplicated), "{faults:?}");
    let twice = arrived.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
    assert_eq!(twice, faults.duplicated);
    assert_eq!(
        arrived.len() as u64,
        u64::from(DATAGRAMS) + faults.duplicated
    );
}

#[test]
fn reordered_datagrams_arrive_after_their_successors_and_none_is_lost() {
    let (mut arrived, faults) = run(Faults {
        reorder_per_million: 50_000,
        seed: 4,
        ..Faults::default()
    });
    assert!((800..1150).contains(&faults.reordered), "{faults:?}");
    assert!(!arrived.is_sorted());
    arrived.sort();
    assert!(
        arrived
            .iter()
            .map(|payload| number(payload))
            .eq(0..DATAGRAMS)
    );
}

#[test]
fn spoiled_datagrams_differ_in_one_bit() {
    let (arrived, faults) = run(Faults {
        corrupt_per_million: 50_000,
        seed: 5,
        ..Faults::default()
    });
    assert!((850..1150).contains(&faults.corrupted), "{faults:?}");
    let mut spoiled = 0;
    for (sent, payload) in (0..DATAGRAMS).zip(&arrived) {
        let sent = [sent.to_be_bytes(), sent.to_be_bytes()].concat();
        let wrong: u32 = sent
            .iter()
            .zip(payload)
            .map(|(sent, got)| (sent ^ got).count_ones())
            .sum();
        assert!(wrong <= 1);
        spoiled += u64::from(wrong);
    }
    assert_eq!(spoiled, faults.corrupted);
}

#[test]
fn the_same_seed_makes_the_same_faults_and_another_makes_others() {
    let all = |seed| {
        run(Faults {
            drop_per_million: 30_000,
            duplicate_per_million: 30_000,
            reorder_per_million: 30_000,
            corrupt_per_million: 30_000,
            seed,
        })
    };
    assert_eq!(all(6), all(6));
    assert_ne!(all(6).0, all(7).0);
}

#[test]
fn a_full_receiver_drops_and_counts() {
    let network = network(Faults::default());
    let mut sender = open(&network, "192.0.2.1:1");
    let mut receiver = open(&network, "192.0.2.2:2");
    let peer = sender.connect(receiver.local()).unwrap();
    for number in 0..300u32 {
        send(&mut *sender, peer, &number.to_be_bytes());
        sender.flush();
    }
    assert_eq!(receiver.counters().rx_dropped, 44);
    let arrived = receive_all(&mut *receiver);
    assert!(arrived.iter().map(|payload| number(payload)).eq(0..256));
}

#[test]
fn datagrams_to_nobody_are_errors_until_somebody_is_there() {
    let network = network(Faults::default());
    let mut sender = open(&network, "192.0.2.1:1");
    let peer = sender.connect("192.0.2.9:9".parse().unwrap()).unwrap();
    send(&mut *sender, peer, b"early");
    assert!(sender.flush());
    assert_eq!(sender.counters().tx_errors, 1);
    let mut late = open(&network, "192.0.2.9:9");
    send(&mut *sender, peer, b"in time");
    sender.flush();
    assert_eq!(receive_all(&mut *late), [b"in time"]);
    drop(late);
    send(&mut *sender, peer, b"too late");
    sender.flush();
    assert_eq!(
        (sender.counters().tx_datagrams, sender.counters().tx_errors),
        (1, 2)
    );
}

#[test]
fn a_port_at_every_address_excludes_others_with_its_number() {
    let network = network(Faults::default());
    let everywhere = open(&network, "0.0.0.0:5");
    assert!(matches!(
        try_open(&network, "192.0.2.1:5"),
        Err(OpenError::Bind { .. })
    ));
    let other_family = open(&network, "[::]:5");
    drop((everywhere, other_family));
    let one = open(&network, "192.0.2.1:5");
    assert!(matches!(
        try_open(&network, "0.0.0.0:5"),
        Err(OpenError::Bind { .. })
    ));
    assert_eq!(
        open(&network, "192.0.2.2:5").local().port(),
        one.local().port()
    );
}

#[test]
fn networks_do_not_reach_each_other() {
    let (one, other) = (network(Faults::default()), network(Faults::default()));
    let mut sender = open(&one, "192.0.2.1:1");
    let mut receiver = open(&other, "192.0.2.2:2");
    let peer = sender.connect(receiver.local()).unwrap();
    send(&mut *sender, peer, b"astray");
    sender.flush();
    assert_eq!(sender.counters().tx_errors, 1);
    assert_eq!(receive_all(&mut *receiver).len(), 0);
}

#[test]
fn no_wake_up_is_lost_between_threads_that_sleep_after_every_datagram() {
    const ROUNDS: u32 = 5000;
    let network = network(Faults::default());
    let mut one = open(&network, "192.0.2.1:1");
    let mut other = open(&network, "192.0.2.2:2");
    let to_other = one.connect(other.local()).unwrap();
    let to_one = other.connect(one.local()).unwrap();
    /// Sleeps until a datagram comes; a lost wake-up shows as a timeout.
    fn sleep_and_receive(port: &mut dyn Port) -> u32 {
        let mut got = None;
        while port.receive(2, &mut |datagram| got = Some(number(datagram.payload))) == 0 {
            assert!(
                readable_within(port, Duration::from_secs(60)),
                "a wake-up was lost"
            );
        }
        got.unwrap()
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let number = sleep_and_receive(&mut *other);
                send(&mut *other, to_one, &number.to_be_bytes());
                other.flush();
            }
        });
        for number in 0..ROUNDS {
            send(&mut *one, to_other, &number.to_be_bytes());
            one.flush();
            assert_eq!(sleep_and_receive(&mut *one), number);
        }
    });
}

#[test]
fn many_senders_at_full_speed_lose_nothing_uncounted() {
    const SENDERS: u64 = 4;
    const EACH: u64 = 50_000;
    let network = network(Faults::default());
    let mut receiver = open(&network, "192.0.2.9:9");
    let to = receiver.local();
    let senders: Vec<_> = (1..=SENDERS)
        .map(|host| open(&network, &format!("192.0.2.{host}:1")))
        .collect();
    std::thread::scope(|scope| {
        for mut sender in senders {
            scope.spawn(move || {
                let peer = sender.connect(to).unwrap();
                for number in 0..EACH {
                    let frame = loop {
                        match sender.reserve(peer) {
                            Ok(frame) => break frame,
                            Err(refused) => assert_eq!(refused, ReserveError::WouldBlock),
                        }
                        sender.flush();
                    };
                    sender.payload(&frame)[..8].copy_from_slice(&number.to_be_bytes());
                    sender.commit(frame, 8, TrafficClass::BEST_EFFORT, None);
                }
                sender.flush();
                assert_eq!(sender.counters().tx_datagrams, EACH);
            });
        }
        let mut last = [None; SENDERS as usize];
        loop {
            receiver.receive(64, &mut |datagram| {
                let SocketAddr::V4(source) = datagram.source else {
                    panic!("an IPv6 source")
                };
                let last = &mut last[usize::from(source.ip().octets()[3]) - 1];
                let number = u64::from_be_bytes(datagram.payload.try_into().unwrap());
                assert!(Some(number) > *last, "{source} {number} after {last:?}");
                *last = Some(number);
            });
            let counters = receiver.counters();
            if counters.rx_datagrams + counters.rx_dropped == SENDERS * EACH {
                break;
            }
        }
    });
}
