use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// Three words and two halves: reached by the 4-byte path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Halves([u32; 3], [u16; 2]);
// SAFETY: integers without padding: 12 + 4 bytes, alignment 4.
unsafe impl Pod for Halves {}

/// Reached by the 8-byte path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
struct Line([u64; 8]);
// SAFETY: exactly 64 bytes of integers.
unsafe impl Pod for Line {}

/// Reached by the byte path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Bytes([u8; 5]);
// SAFETY: bytes.
unsafe impl Pod for Bytes {}

fn arena(len: usize) -> Arc<Arena> {
    Arc::new(Arena::create("takt-test", len).unwrap())
}

fn pair<T: Pod>(capacity: u32) -> (Arc<Arena>, Producer<T>, Consumer<T>) {
    let arena = arena(RingLayout::size::<T>(capacity));
    let producer = Producer::attach(&arena, 0, capacity).unwrap();
    let consumer = Consumer::attach(&arena, 0, capacity).unwrap();
    (arena, producer, consumer)
}

/// Moves both ends, and what they show, to `index`, as after that many entries.
fn advance<T: Pod>(producer: &mut Producer<T>, consumer: &mut Consumer<T>, index: u32) {
    let (p, c) = (&mut producer.0, &mut consumer.0);
    (p.next, p.published, p.consumer) = (index, index, index);
    (c.next, c.released, c.producer) = (index, index, index);
    p.memory.producer_index().store(index, Ordering::Relaxed);
    c.memory.consumer_index().store(index, Ordering::Relaxed);
}

fn passes<T: Pod + PartialEq + core::fmt::Debug>(entries: [T; 3]) {
    let (_arena, mut producer, mut consumer) = pair::<T>(2);
    for entry in entries {
        assert!(producer.push(entry).unwrap());
        assert_eq!(consumer.pop().unwrap(), Some(entry));
        consumer.release();
    }
}

#[test]
fn entries_of_any_alignment_pass_unchanged() {
    passes([1_u32, u32::MAX, 3]);
    passes([1_u64, u64::MAX, 3]);
    passes([1, 2, 3].map(|n| Halves([n, !n, n << 9], [n as u16, 9])));
    passes([1, 2, 3].map(|n| Line([n, !n, n << 40, 4, 5, 6, 7, 8])));
    passes([1, 2, 3].map(|n| Bytes([n, !n, 0, 255, n * 9])));
}

#[test]
fn sizes_are_a_header_of_two_lines_and_whole_lines_of_entries() {
    const { assert!(RingLayout::size::<u32>(1) == 192) };
    assert_eq!(RingLayout::size::<u64>(8), 128 + 64);
    assert_eq!(RingLayout::size::<u64>(16), 128 + 128);
    assert_eq!(RingLayout::size::<Bytes>(16), 128 + 128);
    assert_eq!(RingLayout::size::<u64>(1 << 20), 128 + (8 << 20));
}

#[test]
fn capacities_that_are_not_powers_of_two_up_to_a_million_are_refused() {
    let arena = arena(RingLayout::size::<u32>(1 << 20));
    for capacity in [0, 3, 6, (1 << 20) - 1, 1 << 21, u32::MAX] {
        let error = Producer::<u32>::attach(&arena, 0, capacity).unwrap_err();
        assert_eq!(error, RingError::Capacity { capacity });
        assert!(Consumer::<u32>::attach(&arena, 0, capacity).is_err());
    }
    for capacity in [1, 2, 1 << 20] {
        assert!(Producer::<u32>::attach(&arena, 0, capacity).is_ok());
        assert!(Consumer::<u32>::attach(&arena, 0, capacity).is_ok());
    }
}

