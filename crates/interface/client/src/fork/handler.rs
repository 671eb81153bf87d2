//! The list of slots, and what runs in a forked child.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use super::Slot;
use crate::descriptors::{self, Registered};

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

/// In a forked child that the C library knows nothing of, and for which it runs no handlers: made by a system call of the
/// program's own, or `_Fork`. Called before anything is opened there, by one thread; harmless where the handler has run.
pub fn after_fork() {
    in_child();
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let nothing = NOTHING.load(Ordering::Relaxed);
    descriptors::forget_all();
    if nothing >= 0 {
        // It is the child's as well, whose own children need it.
        std::mem::forget(Registered::new(nothing));
    }
    for slot in slots() {
        slot.disown(|descriptor| {
            // SAFETY: no pointers. The number stays taken, so whoever owns it can still close it.
            unsafe { libc::dup3(nothing, descriptor, libc::O_CLOEXEC) };
        });
    }
}
