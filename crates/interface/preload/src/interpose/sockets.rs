//! Sockets and their options.

use std::ffi::{c_int, c_void};

use libc::{sockaddr, socklen_t};

use crate::abi::SockTxtime;
use crate::announce::{self, Mode};
use crate::kernel;
use crate::launch::Clock;
use crate::memory;
use crate::multicast;
use crate::process;
use crate::real;
use crate::socket::{self, NotAdopted, Socket};
use crate::table;

/// `socket(2)`.
///
/// # Safety
/// None beyond the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the program's call.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if fd >= 0 {
        // The number may have been closed where nobody looked.
        table::remove(fd);
        table::set_known(fd);
    }
    fd
}

/// An address of the socket has changed, or may have.
fn changed(fd: c_int, result: c_int) -> c_int {
    if let Some(socket) = table::lookup(fd) {
        socket.set_stale();
    }
    result
}

/// `bind(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bind(
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: the program's call.
    changed(fd, unsafe { real::bind(fd, address, length) })
}

/// `connect(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: the program's call.
    changed(fd, unsafe { real::connect(fd, address, length) })
}

/// `connect(2)` by its other name.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __connect(
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: the program's call.
    unsafe { connect(fd, address, length) }
}

/// `setsockopt(2)`: the kernel's word counts; with `SO_TXTIME` the socket becomes accelerated.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the program's call.
    let result = unsafe { real::setsockopt(fd, level, name, value, length) };
    if (level, name) == (libc::SOL_SOCKET, libc::SO_TXTIME) {
        return match result {
            0 => accelerate(fd),
            _ if process::errno() == libc::EPERM => without_privilege(fd, value),
            _ => result,
        };
    }
    if result != 0 {
        return result;
    }
    if (level, name) == (libc::SOL_IP, libc::IP_MULTICAST_IF) {
        multicast::set(fd, value, length);
    }
    if let Some(socket) = table::lookup(fd) {
        socket.set_stale();
        // At once: what is set may be set otherwise by the time of the next send.
        process::inside(|inside| drop(socket.current(fd, inside)));
    }
    result
}

#[cold]
fn accelerate(fd: c_int) -> c_int {
    if announce::mode() == Mode::Off || process::is_borrowed() {
        return 0;
    }
    let adopted = process::inside(|inside| {
        match table::lookup(fd) {
            // Set once more, perhaps to another clock, which the kernel knows by itself.
            Some(socket) => {
                socket.stand_in_for(None);
                socket.set_stale();
                drop(socket.current(fd, inside));
                Ok(())
            }
            None => socket::adopt(fd, None, inside),
        }
    });
    match adopted {
        Some(Err(NotAdopted::NoRuntime)) => {
            process::set_errno(libc::ENOTCONN);
            -1
        }
        _ => 0,
    }
}

/// The kernel asks for CAP_NET_ADMIN for all clocks but `CLOCK_MONOTONIC`; the runtime asks for nothing but its socket.
/// So a socket that it serves gets the monotonic clock in the kernel, and its own here.
#[cold]
fn without_privilege(fd: c_int, value: *const c_void) -> c_int {
    let refused = || {
        process::set_errno(libc::EPERM);
        -1
    };
    if announce::mode() == Mode::Off || process::is_borrowed() {
        return refused();
    }
    let adopted = process::inside(|inside| {
        let wanted = memory::read(value.cast::<SockTxtime>()).ok()?;
        let clock = Clock::new(wanted.clockid)?;
        let in_kernel = SockTxtime {
            clockid: libc::CLOCK_MONOTONIC,
            ..wanted
        };
        let former = socket::transmission_times(fd);
        if !kernel::set_transmission_times(fd, &in_kernel) {
            return None;
        }
        if let Some(socket) = table::lookup(fd) {
            socket.stand_in_for(Some(clock));
            socket.set_stale();
            drop(socket.current(fd, inside));
            return Some(Ok(()));
        }
        let adopted = socket::adopt(fd, Some(clock), inside);
        if adopted.is_err() {
            kernel::set_transmission_times(fd, &former);
        }
        Some(adopted)
    });
    match adopted {
        Some(Some(Ok(()))) => 0,
        Some(Some(Err(NotAdopted::NoRuntime))) if announce::mode() == Mode::Required => {
            process::set_errno(libc::ENOTCONN);
            -1
        }
        _ => refused(),
    }
}

/// `getsockopt(2)`: of `SO_TXTIME` the clock that the program has set, and not the one that stands in for it.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the program's call.
    let result = unsafe { real::getsockopt(fd, level, name, value, length) };
    if result == 0
        && (level, name) == (libc::SOL_SOCKET, libc::SO_TXTIME)
        && let Some(clock) = table::lookup(fd).and_then(Socket::stood_in_for)
        && memory::read(length).is_ok_and(|length| length as usize >= size_of::<c_int>())
        && let Err(errno) = memory::write_bytes(&clock.number().to_ne_bytes(), value)
    {
        process::set_errno(errno);
        return -1;
    }
    result
}
