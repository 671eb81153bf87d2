use proptest::prelude::*;

use super::*;
use crate::gate::GateMask;
use crate::schedule::GateEntry;

const GIGABIT: Link = Link::ethernet(1_000_000_000);

fn class(number: u8) -> TrafficClass {
    TrafficClass::new(number).unwrap_or_default()
}

/// Class 7 for the first quarter of a millisecond, the lowest two for the rest.
fn protected_window() -> Schedule {
    Schedule {
        cycle_time_ns: 1_000_000,
        entries: vec![
            GateEntry::new(GateMask::from_bits(0x80), 250_000),
            GateEntry::new(GateMask::from_bits(0x03), 750_000),
        ],
        ..Schedule::default()
    }
}

fn talker(period_ns: u64, offset_ns: u64) -> Talker {
    Talker {
        priority: class(7),
        period_ns,
        offset_ns,
        window_ns: 0,
        octets: 1514,
        frames: 1,
    }
}

fn admitted(schedule: &Schedule, talkers: &[Talker]) -> Vec<(usize, Misfit)> {
    admit(schedule, &ClassTable::default(), &GIGABIT, 0, talkers)
}

fn text(misfits: &[(usize, Misfit)]) -> String {
    let lines: Vec<String> = misfits
        .iter()
        .map(|(at, why)| format!("{at}: {why}"))
        .collect();
    lines.join("\n")
}

#[test]
fn a_stream_fits_until_its_frame_would_reach_the_end_of_the_window() {
    // 12 208 ns from the first bit to the last, after a gap of 96 ns that another's frame may leave.
    let last = 250_000 - 12_208 - 96;
    assert_eq!(
        admitted(&protected_window(), &[talker(1_000_000, last)]),
        []
    );
    let misfits = admitted(&protected_window(), &[talker(1_000_000, last + 1)]);
    assert_eq!(
        text(&misfits),
        "0: its last frame may end at 250.001 µs of the cycle, and class 7 closes at 250 µs: launch earlier, send less, or lengthen the window of the schedule"
    );
    // The same with a window for its launch, frames, or a guard.
    let mut wide = talker(1_000_000, last - 1000);
    wide.window_ns = 1000;
    assert_eq!(admitted(&protected_window(), &[wide.clone()]), []);
    wide.window_ns = 1001;
    assert_eq!(admitted(&protected_window(), &[wide]).len(), 1);
    let mut two = talker(1_000_000, last - 12_304);
    two.frames = 2;
    assert_eq!(admitted(&protected_window(), &[two.clone()]), []);
    two.offset_ns += 1;
    assert_eq!(admitted(&protected_window(), &[two]).len(), 1);
    let guarded = |guard| {
        let talkers = [talker(1_000_000, last - 25_000)];
        admit(
            &protected_window(),
            &ClassTable::default(),
            &GIGABIT,
            guard,
            &talkers,
        )
        .len()
    };
    assert_eq!((guarded(25_000), guarded(25_001)), (0, 1));
}

#[test]
fn a_launch_time_outside_every_window_is_told_with_the_windows() {
    let misfits = admitted(&protected_window(), &[talker(500_000, 100_000)]);
    assert_eq!(
        text(&misfits),
        "0: a launch time at 600 µs of the cycle finds class 7 closed: it is open from 0 ns to 250 µs; move the offset, or the window of the schedule"
    );
    let mut never = talker(1_000_000, 0);
    never.priority = class(5);
    let misfits = admitted(&protected_window(), &[never]);
    assert!(
        text(&misfits).contains("it never opens"),
        "{}",
        text(&misfits)
    );
}

#[test]
fn a_period_that_drifts_through_the_cycle_is_refused() {
    let misfits = admitted(&protected_window(), &[talker(1_000_001, 0)]);
    assert!(matches!(misfits[..], [(0, Misfit::NoRepetition { .. })]));
    // 1.1 ms: after eleven cycles it has been everywhere.
    let misfits = admitted(&protected_window(), &[talker(1_100_000, 0)]);
    assert!(matches!(
        misfits[..],
        [(0, Misfit::Closed { at_ns: 300_000, .. })]
    ));
    assert_eq!(admitted(&protected_window(), &[talker(3_000_000, 0)]), []);
}

