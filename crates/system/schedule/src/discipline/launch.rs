//! By launch time: what Linux's `etf` queueing discipline does for `SO_TXTIME`, bounded.
//!
//! A *strict* frame leaves at its launch time, not before; a *deadline* frame leaves as soon as it
//! can, not after (`SOF_TXTIME_DEADLINE_MODE`). Each kind is ordered by time, and among equal times
//! as it came. A deadline frame goes first only if it is off the link before the next strict one is
//! due. Unlike etf, a queue may hold both kinds, a frame may wait for its gate, and a new frame is
//! never refused for the time of one that has left.
//!
//! **Flows** (tenants, in the runtime) take turns: of those with a frame that may start, the one after the flow
//! that had the last turn, whatever their launch times; each flow's own frames stay in their order. So whoever
//! stamps many frames for just before another's instant delays it by one of them. A deadline frame lets the
//! strict frame of another flow go first that would be due before it is off the link, once.
//!
//! **Late** means later than the launch time by more than the tolerance, because the lane or the
//! link was busy; **gate-missed** means the same because the class's gate did not let the frame go
//! in time. Each has its own policy and its own counters.

use takt_time::TaiTime;

use super::heap::{Frames, TimeHeap};
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
    frames: Frames<T>,
    flows: Vec<Flow>,
    /// Frames queued, and those beyond what is reserved for their flow.
    queued: usize,
    shared: usize,
    /// Frames that each flow finds room for, whatever others queue; `None`: all room is everybody's.
    reserved: Option<usize>,
    /// The flow that had the last turn.
    turn: usize,
    named: Option<Named>,
}

/// What the last look has found.
#[derive(Clone, Copy, Debug)]
struct Named {
    flow: usize,
    kind: Kind,
    /// The frame is sent, which is a turn.
    sent: bool,
    /// The flow that lets this frame go first.
    passed: Option<usize>,
}

/// Frames of one flow.
#[derive(Clone, Copy, Debug)]
struct Flow {
    strict: TimeHeap,
    deadline: TimeHeap,
    /// Launch time of its first strict frame.
    launch: TaiTime,
    queued: usize,
    /// It has let another's strict frame go first.
    passed: bool,
}

impl Flow {
    const EMPTY: Self = Self {
        strict: TimeHeap::EMPTY,
        deadline: TimeHeap::EMPTY,
        launch: NEVER,
        queued: 0,
        passed: false,
    };
}

/// Later than any launch time.
const NEVER: TaiTime = TaiTime::from_nanos(i64::MAX);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Strict,
    Deadline,
}

impl<T> LaunchTime<T> {
    /// An empty queue for one flow, which has number 0.
    pub fn new(config: LaunchTimeConfig) -> Self {
        Self {
            frames: Frames::new(config.capacity),
            flows: vec![Flow::EMPTY],
            queued: 0,
            shared: 0,
            reserved: None,
            turn: 0,
            config,
            named: None,
        }
    }

    /// What frames of flows beyond their reservation may take together.
    fn most_shared(&self) -> usize {
        let reserved = self.reserved.unwrap_or(0) * self.flows.len();
        self.config.capacity.saturating_sub(reserved)
    }

    fn finds_room(&self, flow: u32) -> bool {
        let Some(flow) = self.flows.get(flow as usize) else {
            return false;
        };
        match self.reserved {
            None => self.queued < self.config.capacity,
            Some(reserved) if flow.queued < reserved => true,
            // Nobody gets more of what is shared than is left of it for all others.
            Some(_) => self.beyond(flow) < self.most_shared().saturating_sub(self.shared),
        }
    }

    fn beyond(&self, flow: &Flow) -> usize {
        flow.queued.saturating_sub(self.reserved.unwrap_or(0))
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
        if !self.finds_room(frame.item.flow) {
            return Some(RefusalReason::Full);
        }
        None
    }

