//! Bounded queues ordered by time, stable among equal times, that share one room.
//!
//! Leftist heaps over one slab: as many as there are flows, none of which needs room of its own. To queue and to
//! take out costs the logarithm of a heap's length at the worst, not on average only.

use takt_time::TaiTime;

use super::Queued;
use crate::port::TxFlags;

/// No node.
const NONE: u32 = u32::MAX;
/// Most nodes on the right spines of two heaps that are merged: the logarithm of their number, each.
const MOST_MERGED: usize = 66;

/// A queue: the node with its earliest frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeHeap(u32);

impl TimeHeap {
    /// Without a frame.
    pub const EMPTY: Self = Self(NONE);

    pub fn is_empty(self) -> bool {
        self.0 == NONE
    }
}

/// The frames of all queues.
#[derive(Debug)]
pub(super) struct Frames<T> {
    nodes: Box<[Node]>,
    frames: Box<[Option<Queued<T>>]>,
    free: Vec<u32>,
    arrivals: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The time from the earliest one that there is, so that it orders without a sign.
    time: u64,
    arrival: u64,
    left: u32,
    right: u32,
    /// Nodes down the right spine.
    rank: u32,
    len: u32,
}

const SIGN: u64 = 1 << 63;

impl<T> Frames<T> {
    /// Room for `capacity` frames, at most `u32::MAX - 1`.
    pub fn new(capacity: usize) -> Self {
        let slots = u32::try_from(capacity).unwrap_or(NONE).min(NONE - 1);
        let node = Node {
            time: 0,
            arrival: 0,
            left: NONE,
            right: NONE,
            rank: 1,
            len: 0,
        };
        Self {
            nodes: vec![node; slots as usize].into_boxed_slice(),
            frames: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            arrivals: 0,
        }
    }

    /// Queues a frame; gives it back when there is no room.
    pub fn push(
        &mut self,
        heap: &mut TimeHeap,
        time: TaiTime,
        frame: Queued<T>,
    ) -> Result<(), Queued<T>> {
        let Some(slot) = self.free.pop() else {
            return Err(frame);
        };
        self.nodes[slot as usize] = Node {
            time: time.as_nanos() as u64 ^ SIGN,
            arrival: self.arrivals,
            left: NONE,
            right: NONE,
            rank: 1,
            len: frame.item.len,
        };
        self.arrivals += 1;
        self.frames[slot as usize] = Some(frame);
        heap.0 = self.merge(heap.0, slot);
        Ok(())
    }

    /// How the launch time of the earliest frame is meant.
    pub fn flags(&self, heap: TimeHeap) -> TxFlags {
        let frame = self.frames.get(heap.0 as usize).and_then(Option::as_ref);
        frame.map_or(TxFlags::default(), |frame| frame.item.flags)
    }

    /// Time and length of the earliest frame.
    pub fn peek(&self, heap: TimeHeap) -> Option<(TaiTime, u32)> {
        let first = self.nodes.get(heap.0 as usize)?;
        Some((TaiTime::from_nanos((first.time ^ SIGN) as i64), first.len))
    }

    /// Removes the earliest frame.
    pub fn pop(&mut self, heap: &mut TimeHeap) -> Option<Queued<T>> {
        let first = *self.nodes.get(heap.0 as usize)?;
        let slot = std::mem::replace(&mut heap.0, NONE);
        heap.0 = self.merge(first.left, first.right);
        self.free.push(slot);
        self.frames[slot as usize].take()
    }

    /// Hands over every frame of a queue that `unwanted` says, and keeps the order of the rest.
    pub fn remove(
        &mut self,
        heap: &mut TimeHeap,
        unwanted: &mut dyn FnMut(&Queued<T>) -> bool,
        sink: &mut dyn FnMut(Queued<T>),
    ) {
        let mut unseen = vec![std::mem::replace(&mut heap.0, NONE)];
        while let Some(slot) = unseen.pop() {
            let Some(node) = self.nodes.get_mut(slot as usize) else {
                continue;
            };
            unseen.extend([node.left, node.right]);
            (node.left, node.right, node.rank) = (NONE, NONE, 1);
            match self.frames[slot as usize].take_if(|frame| unwanted(frame)) {
                Some(frame) => {
                    self.free.push(slot);
                    sink(frame);
                }
                None => heap.0 = self.merge(heap.0, slot),
            }
        }
    }

    fn rank(&self, slot: u32) -> u32 {
        self.nodes.get(slot as usize).map_or(0, |node| node.rank)
    }

