//! Nodes that process packets, and strategies that say on which core of which node.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use hdrhistogram::Histogram;
use serde::Serialize;
use takt_balance::park::Park;
use takt_balance::resource::{Marks, Report, Resources};
use takt_balance::table::{Config, Table, Target};

use crate::trace::Trace;
use crate::workload::HEADERS;
use crate::{Refused, mix};

/// The most nodes.
pub const MAX_NODES: usize = 1024;
/// The most cores of a node.
pub const MAX_CORES: usize = 64;
/// Longer latencies, and lost packets, count as this.
pub const WORST_NS: u64 = 10_000_000_000;
/// What visitors need: nobody provides it, so that they go no further.
const NOWHERE: u8 = 63;

/// Who decides where a packet is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// By hash alone: equal-cost multipath between nodes, receive side scaling within.
    Ecmp,
    /// The node by hash. Within it, buckets move from the busiest cores to the idlest ones once in an epoch, after RSS++
    /// (Barbette et al., CoNEXT 2019), whose means to keep the order are not modelled.
    #[serde(rename = "rss++")]
    RssPlusPlus,
    /// The paper's load management within each node: bundles move after a silence of δ.
    Intra,
    /// The paper's with neighbours.
    Inter,
    /// As `intra`, but bundles move once their last packet is done.
    IntraDone,
    /// As `inter`, but bundles move once their last packet is done.
    InterDone,
    /// As `inter`, but bundles move at once, and their packets wait until their last one is done.
    InterHold,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Ecmp,
        Self::RssPlusPlus,
        Self::Intra,
        Self::Inter,
        Self::IntraDone,
        Self::InterDone,
        Self::InterHold,
    ];

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ecmp => "ecmp",
            Self::RssPlusPlus => "rss++",
            Self::Intra => "intra",
            Self::Inter => "inter",
            Self::IntraDone => "intra-done",
            Self::InterDone => "inter-done",
            Self::InterHold => "inter-hold",
        }
    }

    fn balances(self) -> bool {
        !matches!(self, Self::Ecmp | Self::RssPlusPlus)
    }

    fn offloads(self) -> bool {
        matches!(self, Self::Inter | Self::InterDone | Self::InterHold)
    }

    /// Whether bundles move after a silence of δ.
    pub fn goes_by_delta(self) -> bool {
        matches!(self, Self::Intra | Self::Inter)
    }

    /// Whether bundles stay until their last packet is done.
    fn waits(self) -> bool {
        matches!(self, Self::IntraDone | Self::InterDone)
    }

    /// Whether their packets wait for that.
    fn parks(self) -> bool {
        self == Self::InterHold
    }
}

/// What a node can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Capacity {
    /// Cores.
    pub cores: u16,
    /// Frequency of each, and instructions per microsecond.
    pub mhz: u32,
}

impl Capacity {
    /// Billion instructions a second.
    pub fn gips(self) -> f64 {
        f64::from(self.cores) * f64::from(self.mhz) / 1000.0
    }

    /// Capacities between two, in GIPS: as few cores as do at up to 2.4 GHz, in steps of 0.1 GHz.
    pub fn between(least: f64, most: f64) -> Vec<Self> {
        let fewest = |mhz: u64| mhz.div_ceil(2400);
        let mut found = Vec::new();
        for cores in 1..=MAX_CORES as u64 {
            for mhz in (100..=2400).step_by(100) {
                let gips = cores as f64 * mhz as f64 / 1000.0;
                if gips > least - 1e-9 && gips < most + 1e-9 && fewest(cores * mhz) == cores {
                    found.push(Self {
                        cores: cores as u16,
                        mhz: mhz as u32,
                    });
                }
            }
        }
        found
    }
}

/// Which packets cost what (table II of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Each packet by itself: nine of ten 4500 instructions, the tenth 1250 and 50 for each byte of payload.
    Packet,
    /// All packets of a flow alike, in the same shares of flows.
    Flow,
}

