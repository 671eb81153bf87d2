//! What sessions that do nothing cost those that are at work: round trips of 64 bytes between two applications of a
//! node, beside one and beside 250 idle sessions, by turns.
//!
//!     cargo test --release -p takt-runtime --test idle_sessions -- --ignored --nocapture

mod support;

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};
use support::{App, Sink, Source, config, free_port, start};
use takt_runtime::Runtime;
use takt_session::Qos;

/// Turns of each, and round trips of a turn.
const TURNS: usize = 20;
const TRIPS: usize = 5_000;

/// Two applications that answer each other, and those that do nothing.
struct Scene {
    _runtime: Runtime,
    ends: [(App, Source, Sink); 2],
    _idle: Vec<App>,
}

impl Scene {
    fn new(idle: usize) -> Self {
        let runtime = start(config(free_port(), &[]));
        let ends = [(1, 2), (2, 1)].map(|(out, into)| {
            let mut app = App::attach(runtime.handle());
            let stream = app.stream(Qos::slow());
            let (source, sink) = (app.source(stream, out, 0), app.sink(stream, into, 0));
            (app, source, sink)
        });
        let idle = (0..idle)
            .map(|number| {
                let mut app = App::attach(runtime.handle());
                let stream = app.stream(Qos::slow());
                app.source(stream, 100 + number as u64, 16);
                app.sink(stream, 100 + number as u64, 16);
                app
            })
            .collect();
        Self {
            _runtime: runtime,
            ends,
            _idle: idle,
        }
    }

    fn send(&mut self, end: usize) {
        let (app, source, _) = &mut self.ends[end];
        app.emit(source, 0, &[7; 64], 0);
    }

    fn receive(&mut self, end: usize) {
        let (app, _, sink) = &mut self.ends[end];
        while app.take(sink).is_none() {
            std::hint::spin_loop();
        }
    }

    /// Waits for the completion: the memory is used again.
    fn complete(&mut self, end: usize) {
        let (app, source, _) = &mut self.ends[end];
        app.completion(source);
    }

    fn trips(&mut self, count: usize) -> Vec<Duration> {
        (0..count)
            .map(|_| {
                let began = Instant::now();
                for (from, to) in [(0, 1), (1, 0)] {
                    self.send(from);
                    self.receive(to);
                }
                let took = began.elapsed();
                self.complete(0);
                self.complete(1);
                took
            })
            .collect()
    }
}

#[test]
#[ignore = "a measurement"]
fn round_trips_beside_idle_sessions() {
    // A session takes seven descriptors of this process, which is both ends of it.
    let most = Rlimit {
        current: Some(8192),
        maximum: Some(8192),
    };
    setrlimit(Resource::Nofile, most).expect("as many descriptors");
    let mut scenes = [1, 250].map(|idle| (idle, Scene::new(idle), Vec::new()));
    for turn in 0..=TURNS {
        for (_, scene, all) in &mut scenes {
            let trips = scene.trips(TRIPS);
            // The first turn warms up.
            if turn > 0 {
                all.extend(trips);
            }
        }
    }
    for (idle, _, all) in &mut scenes {
        all.sort_unstable();
        let at = |share: usize| all[all.len() * share / 1000].as_nanos() as f64 / 1e3;
        println!(
            "{idle:>3} idle sessions: round trip p50 {:.2} µs, p90 {:.2}, p99 {:.2}, p99.9 {:.2}",
            at(500),
            at(900),
            at(990),
            at(999)
        );
    }
}
