//! Random cases.
//!
//! What Linux's taprio does in another way on purpose is left out of them; `docs/concepts/schedule.md`
//! has the table. Where the time that the kernel itself takes could decide, there is a margin.

use fastrand::Rng;
use takt_oracle::{Case, Frame, KEPT_FROM, Kind};
use takt_schedule::form::{Document, Form, PriorityMap, QueueRange, TaprioOptions, write};
use takt_schedule::{GateEntry, GateMask, Gates, Schedule};
use takt_time::TaiTime;

use crate::model::{self, DELTA_NS, Device, FAST, SLOW, at, class};

const US: i64 = 1_000;
const MS: i64 = 1_000_000;
/// More than the kernel needs for anything.
pub const MARGIN_NS: i64 = 300 * US;
/// By when Takt's datapath has handed a frame over: its first calls are slow.
pub const HANDED_OVER_NS: i64 = 2 * MARGIN_NS;
/// By when every frame of a case of [`Kind::Order`] is sent: its gates open a little later.
pub const ORDER_SENT_NS: i64 = 10 * MS + ORDER_CLOSED_NS - MARGIN_NS;
const ORDER_CLOSED_NS: i64 = 8 * MS;
/// More than a command needs.
const COMMAND_NS: i64 = 80 * MS;
/// Where simulations while making cases begin.
const EPOCH: i64 = 1_700_000_000 * 1_000 * MS;

/// What the guest can.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// Its `tc` knows `max-sdu`.
    pub max_sdu: bool,
    /// Its taprio keeps frames within a last entry that the cycle cuts.
    pub cut: bool,
}

/// The cases of a seed: a probe, and then so many of each kind.
pub fn cases(seed: u64, each: usize, guest: Guest) -> Vec<Case> {
    let mut rng = Rng::with_seed(seed);
    let mut cases = vec![probe()];
    for number in 0..each {
        let device = if number % 3 == 2 { FAST } else { SLOW };
        cases.push(windows(&mut rng, device, guest));
        cases.push(order(&mut rng));
        cases.push(change(&mut rng, guest));
        cases.push(launch(&mut rng));
        cases.push(crowd(&mut rng));
        cases.push(deadline(&mut rng));
        cases.push(launch_in_windows(&mut rng, guest));
    }
    for number in 0..each {
        cases.push(datapath(&mut rng, number % 2 == 1));
        cases.push(missed(&mut rng));
    }
    cases
}

fn taprio(device: Device, schedule: &Schedule, classes: usize) -> String {
    let document = Document {
        interface: Some(device.name.into()),
        schedule: schedule.clone(),
        priorities: Some(PriorityMap {
            classes: classes as u8,
            class_of: std::array::from_fn(|priority| match priority < classes {
                true => priority as u8,
                false => 0,
            }),
        }),
        taprio: Some(TaprioOptions {
            handle: Some("100:".into()),
            queues: (0..classes as u16)
                .map(|offset| QueueRange { count: 1, offset })
                .collect(),
            ..TaprioOptions::default()
        }),
    };
    let written = write(Form::Taprio, &document).expect("what taprio can say");
    assert_eq!(written.lost, Vec::<String>::new());
    written.text.replace('\n', " ")
}

fn case(kind: Kind, device: Device, setup: Vec<String>, frames: Vec<Frame>) -> Case {
    let last = frames
        .iter()
        .map(|f| f.launch_ns.unwrap_or(0).max(f.at_ns))
        .max();
    Case {
        kind,
        device: device.name.into(),
        capture: device.capture.into(),
        setup,
        later: Vec::new(),
        frames,
        run_ns: last.unwrap_or(0) + 50 * MS,
    }
}

fn frame(at_ns: i64, priority: usize, len: usize) -> Frame {
    Frame {
        at_ns,
        priority: priority as u32,
        len,
        launch_ns: None,
        deadline: false,
    }
}

