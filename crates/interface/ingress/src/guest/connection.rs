//! A VMM's connection: what is offered to the guest, and the threads that serve its queues, one for each that it sends by and one for what
//! it receives.

use std::cell::OnceCell;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{VhostUserBackend, VringEpollHandler, VringRwLock};
use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_net::{
    VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_MQ,
};
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};
use vmm_sys_util::epoll::EventSet;

use super::ring::{self, HEADER, LONGEST, Memory, Put};
use super::status::{Own, Shared};
use super::tap::Tap;
use super::transmit::{BURST, Transmitter};
use crate::runtime::{ROOM, Turn};

/// The most descriptors of a queue: as QEMU and others allow.
const QUEUE_SIZE: usize = 1024;
/// `VHOST_USER_F_PROTOCOL_FEATURES`.
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Turns that a thread takes before it looks for its end.
const TURNS: usize = 16;

/// What serves a VMM.
pub(super) struct Connection {
    transmitters: Arc<[Mutex<Transmitter>]>,
    receiver: Mutex<Receiver>,
    tap: Arc<Tap>,
    shared: Arc<Shared>,
    memory: Memory,
    /// Of each thread, for turns without an event.
    timers: Vec<OwnedFd>,
    threads: Arc<Threads>,
}

/// How it is with the threads of a connection.
pub(super) struct Threads {
    /// They are to end.
    ending: AtomicBool,
    /// One of them has ended by itself, and its queues are served by nobody.
    lost: AtomicBool,
    /// The guest's driver is none that can be served.
    legacy: AtomicBool,
    /// How many have been at work so far: the end of those is noticed.
    there: Mutex<usize>,
    more: Condvar,
    /// Shut down when the connection is to end, which who has the other end of it sees.
    end: UnixStream,
}

impl Threads {
    pub(super) fn new(end: UnixStream) -> Arc<Self> {
        Arc::new(Self {
            ending: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            legacy: AtomicBool::new(false),
            there: Mutex::new(0),
            more: Condvar::new(),
            end,
        })
    }

    /// Ends the connection.
    pub(super) fn end(&self) {
        let _ = self.end.shutdown(Shutdown::Both);
    }

    /// What one of them has from now on.
    fn alive(self: &Arc<Self>) -> Alive {
        *self.there.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.more.notify_all();
        Alive(Arc::clone(self))
    }

    /// Why they have ended the connection, if they have.
    pub(super) fn fault(&self) -> Option<&'static str> {
        if self.is_legacy() {
            return Some(
                "the guest's driver is of before virtio 1 (no VIRTIO_F_VERSION_1), and none such is served: have the VMM offer the device \
                 as one of virtio 1 alone (disable-legacy=on), or update the driver",
            );
        }
        let is_one_lost = self.lost.load(Ordering::Acquire);
        is_one_lost.then_some("a queue's thread has ended")
    }

    fn is_legacy(&self) -> bool {
        self.legacy.load(Ordering::Acquire)
    }
}

/// What a thread of the library's has for as long as it is there. The library ends one without a word: after an error of a ring's kick, say,
/// which a VMM has replaced meanwhile.
struct Alive(Arc<Threads>);

impl Drop for Alive {
    fn drop(&mut self) {
        if !self.0.ending.load(Ordering::Acquire) {
            self.0.lost.store(true, Ordering::Release);
            self.0.end();
        }
    }
}

thread_local! {
    static ALIVE: OnceCell<Alive> = const { OnceCell::new() };
}

/// Has the threads of a connection end when it is dropped: they never do so by themselves. The library has events for that, and leaves
/// one descriptor for each of them open.
pub(super) struct Ending<'a>(pub(super) &'a Connection);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        // Release: who finds its timer gone off finds this, too.
        self.0.threads.ending.store(true, Ordering::Release);
        for thread in 0..self.0.timers.len() {
            self.0.again(thread, Duration::ZERO);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let receiver = self.receiver.get_mut();
        let receiver = receiver.unwrap_or_else(PoisonError::into_inner);
        if receiver.held.is_some() {
            self.shared.count(0, Own::Down);
        }
    }
}

/// The frame for the guest that is in hand.
struct Receiver {
    packet: Box<[u8]>,
    held: Option<usize>,
}

impl Connection {
    pub(super) fn new(
        transmitters: Arc<[Mutex<Transmitter>]>,
        tap: Arc<Tap>,
        shared: Arc<Shared>,
        memory: Memory,
        threads: Arc<Threads>,
    ) -> Result<Self, String> {
        let timer = || {
            rustix::time::timerfd_create(
                TimerfdClockId::Monotonic,
                TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
            )
        };
        let timers = (0..=transmitters.len()).map(|_| timer());
        Ok(Self {
            timers: timers
                .collect::<Result<_, _>>()
                .map_err(|e| e.to_string())?,
            receiver: Mutex::new(Receiver {
                // One more octet tells a frame that is too long from one that is not.
                packet: vec![0; HEADER + LONGEST + 1].into(),
                held: None,
            }),
            transmitters,
            tap,
            shared,
            memory,
            threads,
        })
    }

    /// Has the threads hear of timers and of the tap device.
    pub(super) fn register(
        &self,
        threads: &[Arc<VringEpollHandler<Arc<Self>>>],
    ) -> Result<(), String> {
        let told = |error: io::Error| error.to_string();
        for (thread, timer) in threads.iter().zip(&self.timers) {
            thread
                .register_listener(timer.as_raw_fd(), EventSet::IN, self.timer_event())
                .map_err(told)?;
        }
        // Once for all that waits: a guest without buffers is not to keep the thread awake.
        let edge = EventSet::IN | EventSet::EDGE_TRIGGERED;
        threads[self.transmitters.len()]
            .register_listener(self.tap.raw(), edge, self.timer_event() + 1)
            .map_err(told)
    }