/// Everything but traffic and capacity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// Who decides.
    pub strategy: Strategy,
    /// How many nodes.
    pub nodes: usize,
    /// How many neighbours of each it offloads to: those next to it in a ring.
    pub neighbours: usize,
    /// 2^bits bundles, or buckets.
    pub bits: u8,
    /// Time-out of flowlets, nanoseconds.
    pub delta_ns: i64,
    /// Packets in a core's queue from which on it is overloaded.
    pub high: u32,
    /// Packets down to which it stays so.
    pub low: u32,
    /// How long a core must be calm before bundles come back, nanoseconds.
    pub hold_ns: i64,
    /// From a generator to a node, and from a node to its neighbour, nanoseconds.
    pub hop_ns: u64,
    /// From one report of a node to its neighbours to the next, nanoseconds. A report is as old when it counts.
    pub report_ns: u64,
    /// Epoch of RSS++, nanoseconds.
    pub epoch_ns: u64,
    /// The longest queue of a core, packets; what comes then is lost.
    pub queue: usize,
    /// Which packets cost what.
    pub work: Work,
    /// What determines which packet costs what.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Latency from the generator to the end of processing, nanoseconds: what half of the packets have at most.
    pub p50_ns: u64,
    /// What 99 of 100 have.
    pub p99_ns: u64,
    /// What 999 of 1000 have.
    pub p999_ns: u64,
    /// Share of the nodes' capacity that was used.
    pub utilisation: f64,
    /// Share that the busiest node used of its own.
    pub busiest: f64,
    /// Packets.
    pub packets: u64,
    /// Packets that found a queue full.
    pub lost: u64,
    /// Packets that were done before an earlier one of their flow.
    pub reordered: u64,
    /// Flows that this happened to.
    pub reordered_flows: u64,
    /// Packets that a neighbour processed.
    pub offloaded: u64,
    /// Moves of bundles.
    pub moves: u64,
    /// Packets that stayed on an overloaded core, or waited to leave it, for the sake of order.
    pub held: u64,
}

/// A core: first come, first served.
#[derive(Clone, Debug, Default)]
struct Core {
    /// When each packet came to the node, and when it will be done.
    queue: VecDeque<(u64, u64)>,
    free_ns: u64,
    busy_ns: u64,
}

impl Core {
    fn leave(&mut self, now_ns: u64) -> bool {
        let before = self.queue.len();
        while self.queue.front().is_some_and(|(_, done)| *done <= now_ns) {
            self.queue.pop_front();
        }
        self.queue.len() != before
    }

    /// Everything that came before this instant is done.
    fn done_before(&self, now_ns: u64) -> u64 {
        self.queue.front().map_or(now_ns, |(came, _)| *came)
    }
}

/// A node, and what its load management knows.
struct Node {
    cores: Vec<Core>,
    resources: Resources,
    own: Table,
    /// Bundles that neighbours have sent.
    visitors: Table,
    /// Packets of own bundles and of visitors' that wait to go elsewhere, by their places in the trace.
    parks: [Park<u32>; 2],
    /// Of RSS++: which core has a bucket, and the work that came to it in this epoch.
    buckets: Vec<(u16, u64)>,
    /// What it told in the last report but one, and in the last: load and what is done.
    told: [(u32, u64); 2],
}

/// A packet of a bundle is done, and that is known where its bundle is steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Done {
    at_ns: u64,
    node: u32,
    visits: bool,
    bundle: u32,
}

/// A packet that somebody else is to process.
struct Visitor {
    at_ns: u64,
    node: u32,
    index: u32,
}

/// Plays a trace through nodes of one capacity.
///
/// # Errors
/// [`Refused`], if a parameter has no meaning.
pub fn run(trace: &Trace, capacity: Capacity, parameters: &Parameters) -> Result<Outcome, Refused> {
    Run::new(trace, capacity, parameters)?.finish()
}

