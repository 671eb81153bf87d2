//! A file descriptor that is readable while datagrams wait, written as rarely as that allows.
//!
//! Nobody writes it before it is asked for: lanes that spin never pay. From then on, the sender that
//! makes the queue not empty raises it, and the receiver lowers it when it has found the queue empty.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use rustix::event::{EventfdFlags, eventfd};

/// Nothing is to be read from the descriptor.
const QUIET: u8 = 0;
/// A sender is about to write it: the receiver must not lower what is not raised yet.
const RAISING: u8 = 1;
/// It is readable.
const RAISED: u8 = 2;

/// What a sleeper waits for: raised, it stays so until it is lowered.
pub(super) trait Line {
    /// Called when it is low only.
    fn raise(&self);
    /// Called when it is raised only.
    fn lower(&self);
}

/// A line to be polled.
#[derive(Debug)]
pub(super) struct EventFd(OwnedFd);

impl Line for EventFd {
    fn raise(&self) {
        // The counter is 0, so there is room for 1 and nothing can fail.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn lower(&self) {
        // The counter is 1, so there is something to read.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

#[derive(Debug)]
pub(super) struct Bell<L = EventFd> {
    line: L,
    watched: AtomicBool,
    state: AtomicU8,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self::on(EventFd(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?)))
    }

    /// The descriptor, which is kept right from now on.
    pub(super) fn wait_fd(&self, waiting: impl FnOnce() -> bool) -> BorrowedFd<'_> {
        self.watch(waiting);
        self.line.0.as_fd()
    }
}

impl<L: Line> Bell<L> {
    fn on(line: L) -> Self {
        Self {
            line,
            watched: AtomicBool::new(false),
            state: AtomicU8::new(QUIET),
        }
    }

    /// Raises the descriptor. The caller has made something wait before.
    pub(super) fn ring(&self) {
        // Of this fence and the one of `watch` or `lower`, one comes first: either we see their store, or
        // they see what we have made wait.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        if !self.watched.load(Ordering::Relaxed) {
            return;
        }
        // Relaxed: the state carries nothing but itself; the fences order it against the queue.
        if self
            .state
            .compare_exchange(QUIET, RAISING, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            self.line.raise();
            // Release: pairs with the Acquire in `lower`, which lowers the line after we have raised it.
            self.state.store(RAISED, Ordering::Release);
        }
    }

    /// Lowers the descriptor. `waiting` looks whether something waits after all.
    pub(super) fn lower(&self, waiting: impl FnOnce() -> bool) {
        // Acquire: pairs with the Release in `ring`.
        if self.state.load(Ordering::Acquire) != RAISED {
            return;
        }
        self.line.lower();
        // Relaxed: ordered by the fence.
        self.state.store(QUIET, Ordering::Relaxed);
        // Pairs with the fence of `ring`.
        fence(Ordering::SeqCst);
        if waiting() {
            self.ring();
        }
    }

    /// Begins to keep the line right.
    fn watch(&self, waiting: impl FnOnce() -> bool) {
        // Relaxed: ordered by the fence; only the receiver stores it.
        if !self.watched.load(Ordering::Relaxed) {
            self.watched.store(true, Ordering::Relaxed);
            // Pairs with the fence of `ring`.
            fence(Ordering::SeqCst);
            if waiting() {
                self.ring();
            }
        }
    }
}

/// Run by `RUSTFLAGS="--cfg loom" cargo test -p takt-datapath --lib loom_model`.
#[cfg(all(loom, test))]
mod loom_model {
    use loom::sync::atomic::AtomicUsize;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// A line that a sleeper waits for; a lost wake-up shows as a deadlock.
    struct ModelLine {
        raised: Mutex<bool>,
        changed: Condvar,
    }

    impl ModelLine {
        fn wait(&self) {
            let mut raised = self.raised.lock().unwrap();
            while !*raised {
                raised = self.changed.wait(raised).unwrap();
            }
        }
    }

    impl Line for ModelLine {
        fn raise(&self) {
            assert!(
                !std::mem::replace(&mut *self.raised.lock().unwrap(), true),
                "raised twice"
            );
            self.changed.notify_one();
        }

        fn lower(&self) {
            assert!(
                std::mem::replace(&mut *self.raised.lock().unwrap(), false),
                "lowered twice"
            );
        }
    }

    struct Shared {
        bell: Bell<ModelLine>,
        waiting: AtomicUsize,
    }

    impl Shared {
        fn new() -> Arc<Self> {
            let line = ModelLine {
                raised: Mutex::new(false),
                changed: Condvar::new(),
            };
            Arc::new(Self {
                bell: Bell::on(line),
                waiting: AtomicUsize::new(0),
            })
        }

        fn send(&self) {
            self.waiting.fetch_add(1, Ordering::Release);
            self.bell.ring();
        }

        fn something_waits(&self) -> bool {
            self.waiting.load(Ordering::Acquire) > 0
        }

        fn receive(&self) -> usize {
            let taken = self.waiting.swap(0, Ordering::AcqRel);
            if taken == 0 {
                self.bell.lower(|| self.something_waits());
            }
            taken
        }

        /// What a parked lane does until it has received so much.
        fn receive_sleeping(&self, count: usize) {
            let mut received = 0;
            while received < count {
                match self.receive() {
                    0 => {
                        self.bell.watch(|| self.something_waits());
                        self.bell.line.wait();
                        thread::yield_now();
                    }
                    some => received += some,
                }
            }
        }
    }

    fn check(senders: usize, each: usize) {
        let mut model = loom::model::Builder::new();
        // Without a bound the model takes minutes and finds no more.
        model.preemption_bound = Some(3);
        model.check(move || {
            let shared = Shared::new();
            let senders: Vec<_> = (0..senders)
                .map(|_| {
                    let shared = shared.clone();
                    thread::spawn(move || (0..each).for_each(|_| shared.send()))
                })
                .collect();
            shared.receive_sleeping(senders.len() * each);
            for sender in senders {
                sender.join().unwrap();
            }
            // Nothing waits: after one more look the line is low, or a lane would never sleep again.
            assert_eq!(shared.receive(), 0);
            assert!(!*shared.bell.line.raised.lock().unwrap());
        });
    }

    #[test]
    fn a_sleeping_receiver_gets_every_datagram_of_one_sender() {
        check(1, 2);
    }

    #[test]
    fn a_sleeping_receiver_gets_every_datagram_of_two_senders() {
        check(2, 1);
    }
}
