//! Departures at an instant: messages with a launch time, and every message of a port with a schedule.
//!
//! Such a message does not go into the datagram that is being filled: each of its fragments becomes a frame
//! of its own in the [port scheduler](takt_schedule::Port) and holds its memory until it has left. The
//! scheduler hands a frame out a little ahead of its start ([`LEAD_NS`]); its datagram is built and then held
//! until the very instant. Where the port keeps launch times itself, the frame is handed out and over earlier
//! ([`DEVICE_LEAD_NS`]), and leaves the lane to others meanwhile.

use std::sync::Arc;
use std::time::Duration;

use takt_schedule::discipline::{CreditShaper, LatePolicy, LaunchTime, LaunchTimeConfig};
use takt_schedule::port::{Departure, DropReason, RefusalReason, TxFlags};
use takt_schedule::{
    ClassTable, Decision, GateList, GateMask, Gates, Item, Link, Port, PortConfig, Selection,
};
use takt_session::layout::{FLAG_DEADLINE, FLAG_LAUNCH_TIME, Outcome, TxDescriptor};
use takt_time::{TaiTime, TrafficClass};

use super::egress::class_of;
use super::remote::{Cut, Outgoing};
use crate::config;
use crate::counters::DepartureCounters;
use crate::slots::{RemoteSlot, SessionSlot, SourceSlot};

/// Frames that a class of a port queues.
const CAPACITY: usize = 2048;
/// How far ahead of its start a frame is built: longer than that takes.
const LEAD_NS: i64 = 5_000;
/// The same where the port keeps the launch time: that and a late wake-up. Later arrivals wait for a frame that
/// was handed out, so this is no more than a message may be late by default.
pub const DEVICE_LEAD_NS: i64 = 100_000;
/// Of that, what is enough for handing over: a lane that sleeps may do so until then.
const HAND_OVER_NS: i64 = 30_000;
/// What is left of a window at a port that keeps launch times: a frame for which there is no time ahead leaves by
/// so much later than its start.
const DEVICE_GUARD_NS: u64 = 25_000;
/// What handing a frame over is taken to last at most: what lasts longer was interrupted.
const MOST_HAND_OVER_NS: i64 = 20_000;
/// How far ahead of now a launch time may lie: bounds how long a message can hold its place.
pub const HORIZON: Duration = Duration::from_secs(60);
/// Decisions of one port in a round.
const BUDGET: usize = 64;
/// How much earlier than needed a lane wakes for a departure, before it has measured how late it wakes.
const FIRST_MARGIN_NS: i64 = 200_000;
/// Least and most of that.
const MARGINS_NS: std::ops::RangeInclusive<i64> = 10_000..=2_000_000;
/// Longest sleep of a lane with frames that wait: a clock that was stepped forward is noticed then.
const LONGEST_SLEEP_NS: i64 = 100_000_000;

/// What the scheduler of a port leaves of each window. `kept`: the port keeps some launch times itself.
pub fn guard_ns(kept: bool) -> u64 {
    if kept { DEVICE_GUARD_NS } else { 0 }
}

/// A frame that waits.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub session: SessionSlot,
    pub source: SourceSlot,
    /// The tenant's number on the lane.
    pub tenant: u32,
    pub descriptor: TxDescriptor,
    /// It is a declared stream's: it leaves in time, or not at all.
    pub declared: bool,
    /// It is sent again: what becomes of it is not what became of its message.
    pub again: bool,
    pub destination: Destination,
}

/// What a frame that waits is, and for whom.
#[derive(Clone, Copy, Debug)]
pub enum Destination {
    /// One fragment of a message for a remote lane.
    Remote {
        remote: RemoteSlot,
        message: Outgoing,
        cut: Cut,
        fragment: u32,
    },
    /// A tenant's frame, for an exit of a network.
    Network { network: usize, exit: usize },
}

impl Piece {
    /// The piece of another fragment of the same message.
    fn of_fragment(mut self, number: u32) -> Self {
        if let Destination::Remote { fragment, .. } = &mut self.destination {
            *fragment = number;
        }
        self
    }
}

/// The scheduler of a lane's port.
pub struct Departures {
    scheduler: Port<Piece>,
    /// What the schedule says of classes and of its link, and the one to come with the instant at which it begins.
    classes: Classes,
    next_classes: Option<(TaiTime, Classes)>,
    /// Classes of which the port keeps launch times, a bit each.
    ahead: u8,
    /// A schedule is installed: every message passes the gates.
    scheduled: bool,
    queued: usize,
    /// How much later than its launch time a frame may leave and still count as on time.
    tolerance_ns: i64,
    /// How long it lasts to hand a frame over: the longest lately.
    hand_over_ns: i64,
    /// The frame that was handed out and that the port has not taken yet.
    waiting: Option<Waiting>,
    /// Frames of each class that were refused because their launch times lie beyond the horizon.
    too_far: [u64; TrafficClass::COUNT],
    /// The same because their class has no launch times.
    no_launch_times: [u64; TrafficClass::COUNT],
    /// Nothing is to be done before; `None`: to be asked.
    next: Option<TaiTime>,
    /// When that was said: by a clock before it, it does not hold.
    asked: TaiTime,
    counters: Arc<DepartureCounters>,
}

/// What a schedule says of classes: that of each priority, and how each chooses among its frames; and of the link that its
/// windows and slopes are meant for.
#[derive(Clone, Copy, Debug)]
struct Classes {
    table: ClassTable,
    selection: [Selection; TrafficClass::COUNT],
    link: Link,
}

