use proptest::prelude::*;

use super::*;
use crate::check::Severity;
use crate::summary::PortModel;

const LINE: &str = r#"
launch-error = "5us"
[[link]]
between = ["press", "one"]
rate = "1gbit"
delay = "100ns"
[[link]]
between = ["one", "two"]
rate = "1gbit"
delay = "500ns"
[[link]]
between = ["two", "robot"]
rate = "100mbit"
[[link]]
between = ["camera", "one"]
rate = "1gbit"
[[switch]]
name = "one"
forwarding = "3us"
[[switch]]
name = "two"
forwarding = "2us"
"#;

fn plan(streams: &str) -> Plan {
    read(&format!("{LINE}{streams}")).expect("a plan")
}

fn stream(name: &str, class: u8, from: &str, to: &str, period: &str, rest: &str) -> String {
    format!(
        "[[stream]]\nname = \"{name}\"\nclass = {class}\nfrom = \"{from}\"\nto = [{to}]\nperiod = \"{period}\"\n{rest}\n"
    )
}

fn found(plan: &Plan) -> Synthesis {
    let found = synthesize(plan).unwrap_or_else(|unmet| panic!("{unmet:?}"));
    let tried = verify(plan, &found).unwrap_or_else(|broken| panic!("{broken}"));
    assert_eq!(tried, None, "two cycles");
    for (port, schedule) in &found.schedules {
        let model = PortModel {
            link: plan.ports[*port].link,
            ..PortModel::default()
        };
        let findings = crate::check(schedule, &model, None);
        let errors = findings.iter().filter(|f| f.severity == Severity::Error);
        assert_eq!(
            errors.collect::<Vec<_>>(),
            Vec::<&crate::check::Finding>::new()
        );
    }
    found
}

fn reasons(plan: &Plan) -> Vec<(usize, Reason)> {
    let unmet = synthesize(plan).expect_err("it cannot be met");
    unmet.into_iter().map(|u| (u.stream, u.reason)).collect()
}

#[test]
fn a_stream_has_a_window_on_each_port_of_its_way() {
    let plan = plan(&stream(
        "axis",
        7,
        "press",
        "\"robot\"",
        "1ms",
        "frame = 128",
    ));
    let found = found(&plan);
    let ports: Vec<String> = found
        .schedules
        .iter()
        .map(|(at, _)| plan.ports[*at].name())
        .collect();
    assert_eq!(ports, ["press-one", "one-two", "two-robot"]);
    let placed = &found.streams[0];
    assert_eq!(placed.offset_ns, 0);
    // 128 octets, FCS and preamble are 140: 1.12 µs at a gigabit, 11.2 µs at a tenth. The gap of 12 is 96 ns and 960 ns.
    let windows: Vec<(i64, i64)> = placed
        .hops
        .iter()
        .map(|h| (h.opens_ns, h.closes_ns))
        .collect();
    let first = 5_000 + 96 + 1_120;
    let second = first + 100 + 3_000 + 1_000;
    let third = second + 96 + 1_120 + 500 + 2_000 + 1_000;
    let until = third + 960 + 11_200;
    assert_eq!(
        windows,
        [(0, first), (second, second + 96 + 1_120), (third, until)]
    );
    assert_eq!(placed.latency_ns, until as u64 + 1_000);
    let own = crate::window::windows(&found.schedules[2].1, plan.streams[0].class);
    assert_eq!(
        (own[0].start_ns, own[0].end_ns()),
        (third as u64, until as u64)
    );
}

#[test]
fn streams_share_ports_and_all_listeners_get_theirs() {
    let streams = [
        stream(
            "axis",
            7,
            "press",
            "\"robot\", \"camera\"",
            "500us",
            "frame = 128\nframes = 3",
        ),
        stream(
            "vision",
            7,
            "camera",
            "\"robot\"",
            "2ms",
            "frame = 1400\nframes = 2",
        ),
        stream(
            "state",
            5,
            "press",
            "\"robot\"",
            "1ms",
            "frame = 300\nwindow = \"10us\"",
        ),
        stream(
            "back",
            5,
            "robot",
            "\"press\"",
            "1ms",
            "frame = 64\nearliest = \"400us\"",
        ),
    ];
    let plan = plan(&streams.concat());
    let found = found(&plan);
    assert!(found.streams[3].offset_ns >= 400_000);
    // Each direction of each of the four cables.
    assert_eq!(found.schedules.len(), 8);
}