struct Run<'a> {
    trace: &'a Trace,
    parameters: &'a Parameters,
    mhz: u64,
    nodes: Vec<Node>,
    on_the_way: VecDeque<Visitor>,
    /// Of strategies that park, the next one first.
    dones: BinaryHeap<Reverse<Done>>,
    latencies: Histogram<u64>,
    /// When the latest packet of each flow is done, and whether the flow was reordered.
    done: Vec<u64>,
    disordered: Vec<bool>,
    lost: u64,
    reordered: u64,
    offloaded: u64,
    shifted: u64,
    next_report_ns: u64,
    next_epoch_ns: u64,
}

fn check(capacity: Capacity, parameters: &Parameters) -> Result<(), Refused> {
    let refused = |what, value: String, allowed| {
        Err(Refused::Parameter {
            what,
            value,
            allowed,
        })
    };
    let Parameters { nodes, queue, .. } = *parameters;
    if !(1..=MAX_NODES).contains(&nodes) {
        return refused("nodes", nodes.to_string(), "1 to 1024");
    }
    if !(1..=MAX_CORES).contains(&usize::from(capacity.cores)) || capacity.mhz == 0 {
        let value = format!("{} cores of {} MHz", capacity.cores, capacity.mhz);
        return refused("capacity", value, "1 to 64 cores of at least 1 MHz");
    }
    if !(1..=1 << 20).contains(&queue) {
        return refused("queue", queue.to_string(), "1 to 1048576 packets");
    }
    for (what, ns) in [
        ("report", parameters.report_ns),
        ("epoch", parameters.epoch_ns),
    ] {
        if ns < 1000 {
            return refused(what, format!("{ns} ns"), "at least 1 us");
        }
    }
    Ok(())
}

impl<'a> Run<'a> {
    fn new(
        trace: &'a Trace,
        capacity: Capacity,
        parameters: &'a Parameters,
    ) -> Result<Self, Refused> {
        check(capacity, parameters)?;
        let marks = Marks::new(parameters.high, parameters.low)?;
        let neighbours = match parameters.strategy.offloads() {
            true => parameters.neighbours.min(parameters.nodes - 1),
            false => 0,
        };
        let mut nodes = Vec::with_capacity(parameters.nodes);
        for _ in 0..parameters.nodes {
            let cores = usize::from(capacity.cores);
            let mut resources = Resources::new(cores, neighbours, marks, marks, None)?;
            for neighbour in 0..neighbours {
                resources.set_provides(neighbour as u16, 1)?;
            }
            let config = Config {
                bits: parameters.bits,
                delta_ns: match parameters.strategy.goes_by_delta() {
                    true => parameters.delta_ns,
                    false => 0,
                },
                hold_ns: parameters.hold_ns,
                function: 0,
            };
            let own = Table::new(config)?;
            let visitors = Table::new(Config {
                function: NOWHERE,
                ..config
            })?;
            let room = parameters.queue;
            nodes.push(Node {
                cores: vec![Core::default(); cores],
                resources,
                parks: [Park::new(&own, room), Park::new(&visitors, room)],
                own,
                visitors,
                buckets: (0..1_usize << parameters.bits)
                    .map(|bucket| ((bucket % cores) as u16, 0))
                    .collect(),
                told: [(0, 0); 2],
            });
        }
        let latencies =
            Histogram::new_with_bounds(1, WORST_NS, 2).map_err(|error| Refused::Parameter {
                what: "histogram",
                value: error.to_string(),
                allowed: "1 ns to 10 s",
            })?;
        Ok(Self {
            trace,
            parameters,
            mhz: u64::from(capacity.mhz),
            nodes,
            on_the_way: VecDeque::new(),
            dones: BinaryHeap::new(),
            latencies,
            done: vec![0; trace.names.len()],
            disordered: vec![false; trace.names.len()],
            lost: 0,
            reordered: 0,
            offloaded: 0,
            shifted: 0,
            next_report_ns: 0,
            next_epoch_ns: parameters.epoch_ns,
        })
    }

