//! Ending a wait from another thread.

use std::sync::{Arc, Weak};

use crate::control::Shared;
use crate::interrupt::Interrupt;

/// Ends a wait of a source or sink from another thread.
///
/// Cheap to clone. Not for signal handlers: a wait that sleeps when a handler runs on its thread ends by itself.
#[derive(Clone)]
pub struct Waker {
    interrupt: Arc<Interrupt>,
    /// A waker does not keep its session's parts.
    shared: Weak<Shared>,
    /// The sink's key; none for a source, whose waits look by themselves.
    sink: Option<u32>,
}

impl Waker {
    pub(crate) fn new(shared: &Arc<Shared>, interrupt: &Arc<Interrupt>, sink: Option<u32>) -> Self {
        Self {
            interrupt: interrupt.clone(),
            shared: Arc::downgrade(shared),
            sink,
        }
    }

    /// The wait that is under way, or the next one if none is, fails with [`Error::Interrupted`](crate::Error::Interrupted). Several calls
    /// before that are as one. Does nothing in a forked child.
    pub fn wake(&self) {
        self.interrupt.wake();
        self.wake_thread();
    }

    /// Wakes whoever sleeps, to look at the interrupt.
    fn wake_thread(&self) {
        // In a forked child the lock may be another thread's for ever.
        let Some(shared) = self.shared.upgrade().filter(|shared| !shared.slot.forked()) else {
            return;
        };
        let control = shared.lock();
        let open = self.sink.and_then(|key| control.sinks.get(&key));
        if let Some(Ok(open)) = open.map(|record| &record.opened) {
            open.bell.wake_local();
        }
        drop(control);
        shared.notify();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.interrupt.is_closed()
    }

    pub(crate) fn close(&self) {
        self.interrupt.close();
        self.wake_thread();
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waker").finish_non_exhaustive()
    }
}
