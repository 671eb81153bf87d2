//! What this node's sinks want, and how far its sources are: what peers and sibling lanes are told of.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::counters::Counter;
use crate::ids::SessionId;
use crate::peering::message::{SourceProgress, Subscription};

/// How often the last number of a source is told, unless it changes: twice to count, once against loss.
const TELL_TIMES: u8 = 3;
/// Sources told of in one go.
const MOST_TOLD: usize = 1024;
/// Ended sources that are still to be told of, whoever opens and closes many.
const MOST_ENDED: usize = 4 * MOST_TOLD;

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
    ended: bool,
}

/// The sources of this node, by lane and number.
#[derive(Debug, Default)]
pub struct Sources {
    /// Numbers that are taken.
    numbers: HashSet<u32>,
    all: BTreeMap<(usize, u32), Source>,
    /// How many of them have ended.
    ended: usize,
    /// The last one told of.
    last: (usize, u32),
}

impl Sources {
    /// Takes a number for a new source: the one wished, or the next that is free.
    pub fn number(&mut self, wished: u32) -> u32 {
        let mut number = wished;
        while !self.numbers.insert(number) {
            number = number.wrapping_add(1);
        }
        number
    }

    /// A source is there.
    pub fn open(&mut self, lane: usize, number: u32, channel: u64, left: Arc<Counter>) {
        let source = Source {
            channel,
            told: 0,
            left,
            again: 0,
            ended: false,
        };
        self.all.insert((lane, number), source);
    }

    /// It writes no more.
    pub fn end(&mut self, lane: usize, number: u32) {
        match self.all.get_mut(&(lane, number)) {
            Some(source) if self.ended < MOST_ENDED => {
                self.ended += 1;
                source.ended = true;
                source.again = TELL_TIMES;
            }
            // Peers are not told of it: there are too many, or they never were.
            _ => {
                self.all.remove(&(lane, number));
                self.numbers.remove(&number);
            }
        }
    }

    /// What to tell now: those whose number has changed lately.
    pub fn progress(&mut self) -> Vec<(u8, SourceProgress)> {
        let mut told = Vec::new();
        let mut ended = Vec::new();
        let after = (
            std::ops::Bound::Excluded(self.last),
            std::ops::Bound::Unbounded,
        );
        let turn: Vec<_> = self
            .all
            .range(after)
            .chain(self.all.range(..=self.last))
            .map(|(key, _)| *key)
            .collect();
        for key in turn {
            let Some(source) = self.all.get_mut(&key) else {
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
            if told.len() == MOST_TOLD {
                self.last = key;
                break;
            }
        }
        self.ended -= ended.len();
        for key in ended {
            self.all.remove(&key);
            self.numbers.remove(&key.1);
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
        sources.open(1, 9, 5, left.clone());
        assert_eq!(sources.progress(), []);
        left.set(4);
        for _ in 0..TELL_TIMES {
            let told = sources.progress();
            assert_eq!((told.len(), told[0].1.next, told[0].1.ended), (1, 4, false));
        }
        assert_eq!(sources.progress(), []);
        sources.end(1, 9);
        for _ in 0..TELL_TIMES {
            assert!(sources.progress()[0].1.ended);
        }
        assert!(sources.all.is_empty());
    }

    #[test]
    fn a_number_is_given_to_one_source_until_peers_know_that_it_has_ended() {
        let mut sources = Sources::default();
        assert_eq!((sources.number(9), sources.number(9)), (9, 10));
        sources.open(0, 9, 5, Arc::default());
        sources.end(0, 9);
        // A source of frames, of which peers are not told.
        sources.end(0, 10);
        assert_eq!((sources.number(10), sources.number(9)), (10, 11));
        for _ in 0..TELL_TIMES {
            assert_eq!(sources.progress().len(), 1);
        }
        assert_eq!(sources.number(9), 9);
    }

    #[test]
    fn who_opens_and_closes_many_sources_fills_nothing() {
        let mut sources = Sources::default();
        for _ in 0..2 * MOST_ENDED {
            let number = sources.number(9);
            sources.open(0, number, 5, Arc::default());
            sources.end(0, number);
        }
        assert_eq!(sources.all.len(), MOST_ENDED);
        while !sources.progress().is_empty() {}
        assert!(sources.all.is_empty() && sources.numbers.is_empty());
        assert_eq!(sources.ended, 0);
    }

    #[test]
    fn of_many_sources_all_have_their_turn() {
        let mut sources = Sources::default();
        for number in 0..3 * MOST_TOLD as u32 {
            let left = Arc::new(Counter::default());
            left.set(1);
            sources.open(0, number, 5, left);
        }
        let mut told: Vec<u32> = (0..3)
            .flat_map(|_| sources.progress())
            .map(|(_, progress)| progress.source)
            .collect();
        told.sort_unstable();
        assert!(told.iter().copied().eq(0..3 * MOST_TOLD as u32));
    }
}
