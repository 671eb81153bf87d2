//! UDP ports keep the rules of a datapath: on the loopback interface, and from host to host.

mod support;

use std::net::IpAddr;
use std::sync::Arc;

use support::TwoHosts;
use takt_datapath::Datapath;
use takt_datapath::conformance::{Node, Rig};
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_lab::LabConfig;

/// Both nodes are this host, at different addresses of its loopback interface.
struct Loopback {
    datapath: Arc<UdpDatapath>,
}

impl Loopback {
    fn new(config: UdpConfig) -> Option<Self> {
        Some(Self {
            datapath: Arc::new(UdpDatapath::new(config)),
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
}

fn small() -> UdpConfig {
    UdpConfig {
        frames: 48,
        frame_size: 600,
        receive_buffer: 1 << 20,
        send_buffer: 1 << 17,
        ..UdpConfig::default()
    }
}

fn plain() -> UdpConfig {
    UdpConfig {
        segmentation: false,
        receive_buffer: 1 << 20,
        ..UdpConfig::default()
    }
}

fn jumbo_frames() -> LabConfig {
    LabConfig {
        mtu: 9000,
        ..LabConfig::default()
    }
}

takt_datapath::conformance_suite!(loopback, Loopback::new(UdpConfig::default()));
takt_datapath::conformance_suite!(loopback_with_small_frames, Loopback::new(small()));
takt_datapath::conformance_suite!(loopback_without_segmentation, Loopback::new(plain()));
takt_datapath::conformance_suite!(
    two_hosts,
    TwoHosts::new(&LabConfig::default(), false, UdpConfig::default())
);
takt_datapath::conformance_suite!(
    two_hosts_over_ipv6_with_jumbo_frames,
    TwoHosts::new(&jumbo_frames(), true, UdpConfig::default())
);
takt_datapath::conformance_suite!(
    two_hosts_without_segmentation,
    TwoHosts::new(&LabConfig::default(), false, plain())
);
