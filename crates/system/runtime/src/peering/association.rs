//! What two nodes share: a handshake by which each proves who it is, and the keys that come of it.
//!
//! The handshake is Noise IKpsk2 as in WireGuard (Noise protocol framework, revision 34, sections 7.5 and 9; the
//! messages are drawn in `docs/reference/wire-format.md`). Whoever begins proves first: that it knows whom it
//! speaks to (a keyed hash over the message), that it receives at its address (a cookie), then its identity. Until
//! then nothing is remembered of it, and what it is answered is shorter than what it sent. A cookie is good for one
//! handshake and once, and so many handshakes are looked at, of a peer, of a host that is none, and of all: the rest
//! costs hashes only. A handshake leads to a session: keys for messages of the control threads, and secrets from
//! which each pair of lanes derives its own.
//!
//! Pure but for random numbers; see [`super::Peering`].

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use snow::{Builder, HandshakeState};

use super::budget::{Allowance, Budget};
use super::keys::{GroupKey, KEY_LEN, PrivateKey, PublicKey, Security, derive, random};
use super::message::{MAGIC, VERSION};
use super::replay::ReplayWindow;

/// How long a session is accepted after it was to be replaced.
const GRACE: Duration = Duration::from_secs(60);
/// Incarnations of a peer that are over, of which no handshake is taken any more.
const MOST_FORMER: usize = 64;
/// How long a new session is there before lanes send under it, when there is another. A lane that is kept from its
/// core amidst what it has received knows keys that came meanwhile only in its next round.
const SWITCH_AFTER: Duration = Duration::from_secs(5);
/// How old a session is before the next one is begun earlier than it must: by then both sides send under it.
const SETTLED_AFTER: Duration = Duration::from_secs(10);
/// Sessions of a pair that are accepted at a time.
pub const MOST_SESSIONS: usize = 3;
/// How often the secret behind cookies changes; the one before is good for as long.
const COOKIE_EVERY: Duration = Duration::from_secs(10);
/// Cookies that are used before it changes earlier.
const MOST_USED: usize = 8192;
/// Handshakes of a peer that are looked at: it begins one in three seconds, as long as none leads to anything, and one
/// whenever it starts.
const OF_A_PEER: Allowance = Allowance {
    every: Duration::from_millis(250),
    burst: 16,
};
/// Those of all peers.
const OF_PEERS: Allowance = Allowance {
    every: Duration::from_millis(2),
    burst: 100,
};
/// Those of a host that is no peer yet: nodes at one address may be as many as are accepted there.
const OF_A_HOST: Allowance = Allowance {
    every: Duration::from_millis(250),
    burst: 64,
};
/// Those of all such hosts.
const OF_HOSTS: Allowance = Allowance {
    every: Duration::from_millis(4),
    burst: 64,
};
/// Wrong answers to a handshake that are looked at; it is given up then. Whoever has not seen it must guess its number.
const WRONG_ANSWERS: u8 = 16;
/// Budgets of such hosts: those with one share it.
const HOSTS: usize = 1024;

const PATTERN: &str = "Noise_IKpsk2_25519_ChaChaPoly_SHA256";
pub(super) const HEADER: usize = 16;
pub(super) const MAC: usize = 16;
const TAG: usize = 16;
/// Payload of both handshake messages: incarnation and stamp of the sender.
const PAYLOAD: usize = 16;
const NOISE_INITIATE: usize = KEY_LEN + (KEY_LEN + TAG) + (PAYLOAD + TAG);
const NOISE_RESPOND: usize = KEY_LEN + (PAYLOAD + TAG);
/// Bytes of the messages.
pub const INITIATE_LEN: usize = HEADER + MAC + NOISE_INITIATE + MAC;
/// See [`INITIATE_LEN`].
pub const COOKIE_LEN: usize = HEADER + MAC + MAC;
/// See [`INITIATE_LEN`].
pub const RESPOND_LEN: usize = HEADER + NOISE_RESPOND;

/// Types of datagrams, in the place of a message's type.
pub const INITIATE: u8 = 16;
/// See [`INITIATE`].
pub const COOKIE: u8 = 17;
/// See [`INITIATE`].
pub const RESPOND: u8 = 18;
/// See [`INITIATE`].
pub const SEALED: u8 = 19;

