//! Classes without a schedule: what is of a higher one goes first, whoever has it, and nobody gets more by it.

use super::fairness::{Guest, House, no_limits};
use super::*;
use crate::slots::{SinkSlot, SourceSlot};

/// The classes of what has come to a sink, in this order.
fn came(guest: &mut Guest, sink: SinkSlot) -> Vec<u32> {
    let (rx, _) = &mut guest.sinks[sink.0];
    let came = std::iter::from_fn(|| rx.pop().expect("a sane ring"));
    let came = came.map(|descriptor| descriptor.class).collect();
    rx.release();
    came
}

/// Somebody who gets all of channel 5.
fn listener(house: &mut House) -> (Guest, SinkSlot) {
    let mut guest = house.guest(9, 4 << 20, &no_limits());
    let sink = guest.sink(5, 1024);
    (guest, sink)
}

#[test]
fn a_message_of_a_higher_class_goes_before_what_all_other_tenants_have_of_lower_ones() {
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let (mut all, sink) = listener(&mut house);
    let mut crowd: Vec<Guest> = (1..4)
        .map(|tenant| house.guest(tenant, 1 << 20, &no_limits()))
        .collect();
    let mut control = house.guest(4, 1 << 16, &no_limits());
    control.source(5);
    for guest in &mut crowd {
        guest.source(5);
    }
    house.settle();
    for guest in &mut crowd {
        (0..64).for_each(|at| assert!(guest.emit(SourceSlot(0), at * 16, 1000)));
    }
    assert!(control.emit_in(6, SourceSlot(0), 0, 8));
    assert!(control.emit_in(7, SourceSlot(0), 1, 8));
    house.lane.poll();
    let came = came(&mut all, sink);
    // From one source in its own order.
    assert_eq!(came[..2], [6, 7]);
    assert_eq!(came.len(), 2 + 3 * 64);
}

#[test]
fn a_message_of_a_higher_class_goes_before_what_its_own_session_has_of_lower_ones() {
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let (mut all, sink) = listener(&mut house);
    let mut guest = house.guest(1, 4 << 20, &no_limits());
    for _ in 0..4 {
        guest.source(5);
    }
    house.settle();
    for source in 0..2 {
        (0..64).for_each(|at| {
            assert!(guest.emit(SourceSlot(source), (source as u32 * 64 + at) * 16, 1000))
        });
    }
    assert!(guest.emit_in(7, SourceSlot(3), 4000, 8));
    assert!(guest.emit_in(3, SourceSlot(2), 4001, 8));
    house.lane.poll();
    let came = came(&mut all, sink);
    assert_eq!(came[..2], [7, 3]);
    assert!(came[2..].iter().all(|class| *class == 0));
}

#[test]
fn who_gives_all_it_has_the_highest_class_gets_no_more_than_its_share() {
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let (mut all, sink) = listener(&mut house);
    let mut guests: Vec<Guest> = (1..3)
        .map(|tenant| house.guest(tenant, 1 << 20, &no_limits()))
        .collect();
    for guest in &mut guests {
        (0..4).for_each(|_| {
            guest.source(5);
        });
    }
    house.settle();
    let classes = [7, 0];
    for (guest, class) in guests.iter_mut().zip(classes) {
        for source in 0..4 {
            let chunk = |at| (source as u32 * 64 + at) * 16;
            (0..64)
                .for_each(|at| assert!(guest.emit_in(class, SourceSlot(source), chunk(at), 1000)));
        }
    }
    let mut got = [0u32; 2];
    for _ in 0..500 {
        house.lane.poll();
        for (guest, class) in guests.iter_mut().zip(classes) {
            for source in 0..4 {
                for chunk in guest.completed(SourceSlot(source)) {
                    assert!(guest.emit_in(class, SourceSlot(source), chunk, 1000));
                }
            }
        }
        let (rx, release) = &mut all.sinks[sink.0];
        while let Some(descriptor) = rx.pop().expect("a sane ring") {
            got[usize::from(descriptor.class == 0)] += 1;
            assert!(release.push(descriptor.chunk).expect("a sane ring"));
        }
        rx.release();
    }
    let [high, low] = got;
    assert!(low > 5000, "{got:?}");
    assert!(high.abs_diff(low) <= 100, "{got:?}");
}

