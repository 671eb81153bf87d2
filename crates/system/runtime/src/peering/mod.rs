//! Peers: which other runtimes are there, where their lanes receive, and which channels they want.
//!
//! Pure but for random numbers: time comes in as an argument, datagrams and changes go out through [`Effects`]. The
//! control thread owns the socket. Peers prove who they are before anything they say counts ([`association`]),
//! unless the site does without. Liveness by a hello about every second; a peer that has been silent for
//! [`DEAD_AFTER`] is down: nothing is sent to it until it speaks again, but what it has sent is still taken, and its
//! numbers are still known. Subscriptions are told as changes, in the order of their versions ([`subscriptions`]).

pub mod association;
mod budget;
pub mod keys;
pub mod message;
pub mod replay;
pub mod scout;
pub mod subscriptions;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::slots::{PeerSlot, Table};
use association::{
    Association, COOKIE, Gate, Gatekeeper, INITIATE, Identity, KeyChange, RESPOND, Refusal, SEALED,
};
use budget::Budget;
use keys::{PeerConfig, PrivateKey, PublicKey, Security};
use message::{
    DecodeError, INTRODUCED, LaneAnnouncement, Message, Outage, PROGRESS_ENTRIES, Page,
    SourceProgress, Subscription, decode, encode,
};
use scout::{Scout, Unheard};
pub use subscriptions::MAX_SUBSCRIPTIONS;
use subscriptions::{Held, Wanted, is_newer, next_stream};

/// How often a hello is sent, at the rarest; up to a fifth more often, so that those of many peers spread.
pub const HELLO_EVERY: Duration = Duration::from_secs(1);
/// How long a peer may be silent before it counts as down.
pub const DEAD_AFTER: Duration = Duration::from_millis(3500);
/// How long a peer that was accepted, not configured, is remembered when it is silent.
pub const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Most peers that are accepted without being configured, and most of them at one address.
pub const MOST_ACCEPTED: usize = 8192;
/// See [`MOST_ACCEPTED`].
pub const MOST_ACCEPTED_AT: usize = 64;
/// Between two changes of what a peer says of its failed datapaths that are taken over: lanes are told of each.
const FAILED_EVERY: Duration = Duration::from_millis(100);
/// First repetition of what is not acknowledged; doubles up to [`HELLO_EVERY`].
const REPEAT_FIRST: Duration = Duration::from_millis(50);
/// Pages of subscriptions under way to a peer.
const WINDOW: usize = 32;
/// Changes of subscriptions are told at most so often: this, and so much more for each peer that is up.
const COALESCE: Duration = Duration::from_millis(20);
const COALESCE_PER_PEER: Duration = Duration::from_micros(200);
/// Timers served in one go.
const TIMERS: usize = 64;
/// Every so many attempts at a peer that is not up begin with a handshake.
const HANDSHAKE_EVERY: u64 = 3;
/// Between handshakes with two peers that are to learn of a new key.
const REKEY_APART: Duration = Duration::from_millis(2);
/// How long a node answers to the key that it had before.
const ANSWER_TO_FORMER: Duration = Duration::from_secs(660);
/// How soon a handshake that replaces a session is tried again.
const REKEY_AGAIN: Duration = Duration::from_secs(5);

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
    /// The peer has begun, with these lanes.
    Lanes {
        /// The peer.
        peer: SocketAddr,
        /// What the numbers of the node's sources are mixed with for sinks.
        label: u32,
        /// Its lanes.
        lanes: Vec<LaneAnnouncement>,
    },
    /// The peer's lanes are gone for good.
    Gone {
        /// The peer.
        peer: SocketAddr,
        /// It has said so: it has told how far its sources were.
        clean: bool,
    },
    /// These datapaths of the peer have failed, and no others.
    Failed {
        /// The peer.
        peer: SocketAddr,
        /// None: all work again.
        datapaths: Vec<Outage>,
    },
    /// The peer wants these no more, and those.
    Subscriptions {
        /// The peer.
        peer: SocketAddr,
        /// Wanted from now on.
        add: Vec<Subscription>,
        /// Wanted no more.
        remove: Vec<Subscription>,
    },
    /// The peer has fallen silent: it wants nothing until it is back.
    Silent {
        /// The peer.
        peer: SocketAddr,
    },
    /// The peer was silent, and is back with what it wanted before.
    Back {
        /// The peer.
        peer: SocketAddr,
        /// What that is.
        wanted: Vec<Subscription>,
    },
    /// How far sources of the peer are, each with the index of its lane.
    Progress {
        /// The peer.
        peer: SocketAddr,
        /// The sources.
        sources: Vec<(u8, SourceProgress)>,
    },
    /// The keys of lanes have changed.
    Keys {
        /// The peer.
        peer: SocketAddr,
        /// In which way.
        change: KeyChange,
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
    /// Whether they are known: it is up and has told them.
    pub subscriptions_known: bool,
    /// Whether it was added by configuration or API, rather than accepted.
    pub configured: bool,
    /// Hellos sent since it was last heard.
    pub attempts: u64,
    /// How it proves who it is.
    pub authentication: Authentication,
    /// What it has in common with another node and should not.
    pub clash: Option<Clash>,
    /// Its datapaths that have failed: what is for it goes by others.
    pub failed: Vec<Outage>,
    /// The other key by which it may prove itself.
    pub other_key: Option<PublicKey>,
    /// It may know this node by the key that it had before alone.
    pub is_behind: bool,
}

/// Something that each node should have for itself, and two have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The name of both.
    pub name: String,
    /// The other node; `None`: this one.
    pub with: Option<SocketAddr>,
    /// They also have one label, from which the numbers of their sources are made: sinks may take them for one.
    pub label: bool,
}

