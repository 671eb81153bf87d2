//! What values must be, beyond their form: ranges, and values that do not go together.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use takt_clock::chrony::Address;
use takt_runtime::config::SchedulingClass;
use takt_runtime::peering::message::{MAX_ENDPOINTS, MAX_LANES};
use takt_runtime::policing::{LEAST_PERIOD_NS, MOST_FRAMES, MOST_STREAMS};
use takt_session::endpoint::{MOST_ADDRESSES, MOST_VLANS};
use takt_wire::ethernet::EtherType;

use super::document::{Document, Fault, way};
use super::file::{
    Endpoint, File, IdleKind, Lane, Listener, Network, Protection, Station, Stream, Trust, Xdp,
};
use super::value::Carrier;

/// Technologies that a mapping may name.
const TECHNOLOGIES: &[&str] = &["udp", "xdp", "dpdk", "fabric"];
/// Longest path of a Unix socket: `sun_path` of unix(7) without its final zero.
const LONGEST_SOCKET_PATH: usize = 107;
/// Least memory of a session: the rings and two regions of a quarter each must have room in it.
const LEAST_MEMORY: u64 = 24 << 20;
/// Least region of an arena.
const LEAST_REGION: u64 = 64 << 10;
/// Longest message that a length of the session protocol can tell.
const LONGEST_MESSAGE: u64 = 1 << 30;
/// Largest region of an arena.
const LARGEST_REGION: u64 = 1 << 36;
/// Longest wait for a clean stop, seconds.
const LONGEST_DRAIN: u64 = 3600;
/// Longest wait for a fragment, milliseconds.
const LONGEST_REASSEMBLY: u64 = 60_000;
/// Longest time for which what an application had emitted is sent after it has left, milliseconds.
const LONGEST_LINGER: u64 = 3_600_000;
/// Longest time for which a datapath must work again before streams return to it, milliseconds.
const LONGEST_HOLD_DOWN: u64 = 3_600_000;
/// Longest time that a moved session stays, seconds.
const LONGEST_HOLD: u64 = 86_400;
/// Most tolerance of a launch time, microseconds.
const LONGEST_TOLERANCE: u32 = 1_000_000;

/// Longest period of a stream, nanoseconds: as far ahead as a launch time may lie.
const LONGEST_PERIOD_NS: u64 = 60_000_000_000;
/// Longest frame of a stream, octets: a jumbo frame with what a tunnel adds fits.
const LONGEST_FRAME: u64 = 16_384;
/// Most EtherTypes of an endpoint: each frame is looked up among them.
const MOST_ETHERTYPES: usize = 64;
/// The last identifier of a VLAN (IEEE 802.1Q-2022, table 9-2).
const LAST_VLAN: u16 = 4094;
/// Least MTU of an endpoint: what every host must take (RFC 791, section 3.2).
const LEAST_MTU: u16 = 576;

type Checked = Result<(), Box<Fault>>;

/// Checks everything, in the order of the file's reference.
pub fn check(file: &File, document: &Document<'_>) -> Checked {
    node(file, document)?;
    lanes(file, document)?;
    peers(file, document)?;
    networks(file, document)?;
    datapaths_of_schedules(file, document)?;
    listeners(file, document)?;
    lanes_named(file, document)?;
    limits(file, document)?;
    departure(file, document)?;
    clock(file, document)?;
    balance(file, document)?;
    mapping(file, document)?;
    udp(file, document)?;
    if let Some(config) = &file.datapath.xdp {
        xdp(config, document)?;
    }
    plugins(file, document)?;
    socket_path(&file.admin.socket, way!["admin", "socket"], document)?;
    if !is_log_filter(&file.log.level) {
        return fault(
            document,
            way!["log", "level"],
            "no log filter: write off, error, warn, info, debug or trace, or a list as \"info,takt_runtime=debug\"",
        );
    }
    Ok(())
}

/// A lone word would be a target of which everything is logged, and nothing of any other: a slip.
fn is_log_filter(text: &str) -> bool {
    let level = |word: &str| {
        let levels = ["off", "error", "warn", "info", "debug", "trace"];
        levels.iter().any(|level| level.eq_ignore_ascii_case(word))
    };
    let sound = |part: &str| part.contains(['=', '[']) || level(part.trim());
    tracing_subscriber::EnvFilter::try_new(text).is_ok() && text.split(',').all(sound)
}