#[test]
fn the_base_time_of_the_schedule_moves_its_windows() {
    let mut schedule = protected_window();
    schedule.base_time = takt_time::TaiTime::from_nanos(7_000_400_000);
    assert_eq!(admitted(&schedule, &[talker(1_000_000, 500_000)]), []);
    assert_eq!(admitted(&schedule, &[talker(1_000_000, 399_999)]).len(), 1);
}

#[test]
fn streams_of_one_window_are_summed_and_all_of_them_named() {
    let fits: Vec<Talker> = (0..20).map(|_| talker(1_000_000, 0)).collect();
    assert_eq!(admitted(&protected_window(), &fits), []);
    let many: Vec<Talker> = (0..21).map(|_| talker(1_000_000, 0)).collect();
    let misfits = admitted(&protected_window(), &many);
    assert_eq!(misfits.len(), 21);
    assert!(
        text(&misfits).contains("behind 20 other streams"),
        "{}",
        text(&misfits)
    );
    // Every second cycle each, in turns: half of them meet.
    let turns = (0..40).map(|at| talker(2_000_000, at % 2 * 1_000_000));
    assert_eq!(
        admitted(&protected_window(), &turns.collect::<Vec<_>>()),
        []
    );
}

#[test]
fn what_is_above_counts_and_what_is_below_holds_up_for_one_frame() {
    let mut schedule = protected_window();
    schedule.entries[0].gates = GateMask::from_bits(0xc0);
    let mut below = talker(1_000_000, 230_000);
    below.priority = class(6);
    assert_eq!(admitted(&schedule, &[below.clone()]), []);
    let above = talker(1_000_000, 225_488);
    // It may be held up by a frame of class 6, and holds up itself.
    let misfits = admitted(&schedule, &[below.clone(), above.clone()]);
    assert!(matches!(
        &misfits[..],
        [(0, Misfit::TooLate { others: 1, .. })]
    ));
    below.offset_ns = 100_000;
    assert_eq!(admitted(&schedule, &[below, above]), []);
    let latest = 250_000 - 12_208 - 12_304;
    assert_eq!(admitted(&schedule, &[talker(1_000_000, latest)]), []);
    assert_eq!(
        admitted(&schedule, &[talker(1_000_000, latest + 1)]).len(),
        1
    );
}

#[test]
fn what_a_class_does_not_take_is_refused() {
    let mut schedule = protected_window();
    schedule.max_sdu[7] = 100;
    let misfits = admitted(&schedule, &[talker(1_000_000, 0)]);
    assert!(
        text(&misfits).contains("declare 114 at most"),
        "{}",
        text(&misfits)
    );
    schedule.selection[7] = Selection::FirstCome;
    let misfits = admitted(&schedule, &[talker(1_000_000, 0)]);
    assert!(text(&misfits).contains("is first-come and takes no launch times"));
    // By the class of its priority, not by the priority.
    let classes = ClassTable::new([0, 0, 0, 0, 0, 0, 0, 1]).expect("classes");
    let misfits = admit(&schedule, &classes, &GIGABIT, 0, &[talker(1_000_000, 0)]);
    assert!(matches!(misfits[..], [(0, Misfit::Closed { .. })]));
}

#[test]
fn a_class_that_never_closes_is_bounded_by_the_link() {
    let schedule = Schedule {
        cycle_time_ns: 1_000_000,
        entries: vec![GateEntry::new(GateMask::ALL, 1_000_000)],
        ..Schedule::default()
    };
    let many = |count| vec![talker(1_000_000, 999_999); count];
    assert_eq!(admitted(&schedule, &many(81)), []);
    let misfits = admitted(&schedule, &many(82));
    assert_eq!(misfits.len(), 82);
    assert!(
        text(&misfits).contains("100.9 % of the link"),
        "{}",
        text(&misfits)
    );
}

