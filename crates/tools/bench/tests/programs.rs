//! Other messaging systems between real hosts. Needs root and, for most, the program of `bench-peers`;
//! skips with a reason otherwise.

use std::time::Duration;

use takt_bench::awake::usable_cores;
use takt_bench::pace::Steady;
use takt_bench::peers::programs::{Programs, System};
use takt_bench::peers::{Beside, Critical, LINK, Pair, PeerError, RoundTrips, Stream};
use takt_lab::{Lab, LabConfig};

fn lab() -> Option<Lab> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return None;
    }
    Some(Lab::scratch(&LabConfig::default()).unwrap())
}

/// The program, looked for from the root of the source tree; `None` with a reason where it is not built.
fn programs() -> Option<Programs> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(3)
        .unwrap();
    std::env::set_current_dir(root).unwrap();
    Programs::find()
        .inspect_err(|reason| eprintln!("skipped: {reason}"))
        .ok()
}

fn pair(lab: &Lab) -> Pair<'_> {
    let cores = usable_cores().unwrap();
    Pair {
        near: lab.host(0),
        far: lab.host(1),
        near_core: cores[0],
        far_core: cores[cores.len() - 1],
    }
}

const SYSTEMS: [System; 3] = [System::Zenoh, System::ZeroMq, System::Iceoryx2];

#[test]
fn every_system_carries_round_trips_and_streams() {
    let (Some(lab), Some(programs)) = (lab(), programs()) else {
        return;
    };
    for system in SYSTEMS {
        let round_trips = RoundTrips {
            payload: 64,
            warm_up: 10,
            count: 200,
        };
        let sample = programs
            .round_trips(system, &pair(&lab), &round_trips)
            .unwrap();
        assert_eq!(sample.latencies.unwrap().count(), 200, "{system:?}");
        let stream = Stream {
            payload: 64,
            batch: 1,
            duration: Duration::from_millis(200),
        };
        let throughput = programs
            .stream(system, &pair(&lab), &stream)
            .unwrap()
            .throughput
            .unwrap();
        assert!(
            throughput.messages > 0 && throughput.nanoseconds > 0,
            "{system:?}: {throughput:?}"
        );
        assert_eq!(throughput.bytes, throughput.messages * 64, "{system:?}");
    }
}

#[test]
fn a_critical_flow_by_cyclone_dds_is_counted_beside_what_it_shares_its_way_with() {
    let (Some(lab), Some(programs)) = (lab(), programs()) else {
        return;
    };
    let flow = Critical {
        payload: 128,
        pace: Steady {
            rate: 1000.0,
            duration: Duration::from_millis(500),
        },
    };
    for beside in [Beside::Nothing, Beside::Saturating, Beside::Bursts] {
        let sample = programs.critical(&pair(&lab), &flow, beside).unwrap();
        let throughput = sample.throughput.unwrap();
        assert_eq!((throughput.messages, throughput.lost), (500, 0));
        assert!(sample.figures[LINK] > 1.0);
    }
}

#[test]
fn iceoryx2_tells_the_way_of_each_message() {
    let (Some(lab), Some(programs)) = (lab(), programs()) else {
        return;
    };
    let options = RoundTrips {
        payload: 4096,
        warm_up: 10,
        count: 200,
    };
    let sample = programs.iceoryx2_one_way(&pair(&lab), &options).unwrap();
    assert_eq!(sample.latencies.unwrap().count(), 210);
}

#[test]
fn a_program_that_does_not_keep_to_the_protocol_is_named_with_what_it_did() {
    let Some(lab) = lab() else { return };
    let options = RoundTrips {
        payload: 64,
        warm_up: 0,
        count: 1,
    };
    for (program, complaint) in [
        ("/bin/true", "it ended early (exit status: 0)"),
        ("/bin/echo", "instead of being ready"),
        ("/nowhere", "No such file"),
    ] {
        let error = Programs::at(program)
            .round_trips(System::ZeroMq, &pair(&lab), &options)
            .unwrap_err();
        assert!(matches!(error, PeerError::Program { .. }));
        let text = error.to_string();
        assert!(
            text.contains(&format!("{program} zmq-pong --address 10.77.0.2:")),
            "{text}"
        );
        assert!(text.contains(complaint), "{text}");
    }
}
