//! The sink's sleeping protocol over loom's types. The futex is the kernel's in small: the value is
//! compared under the lock that a waker takes. A lost wake-up shows as a deadlock.

use loom::sync::{Arc, Condvar, Mutex};

use super::*;

pub(crate) struct LoomFutex {
    word: loom::sync::atomic::AtomicU32,
    queue: Arc<Queue>,
}

/// Where threads sleep: words that one thread waits for together share it.
struct Queue {
    sleepers: Mutex<u32>,
    woken: Condvar,
}

impl LoomFutex {
    pub(crate) fn new() -> Self {
        LoomFutex {
            word: loom::sync::atomic::AtomicU32::new(IDLE),
            queue: Arc::new(Queue {
                sleepers: Mutex::new(0),
                woken: Condvar::new(),
            }),
        }
    }

    /// A word that the thread that sleeps on this one sleeps on too.
    pub(crate) fn beside(&self) -> Self {
        LoomFutex {
            word: loom::sync::atomic::AtomicU32::new(IDLE),
            queue: self.queue.clone(),
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
    fn sleep(&self, others: &[&Self], value: u32, deadline: Option<Instant>) -> Sleep {
        let mut sleepers = self.queue.sleepers.lock().unwrap();
        let changed = |word: &Self| word.word.load(Ordering::Relaxed) != value;
        if changed(self) || others.iter().any(|other| changed(other)) {
            return Sleep::Changed;
        }
        if deadline.is_some() {
            return Sleep::TimedOut;
        }
        *sleepers += 1;
        while *sleepers > 0 {
            sleepers = self.queue.woken.wait(sleepers).unwrap();
        }
        Sleep::Woken
    }

    fn wake(&self) {
        let mut sleepers = self.queue.sleepers.lock().unwrap();
        *sleepers = sleepers.saturating_sub(1);
        self.queue.woken.notify_one();
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
            wait(&sink.bell, &[], || sink.published() > seen, None);
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
        let (outcome, _) = wait(
            &sink.bell,
            &[],
            || sink.published() > 0,
            Some(Duration::ZERO),
        );
        if outcome != WaitOutcome::TimedOut {
            assert_eq!(sink.published(), 1);
        }
        while sink.published() == 0 {
            wait(&sink.bell, &[], || sink.published() > 0, None);
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
            wait(&sink.bell, &[], aborted, None);
        }
        aborter.join().unwrap();
        lane.join().unwrap();
    });
}

/// The path between two sessions of one domain: a ring there with a bell of its own, a ring back without one, and beside
/// them the lane's bell. Every message is received once in order, and every block comes back once, whoever rings first.
#[test]
fn a_sink_of_two_rings_misses_neither_and_every_block_comes_back_once() {
    use crate::ring::loom_model::LoomRing;
    use crate::ring::{ConsumerEnd, ProducerEnd};

    explore(3, || {
        let lane_bell = Arc::new(LoomFutex::new());
        let direct_bell = Arc::new(lane_bell.beside());
        let (there, back) = (LoomRing::new(2, 0), LoomRing::new(2, 0));
        let by_lane = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        let source = {
            let (bell, there, back) = (direct_bell.clone(), there.clone(), back.clone());
            loom::thread::spawn(move || {
                let mut messages = ProducerEnd::new(there, 2);
                let mut returns = ConsumerEnd::new(back, 2);
                for block in [7, 8] {
                    assert!(messages.stage(block).unwrap());
                    messages.publish();
                    ring(&*bell);
                }
                returns
                    .pop()
                    .unwrap()
                    .inspect(|block| assert_eq!(*block, 7));
                returns
            })
        };
        let lane = {
            let (bell, by_lane) = (lane_bell.clone(), by_lane.clone());
            loom::thread::spawn(move || {
                by_lane.store(1, Ordering::Release);
                ring(&*bell);
            })
        };
        let mut messages = ConsumerEnd::new(there, 2);
        let mut returns = ProducerEnd::new(back, 2);
        let (mut taken, mut heard) = (0, false);
        while taken < 2 || !heard {
            wait(
                &*lane_bell,
                &[&*direct_bell],
                || {
                    messages.available().unwrap() > 0
                        || (!heard && by_lane.load(Ordering::Acquire) == 1)
                },
                None,
            );
            heard |= by_lane.load(Ordering::Acquire) == 1;
            while let Some(block) = messages.pop().unwrap() {
                assert_eq!(block, 7 + taken);
                taken += 1;
                messages.release();
                assert!(returns.stage(block).unwrap());
                returns.publish();
            }
        }
        lane.join().unwrap();
        let mut back = source.join().unwrap();
        let mut rest = Vec::new();
        while let Some(block) = back.pop().unwrap() {
            rest.push(block);
        }
        assert!(rest == [8] || rest == [7, 8]);
    });
}
