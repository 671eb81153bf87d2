//! Two or more nodes over a simulated network that loses, delays and cuts.

use super::keys::{GroupKey, PrivateKey};
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of the keys that are accepted, and of those sent under.
type Keys = (BTreeSet<u8>, Option<u8>);

/// Nodes whose datagrams pass through the test's hands.
struct World {
    nodes: Vec<(SocketAddr, Peering)>,
    security: Vec<Security>,
    now: Duration,
    /// Sets as the lanes of each node know them.
    routes: Vec<HashMap<SocketAddr, BTreeSet<Subscription>>>,
    up: Vec<BTreeSet<SocketAddr>>,
    /// Datapaths of each node's peers that have failed.
    failed: Vec<BTreeMap<SocketAddr, Vec<message::Outage>>>,
    /// Numbers of the keys that lanes of each node accept from each peer, and send under.
    keys: Vec<BTreeMap<SocketAddr, Keys>>,
    /// Changes of keys used for sending.
    switches: usize,
    /// All datagrams so far.
    carried: Vec<(usize, SocketAddr, Vec<u8>)>,
}

fn address(index: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 0, 0, index as u8 + 1]), 7400)
}

fn lanes(incarnation: u32) -> Vec<LaneAnnouncement> {
    let endpoint = |datapath: &str, port| message::Endpoint {
        datapath: datapath.into(),
        port,
        takes: 9000,
        udp: true,
        address: None,
    };
    vec![LaneAnnouncement {
        incarnation,
        endpoints: vec![endpoint("udp", 1), endpoint("xdp", 2)],
    }]
}

fn set(channels: impl IntoIterator<Item = u64>) -> BTreeSet<Subscription> {
    channels
        .into_iter()
        .map(|channel| Subscription { channel, lane: 0 })
        .collect()
}

fn group() -> Security {
    Security::group(
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
            .parse()
            .expect("a key"),
    )
}

fn own(seed: u8) -> PrivateKey {
    PrivateKey([seed; 32])
}

impl World {
    /// Every node has all others configured, and one key.
    fn new(count: usize) -> Self {
        Self::with(vec![group(); count])
    }

    /// Every node has all others configured.
    fn with(security: Vec<Security>) -> Self {
        let count = security.len();
        let mut world = Self {
            nodes: Vec::new(),
            now: Duration::ZERO,
            routes: vec![Default::default(); count],
            up: vec![BTreeSet::new(); count],
            failed: vec![BTreeMap::new(); count],
            keys: vec![BTreeMap::new(); count],
            switches: 0,
            carried: Vec::new(),
            security,
        };
        world.nodes = (0..count)
            .map(|i| (address(i), world.node(i, 1000)))
            .collect();
        world
    }

    fn node(&self, index: usize, incarnation: u64) -> Peering {
        let local = Local {
            incarnation: incarnation + index as u64,
            name: format!("n{index}"),
            label: 3,
            lanes: lanes(incarnation as u32),
        };
        let security = self.security[index].clone();
        let mut node = Peering::new(local, security, Vec::new());
        let count = self.security.len();
        for other in (0..count).filter(|&other| other != index) {
            let key = self.security[other].node.as_ref().map(PrivateKey::public);
            let peer = PeerConfig::known_by(address(other), key);
            node.add(peer, self.now, &mut Effects::default());
        }
        node
    }