impl Default for Classes {
    /// Those of a port without a schedule, where nobody has told how long frames take.
    fn default() -> Self {
        Self {
            table: ClassTable::default(),
            selection: Default::default(),
            link: Link::ethernet(0),
        }
    }
}

/// A frame whose time has come, and that the port does not take: there is one at most.
struct Waiting {
    departure: Departure<Piece>,
    /// The port has it in a frame of its own, and keeps its start or not.
    built: Option<bool>,
    /// Its source has been told already that it will not be.
    told: bool,
    /// Its gate is closed until then.
    until: Option<TaiTime>,
}

/// What became of a frame that was to leave.
pub enum Handed {
    /// The port has taken it: it was offered at the one instant, and taken by the other.
    Over { from: TaiTime, to: TaiTime },
    /// The port has no room; `built`: it has the frame in one of its own, and keeps its start or not.
    Waits { built: Option<bool> },
    /// It does not leave.
    Failed,
}

/// What became of an attempt to queue a message for a remote lane.
pub struct Queued {
    /// Frames queued.
    pub pieces: u16,
    pub end: End,
}

pub enum End {
    /// All of it.
    Done,
    /// Up to this fragment: the queue of its class is full.
    Full { fragment: u32 },
    /// It will not be sent.
    Refused(Outcome),
}

/// What management wants of a port's gates.
#[derive(Clone, Debug)]
pub enum ScheduleChange {
    /// This list, from the instant on that follows from `now`.
    Install {
        list: Arc<GateList>,
        initial: GateMask,
        now: TaiTime,
        /// How the link takes frames, the class of each priority, and how each class chooses, from `begins` on.
        link: Link,
        classes: ClassTable,
        selection: Box<[Selection; TrafficClass::COUNT]>,
        begins: TaiTime,
        /// It begins at `now`, in the middle of a cycle, whatever its base time.
        at_once: bool,
    },
    /// No gates.
    Remove,
}

impl Departures {
    /// `kept`: the port keeps some launch times itself.
    pub fn new(how: &config::Departure, kept: bool, counters: Arc<DepartureCounters>) -> Self {
        let config = PortConfig {
            link: Classes::default().link,
            lead_ns: LEAD_NS as u64,
            guard_ns: guard_ns(kept),
            // Every class gets another discipline below.
            queue_capacity: 0,
            ..PortConfig::default()
        };
        let mut scheduler = Port::new(config);
        let discipline = LaunchTimeConfig {
            capacity: CAPACITY,
            late: match how.late {
                config::Late::Send => LatePolicy::Send,
                config::Late::Drop => LatePolicy::Drop,
            },
            tolerance_ns: u32::try_from(how.tolerance.as_nanos()).unwrap_or(u32::MAX),
            // Messages without a launch time are due at the end of time.
            horizon_ns: u64::MAX,
            ..LaunchTimeConfig::default()
        };
        for class in TrafficClass::all() {
            let queue = CreditShaper::over(LaunchTime::new(discipline), None);
            let set = scheduler.set_discipline(class, queue);
            debug_assert!(set.is_ok(), "a new port has nothing queued");
        }
        Self {
            scheduler,
            classes: Classes::default(),
            next_classes: None,
            ahead: 0,
            scheduled: false,
            queued: 0,
            tolerance_ns: discipline.tolerance_ns.into(),
            hand_over_ns: 0,
            waiting: None,
            too_far: [0; TrafficClass::COUNT],
            no_launch_times: [0; TrafficClass::COUNT],
            next: None,
            asked: TaiTime::from_nanos(i64::MIN),
            counters,
        }
    }

    /// What it counts.
    pub fn counters(&self) -> &Arc<DepartureCounters> {
        &self.counters
    }

    /// So many tenants share the port, with numbers below.
    pub fn set_tenants(&mut self, count: usize) {
        self.scheduler.set_flows(count);
        self.next = None;
    }

    /// Whether messages without a launch time pass here too.
    #[inline]
    pub fn scheduled(&self) -> bool {
        self.scheduled
    }

    /// Installs or removes a schedule.
    pub fn change(&mut self, change: ScheduleChange) {
        self.next = None;
        if let Some(waiting) = &mut self.waiting {
            waiting.until = None;
        }
        match change {
            ScheduleChange::Install {
                list,
                initial,
                link,
                now,
                classes,
                selection,
                begins,
                at_once,
            } => {
                self.scheduled = true;
                self.settle_classes(now);
                let next = Classes {
                    table: classes,
                    selection: *selection,
                    link,
                };
                self.next_classes = Some((begins, next));
                if self.scheduler.gates().list(now).is_none() {
                    // No other list says how long frames take, and none is to be on the wire when this one closes a gate.
                    self.classes.link = link;
                    self.shape();
                }
                // When it begins was told by the control thread, which has done the same.
                let gates = self.scheduler.gates_mut();
                gates.set_initial(initial, now);
                if at_once {
                    gates.resume(list, now);
                } else {
                    gates.install(list, now);
                }
                self.settle_classes(now);
            }
            ScheduleChange::Remove => {
                self.scheduled = false;
                self.classes = Classes::default();
                self.next_classes = None;
                self.shape();
                *self.scheduler.gates_mut() = Gates::new(GateMask::ALL);
            }
        }
    }

