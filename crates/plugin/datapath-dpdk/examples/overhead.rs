//! What a port adds to bare DPDK over a memif, and what a runtime inside the program adds to that: round trips, and one way.
//!
//! Ends are polled by a thread each, on two devices of this process. All three take turns, so that what disturbs the machine disturbs all.
//! Each writes the whole payload and reads one byte of it.
//!
//!     cargo run --release --example overhead [-- ROUND_TRIPS [TURNS]]

use std::hint::spin_loop;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use takt::{ChannelId, Qos, Session, Sink, Source, Wait};
use takt_datapath::{Datapath, PeerHandle, Port, PortRequest};
use takt_datapath_dpdk::bare::BareDevice;
use takt_datapath_dpdk::{DpdkConfig, DpdkDatapath, HugePages, Subnet};
use takt_embedded::{Embedded, Protection, Security, Settings};
use takt_time::TrafficClass;

/// How long a runtime's end waits for a message before it looks whether it is to end.
const PATIENCE: Duration = Duration::from_micros(100);
const RATE_TIME: Duration = Duration::from_millis(500);
/// As much as a message of 8 KiB needs in one frame, for all three.
const MTU: u16 = 9000;

trait End: Send {
    /// Whether it was sent.
    fn send(&mut self, length: usize) -> bool;
    /// How many have arrived.
    fn poll(&mut self) -> usize;
}

struct BareEnd(BareDevice);

impl End for BareEnd {
    fn send(&mut self, length: usize) -> bool {
        self.0.send(7, length)
    }

    fn poll(&mut self) -> usize {
        self.0.poll(|payload| assert_eq!(payload[0], 7))
    }
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
            .receive(32, &mut |datagram| assert_eq!(datagram.payload[0], 7))
    }
}

struct RuntimeEnd {
    source: Source,
    sink: Sink,
    _session: Session,
    _runtime: Embedded,
}

impl End for RuntimeEnd {
    fn send(&mut self, length: usize) -> bool {
        // Who waits drives the lane.
        let Ok(mut buffer) = self.source.buffer_wait(length, Wait::For(PATIENCE)) else {
            return false;
        };
        buffer.fill(7);
        buffer.emit().is_ok()
    }

    fn poll(&mut self) -> usize {
        let Ok(first) = self.sink.consume(Wait::For(PATIENCE)) else {
            return 0;
        };
        assert_eq!(first[0], 7);
        drop(first);
        let mut count = 1;
        while count < 32
            && let Ok(message) = self.sink.consume(Wait::Never)
        {
            assert_eq!(message[0], 7);
            count += 1;
        }
        count
    }
}

/// The two devices of a memif, new ones each time.
fn devices(turn: usize) -> ([DpdkConfig; 2], tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("memif");
    let roles = [("server", 1), ("client", 2)];
    let configs = roles.map(|(role, last)| {
        // A slot holds a frame.
        let device = format!(
            "net_memif{},role={role},socket-abstract=no,socket={},bsize=16384",
            2 * turn + usize::from(last) - 1,
            socket.display()
        );
        let mut config = DpdkConfig::new(&device);
        config.addresses = vec![Subnet {
            address: address(last),
            prefix: 24,
        }];
        config.huge_pages = HugePages::Off;
        config.mtu = MTU;
        config
    });
    (configs, directory)
}

fn address(last: u8) -> IpAddr {
    [10, 77, 1, last].into()
}

fn bares(configs: &[DpdkConfig; 2]) -> [BareEnd; 2] {
    let mut ends = configs
        .each_ref()
        .map(|config| BareDevice::open(config).expect("a device"));
    while !ends.iter().all(BareDevice::is_up) {
        spin_loop();
    }
    let macs = [ends[1].mac(), ends[0].mac()];
    for (end, mac) in ends.iter_mut().zip(macs) {
        end.connect(mac);
    }
    ends.map(BareEnd)
}

fn datapaths(configs: &[DpdkConfig; 2]) -> [Arc<DpdkDatapath>; 2] {
    configs
        .each_ref()
        .map(|config| Arc::new(DpdkDatapath::probe(config).expect("a device")))
}