/// Two frames of two classes behind closed gates that open at once.
fn probe() -> Case {
    let schedule = Schedule {
        base_time: TaiTime::from_nanos(10 * MS),
        cycle_time_ns: 10 * MS as u64,
        entries: vec![
            GateEntry::new(GateMask::NONE, 5 * MS as u32),
            GateEntry::new(GateMask::from_bits(3), 5 * MS as u32),
        ],
        ..Schedule::default()
    };
    let frames = vec![frame(11 * MS, 0, 100), frame(12 * MS, 1, 100)];
    case(Kind::Probe, SLOW, vec![taprio(SLOW, &schedule, 2)], frames)
}

/// Entries; `apart` leaves no gate open from one entry to the next, where old kernels have a guard band
/// for each entry.
fn entries(rng: &mut Rng, classes: usize, count: usize, apart: bool) -> Vec<GateEntry> {
    loop {
        let all = ((1u16 << classes) - 1) as u8;
        let mut entries: Vec<GateEntry> = Vec::new();
        for _ in 0..count {
            let taken = entries.last().map_or(0, |entry| entry.gates.bits());
            let gates = rng.u8(..) & all & if apart { !taken } else { 0xff };
            let interval = rng.i64(MS..5 * MS) as u32;
            entries.push(GateEntry::new(GateMask::from_bits(gates), interval));
        }
        let meet = count > 1 && entries[0].gates.bits() & entries[count - 1].gates.bits() != 0;
        let any = entries.iter().any(|entry| entry.gates.bits() != 0);
        if any && !(apart && meet) {
            return entries;
        }
    }
}

fn schedule(rng: &mut Rng, classes: usize, apart: bool, guest: Guest) -> Schedule {
    let count = rng.usize(2..6);
    let entries = entries(rng, classes, count, apart);
    let sum: i64 = entries
        .iter()
        .map(|entry| i64::from(entry.interval_ns))
        .sum();
    let last = i64::from(entries[count - 1].interval_ns);
    // The cycle may cut its last entry.
    let cut = if guest.cut && rng.bool() {
        rng.i64(0..last / 2)
    } else {
        0
    };
    Schedule {
        base_time: TaiTime::from_nanos(rng.i64(-50 * MS..20 * MS)),
        cycle_time_ns: (sum - cut) as u64,
        entries,
        ..Schedule::default()
    }
}

fn later(schedule: &Schedule) -> Schedule {
    Schedule {
        base_time: schedule.base_time.saturating_add_nanos(EPOCH),
        ..schedule.clone()
    }
}

/// Random lengths that no interval is only just long enough for.
fn length(rng: &mut Rng, device: Device, schedules: &[&Schedule]) -> usize {
    loop {
        let len = rng.usize(60..1514);
        let needs = model::link(device).transmission_ns(len as u32) as i64;
        let close = schedules.iter().any(|schedule| {
            let slots = takt_schedule::window::slots(schedule);
            let mut lengths = slots.iter().map(|slot| slot.length_ns as i64);
            lengths.any(|length| (0..MARGIN_NS).contains(&(length - needs)))
        });
        if !close {
            return len;
        }
    }
}

/// Frames one at a time: each is sent when the one before must have left.
struct Plan<'a> {
    gates: &'a Gates,
    device: Device,
    /// When the next frame may be sent.
    next: i64,
    /// Classes whose first frame never leaves.
    stuck: Vec<usize>,
    /// Whether to send such a frame at all.
    may_stick: bool,
    frames: Vec<Frame>,
}

impl Plan<'_> {
    /// Plans a frame, unless it would be under way between `avoid.0` and `avoid.1`.
    fn frame(&mut self, rng: &mut Rng, classes: usize, len: usize, avoid: (i64, i64), cycle: i64) {
        let sent = self.next + rng.i64(MARGIN_NS..MARGIN_NS + 2 * cycle);
        let of = rng.usize(0..classes);
        if self.stuck.contains(&of) {
            return;
        }
        let needs = model::link(self.device).transmission_ns(len as u32);
        let leaves = |sent| self.gates.open_for(class(of), at(EPOCH + sent), needs);
        // A frame sent a little later than planned may have missed its window.
        let (Some(_), Some(leaves)) = (leaves(sent), leaves(sent + MARGIN_NS)) else {
            // The kernel keeps it for ever and everything of its class behind it.
            if self.may_stick && avoid.1 < sent {
                self.stuck.push(of);
                self.frames.push(frame(sent, of, len));
                self.next = sent;
            }
            return;
        };
        let gone = leaves.as_nanos() - EPOCH + needs as i64;
        if sent - MARGIN_NS < avoid.1 && avoid.0 < gone + MARGIN_NS {
            self.next = avoid.1;
            return;
        }
        self.frames.push(frame(sent, of, len));
        self.next = gone;
    }
}

