//! Application to lane: wakes a parked lane through an eventfd.
//!
//! Two words of the arena: *state* ([`RUNNING`] or [`PARKED`], set by the lane) and *dirty* (set by the
//! application when there is something to look for, so that a lane with many sessions reads one line
//! per session, not every ring). Both are written only by swaps, so that the history of a word is one
//! chain and a swap always takes the latest mark.
//!
//! The lane registers the eventfd edge-triggered (EPOLLET) and never reads it: the flags of the open
//! file belong to the application as well, and a read that it made blocking would stop the lane.
//! Every write is an edge. A hostile application can write all the time and so keep the lane from
//! parking; what that may cost is for the lane's accounting.

use core::sync::atomic::Ordering;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::BellError;
use crate::arena::{Arena, OutOfBounds};
use crate::sync::{ArenaWord, Word};

/// State word: the lane polls; it will see what is published.
pub const RUNNING: u32 = 0;
/// State word: the lane sleeps, or is about to; the eventfd must be written.
pub const PARKED: u32 = 1;

/// The application's end.
#[derive(Debug)]
pub struct LaneBell {
    state: ArenaWord,
    dirty: ArenaWord,
    eventfd: OwnedFd,
}

impl LaneBell {
    /// Attaches to the state and dirty words at the given offsets; `eventfd` is the host's.
    ///
    /// # Errors
    /// [`OutOfBounds`] when a word does not lie in the arena or is not aligned to 4 bytes.
    pub fn attach(
        arena: &Arc<Arena>,
        state_offset: usize,
        dirty_offset: usize,
        eventfd: OwnedFd,
    ) -> Result<Self, OutOfBounds> {
        Ok(LaneBell {
            state: ArenaWord::new(arena, state_offset)?,
            dirty: ArenaWord::new(arena, dirty_offset)?,
            eventfd,
        })
    }

    /// Tells the lane that something was published to a ring. A system call only when it is parked.
    #[inline]
    pub fn ring(&self) {
        if ring::<_>(&*self.state, &*self.dirty) {
            self.write_eventfd();
        }
    }

    #[cold]
    fn write_eventfd(&self) {
        let one = 1_u64;
        // SAFETY: writes eight bytes from a live u64. A failure can only be EAGAIN (the counter, which
        // nobody reads, is full after 2^64 - 2 wake-ups) or EINTR before anything happened, which
        // eventfd does not report for a write that need not wait.
        unsafe { libc::write(self.eventfd.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

/// The lane's end.
#[derive(Debug)]
pub struct LaneBellHost {
    state: ArenaWord,
    dirty: ArenaWord,
    eventfd: OwnedFd,
}

impl LaneBellHost {
    /// Takes the words at the given offsets, sets them to running and clean, and makes the eventfd.
    ///
    /// # Errors
    /// [`BellError`]: a word does not fit the arena, or the kernel gives no eventfd.
    pub fn new(
        arena: &Arc<Arena>,
        state_offset: usize,
        dirty_offset: usize,
    ) -> Result<Self, BellError> {
        let state = ArenaWord::new(arena, state_offset)?;
        let dirty = ArenaWord::new(arena, dirty_offset)?;
        state.store(RUNNING, Ordering::Relaxed);
        dirty.store(0, Ordering::Relaxed);
        // SAFETY: plain system call without pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(BellError::EventFd(io::Error::last_os_error()));
        }
        // SAFETY: the kernel has just given us this descriptor.
        let eventfd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(LaneBellHost {
            state,
            dirty,
            eventfd,
        })
    }

    /// The eventfd: to register (EPOLLIN | EPOLLET, never read), and to hand to the application.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    /// Announces that the lane is going to sleep. After this look at [`take_dirty`](Self::take_dirty)
    /// (or the rings) once more; sleep only when there is nothing, else [`unpark`](Self::unpark).
    #[inline]
    pub fn park(&self) {
        park(&*self.state);
    }

    /// The lane polls again.
    #[inline]
    pub fn unpark(&self) {
        unpark(&*self.state);
    }

    /// Whether the application published something since the last call. When true, look at its rings
    /// now. One plain load when there is nothing.
    #[inline]
    pub fn take_dirty(&self) -> bool {
        take_dirty(&*self.dirty)
    }
}

/// Marks the lane's work, and says whether the lane must be woken.
///
/// After a true answer the state is running, so that one of several ringing threads writes.
#[inline]
fn ring<W: Word>(state: &W, dirty: &W) -> bool {
    // Partner: the fence in take_dirty. If a mark that the lane is just taking is seen here, then the
    // lane looks at the rings after its fence and sees what was published before this one. Partner
    // also: the fence in park, when the mark is already there.
    W::fence();
    if dirty.load(Ordering::Relaxed) == 0 {
        dirty.swap(1, Ordering::Relaxed);
        // Partner: the fence in park. Either the lane sees the mark before it sleeps, or its PARKED
        // is seen here.
        W::fence();
    }
    state.load(Ordering::Relaxed) == PARKED && state.swap(RUNNING, Ordering::Relaxed) == PARKED
}

#[inline]
fn park<W: Word>(state: &W) {
    state.swap(PARKED, Ordering::Relaxed);
    // Partner: both fences in ring.
    W::fence();
}

#[inline]
fn unpark<W: Word>(state: &W) {
    state.swap(RUNNING, Ordering::Relaxed);
}

#[inline]
fn take_dirty<W: Word>(dirty: &W) -> bool {
    if dirty.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let marked = dirty.swap(0, Ordering::Relaxed) != 0;
    // Partner: the first fence in ring. The rings are read after the mark is taken.
    W::fence();
    marked
}

#[cfg(all(test, loom))]
mod loom_model;
#[cfg(all(test, not(loom)))]
mod tests;
