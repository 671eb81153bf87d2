//! The gates of one port: the operational list, the pending one, and how one replaces the other.
//!
//! Follows IEEE 802.1Q-2022, clause 8.6.9: the Cycle Timer (8.6.9.1), List Execute (8.6.9.2) and
//! List Config (8.6.9.3) state machines. Their result is kept as a [`Timeline`] that is rebuilt when
//! management acts, so that time itself costs nothing. `tests/state_machines.rs` runs the machines
//! as the standard writes them, tick by tick, beside this.
//!
//! Where the standard says nothing or leaves a choice, this holds:
//! - **A clock step** forward past the change time makes the pending list operational at the new
//!   time; a step back does not undo a change. Under one list the gates depend on the instant alone:
//!   a cycle begins at base time + n · cycle time for every integer n, before the base time too.
//! - **A cycle that begins at the instant of a request** sees the request; one in progress keeps its
//!   end, unless the change comes first.
//! - **Replacing or cancelling** a pending change in the cycle that is already its last one: the
//!   cycle lasts until the new change if it may be stretched that far, else until the next instant
//!   at which a cycle would begin anyway. No cycle begins off the grid of its list.
//! - **A change asked for while disabled** waits until the gates are enabled.

use std::cell::Cell;
use std::mem;
use std::sync::Arc;

use takt_time::{TaiTime, TrafficClass};

use super::timeline::{Kind, Timeline};
use super::{GateList, GateMask, HORIZON_NS, NEVER};

/// Where an instant lies in the running schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cycle {
    /// How many cycles after the base time this one began; negative before the base time.
    pub number: i64,
    /// When it began.
    pub start: TaiTime,
}

/// What management reads of a port's gates (clause 12.29.1).
#[derive(Clone, Debug)]
pub struct GatesStatus {
    /// `GateEnabled`.
    pub enabled: bool,
    /// `OperGateStates`.
    pub gates: GateMask,
    /// The operational list.
    pub oper: Option<Arc<GateList>>,
    /// The pending list and its `ConfigChangeTime`; no time while the gates are disabled.
    pub pending: Option<(Arc<GateList>, Option<TaiTime>)>,
    /// The cycle in progress.
    pub cycle: Option<Cycle>,
    /// `ConfigChangeError`: changes asked for with a base time in the past while a list ran.
    pub config_change_errors: u64,
    /// How many lists have become operational.
    pub config_changes: u64,
}

/// The transmission gates of a port.
#[derive(Clone, Debug)]
pub struct Gates {
    enabled: bool,
    initial: GateMask,
    oper: Option<Arc<GateList>>,
    pending: Option<Pending>,
    timeline: Timeline,
    /// What the last change replaced, kept until management acts again: freeing it is no work for
    /// the transmit path.
    retired: Option<(Option<Arc<GateList>>, Timeline)>,
    /// The window last found for each class: most questions are about the same one again.
    windows: [Cell<Window>; TrafficClass::COUNT],
    config_change_errors: u64,
    config_changes: u64,
}

/// For every instant from `from` to `close`, the first window is this one.
#[derive(Clone, Copy, Debug)]
struct Window {
    from: i64,
    open: i64,
    close: i64,
}

impl Window {
    const NONE: Self = Self {
        from: NEVER,
        open: NEVER,
        close: NEVER,
    };
}

#[derive(Clone, Debug)]
struct Pending {
    list: Arc<GateList>,
    /// `NEVER` while the gates are disabled.
    change_ns: i64,
    /// The timeline once the change is done, made beforehand: the transmit path allocates nothing.
    then: Timeline,
}

impl Gates {
    /// Enabled gates without a list: they stay in the `initial` states (`AdminGateStates`).
    pub fn new(initial: GateMask) -> Self {
        Self {
            enabled: true,
            initial,
            oper: None,
            pending: None,
            timeline: Timeline::new(Kind::Fixed(initial)),
            retired: None,
            windows: [const { Cell::new(Window::NONE) }; TrafficClass::COUNT],
            config_change_errors: 0,
            config_changes: 0,
        }
    }

