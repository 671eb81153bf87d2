//! How much CPU time a reservation guarantees in any window of time: supply bound functions.
//!
//! One core: the periodic resource model of Shin and Lee ("Periodic resource model for
//! compositional real-time guarantees", RTSS 2003, equation 2): a server that has Q in every period
//! P, at an unknown place in it, leaves a window without supply for at most 2(P − Q): one budget
//! served as early, the next as late as can be. `SCHED_DEADLINE`, a hard constant bandwidth server,
//! keeps to it for every window in which work is pending throughout: when it wakes up it goes on
//! with what is left only if that is no more than its share of the time to its deadline
//! (`dl_entity_overflow` in kernel/sched/deadline.c), else it begins a new period at once.
//!
//! Several cores: the multiprocessor periodic resource model (P, Θ, m) of Shin, Easwaran and Lee
//! ("Hierarchical scheduling framework for virtual clustering of multiprocessors", ECRTS 2008) with
//! Θ = m·Q, which is what m equal servers are. Its least supply is m times that of one core;
//! servers that are not synchronised, as on Linux, never give less than that together.
//!
//! Times and amounts are exact integers; the answer is the guarantee itself, never more.

use crate::nanos::Nanos;
use crate::reservation::{Overheads, Reservation};

/// No window of the analysis is longer than this: 10¹⁷ ns, more than three years.
///
/// With it, a thousand tasks of that length released every nanosecond still add up within 128 bits.
pub(crate) const HORIZON: u128 = 100_000_000_000_000_000;

/// What a reservation guarantees, after its overheads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supply {
    /// Q less the switches that each budget pays for; zero when nothing is left.
    runtime: u128,
    period: u128,
    latency: u128,
    cores: u32,
}

impl Supply {
    /// The supply of `reservation` when it is used at the price of `overheads`.
    pub fn new(reservation: &Reservation, overheads: &Overheads) -> Self {
        let switches = 2 * overheads.context_switch.wide();
        Self {
            runtime: reservation.runtime().wide().saturating_sub(switches),
            period: reservation.period().wide(),
            latency: overheads.supply_latency.wide(),
            cores: reservation.cores(),
        }
    }

    /// sbf(t): the CPU time each core gives at least in any window of length `window` with work pending.
    pub fn per_core(&self, window: Nanos) -> Nanos {
        Nanos::from_wide(self.per_core_wide(window.wide()))
    }

    /// m·sbf(t): what all cores give together at least.
    pub fn total(&self, window: Nanos) -> Nanos {
        Nanos::from_wide(self.per_core_wide(window.wide()) * u128::from(self.cores))
    }

    /// The shortest window in which each core gives at least `amount`, or `None` when it never does
    /// (or only beyond three years): the inverse of [`Supply::per_core`].
    pub fn window_for(&self, amount: Nanos) -> Option<Nanos> {
        self.window_for_wide(amount.wide()).map(Nanos::from_wide)
    }

    /// The longest time without any supply, 2(P − Q) and the supply latency.
    pub fn blackout(&self) -> Nanos {
        Nanos::from_wide(2 * self.gap() + self.latency)
    }

    /// Q and P after overheads: the slope of the supply in the long run.
    pub(crate) fn rate(&self) -> (u128, u128) {
        (self.runtime, self.period)
    }

    pub(crate) fn cores(&self) -> u128 {
        u128::from(self.cores)
    }

    /// P − Q: how long a budget that comes as late as can be is waited for.
    pub(crate) fn gap(&self) -> u128 {
        self.period - self.runtime
    }

    pub(crate) fn per_core_wide(&self, window: u128) -> u128 {
        let Some(past_first_gap) = window.checked_sub(self.latency + self.gap()) else {
            return 0;
        };
        let whole_periods = past_first_gap / self.period;
        let into_period = past_first_gap % self.period;
        whole_periods * self.runtime + into_period.saturating_sub(self.gap())
    }

