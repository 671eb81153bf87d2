//! The rings between the sessions of trust domains, found by their source, their sink, both and the session of either; none
//! is looked for among all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

use takt_shm::SinkBell;

use super::account::Usage;
use crate::ids::SessionId;
use crate::slots::{SinkSlot, Slot, SourceSlot};

/// Rings of one source or of one sink: a thread sleeps on so many bells, and a source writes into so many for each message. Of
/// a sink those count as well that have ended, until it has let go of them: each keeps the memory of its source's session.
pub const MOST_RINGS: usize = SinkBell::MOST_BELLS;
/// The same with those that have ended while their sink is there: a lane remembers them for each source.
const MOST_OF_SOURCE: usize = 2 * MOST_RINGS;
/// Rings from a session, and rings to it, with those that have ended.
const MOST_OF_SESSION: usize = 2048;

/// A source of a session.
pub type SourcePlace = (SessionId, SourceSlot);
/// A sink of a session.
pub type SinkPlace = (SessionId, SinkSlot);

/// A ring between a source and a sink.
#[derive(Clone, Debug)]
pub struct Direct {
    pub source: SourcePlace,
    pub sink: SinkPlace,
    /// What the sink's session is charged.
    pub usage: Usage,
    /// The source gives it nothing any more; the sink may still read what it has got. Why.
    pub ended: Option<&'static str>,
    /// It has ended, and the sink knows.
    pub sink_told: bool,
    /// It has ended, and the sink has none of its messages any more.
    pub let_go: bool,
    /// When its first message was, in the source's count of epochs; when its last was, if it has ended.
    pub epoch: u16,
}

/// Whose rings are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Of {
    Source(SourcePlace),
    Sink(SinkPlace),
    SessionAsSource(SessionId),
    SessionAsSink(SessionId),
}

/// Rings that have not ended, and all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    begun: usize,
    all: usize,
}

/// Rings by the places of one end and of the other.
type Index<S, T> = BTreeSet<((SessionId, S), (SessionId, T), u32)>;

/// All rings of a node.
#[derive(Debug, Default)]
pub struct Rings {
    all: BTreeMap<u32, Direct>,
    /// Source, sink, ring.
    from: Index<SourceSlot, SinkSlot>,
    /// Sink, source, ring.
    to: Index<SinkSlot, SourceSlot>,
    counts: HashMap<Of, Count>,
}

/// In the place of a source's: it is closed.
const CLOSED: SourceSlot = SourceSlot(usize::MAX);

/// All places of a session.
fn all_of<S: Slot>(id: SessionId) -> RangeInclusive<(SessionId, S)> {
    (id, S::new(0))..=(id, S::new(usize::MAX))
}

/// Rings of these places.
fn between<S: Slot + Ord, T: Slot + Ord>(
    index: &Index<S, T>,
    places: RangeInclusive<(SessionId, S)>,
) -> Vec<u32> {
    let first = (*places.start(), (SessionId(0), T::new(0)), 0);
    let other = (SessionId(u32::MAX), T::new(usize::MAX));
    let found = index.range(first..=(*places.end(), other, u32::MAX));
    found.map(|(_, _, number)| *number).collect()
}

impl Rings {
    pub fn get(&self, number: u32) -> Option<&Direct> {
        self.all.get(&number)
    }

    /// Adds a ring that begins, under a number that no other has.
    pub fn insert(&mut self, number: u32, ring: Direct) {
        self.index(number, &ring);
        self.all.insert(number, ring);
    }

    /// A ring ends, for this reason if it had not ended before. True then.
    pub fn end(&mut self, number: u32, why: &'static str) -> bool {
        let Some(mut ring) = self.take(number) else {
            return false;
        };
        let begun = ring.ended.is_none();
        ring.ended.get_or_insert(why);
        self.insert(number, ring);
        begun
    }

    /// The sink of a ring that has ended is told so: which it is, the first time.
    pub fn tell_sink(&mut self, number: u32) -> Option<SinkPlace> {
        let ring = self.all.get_mut(&number)?;
        let first = !std::mem::replace(&mut ring.sink_told, true);
        first.then_some(ring.sink)
    }

    /// The epoch of its last change.
    pub fn set_epoch(&mut self, number: u32, epoch: u16) {
        if let Some(ring) = self.all.get_mut(&number) {
            ring.epoch = epoch;
        }
    }

    /// Forgets a ring.
    pub fn remove(&mut self, number: u32) {
        self.take(number);
    }

