//! What a forked child must find when it looks at its parent's sessions: nothing it could disturb.
//!
//! Every session has a [`Slot`] that lives as long as the process, in a list that only grows, so that the
//! handler that runs in a forked child can walk it without a lock. The handler marks the sessions as
//! foreign and puts a descriptor that means nothing in the place of theirs: then the runtime sees the
//! parent's end when the parent ends, whatever the child does. The arena itself is not inherited
//! (`takt_shm::Arena::open`).

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

mod handler;

pub use handler::{after_fork, forks};

/// What a session is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Attached to a runtime.
    Attached,
    /// The runtime is gone; it is looked for.
    Disconnected,
    /// Over for good.
    Ended,
    /// Of the parent process.
    Forked,
}

/// The state of a session in one word: how many times it has attached, and its [`Status`]. Handles
/// keep the word under which they were bound and compare it: equal means that all is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(u64);

impl State {
    pub(crate) const fn new(generation: u64, status: Status) -> Self {
        Self(generation << 2 | status as u64)
    }

    pub(crate) fn status(self) -> Status {
        match self.0 & 3 {
            0 => Status::Attached,
            1 => Status::Disconnected,
            2 => Status::Ended,
            _ => Status::Forked,
        }
    }

    pub(crate) fn generation(self) -> u64 {
        self.0 >> 2
    }
}

/// Descriptors of a session that a child must not keep.
const DESCRIPTORS: usize = 3;

/// A session's entry in the list.
#[derive(Debug)]
pub(crate) struct Slot {
    claimed: AtomicBool,
    state: AtomicU64,
    descriptors: [AtomicI32; DESCRIPTORS],
    pub(crate) next: AtomicPtr<Slot>,
}

impl Slot {
    /// A slot for a new session, disconnected, in generation 0. `descriptors_from`: see [`Options`](crate::control::Options).
    ///
    /// # Errors
    /// The kernel's, when the handler cannot be installed.
    pub(crate) fn claim(descriptors_from: Option<RawFd>) -> io::Result<&'static Self> {
        handler::install_fork_handler(descriptors_from)?;
        let free = handler::slots().find(|slot| {
            slot.claimed
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        });
        if let Some(slot) = free {
            slot.set(State::new(0, Status::Disconnected));
            return Ok(slot);
        }
        Ok(handler::add_slot(Box::new(Self {
            claimed: AtomicBool::new(true),
            state: AtomicU64::new(State::new(0, Status::Disconnected).0),
            descriptors: [const { AtomicI32::new(-1) }; DESCRIPTORS],
            next: AtomicPtr::new(std::ptr::null_mut()),
        })))
    }

    /// The state now.
    #[inline]
    pub(crate) fn state(&self) -> State {
        // Acquire: partner is the store in `set`. What was laid out before is visible.
        State(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, state: State) {
        self.state.store(state.0, Ordering::Release);
    }

    pub(crate) fn forked(&self) -> bool {
        self.state().status() == Status::Forked
    }

    /// The descriptors that a child is to lose from now on; -1 for none, before they are closed.
    pub(crate) fn guard(&self, descriptors: [RawFd; DESCRIPTORS]) {
        for (place, descriptor) in self.descriptors.iter().zip(descriptors) {
            place.store(descriptor, Ordering::Relaxed);
        }
    }

    /// This descriptor is about to be closed.
    pub(crate) fn unguard(&self, descriptor: RawFd) {
        for place in &self.descriptors {
            // What has taken its place meanwhile stays.
            let _ = place.compare_exchange(descriptor, -1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Gives the slot to whoever claims it next.
    pub(crate) fn free(&self) {
        self.guard([-1; DESCRIPTORS]);
        self.claimed.store(false, Ordering::Release);
    }

    /// In a forked child: this session is the parent's. `replace` puts a meaningless descriptor in the
    /// place of the one given. Called between fork and return: no lock, no allocation.
    pub(crate) fn disown(&self, replace: impl Fn(RawFd)) {
        if !self.claimed.load(Ordering::Relaxed) {
            return;
        }
        let generation = self.state().generation();
        self.set(State::new(generation, Status::Forked));
        for place in &self.descriptors {
            let descriptor = place.swap(-1, Ordering::Relaxed);
            if descriptor >= 0 {
                replace(descriptor);
            }
        }
    }
}
