//! The port under random schedules, frames, rates, lanes and clock steps: what must always hold.
//!
//! A model keeps every frame that the port has taken. Each decision of the port is checked against
//! the model and against the gates' states, looked up one by one rather than by the questions that
//! the port asks itself.

use std::sync::Arc;

use proptest::prelude::*;
use takt_schedule::discipline::{
    Accept, CreditShaper, CreditShaperConfig, Fifo, LatePolicy, LaunchTime, LaunchTimeConfig,
};
use takt_schedule::port::{
    Departure, DropReason, Dropped, RefusalReason, Timeliness, Token, TxFlags,
};
use takt_schedule::{
    Decision, GateEntry, GateList, GateMask, Gates, Item, Link, Port, PortConfig, Schedule,
};
use takt_time::{TaiTime, TrafficClass};

const TOLERANCE_NS: u32 = 3_000;
const HORIZON_NS: u64 = 400_000;

#[derive(Clone, Debug)]
enum Order {
    Fifo,
    Launch(LatePolicy, LatePolicy, Accept),
    Credit,
}

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // a few steps of a test
enum Act {
    Offer {
        class: u8,
        len: u32,
        launch: Option<i64>,
        flags: u32,
    },
    /// Let time pass, the lane waking up late by as much.
    Run {
        nanos: i64,
        late: i64,
    },
    Step(i64),
    /// The link comes up with another rate.
    Rate(u64),
    Install(Schedule),
    Cancel,
    Enable(bool),
    Remove {
        class: u8,
    },
}

fn order() -> impl Strategy<Value = Order> {
    let policy = || prop_oneof![Just(LatePolicy::Drop), Just(LatePolicy::Send)];
    let accept = prop_oneof![
        3 => Just(Accept::Any),
        1 => Just(Accept::StrictOnly),
        1 => Just(Accept::DeadlineOnly)
    ];
    prop_oneof![
        2 => Just(Order::Fifo),
        3 => (policy(), policy(), accept).prop_map(|(late, gate, accept)| Order::Launch(late, gate, accept)),
        1 => Just(Order::Credit),
    ]
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let entry = (any::<u8>(), 500u32..40_000)
        .prop_map(|(gates, interval)| GateEntry::new(GateMask::from_bits(gates), interval));
    (
        -200_000i64..200_000,
        5_000u64..150_000,
        prop_oneof![Just(0u64), 0u64..60_000],
        prop::collection::vec(entry, 1..6),
        prop_oneof![3 => Just(0u32), 1 => 200u32..1600],
    )
        .prop_map(|(base, cycle, extension, entries, max_sdu)| Schedule {
            base_time: TaiTime::from_nanos(base),
            cycle_time_ns: cycle,
            cycle_time_extension_ns: extension,
            entries,
            max_sdu: [max_sdu; 8],
            ..Schedule::default()
        })
}

fn rate() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0u64),
        Just(100_000_000),
        Just(1_000_000_000),
        Just(10_000_000_000),
        10_000_000u64..100_000_000_000,
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let offer = (
        0u8..8,
        1u32..1600,
        prop::option::weighted(
            0.8,
            prop_oneof![
                6 => -10_000i64..150_000,
                // Equal times of several frames, and the limits of what is accepted.
                4 => (0i64..4).prop_map(|n| n * 20_000),
                1 => prop_oneof![
                    Just(-i64::from(TOLERANCE_NS)),
                    Just(-i64::from(TOLERANCE_NS) - 1),
                    Just(HORIZON_NS as i64),
                    Just(HORIZON_NS as i64 + 1),
                ],
                1 => -1_000_000i64..1_000_000,
                1 => any::<i64>(),
            ],
        ),
        0u32..8,
    )
        .prop_map(|(class, len, launch, flags)| Act::Offer {
            class,
            len,
            launch,
            flags,
        });
    prop_oneof![
        12 => offer,
        6 => (
            prop_oneof![0i64..80_000, (0i64..4).prop_map(|n| n * 20_000)],
            prop_oneof![
                3 => Just(0i64),
                1 => Just(i64::from(TOLERANCE_NS)),
                1 => Just(i64::from(TOLERANCE_NS) + 1),
                3 => 0i64..6_000
            ],
        )
            .prop_map(|(nanos, late)| Act::Run { nanos, late }),
        1 => (-300_000i64..300_000).prop_map(Act::Step),
        1 => rate().prop_map(Act::Rate),
        2 => schedule().prop_map(Act::Install),
        1 => Just(Act::Cancel),
        1 => prop::bool::weighted(0.7).prop_map(Act::Enable),
        1 => (0u8..8).prop_map(|class| Act::Remove { class }),
    ]
}

