//! What the kernel does beside an `net_af_packet` device: it has the same frames, and keeps the interface's
//! addresses, routes and neighbours.

use std::ffi::CString;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use takt_datapath::OpenError;

/// Of `linux/if_packet.h`.
const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_OUTGOING: u32 = 4;
/// `SKF_AD_OFF + SKF_AD_PKTTYPE` of `linux/filter.h`.
const PACKET_TYPE: u32 = (-0x1000 + 4_i32) as u32;
/// Instructions of a filter, of `linux/bpf_common.h`.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF_BEHIND_HEADER: u16 = 0x48;
const LOAD_HEADER_LENGTH: u16 = 0xb1;
const IF_EQUAL: u16 = 0x15;
const IF_ANY_BIT: u16 = 0x45;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;

/// The index of an interface of this thread's network namespace.
pub(crate) fn interface_index(name: &str) -> Result<u32, OpenError> {
    let index = CString::new(name)
        .ok()
        // SAFETY: a string with its end.
        .map_or(0, |name| unsafe { libc::if_nametoindex(name.as_ptr()) });
    if index == 0 {
        return Err(OpenError::Unavailable(format!(
            "there is no interface {name:?} in this network namespace: see `ip link`"
        )));
    }
    Ok(index)
}

/// The packet sockets on an interface among this process's descriptors: found before and after a device was
/// attached, they tell which are the device's.
pub(crate) fn packet_sockets(interface: u32) -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let mut found: Vec<RawFd> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|fd| bound_to(*fd) == Some(interface))
        .collect();
    found.sort_unstable();
    found
}

/// The interface that a packet socket is bound to; `None` for anything else.
fn bound_to(fd: RawFd) -> Option<u32> {
    // SAFETY: zeros are an address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel writes no more than `length` says; of a descriptor that is no socket, or is closed,
    // it says so.
    let result = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut length) };
    (result == 0 && i32::from(address.sll_family) == libc::AF_PACKET)
        .then(|| address.sll_ifindex.cast_unsigned())
}

