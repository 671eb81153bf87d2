//! A lane's port: its receive queues, its sending half and its peers.
//!
//! The first of the port's queues sends; every one of them receives. Reserving and receiving look
//! once for each call whether anything has changed in the routing tables, and only then take the
//! slow path.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use takt_datapath::stack::{Generations, InterfaceState};
use takt_datapath::{
    ConnectError, Datagram, Frame, OpenError, PeerHandle, Port, PortCounters, PortRequest,
    ReserveError, Resolver, Way,
};
use takt_time::{TaiTime, TrafficClass};
use takt_wire::{ethernet, vlan};

use crate::Probed;
use crate::attachment::{Attachment, Claim};
use crate::config::XdpConfig;
use crate::peers::{Origin, Peer, Peers, Ways};
use crate::queue::{JoinError, Member, Outstanding, Sender, Shares, upper_ring};
use crate::receive::{Filter, Receive};
use crate::renewal::{Berth, Site};
use crate::reservation::Reservation;
use crate::socket::{PoolOptions, SocketError};
use crate::transmit::{self, Transmit};
use crate::umem;

/// The interface itself, for frames of others: no place of a peer has such a number.
const LINK: PeerHandle = PeerHandle(u32::MAX);

/// A port on AF_XDP sockets.
#[derive(Debug)]
pub(crate) struct XdpPort {
    bound: Bound,
    peers: Peers,
    counters: PortCounters,
    /// Of sockets that were before.
    dropped_before: u64,
    /// Frames that are reserved and neither committed nor given back.
    out: u32,
    /// Longest frame of others; none while the interface is down or gone.
    longest_frame: Option<usize>,
    /// Frames of others are sent: [`LINK`] names the interface.
    linked: bool,
    generations: Generations,
    seen: u64,
    /// Queue to look at first next time.
    turn: usize,
    busy_poll: bool,
    /// How often the descriptors to sleep on have become others.
    changes: u32,
    ways: Ways,
    berth: Arc<Berth>,
}

/// What of a port belongs to one interface, and goes with it.
#[derive(Debug)]
pub(crate) struct Bound {
    claim: Claim,
    queues: Vec<Receive>,
    transmit: Transmit,
    filter: Filter,
    origin: Origin,
    /// The sending queue keeps launch times.
    launch_times: bool,
    attachment: Arc<Attachment>,
}

impl Bound {
    /// Sockets on the queues of a lane, for datagrams of the address that is reserved.
    pub(crate) fn open(
        config: &XdpConfig,
        probed: &Probed,
        request: &PortRequest,
        reservation: Arc<Reservation>,
    ) -> Result<Self, OpenError> {
        let (device, attachment) = (&probed.device, &probed.attachment);
        let (numbers, ports_per_queue) = probed.queues_of(config, request)?;
        let state = attachment.interface_state().ok_or_else(|| {
            OpenError::Unavailable(format!(
                "{} has been removed since it was probed",
                device.name
            ))
        })?;
        let address = local_address(request.bind, &state.addresses, &device.name)?;
        let claim = attachment.claim(reservation)?;
        let local = SocketAddr::new(address, claim.local().port());

        let chunk = umem::chunk_for(state.mtu);
        let shares = Shares {
            ports: ports_per_queue,
            rx_chunks: config.rx_ring * if probed.traits.zero_copy { 2 } else { 1 }
                + upper_ring(config.rx_ring),
            tx_chunks: config.tx_frames * transmit::chunks_per_frame(state.mtu, chunk),
            chunk,
        };
        let (queues, sender) = join(config, probed, &numbers, shares, state.mtu)?;
        // Another port may have opened the queue, when the MTU was another.
        let chunks = transmit::chunks_per_frame(state.mtu, sender.area.chunk());
        let transmit = Transmit::new(sender, chunks, config.checksum);
        let frame_capacity = transmit.frame_capacity();
        let launch_times = queues[0].member.queue.launch_times();
        let bound = Self {
            claim,
            queues,
            transmit,
            filter: Filter {
                addresses: likeliest_first(&state.addresses, address),
                verify: config.checksum,
                unfinished_checksums: probed.unfinished_checksums(),
                ifindex: device.ifindex,
            },
            origin: Origin {
                ifindex: device.ifindex,
                bind: SocketAddr::new(request.bind.ip(), local.port()),
                local,
                frame_capacity,
                limit: config.peers,
            },
            launch_times,
            attachment: Arc::clone(attachment),
        };
        for queue in &bound.queues {
            bound.claim.place(
                queue.member.queue.number(),
                &queue.member.socket,
                &queue.member.upper,
            )?;
        }
        bound.claim.accept()?;
        Ok(bound)
    }

