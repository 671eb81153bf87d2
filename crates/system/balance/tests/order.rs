//! No flow is ever reordered: whatever comes, whatever is told, whatever is asked for.

use std::collections::HashMap;

use proptest::prelude::*;
use takt_balance::park::Park;
use takt_balance::resource::{Marks, Report, Resources};
use takt_balance::table::{Config, Table, Target};

const CORES: u16 = 3;
const NEIGHBOURS: u16 = 3;
const TARGETS: usize = (CORES + NEIGHBOURS) as usize;
const BITS: u8 = 2;
const DELTA: i64 = 1000;

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// A packet of a flow, so long after the one before; its way and its work take so long.
    Packet {
        flow: u32,
        after: i64,
        takes: i64,
    },
    /// A target tells its load, late or not at all.
    Load {
        target: usize,
        load: u32,
    },
    Usable {
        target: usize,
        usable: bool,
    },
    Provides {
        neighbour: u16,
        functions: u64,
    },
    Assign {
        bundle: u32,
        target: usize,
    },
    Evict {
        bundle: u32,
    },
    Limit {
        bundle: u32,
        limit: u32,
    },
    Wait {
        time: i64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let packet = |after: std::ops::Range<i64>| {
        (0_u32..12, after, 0..DELTA + 1).prop_map(|(flow, after, takes)| Step::Packet {
            flow,
            after,
            takes,
        })
    };
    let bundle = 0_u32..1 << BITS;
    prop_oneof![
        8 => packet(0..300),
        3 => packet(0..3 * DELTA),
        4 => (0..TARGETS, 0_u32..20).prop_map(|(target, load)| Step::Load { target, load }),
        1 => (0..TARGETS, any::<bool>()).prop_map(|(target, usable)| Step::Usable { target, usable }),
        1 => (0..NEIGHBOURS, 0_u64..4).prop_map(|(neighbour, functions)| Step::Provides { neighbour, functions }),
        2 => (bundle.clone(), 0..TARGETS).prop_map(|(bundle, target)| Step::Assign { bundle, target }),
        1 => bundle.clone().prop_map(|bundle| Step::Evict { bundle }),
        1 => (bundle, 0_u32..20).prop_map(|(bundle, limit)| Step::Limit { bundle, limit }),
        1 => (0..20 * DELTA).prop_map(|time| Step::Wait { time }),
    ]
}

fn number(target: Target) -> usize {
    usize::from(match target {
        Target::Core(core) => core,
        Target::Neighbour(neighbour) => CORES + neighbour,
    })
}

fn target(number: usize) -> Target {
    match number as u16 {
        core if core < CORES => Target::Core(core),
        other => Target::Neighbour(other - CORES),
    }
}

/// Paths: packets of one never overtake each other.
#[derive(Default)]
struct Paths {
    /// When each path's packets were sent, and when they arrive.
    sent: [Vec<(i64, i64)>; TARGETS],
    /// When the last packet of each flow arrives.
    arrived: HashMap<u32, i64>,
}

impl Paths {
    /// A packet on its way for `takes`, or until the one before it is there.
    fn send(&mut self, path: usize, flow: u32, now: i64, takes: i64) -> Result<(), TestCaseError> {
        let before = self.sent[path].last().map_or(i64::MIN, |last| last.1);
        let arrives = before.max(now + takes);
        self.sent[path].push((now, arrives));
        let last = self.arrived.insert(flow, arrives).unwrap_or(i64::MIN);
        prop_assert!(
            last <= arrives,
            "flow {flow}: sent at {now}, arrives at {arrives}, the one before at {last}"
        );
        Ok(())
    }

    /// Everything sent before this instant has arrived.
    fn done_before(&self, path: usize, now: i64) -> i64 {
        let waiting = self.sent[path].iter().find(|(_, arrives)| *arrives > now);
        waiting.map_or(now, |(sent, _)| *sent)
    }
}

/// Who decides at the packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Split {
    /// The table itself.
    Whole,
    /// A data path that keeps δ by itself and is told by the table where bundles are to go, now and then.
    Advised,
}

/// A data path as the XDP program is one: it knows targets, its last packets and what it was told.
#[derive(Clone, Copy, Default)]
struct Advised {
    at: Option<(Target, i64)>,
    wish: Option<Target>,
}

impl Advised {
    /// `done_before`: what a target that lives tells.
    fn steer(
        &mut self,
        now: i64,
        dead: impl Fn(Target) -> bool,
        done_before: impl Fn(Target) -> i64,
    ) -> Option<Target> {
        let to = match (self.at, self.wish) {
            (None, wish) => wish,
            (Some((current, last)), wish) => {
                let silent = now - last > DELTA;
                let may = silent && (dead(current) || last < done_before(current));
                let other = wish.filter(|wish| may && *wish != current && !dead(*wish));
                other.or((!dead(current)).then_some(current))
            }
        };
        if let Some(to) = to {
            self.at = Some((to, now));
        }
        to
    }
}

