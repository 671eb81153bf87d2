//! All flows of one observer: bounded, aged, one lookup for each packet.
//!
//! A table belongs to one thread; with several receive queues each has its own. When it is full, a flow that was idle
//! gives its place; if none is found within a few looks, the new flow is not taken and its packets are counted
//! together. A flow with a specification gets in before those without, as long as its specification has no more than its share of the
//! table; one whose pattern gives everything stays for good. Of other patterns anybody can make flows up, so those go when they are idle.

use std::collections::{HashMap, VecDeque};
use std::iter::Sum;
use std::net::IpAddr;

use foldhash::fast::RandomState;
use serde::Serialize;
use takt_wire::channel::{DatagramHeader, RecordHeader};

use crate::flow::{Flow, Rules};
use crate::key::{ChannelSource, FlowKey, Kind, Way};
use crate::level::Level;
use crate::packet::{self, Identify, LinkType, Unreadable};
use crate::rule::{Action, Kpi, Rule, RuleState};
use crate::spec::{Document, Spec};
use crate::stamp::{self, Rtp, SenderReport, Stamp};

/// How many flows are looked at for one that can go.
const LOOKS: usize = 16;
/// Distributions are kept from this many packets on.
const HISTOGRAM_FROM: u64 = 16;
/// Events that nobody took.
const MAX_EVENTS: usize = 4096;
/// What is noted for an instant further ahead was noted before the clock went back. Nanoseconds.
const AHEAD_NS: i64 = 60_000_000_000;

/// What a table is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The most flows.
    pub capacity: usize,
    /// The most flows whose distributions are kept (4 KiB each).
    pub histograms: usize,
    /// A flow without a packet for this long may go, nanoseconds.
    pub idle_ns: i64,
    /// Length of a window, nanoseconds.
    pub window_ns: i64,
    /// Packets closer than this are of one burst, where no period says better. Nanoseconds.
    pub burst_gap_ns: i64,
    /// TAI less UTC, nanoseconds.
    pub tai_offset_ns: i64,
    /// By what flows are told apart.
    pub identify: Identify,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            capacity: 1 << 20,
            histograms: 1 << 15,
            idle_ns: 60_000_000_000,
            window_ns: 1_000_000_000,
            burst_gap_ns: 1_000_000,
            tai_offset_ns: 37_000_000_000,
            identify: Identify::Tuple,
        }
    }
}

/// What was counted beside the flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Packets taken.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were cut short within a header.
    pub truncated: u64,
    /// Packets with a malformed header; those of Ethernet are of a flow all the same.
    pub malformed: u64,
    /// Packets of flows for which there was no room.
    pub no_room: u64,
    /// Flows that went because room was needed.
    pub aged: u64,
    /// Events that nobody took in time.
    pub events_lost: u64,
}

