//! Why launch times cannot be taken.

use std::io;

use takt_xdp::{errno, told};

/// Why launch times of a pod cannot be taken at its veth.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such device here.
    #[error(
        "there is no device {0} in this network namespace: name the host's end of the pod's veth, see `ip -d link show type veth`"
    )]
    NoDevice(String),
    /// The device is of another kind.
    #[error(
        "{device} is no veth (its driver: {driver:?}): launch times reach the host's end of a veth alone; for macvlan and the \
         host's network use `takt preload` or the channel API"
    )]
    NotVeth {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
    },
    /// There is no such interface here.
    #[error(
        "there is no interface {0} with a MAC address in this network namespace: name the one whose link has the schedule, see `ip link`"
    )]
    NoLink(String),
    /// The listener is not for that interface, which may have changed.
    #[error(
        "the listener's endpoint is not {0} as it is now (MAC address, MTU, any source address): start `takt uplink attach --device {0}` \
         again"
    )]
    OtherEndpoint(String),
    /// The runtime's own sockets cannot be told from others.
    #[error(
        "cannot ask the kernel for the runtime's sockets, to tell what they send from all else ({0}): it takes the kernel's module udp_diag \
         (`modprobe udp_diag`)"
    )]
    Sockets(io::Error),
    /// Somebody takes what leaves there already.
    #[error(
        "what leaves by {0} is taken already: end the other `takt uplink attach --device {0}` first"
    )]
    UplinkAttached(String),
    /// The kernel cannot tell the clocks of launch times apart, or attach the program.
    #[error(
        "this kernel cannot tell launch times of CLOCK_TAI from others ({0}): Linux 6.11 or later is needed; use `takt preload`"
    )]
    Kernel(String),
    /// The kernel does not let us.
    #[error(
        "the kernel refuses to {action}: {needs} needed, in the initial user namespace and on a kernel that is not locked down; run as root"
    )]
    Privilege {
        /// What was tried.
        action: &'static str,
        /// What it takes.
        needs: &'static str,
    },
    /// The pod's end of the veth cannot be reached, where times by `CLOCK_REALTIME` still are.
    #[error(
        "cannot reach the other end of {0}, without which times by CLOCK_REALTIME are lost ({1}): run it as root, where the pod's processes, or the \
         names of its network namespaces (/run/netns), can be seen"
    )]
    OtherEnd(String, String),
    /// The directory is none of the pod's programs.
    #[error(
        "cannot let the programs of {} name CLOCK_TAI ({told}): name the pod's directory below the mount of cgroup v2, such as \
         /sys/fs/cgroup/kubepods.slice/…, or leave it out, and without CAP_NET_ADMIN they name CLOCK_MONOTONIC", path.display()
    )]
    Cgroup {
        /// The directory.
        path: std::path::PathBuf,
        /// What is wrong with it.
        told: String,
    },
    /// Somebody takes launch times there already.
    #[error(
        "launch times at {0} are taken already: end the other `takt veth attach --device {0}` first"
    )]
    Attached(String),
    /// What has a launch time is dropped there, and the caller did not ask for that.
    #[error(
        "packets with a launch time that are not taken are dropped at {0}, as an earlier --required has it: give --required, or lift it by \
         `takt veth detach --device {0}`"
    )]
    Guarded(String),
    /// The device has gone, or somebody has taken our program away.
    #[error(
        "the program is not at {0} any more: the device has gone, or somebody has detached the program; attach again if the pod is there"
    )]
    Detached(String),
    /// There is no such tap device here.
    #[error(
        "there is no tap device {0} in this network namespace: `ip tuntap add dev {0} mode tap`, and `ip link set {0} master BRIDGE up` for the \
         network that the guest is to have"
    )]
    NoTap(String),
    /// Somebody has it.
    #[error(
        "the tap device {0} is in use: end the other process that has it, or name another device"
    )]
    TapBusy(String),
    /// More queue pairs than a guest can have, or none.
    #[error("{0} queue pairs: a guest has 1 to 16, name as many by --queue")]
    Queues(usize),
    /// A socket that cannot be made, or that somebody else answers at.
    #[error("{}: {told}", path.display())]
    Socket {
        /// Where.
        path: std::path::PathBuf,
        /// What is wrong.
        told: String,
    },
    /// Nobody serves a guest there.
    #[error("nobody serves a guest at {} ({told}): start `takt guest attach --vhost-user {}`", socket.display(), socket.display())]
    NoGuest {
        /// The VMM's socket.
        socket: std::path::PathBuf,
        /// The kernel's answer.
        told: String,
    },
    /// The runtime refuses.
    #[error(transparent)]
    Runtime(#[from] takt::Error),
    /// The loader library or the kernel.
    #[error("cannot {action}: {told}")]
    Load {
        /// What was tried.
        action: &'static str,
        /// What it says, with the causes.
        told: String,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What it takes to load and attach a program.
const TO_LOAD: &str = "CAP_NET_ADMIN and CAP_BPF are";
/// To find programs and maps by their numbers (`BPF_PROG_GET_FD_BY_ID` of bpf(2)).
const TO_FIND: &str = "CAP_NET_ADMIN and CAP_SYS_ADMIN are";

impl Error {
    /// For `map_err` of system calls.
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM) => Self::Privilege {
                action,
                needs: TO_LOAD,
            },
            _ => Self::System { action, source },
        }
    }

    /// For `map_err` of the loader library, which loads.
    pub(crate) fn load<E: std::error::Error + 'static>(
        action: &'static str,
    ) -> impl FnOnce(E) -> Self {
        Self::library(action, TO_LOAD)
    }

    /// For `map_err` of the loader library, which finds what is loaded.
    pub(crate) fn find<E: std::error::Error + 'static>(
        action: &'static str,
    ) -> impl FnOnce(E) -> Self {
        Self::library(action, TO_FIND)
    }

    fn library<E: std::error::Error + 'static>(
        action: &'static str,
        needs: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |error| {
            if errno(&error) == Some(libc::EPERM) {
                return Self::Privilege { action, needs };
            }
            let told = told(&error);
            Self::Load { action, told }
        }
    }
}
