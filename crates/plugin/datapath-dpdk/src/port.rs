//! A lane's port: its receive queues, its sending half and its peers.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use takt_datapath::{
    ConnectError, Datagram, Frame, OpenError, PeerHandle, Port, PortCounters, PortRequest,
    ReserveError, Resolver, Way,
};
use takt_time::{TaiTime, TrafficClass};
use takt_wire::checksum::PartialSum;
use takt_wire::frame::{FrameError, UdpDatagram, parse_udp_frame};
use takt_wire::ip::{Addresses, Protocol};
use takt_wire::{ethernet, udp};

use crate::device::{Device, Stack, free};
use crate::eal;
use crate::ffi::{self, BAD_CHECKSUM, BURST, CONTINUED, GOOD_CHECKSUM, Packet};
use crate::kernel::{self, HeldPort};
use crate::peers::{Peer, Peers, Ways, headers};
use crate::transmit::Transmit;

/// The device itself, for frames of others: no place of a peer has such a number.
const LINK: PeerHandle = PeerHandle(u32::MAX);

/// Between two looks of a sleeping lane at a device that wakes nobody.
const NAP: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 100_000,
};

/// A port on a device of DPDK.
pub(crate) struct DpdkPort {
    traffic: Traffic,
    peers: Peers,
    ways: Option<Ways>,
    local: SocketAddr,
    /// Generation of the stack that was seen last.
    seen: u64,
    /// Frames of others are sent: [`LINK`] names the device.
    linked: bool,
    _held: Option<HeldPort>,
    device: Arc<Device>,
}

/// What moves packets.
struct Traffic {
    transmit: Transmit,
    /// The device's queues that this port polls; the first one sends.
    queues: Vec<u16>,
    /// Queue to look at first next time.
    turn: usize,
    slot: usize,
    filter: Filter,
    counters: PortCounters,
    /// When to look after the device, by DPDK's clock.
    next_beat: u64,
    /// A frame of several segments.
    gathered: Vec<u8>,
    /// Where the device puts what it has received.
    packets: Packets,
    /// Received, looked at, and to be given back.
    spent: Spent,
    waiting: Waiting,
}

/// A burst.
struct Packets(Box<[Packet; BURST]>);

// SAFETY: what is pointed to is looked at within one call of the port's owner only.
unsafe impl Send for Packets {}

const NOTHING: Packet = Packet {
    mbuf: std::ptr::null_mut(),
    data: std::ptr::null(),
    length: 0,
    flags: 0,
};

/// Buffers to be given back together.
struct Spent(Vec<*mut ffi::Mbuf>);

// SAFETY: the buffers that are pointed to belong to this alone.
unsafe impl Send for Spent {}

impl Spent {
    #[inline]
    fn free(&mut self) {
        free(&mut self.0);
        self.0.clear();
    }
}

impl Drop for Spent {
    /// Somebody has panicked while a packet was lent.
    fn drop(&mut self) {
        self.free();
    }
}

/// Which datagrams are ours.
#[derive(Debug)]
struct Filter {
    /// The UDP port.
    port: u16,
    /// The address that it is bound to.
    bound: IpAddr,
    /// The addresses that it is at, the likeliest first.
    addresses: Vec<IpAddr>,
    /// The device's.
    all: Vec<IpAddr>,
    /// Scope of link-local sources; 0 without a kernel interface.
    ifindex: u32,
    /// The device is a virtual one: frames may come from a kernel of this machine, which leaves checksums to a
    /// device that there is none of.
    unfinished_checksums: bool,
    /// What is not ours is the kernel's, and no fault.
    kernel: bool,
}

/// What a sleeping lane waits for.
struct Waiting {
    /// All of the descriptors.
    epoll: OwnedFd,
    /// Where nothing tells of arrivals.
    timer: Option<OwnedFd>,
    /// Somebody has asked for the descriptor.
    asked: Cell<bool>,
    /// When the timer goes off, by DPDK's clock.
    until: u64,
    nap: u64,
}