    /// Two heaps become one.
    fn merge(&mut self, mut one: u32, mut other: u32) -> u32 {
        let mut spine = [NONE; MOST_MERGED];
        let mut depth = 0;
        while one != NONE && other != NONE {
            let key = |slot: u32| {
                let node = &self.nodes[slot as usize];
                (node.time, node.arrival)
            };
            if key(other) < key(one) {
                std::mem::swap(&mut one, &mut other);
            }
            spine[depth] = one;
            depth += 1;
            one = self.nodes[one as usize].right;
        }
        let mut merged = if one == NONE { other } else { one };
        for &at in spine[..depth].iter().rev() {
            let left = self.nodes[at as usize].left;
            let (long, short) = match self.rank(left) < self.rank(merged) {
                true => (merged, left),
                false => (left, merged),
            };
            let rank = self.rank(short) + 1;
            let node = &mut self.nodes[at as usize];
            (node.left, node.right, node.rank) = (long, short, rank);
            merged = at;
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::port::{Item, Token};

    fn frame(number: u64) -> Queued<u64> {
        Queued {
            token: Token(number),
            item: Item::new(60 + number as u32, number),
        }
    }

    fn at(nanos: i64) -> TaiTime {
        TaiTime::from_nanos(nanos)
    }

    fn drain(frames: &mut Frames<u64>, heap: &mut TimeHeap) -> Vec<u64> {
        std::iter::from_fn(|| frames.pop(heap).map(|frame| frame.token.0)).collect()
    }

    #[test]
    fn full_room_gives_the_frame_back() {
        let mut frames = Frames::new(1);
        let (mut one, mut other) = (TimeHeap::EMPTY, TimeHeap::EMPTY);
        assert!(frames.push(&mut one, at(5), frame(0)).is_ok());
        let refused = frames.push(&mut other, at(1), frame(1)).unwrap_err();
        assert_eq!(refused.token, Token(1));
        assert_eq!(drain(&mut frames, &mut one), [0]);
        assert!(frames.push(&mut other, at(1), frame(1)).is_ok());
        assert!(one.is_empty() && !other.is_empty());
    }

    proptest! {
        #[test]
        fn frames_leave_by_time_and_among_equal_times_as_they_came(
            times in prop::collection::vec(
                prop_oneof![-4i64..5, Just(i64::MIN), Just(i64::MAX), any::<i64>()],
                0..200,
            ),
        ) {
            let (mut frames, mut heap) = (Frames::new(times.len()), TimeHeap::EMPTY);
            for (number, time) in times.iter().enumerate() {
                frames.push(&mut heap, at(*time), frame(number as u64)).unwrap();
            }
            let mut expected: Vec<u64> = (0..times.len() as u64).collect();
            expected.sort_by_key(|number| times[*number as usize]);
            prop_assert_eq!(drain(&mut frames, &mut heap), expected);
        }

        #[test]
        fn queues_that_share_a_room_keep_their_own_order(
            acts in prop::collection::vec((0usize..3, prop::option::of(any::<i8>())), 0..300),
        ) {
            let (mut frames, mut heaps) = (Frames::new(acts.len()), [TimeHeap::EMPTY; 3]);
            let mut models: [Vec<(i8, u64)>; 3] = Default::default();
            for (number, (which, act)) in acts.into_iter().enumerate() {
                let (heap, model) = (&mut heaps[which], &mut models[which]);
                match act {
                    Some(time) => {
                        frames.push(heap, at(time.into()), frame(number as u64)).unwrap();
                        model.push((time, number as u64));
                        model.sort();
                    }
                    None => {
                        let expected = (!model.is_empty()).then(|| model.remove(0));
                        let head = expected.map(|(time, number)| (at(time.into()), 60 + number as u32));
                        prop_assert_eq!(frames.peek(*heap), head);
                        let expected = expected.map(|(_, number)| number);
                        prop_assert_eq!(frames.pop(heap).map(|frame| frame.token.0), expected);
                    }
                }
                prop_assert_eq!(heap.is_empty(), model.is_empty());
            }
        }

        #[test]
        fn removing_some_leaves_the_others_in_order(
            times in prop::collection::vec(any::<i8>(), 0..100),
            modulus in 1u64..5,
        ) {
            let (mut frames, mut heap) = (Frames::new(times.len()), TimeHeap::EMPTY);
            for (number, time) in times.iter().enumerate() {
                frames.push(&mut heap, at((*time).into()), frame(number as u64)).unwrap();
            }
            let mut removed = Vec::new();
            frames.remove(&mut heap, &mut |frame| frame.token.0 % modulus == 0, &mut |frame| {
                removed.push(frame.token.0);
            });
            removed.sort_unstable();
            let (gone, mut kept): (Vec<u64>, Vec<u64>) =
                (0..times.len() as u64).partition(|number| number % modulus == 0);
            prop_assert_eq!(removed, gone);
            kept.sort_by_key(|number| times[*number as usize]);
            prop_assert_eq!(drain(&mut frames, &mut heap), kept);
            prop_assert_eq!(frames.free.len(), times.len());
        }
    }
}
