//! The sending end: what is retained for whom, what is sent again and when, who is given up.

use std::collections::VecDeque;

use crate::rtt::RoundTrip;
use crate::{
    Acknowledgement, Announce, Config, Full, Hostile, MAX_GRANT_BYTES, MAX_PEERS, MAX_WINDOW,
    ORIGIN, Refused, SPAN, extend,
};

/// Messages that a peer may be sent before it granted room.
pub const FIRST_GRANT: u64 = 16;
/// And bytes of whole messages.
pub const FIRST_GRANT_BYTES: u64 = 1 << 20;
/// Bytes of repair beyond the share for each timeout: a frame's.
const FLOOR_BYTES: u64 = 1500;
/// Probes to a silent peer, at least, before it is evicted.
const PROBES: i64 = 20;
/// A peer [on trial](Sender::try_peer) that gets no message for so long is evicted.
const TRIAL_NS: i64 = 1_000_000_000;

/// A peer of a [`Sender`]: valid until it is removed or evicted, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(u64);

/// What the sender is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this retained message again, to this peer.
    Repair(PeerId, u32),
    /// Say this to this peer.
    Announce(PeerId, Announce),
    /// The peer is gone, without the messages from this one on: [`Config::silence_ns`] or [`Config::stall_ns`] is over.
    Evicted(PeerId, u32),
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages emitted, and their bytes.
    pub emitted: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Messages sent again.
    pub repaired: u64,
    /// Bytes of them.
    pub repaired_bytes: u64,
    /// Announcements.
    pub announced: u64,
    /// Messages, for each peer that did not acknowledge them, whose deadline passed.
    pub given_up: u64,
    /// Messages, for each peer that they could not be [sent to](Sender::give_up).
    pub withheld: u64,
    /// Messages, for each peer that did not acknowledge them, that newer ones took the place of.
    pub superseded: u64,
    /// Messages, for each peer that did not acknowledge them, that was evicted or removed.
    pub abandoned: u64,
    /// Peers evicted.
    pub evicted: u64,
    /// Acknowledgements refused.
    pub refused: u64,
}

/// Whole messages, and bytes that receivers need for them.
#[derive(Clone, Copy, Debug, Default)]
struct Begun {
    messages: u64,
    bytes: u64,
}

impl Begun {
    fn and(self, messages: u64, bytes: u64) -> Self {
        Self {
            messages: self.messages + messages,
            bytes: self.bytes + bytes,
        }
    }

    /// As much as either.
    fn or(self, other: Self) -> Self {
        Self {
            messages: self.messages.max(other.messages),
            bytes: self.bytes.max(other.bytes),
        }
    }
}

/// What an `emit` needs of each peer.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    /// Room for what is begun then,
    then: Begun,
    /// or to have, or do without, all before this: what is on its way to it is less than all it may be sent by trying.
    unless: u64,
}

#[derive(Clone, Copy, Debug)]
struct Retained {
    bytes: u64,
    /// What was begun before it.
    begun: Begun,
    /// When it left, or is to leave.
    emitted_ns: i64,
    /// What its deadline counts from.
    since_ns: i64,
}

#[derive(Debug)]
struct Peer {
    id: PeerId,
    /// It has, or does without, all before it.
    next: u64,
    /// It said that it knows: `next`, or what is before it.
    acknowledged: u64,
    limit: u64,
    /// It has granted room for what is begun up to there.
    granted: Begun,
    /// It has answered.
    greeted: bool,
    /// It has got nothing yet, and has got nothing before.
    trial: bool,
    /// Of the last acknowledgement: what `here` counts from, how far it goes, and what is missing.
    base: u64,
    span: u32,
    missing: [u64; SPAN as usize / 64],
    /// What it is never sent, of what it has not acknowledged: a bit each, by sequence modulo [`MAX_WINDOW`], and how many.
    withheld: [u64; MAX_WINDOW as usize / 64],
    withheld_count: u32,
    /// When the message was last repaired, by sequence modulo [`SPAN`]; what was there before is only older.
    repaired_ns: Vec<i64>,
    /// Bytes of repair that the flow has earned for it, times 100.
    earned: u64,
    /// The newest of what was sent to it again: when that was sent first.
    again_ns: i64,
    /// The last repair beyond the share: when, of how many bytes, and how many since the peer got on.
    floored_ns: i64,
    floored_bytes: u64,
    floored: u32,
    /// The last repair was one of those.
    beyond_share: bool,
    round_trip: RoundTrip,
    probe_ns: i64,
    backoff: u32,
    /// The sequence after the last message that it was asked about by a tail probe.
    tailed: u64,
    /// The round trip that it was told.
    told_ns: i64,
    /// It said something, or began to owe an answer.
    heard_ns: i64,
    progress_ns: i64,
    /// What it owes counts from there, if it was heard before: when the first message that it owed an answer to leaves. Only
    /// what it says moves that on, not what is given up meanwhile.
    owed_ns: i64,
}

