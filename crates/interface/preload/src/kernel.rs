//! Questions about sockets to the kernel.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::net::Ipv6Addr;

use libc::{sockaddr_storage, socklen_t};

use takt::descriptors::Registered;

use crate::process::errno;
use crate::real;

/// What `getsockopt` writes, as it lies in memory.
///
/// # Safety
/// Every pattern of bytes is a value of the type.
pub unsafe trait Plain: Copy {}
// SAFETY: an integer.
unsafe impl Plain for c_int {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: two integers.
unsafe impl Plain for crate::abi::SockTxtime {}
// SAFETY: integers.
unsafe impl Plain for libc::timeval {}

/// An option of a socket; `Err` is the errno.
pub fn option<T: Plain>(fd: c_int, level: c_int, name: c_int) -> Result<T, c_int> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as socklen_t;
    // SAFETY: `length` bytes at `value` are writable.
    let result =
        unsafe { real::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut length) };
    match result {
        // SAFETY: initialised with zeroes, of which the kernel overwrote some; all patterns are values.
        0 => Ok(unsafe { value.assume_init() }),
        _ => Err(errno()),
    }
}

/// The number of the network namespace that a socket is in; 0: the kernel cannot say (before 5.14).
pub fn network(fd: c_int) -> u64 {
    option(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE).unwrap_or(0)
}

/// Sets an option that is an integer. Whether the kernel takes it.
pub fn set_option(fd: c_int, level: c_int, name: c_int, value: c_int) -> bool {
    // SAFETY: the value is there for the call, and as long as it is said to be.
    let result = unsafe {
        real::setsockopt(
            fd,
            level,
            name,
            (&raw const value).cast(),
            size_of::<c_int>() as socklen_t,
        )
    };
    result == 0
}

/// Whether sockets of this network namespace are members of a group on an interface. True where that cannot be
/// found out.
pub fn is_member(interface: u32, group: Ipv6Addr) -> bool {
    // One group a line: the interface's number and name, the address in digits, how many members.
    let Ok(text) = std::fs::read_to_string("/proc/thread-self/net/igmp6") else {
        return true;
    };
    let (interface, group) = (interface.to_string(), format!("{:032x}", group.to_bits()));
    text.lines().any(|line| {
        let mut fields = line.split_whitespace();
        fields.next() == Some(&*interface) && fields.nth(1) == Some(&*group)
    })
}

/// How many bytes an option of variable length has.
pub fn option_length(fd: c_int, level: c_int, name: c_int) -> Result<usize, c_int> {
    let mut value = [0u8; 256];
    let mut length = value.len() as socklen_t;
    // SAFETY: `length` bytes at `value` are writable.
    match unsafe { real::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut length) } {
        0 => Ok(length as usize),
        _ => Err(errno()),
    }
}

/// A function that tells an address of a socket.
type Tell = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut socklen_t) -> c_int;

fn name(fd: c_int, tell: Tell) -> Result<Vec<u8>, c_int> {
    let mut address = MaybeUninit::<sockaddr_storage>::zeroed();
    let mut length = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: `length` bytes at `address` are writable.
    if unsafe { tell(fd, address.as_mut_ptr().cast(), &mut length) } != 0 {
        return Err(errno());
    }
    let length = (length as usize).min(size_of::<sockaddr_storage>());
    // SAFETY: zeroed before, and as long as that.
    let bytes = unsafe { std::slice::from_raw_parts(address.as_ptr().cast::<u8>(), length) };
    Ok(bytes.to_vec())
}

/// The address that a socket is bound to.
pub fn local_name(fd: c_int) -> Result<Vec<u8>, c_int> {
    name(fd, libc::getsockname)
}

/// The address that it is connected to.
pub fn peer_name(fd: c_int) -> Result<Vec<u8>, c_int> {
    name(fd, libc::getpeername)
}

/// Whether calls on the descriptor are not to block.
pub fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// The longest packet of the interface `index`, as the socket's network has it.
pub fn interface_mtu(fd: c_int, index: u32) -> Option<usize> {
    let mut request = MaybeUninit::<libc::ifreq>::zeroed();
    let pointer = request.as_mut_ptr();
    // SAFETY: `ifreq` is plain; the number is written to the field that SIOCGIFNAME reads.
    unsafe { (*pointer).ifr_ifru.ifru_ifindex = index as c_int };
    for request in [libc::SIOCGIFNAME, libc::SIOCGIFMTU] {
        // SAFETY: both read and write an `ifreq`; the second takes the name that the first gave.
        if unsafe { real::ioctl(fd, request as _, pointer.cast()) } != 0 {
            return None;
        }
    }
    // SAFETY: written by SIOCGIFMTU.
    usize::try_from(unsafe { (*pointer).ifr_ifru.ifru_mtu }).ok()
}