    /// The source of a ring is closed, and its number may be another's: the ring is still its session's, also if that is gone.
    pub fn close(&mut self, number: u32) {
        if let Some(mut ring) = self.take(number) {
            ring.source.1 = CLOSED;
            self.insert(number, ring);
        }
    }

    /// The sink has none of the messages of a ring any more, which has ended. True: its source is closed as well.
    pub fn let_go(&mut self, number: u32) -> bool {
        let Some(mut ring) = self.take(number) else {
            return false;
        };
        ring.let_go = true;
        let closed = ring.source.1 == CLOSED;
        self.insert(number, ring);
        closed
    }

    pub fn of_source(&self, source: SourcePlace) -> Vec<u32> {
        between(&self.from, source..=source)
    }

    pub fn of_sink(&self, sink: SinkPlace) -> Vec<u32> {
        between(&self.to, sink..=sink)
    }

    /// Those from a session.
    pub fn of_sources_session(&self, id: SessionId) -> Vec<u32> {
        between(&self.from, all_of(id))
    }

    /// Those to a session.
    pub fn of_sinks_session(&self, id: SessionId) -> Vec<u32> {
        between(&self.to, all_of(id))
    }

    /// Whether a pair has one, or had one and its sink is still there.
    pub fn has(&self, source: SourcePlace, sink: SinkPlace) -> bool {
        let of_pair = (source, sink, 0)..=(source, sink, u32::MAX);
        self.from.range(of_pair).next().is_some()
    }

