//! A lane's port.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use takt_datapath::{
    ConnectError, Datagram, Frame, OpenError, PeerHandle, Port, PortCounters, ReserveError,
};
use takt_time::{TaiTime, TrafficClass};

use crate::config::{FabricConfig, Provider};
use crate::endpoint::{Ended, Endpoint, HeldNumber, Outcome};
use crate::ffi::BURST;
use crate::header::{self, Kind};
use crate::peers::Peers;
use crate::waiting::Waiting;
use crate::watch::{Failures, Look, Watch};

/// A peer that takes nothing for so long loses what waits for it.
const STUCK: Duration = Duration::from_secs(1);
/// Between two attempts to open a port again.
const AGAIN: Duration = Duration::from_millis(50);
/// Completions that one call looks at beyond its budget, in bursts.
const BURSTS: usize = 16;

/// What a frame to send is doing.
#[derive(Clone, Copy, Debug)]
enum State {
    Free,
    /// The caller's, who writes to it.
    Reserved(u16),
    /// Committed with a message of so many bytes.
    Queued(u16, u32),
    /// The provider's, which reads it.
    Posted(u16, u32),
}

/// A port on a provider of libfabric.
#[derive(Debug)]
pub(crate) struct FabricPort {
    local: SocketAddr,
    peers: Peers,
    waiting: Waiting,
    transmit: Transmit,
    receive: Receive,
    counters: PortCounters,
    /// Sends that have failed after they had been counted.
    failed: u64,
    failed_bytes: u64,
    /// Frames below this are posted for what arrives, the others are sent.
    receives: usize,
    by_syscall: bool,
    endpoint: Endpoint,
    /// As it was opened.
    config: FabricConfig,
    watch: Watch,
    failures: Arc<Failures>,
    /// Closed, until it is tried then to open it again.
    closed: Option<Instant>,
    _held: Option<HeldNumber>,
}

#[derive(Debug)]
struct Transmit {
    states: Box<[State]>,
    free: Vec<u32>,
    /// Committed, in order.
    queued: VecDeque<u32>,
    /// How many the provider has.
    posted: usize,
    turn: u64,
}

#[derive(Debug)]
struct Receive {
    /// Arrived, and not looked at.
    arrived: VecDeque<Ended>,
    /// Looked at, and to be posted again.
    spent: Vec<usize>,
}

/// The address of an endpoint that was opened at `bind`.
pub(crate) fn bound(endpoint: &Endpoint, mut bind: SocketAddr) -> Result<SocketAddr, OpenError> {
    let number = endpoint.port(bind).ok_or_else(|| {
        OpenError::Unavailable("the provider does not tell its port number".into())
    })?;
    bind.set_port(number);
    Ok(bind)
}

impl FabricPort {
    pub(crate) fn open(
        provider: Provider,
        config: &FabricConfig,
        bind: SocketAddr,
        failures: Arc<Failures>,
    ) -> Result<Self, OpenError> {
        let (held, bind) = if provider.has_ip_addresses() {
            (None, bind)
        } else {
            let held = HeldNumber::hold(bind)?;
            let bind = held.bind;
            (Some(held), bind)
        };
        let mut endpoint = Endpoint::open(provider, config, bind)?;
        let local = if provider.has_ip_addresses() {
            bound(&endpoint, bind)?
        } else {
            bind
        };
        let mut watch = Watch::new(config.receives);
        for frame in 0..config.receives {
            watch.post(frame);
            // SAFETY: nobody has looked at the frame, and nobody does before it has ended.
            let posted = unsafe { endpoint.post(frame, frame + 1 < config.receives) };
            if posted != Outcome::Taken {
                return Err(OpenError::Unavailable(format!(
                    "receives = {}: {} takes {frame}",
                    config.receives,
                    provider.name()
                )));
            }
        }
        let waiting = Waiting::new(endpoint.fd()).map_err(|source| OpenError::System {
            action: "cannot create a descriptor to wait for".into(),
            source,
        })?;
        Ok(Self {
            local,
            peers: Peers::new(provider, local, config),
            waiting,
            transmit: Transmit {
                states: vec![State::Free; config.sends].into_boxed_slice(),
                free: (0..config.sends as u32).rev().collect(),
                queued: VecDeque::with_capacity(config.sends),
                posted: 0,
                turn: 0,
            },
            receive: Receive {
                arrived: VecDeque::with_capacity(config.receives),
                spent: Vec::with_capacity(config.receives),
            },
            counters: PortCounters::default(),
            failed: 0,
            failed_bytes: 0,
            receives: config.receives,
            by_syscall: provider != Provider::Shm,
            endpoint,
            config: config.clone(),
            watch,
            failures,
            closed: None,
            _held: held,
        })
    }

