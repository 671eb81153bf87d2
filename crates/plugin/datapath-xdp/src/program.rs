//! Loading the XDP program and attaching it to an interface.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use aya::programs::Xdp;
use aya::{Ebpf, EbpfError, EbpfLoader};
use takt_datapath::OpenError;
use takt_xdp::{AttachMode, errno, told};

use crate::interface::Device;
use crate::maps::{MOST_PORTS, Maps, RINGS};
use crate::privilege;

/// The compiled `bpf/takt_xdp.bpf.c`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/takt_xdp.bpf.o"));

/// Which mode the operator wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Native where the driver can, otherwise generic.
    #[default]
    Auto,
    /// Native or not at all.
    Native,
    /// Generic even where the driver could do native.
    Generic,
}

/// The program, attached.
pub(crate) struct Attached {
    /// Keeps the program attached.
    pub(crate) link: OwnedFd,
    pub(crate) maps: Maps,
    pub(crate) mode: AttachMode,
    /// Why not native, where that was tried.
    pub(crate) fallback: Option<String>,
}

/// Loads the program with room for the sockets of all queues, and attaches it.
pub(crate) fn attach(device: &Device, mode: Mode) -> Result<Attached, OpenError> {
    let mut ebpf = EbpfLoader::new()
        .btf(None)
        .map_max_entries("takt_sockets", device.queues * MOST_PORTS * RINGS)
        .load(OBJECT)
        .map_err(|error| load_error(&error))?;
    let program = program(&mut ebpf)?;
    program.load().map_err(|error| match errno(&error) {
        Some(libc::EPERM) => privilege::refused("load the XDP program"),
        _ => unavailable("load the XDP program", &error),
    })?;
    let fd = program
        .fd()
        .map_err(|error| unavailable("load the XDP program", &error))?;

    let native = match mode {
        Mode::Generic => None,
        Mode::Auto | Mode::Native => Some(takt_xdp::attach(
            fd.as_fd(),
            device.ifindex,
            AttachMode::Native,
        )),
    };
    let (link, attached, fallback) = match (native, mode) {
        (Some(Ok(link)), _) => (link, AttachMode::Native, None),
        (Some(Err(error)), _) if mode == Mode::Native || !worth_falling_back(&error) => {
            return Err(attach_error(device, AttachMode::Native, error));
        }
        (refused, _) => {
            let link = takt_xdp::attach(fd.as_fd(), device.ifindex, AttachMode::Generic)
                .map_err(|error| attach_error(device, AttachMode::Generic, error))?;
            (
                link,
                AttachMode::Generic,
                refused
                    .and_then(Result::err)
                    .map(|error| explain_native(&error)),
            )
        }
    };
    Ok(Attached {
        link,
        maps: Maps::take(&mut ebpf)?,
        mode: attached,
        fallback,
    })
}

fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp, OpenError> {
    ebpf.program_mut("takt_xdp")
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| {
            OpenError::Unavailable(
                "the embedded object has no XDP program takt_xdp: rebuild".into(),
            )
        })
}

fn load_error(error: &EbpfError) -> OpenError {
    match errno(error) {
        Some(libc::EPERM) => privilege::refused("create BPF maps"),
        _ => unavailable("load the XDP program's object", error),
    }
}

/// Refusals that mean that the driver cannot, as opposed to that nobody may.
fn worth_falling_back(error: &io::Error) -> bool {
    !matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EPERM | libc::EEXIST | libc::ENODEV)
    )
}

fn explain_native(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "the driver has no native XDP".into(),
        Some(libc::ERANGE | libc::EINVAL) => format!(
            "the driver refuses native XDP as the interface is set up ({error}): MTU or offloads \
             may be in the way"
        ),
        Some(libc::ENOSPC) => {
            "native XDP needs at least as many receive queues here as the other end has \
                               transmit queues (`ethtool -L`)"
                .into()
        }
        _ => format!("native XDP refused: {error}"),
    }
}

fn attach_error(device: &Device, mode: AttachMode, error: io::Error) -> OpenError {
    let name = &device.name;
    match error.raw_os_error() {
        Some(libc::EPERM) => privilege::refused("attach an XDP program"),
        Some(libc::EBUSY | libc::EEXIST) => OpenError::Unavailable(format!(
            "{name} already carries an XDP program, of another Takt process or of another tool: \
             see `ip link show dev {name}`; stop its owner, or `ip link set dev {name} xdp off` \
             if it has none"
        )),
        _ if mode == AttachMode::Native => {
            OpenError::Unavailable(format!("native XDP on {name}: {}", explain_native(&error)))
        }
        _ => OpenError::System {
            action: format!("cannot attach the XDP program to {name} (BPF links need Linux 5.9)"),
            source: error,
        },
    }
}

/// An error of the loader library, with its causes.
pub(crate) fn unavailable(action: &str, error: &dyn std::error::Error) -> OpenError {
    OpenError::Unavailable(format!("cannot {action}: {}", told(error)))
}

/// The program by itself, without an interface, for fuzz targets.
#[cfg(fuzzing)]
#[allow(missing_docs)]
pub mod fuzzing {
    use std::net::SocketAddr;
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};

    use super::{EbpfLoader, Maps, OBJECT, io, program};
    use takt_datapath::OpenError;

    /// Loaded; it takes datagrams for one address, and there is no socket to hand them to.
    pub struct Loaded {
        program: OwnedFd,
        _maps: Maps,
    }

    /// `union bpf_attr` of the command, from the kernel's `linux/bpf.h`.
    #[repr(C)]
    #[derive(Default)]
    struct TestRun {
        program: u32,
        result: u32,
        size_in: u32,
        size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
        context: [u64; 3],
        rest: [u32; 4],
    }
    const BPF_PROG_TEST_RUN: libc::c_int = 10;

    impl Loaded {
        pub fn new(address: SocketAddr) -> Result<Self, OpenError> {
            let mut ebpf = EbpfLoader::new()
                .btf(None)
                .load(OBJECT)
                .map_err(|error| super::load_error(&error))?;
            let loaded = program(&mut ebpf)?;
            let unavailable = |error| super::unavailable("load the XDP program", &error);
            loaded.load().map_err(unavailable)?;
            let descriptor = loaded.fd().map_err(unavailable)?.as_fd();
            let system = |source| OpenError::System {
                action: "cannot fill the maps".into(),
                source,
            };
            let program = descriptor.try_clone_to_owned().map_err(system)?;
            let mut maps = Maps::take(&mut ebpf)?;
            if let Some(slot) = maps.add() {
                maps.accept(slot, address).map_err(system)?;
            }
            Ok(Self {
                program,
                _maps: maps,
            })
        }

        /// What the program does with a frame, and the frame afterwards.
        pub fn run(&self, frame: &[u8]) -> io::Result<(u32, Vec<u8>)> {
            let mut out = vec![0; frame.len() + 256];
            let mut run = TestRun {
                program: self.program.as_raw_fd() as u32,
                size_in: frame.len() as u32,
                size_out: out.len() as u32,
                data_in: frame.as_ptr() as u64,
                data_out: out.as_mut_ptr() as u64,
                repeat: 1,
                ..TestRun::default()
            };
            // SAFETY: the attributes are of the length told; both buffers are, and outlive the call.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_bpf,
                    BPF_PROG_TEST_RUN,
                    &raw mut run,
                    size_of::<TestRun>(),
                )
            };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
            out.truncate(run.size_out as usize);
            Ok((run.result, out))
        }
    }
}
