//! The system calls of the experiment's programs that the standard library does not have.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use clap::Args;

/// `struct sock_txtime` of `linux/net_tstamp.h`.
#[repr(C)]
pub struct SockTxTime {
    pub clockid: libc::clockid_t,
    pub flags: u32,
}

/// `SOF_TXTIME_REPORT_ERRORS` of `linux/net_tstamp.h`.
pub const REPORT_ERRORS: u32 = 2;

/// Nanoseconds of a clock.
pub fn now_ns(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` outlives the call, and these clocks exist on every kernel.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// What `CLOCK_TAI` is ahead of `CLOCK_REALTIME`, in which the kernel stamps: whole seconds.
pub fn tai_offset_ns() -> i64 {
    const SECOND: i64 = 1_000_000_000;
    let offset = now_ns(libc::CLOCK_TAI) - now_ns(libc::CLOCK_REALTIME);
    (offset + SECOND / 2).div_euclid(SECOND) * SECOND
}

/// Sleeps until an instant of `CLOCK_TAI`.
pub fn sleep_until(tai_ns: i64) {
    let until = libc::timespec {
        tv_sec: tai_ns.div_euclid(1_000_000_000),
        tv_nsec: tai_ns.rem_euclid(1_000_000_000),
    };
    // SAFETY: `until` outlives the call. Interrupted early, the caller is early.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_TAI,
            libc::TIMER_ABSTIME,
            &until,
            std::ptr::null_mut(),
        )
    };
}

/// How a talker or listener is scheduled.
#[derive(Clone, Debug, Args)]
pub struct Scheduling {
    /// Core to stay on
    #[arg(long)]
    core: Option<usize>,
    /// Stay in the ordinary scheduling class, as a program without privileges does
    #[arg(long)]
    ordinary: bool,
}

impl Scheduling {
    /// Puts this thread on its core under `SCHED_FIFO`, its memory locked: what a talker that cares does. In a container it is
    /// started in that class.
    pub fn enter(&self, priority: i32) -> io::Result<()> {
        if let Some(core) = self.core {
            crate::awake::pin_to(core)?;
        }
        match self.ordinary || is_real_time() {
            true => Ok(()),
            false => be_real_time(priority),
        }
    }
}

fn is_real_time() -> bool {
    // SAFETY: a plain call.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_FIFO }
}

fn be_real_time(priority: i32) -> io::Result<()> {
    crate::awake::set_scheduler(libc::SCHED_FIFO, priority)?;
    // SAFETY: a plain call. What cannot be locked is paged in by the warm-up.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    Ok(())
}

/// Sets an option of a socket.
pub fn set<T>(socket: &UdpSocket, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: `value` is as long as told, and outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A control message to send: its level, type and value.
pub type Control<'a> = (i32, i32, &'a [u8]);

/// Sends on a connected socket, with a control message.
pub fn send(socket: &UdpSocket, payload: &[u8], control: Option<Control<'_>>) -> io::Result<usize> {
    let mut part = libc::iovec {
        iov_base: payload.as_ptr().cast_mut().cast(),
        iov_len: payload.len(),
    };
    let mut space = [0u64; 8];
    // SAFETY: all zero is a message of nothing.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    if let Some((level, kind, value)) = control {
        message.msg_control = space.as_mut_ptr().cast();
        // SAFETY: plain arithmetic.
        let needed = unsafe { libc::CMSG_SPACE(value.len() as u32) } as usize;
        assert!(needed <= size_of_val(&space));
        message.msg_controllen = needed as _;
        // SAFETY: the space holds a header and the value, as has just been made sure.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = libc::CMSG_LEN(value.len() as u32) as _;
            std::ptr::copy_nonoverlapping(value.as_ptr(), libc::CMSG_DATA(header), value.len());
        }
    }
    // SAFETY: all that the message points to outlives the call.
    match unsafe { libc::sendmsg(socket.as_raw_fd(), &message, 0) } {
        sent if sent < 0 => Err(io::Error::last_os_error()),
        sent => Ok(sent as usize),
    }
}

/// What came with a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    /// Bytes of the payload.
    pub length: usize,
    /// When the kernel saw it, `CLOCK_REALTIME` nanoseconds.
    pub stamp_ns: Option<i64>,
    /// `ee_origin` and `ee_data` of an extended error.
    pub error: Option<(u8, u32)>,
}

/// Receives, from the error queue with `MSG_ERRQUEUE` in `flags`.
pub fn receive(socket: &UdpSocket, payload: &mut [u8], flags: i32) -> io::Result<Received> {
    let mut part = libc::iovec {
        iov_base: payload.as_mut_ptr().cast(),
        iov_len: payload.len(),
    };
    let mut space = [0u64; 64];
    // SAFETY: all zero is a message of nothing.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = space.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&space) as _;
    // SAFETY: all that the message points to outlives the call.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut received = Received {
        length: length as usize,
        ..Received::default()
    };
    // SAFETY: the kernel has written as many bytes of headers as it says.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&message) };
    while !header.is_null() {
        // SAFETY: as above; values are copied out unaligned, and only from messages of their kind.
        unsafe {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                // With both the first of three time stamps is the software's.
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS | libc::SCM_TIMESTAMPING) => {
                    let stamp: libc::timespec = std::ptr::read_unaligned(data.cast());
                    received.stamp_ns = Some(stamp.tv_sec * 1_000_000_000 + stamp.tv_nsec);
                }
                (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR) => {
                    let error: libc::sock_extended_err = std::ptr::read_unaligned(data.cast());
                    received.error = Some((error.ee_origin, error.ee_data));
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok(received)
}
