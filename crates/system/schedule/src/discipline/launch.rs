//! By launch time: what Linux's `etf` queueing discipline does for `SO_TXTIME`, bounded.
//!
//! A *strict* frame leaves at its launch time, not before; a *deadline* frame leaves as soon as it
//! can, not after (`SOF_TXTIME_DEADLINE_MODE`). Each kind is ordered by time, and among equal times
//! as it came. A deadline frame goes first only if it is off the link before the next strict one is
//! due. Unlike etf, a queue may hold both kinds, a frame may wait for its gate, and a new frame is
//! never refused for the time of one that has left.
//!
//! **Late** means later than the launch time by more than the tolerance, because the lane or the
//! link was busy; **gate-missed** means the same because the class's gate did not let the frame go
//! in time. Each has its own policy and its own counters.

use takt_time::TaiTime;

use super::heap::TimeHeap;
use super::{Discipline, Next, Queued, View};
use crate::port::{DropReason, RefusalReason, Timeliness, TxFlags};

/// What becomes of a frame that cannot leave in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatePolicy {
    /// It is dropped and reported to its sender.
    #[default]
    Drop,
    /// It leaves as soon as it can.
    Send,
}

/// Which kinds of frames a queue takes. An etf queueing discipline takes one of them only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accept {
    /// Both.
    #[default]
    Any,
    /// Frames with a launch time to be met (etf without `deadline_mode`).
    StrictOnly,
    /// Frames with a deadline (etf with `deadline_mode`).
    DeadlineOnly,
}

/// Parameters of a [`LaunchTime`] queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchTimeConfig {
    /// Most frames queued, at most `u32::MAX`.
    pub capacity: usize,
    /// Which kinds are taken.
    pub accept: Accept,
    /// What becomes of late frames.
    pub late: LatePolicy,
    /// What becomes of frames whose gate is closed at their launch time. Linux's taprio drops them;
    /// here they wait for their gate by default.
    pub gate_missed: LatePolicy,
    /// How much later than its launch time a strict frame may start and still count as on time.
    /// Deadlines have no tolerance.
    pub tolerance_ns: u32,
    /// How far ahead of now a launch time may lie: bounds how long a frame can hold its place.
    pub horizon_ns: u64,
}

impl Default for LaunchTimeConfig {
    /// 1024 frames of both kinds, 100 µs of tolerance, 5 s ahead; late frames are dropped,
    /// gate-missed ones wait.
    fn default() -> Self {
        Self {
            capacity: 1024,
            accept: Accept::Any,
            late: LatePolicy::Drop,
            gate_missed: LatePolicy::Send,
            tolerance_ns: 100_000,
            horizon_ns: 5_000_000_000,
        }
    }
}

/// Frames ordered by launch time.
#[derive(Debug)]
pub struct LaunchTime<T> {
    config: LaunchTimeConfig,
    strict: TimeHeap<T>,
    deadline: TimeHeap<T>,
    named: Option<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Strict,
    Deadline,
}

impl<T> LaunchTime<T> {
    /// An empty queue.
    pub fn new(config: LaunchTimeConfig) -> Self {
        let room = |wanted: bool| if wanted { config.capacity } else { 0 };
        Self {
            strict: TimeHeap::new(room(config.accept != Accept::DeadlineOnly)),
            deadline: TimeHeap::new(room(config.accept != Accept::StrictOnly)),
            config,
            named: None,
        }
    }

    fn refusal(
        &self,
        frame: &Queued<T>,
        launch: TaiTime,
        view: &View<'_>,
    ) -> Option<RefusalReason> {
        let deadline = frame.item.flags.contains(TxFlags::DEADLINE);
        if !match self.config.accept {
            Accept::Any => true,
            Accept::StrictOnly => !deadline,
            Accept::DeadlineOnly => deadline,
        } {
            return Some(RefusalReason::Mode);
        }
        let ahead = launch.nanos_since(view.now);
        let tolerated = if deadline {
            0
        } else {
            -i64::from(self.config.tolerance_ns)
        };
        let dropped =
            self.config.late == LatePolicy::Drop || frame.item.flags.contains(TxFlags::DROP_LATE);
        if ahead < tolerated && dropped {
            return Some(RefusalReason::Late);
        }
        if u64::try_from(ahead).is_ok_and(|ahead| ahead > self.config.horizon_ns) {
            return Some(RefusalReason::TooFarAhead);
        }
        if self.strict.len() + self.deadline.len() >= self.config.capacity {
            return Some(RefusalReason::Full);
        }
        None
    }