#[test]
fn a_stream_with_a_wide_window_keeps_nobody_out() {
    let narrow = Talker {
        frames: 8,
        ..talker(1_000_000, 0)
    };
    let wide = Talker {
        octets: 60,
        window_ns: 200_000,
        ..talker(1_000_000, 0)
    };
    for both in [[narrow.clone(), wide.clone()], [wide.clone(), narrow]] {
        assert_eq!(admitted(&protected_window(), &both), []);
    }
    let widest = Talker {
        window_ns: 248_000,
        ..wide.clone()
    };
    let honest = talker(1_000_000, 100_000);
    for both in [[widest.clone(), honest.clone()], [honest.clone(), widest]] {
        assert_eq!(admitted(&protected_window(), &both), []);
    }
    // One of a class above that may come at any time holds up what it meets, and is not what that waits for.
    let mut schedule = protected_window();
    schedule.entries[0].gates = GateMask::from_bits(0xa0);
    schedule.entries[1].gates = GateMask::from_bits(0x83);
    let mut below = honest;
    below.priority = class(5);
    let anywhere = Talker {
        window_ns: 900_000,
        ..wide
    };
    assert_eq!(admitted(&schedule, &[anywhere, below.clone()]), []);
    // Nor where it may begin before the window and in it.
    let before = Talker {
        octets: 60,
        window_ns: 240_000,
        ..talker(1_000_000, 999_000)
    };
    schedule.entries[1].gates = GateMask::from_bits(0x83);
    assert_eq!(admitted(&schedule, &[before, below]), []);
}

#[test]
fn who_leaves_takes_nobody_elses_place() {
    // Of 2, 5, 7 and 20 cycles: without the first another number of cycles would show more of the others.
    let long = |offset| Talker {
        frames: 11,
        ..talker(20_000_000, offset)
    };
    let short = |cycles: u64| Talker {
        octets: 60,
        ..talker(cycles * 1_000_000, 0)
    };
    let all = [short(2), short(5), short(7), long(0), long(5_000_000)];
    assert_eq!(admitted(&protected_window(), &all), []);
    assert_eq!(admitted(&protected_window(), &all[1..]), []);
}

#[test]
fn a_long_period_makes_nothing_long_for_others() {
    let rare = Talker {
        octets: 60,
        ..talker(60_000_000_000, 0)
    };
    let mut all = vec![rare.clone()];
    all.extend((0..20).map(|_| talker(1_000_000, 0)));
    assert_eq!(admitted(&protected_window(), &all), []);
    // A heartbeat beside many, and one of each period that has no factor in common with the others.
    let short = |period_ns| Talker {
        octets: 60,
        ..talker(period_ns, 0)
    };
    let mut all = vec![short(1_000_000_000)];
    all.extend((0..300).map(|_| short(1_000_000)));
    all.extend([7, 11, 13, 59, 61, 63].map(|cycles| short(cycles * 1_000_000)));
    assert_eq!(admitted(&protected_window(), &all), []);
    // What is rare still keeps to its place: these meet nobody in their cycles, and one that launches in all does.
    let turns = |at: u64| talker(1_000_000_000, at % 40 * 1_000_000);
    let mut rare: Vec<Talker> = (0..800).map(turns).collect();
    assert_eq!(admitted(&protected_window(), &rare), []);
    rare.push(talker(1_000_000, 0));
    assert_eq!(admitted(&protected_window(), &rare).len(), 801);
}