/// As whom a node speaks, in a handshake's header.
const AS_NODE: u8 = 0;
const AS_GROUP: u8 = 1;

pub(super) fn header(kind: u8, number: u8, identity: u8) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&[VERSION, kind, number, identity]);
    header
}

pub(super) fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; MAC] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut context = hmac::Context::with_key(&key);
    parts.iter().for_each(|part| context.update(part));
    let mut out = [0; MAC];
    out.copy_from_slice(&context.sign().as_ref()[..MAC]);
    out
}

/// Compares without telling by its time where two differ.
pub(super) fn same(a: &[u8], b: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok()
}

/// The nonce of a datagram with this counter, which its key uses once.
pub(crate) fn nonce(counter: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..8].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// A key of AES-256-GCM.
pub(crate) fn aead(key: &[u8; KEY_LEN]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key of 32 bytes"))
}

/// As whom we speak to a peer, and whom we expect there.
#[derive(Clone)]
pub struct Identity {
    local: PrivateKey,
    remote: PublicKey,
    psk: [u8; KEY_LEN],
    /// Key of the hash that shows a responder that the sender knows it.
    gate: [u8; KEY_LEN],
    kind: u8,
}

fn gate_of(key: &PublicKey) -> [u8; KEY_LEN] {
    derive(&key.0, &[b"node gate"])
}

impl Identity {
    /// Between nodes that know each other's keys.
    fn nodes(local: &PrivateKey, remote: PublicKey) -> Self {
        Self {
            local: local.clone(),
            remote,
            psk: [0; KEY_LEN],
            gate: gate_of(&remote),
            kind: AS_NODE,
        }
    }

    fn group(key: &GroupKey) -> Self {
        let local = key.identity();
        Self {
            remote: local.public(),
            local,
            psk: key.shared(),
            gate: key.gate(),
            kind: AS_GROUP,
        }
    }

    /// For a peer that is listed with this key, or without one. `None`: the key that it takes is not configured.
    pub fn of(security: &Security, peer: Option<PublicKey>) -> Option<Self> {
        match peer {
            Some(remote) => Some(Self::nodes(security.node.as_ref()?, remote)),
            None => Some(Self::group(security.group.as_ref()?)),
        }
    }

    fn begin(&self, header: &[u8], initiator: bool) -> HandshakeState {
        let builder = Builder::new(PATTERN.parse().expect("a known pattern"))
            .local_private_key(&self.local.0)
            .and_then(|builder| builder.prologue(header))
            .and_then(|builder| builder.psk(2, &self.psk));
        let state = builder.and_then(|builder| {
            if initiator {
                builder.remote_public_key(&self.remote.0)?.build_initiator()
            } else {
                builder.build_responder()
            }
        });
        state.expect("keys of the right length")
    }
}

/// What the lanes of two nodes derive their keys from.
pub struct LaneSecrets {
    /// Number of the session.
    pub number: u8,
    send: [u8; KEY_LEN],
    receive: [u8; KEY_LEN],
}

impl std::fmt::Debug for LaneSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LaneSecrets({})", self.number)
    }
}

impl PartialEq for LaneSecrets {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number && same(&self.send, &other.send)
    }
}

impl Eq for LaneSecrets {}

impl LaneSecrets {
    /// Keys of a pair of lanes: what the local one sends with, and what the remote one does.
    pub fn keys(&self, local: u32, remote: u32) -> (LessSafeKey, LessSafeKey) {
        let key = |secret: &[u8; KEY_LEN], from: u32, to: u32| {
            let info: [&[u8]; 3] = [b"lane pair", &from.to_le_bytes(), &to.to_le_bytes()];
            aead(&derive(secret, &info))
        };
        (
            key(&self.send, local, remote),
            key(&self.receive, remote, local),
        )
    }
}

/// Keys that two nodes have in common, and which counters were used.
struct Session {
    number: u8,
    initiator: bool,
    /// The other side's incarnation.
    of: u64,
    /// The stamp of the handshake that it began; 0: it was ours.
    stamp: u64,
    /// The other side has shown that it has the keys.
    confirmed: bool,
    since: Duration,
    send: LessSafeKey,
    receive: LessSafeKey,
    counter: u64,
    window: ReplayWindow,
    secrets: Arc<LaneSecrets>,
}