    fn next_strict(&self, heap: TimeHeap, view: &View<'_>) -> Next {
        let Some((launch, len)) = self.frames.peek(heap) else {
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
        match self.missed(by_gates > limit, heap) {
            Ok(timeliness) => Next::Frame { start, timeliness },
            Err(_) if view.now < launch => Next::Wait(launch),
            Err(reason) => Next::Discard(reason),
        }
    }

    fn next_deadline(&self, heap: TimeHeap, view: &View<'_>) -> Next {
        let Some((deadline, len)) = self.frames.peek(heap) else {
            return Next::Empty;
        };
        let Some(start) = view.earliest_with_room(len, view.ready, deadline) else {
            return Next::Discard(DropReason::NoWindow);
        };
        if start <= deadline {
            let timeliness = Timeliness::OnTime;
            return Next::Frame { start, timeliness };
        }
        let by_gate = view.earliest(len, deadline) != Some(deadline);
        match self.missed(by_gate, heap) {
            Ok(timeliness) => Next::Frame { start, timeliness },
            Err(_) if view.now <= deadline => Next::Wait(deadline.saturating_add_nanos(1)),
            Err(reason) => Next::Discard(reason),
        }
    }

    /// What becomes of the first frame, which cannot start in time: it is sent, and counts as this, or not.
    fn missed(&self, by_gate: bool, heap: TimeHeap) -> Result<Timeliness, DropReason> {
        let (policy, sent, dropped) = if by_gate {
            let policy = self.config.gate_missed;
            (policy, Timeliness::GateMissed, DropReason::GateMissed)
        } else {
            (self.config.late, Timeliness::Late, DropReason::Late)
        };
        match policy {
            LatePolicy::Send
                if by_gate || !self.frames.flags(heap).contains(TxFlags::DROP_LATE) =>
            {
                Ok(sent)
            }
            _ => Err(dropped),
        }
    }

    /// What a flow would do next, if it were alone.
    fn next_of(&self, flow: &Flow, view: &View<'_>) -> (Kind, Next) {
        use Kind::{Deadline, Strict};
        let strict = self.next_strict(flow.strict, view);
        let deadline = self.next_deadline(flow.deadline, view);
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
                if self.end(flow, start, view) <= due_at {
                    (Deadline, deadline)
                } else {
                    (Strict, strict)
                }
            }
        }
    }

    /// When the first deadline frame of a flow is off the link if it starts at `start`.
    fn end(&self, flow: &Flow, start: TaiTime, view: &View<'_>) -> TaiTime {
        let len = self.frames.peek(flow.deadline).map_or(0, |(_, len)| len);
        let busy = i64::try_from(view.link.occupancy_ns(len)).unwrap_or(i64::MAX);
        start.saturating_add_nanos(busy)
    }
}