    fn finish(mut self) -> Result<Outcome, Refused> {
        let hop_ns = self.parameters.hop_ns;
        let mut index = 0;
        loop {
            let own = self
                .trace
                .packets
                .get(index)
                .map(|packet| packet.at_ns + hop_ns);
            let visitor = self.on_the_way.front().map(|visitor| visitor.at_ns);
            let done = self.dones.peek().map(|Reverse(done)| done.at_ns);
            let Some(now_ns) = [own, visitor, done].into_iter().flatten().min() else {
                break;
            };
            if self.parameters.strategy.offloads() {
                while self.next_report_ns <= now_ns {
                    self.report()?;
                }
            }
            if self.parameters.strategy == Strategy::RssPlusPlus {
                while self.next_epoch_ns <= now_ns {
                    self.shift_buckets();
                    self.next_epoch_ns += self.parameters.epoch_ns;
                }
            }
            if done == Some(now_ns) {
                if let Some(Reverse(done)) = self.dones.pop() {
                    self.done(now_ns, done)?;
                }
            } else if visitor == Some(now_ns) {
                if let Some(visitor) = self.on_the_way.pop_front() {
                    let Visitor { node, index, .. } = visitor;
                    self.arrive(now_ns, node as usize, index as usize, true)?;
                }
            } else {
                self.arrive(now_ns, self.home(index), index, false)?;
                index += 1;
            }
        }
        Ok(self.outcome())
    }

    /// The switch: the upper half of the flow's hash; bundles go by the lower one.
    fn home(&self, index: usize) -> usize {
        let name = self.trace.names[self.trace.packets[index].flow as usize];
        (((name >> 32) * self.nodes.len() as u64) >> 32) as usize
    }

    fn hash(&self, index: usize) -> u32 {
        self.trace.names[self.trace.packets[index].flow as usize] as u32
    }

    /// Instructions that a packet needs.
    fn work(&self, index: usize) -> u64 {
        let packet = self.trace.packets[index];
        let dice = match self.parameters.work {
            Work::Packet => index as u64,
            Work::Flow => self.trace.names[packet.flow as usize],
        };
        match mix(self.parameters.seed ^ mix(dice)).is_multiple_of(10) {
            true => 1250 + 50 * u64::from(packet.length.saturating_sub(HEADERS)),
            false => 4500,
        }
    }

    fn arrive(
        &mut self,
        now_ns: u64,
        at: usize,
        index: usize,
        visits: bool,
    ) -> Result<(), Refused> {
        let hash = self.hash(index);
        let work = self.work(index);
        let strategy = self.parameters.strategy;
        self.look(now_ns, at)?;
        let node = &mut self.nodes[at];
        let target = match strategy {
            Strategy::Ecmp => Target::Core(node.buckets[node.own.bundle(hash) as usize].0),
            Strategy::RssPlusPlus => {
                let bucket = &mut node.buckets[node.own.bundle(hash) as usize];
                bucket.1 += work;
                Target::Core(bucket.0)
            }
            Strategy::InterHold => {
                let bundle = node.own.bundle(hash);
                return match node.parks[usize::from(visits)].push(bundle, index as u32) {
                    Ok(()) => self.unpark(now_ns, at, visits, bundle),
                    Err(_) => {
                        self.lose();
                        self.tell_home(now_ns, index, visits);
                        Ok(())
                    }
                };
            }
            _ => {
                let table = if visits {
                    &mut node.visitors
                } else {
                    &mut node.own
                };
                match table.steer(now_ns as i64, hash, &node.resources).target() {
                    Some(target) => target,
                    // Nobody dies here.
                    None => return Ok(()),
                }
            }
        };
        self.go(now_ns, at, index, visits, target)
    }

