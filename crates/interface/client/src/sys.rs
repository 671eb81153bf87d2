//! The unsafe code of this crate: payloads as slices, the fork handler, signals of our own threads.

#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use crate::fork::Slot;
use crate::message::Message;
use crate::source::Buffer;

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
pub(crate) fn install_fork_handler() -> io::Result<()> {
    if HANDLER.load(Ordering::Acquire) {
        return Ok(());
    }
    // SAFETY: plain system call without pointers.
    let nothing = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if nothing < 0 {
        return Err(io::Error::last_os_error());
    }
    if NOTHING
        .compare_exchange(-1, nothing, Ordering::Release, Ordering::Relaxed)
        .is_err()
    {
        // SAFETY: ours, made above and known to nobody else.
        unsafe { libc::close(nothing) };
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

extern "C" fn in_child() {
    let nothing = NOTHING.load(Ordering::Relaxed);
    for slot in slots() {
        slot.disown(|descriptor| {
            // SAFETY: no pointers. The number stays taken, so whoever owns it can still close it.
            unsafe { libc::dup3(nothing, descriptor, libc::O_CLOEXEC) };
        });
    }
}

/// Runs `start`, which starts a thread, so that the thread has all signals blocked: they are for the
/// threads of the application.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
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
