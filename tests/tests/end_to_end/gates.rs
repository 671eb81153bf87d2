//! Gates on the wire: what three classes send under load through windows of 100 µs to 1 ms, captured at the peer.
//!
//! A machine that is busy delays a lane at any moment, so no time is asserted. What holds however late a lane is:
//! a frame is in a window of its class from its first bit to its last, or it is the one frame that a lane had decided to
//! send before the gate closed. Then nothing has left since before that, and the lane counts it as an overrun.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use takt::{FrameOptions, FrameSource, Outcome, TaiTime, Token, TrafficClass};
use takt_clock::{Clock, SystemTai};
use takt_lab::{Capture, Captured};
use takt_schedule::Link;
use takt_wire::frame::{UdpFlow, parse_udp_frame};
use takt_wire::vxlan;
use taktd::admin::proto::{ClassDepartures, GateEntry, GateSchedule};

use crate::support::overlay::{emit, flow, frame, frames, lab, sections, station};
use crate::support::{Datapath, Node, attach, skip};
use takt_testing::until;

const US: i64 = 1_000;
const MS: i64 = 1_000 * US;
/// How long all gates are closed between two windows.
const PAUSE: i64 = 200 * US;
/// Windows of the schedules, in their order: the class, and how long its gate is open.
const FIRST: [Window; 3] = [(6, 100 * US), (5, 300 * US), (0, 1_000 * US)];
const SECOND: [Window; 3] = [(0, 400 * US), (6, 200 * US), (5, 100 * US)];
/// When the isochronous frames leave, from the beginning of a window.
const LAUNCH: i64 = 30 * US;
/// How many frames of each class are captured under each schedule at least.
const ENOUGH: u64 = 50;
/// How long each schedule runs at least.
const LEAST: i64 = 500 * MS;

type Window = (u8, i64);

/// When gates are open.
#[derive(Clone, Copy)]
struct Plan {
    begin: i64,
    windows: [Window; 3],
}

impl Plan {
    fn cycle(&self) -> i64 {
        self.windows.iter().map(|(_, open)| open + PAUSE).sum()
    }

    /// Beginning and end of a class's window in a cycle.
    fn window(&self, cycle: i64, class: u8) -> (i64, i64) {
        let mut at = self.begin + cycle * self.cycle();
        for (of, open) in self.windows {
            if of == class {
                return (at, at + open);
            }
            at += open + PAUSE;
        }
        panic!("a class of the schedule");
    }

    /// The latest window of a class that had begun at `at`; `None`: none had.
    fn latest(&self, class: u8, at: i64) -> Option<(i64, i64)> {
        let cycle = (at - self.begin).div_euclid(self.cycle());
        let begun = [cycle, cycle - 1].into_iter().filter(|cycle| *cycle >= 0);
        begun
            .map(|cycle| self.window(cycle, class))
            .find(|(open, _)| *open <= at)
    }

    fn schedule(&self) -> GateSchedule {
        let entry = |gates, ns: i64| GateEntry {
            gates,
            interval_ns: ns as u32,
        };
        let entries = self.windows.into_iter();
        GateSchedule {
            base_time_ns: self.begin,
            cycle_time_ns: self.cycle() as u64,
            entries: entries
                .flat_map(|(class, open)| [entry(1 << class, open), entry(0, PAUSE)])
                .collect(),
            initial_gates: Some(0),
            ..GateSchedule::default()
        }
    }
}

/// Two schedules, of which the second one takes over in the middle of a cycle of the first.
struct Plans {
    first: Plan,
    second: Plan,
}

impl Plans {
    /// The latest window of a class that had begun at `at`, under whichever schedule it was.
    fn latest(&self, class: u8, at: i64) -> Option<(i64, i64)> {
        let change = self.second.begin;
        let of_first = |at| {
            let (open, close) = self.first.latest(class, at)?;
            Some((open, close.min(change)))
        };
        match at < change {
            true => of_first(at),
            false => self
                .second
                .latest(class, at)
                .or_else(|| of_first(change - 1)),
        }
    }
}

