//! The ring's own code over loom's types: every interleaving of a producer and a consumer, with
//! slots whose racing accesses loom reports.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;

use super::*;

struct Shared {
    producer: AtomicU32,
    consumer: AtomicU32,
    slots: Vec<UnsafeCell<u64>>,
}

#[derive(Clone)]
pub(crate) struct LoomRing(Arc<Shared>);

impl LoomRing {
    /// Both words are `start`.
    pub(crate) fn new(slots: u32, start: u32) -> Self {
        LoomRing(Arc::new(Shared {
            producer: AtomicU32::new(start),
            consumer: AtomicU32::new(start),
            slots: (0..slots).map(|_| UnsafeCell::new(u64::MAX)).collect(),
        }))
    }
}

impl RingMemory for LoomRing {
    type Entry = u64;
    type Word = AtomicU32;

    fn producer_index(&self) -> &AtomicU32 {
        &self.0.producer
    }

    fn consumer_index(&self) -> &AtomicU32 {
        &self.0.consumer
    }

    fn write(&self, index: u32, entry: u64) {
        let slot = &self.0.slots[index as usize % self.0.slots.len()];
        // SAFETY: loom fails the test if another thread accesses the slot meanwhile.
        slot.with_mut(|slot| unsafe { *slot = entry });
    }

    fn read(&self, index: u32) -> u64 {
        let slot = &self.0.slots[index as usize % self.0.slots.len()];
        // SAFETY: loom fails the test if another thread writes the slot meanwhile.
        slot.with(|slot| unsafe { *slot })
    }
}

/// Both ends as they are after `start` entries.
fn pair(capacity: u32, start: u32) -> (ProducerEnd<LoomRing>, ConsumerEnd<LoomRing>) {
    let memory = LoomRing::new(capacity, start);
    let producer = ProducerEnd {
        memory: memory.clone(),
        capacity,
        next: start,
        published: start,
        consumer: start,
    };
    let consumer = ConsumerEnd {
        memory,
        capacity,
        next: start,
        released: start,
        producer: start,
    };
    (producer, consumer)
}

pub(crate) fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

#[test]
fn every_entry_arrives_once_whole_and_in_order_past_the_wrap() {
    explore(4, || {
        let (mut producer, mut consumer) = pair(2, u32::MAX - 1);
        let sender = loom::thread::spawn(move || {
            for entry in 0..4 {
                while !producer.stage(entry).unwrap() {
                    loom::thread::yield_now();
                }
                producer.publish();
            }
        });
        for expected in 0..4 {
            let entry = loop {
                match consumer.pop().unwrap() {
                    Some(entry) => break entry,
                    None => loom::thread::yield_now(),
                }
            };
            assert_eq!(entry, expected);
            consumer.release();
        }
        sender.join().unwrap();
        assert_eq!(consumer.pop().unwrap(), None);
    });
}

#[test]
fn batches_arrive_once_whole_and_in_order_past_the_wrap() {
    explore(4, || {
        let (mut producer, mut consumer) = pair(2, u32::MAX - 2);
        let sender = loom::thread::spawn(move || {
            for batch in [[0, 1], [2, 3]] {
                for entry in batch {
                    while !producer.stage(entry).unwrap() {
                        producer.publish();
                        loom::thread::yield_now();
                    }
                }
                producer.publish();
            }
        });
        let mut expected = 0;
        while expected < 4 {
            let available = consumer.available().unwrap();
            assert!(available <= 2);
            for _ in 0..available {
                assert_eq!(consumer.pop().unwrap(), Some(expected));
                expected += 1;
            }
            consumer.release();
            loom::thread::yield_now();
        }
        sender.join().unwrap();
        assert_eq!(consumer.available().unwrap(), 0);
    });
}
