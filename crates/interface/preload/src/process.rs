//! This process and this thread: whether it is a forked child, and whether a call of ours is under way.

use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::real;

/// The library is being made ready for this process.
const IN_WORK: u32 = 1;
/// It is ready.
const READY: u32 = 2;

/// A word that the kernel sets to zero in every forked child, however it was forked
/// (`MADV_WIPEONFORK`): a child that the C library knows nothing of would not run a handler.
static FORK_WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// The process for which everything is ready. A `vfork` child, which shares our memory until it executes
/// something else, has another number.
static PROCESS: AtomicI32 = AtomicI32::new(0);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether a call of ours is under way in this thread, from now on; and whether one was.
pub fn set_inside(inside: bool) -> bool {
    INSIDE.replace(inside)
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, former: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Ends the thread here if it was cancelled: what we do in the place of a call at which that may happen is none.
/// Callers keep nothing that would have to be dropped.
#[inline]
pub fn may_be_cancelled() {
    // SAFETY: the thread is unwound, see above, or nothing happens.
    unsafe { pthread_testcancel() };
}

/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;

/// Runs `work`, in which the thread is not cancelled.
#[inline]
pub fn uncancelled<T>(work: impl FnOnce() -> T) -> T {
    let (mut former, mut disabled) = (0, 0);
    // SAFETY: the former state is written to a place of ours.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut former) };
    let result = work();
    // SAFETY: the state is the one that the thread had.
    unsafe { pthread_setcancelstate(former, &mut disabled) };
    result
}

/// Makes the library ready, before the program's `main`.
pub fn start() {
    const PAGE: usize = 4096;
    // SAFETY: a new mapping of our own.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return; // Nothing is accelerated then.
    }
    // SAFETY: the page is ours, and its size is the mapping's; on machines with larger pages the kernel
    // rounds up both.
    if unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } != 0 {
        return;
    }
    let word: *mut AtomicU32 = page.cast();
    // SAFETY: mapped, aligned, zero, and never unmapped.
    unsafe { &*word }.store(READY, Ordering::Relaxed);
    // SAFETY: plain system call.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    FORK_WORD.store(word, Ordering::Release);
}

fn fork_word() -> Option<&'static AtomicU32> {
    // SAFETY: null, or the word that `start` has mapped for ever.
    unsafe { FORK_WORD.load(Ordering::Acquire).as_ref() }
}

/// In a forked child: what the parent's threads may have held is free, and what was the parent's alone is
/// forgotten. Done by whichever call comes first, when there is one thread, or else with the others waiting.
#[cold]
fn after_fork(word: &AtomicU32) {
    match word.compare_exchange(0, IN_WORK, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => {
            // SAFETY: plain system call.
            PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
            // First: what follows forgets the session and does not close it.
            takt::after_fork();
            crate::runtime::after_fork();
            crate::socket::after_fork();
            crate::follower::after_fork();
            crate::epoll::after_fork();
            crate::unserved::after_fork();
            // Release: partner is the load in `Inside::enter`.
            word.store(READY, Ordering::Release);
        }
        Err(_) => {
            while word.load(Ordering::Acquire) != READY {
                // SAFETY: plain system call.
                unsafe { libc::sched_yield() };
            }
        }
    }
}

/// Whether the memory that is seen here is another process's: in a `vfork` child. Costs a system call.
pub fn is_borrowed() -> bool {
    // Of a forked child that has not been here yet, too: then all is as it was in the parent.
    // SAFETY: plain system call.
    fork_word().is_some_and(|word| word.load(Ordering::Acquire) == READY)
        && PROCESS.load(Ordering::Relaxed) != unsafe { libc::getpid() }
}

/// Whether this is the process for which everything is ready, and not a child of it that has its memory or a copy. Costs
/// a system call.
pub fn is_home() -> bool {
    // SAFETY: plain system call.
    fork_word().is_some_and(|word| word.load(Ordering::Acquire) == READY)
        && PROCESS.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

/// Whether a call of ours is under way on this thread.
pub fn is_inside() -> bool {
    INSIDE.get()
}

/// The number of this process.
pub fn id() -> libc::pid_t {
    PROCESS.load(Ordering::Relaxed)
}

/// A call of ours on this thread. While there is one, calls by which a signal handler interrupts it are the
/// C library's alone, and so are those that we make ourselves; the thread is not cancelled.
pub struct Inside {
    cancel_state: c_int,
    not_send: PhantomData<*const ()>,
}

impl Inside {
    /// `None`: inside already, or the library could not be made ready.
    #[inline]
    pub fn enter() -> Option<Self> {
        let word = fork_word()?;
        if INSIDE.replace(true) {
            return None;
        }
        if word.load(Ordering::Acquire) != READY {
            after_fork(word);
        }
        let mut cancel_state = 0;
        // SAFETY: the former state is written to a place of ours.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut cancel_state) };
        Some(Self {
            cancel_state,
            not_send: PhantomData,
        })
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: the state is the one that the thread had.
        unsafe { pthread_setcancelstate(self.cancel_state, &mut disabled) };
        INSIDE.set(false);
    }
}

/// Runs `work` inside, with `errno` as it was afterwards. `None`: inside already, or it panicked.
#[inline]
pub fn inside<T>(work: impl FnOnce(&Inside) -> T) -> Option<T> {
    let inside = Inside::enter()?;
    let errno = errno();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&inside)));
    set_errno(errno);
    drop(inside);
    match result {
        Ok(value) => Some(value),
        Err(_) => {
            real::say("takt-preload: a defect: the call is left to the kernel; please report it\n");
            None
        }
    }
}

/// The thread's `errno`.
#[inline]
pub fn errno() -> c_int {
    // SAFETY: the C library's place for this thread.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
#[inline]
pub fn set_errno(errno: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = errno };
}
