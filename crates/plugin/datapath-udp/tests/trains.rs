//! Trains: many datagrams that pass the kernel as one.

mod support;

use support::TwoHosts;
use takt_datapath::conformance::Node;
use takt_datapath::{Datapath, Port, PortRequest};
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_lab::LabConfig;
use takt_time::TrafficClass;

fn open(config: UdpConfig) -> Box<dyn Port> {
    let request = PortRequest {
        lane: 0,
        lanes: 1,
        bind: "127.0.0.1:0".parse().unwrap(),
    };
    UdpDatapath::new(config).open(&request).unwrap()
}

/// Sends datagrams of these lengths, each filled with its number, and returns what arrives.
fn exchange(config: &UdpConfig, lengths: &[usize]) -> Vec<Vec<u8>> {
    let (mut sender, mut receiver) = (open(config.clone()), open(config.clone()));
    let peer = sender.connect(receiver.local()).unwrap();
    for (number, &len) in lengths.iter().enumerate() {
        let frame = sender.reserve(peer).unwrap();
        sender.payload(&frame)[..len].fill(number as u8);
        sender.commit(frame, len, TrafficClass::BEST_EFFORT, None);
    }
    let mut arrived = Vec::new();
    while arrived.len() < lengths.len() {
        sender.flush();
        receiver.receive(7, &mut |datagram| arrived.push(datagram.payload.to_vec()));
    }
    arrived
}

#[test]
fn datagrams_of_mixed_lengths_keep_their_bounds_and_their_order() {
    let mut lengths = vec![100; 70];
    lengths.extend([
        100, 100, 40, 0, 0, 40, 200, 9216, 9216, 9216, 9216, 9216, 9216, 9216, 9216, 1, 1, 2, 0,
    ]);
    for segmentation in [true, false] {
        let config = UdpConfig {
            segmentation,
            ..UdpConfig::default()
        };
        let arrived = exchange(&config, &lengths);
        for (number, (payload, &len)) in arrived.iter().zip(&lengths).enumerate() {
            assert_eq!(
                payload,
                &vec![number as u8; len],
                "datagram {number}, segmentation {segmentation}"
            );
        }
    }
}

#[test]
fn equally_long_datagrams_pass_the_kernel_as_one_packet_unless_that_is_off() {
    for segmentation in [true, false] {
        let config = UdpConfig {
            segmentation,
            ..UdpConfig::default()
        };
        let Some(mut hosts) = TwoHosts::new(&LabConfig::default(), false, config) else {
            return;
        };
        let (mut sender, mut receiver) = (hosts.open(Node::Left), hosts.open(Node::Right));
        let peer = sender.connect(receiver.local()).unwrap();
        // Lengths of which 64, 46, 45 and 44 make the longest train.
        for len in [200, 1_423, 1_424, 1_440, 1_472] {
            let before = hosts.packets_sent(Node::Left);
            for _ in 0..256 {
                let frame = sender.reserve(peer).unwrap();
                sender.payload(&frame)[..len].fill(9);
                sender.commit(frame, len, TrafficClass::BEST_EFFORT, None);
            }
            assert!(sender.flush());
            let mut arrived = 0;
            while arrived < 256 {
                arrived += receiver.receive(64, &mut |datagram| {
                    assert_eq!(datagram.payload, vec![9; len]);
                });
            }
            let packets = hosts.packets_sent(Node::Left) - before;
            // Four to six trains; the kernel itself may ask for a neighbour in between.
            assert_eq!(
                packets < 32,
                segmentation,
                "{packets} packets for 256 datagrams of {len} bytes"
            );
        }
    }
}
