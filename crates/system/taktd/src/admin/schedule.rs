//! Schedules as messages of the admin API.

use takt_runtime::config::{LinkSchedule, OtherTraffic};
use takt_runtime::counters::DepartureReading;
use takt_runtime::status::ScheduleStatus;
use takt_schedule::check::Severity;
use takt_schedule::{ClassTable, GateEntry, GateMask, PortModel, Schedule, Selection};
use takt_time::{TaiTime, TrafficClass};

use super::proto;

/// A schedule as asked for; else the field that is wrong, and what would be right.
pub fn from_message(message: proto::GateSchedule) -> Result<Schedule, String> {
    let gates = |field: &str, bits: u32| {
        let octet = u8::try_from(bits).map_err(|_| {
            format!("{field}: {bits:#x} is no octet: one bit for each of 8 classes")
        })?;
        Ok::<_, String>(GateMask::from_bits(octet))
    };
    let entries = message.entries.into_iter().map(|entry| {
        Ok::<_, String>(GateEntry::new(
            gates("entries.gates", entry.gates)?,
            entry.interval_ns,
        ))
    });
    let entries = entries.collect::<Result<_, _>>()?;
    let mut max_sdu = [0; TrafficClass::COUNT];
    if message.max_sdu.len() > max_sdu.len() {
        return Err(format!(
            "max_sdu: {} values, but there are {} classes",
            message.max_sdu.len(),
            max_sdu.len()
        ));
    }
    for (place, value) in max_sdu.iter_mut().zip(message.max_sdu) {
        *place = value;
    }
    let mut selection = [Selection::default(); TrafficClass::COUNT];
    for asked in &message.selection {
        let place = usize::try_from(asked.class).unwrap_or(usize::MAX);
        let place = selection
            .get_mut(place)
            .ok_or_else(|| format!("selection.class: {}: classes are 0 to 7", asked.class))?;
        *place = match asked.algorithm.as_str() {
            "" | "launch-time" => Selection::LaunchTime,
            "first-come" => Selection::FirstCome,
            "credit-based" => Selection::CreditBased {
                idle_slope_bps: asked.idle_slope_bps,
                high_credit_bits: asked.high_credit_bits,
            },
            other => {
                return Err(format!(
                    "selection.algorithm: {other:?}: known are launch-time, first-come, credit-based"
                ));
            }
        };
    }
    Ok(Schedule {
        selection,
        enabled: true,
        base_time: TaiTime::from_nanos(message.base_time_ns),
        cycle_time_ns: message.cycle_time_ns,
        cycle_time_extension_ns: message.cycle_time_extension_ns,
        initial_gates: gates("initial_gates", message.initial_gates.unwrap_or(0xff))?,
        entries,
        max_sdu,
        require_sync_ns: message.require_sync_ns,
    })
}

/// A request as asked for; else the field that is wrong, and what would be right.
pub fn from_request(request: proto::InstallScheduleRequest) -> Result<LinkSchedule, String> {
    let message = request
        .schedule
        .ok_or("schedule is missing: say what to install")?;
    let classes = match request.classes.len() {
        0 => ClassTable::default(),
        TrafficClass::COUNT => {
            let mut numbers = [0; TrafficClass::COUNT];
            for (place, class) in numbers.iter_mut().zip(&request.classes) {
                *place = u8::try_from(*class).unwrap_or(u8::MAX);
            }
            ClassTable::new(numbers)
                .ok_or_else(|| format!("classes: {:?}: classes are 0 to 7", request.classes))?
        }
        other => {
            return Err(format!(
                "classes: {other} values, but there are 8 priorities: give one for each, or none"
            ));
        }
    };
    let other_traffic = match request.other_traffic.as_str() {
        "" => OtherTraffic::default(),
        name => OtherTraffic::named(name).ok_or_else(|| {
            let known = OtherTraffic::NAMES.map(|(name, _)| name).join(", ");
            format!("other_traffic: {name:?}: known are {known}")
        })?,
    };
    Ok(LinkSchedule {
        other_traffic,
        datapath: request.datapath,
        schedule: from_message(message)?,
        rate_bps: request.link_rate_bps,
        vlan: request.vlan,
        classes,
    })
}

impl From<&LinkSchedule> for proto::InstallScheduleRequest {
    fn from(asked: &LinkSchedule) -> Self {
        Self {
            datapath: asked.datapath.clone(),
            schedule: Some((&asked.schedule).into()),
            link_rate_bps: asked.rate_bps,
            vlan: asked.vlan,
            classes: asked.classes.numbers().map(u32::from).to_vec(),
            other_traffic: asked.other_traffic.name().into(),
        }
    }
}