/// The sending end of one source.
#[derive(Debug)]
pub struct Sender {
    config: Config,
    window: VecDeque<Retained>,
    /// Sequence of the first that is retained.
    oldest: u64,
    bytes: u64,
    /// All that was begun so far, and the first part of the last of it.
    begun: Begun,
    last_begun: u64,
    /// An `emit` was refused for want of credit.
    wanted: Option<Wanted>,
    /// The earliest instant at which somebody is to be asked who has begun to owe an answer.
    begun_ns: i64,
    /// The latest instant at which a message leaves.
    latest_ns: i64,
    peers: Vec<Peer>,
    peers_ever: u64,
    /// The peer whose turn it is.
    turn: usize,
    counters: Counters,
}

impl Sender {
    /// A source's sending end.
    ///
    /// # Errors
    /// [`Refused`], for the configuration.
    pub fn new(config: Config) -> Result<Self, Refused> {
        config.check()?;
        Ok(Self {
            config,
            // Grows to what is in flight: a source that sends little costs little.
            window: VecDeque::new(),
            oldest: ORIGIN,
            bytes: 0,
            begun: Begun::default(),
            last_begun: ORIGIN,
            wanted: None,
            begun_ns: i64::MAX,
            latest_ns: i64::MIN,
            peers: Vec::new(),
            peers_ever: 0,
            turn: 0,
            counters: Counters::default(),
        })
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How long after it was emitted a message is of use. `None`: always.
    pub fn deadline_ns(&self) -> Option<i64> {
        self.config.policy.deadline()
    }

    /// Messages retained.
    pub fn retained(&self) -> u32 {
        self.window.len() as u32
    }

    /// Messages before it are retained no more: their memory is free.
    pub fn oldest(&self) -> u32 {
        self.oldest as u32
    }

    /// The sequence that the next message gets.
    pub fn next(&self) -> u32 {
        self.end() as u32
    }

    /// Peers.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// A peer that is promised every message from now on. It is announced to with the next [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`Refused::Peers`].
    pub fn add_peer(&mut self, now_ns: i64) -> Result<PeerId, Refused> {
        if self.peers.len() == MAX_PEERS {
            return Err(Refused::Peers);
        }
        let id = PeerId(self.peers_ever);
        self.peers_ever += 1;
        let next = self.end();
        let Config {
            least_timeout_ns,
            first_timeout_ns,
            most_timeout_ns,
            ..
        } = self.config;
        self.peers.push(Peer {
            id,
            next,
            acknowledged: next,
            limit: next + FIRST_GRANT,
            granted: self.begun.and(FIRST_GRANT, FIRST_GRANT_BYTES),
            greeted: false,
            trial: false,
            base: next,
            span: 0,
            missing: [0; SPAN as usize / 64],
            withheld: [0; MAX_WINDOW as usize / 64],
            withheld_count: 0,
            repaired_ns: vec![i64::MIN; SPAN as usize],
            earned: 0,
            again_ns: i64::MIN,
            floored_ns: i64::MIN,
            floored_bytes: 0,
            floored: 0,
            beyond_share: false,
            round_trip: RoundTrip::new(least_timeout_ns, first_timeout_ns, most_timeout_ns),
            probe_ns: now_ns,
            backoff: 0,
            tailed: next,
            told_ns: 0,
            heard_ns: now_ns,
            progress_ns: now_ns,
            owed_ns: i64::MIN,
        });
        Ok(id)
    }

    /// As [`add_peer`](Self::add_peer), of one that was evicted because it made no progress: unless [`Config::stall_ns`] is `None` it has
    /// a second at most to acknowledge a first message. What gets there is only known by trying, and the others wait for it meanwhile.
    ///
    /// # Errors
    /// [`Refused::Peers`].
    pub fn try_peer(&mut self, now_ns: i64) -> Result<PeerId, Refused> {
        let id = self.add_peer(now_ns)?;
        if let Some(peer) = self.peers.last_mut() {
            peer.trial = true;
        }
        Ok(id)
    }

    /// The peer has no sinks any more, or is gone. False: it was none.
    pub fn remove_peer(&mut self, peer: PeerId) -> bool {
        let Some(at) = self.peers.iter().position(|known| known.id == peer) else {
            return false;
        };
        self.remove(at);
        true
    }

    /// Whether so many bytes can be emitted, if they begin no message that its peers have no room for.
    ///
    /// # Errors
    /// [`Full`].
    pub fn room(&self, bytes: u64) -> Result<(), Full> {
        self.room_to_begin(bytes, None)
    }

    fn wanting(&self, begins: Option<u64>) -> Wanted {
        match begins {
            Some(needed) => Wanted {
                then: self.begun.and(1, needed),
                unless: self.end(),
            },
            // Of a message that was begun by trying the first part alone.
            None => Wanted {
                then: self.begun,
                unless: self.last_begun + 1,
            },
        }
    }

    fn room_to_begin(&self, bytes: u64, begins: Option<u64>) -> Result<(), Full> {
        if bytes > self.config.bytes {
            return Err(Full::TooLong(bytes));
        }
        if self.retained() == self.config.messages || self.bytes + bytes > self.config.bytes {
            return Err(Full::Window);
        }
        let end = self.end();
        let wanted = self.wanting(begins);
        if self.peers.iter().any(|peer| peer.is_short(end, wanted)) {
            return Err(Full::Credit);
        }
        Ok(())
    }

    /// A message of so many bytes is sent to every peer now. Its sequence; it is retained until [`oldest`](Self::oldest)
    /// passes it.
    ///
    /// # Errors
    /// [`Full`]; nothing is to be sent then.
    pub fn emit(&mut self, now_ns: i64, bytes: u64) -> Result<u32, Full> {
        self.emit_at(now_ns, bytes, now_ns, now_ns)
    }

    /// The same of a message that leaves at an instant, which may be later: before that no peer can lack it, and what is
    /// counted from when it was sent is counted from there. Its deadline counts from `since_ns`, which may have passed.
    ///
    /// # Errors
    /// [`Full`]; nothing is to be sent then.
    pub fn emit_at(
        &mut self,
        now_ns: i64,
        bytes: u64,
        leaves_ns: i64,
        since_ns: i64,
    ) -> Result<u32, Full> {
        self.emit_part(now_ns, bytes, leaves_ns, since_ns, Some(bytes))
    }

    /// The same of a part of a message, which is numbered for itself. The first one `begins` it: receivers need so many
    /// bytes for the whole.
    ///
    /// # Errors
    /// [`Full`]; nothing is to be sent then.
    pub fn emit_part(
        &mut self,
        now_ns: i64,
        bytes: u64,
        leaves_ns: i64,
        since_ns: i64,
        begins: Option<u64>,
    ) -> Result<u32, Full> {
        if let Err(full) = self.room_to_begin(bytes, begins) {
            if full == Full::Credit && self.wanted.is_none() {
                self.wanted = Some(self.wanting(begins));
                self.begin(now_ns, now_ns);
            }
            return Err(full);
        }
        self.wanted = None;
        let sequence = self.end();
        let leaves_ns = leaves_ns.max(now_ns);
        self.begin(now_ns, leaves_ns);
        self.latest_ns = self.latest_ns.max(leaves_ns);
        self.window.push_back(Retained {
            bytes,
            begun: self.begun,
            emitted_ns: leaves_ns,
            since_ns,
        });
        self.bytes += bytes;
        if let Some(needed) = begins {
            (self.begun, self.last_begun) = (self.begun.and(1, needed), sequence);
        }
        // Earned up to a window's worth: a burst of losses after a long time without any is no storm.
        let most = self
            .config
            .bytes
            .saturating_mul(u64::from(self.config.repair_percent));
        let earned = bytes.saturating_mul(u64::from(self.config.repair_percent));
        for peer in &mut self.peers {
            peer.earned = peer.earned.saturating_add(earned).min(most);
        }
        self.counters.emitted += 1;
        self.counters.bytes += bytes;
        self.release();
        Ok(sequence as u32)
    }

    /// What is emitted from now on takes the place of everything before it, which nobody repairs or waits for any more: for
    /// [`Policy::Latest`]. There is room for [`FIRST_GRANT`] messages then, whatever was acknowledged. Peers learn it by
    /// the messages themselves, or by the announcement that follows if those are lost.
    pub fn supersede(&mut self) {
        let end = self.end();
        for peer in &mut self.peers {
            if peer.next < end {
                self.counters.superseded += peer.missing_before(end);
                peer.pass(end, end);
            }
            peer.limit = peer.limit.max(end + FIRST_GRANT);
            let first = self.begun.and(FIRST_GRANT, FIRST_GRANT_BYTES);
            peer.granted = peer.granted.or(first);
        }
        self.release();
    }

    /// A retained message is not sent to this peer, now or later: whatever carries it has refused it for good. The peer goes
    /// on without it: it learns so by an announcement as soon as it has all before it, and nothing else is held up. False:
    /// it has the message, or does without it already.
    pub fn give_up(&mut self, now_ns: i64, peer: PeerId, sequence: u32) -> bool {
        let end = self.end();
        let Some(peer) = self.peers.iter_mut().find(|known| known.id == peer) else {
            return false;
        };
        let sequence = extend(peer.next, sequence);
        if !(peer.next..end).contains(&sequence) || !peer.withhold(sequence) {
            return false;
        }
        self.counters.withheld += 1;
        if peer.pass(peer.next, end) {
            (peer.probe_ns, peer.backoff) = (now_ns, 0);
            // It owes an answer to that, whenever the message was to leave.
            peer.owed_ns = peer.owed_ns.min(now_ns);
            self.begun_ns = self.begun_ns.min(now_ns);
        }
        self.release();
        true
    }

    /// What was last to be announced to this peer could not be sent: it is due again at this instant, and counts as if it had
    /// not been tried.
    pub fn remind(&mut self, peer: PeerId, at_ns: i64) {
        if let Some(peer) = self.peers.iter_mut().find(|known| known.id == peer) {
            peer.probe_ns = peer.probe_ns.min(at_ns);
            peer.backoff = peer.backoff.saturating_sub(1);
            self.counters.announced = self.counters.announced.saturating_sub(1);
        }
    }

    /// The message that was last to be repaired for this peer leaves at an instant, not now: until then it is not missing.
    pub fn repair_leaves(&mut self, peer: PeerId, sequence: u32, at_ns: i64) {
        if let Some(peer) = self.peers.iter_mut().find(|known| known.id == peer) {
            let sequence = extend(peer.next, sequence);
            peer.repaired_ns[(sequence % u64::from(SPAN)) as usize] = at_ns;
        }
    }

    /// The message that was last to be repaired for this peer could not be sent: it is to be repaired at this instant, and
    /// counts as if it had not been tried.
    pub fn postpone(&mut self, peer: PeerId, sequence: u32, until_ns: i64) {
        let oldest = self.oldest;
        let Some(peer) = self.peers.iter_mut().find(|known| known.id == peer) else {
            return;
        };
        let sequence = extend(peer.next, sequence);
        let message = sequence.checked_sub(oldest);
        let Some(message) = message.and_then(|at| self.window.get(at as usize)) else {
            return;
        };
        if peer.beyond_share {
            peer.floored_ns = i64::MIN;
            peer.floored = peer.floored.saturating_sub(1);
        } else {
            peer.earned = peer
                .earned
                .saturating_add(message.bytes.saturating_mul(100));
        }
        let timeout = peer.round_trip.timeout(0);
        peer.repaired_ns[(sequence % u64::from(SPAN)) as usize] = until_ns.saturating_sub(timeout);
        self.counters.repaired -= 1;
        self.counters.repaired_bytes -= message.bytes;
    }

    /// A peer's acknowledgement.
    ///
    /// # Errors
    /// [`Hostile`]; nothing is changed then.
    pub fn acknowledge(
        &mut self,
        now_ns: i64,
        from: PeerId,
        said: &Acknowledgement,
    ) -> Result<(), Hostile> {
        let (end, wanted) = (self.end(), self.wanted);
        let (window, oldest, begun) = (&self.window, self.oldest, self.begun);
        let known = self.peers.iter_mut().find(|peer| peer.id == from);
        let checked = known.ok_or(Hostile::Unknown).and_then(|peer| {
            let next = extend(peer.next, said.next);
            let granted = said.limit.wrapping_sub(said.next);
            if next > end || next + u64::from(said.span) > end {
                return Err(Hostile::NotEmitted(said.next.wrapping_add(said.span)));
            }
            if said.span > SPAN {
                return Err(Hostile::Span(said.span));
            }
            if granted > MAX_WINDOW {
                return Err(Hostile::Grant(granted));
            }
            if said.messages > MAX_WINDOW {
                return Err(Hostile::Messages(said.messages));
            }
            if said.bytes > MAX_GRANT_BYTES {
                return Err(Hostile::Bytes(said.bytes));
            }
            Ok((peer, next, next + u64::from(granted)))
        });
        let (peer, next, limit) = match checked {
            Ok(checked) => checked,
            Err(hostile) => {
                self.counters.refused += 1;
                return Err(hostile);
            }
        };
        peer.heard_ns = now_ns;
        // What was sent again has its first stamp: Karn's rule (RFC 6298, section 3). What is newer was sent once.
        if said.stamp_ns > peer.again_ns {
            peer.round_trip.sample(now_ns, said.stamp_ns, said.held_ns);
        }
        // Overtaken by a newer one: what it says has changed since.
        if next < peer.acknowledged {
            return Ok(());
        }
        // Room is progress only where nothing else is waited for: who grants and takes nothing gets no more time by it.
        let roomier = limit > peer.limit && peer.limit <= end && next == end;
        let gets_on = !peer.greeted || next > peer.acknowledged || roomier;
        if gets_on {
            peer.progress_ns = now_ns;
            (peer.backoff, peer.floored) = (0, 0);
        }
        let first = !std::mem::replace(&mut peer.greeted, true);
        peer.trial &= next <= peer.acknowledged;
        // Grants are never taken back.
        peer.limit = peer.limit.max(limit);
        // What it counts from is known while it is retained: what was given up since it says again without.
        if let Some(at) = next.checked_sub(oldest) {
            let before = window.get(at as usize).map_or(begun, |next| next.begun);
            let room = before.and(said.messages.into(), said.bytes.into());
            // What it was allowed before it said anything was a guess.
            peer.granted = if first { room } else { peer.granted.or(room) };
        }
        let skips = peer.pass(next, end);
        if gets_on {
            // Who does not know yet what it is to do without owes an answer now.
            let owed = (peer.next == next).then(|| window.get((next - oldest) as usize));
            peer.owed_ns = owed.flatten().map_or(i64::MIN, |first| first.emitted_ns);
        }
        let mut span = said.span;
        if self.latest_ns > now_ns {
            // It cannot lack what has not left; what is behind that waits for it.
            let waits = |at: &u32| {
                let message = (next + u64::from(*at)).checked_sub(oldest);
                let message = message.and_then(|at| window.get(at as usize));
                message.is_some_and(|message| message.emitted_ns > now_ns)
            };
            span = (0..span).find(waits).unwrap_or(span);
        }
        (peer.acknowledged, peer.base, peer.span) = (next, next, span);
        for (at, (missing, here)) in peer.missing.iter_mut().zip(said.here).enumerate() {
            let told = span.saturating_sub(64 * at as u32).min(64);
            *missing = !here & u64::MAX.checked_shr(64 - told).unwrap_or(0);
        }
        let (due_ns, silence_ns) = (peer.probe_ns, self.config.silence_ns);
        peer.probe_after(now_ns, end, wanted, silence_ns);
        if !gets_on && peer.owes(end, wanted) {
            // Who says again and again that it does not get on may lack what it was asked: that is not put off.
            peer.probe_ns = peer.probe_ns.min(due_ns);
        }
        if skips {
            // What is behind it waits at the receiver.
            peer.probe_ns = now_ns;
        }
        self.release();
        Ok(())
    }

    /// What is to be done now; ask until `None`. Each call looks at every peer once at most.
    pub fn poll(&mut self, now_ns: i64) -> Option<Action> {
        self.expire(now_ns);
        for _ in 0..self.peers.len() {
            let at = self.turn % self.peers.len();
            self.turn = at + 1;
            let action = self
                .evict(at, now_ns)
                .or_else(|| self.probe(at, now_ns))
                .or_else(|| self.probe_tail(at, now_ns))
                .or_else(|| self.repair(at, now_ns));
            if action.is_some() {
                return action;
            }
        }
        None
    }

    /// When to [`poll`](Self::poll) again, if nothing else happens.
    pub fn wake_ns(&self, now_ns: i64) -> Option<i64> {
        let expiry = self
            .window
            .front()
            .and_then(|first| self.expiry_ns(first, self.way_back_ns()));
        let peers = self.peers.iter().filter_map(|peer| {
            if !peer.owes(self.end(), self.wanted) {
                return (peer.probe_ns < i64::MAX).then_some(peer.probe_ns);
            }
            let silence = peer.heard_ns.max(peer.owed_ns) + self.config.silence_ns;
            let stall = self
                .stall_ns(peer)
                .map_or(i64::MAX, |ns| peer.progress_ns.max(peer.owed_ns) + ns);
            let repairs = peer
                .wanting()
                .map(|sequence| self.repair_ns(peer, sequence).max(now_ns));
            let in_time = repairs
                .zip(peer.wanting())
                .filter(|(at, sequence)| self.in_time(peer, *sequence, *at));
            let repair = in_time.map(|(at, _)| at).min().unwrap_or(i64::MAX);
            let probe = peer.probe_ns.min(self.tail_ns(peer));
            Some(probe.min(silence).min(stall).min(repair))
        });
        peers.chain(expiry).min()
    }

    /// When to [`poll`](Self::poll) because of what was emitted since the last call, at the latest: cheaper than
    /// [`wake_ns`](Self::wake_ns), which is to be asked after everything else. `i64::MAX`: not because of that.
    pub fn take_begun_ns(&mut self) -> i64 {
        std::mem::replace(&mut self.begun_ns, i64::MAX)
    }

    /// Whether a peer has said anything so far.
    pub fn has_answered(&self, peer: PeerId) -> bool {
        let peer = self.peers.iter().find(|known| known.id == peer);
        peer.is_some_and(|peer| peer.greeted)
    }

    /// What a peer has acknowledged: all before this message.
    pub fn acknowledged(&self, peer: PeerId) -> Option<u32> {
        let peer = self.peers.iter().find(|known| known.id == peer)?;
        Some(peer.next as u32)
    }

    /// Peers that have all so far begin to owe an answer to what leaves at an instant.
    fn begin(&mut self, now_ns: i64, leaves_ns: i64) {
        let end = self.end();
        for peer in self
            .peers
            .iter_mut()
            .filter(|peer| peer.greeted && peer.acknowledged == end)
        {
            (peer.heard_ns, peer.progress_ns, peer.backoff) = (now_ns, now_ns, 0);
            peer.owed_ns = leaves_ns;
            // Not instead of its first announcement.
            if peer.probe_ns > now_ns {
                peer.probe_ns = leaves_ns + peer.round_trip.timeout(0);
            }
            let tail_ns = leaves_ns + peer.round_trip.tail();
            self.begun_ns = self.begun_ns.min(peer.probe_ns).min(tail_ns);
        }
    }

    fn end(&self) -> u64 {
        self.oldest + self.window.len() as u64
    }

    /// The slowest peer's round trip: so long after the deadline, what arrived in time is acknowledged.
    fn way_back_ns(&self) -> i64 {
        let slowest = self
            .peers
            .iter()
            .filter_map(|peer| peer.round_trip.smoothed())
            .max();
        let way = slowest.unwrap_or(self.config.first_timeout_ns);
        // It is the peers' word: one that lies delays the others by a bounded time.
        way.min(self.config.most_timeout_ns)
    }

    /// When a message is given up.
    fn expiry_ns(&self, message: &Retained, way_back_ns: i64) -> Option<i64> {
        Some(message.since_ns + self.deadline_ns()? + way_back_ns)
    }

    fn expire(&mut self, now_ns: i64) {
        let way_back = self.way_back_ns();
        let mut gone = 0;
        while let Some(message) = self.window.get(gone as usize)
            && self
                .expiry_ns(message, way_back)
                .is_some_and(|at| at <= now_ns)
        {
            gone += 1;
        }
        if gone == 0 {
            return;
        }
        let (oldest, end) = (self.oldest + gone, self.end());
        for peer in self.peers.iter_mut().filter(|peer| peer.next < oldest) {
            let late = peer.missing_before(oldest);
            self.counters.given_up += late;
            peer.pass(oldest, end);
            // Told at once: what is behind it waits at the receiver.
            (peer.probe_ns, peer.backoff) = (now_ns, 0);
        }
        self.release();
    }

    fn evict(&mut self, at: usize, now_ns: i64) -> Option<Action> {
        let peer = &self.peers[at];
        let silent = now_ns - peer.heard_ns.max(peer.owed_ns) >= self.config.silence_ns;
        let stalled = self
            .stall_ns(peer)
            .is_some_and(|ns| now_ns - peer.progress_ns.max(peer.owed_ns) >= ns);
        if !(peer.owes(self.end(), self.wanted) && (silent || stalled)) {
            return None;
        }
        let (id, next) = (peer.id, peer.next as u32);
        self.counters.evicted += 1;
        self.remove(at);
        Some(Action::Evicted(id, next))
    }

    /// How long a peer may make no progress.
    fn stall_ns(&self, peer: &Peer) -> Option<i64> {
        let usual = self.config.stall_ns;
        usual.map(|ns| if peer.trial { ns.min(TRIAL_NS) } else { ns })
    }

    fn remove(&mut self, at: usize) {
        let peer = self.peers.swap_remove(at);
        self.counters.abandoned += peer.missing_before(self.end());
        self.release();
    }

    fn probe(&mut self, at: usize, now_ns: i64) -> Option<Action> {
        let (end, wanted) = (self.end(), self.wanted);
        let silence_ns = self.config.silence_ns;
        let peer = &mut self.peers[at];
        if peer.probe_ns > now_ns {
            return None;
        }
        peer.probe_after(now_ns, end, wanted, silence_ns);
        peer.backoff += 1;
        Some(self.announce(at, now_ns))
    }

    fn announce(&mut self, at: usize, now_ns: i64) -> Action {
        let (end, oldest) = (self.end(), self.oldest);
        let peer = &mut self.peers[at];
        peer.told_ns = peer.round_trip.smoothed().unwrap_or(0);
        self.counters.announced += 1;
        let announce = Announce {
            oldest: peer.next.max(oldest) as u32,
            next: end as u32,
            round_trip_ns: peer.told_ns,
            stamp_ns: now_ns,
        };
        Action::Announce(peer.id, announce)
    }

    /// When a peer should have acknowledged the last message, which none has followed, on a path that is faster than the
    /// least timeout.
    fn tail_ns(&self, peer: &Peer) -> i64 {
        let end = self.end();
        if !peer.greeted || peer.acknowledged >= end || peer.tailed >= end {
            return i64::MAX;
        }
        self.latest_ns.max(peer.heard_ns) + peer.round_trip.tail()
    }

    /// The last message is sent again (RFC 8985, section 7.3): if it was lost, or others before it, that is known a round trip
    /// sooner than by an announcement. Once, as part of the share, and only if it is a frame.
    fn probe_tail(&mut self, at: usize, now_ns: i64) -> Option<Action> {
        if self.tail_ns(&self.peers[at]) > now_ns {
            return None;
        }
        let last = self.end() - 1;
        let peer = &self.peers[at];
        // Given up, or done without: there is only something to say.
        let bytes = self.window.back().map_or(u64::MAX, |last| last.bytes);
        let measured = peer.round_trip.smoothed().unwrap_or(0);
        let repeats = peer.next <= last
            && !peer.is_withheld(last)
            && bytes <= FLOOR_BYTES
            && peer.earned >= bytes.saturating_mul(100)
            // It paces its acknowledgements by it.
            && (measured / 2..=2 * measured).contains(&peer.told_ns)
            && self.in_time(peer, last, now_ns);
        self.peers[at].tailed = last + 1;
        Some(match repeats {
            true => self.send_again(at, last, now_ns),
            false => self.announce(at, now_ns),
        })
    }

    /// When this message, which is missing, may be repaired for this peer.
    fn repair_ns(&self, peer: &Peer, sequence: u64) -> i64 {
        let message = self.window[(sequence - self.oldest) as usize];
        let timeout = peer.round_trip.timeout(0);
        let sent = peer.repaired_ns[(sequence % u64::from(SPAN)) as usize];
        // The first time as soon as the peer could have missed it, then once in a timeout.
        let again = sent.saturating_add(timeout);
        let first = message.emitted_ns + peer.round_trip.smoothed().unwrap_or(0);
        let paced = peer.earned >= message.bytes.saturating_mul(100);
        let allowed = match paced {
            true => i64::MIN,
            // What the others wait for, alone: the peer gets on by nothing else.
            false if peer.wanting().next() != Some(sequence) => i64::MAX,
            false => self.floor_ns(peer),
        };
        first.max(again).max(allowed)
    }

    /// When a repair beyond the share is allowed: a frame's bytes in a timeout, less while the peer does not get on, so
    /// that neither long messages nor a peer that always asks make it a flow of its own.
    fn floor_ns(&self, peer: &Peer) -> i64 {
        let frames = peer.floored_bytes.div_ceil(FLOOR_BYTES).max(1);
        let apart = peer
            .round_trip
            .timeout(peer.floored.saturating_sub(1))
            .saturating_mul(i64::try_from(frames).unwrap_or(i64::MAX))
            .min(self.config.most_timeout_ns);
        peer.floored_ns.saturating_add(apart)
    }

    /// Whether a repair at this instant arrives within the deadline.
    fn in_time(&self, peer: &Peer, sequence: u64, at_ns: i64) -> bool {
        let way = peer.round_trip.smoothed().unwrap_or(0) / 2;
        let since = self.window[(sequence - self.oldest) as usize].since_ns;
        let deadline = self.deadline_ns();
        deadline.is_none_or(|deadline| at_ns.saturating_add(way) <= since + deadline)
    }

    fn repair(&mut self, at: usize, now_ns: i64) -> Option<Action> {
        let peer = &self.peers[at];
        let sequence = peer.wanting().find(|&sequence| {
            self.repair_ns(peer, sequence) <= now_ns && self.in_time(peer, sequence, now_ns)
        })?;
        Some(self.send_again(at, sequence, now_ns))
    }

    fn send_again(&mut self, at: usize, sequence: u64, now_ns: i64) -> Action {
        let Retained {
            bytes, emitted_ns, ..
        } = self.window[(sequence - self.oldest) as usize];
        let cost = bytes.saturating_mul(100);
        let peer = &mut self.peers[at];
        peer.beyond_share = peer.earned < cost;
        if !peer.beyond_share {
            peer.earned -= cost;
        } else {
            (peer.floored_ns, peer.floored_bytes) = (now_ns, bytes);
            peer.floored = peer.floored.saturating_add(1);
        }
        peer.repaired_ns[(sequence % u64::from(SPAN)) as usize] = now_ns;
        peer.again_ns = peer.again_ns.max(emitted_ns);
        self.counters.repaired += 1;
        self.counters.repaired_bytes += bytes;
        Action::Repair(peer.id, sequence as u32)
    }

    /// Lets go of what every peer has.
    fn release(&mut self) {
        let to = self
            .peers
            .iter()
            .map(|peer| peer.next)
            .min()
            .unwrap_or(u64::MAX);
        while self.oldest < to
            && let Some(message) = self.window.pop_front()
        {
            self.bytes -= message.bytes;
            self.oldest += 1;
        }
    }
}

/// Where it is noted that a peer is not sent a message.
fn withheld_bit(sequence: u64) -> (usize, u64) {
    let at = sequence % u64::from(MAX_WINDOW);
    ((at / 64) as usize, 1 << (at % 64))
}

impl Peer {
    fn is_withheld(&self, sequence: u64) -> bool {
        let (word, bit) = withheld_bit(sequence);
        self.withheld_count > 0 && self.withheld[word] & bit != 0
    }

