//! A receive queue and the ports that share it.
//!
//! Mostly there is one port on a queue, but a node may have more lanes than its interface has
//! queues. The fill and the completion ring are then shared by threads that must not wait for each
//! other: they are taken by `try_lock`, for a batch at a time, and who finds them taken keeps what
//! it has to give and comes back with its next call. Each port brings its own chunks, so one that
//! is not polled cannot take those of the others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::ring::{Consumer, Descriptor, Producer};
use crate::socket::{BusyPoll, Pool, PoolOptions, Socket, SocketError, SocketOptions};
use crate::transmit;
use crate::umem::{self, RxArea, TxArea};

/// How long a new port waits for the frames that a former one has left with the driver.
const DRAINING: Duration = Duration::from_secs(2);

/// When a driver has completed what it had taken of a socket that is closed.
const IN_DOUBT: Duration = Duration::from_secs(1);

/// How the queue's memory is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// Most ports.
    pub(crate) ports: u32,
    /// Chunks that each brings to receive into, for both rings.
    pub(crate) rx_chunks: u32,
    /// Chunks that each has to send from.
    pub(crate) tx_chunks: u32,
    /// Bytes of each.
    pub(crate) chunk: usize,
}

/// A queue with its memory, shared by ports.
#[derive(Debug)]
pub(crate) struct Queue {
    number: u32,
    memory: RxArea,
    shares: Shares,
    zero_copy: bool,
    launch_times: bool,
    rings: Mutex<Rings>,
}

/// What one port at a time may touch.
#[derive(Debug)]
struct Rings {
    pool: Pool,
    /// Chunks that have been given to the kernel at some time; the others have never been used.
    filled: u32,
    members: u32,
    areas: Vec<Area>,
}

/// One port's area to send from.
#[derive(Debug)]
struct Area {
    range: std::ops::Range<u64>,
    /// Completions of this area that another port has found.
    returned: Vec<u64>,
    state: AreaState,
}

#[derive(Debug)]
enum AreaState {
    Free(TxArea),
    Used,
    /// Its port is gone, and the kernel still has some of its chunks.
    Draining {
        area: TxArea,
        left: Outstanding,
        since: Instant,
    },
}

/// Chunks of a sender that has ended that the kernel has not completed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outstanding {
    pub(crate) chunks: u32,
    /// How many of these a driver may have taken or not: those that are not completed in time were not taken.
    pub(crate) doubtful: u32,
}

/// A port's membership. Ends by [`Member::close`] and [`Closed::leave`].
#[derive(Debug)]
pub(crate) struct Member {
    /// Sends, and receives what is of no class.
    pub(crate) socket: Socket,
    /// Receives what is marked with a traffic class: however much else comes, it finds room.
    pub(crate) upper: Socket,
    pub(crate) queue: Arc<Queue>,
    /// Received chunks on their way back to the fill ring.
    returning: Vec<u64>,
    /// How many of them may wait there: a small part of what the port has brought.
    most_owed: usize,
}

/// A membership whose sockets are closed, but for the ring of what has not been sent.
#[derive(Debug)]
pub(crate) struct Closed {
    queue: Arc<Queue>,
    returning: Vec<u64>,
    /// What has not been sent is still in it.
    pub(crate) tx: Producer<Descriptor>,
}

/// The sending side of a membership.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) area: TxArea,
    index: usize,
}

impl Sender {
    /// The sender, with one left behind that has nothing to send from.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            area: self.area.take(),
            index: self.index,
        }
    }
}

/// Entries of the ring for what is marked with a traffic class, beside one of so many for the rest.
pub(crate) fn upper_ring(rx_ring: u32) -> u32 {
    (rx_ring / 4).max(1)
}

/// Why a port cannot join.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    /// All shares are taken.
    #[error("it serves {0} port(s) already")]
    Full(u32),
    /// The MTU was raised, and no chunk may be sent from its beginning.
    #[error(
        "it was opened for launch times, with frames of one chunk: close its other ports first"
    )]
    LongFrames,
    /// The kernel still has frames of a port that is gone.
    #[error("frames of a former port are still under way in the driver: try again")]
    Draining,
    /// The kernel refuses.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