    fn apply(&mut self, index: usize, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Lanes { peer, lanes, .. } => {
                    assert!(!lanes.is_empty());
                    self.routes[index].remove(&peer);
                    self.failed[index].remove(&peer);
                    self.up[index].insert(peer);
                }
                Change::Gone { peer, .. } => {
                    self.routes[index].remove(&peer);
                    self.up[index].remove(&peer);
                }
                Change::Subscriptions { peer, add, remove } => {
                    assert!(
                        self.up[index].contains(&peer),
                        "subscriptions of a peer without lanes"
                    );
                    let known = self.routes[index].entry(peer).or_default();
                    for entry in remove {
                        assert!(known.remove(&entry), "{entry:?} was not wanted");
                    }
                    for entry in add {
                        assert!(known.insert(entry), "{entry:?} was wanted");
                    }
                    if known.is_empty() {
                        self.routes[index].remove(&peer);
                    }
                }
                Change::Back { peer, wanted } => {
                    let before = self.routes[index].insert(peer, wanted.into_iter().collect());
                    assert!(before.is_none(), "it was not silent");
                }
                Change::Silent { peer } => {
                    let known = self.routes[index].remove(&peer);
                    assert!(known.is_some(), "it wanted nothing");
                }
                Change::Failed { peer, datapaths } => {
                    assert!(self.up[index].contains(&peer), "failed without lanes");
                    self.failed[index].insert(peer, datapaths);
                }
                Change::Progress { .. } => {}
                Change::Keys { peer, change } => {
                    let (accepted, sending) = self.keys[index].entry(peer).or_default();
                    match change {
                        KeyChange::Accept(secrets) => assert!(accepted.insert(secrets.number)),
                        KeyChange::Send(number) => {
                            assert!(accepted.contains(&number));
                            *sending = Some(number);
                            self.switches += 1;
                            let at = self.nodes.iter().position(|(a, _)| *a == peer);
                            let theirs = &self.keys[at.expect("a node")][&address(index)].0;
                            assert!(theirs.contains(&number), "sent before it is accepted");
                        }
                        KeyChange::Retire(number) => assert!(accepted.remove(&number)),
                    }
                }
            }
        }
    }

    /// Carries datagrams until there are none, except those that `lose` picks.
    fn carry(
        &mut self,
        from: usize,
        outbox: Vec<(SocketAddr, Vec<u8>)>,
        lose: &mut impl FnMut(usize, usize) -> bool,
    ) {
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
            let outbox = self.deliver(self.nodes[from].0, to, &bytes);
            self.carried.push((from, self.nodes[to].0, bytes));
            waiting.extend(outbox.into_iter().map(|(next, bytes)| (to, next, bytes)));
        }
    }

    /// Hands a datagram to a node: what that sends.
    fn deliver(
        &mut self,
        source: SocketAddr,
        to: usize,
        bytes: &[u8],
    ) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut effects = Effects::default();
        self.nodes[to]
            .1
            .receive(source, bytes, self.now, &mut effects);
        self.apply(to, effects.changes);
        effects.datagrams
    }

    fn run(&mut self, time: Duration, mut lose: impl FnMut(usize, usize) -> bool) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(10);
            for index in 0..self.nodes.len() {
                let mut effects = Effects::default();
                self.nodes[index].1.tick(self.now, &mut effects);
                self.apply(index, effects.changes);
                self.carry(index, effects.datagrams, &mut lose);
            }
        }
    }

    /// From now on a node wants these.
    fn want(
        &mut self,
        index: usize,
        wanted: &BTreeSet<Subscription>,
    ) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut effects = Effects::default();
        let node = &mut self.nodes[index].1;
        let before: Vec<_> = node.wanted.entries().collect();
        for entry in before.iter().filter(|entry| !wanted.contains(entry)) {
            node.want(*entry, false, self.now, &mut effects);
        }
        for entry in wanted {
            node.want(*entry, true, self.now, &mut effects);
        }
        self.apply(index, effects.changes);
        effects.datagrams
    }

    fn subscribe(&mut self, index: usize, wanted: BTreeSet<Subscription>) {
        let outbox = self.want(index, &wanted);
        self.carry(index, outbox, &mut |_, _| false);
        self.run(Duration::from_millis(50), |_, _| false);
    }

    fn counters(&self, index: usize) -> PeeringCounters {
        self.nodes[index].1.counters()
    }

    fn route(&self, index: usize, peer: usize) -> Option<&BTreeSet<Subscription>> {
        self.routes[index].get(&address(peer))
    }

    fn restart(&mut self, index: usize) {
        self.nodes[index].1 = self.node(index, 2000);
        self.routes[index].clear();
        self.up[index].clear();
        self.failed[index].clear();
        self.keys[index].clear();
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
    world.restart(1);
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
fn peers_are_told_at_once_which_datapaths_have_failed_and_those_that_come_up_later_too() {
    let mut world = World::new(3);
    world.run(SECOND, |from, to| from == 2 || to == 2);
    let outage = |returns| message::Outage {
        datapath: "xdp".into(),
        returns,
    };
    let fails = |world: &mut World, failed: &[message::Outage]| {
        let mut effects = Effects::default();
        (world.nodes[1].1).set_failed(failed.to_vec(), &mut effects);
        world.carry(1, effects.datagrams, &mut |_, to| to == 2);
    };
    let known = |world: &World, index: usize| world.failed[index].get(&address(1)).cloned();
    let xdp = [false, true].map(|returns| vec![outage(returns)]);
    fails(&mut world, &xdp[0]);
    assert_eq!(known(&world, 0).as_ref(), Some(&xdp[0]));
    world.run(2 * SECOND, |_, _| false);
    assert_eq!(known(&world, 2).as_ref(), Some(&xdp[0]));
    fails(&mut world, &xdp[1]);
    assert_eq!(known(&world, 0).as_ref(), Some(&xdp[1]));
    // Told once more after a break, in which its lanes were forgotten or not.
    world.run(DEAD_AFTER + SECOND, |from, to| from == 0 || to == 0);
    fails(&mut world, &[]);
    world.run(3 * SECOND, |_, _| false);
    assert_eq!(known(&world, 0).unwrap_or_default(), []);
    fails(&mut world, &xdp[0]);
    assert_eq!(known(&world, 0).as_ref(), Some(&xdp[0]));
    world.restart(1);
    world.run(3 * SECOND, |_, _| false);
    assert_eq!(
        known(&world, 0),
        None,
        "the new one has nothing that failed"
    );
}

#[test]
fn a_goodbye_takes_effect_at_once() {
    let mut world = World::new(2);
    world.subscribe(1, set([7]));
    world.run(SECOND, |_, _| false);
    let mut effects = Effects::default();
    world.nodes[1].1.leave(&mut effects);
    world.carry(1, effects.datagrams, &mut |_, _| false);
    assert_eq!(world.state(0, 1), PeerState::Down);
    assert_eq!(world.route(0, 1), None);
}

/// A hello as a node without protection sends it.
fn hello(incarnation: u64) -> Vec<u8> {
    let hello = Message::Hello {
        name: "x".into(),
        seen: 0,
        stream: 0,
        holds: 0,
        label: 1,
        lanes: lanes(5),
        failed: Vec::new(),
    };
    encode(incarnation, &hello)
}

fn accepting(security: Security) -> Peering {
    let local = Local {
        incarnation: 1,
        name: "n".into(),
        label: 2,
        lanes: lanes(1),
    };
    Peering::new(
        local,
        security,
        vec!["10.0.0.0/8".parse().expect("network")],
    )
}

#[test]
fn strangers_are_counted_unless_their_network_is_accepted() {
    let mut node = accepting(Security::none());
    let say = |node: &mut Peering, from: &str| {
        let from = SocketAddr::new(from.parse().expect("address"), 7400);
        let mut effects = Effects::default();
        node.receive(from, &hello(9), Duration::ZERO, &mut effects);
    };
    say(&mut node, "11.0.1.1");
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
    // Not configured: forgotten when it stays silent.
    for second in 0..=70 {
        node.tick(Duration::from_secs(second), &mut Effects::default());
    }
    assert!(node.status(FORGET_AFTER).is_empty());
}

#[test]
fn strangers_of_an_accepted_network_do_not_become_thousands_of_peers() {
    let mut node = accepting(Security::none());
    for port in 1..1000 {
        let from = SocketAddr::new([10, 0, 0, 9].into(), port);
        let mut effects = Effects::default();
        node.receive(
            from,
            &hello(u64::from(port) + 1),
            Duration::ZERO,
            &mut effects,
        );
    }
    assert_eq!(node.status(Duration::ZERO).len(), MOST_ACCEPTED_AT);
    assert_eq!(node.counters().too_many, 999 - MOST_ACCEPTED_AT as u64);
}

#[test]
fn who_is_refused_for_want_of_room_leaves_nothing_behind() {
    let mut node = accepting(Security::none());
    let mut ask = |at: u32| {
        let host = IpAddr::from((0x0a00_0000 + at).to_be_bytes());
        let mut effects = Effects::default();
        node.receive(
            SocketAddr::new(host, 7400),
            &hello(u64::from(at) + 9),
            Duration::ZERO,
            &mut effects,
        );
        (node.accepted.len(), node.all_accepted)
    };
    for at in 0..MOST_ACCEPTED as u32 {
        ask(at);
    }
    for at in 0..100 {
        assert_eq!(ask(0x0010_0000 + at), (MOST_ACCEPTED, MOST_ACCEPTED));
    }
}

#[test]
fn without_the_groups_key_nobody_becomes_a_peer_and_no_answer_is_longer_than_the_question() {
    let mut node = accepting(group());
    let from = address(9);
    let mut stranger = Association::default();
    let wrong = Identity::of(&Security::group(GroupKey::generate()), None).expect("a key");
    let right = Identity::of(&group(), None).expect("a key");
    let mut effects = Effects::default();
    for datagram in [
        hello(9),
        stranger.initiate(&wrong, 9, Duration::ZERO),
        vec![0; 1200],
    ] {
        node.receive(from, &datagram, Duration::ZERO, &mut effects);
        assert!(effects.datagrams.is_empty() && effects.changes.is_empty());
    }
    assert_eq!(node.counters().unauthenticated, 2);
    // Who has it must first show that it receives at its address.
    let begun = stranger.initiate(&right, 9, Duration::ZERO);
    node.receive(from, &begun, Duration::ZERO, &mut effects);
    assert!(
        node.status(Duration::ZERO).is_empty(),
        "nothing is remembered"
    );
    let (_, cookie) = effects.datagrams.pop().expect("a cookie");
    assert!(cookie.len() < begun.len());
    let again = stranger.cookie(&cookie).expect("the answer to it");
    let mut elsewhere = Effects::default();
    node.receive(address(8), &again, Duration::ZERO, &mut elsewhere);
    let (_, other) = elsewhere.datagrams.pop().expect("another cookie");
    assert_eq!(
        other.len(),
        cookie.len(),
        "a cookie is good for one address"
    );
    node.receive(from, &again, Duration::ZERO, &mut effects);
    let (_, answer) = effects.datagrams.pop().expect("an answer");
    assert!(answer.len() < again.len());
    assert_eq!(node.status(Duration::ZERO).len(), 1);
}

#[test]
fn nodes_with_keys_of_their_own_know_each_other_by_them() {
    let node = |seed| Security {
        node: Some(own(seed)),
        ..Security::default()
    };
    let mut world = World::with(vec![node(1), node(2)]);
    world.subscribe(1, set([7]));
    world.run(2 * SECOND, |_, _| false);
    assert_eq!(world.route(0, 1), Some(&set([7])));
    assert_eq!(
        world.nodes[0].1.status(world.now)[0].authentication,
        Authentication::Node(own(2).public())
    );
}

#[test]
fn a_node_with_another_key_than_listed_does_not_become_a_peer() {
    let node = |seed| Security {
        node: Some(own(seed)),
        ..Security::default()
    };
    let mut world = World::with(vec![node(1), node(2)]);
    // Node 1 is replaced by one with another key that knows everything else.
    world.security[1] = node(3);
    world.restart(1);
    world.run(5 * SECOND, |_, _| false);
    assert_eq!(world.state(0, 1), PeerState::Trying);
    assert_eq!(world.state(1, 0), PeerState::Trying);
    assert!(world.counters(0).unauthenticated > 0);
    assert!(world.up[0].is_empty() && world.up[1].is_empty());
}

fn with_own(seed: u8) -> Security {
    Security {
        node: Some(own(seed)),
        ..Security::default()
    }
}

impl World {
    /// A node lists another one with these keys.
    fn list(&mut self, index: usize, other: usize, keys: [Option<u8>; 2]) -> bool {
        let [key, next_key] = keys.map(|seed| seed.map(|seed| own(seed).public()));
        let peer = PeerConfig {
            address: address(other),
            key,
            next_key,
        };
        let mut effects = Effects::default();
        let added = self.nodes[index].1.add(peer, self.now, &mut effects);
        self.apply(index, effects.changes);
        self.carry(index, effects.datagrams, &mut |_, _| false);
        added
    }

    fn switch_key(&mut self, index: usize, seed: u8) {
        let now = self.now;
        let node = &mut self.nodes[index].1;
        node.set_next_key(own(seed));
        assert!(node.switch_key(now));
        assert!(!node.switch_key(now), "there is one next key");
    }

    fn status(&self, index: usize) -> PeerStatus {
        self.nodes[index].1.status(self.now).remove(0)
    }

    /// Lets two nodes go on. What the lanes of each send under, the other one's accept at any time.
    fn run_without_a_gap(&mut self, time: Duration, mut lose: impl FnMut() -> bool) {
        let end = self.now + time;
        while self.now < end {
            self.run(Duration::from_millis(10), |_, _| lose());
            for index in 0..2 {
                let sending = self.keys[index][&address(1 - index)]
                    .1
                    .expect("there is one");
                assert!(self.keys[1 - index][&address(index)].0.contains(&sending));
                assert!(self.up[index].contains(&address(1 - index)));
            }
        }
    }
}

#[test]
fn nodes_change_their_keys_while_they_are_peers_and_nothing_is_void_meanwhile() {
    let mut world = World::with(vec![with_own(1), with_own(2)]);
    world.subscribe(1, set([7]));
    world.run(2 * SECOND, |_, _| false);
    let mut lost = 0u32;
    let mut lose = || {
        lost = lost.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        lost >> 29 == 0
    };
    let known_by = |seed| Authentication::Node(own(seed).public());
    // The one, the other, and both at once, sooner than is good for them.
    let mut keys = [1, 2];
    for (round, who) in [&[0][..], &[1], &[0, 1], &[0, 1], &[1], &[0]]
        .iter()
        .enumerate()
    {
        for &node in *who {
            let next = 10 + 2 * round as u8 + node as u8;
            assert!(world.list(1 - node, node, [Some(keys[node]), Some(next)]));
            assert!(!world.list(1 - node, node, [Some(keys[node]), Some(next)]));
            world.switch_key(node, next);
            keys[node] = next;
        }
        world.run_without_a_gap(40 * SECOND, &mut lose);
        for &node in *who {
            let other = world.status(1 - node);
            assert_eq!(other.authentication, known_by(keys[node]), "{round}");
            assert!(!world.status(node).is_behind);
            assert!(world.list(1 - node, node, [Some(keys[node]), None]));
        }
        world.run_without_a_gap(SECOND, &mut lose);
    }
    world.run_without_a_gap(1400 * SECOND, &mut lose);
    assert_eq!(world.route(0, 1), Some(&set([7])));
    for index in 0..2 {
        let (accepted, _) = &world.keys[index][&address(1 - index)];
        assert!(accepted.len() <= association::MOST_SESSIONS);
    }
}

#[test]
fn the_key_of_before_may_be_taken_out_before_the_peer_has_shown_that_it_has_the_new_one() {
    let mut world = World::with(vec![with_own(1), with_own(2)]);
    world.subscribe(1, set([7]));
    world.run(2 * SECOND, |_, _| false);
    world.list(0, 1, [Some(2), Some(3)]);
    world.switch_key(1, 3);
    assert!(world.list(0, 1, [Some(3), None]));
    world.run_without_a_gap(30 * SECOND, || false);
    assert_eq!(world.route(0, 1), Some(&set([7])));
    let known = world.status(0).authentication;
    assert_eq!(known, Authentication::Node(own(3).public()));
    assert!(!world.status(0).is_behind && !world.status(1).is_behind);
    // One that it was never said to have is another node's.
    assert!(world.list(0, 1, [Some(4), None]));
    assert_eq!(
        (world.state(0, 1), world.route(0, 1)),
        (PeerState::Trying, None)
    );
}

#[test]
fn a_peer_that_does_not_list_the_new_key_is_told_and_lost_when_the_old_one_is_answered_to_no_more()
{
    let mut world = World::with(vec![with_own(1), with_own(2)]);
    world.run(2 * SECOND, |_, _| false);
    world.switch_key(1, 3);
    world.run_without_a_gap(ANSWER_TO_FORMER, || false);
    assert!(world.status(1).is_behind);
    assert!(world.counters(0).unauthenticated > 0);
    world.run(2 * keys::REKEY, |_, _| false);
    assert_ne!(world.state(0, 1), PeerState::Up);
    // As soon as it does, they are peers.
    world.list(0, 1, [Some(2), Some(3)]);
    world.run(10 * SECOND, |_, _| false);
    assert_eq!(
        (world.state(0, 1), world.state(1, 0)),
        (PeerState::Up, PeerState::Up)
    );
}

#[test]
fn a_node_that_was_restarted_with_either_key_is_found_by_who_lists_both() {
    for seed in [2, 3] {
        let mut world = World::with(vec![with_own(1), with_own(2)]);
        world.list(0, 1, [Some(2), Some(3)]);
        world.run(2 * SECOND, |_, _| false);
        assert_eq!(world.state(0, 1), PeerState::Up);
        // It begins no handshake itself.
        let local = Local {
            incarnation: 5000,
            ..accepting(Security::none()).local
        };
        let security = Security {
            allow: vec![own(1).public()],
            ..with_own(seed)
        };
        let accept = vec!["10.0.0.0/24".parse().expect("network")];
        world.nodes[1].1 = Peering::new(local, security, accept);
        world.routes[1].clear();
        world.up[1].clear();
        world.keys[1].clear();
        world.run(DEAD_AFTER + 15 * SECOND, |_, _| false);
        assert_eq!(world.state(0, 1), PeerState::Up, "{seed}");
        let known = world.status(0).authentication;
        assert_eq!(known, Authentication::Node(own(seed).public()));
    }
}

#[test]
fn a_node_that_was_accepted_has_another_key_that_is_allowed_once_it_is_gone_by_the_one_before() {
    let allowing = |seed, allow: &[u8]| Security {
        allow: allow.iter().map(|seed| own(*seed).public()).collect(),
        ..with_own(seed)
    };
    let (mut world, said) = on_a_link(vec![allowing(1, &[2, 3]), allowing(2, &[1])]);
    for datagram in &said[1] {
        world.hear(0, address(1), datagram);
    }
    world.run(2 * SECOND, |_, _| false);
    let known_by = |seed| Some(Authentication::Node(own(seed).public()));
    assert_eq!(key_of_second(&world), known_by(2));
    // Whoever else is allowed could say the same by its own key.
    world.switch_key(1, 3);
    world.run_without_a_gap(20 * SECOND, || false);
    assert_eq!(key_of_second(&world), known_by(2));
    assert!(world.counters(0).unauthenticated > 0);
    world.run(3 * keys::REKEY, |_, _| false);
    assert_eq!(key_of_second(&world), known_by(3));
}

/// Nodes of one link that know nothing of each other, and what each has announced.
fn on_a_link(security: Vec<Security>) -> (World, Vec<Vec<Vec<u8>>>) {
    let mut world = World::with(security.clone());
    for (index, security) in security.into_iter().enumerate() {
        let local = Local {
            incarnation: 1000 + index as u64,
            ..accepting(Security::none()).local
        };
        let accept = vec!["10.0.0.0/24".parse().expect("network")];
        world.nodes[index].1 = Peering::new(local, security, accept);
    }
    let said = world.nodes.iter();
    let said = said.map(|(own, node)| node.announcements(*own)).collect();
    (world, said)
}

impl World {
    /// A node hears an announcement that comes from `source`.
    fn hear(&mut self, to: usize, source: SocketAddr, datagram: &[u8]) {
        let mut effects = Effects::default();
        self.nodes[to]
            .1
            .hear(source, datagram, self.now, &mut effects);
        self.apply(to, effects.changes);
        self.carry(to, effects.datagrams, &mut |_, _| false);
    }

    fn up(&self, index: usize) -> usize {
        let status = self.nodes[index].1.status(self.now);
        let up = status.iter().filter(|peer| peer.state == PeerState::Up);
        up.count()
    }
}

#[test]
fn nodes_of_a_group_that_hear_each_other_become_peers() {
    let (mut world, said) = on_a_link(vec![group(); 3]);
    // The third one is heard by the first only.
    for (from, to) in [(1, 0), (2, 0)] {
        for datagram in &said[from] {
            world.hear(to, address(from), datagram);
            // Again: it is known.
            world.hear(to, address(from), datagram);
        }
    }
    world.run(SECOND, |_, _| false);
    assert_eq!([0, 1, 2].map(|index| world.up(index)), [2, 1, 1]);
    world.subscribe(1, set([7]));
    assert_eq!(world.route(0, 1), Some(&set([7])));
}

#[test]
fn nodes_that_allow_each_others_keys_become_peers_and_others_do_not() {
    let node = |seed, allow: &[u8]| Security {
        node: Some(own(seed)),
        allow: allow.iter().map(|seed| own(*seed).public()).collect(),
        ..Security::default()
    };
    // The third is allowed by nobody, though it allows all.
    let (mut world, said) = on_a_link(vec![node(1, &[2]), node(2, &[1]), node(3, &[1, 2])]);
    for (from, said) in said.iter().enumerate() {
        for to in (0..3).filter(|to| *to != from) {
            for datagram in said {
                world.hear(to, address(from), datagram);
            }
        }
    }
    world.run(SECOND, |_, _| false);
    assert_eq!([0, 1, 2].map(|index| world.up(index)), [1, 1, 0]);
    let status = world.nodes[0].1.status(world.now);
    assert_eq!(
        status[0].authentication,
        Authentication::Node(own(2).public())
    );
    assert_eq!(world.counters(0).unauthenticated, 1);
}

/// The key of the peer at the second address, as the first node knows it, if it is up.
fn key_of_second(world: &World) -> Option<Authentication> {
    let status = world.nodes[0].1.status(world.now);
    let second = status.into_iter().find(|p| p.address == address(1))?;
    (second.state == PeerState::Up).then_some(second.authentication)
}

#[test]
fn an_address_is_anothers_with_an_allowed_key_as_soon_as_the_node_that_had_it_is_gone() {
    let node = |seed, allow: &[u8]| Security {
        node: Some(own(seed)),
        allow: allow.iter().map(|seed| own(*seed).public()).collect(),
        ..Security::default()
    };
    let with_key = |seed| Authentication::Node(own(seed).public());
    let peer = |index, seed| PeerConfig::known_by(address(index), Some(own(seed).public()));
    for configured in [false, true] {
        let security = vec![
            node(1, &[2, 3]),
            node(2, &[1]),
            node(3, &[1]),
            node(4, &[1]),
        ];
        let (mut world, said) = on_a_link(security);
        let (_, stranger) = world.nodes.pop().expect("a fourth");
        let (_, replacement) = world.nodes.pop().expect("a third");
        if configured {
            let mut effects = Effects::default();
            world.nodes[0].1.add(peer(1, 2), world.now, &mut effects);
        }
        for datagram in &said[1] {
            world.hear(0, address(1), datagram);
        }
        world.run(SECOND, |_, _| false);
        assert_eq!(key_of_second(&world), Some(with_key(2)));
        // Another one at its address. As long as the first may be there it is not heard.
        for (next, allowed) in [(stranger, false), (replacement, true)] {
            world.nodes[1].1 = next;
            world.routes[1].clear();
            world.up[1].clear();
            world.keys[1].clear();
            let (now, mut effects) = (world.now, Effects::default());
            world.nodes[1].1.add(peer(0, 1), now, &mut effects);
            if !allowed {
                world.run(SECOND, |_, _| false);
                assert_eq!(key_of_second(&world), Some(with_key(2)));
            }
            world.run(DEAD_AFTER + 4 * SECOND, |_, _| false);
            let replaced = (allowed && !configured).then(|| with_key(3));
            assert_eq!(key_of_second(&world), replaced, "configured: {configured}");
        }
    }
}

#[test]
fn forged_announcements_leave_nothing_behind_and_are_answered_by_nothing() {
    let (mut world, _) = on_a_link(vec![group()]);
    let forger = scout::Scout::new(&Security::group(GroupKey::generate()));
    let open = scout::Scout::new(&Security::none());
    let elsewhere = scout::Scout::new(&group());
    for host in 0..10_000u32 {
        let [_, _, high, low] = host.to_be_bytes();
        let from = SocketAddr::new(IpAddr::from([10, 0, 0, low]), 1 + u16::from(high));
        let mut effects = Effects::default();
        let node = &mut world.nodes[0].1;
        for datagram in forger
            .announce(from, 9)
            .into_iter()
            .chain(open.announce(from, 9))
        {
            node.hear(from, &datagram, Duration::ZERO, &mut effects);
        }
        // A right one that was recorded and is repeated from somewhere else, and one of another network.
        for (announced, source) in [
            (address(7), from),
            (
                "10.0.1.7:7400".parse().expect("address"),
                "10.0.1.7:7400".parse().expect("address"),
            ),
        ] {
            let datagram = &elsewhere.announce(announced, 9)[0];
            if source.ip() != announced.ip() || announced.ip() != address(7).ip() {
                node.hear(source, datagram, Duration::ZERO, &mut effects);
            }
        }
        assert!(effects.datagrams.is_empty() && effects.changes.is_empty());
        assert!(node.status(Duration::ZERO).is_empty());
    }
    let counters = world.counters(0);
    assert!(counters.unauthenticated >= 20_000 && counters.strangers == 10_000);
}

#[test]
fn a_repeated_announcement_of_a_node_that_is_gone_is_forgotten_again() {
    let (mut world, said) = on_a_link(vec![group(); 2]);
    world.nodes.truncate(1);
    world.hear(0, address(1), &said[1][0]);
    assert_eq!(world.nodes[0].1.status(world.now).len(), 1);
    world.run(DEAD_AFTER + SECOND, |_, _| false);
    assert!(world.nodes[0].1.status(world.now).is_empty());
}

#[test]
fn a_forged_hello_changes_nothing_but_a_counter() {
    let mut world = World::new(2);
    world.subscribe(1, set([7]));
    world.run(SECOND, |_, _| false);
    let (up, incarnation) = (
        world.up[0].clone(),
        world.nodes[0].1.status(world.now)[0].incarnation,
    );
    let answers = world.deliver(address(1), 0, &hello(9999));
    assert!(answers.is_empty());
    assert_eq!(world.counters(0).unauthenticated, 1);
    assert_eq!(world.up[0], up);
    assert_eq!(
        world.nodes[0].1.status(world.now)[0].incarnation,
        incarnation
    );
    assert_eq!(world.route(0, 1), Some(&set([7])));
}

#[test]
fn whatever_is_replayed_changes_nothing_but_counters() {
    let mut world = World::new(2);
    world.subscribe(1, set([7]));
    world.run(2 * SECOND, |_, _| false);
    world.subscribe(1, set([8]));
    let before: Vec<_> = (0..2)
        .map(|i| world.nodes[i].1.status(world.now)[0].incarnation)
        .collect();
    let recorded = std::mem::take(&mut world.carried);
    let refused = |world: &World| {
        let counters = world.counters(0);
        counters.unauthenticated + counters.replayed
    };
    let (start, mut replays) = (refused(&world), 0);
    for (_, _, bytes) in recorded.iter().filter(|(from, ..)| *from == 1) {
        let answers = world.deliver(address(1), 0, bytes);
        // A handshake may be answered with a cookie, which proves nothing.
        assert!(answers.iter().all(|(_, answer)| answer[5] == COOKIE));
        replays += u64::from(answers.is_empty());
    }
    assert!(replays > 5);
    assert_eq!(refused(&world) - start, replays);
    assert_eq!(world.route(0, 1), Some(&set([8])));
    world.run(2 * SECOND, |_, _| false);
    let after: Vec<_> = (0..2)
        .map(|i| world.nodes[i].1.status(world.now)[0].incarnation)
        .collect();
    assert_eq!(before, after);
    assert_eq!(world.state(0, 1), PeerState::Up);
}

#[test]
fn any_changed_bit_of_a_sealed_message_is_refused() {
    let mut world = World::new(2);
    world.run(SECOND, |_, _| false);
    let sealed = world.want(1, &set([7]));
    let (_, good) = sealed.first().expect("a page");
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(world.deliver(address(1), 0, &bad).is_empty(), "bit {bit}");
    }
    assert_eq!(world.route(0, 1), None);
    assert!(
        !world.deliver(address(1), 0, good).is_empty(),
        "it is acknowledged"
    );
    assert_eq!(world.route(0, 1), Some(&set([7])));
}

