//! What the kernel says of an interface beyond the routing tables: index, driver, receive queues.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use takt_datapath::OpenError;

/// `ETHTOOL_GDRVINFO` and `ETHTOOL_GCHANNELS` of `linux/ethtool.h`.
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// An interface of the calling thread's network namespace.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) ifindex: u32,
    /// Name of the driver, or "unknown".
    pub(crate) driver: String,
    /// Receive queues in use.
    pub(crate) queues: u32,
    /// The network namespace, as [`namespace`] names it.
    pub(crate) namespace: Namespace,
}

/// Identity of a network namespace: device and inode of its file.
pub(crate) type Namespace = (u64, u64);

impl Device {
    pub(crate) fn probe(name: &str) -> Result<Self, OpenError> {
        let system = |action: &str, source| OpenError::System {
            action: format!("cannot {action} {name}"),
            source,
        };
        let absent = || {
            OpenError::Unavailable(format!(
                "there is no interface {name:?} in this network namespace: see `ip link`"
            ))
        };
        let c_name = CString::new(name).map_err(|_| absent())?;
        // SAFETY: `c_name` is a string with its terminator.
        let ifindex = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        if ifindex == 0 || name.len() >= libc::IFNAMSIZ {
            return Err(absent());
        }
        let socket =
            control_socket().map_err(|source| system("create a socket to ask about", source))?;
        let namespace =
            namespace().map_err(|source| system("identify the network namespace of", source))?;
        Ok(Self {
            name: name.into(),
            ifindex,
            driver: driver(&socket, name).unwrap_or_else(|_| "unknown".into()),
            // A driver that does not tell has one.
            queues: queues(&socket, name).unwrap_or(1).max(1),
            namespace,
        })
    }
}

/// The calling thread's network namespace.
pub(crate) fn namespace() -> io::Result<Namespace> {
    let file = std::fs::metadata("/proc/thread-self/ns/net")?;
    Ok((file.dev(), file.ino()))
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

fn driver(socket: &OwnedFd, name: &str) -> io::Result<String> {
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    ethtool(socket, name, &mut info)?;
    let end = info
        .driver
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(info.driver.len());
    Ok(String::from_utf8_lossy(&info.driver[..end]).into_owned())
}

fn queues(socket: &OwnedFd, name: &str) -> io::Result<u32> {
    let mut channels = Channels {
        command: ETHTOOL_GCHANNELS,
        ..Channels::default()
    };
    ethtool(socket, name, &mut channels)?;
    Ok(channels.rx.saturating_add(channels.combined))
}

/// One `SIOCETHTOOL` call with one of the structures above, which begin with the command.
fn ethtool<T>(socket: &OwnedFd, name: &str, argument: &mut T) -> io::Result<()> {
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
