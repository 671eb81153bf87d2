//! The gates' states over all of time: a short row of segments, each of one list.
//!
//! Segments meet without gap or overlap by construction: each begins at its own instant and ends
//! where the next one begins. What the state machines of clause 8.6.9 do step by step is here a
//! function of the instant asked for, so a question about the future (will this frame have ended
//! before its gate closes?) sees a pending configuration change as clause 8.6.8.4, note 2, wants it.

use std::sync::Arc;

use takt_time::TrafficClass;

use super::{GateList, GateMask, NEVER};

/// How the gates behave during a segment.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// `AdminGateStates`: no list runs.
    Fixed(GateMask),
    /// Cycles of a list, back to back from its base time in both directions.
    Cycles(Arc<GateList>),
    /// One cycle of a list that began at `start` and lasts as long as the segment: the cycle before
    /// a configuration change, cut or stretched.
    Single {
        /// The list.
        list: Arc<GateList>,
        /// When the cycle began.
        start: i64,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// Its first instant. The first segment reaches back for ever, whatever this says.
    pub from: i64,
    pub kind: Kind,
}

/// Segments in order of time; never empty.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    segments: Vec<Segment>,
}

impl Timeline {
    pub fn new(first: Kind) -> Self {
        Self {
            segments: vec![Segment {
                from: i64::MIN,
                kind: first,
            }],
        }
    }

    /// Appends a segment. One that begins no later than its predecessor takes its place.
    pub fn push(&mut self, from: i64, kind: Kind) {
        while self.segments.len() > 1
            && self
                .segments
                .last()
                .is_some_and(|segment| segment.from >= from)
        {
            self.segments.pop();
        }
        self.segments.push(Segment { from, kind });
    }

    /// Puts other states in the segments without a list.
    pub fn set_fixed(&mut self, gates: GateMask) {
        for segment in &mut self.segments {
            if let Kind::Fixed(fixed) = &mut segment.kind {
                *fixed = gates;
            }
        }
    }

    fn at(&self, t: i64) -> usize {
        // At most five segments: a walk from the end is quicker than a search.
        self.segments
            .iter()
            .rposition(|segment| segment.from <= t)
            .unwrap_or(0)
    }

    fn end(&self, segment: usize) -> i64 {
        self.segments.get(segment + 1).map_or(NEVER, |s| s.from)
    }

    /// The segment at `t` and its end, `NEVER` for the last one.
    pub fn segment(&self, t: i64) -> (&Segment, i64) {
        let at = self.at(t);
        (&self.segments[at], self.end(at))
    }

    pub fn gates(&self, t: i64) -> GateMask {
        self.segment(t).0.kind.gates(t)
    }

    /// The next instant after `t` at which an entry, a cycle or a segment begins, or `NEVER`.
    pub fn next_event(&self, t: i64) -> i64 {
        let (segment, end) = self.segment(t);
        segment.kind.next_event(t).min(end)
    }

    /// The first instant from `t` on at which the gate of `class` is closed, or `NEVER`.
    pub fn closed_from(&self, class: TrafficClass, t: i64) -> i64 {
        self.first(t, |kind, t| kind.closed_from(class, t))
    }

    /// The first instant from `t` on at which the gate of `class` is open, or `NEVER`.
    pub fn open_from(&self, class: TrafficClass, t: i64) -> i64 {
        self.first(t, |kind, t| kind.open_from(class, t))
    }

    /// Opening and closing of the first window of `class` that ends after `t`; `NEVER` for what does
    /// not come. The opening may lie before `t`.
    pub fn window(&self, class: TrafficClass, t: i64) -> (i64, i64) {
        if let [
            ..,
            Segment {
                from,
                kind: Kind::Cycles(list),
            },
        ] = self.segments.as_slice()
            && (*from <= t || self.segments.len() == 1)
        {
            // Nothing but cycles from here on: the common case, and one look-up.
            let offset = (t - list.base_ns).rem_euclid(list.cycle_ns);
            let start = t - offset;
            let (open, close) = list.window(class, offset);
            return (after(start, open), after(start, close));
        }
        let open = self.open_from(class, t);
        let close = match open {
            NEVER => NEVER,
            open => self.closed_from(class, open),
        };
        (open, close)
    }

    fn first(&self, mut t: i64, within: impl Fn(&Kind, i64) -> i64) -> i64 {
        for at in self.at(t)..self.segments.len() {
            let end = self.end(at);
            let found = within(&self.segments[at].kind, t);
            if found < end {
                return found;
            }
            t = end;
        }
        NEVER
    }