impl Session {
    /// `stamp`: of a handshake that the other side began.
    fn new(
        mut state: HandshakeState,
        number: u8,
        (of, stamp): (u64, Option<u64>),
        now: Duration,
    ) -> Self {
        let initiator = stamp.is_none();
        let (to_responder, to_initiator) = state.dangerously_get_raw_split();
        let (send, receive) = if initiator {
            (to_responder, to_initiator)
        } else {
            (to_initiator, to_responder)
        };
        Self {
            number,
            initiator,
            of,
            stamp: stamp.unwrap_or(0),
            confirmed: initiator,
            since: now,
            send: aead(&derive(&send, &[b"control"])),
            receive: aead(&derive(&receive, &[b"control"])),
            counter: 0,
            window: ReplayWindow::default(),
            secrets: Arc::new(LaneSecrets {
                number,
                send: derive(&send, &[b"lanes"]),
                receive: derive(&receive, &[b"lanes"]),
            }),
        }
    }
}

struct Initiating {
    state: HandshakeState,
    identity: Identity,
    number: u8,
    noise: Vec<u8>,
    mac: [u8; MAC],
    /// Answers that were not the peer's.
    wrong: u8,
}

/// What has become of the sessions of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// Datagrams under these keys are accepted from now on.
    Accept(Arc<LaneSecrets>),
    /// Datagrams are sent under the keys of this number from now on.
    Send(u8),
    /// The keys of this number are void.
    Retire(u8),
}

/// Why a datagram is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not as long as it must be, or out of place.
    Malformed,
    /// Its sender has not shown who it is.
    Unauthenticated,
    /// It was taken before.
    Replayed,
    /// More handshakes than are looked at: its sender tries again.
    TooMany,
}

/// A pair's handshakes and sessions.
#[derive(Default)]
pub struct Association {
    /// Oldest first.
    sessions: Vec<Session>,
    initiating: Option<Initiating>,
    /// Number of the session that lanes send under.
    sending: Option<u8>,
    /// Incarnation and stamp of the last handshake that the other side began.
    latest: (u64, u64),
    /// The same of the last one of which it has shown that it lives: recorded handshakes cannot be replayed to that end.
    proven: (u64, u64),
    /// Incarnations that were proven before that one.
    former: VecDeque<u64>,
    /// The next session is begun as soon as the one before is in use.
    hasty: bool,
    /// The other side has not shown yet that it knows this node's new key.
    behind: bool,
}

impl Association {
    /// Begins a handshake: the datagram to send. `stamp` grows within an incarnation.
    pub fn initiate(&mut self, identity: &Identity, incarnation: u64, stamp: Duration) -> Vec<u8> {
        let mut number = random::<1>()[0];
        while self.sessions.iter().any(|s| s.number == number) {
            number = number.wrapping_add(1);
        }
        let header = header(INITIATE, number, identity.kind);
        let mut state = identity.begin(&header, true);
        let mut noise = vec![0; NOISE_INITIATE];
        let length = state.write_message(&payload(incarnation, stamp), &mut noise);
        debug_assert!(matches!(length, Ok(NOISE_INITIATE)), "{length:?}");
        let (datagram, mac) = initiation(identity, &header, &[0; MAC], &noise);
        self.initiating = Some(Initiating {
            state,
            identity: identity.clone(),
            number,
            noise,
            mac,
            wrong: 0,
        });
        datagram
    }

    /// Takes the answer that wants a cookie: the handshake again, with it.
    pub fn cookie(&mut self, datagram: &[u8]) -> Result<Vec<u8>, Refusal> {
        if datagram.len() != COOKIE_LEN {
            return Err(Refusal::Malformed);
        }
        let (echo, cookie) = datagram[HEADER..].split_at(MAC);
        let Some(initiating) = self.initiating.as_mut() else {
            return Err(Refusal::Unauthenticated);
        };
        // Only who has seen our datagram knows its hash.
        if datagram[6] != initiating.number || !same(echo, &initiating.mac) {
            return Err(Refusal::Unauthenticated);
        }
        let identity = &initiating.identity;
        let header = header(INITIATE, initiating.number, identity.kind);
        let (datagram, mac) = initiation(identity, &header, cookie, &initiating.noise);
        initiating.mac = mac;
        Ok(datagram)
    }

