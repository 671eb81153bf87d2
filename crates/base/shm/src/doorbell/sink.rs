//! Lane to application: wakes a thread that sleeps on a sink, or says that its file descriptor is due.
//!
//! One word of the arena per sink: [`IDLE`], [`SLEEPING`] (a thread sleeps in the futex) or
//! [`FD_ARMED`] (the application waits in its own event loop on a descriptor that the runtime
//! signals). Several application threads never wait on the same sink at the same time: the word
//! speaks for one. The word is written only by swaps, so that its history is one chain and a swap always
//! takes the latest announcement. The futex is a shared one (no FUTEX_PRIVATE_FLAG), as the two sides map the arena
//! at different addresses.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::arena::{Arena, OutOfBounds};
use crate::sync::{ArenaWord, Word};

/// Word: nobody waits.
pub const IDLE: u32 = 0;
/// Word: a thread sleeps in the futex, or is about to.
pub const SLEEPING: u32 = 1;
/// Word: a file descriptor is armed.
pub const FD_ARMED: u32 = 2;

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The last look before sleeping found something.
    Ready,
    /// Woken by the lane or by [`SinkBell::wake_local`]; there may still be nothing to take.
    Woken,
    /// Nobody rang in time.
    TimedOut,
    /// Nobody rang, and a signal handler ran on this thread while it slept.
    Interrupted,
}

/// Sleeps have an end, or the kernel would go on sleeping after handlers that were installed with `SA_RESTART`.
const LONGEST_SLEEP: Duration = Duration::from_secs(1 << 30);

/// How a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sleep {
    /// The word has changed, or may have.
    Woken,
    TimedOut,
    Interrupted,
}

/// What [`SinkBellHost::ring`] did, and what is left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// Nobody waited.
    None,
    /// A sleeping thread was woken.
    Futex,
    /// A descriptor is armed: the caller signals it.
    Fd,
}

/// The application's end.
#[derive(Debug)]
pub struct SinkBell(ArenaWord);

impl SinkBell {
    /// Attaches to the word at `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] when it does not lie in the arena or is not aligned to 4 bytes.
    pub fn attach(arena: &Arc<Arena>, offset: usize) -> Result<Self, OutOfBounds> {
        Ok(SinkBell(ArenaWord::new(arena, offset)?))
    }

    /// Sleeps until the lane rings, or `timeout` has passed (never, when none is given).
    ///
    /// `recheck` looks once more for something to take, and for the caller's own reasons not to sleep;
    /// it runs after the sleep is announced, so that nothing slips in between. A descriptor that was
    /// armed before is not any more.
    pub fn wait(&self, recheck: impl FnOnce() -> bool, timeout: Option<Duration>) -> WaitOutcome {
        wait(&*self.0, recheck, timeout)
    }

    /// Wakes a thread of this application that is in [`wait`](Self::wait), to abort it. Make the reason
    /// visible to its `recheck` first. A descriptor stays armed.
    pub fn wake_local(&self) {
        wake_local(&*self.0);
    }

    /// Arms the sink's file descriptor: the next [`SinkBellHost::ring`] makes the runtime signal it.
    ///
    /// True: armed. False: `recheck`, which runs after the announcement, found something, so it was
    /// disarmed again (the runtime may have signalled it in between; a spurious signal is harmless).
    pub fn arm_fd(&self, recheck: impl FnOnce() -> bool) -> bool {
        arm_fd(&*self.0, recheck)
    }
}

/// The lane's end.
#[derive(Debug)]
pub struct SinkBellHost(ArenaWord);

impl SinkBellHost {
    /// Attaches to the word at `offset`. It is not changed: a fresh arena says idle.
    ///
    /// # Errors
    /// [`OutOfBounds`] when it does not lie in the arena or is not aligned to 4 bytes.
    pub fn attach(arena: &Arc<Arena>, offset: usize) -> Result<Self, OutOfBounds> {
        Ok(SinkBellHost(ArenaWord::new(arena, offset)?))
    }