    /// Asks for a configuration change (`ConfigChange`, clause 8.6.9.3). Answers its
    /// `ConfigChangeTime` (8.6.9.3.1): the base time, or, when that is past, the first instant from
    /// `now` on at which a cycle of the new list begins; `None` while the gates are disabled.
    ///
    /// The cycle before the change is cut, or stretched by at most the running list's cycle time
    /// extension (8.6.9.1.1). A change that is pending already is replaced.
    pub fn install(&mut self, list: Arc<GateList>, now: TaiTime) -> Option<TaiTime> {
        self.manage(now);
        let now_ns = clamp(now);
        if self.enabled && self.oper.is_some() && list.base_ns < now_ns {
            self.config_change_errors += 1;
        }
        let change_ns = if self.enabled {
            cycle_from(&list, now_ns)
        } else {
            NEVER
        };
        self.request(list, change_ns, now_ns);
        self.advance(now);
        self.enabled.then_some(TaiTime::from_nanos(change_ns))
    }

    /// Makes a list operational at once, whatever its base time: one that was so before a restart is again, in the
    /// cycle that it would be in, also by a clock that has fallen behind. A pending one is dropped.
    pub fn resume(&mut self, list: Arc<GateList>, now: TaiTime) {
        self.manage(now);
        self.pending = None;
        if self.enabled {
            self.timeline = Timeline::new(Kind::Cycles(Arc::clone(&list)));
        }
        self.oper = Some(list);
        self.config_changes += 1;
    }

    /// Drops the pending list. Answers whether there was one.
    pub fn cancel(&mut self, now: TaiTime) -> bool {
        self.manage(now);
        let cancelled = self.pending.take().is_some();
        if cancelled && self.enabled {
            self.timeline = self.planned(clamp(now), None);
        }
        cancelled
    }

    /// `GateEnabled`. Disabling drops a pending list and puts the gates in their initial states
    /// (8.6.9.2, state INIT). Enabling resumes the operational list at its next cycle (8.6.9.1.1)
    /// and takes up a change that was asked for meanwhile.
    pub fn set_enabled(&mut self, enabled: bool, now: TaiTime) {
        self.manage(now);
        if self.enabled == enabled {
            return;
        }
        self.enabled = enabled;
        self.timeline = Timeline::new(Kind::Fixed(self.initial));
        let requested = self.pending.take();
        if !enabled {
            return;
        }
        let now_ns = clamp(now);
        if let Some(oper) = &self.oper {
            let resume = cycle_from(oper, now_ns);
            self.timeline.push(resume, Kind::Cycles(Arc::clone(oper)));
        }
        if let Some(Pending { list, .. }) = requested {
            let change_ns = cycle_from(&list, now_ns);
            self.request(list, change_ns, now_ns);
        }
        self.advance(now);
    }

    /// Sets `AdminGateStates`. They show where no list runs: before the first change and while
    /// disabled.
    pub fn set_initial(&mut self, initial: GateMask, now: TaiTime) {
        self.manage(now);
        self.initial = initial;
        self.timeline.set_fixed(initial);
    }

    /// Makes the pending list operational if its time has come; answers whether it did. Questions
    /// about the gates are right without it; the status is only with it. Neither allocates nor
    /// frees.
    pub fn advance(&mut self, now: TaiTime) -> bool {
        if self
            .pending
            .as_ref()
            .is_none_or(|pending| pending.change_ns > clamp(now))
        {
            return false;
        }
        if let Some(pending) = self.pending.take() {
            let before = mem::replace(&mut self.timeline, pending.then);
            self.retired = Some((self.oper.replace(pending.list), before));
            self.config_changes += 1;
            self.forget_windows();
        }
        true
    }

    fn manage(&mut self, now: TaiTime) {
        self.advance(now);
        self.retired = None;
        self.forget_windows();
    }

