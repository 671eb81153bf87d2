//! Single cases: what is refused, who is evicted, what is repaired when nothing else would tell of it.

use takt_recovery::receiver::Delivery;
use takt_recovery::{
    Acknowledgement, Action, Announce, Arrival, Config, Full, Hostile, MAX_GRANT_BYTES, MAX_PEERS,
    MAX_WINDOW, PeerId, Policy, Receiver, Refused, Sender,
};

const MS: i64 = 1_000_000;

fn sender(config: Config) -> (Sender, PeerId) {
    let mut sender = Sender::new(config).expect("a good configuration");
    let peer = sender.add_peer(0).expect("the first");
    assert!(matches!(sender.poll(0), Some(Action::Announce(..))));
    (sender, peer)
}

/// All before `next` are here, there is room for 16 more.
fn said(next: u32) -> Acknowledgement {
    Acknowledgement {
        next,
        limit: next + 16,
        span: 0,
        here: [0; 4],
        lacking: next,
        stamp_ns: 0,
        held_ns: 0,
        messages: MAX_WINDOW,
        bytes: MAX_GRANT_BYTES,
    }
}

fn announce(oldest: u32, next: u32) -> Announce {
    Announce {
        oldest,
        next,
        round_trip_ns: 0,
        stamp_ns: 0,
    }
}

/// A receiver that heard the announcement and acknowledged it.
fn receiver(first: u32) -> Receiver {
    let mut receiver = Receiver::new(8).expect("a good window");
    receiver
        .announce(0, &announce(first, first))
        .expect("honest");
    assert!(receiver.poll(0).is_some());
    receiver
}

#[test]
fn parameters_are_refused_by_name() {
    let good = Config::default();
    let wrong = [
        (
            Config {
                messages: 0,
                ..good
            },
            Refused::Window(0),
        ),
        (
            Config {
                messages: MAX_WINDOW + 1,
                ..good
            },
            Refused::Window(MAX_WINDOW + 1),
        ),
        (Config { bytes: 0, ..good }, Refused::Bytes),
        (
            Config {
                repair_percent: 101,
                ..good
            },
            Refused::Share(101),
        ),
        (
            Config {
                least_timeout_ns: 0,
                ..good
            },
            Refused::Times,
        ),
        (
            Config {
                silence_ns: good.most_timeout_ns,
                ..good
            },
            Refused::Times,
        ),
        (
            Config {
                silence_ns: i64::MAX,
                ..good
            },
            Refused::Times,
        ),
        (
            Config {
                stall_ns: Some(0),
                ..good
            },
            Refused::Times,
        ),
        (
            Config {
                policy: Policy::Within(-1),
                ..good
            },
            Refused::Times,
        ),
    ];
    for (config, refused) in wrong {
        assert_eq!(Sender::new(config).err(), Some(refused));
    }
    assert_eq!(Receiver::new(0).err(), Some(Refused::Window(0)));
    let mut sender = Sender::new(good).expect("good");
    for _ in 0..MAX_PEERS {
        sender.add_peer(0).expect("few");
    }
    assert_eq!(sender.add_peer(0), Err(Refused::Peers));
}

