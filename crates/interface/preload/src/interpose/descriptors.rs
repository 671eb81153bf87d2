//! Descriptors that come to mean the same as others, or nothing more.

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::ops::RangeInclusive;

use libc::FILE;

use crate::epoll;
use crate::hardware;
use crate::kernel;
use crate::own;
use crate::process;
use crate::real;
use crate::socket;
use crate::table;
use crate::transmit;

/// `CLOSE_RANGE_CLOEXEC`: nothing is closed yet.
const CLOSE_ON_EXEC: c_int = 1 << 2;

/// There is no descriptor of this number, as far as the program is concerned.
#[cold]
fn none() -> c_int {
    process::set_errno(libc::EBADF);
    -1
}

/// A descriptor is about to be closed: what its socket holds is waited for, unless that stays open by another one.
fn settle(fd: c_int) {
    if let Some(socket) = table::lookup(fd)
        && socket.is_holding()
        && socket.is_last()
        && !process::is_borrowed()
    {
        let begun = kernel::monotonic();
        process::inside(|inside| transmit::settle_held(socket, fd, begun, inside));
    }
}

/// The same for all of a range.
fn settle_range(range: RangeInclusive<c_uint>) {
    if !process::is_borrowed() {
        process::inside(|inside| socket::settle(|fd| range.contains(&(fd as c_uint)), inside));
    }
}

/// `close(2)`.
///
/// # Safety
/// None beyond the C library's.
#[unsafe(no_mangle)]
#[allow(
    unknown_lints,
    invalid_runtime_symbol_definitions,
    reason = "a thread that is cancelled here (pthread_cancel(3)) unwinds through it"
)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // SAFETY: the program's call.
    close_by(fd, || unsafe { real::close(fd) })
}

/// A descriptor is closed by a call.
#[inline]
pub(super) fn close_by(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if own::is_own(fd) {
        return none();
    }
    settle(fd);
    epoll::closed(fd);
    // Before the number can be given to another thread.
    table::remove(fd);
    call()
}

/// `close(2)` by its other name.
///
/// # Safety
/// None beyond the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __close(fd: c_int) -> c_int {
    // SAFETY: the program's call.
    unsafe { close(fd) }
}

/// `close_range(2)`.
///
/// # Safety
/// None beyond the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & CLOSE_ON_EXEC == 0 && first <= last {
        settle_range(first..=last);
        table::remove_range(first, last);
        epoll::all_closed();
    }
    if first > last {
        // SAFETY: the program's call.
        return unsafe { real::close_range(first, last, flags) };
    }
    let mut result = 0;
    for part in own::program_parts(first, last) {
        // SAFETY: the program's call, but for descriptors of ours.
        result = unsafe { real::close_range(*part.start(), *part.end(), flags) };
        if result != 0 {
            break;
        }
    }
    result
}

/// `closefrom(3)`.
///
/// # Safety
/// None beyond the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first_closed = first.max(0) as c_uint;
    settle_range(first_closed..=c_uint::MAX);
    table::remove_range(first_closed, c_uint::MAX);
    epoll::all_closed();
    for part in own::program_parts(first_closed, c_uint::MAX) {
        let (first, last) = (*part.start(), *part.end());
        if last == c_uint::MAX {
            // SAFETY: the program's call, but for descriptors of ours.
            unsafe { real::closefrom(c_int::try_from(first).unwrap_or(c_int::MAX)) };
        // SAFETY: no pointers.
        } else if unsafe { real::close_range(first, last, 0) } != 0 {
            // As the C library does on kernels that have no such call.
            for fd in first..=last {
                // SAFETY: the program's call for one of them.
                unsafe { real::close(fd as c_int) };
            }
        }
    }
}

/// `fclose(3)`, which closes a descriptor inside the C library.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    if !stream.is_null() {
        // SAFETY: a stream of the program's. One without a descriptor has -1.
        let fd = unsafe { libc::fileno(stream) };
        settle(fd);
        table::remove(fd);
    }
    // SAFETY: the program's call.
    unsafe { real::fclose(stream) }
}

/// `dup(2)`.
///
/// # Safety
/// None beyond the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the program's call.
    let new = unsafe { real::dup(fd) };
    if new >= 0 {
        table::duplicate(fd, new);
    }
    new
}

/// A number that meant one thing means another afterwards, or still the one if that fails.
fn replace(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if old == new {
        return call();
    }
    if own::is_own(new) {
        // As beyond the limit of the process.
        return none();
    }
    settle(new);
    epoll::closed(new);
    let former = table::take(new);
    let result = call();
    match (result >= 0, former) {
        (true, former) => {
            table::duplicate(old, new);
            if let Some(former) = former {
                former.release();
            }
        }
        (false, Some(former)) if !table::insert(new, former) => former.release(),
        (false, _) => {}
    }
    result
}

/// `dup2(2)`.
///
/// # Safety
/// None beyond the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: the program's call.
    replace(old, new, || unsafe { real::dup2(old, new) })
}

/// `dup2(2)` by its other name.
///
/// # Safety
/// None beyond the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: the program's call.
    unsafe { dup2(old, new) }
}

/// `dup3(2)`.
///
/// # Safety
/// None beyond the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: the program's call.
    replace(old, new, || unsafe { real::dup3(old, new, flags) })
}

/// `fcntl(2)`, whose third argument is a number, a pointer or missing: one register in any case.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the program's call.
    let result = unsafe { real::fcntl(fd, command, argument) };
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) && result >= 0 {
        table::duplicate(fd, result);
    }
    result
}

/// `ioctl(2)`, whose third argument is a number, a pointer or missing, as that of `fcntl`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the program's call.
    let result = unsafe { real::ioctl(fd, request, argument) };
    // The kernel looks at 32 bits of it, and musl has no more.
    if request as u32 == libc::SIOCSHWTSTAMP as u32 && result < 0 {
        return hardware::configure(argument).unwrap_or(result);
    }
    result
}

/// `fcntl(2)` as programs with large files call it.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the program's call.
    unsafe { fcntl(fd, command, argument) }
}

/// `fcntl(2)` by its other name.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the program's call.
    unsafe { fcntl(fd, command, argument) }
}
