//! What the peering protocol costs a node of a large site, in virtual time: the state machine of the runtime itself,
//! on every node, over a network with a delay.
//!
//! One node is measured. All others are its peers, each with channels of its own; what they say to each other does
//! not concern it and is left out, so every node of a full mesh bears what this one bears. Sizes are those of UDP
//! payloads. `TAKT_SIMULATE_RUNTIMES` (50) nodes with 20 channels each; `make simulate-peering` takes 5,000.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};
use rustix::time::{ClockId, clock_gettime};
use takt_runtime::peering::keys::{GroupKey, Security};
use takt_runtime::peering::message::{LaneAnnouncement, SourceProgress, Subscription};
use takt_runtime::peering::{Change, DEAD_AFTER, Effects, HELLO_EVERY, Local, Peering};

/// Channels that each node reads.
const CHANNELS: u64 = 20;
/// A datagram is under way so long at least, and up to twice as long.
const DELAY_US: u64 = 200;
/// The control thread looks again after this at the soonest.
const SOONEST: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// How long a state is looked at.
const LOOK: u32 = 10;

fn runtimes() -> usize {
    let text = std::env::var("TAKT_SIMULATE_RUNTIMES").unwrap_or_default();
    text.parse().unwrap_or(50)
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 1, (node >> 8) as u8, node as u8], 7400))
}

fn entry(channel: u64) -> Subscription {
    Subscription { channel, lane: 0 }
}

/// What the measured node has sent and taken, and the processor time that this took.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    sent: u64,
    sent_bytes: u64,
    taken: u64,
    taken_bytes: u64,
    cpu: Duration,
}

fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

enum Happens {
    Tick,
    Arrives { from: usize, bytes: Vec<u8> },
}

/// All nodes and what is under way between them. Node 0 is measured.
struct Site {
    nodes: Vec<Peering>,
    /// When each is to be looked at again; later entries for it in `queue` are void.
    looks: Vec<Duration>,
    queue: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    happenings: HashMap<u64, Happens>,
    number: u64,
    now: Duration,
    by_address: HashMap<SocketAddr, usize>,
    rng: StdRng,
    cost: Cost,
    /// What node 0 has been told that each of the others wants.
    told: HashMap<SocketAddr, BTreeSet<u64>>,
    /// How many of the others know of a wish of node 0.
    knows: HashMap<u64, usize>,
    /// Node 0 is not connected, or does not run yet.
    cut: bool,
}

impl Site {
    fn new(count: usize) -> Self {
        let security = Security::group(GroupKey::generate());
        let nodes = (0..count)
            .map(|node| peering(node, 1, &security, count))
            .collect();
        let mut site = Self {
            nodes,
            looks: vec![Duration::MAX; count],
            queue: BinaryHeap::new(),
            happenings: HashMap::new(),
            number: 0,
            now: Duration::ZERO,
            by_address: (0..count).map(|node| (address(node), node)).collect(),
            rng: StdRng::seed_from_u64(1),
            cost: Cost::default(),
            told: HashMap::new(),
            knows: HashMap::new(),
            cut: true,
        };
        for node in 1..count {
            for channel in 0..CHANNELS {
                let channel = node as u64 * CHANNELS + channel;
                site.want(node, channel, true);
            }
            // Nodes of a site do not start in the same instant.
            let at = Duration::from_micros(site.rng.random_range(0..1_000_000));
            site.look(node, at);
        }
        site
    }

    fn push(&mut self, at: Duration, node: usize, what: Happens) {
        self.number += 1;
        self.happenings.insert(self.number, what);
        self.queue.push(Reverse((at, self.number, node)));
    }

    fn look(&mut self, node: usize, at: Duration) {
        if at < self.looks[node] {
            self.looks[node] = at;
            self.push(at, node, Happens::Tick);
        }
    }

