//! The order of frames within one traffic class.
//!
//! [`Discipline`] is the strategy; [`Fifo`], [`LaunchTime`] and [`CreditShaper`] are three of them.
//! A discipline queues frames and names the next one with the earliest instant it may start; the
//! [`Port`](crate::Port) chooses among classes. Gates, the link and the clock reach it as a [`View`].

mod fifo;
mod heap;
mod launch;
mod shaper;

use takt_time::{TaiTime, TrafficClass};

pub use fifo::Fifo;
pub use launch::{Accept, LatePolicy, LaunchTime, LaunchTimeConfig};
pub use shaper::{Credit, CreditShaper, CreditShaperConfig};

use crate::gate::Gates;
use crate::link::Link;
use crate::port::{DropReason, Item, RefusalReason, Timeliness, Token};

/// A frame in a queue.
#[derive(Debug)]
pub struct Queued<T> {
    /// The port's name for it.
    pub token: Token,
    /// What was enqueued.
    pub item: Item<T>,
}

/// What a discipline sees of its port.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The time.
    pub now: TaiTime,
    /// When the link can take the next frame: not before `now`.
    pub ready: TaiTime,
    /// How far ahead of its start a frame may be handed out.
    pub lead_ns: u64,
    /// What must be left of a window after a frame's end.
    pub guard_ns: u64,
    /// How long it takes to hand a frame over: [`earliest_with_room`](Self::earliest_with_room).
    pub hand_over_ns: u64,
    /// The discipline's class.
    pub class: TrafficClass,
    /// The port's gates.
    pub gates: &'a Gates,
    /// The port's link.
    pub link: &'a Link,
}

impl View<'_> {
    /// The first instant from `from` on at which the class's gate is open and stays so until a frame
    /// of `len` octets is out (IEEE 802.1Q-2022, clause 8.6.8.4). `None` if no window will do.
    pub fn earliest(&self, len: u32, from: TaiTime) -> Option<TaiTime> {
        self.gates.open_for(self.class, from, self.needed_ns(len))
    }

    /// The same for a frame with no instant of its own: the time that handing it over takes is left of the window, too,
    /// unless no window is so long, or it would start after `latest`.
    pub fn earliest_with_room(&self, len: u32, from: TaiTime, latest: TaiTime) -> Option<TaiTime> {
        let needed = self.needed_ns(len).saturating_add(self.hand_over_ns);
        self.gates
            .open_for(self.class, from, needed)
            .filter(|start| *start <= latest)
            .or_else(|| self.earliest(len, from))
    }

    /// Whether [`earliest`](Self::earliest) finds an instant.
    pub fn has_window(&self, len: u32, from: TaiTime) -> bool {
        self.gates.has_window(self.class, from, self.needed_ns(len))
    }

    fn needed_ns(&self, len: u32) -> u64 {
        self.link.transmission_ns(len).saturating_add(self.guard_ns)
    }
}

/// What a discipline would do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing is queued.
    Empty,
    /// Nothing may be handed out before this instant.
    Wait(TaiTime),
    /// Its next frame may start at `start`, not before [`View::ready`].
    Frame {
        /// When.
        start: TaiTime,
        /// What counts when it starts then.
        timeliness: Timeliness,
    },
    /// Its next frame must go, for this reason.
    Discard(DropReason),
}

/// The order of frames within one class.
///
/// The port calls [`next`](Self::next), then either leaves it at that or calls
/// [`take`](Self::take) for the frame that `next` spoke of. No call but the constructor may allocate.
pub trait Discipline<T>: Send {
    /// Queues a frame.
    ///
    /// # Errors
    /// The reason, and the frame back.
    fn enqueue(
        &mut self,
        frame: Queued<T>,
        view: &View<'_>,
    ) -> Result<(), (RefusalReason, Queued<T>)>;

    /// The frame whose turn is next, and when.
    fn next(&mut self, view: &View<'_>) -> Next;

    /// Removes the frame that the last [`next`](Self::next) named; `None` if it named none.
    fn take(&mut self) -> Option<Queued<T>>;

    /// Tells that a frame of `len` octets of this class occupies the link from `start` on.
    fn started(&mut self, len: u32, start: TaiTime, view: &View<'_>) {
        let _ = (len, start, view);
    }

    /// Shapes the class by credit from now on, or no more. Off the transmit path.
    fn shape(&mut self, credit: Option<Credit>) {
        let _ = credit;
    }

    /// How many frames are queued.
    fn len(&self) -> usize;

    /// Whether a frame of this flow would find room.
    fn has_room(&self, flow: u32) -> bool;

    /// So many flows share the queue from now on, with numbers below. Off the transmit path.
    fn set_flows(&mut self, count: usize) {
        let _ = count;
    }

    /// Whether no frame is queued.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether launch times have a meaning here. Where they have none they are ignored and counted.
    fn honours_launch_time(&self) -> bool {
        false
    }

    /// Hands every frame that `unwanted` says to `sink`. Off the transmit path.
    fn remove(
        &mut self,
        unwanted: &mut dyn FnMut(&Queued<T>) -> bool,
        sink: &mut dyn FnMut(Queued<T>),
    );
}
