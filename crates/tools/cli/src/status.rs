//! `takt status`: tables of what a node has and does.

use clap::{Args, ValueEnum};
use serde::Serialize;
use taktd::admin::client::{self, Client};
use taktd::admin::json::{acceleration_name, resource_use_name, state_name};
use taktd::admin::proto::{
    Authentication, Channel, ClockState, Datapath, GetStatusRequest, LinkSchedule,
    ListDatapathsRequest, ListListenersRequest, ListPeersRequest, ListSchedulesRequest,
    ListenerStatus, Network, Node, Peer, PeerState, Protection, Session, SessionCounters, Unserved,
};
use taktd::config::value::Channels;

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Align, Form, dash, duration, list, print, print_json, size, table, wrap};

const HELP: &str = "\
Without an argument: the node with its lanes, ports and datapaths, and how many of everything. Counters
count from the start of the node; `takt top` shows rates.

One-way delays are of messages from other nodes, by traffic class: from when the sender's lane took a message,
so that what waits there for its launch time counts, until it was whole here. They are as good as the clocks of
the two nodes agree (`takt clock`); BEFORE SENT are messages that came before they were sent, by these clocks.
Percentiles are rounded up, by a sixteenth at most, or to 1.0 µs.

Examples:
  takt status
  takt status channels
  takt status sessions --json | jq '.[] | {name, lost: .counters.lost}'";

/// Shows what a node has and does.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Status {
    /// One kind of things, in full
    what: Option<What>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

/// Of which node something is listed, and how.
#[derive(Debug, Args)]
pub struct Listing {
    #[command(flatten)]
    pub daemon: Daemon,
    #[command(flatten)]
    pub form: Form,
}