    /// Lets a node act, and carries what it sends.
    fn act(&mut self, node: usize, act: impl FnOnce(&mut Peering, Duration, &mut Effects)) {
        let mut effects = Effects::default();
        let before = (node == 0).then(cpu);
        act(&mut self.nodes[node], self.now, &mut effects);
        if let Some(before) = before {
            self.cost.cpu += cpu().saturating_sub(before);
        }
        for change in effects.changes {
            let (peer, add, remove) = match change {
                Change::Subscriptions { peer, add, remove } => (peer, add, remove),
                Change::Back { peer, wanted } => (peer, wanted, Vec::new()),
                Change::Silent { peer } if node == 0 => {
                    self.told.entry(peer).or_default().clear();
                    continue;
                }
                _ => continue,
            };
            if node == 0 {
                let told = self.told.entry(peer).or_default();
                told.extend(add.iter().map(|entry| entry.channel));
                remove.iter().for_each(|entry| {
                    told.remove(&entry.channel);
                });
                continue;
            }
            for entry in add {
                *self.knows.entry(entry.channel).or_default() += 1;
            }
            for entry in remove {
                *self.knows.entry(entry.channel).or_default() -= 1;
            }
        }
        for (to, bytes) in effects.datagrams {
            if node == 0 {
                self.cost.sent += 1;
                self.cost.sent_bytes += bytes.len() as u64;
            }
            if self.cut {
                continue;
            }
            let delay = DELAY_US + self.rng.random_range(0..DELAY_US);
            let at = self.now + Duration::from_micros(delay);
            self.push(
                at,
                self.by_address[&to],
                Happens::Arrives { from: node, bytes },
            );
        }
    }

    fn want(&mut self, node: usize, channel: u64, wanted: bool) {
        self.act(node, |peering, now, effects| {
            peering.want(entry(channel), wanted, now, effects);
        });
        self.look(node, self.now + SOONEST);
    }

    /// Lets time pass until `done`, at most until `end`.
    fn run(&mut self, end: Duration, mut done: impl FnMut(&Self) -> bool) {
        while let Some(&Reverse((at, number, node))) = self.queue.peek() {
            if at > end || done(self) {
                break;
            }
            self.queue.pop();
            self.now = at;
            match self.happenings.remove(&number) {
                Some(Happens::Tick) if self.looks[node] == at => {
                    self.looks[node] = Duration::MAX;
                    let mut next = at;
                    self.act(node, |peering, now, effects| {
                        next = peering.tick(now, effects)
                    });
                    self.look(node, next.max(at + SOONEST));
                }
                Some(Happens::Arrives { from, bytes }) => {
                    if node == 0 {
                        self.cost.taken += 1;
                        self.cost.taken_bytes += bytes.len() as u64;
                    }
                    self.act(node, |peering, now, effects| {
                        peering.receive(address(from), &bytes, now, effects);
                    });
                    let next = at + SOONEST;
                    self.look(node, next);
                }
                _ => {}
            }
        }
        if !done(self) {
            self.now = end;
        }
    }

    /// What it costs node 0 that `happens`, until `done` and all of it is acknowledged; and how long it took until
    /// then. It must be done in a minute.
    fn cost_of(
        &mut self,
        what: &str,
        happens: impl FnOnce(&mut Self),
        done: impl FnMut(&Self) -> bool + Copy,
    ) -> Cost {
        self.cost = Cost::default();
        let began = self.now;
        happens(self);
        self.run(began + 60 * SECOND, done);
        assert!({ done }(self), "{what}: not done in a minute");
        let took = self.now - began;
        self.run(self.now + Duration::from_micros(4 * DELAY_US), |_| false);
        self.print(&format!("{what} ({:.1} ms)", took.as_secs_f64() * 1e3), 1);
        self.cost
    }

    /// What a second costs node 0, of [`LOOK`] that pass.
    fn cost_of_a_second(&mut self, what: &str) -> Cost {
        self.cost = Cost::default();
        self.run(self.now + SECOND * LOOK, |_| false);
        self.print(what, LOOK.into());
        self.cost
    }

    fn print(&self, what: &str, parts: u64) {
        let c = &self.cost;
        println!(
            "{what:<58} sent {:>7} {:>10} B  taken {:>7} {:>10} B  CPU {:>9.2} ms",
            c.sent / parts,
            c.sent_bytes / parts,
            c.taken / parts,
            c.taken_bytes / parts,
            c.cpu.as_secs_f64() * 1e3 / parts as f64
        );
    }

    /// Whether node 0 knows what all others want.
    fn all_known(&self) -> bool {
        self.told.len() == self.nodes.len() - 1
            && self.told.values().all(|of| of.len() as u64 == CHANNELS)
    }
}

