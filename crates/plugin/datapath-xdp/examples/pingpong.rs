//! What a port adds to bare AF_XDP: round trips and one-way rates over a veth pair that this
//! program makes.
//!
//! Each end is polled by one thread on a core of its own. Ports and bare sockets take turns, so that
//! what disturbs the machine disturbs both. Either end writes the whole payload and reads one byte
//! of it; a bare end's headers are written once and never looked at. Needs root; on a machine that
//! does other things as well, run it under `chrt -f 50`.
//!
//!     cargo run --release -p takt-datapath-xdp --example pingpong [-- ROUND_TRIPS [TURNS]]

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use takt_datapath::{Datapath, PeerHandle, Port, PortRequest, ReserveError};
use takt_datapath_xdp::{BareSocket, XdpConfig, XdpDatapath};
use takt_lab::{Host, Lab, LabConfig};
use takt_time::TrafficClass;
use takt_wire::ethernet::MacAddress;
use takt_wire::frame::{UdpFlow, UdpHeaderTemplate};
use takt_wire::ip::Dscp;

const LEFT: &str = "10.77.0.1:4000";
const RIGHT: &str = "10.77.0.2:4000";
const PAYLOAD: usize = 64;
const BURST: usize = 32;
const RATE_TIME: Duration = Duration::from_secs(1);

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse().expect("a number"));
    let round_trips: usize = arguments.next().unwrap_or(100_000);
    let turns: usize = arguments.next().unwrap_or(4);
    let lab = Lab::scratch(&LabConfig::default()).expect("make two hosts");
    let (left_host, right_host) = (lab.host(0), lab.host(1));
    let (left, right) = (probe(left_host), probe(right_host));
    println!("{}\n{}", machine(), left.capabilities().detail);
    println!("{round_trips} round trips of {PAYLOAD} bytes in each turn; microseconds");
    let (mut port_median, mut bare_median) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        let mut ends = (
            port(left_host, &left, LEFT, RIGHT),
            port(right_host, &right, RIGHT, LEFT),
        );
        port_median.push(report("port", play(&mut ends.0, &mut ends.1, round_trips)));
        drop(ends);
        let mut ends = (
            bare(left_host, &left, LEFT, RIGHT),
            bare(right_host, &right, RIGHT, LEFT),
        );
        bare_median.push(report("bare", play(&mut ends.0, &mut ends.1, round_trips)));
    }
    let (port_median, bare_median) = (median(port_median), median(bare_median));
    println!(
        "p50 port {port_median:.2} us, bare {bare_median:.2} us: {:+.1} %",
        (port_median / bare_median - 1.0) * 100.0
    );
    for payload in [64, 1024] {
        let mut ends = (
            port(left_host, &left, LEFT, RIGHT),
            port(right_host, &right, RIGHT, LEFT),
        );
        let (sent, received, seconds) = rate(&mut ends.0, &mut ends.1.port, payload);
        println!(
            "one way, {payload} bytes: {:.3} million datagrams/s received of {:.3} sent, {:.2} \
             Gbit/s of payload",
            received as f64 / seconds / 1e6,
            sent as f64 / seconds / 1e6,
            (received * payload as u64 * 8) as f64 / seconds / 1e9,
        );
    }
}

/// One end of the game.
trait End: Send {
    fn send(&mut self);
    /// Whether something has arrived.
    fn poll(&mut self) -> bool;
}

struct PortEnd {
    port: Box<dyn Port>,
    peer: PeerHandle,
}

impl End for PortEnd {
    fn send(&mut self) {
        let frame = self.port.reserve(self.peer).expect("a frame");
        self.port.payload(&frame)[..PAYLOAD].fill(7);
        self.port
            .commit(frame, PAYLOAD, TrafficClass::BEST_EFFORT, None);
        self.port.flush();
    }

    fn poll(&mut self) -> bool {
        let mut first = 0;
        self.port
            .receive(BURST, &mut |datagram| first = datagram.payload[0])
            > 0
            && first == 7
    }
}

struct BareEnd {
    bare: BareSocket,
    length: usize,
}

impl End for BareEnd {
    fn send(&mut self) {
        let start = self.length - PAYLOAD;
        self.bare.frame()[start..self.length].fill(7);
        assert!(self.bare.send(self.length), "the last frame is under way");
    }

    fn poll(&mut self) -> bool {
        let mut last = 0;
        let receive = |frame: &[u8]| last = frame[frame.len() - 1];
        self.bare.receive(BURST as u32, receive) > 0 && last == 7
    }
}

