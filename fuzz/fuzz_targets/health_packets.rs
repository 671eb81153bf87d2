//! Captured packets into a table of flows, with specifications of every kind of stamp.
//!
//! A byte for the link type, or for a copy that a node has made, one that moves the clock, one for the length, then the packet; again and again.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use takt_health::key::Way;
use takt_health::packet::LinkType;
use takt_health::spec::Document;
use takt_health::table::{Config, Table};

const RULES: &str = r#"
[[flow]]
name = "a"
match = "udp * > *:5004"
period = "60Hz"
tolerance = "0ns"
max-delay = "1ms"
max-jitter = "1ms"
max-loss = "1%"
max-burst = 3

[[flow]]
name = "b"
match = "udp * > *:5005"
stamp = "ptp@3"
max-delay = "0"

[[flow]]
name = "c"
match = "stream *"
stamp = "rtc-testbench"
period = "1us"
max-loss = "0%"

[[rule]]
name = "r"
when = "delay > 1ms or lost > 3 or not level < red or burst > 2 or silence > 1s"
do = ["event", "mirror"]
"#;

static DOCUMENT: LazyLock<Document> = LazyLock::new(|| Document::read(RULES).expect("a document"));

fuzz_target!(|bytes: &[u8]| {
    let config = Config {
        capacity: 8,
        histograms: 2,
        idle_ns: 1000,
        ..Config::default()
    };
    let mut table = Table::new(config, DOCUMENT.clone());
    let (mut rest, mut now, mut count) = (bytes, 1_700_000_000_000_000_000_i64, 0);
    while let [link, step, length, tail @ ..] = rest {
        let (packet, behind) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = behind;
        let number = [0, 1, 101, 113, 276].get(usize::from(*link) % 7);
        now = match step {
            255 => i64::MAX,
            254 => i64::MIN,
            step => now.wrapping_add((i64::from(*step) - 100) * 100_000),
        };
        let size = packet.len() as u32;
        let _ = match number {
            Some(number) => {
                let link = LinkType::from_number(*number).expect("a known one");
                table.take(now, link, packet, size)
            }
            None if link % 7 == 5 => table.take_copy(now, (Way::From, None), packet, size),
            None => table.take_copy(now, (Way::To, Some([10, 0, 0, 2].into())), packet, size),
        };
        count += 1;
        if step % 7 == 0 {
            table.sweep(now.clamp(i64::MIN / 4, i64::MAX / 4), 8);
        }
    }
    assert_eq!(table.counters().packets, count);
    assert!(table.flows().len() <= 8);
    for flow in table.flows() {
        let report = flow.report(table.spec(flow));
        assert!(report.packets <= count * 255 && report.jitter_ns.is_none_or(f64::is_finite));
    }
    assert_eq!(table.levels().iter().sum::<usize>(), table.flows().len());
});