#[test]
fn hostile_acknowledgements_change_nothing() {
    let (mut sender, peer) = sender(Config::default());
    sender.emit(0, 100).expect("room");
    let good = said(0);
    let wrong = [
        (said(2), Hostile::NotEmitted(2)),
        (said(0x7fff_ffff), Hostile::NotEmitted(0x7fff_ffff)),
        (Acknowledgement { span: 2, ..good }, Hostile::NotEmitted(2)),
        (
            Acknowledgement {
                span: u32::MAX,
                ..good
            },
            Hostile::NotEmitted(u32::MAX),
        ),
        (
            Acknowledgement {
                limit: MAX_WINDOW + 1,
                ..good
            },
            Hostile::Grant(MAX_WINDOW + 1),
        ),
        (
            Acknowledgement {
                limit: u32::MAX,
                ..good
            },
            Hostile::Grant(u32::MAX),
        ),
        (
            Acknowledgement {
                messages: MAX_WINDOW + 1,
                ..good
            },
            Hostile::Messages(MAX_WINDOW + 1),
        ),
        (
            Acknowledgement {
                bytes: MAX_GRANT_BYTES + 1,
                ..good
            },
            Hostile::Bytes(MAX_GRANT_BYTES + 1),
        ),
        (
            Acknowledgement {
                bytes: u32::MAX,
                ..good
            },
            Hostile::Bytes(u32::MAX),
        ),
    ];
    for (said, hostile) in wrong {
        assert_eq!(sender.acknowledge(0, peer, &said), Err(hostile));
    }
    assert_eq!(sender.counters().refused, wrong.len() as u64);
    assert_eq!(sender.retained(), 1);
    // A number from before the flow is an overtaken acknowledgement: ignored.
    sender
        .acknowledge(
            0,
            peer,
            &Acknowledgement {
                held_ns: -1,
                ..said(u32::MAX - 20)
            },
        )
        .expect("old");
    assert_eq!(sender.retained(), 1);
    // Times that cannot be give no round trip: the first timeout stays.
    let times = [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN), (0, -1)];
    for (stamp_ns, held_ns) in times {
        let said = Acknowledgement {
            stamp_ns,
            held_ns,
            ..good
        };
        sender
            .acknowledge(MS, peer, &said)
            .expect("counted as heard");
    }
    assert_eq!(
        sender.wake_ns(MS),
        Some(MS + Config::default().first_timeout_ns)
    );
    assert!(sender.remove_peer(peer));
    assert_eq!(sender.acknowledge(0, peer, &good), Err(Hostile::Unknown));
}

#[test]
fn hostile_announcements_change_nothing() {
    let mut receiver = receiver(7);
    let wrong = announce(7, 8 + MAX_WINDOW);
    assert_eq!(
        receiver.announce(0, &wrong),
        Err(Hostile::Announced(MAX_WINDOW + 1))
    );
    assert_eq!(receiver.counters().refused, 1);
    // Old ones are ignored.
    receiver.announce(0, &announce(3, 5)).expect("old");
    assert_eq!(receiver.receive(0, 7, 0), Arrival::Keep);
    assert_eq!(receiver.deliver(0), Some(Delivery::Message(7)));
    // A jump is counted, in bounded time.
    receiver
        .announce(0, &announce(0x7000_0000, 0x7000_0001))
        .expect("a jump");
    assert_eq!(receiver.deliver(0), Some(Delivery::Lost(0x7000_0000 - 8)));
    assert_eq!(receiver.receive(0, 0x7000_0000, 0), Arrival::Keep);
    assert_eq!(receiver.deliver(0), Some(Delivery::Message(0x7000_0000)));
}

#[test]
fn messages_are_delivered_once_and_in_order_across_the_wrap() {
    let mut receiver = receiver(u32::MAX - 1);
    for sequence in [1, u32::MAX, u32::MAX - 1, 0] {
        assert_eq!(receiver.receive(0, sequence, 0), Arrival::Keep);
        assert_eq!(receiver.receive(0, sequence, 0), Arrival::Repeated);
    }
    let delivered: Vec<_> = std::iter::from_fn(|| receiver.deliver(0)).collect();
    assert_eq!(
        delivered,
        [u32::MAX - 1, u32::MAX, 0, 1].map(Delivery::Message)
    );
    // Beyond the window is not kept; it is again once there is room.
    assert_eq!(receiver.receive(0, 2 + 8, 0), Arrival::Beyond);
    assert_eq!(receiver.receive(0, 2, 0), Arrival::Keep);
    assert_eq!(receiver.deliver(0), Some(Delivery::Message(2)));
    assert_eq!(receiver.receive(0, 2 + 8, 0), Arrival::Keep);
    assert_eq!(receiver.deliver(0), None);
    assert_eq!(
        Receiver::new(8).expect("good").receive(0, 0, 0),
        Arrival::Early
    );
}

#[test]
fn a_gap_is_told_at_once_and_again_with_back_off() {
    let mut receiver = receiver(0);
    let mut now = 10 * MS;
    assert_eq!(receiver.receive(now, 2, 5), Arrival::Keep);
    let told = receiver.poll(now).expect("at once");
    assert_eq!(
        (told.next, told.span, told.here[0], told.stamp_ns),
        (0, 3, 0b100, 5)
    );
    let mut waits = Vec::new();
    for _ in 0..4 {
        let due = receiver.wake_ns().expect("still missing");
        assert_eq!(receiver.poll(due - 1), None);
        assert!(receiver.poll(due).is_some());
        waits.push(due - now);
        now = due;
    }
    assert!(
        waits.windows(2).all(|two| two[1] == 2 * two[0]),
        "{waits:?}"
    );
}

