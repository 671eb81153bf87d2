//! `takt lab`.

mod daemons;

use std::os::unix::process::CommandExt;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use takt_lab::{Host, Lab as Hosts, LabConfig, Network, Overlay, Wiring};

use crate::failure::Failure;
use crate::output::{Align, Form, print, print_json, table};

const HELP: &str = "\
Each host is a network namespace with one interface, `ip netns exec` works on it. A lab stays until it
is taken down. Needs root and iproute2. `takt lab exec` gives a program the name of its host, and the
sockets of the node of its host in TAKT_SOCKET and TAKT_ADMIN_SOCKET.

Examples:
  takt lab up --daemons                      two nodes that know each other
  takt lab exec h2 -- takt sub weather
  takt lab exec h1 -- takt pub weather hello
  takt lab exec h1 -- ping -c 1 10.77.0.2
  takt lab up hall --hosts 4 --rate 1000000000
  takt lab up rough --wiring bridge --loss 1%
  takt lab down";

/// Makes and removes hosts in network namespaces.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Lab {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a lab
    Up(Up),
    /// Remove a lab and the nodes of `--daemons`; other processes inside keep running, without a link
    Down(Name),
    /// List labs with their hosts
    List(Form),
    /// Run a command inside a host
    Exec(Exec),
}

/// A lab's name.
#[derive(Debug, Args)]
struct Name {
    /// Name of the lab
    #[arg(default_value = "lab")]
    name: String,
}

#[derive(Debug, Args)]
struct Up {
    #[command(flatten)]
    name: Name,
    /// How many hosts, 2 to 64
    #[arg(long, value_name = "N", default_value_t = LabConfig::default().hosts)]
    hosts: usize,
    /// MTU of every link, octets
    #[arg(long, value_name = "OCTETS", default_value_t = LabConfig::default().mtu)]
    mtu: u32,
    /// Network of the hosts
    #[arg(long, value_name = "NETWORK", default_value_t = LabConfig::default().network)]
    network: Network,
    /// Receive and transmit queues of every interface
    #[arg(long, value_name = "N", default_value_t = LabConfig::default().queues)]
    queues: u32,
    /// Rate of every cable, bit/s; unlimited if not given
    #[arg(long, value_name = "BIT/S")]
    rate: Option<u64>,
    /// Share of the packets that the switch loses at random, such as 1%; needs the wiring bridge
    #[arg(long, value_name = "SHARE", value_parser = loss_ppm)]
    loss: Option<u32>,
    /// What joins the hosts
    #[arg(long, value_enum, default_value_t = Joined::Auto)]
    wiring: Joined,
    /// The switch sends packets with the upper half of all DSCP values first
    #[arg(long, requires = "rate")]
    priorities: bool,
    /// Containers on each host, behind a bridge
    #[arg(long, value_name = "N", default_value_t = 0)]
    containers: usize,
    /// Run a node on each host; all know each other, and serve the launch times of their containers
    #[arg(long)]
    daemons: bool,
    /// How the containers' network reaches the other hosts
    #[arg(long, value_enum, default_value_t = Shape::Bridged)]
    overlay: Shape,
    #[command(flatten)]
    form: Form,
}

