//! `takt-schedule` set up as the kernel is: its devices, its idea of a frame's length, its classes.

use std::sync::Arc;

use takt_oracle::{Case, Frame};
use takt_schedule::discipline::{Accept, Fifo, LatePolicy, LaunchTime, LaunchTimeConfig};
use takt_schedule::form::{Document, Form, read};
use takt_schedule::port::TxFlags;
use takt_schedule::{
    Decision, Framing, GateEntry, GateList, GateMask, Gates, Item, Link, Port, PortConfig, Schedule,
};
use takt_time::{TaiTime, TrafficClass};

/// An interface of the guest.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub name: &'static str,
    /// Where its frames are captured.
    pub capture: &'static str,
    /// What taprio takes its rate to be.
    pub rate_bps: u64,
}

/// Says no rate, which taprio takes for 10 Mbit/s: a frame takes long.
pub const SLOW: Device = Device {
    name: "dummy0",
    capture: "dummy0",
    rate_bps: 10_000_000,
};

/// Says 10 Gbit/s: a frame takes hardly any time.
pub const FAST: Device = Device {
    name: "veth0",
    capture: "peer/veth1",
    rate_bps: 10_000_000_000,
};

pub fn device(case: &Case) -> Device {
    match case.device.as_str() {
        "dummy0" => SLOW,
        _ => FAST,
    }
}

/// The rate with nothing around the frame: taprio counts `skb->len` without a size table.
pub fn link(device: Device) -> Link {
    Link {
        framing: Framing {
            header: 14,
            preamble: 0,
            inserted: 0,
            check_sequence: 0,
            minimum: 0,
            gap: 0,
        },
        ..Link::ethernet(device.rate_bps)
    }
}

/// How ahead of its launch time etf sends (`delta`).
pub const DELTA_NS: i64 = 200_000;

pub fn class(number: usize) -> TrafficClass {
    TrafficClass::new(number as u8).expect("one of eight classes")
}

/// The document in a command line, its base time counted from `start`.
pub fn document(command: &str, start: i64) -> Document {
    let parsed = read(Form::Taprio, command, None).expect("a command line of our own");
    let mut document = parsed.document;
    document.schedule.base_time = document.schedule.base_time.saturating_add_nanos(start);
    document
}

pub fn list(schedule: &Schedule) -> Arc<GateList> {
    Arc::new(GateList::new(schedule).expect("a schedule that runs"))
}

/// Gates that run `schedule` since long ago, or from its base time on.
pub fn gates(schedule: &Schedule, now: i64) -> Gates {
    let mut gates = Gates::new(GateMask::ALL);
    gates.install(list(schedule), at(now));
    gates
}

pub fn at(nanos: i64) -> TaiTime {
    TaiTime::from_nanos(nanos)
}

/// The schedule with class 0 for the highest and so on.
pub fn mirrored(schedule: &Schedule, classes: usize) -> Schedule {
    let turned = |gates: GateMask| {
        (0..classes)
            .filter(|number| gates.is_open(class(*number)))
            .map(|number| class(classes - 1 - number))
            .collect()
    };
    Schedule {
        entries: schedule
            .entries
            .iter()
            .map(|entry| GateEntry::new(turned(entry.gates), entry.interval_ns))
            .collect(),
        max_sdu: std::array::from_fn(|number| match number < classes {
            true => schedule.max_sdu[classes - 1 - number],
            false => 0,
        }),
        ..schedule.clone()
    }
}

/// What a port does to frames that come at given times.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Frames that leave, in their order, each with its start.
    pub sent: Vec<(usize, i64)>,
    /// The others, with what their sender is told.
    pub lost: Vec<(usize, Option<takt_schedule::port::TxTimeError>)>,
}

/// A port whose classes are served first come, first served.
pub fn fifo_port(link: Link) -> Port<usize> {
    let mut port = Port::new(PortConfig {
        link,
        ..PortConfig::default()
    });
    for number in 0..TrafficClass::COUNT {
        let set = port.set_discipline(class(number), Fifo::new(4096));
        set.expect("an empty class");
    }
    port
}

/// A port whose classes are ordered by launch time, as etf orders them. Its link takes no time: the
/// kernel knows of none either.
pub fn launch_port(deadline: bool) -> Port<usize> {
    let mut port = Port::new(PortConfig {
        link: Link::ethernet(0),
        lead_ns: DELTA_NS as u64,
        ..PortConfig::default()
    });
    for number in 0..TrafficClass::COUNT {
        let discipline = LaunchTime::new(LaunchTimeConfig {
            capacity: 4096,
            accept: if deadline {
                Accept::DeadlineOnly
            } else {
                Accept::StrictOnly
            },
            late: LatePolicy::Drop,
            gate_missed: LatePolicy::Drop,
            tolerance_ns: 0,
            horizon_ns: 60_000_000_000,
        });
        let set = port.set_discipline(class(number), discipline);
        set.expect("an empty class");
    }
    port
}

/// The frame as a port takes it.
pub fn item(number: usize, frame: &Frame, start: i64) -> Item<usize> {
    let item = Item::new(frame.len as u32, number);
    let Some(launch) = frame.launch_ns else {
        return item;
    };
    let item = item.at(at(start + launch)).with(TxFlags::REPORT_ERRORS);
    match frame.deadline {
        true => item.with(TxFlags::DEADLINE),
        false => item,
    }
}

/// Lets a port work until `end`. Frames come at their times, each in its class.
pub fn run(
    port: &mut Port<usize>,
    arrivals: &[(i64, TrafficClass, Item<usize>)],
    end: i64,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut arrivals = arrivals.iter().peekable();
    let mut now = arrivals.peek().map_or(end, |(at, _, _)| *at);
    while now <= end {
        while let Some((_, class, item)) = arrivals.next_if(|(at, _, _)| *at <= now) {
            if let Err(refused) = port.enqueue(*class, *item, at(now)) {
                outcome.lost.push((refused.item.handle, refused.error));
            }
        }
        let until = loop {
            match port.next(at(now)) {
                Decision::Send(departure) => {
                    let start = departure.start.as_nanos();
                    outcome.sent.push((departure.item.handle, start));
                }
                Decision::Drop(dropped) => {
                    outcome.lost.push((dropped.item.handle, dropped.error));
                }
                Decision::WaitUntil(until) => break until.as_nanos(),
                Decision::Idle => break i64::MAX,
            }
        };
        let arrival = arrivals.peek().map_or(i64::MAX, |(at, _, _)| *at);
        now = until.min(arrival);
    }
    outcome
}
