//! What arrives at an end of a cable, with the instants at which its kernel saw it.

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{Host, LabError, namespace};

/// Room for frames that wait to be read.
const BUFFER: i32 = 64 << 20;
/// Longest frame that is kept whole.
const LONGEST: usize = 65_536;

/// How much is kept of frames of which the beginning is enough.
pub const HEAD: u32 = 160;
/// Octets of the headers before a datagram's payload: Ethernet, IPv4, UDP; and those of a VXLAN before them.
const HEADERS: usize = 14 + 20 + 8;
const TUNNEL_HEADERS: usize = HEADERS + 8;
/// The UDP port of the lab's VXLAN.
const VXLAN: u16 = 4789;

/// A program of the classic packet filter (`Documentation/networking/filter.rst`): the head of what is for a UDP port, in a
/// VXLAN or not.
fn to_port(port: u16) -> [libc::sock_filter; 9] {
    const PORT: u32 = 14 + 20 + 2;
    let load = |at| (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 0, at);
    let is = |value: u32, yes, no| (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, yes, no, value);
    let end = |length| (libc::BPF_RET | libc::BPF_K, 0, 0, length);
    let program = [
        load(12),
        is(libc::ETH_P_IP as u32, 0, 6),
        load(PORT),
        is(port.into(), 3, 0),
        is(VXLAN.into(), 0, 3),
        load(TUNNEL_HEADERS as u32 + PORT),
        is(port.into(), 0, 1),
        end(HEAD),
        end(0),
    ];
    program.map(|(code, jt, jf, k)| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    })
}

/// A packet socket on a host's interface, open as long as this lives.
///
/// It sees what comes in, before the host's bridges and tunnels do; nothing that an XDP program of the host takes.
#[derive(Debug)]
pub struct Capture {
    socket: OwnedFd,
    /// Octets of a frame that are kept at most.
    longest: usize,
}

/// A frame that has come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// When the kernel took it from the cable, nanoseconds of `CLOCK_REALTIME`.
    pub realtime_ns: i64,
    /// The frame, from its destination address on, without frame check sequence.
    pub frame: Vec<u8>,
}

impl Captured {
    /// The payload of a UDP datagram over IPv4 without options, of which the head may have been kept alone; in the lab's
    /// VXLAN or not.
    pub fn datagram(&self) -> &[u8] {
        let port = self.frame.get(HEADERS - 6..HEADERS - 4);
        let tunnel = match port {
            Some(port) if *port == VXLAN.to_be_bytes() => TUNNEL_HEADERS,
            _ => 0,
        };
        self.frame.get(tunnel + HEADERS..).unwrap_or_default()
    }
}

impl Capture {
    /// Begins to capture.
    ///
    /// # Errors
    /// When the lab is down, or without CAP_NET_RAW.
    pub fn open(host: &Host) -> Result<Self, LabError> {
        let _inside = host.enter()?;
        let name = host.name();
        Self::on(host.interface(), &[]).map_err(LabError::io(format!("capture at {name}")))
    }