    /// Wakes whoever waits for the sink, after something was published to its ring. A system call only
    /// when a thread sleeps. A value that no honest application writes counts as nobody.
    #[inline]
    pub fn ring(&self) -> Wake {
        ring(&*self.0)
    }
}

/// A word that a thread can sleep on.
trait Futex: Word {
    /// Sleeps while the word is `value`, until woken, interrupted or `deadline`.
    fn sleep(&self, value: u32, deadline: Option<Instant>) -> Sleep;
    /// Wakes one thread that sleeps on the word.
    fn wake(&self);
}

fn wait<W: Futex>(
    word: &W,
    recheck: impl FnOnce() -> bool,
    timeout: Option<Duration>,
) -> WaitOutcome {
    word.swap(SLEEPING, Ordering::Relaxed);
    // Partner: the fences in ring and wake_local. Either the recheck sees what they published, or they
    // see SLEEPING.
    W::fence();
    if recheck() {
        word.swap(IDLE, Ordering::Relaxed);
        return WaitOutcome::Ready;
    }
    // A timeout beyond what an Instant can hold is no timeout.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let slept = word.sleep(SLEEPING, deadline);
    // Whoever rang has set the word to idle; that counts even if the deadline passed as well.
    // Acquire: partner is the fence before the swap in ring and wake_local. What they made visible is
    // visible after a Woken.
    match (word.swap(IDLE, Ordering::Acquire), slept) {
        (SLEEPING, Sleep::TimedOut) => WaitOutcome::TimedOut,
        (SLEEPING, Sleep::Interrupted) => WaitOutcome::Interrupted,
        _ => WaitOutcome::Woken,
    }
}

fn wake_local<W: Futex>(word: &W) {
    // Partner: the fence in wait.
    W::fence();
    if word.replace_if(SLEEPING, IDLE, Ordering::Relaxed) {
        word.wake();
    }
}

fn arm_fd<W: Word>(word: &W, recheck: impl FnOnce() -> bool) -> bool {
    word.swap(FD_ARMED, Ordering::Relaxed);
    // Partner: the fence in ring.
    W::fence();
    if recheck() {
        word.swap(IDLE, Ordering::Relaxed);
        return false;
    }
    true
}

#[inline]
fn ring<W: Futex>(word: &W) -> Wake {
    // Partner: the fences in wait and arm_fd.
    W::fence();
    if word.load(Ordering::Relaxed) == IDLE {
        return Wake::None;
    }
    match word.swap(IDLE, Ordering::Relaxed) {
        SLEEPING => {
            word.wake();
            Wake::Futex
        }
        FD_ARMED => Wake::Fd,
        _ => Wake::None,
    }
}

impl Futex for AtomicU32 {
    fn sleep(&self, value: u32, deadline: Option<Instant>) -> Sleep {
        let left = match deadline {
            None => LONGEST_SLEEP,
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
        };
        if left.is_zero() {
            return Sleep::TimedOut;
        }
        let left = libc::timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        // SAFETY: the word is a live atomic and the timeout a live timespec.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.as_ptr(),
                libc::FUTEX_WAIT,
                value,
                &raw const left,
            )
        };
        if result == 0 {
            return Sleep::Woken;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => Sleep::Interrupted,
            Some(libc::ETIMEDOUT) => Sleep::TimedOut,
            // EAGAIN: the word had changed already.
            _ => Sleep::Woken,
        }
    }

    #[cold]
    fn wake(&self) {
        // SAFETY: the word is a live atomic. One waiter: the word speaks for one thread, and a hostile
        // application must not make this walk over thousands.
        unsafe { libc::syscall(libc::SYS_futex, self.as_ptr(), libc::FUTEX_WAKE, 1) };
    }
}

#[cfg(all(test, loom))]
mod loom_model;
#[cfg(all(test, not(loom)))]
mod tests;
