//! `takt bench isochronous`: the talker and the listener of kubernetsn-icc2023.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use takt_bench::experiment::{Experiment, Round, Sample, Variant};
use takt_bench::isochronous::run::{self, Flow, Run, Way};
use takt_bench::statistics::{Latencies, Percentiles};
use takt_bench::takt::Takt;
use takt_lab::{Lab, LabConfig, Queues};

use super::common::{BenchError, Common, Measurement, TwoCores, check_preload, hosts, seconds};
use crate::output::{Align, table};

/// Best effort offered, of the link's rate.
const OVERLOAD: f64 = 1.2;

const HELP: &str = "\
The ways, of which --only chooses some: bare metal, sleeping; bare metal, spinning; bare metal, spinning, HTB; bare metal, etf, taprio; \
Flannel, sleeping; Flannel, spinning; Flannel, etf, taprio; Flannel with Takt. Those with etf, launch times that the kernel keeps below \
gates that it keeps, are left out where it has no sch_etf or sch_taprio (`make demo-emulated` brings such a kernel).";

/// What to measure.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Isochronous {
    /// Payload sizes, bytes
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [64, 256, 1024], value_parser = clap::value_parser!(u32).range(12..=1400))]
    sizes: Vec<u32>,
    /// Period, microseconds
    #[arg(long, value_name = "MICROS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    period_us: u32,
    /// Seconds of each run
    #[arg(long, value_name = "SECONDS", default_value_t = 1.5)]
    seconds: f64,
    /// The paper's lengths: 100 s for each run, one round
    #[arg(long, conflicts_with = "seconds")]
    full: bool,
    /// Rate of the link, bit/s
    #[arg(long, value_name = "BIT/S", default_value_t = 1_000_000_000)]
    rate: u64,
    /// Exit with 1 unless, alone and beside best effort, 99 of 100 datagrams with Takt are received within this of their launch
    /// times, and none is lost; such as 400us
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    budget: Option<Duration>,
    /// This machine is emulated, and its time is that of the instructions that it executes: say so in tables and report, and do
    /// with one core, which then serves all in turns
    #[arg(long)]
    virtual_time: bool,
    #[command(flatten)]
    common: Common,
}

const TITLE: &str = "Isochronous talker and listener";

const METHOD: &str = "\
Two hosts joined by a link with a rate (a switch with two queues; each host's own queue is the kernel's, one for all); on each a \
bridge, a subnet of its own that is routed, and a VXLAN: what Flannel builds. A talker sends a datagram in every period, a \
listener takes the time. Latency is from the requested launch time to the return of the listener's receiving call; jitter is \
the absolute difference between period and distance of two arrivals; the departure error is from the launch time to the instant at \
which the frame is at the other end of the cable of the talker's host, by the stamp of the kernel there: for every way the same \
clock and the same place. What the talker is told of its departures (SO_TIMESTAMPING) stands beside it. Sleeping talkers \
sleep until each instant and send; spinning ones wake 250 µs before it and keep the core busy until it: what this machine can \
do at best. With HTB the talker's host has two queues as the switch has them, strict priority by DSCP: the best that the \
kernel has for bare metal without launch times. With etf the talker sleeps and hands over half a period ahead with SO_TXTIME to the kernel's own etf, below a \
taprio with Takt's schedule; such queues hold nothing to the link's rate, the switch does. On bare metal programs run as root. Containers are network namespaces, and what runs in them has no capability (with etf the \
kernel asks for CAP_NET_ADMIN, which that talker has), and locks no memory; talker and listener are started as real-time threads. With Takt the same program hands its datagrams over half a period ahead \
with SO_TXTIME, under the preload, and the runtime keeps an IEEE 802.1Qbv schedule for them: a quarter of each period is class \
6's alone. Everything from its host's link on is the kernel's. Flannel's VXLAN passes no DSCP on, so that the switch serves it with \
best effort; Takt's frames and bare metal have their class there. Talker, lane and listener are real-time threads on one core. \
Beside best effort: a flow that offers 120 % of the link's rate in 56 KB trains, from another container, on the other core.";

/// What figures of an emulated machine are called.
const VIRTUAL_TIME: &str = "emulated, virtual time";

/// What they mean.
const VIRTUAL_METHOD: &str = "\
Emulated, in virtual time: this machine's clock counts the instructions that it executes, on one core, and nothing else. Figures \
say how many instructions lie between two events, and who waits for whom; no cache, no memory, no other core and no bus takes time.";