fn fault(
    document: &Document<'_>,
    way: &[super::document::Step<'_>],
    problem: impl Into<String>,
) -> Checked {
    Err(Box::new(document.fault(way, problem)))
}

fn node(file: &File, document: &Document<'_>) -> Checked {
    let node = &file.node;
    if let Some(name) = &node.name {
        name_for_people(name, way!["node", "name"], document)?;
    }
    if node.address.0.is_multicast() {
        return fault(
            document,
            way!["node", "address"],
            "a multicast address: write an address of this node",
        );
    }
    if node.drain_seconds > LONGEST_DRAIN {
        return fault(
            document,
            way!["node", "drain_seconds"],
            format!("too long: write 0 to {LONGEST_DRAIN} seconds"),
        );
    }
    let lanes = file.lane.as_ref().map_or(1, Vec::len);
    let built_in = 1 + usize::from(file.datapath.xdp.is_some());
    let datapaths = built_in + file.datapath.plugins.len();
    if datapaths > MAX_ENDPOINTS {
        let excess = file.datapath.plugins.keys().nth(MAX_ENDPOINTS - built_in);
        let name = excess.map_or("", String::as_str);
        return fault(
            document,
            way!["datapath", name],
            format!(
                "the {datapaths} datapaths with this one are too many: a node announces {MAX_ENDPOINTS} at most"
            ),
        );
    }
    let last = usize::from(node.port) + lanes * datapaths;
    if node.port != 0 && last > usize::from(u16::MAX) {
        return fault(
            document,
            way!["node", "port"],
            format!(
                "the {lanes} lane(s) on {datapaths} datapath(s) need the ports up to {last}: write {} or less",
                usize::from(u16::MAX) - lanes * datapaths
            ),
        );
    }
    Ok(())
}

fn lanes(file: &File, document: &Document<'_>) -> Checked {
    let Some(lanes) = &file.lane else {
        return Ok(());
    };
    if lanes.is_empty() || lanes.len() > MAX_LANES {
        return fault(
            document,
            way!["lane"],
            format!(
                "{} lanes: write 1 to {MAX_LANES}, or leave it out for one",
                lanes.len()
            ),
        );
    }
    for (index, lane) in lanes.iter().enumerate() {
        self::lane(index, lane, document)?;
    }
    Ok(())
}

/// Lanes that datapaths, classes and listeners name are there, and each listener has one for each of its classes.
fn lanes_named(file: &File, document: &Document<'_>) -> Checked {
    let count = file.lane.as_ref().map_or(1, Vec::len);
    let check = |lanes: Option<&Vec<usize>>, way: &[super::document::Step<'_>]| {
        let Some(lanes) = lanes else { return Ok(()) };
        if lanes.is_empty() {
            return fault(document, way, "no lane: name one, or leave it out for all");
        }
        let twice = |at: usize| lanes[..at].contains(&lanes[at]);
        if let Some(at) = (0..lanes.len()).find(|&at| lanes[at] >= count || twice(at)) {
            let problem = match lanes[at] {
                lane if lane >= count => format!(
                    "there is no lane {lane}: [[lane]] is written for lanes 0 to {}",
                    count - 1
                ),
                lane => format!("lane {lane} is named twice"),
            };
            return fault(document, way, problem);
        }
        Ok(())
    };
    let datapath = &file.datapath;
    check(
        datapath.udp.lanes.as_ref(),
        way!["datapath", "udp", "lanes"],
    )?;
    if let Some(xdp) = &datapath.xdp {
        check(xdp.lanes.as_ref(), way!["datapath", "xdp", "lanes"])?;
    }
    for (name, plugin) in &datapath.plugins {
        check(
            plugin.lanes.as_ref(),
            way!["datapath", name.as_str(), "lanes"],
        )?;
    }
    for (index, class) in file.class.iter().enumerate() {
        let number = class.number;
        check_classes(&[number], |_| {
            fault(document, way!["class", index, "number"], NO_CLASS)
        })?;
        if file.class[..index]
            .iter()
            .any(|other| other.number == number)
        {
            let problem = format!("class {number} has its lanes already: name all of them there");
            return fault(document, way!["class", index, "number"], problem);
        }
        check(Some(&class.lanes), way!["class", index, "lanes"])?;
    }
    for (index, listener) in file.listener.iter().flatten().enumerate() {
        let way = way!["listener", index, "lanes"];
        check(listener.lanes.as_ref(), way)?;
        let Some(own) = &listener.lanes else { continue };
        let unserved = file.class.iter().find(|class| {
            listener.classes.contains(&class.number) && !own.iter().any(|l| class.lanes.contains(l))
        });
        if let Some(class) = unserved {
            let problem = format!(
                "none of them serves class {}, whose `lanes` are {:?}: add one of those, or take the class out of the listener's `classes`",
                class.number, class.lanes
            );
            return fault(document, way, problem);
        }
    }
    Ok(())
}

fn lane(index: usize, lane: &Lane, document: &Document<'_>) -> Checked {
    if lane.spin_us.is_some() && lane.idle != IdleKind::Adaptive {
        return fault(
            document,
            way!["lane", index, "spin_us"],
            "only `idle = \"adaptive\"` has a time to spin: remove it, or choose adaptive",
        );
    }
    if lane.idle == IdleKind::Spin && lane.scheduling.0 != SchedulingClass::Other {
        return fault(
            document,
            way!["lane", index, "scheduling"],
            "a spinning lane never sleeps, and the kernel takes 50 ms of every second from such a real-time thread: choose `idle = \"adaptive\"`, or `scheduling = \"other\"` on a core of its own",
        );
    }
    if let Some(core) = lane.core
        && core >= rustix::thread::CpuSet::MAX_CPU
    {
        return fault(
            document,
            way!["lane", index, "core"],
            "no such core: see `lscpu -e`",
        );
    }
    Ok(())
}

fn peers(file: &File, document: &Document<'_>) -> Checked {
    let mut seen = HashSet::new();
    let own = file.node.address.0;
    for (index, peer) in file.peer.iter().enumerate() {
        let address = peer.address.0.0;
        let way = way!["peer", index, "address"];
        if !seen.insert(address) {
            return fault(document, way, "this peer is there twice: remove one");
        }
        if address.is_ipv4() != own.is_ipv4() {
            return fault(
                document,
                way,
                format!(
                    "of another address family than `node.address` = {own}: a node speaks one of them"
                ),
            );
        }
        if address.ip() == own && address.port() == file.node.port {
            return fault(document, way, "this is the node itself: remove it");
        }
        if peer.key.is_none() && peer.next_key.is_some() {
            return fault(
                document,
                way!["peer", index, "next_key"],
                "the peer has no `key` that this one could follow: give both",
            );
        }
        if peer.key.is_none() && !has_group(file) {
            return fault(
                document,
                way,
                "the peer has no key: give its `key` (`takt key show` there prints it), name a `security.group_key_file` on all nodes, or set `security.protection = \"none\"`",
            );
        }
    }
    if !(15..=600).contains(&file.security.rekey_seconds) {
        return fault(document, way!["security", "rekey_seconds"], "15 to 600");
    }
    if !file.node.accept.is_empty() && !has_group(file) && file.security.allow.is_empty() {
        return fault(
            document,
            way!["node", "accept"],
            "no key of those who are accepted is known: name a `security.group_key_file` on all nodes, list their public keys in `security.allow`, or set `security.protection = \"none\"`",
        );
    }
    scout(file, document)
}

fn scout(file: &File, document: &Document<'_>) -> Checked {
    let Some(scout) = &file.scout else {
        return Ok(());
    };
    if scout.interface.is_none() && scout.rendezvous.is_empty() && !scout.introduce {
        return fault(
            document,
            way!["scout"],
            "nobody is looked for: write `interface` of a link, `rendezvous` addresses, or `introduce = true`",
        );
    }
    if let Some(interface) = &scout.interface
        && (interface.is_empty() || interface.len() > 15)
    {
        return fault(
            document,
            way!["scout", "interface"],
            "no interface has such a name: write one of `ip link`, such as \"eth0\"",
        );
    }
    for (index, rendezvous) in scout.rendezvous.iter().enumerate() {
        let (address, own) = (rendezvous.0.0, file.node.address.0);
        let way = way!["scout", "rendezvous", index];
        if address.is_ipv4() != own.is_ipv4() {
            return fault(
                document,
                way,
                format!(
                    "of another address family than `node.address` = {own}: a node speaks one of them"
                ),
            );
        }
        if address.ip() == own && address.port() == file.node.port {
            return fault(
                document,
                way,
                "this is the node itself: remove it here, and write `introduce = true`",
            );
        }
        let listed = file.peer.iter().any(|peer| peer.address.0.0 == address);
        if !listed && !has_group(file) {
            return fault(
                document,
                way,
                "no key of this node is known: add a [[peer]] with its address and its `key`, name a `security.group_key_file` on all nodes, or set `security.protection = \"none\"`",
            );
        }
    }
    if scout.interface.is_some() && file.node.accept.is_empty() {
        return fault(
            document,
            way!["scout", "interface"],
            "nobody who announces himself is accepted: name the network of the link in `node.accept`, such as [\"10.0.0.0/24\"]",
        );
    }
    if let Some(group) = &scout.group {
        let way = way!["scout", "group"];
        if !group.0.ip().is_multicast() || group.0.port() == 0 {
            return fault(
                document,
                way,
                "no multicast group with a port: write one as \"239.255.116.107:7398\" or \"[ff12::7461:6b74]:7398\", or leave it out",
            );
        }
        if group.0.is_ipv4() != file.node.address.0.is_ipv4() {
            return fault(
                document,
                way,
                format!(
                    "of another address family than `node.address` = {}: a node speaks one of them",
                    file.node.address.0
                ),
            );
        }
    }
    Ok(())
}

/// Whether peers without a key of their own can be authenticated, or need not be.
fn has_group(file: &File) -> bool {
    file.security.protection == Protection::None || file.security.group_key_file.is_some()
}

fn listeners(file: &File, document: &Document<'_>) -> Checked {
    let mut seen = HashSet::new();
    for (index, listener) in file.listeners().iter().enumerate() {
        let way = way!["listener", index, "path"];
        if listener.path == file.admin.socket {
            return fault(
                document,
                way,
                "this is the path of `admin.socket`: choose another",
            );
        }
        if !seen.insert(listener.path.clone()) {
            return fault(
                document,
                way,
                "another listener has this path: give each its own",
            );
        }
        self::listener(index, listener, document)?;
        if let Some(endpoint) = &listener.endpoint
            && !file.network.iter().any(|n| n.name == endpoint.network)
        {
            return fault(
                document,
                way!["listener", index, "endpoint", "network"],
                "there is no such network: add a [[network]] with this name",
            );
        }
    }
    Ok(())
}

/// Names of datapaths: those of this project, and those that the file has.
fn technologies(file: &File) -> Vec<&str> {
    let others = file.datapath.plugins.keys().map(String::as_str);
    let others = others.filter(|name| !TECHNOLOGIES.contains(name));
    TECHNOLOGIES.iter().copied().chain(others).collect()
}

fn plugins(file: &File, document: &Document<'_>) -> Checked {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    for name in file.datapath.plugins.keys() {
        if name.is_empty() || name.len() > 15 || !name.chars().all(allowed) {
            return fault(
                document,
                way!["datapath", name.as_str()],
                "no name of a datapath: udp and xdp are built in, a plugin's has 1 to 15 lower-case letters, digits and hyphens",
            );
        }
    }
    if !file.node.plugins.is_absolute() {
        return fault(
            document,
            way!["node", "plugins"],
            "not absolute: write the whole path of the directory that has the plugins",
        );
    }
    Ok(())
}

