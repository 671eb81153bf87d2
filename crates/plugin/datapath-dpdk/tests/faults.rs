//! What is not there, what goes, and what comes back: an error that says what to do, no crash, and recovery.

mod support;

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::{Directory, Family, TwoDevices, TwoHosts, config, fresh, ip, memif, subnets};
use takt_datapath::conformance::{Node, Rig};
use takt_datapath::{Datapath, OpenError, PeerHandle, Port, PortRequest, ReserveError};
use takt_datapath_dpdk::{DpdkConfig, DpdkDatapath};
use takt_lab::LabConfig;
use takt_time::TrafficClass;

const PATIENCE: Duration = Duration::from_secs(60);

fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::yield_now();
    }
}

fn refused(config: &DpdkConfig) -> String {
    match DpdkDatapath::probe(config) {
        Err(OpenError::Unavailable(text)) => text,
        other => panic!("{other:?}"),
    }
}

fn with_address(device: &str, index: usize) -> DpdkConfig {
    DpdkConfig {
        addresses: subnets(index, Family::V4).to_vec(),
        ..config(device)
    }
}

fn open(datapath: &DpdkDatapath, bind: SocketAddr) -> Box<dyn Port> {
    let request = PortRequest {
        lane: 0,
        lanes: 1,
        bind,
    };
    datapath.open(&request).expect("a port")
}

/// Sends again and again until one arrives.
fn get_through(from: &mut dyn Port, to: &mut dyn Port) {
    let peer = from.connect(to.local()).expect("a peer");
    wait_until("getting a datagram through", || {
        if let Ok(frame) = from.reserve(peer) {
            from.payload(&frame)[..5].copy_from_slice(b"hello");
            from.commit(frame, 5, TrafficClass::BEST_EFFORT, None);
        }
        from.flush();
        from.receive(64, &mut |_| {});
        // What was sent to the one before may come first.
        let mut seen = false;
        to.receive(64, &mut |datagram| seen |= datagram.payload == b"hello");
        seen
    });
}

#[test]
fn a_device_that_does_not_exist_is_refused_with_what_to_do() {
    let error = refused(&with_address("net_nonsense0", 0));
    assert!(
        error.contains("net_nonsense0") && error.contains("driver installed"),
        "{error}"
    );
    let error = refused(&config("net_af_packet9999,iface=nowhere0"));
    assert!(
        error.contains("nowhere0") && error.contains("ip link"),
        "{error}"
    );
    let error = refused(&with_address("0000:ee:1f.7", 0));
    assert!(error.contains("vfio-pci"), "{error}");
}

#[test]
fn too_many_queues_are_refused_and_nothing_stays_behind() {
    if !support::privileged() {
        return;
    }
    let device = format!("net_tap{},iface=takt{}", fresh(), fresh());
    let many = DpdkConfig {
        queues: 32,
        ..with_address(&device, 0)
    };
    let error = refused(&many);
    assert!(error.contains("queues = 32"), "{error}");
    DpdkDatapath::probe(&with_address(&device, 0)).expect("the device is free");
}

#[test]
fn a_device_in_use_is_shared_with_the_same_options_only() {
    let directory = Directory::new();
    let device = memif("server", &directory.0.join("m"));
    let first = DpdkDatapath::probe(&with_address(&device, 0)).expect("a device");
    DpdkDatapath::probe(&with_address(&device, 0)).expect("the same device");
    let error = refused(&with_address(&device, 1));
    assert!(error.contains("other options"), "{error}");
    drop(first);
    DpdkDatapath::probe(&with_address(&device, 1)).expect("the device is free");
}

#[test]
fn addresses_of_others_cannot_be_bound() {
    let directory = Directory::new();
    let device = memif("server", &directory.0.join("m"));
    let datapath = DpdkDatapath::probe(&with_address(&device, 0)).expect("a device");
    let bind = "192.0.2.1:4000".parse().expect("an address");
    let request = PortRequest {
        lane: 0,
        lanes: 1,
        bind,
    };
    assert!(matches!(
        datapath.open(&request),
        Err(OpenError::Bind { .. })
    ));
}