#[test]
fn a_ring_must_lie_in_the_arena_on_a_cache_line() {
    let arena = arena(4096);
    let size = RingLayout::size::<u64>(8);
    assert!(Producer::<u64>::attach(&arena, 4096 - size, 8).is_ok());
    for offset in [4096 - size + 64, 4096, 8, 63, usize::MAX - 63, usize::MAX] {
        assert!(
            matches!(
                Consumer::<u64>::attach(&arena, offset, 8),
                Err(RingError::OutOfBounds(_))
            ),
            "offset {offset}"
        );
        assert!(
            offset == 4096 - size + 64 || offset == 8 || RingLayout::reset(&arena, offset).is_err(),
            "offset {offset}"
        );
    }
}

#[test]
fn staged_entries_stay_hidden_until_published_and_room_until_released() {
    let (_arena, mut producer, mut consumer) = pair::<u32>(4);
    assert!(producer.stage(1).unwrap());
    assert!(producer.stage(2).unwrap());
    assert_eq!(consumer.available().unwrap(), 0);
    assert_eq!(consumer.pop().unwrap(), None);
    producer.publish();
    assert_eq!(consumer.available().unwrap(), 2);
    assert!(producer.push(3).unwrap());
    assert!(producer.push(4).unwrap());
    assert!(!producer.push(5).unwrap());
    assert_eq!(producer.free().unwrap(), 0);
    for entry in 1..=3 {
        assert_eq!(consumer.pop().unwrap(), Some(entry));
    }
    assert!(!producer.stage(5).unwrap());
    consumer.release();
    assert_eq!(producer.free().unwrap(), 3);
    assert_eq!(consumer.available().unwrap(), 1);
}

#[test]
fn a_full_push_still_publishes_what_was_staged() {
    let (_arena, mut producer, mut consumer) = pair::<u32>(2);
    assert!(producer.stage(1).unwrap());
    assert!(producer.stage(2).unwrap());
    assert!(!producer.push(3).unwrap());
    assert_eq!(consumer.available().unwrap(), 2);
}

#[test]
fn a_ring_that_was_reset_starts_over() {
    let (arena, mut producer, mut consumer) = pair::<u32>(2);
    assert!(producer.push(1).unwrap());
    assert_eq!(consumer.pop().unwrap(), Some(1));
    consumer.release();
    RingLayout::reset(&arena, 0).unwrap();
    let mut producer = Producer::<u32>::attach(&arena, 0, 2).unwrap();
    let mut consumer = Consumer::<u32>::attach(&arena, 0, 2).unwrap();
    assert_eq!(consumer.pop().unwrap(), None);
    assert_eq!(producer.free().unwrap(), 2);
    assert!(producer.push(2).unwrap());
    assert_eq!(consumer.pop().unwrap(), Some(2));
}

#[test]
fn ends_outlive_the_callers_handle_on_the_arena() {
    let (arena, mut producer, mut consumer) = pair::<u32>(2);
    drop(arena);
    assert!(producer.push(7).unwrap());
    assert_eq!(consumer.pop().unwrap(), Some(7));
}

#[test]
fn a_consumer_that_goes_backwards_or_beyond_what_was_published_is_corrupt() {
    let (arena, mut producer, mut consumer) = pair::<u32>(2);
    for _ in 0..2 {
        assert!(producer.push(0).unwrap());
        consumer.pop().unwrap();
        consumer.release();
    }
    // The cached index says that there is room; fill it so that the word is read.
    assert!(producer.push(0).unwrap());
    assert!(producer.push(0).unwrap());
    assert_eq!(producer.free().unwrap(), 0);
    let word = arena.atomic_u32(64).unwrap();
    for index in [1, 5, u32::MAX] {
        word.store(index, Ordering::Relaxed);
        let corrupt = RingError::Corrupt {
            index,
            lowest: 2,
            highest: 4,
        };
        assert_eq!(producer.free(), Err(corrupt));
        assert_eq!(producer.stage(9), Err(corrupt));
        assert_eq!(producer.push(9), Err(corrupt));
    }
    word.store(4, Ordering::Relaxed);
    assert_eq!(producer.free(), Ok(2));
}

