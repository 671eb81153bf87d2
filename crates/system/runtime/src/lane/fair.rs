//! Whose turn it is: deficit round robin (Shreedhar and Varghese, IEEE/ACM Transactions on Networking 4(3),
//! 1996) over tenants.
//!
//! Each tenant that has something to do gets a turn in which it may spend [`QUANTUM`], plus what it had left.
//! What it has done is charged afterwards, so that it may end in debt, which later turns pay. A turn that
//! ends because no frame of a port was free goes on in the next round: whoever waits for frames keeps its
//! place, and nobody can take all of them twice in a row.
//!
//! The unit of cost is a byte copied; what is done for each message, copy and frame counts as the bytes
//! that could be copied meanwhile.

use std::collections::VecDeque;

/// What a tenant may spend in a turn: 64 messages of 1 KiB, or a train of 64 fragments.
pub const QUANTUM: i64 = 128 << 10;
/// Most debt that is remembered.
const MOST_DEBT: i64 = 8 * QUANTUM;
/// To look whether a source has anything.
pub const LOOK: i64 = 64;
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
    /// It has spent what it may.
    Spent,
    /// A port has no frame free: it goes on as soon as there are some.
    Blocked,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// What it may still spend; negative: debt.
    deficit: i64,
    /// It waits for a turn.
    waiting: bool,
    /// Its turn was cut short: it goes on without another quantum.
    open: bool,
}

/// The tenants that wait for a turn, in its order.
#[derive(Debug, Default)]
pub struct RoundRobin {
    ring: VecDeque<usize>,
    /// Those whose turns were cut short in this round: first in the next.
    cut_short: VecDeque<usize>,
    entries: Vec<Entry>,
}

impl RoundRobin {
    /// Makes room for a tenant with this number, which starts without debt.
    pub fn add(&mut self, tenant: usize) {
        if self.entries.len() <= tenant {
            self.entries.resize(tenant + 1, Entry::default());
        }
        self.remove(tenant);
        self.ring.reserve(self.entries.len());
        self.cut_short.reserve(self.entries.len());
    }

    /// Forgets a tenant.
    pub fn remove(&mut self, tenant: usize) {
        self.ring.retain(|waiting| *waiting != tenant);
        self.cut_short.retain(|waiting| *waiting != tenant);
        if let Some(entry) = self.entries.get_mut(tenant) {
            *entry = Entry::default();
        }
    }

    /// The tenant has something to do: it gets a turn behind those that wait.
    #[inline]
    pub fn wait(&mut self, tenant: usize) {
        if let Some(entry) = self.entries.get_mut(tenant)
            && !std::mem::replace(&mut entry.waiting, true)
        {
            self.ring.push_back(tenant);
        }
    }

    /// Whether any waits.
    #[inline]
    pub fn any(&self) -> bool {
        !self.ring.is_empty() || !self.cut_short.is_empty()
    }

    /// Begins a round: how many turns it has.
    #[inline]
    pub fn begin_round(&mut self) -> usize {
        while let Some(tenant) = self.cut_short.pop_back() {
            self.ring.push_front(tenant);
        }
        self.ring.len()
    }

    /// Begins a turn: whose it is, and what it may spend. `None`: nobody's, or of one in debt, which has paid
    /// a part of it and waits on.
    #[inline]
    pub fn begin(&mut self) -> Option<(usize, i64)> {
        let tenant = self.ring.pop_front()?;
        let entry = &mut self.entries[tenant];
        if !std::mem::take(&mut entry.open) {
            entry.deficit = (entry.deficit + QUANTUM).min(QUANTUM);
        }
        if entry.deficit <= 0 {
            self.ring.push_back(tenant);
            return None;
        }
        entry.waiting = false;
        Some((tenant, entry.deficit))
    }

    /// Charges a tenant for what was done for it out of its turn.
    #[inline]
    pub fn charge(&mut self, tenant: usize, cost: i64) {
        if let Some(entry) = self.entries.get_mut(tenant) {
            entry.deficit = (entry.deficit - cost).max(-MOST_DEBT);
        }
    }

    /// Ends the turn that [`begin`](Self::begin) began, of a tenant that has spent so much.
    #[inline]
    pub fn end(&mut self, tenant: usize, spent: i64, why: End) {
        self.charge(tenant, spent);
        let entry = &mut self.entries[tenant];
        match why {
            // What is not used is lost: nobody saves up for a burst.
            End::Idle => entry.deficit = entry.deficit.min(0),
            End::Blocked if entry.deficit > 0 && !entry.waiting => {
                entry.open = true;
                entry.waiting = true;
                self.cut_short.push_back(tenant);
            }
            End::Spent | End::Blocked => self.wait(tenant),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(tenants: usize) -> RoundRobin {
        let mut turns = RoundRobin::default();
        (0..tenants).for_each(|tenant| turns.add(tenant));
        turns
    }

    proptest! {
        /// Tenants that always have something to do, in steps of any cost: none gets more than another but for
        /// a quantum and a step.
        #[test]
        fn whatever_a_step_costs_all_get_the_same(
            steps in proptest::collection::vec(1i64..4 * QUANTUM, 2..6),
            rounds in 1usize..200,
        ) {
            let mut turns = of(steps.len());
            let mut spent = vec![0; steps.len()];
            (0..steps.len()).for_each(|tenant| turns.wait(tenant));
            for _ in 0..rounds {
                for _ in 0..turns.begin_round() {
                    let Some((tenant, may)) = turns.begin() else { continue };
                    let mut cost = 0;
                    while cost < may {
                        cost += steps[tenant];
                    }
                    spent[tenant] += cost;
                    turns.end(tenant, cost, End::Spent);
                }
            }
            let (least, most) = (spent.iter().min(), spent.iter().max());
            let apart = most.expect("some") - least.expect("some");
            let bound = QUANTUM + steps.iter().max().expect("some");
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
            (0..tenants).for_each(|tenant| turns.wait(tenant));
            const FRAME: i64 = 1500;
            for _ in 0..1000 {
                let mut free = frames;
                for _ in 0..turns.begin_round() {
                    let Some((tenant, may)) = turns.begin() else { continue };
                    let mut spent = 0;
                    let why = loop {
                        if spent >= may {
                            break End::Spent;
                        }
                        if free == 0 {
                            break End::Blocked;
                        }
                        free -= 1;
                        spent += FRAME;
                        got[tenant] += 1;
                    };
                    turns.end(tenant, spent, why);
                }
            }
            let (least, most) = (got.iter().min(), got.iter().max());
            let apart = most.expect("some") - least.expect("some");
            prop_assert!(apart <= 2 * (QUANTUM / FRAME + 1), "{:?}", got);
        }
    }

    #[test]
    fn who_was_idle_has_saved_nothing_and_who_is_in_debt_pays() {
        let mut turns = of(1);
        turns.wait(0);
        turns.begin_round();
        assert_eq!(turns.begin(), Some((0, QUANTUM)));
        turns.end(0, 10, End::Idle);
        assert!(!turns.any());
        turns.wait(0);
        assert_eq!(turns.begin(), Some((0, QUANTUM)));
        turns.end(0, 2 * QUANTUM + 1, End::Idle);
        turns.wait(0);
        assert_eq!(turns.begin(), None);
        assert!(turns.any());
        assert_eq!(turns.begin(), Some((0, QUANTUM - 1)));
    }
}
