//! Descriptors of the preload's own: at numbers that programs do not choose, and closed by nobody else
//! ([`interpose::descriptors`](crate::interpose)).

use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixDatagram;

use netlink_sys::Socket as NetlinkSocket;
use takt::descriptors::{Registered, first_registered, is_registered};

use crate::process;

/// They lie below this, or below the process's limit if that is lower: programs that close what they did not open go through
/// all numbers up to the limit, and the kernel's table of descriptors grows with the highest one.
const BELOW: c_int = 1024;
/// So many numbers are kept for them, as far as the program leaves them free.
const ROOM: c_int = 64;

/// The lowest number that they have, where there is room.
pub fn lowest() -> RawFd {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the limit is written.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let limit = c_int::try_from(limit.rlim_cur).unwrap_or(c_int::MAX);
    limit.min(BELOW).saturating_sub(ROOM).max(0)
}

/// A socket of ours.
pub struct Own<S> {
    /// Before the socket, which it ends before.
    _registered: Registered,
    socket: S,
}

impl Own<NetlinkSocket> {
    /// One of `NETLINK_ROUTE`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn netlink() -> io::Result<Self> {
        NetlinkSocket::new(netlink_sys::protocols::NETLINK_ROUTE).map(Self::moved)
    }
}

impl Own<UnixDatagram> {
    /// One of `AF_UNIX` that leads nowhere.
    ///
    /// # Errors
    /// The kernel's.
    pub fn unix() -> io::Result<Self> {
        UnixDatagram::unbound().map(Self::moved)
    }
}

impl<S: AsRawFd + FromRawFd> Own<S> {
    /// At a number that programs do not choose.
    fn moved(socket: S) -> Self {
        let registered = Registered::new(socket.as_raw_fd());
        // SAFETY: no pointers.
        let moved = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest()) };
        let own = |registered, socket| Self {
            _registered: registered,
            socket,
        };
        if moved < 0 {
            // There is no number left: it keeps the one that it has.
            return own(registered, socket);
        }
        // SAFETY: made above, and nobody else's.
        let moved = own(Registered::new(moved), unsafe { S::from_raw_fd(moved) });
        drop(registered);
        drop(socket);
        moved
    }
}

impl<S> Own<S> {
    /// Its number may be the program's by now: it is left as it is.
    pub fn abandon(self) {
        std::mem::forget(self.socket);
    }
}

impl<S> std::ops::Deref for Own<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.socket
    }
}

impl<S> std::ops::DerefMut for Own<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.socket
    }
}

/// Whether a descriptor is ours: for the program, there is none of this number.
pub fn is_own(fd: c_int) -> bool {
    is_registered(fd) && process::is_home()
}

/// The parts of a range of descriptors that are the program's.
pub fn program_parts(
    first: c_uint,
    last: c_uint,
) -> impl Iterator<Item = std::ops::RangeInclusive<c_uint>> {
    let home = process::is_home();
    let mut rest = (first <= last).then_some(first);
    std::iter::from_fn(move || {
        loop {
            let from = rest?;
            let own = c_int::try_from(from)
                .ok()
                .filter(|_| home)
                .and_then(|from| {
                    first_registered(from, c_int::try_from(last).unwrap_or(c_int::MAX))
                });
            let Some(own) = own.map(|own| own as c_uint) else {
                rest = None;
                return Some(from..=last);
            };
            rest = own.checked_add(1).filter(|next| *next <= last);
            if own > from {
                return Some(from..=own - 1);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Descriptors that no test process has open.
    const FAR: c_int = 800_000;

    #[test]
    fn a_range_is_closed_but_for_ours() {
        process::start();
        let own = [FAR + 2, FAR + 3, FAR + 9].map(Registered::new);
        let parts = |first: c_int, last: c_int| -> Vec<_> {
            let parts = program_parts(first as c_uint, last as c_uint);
            parts
                .map(|part| (*part.start() as c_int - FAR, *part.end() as c_int - FAR))
                .collect()
        };
        assert_eq!(parts(FAR, FAR + 12), [(0, 1), (4, 8), (10, 12)]);
        assert_eq!(parts(FAR + 2, FAR + 3), []);
        assert_eq!(parts(FAR + 3, FAR + 9), [(4, 8)]);
        assert_eq!(parts(FAR + 4, FAR + 4), [(4, 4)]);
        assert_eq!(parts(FAR + 4, FAR + 3), []);
        let all: Vec<_> = program_parts(FAR as c_uint + 9, c_uint::MAX).collect();
        assert_eq!(all, [FAR as c_uint + 10..=c_uint::MAX]);
        assert!(is_own(FAR + 2) && !is_own(FAR + 1));
        drop(own);
        assert!(!is_own(FAR + 2));
    }
}