#[test]
fn what_comes_round_too_late_is_blamed_itself_and_may_come_where_no_gate_closes() {
    let drifting = talker(1_001_000, 0);
    let misfits = admitted(&protected_window(), &[talker(1_000_000, 0), drifting]);
    assert!(matches!(misfits[..], [(1, Misfit::NoRepetition { .. })]));
    let mut schedule = protected_window();
    schedule.entries[0].gates = GateMask::from_bits(0x81);
    let mut free = talker(1_000_001, 0);
    free.priority = class(0);
    assert_eq!(
        admitted(&schedule, &[free.clone(), talker(1_000_000, 0)]),
        []
    );
    free.frames = 82;
    assert_eq!(
        text(&admitted(&schedule, &[free, talker(1_000_000, 0)]))
            .lines()
            .count(),
        1
    );
}

#[test]
fn thousands_that_are_late_together_are_counted() {
    let many: Vec<Talker> = (0..5000).map(|_| talker(100_000_000, 0)).collect();
    let misfits = admitted(&protected_window(), &many);
    assert_eq!(misfits.len(), 5000);
    for (_, misfit) in misfits {
        assert!(matches!(misfit, Misfit::TooLate { others: 4999, .. }));
    }
}

/// Lets the streams launch at random instants of their windows, and serves them one after another: the highest class
/// first, then by a random order. When each frame ends, or where it found its gate closed.
fn served(
    schedule: &Schedule,
    talkers: &[Talker],
    horizon: u64,
    mut random: impl FnMut(u64) -> u64,
) -> bool {
    let mut waiting: Vec<(u64, usize, usize)> = Vec::new();
    for (at, talker) in talkers.iter().enumerate() {
        let mut launch = talker.offset_ns;
        while launch < horizon {
            waiting.push((launch + random(talker.window_ns + 1), at, 0));
            launch += talker.period_ns;
        }
    }
    let cycle = schedule.cycle_time_ns;
    let is_open = |class: TrafficClass, from: u64, to: u64| {
        (from..to).all(|t| {
            let mut rest = t % cycle;
            let entry = schedule.entries.iter().find(|entry| {
                let here = rest < u64::from(entry.interval_ns);
                rest = rest.wrapping_sub(if here { 0 } else { entry.interval_ns.into() });
                here
            });
            entry.is_some_and(|entry| entry.gates.is_open(class))
        })
    };
    let mut now = 0;
    while let Some(first) = waiting.iter().map(|w| w.0).min() {
        now = now.max(first);
        let ready = waiting.iter().enumerate().filter(|(_, w)| w.0 <= now);
        let highest = ready.clone().map(|(_, w)| talkers[w.1].priority).max();
        let of_it: Vec<usize> = ready
            .filter(|(_, w)| Some(talkers[w.1].priority) == highest)
            .map(|(at, _)| at)
            .collect();
        let chosen = waiting.swap_remove(of_it[random(of_it.len() as u64) as usize]);
        let talker = &talkers[chosen.1];
        let ends = now + u64::from(talker.octets);
        if !is_open(talker.priority, now, ends) {
            return false;
        }
        now = ends;
        if chosen.2 + 1 < talker.frames as usize {
            waiting.push((chosen.0, chosen.1, chosen.2 + 1));
        }
    }
    true
}