#[test]
fn a_message_begins_where_there_is_room_for_all_of_it() {
    let (mut sender, peer) = sender(Config::default());
    let grant = |next, messages, bytes| Acknowledgement {
        limit: next + 100,
        messages,
        bytes,
        ..said(next)
    };
    let begin = |sender: &mut Sender, needed| sender.emit_part(0, 10, 0, 0, Some(needed));
    let more = |sender: &mut Sender| sender.emit_part(0, 10, 0, 0, None);
    begin(&mut sender, 100).expect("room");
    // Three messages, of 1000 bytes together, that begin with 0 or later: one has begun. That takes the place of the guess.
    let said = grant(0, 3, 1_000);
    sender.acknowledge(0, peer, &said).expect("honest");
    assert_eq!(begin(&mut sender, 901), Err(Full::Credit));
    begin(&mut sender, 900).expect("granted");
    assert_eq!(begin(&mut sender, 1), Err(Full::Credit));
    // Its other parts may always follow.
    (0..20).for_each(|_| assert!(more(&mut sender).is_ok()));
    // A grant that says less changes nothing: it may have been overtaken, or be of a receiver that began anew.
    let said = grant(0, 0, 0);
    sender.acknowledge(0, peer, &said).expect("honest");
    begin(&mut sender, 0).expect("granted");
    assert_eq!(begin(&mut sender, 0), Err(Full::Credit));
    // From within a message on, what begins behind it counts: the second is 1 to 21, the third 22.
    let said = grant(10, 2, 5_000);
    sender.acknowledge(0, peer, &said).expect("honest");
    assert_eq!(begin(&mut sender, 5_001), Err(Full::Credit));
    begin(&mut sender, 5_000).expect("granted");
    assert_eq!(begin(&mut sender, 0), Err(Full::Credit));
    // Who has everything is sent one, however long.
    let said = grant(sender.next(), 0, 0);
    sender.acknowledge(0, peer, &said).expect("honest");
    begin(&mut sender, 1 << 40).expect("one is always tried");
    assert_eq!(begin(&mut sender, 1), Err(Full::Credit));
    assert_eq!(more(&mut sender), Err(Full::Credit));
    let said = grant(sender.next(), 0, 0);
    sender.acknowledge(0, peer, &said).expect("honest");
    more(&mut sender).expect("it has place for the first part");
    // That grant is lost: it is asked for while the source waits.
    let mut now = 0;
    let asked = (0..).any(|_| {
        now = sender.wake_ns(now).expect("something is to be asked");
        matches!(sender.poll(now), Some(Action::Announce(..)))
    });
    assert!(asked);
}

#[test]
fn the_window_bounds_messages_and_bytes_and_grants_bound_both() {
    let config = Config {
        messages: 4,
        bytes: 1_000,
        ..Config::default()
    };
    let (mut sender, peer) = sender(config);
    assert_eq!(sender.emit(0, 1_001), Err(Full::TooLong(1_001)));
    sender.emit(0, 900).expect("room");
    assert_eq!(sender.emit(0, 101), Err(Full::Window));
    for _ in 0..3 {
        sender.emit(0, 1).expect("room");
    }
    assert_eq!(sender.emit(0, 1), Err(Full::Window));
    let no_room = Acknowledgement {
        limit: 4,
        ..said(4)
    };
    sender.acknowledge(0, peer, &no_room).expect("honest");
    assert_eq!((sender.retained(), sender.oldest()), (0, 4));
    // Grants are never taken back: the first 16 stay.
    for at in 4..16 {
        sender.emit(0, 1).expect("granted");
        sender
            .acknowledge(
                0,
                peer,
                &Acknowledgement {
                    limit: at + 1,
                    ..said(at + 1)
                },
            )
            .expect("honest");
    }
    assert_eq!(sender.wake_ns(0), None);
    assert_eq!(sender.emit(0, 1), Err(Full::Credit));
    // The grant may have been lost: it is asked for.
    let wake = sender.wake_ns(0).expect("asks");
    assert!(
        matches!(sender.poll(wake), Some(Action::Announce(id, said)) if id == peer && said.next == 16)
    );
    sender.acknowledge(wake, peer, &said(16)).expect("honest");
    assert_eq!(sender.emit(wake, 1), Ok(16));
}