impl Listing {
    /// Shows one thing of it.
    pub fn show(self, what: What) -> Result<(), Failure> {
        let Self { daemon, form } = self;
        let what = Some(what);
        Status { what, daemon, form }.run()
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum What {
    /// Applications that are attached, with their streams
    Sessions,
    /// Channels in use, with what they carried and lost
    Channels,
    /// Other nodes
    Peers,
    /// Technologies, with what they can do here
    Datapaths,
    /// Sockets for applications, with their rights
    Listeners,
}

/// Everything at once.
#[derive(Debug, Serialize)]
struct Everything {
    node: Option<Node>,
    datapaths: Vec<Datapath>,
    schedules: Vec<LinkSchedule>,
    listeners: Vec<ListenerStatus>,
    peers: Vec<Peer>,
    sessions: Vec<Session>,
    channels: Vec<Channel>,
}

impl Status {
    pub fn run(self) -> Result<(), Failure> {
        let json = self.form.json;
        self.daemon.ask(async |mut client| match self.what {
            None => {
                let mut everything = Everything::ask(&mut client).await?;
                // The text says how many there are.
                if json {
                    everything.sessions = ask_sessions(&mut client).await?;
                    everything.channels = ask_channels(&mut client).await?;
                }
                show(json, &everything, Everything::text)
            }
            Some(What::Sessions) => show(json, &ask_sessions(&mut client).await?, |s| sessions(s)),
            Some(What::Channels) => show(json, &ask_channels(&mut client).await?, |c| channels(c)),
            Some(What::Peers) => show(json, &ask_peers(&mut client).await?, |p| peers(p)),
            Some(What::Datapaths) => {
                show(json, &ask_datapaths(&mut client).await?, |d| datapaths(d))
            }
            Some(What::Listeners) => {
                show(json, &ask_listeners(&mut client).await?, |l| listeners(l))
            }
        })
    }
}

fn show<T: Serialize>(
    json: bool,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    if json {
        print_json(value)
    } else {
        print(&text(value))
    }
}

async fn ask_sessions(client: &mut Client) -> Result<Vec<Session>, Failure> {
    Ok(client::sessions(client, "").await?)
}

async fn ask_channels(client: &mut Client) -> Result<Vec<Channel>, Failure> {
    Ok(client::channels(client).await?)
}

async fn ask_peers(client: &mut Client) -> Result<Vec<Peer>, Failure> {
    let answer = client.list_peers(ListPeersRequest {}).await?;
    Ok(answer.into_inner().peers)
}

async fn ask_datapaths(client: &mut Client) -> Result<Vec<Datapath>, Failure> {
    let answer = client.list_datapaths(ListDatapathsRequest {}).await?;
    Ok(answer.into_inner().datapaths)
}

async fn ask_listeners(client: &mut Client) -> Result<Vec<ListenerStatus>, Failure> {
    let answer = client.list_listeners(ListListenersRequest {}).await?;
    Ok(answer.into_inner().listeners)
}

impl Everything {
    async fn ask(client: &mut Client) -> Result<Self, Failure> {
        let node = client.get_status(GetStatusRequest {}).await?;
        let mut node = node.into_inner().node;
        // A daemon of before does not count them.
        if let Some(node) = &mut node {
            if node.sessions == 0 {
                node.sessions = ask_sessions(client).await?.len() as u32;
            }
            if node.channels == 0 {
                node.channels = ask_channels(client).await?.len() as u32;
            }
        }
        let schedules = client.list_schedules(ListSchedulesRequest {}).await?;
        Ok(Self {
            node,
            datapaths: ask_datapaths(client).await?,
            schedules: schedules.into_inner().links,
            listeners: ask_listeners(client).await?,
            peers: ask_peers(client).await?,
            sessions: Vec::new(),
            channels: Vec::new(),
        })
    }

    fn text(&self) -> String {
        let node = self.node.clone().unwrap_or_default();
        let up = self
            .peers
            .iter()
            .filter(|peer| peer.state() == PeerState::Up)
            .count();
        let refused = node.peering.unwrap_or_default();
        let mut text = format!(
            "node       {} (taktd {}), up {}{}\n\
             peering    {}, {up} of {} peer(s) up\n\
             security   {}\n\
             known by   {}\n\
             attached   {} session(s) on {} listener(s), {} channel(s)\n",
            node.name,
            node.version,
            duration(node.uptime_seconds),
            if node.draining { ", draining" } else { "" },
            node.address,
            self.peers.len(),
            security(&node),
            known_by(&node),
            node.sessions,
            self.listeners.len(),
            node.channels,
        );
        let reasons = [
            (refused.strangers, "of strangers"),
            (
                refused.unauthenticated,
                "of senders that did not prove who they are",
            ),
            (refused.replayed, "replayed"),
            (refused.malformed, "malformed"),
            (refused.version, "of another version"),
            (refused.too_many, "beyond a limit"),
        ];
        let reasons = reasons.iter().filter(|(count, _)| *count > 0);
        let reasons: Vec<String> = reasons
            .map(|(count, why)| format!("{count} {why}"))
            .collect();
        if !reasons.is_empty() {
            text.push_str(&format!(
                "{}\n",
                wrap(
                    &format!("refused    peering datagrams: {}", reasons.join(", ")),
                    69
                )
                .join("\n           ")
            ));
        }
        let beside: Vec<String> = self.schedules.iter().filter_map(beside).collect();
        for line in beside.iter().flat_map(|text| wrap(text, 69)) {
            text.push_str(&format!("beside     {line}\n"));
        }
        text.push('\n');
        text.push_str(&lanes(&node));
        text.push('\n');
        text.push_str(&ports(&node));
        text.push('\n');
        if !node.delays.is_empty() {
            text.push_str(&delays(&node));
            text.push('\n');
        }
        text.push_str(&datapaths(&self.datapaths));
        if !self.peers.is_empty() {
            text.push('\n');
            text.push_str(&peers(&self.peers));
        }
        text.push_str(&declared_streams(&self.listeners));
        let lines = launches_of_listeners(&self.listeners);
        if !lines.is_empty() {
            text.push('\n');
            text.push_str(&lines);
        }
        text
    }
}

/// That the kernel does not keep what others send inside the gates of a link, where it is to.
fn beside(link: &LinkSchedule) -> Option<String> {
    let problem = link.other_traffic_problem.as_str();
    (!problem.is_empty()).then(|| {
        format!(
            "the gates of {}: what others send ({problem})",
            link.datapath
        )
    })
}

/// How the node keeps strangers out.
fn security(node: &Node) -> &'static str {
    match node.protection() {
        Protection::None => "NONE: whoever can send to this node uses its channels",
        Protection::Encrypt => "datagrams are authenticated and encrypted",
        _ => "datagrams are authenticated",
    }
}

/// By what peers know the node.
fn known_by(node: &Node) -> String {
    let next = match node.next_key.as_str() {
        "" => String::new(),
        next => format!(", next {next}"),
    };
    match (node.key.as_str(), node.group_key) {
        ("", false) => "nothing: it has no key".to_owned(),
        ("", true) => "the key of its group".to_owned(),
        (key, false) => format!("its key {key}{next}"),
        (key, true) => format!("its group's key, or {key}{next}"),
    }
}

fn lanes(node: &Node) -> String {
    let columns = [
        ("LANE", Align::Right),
        ("SESSIONS", Align::Right),
        ("LOAD", Align::Right),
        ("BUSY POLLS", Align::Right),
        ("PARKS", Align::Right),
        ("MALFORMED", Align::Right),
        ("UNKNOWN SENDER", Align::Right),
        ("NO SINK", Align::Right),
        ("DUPLICATE", Align::Right),
        ("INCOMPLETE", Align::Right),
    ];
    let rows = node.lanes.iter().map(|lane| {
        let counters = lane.counters.unwrap_or_default();
        let load = match (lane.load_permille, lane.overloaded) {
            (None, _) => "-".to_owned(),
            (Some(load), false) => format!("{} %", load / 10),
            (Some(load), true) => format!("{} % overloaded", load / 10),
        };
        let mut row = vec![lane.lane.to_string(), lane.sessions.to_string(), load];
        let counted = [
            counters.busy_polls,
            counters.parks,
            counters.rx_malformed,
            counters.rx_unknown_sender,
            counters.rx_no_sink,
            counters.rx_duplicate,
            counters.reassembly_refused + counters.reassembly_expired,
        ];
        row.extend(counted.map(|value| value.to_string()));
        row
    });
    table(&columns, rows.collect())
}

fn ports(node: &Node) -> String {
    let columns = [
        ("LANE", Align::Right),
        ("PORT", Align::Left),
        ("LOCAL", Align::Left),
        ("SENT", Align::Right),
        ("RECEIVED", Align::Right),
        ("ERRORS", Align::Right),
        ("DROPPED", Align::Right),
        ("INVALID", Align::Right),
    ];
    let mut rows = Vec::new();
    for lane in &node.lanes {
        for port in &lane.ports {
            let counters = port.counters.unwrap_or_default();
            rows.push(vec![
                lane.lane.to_string(),
                port.datapath.clone(),
                port.local.clone(),
                counters.tx_datagrams.to_string(),
                counters.rx_datagrams.to_string(),
                counters.tx_errors.to_string(),
                counters.rx_dropped.to_string(),
                counters.rx_invalid.to_string(),
            ]);
        }
    }
    table(&columns, rows)
}

/// How long messages from other nodes were on their way.
fn delays(node: &Node) -> String {
    let columns = [
        ("CLASS", Align::Right),
        ("RECEIVED", Align::Right),
        ("DELAY P50", Align::Right),
        ("P99", Align::Right),
        ("P99.9", Align::Right),
        ("MAX", Align::Right),
        ("BEFORE SENT", Align::Right),
    ];
    let rows = node.delays.iter().map(|class| {
        let delay = |ns: u64| match class.messages {
            0 => "-".to_owned(),
            _ => format!("{:.1} µs", ns as f64 / 1e3),
        };
        vec![
            class.class.to_string(),
            class.messages.saturating_add(class.negative).to_string(),
            delay(class.p50_ns),
            delay(class.p99_ns),
            delay(class.p999_ns),
            delay(class.longest_ns),
            class.negative.to_string(),
        ]
    });
    let mut text = table(&columns, rows.collect());
    let doubt = match node.clock_state() {
        ClockState::Synchronised => return text,
        ClockState::Holdover => {
            "the clock of this node has lost its reference: delays are off by as much as it has drifted"
        }
        ClockState::FreeRunning | ClockState::Unspecified => {
            "the clock of this node is not synchronised: delays mean nothing, but between nodes of one clock"
        }
    };
    text.push_str(&format!("{doubt} (`takt clock`)\n"));
    text
}

/// A row for each stream; one for a session that has none.
pub fn sessions(sessions: &[Session]) -> String {
    let columns = [
        ("SESSION", Align::Right),
        ("TENANT", Align::Left),
        ("NAME", Align::Left),
        ("PID", Align::Right),
        ("LANE", Align::Right),
        ("MEMORY", Align::Right),
        ("EMITTED", Align::Right),
        ("DELIVERED", Align::Right),
        ("DROPPED", Align::Right),
        ("LOST", Align::Right),
        ("STREAM", Align::Left),
        ("DATAPATH", Align::Left),
        ("WRITES", Align::Left),
        ("READS", Align::Left),
    ];
    let mut rows = Vec::new();
    let mut warnings = String::new();
    for session in sessions {
        let counters = session.counters.unwrap_or_default();
        let mut row = vec![
            session.session.to_string(),
            session.identity.clone(),
            dash(&session.name),
            session.pid.to_string(),
            session.lane.to_string(),
            size(session.arena_bytes),
            counters.emitted.to_string(),
            counters.delivered.to_string(),
            (counters.dropped_full + counters.dropped_memory).to_string(),
            counters.lost.to_string(),
        ];
        if session.streams.is_empty() {
            row.extend(["-"; 4].map(str::to_owned));
            rows.push(row);
            continue;
        }
        for stream in &session.streams {
            let mut quality = format!(
                "{} {}",
                acceleration_name(stream.acceleration),
                resource_use_name(stream.resource_use)
            );
            if let Some(class) = stream.traffic_class {
                quality.push_str(&format!(" class {class}"));
            }
            if !stream.asked_datapath.is_empty() {
                quality = format!("only {}", stream.asked_datapath);
            }
            let mut datapath = stream.datapath.clone();
            if !stream.rule.is_empty() {
                datapath.push_str(&format!(" (rule {})", stream.rule));
            }
            row.extend([
                quality,
                datapath,
                list(&stream.sources),
                list(&stream.sinks),
            ]);
            rows.push(std::mem::replace(&mut row, vec![String::new(); 10]));
            if !stream.warning.is_empty() {
                let warning = format!(
                    "warning: session {}, stream {}: {}",
                    session.session, stream.stream, stream.warning
                );
                warnings.push_str(&(wrap(&warning, 71).join("\n         ") + "\n"));
            }
        }
    }
    let launches = sessions
        .iter()
        .map(|session| launch_line(&numbered(session), session.counters.as_ref()));
    let unserved = sessions
        .iter()
        .map(|session| unserved_line(&numbered(session), &session.unserved));
    let direct = sessions.iter().map(direct_lines);
    let moved = sessions.iter().map(moved_line);
    let below = launches.chain(unserved).chain(direct).chain(moved);
    table(&columns, rows) + &warnings + &below.collect::<String>()
}

/// That a session was moved to its lane, and why.
fn moved_line(session: &Session) -> String {
    if session.moved == 0 {
        return String::new();
    }
    let times = match session.moved {
        1 => "moved once".to_owned(),
        times => format!("moved {times} times, last"),
    };
    let why = &session.moved_why;
    format!("{}: {times} to another lane, {why}\n", numbered(session))
}

/// A session in lines about it.
fn numbered(session: &Session) -> String {
    format!("session {} ({})", session.session, dash(&session.name))
}

/// A line for messages with launch times; empty if there were none.
fn launch_line(of: &str, counters: Option<&SessionCounters>) -> String {
    let Some(counters) = counters.filter(|c| c.launched + c.launches_missed > 0) else {
        return String::new();
    };
    format!(
        "launch times: {of}: {} left, {} of them late, {} did not leave\n",
        counters.launched, counters.launched_late, counters.launches_missed
    )
}

/// The sinks that a session's sources give their messages themselves, or did.
fn direct_lines(session: &Session) -> String {
    if session.direct.is_empty() && session.direct_messages == 0 {
        return String::new();
    }
    let mut text = format!(
        "{}: {} messages, {} by no lane\n",
        numbered(session),
        session.direct_messages,
        size(session.direct_bytes),
    );
    for ring in &session.direct {
        let state = match ring.ended.is_empty() {
            true => "direct".to_owned(),
            false => format!("by the lane again: {}", ring.ended),
        };
        text.push_str(&format!(
            "  channel {} to session {} ({}): {state}\n",
            ring.channel,
            ring.session,
            dash(&ring.name),
        ));
    }
    text
}

/// A line for datagrams that preloaded programs did not give to the runtime; empty if there were none.
fn unserved_line(of: &str, unserved: &[Unserved]) -> String {
    if unserved.is_empty() {
        return String::new();
    }
    let reasons = unserved.iter();
    let reasons: Vec<String> = reasons
        .map(|one| format!("{} {}", one.count, one.reason))
        .collect();
    let reasons = reasons.join(", ");
    let line = format!("not served: {of}: datagrams with a launch time: {reasons}");
    wrap(&line, 68).join("\n            ") + "\n"
}

/// A row for each declared stream; empty if there are none.
fn declared_streams(listeners: &[ListenerStatus]) -> String {
    let columns = [
        ("TENANT", Align::Left),
        ("DECLARED", Align::Left),
        ("CLASS", Align::Right),
        ("OF", Align::Left),
        ("PASSED", Align::Right),
        ("OUTSIDE", Align::Right),
        ("TOO LONG", Align::Right),
        ("TOO MANY", Align::Right),
    ];
    let mut rows = Vec::new();
    for status in listeners {
        let listener = status.listener.clone().unwrap_or_default();
        for (stream, counted) in listener.streams.iter().zip(&status.streams) {
            rows.push(vec![
                listener.identity.clone(),
                stream.name.clone(),
                stream.traffic_class.to_string(),
                match stream.channel {
                    Some(channel) => format!("channel {channel}"),
                    None => stream.destination.clone(),
                },
                counted.passed.to_string(),
                counted.refused_window.to_string(),
                counted.refused_size.to_string(),
                counted.refused_excess.to_string(),
            ]);
        }
        if !listener.streams.is_empty() {
            let mut row = vec![String::new(); columns.len()];
            row[0] = listener.identity;
            row[1] = "none of them".into();
            row[5] = status.undeclared.to_string();
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    format!("\n{}", table(&columns, rows))
}

/// What has become of the launch times of each tenant.
fn launches_of_listeners(listeners: &[ListenerStatus]) -> String {
    let lines = listeners.iter().map(|status| {
        let identity = status
            .listener
            .as_ref()
            .map_or("-", |listener| &listener.identity);
        let of = format!("tenant {identity}");
        launch_line(&of, status.counters.as_ref()) + &unserved_line(&of, &status.unserved)
    });
    lines.collect()
}

/// A row for each channel.
pub fn channels(channels: &[Channel]) -> String {
    let columns = [
        ("CHANNEL", Align::Right),
        ("SOURCES", Align::Right),
        ("SINKS", Align::Right),
        ("PEERS", Align::Right),
        ("EMITTED", Align::Right),
        ("NO SINK", Align::Right),
        ("SENT", Align::Right),
        ("DETOURED", Align::Right),
        ("UNREACHABLE", Align::Right),
        ("RECEIVED", Align::Right),
        ("LOST", Align::Right),
        ("DELIVERED", Align::Right),
        ("DROPPED", Align::Right),
        ("MAPPED TO", Align::Left),
    ];
    let rows = channels.iter().map(|channel| {
        let counters = channel.counters.unwrap_or_default();
        [
            channel.channel,
            u64::from(channel.sources),
            u64::from(channel.sinks),
            channel.peers.len() as u64,
            counters.emitted,
            counters.no_sink,
            counters.sent,
            counters.detoured,
            counters.unreachable,
            counters.received,
            counters.lost.saturating_sub(counters.late),
            counters.delivered,
            counters.dropped_full + counters.dropped_memory,
        ]
        .map(|value| value.to_string())
        .into_iter()
        .chain([dash(&channel.datapath)])
        .collect()
    });
    table(&columns, rows.collect())
}

/// A row for each peer.
pub fn peers(peers: &[Peer]) -> String {
    let columns = [
        ("PEER", Align::Left),
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("HEARD", Align::Left),
        ("CHANNELS", Align::Right),
        ("ORIGIN", Align::Left),
        ("PROOF", Align::Left),
        ("HELLOS UNANSWERED", Align::Right),
    ];
    let rows = peers.iter().map(|peer| {
        vec![
            peer.address.clone(),
            dash(&peer.name),
            state_name(peer.state).to_owned(),
            match peer.silent_ms {
                Some(milliseconds) => format!("{} ago", duration(milliseconds / 1000)),
                None => "never".into(),
            },
            peer.subscriptions.to_string(),
            if peer.configured {
                "configured"
            } else {
                "accepted"
            }
            .to_owned(),
            match peer.authentication() {
                Authentication::None => "NONE".into(),
                Authentication::Group => "group key".into(),
                Authentication::NoKey => "key missing".into(),
                _ => peer.key.clone(),
            },
            peer.attempts.to_string(),
        ]
    });
    let mut text = table(&columns, rows.collect());
    for peer in peers.iter().filter(|peer| !peer.warning.is_empty()) {
        let warning = format!("{}: {}", peer.address, peer.warning);
        let lines = wrap(&warning, 69).join("\n           ");
        text.push_str(&format!("warning    {lines}\n"));
    }
    text
}

fn datapaths(datapaths: &[Datapath]) -> String {
    let columns = [
        ("DATAPATH", Align::Left),
        ("STATE", Align::Left),
        ("TRAITS", Align::Left),
        ("DETAIL", Align::Left),
    ];
    let rows = datapaths.iter().map(|datapath| {
        let traits: Vec<&str> = [
            (datapath.accelerated, "accelerated"),
            (datapath.zero_copy, "zero copy"),
            (datapath.needs_polling, "needs polling"),
            (datapath.hardware_launch_time, "launch time"),
        ]
        .into_iter()
        .filter_map(|(has, name)| has.then_some(name))
        .collect();
        let (state, detail) = if datapath.available {
            ("available", &datapath.detail)
        } else {
            ("unavailable", &datapath.reason)
        };
        vec![
            datapath.name.clone(),
            state.to_owned(),
            list(traits),
            format!("{detail}{}", failures(datapath)),
        ]
    });
    table(&columns, rows.collect())
}

/// Behind what is told of a datapath: how often it has failed.
pub fn failures(datapath: &Datapath) -> String {
    match datapath.failures {
        0 => String::new(),
        1 => " [has failed once]".into(),
        times => format!(" [has failed {times} times]"),
    }
}

/// A row for each network, and one for each station.
pub fn networks(networks: &[Network]) -> String {
    let columns = [
        ("NETWORK", Align::Left),
        ("CARRIER", Align::Left),
        ("DEVICE", Align::Left),
        ("ENDPOINTS", Align::Right),
        ("SENT", Align::Right),
        ("BYTES", Align::Right),
        ("FOREIGN", Align::Right),
        ("REFUSED", Align::Right),
        ("UNKNOWN", Align::Right),
        ("UNREACHABLE", Align::Right),
    ];
    let rows = networks.iter().map(|network| {
        let counters = network.counters.unwrap_or_default();
        let device = match network.follow.as_str() {
            "" => network.interface.as_str(),
            follow => follow,
        };
        let follows = match (device, network.problem.as_str()) {
            ("", "") => "-".into(),
            (device, "") => device.into(),
            (_, problem) => problem.into(),
        };
        vec![
            network.name.clone(),
            match (network.vxlan, network.vlan) {
                (Some(id), _) => format!("vxlan {id} port {}", network.port),
                (None, Some(vlan)) => format!("vlan {vlan}"),
                (None, None) if network.routed => "routed".into(),
                (None, None) => "native".into(),
            },
            follows,
            network.endpoints.to_string(),
            counters.sent.to_string(),
            counters.sent_bytes.to_string(),
            counters.foreign.to_string(),
            counters.refused.to_string(),
            counters.unknown.to_string(),
            counters.unreachable.to_string(),
        ]
    });
    let mut text = table(&columns, rows.collect());
    let columns = [
        ("NETWORK", Align::Left),
        ("STATION", Align::Left),
        ("BEHIND", Align::Left),
        ("ADDRESSES", Align::Left),
        ("FROM", Align::Left),
    ];
    let stations = networks.iter().flat_map(|network| {
        network.stations.iter().map(|station| {
            vec![
                network.name.clone(),
                match station.mac.as_str() {
                    "00:00:00:00:00:00" => "all others".into(),
                    mac => mac.to_owned(),
                },
                match station.vtep.as_str() {
                    "" if station.followed => "this host".into(),
                    "" => "-".into(),
                    vtep => vtep.to_owned(),
                },
                list(&station.addresses),
                if station.followed {
                    "kernel"
                } else {
                    // By an operator, or by a cluster's node for its controller.
                    "entered"
                }
                .into(),
            ]
        })
    });
    let stations: Vec<_> = stations.collect();
    if !stations.is_empty() {
        text.push('\n');
        text.push_str(&table(&columns, stations));
    }
    for network in networks.iter().filter(|network| network.left_out > 0) {
        let (name, more) = (&network.name, network.left_out);
        text.push_str(&format!(
            "{name}: {more} stations more are left out, as there are too many (`bridge fdb`)\n"
        ));
    }
    let columns = [
        ("NETWORK", Align::Left),
        ("DESTINATION", Align::Left),
        ("BY", Align::Left),
        ("NEXT HOP", Align::Left),
        ("NOT SERVED", Align::Left),
    ];
    let routes = networks.iter().flat_map(|network| {
        network.routes.iter().map(|route| {
            let or_none = |text: &str| match text {
                "" => "-".to_owned(),
                text => text.to_owned(),
            };
            vec![
                network.name.clone(),
                route.destination.clone(),
                or_none(&route.via),
                or_none(&route.next_hop),
                or_none(&route.problem),
            ]
        })
    });
    let routes: Vec<_> = routes.collect();
    if !routes.is_empty() {
        text.push('\n');
        text.push_str(&table(&columns, routes));
    }
    text
}

/// A row for each listener.
pub fn listeners(listeners: &[ListenerStatus]) -> String {
    let columns = [
        ("TENANT", Align::Left),
        ("SOCKET", Align::Left),
        ("MODE", Align::Left),
        ("USERS", Align::Left),
        ("WRITE", Align::Left),
        ("READ", Align::Left),
        ("CLASSES", Align::Left),
        ("MESSAGES/S", Align::Right),
        ("BYTES/S", Align::Right),
        ("MEMORY", Align::Right),
        ("ENDPOINTS", Align::Right),
        ("NETWORK", Align::Left),
        ("SESSIONS", Align::Right),
        ("ALL MEMORY", Align::Right),
        ("ALL ENDPOINTS", Align::Right),
        ("DESCRIPTORS", Align::Right),
        ("REFUSED", Align::Right),
    ];
    let limit = |value: u64, text: String| if value == 0 { "-".to_owned() } else { text };
    let rows = listeners.iter().map(|status| {
        let listener = status.listener.clone().unwrap_or_default();
        let ranges = |ranges: &[taktd::admin::proto::ChannelRange]| {
            list(
                ranges
                    .iter()
                    .map(|range| Channels(range.first..=range.last)),
            )
        };
        vec![
            listener.identity.clone(),
            listener.path.clone(),
            format!("{:04o}", listener.mode),
            if listener.uids.is_empty() {
                "any".into()
            } else {
                list(&listener.uids)
            },
            ranges(&listener.write),
            ranges(&listener.read),
            list(&listener.classes),
            limit(
                listener.messages_per_second,
                listener.messages_per_second.to_string(),
            ),
            limit(listener.bytes_per_second, size(listener.bytes_per_second)),
            size(listener.memory_bytes),
            listener.endpoints.to_string(),
            match &listener.endpoint {
                None => "-".into(),
                Some(endpoint) => {
                    format!(
                        "{} {} {}",
                        endpoint.network,
                        endpoint.mac,
                        list(&endpoint.addresses)
                    )
                }
            },
            format!("{} of {}", status.sessions, listener.sessions),
            format!(
                "{} of {}",
                size(status.memory_bytes),
                size(listener.total_memory_bytes)
            ),
            format!("{} of {}", status.endpoints, listener.total_endpoints),
            format!("{} of {}", status.descriptors, listener.descriptors),
            status.refused.to_string(),
        ]
    });
    table(&columns, rows.collect())
        + &declared_streams(listeners)
        + &launches_of_listeners(listeners)
}

#[cfg(test)]
mod tests {
    use super::*;
    use taktd::admin::proto::{Direct, Stream};

    #[test]
    fn a_session_of_a_domain_says_which_sinks_have_its_messages_from_it() {
        let ring = |ring, ended: &str| Direct {
            ring,
            channel: 7,
            session: 4,
            name: "viewer".into(),
            ended: ended.into(),
        };
        let text = sessions(&[Session {
            session: 12,
            name: "press".into(),
            direct: vec![ring(1, ""), ring(2, "the sink is closed")],
            direct_messages: 3,
            direct_bytes: 2048,
            ..Session::default()
        }]);
        let expected = "session 12 (press): 3 messages, 2.0 KiB by no lane\n  channel 7 to session 4 (viewer): direct\n  \
                        channel 7 to session 4 (viewer): by the lane again: the sink is closed\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn a_session_has_a_row_for_each_stream_and_its_warnings_below() {
        let stream = |number: u32, warning: &str| Stream {
            moved: 0,
            asked_datapath: String::new(),
            rule: String::new(),
            stream: number,
            acceleration: 2,
            resource_use: 1,
            traffic_class: (number == 1).then_some(5),
            datapath: "udp".into(),
            warning: warning.into(),
            sources: vec![7, 8],
            sinks: Vec::new(),
        };
        let text = sessions(&[Session {
            session: 12,
            name: "press".into(),
            identity: "hall".into(),
            pid: 99,
            streams: vec![stream(0, ""), stream(1, "no acceleration here")],
            counters: Some(SessionCounters {
                dropped_full: 1,
                dropped_memory: 2,
                ..SessionCounters::default()
            }),
            ..Session::default()
        }]);
        let lines: Vec<&str> = text.lines().collect();
        // A page has 80 columns: what the session does is above, its streams are below.
        assert_eq!(lines.len(), 7, "{text}");
        assert!(lines[1].contains("hall"), "{text}");
        assert!(
            lines[4].contains("12  fast frugal") && lines[4].contains("7,8"),
            "{text}"
        );
        assert!(lines[5].contains("12  fast frugal class 5"), "{text}");
        assert_eq!(
            lines[6],
            "warning: session 12, stream 1: no acceleration here"
        );
    }

    #[test]
    fn what_is_not_served_is_told_below_with_its_reasons() {
        let unserved = |reason: &str, count| Unserved {
            reason: reason.into(),
            count,
        };
        let status = ListenerStatus {
            unserved: vec![unserved("no-route", 3), unserved("vlan-tag", 1)],
            counters: Some(SessionCounters {
                launched: 90,
                launched_late: 2,
                launches_missed: 7,
                ..SessionCounters::default()
            }),
            ..ListenerStatus::default()
        };
        let text = listeners(&[status, ListenerStatus::default()]);
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        assert_eq!(
            last[2],
            "launch times: tenant -: 90 left, 2 of them late, 7 did not leave"
        );
        assert_eq!(
            last[1],
            "not served: tenant -: datagrams with a launch time: 3 no-route, 1"
        );
        assert_eq!(last[0].trim(), "vlan-tag");
    }

    #[test]
    fn a_class_of_which_all_came_before_they_were_sent_has_no_delay() {
        let class = |class: u32, messages: u64| taktd::admin::proto::ClassDelays {
            class,
            messages,
            p50_ns: 12_345,
            p99_ns: 20_480,
            p999_ns: 5_000_000,
            longest_ns: 17_179_869_185,
            negative: 3,
        };
        let told = |state: ClockState| {
            delays(&Node {
                delays: vec![class(0, 7), class(5, 0)],
                clock_state: state.into(),
                ..Node::default()
            })
        };
        let text = told(ClockState::Synchronised);
        let rows: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(rows.len(), 3, "{text}");
        assert_eq!(rows[1], "0 10 12.3 µs 20.5 µs 5000.0 µs 17179869.2 µs 3");
        assert_eq!(rows[2], "5 3 - - - - 3");
        // Whether that means anything.
        for (state, doubt) in [
            (ClockState::Holdover, "lost its reference"),
            (ClockState::FreeRunning, "delays mean nothing"),
            (ClockState::Unspecified, "delays mean nothing"),
        ] {
            let text = told(state);
            assert!(
                text.lines().last().is_some_and(|line| line.contains(doubt)),
                "{text}"
            );
        }
    }

    #[test]
    fn an_unavailable_datapath_shows_its_reason() {
        let text = datapaths(&[Datapath {
            name: "xdp".into(),
            reason: "missing privilege: CAP_BPF".into(),
            ..Datapath::default()
        }]);
        assert!(
            text.contains("unavailable") && text.contains("CAP_BPF"),
            "{text}"
        );
        assert!(!text.contains("failed"), "{text}");
    }

    #[test]
    fn a_datapath_that_has_failed_shows_how_often() {
        let text = |available, failures| {
            datapaths(&[Datapath {
                name: "xdp".into(),
                available,
                detail: "eth1, native".into(),
                reason: "eth1 is down".into(),
                failures,
                ..Datapath::default()
            }])
        };
        assert!(text(false, 1).contains("eth1 is down [has failed once]"));
        assert!(text(true, 3).contains("eth1, native [has failed 3 times]"));
    }

    #[test]
    fn declared_streams_are_told_with_what_they_were_refused() {
        use taktd::admin::proto::{DeclaredStream, DeclaredStreamCounters, Listener};
        assert_eq!(declared_streams(&[ListenerStatus::default()]), "");
        let stream = |name: &str, channel, destination: &str| DeclaredStream {
            name: name.into(),
            traffic_class: 5,
            channel,
            destination: destination.into(),
            ..DeclaredStream::default()
        };
        let status = ListenerStatus {
            listener: Some(Listener {
                identity: "press".into(),
                streams: vec![
                    stream("axis", Some(7), ""),
                    stream("valve", None, "10.0.0.9:4000"),
                ],
                ..Listener::default()
            }),
            streams: vec![
                DeclaredStreamCounters {
                    name: "axis".into(),
                    passed: 100,
                    refused_window: 4,
                    refused_size: 3,
                    refused_excess: 2,
                },
                DeclaredStreamCounters::default(),
            ],
            undeclared: 9,
            ..ListenerStatus::default()
        };
        let text = declared_streams(&[status]);
        let cells: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        let row = ["press", "axis", "5", "channel", "7", "100", "4", "3", "2"];
        assert!(cells.iter().any(|cells| cells[..] == row), "{text}");
        let row = ["press", "valve", "5", "10.0.0.9:4000", "0", "0", "0", "0"];
        assert!(cells.iter().any(|cells| cells[..] == row), "{text}");
        let row = ["press", "none", "of", "them", "9"];
        assert!(cells.iter().any(|cells| cells[..] == row), "{text}");
    }
}