impl Queue {
    /// Maps the memory and takes the queue from the kernel.
    pub(crate) fn open(options: &PoolOptions, shares: Shares) -> Result<Self, SocketError> {
        let (memory, areas) = umem::map(
            shares.ports * shares.rx_chunks,
            shares.ports,
            shares.tx_chunks,
            shares.chunk,
        )
        .map_err(|source| SocketError {
            action: "map memory for frames",
            source,
        })?;
        let pool = Pool::open(options, &memory)?;
        let areas = areas
            .into_iter()
            .map(|area| Area {
                range: area.start()..area.start() + u64::from(area.chunks()) * area.chunk() as u64,
                returned: Vec::with_capacity(area.chunks() as usize),
                state: AreaState::Free(area),
            })
            .collect();
        Ok(Self {
            number: options.queue,
            memory,
            shares,
            zero_copy: pool.zero_copy(),
            launch_times: options.launch_times,
            rings: Mutex::new(Rings {
                pool,
                filled: 0,
                members: 0,
                areas,
            }),
        })
    }

    /// Its number on the interface.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The driver and we share the frame memory.
    #[inline]
    pub(crate) fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Frames may have metadata before them, with a launch time.
    pub(crate) fn launch_times(&self) -> bool {
        self.launch_times
    }

    /// The chunks that frames are received into.
    #[inline]
    pub(crate) fn memory(&self) -> &RxArea {
        &self.memory
    }

    /// Adds sockets for a port, and an area to send from if `sends`, packets of so many bytes at most.
    pub(crate) fn join(
        self: &Arc<Self>,
        sends: bool,
        mtu: u32,
        rx_ring: u32,
        busy_poll: Option<BusyPoll>,
    ) -> Result<(Member, Option<Sender>), JoinError> {
        let tx_chunks = if sends { self.shares.tx_chunks } else { 0 };
        let options = SocketOptions {
            rx_ring,
            tx_chunks,
            busy_poll,
        };
        let upper_options = SocketOptions {
            rx_ring: upper_ring(rx_ring),
            tx_chunks: 0,
            ..options
        };
        let join = |pool: &Pool| {
            let socket = Socket::join(pool, &options)?;
            Ok::<_, SocketError>((socket, Socket::join(pool, &upper_options)?))
        };
        let give_up = Instant::now() + DRAINING;
        let (mut rings, (socket, upper), sender) = loop {
            let mut rings = self.lock();
            if self.launch_times && transmit::chunks_per_frame(mtu, self.memory.chunk()) > 1 {
                return Err(JoinError::LongFrames);
            }
            if rings.members == self.shares.ports {
                return Err(JoinError::Full(rings.members));
            }
            rings.collect();
            if !sends {
                let sockets = join(&rings.pool)?;
                break (rings, sockets, None);
            }
            if rings.has_free_area() {
                let sockets = join(&rings.pool)?;
                let sender = rings.take_area();
                break (rings, sockets, sender);
            }
            drop(rings);
            if Instant::now() >= give_up {
                return Err(JoinError::Draining);
            }
            // Completions cause no event that could be waited for.
            std::thread::sleep(Duration::from_millis(1));
        };
        rings.members += 1;
        let wanted = (rings.members * self.shares.rx_chunks).min(self.memory.chunks());
        while rings.filled < wanted {
            let address = u64::from(rings.filled) * self.memory.chunk() as u64;
            rings.pool.fill.push(address);
            rings.filled += 1;
        }
        rings.pool.fill.publish();
        let returning = Vec::with_capacity(self.memory.chunks() as usize);
        Ok((
            Member {
                socket,
                upper,
                queue: Arc::clone(self),
                returning,
                most_owed: (self.shares.rx_chunks / 8).clamp(1, 64) as usize,
            },
            sender,
        ))
    }

    fn leave(&self, returning: Vec<u64>, sender: Option<(Sender, Outstanding)>) {
        let mut rings = self.lock();
        rings.members -= 1;
        for address in returning {
            rings.pool.fill.push(address);
        }
        rings.pool.fill.publish();
        if let Some((Sender { area, index }, mut left)) = sender {
            let place = &mut rings.areas[index];
            let found = place.returned.len() as u32;
            place.returned.clear();
            left.chunks = left.chunks.saturating_sub(found);
            place.state = match left.chunks {
                0 => AreaState::Free(area),
                _ => AreaState::Draining {
                    area,
                    left,
                    since: Instant::now(),
                },
            };
        }
    }