#[test]
fn a_peer_that_restarts_is_reached_again() {
    for kind in ["memif", "vhost"] {
        let directory = Directory::new();
        let path = directory.0.join("s");
        let socket = path.display();
        // Who stays has the socket.
        let (stays, restarts) = if kind == "memif" {
            (memif("server", &path), memif("client", &path))
        } else {
            (
                format!("net_vhost{},iface={socket},queues=1", fresh()),
                format!(
                    "net_virtio_user{},path={socket},mac=02:00:00:00:00:02",
                    fresh()
                ),
            )
        };
        let left = DpdkDatapath::probe(&with_address(&stays, 0)).expect("a device");
        let address = |index| SocketAddr::from((subnets(index, Family::V4)[0].address, 4000));
        let mut port = open(&left, address(0));
        for round in 0..3 {
            let right = DpdkDatapath::probe(&with_address(&restarts, 1)).expect("a device");
            let mut other = open(&right, address(1));
            get_through(&mut *port, &mut *other);
            get_through(&mut *other, &mut *port);
            let peer = port.connect(address(1)).expect("a peer");
            drop((right, other));
            wait_until(
                &format!("{kind}, round {round}: seeing that the peer has gone"),
                || {
                    port.receive(64, &mut |_| {});
                    port.flush();
                    match port.reserve(peer) {
                        Ok(frame) => {
                            port.commit(frame, 8, TrafficClass::BEST_EFFORT, None);
                            false
                        }
                        Err(error) => error == ReserveError::Unresolved,
                    }
                },
            );
        }
    }
}

/// Where the process that serves a memif has its socket.
const SERVED: &str = "TAKT_TEST_MEMIF_SERVER";

fn memif_address(index: usize) -> SocketAddr {
    SocketAddr::from((subnets(index, Family::V4)[0].address, 4000))
}

/// The other process of [`a_memif_server_that_restarts_is_reached_again`]: sends back what it receives.
#[test]
fn server_of_a_memif() {
    let Some(socket) = std::env::var_os(SERVED) else {
        return;
    };
    let device = memif("server", socket.as_ref());
    let server = DpdkDatapath::probe(&with_address(&device, 0)).expect("a device");
    let mut port = open(&server, memif_address(0));
    loop {
        let mut from = None;
        port.receive(64, &mut |datagram| from = Some(datagram.source));
        if let Some(source) = from {
            let peer = port.connect(source).expect("a peer");
            if let Ok(frame) = port.reserve(peer) {
                port.payload(&frame)[..5].copy_from_slice(b"hello");
                port.commit(frame, 5, TrafficClass::BEST_EFFORT, None);
            }
        }
        port.flush();
        std::thread::yield_now();
    }
}

/// Ends with its owner.
struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// DPDK's driver of memif connects once, when its device starts.
#[test]
fn a_memif_server_that_restarts_is_reached_again() {
    let directory = Directory::new();
    let socket = directory.0.join("s");
    let serve = || {
        let _ = std::fs::remove_file(&socket);
        let child = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "server_of_a_memif", "--nocapture"])
            .env(SERVED, &socket)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("a process");
        let child = Server(child);
        wait_until("the server's socket", || socket.exists());
        child
    };
    let mut child = serve();
    let mut client = None;
    wait_until("a server that listens", || {
        client = DpdkDatapath::probe(&with_address(&memif("client", &socket), 1)).ok();
        client.is_some()
    });
    let mut port = open(&client.expect("a device"), memif_address(1));
    let peer = port.connect(memif_address(0)).expect("a peer");
    for round in 0..3 {
        let mut echoed = false;
        wait_until(&format!("round {round}: an echo"), || {
            if let Ok(frame) = port.reserve(peer) {
                port.payload(&frame)[..5].copy_from_slice(b"hello");
                port.commit(frame, 5, TrafficClass::BEST_EFFORT, None);
            }
            port.flush();
            port.receive(64, &mut |_| echoed = true);
            echoed
        });
        drop(child);
        wait_until("seeing that the server has gone", || {
            port.receive(64, &mut |_| {});
            !port.reaches(peer)
        });
        child = serve();
    }
}