    /// Begins to capture what a host sends to a UDP port, at the other end of its cable: IPv4 without options, as it is or
    /// in the lab's VXLAN. The first [`HEAD`] octets of each frame are kept.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn sent_by(host: &Host, port: u16) -> Result<Self, LabError> {
        let (namespace, interface) = host.far();
        let _inside = namespace::enter(namespace)?;
        let name = host.name();
        Self::on(interface, &to_port(port))
            .map_err(LabError::io(format!("capture what {name} sends")))
    }

    fn on(interface: &str, filter: &[libc::sock_filter]) -> io::Result<Self> {
        let every = (libc::ETH_P_ALL as u16).to_be();
        // No protocol yet: until it is bound, it would see every interface.
        // SAFETY: a plain call.
        let socket =
            unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let capture = Self {
            socket,
            longest: match filter {
                [] => LONGEST,
                _ => HEAD as usize,
            },
        };
        capture.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER)?;
        capture.set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        Self::wait_for_stamps()?;
        capture.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        if !filter.is_empty() {
            capture.filter(filter)?;
        }
        let interface = std::ffi::CString::new(interface)?;
        // SAFETY: all zero is an address of nothing; the name outlives the call.
        let (mut address, index) = unsafe {
            let address: libc::sockaddr_ll = zeroed();
            (address, libc::if_nametoindex(interface.as_ptr()))
        };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = every;
        address.sll_ifindex = index as i32;
        // SAFETY: `address` is of the length told and outlives the call.
        let bound = unsafe {
            libc::bind(
                capture.socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        match bound {
            0 => Ok(capture),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until the kernel stamps frames when they come in. For the first socket that wants stamps a work item of the kernel
    /// switches that on some time after the option is set (`net_enable_timestamp`), and frames without a stamp get the
    /// instant at which they are read.
    fn wait_for_stamps() -> io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(socket.local_addr()?)?;
        let probe = Self {
            socket: socket.try_clone()?.into(),
            longest: LONGEST,
        };
        probe.set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        loop {
            socket.send(&[0])?;
            // It has come in by now.
            let sent = SystemTime::now();
            let stamp = Duration::from_nanos(probe.receive()?.realtime_ns as u64);
            if UNIX_EPOCH + stamp < sent {
                return Ok(());
            }
        }
    }

    /// Keeps what a program of the classic packet filter says.
    fn filter(&self, program: &[libc::sock_filter]) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_ptr().cast_mut(),
        };
        // SAFETY: the program is as long as it says and outlives the call, which only reads it.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of_val(&program) as libc::socklen_t,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn set(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        // SAFETY: `value` is as long as told, and outlives the call.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The next frame; `None` if none comes for so long.
    ///
    /// # Errors
    /// The kernel's; a frame longer than 64 KiB.
    pub fn next(&self, patience: Duration) -> io::Result<Option<Captured>> {
        let mut waiting = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let patience = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one entry, which outlives the call.
        match unsafe { libc::poll(&mut waiting, 1, patience) } {
            0 => Ok(None),
            1 => self.receive().map(Some),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn receive(&self) -> io::Result<Captured> {
        let mut frame = vec![0; self.longest];
        let mut part = libc::iovec {
            iov_base: frame.as_mut_ptr().cast(),
            iov_len: frame.len(),
        };
        let mut control = [0u64; 16];
        // SAFETY: all zero is a message of nothing.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: all that the message points to outlives the call.
        let length =
            unsafe { libc::recvmsg(self.socket.as_raw_fd(), &mut message, libc::MSG_TRUNC) };
        if length < 0 {
            return Err(io::Error::last_os_error());
        }
        let length = length as usize;
        if length > self.longest {
            let error = format!("a frame of {length} octets is longer than {}", self.longest);
            return Err(io::Error::other(error));
        }
        frame.truncate(length);
        frame.shrink_to_fit();
        // SAFETY: the kernel has written as many bytes of control messages as it says; the value is copied
        // out unaligned, and only from a message of its kind.
        let stamp = unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&message);
            let mut stamp = None;
            while !header.is_null() {
                let kind = ((*header).cmsg_level, (*header).cmsg_type);
                if kind == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
                    let value: libc::timespec =
                        std::ptr::read_unaligned(libc::CMSG_DATA(header).cast());
                    stamp = Some(value.tv_sec * 1_000_000_000 + value.tv_nsec);
                }
                header = libc::CMSG_NXTHDR(&message, header);
            }
            stamp
        };
        Ok(Captured {
            realtime_ns: stamp.ok_or_else(|| io::Error::other("a frame without a time stamp"))?,
            frame,
        })
    }

    /// A frame that is there already; `None`: none is.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn take(&self) -> io::Result<Option<Captured>> {
        self.next(Duration::ZERO)
    }

    /// How many frames there was no room for since it was last asked.
    ///
    /// # Errors
    /// The kernel's.
    pub fn lost(&self) -> io::Result<u32> {
        let mut statistics = [0u32; 2];
        let mut length = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: `statistics` has the length told, which is that of `struct tpacket_stats`.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                statistics.as_mut_ptr().cast(),
                &mut length,
            )
        };
        match result {
            0 => Ok(statistics[1]),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