impl Sum for Counters {
    fn sum<I: Iterator<Item = Self>>(counters: I) -> Self {
        counters.fold(Self::default(), |sum, more| Self {
            packets: sum.packets + more.packets,
            bytes: sum.bytes + more.bytes,
            truncated: sum.truncated + more.truncated,
            malformed: sum.malformed + more.malformed,
            no_room: sum.no_room + more.no_room,
            aged: sum.aged + more.aged,
            events_lost: sum.events_lost + more.events_lost,
        })
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// When, TAI nanoseconds.
    pub at_ns: i64,
    /// The flow.
    pub flow: String,
    /// Its key.
    #[serde(skip)]
    pub key: FlowKey,
    /// The name of its specification.
    pub spec: Option<String>,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum What {
    /// The level changed.
    Level {
        /// Before.
        from: Level,
        /// After.
        to: Level,
        /// The figure that called for it; none where it fell.
        because: Option<&'static str>,
        /// The figure's value, as people write it.
        value: Option<String>,
    },
    /// A rule began or ended.
    Rule {
        /// Its name.
        rule: String,
        /// What it does.
        #[serde(skip)]
        actions: Vec<Action>,
        /// Whether it began.
        begins: bool,
    },
}

impl What {
    fn of(rule: &Rule, begins: bool) -> Self {
        Self::Rule {
            rule: rule.name.clone(),
            actions: rule.actions.clone(),
            begins,
        }
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its flow's place, for [`Table::flow`]; `None` without room.
    pub flow: Option<usize>,
    /// Whether a rule wants it mirrored.
    pub mirror: bool,
}

/// What an observer tells of itself.
#[derive(Clone, Copy, Debug)]
struct Own {
    backlog_ns: i64,
    /// All that was dropped, when the present window began, and in the one before.
    dropped: u64,
    dropped_at_start: u64,
    dropped_before: u64,
    start_ns: i64,
}

impl Own {
    fn value(&self, kpi: Kpi) -> f64 {
        match kpi {
            Kpi::Backlog => self.backlog_ns as f64,
            _ => (self.dropped - self.dropped_at_start + self.dropped_before) as f64,
        }
    }
}

/// The flows of one observer.
#[derive(Debug)]
pub struct Table {
    config: Config,
    document: Document,
    index: HashMap<FlowKey, u32, RandomState>,
    flows: Vec<Flow>,
    counters: Counters,
    events: VecDeque<Event>,
    /// Where to look next for a flow that can go.
    hand: usize,
    /// Places of flows that are judged, and perhaps of some that were until another one took their place.
    judged: Vec<u32>,
    /// Which of them is looked at next for silence.
    swept: usize,
    histograms: usize,
    /// How many flows each specification has, and which of them name one flow alone.
    spec_flows: Vec<usize>,
    full: Vec<bool>,
    /// How often each rule began, and for how many flows it holds.
    rule_counts: Vec<RuleCount>,
    latest_ns: i64,
    /// Until when packets may have come unseen.
    unseen_ns: i64,
    /// Of files there is none.
    own: Option<Own>,
}

/// A rule over all flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RuleCount {
    /// How often it began.
    pub begun: u64,
    /// For how many flows it holds.
    pub active: u64,
}

/// What decides how the packets of a flow are read.
fn read_as(spec: Option<&Spec>) -> (Stamp, Option<i64>, Option<u32>) {
    spec.map_or((Stamp::Auto, None, None), |spec| {
        let transit =
            (spec.max_transit_ns != crate::spec::CLASS_A_TRANSIT_NS).then_some(spec.max_transit_ns);
        (spec.stamp, transit, spec.rtp_clock)
    })
}

/// Which specifications name one flow alone.
fn full(document: &Document) -> Vec<bool> {
    let specs = document.specs.iter();
    specs.map(|spec| spec.pattern.is_full()).collect()
}

impl Table {
    /// An empty table. Memory is taken as flows come.
    pub fn new(config: Config, document: Document) -> Self {
        let rules = document.rules.len();
        let full = full(&document);
        Self {
            config: Config {
                capacity: config.capacity.clamp(1, 1 << 28),
                window_ns: config.window_ns.max(1),
                ..config
            },
            document,
            index: HashMap::default(),
            flows: Vec::new(),
            counters: Counters::default(),
            events: VecDeque::new(),
            hand: 0,
            judged: Vec::new(),
            swept: 0,
            histograms: 0,
            spec_flows: vec![0; full.len()],
            full,
            rule_counts: vec![RuleCount::default(); rules],
            latest_ns: i64::MIN,
            unseen_ns: i64::MIN,
            own: None,
        }
    }

    /// How far behind the packets that came whoever fills this table is now, and how many it has not got so far: figures of rules.
    pub fn note_own(&mut self, now_ns: i64, backlog_ns: i64, dropped: u64) {
        let own = self.own.get_or_insert(Own {
            backlog_ns,
            dropped,
            dropped_at_start: 0,
            dropped_before: 0,
            start_ns: now_ns,
        });
        let passed = now_ns.saturating_sub(own.start_ns) / self.config.window_ns;
        // Also where the clock went back.
        if passed != 0 {
            own.dropped_before = match passed {
                1 => own.dropped - own.dropped_at_start,
                _ => 0,
            };
            (own.dropped_at_start, own.start_ns) = (own.dropped, now_ns);
        }
        own.backlog_ns = backlog_ns;
        own.dropped = own.dropped.max(dropped);
    }

    /// Packets up to this instant may have come and not been handed over, as when a socket had no room. What is missing of flows across it is
    /// counted as lost, and neither levels nor rules go by it: those of a flow of which nothing has come since stay as they are.
    pub fn note_unseen(&mut self, now_ns: i64) {
        let now_ns = now_ns.clamp(i64::MIN / 4, i64::MAX / 4);
        self.unseen_ns = self.unseen_ns.max(now_ns);
    }

    /// What was counted beside the flows.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What flows are to keep to.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// Whether anything is declared that flows are judged by.
    pub fn judges(&self) -> bool {
        !(self.document.specs.is_empty() && self.document.rules.is_empty())
    }

    /// Rules over all flows, in the document's order.
    pub fn rules(&self) -> impl Iterator<Item = (&str, RuleCount)> {
        let names = self.document.rules.iter().map(|rule| rule.name.as_str());
        names.zip(self.rule_counts.iter().copied())
    }

    /// A flow by its place.
    pub fn flow(&self, at: usize) -> Option<&Flow> {
        self.flows.get(at)
    }

    /// All flows, in no order that lasts.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// The specification of a flow.
    pub fn spec(&self, flow: &Flow) -> Option<&Spec> {
        self.document.specs.get(usize::from(flow.spec?))
    }

    /// The latest time of a packet, TAI nanoseconds; `None` before the first.
    pub fn latest_ns(&self) -> Option<i64> {
        (self.latest_ns != i64::MIN).then_some(self.latest_ns)
    }

    /// Takes away what happened since the last call.
    pub fn take_events(&mut self) -> impl Iterator<Item = Event> + '_ {
        self.events.drain(..)
    }

    /// Whether something happened since the events were taken.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes a captured packet that came at `now_ns` (TAI) and has `size` bytes on the wire.
    ///
    /// # Errors
    /// [`Unreadable`], if the packet belongs to no flow; it is counted.
    #[inline]
    pub fn take(
        &mut self,
        now_ns: i64,
        link: LinkType,
        bytes: &[u8],
        size: u32,
    ) -> Result<Seen, Unreadable> {
        let now_ns = self.count(now_ns, size);
        let packet = packet::read(link, bytes, self.config.identify).inspect_err(|error| {
            let counter = match error {
                Unreadable::Truncated(_) => &mut self.counters.truncated,
                Unreadable::Malformed(_) => &mut self.counters.malformed,
            };
            *counter += 1;
        })?;
        self.counters.malformed += u64::from(packet.malformed);
        let trailer = stamp::trailer(packet.behind);
        let mut seen = self.observe(packet.key, packet.payload, now_ns, size, trailer);
        if let Some(at) = seen.flow
            && self.flows[at].stamp == Stamp::Takt
        {
            seen.mirror |= self.channels(&packet, now_ns);
        }
        Ok(seen)
    }

    /// Takes a copy of a datagram of a channel that a node has sent to another or got from it (`Capture` of the admin API): one
    /// record without protection, of which the end may be missing; `size` is that of the whole.
    ///
    /// # Errors
    /// [`Unreadable`]; it is counted.
    pub fn take_copy(
        &mut self,
        now_ns: i64,
        (way, peer): (Way, Option<IpAddr>),
        datagram: &[u8],
        size: u32,
    ) -> Result<Seen, Unreadable> {
        let now_ns = self.count(now_ns, size);
        let read = || {
            let (header, records) = stamp::takt(datagram)?;
            let (record, _) = RecordHeader::parse(records).ok()?;
            Some((header, record))
        };
        let Some((header, record)) = read() else {
            self.counters.malformed += 1;
            return Err(Unreadable::Malformed("channel"));
        };
        if !record.is_message() {
            return Ok(Seen::default());
        }
        Ok(self.message(now_ns, (way, peer), &header, &record))
    }

    /// Counts a packet. When it came, within what can be reckoned with.
    #[inline]
    fn count(&mut self, now_ns: i64, size: u32) -> i64 {
        self.counters.packets += 1;
        self.counters.bytes += u64::from(size);
        // Instants outside of half the scale would overflow differences; no clock says them.
        let now_ns = now_ns.clamp(i64::MIN / 4, i64::MAX / 4);
        self.latest_ns = self.latest_ns.max(now_ns);
        now_ns
    }

    /// Takes the records of a Takt datagram, each for its channel.
    fn channels(&mut self, packet: &packet::Packet<'_>, now_ns: i64) -> bool {
        let mut mirror = false;
        let Some((header, records)) = stamp::takt(packet.payload) else {
            return false;
        };
        let from = packet.key.addresses().map(|(from, _)| from);
        for record in stamp::takt_records(&header, records).flatten() {
            if record.header.is_message() {
                let seen = self.message(now_ns, (Way::From, from), &header, &record.header);
                mirror |= seen.mirror;
            }
        }
        mirror
    }

    /// Takes a message of a channel, or a part of one.
    fn message(
        &mut self,
        now_ns: i64,
        (way, peer): (Way, Option<IpAddr>),
        datagram: &DatagramHeader,
        record: &RecordHeader,
    ) -> Seen {
        let key = FlowKey::channel(ChannelSource {
            channel: record.channel,
            lane: datagram.sender,
            source: record.source,
            class: record.class.number(),
            way,
            peer,
        });
        let size = record.header_len() + record.payload_len();
        let marks = stamp::Marks {
            // A message in fragments has one number: its first fragment tells it.
            sequence: (record.fragment_index == 0).then_some((u64::from(record.sequence), 32)),
            sent_ns: Some(datagram.send_time_ns),
        };
        self.observe(key, &[], now_ns, size as u32, Some(marks))
    }

    #[inline]
    fn observe(
        &mut self,
        key: FlowKey,
        payload: &[u8],
        now_ns: i64,
        size: u32,
        marks: Option<stamp::Marks>,
    ) -> Seen {
        let at = match self.index.get(&key) {
            Some(at) => *at as usize,
            None => match self.enter(key, payload, now_ns) {
                Some(at) => at,
                None => {
                    self.counters.no_room += 1;
                    return Seen::default();
                }
            },
        };
        let rules = Rules {
            window_ns: self.config.window_ns,
            burst_gap_ns: self.config.burst_gap_ns,
            tai_offset_ns: self.config.tai_offset_ns,
            unseen_ns: self.unseen_ns,
        };
        let flow = &mut self.flows[at];
        let spec = flow
            .spec
            .and_then(|spec| self.document.specs.get(usize::from(spec)));
        if std::mem::take(&mut flow.unrecognised) {
            flow.stamp = Stamp::recognise(&key, payload);
        }
        let undeclared = spec.is_none_or(|spec| spec.stamp == Stamp::Auto);
        if marks.is_some() && undeclared && matches!(flow.stamp, Stamp::Auto | Stamp::None) {
            flow.stamp = Stamp::Trailer;
            flow.forget_rtp();
        }
        let mut report = None;
        let (marks, rtp) = match flow.stamp {
            Stamp::Auto | Stamp::Rtp if key.kind() != Kind::Channel => {
                report = SenderReport::read(payload);
                (None, Rtp::read(payload))
            }
            stamp => {
                let transit =
                    spec.map_or(crate::spec::CLASS_A_TRANSIT_NS, |spec| spec.max_transit_ns);
                let read = || stamp.read(&key, payload, now_ns, transit);
                let given =
                    marks.filter(|_| stamp == Stamp::Trailer || key.kind() == Kind::Channel);
                (given.or_else(read), None)
            }
        };
        if flow.packets == HISTOGRAM_FROM
            && !flow.has_histograms()
            && self.histograms < self.config.histograms
        {
            flow.keep_histograms();
            self.histograms += 1;
        }
        // A flow that was RTP by chance has carried something else since. What comes beside RTP says nothing.
        if flow.stamp == Stamp::Auto
            && rtp.is_none()
            && !flow.is_rtp()
            && !stamp::is_beside_rtp(payload)
        {
            flow.stamp = Stamp::None;
            flow.forget_rtp();
        }
        let change = flow.take(now_ns, size, marks, rtp, spec, &rules);
        let mut seen = Seen {
            flow: Some(at),
            mirror: false,
        };
        if change.level.is_some() || !self.flows[at].rules.is_empty() {
            self.tell(at, change.level, now_ns);
            seen.mirror = self.flows[at].rules.iter().any(|(rule, state)| {
                let rule = &self.document.rules[usize::from(*rule)];
                state.active && rule.actions.contains(&Action::Mirror)
            });
        }
        if let Some(report) = report {
            self.report(&key, &report);
        }
        seen
    }

    /// Hands a sender report to its flow: one port below, or the same (RFC 5761).
    fn report(&mut self, key: &FlowKey, report: &SenderReport) {
        let Some((from, to)) = key.ports() else {
            return;
        };
        let below = key.with_ports([from.wrapping_sub(1), to.wrapping_sub(1)]);
        for key in [below, *key] {
            if let Some(at) = self.index.get(&key) {
                self.flows[*at as usize].report_sent(report);
            }
        }
    }

    /// A place for a new flow.
    fn enter(&mut self, key: FlowKey, payload: &[u8], now_ns: i64) -> Option<usize> {
        let spec = self
            .document
            .specs
            .iter()
            .position(|spec| spec.pattern.matches(&key));
        // First of all whether there is room: who makes flows up costs no more than that.
        let at = match self.flows.len() < self.config.capacity {
            true => self.flows.len(),
            false => self.make_room(spec, now_ns)?,
        };
        if let Some(spec) = spec {
            self.spec_flows[spec] += 1;
        }
        let declared = spec.map(|spec| self.document.specs[spec].stamp);
        let stamp = match declared {
            Some(Stamp::Auto) | None => Stamp::recognise(&key, payload),
            Some(declared) => declared,
        };
        let mut flow = Flow::new(key, now_ns, spec.map(|spec| spec as u16), stamp);
        flow.rules = self
            .document
            .rules
            .iter()
            .enumerate()
            .filter(|(_, rule)| rule.pattern.matches(&key))
            .map(|(at, _)| (at as u16, RuleState::default()))
            .collect();
        flow.in_judged = self.flows.get(at).is_some_and(|old| old.in_judged);
        if flow.is_judged() && !flow.in_judged {
            flow.in_judged = true;
            self.judged.push(at as u32);
        }
        match self.flows.get_mut(at) {
            Some(place) => *place = flow,
            None => self.flows.push(flow),
        }
        self.index.insert(key, at as u32);
        Some(at)
    }

    /// How many flows of one specification a full table has at most, where others want in.
    fn share(&self) -> usize {
        let wide = self.full.iter().filter(|full| !**full).count();
        (self.config.capacity / (wide + 1)).max(1)
    }

    /// Forgets a flow of a full table for one of this specification, if any: that which has been idle for longest, of those nearby that
    /// may go. Where it was; `None`: there is none.
    fn make_room(&mut self, spec: Option<usize>, now_ns: i64) -> Option<usize> {
        let share = self.share();
        let wanted = spec.filter(|spec| self.spec_flows[*spec] < share);
        let wanted_alone = wanted.is_some_and(|spec| self.full[spec]);
        let may_go = |old: &Flow| {
            let idle = now_ns - old.last_ns >= self.config.idle_ns;
            match old.spec.map(usize::from) {
                None => idle || wanted.is_some(),
                Some(spec) => {
                    let beyond = self.spec_flows[spec] > share;
                    let kept = self.full[spec] && !beyond;
                    !kept && (idle || wanted_alone || (beyond && wanted.is_some()))
                }
            }
        };
        let count = self.flows.len();
        let near = (1..=LOOKS.min(count)).map(|step| (self.hand + step) % count);
        let near = near.filter(|at| may_go(&self.flows[*at]));
        let goes = near.min_by_key(|at| self.flows[*at].last_ns);
        self.hand = (self.hand + LOOKS.min(count)) % count;
        let at = goes?;
        let old = &self.flows[at];
        self.histograms -= usize::from(old.has_histograms());
        if let Some(spec) = old.spec {
            self.spec_flows[usize::from(spec)] -= 1;
        }
        let key = old.key;
        self.end_rules(at, now_ns);
        self.index.remove(&key);
        self.counters.aged += 1;
        Some(at)
    }

    /// Tells a new level, and steps the flow's rules.
    fn tell(&mut self, at: usize, level: Option<(Level, Level, Option<Kpi>)>, now_ns: i64) {
        let flow = &mut self.flows[at];
        let mut events = Vec::new();
        if let Some((from, to, because)) = level {
            let value = because.and_then(|kpi| {
                let value = flow.value(kpi, now_ns, self.config.window_ns)?;
                Some(kpi.write(value))
            });
            events.push(What::Level {
                from,
                to,
                because: because.map(Kpi::name),
                value,
            });
        }
        let mut rules = std::mem::take(&mut flow.rules);
        for (index, state) in &mut rules {
            let index = usize::from(*index);
            let rule = &self.document.rules[index];
            // What was not seen may have come, and may not have: such silence begins no rule, and its end ends none.
            let seen_ns = match state.active {
                true => i64::MAX,
                false => now_ns.saturating_sub(self.unseen_ns).max(0),
            };
            let value = |kpi| match (kpi, flow.value(kpi, now_ns, self.config.window_ns)) {
                (Kpi::Silence, Some(silence)) => Some(silence.min(seen_ns as f64)),
                (Kpi::Backlog | Kpi::Dropped, _) => self.own.map(|own| own.value(kpi)),
                (_, value) => value,
            };
            if let Some(begins) = state.step(rule, now_ns, &value) {
                let count = &mut self.rule_counts[index];
                count.begun += u64::from(begins);
                count.active = if begins {
                    count.active + 1
                } else {
                    count.active - 1
                };
                events.push(What::of(rule, begins));
            }
        }
        flow.rules = rules;
        if events.is_empty() {
            return;
        }
        self.note(at, events, now_ns);
    }

    /// What happened to a flow.
    fn note(&mut self, at: usize, events: Vec<What>, now_ns: i64) {
        let flow = &self.flows[at];
        let (key, name, spec) = (flow.key, flow.key.to_string(), flow.spec);
        let spec = spec.and_then(|spec| self.document.specs.get(usize::from(spec)));
        let spec = spec.map(|spec| spec.name.clone());
        for what in events {
            if self.events.len() >= MAX_EVENTS {
                self.counters.events_lost += 1;
                continue;
            }
            self.events.push_back(Event {
                at_ns: now_ns,
                flow: name.clone(),
                key,
                spec: spec.clone(),
                what,
            });
        }
    }

    /// A flow or its rules go: what they have begun ends.
    fn end_rules(&mut self, at: usize, now_ns: i64) {
        let rules = std::mem::take(&mut self.flows[at].rules);
        let active = rules.iter().filter(|(_, state)| state.active);
        let mut events = Vec::new();
        for (index, _) in active {
            let index = usize::from(*index);
            self.rule_counts[index].active -= 1;
            events.push(What::of(&self.document.rules[index], false));
        }
        if !events.is_empty() {
            self.note(at, events, now_ns);
        }
    }

    /// Looks at up to `count` flows with specifications or rules for silence and for levels and rules that end, and goes on from there
    /// with the next call. `now_ns` (TAI) is the time up to which all packets were taken.
    pub fn sweep(&mut self, now_ns: i64, count: usize) {
        if self.unseen_ns.saturating_sub(now_ns) > AHEAD_NS {
            self.unseen_ns = now_ns;
        }
        let rules = Rules {
            window_ns: self.config.window_ns,
            burst_gap_ns: self.config.burst_gap_ns,
            tai_offset_ns: self.config.tai_offset_ns,
            unseen_ns: self.unseen_ns,
        };
        for _ in 0..count.min(self.judged.len()) {
            if self.swept >= self.judged.len() {
                self.swept = 0;
            }
            let at = self.judged[self.swept] as usize;
            let flow = &mut self.flows[at];
            if !flow.is_judged() {
                flow.in_judged = false;
                self.judged.swap_remove(self.swept);
                continue;
            }
            self.swept += 1;
            let spec = flow
                .spec
                .and_then(|spec| self.document.specs.get(usize::from(spec)));
            let change = flow.look(now_ns, spec, &rules);
            if change.level.is_some() || !flow.rules.is_empty() {
                self.tell(at, change.level, now_ns);
            }
        }
    }

    /// Puts other specifications and rules in force, for the flows that are there too. Their counts go on; levels and
    /// rules begin anew.
    pub fn replace_document(&mut self, document: Document) {
        for at in 0..self.flows.len() {
            self.end_rules(at, self.flows[at].last_ns);
        }
        self.rule_counts = vec![RuleCount::default(); document.rules.len()];
        self.full = full(&document);
        self.spec_flows = vec![0; self.full.len()];
        (self.swept, self.judged) = (0, Vec::new());
        for (at, flow) in (0..).zip(&mut self.flows) {
            let spec = document
                .specs
                .iter()
                .position(|spec| spec.pattern.matches(&flow.key));
            let was = read_as(
                self.document
                    .specs
                    .get(flow.spec.map_or(usize::MAX, usize::from)),
            );
            let is = read_as(spec.and_then(|spec| document.specs.get(spec)));
            let stamp = (is != was).then_some(is.0);
            flow.set_spec(spec.map(|spec| spec as u16), stamp);
            if let Some(spec) = spec {
                self.spec_flows[spec] += 1;
            }
            let rules = document.rules.iter().enumerate();
            flow.rules = rules
                .filter(|(_, rule)| rule.pattern.matches(&flow.key))
                .map(|(at, _)| (at as u16, RuleState::default()))
                .collect();
            flow.in_judged = flow.is_judged();
            if flow.in_judged {
                self.judged.push(at);
            }
        }
        self.document = document;
    }

    /// TAI less UTC is another from now on, and so are the times of packets: what was seen before cannot be compared with what comes. All
    /// flows begin anew; what rules have begun ends.
    pub fn begin_anew(&mut self, tai_offset_ns: i64) {
        self.config.tai_offset_ns = tai_offset_ns;
        for at in 0..self.flows.len() {
            self.end_rules(at, self.flows[at].last_ns);
        }
        self.index.clear();
        self.flows.clear();
        self.judged.clear();
        self.spec_flows.fill(0);
        (self.hand, self.swept, self.histograms) = (0, 0, 0);
        (self.latest_ns, self.unseen_ns) = (i64::MIN, i64::MIN);
        if let Some(own) = &mut self.own {
            // What was not got before is none of the new time.
            (own.dropped_at_start, own.dropped_before) = (own.dropped, 0);
        }
    }

    /// How many flows are at each level: green, yellow, red.
    pub fn levels(&self) -> [usize; 3] {
        let mut levels = [0; 3];
        for flow in &self.flows {
            levels[flow.level() as usize] += 1;
        }
        levels
    }
}
