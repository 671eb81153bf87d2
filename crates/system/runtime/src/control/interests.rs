//! What this node's sinks want, and how far its sources are: what peers and sibling lanes are told of.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use crate::counters::Counter;
use crate::ids::SessionId;
use crate::peering::message::{SourceProgress, Subscription};

/// How often the last number of a source is told, unless it changes, once in a second: twice to count, and the others against
/// an outage that is too short for the peer to be taken for gone.
const TELL_TIMES: u8 = 6;
/// Sources told of in one go, of all tenants.
const MOST_TOLD: usize = 1024;
/// Ended sources of a tenant that are still to be told of, however many it opens and closes.
const MOST_ENDED: usize = MOST_TOLD;

/// How many sinks want each channel on each lane.
#[derive(Debug, Default)]
pub struct Interests {
    sinks: HashMap<Subscription, u32>,
    sessions: HashMap<SessionId, BTreeSet<Subscription>>,
}

impl Interests {
    /// What a session wants now, in place of what it wanted. What that changes for the node: each entry, and whether
    /// it is wanted.
    pub fn replace(
        &mut self,
        session: SessionId,
        wanted: BTreeSet<Subscription>,
    ) -> Vec<(Subscription, bool)> {
        let before = match wanted.is_empty() {
            true => self.sessions.remove(&session),
            false => self.sessions.insert(session, wanted.clone()),
        };
        let before = before.unwrap_or_default();
        let mut changes = Vec::new();
        for &entry in wanted.difference(&before) {
            let count = self.sinks.entry(entry).or_default();
            *count += 1;
            if *count == 1 {
                changes.push((entry, true));
            }
        }
        for &entry in before.difference(&wanted) {
            if let Some(count) = self.sinks.get_mut(&entry) {
                *count -= 1;
                if *count == 0 {
                    self.sinks.remove(&entry);
                    changes.push((entry, false));
                }
            }
        }
        changes
    }
}

/// A source on a lane.
#[derive(Debug)]
struct Source {
    channel: u64,
    /// All messages below this number have left.
    left: Arc<Counter>,
    told: u64,
    /// How often to tell it again.
    again: u8,
    /// In which turn it was told last.
    turn: u32,
    ended: bool,
}

/// The sources of a tenant, by lane and number.
#[derive(Debug, Default)]
struct OfTenant {
    all: BTreeMap<(usize, u32), Source>,
    /// How many of them have ended.
    ended: usize,
    /// The last one told of.
    last: (usize, u32),
}

impl OfTenant {
    /// Tells of those whose number has changed lately, of `most` at most. The numbers that are free then.
    fn progress(
        &mut self,
        turn: u32,
        most: usize,
        told: &mut Vec<(u8, SourceProgress)>,
    ) -> Vec<u32> {
        let end = told.len() + most;
        let mut ended = Vec::new();
        let after = (Bound::Excluded(self.last), Bound::Unbounded);
        let keys = self.all.range(after).chain(self.all.range(..=self.last));
        let keys: Vec<_> = keys.map(|(key, _)| *key).collect();
        for key in keys {
            if told.len() == end {
                break;
            }
            let Some(source) = self.all.get_mut(&key).filter(|s| s.turn != turn) else {
                continue;
            };
            let left = source.left.get();
            if left != source.told {
                source.told = left;
                source.again = TELL_TIMES;
            }
            if source.again == 0 {
                continue;
            }
            source.again -= 1;
            source.turn = turn;
            self.last = key;
            let (lane, number) = key;
            let progress = SourceProgress {
                channel: source.channel,
                source: number,
                next: left as u32,
                ended: source.ended,
            };
            told.push((lane as u8, progress));
            if source.ended && source.again == 0 {
                ended.push(key);
            }
        }
        self.ended -= ended.len();
        for key in &ended {
            self.all.remove(key);
        }
        ended.into_iter().map(|(_, number)| number).collect()
    }
}

