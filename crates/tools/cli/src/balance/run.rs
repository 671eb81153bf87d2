//! `takt balance run`: the program, what decides for it, and the health of the service's flows, in one loop.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use takt_balance::budget::Budget;
use takt_balance::resource::Marks;
use takt_balance_xdp::beat::{Key, PORT};
use takt_balance_xdp::{Balancer, Config, Event, Neighbour, Service};
use takt_capture::Meta;
use takt_capture::socket::PromptSocket;
use takt_health::key::FlowKey;
use takt_health::packet::LinkType;
use takt_health::rule::Action;
use takt_health::spec::Document;
use takt_health::stamp::AVTP;
use takt_health::table::{self as flows, What};

use super::control::Control;
use super::message::Begun;
use super::{arguments, hash_of_any};
use crate::failure::Failure;
use crate::monitor::{Watched, tai};
use crate::output::{Form, print, print_json_line};
use crate::signals::{Stop, tell_ready};

/// `ENETDOWN`.
const ENETDOWN: i32 = rustix::io::Errno::NETDOWN.raw_os_error();
/// Flows that are looked at after each tick.
const SWEEP: usize = 1024;
/// A flow's limit is given up when the flow was not seen for so long.
const FORGOTTEN_NS: i64 = 1_000_000_000;

const HELP: &str = "\
A bundle (all flows whose hashes end alike) leaves its processor when more than --overload packets wait there,
until a quarter of them is left; it goes to another processor, else to a neighbour. It goes back when a processor has been
calm for --hold. It moves only after a pause of --delta, and only once its processor has let out its last
packet, so that none is overtaken. --delta must be longer than paths to neighbours differ.

--rules names specifications and rules as of `takt monitor`. A rule whose actions have `control` makes the flow's bundle leave where it is.
The file is read again when it changes; a faulty one is told and changes nothing. A flow with a max-delay leaves before so many packets wait that it would be late. Watched is what processors of this host
get, where it leaves their queues. With --control, rules of a `takt monitor --control` elsewhere (on a neighbour, at the client) do the same: their
messages are signed with the key, which is needed, and the hosts' clocks must agree within 10 s. Such a rule names the flow as it comes here: at the client,
that is what `takt monitor --outgoing` sees. An assigned bundle stays.

A neighbour has the service's address, too (on `lo`, with net.ipv4.conf.all.arp_ignore=1 and arp_announce=2, else it answers
ARP for it, and asks in its name), and answers clients itself.
This host needs net.ipv4.conf.all.arp_announce=2 and another address of that subnet, in front of the service's: a neighbour answers no ARP request that
comes from an address of its own, and beats go to that one. Frames reach it by its hardware
address, or in VXLAN: then mac= is that of its VXLAN device. It lives as long as its beats come (`takt balance beat`).

A TSN stream (stream:…) is told by the destination and the VLAN of its frames, which carry no IP; frames that keep a link and its clock (ARP,
LLDP, PTP, MRP, 802.1X, LACP) are never taken. Neighbours get streams by VXLAN alone, as they are: vni= and mac= are needed.

What comes by a veth without a checksum, which is left to a device, is lost once it is sent on (UdpInCsumErrors): who sends needs `ethtool -K … tx off`,
and for streams with a VLAN `txvlan off`, or the tag is not seen.

Native XDP is needed. Nothing is pinned: when this ends, by whatever signal, the program and its maps are gone and packets go
the kernel's way.

Examples:
  takt balance run -i eth0 --service udp:10.0.0.1:5004 --cores 2,3 --priority 50
  takt balance run -i eth0 --service udp:*:5004 --neighbour 10.0.0.3 --key /etc/takt/balance.key
  takt balance run -i eth0 --service tcp:10.0.0.1:80 --neighbour 10.1.0.3,vni=42,mac=02:00:00:00:00:01
  takt balance run -i eth0 --service stream:91:e0:f0:00:00:01/2 --cores 2,3
  takt balance run -i eth0 --service udp:10.0.0.1:5004 --neighbour 10.0.0.3 --rules camera.toml --json
  takt balance run -i eth0 --service udp:10.0.0.1:5004 --control 10.0.0.2:7485 --key /etc/takt/balance.key";

