//! What a port adds to bare libfabric over TCP on the loopback interface: round trips, and one way.
//!
//! Ports and bare endpoints take turns, so that what disturbs the machine disturbs both.
//!
//!     cargo run --release --example overhead [-- ROUND_TRIPS [TURNS]]

use std::net::SocketAddr;

use takt_datapath::overhead::{self, End, FILLING, PortEnd, measure, median};
use takt_datapath_fabric::bare::BareEndpoint;
use takt_datapath_fabric::{FabricConfig, FabricDatapath, Provider};

struct BareEnd(BareEndpoint);

impl End for BareEnd {
    fn send(&mut self, length: usize) -> bool {
        self.0.send(FILLING, length)
    }

    fn poll(&mut self) -> usize {
        self.0.poll(|message| assert_eq!(message[0], FILLING))
    }
}

fn ports(config: &FabricConfig) -> [PortEnd; 2] {
    let datapath = FabricDatapath::probe(config).expect("libfabric's tcp");
    overhead::ports([&datapath, &datapath], addresses())
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
            let (time, rate) = measure(bares(&config), length, count);
            all[0].push(time);
            all[2].push(rate);
            let (time, rate) = measure(ports(&config), length, count);
            all[1].push(time);
            all[3].push(rate);
        }
        let [bare, port, bare_rate, port_rate] = all.each_mut().map(|values| median(values));
        println!(
            "| {length} | {bare:.2} | {port:.2} | {:+.0} | {bare_rate:.0} | {port_rate:.0} |",
            (port - bare) * 500.0
        );
    }
}
