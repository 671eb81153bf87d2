//! Datagrams on the peering port, from anybody, over some time. What is accepted can be written and read again;
//! whatever came, every answer is well-formed and goes to who may be a peer, and strangers are counted.
//!
//! Input: datagrams, each behind three bytes: its sender, the time since the one before in 100 ms, and its length
//! (255: all that is left).

#![no_main]

use std::net::SocketAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use takt_runtime::peering::keys::Security;
use takt_runtime::peering::message::{DecodeError, MAX_BYTES, decode, encode};
use takt_runtime::peering::{AcceptNet, Effects, Local, Peering};

/// Incarnation of the node under test.
const OWN: u64 = 7;

fn address(of: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, of / 128, of], 7400))
}

fuzz_target!(|input: &[u8]| {
    // Two peers that are configured, and a network whose nodes may come: every second sender.
    let accept = AcceptNet {
        address: [10, 0, 0, 0].into(),
        prefix: 24,
    };
    let configured = [address(1), address(200)];
    let mut now = Duration::ZERO;
    let local = Local {
        incarnation: OWN,
        name: "fuzzed".into(),
        label: 1,
        lanes: Vec::new(),
    };
    let mut peering = Peering::new(local, Security::none(), vec![accept]);
    for peer in configured {
        peering.add(peer.into(), now, &mut Effects::default());
    }
    let mut effects = Effects::default();
    let (mut strangers, mut malformed, mut versions) = (0, 0, 0);
    let mut rest = input;
    while let [from, later, length, after @ ..] = rest {
        let length = match *length {
            255 => after.len(),
            length => usize::from(length).min(after.len()),
        };
        let (datagram, after) = after.split_at(length);
        rest = after;
        now += Duration::from_millis(100) * u32::from(*later);
        let source = address(*from);
        let welcome = configured.contains(&source) || accept.contains(source.ip());
        match decode(datagram) {
            // Strangers are not read.
            _ if !welcome => strangers += 1,
            Ok((incarnation, message)) => {
                let again = encode(incarnation, &message);
                assert_eq!(decode(&again), Ok((incarnation, message)));
            }
            Err(DecodeError::Version(_)) => versions += 1,
            Err(_) => malformed += 1,
        }
        peering.receive(source, datagram, now, &mut effects);
        let next = peering.tick(now, &mut effects);
        assert!(next >= now);
        for (to, answer) in effects.datagrams.drain(..) {
            assert!(configured.contains(&to) || accept.contains(to.ip()), "{to}");
            assert!(answer.len() <= MAX_BYTES, "{} bytes", answer.len());
            let (incarnation, _) = decode(&answer).expect("what we send can be read");
            assert_eq!(incarnation, OWN);
        }
        effects.changes.clear();
    }
    let counters = peering.counters();
    // A hello that contradicts its incarnation counts as malformed as well.
    assert!(counters.malformed >= malformed && counters.version == versions);
    // Who may come must introduce himself first, or he is a stranger as well.
    assert!(counters.strangers >= strangers, "{counters:?}");
    let known = peering.status(now).len();
    assert!((2..=2 + 128).contains(&known), "{known} peers");
});