/// A frame that could start.
#[derive(Clone, Copy)]
struct Candidate {
    flow: usize,
    kind: Kind,
    start: TaiTime,
    timeliness: Timeliness,
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
        let reserved = self.reserved.unwrap_or(0);
        let Some(flow) = self.flows.get_mut(frame.item.flow as usize) else {
            return Err((RefusalReason::Full, frame));
        };
        let queued = if frame.item.flags.contains(TxFlags::DEADLINE) {
            self.frames.push(&mut flow.deadline, launch, frame)
        } else {
            let queued = self.frames.push(&mut flow.strict, launch, frame);
            flow.launch = flow.launch.min(launch);
            queued
        };
        queued.map_err(|frame| (RefusalReason::Full, frame))?;
        self.shared += usize::from(flow.queued >= reserved);
        flow.queued += 1;
        self.queued += 1;
        Ok(())
    }

    fn next(&mut self, view: &View<'_>) -> Next {
        self.named = None;
        let mut best: Option<Candidate> = None;
        let mut wait: Option<TaiTime> = None;
        // The flow whose strict frame is due first, of those that have nothing that may start.
        let mut first: Option<usize> = None;
        // No flow's frame can start now.
        let mut closed = false;
        for step in 1..=self.flows.len() {
            let at = self.turn + step;
            let at = if at < self.flows.len() {
                at
            } else {
                at - self.flows.len()
            };
            let flow = &self.flows[at];
            if flow.queued == 0 {
                continue;
            }
            if flow.deadline.is_empty() && flow.launch > view.ready {
                if first.is_none_or(|first| flow.launch < self.flows[first].launch) {
                    first = Some(at);
                }
                continue;
            }
            if closed || best.is_some_and(|best| best.start <= view.ready) {
                continue;
            }
            let (kind, next) = self.next_of(flow, view);
            match next {
                Next::Frame { start, timeliness } => {
                    if best.is_none_or(|best| start < best.start) {
                        best = Some(Candidate {
                            flow: at,
                            kind,
                            start,
                            timeliness,
                        });
                    }
                    if start <= view.ready && kind == Kind::Strict {
                        break;
                    }
                    closed = start > view.ready && view.earliest(0, view.ready) > Some(view.ready);
                }
                Next::Wait(until) => wait = Some(wait.map_or(until, |wait| wait.min(until))),
                Next::Discard(_) => return self.name(at, kind, next, None),
                Next::Empty => {}
            }
        }
        let mut passed = None;
        if let Some(at) = first
            && best.is_none_or(|best| {
                best.kind == Kind::Deadline || self.flows[at].launch < best.start
            })
        {
            let (kind, next) = self.next_of(&self.flows[at], view);
            match next {
                Next::Frame { start, timeliness } => {
                    let earlier = best.is_none_or(|best| {
                        let other = &self.flows[best.flow];
                        let collides = best.kind == Kind::Deadline
                            && !other.passed
                            && self.end(other, best.start, view) > start;
                        if collides && best.start <= start {
                            passed = Some(best.flow);
                        }
                        collides || start < best.start
                    });
                    if earlier {
                        best = Some(Candidate {
                            flow: at,
                            kind,
                            start,
                            timeliness,
                        });
                    }
                }
                Next::Wait(until) => wait = Some(wait.map_or(until, |wait| wait.min(until))),
                Next::Discard(_) => return self.name(at, kind, next, None),
                Next::Empty => {}
            }
        }
        let lead = i64::try_from(view.lead_ns).unwrap_or(i64::MAX);
        match (best, wait) {
            (Some(best), Some(until)) if best.start.saturating_add_nanos(-lead) > until => {
                Next::Wait(until)
            }
            (Some(best), _) => {
                let next = Next::Frame {
                    start: best.start,
                    timeliness: best.timeliness,
                };
                self.name(best.flow, best.kind, next, passed)
            }
            (None, Some(until)) => Next::Wait(until),
            (None, None) => Next::Empty,
        }
    }

    fn take(&mut self) -> Option<Queued<T>> {
        let named = self.named.take()?;
        let reserved = self.reserved.unwrap_or(0);
        let flow = self.flows.get_mut(named.flow)?;
        let frame = match named.kind {
            Kind::Strict => {
                let frame = self.frames.pop(&mut flow.strict);
                let first = self.frames.peek(flow.strict);
                flow.launch = first.map_or(NEVER, |(launch, _)| launch);
                frame
            }
            Kind::Deadline => self.frames.pop(&mut flow.deadline),
        }?;
        self.shared -= usize::from(flow.queued > reserved);
        flow.queued -= 1;
        self.queued -= 1;
        if named.sent {
            flow.passed = false;
            self.turn = named.flow;
            if let Some(passed) = named.passed.and_then(|passed| self.flows.get_mut(passed)) {
                passed.passed = true;
            }
        }
        Some(frame)
    }

    fn len(&self) -> usize {
        self.queued
    }

    fn honours_launch_time(&self) -> bool {
        true
    }

    fn has_room(&self, flow: u32) -> bool {
        self.finds_room(flow)
    }

    fn set_flows(&mut self, count: usize) {
        let last = self.flows.iter().rposition(|flow| flow.queued > 0);
        let count = count.max(last.map_or(1, |last| last + 1));
        self.flows.resize(count, Flow::EMPTY);
        self.turn = self.turn.min(count - 1);
        self.named = None;
        let reserved = self.config.capacity / 2 / count;
        self.reserved = Some(reserved);
        let beyond = self
            .flows
            .iter()
            .map(|flow| flow.queued.saturating_sub(reserved));
        self.shared = beyond.sum();
    }

    fn remove(
        &mut self,
        unwanted: &mut dyn FnMut(&Queued<T>) -> bool,
        sink: &mut dyn FnMut(Queued<T>),
    ) {
        self.named = None;
        let reserved = self.reserved.unwrap_or(0);
        (self.queued, self.shared) = (0, 0);
        for flow in &mut self.flows {
            let mut removed = 0;
            let mut counted = |frame| {
                removed += 1;
                sink(frame);
            };
            self.frames.remove(&mut flow.strict, unwanted, &mut counted);
            self.frames
                .remove(&mut flow.deadline, unwanted, &mut counted);
            flow.queued -= removed;
            let first = self.frames.peek(flow.strict);
            flow.launch = first.map_or(NEVER, |(launch, _)| launch);
            self.queued += flow.queued;
            self.shared += flow.queued.saturating_sub(reserved);
        }
    }
}

impl<T> LaunchTime<T> {
    /// Notes what `next` speaks of.
    fn name(&mut self, flow: usize, kind: Kind, next: Next, passed: Option<usize>) -> Next {
        self.named = Some(Named {
            flow,
            kind,
            sent: matches!(next, Next::Frame { .. }),
            passed,
        });
        next
    }
}