#[test]
fn what_cannot_be_met_is_said_with_its_reason() {
    let one = |rest| plan(&stream("axis", 7, "press", "\"robot\"", "1ms", rest));
    assert!(matches!(
        reasons(&one("frame = 128\ndeadline = \"20us\""))[..],
        [(0, Reason::Deadline { needs_ns, has_ns: 20_000 })] if needs_ns > 20_000
    ));
    assert!(matches!(
        &reasons(&one("frame = 1500\nframes = 9"))[..],
        [(0, Reason::Period { port, .. })] if port == "two-robot"
    ));
    let meets = stream("one", 7, "press", "\"two\"", "30us", "frame = 128")
        + &stream("other", 6, "camera", "\"two\"", "40us", "frame = 1500");
    assert!(matches!(
        &reasons(&plan(&meets))[..],
        [(1, Reason::Meets { port, other, within_ns: 10_000, .. })] if port == "one-two" && other == "one"
    ));
    let many: String = (0..9)
        .map(|n| {
            stream(
                &n.to_string(),
                7,
                "press",
                "\"robot\"",
                "1ms",
                "frame = 1500",
            )
        })
        .collect();
    assert!(matches!(
        &reasons(&plan(&many))[0].1,
        Reason::TooMuch { port, share } if port == "two-robot" && *share > 1000
    ));
    let rings = LINE.to_owned() + "[[link]]\nbetween = [\"press\", \"two\"]\nrate = \"1gbit\"\n";
    let ring = rings + &stream("axis", 7, "press", "\"robot\"", "1ms", "frame = 128");
    assert!(matches!(
        reasons(&read(&ring).expect("a plan"))[..],
        [(0, Reason::SeveralWays { .. })]
    ));
    let apart = LINE.to_owned() + "[[link]]\nbetween = [\"x\", \"y\"]\nrate = \"1gbit\"\n";
    let apart = apart + &stream("axis", 7, "press", "\"x\"", "1ms", "frame = 128");
    assert!(matches!(
        reasons(&read(&apart).expect("a plan"))[..],
        [(0, Reason::NoWay { .. })]
    ));
}

#[test]
fn a_second_cable_between_two_nodes_is_a_second_way() {
    let twice = LINE.to_owned() + "[[link]]\nbetween = [\"one\", \"two\"]\nrate = \"1gbit\"\n";
    let twice = twice + &stream("axis", 7, "press", "\"robot\"", "1ms", "frame = 128");
    assert!(matches!(
        reasons(&read(&twice).expect("a plan"))[..],
        [(0, Reason::SeveralWays { .. })]
    ));
}

#[test]
fn a_narrow_place_goes_to_whom_nothing_else_fits() {
    // In the order of the plan the first takes the only offset of the second.
    let streams = stream("free", 7, "press", "\"one\"", "100us", "frame = 1500")
        + &stream(
            "bound",
            7,
            "press",
            "\"one\"",
            "100us",
            "frame = 1400\nlatest = \"0us\"",
        );
    let found = found(&plan(&streams));
    assert_eq!(found.streams[1].offset_ns, 0);
    assert!(found.streams[0].offset_ns > 0);
}

#[test]
fn what_was_tampered_with_does_not_hold() {
    let plan = plan(&stream(
        "axis",
        7,
        "press",
        "\"robot\"",
        "1ms",
        "frame = 128",
    ));
    let good = found(&plan);
    let mut early = good.clone();
    early.streams[0].offset_ns += 2_000;
    assert!(verify(&plan, &early).is_err());
    // At the slow port the gap behind what was there before is part of the window, and may not be needed.
    for (port, by) in [(0, 200), (1, 200), (2, 1_000)] {
        let mut shut = good.clone();
        let entries = &mut shut.schedules[port].1.entries;
        let window = entries
            .iter()
            .position(|e| e.gates.is_open(plan.streams[0].class));
        let window = window.expect("a window");
        entries[window].interval_ns -= by;
        entries[window + 1].interval_ns += by;
        assert!(verify(&plan, &shut).is_err(), "port {port}");
    }
    let mut late = good.clone();
    late.streams[0].latency_ns -= 2_500;
    assert!(verify(&plan, &late).is_err());
}

#[test]
fn of_a_long_cycle_it_is_told_how_much_was_tried() {
    let plan = plan(&stream(
        "axis",
        7,
        "press",
        "\"robot\"",
        "100s",
        "frame = 128",
    ));
    let found = synthesize(&plan).expect("it is found");
    let tried = verify(&plan, &found).expect("it holds");
    assert!(tried.is_some_and(|ns| ns < 100_000_000_000), "{tried:?}");
}