    /// Passes the completed chunks of `sender` to `complete`; none when another port is at the
    /// rings.
    #[inline]
    pub(crate) fn reclaim(&self, sender: &Sender, mut complete: impl FnMut(u64)) {
        let Some(mut rings) = self.try_lock() else {
            return;
        };
        let count = rings.pool.completion.available(u32::MAX);
        for _ in 0..count {
            let address = rings.pool.completion.pop();
            if sender.area.contains(address) {
                complete(address);
            } else {
                rings.hand_over(address);
            }
        }
        if count > 0 {
            rings.pool.completion.release();
        }
        for address in rings.areas[sender.index].returned.drain(..) {
            complete(address);
        }
    }

    #[inline]
    fn try_lock(&self) -> Option<MutexGuard<'_, Rings>> {
        match self.rings.try_lock() {
            Ok(rings) => Some(rings),
            // Nothing here can panic between two changes that belong together.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rings {
    /// Files a completion of another port's chunk.
    #[cold]
    fn hand_over(&mut self, address: u64) {
        let Some(area) = self
            .areas
            .iter_mut()
            .find(|area| area.range.contains(&address))
        else {
            return;
        };
        match &mut area.state {
            AreaState::Used if area.returned.len() < area.returned.capacity() => {
                area.returned.push(address)
            }
            AreaState::Draining { left, .. } if left.chunks > 1 => left.chunks -= 1,
            AreaState::Draining { .. } => area.state.end(),
            AreaState::Used | AreaState::Free(_) => {}
        }
    }

    /// Files all completions that wait.
    fn collect(&mut self) {
        for _ in 0..self.pool.completion.available(u32::MAX) {
            let address = self.pool.completion.pop();
            self.hand_over(address);
        }
        self.pool.completion.release();
        for area in &mut self.areas {
            // A driver completes in order: what is left after those that it had for certain are the others.
            if let AreaState::Draining { left, since, .. } = &area.state
                && left.chunks <= left.doubtful
                && since.elapsed() >= IN_DOUBT
            {
                area.state.end();
            }
        }
    }

    fn has_free_area(&self) -> bool {
        self.areas
            .iter()
            .any(|area| matches!(area.state, AreaState::Free(_)))
    }

    fn take_area(&mut self) -> Option<Sender> {
        let (index, area) = self
            .areas
            .iter_mut()
            .enumerate()
            .find(|(_, area)| matches!(area.state, AreaState::Free(_)))?;
        match std::mem::replace(&mut area.state, AreaState::Used) {
            AreaState::Free(area) => Some(Sender { area, index }),
            AreaState::Used | AreaState::Draining { .. } => None,
        }
    }
}

impl AreaState {
    /// The kernel has nothing of a former port's any more.
    fn end(&mut self) {
        if let Self::Draining { area, .. } = self {
            *self = Self::Free(area.take());
        }
    }
}

impl Member {
    /// One of the two receive rings.
    #[inline]
    pub(crate) fn ring(&mut self, upper: bool) -> &mut Consumer<Descriptor> {
        match upper {
            true => &mut self.upper.rx,
            false => &mut self.socket.rx,
        }
    }

    /// Gives a received chunk back, by and by.
    #[inline]
    pub(crate) fn give_back(&mut self, address: u64) {
        self.returning.push(self.queue.memory.chunk_at(address));
    }

    /// So many chunks have been given back that the kernel should get them soon.
    #[inline]
    pub(crate) fn owes_much(&self) -> bool {
        self.returning.len() >= self.most_owed
    }

    /// In zero-copy mode, and when there is nothing to receive: the driver may have stopped for
    /// lack of chunks and ask to be woken.
    pub(crate) fn wake_driver(&mut self) {
        let wake = self
            .queue
            .try_lock()
            .is_some_and(|rings| rings.pool.fill.needs_wakeup());
        if wake {
            self.socket.wake_receive();
        }
    }

    /// Puts the chunks given back into the fill ring, unless another port is at it. Does what the
    /// driver needs to go on receiving.
    #[inline]
    pub(crate) fn refill(&mut self) {
        if self.returning.is_empty() {
            return;
        }
        let Some(mut rings) = self.queue.try_lock() else {
            return;
        };
        for address in self.returning.drain(..) {
            rings.pool.fill.push(address);
        }
        rings.pool.fill.publish();
        let wake = rings.pool.fill.needs_wakeup();
        drop(rings);
        if wake {
            self.socket.wake_receive();
        }
    }

