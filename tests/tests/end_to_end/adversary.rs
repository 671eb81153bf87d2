//! A hostile tenant, and hosts that forge datagrams, beside others at work.
//!
//! All that one can think of, in turn and at once, for a while (`TAKT_ADVERSARY_SECONDS`, 3 unless said). Beside it
//! a victim with messages that are counted one by one, one with launch times, and an operator. Nobody loses
//! anything; afterwards the daemon holds what it held before. How late the victims' messages come is printed
//! beside the same with an honest neighbour at work: a busy machine says nothing by it.

mod forgery;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng, rngs::StdRng};
use rustix::net::SocketAddrUnix;
use takt::{ChannelId, Outcome, Qos, Session, Sink, Source, Wait};
use takt_clock::{Clock, SystemTai};
use takt_lab::{Host, LabConfig};
use takt_session::layout::{
    ArenaMap, HEADER_BYTES, LANE_DIRTY_OFFSET, LANE_STATE_OFFSET, Release, TxDescriptor,
};
use takt_session::message::{Envelope, Reply, Request};
use takt_session::transport;
use takt_shm::{Arena, LaneBell, Producer};
use takt_testing::{PATIENCE, until};
use takt_time::{TaiTime, TrafficClass};

use crate::support::node::PORT;
use crate::support::{Node, Pair, attach, introduce, put, skip, take};

/// Channels of the hostile tenant; the victims have others.
const HOSTILE: u64 = 100;
const MESSAGES: ChannelId = ChannelId(5);
const LAUNCHED: ChannelId = ChannelId(6);
/// Ahead of a launch time, and between two.
const AHEAD: Duration = Duration::from_millis(2);
/// The instants that victim and adversary aim at are whole multiples of this.
const EVERY: i64 = 1_000_000;