#[derive(Debug)]
struct Held {
    token: Token,
    class: TrafficClass,
    item: Item<u64>,
}

struct Simulation {
    port: Port<u64>,
    orders: Vec<Order>,
    held: Vec<Held>,
    now: i64,
    lead: i64,
    guard: i64,
    /// Until when the link is taken; unknown after a clock step until a frame is sent.
    busy: i64,
    stepped: bool,
    offered: [u64; 8],
    handles: u64,
}

impl Simulation {
    fn new(orders: Vec<Order>, rate: u64, lead: u64, guard: u64) -> Self {
        let mut port = Port::new(PortConfig {
            link: Link::ethernet(rate),
            lead_ns: lead,
            guard_ns: guard,
            initial_gates: GateMask::ALL,
            queue_capacity: 6,
        });
        for (number, order) in orders.iter().enumerate() {
            let class = TrafficClass::new(number as u8).unwrap();
            match order {
                Order::Fifo => port.set_discipline(class, Fifo::new(6)),
                Order::Launch(late, gate_missed, accept) => port.set_discipline(
                    class,
                    LaunchTime::new(LaunchTimeConfig {
                        capacity: 6,
                        accept: *accept,
                        late: *late,
                        gate_missed: *gate_missed,
                        tolerance_ns: TOLERANCE_NS,
                        horizon_ns: HORIZON_NS,
                    }),
                ),
                Order::Credit => port.set_discipline(
                    class,
                    CreditShaper::new(CreditShaperConfig {
                        capacity: 6,
                        idle_slope_bps: rate / 4,
                        high_credit_bits: 12_000,
                    }),
                ),
            }
            .unwrap();
        }
        Self {
            port,
            orders,
            held: Vec::new(),
            now: 1_000_000_000,
            lead: lead as i64,
            guard: guard as i64,
            busy: i64::MIN,
            stepped: false,
            offered: [0; 8],
            handles: 0,
        }
    }

    fn act(&mut self, act: Act) -> Result<(), TestCaseError> {
        let now = TaiTime::from_nanos(self.now);
        match act {
            Act::Offer {
                class,
                len,
                launch,
                flags,
            } => self.offer(class, len, launch, flags),
            Act::Run { nanos, late } => self.run(nanos, late),
            Act::Step(nanos) => {
                self.now += nanos;
                self.busy = i64::MIN;
                self.stepped = true;
                Ok(())
            }
            Act::Rate(rate) => {
                self.port.set_link(Link::ethernet(rate));
                Ok(())
            }
            Act::Install(mut schedule) => {
                schedule.base_time = now.saturating_add_nanos(schedule.base_time.as_nanos());
                let list = Arc::new(GateList::new(&schedule).unwrap());
                self.port.gates_mut().install(list, now);
                Ok(())
            }
            Act::Cancel => {
                self.port.gates_mut().cancel(now);
                Ok(())
            }
            Act::Enable(enabled) => {
                self.port.gates_mut().set_enabled(enabled, now);
                Ok(())
            }
            Act::Remove { class } => {
                let mut removed = Vec::new();
                self.port.remove(
                    |of, _, item| of.number() == class && item.handle.is_multiple_of(2),
                    |item| removed.push(item.handle),
                );
                let gone = |held: &Held| {
                    held.class.number() == class && held.item.handle.is_multiple_of(2)
                };
                prop_assert_eq!(removed.len(), self.held.iter().filter(|h| gone(h)).count());
                self.held.retain(|held| !gone(held));
                Ok(())
            }
        }?;
        self.nothing_is_lost()
    }

