//! Waits.

use std::ffi::c_int;
use std::ptr;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::memory;
use crate::process;
use crate::readiness::{self, Deadline, nanoseconds};
use crate::real;
use crate::socket;
use crate::table;

/// `poll(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let deadline = || Deadline::after_milliseconds(timeout);
    // SAFETY: the program's call.
    unsafe {
        readiness::poll(fds, count, deadline, ptr::null())
            .unwrap_or_else(|| real::poll(fds, count, timeout))
    }
}

/// `poll(2)` by its other name.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program's call.
    unsafe { poll(fds, count, timeout) }
}

/// Ends the program if a list is shorter than it is said to be, as the C library's own check does.
fn check(count: nfds_t, room: size_t) {
    if (room / size_of::<pollfd>()) < count as usize {
        // SAFETY: it does not return.
        unsafe { real::__chk_fail() };
    }
}

/// `poll(2)` of programs that check their lists.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    check(count, room);
    // SAFETY: the program's call.
    unsafe { poll(fds, count, timeout) }
}

/// A timeout of the program's. `None`: it is nowhere, or no timeout, which the kernel says.
fn read_timeout(timeout: *const timespec) -> Option<Option<i64>> {
    if timeout.is_null() {
        return Some(None);
    }
    let time = memory::read(timeout).ok()?;
    let valid = time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec);
    valid.then(|| Some(nanoseconds(&time)))
}

/// `ppoll(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if socket::any_telling()
        && let Some(wait) = read_timeout(timeout)
    {
        let deadline = || Deadline::after(wait);
        // SAFETY: the program's call.
        let ready = unsafe { readiness::poll(fds, count, deadline, mask) };
        if let Some(ready) = ready {
            return ready;
        }
    }
    // SAFETY: the program's call.
    unsafe { real::ppoll(fds, count, timeout, mask) }
}

/// `ppoll(2)` of programs that check their lists.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    check(count, room);
    // SAFETY: the program's call.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// `select(2)`, which on Linux leaves in the timeout what is left of it.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    if socket::any_telling()
        && let Some(wait) = read_timeval(timeout)
    {
        let deadline = Deadline::after(wait);
        // SAFETY: the program's call.
        let ready =
            unsafe { readiness::select(count, [read, write, except], || deadline, ptr::null()) };
        if let Some(ready) = ready {
            if let Some(left) = deadline.left() {
                let left = timeval {
                    tv_sec: left / 1_000_000_000,
                    tv_usec: left % 1_000_000_000 / 1000,
                };
                // As the kernel: a timeout that cannot be written is no error.
                let _ = memory::write(&left, timeout);
            }
            return ready;
        }
    }
    // SAFETY: the program's call.
    unsafe { real::select(count, read, write, except, timeout) }
}

fn read_timeval(timeout: *const timeval) -> Option<Option<i64>> {
    if timeout.is_null() {
        return Some(None);
    }
    let time = memory::read(timeout).ok()?;
    let nanoseconds = time
        .tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_usec.saturating_mul(1000));
    (time.tv_sec >= 0 && time.tv_usec >= 0).then_some(Some(nanoseconds))
}

/// `select(2)` by its other name.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the program's call.
    unsafe { select(count, read, write, except, timeout) }
}

/// `pselect(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if socket::any_telling()
        && let Some(wait) = read_timeout(timeout)
    {
        let deadline = || Deadline::after(wait);
        // SAFETY: the program's call.
        let ready = unsafe { readiness::select(count, [read, write, except], deadline, mask) };
        if let Some(ready) = ready {
            return ready;
        }
    }
    // SAFETY: the program's call.
    unsafe { real::pselect(count, read, write, except, timeout, mask) }
}

/// The kernel's wait on an epoll descriptor for so many nanoseconds, or without end: in milliseconds, which all kernels know.
///
/// # Safety
/// As `epoll_pwait`'s.
unsafe fn epoll_for(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    time: Option<i64>,
    mask: *const sigset_t,
) -> c_int {
    let milliseconds = time.map_or(-1, |time| {
        c_int::try_from(time.saturating_add(999_999) / 1_000_000).unwrap_or(c_int::MAX)
    });
    // SAFETY: by the caller's promise.
    unsafe { real::epoll_pwait(epoll, events, count, milliseconds, mask) }
}

/// `epoll_wait(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the program's call.
    let whole = || unsafe { real::epoll_wait(epoll, events, count, timeout) };
    // SAFETY: the program's call.
    let wait = |time| unsafe { epoll_for(epoll, events, count, time, ptr::null()) };
    let deadline = Deadline::after_milliseconds(timeout);
    // SAFETY: the program's call.
    unsafe { readiness::epoll(epoll, events, count, deadline, ptr::null(), whole, wait) }
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's call.
    let whole = || unsafe { real::epoll_pwait(epoll, events, count, timeout, mask) };
    // SAFETY: the program's call.
    let wait = |time| unsafe { epoll_for(epoll, events, count, time, mask) };
    let deadline = Deadline::after_milliseconds(timeout);
    // SAFETY: the program's call.
    unsafe { readiness::epoll(epoll, events, count, deadline, mask, whole, wait) }
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's call.
    let whole = || unsafe { real::epoll_pwait2(epoll, events, count, timeout, mask) };
    // SAFETY: the program's call.
    let wait = |time| unsafe { epoll_for(epoll, events, count, time, mask) };
    // A wrong one is the kernel's to refuse.
    let Some(time) = read_timeout(timeout) else {
        return whole();
    };
    let deadline = Deadline::after(time);
    // SAFETY: the program's call.
    unsafe { readiness::epoll(epoll, events, count, deadline, mask, whole, wait) }
}

/// `epoll_ctl(2)`: what is watched of accelerated sockets is noted.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    crate::epoll::change(|| {
        // SAFETY: the program's call.
        let result = unsafe { real::epoll_ctl(epoll, operation, fd, event) };
        if result == 0 {
            note_change(epoll, operation, fd, event);
        }
        result
    })
}

/// Notes what the kernel watches otherwise than before.
fn note_change(epoll: c_int, operation: c_int, fd: c_int, event: *const epoll_event) {
    if let Some(socket) = table::lookup(fd) {
        process::inside(|inside| crate::epoll::forget(epoll, inside));
        if socket.is_telling() {
            // Who waits on it already knows nothing of that.
            crate::epoll::wake(epoll);
        }
        return;
    }
    // The kernel has read it just now.
    let data = || match operation {
        libc::EPOLL_CTL_DEL => None,
        _ => memory::read(event).ok().map(|event| event.u64),
    };
    crate::epoll::other_changed(epoll, data);
}
