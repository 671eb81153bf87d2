//! Peers that prove who they are (Noise), over a network that loses, repeats, delays, changes and makes up datagrams.
//! Whatever happens, no key is used that the other side has not accepted, strangers cost no state; and once the
//! network is good again, both are up and know what the other wants.
//!
//! Input: what happens to each datagram, a byte each (see [`Site::carry`]), and how much time passes.

#![no_main]

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use takt_runtime::peering::association::KeyChange;
use takt_runtime::peering::keys::{GroupKey, Security};
use takt_runtime::peering::message::{LaneAnnouncement, Subscription};
use takt_runtime::peering::{Change, Effects, Local, PeerState, Peering};

const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// Datagrams that the network remembers, to repeat them.
const REMEMBERED: usize = 16;

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8 + 1], 7400))
}

fn node(index: usize, incarnation: u64) -> Peering {
    let key: GroupKey = KEY.parse().expect("a key");
    let local = Local {
        incarnation: incarnation + index as u64,
        name: "fuzzed".into(),
        label: index as u32,
        lanes: vec![LaneAnnouncement {
            incarnation: incarnation as u32 + index as u32,
            endpoints: Vec::new(),
        }],
    };
    let mut peering = Peering::new(local, Security::group(key), Vec::new());
    peering.add(
        address(1 - index).into(),
        Duration::ZERO,
        &mut Effects::default(),
    );
    peering
}

struct Site {
    nodes: [Peering; 2],
    /// Numbers of the keys that the lanes of each node accept.
    accepted: [BTreeSet<u8>; 2],
    under_way: VecDeque<(usize, Vec<u8>)>,
    remembered: VecDeque<(usize, Vec<u8>)>,
    now: Duration,
}

impl Site {
    fn take(&mut self, node: usize, effects: Effects) {
        for change in effects.changes {
            let Change::Keys { change, .. } = change else {
                continue;
            };
            match change {
                KeyChange::Accept(secrets) => drop(self.accepted[node].insert(secrets.number)),
                KeyChange::Send(number) => assert!(self.accepted[node].contains(&number)),
                KeyChange::Retire(number) => drop(self.accepted[node].remove(&number)),
            }
        }
        for (to, bytes) in effects.datagrams {
            assert_eq!(to, address(1 - node));
            self.under_way.push_back((1 - node, bytes));
        }
    }

    fn deliver(&mut self, to: usize, bytes: &[u8], from: SocketAddr) {
        let mut effects = Effects::default();
        self.nodes[to].receive(from, bytes, self.now, &mut effects);
        self.take(to, effects);
    }

    /// What happens to the next datagram.
    fn carry(&mut self, what: u8, more: u8) {
        let Some((to, mut bytes)) = self.under_way.pop_front() else {
            return;
        };
        if self.remembered.len() == REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back((to, bytes.clone()));
        let peer = address(1 - to);
        match what % 8 {
            // Lost.
            0 => {}
            // Late.
            1 => self.under_way.push_back((to, bytes)),
            // Changed.
            2 => {
                let at = usize::from(more) % bytes.len();
                bytes[at] ^= 1 << (what >> 5);
                self.deliver(to, &bytes, peer);
            }
            // Cut off.
            3 => {
                bytes.truncate(usize::from(more));
                self.deliver(to, &bytes, peer);
            }
            // From somebody else, who must get nothing for it.
            4 => {
                let mut effects = Effects::default();
                let stranger = SocketAddr::from(([10, 9, 9, more], 7400));
                self.nodes[to].receive(stranger, &bytes, self.now, &mut effects);
                assert!(effects.datagrams.is_empty() && effects.changes.is_empty());
            }
            // Followed by an old one.
            5 => {
                self.deliver(to, &bytes, peer);
                let at = usize::from(more) % self.remembered.len();
                let (to, bytes) = self.remembered[at].clone();
                self.deliver(to, &bytes, address(1 - to));
            }
            _ => self.deliver(to, &bytes, peer),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for node in 0..2 {
            let mut effects = Effects::default();
            self.nodes[node].tick(self.now, &mut effects);
            self.take(node, effects);
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let mut site = Site {
        nodes: [node(0, 100), node(1, 100)],
        accepted: Default::default(),
        under_way: VecDeque::new(),
        remembered: VecDeque::new(),
        now: Duration::ZERO,
    };
    let wanted = Subscription {
        channel: 5,
        lane: 0,
    };
    let mut effects = Effects::default();
    site.nodes[0].want(wanted, true, site.now, &mut effects);
    site.take(0, effects);
    for step in input.chunks_exact(2).take(200) {
        match step[0] {
            // Time passes.
            192..=254 => site.pass(Duration::from_millis(u64::from(step[1]) * 20)),
            // One of them starts anew.
            255 => {
                let index = usize::from(step[1] & 1);
                site.nodes[index] = node(index, 1000 + u64::from(step[1]) * 2);
                site.accepted[index].clear();
                if index == 0 {
                    let mut effects = Effects::default();
                    site.nodes[0].want(wanted, true, site.now, &mut effects);
                    site.take(0, effects);
                }
            }
            what => site.carry(what, step[1]),
        }
    }
    // The network is good again.
    for _ in 0..40 {
        site.pass(Duration::from_millis(400));
        for _ in 0..1000 {
            if site.under_way.is_empty() {
                break;
            }
            site.carry(6, 0);
        }
        assert!(site.under_way.is_empty(), "a storm");
    }
    for node in 0..2 {
        let peers = site.nodes[node].status(site.now);
        assert_eq!(peers.len(), 1, "strangers are not remembered");
        assert_eq!(peers[0].state, PeerState::Up);
    }
    assert_eq!(site.nodes[1].status(site.now)[0].subscriptions, 1);
});
