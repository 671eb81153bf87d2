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
    /// By this one of the other words, whether it has changed or not.
    WokenBy(usize),
    /// One of the words was another: it did not sleep.
    Changed,
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
        wait(&*self.0, &[], recheck, timeout).0
    }

    /// As [`wait`](Self::wait), until this bell or one of the others rings: at most [`MOST_BELLS`](Self::MOST_BELLS) of
    /// them; further ones are not waited for. Also says which of the others have rung, a bit each; all of them where one has
    /// ended the wait without a trace. Needs [`can_wait_for_several`](Self::can_wait_for_several).
    pub fn wait_with(
        &self,
        others: &[&SinkBell],
        recheck: impl FnOnce() -> bool,
        timeout: Option<Duration>,
    ) -> (WaitOutcome, u64) {
        let mut words = [&*self.0; Self::MOST_BELLS];
        let others = others.iter().take(Self::MOST_BELLS);
        let count = others.len();
        for (place, other) in words.iter_mut().zip(others) {
            *place = &*other.0;
        }
        wait(&*self.0, &words[..count], recheck, timeout)
    }

    /// Most bells that are waited for beside one.
    pub const MOST_BELLS: usize = 64;

    /// Whether the kernel lets a thread sleep on several words (futex_waitv, Linux 5.16).
    pub fn can_wait_for_several() -> bool {
        // SAFETY: no word is waited for: the kernel refuses that with EINVAL if it knows the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex_waitv,
                core::ptr::null::<FutexWaitv>(),
                0,
                0,
                0,
                0,
            )
        };
        result == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
    }

    /// Whether nobody is announced as waiting: who was has been rung for.
    pub fn is_idle(&self) -> bool {
        self.0.load(Ordering::Relaxed) == IDLE
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
    /// Sleeps while the word and all others are `value`, until woken by one of them, interrupted or `deadline`.
    fn sleep(&self, others: &[&Self], value: u32, deadline: Option<Instant>) -> Sleep;
    /// Wakes one thread that sleeps on the word.
    fn wake(&self);
}

fn wait<W: Futex>(
    word: &W,
    others: &[&W],
    recheck: impl FnOnce() -> bool,
    timeout: Option<Duration>,
) -> (WaitOutcome, u64) {
    word.swap(SLEEPING, Ordering::Relaxed);
    for other in others {
        other.swap(SLEEPING, Ordering::Relaxed);
    }
    // Partner: the fences in ring and wake_local. Either the recheck sees what they published, or they
    // see SLEEPING.
    W::fence();
    if recheck() {
        word.swap(IDLE, Ordering::Relaxed);
        for other in others {
            other.swap(IDLE, Ordering::Relaxed);
        }
        return (WaitOutcome::Ready, 0);
    }
    // A timeout beyond what an Instant can hold is no timeout.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let slept = word.sleep(others, SLEEPING, deadline);
    // Who wakes without a change of the word has rung as well.
    let mut rung = match slept {
        Sleep::WokenBy(at) => 1 << (at % 64),
        _ => 0,
    };
    for (at, other) in others.iter().enumerate() {
        // Acquire: as below.
        rung |= u64::from(other.swap(IDLE, Ordering::Acquire) != SLEEPING) << (at % 64);
    }
    // Whoever rang has set the word to idle; that counts even if the deadline passed as well.
    // Acquire: partner is the fence before the swap in ring and wake_local. What they made visible is
    // visible after a Woken.
    let outcome = match (word.swap(IDLE, Ordering::Acquire), slept) {
        (SLEEPING, Sleep::TimedOut) if rung == 0 => WaitOutcome::TimedOut,
        (SLEEPING, Sleep::Interrupted) if rung == 0 => WaitOutcome::Interrupted,
        (SLEEPING, Sleep::Changed) if rung == 0 => {
            // Somebody has changed a word and set it back, which nobody honest does: it may have been any.
            rung = u64::MAX.checked_shr(64 - others.len() as u32).unwrap_or(0);
            WaitOutcome::Woken
        }
        _ => WaitOutcome::Woken,
    };
    (outcome, rung)
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

/// How a futex system call has ended.
fn ended(result: libc::c_long) -> Sleep {
    if result >= 0 {
        return Sleep::Woken;
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EINTR) => Sleep::Interrupted,
        Some(libc::ETIMEDOUT) => Sleep::TimedOut,
        Some(libc::EAGAIN) => Sleep::Changed,
        _ => Sleep::Woken,
    }
}

/// `struct futex_waitv`, linux/futex.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct FutexWaitv {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// `FUTEX2_SIZE_U32`, without `FUTEX2_PRIVATE`: the words are shared between processes.
const SIZE_U32: u32 = 2;

fn sleep_on_several(
    word: &AtomicU32,
    others: &[&AtomicU32],
    value: u32,
    deadline: Option<Instant>,
) -> Sleep {
    let waiter = |word: &AtomicU32| FutexWaitv {
        value: value.into(),
        address: word.as_ptr() as u64,
        flags: SIZE_U32,
        reserved: 0,
    };
    let mut waiters = [waiter(word); SinkBell::MOST_BELLS + 1];
    for (place, other) in waiters[1..].iter_mut().zip(others) {
        *place = waiter(other);
    }
    let left = deadline.map_or(LONGEST_SLEEP, |deadline| {
        deadline.saturating_duration_since(Instant::now())
    });
    if left.is_zero() {
        return Sleep::TimedOut;
    }
    let mut until = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel fills the live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut until) };
    // This call takes an instant, not a duration.
    let nanos = until.tv_nsec + i64::from(left.subsec_nanos());
    let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX / 2);
    until.tv_sec = until.tv_sec.saturating_add(seconds + nanos / 1_000_000_000);
    until.tv_nsec = nanos % 1_000_000_000;
    // SAFETY: all words are live atomics, the waiters a live array of at least that many, the timeout a live timespec.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            waiters.as_ptr(),
            1 + others.len().min(SinkBell::MOST_BELLS),
            0,
            &raw const until,
            libc::CLOCK_MONOTONIC,
        )
    };
    match usize::try_from(result) {
        // The word itself is the first.
        Ok(at @ 1..) => Sleep::WokenBy(at - 1),
        _ => ended(result),
    }
}

impl Futex for AtomicU32 {
    fn sleep(&self, others: &[&Self], value: u32, deadline: Option<Instant>) -> Sleep {
        if !others.is_empty() {
            return sleep_on_several(self, others, value, deadline);
        }
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
        ended(result)
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
