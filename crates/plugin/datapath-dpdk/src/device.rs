//! A device of DPDK, shared by the ports of this process: its queues, its memory, and who gets which datagram.
//!
//! A queue is polled by one port at a time, which hands what is for others to their inboxes. Nobody waits for a
//! queue: who finds it taken goes on with what it has.

use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use takt_datapath::OpenError;
use takt_datapath::stack::{Interface, InterfaceState, NextHops, StackError};
use takt_wire::ethernet::MacAddress;

use crate::config::DpdkConfig;
use crate::eal;
use crate::ffi::{self, Packet, Pool, Traits};
use crate::kernel::{self, PacketSocket};
use crate::neighbours::Neighbours;

/// Most ports on a device.
pub(crate) const MOST_PORTS: usize = kernel::MOST_PORTS;
/// Datagrams of a port that other ports have found.
const INBOX: usize = 256;
/// Frames that a port reserves or has queued.
pub(crate) const FRAMES_OF_PORT: usize = 256;
/// Ports that there is memory for to use all their frames at a time.
const FRUGAL_PORTS: u32 = 8;
/// Buffers in the cache of a thread.
const CACHE: u32 = 32;
/// What frames have beside an IP packet: header and two tags.
const FRAME_OVERHEAD: usize = 14 + 8;

/// The version whose memif driver was tested.
const TESTED: &str = "22.11";

/// Nobody has the UDP port.
const NOBODY: u16 = 0;

/// The devices of this process by their names.
static DEVICES: Mutex<Option<HashMap<String, Weak<Device>>>> = Mutex::new(None);

/// A packet in an inbox: DPDK's buffers may be used by any thread, one at a time.
struct Parcel(Packet);

// SAFETY: a buffer belongs to whoever has the parcel; nothing in it is a thread's own.
unsafe impl Send for Parcel {}

/// A receive queue and the transmit queue of its number.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    receiving: AtomicBool,
    sending: AtomicBool,
}

/// Uses one half of a queue, alone, until it is dropped.
pub(crate) struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Pairs with the Acquire of the next turn.
        self.0.store(false, Ordering::Release);
    }
}

fn turn(taken: &AtomicBool) -> Option<Turn<'_>> {
    (!taken.load(Ordering::Relaxed) && !taken.swap(true, Ordering::Acquire)).then(|| Turn(taken))
}

impl Queue {
    #[inline]
    pub(crate) fn receive(&self) -> Option<Turn<'_>> {
        turn(&self.receiving)
    }

    #[inline]
    pub(crate) fn send(&self) -> Option<Turn<'_>> {
        turn(&self.sending)
    }
}

/// What others put down for a port.
pub(crate) struct Inbox {
    parcels: ArrayQueue<Parcel>,
    /// Something has been put down since the owner has last looked.
    rung: AtomicBool,
    bell: OwnedFd,
    /// Datagrams that did not fit.
    pub(crate) dropped: AtomicU64,
    /// What the device has lost, as far as it is told to this port.
    pub(crate) lost_received: AtomicU64,
    pub(crate) lost_sent: AtomicU64,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("length", &self.parcels.len())
            .finish_non_exhaustive()
    }
}

