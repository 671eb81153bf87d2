//! Control messages of `takt balance run --control`, from anybody: nothing that the key does not sign is taken, nothing twice,
//! nothing that was sent before or is too old, and what was taken is what was written.
//!
//! Input: messages, each an octet that says how it comes, one by how many half seconds the clock goes on or back, a u16 of its length, and its octets.

#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use takt_balance_xdp::beat::Key;
use takt_health::key::FlowKey;
use takt_health::table::{Event, What};

// A part of the command, which a program cannot link.
#[path = "../../crates/tools/cli/src/balance/message.rs"]
mod message;

use message::{HOLDS_NS, Reader, Refused, write};

const NOW: i64 = 1_700_000_000_000_000_000;
const HALF_SECOND: i64 = 500_000_000;

fn signed(key: &Key, text: &[u8]) -> Vec<u8> {
    let tag = u128::from_be_bytes(key.tag(text));
    [text, format!("{tag:032x}").as_bytes()].concat()
}

/// A rule that begins or ends, as the monitor writes it.
fn event(bytes: &[u8]) -> Event {
    let at = |place: usize| bytes.get(place).copied().unwrap_or(0);
    let key = FlowKey::v4(
        17,
        [10, 0, at(0), at(1)],
        [10, 0, 0, at(2)],
        [at(3).into(), at(4).into()],
    );
    Event {
        at_ns: 0,
        flow: key.to_string(),
        key,
        spec: None,
        what: What::Rule {
            rule: String::from_utf8_lossy(bytes.get(6..).unwrap_or_default()).into_owned(),
            actions: Vec::new(),
            begins: at(5) & 1 == 0,
        },
    }
}

fuzz_target!(|input: &[u8]| {
    let (key, other) = ([1; 16], [2; 16]);
    let [key, other] = [key, other].map(|bytes| Key::new(&bytes).expect("a key"));
    let mut reader = Reader::new(Key::new(&[1; 16]).expect("a key"), NOW);
    let (mut rest, mut now) = (input, NOW);
    let (mut taken, mut last) = (HashSet::new(), Vec::new());
    while let [how, clock, low, high, more @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (bytes, after) = more.split_at(length);
        rest = after;
        now += i64::from(*clock as i8) * HALF_SECOND;
        let mut written = None;
        let (datagram, by_key) = match how % 5 {
            0 => (bytes.to_vec(), false),
            1 => (signed(&other, bytes), false),
            2 => (signed(&key, bytes), true),
            3 => {
                let event = event(bytes);
                let text = write(&event, now, Some(&key)).expect("JSON");
                written = Some(event);
                (text, true)
            }
            // The last one again.
            _ => (last.clone(), true),
        };
        let read = reader.read(&datagram, now);
        if !by_key {
            assert_eq!(read, Err(Refused::Tag));
        }
        if let (Some(event), true) = (&written, now >= NOW) {
            let What::Rule { rule, begins, .. } = &event.what else {
                unreachable!()
            };
            match &read {
                Ok(Some(begun)) => {
                    assert!(begins);
                    assert_eq!(
                        (begun.flow, &begun.rule, begun.sent_ns),
                        (event.key, rule, now)
                    );
                }
                Ok(None) => assert!(!begins),
                Err(why) => assert_eq!((*why, taken.contains(&datagram)), (Refused::Again, true)),
            }
        }
        if let Ok(Some(begun)) = &read {
            assert!(begun.sent_ns >= NOW && (now - begun.sent_ns).abs() <= HOLDS_NS);
        }
        // Of a signed one that names no flow the next is as good.
        if matches!(read, Ok(_) | Err(Refused::Flow)) {
            assert!(taken.insert(datagram.clone()), "taken twice");
        }
        last = datagram;
    }
});