    /// A packet goes on from a node: to one of its cores, or to a neighbour.
    fn go(
        &mut self,
        now_ns: u64,
        at: usize,
        index: usize,
        visits: bool,
        target: Target,
    ) -> Result<(), Refused> {
        let packet = self.trace.packets[index];
        let number = match target {
            Target::Core(core) => usize::from(core),
            Target::Neighbour(neighbour) => {
                let to = self.neighbour(at, neighbour);
                self.offloaded += 1;
                self.on_the_way.push_back(Visitor {
                    at_ns: now_ns + self.parameters.hop_ns,
                    node: to as u32,
                    index: index as u32,
                });
                return Ok(());
            }
        };
        let strategy = self.parameters.strategy;
        let takes = self.work(index) * 1000 / self.mhz;
        let node = &mut self.nodes[at];
        let core = &mut node.cores[number];
        if !strategy.balances() {
            core.leave(now_ns);
        }
        let done = match core.queue.len() < self.parameters.queue {
            true => {
                let done = core.free_ns.max(now_ns) + takes;
                core.free_ns = done;
                core.busy_ns += takes;
                core.queue.push_back((now_ns, done));
                Some(done)
            }
            false => None,
        };
        if strategy.parks() {
            let at_ns = done.unwrap_or(now_ns);
            let bundle = node
                .own
                .bundle(self.trace.names[packet.flow as usize] as u32);
            self.dones.push(Reverse(Done {
                at_ns,
                node: at as u32,
                visits,
                bundle,
            }));
            self.tell_home(at_ns, index, visits);
        }
        let Some(done) = done else {
            self.lose();
            return Ok(());
        };
        if strategy.balances() {
            self.nodes[at].tell_core(number, now_ns, strategy)?;
        }
        self.latencies.saturating_record(done - packet.at_ns);
        let flow = packet.flow as usize;
        if done < self.done[flow] {
            self.reordered += 1;
            self.disordered[flow] = true;
        }
        self.done[flow] = self.done[flow].max(done);
        Ok(())
    }

    fn lose(&mut self) {
        self.lost += 1;
        self.latencies.saturating_record(WORST_NS);
    }

    /// The load management of a node sees what its cores have done.
    fn look(&mut self, now_ns: u64, at: usize) -> Result<(), Refused> {
        let strategy = self.parameters.strategy;
        let node = &mut self.nodes[at];
        if strategy.balances() {
            for number in 0..node.cores.len() {
                if node.cores[number].leave(now_ns) {
                    node.tell_core(number, now_ns, strategy)?;
                }
            }
        }
        Ok(())
    }

    /// A visitor is done or lost: the node that sent it gets to know a hop later.
    fn tell_home(&mut self, at_ns: u64, index: usize, visits: bool) {
        if !visits {
            return;
        }
        let home = self.home(index);
        self.dones.push(Reverse(Done {
            at_ns: at_ns + self.parameters.hop_ns,
            node: home as u32,
            visits: false,
            bundle: self.nodes[home].own.bundle(self.hash(index)),
        }));
    }

    fn done(&mut self, now_ns: u64, done: Done) -> Result<(), Refused> {
        let Done {
            node,
            visits,
            bundle,
            ..
        } = done;
        let at = node as usize;
        self.look(now_ns, at)?;
        self.nodes[at].parks[usize::from(visits)].done(bundle);
        self.unpark(now_ns, at, visits, bundle)
    }

    /// What may go on of a bundle.
    fn unpark(&mut self, now_ns: u64, at: usize, visits: bool, bundle: u32) -> Result<(), Refused> {
        loop {
            let node = &mut self.nodes[at];
            let table = match visits {
                true => &mut node.visitors,
                false => &mut node.own,
            };
            let park = &mut node.parks[usize::from(visits)];
            match park.next(bundle, table, now_ns as i64, &node.resources)? {
                Some((index, target)) => self.go(now_ns, at, index as usize, visits, target)?,
                None => return Ok(()),
            }
        }
    }

    /// The node that a neighbour's number stands for: those before and behind it in a ring, in turns.
    fn neighbour(&self, node: usize, neighbour: u16) -> usize {
        let (count, step) = (self.nodes.len(), usize::from(neighbour) / 2 + 1);
        match neighbour % 2 {
            0 => (node + step) % count,
            _ => (node + count - step % count) % count,
        }
    }

