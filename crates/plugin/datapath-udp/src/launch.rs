//! Launch times that the kernel keeps: `etf` queueing disciplines (Linux `tc-etf(8)`, `SO_TXTIME`).
//!
//! `etf` takes packets with a time still to come only, and hands each to the device `delta` before that time. A
//! device that holds packets (`offload`) is given the launch time itself; otherwise the packet would be on
//! the wire too early by `delta`, which is added therefore. Datagrams without a launch time that have to pass such
//! a queue get the earliest time that it surely takes.

use std::mem;
use std::ptr;

use takt_datapath::stack::{Etf, LaunchQueues};
use takt_time::{TaiTime, TrafficClass};

use crate::socket::Socket;

/// From reading the clock until the datagram is in the queue: several times what that takes undisturbed.
pub(crate) const HAND_OVER_NS: i64 = 20_000;
/// `SO_EE_ORIGIN_TXTIME` of `linux/errqueue.h`.
const ORIGIN_TXTIME: u8 = 6;
/// Reports taken at a time.
const REPORTS: usize = 64;
/// Calls of `receive` of which one looks for reports.
const LOOK_EVERY: u32 = 16;

/// What the kernel is to be told of a datagram for such a queue.
pub(crate) fn transmission_time(etf: Etf, launch: Option<TaiTime>, now: TaiTime) -> TaiTime {
    let soonest = now.saturating_add_nanos(HAND_OVER_NS);
    let delta = i64::from(etf.delta_ns);
    match launch {
        Some(launch) if etf.offload => launch.max(soonest),
        Some(launch) => launch.max(soonest).saturating_add_nanos(delta),
        // Not before what has left the queue: that is refused.
        None => soonest.saturating_add_nanos(delta),
    }
}

/// The kernel's `CLOCK_TAI`.
pub(crate) fn now() -> TaiTime {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec that outlives the call. The clock exists since Linux 3.10, so the
    // call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_TAI, &mut now) };
    TaiTime::from_nanos(now.tv_sec * 1_000_000_000 + now.tv_nsec)
}

/// One line for people about what was found.
pub(crate) fn describe(queues: &[LaunchQueues]) -> String {
    let each = queues.iter().map(|queues| {
        let kept = |class: &TrafficClass| queues.classes[usize::from(class.number())].is_some();
        let classes: Vec<String> = TrafficClass::all()
            .filter(kept)
            .map(|class| class.to_string())
            .collect();
        let offload = queues.classes.iter().flatten().all(|etf| etf.offload);
        format!(
            "etf on {}{}{}",
            queues.name,
            if offload { " (offload)" } else { "" },
            if classes.len() == TrafficClass::COUNT {
                String::new()
            } else {
                format!(" for class {}", classes.join(" "))
            }
        )
    });
    each.collect::<Vec<_>>().join(", ")
}

/// What `etf` says about datagrams that it has dropped, on the socket's error queue.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    skipped: u32,
}

impl Reports {
    /// Called by each `receive` of a socket that has launch times: looks in one call of some, and takes how many
    /// datagrams were dropped since. A sleeper is woken by reports until they are taken.
    pub(crate) fn look(&mut self, socket: &Socket) -> u64 {
        self.skipped += 1;
        if self.skipped < LOOK_EVERY {
            return 0;
        }
        self.skipped = 0;
        let mut dropped = 0;
        for _ in 0..REPORTS {
            match take(socket) {
                Some(true) => dropped += 1,
                Some(false) => {}
                None => break,
            }
        }
        dropped
    }
}

/// Room for the control messages of one report: `struct sock_extended_err` and an address.
#[repr(C, align(8))]
struct Control([u8; 128]);

/// Takes a message from the error queue: whether it tells of a datagram dropped. `None`: there is none.
fn take(socket: &Socket) -> Option<bool> {
    let mut control = Control([0; 128]);
    // SAFETY: a message header is integers and pointers, for which all bits zero is a value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: the control room outlives the call and is as long as it says; nothing else is to be written.
    let taken = unsafe {
        libc::recvmsg(
            socket.raw(),
            &mut message,
            libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
        )
    };
    if taken < 0 {
        return None;
    }
    // SAFETY: the kernel has filled the control room as far as the header says now; the macros stay within
    // that, and the value is read only where its length is that of the structure.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            let kind = ((*header).cmsg_level, (*header).cmsg_type);
            let room = libc::CMSG_LEN(mem::size_of::<libc::sock_extended_err>() as u32);
            if matches!(
                kind,
                (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
            ) && (*header).cmsg_len as usize >= room as usize
            {
                let error: libc::sock_extended_err =
                    ptr::read_unaligned(libc::CMSG_DATA(header).cast());
                return Some(error.ee_origin == ORIGIN_TXTIME);
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: i64) -> TaiTime {
        TaiTime::from_nanos(nanos)
    }

    #[test]
    fn a_queue_is_told_a_time_that_it_takes_and_at_which_the_datagram_leaves() {
        let software = Etf {
            delta_ns: 150_000,
            offload: false,
        };
        let offload = Etf {
            offload: true,
            ..software
        };
        let now = at(1_000_000);
        let told = |etf, launch: Option<i64>| {
            transmission_time(etf, launch.map(at), now).as_nanos() - now.as_nanos()
        };
        // Software etf releases a frame `delta` before, a device at the time.
        assert_eq!(told(software, Some(1_500_000)), 500_000 + 150_000);
        assert_eq!(told(offload, Some(1_500_000)), 500_000);
        // Passed, or about to.
        for late in [i64::MIN, 0, 999_999, 1_000_000, 1_000_000 + HAND_OVER_NS] {
            assert_eq!(told(software, Some(late)), HAND_OVER_NS + 150_000);
            assert_eq!(told(offload, Some(late)), HAND_OVER_NS);
        }
        // None: after whatever the queue may have released.
        assert_eq!(told(software, None), HAND_OVER_NS + 150_000);
        assert_eq!(told(offload, None), HAND_OVER_NS + 150_000);
        let far = transmission_time(software, Some(at(i64::MAX)), now);
        assert_eq!(far, at(i64::MAX));
    }

    #[test]
    fn people_are_told_where_and_for_which_classes() {
        let etf = Etf {
            delta_ns: 1,
            offload: true,
        };
        let mut queues = LaunchQueues {
            ifindex: 2,
            name: "eth0".into(),
            classes: [Some(etf); TrafficClass::COUNT],
        };
        assert_eq!(describe(&[queues.clone()]), "etf on eth0 (offload)");
        queues.classes = [None; TrafficClass::COUNT];
        queues.classes[3] = Some(Etf {
            offload: false,
            ..etf
        });
        queues.classes[7] = queues.classes[3];
        let other = LaunchQueues {
            name: "eth1".into(),
            classes: [Some(etf); TrafficClass::COUNT],
            ..queues.clone()
        };
        assert_eq!(
            describe(&[queues, other]),
            "etf on eth0 for class 3 7, etf on eth1 (offload)"
        );
    }

    #[test]
    fn a_socket_without_reports_has_none() {
        let socket = Socket::new("127.0.0.1:0".parse().expect("an address")).expect("a socket");
        let mut reports = Reports::default();
        for _ in 0..2 * LOOK_EVERY {
            assert_eq!(reports.look(&socket), 0);
        }
    }
}