impl Inbox {
    fn new() -> std::io::Result<Self> {
        // SAFETY: plain call; a descriptor that is not negative is new and owned by nobody else.
        let bell = match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } {
            -1 => return Err(std::io::Error::last_os_error()),
            // SAFETY: as above.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        Ok(Self {
            parcels: ArrayQueue::new(INBOX),
            rung: AtomicBool::new(false),
            bell,
            dropped: AtomicU64::new(0),
            lost_received: AtomicU64::new(0),
            lost_sent: AtomicU64::new(0),
        })
    }

    /// Puts a packet down for the owner. Gives it back where there is no room.
    fn put(&self, packet: Packet) -> Result<(), Packet> {
        if let Err(Parcel(packet)) = self.parcels.push(Parcel(packet)) {
            // Relaxed: a number for people.
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Err(packet);
        }
        // The queue's own ordering comes first: who finds the bell rung finds the parcel.
        if !self.rung.swap(true, Ordering::AcqRel) {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: eight bytes, as an eventfd takes them. It cannot be full.
            unsafe { libc::write(self.bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
        Ok(())
    }

    /// Takes a packet. The bell is silenced when there is none.
    #[inline]
    pub(crate) fn take(&self) -> Option<Packet> {
        if let Some(Parcel(packet)) = self.parcels.pop() {
            return Some(packet);
        }
        if !self.rung.load(Ordering::Acquire) {
            return None;
        }
        let mut count = [0; 8];
        // SAFETY: eight bytes, as an eventfd gives them.
        let read = unsafe {
            libc::read(
                self.bell.as_raw_fd(),
                count.as_mut_ptr().cast(),
                count.len(),
            )
        };
        // Nothing to read: who has put a parcel down is about to ring, and the mark stays until then. Otherwise
        // whoever puts one down from here on rings again, and what was put down before is found below.
        if read > 0 {
            self.rung.swap(false, Ordering::AcqRel);
        }
        self.parcels.pop().map(|Parcel(packet)| packet)
    }

    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Who keeps addresses, routes and neighbours.
#[derive(Debug)]
pub(crate) enum Stack {
    /// The kernel, with the interface that the device is on.
    Kernel {
        next_hops: Arc<NextHops>,
        interface: Beneath,
        ifindex: u32,
    },
    /// This device itself.
    Own(Own),
}

/// The kernel's interface that a device is on.
#[derive(Debug)]
pub(crate) struct Beneath {
    interface: Interface,
    /// It has left the namespace at some time, which has unbound the device's sockets for good, be it there again or another
    /// of its index.
    gone: Arc<AtomicBool>,
}

impl Beneath {
    fn watch(next_hops: &NextHops, ifindex: u32) -> Result<Self, StackError> {
        let gone = Arc::new(AtomicBool::new(false));
        let left = Arc::clone(&gone);
        let interface = next_hops.on_interface_change(ifindex, move |state| {
            if state.is_none() {
                // Release: pairs with the Acquire of `state`.
                left.store(true, Ordering::Release);
            }
        })?;
        if interface.state().is_none() {
            // Since the device was attached.
            gone.store(true, Ordering::Release);
        }
        Ok(Self { interface, gone })
    }

    /// Its present state, `None` when it is gone, be it there again or not.
    pub(crate) fn state(&self) -> Option<Arc<InterfaceState>> {
        let state = self.interface.state();
        state.filter(|_| !self.gone.load(Ordering::Acquire))
    }
}

/// The neighbours of a device without a kernel interface.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) table: Mutex<Neighbours>,
    /// Raised after each change of a neighbour or of the link.
    pub(crate) generation: AtomicU64,
    /// Frames can leave.
    pub(crate) up: AtomicBool,
    /// What DPDK says of the link, as `takt_dpdk_link` does.
    pub(crate) link: AtomicI32,
}

impl Own {
    pub(crate) fn changed(&self) {
        // Release: pairs with the Acquire of who compares generations.
        self.generation.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Neighbours> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device of DPDK that runs.
pub(crate) struct Device {
    pub(crate) config: DpdkConfig,
    pub(crate) port: u16,
    pub(crate) traits: Traits,
    pub(crate) queues: Vec<Queue>,
    pub(crate) pool: *mut Pool,
    /// Longest frame that a buffer holds.
    pub(crate) longest_frame: usize,
    pub(crate) stack: Stack,
    pub(crate) started: Instant,
    /// A frame of DPDK's clock in which the device is looked after.
    pub(crate) beat: u64,
    environment: eal::Environment,
    /// The device's own sockets, where it has any.
    pub(crate) sockets: Vec<PacketSocket>,
    inboxes: [OnceLock<Inbox>; MOST_PORTS],
    /// A bit for each inbox that a port has.
    taken: AtomicU32,
    /// By UDP port: the inbox of its owner and 1, or [`NOBODY`].
    owners: Box<[AtomicU16]>,
    losses: Mutex<ffi::Losses>,
    /// Opening and closing ports, one at a time.
    opening: Mutex<()>,
}

// SAFETY: the pool may be used by any thread, as DPDK's pools of several producers and consumers may; all else
// is Send by itself.
unsafe impl Send for Device {}
// SAFETY: as above; a queue is used by who has its turn.
unsafe impl Sync for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("config", &self.config)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// An attached port of DPDK, detached again when this is dropped.
struct Attached(u16);

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: the port was attached, and nobody uses it any more.
        unsafe { ffi::takt_dpdk_detach(self.0) }
    }
}

/// A pool, freed again when this is dropped.
struct Memory(*mut Pool);

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nobody has a buffer of it any more.
        unsafe { ffi::takt_dpdk_free_pool(self.0) }
    }
}

