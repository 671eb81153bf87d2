//! A lane's UDP port: the contract of [`takt_datapath::Port`] on the parts of this crate.

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use takt_datapath::stack;
use takt_datapath::{
    ConnectError, Datagram, Frame, OpenError, PeerHandle, Port, PortCounters, PortRequest,
    ReserveError,
};
use takt_time::{TaiTime, TrafficClass};

use crate::frames::{FramePool, Purpose};
use crate::launch::Reports;
use crate::links::Links;
use crate::peers::PeerTable;
use crate::priorities::Priorities;
use crate::receive::Receiver;
use crate::socket::Socket;
use crate::transmit::{Committed, Transmitter};
use crate::{LONGEST_PAYLOAD, UdpConfig};

/// The share of the receive buffer that there is once more, for what is marked with a traffic class.
const MARKED: usize = 4;

/// The share of a receive budget that is kept for best effort: nobody is shut out by marking all. The runtime orders
/// by class what it takes at once, so that is taken first.
const KEPT: usize = 4;

/// Nonblocking sockets, bound and not connected, with their frames and peers.
pub(crate) struct UdpPort {
    /// What is sent leaves by its socket.
    best_effort: Inlet,
    /// Of what is marked with a traffic class above 0: best effort takes no room from it.
    marked: Option<Inlet>,
    /// The last call has not looked for what is marked.
    owes_a_look: bool,
    local: SocketAddr,
    frames: FramePool,
    peers: PeerTable,
    links: Links,
    transmitter: Transmitter,
    /// Where the socket has launch times.
    reports: Option<Reports>,
}

/// A socket with what is taken from it.
struct Inlet {
    socket: Socket,
    receiver: Receiver,
    drops: Drops,
}

impl Inlet {
    fn new(socket: Socket, port: u16, may_coalesce: bool) -> Self {
        Self {
            socket,
            receiver: Receiver::new(port, may_coalesce),
            drops: Drops::default(),
        }
    }

    fn receive(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        self.receiver.receive(&self.socket, budget, deliver)
    }

    /// Asks the kernel: one system call.
    fn drops(&self) -> u64 {
        let asked = self.socket.receive_drops();
        asked.map_or(self.drops.total.get(), |now| self.drops.observe(now))
    }
}

/// Widens the kernel's 32-bit count of drops.
#[derive(Debug, Default)]
struct Drops {
    last: Cell<u32>,
    total: Cell<u64>,
}

impl Drops {
    fn observe(&self, kernel: u32) -> u64 {
        let more = kernel.wrapping_sub(self.last.replace(kernel));
        self.total.set(self.total.get() + u64::from(more));
        self.total.get()
    }
}

fn failed(action: &str) -> impl FnOnce(std::io::Error) -> OpenError {
    move |source| OpenError::System {
        action: action.to_owned(),
        source,
    }
}

impl UdpPort {
    pub(crate) fn open(
        config: &UdpConfig,
        request: &PortRequest,
        priorities: Priorities,
    ) -> Result<Self, OpenError> {
        config.check()?;
        let socket = Socket::new(request.bind).map_err(failed("cannot create a UDP socket"))?;
        socket
            .forbid_fragmentation()
            .map_err(failed("cannot forbid fragmentation on a UDP socket"))?;
        socket
            .size_buffers(config.receive_buffer, config.send_buffer)
            .map_err(failed("cannot size the buffers of a UDP socket"))?;
        let local = socket.bind(request.bind)?;
        let trains = config.segmentation && socket.offers_segmentation();
        let frames = FramePool::new(config.frames, config.frame_size);
        let probe = Socket::new(local)
            .map_err(failed("cannot create a UDP socket to ask for routes with"))?;
        // Asked of the socket that stays beside the port's: the first user of GRO on a machine makes the
        // kernel patch its code, which had better not happen when the port's first burst arrives.
        let may_coalesce = config.segmentation && probe.coalesce_received();
        // Without an answer, or without the privilege, launch times are the runtime's own matter.
        let queues = stack::launch_queues().unwrap_or_default();
        let announced = !queues.is_empty() && socket.announce_launch_times().is_ok();
        let queues = if announced { queues } else { Vec::new() };
        let peers = PeerTable::new(
            local,
            probe,
            config.frame_size,
            config.peers,
            trains,
            queues,
        )
        .map_err(failed("cannot bind the UDP socket that asks for routes"))?;
        // Where a kernel or a policy knows better, all have one buffer.
        let marked = config.class_buffers.then(|| {
            let marked = socket.beside(local)?;
            marked.size_receive_buffer(config.receive_buffer / MARKED)?;
            Ok::<_, std::io::Error>(Inlet::new(marked, local.port(), may_coalesce))
        });
        let transmitter = Transmitter::new(frames.count(), priorities.clone());
        Ok(Self {
            best_effort: Inlet::new(socket, local.port(), may_coalesce),
            marked: marked.and_then(Result::ok),
            owes_a_look: false,
            local,
            frames,
            peers,
            links: Links::new(config.frame_size, priorities),
            transmitter,
            reports: announced.then(Reports::default),
        })
    }
}