    /// Takes over what a schedule that has begun says of classes and of its link.
    #[inline]
    fn settle_classes(&mut self, now: TaiTime) {
        if let Some((begins, classes)) = self.next_classes
            && begins <= now
        {
            self.classes = classes;
            self.next_classes = None;
            self.shape();
        }
    }

    /// Shapes the classes that are, on the link that is.
    fn shape(&mut self) {
        let link = self.classes.link;
        self.scheduler.set_link(link);
        for (class, selection) in TrafficClass::all().zip(self.classes.selection) {
            self.scheduler.shape(class, selection.credit(&link));
        }
    }

    /// What holds of classes at an instant.
    #[inline]
    fn classes_at(&self, at: TaiTime) -> &Classes {
        match &self.next_classes {
            Some((begins, classes)) if *begins <= at => classes,
            _ => &self.classes,
        }
    }

    /// From now on the port keeps the launch times of this priority's class, to one peer at least. Frames of the class
    /// to others are handed out as early, and held.
    pub fn hand_ahead(&mut self, priority: TrafficClass) {
        let class = self.classes.table.class(priority);
        self.ahead |= 1 << class.number();
        self.scheduler.set_lead(class, DEVICE_LEAD_NS as u64);
    }

    /// Queues a message from the fragment of `piece` on, as far as there is room, at most `most` frames.
    /// `overhead`: octets of a frame that are not message.
    pub fn queue_message(
        &mut self,
        piece: Piece,
        most: u32,
        overhead: usize,
        now: TaiTime,
    ) -> Queued {
        let mut pieces = 0;
        let (cut, from) = match piece.destination {
            Destination::Remote { cut, fragment, .. } => (cut, fragment),
            // A frame, which is no message.
            Destination::Network { .. } => {
                return Queued {
                    pieces,
                    end: End::Done,
                };
            }
        };
        let flags = match piece.declared {
            true => TxFlags::DROP_LATE,
            false => TxFlags::default(),
        };
        for fragment in from..cut.count() {
            let taken = if u32::from(pieces) == most {
                Ok(false)
            } else {
                let octets = cut.part(fragment).len() + overhead;
                self.queue(piece.of_fragment(fragment), octets, flags, now)
            };
            let end = match taken {
                Ok(true) => {
                    pieces += 1;
                    continue;
                }
                Ok(false) => End::Full { fragment },
                Err(outcome) => End::Refused(outcome),
            };
            return Queued { pieces, end };
        }
        Queued {
            pieces,
            end: End::Done,
        }
    }

    /// Queues a tenant's frame of so many octets. False: its class has no room.
    ///
    /// # Errors
    /// It will not be sent.
    pub fn queue_frame(
        &mut self,
        piece: Piece,
        octets: usize,
        now: TaiTime,
    ) -> Result<bool, Outcome> {
        // A socket's sender expects of the network what etf does.
        let flags = match piece.descriptor.flags & FLAG_DEADLINE {
            0 => TxFlags::DROP_LATE,
            _ => TxFlags::DROP_LATE.union(TxFlags::DEADLINE),
        };
        self.queue(piece, octets, flags, now)
    }

    fn queue(
        &mut self,
        piece: Piece,
        octets: usize,
        flags: TxFlags,
        now: TaiTime,
    ) -> Result<bool, Outcome> {
        self.settle_classes(now);
        let descriptor = &piece.descriptor;
        let leaves = match descriptor.flags & FLAG_LAUNCH_TIME {
            0 => now,
            _ => now.max(TaiTime::from_nanos(descriptor.launch_time_ns)),
        };
        let classes = self.classes_at(leaves);
        let class = classes.table.class(class_of(descriptor));
        let selection = classes.selection[usize::from(class.number())];
        let tenant = piece.tenant;
        let item = Item::new(octets as u32, piece).of(tenant);
        let item = if descriptor.flags & FLAG_LAUNCH_TIME != 0 {
            if !selection.honours_launch_time() {
                self.no_launch_times[usize::from(class.number())] += 1;
                return Err(Outcome::NotScheduled);
            }
            let launch = TaiTime::from_nanos(descriptor.launch_time_ns);
            if launch.nanos_since(now) > HORIZON.as_nanos() as i64 {
                self.too_far[usize::from(class.number())] += 1;
                return Err(Outcome::NotScheduled);
            }
            item.at(launch).with(flags)
        } else {
            // As soon as it can.
            item.at(TaiTime::from_nanos(i64::MAX))
                .with(TxFlags::DEADLINE)
        };
        if !self.scheduler.has_room(class, tenant) {
            return Ok(false);
        }
        match self.scheduler.enqueue(class, item, now) {
            Ok(_) => {
                self.next = None;
                self.queued += 1;
                Ok(true)
            }
            Err(refused) => Err(match refused.reason {
                RefusalReason::Late => Outcome::Late,
                _ => Outcome::NotScheduled,
            }),
        }
    }

    /// From when on a frame of a priority and so many octets that has no place in the queues may be handed over: its class's
    /// gate is open until it is out. `None`: no window will do.
    pub fn opens(&self, priority: TrafficClass, octets: usize, now: TaiTime) -> Option<TaiTime> {
        if !self.scheduled {
            return Some(now);
        }
        let class = self.classes_at(now).table.class(priority);
        let hand_over = u64::try_from(self.hand_over_ns).unwrap_or(0);
        self.scheduler.opens(class, octets as u32, now, hand_over)
    }