/// Balance until a signal ends it
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Run {
    /// Where packets come in
    #[arg(short = 'i', long, value_name = "INTERFACE")]
    interface: String,
    /// Whose packets: udp or tcp, address or *, port; or a TSN stream without IP: stream:MAC or stream:MAC/VLAN, stream:* and
    /// stream:*/VLAN for all of AVTP
    #[arg(long, value_name = "SERVICE", required = true)]
    service: Vec<Service>,
    /// Processors that may work on them [default: all that are online]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cores: Vec<u32>,
    /// Another host that provides the service: ADDRESS, or ADDRESS,vni=NUMBER,mac=MAC for VXLAN
    #[arg(long, value_name = "NEIGHBOUR", value_parser = arguments::neighbour)]
    neighbour: Vec<Neighbour>,
    /// Bundles of each receive queue, a power of two
    #[arg(long, value_name = "COUNT", default_value = "1024", value_parser = arguments::bits)]
    bundles: u8,
    /// Time-out of flowlets
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = arguments::time)]
    delta: Duration,
    /// How long a processor must be calm before bundles come back
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = arguments::time)]
    hold: Duration,
    /// Packets that wait for a processor or neighbour and make it overloaded
    #[arg(long, value_name = "PACKETS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=16384))]
    overload: u32,
    /// Packets that the queue of a processor holds
    #[arg(long, value_name = "PACKETS", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=16384))]
    queue: u32,
    /// Run the threads of queues, and this one, before all others: their priority by SCHED_FIFO, 1 to 99. A core whose thread does not get to
    /// run keeps its bundles
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..=99))]
    priority: Option<u8>,
    /// A neighbour without beats for so long is dead
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = arguments::time)]
    silence: Duration,
    /// Where beats come to
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from(([0, 0, 0, 0], PORT)))]
    beats: SocketAddr,
    /// Neighbours send no beats, and live
    #[arg(long, conflicts_with_all = ["silence", "beats"])]
    no_beats: bool,
    /// A file whose bytes, 16 at least, are the key of beats and control messages, and which others may not read; without it, beats are known by their source address alone,
    /// and whoever can send from that keeps a neighbour alive, or ends it. With it a beat counts from the address that it was sent from, at the one that it was sent to: no NAT may
    /// be between
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Where rules of `takt monitor` send messages to have flows leave, such as 10.0.0.2:7485
    #[arg(long, value_name = "ADDRESS", requires = "key")]
    control: Option<SocketAddr>,
    /// The function of the service, 0 to 63, of those that neighbours say they provide
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=63))]
    function: u8,
    /// What flows are to keep to, and rules
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Time between two looks at queues, 100us to 10s
    #[arg(long, value_name = "TIME", default_value = "500us", value_parser = arguments::every)]
    tick: Duration,
    /// Stop after this time
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    lasts: Option<Duration>,
    #[command(flatten)]
    form: Form,
}