    /// Whom the handshake that is not answered yet is meant for.
    pub fn tried(&self) -> Option<PublicKey> {
        self.initiating.as_ref().map(|i| i.identity.remote)
    }

    /// Takes the answer that ends a handshake which we began, and by which key the other side has proven itself.
    pub fn respond(
        &mut self,
        datagram: &[u8],
        now: Duration,
    ) -> Result<(PublicKey, Vec<KeyChange>), Refusal> {
        if datagram.len() != RESPOND_LEN {
            return Err(Refusal::Malformed);
        }
        // A forged answer must not end a handshake: it is read in a copy, as the state cannot be.
        let Some(mut initiating) = self.initiating.take() else {
            return Err(Refusal::Unauthenticated);
        };
        let mut payload = [0; PAYLOAD];
        if datagram[6] != initiating.number {
            self.initiating = Some(initiating);
            return Err(Refusal::Unauthenticated);
        }
        let read = initiating
            .state
            .read_message(&datagram[HEADER..], &mut payload);
        if read.is_err() {
            // Noise restores the state when an authentication fails.
            initiating.wrong += 1;
            self.initiating = (initiating.wrong < WRONG_ANSWERS).then_some(initiating);
            return Err(Refusal::Unauthenticated);
        }
        let of = u64::from_le_bytes(std::array::from_fn(|i| payload[i]));
        (self.hasty, self.behind) = (false, false);
        let session = Session::new(initiating.state, initiating.number, (of, None), now);
        self.prove(of, 0);
        Ok((initiating.identity.remote, self.add(session)))
    }

    /// Whether one of its sessions, or of its handshakes, has this number.
    pub fn is_taken(&self, number: u8) -> bool {
        self.sessions.iter().any(|s| s.number == number)
            || self.initiating.as_ref().is_some_and(|i| i.number == number)
    }

    /// Takes the first message of a handshake that is proven to be the peer's: the answer, and the keys to accept.
    pub fn accept(
        &mut self,
        opened: Opened,
        incarnation: u64,
        now: Duration,
    ) -> Result<(Vec<u8>, Vec<KeyChange>), Refusal> {
        let Opened {
            mut state,
            number,
            incarnation: theirs,
            stamp,
            to_former,
            ..
        } = opened;
        let is_replay = |(incarnation, last)| theirs == incarnation && stamp <= last;
        if is_replay(self.latest) || is_replay(self.proven) || self.former.contains(&theirs) {
            return Err(Refusal::Replayed);
        }
        if self.is_taken(number) {
            return Err(Refusal::Replayed); // It draws another number when it tries again.
        }
        self.latest = (theirs, stamp);
        (self.hasty, self.behind) = (to_former, to_former);
        let mut datagram = header(RESPOND, number, 0).to_vec();
        datagram.resize(RESPOND_LEN, 0);
        state
            .write_message(&payload(incarnation, now), &mut datagram[HEADER..])
            .map_err(|_| Refusal::Malformed)?;
        let session = Session::new(state, number, (theirs, Some(stamp)), now);
        Ok((datagram, self.add(session)))
    }

    /// The other side has shown that it lives, as this incarnation, and which of its handshakes was its own.
    fn prove(&mut self, incarnation: u64, stamp: u64) {
        if self.proven.0 == incarnation {
            self.proven.1 = self.proven.1.max(stamp);
            return;
        }
        let (before, _) = std::mem::replace(&mut self.proven, (incarnation, stamp));
        if before != 0 {
            self.former.truncate(MOST_FORMER - 1);
            self.former.push_front(before);
        }
    }