#[test]
fn handshakes_that_cross_leave_both_with_a_session_that_the_other_has() {
    let identity = Identity::of(&group(), None).expect("a key");
    let mut gates = [Gatekeeper::new(&group()), Gatekeeper::new(&group())];
    let mut pair = [Association::default(), Association::default()];
    for round in 1..=3 * association::MOST_SESSIONS as u64 {
        let now = Duration::from_secs(round);
        // Numbers are drawn: one that the other has is refused, and another drawn at the next try.
        let begun = loop {
            let begun = [0, 1].map(|at| pair[at].initiate(&identity, at as u64 + 1, now));
            let number = |at: usize| begun[at][6];
            if [0, 1].iter().all(|&at| !pair[1 - at].is_taken(number(at))) {
                break begun;
            }
        };
        let again = [0, 1].map(
            |at| match gates[1 - at].look(address(at), None, &begun[at], now) {
                Ok(Gate::Cookie(cookie)) => pair[at].cookie(&cookie).expect("ours"),
                _ => panic!("the address is not proven yet"),
            },
        );
        // Both are accepted before either is answered.
        let answers =
            [0, 1].map(
                |at| match gates[at].look(address(1 - at), None, &again[1 - at], now) {
                    Ok(Gate::Open(opened)) => {
                        pair[at].accept(*opened, at as u64 + 1, now).expect("new").0
                    }
                    _ => panic!("the address is proven"),
                },
            );
        for at in [0, 1] {
            pair[at].respond(&answers[1 - at], now).expect("the answer");
        }
        for from in [0, 1] {
            let sealed = pair[from].seal(b"hello").expect("a session");
            assert!(pair[1 - from].open(&sealed).is_ok(), "round {round}");
            pair[from].switch(now);
        }
    }
}