/// A line of `--json`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Line<'a> {
    /// Packets are balanced from now on.
    Ready {
        interface: &'a str,
        queues: u32,
        bundles: u32,
        /// With --control.
        #[serde(skip_serializing_if = "Option::is_none")]
        control: Option<SocketAddr>,
    },
    /// Of a neighbour.
    Dead {
        neighbour: u16,
    },
    Alive {
        neighbour: u16,
    },
    Unreachable {
        neighbour: u16,
    },
    Reachable {
        neighbour: u16,
    },
    NotTaken {
        neighbour: u16,
    },
    OtherKey {
        neighbour: u16,
    },
    OtherVersion {
        neighbour: u16,
        version: u8,
    },
    Older {
        neighbour: u16,
    },
    /// A rule has a flow leave.
    Leaves {
        at_ns: i64,
        flow: &'a str,
        rule: &'a str,
        bundle: u32,
    },
    /// It would, and its bundle is assigned.
    Stays {
        at_ns: i64,
        flow: &'a str,
        rule: &'a str,
        bundle: u32,
    },
    /// The file of rules was changed, and is in force.
    Rules {
        flows: usize,
        rules: usize,
    },
    /// At the end.
    End {
        #[serde(flatten)]
        told: super::Told,
        moves_to_cores: u64,
        moves_to_neighbours: u64,
        returns: u64,
        beats: Vec<u64>,
        beats_refused: u64,
        /// With --control: messages that were taken and refused.
        #[serde(skip_serializing_if = "Option::is_none")]
        control_messages: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        control_refused: Option<u64>,
        /// With rules: packets that they did not see.
        #[serde(skip_serializing_if = "Option::is_none")]
        unwatched: Option<u64>,
    },
}

/// Which processors are online: `0-3,5`.
fn online() -> Result<Vec<u32>, Failure> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")
        .map_err(Failure::io("read which processors are online"))?;
    let mut cores = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse(), last.parse::<u32>()) {
            cores.extend(first..=last);
        }
    }
    Ok(cores)
}

/// The health of the service's flows.
struct Health {
    socket: PromptSocket,
    /// Others' flows are watched, and left where they are.
    services: Vec<Service>,
    table: flows::Table,
    /// Packets that came faster than they were taken here.
    unwatched: u64,
    tai_offset_ns: i64,
    /// By bundle: what the flow that bears least bears.
    limits: HashMap<u32, Limit>,
    limits_looked_at_ns: i64,
}

/// Refuses rules that do what is not done here.
fn can_do(document: &Document) -> Result<(), Failure> {
    let rules = document.rules.iter();
    let mut actions = rules.flat_map(|rule| rule.actions.iter().map(move |does| (rule, does)));
    let others = actions.find(|(_, does)| matches!(does, Action::Mirror | Action::Remap));
    others.map_or(Ok(()), |(rule, does)| {
        Err(Failure::Other(format!(
            "rule {} has {}, which `takt monitor` does: leave it out here",
            rule.name,
            does.name()
        )))
    })
}

/// How many packets may wait before one of a flow, so that it is not late.
struct Limit {
    flow: FlowKey,
    hash: u32,
    seen_ns: i64,
    packets: u32,
}

impl Health {
    fn new(interface: &str, services: &[Service], document: Document) -> Result<Self, Failure> {
        can_do(&document)?;
        let socket =
            PromptSocket::open(interface).map_err(|error| Failure::Other(error.to_string()))?;
        let tai_offset_ns = tai::offset_ns();
        let config = flows::Config {
            tai_offset_ns,
            ..flows::Config::default()
        };
        Ok(Self {
            socket,
            services: services.to_vec(),
            table: flows::Table::new(config, document),
            unwatched: 0,
            tai_offset_ns,
            limits: HashMap::new(),
            limits_looked_at_ns: 0,
        })
    }

    /// Puts other specifications and rules in force. Whether they can be.
    fn replace(&mut self, balancer: &mut Balancer, document: Document) -> bool {
        if let Err(failure) = can_do(&document) {
            eprintln!("takt: {failure}; the rules before stay");
            return false;
        }
        self.table.replace_document(document);
        self.forget_limits(balancer);
        true
    }

    fn forget_limits(&mut self, balancer: &mut Balancer) {
        let limits = self.limits.drain();
        limits.for_each(|(_, limit)| balancer.limit(limit.hash, u32::MAX));
    }

