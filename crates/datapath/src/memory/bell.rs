//! A file descriptor that is readable while datagrams wait, written as rarely as that allows.
//!
//! Nobody writes it before it is asked for: lanes that spin never pay. From then on, the sender that
//! makes the queue not empty raises it, and the receiver lowers it when it has found the queue empty.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// Nothing is to be read from the descriptor.
const QUIET: u8 = 0;
/// A sender is about to write it: the receiver must not lower what is not raised yet.
const RAISING: u8 = 1;
/// It is readable.
const RAISED: u8 = 2;

#[derive(Debug)]
pub(super) struct Bell {
    fd: OwnedFd,
    watched: AtomicBool,
    state: AtomicU8,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            fd,
            watched: AtomicBool::new(false),
            state: AtomicU8::new(QUIET),
        })
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
            // The counter is 0 here, so there is room for 1 and nothing can fail.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
            // Release: pairs with the Acquire in `lower`, which reads the descriptor after our write.
            self.state.store(RAISED, Ordering::Release);
        }
    }

    /// Lowers the descriptor. `waiting` looks whether something waits after all.
    pub(super) fn lower(&self, waiting: impl FnOnce() -> bool) {
        // Acquire: pairs with the Release in `ring`.
        if self.state.load(Ordering::Acquire) != RAISED {
            return;
        }
        // The counter is 1 here: only this thread takes it back.
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        // Relaxed: ordered by the fence.
        self.state.store(QUIET, Ordering::Relaxed);
        // Pairs with the fence of `ring`.
        fence(Ordering::SeqCst);
        if waiting() {
            self.ring();
        }
    }

    /// The descriptor, which is kept right from now on.
    pub(super) fn watch(&self, waiting: impl FnOnce() -> bool) -> BorrowedFd<'_> {
        // Relaxed: ordered by the fence; only the receiver stores it.
        if !self.watched.load(Ordering::Relaxed) {
            self.watched.store(true, Ordering::Relaxed);
            // Pairs with the fence of `ring`.
            fence(Ordering::SeqCst);
            if waiting() {
                self.ring();
            }
        }
        self.fd.as_fd()
    }
}