#[test]
fn a_source_that_changes_its_classes_as_it_likes_loses_and_repeats_nothing() {
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let (mut all, sink) = listener(&mut house);
    let mut guest = house.guest(1, 1 << 20, &no_limits());
    (0..3).for_each(|_| {
        guest.source(5);
    });
    house.settle();
    let mut sent = 0;
    for round in 0..200u32 {
        for source in 0..3 {
            for chunk in guest.completed(SourceSlot(source)) {
                assert!(chunk < 3000);
            }
            let at = (round % 60) * 3 + source as u32;
            let class = (round * 7 + source as u32 * 5) % 8;
            assert!(guest.emit_in(class as u8, SourceSlot(source), at, 8));
            sent += 1;
        }
        if round % 3 == 0 {
            house.lane.poll();
        }
    }
    while house.lane.poll() {}
    assert_eq!(came(&mut all, sink).len(), sent);
}

/// A lane with a port, and a port that gets what it sends to remote lanes 7 and 8.
fn with_remotes() -> (House, Box<dyn Port>) {
    let (house, other) = House::at_network(512);
    for (id, channel) in [(7, 5), (8, 6)] {
        house.add_remote(id, other.as_ref());
        house.subscribe(id, vec![channel]);
    }
    (house, other)
}

#[test]
fn on_the_wire_a_higher_class_is_first_though_its_datagram_is_not_full() {
    let (mut house, mut other) = with_remotes();
    let mut bulk = house.guest(1, 1 << 20, &no_limits());
    let mut control = house.guest(2, 1 << 16, &no_limits());
    bulk.source(5);
    control.source(6);
    house.settle();
    (0..64).for_each(|at| assert!(bulk.emit(SourceSlot(0), at * 16, 1000)));
    assert!(control.emit_in(7, SourceSlot(0), 0, 8));
    house.lane.poll();
    let mut channels = Vec::new();
    other.receive(usize::MAX, &mut |datagram| {
        let (header, body) = DatagramHeader::parse(datagram.payload).expect("a datagram");
        let records = header.records(body.records);
        channels.extend(records.map(|record| record.expect("a record").header.channel));
    });
    assert_eq!(channels[0], 6);
    assert_eq!(channels.len(), 65);
}

#[test]
fn what_has_come_of_a_higher_class_is_shown_before_the_rest_that_came_with_it() {
    // The first of what is received in one go, one amidst it, and the last.
    [0, 20, 63].into_iter().for_each(control_is_shown_first);
}

/// What remote lane 7 sends by this port.
fn sender(port: &mut dyn Port) -> Remote {
    let to = port.connect("192.0.2.1:1".parse().expect("an address"));
    let via = vec![Some(to.expect("a peer"))];
    Remote::new(7, 1, 1, Vec::new(), Protection::None, via, &[])
}

/// A message in a datagram of its own.
fn send(from: &mut Remote, port: &mut dyn Port, channel: u64, class: u8, sequence: u32) {
    let arena = Arc::new(Arena::create("payload", 4096).expect("an arena"));
    let message = super::super::remote::Outgoing {
        channel,
        source: channel as u32,
        sequence,
        class: TrafficClass::new(class).expect("below 8"),
        send_time_ns: 0,
        first: None,
    };
    let payload = arena.slice(0, 1000).expect("within");
    let cut = super::super::remote::Cut::of(1000, 1400, takt_wire::channel::RECORD_HEADER_LEN)
        .expect("a path");
    from.append(0, port, &message, payload, &cut, 0..1);
    from.close(0, port, None);
}

