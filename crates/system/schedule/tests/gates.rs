//! Questions about gates, answered beside a scan of every nanosecond.

use std::sync::Arc;

use proptest::prelude::*;
use takt_schedule::{GateEntry, GateList, GateMask, Gates, Schedule};
use takt_time::{TaiTime, TrafficClass};

const NOW: i64 = 5_000;
/// Far enough for everything that two short cycles can show.
const SCAN: i64 = 600;

fn schedule() -> impl Strategy<Value = Schedule> {
    let entry = (any::<u8>(), 1u32..25)
        .prop_map(|(gates, interval)| GateEntry::new(GateMask::from_bits(gates), interval));
    (
        4_800i64..5_150,
        1u64..80,
        prop_oneof![Just(0u64), 0u64..90],
        prop::collection::vec(entry, 1..8),
    )
        .prop_map(|(base, cycle, extension, entries)| Schedule {
            base_time: TaiTime::from_nanos(base),
            cycle_time_ns: cycle,
            cycle_time_extension_ns: extension,
            entries,
            ..Schedule::default()
        })
}

/// Gates with a list, and perhaps a change ahead.
fn gates() -> impl Strategy<Value = Gates> {
    (schedule(), prop::option::of(schedule()), any::<u8>()).prop_map(|(first, second, initial)| {
        let mut gates = Gates::new(GateMask::from_bits(initial));
        let now = TaiTime::from_nanos(NOW);
        gates.install(Arc::new(GateList::new(&first).unwrap()), at(4_700));
        gates.advance(now);
        if let Some(second) = second {
            gates.install(Arc::new(GateList::new(&second).unwrap()), now);
        }
        gates
    })
}

fn at(t: i64) -> TaiTime {
    TaiTime::from_nanos(t)
}

