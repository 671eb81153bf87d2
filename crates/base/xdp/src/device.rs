//! What the kernel says of an interface beyond the routing tables: index, driver, receive queues.

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

/// One `SIOCETHTOOL` call with one of the structures above, which begin with the command.
fn ethtool<T>(name: &str, argument: &mut T) -> io::Result<()> {
    let socket = control_socket()?;
    // SAFETY: `ifreq` is plain integers, arrays and a pointer, for which zeros are values.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request
        .ifr_name
        .iter_mut()
        .zip(name.bytes().take(libc::IFNAMSIZ - 1))
    {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(argument).cast();
    // SAFETY: the descriptor is open; the request names a structure as long as its command makes
    // the kernel write.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
