//! `takt simulate`: load management in virtual time.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufReader, IsTerminal, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use takt_capture::file::Reader;
use takt_health::key::FlowKey;
use takt_health::packet::{Identify, LinkType, read};
use takt_health::quantity::Unit;
use takt_simulate::model::{Capacity, Parameters, Strategy, Work};
use takt_simulate::picture::curves;
use takt_simulate::sweep::{Point, needed, sweep};
use takt_simulate::trace::{About, MAX_PACKETS, Packet, Spec, Trace};
use takt_simulate::workload::Workload;

use crate::failure::{Failure, unreadable};
use crate::output::{Align, Column, Form, print, print_json, table, write_text};

/// Simulates in virtual time.
#[derive(Debug, Args)]
pub struct Simulate {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Balance(Box<Balance>),
}

impl Simulate {
    pub fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Balance(balance) => balance.run(),
        }
    }
}

const HELP: &str = "\
The model is that of the SmartNIC paper (NOMS 2022, section V.A): generators send into nodes through
one big switch that spreads flows by hash; a packet costs a node 4500 instructions, one of ten 1250
and 50 for each byte of payload. What is asked: the capacity of a node (cores x GHz, one instruction a
cycle) from which on 99 of 100 packets are done within --target.

Strategies:
  ecmp        hash alone, between nodes and within
  rss++       nodes by hash; within, buckets move from busy cores to idle ones once in --epoch
  intra       the paper's load management within each node: bundles move after a silence of --delta
  inter       the paper's, with neighbours
  intra-done  as intra, but a bundle moves once its last packet is done: no flow is ever reordered
  inter-done  as inter, but a bundle moves once its last packet is done
  inter-hold  as inter, but a bundle moves at once, and its packets wait until its last one is done: neither is any
              flow reordered

Traffic is made from published distributions of flow lengths (internet: campus border; web-search,
data-mining: data centres; vehicle: cameras, lidars, control), or read from captures (--pcap, one for
each generator, again from the first one when there are fewer). docs/concepts/load-management.md says
what is published and what is assumed.

--bundles, --delta and --overload take lists; all combinations are run. Equal seeds give equal
figures, whatever --jobs is. Memory: 16 bytes for each packet of the traffic.

Examples:
  takt simulate balance
  takt simulate balance --seeds 5 --svg figure3.svg
  takt simulate balance --strategies inter --delta 20us,100us,500us --overload 8,16,32
  takt simulate balance --nodes 64 --duration 100ms --capacity 3..5
  takt simulate balance --pcap a.pcap --pcap b.pcap --nodes 2 --json | jq '.needed'";

/// Find the capacity that nodes need, with load management and without
#[derive(Debug, Args)]
#[command(after_help = HELP)]
struct Balance {
    /// Nodes, 1 to 1024
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    nodes: u16,
    /// The most neighbours that a node offloads to: those next to it in a ring
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    neighbours: u16,
    /// Whose traffic is made
    #[arg(long, value_enum, default_value_t = Traffic::Internet)]
    traffic: Traffic,
    /// Replay a capture, pcap or pcapng
    #[arg(long, value_name = "FILE", conflicts_with_all = ["traffic", "rate", "flow_rate", "duration", "seeds"])]
    pcap: Vec<PathBuf>,
    /// Generators; as many as nodes unless said
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    generators: Option<u16>,
    /// Mean rate of each generator, bit/s
    #[arg(long, value_name = "RATE", default_value = "2Gbit", value_parser = rate)]
    rate: f64,
    /// Rate of the link that a generator sends on
    #[arg(long, value_name = "RATE", default_value = "10Gbit", value_parser = rate)]
    line: f64,
    /// Median rate of flows of 100 packets [default: 5Mbit for internet, 200Mbit for data centres]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    flow_rate: Option<f64>,
    /// How long the traffic lasts
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = time)]
    duration: u64,
    /// What determines all random numbers
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Repeat with so many seeds, from --seed on
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Which strategies
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "ecmp,rss++,intra,inter,intra-done,inter-done,inter-hold", value_parser = strategy)]
    strategies: Vec<Strategy>,
    /// Numbers of bundles, powers of two up to 2^20
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1024", value_parser = bits)]
    bundles: Vec<Bits>,
    /// Time-outs of flowlets
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "100us", value_parser = time)]
    delta: Vec<u64>,
    /// Packets in a core's queue that make it overloaded; it is so until a quarter of them is left
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "16", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    overload: Vec<u32>,
    /// How long a core must be calm before bundles come back
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = time)]
    hold: u64,
    /// From a generator to a node, and from a node to its neighbour
    #[arg(long, value_name = "TIME", default_value = "5us", value_parser = time)]
    hop: u64,
    /// Between two reports of a node's load to its neighbours, who know it one report late
    #[arg(long, value_name = "TIME", default_value = "20us", value_parser = time)]
    report: u64,
    /// Between two looks of rss++
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = time)]
    epoch: u64,
    /// The longest queue of a core, packets
    #[arg(long, value_name = "PACKETS", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    queue: u32,
    /// What is cheap or expensive
    #[arg(long, value_enum, default_value_t = Cost::Packet)]
    work: Cost,
    /// Capacities of a node, GIPS [default: from 0.9 to 2.6 times the mean demand]
    #[arg(long, value_name = "FROM..TO", value_parser = range)]
    capacity: Option<Range<f64>>,
    /// What the p99 of the latency is to be
    #[arg(long, value_name = "TIME", default_value = "300us", value_parser = time)]
    target: u64,
    /// Threads; all cores unless said
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// Draw the curves of the first seed; `-` writes them to standard output, alone
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Traffic {
    Internet,
    WebSearch,
    DataMining,
    Vehicle,
}

