//! Whose turn it is: deficit round robin (Shreedhar and Varghese, IEEE/ACM Transactions on Networking 4(3),
//! 1996) over tenants, and within a round the highest traffic class first.
//!
//! In each round a tenant that has something to do may spend [`QUANTUM`]. It spends it in slices: after each one
//! the tenant goes on that has something of the highest class (strict priority, IEEE 802.1Q-2022, clause
//! 8.6.8.1), among those of one class by turns. So what is of a higher class goes before what others have of a
//! lower one, and yet nobody gets more by giving all it has a high class: what a tenant has spent is spent for
//! all of its classes. For what is of a higher class than the lowest it may spend [`RESERVE`] more and owes that
//! to the next round, so that its own best effort does not keep it either. A round lasts until all have spent
//! what they may or have nothing to do; it may go on over several looks at the lane's other work.
//!
//! What a tenant has done is charged afterwards, so that it may end in debt, which later rounds pay. A turn that
//! ends because no frame of a port was free goes on at the next look: whoever waits for frames keeps its
//! place, and nobody can take all of them twice in a row.
//!
//! The unit of cost is a byte copied; what is done for each message, copy and frame counts as the bytes
//! that could be copied meanwhile.

use std::collections::VecDeque;

use crate::slots::TenantSlot;
use takt_time::TrafficClass;

/// What a tenant may spend in a round: 64 messages of 1 KiB, or a train of 64 fragments.
pub const QUANTUM: i64 = 128 << 10;
/// Of that, what it spends before it is looked whether another has something of a higher class.
pub const SLICE: i64 = QUANTUM / 4;
/// What it may spend beyond its quantum for classes above the lowest.
pub const RESERVE: i64 = QUANTUM / 4;
/// Most debt that is remembered.
const MOST_DEBT: i64 = 8 * QUANTUM;
/// To look whether a source has anything.
pub const LOOK: i64 = 64;
/// To look of which class that is, where nothing of the source was at hand: its application has rung.
pub const PEEK: i64 = 256;
/// After looks that cost so much a tenant is looked at no more before it has had a turn.
const MOST_LOOKS: i64 = QUANTUM / 2;
/// To take a message from a source and complete it.
pub const MESSAGE: i64 = 256;
/// To give a message to a sink, or find that it has no room.
pub const COPY: i64 = 512;
/// To build a frame.
pub const FRAME: i64 = 512;
/// To wake a thread that waits: a system call.
pub const WAKE: i64 = 16 << 10;

/// Why a turn ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing is left to do, or nothing before something else happens.
    Idle,
    /// It has more to do.
    More,
    /// A port has no frame free: it goes on as soon as there are some.
    Blocked,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// What it may still spend in `round`; negative: debt.
    deficit: i64,
    /// The last round in which it got a quantum, or went on with one.
    round: u64,
    /// Its turn was cut short: it goes on without another quantum.
    open: bool,
    /// Classes, a bit each, in which it waits for a turn.
    waits: u8,
    /// What looks at what it has have cost since its last turn.
    looks: i64,
}

impl Entry {
    /// What it may spend in a class, in this round.
    fn may(&self, class: TrafficClass, round: u64) -> i64 {
        let deficit = match self.round == round || self.open {
            true => self.deficit,
            // What was not spent is lost: nobody saves up for a burst.
            false => self.deficit.min(0) + QUANTUM,
        };
        deficit + if class.number() > 0 { RESERVE } else { 0 }
    }

    /// It has a turn in this round.
    fn enter(&mut self, round: u64) {
        if self.round != round {
            if !self.open {
                self.deficit = self.deficit.min(0) + QUANTUM;
            }
            self.round = round;
        }
        self.open = false;
    }
}

/// Tenants in the order of their turns, by class.
#[derive(Debug, Default)]
struct Rings {
    rings: [VecDeque<TenantSlot>; TrafficClass::COUNT],
    /// Classes with any, a bit each.
    any: u8,
}

impl Rings {
    #[inline]
    fn push_back(&mut self, tenant: TenantSlot, class: TrafficClass) {
        self.any |= 1 << class.number();
        self.rings[usize::from(class.number())].push_back(tenant);
    }

    #[inline]
    fn push_front(&mut self, tenant: TenantSlot, class: TrafficClass) {
        self.any |= 1 << class.number();
        self.rings[usize::from(class.number())].push_front(tenant);
    }

    /// The next one of the highest class.
    #[inline]
    fn pop(&mut self) -> Option<(TenantSlot, TrafficClass)> {
        let class = TrafficClass::new(self.any.checked_ilog2()? as u8)?;
        let ring = &mut self.rings[usize::from(class.number())];
        let tenant = ring.pop_front();
        if ring.is_empty() {
            self.any &= !(1 << class.number());
        }
        Some((tenant?, class))
    }

