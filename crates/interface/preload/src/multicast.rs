//! The interface of a socket's IPv4 multicast packets (`IP_MULTICAST_IF`).
//!
//! The kernel tells the address that was set and not the interface, which may have been set by its number. So the
//! number is kept when it is set, by the socket's cookie: in a table without a lock, in which a newer socket may
//! take an older one's place. A socket that another program has left to this one is taken to have none, unless it
//! was set by address.

use std::ffi::{c_int, c_void};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::socklen_t;

use crate::kernel;
use crate::memory;
use crate::netlink::{Found, Netlink, Question};

const PLACES: usize = 1024;

struct Place {
    cookie: AtomicU64,
    interface: AtomicU32,
}

static PLACE: [Place; PLACES] = [const {
    Place {
        cookie: AtomicU64::new(0),
        interface: AtomicU32::new(0),
    }
}; PLACES];

fn place(cookie: u64) -> &'static Place {
    &PLACE[cookie as usize % PLACES]
}

/// The kernel has taken this value: an address, or a `struct ip_mreq` or `ip_mreqn`, whose last field is the number.
pub fn set(fd: c_int, value: *const c_void, length: socklen_t) {
    const NUMBER: usize = 8;
    let Ok(cookie) = kernel::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE) else {
        return;
    };
    let mut number = [0; 4];
    if length as usize >= NUMBER + number.len()
        && memory::read_bytes(&mut number, value.wrapping_byte_add(NUMBER)).is_err()
    {
        return;
    }
    let place = place(cookie);
    place
        .interface
        .store(u32::from_ne_bytes(number), Ordering::Relaxed);
    // Release: partner is the load in `interface`.
    place.cookie.store(cookie, Ordering::Release);
}

/// The interface, 0: by route. `source`: the address that was set with it, or instead.
pub fn interface(fd: c_int, cookie: u64, source: Option<Ipv4Addr>) -> u32 {
    let place = place(cookie);
    if place.cookie.load(Ordering::Acquire) == cookie {
        let number = place.interface.load(Ordering::Relaxed);
        if number != 0 {
            return number;
        }
    }
    // Packets to groups leave by the interface that has their source address.
    let question = source.map(|source| Question {
        destination: Ipv4Addr::new(224, 0, 0, 1).into(),
        source: Some(source.into()),
        interface: 0,
        mark: 0,
        traffic_octet: 0,
    });
    let found = question.and_then(|question| Netlink::open(fd).ok()?.route(&question).ok());
    match found {
        Some(Found::Way(route)) => route.interface,
        _ => 0,
    }
}
