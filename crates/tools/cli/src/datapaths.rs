//! `takt datapaths`: the technologies of a node, and of the host that it is on.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use takt_datapath::plugin::DIRECTORY;
use taktd::admin::client::{Client, ConnectError, connect};
use taktd::admin::proto::{Datapath, GetStatusRequest, ListDatapathsRequest, Node};
use taktd::datapaths::probe::{self, Absence, Found};

use crate::admin::{Daemon, block_on, listening_process};
use crate::failure::Failure;
use crate::output::{Form, print, print_json, wrap};
use crate::status::failures;

const HELP: &str = "\
States:
  open      the daemon sends and receives by it
  closed    the daemon is told to use it and cannot: the reason and the remedy are below
  possible  no daemon uses it, and nothing is in its way: the line below says how to have it used
  missing   it cannot be used here: the reason and the remedy are below

Without a daemon, and for what the daemon is not told to use, this host is looked at: kernel UDP is opened, AF_XDP's needs
are examined on each interface, plugins are loaded, DPDK is started with a device of none, libfabric is asked
for its providers. Nothing of the host is changed. Whether a driver runs AF_XDP's program is seen only by attaching it, by
--try; some cards lose their link for a moment when that is done.

The exit code is 1 if a technology that is named is neither open nor possible.

Examples:
  takt datapaths
  takt datapaths xdp && echo AF_XDP is there
  sudo takt datapaths --try eth0
  takt datapaths --json | jq -r '.technologies[] | select(.state == \"missing\") | .remedy'";

/// Shows which technologies a node has, which it could have, and why not the others
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Datapaths {
    /// Technologies, as udp, xdp, dpdk or fabric [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Open AF_XDP on this interface for a moment, which attaches a program to it
    #[arg(long = "try", value_name = "INTERFACE")]
    attach: Option<String>,
    /// Directory of plugins to look into
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    plugins: PathBuf,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

/// What is shown.
#[derive(Debug, Serialize)]
struct Report {
    /// The node that was asked; none where no daemon answers.
    node: Option<String>,
    /// This host was looked at, beside what the daemon tells.
    looked: bool,
    /// What is not told, and why.
    #[serde(skip_serializing_if = "String::is_empty")]
    note: String,
    technologies: Vec<Technology>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Open,
    Closed,
    Possible,
    Missing,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Possible => "possible",
            Self::Missing => "missing",
        }
    }

    fn is_there(self) -> bool {
        matches!(self, Self::Open | Self::Possible)
    }
}

/// A technology, on one interface where it is bound to one.
#[derive(Debug, Serialize)]
struct Technology {
    name: String,
    state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
    /// Ports that are open, one for each lane that carries it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<Port>,
    /// What there is, or why there is nothing.
    found: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    remedy: String,
}

#[derive(Debug, Serialize)]
struct Port {
    lane: u32,
    local: String,
}

impl Datapaths {
    pub fn run(self) -> Result<(), Failure> {
        let mut report = self.report()?;
        if !self.names.is_empty() {
            let known = |name: &&String| report.technologies.iter().any(|t| t.name == **name);
            if let Some(unknown) = self.names.iter().find(|name| !known(name)) {
                if !report.looked {
                    return Err(Failure::Other(format!(
                        "{unknown} is not the daemon's, and {}",
                        report.note
                    )));
                }
                return Err(Failure::Other(format!(
                    "there is no technology {unknown:?}: built in are udp and xdp, and no plugin {} is in {}",
                    takt_datapath::plugin::file_name(unknown),
                    self.plugins.display()
                )));
            }
            report.technologies.retain(|t| self.names.contains(&t.name));
        }
        match self.form.json {
            true => print_json(&report)?,
            false => print(&report.text())?,
        }
        let there = |name: &&String| {
            let mut all = report.technologies.iter();
            all.any(|t| t.name == **name && t.state.is_there())
        };
        match self.names.iter().find(|name| !there(name)) {
            None => Ok(()),
            Some(name) => Err(Failure::Other(format!("{name} is not there"))),
        }
    }