fn class() -> impl Strategy<Value = TrafficClass> {
    (0u8..8).prop_map(|number| TrafficClass::new(number).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_next_opening_and_closing_are_the_first_ones(
        gates in gates(),
        class in class(),
        from in NOW..NOW + 300,
    ) {
        let open = |t: i64| gates.state(at(t)).is_open(class);
        let scan = |wanted: bool| (from..from + SCAN).find(|t| open(*t) == wanted).map(at);
        prop_assert_eq!(gates.next_open(class, at(from)), scan(true));
        prop_assert_eq!(gates.next_closed(class, at(from)), scan(false));
        let stays = scan(false).map_or(u64::MAX, |t| (t.as_nanos() - from) as u64);
        prop_assert_eq!(gates.open_ns(class, at(from)), stays);
    }

    #[test]
    fn a_frame_starts_at_the_first_instant_from_which_its_gate_stays_open_long_enough(
        gates in gates(),
        class in class(),
        from in NOW..NOW + 300,
        duration in 0i64..60,
    ) {
        let open: Vec<bool> =
            (from..from + SCAN + 60).map(|t| gates.state(at(t)).is_open(class)).collect();
        let fits = |start: usize| {
            open[start] && open[start..start + duration as usize].iter().all(|open| *open)
        };
        let expected = (0..SCAN as usize).find(|start| fits(*start)).map(|t| at(from + t as i64));
        prop_assert_eq!(gates.open_for(class, at(from), duration as u64), expected);
        prop_assert_eq!(gates.has_window(class, at(from), duration as u64), expected.is_some());
    }

    #[test]
    fn what_was_asked_before_does_not_change_an_answer(
        mut gates in gates(),
        questions in prop::collection::vec((class(), NOW - 50..NOW + 300, 0u64..60), 1..40),
    ) {
        for (number, (class, t, duration)) in questions.into_iter().enumerate() {
            if number % 5 == 4 {
                gates.advance(at(t));
            }
            let fresh = gates.clone();
            fresh.next_open(class, at(NOW + 10_000 + number as i64));
            prop_assert_eq!(gates.next_open(class, at(t)), fresh.next_open(class, at(t)));
            prop_assert_eq!(gates.next_closed(class, at(t)), fresh.next_closed(class, at(t)));
            prop_assert_eq!(
                gates.open_for(class, at(t), duration),
                fresh.open_for(class, at(t), duration)
            );
        }
    }

    #[test]
    fn open_time_is_the_sum_of_open_nanoseconds(
        gates in gates(),
        class in class(),
        from in NOW..NOW + 300,
        length in 0i64..400,
    ) {
        let expected = (from..from + length)
            .filter(|t| gates.state(at(*t)).is_open(class))
            .count();
        prop_assert_eq!(
            gates.open_ns_between(class, at(from), at(from + length)),
            expected as u64
        );
    }

    #[test]
    fn over_a_change_lists_and_cycles_follow_each_other_without_gap_or_overlap(
        first in schedule(),
        second in schedule(),
        asked in NOW..NOW + 200,
    ) {
        let mut gates = Gates::new(GateMask::ALL);
        gates.install(Arc::new(GateList::new(&first).unwrap()), at(4_700));
        gates.advance(at(asked));
        let second_list = Arc::new(GateList::new(&second).unwrap());
        let change = gates.install(second_list, at(asked)).unwrap().as_nanos();
        let running = gates.status(at(asked)).oper.map(|list| list.base_time());
        let mut cycle = gates.cycle(at(asked));
        for t in asked..change + SCAN {
            let (list, schedule) = match t < change {
                true => (running, &first),
                false => (Some(second.base_time), &second),
            };
            prop_assert_eq!(gates.list(at(t)).map(GateList::base_time), list, "at {}", t);
            let now = gates.cycle(at(t));
            prop_assert_eq!(now.is_some(), list.is_some());
            let Some(started) = now.map(|cycle| cycle.start.as_nanos()) else {
                continue;
            };
            prop_assert!(
                now == cycle || started == t,
                "a cycle that began at {} begins to count at {}",
                started,
                t
            );
            let longest = schedule.cycle_time_ns + schedule.cycle_time_extension_ns;
            prop_assert!(t - started < longest as i64, "at {} since {}", t, started);
            cycle = now;
        }
    }

    #[test]
    fn events_are_where_states_may_change_and_nowhere_else(gates in gates(), from in NOW..NOW + 300) {
        let next = gates.next_event(at(from)).map_or(from + SCAN, TaiTime::as_nanos);
        prop_assert!(next > from);
        for t in from..next.min(from + SCAN) {
            prop_assert_eq!(gates.state(at(t)), gates.state(at(from)));
        }
    }

    #[test]
    fn no_instant_and_no_duration_makes_a_question_fail(
        gates in gates(),
        class in class(),
        t in prop_oneof![any::<i64>(), Just(i64::MIN), Just(i64::MAX)],
        to in any::<i64>(),
        duration in any::<u64>(),
    ) {
        let start = gates.open_for(class, at(t), duration);
        let open = gates.next_open(class, at(t));
        let closed = gates.next_closed(class, at(t));
        // Instants after 2116 count as the last one before.
        if t < 1 << 61 {
            prop_assert!(start.is_none_or(|t| gates.state(t).is_open(class)));
            prop_assert!(open.is_none_or(|t| gates.state(t).is_open(class)));
            prop_assert!(closed.is_none_or(|t| !gates.state(t).is_open(class)));
        }
        gates.open_ns_between(class, at(t), at(to));
        gates.next_event(at(t));
        gates.cycle(at(t));
        gates.open_ns(class, at(t));
    }

    #[test]
    fn a_frame_may_begin_where_the_gate_stays_open_until_behind_its_end_and_nowhere_else(
        schedule in schedule(),
        class in class(),
        lasting in 0i64..40,
    ) {
        let list = Arc::new(GateList::new(&schedule).unwrap());
        let mut gates = Gates::new(GateMask::ALL);
        gates.install(Arc::clone(&list), at(NOW));
        let begin = schedule.base_time.as_nanos() + 1_000 * schedule.cycle_time_ns as i64;
        gates.advance(at(begin));
        let parts = list.may_begin(class, lasting as u64);
        prop_assert!(parts.iter().all(|(_, ns)| *ns > 0));
        let told = parts.iter().flat_map(|(may, ns)| (0..*ns).map(|_| *may));
        let told: Vec<bool> = told.collect();
        prop_assert_eq!(told.len() as u64, schedule.cycle_time_ns);
        for (t, told) in (begin..).zip(told) {
            let stays_open = (t..=t + lasting).all(|t| gates.state(at(t)).is_open(class));
            prop_assert_eq!(told, stays_open, "{} ns into the cycle", t - begin);
        }
    }

    #[test]
    fn after_a_step_the_gates_are_those_of_a_port_that_never_stepped(
        schedule in schedule(),
        steps in prop::collection::vec(-2_000i64..2_000, 1..6),
    ) {
        let list = Arc::new(GateList::new(&schedule).unwrap());
        let mut stepped = Gates::new(GateMask::ALL);
        stepped.install(Arc::clone(&list), at(NOW));
        stepped.advance(at(NOW + 1_000));
        let mut t = NOW + 1_000;
        for step in steps {
            t += step;
            stepped.advance(at(t));
            let offset = (t - schedule.base_time.as_nanos()).rem_euclid(schedule.cycle_time_ns as i64);
            let mut end = 0;
            let entry = schedule.entries.iter().find(|entry| {
                end += i64::from(entry.interval_ns);
                offset < end
            });
            let expected = entry.or(schedule.entries.last()).unwrap().gates;
            prop_assert_eq!(stepped.state(at(t)), expected);
        }
        prop_assert_eq!(stepped.status(at(t)).config_changes, 1);
    }
}