/// Of 64 datagrams that have come together, the one behind so many others is of a high class.
fn control_is_shown_first(place: u32) {
    let (mut house, mut other) = with_remotes();
    let mut guest = house.guest(1, 4 << 20, &no_limits());
    let (bulk, control) = (guest.sink(5, 1024), guest.sink(6, 64));
    house.settle();
    let mut sender = sender(other.as_mut());
    let mut send = |channel, class, sequence| {
        send(&mut sender, other.as_mut(), channel, class, sequence);
    };
    (0..place).for_each(|sequence| send(5, 0, sequence));
    send(6, 7, 0);
    (place..63).for_each(|sequence| send(5, 0, sequence));
    assert!(other.flush());
    // Nothing but the receiving half of a round.
    assert!(house.lane.receive());
    assert_eq!(guest.waiting(control), 1);
    assert_eq!(guest.waiting(bulk), 0, "shown with the rest of the round");
    house.lane.poll();
    assert_eq!(guest.waiting(bulk), 63);
    assert_eq!(guest.receive(control), 1);
}

#[test]
fn who_waits_for_a_higher_class_is_woken_before_all_who_wait_for_lower_ones_that_came_with_it() {
    let (mut house, mut other) = with_remotes();
    // One tenant has very many readers of what comes first, each of which is a system call to wake.
    let mut crowd = house.guest(1, 4 << 20, &no_limits());
    let readers: Vec<SinkSlot> = (0..100).map(|_| crowd.sink(5, 64)).collect();
    let own = crowd.sink(8, 64);
    let mut victim = house.guest(2, 1 << 20, &no_limits());
    let control = victim.sink(6, 64);
    house.settle();
    readers
        .iter()
        .chain([&own])
        .for_each(|&sink| crowd.arm(sink));
    victim.arm(control);
    let mut sender = sender(other.as_mut());
    for (channel, class) in [(5, 1), (8, 3), (6, 2)] {
        send(&mut sender, other.as_mut(), channel, class, 0);
    }
    assert!(other.flush());
    assert!(house.lane.receive());
    // All are in the rings; of the crowd as many are woken as a tenant may have woken at a time, the highest first.
    assert_eq!(victim.waiting(control), 1);
    assert!(readers.iter().all(|&sink| crowd.waiting(sink) == 1));
    assert!(!victim.is_armed(control), "behind the crowd");
    assert!(!crowd.is_armed(own), "behind what is of a lower class");
    let woken = readers
        .iter()
        .filter(|&&sink| !crowd.is_armed(sink))
        .count();
    assert_eq!(woken, 15);
    // The others in the rounds that follow.
    (0..10).for_each(|_| {
        house.lane.poll();
    });
    assert!(readers.iter().all(|&sink| !crowd.is_armed(sink)));
}

#[test]
fn what_is_held_for_its_time_keeps_nothing_of_a_lower_class_of_its_own_session() {
    let (mut house, _other) = with_remotes();
    let mut guest = house.guest(1, 1 << 20, &no_limits());
    // More than may wait in the scheduler: the rest is held.
    let ahead: Vec<SourceSlot> = (0..5).map(|_| guest.source(6)).collect();
    let (local, sink) = (guest.source(5), guest.sink(5, 64));
    house.settle();
    for (number, source) in ahead.into_iter().enumerate() {
        let chunks = number as u32 * 64..;
        chunks
            .take(64)
            .for_each(|chunk| assert!(guest.emit_at(10_000_000_000, 7, source, chunk)));
    }
    (0..100).for_each(|_| {
        house.lane.poll();
    });
    assert!(!house.lane.state.tenants.turns.any(), "all is held");
    assert!(guest.emit(local, 1000, 3));
    (0..100).for_each(|_| {
        house.lane.poll();
    });
    assert_eq!(guest.waiting(sink), 1);
    assert!(!house.lane.state.tenants.turns.any(), "the lane may sleep");
}
