//! Two hosts on a cable, with AF_XDP on their interfaces.

#![allow(dead_code, reason = "each test file uses its own part of this module")]

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use takt_datapath::conformance::{Node, Rig};
use takt_datapath::{Datapath, Frame, OpenError, PeerHandle, Port, PortRequest, ReserveError};
use takt_datapath_xdp::{XdpConfig, XdpDatapath};
use takt_lab::{Host, Lab, LabConfig};
use takt_time::TrafficClass;

/// How long to wait for what has to happen before it is called lost; no test measures time.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The interface of every host.
pub const INTERFACE: &str = "eth0";

/// Two hosts in network namespaces of their own. Gone when dropped.
pub struct TwoHosts {
    datapaths: [Option<Arc<XdpDatapath>>; 2],
    addresses: [[IpAddr; 2]; 2],
    config: XdpConfig,
    pub lab: Lab,
}

/// Which addresses the hosts' ports have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl TwoHosts {
    /// Two hosts that have two addresses of each family; `None`, and a note, without root.
    pub fn new(
        lab: &LabConfig,
        family: Family,
        change: impl FnOnce(&mut XdpConfig),
    ) -> Option<Self> {
        if !privileged() {
            return None;
        }
        let lab = Lab::scratch(lab).expect("make two hosts");
        let mut config = XdpConfig::new(INTERFACE);
        change(&mut config);
        let hosts = Self {
            addresses: [0, 1].map(|index| number(lab.host(index), index, family)),
            lab,
            config,
            datapaths: [None, None],
        };
        Some(hosts)
    }

    /// The usual ones.
    pub fn plain() -> Option<Self> {
        Self::new(&LabConfig::default(), Family::V4, |_| {})
    }

    pub fn host(&self, node: Node) -> &Host {
        self.lab.host(node as usize)
    }

    pub fn address(&self, node: Node) -> IpAddr {
        self.addresses[node as usize][0]
    }

    /// Runs `ip` on a host, which must succeed.
    pub fn ip(&self, node: Node, arguments: &str) -> String {
        ip(self.host(node), arguments)
    }

    /// Runs a program on a host.
    pub fn run(&self, node: Node, command: &str) -> Output {
        run(self.host(node), command)
    }

    /// The datapath of a host, probed at the first call.
    pub fn xdp(&mut self, node: Node) -> Arc<XdpDatapath> {
        if let Some(datapath) = &self.datapaths[node as usize] {
            return Arc::clone(datapath);
        }
        let probed = Arc::new(self.probe(node, self.config.clone()).expect("probe"));
        println!("{}", probed.capabilities().detail);
        self.datapaths[node as usize] = Some(Arc::clone(&probed));
        probed
    }

    /// Probes a datapath of its own.
    pub fn probe(&self, node: Node, config: XdpConfig) -> Result<XdpDatapath, OpenError> {
        let _inside = self.host(node).enter().expect("enter the host");
        XdpDatapath::probe(config)
    }

    /// Drops the hosts' datapaths; open ports keep theirs.
    pub fn forget_datapaths(&mut self) {
        self.datapaths = [None, None];
    }

    /// Opens the only port of a host at its first address.
    pub fn open(&mut self, node: Node, port: u16) -> Box<dyn Port> {
        let bind = SocketAddr::new(self.address(node), port);
        self.open_lane(node, (0, 1), bind).expect("open")
    }

    /// Opens the port of lane `lane.0` of `lane.1`.
    pub fn open_lane(
        &mut self,
        node: Node,
        lane: (u16, u16),
        bind: SocketAddr,
    ) -> Result<Box<dyn Port>, OpenError> {
        let datapath = self.xdp(node);
        let _inside = self.host(node).enter().expect("enter the host");
        datapath.open(&PortRequest {
            lane: lane.0,
            lanes: lane.1,
            bind,
        })
    }
}

