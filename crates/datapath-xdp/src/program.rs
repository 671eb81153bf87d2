//! The XDP program of an interface: loaded and attached once per process, shared by the ports on it.
//!
//! A port claims its queues and its UDP port here; the program sends datagrams for claimed ports to the socket
//! of the queue they arrived on and leaves all else to the kernel. The last user gone, the link closes and the
//! kernel detaches the program; the same happens when the process dies.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use aya::maps::{HashMap as BpfHashMap, MapData, MapError, PerCpuArray, XskMap};
use aya::programs::Xdp;
use aya::{Ebpf, EbpfError, EbpfLoader};
use takt_datapath::OpenError;

use crate::config::ZeroCopy;
use crate::interface::{Device, Namespace};
use crate::link::{self, AttachMode};
use crate::port::open_error;
use crate::privilege;
use crate::reservation::Reservation;
use crate::socket::{Socket, SocketError, SocketOptions};
use crate::umem::RX_CHUNK_CAPACITY;

/// The compiled `bpf/takt_xdp.bpf.c`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/takt_xdp.bpf.o"));

/// Bytes that a frame has around an IP packet: Ethernet header and two VLAN tags.
const FRAME_OVERHEAD: usize = 14 + 2 * 4;

/// Every attachment of this process that is still in use.
static ATTACHMENTS: Mutex<Vec<Weak<Attachment>>> = Mutex::new(Vec::new());

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

/// Frames that the program has seen since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCounters {
    /// Handed to an AF_XDP socket.
    pub redirected: u64,
    /// Left to the kernel.
    pub passed: u64,
}

/// What sockets on an interface can do.
#[derive(Clone, Debug)]
pub(crate) struct Traits {
    /// Bind in zero-copy mode.
    pub(crate) zero_copy: bool,
    /// Why not.
    pub(crate) no_zero_copy: Option<String>,
    /// Frames may span several chunks.
    pub(crate) multi_buffer: bool,
}

/// The program on one interface.
#[derive(Debug)]
pub(crate) struct Attachment {
    namespace: Namespace,
    ifindex: u32,
    mode: AttachMode,
    /// Why the mode is not native although that was possible to ask for.
    fallback: Option<String>,
    maps: Mutex<Maps>,
    /// What was found out for each wish, since a queue in use cannot be tried again.
    traits: Mutex<Vec<(ZeroCopy, Traits)>>,
    /// Keeps the program attached.
    _link: OwnedFd,
}

/// The program's maps with what is in them.
struct Maps {
    ports: BpfHashMap<MapData, u16, u8>,
    sockets: XskMap<MapData>,
    counters: PerCpuArray<MapData, u64>,
    claimed_queues: Vec<u32>,
    reservations: Vec<Weak<Reservation>>,
}

impl std::fmt::Debug for Maps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Maps")
            .field("claimed_queues", &self.claimed_queues)
            .finish_non_exhaustive()
    }
}

/// A port's claims on an attachment; given back on drop.
#[derive(Debug)]
pub(crate) struct Claim {
    attachment: Arc<Attachment>,
    queues: Vec<u32>,
    reservation: Option<Arc<Reservation>>,
}

impl Attachment {
    /// The attachment of `device`, made if this process has none there.
    pub(crate) fn get(device: &Device, mode: Mode) -> Result<Arc<Self>, OpenError> {
        let mut attachments = ATTACHMENTS.lock().unwrap_or_else(PoisonError::into_inner);
        attachments.retain(|attachment| attachment.strong_count() > 0);
        let present = attachments
            .iter()
            .filter_map(Weak::upgrade)
            .find(|present| {
                present.namespace == device.namespace && present.ifindex == device.ifindex
            });
        if let Some(present) = present {
            let wanted = match mode {
                Mode::Auto => present.mode,
                Mode::Native => AttachMode::Native,
                Mode::Generic => AttachMode::Generic,
            };
            if wanted != present.mode {
                return Err(OpenError::Unavailable(format!(
                    "this process already runs its XDP program on {} in {:?} mode: choose the same mode or auto",
                    device.name, present.mode
                )));
            }
            return Ok(present);
        }
        let made = Arc::new(Self::make(device, mode)?);
        attachments.push(Arc::downgrade(&made));
        Ok(made)
    }

