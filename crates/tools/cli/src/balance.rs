//! `takt balance`: load management of any service of this host, by an XDP program.

mod arguments;
pub mod control;
pub mod message;
mod run;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, Subcommand};
use serde::Serialize;
use takt_balance::table::Target;
use takt_balance_xdp::beat::{Beat, Ends, Key, PORT, new_sender};
use takt_balance_xdp::look::{self, Look};
use takt_balance_xdp::{COUNTERS, Counters, hash, hash_of_stream};
use takt_health::key::FlowKey;

use crate::failure::Failure;
use crate::output::{Align, Form, print, print_json, table};
use crate::signals::Stop;

const HELP: &str = "\
Packets of a service are taken before the kernel's stack: each goes to the processor of its flow's
bundle, or to a neighbour that provides the service, too. Bundles leave what is overloaded, and what is
dead, with their next flowlet, so no flow is reordered. Nothing has to be changed in the service.

Examples:
  takt balance run -i eth0 --service udp:10.0.0.1:5004
  takt balance run -i eth0 --service udp:10.0.0.1:5004 --neighbour 10.0.0.3 --rules camera.toml
  takt balance beat 10.0.0.2                    on the neighbour: it lives, and this is its load
  takt balance status -i eth0
  takt balance status -i eth0 --flow 'udp 10.0.0.9:4000 > 10.0.0.1:5004'
  takt balance assign -i eth0 17 core:1";

/// Moves the flows of any service between processors and neighbours, in order
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Balance {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Balance until a signal ends it
    Run(Box<run::Run>),
    /// Tell those that balance that this host lives, and how loaded it is
    Beat(SendBeats),
    /// Show what goes where
    Status(Status),
    /// Have a bundle go somewhere and stay there, or let it go where the rules have it
    Assign(Assign),
}

const BEAT_HELP: &str = "\
A neighbour gets flows only while its beats come. Send them as often as a quarter of the --silence of those that
balance, at least. Beats go to an address of the balancer that is its own alone: the service's is this host's as
well, so that beats to it come back here. It is refused; loopback addresses are not.

With --key a beat counts for the addresses that it was sent from and to, so NAT may not be between. Who starts this again may have set the clock back
meanwhile, to within 10 s of the balancer's: its beats count once those of before have been missing for --silence.

A host with the service's address on `lo` still answers ARP for it on its other interfaces, and takes it from the balancer, unless
  sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2

Examples:
  takt balance beat 10.0.0.2
  takt balance beat 10.0.0.2 10.0.0.4 --of eth0 --key /etc/takt/balance.key";

/// Tells those that balance that this host lives, and how loaded it is
#[derive(Debug, Args)]
#[command(after_help = BEAT_HELP)]
struct SendBeats {
    /// Hosts that balance, with a port if it is another
    #[arg(value_name = "ADDRESS", required = true)]
    to: Vec<String>,
    /// Time from beat to beat, 100us to 10s
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = arguments::every)]
    every: Duration,
    /// The load to tell is that of the least loaded processor of `takt balance run` at this interface; without it, beats tell a load of 0
    #[arg(long, value_name = "INTERFACE")]
    of: Option<String>,
    /// Functions that this host provides, 0 to 63 [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(0..=63))]
    functions: Vec<u8>,
    /// A file whose bytes, 16 at least, are the key of beats, and which others may not read; without it, beats of whoever sends from this host's address count
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Stop after this time
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    lasts: Option<Duration>,
}

