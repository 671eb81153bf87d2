//! `takt monitor`: the health of every flow of a capture or an interface; `takt health`: its rules.
//!
//! Figures come from `takt-health`, packets from `takt-capture`. A [`part`] brings them together and does what rules
//! ask for, the [`engine`] has one or several, [`text`] and [`screen`] show it to people, [`page`] draws it, [`metrics`] serves it. [`node`] has a daemon copy what
//! its tenants send and get.

mod curve;
mod engine;
mod health;
mod metrics;
mod node;
mod page;
mod part;
mod relieve;
mod remap;
mod screen;
mod source;
pub mod tai;
mod text;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use takt_balance_xdp::beat::Key;
use takt_health::flow::FlowReport;
use takt_health::table::{Counters, Event};

use crate::failure::Failure;
use crate::output::{Form, print, print_json, print_json_line, write_text};
use engine::Engine;
pub use health::{Health, Watched};
use source::{Observe, Source};

const HELP: &str = "\
A flow is a 5-tuple, a TSN stream (destination address and VLAN) or a source of a Takt channel, in
one direction. Delay is told where packets carry when they were sent (AVTP, RTP once its RTCP reports
come by, Takt, isochron, RTC-Testbench, PTP timestamps, `takt stamp`), and for flows with a declared period by how
much later than the earliest ones they come. Stamps need synchronised clocks.

--rules names a file with what flows are to keep to and what is to happen when they do not: see
docs/reference/health-rules.md. Without it every flow is green. `takt health learn` proposes one.
The file is read again when it changes (-i, --node); a faulty one is told and changes nothing.

--node watches what goes past the kernel, as `takt capture` copies it: messages of channels that leave
for other nodes and come from them, by class, and frames that tenants send. Delay counts from when the
sender's lane took the message: of what leaves, until the datapath had it (launch times and gates make
it wait); of what comes, until this node's lane took it. A copy costs the lane some of the time of
sending it.

--http serves a page that shows the latest; who can reach the address can see the flows.

Examples:
  takt monitor -r trace.pcapng
  takt monitor -r trace.pcapng --rules camera.toml --report camera.html
  takt monitor -r trace.pcapng --csv > flows.csv
  takt monitor -i eth0 --rules camera.toml
  takt monitor -i eth0 --json --for 10s | jq '.flows[] | select(.level == \"red\")'
  takt monitor -i eth0 --openmetrics 127.0.0.1:9464
  takt monitor -i eth0 --rules camera.toml --control 10.0.0.2:7485 --control-key /etc/takt/balance.key
  takt monitor --node --tenant press --http 127.0.0.1:8089
  takt monitor --node --rules press.toml --remap udp
  takt monitor --node --rules press.toml --move";

/// Watches the health of every flow of an interface, a capture or a node: delay, jitter, loss, bursts, against what it is to keep to.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Monitor {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    observe: Observe,
    /// What flows are to keep to, and rules
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Where rules with `mirror` write packets, as pcapng
    #[arg(long, value_name = "FILE", requires = "rules")]
    mirror: Option<PathBuf>,
    /// Where rules with `control` send messages: JSON, one to a UDP datagram, such as to `takt balance run --control`
    #[arg(long, value_name = "ADDRESS", requires = "rules")]
    control: Option<SocketAddr>,
    /// The key by which control messages are signed, a file as of `takt balance run --key`, which takes no others
    #[arg(long, value_name = "FILE", requires = "control")]
    control_key: Option<PathBuf>,
    /// Which datapath of the node rules with `remap` have carry what it sends on a channel, while they hold
    /// (--node). All is mapped back when the monitor ends
    #[arg(long, value_name = "DATAPATH", requires_all = ["rules", "node"])]
    remap: Option<String>,
    /// Rules with `move` have the sessions of the node that write what leaves, or read what comes, go to another lane that serves them
    /// better, if there is one, when they begin (--node)
    #[arg(long = "move", requires_all = ["rules", "node"])]
    moves: bool,
    /// Serve metrics in OpenMetrics' text form at this address (-i, --node)
    #[arg(long, value_name = "ADDRESS", conflicts_with = "read")]
    openmetrics: Option<SocketAddr>,
    /// Serve a page with the flows as they are, for browsers, at this address (-i, --node); port 0: at a free one
    #[arg(long, value_name = "ADDRESS", conflicts_with = "read")]
    http: Option<SocketAddr>,
    /// Write a page with all flows and the delay of some over time
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print CSV, a line for each flow
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print events as they happen, as lines of JSON, and no table
    #[arg(long, conflicts_with_all = ["csv", "json"])]
    events: bool,
    /// Flows in the table, the worst first
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    top: usize,
    /// Time between two pictures, on a terminal, of the page and of metrics (-i, --node), 100ms to 60s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    form: Form,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match (Duration::from_millis(100)..=Duration::from_secs(60)).contains(&time) {
        true => Ok(time),
        false => Err("write 100ms to 60s".into()),
    }
}

/// Everything that was seen.
#[derive(Debug, Serialize)]
struct Account {
    source: String,
    packets: Counters,
    /// Packets that came faster than they were taken, and were dropped by the kernel or not copied by the node; none for files.
    dropped: Option<u64>,
    /// How long after its reception the last packet was taken, nanoseconds; none for files.
    backlog_ns: Option<i64>,
    /// The same of each thread; one for files and nodes.
    threads: Vec<part::Share>,
    levels: Levels,
    rules: Vec<RuleLine>,
    events: Vec<Event>,
    /// Events beyond the last ones that are kept.
    events_left_out: u64,
    /// Why the source ended early.
    trouble: Option<String>,
    flows: Vec<FlowReport>,
}