/// What one class sends.
pub struct Talker {
    pub class: u8,
    pub source: FrameSource,
    pub flow: UdpFlow,
    /// Frames that are under way at a time, and the octets of each.
    pub most: usize,
    pub length: usize,
    pub pending: VecDeque<(u64, Token)>,
    /// Of each frame, when the runtime had handed it over: the low half, as the runtime tells it.
    pub departed: Vec<Option<i32>>,
    pub sent: u64,
    /// The last instant that was given to a frame.
    pub launch: i64,
}

impl Talker {
    /// Numbers and class come first in each payload.
    pub fn emit(&mut self, launch: Option<TaiTime>) {
        let number = self.departed.len() as u64;
        let mut payload = vec![0; self.length];
        payload[0] = self.class;
        payload[1..9].copy_from_slice(&number.to_le_bytes());
        payload[9..17].copy_from_slice(&launch.unwrap_or_default().as_nanos().to_le_bytes());
        let frame = frame(&self.flow, &payload);
        let options = FrameOptions {
            class: TrafficClass::new(self.class).expect("a class"),
            launch,
            deadline: false,
        };
        let token = emit(&self.source, &frame, &options);
        self.pending.push_back((number, token));
        self.departed.push(None);
    }

    /// As many as may be under way: isochronous ones for the next windows.
    fn emit_all(&mut self, plan: &Plan) {
        while self.pending.len() < self.most {
            if self.class != 6 {
                self.emit(None);
                continue;
            }
            let from = self.launch.max(SystemTai.now().as_nanos() + 5 * MS);
            let cycle = (from - plan.begin).div_euclid(plan.cycle()) + 1;
            let (open, _) = plan.window(cycle.max(0), 6);
            self.launch = open + LAUNCH;
            self.emit(Some(TaiTime::from_nanos(self.launch)));
        }
    }

    /// Notes what became of frames.
    pub fn settle(&mut self) {
        while let Some(&(number, token)) = self.pending.front() {
            match self.source.outcome(token) {
                Outcome::Pending => return,
                Outcome::Sent => {
                    let departed = self.source.departed(token, TaiTime::default());
                    self.departed[number as usize] = departed.map(|at| at.as_nanos() as i32);
                    self.sent += 1;
                }
                Outcome::Late => {}
                other => panic!("a frame of class {} was {other:?}", self.class),
            }
            self.pending.pop_front();
        }
    }
}