/// The sources of this node. Who opens and closes many of them takes nobody else's turn.
#[derive(Debug, Default)]
pub struct Sources {
    /// Numbers that are taken, and by which tenant.
    numbers: HashMap<u32, u32>,
    tenants: BTreeMap<u32, OfTenant>,
    turn: u32,
    /// The tenant that began the last turn.
    last: u32,
}

impl Sources {
    /// Takes a number for a new source of a tenant: the one wished, or the next that is free.
    pub fn number(&mut self, tenant: u32, wished: u32) -> u32 {
        let mut number = wished;
        while self.numbers.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        self.numbers.insert(number, tenant);
        number
    }

    /// A source is there.
    pub fn open(&mut self, lane: usize, number: u32, channel: u64, left: Arc<Counter>) {
        let Some(tenant) = self.numbers.get(&number) else {
            return;
        };
        let source = Source {
            channel,
            told: 0,
            left,
            again: 0,
            turn: self.turn,
            ended: false,
        };
        let sources = self.tenants.entry(*tenant).or_default();
        sources.all.insert((lane, number), source);
    }

    /// A peer is back that may not have heard the last that was told: it is told again.
    pub fn tell_again(&mut self) {
        let all = self.tenants.values_mut().flat_map(|of| of.all.values_mut());
        for source in all.filter(|source| source.told > 0) {
            source.again = TELL_TIMES;
        }
    }

    /// It writes no more.
    pub fn end(&mut self, lane: usize, number: u32) {
        let Some(tenant) = self.numbers.get(&number).copied() else {
            return;
        };
        if let Some(sources) = self.tenants.get_mut(&tenant) {
            if sources.ended < MOST_ENDED
                && let Some(source) = sources.all.get_mut(&(lane, number))
            {
                sources.ended += 1;
                source.ended = true;
                source.again = TELL_TIMES;
                return;
            }
            sources.all.remove(&(lane, number));
        }
        // Peers are not told of it: the tenant has too many, or they never were.
        self.numbers.remove(&number);
    }