#[test]
fn keys_change_while_the_peers_stay_up_and_are_accepted_before_they_are_used() {
    let mut world = World::new(2);
    world.subscribe(1, set([7]));
    world.run(SECOND, |_, _| false);
    let first = world.switches;
    let mut lost = 0u32;
    world.run(4 * keys::REKEY, |_, _| {
        lost = lost.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        lost >> 29 == 0
    });
    assert_eq!(world.state(0, 1), PeerState::Up);
    assert_eq!(world.route(0, 1), Some(&set([7])));
    assert!(world.switches >= first + 6, "{}", world.switches);
    for index in 0..2 {
        let (accepted, sending) = &world.keys[index][&address(1 - index)];
        assert!(accepted.len() <= association::MOST_SESSIONS && sending.is_some());
    }
}

#[test]
fn a_peer_that_was_stopped_for_a_while_keeps_its_lanes() {
    let mut world = World::new(2);
    world.subscribe(1, set([7]));
    world.run(SECOND, |_, _| false);
    world.run(DEAD_AFTER + 5 * SECOND, |_, _| true);
    assert_eq!(world.route(0, 1), None);
    assert!(
        world.up[0].contains(&address(1)),
        "its numbers are still known"
    );
}

#[test]
fn a_sink_that_comes_and_goes_all_the_time_costs_few_datagrams() {
    let mut world = World::new(3);
    world.run(SECOND, |_, _| false);
    world.carried.clear();
    for step in 0..2000 {
        let wanted = if step % 2 == 0 { set([7]) } else { set([]) };
        let outbox = world.want(0, &wanted);
        world.carry(0, outbox, &mut |_, _| false);
        if step % 20 == 0 {
            world.run(Duration::from_millis(10), |_, _| false);
        }
    }
    let carried = world.carried.len();
    assert!(carried < 300, "{carried} datagrams in a second");
}

