//! UDP sockets and their options: the only place that names socket options. No datagram passes here.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use takt_datapath::OpenError;
use takt_time::TrafficClass;

use crate::address::RawAddress;

/// Index of the drop count in what `SO_MEMINFO` returns (`SK_MEMINFO_DROPS` of linux/sock_diag.h).
const MEMINFO_DROPS: usize = 8;
/// Words that `SO_MEMINFO` returns (`SK_MEMINFO_VARS`).
const MEMINFO_WORDS: usize = 9;
/// The highest `SO_PRIORITY` that needs no privilege (Linux `socket(7)`).
const HIGHEST_FREE_PRIORITY: libc::c_int = 6;

/// A nonblocking UDP socket.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    ipv6: bool,
}

impl Socket {
    /// A socket of the family of `like`, not bound.
    pub(crate) fn new(like: SocketAddr) -> io::Result<Self> {
        let ipv6 = like.is_ipv6();
        let family = if ipv6 { libc::AF_INET6 } else { libc::AF_INET };
        // SAFETY: no pointers are passed.
        let fd = check(unsafe {
            libc::socket(
                family,
                libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
                0,
            )
        })?;
        // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = Self { fd, ipv6 };
        if ipv6 {
            // An IPv6 port serves IPv6 only: the other family has ports of its own.
            socket.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        }
        Ok(socket)
    }

    /// Binds and reports the address taken.
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<SocketAddr, OpenError> {
        self.bind_to(address).map_err(|source| {
            if source.raw_os_error() == Some(libc::EACCES) {
                OpenError::Privilege(format!(
                    "binding {address} needs CAP_NET_BIND_SERVICE: grant it with `setcap cap_net_bind_service+ep` \
                     or choose a port above net.ipv4.ip_unprivileged_port_start"
                ))
            } else {
                OpenError::Bind { address, source }
            }
        })?;
        self.local().map_err(|source| OpenError::System {
            action: "cannot read the bound address".into(),
            source,
        })
    }

    fn bind_to(&self, address: SocketAddr) -> io::Result<()> {
        let raw = RawAddress::from(address);
        // SAFETY: pointer and length describe `raw`, which outlives the call.
        check(unsafe { libc::bind(self.raw(), raw.as_ptr(), raw.length()) }).map(drop)
    }

