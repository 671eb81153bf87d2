//! A hostile tenant, and hosts that forge datagrams, beside others at work.
//!
//! All that one can think of, at once, for a while (`TAKT_ADVERSARY_SECONDS`, 3 unless said), in turns with an honest tenant
//! that keeps the node as busy. Beside both there are victims, with messages that are sent once, with a reliable stream and with
//! launch times, and an operator. Nobody loses anything or gets it twice, what leaves at an instant is captured at the other
//! end of the cable and waits for one message of each other tenant at most, and afterwards the daemon holds what it held before.
//! How long things took beside the one and beside the other is printed, and held to [`percentiles`] after a minute.

mod attacks;
mod forgery;
mod memory;
mod neighbour;
mod percentiles;
mod raw;
mod slow;
mod victims;
mod wire;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use takt::{ChannelId, Qos, Session, Sink, Source, Wait};
use takt_clock::{Clock, SystemTai};
use takt_lab::{Capture, LabConfig};
use takt_testing::{PATIENCE, until, until_within};
use takt_time::{TaiTime, TrafficClass};

use crate::support::{Datapath, Held, Node, Pair, Stops, skip};
use percentiles::Pairs;
use victims::{Latencies, Took, Victims};
use wire::Departures;

/// Channels of a tenant that is a neighbour begin at a multiple of this: the victims have others.
const TENANT_CHANNELS: u64 = 100;
const HOSTILE: u64 = TENANT_CHANNELS;
const HONEST: u64 = 2 * TENANT_CHANNELS;
/// And those of which a neighbour has thousands, all at its own node.
const HOSTILE_MANY: u64 = 10_000;
const HONEST_MANY: u64 = 20_000;
/// Ahead of a launch time.
const AHEAD: Duration = Duration::from_millis(2);
/// The instants that victim and adversary aim at are whole multiples of this.
const EVERY: i64 = 2_000_000;
/// Messages that a neighbour has for one instant.
const AT_ONCE: usize = 64;
/// A neighbour is at work for so long at most before the other one is.
const TURN: Duration = Duration::from_secs(6);
/// Who is at work for so long or longer is held to percentiles: in shorter runs they say nothing.
const JUDGED: Duration = Duration::from_secs(60);
/// How long a node keeps what an application had emitted that has left.
const LINGERS: Duration = Duration::from_secs(61);
/// Memory that the daemon may have more of afterwards, KiB: buffers of its own that it had not used before, and what the
/// allocator keeps between pieces in use.
const KEPT_KIB: u64 = 48 << 10;

