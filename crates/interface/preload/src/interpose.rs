//! The functions that programs call: the names of the C library, and every other name that it exports for
//! them. What is not here, programs call straight in the C library; `docs/reference/preload.md` lists all.
//!
//! "C-unwind": a thread that is cancelled in the C library's function is unwound through these, which keep
//! nothing that would have to be dropped.

mod descriptors;
mod programs;
mod receive;
mod send;
mod sockets;
mod system;
mod wait;

use std::ffi::c_int;

use crate::{announce, filter, follower, grid, heap, image, process, real, socket, unserved};

/// Runs when the loader has loaded the library, before the program's `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs when the process ends by `exit` or by the end of `main`.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn start() {
    real::find();
    heap::survive_fork();
    announce::start();
    grid::start();
    process::start();
    image::start();
    if announce::mode() == announce::Mode::Required
        && let Err(error) = filter::install()
    {
        announce::say(&format!(
            "cannot keep the kernel from taking launch times of programs that are not preloaded: {error}"
        ));
    }
}

extern "C" fn end() {
    process::inside(|inside| {
        socket::settle(|_| true, inside);
        socket::give_up(inside);
        follower::tell_unserved(inside);
        unserved::say_counts();
    });
}

/// `_exit(2)`, which runs nobody's last words: what waits for a next hop is waited for here too.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    // A `vfork` child has its parent's memory, and nothing of its own in it.
    if !process::is_borrowed() {
        end();
    }
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// `_exit(2)` by its name in C.
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}
