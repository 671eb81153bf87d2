//! The XDP program of an interface, shared by everything in this process that uses the interface.
//!
//! A port claims its queues and its address here; the program then sends datagrams for that address to the socket
//! of the queue they arrived on, and leaves all else to the kernel. The last user gone, the link closes and the
//! kernel detaches the program; the same happens when the process dies.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use takt_datapath::OpenError;
use takt_datapath::stack::{Interface, InterfaceState, NextHops, StackError};

use crate::config::ZeroCopy;
use crate::interface::{Device, Namespace};
use crate::link::AttachMode;
use crate::maps::Maps;
use crate::port::open_error;
use crate::program::{self, Attached, Mode};
use crate::reservation::Reservation;
use crate::socket::{Socket, SocketError, SocketOptions};
use crate::umem::RX_CHUNK_CAPACITY;

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
    claimed: Mutex<Claimed>,
    /// What was found out for each wish, since a queue in use cannot be tried again.
    traits: Mutex<Vec<(ZeroCopy, Traits)>>,
    /// Keeps the program's map of endpoints true to the interface's addresses.
    interface: Interface,
    next_hops: Arc<NextHops>,
    /// Keeps the program attached.
    _link: OwnedFd,
}

/// What the ports of this process hold.
#[derive(Debug, Default)]
struct Claimed {
    queues: Vec<u32>,
    reservations: Vec<Weak<Reservation>>,
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
        let mut attachments = lock(&ATTACHMENTS);
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
        let untold = |error: StackError| OpenError::System {
            action: format!("cannot follow the routing tables for {}", device.name),
            source: std::io::Error::other(error),
        };
        let next_hops = NextHops::start().map_err(untold)?;
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
        let interface = next_hops
            .on_interface_change(device.ifindex, move |state| {
                let addresses = state.map_or(&[][..], |state| &state.addresses);
                if let Err(error) = lock(&followed).set_addresses(addresses) {
                    tracing::warn!(%error, "cannot enter the interface's addresses into the XDP program's map");
                }
            })
            .map_err(untold)?;
        Ok(Self {
            namespace: device.namespace,
            ifindex: device.ifindex,
            mode,
            fallback,
            maps,
            claimed: Mutex::default(),
            traits: Mutex::default(),
            interface,
            next_hops: Arc::new(next_hops),
            _link: link,
        })
    }

    pub(crate) fn mode(&self) -> AttachMode {
        self.mode
    }

    /// Why native mode was not to be had.
    pub(crate) fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// The monitor of the interface's network namespace.
    pub(crate) fn next_hops(&self) -> &Arc<NextHops> {
        &self.next_hops
    }

    /// The interface's present state, `None` when it is gone.
    pub(crate) fn interface_state(&self) -> Option<Arc<InterfaceState>> {
        self.interface.state()
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
                Err(error) => format!("the driver has no zero copy: {}", error.source),
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

    /// Claims `queues` for one port that is to be bound to `bind`, so that nobody else in this process asks the
    /// kernel for them meanwhile.
    pub(crate) fn claim(
        self: &Arc<Self>,
        device: &Device,
        queues: &[u32],
        bind: SocketAddr,
    ) -> Result<Claim, OpenError> {
        let mut claimed = lock(&self.claimed);
        let taken = queues.iter().find(|queue| claimed.queues.contains(queue));
        if taken.is_some() && claimed.reservations().any(|held| held.local() == bind) {
            return Err(OpenError::Bind {
                address: bind,
                source: std::io::Error::from_raw_os_error(libc::EADDRINUSE),
            });
        }
        if let Some(queue) = taken {
            return Err(OpenError::Unavailable(format!(
                "queue {queue} of {} is held by another port of this process: a lane can have one port here",
                device.name
            )));
        }
        claimed.queues.extend_from_slice(queues);
        Ok(Claim {
            attachment: Arc::clone(self),
            queues: queues.to_vec(),
            reservation: None,
        })
    }
}

impl Claimed {
    fn reservations(&self) -> impl Iterator<Item = Arc<Reservation>> {
        self.reservations.iter().filter_map(Weak::upgrade)
    }
}

impl Claim {
    /// Has datagrams that arrive on `queue`, one of the claimed, go to `socket`.
    pub(crate) fn steer(&self, queue: u32, socket: &impl AsFd) -> Result<(), OpenError> {
        self.attachment
            .maps()
            .steer(queue, socket)
            .map_err(|source| OpenError::System {
                action: format!(
                    "cannot enter the socket of queue {queue} into the XDP program's map"
                ),
                source,
            })
    }

    /// Reserves the address with the kernel, or shares the reservation of another port of this process, and has
    /// the program take its datagrams. Returns it with the port that was chosen where none was asked for.
    pub(crate) fn reserve(&mut self, bind: SocketAddr) -> Result<SocketAddr, OpenError> {
        let mut claimed = lock(&self.attachment.claimed);
        claimed
            .reservations
            .retain(|reservation| reservation.strong_count() > 0);
        let shared = claimed
            .reservations()
            .find(|shared| bind.port() != 0 && shared.local() == bind);
        let reservation = match shared {
            Some(shared) => shared,
            None => {
                let made = Arc::new(Reservation::new(bind)?);
                claimed.reservations.push(Arc::downgrade(&made));
                made
            }
        };
        let local = reservation.local();
        self.attachment
            .maps()
            .accept(local)
            .map_err(|source| OpenError::System {
                action: format!("cannot enter {local} into the XDP program's map"),
                source,
            })?;
        self.reservation = Some(reservation);
        Ok(local)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut maps = self.attachment.maps();
        if let Some(reservation) = &self.reservation {
            maps.refuse(reservation.local());
        }
        for queue in &self.queues {
            maps.unsteer(*queue);
        }
        drop(maps);
        lock(&self.attachment.claimed)
            .queues
            .retain(|queue| !self.queues.contains(queue));
    }
}

/// Takes a lock whose holders leave the data whole even if they panic: each changes one thing at a time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