impl std::fmt::Display for Clash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, with, label } = self;
        match with {
            Some(other) => write!(f, "it has the name `{name}`, as {other} has"),
            None => write!(f, "it has the name `{name}`, as this node has"),
        }?;
        if *label {
            f.write_str(", and sinks may take their sources for one and count losses wrongly")?;
        }
        f.write_str(": give each node its own `name` in [node] and restart it")
    }
}

/// How a peer proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// Not at all.
    None,
    /// By the group's key.
    Group,
    /// By its own key.
    Node(PublicKey),
    /// Not possible: the key that it takes is not configured here.
    NoKey,
}

struct Peer {
    address: SocketAddr,
    configured: bool,
    /// A rendezvous has named it: it needs no network that is accepted.
    named: bool,
    /// By which it may prove itself. The first, if it is `None`: by the group's.
    keys: [Option<PublicKey>; 2],
    /// Which of them it has used last.
    key: Option<PublicKey>,
    identity: Option<Identity>,
    association: Association,
    /// Handshakes that it begins.
    handshakes: Budget,
    name: String,
    label: u32,
    state: PeerState,
    incarnation: u64,
    /// Since when it is known.
    since: Duration,
    heard: Option<Duration>,
    next_hello: Duration,
    next_rekey: Duration,
    attempts: u64,
    /// Those of its incarnation; none before its first hello, and after its goodbye.
    lanes: Vec<LaneAnnouncement>,
    /// Its datapaths that have failed, and since when that is known.
    failed: Vec<Outage>,
    failed_at: Option<Duration>,
    held: Held,
    told: Told,
    /// Behind which of the others it is introduced to more.
    introduced: usize,
    /// When to look at it again.
    due: Duration,
}

impl Peer {
    /// Whether it may prove itself by this key, or by the group's.
    fn has(&self, key: Option<PublicKey>) -> bool {
        self.keys[0] == key || key.is_some() && self.keys[1] == key
    }
}

/// How far a peer has been told our subscriptions.
struct Told {
    stream: u32,
    sent: u64,
    acknowledged: u64,
    /// Versions that the pages under way lead to.
    under_way: VecDeque<u64>,
    repeat_at: Duration,
    repeat_after: Duration,
}

/// Counters of refused peering datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeeringCounters {
    /// From an address that is neither configured nor accepted.
    pub strangers: u64,
    /// Not decodable.
    pub malformed: u64,
    /// Of another version.
    pub version: u64,
    /// Of a sender that has not proven who it is.
    pub unauthenticated: u64,
    /// Taken before.
    pub replayed: u64,
    /// Beyond [`MAX_SUBSCRIPTIONS`], beyond [`MOST_ACCEPTED`], more handshakes than are looked at, or subscriptions that come faster than
    /// lanes take them.
    pub too_many: u64,
}

/// What a node tells of itself.
#[derive(Clone, Debug)]
pub struct Local {
    /// Random at each start, not 0.
    pub incarnation: u64,
    /// A name for people.
    pub name: String,
    /// What the numbers of its sources are mixed with for sinks: the same after a restart.
    pub label: u32,
    /// Its lanes.
    pub lanes: Vec<LaneAnnouncement>,
}

/// The state of all peers.
pub struct Peering {
    local: Local,
    /// Datapaths of this node that have failed.
    failed: Vec<Outage>,
    security: Security,
    /// The key that the node had before, and until when it answers to that as well.
    former: Option<(PrivateKey, Duration)>,
    gatekeeper: Gatekeeper,
    scout: Scout,
    accept: Vec<AcceptNet>,
    meeting: Meeting,
    peers: Table<PeerSlot, Peer>,
    by_address: HashMap<SocketAddr, PeerSlot>,
    timers: BTreeSet<(Duration, PeerSlot)>,
    up: usize,
    /// Peers that are not configured, by their address.
    accepted: HashMap<IpAddr, usize>,
    all_accepted: usize,
    wanted: Wanted,
    /// Changes wait until then to be told.
    flush_at: Option<Duration>,
    flushed: Duration,
    /// Peers are told changes up to this version.
    telling: u64,
    random: u64,
    /// No changes of subscriptions are taken.
    behind: bool,
    counters: PeeringCounters,
}

/// How nodes learn of each other's addresses from a node that all of them know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meeting {
    /// Peers whose introductions count: the nodes that they name are tried, if their key is known.
    pub rendezvous: BTreeSet<SocketAddr>,
    /// This node introduces its peers to each other.
    pub introduce: bool,
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

/// What is to be done: changes first, as who is told of our wishes may answer with messages at once.
#[derive(Debug, Default)]
pub struct Effects {
    /// For the lanes.
    pub changes: Vec<Change>,
    /// To send, with their destinations.
    pub datagrams: Vec<(SocketAddr, Vec<u8>)>,
    /// For operators: what peers that have come up have in common with others.
    pub clashes: Vec<(SocketAddr, Clash)>,
}

impl Effects {
    fn keys(&mut self, peer: SocketAddr, changes: impl IntoIterator<Item = KeyChange>) {
        let changes = changes.into_iter();
        self.changes
            .extend(changes.map(|change| Change::Keys { peer, change }));
    }
}

impl Peering {
    /// A node that keeps strangers out by `security`, and takes peers of the networks `accept` unasked.
    pub fn new(mut local: Local, security: Security, accept: Vec<AcceptNet>) -> Self {
        // As those of others, which it is compared with.
        local.name = takt_session::printable(&local.name);
        Self {
            random: local.incarnation | 1,
            local,
            failed: Vec::new(),
            gatekeeper: Gatekeeper::new(&security),
            scout: Scout::new(&security),
            security,
            former: None,
            accept,
            meeting: Meeting::default(),
            peers: Table::default(),
            by_address: HashMap::new(),
            timers: BTreeSet::new(),
            up: 0,
            accepted: HashMap::new(),
            all_accepted: 0,
            wanted: Wanted::default(),
            flush_at: None,
            flushed: Duration::ZERO,
            telling: 0,
            behind: false,
            counters: PeeringCounters::default(),
        }
    }

