//! Attaching a program to an interface by a BPF link (Linux 5.9, `BPF_LINK_CREATE`).
//!
//! The kernel detaches the program when the last descriptor of the link is closed, so also when the
//! process is killed. Done here and not by the loader library because that falls back to an
//! attachment by netlink, which would outlive us.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `BPF_LINK_CREATE` of `enum bpf_cmd`.
const BPF_LINK_CREATE: libc::c_long = 28;
/// `BPF_XDP` of `enum bpf_attach_type`.
const BPF_XDP: u32 = 37;
/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` of `linux/if_link.h`.
const SKB_MODE: u32 = 1 << 1;
const DRV_MODE: u32 = 1 << 2;

/// Where in the kernel the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver.
    Native,
    /// In the network stack, after the driver: slower, works with every driver.
    Generic,
}

/// The part of `union bpf_attr` that `BPF_LINK_CREATE` reads for an interface.
#[repr(C)]
struct LinkCreate {
    program: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// Attaches `program`; it stays attached as long as the returned descriptor is open.
///
/// # Errors
/// The kernel's: EBUSY or EEXIST where there is a program already, EOPNOTSUPP where the driver cannot.
pub fn attach(program: BorrowedFd<'_>, ifindex: u32, mode: AttachMode) -> io::Result<OwnedFd> {
    let attributes = LinkCreate {
        program: program.as_raw_fd() as u32,
        ifindex,
        attach_type: BPF_XDP,
        flags: match mode {
            AttachMode::Native => DRV_MODE,
            AttachMode::Generic => SKB_MODE,
        },
    };
    // SAFETY: `attributes` is readable for the length given; the kernel takes what is missing of
    // the union as zeros.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_LINK_CREATE,
            &raw const attributes,
            size_of::<LinkCreate>(),
        )
    };
    match i32::try_from(result) {
        // SAFETY: the kernel has just made the descriptor and nobody else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