impl UdpPort {
    #[inline]
    fn flush_links(&mut self) -> bool {
        self.links.is_empty()
            || self
                .links
                .flush(&mut self.frames, &mut self.transmitter.counters)
    }
}

impl Port for UdpPort {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<PeerHandle, ConnectError> {
        self.peers.connect(remote)
    }

    fn connect_link(&mut self, interface: Option<u32>) -> Result<PeerHandle, ConnectError> {
        self.links.connect(interface.ok_or(ConnectError::NoFrames)?)
    }

    fn disconnect(&mut self, peer: PeerHandle) {
        self.links.disconnect(peer);
        self.peers.disconnect(peer);
    }

    fn max_payload(&self, peer: PeerHandle) -> usize {
        if let Some(room) = self.links.room(peer) {
            return room;
        }
        self.peers
            .find(peer)
            .map_or(0, |index| self.peers.at(index).max_payload)
    }

    fn reserve(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        let room = match self.links.room(peer) {
            Some(room) => room,
            None => {
                let index = self.peers.find(peer).ok_or(ReserveError::UnknownPeer)?;
                self.peers.at(index).max_payload
            }
        };
        self.frames
            .take(Purpose { peer, room })
            .ok_or(ReserveError::WouldBlock)
    }

    fn max_fragmented(&self, peer: PeerHandle) -> usize {
        match self.peers.find(peer) {
            Some(_) => LONGEST_PAYLOAD,
            None => self.max_payload(peer),
        }
    }

    fn reserve_fragmented(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        if self.peers.find(peer).is_none() {
            return self.reserve(peer);
        }
        let room = LONGEST_PAYLOAD;
        self.frames
            .take_long(Purpose { peer, room })
            .ok_or(ReserveError::WouldBlock)
    }

    fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        self.frames.payload(frame)
    }

    /// # Panics
    /// When `len` exceeds the payload: the caller would send what it has not written.
    fn commit(
        &mut self,
        frame: Frame,
        len: usize,
        class: TrafficClass,
        launch_time: Option<TaiTime>,
    ) {
        let purpose = self.frames.purpose(&frame);
        assert!(
            len <= purpose.room,
            "committed {len} bytes of a frame with room for {}",
            purpose.room
        );
        if self.links.room(purpose.peer).is_some() {
            // Frames of the two kinds leave in the order of their commits, as far as the kernel takes them.
            self.transmitter
                .flush(&self.best_effort.socket, &mut self.frames, &mut self.peers);
            self.links.push(purpose.peer, frame.0, len, class);
            return;
        }
        self.flush_links();
        match self.peers.find(purpose.peer) {
            Some(peer) => {
                self.peers.enqueued(peer);
                self.transmitter.push(Committed {
                    frame: frame.0,
                    peer,
                    len,
                    class,
                    launch_time,
                });
            }
            None => {
                self.transmitter.counters.errors += 1;
                self.frames.give_back(frame.0);
            }
        }
    }

    fn keeps_launch_time(&self, peer: PeerHandle, class: TrafficClass) -> bool {
        let index = self.peers.find(peer);
        index.is_some_and(|index| self.peers.etf(index, class).is_some())
    }

    fn cancel(&mut self, frame: Frame) {
        self.frames.give_back(frame.0);
    }

    fn flush(&mut self) -> bool {
        let links = self.flush_links();
        links
            & self
                .transmitter
                .flush(&self.best_effort.socket, &mut self.frames, &mut self.peers)
    }

    fn receive(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        if let Some(reports) = &mut self.reports {
            self.transmitter.counters.errors += reports.look(&self.best_effort.socket);
        }
        let Some(marked) = &mut self.marked else {
            return self.best_effort.receive(budget, deliver);
        };
        let kept = match budget / KEPT {
            0 if self.owes_a_look => 0,
            0 => budget,
            kept => kept,
        };
        let mut taken = self.best_effort.receive(kept, deliver);
        let more = taken == kept;
        // What comes alone does not wait for a system call that finds nothing, mostly.
        if taken == budget || (taken > 0 && !more && !self.owes_a_look) {
            self.owes_a_look = true;
            return taken;
        }
        self.owes_a_look = false;
        taken += marked.receive(budget - taken, deliver);
        if more && taken < budget {
            taken += self.best_effort.receive(budget - taken, deliver);
        }
        taken
    }

    fn receive_costs_syscall(&self) -> bool {
        true
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        let marked = self.marked.iter().map(|inlet| inlet.socket.as_fd());
        std::iter::once(self.best_effort.socket.as_fd())
            .chain(marked)
            .collect()
    }

    /// Asks the kernel for its count of drops: a system call for each socket.
    fn counters(&self) -> PortCounters {
        let sent = self.transmitter.counters;
        let mut counters = PortCounters {
            tx_datagrams: sent.datagrams,
            tx_bytes: sent.bytes,
            tx_errors: sent.errors,
            ..PortCounters::default()
        };
        for inlet in std::iter::once(&self.best_effort).chain(&self.marked) {
            let received = inlet.receiver.counters;
            counters.rx_datagrams += received.datagrams;
            counters.rx_bytes += received.bytes;
            counters.rx_dropped += inlet.drops();
            counters.rx_invalid += received.invalid;
        }
        counters
    }
}
