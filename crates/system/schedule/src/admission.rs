//! Whether declared streams fit the windows of a schedule.
//!
//! A talker that says when it sends (IEEE 802.1Q-2022, clause 46.2.3.5, `TSpecTimeAware`: an interval, the earliest
//! and the latest offset in it, the largest frame, frames in an interval) can be checked against the gates
//! before it sends anything: each of its launch times must find its class open until its frames, and those of all other
//! streams that may be on the link at that time, have left. Only declared streams count: what else a class and
//! the ones above it send is not known here.

use std::collections::BTreeSet;
use std::fmt;

use takt_time::TrafficClass;

use crate::check::readable;
use crate::classes::ClassTable;
use crate::gate::HORIZON_NS;
use crate::link::Link;
use crate::schedule::Schedule;
use crate::selection::Selection;
use crate::summary::PortModel;
use crate::window::{Window, slots, windows};

/// Most launch times of all streams together in the time that is looked at.
pub const MOST_LAUNCHES: u64 = 1 << 16;

/// Most cycles that are looked at. A stream that launches more rarely counts as if it launched in each of these times:
/// what it may meet is the same, and a long period makes nothing long for others.
pub const MOST_CYCLES: u64 = 64;

/// So many cycles are looked at where those in which all streams repeat are more: the first number for which the launches are not
/// too many. Most periods are decimal.
const FOLDED: [u64; 5] = [40, 20, 10, 5, 1];

/// A stream as its talker declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Talker {
    /// What its frames are marked with: the schedule says which class that is.
    pub priority: TrafficClass,
    /// Nanoseconds from one launch to the next, never 0. Periods begin at every multiple of it since 1970 (TAI).
    pub period_ns: u64,
    /// Nanoseconds from the begin of a period to its earliest launch time; less than a period.
    pub offset_ns: u64,
    /// Nanoseconds from the earliest launch time of a period to the latest.
    pub window_ns: u64,
    /// Octets of its largest frame, without FCS.
    pub octets: u32,
    /// Frames in a period.
    pub frames: u32,
}

/// Why a stream does not fit, and what would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// Its class does not take launch times.
    Selection {
        /// The class.
        class: TrafficClass,
        /// How it chooses.
        selection: Selection,
    },
    /// Its frames are longer than its class may send.
    TooLong {
        /// The class.
        class: TrafficClass,
        /// Octets of its largest frame.
        octets: u32,
        /// Octets of the longest that is allowed.
        most: u32,
    },
    /// Its class is closed at one of its launch times.
    Closed {
        /// The class.
        class: TrafficClass,
        /// Nanoseconds from the start of the cycle to that launch time.
        at_ns: u64,
        /// When the class is open in a cycle.
        open: Vec<Window>,
    },
    /// Its class closes before all has left.
    TooLate {
        /// The class.
        class: TrafficClass,
        /// The window, from the start of the cycle.
        window: Window,
        /// Nanoseconds from the start of the cycle until everything has left.
        needed_until_ns: u64,
        /// How many other streams may have to leave before.
        others: usize,
    },
    /// All streams of its class and those above need more than the link has.
    TooMuch {
        /// The class.
        class: TrafficClass,
        /// Parts of 1000 of the link's time.
        share: u64,
    },
    /// Its launch times move through the cycle and come back too late to be looked at.
    NoRepetition {
        /// The cycle.
        cycle_ns: u64,
    },
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Selection { class, selection } => write!(
                f,
                "class {class} is {selection} and takes no launch times: make it launch-time in the schedule, or declare another class"
            ),
            Self::TooLong {
                class,
                octets,
                most,
            } => write!(
                f,
                "frames of {octets} octets are longer than class {class} may send: declare {most} at most, or raise its maximum SDU"
            ),
            Self::Closed { class, at_ns, open } => {
                write!(
                    f,
                    "a launch time at {} of the cycle finds class {class} closed: ",
                    readable(*at_ns)
                )?;
                if open.is_empty() {
                    return f.write_str("it never opens, so give it a window in the schedule");
                }
                f.write_str("it is open")?;
                // A list may have a thousand.
                for (at, window) in open.iter().take(4).enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    let (from, to) = (readable(window.start_ns), readable(window.end_ns()));
                    write!(f, "{comma} from {from} to {to}")?;
                }
                f.write_str("; move the offset, or the window of the schedule")
            }
            Self::TooLate {
                class,
                window,
                needed_until_ns,
                others,
            } => {
                let (until, closes) = (readable(*needed_until_ns), readable(window.end_ns()));
                write!(f, "its last frame may end at {until} of the cycle")?;
                if *others > 0 {
                    let plural = if *others == 1 { "" } else { "s" };
                    write!(f, " behind {others} other stream{plural}")?;
                }
                write!(
                    f,
                    ", and class {class} closes at {closes}: launch earlier, send less, or lengthen the window of the schedule"
                )
            }
            Self::TooMuch { class, share } => write!(
                f,
                "the streams of class {class} and above need {}.{} % of the link: declare fewer or shorter frames, or longer periods",
                share / 10,
                share % 10
            ),
            Self::NoRepetition { cycle_ns } => write!(
                f,
                "it and the cycle of {} repeat too rarely together: declare a period that is a multiple or a fraction of the cycle",
                readable(*cycle_ns)
            ),
        }
    }
}