#[test]
fn a_hundred_thousand_channels_reach_a_peer_that_loses_much() {
    let mut world = World::new(2);
    world.run(SECOND, |_, _| false);
    let mut state = 1u64;
    let mut lose = |_: usize, _: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state >> 62 == 0
    };
    let wanted = set(0..100_000);
    let outbox = world.want(1, &wanted);
    world.carry(1, outbox, &mut lose);
    world.run(60 * SECOND, &mut lose);
    world.run(5 * SECOND, |_, _| false);
    assert_eq!(world.route(0, 1).map(BTreeSet::len), Some(100_000));
}

#[test]
fn a_node_that_lists_itself_does_not_become_its_own_peer() {
    let mut world = World::new(1);
    world.nodes[0]
        .1
        .add(address(0).into(), Duration::ZERO, &mut Effects::default());
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
        secured in any::<bool>(),
        steps in proptest::collection::vec((0usize..3, 0u64..200, 0u64..3000), 1..12),
    ) {
        let security = if secured { group() } else { Security::none() };
        let mut world = World::with(vec![security; 3]);
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
            let outbox = world.want(node, &wanted[node]);
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

/// Nodes that know the first one alone, which introduces them and accepts them.
fn meeting(security: Vec<Security>) -> World {
    let mut world = World::with(security);
    let count = world.nodes.len();
    for index in 0..count {
        let local = Local {
            incarnation: 1000 + index as u64,
            name: format!("n{index}"),
            label: 3,
            lanes: lanes(1000),
        };
        let accept = match index {
            0 => vec!["10.0.0.0/8".parse().expect("a network")],
            _ => Vec::new(),
        };
        let mut node = Peering::new(local, world.security[index].clone(), accept);
        let first = address(0);
        if index > 0 {
            let key = world.security[0].node.as_ref().map(PrivateKey::public);
            let peer = PeerConfig::known_by(first, key);
            node.add(peer, Duration::ZERO, &mut Effects::default());
        }
        node.set_meeting(Meeting {
            rendezvous: (index > 0).then_some(first).into_iter().collect(),
            introduce: index == 0,
        });
        world.nodes[index].1 = node;
    }
    world
}

fn all_met(world: &World) -> bool {
    let up = |node: &Peering| {
        let status = node.status(world.now);
        status.iter().filter(|p| p.state == PeerState::Up).count()
    };
    (world.nodes.iter()).all(|(_, node)| up(node) == world.nodes.len() - 1)
}

#[test]
fn nodes_that_know_one_node_meet_all_others_by_it() {
    let node = |seed| Security {
        node: Some(own(seed)),
        allow: (0..4).map(|seed| own(seed).public()).collect(),
        ..Security::default()
    };
    for security in [
        vec![group(); 30],
        vec![Security::none(); 5],
        (0..4).map(node).collect(),
    ] {
        let mut world = meeting(security);
        world.run(15 * SECOND, |_, _| false);
        assert!(all_met(&world));
        // They stay peers without it.
        world.run(DEAD_AFTER + SECOND, |from, to| from == 0 || to == 0);
        let status = world.nodes[1].1.status(world.now);
        let up = status.iter().filter(|p| p.state == PeerState::Up).count();
        assert_eq!(up, world.nodes.len() - 2);
    }
}

#[test]
fn nodes_meet_although_datagrams_are_lost() {
    let mut world = meeting(vec![group(); 4]);
    let mut random = 1u32;
    world.run(60 * SECOND, |_, _| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        random >> 30 == 0
    });
    world.run(10 * SECOND, |_, _| false);
    assert!(all_met(&world));
}

