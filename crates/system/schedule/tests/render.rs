//! Pictures of schedules.

use proptest::prelude::*;
use quick_xml::events::Event;
use takt_schedule::render::{TerminalStyle, svg, terminal};
use takt_schedule::{GateEntry, GateMask, Link, PortModel, Schedule};
use takt_time::TaiTime;

fn schedule() -> Schedule {
    Schedule {
        base_time: TaiTime::from_nanos(1_800_000_000_000_000_000),
        cycle_time_ns: 1_000_000,
        cycle_time_extension_ns: 50_000,
        entries: vec![
            GateEntry::new(GateMask::from_bits(4), 250_000),
            GateEntry::new(GateMask::from_bits(2), 125_000),
            GateEntry::new(GateMask::from_bits(1), 615_000),
            GateEntry::new(GateMask::from_bits(4), 10_000),
        ],
        ..Schedule::default()
    }
}

fn port() -> PortModel {
    PortModel {
        classes: 4,
        ..PortModel::default()
    }
}

#[test]
fn a_chart_shows_windows_shares_and_waits() {
    let style = TerminalStyle {
        width: 70,
        ascii: true,
    };
    let expected = "\
cycle 1 ms, base time 1800000000.000000000 TAI, cycle time extension 50 us, 4 entries
class                                               open    worst wait
    3 ........................................     0.0 %      for ever
    2 ##########.............................+    26.0 %        752 us
    1 ..........#####.........................    12.5 %        887 us
    0 ...............########################+    61.5 %        397 us
      0 ns      250 us    500 us    750 us    1 ms
";
    assert_eq!(terminal(&schedule(), &port(), style), expected);
}

#[test]
fn without_ascii_a_chart_has_blocks() {
    let text = terminal(&schedule(), &port(), TerminalStyle::default());
    assert!(text.contains("    2 ████"), "{text}");
    assert!(text.contains("50 µs"), "{text}");
}

/// Reads an SVG text to its end and answers the texts in it.
fn texts(svg: &str) -> Vec<String> {
    let mut reader = quick_xml::Reader::from_str(svg);
    let mut texts = Vec::new();
    loop {
        match reader.read_event().expect("well-formed XML") {
            Event::Text(text) => texts.push(text.xml10_content().into_owned()),
            Event::GeneralRef(_) => {}
            Event::Eof => return texts,
            _ => {}
        }
    }
}

#[test]
fn a_picture_is_self_contained_and_says_what_the_chart_says() {
    let picture = svg(&schedule(), &port(), "eth0");
    let texts = texts(&picture);
    for text in ["eth0", "26.0 %", "752 µs", "for ever", "260 µs", "1 ms"] {
        assert!(
            texts.iter().any(|found| found == text),
            "no {text} in {texts:?}"
        );
    }
    assert!(!picture.contains("href") && !picture.contains("<script"));
}

#[test]
fn a_title_is_text_whatever_is_in_it() {
    let picture = svg(&schedule(), &port(), "<script>alert(\"&\u{1}\")</script>");
    assert!(!picture.contains("<script"));
    texts(&picture);
}

proptest! {
    #[test]
    fn any_schedule_can_be_drawn(
        base in any::<i64>(),
        cycle in prop_oneof![0u64..2_000, any::<u64>()],
        entries in prop::collection::vec((any::<u8>(), 0u32..900), 0..6),
        classes in 0u8..10,
        rate in prop_oneof![Just(0u64), any::<u64>()],
        width in 0usize..200,
        ascii in any::<bool>(),
    ) {
        let schedule = Schedule {
            base_time: TaiTime::from_nanos(base),
            cycle_time_ns: cycle,
            entries: entries
                .into_iter()
                .map(|(gates, interval)| GateEntry::new(GateMask::from_bits(gates), interval))
                .collect(),
            ..Schedule::default()
        };
        let port = PortModel { link: Link::ethernet(rate), classes, ..PortModel::default() };
        let chart = terminal(&schedule, &port, TerminalStyle { width, ascii });
        prop_assert_eq!(chart.lines().count(), 3 + usize::from(classes.min(8)));
        prop_assert!(!ascii || chart.is_ascii());
        texts(&svg(&schedule, &port, "any"));
    }
}
