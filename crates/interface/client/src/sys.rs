//! The clock, sleep, and signals of our own threads.

#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use crate::error::Error;

/// Nanoseconds of the kernel's `CLOCK_TAI`.
#[inline]
pub(crate) fn tai_ns() -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel fills the live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_TAI, &raw mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Runs `start`, which starts a thread, so that the thread has all signals blocked: they are for the
/// threads of the application.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset fills the set that pthread_sigmask then reads; the mask before is filled by it.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let result = start();
    if blocked {
        // SAFETY: `before` was filled by the successful call above.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    result
}

/// Sleeps. [`Error::Interrupted`] when a signal handler ran on this thread meanwhile.
pub(crate) fn sleep(duration: Duration) -> Result<(), Error> {
    let request = libc::timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    };
    // SAFETY: a live timespec; null: what is left is of no interest.
    match unsafe { libc::nanosleep(&raw const request, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(Error::Interrupted),
    }
}

/// Signals of this thread held back while it polls, so that each is noticed when it is let through.
pub(crate) struct HeldSignals {
    before: libc::sigset_t,
    /// The mask is of one thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl HeldSignals {
    /// Holds them back; `None` if the kernel does not let us.
    pub(crate) fn hold() -> Option<Self> {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: as in `without_signals`; `before` is filled when it succeeds.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            (libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0).then(
                || Self {
                    before: before.assume_init(),
                    _thread: std::marker::PhantomData,
                },
            )
        }
    }

    /// Lets those through that wait: whether a handler ran.
    pub(crate) fn let_through(&self) -> bool {
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: no descriptors, a live timespec and mask.
        let polled = unsafe {
            libc::ppoll(
                std::ptr::null_mut(),
                0,
                &raw const now,
                &raw const self.before,
            )
        };
        polled < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: the mask that the kernel gave us.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }
}
