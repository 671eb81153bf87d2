//! Peers: which other runtimes are there, where their lanes receive, and which channels they want.
//!
//! Pure: time comes in as an argument, datagrams go out through a list. The control thread owns the
//! socket. Liveness by a hello every second; a peer that has been silent for [`DEAD_AFTER`] is down and
//! its routes are withdrawn until it speaks again. The set of subscriptions is sent whole, in pages, and
//! repeated until acknowledged: no state can drift apart.

pub mod message;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use message::{DecodeError, LaneAnnouncement, Message, PAGE_ENTRIES, Subscription, decode, encode};

/// How often a hello is sent.
pub const HELLO_EVERY: Duration = Duration::from_secs(1);
/// How long a peer may be silent before it counts as down.
pub const DEAD_AFTER: Duration = Duration::from_millis(3500);
/// First repetition of an unacknowledged set; doubles up to [`HELLO_EVERY`].
const REPEAT_FIRST: Duration = Duration::from_millis(50);
/// Most subscriptions that a peer may hold.
pub const MAX_SUBSCRIPTIONS: usize = 65_536;

/// Where a peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Never heard of; hellos are being sent.
    Trying,
    /// Heard within [`DEAD_AFTER`].
    Up,
    /// Was up and fell silent, or said goodbye; hellos are being sent.
    Down,
}

/// What changed, for the lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The peer's lanes are these now (empty: the peer is gone).
    Lanes {
        /// The peer.
        peer: SocketAddr,
        /// Its lanes.
        lanes: Vec<LaneAnnouncement>,
    },
    /// The peer's subscriptions are these now.
    Subscriptions {
        /// The peer.
        peer: SocketAddr,
        /// All of them.
        entries: BTreeSet<Subscription>,
    },
}

/// A peer as shown to operators.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// Its control address.
    pub address: SocketAddr,
    /// Its name, if it has told one.
    pub name: String,
    /// Where it stands.
    pub state: PeerState,
    /// Since how many seconds it has been silent, if ever heard.
    pub silent: Option<Duration>,
    /// Its incarnation, 0 if unknown.
    pub incarnation: u64,
    /// Channels it wants.
    pub subscriptions: usize,
    /// Whether it was added by configuration or API, rather than accepted.
    pub configured: bool,
    /// Hellos sent since it was last heard.
    pub attempts: u64,
}

struct Peer {
    address: SocketAddr,
    configured: bool,
    name: String,
    state: PeerState,
    incarnation: u64,
    heard: Option<Duration>,
    next_hello: Duration,
    attempts: u64,
    lanes: Vec<LaneAnnouncement>,
    /// Version and entries of the peer's set as complete here.
    version: u64,
    entries: BTreeSet<Subscription>,
    /// Pages of a set that is arriving.
    arriving: Option<Arriving>,
    /// Version of our set that the peer has acknowledged.
    acknowledged: Option<u64>,
    repeat_at: Duration,
    repeat_after: Duration,
}

struct Arriving {
    version: u64,
    missing: BTreeSet<u16>,
    pages: u16,
    entries: BTreeSet<Subscription>,
}

/// Counters of refused peering datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeeringCounters {
    /// From an address that is neither configured nor accepted.
    pub strangers: u64,
    /// Not decodable.
    pub malformed: u64,
    /// Of another version.
    pub version: u64,
    /// Beyond [`MAX_SUBSCRIPTIONS`].
    pub too_many: u64,
}

/// The state of all peers.
pub struct Peering {
    incarnation: u64,
    name: String,
    lanes: Vec<LaneAnnouncement>,
    accept: Vec<AcceptNet>,
    peers: Vec<Peer>,
    version: u64,
    subscriptions: BTreeSet<Subscription>,
    counters: PeeringCounters,
}

/// A network whose runtimes are accepted as peers without being configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptNet {
    /// Network address.
    pub address: IpAddr,
    /// Leading bits that count.
    pub prefix: u8,
}