    /// Adds a peer; false if it is there already with these keys (it then counts as configured). With others, those hold
    /// from now on; what was known of the peer is gone, unless one of them is one of before: then it is the same node.
    pub fn add(&mut self, peer: PeerConfig, now: Duration, effects: &mut Effects) -> bool {
        if let Some(&at) = self.by_address.get(&peer.address) {
            let there = &mut self.peers[at];
            let keys = [peer.key, peer.next_key];
            let before = std::mem::replace(&mut there.keys, keys);
            let same = |key: &PublicKey| before.contains(&Some(*key));
            let proven = there.has(there.key);
            if proven || keys.iter().flatten().any(same) {
                if !proven {
                    there.association.hasten();
                    self.known_by(at, peer.key);
                }
                if !std::mem::replace(&mut self.peers[at].configured, true) {
                    self.uncount(peer.address.ip());
                }
                return before != keys;
            }
            self.forget(at, effects);
        }
        self.insert(peer, true, now);
        true
    }

    /// Removes a peer and withdraws its routes; false if there is none.
    pub fn remove(&mut self, address: SocketAddr, effects: &mut Effects) -> bool {
        let Some(&at) = self.by_address.get(&address) else {
            return false;
        };
        self.dismiss(at, effects);
        true
    }

    /// Says goodbye to a peer and forgets it.
    fn dismiss(&mut self, at: PeerSlot, effects: &mut Effects) {
        self.send(at, &Message::Goodbye, effects);
        self.forget(at, effects);
    }

    /// The key that this node is going to have: it answers to that one as well from now on.
    pub fn set_next_key(&mut self, key: PrivateKey) {
        self.security.next = Some(key);
        self.answer_to_keys();
    }

    /// The next key is the node's from now on; false if there is none. It proves itself by that one to all peers soon, whose
    /// sessions go on until then. To the one before it answers for a while.
    pub fn switch_key(&mut self, now: Duration) -> bool {
        if self.security.next.is_none() {
            return false;
        }
        let former = self.security.switch();
        self.former = former.map(|key| (key, now + ANSWER_TO_FORMER));
        self.answer_to_keys();
        self.scout = Scout::new(&self.security);
        let peers: Vec<PeerSlot> = self.peers.iter().map(|(at, _)| at).collect();
        for (index, at) in peers.into_iter().enumerate() {
            let peer = &mut self.peers[at];
            if peer.key.is_some() {
                peer.identity = Identity::of(&self.security, peer.key);
                peer.association.outdate();
                // Not with all at once.
                peer.next_rekey = now + REKEY_APART * index as u32;
            }
        }
        true
    }

    fn answer_to_keys(&mut self) {
        let former = self.former.as_ref().map(|(key, _)| key);
        self.gatekeeper.set_keys(&self.security, former);
    }

    /// The peer has proven itself by this key.
    fn known_by(&mut self, at: PeerSlot, key: Option<PublicKey>) {
        let peer = &mut self.peers[at];
        if peer.key == key {
            return;
        }
        peer.key = key;
        peer.identity = Identity::of(&self.security, key);
    }

    /// Says how nodes meet by others that they know.
    pub fn set_meeting(&mut self, meeting: Meeting) {
        self.meeting = meeting;
    }

    /// Replaces the networks that are accepted. Peers that are in none of them any more are peers no longer, but for those that
    /// are configured or that a rendezvous has named.
    pub fn set_accept(&mut self, accept: Vec<AcceptNet>, effects: &mut Effects) {
        self.accept = accept;
        let out = |(at, peer): (PeerSlot, &Peer)| {
            let stays = peer.configured || peer.named || self.accepts(peer.address.ip());
            (!stays).then_some(at)
        };
        let out: Vec<PeerSlot> = self.peers.iter().filter_map(out).collect();
        for at in out {
            self.dismiss(at, effects);
        }
    }

    fn accepts(&self, address: IpAddr) -> bool {
        self.accept.iter().any(|net| net.contains(address))
    }

    /// Notes that a channel is wanted on a lane, or no more, and tells the peers so soon.
    pub fn want(
        &mut self,
        entry: Subscription,
        wanted: bool,
        now: Duration,
        effects: &mut Effects,
    ) {
        if !self.wanted.set(entry, wanted) || self.flush_at.is_some() {
            return;
        }
        let at = self.flushed + COALESCE + COALESCE_PER_PEER * self.up as u32;
        if self.flushed == Duration::ZERO || now >= at {
            self.flush(now, effects);
        } else {
            self.flush_at = Some(at);
        }
    }

    /// Tells the peers how far sources are that write what they want.
    pub fn announce(&mut self, sources: &[(u8, SourceProgress)], effects: &mut Effects) {
        let peers: Vec<PeerSlot> = self.peers.iter().map(|(at, _)| at).collect();
        for at in peers {
            let peer = &self.peers[at];
            if peer.state != PeerState::Up || peer.held.entries.is_empty() {
                continue;
            }
            let told: Vec<_> = sources
                .iter()
                .filter(|(_, source)| peer.held.wants(source.channel))
                .copied()
                .collect();
            for part in told.chunks(PROGRESS_ENTRIES) {
                self.send(at, &Message::Progress(part.to_vec()), effects);
            }
        }
    }

