//! What becomes of a frame that a guest sends by one of its queues.

use std::sync::Arc;
use std::time::{Duration, Instant};

use takt::{FrameOptions, Outcome, TrafficClass};
use takt_clock::{Clock, SystemTai};
use vhost_user_backend::VringRwLock;

use super::queue::{Queue, Served};
use super::ring::{self, HEADER, LONGEST, Memory, Taken};
use super::status::{Own, Shared};
use super::tap::Tap;
use crate::ClassFrom;
use crate::counters::{Counters, Unserved};
use crate::error::Error;
use crate::record::Towards;
use crate::runtime::{Emitted, Runtime, TICK, Turn};

/// Frames of one turn, of either direction.
pub(super) const BURST: usize = 64;

/// What the frame in hand waits for.
enum Held {
    /// Room in the runtime. When it leaves is said when there is room: the instant that it would have left at has passed by then.
    Room(TrafficClass, Towards),
    /// Frames of this queue that go to the same place and have been given to the runtime: it is the kernel's, and is not to overtake them.
    Behind(Towards),
}

/// One queue of a guest.
pub(super) struct Transmitter {
    at: usize,
    served: Option<(Served, Runtime)>,
    required: bool,
    tap: Arc<Tap>,
    shared: Arc<Shared>,
    counters: Counters,
    /// The frame in hand, behind its header.
    packet: Vec<u8>,
    /// What it waits for.
    held: Option<Held>,
    next_tick: Instant,
}

impl Transmitter {
    pub(super) fn new(
        queue: &Queue,
        at: usize,
        session: String,
        required: bool,
        tap: &Arc<Tap>,
        shared: &Arc<Shared>,
    ) -> Result<Self, Error> {
        let served = match queue {
            Queue::Kernel => None,
            Queue::Runtime(served) => {
                let runtime = Runtime::open(session, served.socket.as_deref())?;
                Some((served.clone(), runtime))
            }
        };
        Ok(Self {
            at,
            served,
            required,
            tap: Arc::clone(tap),
            shared: Arc::clone(shared),
            counters: Counters::default(),
            packet: Vec::with_capacity(HEADER + LONGEST),
            held: None,
            next_tick: Instant::now(),
        })
    }

    /// Sends what waits, as much as a turn has.
    pub(super) fn turn(&mut self, ring: &VringRwLock, memory: &Memory) -> Turn {
        let mut used = false;
        let turn = self.burst(ring, memory, &mut used);
        if used {
            ring::signal(ring);
        }
        self.tick();
        turn
    }

    fn burst(&mut self, ring: &VringRwLock, memory: &Memory, used: &mut bool) -> Turn {
        let done = match self.held.take() {
            Some(Held::Room(class, towards)) => self.emit(class, towards),
            Some(Held::Behind(towards)) => self.give_back(Some(towards)),
            None => true,
        };
        if !done {
            return Turn::Held;
        }
        for _ in 0..BURST {
            match ring::take(ring, memory, &mut self.packet) {
                Taken::Frame => {}
                Taken::Malformed => {
                    *used = true;
                    self.counters.unserved(Unserved::Malformed);
                    continue;
                }
                Taken::Broken => {
                    self.shared.count(self.at, Own::Broken);
                    return Turn::Empty;
                }
                Taken::Empty | Taken::Stopped => return Turn::Empty,
            }
            *used = true;
            if !self.forward() {
                return Turn::Held;
            }
        }
        Turn::More
    }

    /// Sends the frame in hand. Whether it is done with.
    fn forward(&mut self) -> bool {
        let Some((served, runtime)) = &mut self.served else {
            self.hand_to_kernel();
            return true;
        };
        match runtime.admit(&self.packet[HEADER..]) {
            Ok((towards, class)) => {
                let class = served.class.of(class);
                self.emit(class, towards)
            }
            Err(why) => self.unserved(why),
        }
    }

    /// Gives the frame in hand to the runtime, or does with it what is to be done. Whether it is done with.
    fn emit(&mut self, class: TrafficClass, towards: Towards) -> bool {
        let Some((served, runtime)) = &mut self.served else {
            return true;
        };
        let options = FrameOptions {
            class,
            launch: served.when.launch(SystemTai.now()),
            deadline: false,
        };
        match runtime.emit(&self.packet[HEADER..], &options, towards) {
            Emitted::Yes => true,
            Emitted::NoRoom => {
                runtime.settle(|outcome| self.counters.outcome(outcome));
                self.held = Some(Held::Room(class, towards));
                false
            }
            Emitted::Unserved(why) => self.unserved(why),
        }
    }

    /// Does what is to be done with a frame that the runtime does not send. Whether it is done with.
    fn unserved(&mut self, why: Unserved) -> bool {
        self.counters.unserved(why);
        if self.required || !self.is_for_the_kernel() {
            return true;
        }
        self.give_back(Towards::of(&self.packet[HEADER..]))
    }

    /// Whether the kernel may have the frame in hand. What is sent by a queue of one class is the listener's, and nobody else's by way of the host's bridge,
    /// for whatever reason the runtime does not send it.
    fn is_for_the_kernel(&self) -> bool {
        self.served.as_ref().is_none_or(|(served, runtime)| {
            !matches!(served.class, ClassFrom::Fixed(_)) || runtime.is_own(&self.packet[HEADER..])
        })
    }

    /// Gives the frame in hand to the kernel, behind those that the runtime has for the same place. Whether it is done with.
    fn give_back(&mut self, towards: Option<Towards>) -> bool {
        if let (Some((_, runtime)), Some(towards)) = (&mut self.served, towards)
            && runtime.is_pending_towards(towards)
        {
            runtime.settle(|outcome| self.counters.outcome(outcome));
            if runtime.is_pending_towards(towards) {
                self.held = Some(Held::Behind(towards));
                return false;
            }
        }
        self.counters.given_back();
        self.hand_to_kernel();
        true
    }

    fn hand_to_kernel(&mut self) {
        let own = match self.tap.write(&self.packet[HEADER..]) {
            true => Own::Kernel,
            false => Own::KernelRefused,
        };
        self.shared.count(self.at, own);
    }

    /// The guest has gone: what is in hand is not for when another one comes.
    pub(super) fn leave(&mut self) {
        if self.held.take().is_some() {
            self.counters.outcome(Outcome::Lost);
        }
        self.shared.set(self.at, self.counters.all());
    }

    /// Asks what became of frames, from time to time, and tells others.
    pub(super) fn tick(&mut self) {
        if Instant::now() >= self.next_tick {
            self.next_tick = Instant::now() + TICK;
            if let Some((_, runtime)) = &mut self.served {
                runtime.settle(|outcome| self.counters.outcome(outcome));
                runtime.tell(&mut self.counters, &[]);
            }
        }
        self.shared.set(self.at, self.counters.all());
    }

    /// When there has to be a turn again although nothing comes; `None`: never.
    pub(super) fn patience(&self) -> Option<Duration> {
        let (_, runtime) = self.served.as_ref()?;
        let pending = runtime.is_pending() || self.counters.has_news();
        pending.then(|| self.next_tick.saturating_duration_since(Instant::now()))
    }
}
