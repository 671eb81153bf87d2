//! A heap of the library's own.
//!
//! A send is allowed in a signal handler, which may have interrupted the program inside `malloc`; and a
//! program may bring a `malloc` that itself calls what is interposed. So nothing of ours may be in the
//! program's heap. This one gets its memory from the kernel. A signal handler cannot find its lock held by
//! its own thread: what we do is not repeated within itself ([`Inside`](crate::process::Inside)).

#[cfg(not(test))]
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Keeps the heap usable in forked children: its lock is taken around `fork`.
pub fn survive_fork() {
    // SAFETY: called once, before the process has a second thread.
    unsafe { dlmalloc::enable_alloc_after_fork() };
}