impl AcceptNet {
    /// Whether `address` lies in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        let equal = |a: u128, b: u128, width: u32| {
            let shift = width.saturating_sub(u32::from(self.prefix));
            shift >= 128 || (a >> shift) == (b >> shift)
        };
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => equal(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => equal(a.to_bits(), b.to_bits(), 128),
            _ => false,
        }
    }
}

impl std::str::FromStr for AcceptNet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no network: write it as 10.0.0.0/24 or fd00::/64");
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix > most {
            Err(wrong())
        } else {
            Ok(Self { address, prefix })
        }
    }
}

/// Datagrams to send, with their destinations.
pub type Outbox = Vec<(SocketAddr, Vec<u8>)>;

impl Peering {
    /// A node of this incarnation (random, not 0), name and lanes.
    pub fn new(
        incarnation: u64,
        name: String,
        lanes: Vec<LaneAnnouncement>,
        accept: Vec<AcceptNet>,
    ) -> Self {
        Self {
            incarnation,
            name,
            lanes,
            accept,
            peers: Vec::new(),
            version: 1,
            subscriptions: BTreeSet::new(),
            counters: PeeringCounters::default(),
        }
    }

    /// Adds a peer; false if it is there already (it then counts as configured).
    pub fn add(&mut self, address: SocketAddr, now: Duration) -> bool {
        if let Some(peer) = self.peers.iter_mut().find(|p| p.address == address) {
            peer.configured = true;
            return false;
        }
        self.peers.push(Peer::new(address, true, now));
        true
    }

    /// Removes a peer and withdraws its routes; false if there is none.
    pub fn remove(
        &mut self,
        address: SocketAddr,
        outbox: &mut Outbox,
        changes: &mut Vec<Change>,
    ) -> bool {
        let Some(at) = self.peers.iter().position(|p| p.address == address) else {
            return false;
        };
        let mut peer = self.peers.remove(at);
        outbox.push((address, encode(self.incarnation, &Message::Goodbye)));
        peer.withdraw(changes);
        true
    }

    /// Replaces the networks that are accepted.
    pub fn set_accept(&mut self, accept: Vec<AcceptNet>) {
        self.accept = accept;
    }

    /// Replaces this node's set of subscriptions and sends it to every peer that is up.
    pub fn subscribe(
        &mut self,
        subscriptions: BTreeSet<Subscription>,
        now: Duration,
        outbox: &mut Outbox,
    ) {
        if subscriptions == self.subscriptions {
            return;
        }
        self.subscriptions = subscriptions;
        self.version += 1;
        for at in 0..self.peers.len() {
            if self.peers[at].state == PeerState::Up {
                self.peers[at].repeat_after = REPEAT_FIRST;
                self.send_set(at, now, outbox);
            }
        }
    }

    /// All peers, for operators.
    pub fn status(&self, now: Duration) -> Vec<PeerStatus> {
        self.peers
            .iter()
            .map(|p| PeerStatus {
                address: p.address,
                name: p.name.clone(),
                state: p.state,
                silent: p.heard.map(|heard| now.saturating_sub(heard)),
                incarnation: p.incarnation,
                subscriptions: p.entries.len(),
                configured: p.configured,
                attempts: p.attempts,
            })
            .collect()
    }

    /// What was refused.
    pub fn counters(&self) -> PeeringCounters {
        self.counters
    }

    /// Sends what is due and notices silence. Returns when to call again at the latest.
    pub fn tick(
        &mut self,
        now: Duration,
        outbox: &mut Outbox,
        changes: &mut Vec<Change>,
    ) -> Duration {
        let mut next = now + HELLO_EVERY;
        for at in 0..self.peers.len() {
            let peer = &mut self.peers[at];
            if peer.state == PeerState::Up
                && peer.heard.is_some_and(|heard| now >= heard + DEAD_AFTER)
            {
                peer.state = PeerState::Down;
                peer.withdraw(changes);
            }
            if now >= peer.next_hello {
                self.send_hello(at, now, outbox);
            }
            let peer = &mut self.peers[at];
            next = next.min(peer.next_hello);
            if peer.state == PeerState::Up && peer.acknowledged != Some(self.version) {
                if now >= peer.repeat_at {
                    self.send_set(at, now, outbox);
                }
                next = next.min(self.peers[at].repeat_at);
            }
        }
        self.peers
            .retain(|p| p.configured || p.state != PeerState::Down);
        next
    }