    fn make(device: &Device, mode: Mode) -> Result<Self, OpenError> {
        let mut ebpf = EbpfLoader::new()
            .btf(None)
            .map_max_entries("takt_sockets", device.queues)
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
            Mode::Auto | Mode::Native => {
                Some(link::attach(fd.as_fd(), device.ifindex, AttachMode::Native))
            }
        };
        let (link, attached, fallback) = match (native, mode) {
            (Some(Ok(link)), _) => (link, AttachMode::Native, None),
            (Some(Err(error)), Mode::Native) => {
                return Err(attach_error(device, AttachMode::Native, error));
            }
            (Some(Err(error)), _) if !worth_falling_back(&error) => {
                return Err(attach_error(device, AttachMode::Native, error));
            }
            (refused, _) => {
                let link = link::attach(fd.as_fd(), device.ifindex, AttachMode::Generic)
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
        let maps = Maps::take(&mut ebpf)?;
        Ok(Self {
            namespace: device.namespace,
            ifindex: device.ifindex,
            mode: attached,
            fallback,
            maps: Mutex::new(maps),
            traits: Mutex::new(Vec::new()),
            _link: link,
        })
    }

    pub(crate) fn mode(&self) -> AttachMode {
        self.mode
    }

    /// What sockets can do here: tried out once, by a socket on `queue` that is closed again.
    pub(crate) fn traits(
        &self,
        queue: u32,
        wanted: ZeroCopy,
        mtu: u32,
    ) -> Result<Traits, OpenError> {
        let mut known = self.traits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, traits)) = known.iter().find(|(wish, _)| *wish == wanted) {
            return Ok(traits.clone());
        }
        let traits = self.try_traits(queue, wanted, mtu)?;
        known.push((wanted, traits.clone()));
        Ok(traits)
    }

    fn try_traits(&self, queue: u32, wanted: ZeroCopy, mtu: u32) -> Result<Traits, OpenError> {
        let needs_chunks = mtu as usize + FRAME_OVERHEAD > RX_CHUNK_CAPACITY;
        let no_zero_copy = match (wanted, self.mode) {
            (ZeroCopy::Never, _) => "as asked for".to_owned(),
            (_, AttachMode::Generic) => "zero copy needs native XDP".to_owned(),
            _ => match self.try_socket(queue, true, needs_chunks)? {
                Ok(()) => {
                    return Ok(Traits {
                        zero_copy: true,
                        no_zero_copy: None,
                        multi_buffer: needs_chunks,
                    });
                }
                Err(error) => format!("the driver has no zero copy: {error}"),
            },
        };
        if wanted == ZeroCopy::Required {
            return Err(OpenError::Unavailable(format!("zero copy: {no_zero_copy}")));
        }
        // Always where the kernel has it, since the MTU may be raised later.
        let multi_buffer = match self.try_socket(queue, false, true)? {
            Ok(()) => true,
            Err(error) if needs_chunks => {
                return Err(OpenError::Unavailable(format!(
                    "an MTU of {mtu} needs frames of several chunks (Linux 6.6): {error}"
                )));
            }
            Err(_) => false,
        };
        Ok(Traits {
            zero_copy: false,
            no_zero_copy: Some(no_zero_copy),
            multi_buffer,
        })
    }

    /// Opens a small socket and closes it. The outer error is one that no other choice of flags would help.
    fn try_socket(
        &self,
        queue: u32,
        zero_copy: bool,
        multi_buffer: bool,
    ) -> Result<Result<(), SocketError>, OpenError> {
        let options = SocketOptions {
            ifindex: self.ifindex,
            queue,
            rx_ring: 64,
            rx_chunks: 64,
            tx_chunks: 64,
            zero_copy,
            multi_buffer,
            busy_poll: None,
        };
        match Socket::open(&options) {
            Ok(_) => Ok(Ok(())),
            Err(error) if error.is_refusal_of_flags() => Ok(Err(error)),
            Err(error) => Err(open_error(error, &format!("queue {queue}"))),
        }
    }

    /// Why native mode was not to be had.
    pub(crate) fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Claims `queues` for one port, so that nobody in this process asks the kernel for them meanwhile.
    pub(crate) fn claim(self: &Arc<Self>, queues: &[u32]) -> Result<Claim, u32> {
        let mut maps = self.maps();
        if let Some(taken) = queues
            .iter()
            .find(|queue| maps.claimed_queues.contains(queue))
        {
            return Err(*taken);
        }
        maps.claimed_queues.extend_from_slice(queues);
        Ok(Claim {
            attachment: Arc::clone(self),
            queues: queues.to_vec(),
            reservation: None,
        })
    }

    pub(crate) fn counters(&self) -> io::Result<ProgramCounters> {
        let maps = self.maps();
        let sum = |index| {
            let values = maps.counters.get(&index, 0).map_err(map_error)?;
            Ok::<_, io::Error>(values.iter().sum())
        };
        Ok(ProgramCounters {
            redirected: sum(0)?,
            passed: sum(1)?,
        })
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        // What the maps hold stays consistent whatever panicked meanwhile: each call changes one thing.
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Maps {
    fn take(ebpf: &mut Ebpf) -> Result<Self, OpenError> {
        let mut take = |name: &str| {
            ebpf.take_map(name).ok_or_else(|| {
                OpenError::Unavailable(format!("the XDP program has no map {name}: rebuild"))
            })
        };
        let wrong = |error: MapError| unavailable("use a map of the XDP program", &error);
        Ok(Self {
            ports: take("takt_ports")?.try_into().map_err(wrong)?,
            sockets: take("takt_sockets")?.try_into().map_err(wrong)?,
            counters: take("takt_counters")?.try_into().map_err(wrong)?,
            claimed_queues: Vec::new(),
            reservations: Vec::new(),
        })
    }
}

impl Claim {
    /// Has datagrams that arrive on `queue`, one of the claimed, go to `socket`.
    pub(crate) fn steer(&self, queue: u32, socket: &impl AsFd) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        self.attachment
            .maps()
            .sockets
            .set(queue, socket.as_fd().as_raw_fd(), 0)
            .map_err(map_error)
    }

    /// Reserves the address with the kernel, or shares the reservation of another port of this process, and has
    /// the program take datagrams for its UDP port.
    pub(crate) fn reserve(
        &mut self,
        bind: std::net::SocketAddr,
    ) -> Result<std::net::SocketAddr, OpenError> {
        let mut maps = self.attachment.maps();
        maps.reservations
            .retain(|reservation| reservation.strong_count() > 0);
        let shared = maps
            .reservations
            .iter()
            .filter_map(Weak::upgrade)
            .find(|shared| bind.port() != 0 && shared.local() == bind);
        let reservation = match shared {
            Some(shared) => shared,
            None => {
                let made = Arc::new(Reservation::new(bind)?);
                maps.reservations.push(Arc::downgrade(&made));
                made
            }
        };
        let local = reservation.local();
        maps.ports
            .insert(local.port().to_be(), 1, 0)
            .map_err(|error| OpenError::System {
                action: format!(
                    "cannot enter UDP port {} into the XDP program's map",
                    local.port()
                ),
                source: map_error(error),
            })?;
        self.reservation = Some(reservation);
        Ok(local)
    }

    /// Whether another port of this process holds the address.
    pub(crate) fn is_reserved(attachment: &Attachment, bind: std::net::SocketAddr) -> bool {
        let maps = attachment.maps();
        maps.reservations
            .iter()
            .filter_map(Weak::upgrade)
            .any(|held| held.local() == bind)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut maps = self.attachment.maps();
        // Failing to remove an entry means that it is not there: a socket that closes leaves the map by itself.
        for queue in &self.queues {
            let _ = maps.sockets.unset(*queue);
        }
        maps.claimed_queues
            .retain(|queue| !self.queues.contains(queue));
        if let Some(reservation) = self.reservation.take() {
            let port = reservation.local().port();
            drop(reservation);
            maps.reservations
                .retain(|reservation| reservation.strong_count() > 0);
            if !maps
                .reservations
                .iter()
                .filter_map(Weak::upgrade)
                .any(|other| other.local().port() == port)
            {
                let _ = maps.ports.remove(&port.to_be());
            }
        }
    }
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
        Some(libc::ERANGE | libc::EINVAL) => {
            format!("the driver refuses native XDP as the interface is set up ({error}): MTU or offloads may be in the way")
        }
        Some(libc::ENOSPC) => {
            "native XDP needs at least as many receive queues here as the other end has transmit queues \
             (`ethtool -L`)"
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
            "{name} already carries an XDP program, of another Takt process or of another tool: see \
             `ip link show dev {name}`; stop its owner, or `ip link set dev {name} xdp off` if it has none"
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

fn unavailable(action: &str, error: &dyn std::error::Error) -> OpenError {
    let mut text = format!("cannot {action}: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    OpenError::Unavailable(text)
}

/// The errno at the bottom of an error of the loader library.
fn errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.raw_os_error();
        }
        next = error.source();
    }
    None
}

fn map_error(error: MapError) -> io::Error {
    match errno(&error) {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::other(error),
    }
}