    /// All peers, for operators.
    pub fn status(&self, now: Duration) -> Vec<PeerStatus> {
        let mut named: HashMap<&str, Vec<PeerSlot>> = HashMap::new();
        for (at, peer) in self.peers.iter() {
            if peer.state == PeerState::Up {
                named.entry(&peer.name).or_default().push(at);
            }
        }
        let same = |name: &str| named.get(name).map_or(&[][..], Vec::as_slice);
        let mut all: Vec<PeerStatus> = self
            .peers
            .iter()
            .map(|(at, p)| PeerStatus {
                clash: self.clash(at, same(&p.name).iter().copied()),
                failed: p.failed.clone(),
                other_key: p.keys.into_iter().flatten().find(|key| Some(*key) != p.key),
                is_behind: p.association.is_behind(),
                address: p.address,
                name: p.name.clone(),
                state: p.state,
                silent: p.heard.map(|heard| now.saturating_sub(heard)),
                incarnation: p.incarnation,
                subscriptions: p.held.entries.len(),
                subscriptions_known: p.state == PeerState::Up && p.held.version > 0,
                configured: p.configured,
                attempts: p.attempts,
                authentication: match (self.security.is_on(), &p.identity, p.key) {
                    (false, ..) => Authentication::None,
                    (_, None, _) => Authentication::NoKey,
                    (_, _, Some(key)) => Authentication::Node(key),
                    (_, _, None) => Authentication::Group,
                },
            })
            .collect();
        all.sort_by_key(|p| p.address);
        all
    }

    /// What was refused.
    pub fn counters(&self) -> PeeringCounters {
        self.counters
    }

    /// How many entries this node wants.
    pub fn wanted(&self) -> usize {
        self.wanted.count()
    }

    /// Sends what is due and notices silence. Returns when to call again at the latest.
    pub fn tick(&mut self, now: Duration, effects: &mut Effects) -> Duration {
        if self.flush_at.is_some_and(|at| now >= at) {
            self.flush(now, effects);
        }
        if self.former.as_ref().is_some_and(|(_, until)| now >= *until) {
            self.former = None;
            self.answer_to_keys();
        }
        for _ in 0..TIMERS {
            match self.timers.first() {
                Some(&(due, at)) if due <= now => self.serve(at, now, effects),
                _ => break,
            }
        }
        let timer = self.timers.first().map(|(due, _)| *due);
        let next = now + HELLO_EVERY;
        next.min(timer.unwrap_or(next))
            .min(self.flush_at.unwrap_or(next))
    }

    /// Whether lanes are behind with what they were told: what changes subscriptions is dropped until they are not any more, and comes
    /// again, for it is not acknowledged.
    pub fn set_behind(&mut self, behind: bool) {
        self.behind = behind;
    }

    /// Takes a datagram from `source`.
    pub fn receive(
        &mut self,
        source: SocketAddr,
        bytes: &[u8],
        now: Duration,
        effects: &mut Effects,
    ) {
        let known = self.by_address.get(&source).copied();
        if known.is_none() && !self.accepts(source.ip()) {
            self.counters.strangers += 1;
            return;
        }
        if self.security.is_on() {
            if let Err(refusal) = self.receive_secured(source, known, bytes, now, effects) {
                match refusal {
                    Refusal::Malformed => self.counters.malformed += 1,
                    Refusal::Unauthenticated => self.counters.unauthenticated += 1,
                    Refusal::Replayed => self.counters.replayed += 1,
                    Refusal::TooMany => self.counters.too_many += 1,
                }
            }
            return;
        }
        let Some((incarnation, message)) = self.decoded(bytes) else {
            return;
        };
        if incarnation == self.local.incarnation {
            return; // Ourselves: a configuration that lists its own node.
        }
        let at = match known {
            Some(at) => at,
            None if !matches!(message, Message::Hello { .. }) => {
                self.counters.strangers += 1;
                return;
            }
            None => match self.admit(source, None, now) {
                Some(at) => at,
                None => return,
            },
        };
        self.take(at, incarnation, message, now, effects);
    }

    /// The announcements by which others on the link find the node, whose peering address is `address`.
    pub fn announcements(&self, address: SocketAddr) -> Vec<Vec<u8>> {
        self.scout.announce(address, self.local.incarnation)
    }

    /// Takes an announcement that came from `source` by the multicast group: a handshake with an address that was not
    /// known is tried once, if one of an accepted network announces itself with a key that is known.
    pub fn hear(&mut self, source: SocketAddr, bytes: &[u8], now: Duration, effects: &mut Effects) {
        if scout::is_of(self.local.incarnation, bytes) {
            // The group gives back what this node has sent, which may be meant for others only.
            return;
        }
        let announced = match self.scout.hear(bytes) {
            Ok(announced) => announced,
            Err(unheard) => {
                match unheard {
                    Unheard::Malformed => self.counters.malformed += 1,
                    Unheard::Version => self.counters.version += 1,
                    Unheard::Unauthenticated => self.counters.unauthenticated += 1,
                }
                return;
            }
        };
        let address = announced.address;
        if announced.incarnation == self.local.incarnation || self.by_address.contains_key(&address)
        {
            return;
        }
        if address.ip() != source.ip() {
            // Recorded elsewhere, or behind a translation of addresses.
            self.counters.unauthenticated += 1;
            return;
        }
        if !self.accepts(address.ip()) {
            self.counters.strangers += 1;
            return;
        }
        if let Some(at) = self.admit(address, announced.key, now) {
            self.peers[at].next_hello = now;
            self.serve(at, now, effects);
        }
    }

    /// Whether a node of an accepted network with this key becomes a peer.
    fn allows(&self, key: Option<PublicKey>) -> bool {
        key.is_none_or(|key| self.security.allow.contains(&key))
    }

    /// Whether the peer's address is another node's now, which has proven that it is there and has a key that is
    /// allowed: a node that was replaced, or whose address was given to another. Not one that is configured, and not
    /// as long as the peer may still be there.
    fn gives_way(&self, at: PeerSlot, key: Option<PublicKey>) -> bool {
        let peer = &self.peers[at];
        !peer.has(key) && !peer.configured && peer.state != PeerState::Up && self.allows(key)
    }