#[test]
fn the_last_message_is_repaired_without_any_share() {
    let config = Config {
        repair_percent: 0,
        ..Config::default()
    };
    let (mut sender, peer) = sender(config);
    let mut receiver = receiver(0);
    sender.acknowledge(0, peer, &said(0)).expect("honest");
    assert_eq!(sender.emit(0, 100), Ok(0));
    // Lost. The probe tells of it, and it is repaired.
    let now = sender.wake_ns(0).expect("a probe");
    let Some(Action::Announce(_, said)) = sender.poll(now) else {
        panic!("no probe");
    };
    receiver.announce(now, &said).expect("honest");
    let now = receiver.wake_ns().expect("asks").max(now);
    let told = receiver.poll(now).expect("asks");
    assert_eq!(told.span, 1);
    sender.acknowledge(now, peer, &told).expect("honest");
    // The next probe was due meanwhile.
    assert!(matches!(sender.poll(now), Some(Action::Announce(..))));
    assert_eq!(sender.poll(now), Some(Action::Repair(peer, 0)));
    // Asked for again at once: once in a timeout.
    sender.acknowledge(now, peer, &told).expect("honest");
    assert_eq!(sender.poll(now), None);
    assert_eq!(receiver.receive(now, 0, now), Arrival::Keep);
}

#[test]
fn who_says_nothing_is_evicted_and_who_takes_nothing_where_asked_for() {
    let config = Config {
        stall_ns: Some(20_000 * MS),
        ..Config::default()
    };
    let (mut sender, silent) = sender(config);
    let slow = sender.add_peer(0).expect("few");
    sender.acknowledge(0, silent, &said(0)).expect("honest");
    sender.emit(0, 100).expect("room");
    let mut gone = Vec::new();
    let mut now = 0;
    while sender.peers() > 0 {
        // One answers and never takes the message.
        let _ = sender.acknowledge(
            now,
            slow,
            &Acknowledgement {
                limit: 16,
                ..said(0)
            },
        );
        while let Some(action) = sender.poll(now) {
            if let Action::Evicted(peer, _) = action {
                gone.push((peer, now));
            }
        }
        now = sender.wake_ns(now).map_or(now, |at| at.min(now + 100 * MS));
    }
    assert_eq!(gone, [(silent, config.silence_ns), (slow, 20_000 * MS)]);
    let counted = sender.counters();
    assert_eq!(
        (counted.evicted, counted.abandoned, sender.retained()),
        (2, 2, 0)
    );
    // Nobody is waited for any more.
    for _ in 0..1_000 {
        sender.emit(now, 100).expect("no peers");
    }
}

#[test]
fn a_repair_that_comes_too_late_is_not_sent() {
    // Two messages were emitted at 4 ms, the round trip is 4 ms; at 8 ms the peer says that it lacks the first.
    let asked = |deadline: i64| {
        let config = Config {
            policy: Policy::Within(deadline),
            ..Config::default()
        };
        let (mut sender, peer) = sender(config);
        sender.acknowledge(4 * MS, peer, &said(0)).expect("honest");
        sender.emit(4 * MS, 100).expect("room");
        sender.emit(4 * MS, 100).expect("room");
        let lacks = Acknowledgement {
            span: 2,
            here: [0b10, 0, 0, 0],
            stamp_ns: 4 * MS,
            ..said(0)
        };
        sender.acknowledge(8 * MS, peer, &lacks).expect("honest");
        (sender, peer)
    };
    // The repair would be there at 10 ms.
    let (mut sender, peer) = asked(6 * MS);
    assert_eq!(sender.poll(8 * MS), Some(Action::Repair(peer, 0)));
    let (mut sender, peer) = asked(6 * MS - 1);
    assert_eq!(sender.poll(8 * MS), None);
    // Given up a round trip after the deadline, counted, and told.
    assert_eq!(sender.wake_ns(8 * MS), Some(14 * MS - 1));
    let told = Announce {
        oldest: 2,
        next: 2,
        round_trip_ns: 4 * MS,
        stamp_ns: 14 * MS,
    };
    assert_eq!(sender.poll(14 * MS), Some(Action::Announce(peer, told)));
    let counted = sender.counters();
    assert_eq!(
        (counted.given_up, counted.repaired, sender.retained()),
        (1, 0, 0)
    );
}