fn datapaths_of_schedules(file: &File, document: &Document<'_>) -> Checked {
    for (index, schedule) in file.schedule.iter().enumerate() {
        let known = technologies(file);
        if !known.contains(&schedule.datapath.as_str()) {
            return fault(
                document,
                way!["schedule", index, "datapath"],
                format!("no datapath: write one of {}", known.join(", ")),
            );
        }
    }
    Ok(())
}

fn networks(file: &File, document: &Document<'_>) -> Checked {
    let mut seen = HashSet::new();
    for (index, network) in file.network.iter().enumerate() {
        name_for_people(&network.name, way!["network", index, "name"], document)?;
        if !seen.insert(&network.name) {
            return fault(
                document,
                way!["network", index, "name"],
                "another network has this name: give each its own",
            );
        }
        self::network(index, network, document)?;
    }
    Ok(())
}

fn network(index: usize, network: &Network, document: &Document<'_>) -> Checked {
    let tunnelled = matches!(network.carrier.0, Carrier::Vxlan(_));
    if network.follow.is_some() && !tunnelled {
        return fault(
            document,
            way!["network", index, "follow"],
            "only a VXLAN has a forwarding table to follow: remove it, or write `carrier = \"vxlan:…\"`",
        );
    }
    if network.interface.is_some()
        && !matches!(network.carrier.0, Carrier::Native | Carrier::Vlan(_))
    {
        return fault(
            document,
            way!["network", index, "interface"],
            "frames of this network leave by the host's routes: remove it, or write `carrier = \"native\"`",
        );
    }
    if network.carrier.0 == Carrier::Routed && network.routed.is_empty() {
        return fault(
            document,
            way!["network", index, "carrier"],
            "a routed network needs its prefixes: add `routed`, such as [\"10.244.0.0/16\"]",
        );
    }
    if network.port == 0 {
        return fault(
            document,
            way!["network", index, "port"],
            "no UDP port: write 1 to 65535, usually 4789",
        );
    }
    for (at, station) in network.stations.iter().enumerate() {
        if let Err(problem) = self::station(station, tunnelled) {
            return fault(document, way!["network", index, "stations", at], problem);
        }
    }
    Ok(())
}