impl Waiting {
    fn new(device: &Device, queues: &[u16], bell: BorrowedFd<'_>) -> std::io::Result<Self> {
        // SAFETY: plain call; a descriptor that is not negative is new and owned by nobody else.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        add(&epoll, bell)?;
        let timer = if device.wakes() {
            for queue in queues {
                if let Some(socket) = device.sockets.get(usize::from(*queue)) {
                    add(&epoll, socket.as_fd())?;
                }
            }
            None
        } else {
            let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
            // SAFETY: as above.
            let timer = owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
            add(&epoll, timer.as_fd())?;
            Some(timer)
        };
        Ok(Self {
            epoll,
            timer,
            asked: Cell::new(false),
            until: 0,
            // SAFETY: DPDK runs.
            nap: unsafe { ffi::takt_dpdk_cycles_per_second() } / 1_000_000_000
                * NAP.tv_nsec.cast_unsigned(),
        })
    }

    /// Nothing has arrived: sets the timer anew if it has gone off, which takes the mark of that away.
    #[inline]
    fn idle(&mut self, now: u64) {
        if self.timer.is_some() && self.asked.get() && now >= self.until {
            self.set(now);
        }
    }

    #[cold]
    fn set(&mut self, now: u64) {
        if let Some(timer) = &self.timer {
            let once = libc::itimerspec {
                it_interval: libc::timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                },
                it_value: NAP,
            };
            // SAFETY: a time to be read; nothing is written.
            unsafe {
                libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const once, std::ptr::null_mut())
            };
            self.until = now + self.nap;
        }
    }
}

