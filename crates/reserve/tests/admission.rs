//! What a node admits is run: random mixes of claims against global EDF of constant bandwidth
//! servers, event by event and exact to the nanosecond.
//!
//! The simulator follows kernel/sched/deadline.c and repeats no formula of the analysis. 2,000 mixes
//! unless `TAKT_ADMISSION_MIXES` says otherwise; the figure of a million is made with
//!
//!     TAKT_ADMISSION_MIXES=1000000 cargo test --release -p takt-reserve --test admission -- --nocapture

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use takt_reserve::admission::{Server, capacities, is_schedulable, tardiness, widest};
use takt_reserve::{Bandwidth, Nanos, Reservation};

/// One thread and its server, in nanoseconds.
#[derive(Clone, Debug)]
struct Thread {
    runtime: u64,
    relative: u64,
    period: u64,
    /// What each job takes, repeated; and how much later than its period the next one comes.
    jobs: Vec<(u64, u64)>,
    offset: u64,
}

/// What the kernel keeps of a server (`struct sched_dl_entity`), and its thread's jobs.
#[derive(Default)]
struct State {
    left: u64,
    deadline: u64,
    throttled: bool,
    /// Arrived and not done: arrival and what is left of it.
    pending: std::collections::VecDeque<(u64, u64)>,
    next_arrival: u64,
    job: usize,
}

/// Runs `threads` on `cores` cores until `end` and returns how late a job was at most: after its
/// arrival and the relative deadline, in nanoseconds.
fn latest(threads: &[Thread], cores: usize, end: u64) -> i64 {
    let mut states: Vec<State> = threads
        .iter()
        .map(|thread| State {
            next_arrival: thread.offset,
            ..State::default()
        })
        .collect();
    let mut now = 0;
    let mut latest = i64::MIN;
    while now < end {
        for (thread, state) in threads.iter().zip(&mut states) {
            replenish(thread, state, now);
            while state.next_arrival <= now {
                let (work, delay) = thread.jobs[state.job % thread.jobs.len()];
                if state.pending.is_empty() {
                    wake(thread, state, now);
                }
                state.pending.push_back((state.next_arrival, work));
                state.next_arrival += thread.period + delay;
                state.job += 1;
            }
        }
        // The m earliest deadlines of those that may run; of equals the later number, as nobody says.
        let mut ready: Vec<usize> = (0..states.len())
            .filter(|&at| !states[at].throttled && !states[at].pending.is_empty())
            .collect();
        ready.sort_by_key(|&at| (states[at].deadline, usize::MAX - at));
        ready.truncate(cores);
        let mut next = end;
        for (thread, state) in threads.iter().zip(&states) {
            next = next.min(state.next_arrival);
            if state.throttled {
                next = next.min(refill(thread, state));
            }
        }
        for &at in &ready {
            let work = states[at].pending[0].1.min(states[at].left);
            next = next.min(now + work);
        }
        for &at in &ready {
            let (state, thread) = (&mut states[at], &threads[at]);
            let ran = next - now;
            state.left -= ran;
            state.pending[0].1 -= ran;
            if state.pending[0].1 == 0 {
                let (arrival, _) = state.pending.pop_front().expect("a job");
                let due = arrival + thread.relative;
                latest = latest.max(next as i64 - due as i64);
            }
            if state.left == 0 {
                state.throttled = true;
            }
        }
        now = next;
    }
    for (thread, state) in threads.iter().zip(&states) {
        for (arrival, _) in &state.pending {
            latest = latest.max(end as i64 - (arrival + thread.relative) as i64);
        }
    }
    latest
}

/// When an exhausted budget comes back: with the next period (`start_dl_timer`).
fn refill(thread: &Thread, state: &State) -> u64 {
    state.deadline - thread.relative + thread.period
}

fn replenish(thread: &Thread, state: &mut State, now: u64) {
    if state.throttled && now >= refill(thread, state) {
        // A whole budget: what was overrun is nothing here, time being exact.
        state.deadline += thread.period;
        if state.deadline < now {
            state.deadline = now + thread.relative;
        }
        state.left = thread.runtime;
        state.throttled = false;
    }
}

/// `update_dl_entity`, `update_dl_revised_wakeup` and `dl_check_constrained_dl`.
fn wake(thread: &Thread, state: &mut State, now: u64) {
    if state.throttled {
        return;
    }
    let implicit = thread.relative == thread.period;
    let fresh = state.deadline == 0;
    let late = fresh || state.deadline < now;
    if late && !fresh && !implicit && now < refill(thread, state) {
        state.throttled = true;
        state.left = 0;
        return;
    }
    let overflows = !late
        && u128::from(state.left) * u128::from(thread.relative)
            > u128::from(state.deadline - now) * u128::from(thread.runtime);
    if overflows && !implicit {
        let wide = u128::from(state.deadline - now) * u128::from(thread.runtime);
        state.left = (wide / u128::from(thread.relative)) as u64;
        if state.left == 0 {
            state.throttled = true;
        }
    } else if late || overflows {
        state.left = thread.runtime;
        state.deadline = now + thread.relative;
    }
}

/// Random numbers that a seed brings back.
struct Dice(ChaCha8Rng);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    fn from(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }
}

/// How a node publishes, and a mix of claims packed into it as the scheduler does, first fit.
struct Mix {
    cores: u32,
    threads: Vec<Thread>,
}