    /// Closes the sockets: nothing arrives and nothing leaves any more.
    pub(crate) fn close(self) -> Closed {
        let Self {
            socket,
            upper,
            queue,
            mut returning,
            ..
        } = self;
        let (rx, tx) = socket.close();
        let (upper, _) = upper.close();
        for mut rx in [rx, upper] {
            for _ in 0..rx.available(u32::MAX) {
                returning.push(queue.memory.chunk_at(rx.pop().addr));
            }
        }
        Closed {
            queue,
            returning,
            tx,
        }
    }
}

impl Closed {
    /// Leaves the queue with what was to be sent from, and what of it the kernel has not completed.
    pub(crate) fn leave(self, sender: Option<(Sender, Outstanding)>) {
        let Self {
            queue,
            returning,
            tx,
        } = self;
        // The socket goes with the last of its rings: from then on a driver takes nothing more of what the next port gets.
        drop(tx);
        queue.leave(returning, sender);
    }
}

#[cfg(test)]
mod tests {
    use takt_datapath::PeerHandle;
    use takt_lab::{Lab, LabConfig};

    use super::*;
    use crate::transmit::Transmit;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn lab() -> Option<Lab> {
        // SAFETY: a plain call.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: network namespaces need root");
            return None;
        }
        Some(Lab::scratch(&LabConfig::default()).expect("a lab"))
    }

    /// A queue for one port, of an interface of this thread's namespace.
    fn queue() -> Queue {
        let options = PoolOptions {
            ifindex: takt_xdp::index("eth0").expect("an interface"),
            queue: 0,
            tx_chunks: 8,
            zero_copy: false,
            multi_buffer: false,
            launch_times: false,
        };
        let shares = Shares {
            ports: 1,
            rx_chunks: 8,
            tx_chunks: 8,
            chunk: umem::chunk_for(1500),
        };
        Queue::open(&options, shares).expect("a queue")
    }

    fn join(queue: &Arc<Queue>) -> (Member, Sender) {
        let (member, sender) = queue.join(true, 1500, 8, None).expect("it has room");
        (member, sender.expect("it sends"))
    }

    /// Sockets of AF_XDP in this thread's namespace.
    fn sockets() -> u32 {
        let protocols = std::fs::read_to_string("/proc/thread-self/net/protocols").expect("a list");
        let line = protocols.lines().find(|line| line.starts_with("XDP "));
        let count = line.and_then(|line| line.split_whitespace().nth(2));
        count.expect("AF_XDP").parse().expect("a number")
    }

    #[test]
    fn the_next_port_gets_an_area_when_the_kernel_has_let_go_of_the_sockets() {
        let Some(lab) = lab() else { return };
        let _inside = lab.host(0).enter().expect("the lab is up");
        let queue = Arc::new(queue());
        let (member, sender) = join(&queue);
        assert_eq!(sockets(), 3, "the pool's, and two of the port's");
        let closed = member.close();
        let rings = queue.lock();
        std::thread::scope(|scope| {
            let rings = rings;
            scope.spawn(|| closed.leave(Some((sender, Outstanding::default()))));
            let start = Instant::now();
            while sockets() > 1 {
                assert!(start.elapsed() < PATIENCE, "in vain: the sockets' end");
            }
            assert!(!rings.has_free_area());
        });
        assert!(queue.lock().has_free_area());
    }

    /// No driver here has zero copy. One that is slow is as one that is not there.
    #[test]
    fn what_a_driver_may_have_taken_is_kept_from_the_next_port_for_a_while() {
        let Some(lab) = lab() else { return };
        let _inside = lab.host(0).enter().expect("the lab is up");
        for beside in [true, false] {
            let queue = Arc::new(queue());
            let (mut member, sender) = join(&queue);
            let mut transmit = Transmit::new(sender, 1, false);
            for shown in [true, true, false] {
                let frame = transmit.reserve(&queue, PeerHandle(0), 64).expect("room");
                assert!(transmit.commit(&mut member.socket, frame, None, 64, None));
                if shown {
                    member.socket.tx.publish();
                }
            }
            let mut closed = member.close();
            let (sender, left) = transmit.finish(&mut closed.tx, beside);
            let expected = if beside { 2 } else { 0 };
            assert_eq!((left.chunks, left.doubtful), (expected, expected));
            assert_eq!(closed.tx.waiting(), 2, "nothing is rewound");
            closed.leave(Some((sender, left)));
            assert_eq!(queue.lock().has_free_area(), !beside);
            // It was not taken.
            let (_, sender) = join(&queue);
            assert_eq!(sender.area.chunks(), 8);
        }
    }
}
