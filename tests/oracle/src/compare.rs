//! What the kernel did beside what `takt-schedule` does.

use takt_oracle::{Case, Kind, Observed, Report};
use takt_schedule::port::TxTimeError;
use takt_schedule::{Gates, Schedule};
use takt_time::TrafficClass;

use crate::make::{HANDED_OVER_NS, MARGIN_NS, ORDER_SENT_NS};
use crate::model::{self, DELTA_NS, Outcome, at, class};

/// How far behind the kernel may be: an interrupt, a soft interrupt and a driver.
const SLACK_NS: i64 = 200_000;
/// How long the kernel may be interrupted between taking a frame out of etf, which is when etf looks at
/// the time, and sending it.
const INTERRUPTED_NS: i64 = 1_000_000;

/// How far ahead the datapath asks for what has no launch time or has passed it.
const HAND_OVER_NS: i64 = 20_000;

/// What a comparison found.
#[derive(Debug, Default)]
pub struct Compared {
    /// A sentence each.
    pub differences: Vec<String>,
    /// How far behind `takt-schedule` the kernel was at most.
    pub latest_ns: i64,
}

/// Whether the probe shows that the kernel serves the lowest class first.
pub fn lower_class_first(probe: &Observed) -> bool {
    probe
        .captured
        .first()
        .is_some_and(|(number, _)| *number == 0)
}

/// Whether the guest was kept from sending in time, by work of its kernel's own: then the frames are not
/// those that were planned.
pub fn disturbed(case: &Case, observed: &Observed) -> bool {
    let late = |(frame, (_, after)): (&takt_oracle::Frame, &(i64, i64))| {
        let planned = match case.kind {
            // Anywhere before the gates open.
            Kind::Order => ORDER_SENT_NS,
            Kind::Probe | Kind::Missed => return false,
            // Well before the launch time of all.
            Kind::Crowd => frame.launch_ns.unwrap_or(0) - DELTA_NS - MARGIN_NS,
            Kind::Datapath => frame.at_ns + HANDED_OVER_NS,
            _ => frame.at_ns + MARGIN_NS,
        };
        *after > observed.start_ns + planned
    };
    case.frames.iter().zip(&observed.sent).any(late)
}

pub fn compare(case: &Case, observed: &Observed, mirrored: bool) -> Compared {
    let mut compared = Compared::default();
    for failure in &observed.failures {
        compared.differences.push(failure.clone());
    }
    let mut seen = vec![false; case.frames.len()];
    for (number, _) in &observed.captured {
        if std::mem::replace(&mut seen[*number], true) {
            compared
                .differences
                .push(format!("frame {number} came twice"));
        }
    }
    match case.kind {
        Kind::Probe => {}
        Kind::Windows | Kind::Change => windows(case, observed, &mut compared),
        Kind::Order => order(case, observed, mirrored, &mut compared),
        Kind::Launch | Kind::LaunchInWindows => launch(case, observed, &mut compared),
        Kind::Crowd => crowd(case, observed, &mut compared),
        Kind::Deadline => deadline(case, observed, &mut compared),
        Kind::Datapath => datapath(case, observed, &mut compared),
        Kind::Missed => missed(case, observed, &mut compared),
    }
    compared
}

/// A frame's traffic class: as many classes as the command line says, one priority each.
fn class_of(case: &Case, number: usize) -> TrafficClass {
    class(case.frames[number].priority as usize)
}

fn left_at(observed: &Observed, number: usize) -> Option<i64> {
    let mut captured = observed.captured.iter();
    captured.find(|(of, _)| *of == number).map(|(_, at)| *at)
}