    /// It is not sent this message. False: that is known.
    fn withhold(&mut self, sequence: u64) -> bool {
        let (word, bit) = withheld_bit(sequence);
        if self.withheld[word] & bit != 0 {
            return false;
        }
        self.withheld[word] |= bit;
        self.withheld_count += 1;
        true
    }

    /// It has, or does without, all before `to`, and what is not sent from there on. True if there is any of that.
    fn pass(&mut self, to: u64, end: u64) -> bool {
        let to = self.next.max(to);
        let mut skips = false;
        while self.withheld_count > 0 && self.next < end {
            let (word, bit) = withheld_bit(self.next);
            let withheld = self.withheld[word] & bit != 0;
            if !withheld && self.next >= to {
                break;
            }
            self.withheld[word] &= !bit;
            self.withheld_count -= u32::from(withheld);
            skips |= self.next >= to;
            self.next += 1;
        }
        self.next = self.next.max(to);
        skips
    }

    /// When to ask it next: seldom, but often while it is silent, so that many answers have to get lost until it is evicted.
    fn probe_after(&mut self, now_ns: i64, end: u64, wanted: Option<Wanted>, silence_ns: i64) {
        self.probe_ns = if !self.owes(end, wanted) {
            i64::MAX
        } else if self.greeted && self.owed_ns > now_ns && !self.lets_wait(end, wanted) {
            self.backoff = 0;
            self.owed_ns + self.round_trip.timeout(0)
        } else {
            let often = (silence_ns / PROBES).max(self.round_trip.timeout(0));
            now_ns + self.round_trip.timeout(self.backoff).min(often)
        };
    }