    fn offer(
        &mut self,
        class: u8,
        len: u32,
        launch: Option<i64>,
        flags: u32,
    ) -> Result<(), TestCaseError> {
        let class = TrafficClass::new(class).unwrap();
        let launch = launch.map(|ahead| TaiTime::from_nanos(self.now.saturating_add(ahead)));
        let item = Item {
            len,
            launch_time: launch,
            flags: TxFlags::from_bits(flags).union(match flags & 4 {
                0 => TxFlags::default(),
                _ => TxFlags::DROP_LATE,
            }),
            handle: self.handles,
            flow: 0,
        };
        self.handles += 1;
        self.offered[usize::from(class.number())] += 1;
        match self
            .port
            .enqueue(class, item, TaiTime::from_nanos(self.now))
        {
            Ok(token) => self.held.push(Held { token, class, item }),
            Err(refused) => {
                prop_assert_eq!(refused.item, item);
                let why = refused.reason;
                prop_assert!(
                    self.rightly_refused(class, &item, why),
                    "{:?} of {:?}",
                    why,
                    item
                );
            }
        }
        Ok(())
    }

    fn rightly_refused(&self, class: TrafficClass, item: &Item<u64>, why: RefusalReason) -> bool {
        let ahead = item
            .launch_time
            .map(|launch| launch.as_nanos().saturating_sub(self.now));
        let deadline = item.flags.contains(TxFlags::DEADLINE);
        let order = &self.orders[usize::from(class.number())];
        let meant = match order {
            Order::Launch(..) => self.now.max(self.now.saturating_add(ahead.unwrap_or(0))),
            Order::Fifo | Order::Credit => self.now,
        };
        match why {
            RefusalReason::Full => self.held.iter().filter(|h| h.class == class).count() == 6,
            RefusalReason::Oversize => self.oversize(class, item.len, meant),
            // Whatever the schedules do, they have done it by then. In 2116 time stands still.
            RefusalReason::NoWindow => {
                meant > (1 << 62) - 10_000_000
                    || !self.could_start(class, item.len, meant, meant + 1_000_000)
            }
            RefusalReason::NoLaunchTime => ahead.is_none(),
            RefusalReason::Mode => match order {
                Order::Launch(_, _, Accept::StrictOnly) => deadline,
                Order::Launch(_, _, Accept::DeadlineOnly) => !deadline,
                _ => false,
            },
            RefusalReason::Late => {
                let tolerated = if deadline {
                    0
                } else {
                    -i64::from(TOLERANCE_NS)
                };
                ahead.is_some_and(|ahead| ahead < tolerated)
                    && (matches!(order, Order::Launch(LatePolicy::Drop, ..))
                        || item.flags.contains(TxFlags::DROP_LATE))
            }
            RefusalReason::TooFarAhead => ahead.is_some_and(|ahead| ahead > HORIZON_NS as i64),
        }
    }

    fn oversize(&self, class: TrafficClass, len: u32, at: i64) -> bool {
        let list = self.port.gates().list(TaiTime::from_nanos(at));
        let most = list.map_or(0, |list| list.max_sdu(class));
        most != 0 && len > most + 14
    }

