//! What the analysis accepts never misses a deadline when it is run, slot by slot, on the worst
//! supply that can be thought of.

mod simulator;

use proptest::collection::vec;
use proptest::prelude::*;
use simulator::{
    AwakeServers, Cbs, PeriodicServers, Place, Release, SLOT, SlotTask, Supply, releases,
    reservation, run, task_set, worst_releases,
};
use takt_reserve::{
    Constraints, Nanos, Overheads, Periods, TaskSet, Verdict, check, own_response, plan,
    plan_per_task,
};

/// Long enough for every phase between servers and tasks of these sizes to have come by.
const END: u64 = 600;

/// What varies from run to run.
#[derive(Clone, Debug)]
struct Scene {
    offsets: Vec<u64>,
    delays: Vec<Vec<u64>>,
    late: Vec<Vec<u64>>,
    phases: Vec<u64>,
    places: Vec<Vec<Place>>,
    unfair: bool,
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        Just(Place::Early),
        Just(Place::Late),
        vec(any::<u64>(), 12).prop_map(Place::Scattered)
    ]
}

fn scene(tasks: usize, cores: usize) -> impl Strategy<Value = Scene> {
    (
        vec(0u64..40, tasks),
        vec(vec(prop_oneof![3 => Just(0u64), 1 => 0u64..6], 1..8), tasks),
        vec(
            vec(prop_oneof![Just(0u64), Just(u64::MAX), 0u64..12], 1..8),
            tasks,
        ),
        vec(0u64..12, cores),
        vec(vec(place(), 1..6), cores),
        any::<bool>(),
    )
        .prop_map(|(offsets, delays, late, phases, places, unfair)| Scene {
            offsets,
            delays,
            late,
            phases,
            places,
            unfair,
        })
}

impl Scene {
    fn releases(&self, tasks: &[SlotTask]) -> Vec<Vec<Release>> {
        let tasks = tasks.iter().enumerate();
        tasks
            .map(|(number, task)| self.releases_of(number, task, END))
            .collect()
    }

    /// Tasks with an offset keep to it.
    fn releases_of(&self, number: usize, task: &SlotTask, end: u64) -> Vec<Release> {
        let (offset, delays) = match task.offset {
            Some(offset) => (offset, &[][..]),
            None => (self.offsets[number], &self.delays[number][..]),
        };
        releases(task, offset, delays, &self.late[number], end)
    }

    fn servers(&self, runtime: u64, period: u64, cores: usize) -> PeriodicServers {
        let servers = self
            .phases
            .iter()
            .copied()
            .zip(self.places.iter().cloned())
            .take(cores)
            .collect();
        PeriodicServers {
            runtime,
            period,
            servers,
        }
    }
}

/// Tasks that use about `share` percent of a core together, with deadlines up to `beyond` times
/// their periods.
fn tasks(
    count: std::ops::RangeInclusive<usize>,
    share: u64,
    beyond: u64,
) -> impl Strategy<Value = Vec<SlotTask>> {
    vec((4u64..24, 1u64..=100, 0u64..=100, 1u8..=4), count).prop_map(move |raw| {
        let fair = share / raw.len() as u64;
        let slot_task = |&(period, size, later, priority): &(u64, u64, u64, u8)| {
            let wcet = (period * fair * size / 5_000).clamp(1, period);
            let deadline = wcet + (beyond * period - wcet) * later.max(30) / 100;
            SlotTask {
                wcet,
                period,
                deadline,
                priority,
                jitter: 0,
                offset: None,
                section: 0,
            }
        };
        raw.iter().map(slot_task).collect()
    })
}

