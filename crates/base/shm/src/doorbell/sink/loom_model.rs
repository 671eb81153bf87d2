//! The sink's sleeping protocol over loom's types. The futex is the kernel's in small: the value is
//! compared under the lock that a waker takes. A lost wake-up shows as a deadlock.

use loom::sync::{Arc, Condvar, Mutex};

use super::*;

struct LoomFutex {
    word: loom::sync::atomic::AtomicU32,
    sleepers: Mutex<u32>,
    woken: Condvar,
}

impl LoomFutex {
    fn new() -> Self {
        LoomFutex {
            word: loom::sync::atomic::AtomicU32::new(IDLE),
            sleepers: Mutex::new(0),
            woken: Condvar::new(),
        }
    }
}

impl Word for LoomFutex {
    fn load(&self, order: Ordering) -> u32 {
        self.word.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.word.store(value, order);
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.word.swap(value, order)
    }

    fn replace_if(&self, current: u32, new: u32, order: Ordering) -> bool {
        self.word.replace_if(current, new, order)
    }

    fn fence() {
        <loom::sync::atomic::AtomicU32 as Word>::fence();
    }
}

impl Futex for LoomFutex {
    /// A deadline is one that has passed by the time of the call.
    fn sleep(&self, value: u32, deadline: Option<Instant>) -> Sleep {
        let mut sleepers = self.sleepers.lock().unwrap();
        if self.word.load(Ordering::Relaxed) != value {
            return Sleep::Woken;
        }
        if deadline.is_some() {
            return Sleep::TimedOut;
        }
        *sleepers += 1;
        while *sleepers > 0 {
            sleepers = self.woken.wait(sleepers).unwrap();
        }
        Sleep::Woken
    }

    fn wake(&self) {
        let mut sleepers = self.sleepers.lock().unwrap();
        *sleepers = sleepers.saturating_sub(1);
        self.woken.notify_one();
    }
}

/// A sink: its word, what the lane published to its ring, and the descriptor that the lane signals.
struct Sink {
    bell: LoomFutex,
    published: loom::sync::atomic::AtomicU32,
    aborted: loom::sync::atomic::AtomicU32,
    fd: Mutex<u32>,
    fd_signalled: Condvar,
}

impl Sink {
    fn new() -> Arc<Sink> {
        Arc::new(Sink {
            bell: LoomFutex::new(),
            published: loom::sync::atomic::AtomicU32::new(0),
            aborted: loom::sync::atomic::AtomicU32::new(0),
            fd: Mutex::new(0),
            fd_signalled: Condvar::new(),
        })
    }

    fn publish(&self, index: u32) {
        self.published.store(index, Ordering::Release);
        if ring(&self.bell) == Wake::Fd {
            *self.fd.lock().unwrap() += 1;
            self.fd_signalled.notify_one();
        }
    }

    fn spawn_lane(sink: &Arc<Sink>, messages: u32) -> loom::thread::JoinHandle<()> {
        let sink = Arc::clone(sink);
        loom::thread::spawn(move || (1..=messages).for_each(|index| sink.publish(index)))
    }

    fn published(&self) -> u32 {
        self.published.load(Ordering::Acquire)
    }
}

fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

#[test]
fn a_sleeping_thread_misses_no_message() {
    explore(4, || {
        let sink = Sink::new();
        let lane = Sink::spawn_lane(&sink, 2);
        let mut seen = 0;
        while seen < 2 {
            wait(&sink.bell, || sink.published() > seen, None);
            seen = sink.published();
        }
        lane.join().unwrap();
    });
}

#[test]
fn a_wait_that_times_out_leaves_the_next_one_sound() {
    explore(4, || {
        let sink = Sink::new();
        let lane = Sink::spawn_lane(&sink, 1);
        let outcome = wait(&sink.bell, || sink.published() > 0, Some(Duration::ZERO));
        if outcome != WaitOutcome::TimedOut {
            assert_eq!(sink.published(), 1);
        }
        while sink.published() == 0 {
            wait(&sink.bell, || sink.published() > 0, None);
        }
        lane.join().unwrap();
        assert_eq!(sink.bell.load(Ordering::Relaxed), IDLE);
    });
}

#[test]
fn an_armed_descriptor_misses_no_message() {
    explore(4, || {
        let sink = Sink::new();
        let lane = Sink::spawn_lane(&sink, 2);
        let mut seen = 0;
        while seen < 2 {
            if arm_fd(&sink.bell, || sink.published() > seen) {
                let mut signals = sink.fd.lock().unwrap();
                while *signals == 0 {
                    signals = sink.fd_signalled.wait(signals).unwrap();
                }
                *signals = 0;
            }
            seen = sink.published();
        }
        lane.join().unwrap();
    });
}

#[test]
fn an_abort_reaches_a_thread_that_sleeps_while_the_lane_rings_too() {
    explore(3, || {
        let sink = Sink::new();
        let lane = Sink::spawn_lane(&sink, 1);
        let aborter = {
            let sink = Arc::clone(&sink);
            loom::thread::spawn(move || {
                sink.aborted.store(1, Ordering::Release);
                wake_local(&sink.bell);
            })
        };
        let aborted = || sink.aborted.load(Ordering::Acquire) == 1;
        while !aborted() {
            wait(&sink.bell, aborted, None);
        }
        aborter.join().unwrap();
        lane.join().unwrap();
    });
}