/// What is wrong with a station.
fn station(station: &Station, tunnelled: bool) -> Result<(), &'static str> {
    if station.mac.0.is_multicast() {
        return Err(
            "the MAC address of a group: write a station's, or 00:00:00:00:00:00 for the rest",
        );
    }
    match (&station.vtep, tunnelled) {
        (None, true) => {
            Err("`vtep` is missing: write the tunnel endpoint that the station is behind")
        }
        (Some(_), false) => Err("a native network has no tunnel endpoints: remove `vtep`"),
        (Some(vtep), true) if vtep.0.is_multicast() || vtep.0.is_unspecified() => {
            Err("`vtep` is no address of a node: write its unicast address")
        }
        _ => Ok(()),
    }
}

const NO_CLASS: &str = "no traffic class: write numbers from 0 to 7";

/// Calls `refuse` with the index of the first that is no traffic class.
fn check_classes(classes: &[u8], refuse: impl FnOnce(usize) -> Checked) -> Checked {
    match classes.iter().position(|class| *class > 7) {
        Some(at) => refuse(at),
        None => Ok(()),
    }
}

/// Checks one listener.
pub fn listener(index: usize, listener: &Listener, document: &Document<'_>) -> Checked {
    socket_path(&listener.path, way!["listener", index, "path"], document)?;
    name_for_people(
        &listener.identity,
        way!["listener", index, "identity"],
        document,
    )?;
    check_classes(&listener.classes, |at| {
        fault(document, way!["listener", index, "classes", at], NO_CLASS)
    })?;
    if listener.trust != Trust::Nobody
        && (listener.messages_per_second > 0 || listener.bytes_per_second.0.0 > 0)
    {
        return fault(
            document,
            way!["listener", index, "trust"],
            "lanes keep rates, and sessions of a trust domain exchange messages without one: leave out `trust`, or `messages_per_second` and `bytes_per_second`",
        );
    }
    if listener.memory.0.0 < LEAST_MEMORY || listener.memory.0.0 > 4 * LARGEST_REGION {
        return fault(
            document,
            way!["listener", index, "memory"],
            format!(
                "a session's arena takes {} MiB to {} GiB",
                LEAST_MEMORY >> 20,
                (4 * LARGEST_REGION) >> 30
            ),
        );
    }
    if let Some(total) = &listener.total_memory
        && total.0.0 < LEAST_MEMORY
    {
        return fault(
            document,
            way!["listener", index, "total_memory"],
            format!(
                "one session's arena takes {} MiB at least",
                LEAST_MEMORY >> 20
            ),
        );
    }
    for (key, value) in [
        ("sessions", listener.sessions),
        ("endpoints", listener.endpoints),
        ("total_endpoints", listener.total_endpoints),
        ("descriptors", listener.descriptors),
    ] {
        // Lanes number a session's sinks in 16 bits.
        let most = match key {
            "endpoints" => 1 << 15,
            _ => 1 << 20,
        };
        if value == 0 || value > most {
            return fault(
                document,
                way!["listener", index, key],
                format!("write 1 to {most}"),
            );
        }
    }
    if let Some(endpoint) = &listener.endpoint
        && let Err((key, problem)) = self::endpoint(endpoint)
    {
        return fault(document, way!["listener", index, "endpoint", key], problem);
    }
    streams(index, listener, document)
}

