//! Two hosts on a cable, for tests that need a network of their own.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use takt_datapath::conformance::{Node, Rig};
use takt_datapath::{Datapath, Port, PortRequest};
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_lab::{Lab, LabConfig};

/// Two hosts in network namespaces of their own. Goes when dropped.
pub struct TwoHosts {
    lab: Lab,
    datapath: Arc<UdpDatapath>,
    addresses: [[IpAddr; 2]; 2],
}

impl TwoHosts {
    /// Two hosts that have two addresses each; `None`, and a note, without root.
    pub fn new(lab: &LabConfig, ipv6: bool, config: UdpConfig) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: network namespaces need root");
            return None;
        }
        let lab = Lab::scratch(lab).unwrap();
        let addresses = [0, 1].map(|index| {
            [0u8, 1].map(|which| {
                let host = lab.host(index);
                let address: IpAddr = if ipv6 {
                    Ipv6Addr::new(
                        0xfd77,
                        0,
                        0,
                        0,
                        0,
                        0,
                        index as u16 + 1,
                        u16::from(which) + 1,
                    )
                    .into()
                } else {
                    let [a, b, c, d] = host.address().octets();
                    [a, b, c, d + 100 * which].into()
                };
                if ipv6 {
                    // Nobody else has this address, so its use need not wait until that is found out.
                    ip(
                        &lab,
                        index,
                        &[
                            "address",
                            "add",
                            &format!("{address}/64"),
                            "dev",
                            "{}",
                            "nodad",
                        ],
                    );
                } else if which > 0 {
                    ip(
                        &lab,
                        index,
                        &["address", "add", &format!("{address}/24"), "dev", "{}"],
                    );
                }
                address
            })
        });
        Some(Self {
            lab,
            datapath: Arc::new(UdpDatapath::new(config)),
            addresses,
        })
    }

    /// Runs `ip` on a host; `{}` stands for its interface.
    #[allow(dead_code, reason = "each test file uses its own part of this module")]
    pub fn ip(&self, node: Node, arguments: &[&str]) {
        ip(&self.lab, node as usize, arguments);
    }

    /// Packets that have left a host; the kernel counts a train as one.
    #[allow(dead_code, reason = "each test file uses its own part of this module")]
    pub fn packets_sent(&self, node: Node) -> u64 {
        let host = self.lab.host(node as usize);
        let file = format!("/sys/class/net/{}/statistics/tx_packets", host.interface());
        let output = host.command("cat").unwrap().arg(file).output().unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }

    /// Opens a port at a host's first address.
    #[allow(dead_code, reason = "each test file uses its own part of this module")]
    pub fn open(&mut self, node: Node) -> Box<dyn Port> {
        let bind = SocketAddr::new(self.addresses[node as usize][0], 0);
        let _inside = self.lab.host(node as usize).enter().unwrap();
        self.datapath
            .open(&PortRequest {
                lane: 0,
                lanes: 1,
                bind,
            })
            .unwrap()
    }
}

fn ip(lab: &Lab, host: usize, arguments: &[&str]) {
    let host = lab.host(host);
    let arguments = arguments
        .iter()
        .map(|argument| argument.replace("{}", host.interface()));
    let status = host
        .command("ip")
        .unwrap()
        .args(arguments)
        .status()
        .unwrap();
    assert!(status.success(), "ip failed on {}", host.name());
}

impl Rig for TwoHosts {
    fn datapath(&mut self, _node: Node) -> Arc<dyn Datapath> {
        self.datapath.clone()
    }

    fn addresses(&mut self, node: Node) -> [IpAddr; 2] {
        self.addresses[node as usize]
    }

    fn on(&mut self, node: Node, work: &mut dyn FnMut()) {
        let _inside = self.lab.host(node as usize).enter().unwrap();
        work();
    }
}