/// The left host's datapath, and a port of it with a peer on the right host.
fn to_the_right(hosts: &mut TwoHosts) -> (Arc<DpdkDatapath>, Box<dyn Port>, PeerHandle) {
    let datapath = hosts.dpdk(Node::Left);
    let remote = SocketAddr::from((hosts.address(Node::Right), 4000));
    let inside = hosts.host(Node::Left).enter().expect("enter the host");
    let mut port = open(&datapath, (hosts.address(Node::Left), 4000).into());
    let peer = port.connect(remote).expect("a peer");
    drop(inside);
    (datapath, port, peer)
}

/// Else its streams would stay, and what they send would go nowhere.
#[test]
fn a_peer_is_not_reached_while_the_link_is_down() {
    let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), Family::V4, |_| {}) else {
        return;
    };
    let (datapath, mut port, peer) = to_the_right(&mut hosts);
    let health = datapath.health(Box::new(|| ())).expect("it is known");
    assert!(port.reaches(peer));
    assert_eq!(health.fault(), None);
    // The own end, and the far one, which takes the carrier away.
    for node in [Node::Left, Node::Right] {
        ip(hosts.host(node), "link set eth0 down");
        wait_until("the link to be down", || !port.reaches(peer));
        let fault = health.fault().expect("a reason");
        assert!(fault.contains("eth0 is down"), "{fault}");
        ip(hosts.host(node), "link set eth0 up");
        wait_until("the link to be up", || port.reaches(peer));
        assert_eq!(health.fault(), None);
    }
    ip(hosts.host(Node::Left), "link delete eth0");
    wait_until("the interface to be gone", || !port.reaches(peer));
    let fault = health.fault().expect("a reason");
    assert!(fault.contains("has been removed"), "{fault}");
}

/// A network namespace with nothing in it, where an interface keeps its index. Gone when dropped.
struct Empty(String);

impl Empty {
    fn new(hosts: &TwoHosts) -> Self {
        let empty = Self(format!("{}-e", hosts.host(Node::Left).namespace()));
        let add = ["netns", "add", &empty.0];
        let added = std::process::Command::new("ip").args(add).status();
        assert!(added.is_ok_and(|status| status.success()));
        empty
    }
}

impl Drop for Empty {
    fn drop(&mut self) {
        let delete = ["netns", "delete", &self.0];
        let _ = std::process::Command::new("ip").args(delete).status();
    }
}

/// The sockets of the device are of no interface any more, though its index is the one that it had.
#[test]
fn an_interface_that_leaves_the_namespace_and_returns_is_told() {
    let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), Family::V4, |_| {}) else {
        return;
    };
    let (datapath, mut port, peer) = to_the_right(&mut hosts);
    let health = datapath.health(Box::new(|| ())).expect("it is known");
    assert_eq!(health.fault(), None);
    let empty = Empty::new(&hosts);
    let here = hosts.host(Node::Left).namespace();
    ip(
        hosts.host(Node::Left),
        &format!("link set eth0 netns {}", empty.0),
    );
    ip(
        hosts.host(Node::Right),
        &format!("-n {} link set eth0 netns {here}", empty.0),
    );
    ip(hosts.host(Node::Left), "address add 10.77.0.1/24 dev eth0");
    ip(hosts.host(Node::Left), "link set eth0 up");
    wait_until("the fault to be told", || {
        let fault = health.fault();
        fault.is_some_and(|fault| fault.contains("restart the node"))
    });
    assert!(!port.reaches(peer));
}

/// A socket that was told that its interface is down is readable until somebody has asked it why.
#[test]
fn a_lane_sleeps_after_the_link_was_down() {
    let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), Family::V4, |_| {}) else {
        return;
    };
    let (_datapath, mut port, peer) = to_the_right(&mut hosts);
    for _ in 0..2 {
        ip(hosts.host(Node::Left), "link set eth0 down");
        wait_until("the link to be down", || !port.reaches(peer));
        wait_until("a lane that sleeps", || is_quiet(&mut *port));
        ip(hosts.host(Node::Left), "link set eth0 up");
        wait_until("the link to be up", || port.reaches(peer));
        wait_until("a lane that sleeps", || is_quiet(&mut *port));
    }
}