fn windows(rng: &mut Rng, device: Device, guest: Guest) -> Case {
    let classes = rng.usize(2..9);
    let apart = device.rate_bps == SLOW.rate_bps;
    let mut schedule = schedule(rng, classes, apart, guest);
    if guest.max_sdu && rng.bool() {
        schedule.max_sdu[rng.usize(0..classes)] = rng.u32(100..1400);
    }
    let gates = model::gates(&later(&schedule), EPOCH - 100 * MS);
    // Before a first schedule the kernel looks at no gate to come; we do (8.6.8.4, note 2).
    let begins = schedule.base_time.as_nanos();
    let avoid = match begins > 0 {
        true => (begins - 2 * MS, begins + MARGIN_NS),
        false => (0, 0),
    };
    let mut plan = Plan {
        gates: &gates,
        device,
        next: 0,
        stuck: Vec::new(),
        may_stick: true,
        frames: Vec::new(),
    };
    for _ in 0..40 {
        let len = length(rng, device, &[&schedule]);
        plan.frame(rng, classes, len, avoid, schedule.cycle_time_ns as i64);
    }
    case(
        Kind::Windows,
        device,
        vec![taprio(device, &schedule, classes)],
        plan.frames,
    )
}

fn order(rng: &mut Rng) -> Case {
    let classes = rng.usize(2..6);
    let count = rng.usize(1..5);
    let (entries, len) = loop {
        let mut entries = vec![GateEntry::new(GateMask::NONE, ORDER_CLOSED_NS as u32)];
        entries.extend(self::entries(rng, classes, count, true));
        let schedule = Schedule {
            cycle_time_ns: 1,
            ..Schedule::default()
        };
        let len = length(rng, SLOW, &[&schedule]);
        let needs = model::link(SLOW).transmission_ns(len as u32) as i64;
        // Every class has a window for a frame: nothing is left in the end.
        let has_room = |number: usize| {
            let open = entries
                .iter()
                .filter(|entry| entry.gates.is_open(class(number)));
            open.clone().count() > 0
                && open
                    .clone()
                    .all(|entry| i64::from(entry.interval_ns) > needs + MARGIN_NS)
        };
        if (0..classes).all(has_room) {
            break (entries, len);
        }
    };
    let cycle: i64 = entries
        .iter()
        .map(|entry| i64::from(entry.interval_ns))
        .sum();
    let schedule = Schedule {
        base_time: TaiTime::from_nanos(10 * MS),
        cycle_time_ns: cycle as u64,
        entries,
        ..Schedule::default()
    };
    let frames: Vec<Frame> = (0..rng.usize(10..40))
        .map(|number| {
            let sent = 10 * MS + 500 * US + number as i64 * 100 * US;
            frame(sent, rng.usize(0..classes), len)
        })
        .collect();
    let mut case = case(
        Kind::Order,
        SLOW,
        vec![taprio(SLOW, &schedule, classes)],
        frames,
    );
    // A cycle lets at least one frame of each class go.
    case.run_ns = 10 * MS + cycle * (case.frames.len() as i64 + 2);
    case
}