fn streams(index: usize, listener: &Listener, document: &Document<'_>) -> Checked {
    if listener.stream.len() > MOST_STREAMS {
        return fault(
            document,
            way!["listener", index, "stream"],
            format!("declare {MOST_STREAMS} at most"),
        );
    }
    let mut names = HashSet::new();
    let mut flows = HashSet::new();
    for (at, stream) in listener.stream.iter().enumerate() {
        let way = way!["listener", index, "stream", at, "name"];
        name_for_people(&stream.name, way, document)?;
        if !names.insert(&stream.name) {
            let problem = "another stream of the listener has this name: give each its own";
            return fault(document, way, problem);
        }
        if let Err((key, problem)) = self::stream(listener, stream) {
            return fault(
                document,
                way!["listener", index, "stream", at, key],
                problem,
            );
        }
        let destination = stream.destination.as_ref().map(|address| address.0);
        if !flows.insert((stream.class, stream.channel, destination)) {
            return fault(
                document,
                way!["listener", index, "stream", at],
                "another stream of the listener is of the same frames: declare one with all their launches, or another class",
            );
        }
    }
    Ok(())
}

/// What is wrong with a stream, and under which key.
fn stream(listener: &Listener, stream: &Stream) -> Result<(), (&'static str, String)> {
    if !listener.classes.contains(&stream.class) {
        let classes = &listener.classes;
        let text = format!(
            "none of the listener's `classes`, {classes:?}: add it there, or write one of them"
        );
        return Err(("class", text));
    }
    match (stream.channel, &stream.destination) {
        (Some(channel), None) => {
            let mut write = listener.write.iter();
            if !write.any(|range| range.0.0.contains(&channel)) {
                return Err((
                    "channel",
                    "none that the listener may `write`: add it there".into(),
                ));
            }
        }
        (None, Some(destination)) => {
            if listener.endpoint.is_none() {
                let text = "datagrams are sent from an endpoint: add a [listener.endpoint]";
                return Err(("destination", text.into()));
            }
            if destination.0.port() == 0 {
                return Err(("destination", "no port: write 1 to 65535".into()));
            }
        }
        _ => {
            let text = "write either `channel` or `destination`: whose frames they are";
            return Err(("channel", text.into()));
        }
    }
    let (period, offset, window) = (stream.period.0.0, stream.offset.0.0, stream.window.0.0);
    if !(LEAST_PERIOD_NS..=LONGEST_PERIOD_NS).contains(&period) {
        return Err(("period", "write 1us to 60s".into()));
    }
    if offset >= period {
        return Err(("offset", "not within a period: write less".into()));
    }
    if window >= period {
        return Err(("window", "not shorter than a period: write less".into()));
    }
    if !(1..=LONGEST_FRAME).contains(&stream.frame.0.0) {
        return Err(("frame", format!("write 1 to {LONGEST_FRAME} octets")));
    }
    if !(1..=MOST_FRAMES).contains(&stream.frames) {
        return Err(("frames", format!("write 1 to {MOST_FRAMES}")));
    }
    Ok(())
}

