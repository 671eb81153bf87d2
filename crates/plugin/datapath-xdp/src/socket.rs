//! AF_XDP sockets (Linux `af_xdp.rst`): the pool of frames of a receive queue, and the sockets that
//! share it.
//!
//! The technology alone: descriptors, wake-ups and statistics, no IP and no peers. A [`Pool`] owns
//! the memory, the fill and the completion ring of a queue by a socket of its own that neither
//! sends nor receives. So any number of [`Socket`]s may come and go on the queue
//! (`XDP_SHARED_UMEM`), each with a receive and a transmit ring.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::metadata;
use crate::ring::{Consumer, Descriptor, Producer};
use crate::umem::RxArea;

/// `XDP_MAX_TX_SKB_BUDGET` of `linux/if_xdp.h` (Linux 6.17): frames that one send call may take in
/// copy mode.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// How long to wait for a queue that a closed socket still holds: the kernel releases it in a
/// work queue, and not before it has the lock under which interfaces and namespaces come and go,
/// which takes seconds where many do.
const QUEUE_RELEASE: Duration = Duration::from_secs(10);

/// Which queue a pool is for, and how it is to be used.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Index of the interface.
    pub ifindex: u32,
    /// Queue to bind to.
    pub queue: u32,
    /// Chunks to send from, of all sockets together.
    pub tx_chunks: u32,
    /// Bind in zero-copy mode; otherwise in copy mode.
    pub zero_copy: bool,
    /// Frames may span several chunks (`XDP_USE_SG`, Linux 6.6).
    pub multi_buffer: bool,
    /// Frames may have metadata before them, with a launch time. No chunk is sent from its beginning then.
    pub launch_times: bool,
}

/// The frames of one queue.
#[derive(Debug)]
pub struct Pool {
    fd: OwnedFd,
    ifindex: u32,
    queue: u32,
    /// Chunks given to the kernel to receive into. Empty at first.
    pub fill: Producer<u64>,
    /// Chunks that the kernel has sent, of all sockets.
    pub completion: Consumer<u64>,
    /// The kernel wants a receive ring or a transmit ring on every bound socket.
    _unused: Consumer<Descriptor>,
    zero_copy: bool,
}

/// The set-up of one socket.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Entries of the receive ring, a power of two.
    pub rx_ring: u32,
    /// Chunks that can be under way at a time, 0 for a socket that only receives. The transmit ring
    /// has as many entries, rounded up to a power of two.
    pub tx_chunks: u32,
    /// Poll the device from our own calls instead of its interrupts.
    pub busy_poll: Option<BusyPoll>,
}

/// Preferred busy polling (Linux `napi.rst`, "Busy polling"): the device is driven by the lane's
/// own calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// `SO_BUSY_POLL`: how long a call may spin for a frame, in microseconds.
    pub micros: u32,
    /// `SO_BUSY_POLL_BUDGET`: how many frames a call may process in the driver.
    pub budget: u16,
}

/// A socket on a pool's queue.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    /// Received frames.
    pub rx: Consumer<Descriptor>,
    /// Frames to send.
    pub tx: Producer<Descriptor>,
}

/// A call on the way to a bound socket that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}")]
pub struct SocketError {
    /// What was tried.
    pub action: &'static str,
    /// The kernel's answer.
    pub source: io::Error,
}

impl SocketError {
    /// The interface's driver or the kernel does not know what the bind flags ask for.
    pub(crate) fn is_refusal_of_flags(&self) -> bool {
        matches!(
            self.source.raw_os_error(),
            Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPROTONOSUPPORT)
        )
    }
}

/// What a send call has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// The kernel took what it could; more may be waiting.
    Taken,
    /// Resources of the kernel or of the device are short for the moment.
    Busy,
    /// The interface is down or gone.
    Down,
}

/// A chunk takes this at most, and so does what the kernel copies one to.
const PAGE: u64 = 4096;

