//! What a port adds to bare libfabric over TCP on the loopback interface: round trips, and one way.
//!
//! Ends are polled by a thread each. Ports and bare endpoints take turns, so that what disturbs the machine disturbs
//! both. Either writes the whole payload and reads one byte of it.
//!
//!     cargo run --release --example overhead [-- ROUND_TRIPS [TURNS]]

use std::hint::spin_loop;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use takt_datapath::{Datapath, PeerHandle, Port, PortRequest};
use takt_datapath_fabric::bare::BareEndpoint;
use takt_datapath_fabric::{FabricConfig, FabricDatapath, Provider};
use takt_time::TrafficClass;

const RATE_TIME: Duration = Duration::from_millis(500);

trait End: Send {
    /// Whether it was sent.
    fn send(&mut self, length: usize) -> bool;
    /// How many have arrived.
    fn poll(&mut self) -> usize;
}

struct PortEnd(Box<dyn Port>, PeerHandle);

impl End for PortEnd {
    fn send(&mut self, length: usize) -> bool {
        let Ok(frame) = self.0.reserve(self.1) else {
            self.0.flush();
            return false;
        };
        self.0.payload(&frame)[..length].fill(7);
        self.0
            .commit(frame, length, TrafficClass::BEST_EFFORT, None);
        self.0.flush();
        true
    }

    fn poll(&mut self) -> usize {
        self.0
            .receive(16, &mut |datagram| assert_eq!(datagram.payload[0], 7))
    }
}

struct BareEnd(BareEndpoint);

impl End for BareEnd {
    fn send(&mut self, length: usize) -> bool {
        self.0.send(7, length)
    }

    fn poll(&mut self) -> usize {
        self.0.poll(|message| assert_eq!(message[0], 7))
    }
}

fn ports(config: &FabricConfig) -> [PortEnd; 2] {
    let datapath = FabricDatapath::probe(config).expect("libfabric's tcp");
    let mut ports = addresses().map(|bind| {
        datapath
            .open(&PortRequest {
                lane: 0,
                lanes: 1,
                bind,
            })
            .expect("a port")
    });
    let names = [ports[1].local(), ports[0].local()];
    let peers = [0, 1].map(|end| ports[end].connect(names[end]).expect("a peer"));
    while ![0, 1].iter().all(|&end| ports[end].reaches(peers[end])) {
        for port in &mut ports {
            port.flush();
            port.receive(1, &mut |_| {});
        }
    }
    let [left, right] = ports;
    [PortEnd(left, peers[0]), PortEnd(right, peers[1])]
}

fn bares(config: &FabricConfig) -> [BareEnd; 2] {
    let mut ends = addresses().map(|bind| BareEndpoint::open(config, bind).expect("an endpoint"));
    let names = [ends[1].local(), ends[0].local()];
    for (end, name) in ends.iter_mut().zip(names) {
        end.connect(name).expect("a peer");
    }
    // One after the other, for both would connect at the same time otherwise.
    for sender in [0, 1] {
        let mut sent = false;
        loop {
            sent = sent || ends[sender].send(7, 1);
            let arrived = ends[1 - sender].poll(|_| {});
            ends[sender].poll(|_| {});
            if arrived > 0 {
                break;
            }
        }
    }
    ends.map(BareEnd)
}

fn addresses() -> [SocketAddr; 2] {
    [1, 2].map(|last| ([127, 0, 0, last], 0).into())
}

/// Median round trip in microseconds.
fn round_trips(ends: &mut [impl End; 2], length: usize, count: usize) -> f64 {
    let [left, right] = ends;
    let end = AtomicBool::new(false);
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                for _ in 0..right.poll() {
                    while !right.send(length) {
                        right.poll();
                    }
                }
                spin_loop();
            }
        });
        let times = (0..count)
            .map(|_| {
                let start = Instant::now();
                while !left.send(length) {
                    left.poll();
                }
                while left.poll() == 0 {
                    spin_loop();
                }
                start.elapsed()
            })
            .collect();
        end.store(true, Ordering::Relaxed);
        times
    });
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Thousands of messages a second that arrive.
fn rate(ends: &mut [impl End; 2], length: usize) -> f64 {
    let [left, right] = ends;
    let end = AtomicBool::new(false);
    let arrived = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                if !left.send(length) {
                    left.poll();
                }
            }
        });
        let start = Instant::now();
        let mut arrived = 0;
        while start.elapsed() < RATE_TIME {
            arrived += right.poll();
        }
        end.store(true, Ordering::Relaxed);
        arrived
    });
    arrived as f64 / RATE_TIME.as_secs_f64() / 1e3
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse().expect("a number"));
    let count: usize = arguments.next().unwrap_or(20_000);
    let turns: usize = arguments.next().unwrap_or(7);
    let config = FabricConfig::new(Provider::Tcp);
    println!("medians of {turns} turns, {count} round trips in each");
    println!(
        "| payload | round trip bare, us | port, us | a message, ns | one way bare, k/s | port, k/s |"
    );
    for length in [64, 1024, 8192] {
        let mut all = [const { Vec::new() }; 4];
        for _ in 0..turns {
            let mut ends = bares(&config);
            all[0].push(round_trips(&mut ends, length, count));
            all[2].push(rate(&mut ends, length));
            drop(ends);
            let mut ends = ports(&config);
            all[1].push(round_trips(&mut ends, length, count));
            all[3].push(rate(&mut ends, length));
        }
        let [bare, port, bare_rate, port_rate] = all.each_mut().map(|values| median(values));
        println!(
            "| {length} | {bare:.2} | {port:.2} | {:+.0} | {bare_rate:.0} | {port_rate:.0} |",
            (port - bare) * 500.0
        );
    }
}
