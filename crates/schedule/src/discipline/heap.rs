//! A bounded queue ordered by time, stable among equal times.
//!
//! A heap of degree four over small entries, with the frames themselves in place beside it: half as
//! many levels as a binary heap and four neighbours in a cache line or two, which is what the cost is
//! made of once the heap outgrows the cache.

use super::Queued;

/// A bounded priority queue: the earliest time first, among equal times the first come.
#[derive(Debug)]
pub(super) struct TimeHeap<T> {
    heap: Vec<Entry>,
    frames: Vec<Option<Queued<T>>>,
    free: Vec<u32>,
    arrivals: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    time: i64,
    arrival: u64,
    slot: u32,
}

const DEGREE: usize = 4;

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
    pub fn push(&mut self, time: i64, frame: Queued<T>) -> Result<(), Queued<T>> {
        let Some(slot) = self.free.pop() else {
            return Err(frame);
        };
        self.frames[slot as usize] = Some(frame);
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.heap.push(Entry {
            time,
            arrival,
            slot,
        });
        self.rise(self.heap.len() - 1);
        Ok(())
    }

    /// The earliest frame.
    pub fn peek(&self) -> Option<&Queued<T>> {
        let first = self.heap.first()?;
        self.frames[first.slot as usize].as_ref()
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

    fn rise(&mut self, mut at: usize) {
        let entry = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / DEGREE;
            if self.heap[parent] <= entry {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = entry;
    }

    fn sink(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let first = at * DEGREE + 1;
            let end = (first + DEGREE).min(self.heap.len());
            let Some(children) = self.heap.get(first..end) else {
                break;
            };
            let mut least = entry;
            let mut least_at = at;
            for (child, value) in children.iter().enumerate() {
                if *value < least {
                    least = *value;
                    least_at = first + child;
                }
            }
            if least_at == at {
                break;
            }
            self.heap[at] = least;
            at = least_at;
        }
        self.heap[at] = entry;
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
            item: Item::new(60, number),
        }
    }

    fn drain(heap: &mut TimeHeap<u64>) -> Vec<u64> {
        std::iter::from_fn(|| heap.pop().map(|frame| frame.token.0)).collect()
    }

    #[test]
    fn a_full_heap_gives_the_frame_back() {
        let mut heap = TimeHeap::new(1);
        assert!(heap.push(5, frame(0)).is_ok());
        assert_eq!(heap.push(1, frame(1)).unwrap_err().token, Token(1));
        assert_eq!(drain(&mut heap), [0]);
        assert!(heap.push(1, frame(1)).is_ok());
    }

    proptest! {
        #[test]
        fn frames_leave_by_time_and_among_equal_times_as_they_came(
            times in prop::collection::vec(-4i64..5, 0..200),
        ) {
            let mut heap = TimeHeap::new(times.len());
            for (number, time) in times.iter().enumerate() {
                heap.push(*time, frame(number as u64)).unwrap();
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
                        heap.push(time.into(), frame(number as u64)).unwrap();
                        model.push((time, number as u64));
                        model.sort();
                    }
                    None => {
                        let expected = (!model.is_empty()).then(|| model.remove(0).1);
                        prop_assert_eq!(heap.peek().map(|frame| frame.token.0), expected);
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
                heap.push((*time).into(), frame(number as u64)).unwrap();
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