impl Pool {
    /// Registers the memory and binds to the queue.
    ///
    /// # Errors
    /// [`SocketError`]; `EBUSY` from the bind means that somebody else holds the queue.
    pub fn open(options: &PoolOptions, memory: &RxArea) -> Result<Self, SocketError> {
        let fd = create()?;
        let (addr, len) = memory.registration();
        let (flags, tx_metadata_len) = if options.launch_times {
            (libc::XDP_UMEM_TX_METADATA_LEN, metadata::LENGTH as u32)
        } else {
            (0, 0)
        };
        let registration = libc::xdp_umem_reg {
            addr,
            len,
            chunk_size: memory.chunk() as u32,
            headroom: 0,
            flags,
            tx_metadata_len,
        };
        register(fd.as_fd(), &registration).map_err(failed("register memory for frames (UMEM)"))?;
        let fill_entries = ring_size(memory.chunks());
        let completion_entries = ring_size(options.tx_chunks);
        let unused_entries = 2;
        let sizes = [
            (libc::XDP_UMEM_FILL_RING, fill_entries, "size the fill ring"),
            (
                libc::XDP_UMEM_COMPLETION_RING,
                completion_entries,
                "size the completion ring",
            ),
            (libc::XDP_RX_RING, unused_entries, "size the receive ring"),
        ];
        for (name, entries, action) in sizes {
            set_option(fd.as_fd(), libc::SOL_XDP, name, &entries).map_err(failed(action))?;
        }
        let offsets = map_offsets(fd.as_fd()).map_err(failed("ask for the ring offsets"))?;
        let (fill_at, completion_at) = (
            libc::XDP_UMEM_PGOFF_FILL_RING as i64,
            libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64,
        );
        let mapping = failed("map the rings");
        let fill = Producer::new(fd.as_fd(), fill_at, offsets.fr, fill_entries).map_err(mapping)?;
        let completion = Consumer::new(fd.as_fd(), completion_at, offsets.cr, completion_entries)
            .map_err(mapping)?;
        let unused = Consumer::new(
            fd.as_fd(),
            libc::XDP_PGOFF_RX_RING,
            offsets.rx,
            unused_entries,
        )
        .map_err(mapping)?;
        let mut flags = libc::XDP_USE_NEED_WAKEUP;
        flags |= if options.zero_copy {
            libc::XDP_ZEROCOPY
        } else {
            libc::XDP_COPY
        };
        if options.multi_buffer {
            flags |= libc::XDP_USE_SG;
        }
        bind(fd.as_fd(), options.ifindex, options.queue, flags, 0)
            .map_err(failed("bind an AF_XDP socket"))?;
        let zero_copy = is_zero_copy(fd.as_fd()).map_err(failed("ask for the socket's mode"))?;
        let (ifindex, queue) = (options.ifindex, options.queue);
        Ok(Self {
            fd,
            ifindex,
            queue,
            fill,
            completion,
            _unused: unused,
            zero_copy,
        })
    }

    /// The driver and we share the frame memory.
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }
}

impl Socket {
    /// Creates a socket on the queue of `pool`. It receives once a program sends frames to it.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn join(pool: &Pool, options: &SocketOptions) -> Result<Self, SocketError> {
        let fd = create()?;
        let tx_entries = ring_size(options.tx_chunks);
        let sizes = [
            (libc::XDP_RX_RING, options.rx_ring, "size the receive ring"),
            (libc::XDP_TX_RING, tx_entries, "size the transmit ring"),
        ];
        for (name, entries, action) in sizes {
            set_option(fd.as_fd(), libc::SOL_XDP, name, &entries).map_err(failed(action))?;
        }
        // A kernel older than 6.17 does not know the option and takes 32 frames per call.
        let budget = tx_entries.max(32);
        let _ = set_option(fd.as_fd(), libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget);
        // Copy mode charges each frame under way to the send buffer: give it room for a full ring.
        let buffer = i32::try_from(u64::from(options.tx_chunks) * 2 * PAGE).unwrap_or(i32::MAX / 2);
        if set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &buffer).is_err() {
            // Without CAP_NET_ADMIN the kernel caps it at net.core.wmem_max, which is slower, not
            // wrong.
            let _ = set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &buffer);
        }
        if let Some(poll) = options.busy_poll {
            set_busy_poll(fd.as_fd(), poll).map_err(failed("set up busy polling"))?;
        }
        let offsets = map_offsets(fd.as_fd()).map_err(failed("ask for the ring offsets"))?;
        let mapping = failed("map the rings");
        let rx = Consumer::new(
            fd.as_fd(),
            libc::XDP_PGOFF_RX_RING,
            offsets.rx,
            options.rx_ring,
        )
        .map_err(mapping)?;
        let tx = Producer::new(fd.as_fd(), libc::XDP_PGOFF_TX_RING, offsets.tx, tx_entries)
            .map_err(mapping)?;
        // Mode and memory are the pool's; the kernel refuses other flags beside this one.
        let owner = pool.fd.as_raw_fd() as u32;
        bind(
            fd.as_fd(),
            pool.ifindex,
            pool.queue,
            libc::XDP_SHARED_UMEM,
            owner,
        )
        .map_err(failed("bind an AF_XDP socket to a shared queue"))?;
        Ok(Self { fd, rx, tx })
    }

    /// Closes the descriptor and returns the rings: what has not been read and what has not been sent. The kernel has the
    /// socket, and a driver may be at its rings, until both are dropped.
    pub fn close(self) -> (Consumer<Descriptor>, Producer<Descriptor>) {
        (self.rx, self.tx)
    }

    /// Has the kernel send what the transmit ring holds. One system call.
    #[inline]
    pub fn kick(&self) -> Kick {
        // SAFETY: the descriptor is open; a null buffer of length 0 is read by nobody.
        let result = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        if result >= 0 {
            return Kick::Taken;
        }
        match io::Error::last_os_error().raw_os_error() {
            // EAGAIN: more waits than one call takes, or the send buffer is full; the rings tell
            // which.
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => {
                Kick::Busy
            }
            _ => Kick::Down,
        }
    }

    /// Has the kernel fetch received frames: where the fill ring asks for it, or with busy polling.
    #[inline]
    pub fn wake_receive(&self) {
        // Its answers tell nothing that the rings do not.
        // SAFETY: the descriptor is open; a null buffer of length 0 is written by nobody.
        unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
    }

    /// The kernel's counters of this socket.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn statistics(&self) -> io::Result<libc::xdp_statistics> {
        // SAFETY: `xdp_statistics` is plain integers.
        let mut statistics: libc::xdp_statistics = unsafe { std::mem::zeroed() };
        get_option(self.fd.as_fd(), libc::XDP_STATISTICS, &mut statistics)?;
        Ok(statistics)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> SocketError + Copy {
    move |source| SocketError { action, source }
}

