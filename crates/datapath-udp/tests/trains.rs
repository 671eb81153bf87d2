//! Trains: many datagrams that pass the kernel as one.

use takt_datapath::{Datapath, Port, PortRequest};
use takt_datapath_udp::{UdpConfig, UdpDatapath};
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