fn ports(configs: &[DpdkConfig; 2]) -> [PortEnd; 2] {
    let mut last = 0;
    let mut ports = datapaths(configs).map(|datapath| {
        last += 1;
        let bind = SocketAddr::new(address(last), 7401);
        let request = PortRequest {
            lane: 0,
            lanes: 1,
            bind,
        };
        datapath.open(&request).expect("a port")
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

fn runtimes(configs: &[DpdkConfig; 2]) -> [RuntimeEnd; 2] {
    // Peering is the kernel's, on loopback; messages are the device's.
    let peering = [1, 2].map(|last| SocketAddr::from(([127, 0, 0, last], 7400)));
    let mut at = 0;
    let mut ends = datapaths(configs).map(|datapath| {
        let settings = Settings {
            address: peering[at].ip(),
            port: peering[at].port(),
            peers: vec![peering[1 - at].into()],
            security: Security {
                protection: Protection::None,
                ..Security::default()
            },
            ..Settings::default()
        };
        let runtime = Embedded::start_over(settings, vec![datapath]).expect("a runtime");
        let session = runtime.session("overhead").expect("a session");
        let stream = session
            .stream(
                Qos::fast()
                    .unlimited()
                    .only_over("dpdk".parse().expect("a name")),
            )
            .expect("a stream");
        let (to, from) = (1 + at as u64, 2 - at as u64);
        at += 1;
        RuntimeEnd {
            source: stream.source(ChannelId(to)).expect("a source"),
            sink: stream.sink(ChannelId(from)).expect("a sink"),
            _session: session,
            _runtime: runtime,
        }
    });
    // Until either knows where the other's messages go.
    for sender in [0, 1] {
        let known = Instant::now();
        loop {
            ends[sender].send(1);
            if ends[1 - sender].poll() > 0 {
                break;
            }
            ends[sender].poll();
            assert!(
                known.elapsed() < Duration::from_secs(20),
                "no message comes"
            );
        }
    }
    // What has been sent meanwhile comes, too.
    let quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(100) {
        ends.iter_mut().for_each(|end| {
            end.poll();
        });
    }
    ends
}

/// Median round trip in microseconds.
fn round_trips(ends: &mut [impl End; 2], length: usize, count: usize) -> f64 {
    let [left, right] = ends;
    let end = AtomicBool::new(false);
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                for _ in 0..right.poll() {
                    while !right.send(length) {}
                }
                spin_loop();
            }
        });
        let times = (0..count)
            .map(|_| {
                let start = Instant::now();
                while !left.send(length) {}
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
    println!("medians of {turns} turns, {count} round trips in each");
    println!(
        "| payload | round trip bare, us | port, us | runtime, us | port: a message, ns | runtime: a message, ns \
         | one way bare, k/s | port, k/s | runtime, k/s |"
    );
    let mut turn = 0;
    for length in [64, 1024, 8192] {
        let mut times = [const { Vec::new() }; 3];
        let mut rates = [const { Vec::new() }; 3];
        for _ in 0..turns {
            let mut measure = |which: usize| {
                let (configs, _directory) = devices(turn);
                turn += 1;
                let (time, rate) = match which {
                    0 => both(bares(&configs), length, count),
                    1 => both(ports(&configs), length, count),
                    _ => both(runtimes(&configs), length, count),
                };
                times[which].push(time);
                rates[which].push(rate);
            };
            (0..3).for_each(&mut measure);
        }
        let [bare, port, runtime] = times.each_mut().map(|values| median(values));
        let [bare_rate, port_rate, runtime_rate] = rates.each_mut().map(|values| median(values));
        println!(
            "| {length} | {bare:.2} | {port:.2} | {runtime:.2} | {:+.0} | {:+.0} | {bare_rate:.0} | {port_rate:.0} | {runtime_rate:.0} |",
            (port - bare) * 500.0,
            (runtime - bare) * 500.0
        );
    }
}

fn both(mut ends: [impl End; 2], length: usize, count: usize) -> (f64, f64) {
    let time = round_trips(&mut ends, length, count);
    (time, rate(&mut ends, length))
}