fn peering(node: usize, incarnation: u64, security: &Security, count: usize) -> Peering {
    let local = Local {
        incarnation: incarnation << 32 | (node as u64 + 1),
        name: format!("node-{node}"),
        label: node as u32,
        lanes: vec![LaneAnnouncement {
            incarnation: (incarnation << 20) as u32 | (node as u32 + 1),
            endpoints: Vec::new(),
        }],
    };
    let mut peering = Peering::new(local, security.clone(), Vec::new());
    let peers = if node == 0 { 1..count } else { 0..1 };
    for peer in peers {
        let added = peering.add(
            address(peer).into(),
            Duration::ZERO,
            &mut Effects::default(),
        );
        assert!(added);
    }
    peering
}

#[test]
fn what_a_node_of_a_large_site_sends_and_takes_grows_with_its_peers_and_with_changes_only() {
    let count = runtimes();
    let peers = count as u64 - 1;
    println!(
        "{count} runtimes, {} channels; one of them:",
        CHANNELS * peers
    );
    let mut site = Site::new(count);
    site.run(SECOND, |_| false);
    site.cut = false;
    site.look(0, SECOND);
    let nothing = |_: &mut Site| {};
    site.cost_of(
        "starts, until it knows what all others want",
        nothing,
        Site::all_known,
    );
    // Until all is acknowledged.
    site.run(site.now + 2 * SECOND, |_| false);

    let rest = site.cost_of_a_second("at rest, a second");
    // A hello to each and one from each, at most a fifth more often than said.
    let hellos = peers * u64::from(LOOK) * 5 / 4 + peers;
    assert!(rest.sent <= hellos && rest.taken <= hellos, "{rest:?}");

    let sources: Vec<(u8, SourceProgress)> = (0..CHANNELS)
        .map(|source| {
            let progress = SourceProgress {
                channel: (source + 1) * CHANNELS,
                source: source as u32,
                next: 1,
                ended: false,
            };
            (0, progress)
        })
        .collect();
    site.cost = Cost::default();
    for _ in 0..LOOK {
        site.act(0, |peering, _, effects| peering.announce(&sources, effects));
        site.run(site.now + HELLO_EVERY, |_| false);
    }
    site.print(
        "20 of its sources at work, each with one reader, a second",
        LOOK.into(),
    );
    assert!(
        site.cost.sent <= hellos + CHANNELS * u64::from(LOOK),
        "{:?}",
        site.cost
    );

    let change = site.cost_of(
        "its application reads another channel",
        |site| site.want(0, 1, true),
        |site| site.knows.get(&1) == Some(&(site.nodes.len() - 1)),
    );
    // A page to each, and hellos.
    assert!(change.sent <= 2 * peers, "{change:?}");
    site.run(site.now + SECOND, |_| false);

    site.cost = Cost::default();
    for flap in 0..1000 {
        site.want(0, 1, flap % 2 == 1);
        site.run(site.now + Duration::from_millis(1), |_| false);
    }
    site.print("its application flaps 1,000 times in a second", 1);
    // Pages to each at most every 20 ms and 0.2 ms for each peer, beside hellos.
    let pause = Duration::from_millis(20) + Duration::from_micros(200) * peers as u32;
    let pages = peers * (SECOND.as_micros() / pause.as_micros() + 2) as u64;
    assert!(site.cost.sent <= pages + peers * 2, "{:?}", site.cost);
    site.run(site.now + 2 * SECOND, |_| false);

    let change = site.cost_of(
        "an application elsewhere reads another channel",
        |site| site.want(1, u64::MAX, true),
        |site| site.told[&address(1)].contains(&u64::MAX),
    );
    assert!(change.sent <= peers && change.taken <= peers, "{change:?}");

    site.cut = true;
    site.run(site.now + DEAD_AFTER + SECOND, |_| false);
    assert!(site.told.values().all(BTreeSet::is_empty));
    site.cost_of_a_second("cut off, a second");
    site.cut = false;
    site.want(1, u64::MAX, false);
    site.cost_of(
        "back, until it knows what all others want",
        nothing,
        Site::all_known,
    );
}
