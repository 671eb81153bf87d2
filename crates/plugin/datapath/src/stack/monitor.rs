//! The monitor thread: keeps what lanes read about next hops and interfaces true to the kernel's
//! tables.
//!
//! One thread for each datapath. It sleeps until the kernel reports a change or a lane asks for
//! something new, waits for a burst of changes to end, asks again about whatever the burst touched,
//! publishes what differs and then raises the generation. What is unresolved is asked again from
//! time to time as well, since the kernel reports a neighbour that answers, but not every cause of
//! one that does not.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::messages::{Event, Link};
use super::netlink::{Events, Netlink};
use super::watch::{Changed, Command, Notify, Query, Slot};
use super::{InterfaceState, NextHop};

/// A burst of events has ended when none came for this long.
const QUIET: Duration = Duration::from_millis(2);
/// How long a burst may put off looking at its effects.
const LONGEST_BURST: Duration = Duration::from_millis(20);
/// First and longest interval between questions about what is unresolved.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// How often routes by a gateway are asked for again: the kernel tells nobody when it learns a path
/// MTU.
const PATH_MTU: Duration = Duration::from_secs(5);

/// A watched destination with what the last answer depended on.
struct DestinationEntry {
    query: Query,
    slot: Arc<Slot<NextHop>>,
    /// The neighbour that the next hop is, and its interface.
    neighbour: Option<(u32, IpAddr)>,
    /// The next hop is a gateway.
    routed: bool,
    unresolved: bool,
    dirty: bool,
}

struct InterfaceEntry {
    ifindex: u32,
    changed: Changed,
    slot: Arc<Slot<InterfaceState>>,
}

pub(super) struct Monitor {
    tables: Netlink,
    events: Events,
    woken: OwnedFd,
    commands: Receiver<Command>,
    generation: Arc<AtomicU64>,
    destinations: HashMap<u64, DestinationEntry>,
    interfaces: HashMap<u64, InterfaceEntry>,
    /// Interfaces that have gone since those who follow them were told last.
    gone: Vec<u32>,
    notify: Option<Notify>,
    /// Forwarding tables have changed since the last notice.
    forwarding_dirty: bool,
    /// The generation of the last notice.
    notified: u64,
}

impl Monitor {
    pub(super) fn new(
        tables: Netlink,
        events: Events,
        woken: OwnedFd,
        commands: Receiver<Command>,
        generation: Arc<AtomicU64>,
        notify: Option<Notify>,
    ) -> Self {
        Self {
            notify,
            forwarding_dirty: false,
            notified: 0,
            tables,
            events,
            woken,
            commands,
            generation,
            destinations: HashMap::new(),
            interfaces: HashMap::new(),
            gone: Vec::new(),
        }
    }

    /// Works until it is told to stop.
    pub(super) fn run(mut self) {
        let mut retry = RETRY.0;
        let mut next_retry = Instant::now() + retry;
        let mut next_path_mtu = Instant::now() + PATH_MTU;
        loop {
            let mut next = None;
            if self.destinations.values().any(|entry| entry.unresolved) {
                next = Some(next_retry);
            } else {
                retry = RETRY.0;
                next_retry = Instant::now() + retry;
            }
            if self.destinations.values().any(|entry| entry.routed) {
                next = Some(next.map_or(next_path_mtu, |next| next.min(next_path_mtu)));
            }
            let timeout = next.map(|next| next.saturating_duration_since(Instant::now()));
            wait(&[self.events.as_fd(), self.woken.as_fd()], timeout);
            let known = self.destinations.len();
            if !self.obey() {
                return;
            }
            if self.destinations.len() > known {
                retry = RETRY.0;
                next_retry = Instant::now() + retry;
            }
            let interfaces_dirty = self.collect();
            if Instant::now() >= next_retry {
                retry = (retry * 2).min(RETRY.1);
                next_retry = Instant::now() + retry;
                self.destinations
                    .values_mut()
                    .for_each(|entry| entry.dirty |= entry.unresolved);
            }
            if Instant::now() >= next_path_mtu {
                next_path_mtu = Instant::now() + PATH_MTU;
                self.destinations
                    .values_mut()
                    .for_each(|entry| entry.dirty |= entry.routed);
            }
            self.refresh(interfaces_dirty);
            self.tell();
        }
    }

    /// Tells of changes since the last time.
    fn tell(&mut self) {
        let Some(notify) = &self.notify else { return };
        // Relaxed: this thread alone raises it.
        let generation = self.generation.load(Ordering::Relaxed);
        if std::mem::take(&mut self.forwarding_dirty) | (generation != self.notified) {
            self.notified = generation;
            notify();
        }
    }

