//! Whether declared streams fit the windows of a schedule.
//!
//! A talker that says when it sends (IEEE 802.1Q-2022, clause 46.2.3.5, `TSpecTimeAware`: an interval, the earliest
//! and the latest offset in it, the largest frame, frames in an interval) can be checked against the gates
//! before it sends anything: each of its launch times must find its class open until its frames, and those of all other
//! streams that may be on the link at that time, have left. Only declared streams count: what else a class and
//! the ones above it send is not known here.

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

/// Most launch times of all streams together in the time after which everything repeats: what is looked at.
pub const MOST_LAUNCHES: u64 = 1 << 16;

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
        /// Other streams that may have to leave before.
        others: Vec<usize>,
    },
    /// All streams of its class and those above need more than the link has.
    TooMuch {
        /// The class.
        class: TrafficClass,
        /// Parts of 1000 of the link's time.
        share: u64,
    },
    /// Its period and those of others and the cycle repeat too rarely to be looked at.
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
                if !others.is_empty() {
                    let plural = if others.len() == 1 { "" } else { "s" };
                    write!(f, " behind {} other stream{plural}", others.len())?;
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
    let looked_at = hyperperiod(schedule, talkers, &mut misfits);
    for class in TrafficClass::all() {
        let of_class = |at: &usize| classes.class(talkers[*at].priority) >= class;
        let heard: Vec<usize> = looked_at.talkers.iter().copied().filter(of_class).collect();
        if heard
            .iter()
            .any(|at| classes.class(talkers[*at].priority) == class)
        {
            let view = View {
                schedule,
                classes,
                link,
                guard_ns: i64::try_from(guard_ns).unwrap_or(HORIZON_NS),
                talkers,
                class,
                repeats_ns: looked_at.repeats_ns,
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
    /// After so long everything repeats: the least common multiple of the cycle and all periods.
    repeats_ns: i64,
    /// Streams of which that is so.
    talkers: Vec<usize>,
}

fn hyperperiod(schedule: &Schedule, talkers: &[Talker], misfits: &mut Misfits) -> Repetition {
    let cycle_ns = schedule.cycle_time_ns;
    let mut repeats = cycle_ns;
    let mut taken: Vec<usize> = Vec::with_capacity(talkers.len());
    for (at, talker) in talkers.iter().enumerate() {
        let together = common_multiple(repeats, talker.period_ns).filter(|together| {
            let launches = |at: usize| together / talkers[at].period_ns;
            let sum: u64 = taken.iter().copied().chain([at]).map(launches).sum();
            *together <= (HORIZON_NS / 4) as u64 && sum <= MOST_LAUNCHES
        });
        match together {
            Some(together) => {
                repeats = together;
                taken.push(at);
            }
            None => misfits.add(at, || Misfit::NoRepetition { cycle_ns }),
        }
    }
    Repetition {
        repeats_ns: repeats as i64,
        talkers: taken,
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

impl Launch {
    /// When it has left at the latest, behind what has by `end`.
    fn end_after(&self, end: i64, blocking: i64) -> i64 {
        let begins = end.max(self.latest.saturating_add(blocking));
        begins.saturating_add(self.lasts)
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
    repeats_ns: i64,
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
            .filter(|l| l.own && (0..self.repeats_ns).contains(&l.earliest));
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
            // What began before, of classes above.
            let before = higher.partition_point(|(earliest, _)| *earliest < open);
            let busy_until = before
                .checked_sub(1)
                .map_or(i64::MIN, |last| higher[last].1);
            let from = launches.partition_point(|launch| launch.earliest < open);
            let window = windows[at];
            self.window(
                open,
                window,
                waits[at],
                busy_until,
                &launches[from..],
                misfits,
            );
        }
    }

    /// How long a stream's frames of one period hold the link, with the gaps between them.
    fn lasts(&self, at: usize) -> u64 {
        let talker = &self.talkers[at];
        let one = self.link.occupancy_ns(talker.octets);
        one.saturating_mul(talker.frames.into())
            .min((HORIZON_NS / 4) as u64)
    }

    /// All launches of a repetition, and of the ones before and after, by their earliest time from the start of a cycle.
    fn launches(&self, heard: &[usize]) -> Vec<Launch> {
        let base = self.schedule.base_time.as_nanos();
        let mut all = Vec::new();
        for &at in heard {
            let talker = &self.talkers[at];
            // Both are below HORIZON_NS: the first launch of a repetition.
            let period = talker.period_ns as i64;
            let first = (talker.offset_ns as i64 - base).rem_euclid(period);
            let own = self.classes.class(talker.priority) == self.class;
            let mut earliest = first - self.repeats_ns;
            while earliest < 2 * self.repeats_ns {
                all.push(Launch {
                    talker: at,
                    earliest,
                    latest: earliest + talker.window_ns as i64,
                    lasts: self.lasts(at) as i64,
                    own,
                });
                earliest += period;
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
    /// within their windows, all have left at the end that is computed here, where each is as late as it may be.
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
        let gap = self.link.duration_ns(self.link.framing.gap.into()) as i64;
        let mut cluster: Vec<Launch> = Vec::new();
        let mut end = busy_until;
        let inside = launches.iter().take_while(|l| l.earliest < close);
        for launch in inside.copied().map(Some).chain([None]) {
            if launch.is_none_or(|launch| launch.earliest > end) {
                let late = end.saturating_sub(gap).saturating_add(self.guard_ns) > close;
                if late && cluster.iter().any(|l| l.own) {
                    self.blame(&cluster, open, window, end - gap, misfits);
                }
                cluster.clear();
                end = i64::MIN;
            }
            if let Some(launch) = launch {
                end = launch.end_after(end, blocking);
                cluster.push(launch);
            }
        }
    }

    fn blame(
        &self,
        cluster: &[Launch],
        open: i64,
        window: Window,
        end: i64,
        misfits: &mut Misfits,
    ) {
        let mut talkers: Vec<usize> = cluster.iter().map(|l| l.talker).collect();
        talkers.sort_unstable();
        talkers.dedup();
        for launch in cluster.iter().filter(|l| l.own) {
            let others = talkers.iter().copied().filter(|at| *at != launch.talker);
            misfits.add(launch.talker, || Misfit::TooLate {
                class: self.class,
                window,
                needed_until_ns: window.start_ns + (end + self.guard_ns - open) as u64,
                others: others.collect(),
            });
        }
    }
}

/// When launches of the classes above begin, and by when all until then have left.
fn ends(launches: &[Launch], blocking: i64) -> Vec<(i64, i64)> {
    let mut end = i64::MIN;
    let higher = launches.iter().filter(|launch| !launch.own);
    let ends = higher.map(|launch| {
        end = launch.end_after(end, blocking);
        (launch.earliest, end)
    });
    ends.collect()
}

#[cfg(test)]
mod tests;