/// The streams that do not fit, by their place in `talkers`; none if all do.
///
/// `guard_ns`: how much longer than its transmission a frame's window must be, as the port's scheduler has it
/// ([`PortConfig::guard_ns`](crate::PortConfig::guard_ns)). Bounded by [`MOST_LAUNCHES`].
pub fn admit(
    schedule: &Schedule,
    classes: &ClassTable,
    link: &Link,
    guard_ns: u64,
    talkers: &[Talker],
) -> Vec<(usize, Misfit)> {
    if !schedule.enabled || schedule.cycle_time_ns == 0 {
        return Vec::new();
    }
    let mut misfits = Misfits(vec![None; talkers.len()]);
    let looked_at = repetition(schedule, classes, talkers, &mut misfits);
    for class in TrafficClass::all() {
        let of = |at: usize| classes.class(talkers[at].priority);
        let heard: Vec<usize> = (0..talkers.len())
            .filter(|&at| looked_at.every_ns[at].is_some() && of(at) >= class)
            .collect();
        if heard.iter().any(|&at| of(at) == class) {
            let view = View {
                schedule,
                classes,
                link,
                guard_ns: i64::try_from(guard_ns).unwrap_or(HORIZON_NS),
                talkers,
                class,
                looked_at: &looked_at,
            };
            view.check(&heard, &mut misfits);
        }
    }
    let found = misfits.0.into_iter().enumerate();
    found
        .filter_map(|(at, misfit)| Some((at, misfit?)))
        .collect()
}

/// The first thing found about each stream.
struct Misfits(Vec<Option<Misfit>>);

impl Misfits {
    fn add(&mut self, at: usize, misfit: impl FnOnce() -> Misfit) {
        if let Some(place @ None) = self.0.get_mut(at) {
            *place = Some(misfit());
        }
    }
}

/// What is looked at.
struct Repetition {
    /// So much of time, a multiple of the cycle.
    repeats_ns: i64,
    /// How often each stream launches in it: as often as it does, or more often where it comes round only later. None of
    /// a stream that is not looked at.
    every_ns: Vec<Option<i64>>,
}

/// Chooses what is looked at, of whatever order the streams are.
fn repetition(
    schedule: &Schedule,
    classes: &ClassTable,
    talkers: &[Talker],
    misfits: &mut Misfits,
) -> Repetition {
    let cycle_ns = schedule.cycle_time_ns;
    let most = (HORIZON_NS as u64 / 4 / cycle_ns).min(MOST_CYCLES);
    // What never meets a gate may come at any time.
    let closes = |class| {
        let windows = windows(schedule, class);
        windows.first().is_none_or(|w| w.length_ns != cycle_ns)
    };
    let gated = TrafficClass::all().find(|&class| closes(class));
    let free = |at: usize| gated.is_none_or(|gated| classes.class(talkers[at].priority) < gated);
    // After how many cycles each is where it was.
    let mut looked_at: Vec<(usize, u64)> = Vec::with_capacity(talkers.len());
    for (at, talker) in talkers.iter().enumerate() {
        let rounds = talker.period_ns / common_divisor(cycle_ns, talker.period_ns);
        let launches = cycle_ns / common_divisor(cycle_ns, talker.period_ns);
        // One that launches once in each keeps its place in the cycle, however rare it is.
        let bounded = most > 0 && talker.period_ns <= HORIZON_NS as u64 / 4;
        if bounded && (launches == 1 || rounds <= most || free(at)) {
            looked_at.push((at, rounds));
        } else {
            misfits.add(at, || Misfit::NoRepetition { cycle_ns });
        }
    }
    let launches = |at: usize, repeats: u64| {
        if free(at) {
            0
        } else {
            repeats / common_divisor(repeats, talkers[at].period_ns)
        }
    };
    // All of them as they are, or some more often than they are: by numbers of which each divides the one before, so that nothing
    // is looked at more closely for a stream that has left.
    let exact = looked_at
        .iter()
        .try_fold(1, |cycles, &(_, rounds)| common_multiple(cycles, rounds))
        .filter(|cycles| *cycles <= most);
    let sum = |looked_at: &[(usize, u64)], repeats: u64| -> u64 {
        looked_at.iter().map(|&(at, _)| launches(at, repeats)).sum()
    };
    let fit = |cycles: &u64| sum(&looked_at, cycle_ns.saturating_mul(*cycles)) <= MOST_LAUNCHES;
    let folded = FOLDED.into_iter().filter(|cycles| *cycles <= most);
    let cycles = exact.into_iter().chain(folded).find(fit).unwrap_or(1);
    let repeats = cycle_ns.saturating_mul(cycles);
    while sum(&looked_at, repeats) > MOST_LAUNCHES {
        let greatest = looked_at.iter().map(|&(at, _)| launches(at, repeats)).max();
        looked_at.retain(|&(at, _)| {
            let kept = Some(launches(at, repeats)) != greatest;
            if !kept {
                misfits.add(at, || Misfit::NoRepetition { cycle_ns });
            }
            kept
        });
    }
    let mut every_ns = vec![None; talkers.len()];
    for (at, _) in looked_at {
        every_ns[at] = Some(common_divisor(repeats, talkers[at].period_ns) as i64);
    }
    Repetition {
        repeats_ns: repeats as i64,
        every_ns,
    }
}

