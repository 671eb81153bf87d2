//! The balancer's program on a cable: packets of a service reach their socket over any core in the order of their flow,
//! while bundles are moved at random, and a neighbour takes over and gives back.

mod support;

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use support::{INTERFACE, PATIENCE, ip, privileged, run, wait_until};
use takt_datapath_xdp::balancer::{Balancer, BalancerConfig, Neighbour, Protocol, Service, Wish};
use takt_lab::{Host, Lab, LabConfig};

const SERVICE: &str = "10.77.0.2:5000";

fn service() -> Service {
    Service {
        protocol: Protocol::Udp,
        address: SERVICE.parse().expect("an address"),
    }
}

fn socket(host: &Host, address: &str) -> UdpSocket {
    let _inside = host.enter().expect("enter the host");
    let socket = UdpSocket::bind(address).expect("bind");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("set a time limit");
    socket
}

/// Hosts, the first of which writes whole checksums: frames that are redirected have no memory of one that is left to do.
fn lab(hosts: usize) -> Lab {
    let config = LabConfig {
        hosts,
        ..LabConfig::default()
    };
    let lab = Lab::scratch(&config).expect("hosts");
    assert!(
        run(lab.host(0), &format!("ethtool -K {INTERFACE} tx off"))
            .status
            .success()
    );
    lab
}

fn open(host: &Host, change: impl FnOnce(&mut BalancerConfig)) -> Balancer {
    let _inside = host.enter().expect("enter the host");
    let mut config = BalancerConfig::new(INTERFACE);
    config.services.push(service());
    // On whatever machine: its first two processors, or the only one twice.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    config.cores = vec![0, u32::from(processors > 1)];
    change(&mut config);
    Balancer::open(config).expect("open")
}

/// Flows of the left host.
struct Flows(Vec<(UdpSocket, SocketAddr, u32)>);

impl Flows {
    fn new(host: &Host, count: u16) -> Self {
        let flows = (0..count).map(|number| {
            let from = SocketAddr::new("10.77.0.1".parse().expect("an address"), 20_000 + number);
            (socket(host, &from.to_string()), from, 0)
        });
        Self(flows.collect())
    }

    /// The next packet of each.
    fn send(&mut self) {
        for (socket, _, next) in &mut self.0 {
            socket.send_to(&next.to_be_bytes(), SERVICE).expect("send");
            *next += 1;
        }
    }
}

/// What arrives, by flow, and whether it is in order.
#[derive(Default)]
struct Arrivals(HashMap<SocketAddr, u32>);

impl Arrivals {
    fn take(&mut self, socket: &UdpSocket) {
        let mut buffer = [0; 64];
        let (length, from) = socket.recv_from(&mut buffer).expect("a packet in time");
        let number = u32::from_be_bytes(buffer[..length].try_into().expect("a number"));
        let next = self.0.entry(from).or_insert(0);
        assert_eq!(number, *next, "of {from}");
        *next += 1;
    }
}

#[test]
fn bundles_move_between_cores_and_no_packet_is_lost_or_overtaken() {
    if !privileged() {
        return;
    }
    let lab = lab(2);
    let mut balancer = open(lab.host(1), |_| {});
    let receiver = socket(lab.host(1), SERVICE);
    let mut flows = Flows::new(lab.host(0), 20);
    let mut arrivals = Arrivals::default();
    let bundles: Vec<u32> = flows
        .0
        .iter()
        .map(|(_, from, _)| balancer.bundle(&service(), *from))
        .collect();
    for round in 0..500_u16 {
        for (place, bundle) in bundles.iter().enumerate() {
            let core = (round / 7 + place as u16) % 2;
            balancer.wish(*bundle, Wish::Core(core)).expect("there");
        }
        flows.send();
        // Half of the time the next packets come while these are still on their way.
        if round % 2 == 1 {
            for _ in 0..2 * bundles.len() {
                arrivals.take(&receiver);
            }
        }
    }
    let counters = balancer.counters().expect("counters");
    assert_eq!(counters.packets, 500 * 20);
    assert!(counters.to_cores >= 500, "{counters:?}");
    assert_eq!((counters.to_neighbours, counters.fenced), (0, 0));
    for (place, bundle) in bundles.iter().enumerate() {
        let target = balancer.target(0, *bundle).expect("there");
        assert!(matches!(target, Wish::Core(_)), "flow {place}: {target:?}");
    }
    // Nobody else's packets are touched, and all are the kernel's when it is gone.
    let other = socket(lab.host(1), "10.77.0.2:5001");
    let (sender, _, _) = &flows.0[0];
    sender.send_to(b"other", "10.77.0.2:5001").expect("send");
    let mut buffer = [0; 64];
    assert_eq!(other.recv_from(&mut buffer).expect("a packet").0, 5);
    assert!(balancer.counters().expect("counters").passed > 0);
    drop(balancer);
    flows.send();
    for _ in 0..bundles.len() {
        arrivals.take(&receiver);
    }
}