/// Sent alone, a frame leaves at the first instant at which it may, whichever instant of its system
/// call it came at.
fn windows(case: &Case, observed: &Observed, compared: &mut Compared) {
    let start = observed.start_ns;
    let schedule = model::document(&case.setup[0], start).schedule;
    let gates = model::gates(&schedule, start - 100_000_000);
    let mut after_change = gates.clone();
    let mut changes = i64::MAX;
    if let (Some((_, command)), Some(done)) = (case.later.first(), observed.changed.first()) {
        let second = model::document(command, start).schedule;
        after_change.advance(at(start));
        let list = model::list(&second);
        let change = after_change.install(list, at(*done));
        changes = change.map_or(i64::MAX, |change| change.as_nanos());
    }
    let link = model::link(model::device(case));
    for (number, frame) in case.frames.iter().enumerate() {
        let (before, after) = observed.sent[number];
        let gates = if before < changes {
            &gates
        } else {
            &after_change
        };
        let of = class_of(case, number);
        let most = gates
            .list(at(before))
            .map_or(schedule.max_sdu[usize::from(of.number())], |list| {
                list.max_sdu(of)
            });
        let oversize = most != 0 && frame.len as u32 > most + link.framing.header;
        let needs = link.transmission_ns(frame.len as u32);
        let leaves = |t: i64| {
            let leaves = gates.open_for(of, at(t), needs).filter(|_| !oversize);
            leaves.map(|leaves| leaves.as_nanos())
        };
        match (leaves(before), leaves(after), left_at(observed, number)) {
            (None, None, None) => {}
            (Some(earliest), Some(latest), Some(left)) => {
                compared.latest_ns = compared.latest_ns.max(left - latest);
                if left < earliest || left > latest + SLACK_NS {
                    compared.differences.push(format!(
                        "frame {number} (class {of}, {} octets) sent from {} to {} left at {}, not from {} to {}",
                        frame.len,
                        before - start,
                        after - start,
                        left - start,
                        earliest - start,
                        latest - start
                    ));
                }
            }
            (earliest, _, left) => compared.differences.push(format!(
                "frame {number} (class {of}, {} octets) sent at {} leaves at {:?}, but left at {:?}",
                frame.len,
                before - start,
                earliest.map(|t| t - start),
                left.map(|t| t - start)
            )),
        }
    }
}

/// Sent many at once, frames leave in the same windows in the same order.
fn order(case: &Case, observed: &Observed, mirrored: bool, compared: &mut Compared) {
    let start = observed.start_ns;
    let document = model::document(&case.setup[0], start);
    let classes = usize::from(
        document
            .priorities
            .map_or(8, |priorities| priorities.classes),
    );
    let schedule = match mirrored {
        true => model::mirrored(&document.schedule, classes),
        false => document.schedule,
    };
    let arrivals: Vec<_> = case
        .frames
        .iter()
        .enumerate()
        .map(|(number, frame)| {
            let of = frame.priority as usize;
            let of = if mirrored { classes - 1 - of } else { of };
            let item = model::item(number, frame, start);
            (observed.sent[number].1, class(of), item)
        })
        .collect();
    let mut port = model::fifo_port(model::link(model::device(case)));
    port.gates_mut().install(model::list(&schedule), at(start));
    let outcome = model::run(&mut port, &arrivals, start + case.run_ns);
    same_order(&outcome, observed, compared);
    let gates = model::gates(&schedule, start);
    for ((number, starts), (_, left)) in outcome.sent.iter().zip(&observed.captured) {
        let (ours, theirs) = (
            window(&gates, &schedule, *starts),
            window(&gates, &schedule, *left),
        );
        if ours != theirs {
            compared.differences.push(format!(
                "frame {number} starts in entry {ours:?} (cycle, entry), but left in {theirs:?}"
            ));
        }
    }
}

/// The cycle and the entry at `t`.
fn window(gates: &Gates, schedule: &Schedule, t: i64) -> Option<(i64, usize)> {
    let cycle = gates.cycle(at(t))?;
    let mut left = t - cycle.start.as_nanos();
    let ended = |entry: &&takt_schedule::GateEntry| {
        left -= i64::from(entry.interval_ns);
        left >= 0
    };
    let entry = schedule.entries.iter().take_while(ended).count();
    Some((cycle.number, entry))
}

fn same_order(outcome: &Outcome, observed: &Observed, compared: &mut Compared) {
    let ours: Vec<usize> = outcome.sent.iter().map(|(number, _)| *number).collect();
    let theirs: Vec<usize> = observed
        .captured
        .iter()
        .map(|(number, _)| *number)
        .collect();
    if ours != theirs {
        let at = ours
            .iter()
            .zip(&theirs)
            .take_while(|(one, other)| one == other)
            .count();
        compared.differences.push(format!(
            "the order differs from place {at} on: {:?} beside the kernel's {:?}",
            &ours[at..ours.len().min(at + 8)],
            &theirs[at..theirs.len().min(at + 8)]
        ));
    }
}