/// The greatest number that divides both.
pub(crate) fn common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// The least number above 0 that both divide.
pub(crate) fn common_multiple(one: u64, other: u64) -> Option<u64> {
    (one / common_divisor(one, other).max(1))
        .checked_mul(other)
        .filter(|&multiple| multiple > 0)
}

/// One launch of one stream: from when to when it may begin, and how long its frames hold the link.
#[derive(Clone, Copy, Debug)]
struct Launch {
    talker: usize,
    earliest: i64,
    latest: i64,
    lasts: i64,
    /// It is of the class that is looked at, not of one above.
    own: bool,
}

/// By when all launches that have been added have left, each as late as it may be: what a link takes that is never idle
/// while something waits, in whatever order that goes. As a tree over the launches by their latest times.
struct Busy {
    /// Where each launch is among those.
    places: Vec<usize>,
    /// How long the launches of a part hold the link, and when they have left if nothing else is there.
    parts: Vec<(i64, i64)>,
    blocking: i64,
}

impl Busy {
    fn new(launches: &[Launch], blocking: i64) -> Self {
        let mut order: Vec<usize> = (0..launches.len()).collect();
        order.sort_unstable_by_key(|&at| launches[at].latest);
        let leaves = launches.len().next_power_of_two();
        let mut places = vec![0; launches.len()];
        for (place, at) in order.into_iter().enumerate() {
            places[at] = leaves + place;
        }
        Self {
            places,
            parts: vec![(0, i64::MIN); 2 * leaves],
            blocking,
        }
    }

    fn add(&mut self, at: usize, launch: &Launch) {
        let mut part = self.places[at];
        let begins = launch.latest.saturating_add(self.blocking);
        self.parts[part] = (launch.lasts, begins.saturating_add(launch.lasts));
        while part > 1 {
            part /= 2;
            let (first, then) = (self.parts[2 * part], self.parts[2 * part + 1]);
            let lasts = first.0.saturating_add(then.0);
            self.parts[part] = (lasts, first.1.saturating_add(then.0).max(then.1));
        }
    }

    /// The end, if the link is busy with something else until `busy_until`.
    fn end(&self, busy_until: i64) -> i64 {
        let (lasts, end) = self.parts[1];
        end.max(busy_until.saturating_add(lasts))
    }
}

/// What is looked at for one class.
struct View<'a> {
    schedule: &'a Schedule,
    classes: &'a ClassTable,
    link: &'a Link,
    guard_ns: i64,
    talkers: &'a [Talker],
    class: TrafficClass,
    looked_at: &'a Repetition,
}

