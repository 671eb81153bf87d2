//! The transmit scheduler of one port: eight class queues, their gates, the link.
//!
//! Among the frames that may start at the earliest instant the one of the highest class goes (strict
//! priority, IEEE 802.1Q-2022, clause 8.6.8.1), if its gate is open and stays so until the frame is
//! out (8.6.8.4). Every frame offered ends in exactly one counter of [`ClassCounters`].
//!
//! One thread calls, with the time as it reads it: [`Port::enqueue`] for each new frame, then
//! [`Port::next`] until it says how long there is nothing to do. After a **clock step** the port goes
//! by the new time: forward, launch times that have passed are late; back, they are further ahead,
//! and a link that seemed busy is free after one frame's time at most.

mod counters;
mod frame;

use takt_time::{TaiTime, TrafficClass};

pub use counters::{ClassCounters, DropCounters, RefusalCounters};
pub use frame::{
    Decision, Departure, DropReason, Dropped, Item, RefusalReason, Refused, Timeliness, Token,
    TxFlags, TxTimeError,
};

use crate::discipline::{Credit, Discipline, Fifo, Next, Queued, View};
use crate::gate::{GateMask, Gates};
use crate::link::Link;

/// Parameters of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Rate and framing.
    pub link: Link,
    /// How far ahead of its start a frame is handed out: 0 for a lane that sends at once, more where
    /// the device keeps the launch time itself ([`Port::set_lead`], by class). Later arrivals cannot overtake
    /// such a frame.
    pub lead_ns: u64,
    /// What must be left of a window after a frame's end, for departures that are not exact.
    pub guard_ns: u64,
    /// The gates before the first schedule.
    pub initial_gates: GateMask,
    /// Frames that a class queues, until it is given a discipline of its own.
    pub queue_capacity: usize,
}

impl Default for PortConfig {
    /// A gigabit Ethernet port with open gates, 1024 frames per class, sending at once.
    fn default() -> Self {
        Self {
            link: Link::ethernet(1_000_000_000),
            lead_ns: 0,
            guard_ns: 0,
            initial_gates: GateMask::ALL,
            queue_capacity: 1024,
        }
    }
}

/// The transmit scheduler of one port, over frames that the caller knows by `T`.
pub struct Port<T> {
    link: Link,
    /// By class.
    lead_ns: [u64; TrafficClass::COUNT],
    guard_ns: u64,
    hand_over_ns: u64,
    gates: Gates,
    queues: [Box<dyn Discipline<T>>; TrafficClass::COUNT],
    /// Classes that may have a frame queued, a bit each.
    waiting: u8,
    /// When the link can take the next frame.
    free: TaiTime,
    /// How far ahead `free` was when it was set: no further can it be but for a clock step.
    free_ahead_ns: i64,
    /// Both before the last frame that was handed out.
    before: (TaiTime, i64),
    counters: [ClassCounters; TrafficClass::COUNT],
    tokens: u64,
}

/// A discipline was to be replaced while it holds frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "class {class} still has {frames} frames queued: remove them before changing its discipline"
)]
pub struct ClassBusy {
    /// Which class.
    pub class: TrafficClass,
    /// How many frames it holds.
    pub frames: usize,
}

