//! A report as a reader gets it.

use std::path::PathBuf;

use takt_bench::experiment::{Experiment, Round, Sample, Variant};
use takt_bench::report::Report;
use takt_bench::statistics::{Latencies, Throughput};

/// A directory of this test's own, removed with it.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("takt-report-{}-{name}", std::process::id())))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn latencies(from_ns: u64, count: u64) -> Sample {
    let mut latencies = Latencies::new();
    (0..count).for_each(|i| latencies.record_ns(from_ns + i));
    latencies.into()
}

fn report() -> Report {
    let mut report = Report::new("Round trips & <rates>", "What it answers.\n\nAnd how.").unwrap();
    for (setting, scale) in [("64 B", 1), ("1 KiB", 2)] {
        let round_trips = Experiment {
            name: "Round trip".into(),
            setting: setting.into(),
            method: "One message at a time.".into(),
            rounds: 3,
            baseline: Some("bare".into()),
            variants: vec![
                Variant::new("bare", move |_: &Round| Ok(latencies(5_000 * scale, 2_000))),
                Variant::new("ours", move |_: &Round| Ok(latencies(6_000 * scale, 2_000))),
                Variant::new("broken", |_: &Round| Err("no <cable>".into())),
            ],
        };
        report.outcomes.push(round_trips.run().unwrap());
    }
    let throughput = Throughput {
        messages: 2_396_000,
        bytes: 64 * 2_396_000,
        lost: 4_000,
        nanoseconds: 1_000_000_000,
    };
    let stream = Experiment {
        name: "Stream".into(),
        setting: String::new(),
        method: String::new(),
        rounds: 1,
        baseline: None,
        variants: vec![Variant::new("ours", move |_: &Round| Ok(throughput.into()))],
    };
    report.outcomes.push(stream.run().unwrap());
    report
}

#[test]
fn the_page_needs_nothing_else_and_tells_every_figure() {
    let directory = Directory::new("page");
    let written = report().write(&directory.0, "run").unwrap();
    let page = std::fs::read_to_string(&written.html).unwrap();
    for outside in ["<script", "<link", "<img", "src=", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    for told in [
        "<title>Round trips &amp; &lt;rates&gt;</title>",
        "p99.9",
        "1.17×",
        "64 B",
        "1 KiB",
        "2396",
        "failed in 3 of 3 rounds: no &lt;cable&gt;",
        "One message at a time.",
        "<p>And how.</p>",
        "Virtual machine",
    ] {
        assert!(page.contains(told), "{told} is missing");
    }
    // Two latency curves, the bars of their medians, the bars of the rate.
    assert_eq!(page.matches("<svg").count(), 4);
}

#[test]
fn the_json_file_holds_the_whole_report() {
    let directory = Directory::new("json");
    let report = report();
    let written = report.write(&directory.0, "run").unwrap();
    assert_eq!(Report::read(&written.json).unwrap(), report);
}

#[test]
fn a_file_that_is_no_report_is_named() {
    let directory = Directory::new("broken");
    std::fs::create_dir_all(&directory.0).unwrap();
    let path = directory.0.join("broken.json");
    std::fs::write(&path, "[1]").unwrap();
    let error = Report::read(&path).unwrap_err().to_string();
    assert!(error.contains("broken.json"), "{error}");
}
