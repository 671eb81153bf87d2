//! What a node says of departures, beside a capture at the other end of the cable: also of a time in which its daemon did not run.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use takt::TaiTime;
use takt_clock::{Clock, SystemTai};
use takt_lab::Capture;
use takt_testing::until;
use taktd::admin::proto::{GateEntry, GateSchedule};

use crate::gates::{Arrived, Talker, capture, read, tai_offset};
use crate::kills::signal;
use crate::support::overlay::{flow, frames, lab, sections, station};
use crate::support::{Datapath, Node, attach, skip};

const MS: i64 = 1_000_000;
const CLASS: u8 = 6;
const FRAMES: usize = 100;
/// From one launch time to the next, and before the first one.
const EVERY: i64 = 5 * MS;
const AHEAD: i64 = 500 * MS;
/// The daemon does not run from the launch time of a frame on until that of another.
const STOPPED: (i64, i64) = (20, 80);

/// Gates that are all open at all times.
fn open() -> GateSchedule {
    GateSchedule {
        cycle_time_ns: MS as u64,
        entries: vec![GateEntry {
            gates: 0xff,
            interval_ns: MS as u32,
        }],
        ..GateSchedule::default()
    }
}

/// In which bucket of a class's errors a lateness is.
fn bucket(lateness: i64, buckets: usize) -> usize {
    let lateness = u64::try_from(lateness).expect("not before its launch time");
    let bits = u64::BITS - lateness.leading_zeros();
    (bits as usize).min(buckets - 1)
}

fn what_is_told_of_lateness_is_what_a_capture_shows(datapath: Datapath) {
    if skip() {
        return;
    }
    let lab = lab(2);
    let (here, there) = (lab.container(0, 0), lab.container(1, 0));
    let sections = sections(here, &station(there, lab.host(1)), datapath);
    let node = Node::start(lab.host(0), &[], &sections);
    let mut admin = node.admin();
    admin.install_schedule(datapath.name(), open());
    let at_peer = Capture::open(lab.host(1)).expect("a capture");
    let session = attach(&node, "talker");
    let mut talker = Talker {
        class: CLASS,
        source: frames(&session, datapath),
        flow: flow(here, there, there.mac()),
        most: FRAMES,
        length: 100,
        pending: VecDeque::new(),
        departed: Vec::new(),
        sent: 0,
        launch: 0,
    };
    let until_tai = |instant: i64| {
        let left = instant - SystemTai.now().as_nanos();
        std::thread::sleep(Duration::from_nanos(left.max(0) as u64));
    };
    let stop = AtomicBool::new(false);
    let (begin, captured) = std::thread::scope(|scope| {
        let captured = scope.spawn(|| capture(&at_peer, &stop));
        let begin = SystemTai.now().as_nanos() + AHEAD;
        for number in 0..FRAMES as i64 {
            talker.emit(Some(TaiTime::from_nanos(begin + number * EVERY)));
        }
        until_tai(begin + STOPPED.0 * EVERY);
        signal(node.pid(), Signal::STOP);
        until_tai(begin + STOPPED.1 * EVERY);
        signal(node.pid(), Signal::CONT);
        until("everything has left", || {
            talker.settle();
            talker.pending.is_empty().then_some(())
        });
        stop.store(true, Ordering::Release);
        (begin, captured.join().expect("the capture"))
    });
    let offset = tai_offset();
    let arrived: Vec<Arrived> = captured
        .iter()
        .filter_map(|frame| read(frame, offset))
        .collect();
    assert_eq!(arrived.len(), FRAMES, "each comes once");

    let told = admin.schedule(datapath.name());
    let told = &told.classes[usize::from(CLASS)];
    let buckets = told.error_buckets.len();
    let mut of_frames = vec![0u64; buckets];
    let mut on_the_wire = vec![0u64; buckets];
    for frame in &arrived {
        let launch = begin + frame.number as i64 * EVERY;
        assert_eq!(frame.launch, launch);
        let departed = talker.departed[frame.number as usize].expect("its departure is told");
        // Only the low half is told.
        let after = i64::from(departed.wrapping_sub(frame.at as i32));
        of_frames[bucket(frame.at + after - launch, buckets)] += 1;
        on_the_wire[bucket(frame.at - launch, buckets)] += 1;
    }
    eprintln!(
        "{datapath:?}: told {:?}, on the wire {on_the_wire:?}",
        told.error_buckets
    );
    assert_eq!(
        told.error_buckets, of_frames,
        "all frames' together are those of each"
    );
    // It is told when a frame has been handed over: what is late on the wire is told as late, and besides at most the frame of which the daemon was
    // about to tell when it was stopped. A busy machine has 67 ms between the one and the other.
    let later_than = |counts: &[u64], bits: usize| counts[bits + 1..].iter().sum::<u64>();
    let late = later_than(&on_the_wire, 27);
    assert!(late > 0, "the daemon did not run");
    let (least, most) = (later_than(&of_frames, 27), later_than(&of_frames, 26));
    assert!(
        late <= most,
        "{late} were late by 134 ms, {most} are told as late by 67"
    );
    let wire = later_than(&on_the_wire, 26);
    assert!(
        least <= wire + 1,
        "{least} are told as late by 134 ms, {wire} were late by 67"
    );
}

#[test]
fn what_is_told_of_lateness_is_what_a_capture_shows_over_kernel_udp() {
    what_is_told_of_lateness_is_what_a_capture_shows(Datapath::Udp);
}

#[test]
fn what_is_told_of_lateness_is_what_a_capture_shows_over_af_xdp() {
    what_is_told_of_lateness_is_what_a_capture_shows(Datapath::Xdp);
}
