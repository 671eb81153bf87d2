//! Two or more nodes over a simulated network that loses, delays and cuts.

use super::*;
use proptest::prelude::*;

/// Nodes whose datagrams pass through the test's hands.
struct World {
    nodes: Vec<(SocketAddr, Peering)>,
    now: Duration,
    /// Sets as the lanes of each node know them.
    routes: Vec<std::collections::HashMap<SocketAddr, BTreeSet<Subscription>>>,
    up: Vec<BTreeSet<SocketAddr>>,
}

fn address(index: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 0, 0, index as u8 + 1]), 7400)
}

fn lanes(incarnation: u32) -> Vec<LaneAnnouncement> {
    vec![LaneAnnouncement {
        incarnation,
        label: 3,
        endpoints: Vec::new(),
    }]
}

fn set(channels: impl IntoIterator<Item = u64>) -> BTreeSet<Subscription> {
    channels
        .into_iter()
        .map(|channel| Subscription { channel, lane: 0 })
        .collect()
}

impl World {
    /// Every node has all others configured.
    fn new(count: usize) -> Self {
        let nodes = (0..count)
            .map(|i| (address(i), Self::node(i, 1000, count)))
            .collect();
        Self {
            nodes,
            now: Duration::ZERO,
            routes: vec![Default::default(); count],
            up: vec![BTreeSet::new(); count],
        }
    }

    fn node(index: usize, incarnation: u64, count: usize) -> Peering {
        let mut node = Peering::new(
            incarnation + index as u64,
            format!("n{index}"),
            lanes(incarnation as u32),
            Vec::new(),
        );
        for other in (0..count).filter(|&other| other != index) {
            node.add(address(other), Duration::ZERO);
        }
        node
    }