fn report(node: &mut Resources, to: usize, report: Report, now: i64) {
    match target(to) {
        Target::Core(core) => node.report_core(core, report, now),
        Target::Neighbour(neighbour) => node.report_neighbour(neighbour, report, now),
    }
    .expect("there");
}

/// What an operator does, and what neighbours say of themselves.
fn operate(step: &Step, node: &mut Resources, table: &mut Table, now: i64) {
    match *step {
        Step::Usable { target: to, usable } => match target(to) {
            Target::Core(core) => node.set_core_usable(core, usable, now).expect("there"),
            Target::Neighbour(neighbour) => {
                node.set_neighbour_usable(neighbour, usable).expect("there");
            }
        },
        Step::Provides {
            neighbour,
            functions,
        } => {
            node.set_provides(neighbour, functions).expect("there");
        }
        Step::Assign { bundle, target: to } => {
            table.assign(bundle, target(to), node).expect("there");
        }
        Step::Evict { bundle } => table.evict(bundle).expect("there"),
        Step::Limit { bundle, limit } => table.set_limit(bundle, limit).expect("there"),
        Step::Packet { .. } | Step::Load { .. } | Step::Wait { .. } => {}
    }
}

/// `watermarks`: targets tell what is done, take any time, and δ is 0. Otherwise latencies differ by δ at most. With both, cores take any
/// time: nobody tells what is done at a neighbour that is dead, and how long its packets may be on their way is then what δ has to cover. A
/// data path that is advised has δ in any case.
fn run(
    steps: &[Step],
    watermarks: bool,
    silence: Option<i64>,
    split: Split,
) -> Result<(), TestCaseError> {
    let whole = watermarks && silence.is_none() && split == Split::Whole;
    let is_slow = |to: usize| watermarks && (whole || to < usize::from(CORES));
    let mut advised = [Advised::default(); 1 << BITS];
    let marks = Marks::new(10, 4).expect("marks");
    let mut node =
        Resources::new(CORES.into(), NEIGHBOURS.into(), marks, marks, silence).expect("node");
    let config = Config {
        bits: BITS,
        delta_ns: if whole { 0 } else { DELTA },
        hold_ns: DELTA,
        function: 1,
    };
    let mut table = Table::new(config).expect("table");
    let (mut paths, mut now, mut fenced) = (Paths::default(), 0_i64, 0);
    let tell = |node: &mut Resources, paths: &Paths, to: usize, load: u32, now: i64| {
        let done_before = watermarks.then(|| paths.done_before(to, now));
        report(node, to, Report { load, done_before }, now);
    };
    for to in 0..TARGETS {
        tell(&mut node, &paths, to, 0, now);
    }
    for (bundle, advised) in (0..).zip(&mut advised) {
        advised.wish = table.advise(bundle, now, &node);
        prop_assert!(
            advised.wish.is_some(),
            "a bundle has a target before its first packet"
        );
    }
    for step in steps {
        match *step {
            Step::Packet { flow, after, takes } => {
                now += after;
                // Watermarks: a path may be slower than another by anything.
                let to = match split {
                    Split::Whole => table.steer(now, flow, &node).target(),
                    Split::Advised => {
                        let bundle = table.bundle(flow);
                        let dead = |target| match target {
                            Target::Core(_) => false,
                            Target::Neighbour(neighbour) => node.is_dead(neighbour, now),
                        };
                        let done_before = |target| match watermarks {
                            true => paths.done_before(number(target), now),
                            false => i64::MAX,
                        };
                        let to = advised[bundle as usize].steer(now, dead, done_before);
                        if let Some(to) = to {
                            table.moved(bundle, to, &node).expect("there");
                        }
                        to
                    }
                };
                let Some(to) = to else {
                    fenced += 1;
                    continue;
                };
                let slow = match is_slow(number(to)) {
                    true => 1 + 50 * number(to) as i64,
                    false => 1,
                };
                paths.send(number(to), flow, now, takes * slow)?;
            }
            Step::Load { target, load } => tell(&mut node, &paths, target, load, now),
            Step::Wait { time } => now += time,
            _ => operate(step, &mut node, &mut table, now),
        }
        for (bundle, advised) in (0..).zip(&mut advised) {
            let stay = advised.at.map(|(target, _)| target);
            advised.wish = table.advise(bundle, now, &node).or(stay);
        }
    }
    let counters = table.counters();
    if split == Split::Advised {
        prop_assert_eq!(counters.packets, 0);
        return Ok(());
    }
    prop_assert_eq!(counters.fenced, fenced);
    let sent: usize = paths.sent.iter().map(Vec::len).sum();
    prop_assert_eq!(counters.packets, fenced + sent as u64);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn while_latencies_differ_by_delta_at_most(steps in proptest::collection::vec(step(), 1..200)) {
        run(&steps, false, None, Split::Whole)?;
    }

    #[test]
    fn when_neighbours_die_and_when_they_only_seem_to(
        steps in proptest::collection::vec(step(), 1..200),
        silence in 0..5 * DELTA,
    ) {
        run(&steps, false, Some(silence), Split::Whole)?;
        run(&steps, false, Some(silence), Split::Advised)?;
    }

    #[test]
    fn whatever_the_latencies_are_with_watermarks(steps in proptest::collection::vec(step(), 1..200)) {
        run(&steps, true, None, Split::Whole)?;
        run(&steps, true, None, Split::Advised)?;
    }

    #[test]
    fn with_watermarks_when_neighbours_die_and_when_they_only_seem_to(
        steps in proptest::collection::vec(step(), 1..200),
        silence in 0..5 * DELTA,
    ) {
        run(&steps, true, Some(silence), Split::Whole)?;
        run(&steps, true, Some(silence), Split::Advised)?;
    }

    #[test]
    fn whatever_the_latencies_are_when_packets_are_parked(
        steps in proptest::collection::vec(step(), 1..200),
        late in 0..3 * DELTA,
    ) {
        parked(&steps, late)?;
    }
}