impl Traffic {
    fn workload(self) -> Workload {
        match self {
            Self::Internet => Workload::Internet,
            Self::WebSearch => Workload::WebSearch,
            Self::DataMining => Workload::DataMining,
            Self::Vehicle => Workload::Vehicle,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cost {
    /// Single packets
    Packet,
    /// Whole flows
    Flow,
}

/// A power of two.
#[derive(Clone, Copy, Debug)]
struct Bits(u8);

fn bits(text: &str) -> Result<Bits, String> {
    let number: Option<u32> = text.parse().ok();
    let allowed = number.filter(|number| number.is_power_of_two() && *number <= 1 << 20);
    allowed
        .map(|number| Bits(number.trailing_zeros() as u8))
        .ok_or_else(|| "write a power of two up to 1048576".into())
}

fn rate(text: &str) -> Result<f64, String> {
    let read = Unit::Rate.read(text).filter(|rate| *rate >= 1.0);
    read.ok_or_else(|| "write a rate of at least 1bit: 800Mbit, 2Gbit".into())
}

fn time(text: &str) -> Result<u64, String> {
    let read = Unit::Time.read(text).filter(|time| *time <= 3600e9);
    read.map(|time| time as u64)
        .ok_or_else(|| "write a time of at most 60min with its unit: 20us, 3s".into())
}

fn strategy(text: &str) -> Result<Strategy, String> {
    let found = Strategy::ALL
        .into_iter()
        .find(|strategy| strategy.name() == text);
    found.ok_or_else(|| {
        let names: Vec<&str> = Strategy::ALL.iter().map(|one| one.name()).collect();
        format!("there are {}", names.join(", "))
    })
}

fn range(text: &str) -> Result<Range<f64>, String> {
    let read = || {
        let (from, to) = text.split_once("..")?;
        let (from, to): (f64, f64) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        (from >= 0.0 && from < to && to <= 153.6).then_some(from..to)
    };
    read().ok_or_else(|| "write two numbers up to 153.6: 2.0..6.0".into())
}

/// What a variant needs.
#[derive(Debug, Serialize)]
struct Needed {
    #[serde(flatten)]
    parameters: Parameters,
    /// GIPS for each seed; none where no capacity that was tried does, or the least one does already.
    gips: Vec<Option<f64>>,
    median: Option<f64>,
    /// Beside `intra` with the same bundles, δ and mark: share of the capacity saved, median of the seeds.
    saved: Option<f64>,
    /// The same for each seed.
    saved_by_seed: Vec<Option<f64>>,
}

#[derive(Debug, Serialize)]
struct Account {
    target_ns: u64,
    traffic: Vec<About>,
    needed: Vec<Needed>,
    /// Every run: of each seed, in the order of `traffic`.
    points: Vec<Vec<Point>>,
}

fn median(values: &[Option<f64>]) -> Option<f64> {
    // One that is unknown could be anywhere.
    let mut known: Vec<f64> = values.iter().copied().collect::<Option<_>>()?;
    known.sort_by(f64::total_cmp);
    let middle = known.len() / 2;
    match known.len() % 2 {
        1 => known.get(middle).copied(),
        _ => Some((known.get(middle.checked_sub(1)?)? + known.get(middle)?) / 2.0),
    }
}

impl Balance {
    fn run(self) -> Result<(), Failure> {
        let mut account = Account {
            target_ns: self.target,
            traffic: Vec::new(),
            needed: Vec::new(),
            points: Vec::new(),
        };
        let variants = self.variants();
        let count = if self.pcap.is_empty() { self.seeds } else { 1 };
        let mut capacities = None;
        for number in 0..count {
            let seed = self.seed.wrapping_add(number);
            let trace = self.trace(seed)?;
            let capacities = capacities.get_or_insert_with(|| {
                let demand = trace.about.demand(self.nodes.into());
                let range = self.capacity.clone();
                // At least 1 GIPS, also where next to nothing is sent.
                let range = range.unwrap_or(0.9 * demand..(2.6 * demand).max(1.0));
                Capacity::between(range.start, range.end)
            });
            if capacities.is_empty() {
                let why = match self.capacity {
                    Some(_) => "lie in none of --capacity; widen it",
                    None => "are too few for what is sent; have it go to more --nodes",
                };
                return Err(Failure::Other(format!(
                    "no capacity to try: 1 to 64 cores in steps of 0.1 GHz up to 2.4 GHz {why}"
                )));
            }
            let of_seed: Vec<Parameters> = variants
                .iter()
                .map(|parameters| Parameters {
                    seed,
                    ..*parameters
                })
                .collect();
            let progress = Progress::new(number, count);
            let threads = self.jobs.map_or_else(
                || std::thread::available_parallelism().map_or(1, usize::from),
                usize::from,
            );
            let points = sweep(&trace, &of_seed, capacities, threads, &|done, all| {
                progress.tell(done, all);
            });
            progress.end();
            account
                .points
                .push(points.map_err(|error| Failure::Other(error.to_string()))?);
            account.traffic.push(trace.about);
        }
        account.needed = self.needed(&variants, &account.points);
        self.tell(&account)
    }

    /// All combinations of what can be listed; what a strategy does not go by is not varied.
    fn variants(&self) -> Vec<Parameters> {
        let mut variants: Vec<Parameters> = Vec::new();
        for strategy in &self.strategies {
            for Bits(bits) in &self.bundles {
                for delta in &self.delta {
                    for high in &self.overload {
                        let by_hash = matches!(strategy, Strategy::Ecmp | Strategy::RssPlusPlus);
                        let first = self.overload.first() == Some(high);
                        let first_delta = self.delta.first() == Some(delta);
                        if (by_hash && !(first && first_delta))
                            || (!strategy.goes_by_delta() && !first_delta)
                        {
                            continue;
                        }
                        variants.push(Parameters {
                            strategy: *strategy,
                            nodes: self.nodes.into(),
                            neighbours: self.neighbours.into(),
                            bits: *bits,
                            delta_ns: *delta as i64,
                            high: *high,
                            low: high / 4,
                            hold_ns: self.hold as i64,
                            hop_ns: self.hop,
                            report_ns: self.report,
                            epoch_ns: self.epoch,
                            queue: self.queue as usize,
                            work: match self.work {
                                Cost::Packet => Work::Packet,
                                Cost::Flow => Work::Flow,
                            },
                            seed: self.seed,
                        });
                    }
                }
            }
        }
        variants
    }

    fn trace(&self, seed: u64) -> Result<Trace, Failure> {
        let generators = self.generators.unwrap_or(self.nodes).into();
        if !self.pcap.is_empty() {
            return captured(&self.pcap, generators);
        }
        let workload = self.traffic.workload();
        let mut pace = workload.pace();
        if let Some(rate) = self.flow_rate {
            pace.rate = rate;
        }
        let spec = Spec {
            workload,
            pace,
            generators,
            duration_ns: self.duration,
            rate: self.rate,
            line: self.line,
            seed,
        };
        Trace::generate(&spec).map_err(|error| Failure::Other(error.to_string()))
    }

    fn needed(&self, variants: &[Parameters], points: &[Vec<Point>]) -> Vec<Needed> {
        let of = |variant: usize| -> Vec<Option<f64>> {
            let seeds = points.iter();
            seeds
                .map(|points| needed(points, variant, self.target))
                .collect()
        };
        let all = variants.iter().enumerate().map(|(number, parameters)| {
            let gips = of(number);
            let beside = variants.iter().position(|other| {
                other.strategy == Strategy::Intra
                    && (other.bits, other.delta_ns, other.high)
                        == (parameters.bits, parameters.delta_ns, parameters.high)
            });
            let saved_by_seed: Vec<Option<f64>> = match beside {
                Some(beside) => of(beside)
                    .into_iter()
                    .zip(&gips)
                    .map(|(beside, own)| Some(1.0 - (*own)? / beside?))
                    .collect(),
                None => vec![None; gips.len()],
            };
            Needed {
                parameters: *parameters,
                median: median(&gips),
                saved: median(&saved_by_seed),
                saved_by_seed,
                gips,
            }
        });
        all.collect()
    }

    fn tell(&self, account: &Account) -> Result<(), Failure> {
        let names: Vec<String> = account.needed.iter().map(|one| self.name(one)).collect();
        if let (Some(path), Some(points)) = (&self.svg, account.points.first()) {
            let source = account.traffic.first().map_or("", |about| &about.source);
            let title = format!("{} nodes, {source} traffic", self.nodes);
            let picture = curves(&title, &names, points, self.target)
                .map_err(|error| Failure::Other(format!("cannot draw: {error}")))?;
            write_text(path, &picture)?;
        }
        if self.form.json {
            return print_json(account);
        }
        if self.svg.as_deref() == Some(Path::new("-")) {
            return Ok(());
        }
        print(&self.text(account, &names))
    }

    /// A variant: its strategy, and what of it was varied.
    fn name(&self, needed: &Needed) -> String {
        let parameters = &needed.parameters;
        let mut name = parameters.strategy.name().to_owned();
        if self.bundles.len() > 1 {
            name += &format!(" {}", 1_u32 << parameters.bits);
        }
        let by_hash = matches!(parameters.strategy, Strategy::Ecmp | Strategy::RssPlusPlus);
        if self.delta.len() > 1 && parameters.strategy.goes_by_delta() {
            name += &format!(" {}", Unit::Time.write(parameters.delta_ns as f64));
        }
        if self.overload.len() > 1 && !by_hash {
            name += &format!(" >={}", parameters.high);
        }
        name
    }

    fn text(&self, account: &Account, names: &[String]) -> String {
        let mut text = String::new();
        if let Some(about) = account.traffic.first() {
            text += &format!(
                "{}: {} packets of {} flows in {}, {}; a node has {:.2} GIPS to do on average\n\n",
                about.source,
                about.packets,
                about.flows,
                Unit::Time.write(about.duration_ns as f64),
                Unit::Rate.write(about.rate),
                about.demand(self.nodes.into()),
            );
        }
        let gips = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
        let percent =
            |value: Option<f64>| value.map_or("-".into(), |value| format!("{:.0}%", value * 100.0));
        let ends = |values: &[Option<f64>], write: &dyn Fn(Option<f64>) -> String| {
            let known = || values.iter().copied().flatten();
            let least = known().reduce(f64::min);
            let most = known().reduce(f64::max);
            format!("{}..{}", write(least), write(most))
        };
        let mut columns: Vec<Column> = vec![
            ("STRATEGY", Align::Left),
            ("NEEDED GIPS", Align::Right),
            ("SAVED", Align::Right),
        ];
        let several = account.points.len() > 1;
        if several {
            columns.extend([
                ("GIPS OF SEEDS", Align::Right),
                ("SAVED OF SEEDS", Align::Right),
            ]);
        }
        columns.extend([("REORDERED", Align::Right), ("FLOWS", Align::Right)]);
        let rows = account
            .needed
            .iter()
            .zip(names)
            .enumerate()
            .map(|(number, (one, name))| {
                let mut row = vec![name.clone(), gips(one.median), percent(one.saved)];
                if several {
                    row.extend([ends(&one.gips, &gips), ends(&one.saved_by_seed, &percent)]);
                }
                let worst = |figure: &dyn Fn(&Point) -> u64| {
                    let points = account.points.iter().flatten();
                    points
                        .filter(|point| point.variant == number)
                        .map(figure)
                        .max()
                        .unwrap_or(0)
                        .to_string()
                };
                row.push(worst(&|point| point.outcome.reordered));
                row.push(worst(&|point| point.outcome.reordered_flows));
                row
            });
        text += &table(&columns, rows.collect());
        text += &format!(
            "\nNeeded: for a p99 of {}. Saved: beside intra. Reordered packets and flows: of the run with most.\n\n",
            Unit::Time.write(self.target as f64)
        );
        if let Some(points) = account.points.first() {
            text += &self.curves(points, names);
        }
        text
    }

    /// p99 of each variant at each capacity.
    fn curves(&self, points: &[Point], names: &[String]) -> String {
        let headings: Vec<String> = names.iter().map(|name| name.to_uppercase()).collect();
        let mut capacities: Vec<Capacity> = points.iter().map(|point| point.capacity).collect();
        capacities.sort_by(|one, other| one.gips().total_cmp(&other.gips()));
        capacities.dedup();
        let rows = capacities.iter().map(|capacity| {
            let mut row = vec![format!("{:.1}", capacity.gips())];
            for variant in 0..names.len() {
                let point = points
                    .iter()
                    .find(|point| point.variant == variant && point.capacity == *capacity);
                row.push(point.map_or_else(String::new, |point| {
                    match point.outcome.p99_ns >= takt_simulate::model::WORST_NS {
                        true => "lost".into(),
                        false => format!("{}", point.outcome.p99_ns / 1000),
                    }
                }));
            }
            row
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let mut lines = vec!["GIPS".to_owned()];
        lines.extend(headings);
        let widths: Vec<usize> = (0..lines.len())
            .map(|at| {
                let cells = rows.iter().map(|row| row[at].len());
                cells.chain([lines[at].len()]).max().unwrap_or(0)
            })
            .collect();
        let line = |cells: &[String]| {
            let cells = cells.iter().zip(&widths);
            let cells: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:>width$}"))
                .collect();
            cells.join("  ") + "\n"
        };
        let mut text = format!("p99 in us, first seed\n{}", line(&lines));
        for row in &rows {
            text += &line(row);
        }
        text
    }
}

/// Reads captures: file `k` is what generator `k` sends.
fn captured(paths: &[PathBuf], generators: usize) -> Result<Trace, Failure> {
    let (mut packets, mut names) = (Vec::new(), Vec::new());
    for generator in 0..generators.max(paths.len()) {
        let path = &paths[generator % paths.len()];
        let failed = |error: &dyn std::fmt::Display| {
            Failure::Other(format!("cannot read {}: {error}", path.display()))
        };
        let file =
            File::open(path).map_err(|error| Failure::Other(unreadable(path.display(), &error)))?;
        let mut reader = Reader::new(BufReader::new(file)).map_err(|error| failed(&error))?;
        let (mut bytes, mut flows, mut begins) = (Vec::new(), HashMap::new(), None);
        while let Some(meta) = reader.next(&mut bytes).map_err(|error| failed(&error))? {
            let Some(link) = LinkType::from_number(meta.link_type) else {
                continue;
            };
            let Ok(packet) = read(link, &bytes, Identify::Tuple) else {
                continue;
            };
            // A capture whose clock goes back begins with its first packet all the same.
            let begins = *begins.get_or_insert(meta.utc_ns);
            let flow = *flows.entry(packet.key).or_insert_with(|| {
                names.push(name_of(&packet.key, generator));
                names.len() as u32 - 1
            });
            packets.push(Packet {
                at_ns: meta.utc_ns.saturating_sub(begins).max(0) as u64,
                flow,
                length: u16::try_from(meta.length).unwrap_or(u16::MAX),
            });
            if packets.len() > MAX_PACKETS {
                return Err(failed(&takt_simulate::Refused::Packets));
            }
        }
    }
    let source: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    Trace::new(packets, names, source.join(" "), None).map_err(|_| {
        Failure::Other(format!(
            "{}: no packet whose flow can be told",
            source.join(" ")
        ))
    })
}

/// What a flow's hashes are made from: the same in every run, another one for another generator that sends the same file.
fn name_of(key: &FlowKey, generator: usize) -> u64 {
    // Its keys are fixed.
    let mut hasher = DefaultHasher::new();
    (key, generator).hash(&mut hasher);
    hasher.finish()
}

/// How many runs are over, on a terminal.
struct Progress {
    seed: u64,
    seeds: u64,
    shown: bool,
    next: Mutex<Instant>,
}

impl Progress {
    fn new(seed: u64, seeds: u64) -> Self {
        Self {
            seed,
            seeds,
            shown: std::io::stderr().is_terminal(),
            next: Mutex::new(Instant::now() + Duration::from_secs(1)),
        }
    }

    fn tell(&self, done: usize, all: usize) {
        let Ok(mut next) = self.next.lock() else {
            return;
        };
        if self.shown && Instant::now() >= *next {
            *next = Instant::now() + Duration::from_millis(500);
            let mut err = std::io::stderr().lock();
            let _ = write!(
                err,
                "\rseed {} of {}: {done} of {all} runs ",
                self.seed + 1,
                self.seeds
            );
        }
    }

    fn end(&self) {
        if self.shown {
            eprint!("\r{:50}\r", "");
        }
    }
}