    fn report(&self) -> Result<Report, Failure> {
        let socket = self.daemon.socket();
        let answer = block_on(async {
            match connect(&socket).await {
                Ok(mut client) => ask(&mut client).await.map(Some),
                Err(ConnectError::NoDaemon { .. }) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })?;
        let mut report = Report {
            node: None,
            looked: true,
            note: String::new(),
            technologies: Vec::new(),
        };
        if let Some((node, datapaths)) = answer {
            report.technologies = datapaths.iter().map(|d| of_daemon(&node, d)).collect();
            report.node = Some(node.name);
            // Interfaces and privileges of this process say nothing of a daemon elsewhere.
            let pid = listening_process(&socket);
            match pid.and_then(|pid| Some((pid, shares_namespace(pid)?))) {
                Some((_, true)) => {}
                Some((pid, false)) => {
                    report.looked = false;
                    report.note = format!(
                        "the daemon is in another network namespace, and what else there is in it is not looked at: `sudo nsenter --net --target {pid} takt datapaths`"
                    );
                }
                None => {
                    report.note = "the daemon's process may not be looked at from here: what it does not tell itself was looked for in this network namespace, which may be another one; `sudo takt datapaths` knows".into();
                }
            }
        }
        let tried = self.attach.as_deref().map(probe::attach);
        let known: Vec<_> = (report.technologies.iter())
            .map(|t| t.name.clone())
            .collect();
        let probed = match report.looked {
            true => probe::all(&self.plugins),
            false => Vec::new(),
        };
        let is_tried = |found: &Found| {
            found.name == "xdp" && found.interface.is_some() && found.interface == self.attach
        };
        let is_known = |found: &Found| known.contains(&found.name) || is_tried(found);
        let probed = probed.into_iter().filter(|found| !is_known(found));
        report.technologies.extend(probed.chain(tried).map(of_host));
        let order = ["udp", "xdp", "dpdk", "fabric"];
        let place = |name: &str| order.iter().position(|known| *known == name);
        (report.technologies)
            .sort_by_key(|t| (place(&t.name).unwrap_or(order.len()), t.name.clone()));
        Ok(report)
    }
}

async fn ask(client: &mut Client) -> Result<(Node, Vec<Datapath>), Failure> {
    let status = client.get_status(GetStatusRequest {}).await?.into_inner();
    let datapaths = client.list_datapaths(ListDatapathsRequest {}).await?;
    let node = status.node.unwrap_or_default();
    Ok((node, datapaths.into_inner().datapaths))
}

/// Whether a process is in our network namespace; `None` where that may not be seen, as of a daemon of another user.
fn shares_namespace(pid: i32) -> Option<bool> {
    let of = |process: &str| {
        let file = std::fs::metadata(format!("/proc/{process}/ns/net")).ok()?;
        Some((file.dev(), file.ino()))
    };
    Some(of("self")? == of(&pid.to_string())?)
}

fn of_daemon(node: &Node, datapath: &Datapath) -> Technology {
    let (state, found, remedy) = match datapath.available {
        true => (State::Open, datapath.detail.clone(), String::new()),
        false => {
            let Absence { reason, remedy } = Absence::read(&datapath.reason);
            (State::Closed, reason, remedy)
        }
    };
    let ports = node.lanes.iter().flat_map(|lane| {
        let ports = lane.ports.iter();
        let own = ports.filter(|port| port.datapath == datapath.name);
        own.map(|port| Port {
            lane: lane.lane,
            local: port.local.clone(),
        })
    });
    Technology {
        name: datapath.name.clone(),
        state,
        interface: None,
        ports: ports.collect(),
        found: found + &failures(datapath),
        remedy,
    }
}

fn of_host(found: Found) -> Technology {
    let (state, text, remedy) = match found.state {
        Ok(text) => {
            let remedy = how_to_use(&found.name, found.interface.as_deref());
            (State::Possible, text, remedy)
        }
        Err(Absence { reason, remedy }) => (State::Missing, reason, remedy),
    };
    Technology {
        name: found.name,
        state,
        interface: found.interface,
        ports: Vec::new(),
        found: text,
        remedy,
    }
}

/// How a node is told to use what this host has.
fn how_to_use(name: &str, interface: Option<&str>) -> String {
    match (name, interface) {
        ("udp", _) => "every node has it".into(),
        ("xdp", Some(interface)) => {
            format!("[datapath.xdp] with interface = \"{interface}\", and start the node again")
        }
        ("dpdk", _) => {
            "[datapath.dpdk] with its device (docs/reference/datapath-dpdk.md), and start the node again".into()
        }
        _ => format!("[datapath.{name}], and start the node again"),
    }
}

impl Report {
    fn text(&self) -> String {
        let mut text = match &self.node {
            Some(node) => format!("node {node}\n"),
            None => "no daemon answers: what this host could do\n".into(),
        };
        for technology in &self.technologies {
            let mut head = format!("{:<9} {:<9} ", technology.name, technology.state.name());
            let indent = " ".repeat(head.len());
            let mut line = |head: &str, mark: &str, words: &str| {
                let room = 80 - indent.len() - mark.len();
                for (at, words) in wrap(words, room).iter().enumerate() {
                    let (head, mark) = match at {
                        0 => (head, mark.to_owned()),
                        _ => (indent.as_str(), " ".repeat(mark.len())),
                    };
                    text.push_str(&format!("{head}{mark}{words}\n"));
                }
            };
            if let Some(interface) = &technology.interface {
                line(&head, "", interface);
                head.clone_from(&indent);
            }
            for port in &technology.ports {
                line(&head, "", &format!("lane {} at {}", port.lane, port.local));
                head.clone_from(&indent);
            }
            line(&head, "", &technology.found);
            if !technology.remedy.is_empty() {
                line(&indent, "-> ", &technology.remedy);
            }
        }
        if !self.note.is_empty() {
            text.push_str(&wrap(&self.note, 80).join("\n"));
            text.push('\n');
        }
        text
    }
}