    /// Datagrams that found no room. A socket that cannot tell any more (its interface is gone) has lost nothing since.
    fn dropped(&self) -> u64 {
        self.queues
            .iter()
            .flat_map(|queue| [&queue.member.socket, &queue.member.upper])
            .filter_map(|socket| socket.statistics().ok())
            .map(|statistics| statistics.rx_dropped + statistics.rx_ring_full)
            .sum()
    }
}

impl XdpPort {
    pub(crate) fn open(site: &Site, request: &PortRequest) -> Result<Self, OpenError> {
        let (config, probed) = (&site.config, site.probed());
        // Read before the state: what changes in between is seen as a change.
        let next_hops = Arc::clone(probed.attachment.next_hops());
        let generations = next_hops.generations();
        let seen = generations.current();
        let reservation = Arc::new(Reservation::new(request.bind)?);
        let bound = Bound::open(config, &probed, request, Arc::clone(&reservation))?;
        let state = bound.attachment.interface_state();
        // The same address when the interface is another: whichever was chosen, where any would do.
        let request = PortRequest {
            bind: bound.origin.bind,
            ..request.clone()
        };
        let berth = Berth::new(request, reservation);
        site.add(&berth);
        Ok(Self {
            peers: Peers::new(bound.origin, state.as_ref().is_some_and(|state| state.up)),
            counters: PortCounters::default(),
            dropped_before: 0,
            out: 0,
            longest_frame: state.and_then(|state| longest_frame(&state, &bound.transmit)),
            linked: false,
            generations,
            seen,
            turn: 0,
            busy_poll: config.busy_poll.is_some(),
            changes: 0,
            ways: Ways::new(next_hops, &bound.origin),
            berth,
            bound,
        })
    }

    #[inline]
    fn is_link(&self, peer: PeerHandle) -> bool {
        self.linked && peer == LINK
    }

    /// Takes over changes of routes, neighbours and addresses, and sockets that were made anew.
    #[inline]
    fn follow(&mut self) {
        let now = self.generations.current();
        if now != self.seen || self.berth.is_there() {
            self.refresh(now);
        }
    }

    /// Takes over sockets on an interface that is in the place of ours.
    #[cold]
    fn take_over(&mut self) {
        let Some(new) = self.berth.take() else { return };
        self.changes = self.changes.wrapping_add(1);
        let old = std::mem::replace(&mut self.bound, new);
        self.dropped_before += old.dropped();
        // What has been committed and not handed over goes with the old sockets.
        self.counters.tx_errors += old.transmit.unsent();
        self.berth.leave(old);
        self.ways.move_to(self.bound.origin.ifindex);
        self.peers.move_to(self.bound.origin, &self.ways);
        self.turn = 0;
    }