    /// Takes a burst of what has ended; and lets the provider get on with its work.
    fn read(&mut self) -> usize {
        let Self {
            endpoint,
            transmit,
            receive,
            peers,
            counters,
            failed,
            failed_bytes,
            receives,
            watch,
            ..
        } = self;
        endpoint.read(|ended| {
            if ended.frame < *receives {
                // There is room: no frame is posted twice.
                if watch.end(ended.frame, ended.cancelled) {
                    receive.arrived.push_back(ended);
                } else {
                    receive.spent.push(ended.frame);
                }
                return;
            }
            let frame = ended.frame - *receives;
            if let State::Posted(place, length) = transmit.states[frame] {
                transmit.states[frame] = State::Free;
                transmit.free.push(frame as u32);
                transmit.posted -= 1;
                let peer = peers.get(place);
                peer.outstanding -= 1;
                peer.posted -= 1;
                if ended.failed {
                    *failed += 1;
                    *failed_bytes += u64::from(length) - header::LEN as u64;
                    counters.tx_errors += 1;
                    peers.lost(place);
                }
            }
        })
    }

    /// Takes what has ended, but no more than a few bursts of it. What has arrived is told by the bell, for the
    /// provider's descriptor tells of it no more.
    fn progress(&mut self) {
        for _ in 0..BURSTS {
            if self.read() < BURST {
                break;
            }
        }
        if !self.receive.arrived.is_empty() {
            self.waiting.ring();
        }
    }

    /// Reads what has ended until this frame has, which was cancelled, or nothing is left: whatever ended sooner is told first. `false`: there
    /// is no end to it.
    #[cold]
    fn read_until_ended(&mut self, frame: usize) -> bool {
        // Each frame ends once before it is posted again; something of the provider's own may fail beside.
        let most = self.receives + self.transmit.states.len() + 64;
        let all = (0..most).any(|_| !self.watch.is_posted(frame) || self.read() == 0);
        if !self.receive.arrived.is_empty() {
            self.waiting.ring();
        }
        all
    }

    /// Frees a frame that is not sent.
    fn lose(&mut self, frame: u32, place: u16) {
        self.transmit.states[frame as usize] = State::Free;
        self.transmit.free.push(frame);
        self.peers.get(place).outstanding -= 1;
        self.counters.tx_errors += 1;
    }

    /// Makes room for another peer: what was committed last for one that takes nothing is lost.
    #[cold]
    fn give_way(&mut self, to: u16) {
        if self.peers.get(to).blocked.is_some() {
            return;
        }
        for index in (0..self.transmit.queued.len()).rev() {
            let frame = self.transmit.queued[index];
            if let State::Queued(place, _) = self.transmit.states[frame as usize]
                && self.peers.get(place).blocked.is_some()
            {
                self.transmit.queued.remove(index);
                self.lose(frame, place);
                return;
            }
        }
    }

    /// Hands over one committed frame. Returns whether it is to stay queued.
    #[inline]
    fn hand_over(&mut self, frame: u32, place: u16, length: u32) -> bool {
        let turn = self.transmit.turn;
        let peer = self.peers.get(place);
        let Some(fabric) = peer.fabric else {
            self.lose(frame, place);
            return false;
        };
        // The provider takes for a peer that takes nothing what it does not give back: no more for one peer than is
        // left for all others.
        let left = self.transmit.states.len() - self.transmit.posted;
        let full = peer.posted >= left.max(1);
        let outcome = if peer.turn == turn || full || self.peers.is_hopeless(place) {
            Outcome::Later
        } else {
            let more = !self.transmit.queued.is_empty();
            let index = self.receives + frame as usize;
            // SAFETY: a committed frame is nobody's, and stays so while it is posted.
            let outcome = unsafe { self.endpoint.send(fabric, index, length as usize, more) };
            if outcome == Outcome::Taken {
                let peer = self.peers.get(place);
                peer.blocked = None;
                peer.gone = false;
                self.counters.tx_datagrams += 1;
                self.counters.tx_bytes += u64::from(length) - header::LEN as u64;
                self.transmit.states[frame as usize] = State::Posted(place, length);
                self.transmit.posted += 1;
                peer.posted += 1;
                return false;
            }
            outcome
        };
        self.peers.get(place).turn = turn;
        if outcome == Outcome::Refused {
            self.peers.lost(place);
        }
        if self.peers.give_up(place, STUCK) {
            self.lose(frame, place);
            return false;
        }
        true
    }