    /// Takes what has come. What rules and limits have flows do goes to the balancer.
    fn step(&mut self, balancer: &mut Balancer, json: bool, bits: u8) -> Result<(), Failure> {
        let offset = tai::offset_ns();
        if offset != self.tai_offset_ns {
            // Somebody has told the kernel of TAI: times of before cannot be compared with those of now.
            self.tai_offset_ns = offset;
            self.table.begin_anew(offset);
            self.forget_limits(balancer);
        }
        let (table, limits) = (&mut self.table, &mut self.limits);
        let services = &self.services;
        let service_ns = balancer.service_ns();
        let mut last_ns = None;
        let take = |meta: &Meta, bytes: &[u8], drops: u32| {
            let now_ns = match meta.utc_ns {
                0 => tai::utc_now(),
                utc_ns => utc_ns,
            };
            let now_ns = now_ns.saturating_add(offset);
            last_ns = Some(now_ns);
            // What had no room here was not lost on its way.
            if drops > 0 {
                table.note_unseen(now_ns);
            }
            let Some(link) = LinkType::from_number(meta.link_type) else {
                return;
            };
            // What cannot be read is counted there.
            let Ok(seen) = table.take(now_ns, link, bytes, meta.length) else {
                return;
            };
            let Some(flow) = seen.flow.and_then(|at| table.flow(at)) else {
                return;
            };
            let most = table.spec(flow).and_then(|spec| spec.max_delay_ns);
            if let (Some(deadline_ns), Some(delay), Some(own_ns), Some(hash)) = (
                most,
                flow.last_delay_ns(),
                service_ns,
                hash_of(services, &flow.key),
            ) {
                // What it waited here is in the delay that was seen, and is no way of the network's.
                let waited = i64::from(balancer.waiting(hash)).saturating_mul(own_ns);
                let budget = Budget {
                    deadline_ns,
                    delay_ns: delay.saturating_sub(waited),
                    own_ns,
                };
                let limit = budget.packets(own_ns);
                let bundle = hash & ((1 << bits) - 1);
                let of_other = limits.get(&bundle).is_some_and(|least| {
                    least.flow != flow.key && limit > least.packets && !least.is_old(now_ns)
                });
                if !of_other {
                    let least = Limit {
                        flow: flow.key,
                        hash,
                        seen_ns: now_ns,
                        packets: limit,
                    };
                    limits.insert(bundle, least);
                    balancer.limit(hash, limit);
                }
            }
        };
        match self.socket.take_with_drops(take) {
            Ok(_) => {}
            // It is told once when the interface goes down, and may come up again.
            Err(error) if error.raw_os_error() == Some(ENETDOWN) => {}
            Err(error) => return Err(Failure::io("watch the interface")(error)),
        }
        let now_ns = tai::utc_now() + offset;
        let statistics = self.socket.statistics();
        let drops = statistics
            .map_err(Failure::io("ask what was dropped"))?
            .drops;
        if drops > 0 {
            self.unwatched += u64::from(drops);
            self.table.note_unseen(now_ns);
        }
        let backlog_ns = last_ns.map_or(0, |last| (now_ns - last).max(0));
        self.table.note_own(now_ns, backlog_ns, self.unwatched);
        self.table.sweep(now_ns, SWEEP);
        if !(0..FORGOTTEN_NS).contains(&(now_ns - self.limits_looked_at_ns)) {
            self.limits_looked_at_ns = now_ns;
            let gone = self.limits.extract_if(|_, limit| limit.is_old(now_ns));
            gone.for_each(|(_, limit)| balancer.limit(limit.hash, u32::MAX));
        }
        let events: Vec<_> = self.table.take_events().collect();
        for event in events {
            let What::Rule {
                rule,
                actions,
                begins: true,
            } = &event.what
            else {
                continue;
            };
            let controls = actions.contains(&Action::Control);
            let Some(hash) = hash_of(&self.services, &event.key).filter(|_| controls) else {
                continue;
            };
            leave(balancer, hash, bits, (event.at_ns, &event.flow, rule), json)?;
        }
        Ok(())
    }
}