    fn add(&mut self, session: Session) -> Vec<KeyChange> {
        let mut changes = Vec::new();
        if self.sessions.len() >= MOST_SESSIONS {
            // A handshake of the peer's replaces its one before, if that led to nothing. One of ours does not: where
            // two cross, each side would drop what the other is about to use.
            let sending = self.sending;
            let idle = |s: &Session| Some(s.number) != sending;
            let unconfirmed = self.sessions.iter().position(|s| !s.confirmed);
            let spare = unconfirmed
                .filter(|_| !session.initiator)
                .or_else(|| self.sessions.iter().position(idle))
                .unwrap_or(0);
            let number = self.sessions.remove(spare).number;
            self.sending.take_if(|sending| *sending == number);
            changes.push(KeyChange::Retire(number));
        }
        changes.push(KeyChange::Accept(session.secrets.clone()));
        self.sessions.push(session);
        changes
    }

    /// A message for the peer, sealed. `None`: there is no session yet.
    pub fn seal(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let session = self.sessions.iter_mut().rfind(|s| s.confirmed)?;
        let mut datagram = header(SEALED, session.number, 0).to_vec();
        datagram[8..HEADER].copy_from_slice(&session.counter.to_le_bytes());
        let mut body = message.to_vec();
        let nonce = nonce(session.counter);
        let tag = session
            .send
            .seal_in_place_separate_tag(nonce, Aad::from(&datagram[..]), &mut body)
            .ok()?;
        session.counter += 1;
        datagram.extend_from_slice(&body);
        datagram.extend_from_slice(tag.as_ref());
        Some(datagram)
    }

    /// A sealed datagram's message, if it is the peer's and new.
    pub fn open(&mut self, datagram: &[u8]) -> Result<Vec<u8>, Refusal> {
        let Some((header, body)) = datagram.split_first_chunk::<HEADER>() else {
            return Err(Refusal::Malformed);
        };
        let mut session = self.sessions.iter_mut().filter(|s| s.number == header[6]);
        let session = session.next().ok_or(Refusal::Unauthenticated)?;
        let counter = u64::from_le_bytes(std::array::from_fn(|i| header[8 + i]));
        let mut body = body.to_vec();
        let message = session
            .receive
            .open_in_place(nonce(counter), Aad::from(&header[..]), &mut body)
            .map_err(|_| Refusal::Unauthenticated)?
            .to_vec();
        if counter >= u64::MAX - 64 || !session.window.accept(counter) {
            return Err(Refusal::Replayed);
        }
        session.confirmed = true;
        let (of, stamp) = (session.of, session.stamp);
        // What was on its way under the keys of one before is no word of its life now.
        if !self.former.contains(&of) {
            self.prove(of, stamp);
        }
        Ok(message)
    }

    /// Whether messages can be sealed.
    pub fn is_ready(&self) -> bool {
        self.sessions.iter().any(|s| s.confirmed)
    }

    /// Which session the lanes are to send under, if that is another than before.
    pub fn switch(&mut self, now: Duration) -> Option<KeyChange> {
        let newest = self.sessions.iter().rfind(|s| s.confirmed)?;
        // The lanes of the other side have the keys some time after its control thread has.
        if self.sending.is_some() && now < newest.since + SWITCH_AFTER {
            return None;
        }
        let newest = newest.number;
        (self.sending.replace(newest) != Some(newest)).then_some(KeyChange::Send(newest))
    }

    /// The other side has begun anew, with this incarnation: what it had before it has forgotten.
    pub fn renew(&mut self, incarnation: u64) -> Vec<KeyChange> {
        self.sending = None;
        let old = self.sessions.extract_if(.., |s| s.of != incarnation);
        old.map(|s| KeyChange::Retire(s.number)).collect()
    }

    /// One of both has another key: the next session is begun with it, as soon as the one before is in use.
    pub fn hasten(&mut self) {
        self.initiating = None;
        self.hasty = true;
    }

    /// It is this node that has another key.
    pub fn outdate(&mut self) {
        self.hasten();
        self.behind = !self.sessions.is_empty();
    }

    /// Whether the other side may know this node by its key before alone.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Whether it is time for a new session, of those that are replaced after `rekey`.
    pub fn wants_rekey(&self, rekey: Duration, now: Duration) -> bool {
        self.sessions.iter().rfind(|s| s.confirmed).is_none_or(|s| {
            // Who began begins again; the other one only if that fails.
            let patience = if s.initiator { 0 } else { 15 };
            let age = now.saturating_sub(s.since);
            age >= rekey + Duration::from_secs(patience) || self.hasty && age >= SETTLED_AFTER
        })
    }