/// A share of packets, of a million.
pub fn loss_ppm(text: &str) -> Result<u32, String> {
    let number = text
        .strip_suffix('%')
        .and_then(|number| number.parse::<f64>().ok());
    match number {
        Some(share) if (0.0..=50.0).contains(&share) => Ok((share * 10_000.0).round() as u32),
        _ => Err("write 0% to 50%, such as 1% or 0.01%".into()),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shape {
    /// One segment: bridges joined by a VXLAN
    Bridged,
    /// A routed subnet for each host, over a VXLAN
    Flannel,
    /// A routed subnet for each host, by way of the hosts themselves
    HostGw,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Joined {
    /// A cable for two hosts, a bridge for more
    Auto,
    /// One veth pair from host to host
    Cable,
    /// A Linux bridge
    Bridge,
}

#[derive(Debug, Args)]
struct Exec {
    /// Name of the lab
    #[arg(long = "lab", value_name = "NAME", default_value = "lab")]
    name: String,
    /// The host: h1 is the first
    host: String,
    /// The command with its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// A host as JSON.
#[derive(Debug, Serialize)]
struct Described {
    lab: String,
    host: String,
    namespace: String,
    interface: &'static str,
    address: String,
    prefix_length: u8,
    mtu: u32,
}

impl Lab {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Up(up) => up.run(),
            Action::Down(Name { name }) => {
                needs_root(&format!("remove the lab {name}"))?;
                daemons::stop(&name)?;
                Hosts::down(&name)?;
                print(&format!("lab {name} removed\n"))
            }
            Action::List(form) => show(&Hosts::list()?, form),
            Action::Exec(exec) => exec.run(),
        }
    }
}

impl Up {
    fn run(self) -> Result<(), Failure> {
        let config = LabConfig {
            hosts: self.hosts,
            mtu: self.mtu,
            network: self.network,
            queues: self.queues,
            rate: self.rate,
            loss_ppm: self.loss,
            wiring: match self.wiring {
                Joined::Auto => Wiring::Auto,
                Joined::Cable => Wiring::Cable,
                Joined::Bridge => Wiring::Bridge,
            },
            containers: self.containers,
            overlay: match self.overlay {
                Shape::Bridged => Overlay::Bridged,
                Shape::Flannel => Overlay::Flannel,
                Shape::HostGw => Overlay::HostGateway,
            },
            priorities: self.priorities,
        };
        let name = &self.name.name;
        needs_root(&format!("make the lab {name}"))?;
        let lab = Hosts::up(name, &config)?;
        if self.daemons {
            daemons::start(&lab).inspect_err(|_| {
                // The first error is the one to tell.
                let _ = daemons::stop(name);
                let _ = Hosts::down(name);
            })?;
        }
        show(&[lab], self.form)?;
        if self.daemons && !self.form.json {
            print(&next_steps(name))?;
        }
        Ok(())
    }
}

/// Network namespaces are root's.
fn needs_root(what: &str) -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::Other(format!(
        "cannot {what}: its hosts are network namespaces, which need root: run the same with `sudo`; without root, \
         `takt sub` and `takt pub` find each other on this machine"
    )))
}

/// What to try with a node on each host.
fn next_steps(lab: &str) -> String {
    let (exec, down) = match lab {
        "lab" => ("takt lab exec".to_owned(), "takt lab down".to_owned()),
        _ => (
            format!("takt lab exec --lab {lab}"),
            format!("takt lab down {lab}"),
        ),
    };
    format!(
        "\nA node runs on each host. Try, the first in a terminal of its own:\n\
         \x20 {exec} h2 -- takt sub weather\n\
         \x20 {exec} h1 -- takt pub weather hello\n\
         \x20 {exec} h1 -- takt status\n\
         \x20 {down}\n"
    )
}

impl Exec {
    fn run(self) -> Result<(), Failure> {
        needs_root(&format!("enter the lab {}", self.name))?;
        let lab = Hosts::find(&self.name)?;
        let host = lab
            .all()
            .find(|host| host.name() == self.host)
            .ok_or_else(|| {
                let names: Vec<&str> = lab.all().map(Host::name).collect();
                Failure::Other(format!(
                    "lab {} has no host {}: it has {}",
                    self.name,
                    self.host,
                    names.join(", ")
                ))
            })?;
        let (program, arguments) = self
            .command
            .split_first()
            .ok_or_else(|| Failure::Other("no command: name one behind the host".into()))?;
        let error = host.login(program)?.args(arguments).exec();
        Err(Failure::Other(format!(
            "cannot run {program} in {}: {error}; name a program by its path, or one that is in PATH",
            host.namespace()
        )))
    }
}

fn show(labs: &[Hosts], form: Form) -> Result<(), Failure> {
    let hosts: Vec<Described> = labs
        .iter()
        .flat_map(|lab| lab.all().map(move |host| describe(lab, host)))
        .collect();
    if form.json {
        return print_json(&hosts);
    }
    let columns = [
        ("LAB", Align::Left),
        ("HOST", Align::Left),
        ("NAMESPACE", Align::Left),
        ("INTERFACE", Align::Left),
        ("ADDRESS", Align::Left),
        ("MTU", Align::Right),
    ];
    let rows = hosts.into_iter().map(|host| {
        vec![
            host.lab,
            host.host,
            host.namespace,
            host.interface.to_owned(),
            format!("{}/{}", host.address, host.prefix_length),
            host.mtu.to_string(),
        ]
    });
    print(&table(&columns, rows.collect()))
}

fn describe(lab: &Hosts, host: &Host) -> Described {
    Described {
        lab: lab.name().to_owned(),
        host: host.name().to_owned(),
        namespace: host.namespace().to_owned(),
        interface: host.interface(),
        address: host.address().to_string(),
        prefix_length: host.prefix_length(),
        mtu: host.mtu(),
    }
}
