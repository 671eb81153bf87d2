//! The XDP program of an interface, shared by everything in this process that uses the interface.
//!
//! A port claims its address here; the program then sends datagrams for that address to the port's
//! socket on the queue they arrived on, or to another port's where it has none there, and leaves
//! all else to the kernel. The last user gone, the link closes and the kernel detaches the program;
//! the same happens when the process dies.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use takt_datapath::OpenError;
use takt_datapath::stack::{Interface, InterfaceState, NextHops, StackError};
use takt_xdp::{AttachMode, Namespace};

use crate::config::ZeroCopy;
use crate::interface::Device;
use crate::maps::{MOST_PORTS, Maps, Slot};
use crate::port::open_error;
use crate::program::{self, Attached, Mode};
use crate::queue::{Queue, Shares};
use crate::reservation::Reservation;
use crate::socket::{Pool, PoolOptions, SocketError};
use crate::umem;

/// Bytes that a frame has around an IP packet: Ethernet header and two VLAN tags.
const FRAME_OVERHEAD: usize = 14 + 2 * 4;

/// Every attachment of this process that is still in use.
static ATTACHMENTS: Mutex<Vec<Weak<Attachment>>> = Mutex::new(Vec::new());

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
    /// Why the mode is not native, where that was tried.
    fallback: Option<String>,
    maps: Arc<Mutex<Maps>>,
    /// Queues that ports are on.
    queues: Mutex<Vec<Weak<Queue>>>,
    /// What was found out for each wish, since a queue in use cannot be tried again.
    traits: Mutex<Vec<(ZeroCopy, Traits)>>,
    /// Keeps the program's map of endpoints true to the interface's addresses.
    interface: Interface,
    next_hops: Arc<NextHops>,
    /// The interface has left the namespace at some time, which has unbound all sockets on it for good, be it there again
    /// or another of its index.
    gone: Arc<AtomicBool>,
    /// Keeps the program attached.
    link: Mutex<Option<OwnedFd>>,
}

/// A port's claim on an attachment: an address, and a number in the program's maps. Given back on
/// drop.
#[derive(Debug)]
pub(crate) struct Claim {
    attachment: Arc<Attachment>,
    slot: Slot,
    /// The address, with the port that the kernel chose where none was asked for.
    reservation: Arc<Reservation>,
    released: bool,
}

impl Attachment {
    /// The interface's index.
    pub(crate) fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The attachment of `device`, made if this process has none there.
    /// `next_hops`: follows the tables of the interface's namespace already.
    pub(crate) fn get(
        device: &Device,
        mode: Mode,
        next_hops: Option<Arc<NextHops>>,
    ) -> Result<Arc<Self>, OpenError> {
        let mut attachments = lock(&ATTACHMENTS);
        attachments.retain(|attachment| attachment.strong_count() > 0);
        let mut present = None;
        for known in attachments.iter().filter_map(Weak::upgrade) {
            if known.is_gone() {
                // An interface that was in another namespace meanwhile has kept the program, be its index the same or not,
                // which leaves no room for ours.
                drop(lock(&known.link).take());
            } else if known.namespace == device.namespace && known.ifindex == device.ifindex {
                present = Some(known);
            }
        }
        if let Some(present) = present {
            let wanted = match mode {
                Mode::Auto => present.mode,
                Mode::Native => AttachMode::Native,
                Mode::Generic => AttachMode::Generic,
            };
            if wanted != present.mode {
                return Err(OpenError::Unavailable(format!(
                    "this process already runs its XDP program on {} in {:?} mode: choose the \
                     same mode or auto",
                    device.name, present.mode
                )));
            }
            return Ok(present);
        }
        let made = Arc::new(Self::make(device, mode, next_hops)?);
        attachments.push(Arc::downgrade(&made));
        Ok(made)
    }