    /// What to tell now: those whose number has changed lately, of each tenant as many as of another where not all have room.
    pub fn progress(&mut self) -> Vec<(u8, SourceProgress)> {
        let mut told = Vec::new();
        self.turn = self.turn.wrapping_add(1);
        let tenants = self
            .tenants
            .range((Bound::Excluded(self.last), Bound::Unbounded));
        let order = tenants.chain(self.tenants.range(..=self.last));
        let order: Vec<u32> = order.map(|(tenant, _)| *tenant).collect();
        self.last = order.first().copied().unwrap_or_default();
        let share = MOST_TOLD.div_ceil(order.len().max(1));
        // The second time, what others have left over.
        for most in [share, MOST_TOLD] {
            for tenant in &order {
                let room = most.min(MOST_TOLD - told.len());
                let Some(sources) = self.tenants.get_mut(tenant).filter(|_| room > 0) else {
                    continue;
                };
                for number in sources.progress(self.turn, room, &mut told) {
                    self.numbers.remove(&number);
                }
                if sources.all.is_empty() {
                    self.tenants.remove(tenant);
                }
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(channel: u64) -> Subscription {
        Subscription { channel, lane: 0 }
    }

    #[test]
    fn a_channel_is_wanted_from_its_first_sink_to_its_last() {
        let mut interests = Interests::default();
        let set = |channels: &[u64]| channels.iter().copied().map(entry).collect();
        assert_eq!(
            interests.replace(SessionId(1), set(&[5])),
            [(entry(5), true)]
        );
        assert_eq!(
            interests.replace(SessionId(2), set(&[5, 6])),
            [(entry(6), true)]
        );
        assert_eq!(interests.replace(SessionId(1), set(&[])), []);
        assert_eq!(
            interests.replace(SessionId(2), set(&[6])),
            [(entry(5), false)]
        );
        assert_eq!(
            interests.replace(SessionId(2), set(&[])),
            [(entry(6), false)]
        );
        assert!(interests.sinks.is_empty() && interests.sessions.is_empty());
    }

    #[test]
    fn a_source_is_told_of_when_it_has_moved_and_forgotten_when_it_has_ended() {
        let mut sources = Sources::default();
        let left = Arc::new(Counter::default());
        assert_eq!(sources.number(1, 9), 9);
        sources.open(1, 9, 5, left.clone());
        assert_eq!(sources.progress(), []);
        left.set(4);
        for _ in 0..TELL_TIMES {
            let told = sources.progress();
            assert_eq!((told.len(), told[0].1.next, told[0].1.ended), (1, 4, false));
        }
        assert_eq!(sources.progress(), []);
        // A peer was away.
        sources.tell_again();
        for _ in 0..TELL_TIMES {
            assert_eq!(sources.progress()[0].1.next, 4);
        }
        assert_eq!(sources.progress(), []);
        sources.end(1, 9);
        for _ in 0..TELL_TIMES {
            assert!(sources.progress()[0].1.ended);
        }
        assert!(sources.tenants.is_empty());
    }

    #[test]
    fn a_number_is_given_to_one_source_until_peers_know_that_it_has_ended() {
        let mut sources = Sources::default();
        assert_eq!((sources.number(1, 9), sources.number(1, 9)), (9, 10));
        sources.open(0, 9, 5, Arc::default());
        sources.end(0, 9);
        // A source of frames, of which peers are not told.
        sources.end(0, 10);
        assert_eq!((sources.number(1, 10), sources.number(1, 9)), (10, 11));
        for _ in 0..TELL_TIMES {
            assert_eq!(sources.progress().len(), 1);
        }
        assert_eq!(sources.number(1, 9), 9);
    }

    #[test]
    fn who_opens_and_closes_many_sources_fills_nothing() {
        let mut sources = Sources::default();
        for _ in 0..2 * MOST_ENDED {
            let number = sources.number(1, 9);
            sources.open(0, number, 5, Arc::default());
            sources.end(0, number);
        }
        assert_eq!(sources.tenants[&1].all.len(), MOST_ENDED);
        while !sources.progress().is_empty() {}
        assert!(sources.tenants.is_empty() && sources.numbers.is_empty());
    }

    #[test]
    fn of_many_sources_all_have_their_turn() {
        let mut sources = Sources::default();
        for number in 0..3 * MOST_TOLD as u32 {
            let left = Arc::new(Counter::default());
            left.set(1);
            assert_eq!(sources.number(1, number), number);
            sources.open(0, number, 5, left);
        }
        let mut told: Vec<u32> = (0..3)
            .flat_map(|_| sources.progress())
            .map(|(_, progress)| progress.source)
            .collect();
        told.sort_unstable();
        assert!(told.iter().copied().eq(0..3 * MOST_TOLD as u32));
    }
    #[test]
    fn who_opens_and_closes_many_sources_takes_nobody_elses_turn() {
        let mut sources = Sources::default();
        let victims: Vec<u32> = (0..8)
            .map(|_| {
                let number = sources.number(2, 0x8000_0000);
                let left = Arc::new(Counter::default());
                left.set(4);
                sources.open(0, number, 5, left);
                number
            })
            .collect();
        let churn = |sources: &mut Sources| {
            for _ in 0..2 * MOST_ENDED {
                let number = sources.number(1, 9);
                sources.open(0, number, 5, Arc::default());
                sources.end(0, number);
            }
        };
        churn(&mut sources);
        for &number in &victims {
            sources.end(0, number);
        }
        for turn in 0..TELL_TIMES {
            let told = sources.progress();
            assert_eq!(told.len(), MOST_TOLD, "what one leaves over is another's");
            let ended = told
                .iter()
                .filter(|(_, told)| victims.contains(&told.source) && told.ended && told.next == 4);
            assert_eq!(ended.count(), victims.len(), "turn {turn}");
            churn(&mut sources);
        }
        assert!(!sources.tenants.contains_key(&2));
    }
}
