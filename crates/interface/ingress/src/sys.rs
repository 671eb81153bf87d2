//! Calls of the kernel that the loader library does not make: attaching a program for longer than a process, and asking
//! for the driver of a device.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Of `enum bpf_cmd`.
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_DETACH: libc::c_long = 9;
const BPF_PROG_BIND_MAP: libc::c_long = 35;
/// `BPF_TCX_INGRESS` of `enum bpf_attach_type`, Linux 6.6.
const BPF_TCX_INGRESS: u32 = 46;
/// In front of all others.
const BPF_F_BEFORE: u32 = 1 << 3;

/// The part of `union bpf_attr` that both commands read.
#[repr(C)]
struct Attach {
    ifindex: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
    replaced: u32,
    relative: u32,
    revision: u64,
}

/// Attaches a program at the ingress of a device in front of all others. It stays when this process ends.
pub(crate) fn attach(ifindex: u32, program: BorrowedFd<'_>) -> io::Result<()> {
    change(BPF_PROG_ATTACH, ifindex, program, BPF_F_BEFORE)
}

/// Takes such a program away.
pub(crate) fn detach(ifindex: u32, program: BorrowedFd<'_>) -> io::Result<()> {
    change(BPF_PROG_DETACH, ifindex, program, 0)
}

/// Keeps a map as long as the program, which others find it by although it does not use it.
pub(crate) fn bind(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<()> {
    let flags = 0;
    let attributes: [u32; 3] = [program.as_raw_fd() as u32, map.as_raw_fd() as u32, flags];
    bpf(BPF_PROG_BIND_MAP, &attributes)
}

fn change(
    command: libc::c_long,
    ifindex: u32,
    program: BorrowedFd<'_>,
    flags: u32,
) -> io::Result<()> {
    let attributes = Attach {
        ifindex,
        program: program.as_raw_fd() as u32,
        attach_type: BPF_TCX_INGRESS,
        flags,
        replaced: 0,
        relative: 0,
        revision: 0,
    };
    bpf(command, &attributes)
}

/// bpf(2) with the part of `union bpf_attr` that a command reads.
fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<()> {
    // SAFETY: the attributes are plain words, readable for the length told; the kernel takes what is missing of the union as
    // zeros, and neither writes to them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The number of a device of this network namespace.
pub(crate) fn index(device: &str) -> io::Result<u32> {
    let name = CString::new(device)?;
    // SAFETY: a string that ends, and outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// `struct ethtool_drvinfo` of `linux/ethtool.h`, of which the driver is of interest.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}
const ETHTOOL_GDRVINFO: u32 = 3;
const SIOCETHTOOL: libc::c_ulong = 0x8946;

/// The name of a device's driver.
pub(crate) fn driver(device: &str) -> io::Result<String> {
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: all zero is a request for nothing.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut info).cast();
    // SAFETY: plain calls; the request and what it points to are as long as the kernel expects and outlive them, and the
    // descriptor is nobody else's.
    let result = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(socket);
        libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let driver = CStr::from_bytes_until_nul(&info.driver).unwrap_or_default();
    Ok(driver.to_string_lossy().into_owned())
}