    fn next_strict(&self, view: &View<'_>) -> Next {
        let Some((launch, len)) = self.strict.peek() else {
            return Next::Empty;
        };
        let from = launch.max(view.ready);
        let limit = launch.saturating_add_nanos(self.config.tolerance_ns.into());
        let Some(by_gates) = view.earliest(len, launch) else {
            return Next::Discard(DropReason::NoWindow);
        };
        let Some(start) = (if from == launch {
            Some(by_gates)
        } else {
            view.earliest(len, from)
        }) else {
            return Next::Discard(DropReason::NoWindow);
        };
        if start <= limit {
            let timeliness = Timeliness::OnTime;
            return Next::Frame { start, timeliness };
        }
        match self.missed(by_gates > limit, &self.strict) {
            Ok(timeliness) => Next::Frame { start, timeliness },
            Err(_) if view.now < launch => Next::Wait(launch),
            Err(reason) => Next::Discard(reason),
        }
    }

    fn next_deadline(&self, view: &View<'_>) -> Next {
        let Some((deadline, len)) = self.deadline.peek() else {
            return Next::Empty;
        };
        let Some(start) = view.earliest(len, view.ready) else {
            return Next::Discard(DropReason::NoWindow);
        };
        if start <= deadline {
            let timeliness = Timeliness::OnTime;
            return Next::Frame { start, timeliness };
        }
        let by_gate = view.earliest(len, deadline) != Some(deadline);
        match self.missed(by_gate, &self.deadline) {
            Ok(timeliness) => Next::Frame { start, timeliness },
            Err(_) if view.now <= deadline => Next::Wait(deadline.saturating_add_nanos(1)),
            Err(reason) => Next::Discard(reason),
        }
    }

    /// What becomes of the first frame, which cannot start in time: it is sent, and counts as this, or not.
    fn missed(&self, by_gate: bool, heap: &TimeHeap<T>) -> Result<Timeliness, DropReason> {
        let (policy, sent, dropped) = if by_gate {
            let policy = self.config.gate_missed;
            (policy, Timeliness::GateMissed, DropReason::GateMissed)
        } else {
            (self.config.late, Timeliness::Late, DropReason::Late)
        };
        match policy {
            LatePolicy::Send if by_gate || !heap.flags().contains(TxFlags::DROP_LATE) => Ok(sent),
            _ => Err(dropped),
        }
    }

    fn choose(&self, strict: Next, deadline: Next, view: &View<'_>) -> (Kind, Next) {
        use Kind::{Deadline, Strict};
        match (strict, deadline) {
            (strict, Next::Empty) => (Strict, strict),
            (Next::Empty, deadline) => (Deadline, deadline),
            (Next::Discard(_), _) => (Strict, strict),
            (_, Next::Discard(_)) => (Deadline, deadline),
            (Next::Wait(one), Next::Wait(other)) => (Strict, Next::Wait(one.min(other))),
            (Next::Frame { start, .. }, Next::Wait(until)) => {
                let lead = i64::try_from(view.lead_ns).unwrap_or(i64::MAX);
                if start.saturating_add_nanos(-lead) <= until {
                    (Strict, strict)
                } else {
                    (Deadline, deadline)
                }
            }
            // The strict frame is to be sent or dropped then; it may hide one that must be in time.
            (Next::Frame { start: due_at, .. } | Next::Wait(due_at), Next::Frame { start, .. }) => {
                let len = self.deadline.peek().map_or(0, |(_, len)| len);
                let busy = i64::try_from(view.link.occupancy_ns(len)).unwrap_or(i64::MAX);
                if start.saturating_add_nanos(busy) <= due_at {
                    (Deadline, deadline)
                } else {
                    (Strict, strict)
                }
            }
        }
    }
}

impl<T: Send> Discipline<T> for LaunchTime<T> {
    fn enqueue(
        &mut self,
        frame: Queued<T>,
        view: &View<'_>,
    ) -> Result<(), (RefusalReason, Queued<T>)> {
        let Some(launch) = frame.item.launch_time else {
            return Err((RefusalReason::NoLaunchTime, frame));
        };
        if let Some(reason) = self.refusal(&frame, launch, view) {
            return Err((reason, frame));
        }
        let heap = if frame.item.flags.contains(TxFlags::DEADLINE) {
            &mut self.deadline
        } else {
            &mut self.strict
        };
        heap.push(launch, frame)
            .map_err(|frame| (RefusalReason::Full, frame))
    }

    fn next(&mut self, view: &View<'_>) -> Next {
        let (kind, next) = self.choose(self.next_strict(view), self.next_deadline(view), view);
        self.named = match next {
            Next::Frame { .. } | Next::Discard(_) => Some(kind),
            Next::Empty | Next::Wait(_) => None,
        };
        next
    }

    fn take(&mut self) -> Option<Queued<T>> {
        match self.named.take()? {
            Kind::Strict => self.strict.pop(),
            Kind::Deadline => self.deadline.pop(),
        }
    }

    fn len(&self) -> usize {
        self.strict.len() + self.deadline.len()
    }

    fn honours_launch_time(&self) -> bool {
        true
    }

    fn remove(
        &mut self,
        unwanted: &mut dyn FnMut(&Queued<T>) -> bool,
        sink: &mut dyn FnMut(Queued<T>),
    ) {
        self.named = None;
        self.strict.remove(unwanted, sink);
        self.deadline.remove(unwanted, sink);
    }
}
