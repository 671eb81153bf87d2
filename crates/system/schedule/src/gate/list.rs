//! A gate control list made ready for queries: every answer within one cycle is a look-up.
//!
//! What the list holds of time is offsets from the start of a cycle. A cycle that lasts longer than
//! its entries keeps the states of the last one (clause 8.6.9.2, state END_OF_CYCLE); one that lasts
//! shorter cuts them (a new `CycleStart`). Where cycles lie in time is [`super::timeline`]'s.

use takt_time::{TaiTime, TrafficClass};

use super::{GateMask, HORIZON_NS, NEVER};
use crate::schedule::{GateOperation, Schedule};

/// Why a schedule cannot run. [`crate::check`] explains the same and more, all at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// No entry.
    #[error("the gate control list is empty: give at least one entry")]
    Empty,
    /// More entries than [`GateList::MAX_ENTRIES`].
    #[error("the gate control list has {0} entries: at most {max} are supported", max = GateList::MAX_ENTRIES)]
    TooManyEntries(usize),
    /// An entry without duration.
    #[error("entry {0} has an interval of 0 ns: give it a duration or remove it")]
    ZeroInterval(usize),
    /// An operation of frame preemption.
    #[error(
        "entry {index} asks for {operation}: frame preemption (IEEE 802.3, clause 99) is not available, use set-gate-states"
    )]
    Preemption {
        /// Which entry, from 0.
        index: usize,
        /// What it asks for.
        operation: GateOperation,
    },
    /// No cycle time.
    #[error("the cycle time is 0 ns: give the duration of a cycle")]
    ZeroCycle,
    /// A cycle longer than [`GateList::MAX_CYCLE_NS`].
    #[error("the cycle time of {0} ns is longer than a day")]
    CycleTooLong(u64),
    /// An extension longer than [`GateList::MAX_CYCLE_NS`].
    #[error("the cycle time extension of {0} ns is longer than a day")]
    ExtensionTooLong(u64),
    /// A base time before 1970 or after 2115.
    #[error("the base time {0} is not between 1970 and 2115: give nanoseconds of TAI since 1970")]
    BaseTime(TaiTime),
}

/// A gate control list with its cycle, checked and indexed.
#[derive(Clone, Debug)]
pub struct GateList {
    pub(super) base_ns: i64,
    pub(super) cycle_ns: i64,
    pub(super) extension_ns: i64,
    max_sdu: [u32; 8],
    entries: Box<[Entry]>,
    /// Longest time without a break that a class is open when cycles follow each other; `NEVER`: always.
    longest: [i64; 8],
    open_per_cycle: [i64; 8],
    cyclic: [Box<[Span]>; 8],
}

/// A window in cycles that follow each other: offsets of its opening and its closing. One that
/// reaches into the next cycle closes beyond the end of its own.
#[derive(Clone, Copy, Debug)]
struct Span {
    open: i64,
    close: i64,
}

/// One entry, with the answers for an instant within it.
#[derive(Clone, Debug)]
struct Entry {
    /// Offset at which it begins.
    start: i64,
    gates: GateMask,
    /// Offset of the first entry from this one on in which the class is closed, or `NEVER`.
    closed_from: [i64; 8],
    /// Offset of the first entry from this one on in which the class is open, or `NEVER`.
    open_from: [i64; 8],
    /// How long the class is open before this entry in a cycle.
    open_before: [i64; 8],
}

impl GateList {
    /// Most entries a list may have.
    pub const MAX_ENTRIES: usize = 1024;
    /// Longest cycle and longest extension: a day.
    pub const MAX_CYCLE_NS: u64 = 86_400_000_000_000;