#[test]
fn a_consumer_may_not_take_what_is_only_staged() {
    let (arena, mut producer, _consumer) = pair::<u32>(2);
    assert!(producer.push(0).unwrap());
    assert!(producer.stage(0).unwrap());
    arena.atomic_u32(64).unwrap().store(2, Ordering::Relaxed);
    assert!(matches!(
        producer.free(),
        Err(RingError::Corrupt {
            index: 2,
            lowest: 0,
            highest: 1
        })
    ));
}

#[test]
fn a_producer_that_goes_backwards_or_overwrites_unreleased_entries_is_corrupt() {
    let (arena, mut producer, mut consumer) = pair::<u32>(2);
    assert!(producer.push(0).unwrap());
    assert!(producer.push(0).unwrap());
    assert!(consumer.pop().unwrap().is_some());
    assert!(consumer.pop().unwrap().is_some());
    let word = arena.atomic_u32(0).unwrap();
    // Both entries are taken, none is released: index 3 would overwrite one.
    for index in [1, 3, u32::MAX] {
        word.store(index, Ordering::Relaxed);
        let corrupt = RingError::Corrupt {
            index,
            lowest: 2,
            highest: 2,
        };
        assert_eq!(consumer.pop(), Err(corrupt));
        assert_eq!(consumer.available(), Err(corrupt));
    }
    consumer.release();
    word.store(3, Ordering::Relaxed);
    assert!(consumer.pop().unwrap().is_some());
}

#[test]
fn two_threads_pass_every_entry_in_order_through_a_small_ring() {
    const ENTRIES: u64 = 300_000;
    let (_arena, mut producer, mut consumer) = pair::<Line>(8);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut n = 0;
            while n < ENTRIES {
                if producer.push(Line([n; 8])).unwrap() {
                    n += 1;
                } else {
                    std::thread::yield_now();
                }
            }
        });
        let mut n = 0;
        while n < ENTRIES {
            match consumer.pop().unwrap() {
                Some(entry) => {
                    assert_eq!(entry, Line([n; 8]));
                    n += 1;
                    consumer.release();
                }
                None => std::thread::yield_now(),
            }
        }
    });
}

#[test]
fn ends_can_move_to_another_thread_but_not_be_shared() {
    trait AmbiguousIfSync<A> {
        fn not_sync() {}
    }
    struct Sync_;
    impl<T: ?Sized> AmbiguousIfSync<()> for T {}
    impl<T: ?Sized + Sync> AmbiguousIfSync<Sync_> for T {}
    fn is_send<T: Send>() {}
    // Does not compile if one of them is Sync: two implementations would fit.
    <Producer<u32> as AmbiguousIfSync<_>>::not_sync();
    <Consumer<u32> as AmbiguousIfSync<_>>::not_sync();
    is_send::<Producer<u32>>();
    is_send::<Consumer<u32>>();
}

#[derive(Debug, Clone)]
enum Step {
    Stage,
    Publish,
    Push,
    Pop,
    Release,
    Free,
    Available,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Stage),
        2 => Just(Step::Publish),
        3 => Just(Step::Push),
        5 => Just(Step::Pop),
        2 => Just(Step::Release),
        1 => Just(Step::Free),
        1 => Just(Step::Available),
    ]
}

#[derive(Debug, Clone)]
enum Attack {
    Step(Step),
    ProducerIndex(u32),
    ConsumerIndex(u32),
}

fn near(index: u32) -> impl Strategy<Value = u32> {
    (0..24_u32).prop_map(move |step| index.wrapping_add(step).wrapping_sub(6))
}

const START: u32 = u32::MAX - 9;

fn attack() -> impl Strategy<Value = Attack> {
    prop_oneof![
        8 => step().prop_map(Attack::Step),
        1 => prop_oneof![3 => near(START), 1 => any::<u32>()].prop_map(Attack::ProducerIndex),
        1 => prop_oneof![3 => near(START), 1 => any::<u32>()].prop_map(Attack::ConsumerIndex),
    ]
}