/// Whoever waits for what it is to do without says so again and again: that does not put off telling it.
#[test]
fn what_is_given_up_is_told_again_where_that_was_lost() {
    let config = Config {
        policy: Policy::Within(2 * MS),
        ..Config::default()
    };
    let (mut sender, peer) = sender(config);
    sender.acknowledge(0, peer, &said(0)).expect("honest");
    sender.emit(0, 100).expect("room");
    // It asks every 100 ms, as receivers do, and hears nothing.
    let (mut told, mut now) = (0, 0);
    while now <= 10_000 * MS {
        let lacks = Acknowledgement {
            span: 1,
            stamp_ns: now,
            ..said(0)
        };
        if now % (100 * MS) == 0 {
            sender.acknowledge(now, peer, &lacks).expect("honest");
        }
        while let Some(action) = sender.poll(now) {
            told += usize::from(matches!(action, Action::Announce(_, said) if said.oldest == 1));
        }
        now += MS;
    }
    // At least four times a second.
    assert!((40..60).contains(&told), "{told}");
}

#[test]
fn who_always_asks_gets_few_bytes_beyond_the_share() {
    const LONG: u64 = 1 << 20;
    let config = Config {
        repair_percent: 0,
        ..Config::default()
    };
    let (mut sender, peer) = sender(config);
    sender.acknowledge(0, peer, &said(0)).expect("honest");
    sender.emit(0, LONG).expect("room");
    // It claims a round trip of 0 and lacks the message whenever it may say so.
    let (mut now, mut repairs) = (0, Vec::new());
    while now <= 10_000 * MS {
        let lacks = Acknowledgement {
            span: 1,
            stamp_ns: now,
            ..said(0)
        };
        sender.acknowledge(now, peer, &lacks).expect("well-formed");
        while let Some(action) = sender.poll(now) {
            if matches!(action, Action::Repair(..)) {
                repairs.push(now);
            }
        }
        now += config.least_timeout_ns;
    }
    // 1 MiB is 700 frames, 0.2 ms each at the least; then doubled up to a second.
    let apart: Vec<_> = repairs.windows(2).map(|two| two[1] - two[0]).collect();
    let frames = LONG.div_ceil(1500) as i64;
    let doubled = (0..).map(|times| (frames * config.least_timeout_ns) << times);
    let expected: Vec<_> = doubled
        .map(|ns| ns.min(config.most_timeout_ns))
        .take(apart.len())
        .collect();
    assert_eq!(apart, expected);
    // At 0, 0.14, 0.42, 0.98 s, and every second from there.
    assert_eq!(repairs.len(), 13);
    // It gets on: the next one need not wait for what was doubled.
    sender.emit(now, 100).expect("room");
    let lacks = Acknowledgement {
        span: 1,
        stamp_ns: now,
        ..said(1)
    };
    sender.acknowledge(now, peer, &lacks).expect("honest");
    let due = repairs[12] + frames * config.least_timeout_ns;
    let mut repaired = |at| {
        let actions: Vec<_> = std::iter::from_fn(|| sender.poll(at)).collect();
        actions.contains(&Action::Repair(peer, 1))
    };
    assert!(!repaired(due - 1) && repaired(due));
}

#[test]
fn granting_alone_is_no_progress() {
    let config = Config {
        stall_ns: Some(2_000 * MS),
        ..Config::default()
    };
    let (mut sender, peer) = sender(config);
    sender.acknowledge(0, peer, &said(0)).expect("honest");
    sender.emit(0, 100).expect("room");
    let grant = |room: u32| Acknowledgement {
        limit: room,
        ..said(0)
    };
    for second in 0..2u32 {
        let now = i64::from(second) * 1_000 * MS;
        sender
            .acknowledge(now, peer, &grant(17 + second))
            .expect("well-formed");
        while let Some(action) = sender.poll(now) {
            assert!(!matches!(action, Action::Evicted(..)), "too early");
        }
    }
    sender
        .acknowledge(2_000 * MS - 1, peer, &grant(30))
        .expect("well-formed");
    assert_eq!(sender.poll(2_000 * MS), Some(Action::Evicted(peer, 0)));
}

