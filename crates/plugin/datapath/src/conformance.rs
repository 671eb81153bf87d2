//! The rules that every datapath keeps, as tests that every datapath crate runs.
//!
//! A crate describes how it makes two nodes that reach each other (a [`Rig`]), and
//! [`conformance_suite!`](crate::conformance_suite) makes one `#[test]` for each of the [`rules`]. The
//! rules use the contract only; what they need to know of a technology, the rig tells. They are no
//! measurement: none of them looks at a clock but to give up on a datagram that does not come.

mod harness;
mod rules_of_delivery;
mod rules_of_frames;
mod rules_of_ports;
mod rules_of_volume;

pub use harness::readable_within;

use std::net::IpAddr;
use std::sync::Arc;

use crate::Datapath;

/// One of the two nodes of a [`Rig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// Where most rules send from.
    Left,
    /// Where most rules receive.
    Right,
}

/// Two nodes that reach each other through the datapath under test.
pub trait Rig {
    /// The datapath of a node; the same one each time.
    fn datapath(&mut self, node: Node) -> Arc<dyn Datapath>;

    /// Two addresses of a node. The other node reaches it at both.
    fn addresses(&mut self, node: Node) -> [IpAddr; 2];

    /// Runs `work` on a node. Opening ports, connecting and disconnecting peers happens in here: a rig
    /// whose nodes are network namespaces enters the node's for so long. All else that a port does
    /// works from anywhere.
    fn on(&mut self, node: Node, work: &mut dyn FnMut()) {
        let _ = node;
        work();
    }

    /// How many datagrams may be under way to a port before anything between drops one.
    fn window(&self) -> usize {
        64
    }

    /// Whether every single datagram that finds its receiver full is counted there; otherwise it is
    /// enough that some are.
    fn counts_each_overflow(&self) -> bool {
        true
    }

    /// Whether a receiver that is full holds its sender back, instead of losing what arrives.
    fn holds_senders_back(&self) -> bool {
        false
    }

    /// Whether a port is reached at each of its node's addresses by one and the same other port. Otherwise rules that
    /// need two addresses are about two ports.
    fn reaches_a_port_at_two_addresses(&self) -> bool {
        true
    }

    /// Whether the descriptor becomes readable from time to time while nothing waits, for the technology tells
    /// of no arrivals.
    fn wakes_by_the_clock(&self) -> bool {
        false
    }
}

/// The rules; each takes a fresh rig and panics when the datapath breaks it.
pub mod rules {
    pub use super::rules_of_delivery::*;
    pub use super::rules_of_frames::*;
    pub use super::rules_of_ports::*;
    pub use super::rules_of_volume::*;
}

/// Makes a module of tests, one for each rule of the suite.
///
/// The expression makes the rig: `Option<impl Rig>`. `None`, with the reason printed, skips the test.
///
/// ```ignore
/// takt_datapath::conformance_suite!(loopback, LoopbackRig::new());
/// ```
#[macro_export]
macro_rules! conformance_suite {
    ($module:ident, $rig:expr) => {
        mod $module {
            use super::*;

            $crate::conformance_suite! {
                @tests $rig;
                a_datapath_that_works_reports_no_fault,
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
                unreachable_peers_do_not_disturb_others,
                what_finds_its_receiver_full_is_counted,
            }
        }
    };
    (@tests $rig:expr; $($rule:ident),* $(,)?) => {
        $(
            #[test]
            fn $rule() {
                if let Some(mut rig) = $rig {
                    $crate::conformance::rules::$rule(&mut rig);
                }
            }
        )*
    };
}
