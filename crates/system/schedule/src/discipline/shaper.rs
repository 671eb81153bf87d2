//! The credit-based shaper (IEEE 802.1Q-2022, clause 8.6.8.2; 802.1Qav).
//!
//! A frame may start while the class's credit is not negative. Credit falls while the class sends and
//! rises at the idle slope while it waits; what is left when nothing waits is lost. Under gates,
//! credit rises only while the gate is open, at the idle slope times cycle time / gate open time,
//! so that the class gets its bandwidth in the time it has.
//!
//! Credit counts what a frame takes of the link, with preamble, FCS and gap (clause 34.4).

use std::marker::PhantomData;

use takt_time::TaiTime;

use super::{Discipline, Fifo, Next, Queued, View};
use crate::port::RefusalReason;

/// Parameters of a [`CreditShaper`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditShaperConfig {
    /// Most frames queued.
    pub capacity: usize,
    /// `adminIdleSlope`: the bandwidth of the class, bits per second of the link.
    pub idle_slope_bps: u64,
    /// `hiCredit`: most credit the class may gather while others send, bits. Clause 34 and annex L
    /// derive it from the largest interference.
    pub high_credit_bits: u64,
}

/// What a class may send, and how much at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// `adminIdleSlope`, bits per second of the link.
    pub idle_slope_bps: u64,
    /// `hiCredit`, bits.
    pub high_credit_bits: u64,
}

/// A queue, first come, first served unless it is another one, at no more than a bandwidth. On a link without a rate
/// frames take no time, cost no credit and are not shaped.
#[derive(Debug)]
pub struct CreditShaper<T, Q = Fifo<T>> {
    queue: Q,
    frames: PhantomData<T>,
    /// `None`: nothing is shaped.
    config: Option<Credit>,
    /// Credit at `updated`, in billionths of a bit, so that bit/s times ns is exact.
    credit: i128,
    updated: TaiTime,
    /// How far ahead of now the end of the last frame was: `updated` may be that far ahead, no further.
    ahead_ns: i64,
}

/// Windows looked at per call when credit must be earned in the open time of a gate.
const WINDOWS: u32 = 16;

impl<T: Send> CreditShaper<T> {
    /// An empty queue without credit.
    pub fn new(config: CreditShaperConfig) -> Self {
        let credit = Credit {
            idle_slope_bps: config.idle_slope_bps,
            high_credit_bits: config.high_credit_bits,
        };
        Self::over(Fifo::new(config.capacity), Some(credit))
    }
}

impl<T: Send, Q: Discipline<T>> CreditShaper<T, Q> {
    /// Shapes what another queue names; `None`: not before it is [told](Discipline::shape) to.
    pub fn over(queue: Q, config: Option<Credit>) -> Self {
        Self {
            queue,
            frames: PhantomData,
            config,
            credit: 0,
            updated: TaiTime::from_nanos(i64::MIN),
            ahead_ns: 0,
        }
    }

    /// The credit, in bits, as of the last call.
    pub fn credit_bits(&self) -> i64 {
        i64::try_from(self.credit.div_euclid(1_000_000_000)).unwrap_or(i64::MAX)
    }

    /// `operIdleSlope` (8.6.8.2), not above the link's rate.
    fn idle_slope(&self, view: &View<'_>) -> i128 {
        let slope = self.config.map_or(0, |config| config.idle_slope_bps);
        let slope = i128::from(slope);
        let slope = match view.gates.list(view.now) {
            Some(list) => {
                let open = i128::from(list.open_ns_per_cycle(view.class)).max(1);
                slope * i128::from(list.cycle_ns()) / open
            }
            None => slope,
        };
        match view.link.rate_bps {
            Some(rate) => slope.min(rate.get().into()),
            None => slope,
        }
        .max(1)
    }

