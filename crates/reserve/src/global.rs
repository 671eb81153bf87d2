//! Worst-case response times on several cores: global fixed priorities over m equal reservations.
//!
//! The schedulability test of the multiprocessor periodic resource model (Shin, Easwaran and Lee,
//! ECRTS 2008; Easwaran, Shin and Lee, Real-Time Systems 43, 2009), whose published form is for
//! global EDF, with the interference of global fixed priorities: Bertogna, Cirinei and Lipari
//! ("Schedulability analysis of global scheduling algorithms on multiprocessor platforms", IEEE
//! TPDS 20(4), 2009) as a response time (Bertogna and Cirinei, RTSS 2007). Task i is done within
//! the smallest t with
//!
//! sbf(t) ≥ C_i + ⌈ Σ min(W_j(t), t − C_i + 1) / m ⌉   over the more or equally urgent j.
//!
//! Where all rivals are more urgent, at most m − 1 of them bring a job into the window that arrived
//! before it (Guan, Stigge, Yi and Yu, "New response time bounds for fixed priority multiprocessor
//! scheduling", RTSS 2009): the others count with N_j(t), jobs that arrive within, and the m − 1 for
//! which that makes the greatest difference with W_j(t). Release jitter J is part of the responses,
//! which count from the arrivals, and so of W_j; N_j counts what arrived within J before the window.
//! Offsets are left out: any of them is a legal run of tasks without.
//!
//! Why it holds on servers that are not synchronised: while the job is not running, all supply
//! there is goes to rivals; while it runs, at most m·C_i of the m·sbf(t) is lost.
//! `docs/concepts/reservation-analysis.md` has the whole argument. Sufficient, not exact. At most
//! one job per task may be pending, so a deadline beyond the period counts as the period: whoever
//! meets that meets the longer one.

use crate::model::{Demand, Model, STEP_LIMIT};

/// A task that may delay another, and within what time of its arrival it is known to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rival {
    pub demand: Demand,
    pub done_within: u128,
}

/// W_j(t): the most CPU time a rival can use in a window of length `window`: a first job just
/// before it must be done, all later ones as soon as they arrive.
pub(crate) fn workload(rival: &Rival, window: u128) -> u128 {
    let reach = window + rival.done_within.saturating_sub(rival.demand.wcet);
    let whole = reach / rival.demand.period;
    whole * rival.demand.wcet + rival.demand.wcet.min(reach - whole * rival.demand.period)
}

/// N_j(t): the most CPU time that a rival's jobs can use in a window of length `window` in which they
/// are released, the first of them perhaps J after it arrived.
pub(crate) fn workload_within(rival: &Rival, window: u128) -> u128 {
    let reach = window + rival.demand.jitter;
    let whole = reach / rival.demand.period;
    whole * rival.demand.wcet + rival.demand.wcet.min(reach % rival.demand.period)
}

/// How many rivals of `task` may have a job that arrived before the window: it opens when m of them
/// begin to have work all the time up to the arrival of `task`'s job. An equally urgent one does not
/// keep an earlier job of `task` from running meanwhile, so then it opens with the arrival.
fn carry_in(model: &Model, task: usize, rivals: &[Rival]) -> usize {
    let alone = model.levels.iter().any(|level| level == &[task]);
    match usize::try_from(model.supply.cores() - 1) {
        Ok(others) if alone => others.min(rivals.len()),
        _ => rivals.len(),
    }
}

/// What each core must give a job of `task` and its rivals within `window` for the job to be done.
pub(crate) fn demand_per_core(model: &Model, task: usize, rivals: &[Rival], window: u128) -> u128 {
    let wcet = model.demands[task].wcet;
    let most_in_the_way = window.saturating_sub(wcet) + 1;
    let mut within = 0;
    let mut more: Vec<u128> = rivals
        .iter()
        .map(|rival| {
            let least = workload_within(rival, window).min(most_in_the_way);
            within += least;
            let most = workload(rival, window).min(most_in_the_way);
            most.saturating_sub(least)
        })
        .collect();
    more.sort_unstable_by(|a, b| b.cmp(a));
    let carried: u128 = more.iter().take(carry_in(model, task, rivals)).sum();
    wcet + (within + carried).div_ceil(model.supply.cores())
}

