use std::sync::atomic::AtomicBool;

use super::*;

fn pair() -> (Arc<Arena>, SinkBell, SinkBellHost) {
    let arena = Arc::new(Arena::create("takt-test", 4096).unwrap());
    let bell = SinkBell::attach(&arena, 64).unwrap();
    let host = SinkBellHost::attach(&arena, 64).unwrap();
    (arena, bell, host)
}

fn word(arena: &Arena) -> u32 {
    arena.atomic_u32(64).unwrap().load(Ordering::SeqCst)
}

#[test]
fn ringing_for_nobody_does_nothing() {
    let (arena, _bell, host) = pair();
    assert_eq!(host.ring(), Wake::None);
    assert_eq!(word(&arena), IDLE);
}

#[test]
fn a_wait_with_something_to_take_does_not_sleep() {
    let (arena, bell, host) = pair();
    assert_eq!(bell.wait(|| true, None), WaitOutcome::Ready);
    assert_eq!(word(&arena), IDLE);
    assert_eq!(host.ring(), Wake::None);
}

#[test]
fn a_wait_announces_itself_before_it_looks_again() {
    let (arena, bell, host) = pair();
    let outcome = bell.wait(
        || {
            assert_eq!(word(&arena), SLEEPING);
            assert_eq!(host.ring(), Wake::Futex);
            false
        },
        None,
    );
    assert_eq!(outcome, WaitOutcome::Woken);
    assert_eq!(word(&arena), IDLE);
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let (arena, bell, _host) = pair();
    for timeout in [Duration::ZERO, Duration::from_millis(2)] {
        let start = Instant::now();
        assert_eq!(bell.wait(|| false, Some(timeout)), WaitOutcome::TimedOut);
        assert!(start.elapsed() >= timeout);
        assert_eq!(word(&arena), IDLE);
    }
}

#[test]
fn a_sleeping_thread_is_woken_even_with_an_endless_timeout() {
    for timeout in [
        None,
        Some(Duration::MAX),
        Some(Duration::from_secs(1 << 40)),
    ] {
        let (arena, bell, host) = pair();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(move || bell.wait(|| false, timeout));
            while word(&arena) != SLEEPING {
                std::thread::yield_now();
            }
            assert_eq!(host.ring(), Wake::Futex);
            assert_eq!(sleeper.join().unwrap(), WaitOutcome::Woken);
        });
        assert_eq!(word(&arena), IDLE);
    }
}

#[test]
fn a_thread_of_the_same_application_can_abort_a_wait() {
    let (arena, bell, _host) = pair();
    let aborted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut waits = 0;
            while !aborted.load(Ordering::Acquire) {
                bell.wait(|| aborted.load(Ordering::Acquire), None);
                waits += 1;
            }
            waits
        });
        while word(&arena) != SLEEPING {
            std::thread::yield_now();
        }
        aborted.store(true, Ordering::Release);
        bell.wake_local();
        assert_eq!(sleeper.join().unwrap(), 1);
    });
}

#[test]
fn an_armed_descriptor_is_reported_once_and_survives_a_local_wake() {
    let (arena, bell, host) = pair();
    assert!(bell.arm_fd(|| false));
    bell.wake_local();
    assert_eq!(word(&arena), FD_ARMED);
    assert_eq!(host.ring(), Wake::Fd);
    assert_eq!(host.ring(), Wake::None);
}

#[test]
fn arming_with_something_to_take_leaves_nothing_armed() {
    let (_arena, bell, host) = pair();
    assert!(!bell.arm_fd(|| true));
    assert_eq!(host.ring(), Wake::None);
}

#[test]
fn values_that_no_honest_application_writes_count_as_nobody() {
    let (arena, _bell, host) = pair();
    for value in [3, u32::MAX] {
        arena.atomic_u32(64).unwrap().store(value, Ordering::SeqCst);
        assert_eq!(host.ring(), Wake::None);
        assert_eq!(word(&arena), IDLE);
    }
}

#[test]
fn words_outside_the_arena_are_refused() {
    let (arena, _bell, _host) = pair();
    for offset in [2, 4096, usize::MAX] {
        assert!(SinkBell::attach(&arena, offset).is_err());
        assert!(SinkBellHost::attach(&arena, offset).is_err());
    }
}