    #[cold]
    fn refresh(&mut self, generation: u64) {
        self.seen = generation;
        // A frame that somebody writes into is one of the old sockets'.
        if self.out == 0 && self.berth.is_there() {
            self.take_over();
        }
        let state = self.bound.attachment.interface_state();
        let up = state.as_ref().is_some_and(|state| state.up);
        self.peers.refresh(up);
        let longest = state
            .as_ref()
            .and_then(|state| longest_frame(state, &self.bound.transmit));
        self.longest_frame = longest;
        // An interface that is gone keeps its last addresses: nothing arrives any more.
        if let Some(state) = state {
            let local = self.bound.origin.local.ip();
            self.bound.filter.addresses = likeliest_first(&state.addresses, local);
        }
    }
}

impl Port for XdpPort {
    fn local(&self) -> SocketAddr {
        self.bound.origin.local
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<PeerHandle, ConnectError> {
        if let Some(known) = self.peers.admit(remote)? {
            return Ok(known);
        }
        let peer = self.peers.enter(remote, self.ways.wait(remote)?);
        if !self.reaches(peer) {
            self.peers.disconnect(peer);
            return Err(ConnectError::NoRoute(remote));
        }
        Ok(peer)
    }

    fn resolver(&self) -> Option<Box<dyn Resolver>> {
        Some(Box::new(self.ways.clone()))
    }

    fn connect_at_once(
        &mut self,
        remote: SocketAddr,
        way: Option<Way>,
    ) -> Result<PeerHandle, ConnectError> {
        if let Some(known) = self.peers.admit(remote)? {
            return Ok(known);
        }
        // The generation tells when the answer has come.
        let way = way.map_or_else(|| self.ways.ask(remote, || {}), Ok)?;
        Ok(self.peers.enter(remote, way))
    }

    fn reaches(&mut self, peer: PeerHandle) -> bool {
        self.follow();
        self.is_link(peer) || self.peers.get(peer).is_some_and(Peer::is_reached)
    }

    fn connect_link(&mut self, interface: Option<u32>) -> Result<PeerHandle, ConnectError> {
        self.follow();
        if let Some(other) = interface.filter(|index| *index != self.bound.attachment.ifindex()) {
            return Err(ConnectError::OtherInterface(other));
        }
        self.linked = true;
        Ok(LINK)
    }

    fn disconnect(&mut self, peer: PeerHandle) {
        self.peers.disconnect(peer);
    }

    fn max_payload(&self, peer: PeerHandle) -> usize {
        if self.is_link(peer) {
            return self.longest_frame.unwrap_or(0);
        }
        self.peers.get(peer).map_or(0, |peer| peer.max_payload())
    }

    #[inline]
    fn reserve(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        self.follow();
        let capacity = if self.is_link(peer) {
            self.longest_frame.ok_or(ReserveError::Unresolved)?
        } else {
            let known = self.peers.get(peer).ok_or(ReserveError::UnknownPeer)?;
            if !known.is_resolved() {
                return Err(ReserveError::Unresolved);
            }
            known.max_payload()
        };
        let Bound {
            queues, transmit, ..
        } = &mut self.bound;
        let queue = &queues[0].member.queue;
        let frame = transmit
            .reserve(queue, peer, capacity)
            .ok_or(ReserveError::WouldBlock)?;
        self.out += 1;
        Ok(frame)
    }

    #[inline]
    fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        self.bound.transmit.payload(frame)
    }

    #[inline]
    fn commit(
        &mut self,
        frame: Frame,
        len: usize,
        class: TrafficClass,
        launch_time: Option<TaiTime>,
    ) {
        self.out -= 1;
        let Bound {
            queues,
            transmit,
            launch_times,
            ..
        } = &mut self.bound;
        let launch_time = launch_time.filter(|_| *launch_times);
        // `Some(None)`: a frame of others, as it is.
        let headers = match transmit.peer(&frame) {
            Some(LINK) => self.longest_frame.map(|_| None),
            peer => peer
                .and_then(|peer| self.peers.get(peer))
                .and_then(|peer| peer.headers(class))
                .map(Some),
        };
        let queued = match headers {
            Some(headers) => {
                let socket = &mut queues[0].member.socket;
                transmit.commit(socket, frame, headers, len, launch_time)
            }
            // The next hop or the peer has gone since the frame was reserved.
            None => {
                transmit.cancel(frame);
                false
            }
        };
        self.counters.tx_errors += u64::from(!queued);
    }