/// A rule has a flow leave where it is: when, which, by which one.
fn leave(
    balancer: &mut Balancer,
    hash: u32,
    bits: u8,
    (at_ns, flow, rule): (i64, &str, &str),
    json: bool,
) -> Result<(), Failure> {
    let leaves = balancer.evict(hash);
    let bundle = hash & ((1 << bits) - 1);
    match (json, leaves) {
        (true, true) => print_json_line(&Line::Leaves {
            at_ns,
            flow,
            rule,
            bundle,
        }),
        (true, false) => print_json_line(&Line::Stays {
            at_ns,
            flow,
            rule,
            bundle,
        }),
        (false, true) => print(&format!("{rule}: {flow} leaves, bundle {bundle}\n")),
        (false, false) => print(&format!(
            "{rule}: {flow} stays, bundle {bundle} is assigned: `takt balance assign … {bundle} auto` lets it go\n"
        )),
    }
}

impl Limit {
    fn is_old(&self, now_ns: i64) -> bool {
        // One of the future was seen before the clock went back.
        !(0..=FORGOTTEN_NS).contains(&(now_ns - self.seen_ns))
    }
}

/// The hash of a flow, if it is one of these services.
fn hash_of(services: &[Service], key: &FlowKey) -> Option<u32> {
    let mut services = services.iter();
    let taken = match key.stream_destination() {
        Some(destination) => {
            let avtp = key.ether_type() == Some(AVTP);
            services.any(|service| service.takes_stream(destination, key.vlan(), avtp))
        }
        None => {
            let ((_, destination), (_, to)) = (key.addresses()?, key.ports()?);
            let (protocol, destination) = (key.protocol()?, SocketAddr::new(destination, to));
            services.any(|service| service.takes(protocol, destination))
        }
    };
    if taken { hash_of_any(key) } else { None }
}

/// Waits for one of these, or for the time.
fn wait(sources: &[BorrowedFd<'_>], time: Duration) -> Result<(), Failure> {
    let mut polled: Vec<_> = sources
        .iter()
        .map(|source| PollFd::from_borrowed_fd(*source, PollFlags::IN))
        .collect();
    let time = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    match poll(&mut polled, Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Failure::io("wait for packets")(error.into())),
    }
}

impl Run {
    fn config(&self) -> Result<Config, Failure> {
        let cores = match self.cores.is_empty() {
            true => online()?,
            false => self.cores.clone(),
        };
        if self.no_beats && self.key.is_some() && self.control.is_none() {
            return Err(Failure::Other(
                "--key is for beats and control messages: with --no-beats leave it out, or take messages with --control".into(),
            ));
        }
        let heard = !self.no_beats && !self.neighbour.is_empty();
        let marks = Marks::new(self.overload, self.overload / 4);
        let marks = marks.map_err(takt_balance_xdp::Error::from)?;
        Ok(Config {
            interface: self.interface.clone(),
            services: self.service.clone(),
            cores,
            neighbours: self.neighbour.clone(),
            bits: self.bundles,
            delta: self.delta,
            hold: self.hold,
            of_cores: marks,
            of_neighbours: marks,
            silence: heard.then_some(self.silence),
            function: self.function,
            queue: self.queue,
            priority: self.priority,
            beats: heard.then_some(self.beats),
            key: self.key.as_deref().map(Key::read).transpose()?,
        })
    }

