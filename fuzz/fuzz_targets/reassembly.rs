//! Fragments of long messages in any order, some of them never, some twice. Places are bounded, for a peer and a
//! tenant as well; a message is complete once and only with all its fragments, and none is kept for ever.
//!
//! Input: operations of four bytes each.

#![no_main]

// The lane's own, which the runtime does not show.
#[allow(dead_code)]
#[path = "../../crates/system/runtime/src/lane/reassembly.rs"]
mod reassembly;
#[allow(dead_code)]
#[path = "../../crates/system/runtime/src/lane/shares.rs"]
mod shares;
#[allow(dead_code)]
#[path = "../../crates/system/runtime/src/slots.rs"]
mod slots;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use reassembly::{Fragment, Header, Key, Reassembly};
use slots::{ChannelSlot, RemoteSlot, TenantSlot};
use takt_time::TrafficClass;

const PLACES: usize = 16;
/// Peers, and tenants, of the input.
const EACH: usize = 4;
/// Places that a pair of both has whatever others hold.
const OWN: usize = 2;
const LONGEST: usize = 64 << 10;

fuzz_target!(|input: &[u8]| {
    let mut reassembly = Reassembly::new(PLACES, LONGEST, Duration::from_millis(1));
    // What has come of each message under way: its place, and the fragments.
    let mut under_way: HashMap<(RemoteSlot, u32), (usize, u32, HashSet<u32>)> = HashMap::new();
    let mut now_ns = 0i64;
    for step in input.chunks_exact(4).take(4000) {
        let [what, who, which, index] = [step[0], step[1], step[2], step[3]];
        let key = Key {
            remote: RemoteSlot(usize::from(who & 3)),
            channel: ChannelSlot(0),
            source: 0,
            sequence: u32::from(which),
        };
        let stride = 256 << (who >> 6);
        let length = 1 + u32::from(which) * 250;
        let count = length.div_ceil(u32::from(stride));
        let header = Header {
            length,
            stride,
            class: TrafficClass::BEST_EFFORT,
            sender: 0,
            send_time_ns: 0,
        };
        now_ns += i64::from(what >> 4) * 10_000;
        if what & 15 == 0 {
            while let Some(at) = reassembly.expired(now_ns) {
                let key = reassembly.get(at).key;
                under_way
                    .remove(&(key.remote, key.sequence))
                    .expect("it was begun");
                reassembly.end(at);
            }
            continue;
        }
        let id = (key.remote, key.sequence);
        let at = match reassembly.find(key) {
            Some(at) => {
                assert_eq!(under_way.get(&id).map(|(at, ..)| *at), Some(at));
                at
            }
            None => {
                assert!(!under_way.contains_key(&id), "forgotten");
                let tenant = TenantSlot(usize::from(who >> 2 & 3));
                if !reassembly.accepts(&header) {
                    continue;
                }
                let Some(at) = reassembly.begin(key, 0, &header, tenant, now_ns) else {
                    continue;
                };
                under_way.insert(id, (at, count, HashSet::new()));
                at
            }
        };
        assert!(under_way.len() <= PLACES + OWN * EACH * EACH);
        let of_peer = under_way.keys().filter(|(remote, _)| *remote == key.remote);
        assert!(
            of_peer.count() <= PLACES * 3 / 4 + OWN * EACH,
            "one peer has too many places"
        );
        // The header of a record is checked before: no fragment begins behind the end of its message.
        let index = u32::from(index) % count;
        let noted = reassembly.note(at, length, stride, index, now_ns);
        let (_, of, come) = under_way.get_mut(&id).expect("begun");
        match noted {
            Fragment::New { complete } => {
                assert!(come.insert(index), "{index} twice");
                assert_eq!(complete, come.len() == *of as usize);
                if complete {
                    under_way.remove(&id);
                    reassembly.end(at);
                }
            }
            // Twice, or cut in another way than the first one.
            Fragment::Refused => assert!(come.contains(&index) || *of != count),
        }
    }
    let mut left = under_way.len();
    while let Some(at) = reassembly.expired(i64::MAX) {
        reassembly.end(at);
        left -= 1;
    }
    assert_eq!(left, 0, "kept for ever");
});
