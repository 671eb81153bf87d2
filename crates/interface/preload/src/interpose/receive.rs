//! Receives. With `MSG_ERRQUEUE` what we have to tell comes first; everything else is the kernel's.

use std::ffi::{c_int, c_uint, c_void};

use libc::{MSG_ERRQUEUE, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

use crate::errors;
use crate::memory;
use crate::process;
use crate::real;
use crate::socket::Socket;
use crate::table;

/// The socket whose error queue a call asks for.
#[inline]
fn asked(fd: c_int, flags: c_int) -> Option<&'static Socket> {
    let socket = error_queue(fd, flags)?;
    process::may_be_cancelled();
    Some(socket)
}

/// The same without being cancelled.
#[inline]
pub(super) fn error_queue(fd: c_int, flags: c_int) -> Option<&'static Socket> {
    if flags & MSG_ERRQUEUE == 0 {
        return None;
    }
    table::lookup(fd)
}

/// `recvmsg(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let socket = asked(fd, flags);
    if let Some(socket) = socket
        && let Some(result) = errors::receive_message(socket, fd, message)
    {
        return result;
    }
    // SAFETY: the program's call.
    let result = unsafe { real::recvmsg(fd, message, flags) };
    if result >= 0
        && let Some(socket) = socket
        && socket.is_numbering()
    {
        errors::renumber(socket, fd, message);
    }
    result
}

/// `recvmmsg(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if asked(fd, flags).is_none() {
        // SAFETY: the program's call.
        return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    }
    for received in 0..count {
        let place = messages.wrapping_add(received as usize);
        // Nothing is read here: it may be nowhere.
        let header = place
            .cast::<u8>()
            .wrapping_add(std::mem::offset_of!(mmsghdr, msg_hdr));
        // Reading an error queue never blocks, so there is nothing to wait for.
        // SAFETY: the program's call, for one of its messages.
        let result = unsafe { recvmsg(fd, header.cast(), flags) };
        let told = c_uint::try_from(result).is_ok_and(|length| {
            let field = place
                .cast::<u8>()
                .wrapping_add(std::mem::offset_of!(mmsghdr, msg_len));
            memory::write_bytes(&length.to_ne_bytes(), field.cast()).is_ok()
        });
        if !told {
            return if received == 0 { -1 } else { received as c_int };
        }
    }
    count as c_int
}

fn part(data: *mut c_void, length: size_t) -> iovec {
    iovec {
        iov_base: data,
        iov_len: length,
    }
}

/// `recv(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recv(
    fd: c_int,
    data: *mut c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    if let Some(socket) = asked(fd, flags)
        && let Some(result) = errors::receive(socket, fd, part(data, length))
    {
        return result;
    }
    // SAFETY: the program's call.
    unsafe { real::recv(fd, data, length, flags) }
}

/// `recv(2)` of programs that check their buffers.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    data: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if length > room {
        // SAFETY: it ends the program, as the C library's own check does.
        unsafe { real::__chk_fail() };
    }
    // SAFETY: the program's call.
    unsafe { recv(fd, data, length, flags) }
}

/// `recvfrom(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    data: *mut c_void,
    length: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    if let Some(socket) = asked(fd, flags)
        && let Some(result) = errors::receive(socket, fd, part(data, length))
    {
        // Our entries have no address.
        let none = (0 as socklen_t).to_ne_bytes();
        if !from.is_null() && memory::write_bytes(&none, from_length.cast()).is_err() {
            process::set_errno(libc::EFAULT);
            return -1;
        }
        return result;
    }
    // SAFETY: the program's call.
    unsafe { real::recvfrom(fd, data, length, flags, from, from_length) }
}

/// `recvfrom(2)` of programs that check their buffers.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    data: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    if length > room {
        // SAFETY: it ends the program, as the C library's own check does.
        unsafe { real::__chk_fail() };
    }
    // SAFETY: the program's call.
    unsafe { recvfrom(fd, data, length, flags, from, from_length) }
}
