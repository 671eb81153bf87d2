//! Fragmented messages on their way in: each fragment is copied straight into the memory of every sink.
//!
//! Bounded in number, size and time. Memory of the bookkeeping is allocated at the start, but for what peers and tenants have of
//! their own beyond that.

use std::collections::HashMap;
use std::time::Duration;

use takt_time::TrafficClass;

use super::shares::{Pair, Shares};
use crate::slots::{ChannelSlot, RemoteSlot, SessionSlot, SinkSlot, TenantSlot};

/// Fewest payload bytes of a fragment that is not the last: bounds the bookkeeping of a message.
const LEAST_STRIDE: usize = 256;
/// A message may take so long for each byte of it, beside the time without a fragment: at 8 Mbit/s.
const NANOS_PER_BYTE: i64 = 1_000;
/// Room for so many sinks is kept with a place that is free.
const MOST_KEPT: usize = 1024;
/// Places that a tenant has for what comes from one lane, whatever others leave unfinished.
const OWN: usize = 2;

/// A sink's memory for a message.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Index of the session on the lane.
    pub session: SessionSlot,
    /// Index of the sink in its session.
    pub sink: SinkSlot,
    /// First chunk of the memory.
    pub chunk: u32,
}

/// Names a message on its way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Index of the sending lane.
    pub remote: RemoteSlot,
    /// Index of the channel.
    pub channel: ChannelSlot,
    /// Number of the source on its lane.
    pub source: u32,
    /// Low half of the sequence number.
    pub sequence: u32,
}

/// A message on its way in.
#[derive(Debug)]
pub struct Assembly {
    pub key: Key,
    pub full_sequence: u64,
    pub length: u32,
    pub stride: u16,
    pub class: TrafficClass,
    pub sender: u32,
    pub send_time_ns: i64,
    pub targets: Vec<Target>,
    /// It counts as lost: some sinks do not get it.
    lost: bool,
    /// Whose place it has: that of the sending lane and of the tenant that it is for, or one of them.
    pair: Pair,
    missing: u32,
    arrived: Vec<u64>,
    deadline_ns: i64,
    /// When it is given up, however many fragments still come.
    last_ns: i64,
    used: bool,
}

/// What a fragment did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// New: copy it into the targets.
    New {
        /// It was the last one missing.
        complete: bool,
    },
    /// Came twice, or contradicts the first fragment: drop it.
    Refused,
}

/// All messages on their way in at a lane.
#[derive(Debug)]
pub struct Reassembly {
    slots: Vec<Assembly>,
    free: Vec<usize>,
    by_key: HashMap<Key, usize, foldhash::fast::RandomState>,
    shares: Shares,
    /// Places for all; those beyond are there as long as they are needed.
    places: usize,
    last: usize,
    timeout_ns: i64,
    most_fragments: usize,
    next_check_ns: i64,
}

/// A fragment's description of its message, from a checked record header.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub length: u32,
    pub stride: u16,
    pub class: TrafficClass,
    pub sender: u32,
    pub send_time_ns: i64,
}

impl Assembly {
    /// A place that is free.
    fn new(most_fragments: usize) -> Self {
        Self {
            key: Key {
                remote: RemoteSlot(0),
                channel: ChannelSlot(0),
                source: 0,
                sequence: 0,
            },
            full_sequence: 0,
            length: 0,
            stride: 0,
            class: TrafficClass::BEST_EFFORT,
            sender: 0,
            send_time_ns: 0,
            targets: Vec::with_capacity(16),
            lost: false,
            missing: 0,
            // Zero pages until a long message comes.
            arrived: vec![0; most_fragments.div_ceil(64)],
            pair: Pair {
                remote: RemoteSlot(0),
                tenant: TenantSlot(0),
            },
            deadline_ns: 0,
            last_ns: 0,
            used: false,
        }
    }