    /// Goodbyes to all peers that are up, for a clean exit.
    pub fn leave(&mut self, effects: &mut Effects) {
        let up = |(at, peer): (PeerSlot, &Peer)| (peer.state == PeerState::Up).then_some(at);
        let peers: Vec<PeerSlot> = self.peers.iter().filter_map(up).collect();
        for at in peers {
            self.send(at, &Message::Goodbye, effects);
        }
    }

    fn decoded(&mut self, bytes: &[u8]) -> Option<(u64, Message)> {
        match decode(bytes) {
            Ok(decoded) => return Some(decoded),
            Err(DecodeError::Version(_)) => self.counters.version += 1,
            Err(_) => self.counters.malformed += 1,
        }
        None
    }

    /// A datagram where peers prove who they are.
    fn receive_secured(
        &mut self,
        source: SocketAddr,
        known: Option<PeerSlot>,
        bytes: &[u8],
        now: Duration,
        effects: &mut Effects,
    ) -> Result<(), Refusal> {
        if bytes.len() < 16 || bytes[..4] != message::MAGIC {
            return Err(Refusal::Malformed);
        }
        if bytes[4] != message::VERSION {
            self.counters.version += 1;
            return Ok(());
        }
        if bytes[5] == INITIATE {
            return self.receive_initiation(source, known, bytes, now, effects);
        }
        let at = known.ok_or(Refusal::Unauthenticated)?;
        let peer = &mut self.peers[at];
        match (bytes[5], &peer.identity) {
            (COOKIE, Some(_)) => {
                let again = peer.association.cookie(bytes)?;
                effects.datagrams.push((source, again));
            }
            // Whom it was meant for may have been taken out meanwhile.
            (RESPOND, Some(_)) if peer.key.is_some() && !peer.has(peer.association.tried()) => {
                return Err(Refusal::Unauthenticated);
            }
            (RESPOND, Some(_)) => {
                let (key, changes) = peer.association.respond(bytes, now)?;
                if peer.key.is_some() {
                    self.known_by(at, Some(key));
                }
                effects.keys(source, changes);
                // It knows by the first message that we have the keys.
                self.send_hello(at, effects);
            }
            (SEALED, Some(_)) => {
                let message = peer.association.open(bytes)?;
                if let Some((incarnation, message)) = self.decoded(&message)
                    && incarnation != self.local.incarnation
                {
                    self.take(at, incarnation, message, now, effects);
                }
            }
            _ => return Err(Refusal::Unauthenticated),
        }
        Ok(())
    }

    /// Somebody begins a handshake.
    fn receive_initiation(
        &mut self,
        source: SocketAddr,
        known: Option<PeerSlot>,
        bytes: &[u8],
        now: Duration,
        effects: &mut Effects,
    ) -> Result<(), Refusal> {
        let peer = known.map(|at| &mut self.peers[at].handshakes);
        let opened = match self.gatekeeper.look(source, peer, bytes, now)? {
            Gate::Cookie(answer) => {
                effects.datagrams.push((source, answer));
                return Ok(());
            }
            Gate::Open(opened) => opened,
        };
        if opened.incarnation == self.local.incarnation {
            return Ok(()); // Ourselves.
        }
        let known = match known {
            Some(at) if self.gives_way(at, opened.key) => {
                self.forget(at, effects);
                None
            }
            known => known,
        };
        let at = match known {
            Some(at) if self.peers[at].has(opened.key) => at,
            None if self.allows(opened.key) => match self.admit(source, opened.key, now) {
                Some(at) => at,
                None => return Ok(()),
            },
            _ => return Err(Refusal::Unauthenticated),
        };
        let (own, key) = (self.local.incarnation, opened.key);
        let (answer, changes) = self.peers[at].association.accept(*opened, own, now)?;
        self.known_by(at, key);
        effects.keys(source, changes);
        effects.datagrams.push((source, answer));
        Ok(())
    }

    /// Takes what a peer says.
    fn take(
        &mut self,
        at: PeerSlot,
        incarnation: u64,
        message: Message,
        now: Duration,
        effects: &mut Effects,
    ) {
        let peer = &mut self.peers[at];
        match message {
            Message::Hello {
                name,
                seen,
                stream,
                holds,
                label,
                lanes,
                failed,
            } => {
                if !self.take_hello(at, incarnation, name, label, lanes, failed, now, effects) {
                    self.counters.malformed += 1;
                    return;
                }
                self.peers[at].told.compare(stream, holds);
                if seen != self.local.incarnation {
                    // It does not know us yet: answer now rather than at the next tick.
                    self.send_hello(at, effects);
                }
                self.tell(at, now, effects);
                self.schedule(at);
            }
            // Its hello introduces it, and it repeats what is not acknowledged.
            _ if peer.incarnation != incarnation || peer.state != PeerState::Up => {}
            Message::Subscriptions(page) => {
                peer.heard = Some(now);
                if self.behind {
                    self.counters.too_many += 1;
                    return;
                }
                self.take_page(at, page, effects);
            }
            Message::Acknowledge { stream, version } => {
                peer.heard = Some(now);
                if peer.told.acknowledge(stream, version) {
                    self.tell(at, now, effects);
                    self.schedule(at);
                }
            }
            Message::Progress(sources) => {
                peer.heard = Some(now);
                let lanes = peer.lanes.len();
                let known = sources.into_iter().filter(|(l, _)| usize::from(*l) < lanes);
                effects.changes.push(Change::Progress {
                    peer: peer.address,
                    sources: known.collect(),
                });
            }
            Message::Introductions(nodes) => {
                peer.heard = Some(now);
                self.take_introductions(at, nodes, now, effects);
            }
            Message::Goodbye => {
                self.set_state(at, PeerState::Down);
                self.void(at, true, effects);
                let peer = &mut self.peers[at];
                let (address, association) = (peer.address, &mut peer.association);
                effects.keys(address, association.clear());
            }
        }
    }

