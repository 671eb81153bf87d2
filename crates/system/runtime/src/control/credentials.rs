//! Who is at the other end of a Unix socket: what the kernel noted when it was connected.

use std::io;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process that has connected.
pub struct Credentials {
    /// Its number here; 0 for one outside this process's PID namespace.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Becomes readable when it dies. None where the kernel has none to give: Linux before 6.5 for a process
    /// outside this PID namespace, and of a process that has died already.
    pub process: Option<OwnedFd>,
}

impl Credentials {
    /// Of whoever connected `socket`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(socket: &OwnedFd) -> io::Result<Self> {
        let peer = getsockopt(socket, sockopt::PeerCredentials)?;
        let process = match getsockopt(socket, sockopt::PeerPidfd) {
            Ok(process) => Some(process),
            // Before 6.5: by its number, which nobody else can have got while the socket is so young.
            Err(Errno::ENOPROTOOPT) => {
                Pid::from_raw(peer.pid()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            }
            // It has died: its socket says so as well.
            Err(Errno::ESRCH | Errno::EINVAL | Errno::ENODATA) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            pid: peer.pid(),
            uid: peer.uid(),
            process,
        })
    }
}