proptest! {
    #[test]
    fn a_ring_behaves_as_a_bounded_queue_with_hidden_ends(
        order in 0..4_u32,
        start in prop_oneof![Just(0), Just(START)],
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let capacity = 1 << order;
        let (_arena, mut producer, mut consumer) = pair::<u64>(capacity);
        advance(&mut producer, &mut consumer, start);
        let (mut staged, mut shown) = (VecDeque::new(), VecDeque::new());
        let mut unreleased = 0_usize;
        let mut next = 0_u64;
        for step in steps {
            let room = capacity as usize - staged.len() - shown.len() - unreleased;
            match step {
                Step::Stage | Step::Push => {
                    let push = matches!(step, Step::Push);
                    let taken = if push { producer.push(next) } else { producer.stage(next) };
                    prop_assert_eq!(taken, Ok(room > 0));
                    if room > 0 {
                        staged.push_back(next);
                        next += 1;
                    }
                    if push {
                        shown.append(&mut staged);
                    }
                }
                Step::Publish => {
                    producer.publish();
                    shown.append(&mut staged);
                }
                Step::Pop => {
                    let expected = shown.pop_front();
                    unreleased += usize::from(expected.is_some());
                    prop_assert_eq!(consumer.pop(), Ok(expected));
                }
                Step::Release => {
                    consumer.release();
                    unreleased = 0;
                }
                Step::Free => {
                    let free = producer.free().unwrap() as usize;
                    prop_assert!(free <= room && (free > 0) == (room > 0));
                }
                Step::Available => {
                    prop_assert_eq!(consumer.available().unwrap() as usize, shown.len());
                }
            }
        }
    }

    #[test]
    fn hostile_indices_never_reach_beyond_the_ring(
        attacks in prop::collection::vec(attack(), 1..300),
    ) {
        const CAPACITY: u32 = 4;
        let size = RingLayout::size::<Halves>(CAPACITY);
        let arena = arena(4096);
        let guard = [0xa5; 4096];
        arena.slice(0, 4096).unwrap().write_from(0, &guard).unwrap();
        let zeros = vec![0; size];
        arena.slice(64, size).unwrap().write_from(0, &zeros).unwrap();
        let mut producer = Producer::<Halves>::attach(&arena, 64, CAPACITY).unwrap();
        let mut consumer = Consumer::<Halves>::attach(&arena, 64, CAPACITY).unwrap();
        advance(&mut producer, &mut consumer, START);
        for attack in attacks {
            match attack {
                Attack::ProducerIndex(index) => {
                    arena.atomic_u32(64).unwrap().store(index, Ordering::Relaxed);
                }
                Attack::ConsumerIndex(index) => {
                    arena.atomic_u32(128).unwrap().store(index, Ordering::Relaxed);
                }
                Attack::Step(step) => {
                    let entry = Halves([1, 2, 3], [4, 5]);
                    let result = match step {
                        Step::Stage => producer.stage(entry).map(u32::from),
                        Step::Push => producer.push(entry).map(u32::from),
                        Step::Pop => consumer.pop().map(|entry| entry.is_some().into()),
                        Step::Free => producer.free(),
                        Step::Available => consumer.available(),
                        Step::Publish => {
                            producer.publish();
                            Ok(0)
                        }
                        Step::Release => {
                            consumer.release();
                            Ok(0)
                        }
                    };
                    match result {
                        Ok(count) => prop_assert!(count <= CAPACITY),
                        Err(RingError::Corrupt { index, lowest, highest }) => {
                            let span = highest.wrapping_sub(lowest);
                            prop_assert!(span <= CAPACITY);
                            prop_assert!(index.wrapping_sub(lowest) > span);
                        }
                        Err(other) => prop_assert!(false, "{other}"),
                    }
                }
            }
        }
        let mut content = [0; 4096];
        arena.slice(0, 4096).unwrap().read_into(0, &mut content).unwrap();
        prop_assert_eq!(&content[..64], &guard[..64]);
        prop_assert_eq!(&content[64 + size..], &guard[64 + size..]);
    }
}