/// What came, read while it comes.
pub fn capture(capture: &Capture, stop: &AtomicBool) -> Vec<Captured> {
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

/// A frame as it was captured.
pub struct Arrived {
    pub class: u8,
    pub number: u64,
    pub launch: i64,
    /// The mark on the outer header.
    pub mark: u8,
    /// Octets from the destination address on.
    pub length: u32,
    /// When its first bit was at the peer.
    pub at: i64,
}

/// `None`: not ours.
pub fn read(captured: &Captured, offset: i64) -> Option<Arrived> {
    let frame = &captured.frame;
    let outer = parse_udp_frame(frame, false).ok()?;
    let inner = outer.payload.get(vxlan::HEADER_LEN..)?;
    let payload = parse_udp_frame(inner, false).ok()?.payload;
    let word = |at: usize| Some(u64::from_le_bytes(*payload.get(at..)?.first_chunk()?));
    Some(Arrived {
        class: payload[0],
        number: word(1)?,
        launch: word(9)? as i64,
        mark: frame[15],
        length: frame.len() as u32,
        at: captured.realtime_ns + offset,
    })
}

/// What CLOCK_TAI is ahead of the clock of the stamps: whole seconds.
pub fn tai_offset() -> i64 {
    let realtime = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    let ahead = SystemTai.now().as_nanos() - realtime.as_nanos() as i64;
    (ahead + 500 * MS).div_euclid(1000 * MS) * 1000 * MS
}

/// What was outside of windows.
#[derive(Clone, Copy, Default)]
struct Overruns {
    /// Captured outside.
    captured: u64,
    /// Handed over by an instant at which they were outside, or else perhaps a whole cycle late.
    possible: u64,
}

/// Checks every frame against its window; what was outside, by class. `departed`: when the runtime had handed over a frame of
/// a class with a number, the low half.
fn check(
    plans: &Plans,
    arrived: &[Arrived],
    departed: impl Fn(u8, u64) -> Option<i32>,
) -> [Overruns; 8] {
    let link = Link::ethernet(1_000_000_000);
    let mut overruns = [Overruns::default(); 8];
    let mut next = [0u64; 8];
    let mut before = i64::MIN;
    for frame in arrived {
        let Arrived {
            class, number, at, ..
        } = *frame;
        let name = format!("class {class}, number {number}");
        let departed = departed(class, number)
            .unwrap_or_else(|| panic!("{name}: captured, and not told as sent"));
        let departed = at + i64::from(departed.wrapping_sub(at as i32));
        assert!(at >= before, "{name}: stamps go back");
        assert!(
            at <= departed,
            "{name}: told {} ns too early",
            at - departed
        );
        assert!(
            at >= frame.launch,
            "{name}: {} ns before its time",
            frame.launch - at
        );
        let in_order = &mut next[usize::from(class)];
        assert!(number >= *in_order, "{name}: out of order");
        *in_order = number + 1;

        let takes = link.transmission_ns(frame.length) as i64;
        let (open, close) = plans
            .latest(class, at)
            .unwrap_or_else(|| panic!("{name}: before its first window"));
        // The last instant of a window at which it may start.
        let last = close - takes;
        let overruns = &mut overruns[usize::from(class)];
        if at > last {
            assert!(
                before <= last,
                "{name}: {} us after its window of {} us opened, {} us after another frame: its gate was closed",
                (at - open) / US,
                (close - open) / US,
                (at - before) / US,
            );
            overruns.captured += 1;
        }
        // The lane may have been away from the window before this one on, if nothing has left since.
        let window_before = plans.latest(class, open - 1);
        let away = window_before.is_some_and(|(_, close)| before <= close - takes);
        overruns.possible += u64::from(departed > last || away);
        before = at;
    }
    overruns
}

fn every_frame_arrives_in_its_window(datapath: Datapath, lanes: &str) {
    if skip() {
        return;
    }
    let lab = lab(2);
    let (here, there) = (lab.container(0, 0), lab.container(1, 0));
    let sections = sections(here, &station(there, lab.host(1)), datapath);
    let sections = format!("{lanes}{sections}");
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
            departed: Vec::new(),
            sent: 0,
            launch: 0,
        }
    });
    let now = || SystemTai.now().as_nanos();
    let mut install = |windows, begin| {
        let plan = Plan { begin, windows };
        let begin = admin.install_schedule(datapath.name(), plan.schedule());
        Plan { begin, ..plan }
    };
    let stop = AtomicBool::new(false);
    let (plans, captured) = std::thread::scope(|scope| {
        let captured = scope.spawn(|| capture(&at_peer, &stop));
        let mut send_under = |plan: &Plan, least: i64| {
            let before: [u64; 3] = talkers.each_ref().map(|talker| talker.sent);
            until("enough of each class has left", || {
                let end = now() + 100 * MS;
                while now() < end {
                    for talker in &mut talkers {
                        talker.settle();
                        talker.emit_all(plan);
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
                let all = talkers.iter().zip(before);
                let enough = all
                    .into_iter()
                    .all(|(talker, before)| talker.sent >= before + ENOUGH);
                (enough && now() > least).then_some(())
            });
        };
        let first = install(FIRST, 0);
        send_under(&first, first.begin + LEAST);
        // In the middle of a window for best effort, so far ahead that it is not over when it is asked for.
        let cycle = (now() - first.begin).div_euclid(first.cycle()) + 200_000 * US / first.cycle();
        let change = first.window(cycle, 0).0 + 500 * US;
        let second = install(SECOND, change);
        assert!(
            (second.begin - change) % second.cycle() == 0,
            "as asked for"
        );
        send_under(&first, second.begin);
        send_under(&second, second.begin + LEAST);
        for talker in &mut talkers {
            until("everything has left", || {
                talker.settle();
                talker.pending.is_empty().then_some(())
            });
        }
        stop.store(true, Ordering::Release);
        (
            Plans { first, second },
            captured.join().expect("the capture"),
        )
    });

    let offset = tai_offset();
    let arrived: Vec<Arrived> = captured
        .iter()
        .filter_map(|one| read(one, offset))
        .collect();
    let departed = |class, number: u64| {
        let talker = talkers.iter().find(|talker| talker.class == class)?;
        talker.departed[number as usize]
    };
    let outside = check(&plans, &arrived, departed);
    let told = admin.schedule(datapath.name());
    assert_eq!(told.changes, 2);
    for talker in &talkers {
        let class = usize::from(talker.class);
        let of = |frame: &&Arrived| frame.class == talker.class;
        let (first, second): (Vec<_>, Vec<_>) = arrived
            .iter()
            .filter(of)
            .partition(|frame| frame.at < plans.second.begin);
        let (counted, Overruns { captured, possible }) = (&told.classes[class], outside[class]);
        eprintln!(
            "{datapath:?}, class {class}: {} and {} frames, {captured} on the wire when their gate closed, {} counted, \
             {possible} possible",
            first.len(),
            second.len(),
            counted.overruns
        );
        assert!(
            !first.is_empty() && !second.is_empty(),
            "class {class} under each schedule"
        );
        if datapath == Datapath::Xdp {
            let mark = talker.class << 5;
            assert!(
                first.iter().chain(&second).all(|frame| frame.mark == mark),
                "its class selector"
            );
        }
        // What is outside is counted, and nothing else is.
        assert!(
            (captured..=possible).contains(&counted.overruns),
            "class {class}"
        );
        // Nothing is lost without a counter.
        let emitted = talker.departed.len() as u64;
        assert_eq!(
            (first.len() + second.len()) as u64,
            talker.sent,
            "class {class}: all that was sent came"
        );
        let ClassDepartures { sent, offered, .. } = *counted;
        assert_eq!((sent, offered), (talker.sent, emitted), "class {class}");
    }
}

#[test]
fn every_frame_arrives_in_its_window_through_a_change_of_schedule_over_kernel_udp() {
    every_frame_arrives_in_its_window(Datapath::Udp, "");
}

#[test]
fn every_frame_arrives_in_its_window_through_a_change_of_schedule_over_af_xdp() {
    every_frame_arrives_in_its_window(Datapath::Xdp, "");
}

/// Applications are spread over the lanes; a link with a schedule has one queue, of one lane.
#[test]
fn every_frame_arrives_in_its_window_at_a_node_of_two_lanes() {
    const LANES: &str = "[[lane]]\n[[lane]]\n[datapath.udp]\nlanes = [1]\n";
    every_frame_arrives_in_its_window(Datapath::Udp, LANES);
}

/// Frames of 60 octets of a class at some instants of the first schedule, each told as departed when it was captured.
fn check_instants(class: u8, instants: &[i64]) -> Overruns {
    let plan = |begin, windows| Plan { begin, windows };
    let plans = Plans {
        first: plan(0, FIRST),
        second: plan(1_000 * MS, SECOND),
    };
    let arrived = instants.iter().zip(0..).map(|(at, number)| Arrived {
        class,
        number,
        launch: 0,
        mark: 0,
        length: 60,
        at: *at,
    });
    let departed = |_, number: u64| Some(instants[number as usize] as i32);
    check(&plans, &arrived.collect::<Vec<_>>(), departed)[usize::from(class)]
}

#[test]
fn a_frame_that_was_decided_on_in_time_and_left_late_is_an_overrun() {
    // Class 5 is open from 300 to 600 µs; a frame takes 576 ns.
    let in_time = check_instants(5, &[300 * US, 350 * US, 600 * US - 576]);
    assert_eq!((in_time.captured, in_time.possible), (0, 0));
    for late in [600 * US - 575, 640 * US, 1_990 * US, 2_100 * US] {
        let late = check_instants(5, &[350 * US, late]);
        assert_eq!((late.captured, late.possible), (1, 1));
    }
    // A whole cycle later nothing tells whether it was decided on before.
    let away = check_instants(5, &[350 * US, 2_350 * US]);
    assert_eq!((away.captured, away.possible), (0, 1));
}

#[test]
#[should_panic(expected = "its gate was closed")]
fn a_gate_that_does_not_close_is_found_out() {
    check_instants(5, &[590 * US, 602 * US, 614 * US]);
}

#[test]
#[should_panic(expected = "its gate was closed")]
fn a_gate_that_opens_early_is_found_out() {
    check_instants(5, &[590 * US, 2_280 * US, 2_295 * US, 2_310 * US]);
}

#[test]
#[should_panic(expected = "before its first window")]
fn a_frame_before_the_first_window_is_found_out() {
    check_instants(5, &[290 * US]);
}