    /// Posts what has been looked at.
    fn post(&mut self) {
        while let Some(&frame) = self.receive.spent.last() {
            let more = self.receive.spent.len() > 1;
            // SAFETY: the frame has ended, and has been looked at.
            if unsafe { self.endpoint.post(frame, more) } != Outcome::Taken {
                break;
            }
            self.watch.post(frame);
            self.receive.spent.pop();
        }
    }

    /// Looks whether what is posted still ends, and begins anew where it does not.
    #[inline]
    fn look(&mut self, now: Instant) {
        // Whoever can use a host's shared memory can end its lanes in other ways.
        if !self.by_syscall {
            return;
        }
        let look = match self.closed {
            None if self.endpoint.dead => Look::Stuck(0),
            None => self.watch.look(now),
            Some(again) if now >= again => return self.open_again(now),
            Some(_) => return,
        };
        match look {
            Look::Fine => {}
            Look::Ask(frame) => {
                self.endpoint.cancel(frame);
                if self.read_until_ended(frame) {
                    self.watch.asked();
                }
                self.post();
            }
            Look::Stuck(held) => {
                self.counters.rx_dropped += held;
                self.close(now);
            }
        }
    }

    /// Ends all connections: theirs who hold the frames among them.
    #[cold]
    fn close(&mut self, now: Instant) {
        self.endpoint.close();
        self.failures.close();
        self.receive.spent.extend(self.watch.posted());
        self.watch.forget();
        for index in 0..self.transmit.states.len() {
            if let State::Posted(place, length) = self.transmit.states[index] {
                self.failed += 1;
                self.failed_bytes += u64::from(length) - header::LEN as u64;
                self.transmit.posted -= 1;
                self.lose(index as u32, place);
            }
        }
        self.open_again(now);
    }

    #[cold]
    fn open_again(&mut self, now: Instant) {
        let opened = self.endpoint.reopen(&self.config, self.local);
        if opened.is_ok() && self.waiting.follow(self.endpoint.fd()).is_ok() {
            self.closed = None;
            self.failures.open();
            self.peers.enter_again(&mut self.endpoint);
            self.post();
        } else {
            self.endpoint.close();
            self.closed = Some(now + AGAIN);
        }
    }

    /// Whether something is to leave, or somebody to be reached, of which the provider's descriptor does not tell: TCP's
    /// says nothing of sockets that can be written to again.
    fn is_sending(&self) -> bool {
        self.transmit.posted > 0
            || !self.transmit.queued.is_empty()
            || self.peers.is_probing()
            || self.closed.is_some()
    }

    /// Nothing has come: from here on the descriptor tells of what does.
    fn settle(&mut self) {
        if !self.waiting.is_asked() {
            return;
        }
        if self.waiting.is_by_the_clock() {
            self.waiting.silence();
            self.waiting.nap();
            return;
        }
        if self.is_sending() {
            self.waiting.nap();
        } else {
            self.waiting.rest();
        }
        for _ in 0..BURSTS {
            if self.endpoint.may_wait() {
                self.waiting.silence();
                return;
            }
            self.read();
            if !self.receive.arrived.is_empty() {
                break;
            }
        }
        self.waiting.ring();
    }
}

impl Port for FabricPort {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn reaches(&mut self, peer: PeerHandle) -> bool {
        self.peers.is_reached(peer) && self.endpoint.is_open()
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<PeerHandle, ConnectError> {
        self.peers.connect(&mut self.endpoint, remote)
    }

    fn disconnect(&mut self, peer: PeerHandle) {
        self.peers.disconnect(peer);
    }

    fn max_payload(&self, peer: PeerHandle) -> usize {
        self.peers
            .place(peer)
            .map_or(0, |_| self.endpoint.arena.capacity())
    }

    fn longest_received(&self) -> usize {
        self.endpoint.arena.capacity()
    }

    fn reserve(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        let place = self.peers.place(peer).ok_or(ReserveError::UnknownPeer)?;
        if !self.peers.get(place).resolved || !self.endpoint.is_open() {
            return Err(ReserveError::Unresolved);
        }
        if self.transmit.free.is_empty() {
            self.progress();
            if self.transmit.free.is_empty() {
                self.give_way(place);
            }
        }
        let frame = self.transmit.free.pop().ok_or(ReserveError::WouldBlock)?;
        self.transmit.states[frame as usize] = State::Reserved(place);
        self.peers.get(place).outstanding += 1;
        Ok(Frame(frame))
    }

    fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        let Some(State::Reserved(_)) = self.transmit.states.get(frame.0 as usize) else {
            return &mut [];
        };
        let start = self.endpoint.arena.start(self.receives + frame.0 as usize);
        // SAFETY: a frame has room for a header and so many bytes, and a reserved one is only the caller's. The
        // kernel has filled it with zeros.
        unsafe {
            std::slice::from_raw_parts_mut(start.add(header::LEN), self.endpoint.arena.capacity())
        }
    }

    fn commit(
        &mut self,
        frame: Frame,
        len: usize,
        _class: TrafficClass,
        _launch_time: Option<TaiTime>,
    ) {
        let Some(&State::Reserved(place)) = self.transmit.states.get(frame.0 as usize) else {
            return;
        };
        let len = len.min(self.endpoint.arena.capacity());
        let start = self.endpoint.arena.start(self.receives + frame.0 as usize);
        let header = &self.peers.get(place).header;
        // SAFETY: a frame begins with room for a header, and a reserved one is only ours.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), start, header::LEN) };
        self.transmit.states[frame.0 as usize] = State::Queued(place, (header::LEN + len) as u32);
        self.transmit.queued.push_back(frame.0);
    }

    fn cancel(&mut self, frame: Frame) {
        if let Some(&State::Reserved(place)) = self.transmit.states.get(frame.0 as usize) {
            self.transmit.states[frame.0 as usize] = State::Free;
            self.transmit.free.push(frame.0);
            self.peers.get(place).outstanding -= 1;
        }
    }

    fn flush(&mut self) -> bool {
        // What was posted before leaves only while somebody looks after the provider.
        let idle = self.transmit.queued.is_empty() && self.transmit.posted > 0;
        if idle || self.peers.is_probing() {
            self.progress();
            if self.peers.is_probing() {
                self.peers.probe(&mut self.endpoint);
            }
        }
        let count = self.transmit.queued.len();
        if count == 0 {
            return true;
        }
        self.transmit.turn += 1;
        for _ in 0..count {
            let Some(frame) = self.transmit.queued.pop_front() else {
                break;
            };
            if let State::Queued(place, length) = self.transmit.states[frame as usize]
                && self.hand_over(frame, place, length)
            {
                self.transmit.queued.push_back(frame);
            }
        }
        // Somebody takes nothing: perhaps for the provider has to get on with its work first. And who is about to sleep
        // need not be woken for what has ended already.
        if !self.transmit.queued.is_empty() || self.waiting.is_asked() {
            self.progress();
            if self.is_sending() {
                self.waiting.nap();
            }
        }
        self.transmit.queued.is_empty()
    }

    fn receive(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        if self.peers.is_probing() {
            self.peers.probe(&mut self.endpoint);
        }
        self.look(Instant::now());
        let (mut delivered, mut looked) = (0, 0);
        // Whether the provider had no more, as far as it has said.
        let mut drained = false;
        while looked < budget {
            let Some(ended) = self.receive.arrived.pop_front() else {
                if drained {
                    break;
                }
                drained = self.read() < BURST;
                continue;
            };
            looked += 1;
            let start = self.endpoint.arena.start(ended.frame);
            // SAFETY: so many bytes have been received into the frame, which is ours until it is posted again.
            let message = unsafe { std::slice::from_raw_parts(start, ended.length) };
            let read = if ended.failed {
                None
            } else {
                header::read(message, self.local)
            };
            match read {
                Some((Kind::Datagram, source, payload)) => {
                    self.counters.rx_datagrams += 1;
                    self.counters.rx_bytes += payload.len() as u64;
                    delivered += 1;
                    deliver(Datagram {
                        source,
                        destination_port: self.local.port(),
                        payload,
                    });
                }
                Some((Kind::Probe, ..)) => {}
                None => self.counters.rx_invalid += 1,
            }
            self.receive.spent.push(ended.frame);
        }
        self.post();
        if drained && self.receive.arrived.is_empty() {
            self.settle();
        } else {
            self.waiting.ring();
        }
        delivered
    }

    fn receive_costs_syscall(&self) -> bool {
        self.by_syscall
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.waiting.descriptor()]
    }

    fn counters(&self) -> PortCounters {
        PortCounters {
            tx_datagrams: self.counters.tx_datagrams.saturating_sub(self.failed),
            tx_bytes: self.counters.tx_bytes.saturating_sub(self.failed_bytes),
            ..self.counters
        }
    }
}

impl Drop for FabricPort {
    fn drop(&mut self) {
        if self.closed.is_some() {
            self.failures.open();
        }
    }
}