    /// Takes a datagram from `source`.
    pub fn receive(
        &mut self,
        source: SocketAddr,
        bytes: &[u8],
        now: Duration,
        outbox: &mut Outbox,
        changes: &mut Vec<Change>,
    ) {
        let (incarnation, message) = match decode(bytes) {
            Ok(decoded) => decoded,
            Err(DecodeError::Version(_)) => {
                self.counters.version += 1;
                return;
            }
            Err(_) => {
                self.counters.malformed += 1;
                return;
            }
        };
        if incarnation == self.incarnation {
            return; // Ourselves: a configuration that lists its own node.
        }
        let known = self.peers.iter().position(|p| p.address == source);
        let at = match known {
            Some(at) => at,
            None if matches!(message, Message::Hello { .. })
                && self.accept.iter().any(|net| net.contains(source.ip())) =>
            {
                self.peers.push(Peer::new(source, false, now));
                self.peers.len() - 1
            }
            None => {
                self.counters.strangers += 1;
                return;
            }
        };
        match message {
            Message::Hello {
                name,
                seen,
                holds,
                lanes,
            } => {
                self.receive_hello(at, incarnation, name, lanes, now, changes);
                let peer = &mut self.peers[at];
                if holds != self.version {
                    // It has lost our set, or never had this one.
                    peer.acknowledged = None;
                }
                if seen != self.incarnation {
                    // It does not know us yet: answer now rather than at the next tick, and tell all.
                    peer.repeat_after = REPEAT_FIRST;
                    self.send_hello(at, now, outbox);
                    self.send_set(at, now, outbox);
                }
            }
            Message::Subscriptions {
                version,
                page,
                pages,
                entries,
            } => {
                if self.peers[at].incarnation != incarnation
                    || self.peers[at].state != PeerState::Up
                {
                    return; // Its hello will introduce it; it repeats the set until acknowledged.
                }
                self.peers[at].heard = Some(now);
                self.receive_page(at, version, page, pages, entries, outbox, changes);
            }
            Message::Acknowledge { version } => {
                let peer = &mut self.peers[at];
                if peer.incarnation == incarnation {
                    peer.heard = Some(now);
                    if version == self.version {
                        peer.acknowledged = Some(version);
                    }
                }
            }
            Message::Goodbye => {
                let peer = &mut self.peers[at];
                if peer.incarnation == incarnation && peer.state == PeerState::Up {
                    peer.state = PeerState::Down;
                    peer.withdraw(changes);
                }
            }
        }
    }

    /// Goodbyes to all peers that are up, for a clean exit.
    pub fn leave(&mut self, outbox: &mut Outbox) {
        let goodbye = encode(self.incarnation, &Message::Goodbye);
        outbox.extend(
            self.peers
                .iter()
                .filter(|p| p.state == PeerState::Up)
                .map(|p| (p.address, goodbye.clone())),
        );
    }

