//! The ports that a stream passes, and how long it has each.

use std::collections::VecDeque;

use super::{Hop, LONGEST_PERIOD_NS, Plan, Reason, Stream};

/// The hops of a stream from its talker to all its listeners, as they would be if it were alone.
pub(super) fn hops(plan: &Plan, stream: &Stream) -> Result<Vec<Hop>, Reason> {
    let mut hops: Vec<Hop> = Vec::new();
    for listener in &stream.listeners {
        let mut from = None;
        for port in way(plan, &stream.talker, listener)? {
            let known = hops.iter().position(|hop| hop.port == port);
            from = Some(match known {
                Some(known) => known,
                None => {
                    let hop = hop(plan, stream, port, from.map(|at: usize| (at, hops[at])))?;
                    hops.push(hop);
                    hops.len() - 1
                }
            });
        }
    }
    Ok(hops)
}

/// Nanoseconds from the launch offset to the last bit at the last listener, by the clock of the talker.
pub(super) fn latency_ns(plan: &Plan, hops: &[Hop]) -> u64 {
    let there = hops.iter().map(|hop| {
        // Windows behind the talker's are kept by clocks of others.
        let sync = hop.from.map_or(0, |_| plan.sync_error_ns);
        hop.closes_ns + (plan.ports[hop.port].delay_ns + sync) as i64
    });
    there.max().unwrap_or(0).max(0) as u64
}

/// The ports on the only way from one node to another.
fn way(plan: &Plan, from: &str, to: &str) -> Result<Vec<usize>, Reason> {
    let listener = to.to_owned();
    let mut reached: Vec<(&str, Option<(usize, usize)>)> = vec![(from, None)];
    let mut next = VecDeque::from([0]);
    let mut twice = Vec::new();
    while let Some(at) = next.pop_front() {
        let (node, by) = reached[at];
        let back = by.map(|(_, port)| plan.ports[port].from.as_str());
        let leaving = plan
            .ports
            .iter()
            .enumerate()
            .filter(|(_, p)| p.from == node);
        // A cable back, but not a second one beside it.
        let mut skipped = false;
        for (number, port) in leaving {
            if back == Some(port.to.as_str()) && !skipped {
                skipped = true;
            } else if reached.iter().any(|(known, _)| *known == port.to) {
                twice.push(port.to.as_str());
            } else {
                reached.push((&port.to, Some((at, number))));
                next.push_back(reached.len() - 1);
            }
        }
    }
    let Some(mut at) = reached.iter().position(|(node, _)| *node == to) else {
        return Err(Reason::NoWay { listener });
    };
    let mut ports = Vec::new();
    while let Some((before, port)) = reached[at].1 {
        if twice.contains(&reached[at].0) {
            return Err(Reason::SeveralWays { listener });
        }
        ports.push(port);
        at = before;
    }
    ports.reverse();
    Ok(ports)
}

fn hop(
    plan: &Plan,
    stream: &Stream,
    port: usize,
    before: Option<(usize, Hop)>,
) -> Result<Hop, Reason> {
    let planned = &plan.ports[port];
    let link = &planned.link;
    let too_long = |needs_ns| Reason::Period {
        port: planned.name(),
        needs_ns,
    };
    let followers = u64::from(stream.frames.max(1) - 1);
    let burst = |link: &crate::link::Link| {
        let spaced = link.occupancy_ns(stream.octets).checked_mul(followers);
        spaced.and_then(|spaced| spaced.checked_add(link.transmission_ns(stream.octets)))
    };
    let burst_ns = burst(link).ok_or(too_long(u64::MAX))?;
    // Whatever was sent before the window opened leaves a gap behind it.
    let gap_ns = link.duration_ns(link.framing.gap.into());
    let (arrives_ns, opens_ns, slack_ns) = match before {
        None => (0, 0, plan.launch_error_ns.saturating_add(stream.window_ns)),
        Some((_, hop)) => {
            let earlier = &plan.ports[hop.port];
            let cable = earlier.delay_ns as i64;
            let sync = plan.sync_error_ns as i64;
            let (one, spacing) = (
                earlier.link.transmission_ns(stream.octets) as i64,
                earlier.link.occupancy_ns(stream.octets) as i64,
            );
            let here = link.occupancy_ns(stream.octets) as i64;
            let followers = followers as i64;
            // All of the last frame is there, and of the first: none may be missing when its turn comes.
            let last = hop.closes_ns + cable;
            let first = last - followers * spacing;
            let ready = first.max(last - followers * here);
            let opens = ready + planned.forwarding_ns as i64 + sync;
            (hop.opens_ns + one + cable - sync, opens, 0)
        }
    };
    let length_ns = burst_ns.saturating_add(gap_ns).saturating_add(slack_ns);
    let opened = (opens_ns - arrives_ns).max(0) as u64;
    if length_ns.saturating_add(opened) > stream.period_ns.min(LONGEST_PERIOD_NS) {
        return Err(too_long(length_ns.saturating_add(opened)));
    }
    Ok(Hop {
        port,
        from: before.map(|(at, _)| at),
        arrives_ns,
        opens_ns,
        closes_ns: opens_ns + length_ns as i64,
    })
}
