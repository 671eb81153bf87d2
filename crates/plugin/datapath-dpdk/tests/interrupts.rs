//! DPDK has one thread for the interrupts of all devices: nothing that comes and goes may stop it. In a process of its
//! own, as the thread's priority is changed.

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{Family, TwoDevices, subnets};
use takt_datapath::conformance::{Node, Rig};
use takt_datapath::{Port, PortRequest};

/// Times that each thread connects two devices.
const ROUNDS: usize = 40;
/// After this a stopped thread is not a slow one. Who waits for it cannot be ended otherwise.
const PATIENCE: Duration = Duration::from_secs(120);

/// Has the kernel run the interrupt thread when nobody else wants to: what it was told is old when it looks at it.
fn neglect_the_interrupt_thread() {
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    let found = threads.flatten().find(|thread| {
        std::fs::read_to_string(thread.path().join("comm"))
            .is_ok_and(|name| name.starts_with("eal-intr") || name.starts_with("dpdk-intr"))
    });
    let found = found.expect("an interrupt thread").file_name();
    let thread = found.to_string_lossy().parse().expect("a number");
    // SAFETY: zeros are parameters.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: a thread of this process, and parameters to be read.
    let result =
        unsafe { libc::sched_setscheduler(thread, libc::SCHED_IDLE, &raw const parameters) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Two devices come and go, at once or when they have found each other.
fn come_and_go(wait: bool) {
    let start = Instant::now();
    let Some(mut devices) = TwoDevices::memif(Family::V4, |_| {}) else {
        return;
    };
    let mut open = |node: Node, index| -> Box<dyn Port> {
        let request = PortRequest {
            lane: 0,
            lanes: 1,
            bind: SocketAddr::from((subnets(index, Family::V4)[0].address, 4000)),
        };
        devices.datapath(node).open(&request).expect("a port")
    };
    let (mut left, mut right) = (open(Node::Left, 0), open(Node::Right, 1));
    let peer = left.connect(right.local()).expect("a peer");
    while wait && !left.reaches(peer) {
        left.receive(64, &mut |_| {});
        right.receive(64, &mut |_| {});
        if start.elapsed() > PATIENCE {
            eprintln!("for {PATIENCE:?} two devices have not found each other");
            std::process::abort();
        }
        std::thread::yield_now();
    }
}

#[test]
fn devices_that_come_and_go_do_not_stop_the_interrupt_thread() {
    come_and_go(true);
    neglect_the_interrupt_thread();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            });
        }
        let threads = [0, 1].map(|first| {
            scope.spawn(move || (first..ROUNDS).for_each(|round| come_and_go(round % 2 == 0)))
        });
        let ended = threads.map(|thread| thread.join().is_ok());
        done.store(true, Ordering::Relaxed);
        assert_eq!(ended, [true; 2]);
    });
}