#[derive(Debug, Serialize)]
struct Levels {
    green: usize,
    yellow: usize,
    red: usize,
}

#[derive(Debug, Serialize)]
struct RuleLine {
    rule: String,
    begun: u64,
    active: u64,
}

impl Monitor {
    pub fn run(self) -> Result<(), Failure> {
        let rules = self.rules.as_deref().map(Watched::open).transpose()?;
        let (document, mut watched) = rules.unzip();
        let document = document.unwrap_or_default();
        let mut engine = Engine::new(&self.source, &self.observe, document)?;
        engine.curves(self.report.is_some() || self.http.is_some());
        engine.mirror(self.mirror.as_deref())?;
        let key = self.control_key.as_deref().map(Key::read).transpose()?;
        engine.control(self.control, key)?;
        engine.remap(self.remap.as_deref(), &self.source)?;
        engine.relieve(self.moves, &self.source)?;
        engine.keep_events(!self.events);
        let stop = stop_on_signals()?;
        let mut ended = None;
        if self.source.is_live() {
            let name = self.source.name();
            let metrics = self.openmetrics.map(metrics::serve).transpose()?;
            let page = match self.http {
                Some(address) => {
                    let (page, at) = page::Live::serve(address, &name)?;
                    eprintln!("takt: the flows are shown at http://{at}/");
                    Some(page)
                }
                None => None,
            };
            let live =
                std::io::stdout().is_terminal() && !(self.form.json || self.csv || self.events);
            let mut screen = match live {
                true => Some(screen::Screen::new(Arc::clone(&stop))?),
                false => None,
            };
            let begin = Instant::now();
            let mut next = begin + self.interval;
            let result = loop {
                if stop.load(Ordering::Relaxed)
                    || self
                        .source
                        .lasts
                        .is_some_and(|time| begin.elapsed() >= time)
                {
                    break Ok(());
                }
                if let Err(failure) = engine.step() {
                    break Err(failure);
                }
                if self.events
                    && let Err(failure) = print_events(&mut engine)
                {
                    break Err(failure);
                }
                if Instant::now() >= next {
                    next = Instant::now() + self.interval;
                    if let Some(changed) = watched.as_mut().and_then(Watched::changed) {
                        engine.replace(&changed);
                    }
                    if let Some(metrics) = &metrics {
                        metrics.set(metrics::text(&engine));
                    }
                    if let Some(page) = &page {
                        page.show(&engine);
                    }
                    if let Some(screen) = &mut screen
                        && let Err(failure) = screen.draw(&name, &engine)
                    {
                        break Err(failure);
                    }
                }
            };
            drop(screen);
            // What was seen until then is told all the same.
            if let Err(failure) = result.and_then(|()| engine.take_the_rest()) {
                engine.ends(&failure);
                ended = Some(failure);
            }
        } else {
            let mut progress = Progress::new(self.source.length());
            while !stop.load(Ordering::Relaxed) && engine.step()? {
                progress.tell(&engine);
                if self.events {
                    print_events(&mut engine)?;
                }
            }
            progress.end();
        }
        engine.finish()?;
        if self.events {
            print_events(&mut engine)?;
        }
        let told = self.tell(&engine);
        ended.map_or(told, Err)
    }

    /// Prints what was seen, and writes the page.
    fn tell(&self, engine: &Engine) -> Result<(), Failure> {
        if let Some(path) = &self.report {
            write_text(path, &page::render(engine))?;
        }
        if self.csv {
            print(&text::csv(engine))?;
        } else if self.form.json {
            match std::io::stdout().is_terminal() {
                true => print_json(&engine.account())?,
                false => print_json_line(&engine.account())?,
            }
        } else if !self.events {
            print(&text::table(engine, self.top))?;
        }
        match engine.trouble() {
            Some(trouble) => Err(Failure::Other(trouble.to_owned())),
            None => Ok(()),
        }
    }
}

fn print_events(engine: &mut Engine) -> Result<(), Failure> {
    for event in engine.take_events() {
        print_json_line(&event)?;
    }
    Ok(())
}

/// Set by the first SIGINT or SIGTERM.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(Failure::io("watch for signals"))?;
    }
    Ok(stop)
}

/// How far a long file was read, on a terminal.
struct Progress {
    length: Option<u64>,
    next: Instant,
    told: bool,
}

impl Progress {
    fn new(length: Option<u64>) -> Self {
        Self {
            length: length.filter(|_| std::io::stderr().is_terminal()),
            next: Instant::now() + Duration::from_secs(1),
            told: false,
        }
    }

    fn tell(&mut self, engine: &Engine) {
        let Some(length) = self.length else { return };
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + Duration::from_millis(500);
        self.told = true;
        let share = engine.bytes_read() as f64 * 100.0 / length.max(1) as f64;
        let flows = engine.flow_count();
        let packets = engine.counters().packets;
        let mut err = std::io::stderr().lock();
        let _ = write!(err, "\r{share:3.0} %  {packets} packets  {flows} flows ");
    }

    fn end(&mut self) {
        if self.told {
            eprint!("\r{:60}\r", "");
        }
    }
}
