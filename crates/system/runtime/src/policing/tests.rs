use std::collections::HashMap;

use proptest::prelude::*;

use std::sync::atomic::Ordering::SeqCst;

use super::*;

const NOW: i64 = 1_800_000_000_000_000_000;
const PERIOD: u64 = 1_000_000;

fn class(number: u8) -> TrafficClass {
    TrafficClass::new(number).expect("a class")
}

fn declared(name: &str, channel: u64, frames: u32) -> DeclaredStream {
    DeclaredStream {
        name: name.into(),
        flow: Flow::Channel(ChannelId(channel)),
        talker: Talker {
            priority: class(5),
            period_ns: PERIOD,
            offset_ns: 100_000,
            window_ns: 10_000,
            octets: 200,
            frames,
        },
    }
}

fn policy(streams: Vec<DeclaredStream>) -> Policy {
    Policy {
        streams,
        ..Policy::default()
    }
}

fn policer(streams: Vec<DeclaredStream>) -> Policer {
    Policer::new(&policy(streams), &Policer::default())
}

fn at(launch_ns: i64) -> Offered {
    Offered {
        class: class(5),
        launch_ns: Some(launch_ns),
        octets: 200,
        frames: 1,
    }
}

fn channel(number: u64) -> Option<Flow> {
    Some(Flow::Channel(ChannelId(number)))
}

const REFUSED: Verdict = Verdict::Refused(Outcome::Refused);

#[test]
fn a_frame_passes_in_its_window_and_is_refused_and_counted_outside() {
    let policy = policy(vec![declared("axis", 7, 1)]);
    let policer = Policer::new(&policy, &Policer::default());
    let first = NOW + 100_000;
    for (period, phase, expected) in [
        (0, 0, Verdict::Declared),
        (1, 10_000, Verdict::Declared),
        (2, 10_001, REFUSED),
        (3, -1, REFUSED),
        (4, 500_000, REFUSED),
    ] {
        let launch = first + period * PERIOD as i64 + phase;
        assert_eq!(
            policer.decide(channel(7), &at(launch), NOW),
            expected,
            "{phase}"
        );
    }
    let without = Offered {
        launch_ns: None,
        ..at(0)
    };
    assert_eq!(policer.decide(channel(7), &without, NOW), REFUSED);
    let long = Offered {
        octets: 201,
        ..at(first + 5 * PERIOD as i64)
    };
    assert_eq!(policer.decide(channel(7), &long, NOW), REFUSED);
    let expected = StreamReading {
        passed: 2,
        refused_window: 4,
        refused_size: 1,
        refused_excess: 0,
    };
    assert_eq!(policer.read(&policy), (vec![expected], 0));
}

#[test]
fn a_period_has_its_frames_and_no_more_and_time_goes_on() {
    let policer = policer(vec![declared("axis", 7, 3)]);
    let first = NOW + 100_000;
    let two = |launch| Offered {
        frames: 2,
        ..at(launch)
    };
    assert_eq!(
        policer.decide(channel(7), &two(first), NOW),
        Verdict::Declared
    );
    // All of a message, or nothing of it.
    assert_eq!(policer.decide(channel(7), &two(first), NOW), REFUSED);
    assert_eq!(
        policer.decide(channel(7), &at(first), NOW),
        Verdict::Declared
    );
    assert_eq!(policer.decide(channel(7), &at(first), NOW), REFUSED);
    let next = first + PERIOD as i64;
    assert_eq!(
        policer.decide(channel(7), &two(next), NOW),
        Verdict::Declared
    );
    assert_eq!(policer.decide(channel(7), &at(first), NOW), REFUSED);
    assert_eq!(
        policer.decide(channel(7), &at(next), NOW),
        Verdict::Declared
    );
}

#[test]
fn launch_times_beyond_reach_move_no_meter() {
    let policer = policer(vec![declared("axis", 7, 1)]);
    let far = [i64::MIN, i64::MIN + 1, i64::MAX, i64::MAX - 1, 0, -1];
    for launch in far {
        let verdict = policer.decide(channel(7), &at(launch), NOW);
        let expected = if launch > NOW {
            Outcome::NotScheduled
        } else {
            Outcome::Late
        };
        assert_eq!(verdict, Verdict::Refused(expected), "{launch}");
    }
    assert_eq!(
        policer.decide(channel(7), &at(NOW + 100_000), NOW),
        Verdict::Declared
    );
}

#[test]
fn a_clock_that_is_stepped_back_does_not_lock_a_stream_out() {
    let policer = policer(vec![declared("axis", 7, 1)]);
    assert_eq!(
        policer.decide(channel(7), &at(NOW + 100_000), NOW),
        Verdict::Declared
    );
    let before = NOW - 3_600_000_000_000;
    for period in 0..3 {
        let now = before + period * PERIOD as i64;
        assert_eq!(
            policer.decide(channel(7), &at(now + 100_000), now),
            Verdict::Declared
        );
        assert_eq!(policer.decide(channel(7), &at(now + 100_000), now), REFUSED);
    }
}

