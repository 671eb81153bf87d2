//! What datapaths and lanes hold: a handle on the monitor, and the destinations and interfaces that
//! they follow.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use arc_swap::ArcSwapOption;

use super::monitor::Monitor;
use super::netlink::{Events, Netlink};
use super::{InterfaceState, NextHop, StackError};

/// Follows the kernel's tables for one datapath. Dropping it ends its thread.
///
/// It serves the network namespace that [`start`](Self::start) was called in, whichever thread asks
/// later.
#[derive(Debug)]
pub struct NextHops {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the monitor shares with its users.
#[derive(Debug)]
struct Shared {
    commands: Sender<Command>,
    wake: OwnedFd,
    /// Raised after each publication. The Release add pairs with the Acquire load in
    /// [`Generations::current`].
    generation: Generations,
    last_id: AtomicU64,
}

/// A destination that the monitor follows until this is dropped.
#[derive(Debug)]
pub struct Destination {
    shared: Arc<Shared>,
    slot: Arc<Slot<NextHop>>,
}

/// An interface that the monitor follows until this is dropped.
#[derive(Debug)]
pub struct Interface {
    shared: Arc<Shared>,
    slot: Arc<Slot<InterfaceState>>,
}

/// One publication; `None` is "no route" or "no such interface".
#[derive(Debug)]
pub(super) struct Slot<T> {
    pub(super) id: u64,
    pub(super) now: ArcSwapOption<T>,
    /// The tables have been asked. The Release store of the monitor pairs with the Acquire load in
    /// [`Destination::is_known`].
    pub(super) known: AtomicBool,
}

/// Tells whether something has changed; see [`NextHops::generation`].
#[derive(Clone, Debug)]
pub struct Generations(Arc<AtomicU64>);

impl Generations {
    /// The present generation.
    #[inline]
    pub fn current(&self) -> u64 {
        // Pairs with the Release add in `monitor::publish`: who sees the number sees what was
        // stored before it.
        self.0.load(Ordering::Acquire)
    }
}

/// What is asked about a destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query {
    pub(super) destination: IpAddr,
    pub(super) source: Option<IpAddr>,
    /// Out of this interface, unless 0.
    pub(super) oif: u32,
    /// As a packet of another host that has arrived by this interface, unless 0.
    pub(super) iif: u32,
}

/// Called with each new state of an interface.
pub(super) type Changed = Box<dyn FnMut(Option<&InterfaceState>) + Send>;

/// Called after changes.
pub(super) type Notify = Box<dyn Fn() + Send>;

/// Called once the tables have been asked about a destination.
pub(super) type Answered = Box<dyn FnOnce() + Send>;

/// What a watcher asks of the monitor.
pub(super) enum Command {
    WatchDestination(Query, Arc<Slot<NextHop>>, Answered),
    WatchInterface(u32, Changed, Arc<Slot<InterfaceState>>, SyncSender<()>),
    Forget(u64),
    Stop,
}

impl NextHops {
    /// Starts following the tables of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`StackError::Netlink`] when the sockets or the thread cannot be created.
    pub fn start() -> Result<Self, StackError> {
        Self::start_monitor(None)
    }

    /// As [`start`](Self::start), and has the monitor's thread call `changed` after each change of what is
    /// followed and of the forwarding tables of bridges and VXLAN devices. It must be quick.
    ///
    /// # Errors
    /// [`StackError::Netlink`], as [`start`](Self::start).
    pub fn start_notifying(changed: impl Fn() + Send + 'static) -> Result<Self, StackError> {
        Self::start_monitor(Some(Box::new(changed)))
    }

    fn start_monitor(notify: Option<Notify>) -> Result<Self, StackError> {
        let failed = |action| move |source| StackError::Netlink { action, source };
        let events = Events::open().map_err(failed(
            "subscribe to changes of the routing tables by netlink",
        ))?;
        let tables = Netlink::open().map_err(failed("open a netlink socket"))?;
        // SAFETY: plain call; a descriptor that is not negative is new and owned by nobody else.
        let wake = match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } {
            -1 => return Err(failed("create an eventfd")(io::Error::last_os_error())),
            // SAFETY: as above.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        let woken = wake.try_clone().map_err(failed("duplicate an eventfd"))?;
        let (commands, received) = channel();
        let generation = Arc::new(AtomicU64::new(1));
        let monitor = Monitor::new(
            tables,
            events,
            woken,
            received,
            Arc::clone(&generation),
            notify,
        );
        let thread = std::thread::Builder::new()
            .name("takt-next-hops".into())
            .spawn(move || monitor.run())
            .map_err(failed("start the next-hop monitor's thread"))?;
        Ok(Self {
            shared: Arc::new(Shared {
                commands,
                wake,
                generation: Generations(generation),
                last_id: AtomicU64::new(1),
            }),
            thread: Some(thread),
        })
    }

    /// A handle on [`generation`](Self::generation) for hot paths.
    pub fn generations(&self) -> Generations {
        self.shared.generation.clone()
    }

    /// A number that changes after every change of any watched destination or interface: look at
    /// them again when it differs from the one seen last. One load, for every batch.
    pub fn generation(&self) -> u64 {
        self.shared.generation.current()
    }