fn probe(host: &Host) -> XdpDatapath {
    let _inside = host.enter().expect("enter the host");
    XdpDatapath::probe(XdpConfig::new(host.interface())).expect("probe")
}

fn port(host: &Host, datapath: &XdpDatapath, bind: &str, remote: &str) -> PortEnd {
    let request = PortRequest {
        lane: 0,
        lanes: 1,
        bind: bind.parse().expect("address"),
    };
    let inside = host.enter().expect("enter the host");
    let mut port = datapath.open(&request).expect("open");
    drop(inside);
    let peer = port
        .connect(remote.parse().expect("address"))
        .expect("connect");
    loop {
        match port.reserve(peer) {
            Ok(frame) => break port.cancel(frame),
            Err(ReserveError::Unresolved) => spin_loop(),
            Err(error) => panic!("{error}"),
        }
    }
    PortEnd { port, peer }
}

fn bare(host: &Host, datapath: &XdpDatapath, bind: &str, remote: &str) -> BareEnd {
    let (src, dst) = (
        bind.parse().expect("address"),
        remote.parse().expect("address"),
    );
    let inside = host.enter().expect("enter the host");
    let mut bare = datapath.open_bare(0, src).expect("open");
    drop(inside);
    // The veth driver delivers whatever the MAC addresses say.
    let flow = UdpFlow {
        src_mac: MacAddress([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddress([2, 0, 0, 0, 0, 2]),
        vlan: None,
        src,
        dst,
        dscp: Dscp::BEST_EFFORT,
        hop_limit: 64,
    };
    let headers = UdpHeaderTemplate::new(&flow).expect("headers");
    let length = headers.emit(bare.frame(), PAYLOAD, 0, true).expect("fits");
    BareEnd { bare, length }
}

/// Plays `count` round trips and returns their times in nanoseconds.
fn play<E: End>(left: &mut E, right: &mut E, count: usize) -> Vec<u64> {
    let (ready, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            ready.store(true, Ordering::Release);
            while !over.load(Ordering::Relaxed) {
                if right.poll() {
                    right.send();
                }
            }
        });
        let times = scope.spawn(|| {
            pin(0);
            while !ready.load(Ordering::Acquire) {
                spin_loop();
            }
            let mut times = Vec::with_capacity(count);
            for _ in 0..count {
                let start = Instant::now();
                left.send();
                while !left.poll() {}
                times.push(start.elapsed().as_nanos() as u64);
            }
            over.store(true, Ordering::Relaxed);
            times
        });
        times.join().expect("the player")
    })
}

/// Sends for [`RATE_TIME`]; returns datagrams sent and received, and seconds.
fn rate(left: &mut PortEnd, right: &mut Box<dyn Port>, payload: usize) -> (u64, u64, f64) {
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                let new = right.receive(64, &mut |datagram| {
                    assert_eq!(datagram.payload.len(), payload)
                });
                if new > 0 {
                    count += new as u64;
                    received.store(count, Ordering::Relaxed);
                }
            }
        });
        let sender = scope.spawn(|| {
            pin(0);
            let (start, mut sent) = (Instant::now(), 0);
            while start.elapsed() < RATE_TIME {
                for _ in 0..BURST {
                    let Ok(frame) = left.port.reserve(left.peer) else {
                        break;
                    };
                    left.port.payload(&frame)[..payload].fill(1);
                    left.port
                        .commit(frame, payload, TrafficClass::BEST_EFFORT, None);
                    sent += 1;
                }
                left.port.flush();
            }
            let seconds = start.elapsed().as_secs_f64();
            over.store(true, Ordering::Relaxed);
            (sent, seconds)
        });
        let (sent, seconds) = sender.join().expect("the sender");
        (sent, received.load(Ordering::Relaxed), seconds)
    })
}

/// Prints percentiles and returns the median in microseconds.
fn report(name: &str, mut times: Vec<u64>) -> f64 {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    println!(
        "{name}: min {:.2}  p50 {:.2}  p90 {:.2}  p99 {:.2}  p99.9 {:.2}  max {:.2}",
        at(0.0),
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    at(0.5)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn pin(core: usize) {
    // SAFETY: zeros are an empty set; the set is changed and read within its size.
    let pinned = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    assert_eq!(
        pinned,
        0,
        "pin to core {core}: {}",
        std::io::Error::last_os_error()
    );
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or(": unknown");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{}, {cores} cores, Linux {}",
        model.trim_start_matches([' ', '\t', ':']),
        read("/proc/sys/kernel/osrelease").trim()
    )
}