/// The socket of a device's queue, for what DPDK does not tell of it.
#[derive(Debug)]
pub(crate) struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// A second descriptor for the device's socket.
    pub(crate) fn of(fd: RawFd) -> io::Result<Self> {
        // SAFETY: plain call; a descriptor that is not negative is new and owned by nobody else.
        match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: as above.
            fd => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    /// Frames that found the ring full, since the last call.
    pub(crate) fn dropped(&self) -> u64 {
        // `struct tpacket_stats`: packets, drops.
        let mut statistics = [0_u32; 3];
        let mut length = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: the kernel writes no more than `length` says.
        let result = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_STATISTICS,
                statistics.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result == 0 { statistics[1].into() } else { 0 }
    }

    /// Asks for the error that waits, which it then forgets.
    pub(crate) fn take_error(&self) {
        let mut error: libc::c_int = 0;
        let mut length = size_of_val(&error) as libc::socklen_t;
        // What it is tells nothing that the tables do not.
        // SAFETY: the kernel writes no more than `length` says.
        unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ERROR,
                (&raw mut error).cast(),
                &raw mut length,
            )
        };
    }

    /// Has the ring take datagrams to these UDP ports only, that arrive and are not fragments.
    pub(crate) fn take_only(&self, ports: &[u16]) -> io::Result<()> {
        attach_filter(&self.0, &filter(ports))
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Most ports that a [`filter`] tells apart: its jumps are 8 bits wide.
pub(crate) const MOST_PORTS: usize = 32;

fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Takes UDP datagrams to `ports` over IPv4 and IPv6. The kernel takes VLAN tags off before it runs this.
fn filter(ports: &[u16]) -> Vec<libc::sock_filter> {
    const COMPARE: u8 = 15;
    let ports = &ports[..ports.len().min(MOST_PORTS)];
    let count = ports.len() as u8;
    // From the instruction at `at`: jumps count from the next one.
    let drop = |at: u8| COMPARE + count - at - 1;
    let take = |at: u8| drop(at) + 1;
    let mut program = vec![
        instruction(LOAD_WORD, PACKET_TYPE, 0, 0),
        instruction(IF_EQUAL, PACKET_OUTGOING, drop(1), 0),
        instruction(LOAD_HALF, 12, 0, 0),
        instruction(IF_EQUAL, 0x0800, 0, 7),
        // IPv4: UDP, no fragment; the port is behind a header of any length.
        instruction(LOAD_BYTE, 23, 0, 0),
        instruction(IF_EQUAL, 17, 0, drop(5)),
        instruction(LOAD_HALF, 20, 0, 0),
        instruction(IF_ANY_BIT, 0x3fff, drop(7), 0),
        instruction(LOAD_HEADER_LENGTH, 14, 0, 0),
        instruction(LOAD_HALF_BEHIND_HEADER, 16, 0, 0),
        instruction(JUMP, 4, 0, 0),
        // IPv6: UDP right behind the header.
        instruction(IF_EQUAL, 0x86dd, 0, drop(11)),
        instruction(LOAD_BYTE, 20, 0, 0),
        instruction(IF_EQUAL, 17, 0, drop(13)),
        instruction(LOAD_HALF, 56, 0, 0),
    ];
    for (at, port) in (COMPARE..).zip(ports) {
        program.push(instruction(IF_EQUAL, (*port).into(), take(at), 0));
    }
    program.push(instruction(RETURN, 0, 0, 0));
    program.push(instruction(RETURN, u32::MAX, 0, 0));
    program
}

fn attach_filter(socket: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

fn set_option<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads the value, and what it points to, during the call only.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Holds a UDP port in the kernel: nobody else takes it, and the kernel, which gets every datagram as well,
/// does not answer that nobody is there. Its filter throws all of them away.
#[derive(Debug)]
pub(crate) struct HeldPort {
    _socket: OwnedFd,
    pub(crate) number: u16,
}

impl HeldPort {
    /// Holds the port of `bind` in this thread's network namespace, any one if that is 0.
    pub(crate) fn hold(bind: SocketAddr, interface: u32) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Bind {
            address: bind,
            source,
        };
        let family = if bind.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        // SAFETY: plain call; a descriptor that is not negative is new and owned by nobody else.
        let socket = match unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) }
        {
            -1 => return Err(failed(io::Error::last_os_error())),
            // SAFETY: as above.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        // Before it has a port: nothing is ever queued.
        attach_filter(&socket, &[instruction(RETURN, 0, 0, 0)]).map_err(failed)?;
        let result = match bind {
            SocketAddr::V4(address) => {
                let name = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(address.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: an address and its length.
                unsafe {
                    libc::bind(
                        socket.as_raw_fd(),
                        (&raw const name).cast(),
                        size_of_val(&name) as u32,
                    )
                }
            }
            SocketAddr::V6(address) => {
                set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1).map_err(failed)?;
                let link_local = address.ip().is_unicast_link_local();
                let name = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.ip().octets(),
                    },
                    sin6_scope_id: if link_local { interface } else { 0 },
                };
                // SAFETY: an address and its length.
                unsafe {
                    libc::bind(
                        socket.as_raw_fd(),
                        (&raw const name).cast(),
                        size_of_val(&name) as u32,
                    )
                }
            }
        };
        if result != 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        let number = port_of(&socket).map_err(failed)?;
        Ok(Self {
            _socket: socket,
            number,
        })
    }
}

/// The port that a socket is bound to.
fn port_of(socket: &OwnedFd) -> io::Result<u16> {
    // SAFETY: zeros are an address.
    let mut name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&name) as libc::socklen_t;
    // SAFETY: the kernel writes no more than `length` says. The port is at the same place in both families.
    let result =
        unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut name).cast(), &raw mut length) };
    if result == 0 {
        Ok(u16::from_be(name.sin6_port))
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The address that a port tells: the one asked for, or the first where any will do.
pub(crate) fn local_address(
    bind: SocketAddr,
    addresses: &[IpAddr],
    what: &str,
) -> Result<IpAddr, OpenError> {
    let wanted = bind.ip();
    if !wanted.is_unspecified() {
        if addresses.contains(&wanted) {
            return Ok(wanted);
        }
        return Err(OpenError::Bind {
            address: bind,
            source: io::Error::from_raw_os_error(libc::EADDRNOTAVAIL),
        });
    }
    let family = |address: &&IpAddr| address.is_ipv4() == wanted.is_ipv4();
    let global =
        |address: &&IpAddr| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let mut own = addresses.iter().filter(family);
    (own.clone().find(global).or_else(|| own.next()).copied()).ok_or_else(|| {
        let family = if wanted.is_ipv4() { "IPv4" } else { "IPv6" };
        OpenError::Unavailable(format!("{what} has no {family} address"))
    })
}