/// Frames of launch times: the same ones leave in the same order, none before `delta` ahead of its time
/// nor after it, and of the others the sender hears the same.
fn launch(case: &Case, observed: &Observed, compared: &mut Compared) {
    let start = observed.start_ns;
    let mut port = model::launch_port(false);
    let in_windows = case.kind == Kind::LaunchInWindows;
    let mut gates = None;
    if in_windows {
        let schedule = model::document(&case.setup[0], start).schedule;
        port.gates_mut()
            .install(model::list(&schedule), at(start - 100_000_000));
        gates = Some(model::gates(&schedule, start - 100_000_000));
    }
    let arrivals: Vec<_> = case
        .frames
        .iter()
        .enumerate()
        .map(|(number, frame)| {
            (
                observed.sent[number].1,
                class_of(case, number),
                model::item(number, frame, start),
            )
        })
        .collect();
    let outcome = model::run(&mut port, &arrivals, start + case.run_ns);
    if in_windows {
        // Classes have queues of their own, in which the kernel keeps the order of launch times.
        for number in 0..TrafficClass::COUNT {
            let of = |frame: usize| class_of(case, frame) == class(number);
            let ours = outcome
                .sent
                .iter()
                .filter(|(frame, _)| of(*frame))
                .copied()
                .collect();
            let theirs = observed
                .captured
                .iter()
                .filter(|(frame, _)| of(*frame))
                .copied();
            let theirs = Observed {
                captured: theirs.collect(),
                ..Observed::default()
            };
            let ours = Outcome {
                sent: ours,
                ..Outcome::default()
            };
            same_order(&ours, &theirs, compared);
        }
    } else {
        same_order(&outcome, observed, compared);
        let mut ours: Vec<Report> = outcome
            .lost
            .iter()
            .filter_map(|(_, e)| *e)
            .map(told)
            .collect();
        let mut theirs = observed.reports.clone();
        ours.sort_by_key(|report| (report.data, report.info));
        theirs.sort_by_key(|report| (report.data, report.info));
        if ours != theirs {
            compared
                .differences
                .push(format!("reports {ours:?}, but the kernel's {theirs:?}"));
        }
    }
    in_time(case, observed, gates.as_ref(), compared);
}

fn in_time(case: &Case, observed: &Observed, gates: Option<&Gates>, compared: &mut Compared) {
    let start = observed.start_ns;
    for (number, left) in &observed.captured {
        let Some(launch) = case.frames[*number].launch_ns.map(|launch| start + launch) else {
            continue;
        };
        compared.latest_ns = compared.latest_ns.max(left - (launch - DELTA_NS));
        let open =
            gates.is_none_or(|gates| gates.state(at(*left)).is_open(class_of(case, *number)));
        if !(launch - DELTA_NS..=launch + INTERRUPTED_NS).contains(left) || !open {
            compared.differences.push(format!(
                "frame {number} for {} left at {}{}",
                launch - start,
                left - start,
                if open {
                    ""
                } else {
                    ", while its gate is closed"
                }
            ));
        }
    }
}

/// More frames for one instant than the kernel can send in time: each leaves in time or is reported as
/// missed, in the words in which we report it.
fn crowd(case: &Case, observed: &Observed, compared: &mut Compared) {
    let start = observed.start_ns;
    // When they leave is no matter here: the kernel takes some of them in time, drops the others, and
    // then sends the former.
    for (number, left) in &observed.captured {
        let launch = start + case.frames[*number].launch_ns.unwrap_or(0);
        if *left < launch - DELTA_NS {
            compared
                .differences
                .push(format!("frame {number} left too early"));
        }
    }
    let lost: Vec<usize> = (0..case.frames.len())
        .filter(|number| left_at(observed, *number).is_none())
        .collect();
    if lost.is_empty() {
        compared
            .differences
            .push("the kernel missed nothing: the crowd is too small".into());
    }
    let ours: Vec<Report> = lost
        .iter()
        .filter_map(|number| {
            // Taken in time, and looked at too late.
            let mut port = model::launch_port(false);
            let frame = &case.frames[*number];
            let item = model::item(*number, frame, start);
            let due = item.launch_time?;
            let taken = port.enqueue(class(0), item, at(start));
            taken.ok()?;
            match port.next(due.saturating_add_nanos(1)) {
                takt_schedule::Decision::Drop(dropped) => dropped.error.map(told),
                _ => None,
            }
        })
        .collect();
    if ours != observed.reports {
        compared.differences.push(format!(
            "{} frames are missed as {:?}, the kernel reports {:?}",
            lost.len(),
            ours.first(),
            observed.reports
        ));
    }
    let numbers: Vec<usize> = observed
        .captured
        .iter()
        .map(|(number, _)| *number)
        .collect();
    if !numbers.is_sorted() {
        compared
            .differences
            .push("frames of one launch time did not leave as they came".into());
    }
}