    fn earn(&mut self, until: TaiTime, waiting: bool, view: &View<'_>) {
        if self.updated.nanos_since(until) > self.ahead_ns {
            // The clock was stepped back.
            self.updated = until;
        }
        if until <= self.updated {
            return;
        }
        if waiting || self.credit < 0 {
            let open = view.gates.open_ns_between(view.class, self.updated, until);
            self.credit += self.idle_slope(view) * i128::from(open);
        }
        let most = if waiting {
            let bits = self.config.map_or(0, |config| config.high_credit_bits);
            i128::from(bits) * 1_000_000_000
        } else {
            0
        };
        self.credit = self.credit.min(most);
        self.updated = until;
    }

    /// When the credit will be 0: `Err` with an instant not after it where that takes many windows.
    fn recovered(&self, view: &View<'_>) -> Result<TaiTime, TaiTime> {
        let slope = self.idle_slope(view);
        let lacking = (-self.credit + slope - 1).div_euclid(slope);
        let mut lacking = i64::try_from(lacking.max(0)).unwrap_or(i64::MAX);
        let mut at = self.updated.max(view.now);
        for _ in 0..WINDOWS {
            if lacking == 0 {
                return Ok(at);
            }
            let Some(open) = view.gates.next_open(view.class, at) else {
                return Ok(at);
            };
            let window = view.gates.open_ns(view.class, open);
            let window = i64::try_from(window).unwrap_or(i64::MAX);
            let used = lacking.min(window);
            lacking -= used;
            at = open.saturating_add_nanos(used);
        }
        if lacking == 0 { Ok(at) } else { Err(at) }
    }
}

impl<T: Send, Q: Discipline<T>> Discipline<T> for CreditShaper<T, Q> {
    fn enqueue(
        &mut self,
        frame: Queued<T>,
        view: &View<'_>,
    ) -> Result<(), (RefusalReason, Queued<T>)> {
        if self.config.is_some() {
            self.earn(view.now, !self.queue.is_empty(), view);
        }
        self.queue.enqueue(frame, view)
    }

    fn next(&mut self, view: &View<'_>) -> Next {
        if self.config.is_none() {
            return self.queue.next(view);
        }
        self.earn(view.now, !self.queue.is_empty(), view);
        if self.credit >= 0 || self.queue.is_empty() {
            return self.queue.next(view);
        }
        // What has no window is told at once, whatever the credit.
        let discarded = self.queue.next(view);
        if let Next::Discard(_) = discarded {
            return discarded;
        }
        match self.recovered(view) {
            Err(at) => Next::Wait(at),
            Ok(at) => self.queue.next(&View {
                ready: view.ready.max(at),
                ..*view
            }),
        }
    }

    fn take(&mut self) -> Option<Queued<T>> {
        self.queue.take()
    }

    fn started(&mut self, len: u32, start: TaiTime, view: &View<'_>) {
        self.queue.started(len, start, view);
        if self.config.is_none() {
            return;
        }
        self.earn(start, true, view);
        let busy = view.link.occupancy_ns(len);
        let rate = view.link.rate_bps.map_or(0, |rate| i128::from(rate.get()));
        let send_slope = (self.idle_slope(view) - rate).min(0);
        self.credit += send_slope * i128::from(busy);
        self.updated = start.saturating_add_nanos(i64::try_from(busy).unwrap_or(i64::MAX));
        self.ahead_ns = self.updated.nanos_since(view.now);
    }

    fn shape(&mut self, credit: Option<Credit>) {
        if self.config != credit {
            self.config = credit;
            // What was earned or owed was at another slope.
            (self.credit, self.ahead_ns) = (0, 0);
            self.updated = TaiTime::from_nanos(i64::MIN);
        }
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn has_room(&self, flow: u32) -> bool {
        self.queue.has_room(flow)
    }

    fn set_flows(&mut self, count: usize) {
        self.queue.set_flows(count);
    }

    fn honours_launch_time(&self) -> bool {
        self.queue.honours_launch_time()
    }

    fn remove(
        &mut self,
        unwanted: &mut dyn FnMut(&Queued<T>) -> bool,
        sink: &mut dyn FnMut(Queued<T>),
    ) {
        self.queue.remove(unwanted, sink);
    }
}