impl Rig for TwoHosts {
    fn datapath(&mut self, node: Node) -> Arc<dyn Datapath> {
        self.xdp(node)
    }

    fn addresses(&mut self, node: Node) -> [IpAddr; 2] {
        self.addresses[node as usize]
    }

    fn on(&mut self, node: Node, work: &mut dyn FnMut()) {
        let _inside = self.host(node).enter().expect("enter the host");
        work();
    }
}

/// Gives a host its second IPv4 address and two IPv6 addresses; returns those of `family`.
fn number(host: &Host, index: usize, family: Family) -> [IpAddr; 2] {
    let [a, b, c, d] = host.address().octets();
    let second: IpAddr = [a, b, c, d + 100].into();
    ip(host, &format!("address add {second}/24 dev {INTERFACE}"));
    let v6 = [1, 2].map(|which| Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, index as u16 + 1, which));
    for address in v6 {
        // Nobody else has this address, so its use need not wait until that is found out.
        ip(
            host,
            &format!("address add {address}/64 dev {INTERFACE} nodad"),
        );
    }
    match family {
        Family::V4 => [host.address().into(), second],
        Family::V6 => v6.map(IpAddr::from),
    }
}

pub fn ip(host: &Host, arguments: &str) -> String {
    let output = run(host, &format!("ip {arguments}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "ip {arguments} on {}: {errors}",
        host.name()
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn run(host: &Host, command: &str) -> Output {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a program");
    let mut command = host.command(program).expect("enter the host");
    command
        .args(words)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Whether this process may make namespaces and AF_XDP sockets; says so when not.
pub fn privileged() -> bool {
    // SAFETY: no arguments and no failure.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("skipped: network namespaces and AF_XDP need root");
    }
    root
}

/// Waits for something to become so.
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::yield_now();
    }
}

/// Connects, and waits until the next hop is resolved.
pub fn connect(port: &mut dyn Port, remote: SocketAddr) -> PeerHandle {
    let peer = port.connect(remote).expect("connect");
    let frame = reserve(port, peer);
    port.cancel(frame);
    peer
}

/// Reserves a frame as soon as there is one and the next hop is resolved.
pub fn reserve(port: &mut dyn Port, peer: PeerHandle) -> Frame {
    let mut reserved = None;
    wait_until("reserving a frame", || match port.reserve(peer) {
        Ok(frame) => {
            reserved = Some(frame);
            true
        }
        Err(ReserveError::WouldBlock | ReserveError::Unresolved) => {
            port.flush();
            false
        }
        Err(error) => panic!("{error}"),
    });
    reserved.expect("reserved")
}

/// Sends one datagram.
pub fn send(port: &mut dyn Port, peer: PeerHandle, payload: &[u8]) {
    let frame = reserve(port, peer);
    port.payload(&frame)[..payload.len()].copy_from_slice(payload);
    port.commit(frame, payload.len(), TrafficClass::BEST_EFFORT, None);
    port.flush();
}

/// Receives one datagram: its source and payload.
pub fn receive(port: &mut dyn Port) -> (SocketAddr, Vec<u8>) {
    let mut received = None;
    wait_until("receiving a datagram", || {
        port.receive(1, &mut |datagram| {
            received = Some((datagram.source, datagram.payload.to_vec()))
        }) > 0
    });
    received.expect("received")
}

/// Sends again and again until one arrives: for times when the network is changing.
pub fn get_through(
    sender: &mut dyn Port,
    peer: PeerHandle,
    receiver: &mut dyn Port,
    payload: &[u8],
) {
    wait_until("getting a datagram through", || {
        if let Ok(frame) = sender.reserve(peer) {
            sender.payload(&frame)[..payload.len()].copy_from_slice(payload);
            sender.commit(frame, payload.len(), TrafficClass::BEST_EFFORT, None);
        }
        sender.flush();
        let mut seen = false;
        receiver.receive(64, &mut |datagram| seen |= datagram.payload == payload);
        seen
    });
}
