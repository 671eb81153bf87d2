//! What the program at a pod's veth hands over: records, and frames that the pod made.
//!
//! Input: a record of the ring.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt::Endpoint;
use takt_ingress::record::{Record, Summary, Towards, complete_checksum};

fuzz_target!(|bytes: &[u8]| {
    let Some(record) = Record::read(bytes) else {
        return;
    };
    assert!(record.frame.len() + 16 <= bytes.len());
    let endpoint = Endpoint {
        network: "pods".into(),
        mac: [2, 0, 10, 88, 1, 1],
        addresses: vec![
            ([10, 88, 1, 1].into(), 16),
            ("fd88::1".parse().expect("an address"), 64),
        ],
        mtu: 1450,
        vlans: Vec::new(),
    };
    let mut frame = record.frame.to_vec();
    let before = Summary::of(&frame, &endpoint);
    if let Ok(summary) = &before {
        assert_eq!(
            Towards::of(&frame).map(|towards| towards.station),
            Some(summary.towards.station)
        );
        assert_eq!(frame[6..12], endpoint.mac);
        assert!(frame.len() <= 14 + 1450);
    }
    complete_checksum(&mut frame);
    // It changes the two octets of the sum at most, and once.
    let changed = frame
        .iter()
        .zip(record.frame)
        .filter(|(one, other)| one != other);
    assert!(changed.count() <= 2);
    assert_eq!(Summary::of(&frame, &endpoint), before);
    let complete = frame.clone();
    complete_checksum(&mut frame);
    assert_eq!(frame, complete);
});
