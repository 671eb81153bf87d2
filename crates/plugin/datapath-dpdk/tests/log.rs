//! Whether a memif is used depends on what DPDK's log tells. In a process of its own, for levels are those of all devices.

mod support;

use std::ffi::{c_char, c_int};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use support::{Directory, Family, TwoDevices, config, memif, subnets};
use takt_datapath::conformance::{Node, Rig};
use takt_datapath::{Port, PortRequest};
use takt_datapath_dpdk::{DpdkConfig, DpdkDatapath};

const PATIENCE: Duration = Duration::from_secs(60);
/// Levels of DPDK's.
const ERRORS: u32 = 4;
const ALL: u32 = 8;

unsafe extern "C" {
    fn rte_log_set_level_pattern(pattern: *const c_char, level: u32) -> c_int;
}

fn tell(level: u32) {
    // SAFETY: a text with its end, which is read.
    let result = unsafe { rte_log_set_level_pattern(c"pmd.net.memif".as_ptr(), level) };
    assert_eq!(result, 0);
}

fn ports(devices: &mut TwoDevices) -> [Box<dyn Port>; 2] {
    [Node::Left, Node::Right].map(|node| {
        let own = subnets(node as usize, Family::V4)[0].address;
        let request = PortRequest {
            lane: 0,
            lanes: 1,
            bind: SocketAddr::from((own, 4000)),
        };
        devices.datapath(node).open(&request).expect("a port")
    })
}

fn wait_until(what: &str, ports: &mut [Box<dyn Port>; 2], mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        for port in &mut *ports {
            port.receive(64, &mut |datagram| panic!("{datagram:?}"));
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_memif_of_whose_end_nothing_would_tell_is_not_used() {
    let directory = Directory::new();
    // Starts DPDK, with a level that would hide what is needed.
    let first = DpdkDatapath::probe(&DpdkConfig {
        addresses: subnets(0, Family::V4).to_vec(),
        eal: vec!["--log-level=error".into()],
        ..config(&memif("server", &directory.0.join("m")))
    });
    drop(first.expect("a device"));
    tell(ERRORS);
    let mut devices = TwoDevices::memif(Family::V4, |_| {}).expect("two devices");
    let mut open = ports(&mut devices);
    let health = [Node::Left, Node::Right].map(|node| {
        let health = devices.datapath(node).health(Box::new(|| ()));
        health.expect("it is known")
    });
    let remote = open[1].local();
    let peer = open[0].connect(remote).expect("a peer");
    for health in &health {
        wait_until("the refusal", &mut open, || {
            let fault = health.fault().unwrap_or_default();
            fault.contains("pmd.net.memif") && fault.contains("22.11")
        });
    }
    assert!(!open[0].reaches(peer));
    drop((open, health, devices));
    // What `eal` says of levels does not matter.
    tell(ALL);
    let mut devices = TwoDevices::memif(Family::V4, |_| {}).expect("two devices");
    let health = devices.datapath(Node::Left).health(Box::new(|| ()));
    let health = health.expect("it is known");
    let mut open = ports(&mut devices);
    wait_until("the link", &mut open, || health.fault().is_none());
}
