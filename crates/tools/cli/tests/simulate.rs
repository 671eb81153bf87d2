//! `takt simulate balance`: as people call it, on traffic that is made and on a capture.

mod support;

use std::fs::File;

use serde_json::Value;
use support::run;
use takt_capture::Meta;
use takt_capture::pcapng::Writer;
use takt_testing::Directory;

const SHORT: &[&str] = &[
    "simulate",
    "balance",
    "--duration",
    "100ms",
    "--rate",
    "1Gbit",
    "--strategies",
    "ecmp,intra,inter,inter-done,inter-hold",
    "--capacity",
    "1.2..2.0",
];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SHORT.iter().copied().chain(more.iter().copied()).collect()
}

fn account(arguments: &[&str]) -> Value {
    let ran = run(arguments);
    assert!(ran.code == Some(0), "{arguments:?}: {}", ran.err);
    serde_json::from_str(&ran.out).expect("JSON")
}

#[test]
fn equal_seeds_give_equal_figures_and_no_move_that_waits_reorders_anything() {
    let one = account(&with(&["--json", "--jobs", "1", "--seeds", "2"]));
    let two = account(&with(&["--json", "--jobs", "2", "--seeds", "2"]));
    assert_eq!(one, two);
    let other = account(&with(&["--json", "--seed", "7"]));
    assert_ne!(one["points"][0], other["points"][0]);
    let needed = one["needed"].as_array().expect("variants");
    assert_eq!(needed.len(), 5);
    for strategy in ["inter-done", "inter-hold"] {
        let waits = needed
            .iter()
            .position(|one| one["strategy"] == strategy)
            .expect("the strategy");
        for points in one["points"].as_array().expect("seeds") {
            let points = points.as_array().expect("points");
            let own = points.iter().filter(|point| point["variant"] == waits);
            let reordered: Vec<&Value> = own.map(|point| &point["reordered"]).collect();
            assert!(!reordered.is_empty() && reordered.iter().all(|count| **count == 0));
        }
    }
}

#[test]
fn people_get_a_table_and_a_picture() {
    let directory = Directory::new();
    let picture = directory.text("curves.svg");
    let ran = run(&with(&["--svg", &picture]));
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    for text in [
        "NEEDED GIPS",
        "inter-done",
        "p99 in us",
        "GIPS to do on average",
    ] {
        assert!(ran.out.contains(text), "{text} in {}", ran.out);
    }
    let svg = std::fs::read_to_string(&picture).expect("the picture");
    assert!(svg.starts_with("<svg") && svg.contains("inter-done"));
    let alone = run(&with(&["--svg", "-"]));
    assert!(alone.out.starts_with("<svg") && !alone.out.contains("NEEDED"));
}

#[test]
fn a_capture_is_replayed_and_a_file_that_is_none_is_refused() {
    let directory = Directory::new();
    let path = directory.text("a.pcapng");
    let mut writer = Writer::new(File::create(&path).expect("a file"), 65_535).expect("written");
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 46];
    frame.extend([
        0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 0,
    ]);
    frame.extend([0, 26, 0, 0]);
    frame.resize(60, 0);
    for number in 0..1000_u16 {
        frame[36..38].copy_from_slice(&(number % 50).to_be_bytes());
        let meta = Meta {
            utc_ns: 1_000_000_000 + i64::from(number) * 10_000,
            length: 60,
            link_type: 1,
        };
        writer.packet(&meta, &frame).expect("written");
    }
    drop(writer);
    let replay = [
        "simulate", "balance", "--pcap", &path, "--nodes", "2", "--json",
    ];
    let found = account(&replay);
    assert_eq!(found["traffic"][0]["packets"], 2000);
    assert_eq!(found["traffic"][0]["flows"], 100);

    let none = directory.text("none");
    std::fs::write(&none, "no capture at all, whatever it says").expect("written");
    let ran = run(&["simulate", "balance", "--pcap", &none]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("neither pcap nor pcapng"), "{}", ran.err);
}
