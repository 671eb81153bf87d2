//! `takt schedule synthesize`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use takt_schedule::form::{self, Document, Form as Written, write_duration};
use takt_schedule::link::Framing;
use takt_schedule::render;
use takt_schedule::synthesis::{self, Flow, Plan, Synthesis};

use super::node;
use super::source::text;
use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Align, Form, print, print_json, table, write_text};

const HELP: &str = "\
The plan says what is sent, by when it has to be there, and over which links:
  [[link]]                       # a cable: both directions
  between = [\"press\", \"line\"]
  rate = \"1gbit\"                 # and delay = \"100ns\", vlan = true
  [[link]]
  between = [\"line\", \"robot\"]
  rate = \"100mbit\"
  [[switch]]                     # from the last bit of a frame to when it may be sent on, at most
  name = \"line\"
  forwarding = \"3us\"
  [[stream]]
  name = \"axis\"
  class = 7
  from = \"press\"
  to = [\"robot\"]
  period = \"1ms\"
  frame = 128                    # octets of the largest, without FCS; and frames = 2
  deadline = \"200us\"             # from its launch to its last bit at the last listener
  channel = 7                    # or destination = \"10.244.1.9:4000\"
Besides, of a stream: window (how much later than its offset it may be handed over), earliest and
latest (offset). Of the plan: launch-error (20us: how much later than its offset a frame begins at its
talker) and sync-error (1us: how far the clocks of two nodes are apart).

The network is a tree. Each stream gets a launch offset, and on each port a window that it has for itself;
classes that no stream has share what is left. Base times are 0, so that nodes with synchronised clocks
are in phase. What was found is tried on the scheduler before it is told, two cycles or as much of long
ones as some seconds allow, which is told. What was not found may exist
nevertheless, unless the reason says otherwise: the search is a heuristic. The exit code is 4 if a
stream cannot be met.

--output writes FROM-TO.toml for each port, for `takt schedule install` (or another form, for a
switch), and TALKER.streams.toml, for `takt listener set --streams`.

Examples:
  takt schedule synthesize plan.toml
  takt schedule synthesize plan.toml --output plan --to tc
  takt schedule synthesize plan.toml --node press --install xdp
  takt schedule synthesize plan.toml --json | jq '.streams[] | {name, offset_ns}'";

/// Computes schedules and launch offsets from what streams require.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Synthesize {
    /// The plan, in TOML; `-` reads standard input
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// Directory to write the schedules of all ports and the streams of all talkers to
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// Form of the schedules that are written: toml, tc, json or xml
    #[arg(long, value_name = "FORM", default_value = "toml", requires = "output")]
    to: Written,
    /// Install the schedule of --node on the link of this datapath of this node
    #[arg(long, value_name = "DATAPATH", requires = "node")]
    install: Option<String>,
    /// Which node of the plan this one is
    #[arg(long, value_name = "NODE", requires = "install")]
    node: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

#[derive(Serialize)]
struct Found {
    streams: Vec<FoundStream>,
    ports: Vec<FoundPort>,
}

#[derive(Serialize)]
struct FoundStream {
    name: String,
    class: u8,
    talker: String,
    period_ns: u64,
    offset_ns: u64,
    latency_ns: u64,
    deadline_ns: u64,
    windows: Vec<FoundWindow>,
}

/// From the launch offset on.
#[derive(Serialize)]
struct FoundWindow {
    port: String,
    opens_ns: i64,
    closes_ns: i64,
}

#[derive(Serialize)]
struct FoundPort {
    name: String,
    cycle_ns: u64,
    entries: usize,
    /// Parts of the cycle that streams have for themselves.
    reserved: f64,
}

impl Synthesize {
    pub fn run(self) -> Result<(), Failure> {
        let (name, text) = text(&self.plan)?;
        let wrong = |error: String| Failure::Schedule(format!("{name}: {error}"));
        let plan = synthesis::read(&text).map_err(|error| wrong(error.to_string()))?;
        let found = synthesis::synthesize(&plan).map_err(|unmet| {
            let lines = unmet.iter().map(|unmet| {
                let stream = &plan.streams[unmet.stream].name;
                format!("{name}: {stream} cannot be met: {}", unmet.reason)
            });
            Failure::Schedule(Vec::from_iter(lines).join("\n"))
        })?;
        let tried = synthesis::verify(&plan, &found).map_err(|broken| {
            wrong(format!("the schedule that was found does not hold, which is a mistake of this program: {broken}"))
        })?;
        if let Some(until) = tried {
            eprintln!(
                "takt: {name}: tried on the scheduler for {} from the beginning of the cycle, and not further: it is long",
                render::duration(until)
            );
        }
        if let Some(directory) = &self.output {
            self.write(&plan, &found, directory)?;
        }
        let installed = self.put_into_force(&plan, &found)?;
        let told = told(&plan, &found);
        if self.form.json {
            return print_json(&told);
        }
        let mut lines = lines(&told);
        if let Some(directory) = &self.output {
            let _ = writeln!(lines, "\nwritten to {}", directory.display());
        }
        lines += &installed.unwrap_or_default();
        print(&lines)
    }

    fn write(&self, plan: &Plan, found: &Synthesis, directory: &Path) -> Result<(), Failure> {
        let failed =
            |error| Failure::Other(format!("cannot write {}: {error}", directory.display()));
        fs::create_dir_all(directory).map_err(failed)?;
        let extension = match self.to {
            Written::Toml => "toml",
            Written::Taprio => "sh",
            Written::YangJson => "json",
            Written::YangXml => "xml",
        };
        for (port, schedule) in &found.schedules {
            let name = plan.ports[*port].name();
            let document = Document {
                // A name that these forms ask for; the port's is the reader's to know.
                interface: Some(name.clone()),
                schedule: schedule.clone(),
                ..Document::default()
            };
            let written = form::write(self.to, &document)
                .map_err(|error| Failure::Schedule(format!("{name}: {error}")))?;
            for lost in &written.lost {
                eprintln!("takt: {name}: not kept: {lost}");
            }
            write_text(
                &directory.join(format!("{name}.{extension}")),
                &written.text,
            )?;
        }
        let mut talkers: Vec<&str> = plan.streams.iter().map(|s| s.talker.as_str()).collect();
        talkers.sort_unstable();
        talkers.dedup();
        for talker in talkers {
            if let Some(text) = streams_of(plan, found, talker) {
                write_text(&directory.join(format!("{talker}.streams.toml")), &text)?;
            }
        }
        Ok(())
    }

    fn put_into_force(&self, plan: &Plan, found: &Synthesis) -> Result<Option<String>, Failure> {
        let (Some(datapath), Some(node)) = (&self.install, &self.node) else {
            return Ok(None);
        };
        let mut ports = found.schedules.iter();
        let mut ports = ports
            .by_ref()
            .filter(|(port, _)| plan.ports[*port].from == *node);
        let (Some((port, schedule)), None) = (ports.next(), ports.next()) else {
            return Err(Failure::Schedule(format!(
                "{node} has no port with a schedule in the plan, or several: name one that has one, or write them with --output and install one by `takt schedule install`"
            )));
        };
        let planned = &plan.ports[*port];
        let document = Document::from(schedule.clone());
        let place = node::Place {
            datapath,
            rate_bps: planned.link.rate_bps.map_or(0, |rate| rate.get()),
            vlan: planned.link.framing != Framing::ETHERNET,
            other_traffic: "port",
        };
        let begins_ns = node::install(&self.daemon, &planned.name(), &document, &place)?;
        Ok(Some(node::when(&planned.name(), begins_ns, datapath)))
    }
}

/// A file for `takt listener set --streams`; none if no stream of the talker says what it is.
fn streams_of(plan: &Plan, found: &Synthesis, talker: &str) -> Option<String> {
    let mut text = String::new();
    let both = plan.streams.iter().zip(&found.streams);
    for (stream, placed) in both.filter(|(stream, _)| stream.talker == talker) {
        let flow = match &stream.flow {
            None => continue,
            Some(Flow::Channel(channel)) => format!("channel = {channel}"),
            Some(Flow::Destination(address)) => format!("destination = \"{address}\""),
        };
        let window = stream.window_ns + plan.launch_error_ns;
        let _ = write!(
            text,
            "[[stream]]\nname = \"{}\"\nclass = {}\n{flow}\nperiod = \"{}\"\noffset = \"{}\"\nwindow = \"{}\"\nframe = {}\nframes = {}\n\n",
            stream.name,
            stream.class,
            write_duration(stream.period_ns),
            write_duration(placed.offset_ns),
            write_duration(window),
            stream.octets,
            stream.frames,
        );
    }
    (!text.is_empty()).then_some(text)
}

fn told(plan: &Plan, found: &Synthesis) -> Found {
    let both = plan.streams.iter().zip(&found.streams);
    let streams = both.map(|(stream, placed)| FoundStream {
        name: stream.name.clone(),
        class: stream.class.number(),
        talker: stream.talker.clone(),
        period_ns: stream.period_ns,
        offset_ns: placed.offset_ns,
        latency_ns: placed.latency_ns,
        deadline_ns: stream.deadline_ns,
        windows: placed
            .hops
            .iter()
            .map(|hop| FoundWindow {
                port: plan.ports[hop.port].name(),
                opens_ns: hop.opens_ns,
                closes_ns: hop.closes_ns,
            })
            .collect(),
    });
    let ports = found.schedules.iter().map(|(port, schedule)| {
        let passing = plan.streams.iter().zip(&found.streams);
        let reserved = passing.flat_map(|(stream, placed)| {
            let here = placed.hops.iter().filter(|hop| hop.port == *port);
            here.map(|hop| (hop.closes_ns - hop.opens_ns) as f64 / stream.period_ns as f64)
        });
        FoundPort {
            name: plan.ports[*port].name(),
            cycle_ns: schedule.cycle_time_ns,
            entries: schedule.entries.len(),
            reserved: reserved.sum(),
        }
    });
    Found {
        streams: streams.collect(),
        ports: ports.collect(),
    }
}

fn lines(found: &Found) -> String {
    let columns = [
        ("STREAM", Align::Left),
        ("CLASS", Align::Right),
        ("TALKER", Align::Left),
        ("PERIOD", Align::Right),
        ("OFFSET", Align::Right),
        ("THERE AFTER", Align::Right),
        ("DEADLINE", Align::Right),
    ];
    let streams = found.streams.iter().map(|stream| {
        vec![
            stream.name.clone(),
            stream.class.to_string(),
            stream.talker.clone(),
            render::duration(stream.period_ns),
            render::duration(stream.offset_ns),
            render::duration(stream.latency_ns),
            render::duration(stream.deadline_ns),
        ]
    });
    let ports = [
        ("PORT", Align::Left),
        ("CYCLE", Align::Right),
        ("ENTRIES", Align::Right),
        ("RESERVED", Align::Right),
    ];
    let rows = found.ports.iter().map(|port| {
        vec![
            port.name.clone(),
            render::duration(port.cycle_ns),
            port.entries.to_string(),
            format!("{:.1} %", port.reserved * 100.0),
        ]
    });
    table(&columns, streams.collect()) + "\n" + &table(&ports, rows.collect())
}
