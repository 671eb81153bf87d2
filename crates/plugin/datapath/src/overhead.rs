//! What a port adds to the bare technology below it: round trips and one way, measured alike for both. For the examples `overhead` of
//! datapaths.
//!
//! Ends are polled by a thread each. Either writes the whole payload and reads one byte of it.

use std::hint::spin_loop;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use takt_time::TrafficClass;

use crate::{Datapath, PeerHandle, Port, PortRequest};

const RATE_TIME: Duration = Duration::from_millis(500);
/// What payloads are made of.
pub const FILLING: u8 = 7;

/// One of two ends that send to each other.
pub trait End: Send {
    /// Sends so many octets. Whether it could.
    fn send(&mut self, length: usize) -> bool;
    /// How many messages have arrived.
    fn poll(&mut self) -> usize;
}

/// A port with one peer.
pub struct PortEnd(Box<dyn Port>, PeerHandle);

impl End for PortEnd {
    fn send(&mut self, length: usize) -> bool {
        let Ok(frame) = self.0.reserve(self.1) else {
            self.0.flush();
            return false;
        };
        self.0.payload(&frame)[..length].fill(FILLING);
        self.0
            .commit(frame, length, TrafficClass::BEST_EFFORT, None);
        self.0.flush();
        true
    }

    fn poll(&mut self) -> usize {
        self.0.receive(32, &mut |datagram| {
            assert_eq!(datagram.payload[0], FILLING);
        })
    }
}

/// Ports of two datapaths that reach each other.
///
/// # Panics
/// When a port cannot be opened, or its peer not be connected.
pub fn ports(datapaths: [&dyn Datapath; 2], binds: [SocketAddr; 2]) -> [PortEnd; 2] {
    let mut ports = [0, 1].map(|end| {
        let request = PortRequest {
            lane: 0,
            lanes: 1,
            bind: binds[end],
        };
        datapaths[end].open(&request).expect("a port")
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

/// The median round trip of so many, in microseconds, and how many thousands of messages a second arrive one way.
pub fn measure(mut ends: [impl End; 2], length: usize, count: usize) -> (f64, f64) {
    let time = round_trips(&mut ends, length, count);
    (time, rate(&mut ends, length))
}

fn round_trips(ends: &mut [impl End; 2], length: usize, count: usize) -> f64 {
    let [left, right] = ends;
    let end = AtomicBool::new(false);
    let mut times: Vec<f64> = std::thread::scope(|scope| {
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
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        end.store(true, Ordering::Relaxed);
        times
    });
    median(&mut times)
}

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

/// The median of some values; 0 of none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryNetwork, MemoryNetworkConfig};

    #[test]
    fn ports_of_a_network_in_memory_are_measured() {
        let network = MemoryNetwork::new(MemoryNetworkConfig::default());
        let binds = [1, 2].map(|last| ([10, 0, 0, last], 7401).into());
        let ends = ports([&network, &network], binds);
        let (time, rate) = measure(ends, 64, 100);
        assert!(time > 0.0 && rate > 0.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut []), 0.0);
    }
}
