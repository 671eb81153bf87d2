//! Sends. Only messages with control data may have a transmission time; the others are the kernel's, unless they are
//! snapped to a cycle.

use std::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use crate::announce::{self, Mode};
use crate::grid;
use crate::memory;
use crate::process;
use crate::real;
use crate::socket::{self, Socket};
use crate::table;
use crate::transmit::{self, Fate};

/// The kernel sends at most so many messages in one call.
const MOST_MESSAGES: c_uint = 1024;

/// A send by the kernel of what has no control messages.
#[inline]
fn plain(fd: c_int, send: impl FnOnce() -> ssize_t) -> ssize_t {
    sent(fd, send(), std::ptr::null())
}

/// What the kernel's send of a message has returned; null: of one without control messages.
#[inline]
fn sent(fd: c_int, result: ssize_t, message: *const msghdr) -> ssize_t {
    if result >= 0
        && let Some(socket) = table::lookup(fd)
        && socket.is_numbering()
    {
        transmit::sent_by_kernel(socket, fd, message);
    }
    result
}

/// A message without control data: what its send returns if it is snapped to a cycle. `None`: it is the kernel's.
#[inline]
fn snapped(
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> Option<ssize_t> {
    if !grid::is_on() {
        return None;
    }
    let socket = accelerated(fd)?;
    process::may_be_cancelled();
    // SAFETY: plain integers and pointers.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = to.cast_mut().cast();
    message.msg_namelen = to_length;
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len() as _;
    taken(socket, fd, &message, flags)
}

fn part(data: *const c_void, length: size_t) -> [iovec; 1] {
    [iovec {
        iov_base: data.cast_mut(),
        iov_len: length,
    }]
}

/// `send(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(
    fd: c_int,
    data: *const c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    if let Some(result) = snapped(fd, &part(data, length), flags, std::ptr::null(), 0) {
        return result;
    }
    // SAFETY: the program's call.
    plain(fd, || unsafe { real::send(fd, data, length, flags) })
}

/// `send(2)` by its other name.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __send(
    fd: c_int,
    data: *const c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's call.
    unsafe { send(fd, data, length, flags) }
}

/// `sendto(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    data: *const c_void,
    length: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    if let Some(result) = snapped(fd, &part(data, length), flags, to, to_length) {
        return result;
    }
    // SAFETY: the program's call.
    plain(fd, || unsafe {
        real::sendto(fd, data, length, flags, to, to_length)
    })
}

/// `write(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
#[allow(
    unknown_lints,
    invalid_runtime_symbol_definitions,
    reason = "a thread that is cancelled here (pthread_cancel(3)) unwinds through it"
)]
pub unsafe extern "C-unwind" fn write(fd: c_int, data: *const c_void, length: size_t) -> ssize_t {
    if let Some(result) = snapped(fd, &part(data, length), 0, std::ptr::null(), 0) {
        return result;
    }
    // SAFETY: the program's call.
    plain(fd, || unsafe { real::write(fd, data, length) })
}

/// `write(2)` by its other name.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __write(fd: c_int, data: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: the program's call.
    unsafe { write(fd, data, length) }
}

/// `writev(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    if grid::is_on()
        && let Some(socket) = accelerated(fd)
    {
        process::may_be_cancelled();
        // SAFETY: plain integers and pointers.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.cast_mut();
        // What is no number of parts is too many of them, which the kernel says.
        message.msg_iovlen = usize::try_from(count).unwrap_or(usize::MAX) as _;
        if let Some(result) = taken(socket, fd, &message, 0) {
            return result;
        }
    }
    // SAFETY: the program's call.
    plain(fd, || unsafe { real::writev(fd, parts, count) })
}

/// The accelerated socket behind a descriptor, which may have become one elsewhere: in a process that has left
/// it to this one.
#[inline]
pub(super) fn accelerated(fd: c_int) -> Option<&'static Socket> {
    match table::lookup(fd) {
        None if !table::is_known(fd) => discover(fd),
        found => found,
    }
}

#[cold]
fn discover(fd: c_int) -> Option<&'static Socket> {
    if announce::mode() == Mode::Off || process::is_borrowed() {
        return None;
    }
    process::inside(|inside| {
        let look = table::look();
        let adopted = || match socket::has_transmission_times(fd) {
            true => socket::adopt(fd, None, inside).is_ok(),
            false => grid::is_on() && socket::adopt_for_grid(fd, inside),
        };
        if socket::of(fd, inside).is_none() && !adopted() {
            table::set_known(fd, look);
        }
    })?;
    table::lookup(fd)
}

/// What `sendmsg` returns for a send of ours. `None`: it is the kernel's.
fn taken(
    socket: &'static Socket,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> Option<ssize_t> {
    match transmit::send(socket, fd, message, flags) {
        Fate::Kernel => None,
        Fate::Taken(Ok(length)) => Some(length as ssize_t),
        Fate::Taken(Err(errno)) => {
            process::set_errno(errno);
            Some(-1)
        }
    }
}

/// `sendmsg(2)`: a message with a transmission time is taken.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    if let Some(socket) = accelerated(fd) {
        process::may_be_cancelled();
        if let Some(result) = taken(socket, fd, message, flags) {
            return result;
        }
    }
    if let Some(errno) = transmit::refuse(fd, message) {
        process::set_errno(errno);
        return -1;
    }
    if let Some(socket) = table::lookup(fd)
        && let Some(result) = transmit::send_by_monotonic(socket, fd, message, flags)
    {
        return sent(fd, result, message);
    }
    // SAFETY: the program's call.
    let result = unsafe { real::sendmsg(fd, message, flags) };
    sent(fd, result, message)
}

/// `sendmmsg(2)`: as `sendmsg` for each message.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if accelerated(fd).is_none() && announce::mode() != Mode::Required {
        // SAFETY: the program's call.
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    }
    for sent in 0..count.min(MOST_MESSAGES) {
        let place = messages.wrapping_add(sent as usize);
        // Nothing is read here: it may be nowhere.
        let header = place
            .cast::<u8>()
            .wrapping_add(std::mem::offset_of!(mmsghdr, msg_hdr));
        // SAFETY: the program's call, for one of its messages.
        let result = unsafe { sendmsg(fd, header.cast(), flags) };
        let told = usize::try_from(result).is_ok_and(|length| tell_length(place, length));
        if !told {
            // As the kernel does: an error is told if it is the first message's.
            return if sent == 0 { -1 } else { sent as c_int };
        }
    }
    count.min(MOST_MESSAGES) as c_int
}

/// Tells the program how long a message was.
fn tell_length(place: *mut mmsghdr, length: usize) -> bool {
    let length = (length as c_uint).to_ne_bytes();
    let field = place
        .cast::<u8>()
        .wrapping_add(std::mem::offset_of!(mmsghdr, msg_len));
    match memory::write_bytes(&length, field.cast()) {
        Ok(()) => true,
        Err(errno) => {
            process::set_errno(errno);
            false
        }
    }
}