impl View<'_> {
    fn check(&self, heard: &[usize], misfits: &mut Misfits) {
        let own = |at: &&usize| self.classes.class(self.talkers[**at].priority) == self.class;
        let selection = self.schedule.selection[usize::from(self.class.number())];
        let port = PortModel {
            link: *self.link,
            largest_frame: u32::MAX,
            ..PortModel::default()
        };
        let most = port.largest_frame(self.schedule, self.class);
        let class = self.class;
        for &at in heard.iter().filter(own) {
            let octets = self.talkers[at].octets;
            if !selection.honours_launch_time() {
                misfits.add(at, || Misfit::Selection { class, selection });
            } else if octets > most {
                misfits.add(at, || Misfit::TooLong {
                    class,
                    octets,
                    most,
                });
            }
        }
        let busy = |at: &usize| {
            let parts = u128::from(self.lasts(*at)) * 1_000_000_000;
            parts / u128::from(self.talkers[*at].period_ns)
        };
        let parts = heard.iter().map(busy).sum::<u128>();
        let share = u64::try_from(parts.div_ceil(1_000_000)).unwrap_or(u64::MAX);
        if share > 1000 {
            for &at in heard.iter().filter(own) {
                misfits.add(at, || Misfit::TooMuch { class, share });
            }
            return;
        }
        let windows = windows(self.schedule, class);
        if windows
            .first()
            .is_some_and(|w| w.length_ns == self.schedule.cycle_time_ns)
        {
            // It never closes.
            return;
        }
        let launches = self.launches(heard);
        let mut opened: Vec<(i64, usize)> = Vec::new();
        let in_cycle = launches
            .iter()
            .filter(|l| l.own && (0..self.looked_at.repeats_ns).contains(&l.earliest));
        for launch in in_cycle {
            match self.window_of(launch.earliest, &windows) {
                Some(found) => opened.push(found),
                None => {
                    let at_ns = launch.earliest as u64 % self.schedule.cycle_time_ns;
                    misfits.add(launch.talker, || {
                        let open = windows.clone();
                        Misfit::Closed { class, at_ns, open }
                    });
                }
            }
        }
        opened.sort_unstable();
        opened.dedup();
        let waits: Vec<i64> = windows.iter().map(|window| self.blocking(window)).collect();
        let higher = ends(&launches, waits.iter().copied().max().unwrap_or(0));
        for (open, at) in opened {
            // What has begun before, of classes above.
            let before = higher.partition_point(|(latest, _)| *latest < open);
            let busy_until = before
                .checked_sub(1)
                .map_or(i64::MIN, |last| higher[last].1);
            let from = launches.partition_point(|launch| launch.earliest < open);
            // What may begin before and may begin later is as one of those that begin with the window.
            let begun = launches[..from].iter();
            let mut meets: Vec<Launch> = begun
                .filter(|launch| !launch.own && launch.latest >= open)
                .map(|launch| Launch {
                    earliest: open,
                    ..*launch
                })
                .collect();
            let close = open + windows[at].length_ns as i64;
            let behind = launches.partition_point(|launch| launch.earliest < close);
            meets.extend(&launches[from..behind.max(from)]);
            self.window(open, windows[at], waits[at], busy_until, &meets, misfits);
        }
    }

    /// How long a stream's frames of one period hold the link, with the gaps between them.
    fn lasts(&self, at: usize) -> u64 {
        let talker = &self.talkers[at];
        let one = self.link.occupancy_ns(talker.octets);
        one.saturating_mul(talker.frames.into())
            .min((HORIZON_NS / 4) as u64)
    }

    /// All launches of the time that is looked at, and of as much before and after, by their earliest time from the start
    /// of a cycle.
    fn launches(&self, heard: &[usize]) -> Vec<Launch> {
        let base = self.schedule.base_time.as_nanos();
        let repeats = self.looked_at.repeats_ns;
        let mut all = Vec::new();
        for &at in heard {
            let talker = &self.talkers[at];
            let Some(every) = self.looked_at.every_ns[at] else {
                continue;
            };
            // Both are below HORIZON_NS.
            let first = (talker.offset_ns as i64 - base).rem_euclid(every);
            let own = self.classes.class(talker.priority) == self.class;
            let mut earliest = first - repeats;
            while earliest < 2 * repeats {
                all.push(Launch {
                    talker: at,
                    earliest,
                    latest: earliest + talker.window_ns as i64,
                    lasts: self.lasts(at) as i64,
                    own,
                });
                earliest += every;
            }
        }
        all.sort_unstable_by_key(|launch| (launch.earliest, launch.talker));
        all
    }

    /// The window that an instant of a repetition lies in: when it opens, and its number.
    fn window_of(&self, at: i64, windows: &[Window]) -> Option<(i64, usize)> {
        let cycle = self.schedule.cycle_time_ns as i64;
        let (start, phase) = (at - at % cycle, at % cycle);
        let holds = |window: &Window, phase: i64| {
            (window.start_ns as i64..window.end_ns() as i64).contains(&phase)
        };
        windows.iter().enumerate().find_map(|(number, window)| {
            let opens = start + window.start_ns as i64;
            if holds(window, phase) {
                Some((opens, number))
            } else if holds(window, phase + cycle) {
                Some((opens - cycle, number))
            } else {
                None
            }
        })
    }

    /// How long a frame of a lower class, or the gap behind any frame, may hold up what is due in a window.
    fn blocking(&self, window: &Window) -> i64 {
        let cycle = self.schedule.cycle_time_ns;
        let meets = |start: u64, length: u64| {
            let overlaps = |start: u64| start < window.end_ns() && window.start_ns < start + length;
            overlaps(start) || overlaps(start + cycle)
        };
        let port = PortModel {
            link: *self.link,
            ..PortModel::default()
        };
        let open = slots(self.schedule).into_iter();
        let open = open.filter(|slot| meets(slot.start_ns, slot.length_ns));
        let open = open.fold(0, |open, slot| open | slot.gates.bits());
        let lower = TrafficClass::all().filter(|c| *c < self.class && open & 1 << c.number() != 0);
        let longest = lower.map(|c| self.link.occupancy_ns(port.largest_frame(self.schedule, c)));
        let gap = self.link.duration_ns(self.link.framing.gap.into());
        longest.max().unwrap_or(gap).min(HORIZON_NS as u64 / 4) as i64
    }

    /// Notes what does not leave within a window. Launches that may meet on the link form a cluster: whatever happens
    /// within their windows, the next one begins when all have left.
    fn window(
        &self,
        open: i64,
        window: Window,
        blocking: i64,
        busy_until: i64,
        launches: &[Launch],
        misfits: &mut Misfits,
    ) {
        let close = open + window.length_ns as i64;
        let inside = &launches[..launches.partition_point(|l| l.earliest < close)];
        let mut busy = Busy::new(inside, blocking);
        let (mut first, mut end) = (0, busy_until);
        for (at, launch) in inside.iter().enumerate() {
            if launch.earliest > end {
                let cluster = &inside[first..at];
                self.cluster(open, window, blocking, busy_until, cluster, misfits);
                first = at;
            }
            // Those of clusters before have left, and count for nothing.
            busy.add(at, launch);
            end = busy.end(busy_until);
        }
        let cluster = &inside[first..];
        self.cluster(open, window, blocking, busy_until, cluster, misfits);
    }

    /// Notes what of a cluster does not leave within a window. What a launch waits for has begun at its latest time or
    /// before, without a pause until it leaves, and consists of launches that may begin from then on.
    fn cluster(
        &self,
        open: i64,
        window: Window,
        blocking: i64,
        busy_until: i64,
        cluster: &[Launch],
        misfits: &mut Misfits,
    ) {
        let close = open + window.length_ns as i64;
        let gap = self.link.duration_ns(self.link.framing.gap.into()) as i64;
        let mut by_latest: Vec<&Launch> = cluster.iter().collect();
        by_latest.sort_unstable_by_key(|launch| (launch.latest, launch.earliest));
        let lasts = cluster.iter().map(|launch| launch.lasts);
        let mut rest = lasts.fold(0, i64::saturating_add);
        let mut end = busy_until.saturating_add(rest);
        let mut others = None;
        for launch in by_latest {
            end = end.max(launch.latest.saturating_add(blocking).saturating_add(rest));
            rest -= launch.lasts;
            let left = end.saturating_sub(gap).saturating_add(self.guard_ns);
            if left <= close || !launch.own {
                continue;
            }
            let others = *others.get_or_insert_with(|| {
                let talkers: BTreeSet<usize> = cluster.iter().map(|l| l.talker).collect();
                talkers.len() - 1
            });
            misfits.add(launch.talker, || Misfit::TooLate {
                class: self.class,
                window,
                needed_until_ns: window.start_ns + left.saturating_sub(open) as u64,
                others,
            });
        }
    }
}

/// When launches of the classes above begin at the latest, in that order, and by when all until then have left.
fn ends(launches: &[Launch], blocking: i64) -> Vec<(i64, i64)> {
    let higher = launches.iter().filter(|launch| !launch.own);
    let mut higher: Vec<Launch> = higher.copied().collect();
    higher.sort_unstable_by_key(|launch| launch.latest);
    let mut busy = Busy::new(&higher, blocking);
    let ends = higher.iter().enumerate().map(|(at, launch)| {
        busy.add(at, launch);
        (launch.latest, busy.end(i64::MIN))
    });
    ends.collect()
}

#[cfg(test)]
mod tests;
