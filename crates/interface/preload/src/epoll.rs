//! Which accelerated sockets an epoll descriptor watches, and events of ours among the kernel's.
//!
//! The kernel itself says what is watched, in `/proc/self/fdinfo`: registrations made before a socket was
//! accelerated, by another thread or through another descriptor are all there, with their events and data.

use std::ffi::c_int;

use libc::epoll_event;

use crate::process::Inside;
use crate::readiness;
use crate::table;

/// `EPOLLERR`.
const ERROR: u32 = libc::EPOLLERR as u32;
/// `EPOLLPRI`.
const URGENT: u32 = libc::EPOLLPRI as u32;
/// Bits that say how to watch, not what for.
const MODES: u32 =
    (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE) as u32;

/// A registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    fd: c_int,
    events: u32,
    data: u64,
    /// How many entries its error queue had had when the kernel was asked: for edges.
    seen: u64,
}

/// What an epoll descriptor watches that may have something to tell.
pub fn watched(epoll: c_int) -> Vec<Watched> {
    let Ok(text) = std::fs::read_to_string(format!("/proc/self/fdinfo/{epoll}")) else {
        return Vec::new();
    };
    text.lines()
        .filter_map(registration)
        .filter_map(|mut watched| {
            let socket = table::lookup(watched.fd).filter(|socket| socket.is_reporting())?;
            watched.seen = socket.told_edges();
            Some(watched)
        })
        .collect()
}

/// A line of the form `tfd: 5 events: 19 data: 5 …`, the last two hexadecimal.
fn registration(line: &str) -> Option<Watched> {
    let mut words = line.split_ascii_whitespace();
    let mut field = |name| (words.next()? == name).then(|| words.next()).flatten();
    let fd = field("tfd:")?.parse().ok()?;
    let events = u32::from_str_radix(field("events:")?, 16).ok()?;
    let data = u64::from_str_radix(field("data:")?, 16).ok()?;
    // A registration for one event that was told is good for nothing until it is made anew. What `disarm` leaves
    // of one are the two events that cannot be left out.
    let always = match events & libc::EPOLLONESHOT as u32 {
        0 => 0,
        _ => (libc::EPOLLERR | libc::EPOLLHUP) as u32,
    };
    (events & !MODES & !always != 0).then_some(Watched {
        fd,
        events,
        data,
        seen: 0,
    })
}

/// Adds events for what waits on error queues to the `ready` that the kernel has put into `events`, which have
/// room for `count`. Returns how many there are.
///
/// # Safety
/// `events` is writable for `count` events, and the first `ready` are written.
pub unsafe fn merge(
    epoll: c_int,
    watched: &[Watched],
    events: *mut epoll_event,
    ready: c_int,
    count: c_int,
    inside: &Inside,
) -> c_int {
    let mut ready = ready as usize;
    for watched in watched {
        let Some(errors) = readiness::errors(watched.fd, inside) else {
            continue;
        };
        let mut tells = ERROR;
        if errors.urgent {
            tells |= watched.events & URGENT;
        }
        let Some(socket) = table::lookup(watched.fd) else {
            continue;
        };
        let edges = socket.edges();
        if watched.events & libc::EPOLLET as u32 != 0 && edges == watched.seen {
            continue;
        }
        // SAFETY: that many are written.
        let told = unsafe { std::slice::from_raw_parts_mut(events, ready) };
        match told.iter_mut().find(|event| event.u64 == watched.data) {
            Some(event) => event.events |= tells,
            None if ready < count as usize => {
                let event = epoll_event {
                    events: tells,
                    u64: watched.data,
                };
                // SAFETY: there is room for it.
                unsafe { events.add(ready).write(event) };
                ready += 1;
                if watched.events & libc::EPOLLONESHOT as u32 != 0 {
                    disarm(epoll, watched);
                }
            }
            None => continue,
        }
        socket.tell_edges(edges);
    }
    ready as c_int
}

/// A registration for one event is used up.
fn disarm(epoll: c_int, watched: &Watched) {
    let mut event = epoll_event {
        events: watched.events & MODES,
        u64: watched.data,
    };
    // Fails if the program has just removed it, which is as good.
    // SAFETY: the event is there for the call.
    unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, watched.fd, &mut event) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernels_is_a_registration() {
        let line = "tfd:        5 events:       1d data:  deadbeef00000005  pos:0 ino:61af sdev:7";
        let watched = registration(line).expect("a registration");
        assert_eq!((watched.fd, watched.events), (5, 0x1d));
        assert_eq!(watched.data, 0xdead_beef_0000_0005);
    }

    #[test]
    fn other_lines_and_registrations_that_were_used_up_are_none() {
        for line in [
            "",
            "pos:\t0",
            "tfd:",
            "tfd: x events: 1 data: 1",
            "tfd: 5 events: 40000000 data: 5",
            "tfd: 5 events: 40000018 data: 5",
        ] {
            assert_eq!(registration(line), None, "{line}");
        }
    }
}
