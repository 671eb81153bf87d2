//! A bounded queue ordered by time, stable among equal times.
//!
//! A heap of degree four over small entries, with the frames themselves in place beside it: half as
//! many levels as a binary heap and four neighbours in a cache line or two, which is what the cost is
//! made of once the heap outgrows the cache. An entry has what is asked about the head, so that a
//! frame is touched twice only: when it comes and when it goes.

use takt_time::TaiTime;

use super::Queued;
use crate::port::TxFlags;

/// A bounded priority queue: the earliest time first, among equal times the first come.
#[derive(Debug)]
pub(super) struct TimeHeap<T> {
    heap: Vec<Entry>,
    frames: Vec<Option<Queued<T>>>,
    free: Vec<u32>,
    arrivals: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The time from the earliest one that there is, so that it orders without a sign.
    time: u64,
    arrival: u64,
    slot: u32,
    len: u32,
}

impl Entry {
    /// What entries are ordered by: one comparison without a branch.
    fn key(&self) -> u128 {
        u128::from(self.time) << 64 | u128::from(self.arrival)
    }
}

const DEGREE: usize = 4;
const SIGN: u64 = 1 << 63;

impl<T> TimeHeap<T> {
    /// Room for `capacity` frames, at most `u32::MAX`.
    pub fn new(capacity: usize) -> Self {
        let slots = u32::try_from(capacity).unwrap_or(u32::MAX);
        Self {
            heap: Vec::with_capacity(slots as usize),
            frames: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            arrivals: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Queues a frame; gives it back when there is no room.
    pub fn push(&mut self, time: TaiTime, frame: Queued<T>) -> Result<(), Queued<T>> {
        let Some(slot) = self.free.pop() else {
            return Err(frame);
        };
        let len = frame.item.len;
        self.frames[slot as usize] = Some(frame);
        let arrival = self.arrivals;
        self.arrivals += 1;
        let entry = Entry {
            time: time.as_nanos() as u64 ^ SIGN,
            arrival,
            slot,
            len,
        };
        self.heap.push(entry);
        self.rise(self.heap.len() - 1, 0, entry);
        Ok(())
    }

    /// How the launch time of the earliest frame is meant.
    pub fn flags(&self) -> TxFlags {
        let first = self.heap.first();
        let frame = first.and_then(|first| self.frames.get(first.slot as usize)?.as_ref());
        frame.map_or(TxFlags::default(), |frame| frame.item.flags)
    }

    /// Time and length of the earliest frame.
    pub fn peek(&self) -> Option<(TaiTime, u32)> {
        let first = self.heap.first()?;
        let time = TaiTime::from_nanos((first.time ^ SIGN) as i64);
        Some((time, first.len))
    }

    /// Removes the earliest frame.
    pub fn pop(&mut self) -> Option<Queued<T>> {
        if self.heap.is_empty() {
            return None;
        }
        let first = self.heap.swap_remove(0);
        if !self.heap.is_empty() {
            self.sink(0);
        }
        self.free.push(first.slot);
        self.frames[first.slot as usize].take()
    }

    /// Hands over every frame that `unwanted` says, and keeps the order of the rest.
    pub fn remove(
        &mut self,
        unwanted: &mut dyn FnMut(&Queued<T>) -> bool,
        sink: &mut dyn FnMut(Queued<T>),
    ) {
        let frames = &mut self.frames;
        let free = &mut self.free;
        self.heap.retain(|entry| {
            let slot = &mut frames[entry.slot as usize];
            match slot.take_if(|frame| unwanted(frame)) {
                Some(frame) => {
                    free.push(entry.slot);
                    sink(frame);
                    false
                }
                None => true,
            }
        });
        for at in (0..self.heap.len().div_ceil(DEGREE)).rev() {
            self.sink(at);
        }
    }

    /// Puts `entry` at `at` or above, but no higher than `top`.
    fn rise(&mut self, mut at: usize, top: usize, entry: Entry) {
        while at > top {
            let parent = (at - 1) / DEGREE;
            if self.heap[parent].key() <= entry.key() {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = entry;
    }

    /// Puts the entry at `top` in its place below. Its place is near the bottom almost always: the
    /// least children move up first, all the way, and the entry rises from there.
    fn sink(&mut self, top: usize) {
        let entry = self.heap[top];
        let mut at = top;
        loop {
            let first = at * DEGREE + 1;
            let least = match self.heap.get(first..) {
                Some([a, b, c, d, ..]) => {
                    let ab = usize::from(b.key() < a.key());
                    let cd = 2 + usize::from(d.key() < c.key());
                    let (one, other) = (a.key().min(b.key()), c.key().min(d.key()));
                    first + if other < one { cd } else { ab }
                }
                Some(some) => {
                    let children = some.iter().enumerate();
                    match children.min_by_key(|(_, child)| child.key()) {
                        Some((child, _)) => first + child,
                        None => break,
                    }
                }
                None => break,
            };
            self.heap[at] = self.heap[least];
            at = least;
        }
        self.rise(at, top, entry);
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

    fn drain(heap: &mut TimeHeap<u64>) -> Vec<u64> {
        std::iter::from_fn(|| heap.pop().map(|frame| frame.token.0)).collect()
    }

    #[test]
    fn a_full_heap_gives_the_frame_back() {
        let mut heap = TimeHeap::new(1);
        assert!(heap.push(at(5), frame(0)).is_ok());
        assert_eq!(heap.push(at(1), frame(1)).unwrap_err().token, Token(1));
        assert_eq!(drain(&mut heap), [0]);
        assert!(heap.push(at(1), frame(1)).is_ok());
    }

    proptest! {
        #[test]
        fn frames_leave_by_time_and_among_equal_times_as_they_came(
            times in prop::collection::vec(
                prop_oneof![-4i64..5, Just(i64::MIN), Just(i64::MAX), any::<i64>()],
                0..200,
            ),
        ) {
            let mut heap = TimeHeap::new(times.len());
            for (number, time) in times.iter().enumerate() {
                heap.push(at(*time), frame(number as u64)).unwrap();
            }
            let mut expected: Vec<u64> = (0..times.len() as u64).collect();
            expected.sort_by_key(|number| times[*number as usize]);
            prop_assert_eq!(drain(&mut heap), expected);
        }

        #[test]
        fn insertions_and_removals_in_any_order_keep_the_order(
            acts in prop::collection::vec(prop::option::of(any::<i8>()), 0..300),
        ) {
            let mut heap = TimeHeap::new(acts.len());
            let mut model: Vec<(i8, u64)> = Vec::new();
            for (number, act) in acts.into_iter().enumerate() {
                match act {
                    Some(time) => {
                        heap.push(at(time.into()), frame(number as u64)).unwrap();
                        model.push((time, number as u64));
                        model.sort();
                    }
                    None => {
                        let expected = (!model.is_empty()).then(|| model.remove(0));
                        let head = expected.map(|(time, number)| (at(time.into()), 60 + number as u32));
                        prop_assert_eq!(heap.peek(), head);
                        let expected = expected.map(|(_, number)| number);
                        prop_assert_eq!(heap.pop().map(|frame| frame.token.0), expected);
                    }
                }
                prop_assert_eq!(heap.len(), model.len());
            }
        }

        #[test]
        fn removing_some_leaves_the_others_in_order(
            times in prop::collection::vec(any::<i8>(), 0..100),
            modulus in 1u64..5,
        ) {
            let mut heap = TimeHeap::new(times.len());
            for (number, time) in times.iter().enumerate() {
                heap.push(at((*time).into()), frame(number as u64)).unwrap();
            }
            let mut removed = Vec::new();
            heap.remove(&mut |frame| frame.token.0 % modulus == 0, &mut |frame| {
                removed.push(frame.token.0);
            });
            removed.sort_unstable();
            let (gone, mut kept): (Vec<u64>, Vec<u64>) =
                (0..times.len() as u64).partition(|number| number % modulus == 0);
            prop_assert_eq!(removed, gone);
            kept.sort_by_key(|number| times[*number as usize]);
            prop_assert_eq!(drain(&mut heap), kept);
        }
    }
}