fn owned(fd: libc::c_int) -> std::io::Result<OwnedFd> {
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns, as the callers say.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> std::io::Result<()> {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    // SAFETY: both descriptors are open and `event` is an event for the length of the call.
    let result = unsafe {
        libc::epoll_ctl(
            epoll.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            fd.as_raw_fd(),
            &raw mut event,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// The queues of `lane` among `lanes`: every `lanes`-th, or one shared with other lanes where there are more
/// lanes than queues.
pub(crate) fn share_queues(count: u16, lane: u16, lanes: u16) -> Vec<u16> {
    let (lanes, count) = (lanes.max(1), count.max(1));
    let own: Vec<u16> = (0..count).filter(|queue| queue % lanes == lane).collect();
    if own.is_empty() {
        vec![lane % count]
    } else {
        own
    }
}

impl DpdkPort {
    pub(crate) fn open(device: &Arc<Device>, request: &PortRequest) -> Result<Self, OpenError> {
        let one = device.opening();
        let bind = request.bind;
        let addresses = device.addresses();
        let address = local_address(device, bind, &addresses)?;
        let (held, ifindex) = match &device.stack {
            Stack::Kernel { ifindex, .. } => (Some(HeldPort::hold(bind, *ifindex)?), *ifindex),
            Stack::Own(_) => (None, 0),
        };
        let number = held.as_ref().map_or(bind.port(), |held| held.number);
        let (slot, number) = device.claim(SocketAddr::new(bind.ip(), number))?;
        drop(one);
        let local = SocketAddr::new(address, number);
        let bind = SocketAddr::new(bind.ip(), number);
        // From here on dropping gives the claim back.
        let claim = Claim {
            device,
            slot,
            number,
        };
        let queues = share_queues(device.queues.len() as u16, request.lane, request.lanes);
        let inbox = device
            .inbox(slot)
            .ok_or_else(|| OpenError::Unavailable("the port has no inbox".into()))?;
        let waiting =
            Waiting::new(device, &queues, inbox.bell()).map_err(|source| OpenError::System {
                action: "cannot create a descriptor to wait for".into(),
                source,
            })?;
        // What others have lost before is not this port's loss.
        device.count_losses();
        inbox.lost_received.store(0, Ordering::Relaxed);
        inbox.lost_sent.store(0, Ordering::Relaxed);
        std::mem::forget(claim);
        let filter = Filter {
            port: number,
            bound: bind.ip(),
            addresses: ours(&addresses, bind.ip(), address),
            all: addresses,
            ifindex,
            unfinished_checksums: device.config.device.starts_with("net_"),
            kernel: matches!(device.stack, Stack::Kernel { .. }),
        };
        Ok(Self {
            traffic: Traffic {
                transmit: Transmit::new(),
                queues,
                turn: 0,
                slot,
                filter,
                counters: PortCounters::default(),
                next_beat: 0,
                gathered: Vec::with_capacity(device.longest_frame),
                packets: Packets(Box::new([NOTHING; BURST])),
                spent: Spent(Vec::with_capacity(BURST)),
                waiting,
            },
            peers: Peers::new(Arc::clone(device), bind, local),
            ways: Ways::new(device, bind),
            local,
            seen: 0,
            linked: false,
            _held: held,
            device: Arc::clone(device),
        })
    }

    #[inline]
    fn is_link(&self, peer: PeerHandle) -> bool {
        self.linked && peer == LINK
    }

    /// Longest frame of others; none while the link is down.
    fn longest_frame(&self) -> Option<usize> {
        let (mtu, up) = match &self.device.stack {
            Stack::Kernel { interface, .. } => {
                let state = interface.state()?;
                (
                    (state.mtu as usize).min(self.device.config.mtu.into()),
                    state.up,
                )
            }
            Stack::Own(own) => (
                self.device.config.mtu.into(),
                own.up.load(Ordering::Acquire),
            ),
        };
        let longest = mtu + ethernet::HEADER_LEN + takt_wire::vlan::TAG_LEN;
        up.then_some(longest.min(self.device.longest_frame))
    }

    /// Takes over changes of routes, neighbours and addresses.
    #[inline]
    fn follow(&mut self) {
        let now = match &self.device.stack {
            Stack::Kernel { next_hops, .. } => next_hops.generation(),
            Stack::Own(own) => own.generation.load(Ordering::Acquire),
        };
        if now != self.seen {
            self.refresh(now);
        }
    }

    #[cold]
    fn refresh(&mut self, generation: u64) {
        self.seen = generation;
        self.peers.refresh();
        self.traffic.take_errors(&self.device);
        let addresses = self.device.addresses();
        // An interface that is gone keeps its last addresses: nothing arrives any more.
        if !addresses.is_empty() {
            self.traffic.filter.addresses =
                ours(&addresses, self.traffic.filter.bound, self.local.ip());
            self.traffic.filter.all = addresses;
        }
    }
}

impl Traffic {
    /// Hands the device what is committed.
    #[inline]
    fn flush(&mut self, device: &Device) -> bool {
        self.transmit
            .flush(device, self.queues[0], &mut self.counters)
    }

    /// Looks after the device: whom to ask for neighbours, and whether the link is up.
    #[cold]
    fn beat(&mut self, device: &Device, now: u64) {
        self.next_beat = now + device.beat;
        // The kernel tells that the interface is down before it tells the sockets.
        self.take_errors(device);
        let Stack::Own(own) = &device.stack else {
            return;
        };
        // SAFETY: the port is the device's, which lives.
        let link = unsafe {
            if ffi::takt_dpdk_is_removed(device.port) == 0 {
                ffi::takt_dpdk_link(device.port)
            } else {
                0
            }
        };
        let up = link > 0;
        own.link.store(link, Ordering::Relaxed);
        let mut changed = own.up.swap(up, Ordering::AcqRel) != up;
        if up {
            // Another port is at it otherwise.
            if let Ok(mut table) = own.table.try_lock() {
                let send = &mut |frame: &[u8]| self.transmit.put(device, frame);
                changed |= table.poll(device.now(), send);
            }
        }
        if changed {
            own.changed();
        }
        self.flush(device);
    }

    /// Has the sockets that a sleeping lane waits for forget that their interface was down: they would wake it for ever.
    #[cold]
    fn take_errors(&self, device: &Device) {
        for queue in &self.queues {
            if let Some(socket) = device.sockets.get(usize::from(*queue)) {
                socket.take_error();
            }
        }
    }

    #[inline]
    fn beat_if_due(&mut self, device: &Device) -> u64 {
        // SAFETY: reads a clock.
        let now = unsafe { ffi::takt_dpdk_cycles() };
        if now >= self.next_beat {
            self.beat(device, now);
        }
        now
    }

    /// Takes what others have put down for this port.
    #[inline]
    fn open_inbox(
        &mut self,
        device: &Device,
        budget: usize,
        deliver: &mut dyn FnMut(Datagram<'_>),
    ) -> usize {
        let Some(inbox) = device.inbox(self.slot) else {
            return 0;
        };
        let mut delivered = 0;
        for _ in 0..budget {
            let Some(packet) = inbox.take() else {
                break;
            };
            delivered += usize::from(self.hand_over(device, packet, deliver));
            if self.spent.0.len() == BURST {
                self.spent.free();
            }
        }
        self.spent.free();
        delivered
    }

    /// Polls one queue: delivers what is this port's, and hands on what is not.
    #[inline]
    fn poll(
        &mut self,
        device: &Device,
        queue: u16,
        budget: usize,
        deliver: &mut dyn FnMut(Datagram<'_>),
    ) -> usize {
        let Some(turn) = device.queues[usize::from(queue)].receive() else {
            // Who polls it may have something for us.
            return self.open_inbox(device, budget, deliver);
        };
        // First what whoever had the turn before has found: it came earlier.
        let mut delivered = self.open_inbox(device, budget, deliver);
        // No more than the budget is looked at, be it for us or not: a flood of others' frames ends here, too.
        let mut left = budget - delivered;
        while left > 0 {
            let wanted = left.min(BURST);
            // SAFETY: room for `wanted` packets, which are ours then; the turn keeps others from the queue.
            let count = unsafe {
                ffi::takt_dpdk_receive(
                    device.port,
                    queue,
                    self.packets.0.as_mut_ptr(),
                    wanted as u16,
                )
            };
            let count = usize::from(count).min(wanted);
            for index in 0..count {
                let packet = self.packets.0[index];
                delivered += usize::from(self.hand_over(device, packet, deliver));
            }
            self.spent.free();
            left -= count;
            if count < wanted {
                break;
            }
        }
        drop(turn);
        delivered
    }

    /// Checks a packet and delivers its datagram, or hands it to whom it is for, or counts it. Returns whether
    /// it was delivered. The buffer is then [`spent`](Self::spent), or another port's.
    #[inline]
    fn hand_over(
        &mut self,
        device: &Device,
        packet: Packet,
        deliver: &mut dyn FnMut(Datagram<'_>),
    ) -> bool {
        let frame: &[u8] = if packet.flags & CONTINUED == 0 {
            // SAFETY: the first segment is the whole packet, which is ours until it is freed below.
            unsafe { std::slice::from_raw_parts(packet.data, packet.length as usize) }
        } else {
            if packet.length as usize > self.gathered.capacity() {
                self.counters.rx_invalid += 1;
                self.spent.0.push(packet.mbuf);
                return false;
            }
            // SAFETY: there is room for all segments, which the shim writes, and as many bytes are there then.
            unsafe {
                ffi::takt_dpdk_gather(packet.mbuf, self.gathered.as_mut_ptr());
                std::slice::from_raw_parts(self.gathered.as_ptr(), packet.length as usize)
            }
        };
        let read = read(frame, packet.flags, self.filter.unfinished_checksums);
        let datagram = match read {
            Ok(datagram) if self.filter.addresses.contains(&datagram.dst.ip()) => datagram,
            Ok(datagram)
                if datagram.dst.port() != self.filter.port
                    && self.filter.all.contains(&datagram.dst.ip()) =>
            {
                datagram
            }
            Ok(_) => {
                // Not for us: what a group is told, and what a switch does not know where to send.
                self.counters.rx_invalid += u64::from(!self.filter.kernel && !is_group(frame));
                self.spent.0.push(packet.mbuf);
                return false;
            }
            Err(error) => {
                let other = matches!(
                    error,
                    FrameError::Ethernet(_)
                        | FrameError::NotIp(_)
                        | FrameError::NotUdp(_)
                        | FrameError::Ipv6(_)
                );
                // SAFETY: the frame's memory is the packet's or that of `gathered`, which `control` leaves alone.
                let frame: &[u8] =
                    unsafe { std::slice::from_raw_parts(frame.as_ptr(), frame.len()) };
                if other {
                    self.control(device, frame);
                } else {
                    self.counters.rx_invalid += 1;
                }
                self.spent.0.push(packet.mbuf);
                return false;
            }
        };
        let number = datagram.dst.port();
        if number != self.filter.port {
            if !device.pass_on(packet, number) && !self.filter.kernel {
                self.counters.rx_invalid += 1;
            }
            return false;
        }
        self.counters.rx_datagrams += 1;
        self.counters.rx_bytes += datagram.payload.len() as u64;
        deliver(Datagram {
            source: scoped(datagram.src, self.filter.ifindex),
            destination_port: number,
            payload: datagram.payload,
        });
        self.spent.0.push(packet.mbuf);
        true
    }

    /// Takes in what is no datagram: neighbours, echo.
    #[cold]
    fn control(&mut self, device: &Device, frame: &[u8]) {
        let Stack::Own(own) = &device.stack else {
            return;
        };
        // Whoever asks asks again where another port is just at the table.
        let Ok(mut table) = own.table.try_lock() else {
            return;
        };
        let before = table.counters();
        let send = &mut |frame: &[u8]| self.transmit.put(device, frame);
        if table.handle(frame, device.now(), send) {
            own.changed();
        }
        let now = table.counters();
        self.counters.rx_invalid += now.refused - before.refused;
        self.counters.rx_dropped += now.unanswered - before.unanswered;
        drop(table);
        self.flush(device);
    }
}

/// Finds the datagram in a frame. Checksums are verified unless the device vouches for them.
#[inline]
fn read(frame: &[u8], flags: u32, unfinished: bool) -> Result<UdpDatagram<'_>, FrameError> {
    if flags & GOOD_CHECKSUM != 0 {
        return parse_udp_frame(frame, false);
    }
    match parse_udp_frame(frame, true) {
        Err(FrameError::Udp(udp::Error::Checksum(found)))
            if unfinished && flags & BAD_CHECKSUM == 0 =>
        {
            let datagram = parse_udp_frame(frame, false)?;
            if is_unfinished(&datagram, found) {
                Ok(datagram)
            } else {
                Err(FrameError::Udp(udp::Error::Checksum(found)))
            }
        }
        other => other,
    }
}

/// Whether `found` is the sum over the pseudo header alone: what a sender on this machine leaves in the
/// checksum field for the device to complete.
#[cold]
fn is_unfinished(datagram: &UdpDatagram<'_>, found: u16) -> bool {
    let Some(addresses) = Addresses::new(datagram.src.ip(), datagram.dst.ip()) else {
        return false;
    };
    let length = (datagram.payload.len() + udp::HEADER_LEN) as u16;
    let sum = addresses
        .pseudo_header(Protocol::UDP)
        .plus(PartialSum::of_word(length));
    found == !sum.checksum()
}

/// Whether a frame is for a group of stations.
fn is_group(frame: &[u8]) -> bool {
    frame.first().is_some_and(|octet| octet & 1 != 0)
}

/// The address as [`Port::connect`] takes it: a link-local one names our interface.
#[inline]
fn scoped(source: SocketAddr, ifindex: u32) -> SocketAddr {
    match source {
        SocketAddr::V6(address) if address.ip().is_unicast_link_local() => {
            SocketAddrV6::new(*address.ip(), address.port(), 0, ifindex).into()
        }
        other => other,
    }
}

/// The addresses that a port is at: the one that it is bound to, or all, the likeliest first.
fn ours(addresses: &[IpAddr], bound: IpAddr, first: IpAddr) -> Vec<IpAddr> {
    if !bound.is_unspecified() {
        return vec![bound];
    }
    let family = |address: &&IpAddr| address.is_ipv4() == bound.is_ipv4();
    let mut sorted: Vec<IpAddr> = addresses.iter().filter(family).copied().collect();
    sorted.sort_by_key(|address| *address != first);
    sorted
}

fn local_address(
    device: &Device,
    bind: SocketAddr,
    addresses: &[IpAddr],
) -> Result<IpAddr, OpenError> {
    kernel::local_address(bind, addresses, device.config.device_name())
}

/// A claim to a UDP port, given back when dropped.
struct Claim<'a> {
    device: &'a Device,
    slot: usize,
    number: u16,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.device.release(self.slot, self.number);
    }
}

impl Port for DpdkPort {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<PeerHandle, ConnectError> {
        if let Some(known) = self.peers.admit(remote)? {
            return Ok(known);
        }
        let Some(ways) = &self.ways else {
            let peer = self.peers.enter_own(remote)?;
            self.traffic.next_beat = 0;
            return Ok(peer);
        };
        let peer = self.peers.enter_way(remote, ways.wait(remote)?);
        if !self.reaches(peer) {
            self.peers.disconnect(peer);
            return Err(ConnectError::NoRoute(remote));
        }
        Ok(peer)
    }

    fn resolver(&self) -> Option<Box<dyn Resolver>> {
        let ways = self.ways.clone()?;
        Some(Box::new(ways))
    }

    fn connect_at_once(
        &mut self,
        remote: SocketAddr,
        way: Option<Way>,
    ) -> Result<PeerHandle, ConnectError> {
        let Some(ways) = &self.ways else {
            return self.connect(remote);
        };
        if let Some(known) = self.peers.admit(remote)? {
            return Ok(known);
        }
        // The generation tells when the answer has come.
        let way = way.map_or_else(|| ways.ask(remote, || {}), Ok)?;
        Ok(self.peers.enter_way(remote, way))
    }

    fn reaches(&mut self, peer: PeerHandle) -> bool {
        self.follow();
        self.is_link(peer) || self.peers.get(peer).is_some_and(Peer::is_reached)
    }

    fn connect_link(&mut self, interface: Option<u32>) -> Result<PeerHandle, ConnectError> {
        if let Some(other) = interface.filter(|index| *index != self.traffic.filter.ifindex) {
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
            return self.longest_frame().unwrap_or(0);
        }
        self.peers.get(peer).map_or(0, Peer::max_payload)
    }

    fn longest_received(&self) -> usize {
        usize::from(self.device.config.mtu).saturating_sub(headers(self.local))
    }

    #[inline]
    fn reserve(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        eal::enter_thread();
        self.follow();
        let capacity = if self.is_link(peer) {
            self.longest_frame().ok_or(ReserveError::Unresolved)?
        } else {
            let known = self.peers.get(peer).ok_or(ReserveError::UnknownPeer)?;
            if !known.is_resolved() {
                self.traffic.beat_if_due(&self.device);
                return Err(ReserveError::Unresolved);
            }
            known.max_payload()
        };
        self.traffic
            .transmit
            .reserve(&self.device, peer, capacity)
            .ok_or(ReserveError::WouldBlock)
    }

    #[inline]
    fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        self.traffic.transmit.payload(frame)
    }

    #[inline]
    fn commit(
        &mut self,
        frame: Frame,
        len: usize,
        class: TrafficClass,
        _launch_time: Option<TaiTime>,
    ) {
        // `Some(None)`: a frame of others, as it is.
        let headers = match self.traffic.transmit.peer(&frame) {
            Some(LINK) => Some(None),
            peer => peer
                .and_then(|peer| self.peers.get(peer))
                .and_then(|peer| peer.headers(class))
                .map(Some),
        };
        let queued = match headers {
            Some(headers) => self.traffic.transmit.commit(&frame, headers, len),
            // The next hop or the peer has gone since the frame was reserved.
            None => {
                self.traffic.transmit.cancel(&frame);
                false
            }
        };
        self.traffic.counters.tx_errors += u64::from(!queued);
    }

    fn cancel(&mut self, frame: Frame) {
        self.traffic.transmit.cancel(&frame);
    }

    #[inline]
    fn flush(&mut self) -> bool {
        self.traffic.flush(&self.device)
    }

    #[inline]
    fn receive(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        eal::enter_thread();
        self.follow();
        let now = self.traffic.beat_if_due(&self.device);
        let mut delivered = 0;
        for step in 0..self.traffic.queues.len() {
            let queue = self.traffic.queues[(self.traffic.turn + step) % self.traffic.queues.len()];
            delivered += self
                .traffic
                .poll(&self.device, queue, budget - delivered, deliver);
        }
        self.traffic.turn = (self.traffic.turn + 1) % self.traffic.queues.len();
        if delivered == 0 && budget > 0 {
            self.traffic.waiting.idle(now);
        }
        delivered
    }

    fn receive_costs_syscall(&self) -> bool {
        false
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        if !self.traffic.waiting.asked.replace(true) && self.traffic.waiting.timer.is_some() {
            // Goes off at once: the next empty receive sets it.
            if let Some(timer) = &self.traffic.waiting.timer {
                let soon = libc::itimerspec {
                    it_interval: libc::timespec {
                        tv_sec: 0,
                        tv_nsec: 0,
                    },
                    it_value: libc::timespec {
                        tv_sec: 0,
                        tv_nsec: 1,
                    },
                };
                // SAFETY: a time to be read; nothing is written.
                unsafe {
                    libc::timerfd_settime(
                        timer.as_raw_fd(),
                        0,
                        &raw const soon,
                        std::ptr::null_mut(),
                    )
                };
            }
        }
        vec![self.traffic.waiting.epoll.as_fd()]
    }

    fn counters(&self) -> PortCounters {
        let mut counters = self.traffic.counters;
        self.device.count_losses();
        if let Some(inbox) = self.device.inbox(self.traffic.slot) {
            counters.rx_dropped +=
                inbox.dropped.load(Ordering::Relaxed) + inbox.lost_received.load(Ordering::Relaxed);
            counters.tx_errors += inbox.lost_sent.load(Ordering::Relaxed);
        }
        counters
    }
}

impl Drop for DpdkPort {
    fn drop(&mut self) {
        self.flush();
        self.device.release(self.traffic.slot, self.local.port());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_is_polled_and_every_lane_has_one() {
        for (count, lanes) in (1..9).flat_map(|count| (1..9).map(move |lanes| (count, lanes))) {
            let mut polled = vec![false; usize::from(count)];
            for lane in 0..lanes {
                let own = share_queues(count, lane, lanes);
                assert!(
                    !own.is_empty(),
                    "lane {lane} of {lanes} has none of {count}"
                );
                own.iter()
                    .for_each(|queue| polled[usize::from(*queue)] = true);
            }
            assert!(
                polled.iter().all(|polled| *polled),
                "{count} queues, {lanes} lanes"
            );
        }
    }
}