fn change(rng: &mut Rng, guest: Guest) -> Case {
    let classes = rng.usize(2..6);
    let mut first = schedule(rng, classes, true, guest);
    first.base_time = TaiTime::from_nanos(rng.i64(-50 * MS..0));
    let mut second = schedule(rng, classes, true, guest);
    let asked = rng.i64(40 * MS..80 * MS);
    let done = asked + COMMAND_NS;
    let future = rng.bool();
    second.base_time = TaiTime::from_nanos(match future {
        true => done + rng.i64(10 * MS..60 * MS),
        false => rng.i64(-50 * MS..asked - MS),
    });
    let mut gates = model::gates(&later(&first), EPOCH - 100 * MS);
    gates.advance(at(EPOCH));
    let before = gates.clone();
    let changes = gates.install(model::list(&later(&second)), at(EPOCH + done));
    let changes = changes.map_or(0, TaiTime::as_nanos) - EPOCH;
    // The kernel changes when the entry begins in which the change falls, or, for a base time in the
    // past, with the entry after the request, and has the new first entry in force until then.
    let avoid = match future {
        true => (changes - 10 * MS, changes + MARGIN_NS),
        false => (asked - MARGIN_NS, changes + MARGIN_NS),
    };
    let mut plan = Plan {
        gates: &before,
        device: SLOW,
        next: 0,
        stuck: Vec::new(),
        may_stick: false,
        frames: Vec::new(),
    };
    let lengths = [&first, &second];
    while plan.next < avoid.0 {
        if plan.next > asked - 5 * MS && plan.next < done {
            plan.next = done;
        }
        let len = length(rng, SLOW, &lengths);
        let avoid = if plan.next < asked {
            (asked - MARGIN_NS, done.min(avoid.1))
        } else {
            avoid
        };
        plan.frame(rng, classes, len, avoid, first.cycle_time_ns as i64);
    }
    plan.next = avoid.1;
    plan.gates = &gates;
    for _ in 0..20 {
        let len = length(rng, SLOW, &lengths);
        plan.frame(rng, classes, len, (0, avoid.1), second.cycle_time_ns as i64);
    }
    let frames = std::mem::take(&mut plan.frames);
    let mut case = case(
        Kind::Change,
        SLOW,
        vec![taprio(SLOW, &first, classes)],
        frames,
    );
    case.later = vec![(asked, taprio(SLOW, &second, classes))];
    case
}

fn etf(device: Device, parent: &str, deadline: bool) -> String {
    let mode = if deadline { " deadline_mode" } else { "" };
    format!(
        "tc qdisc replace dev {} {parent} etf clockid CLOCK_TAI delta {DELTA_NS}{mode}",
        device.name
    )
}

fn launched(at_ns: i64, priority: usize, len: usize, launch_ns: i64) -> Frame {
    Frame {
        launch_ns: Some(launch_ns),
        ..frame(at_ns, priority, len)
    }
}

fn launch(rng: &mut Rng) -> Case {
    let mut sent = MS;
    let mut same = 0;
    let frames = (0..60)
        .map(|_| {
            sent += rng.i64(100 * US..800 * US);
            let launch = match rng.u8(0..8) {
                0 => sent - rng.i64(2 * MARGIN_NS..5 * MS),
                1 | 2 if same > sent + DELTA_NS + 2 * MARGIN_NS => same,
                _ => sent + DELTA_NS + rng.i64(2 * MARGIN_NS..20 * MS),
            };
            same = same.max(launch);
            if rng.u8(0..4) == 0 {
                same = launch;
            }
            launched(sent, 0, rng.usize(60..1514), launch)
        })
        .collect();
    case(Kind::Launch, FAST, vec![etf(FAST, "root", false)], frames)
}

fn crowd(rng: &mut Rng) -> Case {
    let launch = 30 * MS + rng.i64(0..MS);
    let frames = (0..80)
        .map(|number| launched(MS + number * 200 * US, 0, rng.usize(60..1514), launch))
        .collect();
    case(Kind::Crowd, FAST, vec![etf(FAST, "root", false)], frames)
}

fn deadline(rng: &mut Rng) -> Case {
    let mut sent = MS;
    // The kernel refuses times before that of the last frame that has left; we do not.
    let mut last = 0;
    let frames = (0..40)
        .map(|_| {
            sent += rng.i64(200 * US..800 * US);
            let deadline = match rng.u8(0..4) {
                0 => sent - rng.i64(2 * MARGIN_NS..5 * MS),
                _ => {
                    last = last.max(sent + rng.i64(2 * MARGIN_NS..20 * MS));
                    last
                }
            };
            Frame {
                deadline: true,
                ..launched(sent, 0, rng.usize(60..1514), deadline)
            }
        })
        .collect();
    case(Kind::Deadline, FAST, vec![etf(FAST, "root", true)], frames)
}

