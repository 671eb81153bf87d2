//! Two nodes with a device of DPDK each.

#![allow(dead_code, reason = "each test file uses its own part of this module")]

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use takt_datapath::Datapath;
use takt_datapath::conformance::{Node, Rig};
use takt_datapath_dpdk::{DpdkConfig, DpdkDatapath, HugePages, Subnet};
use takt_lab::{Host, Lab, LabConfig};

/// The interface of every host.
pub const INTERFACE: &str = "eth0";

/// A number that no device of this process has had.
pub fn fresh() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Which addresses the ports have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// Without huge pages: machines of tests have none.
pub fn config(device: &str) -> DpdkConfig {
    DpdkConfig {
        huge_pages: HugePages::Off,
        ..DpdkConfig::new(device)
    }
}

/// Whether this process may make namespaces and packet sockets; says so when not.
pub fn privileged() -> bool {
    // SAFETY: no arguments and no failure.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("skipped: network namespaces and packet sockets need root");
    }
    root
}

/// Two hosts on a cable, with packet sockets under DPDK.
pub struct TwoHosts {
    datapaths: [Option<Arc<DpdkDatapath>>; 2],
    addresses: [[IpAddr; 2]; 2],
    configs: [DpdkConfig; 2],
    pub lab: Lab,
}

impl TwoHosts {
    /// Two hosts that have two addresses of each family; `None`, and a note, without root.
    pub fn new(lab: &LabConfig, family: Family, change: impl Fn(&mut DpdkConfig)) -> Option<Self> {
        if !privileged() {
            return None;
        }
        let lab = Lab::scratch(lab).expect("make two hosts");
        let configs = [0, 1].map(|_| {
            let mut config = config(&format!("net_af_packet{},iface={INTERFACE}", fresh()));
            change(&mut config);
            config
        });
        Some(Self {
            addresses: [0, 1].map(|index| number(lab.host(index), index, family)),
            configs,
            lab,
            datapaths: [None, None],
        })
    }

    pub fn host(&self, node: Node) -> &Host {
        self.lab.host(node as usize)
    }

    pub fn address(&self, node: Node) -> IpAddr {
        self.addresses[node as usize][0]
    }

    /// The datapath of a host, probed at the first call.
    pub fn dpdk(&mut self, node: Node) -> Arc<DpdkDatapath> {
        if let Some(datapath) = &self.datapaths[node as usize] {
            return Arc::clone(datapath);
        }
        let _inside = self.host(node).enter().expect("enter the host");
        let config = &self.configs[node as usize];
        let probed = Arc::new(DpdkDatapath::probe(config).expect("probe"));
        println!("{}", probed.capabilities().detail);
        self.datapaths[node as usize] = Some(Arc::clone(&probed));
        probed
    }
}

impl Rig for TwoHosts {
    fn datapath(&mut self, node: Node) -> Arc<dyn Datapath> {
        self.dpdk(node)
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
    let output = host
        .command("ip")
        .expect("enter the host")
        .args(arguments.split_whitespace())
        .output()
        .expect("ip");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "ip {arguments} on {}: {errors}",
        host.name()
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Two devices of this process that are connected by memory: the device of each node, given its number.
pub struct TwoDevices {
    datapaths: [Arc<DpdkDatapath>; 2],
    addresses: [[IpAddr; 2]; 2],
    _directory: Option<Directory>,
}

/// One end of a memif at this socket; peers have the other role, `server` or `client`.
pub fn memif(role: &str, socket: &Path) -> String {
    let socket = socket.display();
    format!(
        "net_memif{},role={role},socket-abstract=no,socket={socket}",
        fresh()
    )
}

/// A directory that is gone when dropped.
pub struct Directory(pub std::path::PathBuf);

impl Directory {
    pub fn new() -> Self {
        let path =
            std::env::temp_dir().join(format!("takt-dpdk-{}-{}", std::process::id(), fresh()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The two addresses of a node, and their networks.
pub fn subnets(index: usize, family: Family) -> [Subnet; 2] {
    [1, 2].map(|which| match family {
        Family::V4 => Subnet {
            address: [10, 77, which, index as u8 + 1].into(),
            prefix: 24,
        },
        Family::V6 => Subnet {
            address: Ipv6Addr::new(0xfd78, 0, 0, which.into(), 0, 0, 0, index as u16 + 1).into(),
            prefix: 64,
        },
    })
}

impl TwoDevices {
    /// Opens the left device, then the right one.
    pub fn new(
        devices: [String; 2],
        family: Family,
        directory: Option<Directory>,
        change: impl Fn(&mut DpdkConfig),
    ) -> Self {
        let mut index = 0;
        let datapaths = devices.map(|device| {
            let mut config = config(&device);
            config.addresses = subnets(index, family).to_vec();
            index += 1;
            change(&mut config);
            let probed =
                DpdkDatapath::probe(&config).unwrap_or_else(|error| panic!("{device}: {error}"));
            println!("{}", probed.capabilities().detail);
            Arc::new(probed)
        });
        Self {
            datapaths,
            addresses: [0, 1].map(|index| subnets(index, family).map(|own| own.address)),
            _directory: directory,
        }
    }

    /// Two ends of a memif.
    pub fn memif(family: Family, change: impl Fn(&mut DpdkConfig)) -> Option<Self> {
        let directory = Directory::new();
        let socket = directory.0.join("memif.sock");
        Some(Self::new(
            ["server", "client"].map(|role| memif(role, &socket)),
            family,
            Some(directory),
            change,
        ))
    }

    /// The driver of a guest, and a vhost port that it talks to.
    pub fn vhost(family: Family, change: impl Fn(&mut DpdkConfig)) -> Option<Self> {
        let directory = Directory::new();
        let socket = directory.0.join("vhost.sock");
        let devices = [
            format!("net_vhost{},iface={},queues=1", fresh(), socket.display()),
            format!(
                "net_virtio_user{},path={},mac=02:00:00:00:00:02,queue_size=512",
                fresh(),
                socket.display()
            ),
        ];
        Some(Self::new(devices, family, Some(directory), change))
    }
}

impl Rig for TwoDevices {
    fn datapath(&mut self, node: Node) -> Arc<dyn Datapath> {
        self.datapaths[node as usize].clone()
    }

    fn addresses(&mut self, node: Node) -> [IpAddr; 2] {
        self.addresses[node as usize]
    }

    fn holds_senders_back(&self) -> bool {
        true
    }

    fn wakes_by_the_clock(&self) -> bool {
        true
    }
}