impl SendBeats {
    fn run(self) -> Result<(), Failure> {
        let key = self.key.as_deref().map(Key::read).transpose()?;
        let mut to = Vec::new();
        for text in &self.to {
            let address = address(text)?;
            if is_own(&address) {
                return Err(Failure::Other(format!(
                    "{text} is an address of this host, as the service's is of all that provide it: beats to it would come back here; \
                     name an address that the balancer alone has, a second one if need be (`ip address add … dev …` there)"
                )));
            }
            to.push(address);
        }
        let sender = new_sender()?;
        let mut listeners: Vec<_> = to.into_iter().map(Listener::new).collect();
        let mut load = self.of.as_deref().map(Load::of).transpose()?;
        let functions = match self.functions.is_empty() {
            true => u64::MAX,
            false => self
                .functions
                .iter()
                .fold(0, |bits, function| bits | 1 << function),
        };
        let stop = Stop::by_signals()?;
        let (begin, mut next) = (Instant::now(), Instant::now());
        let (mut failed, mut sequence) = (None, 0);
        while self.lasts.is_none_or(|lasts| begin.elapsed() < lasts) {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            // The time, so that a sender that is started again goes on; it counts on where the clock is set back meanwhile.
            sequence = since
                .map_or(0, |since| since.as_nanos() as u64)
                .max(sequence + 1);
            let beat = Beat {
                load: load.as_mut().map_or(0, Load::now),
                sender,
                functions,
                sequence,
            };
            for listener in &mut listeners {
                // Whoever is not there yet may come: told once.
                if let Err(error) = listener.send(&beat, key.as_ref())
                    && failed.replace(()).is_none()
                {
                    let to = listener.to;
                    eprintln!("takt: warning: cannot send a beat to {to}: {error}");
                }
            }
            next = (next + self.every).max(Instant::now());
            if !stop.sleep_until(next) {
                break;
            }
        }
        Ok(())
    }
}

/// Whom beats are sent to.
struct Listener {
    to: SocketAddr,
    /// Bound to the address from which the kernel sends there, which tags name, and when that was looked up.
    from: Option<(UdpSocket, Instant)>,
}

impl Listener {
    /// Between two looks whether the address is still the same.
    const EVERY: Duration = Duration::from_millis(100);

    fn new(to: SocketAddr) -> Self {
        Self { to, from: None }
    }

    fn send(&mut self, beat: &Beat, key: Option<&Key>) -> io::Result<()> {
        let bound = self.from.take();
        let (socket, looked) = match bound {
            Some((socket, looked)) if looked.elapsed() < Self::EVERY => (socket, looked),
            bound => {
                let mut from = own_address(&self.to)?;
                from.set_port(0);
                let same = bound.filter(|(socket, _)| {
                    (socket.local_addr()).is_ok_and(|bound| bound.ip() == from.ip())
                });
                let socket = match same {
                    Some((socket, _)) => socket,
                    None => UdpSocket::bind(from)?,
                };
                (socket, Instant::now())
            }
        };
        let ends = Ends {
            from: socket.local_addr()?.ip(),
            to: self.to.ip(),
        };
        socket.send_to(&beat.write(key, ends), self.to)?;
        self.from = Some((socket, looked));
        Ok(())
    }
}

/// The load that `takt balance run` has at an interface, also when that is started again.
struct Load<'a> {
    interface: &'a str,
    look: Option<Look>,
    looked: Instant,
}

impl<'a> Load<'a> {
    /// Between two looks whether it is still the same.
    const EVERY: Duration = Duration::from_secs(1);

    fn of(interface: &'a str) -> Result<Self, Failure> {
        Ok(Self {
            interface,
            look: Some(Look::at(interface)?),
            looked: Instant::now(),
        })
    }

    /// As of now; 0 while nothing balances there.
    fn now(&mut self) -> u32 {
        if self.looked.elapsed() >= Self::EVERY {
            self.looked = Instant::now();
            let is_there = self.look.as_ref().is_some_and(Look::is_there);
            if !is_there {
                let (interface, was) = (self.interface, self.look.is_some());
                self.look = Look::at(interface).ok();
                match (was, self.look.is_some()) {
                    (true, false) => eprintln!(
                        "takt: warning: nothing balances flows at {interface} any more: until `takt balance run -i {interface} …` does again, beats tell \
                         a load of 0"
                    ),
                    (false, true) => eprintln!("takt: flows are balanced at {interface} again"),
                    _ => {}
                }
            }
        }
        self.look.as_mut().map_or(0, Look::load)
    }
}

/// From where the kernel sends to an address.
fn own_address(to: &SocketAddr) -> io::Result<SocketAddr> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.local_addr()
}

/// Whether an address is one of this host's, other than a loopback one: the kernel sends there from the address itself.
fn is_own(to: &SocketAddr) -> bool {
    !to.ip().is_loopback() && own_address(to).is_ok_and(|from| from.ip() == to.ip())
}

/// An address with the usual port, or another.
fn address(text: &str) -> Result<SocketAddr, Failure> {
    let found = match text.parse() {
        Ok(ip) => Some(SocketAddr::new(ip, PORT)),
        Err(_) => text
            .to_socket_addrs()
            .or_else(|_| (text, PORT).to_socket_addrs())
            .ok()
            .and_then(|mut found| found.next()),
    };
    found.ok_or_else(|| {
        Failure::Other(format!(
            "{text:?} is no host that is known: write an address as 10.0.0.1 or 10.0.0.1:{PORT}"
        ))
    })
}