    /// A second socket at this one's address, for what is marked with a traffic class above 0: the kernel chooses
    /// between the two by the class selector of each datagram (RFC 2474, section 4.2.2.2).
    ///
    /// This one has been bound alone, so a second program with the same address has been refused. From here on one
    /// of the same user might join, if it asks to.
    pub(crate) fn beside(&self, local: SocketAddr) -> io::Result<Self> {
        let marked = Self::new(local)?;
        for socket in [self, &marked] {
            socket.set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        marked.bind_to(local)?;
        marked.choose_by_class()?;
        Ok(marked)
    }

    /// For the sockets at this one's address: datagrams without a class are for the first that was bound there, the
    /// others for the second.
    fn choose_by_class(&self) -> io::Result<()> {
        let instruction = |code: u32, if_not: u8, value: u32| libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf: if_not,
            k: value,
        };
        let network = libc::SKF_NET_OFF as u32;
        // The field that has the class in its three highest bits: of IPv4's second octet (RFC 791, section 3.1), of
        // IPv6's after the version (RFC 8200, section 3).
        let (load, field, shift) = match self.ipv6 {
            false => (libc::BPF_B, network + 1, 5),
            true => (libc::BPF_H, network, 9),
        };
        let mut program = [
            instruction(libc::BPF_LD | load | libc::BPF_ABS, 0, field),
            instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, shift),
            instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 7),
            instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 1),
        ];
        let program = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_mut_ptr(),
        };
        self.set_value(libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
    }

    fn local(&self) -> io::Result<SocketAddr> {
        let mut raw = RawAddress::unspecified();
        let mut length = RawAddress::CAPACITY;
        // SAFETY: the kernel writes at most `length` bytes, which is the room behind the pointer.
        check(unsafe { libc::getsockname(self.raw(), raw.as_mut_ptr(), &mut length) })?;
        raw.to_socket_addr()
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))
    }

    /// Binds to an address without taking a port: the association made later takes one for its time only.
    pub(crate) fn bind_address_only(&self, mut address: SocketAddr) -> io::Result<()> {
        address.set_port(0);
        self.set(libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
        self.bind_to(address)
    }

    /// Associates with `peer`, which makes the kernel look the route up; `AF_UNSPEC` dissolves the association.
    pub(crate) fn associate(&self, peer: &RawAddress) -> io::Result<()> {
        // SAFETY: pointer and length describe `peer`, which outlives the call.
        check(unsafe { libc::connect(self.raw(), peer.as_ptr(), peer.length()) }).map(drop)
    }

    /// MTU of the route to the associated peer, path MTU discovery included.
    pub(crate) fn route_mtu(&self) -> io::Result<usize> {
        let (level, option) = if self.ipv6 {
            (libc::IPPROTO_IPV6, libc::IPV6_MTU)
        } else {
            (libc::IPPROTO_IP, libc::IP_MTU)
        };
        self.get(level, option)
            .map(|mtu| usize::try_from(mtu).unwrap_or(0))
    }

    /// Makes the kernel refuse what exceeds the path MTU instead of fragmenting it.
    pub(crate) fn forbid_fragmentation(&self) -> io::Result<()> {
        if self.ipv6 {
            self.set(
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_DO,
            )
        } else {
            self.set(
                libc::IPPROTO_IP,
                libc::IP_MTU_DISCOVER,
                libc::IP_PMTUDISC_DO,
            )
        }
    }

    /// Makes the kernel fragment what exceeds the path MTU, which it goes on discovering.
    pub(crate) fn permit_fragmentation(&self) -> io::Result<()> {
        if self.ipv6 {
            let want = libc::IPV6_PMTUDISC_WANT;
            self.set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, want)
        } else {
            let want = libc::IP_PMTUDISC_WANT;
            self.set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, want)
        }
    }

    /// Marks what is sent from now on with a class: as class selector code point (RFC 2474, section 4.2.2.2)
    /// for the network, and with a priority for the host's own queueing disciplines and VLAN interfaces. A
    /// socket begins with class 0 and priority 0.
    pub(crate) fn mark(&self, class: TrafficClass, priority: u32) {
        let services = libc::c_int::from(class.number()) << 5;
        // A program of the control group may refuse any option: then datagrams leave without the mark.
        let _ = if self.ipv6 {
            self.set(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, services)
        } else {
            self.set(libc::IPPROTO_IP, libc::IP_TOS, services)
        };
        // After IP_TOS, which sets a priority of its own.
        let class = libc::c_int::from(class.number());
        if self
            .set(libc::SOL_SOCKET, libc::SO_PRIORITY, priority as libc::c_int)
            .is_err()
        {
            let _ = self.set(
                libc::SOL_SOCKET,
                libc::SO_PRIORITY,
                class.min(HIGHEST_FREE_PRIORITY),
            );
        }
    }

    /// Announces launch times by `CLOCK_TAI`, and asks for a report about each datagram that misses its own
    /// (Linux 4.19). Needs CAP_NET_ADMIN, and cannot be taken back.
    pub(crate) fn announce_launch_times(&self) -> io::Result<()> {
        let value = libc::sock_txtime {
            clockid: libc::CLOCK_TAI,
            flags: libc::SOF_TXTIME_REPORT_ERRORS,
        };
        self.set_value(libc::SOL_SOCKET, libc::SO_TXTIME, &value)
    }

    /// Whether the kernel splits one long send into datagrams (UDP GSO, Linux 4.18).
    pub(crate) fn offers_segmentation(&self) -> bool {
        self.get(libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
    }

    /// Lets the kernel hand over runs of datagrams as one (UDP GRO, Linux 5.0). Returns whether it does.
    pub(crate) fn coalesce_received(&self) -> bool {
        self.set(libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
    }

    /// Asks for buffers of so many bytes: beyond the administrator's limit where we are privileged,
    /// the largest permitted otherwise.
    pub(crate) fn size_buffers(&self, receive: usize, send: usize) -> io::Result<()> {
        self.size_receive_buffer(receive)?;
        self.size(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send)
    }

    /// As [`Self::size_buffers`], of the one.
    pub(crate) fn size_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        self.size(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, bytes)
    }

    fn size(&self, forced: libc::c_int, permitted: libc::c_int, bytes: usize) -> io::Result<()> {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        if self.set(libc::SOL_SOCKET, forced, bytes).is_err() {
            self.set(libc::SOL_SOCKET, permitted, bytes)?;
        }
        Ok(())
    }

    /// Bytes of memory that the receive buffer may take.
    pub(crate) fn receive_buffer(&self) -> io::Result<usize> {
        self.get(libc::SOL_SOCKET, libc::SO_RCVBUF)
            .map(|bytes| usize::try_from(bytes).unwrap_or(0))
    }

    /// How often the kernel could not queue an arrival on this socket since it was made, modulo 2³².
    /// A train of coalesced datagrams counts once: the kernel keeps no better number.
    pub(crate) fn receive_drops(&self) -> io::Result<u32> {
        let mut words = [0u32; MEMINFO_WORDS];
        let mut length = mem::size_of_val(&words) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, which is the room behind the pointer.
        check(unsafe {
            libc::getsockopt(
                self.raw(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                words.as_mut_ptr().cast(),
                &mut length,
            )
        })?;
        Ok(words[MEMINFO_DROPS])
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        self.set_value(level, option, &value)
    }

    /// Of an option whose value is no integer, and may point to what outlives the call.
    fn set_value<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        set_value(self.raw(), level, option, value)
    }

    fn get(&self, level: libc::c_int, option: libc::c_int) -> io::Result<libc::c_int> {
        let mut value: libc::c_int = 0;
        let mut length = mem::size_of_val(&value) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, which is the room behind the pointer.
        check(unsafe {
            libc::getsockopt(
                self.raw(),
                level,
                option,
                (&raw mut value).cast(),
                &mut length,
            )
        })?;
        Ok(value)
    }
}