/// What is wrong with an endpoint, and under which key.
fn endpoint(endpoint: &Endpoint) -> Result<(), (&'static str, String)> {
    if !endpoint.mac.0.is_unicast() {
        return Err(("mac", "no address of a station: write a unicast one".into()));
    }
    if endpoint.addresses.len() > MOST_ADDRESSES {
        return Err(("addresses", format!("write {MOST_ADDRESSES} at most")));
    }
    if endpoint.ethertypes.len() > MOST_ETHERTYPES {
        return Err(("ethertypes", format!("write {MOST_ETHERTYPES} at most")));
    }
    for kind in endpoint.ethertypes.iter().copied().map(EtherType) {
        let problem = match kind {
            EtherType::IPV4 | EtherType::IPV6 => {
                "IP is allowed from the endpoint's addresses: leave it out"
            }
            _ if kind.is_reserved() => {
                "frames of this kind control links or stand for others and never leave: leave it out"
            }
            _ => continue,
        };
        return Err(("ethertypes", format!("{:#06x}: {problem}", kind.0)));
    }
    if endpoint.vlans.len() > MOST_VLANS {
        return Err(("vlans", format!("write {MOST_VLANS} at most")));
    }
    if let Some(id) = endpoint.vlans.iter().find(|id| **id > LAST_VLAN) {
        return Err((
            "vlans",
            format!("{id}: no VLAN: write 1 to {LAST_VLAN}, or 0 for tags with a priority alone"),
        ));
    }
    if endpoint.mtu < LEAST_MTU {
        return Err(("mtu", format!("write {LEAST_MTU} to {}", u16::MAX)));
    }
    Ok(())
}

