//! Sequence numbers and announcements of sources elsewhere, in any order. No message is delivered twice, a loss is
//! taken back at most once, and a source that contradicts itself changes nothing of the others.
//!
//! Input: operations of eight bytes each.

#![no_main]

// The lane's own, which the runtime does not show.
#[allow(dead_code)]
#[path = "../../crates/system/runtime/src/slots.rs"]
mod slots;
#[allow(dead_code)]
#[path = "../../crates/system/runtime/src/lane/track.rs"]
mod track;

use std::collections::{HashMap, HashSet};

use libfuzzer_sys::fuzz_target;
use slots::RemoteSlot;
use track::{Listening, SourceKey, Tracks, Verdict};

/// What was delivered of a source since it writes this channel and that has these listeners.
#[derive(Default)]
struct Delivered {
    listening: (u64, u64),
    numbers: HashSet<u64>,
}

impl Delivered {
    /// For others the source begins anew.
    fn listening(&mut self, listening: &Listening) {
        let listening = (listening.channel, listening.since);
        if self.listening != listening {
            self.listening = listening;
            self.numbers.clear();
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let mut tracks = Tracks::default();
    let mut delivered: HashMap<(RemoteSlot, u32), Delivered> = HashMap::new();
    let (mut lost, mut late) = (0u64, 0u64);
    for step in input.chunks_exact(8).take(2000) {
        let key = SourceKey {
            remote: RemoteSlot(usize::from(step[1] & 3)),
            source: u32::from(step[1] >> 2),
        };
        let listening = Listening {
            // A source writes one channel; one that says otherwise changes nothing.
            channel: u64::from(step[2] & 1),
            since: u64::from(step[2] >> 6),
            // Every lane is of a node of its own.
            label: (key.remote.0 as u32) << 16,
        };
        let mut number = u32::from_le_bytes([step[4], step[5], step[6], step[7]]);
        if step[3] & 1 == 0 {
            // Near each other, where most of it happens.
            number &= 0xff;
        }
        let of_source = delivered.entry((key.remote, key.source)).or_default();
        match step[0] {
            0..200 => {
                let Some((_, verdict)) = tracks.accept(key, &listening, number) else {
                    continue;
                };
                of_source.listening(&listening);
                let sequence = match verdict {
                    Verdict::New {
                        sequence,
                        lost: missed,
                    } => {
                        lost += missed;
                        sequence
                    }
                    Verdict::Late { sequence } => {
                        late += 1;
                        sequence
                    }
                    Verdict::Duplicate => continue,
                };
                assert_eq!(sequence as u32, number);
                assert!(of_source.numbers.insert(sequence), "{sequence} twice");
            }
            200..250 => {
                let ended = step[3] & 2 != 0;
                lost += tracks.announce(key, &listening, number, ended);
                of_source.listening(&listening);
                if ended {
                    // Whoever has its number from now on is another source.
                    of_source.numbers.clear();
                }
            }
            // Its node may come back: what was delivered before is not delivered again.
            _ => tracks.forget_remote(key.remote, step[3] & 2 == 0, |_, _, more, _| lost += more),
        }
    }
    assert!(late <= lost, "more came late than was lost");
});
