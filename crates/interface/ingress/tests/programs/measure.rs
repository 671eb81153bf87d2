//! How exactly launch times are met this way, beside the preload's.

use std::time::Instant;

use super::others::pattern;
use super::support::{PORT, Site, Wire, built, dynamic_talker, ended_well, static_talker};

/// Datagrams of a run, one each millisecond.
const COUNT: u32 = 2000;
const ROUNDS: usize = 5;

/// Both ways in turns, in one run on one machine, from the same talker to the same capture.
#[test]
#[ignore = "measures for a minute and asserts nothing about time: cargo test -p takt-ingress --test programs -- --ignored --nocapture"]
fn departures_beside_those_of_preloaded_programs() {
    let site = Site::bridged();
    let wire = site.capture();
    let attached = site.attach(&[]);
    println!("microseconds after the launch time at the far end of the cable:");
    println!(
        "{:8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6}",
        "way", "ahead", "least", "median", "p90", "p99", "most", "early"
    );
    for lead in ["5000", "500", "100"] {
        let mut after = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (way, after) in after.iter_mut().enumerate() {
                after.extend(run(&site, &wire, way == 0, lead));
            }
        }
        for (way, after) in ["preload", "veth"].into_iter().zip(&mut after) {
            after.sort_unstable();
            let at = |part: f64| {
                let place = (after.len() as f64 * part) as usize;
                after[place.min(after.len() - 1)] as f64 / 1000.0
            };
            let early = after.iter().filter(|after| **after < 0).count();
            println!(
                "{way:8} {lead:>8} {:8.1} {:8.1} {:8.1} {:8.1} {:8.1} {early:6}",
                at(0.0),
                at(0.5),
                at(0.9),
                at(0.99),
                at(1.0)
            );
        }
    }
    attached.terminate();
}

fn run(site: &Site, wire: &Wire, preload: bool, lead: &str) -> Vec<i64> {
    let program = if preload {
        dynamic_talker()
    } else {
        static_talker()
    };
    let to = site.addresses()[0];
    let mut talker = site.talker(&program, "tai", to, COUNT, lead);
    if preload {
        talker
            .env("LD_PRELOAD", built("libtakt_preload.so"))
            .env("TAKT_PRELOAD", "required")
            .env("TAKT_SOCKET", site.socket());
    }
    ended_well(talker.output());
    let arrivals = wire.wait(COUNT as usize);
    assert_eq!(arrivals.len(), COUNT as usize, "to port {PORT}");
    arrivals.into_iter().map(|arrival| arrival.after).collect()
}

/// What a pod's TCP gets to the other node by its kernel, and by the runtime, in turns.
#[test]
#[ignore = "measures for a minute and asserts nothing about time: cargo test -p takt-ingress --test programs -- --ignored --nocapture"]
fn throughput_of_what_has_no_launch_time() {
    let site = Site::bridged();
    let sent = pattern(64 << 20);
    let to = site.addresses()[0];
    let ways = ["kernel", "--all", "uplink"];
    let mut rates = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (way, rates) in ways.into_iter().zip(&mut rates) {
            let attached = match way {
                "--all" => Some(site.attach(&["--all"])),
                "uplink" => Some(site.attach_uplink()),
                _ => None,
            };
            let received = site.reader();
            let begin = Instant::now();
            site.write(to, &sent);
            assert!(received.join().expect("read") == sent);
            rates.push(sent.len() as f64 * 8.0 / begin.elapsed().as_secs_f64() / 1e6);
            if let Some(attached) = attached {
                attached.terminate();
            }
        }
    }
    println!("Mbit/s of TCP, median and largest of {ROUNDS}:");
    for (way, rates) in ways.into_iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        println!(
            "{way:8} {:8.0} {:8.0}",
            rates[ROUNDS / 2],
            rates[ROUNDS - 1]
        );
    }
}