    fn keeps_launch_time(&self, _peer: PeerHandle, _class: TrafficClass) -> bool {
        self.bound.launch_times
    }

    fn cancel(&mut self, frame: Frame) {
        self.out -= 1;
        self.bound.transmit.cancel(frame);
    }

    #[inline]
    fn flush(&mut self) -> bool {
        let Bound {
            queues, transmit, ..
        } = &mut self.bound;
        let Member { socket, queue, .. } = &mut queues[0].member;
        transmit.flush(socket, queue, &mut self.counters)
    }

    #[inline]
    fn receive(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        self.follow();
        let Bound { queues, filter, .. } = &mut self.bound;
        if let [only] = queues.as_mut_slice() {
            return only.receive(budget, filter, &mut self.counters, deliver);
        }
        let mut delivered = 0;
        let (later, first) = queues.split_at_mut(self.turn);
        for queue in first.iter_mut().chain(later) {
            delivered += queue.receive(budget - delivered, filter, &mut self.counters, deliver);
        }
        self.turn = (self.turn + 1) % queues.len();
        delivered
    }

    fn receive_costs_syscall(&self) -> bool {
        self.busy_poll
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        let members = self.bound.queues.iter().map(|queue| &queue.member);
        members
            .flat_map(|member| [member.socket.as_fd(), member.upper.as_fd()])
            .collect()
    }

    fn wait_fd_changes(&self) -> u32 {
        self.changes
    }

    fn counters(&self) -> PortCounters {
        let mut counters = self.counters;
        counters.rx_dropped =
            self.dropped_before + self.bound.dropped() + self.berth.reservation.dropped();
        counters
    }
}

/// Longest frame of others that the interface and a frame to send take: a packet as long as its
/// MTU, a header and a tag. `None`: the interface is down.
fn longest_frame(state: &InterfaceState, transmit: &Transmit) -> Option<usize> {
    let longest = state.mtu as usize + ethernet::HEADER_LEN + vlan::TAG_LEN;
    state.up.then(|| longest.min(transmit.frame_capacity()))
}

/// Joins the queues; the first one sends. Leaves those joined already when one cannot be.
fn join(
    config: &XdpConfig,
    probed: &Probed,
    numbers: &[u32],
    shares: Shares,
    mtu: u32,
) -> Result<(Vec<Receive>, Sender), OpenError> {
    let mut queues = Vec::with_capacity(numbers.len());
    let mut sender = None;
    for number in numbers {
        let options = PoolOptions {
            ifindex: probed.device.ifindex,
            queue: *number,
            tx_chunks: shares.ports * shares.tx_chunks,
            zero_copy: probed.traits.zero_copy,
            multi_buffer: probed.traits.multi_buffer,
            launch_times: transmit::chunks_per_frame(mtu, shares.chunk) == 1
                && probed.launch_queues.contains(number),
        };
        let joined = probed.attachment.queue(&options, shares).and_then(|queue| {
            queue
                .join(sender.is_none(), mtu, config.rx_ring, config.busy_poll)
                .map_err(|error| {
                    join_error(error, &format!("queue {number} of {}", probed.device.name))
                })
        });
        match joined {
            Ok((member, sending)) => {
                queues.push(Receive::new(member, config.busy_poll.is_some()));
                sender = sender.or(sending);
            }
            Err(error) => {
                for queue in queues {
                    queue
                        .member
                        .close()
                        .leave(sender.take().map(|sender| (sender, Outstanding::default())));
                }
                return Err(error);
            }
        }
    }
    let sender = sender
        .ok_or_else(|| OpenError::Unavailable("a port without a queue cannot send".into()))?;
    Ok((queues, sender))
}