/// A third host that has the service's address, at the end of a cable of its own.
fn neighbour(lab: &Lab) -> Neighbour {
    let (host, other) = (lab.host(1), lab.host(2));
    ip(
        host,
        &format!(
            "link add side0 type veth peer name side1 netns {}",
            other.namespace()
        ),
    );
    ip(host, "link set side0 up");
    ip(other, "link set side1 up");
    // It has the service's address, and nobody asks it for it; the way back is another interface's.
    for name in ["all", "side1"] {
        let setting = format!("sysctl -qw net.ipv4.conf.{name}.rp_filter=0");
        assert!(run(other, &setting).status.success(), "{setting}");
    }
    let [a, b, c, d, e, f] = host.mac();
    let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    ip(
        lab.host(0),
        &format!("neigh replace 10.77.0.2 lladdr {mac} dev {INTERFACE} nud permanent"),
    );
    ip(other, "address add 10.77.0.2/32 dev side1");
    // The far end takes redirected frames only with GRO.
    assert!(run(other, "ethtool -K side1 gro on").status.success());
    let words = ip(host, "-o link show side0");
    let ifindex = words.split(':').next().expect("an index");
    let mac = |host: &Host, name: &str| {
        let text = ip(host, &format!("-o link show {name}"));
        let at = text.split("link/ether ").nth(1).expect("an address");
        let bytes = at[..17].split(':');
        let bytes: Vec<u8> = bytes
            .map(|byte| u8::from_str_radix(byte, 16).expect("a byte"))
            .collect();
        bytes.try_into().expect("six bytes")
    };
    Neighbour {
        ifindex: ifindex.parse().expect("a number"),
        mac: mac(other, "side1"),
        source: mac(host, "side0"),
    }
}

/// IP packets that a host has received: `InReceives` of RFC 4293.
fn received(host: &Host) -> u64 {
    let output = run(host, "cat /proc/net/snmp");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().filter(|line| line.starts_with("Ip:")).nth(1);
    let value = line.and_then(|line| line.split_whitespace().nth(3));
    value.and_then(|value| value.parse().ok()).expect("a count")
}

#[test]
fn a_neighbour_takes_over_by_a_write_and_gives_back_when_it_is_silent() {
    if !privileged() {
        return;
    }
    let lab = lab(3);
    let side = neighbour(&lab);
    let mut balancer = open(lab.host(1), |config| {
        config.neighbours.push(side);
        // Longer than any test takes, to begin with.
        config.silence = Duration::from_secs(3600);
    });
    let here = socket(lab.host(1), SERVICE);
    let mut flows = Flows::new(lab.host(0), 1);
    let bundle = balancer.bundle(&service(), flows.0[0].1);
    let mut arrivals = Arrivals::default();
    flows.send();
    arrivals.take(&here);
    // Nobody has said that the neighbour lives.
    balancer.wish(bundle, Wish::Neighbour(0)).expect("there");
    flows.send();
    arrivals.take(&here);
    balancer.beat(0, false).expect("there");
    let before = received(lab.host(2));
    flows.send();
    // The host receives more than this packet: multicast, for one.
    wait_until("the bundle has moved", || {
        balancer.target(0, bundle).expect("there") == Wish::Neighbour(0)
    });
    wait_until("the packet is there", || received(lab.host(2)) > before);
    if let Some(next) = arrivals.0.get_mut(&flows.0[0].1) {
        *next += 1;
    }
    balancer.wish(bundle, Wish::Core(0)).expect("there");
    flows.send();
    arrivals.take(&here);
    let counters = balancer.counters().expect("counters");
    assert_eq!(
        (counters.to_neighbours, counters.returns, counters.fenced),
        (1, 1, 0)
    );
}

#[test]
fn a_neighbour_that_is_silent_is_left_without_anybodys_doing() {
    if !privileged() {
        return;
    }
    let lab = lab(3);
    let side = neighbour(&lab);
    let mut balancer = open(lab.host(1), |config| {
        config.neighbours.push(side);
        config.silence = Duration::from_millis(200);
    });
    let here = socket(lab.host(1), SERVICE);
    let mut flows = Flows::new(lab.host(0), 1);
    let bundle = balancer.bundle(&service(), flows.0[0].1);
    balancer.wish(bundle, Wish::Neighbour(0)).expect("there");
    wait_until("the neighbour takes it", || {
        balancer.beat(0, false).expect("there");
        flows.send();
        balancer.target(0, bundle).expect("there") == Wish::Neighbour(0)
    });
    // No beat from now on.
    wait_until("a core takes it again", || {
        flows.send();
        matches!(balancer.target(0, bundle).expect("there"), Wish::Core(_))
    });
    let mut buffer = [0; 64];
    here.recv_from(&mut buffer).expect("a packet in time");
}

#[test]
fn what_cannot_be_is_refused_with_the_bounds() {
    if !privileged() {
        return;
    }
    let lab = lab(2);
    let _inside = lab.host(1).enter().expect("enter the host");
    let refused = |change: &dyn Fn(&mut BalancerConfig)| {
        let mut config = BalancerConfig::new(INTERFACE);
        config.services.push(service());
        config.cores.push(0);
        change(&mut config);
        Balancer::open(config).expect_err("refused").to_string()
    };
    assert!(refused(&|config| config.services.clear()).contains("0 services: 1 to 64"));
    assert!(refused(&|config| config.cores.clear()).contains("0 cores: 1 to 64"));
    assert!(refused(&|config| config.cores = vec![60_000]).contains("the processors of this host"));
    assert!(refused(&|config| config.low = config.high).contains("must be below"));
    assert!(refused(&|config| config.queue = 0).contains("1 to 16384"));
    assert!(refused(&|config| config.bits = 21).contains("2^0 to 2^20"));
    assert!(refused(&|config| config.interface = "none0".into()).contains("no interface"));
}