    /// How many frames wait in its queues.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// When there is something to do next; `None`: nothing is queued.
    #[inline]
    pub fn due(&self) -> Option<TaiTime> {
        if let Some(waiting) = &self.waiting {
            return Some(waiting.until.unwrap_or(TaiTime::from_nanos(i64::MIN)));
        }
        (self.queued > 0).then(|| self.next.unwrap_or(TaiTime::from_nanos(i64::MIN)))
    }

    /// Whether the port has a frame that it could not hand over: nothing else may be put behind it.
    #[inline]
    pub fn waits(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether a frame is to leave within so many nanoseconds: what is sent now would be in its way. Not so for what
    /// waits already: that and the rest go by turns.
    #[inline]
    pub fn is_near(&self, now: TaiTime, within_ns: i64) -> bool {
        self.queued > 0
            && self
                .next
                .is_some_and(|next| (-LEAD_NS..=within_ns).contains(&next.nanos_since(now)))
    }

    /// By when a lane that sleeps has to be awake: later than when it is due where all that waits is handed over
    /// ahead, so that the lane does not spin until then.
    pub fn wake(&self) -> Option<TaiTime> {
        let due = self.due()?;
        if self.waiting.is_some() {
            return Some(due);
        }
        let held = |class: TrafficClass| {
            self.ahead & 1 << class.number() == 0 && self.scheduler.queued(class) > 0
        };
        Some(if TrafficClass::all().any(held) {
            due
        } else {
            due.saturating_add_nanos(DEVICE_LEAD_NS - HAND_OVER_NS)
        })
    }

    /// What to do now: `handle` gets frames to send and frames that are dropped, and says what became of one to
    /// send. `clock` reads the time. True if there was anything.
    pub fn run(
        &mut self,
        clock: &dyn takt_clock::Clock,
        handle: &mut dyn FnMut(Leaving<'_>) -> Handed,
    ) -> bool {
        let mut worked = false;
        if let Some(mut waiting) = self.waiting.take() {
            let from = clock.now().max(waiting.departure.start);
            waiting.until = self.scheduler.earliest(&waiting.departure, from);
            if waiting.until.is_some_and(|until| until > from) {
                self.waiting = Some(waiting);
                return false;
            }
            let (built, tell) = (waiting.built, !waiting.told);
            // Without a window since the schedule changed it leaves as it can if the port has it, else not at all.
            if waiting.until.is_none() && built.is_none() {
                handle(Leaving::Drop(
                    &waiting.departure.item.handle,
                    Outcome::NotScheduled,
                ));
                self.scheduler.not_sent(&waiting.departure);
                worked = true;
            } else {
                let class = waiting.departure.class;
                waiting.departure.gate_closes = self.scheduler.gates().next_closed(class, from);
                let handed = handle(Leaving::Again {
                    departure: &waiting.departure,
                    built,
                    tell,
                });
                worked = !matches!(handed, Handed::Waits { .. });
                self.handed(waiting.departure, handed, waiting.told);
                if self.waiting.is_some() {
                    return false;
                }
            }
        }
        for _ in 0..BUDGET {
            let now = clock.now();
            self.settle_classes(now);
            if now < self.asked {
                // The clock was stepped back: the next window may be one that had passed.
                self.next = None;
            }
            if self.due().is_none_or(|due| due > now) {
                return worked;
            }
            match self.scheduler.next(now) {
                Decision::Send(departure) => {
                    self.queued -= 1;
                    let handed = handle(Leaving::Send(&departure));
                    self.handed(departure, handed, false);
                    if self.waiting.is_some() {
                        return true;
                    }
                }
                Decision::Drop(dropped) => {
                    self.queued -= 1;
                    let outcome = match dropped.reason {
                        DropReason::Late | DropReason::GateMissed => Outcome::Late,
                        DropReason::NoWindow | DropReason::Oversize => Outcome::NotScheduled,
                    };
                    handle(Leaving::Drop(&dropped.item.handle, outcome));
                }
                Decision::WaitUntil(until) => {
                    (self.next, self.asked) = (Some(until), now);
                    return worked;
                }
                Decision::Idle => {
                    self.queued = 0;
                    return worked;
                }
            }
            worked = true;
        }
        worked
    }

    /// Notes what became of a frame that was to leave.
    fn handed(&mut self, departure: Departure<Piece>, handed: Handed, told: bool) {
        match handed {
            Handed::Over { from, to } => {
                let flags = departure.item.handle.descriptor.flags;
                let strict = flags & (FLAG_LAUNCH_TIME | FLAG_DEADLINE) == FLAG_LAUNCH_TIME;
                // From when it was to leave, not from when the lane was ready for it.
                let meant = departure.item.launch_time.filter(|_| strict);
                let late = to.nanos_since(meant.unwrap_or(departure.start)).max(0);
                self.counters.departed(departure.class, late as u64);
                if strict && late > self.tolerance_ns {
                    self.scheduler.left_late(&departure);
                }
                self.scheduler.started(&departure, from, to);
                let lasted = to.nanos_since(from).clamp(0, MOST_HAND_OVER_NS);
                self.hand_over_ns = lasted.max(self.hand_over_ns - self.hand_over_ns / 32);
                self.scheduler.set_hand_over(self.hand_over_ns as u64);
            }
            Handed::Waits { built } => {
                self.waiting = Some(Waiting {
                    departure,
                    built,
                    told,
                    until: None,
                });
            }
            Handed::Failed => self.scheduler.not_sent(&departure),
        }
    }

    /// Takes out what `unwanted` says.
    pub fn remove(&mut self, unwanted: impl Fn(&Piece) -> bool, mut sink: impl FnMut(Piece)) {
        if let Some(waiting) = &mut self.waiting
            && !waiting.told
            && unwanted(&waiting.departure.item.handle)
        {
            waiting.told = true;
            sink(waiting.departure.item.handle);
            // Nothing can be taken back from the port; what it has not got yet does not leave.
            if waiting.built.is_none()
                && let Some(waiting) = self.waiting.take()
            {
                self.scheduler.not_sent(&waiting.departure);
            }
        }
        let queued = &mut self.queued;
        self.scheduler.remove(
            |_, _, item| unwanted(&item.handle),
            |item| {
                *queued -= 1;
                sink(item.handle);
            },
        );
        self.next = None;
    }

    /// Shows the counters to whoever asks.
    pub fn publish(&self) {
        for class in TrafficClass::all() {
            let at = usize::from(class.number());
            self.counters.show(
                class,
                self.scheduler.counters(class),
                self.too_far[at] + self.no_launch_times[at],
                self.scheduler.queued(class),
            );
        }
    }
}

/// What leaves a scheduler.
pub enum Leaving<'a> {
    /// To be sent at its start.
    Send(&'a Departure<Piece>),
    /// To be sent, after the port had no room.
    Again {
        departure: &'a Departure<Piece>,
        /// The port has it in a frame of its own, and keeps its start or not.
        built: Option<bool>,
        /// Its source waits to be told what becomes of it.
        tell: bool,
    },
    /// Not to be sent, for this reason.
    Drop(&'a Piece, Outcome),
}

/// How much earlier than needed a lane wakes: as late as it was seen to wake lately.
#[derive(Debug)]
pub struct WakeMargin {
    margin_ns: i64,
    /// When it meant to wake.
    planned: Option<TaiTime>,
}

impl Default for WakeMargin {
    fn default() -> Self {
        Self {
            margin_ns: FIRST_MARGIN_NS,
            planned: None,
        }
    }
}

impl WakeMargin {
    /// How long to sleep at most at `now` for a departure at `due`; `None`: not at all.
    pub fn sleep(&mut self, due: TaiTime, now: TaiTime) -> Option<Duration> {
        let wait = due.nanos_since(now).saturating_sub(self.margin_ns);
        if wait <= 0 {
            return None;
        }
        let wait = wait.min(LONGEST_SLEEP_NS);
        self.planned = Some(now.saturating_add_nanos(wait));
        Some(Duration::from_nanos(wait as u64))
    }

    /// The lane is awake. Woken by something else before its time, it has learnt nothing.
    pub fn woken(&mut self, now: impl FnOnce() -> TaiTime) {
        let Some(planned) = self.planned.take() else {
            return;
        };
        let late = now().nanos_since(planned);
        if late >= 0 {
            let forgotten = self.margin_ns - self.margin_ns / 32;
            self.margin_ns =
                (late + late / 4).clamp(forgotten.max(*MARGINS_NS.start()), *MARGINS_NS.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use takt_clock::Clock as _;

    use super::*;

    fn piece(tenant: u32, class: u8) -> Piece {
        Piece {
            session: SessionSlot(0),
            source: SourceSlot(0),
            tenant,
            descriptor: TxDescriptor {
                class,
                ..TxDescriptor::default()
            },
            declared: false,
            again: false,
            destination: Destination::Network {
                network: 0,
                exit: 0,
            },
        }
    }

    /// Queues frames of a tenant for as long as there is room: how many.
    fn fill(departures: &mut Departures, tenant: u32, class: u8) -> usize {
        let now = TaiTime::from_nanos(0);
        let mut queue = || departures.queue(piece(tenant, class), 64, TxFlags::default(), now);
        std::iter::from_fn(|| (queue() == Ok(true)).then_some(())).count()
    }

    #[test]
    fn tenants_that_flood_leave_room_for_others() {
        let mut departures = Departures::new(&config::Departure::default(), false, Arc::default());
        departures.set_tenants(8);
        // Each has an eighth of one half, and of the other half what the ones before have left for all others.
        let shares: Vec<usize> = (0..6)
            .map(|tenant| fill(&mut departures, tenant, 5))
            .collect();
        assert_eq!(
            shares,
            [
                128 + 512,
                128 + 256,
                128 + 128,
                128 + 64,
                128 + 32,
                128 + 16
            ]
        );
        // Another class is another queue.
        assert_eq!(fill(&mut departures, 0, 6), 640);
        // Who goes leaves its room to the others, and has as much again as anybody.
        departures.remove(|piece| piece.tenant == 0, |_| ());
        assert_eq!(fill(&mut departures, 6, 5), 128 + 264);
        assert_eq!(fill(&mut departures, 0, 6), 640);
        // However many there are and whatever others hold, each finds room.
        departures.remove(|_| true, |_| ());
        departures.set_tenants(256);
        for tenant in 0..256 {
            assert!(fill(&mut departures, tenant, 5) >= 4, "{tenant}");
        }
    }

    #[test]
    fn priorities_wait_in_the_classes_of_the_schedule_that_holds_when_they_leave() {
        let mut departures = Departures::new(&config::Departure::default(), false, Arc::default());
        departures.set_tenants(8);
        let schedule = takt_schedule::Schedule {
            cycle_time_ns: 1_000_000,
            entries: vec![takt_schedule::GateEntry::new(GateMask::ALL, 1_000_000)],
            ..takt_schedule::Schedule::default()
        };
        let at = TaiTime::from_nanos;
        let begins = at(1_000_000_000);
        departures.change(ScheduleChange::Install {
            list: Arc::new(GateList::new(&schedule).expect("a list")),
            initial: GateMask::ALL,
            link: Link::ethernet(0),
            now: at(0),
            classes: ClassTable::new([0, 0, 0, 1, 0, 0, 0, 7]).expect("classes"),
            selection: Default::default(),
            begins,
            at_once: false,
        });
        let mut queue = |priority: u8, launch: Option<i64>, now: i64| {
            let mut piece = piece(1, priority);
            if let Some(launch) = launch {
                piece.descriptor.flags = FLAG_LAUNCH_TIME;
                piece.descriptor.launch_time_ns = launch;
            }
            assert_eq!(departures.queue_frame(piece, 64, at(now)), Ok(true));
            let class = |number| TrafficClass::new(number).expect("a class");
            [0, 1, 3, 7].map(|number| departures.scheduler.queued(class(number)))
        };
        // Before it begins, each priority is a class, but for what leaves later than that.
        assert_eq!(queue(3, None, 10), [0, 0, 1, 0]);
        assert_eq!(queue(3, Some(999_999_999), 10), [0, 0, 2, 0]);
        assert_eq!(queue(3, Some(1_000_000_000), 10), [0, 1, 2, 0]);
        assert_eq!(queue(3, None, 1_000_000_000), [0, 2, 2, 0]);
        assert_eq!(queue(7, None, 1_000_000_001), [0, 2, 2, 1]);
        assert_eq!(queue(5, None, 1_000_000_001), [1, 2, 2, 1]);
        departures.remove(|_| true, |_| ());
        departures.change(ScheduleChange::Remove);
        let mut piece = piece(1, 3);
        piece.descriptor.flags = 0;
        assert_eq!(departures.queue_frame(piece, 64, begins), Ok(true));
        let three = TrafficClass::new(3).expect("a class");
        assert_eq!(departures.scheduler.queued(three), 1);
    }

    /// A clock that is set.
    #[derive(Debug, Default)]
    struct Set(std::sync::atomic::AtomicI64);

    impl takt_clock::Clock for Set {
        fn now(&self) -> TaiTime {
            TaiTime::from_nanos(self.0.load(std::sync::atomic::Ordering::Relaxed))
        }
    }

    #[test]
    fn a_class_shaped_by_credit_sends_what_its_idle_slope_gives_it_and_takes_no_launch_times() {
        const RATE: u64 = 1_000_000_000;
        const SLOPE: u64 = 100_000_000;
        let mut departures = Departures::new(&config::Departure::default(), false, Arc::default());
        departures.set_tenants(2);
        let schedule = takt_schedule::Schedule {
            cycle_time_ns: 1_000_000,
            entries: vec![takt_schedule::GateEntry::new(GateMask::ALL, 1_000_000)],
            ..takt_schedule::Schedule::default()
        };
        let mut selection = [Selection::default(); 8];
        selection[6] = Selection::CreditBased {
            idle_slope_bps: SLOPE,
            high_credit_bits: 0,
        };
        selection[5] = Selection::FirstCome;
        let begins = TaiTime::from_nanos(1_000_000);
        departures.change(ScheduleChange::Install {
            list: Arc::new(GateList::new(&schedule).expect("a list")),
            initial: GateMask::ALL,
            link: Link::ethernet(RATE),
            now: TaiTime::from_nanos(0),
            classes: ClassTable::default(),
            selection: Box::new(selection),
            begins,
            at_once: false,
        });
        for class in [6, 5] {
            let mut timed = piece(0, class);
            timed.descriptor.flags = FLAG_LAUNCH_TIME;
            timed.descriptor.launch_time_ns = begins.as_nanos() + 500;
            let refused = departures.queue_frame(timed, 64, begins);
            assert_eq!(refused, Err(Outcome::NotScheduled), "class {class}");
        }
        // 100 frames of two tenants, of 1,538 octets on the link each.
        for number in 0..100 {
            let queued = departures.queue_frame(piece(number % 2, 6), 1514, begins);
            assert_eq!(queued, Ok(true));
        }
        let clock = Set::default();
        let mut starts: Vec<(i64, u32)> = Vec::new();
        while starts.len() < 100 {
            let due = departures.due().expect("frames wait").max(begins);
            clock.0.store(
                due.as_nanos().max(clock.now().as_nanos()),
                std::sync::atomic::Ordering::Relaxed,
            );
            departures.run(&clock, &mut |leaving| {
                let Leaving::Send(departure) = leaving else {
                    panic!("a frame is dropped or waits");
                };
                let from = departure.start;
                starts.push((from.as_nanos(), departure.item.handle.tenant));
                Handed::Over { from, to: from }
            });
        }
        // Credit earned is credit spent: a frame for each of its lengths at the idle slope.
        let each = 1538 * 8 * 1_000_000_000 / SLOPE as i64;
        for pair in starts.windows(2) {
            assert_eq!(pair[1].0 - pair[0].0, each);
            assert_ne!(pair[1].1, pair[0].1, "tenants take turns");
        }
        // As it was without the schedule.
        departures.change(ScheduleChange::Remove);
        let mut timed = piece(0, 6);
        timed.descriptor.flags = FLAG_LAUNCH_TIME;
        timed.descriptor.launch_time_ns = clock.now().as_nanos() + 500;
        assert_eq!(departures.queue_frame(timed, 64, clock.now()), Ok(true));
    }

    #[test]
    fn a_frame_that_waits_for_room_is_dropped_if_a_new_schedule_has_no_window_for_it() {
        let at = TaiTime::from_nanos;
        // The port has taken the frame into one of its own, or has not.
        for built in [None, Some(false)] {
            let mut departures =
                Departures::new(&config::Departure::default(), false, Arc::default());
            departures.set_tenants(1);
            let install = |gates: u8, now: i64| {
                let schedule = takt_schedule::Schedule {
                    cycle_time_ns: 1_000_000,
                    entries: vec![takt_schedule::GateEntry::new(
                        GateMask::from_bits(gates),
                        1_000_000,
                    )],
                    ..takt_schedule::Schedule::default()
                };
                ScheduleChange::Install {
                    list: Arc::new(GateList::new(&schedule).expect("a list")),
                    initial: GateMask::ALL,
                    link: Link::ethernet(0),
                    now: at(now),
                    classes: ClassTable::default(),
                    selection: Default::default(),
                    begins: at(now),
                    at_once: false,
                }
            };
            departures.change(install(0xff, 0));
            assert_eq!(departures.queue_frame(piece(0, 5), 64, at(0)), Ok(true));
            let clock = Set::default();
            departures.run(&clock, &mut |_| Handed::Waits { built });
            assert!(departures.waits());
            departures.change(install(0xdf, 1_000_000));
            clock
                .0
                .store(2_000_000, std::sync::atomic::Ordering::Relaxed);
            let mut seen = Vec::new();
            departures.run(&clock, &mut |leaving| match leaving {
                Leaving::Drop(_, outcome) => {
                    seen.push(Some(outcome));
                    Handed::Failed
                }
                Leaving::Again { .. } | Leaving::Send(_) => {
                    seen.push(None);
                    Handed::Over {
                        from: at(2_000_000),
                        to: at(2_000_000),
                    }
                }
            });
            let class = TrafficClass::new(5).expect("a class");
            let counters = departures.scheduler.counters(class);
            let told = (seen, counters.sent, counters.dropped.removed);
            assert_eq!(
                told,
                match built {
                    None => (vec![Some(Outcome::NotScheduled)], 0, 1),
                    Some(_) => (vec![None], 1, 0),
                }
            );
            assert_eq!(departures.due(), None);
        }
    }

    #[test]
    fn frames_that_wait_for_a_gate_alone_leave_in_the_next_window_of_a_clock_that_is_stepped_back()
    {
        const CYCLE: i64 = 1_000_000;
        const STEP: i64 = 60_000_000_000;
        let at = TaiTime::from_nanos;
        let mut departures = Departures::new(&config::Departure::default(), false, Arc::default());
        departures.set_tenants(1);
        let schedule = takt_schedule::Schedule {
            cycle_time_ns: CYCLE as u64,
            entries: [0xdf, 0xff]
                .map(|gates| {
                    takt_schedule::GateEntry::new(GateMask::from_bits(gates), CYCLE as u32 / 2)
                })
                .to_vec(),
            ..takt_schedule::Schedule::default()
        };
        departures.change(ScheduleChange::Install {
            list: Arc::new(GateList::new(&schedule).expect("a list")),
            initial: GateMask::ALL,
            link: Link::ethernet(0),
            now: at(0),
            classes: ClassTable::default(),
            selection: Default::default(),
            begins: at(0),
            at_once: false,
        });
        let clock = Set::default();
        // What has left by an instant, from where the clock is set to.
        let left = |departures: &mut Departures, now: i64| {
            let mut left = 0;
            clock.0.store(now, std::sync::atomic::Ordering::Relaxed);
            departures.run(&clock, &mut |leaving| {
                let Leaving::Send(departure) = leaving else {
                    panic!("a frame is dropped or waits");
                };
                left += 1;
                let from = departure.start;
                Handed::Over { from, to: from }
            });
            left
        };
        let late = 2 * STEP;
        let queued = (0..3).map(|_| departures.queue_frame(piece(0, 5), 64, at(late)));
        assert!(queued.into_iter().all(|queued| queued == Ok(true)));
        assert_eq!(left(&mut departures, late), 0, "the gate is closed");
        assert_eq!(left(&mut departures, late - STEP), 0, "here too");
        assert_eq!(left(&mut departures, late - STEP + CYCLE / 2), 3);
    }

    #[test]
    fn a_schedule_keeps_its_link_until_the_next_one_begins() {
        const RATE: u64 = 1_000_000_000;
        const SLOPE: u64 = 100_000_000;
        const BEGINS: i64 = 1_000_000_000;
        let at = TaiTime::from_nanos;
        let mut departures = Departures::new(&config::Departure::default(), false, Arc::default());
        // 20 µs in which the gate of 5 is open, of 1 ms.
        let install = |link: Link, now: i64, begins: i64, selection| {
            let schedule = takt_schedule::Schedule {
                base_time: at(begins),
                cycle_time_ns: 1_000_000,
                entries: [(0xff, 20_000), (0xdf, 980_000)]
                    .map(|(gates, time)| {
                        takt_schedule::GateEntry::new(GateMask::from_bits(gates), time)
                    })
                    .to_vec(),
                ..takt_schedule::Schedule::default()
            };
            ScheduleChange::Install {
                list: Arc::new(GateList::new(&schedule).expect("a list")),
                initial: GateMask::ALL,
                link,
                now: at(now),
                classes: ClassTable::default(),
                selection: Box::new(selection),
                begins: at(begins),
                at_once: false,
            }
        };
        let five = TrafficClass::new(5).expect("a class");
        // 12.3 µs at 1 Gbit/s: from 5 µs before the gate closes there is no time for them.
        let opens = |departures: &Departures, now| departures.opens(five, 1514, at(now));
        let mut shaped = [Selection::default(); TrafficClass::COUNT];
        shaped[6] = Selection::CreditBased {
            idle_slope_bps: SLOPE,
            high_credit_bits: 0,
        };
        // Where none runs yet, none of what leaves before is on the wire when the first one closes gates.
        departures.change(install(Link::ethernet(RATE), -10_000_000, 0, shaped));
        assert_eq!(departures.scheduler.link(), &Link::ethernet(RATE));
        departures.settle_classes(at(0));
        assert_eq!(opens(&departures, 15_000), Some(at(1_000_000)));
        // Another one is to come, whose link takes no time.
        let other = [Selection::default(); TrafficClass::COUNT];
        departures.change(install(Link::ethernet(0), 10_000, BEGINS, other));
        assert_eq!(opens(&departures, 15_000), Some(at(1_000_000)));
        // Also through the queues, with what the shaper makes of the rate.
        departures.set_tenants(1);
        let clock = Set::default();
        let mut left = Vec::new();
        let mut run = |departures: &mut Departures, now: i64| {
            clock.0.store(now, std::sync::atomic::Ordering::Relaxed);
            departures.run(&clock, &mut |leaving| {
                let Leaving::Send(departure) = leaving else {
                    panic!("a frame is dropped or waits");
                };
                let from = departure.start;
                left.push((departure.item.handle.descriptor.class, from.as_nanos()));
                Handed::Over { from, to: from }
            });
        };
        for class in [5, 6, 6] {
            let queued = departures.queue_frame(piece(0, class), 1514, at(15_000));
            assert_eq!(queued, Ok(true));
        }
        let second = 15_000 + 1538 * 8 * 1_000_000_000 / SLOPE as i64;
        for now in [15_000, second - 10_000, second, 1_000_000] {
            run(&mut departures, now);
        }
        assert_eq!(left, [(6, 15_000), (6, second), (5, 1_000_000)]);
        // When it has begun its own link holds.
        departures.settle_classes(at(BEGINS));
        let late = BEGINS + 15_000;
        assert_eq!(opens(&departures, late), Some(at(late)));
    }

    #[test]
    fn a_schedule_that_begins_at_once_does_so_with_its_classes_before_its_base_time() {
        let at = TaiTime::from_nanos;
        let mut departures = Departures::new(&config::Departure::default(), false, Arc::default());
        let schedule = takt_schedule::Schedule {
            base_time: at(1_000_000_000),
            cycle_time_ns: 1_000_000,
            entries: vec![takt_schedule::GateEntry::new(
                GateMask::from_bits(0x02),
                1_000_000,
            )],
            ..takt_schedule::Schedule::default()
        };
        let classes = ClassTable::new([0, 0, 0, 1, 0, 0, 0, 7]).expect("classes");
        departures.change(ScheduleChange::Install {
            list: Arc::new(GateList::new(&schedule).expect("a list")),
            initial: GateMask::ALL,
            link: Link::ethernet(0),
            now: at(500),
            classes,
            selection: Default::default(),
            begins: at(500),
            at_once: true,
        });
        let gates = departures.scheduler.gates();
        // By a clock that is stepped back once more, too.
        for now in [500, 100] {
            assert_eq!(gates.state(at(now)), GateMask::from_bits(0x02));
            assert_eq!(departures.classes_at(at(now)).table, classes);
        }
    }

    #[test]
    fn a_lane_learns_how_late_it_wakes_and_forgets_it_slowly() {
        let at = TaiTime::from_nanos;
        let mut margin = WakeMargin::default();
        let sleep = margin.sleep(at(1_000_000), at(0)).expect("time enough");
        assert_eq!(sleep.as_nanos() as i64, 1_000_000 - FIRST_MARGIN_NS);
        margin.woken(|| at(1_000_000 - FIRST_MARGIN_NS + 400_000));
        assert_eq!(margin.margin_ns, 500_000);
        assert_eq!(margin.sleep(at(400_000), at(0)), None, "it would be late");
        let mut before = margin.margin_ns;
        for _ in 0..1000 {
            let sleep = margin.sleep(at(10_000_000), at(0)).expect("time enough");
            margin.woken(|| at(sleep.as_nanos() as i64 + 1));
            assert!(margin.margin_ns <= before);
            before = margin.margin_ns;
        }
        assert_eq!(margin.margin_ns, *MARGINS_NS.start());
        // Long before it is due it only looks whether the clock was stepped.
        let sleep = margin
            .sleep(at(10_000_000_000), at(0))
            .expect("time enough");
        assert_eq!(sleep.as_nanos() as i64, LONGEST_SLEEP_NS);
        // Woken early: nothing is learnt.
        margin.sleep(at(10_000_000), at(0)).expect("time enough");
        margin.woken(|| at(5));
        assert_eq!(margin.margin_ns, *MARGINS_NS.start());
    }
}
