//! The gate control list of each port: a window of its own for each launch, and what is left for the other classes.

use takt_time::{TaiTime, TrafficClass};

use super::{LONGEST_PERIOD_NS, Placed, Plan, Reason, Unmet};
use crate::admission::common_multiple;
use crate::gate::{GateList, GateMask};
use crate::schedule::{GateEntry, Schedule};

pub(super) fn schedules(
    plan: &Plan,
    streams: &[Placed],
) -> Result<Vec<(usize, Schedule)>, Vec<Unmet>> {
    let (mut schedules, mut unmet) = (Vec::new(), Vec::new());
    for port in 0..plan.ports.len() {
        let passing = streams.iter().enumerate().filter_map(|(at, placed)| {
            let hop = placed.hops.iter().find(|hop| hop.port == port)?;
            let offset = placed.offset_ns as i64;
            Some((at, hop.opens_ns + offset, hop.closes_ns + offset))
        });
        let passing: Vec<(usize, i64, i64)> = passing.collect();
        let Some((last, ..)) = passing.last() else {
            continue;
        };
        match schedule(plan, port, &passing) {
            Some(schedule) => schedules.push((port, schedule)),
            None => unmet.push(Unmet {
                stream: *last,
                reason: Reason::NoRepetition {
                    port: plan.ports[port].name(),
                },
            }),
        }
    }
    if unmet.is_empty() {
        Ok(schedules)
    } else {
        Err(unmet)
    }
}

/// `None`: it is too long, or has too many entries.
fn schedule(plan: &Plan, port: usize, passing: &[(usize, i64, i64)]) -> Option<Schedule> {
    let header = plan.ports[port].link.framing.header;
    let mut max_sdu = [0; TrafficClass::COUNT];
    let mut cycle_ns: u64 = 1;
    for (at, ..) in passing {
        let period = plan.streams[*at].period_ns;
        cycle_ns = common_multiple(cycle_ns, period)?;
        if cycle_ns > LONGEST_PERIOD_NS {
            return None;
        }
    }
    let launches = passing
        .iter()
        .map(|(at, ..)| cycle_ns / plan.streams[*at].period_ns);
    // Each window and the time behind it is an entry.
    if launches.sum::<u64>() > GateList::MAX_ENTRIES as u64 / 2 {
        return None;
    }
    // From, to, gates; what reaches over the end of the cycle in two parts.
    let mut windows: Vec<(u64, u64, GateMask)> = Vec::new();
    let mut otherwise = GateMask::ALL.bits();
    for &(at, opens, closes) in passing {
        let stream = &plan.streams[at];
        let gates = GateMask::from_bits(1 << stream.class.number());
        otherwise &= !gates.bits();
        // Longer ones would not find a window.
        let most = &mut max_sdu[usize::from(stream.class.number())];
        *most = stream.octets.saturating_sub(header).max(*most).max(1);
        for launch in 0..cycle_ns / stream.period_ns {
            let opens = opens + (launch * stream.period_ns) as i64;
            let from = opens.rem_euclid(cycle_ns as i64) as u64;
            let to = from + (closes - opens + (launch * stream.period_ns) as i64) as u64;
            windows.push((from, to.min(cycle_ns), gates));
            if to > cycle_ns {
                windows.push((0, to - cycle_ns, gates));
            }
        }
    }
    windows.sort_unstable_by_key(|(from, ..)| *from);
    let otherwise = GateMask::from_bits(otherwise);
    let mut entries = Vec::new();
    let mut now = 0;
    for (from, to, gates) in windows {
        last(&mut entries, otherwise, from - now);
        last(&mut entries, gates, to - from);
        now = to;
    }
    last(&mut entries, otherwise, cycle_ns - now);
    (entries.len() <= GateList::MAX_ENTRIES).then(|| Schedule {
        base_time: TaiTime::from_nanos(0),
        cycle_time_ns: cycle_ns,
        entries,
        max_sdu,
        require_sync_ns: (plan.sync_error_ns > 0 && plan.ports.len() > 1)
            .then_some(plan.sync_error_ns),
        ..Schedule::default()
    })
}

/// Gates that hold for so long; an entry has four seconds at most.
fn last(entries: &mut Vec<GateEntry>, gates: GateMask, mut length_ns: u64) {
    if let Some(before) = entries.last_mut().filter(|before| before.gates == gates) {
        let more = length_ns.min(u64::from(u32::MAX - before.interval_ns));
        before.interval_ns += more as u32;
        length_ns -= more;
    }
    while length_ns > 0 {
        let now = length_ns.min(u32::MAX.into());
        entries.push(GateEntry::new(gates, now as u32));
        length_ns -= now;
    }
}