#[test]
fn what_is_of_no_stream_is_refused_in_its_class_unless_it_is_allowed() {
    let mut policy = policy(vec![declared("axis", 7, 1)]);
    let policer = Policer::new(&policy, &Policer::default());
    assert!(policer.polices(class(5)) && !policer.polices(class(4)));
    assert_eq!(policer.decide(channel(8), &at(NOW + 100_000), NOW), REFUSED);
    assert_eq!(policer.decide(None, &at(NOW + 100_000), NOW), REFUSED);
    policy.undeclared_streams = true;
    let policer = Policer::new(&policy, &policer);
    assert_eq!(
        policer.decide(channel(8), &at(NOW), NOW),
        Verdict::Undeclared
    );
    // A declared stream is held to what is declared all the same.
    assert_eq!(policer.decide(channel(7), &at(NOW), NOW), REFUSED);
    assert_eq!(policer.read(&policy).1, 2);
}

#[test]
fn streams_that_stay_as_they_were_keep_their_meter_and_names_keep_their_counts() {
    let (one, other) = (declared("one", 1, 1), declared("other", 2, 1));
    let before = policer(vec![one.clone(), other.clone()]);
    let launch = at(NOW + 100_000);
    for flow in [channel(1), channel(2)] {
        assert_eq!(before.decide(flow, &launch, NOW), Verdict::Declared);
    }
    let mut changed = other;
    changed.talker.octets = 300;
    let policy = policy(vec![changed, one]);
    let after = Policer::new(&policy, &before);
    assert_eq!(after.decide(channel(1), &launch, NOW), REFUSED);
    assert_eq!(after.decide(channel(2), &launch, NOW), Verdict::Declared);
    let (read, _) = after.read(&policy);
    assert_eq!(
        (read[0].passed, read[1].passed, read[1].refused_excess),
        (2, 1, 1)
    );
}

#[test]
fn the_destination_of_a_frame_is_read_from_whole_datagrams_only() {
    let mut frame = [0u8; 60];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[23] = 17;
    frame[30..34].copy_from_slice(&[10, 0, 0, 9]);
    frame[36..38].copy_from_slice(&4000u16.to_be_bytes());
    let destination = Some(Flow::Destination(
        "10.0.0.9:4000".parse().expect("an address"),
    ));
    assert_eq!(Flow::of_frame(&frame), destination);
    // With options, the ports are behind them.
    let mut options = frame;
    options[14] = 0x46;
    options[40..42].copy_from_slice(&4000u16.to_be_bytes());
    assert_eq!(Flow::of_frame(&options), destination);
    for (at, octet) in [(20, 0x20), (20, 0x01), (21, 1), (23, 6), (12, 0x09)] {
        let mut other = frame;
        other[at] = octet;
        assert_eq!(Flow::of_frame(&other), None, "octet {at}");
    }
    let mut six = [0u8; 60];
    six[12..14].copy_from_slice(&[0x86, 0xdd]);
    six[20] = 17;
    six[38] = 0xfd;
    six[53] = 9;
    six[56..58].copy_from_slice(&4000u16.to_be_bytes());
    let destination = "[fd00::9]:4000".parse().expect("an address");
    assert_eq!(Flow::of_frame(&six), Some(Flow::Destination(destination)));
    for length in 0..frame.len() {
        let (_, _) = (
            Flow::of_frame(&frame[..length.min(37)]),
            Flow::of_frame(&six[..length]),
        );
    }
    assert_eq!(Flow::of_frame(&frame[..37]), None);
}

/// What a policer is to do, said plainly: a table of frames by period, and the last one that was sent in.
#[derive(Default)]
struct Model {
    used: HashMap<i128, i128>,
    last: Option<i128>,
}

impl Model {
    fn passes(&mut self, talker: &Talker, offered: &Offered, now: i64) -> bool {
        let Some(launch) = offered.launch_ns.map(i128::from) else {
            return false;
        };
        let minute = 60_000_000_000;
        if (launch - i128::from(now)).abs() > minute || offered.octets > talker.octets as usize {
            return false;
        }
        let mut period = (launch - i128::from(talker.offset_ns)) / i128::from(talker.period_ns);
        while period * i128::from(talker.period_ns) + i128::from(talker.offset_ns) > launch {
            period -= 1;
        }
        let earliest = period * i128::from(talker.period_ns) + i128::from(talker.offset_ns);
        if launch - earliest > i128::from(talker.window_ns)
            || self.last.is_some_and(|last| period < last)
        {
            return false;
        }
        let used = self.used.get(&period).copied().unwrap_or(0) + i128::from(offered.frames);
        if used > i128::from(talker.frames) {
            return false;
        }
        self.used.insert(period, used);
        self.last = Some(period);
        true
    }
}