    pub fn run(self) -> Result<(), Failure> {
        let rules = self.rules.as_deref().map(Watched::open).transpose()?;
        let (document, watched) = rules.unzip();
        // Before this thread gets its priority, which is not for reading files.
        let changed = watched.map(Watched::follow).transpose()?;
        let stop = Stop::by_signals()?;
        let config = self.config()?;
        let key = config.key.clone();
        let mut balancer = Balancer::new(config)?;
        let health = document.map(|document| Health::new(&self.interface, &self.service, document));
        let mut health = health.transpose()?;
        let control = self.control.zip(key);
        let control = control.map(|(address, key)| Control::open(address, key));
        let mut control = control.transpose()?;
        let status = balancer.status()?;
        let (queues, bundles) = (status.queues, status.bundles);
        match self.form.json {
            true => print_json_line(&Line::Ready {
                interface: &self.interface,
                queues,
                bundles,
                control: control.as_ref().map(|control| control.address),
            })?,
            false => print(&format!(
                "{}: balancing {} over {} processors and {} neighbours\n",
                self.interface,
                crate::output::list(&self.service),
                status.cores.len(),
                status.neighbours.len()
            ))?,
        }
        tell_ready();
        let begin = Instant::now();
        let mut next = begin;
        while !stop.asked() && self.lasts.is_none_or(|lasts| begin.elapsed() < lasts) {
            let packets = health.as_ref().map(|health| health.socket.as_fd());
            let messages = control.as_ref().map(Control::as_fd);
            let sources = packets.into_iter().chain(messages).chain(balancer.beats());
            let sources: Vec<_> = sources.collect();
            wait(&sources, next.saturating_duration_since(Instant::now()))?;
            balancer.attend();
            if let Some(health) = &mut health {
                health.step(&mut balancer, self.form.json, self.bundles)?;
            }
            if let Some(control) = &mut control {
                let balancer = &mut balancer;
                control.attend(tai::utc_now(), |begun| self.obey(balancer, begun))?;
            }
            // All bundles at their own pace, however many packets and beats come.
            if Instant::now() < next {
                continue;
            }
            for event in balancer.tick()? {
                self.tell(event)?;
            }
            let document = changed.as_ref().and_then(|changed| changed.try_recv().ok());
            if let (Some(health), Some(document)) = (&mut health, document) {
                let (flows, rules) = (document.specs.len(), document.rules.len());
                if health.replace(&mut balancer, document) {
                    self.tell_rules(flows, rules)?;
                }
            }
            next = Instant::now() + self.tick;
        }
        self.end(&balancer, health.map(|health| health.unwatched), control)
    }

    /// Has a flow leave, if it is one of a service.
    fn obey(&self, balancer: &mut Balancer, begun: &Begun) -> Result<bool, Failure> {
        let Some(hash) = hash_of(&self.service, &begun.flow) else {
            return Ok(false);
        };
        let at_ns = begun.sent_ns + tai::offset_ns();
        let told = (at_ns, &*begun.flow.to_string(), &*begun.rule);
        leave(balancer, hash, self.bundles, told, self.form.json)?;
        Ok(true)
    }

    fn tell_rules(&self, flows: usize, rules: usize) -> Result<(), Failure> {
        match self.form.json {
            true => print_json_line(&Line::Rules { flows, rules }),
            false => print(&format!(
                "the changed file is in force: {flows} flows, {rules} rules\n"
            )),
        }
    }