impl Mix {
    fn servers(&self) -> Vec<Server> {
        self.threads
            .iter()
            .map(|thread| {
                let reservation =
                    Reservation::new(Nanos::new(thread.runtime), Nanos::new(thread.period), 1)
                        .expect("a reservation");
                Server::new(reservation, Some(Nanos::new(thread.relative)))
            })
            .collect()
    }

    fn end(&self) -> u64 {
        let longest = self.threads.iter().map(|t| t.period).max();
        longest.unwrap_or(1) * 8
    }
}

fn mix(dice: &mut Dice, guaranteed: bool) -> Mix {
    let cores = dice.from(1, 8) as u32;
    let devices = dice.from(1, u64::from(cores)) as u32;
    let bound = Bandwidth::from_ppm(900_000);
    let mut left = match guaranteed {
        true => {
            let most = match dice.below(2) {
                0 => widest(cores, devices, bound),
                _ => Bandwidth::from_ppm(dice.from(20_000, bound.ppm())),
            };
            let capacities = capacities(cores, devices, most, bound);
            capacities.iter().map(|c| (c.ppm(), most.ppm())).collect()
        }
        false => vec![(bound.ppm(), bound.ppm()); devices as usize],
    };
    let mut threads = Vec::new();
    // Mixes of few wide and many narrow ones, and of one width, are where global EDF is worst.
    let style = dice.below(4);
    let width = dice.from(10_000, 900_000);
    for _ in 0..dice.from(1, 24) {
        let at = dice.below(left.len() as u64) as usize;
        let (room, most) = left[at];
        let ceiling = room.min(most);
        if ceiling < 2_000 {
            continue;
        }
        let density = match style {
            0 => ceiling,
            1 => width.min(ceiling),
            2 => match dice.below(3) {
                0 => ceiling,
                _ => dice.from(1_000, ceiling.min(60_000)),
            },
            _ => dice.from(1_000, ceiling),
        };
        let period = match dice.below(3) {
            0 => 10_000_000,
            1 => dice.from(9_900_000, 10_100_000),
            _ => dice.from(1_000_000, 40_000_000),
        };
        let relative = match guaranteed && dice.below(3) == 0 {
            true => dice.from(period / 4, period),
            false => period,
        };
        let runtime = relative * density / 1_000_000;
        if runtime < 1_024 {
            continue;
        }
        left[at].0 -= (runtime * 1_000_000).div_ceil(relative);
        // With a deadline before the period's end a job must leave something of Q: see per_task.rs.
        let full = runtime - u64::from(relative < period);
        let job = |dice: &mut Dice| match dice.below(4) {
            0 => (dice.from(1, full), dice.below(period)),
            _ => (full, 0),
        };
        let jobs = match dice.below(3) {
            0 => (0..4).map(|_| job(dice)).collect(),
            _ => vec![(full, 0)],
        };
        let offset = match dice.below(2) {
            0 => 0,
            _ => dice.below(period),
        };
        threads.push(Thread {
            runtime,
            relative,
            period,
            jobs,
            offset,
        });
    }
    Mix { cores, threads }
}

fn mixes() -> u64 {
    std::env::var("TAKT_ADMISSION_MIXES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2_000)
}

#[test]
fn no_mix_that_a_node_guarantees_ever_misses() {
    let mut threads = 0;
    let mut closest = i64::MIN;
    for seed in 0..mixes() {
        let mix = mix(&mut Dice(ChaCha8Rng::seed_from_u64(seed)), true);
        assert!(
            is_schedulable(mix.cores, &mix.servers()),
            "seed {seed}: {:?}",
            mix.threads
        );
        let late = latest(&mix.threads, mix.cores as usize, mix.end());
        assert!(
            late <= 0,
            "seed {seed}: late by {late} ns on {} cores: {:?}",
            mix.cores,
            mix.threads
        );
        threads += mix.threads.len();
        closest = closest.max(late);
    }
    println!(
        "guaranteed: {} mixes, {threads} threads: none was late, the closest was done {} ns before its deadline",
        mixes(),
        -closest
    );
}

#[test]
fn no_mix_that_a_node_admits_softly_is_later_than_its_bound() {
    let (mut late_mixes, mut worst, mut nearest) = (0u64, 0, 0.0f64);
    for seed in 0..mixes() {
        let mix = mix(&mut Dice(ChaCha8Rng::seed_from_u64(!seed)), false);
        let bound = tardiness(mix.cores, &mix.servers()).expect("a bound");
        let late = latest(&mix.threads, mix.cores as usize, mix.end());
        assert!(
            late <= bound.get() as i64,
            "seed {}: late by {late} ns, more than {bound}, on {} cores: {:?}",
            !seed,
            mix.cores,
            mix.threads
        );
        if late > 0 {
            late_mixes += 1;
            worst = worst.max(late);
            nearest = nearest.max(late as f64 / bound.get() as f64);
        }
    }
    println!(
        "soft: {} mixes: {late_mixes} were late, by at most {worst} ns and {:.0} % of the bound",
        mixes(),
        100.0 * nearest
    );
}

#[test]
fn what_the_kernel_admits_by_its_sum_is_late() {
    let thread = |runtime: u64, period: u64| Thread {
        runtime,
        relative: period,
        period,
        jobs: vec![(runtime, 0)],
        offset: 0,
    };
    let threads = [
        thread(4_500_000, 10_000_000),
        thread(4_500_000, 10_000_000),
        thread(9_000_000, 10_001_000),
    ];
    assert_eq!(latest(&threads, 2, 100_000_000), 3_499_000);
}