    /// False: it contradicts what the same incarnation has said.
    #[allow(clippy::too_many_arguments)] // the fields of one message
    fn take_hello(
        &mut self,
        at: PeerSlot,
        incarnation: u64,
        name: String,
        label: u32,
        lanes: Vec<LaneAnnouncement>,
        failed: Vec<Outage>,
        now: Duration,
        effects: &mut Effects,
    ) -> bool {
        let peer = &mut self.peers[at];
        if peer.incarnation == incarnation && !peer.lanes.is_empty() && peer.lanes != lanes {
            // Lanes are there from a runtime's start to its end: keys are used once for each of them.
            return false;
        }
        if peer.incarnation != incarnation {
            // Restarted: everything known of the former one is void.
            self.void(at, false, effects);
            let peer = &mut self.peers[at];
            peer.incarnation = incarnation;
            effects.keys(peer.address, peer.association.renew(incarnation));
            effects.keys(peer.address, peer.association.switch(now));
        }
        let back = self.set_state(at, PeerState::Up);
        let peer = &mut self.peers[at];
        peer.heard = Some(now);
        peer.attempts = 0;
        // It chose it; logs and tables show it.
        peer.name = takt_session::printable(&name);
        peer.label = label;
        if back && let Some(clash) = self.clash(at, self.peers.iter().map(|(other, _)| other)) {
            effects.clashes.push((self.peers[at].address, clash));
        }
        let peer = &mut self.peers[at];
        if back {
            peer.told.again(now);
            effects.keys(peer.address, peer.association.switch(now));
        }
        if peer.lanes.is_empty() && !lanes.is_empty() {
            peer.lanes.clone_from(&lanes);
            effects.changes.push(Change::Lanes {
                peer: peer.address,
                label,
                lanes,
            });
        }
        // A peer that changes its mind all the time is heard with some hello.
        let soon = |at: Duration| now < at + FAILED_EVERY;
        if !peer.lanes.is_empty() && peer.failed != failed && !peer.failed_at.is_some_and(soon) {
            peer.failed_at = Some(now);
            peer.failed.clone_from(&failed);
            effects.changes.push(Change::Failed {
                peer: peer.address,
                datapaths: failed,
            });
        }
        if back && !peer.held.entries.is_empty() {
            effects.changes.push(Change::Back {
                peer: peer.address,
                wanted: peer.held.entries.iter().copied().collect(),
            });
        }
        true
    }

    /// What a peer that is up has in common with this node, or with the first of others that are up. A node that is
    /// there under two addresses is one.
    fn clash(&self, at: PeerSlot, others: impl Iterator<Item = PeerSlot>) -> Option<Clash> {
        let peer = &self.peers[at];
        if peer.state != PeerState::Up {
            return None;
        }
        let clash = |with, label| {
            Some(Clash {
                name: peer.name.clone(),
                with,
                label: label == peer.label,
            })
        };
        if peer.name == self.local.name {
            return clash(None, self.local.label);
        }
        let other = others.map(|other| &self.peers[other]).find(|other| {
            other.state == PeerState::Up
                && other.name == peer.name
                && other.incarnation != peer.incarnation
        })?;
        clash(Some(other.address), other.label)
    }

    /// Tries nodes that a peer names.
    fn take_introductions(
        &mut self,
        at: PeerSlot,
        nodes: Vec<PeerConfig>,
        now: Duration,
        effects: &mut Effects,
    ) {
        if !self.meeting.rendezvous.contains(&self.peers[at].address) {
            // Nobody asked it.
            self.counters.strangers += 1;
            return;
        }
        for node in nodes {
            if let Some(&known) = self.by_address.get(&node.address) {
                let peer = &mut self.peers[known];
                peer.named |= peer.has(node.key);
                continue;
            }
            let provable = Identity::of(&self.security, node.key).is_some();
            if !self.allows(node.key) || (self.security.is_on() && !provable) {
                continue;
            }
            if let Some(at) = self.admit(node.address, node.key, now) {
                self.peers[at].named = true;
                self.peers[at].next_hello = now;
                self.serve(at, now, effects);
            }
        }
    }

    /// Names some of the other peers to one, from where the last time ended.
    fn introduce(&mut self, at: PeerSlot, effects: &mut Effects) {
        let (from, places) = (self.peers[at].introduced, self.peers.capacity());
        let mut nodes = Vec::new();
        for other in (0..places).map(|place| PeerSlot((from + place) % places)) {
            let Some(peer) = self.peers.get(other) else {
                continue;
            };
            if other == at || peer.state != PeerState::Up {
                continue;
            }
            let (address, key) = (peer.address, peer.key);
            nodes.push(PeerConfig::known_by(address, key));
            if nodes.len() == INTRODUCED {
                self.peers[at].introduced = other.0 + 1;
                break;
            }
        }
        if !nodes.is_empty() {
            self.send(at, &Message::Introductions(nodes), effects);
        }
    }

    fn take_page(&mut self, at: PeerSlot, page: Page, effects: &mut Effects) {
        let peer = &mut self.peers[at];
        if let Some(difference) = peer.held.take(page) {
            self.counters.too_many += difference.refused;
            if !difference.add.is_empty() || !difference.remove.is_empty() {
                effects.changes.push(Change::Subscriptions {
                    peer: peer.address,
                    add: difference.add,
                    remove: difference.remove,
                });
            }
        }
        let acknowledge = Message::Acknowledge {
            stream: peer.held.stream,
            version: peer.held.version,
        };
        self.send(at, &acknowledge, effects);
    }

