//! Announcements of nodes on the link, from anybody. What carries the group's tag or none at all is read; nothing that
//! comes makes the node remember more than it may, or answer to an address that it does not accept.
//!
//! Input: a byte (its lowest bit: whether the node asks for tags), then datagrams, each behind two bytes: its
//! sender, and its length (255: all that is left).

#![no_main]

use std::net::SocketAddr;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use takt_runtime::peering::keys::Security;
use takt_runtime::peering::{AcceptNet, Effects, Local, MOST_ACCEPTED_AT, Peering};

fuzz_target!(|input: &[u8]| {
    let Some((open, mut rest)) = input.split_first() else {
        return;
    };
    let accept = AcceptNet {
        address: [10, 0, 0, 0].into(),
        prefix: 30,
    };
    let security = match open & 1 {
        0 => Security::none(),
        _ => Security::group(
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
                .parse()
                .expect("a key"),
        ),
    };
    let local = Local {
        incarnation: 7,
        name: "fuzzed".into(),
        label: 1,
        lanes: Vec::new(),
    };
    let mut node = Peering::new(local, security, vec![accept]);
    let mut heard = 0;
    while let [from, length, after @ ..] = rest {
        let length = match *length {
            255 => after.len(),
            length => usize::from(length).min(after.len()),
        };
        let (datagram, after) = after.split_at(length);
        rest = after;
        let source = SocketAddr::from(([10, 0, 0, *from], 7398));
        let mut effects = Effects::default();
        node.hear(source, datagram, Duration::ZERO, &mut effects);
        for (to, _) in &effects.datagrams {
            assert!(accept.contains(to.ip()) && to.ip() == source.ip(), "{to}");
        }
        assert!(effects.datagrams.len() <= 1 && effects.changes.is_empty());
        heard += 1;
    }
    let counters = node.counters();
    let refused = counters.malformed
        + counters.version
        + counters.unauthenticated
        + counters.strangers
        + counters.too_many;
    let known = node.status(Duration::ZERO).len();
    assert!(refused as usize <= heard && known + refused as usize <= heard);
    assert!(known <= 4 * MOST_ACCEPTED_AT);
});