    /// Checks and indexes a schedule.
    ///
    /// Entries that begin after the end of the cycle run only in a cycle that a configuration change
    /// stretches; the list holds its last state until the end of the cycle where the entries end
    /// earlier. Both are findings of [`crate::check`].
    ///
    /// # Errors
    /// [`ListError`], the first reason found.
    pub fn new(schedule: &Schedule) -> Result<Self, ListError> {
        let base_ns = schedule.base_time.as_nanos();
        let cycle_ns = cycle(schedule)?;
        if schedule.entries.is_empty() {
            return Err(ListError::Empty);
        }
        if schedule.entries.len() > Self::MAX_ENTRIES {
            return Err(ListError::TooManyEntries(schedule.entries.len()));
        }
        let mut starts = Vec::with_capacity(schedule.entries.len());
        let mut offset = 0;
        for (index, entry) in schedule.entries.iter().enumerate() {
            if entry.operation != GateOperation::Set {
                let operation = entry.operation;
                return Err(ListError::Preemption { index, operation });
            }
            if entry.interval_ns == 0 {
                return Err(ListError::ZeroInterval(index));
            }
            starts.push((offset, entry.gates));
            offset += i64::from(entry.interval_ns);
        }
        let mut list = Self {
            base_ns,
            cycle_ns,
            // In range: `cycle` has checked it.
            extension_ns: schedule.cycle_time_extension_ns as i64,
            max_sdu: schedule.max_sdu,
            longest: longest(&starts, cycle_ns),
            open_per_cycle: [0; 8],
            cyclic: std::array::from_fn(|class| spans(&starts, cycle_ns, class)),
            entries: index(&starts),
        };
        for class in TrafficClass::all() {
            list.open_per_cycle[usize::from(class.number())] = list.open_until(class, cycle_ns);
        }
        Ok(list)
    }

    /// An instant at which a cycle begins.
    pub fn base_time(&self) -> TaiTime {
        TaiTime::from_nanos(self.base_ns)
    }

    /// Nanoseconds from one cycle to the next.
    pub fn cycle_ns(&self) -> u64 {
        self.cycle_ns as u64
    }

    /// `queueMaxSDU` of `class`, octets behind the MAC header; 0 for no limit.
    pub fn max_sdu(&self, class: TrafficClass) -> u32 {
        self.max_sdu[usize::from(class.number())]
    }

    /// How long the gate of `class` is open in each cycle, nanoseconds (`GateOpenTime` of clause
    /// 8.6.8.2).
    pub fn open_ns_per_cycle(&self, class: TrafficClass) -> u64 {
        self.open_per_cycle[usize::from(class.number())] as u64
    }

    /// Through one cycle, in order: whether a frame of `class` that takes `lasting_ns` is out before its gate closes if it begins
    /// now, and for how many nanoseconds that holds. The times add up to the cycle.
    pub fn may_begin(&self, class: TrafficClass, lasting_ns: u64) -> Vec<(bool, u64)> {
        let class = usize::from(class.number());
        if self.longest[class] == NEVER {
            return vec![(true, self.cycle_ns())];
        }
        let lasting = i64::try_from(lasting_ns).unwrap_or(i64::MAX);
        let mut parts = Vec::new();
        let mut reached = 0;
        for &Span { open, close } in &self.cyclic[class] {
            // One that reaches into the next cycle is there as the first one too.
            let end = close.saturating_sub(lasting).min(self.cycle_ns);
            if end > open {
                parts.extend([(false, open - reached), (true, end - open)]);
                reached = end;
            }
        }
        parts.push((false, self.cycle_ns - reached));
        let parts = parts.into_iter().filter(|(_, ns)| *ns > 0);
        parts.map(|(may, ns)| (may, ns as u64)).collect()
    }

    /// Longest time without a break that the class is open, `NEVER` when it never closes.
    pub(super) fn longest(&self, class: TrafficClass) -> i64 {
        self.longest[usize::from(class.number())]
    }

    fn entry(&self, offset: i64) -> &Entry {
        let after = self.entries.partition_point(|entry| entry.start <= offset);
        &self.entries[after.saturating_sub(1)]
    }

    /// The states at `offset` from the start of a cycle.
    pub(super) fn gates(&self, offset: i64) -> GateMask {
        self.entry(offset).gates
    }

    /// The offset of the next entry after `offset` in this cycle, or `NEVER`.
    pub(super) fn next_entry(&self, offset: i64) -> i64 {
        let after = self.entries.partition_point(|entry| entry.start <= offset);
        self.entries.get(after).map_or(NEVER, |entry| entry.start)
    }

    /// The first offset from `offset` on in this cycle at which the class is closed, or `NEVER`.
    pub(super) fn closed_from(&self, class: TrafficClass, offset: i64) -> i64 {
        self.entry(offset).closed_from[usize::from(class.number())].max(offset)
    }

    /// The first offset from `offset` on in this cycle at which the class is open, or `NEVER`.
    pub(super) fn open_from(&self, class: TrafficClass, offset: i64) -> i64 {
        self.entry(offset).open_from[usize::from(class.number())].max(offset)
    }

