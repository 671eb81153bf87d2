//! The unsafe code of this crate: payloads as slices, the fork handler, signals of our own threads.

#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use crate::descriptors::{self, Registered};
use crate::error::Error;
use crate::fork::Slot;
use crate::message::Message;
use crate::source::Buffer;

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

impl Deref for Buffer<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the window was checked against the arena and is at least `len()` long; the source,
        // which the buffer borrows, keeps the arena mapped while buffers are out; the block is this
        // buffer's alone until it is emitted, which consumes it. The runtime reads only what was emitted.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
}

impl DerefMut for Buffer<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` excludes every other view.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }
}

impl Deref for Message<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the window was checked against the arena; the sink, which the message borrows, keeps
        // it mapped while messages are out. Nobody writes the block before it is released: the runtime,
        // whom an application trusts as it does the kernel, keeps it for this message, and a buffer
        // of this session that was emitted has no owner who could write it.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
}

static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(std::ptr::null_mut());
static HANDLER: AtomicBool = AtomicBool::new(false);
/// An eventfd that nobody writes: what a child gets in the place of its parent's descriptors.
static NOTHING: AtomicI32 = AtomicI32::new(-1);

/// Every slot of the process.
pub(crate) fn slots() -> impl Iterator<Item = &'static Slot> {
    let mut at = SLOTS.load(Ordering::Acquire); // Partner: `add_slot`.
    std::iter::from_fn(move || {
        // SAFETY: null, or a slot that `add_slot` has leaked: it lives for ever and is never moved.
        let slot: &'static Slot = unsafe { at.as_ref() }?;
        at = slot.next.load(Ordering::Acquire);
        Some(slot)
    })
}

/// Adds a slot to the list, where it stays.
pub(crate) fn add_slot(slot: Box<Slot>) -> &'static Slot {
    let slot: &'static Slot = Box::leak(slot);
    let pointer = std::ptr::from_ref(slot).cast_mut();
    let mut head = SLOTS.load(Ordering::Relaxed);
    loop {
        slot.next.store(head, Ordering::Relaxed);
        // Release: partner is the load in `slots`; the slot is whole before it is found.
        match SLOTS.compare_exchange_weak(head, pointer, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return slot,
            Err(now) => head = now,
        }
    }
}

/// Makes sure that [`in_child`] runs in every forked child. Two threads that race here may install it
/// twice, which does no harm; a lock that the child could inherit locked would.
pub(crate) fn install_fork_handler(descriptors_from: Option<RawFd>) -> io::Result<()> {
    if HANDLER.load(Ordering::Acquire) {
        return Ok(());
    }
    // SAFETY: plain system call without pointers.
    let mut nothing = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if nothing < 0 {
        return Err(io::Error::last_os_error());
    }
    if let Some(lowest) = descriptors_from {
        // SAFETY: no pointers.
        let moved = unsafe { libc::fcntl(nothing, libc::F_DUPFD_CLOEXEC, lowest) };
        if moved >= 0 {
            // SAFETY: ours, made above and known to nobody else.
            unsafe { libc::close(nothing) };
            nothing = moved;
        }
    }
    if NOTHING
        .compare_exchange(-1, nothing, Ordering::Release, Ordering::Relaxed)
        .is_err()
    {
        // SAFETY: ours, made above and known to nobody else.
        unsafe { libc::close(nothing) };
    } else {
        // For as long as the process lives.
        std::mem::forget(Registered::new(nothing));
    }
    // SAFETY: the handler is a function of this library that does nothing but what is allowed between
    // fork and return: atomics and dup3.
    let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    HANDLER.store(true, Ordering::Release);
    Ok(())
}

/// See [`forks`].
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A number that is another one in a forked child than in its parent, once a session was opened: what was made at another
/// number is the parent's.
#[inline]
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let nothing = NOTHING.load(Ordering::Relaxed);
    descriptors::forget_all();
    for slot in slots() {
        slot.disown(|descriptor| {
            // SAFETY: no pointers. The number stays taken, so whoever owns it can still close it.
            unsafe { libc::dup3(nothing, descriptor, libc::O_CLOEXEC) };
        });
    }
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
