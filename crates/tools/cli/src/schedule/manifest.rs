//! `takt schedule manifest`: the object that a cluster takes.
//!
//! The names and rules are those of `kubernetes/api/network/v1alpha1`; a test there decodes what is written here.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};
use takt_schedule::form::{write_duration, write_instant};
use takt_schedule::{GateMask, GateOperation, Schedule, Selection};

use super::node::OTHER_TRAFFIC;
use super::source::{One, Rate, not_done};
use crate::failure::Failure;
use crate::manifest::{is_label, yaml};
use crate::output::{Form, print_json, write_text};

const HELP: &str = "\
What an object cannot say is refused, as installing it on a node is. --rate has no default here: with another one
than that of the nodes' links, guard bands and the gate time that pods can claim are wrong.

Examples:
  takt schedule manifest line.sh --name line --datapath xdp --rate 1gbit | kubectl apply -f -
  takt schedule manifest plan/node.toml --name line --datapath udp --rate 100mbit --network tsn --output line.yaml";

/// Writes a schedule as a GateSchedule of Kubernetes.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Manifest {
    #[command(flatten)]
    one: One,
    /// Name of the object
    #[arg(long)]
    name: String,
    /// Datapath of the nodes whose link it is for, such as xdp
    #[arg(long)]
    datapath: String,
    /// Rate of the links, such as 100mbit, 1gbit or 2500000000 (bit/s); 0 where frames take no time
    #[arg(long, value_name = "RATE")]
    rate: Rate,
    /// The ports insert a VLAN tag: 4 octets more on the wire
    #[arg(long)]
    vlan: bool,
    /// Who keeps what others send by the links' interfaces
    #[arg(long, value_name = "WHO", value_parser = OTHER_TRAFFIC)]
    other_traffic: Option<String>,
    /// TaktNetwork whose nodes it is for; without it: all that have takt-node
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// File to write; standard output if not given
    #[arg(
        long,
        value_name = "FILE",
        default_value = "-",
        conflicts_with = "json"
    )]
    output: PathBuf,
    #[command(flatten)]
    form: Form,
}

impl Manifest {
    pub fn run(self) -> Result<(), Failure> {
        for (option, name) in [
            ("--name", Some(&self.name)),
            ("--network", self.network.as_ref()),
        ] {
            if let Some(name) = name.filter(|name| !is_label(name)) {
                return Err(Failure::Other(format!(
                    "{option} `{name}` is no name in Kubernetes: use up to 63 lower-case letters, digits and hyphens"
                )));
            }
        }
        let source = self.one.read()?;
        source.tell_lost();
        let document = &source.document;
        let said = document.installable().and_then(|classes| {
            let refused = not_said(&document.schedule);
            refused.is_empty().then_some(classes).ok_or(refused)
        });
        let classes = said.map_err(|refused| not_done(&source.name, &refused))?;
        let mut spec = spec(&document.schedule);
        let priorities = classes.numbers();
        if priorities != [0, 1, 2, 3, 4, 5, 6, 7] {
            spec.insert("priorities".to_owned(), json!(priorities));
        }
        spec.insert("datapath".to_owned(), json!(self.datapath));
        spec.insert("rate".to_owned(), json!(self.rate.0));
        if self.vlan {
            spec.insert("vlan".to_owned(), json!(true));
        }
        if let Some(who) = &self.other_traffic {
            spec.insert("otherTraffic".to_owned(), json!(who));
        }
        if let Some(network) = &self.network {
            spec.insert("network".to_owned(), json!(network));
        }
        let object = json!({
            "apiVersion": "network.takt.dev/v1alpha1",
            "kind": "GateSchedule",
            "metadata": {"name": self.name},
            "spec": spec,
        });
        match self.form.json {
            true => print_json(&object),
            false => write_text(&self.output, &yaml(&object)),
        }
    }
}

/// What of a schedule an object has no words for, each with what to do.
fn not_said(schedule: &Schedule) -> Vec<String> {
    let mut refused = Vec::new();
    if !schedule.enabled {
        refused.push(
            "gates are not enabled: a link without a GateSchedule has all gates open".to_owned(),
        );
    }
    if schedule.base_time.as_nanos() < 0 {
        refused.push("the base time is before 1970: leave it out".to_owned());
    }
    for (at, entry) in schedule.entries.iter().enumerate() {
        if entry.operation != GateOperation::Set {
            refused.push(format!(
                "entry {at}, operation: {} is of preemption: write set-gate-states",
                entry.operation
            ));
        }
    }
    refused
}

fn spec(schedule: &Schedule) -> Map<String, Value> {
    let numbers =
        |gates: GateMask| -> Vec<u8> { gates.classes().map(|class| class.number()).collect() };
    let mut spec = Map::new();
    let mut say = |name: &str, value: Value| spec.insert(name.to_owned(), value);
    let entries = schedule.entries.iter().map(|entry| {
        let interval = write_duration(entry.interval_ns.into());
        json!({"gates": numbers(entry.gates), "interval": interval})
    });
    say("cycleTime", json!(write_duration(schedule.cycle_time_ns)));
    say("entries", entries.collect());
    let base = schedule.base_time;
    if let Some(base) = write_instant(base).filter(|_| base.as_nanos() > 0) {
        say("baseTime", json!(base));
    }
    if schedule.cycle_time_extension_ns > 0 {
        let extension = write_duration(schedule.cycle_time_extension_ns);
        say("cycleTimeExtension", json!(extension));
    }
    if schedule.initial_gates != GateMask::ALL {
        say("initialGates", json!(numbers(schedule.initial_gates)));
    }
    let limits = (0..).zip(schedule.max_sdu).filter(|(_, most)| *most > 0);
    let limits: Vec<Value> = limits
        .map(|(class, most): (u8, u32)| json!({"class": class, "octets": most}))
        .collect();
    if !limits.is_empty() {
        say("maxSDU", json!(limits));
    }
    if let Some(bound) = schedule.require_sync_ns {
        say("requireSync", json!(write_duration(bound)));
    }
    let chosen = (0..).zip(schedule.selection);
    let chosen: Vec<Value> = chosen
        .filter(|(_, selection)| *selection != Selection::default())
        .map(|(class, selection): (u8, Selection)| {
            let mut said = json!({"class": class, "algorithm": selection.name()});
            if let Selection::CreditBased {
                idle_slope_bps,
                high_credit_bits,
            } = selection
            {
                said["idleSlope"] = json!(idle_slope_bps);
                if high_credit_bits > 0 {
                    said["highCredit"] = json!(high_credit_bits);
                }
            }
            said
        })
        .collect();
    if !chosen.is_empty() {
        say("selection", json!(chosen));
    }
    spec
}