    /// Follows the way to `destination`, from `source` where that is given, by the interface
    /// `scope` where that is not 0 (link-local destinations need it). The tables have been asked
    /// once when this returns.
    ///
    /// # Errors
    /// [`StackError::Stopped`].
    pub fn watch(
        &self,
        destination: IpAddr,
        source: Option<IpAddr>,
        scope: u32,
    ) -> Result<Destination, StackError> {
        let (reply, answer) = sync_channel(1);
        let answered = move || {
            // Who asked waits for it, or is no more.
            let _ = reply.send(());
        };
        let destination = self.ask(destination, source, scope, answered)?;
        answer.recv().map_err(|_| StackError::Stopped)?;
        Ok(destination)
    }

    /// As [`watch`](Self::watch), but does not wait for the tables: what is returned
    /// [is known](Destination::is_known) later, and the monitor's thread then calls `answered`. It must be quick
    /// and must not hold on to the `NextHops`.
    ///
    /// # Errors
    /// [`StackError::Stopped`].
    pub fn ask(
        &self,
        destination: IpAddr,
        source: Option<IpAddr>,
        scope: u32,
        answered: impl FnOnce() + Send + 'static,
    ) -> Result<Destination, StackError> {
        let query = Query {
            destination,
            source,
            oif: scope,
            iif: 0,
        };
        self.begin(query, Box::new(answered))
    }

    /// Follows the way that this host as a router sends packets from `source` to `destination` which arrive by
    /// the interface `arrival`: by the rules for forwarding, and none where forwarding is off. As
    /// [`ask`](Self::ask) otherwise.
    ///
    /// # Errors
    /// [`StackError::Stopped`].
    pub fn ask_forwarded(
        &self,
        destination: IpAddr,
        source: IpAddr,
        arrival: u32,
        answered: impl FnOnce() + Send + 'static,
    ) -> Result<Destination, StackError> {
        let query = Query {
            destination,
            source: Some(source),
            oif: 0,
            iif: arrival,
        };
        self.begin(query, Box::new(answered))
    }

    fn begin(&self, query: Query, answered: Answered) -> Result<Destination, StackError> {
        let slot = Arc::new(Slot::new(self.shared.next_id()));
        let command = Command::WatchDestination(query, Arc::clone(&slot), answered);
        self.shared.send(command)?;
        Ok(Destination {
            shared: Arc::clone(&self.shared),
            slot,
        })
    }

    /// Follows the interface with index `ifindex`. The tables have been asked once when this
    /// returns.
    ///
    /// # Errors
    /// [`StackError::Stopped`].
    pub fn watch_interface(&self, ifindex: u32) -> Result<Interface, StackError> {
        self.on_interface_change(ifindex, |_| {})
    }

    /// As [`watch_interface`](Self::watch_interface), and has the monitor's thread call `changed`
    /// with each new state, `None` when the interface is gone, even if one of the same index is there
    /// at once; the first time before this returns, unless there is no such interface. It must be
    /// quick and must not hold on to the `NextHops`.
    ///
    /// # Errors
    /// [`StackError::Stopped`].
    pub fn on_interface_change(
        &self,
        ifindex: u32,
        changed: impl FnMut(Option<&InterfaceState>) + Send + 'static,
    ) -> Result<Interface, StackError> {
        let (reply, answer) = sync_channel(1);
        let slot = Arc::new(Slot::new(self.shared.next_id()));
        self.shared.send(Command::WatchInterface(
            ifindex,
            Box::new(changed),
            Arc::clone(&slot),
            reply,
        ))?;
        let interface = Interface {
            shared: Arc::clone(&self.shared),
            slot,
        };
        answer.recv().map_err(|_| StackError::Stopped)?;
        Ok(interface)
    }
}

impl Drop for NextHops {
    fn drop(&mut self) {
        // A monitor that is not there any more has nothing left to stop.
        let _ = self.shared.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<T> Slot<T> {
    fn new(id: u64) -> Self {
        Self {
            id,
            now: ArcSwapOption::empty(),
            known: AtomicBool::new(false),
        }
    }
}

impl Destination {
    /// Whether the tables have been asked yet: before, [`next_hop`](Self::next_hop) tells of nothing.
    pub fn is_known(&self) -> bool {
        // Pairs with the Release store in `Monitor::resolve_entry`.
        self.slot.known.load(Ordering::Acquire)
    }

    /// The present next hop, or `None` when no route leads off this node. Lock-free, but not for
    /// every packet: see [`NextHops::generation`].
    pub fn next_hop(&self) -> Option<Arc<NextHop>> {
        self.slot.now.load_full()
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        // Nothing is left to forget when the monitor has stopped.
        let _ = self.shared.send(Command::Forget(self.slot.id));
    }
}

impl Interface {
    /// The present state, or `None` when the interface does not exist. Lock-free, but not for every
    /// packet: see [`NextHops::generation`].
    pub fn state(&self) -> Option<Arc<InterfaceState>> {
        self.slot.now.load_full()
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        // Nothing is left to forget when the monitor has stopped.
        let _ = self.shared.send(Command::Forget(self.slot.id));
    }
}

impl Shared {
    fn next_id(&self) -> u64 {
        // Relaxed: only that no two are the same matters.
        self.last_id.fetch_add(1, Ordering::Relaxed)
    }

    fn send(&self, command: Command) -> Result<(), StackError> {
        self.commands
            .send(command)
            .map_err(|_| StackError::Stopped)?;
        let one = 1u64.to_ne_bytes();
        // SAFETY: the descriptor is open and `one` is eight readable bytes. The counter cannot
        // overflow in practice, and a full one would be readable all the same.
        unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        Ok(())
    }
}
