//! Sources that give messages to sinks themselves: what the lane does for them is bounded, and theirs to pay.

use proptest::prelude::*;

use super::super::commands::MOST_LOOKS;
use super::super::session::DirectSinks;
use super::fairness::{Guest, House, no_limits, until_done};
use super::*;
use crate::slots::{SinkSlot, SourceSlot};

/// A source's sink has its messages from itself, from this epoch on or no more.
fn direct(
    house: &House,
    from: (&Guest, SourceSlot),
    to: (&Guest, SinkSlot),
    epoch: u16,
    begins: bool,
) {
    house.handle.send(Command::Direct {
        source: (from.0.id, from.1),
        sink: (to.0.id, to.1),
        epoch,
        begins,
    });
}

#[test]
fn sinks_that_have_a_message_already_cost_a_look_each() {
    const SINKS: usize = 1000;
    const MESSAGES: usize = 60;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut writer = house.guest(1, 1 << 20, &no_limits());
    let source = writer.source(5);
    let mut crowd = house.guest(1, 1 << 20, &no_limits());
    let sinks: Vec<SinkSlot> = (0..SINKS).map(|_| crowd.sink(5, 2)).collect();
    for (at, &sink) in sinks.iter().enumerate() {
        direct(
            &house,
            (&writer, source),
            (&crowd, sink),
            at as u16 + 1,
            true,
        );
    }
    house.settle();
    for sequence in 0..MESSAGES {
        assert!(writer.emit_numbered(source, sequence as u32, sequence as u64, SINKS as u16));
    }
    let most = (fair::QUANTUM / (SINKS as i64 * fair::LOOK)) as usize + 1;
    let mut done = 0;
    until_done(MESSAGES, || {
        house.lane.poll();
        let now = writer.completed(source).len();
        assert!(now <= most, "{now} messages in one round");
        done += now;
        done
    });
    let waiting = sinks.iter().map(|&sink| crowd.waiting(sink));
    assert_eq!(waiting.sum::<u32>(), 0, "they have them from the source");
}

#[test]
fn what_commands_about_rings_cost_a_round_is_bounded_and_nobody_who_listens_is_left_out() {
    const SOURCES: usize = 30;
    const SINKS: usize = 200;
    // What one command may look at beyond that.
    const OF_ONE: usize = 4 * (SINKS + SOURCES);
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut writer = house.guest(1, 1 << 20, &no_limits());
    let mut crowd = house.guest(1, 1 << 20, &no_limits());
    let mut other = house.guest(1, 1 << 20, &no_limits());
    let sources: Vec<SourceSlot> = (0..SOURCES).map(|_| writer.source(5)).collect();
    let sinks: Vec<SinkSlot> = (0..SINKS).map(|_| crowd.sink(5, 2)).collect();
    house.settle();
    let told = |house: &House| -> Vec<u32> {
        let session = house.lane.by_session[&writer.id];
        let session = house.lane.state.tenants.sessions.get(session);
        let all = session.expect("there").sources.iter();
        all.map(|source| source.others).collect()
    };
    let rounds = |house: &mut House| rounds_of_commands(&mut house.lane, OF_ONE);
    for (at, &sink) in sinks.iter().enumerate() {
        for &source in &sources {
            direct(
                &house,
                (&writer, source),
                (&crowd, sink),
                at as u16 + 1,
                true,
            );
        }
    }
    assert!(rounds(&mut house) > SOURCES * SINKS / 64, "in many rounds");
    assert_eq!(told(&house), [0; SOURCES]);
    // A sink that the lane serves is counted with the command that brings it.
    let sink = other.sink(5, 2);
    house.lane.poll();
    assert_eq!(told(&house), [1; SOURCES]);
    // One that its source serves no more, as well.
    for &source in &sources {
        direct(
            &house,
            (&writer, source),
            (&crowd, sinks[0]),
            SINKS as u16 + 1,
            false,
        );
    }
    rounds(&mut house);
    assert_eq!(told(&house), [2; SOURCES]);
    // Who goes is counted no more in the end, and until then each source counts at least who is there.
    let close = |house: &House, guest: &Guest, sink| {
        house.handle.send(Command::CloseSink {
            session: guest.id,
            sink,
        });
    };
    sinks.iter().for_each(|&sink| close(&house, &crowd, sink));
    while house.lane.mailbox.full.load(Ordering::Acquire) {
        house.lane.poll();
        let looks = house.lane.state.looks;
        assert!(looks <= MOST_LOOKS + OF_ONE, "{looks} looks in a round");
        assert!(told(&house).iter().all(|told| *told >= 1));
    }
    assert_eq!(told(&house), [1; SOURCES]);
    close(&house, &other, sink);
    rounds(&mut house);
    assert_eq!(told(&house), [0; SOURCES]);
}