    /// The first instant from `t` on at which the gate of `class` stays open for `duration`, or
    /// `NEVER`.
    ///
    /// Looks at no more windows than two cycles of each list have.
    pub fn open_for(&self, class: TrafficClass, t: i64, duration: i64) -> i64 {
        let mut t = t;
        for at in self.at(t)..self.segments.len() {
            let end = self.end(at);
            if let Kind::Cycles(list) = &self.segments[at].kind
                && duration > list.longest(class)
            {
                // No window here is long enough but one that a following segment continues.
                if end == NEVER {
                    return NEVER;
                }
                t = t.max(end.saturating_sub(list.cycle_ns));
            }
            while t < end {
                let open = self.open_from(class, t);
                if open >= end {
                    break;
                }
                let closed = self.closed_from(class, open);
                if closed.saturating_sub(open) >= duration {
                    return open;
                }
                t = closed;
            }
            t = t.max(end);
        }
        NEVER
    }

    /// Whether the last segment, which lasts for ever, has a window of `class` as long as `duration`.
    pub fn ends_with_window(&self, class: TrafficClass, duration: i64) -> bool {
        match self.segments.last().map(|segment| &segment.kind) {
            // A class that never opens has no window, not even for a frame that takes no time.
            Some(Kind::Cycles(list)) => duration.max(1) <= list.longest(class),
            Some(Kind::Fixed(gates)) => gates.is_open(class),
            Some(Kind::Single { .. }) | None => false,
        }
    }

    /// How long the gate of `class` is open from `from` to `to`.
    pub fn open_time(&self, class: TrafficClass, from: i64, to: i64) -> i64 {
        let mut t = from;
        let mut sum = 0;
        for at in self.at(t)..self.segments.len() {
            let end = self.end(at).min(to);
            if t < end {
                sum += self.segments[at].kind.open_time(class, t, end);
                t = end;
            }
        }
        sum
    }
}

impl Kind {
    /// The start of the cycle in progress at `t`; `None` when no list runs.
    pub fn cycle_start(&self, t: i64) -> Option<i64> {
        match self {
            Self::Fixed(_) => None,
            Self::Cycles(list) => Some(t - (t - list.base_ns).rem_euclid(list.cycle_ns)),
            Self::Single { start, .. } => Some(*start),
        }
    }

    pub fn list(&self) -> Option<&GateList> {
        match self {
            Self::Fixed(_) => None,
            Self::Cycles(list) | Self::Single { list, .. } => Some(list),
        }
    }

    fn gates(&self, t: i64) -> GateMask {
        match self {
            Self::Fixed(gates) => *gates,
            Self::Cycles(list) => list.gates((t - list.base_ns).rem_euclid(list.cycle_ns)),
            Self::Single { list, start } => list.gates(t - start),
        }
    }

    fn next_event(&self, t: i64) -> i64 {
        match self {
            Self::Fixed(_) => NEVER,
            Self::Cycles(list) => {
                let offset = (t - list.base_ns).rem_euclid(list.cycle_ns);
                t - offset + list.next_entry(offset).min(list.cycle_ns)
            }
            Self::Single { list, start } => after(*start, list.next_entry(t - start)),
        }
    }

    fn closed_from(&self, class: TrafficClass, t: i64) -> i64 {
        match self {
            Self::Fixed(gates) if gates.is_open(class) => NEVER,
            Self::Fixed(_) => t,
            Self::Cycles(list) => round(list, t, |offset| list.closed_from(class, offset)),
            Self::Single { list, start } => after(*start, list.closed_from(class, t - start)),
        }
    }

    fn open_from(&self, class: TrafficClass, t: i64) -> i64 {
        match self {
            Self::Fixed(gates) if gates.is_open(class) => t,
            Self::Fixed(_) => NEVER,
            Self::Cycles(list) => round(list, t, |offset| list.open_from(class, offset)),
            Self::Single { list, start } => after(*start, list.open_from(class, t - start)),
        }
    }

    fn open_time(&self, class: TrafficClass, from: i64, to: i64) -> i64 {
        match self {
            Self::Fixed(gates) => (to - from) * i64::from(gates.is_open(class)),
            Self::Cycles(list) => {
                let until = |t: i64| {
                    let cycles = (t - list.base_ns).div_euclid(list.cycle_ns);
                    let offset = (t - list.base_ns).rem_euclid(list.cycle_ns);
                    cycles * list.open_ns_per_cycle(class) as i64 + list.open_until(class, offset)
                };
                until(to) - until(from)
            }
            Self::Single { list, start } => {
                list.open_until(class, to - start) - list.open_until(class, from - start)
            }
        }
    }
}

/// The instant `offset` after `start`, which may be never.
fn after(start: i64, offset: i64) -> i64 {
    if offset == NEVER {
        NEVER
    } else {
        start + offset
    }
}

/// Finds in the cycle of `t`, and from the start of the next one when that cycle has it no more.
/// What lies behind the end of a cycle is of no account: the next one begins before.
fn round(list: &GateList, t: i64, find: impl Fn(i64) -> i64) -> i64 {
    let offset = (t - list.base_ns).rem_euclid(list.cycle_ns);
    let start = t - offset;
    match find(offset) {
        found if found < list.cycle_ns => start + found,
        _ => match find(0) {
            found if found < list.cycle_ns => start + list.cycle_ns + found,
            _ => NEVER,
        },
    }
}