    /// Every node tells its neighbours what it told itself one report ago, and looks again.
    fn report(&mut self) -> Result<(), Refused> {
        let now_ns = self.next_report_ns;
        let hop_ns = self.parameters.hop_ns;
        let waits = self.parameters.strategy.waits();
        for node in &mut self.nodes {
            let (mut load, mut done) = (u32::MAX, u64::MAX);
            for core in &mut node.cores {
                core.leave(now_ns);
                load = load.min(core.queue.len() as u32);
                done = done.min(core.done_before(now_ns));
            }
            node.told = [node.told[1], (load, done.saturating_sub(hop_ns))];
            for number in 0..node.cores.len() {
                node.tell_core(number, now_ns, self.parameters.strategy)?;
            }
        }
        for at in 0..self.nodes.len() {
            for neighbour in 0..self.nodes[at].resources.neighbours() as u16 {
                let (load, done) = self.nodes[self.neighbour(at, neighbour)].told[0];
                let report = Report {
                    load,
                    done_before: waits.then_some(done as i64),
                };
                let resources = &mut self.nodes[at].resources;
                resources.report_neighbour(neighbour, report, now_ns as i64)?;
            }
        }
        self.next_report_ns += self.parameters.report_ns;
        Ok(())
    }

    /// RSS++: from the busiest core to the idlest one, the largest bucket that makes them more equal, until none does.
    fn shift_buckets(&mut self) {
        for node in &mut self.nodes {
            let mut loads = vec![0_u64; node.cores.len()];
            for (core, work) in &node.buckets {
                loads[usize::from(*core)] += work;
            }
            for _ in 0..node.buckets.len() {
                let by_load = |core: &usize| loads[*core];
                let (Some(most), Some(least)) = (
                    (0..loads.len()).max_by_key(by_load),
                    (0..loads.len()).min_by_key(by_load),
                ) else {
                    break;
                };
                let difference = loads[most] - loads[least];
                // Within a twentieth they are equal.
                if difference <= loads[most] / 20 {
                    break;
                }
                let movable = node.buckets.iter_mut().filter(|(core, work)| {
                    usize::from(*core) == most && *work > 0 && *work <= difference / 2
                });
                let Some(bucket) = movable.max_by_key(|(_, work)| *work) else {
                    break;
                };
                bucket.0 = least as u16;
                loads[most] -= bucket.1;
                loads[least] += bucket.1;
                self.shifted += 1;
            }
            for bucket in &mut node.buckets {
                bucket.1 = 0;
            }
        }
    }

    fn outcome(self) -> Outcome {
        let ends = self.done.iter().max().copied().unwrap_or(0);
        let begins = self.trace.packets.first().map_or(0, |packet| packet.at_ns);
        let time = ends.saturating_sub(begins).max(1);
        let shares = self.nodes.iter().map(|node| {
            let busy: u64 = node.cores.iter().map(|core| core.busy_ns).sum();
            busy as f64 / (time as f64 * node.cores.len() as f64)
        });
        let shares: Vec<f64> = shares.collect();
        let (mut moves, mut held) = (self.shifted, 0);
        for node in &self.nodes {
            for counters in [node.own.counters(), node.visitors.counters()] {
                moves += counters.to_cores + counters.to_neighbours + counters.returns;
                held += counters.held;
            }
            held += node.parks.iter().map(Park::kept).sum::<u64>();
        }
        Outcome {
            p50_ns: self.latencies.value_at_quantile(0.5),
            p99_ns: self.latencies.value_at_quantile(0.99),
            p999_ns: self.latencies.value_at_quantile(0.999),
            utilisation: shares.iter().sum::<f64>() / shares.len() as f64,
            busiest: shares.iter().copied().fold(0.0, f64::max),
            packets: self.trace.packets.len() as u64,
            lost: self.lost,
            reordered: self.reordered,
            reordered_flows: self.disordered.iter().filter(|flow| **flow).count() as u64,
            offloaded: self.offloaded,
            moves,
            held,
        }
    }
}

impl Node {
    /// The load management sees a core's queue.
    fn tell_core(&mut self, number: usize, now_ns: u64, strategy: Strategy) -> Result<(), Refused> {
        let core = &self.cores[number];
        let report = Report {
            load: core.queue.len() as u32,
            done_before: strategy.waits().then(|| core.done_before(now_ns) as i64),
        };
        self.resources
            .report_core(number as u16, report, now_ns as i64)?;
        Ok(())
    }
}
