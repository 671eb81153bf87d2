//! Why there is no load management.

use std::io;

use takt_balance::Refused;
use takt_xdp::{errno, told};

/// Why flows cannot be balanced.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A parameter of the table.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Config(String),
    /// There is no such interface here.
    #[error("there is no interface {0:?} in this network namespace: see `ip link`")]
    NoInterface(String),
    /// An XDP program is there already.
    #[error(
        "{0} already carries an XDP program, of another Takt process or of another tool: see `ip link show dev {0}`; stop its owner, or \
         `ip link set dev {0} xdp off` if it has none"
    )]
    Taken(String),
    /// The driver cannot.
    #[error(
        "{interface} does not take a native XDP program ({source}), and flows keep their order by a native one alone: use an interface whose \
         driver has it, or a smaller MTU"
    )]
    NotNative {
        /// The interface.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A processor that there is not.
    #[error(
        "cannot make a queue to processor {cpu}: {told}; `lscpu -e` lists those that are online"
    )]
    Cpu {
        /// Its number.
        cpu: u32,
        /// What the kernel says.
        told: String,
    },
    /// It was there, and is not any more, or is in another network namespace.
    #[error(
        "{0} is gone, and what balanced there with it: start this again when there is such an interface (a service manager does, with \
         Restart=on-failure)"
    )]
    Gone(String),
    /// The kernel does not let us.
    #[error(
        "the kernel refuses to {action}: {needs} needed, in the initial user namespace and on a kernel that is not locked down; run as root"
    )]
    Privilege {
        /// What was tried.
        action: &'static str,
        /// The capabilities.
        needs: &'static str,
    },
    /// Nothing balances there.
    #[error("nothing balances flows at {0}: `takt balance run -i {0} …` does")]
    NotThere(String),
    /// What balances there is of another build.
    #[error(
        "what balances flows at {0} is of another version of takt: use the `takt` that it was started with"
    )]
    OtherLayout(String),
    /// The kernel's routing tables.
    #[error("cannot follow the routing tables: {0}")]
    Tables(String),
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
pub(crate) const TO_LOAD: &str = "CAP_NET_ADMIN and CAP_BPF are";
/// To find programs and maps by their numbers (`BPF_PROG_GET_FD_BY_ID` of bpf(2)).
pub(crate) const TO_FIND: &str = "CAP_SYS_ADMIN is";
/// To run threads of the kernel by `SCHED_FIFO` (sched_setscheduler(2)).
pub(crate) const TO_PRIORITISE: &str = "CAP_SYS_NICE is";

impl Error {
    /// For `map_err` of system calls.
    pub(crate) fn system(
        action: &'static str,
        needs: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM) => Self::Privilege { action, needs },
            _ => Self::System { action, source },
        }
    }

    /// For `map_err` of the loader library, which loads.
    pub(crate) fn load<E: std::error::Error + 'static>(
        action: &'static str,
    ) -> impl FnOnce(E) -> Self {
        Self::library(action, TO_LOAD)
    }

    /// For `map_err` of the loader library, which finds what others have loaded.
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