    /// Whether the gate of `class` lets a frame go at any instant from `from` to `to`.
    fn could_start(&self, class: TrafficClass, len: u32, from: i64, to: i64) -> bool {
        let gates = self.port.gates();
        let length = self.port.link().transmission_ns(len) as i64 + self.guard;
        let mut start = from;
        // The first such instant is the first of all, or one at which an entry begins.
        while start <= to {
            if open_throughout(gates, class, start, start.saturating_add(length)) {
                return true;
            }
            match gates.next_event(TaiTime::from_nanos(start)) {
                // Beyond 2116 time stands still.
                Some(next) if next.as_nanos() > start => start = next.as_nanos(),
                _ => return false,
            }
        }
        false
    }

    fn run(&mut self, nanos: i64, late: i64) -> Result<(), TestCaseError> {
        let end = self.now + nanos;
        for _ in 0..10_000 {
            match self.port.next(TaiTime::from_nanos(self.now)) {
                Decision::Send(departure) => self.sent(&departure)?,
                Decision::Drop(dropped) => self.dropped(&dropped)?,
                Decision::WaitUntil(t) => {
                    prop_assert!(t.as_nanos() > self.now, "a wait must end later than now");
                    self.nobody_could_go_before(t)?;
                    if t.as_nanos() > end {
                        break;
                    }
                    self.now = (t.as_nanos() + late).min(end);
                }
                Decision::Idle => {
                    prop_assert!(self.held.is_empty(), "idle with {:?}", self.held);
                    break;
                }
            }
        }
        self.now = self.now.max(end);
        Ok(())
    }

    fn take(&mut self, token: Token) -> Held {
        let at = self.held.iter().position(|held| held.token == token);
        self.held.remove(at.expect("a frame that the port held"))
    }

    fn sent(&mut self, departure: &Departure<u64>) -> Result<(), TestCaseError> {
        let held = self.take(departure.token);
        prop_assert_eq!(held.item, departure.item);
        prop_assert_eq!(held.class, departure.class);
        let (class, item) = (held.class, held.item);
        let start = departure.start.as_nanos();
        let link = *self.port.link();
        let end = start + link.transmission_ns(item.len) as i64;

        prop_assert!(start >= self.now && start <= self.now + self.lead);
        prop_assert!(
            open_throughout(self.port.gates(), class, start, end + self.guard),
            "{:?} while its gate is closed",
            departure
        );
        if let Some(closes) = departure.gate_closes {
            prop_assert!(end <= closes.as_nanos());
        }
        prop_assert!(start >= self.busy, "the link is still taken");
        let from = self.now.max(self.busy);
        let others = self.heads_of_fifos().filter(|other| other.class != class);
        for other in others.filter(|_| !self.stepped && from < start) {
            prop_assert!(
                !self.could_start(other.class, other.item.len, from, start - 1),
                "{:?} could have gone before",
                other
            );
        }
        self.busy = start + link.occupancy_ns(item.len) as i64;
        self.stepped = false;

        let max_sdu = self
            .port
            .gates()
            .list(departure.start)
            .map_or(0, |l| l.max_sdu(class));
        prop_assert!(max_sdu == 0 || item.len <= max_sdu + 14);
        match self.orders[usize::from(class.number())] {
            Order::Launch(late, gate_missed, _) => {
                self.launch_order(&held, start)?;
                let launch = item.launch_time.unwrap().as_nanos();
                let deadline = item.flags.contains(TxFlags::DEADLINE);
                let limit = launch + if deadline { 0 } else { i64::from(TOLERANCE_NS) };
                prop_assert!(deadline || start >= launch, "before its time");
                prop_assert_eq!(departure.timeliness == Timeliness::OnTime, start <= limit);
                let may_be_late =
                    late == LatePolicy::Send && !item.flags.contains(TxFlags::DROP_LATE);
                prop_assert!(departure.timeliness != Timeliness::Late || may_be_late);
                if departure.timeliness != Timeliness::OnTime {
                    let by_gate = departure.timeliness == Timeliness::GateMissed;
                    prop_assert_eq!(by_gate, self.gate_missed(&held, limit));
                }
                prop_assert!(
                    departure.timeliness != Timeliness::GateMissed
                        || gate_missed == LatePolicy::Send
                );
            }
            Order::Fifo | Order::Credit => {
                prop_assert!(
                    self.held
                        .iter()
                        .all(|other| other.class != class || other.token > held.token),
                    "overtaken in its class"
                );
            }
        }
        self.no_higher_class_was_passed_over(class, start)
    }

