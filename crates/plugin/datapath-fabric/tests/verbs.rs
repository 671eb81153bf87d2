//! Ports of an RDMA device keep the rules of a datapath: where there is one. Both nodes are this host; the device has to
//! have the addresses.
//!
//!     TAKT_TEST_VERBS=192.0.2.1,192.0.2.2,192.0.2.3,192.0.2.4 cargo test --test verbs

mod support;

use std::net::IpAddr;
use std::sync::Arc;

use support::probe;
use takt_datapath::Datapath;
use takt_datapath::conformance::{Node, Rig};
use takt_datapath_fabric::{FabricConfig, FabricDatapath, Provider};

struct Device {
    datapath: Arc<FabricDatapath>,
    addresses: [IpAddr; 4],
}

impl Device {
    fn new() -> Option<Self> {
        let Ok(told) = std::env::var("TAKT_TEST_VERBS") else {
            println!("skipped: TAKT_TEST_VERBS names no four addresses of an RDMA device");
            return None;
        };
        let addresses: Vec<IpAddr> = told
            .split(',')
            .map(|address| address.parse().expect("an address"))
            .collect();
        let addresses = addresses.try_into().expect("four addresses");
        // Who names a device wants it tested.
        let datapath = probe(&FabricConfig::new(Provider::Verbs)).expect("a device");
        Some(Self {
            datapath,
            addresses,
        })
    }
}

impl Rig for Device {
    fn datapath(&mut self, _node: Node) -> Arc<dyn Datapath> {
        self.datapath.clone()
    }

    fn addresses(&mut self, node: Node) -> [IpAddr; 2] {
        let [a, b, c, d] = self.addresses;
        match node {
            Node::Left => [a, b],
            Node::Right => [c, d],
        }
    }

    fn holds_senders_back(&self) -> bool {
        true
    }

    fn reaches_a_port_at_two_addresses(&self) -> bool {
        false
    }
}

takt_datapath::conformance_suite!(verbs, Device::new());
