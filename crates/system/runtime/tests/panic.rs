//! A lane that panics ends the process and says why: this program runs itself as that process.

mod support;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;

use support::{config, free_port};
use takt_datapath::{
    Capabilities, ConnectError, Datagram, Datapath, DatapathKind, Frame, OpenError, PeerHandle,
    Port, PortCounters, PortRequest, ReserveError,
};
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_runtime::Runtime;
use takt_time::{TaiTime, TrafficClass};

/// Set in the process whose lane panics.
const CHILD: &str = "TAKT_TEST_LANE_PANICS";

/// Kernel UDP with a defect.
struct Defective(UdpDatapath);

impl Datapath for Defective {
    fn kind(&self) -> DatapathKind {
        self.0.kind()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn open(&self, request: &PortRequest) -> Result<Box<dyn Port>, OpenError> {
        Ok(Box::new(DefectivePort(self.0.open(request)?)))
    }
}

struct DefectivePort(Box<dyn Port>);

impl Port for DefectivePort {
    fn local(&self) -> SocketAddr {
        self.0.local()
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<PeerHandle, ConnectError> {
        self.0.connect(remote)
    }

    fn disconnect(&mut self, peer: PeerHandle) {
        self.0.disconnect(peer);
    }

    fn max_payload(&self, peer: PeerHandle) -> usize {
        self.0.max_payload(peer)
    }

    fn reserve(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        self.0.reserve(peer)
    }

    fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        self.0.payload(frame)
    }

    fn commit(&mut self, frame: Frame, len: usize, class: TrafficClass, launch: Option<TaiTime>) {
        self.0.commit(frame, len, class, launch);
    }

    fn cancel(&mut self, frame: Frame) {
        self.0.cancel(frame);
    }

    fn flush(&mut self) -> bool {
        self.0.flush()
    }

    fn receive(&mut self, _budget: usize, _deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        panic!("the defect of the test")
    }

    fn receive_costs_syscall(&self) -> bool {
        self.0.receive_costs_syscall()
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.wait_fds()
    }

    fn counters(&self) -> PortCounters {
        self.0.counters()
    }
}

#[test]
fn a_lane_that_panics_ends_the_process_with_a_reason() {
    if std::env::var_os(CHILD).is_some() {
        let datapath = Arc::new(Defective(UdpDatapath::new(UdpConfig::default())));
        let _runtime = Runtime::start(config(free_port(), &[]), &[datapath], Vec::new());
        loop {
            std::thread::park();
        }
    }
    let itself = std::env::current_exe().expect("this program");
    let ended = Command::new(itself)
        .args(["--exact", "--nocapture"])
        .arg("a_lane_that_panics_ends_the_process_with_a_reason")
        .env(CHILD, "1")
        .output()
        .expect("it runs");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.signal(), Some(6), "{told}");
    assert!(told.contains("the defect of the test"), "{told}");
    assert!(told.contains("lane 0 has panicked"), "{told}");
}
