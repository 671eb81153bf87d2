//! Frames that Takt's own datapath over kernel UDP sends, instead of a packet socket.

use takt_datapath::{Datapath, Port, PortRequest};
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_oracle::{Case, ETHERNET_TO_PAYLOAD, Frame, OWN_ADDRESS, PEER};
use takt_time::{TaiTime, TrafficClass};

/// Calls of `receive` after which every report has been taken, by far.
const LOOKS: usize = 10_000;

/// The datapath with one port and one peer.
pub struct Sender {
    port: Box<dyn Port>,
    peer: takt_datapath::PeerHandle,
}

impl Sender {
    /// Opens it, and notes if it does not say of itself what the queueing disciplines of the case make true.
    pub fn open(case: &Case, failures: &mut Vec<String>) -> Self {
        let datapath = UdpDatapath::new(UdpConfig::default());
        let capabilities = datapath.capabilities();
        println!("datapath: {}", capabilities.detail);
        if !capabilities.hardware_launch_time {
            failures.push(format!("no launch times: {}", capabilities.detail));
        }
        let request = PortRequest {
            lane: 0,
            lanes: 1,
            bind: OWN_ADDRESS.parse().expect("an address"),
        };
        let mut port = datapath.open(&request).expect("a port");
        let peer = port
            .connect(PEER.parse().expect("an address"))
            .expect("a route");
        for class in TrafficClass::all() {
            let kept = case.keeps(u32::from(class.number()));
            if port.keeps_launch_time(peer, class) != kept {
                failures.push(format!(
                    "class {class}: launch times are not kept as {kept}"
                ));
            }
        }
        Self { port, peer }
    }

    pub fn send(&mut self, number: usize, frame: &Frame, start: i64) {
        let length = frame.len - ETHERNET_TO_PAYLOAD;
        let reserved = self.port.reserve(self.peer).expect("a frame");
        let payload = self.port.payload(&reserved);
        payload[..8].copy_from_slice(&(number as u64).to_be_bytes());
        let class = TrafficClass::new(frame.priority as u8).expect("a class");
        let launch = frame.launch_ns.map(|at| TaiTime::from_nanos(start + at));
        self.port.commit(reserved, length, class, launch);
        assert!(self.port.flush(), "the send buffer is full");
    }

    /// How many frames were counted as not sent.
    pub fn lost(&mut self) -> u64 {
        for _ in 0..LOOKS {
            self.port.receive(1, &mut |_| {});
        }
        self.port.counters().tx_errors
    }
}