proptest! {
    #[test]
    fn a_policer_does_what_a_table_of_periods_says(
        period_ns in LEAST_PERIOD_NS..50_000,
        part in 0u64..50_000,
        window_ns in 0u64..5_000,
        most in 1u32..4,
        frames in prop::collection::vec((0i64..200_000, any::<bool>(), 195usize..203, 1u32..4, prop::option::weighted(0.05, any::<i64>())), 1..200),
    ) {
        let mut stream = declared("any", 7, most);
        stream.talker = Talker { period_ns, offset_ns: part % period_ns, window_ns: window_ns % period_ns, ..stream.talker };
        let talker = stream.talker.clone();
        let policer = policer(vec![stream]);
        let mut model = Model::default();
        let mut now = NOW;
        for (step, exact, octets, count, wild) in frames {
            now += step / 8;
            let near = now + step;
            // Often in the very window.
            let launch = match exact {
                true => near - (near - talker.offset_ns as i64).rem_euclid(period_ns as i64) + step % (talker.window_ns as i64 + 2),
                false => near,
            };
            let offered = Offered { class: class(5), launch_ns: Some(wild.unwrap_or(launch)), octets, frames: count };
            let verdict = policer.decide(channel(7), &offered, now);
            let expected = model.passes(&talker, &offered, now);
            prop_assert_eq!(verdict == Verdict::Declared, expected, "{:?} at {}: {:?}", offered, now, verdict);
        }
    }
}

#[test]
fn what_is_sent_again_has_what_messages_leave_of_the_next_window_and_takes_nobodys_place() {
    let repair = |policer: &Policer, frames: u32, now: i64| {
        let offered = Offered {
            launch_ns: None,
            frames,
            ..at(0)
        };
        policer.decide_again(channel(7), &offered, now + 50_000, now)
    };
    let window = |period: i64| NOW + period * PERIOD as i64 + 100_000;
    // No room beside a message: never. Of other flows as the policy says.
    assert_eq!(
        repair(&policer(vec![declared("axis", 7, 1)]), 1, NOW),
        Again::Never
    );
    assert_eq!(
        repair(&policer(vec![declared("axis", 7, 3)]), 3, NOW),
        Again::Never
    );
    assert_eq!(
        repair(&policer(vec![declared("other", 8, 9)]), 1, NOW),
        Again::Never
    );
    let policer = policer(vec![declared("axis", 7, 2)]);
    let message = |period: i64, now: i64| policer.decide(channel(7), &at(window(period)), now);
    assert_eq!(repair(&policer, 1, NOW), Again::At(window(0)));
    assert_eq!(
        repair(&policer, 1, NOW),
        Again::Later(window(0)),
        "a place for a message is left"
    );
    assert_eq!(message(0, NOW), Verdict::Declared);
    assert_eq!(message(0, NOW), REFUSED);
    // It is the next window's turn, and messages of the one before it have their places still.
    assert_eq!(repair(&policer, 1, NOW + 60_000), Again::At(window(1)));
    assert_eq!(message(0, NOW + 60_000), REFUSED);
    assert_eq!(message(1, NOW + 60_000), Verdict::Declared);
    // Where messages are admitted ahead it goes with the last of them.
    assert_eq!(message(9, NOW + 70_000), Verdict::Declared);
    assert_eq!(repair(&policer, 1, NOW + 70_000), Again::At(window(9)));
    assert_eq!(repair(&policer, 1, NOW + 70_000), Again::Later(window(9)));
    assert_eq!(message(9, NOW + 70_000), REFUSED);
    // The clock is stepped back.
    let back = NOW - 100_000 * PERIOD as i64;
    assert_eq!(repair(&policer, 1, back), Again::At(window(-100_000)));
}

/// Two lanes, one with messages and one with frames that are sent again: whatever the one does between two steps of the
/// other, no period has more frames than are declared.
#[test]
fn lanes_that_send_and_send_again_at_once_stay_within_a_period() {
    use std::sync::atomic::AtomicUsize;
    const PERIODS: i64 = 3000;
    let policer = policer(vec![declared("axis", 7, 2)]);
    let window = |period: i64| NOW + period * PERIOD as i64 + 100_000;
    let offered = |period: i64| Offered {
        launch_ns: None,
        frames: 1,
        ..at(window(period))
    };
    // Both begin a period together.
    let gate = AtomicUsize::new(0);
    let meet = |number: i64| {
        gate.fetch_add(1, SeqCst);
        while gate.load(SeqCst) < 2 * (number as usize + 1) {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        let messages = scope.spawn(|| {
            let each = |period| {
                meet(period);
                let message =
                    || policer.decide(channel(7), &at(window(period)), window(period) - 50_000);
                (0..2).filter(|_| message() == Verdict::Declared).count()
            };
            (0..PERIODS).map(each).collect::<Vec<_>>()
        });
        let mut again = vec![0; PERIODS as usize + 1];
        for period in 0..PERIODS {
            meet(period);
            let (from, now) = (window(period) - 10_000, window(period) - 50_000);
            let verdict = policer.decide_again(channel(7), &offered(period), from, now);
            if let Again::At(launch) = verdict {
                again[((launch - window(0)) / PERIOD as i64) as usize] += 1;
            }
        }
        let messages = messages.join().expect("no panic");
        for (period, (message, again)) in messages.iter().zip(&again).enumerate() {
            assert!(
                message + again <= 2,
                "{message} and {again} in period {period}"
            );
            assert!(message + again > 0, "period {period} is used");
        }
        assert!(again.contains(&1), "some are sent again");
    });
}