/// The same tasks, some released up to half a period late, some with an offset and a period of which
/// 24 slots are a multiple; and with sections, if `sections`, that others do not interrupt.
fn varied(
    tasks: impl Strategy<Value = Vec<SlotTask>>,
    sections: bool,
) -> impl Strategy<Value = Vec<SlotTask>> {
    let more = (
        prop_oneof![Just(0u64), 0u64..=100],
        proptest::option::of(0u64..24),
        any::<bool>(),
    );
    (tasks, vec(more, 6)).prop_map(move |(mut tasks, more)| {
        for (task, (late, offset, whole)) in tasks.iter_mut().zip(more) {
            if let Some(offset) = offset {
                let fitting = [4, 6, 8, 12, 24].into_iter();
                let period = fitting
                    .min_by_key(|period: &u64| period.abs_diff(task.period))
                    .unwrap_or(24);
                task.deadline = (task.deadline * period / task.period).max(task.wcet);
                task.period = period.max(task.wcet);
                task.offset = Some(offset % task.period);
            }
            task.jitter = task.period * late / 200;
            task.section = if sections && whole { task.wcet } else { 0 };
        }
        let longest = tasks.iter().map(|task| task.section).max().unwrap_or(0);
        for task in &mut tasks {
            task.deadline = task.deadline.max(task.wcet + task.jitter + longest);
        }
        tasks
    })
}

/// How often the pattern of all tasks with an offset comes by.
const PATTERN: u64 = 24;

/// Runs `tasks` in every worst window there may be, on the worst supply, and returns each task's worst
/// response, in nanoseconds.
fn worst_responses(tasks: &[SlotTask], runtime: u64, period: u64) -> Vec<u64> {
    let mut worst = vec![0; tasks.len()];
    for start in 0..PATTERN {
        let together: Vec<_> = tasks
            .iter()
            .map(|task| worst_releases(task, start, END))
            .collect();
        let mut supply = PeriodicServers::worst(runtime, period, 1);
        let responses = run(tasks, &together, &mut supply, END, false);
        for (worst, response) in worst.iter_mut().zip(responses) {
            *worst = (*worst).max(response * SLOT);
        }
    }
    worst
}

/// The smallest runtime that the analysis accepts: the one that is most likely to be wrong.
fn least_accepted(set: &TaskSet, period: u64, cores: u32) -> Option<(u64, Verdict)> {
    (1..=period)
        .map(|runtime| {
            (
                runtime,
                check(
                    set,
                    &reservation(runtime, period, cores),
                    &Overheads::default(),
                ),
            )
        })
        .find(|(_, verdict)| verdict.is_schedulable())
}

fn bounds(verdict: &Verdict) -> Vec<u64> {
    verdict
        .tasks()
        .iter()
        .map(|task| {
            task.outcome
                .response()
                .expect("a bound for every accepted task")
                .get()
        })
        .collect()
}

fn assert_within(responses: &[u64], bounds: &[u64]) -> Result<(), TestCaseError> {
    for (task, (&response, &bound)) in responses.iter().zip(bounds).enumerate() {
        prop_assert!(
            response * SLOT <= bound,
            "t{task}: {response} slots, bound {bound}ns"
        );
    }
    Ok(())
}

