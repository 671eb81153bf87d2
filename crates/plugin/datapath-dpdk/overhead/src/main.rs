//! What a port adds to bare DPDK over a memif, and what a runtime inside the program adds to that: round trips, and one way.
//!
//! Ends are polled by a thread each, on two devices of this process. All three take turns, so that what disturbs the machine disturbs all.
//!
//!     cargo run --release -p takt-datapath-dpdk-overhead [-- ROUND_TRIPS [TURNS]]
//!
//! A package of its own: tests of the datapath are built without the runtime.

use std::hint::spin_loop;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use takt::{ChannelId, Qos, Session, Sink, Source, Wait};
use takt_datapath::overhead::{self, End, FILLING, PortEnd, measure, median};
use takt_datapath_dpdk::bare::BareDevice;
use takt_datapath_dpdk::{DpdkConfig, DpdkDatapath, HugePages, Subnet};
use takt_embedded::{Embedded, Protection, Security, Settings};

/// How long a runtime's end waits for a message before it looks whether it is to end.
const PATIENCE: Duration = Duration::from_micros(100);
/// As much as a message of 8 KiB needs in one frame, for all three.
const MTU: u16 = 9000;

struct BareEnd(BareDevice);

impl End for BareEnd {
    fn send(&mut self, length: usize) -> bool {
        self.0.send(FILLING, length)
    }

    fn poll(&mut self) -> usize {
        self.0.poll(|payload| assert_eq!(payload[0], FILLING))
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
        buffer.fill(FILLING);
        buffer.emit().is_ok()
    }

    fn poll(&mut self) -> usize {
        let Ok(first) = self.sink.consume(Wait::For(PATIENCE)) else {
            return 0;
        };
        assert_eq!(first[0], FILLING);
        drop(first);
        let mut count = 1;
        while count < 32
            && let Ok(message) = self.sink.consume(Wait::Never)
        {
            assert_eq!(message[0], FILLING);
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
    let [left, right] = datapaths(configs);
    let binds = [1, 2].map(|last| SocketAddr::new(address(last), 7401));
    overhead::ports([&*left, &*right], binds)
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
            let mut turn_of = |which: usize| {
                let (configs, _directory) = devices(turn);
                turn += 1;
                let (time, rate) = match which {
                    0 => measure(bares(&configs), length, count),
                    1 => measure(ports(&configs), length, count),
                    _ => measure(runtimes(&configs), length, count),
                };
                times[which].push(time);
                rates[which].push(rate);
            };
            (0..3).for_each(&mut turn_of);
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