/// A socket that is bound to nothing.
pub(crate) fn create() -> Result<OwnedFd, SocketError> {
    // SAFETY: plain call; a descriptor that is not negative is new and owned by nobody else.
    match unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) } {
        -1 => Err(failed("create an AF_XDP socket")(io::Error::last_os_error())),
        // SAFETY: as above.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// The ring that holds `entries` entries: a power of two, and never empty, which the kernel
/// refuses.
fn ring_size(entries: u32) -> u32 {
    entries.max(1).next_power_of_two()
}

fn set_option<T>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the descriptor is open and `value` is readable for the length given.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Reads an option of level `SOL_XDP` whose type is plain integers.
fn get_option<T>(fd: BorrowedFd<'_>, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the descriptor is open and `value` is writable for the length given.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            name,
            std::ptr::from_mut(value).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Registers the memory. Kernels before 6.8 know a shorter structure and take the longer one's
/// beginning.
fn register(fd: BorrowedFd<'_>, registration: &libc::xdp_umem_reg) -> io::Result<()> {
    let refused = match set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, registration) {
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => error,
        other => return other,
    };
    // Without CAP_IPC_LOCK the pages count against the locked-memory limit: raise it where we may.
    let limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is a valid `rlimit`.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } != 0 {
        return Err(refused);
    }
    set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, registration)
}

fn set_busy_poll(fd: BorrowedFd<'_>, poll: BusyPoll) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1i32)?;
    set_option(
        fd,
        libc::SOL_SOCKET,
        libc::SO_BUSY_POLL,
        &i32::try_from(poll.micros).unwrap_or(i32::MAX),
    )?;
    set_option(
        fd,
        libc::SOL_SOCKET,
        libc::SO_BUSY_POLL_BUDGET,
        &i32::from(poll.budget),
    )
}

fn map_offsets(fd: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: `xdp_mmap_offsets` is plain integers.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    get_option(fd, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
    Ok(offsets)
}

fn is_zero_copy(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut options = libc::xdp_options { flags: 0 };
    get_option(fd, libc::XDP_OPTIONS, &mut options)?;
    Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

fn bind(fd: BorrowedFd<'_>, ifindex: u32, queue: u32, flags: u16, shared: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: ifindex,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared,
    };
    let give_up = Instant::now() + QUEUE_RELEASE;
    loop {
        // SAFETY: the descriptor is open and `address` is a `sockaddr_xdp` of the length given.
        let result = unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_xdp>() as libc::socklen_t,
            )
        };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() >= give_up {
            return Err(error);
        }
        // The kernel reports no event when it has released the queue.
        std::thread::sleep(Duration::from_millis(5));
    }
}