const LISTENERS: &str = "\
[[listener]]
path = \"DIR/hostile.sock\"
identity = \"hostile\"
write = [\"100-199\"]
read = [\"100-199\"]
sessions = 64
total_memory = \"2 GiB\"
total_endpoints = 1024
descriptors = 512
";

fn seconds() -> Duration {
    let text = std::env::var("TAKT_ADVERSARY_SECONDS").unwrap_or_default();
    Duration::from_secs(text.parse().unwrap_or(3))
}

/// A session without a library, which does what no library would.
struct Raw {
    socket: OwnedFd,
    arena: Arc<Arena>,
    map: ArenaMap,
    bell: LaneBell,
    request: u32,
}

fn connect(path: &Path) -> Option<OwnedFd> {
    let socket = transport::socket().ok()?;
    let address = SocketAddrUnix::new(path).expect("a short path");
    rustix::net::connect(&socket, &address).ok()?;
    Some(socket)
}

fn request(socket: &OwnedFd, request: u32, message: Request) -> Option<transport::Packet> {
    let bytes = Envelope { request, message }.encode();
    transport::send(socket, &bytes, &[], true).ok()?;
    transport::receive(socket, true).ok()?
}

fn attach_request(bytes: u64) -> Request {
    Request::Attach {
        name: "\u{1b}[2Jhostile\n".into(),
        tx_bytes: bytes,
        rx_bytes: bytes,
        domain: false,
    }
}

impl Raw {
    /// None: refused, as one may be who asks so often.
    fn attach(path: &Path) -> Option<Self> {
        let socket = connect(path)?;
        let packet = request(&socket, 1, attach_request(8 << 20))?;
        let Ok(Reply::Attached { map, .. }) =
            Envelope::<Reply>::decode(&packet.bytes).map(|envelope| envelope.message)
        else {
            return None;
        };
        let [arena, bell]: [OwnedFd; 2] = packet.descriptors.try_into().ok()?;
        let arena = Arc::new(Arena::open(arena, map.total()).ok()?);
        let bell = LaneBell::attach(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET, bell).ok()?;
        Some(Self {
            socket,
            arena,
            map,
            bell,
            request: 1,
        })
    }

    fn ask(&mut self, message: Request) -> Option<Reply> {
        self.request += 1;
        let packet = request(&self.socket, self.request, message)?;
        Some(Envelope::<Reply>::decode(&packet.bytes).ok()?.message)
    }

    fn stream(&mut self) -> Option<u32> {
        match self.ask(Request::OpenStream(Qos::slow()))? {
            Reply::StreamOpened { stream, .. } => Some(stream),
            _ => None,
        }
    }

    fn source(&mut self, stream: u32) -> Option<Producer<TxDescriptor>> {
        let open = Request::OpenSource {
            stream,
            channel: ChannelId(HOSTILE),
            depth: 64,
            origin: 0,
            first: 0,
        };
        match self.ask(open)? {
            Reply::SourceOpened { block, .. } => {
                Producer::attach(&self.arena, block.tx_ring(), block.depth).ok()
            }
            _ => None,
        }
    }

    fn sink(&mut self, stream: u32, notify_fd: bool) -> Option<Producer<Release>> {
        let open = Request::OpenSink {
            stream,
            channel: ChannelId(HOSTILE),
            depth: 64,
            notify_fd,
            mode: takt_session::SinkMode::default(),
        };
        match self.ask(open)? {
            Reply::SinkOpened { block, .. } => {
                Producer::attach(&self.arena, block.release_ring(), block.depth).ok()
            }
            _ => None,
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let slice = self.arena.slice(offset, bytes.len()).expect("in bounds");
        slice.write_from(0, bytes).expect("fits");
    }
}

/// What an attack has at hand.
struct Attack {
    socket: PathBuf,
    stop: AtomicBool,
    /// How often something was done, and how often it was refused.
    done: AtomicU64,
}

impl Attack {
    fn new(node: &Node) -> Self {
        Self {
            socket: node.directory.join("hostile.sock"),
            stop: AtomicBool::new(false),
            done: AtomicU64::new(0),
        }
    }

    fn on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    fn did(&self) {
        self.done.fetch_add(1, Relaxed);
    }
}

/// Random bytes all over rings and memory, also while a message is being taken from there.
fn scribble(attack: &Attack) {
    let mut rng = StdRng::seed_from_u64(1);
    while attack.on() {
        let Some(mut raw) = Raw::attach(&attack.socket) else {
            std::thread::yield_now();
            continue;
        };
        let Some(stream) = raw.stream() else { continue };
        let mut sources: Vec<_> = (0..3).filter_map(|_| raw.source(stream)).collect();
        let _sinks: Vec<_> = (0..3).filter_map(|_| raw.sink(stream, false)).collect();
        for round in 0..200u32 {
            for source in &mut sources {
                let honest = TxDescriptor {
                    chunk: round % 64,
                    length: 200,
                    ..TxDescriptor::default()
                };
                let _ = source.push(honest);
            }
            raw.bell.ring();
            let end = if rng.random_bool(0.8) {
                HEADER_BYTES + (64 << 10)
            } else {
                raw.map.total()
            };
            let mut junk = [0u8; 64];
            rng.fill(&mut junk[..]);
            if rng.random_bool(0.5) {
                junk[1..].fill(0);
            }
            raw.write(rng.random_range(0..end - 64), &junk);
        }
        attack.did();
    }
}

/// Blocks that are emitted twice, released twice or never received, and descriptors that point anywhere.
fn twice(attack: &Attack) {
    let mut rng = StdRng::seed_from_u64(2);
    while attack.on() {
        let Some(mut raw) = Raw::attach(&attack.socket) else {
            std::thread::yield_now();
            continue;
        };
        let Some(stream) = raw.stream() else { continue };
        let (Some(mut source), Some(mut release)) = (raw.source(stream), raw.sink(stream, true))
        else {
            continue;
        };
        let one = TxDescriptor {
            chunk: rng.random_range(0..4),
            length: rng.random_range(0..1024),
            ..TxDescriptor::default()
        };
        let _ = source.push(one);
        match rng.random_range(0..4) {
            0 => {
                let _ = source.push(one);
            }
            1 => {
                let _ = release.push(rng.random());
            }
            2 => {
                let _ = release.push(0);
                let _ = release.push(0);
            }
            _ => {
                let anything = TxDescriptor {
                    chunk: rng.random(),
                    length: rng.random(),
                    flags: rng.random(),
                    class: rng.random(),
                    ..one
                };
                let _ = source.push(anything);
            }
        }
        raw.bell.ring();
        attack.did();
    }
}

/// The doorbell, as fast as it goes.
fn ring(attack: &Attack) {
    while attack.on() {
        // Others of the tenant may hold all its places.
        let Some(raw) = Raw::attach(&attack.socket) else {
            std::thread::yield_now();
            continue;
        };
        while attack.on() {
            raw.bell.ring();
            attack.did();
        }
    }
}

/// Connections that say nothing, that say half of something, or that leave at once; by the hundred.
fn half_open(attack: &Attack) {
    while attack.on() {
        let sockets: Vec<_> = (0..200).filter_map(|_| connect(&attack.socket)).collect();
        for (at, socket) in sockets.iter().enumerate() {
            match at % 3 {
                0 => drop(transport::send(socket, &[1], &[], false)),
                1 => {
                    // With descriptors that nobody has asked for.
                    let all = [socket.as_fd(); transport::MAX_DESCRIPTORS];
                    let _ = transport::send(socket, b"take these", &all, false);
                }
                _ => {}
            }
        }
        attack.did();
    }
}

/// Sources and sinks until no more are available, and then all over again.
fn endpoints(attack: &Attack) {
    while attack.on() {
        let mut sessions = Vec::new();
        while let Some(mut raw) = Raw::attach(&attack.socket).filter(|_| attack.on()) {
            let Some(stream) = raw.stream() else { break };
            while attack.on() && raw.source(stream).is_some() && raw.sink(stream, true).is_some() {
                attack.did();
            }
            sessions.push(raw);
            if sessions.len() == 4 {
                break;
            }
        }
    }
}

/// Messages of a megabyte and more to many sinks that take none.
fn never_consumed(attack: &Attack) {
    let open = || {
        let session = Session::builder()
            .socket(&attack.socket)
            .tx_bytes(32 << 20)
            .rx_bytes(32 << 20)
            .reconnect(false)
            .open()
            .ok()?;
        let stream = session.stream(Qos::slow()).ok()?;
        let channel = ChannelId(HOSTILE + 1);
        let sinks: Vec<Sink> = (0..64).filter_map(|_| stream.sink(channel).ok()).collect();
        Some((stream.source(channel).ok()?, sinks))
    };
    while attack.on() {
        let Some((source, _sinks)) = open() else {
            std::thread::yield_now();
            continue;
        };
        for length in [16 << 20, 1 << 20, 64 << 10].into_iter().cycle().take(64) {
            if !attack.on() {
                break;
            }
            let Ok(buffer) = source.buffer_wait(length, Wait::For(Duration::from_millis(50)))
            else {
                continue;
            };
            if buffer.emit().is_ok() {
                attack.did();
            }
        }
    }
}

/// Launch times just before those of the victim, in its class.
fn aim(attack: &Attack) {
    // The other attacks are of the same tenant and take all that it may have: tried until there is room.
    let (_session, source) = loop {
        match aiming(attack) {
            Ok(opened) => break opened,
            Err(_) if attack.on() => continue,
            Err(_) => return,
        }
    };
    while attack.on() {
        let Ok(buffer) = source.buffer_wait(64, Wait::For(Duration::from_millis(50))) else {
            continue;
        };
        if source
            .emit_at(buffer, next_instant().saturating_add_nanos(-2000))
            .is_ok()
        {
            attack.did();
        }
    }
}

fn aiming(attack: &Attack) -> Result<(Session, Source), takt::Error> {
    let session = Session::builder()
        .socket(&attack.socket)
        .tx_bytes(2 << 20)
        .rx_bytes(2 << 20)
        .reconnect(false)
        .open()?;
    let source = session.stream(launched())?.source(ChannelId(HOSTILE + 2))?;
    Ok((session, source))
}

/// Hellos, messages and junk from another host, to every port of the node.
fn forge(host: &Host, node: &Host, attack: &Attack) {
    let inside = host.enter().expect("the lab is up");
    let socket = UdpSocket::bind((host.address(), 0)).expect("bind");
    drop(inside);
    let mut rng = StdRng::seed_from_u64(3);
    let mut heard: Vec<Vec<u8>> = Vec::new();
    socket.set_nonblocking(true).expect("nonblocking");
    while attack.on() {
        for port in PORT..PORT + 3 {
            let to = SocketAddr::from((node.address(), port));
            let mut bytes = vec![0; rng.random_range(1..200)];
            rng.fill(&mut bytes[..]);
            // What begins as a message of the protocol gets further.
            match rng.random_range(0..4) {
                // A hello of a node without lanes, as `docs/reference/wire-format.md` has it, or something else
                // of that protocol.
                0 => {
                    bytes.splice(..0, *b"TKTP\x03\x01\0\0");
                    bytes.truncate(16);
                    bytes.extend([0; 16]);
                    bytes.extend(*b"\x06forged\0");
                }
                1 => {
                    bytes.splice(..0, *b"TKTP\x03");
                }
                2 => bytes[0] = 2,
                _ => {}
            }
            if let Some(again) = heard.last() {
                let _ = socket.send_to(again, to);
            }
            if socket.send_to(&bytes, to).is_ok() {
                attack.did();
            }
        }
        let mut answer = [0; 2048];
        if let Ok(length) = socket.recv(&mut answer) {
            heard.push(answer[..length].to_vec());
        }
    }
}

fn launched() -> Qos {
    Qos::slow().time_sensitive(TrafficClass::new(5).expect("a class"))
}

/// The instant that everybody aims at next.
fn next_instant() -> TaiTime {
    let ahead = SystemTai.now().as_nanos() + AHEAD.as_nanos() as i64;
    TaiTime::from_nanos((ahead / EVERY + 1) * EVERY)
}

/// Those who are not to be disturbed.
struct Victims {
    messages: (Source, Sink, Sink),
    launched: (Source, Sink),
    number: u64,
}

/// How long a message took, in nanoseconds: the half, the 99th of a hundred, and the longest.
#[derive(Debug)]
struct Latencies {
    #[allow(dead_code)] // printed
    p50: u128,
    #[allow(dead_code)]
    p99: u128,
    #[allow(dead_code)]
    max: u128,
    #[allow(dead_code)]
    of: usize,
}

fn latencies(mut all: Vec<u128>) -> Latencies {
    all.sort_unstable();
    let at = |share: usize| all[(all.len() * share / 100).min(all.len() - 1)];
    Latencies {
        p50: at(50),
        p99: at(99),
        max: at(100),
        of: all.len(),
    }
}

impl Victims {
    fn new(pair: &Pair) -> Self {
        let near = attach(&pair.nodes[0], "victim");
        let far = attach(&pair.nodes[1], "victim");
        let open = |channel, qos| {
            let [near, far] = [&near, &far].map(|session| session.stream(qos).expect("a stream"));
            let source = near.source(channel).expect("a source");
            (
                source,
                near.sink(channel).expect("a sink"),
                far.sink(channel).expect("a sink"),
            )
        };
        let messages = open(MESSAGES, Qos::slow());
        introduce(&messages.0, &[&messages.1, &messages.2]);
        let (source, local, remote) = open(LAUNCHED, launched());
        introduce(&source, &[&local, &remote]);
        Self {
            messages,
            launched: (source, remote),
            number: 0,
        }
    }

    /// At work while `on`: every message is awaited at every sink, and each operator's question answered.
    fn work(&mut self, pair: &Pair, on: impl Fn() -> bool + Sync) -> [Latencies; 3] {
        let (first, on) = (self.number, &on);
        let (messages, launched) = (&mut self.messages, &mut self.launched);
        let ([answered, exchanged, departed], number) = std::thread::scope(|scope| {
            let answered = scope.spawn(move || {
                let mut admin = pair.nodes[0].admin();
                let mut took = Vec::new();
                while on() {
                    let began = Instant::now();
                    assert!(!admin.sessions().is_empty());
                    took.push(began.elapsed().as_nanos());
                    std::thread::sleep(Duration::from_millis(200));
                }
                took
            });
            let exchanged = scope.spawn(move || {
                let (source, near, far) = messages;
                let (mut number, mut took) = (first, Vec::new());
                while on() {
                    let began = Instant::now();
                    put(source, number, 64);
                    assert_eq!(take(near), number, "lost, doubled or out of order");
                    assert_eq!(take(far), number, "lost, doubled or out of order");
                    took.push(began.elapsed().as_nanos());
                    number += 1;
                }
                (took, number)
            });
            let departed = scope.spawn(move || {
                let (source, sink) = launched;
                let mut late = Vec::new();
                for number in 0.. {
                    if !on() {
                        break;
                    }
                    let at = next_instant();
                    let mut buffer = source
                        .buffer_wait(8, Wait::For(PATIENCE))
                        .expect("a buffer");
                    buffer.copy_from_slice(&u64::to_le_bytes(number));
                    let token = source.emit_at(buffer, at).expect("emitted");
                    assert_eq!(take(sink), number, "lost, doubled or out of order");
                    let lateness = SystemTai.now().nanos_since(at).max(0);
                    late.push(u128::from(lateness.unsigned_abs()));
                    until("it is told", || {
                        (source.outcome(token) == Outcome::Sent).then_some(())
                    });
                }
                late
            });
            let answered = answered.join().expect("the operator");
            let (exchanged, number) = exchanged.join().expect("the victim with messages");
            let departed = departed.join().expect("the victim with launch times");
            ([answered, exchanged, departed], number)
        });
        self.number = number;
        [answered, exchanged, departed].map(latencies)
    }

    /// What the runtime says of their losses.
    fn unharmed(&self) {
        for sink in [&self.messages.1, &self.messages.2, &self.launched.1] {
            let counters = sink.counters();
            let lost = (
                counters.lost,
                counters.dropped_full,
                counters.dropped_memory,
            );
            assert_eq!(lost, (0, 0, 0), "{counters:?}");
            assert_eq!(counters.lost_at_disconnect, 0);
        }
    }
}

/// What a daemon has: open descriptors, and threads but for those that serve operators and look at the clock, of
/// which there are as many as happen to be needed.
fn held(node: &Node) -> (usize, usize) {
    let list = |what: &str| {
        let place = format!("/proc/{}/{what}", node.pid());
        std::fs::read_dir(place).expect("it runs").flatten()
    };
    let threads = list("task").filter(|thread| {
        let name = std::fs::read_to_string(thread.path().join("comm"));
        // One that has just ended has no name.
        name.is_ok_and(|name| !name.starts_with("tokio"))
    });
    (list("fd").count(), threads.count())
}

fn resident(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.expect("a line").trim().trim_end_matches(" kB");
    kibibytes.parse().expect("a number")
}

#[test]
fn whatever_a_hostile_tenant_and_a_forging_host_do_nobody_else_loses_anything() {
    if skip() {
        return;
    }
    let config = LabConfig {
        hosts: 3,
        ..LabConfig::default()
    };
    let pair = Pair::with(&config, LISTENERS);
    let mut victims = Victims::new(&pair);
    let node = &pair.nodes[0];
    let before = held(node);
    let resident_before = resident(node);

    // An honest neighbour, as busy as one may be.
    let ends = Instant::now() + seconds() / 3;
    let alone = std::thread::scope(|scope| {
        let neighbour = attach(node, "neighbour");
        scope.spawn(move || {
            let stream = neighbour.stream(Qos::slow()).expect("a stream");
            let source = stream.source(ChannelId(7)).expect("a source");
            let sink = stream.sink(ChannelId(7)).expect("a sink");
            while Instant::now() < ends {
                put(&source, 1, 1024);
                take(&sink);
            }
        });
        victims.work(&pair, || Instant::now() < ends)
    });
    println!("operator, messages, launch times beside an honest neighbour: {alone:#?}");

    type Tried = (&'static str, fn(&Attack));
    let attacks: [Tried; 7] = [
        ("scribble", scribble),
        ("twice", twice),
        ("ring", ring),
        ("half open", half_open),
        ("endpoints", endpoints),
        ("never consumed", never_consumed),
        ("aim", aim),
    ];
    let forging = ("forge", Attack::new(node));
    let attacking: Vec<_> = attacks
        .iter()
        .map(|(name, act)| (*name, *act, Attack::new(node)))
        .collect();
    let ends = Instant::now() + seconds();
    let beside = std::thread::scope(|scope| {
        for (_, act, attack) in &attacking {
            scope.spawn(move || act(attack));
        }
        let (forged, hosts) = (&forging.1, &pair.lab);
        scope.spawn(move || forge(hosts.host(2), hosts.host(0), forged));
        let all = || {
            let attacking = attacking.iter().map(|(_, _, attack)| attack);
            attacking.chain([&forging.1])
        };
        // Each of them has its turn, also where other programs keep the cores.
        let latest = ends + PATIENCE;
        let beside = victims.work(&pair, || {
            let tried = || all().all(|attack| attack.done.load(Relaxed) > 0);
            let now = Instant::now();
            now < ends || now < latest && !tried()
        });
        all().for_each(|attack| attack.stop.store(true, Relaxed));
        beside
    });
    println!("the same beside the adversary: {beside:#?}");
    let all = attacking.iter().map(|(name, _, attack)| (name, attack));
    for (name, attack) in all.chain([(&forging.0, &forging.1)]) {
        let done = attack.done.load(Relaxed);
        println!("{name}: {done}");
        assert!(done > 0, "{name} was not tried");
    }
    victims.unharmed();

    let mut admin = node.admin();
    until("what the hostile one held is released", || {
        let held = admin.listener_status(&node.directory.join("hostile.sock"));
        let held = (
            held.sessions,
            held.memory_bytes,
            held.endpoints,
            held.descriptors,
        );
        (held == (0, 0, 0, 0)).then_some(())
    });
    drop(admin);
    until("descriptors and threads are as before", || {
        let (descriptors, threads) = held(node);
        (descriptors <= before.0 && threads <= before.1).then_some(())
    });
    println!(
        "resident: {resident_before} kB before, {} kB after",
        resident(node)
    );
    let log = node.log();
    assert!(!log.contains('\u{1b}'), "a name reached the log as it was");
    assert!(log.lines().count() < 100_000, "the log was flooded");
    let forged = log.lines().filter(|line| line.contains("forged")).count();
    assert!(forged < 1000, "strangers wrote {forged} lines");
}
