//! Every peer against real hosts. Needs root; skips with a reason otherwise.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use takt_bench::awake::usable_cores;
use takt_bench::experiment::Sample;
use takt_bench::peers::{Pair, PeerError, RoundTrips, Stream, tcp, udp, udp_batch, xdp};
use takt_bench::takt::departures::{EARLY, Idle, Run, WIRE_P50, departures};
use takt_bench::takt::{Datapath, Form};
use takt_lab::{Lab, LabConfig, LinkState, Wiring};

/// Held by the test that has hosts: the programs that make hosts for another would have, until their `execve`, a copy of
/// the sockets that this one closes and opens again.
static HOSTS: Mutex<()> = Mutex::new(());

/// Two hosts, and that nobody else makes any; `None` with a reason where none can be made.
fn lab() -> Option<(MutexGuard<'static, ()>, Lab)> {
    lab_of(&LabConfig::default())
}

fn lab_of(config: &LabConfig) -> Option<(MutexGuard<'static, ()>, Lab)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return None;
    }
    let alone = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
    Some((alone, Lab::scratch(config).unwrap()))
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

type MeasureRoundTrips = fn(&Pair<'_>, &RoundTrips) -> Result<Sample, PeerError>;
type MeasureStream = fn(&Pair<'_>, &Stream) -> Result<Sample, PeerError>;

const ROUND_TRIPS: [(&str, MeasureRoundTrips); 4] = [
    ("tcp", tcp::round_trips),
    ("udp blocking", udp::blocking_round_trips),
    ("udp polling", udp::polling_round_trips),
    ("xdp", xdp::round_trips),
];
const STREAMS: [(&str, MeasureStream); 3] = [
    ("tcp", tcp::stream),
    ("udp", udp_batch::stream),
    ("xdp", xdp::stream),
];

#[test]
fn every_round_trip_is_measured_or_counted_as_lost() {
    let Some((_alone, lab)) = lab() else { return };
    for (name, measure) in ROUND_TRIPS {
        for payload in [8, 64, 1472] {
            let sample = measure(
                &pair(&lab),
                &RoundTrips {
                    payload,
                    warm_up: 5,
                    count: 50,
                },
            )
            .unwrap();
            let lost = sample.figures["answers lost"] as u64;
            let measured = sample.latencies.unwrap().count();
            assert!(
                (50 - lost..=50).contains(&measured),
                "{name}: {measured} measured, {lost} lost"
            );
            assert!(measured > 0, "{name}");
        }
    }
}

#[test]
fn a_stream_counts_what_arrives_and_what_is_lost() {
    let Some((_alone, lab)) = lab() else { return };
    for (name, measure) in STREAMS {
        for payload in [8, 1000] {
            let options = Stream {
                payload,
                batch: 32,
                duration: Duration::from_millis(100),
            };
            let throughput = measure(&pair(&lab), &options).unwrap().throughput.unwrap();
            assert!(throughput.messages > 0, "{name}");
            assert_eq!(
                throughput.bytes,
                throughput.messages * payload as u64,
                "{name}"
            );
        }
    }
}

#[test]
fn a_dead_far_end_is_reported_and_not_waited_for() {
    let Some((_alone, lab)) = lab() else { return };
    lab.host(1).link(LinkState::Down).unwrap();
    let options = RoundTrips {
        payload: 64,
        warm_up: 0,
        count: 50,
    };
    assert!(matches!(
        xdp::round_trips(&pair(&lab), &options),
        Err(PeerError::Silent { .. } | PeerError::Io { .. })
    ));
    assert!(udp::polling_round_trips(&pair(&lab), &options).is_err());
}

#[test]
fn a_payload_or_batch_that_does_not_fit_is_refused() {
    let Some((_alone, lab)) = lab() else { return };
    let pair = pair(&lab);
    for payload in [0, 7, 70_000] {
        for (name, measure) in ROUND_TRIPS {
            let refused = measure(
                &pair,
                &RoundTrips {
                    payload,
                    warm_up: 0,
                    count: 1,
                },
            );
            assert!(
                matches!(refused, Err(PeerError::Payload { .. })),
                "{name} {payload}"
            );
        }
    }
    for batch in [0, 5000] {
        for (name, measure) in STREAMS {
            let refused = measure(
                &pair,
                &Stream {
                    payload: 64,
                    batch,
                    duration: Duration::ZERO,
                },
            );
            assert!(
                matches!(refused, Err(PeerError::Batch(_))),
                "{name} {batch}"
            );
        }
    }
}

#[test]
fn every_departure_is_measured_in_every_form() {
    let config = LabConfig {
        wiring: Wiring::Bridge,
        ..LabConfig::default()
    };
    let Some((_alone, lab)) = lab_of(&config) else {
        return;
    };
    let run = Run {
        period: Duration::from_millis(1),
        count: 50,
        payload: 64,
    };
    for form in [Form::Embedded, Form::Daemon] {
        for path in [Datapath::Udp, Datapath::Xdp] {
            let sample = departures(form, path, Idle::default(), &pair(&lab), &run);
            let sample = sample.unwrap_or_else(|error| panic!("{form:?} {path:?}: {error}"));
            assert_eq!(sample.latencies.unwrap().count(), 50, "{form:?} {path:?}");
            // A kernel that is not the sender's has seen each, and none before its time.
            assert!(sample.figures.contains_key(WIRE_P50), "{form:?} {path:?}");
            assert_eq!(sample.figures[EARLY], 0.0, "{form:?} {path:?}");
        }
    }
}