/// Runs by payload size, load, way and round.
type AllRuns = HashMap<(u32, bool, &'static str, u32), Run>;
type Runs = Rc<RefCell<AllRuns>>;

/// How far a measurement is.
struct Progress {
    begun: Instant,
    done: Cell<usize>,
    all: usize,
    shown: bool,
}

impl Progress {
    /// One run more, of this way under this setting.
    fn step(&self, setting: &str, way: Way) {
        let done = self.done.get() + 1;
        self.done.set(done);
        if !self.shown {
            return;
        }
        let left = self.begun.elapsed().as_secs_f64() / done as f64 * (self.all - done) as f64;
        eprintln!(
            "[{done}/{}] {setting}: {}; about {left:.0} s left",
            self.all,
            way.name()
        );
    }
}

impl Isochronous {
    /// As the demo has it.
    pub fn brief(full: bool, common: Common) -> Self {
        Self {
            sizes: vec![256],
            period_us: 1000,
            seconds: 3.0,
            full,
            rate: 1_000_000_000,
            budget: None,
            virtual_time: false,
            common,
        }
    }

    /// Measures, prints and reports.
    pub fn run(mut self) -> Result<(), BenchError> {
        if self.full {
            self.seconds = 100.0;
            self.common.rounds = 1;
        }
        seconds(self.seconds)?;
        let cores = match self.virtual_time {
            true => TwoCores::one(),
            false => TwoCores::choose(),
        }?;
        let takt = Takt::this_program()?;
        check_preload()?;
        let (lab, ways) = self.hosts()?;
        let (title, method) = match self.virtual_time {
            true => (
                format!("{TITLE} ({VIRTUAL_TIME})"),
                format!("{VIRTUAL_METHOD}\n\n{METHOD}"),
            ),
            false => (TITLE.to_owned(), METHOD.to_owned()),
        };
        let mut measurement = Measurement::begin(&self.common, "isochronous", &title, &method)?;
        let runs = Runs::default();
        let progress = Rc::new(Progress {
            begun: Instant::now(),
            done: Cell::new(0),
            all: 2 * self.sizes.len() * ways.len() * self.common.rounds as usize,
            shown: self.common.quiet,
        });
        for loaded in [false, true] {
            for &size in &self.sizes {
                let cores = (cores.near, cores.far);
                let place = (&takt, &lab, cores, &ways[..]);
                self.measure(&mut measurement, place, (size, loaded), &progress, &runs)?;
            }
        }
        let runs = runs.borrow();
        if !self.common.json {
            println!("{}", self.summary(&runs, &ways));
        }
        if let Some(headline) = self.headline(&runs) {
            if !self.common.json {
                println!("{headline}\n");
            }
            measurement.headline(headline);
        }
        let over = self.budget.map(|budget| self.over(&runs, budget));
        let (shares, over) = over.unwrap_or_default();
        for finding in self.findings(&runs).iter().chain(&shares) {
            measurement.find(finding);
        }
        measurement.finish()?;
        match over.is_empty() {
            true => Ok(()),
            false => Err(BenchError::Budget(over.join("; "))),
        }
    }

    /// The hosts, and the ways that their kernel has.
    fn hosts(&self) -> Result<(Lab, Vec<Way>), BenchError> {
        let config = run::lab(self.rate);
        let lab = hosts(&LabConfig {
            queues: run::GATED_QUEUES,
            ..config.clone()
        })?;
        let gates = run::gates(self.period());
        let Err(error) = lab.set_queues(0, Queues::Gated(gates)) else {
            return Ok((lab, Way::ALL.to_vec()));
        };
        eprintln!("the kernel's own etf and taprio are left out: {error}");
        drop(lab);
        // As they are for everybody: links of one queue.
        let ways = Way::ALL.into_iter().filter(|way| !way.is_gated_by_kernel());
        Ok((hosts(&config)?, ways.collect()))
    }

    fn period(&self) -> Duration {
        Duration::from_micros(self.period_us.into())
    }

    /// How much of a budget each way needs, and where Takt needs more than there is.
    fn over(&self, runs: &AllRuns, budget: Duration) -> (Vec<String>, Vec<String>) {
        let (mut shares, mut over) = (Vec::new(), Vec::new());
        let sent = self.sent();
        for (loaded, load) in [(false, "alone"), (true, "beside best effort")] {
            for way in Way::ALL {
                let mut sum = Latencies::new();
                let mut lost = 0;
                for run in Self::of(runs, loaded, way) {
                    sum.merge(&run.heard.latency);
                    lost += sent.saturating_sub(run.heard.received);
                }
                let (name, nanos) = (way.name(), budget.as_nanos() as f64);
                let Some((figures, within)) = sum.percentiles().zip(sum.within(budget)) else {
                    if way == Way::Takt {
                        over.push(format!("nothing was received with Takt, {load}"));
                    }
                    continue;
                };
                let share = |ns: f64| ns / nanos * 100.0;
                shares.push(format!(
                    "Of the budget of {budget:?}, {name}, {load}: {:.1} % in the median, {:.1} % at p99; {:.3} % of the datagrams are within it, \
                     {lost} lost.",
                    share(figures.p50),
                    share(figures.p99),
                    within * 100.0
                ));
                if way == Way::Takt && (within < 0.99 || lost > 0) {
                    over.push(format!(
                        "{:.2} % of the datagrams with Takt, {load}, are within {budget:?}, and {lost} are lost",
                        within * 100.0
                    ));
                }
            }
        }
        (shares, over)
    }

    /// How many datagrams a talker sends.
    fn sent(&self) -> u32 {
        (self.seconds * 1e6 / f64::from(self.period_us)).max(10.0) as u32 + run::WARM_UP
    }

    fn measure(
        &self,
        measurement: &mut Measurement<'_>,
        (takt, lab, cores, ways): (&Takt, &Lab, (usize, usize), &[Way]),
        (size, loaded): (u32, bool),
        progress: &Rc<Progress>,
        runs: &Runs,
    ) -> Result<(), BenchError> {
        let period = self.period();
        let flow = Flow {
            size: size as usize,
            period,
            count: (self.seconds / period.as_secs_f64()).max(10.0) as u32,
            load: match loaded {
                true => (self.rate as f64 * OVERLOAD) as u64,
                false => 0,
            },
        };
        let setting = format!(
            "{size} B, {}{}",
            if loaded {
                "beside best effort"
            } else {
                "alone"
            },
            match self.virtual_time {
                true => format!(" ({VIRTUAL_TIME})"),
                false => String::new(),
            }
        );
        let variants = ways.iter().map(|&way| {
            let (runs, progress, setting) = (runs.clone(), progress.clone(), setting.clone());
            Variant::new(way.name(), move |round: &Round| {
                let run = run::run(takt, lab, way, &flow, cores);
                progress.step(&setting, way);
                let run = run?;
                let sample = latency(&run, &flow);
                let key = (size, loaded, way.name(), round.index);
                runs.borrow_mut().insert(key, run);
                Ok(sample)
            })
        });
        let experiment = |name: &str, variants| Experiment {
            name: name.into(),
            setting: setting.clone(),
            method: String::new(),
            rounds: self.common.rounds,
            baseline: Some(Way::OverlaySleeping.name().into()),
            variants,
        };
        measurement.run(experiment("End-to-end latency", variants.collect()))?;
        // The same runs, seen from other sides.
        for (name, part) in [
            (
                "Departure error at the other end of the cable",
                (|run| &run.wire.departure) as fn(&Run) -> &Latencies,
            ),
            ("Departure error as the talker is told", |run| {
                &run.sent.departure
            }),
            ("Absolute jitter", |run| &run.heard.jitter),
        ] {
            let variants = ways.iter().map(|&way| {
                let runs = runs.clone();
                Variant::new(way.name(), move |round: &Round| {
                    let key = (size, loaded, way.name(), round.index);
                    let runs = runs.borrow();
                    let run = runs.get(&key).ok_or("the run that it is of has failed")?;
                    Ok(part(run).clone().into())
                })
            });
            measurement.run(experiment(name, variants.collect()))?;
        }
        Ok(())
    }

    /// What all runs of a way gave together.
    fn of(runs: &AllRuns, loaded: bool, way: Way) -> impl Iterator<Item = &Run> {
        let of = move |key: &(u32, bool, &'static str, u32)| key.1 == loaded && key.2 == way.name();
        runs.iter()
            .filter(move |(key, _)| of(key))
            .map(|(_, run)| run)
    }

    fn percentiles(
        runs: &AllRuns,
        loaded: bool,
        way: Way,
        part: fn(&Run) -> &Latencies,
    ) -> Option<Percentiles> {
        let mut sum = Latencies::new();
        Self::of(runs, loaded, way).for_each(|run| sum.merge(part(run)));
        sum.percentiles()
    }

    /// One table of a screen: what the listeners saw. Everything else is in the report and, with `--verbose`, above it.
    fn summary(&self, runs: &AllRuns, ways: &[Way]) -> String {
        let columns = [
            ("LATENCY", Align::Left),
            ("ALONE", Align::Right),
            ("p99", Align::Right),
            ("LOST", Align::Right),
            ("LOADED", Align::Right),
            ("p99", Align::Right),
            ("LOST", Align::Right),
            ("RATIO", Align::Right),
        ];
        let sent = self.sent();
        let told = |ns: f64| match ns {
            ns if ns <= EARLY => "early".to_owned(),
            ns if ns < 1e6 => format!("{:.1}", ns / 1e3),
            ns => format!("{:.0}", ns / 1e3),
        };
        let mut text = match self.virtual_time {
            true => "EMULATED, VIRTUAL TIME: a clock of instructions, on one core.\n".to_owned(),
            false => String::new(),
        };
        text += &format!(
            "A datagram every {period} µs, received so many µs after its launch time. ALONE and LOADED\n\
             (beside best effort of 120 % of the link): the median; RATIO: of the p99.\n\
             Takt's IEEE 802.1Qbv schedule: class 6 alone in the first quarter of each\n\
             {period} µs, all other classes in the rest.\n\n",
            period = self.period_us,
        );
        let rows = ways.iter().map(|&way| {
            let mut row = vec![way.name().to_owned()];
            let figures = [false, true].map(|loaded| {
                let lost = Self::of(runs, loaded, way)
                    .map(|run| sent.saturating_sub(run.heard.received))
                    .reduce(u32::saturating_add);
                let latency = Self::percentiles(runs, loaded, way, |run| &run.heard.latency);
                (latency, lost)
            });
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
            for (figures, lost) in &figures {
                let figures = figures.as_ref();
                row.push(or_dash(figures.map(|figures| told(figures.p50))));
                row.push(or_dash(figures.map(|figures| told(figures.p99))));
                // Also where nothing has come.
                row.push(or_dash(lost.map(|lost| lost.to_string())));
            }
            let [(alone, _), (loaded, _)] = figures;
            let ratio = ratio(alone.as_ref(), loaded.as_ref());
            row.push(or_dash(ratio.map(|ratio| format!("{ratio:.2}"))));
            row
        });
        text += &table(&columns, rows.collect());
        for &way in ways {
            let early = |of: fn(&Run) -> u32| -> u32 {
                let all = [false, true].into_iter();
                all.flat_map(|loaded| Self::of(runs, loaded, way))
                    .map(of)
                    .sum()
            };
            let (heard, wire) = (early(|run| run.heard.early), early(|run| run.wire.early));
            if (heard, wire) != (0, 0) {
                let name = way.name();
                text +=
                    &format!("Too early, {name}: {wire} on the wire, {heard} at the listener.\n");
            }
        }
        text
    }

    /// What is to be taken away, if all of it could be measured.
    fn headline(&self, runs: &AllRuns) -> Option<String> {
        let departure = |way| Self::percentiles(runs, true, way, |run| &run.wire.departure);
        let latency = |way| Self::percentiles(runs, true, way, |run| &run.heard.latency);
        let (takt, best) = (departure(Way::Takt)?, departure(Way::BarePriority)?);
        let (heard, overlay) = (latency(Way::Takt)?, latency(Way::OverlaySpinning)?);
        let label = match self.virtual_time {
            true => "Emulated, in virtual time: ",
            false => "",
        };
        let kernel = departure(Way::BareEtf).map_or_else(String::new, |etf| {
            format!(
                "; by the kernel's own etf and taprio: {:.1} and {:.1} µs",
                etf.p50 / 1e3,
                etf.p99 / 1e3
            )
        });
        Some(format!(
            "{label}Beside best effort that overloads the link, datagrams from a container with Takt are on the wire {:.1} µs after their launch \
             times in the median and {:.1} µs at p99 (bare metal that spins, with strict priority: {:.1} and {:.1} µs{kernel}), and reach their \
             listener within {:.0} µs at p99 (over Flannel alone, spinning: {:.0} µs).",
            takt.p50 / 1e3,
            takt.p99 / 1e3,
            best.p50 / 1e3,
            best.p99 / 1e3,
            heard.p99 / 1e3,
            overlay.p99 / 1e3,
        ))
    }

    /// What the issue of the experiment asks, answered.
    fn findings(&self, runs: &AllRuns) -> Vec<String> {
        let latency = |loaded, way| Self::percentiles(runs, loaded, way, |run| &run.heard.latency);
        let jitter = |way| Self::percentiles(runs, false, way, |run| &run.heard.jitter);
        let mut findings = Vec::new();
        if let (Some(takt), Some(overlay), Some(floor)) = (
            jitter(Way::Takt),
            jitter(Way::OverlaySleeping),
            jitter(Way::BareSpinning),
        ) {
            findings.push(format!(
                "Median absolute jitter, all sizes, alone: {:.2} µs with Takt, {:.2} µs over Flannel, sleeping ({:.1}x), {:.2} µs on bare metal, spinning ({:.1}x).",
                takt.p50 / 1e3,
                overlay.p50 / 1e3,
                overlay.p50 / takt.p50,
                floor.p50 / 1e3,
                floor.p50 / takt.p50
            ));
        }
        for way in Way::ALL {
            if let (Some(alone), Some(loaded)) = (latency(false, way), latency(true, way)) {
                let ratio = ratio(Some(&alone), Some(&loaded));
                let ratio = ratio.map_or_else(String::new, |ratio| format!(" ({ratio:.2}x)"));
                findings.push(format!(
                    "Beside best effort, {}: p99 of the latency {:.1} µs, alone {:.1} µs{ratio}.",
                    way.name(),
                    loaded.p99 / 1e3,
                    alone.p99 / 1e3,
                ));
            }
        }
        let departure =
            |loaded, way| Self::percentiles(runs, loaded, way, |run| &run.wire.departure);
        for (loaded, load) in [(false, "alone"), (true, "beside best effort")] {
            if let (Some(takt), Some(floor)) = (
                departure(loaded, Way::Takt),
                departure(loaded, Way::BareSpinning),
            ) {
                findings.push(format!(
                    "At the other end of the cable, {load}: {:.1} µs after the launch times in the median and {:.1} µs at p99 with Takt, {:.1} and \
                     {:.1} µs on bare metal, spinning ({:.2}x and {:.2}x). The way over the cable is in all of them.",
                    takt.p50 / 1e3,
                    takt.p99 / 1e3,
                    floor.p50 / 1e3,
                    floor.p99 / 1e3,
                    takt.p50 / floor.p50,
                    takt.p99 / floor.p99,
                ));
            }
        }
        let repeated: u32 = runs.values().map(|run| run.disturbed).sum();
        if repeated > 0 {
            findings.push(format!(
                "{repeated} runs were done again because the hypervisor took more than {:.1} % of a core meanwhile.",
                run::DISTURBED * 100.0
            ));
        }
        let all = [false, true].into_iter();
        let (mut counted, mut captured) = (0, 0);
        for run in all.flat_map(|loaded| Self::of(runs, loaded, Way::Takt)) {
            counted += run.counted.unwrap_or(0);
            captured += u64::from(run.wire.captured);
        }
        findings.push(format!(
            "Takt's runtime counted {counted} datagrams of the talker as sent; {captured} were captured at the other end of the cable."
        ));
        let stolen: Duration = runs.values().map(|run| run.stolen).sum();
        findings.push(format!(
            "The hypervisor took {:.0} ms from this machine's cores during the runs ({:.0} ms of them during Takt's), as the kernel counts it: \
             tails of every way are made of that, too.",
            stolen.as_secs_f64() * 1e3,
            [false, true]
                .into_iter()
                .flat_map(|loaded| Self::of(runs, loaded, Way::Takt))
                .map(|run| run.stolen.as_secs_f64() * 1e3)
                .sum::<f64>()
        ));
        findings
    }
}

/// What was early is the shortest that is told apart, 1 ns.
const EARLY: f64 = 1.0;

/// Loaded over alone, of the p99. Nothing has a ratio to what was early.
fn ratio(alone: Option<&Percentiles>, loaded: Option<&Percentiles>) -> Option<f64> {
    let (alone, loaded) = (alone?.p99, loaded?.p99);
    (alone > EARLY).then_some(loaded / alone)
}

/// The sample that the first of the tables shows.
fn latency(run: &Run, flow: &Flow) -> Sample {
    let mut sample = Sample::from(run.heard.latency.clone());
    let mut figure = |name: &str, value: f64| sample.figures.insert(name.to_owned(), value);
    let sent = flow.count + run::WARM_UP;
    figure("lost", f64::from(sent.saturating_sub(run.heard.received)));
    figure("refused as late", f64::from(run.sent.missed));
    figure("early", f64::from(run.heard.early));
    figure("early at the cable's end", f64::from(run.wire.early));
    figure("captured", f64::from(run.wire.captured));
    if let Some(counted) = run.counted {
        figure("counted by the runtime", counted as f64);
    }
    figure("stolen ms", run.stolen.as_secs_f64() * 1e3);
    figure("best effort Mbit/s", run.drained / 1e6);
    if let Some(arrival) = run.heard.arrival.percentiles() {
        figure("p50 to the kernel's stamp µs", arrival.p50 / 1e3);
    }
    if let Some(jitter) = run.heard.arrival_jitter.percentiles() {
        figure("p50 jitter of that µs", jitter.p50 / 1e3);
    }
    sample
}
