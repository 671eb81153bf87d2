//! A lane's port: its receive queues, its sending half and its peers.
//!
//! The first of the port's queues sends; every one of them receives. Reserving and receiving look
//! once for each call whether anything has changed in the routing tables, and only then take the
//! slow path.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use takt_datapath::stack::{Generations, InterfaceState};
use takt_datapath::{
    ConnectError, Datagram, Frame, OpenError, PeerHandle, Port, PortCounters, PortRequest,
    ReserveError, Resolver, Way,
};
use takt_time::{TaiTime, TrafficClass};
use takt_wire::{ethernet, vlan};

use crate::XdpDatapath;
use crate::attachment::{Attachment, Claim};
use crate::peers::{Origin, Peer, Peers, Ways};
use crate::queue::{JoinError, Member, Sender, Shares};
use crate::receive::{Filter, Receive};
use crate::socket::{PoolOptions, SocketError};
use crate::transmit::{self, Transmit};

/// The interface itself, for frames of others: no place of a peer has such a number.
const LINK: PeerHandle = PeerHandle(u32::MAX);

/// A port on AF_XDP sockets.
#[derive(Debug)]
pub(crate) struct XdpPort {
    claim: Claim,
    queues: Vec<Receive>,
    transmit: Transmit,
    peers: Peers,
    filter: Filter,
    counters: PortCounters,
    local: SocketAddr,
    /// Longest frame of others; none while the interface is down or gone.
    longest_frame: Option<usize>,
    /// Frames of others are sent: [`LINK`] names the interface.
    linked: bool,
    /// The sending queue keeps launch times.
    launch_times: bool,
    generations: Generations,
    seen: u64,
    /// Queue to look at first next time.
    turn: usize,
    busy_poll: bool,
    /// All sockets in one, where there are several.
    epoll: Option<OwnedFd>,
    ways: Ways,
    attachment: Arc<Attachment>,
}

impl XdpPort {
    pub(crate) fn open(datapath: &XdpDatapath, request: &PortRequest) -> Result<Self, OpenError> {
        let (config, device) = (&datapath.config, &datapath.device);
        let (numbers, ports_per_queue) = datapath.queues_of(request)?;
        // Read before the state: what changes in between is seen as a change.
        let next_hops = Arc::clone(datapath.attachment.next_hops());
        let generations = next_hops.generations();
        let seen = generations.current();
        let state = datapath.attachment.interface_state().ok_or_else(|| {
            OpenError::Unavailable(format!(
                "{} has been removed since it was probed",
                device.name
            ))
        })?;
        let address = local_address(request.bind, &state.addresses, &device.name)?;
        let claim = datapath.attachment.claim(request.bind)?;
        let local = SocketAddr::new(address, claim.local().port());

        let chunks = transmit::chunks_per_frame(state.mtu);
        let shares = Shares {
            ports: ports_per_queue,
            rx_chunks: config.rx_ring * if datapath.traits.zero_copy { 2 } else { 1 },
            tx_chunks: config.tx_frames * chunks,
            one_chunk: chunks == 1,
        };
        let (queues, sender) = join(datapath, &numbers, shares)?;
        let launch_times = queues[0].member.queue.launch_times();
        let transmit = Transmit::new(sender, chunks, config.checksum);
        let origin = Origin {
            ifindex: device.ifindex,
            bind: SocketAddr::new(request.bind.ip(), local.port()),
            local,
            frame_capacity: transmit::frame_capacity(chunks),
            limit: config.peers,
        };
        let filter = Filter {
            addresses: likeliest_first(&state.addresses, address),
            verify: config.checksum,
            unfinished_checksums: datapath.unfinished_checksums(),
            ifindex: device.ifindex,
        };
        let mut port = Self {
            claim,
            queues,
            transmit,
            peers: Peers::new(origin, state.up),
            filter,
            counters: PortCounters::default(),
            local,
            longest_frame: longest_frame(&state, chunks),
            linked: false,
            launch_times,
            generations,
            seen,
            turn: 0,
            busy_poll: config.busy_poll.is_some(),
            epoll: None,
            ways: Ways::new(next_hops, &origin),
            attachment: Arc::clone(&datapath.attachment),
        };
        if port.queues.len() > 1 {
            port.epoll = Some(gather(&port.queues).map_err(|source| OpenError::System {
                action: "cannot gather the sockets in an epoll descriptor".into(),
                source,
            })?);
        }
        for queue in &port.queues {
            port.claim
                .place(queue.member.queue.number(), &queue.member.socket)?;
        }
        port.claim.accept()?;
        Ok(port)
    }

    #[inline]
    fn is_link(&self, peer: PeerHandle) -> bool {
        self.linked && peer == LINK
    }

    /// Takes over changes of routes, neighbours and addresses.
    #[inline]
    fn follow(&mut self) {
        let now = self.generations.current();
        if now != self.seen {
            self.refresh(now);
        }
    }

    #[cold]
    fn refresh(&mut self, generation: u64) {
        self.seen = generation;
        let state = self.attachment.interface_state();
        let up = state.as_ref().is_some_and(|state| state.up);
        self.peers.refresh(up);
        let longest = state
            .as_ref()
            .and_then(|state| longest_frame(state, self.transmit.chunks()));
        self.longest_frame = longest;
        // An interface that is gone keeps its last addresses: nothing arrives any more.
        if let Some(state) = state {
            self.filter.addresses = likeliest_first(&state.addresses, self.local.ip());
        }
    }
}