impl Device {
    /// The device that the configuration names: the one that runs, or a new one.
    pub(crate) fn get(config: &DpdkConfig) -> Result<Arc<Self>, OpenError> {
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let devices = devices.get_or_insert_with(HashMap::new);
        devices.retain(|_, device| device.strong_count() > 0);
        if let Some(device) = devices.get(config.device_name()).and_then(Weak::upgrade) {
            if device.config != *config {
                return Err(OpenError::Unavailable(format!(
                    "{} is in use with other options in this process: name another device, or give both the \
                     same options",
                    config.device_name()
                )));
            }
            return Ok(device);
        }
        let device = Arc::new(Self::open(config)?);
        devices.insert(config.device_name().into(), Arc::downgrade(&device));
        Ok(device)
    }

    fn open(config: &DpdkConfig) -> Result<Self, OpenError> {
        let text = |text: &str| {
            CString::new(text).map_err(|_| OpenError::Unavailable("a text with a zero byte".into()))
        };
        let environment = eal::start(config)?;
        let unavailable = |action: &str, error: i32| {
            OpenError::Unavailable(format!(
                "cannot {action} {}: {}{}",
                config.device,
                eal::errno_text(error),
                eal::said()
            ))
        };
        // What was said before is about something else.
        eal::said();
        let interface = match config.argument("iface") {
            Some(name) if config.device.starts_with("net_af_") => {
                Some(kernel::interface_index(name)?)
            }
            _ => None,
        };
        let before = interface.map(kernel::packet_sockets).unwrap_or_default();
        let (device, name) = (text(&config.device)?, text(config.device_name())?);
        // SAFETY: two strings with their ends.
        let port = match unsafe { ffi::takt_dpdk_attach(device.as_ptr(), name.as_ptr()) } {
            port @ 0.. => port as u16,
            error => return Err(attach_error(config, error)),
        };
        let attached = Attached(port);
        let sockets = match interface {
            Some(index) => kernel::packet_sockets(index)
                .into_iter()
                .filter(|fd| !before.contains(fd))
                .map(PacketSocket::of)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|source| OpenError::System {
                    action: "cannot duplicate the device's socket".into(),
                    source,
                })?,
            None => Vec::new(),
        };
        let mut traits = Traits::default();
        // SAFETY: a structure to be written, of the shim's own layout.
        let error = unsafe { ffi::takt_dpdk_traits(port, &raw mut traits) };
        if error != 0 {
            return Err(unavailable("ask about", error));
        }
        if config.queues > traits.queues {
            return Err(OpenError::Unavailable(format!(
                "queues = {}, but {} has {}",
                config.queues, config.device, traits.queues
            )));
        }
        // Frames of a ring are as long as its slots, whatever is in them.
        let slot = config
            .argument("framesz")
            .and_then(|size| size.parse().ok());
        let slot = slot.unwrap_or(2048).min(16_384_usize);
        let room = slot.max((usize::from(config.mtu) + FRAME_OVERHEAD).next_multiple_of(64));
        (traits.rx_descriptors, traits.tx_descriptors) = (config.descriptors, config.descriptors);
        let memory = Memory(pool(config, room as u16)?);
        let accepts = config.device_name().starts_with("net_virtio_user")
            && config.argument("server") == Some("1");
        // SAFETY: the port is attached and not started, the pool is a pool, the structure is the shim's.
        let error = unsafe {
            ffi::takt_dpdk_start(
                port,
                config.queues,
                config.mtu,
                accepts.into(),
                memory.0,
                &raw mut traits,
            )
        };
        if error != 0 {
            return Err(unavailable("start", error));
        }
        let stack = match config.kernel_interface() {
            Some(_) => kernel_stack(interface.unwrap_or_default())?,
            None => Stack::Own(Own {
                table: Mutex::new(Neighbours::new(
                    MacAddress(traits.mac),
                    &config.addresses,
                    &config.gateways,
                    &config.neighbours,
                )),
                generation: AtomicU64::new(1),
                // SAFETY: the port runs.
                up: AtomicBool::new(unsafe { ffi::takt_dpdk_link(port) } > 0),
                link: AtomicI32::new(0),
            }),
        };
        let longest_frame = if sockets.is_empty() {
            room
        } else {
            // The ring's own header is in front of each.
            room.min(slot - 96)
        };
        let device = Self {
            config: config.clone(),
            port,
            traits,
            queues: (0..config.queues).map(|_| Queue::default()).collect(),
            pool: memory.0,
            longest_frame,
            stack,
            started: Instant::now(),
            // SAFETY: DPDK runs.
            beat: unsafe { ffi::takt_dpdk_cycles_per_second() } / 50,
            environment,
            sockets,
            inboxes: [const { OnceLock::new() }; MOST_PORTS],
            taken: AtomicU32::new(0),
            owners: (0..=u16::MAX).map(|_| AtomicU16::new(NOBODY)).collect(),
            losses: Mutex::default(),
            opening: Mutex::new(()),
        };
        // From here on the device frees both itself.
        std::mem::forget((attached, memory));
        device.take_only_ours();
        Ok(device)
    }

    /// Whether frames can leave.
    pub(crate) fn is_up(&self) -> bool {
        match &self.stack {
            Stack::Kernel { interface, .. } => interface.state().is_some_and(|state| state.up),
            // Acquire: pairs with the Release of who looks after the device.
            Stack::Own(own) => own.up.load(Ordering::Acquire),
        }
    }

    /// Why nothing passes the device at present.
    pub(crate) fn fault(&self) -> Option<String> {
        if self.is_up() {
            return None;
        }
        let name = self.config.device_name();
        Some(match &self.stack {
            Stack::Kernel { interface, .. } => {
                let of = self.config.kernel_interface().unwrap_or(name);
                match interface.state() {
                    None => format!(
                        "the interface {of} of {name} has been removed: when there is one again, restart the node"
                    ),
                    Some(_) => format!(
                        "the interface {of} is down or has no carrier: `ip link set {of} up`, or look after its cable"
                    ),
                }
            }
            Stack::Own(own) if own.link.load(Ordering::Relaxed) == ffi::STUCK => format!(
                "{name} is not used any more: DPDK's memif driver was to change the memory that is shared with a peer, and one of \
                 this process's threads did not stop using it within 5 s, since it had something to log: restart the node"
            ),
            Stack::Own(own) if own.link.load(Ordering::Relaxed) == ffi::UNGUARDED => format!(
                "{name} is not used: the log of DPDK's memif driver does not tell when it takes shared memory away, \
                 and a peer that ends would end this process. Set no log level for pmd.net.memif, and use DPDK {TESTED} \
                 (this is {})",
                eal::version()
            ),
            Stack::Own(_) => {
                format!(
                    "{name} has no link: nobody is at its other end, or the device has been removed"
                )
            }
        })
    }

    /// One line for people.
    pub(crate) fn detail(&self) -> String {
        let driver = self.traits.driver;
        let end = driver
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(driver.len());
        let driver = String::from_utf8_lossy(&driver[..end]).into_owned();
        let pages = if self.environment.huge_pages {
            "huge pages".to_owned()
        } else {
            format!(
                "no huge pages, which is slower ({})",
                self.environment.reason
            )
        };
        let checksums = if self.traits.rx_checksums != 0 {
            "checksums verified by the device where it can"
        } else {
            "checksums in software"
        };
        let version = eal::version();
        let untested = driver == "net_memif" && !version.contains(TESTED);
        let untested = if untested {
            ", whose memif driver was not tested"
        } else {
            ""
        };
        format!(
            "{} (driver {driver}, {version}{untested}): {} queue(s), {checksums}, {pages}",
            self.config.device_name(),
            self.queues.len()
        )
    }

    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether lanes are woken by what arrives.
    pub(crate) fn wakes(&self) -> bool {
        !self.sockets.is_empty()
    }

    /// Whether its addresses are not the kernel's.
    pub(crate) fn has_own_addresses(&self) -> bool {
        matches!(self.stack, Stack::Own(_))
    }

    /// The present addresses.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        match &self.stack {
            Stack::Kernel { interface, .. } => interface
                .state()
                .map_or_else(Vec::new, |state| state.addresses.clone()),
            Stack::Own(_) => self
                .config
                .addresses
                .iter()
                .map(|own| own.address)
                .collect(),
        }
    }

    pub(crate) fn opening(&self) -> MutexGuard<'_, ()> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a UDP port and an inbox for it. The caller has [`opening`](Self::opening).
    pub(crate) fn claim(&self, bind: SocketAddr) -> Result<(usize, u16), OpenError> {
        let taken = self.taken.load(Ordering::Relaxed);
        let slot = taken.trailing_ones() as usize;
        if slot >= MOST_PORTS {
            return Err(OpenError::Unavailable(format!(
                "{} has {MOST_PORTS} ports, its limit",
                self.config.device_name()
            )));
        }
        let number = match bind.port() {
            0 => self.unused_port().unwrap_or(0),
            number if self.owner(number).is_none() => number,
            _ => 0,
        };
        if number == 0 {
            return Err(OpenError::Bind {
                address: bind,
                source: std::io::Error::from_raw_os_error(libc::EADDRINUSE),
            });
        }
        if self.inboxes[slot].get().is_none() {
            let inbox = Inbox::new().map_err(|source| OpenError::System {
                action: "cannot create an eventfd".into(),
                source,
            })?;
            let _ = self.inboxes[slot].set(inbox);
        }
        self.empty(slot);
        self.taken.store(taken | 1 << slot, Ordering::Relaxed);
        // Release: who finds the owner finds the inbox.
        self.owners[usize::from(number)].store(slot as u16 + 1, Ordering::Release);
        self.take_only_ours();
        Ok((slot, number))
    }

    /// Gives a UDP port and its inbox back.
    pub(crate) fn release(&self, slot: usize, number: u16) {
        let _one = self.opening();
        self.owners[usize::from(number)].store(NOBODY, Ordering::Release);
        self.taken.fetch_and(!(1 << slot), Ordering::Relaxed);
        self.take_only_ours();
        self.empty(slot);
    }

    /// A port that nobody has, of those that IANA leaves for it (RFC 6335).
    fn unused_port(&self) -> Option<u16> {
        static LAST: AtomicU16 = AtomicU16::new(0);
        (0..16_384).find_map(|_| {
            let number = 49_152 + LAST.fetch_add(1, Ordering::Relaxed) % 16_384;
            self.owner(number).is_none().then_some(number)
        })
    }

    /// Throws away what was put down for nobody.
    fn empty(&self, slot: usize) {
        if let Some(inbox) = self.inboxes[slot].get() {
            while let Some(packet) = inbox.take() {
                free(&mut [packet.mbuf]);
            }
            for counter in [&inbox.dropped, &inbox.lost_received, &inbox.lost_sent] {
                counter.store(0, Ordering::Relaxed);
            }
        }
    }

    /// The inbox of a UDP port.
    #[inline]
    fn owner(&self, number: u16) -> Option<&Inbox> {
        let owner = self.owners[usize::from(number)].load(Ordering::Acquire);
        self.inbox(usize::from(owner).checked_sub(1)?)
    }

    pub(crate) fn inbox(&self, slot: usize) -> Option<&Inbox> {
        self.inboxes.get(slot)?.get()
    }

    /// Hands a packet to the port it is for. `false`: there is none. The packet is not the caller's any more.
    pub(crate) fn pass_on(&self, packet: Packet, number: u16) -> bool {
        let Some(inbox) = self.owner(number) else {
            free(&mut [packet.mbuf]);
            return false;
        };
        if let Err(packet) = inbox.put(packet) {
            free(&mut [packet.mbuf]);
        }
        true
    }

    /// Has the kernel copy no more than our datagrams into the rings.
    fn take_only_ours(&self) {
        if !matches!(self.stack, Stack::Kernel { .. }) {
            return;
        }
        let ports: Vec<u16> = (1..=u16::MAX)
            .filter(|number| self.owner(*number).is_some())
            .collect();
        for socket in &self.sockets {
            if let Err(error) = socket.take_only(&ports) {
                // All is taken then, and looked through.
                tracing::warn!(
                    "cannot filter what {} receives: {error}",
                    self.config.device_name()
                );
            }
        }
    }

    /// Asks the device what it has lost, and tells the first of its ports.
    pub(crate) fn count_losses(&self) {
        let mut last = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = ffi::Losses::default();
        // SAFETY: the port is ours; a structure to be written, of the shim's own layout.
        unsafe { ffi::takt_dpdk_losses(self.port, &raw mut now) }
        let rings: u64 = self.sockets.iter().map(PacketSocket::dropped).sum();
        let received =
            (now.rx_missed + now.rx_errors).saturating_sub(last.rx_missed + last.rx_errors);
        let sent = now.tx_errors.saturating_sub(last.tx_errors);
        *last = now;
        let first = self.taken.load(Ordering::Relaxed).trailing_zeros() as usize;
        if let Some(inbox) = self.inbox(first) {
            inbox
                .lost_received
                .fetch_add(received + rings, Ordering::Relaxed);
            inbox.lost_sent.fetch_add(sent, Ordering::Relaxed);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for slot in 0..MOST_PORTS {
            self.empty(slot);
        }
        drop(Attached(self.port));
        drop(Memory(self.pool));
    }
}