/// The name of the interface `index`, as the socket's network has it.
pub fn interface_name(fd: c_int, index: u32) -> Option<String> {
    let mut request = MaybeUninit::<libc::ifreq>::zeroed();
    let pointer = request.as_mut_ptr();
    // SAFETY: `ifreq` is plain; the number is written to the field that SIOCGIFNAME reads.
    unsafe { (*pointer).ifr_ifru.ifru_ifindex = index as c_int };
    // SAFETY: it reads and writes an `ifreq`.
    if unsafe { real::ioctl(fd, libc::SIOCGIFNAME as _, pointer.cast()) } != 0 {
        return None;
    }
    // SAFETY: zeroed before, and written by the kernel.
    let name = unsafe { (*pointer).ifr_name };
    let name: Vec<u8> = name
        .iter()
        .take_while(|byte| **byte != 0)
        .map(|byte| *byte as u8)
        .collect();
    String::from_utf8(name).ok()
}

/// Sets `SO_TXTIME`. Whether the kernel takes it.
pub fn set_transmission_times(fd: c_int, times: &crate::abi::SockTxtime) -> bool {
    // SAFETY: the value is there for the call, and as long as it is said to be.
    let result = unsafe {
        real::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_TXTIME,
            std::ptr::from_ref(times).cast(),
            size_of::<crate::abi::SockTxtime>() as socklen_t,
        )
    };
    result == 0
}

/// The hardware address of the Ethernet interface `index`, as the socket's network has it.
pub fn hardware_address(fd: c_int, index: u32) -> Option<[u8; 6]> {
    let mut request = MaybeUninit::<libc::ifreq>::zeroed();
    let pointer = request.as_mut_ptr();
    // SAFETY: `ifreq` is plain; the number is written to the field that SIOCGIFNAME reads.
    unsafe { (*pointer).ifr_ifru.ifru_ifindex = index as c_int };
    for request in [libc::SIOCGIFNAME, libc::SIOCGIFHWADDR] {
        // SAFETY: both read and write an `ifreq`; the second takes the name that the first gave.
        if unsafe { real::ioctl(fd, request as _, pointer.cast()) } != 0 {
            return None;
        }
    }
    // SAFETY: written by SIOCGIFHWADDR.
    let address = unsafe { (*pointer).ifr_ifru.ifru_hwaddr };
    if address.sa_family != libc::ARPHRD_ETHER {
        return None;
    }
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    Some(mac)
}

/// Whether the kernel lets this process give datagrams the priority. Asked of a socket like `fd` that is
/// made for the question, so that the program's keeps its own.
pub fn allows_priority(priority: u32) -> bool {
    // SAFETY: plain system call.
    let scratch = unsafe { real::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if scratch < 0 {
        return false;
    }
    // SAFETY: four bytes at `priority` are readable.
    let set = unsafe {
        real::setsockopt(
            scratch,
            libc::SOL_SOCKET,
            libc::SO_PRIORITY,
            (&raw const priority).cast(),
            size_of::<u32>() as socklen_t,
        )
    };
    // SAFETY: ours, made above.
    unsafe { real::close(scratch) };
    set == 0
}

/// Runs `start` with all signals blocked, which a thread that it starts inherits: signals are for the program's.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut former = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are written by the calls before they are read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), former.as_mut_ptr());
    }
    let result = start();
    // SAFETY: written by the first call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, former.as_ptr(), std::ptr::null_mut()) };
    result
}

