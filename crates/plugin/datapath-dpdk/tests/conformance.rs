//! Ports over DPDK keep the rules of a datapath.

mod support;

use support::{Family, TwoDevices, TwoHosts};
use takt_lab::LabConfig;

takt_datapath::conformance_suite!(
    packet_sockets,
    TwoHosts::new(&LabConfig::default(), Family::V4, |_| {})
);
takt_datapath::conformance_suite!(
    packet_sockets_over_ipv6,
    TwoHosts::new(&LabConfig::default(), Family::V6, |_| {})
);
takt_datapath::conformance_suite!(memif, TwoDevices::memif(Family::V4, |_| {}));
takt_datapath::conformance_suite!(memif_over_ipv6, TwoDevices::memif(Family::V6, |_| {}));
takt_datapath::conformance_suite!(virtio_user_and_vhost, TwoDevices::vhost(Family::V4, |_| {}));
