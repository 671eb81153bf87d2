//! What `takt demo` compares by: the capture at the far end of the cable, beside the runtime's own counters; that nothing of a
//! critical flow is lost beside what its link cannot carry; and nothing of a stream that changes its technology.

mod support;

use std::sync::{Mutex, PoisonError};

use support::takt;
use takt_bench::report::Report;
use takt_datapath::plugin::file_name;
use takt_testing::{Directory, built};

/// Each of these experiments keeps all cores of a small machine busy.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn what_the_runtime_counts_is_what_was_captured_and_nothing_left_early() {
    if !takt_bench::machine::is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
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

#[test]
fn a_critical_flow_beside_more_than_its_link_carries_is_complete_and_in_order() {
    if !takt_bench::machine::is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let out = Directory::new();
    let out = out.text("report");
    let arguments = [
        "bench",
        "critical",
        "--rate=2000",
        "--seconds=0.5",
        "--rounds=1",
        "--only=Takt",
        "--json",
        "--out",
        &out,
    ];
    let output = takt(&arguments).output().expect("takt");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Report = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(report.outcomes.len(), 3, "alone, saturating, bursts");
    for outcome in &report.outcomes {
        assert_eq!(outcome.variants.len(), 2, "kernel UDP and AF_XDP");
        for variant in &outcome.variants {
            let samples: Vec<_> = variant.samples().collect();
            let [sample] = samples[..] else {
                panic!("one run: {said}");
            };
            let throughput = sample.throughput.expect("a throughput");
            assert_eq!((throughput.messages, throughput.lost), (1000, 0), "{said}");
            assert_eq!(sample.figures["wrong"], 0.0, "{said}");
            // The flow itself is 2 Mbit/s of payload.
            let link = sample.figures[takt_bench::peers::LINK];
            let saturating = outcome.setting.contains("saturating");
            assert!(link > 2.0 && (!saturating || link > 20.0), "{said}");
        }
    }
}

#[test]
fn streams_roam_over_all_technologies_and_nothing_of_the_reliable_one_is_lost() {
    if !takt_bench::machine::is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let plugins = built().join("../datapaths/debug");
    let is_there = |name: &&str| plugins.join(file_name(name)).exists();
    let loaded: Vec<&str> = ["dpdk", "fabric"].into_iter().filter(is_there).collect();
    if loaded.len() < 2 {
        eprintln!("only {loaded:?} of dpdk and fabric: `make unit` builds both beforehand");
    }
    let journey = [&["udp", "xdp"], &loaded[..], &["udp"]].concat();
    let out = Directory::new();
    let output = takt(&["demo", "roam", "--seconds=0.3", "--json", "--over"])
        .arg(journey.join(","))
        .arg("--plugins")
        .arg(&plugins)
        .arg("--out")
        .arg(out.join("report"))
        .output()
        .expect("takt");
    let said = String::from_utf8_lossy(&output.stderr);
    let found = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{found}");
    let report: Report = serde_json::from_slice(&output.stdout).expect("a report");
    let [outcome] = &report.outcomes[..] else {
        panic!("one table: {said}");
    };
    let stays: Vec<String> = (1..)
        .zip(&journey)
        .map(|(at, name)| format!("{at}. {name}"))
        .collect();
    let been: Vec<&str> = outcome.variants.iter().map(|v| v.name.as_str()).collect();
    assert_eq!(been, stays);
    for variant in &outcome.variants {
        let samples: Vec<_> = variant.samples().collect();
        let [sample] = samples[..] else {
            panic!("one run: {said}");
        };
        let figure = |name: &str| sample.figures[name];
        assert!(figure("datagrams of its port") > 0.0, "{said}");
        assert!(figure("reliable messages") > 0.0, "{said}");
        assert!(figure("messages sent once") > 0.0, "{said}");
    }
    for stream in ["Reliable: ", "Sent once: "] {
        let told = report.introduction.lines();
        let told: Vec<_> = told.filter(|line| line.starts_with(stream)).collect();
        assert!(
            told.len() == 1 && told[0].contains(" 0 missing"),
            "{told:?}"
        );
    }
}

#[test]
fn a_technology_whose_plugin_is_not_there_is_refused_by_name() {
    let plugins = Directory::new();
    let output = takt(&["demo", "roam", "--over=udp,dpdk", "--plugins"])
        .arg(plugins.path())
        .output()
        .expect("takt");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("libtakt_datapath_dpdk.so"), "{said}");
    assert!(said.contains("leave dpdk out of --over"), "{said}");
}