    fn forget_windows(&mut self) {
        for window in &mut self.windows {
            *window.get_mut() = Window::NONE;
        }
    }

    /// The first window of `class` that does not end before `t`, from `t` on at the earliest.
    fn window(&self, class: TrafficClass, t: i64) -> (i64, i64) {
        let last = &self.windows[usize::from(class.number())];
        let mut window = last.get();
        if t < window.from || t >= window.close {
            let (open, close) = self.timeline.window(class, t);
            let from = t;
            window = Window { from, open, close };
            last.set(window);
        }
        (window.open.max(t), window.close)
    }

    fn request(&mut self, list: Arc<GateList>, change_ns: i64, now_ns: i64) {
        if self.enabled {
            self.timeline = self.planned(now_ns, Some((change_ns, &list)));
        }
        self.pending = Some(Pending {
            then: Timeline::new(Kind::Cycles(Arc::clone(&list))),
            list,
            change_ns,
        });
    }

    /// The timeline from `now` on, with or without a change ahead.
    fn planned(&self, now: i64, change: Option<(i64, &Arc<GateList>)>) -> Timeline {
        let fixed = || Timeline::new(Kind::Fixed(self.initial));
        let Some(oper) = &self.oper else {
            let mut timeline = fixed();
            if let Some((at, list)) = change {
                timeline.push(at, Kind::Cycles(Arc::clone(list)));
            }
            return timeline;
        };
        let cycles = || Kind::Cycles(Arc::clone(oper));
        let stretchable = oper.cycle_ns + oper.extension_ns;
        let (segment, end) = self.timeline.segment(now);
        let mut timeline = Timeline::new(cycles());
        // When the next cycle begins unless the change comes first.
        let next = match &segment.kind {
            Kind::Fixed(_) => {
                let resume = cycle_from(oper, now);
                timeline = fixed();
                timeline.push(resume, cycles());
                resume
            }
            Kind::Cycles(_) => oper.base_ns + ceil_to(now - oper.base_ns, oper.cycle_ns),
            Kind::Single { start, .. } => {
                let was_last = self.pending.as_ref().is_some_and(|p| p.change_ns == end);
                let stays = change.is_some_and(|(at, _)| was_last && at <= start + stretchable);
                let grid = oper.base_ns + ceil_to(now - oper.base_ns, oper.cycle_ns);
                let next = change.filter(|_| stays).map_or(grid, |(at, _)| at);
                timeline.push(*start, segment.kind.clone());
                timeline.push(next, cycles());
                next
            }
        };
        if let Some((at, list)) = change {
            if at > next {
                let last = next + ceil_to((at - stretchable - next).max(0), oper.cycle_ns);
                let list = Arc::clone(oper);
                timeline.push(last, Kind::Single { list, start: last });
            }
            timeline.push(at, Kind::Cycles(Arc::clone(list)));
        }
        timeline
    }
}

/// Questions about any instant. Each is answered from the lists in force and pending now.
impl Gates {
    /// The gates' states at `t`.
    pub fn state(&self, t: TaiTime) -> GateMask {
        self.timeline.gates(clamp(t))
    }

    /// The next instant after `t` at which an entry, a cycle or a list begins.
    pub fn next_event(&self, t: TaiTime) -> Option<TaiTime> {
        instant(self.timeline.next_event(clamp(t)))
    }

    /// The first instant from `t` on at which the gate of `class` is open.
    pub fn next_open(&self, class: TrafficClass, t: TaiTime) -> Option<TaiTime> {
        instant(self.window(class, clamp(t)).0)
    }

    /// The first instant from `t` on at which the gate of `class` is closed (the next gate-close
    /// event of clause 3.97, or `t` itself).
    pub fn next_closed(&self, class: TrafficClass, t: TaiTime) -> Option<TaiTime> {
        let t = clamp(t);
        match self.window(class, t) {
            (open, close) if open == t => instant(close),
            _ => Some(TaiTime::from_nanos(t)),
        }
    }