    fn apply(&mut self, index: usize, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Lanes { peer, lanes } => {
                    self.routes[index].remove(&peer);
                    if lanes.is_empty() {
                        self.up[index].remove(&peer);
                    } else {
                        self.up[index].insert(peer);
                    }
                }
                Change::Subscriptions { peer, entries } => {
                    assert!(
                        self.up[index].contains(&peer),
                        "subscriptions of a peer without lanes"
                    );
                    self.routes[index].insert(peer, entries);
                }
            }
        }
    }

    /// Carries datagrams until there are none, except those that `lose` picks.
    fn carry(&mut self, from: usize, outbox: Outbox, lose: &mut impl FnMut(usize, usize) -> bool) {
        let mut waiting: std::collections::VecDeque<_> = outbox
            .into_iter()
            .map(|(to, bytes)| (from, to, bytes))
            .collect();
        let mut carried = 0;
        while let Some((from, to, bytes)) = waiting.pop_front() {
            carried += 1;
            assert!(carried < 10_000, "a storm");
            let Some(to) = self.nodes.iter().position(|(a, _)| *a == to) else {
                continue;
            };
            if lose(from, to) {
                continue;
            }
            let (mut outbox, mut changes) = (Outbox::new(), Vec::new());
            let source = self.nodes[from].0;
            self.nodes[to]
                .1
                .receive(source, &bytes, self.now, &mut outbox, &mut changes);
            self.apply(to, changes);
            waiting.extend(outbox.into_iter().map(|(next, bytes)| (to, next, bytes)));
        }
    }

    fn run(&mut self, time: Duration, mut lose: impl FnMut(usize, usize) -> bool) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(10);
            for index in 0..self.nodes.len() {
                let (mut outbox, mut changes) = (Outbox::new(), Vec::new());
                self.nodes[index]
                    .1
                    .tick(self.now, &mut outbox, &mut changes);
                self.apply(index, changes);
                self.carry(index, outbox, &mut lose);
            }
        }
    }

    fn subscribe(&mut self, index: usize, subscriptions: BTreeSet<Subscription>) {
        let mut outbox = Outbox::new();
        self.nodes[index]
            .1
            .subscribe(subscriptions, self.now, &mut outbox);
        self.carry(index, outbox, &mut |_, _| false);
    }

    fn route(&self, index: usize, peer: usize) -> Option<&BTreeSet<Subscription>> {
        self.routes[index].get(&address(peer))
    }

    fn state(&self, index: usize, peer: usize) -> PeerState {
        let status = self.nodes[index].1.status(self.now);
        status
            .iter()
            .find(|p| p.address == address(peer))
            .expect("configured")
            .state
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_subscription_reaches_a_peer_at_once() {
    let mut world = World::new(2);
    world.run(SECOND, |_, _| false);
    assert_eq!(world.state(0, 1), PeerState::Up);
    world.subscribe(1, set([7, 8]));
    assert_eq!(world.route(0, 1), Some(&set([7, 8])));
    world.subscribe(1, set([8]));
    assert_eq!(world.route(0, 1), Some(&set([8])));
}

#[test]
fn more_subscriptions_than_fit_a_datagram_arrive_whole() {
    let mut world = World::new(2);
    world.run(SECOND, |_, _| false);
    world.subscribe(1, set(0..5000));
    assert_eq!(world.route(0, 1), Some(&set(0..5000)));
}

#[test]
fn a_cut_line_withdraws_the_routes_and_its_mending_brings_them_back() {
    let mut world = World::new(2);
    world.subscribe(1, set([7]));
    world.run(SECOND, |_, _| false);
    assert_eq!(world.route(0, 1), Some(&set([7])));
    world.run(DEAD_AFTER + SECOND, |_, _| true);
    assert_eq!(world.state(0, 1), PeerState::Down);
    assert_eq!(world.route(0, 1), None);
    world.run(3 * SECOND, |_, _| false);
    assert_eq!(world.state(0, 1), PeerState::Up);
    assert_eq!(world.route(0, 1), Some(&set([7])));
}

#[test]
fn a_line_that_works_one_way_only_does_not_stay_up_on_the_deaf_side() {
    let mut world = World::new(2);
    world.run(SECOND, |_, _| false);
    world.run(DEAD_AFTER + SECOND, |from, _| from == 1);
    assert_eq!(world.state(0, 1), PeerState::Down);
}

#[test]
fn a_restarted_peer_is_known_by_its_incarnation_and_asked_anew() {
    let mut world = World::new(2);
    world.subscribe(1, set([7]));
    world.run(SECOND, |_, _| false);
    world.nodes[1].1 = World::node(1, 2000, 2);
    world.routes[1].clear();
    world.up[1].clear();
    world.subscribe(0, set([9]));
    world.run(2 * SECOND, |_, _| false);
    assert_eq!(world.route(0, 1), None, "the new incarnation wants nothing");
    assert_eq!(
        world.route(1, 0),
        Some(&set([9])),
        "and has been told what we want"
    );
}

#[test]
fn a_goodbye_takes_effect_at_once() {
    let mut world = World::new(2);
    world.subscribe(1, set([7]));
    world.run(SECOND, |_, _| false);
    let mut outbox = Outbox::new();
    world.nodes[1].1.leave(&mut outbox);
    world.carry(1, outbox, &mut |_, _| false);
    assert_eq!(world.state(0, 1), PeerState::Down);
    assert_eq!(world.route(0, 1), None);
}

#[test]
fn strangers_are_counted_unless_their_network_is_accepted() {
    let hello = |incarnation| {
        let lanes = lanes(5);
        encode(
            incarnation,
            &Message::Hello {
                name: "x".into(),
                seen: 0,
                holds: 0,
                lanes,
            },
        )
    };
    let mut node = Peering::new(
        1,
        "n".into(),
        lanes(1),
        vec!["10.0.0.0/24".parse().expect("network")],
    );
    let (mut outbox, mut changes) = (Outbox::new(), Vec::new());
    let mut say = |node: &mut Peering, from: &str| {
        let from = SocketAddr::new(from.parse().expect("address"), 7400);
        node.receive(from, &hello(9), Duration::ZERO, &mut outbox, &mut changes);
    };
    say(&mut node, "10.0.1.1");
    assert_eq!(
        (node.status(Duration::ZERO).len(), node.counters().strangers),
        (0, 1)
    );
    say(&mut node, "10.0.0.9");
    let status = node.status(Duration::ZERO);
    assert_eq!(
        (status.len(), status[0].state, status[0].configured),
        (1, PeerState::Up, false)
    );
    // Not configured: forgotten when it falls silent.
    let (mut outbox, mut changes) = (Outbox::new(), Vec::new());
    node.tick(DEAD_AFTER, &mut outbox, &mut changes);
    assert!(node.status(DEAD_AFTER).is_empty());
}

#[test]
fn a_node_that_lists_itself_does_not_become_its_own_peer() {
    let mut world = World::new(1);
    world.nodes[0].1.add(address(0), Duration::ZERO);
    world.run(2 * SECOND, |_, _| false);
    assert_eq!(world.state(0, 0), PeerState::Trying);
}

#[test]
fn networks_are_compared_by_their_prefix() {
    let net = |text: &str| text.parse::<AcceptNet>().expect("network");
    let ip = |text: &str| text.parse::<IpAddr>().expect("address");
    assert!(
        net("10.1.0.0/16").contains(ip("10.1.255.3"))
            && !net("10.1.0.0/16").contains(ip("10.2.0.1"))
    );
    assert!(net("0.0.0.0/0").contains(ip("1.2.3.4")) && !net("0.0.0.0/0").contains(ip("::1")));
    assert!(net("fd00::/8").contains(ip("fd12::1")) && !net("fd00::/8").contains(ip("fe80::1")));
    assert!(
        "10.0.0.0/33".parse::<AcceptNet>().is_err() && "10.0.0.0".parse::<AcceptNet>().is_err()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_lost_all_agree_once_the_network_heals(
        seed in any::<u64>(),
        steps in proptest::collection::vec((0usize..3, 0u64..200, 0u64..3000), 1..12),
    ) {
        let mut world = World::new(3);
        let mut state = seed | 1;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut wanted = [set([]), set([]), set([])];
        for (node, count, millis) in steps {
            wanted[node] = set((0..count).map(|_| random() % 1000));
            let mut outbox = Outbox::new();
            let now = world.now;
            world.nodes[node].1.subscribe(wanted[node].clone(), now, &mut outbox);
            world.carry(node, outbox, &mut |_, _| random() % 2 == 0);
            world.run(Duration::from_millis(millis), |_, _| random() % 3 == 0);
        }
        world.run(5 * SECOND, |_, _| false);
        for node in 0..3 {
            for peer in (0..3).filter(|&peer| peer != node) {
                let empty = set([]);
                prop_assert_eq!(world.route(node, peer).unwrap_or(&empty), &wanted[peer]);
            }
        }
    }
}