/// Whether a lane that has found nothing is not woken.
fn is_quiet(port: &mut dyn Port) -> bool {
    while port.receive(64, &mut |_| {}) > 0 {}
    let mut polled: Vec<libc::pollfd> = port
        .wait_fds()
        .iter()
        .map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    // SAFETY: so many initialised entries, whose descriptors are open.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 0) == 0 }
}

#[test]
fn an_interface_that_is_deleted_leaves_a_port_that_sends_nothing() {
    let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), Family::V4, |_| {}) else {
        return;
    };
    let (_datapath, mut port, peer) = to_the_right(&mut hosts);
    ip(hosts.host(Node::Left), "link delete eth0");
    wait_until("seeing that the interface has gone", || {
        port.receive(64, &mut |_| {});
        port.flush();
        match port.reserve(peer) {
            Ok(frame) => {
                port.commit(frame, 8, TrafficClass::BEST_EFFORT, None);
                false
            }
            Err(error) => error == ReserveError::Unresolved,
        }
    });
    assert!(port.flush());
}

/// The kernel has every frame as well, and nobody there who listens: it must not tell the sender so.
#[test]
fn the_kernel_does_not_answer_for_a_port_of_ours() {
    let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), Family::V4, |_| {}) else {
        return;
    };
    let datapath = hosts.dpdk(Node::Right);
    let mut port = {
        let _inside = hosts.host(Node::Right).enter().expect("enter the host");
        open(&datapath, (hosts.address(Node::Right), 0).into())
    };
    let _inside = hosts.host(Node::Left).enter().expect("enter the host");
    let socket = std::net::UdpSocket::bind((hosts.address(Node::Left), 0)).expect("a socket");
    socket.connect(port.local()).expect("connect");
    for _ in 0..20 {
        // A refusal would be told here.
        socket.send(b"hello").expect("nobody refuses");
        wait_until("receiving", || {
            port.receive(1, &mut |datagram| {
                assert_eq!(datagram.source, socket.local_addr().expect("bound"));
            }) > 0
        });
    }
    // The other way round: the kernel's checksums and ours agree.
    let peer = port
        .connect(socket.local_addr().expect("bound"))
        .expect("a peer");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    wait_until("sending", || match port.reserve(peer) {
        Ok(frame) => {
            port.payload(&frame)[..4].copy_from_slice(b"back");
            port.commit(frame, 4, TrafficClass::BEST_EFFORT, None);
            port.flush()
        }
        Err(_) => false,
    });
    let mut buffer = [0; 16];
    assert_eq!(socket.recv(&mut buffer).expect("a datagram"), 4);
    assert_eq!(buffer[..4], *b"back");
}

/// The runtime sends by something else what a device without a kernel interface does not reach.
#[test]
fn a_peer_is_reached_while_somebody_answers_there() {
    let Some(mut devices) = TwoDevices::memif(Family::V4, |_| {}) else {
        return;
    };
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let request = PortRequest {
        lane: 0,
        lanes: 1,
        bind: any,
    };
    let [mut left, mut right] = [Node::Left, Node::Right]
        .map(|node| devices.datapath(node).open(&request).expect("a port"));
    assert!(devices.datapath(Node::Left).capabilities().own_addresses);
    let own = subnets(1, Family::V4)[0].address;
    assert_eq!(right.local().ip(), own, "it tells its own address");
    let peer = left.connect(right.local()).expect("a peer");
    let mut nobody = right.local();
    nobody.set_ip([10, 77, 1, 99].into());
    let nobody = left.connect(nobody).expect("a peer");
    assert!(!left.reaches(peer), "nobody was asked yet");
    let health = devices.datapath(Node::Left).health(Box::new(|| ()));
    let health = health.expect("it is known");
    wait_until("an answer", || {
        left.receive(64, &mut |_| {});
        right.receive(64, &mut |_| {});
        left.reaches(peer)
    });
    assert!(!left.reaches(nobody));
    assert_eq!(health.fault(), None);
    drop((right, devices));
    wait_until("the link to go down", || {
        left.receive(64, &mut |_| {});
        !left.reaches(peer)
    });
    let fault = health.fault().expect("a reason");
    assert!(fault.contains("no link"), "{fault}");
}