    pub(crate) fn window_for_wide(&self, amount: u128) -> Option<u128> {
        if amount == 0 {
            return Some(0);
        }
        // A core gives no more than the window is long: beyond the horizon is beyond the horizon.
        if self.runtime == 0 || amount > HORIZON {
            return None;
        }
        let whole_periods = (amount - 1) / self.runtime;
        let rest = amount - whole_periods * self.runtime;
        let window = self.latency + 2 * self.gap() + whole_periods * self.period + rest;
        (window <= HORIZON).then_some(window)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn supply(runtime: u64, period: u64, latency: u64) -> Supply {
        let reservation = Reservation::new(Nanos::new(runtime), Nanos::new(period), 1).unwrap();
        let overheads = Overheads {
            supply_latency: Nanos::new(latency),
            ..Overheads::default()
        };
        Supply::new(&reservation, &overheads)
    }

    #[test]
    fn supply_follows_the_steps_of_the_periodic_resource_model() {
        // Shin and Lee's picture with Q = 3, P = 5: nothing for 4, then 3 of every 5.
        let three_of_five = supply(3, 5, 0);
        let steps: Vec<u64> = (0..=16)
            .map(|t| three_of_five.per_core(Nanos::new(t)).get())
            .collect();
        assert_eq!(steps, [0, 0, 0, 0, 0, 1, 2, 3, 3, 3, 4, 5, 6, 6, 6, 7, 8]);
        assert_eq!(three_of_five.blackout(), Nanos::new(4));
    }

    #[test]
    fn a_whole_core_supplies_all_of_every_window() {
        assert_eq!(
            supply(5, 5, 0).per_core(Nanos::new(1_234)),
            Nanos::new(1_234)
        );
        assert_eq!(
            supply(5, 5, 0).window_for(Nanos::new(7)),
            Some(Nanos::new(7))
        );
    }

    #[test]
    fn context_switches_come_out_of_every_budget_and_can_eat_it_up() {
        let reservation = Reservation::new(Nanos::new(100), Nanos::new(1_000), 2).unwrap();
        let switching = |nanos| Overheads {
            context_switch: Nanos::new(nanos),
            ..Overheads::default()
        };
        assert_eq!(
            Supply::new(&reservation, &switching(10)).rate(),
            (80, 1_000)
        );
        let eaten = Supply::new(&reservation, &switching(50));
        assert_eq!(eaten.per_core(Nanos::from_secs(1)), Nanos::ZERO);
        assert_eq!(eaten.window_for(Nanos::new(1)), None);
    }

    #[test]
    fn an_amount_that_takes_longer_than_the_horizon_has_no_window() {
        assert_eq!(
            supply(1, 1_000_000, 0).window_for(Nanos::MAX_PARAMETER),
            None
        );
    }

    /// The least supply over every place in the pattern, counted time unit by time unit: Q early in
    /// the first period, Q late in each one after.
    fn counted(runtime: u64, period: u64, window: u64) -> u64 {
        let pattern: Vec<bool> = (0..window + 2 * period)
            .map(|t| {
                if t < period {
                    t < runtime
                } else {
                    t % period >= period - runtime
                }
            })
            .collect();
        (0..=period)
            .map(|from| {
                pattern[from as usize..(from + window) as usize]
                    .iter()
                    .filter(|&&supplied| supplied)
                    .count()
            })
            .min()
            .unwrap_or(0) as u64
    }

    prop_compose! {
        fn any_supply()(period in 1u64..60)(runtime in 1..=period, period in Just(period), latency in 0u64..20)
            -> (u64, u64, u64) { (runtime, period, latency) }
    }

    proptest! {
        #[test]
        fn supply_equals_what_is_counted_in_the_worst_pattern((runtime, period, _) in any_supply(), window in 0u64..300) {
            prop_assert_eq!(supply(runtime, period, 0).per_core(Nanos::new(window)).get(), counted(runtime, period, window));
        }

        #[test]
        fn supply_grows_with_the_window_and_never_faster_than_time((q, p, l) in any_supply(), window in 0u64..1_000) {
            let now = supply(q, p, l).per_core(Nanos::new(window)).get();
            let then = supply(q, p, l).per_core(Nanos::new(window + 1)).get();
            prop_assert!(now <= then && then <= now + 1);
        }

        #[test]
        fn supply_lies_between_its_linear_bounds((q, p, l) in any_supply(), window in 0u64..1_000) {
            let amount = i128::from(supply(q, p, l).per_core(Nanos::new(window)).get());
            let (q, p, l, t) = (i128::from(q), i128::from(p), i128::from(l), i128::from(window));
            // Q/P·(t − 2(P − Q)) ≤ sbf(t) ≤ Q/P·(t − (P − Q)), both moved by the latency.
            prop_assert!(amount * p >= q * (t - l - 2 * (p - q)));
            prop_assert!(amount * p <= (q * (t - l - (p - q))).max(0));
        }

        #[test]
        fn two_windows_in_a_row_supply_at_least_what_each_one_does((q, p, l) in any_supply(), a in 0u64..300, b in 0u64..300) {
            let of = |window| supply(q, p, l).per_core(Nanos::new(window)).get();
            prop_assert!(of(a + b) >= of(a) + of(b));
        }

        #[test]
        fn more_runtime_never_supplies_less((q, p, l) in any_supply(), window in 0u64..1_000) {
            prop_assume!(q < p);
            let window = Nanos::new(window);
            prop_assert!(supply(q + 1, p, l).per_core(window) >= supply(q, p, l).per_core(window));
        }

        #[test]
        fn the_window_for_an_amount_is_the_shortest_that_supplies_it((q, p, l) in any_supply(), amount in 1u64..500) {
            let supply = supply(q, p, l);
            let window = supply.window_for(Nanos::new(amount)).unwrap();
            prop_assert!(supply.per_core(window).get() >= amount);
            prop_assert!(supply.per_core(window.saturating_sub(Nanos::new(1))).get() < amount);
        }

        #[test]
        fn m_cores_supply_m_times_one(runtime in 1u64..50, cores in 1u32..9, window in 0u64..500) {
            let reservation = Reservation::new(Nanos::new(runtime), Nanos::new(50), cores).unwrap();
            let supply = Supply::new(&reservation, &Overheads::default());
            let window = Nanos::new(window);
            prop_assert_eq!(supply.total(window).get(), u64::from(cores) * supply.per_core(window).get());
        }
    }
}