    /// Drops sessions that are too old, of those that are replaced after `rekey`.
    pub fn retire(&mut self, rekey: Duration, now: Duration) -> Vec<KeyChange> {
        let mut changes = Vec::new();
        self.sessions.retain(|session| {
            let good = now < session.since + rekey + GRACE;
            if !good {
                // Lanes have no key now: they get the next one at once.
                self.sending.take_if(|sending| *sending == session.number);
                changes.push(KeyChange::Retire(session.number));
            }
            good
        });
        changes
    }

    /// Forgets all keys; handshakes that were seen cannot be replayed all the same.
    pub fn clear(&mut self) -> Vec<KeyChange> {
        self.initiating = None;
        self.sending = None;
        let sessions = self.sessions.drain(..);
        sessions.map(|s| KeyChange::Retire(s.number)).collect()
    }
}

fn payload(incarnation: u64, stamp: Duration) -> [u8; PAYLOAD] {
    let mut payload = [0; PAYLOAD];
    payload[..8].copy_from_slice(&incarnation.to_le_bytes());
    payload[8..].copy_from_slice(&(stamp.as_nanos() as u64).to_le_bytes());
    payload
}

pub(super) fn initiation(
    identity: &Identity,
    header: &[u8; HEADER],
    cookie: &[u8],
    noise: &[u8],
) -> (Vec<u8>, [u8; MAC]) {
    let mut datagram = header.to_vec();
    datagram.extend_from_slice(cookie);
    datagram.extend_from_slice(noise);
    let hash = mac(&identity.gate, &[&datagram]);
    datagram.extend_from_slice(&hash);
    (datagram, hash)
}

/// A handshake's first message whose sender has proven itself.
pub struct Opened {
    state: HandshakeState,
    number: u8,
    /// The sender's incarnation, as it says.
    pub incarnation: u64,
    stamp: u64,
    /// By what it is known; `None`: by the group's key.
    pub key: Option<PublicKey>,
    /// It is meant for the key that this node had before.
    to_former: bool,
}

/// What to do with a handshake's first message.
pub enum Gate {
    /// Answer with this: its sender has yet to show that it receives at its address.
    Cookie(Vec<u8>),
    /// It is good.
    Open(Box<Opened>),
}

/// The first look at handshakes, which remembers nothing of those who have not shown that they are where they say.
pub struct Gatekeeper {
    /// The keys of this node with their gates, that of now first, the one that it had before last.
    node: Vec<(PrivateKey, [u8; KEY_LEN])>,
    has_former: bool,
    group: Option<Identity>,
    /// This secret behind cookies, and the one before.
    secrets: [[u8; KEY_LEN]; 2],
    changed: Duration,
    /// Cookies that were used since this secret is there, and under the one before.
    used: [HashSet<[u8; MAC]>; 2],
    of_peers: Budget,
    of_hosts: Budget,
    hosts: Box<[Budget]>,
    /// Which of them is whose is nobody's choice.
    by_address: RandomState,
}

impl Gatekeeper {
    /// For a node with these keys.
    pub fn new(security: &Security) -> Self {
        let mut new = Self {
            node: Vec::new(),
            has_former: false,
            group: security.group.as_ref().map(Identity::group),
            secrets: [random(), random()],
            changed: Duration::ZERO,
            used: Default::default(),
            of_peers: Budget::default(),
            of_hosts: Budget::default(),
            hosts: vec![Budget::default(); HOSTS].into(),
            by_address: RandomState::new(),
        };
        new.set_keys(security, None);
        new
    }

    /// By which keys peers may know this node: its own, the next one, and the one that it had before.
    pub fn set_keys(&mut self, security: &Security, former: Option<&PrivateKey>) {
        let keys = security.node.iter().chain(&security.next).chain(former);
        let gated = |key: &PrivateKey| (key.clone(), gate_of(&key.public()));
        self.node = keys.map(gated).collect();
        self.has_former = former.is_some();
    }

