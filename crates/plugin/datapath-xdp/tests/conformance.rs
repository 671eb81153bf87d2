//! AF_XDP ports keep the rules of a datapath, over a veth pair from host to host.

mod support;

use support::{Family, TwoHosts};
use takt_datapath_xdp::Mode;
use takt_lab::LabConfig;

fn jumbo_frames() -> LabConfig {
    LabConfig {
        mtu: 9000,
        ..LabConfig::default()
    }
}

fn two_queues() -> LabConfig {
    LabConfig {
        queues: 2,
        ..LabConfig::default()
    }
}

takt_datapath::conformance_suite!(
    one_queue,
    TwoHosts::new(&LabConfig::default(), Family::V4, |config| config
        .ports_per_queue =
        2)
);
takt_datapath::conformance_suite!(
    small_rings,
    TwoHosts::new(&LabConfig::default(), Family::V4, |config| {
        config.ports_per_queue = 2;
        config.rx_ring = 128;
        config.tx_frames = 24;
    })
);
takt_datapath::conformance_suite!(
    generic_mode_without_checksums,
    TwoHosts::new(&LabConfig::default(), Family::V4, |config| {
        config.ports_per_queue = 2;
        config.mode = Mode::Generic;
        config.checksum = false;
    })
);
takt_datapath::conformance_suite!(
    ipv6_with_jumbo_frames,
    TwoHosts::new(&jumbo_frames(), Family::V6, |config| {
        config.ports_per_queue = 2;
        config.tx_frames = 256;
    })
);
takt_datapath::conformance_suite!(
    two_queues_shared,
    TwoHosts::new(&two_queues(), Family::V4, |config| config.ports_per_queue =
        2)
);