    fn make(
        device: &Device,
        mode: Mode,
        next_hops: Option<Arc<NextHops>>,
    ) -> Result<Self, OpenError> {
        let untold = |error: StackError| OpenError::System {
            action: format!("cannot follow the routing tables for {}", device.name),
            source: std::io::Error::other(error),
        };
        let next_hops = match next_hops {
            Some(known) => known,
            None => Arc::new(NextHops::start().map_err(untold)?),
        };
        let state = next_hops
            .watch_interface(device.ifindex)
            .map_err(untold)?
            .state();
        if state.is_none_or(|state| state.mac.is_none()) {
            return Err(OpenError::Unavailable(format!(
                "{} is not an Ethernet interface: AF_XDP is for those",
                device.name
            )));
        }
        let Attached {
            link,
            maps,
            mode,
            fallback,
        } = program::attach(device, mode)?;
        let maps = Arc::new(Mutex::new(maps));
        let followed = Arc::clone(&maps);
        let gone = Arc::new(AtomicBool::new(false));
        let left = Arc::clone(&gone);
        let interface = next_hops
            .on_interface_change(device.ifindex, move |state| {
                if state.is_none() {
                    // Release: pairs with the Acquire of `is_gone`.
                    left.store(true, Ordering::Release);
                }
                // Relaxed: this thread alone stores. Nothing is for sockets that are unbound.
                let state = state.filter(|_| !left.load(Ordering::Relaxed));
                let addresses = state.map_or(&[][..], |state| &state.addresses);
                if let Err(error) = lock(&followed).set_addresses(addresses) {
                    tracing::warn!(%error, "cannot enter the addresses into the XDP program's map");
                }
            })
            .map_err(untold)?;
        if interface.state().is_none() {
            // Since it was looked at above.
            gone.store(true, Ordering::Release);
        }
        Ok(Self {
            namespace: device.namespace,
            ifindex: device.ifindex,
            mode,
            fallback,
            maps,
            queues: Mutex::default(),
            traits: Mutex::default(),
            interface,
            next_hops,
            gone,
            link: Mutex::new(Some(link)),
        })
    }

    pub(crate) fn mode(&self) -> AttachMode {
        self.mode
    }

    /// Why native mode was unavailable.
    pub(crate) fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// The monitor of the interface's network namespace.
    pub(crate) fn next_hops(&self) -> &Arc<NextHops> {
        &self.next_hops
    }

    /// The interface has left the namespace, and all sockets on it are dead.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// The interface's present state, `None` when it is gone, be it there again or not.
    pub(crate) fn interface_state(&self) -> Option<Arc<InterfaceState>> {
        self.interface.state().filter(|_| !self.is_gone())
    }

