//! A UDP port held in the kernel while datagrams for it go past the kernel.
//!
//! A bound socket that receives nothing: it keeps other programs from binding the port, whose
//! traffic they would never see, picks a free port where any will do, and keeps the kernel from
//! answering "port unreachable" to the datagrams that it does get: on queues without a socket, in
//! fragments, behind IPv6 extension headers. Those are lost, and it counts them.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use takt_datapath::OpenError;

use crate::attachment::lock;

/// Numbers that `SO_MEMINFO` gives, and which of them is that of lost datagrams (`SK_MEMINFO_VARS`
/// and `SK_MEMINFO_DROPS` of `linux/sock_diag.h`).
const MEMINFO_VARS: usize = 9;
const MEMINFO_DROPS: usize = 8;

/// How long an address may be in use without being refused: a child of `fork(2)` has the sockets
/// that its parent closes meanwhile until it calls `exec(2)`.
const INHERITED: Duration = Duration::from_millis(250);

/// A reserved address. Free again on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    local: SocketAddr,
    socket: UdpSocket,
    /// Datagrams that the kernel had, as far as it was asked.
    dropped: Mutex<u64>,
}

impl Reservation {
    pub(crate) fn new(bind: SocketAddr) -> Result<Self, OpenError> {
        let refused = |source| OpenError::Bind {
            address: bind,
            source,
        };
        let give_up = Instant::now() + INHERITED;
        let socket = loop {
            match bound(bind) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < give_up =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                result => break result.map_err(refused)?,
            }
        };
        let local = socket.local_addr().map_err(refused)?;
        drop_everything(&socket).map_err(refused)?;
        Ok(Self {
            local,
            socket,
            dropped: Mutex::new(0),
        })
    }

    /// The address, with the port that the kernel chose where none was asked for.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Datagrams for the address that have come to the kernel, and were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        let mut dropped = lock(&self.dropped);
        if let Ok(now) = drops(&self.socket) {
            // The kernel counts in 32 bits.
            *dropped += u64::from(now.wrapping_sub(*dropped as u32));
        }
        *dropped
    }
}

fn bound(bind: SocketAddr) -> io::Result<UdpSocket> {
    let SocketAddr::V6(address) = bind else {
        return UdpSocket::bind(bind);
    };
    // The library's own socket would take IPv4 as well where the address is unspecified.
    // SAFETY: plain call; a descriptor that is not negative is new and owned by nobody else.
    let socket =
        match unsafe { libc::socket(libc::AF_INET6, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: as above.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
    let only = 1i32;
    // SAFETY: the descriptor is open and `only` is readable for the length given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_V6ONLY,
            (&raw const only).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let raw = libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: address.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr {
            s6_addr: address.ip().octets(),
        },
        sin6_scope_id: address.scope_id(),
    };
    // SAFETY: the descriptor is open and `raw` is a `sockaddr_in6` of the length given.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const raw).cast(),
            size_of::<libc::sockaddr_in6>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(socket.into())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn drops(socket: &UdpSocket) -> io::Result<u32> {
    let mut memory = [0_u32; MEMINFO_VARS];
    let mut length = size_of_val(&memory) as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes no more than `length` says.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            memory.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(memory[MEMINFO_DROPS])
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Has the kernel drop whatever arrives at the socket (classic BPF, "return 0").
fn drop_everything(socket: &UdpSocket) -> io::Result<()> {
    let mut nothing = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let filter = libc::sock_fprog {
        len: 1,
        filter: &raw mut nothing,
    };
    // SAFETY: the descriptor is open; `filter` names one instruction; both are readable for the
    // call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