#[test]
fn a_reader_that_sleeps_for_every_message_hears_of_each() {
    const MESSAGES: u32 = 20_000;
    let (arena, bell, host) = pair();
    let sent = arena.atomic_u32(128).unwrap();
    let heard = arena.atomic_u32(192).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for message in 1..=MESSAGES {
                sent.store(message, Ordering::Release);
                host.ring();
                while heard.load(Ordering::Acquire) < message {
                    std::thread::yield_now();
                }
            }
        });
        let mut last = 0;
        while last < MESSAGES {
            bell.wait(|| sent.load(Ordering::Acquire) > last, None);
            last = sent.load(Ordering::Acquire);
            heard.store(last, Ordering::Release);
        }
    });
}

#[test]
fn a_thread_that_waits_for_several_bells_is_woken_by_any_of_them() {
    assert!(SinkBell::can_wait_for_several());
    let arena = Arc::new(Arena::create("takt-test", 4096).unwrap());
    let bells: Vec<_> = (0..5)
        .map(|at| SinkBell::attach(&arena, 64 * at).unwrap())
        .collect();
    let others: Vec<_> = bells[1..].iter().collect();
    for which in 0..5 {
        let host = SinkBellHost::attach(&arena, 64 * which).unwrap();
        let rung = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let asleep = arena.atomic_u32(64 * 4).unwrap();
            scope.spawn(|| {
                while asleep.load(Ordering::SeqCst) != SLEEPING {
                    std::thread::yield_now();
                }
                rung.store(true, Ordering::SeqCst);
                assert_eq!(host.ring(), Wake::Futex);
            });
            let (outcome, by) = bells[0].wait_with(&others, || rung.load(Ordering::SeqCst), None);
            match outcome {
                WaitOutcome::Woken if which > 0 => assert_eq!(by, 1 << (which - 1)),
                WaitOutcome::Woken | WaitOutcome::Ready => assert_eq!(by, 0),
                other => panic!("{other:?}"),
            }
        });
        assert!(bells.iter().all(SinkBell::is_idle));
    }
    let soon = Some(Duration::from_millis(1));
    assert_eq!(
        bells[0].wait_with(&others, || false, soon),
        (WaitOutcome::TimedOut, 0)
    );
}

#[test]
fn who_wakes_a_thread_without_a_change_of_the_word_has_rung() {
    let arena = Arc::new(Arena::create("takt-test", 4096).unwrap());
    let bells = [0, 64, 128].map(|at| SinkBell::attach(&arena, at).unwrap());
    let others = [&bells[1], &bells[2]];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                arena.atomic_u32(128).unwrap().wake();
                std::thread::yield_now();
            }
        });
        let woken = bells[0].wait_with(&others, || false, None);
        done.store(true, Ordering::SeqCst);
        assert_eq!(woken, (WaitOutcome::Woken, 0b10));
    });
}

/// A word of which the kernel finds, as the thread is about to sleep, what somebody has set for that moment.
#[derive(Default)]
struct SetBack(AtomicU32);

impl Word for SetBack {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, order)
    }

    fn replace_if(&self, current: u32, new: u32, order: Ordering) -> bool {
        Word::replace_if(&self.0, current, new, order)
    }

    fn fence() {
        <AtomicU32 as Word>::fence();
    }
}

impl Futex for SetBack {
    fn sleep(&self, others: &[&Self], value: u32, deadline: Option<Instant>) -> Sleep {
        let Some(hostile) = others.last() else {
            return self.0.sleep(&[], value, deadline);
        };
        hostile.0.store(IDLE, Ordering::SeqCst);
        let others: Vec<&AtomicU32> = others.iter().map(|other| &other.0).collect();
        let slept = self.0.sleep(&others, value, deadline);
        hostile.0.store(value, Ordering::SeqCst);
        slept
    }

    fn wake(&self) {
        self.0.wake();
    }
}

#[test]
fn who_changes_a_word_and_sets_it_back_has_rung_as_far_as_can_be_told() {
    let words: Vec<SetBack> = std::iter::repeat_with(SetBack::default).take(65).collect();
    let others: Vec<&SetBack> = words[1..].iter().collect();
    for count in [1, 2, 63, 64] {
        let woken = wait(&words[0], &others[..count], || false, None);
        let all = u64::MAX >> (64 - count);
        assert_eq!(woken, (WaitOutcome::Woken, all), "{count} bells");
    }
    // Its own word tells of whom it can be told.
    let noticed = wait(
        &words[0],
        &others[..2],
        || {
            wake_local(&words[0]);
            false
        },
        None,
    );
    assert_eq!(noticed, (WaitOutcome::Woken, 0));
}
