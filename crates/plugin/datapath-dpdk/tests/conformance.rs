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

/// With several queues the kernel puts what finds one full into another, so that overload changes the order: all
/// rules but that of the full receiver are for them.
mod packet_sockets_with_two_queues {
    use takt_datapath::conformance::rules;

    use super::*;

    fn hosts() -> Option<TwoHosts> {
        TwoHosts::new(&LabConfig::default(), Family::V4, |config| {
            config.device.push_str(",qpairs=2");
            config.queues = 2;
        })
    }

    #[test]
    fn what_arrives_on_another_lanes_queue_is_handed_on() {
        if let Some(mut hosts) = hosts() {
            rules::two_ports_of_a_node_tell_their_traffic_apart(&mut hosts);
        }
    }

    #[test]
    fn nothing_is_lost_without_being_counted() {
        if let Some(mut hosts) = hosts() {
            rules::one_hundred_thousand_datagrams_are_each_delivered_or_counted(&mut hosts);
        }
    }

    #[test]
    fn a_sleeping_lane_is_woken() {
        if let Some(mut hosts) = hosts() {
            rules::the_descriptor_is_readable_while_datagrams_wait(&mut hosts);
        }
    }
}