    fn reserve(&mut self, tenants: usize) {
        for ring in &mut self.rings {
            ring.reserve(tenants);
        }
    }

    fn remove(&mut self, tenant: TenantSlot) {
        self.any = 0;
        for (class, ring) in self.rings.iter_mut().enumerate() {
            ring.retain(|waiting| *waiting != tenant);
            self.any |= u8::from(!ring.is_empty()) << class;
        }
    }
}

/// The tenants that wait for a turn, in its order.
#[derive(Debug, Default)]
pub struct RoundRobin {
    /// Those that have something to spend in this round, and those that wait for the next.
    now: Rings,
    later: Rings,
    /// Those whose turns were cut short: first at the next look.
    cut_short: VecDeque<(TenantSlot, TrafficClass)>,
    entries: Vec<Entry>,
    /// Number of the round. No entry has had a quantum in round 0.
    round: u64,
}

impl RoundRobin {
    /// Makes room for a tenant with this number, which starts without debt.
    pub fn add(&mut self, tenant: TenantSlot) {
        if self.entries.len() <= tenant.0 {
            self.entries.resize(tenant.0 + 1, Entry::default());
        }
        self.remove(tenant);
        let most = self.entries.len();
        self.now.reserve(most);
        self.later.reserve(most);
        self.cut_short.reserve(most * TrafficClass::COUNT);
    }

    /// Forgets a tenant.
    pub fn remove(&mut self, tenant: TenantSlot) {
        self.now.remove(tenant);
        self.later.remove(tenant);
        self.cut_short.retain(|(waiting, _)| *waiting != tenant);
        if let Some(entry) = self.entries.get_mut(tenant.0) {
            *entry = Entry::default();
        }
    }

    /// The tenant has something to do in a class: it gets a turn behind those that wait.
    #[inline]
    pub fn wait(&mut self, tenant: TenantSlot, class: TrafficClass) {
        let round = self.round;
        if let Some(entry) = self.entries.get_mut(tenant.0)
            && entry.waits & 1 << class.number() == 0
        {
            entry.waits |= 1 << class.number();
            if entry.may(class, round) > 0 {
                self.now.push_back(tenant, class);
            } else {
                self.later.push_back(tenant, class);
            }
        }
    }

    /// Whether it is looked at what the tenant has: it has something to spend, and has not spent all of it on looks
    /// since its last turn. So it pays for them, and yet gets turns, however often it rings.
    #[inline]
    pub fn may_look(&self, tenant: TenantSlot) -> bool {
        self.entries.get(tenant.0).is_some_and(|entry| {
            let may = entry.may(TrafficClass::BEST_EFFORT, self.round) + RESERVE;
            may > 0 && entry.looks < MOST_LOOKS
        })
    }

    /// Charges a tenant for a look.
    #[inline]
    pub fn charge_look(&mut self, tenant: TenantSlot, cost: i64) {
        if cost > 0 {
            self.charge(tenant, cost);
            if let Some(entry) = self.entries.get_mut(tenant.0) {
                entry.looks += cost;
            }
        }
    }

    /// Number of the round.
    #[cfg(test)]
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Whether any waits.
    #[inline]
    pub fn any(&self) -> bool {
        self.now.any != 0 || self.later.any != 0 || !self.cut_short.is_empty()
    }

    /// Goes on with the round, or begins another one if all have had their part. True if any waits.
    #[inline]
    pub fn begin_round(&mut self) -> bool {
        while let Some((tenant, class)) = self.cut_short.pop_back() {
            self.now.push_front(tenant, class);
        }
        if self.now.any == 0 {
            self.next_round();
        }
        self.now.any != 0
    }

    /// Whether any may have another turn in this round.
    #[inline]
    pub fn goes_on(&self) -> bool {
        self.now.any != 0
    }

    fn next_round(&mut self) {
        self.round += 1;
        std::mem::swap(&mut self.now, &mut self.later);
    }

    /// Begins a turn: whose it is, in which class, and what it may spend until it is asked again. `None`: the round
    /// is over.
    #[inline]
    pub fn begin(&mut self) -> Option<(TenantSlot, TrafficClass, i64)> {
        while let Some((tenant, class)) = self.now.pop() {
            let entry = &mut self.entries[tenant.0];
            let may = entry.may(class, self.round);
            entry.enter(self.round);
            if may > 0 {
                entry.waits &= !(1 << class.number());
                entry.looks = 0;
                return Some((tenant, class, may.min(SLICE)));
            }
            self.later.push_back(tenant, class);
        }
        // Whoever comes now waits with those that have had their part: it keeps none of them.
        self.next_round();
        None
    }