    fn owes(&self, end: u64, wanted: Option<Wanted>) -> bool {
        !self.greeted || self.acknowledged < end || self.lets_wait(end, wanted)
    }

    fn lets_wait(&self, end: u64, wanted: Option<Wanted>) -> bool {
        wanted.is_some_and(|wanted| self.is_short(end, wanted))
    }

    /// Whether it has granted no room for that. Who has all is sent the first part of one message more, whatever it takes.
    fn is_short(&self, end: u64, wanted: Wanted) -> bool {
        let Begun { messages, bytes } = self.granted;
        let over = messages < wanted.then.messages || bytes < wanted.then.bytes;
        self.limit <= end || (over && self.next < wanted.unless)
    }

    /// Missing messages of the last acknowledgement, in order.
    fn wanting(&self) -> impl Iterator<Item = u64> + '_ {
        let (base, next) = (self.base, self.next);
        let words = self.missing.iter().zip((base..).step_by(64));
        let told = words.flat_map(|(&word, from)| {
            let left = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            left.take_while(|word| *word != 0)
                .map(move |word| from + u64::from(word.trailing_zeros()))
        });
        told.filter(move |sequence| *sequence >= next && !self.is_withheld(*sequence))
    }

    /// How many before `end` it has not acknowledged, of those that it is sent; it said that the others are there.
    fn missing_before(&self, end: u64) -> u64 {
        let told = (self.base + u64::from(self.span)).max(self.next);
        let wanting = self.wanting().filter(|sequence| *sequence < end).count() as u64;
        let untold = (told..end).filter(|sequence| !self.is_withheld(*sequence));
        wanting + untold.count() as u64
    }
}