/// Runs `write` so that a pipe or connection without a reader is an error of its alone: no SIGPIPE reaches the program.
pub fn without_broken_pipe(write: impl FnOnce() -> libc::ssize_t) {
    let mut broken = MaybeUninit::<libc::sigset_t>::uninit();
    let mut former = MaybeUninit::<libc::sigset_t>::uninit();
    let mut waiting = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are written by the calls before they are read; no time is waited.
    unsafe {
        libc::sigemptyset(broken.as_mut_ptr());
        libc::sigaddset(broken.as_mut_ptr(), libc::SIGPIPE);
        libc::sigemptyset(waiting.as_mut_ptr());
        libc::sigpending(waiting.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, broken.as_ptr(), former.as_mut_ptr());
        let was_waiting = libc::sigismember(waiting.as_ptr(), libc::SIGPIPE) == 1;
        if write() < 0 && !was_waiting {
            let now = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            libc::sigtimedwait(broken.as_ptr(), std::ptr::null_mut(), &now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, former.as_ptr(), std::ptr::null_mut());
    }
}

/// Whether a descriptor becomes readable within so many milliseconds.
///
/// # Errors
/// It is none, or of no use any more.
pub fn is_readable_within(fd: c_int, milliseconds: i32) -> std::io::Result<bool> {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    let ready = unsafe { real::poll(&mut entry, 1, milliseconds) };
    match ready {
        1 if entry.revents & libc::POLLIN != 0 => Ok(true),
        1 => Err(std::io::ErrorKind::NotConnected.into()),
        _ => Ok(false),
    }
}

/// Has the kernel ask a neighbour for its hardware address, or whether it is still there, which takes no capability: by a
/// datagram without content to the discard service (RFC 863), which goes no further than the link.
pub fn ask_neighbour(interface: u32, address: std::net::IpAddr) {
    const DISCARD: u16 = 9;
    let (family, level, hops, by) = match address {
        std::net::IpAddr::V4(_) => (
            libc::AF_INET,
            libc::SOL_IP,
            libc::IP_TTL,
            libc::IP_UNICAST_IF,
        ),
        std::net::IpAddr::V6(_) => (
            libc::AF_INET6,
            libc::SOL_IPV6,
            libc::IPV6_UNICAST_HOPS,
            libc::IPV6_UNICAST_IF,
        ),
    };
    let mut to = match address {
        std::net::IpAddr::V4(address) => crate::address::inet(address).to_vec(),
        std::net::IpAddr::V6(_) => crate::address::inet6(address).to_vec(),
    };
    to[2..4].copy_from_slice(&DISCARD.to_be_bytes());
    if family == libc::AF_INET6 {
        // Addresses of the link are of an interface.
        to[24..28].copy_from_slice(&interface.to_ne_bytes());
    }
    // SAFETY: plain system call.
    let fd = unsafe { real::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return;
    }
    let registered = Registered::new(fd);
    let options = [(hops, 1), (by, interface.to_be())];
    for (name, value) in options {
        // SAFETY: four bytes at `value` are readable.
        unsafe {
            real::setsockopt(
                fd,
                level,
                name,
                (&raw const value).cast(),
                size_of::<u32>() as socklen_t,
            )
        };
    }
    // Nothing depends on it: the kernel's table says what came of it.
    // SAFETY: the address is as long as it is said to be.
    unsafe {
        real::sendto(
            fd,
            std::ptr::null(),
            0,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            to.as_ptr().cast(),
            to.len() as socklen_t,
        );
    }
    drop(registered);
    // SAFETY: ours, made above.
    unsafe { real::close(fd) };
}

/// Whether the handlers of all signals that the program catches have calls that they interrupt taken up again
/// (`SA_RESTART`).
pub fn handlers_restart_calls() -> bool {
    (1..=libc::SIGRTMAX()).all(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the action is written, if there is such a signal; zero is one, too.
        let action = unsafe {
            libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
            action.assume_init()
        };
        matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
            || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// Waits. Whether a signal handler has interrupted it.
pub fn pause(nanoseconds: i64) -> bool {
    let time = libc::timespec {
        tv_sec: nanoseconds / 1_000_000_000,
        tv_nsec: nanoseconds % 1_000_000_000,
    };
    // SAFETY: the time is readable; no remainder is asked for.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) != 0 }
}

/// The same with these signals blocked, as waits take them; null: with those that are.
pub fn pause_with(nanoseconds: i64, mask: *const libc::sigset_t) -> bool {
    let time = libc::timespec {
        tv_sec: nanoseconds / 1_000_000_000,
        tv_nsec: nanoseconds % 1_000_000_000,
    };
    // SAFETY: no descriptors, a time that is readable, and the program's mask, which the kernel has read before.
    unsafe { real::ppoll(std::ptr::null_mut(), 0, &time, mask) != 0 }
}

/// The monotonic clock, in nanoseconds.
pub fn monotonic() -> i64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// A clock that every kernel has, in nanoseconds.
pub fn clock(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` outlives the call.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