#[test]
fn what_cannot_be_sent_to_a_peer_is_done_without_and_holds_nothing_else_up() {
    let (mut sender, peer) = sender(Config::default());
    sender.acknowledge(0, peer, &said(0)).expect("honest");
    for _ in 0..3 {
        sender.emit(MS, 100).expect("room");
    }
    assert!(sender.give_up(MS, peer, 1));
    assert!(!sender.give_up(MS, peer, 1), "once");
    assert!(!sender.give_up(MS, peer, 3), "not emitted");
    // The first one is on its way: nobody is told before it has come.
    assert_eq!((sender.oldest(), sender.poll(MS)), (0, None));
    let told = Acknowledgement {
        span: 2,
        here: [0b10, 0, 0, 0],
        ..said(1)
    };
    sender.acknowledge(2 * MS, peer, &told).expect("honest");
    let Some(Action::Announce(_, announce)) = sender.poll(2 * MS) else {
        panic!("the receiver waits for what does not come");
    };
    assert_eq!((announce.oldest, announce.next), (2, 3));
    assert_eq!(sender.oldest(), 2);
    // It is asked for again by one that has not heard of it yet.
    sender.acknowledge(3 * MS, peer, &told).expect("honest");
    assert_eq!(sender.poll(3 * MS), None);
    sender.acknowledge(4 * MS, peer, &said(3)).expect("honest");
    assert_eq!((sender.retained(), sender.counters().withheld), (0, 1));
    assert_eq!(sender.wake_ns(4 * MS), None);
}

/// Polls whenever it is to be, up to an instant: the announcements, and when who was evicted.
fn poll_until(sender: &mut Sender, from: i64, to: i64) -> (Vec<i64>, Option<i64>) {
    let (mut now, mut announced, mut evicted) = (from, Vec::new(), None);
    loop {
        while let Some(action) = sender.poll(now) {
            match action {
                Action::Announce(..) => announced.push(now),
                Action::Evicted(..) => evicted = Some(now),
                Action::Repair(..) => {}
            }
        }
        match sender.wake_ns(now) {
            Some(wake) if wake <= to => {
                assert!(wake > now, "a timer that does not move");
                now = wake;
            }
            _ => return (announced, evicted),
        }
    }
}

#[test]
fn newer_messages_are_no_answer_of_who_says_nothing() {
    let latest = Config {
        policy: Policy::Latest,
        ..Config::default()
    };
    let within = Config {
        policy: Policy::Within(100 * MS),
        ..Config::default()
    };
    for config in [latest, within] {
        let (mut sender, peer) = sender(config);
        sender.acknowledge(0, peer, &said(0)).expect("honest");
        let (mut gone, mut now) = (None, 0);
        while gone.is_none() && now < 10_000 * MS {
            if config.policy == Policy::Latest {
                sender.supersede();
            }
            // Who is waited for has no room any more, with a deadline.
            let _ = sender.emit(now, 100);
            gone = poll_until(&mut sender, now, now + 100 * MS - 1).1;
            now += 100 * MS;
        }
        assert_eq!(gone, Some(config.silence_ns), "{:?}", config.policy);
        assert_eq!((sender.peers(), sender.counters().evicted), (0, 1));
    }
}

#[test]
fn who_grants_and_takes_nothing_gets_no_time_by_what_is_given_up() {
    for policy in [Policy::Within(100 * MS), Policy::Latest] {
        let config = Config {
            policy,
            stall_ns: Some(2_000 * MS),
            ..Config::default()
        };
        let (mut sender, peer) = sender(config);
        sender.acknowledge(0, peer, &said(0)).expect("honest");
        let (mut gone, mut now) = (None, 0);
        while gone.is_none() && now < 10_000 * MS {
            if policy == Policy::Latest {
                sender.supersede();
            }
            sender.emit(now, 100).expect("granted");
            let grants = Acknowledgement {
                limit: sender.next() + 16,
                ..said(0)
            };
            sender.acknowledge(now, peer, &grants).expect("well-formed");
            gone = poll_until(&mut sender, now, now + 50 * MS - 1).1;
            now += 50 * MS;
        }
        assert_eq!(gone, Some(2_000 * MS), "{policy:?}");
    }
}