    /// Carries out what lanes asked for. False: stop.
    fn obey(&mut self) -> bool {
        let mut count = [0; 8];
        // SAFETY: the descriptor is open and `count` is eight writable bytes; an empty counter
        // fails with EAGAIN, which is as good.
        unsafe {
            libc::read(
                self.woken.as_raw_fd(),
                count.as_mut_ptr().cast(),
                count.len(),
            )
        };
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::WatchDestination(query, slot, answered) => {
                    let mut entry = DestinationEntry {
                        query,
                        slot: Arc::clone(&slot),
                        neighbour: None,
                        routed: false,
                        unresolved: true,
                        dirty: false,
                    };
                    self.resolve_entry(&mut entry);
                    self.destinations.insert(slot.id, entry);
                    answered();
                }
                Command::WatchInterface(ifindex, changed, slot, reply) => {
                    // What has gone until now is not what is followed from now on.
                    let interfaces_dirty = self.collect();
                    self.refresh(interfaces_dirty);
                    let entry = InterfaceEntry {
                        ifindex,
                        changed,
                        slot: Arc::clone(&slot),
                    };
                    self.interfaces.insert(slot.id, entry);
                    self.refresh_interfaces();
                    // Who has gone meanwhile sends `Forget`.
                    let _ = reply.send(());
                }
                Command::Forget(id) => {
                    self.destinations.remove(&id);
                    self.interfaces.remove(&id);
                }
                Command::Stop => return false,
            }
        }
        true
    }

    /// Reads events until they pause and marks what they touch. True: interfaces are touched.
    fn collect(&mut self) -> bool {
        let mut interfaces_dirty = false;
        let mut any = false;
        let give_up = Instant::now() + LONGEST_BURST;
        loop {
            let mut some = false;
            let destinations = &mut self.destinations;
            let forwarding_dirty = &mut self.forwarding_dirty;
            let gone = &mut self.gone;
            let drained = self.events.drain(|event| {
                if event == Event::Forwarding {
                    *forwarding_dirty = true;
                    return;
                }
                some = true;
                interfaces_dirty |= matches!(event, Event::Interface | Event::Gone(_));
                if let Event::Gone(ifindex) = event {
                    gone.push(ifindex);
                }
                match event {
                    Event::Neighbour { ifindex, address } => destinations
                        .values_mut()
                        .filter(|entry| entry.neighbour == Some((ifindex, address)))
                        .for_each(|entry| entry.dirty = true),
                    Event::Forwarding => {}
                    Event::Interface | Event::Gone(_) | Event::Route => {
                        destinations
                            .values_mut()
                            .for_each(|entry| entry.dirty = true);
                    }
                }
            });
            if let Err(error) = drained {
                tracing::warn!(%error, "cannot read changes of the tables; asking for all again");
                destinations
                    .values_mut()
                    .for_each(|entry| entry.dirty = true);
                interfaces_dirty = true;
            }
            any |= some;
            if !any || Instant::now() >= give_up || !wait(&[self.events.as_fd()], Some(QUIET)) {
                return interfaces_dirty;
            }
        }
    }

    fn refresh(&mut self, interfaces_dirty: bool) {
        if interfaces_dirty {
            self.refresh_interfaces();
        }
        let mut destinations = std::mem::take(&mut self.destinations);
        destinations
            .values_mut()
            .filter(|entry| entry.dirty)
            .for_each(|entry| self.resolve_entry(entry));
        self.destinations = destinations;
    }

    fn resolve_entry(&mut self, entry: &mut DestinationEntry) {
        entry.dirty = false;
        match self.resolve(entry.query) {
            Ok(Some((next_hop, neighbour))) => {
                entry.unresolved = next_hop.dst_mac.is_none();
                entry.routed = neighbour.1 != entry.query.destination;
                entry.neighbour = Some(neighbour);
                publish(&self.generation, &entry.slot, Some(next_hop));
            }
            Ok(None) => {
                // A route that comes is reported by an event.
                entry.unresolved = false;
                entry.neighbour = None;
                publish(&self.generation, &entry.slot, None);
            }
            Err(error) => {
                // What was known stays until the tables can be read again.
                tracing::warn!(%error, destination = %entry.query.destination, "cannot ask for the route");
                entry.unresolved = true;
            }
        }
        if !entry.slot.known.load(Ordering::Relaxed) {
            // Pairs with the Acquire load in `Destination::is_known`; the generation, with who looks at it only.
            entry.slot.known.store(true, Ordering::Release);
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Asks route, link and neighbour; has the kernel resolve a neighbour that is missing or stale.
    fn resolve(&mut self, query: Query) -> io::Result<Option<(NextHop, (u32, IpAddr))>> {
        let Some(route) = self.tables.route(query)? else {
            return Ok(None);
        };
        let Some(src_ip) = query.source.or(route.src_ip) else {
            return Ok(None);
        };
        let Some(link) = self.tables.link(route.ifindex)? else {
            return Ok(None);
        };
        let Some(src_mac) = link.mac else {
            return Ok(None);
        };
        let (ifindex, vlan, up) = match link.vlan {
            None => (link.ifindex, None, link.up),
            Some((below, id)) => {
                let Some(lower) = self.tables.link(below)? else {
                    return Ok(None);
                };
                (below, Some(id), link.up && lower.up)
            }
        };
        let address = route.gateway.unwrap_or(query.destination);
        let neighbour = if up {
            self.tables.neighbour(link.ifindex, address)?
        } else {
            None
        };
        if up
            && neighbour.as_ref().is_none_or(|entry| entry.stale)
            && let Err(error) = self.tables.use_neighbour(link.ifindex, address)
        {
            tracing::debug!(%error, %address, interface = link.name, "cannot have the neighbour resolved");
        }
        let next_hop = NextHop {
            device: link.ifindex,
            kind: link.kind,
            gateway: route.gateway,
            ifindex,
            vlan,
            src_mac,
            dst_mac: neighbour.map(|entry| entry.mac),
            src_ip,
            mtu: route.mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu)),
            up,
        };
        Ok(Some((next_hop, (link.ifindex, address))))
    }

    fn refresh_interfaces(&mut self) {
        let gone = std::mem::take(&mut self.gone);
        if self.interfaces.is_empty() {
            return;
        }
        // All of them before any is told of an interface that is in the place of one by now: who is told of that may ask
        // others whether theirs is another.
        for entry in self.interfaces.values_mut() {
            if gone.contains(&entry.ifindex) && publish(&self.generation, &entry.slot, None) {
                (entry.changed)(None);
            }
        }
        let tables = self
            .tables
            .links()
            .and_then(|links| Ok((links, self.tables.addresses()?)));
        let (links, addresses) = match tables {
            Ok(tables) => tables,
            Err(error) => {
                tracing::warn!(%error, "cannot list interfaces and addresses");
                return;
            }
        };
        for entry in self.interfaces.values_mut() {
            let state = interface_state(entry.ifindex, &links, &addresses);
            if publish(&self.generation, &entry.slot, state) {
                (entry.changed)(entry.slot.now.load().as_deref());
            }
        }
    }
}