/// Bundles leave at once, and their packets wait. Targets take any time, and are `late` to tell that a packet is done.
fn parked(steps: &[Step], late: i64) -> Result<(), TestCaseError> {
    const ROOM: usize = 5;
    let marks = Marks::new(10, 4).expect("marks");
    let mut node =
        Resources::new(CORES.into(), NEIGHBOURS.into(), marks, marks, None).expect("node");
    let config = Config {
        bits: BITS,
        delta_ns: 0,
        hold_ns: DELTA,
        function: 1,
    };
    let mut table = Table::new(config).expect("table");
    let mut park = Park::new(&table, ROOM);
    let (mut paths, mut now) = (Paths::default(), 0_i64);
    // What is under way: when it is told as done, and its bundle.
    let mut untold: Vec<(i64, u32)> = Vec::new();
    let (mut pushed, mut gone) = (0, 0);
    // Again and again, until all are told as done.
    let end = vec![Step::Wait { time: 1000 * DELTA }; steps.len() + 1];
    for step in steps.iter().chain(&end) {
        let mut looked = None;
        match *step {
            Step::Packet { flow, after, takes } => {
                now += after;
                let bundle = table.bundle(flow);
                pushed += usize::from(park.push(bundle, (flow, takes)).is_ok());
                looked = Some(bundle);
            }
            Step::Load { target: to, load } => {
                let done_before = None;
                report(&mut node, to, Report { load, done_before }, now);
            }
            Step::Wait { time } => now += time,
            _ => operate(step, &mut node, &mut table, now),
        }
        loop {
            untold.sort_unstable();
            let told = untold.first().is_some_and(|(at, _)| *at <= now);
            let bundle = match (looked.take(), told) {
                (Some(bundle), _) => bundle,
                (None, true) => {
                    let (_, bundle) = untold.remove(0);
                    park.done(bundle);
                    bundle
                }
                (None, false) => break,
            };
            while let Some(((flow, takes), to)) =
                park.next(bundle, &mut table, now, &node).expect("there")
            {
                gone += 1;
                paths.send(number(to), flow, now, takes * (1 + 50 * number(to) as i64))?;
                let arrives = paths.sent[number(to)].last().expect("sent").1;
                untold.push((arrives + late, bundle));
            }
        }
    }
    prop_assert_eq!(pushed, gone, "what was taken goes on in the end");
    prop_assert!(park.kept() <= pushed as u64, "each is kept once at most");
    Ok(())
}

/// The tests above would find it: without the guard a flow is reordered.
#[test]
fn a_move_within_a_flowlet_would_be_found() {
    let mut paths = Paths::default();
    paths.send(0, 1, 0, DELTA).expect("the first");
    assert!(paths.send(1, 1, DELTA - 1, 0).is_err());
    let mut paths = Paths::default();
    paths.send(0, 1, 0, DELTA).expect("the first");
    assert!(paths.send(1, 1, DELTA + 1, 0).is_ok());
}