    /// One peer's timer.
    fn serve(&mut self, at: PeerSlot, now: Duration, effects: &mut Effects) {
        let peer = &mut self.peers[at];
        let address = peer.address;
        if peer.state == PeerState::Up && peer.heard.is_some_and(|heard| now >= heard + DEAD_AFTER)
        {
            if !peer.held.entries.is_empty() {
                effects.changes.push(Change::Silent { peer: address });
            }
            self.set_state(at, PeerState::Down);
        }
        let peer = &mut self.peers[at];
        let silent = now.saturating_sub(peer.heard.unwrap_or(peer.since));
        let patience = match peer.state {
            PeerState::Trying => DEAD_AFTER,
            PeerState::Up | PeerState::Down => FORGET_AFTER,
        };
        if !peer.configured && peer.state != PeerState::Up && silent >= patience {
            return self.forget(at, effects);
        }
        let rekey = self.security.rekey;
        effects.keys(address, peer.association.retire(rekey, now));
        if peer.state == PeerState::Up {
            effects.keys(address, peer.association.switch(now));
        }
        if now >= peer.next_hello {
            let fifth = HELLO_EVERY.as_micros() as u64 / 5;
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let early = Duration::from_micros(self.random % fifth);
            peer.next_hello = now + HELLO_EVERY - early;
            peer.attempts += 1;
            let begin = peer.state != PeerState::Up && peer.attempts % HANDSHAKE_EVERY == 1;
            if self.security.is_on() && (begin || !peer.association.is_ready()) {
                self.initiate(at, now, effects);
            } else {
                self.send_hello(at, effects);
            }
            if self.meeting.introduce && self.peers[at].state == PeerState::Up {
                self.introduce(at, effects);
            }
        }
        let peer = &mut self.peers[at];
        if self.security.is_on()
            && peer.state == PeerState::Up
            && now >= peer.next_rekey
            && peer.association.wants_rekey(rekey, now)
        {
            peer.next_rekey = now + REKEY_AGAIN;
            self.initiate(at, now, effects);
        }
        let peer = &mut self.peers[at];
        if peer.state == PeerState::Up && peer.told.acknowledged < self.telling {
            if now >= peer.told.repeat_at {
                peer.told.repeat();
            }
            self.tell(at, now, effects);
        }
        self.schedule(at);
    }

    /// Begins a handshake.
    fn initiate(&mut self, at: PeerSlot, now: Duration, effects: &mut Effects) {
        let peer = &mut self.peers[at];
        let tried = peer.association.tried();
        let other =
            |key: &PublicKey| peer.key.is_some() && tried.is_some_and(|tried| tried != *key);
        // Where one key finds no answer, the other is tried.
        let other = peer.keys.into_iter().flatten().find(other);
        let identity = other.and_then(|key| Identity::of(&self.security, Some(key)));
        if let Some(identity) = identity.as_ref().or(peer.identity.as_ref()) {
            let own = self.local.incarnation;
            let datagram = peer.association.initiate(identity, own, now);
            effects.datagrams.push((peer.address, datagram));
        }
    }

    fn send_hello(&mut self, at: PeerSlot, effects: &mut Effects) {
        let peer = &self.peers[at];
        let hello = Message::Hello {
            name: self.local.name.clone(),
            seen: match peer.state {
                PeerState::Up => peer.incarnation,
                _ => 0,
            },
            stream: peer.held.stream,
            holds: peer.held.version,
            label: self.local.label,
            lanes: self.local.lanes.clone(),
            failed: self.failed.clone(),
        };
        self.send(at, &hello, effects);
    }

    /// Takes which datapaths of this node have failed, and tells all peers that are up at once; the others hear it with
    /// the next hello.
    pub fn set_failed(&mut self, failed: Vec<Outage>, effects: &mut Effects) {
        if self.failed == failed {
            return;
        }
        self.failed = failed;
        let up = |(at, peer): (PeerSlot, &Peer)| (peer.state == PeerState::Up).then_some(at);
        let up: Vec<PeerSlot> = self.peers.iter().filter_map(up).collect();
        for at in up {
            self.send_hello(at, effects);
        }
    }

    /// Tells all peers that are up what has changed.
    fn flush(&mut self, now: Duration, effects: &mut Effects) {
        self.flush_at = None;
        self.flushed = now;
        self.telling = self.wanted.version();
        let up = |(at, peer): (PeerSlot, &Peer)| (peer.state == PeerState::Up).then_some(at);
        let peers: Vec<PeerSlot> = self.peers.iter().filter_map(up).collect();
        for at in peers {
            self.tell(at, now, effects);
            self.schedule(at);
        }
    }

    /// Sends pages of what has changed, as many as may be under way.
    fn tell(&mut self, at: PeerSlot, now: Duration, effects: &mut Effects) {
        let told = &mut self.peers[at].told;
        if !self.wanted.follows(told.sent) {
            told.begin();
        }
        let before = told.under_way.len();
        let mut pages = Vec::new();
        // What has changed since waits for the next flush, also behind an acknowledgement: a wish that comes and goes
        // is not told in every round trip.
        while told.under_way.len() < WINDOW && told.sent < self.telling {
            let page = self.wanted.page(told.stream, told.sent);
            told.sent = page.to;
            told.under_way.push_back(page.to);
            pages.push(Message::Subscriptions(page));
        }
        if before == 0 && !pages.is_empty() {
            told.repeat_at = now + told.repeat_after;
        }
        for page in pages {
            self.send(at, &page, effects);
        }
    }

    fn send(&mut self, at: PeerSlot, message: &Message, effects: &mut Effects) {
        let peer = &mut self.peers[at];
        let bytes = encode(self.local.incarnation, message);
        if !self.security.is_on() {
            effects.datagrams.push((peer.address, bytes));
        } else if let Some(sealed) = peer.association.seal(&bytes) {
            effects.datagrams.push((peer.address, sealed));
        }
    }