/// Gives buffers back.
#[inline]
pub(crate) fn free(mbufs: &mut [*mut ffi::Mbuf]) {
    if !mbufs.is_empty() {
        // SAFETY: whoever has a pointer to a buffer has the buffer, and it is not used after this.
        unsafe { ffi::takt_dpdk_free(mbufs.as_mut_ptr(), mbufs.len() as u32) }
    }
}

/// Memory for all that can be under way at a time.
fn pool(config: &DpdkConfig, room: u16) -> Result<*mut Pool, OpenError> {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let name = format!("takt-{}", LAST.fetch_add(1, Ordering::Relaxed));
    let name = CString::new(name).unwrap_or_default();
    let queues = u32::from(config.queues) * u32::from(config.descriptors) * 2;
    let ports = FRUGAL_PORTS * (FRAMES_OF_PORT as u32 + 2 * CACHE);
    let mut error = 0;
    // SAFETY: a string with its end, and a number to be written.
    let pool =
        unsafe { ffi::takt_dpdk_pool(name.as_ptr(), queues + ports, CACHE, room, &raw mut error) };
    if pool.is_null() {
        return Err(OpenError::Unavailable(format!(
            "no memory for {} buffers of {room} bytes: {}{}; raise `memory`, reserve huge pages, or lower \
             `descriptors`",
            queues + ports,
            eal::errno_text(error),
            eal::said()
        )));
    }
    Ok(pool)
}