/// What the lane has completed does not tell it: a sink of its own session may keep a message for ever.
#[test]
fn a_source_is_told_what_the_sinks_have_whoever_keeps_it() {
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut writer = house.guest(1, 1 << 20, &no_limits());
    let (source, own) = (writer.source(5), writer.sink(5, 64));
    let mut reader = house.guest(1, 1 << 20, &no_limits());
    let sink = reader.sink(5, 64);
    house.settle();
    assert!(writer.emit(source, 0, 3));
    until_done(1, || {
        house.lane.poll();
        reader.waiting(sink) as usize
    });
    assert_eq!(writer.given(source), 0, "it has had no rings");
    direct(&house, (&writer, source), (&reader, sink), 1, true);
    house.settle();
    assert_eq!(writer.given(source), 1);
    // The source has not heard of it.
    assert!(writer.emit_numbered(source, 1, 1, 0));
    until_done(2, || {
        house.lane.poll();
        writer.given(source) as usize
    });
    assert_eq!((writer.waiting(own), reader.waiting(sink)), (2, 2));
    let completed = writer.completed(source);
    assert!(
        completed.is_empty(),
        "its own sink keeps them: {completed:?}"
    );
}

/// Only so many who sleep are woken for a tenant at a time.
#[test]
fn sinks_find_what_their_source_is_told_they_have_however_many_are_to_be_woken() {
    const SINKS: usize = 200;
    let mut house = House::new(Vec::new(), Arc::new(Ticking::default()));
    let mut writer = house.guest(1, 1 << 20, &no_limits());
    let source = writer.source(5);
    let mut crowd = house.guest(1, 1 << 20, &no_limits());
    let sinks: Vec<SinkSlot> = (0..SINKS).map(|_| crowd.sink(5, 4)).collect();
    let last = sinks[SINKS - 1];
    house.settle();
    sinks.iter().for_each(|&sink| crowd.arm(sink));
    assert!(writer.emit(source, 0, 3));
    house.lane.poll();
    assert_eq!(writer.completed(source), [0]);
    assert_eq!(crowd.waiting(last), 0, "its turn to be woken has not come");
    direct(&house, (&writer, source), (&crowd, last), 1, true);
    house.settle();
    assert_eq!((writer.given(source), crowd.waiting(last)), (1, 1));
    assert!(crowd.is_armed(last), "it sleeps");
    until_done(0, || {
        house.lane.poll();
        sinks.iter().filter(|&&sink| crowd.is_armed(sink)).count()
    });
    sinks.iter().for_each(|&sink| crowd.arm(sink));
    // The source has not heard of its ring.
    assert!(writer.emit_numbered(source, 1, 1, 0));
    until_done(2, || {
        house.lane.poll();
        writer.given(source) as usize
    });
    assert!(sinks.iter().all(|&sink| crowd.waiting(sink) == 2));
    assert!(crowd.is_armed(last), "it sleeps");
}

proptest! {
    /// As a list that is looked through from end to end.
    #[test]
    fn a_sink_has_the_messages_of_its_epochs(
        acts in proptest::collection::vec((0u64..12, 0u8..4), 1..80),
    ) {
        let mut sinks = DirectSinks::default();
        let mut known: Vec<(u64, u16, u16)> = Vec::new();
        for (epoch, (number, act)) in (1u16..).zip(acts) {
            match act {
                0 | 1 => {
                    sinks.begin(number, epoch);
                    known.push((number, epoch, u16::MAX));
                }
                2 => {
                    sinks.end(number, epoch);
                    let of = known.iter_mut().filter(|one| one.0 == number);
                    of.for_each(|one| one.2 = one.2.min(epoch));
                }
                _ => {
                    sinks.retain(|other| other != number);
                    known.retain(|one| one.0 != number);
                }
            }
            prop_assert_eq!(sinks.len(), known.len());
            for number in 0..12 {
                for epoch in 0..=epoch + 1 {
                    let has = known.iter().any(|one| one.0 == number && (one.1..one.2).contains(&epoch));
                    prop_assert_eq!(sinks.has(number, epoch), has);
                }
            }
        }
    }
}
