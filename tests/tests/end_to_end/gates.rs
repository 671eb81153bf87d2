//! Gates on the wire: what three classes send under load, captured at the peer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use takt::{FrameOptions, FrameSource, Outcome, TaiTime, Token, TrafficClass};
use takt_clock::{Clock, SystemTai};
use takt_lab::{Capture, Captured};
use takt_wire::frame::{UdpFlow, parse_udp_frame};
use takt_wire::vxlan;
use taktd::admin::proto::{GateEntry, GateSchedule};

use crate::support::overlay::{emit, flow, frame, frames, lab, sections, station};
use crate::support::{Datapath, Node, attach, skip};
use takt_testing::until;

const MS: i64 = 1_000_000;
/// How long a window is open, and how long all gates are closed after it. What leaves at the end of a
/// window may arrive in the pause: on a busy machine the way takes longer, but not as long as that.
const WINDOW: i64 = 30 * MS;
const PAUSE: i64 = 70 * MS;
const CYCLE: i64 = 3 * (WINDOW + PAUSE);
/// The classes, in the order of their windows in the first schedule and in the second.
const FIRST: [u8; 3] = [6, 5, 0];
const SECOND: [u8; 3] = [0, 6, 5];
/// When the second schedule begins, from the beginning of the first: in the middle of a window.
const CHANGE: i64 = 4 * CYCLE + WINDOW + PAUSE + WINDOW / 2;
/// When the isochronous frames leave, from the beginning of a window.
const LAUNCH: i64 = WINDOW / 3;

/// A window for each class; pauses come first in the second schedule, after each window in the first.
fn schedule(classes: [u8; 3], pause_first: bool, base_time_ns: i64) -> GateSchedule {
    let entry = |gates, ns: i64| GateEntry {
        gates,
        interval_ns: ns as u32,
    };
    let parts = classes.map(|class| {
        let (open, closed) = (entry(1 << class, WINDOW), entry(0, PAUSE));
        if pause_first {
            [closed, open]
        } else {
            [open, closed]
        }
    });
    GateSchedule {
        base_time_ns,
        cycle_time_ns: CYCLE as u64,
        entries: parts.concat(),
        initial_gates: Some(0),
        ..GateSchedule::default()
    }
}

/// When each window opens and for whom, in order: the first schedule from `begin` to `change`, the
/// second one after it.
fn windows(begin: i64, change: i64) -> Vec<(i64, u8)> {
    let of = |begin: i64, classes: [u8; 3], offset: i64| {
        (0..16 * 3).map(move |number| {
            let at = begin + offset + number * (WINDOW + PAUSE);
            (at, classes[number as usize % 3])
        })
    };
    of(begin, FIRST, 0)
        .filter(|(at, _)| *at < change)
        .chain(of(change, SECOND, PAUSE))
        .collect()
}

/// What one class sends.
struct Talker {
    class: u8,
    source: FrameSource,
    flow: UdpFlow,
    /// Frames that are under way at a time, and the octets of each.
    most: usize,
    length: usize,
    pending: VecDeque<Token>,
    number: u64,
    sent: u64,
    dropped: u64,
}

impl Talker {
    /// Numbers and class come first in each payload.
    fn emit(&mut self, launch: Option<TaiTime>) {
        let mut payload = vec![0; self.length];
        payload[0] = self.class;
        payload[1..9].copy_from_slice(&self.number.to_le_bytes());
        payload[9..17].copy_from_slice(&launch.unwrap_or_default().as_nanos().to_le_bytes());
        let frame = frame(&self.flow, &payload);
        let options = FrameOptions {
            class: TrafficClass::new(self.class).expect("a class"),
            launch,
            deadline: false,
        };
        let token = emit(&self.source, &frame, &options);
        self.pending.push_back(token);
        self.number += 1;
    }

    /// Notes what became of frames.
    fn settle(&mut self) {
        while let Some(&token) = self.pending.front() {
            match self.source.outcome(token) {
                Outcome::Pending => return,
                Outcome::Sent => self.sent += 1,
                Outcome::Late => self.dropped += 1,
                other => panic!("a frame of class {} was {other:?}", self.class),
            }
            self.pending.pop_front();
        }
    }
}

/// What came, read while it comes.
fn capture(capture: &Capture, stop: &AtomicBool) -> Vec<Captured> {
    let mut frames = Vec::new();
    loop {
        // Read once more after being told to stop: what has come is there.
        let last = stop.load(Ordering::Acquire);
        while let Some(frame) = capture
            .next(Duration::from_millis(100))
            .expect("it captures")
        {
            frames.push(frame);
        }
        if last {
            assert_eq!(capture.lost().expect("a count"), 0, "not all was captured");
            return frames;
        }
    }
}

/// Class, number and launch time of a captured frame, and the mark on the outer header; `None`: not ours.
fn read(frame: &[u8]) -> Option<(u8, u64, i64, u8)> {
    let outer = parse_udp_frame(frame, false).ok()?;
    let inner = outer.payload.get(vxlan::HEADER_LEN..)?;
    let payload = parse_udp_frame(inner, false).ok()?.payload;
    let word = |at: usize| Some(u64::from_le_bytes(*payload.get(at..)?.first_chunk()?));
    Some((payload[0], word(1)?, word(9)? as i64, frame[15]))
}