#[derive(Debug, Args)]
struct At {
    /// The interface
    #[arg(short = 'i', long, value_name = "INTERFACE")]
    interface: String,
}

#[derive(Debug, Args)]
struct Status {
    #[command(flatten)]
    at: At,
    /// The bundle of this flow alone, and where it goes; written as `takt monitor` does: 'udp 10.0.0.9:4000 > 10.0.0.1:5004',
    /// 'stream 91:e0:f0:00:00:01 vlan 2 type 0x22f0'
    #[arg(long, value_name = "FLOW")]
    flow: Option<FlowKey>,
    #[command(flatten)]
    form: Form,
}

const ASSIGN_HELP: &str = "\
The bundle goes there with its next flowlet, in all receive queues, and stays until it is let go (auto) or what it went to dies. A neighbour that is dead is refused.
Numbers are those of `takt balance status`, from 0 on. A map is written, nobody is asked: the next packet goes by it.
A flow stands for its bundle, with all flows of that; whether it is one of a service that is balanced is not looked at.

Examples:
  takt balance assign -i eth0 17 core:1
  takt balance assign -i eth0 'udp 10.0.0.9:4000 > 10.0.0.1:5004' core:1
  takt balance assign -i eth0 17 neighbour:0
  takt balance assign -i eth0 17 auto";

/// Have a bundle go somewhere and stay there, or let it go where the rules have it
#[derive(Debug, Args)]
#[command(after_help = ASSIGN_HELP)]
struct Assign {
    #[command(flatten)]
    at: At,
    /// The bundle: its number, or a flow as of `takt balance status --flow`
    #[arg(value_name = "BUNDLE", value_parser = arguments::which)]
    bundle: arguments::Which,
    /// core:NUMBER, neighbour:NUMBER or auto
    #[arg(value_name = "TARGET", value_parser = arguments::target)]
    target: arguments::Wish,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Told {
    interface: String,
    queues: u32,
    bundles: u32,
    delta_ns: u64,
    pending: usize,
    cores: Vec<CoreLine>,
    neighbours: Vec<NeighbourLine>,
    packets: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Serialize)]
struct CoreLine {
    core: usize,
    cpu: u32,
    bundles: usize,
    packets: u64,
    waiting: u64,
    lost: u64,
}

#[derive(Debug, Serialize)]
struct NeighbourLine {
    neighbour: usize,
    bundles: usize,
    alive: bool,
    beats: bool,
    reachable: bool,
}

/// What `--json` prints of a flow.
#[derive(Debug, Serialize)]
struct ToldOfFlow {
    interface: String,
    flow: String,
    bundle: u32,
    /// Where it goes, by receive queue; null: nothing of it has come by that one.
    targets: Vec<Option<String>>,
}

/// The hash of a flow, whosever it is.
fn hash_of_any(key: &FlowKey) -> Option<u32> {
    if let Some(destination) = key.stream_destination() {
        return Some(hash_of_stream(destination, key.vlan()));
    }
    let ((source, destination), (from, to)) = (key.addresses()?, key.ports()?);
    hash(
        key.protocol()
            .filter(|protocol| [6, 17].contains(protocol))?,
        SocketAddr::new(source, from),
        SocketAddr::new(destination, to),
    )
}

/// The bundle of a flow.
fn bundle_of(look: &Look, flow: &FlowKey) -> Result<u32, Failure> {
    let hash = hash_of_any(flow).ok_or_else(|| {
        Failure::Other(format!(
            "{flow} is in no bundle: flows of UDP and TCP are, and TSN streams"
        ))
    })?;
    Ok(look.bundle(hash))
}

fn told_of_flow(interface: &str, look: &Look, flow: &FlowKey) -> Result<ToldOfFlow, Failure> {
    let bundle = bundle_of(look, flow)?;
    let name = |target| match target {
        Target::Core(number) => format!("core:{number}"),
        Target::Neighbour(number) => format!("neighbour:{number}"),
    };
    let targets = look.targets(bundle).map(|target| target.map(name));
    Ok(ToldOfFlow {
        interface: interface.to_owned(),
        flow: flow.to_string(),
        bundle,
        targets: targets.collect(),
    })
}