/// With deadlines frames leave as they come, unless theirs has passed.
fn deadline(case: &Case, observed: &Observed, compared: &mut Compared) {
    let start = observed.start_ns;
    let arrivals: Vec<_> = case
        .frames
        .iter()
        .enumerate()
        .map(|(number, frame)| {
            (
                observed.sent[number].1,
                class(0),
                model::item(number, frame, start),
            )
        })
        .collect();
    let mut port = model::launch_port(true);
    let outcome = model::run(&mut port, &arrivals, start + case.run_ns);
    same_order(&outcome, observed, compared);
    for (number, left) in &observed.captured {
        let (before, after) = observed.sent[*number];
        compared.latest_ns = compared.latest_ns.max(left - after);
        if !(before..=after + SLACK_NS).contains(left) {
            compared.differences.push(format!(
                "frame {number} sent at {} left at {}, not at once",
                before - start,
                left - start
            ));
        }
    }
    let ours: Vec<Report> = outcome
        .lost
        .iter()
        .filter_map(|(_, e)| *e)
        .map(told)
        .collect();
    if ours != observed.reports {
        compared.differences.push(format!(
            "reports {ours:?}, but the kernel's {:?}",
            observed.reports
        ));
    }
}

/// Frames of Takt's datapath: all leave, those with a launch time that etf keeps not before it and in its
/// order, the others at once.
fn datapath(case: &Case, observed: &Observed, compared: &mut Compared) {
    let start = observed.start_ns;
    if observed.lost != 0 {
        let lost = format!("{} frames are counted as not sent", observed.lost);
        compared.differences.push(lost);
    }
    for (number, frame) in case.frames.iter().enumerate() {
        let (before, after) = observed.sent[number];
        let kept = case.keeps(frame.priority);
        let launch = frame.launch_ns.filter(|_| kept);
        let from = launch.map_or(before, |launch| before.max(start + launch));
        let due = from.max(if kept { after + HAND_OVER_NS } else { after });
        match left_at(observed, number) {
            Some(left) if (from..=due + INTERRUPTED_NS).contains(&left) => {
                compared.latest_ns = compared.latest_ns.max(left - due);
            }
            left => compared.differences.push(format!(
                "frame {number} (class {}) sent at {}, for {:?}, left at {:?}",
                frame.priority,
                before - start,
                frame.launch_ns,
                left.map(|left| left - start)
            )),
        }
    }
    let ahead = |number: &usize| {
        let frame = case.frames[*number];
        let launch = frame.launch_ns.filter(|_| case.keeps(frame.priority))?;
        (start + launch > observed.sent[*number].1).then_some(launch)
    };
    let captured = observed.captured.iter().map(|(number, _)| number);
    if !captured.filter_map(ahead).is_sorted() {
        compared
            .differences
            .push("frames did not leave in the order of their launch times".into());
    }
}

/// Each frame has left or is counted.
fn missed(case: &Case, observed: &Observed, compared: &mut Compared) {
    let left = observed.captured.len() as u64;
    if observed.lost == 0 || left + observed.lost != case.frames.len() as u64 {
        compared.differences.push(format!(
            "of {} frames {left} left and {} are counted as not sent",
            case.frames.len(),
            observed.lost
        ));
    }
}

fn told(error: TxTimeError) -> Report {
    Report {
        errno: error.errno as u32,
        origin: TxTimeError::ORIGIN,
        code: error.code,
        info: error.info(),
        data: error.data(),
    }
}