    /// Whether a pair may not have one besides all those there are: why.
    pub fn refuses(&self, source: SourcePlace, sink: SinkPlace) -> Option<&'static str> {
        let count = |of| self.counts.get(&of).copied().unwrap_or_default();
        let (of_source, of_sink) = (count(Of::Source(source)), count(Of::Sink(sink)));
        if of_source.begun >= MOST_RINGS || of_sink.all >= MOST_RINGS {
            return Some("the source or the sink has as many rings as it may have");
        }
        if of_source.all >= MOST_OF_SOURCE {
            return Some("too many rings of the source have ended whose sinks are there");
        }
        let sessions = [Of::SessionAsSource(source.0), Of::SessionAsSink(sink.0)];
        let full = |of: &Of| count(*of).all >= MOST_OF_SESSION;
        let full = sessions.iter().any(full);
        full.then_some("a session has as many rings as it may have, those that have ended included")
    }

    fn index(&mut self, number: u32, ring: &Direct) {
        self.from.insert((ring.source, ring.sink, number));
        self.to.insert((ring.sink, ring.source, number));
        for of in Self::counted(ring) {
            let count = self.counts.entry(of).or_default();
            count.all += 1;
            count.begun += usize::from(ring.ended.is_none());
        }
    }

    fn take(&mut self, number: u32) -> Option<Direct> {
        let ring = self.all.remove(&number)?;
        self.from.remove(&(ring.source, ring.sink, number));
        self.to.remove(&(ring.sink, ring.source, number));
        for of in Self::counted(&ring) {
            if let Some(count) = self.counts.get_mut(&of) {
                count.all -= 1;
                count.begun -= usize::from(ring.ended.is_none());
                if count.all == 0 {
                    self.counts.remove(&of);
                }
            }
        }
        Some(ring)
    }

    fn counted(ring: &Direct) -> impl Iterator<Item = Of> + use<> {
        let all = [
            Of::Source(ring.source),
            Of::SessionAsSource(ring.source.0),
            Of::SessionAsSink(ring.sink.0),
        ];
        let sink = (!ring.let_go).then_some(Of::Sink(ring.sink));
        all.into_iter().chain(sink)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at<S: Slot>(session: u32, endpoint: usize) -> (SessionId, S) {
        (SessionId(session), S::new(endpoint))
    }

    fn ring(source: SourcePlace, sink: SinkPlace) -> Direct {
        Direct {
            source,
            sink,
            usage: Usage::default(),
            ended: None,
            sink_told: false,
            let_go: false,
            epoch: 1,
        }
    }

    #[test]
    fn a_source_and_a_sink_have_so_many_rings_at_a_time() {
        let mut rings = Rings::default();
        for number in 0..MOST_RINGS {
            assert_eq!(rings.refuses(at(1, 0), at(2, number)), None);
            rings.insert(number as u32, ring(at(1, 0), at(2, number)));
        }
        assert!(rings.refuses(at(1, 0), at(3, 0)).is_some());
        assert_eq!(rings.refuses(at(1, 1), at(3, 0)), None);
        assert!(rings.end(0, "over") && !rings.end(0, "again"));
        assert_eq!(rings.get(0).and_then(|ring| ring.ended), Some("over"));
        assert_eq!(rings.refuses(at(1, 0), at(3, 0)), None);
        assert!(rings.has(at(1, 0), at(2, 0)), "no second one for the pair");
    }

    fn close(rings: &mut Rings, source: SourcePlace) {
        let all = rings.of_source(source);
        all.into_iter().for_each(|number| rings.close(number));
    }

    #[test]
    fn rings_that_have_ended_count_for_their_sink_until_it_has_let_go() {
        let mut rings = Rings::default();
        for number in 0..MOST_RINGS as u32 {
            let (source, sink) = (at(number + 1, 0), at(0, 0));
            assert_eq!(rings.refuses(source, sink), None);
            rings.insert(number, ring(source, sink));
            rings.end(number, "over");
            close(&mut rings, source);
        }
        assert!(rings.refuses(at(1000, 0), at(0, 0)).is_some());
        assert!(rings.let_go(7), "its source is closed");
        assert_eq!(rings.refuses(at(1000, 0), at(0, 0)), None);
        assert_eq!(rings.of_sink(at(0, 0)).len(), MOST_RINGS);
    }

    #[test]
    fn rings_that_have_ended_count_until_their_sinks_are_gone() {
        let mut rings = Rings::default();
        let mut number = 0;
        while rings.refuses(at(1, 0), at(2, number)).is_none() {
            rings.insert(number as u32, ring(at(1, 0), at(2, number)));
            rings.end(number as u32, "slow");
            number += 1;
        }
        assert_eq!(number, MOST_OF_SOURCE);
        // Its successors at the same number have none of them, their session does.
        close(&mut rings, at(1, 0));
        let mut sources = 0;
        while rings.refuses(at(1, 0), at(3, sources)).is_none() {
            rings.insert(number as u32, ring(at(1, 0), at(3, sources)));
            close(&mut rings, at(1, 0));
            assert!(!rings.has(at(1, 0), at(3, sources)));
            (number, sources) = (number + 1, sources + 1);
        }
        assert_eq!(number, MOST_OF_SESSION);
        assert_eq!(
            rings.of_sources_session(SessionId(1)).len(),
            MOST_OF_SESSION
        );
        rings
            .of_sink(at(3, 0))
            .into_iter()
            .for_each(|n| rings.remove(n));
        assert_eq!(rings.refuses(at(1, 0), at(3, 0)), None);
    }

    proptest! {
        /// As all of them looked through.
        #[test]
        fn what_is_found_is_what_is_there(
            acts in proptest::collection::vec((0u8..6, 0u32..3, 0usize..3, 3u32..6, 0usize..3), 0..80),
        ) {
            let mut rings = Rings::default();
            for (number, (act, source, s, sink, k)) in (0u32..).zip(acts) {
                let (source, sink) = (at(source, s), at(sink, k));
                match act {
                    0..3 => rings.insert(number, ring(source, sink)),
                    3 => rings.of_source(source).into_iter().for_each(|n| {
                        rings.end(n, "over");
                    }),
                    4 => close(&mut rings, source),
                    _ => rings.of_sink(sink).into_iter().for_each(|n| rings.remove(n)),
                }
                let find = |which: &dyn Fn(&Direct) -> bool| -> BTreeSet<u32> {
                    let found = rings.all.iter().filter(|(_, ring)| which(ring));
                    found.map(|(number, _)| *number).collect()
                };
                let set = |found: Vec<u32>| found.into_iter().collect::<BTreeSet<u32>>();
                prop_assert_eq!(set(rings.of_source(source)), find(&|r| r.source == source));
                prop_assert_eq!(set(rings.of_sink(sink)), find(&|r| r.sink == sink));
                prop_assert_eq!(set(rings.of_sources_session(source.0)), find(&|r| r.source.0 == source.0));
                prop_assert_eq!(set(rings.of_sinks_session(sink.0)), find(&|r| r.sink.0 == sink.0));
                let pair = find(&|r| (r.source, r.sink) == (source, sink));
                prop_assert_eq!(rings.has(source, sink), !pair.is_empty());
                let begun = find(&|r| r.source == source && r.ended.is_none()).len();
                let all = find(&|r| r.source == source).len();
                let count = rings.counts.get(&Of::Source(source)).copied().unwrap_or_default();
                prop_assert_eq!(count, Count { begun, all });
            }
        }
    }
}