fn launch_in_windows(rng: &mut Rng, guest: Guest) -> Case {
    let classes = rng.usize(2..6);
    let mut schedule = schedule(rng, classes, false, guest);
    schedule.base_time = TaiTime::from_nanos(rng.i64(-50 * MS..-20 * MS));
    let gates = model::gates(&later(&schedule), EPOCH - 100 * MS);
    let mut setup = vec![taprio(FAST, &schedule, classes)];
    for number in 1..=classes {
        setup.push(etf(FAST, &format!("parent 100:{number}"), false));
    }
    // Linux 6.1 stops the schedule when a class gets a queueing discipline: start it again.
    setup.push(setup[0].clone());
    let mut sent = MS;
    let frames = (0..60)
        .map(|_| {
            sent += rng.i64(100 * US..800 * US);
            let launch = loop {
                let launch = sent + DELTA_NS + rng.i64(2 * MARGIN_NS..20 * MS);
                // Not so near to the edge of a window that the kernel's own time decides.
                let edge = gates.next_event(at(EPOCH + launch - MARGIN_NS));
                if edge.is_none_or(|edge| edge > at(EPOCH + launch + MARGIN_NS)) {
                    break launch;
                }
            };
            launched(sent, rng.usize(0..classes), rng.usize(60..1514), launch)
        })
        .collect();
    case(Kind::LaunchInWindows, FAST, setup, frames)
}

/// An address and a neighbour that need no packet: etf would drop what resolves one.
fn addresses() -> Vec<String> {
    let device = FAST.name;
    vec![
        format!("ip address replace 10.88.0.1/24 dev {device}"),
        format!(
            "ip neighbour replace 10.88.0.2 lladdr 02:00:00:00:00:02 dev {device} nud permanent"
        ),
    ]
}

fn datapath(rng: &mut Rng, below: bool) -> Case {
    let mut setup = addresses();
    if below {
        let map = (0..16).map(|priority| match (KEPT_FROM..8).contains(&priority) {
            true => " 1",
            false => " 0",
        });
        setup.push(format!(
            "tc qdisc replace dev {} root handle 100: mqprio num_tc 2 map{} queues 1@0 1@1 hw 0",
            FAST.name,
            map.collect::<String>()
        ));
        setup.push(etf(FAST, "parent 100:2", false));
    } else {
        setup.push(etf(FAST, "root", false));
    }
    let mut sent = vec![MS];
    for number in 1..60 {
        sent.push(sent[number - 1] + rng.i64(500 * US..1_500 * US));
    }
    let frames = sent
        .iter()
        .map(|&at| {
            let (class, len) = (rng.usize(0..8), rng.usize(60..1514));
            match rng.u8(0..8) {
                0 => launched(at, class, len, at - rng.i64(2 * MARGIN_NS..5 * MS)),
                1 | 2 => frame(at, class, len),
                _ => loop {
                    let launch = at + rng.i64(2 * MARGIN_NS..20 * MS);
                    // A frame that leaves while another is handed over makes its time invalid, perhaps.
                    let handed_over = |sent: &i64| (*sent..sent + HANDED_OVER_NS).contains(&launch);
                    if !sent.iter().any(handed_over) {
                        break launched(at, class, len, launch);
                    }
                },
            }
        })
        .collect();
    case(Kind::Datapath, FAST, setup, frames)
}

fn missed(rng: &mut Rng) -> Case {
    let mut setup = addresses();
    // Its timer cannot be so exact.
    setup.push(format!(
        "tc qdisc replace dev {} root etf clockid CLOCK_TAI delta 1",
        FAST.name
    ));
    let mut sent = MS;
    let frames = (0..40)
        .map(|_| {
            sent += rng.i64(100 * US..800 * US);
            launched(sent, 5, 100, sent + rng.i64(2 * MARGIN_NS..5 * MS))
        })
        .collect();
    case(Kind::Missed, FAST, setup, frames)
}