#[test]
fn introductions_count_from_a_rendezvous_alone_and_of_nodes_whose_key_is_known() {
    let mut node = accepting(Security::none());
    let rendezvous = SocketAddr::new([10, 0, 0, 1].into(), 7400);
    let other = SocketAddr::new([10, 0, 0, 2].into(), 7400);
    node.set_meeting(Meeting {
        rendezvous: BTreeSet::from([rendezvous]),
        introduce: false,
    });
    let introduced = |last| PeerConfig::from(SocketAddr::new([192, 0, 2, last].into(), 7400));
    let with_key = PeerConfig {
        key: Some(own(9).public()),
        ..introduced(2)
    };
    let say = |node: &mut Peering, from: SocketAddr, incarnation: u64, nodes: Vec<PeerConfig>| {
        let now = Duration::ZERO;
        node.receive(from, &hello(incarnation), now, &mut Effects::default());
        let message = encode(incarnation, &Message::Introductions(nodes));
        let mut effects = Effects::default();
        node.receive(from, &message, now, &mut effects);
        effects.datagrams.len()
    };
    assert_eq!(say(&mut node, other, 9, vec![introduced(1)]), 0);
    assert_eq!(
        (node.status(Duration::ZERO).len(), node.counters().strangers),
        (1, 1)
    );
    // A key that is not allowed is not tried; nor is who is known.
    let all = vec![introduced(1), with_key, introduced(1), other.into()];
    assert_eq!(say(&mut node, rendezvous, 8, all), 1);
    let status = node.status(Duration::ZERO);
    assert_eq!(status.len(), 3);
    // Who does not answer is forgotten.
    for tenths in 0..=50 {
        let now = Duration::from_millis(100 * tenths);
        node.tick(now, &mut Effects::default());
    }
    assert_eq!(node.status(5 * SECOND).len(), 2);
    // No one address gets more than its share.
    for port in 1..=1000 {
        let nodes = vec![SocketAddr::new([192, 0, 2, 9].into(), port).into()];
        say(&mut node, rendezvous, 8, nodes);
    }
    assert_eq!(node.status(5 * SECOND).len(), 2 + MOST_ACCEPTED_AT);
}

#[test]
fn who_came_by_a_network_that_is_accepted_no_more_is_a_peer_no_more_and_others_stay() {
    let mut node = accepting(Security::none());
    let at = |address: [u8; 4]| SocketAddr::new(address.into(), 7400);
    let [rendezvous, configured, came, came_named] = [1, 2, 3, 4].map(|last| at([10, 0, 0, last]));
    let (named, elsewhere) = (at([192, 0, 2, 5]), at([10, 1, 0, 6]));
    let now = Duration::ZERO;
    for peer in [rendezvous, configured] {
        node.add(peer.into(), now, &mut Effects::default());
    }
    node.set_meeting(Meeting {
        rendezvous: BTreeSet::from([rendezvous]),
        introduce: false,
    });
    for (incarnation, from) in (9..).zip([rendezvous, came, came_named, elsewhere]) {
        node.receive(from, &hello(incarnation), now, &mut Effects::default());
    }
    let names = Message::Introductions(vec![named.into(), came_named.into()]);
    let names = encode(9, &names);
    node.receive(rendezvous, &names, now, &mut Effects::default());
    let mut effects = Effects::default();
    let narrower: AcceptNet = "10.1.0.0/16".parse().expect("network");
    node.set_accept(vec![narrower], &mut effects);
    let gone = Change::Gone {
        peer: came,
        clean: false,
    };
    assert_eq!(effects.changes, [gone]);
    assert_eq!(effects.datagrams, [(came, encode(1, &Message::Goodbye))]);
    let there: BTreeSet<SocketAddr> = node.status(now).iter().map(|p| p.address).collect();
    assert_eq!(
        there,
        BTreeSet::from([rendezvous, configured, came_named, named, elsewhere])
    );
    node.receive(came, &hello(10), now, &mut Effects::default());
    assert_eq!(node.counters().strangers, 1);
    // What is accepted as before changes nothing.
    let mut effects = Effects::default();
    node.set_accept(vec![narrower], &mut effects);
    assert!(effects.changes.is_empty() && effects.datagrams.is_empty());
}

#[test]
fn a_peer_that_has_proven_who_it_is_hears_that_its_network_is_accepted_no_more() {
    let (mut world, said) = on_a_link(vec![group(); 2]);
    for datagram in &said[1] {
        world.hear(0, address(1), datagram);
    }
    world.run(SECOND, |_, _| false);
    assert_eq!([0, 1].map(|index| world.up(index)), [1, 1]);
    let mut effects = Effects::default();
    world.nodes[0].1.set_accept(Vec::new(), &mut effects);
    world.apply(0, effects.changes);
    world.carry(0, effects.datagrams, &mut |_, _| false);
    assert_eq!([0, 1].map(|index| world.up(index)), [0, 0]);
    assert!(world.up[0].is_empty() && world.keys[0].values().all(|(keys, _)| keys.is_empty()));
    // It tries again, and is a stranger.
    world.run(5 * SECOND, |_, _| false);
    assert_eq!(world.up(0), 0);
    assert!(world.counters(0).strangers > 0);
}

/// What a node tells of clashes when another one says hello from an address that ends so.
fn clashes_of(
    node: &mut Peering,
    last: u8,
    incarnation: u64,
    name: &str,
    label: u32,
) -> Vec<super::Clash> {
    let hello = Message::Hello {
        name: name.into(),
        seen: 0,
        stream: 0,
        holds: 0,
        label,
        lanes: lanes(5),
        failed: Vec::new(),
    };
    let from = SocketAddr::new([10, 0, 0, last].into(), 7400);
    let mut effects = Effects::default();
    let hello = encode(incarnation, &hello);
    node.receive(from, &hello, Duration::ZERO, &mut effects);
    let clashes = effects.clashes.into_iter();
    clashes.map(|(_, clash)| clash).collect()
}