    /// How long the gate of `class` stays open from `t`, nanoseconds: 0 when it is closed,
    /// `u64::MAX` when no list in force or pending closes it.
    pub fn open_ns(&self, class: TrafficClass, t: TaiTime) -> u64 {
        let t = clamp(t);
        match self.window(class, t) {
            (open, _) if open != t => 0,
            (_, NEVER) => u64::MAX,
            (_, close) => (close - t).unsigned_abs(),
        }
    }

    /// The first instant from `t` on at which the gate of `class` is open and stays so for
    /// `duration_ns`: the earliest start of a frame that takes so long (clause 8.6.8.4). `None` if
    /// no window will do.
    pub fn open_for(&self, class: TrafficClass, t: TaiTime, duration_ns: u64) -> Option<TaiTime> {
        let duration = i64::try_from(duration_ns).ok()?;
        let (open, close) = self.window(class, clamp(t));
        if close == NEVER || close.saturating_sub(open) >= duration {
            return instant(open);
        }
        instant(self.timeline.open_for(class, close, duration))
    }

    /// Whether any window of `class` that does not end before `t` is as long as `duration_ns`: what
    /// [`open_for`](Self::open_for) finds, without finding where.
    pub fn has_window(&self, class: TrafficClass, t: TaiTime, duration_ns: u64) -> bool {
        i64::try_from(duration_ns)
            .is_ok_and(|duration| self.timeline.ends_with_window(class, duration))
            || self.open_for(class, t, duration_ns).is_some()
    }

    /// How long the gate of `class` is open between two instants, nanoseconds.
    pub fn open_ns_between(&self, class: TrafficClass, from: TaiTime, to: TaiTime) -> u64 {
        let (from, to) = (clamp(from), clamp(to));
        if from >= to {
            return 0;
        }
        self.timeline.open_time(class, from, to).unsigned_abs()
    }

    /// The cycle in progress at `t`, `None` where no list runs.
    pub fn cycle(&self, t: TaiTime) -> Option<Cycle> {
        let t = clamp(t);
        let (segment, _) = self.timeline.segment(t);
        let list = segment.kind.list()?;
        let start = segment.kind.cycle_start(t)?;
        Some(Cycle {
            number: (start - list.base_ns).div_euclid(list.cycle_ns),
            start: TaiTime::from_nanos(start),
        })
    }

    /// The list in force at `t`, `None` where the gates are in their initial states.
    pub fn list(&self, t: TaiTime) -> Option<&GateList> {
        self.timeline.segment(clamp(t)).0.kind.list()
    }

    /// What management reads.
    pub fn status(&self, now: TaiTime) -> GatesStatus {
        let change = |at: i64| (at != NEVER).then_some(TaiTime::from_nanos(at));
        GatesStatus {
            enabled: self.enabled,
            gates: self.state(now),
            oper: self.oper.clone(),
            pending: self
                .pending
                .as_ref()
                .map(|pending| (Arc::clone(&pending.list), change(pending.change_ns))),
            cycle: self.cycle(now),
            config_change_errors: self.config_change_errors,
            config_changes: self.config_changes,
        }
    }
}

/// The first instant from `t` on, and from the base time on, at which a cycle of `list` begins.
fn cycle_from(list: &GateList, t: i64) -> i64 {
    list.base_ns + ceil_to((t - list.base_ns).max(0), list.cycle_ns)
}

/// The smallest multiple of `step` that is not below `value`.
fn ceil_to(value: i64, step: i64) -> i64 {
    value + (-value).rem_euclid(step)
}

fn clamp(t: TaiTime) -> i64 {
    t.as_nanos().clamp(-HORIZON_NS, HORIZON_NS)
}

fn instant(t: i64) -> Option<TaiTime> {
    (t != NEVER).then_some(TaiTime::from_nanos(t))
}