proptest! {
    #[test]
    fn on_one_core_no_run_exceeds_the_bounds(
        tasks in varied(tasks(1..=4, 50, 2), true),
        period in 2u64..12,
        scenes in vec(scene(4, 1), 8),
    ) {
        let accepted = least_accepted(&task_set(&tasks), period, 1);
        prop_assume!(accepted.is_some());
        let (runtime, verdict) = accepted.unwrap();
        for scene in &scenes {
            let mut servers = scene.servers(runtime, period, 1);
            assert_within(&run(&tasks, &scene.releases(&tasks), &mut servers, END, scene.unfair), &bounds(&verdict))?;
        }
    }

    #[test]
    fn on_one_core_the_bounds_are_reached_when_all_begins_at_the_worst_instant(
        mut tasks in varied(tasks(1..=4, 50, 2), false),
        period in 2u64..12,
    ) {
        // Equally urgent tasks are bounded together: only distinct priorities have exact bounds.
        for (task, priority) in tasks.iter_mut().zip(1..) {
            task.priority = priority;
        }
        let accepted = least_accepted(&task_set(&tasks), period, 1);
        prop_assume!(accepted.is_some());
        let (runtime, verdict) = accepted.unwrap();
        prop_assert_eq!(worst_responses(&tasks, runtime, period), bounds(&verdict));
    }

    #[test]
    fn on_one_core_what_is_refused_for_lack_of_supply_does_miss_at_the_worst_instant(
        mut tasks in tasks(1..=4, 50, 2),
        period in 2u64..12,
    ) {
        for (task, priority) in tasks.iter_mut().zip(1..) {
            task.priority = priority;
        }
        let accepted = least_accepted(&task_set(&tasks), period, 1);
        prop_assume!(accepted.as_ref().is_some_and(|(runtime, _)| *runtime > 1));
        let runtime = accepted.unwrap().0 - 1;
        let verdict = check(&task_set(&tasks), &reservation(runtime, period, 1), &Overheads::default());
        let failure = verdict.failure().expect("refused");
        // A reservation that is used up entirely has busy windows without end: refused, though
        // nothing may be late.
        prop_assume!(failure.demand > failure.supply);
        let end = failure.instant.get() / SLOT + 1;
        // An overload that builds up slowly takes too long to wait for.
        prop_assume!(end < 4 * END);
        let together: Vec<_> = tasks.iter().map(|task| worst_releases(task, 0, end)).collect();
        let mut supply = PeriodicServers::worst(runtime, period, 1);
        let responses = run(&tasks, &together, &mut supply, end, false);
        prop_assert!(responses[failure.task] > tasks[failure.task].deadline);
    }

    #[test]
    fn on_a_constant_bandwidth_server_and_a_hostile_host_no_run_exceeds_the_bounds(
        tasks in varied(tasks(1..=4, 50, 2), true),
        period in 2u64..12,
        hosts in vec(vec(any::<bool>(), 1..60), 8),
        scenes in vec(scene(4, 1), 8),
    ) {
        let accepted = least_accepted(&task_set(&tasks), period, 1);
        prop_assume!(accepted.is_some());
        let (runtime, verdict) = accepted.unwrap();
        for (scene, host) in scenes.iter().zip(hosts) {
            let mut server = Cbs::new(runtime, period, host);
            assert_within(&run(&tasks, &scene.releases(&tasks), &mut server, END, scene.unfair), &bounds(&verdict))?;
        }
    }

    #[test]
    fn alone_in_a_constant_bandwidth_server_a_task_keeps_the_bound_of_its_own(
        task in varied(tasks(1..=1, 60, 2), false),
        (runtime, period) in (1u64..12).prop_flat_map(|period| (1..=period, Just(period))),
        hosts in vec(vec(any::<bool>(), 1..60), 8),
        scenes in vec(scene(1, 1), 8),
    ) {
        let bound = own_response(&task_set(&task).tasks()[0], &reservation(runtime, period, 1), &Overheads::default());
        prop_assume!(bound.is_some());
        for (scene, host) in scenes.iter().zip(hosts) {
            let mut server = Cbs::new(runtime, period, host);
            let responses = run(&task, &scene.releases(&task), &mut server, END, false);
            assert_within(&responses, &[bound.unwrap().get()])?;
        }
    }

    #[test]
    fn a_planned_reservation_with_a_deadline_keeps_it_on_a_hostile_host(
        task in varied(tasks(1..=1, 60, 1), false),
        hosts in vec(vec(any::<bool>(), 1..60), 8),
        scenes in vec(scene(1, 1), 8),
    ) {
        // Fifty times as long, because the kernel takes no period below 100 us.
        let long = SlotTask {
            wcet: 50 * task[0].wcet,
            period: 50 * task[0].period,
            deadline: 50 * task[0].deadline,
            jitter: 50 * task[0].jitter,
            offset: None,
            ..task[0]
        };
        let constraints = Constraints { granularity: Nanos::new(SLOT), deadlines: true, ..Constraints::default() };
        let planned = plan_per_task(&task_set(&[long]), &constraints);
        prop_assume!(planned.is_ok());
        let own = &planned.unwrap().tasks[0];
        let slots = |time: Nanos| time.get() / SLOT;
        let period = slots(own.reservation.period());
        let deadline = own.deadline.map_or(period, slots);
        prop_assert!(deadline + long.jitter <= long.deadline && period + long.jitter <= long.period);
        prop_assert_eq!(own.deadline.is_some(), deadline < period);
        let end = 12 * long.period;
        for (scene, host) in scenes.iter().zip(hosts) {
            let releases = vec![scene.releases_of(0, &long, end)];
            let mut server = Cbs::with_deadline(slots(own.reservation.runtime()), deadline, period, host);
            // A job that the end cuts off counts with its age, which is less.
            let responses = run(&[long], &releases, &mut server, end, false);
            assert_within(&responses, &[own.response.get()])?;
        }
    }

    #[test]
    fn on_several_cores_no_run_exceeds_the_bounds(
        tasks in varied(tasks(2..=6, 90, 1), false),
        cores in 2u32..=3,
        period in 2u64..12,
        scenes in vec(scene(6, 3), 8),
    ) {
        let accepted = least_accepted(&task_set(&tasks), period, cores);
        prop_assume!(accepted.is_some());
        let (runtime, verdict) = accepted.unwrap();
        for scene in &scenes {
            let mut scattered = scene.servers(runtime, period, cores as usize);
            let mut worst = PeriodicServers::worst(runtime, period, cores as usize);
            let supplies: [&mut dyn Supply; 2] = [&mut scattered, &mut worst];
            for supply in supplies {
                assert_within(&run(&tasks, &scene.releases(&tasks), supply, END, scene.unfair), &bounds(&verdict))?;
            }
        }
    }

    #[test]
    fn on_several_constant_bandwidth_servers_that_never_sleep_no_run_exceeds_the_bounds(
        tasks in varied(tasks(2..=6, 90, 1), false),
        cores in 2u32..=3,
        period in 2u64..12,
        hosts in vec(vec(vec(any::<bool>(), 1..60), 3), 8),
        scenes in vec(scene(6, 3), 8),
    ) {
        let accepted = least_accepted(&task_set(&tasks), period, cores);
        prop_assume!(accepted.is_some());
        let (runtime, verdict) = accepted.unwrap();
        for (scene, hosts) in scenes.iter().zip(hosts) {
            let servers = hosts.into_iter().take(cores as usize).map(|host| Cbs::new(runtime, period, host));
            let mut servers = AwakeServers(servers.collect());
            assert_within(&run(&tasks, &scene.releases(&tasks), &mut servers, END, scene.unfair), &bounds(&verdict))?;
        }
    }

    #[test]
    fn a_plan_is_accepted_minimal_and_never_misses(
        tasks in varied(tasks(1..=4, 60, 1), true),
        period in 4u64..12,
        max_cores in 1u32..=3,
        scenes in vec(scene(4, 3), 4),
    ) {
        let set = task_set(&tasks);
        let granularity = takt_reserve::Nanos::new(SLOT / 4);
        let constraints = Constraints {
            periods: Periods::Listed(vec![reservation(1, period, 1).period(), reservation(1, period * 2, 1).period()]),
            max_cores,
            granularity,
            ..Constraints::default()
        };
        let plan = plan(&set, &constraints);
        prop_assume!(plan.is_ok());
        let plan = plan.unwrap();
        for alternative in &plan.alternatives {
            let of = &alternative.reservation;
            prop_assert!(check(&set, of, &Overheads::default()).is_schedulable());
            prop_assert!(of.cores() <= max_cores && of.core_bandwidth() <= constraints.core_bound);
            prop_assert!(of.cmp_total_bandwidth(&plan.reservation).is_ge());
            // One granule less is too little, or less than the kernel takes.
            let less = takt_reserve::Reservation::new(of.runtime().saturating_sub(granularity), of.period(), of.cores());
            let less = less.expect("a granule less is still some");
            let too_short = less.runtime() < takt_reserve::Reservation::KERNEL_MIN_RUNTIME;
            prop_assert!(too_short || !check(&set, &less, &Overheads::default()).is_schedulable());
        }
        // Whole slots from here on: rounding up the runtime supplies no less.
        let (runtime, period) = (plan.reservation.runtime().get().div_ceil(SLOT), plan.reservation.period().get() / SLOT);
        let cores = plan.reservation.cores() as usize;
        for scene in &scenes {
            let mut servers = scene.servers(runtime, period, cores);
            let responses = run(&tasks, &scene.releases(&tasks), &mut servers, END, scene.unfair);
            for (response, task) in responses.iter().zip(&tasks) {
                prop_assert!(*response <= task.deadline);
            }
        }
    }
}