    /// Waits until all threads, which have heard of their timers, are at work: from then on none ends unnoticed.
    pub(super) fn await_threads(&self) {
        let count = self.timers.len();
        (0..count).for_each(|thread| self.again(thread, Duration::ZERO));
        let there = self.threads.there.lock();
        let there = there.unwrap_or_else(PoisonError::into_inner);
        drop(self.threads.more.wait_while(there, |there| *there < count));
    }

    /// The number of the timers' events: behind those of queues, and one that the library has.
    fn timer_event(&self) -> u64 {
        self.num_queues() as u64 + 1
    }

    /// Has a thread take a turn after a while.
    fn again(&self, thread: usize, after: Duration) {
        let spec = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: after.as_secs() as i64,
                // None would be never.
                tv_nsec: i64::from(after.subsec_nanos()).max(1),
            },
        };
        let _ =
            rustix::time::timerfd_settime(&self.timers[thread], TimerfdTimerFlags::empty(), &spec);
    }

    /// Sends what the guest has for one of its queues.
    fn transmit(&self, at: usize, ring: &VringRwLock) {
        let transmitter = &self.transmitters[at];
        let mut transmitter = transmitter.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..TURNS {
            ring::quiet(ring);
            match transmitter.turn(ring, &self.memory) {
                Turn::More => {}
                Turn::Held => return self.again(at, ROOM),
                Turn::Empty => {
                    if !ring::listen(ring) {
                        if let Some(patience) = transmitter.patience() {
                            self.again(at, patience);
                        }
                        return;
                    }
                }
            }
        }
        self.again(at, Duration::ZERO);
    }

    /// Gives the guest what has come for it.
    fn receive(&self, ring: &VringRwLock) {
        let mut receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..TURNS {
            ring::quiet(ring);
            let (mut used, mut starved, mut dry) = (false, false, false);
            for _ in 0..BURST {
                let Receiver { packet, held } = &mut *receiver;
                let Some(length) = held.take().or_else(|| self.tap.read(&mut packet[HEADER..]))
                else {
                    dry = true;
                    break;
                };
                if length > LONGEST {
                    self.shared.count(0, Own::Unfit);
                    continue;
                }
                match ring::put(ring, &self.memory, &mut packet[..HEADER + length]) {
                    Put::Done => {
                        used = true;
                        self.shared.count(0, Own::Received);
                    }
                    Put::Unfit => {
                        used = true;
                        self.shared.count(0, Own::Unfit);
                    }
                    Put::Broken => {
                        self.shared.count(0, Own::Broken);
                        self.shared.count(0, Own::Down);
                    }
                    Put::Stopped => self.shared.count(0, Own::Down),
                    Put::NoBuffer => {
                        *held = Some(length);
                        starved = true;
                        break;
                    }
                }
            }
            if used {
                ring::signal(ring);
            }
            // Buffers that it provides from here on are told of; those that it has provided meanwhile are used.
            if dry || (starved && !ring::listen(ring)) {
                return;
            }
        }
        self.again(self.transmitters.len(), Duration::ZERO);
    }
}

impl VhostUserBackend for Connection {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        2 * self.transmitters.len()
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        // No offload: frames are whole when they come, and the runtime sends them as they are.
        let always = [
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_NET_F_CTRL_VQ,
            VIRTIO_NET_F_GUEST_ANNOUNCE,
        ];
        let several = (self.transmitters.len() > 1).then_some(VIRTIO_NET_F_MQ);
        let bits = always.into_iter().chain(several);
        bits.fold(PROTOCOL_FEATURES, |bits, bit| bits | 1 << bit)
    }

    /// A driver that knows nothing of virtio 1 has a shorter header before its frames.
    fn acked_features(&self, features: u64) {
        if features & 1 << VIRTIO_F_VERSION_1 == 0 {
            self.threads.legacy.store(true, Ordering::Release);
            self.threads.end();
        }
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        // Not CONFIGURE_MEM_SLOTS: QEMU before 8 adds each region once for each queue pair.
        VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&self, _enabled: bool) {
        // The rings know.
    }

    fn update_memory(&self, _memory: Memory) -> io::Result<()> {
        // It is the one that we have.
        Ok(())
    }

    /// One for each queue that the guest sends by (odd numbers), and one for those by which it receives (even numbers).
    fn queues_per_thread(&self) -> Vec<u64> {
        let sending = (0..self.transmitters.len()).map(|at| 1 << (2 * at + 1));
        let receiving = (0..self.transmitters.len()).fold(0, |mask, at| mask | 1 << (2 * at));
        sending.chain([receiving]).collect()
    }

    fn handle_event(
        &self,
        event: u16,
        _events: EventSet,
        rings: &[VringRwLock],
        thread: usize,
    ) -> io::Result<()> {
        if u64::from(event) == self.timer_event() {
            let _ = rustix::io::read(&self.timers[thread], &mut [0; 8]);
        }
        ALIVE.with(|alive| {
            alive.get_or_init(|| self.threads.alive());
        });
        if self.threads.ending.load(Ordering::Acquire) {
            // An error is what ends a thread of the library's.
            return Err(io::Error::other("the VMM has gone"));
        }
        // Its rings are started nevertheless if the VMM is quick.
        if self.threads.is_legacy() {
            return Ok(());
        }
        match thread < self.transmitters.len() {
            true => self.transmit(thread, &rings[0]),
            // By the first one alone: whatever a guest has behind it, frames stay in order.
            false => self.receive(&rings[0]),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
