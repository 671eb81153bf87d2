//! A heap of the library's own.
//!
//! A send is allowed in a signal handler, which may have interrupted the program inside `malloc`; and a
//! program may bring a `malloc` that itself calls what is interposed. So nothing of ours may be in the
//! program's heap. This one gets its memory from the kernel. A signal handler cannot find its lock held by
//! its own thread: what we do is not repeated within itself ([`Inside`](crate::process::Inside)). It may fork, though.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicU32, Ordering};

use dlmalloc::Dlmalloc;

use crate::process;

#[cfg_attr(not(test), global_allocator)]
static HEAP: Heap = Heap {
    lock: Lock(AtomicU32::new(0)),
    memory: UnsafeCell::new(Dlmalloc::new()),
};

struct Heap {
    lock: Lock,
    memory: UnsafeCell<Dlmalloc>,
}

// SAFETY: the lock guards the memory.
unsafe impl Sync for Heap {}

impl Heap {
    fn with<T>(&self, work: impl FnOnce(&mut Dlmalloc) -> T) -> T {
        self.lock.lock();
        // SAFETY: the lock is this thread's, and `work` does not come back here.
        let result = work(unsafe { &mut *self.memory.get() });
        self.lock.unlock();
        result
    }
}

// SAFETY: dlmalloc's own promises, which are those of the trait.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller's promise, here and below.
        self.with(|memory| unsafe { memory.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        self.with(|memory| unsafe { memory.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        self.with(|memory| unsafe { memory.free(place, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        self.with(|memory| unsafe { memory.realloc(place, layout.size(), layout.align(), size) })
    }
}

/// Keeps the heap usable in forked children: its lock is taken around `fork`. Called once.
pub fn survive_fork() {
    // A signal handler may come at any point of either, and fork itself: within a fork, with a depth of its own.
    extern "C" fn before() {
        let depth = FORKS.get() + 1;
        FORKS.set(depth);
        if depth == 1 {
            // What a handler sends from here on is the kernel's: it would wait for the lock, which is its own thread's.
            WAS_INSIDE.set(process::set_inside(true));
        }
        HEAP.lock.before_fork(depth);
    }
    extern "C" fn after() {
        let depth = FORKS.get();
        HEAP.lock.after_fork(depth);
        if depth == 1 {
            process::set_inside(WAS_INSIDE.get());
        }
        FORKS.set(depth - 1);
    }
    // Where there is no memory for that, there is none for a child either.
    // SAFETY: functions of this library, which stays.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
}

/// A lock that knows whose it is: the number of its thread, and whether others wait; 0: nobody's.
struct Lock(AtomicU32);

/// Others wait.
const WAITED: u32 = 1 << 31;

/// So many threads have a number.
static THREADS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Of a forked child's thread, that of the thread that it is a copy of; 0: none yet.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    /// How many forks of this thread are under way, one within the other.
    static FORKS: Cell<u32> = const { Cell::new(0) };
    /// Whether a call of ours was under way when it began to fork.
    static WAS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The fork that has taken the lock; 0: none, it was this thread's already or is nobody's.
    static TAKEN_BY: Cell<u32> = const { Cell::new(0) };
}

fn number() -> u32 {
    if NUMBER.get() == 0 {
        NUMBER.set(THREADS.fetch_add(1, Ordering::Relaxed) % (WAITED - 1) + 1);
    }
    NUMBER.get()
}

impl Lock {
    #[inline]
    fn lock(&self) {
        let own = number();
        // Acquire: partner is the exchange in `unlock`.
        let free = self
            .0
            .compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed);
        if let Err(seen) = free {
            self.wait(own, seen);
        }
    }

    #[cold]
    fn wait(&self, own: u32, mut seen: u32) {
        let errno = process::errno();
        loop {
            // Whoever has waited does not know who else does.
            let taken = match seen {
                0 => own | WAITED,
                seen => seen | WAITED,
            };
            let order = (Ordering::Acquire, Ordering::Relaxed);
            match self.0.compare_exchange(seen, taken, order.0, order.1) {
                Ok(0) => break,
                Ok(_) => self.futex(libc::FUTEX_WAIT, taken),
                Err(now) => {
                    seen = now;
                    continue;
                }
            }
            seen = self.0.load(Ordering::Relaxed);
        }
        process::set_errno(errno);
    }

    #[inline]
    fn unlock(&self) {
        // Release: partner is the exchange in `lock`.
        if self.0.swap(0, Ordering::Release) & WAITED != 0 {
            let errno = process::errno();
            self.futex(libc::FUTEX_WAKE, 1);
            process::set_errno(errno);
        }
    }

    fn futex(&self, operation: i32, value: u32) {
        // SAFETY: the word is there for the call; no timeout.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                operation | libc::FUTEX_PRIVATE_FLAG,
                value,
                std::ptr::null::<libc::timespec>(),
            )
        };
    }

    /// Takes it for a fork. A signal handler that forks may have interrupted its own thread while that has it: then it stays that
    /// thread's, which goes on with what it was doing, here and in the child.
    fn before_fork(&self, depth: u32) {
        if self.0.load(Ordering::Relaxed) & !WAITED != number() {
            self.lock();
            TAKEN_BY.set(depth);
        }
    }

    fn after_fork(&self, depth: u32) {
        if TAKEN_BY.get() == depth {
            TAKEN_BY.set(0);
            self.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_lock() {
        let lock = Lock(AtomicU32::new(0));
        let count = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        lock.lock();
                        let seen = count.load(Ordering::Relaxed);
                        count.store(seen + 1, Ordering::Relaxed);
                        lock.unlock();
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 40_000);
    }

    #[test]
    fn a_fork_waits_for_other_threads_and_not_for_its_own() {
        let lock = Lock(AtomicU32::new(0));
        lock.lock();
        // By a signal handler, which may fork within a fork.
        lock.before_fork(1);
        lock.before_fork(2);
        lock.after_fork(2);
        lock.after_fork(1);
        assert_ne!(lock.0.load(Ordering::Relaxed), 0, "still held");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                lock.before_fork(1);
                lock.before_fork(2);
                lock.after_fork(2);
                let held = lock.0.load(Ordering::Relaxed) & !WAITED == number();
                lock.after_fork(1);
                held
            });
            while lock.0.load(Ordering::Relaxed) & WAITED == 0 {
                std::thread::yield_now();
            }
            lock.unlock();
            assert!(other.join().expect("no panic"));
        });
        assert_eq!(lock.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn memory_is_what_was_asked_for() {
        let small = Layout::from_size_align(24, 8).expect("a layout");
        let page = Layout::from_size_align(100, 4096).expect("a layout");
        // SAFETY: the heap's own memory, within its bounds, given back once.
        unsafe {
            let first = HEAP.alloc(small);
            let aligned = HEAP.alloc(page);
            assert!(!first.is_null() && aligned.addr().is_multiple_of(4096));
            first.write_bytes(7, 24);
            let longer = HEAP.realloc(first, small, 10_000);
            assert_eq!(longer.add(23).read(), 7);
            let zero = HEAP.alloc_zeroed(small);
            assert_eq!(zero.cast::<[u8; 24]>().read(), [0; 24]);
            HEAP.dealloc(zero, small);
            HEAP.dealloc(aligned, page);
            let layout = Layout::from_size_align(10_000, 8).expect("a layout");
            HEAP.dealloc(longer, layout);
        }
    }
}