    /// Charges a tenant for what was done for it out of its turn.
    #[inline]
    pub fn charge(&mut self, tenant: TenantSlot, cost: i64) {
        if let Some(entry) = self.entries.get_mut(tenant.0) {
            if entry.round != self.round && !entry.open {
                // What was not spent is lost, for debts as well.
                entry.deficit = entry.deficit.min(0);
            }
            entry.deficit = (entry.deficit - cost).max(-MOST_DEBT);
        }
    }

    /// Ends the turn that [`begin`](Self::begin) began, of a tenant that has spent so much.
    #[inline]
    pub fn end(&mut self, tenant: TenantSlot, class: TrafficClass, spent: i64, why: End) {
        self.charge(tenant, spent);
        let entry = &mut self.entries[tenant.0];
        let bit = 1 << class.number();
        if why == End::Idle || entry.waits & bit != 0 {
            return;
        }
        entry.waits |= bit;
        if entry.may(class, self.round) <= 0 {
            self.later.push_back(tenant, class);
        } else if why == End::Blocked {
            entry.open = true;
            self.cut_short.push_back((tenant, class));
        } else {
            // It has not had its part yet.
            self.now.push_front(tenant, class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOW: TrafficClass = TrafficClass::BEST_EFFORT;

    fn class(number: u8) -> TrafficClass {
        TrafficClass::new(number).expect("below 8")
    }

    fn at(tenant: usize) -> TenantSlot {
        TenantSlot(tenant)
    }

    fn of(tenants: usize) -> RoundRobin {
        let mut turns = RoundRobin::default();
        (0..tenants).for_each(|tenant| turns.add(at(tenant)));
        turns
    }

    proptest! {
        /// Tenants that always have something to do, of any classes, in steps of any cost: none gets more than
        /// another but for a quantum, what it may owe, and a step.
        #[test]
        fn whatever_a_step_costs_and_whatever_its_class_all_get_the_same(
            steps in proptest::collection::vec((1i64..4 * QUANTUM, 0u8..8), 2..6),
            rounds in 1usize..200,
        ) {
            let mut turns = of(steps.len());
            let mut spent = vec![0; steps.len()];
            for (tenant, (_, number)) in steps.iter().enumerate() {
                turns.wait(at(tenant), class(*number));
            }
            for _ in 0..rounds {
                prop_assert!(turns.begin_round());
                while let Some((tenant, of, may)) = turns.begin() {
                    prop_assert_eq!(of, class(steps[tenant.0].1));
                    let mut cost = 0;
                    while cost < may {
                        cost += steps[tenant.0].0;
                    }
                    spent[tenant.0] += cost;
                    turns.end(tenant, of, cost, End::More);
                }
            }
            let (least, most) = (spent.iter().min(), spent.iter().max());
            let apart = most.expect("some") - least.expect("some");
            let bound = QUANTUM + RESERVE + steps.iter().map(|(cost, _)| cost).max().expect("some");
            prop_assert!(apart <= bound, "{:?} {}", spent, bound);
        }

        /// A port has so many frames for a round, fewer than any tenant would take: all get as many.
        #[test]
        fn whoever_is_blocked_goes_on_where_it_was(
            frames in 1i64..200,
            tenants in 2usize..5,
        ) {
            let mut turns = of(tenants);
            let mut got = vec![0; tenants];
            (0..tenants).for_each(|tenant| turns.wait(at(tenant), LOW));
            const FRAME: i64 = 1500;
            for _ in 0..1000 {
                let mut free = frames;
                turns.begin_round();
                while let Some((tenant, class, may)) = turns.begin() {
                    let mut spent = 0;
                    let why = loop {
                        if spent >= may {
                            break End::More;
                        }
                        if free == 0 {
                            break End::Blocked;
                        }
                        free -= 1;
                        spent += FRAME;
                        got[tenant.0] += 1;
                    };
                    turns.end(tenant, class, spent, why);
                }
            }
            let (least, most) = (got.iter().min(), got.iter().max());
            let apart = most.expect("some") - least.expect("some");
            prop_assert!(apart <= 2 * (QUANTUM / FRAME + 1), "{:?}", got);
        }

        /// Whatever others have waiting and have spent: a turn is of the highest class in which one that has
        /// something to spend waits.
        #[test]
        fn the_highest_class_is_next(waits in proptest::collection::vec((0usize..5, 0u8..8, 1i64..QUANTUM), 1..60)) {
            let mut turns = of(5);
            for (tenant, number, cost) in waits {
                turns.wait(at(tenant), class(number));
                turns.begin_round();
                let able = |number: &u8| {
                    let ring = &turns.now.rings[usize::from(*number)];
                    ring.iter().any(|at| turns.entries[at.0].may(class(*number), turns.round) > 0)
                };
                let highest = (0..8).rev().find(able);
                let next = turns.begin();
                prop_assert_eq!(next.map(|(_, of, _)| of.number()), highest);
                if let Some((tenant, of, _)) = next {
                    turns.end(tenant, of, cost, if cost % 2 == 0 { End::More } else { End::Idle });
                }
            }
        }
    }

    #[test]
    fn what_is_of_a_higher_class_goes_between_the_slices_of_others() {
        let mut turns = of(2);
        turns.wait(at(0), LOW);
        turns.begin_round();
        assert_eq!(turns.begin(), Some((at(0), LOW, SLICE)));
        turns.end(at(0), LOW, SLICE, End::More);
        turns.wait(at(1), class(6));
        turns.wait(at(1), class(7));
        assert_eq!(turns.begin(), Some((at(1), class(7), SLICE)));
        turns.end(at(1), class(7), 1, End::Idle);
        assert_eq!(turns.begin(), Some((at(1), class(6), SLICE)));
        turns.end(at(1), class(6), 1, End::Idle);
        assert_eq!(turns.begin(), Some((at(0), LOW, SLICE)));
    }

    #[test]
    fn own_best_effort_does_not_keep_a_tenants_higher_classes_for_a_round() {
        let mut turns = of(2);
        turns.wait(at(0), LOW);
        turns.wait(at(1), LOW);
        turns.begin_round();
        assert_eq!(turns.begin(), Some((at(0), LOW, SLICE)));
        turns.end(at(0), LOW, QUANTUM, End::More);
        turns.wait(at(0), class(7));
        assert_eq!(turns.begin(), Some((at(0), class(7), RESERVE.min(SLICE))));
        turns.end(at(0), class(7), RESERVE, End::More);
        // That is all: the other's best effort is next.
        assert_eq!(turns.begin(), Some((at(1), LOW, SLICE)));
        turns.end(at(1), LOW, 1, End::Idle);
        assert_eq!(turns.begin(), None);
        // It is owed.
        assert!(turns.begin_round());
        assert_eq!(turns.begin(), Some((at(0), class(7), SLICE)));
        assert_eq!(turns.entries[0].deficit, QUANTUM - RESERVE);
    }

    #[test]
    fn who_has_a_little_to_do_all_the_time_keeps_nobody_from_the_next_round() {
        let mut turns = of(2);
        turns.wait(at(0), LOW);
        for _ in 0..10 {
            turns.wait(at(1), LOW);
            assert!(turns.begin_round());
            let mut spent = [0; 2];
            while let Some((tenant, class, may)) = turns.begin() {
                let (cost, why) = if tenant == at(0) {
                    (may, End::More)
                } else {
                    (1, End::Idle)
                };
                spent[tenant.0] += cost;
                turns.end(tenant, class, cost, why);
            }
            assert_eq!(spent, [QUANTUM, 1]);
        }
    }

    #[test]
    fn who_was_idle_has_saved_nothing_and_who_is_in_debt_pays() {
        let mut turns = of(1);
        turns.wait(at(0), LOW);
        turns.begin_round();
        assert_eq!(turns.begin(), Some((at(0), LOW, SLICE)));
        turns.end(at(0), LOW, 10, End::Idle);
        assert!(!turns.any());
        // In the same round it has what was left, in the next no more than a quantum.
        turns.wait(at(0), LOW);
        assert_eq!(turns.begin(), Some((at(0), LOW, SLICE)));
        assert_eq!(turns.entries[0].deficit, QUANTUM - 10);
        turns.end(at(0), LOW, 0, End::Idle);
        assert_eq!(turns.begin(), None);
        turns.wait(at(0), LOW);
        assert!(turns.begin().is_some());
        assert_eq!(turns.entries[0].deficit, QUANTUM);
        turns.end(at(0), LOW, 3 * QUANTUM + 1, End::More);
        assert_eq!(turns.begin(), None);
        // Two rounds pay the debt.
        for _ in 0..2 {
            assert!(turns.begin_round());
            assert_eq!(turns.begin(), None);
        }
        assert!(turns.begin_round());
        assert!(turns.begin().is_some());
        assert_eq!(turns.entries[0].deficit, QUANTUM - 1);
    }
}
