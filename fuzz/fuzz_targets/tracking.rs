//! Sequence numbers and announcements of sources elsewhere, in any order. No message is delivered twice, a loss is
//! taken back at most once, and a source that contradicts itself changes nothing of the others.
//!
//! Input: operations of eight bytes each.

#![no_main]

// The lane's own, which the runtime does not show.
#[allow(dead_code)]
#[path = "../../crates/system/runtime/src/lane/track.rs"]
mod track;

use std::collections::{HashMap, HashSet};

use libfuzzer_sys::fuzz_target;
use track::{Listening, SourceKey, Tracks, Verdict};

fuzz_target!(|input: &[u8]| {
    let mut tracks = Tracks::default();
    // By remote lane, source, and since when its channel has listeners: what was delivered.
    let mut delivered: HashMap<(usize, u32, u64), HashSet<u64>> = HashMap::new();
    let (mut lost, mut late) = (0u64, 0u64);
    for step in input.chunks_exact(8).take(2000) {
        let key = SourceKey {
            remote: usize::from(step[1] & 3),
            source: u32::from(step[1] >> 2),
        };
        let listening = Listening {
            channel: u64::from(step[2] & 3),
            since: u64::from(step[2] >> 6),
            label: u32::from(step[2] >> 4 & 3),
        };
        let mut number = u32::from_le_bytes([step[4], step[5], step[6], step[7]]);
        if step[3] & 1 == 0 {
            // Near each other, where most of it happens.
            number &= 0xff;
        }
        match step[0] {
            0..200 => {
                let Some((_, verdict)) = tracks.accept(key, &listening, number) else {
                    continue;
                };
                let sequence = match verdict {
                    Verdict::New { sequence, lost: missed } => {
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
                let id = (key.remote, key.source, listening.since);
                let others = delivered.entry(id).or_default();
                // A source whose channel had other listeners meanwhile, or no memory is left of it, begins anew.
                let begins = matches!(verdict, Verdict::New { lost: 0, .. });
                if !others.insert(sequence) {
                    assert!(begins, "{sequence} twice");
                    others.clear();
                    others.insert(sequence);
                }
            }
            200..250 => lost += tracks.announce(key, &listening, number, step[3] & 2 != 0),
            _ => {
                tracks.forget_remote(key.remote, step[3] & 2 == 0, |_, _, more, _| lost += more);
                delivered.retain(|(remote, ..), _| *remote != key.remote);
            }
        }
    }
    assert!(late <= lost, "more came late than was lost");
});
