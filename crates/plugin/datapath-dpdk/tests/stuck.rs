//! A burst that has something to log while DPDK's memif driver is heard. In a process of its own, whose memifs are not used
//! after it.

mod support;

use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use support::{Directory, Family, config, memif, subnets};
use takt_datapath::{Datapath, PortRequest};
use takt_datapath_dpdk::{DpdkConfig, DpdkDatapath};

const PATIENCE: Duration = Duration::from_secs(60);
/// `RTE_LOG_ERR` and `RTE_LOGTYPE_USER1`.
const ERROR: u32 = 4;
const USER: u32 = 24;

type Callback = extern "C" fn(u16, u16, *mut *mut c_void, u16, u16, *mut c_void) -> u16;

unsafe extern "C" {
    fn rte_log(level: u32, kind: u32, format: *const c_char, ...) -> c_int;
    fn rte_eth_dev_get_port_by_name(name: *const c_char, port: *mut u16) -> c_int;
    fn rte_eth_add_rx_callback(
        port: u16,
        queue: u16,
        callback: Callback,
        argument: *mut c_void,
    ) -> *const c_void;
}

/// A burst has something to log.
static INSIDE: AtomicBool = AtomicBool::new(false);
/// The driver has been heard.
static HEARD: AtomicBool = AtomicBool::new(false);

/// DPDK calls it inside each burst.
extern "C" fn log_until_heard(
    _port: u16,
    _queue: u16,
    _packets: *mut *mut c_void,
    count: u16,
    _most: u16,
    _argument: *mut c_void,
) -> u16 {
    INSIDE.store(true, Ordering::SeqCst);
    while !HEARD.load(Ordering::SeqCst) {
        // SAFETY: a text with its end, and nothing to fill in.
        unsafe { rte_log(ERROR, USER, c"in a burst\n".as_ptr()) };
    }
    count
}

#[test]
fn a_burst_that_logs_while_the_driver_is_heard_stops_nobody_for_good() {
    let directory = Directory::new();
    let path = directory.0.join("m");
    let devices = ["server", "client"].map(|role| memif(role, &path));
    let datapaths = [0, 1].map(|index| {
        DpdkDatapath::probe(&DpdkConfig {
            addresses: subnets(index, Family::V4).to_vec(),
            ..config(&devices[index])
        })
        .expect("a device")
    });
    let health = datapaths[0].health(Box::new(|| ())).expect("it is known");
    let mut ports = [0, 1].map(|index| {
        let request = PortRequest {
            lane: 0,
            lanes: 1,
            bind: SocketAddr::from((subnets(index, Family::V4)[0].address, 4000)),
        };
        datapaths[index].open(&request).expect("a port")
    });
    let remote = ports[1].local();
    let peer = ports[0].connect(remote).expect("a peer");
    let start = Instant::now();
    while !ports[0].reaches(peer) {
        assert!(start.elapsed() < PATIENCE, "in vain: a link");
        for port in &mut ports {
            port.receive(64, &mut |_| {});
        }
    }
    let name = devices[0].split(',').next().expect("a name");
    let name = std::ffi::CString::new(name).expect("no zero");
    let mut number = 0;
    // SAFETY: a text with its end, a place to be written, and a function that lives as long as the process.
    unsafe {
        assert_eq!(
            rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut number),
            0
        );
        let added = rte_eth_add_rx_callback(number, 0, log_until_heard, std::ptr::null_mut());
        assert!(!added.is_null());
    }
    let (ended, end) = channel();
    let heard = ended.clone();
    let [mut polled, other] = ports;
    std::thread::spawn(move || {
        polled.receive(64, &mut |_| {});
        ended.send(()).expect("the test waits");
        // Whether it is used is looked at now and then.
        while ended.send(()).is_ok() {
            polled.receive(64, &mut |_| {});
        }
    });
    std::thread::spawn(move || {
        while !INSIDE.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // As the driver's first word of each message.
        // SAFETY: a text with its end, and nothing to fill in.
        unsafe { rte_log(ERROR, USER, c"memif_msg_receive(): a test's\n".as_ptr()) };
        HEARD.store(true, Ordering::SeqCst);
        heard.send(()).expect("the test waits");
    });
    for who in ["one", "and the other"] {
        end.recv_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("in vain: {who} of two that log"));
    }
    let start = Instant::now();
    loop {
        let fault = health.fault().unwrap_or_default();
        if fault.contains("restart the node") {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "in vain: what is told: {fault}");
        std::thread::yield_now();
    }
    drop((end, other));
}
