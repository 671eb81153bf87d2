//! Sockets and their options.

use std::ffi::{c_int, c_void};

use libc::{sockaddr, socklen_t};

use crate::announce::{self, Mode};
use crate::multicast;
use crate::process;
use crate::real;
use crate::socket::{self, NotAdopted};
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
    } else if (level, name) == (libc::SOL_SOCKET, libc::SO_TXTIME) {
        return accelerate(fd);
    }
    result
}

#[cold]
fn accelerate(fd: c_int) -> c_int {
    if announce::mode() == Mode::Off || process::is_borrowed() {
        return 0;
    }
    match process::inside(|inside| socket::adopt(fd, inside)) {
        Some(Err(NotAdopted::NoRuntime)) => {
            process::set_errno(libc::ENOTCONN);
            -1
        }
        _ => 0,
    }
}
