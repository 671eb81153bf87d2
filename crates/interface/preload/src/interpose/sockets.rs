//! Sockets and their options.

use std::ffi::{c_int, c_void};

use libc::{sockaddr, socklen_t};

use crate::abi::{self, SockTxtime};
use crate::announce::{self, Mode};
use crate::grid;
use crate::kernel;
use crate::launch::Clock;
use crate::memory;
use crate::multicast;
use crate::process;
use crate::real;
use crate::socket::{self, NotAdopted, Socket};
use crate::table;
use crate::unserved::Reason;

/// The part of `socket`'s second argument that is no flag (`SOCK_TYPE_MASK`).
const KIND: c_int = 0xf;

/// `socket(2)`.
///
/// # Safety
/// None beyond the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let look = table::look();
    // SAFETY: the program's call.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if fd >= 0 {
        // The number may have been closed where nobody looked.
        table::remove(fd);
        let is_internet = matches!(domain, libc::AF_INET | libc::AF_INET6);
        let snapped = grid::is_on() && is_internet && kind & KIND == libc::SOCK_DGRAM;
        if !snapped {
            table::set_known(fd, look);
        }
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
    if (level, name) == (libc::SOL_SOCKET, libc::SO_TXTIME) && announce::mode() == Mode::Required {
        return match require(fd, value, length) {
            Ok(()) => 0,
            Err(errno) => {
                process::set_errno(errno);
                -1
            }
        };
    }
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
        match socket::of(fd, inside) {
            // Set once more, perhaps to another clock, which the kernel knows by itself.
            Some(socket) => {
                socket.set_times(None);
                socket.set_stale();
                drop(socket.current(fd, inside));
                Ok(())
            }
            None => socket::adopt(fd, None, inside),
        }
    });
    // Whether it was adopted or not: the kernel has taken it.
    let _ = adopted;
    0
}

/// `SO_TXTIME` where the runtime is required: the kernel is not told, so that nothing can leave with a launch time but by
/// the runtime. `Err`: the errno.
#[cold]
fn require(fd: c_int, value: *const c_void, length: socklen_t) -> Result<(), c_int> {
    // What is no socket has its errors first, as in the kernel.
    kernel::option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_TYPE)?;
    if process::is_borrowed() {
        return Err(Reason::Context.errno());
    }
    let set = process::inside(|inside| {
        if length as usize != size_of::<SockTxtime>() {
            return Err(libc::EINVAL);
        }
        let times = memory::read(value.cast::<SockTxtime>())?;
        if times.flags & !abi::TXTIME_FLAGS != 0 || Clock::new(times.clockid).is_none() {
            return Err(libc::EINVAL);
        }
        if let Some(socket) = socket::of(fd, inside) {
            socket.set_times(Some(times));
            socket.set_stale();
            drop(socket.current(fd, inside));
            return Ok(());
        }
        socket::adopt(fd, Some(times), inside).map_err(|error| match error {
            NotAdopted::NoRuntime => libc::ENOTCONN,
            NotAdopted::Unfit => {
                let reason = Reason::Kind;
                reason.settle().unwrap_or(reason.errno())
            }
        })
    });
    set.unwrap_or(Err(Reason::Context.errno()))
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
        Clock::new(wanted.clockid)?;
        let in_kernel = SockTxtime {
            clockid: libc::CLOCK_MONOTONIC,
            ..wanted
        };
        let former = socket::transmission_times(fd);
        if !kernel::set_transmission_times(fd, &in_kernel) {
            return None;
        }
        if let Some(socket) = socket::of(fd, inside) {
            socket.set_times(Some(wanted));
            socket.set_stale();
            drop(socket.current(fd, inside));
            return Some(Ok(()));
        }
        let adopted = socket::adopt(fd, Some(wanted), inside);
        if adopted.is_err() {
            kernel::set_transmission_times(fd, &former);
        }
        Some(adopted)
    });
    match adopted {
        Some(Some(Ok(()))) => 0,
        _ => refused(),
    }
}

/// `getsockopt(2)`: of `SO_TXTIME` what the program has set, and not what the kernel was told in its place.
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
        && let Some(times) = table::lookup(fd).and_then(Socket::times)
        && let Ok(length) = memory::read(length)
        && let Err(errno) = {
            let bytes = times.bytes();
            let length = bytes.len().min(length as usize);
            memory::write_bytes(&bytes[..length], value)
        }
    {
        process::set_errno(errno);
        return -1;
    }
    result
}
