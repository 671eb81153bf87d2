//! Private memory that a process was made to use.

/// Has the allocator of the C library give the kernel what is free of the heap, also between pieces in use (malloc_trim(3)).
///
/// By itself glibc keeps what many sessions had at one time. For a daemon, now and then: it takes up to milliseconds, for
/// which others who allocate wait. With another C library nothing happens.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a plain call.
    unsafe {
        libc::malloc_trim(0);
    }
}