    /// Where cycles follow each other: opening and closing of the first window of `class` that ends
    /// after `offset`, counted from the start of the cycle that `offset` is in. `NEVER` for what does
    /// not come.
    pub(super) fn window(&self, class: TrafficClass, offset: i64) -> (i64, i64) {
        let class = usize::from(class.number());
        if self.longest[class] == NEVER {
            return (offset, NEVER);
        }
        let spans = &self.cyclic[class];
        let at = spans.partition_point(|span| span.close <= offset);
        match (spans.get(at), spans.first()) {
            (Some(span), _) => (span.open, span.close),
            (None, Some(first)) => (self.cycle_ns + first.open, self.cycle_ns + first.close),
            (None, None) => (NEVER, NEVER),
        }
    }

    /// How long the class is open from the start of a cycle to `offset`.
    pub(super) fn open_until(&self, class: TrafficClass, offset: i64) -> i64 {
        let entry = self.entry(offset);
        let before = entry.open_before[usize::from(class.number())];
        if entry.gates.is_open(class) {
            before + (offset - entry.start)
        } else {
            before
        }
    }
}

fn cycle(schedule: &Schedule) -> Result<i64, ListError> {
    if schedule.cycle_time_ns == 0 {
        return Err(ListError::ZeroCycle);
    }
    if schedule.cycle_time_ns > GateList::MAX_CYCLE_NS {
        return Err(ListError::CycleTooLong(schedule.cycle_time_ns));
    }
    if schedule.cycle_time_extension_ns > GateList::MAX_CYCLE_NS {
        return Err(ListError::ExtensionTooLong(
            schedule.cycle_time_extension_ns,
        ));
    }
    let latest = HORIZON_NS - 4 * GateList::MAX_CYCLE_NS as i64;
    if !(0..=latest).contains(&schedule.base_time.as_nanos()) {
        return Err(ListError::BaseTime(schedule.base_time));
    }
    Ok(schedule.cycle_time_ns as i64)
}

fn index(starts: &[(i64, GateMask)]) -> Box<[Entry]> {
    let mut entries: Vec<Entry> = Vec::with_capacity(starts.len());
    let mut closed_from = [NEVER; 8];
    let mut open_from = [NEVER; 8];
    for &(start, gates) in starts.iter().rev() {
        for class in 0..8 {
            if gates.bits() & (1 << class) != 0 {
                open_from[class] = start;
            } else {
                closed_from[class] = start;
            }
        }
        entries.push(Entry {
            start,
            gates,
            closed_from,
            open_from,
            open_before: [0; 8],
        });
    }
    entries.reverse();
    for at in 1..entries.len() {
        let (before, after) = entries.split_at_mut(at);
        let (previous, entry) = (&before[at - 1], &mut after[0]);
        let lasted = entry.start - previous.start;
        entry.open_before = std::array::from_fn(|class| {
            let open = previous.gates.bits() >> class & 1;
            previous.open_before[class] + lasted * i64::from(open)
        });
    }
    entries.into_boxed_slice()
}

/// The windows of a class in a cycle, in order.
fn spans(starts: &[(i64, GateMask)], cycle_ns: i64, class: usize) -> Box<[Span]> {
    let mut spans: Vec<Span> = Vec::new();
    for (at, &(open, gates)) in starts.iter().enumerate() {
        if open >= cycle_ns || gates.bits() & (1 << class) == 0 {
            continue;
        }
        let next = starts.get(at + 1).map_or(cycle_ns, |next| next.0);
        let close = next.min(cycle_ns);
        match spans.last_mut() {
            Some(last) if last.close == open => last.close = close,
            _ => spans.push(Span { open, close }),
        }
    }
    let first = spans.first().filter(|first| first.open == 0).copied();
    if let (Some(first), Some(last)) = (first, spans.last_mut())
        && last.close == cycle_ns
    {
        last.close += first.close;
    }
    spans.into_boxed_slice()
}

fn longest(starts: &[(i64, GateMask)], cycle_ns: i64) -> [i64; 8] {
    let reached = starts.partition_point(|&(start, _)| start < cycle_ns);
    let starts = &starts[..reached];
    std::array::from_fn(|class| {
        let open = |gates: GateMask| gates.bits() & (1 << class) != 0;
        if starts.iter().all(|&(_, gates)| open(gates)) {
            return NEVER;
        }
        let mut longest = 0;
        let mut run = 0;
        // Twice round: a window may span the end of the cycle.
        for _ in 0..2 {
            for (at, &(start, gates)) in starts.iter().enumerate() {
                let end = starts
                    .get(at + 1)
                    .map_or(cycle_ns, |next| next.0.min(cycle_ns));
                run = if open(gates) { run + end - start } else { 0 };
                longest = longest.max(run);
            }
        }
        longest
    })
}
