//! Nodes with providers of libfabric.

#![allow(dead_code, reason = "each test file uses its own part of this module")]

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use takt_datapath::Datapath;
use takt_datapath::conformance::{Node, Rig};
use takt_datapath_fabric::{FabricConfig, FabricDatapath, Provider};
use takt_lab::{Host, Lab, LabConfig};

/// A datapath; `None`, and a note, where libfabric has no such provider.
pub fn probe(config: &FabricConfig) -> Option<Arc<FabricDatapath>> {
    match FabricDatapath::probe(config) {
        Ok(datapath) => Some(Arc::new(datapath)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Both nodes are this host, at different addresses of its loopback interface.
pub struct Loopback {
    datapath: Arc<FabricDatapath>,
}

impl Loopback {
    pub fn new(config: FabricConfig) -> Option<Self> {
        Some(Self {
            datapath: probe(&config)?,
        })
    }
}

impl Rig for Loopback {
    fn datapath(&mut self, _node: Node) -> Arc<dyn Datapath> {
        self.datapath.clone()
    }

    fn addresses(&mut self, node: Node) -> [IpAddr; 2] {
        match node {
            Node::Left => [[127, 0, 0, 1], [127, 0, 0, 2]].map(IpAddr::from),
            Node::Right => [[127, 0, 0, 3], [127, 0, 0, 4]].map(IpAddr::from),
        }
    }

    fn holds_senders_back(&self) -> bool {
        true
    }

    fn reaches_a_port_at_two_addresses(&self) -> bool {
        false
    }

    fn wakes_by_the_clock(&self) -> bool {
        self.datapath.provider() == Provider::Shm
    }
}

/// Two hosts on a cable.
pub struct TwoHosts {
    datapath: Arc<FabricDatapath>,
    addresses: [[IpAddr; 2]; 2],
    pub lab: Lab,
}

impl TwoHosts {
    /// Hosts with two addresses each; `None`, and a note, without root or without the provider.
    pub fn new(v6: bool, config: &FabricConfig) -> Option<Self> {
        // SAFETY: no arguments and no failure.
        if unsafe { libc::geteuid() } != 0 {
            println!("skipped: network namespaces need root");
            return None;
        }
        let datapath = probe(config)?;
        let lab = Lab::scratch(&LabConfig::default()).expect("make two hosts");
        Some(Self {
            datapath,
            addresses: [0, 1].map(|index| number(lab.host(index), index, v6)),
            lab,
        })
    }

    pub fn host(&self, node: Node) -> &Host {
        self.lab.host(node as usize)
    }
}

impl Rig for TwoHosts {
    fn datapath(&mut self, _node: Node) -> Arc<dyn Datapath> {
        self.datapath.clone()
    }

    fn addresses(&mut self, node: Node) -> [IpAddr; 2] {
        self.addresses[node as usize]
    }

    fn on(&mut self, node: Node, work: &mut dyn FnMut()) {
        let _inside = self.host(node).enter().expect("enter the host");
        work();
    }

    fn holds_senders_back(&self) -> bool {
        true
    }

    fn reaches_a_port_at_two_addresses(&self) -> bool {
        false
    }
}

/// Gives a host its second IPv4 address and two IPv6 addresses; returns those of the family.
fn number(host: &Host, index: usize, v6: bool) -> [IpAddr; 2] {
    let [a, b, c, d] = host.address().octets();
    let second: IpAddr = [a, b, c, d + 100].into();
    ip(host, &format!("address add {second}/24 dev eth0"));
    let long = [1, 2].map(|which| Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, index as u16 + 1, which));
    for address in long {
        // Nobody else has this address, so its use need not wait until that is found out.
        ip(host, &format!("address add {address}/64 dev eth0 nodad"));
    }
    if v6 {
        long.map(Into::into)
    } else {
        [host.address().into(), second]
    }
}

pub fn ip(host: &Host, arguments: &str) {
    let status = host
        .command("ip")
        .expect("enter the host")
        .args(arguments.split_whitespace())
        .status()
        .expect("run ip");
    assert!(status.success(), "ip {arguments}");
}
