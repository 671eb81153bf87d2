//! The receiving end: what is here, what is missing, what may be delivered.

use crate::{
    Acknowledgement, Announce, Hostile, MAX_GRANT_BYTES, MAX_WINDOW, ORIGIN, Refused, SPAN, extend,
};

/// The pace of acknowledgements before the sender says what it measured, and its bounds.
const FIRST_PACE_NS: i64 = 1_000_000;
const LEAST_PACE_NS: i64 = 20_000;
const MOST_PACE_NS: i64 = 100_000_000;
/// On a path whose round trip is shorter, what came is acknowledged so long after the sender sent it, not after a pace: an
/// acknowledgement costs as much as a message, and nobody waits for it before the sender's least timeout
/// ([`Config::least_timeout_ns`](crate::Config::least_timeout_ns)). Sooner when nothing has come for [`QUIET`] round trips:
/// the sender may then wonder whether its last message arrived.
const LAZY_NS: i64 = 160_000;
/// Round trips without a message after which what came is acknowledged: more than one, so that who waits for a reply before
/// it sends again is acknowledged as seldom as who sends all the time.
pub(crate) const QUIET: i64 = 2;
/// Doublings of the pace while nothing that is missing comes.
const MOST_BACKOFF: u32 = 8;

/// What to do with a message that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Keep it until [`Receiver::deliver`] gives its number.
    Keep,
    /// It was here already, or was given up: drop it.
    Repeated,
    /// No announcement was heard yet: drop it, it will be repaired.
    Early,
    /// Beyond what was granted: drop it.
    Beyond,
}

/// What comes next for the sinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// This message.
    Message(u32),
    /// So many messages that the sender has given up.
    Lost(u64),
}

/// What sinks have room for, behind what is kept or delivered without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Of what is numbered.
    pub window: u32,
    /// Whole messages, of those that begin there or later.
    pub messages: u32,
    /// Bytes of them.
    pub bytes: u64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages delivered.
    pub delivered: u64,
    /// Messages that will never come.
    pub lost: u64,
    /// Came again.
    pub repeated: u64,
    /// Came before the first announcement.
    pub early: u64,
    /// Came beyond the grant.
    pub beyond: u64,
    /// Acknowledgements made.
    pub acknowledgements: u64,
    /// Announcements refused.
    pub refused: u64,
}

/// The receiving end of one source.
#[derive(Debug)]
pub struct Receiver {
    window: u32,
    /// Bit per sequence modulo the window: kept, not delivered.
    kept: Vec<u64>,
    /// Nothing is expected before the first announcement.
    started: bool,
    /// The next to deliver.
    delivered: u64,
    /// All before it are here, or given up.
    next: u64,
    /// All before it were emitted, as far as is known.
    end: u64,
    /// All before it that are not here will never be.
    oldest: u64,
    /// As the sender measured it; 0: not yet.
    round_trip_ns: i64,
    backoff: u32,
    /// What the sinks have room for beyond `next`; `None`: for a window's.
    room: Option<Room>,
    /// Granted so far: never taken back.
    granted: u64,
    /// Sinks lack some of what is before it.
    lacking: u64,
    /// When the next acknowledgement is due.
    due_ns: Option<i64>,
    /// What came in order since the last one: when it began to, and when the last of it did.
    unsaid_ns: Option<(i64, i64)>,
    /// The last acknowledgement: when, and what it granted.
    last_ns: Option<i64>,
    told: u64,
    /// The newest stamp and when it came.
    stamp: (i64, i64),
    counters: Counters,
}