    /// No frame of the same class and kind with an earlier time, or the same and an earlier arrival.
    fn launch_order(&self, sent: &Held, start: i64) -> Result<(), TestCaseError> {
        let key = |held: &Held| (held.item.launch_time, held.token);
        let kind = |held: &Held| held.item.flags.contains(TxFlags::DEADLINE);
        for other in self.held.iter().filter(|other| other.class == sent.class) {
            prop_assert!(
                kind(other) != kind(sent) || key(other) > key(sent),
                "out of order"
            );
            let next = self
                .held
                .iter()
                .filter(|h| h.class == sent.class && !kind(h))
                .map(key)
                .min();
            if kind(sent) && Some(key(other)) == next && !kind(other) {
                // A deadline frame is off the link before a strict one that could go is due.
                let due = other.item.launch_time.unwrap().as_nanos();
                let clear = start + self.port.link().occupancy_ns(sent.item.len) as i64;
                let gates = self.port.gates();
                let length = self.port.link().transmission_ns(other.item.len) as i64;
                prop_assert!(
                    clear <= due
                        || due < start
                        || !open_throughout(gates, sent.class, due, due + length + self.guard()),
                    "in the way of a strict frame"
                );
            }
        }
        Ok(())
    }

    fn no_higher_class_was_passed_over(
        &self,
        class: TrafficClass,
        start: i64,
    ) -> Result<(), TestCaseError> {
        for other in self.heads_of_fifos().filter(|other| other.class > class) {
            let length = self.port.link().transmission_ns(other.item.len) as i64;
            prop_assert!(
                !open_throughout(
                    self.port.gates(),
                    other.class,
                    start,
                    start + length + self.guard()
                ),
                "{:?} should have gone before class {}",
                other,
                class
            );
        }
        Ok(())
    }

    fn nobody_could_go_before(&self, until: TaiTime) -> Result<(), TestCaseError> {
        let from = self.now.max(self.busy);
        // After a step the model does not know when the link is free.
        if self.stepped || until.as_nanos() - self.lead <= from {
            return Ok(());
        }
        for head in self.heads_of_fifos() {
            let length = self.port.link().transmission_ns(head.item.len) as i64;
            prop_assert!(
                !open_throughout(
                    self.port.gates(),
                    head.class,
                    from,
                    from + length + self.guard()
                ),
                "{:?} could go now, not only at {}",
                head,
                until
            );
        }
        Ok(())
    }

    fn guard(&self) -> i64 {
        // Every gate question of these tests may be stricter than the port's by its guard.
        self.lead.max(2_000)
    }

    fn heads_of_fifos(&self) -> impl Iterator<Item = &Held> {
        self.held.iter().filter(|held| {
            matches!(self.orders[usize::from(held.class.number())], Order::Fifo)
                && self
                    .held
                    .iter()
                    .all(|other| other.class != held.class || other.token >= held.token)
        })
    }

    /// Whether it is for its gate that a frame is not in time.
    fn gate_missed(&self, held: &Held, limit: i64) -> bool {
        // Gates know no time before 1823: there was none to be in time.
        let launch = held
            .item
            .launch_time
            .unwrap()
            .as_nanos()
            .max(-(1 << 62) + 1);
        !self.could_start(held.class, held.item.len, launch, limit)
    }