const LISTENERS: &str = "\
[[listener]]
path = \"DIR/hostile.sock\"
identity = \"hostile\"
write = [\"100-199\", \"10000-19999\"]
read = [\"100-199\", \"10000-19999\"]
sessions = 1100
total_memory = \"2 GiB\"
total_endpoints = 4096
descriptors = 8192
[[listener]]
path = \"DIR/honest.sock\"
identity = \"honest\"
write = [\"200-299\", \"20000-29999\"]
read = [\"200-299\", \"20000-29999\"]
sessions = 1100
total_memory = \"2 GiB\"
total_endpoints = 4096
descriptors = 8192
";

fn seconds() -> Duration {
    let text = std::env::var("TAKT_ADVERSARY_SECONDS").unwrap_or_default();
    Duration::from_secs(text.parse().unwrap_or(3))
}

/// What somebody does until told to stop.
struct Work {
    name: &'static str,
    /// Where its tenant attaches, at the victims' node and at the other.
    near: PathBuf,
    far: PathBuf,
    stop: AtomicBool,
    /// How often it was done, or refused.
    done: AtomicU64,
    /// What it has used of the cores, nanoseconds.
    used: AtomicU64,
}

type Act = fn(&Work);
type Tried = (&'static str, Act);

impl Work {
    fn new(name: &'static str, pair: &Pair, socket: &str) -> Self {
        let [near, far] = [0, 1].map(|at| pair.nodes[at].directory.join(socket));
        Self {
            name,
            near,
            far,
            stop: AtomicBool::new(false),
            done: AtomicU64::new(0),
            used: AtomicU64::new(0),
        }
    }

    /// Does it until told to stop, in a thread of its own.
    fn run(&self, act: impl FnOnce(&Self)) {
        act(self);
        let used = clock_gettime(ClockId::ThreadCPUTime);
        let used = used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64;
        self.used.fetch_add(used, Relaxed);
    }

    fn on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    fn did(&self) {
        self.done.fetch_add(1, Relaxed);
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

/// Messages to the other node, many for each of the victim's instants, or so far off it.
fn launch_at(work: &Work, channel: ChannelId, off: i64) {
    let open = || -> Result<(Source, Sink), takt::Error> {
        let [near, far] = [&work.near, &work.far].map(|socket| {
            let session = Session::builder()
                .socket(socket)
                .tx_bytes(2 << 20)
                .rx_bytes(2 << 20)
                .reconnect(false)
                .open();
            session.and_then(|session| session.stream(launched()))
        });
        Ok((near?.source(channel)?, far?.sink(channel)?))
    };
    // What else its tenant does may take all that it may have: tried until there is room.
    let (source, sink) = loop {
        match open() {
            Ok(opened) => break opened,
            Err(_) if work.on() => std::thread::yield_now(),
            Err(_) => return,
        }
    };
    while work.on() {
        let instant = next_instant();
        for _ in 0..AT_ONCE {
            let Ok(buffer) = source.buffer_wait(16, Wait::For(Duration::from_millis(50))) else {
                continue;
            };
            let _ = source.emit_at(buffer, instant.saturating_add_nanos(off));
        }
        // What is more than the node can send would keep all lower classes of its own tenant waiting for good.
        while (next_instant() <= instant || source.pending() > 0) && work.on() {
            // Done is what has arrived.
            if sink.consume(Wait::Never).is_ok() {
                work.did();
            }
        }
    }
}

/// What the victims and the wire tell of the turns of one neighbour.
#[derive(Default)]
struct Beside {
    answered: Latencies,
    exchanged: Latencies,
    repeated: Latencies,
    departed: Departures,
    missing: u32,
}

/// What took some time: how it is called, and where it is.
type Measured = (&'static str, fn(&mut Beside) -> &mut Latencies);

const MEASURED: [Measured; 4] = [
    ("operator", |beside| &mut beside.answered),
    ("messages", |beside| &mut beside.exchanged),
    ("reliable", |beside| &mut beside.repeated),
    ("launch times, captured", |beside| &mut beside.departed.late),
];

impl Beside {
    fn add(&mut self, more: Self) {
        self.answered.add(more.answered);
        self.exchanged.add(more.exchanged);
        self.repeated.add(more.repeated);
        self.departed.add(more.departed);
        self.missing += more.missing;
    }
}

/// The victims beside all of this, for a turn, and until each of it has been tried.
fn take_turn(
    pair: &Pair,
    victims: &mut Victims,
    capture: &Capture,
    turn: Duration,
    all: &[(Work, Act)],
) -> Beside {
    let first = victims.launches().len();
    let stop = AtomicBool::new(false);
    let done = |work: &Work| work.done.load(Relaxed);
    let before: Vec<u64> = all.iter().map(|(work, _)| done(work)).collect();
    let (took, (seen, missing)) = std::thread::scope(|scope| {
        let seen = scope.spawn(|| wire::watch(capture, &stop));
        let works = all.iter().map(|(work, _)| &work.stop);
        let works: Vec<_> = works.chain([&stop]).collect();
        let stops = Stops(&works);
        for (work, act) in all {
            work.stop.store(false, Relaxed);
            scope.spawn(move || work.run(act));
        }
        let ends = Instant::now() + turn;
        // Each of them has its turn, also where other programs keep the cores.
        let latest = ends + PATIENCE;
        let took = victims.work(pair, || {
            let tried = || {
                all.iter()
                    .zip(&before)
                    .all(|((work, _), was)| done(work) > *was)
            };
            let now = Instant::now();
            now < ends || now < latest && !tried()
        });
        drop(stops);
        (took, seen.join().expect("the capture"))
    });
    for ((work, _), was) in all.iter().zip(before) {
        assert!(done(work) > was, "{} was not tried", work.name);
    }
    let Took {
        answered,
        exchanged,
        repeated,
    } = took;
    Beside {
        answered,
        exchanged,
        repeated,
        departed: wire::check(&seen, victims.launches(), first, missing),
        missing,
    }
}

/// Waits until the tenant of a socket holds nothing at either node. What it had emitted is kept for its launch times, which may be
/// a minute ahead, or for receivers: longer than `PATIENCE` is.
fn released(pair: &Pair, socket: &str) {
    for node in &pair.nodes {
        let (mut admin, mut before) = (node.admin(), None);
        until_within(
            LINGERS + PATIENCE,
            "what the neighbour held is released",
            || {
                let held = admin.listener_status(&node.directory.join(socket));
                let held = [held.sessions, held.endpoints, held.descriptors]
                    .map(u64::from)
                    .into_iter()
                    .chain([held.memory_bytes])
                    .collect::<Vec<_>>();
                let none = held.iter().all(|left| *left == 0);
                if !none && before.as_ref() != Some(&held) {
                    println!(
                        "{socket} of {}: {held:?} sessions, endpoints, descriptors, octets left",
                        node.pid()
                    );
                    before = Some(held);
                }
                none.then_some(())
            },
        );
    }
}

/// Where the first lane of a node receives.
fn port(node: &Node) -> u16 {
    let lanes = node.admin().node().lanes;
    let mut ports = lanes.iter().flat_map(|lane| &lane.ports);
    let port = ports.find(|port| port.datapath == Datapath::Udp.name());
    let local: SocketAddr = port.expect("its port").local.parse().expect("an address");
    local.port()
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
    let begun = Instant::now();
    let pair = Pair::with(&config, LISTENERS);
    let node = &pair.nodes[0];
    let mut victims = Victims::new(&pair);
    println!("at first {:?}", Held::by(node));
    let sent = Capture::sent_by(pair.lab.host(0), port(&pair.nodes[1])).expect("a capture");
    let before = Held::by(node);

    let honest = neighbour::ALL.map(|(name, act)| (Work::new(name, &pair, "honest.sock"), act));
    let tenant = attacks::ALL.map(|(name, act)| (Work::new(name, &pair, "hostile.sock"), act));
    let forging = Work::new("forge", &pair, "hostile.sock");
    let turns = (seconds().div_duration_f64(2 * TURN).ceil() as u32).max(2);
    let turn = seconds() / (2 * turns);
    let [mut beside_honest, mut beside_hostile] = [Beside::default(), Beside::default()];
    let mut pairs = MEASURED.map(|_| Pairs::default());
    for number in 0..turns {
        let mut of_honest = take_turn(&pair, &mut victims, &sent, turn, &honest);
        released(&pair, "honest.sock");
        println!("turn {number}, honest: {:?}", Held::by(node));
        let mut of_hostile = std::thread::scope(|scope| {
            let (forged, hosts) = (&forging, &pair.lab);
            forged.stop.store(false, Relaxed);
            let stop = [&forged.stop];
            let _stops = Stops(&stop);
            scope.spawn(move || {
                forged.run(|forged| attacks::forge(hosts.host(2), hosts.host(0), forged));
            });
            take_turn(&pair, &mut victims, &sent, turn, &tenant)
        });
        for (pairs, (_, of)) in pairs.iter_mut().zip(MEASURED) {
            pairs.add([of(&mut of_honest), of(&mut of_hostile)]);
        }
        beside_honest.add(of_honest);
        beside_hostile.add(of_hostile);
        released(&pair, "hostile.sock");
        println!("turn {number}, hostile: {:?}", Held::by(node));
    }
    let missing = victims.compare();
    println!(
        "{missing} of {} messages with launch times were lost and counted",
        victims.launches().len()
    );
    tell(&mut beside_honest, &mut beside_hostile);
    for ((what, _), pairs) in MEASURED.iter().zip(&pairs) {
        let (slower, of, too_many) = pairs.slower();
        println!(
            "{what}: in {slower} of {of} pairs of turns the p99 beside the hostile one was more than twice the other"
        );
        assert!(
            seconds() < JUDGED || of == 0 || slower < too_many,
            "{what}: the hostile tenant slows it down"
        );
    }
    let works = || honest.iter().chain(&tenant).map(|(work, _)| work);
    for work in works().chain([&forging]) {
        let done = work.done.load(Relaxed);
        let used = Duration::from_nanos(work.used.load(Relaxed));
        println!("{}: {done} in {used:.1?} of a core", work.name);
        assert!(done > 0, "{} was not tried", work.name);
    }
    assert!(
        beside_hostile.departed.others > 0,
        "nothing of the hostile tenant's was on the wire"
    );

    let after = until("descriptors, threads and memory are as before", || {
        let held = Held::by(node);
        held.is_within(before, KEPT_KIB).then_some(held)
    });
    println!("the daemon held {before:?} before, {after:?} after");
    let log = node.log();
    assert!(!log.contains('\u{1b}'), "a name reached the log as it was");
    // Each tenant 50 at once and 2 a second, each with one that says how many were left out; and what is nobody's.
    let lines = log.lines().count() as u64;
    let most = 3 * 2 * (50 + 2 * begun.elapsed().as_secs()) + 200;
    assert!(lines < most, "{lines} lines: the log was flooded");
    let forged = log.lines().filter(|line| line.contains("forged")).count();
    assert!(forged < 1000, "strangers wrote {forged} lines");
}

/// How long things took beside the one neighbour and beside the other.
fn tell(honest: &mut Beside, hostile: &mut Beside) {
    println!(
        "us: p50, p99 and longest beside the honest neighbour; beside the hostile one; ratio of p99"
    );
    for (what, of) in MEASURED {
        let [honest, hostile] = [&mut *honest, &mut *hostile].map(|beside| {
            let of = of(beside);
            (of.count(), of.told())
        });
        let ratio = hostile.1[1] / honest.1[1];
        println!("{what}: {honest:.1?}; {hostile:.1?}; {ratio:.2}");
    }
    for (name, of) in [("honest", &*honest), ("hostile", hostile)] {
        let Departures {
            judged,
            most_before,
            others,
            ..
        } = &of.departed;
        println!(
            "beside the {name} one: {judged} messages with launch times were queued in time, of {others} of the neighbour's \
             {most_before} at most left between an instant and its message; {} frames were not captured",
            of.missing
        );
    }
}