proptest! {
    #[test]
    fn the_order_of_the_streams_changes_nothing(
        gates in (0u8..8, 0u8..8),
        streams in prop::collection::vec((0u8..3, 0usize..8, 0u64..1_000_000, 0u64..300_000, 60u32..1514, 1u32..4), 1..12),
        seeds in prop::collection::vec(any::<u64>(), 12),
    ) {
        let mut schedule = protected_window();
        schedule.entries = [(gates.0 | 4, 250_000), (gates.1, 750_000)].map(|(gates, interval)| GateEntry::new(GateMask::from_bits(gates), interval)).to_vec();
        let talkers: Vec<Talker> = streams.iter().map(|&(priority, period, offset, window, octets, frames)| {
            let period_ns = [500_000, 1_000_000, 2_000_000, 3_000_000, 7_000_000, 61_000_000, 1_000_000_000, 1_001_000][period];
            Talker { priority: class(priority), period_ns, offset_ns: offset % period_ns, window_ns: window % period_ns, octets, frames }
        }).collect();
        let mut order: Vec<usize> = (0..talkers.len()).collect();
        order.sort_by_key(|&at| seeds[at]);
        let moved: Vec<Talker> = order.iter().map(|&at| talkers[at].clone()).collect();
        let mut misfits: Vec<_> = admitted(&schedule, &moved).into_iter().map(|(at, misfit)| (order[at], misfit)).collect();
        misfits.sort_by_key(|(at, _)| *at);
        prop_assert_eq!(misfits, admitted(&schedule, &talkers));
    }

    #[test]
    fn whoever_leaves_the_others_keep_their_places(
        streams in prop::collection::vec((0usize..12, 0u64..64, 1u32..8), 2..10),
        gone in any::<prop::sample::Index>(),
    ) {
        let talkers: Vec<Talker> = streams.iter().map(|&(period, offset, frames)| {
            let cycles = [1, 2, 3, 5, 7, 8, 13, 15, 20, 24, 60, 1000][period];
            Talker { frames, ..talker(cycles * 1_000_000, offset % cycles * 1_000_000) }
        }).collect();
        let misfits = admitted(&protected_window(), &talkers);
        let good: Vec<Talker> = talkers.iter().enumerate()
            .filter(|(at, _)| misfits.iter().all(|(bad, _)| bad != at))
            .map(|(_, talker)| talker.clone()).collect();
        prop_assume!(!good.is_empty() && admitted(&protected_window(), &good).is_empty());
        let mut rest = good.clone();
        rest.remove(gone.index(good.len()));
        prop_assert_eq!(admitted(&protected_window(), &rest), []);
    }

    #[test]
    fn what_is_admitted_always_leaves_while_its_class_is_open(
        entries in prop::collection::vec((0u8..8, 5u32..40), 1..5),
        talkers in prop::collection::vec((0u8..3, 0usize..4, 0u64..80, 0u64..6, 1u32..5, 1u32..3), 1..5),
        seeds in prop::collection::vec(any::<u64>(), 64),
    ) {
        // A link on which an octet takes a nanosecond, and nothing else.
        let framing = crate::Framing { header: 0, preamble: 0, inserted: 0, check_sequence: 0, minimum: 0, gap: 0 };
        let link = Link { framing, ..Link::ethernet(8_000_000_000) };
        let cycle_time_ns = 80;
        let mut schedule = Schedule { cycle_time_ns, ..Schedule::default() };
        // No class below may be on the wire: only the streams are.
        schedule.max_sdu = [4; 8];
        schedule.entries = entries.iter().map(|&(gates, interval)| GateEntry::new(GateMask::from_bits(gates), interval)).collect();
        let missing = 80u32.saturating_sub(schedule.entries_ns() as u32);
        if missing > 0 {
            schedule.entries.push(GateEntry::new(GateMask::NONE, missing));
        }
        let talkers: Vec<Talker> = talkers.iter().map(|&(priority, period, offset_ns, window_ns, octets, frames)| {
            let period_ns = [40, 80, 160, 240][period];
            Talker { priority: class(priority), period_ns, offset_ns: offset_ns % period_ns, window_ns, octets, frames }
        }).collect();
        let misfits = admit(&schedule, &ClassTable::default(), &link, 0, &talkers);
        let good: Vec<Talker> = talkers.iter().enumerate()
            .filter(|(at, _)| misfits.iter().all(|(bad, _)| bad != at))
            .map(|(_, talker)| talker.clone()).collect();
        // Where all are good with each other.
        prop_assume!(admit(&schedule, &ClassTable::default(), &link, 0, &good).is_empty());
        let mut next = seeds.iter().cycle();
        for _ in 0..8 {
            let random = |below: u64| next.next().map_or(0, |seed| seed.rotate_left(7) % below);
            prop_assert!(served(&schedule, &good, 960, random), "{good:?}");
        }
    }
}