impl<T: Send + 'static> Port<T> {
    /// A port whose classes are served first come, first served.
    pub fn new(config: PortConfig) -> Self {
        Self {
            link: config.link,
            lead_ns: [config.lead_ns; TrafficClass::COUNT],
            guard_ns: config.guard_ns,
            hand_over_ns: 0,
            gates: Gates::new(config.initial_gates),
            queues: std::array::from_fn(|_| {
                Box::new(Fifo::new(config.queue_capacity)) as Box<dyn Discipline<T>>
            }),
            waiting: 0,
            free: TaiTime::from_nanos(i64::MIN),
            free_ahead_ns: 0,
            before: (TaiTime::from_nanos(i64::MIN), 0),
            counters: Default::default(),
            tokens: 0,
        }
    }

    /// Gives a class another order of its frames. Off the transmit path.
    ///
    /// # Errors
    /// [`ClassBusy`] while the class has frames queued.
    pub fn set_discipline(
        &mut self,
        class: TrafficClass,
        discipline: impl Discipline<T> + 'static,
    ) -> Result<(), ClassBusy> {
        let queue = &mut self.queues[usize::from(class.number())];
        if !queue.is_empty() {
            let frames = queue.len();
            return Err(ClassBusy { class, frames });
        }
        *queue = Box::new(discipline);
        Ok(())
    }

    /// How long the caller takes to hand a frame over, as it has measured: it may begin so much later than its start.
    /// Frames that do not name an instant begin so much earlier before a gate closes, where their windows are long
    /// enough for that.
    pub fn set_hand_over(&mut self, nanoseconds: u64) {
        self.hand_over_ns = nanoseconds;
    }

    /// Changes how far ahead of their start frames of a class are handed out: see [`PortConfig::lead_ns`].
    /// Between classes frames are still handed out in the order of their starts.
    pub fn set_lead(&mut self, class: TrafficClass, lead_ns: u64) {
        self.lead_ns[usize::from(class.number())] = lead_ns;
    }

    /// Shapes a class by credit from now on, or no more, where its discipline can
    /// ([`CreditShaper`](crate::discipline::CreditShaper)). Off the transmit path.
    pub fn shape(&mut self, class: TrafficClass, credit: Option<Credit>) {
        self.queues[usize::from(class.number())].shape(credit);
    }

    /// The gates, to read.
    pub fn gates(&self) -> &Gates {
        &self.gates
    }

    /// The gates, for management: install, cancel, enable.
    pub fn gates_mut(&mut self) -> &mut Gates {
        &mut self.gates
    }

    /// The link.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Changes rate or framing, as when a link comes up with another speed.
    pub fn set_link(&mut self, link: Link) {
        self.link = link;
    }

    /// What has become of the class's frames.
    pub fn counters(&self, class: TrafficClass) -> &ClassCounters {
        &self.counters[usize::from(class.number())]
    }

    /// So many flows share the port from now on, with numbers below: each finds room for its part of half of
    /// each class's queue whatever the others do, and of the other half nobody gets more than what is left for
    /// all others ("dynamic queue length thresholds", Choudhury and Hahne, IEEE/ACM Transactions on
    /// Networking 6(2), 1998). Off the transmit path. Before, there is one flow, which may have all room.
    pub fn set_flows(&mut self, count: usize) {
        for queue in &mut self.queues {
            queue.set_flows(count);
        }
    }

    /// Whether a frame of this flow would find room in a class.
    pub fn has_room(&self, class: TrafficClass, flow: u32) -> bool {
        self.queues[usize::from(class.number())].has_room(flow)
    }

    /// How many frames of a class are queued.
    pub fn queued(&self, class: TrafficClass) -> usize {
        self.queues[usize::from(class.number())].len()
    }

    /// Offers a frame to a class.
    ///
    /// # Errors
    /// [`Refused`]: the frame back, the reason, and what its sender is to be told. It is counted.
    pub fn enqueue(
        &mut self,
        class: TrafficClass,
        item: Item<T>,
        now: TaiTime,
    ) -> Result<Token, Refused<T>> {
        self.gates.advance(now);
        let at = usize::from(class.number());
        let queue = &mut self.queues[at];
        let token = Token(self.tokens);
        self.tokens += 1;
        let view = View {
            now,
            ready: now,
            lead_ns: self.lead_ns[at],
            guard_ns: self.guard_ns,
            hand_over_ns: self.hand_over_ns,
            class,
            gates: &self.gates,
            link: &self.link,
        };
        let ignored = item.launch_time.is_some() && !queue.honours_launch_time();
        // By the schedule of the time at which the frame is meant to leave.
        let meant = item
            .launch_time
            .filter(|_| !ignored)
            .unwrap_or(now)
            .max(now);
        let outcome = if oversize(item.len, meant, &view) {
            Err((RefusalReason::Oversize, Queued { token, item }))
        } else if !view.has_window(item.len, meant) {
            Err((RefusalReason::NoWindow, Queued { token, item }))
        } else {
            queue.enqueue(Queued { token, item }, &view)
        };
        let counters = &mut self.counters[at];
        counters.offered += 1;
        match outcome {
            Ok(()) => {
                self.waiting |= 1 << at;
                counters.launch_ignored += u64::from(ignored);
                Ok(token)
            }
            Err((reason, frame)) => {
                counters.refused.count(reason);
                Err(Refused::new(frame.item, reason))
            }
        }
    }

    /// What to do now: send a frame, free one that is dropped, or wait. To be called again after
    /// every frame sent or dropped, and at the instant it says.
    pub fn next(&mut self, now: TaiTime) -> Decision<T> {
        self.gates.advance(now);
        if self.free.nanos_since(now) > self.free_ahead_ns {
            // The clock was stepped back: no frame is on the wire for longer than its own time.
            self.free = now.saturating_add_nanos(self.free_ahead_ns);
        }
        let ready = now.max(self.free);
        let mut best: Option<(TrafficClass, TaiTime, Timeliness)> = None;
        let mut wake: Option<TaiTime> = None;
        let mut unseen = self.waiting;
        while let Some(at) = unseen.checked_ilog2() {
            unseen &= !(1 << at);
            let Some(class) = TrafficClass::new(at as u8) else {
                continue;
            };
            let at = at as usize;
            let view = View {
                now,
                ready,
                lead_ns: self.lead_ns[at],
                guard_ns: self.guard_ns,
                hand_over_ns: self.hand_over_ns,
                class,
                gates: &self.gates,
                link: &self.link,
            };
            match self.queues[at].next(&view) {
                Next::Empty => self.waiting &= !(1 << at),
                Next::Wait(until) => wake = Some(wake.map_or(until, |wake| wake.min(until))),
                Next::Discard(reason) => {
                    if let Some(dropped) = self.discard(class, reason) {
                        return Decision::Drop(dropped);
                    }
                }
                Next::Frame { start, timeliness } => {
                    if best.is_none_or(|(_, earliest, _)| start < earliest) {
                        best = Some((class, start, timeliness));
                    }
                    if start <= ready {
                        // Nothing can start earlier, and what follows is of a lower class.
                        break;
                    }
                }
            }
        }
        let lead = |class: TrafficClass| {
            i64::try_from(self.lead_ns[usize::from(class.number())]).unwrap_or(i64::MAX)
        };
        match best {
            Some((class, start, timeliness)) if start <= now.saturating_add_nanos(lead(class)) => {
                self.send(class, start, timeliness, now)
            }
            _ => {
                let start = best.map(|(class, start, _)| start.saturating_add_nanos(-lead(class)));
                match start.into_iter().chain(wake).min() {
                    // Later than now in any case, or the caller would never wait.
                    Some(until) => Decision::WaitUntil(until.max(now.saturating_add_nanos(1))),
                    None => Decision::Idle,
                }
            }
        }
    }

    /// Tells between which instants a frame that was handed out started, for callers that are not exact: the link
    /// is taken to be busy from the first one on, and a frame that may still be on the wire when its gate closes is
    /// counted (`TransmissionOverrun`, clause 12.29.1.1.2). Answers whether it was.
    pub fn started(&mut self, departure: &Departure<T>, from: TaiTime, to: TaiTime) -> bool {
        let len = departure.item.len;
        let later = from.nanos_since(departure.start);
        self.free = self.free.saturating_add_nanos(later);
        self.free_ahead_ns = self.free_ahead_ns.saturating_add(later).max(0);
        let transmission = i64::try_from(self.link.transmission_ns(len)).unwrap_or(i64::MAX);
        let end = to.saturating_add_nanos(transmission);
        let overrun = departure.gate_closes.is_some_and(|closes| end > closes);
        self.counters[usize::from(departure.class.number())].overruns += u64::from(overrun);
        overrun
    }

    /// Tells that the frame that was handed out last does not leave: it counts as removed, and the link is as free
    /// as it was before. A shaper keeps the credit that it has taken.
    pub fn not_sent(&mut self, departure: &Departure<T>) {
        (self.free, self.free_ahead_ns) = self.before;
        let counters = &mut self.counters[usize::from(departure.class.number())];
        counters.sent -= 1;
        counters.sent_octets -= u64::from(departure.item.len);
        match departure.timeliness {
            Timeliness::OnTime => {}
            Timeliness::Late => counters.sent_late -= 1,
            Timeliness::GateMissed => counters.sent_gate_missed -= 1,
        }
        counters.dropped.removed += 1;
    }

    /// Tells that a frame that was handed out in time left later than tolerated.
    pub fn left_late(&mut self, departure: &Departure<T>) {
        if departure.timeliness == Timeliness::OnTime {
            self.counters[usize::from(departure.class.number())].sent_late += 1;
        }
    }

    /// The first instant from `from` on at which a frame of this length may start: a frame that could not leave
    /// when it was handed out is held to its gate again. `None`: no window will do any more.
    pub fn earliest(&self, departure: &Departure<T>, from: TaiTime) -> Option<TaiTime> {
        self.opens(departure.class, departure.item.len, from, 0)
    }

    /// The same for a frame of a class and so many octets that passes the port's gates without a place in its queues, and
    /// takes `hand_over_ns` to be handed over.
    pub fn opens(
        &self,
        class: TrafficClass,
        len: u32,
        from: TaiTime,
        hand_over_ns: u64,
    ) -> Option<TaiTime> {
        let needed = self.link.transmission_ns(len).saturating_add(self.guard_ns);
        self.gates
            .open_for(class, from, needed.saturating_add(hand_over_ns))
    }

    /// Takes every queued frame that `unwanted` says out of the port and hands it to `sink`, as when a
    /// sender is gone. They count as removed. Off the transmit path.
    pub fn remove(
        &mut self,
        mut unwanted: impl FnMut(TrafficClass, Token, &Item<T>) -> bool,
        mut sink: impl FnMut(Item<T>),
    ) {
        for class in TrafficClass::all() {
            let at = usize::from(class.number());
            let counters = &mut self.counters[at];
            self.queues[at].remove(
                &mut |frame| unwanted(class, frame.token, &frame.item),
                &mut |frame| {
                    counters.dropped.removed += 1;
                    sink(frame.item);
                },
            );
        }
    }

    fn discard(&mut self, class: TrafficClass, reason: DropReason) -> Option<Dropped<T>> {
        let at = usize::from(class.number());
        let Queued { token, item } = self.queues[at].take()?;
        self.counters[at].dropped.count(reason);
        Some(Dropped::new(token, class, item, reason))
    }

    fn send(
        &mut self,
        class: TrafficClass,
        start: TaiTime,
        timeliness: Timeliness,
        now: TaiTime,
    ) -> Decision<T> {
        let at = usize::from(class.number());
        let Some(Queued { token, item }) = self.queues[at].take() else {
            return Decision::Idle;
        };
        let counters = &mut self.counters[at];
        let view = View {
            now,
            ready: start,
            lead_ns: self.lead_ns[at],
            guard_ns: self.guard_ns,
            hand_over_ns: self.hand_over_ns,
            class,
            gates: &self.gates,
            link: &self.link,
        };
        if oversize(item.len, start, &view) {
            counters.dropped.count(DropReason::Oversize);
            return Decision::Drop(Dropped::new(token, class, item, DropReason::Oversize));
        }
        counters.sent += 1;
        counters.sent_octets += u64::from(item.len);
        match timeliness {
            Timeliness::OnTime => {}
            Timeliness::Late => counters.sent_late += 1,
            Timeliness::GateMissed => counters.sent_gate_missed += 1,
        }
        self.queues[at].started(item.len, start, &view);
        let occupancy = i64::try_from(self.link.occupancy_ns(item.len)).unwrap_or(i64::MAX);
        self.before = (self.free, self.free_ahead_ns);
        self.free = start.saturating_add_nanos(occupancy);
        self.free_ahead_ns = self.free.nanos_since(now);
        Decision::Send(Departure {
            gate_closes: self.gates.next_closed(class, start),
            token,
            class,
            start,
            timeliness,
            item,
        })
    }
}

/// Whether a frame exceeds `queueMaxSDU` of its class under the list in force at `at`.
fn oversize(len: u32, at: TaiTime, view: &View<'_>) -> bool {
    let most = view
        .gates
        .list(at)
        .map_or(0, |list| list.max_sdu(view.class));
    most != 0 && len > most.saturating_add(view.link.framing.header)
}
