//! The analysis against the conditions that the compositional analysis tools of the University of Pennsylvania
//! (CARTS) implement, written out here from the papers, and against their standing example.
//!
//! - Periodic resource model: Shin and Lee, "Periodic resource model for compositional real-time
//!   guarantees", RTSS 2003: the supply bound function (equation 2), and the exact conditions of a
//!   periodic task set under rate-monotonic and EDF scheduling over it.
//! - Multiprocessor periodic resource model: Shin, Easwaran and Lee, "Hierarchical scheduling framework
//!   for virtual clustering of multiprocessors", ECRTS 2008; Easwaran, Shin and Lee, Real-Time Systems
//!   43(1), 2009: its supply bound function.
//!
//! Times are whole nanoseconds; of the example, one is a tenth of the papers' unit.

use proptest::prelude::*;
use takt_reserve::{Nanos, Overheads, Reservation, Supply, Task, TaskSet, check};

/// sbf of Γ = (Π, Θ): Θ in every Π, after two gaps without.
fn sbf(period: u64, budget: u64, t: u64) -> u64 {
    let Some(t) = t.checked_sub(period - budget) else {
        return 0;
    };
    (t / period) * budget + (t % period).saturating_sub(period - budget)
}

/// sbf of μ = (Π, Θ, m'): α of m' processors' time in every Π is parallel, β is what remains.
fn sbf_mpr(period: u64, budget: u64, processors: u64, t: u64) -> u64 {
    let (even, rest) = (budget / processors, budget % processors);
    let Some(t) = t.checked_sub(period - budget.div_ceil(processors)) else {
        return 0;
    };
    let (periods, x) = (t / period, t % period);
    let gives = (processors * x).saturating_sub(processors * period - budget);
    let late = match x > period - even {
        true if rest > 0 => processors - rest,
        _ => 0,
    };
    periods * budget + gives.saturating_sub(late)
}

/// Rate-monotonic over Γ: each task has an instant within its period by which the supply covers it and all
/// that is more, or equally, urgent. Tasks are (T, C), by their periods.
fn rm_over(period: u64, budget: u64, tasks: &[(u64, u64)]) -> bool {
    (0..tasks.len()).all(|i| {
        (1..=tasks[i].0).any(|t| {
            let others = tasks.iter().enumerate();
            let rivals = others.filter(|&(j, task)| j != i && task.0 <= tasks[i].0);
            let demand: u64 = rivals.map(|(_, task)| t.div_ceil(task.0) * task.1).sum();
            demand + tasks[i].1 <= sbf(period, budget, t)
        })
    })
}

/// EDF over Γ: dbf(t) ≤ sbf(t) for all t up to twice the hyperperiod.
fn edf_over(period: u64, budget: u64, tasks: &[(u64, u64)]) -> bool {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let hyperperiod = tasks.iter().fold(1, |all, t| all / gcd(all, t.0) * t.0);
    (1..=2 * hyperperiod).all(|t| {
        let demand: u64 = tasks.iter().map(|task| (t / task.0) * task.1).sum();
        demand <= sbf(period, budget, t)
    })
}

fn set(tasks: &[(u64, u64)]) -> TaskSet {
    let task = |(place, &(period, wcet)): (usize, &(u64, u64))| {
        let name = format!("t{place}");
        Task::implicit(&name, Nanos::new(wcet), Nanos::new(period)).expect("a task")
    };
    TaskSet::new(tasks.iter().enumerate().map(task).collect()).expect("a set")
}

/// The workload {T(50, 7), T(75, 9)} of the papers on the periodic resource model, for Π = 10: under
/// rate-monotonic scheduling Θ = 3.5, under EDF 2.8. Inside a reservation Linux has fixed priorities alone, so
/// that the former is what is planned; the latter is what EDF inside would save.
#[test]
fn the_standing_example_needs_what_the_papers_say() {
    const TENTHS: u64 = 10;
    let tasks = [(50 * TENTHS, 7 * TENTHS), (75 * TENTHS, 9 * TENTHS)];
    let least = |over: fn(u64, u64, &[(u64, u64)]) -> bool| {
        (1..=10 * TENTHS).find(|&budget| over(10 * TENTHS, budget, &tasks))
    };
    assert_eq!(least(rm_over), Some(35));
    assert_eq!(least(edf_over), Some(28));
    let suffices = |budget: &u64| {
        let one = Reservation::new(Nanos::new(*budget), Nanos::new(10 * TENTHS), 1);
        let one = one.expect("a reservation");
        check(&set(&tasks), &one, &Overheads::default()).is_schedulable()
    };
    assert_eq!((1..=10 * TENTHS).find(suffices), Some(35));
}

/// Where Θ is m times a budget, m servers have it each, and the model for several processors gives what m of the
/// model for one do: at least that is counted on here, and no more.
#[test]
fn equal_servers_give_what_the_model_for_several_processors_says() {
    for (period, runtime, cores) in [(10, 3, 1), (10, 3, 2), (7, 7, 3), (20, 1, 4)] {
        let reservation = Reservation::new(Nanos::new(runtime), Nanos::new(period), cores);
        let supply = Supply::new(&reservation.expect("one"), &Overheads::default());
        let all = u64::from(cores);
        for t in 0..5 * period {
            assert_eq!(
                supply.total(Nanos::new(t)),
                Nanos::new(sbf_mpr(period, all * runtime, all, t)),
                "{runtime} every {period} on {cores} by {t}"
            );
        }
    }
}

/// A Θ that is no multiple of m' is the one thing of that model which a reservation cannot say: it is rounded up to
/// equal servers, and those give no less.
#[test]
fn a_budget_that_is_no_multiple_of_the_cores_is_rounded_up_to_equal_servers() {
    for (period, budget, cores) in [(10, 7, 2), (10, 11, 4), (9, 25, 3)] {
        let runtime = Nanos::new(u64::div_ceil(budget, cores));
        let reservation = Reservation::new(runtime, Nanos::new(period), cores as u32);
        let supply = Supply::new(&reservation.expect("one"), &Overheads::default());
        for t in 0..5 * period {
            let published = sbf_mpr(period, budget, cores, t);
            assert!(supply.total(Nanos::new(t)) >= Nanos::new(published), "{t}");
        }
    }
}

proptest! {
    /// On one core, with deadlines at the end of the periods, the analysis here says of every set what the published
    /// exact condition does.
    #[test]
    fn one_core_is_judged_as_by_the_published_condition(
        drawn in prop::collection::vec((4u64..60, 1u64..8), 1..5), period in 2u64..20, share in 1u64..20,
    ) {
        let budget = share.min(period);
        let mut tasks: Vec<(u64, u64)> = drawn.iter().map(|&(period, wcet)| (period, wcet.min(period))).collect();
        tasks.sort_unstable();
        let reservation = Reservation::new(Nanos::new(budget), Nanos::new(period), 1).expect("one");
        let verdict = check(&set(&tasks), &reservation, &Overheads::default());
        prop_assert_eq!(verdict.is_schedulable(), rm_over(period, budget, &tasks), "{}", verdict.reason());
    }
}