/// The address that `Port::local` tells: the one asked for, or the interface's first where any will
/// do.
fn local_address(
    bind: SocketAddr,
    addresses: &[IpAddr],
    interface: &str,
) -> Result<IpAddr, OpenError> {
    let wanted = bind.ip();
    if !wanted.is_unspecified() {
        if addresses.contains(&wanted) {
            return Ok(wanted);
        }
        return Err(OpenError::Bind {
            address: bind,
            source: io::Error::from_raw_os_error(libc::EADDRNOTAVAIL),
        });
    }
    let of_family = |address: &&IpAddr| address.is_ipv4() == wanted.is_ipv4();
    let global =
        |address: &&IpAddr| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    addresses
        .iter()
        .filter(of_family)
        .find(global)
        .or_else(|| addresses.iter().find(of_family))
        .copied()
        .ok_or_else(|| {
            let family = if wanted.is_ipv4() { "IPv4" } else { "IPv6" };
            OpenError::Unavailable(format!(
                "{interface} has no {family} address: `ip address add` one"
            ))
        })
}

/// The addresses with `first` before the others.
fn likeliest_first(addresses: &[IpAddr], first: IpAddr) -> Vec<IpAddr> {
    let mut sorted = addresses.to_vec();
    sorted.sort_by_key(|address| *address != first);
    sorted
}

impl Drop for Bound {
    /// The program stops first, then the sockets close, and what they held goes back to their
    /// queues, once nothing puts any more there.
    fn drop(&mut self) {
        self.claim.release();
        wait_for_programs();
        for (position, queue) in self.queues.drain(..).enumerate() {
            let beside = queue.member.queue.zero_copy();
            let mut closed = queue.member.close();
            let sender = (position == 0).then(|| self.transmit.finish(&mut closed.tx, beside));
            closed.leave(sender);
        }
    }
}

/// Waits until every run of the XDP program that has begun before has ended: it may have looked up a socket whose entry is gone
/// from the map by now, and what it puts there after the last look would be lost to the queue.
fn wait_for_programs() {
    /// `MEMBARRIER_CMD_GLOBAL` of `linux/membarrier.h`: a grace period of RCU, under which such programs run.
    const GLOBAL: libc::c_int = 1;
    // Where the kernel does not offer it (it refuses it when started with `nohz_full`), that is as likely as it was.
    // SAFETY: plain call without pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
}

/// What the failure to join a queue means to whoever opens a port.
pub(crate) fn join_error(error: JoinError, what: &str) -> OpenError {
    match error {
        JoinError::Socket(error) => open_error(error, what),
        JoinError::Full(_) => {
            OpenError::Unavailable(format!("{what}: {error}, its limit: raise ports_per_queue"))
        }
        JoinError::LongFrames | JoinError::Draining => {
            OpenError::Unavailable(format!("{what}: {error}"))
        }
    }
}

/// What a socket's error means to whoever opens a port.
pub(crate) fn open_error(error: SocketError, what: &str) -> OpenError {
    match error.source.raw_os_error() {
        Some(libc::EPERM) => crate::privilege::refused("create AF_XDP sockets"),
        Some(libc::EAFNOSUPPORT) => {
            OpenError::Unavailable("this kernel has no AF_XDP: it needs CONFIG_XDP_SOCKETS".into())
        }
        Some(libc::ENOBUFS) if error.action.contains("UMEM") => OpenError::Privilege(
            "the locked-memory limit is too low for the frames: grant CAP_IPC_LOCK or raise \
             `ulimit -l` (LimitMEMLOCK= in a systemd unit)"
                .into(),
        ),
        Some(libc::EBUSY) => OpenError::Unavailable(format!(
            "{what} is held by an AF_XDP socket of another program"
        )),
        _ => OpenError::System {
            action: format!("cannot {} for {what}", error.action),
            source: error.source,
        },
    }
}