#[test]
fn nobody_owes_an_answer_to_what_has_not_left() {
    let config = Config {
        stall_ns: Some(20_000 * MS),
        ..Config::default()
    };
    let leaves = 10_000 * MS;
    // Nothing else is on its way.
    let (mut first, peer) = sender(config);
    first.acknowledge(0, peer, &said(0)).expect("honest");
    first.emit_at(0, 100, leaves, leaves).expect("room");
    // What was on its way is acknowledged.
    let (mut second, peer) = sender(config);
    second.acknowledge(0, peer, &said(0)).expect("honest");
    second.emit(0, 100).expect("room");
    second.emit_at(0, 100, leaves, leaves).expect("room");
    second.acknowledge(MS, peer, &said(1)).expect("honest");
    for mut sender in [first, second] {
        let (announced, evicted) = poll_until(&mut sender, MS, 100_000 * MS);
        assert!(announced[0] > leaves, "asked before it left");
        assert_eq!(evicted, Some(leaves + config.silence_ns));
    }
    // One that answers, and takes nothing.
    let (mut sender, peer) = sender(config);
    sender.acknowledge(0, peer, &said(0)).expect("honest");
    sender.emit_at(0, 100, leaves, leaves).expect("room");
    let (mut gone, mut now) = (None, 0);
    while gone.is_none() && now < 100_000 * MS {
        sender.acknowledge(now, peer, &said(0)).expect("honest");
        gone = poll_until(&mut sender, now, now + 1_000 * MS - 1).1;
        now += 1_000 * MS;
    }
    assert_eq!(gone, Some(leaves + 20_000 * MS));
}

#[test]
fn what_is_done_without_is_told_again_though_the_next_leaves_later() {
    let config = Config {
        policy: Policy::Within(100 * MS),
        ..Config::default()
    };
    let leaves = 10_000 * MS;
    for (withhold, first) in [(false, 0), (true, 0), (true, leaves)] {
        let (mut sender, peer) = sender(config);
        sender.acknowledge(0, peer, &said(0)).expect("honest");
        sender.emit_at(0, 100, first, first).expect("room");
        sender.emit_at(0, 100, leaves, leaves).expect("room");
        if withhold {
            assert!(sender.give_up(0, peer, 0));
        }
        // Nothing of it arrives for a while.
        let (announced, evicted) = poll_until(&mut sender, 0, 4_000 * MS);
        let told = announced.iter().filter(|at| **at >= 200 * MS).count();
        assert!(told > 3 && evicted.is_none(), "{announced:?}");
        // It knows: it owes nothing before the next one leaves.
        sender.acknowledge(4_001 * MS, peer, &said(1)).expect("ok");
        let (announced, evicted) = poll_until(&mut sender, 4_001 * MS, leaves);
        assert_eq!((announced, evicted), (vec![], None));
        sender.acknowledge(leaves + MS, peer, &said(2)).expect("ok");
        assert_eq!(sender.retained(), 0);
    }
}

#[test]
fn what_is_not_sent_to_a_peer_is_counted_once() {
    let counted = |config: Config| {
        let (mut sender, peer) = sender(config);
        sender.acknowledge(0, peer, &said(0)).expect("honest");
        for _ in 0..4 {
            sender.emit(0, 100).expect("room");
        }
        for sequence in [1, 3] {
            assert!(sender.give_up(0, peer, sequence));
        }
        (sender, peer)
    };
    let (mut removed, peer) = counted(Config::default());
    assert!(removed.remove_peer(peer));
    assert_eq!(removed.counters().abandoned, 2);
    let (mut superseded, _) = counted(Config {
        policy: Policy::Latest,
        ..Config::default()
    });
    superseded.supersede();
    assert_eq!(superseded.counters().superseded, 2);
    let (mut late, _) = counted(Config {
        policy: Policy::Within(100 * MS),
        ..Config::default()
    });
    while late.poll(1_000 * MS).is_some() {}
    assert_eq!(late.counters().given_up, 2);
    for sender in [removed, superseded, late] {
        assert_eq!(sender.counters().withheld, 2);
    }
}

const US: i64 = 1_000;