/// A window that is surely too short for a job of `task` as long as m rivals can fill it: no fixed
/// point lies below the m-th largest of the workloads that count together. Without this the search
/// would climb through such windows nanosecond by nanosecond.
fn shortest_window(model: &Model, task: usize, rivals: &[Rival], window: u128) -> u128 {
    let wcet = model.demands[task].wcet;
    let cores = usize::try_from(model.supply.cores()).unwrap_or(usize::MAX);
    if cores > rivals.len() {
        return wcet;
    }
    let full = |rival: &Rival| workload(rival, window);
    let mut order: Vec<(u128, &Rival)> = rivals.iter().map(|rival| (full(rival), rival)).collect();
    order.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
    if carry_in(model, task, rivals) == rivals.len() {
        return wcet + order[cores - 1].0;
    }
    // m - 1 count in full, and any other one with what arrives within.
    let with = order.iter().enumerate().map(|(at, (_, rival))| {
        let others = match at < cores - 1 {
            true => order[cores - 1].0,
            false => order[cores - 2].0,
        };
        workload_within(rival, window).min(others)
    });
    wcet + with.max().unwrap_or(0)
}

/// How long after its arrival `task` is done at the latest, or `None` when that is not proven to be
/// before its (constrained) deadline.
pub(crate) fn response(model: &Model, task: usize, rivals: &[Rival]) -> Option<u128> {
    let deadline = model.demands[task].constrained_deadline();
    let jitter = model.demands[task].jitter;
    let mut window = 0;
    for _ in 0..STEP_LIMIT {
        let supplied = model
            .supply
            .window_for_wide(demand_per_core(model, task, rivals, window))?;
        let later = supplied.max(shortest_window(model, task, rivals, window));
        if later + jitter > deadline {
            return None;
        }
        if later <= window {
            return Some(window + jitter);
        }
        window = later;
    }
    None
}

/// The answer for every task: how far it got, in the order of urgency.
pub(crate) struct Answer {
    /// Per task index: its response bound, or `None` when unproven or not analysed.
    pub responses: Vec<Option<u128>>,
    /// The first task that may miss, and the rivals it was analysed with.
    pub first_miss: Option<(usize, Vec<Rival>)>,
}

/// Analyses every task, the most urgent first, up to the first that may miss its deadline: what
/// comes after it could only be said on condition that it does not.
pub(crate) fn analyse(model: &Model) -> Answer {
    let mut responses = vec![None; model.demands.len()];
    for level in &model.levels {
        // Within a level each may delay the other: for all of them the deadline is what is known so
        // far, which holds up to the first miss, and there is none if all of them pass.
        let mut of_level = Vec::with_capacity(level.len());
        for &task in level {
            let rivals = rivals(model, &responses, task);
            match response(model, task, &rivals) {
                Some(response) => of_level.push((task, response)),
                None => {
                    return Answer {
                        responses,
                        first_miss: Some((task, rivals)),
                    };
                }
            }
        }
        for (task, response) in of_level {
            responses[task] = Some(response);
        }
    }
    Answer {
        responses,
        first_miss: None,
    }
}