    pub(crate) fn maps(&self) -> MutexGuard<'_, Maps> {
        lock(&self.maps)
    }

    /// What sockets can do here: tried out once, by a socket on `queue` that is closed again.
    pub(crate) fn traits(
        &self,
        queue: u32,
        wanted: ZeroCopy,
        mtu: u32,
    ) -> Result<Traits, OpenError> {
        let mut known = lock(&self.traits);
        if let Some((_, traits)) = known.iter().find(|(wish, _)| *wish == wanted) {
            return Ok(traits.clone());
        }
        let traits = self.try_traits(queue, wanted, mtu)?;
        known.push((wanted, traits.clone()));
        Ok(traits)
    }

    fn try_traits(&self, queue: u32, wanted: ZeroCopy, mtu: u32) -> Result<Traits, OpenError> {
        let longest = umem::rx_capacity(umem::chunk_for(mtu));
        let needs_chunks = mtu as usize + FRAME_OVERHEAD > longest;
        let no_zero_copy = match (wanted, self.mode) {
            (ZeroCopy::Never, _) => "as asked for".to_owned(),
            (_, AttachMode::Generic) => "zero copy needs native XDP".to_owned(),
            _ => match self.try_socket(queue, true, needs_chunks, mtu)? {
                Ok(()) => {
                    return Ok(Traits {
                        zero_copy: true,
                        no_zero_copy: None,
                        multi_buffer: needs_chunks,
                    });
                }
                Err(error) => format!("the driver has no zero copy: {}", error.source),
            },
        };
        if wanted == ZeroCopy::Required {
            return Err(OpenError::Unavailable(format!("zero copy: {no_zero_copy}")));
        }
        // Always where the kernel has it, since the MTU may be raised later.
        let multi_buffer = match self.try_socket(queue, false, true, mtu)? {
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

    /// Opens a small socket and closes it. The outer error is one that no other choice of flags
    /// would help.
    fn try_socket(
        &self,
        queue: u32,
        zero_copy: bool,
        multi_buffer: bool,
        mtu: u32,
    ) -> Result<Result<(), SocketError>, OpenError> {
        let options = PoolOptions {
            ifindex: self.ifindex,
            queue,
            tx_chunks: 1,
            zero_copy,
            multi_buffer,
            launch_times: false,
        };
        let tried = umem::map(1, 1, 1, umem::chunk_for(mtu))
            .map_err(|source| SocketError {
                action: "map memory for frames",
                source,
            })
            .and_then(|(memory, _)| Pool::open(&options, &memory));
        match tried {
            Ok(_) => Ok(Ok(())),
            Err(error) if error.is_refusal_of_flags() => Ok(Err(error)),
            Err(error) => Err(open_error(error, &format!("queue {queue}"))),
        }
    }

    /// The queue `options` is about, opened if no port of this process is on it.
    pub(crate) fn queue(
        &self,
        options: &PoolOptions,
        shares: Shares,
    ) -> Result<Arc<Queue>, OpenError> {
        let mut queues = lock(&self.queues);
        queues.retain(|queue| queue.strong_count() > 0);
        let present = queues
            .iter()
            .filter_map(Weak::upgrade)
            .find(|queue| queue.number() == options.queue);
        if let Some(present) = present {
            return Ok(present);
        }
        let opened = Queue::open(options, shares)
            .map_err(|error| open_error(error, &format!("queue {}", options.queue)))?;
        let opened = Arc::new(opened);
        queues.push(Arc::downgrade(&opened));
        Ok(opened)
    }

    /// Reserves a number in the program's maps for one port, whose address the kernel keeps for it.
    pub(crate) fn claim(
        self: &Arc<Self>,
        reservation: Arc<Reservation>,
    ) -> Result<Claim, OpenError> {
        let slot = self.maps().add().ok_or_else(|| {
            OpenError::Unavailable(format!(
                "there are {MOST_PORTS} ports on the interface already, its limit"
            ))
        })?;
        Ok(Claim {
            attachment: Arc::clone(self),
            slot,
            reservation,
            released: false,
        })
    }
}

impl Claim {
    /// The address, with the port that the kernel chose where none was asked for.
    pub(crate) fn local(&self) -> SocketAddr {
        self.reservation.local()
    }

    /// Has datagrams for the claimed address that arrive on `queue` go to `socket`, and those that are marked with a
    /// traffic class to `upper`. Both stay open until the claim is released.
    pub(crate) fn place(
        &self,
        queue: u32,
        socket: &impl AsFd,
        upper: &impl AsFd,
    ) -> Result<(), OpenError> {
        self.attachment
            .maps()
            .place(self.slot, queue, [socket.as_fd(), upper.as_fd()])
            .map_err(|source| OpenError::System {
                action: format!(
                    "cannot enter the socket of queue {queue} into the XDP program's map"
                ),
                source,
            })
    }

    /// Has the program take datagrams for the claimed address.
    pub(crate) fn accept(&self) -> Result<(), OpenError> {
        let local = self.local();
        self.attachment
            .maps()
            .accept(self.slot, local)
            .map_err(|source| OpenError::System {
                action: format!("cannot enter {local} into the XDP program's map"),
                source,
            })
    }

    /// Has the program leave the address to the kernel. To be called before the sockets close.
    pub(crate) fn release(&mut self) {
        if !self.released {
            self.released = true;
            self.attachment.maps().remove(self.slot);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}

/// Takes a lock whose holders leave the data whole even if they panic: each changes one thing at a
/// time.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