#[test]
fn mistakes_in_a_plan_are_named() {
    let all = |text: &str| read(text).expect_err("a mistake").to_string();
    let with = |rest: &str| {
        all(&format!(
            "{LINE}{}",
            stream("a", 7, "press", "\"robot\"", "1ms", rest)
        ))
    };
    for (text, said) in [
        (all(""), "the plan: a [[link]]"),
        (all(LINE), "the plan: a [[stream]] is missing"),
        (
            all(&format!(
                "{LINE}{}",
                stream("a\u{301}", 7, "press", "\"robot\"", "1ms", "frame = 99")
            )),
            "is not a name of 64 visible",
        ),
        (with("frame = 3"), "stream a, frame: `3` is not 15 to 9018"),
        (
            with("frame = 99\nlatest = \"1ms\""),
            "stream a, earliest, latest: `1ms`",
        ),
        (
            with("frame = 99\ndeadline = \"soon\""),
            "stream a, deadline: `soon` is not a duration",
        ),
        (
            with("frame = 99\nwindow = \"1ms\""),
            "stream a, window: `1ms` is not less than its period",
        ),
        (
            with("frame = 99\nchannel = 1\ndestination = \"10.0.0.1:1\""),
            "channel and destination exclude",
        ),
        (
            with("frame = 99\ndestination = \"10.0.0.1\""),
            "`10.0.0.1` is not an address with a port",
        ),
        (with("frame = 99\nbudget = 1"), "unknown field `budget`"),
        (
            all(&format!(
                "{LINE}{}",
                stream("a", 8, "press", "\"robot\"", "1ms", "frame = 99")
            )),
            "`8` is not a class",
        ),
        (
            all(&format!(
                "{LINE}{}",
                stream("a", 7, "pres", "\"robot\"", "1ms", "frame = 99")
            )),
            "`pres` is not an end of a [[link]]",
        ),
        (
            all(&format!(
                "{LINE}{}",
                stream("a", 7, "press", "\"press\"", "1ms", "frame = 99")
            )),
            "`press` is not another node",
        ),
        (
            all(&format!(
                "{LINE}{}",
                stream("a", 7, "press", "\"robot\"", "0", "frame = 99")
            )),
            "`0ns` is not longer than 0",
        ),
        (
            all(
                "[[link]]\nbetween = [\"a\", \"../b\"]\nrate = 1\n[[stream]]\nname = \"a\"\nclass = 1\nfrom = \"a\"\nto = [\"b\"]\nperiod = 1\nframe = 64",
            ),
            "`../b` is not a name",
        ),
        (
            all(
                "[[link]]\nbetween = [\"a\", \"b\"]\nrate = \"fast\"\n[[stream]]\nname = \"a\"\nclass = 1\nfrom = \"a\"\nto = [\"b\"]\nperiod = 1\nframe = 64",
            ),
            "`fast` is not a rate",
        ),
    ] {
        assert!(text.contains(said), "{text} does not say {said}");
    }
}

fn any_stream() -> impl Strategy<Value = (usize, u8, usize, u32, u32, u64)> {
    (
        0..3_usize,
        0..7_u8,
        0..5_usize,
        60..1500_u32,
        1..4_u32,
        0..50_u64,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever is found holds on the scheduler.
    #[test]
    fn what_is_found_holds(
        streams in prop::collection::vec(any_stream(), 1..12),
        sync in 0..5_000_u64,
        launch in 0..30_000_u64,
    ) {
        let mut plan = plan(&stream("none", 7, "press", "\"robot\"", "1ms", "frame = 99"));
        let template = plan.streams.remove(0);
        plan.sync_error_ns = sync;
        plan.launch_error_ns = launch;
        let ways = [("press", "robot"), ("camera", "robot"), ("robot", "press")];
        let periods = [250_000, 500_000, 1_000_000, 1_500_000, 2_000_000];
        for (number, (way, class, period, octets, frames, window)) in streams.into_iter().enumerate() {
            let (from, to) = ways[way];
            let period_ns = periods[period];
            plan.streams.push(Stream {
                name: number.to_string(),
                class: TrafficClass::new(class).unwrap_or_default(),
                talker: from.to_owned(),
                listeners: vec![to.to_owned()],
                period_ns,
                octets,
                frames,
                deadline_ns: period_ns,
                window_ns: window * 1000,
                offsets_ns: (0, period_ns - 1),
                ..template.clone()
            });
        }
        if let Ok(found) = synthesize(&plan) {
            prop_assert_eq!(verify(&plan, &found), Ok(None));
        }
    }

    #[test]
    fn no_text_makes_reading_fail_otherwise(text in "[ -~\n]{0,300}") {
        let _ = read(&text);
    }
}