fn every_frame_arrives_in_its_window(datapath: Datapath) {
    if skip() {
        return;
    }
    let lab = lab(2);
    let (here, there) = (lab.container(0, 0), lab.container(1, 0));
    let sections = sections(here, &station(there, lab.host(1)), datapath);
    let node = Node::start(lab.host(0), &[], &sections);
    let mut admin = node.admin();
    let at_peer = Capture::open(lab.host(1)).expect("a capture");
    // An isochronous flow, audio-like trains of small frames, and all that best effort can.
    let mut talkers = [(6, 8, 100), (5, 32, 200), (0, 128, 1400)].map(|(class, most, length)| {
        let session = attach(&node, &format!("class {class}"));
        let source = frames(&session, datapath);
        Talker {
            class,
            source,
            flow: flow(here, there, there.mac()),
            most,
            length,
            pending: VecDeque::new(),
            number: 0,
            sent: 0,
            dropped: 0,
        }
    });
    let now = || SystemTai.now().as_nanos();
    let begin = admin.install_schedule(datapath.name(), schedule(FIRST, false, 0));
    let change = begin + CHANGE;
    let windows = windows(begin, change);
    let mut launches = windows
        .iter()
        .filter(|(_, class)| *class == 6)
        .map(|(at, _)| at + LAUNCH)
        .peekable();
    let stop = AtomicBool::new(false);
    let captured = std::thread::scope(|scope| {
        let captured = scope.spawn(|| capture(&at_peer, &stop));
        let mut second = Some(schedule(SECOND, true, change));
        let end = change + 4 * CYCLE;
        while now() < end {
            if now() > begin + 2 * CYCLE
                && let Some(second) = second.take()
            {
                let begins = admin.install_schedule(datapath.name(), second);
                assert_eq!(begins, change, "as asked for");
            }
            for talker in &mut talkers {
                talker.settle();
                if talker.class != 6 {
                    while talker.pending.len() < talker.most {
                        talker.emit(None);
                    }
                } else if let Some(&launch) = launches.peek()
                    && launch < now() + CYCLE
                {
                    talker.emit(Some(TaiTime::from_nanos(launch)));
                    launches.next();
                }
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        for talker in &mut talkers {
            until("everything has left", || {
                talker.settle();
                talker.pending.is_empty().then_some(())
            });
        }
        stop.store(true, Ordering::Release);
        captured.join().expect("the capture")
    });

    let offset = {
        // What CLOCK_TAI is ahead of the clock of the stamps: whole seconds.
        let realtime = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970");
        let ahead = now() - realtime.as_nanos() as i64;
        (ahead + 500 * MS).div_euclid(1000 * MS) * 1000 * MS
    };
    // By class: under the first schedule and under the second, and the next number.
    let mut counts = [[0u64; 2]; 8];
    let mut next = [0u64; 8];
    let mut after_close = 0;
    for Captured { realtime_ns, frame } in &captured {
        let Some((class, number, launch, mark)) = read(frame) else {
            continue;
        };
        let at = realtime_ns + offset;
        let opened = windows.partition_point(|(open, _)| *open <= at);
        let (open, of) = windows[opened
            .checked_sub(1)
            .expect("after the first window opened")];
        assert_eq!(
            of,
            class,
            "class {class}, number {number}, {} us after the window of class {of} opened",
            (at - open) / 1000
        );
        let close = match open < change && open + WINDOW > change {
            true => change,
            false => open + WINDOW,
        };
        after_close = after_close.max(at - close);
        assert!(at >= launch, "{} ns before its time", launch - at);
        assert!(number >= next[usize::from(class)], "out of order");
        next[usize::from(class)] = number + 1;
        counts[usize::from(class)][usize::from(at >= change)] += 1;
        if datapath == Datapath::Xdp {
            assert_eq!(mark, class << 5, "its class selector");
        }
    }
    eprintln!(
        "{datapath:?}: frames by class under both schedules: 6 {:?}, 5 {:?}, 0 {:?}; latest {} us after its window",
        counts[6],
        counts[5],
        counts[0],
        after_close / 1000
    );
    let link = admin.schedule(datapath.name());
    assert_eq!(link.changes, 2);
    for talker in &talkers {
        let class = usize::from(talker.class);
        let [first, second] = counts[class];
        assert!(first > 0 && second > 0, "class {class} under each schedule");
        // Nothing is lost without a counter.
        assert_eq!(
            first + second,
            talker.sent,
            "class {class}: all that was sent came"
        );
        let told = &link.classes[class];
        assert_eq!(told.sent, talker.sent);
        assert_eq!(told.offered, talker.sent + talker.dropped);
        assert_eq!(talker.number, talker.sent + talker.dropped);
    }
}

#[test]
fn every_frame_arrives_in_its_window_through_a_change_of_schedule_over_kernel_udp() {
    every_frame_arrives_in_its_window(Datapath::Udp);
}

#[test]
fn every_frame_arrives_in_its_window_through_a_change_of_schedule_over_af_xdp() {
    every_frame_arrives_in_its_window(Datapath::Xdp);
}
