//! The in-process network keeps the rules of a datapath.

use std::net::IpAddr;
use std::sync::Arc;

use takt_datapath::Datapath;
use takt_datapath::conformance::{Node, Rig};
use takt_datapath::memory::{MemoryNetwork, MemoryNetworkConfig};

/// Two nodes are two pairs of addresses of one network.
struct MemoryRig {
    network: MemoryNetwork,
    addresses: [[IpAddr; 2]; 2],
}

impl MemoryRig {
    fn new(config: MemoryNetworkConfig, addresses: [[&str; 2]; 2]) -> Option<Self> {
        let addresses = addresses.map(|node| node.map(|address| address.parse().unwrap()));
        Some(Self {
            network: MemoryNetwork::new(config),
            addresses,
        })
    }
}

impl Rig for MemoryRig {
    fn datapath(&mut self, _node: Node) -> Arc<dyn Datapath> {
        self.network.datapath()
    }

    fn addresses(&mut self, node: Node) -> [IpAddr; 2] {
        match node {
            Node::Left => self.addresses[0],
            Node::Right => self.addresses[1],
        }
    }
}

const IPV4: [[&str; 2]; 2] = [["192.0.2.1", "192.0.2.2"], ["198.51.100.1", "198.51.100.2"]];
const IPV6: [[&str; 2]; 2] = [
    ["2001:db8::1", "2001:db8::2"],
    ["2001:db8:1::1", "2001:db8:1::2"],
];

takt_datapath::conformance_suite!(ipv4, MemoryRig::new(MemoryNetworkConfig::default(), IPV4));
takt_datapath::conformance_suite!(
    small_frames_over_ipv6,
    MemoryRig::new(
        MemoryNetworkConfig {
            max_payload: 300,
            queue_depth: 70,
            ..MemoryNetworkConfig::default()
        },
        IPV6
    )
);
