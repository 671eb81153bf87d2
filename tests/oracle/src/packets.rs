//! Packet sockets with time stamps, in any network namespace, and the machine's time.

#![allow(dead_code)] // each program uses its part

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::{io, mem, ptr};

use takt_oracle::{ETHERTYPE, Frame, Report};

/// TAI, nanoseconds. Nobody has told this kernel of leap seconds: it is UTC too.
pub fn now() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_TAI, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

pub fn sleep_until(nanos: i64) {
    let time = libc::timespec {
        tv_sec: nanos / 1_000_000_000,
        tv_nsec: nanos % 1_000_000_000,
    };
    // SAFETY: `time` outlives the call; no remainder is asked for.
    while unsafe {
        libc::clock_nanosleep(libc::CLOCK_TAI, libc::TIMER_ABSTIME, &time, ptr::null_mut())
    } == libc::EINTR
    {}
}

/// A packet socket.
pub struct Packets {
    socket: libc::c_int,
    address: libc::sockaddr_ll,
}

impl Packets {
    /// A socket for `device`, which may have a network namespace in front.
    pub fn open(device: &str) -> Self {
        let Some((namespace, device)) = device.split_once('/') else {
            return Self::here(device);
        };
        enter(&format!("/run/netns/{namespace}"));
        let socket = Self::here(device);
        enter("/proc/1/ns/net");
        socket
    }

    fn here(device: &str) -> Self {
        // SAFETY: no pointer is passed.
        let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
        check(socket);
        let name = CString::new(device).expect("a name");
        // SAFETY: `name` is a C string that outlives the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        assert_ne!(index, 0, "no interface {device}");
        // SAFETY: all zeros are a valid `sockaddr_ll`.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index as i32;
        address.sll_protocol = ETHERTYPE.to_be();
        address.sll_halen = 6;
        Self { socket, address }
    }

    fn set<T>(&self, option: libc::c_int, value: &T) {
        let length = mem::size_of::<T>() as libc::socklen_t;
        // SAFETY: the pointer and the length are those of `value`.
        check(unsafe {
            libc::setsockopt(
                self.socket,
                libc::SOL_SOCKET,
                option,
                ptr::from_ref(value).cast(),
                length,
            )
        });
    }

    pub fn set_launch_times(&self, deadline: bool) {
        let flags = libc::SOF_TXTIME_REPORT_ERRORS
            | if deadline {
                libc::SOF_TXTIME_DEADLINE_MODE
            } else {
                0
            };
        let value = libc::sock_txtime {
            clockid: libc::CLOCK_TAI,
            flags,
        };
        self.set(libc::SO_TXTIME, &value);
    }

    /// Captures what passes the interface, outgoing frames of other sockets too.
    pub fn listen(&self) {
        self.set(libc::SO_RCVBUFFORCE, &(64i32 << 20));
        self.set(libc::SO_TIMESTAMPNS, &1i32);
        let mut address = self.address;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: the address and its length belong together.
        check(unsafe {
            libc::bind(
                self.socket,
                ptr::from_ref(&address).cast(),
                mem::size_of_val(&address) as libc::socklen_t,
            )
        });
    }

    pub fn send(&self, frame: &Frame, start: i64, octets: &[u8]) {
        self.set(libc::SO_PRIORITY, &frame.priority);
        let mut part = libc::iovec {
            iov_base: octets.as_ptr().cast_mut().cast(),
            iov_len: octets.len(),
        };
        let mut control = Control::default();
        // SAFETY: all zeros are a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_name = ptr::from_ref(&self.address).cast_mut().cast();
        message.msg_namelen = mem::size_of_val(&self.address) as libc::socklen_t;
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if let Some(launch) = frame.launch_ns {
            let launch = (start + launch) as u64;
            // SAFETY: the room behind `msg_control` is that of one header with eight octets, which
            // CMSG_FIRSTHDR points into once the lengths are set.
            unsafe {
                message.msg_control = control.0.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(8) as usize;
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_TXTIME;
                (*header).cmsg_len = libc::CMSG_LEN(8) as usize;
                ptr::copy_nonoverlapping(launch.to_ne_bytes().as_ptr(), libc::CMSG_DATA(header), 8);
            }
        }
        // SAFETY: everything that `message` points to outlives the call. What it answers is of no
        // account: a frame that the queueing discipline drops is an error to some kernels, and what
        // becomes of frames is looked at where they come out.
        unsafe { libc::sendmsg(self.socket, &message, 0) };
    }