#[test]
fn two_nodes_of_one_name_are_told() {
    let mut node = accepting(Security::none());
    let say = |node: &mut Peering, last, incarnation, name: &str, label| {
        clashes_of(node, last, incarnation, name, label).len()
    };
    assert_eq!(say(&mut node, 2, 12, "x", 12), 0);
    // The same node under another address.
    assert_eq!(say(&mut node, 3, 12, "x", 12), 0);
    assert_eq!(say(&mut node, 4, 14, "x", 14), 1);
    // Told once, shown as long as it lasts.
    assert_eq!(say(&mut node, 4, 14, "x", 14), 0);
    assert_eq!(say(&mut node, 5, 15, "n", 2), 1);
    let told = |node: &Peering, at: usize| {
        let clash = node.status(Duration::ZERO)[at].clash.clone();
        clash.map(|clash| clash.to_string()).unwrap_or_default()
    };
    assert!(
        told(&node, 0).contains("`x`, as 10.0.0.4:7400"),
        "{}",
        told(&node, 0)
    );
    assert!(
        told(&node, 2).contains("`x`, as 10.0.0.2:7400 has: give"),
        "{}",
        told(&node, 2)
    );
    let own = told(&node, 3);
    assert!(
        own.contains("`n`, as this node has, and sinks may"),
        "{own}"
    );
    assert!(own.ends_with("give each node its own `name` in [node] and restart it"));
    // One that has gone is in nobody's way.
    let goodbye = encode(14, &Message::Goodbye);
    let from = SocketAddr::new([10, 0, 0, 4].into(), 7400);
    node.receive(from, &goodbye, Duration::ZERO, &mut Effects::default());
    assert_eq!(told(&node, 0), "");
}

#[test]
fn after_a_cut_that_outlasts_all_keys_lanes_have_one_as_soon_as_there_are_routes() {
    let mut world = World::new(2);
    world.subscribe(1, set([7]));
    world.run(SECOND, |_, _| false);
    // Also if the keys end while new ones are there that are not sent under yet.
    for cut in [660 * SECOND + 20 * SECOND, 643 * SECOND] {
        world.run(cut, |_, _| true);
        let mut routes = 0;
        for _ in 0..1500 {
            world.run(Duration::from_millis(10), |_, _| false);
            if world.state(0, 1) == PeerState::Up && world.route(0, 1).is_some() {
                routes += 1;
                let (accepted, sending) = &world.keys[0][&address(1)];
                assert!(sending.is_some_and(|number| accepted.contains(&number)));
            }
        }
        assert!(routes > 500, "{routes}");
    }
}

#[test]
fn whatever_stream_a_peer_names_it_is_told_the_next_one() {
    let mut world = World::new(2);
    world.subscribe(1, set([7]));
    world.run(SECOND, |_, _| false);
    let told = |world: &World| {
        let (_, peer) = world.nodes[1].1.peers.iter().next().expect("a peer");
        (peer.told.stream, peer.told.acknowledged > 0)
    };
    assert_eq!(told(&world), (1, true));
    let halves = [(1 << 31) - 1, 3 << 30].map(|named| (named, named + 1));
    let round = [(u32::MAX, 1), (u32::MAX, 2), (0, 3)];
    for (named, then) in [(9, 10)].into_iter().chain(halves).chain(round) {
        let hello = Message::Hello {
            name: "n0".into(),
            seen: 1001,
            stream: named,
            holds: 1,
            label: 3,
            lanes: lanes(1000),
            failed: Vec::new(),
        };
        let (now, mut effects) = (world.now, Effects::default());
        let at = world.nodes[1].1.by_address[&address(0)];
        let incarnation = world.nodes[0].1.local.incarnation;
        (world.nodes[1].1).take(at, incarnation, hello, now, &mut effects);
        assert_eq!(told(&world), (then, false));
        // Whoever has lost what it had follows it.
        let held = &mut world.nodes[0].1;
        let of = held.by_address[&address(1)];
        held.peers[of].held.stream = named;
        world.carry(1, effects.datagrams, &mut |_, _| false);
        assert_eq!(told(&world), (then, true));
    }
}

#[test]
fn a_name_that_moves_the_cursor_does_not_reach_the_log() {
    let mut node = accepting(Security::none());
    let mut said = Vec::new();
    for (last, incarnation) in [(2, 12), (3, 13)] {
        let name = "x\n\u{1b}[2J\u{202e}";
        said.extend(clashes_of(
            &mut node,
            last,
            incarnation,
            name,
            incarnation as u32,
        ));
    }
    let status = node.status(Duration::ZERO);
    said.extend(status.iter().filter_map(|peer| peer.clash.clone()));
    assert_eq!(said.len(), 3);
    for clash in said {
        assert!(
            clash.to_string().contains(r"`x\n\u{1b}[2J\u{202e}`"),
            "{clash}"
        );
    }
    assert!(
        status
            .iter()
            .all(|peer| peer.name == r"x\n\u{1b}[2J\u{202e}")
    );
}

/// A handshake as far as a gatekeeper wants to see that its sender is at the address.
fn proven(
    gate: &mut Gatekeeper,
    peer: &mut Association,
    incarnation: u64,
    at: Duration,
) -> Vec<u8> {
    let identity = Identity::of(&group(), None).expect("a key");
    let begun = peer.initiate(&identity, incarnation, at);
    match gate.look(address(1), None, &begun, at) {
        Ok(Gate::Cookie(cookie)) => peer.cookie(&cookie).expect("ours"),
        _ => panic!("the address is not proven yet"),
    }
}

#[test]
fn wrong_answers_to_a_handshake_are_looked_at_a_few_times() {
    let identity = Identity::of(&group(), None).expect("a key");
    for (wrong, good) in [(1, true), (15, true), (16, false)] {
        let mut gate = Gatekeeper::new(&group());
        let (mut peer, mut here) = (Association::default(), Association::default());
        let begun = proven(&mut gate, &mut peer, 1, SECOND);
        let Ok(Gate::Open(opened)) = gate.look(address(1), None, &begun, SECOND) else {
            panic!("the address is proven");
        };
        let (answer, _) = here.accept(*opened, 2, SECOND).expect("new");
        let mut forged = answer.clone();
        forged[40] ^= 1;
        for _ in 0..wrong {
            assert_eq!(peer.respond(&forged, SECOND), Err(Refusal::Unauthenticated));
        }
        assert_eq!(peer.respond(&answer, SECOND).is_ok(), good, "{wrong}");
        // The next one is another.
        let begun = peer.initiate(&identity, 1, 2 * SECOND);
        assert!(peer.is_taken(begun[6]));
    }
}

#[test]
fn a_cookie_is_good_for_one_handshake_and_once_and_for_a_while() {
    let mut gate = Gatekeeper::new(&group());
    let identity = Identity::of(&group(), None).expect("a key");
    let mut peer = Association::default();
    let first = proven(&mut gate, &mut peer, 1, SECOND);
    assert!(matches!(
        gate.look(address(1), None, &first, SECOND),
        Ok(Gate::Open(_))
    ));
    let again = gate.look(address(1), None, &first, SECOND).err();
    assert_eq!(again, Some(Refusal::Replayed));
    // In another one.
    let cookie = [
        &[0; association::COOKIE_LEN - association::MAC],
        &first[16..32],
    ]
    .concat();
    let other = peer.initiate(&identity, 1, 2 * SECOND);
    let mut answer = cookie;
    answer[6] = other[6];
    let at = association::HEADER + association::MAC;
    answer[association::HEADER..at].copy_from_slice(&other[other.len() - association::MAC..]);
    let other = peer.cookie(&answer).expect("as it should be");
    assert_eq!(other[16..32], first[16..32]);
    assert!(matches!(
        gate.look(address(1), None, &other, 2 * SECOND),
        Ok(Gate::Cookie(_))
    ));
    // One that nobody has used, by the next secret and by those that come after a silence.
    for (wait, good) in [(9, true), (15, true), (25, false), (3600, false)] {
        let mut gate = Gatekeeper::new(&group());
        let unused = proven(&mut gate, &mut peer, 1, 20 * SECOND);
        let looked = gate.look(address(1), None, &unused, (20 + wait) * SECOND);
        assert_eq!(matches!(looked, Ok(Gate::Open(_))), good, "{wait} s");
    }
}