fn limits(file: &File, document: &Document<'_>) -> Checked {
    let limits = &file.limits;
    if !(1..=LONGEST_MESSAGE).contains(&limits.max_message.0.0) {
        return fault(
            document,
            way!["limits", "max_message"],
            format!("messages can have 1 B to {} MiB", LONGEST_MESSAGE >> 20),
        );
    }
    for (key, value) in [
        ("tx_bytes", limits.tx_bytes.0.0),
        ("rx_bytes", limits.rx_bytes.0.0),
    ] {
        if !(LEAST_REGION..=LARGEST_REGION).contains(&value) {
            return fault(
                document,
                way!["limits", key],
                format!(
                    "a region of a session takes {} KiB to {} GiB",
                    LEAST_REGION >> 10,
                    LARGEST_REGION >> 30
                ),
            );
        }
    }
    if !(1..=1 << 16).contains(&limits.reassemblies) {
        return fault(
            document,
            way!["limits", "reassemblies"],
            format!("write 1 to {}", 1 << 16),
        );
    }
    if !(1..=LONGEST_REASSEMBLY).contains(&limits.reassembly_timeout_ms) {
        return fault(
            document,
            way!["limits", "reassembly_timeout_ms"],
            format!("write 1 to {LONGEST_REASSEMBLY} milliseconds"),
        );
    }
    if limits.linger_ms > LONGEST_LINGER {
        return fault(
            document,
            way!["limits", "linger_ms"],
            format!("write 0 to {LONGEST_LINGER} milliseconds"),
        );
    }
    Ok(())
}

fn departure(file: &File, document: &Document<'_>) -> Checked {
    if file.departure.tolerance_us > LONGEST_TOLERANCE {
        return fault(
            document,
            way!["departure", "tolerance_us"],
            format!("write 0 to {LONGEST_TOLERANCE} microseconds"),
        );
    }
    Ok(())
}

fn clock(file: &File, document: &Document<'_>) -> Checked {
    let clock = &file.clock;
    if let Some(socket) = clock.ptp4l.as_ref().and_then(|ptp4l| ptp4l.0.0.as_ref()) {
        socket_path(socket, way!["clock", "ptp4l"], document)?;
    }
    if let Some(Address::Unix(socket)) = clock.chrony.as_ref().and_then(|c| c.0.0.as_ref()) {
        socket_path(socket, way!["clock", "chrony"], document)?;
    }
    if let Some(device) = &clock.device
        && !device.is_absolute()
    {
        return fault(
            document,
            way!["clock", "device"],
            "not absolute: write the whole path, such as /dev/ptp0 (see `ethtool -T`)",
        );
    }
    Ok(())
}

fn balance(file: &File, document: &Document<'_>) -> Checked {
    let balance = &file.balance;
    let wrong = |key, problem: String| fault(document, way!["balance", key], problem);
    if !(1..=100).contains(&balance.high_percent) {
        return wrong("high_percent", "write 1 to 100 per cent".into());
    }
    if balance.low_percent >= balance.high_percent {
        let high = balance.high_percent;
        return wrong(
            "low_percent",
            format!("not below `high_percent`, {high}: a lane would be overloaded and not at once"),
        );
    }
    if !(1..=LONGEST_HOLD).contains(&balance.hold_seconds) {
        return wrong("hold_seconds", format!("write 1 to {LONGEST_HOLD} seconds"));
    }
    Ok(())
}

