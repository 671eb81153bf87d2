//! Sessions that are told when their messages are complete.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::RecvFlags;
use takt_clock::SystemTai;
use takt_session::layout::{ROOM_OFFSET, SinkBlock};
use takt_session::{ChannelId, Reliability, SinkMode, SlowSinks, transport};
use takt_shm::SinkBell;

use super::fairness::{Guest, House, no_limits, until_done};
use crate::lane::Command;
use crate::slots::SinkSlot;

/// What an application has of it.
struct Watch {
    bell: SinkBell,
    signal: OwnedFd,
}

impl Watch {
    fn new(guest: &Guest) -> Self {
        let (notify, signal) = transport::pair().expect("a pair");
        guest.handle.send(Command::TellRoom {
            session: guest.id,
            notify,
        });
        let bell = SinkBell::attach(&guest.arena, ROOM_OFFSET).expect("within");
        Self { bell, signal }
    }

    fn arm(&self) {
        assert!(self.bell.arm_fd(|| false));
    }

    fn is_signalled(&self) -> bool {
        let mut fds = [PollFd::new(&self.signal, PollFlags::IN)];
        let now = Timespec::default();
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Takes the signals: how many.
    fn take(&self) -> usize {
        let mut byte = [0; 1];
        let take = |_: &usize| {
            let taken = rustix::net::recv(self.signal.as_fd(), &mut byte[..], RecvFlags::DONTWAIT);
            taken.is_ok()
        };
        (0..usize::MAX).take_while(take).count()
    }
}

fn house() -> House {
    House::new(Vec::new(), Arc::new(SystemTai))
}

const WAITS: Reliability = Reliability::Reliable {
    deadline: None,
    slow_sinks: SlowSinks::Wait,
};

#[test]
fn completions_are_told_once_for_each_time_that_somebody_waits() {
    let mut house = house();
    let mut guest = house.guest(1, 1 << 20, &no_limits());
    let source = guest.source(7);
    let watch = Watch::new(&guest);
    house.settle();
    let mut send = |house: &mut House, chunk| {
        assert!(guest.emit(source, chunk, 8));
        let mut done = 0;
        until_done(1, || {
            house.lane.poll();
            done += guest.completed(source).len();
            done
        });
    };
    send(&mut house, 0);
    assert!(!watch.is_signalled(), "nobody waits");
    for chunk in 1..100 {
        watch.arm();
        send(&mut house, chunk);
        assert!(watch.bell.is_idle());
        assert_eq!(watch.take(), 1);
        send(&mut house, chunk);
        assert!(!watch.is_signalled(), "nobody waits any more");
    }
}

#[test]
fn who_has_waited_before_there_was_a_descriptor_is_told_with_it() {
    let mut house = house();
    let guest = house.guest(1, 1 << 20, &no_limits());
    let watch = Watch::new(&guest);
    watch.arm();
    house.settle();
    assert_eq!(watch.take(), 1);
}

#[test]
fn a_slow_sink_that_gives_back_what_a_reliable_source_waits_for_makes_it_told() {
    let mut house = house();
    let mut writer = house.guest(1, 1 << 20, &no_limits());
    let mut reader = house.guest(2, 1 << 20, &no_limits());
    let sink = reader.sink(7, 4);
    let source = writer.reliable_source(7, WAITS);
    let watch = Watch::new(&writer);
    house.settle();
    let mut done = 0;
    for chunk in 0..64 {
        assert!(writer.emit(source, chunk, 8));
    }
    // As far as the sink has room.
    for _ in 0..100 {
        house.lane.poll();
        done += writer.completed(source).len();
    }
    assert_eq!(done, 4);
    let mut received = 0;
    takt_testing::until("all have arrived", || {
        watch.arm();
        house.lane.poll();
        let here = writer.completed(source).len();
        assert_eq!(
            here > 0,
            watch.take() > 0,
            "told of each, and of nothing else"
        );
        done += here;
        received += reader.receive(sink);
        (received.min(done) == 64).then_some(())
    });
}

#[test]
fn what_a_sink_of_its_own_session_gives_back_is_told() {
    let mut house = house();
    let mut guest = house.guest(1, 1 << 20, &no_limits());
    let sink = guest.sink(7, 8);
    let source = guest.source(7);
    let watch = Watch::new(&guest);
    house.settle();
    assert!(guest.emit(source, 0, 8));
    until_done(1, || {
        house.lane.poll();
        guest.waiting(sink) as usize
    });
    assert!(guest.completed(source).is_empty(), "the sink has it");
    watch.arm();
    assert_eq!(guest.receive(sink), 1);
    until_done(1, || {
        house.lane.poll();
        watch.take()
    });
    assert_eq!(guest.completed(source), [0]);
}

#[test]
fn a_newer_message_that_completes_one_of_the_session_is_told() {
    let mut house = house();
    let mut guest = house.guest(1, 1 << 20, &no_limits());
    let mut other = house.guest(2, 1 << 20, &no_limits());
    let block = {
        // Room for a sink of the newest message alone where one of all would be.
        let sink = guest.sink(8, 8);
        guest.blocks[sink.0]
    };
    guest.handle.send(Command::AddSink {
        session: guest.id,
        sink: SinkSlot(1),
        block: SinkBlock {
            offset: block.offset + (64 << 10),
            ..block
        },
        channel: ChannelId(7),
        notify: None,
        mode: SinkMode {
            latest: true,
            ..SinkMode::default()
        },
    });
    let (own, others) = (guest.source(7), other.source(7));
    let watch = Watch::new(&guest);
    house.settle();
    assert!(guest.emit(own, 0, 8));
    for _ in 0..10 {
        house.lane.poll();
    }
    assert!(guest.completed(own).is_empty(), "the sink has it");
    watch.arm();
    assert!(other.emit(others, 0, 8));
    until_done(1, || {
        house.lane.poll();
        watch.take()
    });
    assert_eq!(guest.completed(own), [0]);
}

#[test]
fn who_never_takes_its_signals_costs_the_lane_nothing() {
    let mut house = house();
    let mut hostile = house.guest(1, 1 << 20, &no_limits());
    let mut honest = house.guest(2, 1 << 20, &no_limits());
    let (theirs, ours) = (hostile.source(7), honest.source(8));
    let (full, watch) = (Watch::new(&hostile), Watch::new(&honest));
    house.settle();
    // Its socket has room for far fewer.
    for _ in 0..5_000 {
        full.arm();
        watch.arm();
        assert!(hostile.emit(theirs, 0, 8) && honest.emit(ours, 0, 8));
        let mut done = [0, 0];
        until_done(1, || {
            house.lane.poll();
            done[0] += hostile.completed(theirs).len();
            done[1] += honest.completed(ours).len();
            done[0].min(done[1])
        });
        assert_eq!(watch.take(), 1);
    }
    assert!(full.take() < 5_000, "its socket was full");
    assert!(!house.lane.state.tenants.has_failed());
}
