//! Ports of shared memory keep the rules of a datapath.

mod support;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use support::Loopback;
use takt_datapath::Datapath;
use takt_datapath::conformance::{Node, Rig};
use takt_datapath_fabric::{FabricConfig, Provider};

/// Both ends are of this process, which other programs do not do: what the provider has closed here it goes on writing
/// to. So the rule of peers that are not there is kept between processes (`tests/processes.rs`).
fn config() -> FabricConfig {
    FabricConfig {
        within_process: true,
        ..FabricConfig::new(Provider::Shm)
    }
}

/// The provider is no friend of many endpoints that come and go in one process at the same time.
static ONE: Mutex<()> = Mutex::new(());

struct Alone {
    nodes: Loopback,
    _guard: MutexGuard<'static, ()>,
}

impl Alone {
    fn new() -> Option<Self> {
        Some(Self {
            nodes: Loopback::new(config())?,
            _guard: ONE.lock().unwrap_or_else(PoisonError::into_inner),
        })
    }
}

impl Rig for Alone {
    fn datapath(&mut self, node: Node) -> Arc<dyn Datapath> {
        self.nodes.datapath(node)
    }

    fn addresses(&mut self, node: Node) -> [IpAddr; 2] {
        self.nodes.addresses(node)
    }

    fn holds_senders_back(&self) -> bool {
        true
    }

    fn reaches_a_port_at_two_addresses(&self) -> bool {
        false
    }

    fn wakes_by_the_clock(&self) -> bool {
        true
    }
}

mod shm {
    use super::*;

    takt_datapath::conformance_suite! {
        @tests Alone::new();
        a_frame_has_room_for_the_greatest_payload,
        a_strangers_datagram_is_delivered_with_its_source,
        an_address_in_use_is_refused_until_its_port_is_closed,
        an_unknown_handle_is_refused_and_harms_nothing,
        cancelled_frames_come_back_and_are_not_sent,
        committed_frames_leave_even_if_their_peer_is_disconnected,
        connecting_an_address_again_gives_the_same_handle,
        counters_account_for_every_datagram_and_byte,
        datagrams_leave_in_the_order_of_their_commits,
        datagrams_to_different_peers_leave_in_the_order_of_their_commits,
        disconnected_peers_are_unknown_and_can_be_connected_again,
        frames_reserved_at_a_time_do_not_share_memory,
        idle_ports_have_nothing_to_flush_and_nothing_to_receive,
        more_datagrams_than_frames_arrive_in_order,
        one_hundred_thousand_datagrams_are_each_delivered_or_counted,
        payloads_of_all_lengths_arrive_whole,
        peers_of_another_address_family_are_refused,
        receive_delivers_no_more_than_its_budget,
        reserving_ends_with_would_block_and_goes_on_after_a_flush,
        source_and_destination_port_are_those_of_the_ports,
        the_descriptor_is_readable_while_datagrams_wait,
        two_ports_of_a_node_tell_their_traffic_apart,
        what_finds_its_receiver_full_is_counted,
    }
}