    /// Some sinks do not get it. True the first time: its channel counts it as lost, once.
    #[cold]
    pub fn lose(&mut self) -> bool {
        !std::mem::replace(&mut self.lost, true)
    }
}

impl Reassembly {
    /// Room for `count` messages of up to `max_message` bytes.
    pub fn new(count: usize, max_message: usize, timeout: Duration) -> Self {
        let most_fragments = max_message.div_ceil(LEAST_STRIDE);
        let slots = (0..count).map(|_| Assembly::new(most_fragments)).collect();
        Self {
            slots,
            free: (0..count).rev().collect(),
            by_key: HashMap::with_capacity_and_hasher(count, Default::default()),
            shares: Shares::new(count, OWN),
            places: count,
            last: 0,
            timeout_ns: i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX),
            most_fragments,
            next_check_ns: i64::MAX,
        }
    }

    /// The message with this key, if some of it is here.
    #[inline]
    pub fn find(&mut self, key: Key) -> Option<usize> {
        // Fragments of a message mostly follow each other.
        if let Some(slot) = self.slots.get(self.last)
            && slot.used
            && slot.key == key
        {
            return Some(self.last);
        }
        self.last = *self.by_key.get(&key)?;
        Some(self.last)
    }

    /// Whether fragments of this size can be put together here.
    pub fn accepts(&self, header: &Header) -> bool {
        header.stride != 0
            && (header.length as usize).div_ceil(usize::from(header.stride)) <= self.most_fragments
    }

    /// Whether a message from this lane, for this tenant, finds a place, whatever others leave unfinished.
    pub fn has_room(&self, remote: RemoteSlot, tenant: TenantSlot) -> bool {
        self.shares.has_room(Pair { remote, tenant })
    }

    /// Begins a message; `None` if its places are taken. The caller fills in the targets.
    pub fn begin(
        &mut self,
        key: Key,
        full_sequence: u64,
        header: &Header,
        tenant: TenantSlot,
        now_ns: i64,
    ) -> Option<usize> {
        let pair = Pair {
            remote: key.remote,
            tenant,
        };
        if !self.shares.has_room(pair) {
            return None;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Assembly::new(self.most_fragments));
            self.slots.len() - 1
        });
        self.shares.take(pair);
        self.by_key.insert(key, at);
        let slot = &mut self.slots[at];
        let count = header.length.div_ceil(u32::from(header.stride));
        slot.key = key;
        slot.full_sequence = full_sequence;
        slot.length = header.length;
        slot.stride = header.stride;
        slot.class = header.class;
        slot.sender = header.sender;
        slot.send_time_ns = header.send_time_ns;
        slot.targets.clear();
        slot.lost = false;
        slot.missing = count;
        slot.arrived[..(count as usize).div_ceil(64)].fill(0);
        slot.pair = pair;
        slot.deadline_ns = now_ns.saturating_add(self.timeout_ns);
        let slowest = i64::from(header.length) * NANOS_PER_BYTE;
        slot.last_ns = slot.deadline_ns.saturating_add(slowest);
        slot.used = true;
        self.next_check_ns = self.next_check_ns.min(slot.deadline_ns);
        self.last = at;
        Some(at)
    }

    /// Notes a fragment.
    #[inline]
    pub fn note(
        &mut self,
        at: usize,
        length: u32,
        stride: u16,
        index: u32,
        now_ns: i64,
    ) -> Fragment {
        let slot = &mut self.slots[at];
        if slot.length != length || slot.stride != stride {
            return Fragment::Refused;
        }
        let (word, bit) = (index as usize / 64, 1u64 << (index % 64));
        match slot.arrived.get_mut(word) {
            Some(word) if *word & bit == 0 => *word |= bit,
            _ => return Fragment::Refused,
        }
        slot.missing -= 1;
        let silent = now_ns.saturating_add(self.timeout_ns);
        slot.deadline_ns = silent.min(slot.last_ns);
        Fragment::New {
            complete: slot.missing == 0,
        }
    }

    /// The message at a place.
    pub fn get(&mut self, at: usize) -> &mut Assembly {
        &mut self.slots[at]
    }

    /// Frees a place.
    pub fn end(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        slot.used = false;
        if slot.targets.capacity() > MOST_KEPT {
            slot.targets = Vec::new();
        }
        self.by_key.remove(&slot.key);
        self.shares.give_back(slot.pair);
        self.free.push(at);
        if self.slots.len() > self.places {
            self.shrink();
        }
        if self.by_key.is_empty() {
            self.next_check_ns = i64::MAX;
        }
    }

    /// Lets go of the places that peers and tenants had of their own beyond those for all, and that nobody needs.
    #[cold]
    fn shrink(&mut self) {
        let before = self.slots.len();
        while self.slots.len() > self.places && self.slots.last().is_some_and(|slot| !slot.used) {
            self.slots.pop();
        }
        let count = self.slots.len();
        if count < before {
            self.free.retain(|at| *at < count);
        }
    }

    /// When to look for expired messages; `None` without any.
    pub fn next_check(&self) -> Option<i64> {
        (!self.by_key.is_empty()).then_some(self.next_check_ns)
    }

    /// A message whose next fragment is overdue, if any; the caller withdraws its targets and ends it.
    pub fn expired(&mut self, now_ns: i64) -> Option<usize> {
        if now_ns < self.next_check_ns {
            return None;
        }
        let found = self
            .slots
            .iter()
            .position(|slot| slot.used && now_ns >= slot.deadline_ns);
        if found.is_none() {
            self.next_check_ns = self
                .slots
                .iter()
                .filter(|s| s.used)
                .map(|s| s.deadline_ns)
                .min()
                .unwrap_or(i64::MAX);
        }
        found
    }

    /// A message of the same source that was begun before this one, which is complete. A source sends its messages
    /// one after the other over one path: what is missing of an earlier one does not come any more.
    pub fn superseded(&self, by: &Key) -> Option<usize> {
        if self.by_key.is_empty() {
            return None;
        }
        self.matching(|key| {
            let earlier = by.sequence.wrapping_sub(key.sequence);
            (key.remote, key.channel, key.source) == (by.remote, by.channel, by.source)
                && (1..1 << 31).contains(&earlier)
        })
    }

    /// Forgets targets that are gone, and messages without any: how many were looked at.
    pub fn retain_targets(&mut self, mut keep: impl FnMut(&Target) -> bool) -> usize {
        let (mut at, mut looks) = (0, 0);
        // Places at the end may go with the last message in them.
        while let Some(slot) = self.slots.get_mut(at) {
            at += 1;
            if !slot.used {
                continue;
            }
            looks += 1 + slot.targets.len();
            slot.targets.retain(&mut keep);
            if slot.targets.is_empty() {
                self.end(at - 1);
            }
        }
        looks
    }

    /// Any message that satisfies the condition: for ending those of a lane or channel that is gone.
    pub fn matching(&self, condition: impl Fn(&Key) -> bool) -> Option<usize> {
        self.slots
            .iter()
            .position(|slot| slot.used && condition(&slot.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: Key = Key {
        remote: RemoteSlot(1),
        channel: ChannelSlot(2),
        source: 0,
        sequence: 3,
    };

    const TENANT: TenantSlot = TenantSlot(0);

    fn header(length: u32, stride: u16) -> Header {
        Header {
            length,
            stride,
            class: TrafficClass::BEST_EFFORT,
            sender: 0,
            send_time_ns: 0,
        }
    }

    proptest! {
        #[test]
        fn a_message_is_complete_exactly_when_each_fragment_has_come_in_any_order(
            length in 257u32..200_000, stride in 256u16..9000, mut order in proptest::collection::vec(any::<u32>(), 800),
        ) {
            let mut reassembly = Reassembly::new(2, 1 << 20, Duration::from_secs(1));
            let h = header(length, stride);
            let count = length.div_ceil(u32::from(stride));
            let at = reassembly.begin(KEY, 3, &h, TENANT, 0).expect("free");
            for pick in &mut order {
                *pick %= count;
            }
            order.extend(0..count);
            let mut seen = std::collections::HashSet::new();
            for index in order {
                let fragment = reassembly.note(at, length, stride, index, 0);
                if seen.insert(index) {
                    let complete = seen.len() as u32 == count;
                    prop_assert_eq!(fragment, Fragment::New { complete });
                    if complete {
                        break;
                    }
                } else {
                    prop_assert_eq!(fragment, Fragment::Refused);
                }
            }
        }
    }

    #[test]
    fn a_fragment_that_contradicts_the_first_is_refused() {
        let mut reassembly = Reassembly::new(1, 1 << 20, Duration::from_secs(1));
        let at = reassembly
            .begin(KEY, 3, &header(1000, 500), TENANT, 0)
            .expect("free");
        assert_eq!(reassembly.note(at, 2000, 500, 1, 0), Fragment::Refused);
        assert_eq!(reassembly.note(at, 1000, 250, 1, 0), Fragment::Refused);
    }

    #[test]
    fn places_beyond_those_for_all_go_when_nobody_needs_them() {
        let mut reassembly = Reassembly::new(4, 1 << 20, Duration::from_secs(1));
        let h = header(4000, 1400);
        let begun: Vec<usize> = (0..64)
            .map(|remote| {
                let key = Key {
                    remote: RemoteSlot(remote / OWN),
                    sequence: remote as u32,
                    ..KEY
                };
                let at = reassembly.begin(key, 0, &h, TENANT, 0).expect("its own");
                let target = Target {
                    session: SessionSlot(0),
                    sink: SinkSlot(0),
                    chunk: 0,
                };
                reassembly.get(at).targets.resize(2 * MOST_KEPT, target);
                at
            })
            .collect();
        assert!(reassembly.slots.len() >= 64);
        // In any order, and those of the last ones with their sinks.
        let (some, rest) = begun.split_at(32);
        some.iter().for_each(|at| reassembly.end(*at));
        reassembly.retain_targets(|_| false);
        assert_eq!(
            (reassembly.slots.len(), reassembly.free.len()),
            (4, 4),
            "{rest:?}"
        );
        let kept = |slot: &Assembly| slot.targets.capacity();
        assert!(
            reassembly
                .slots
                .iter()
                .map(kept)
                .all(|kept| kept <= MOST_KEPT)
        );
        assert!(reassembly.begin(KEY, 0, &h, TENANT, 0).is_some());
    }

    #[test]
    fn unfinished_messages_of_one_lane_or_tenant_leave_places_to_others() {
        let mut reassembly = Reassembly::new(64, 1 << 20, Duration::from_secs(1));
        let h = header(4000, 1400);
        let begin = |reassembly: &mut Reassembly, remote, tenant, sequence| {
            let key = Key {
                remote: RemoteSlot(remote),
                sequence,
                ..KEY
            };
            reassembly
                .begin(key, 0, &h, TenantSlot(tenant), 0)
                .is_some()
        };
        let fill = |reassembly: &mut Reassembly, remote, tenant| {
            let mut sequences = 0..64u32;
            sequences
                .by_ref()
                .take_while(|at| begin(reassembly, remote, tenant, *at))
                .count()
        };
        // One peer, for one tenant; the same peer for others.
        assert_eq!(fill(&mut reassembly, 1, 1), 32);
        assert_eq!(fill(&mut reassembly, 1, 2), 16);
        assert_eq!(fill(&mut reassembly, 2, 3), 8);
        // However many there are, each has its own places.
        for remote in 3..50 {
            assert!(fill(&mut reassembly, remote, 1) >= OWN);
            assert!(fill(&mut reassembly, 1, remote) >= OWN);
        }
        // All are free again.
        while let Some(at) = reassembly.matching(|_| true) {
            reassembly.end(at);
        }
        assert_eq!(reassembly.next_check(), None);
        assert_eq!(fill(&mut reassembly, 9, 9), 32);
    }

    #[test]
    fn a_message_whose_sinks_have_gone_has_no_place() {
        let mut reassembly = Reassembly::new(2, 1 << 20, Duration::from_secs(1));
        let h = header(4000, 1400);
        for (sequence, session) in [(3, 0), (4, 1)] {
            let key = Key { sequence, ..KEY };
            let at = reassembly.begin(key, 3, &h, TENANT, 0).expect("free");
            let sinks = [0, session].map(|session| Target {
                session: SessionSlot(session),
                sink: SinkSlot(0),
                chunk: 0,
            });
            reassembly.get(at).targets.extend(sinks);
        }
        reassembly.retain_targets(|target| target.session != SessionSlot(0));
        assert_eq!(reassembly.find(KEY), None);
        assert!(reassembly.find(Key { sequence: 4, ..KEY }).is_some());
    }

    #[test]
    fn fragments_do_not_keep_a_message_for_ever() {
        let mut reassembly = Reassembly::new(1, 1 << 20, Duration::from_nanos(100));
        let h = header(3000, 300);
        let at = reassembly.begin(KEY, 3, &h, TENANT, 0).expect("free");
        let last = 100 + 3000 * NANOS_PER_BYTE;
        // Each comes in time, and the ninth just before the end.
        for index in 0..8 {
            reassembly.note(at, 3000, 300, index, i64::from(index) * 90);
        }
        reassembly.note(at, 3000, 300, 8, last - 1);
        assert_eq!(reassembly.expired(last - 1), None);
        assert_eq!(reassembly.expired(last), Some(at));
    }

    #[test]
    fn silence_expires_a_message_and_each_fragment_extends_its_time() {
        let mut reassembly = Reassembly::new(1, 1 << 20, Duration::from_nanos(100));
        let h = header(1000, 300);
        let at = reassembly.begin(KEY, 3, &h, TENANT, 0).expect("free");
        reassembly.note(at, 1000, 300, 0, 80);
        assert_eq!(reassembly.expired(120), None);
        assert_eq!(reassembly.expired(180), Some(at));
        reassembly.end(at);
        assert_eq!(reassembly.expired(1000), None);
        assert!(reassembly.find(KEY).is_none());
    }

    #[test]
    fn a_message_that_is_complete_supersedes_earlier_ones_of_its_source_alone() {
        let mut reassembly = Reassembly::new(8, 1 << 20, Duration::from_secs(1));
        let key = |source, sequence| Key {
            source,
            sequence,
            ..KEY
        };
        let mut begin = |key: Key| {
            let begun = reassembly.begin(key, 0, &header(1000, 500), TENANT, 0);
            begun.expect("free")
        };
        let before_wrap = begin(key(0, u32::MAX));
        let (later, done) = (begin(key(0, 3)), begin(key(0, 2)));
        begin(key(1, 1));
        reassembly.end(done);
        assert_eq!(reassembly.superseded(&key(0, 2)), Some(before_wrap));
        reassembly.end(before_wrap);
        assert_eq!(reassembly.superseded(&key(0, 2)), None);
        assert_eq!(reassembly.superseded(&key(0, 4)), Some(later));
    }

    #[test]
    fn fragments_too_small_for_the_bookkeeping_are_refused() {
        let reassembly = Reassembly::new(1, 1 << 20, Duration::from_secs(1));
        assert!(reassembly.accepts(&header(1 << 20, 256)));
        assert!(!reassembly.accepts(&header(1 << 20, 8)));
        assert!(!reassembly.accepts(&header(10, 0)));
    }
}
