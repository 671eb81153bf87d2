//! Ports of libfabric keep the rules of a datapath, over TCP and over shared memory.

mod support;

use support::{Loopback, TwoHosts};
use takt_datapath_fabric::{FabricConfig, Provider};

fn small() -> FabricConfig {
    FabricConfig {
        frame_size: 600,
        receives: 32,
        sends: 48,
        ..FabricConfig::new(Provider::Tcp)
    }
}

takt_datapath::conformance_suite!(tcp, Loopback::new(FabricConfig::new(Provider::Tcp)));
takt_datapath::conformance_suite!(tcp_with_small_frames, Loopback::new(small()));
takt_datapath::conformance_suite!(
    two_hosts,
    TwoHosts::new(false, &FabricConfig::new(Provider::Tcp))
);
takt_datapath::conformance_suite!(
    two_hosts_over_ipv6,
    TwoHosts::new(true, &FabricConfig::new(Provider::Tcp))
);