/// The rivals of `task` with the responses known so far, and their deadlines where none is.
pub(crate) fn rivals(model: &Model, responses: &[Option<u128>], task: usize) -> Vec<Rival> {
    model
        .rivals(task)
        .into_iter()
        .map(|index| {
            let demand = model.demands[index];
            Rival {
                demand,
                done_within: responses[index].unwrap_or_else(|| demand.constrained_deadline()),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// When a task is running if its jobs arrive T and `gaps` apart and each does its C slots within R
    /// of its arrival, in the slots that `keys` puts first; the first one not before it is released.
    fn running(
        (wcet, period, done_within, _): (u64, u64, u64, u64),
        first_released: u64,
        gaps: &[u64],
        keys: &[u64],
    ) -> Vec<bool> {
        let mut slots = vec![false; 400];
        let mut arrival = 0;
        for (job, gap) in gaps.iter().cycle().enumerate() {
            if arrival + done_within > slots.len() as u64 {
                break;
            }
            let released = if job == 0 { first_released } else { 0 };
            let mut within: Vec<u64> = (released..done_within).collect();
            within.sort_by_key(|slot| keys[(job * 7 + *slot as usize) % keys.len()]);
            for slot in within.iter().take(wcet as usize) {
                slots[(arrival + slot) as usize] = true;
            }
            arrival += period + gap;
        }
        slots
    }

    fn rival((wcet, period, done_within, jitter): (u64, u64, u64, u64)) -> Rival {
        let [wcet, period, done_within, jitter] =
            [wcet, period, done_within, jitter].map(u128::from);
        Rival {
            demand: Demand {
                wcet,
                period,
                deadline: period,
                jitter,
                blocking: 0,
                offset: None,
            },
            done_within,
        }
    }

    /// C, T, R and J, with C + J ≤ R ≤ T.
    fn any_rival() -> impl Strategy<Value = (u64, u64, u64, u64)> {
        (1u64..20)
            .prop_flat_map(|period| (1..=period, Just(period)))
            .prop_flat_map(|(done_within, period)| {
                (1..=done_within, Just(period), Just(done_within))
            })
            .prop_flat_map(|(wcet, period, done_within)| {
                let jitter = 0..=done_within - wcet;
                (Just(wcet), Just(period), Just(done_within), jitter)
            })
    }

    proptest! {
        #[test]
        fn no_schedule_puts_more_work_into_a_window_than_is_counted(
            of in any_rival(),
            gaps in vec(prop_oneof![2 => Just(0u64), 1 => 0u64..5], 1..6),
            keys in vec(any::<u64>(), 1..40),
            window in 1usize..80,
        ) {
            let slots = running(of, 0, &gaps, &keys);
            let most = slots.windows(window).map(|slots| slots.iter().filter(|&&runs| runs).count()).max();
            let counted = workload(&rival(of), window as u128);
            prop_assert!(most.unwrap_or(0) as u128 <= counted);
        }

        #[test]
        fn jobs_that_are_released_within_a_window_do_no_more_than_is_counted(
            of in any_rival(),
            gaps in vec(prop_oneof![2 => Just(0u64), 1 => 0u64..5], 1..6),
            keys in vec(any::<u64>(), 1..40),
            window in 1usize..80,
        ) {
            // The first job is released with the window's beginning and as late as it may be, which
            // is the worst.
            let opens = of.3 as usize;
            let slots = running(of, of.3, &gaps, &keys);
            let done = slots[opens..opens + window].iter().filter(|&&runs| runs).count() as u128;
            let rival = rival(of);
            prop_assert!(done <= workload_within(&rival, window as u128));
            prop_assert!(workload_within(&rival, window as u128) <= workload(&rival, window as u128));
        }

        #[test]
        fn the_work_counted_is_done_by_a_late_job_and_prompt_ones_after_it(
            of in any_rival(),
            window in 1u64..80,
        ) {
            let (wcet, period, done_within, _) = of;
            prop_assume!(window >= wcet);
            // The window opens when the first job has just enough time left; every later job runs
            // at once.
            let opens = done_within - wcet;
            let runs = |slot: u64| match slot / period {
                0 => (opens..done_within).contains(&slot),
                _ => slot % period < wcet,
            };
            let done = (opens..opens + window).filter(|&slot| runs(slot)).count() as u128;
            prop_assert_eq!(done, workload(&rival(of), u128::from(window)));
        }
    }
}