fn mapping(file: &File, document: &Document<'_>) -> Checked {
    let known = technologies(file);
    let unknown = |list: &[String]| list.iter().position(|name| !known.contains(&name.as_str()));
    let no_datapath = || format!("no datapath: known are {}", known.join(", "));
    let lists = [
        ("fast_frugal", &file.mapping.fast_frugal),
        ("fast_unlimited", &file.mapping.fast_unlimited),
    ];
    for (key, list) in lists {
        if let Some(index) = unknown(list) {
            return fault(document, way!["mapping", key, index], no_datapath());
        }
    }
    if file.mapping.hold_down_ms > LONGEST_HOLD_DOWN {
        return fault(
            document,
            way!["mapping", "hold_down_ms"],
            format!("write 0 to {LONGEST_HOLD_DOWN} milliseconds"),
        );
    }
    for (index, rule) in file.mapping.rule.iter().enumerate() {
        if let Some(name) = &rule.name {
            name_for_people(name, way!["mapping", "rule", index, "name"], document)?;
        }
        for (at, tenant) in rule.tenants.iter().enumerate() {
            let place = way!["mapping", "rule", index, "tenants", at];
            name_for_people(tenant, place, document)?;
        }
        check_classes(&rule.classes, |at| {
            fault(
                document,
                way!["mapping", "rule", index, "classes", at],
                NO_CLASS,
            )
        })?;
        if rule.datapaths.is_empty() {
            return fault(
                document,
                way!["mapping", "rule", index, "datapaths"],
                "write which datapaths the streams that it fits get, best first",
            );
        }
        if let Some(at) = unknown(&rule.datapaths) {
            return fault(
                document,
                way!["mapping", "rule", index, "datapaths", at],
                no_datapath(),
            );
        }
    }
    Ok(())
}

fn udp(file: &File, document: &Document<'_>) -> Checked {
    let udp = &file.datapath.udp;
    let bounds = [
        ("frames", u64::from(udp.frames), 1 << 20),
        ("frame_size", udp.frame_size.0.0, 65_507),
        ("peers", u64::from(udp.peers), u64::from(u16::MAX)),
        ("receive_buffer", udp.receive_buffer.0.0, 1 << 30),
        ("send_buffer", udp.send_buffer.0.0, 1 << 30),
    ];
    for (key, value, most) in bounds {
        if !(1..=most).contains(&value) {
            return fault(
                document,
                way!["datapath", "udp", key],
                format!("write 1 to {most}"),
            );
        }
    }
    Ok(())
}

fn xdp(xdp: &Xdp, document: &Document<'_>) -> Checked {
    // IFNAMSIZ of linux/if.h counts the final zero.
    if xdp.interface.is_empty() || xdp.interface.len() > 15 || xdp.interface.contains('/') {
        return fault(
            document,
            way!["datapath", "xdp", "interface"],
            "no name of an interface: see `ip link`",
        );
    }
    if !xdp.rx_ring.is_power_of_two() || xdp.rx_ring > 1 << 16 {
        return fault(
            document,
            way!["datapath", "xdp", "rx_ring"],
            "write a power of two up to 65536",
        );
    }
    let counts = [
        (
            "ports_per_queue",
            u32::from(xdp.ports_per_queue),
            MAX_LANES as u32,
        ),
        ("tx_frames", xdp.tx_frames, 1 << 16),
        ("peers", u32::from(xdp.peers), u16::MAX.into()),
    ];
    for (key, value, most) in counts {
        if !(1..=most).contains(&value) {
            return fault(
                document,
                way!["datapath", "xdp", key],
                format!("write 1 to {most}"),
            );
        }
    }
    Ok(())
}

fn socket_path(path: &Path, way: &[super::document::Step<'_>], document: &Document<'_>) -> Checked {
    if !path.is_absolute() || path.file_name().is_none() {
        return fault(
            document,
            way,
            "not absolute: write the whole path, such as /run/takt/takt.sock",
        );
    }
    let length = path.as_os_str().as_bytes().len();
    if length > LONGEST_SOCKET_PATH {
        return fault(
            document,
            way,
            format!("{length} bytes long: a socket's path has {LONGEST_SOCKET_PATH} at most"),
        );
    }
    Ok(())
}

/// Names go into logs, tables and metrics.
fn name_for_people(
    name: &str,
    way: &[super::document::Step<'_>],
    document: &Document<'_>,
) -> Checked {
    if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
        return fault(
            document,
            way,
            "write 1 to 128 bytes without control characters",
        );
    }
    Ok(())
}