    fn change_secret(&mut self, now: Duration) {
        let due = self.changed + COOKIE_EVERY;
        if now < due && self.used[0].len() < MOST_USED {
            return;
        }
        let before = match now < due + COOKIE_EVERY {
            true => self.secrets[0],
            false => random(),
        };
        self.changed = now;
        self.secrets = [random(), before];
        self.used.swap(0, 1);
        self.used[0].clear();
    }

    /// Whether one more handshake is looked at, of a peer or of a host that is none.
    fn may_open(&mut self, source: IpAddr, peer: Option<&mut Budget>, now: Duration) -> bool {
        let budgets = match peer {
            Some(peer) => [(peer, OF_A_PEER), (&mut self.of_peers, OF_PEERS)],
            None => {
                let at = self.by_address.hash_one(source) as usize % self.hosts.len();
                [
                    (&mut self.hosts[at], OF_A_HOST),
                    (&mut self.of_hosts, OF_HOSTS),
                ]
            }
        };
        let may = budgets.iter().all(|(budget, most)| budget.has(*most, now));
        if may {
            for (budget, most) in budgets {
                budget.take(most, now);
            }
        }
        may
    }

    /// Looks at a handshake's first message from an address that may be a peer's. `peer`: what the one has that is known
    /// there.
    pub fn look(
        &mut self,
        source: SocketAddr,
        peer: Option<&mut Budget>,
        datagram: &[u8],
        now: Duration,
    ) -> Result<Gate, Refusal> {
        if datagram.len() != INITIATE_LEN {
            return Err(Refusal::Malformed);
        }
        let (hashed, hash) = datagram.split_at(INITIATE_LEN - MAC);
        let kind = datagram[7];
        let meant = |gate: &[u8; KEY_LEN]| same(hash, &mac(gate, &[hashed]));
        let meant_for = match (kind, &self.group) {
            (AS_NODE, _) => self.node.iter().position(|(_, gate)| meant(gate)),
            (AS_GROUP, Some(group)) => meant(&group.gate).then_some(0),
            _ => None,
        };
        let meant_for = meant_for.ok_or(Refusal::Unauthenticated)?;
        let address = source.to_string();
        let (header, rest) = hashed.split_at(HEADER);
        let (cookie, noise) = rest.split_at(MAC);
        self.change_secret(now);
        let of_this = [address.as_bytes(), header, noise];
        let [good, before] = [0, 1].map(|at| mac(&self.secrets[at], &of_this));
        let used = match (same(cookie, &good), same(cookie, &before)) {
            (true, _) => Some(good),
            (_, true) => Some(before),
            _ => None,
        };
        let Some(used) = used else {
            let mut answer = self::header(COOKIE, datagram[6], 0).to_vec();
            answer.extend_from_slice(hash);
            answer.extend_from_slice(&good);
            return Ok(Gate::Cookie(answer));
        };
        if self.used.iter().any(|all| all.contains(&used)) {
            return Err(Refusal::Replayed);
        }
        if !self.may_open(source.ip(), peer, now) {
            return Err(Refusal::TooMany);
        }
        self.used[0].insert(used);
        let node;
        let identity = match (kind, &self.group) {
            (AS_GROUP, Some(group)) => group,
            _ => {
                // Who it is, it says itself; the caller asks whether that one is listed.
                node = Identity::nodes(&self.node[meant_for].0, PublicKey([0; KEY_LEN]));
                &node
            }
        };
        let mut state = identity.begin(header, false);
        let mut payload = [0; PAYLOAD];
        let read = state.read_message(noise, &mut payload);
        let static_key = state
            .get_remote_static()
            .and_then(|key| key.try_into().ok());
        let (Ok(PAYLOAD), Some(key)) = (read, static_key) else {
            return Err(Refusal::Unauthenticated);
        };
        let key = PublicKey(key);
        if kind == AS_GROUP && key != identity.remote {
            return Err(Refusal::Unauthenticated);
        }
        let [incarnation, stamp] =
            [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| payload[at + i])));
        Ok(Gate::Open(Box::new(Opened {
            state,
            number: datagram[6],
            incarnation,
            stamp,
            key: (kind == AS_NODE).then_some(key),
            to_former: kind == AS_NODE && self.has_former && meant_for + 1 == self.node.len(),
        })))
    }
}