impl Receiver {
    /// With room for `window` messages that were received and not delivered.
    ///
    /// # Errors
    /// [`Refused::Window`].
    pub fn new(window: u32) -> Result<Self, Refused> {
        if !(1..=MAX_WINDOW).contains(&window) {
            return Err(Refused::Window(window));
        }
        Ok(Self {
            window,
            kept: vec![0; (window as usize).div_ceil(64)],
            started: false,
            delivered: ORIGIN,
            next: ORIGIN,
            end: ORIGIN,
            oldest: ORIGIN,
            round_trip_ns: 0,
            backoff: 0,
            room: None,
            granted: ORIGIN,
            lacking: ORIGIN,
            due_ns: None,
            unsaid_ns: None,
            last_ns: None,
            told: ORIGIN,
            stamp: (0, 0),
            counters: Counters::default(),
        })
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The sender's announcement.
    ///
    /// # Errors
    /// [`Hostile::Announced`]; nothing is changed then.
    pub fn announce(&mut self, now_ns: i64, said: &Announce) -> Result<(), Hostile> {
        let span = said.next.wrapping_sub(said.oldest);
        if span > MAX_WINDOW {
            self.counters.refused += 1;
            return Err(Hostile::Announced(span));
        }
        if !self.started {
            let oldest = extend(ORIGIN, said.oldest);
            (self.delivered, self.next, self.end) = (oldest, oldest, oldest);
            (self.oldest, self.told, self.started) = (oldest, oldest, true);
            (self.granted, self.lacking) = (oldest, oldest);
        }
        let oldest = extend(self.next, said.oldest);
        self.oldest = self.oldest.max(oldest);
        self.end = self.end.max(oldest + u64::from(span));
        if said.round_trip_ns > 0 {
            self.round_trip_ns = said.round_trip_ns;
        }
        self.stamp = (said.stamp_ns, now_ns);
        self.advance();
        self.due(now_ns);
        Ok(())
    }

    /// A message came, in a datagram with this stamp.
    pub fn receive(&mut self, now_ns: i64, sequence: u32, stamp_ns: i64) -> Arrival {
        let arrival = self.judge(sequence);
        // What is sent again has an older stamp than what was heard since.
        if arrival != Arrival::Early && stamp_ns > self.stamp.0 {
            self.stamp = (stamp_ns, now_ns);
        }
        match arrival {
            Arrival::Early => self.counters.early += 1,
            // The acknowledgement was lost: say it again.
            Arrival::Repeated => self.counters.repeated += 1,
            Arrival::Beyond => self.counters.beyond += 1,
            Arrival::Keep => {}
        }
        match arrival {
            Arrival::Early => return arrival,
            Arrival::Repeated | Arrival::Beyond => {
                self.due(now_ns + self.pace_ns());
                return arrival;
            }
            Arrival::Keep => {}
        }
        let sequence = extend(self.next, sequence);
        // A gap that was not known is told at once.
        let gap = sequence > self.end;
        self.end = self.end.max(sequence + 1);
        self.mark(sequence, true);
        let before = self.next;
        self.advance();
        if self.next > before {
            self.backoff = 0;
        }
        if gap {
            self.due(now_ns);
        } else {
            self.arrived(now_ns);
        }
        Arrival::Keep
    }

    /// Something newer has come, and takes the place of everything before this message: for
    /// [`Policy::Latest`](crate::Policy::Latest). What is not here of it is lost.
    pub fn supersede(&mut self, now_ns: i64, by: u32) {
        if !self.started {
            return;
        }
        let by = extend(self.next, by);
        if by > self.oldest && by > self.next {
            self.oldest = by;
            self.advance();
            self.arrived(now_ns);
        }
    }

    /// What the sinks get next: call it only while they have room. `None`: nothing, or something is missing before it.
    pub fn deliver(&mut self, now_ns: i64) -> Option<Delivery> {
        if self.delivered >= self.next {
            return None;
        }
        let delivery = if self.is_kept(self.delivered) {
            self.mark(self.delivered, false);
            self.counters.delivered += 1;
            self.delivered += 1;
            Delivery::Message((self.delivered - 1) as u32)
        } else {
            // Given up: as far as nothing is kept, which is a window at most, or all up to `next` when that is beyond.
            let near = self.next.min(self.delivered + u64::from(self.window));
            let kept = (self.delivered..near).find(|&sequence| self.is_kept(sequence));
            let to = kept.unwrap_or(self.next);
            let lost = to - self.delivered;
            self.delivered = to;
            self.counters.lost += lost;
            Delivery::Lost(lost)
        };
        self.grant(now_ns);
        Some(delivery)
    }

    /// The sinks have so much room. Without this call: for as many messages as the window, of any length.
    pub fn set_room(&mut self, now_ns: i64, room: Room) {
        self.room = Some(room);
        if self.started {
            self.grant(now_ns);
        }
    }

    /// Some sink did without a delivered message, which ends before this one.
    pub fn note_lacking(&mut self, end: u32) {
        self.lacking = self.lacking.max(extend(self.next, end));
    }

    /// The first message that is missing: all before it are here, or will never be.
    pub fn next(&self) -> u32 {
        self.next as u32
    }

    /// What [`receive`](Self::receive) would say, changing nothing.
    pub fn judge(&self, sequence: u32) -> Arrival {
        if !self.started {
            return Arrival::Early;
        }
        let sequence = extend(self.next, sequence);
        if sequence < self.next || sequence < self.oldest || self.is_kept(sequence) {
            Arrival::Repeated
        } else if sequence - self.delivered >= u64::from(self.window) {
            Arrival::Beyond
        } else {
            Arrival::Keep
        }
    }

    /// Messages behind the first missing one are dropped after all, to make room for it: they are asked for again.
    pub fn forget(&mut self, now_ns: i64, messages: std::ops::Range<u32>) {
        let count = messages.end.wrapping_sub(messages.start).min(self.window);
        for ahead in 0..u64::from(count) {
            let sequence = extend(self.next, messages.start) + ahead;
            if sequence >= self.next && self.is_kept(sequence) {
                self.mark(sequence, false);
            }
        }
        self.due(now_ns);
    }

    /// The next message to deliver, of 64 bits as [`extended`](Self::extended) has them.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Of 64 bits, which do not wrap: of those with these low 32, the one nearest to the first missing message.
    pub fn extended(&self, sequence: u32) -> u64 {
        extend(self.next, sequence)
    }

    /// What [`poll`](Self::poll) gave last could not be sent: it is due again at this instant.
    pub fn remind(&mut self, at_ns: i64) {
        self.due_ns = Some(self.due_ns.map_or(at_ns, |due| due.min(at_ns)));
    }

    /// Whether everything that was announced has been delivered.
    pub fn is_idle(&self) -> bool {
        self.started && self.delivered == self.end
    }

    /// Whether the sender may not send: it knows of no room.
    pub fn is_closed(&self) -> bool {
        self.started && self.told <= self.end
    }

    /// Room is told of when it is a quarter of the window, and at once to who may wait for it.
    fn grant(&mut self, now_ns: i64) {
        let limit = self.limit();
        if limit - self.told >= u64::from(self.window).div_ceil(4)
            || (limit > self.told && self.told <= self.end && self.room.is_some())
        {
            self.due(now_ns);
        }
    }

    /// The acknowledgement that is due, if one is.
    pub fn poll(&mut self, now_ns: i64) -> Option<Acknowledgement> {
        if self.wake_ns()? > now_ns {
            return None;
        }
        self.unsaid_ns = None;
        let missing = self.end.min(self.limit()) > self.next;
        self.due_ns = missing.then(|| now_ns + ((4 * self.pace_ns()) << self.backoff));
        self.backoff = if missing {
            (self.backoff + 1).min(MOST_BACKOFF)
        } else {
            0
        };
        let limit = self.limit();
        (self.last_ns, self.told, self.granted) = (Some(now_ns), limit, limit);
        self.counters.acknowledgements += 1;
        // No more is told about than can be kept: what was dropped as beyond is asked for when there is room.
        let span =
            (self.end.min(self.limit()).saturating_sub(self.next)).min(u64::from(SPAN)) as u32;
        let mut here = [0; SPAN as usize / 64];
        for at in 0..span {
            if self.is_kept(self.next + u64::from(at)) {
                here[at as usize / 64] |= 1 << (at % 64);
            }
        }
        Some(Acknowledgement {
            next: self.next as u32,
            limit: self.limit() as u32,
            span,
            here,
            // What is far back stays behind, whatever is counted modulo.
            lacking: self
                .lacking
                .max(self.next.saturating_sub(u64::from(MAX_WINDOW))) as u32,
            stamp_ns: self.stamp.0,
            held_ns: now_ns.saturating_sub(self.stamp.1),
            messages: self
                .room
                .map_or(MAX_WINDOW, |room| room.messages.min(MAX_WINDOW)),
            bytes: self.room.map_or(MAX_GRANT_BYTES, |room| {
                room.bytes.min(MAX_GRANT_BYTES.into()) as u32
            }),
        })
    }

    /// When to [`poll`](Self::poll) again.
    pub fn wake_ns(&self) -> Option<i64> {
        let lazy = self.unsaid_ns.map(|(first, last)| {
            let at = (first + self.patience_ns()).min(last + self.quiet_ns());
            self.paced(at)
        });
        self.due_ns.into_iter().chain(lazy).min()
    }

    /// An acknowledgement is due at this instant, at the earliest one pace after the last.
    fn due(&mut self, at_ns: i64) {
        let at = self.paced(at_ns);
        self.due_ns = Some(self.due_ns.map_or(at, |due| due.min(at)));
    }

    fn paced(&self, at_ns: i64) -> i64 {
        self.last_ns
            .map_or(at_ns, |last| at_ns.max(last + self.pace_ns()))
    }

    /// Something came in order: that is acknowledged when it has waited long enough, or nothing more comes.
    fn arrived(&mut self, now_ns: i64) {
        let first = self.unsaid_ns.map_or(now_ns, |(first, _)| first);
        self.unsaid_ns = Some((first, now_ns));
    }

    /// The least between two acknowledgements.
    fn pace_ns(&self) -> i64 {
        match self.round_trip_ns {
            0 => FIRST_PACE_NS,
            ns => (ns / 4).clamp(LEAST_PACE_NS, MOST_PACE_NS),
        }
    }

    /// How long an acknowledgement of what came in order may wait for more to acknowledge.
    fn patience_ns(&self) -> i64 {
        (LAZY_NS - 4 * self.pace_ns()).max(self.pace_ns())
    }

    /// How long nothing comes before it is acknowledged after all.
    fn quiet_ns(&self) -> i64 {
        match self.round_trip_ns {
            0 => self.pace_ns(),
            ns => ns.saturating_mul(QUIET).clamp(LEAST_PACE_NS, MOST_PACE_NS),
        }
    }

    fn limit(&self) -> u64 {
        let most = self.delivered + u64::from(self.window);
        let room = self
            .room
            .map_or(most, |room| self.next + u64::from(room.window));
        room.min(most).max(self.granted).max(self.next)
    }

    /// Moves `next` past what is here or given up: a window at most is looked at.
    fn advance(&mut self) {
        let end = self.delivered + u64::from(self.window);
        while self.next < end && (self.next < self.oldest || self.is_kept(self.next)) {
            self.next += 1;
        }
        self.next = self.next.max(self.oldest);
        self.end = self.end.max(self.next);
    }

    fn is_kept(&self, sequence: u64) -> bool {
        let near = sequence >= self.delivered && sequence - self.delivered < u64::from(self.window);
        let (word, bit) = self.place(sequence);
        near && self.kept[word] & bit != 0
    }

    fn mark(&mut self, sequence: u64, kept: bool) {
        let (word, bit) = self.place(sequence);
        if kept {
            self.kept[word] |= bit;
        } else {
            self.kept[word] &= !bit;
        }
    }

    fn place(&self, sequence: u64) -> (usize, u64) {
        let at = sequence % u64::from(self.window);
        (at as usize / 64, 1 << (at % 64))
    }
}