    /// When to look at a peer again.
    fn schedule(&mut self, at: PeerSlot) {
        let peer = &mut self.peers[at];
        let mut due = peer.next_hello;
        if let (PeerState::Up, Some(heard)) = (peer.state, peer.heard) {
            due = due.min(heard + DEAD_AFTER);
            if peer.told.acknowledged < self.telling {
                due = due.min(peer.told.repeat_at);
            }
        }
        if due != peer.due {
            self.timers.remove(&(peer.due, at));
            peer.due = due;
            self.timers.insert((due, at));
        }
    }

    /// True if the peer is up and was not.
    fn set_state(&mut self, at: PeerSlot, state: PeerState) -> bool {
        let before = std::mem::replace(&mut self.peers[at].state, state);
        match (before == PeerState::Up, state == PeerState::Up) {
            (false, true) => self.up += 1,
            (true, false) => self.up -= 1,
            _ => {}
        }
        before != PeerState::Up && state == PeerState::Up
    }

    /// What a peer's incarnation has told holds no more.
    fn void(&mut self, at: PeerSlot, clean: bool, effects: &mut Effects) {
        let peer = &mut self.peers[at];
        peer.held = Held::default();
        if !peer.lanes.is_empty() {
            peer.lanes.clear();
            peer.failed.clear();
            peer.failed_at = None;
            effects.changes.push(Change::Gone {
                peer: peer.address,
                clean,
            });
        }
        if peer.state == PeerState::Up {
            // What it had of us it has forgotten.
            peer.told.begin();
        }
    }

    /// A peer that is not configured, if there is room for it.
    fn admit(
        &mut self,
        address: SocketAddr,
        key: Option<PublicKey>,
        now: Duration,
    ) -> Option<PeerSlot> {
        let here = self.accepted.get(&address.ip()).copied().unwrap_or(0);
        if self.all_accepted >= MOST_ACCEPTED || here >= MOST_ACCEPTED_AT {
            self.counters.too_many += 1;
            return None;
        }
        self.accepted.insert(address.ip(), here + 1);
        self.all_accepted += 1;
        Some(self.insert(PeerConfig::known_by(address, key), false, now))
    }

    fn uncount(&mut self, address: IpAddr) {
        if let Some(here) = self.accepted.get_mut(&address) {
            *here -= 1;
            self.all_accepted -= 1;
            if *here == 0 {
                self.accepted.remove(&address);
            }
        }
    }

    fn insert(&mut self, config: PeerConfig, configured: bool, now: Duration) -> PeerSlot {
        let at = self.peers.insert(Peer {
            address: config.address,
            configured,
            named: false,
            keys: [config.key, config.next_key],
            key: config.key,
            identity: Identity::of(&self.security, config.key),
            association: Association::default(),
            handshakes: Budget::default(),
            name: String::new(),
            label: 0,
            state: PeerState::Trying,
            incarnation: 0,
            since: now,
            heard: None,
            next_hello: now,
            next_rekey: now,
            attempts: 0,
            lanes: Vec::new(),
            failed: Vec::new(),
            failed_at: None,
            held: Held::default(),
            told: Told::new(),
            introduced: 0,
            due: now,
        });
        if !configured {
            // Whoever comes by itself begins by itself.
            self.peers[at].next_hello = now + HELLO_EVERY;
        }
        self.by_address.insert(config.address, at);
        self.timers.insert((now, at));
        at
    }

    fn forget(&mut self, at: PeerSlot, effects: &mut Effects) {
        self.set_state(at, PeerState::Down);
        self.void(at, false, effects);
        let Some(mut peer) = self.peers.remove(at) else {
            return;
        };
        effects.keys(peer.address, peer.association.clear());
        self.timers.remove(&(peer.due, at));
        self.by_address.remove(&peer.address);
        if !peer.configured {
            self.uncount(peer.address.ip());
        }
    }
}

impl Told {
    fn new() -> Self {
        Self {
            stream: 1,
            sent: 0,
            acknowledged: 0,
            under_way: VecDeque::new(),
            repeat_at: Duration::ZERO,
            repeat_after: REPEAT_FIRST,
        }
    }

    /// From nothing.
    fn begin(&mut self) {
        *self = Self {
            stream: next_stream(self.stream),
            ..Self::new()
        };
    }

    /// The peer is back: whatever was under way has not arrived.
    fn again(&mut self, now: Duration) {
        self.sent = self.acknowledged;
        self.under_way.clear();
        self.repeat_at = now;
        self.repeat_after = REPEAT_FIRST;
    }

    /// Repeats what was not acknowledged in time.
    fn repeat(&mut self) {
        self.sent = self.acknowledged;
        self.under_way.clear();
        self.repeat_after = (self.repeat_after * 2).min(HELLO_EVERY);
    }

    /// What a hello says that the peer holds.
    fn compare(&mut self, stream: u32, holds: u64) {
        if stream == self.stream {
            self.acknowledge(stream, holds);
        } else if self.acknowledged > 0 || is_newer(stream, self.stream) {
            // It has lost what it had acknowledged, or follows what was told before it was forgotten here.
            if is_newer(stream, self.stream) {
                self.stream = stream;
            }
            self.begin();
        }
    }

    /// True if that is news.
    fn acknowledge(&mut self, stream: u32, version: u64) -> bool {
        if stream != self.stream || version <= self.acknowledged || version > self.sent {
            return false;
        }
        self.acknowledged = version;
        while self.under_way.front().is_some_and(|&to| to <= version) {
            self.under_way.pop_front();
        }
        self.repeat_after = REPEAT_FIRST;
        true
    }
}

#[cfg(test)]
mod tests;