impl Port for XdpPort {
    fn local(&self) -> SocketAddr {
        self.local
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
        if let Some(other) = interface.filter(|index| *index != self.attachment.ifindex()) {
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
        let queue = &self.queues[0].member.queue;
        self.transmit
            .reserve(queue, peer, capacity)
            .ok_or(ReserveError::WouldBlock)
    }

    #[inline]
    fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        self.transmit.payload(frame)
    }

    #[inline]
    fn commit(
        &mut self,
        frame: Frame,
        len: usize,
        class: TrafficClass,
        launch_time: Option<TaiTime>,
    ) {
        let launch_time = launch_time.filter(|_| self.launch_times);
        // `Some(None)`: a frame of others, as it is.
        let headers = match self.transmit.peer(&frame) {
            Some(LINK) => self.longest_frame.map(|_| None),
            peer => peer
                .and_then(|peer| self.peers.get(peer))
                .and_then(|peer| peer.headers(class))
                .map(Some),
        };
        let queued = match headers {
            Some(headers) => {
                let socket = &mut self.queues[0].member.socket;
                self.transmit
                    .commit(socket, frame, headers, len, launch_time)
            }
            // The next hop or the peer has gone since the frame was reserved.
            None => {
                self.transmit.cancel(frame);
                false
            }
        };
        self.counters.tx_errors += u64::from(!queued);
    }

    fn keeps_launch_time(&self, _peer: PeerHandle, _class: TrafficClass) -> bool {
        self.launch_times
    }

    fn cancel(&mut self, frame: Frame) {
        self.transmit.cancel(frame);
    }

    #[inline]
    fn flush(&mut self) -> bool {
        let Member { socket, queue, .. } = &mut self.queues[0].member;
        self.transmit.flush(socket, queue, &mut self.counters)
    }

    #[inline]
    fn receive(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        self.follow();
        if let [only] = self.queues.as_mut_slice() {
            return only.receive(budget, &self.filter, &mut self.counters, deliver);
        }
        let mut delivered = 0;
        let (later, first) = self.queues.split_at_mut(self.turn);
        for queue in first.iter_mut().chain(later) {
            delivered += queue.receive(
                budget - delivered,
                &self.filter,
                &mut self.counters,
                deliver,
            );
        }
        self.turn = (self.turn + 1) % self.queues.len();
        delivered
    }

    fn receive_costs_syscall(&self) -> bool {
        self.busy_poll
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        match &self.epoll {
            Some(epoll) => epoll.as_fd(),
            None => self.queues[0].member.socket.as_fd(),
        }
    }

    fn counters(&self) -> PortCounters {
        let mut counters = self.counters;
        // A socket that cannot tell any more (its interface is gone) has lost nothing since.
        counters.rx_dropped = self
            .queues
            .iter()
            .filter_map(|queue| queue.member.socket.statistics().ok())
            .map(|statistics| statistics.rx_dropped + statistics.rx_ring_full)
            .sum();
        counters
    }
}

/// Longest frame of others that the interface and a frame of so many chunks take: a packet as long as its
/// MTU, a header and a tag. `None`: the interface is down.
fn longest_frame(state: &InterfaceState, chunks: u32) -> Option<usize> {
    let longest = state.mtu as usize + ethernet::HEADER_LEN + vlan::TAG_LEN;
    state
        .up
        .then(|| longest.min(transmit::frame_capacity(chunks)))
}

/// Joins the queues; the first one sends. Leaves those joined already when one cannot be.
fn join(
    datapath: &XdpDatapath,
    numbers: &[u32],
    shares: Shares,
) -> Result<(Vec<Receive>, Sender), OpenError> {
    let config = &datapath.config;
    let mut queues = Vec::with_capacity(numbers.len());
    let mut sender = None;
    for number in numbers {
        let options = PoolOptions {
            ifindex: datapath.device.ifindex,
            queue: *number,
            tx_chunks: shares.ports * shares.tx_chunks,
            zero_copy: datapath.traits.zero_copy,
            multi_buffer: datapath.traits.multi_buffer,
            launch_times: shares.one_chunk && datapath.launch_queues.contains(number),
        };
        let joined = datapath
            .attachment
            .queue(&options, shares)
            .and_then(|queue| {
                queue
                    .join(
                        sender.is_none(),
                        shares.one_chunk,
                        config.rx_ring,
                        config.busy_poll,
                    )
                    .map_err(|error| {
                        join_error(
                            error,
                            &format!("queue {number} of {}", datapath.device.name),
                        )
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
                        .leave(sender.take().map(|sender| (sender, 0)));
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

/// An epoll descriptor that is readable when one of the sockets is.
fn gather(queues: &[Receive]) -> io::Result<OwnedFd> {
    // SAFETY: plain call; a descriptor that is not negative is new and owned by nobody else.
    let epoll = match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: as above.
        fd => unsafe { OwnedFd::from_raw_fd(fd) },
    };
    for queue in queues {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        let socket = queue.member.socket.as_fd().as_raw_fd();
        // SAFETY: both descriptors are open and `event` is an event for the length of the call.
        if unsafe {
            libc::epoll_ctl(
                epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                socket,
                &raw mut event,
            )
        } != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(epoll)
}

impl Drop for XdpPort {
    /// The program stops first, then the sockets close, and what they held goes back to their
    /// queues.
    fn drop(&mut self) {
        self.claim.release();
        for (position, queue) in self.queues.drain(..).enumerate() {
            let mut closed = queue.member.close();
            let sender = (position == 0).then(|| self.transmit.finish(&mut closed.tx));
            closed.leave(sender);
        }
    }
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
