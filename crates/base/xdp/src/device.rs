//! What the kernel says of an interface beyond the routing tables: index, hardware, MTU, driver, receive queues, stamps.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// `ETHTOOL_GDRVINFO` and `ETHTOOL_GCHANNELS` of `linux/ethtool.h`.
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// Identity of a network namespace: device and inode of its file.
pub type Namespace = (u64, u64);

/// The calling thread's network namespace.
///
/// # Errors
/// Without `/proc`.
pub fn namespace() -> io::Result<Namespace> {
    let file = std::fs::metadata("/proc/thread-self/ns/net")?;
    Ok((file.dev(), file.ino()))
}

/// The index of an interface of the calling thread's network namespace, if there is one of that name.
pub fn index(name: &str) -> Option<u32> {
    let c_name = CString::new(name).ok()?;
    // SAFETY: `c_name` is a string with its terminator.
    let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
    (index != 0 && name.len() < libc::IFNAMSIZ).then_some(index)
}

/// Whether the calling thread's network namespace has an interface of this index, whatever its name.
pub fn is_there(index: u32) -> bool {
    let mut name = [0; libc::IFNAMSIZ];
    // SAFETY: there is room for any name with its terminator.
    !unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null()
}

fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: plain call; a descriptor that is not negative is new and owned by nobody else.
    match unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: as above.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// The name of an interface's driver.
///
/// # Errors
/// The kernel's; some interfaces have none.
pub fn driver(name: &str) -> io::Result<String> {
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    ethtool(name, &mut info)?;
    let end = info
        .driver
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(info.driver.len());
    Ok(String::from_utf8_lossy(&info.driver[..end]).into_owned())
}

/// How many receive queues of an interface are in use.
///
/// # Errors
/// The kernel's; some drivers do not tell.
pub fn receive_queues(name: &str) -> io::Result<u32> {
    let mut channels = Channels {
        command: ETHTOOL_GCHANNELS,
        ..Channels::default()
    };
    ethtool(name, &mut channels)?;
    Ok(channels.rx.saturating_add(channels.combined))
}

/// What hardware an interface is, by ARPHRD_*.
///
/// # Errors
/// The kernel's.
pub fn hardware_kind(name: &str) -> io::Result<u16> {
    let answer = ask(name, libc::SIOCGIFHWADDR, |_| {})?;
    // SAFETY: the answer to this request is an address.
    Ok(unsafe { answer.ifru_hwaddr.sa_family })
}

/// The MTU of an interface.
///
/// # Errors
/// The kernel's.
pub fn mtu(name: &str) -> io::Result<u32> {
    let answer = ask(name, libc::SIOCGIFMTU, |_| {})?;
    // SAFETY: the answer to this request is a number.
    Ok(u32::try_from(unsafe { answer.ifru_mtu }).unwrap_or(0))
}

/// Has an interface stamp all packets that it receives, by its own clock; what it does with those that it sends stays. It stays so,
/// as `hwstamp_ctl -r 1` leaves it.
///
/// # Errors
/// The kernel's; few devices can.
pub fn stamp_received(name: &str) -> io::Result<()> {
    // SAFETY: integers, for which zeros are values.
    let mut config: libc::hwtstamp_config = unsafe { std::mem::zeroed() };
    let all = libc::HWTSTAMP_FILTER_ALL as libc::c_int;
    let known = pass(name, libc::SIOCGHWTSTAMP, &mut config).is_ok();
    if known && config.rx_filter == all {
        return Ok(());
    }
    config.rx_filter = all;
    pass(name, libc::SIOCSHWTSTAMP, &mut config)
}

/// One `SIOCETHTOOL` call with one of the structures above, which begin with the command.
fn ethtool<T>(name: &str, argument: &mut T) -> io::Result<()> {
    pass(name, libc::SIOCETHTOOL, argument)
}

/// A request about an interface with a structure that the kernel reads and writes.
fn pass<T>(name: &str, request: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    let argument = std::ptr::from_mut(argument).cast();
    ask(name, request, |about| about.ifru_data = argument).map(drop)
}

/// A request about an interface (netdevice(7)).
fn ask(
    name: &str,
    request: libc::c_ulong,
    fill: impl FnOnce(&mut libc::__c_anonymous_ifr_ifru),
) -> io::Result<libc::__c_anonymous_ifr_ifru> {
    let socket = control_socket()?;
    // SAFETY: `ifreq` is plain integers, arrays and a pointer, for which zeros are values.
    let mut about: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in about
        .ifr_name
        .iter_mut()
        .zip(name.bytes().take(libc::IFNAMSIZ - 1))
    {
        *to = from as libc::c_char;
    }
    fill(&mut about.ifr_ifru);
    // SAFETY: the descriptor is open; the request is as large as any answer, and names a structure as long as its command
    // makes the kernel write.
    match unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &raw mut about) } {
        0 => Ok(about.ifr_ifru),
        _ => Err(io::Error::last_os_error()),
    }
}