/// Sets an option of a socket. Its value may point to what outlives the call.
pub(crate) fn set_value<T>(
    socket: RawFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which outlives the call, as does what it points to.
    check(unsafe {
        libc::setsockopt(
            socket,
            level,
            option,
            std::ptr::from_ref(value).cast(),
            mem::size_of_val(value) as libc::socklen_t,
        )
    })
    .map(drop)
}

/// The C convention of system calls as a result.
pub(crate) fn check(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(returned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_the_class_selector_and_the_priority_and_can_be_taken_back() {
        for (like, level, option) in [
            ("127.0.0.1:0", libc::IPPROTO_IP, libc::IP_TOS),
            ("[::1]:0", libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        ] {
            let socket = Socket::new(like.parse().expect("an address")).expect("a socket");
            for number in [0, 1, 4, 6, 3, 0] {
                socket.mark(TrafficClass::new(number).expect("a class"), number.into());
                let number = libc::c_int::from(number);
                assert_eq!(socket.get(level, option).expect("marks"), number << 5);
                let priority = socket.get(libc::SOL_SOCKET, libc::SO_PRIORITY);
                assert_eq!(priority.expect("a priority"), number);
            }
            // The highest class has its own priority where that is permitted, the next one elsewhere.
            socket.mark(TrafficClass::new(7).expect("a class"), 7);
            assert_eq!(socket.get(level, option).expect("marks"), 7 << 5);
            let priority = socket.get(libc::SOL_SOCKET, libc::SO_PRIORITY);
            assert!((6..=7).contains(&priority.expect("a priority")));
            // So it is with one that only the runtime has.
            socket.mark(TrafficClass::new(3).expect("a class"), 11);
            let priority = socket.get(libc::SOL_SOCKET, libc::SO_PRIORITY);
            assert!([3, 11].contains(&priority.expect("a priority")));
        }
    }
}
