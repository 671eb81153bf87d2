//! What ends a wait.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;

/// Why a wait of one source or sink is to end.
#[derive(Debug, Default)]
pub(crate) struct Interrupt {
    closed: AtomicBool,
    woken: AtomicBool,
}

impl Interrupt {
    /// The sink is closed: every wait ends, now and later.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Whether the sink is closed.
    pub(crate) fn is_closed(&self) -> bool {
        // As in `is_set`.
        self.closed.load(Ordering::SeqCst)
    }

    /// Whether a wait is to end, which [`take`](Self::take) then says why.
    pub(crate) fn is_set(&self) -> bool {
        // SeqCst: partner are the stores here, before the waiting thread is woken.
        self.closed.load(Ordering::SeqCst) || self.woken.load(Ordering::SeqCst)
    }

    /// Why the wait under way is to end, if it is. One call to wake ends one wait.
    #[inline]
    pub(crate) fn take(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        if self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::SeqCst) {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// The wait under way, or else the next one, ends once.
    pub(crate) fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
    }
}