/// A sender whose peer is 20 µs away and knows it, with enough earned for repairs of 100 bytes.
fn near_sender() -> (Sender, PeerId, i64) {
    let (mut sender, peer) = sender(Config::default());
    let mut now = MS;
    let mut acknowledged = 0;
    for _ in 0..60 {
        sender.emit(now, 100).expect("room");
        acknowledged += 1;
        let here = Acknowledgement {
            stamp_ns: now,
            ..said(acknowledged)
        };
        now += 20 * US;
        sender.acknowledge(now, peer, &here).expect("honest");
    }
    // Asked once, it is told the round trip.
    sender.emit(now, 100).expect("room");
    now += MS;
    let Some(Action::Announce(_, told)) = sender.poll(now) else {
        panic!("it owes an answer");
    };
    assert_eq!(told.round_trip_ns, 20 * US);
    let here = Acknowledgement {
        stamp_ns: now,
        ..said(acknowledged + 1)
    };
    now += 20 * US;
    sender.acknowledge(now, peer, &here).expect("honest");
    assert_eq!((sender.poll(now), sender.wake_ns(now)), (None, None));
    (sender, peer, now)
}

#[test]
fn a_last_message_that_nothing_follows_is_sent_again_after_three_round_trips_and_once() {
    let (mut sender, _, mut now) = near_sender();
    let mut last = 0;
    // Each puts it off: who sends all the time repeats nothing.
    for _ in 0..4 {
        last = sender.emit(now, 100).expect("room");
        now += 40 * US;
        assert_eq!(sender.poll(now), None);
    }
    let due = sender.wake_ns(now).expect("something is owed");
    assert!(
        (now + 20 * US..now + 30 * US).contains(&due),
        "{}",
        due - now
    );
    assert_eq!(sender.poll(due - 1), None);
    let again = sender.poll(due);
    assert!(matches!(again, Some(Action::Repair(_, sequence)) if sequence == last));
    assert_eq!(sender.poll(due), None, "once");
    // Where that was lost too, it is announced.
    let later = sender.wake_ns(due).expect("it is still owed");
    assert!(matches!(sender.poll(later), Some(Action::Announce(..))));
}

#[test]
fn a_long_last_message_is_announced_instead() {
    let (mut sender, _, now) = near_sender();
    sender.emit(now, 4000).expect("room");
    let due = sender.wake_ns(now).expect("something is owed");
    assert!(due < now + 100 * US);
    assert!(matches!(sender.poll(due), Some(Action::Announce(..))));
}

#[test]
fn what_was_sent_again_tells_nothing_about_the_round_trip() {
    let (mut sender, peer, now) = near_sender();
    let sequence = sender.emit(now, 100).expect("room");
    let due = sender.wake_ns(now).expect("something is owed");
    assert!(matches!(sender.poll(due), Some(Action::Repair(..))));
    // When the message after one that is acknowledged so late is asked after.
    let mut asks_after = |next, stamp_ns, heard| {
        let here = Acknowledgement {
            stamp_ns,
            ..said(next)
        };
        sender.acknowledge(heard, peer, &here).expect("honest");
        sender.emit(heard, 4000).expect("room");
        sender.wake_ns(heard).expect("something is owed")
    };
    // The second of them came, with the stamp of the first.
    let heard = due + 5 * MS;
    let due = asks_after(sequence.wrapping_add(1), now, heard);
    assert!(due < heard + 100 * US, "the round trip was taken for 5 ms");
    // What is newer than that does: it was sent once.
    let later = heard + 5 * MS;
    let due = asks_after(sequence.wrapping_add(2), heard, later);
    assert!(due > later + MS, "the round trip is longer by now");
}

#[test]
fn what_came_is_acknowledged_when_two_round_trips_bring_nothing_more_or_after_a_while() {
    let mut receiver = receiver(0);
    let near = Announce {
        round_trip_ns: 20 * US,
        ..announce(0, 0)
    };
    receiver.announce(MS, &near).expect("honest");
    assert!(receiver.poll(2 * MS).is_some());
    let mut now = 3 * MS;
    // A reply follows each at once: one acknowledgement for several.
    let begun = now;
    for sequence in 0..2 {
        assert_eq!(receiver.receive(now, sequence, now), Arrival::Keep);
        now += 25 * US;
        assert_eq!(receiver.poll(now), None);
    }
    let last = now - 25 * US;
    assert_eq!(receiver.wake_ns(), Some(last + 40 * US));
    // It is not put off for ever.
    while receiver.poll(now).is_none() {
        let next = receiver.next();
        assert!(receiver.deliver(now).is_some());
        assert_eq!(receiver.receive(now, next, now), Arrival::Keep);
        now += 25 * US;
    }
    assert!((begun + 80 * US..=begun + 160 * US).contains(&now));
    assert_eq!(receiver.wake_ns(), None);
}
