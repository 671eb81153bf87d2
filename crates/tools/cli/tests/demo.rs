//! What `takt demo` compares by: the capture at the far end of the cable, beside the runtime's own counters.

mod support;

use support::takt;
use takt_bench::report::Report;
use takt_testing::{Directory, built};

#[test]
fn what_the_runtime_counts_is_what_was_captured_and_nothing_left_early() {
    if !takt_bench::machine::is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let library = built().join("libtakt_preload.so");
    let out = Directory::new();
    let out = out.join("report");
    let arguments = [
        "bench",
        "isochronous",
        "--sizes=64",
        "--seconds=0.1",
        "--rounds=1",
        "--only=Takt",
        "--json",
        "--out",
    ];
    let output = takt(&arguments)
        .arg(&out)
        .env("TAKT_PRELOAD_LIBRARY", library)
        .output()
        .expect("takt");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Report = serde_json::from_slice(&output.stdout).expect("a report");
    let latencies = report.outcomes.iter();
    let latencies: Vec<_> = latencies
        .filter(|outcome| outcome.name == "End-to-end latency")
        .collect();
    assert_eq!(latencies.len(), 2, "alone, and beside best effort");
    for outcome in latencies {
        let samples: Vec<_> = outcome.variants.iter().flat_map(|v| v.samples()).collect();
        let [sample] = samples[..] else {
            panic!("one run: {said}");
        };
        let figure = |name: &str| sample.figures[name];
        let captured = figure("captured");
        assert!(captured > 0.0, "{said}");
        assert_eq!(
            captured,
            figure("counted by the runtime"),
            "{}",
            outcome.setting
        );
        assert_eq!(figure("early at the cable's end"), 0.0);
    }
    let page = std::fs::read_to_string(out.join("isochronous.html")).expect("a page");
    assert!(page.contains("<svg"), "a picture");
}