    fn tell(&self, event: Event) -> Result<(), Failure> {
        let (line, text) = match event {
            Event::Dead(neighbour) => (Line::Dead { neighbour }, "is dead: its beats are missing"),
            Event::Alive(neighbour) => (Line::Alive { neighbour }, "lives"),
            Event::Unreachable(neighbour) => (
                Line::Unreachable { neighbour },
                "cannot be reached: see `ip route get` and `ip neigh`",
            ),
            Event::Reachable(neighbour) => (Line::Reachable { neighbour }, "can be reached"),
            Event::OtherKey(neighbour) => (
                Line::OtherKey { neighbour },
                "sends beats that are not by this key, or for other addresses, which are refused: give `takt balance beat` there the same file with --key, \
                 and let no NAT be between",
            ),
            Event::OtherVersion(neighbour, version) => (
                Line::OtherVersion { neighbour, version },
                "sends beats of another version, which are refused: have the same version of takt there",
            ),
            Event::Older(neighbour) => (
                Line::Older { neighbour },
                "sends beats that are older than those before it was started again, which are refused: its clock was set back, and is more than 10 s off \
                 this one's; set both, or start this again",
            ),
            Event::NotTaken(neighbour) => (
                Line::NotTaken { neighbour },
                "gets nothing: the device on the way takes no frames of XDP programs; of a veth, switch on `gro` at its other end (`ethtool -K`)",
            ),
        };
        let (Event::Dead(number)
        | Event::Alive(number)
        | Event::Unreachable(number)
        | Event::Reachable(number)
        | Event::NotTaken(number)
        | Event::OtherKey(number)
        | Event::OtherVersion(number, _)
        | Event::Older(number)) = event;
        let address = self.neighbour.get(usize::from(number));
        let address = address.map(|neighbour| neighbour.address.to_string());
        match self.form.json {
            true => print_json_line(&line),
            false => print(&format!(
                "neighbour:{number} ({}) {text}\n",
                address.unwrap_or_default()
            )),
        }
    }

    fn end(
        &self,
        balancer: &Balancer,
        unwatched: Option<u64>,
        control: Option<Control>,
    ) -> Result<(), Failure> {
        let told = super::told(&self.interface, balancer.status()?);
        let moves = balancer.moves();
        let (beats, beats_refused) = balancer.heard();
        match self.form.json {
            true => print_json_line(&Line::End {
                told,
                moves_to_cores: moves.to_cores,
                moves_to_neighbours: moves.to_neighbours,
                returns: moves.returns,
                beats,
                beats_refused,
                control_messages: control.as_ref().map(|control| control.messages),
                control_refused: control.as_ref().map(|control| control.refused),
                unwatched,
            }),
            false => {
                let mut text = super::show(&told);
                if balancer.beats().is_some() {
                    let beats: u64 = beats.iter().sum();
                    text.push_str(&format!("{beats} beats, and {beats_refused} refused\n"));
                }
                if let Some(control) = control {
                    text.push_str(&format!(
                        "{} control messages, and {} refused\n",
                        control.messages, control.refused
                    ));
                }
                if let Some(packets @ 1..) = unwatched {
                    text.push_str(&format!(
                        "{packets} packets came faster than rules could watch them\n"
                    ));
                }
                print(&text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use takt_balance_xdp::hash_of_stream;
    use takt_wire::ethernet::{EtherType, MacAddress};

    #[test]
    fn a_limit_is_old_after_its_time_and_when_the_clock_has_gone_back() {
        let limit = Limit {
            flow: FlowKey::v4(17, [10, 0, 0, 9], [10, 0, 0, 1], [7, 5004]),
            hash: 1,
            seen_ns: 7,
            packets: 1,
        };
        assert!(!limit.is_old(7));
        assert!(!limit.is_old(7 + FORGOTTEN_NS));
        assert!(limit.is_old(8 + FORGOTTEN_NS));
        assert!(limit.is_old(6));
    }

    #[test]
    fn a_flow_of_no_service_has_no_bundle() {
        let services = ["udp:10.0.0.1:5004", "stream:91:e0:f0:00:00:01/5"];
        let services = services.map(|text| text.parse::<Service>().expect("a service"));
        let of = |key: FlowKey| hash_of(&services, &key);
        let mac = MacAddress([0x91, 0xe0, 0xf0, 0, 0, 1]);
        let stream = |vlan| of(FlowKey::stream(mac, vlan, EtherType(0x88b5)));
        assert_eq!(stream(Some(5)), Some(hash_of_stream(mac, Some(5))));
        assert_eq!((stream(None), stream(Some(6))), (None, None));
        let to = |last, port| of(FlowKey::v4(17, [10, 0, 0, 9], [10, 0, 0, last], [7, port]));
        assert!(to(1, 5004).is_some());
        assert_eq!((to(2, 5004), to(1, 5005)), (None, None));
    }
}