impl From<&Schedule> for proto::GateSchedule {
    fn from(schedule: &Schedule) -> Self {
        Self {
            base_time_ns: schedule.base_time.as_nanos(),
            cycle_time_ns: schedule.cycle_time_ns,
            cycle_time_extension_ns: schedule.cycle_time_extension_ns,
            initial_gates: Some(schedule.initial_gates.bits().into()),
            entries: schedule
                .entries
                .iter()
                .map(|entry| proto::GateEntry {
                    gates: entry.gates.bits().into(),
                    interval_ns: entry.interval_ns,
                })
                .collect(),
            max_sdu: schedule.max_sdu.to_vec(),
            require_sync_ns: schedule.require_sync_ns,
            selection: selection(&schedule.selection),
        }
    }
}

/// The classes that do not go by launch times.
fn selection(classes: &[Selection; TrafficClass::COUNT]) -> Vec<proto::ClassSelection> {
    let classes = (0..).zip(classes);
    let chosen = classes.filter(|(_, selection)| **selection != Selection::default());
    chosen
        .map(|(class, selection)| {
            let (idle_slope_bps, high_credit_bits) = match *selection {
                Selection::CreditBased {
                    idle_slope_bps,
                    high_credit_bits,
                } => (idle_slope_bps, high_credit_bits),
                _ => (0, 0),
            };
            proto::ClassSelection {
                class,
                algorithm: selection.name().into(),
                idle_slope_bps,
                high_credit_bits,
            }
        })
        .collect()
}

/// The schedules of datapaths that are not there. One that was installed by command is in place of the configured one.
pub fn absent(
    links: &[proto::LinkSchedule],
    kept: impl Iterator<Item = LinkSchedule>,
    configured: Vec<LinkSchedule>,
) -> Vec<proto::AbsentSchedule> {
    let there = |name: &str| links.iter().any(|link| link.datapath == name);
    let mut absent: Vec<LinkSchedule> = kept.filter(|asked| !there(&asked.datapath)).collect();
    for asked in configured {
        let name = &asked.datapath;
        if !there(name) && !absent.iter().any(|kept| kept.datapath == *name) {
            absent.push(asked);
        }
    }
    let absent = absent.into_iter();
    absent
        .map(|asked| proto::AbsentSchedule {
            schedule: Some((&asked.schedule).into()),
            datapath: asked.datapath,
        })
        .collect()
}

/// What is wrong or doubtful in a schedule that a node has taken, but for classes that no priority has.
fn warnings(asked: &LinkSchedule) -> Vec<String> {
    let port = PortModel {
        link: asked.link(),
        ..PortModel::default()
    };
    let findings = takt_schedule::check(&asked.schedule, &port, None).into_iter();
    let findings = findings.filter(|finding| finding.severity >= Severity::Warning);
    let used = |class| asked.classes.numbers().contains(&class);
    let findings = findings.filter(|finding| finding.class.is_none_or(used));
    findings.map(|finding| finding.to_string()).collect()
}

impl From<ScheduleStatus> for proto::LinkSchedule {
    fn from(status: ScheduleStatus) -> Self {
        let pending = status.pending.as_ref();
        let of_link = status.running.as_ref().or(status.latest.as_ref());
        let other_traffic = of_link.map(|asked| asked.other_traffic);
        Self {
            other_traffic: other_traffic.map_or_else(String::new, |wanted| wanted.name().into()),
            other_traffic_by: String::new(),
            interface: String::new(),
            other_traffic_problem: String::new(),
            warnings: status.latest.as_ref().map_or_else(Vec::new, warnings),
            datapath: status.datapath,
            link_rate_bps: status.rate_bps,
            operational: status.operational.as_ref().map(Into::into),
            pending: pending.map(|(schedule, _)| schedule.into()),
            pending_begins_ns: pending.map(|(_, begins)| begins.as_nanos()),
            cycle: status.cycle.map(|cycle| cycle.number),
            cycle_start_ns: status.cycle.map(|cycle| cycle.start.as_nanos()),
            changes: status.changes,
            late_changes: status.late_changes,
            classes: (0..).zip(status.classes).map(class).collect(),
            clock_problem: status
                .unmet
                .map_or_else(String::new, |unmet| unmet.to_string()),
            clock_losses: status.losses,
            vlan: status.vlan,
            beside: status.beside,
            priorities: status.priorities.numbers().map(u32::from).to_vec(),
        }
    }
}

fn class((class, reading): (u32, DepartureReading)) -> proto::ClassDepartures {
    let frames = reading.frames;
    proto::ClassDepartures {
        class,
        offered: frames.offered,
        queued: frames.queued,
        sent: frames.sent,
        sent_late: frames.sent_late,
        sent_gate_missed: frames.sent_gate_missed,
        refused_late: frames.refused_late,
        refused: frames.refused,
        dropped_late: frames.dropped_late,
        dropped_gate_missed: frames.dropped_gate_missed,
        dropped: frames.dropped,
        overruns: frames.overruns,
        error_buckets: reading.errors.to_vec(),
    }
}