fn kernel_stack(ifindex: u32) -> Result<Stack, OpenError> {
    let stopped = |error: StackError| OpenError::System {
        action: "cannot follow the kernel's tables".into(),
        source: std::io::Error::other(error),
    };
    let next_hops = Arc::new(NextHops::start().map_err(stopped)?);
    let interface = Beneath::watch(&next_hops, ifindex).map_err(stopped)?;
    Ok(Stack::Kernel {
        next_hops,
        interface,
        ifindex,
    })
}

/// Why DPDK does not take a device, and what to do.
fn attach_error(config: &DpdkConfig, error: i32) -> OpenError {
    let said = eal::said();
    let name = config.device_name();
    if error.abs() == libc::EEXIST {
        return OpenError::Unavailable(format!(
            "{name} exists in this process already: number virtual devices differently, as net_memif0 and \
             net_memif1"
        ));
    }
    if [libc::EPERM, libc::EACCES].contains(&error.abs()) {
        return OpenError::Privilege(format!(
            "DPDK may not use {name}: grant CAP_NET_RAW and CAP_NET_ADMIN (packet and XDP sockets, taps), or \
             access to /dev/vfio (cards){said}"
        ));
    }
    let remedy = if name.starts_with("net_") {
        "is its driver installed (Debian: librte-net-…, package dpdk), and are its arguments right?"
    } else {
        "is it bound to vfio-pci (`dpdk-devbind.py --status`), and is its driver installed?"
    };
    OpenError::Unavailable(format!(
        "DPDK does not take {}: {}{said}; {remedy}",
        config.device,
        eal::errno_text(error)
    ))
}