/// Stores `value` where it differs from what is published, then raises the generation; true when it
/// differed.
fn publish<T: PartialEq + std::fmt::Debug>(
    generation: &AtomicU64,
    slot: &Slot<T>,
    value: Option<T>,
) -> bool {
    if slot.now.load().as_deref() == value.as_ref() {
        return false;
    }
    tracing::debug!(?value, "published");
    slot.now.store(value.map(Arc::new));
    // Pairs with the Acquire load in `Generations::current`.
    generation.fetch_add(1, Ordering::Release);
    true
}

fn interface_state(
    ifindex: u32,
    links: &[Link],
    addresses: &[(u32, IpAddr)],
) -> Option<InterfaceState> {
    let link = links.iter().find(|link| link.ifindex == ifindex)?;
    let ours = |owner: u32| {
        owner == ifindex
            || links.iter().any(|link| {
                link.ifindex == owner && link.vlan.is_some_and(|(below, _)| below == ifindex)
            })
    };
    Some(InterfaceState {
        name: link.name.clone(),
        mac: link.mac,
        mtu: link.mtu,
        up: link.up,
        addresses: addresses
            .iter()
            .filter(|(owner, _)| ours(*owner))
            .map(|(_, address)| *address)
            .collect(),
    })
}

/// Waits until one of the descriptors is readable; false when the time is over first.
fn wait(descriptors: &[BorrowedFd<'_>], timeout: Option<Duration>) -> bool {
    let mut polled = [libc::pollfd {
        fd: -1,
        events: libc::POLLIN,
        revents: 0,
    }; 2];
    for (entry, descriptor) in polled.iter_mut().zip(descriptors) {
        entry.fd = descriptor.as_raw_fd();
    }
    // Rounded up: waking before the time would only turn the loop once more.
    let millis = timeout.map_or(-1, |time| {
        time.as_micros().div_ceil(1000).min(60_000) as libc::c_int
    });
    // SAFETY: `polled` is an array of as many initialised entries as the length says; an entry with
    // descriptor -1 is skipped.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis) > 0 }
}