    /// Every frame that came, with the time that the kernel gave it.
    pub fn arrivals(&self) -> Vec<(Vec<u8>, i64)> {
        let mut arrivals = Vec::new();
        while let Some(message) = self.receive(libc::MSG_DONTWAIT) {
            let stamp = message.control(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS);
            let stamp = stamp.expect("a time stamp");
            let word = |at: usize| i64::from_ne_bytes(stamp[at..at + 8].try_into().expect("eight"));
            let at = word(0) * 1_000_000_000 + word(8);
            arrivals.push((message.octets, at));
        }
        arrivals
    }

    /// What the error queue holds.
    pub fn reports(&self) -> Vec<Report> {
        const PACKET_TX_TIMESTAMP: libc::c_int = 16;
        let mut reports = Vec::new();
        while let Some(message) = self.receive(libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE) {
            let error = message.control(libc::SOL_PACKET, PACKET_TX_TIMESTAMP);
            let error = error.expect("an extended error");
            let word = |at: usize| u32::from_ne_bytes(error[at..at + 4].try_into().expect("four"));
            reports.push(Report {
                errno: word(0),
                origin: error[4],
                code: error[6],
                info: word(8),
                data: word(12),
            });
        }
        reports
    }

    fn receive(&self, flags: libc::c_int) -> Option<Message> {
        let mut octets = vec![0u8; 65_536];
        let mut control = Control::default();
        let mut part = libc::iovec {
            iov_base: octets.as_mut_ptr().cast(),
            iov_len: octets.len(),
        };
        // SAFETY: all zeros are a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = mem::size_of_val(&control);
        // SAFETY: everything that `message` points to outlives the call and is as long as it says.
        let length = unsafe { libc::recvmsg(self.socket, &mut message, flags) };
        let length = usize::try_from(length).ok()?;
        octets.truncate(length);
        let mut controls = Vec::new();
        // SAFETY: the kernel has filled the control data; the macros stay within its length.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&message);
            while !header.is_null() {
                let data = libc::CMSG_DATA(header);
                let length = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                let value = std::slice::from_raw_parts(data, length).to_vec();
                controls.push(((*header).cmsg_level, (*header).cmsg_type, value));
                header = libc::CMSG_NXTHDR(&message, header);
            }
        }
        Some(Message { octets, controls })
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        // SAFETY: the socket is ours and used no more.
        unsafe { libc::close(self.socket) };
    }
}

/// Room for control data, aligned as its headers.
#[repr(align(8))]
struct Control([u8; 256]);

impl Default for Control {
    fn default() -> Self {
        Self([0; 256])
    }
}

struct Message {
    octets: Vec<u8>,
    controls: Vec<(libc::c_int, libc::c_int, Vec<u8>)>,
}

impl Message {
    fn control(&self, level: libc::c_int, kind: libc::c_int) -> Option<&[u8]> {
        let found = self
            .controls
            .iter()
            .find(|(l, k, _)| (*l, *k) == (level, kind));
        found.map(|(_, _, value)| value.as_slice())
    }
}

/// Goes into a network namespace.
pub fn enter(path: &str) {
    let file = File::open(path).expect("a network namespace");
    // SAFETY: the descriptor is open for as long as the call lasts.
    check(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) });
}

fn check(result: libc::c_int) {
    assert!(result >= 0, "{}", io::Error::last_os_error());
}