#[test]
fn whoever_replays_handshakes_of_two_incarnations_has_none_looked_at() {
    let mut world = World::new(2);
    // Whoever starts begins, each time as another one.
    for incarnation in [3000, 4000] {
        world.run(2 * SECOND, |_, _| false);
        world.restart(1);
        world.nodes[1].1 = world.node(1, incarnation);
    }
    world.run(2 * SECOND, |_, _| false);
    let recorded = std::mem::take(&mut world.carried).into_iter();
    let recorded: Vec<_> = recorded
        .filter(|(from, _, bytes)| *from == 1 && bytes[5] == INITIATE && bytes[16..32] != [0; 16])
        .collect();
    assert!(recorded.len() >= 2);
    let before = world.counters(0).replayed;
    for _ in 0..100 {
        for (_, _, bytes) in &recorded {
            assert!(world.deliver(address(1), 0, bytes).is_empty());
        }
    }
    assert_eq!(
        world.counters(0).replayed - before,
        100 * recorded.len() as u64
    );
    // Later the cookies are void.
    world.run(30 * SECOND, |_, _| false);
    for (_, _, bytes) in &recorded {
        let answers = world.deliver(address(1), 0, bytes);
        assert!(answers.iter().all(|(_, answer)| answer[5] == COOKIE));
    }
    assert_eq!(world.state(0, 1), PeerState::Up);
}

#[test]
fn handshakes_of_incarnations_that_are_over_are_not_taken_with_fresh_cookies_either() {
    let security = |seed: u8| Security {
        node: Some(own(seed)),
        ..Security::default()
    };
    let mut world = World::with(vec![security(1), security(2)]);
    for incarnation in [3000, 4000] {
        world.run(2 * SECOND, |_, _| false);
        world.restart(1);
        world.nodes[1].1 = world.node(1, incarnation);
    }
    world.run(60 * SECOND, |_, _| false);
    assert_eq!(world.state(0, 1), PeerState::Up);
    let recorded = std::mem::take(&mut world.carried).into_iter();
    let recorded: Vec<_> = recorded
        .filter(|(from, _, bytes)| *from == 1 && bytes[5] == INITIATE && bytes[16..32] != [0; 16])
        .map(|(.., bytes)| bytes)
        .collect();
    assert!(recorded.len() >= 2, "{}", recorded.len());
    // The key that its gate is made from is announced in clear.
    let gate = Identity::of(&security(9), Some(own(1).public())).expect("a key");
    for _ in 0..3 {
        for bytes in &recorded {
            // Not so often that none is looked at for that.
            world.run(SECOND, |_, _| false);
            let before = world.counters(0).replayed;
            let (_, cookie) = world.deliver(address(1), 0, bytes).pop().expect("a cookie");
            assert_eq!(cookie[5], COOKIE);
            let (header, cookie) = (bytes.first_chunk().expect("a header"), &cookie[32..]);
            let (again, _) =
                association::initiation(&gate, header, cookie, &bytes[32..bytes.len() - 16]);
            assert!(world.deliver(address(1), 0, &again).is_empty());
            assert_eq!(world.counters(0).replayed, before + 1);
        }
    }
    // Who is meant begins anew, and is heard.
    world.restart(1);
    world.nodes[1].1 = world.node(1, 5000);
    world.run(5 * SECOND, |_, _| false);
    assert_eq!(world.state(0, 1), PeerState::Up);
    assert_eq!(world.state(1, 0), PeerState::Up);
}

#[test]
fn a_flood_of_handshakes_is_bounded_and_peers_get_through_meanwhile() {
    let security = |seed| Security {
        node: Some(own(seed)),
        allow: vec![own(2).public()].into_iter().collect(),
        ..Security::default()
    };
    let mut node = accepting(security(1));
    let to = Some(own(1).public());
    let peer = PeerConfig::known_by(address(1), Some(own(2).public()));
    node.add(peer, SECOND, &mut Effects::default());
    // Whoever it is shows that it is at its address: whether it is answered.
    let begin = |node: &mut Peering, from: SocketAddr, seed, incarnation, now| {
        let identity = Identity::of(&security(seed), to).expect("a key");
        let mut association = Association::default();
        let mut effects = Effects::default();
        // Numbers are drawn: one that is taken is refused.
        let taken = |number| {
            let at = node.by_address.get(&from);
            at.is_some_and(|&at| node.peers[at].association.is_taken(number))
        };
        let mut begun = association.initiate(&identity, incarnation, now);
        while taken(begun[6]) {
            begun = association.initiate(&identity, incarnation, now);
        }
        node.receive(from, &begun, now, &mut effects);
        let (_, cookie) = effects.datagrams.pop().expect("a cookie");
        let again = association.cookie(&cookie).expect("ours");
        node.receive(from, &again, now, &mut effects);
        let answer = effects.datagrams.pop();
        answer.is_some_and(|(_, answer)| answer[5] == RESPOND)
    };
    let host = |at: u32| {
        SocketAddr::new(
            IpAddr::from(0x0a09_0000u32.wrapping_add(at).to_be_bytes()),
            7,
        )
    };
    // By one host, and by many: keys that nobody knows.
    let mut refused = 0;
    for at in 0..300 {
        let from = if at < 100 { host(0) } else { host(at) };
        assert!(!begin(&mut node, from, 3, 5, SECOND));
        let counters = node.counters();
        assert_eq!(
            counters.unauthenticated + counters.too_many,
            u64::from(at) + 1
        );
        refused = counters.too_many;
    }
    assert!(refused > 200, "{refused}");
    assert!(begin(&mut node, address(1), 2, 6, SECOND), "a peer");
    // One whose address somebody else uses is not heard for so long only as that one goes on.
    for at in 0..20 {
        begin(
            &mut node,
            address(1),
            3,
            5,
            SECOND + at * Duration::from_millis(1),
        );
    }
    assert!(!begin(&mut node, address(1), 2, 7, SECOND));
    assert!(begin(&mut node, address(1), 2, 8, 3 * SECOND));
    // And hosts that are allowed and not known yet, when the flood ends.
    assert!(begin(&mut node, address(7), 2, 9, 3 * SECOND));
}

#[test]
fn a_peer_that_was_forgotten_and_is_back_is_told_what_is_wanted() {
    let mut world = World::new(2);
    world.run(SECOND, |_, _| false);
    world.subscribe(1, set([7]));
    // It follows the second stream then.
    world.restart(0);
    world.run(2 * SECOND, |_, _| false);
    assert_eq!(world.route(0, 1), Some(&set([7])));
    let mut effects = Effects::default();
    let (now, node) = (world.now, &mut world.nodes[1].1);
    // Its goodbye is lost.
    assert!(node.remove(address(0), &mut effects));
    node.add(address(0).into(), now, &mut Effects::default());
    world.apply(1, effects.changes);
    world.run(5 * SECOND, |_, _| false);
    world.subscribe(1, set([8]));
    world.run(SECOND, |_, _| false);
    assert_eq!(world.route(0, 1), Some(&set([8])));
}