    fn receive_hello(
        &mut self,
        at: usize,
        incarnation: u64,
        name: String,
        lanes: Vec<LaneAnnouncement>,
        now: Duration,
        changes: &mut Vec<Change>,
    ) {
        let peer = &mut self.peers[at];
        if peer.incarnation != incarnation {
            // Restarted: everything known of the former one is void.
            if peer.state == PeerState::Up {
                peer.withdraw(changes);
            }
            peer.incarnation = incarnation;
            peer.acknowledged = None;
            peer.arriving = None;
            peer.version = 0;
        }
        if peer.state != PeerState::Up {
            peer.state = PeerState::Up;
            peer.acknowledged = None;
            peer.repeat_at = now;
            peer.repeat_after = REPEAT_FIRST;
        }
        peer.heard = Some(now);
        peer.attempts = 0;
        peer.name = name;
        if peer.lanes != lanes {
            peer.lanes = lanes.clone();
            changes.push(Change::Lanes {
                peer: peer.address,
                lanes,
            });
            if !peer.entries.is_empty() {
                changes.push(Change::Subscriptions {
                    peer: peer.address,
                    entries: peer.entries.clone(),
                });
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // the fields of one message
    fn receive_page(
        &mut self,
        at: usize,
        version: u64,
        page: u16,
        pages: u16,
        entries: Vec<Subscription>,
        outbox: &mut Outbox,
        changes: &mut Vec<Change>,
    ) {
        let acknowledge = encode(self.incarnation, &Message::Acknowledge { version });
        let peer = &mut self.peers[at];
        if version == peer.version {
            outbox.push((peer.address, acknowledge));
            return;
        }
        if usize::from(pages) * PAGE_ENTRIES > MAX_SUBSCRIPTIONS + PAGE_ENTRIES {
            self.counters.too_many += 1;
            return;
        }
        let arriving = match &mut peer.arriving {
            Some(arriving) if arriving.version == version && arriving.pages == pages => arriving,
            other => other.insert(Arriving {
                version,
                pages,
                missing: (0..pages).collect(),
                entries: BTreeSet::new(),
            }),
        };
        if arriving.missing.remove(&page) {
            arriving.entries.extend(entries);
        }
        if arriving.missing.is_empty() {
            peer.version = version;
            let entries = std::mem::take(&mut arriving.entries);
            peer.arriving = None;
            outbox.push((peer.address, acknowledge));
            if entries != peer.entries {
                peer.entries = entries.clone();
                changes.push(Change::Subscriptions {
                    peer: peer.address,
                    entries,
                });
            }
        }
    }

    fn send_hello(&mut self, at: usize, now: Duration, outbox: &mut Outbox) {
        let peer = &mut self.peers[at];
        peer.next_hello = now + HELLO_EVERY;
        peer.attempts += 1;
        let (seen, holds) = if peer.state == PeerState::Up {
            (peer.incarnation, peer.version)
        } else {
            (0, 0)
        };
        let hello = Message::Hello {
            name: self.name.clone(),
            seen,
            holds,
            lanes: self.lanes.clone(),
        };
        outbox.push((peer.address, encode(self.incarnation, &hello)));
    }

    fn send_set(&mut self, at: usize, now: Duration, outbox: &mut Outbox) {
        let peer = &mut self.peers[at];
        peer.repeat_at = now + peer.repeat_after;
        peer.repeat_after = (peer.repeat_after * 2).min(HELLO_EVERY);
        let all: Vec<Subscription> = self.subscriptions.iter().copied().collect();
        let pages = all.len().div_ceil(PAGE_ENTRIES).max(1) as u16;
        for page in 0..pages {
            let start = usize::from(page) * PAGE_ENTRIES;
            let entries = all[start..all.len().min(start + PAGE_ENTRIES)].to_vec();
            let message = Message::Subscriptions {
                version: self.version,
                page,
                pages,
                entries,
            };
            outbox.push((peer.address, encode(self.incarnation, &message)));
        }
    }
}

impl Peer {
    fn new(address: SocketAddr, configured: bool, now: Duration) -> Self {
        Self {
            address,
            configured,
            name: String::new(),
            state: PeerState::Trying,
            incarnation: 0,
            heard: None,
            next_hello: now,
            attempts: 0,
            lanes: Vec::new(),
            version: 0,
            entries: BTreeSet::new(),
            arriving: None,
            acknowledged: None,
            repeat_at: now,
            repeat_after: REPEAT_FIRST,
        }
    }

    fn withdraw(&mut self, changes: &mut Vec<Change>) {
        self.version = 0;
        self.arriving = None;
        self.acknowledged = None;
        self.entries.clear();
        if !self.lanes.is_empty() {
            self.lanes.clear();
            changes.push(Change::Lanes {
                peer: self.address,
                lanes: Vec::new(),
            });
        }
    }
}

#[cfg(test)]
mod tests;