fn show_flow(told: &ToldOfFlow) -> String {
    let mut targets: Vec<_> = told.targets.iter().flatten().map(String::as_str).collect();
    targets.sort_unstable();
    targets.dedup();
    let goes = match targets.is_empty() {
        true => {
            "of which nothing has come (whether the flow is one of a service was not looked at)"
                .into()
        }
        false => format!("which goes to {}", crate::output::list(&targets)),
    };
    format!("{}: bundle {}, {goes}\n", told.flow, told.bundle)
}

fn counted(counters: &Counters) -> serde_json::Map<String, serde_json::Value> {
    let counters = COUNTERS.iter().zip(counters);
    counters
        .map(|(name, count)| ((*name).to_owned(), (*count).into()))
        .collect()
}

fn told(interface: &str, status: look::Status) -> Told {
    let cores = (0..).zip(&status.cores).map(|(number, core)| CoreLine {
        core: number,
        cpu: core.cpu,
        bundles: core.bundles,
        packets: core.packets,
        waiting: core.waiting,
        lost: core.lost,
    });
    let neighbours = (0..).zip(&status.neighbours);
    let neighbours = neighbours.map(|(number, neighbour)| NeighbourLine {
        neighbour: number,
        bundles: neighbour.bundles,
        alive: neighbour.alive,
        beats: neighbour.beats,
        reachable: neighbour.reachable,
    });
    Told {
        interface: interface.to_owned(),
        queues: status.queues,
        bundles: status.bundles,
        delta_ns: status.delta_ns,
        pending: status.pending,
        cores: cores.collect(),
        neighbours: neighbours.collect(),
        packets: counted(&status.counters),
    }
}

fn show(told: &Told) -> String {
    let columns = [
        ("target", Align::Left),
        ("bundles", Align::Right),
        ("packets", Align::Right),
        ("waiting", Align::Right),
        ("lost", Align::Right),
    ];
    let cores = told.cores.iter().map(|core| {
        vec![
            format!("core:{} (processor {})", core.core, core.cpu),
            core.bundles.to_string(),
            core.packets.to_string(),
            core.waiting.to_string(),
            core.lost.to_string(),
        ]
    });
    let neighbours = told.neighbours.iter().map(|neighbour| {
        let state = match (neighbour.beats, neighbour.reachable) {
            (true, true) => "",
            (false, true) => " (no beats)",
            (true, false) => " (no way to it)",
            (false, false) => " (no beats, no way to it)",
        };
        let dash = String::from("-");
        vec![
            format!("neighbour:{}{state}", neighbour.neighbour),
            neighbour.bundles.to_string(),
            dash.clone(),
            dash.clone(),
            dash,
        ]
    });
    let targets = table(&columns, cores.chain(neighbours).collect());
    let columns = [("packets", Align::Left), ("count", Align::Right)];
    let packets = told.packets.iter();
    let packets = packets.map(|(name, count)| vec![name.clone(), count.to_string()]);
    format!(
        "{}: {} bundles of each of {} receive queues, δ {} µs, {} to move\n{targets}\n{}",
        told.interface,
        told.bundles,
        told.queues,
        told.delta_ns as f64 / 1e3,
        told.pending,
        table(&columns, packets.collect())
    )
}

impl Balance {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Run(run) => run.run(),
            Action::Beat(beats) => beats.run(),
            Action::Status(Status {
                at,
                flow: Some(flow),
                form,
            }) => {
                let told = told_of_flow(&at.interface, &Look::at(&at.interface)?, &flow)?;
                match form.json {
                    true => print_json(&told),
                    false => print(&show_flow(&told)),
                }
            }
            Action::Status(Status { at, form, .. }) => {
                let status = Look::at(&at.interface)?.status()?;
                let told = told(&at.interface, status);
                match form.json {
                    true => print_json(&told),
                    false => print(&show(&told)),
                }
            }
            Action::Assign(assign) => {
                let look = Look::at(&assign.at.interface)?;
                let target: Option<Target> = assign.target.0;
                let bundle = match assign.bundle {
                    arguments::Which::Bundle(number) => number,
                    arguments::Which::Of(flow) => bundle_of(&look, &flow)?,
                };
                Ok(look.assign(bundle, target)?)
            }
        }
    }
}