    /// After a step the model does not know when the link is free, and believes the port.
    fn rightly_dropped(&self, held: &Held, why: DropReason) -> bool {
        let (class, len) = (held.class, held.item.len);
        let from = self.now.max(self.busy);
        match why {
            DropReason::Oversize => {
                self.oversize(class, len, self.now)
                    || self.oversize(class, len, self.now + self.lead)
            }
            DropReason::NoWindow => {
                let deadline = held.item.flags.contains(TxFlags::DEADLINE);
                let from = match (
                    &self.orders[usize::from(class.number())],
                    held.item.launch_time,
                ) {
                    (Order::Launch(..), Some(launch)) if !deadline => from.max(launch.as_nanos()),
                    // Credit may take so long to recover.
                    (Order::Credit, _) => from + 50_000_000,
                    _ => from,
                };
                self.stepped || !self.could_start(class, len, from, from + 1_000_000)
            }
            DropReason::Late | DropReason::GateMissed => {
                let launch = held.item.launch_time.unwrap().as_nanos();
                let deadline = held.item.flags.contains(TxFlags::DEADLINE);
                let (earliest, limit) = match deadline {
                    true => (from, launch),
                    false => (from.max(launch), launch + i64::from(TOLERANCE_NS)),
                };
                (self.stepped || !self.could_start(class, len, earliest, limit))
                    && (why == DropReason::GateMissed) == self.gate_missed(held, limit)
            }
        }
    }

    fn dropped(&mut self, dropped: &Dropped<u64>) -> Result<(), TestCaseError> {
        let held = self.take(dropped.token);
        prop_assert_eq!(held.item, dropped.item);
        prop_assert!(
            self.rightly_dropped(&held, dropped.reason),
            "{:?} at {} with the link taken until {}",
            dropped,
            self.now,
            self.busy
        );
        let reports = held.item.flags.contains(TxFlags::REPORT_ERRORS);
        prop_assert_eq!(
            dropped.error.is_some(),
            reports && held.item.launch_time.is_some()
        );
        Ok(())
    }

    /// Everything offered is refused, sent, dropped or queued, and the port says which.
    fn nothing_is_lost(&self) -> Result<(), TestCaseError> {
        for number in 0..8u8 {
            let class = TrafficClass::new(number).unwrap();
            let counters = self.port.counters(class);
            let held = self.held.iter().filter(|held| held.class == class).count();
            prop_assert_eq!(counters.offered, self.offered[usize::from(number)]);
            prop_assert_eq!(self.port.queued(class), held);
            prop_assert_eq!(counters.expected_queued(), held as u64);
        }
        Ok(())
    }
}

/// Whether the gate of `class` is open at every instant from `start` to `end`.
fn open_throughout(gates: &Gates, class: TrafficClass, start: i64, end: i64) -> bool {
    let mut t = TaiTime::from_nanos(start);
    loop {
        if !gates.state(t).is_open(class) {
            return false;
        }
        match gates.next_event(t) {
            Some(next) if next > t && next.as_nanos() < end => t = next,
            _ => return true,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn whatever_happens_frames_keep_to_gates_times_order_and_counters(
        orders in prop::collection::vec(order(), 8),
        rate in rate(),
        lead in prop_oneof![3 => Just(0u64), 1 => 0u64..20_000],
        guard in prop_oneof![3 => Just(0u64), 1 => 0u64..2_000],
        acts in prop::collection::vec(act(), 1..80),
    ) {
        let mut simulation = Simulation::new(orders, rate, lead, guard);
        for act in acts {
            simulation.act(act)?;
        }
    }

    #[test]
    fn with_gates_open_in_the_end_every_frame_leaves_or_is_dropped(
        orders in prop::collection::vec(order(), 8),
        acts in prop::collection::vec(act(), 1..40),
    ) {
        let mut simulation = Simulation::new(orders, 1_000_000_000, 0, 0);
        for act in acts {
            simulation.act(act)?;
        }
        simulation.act(Act::Enable(false))?;
        simulation.act(Act::Run { nanos: 2 * HORIZON_NS as i64 + 2_000_000, late: 0 })?;
        prop_assert!(simulation.held.is_empty(), "{:?}", simulation.held);
    }
}
