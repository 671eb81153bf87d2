//! Rules of reserving, committing and cancelling frames.

use takt_time::TrafficClass;

use super::Rig;
use super::harness::{Pair, collect, commit, number_of, pair, pattern, reserve};
use crate::{Frame, ReserveError};

/// More frames than any port should have.
const BOUNDLESS: usize = 1 << 20;

/// Reserves all there are.
fn exhaust(pair: &mut Pair) -> Vec<Frame> {
    let mut frames = Vec::new();
    loop {
        match pair.left.reserve(pair.to_right) {
            Ok(frame) => frames.push(frame),
            Err(error) => {
                assert_eq!(error, ReserveError::WouldBlock);
                return frames;
            }
        }
        assert!(frames.len() < BOUNDLESS, "the frames do not end");
    }
}

/// And never for more than the peer's route carries.
pub fn a_frame_has_room_for_the_greatest_payload(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    let frame = reserve(&mut *pair.left, pair.to_right);
    assert_eq!(
        pair.left.payload(&frame).len(),
        pair.left.max_payload(pair.to_right)
    );
    pair.left.cancel(frame);
}

/// Nothing is lost by taking all frames and giving them back, ten times.
pub fn cancelled_frames_come_back_and_are_not_sent(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    let all = exhaust(&mut pair);
    let count = all.len();
    all.into_iter().for_each(|frame| pair.left.cancel(frame));
    for round in 0..10 {
        let mut all = exhaust(&mut pair);
        assert_eq!(all.len(), count, "round {round}");
        if round % 2 == 1 {
            all.reverse();
        }
        for frame in all {
            pair.left.payload(&frame).fill(0xee);
            pair.left.cancel(frame);
        }
        pair.left.flush();
    }
    for _ in 0..10 * count {
        let frame = reserve(&mut *pair.left, pair.to_right);
        pair.left.cancel(frame);
    }
    commit(&mut *pair.left, pair.to_right, b"the only one");
    let arrived = collect(&mut *pair.right, &mut *pair.left, 1);
    assert_eq!(arrived[0].payload, b"the only one");
    assert_eq!(pair.left.counters().tx_datagrams, 1);
}

/// And a refusal changes nothing.
pub fn reserving_ends_with_would_block_and_goes_on_after_a_flush(rig: &mut dyn Rig) {
    let window = rig.window();
    let mut pair = pair(rig);
    for round in 0..3 {
        let mut frames = exhaust(&mut pair);
        assert!(!frames.is_empty(), "round {round}: no frame at all");
        for _ in 0..3 {
            let refused = pair.left.reserve(pair.to_right).err();
            assert_eq!(refused, Some(ReserveError::WouldBlock), "round {round}");
        }
        let mut number = 0;
        while !frames.is_empty() {
            let some: Vec<_> = frames.drain(..frames.len().min(window)).collect();
            let count = some.len();
            for (offset, frame) in some.into_iter().enumerate() {
                pair.left.payload(&frame)[..12].copy_from_slice(&pattern(number + offset, 12));
                pair.left.commit(frame, 12, TrafficClass::BEST_EFFORT, None);
            }
            for datagram in collect(&mut *pair.right, &mut *pair.left, count) {
                assert_eq!(number_of(&datagram.payload), number, "round {round}");
                number += 1;
            }
        }
        // A technology may give frames back some time after it has sent them.
        let frame = reserve(&mut *pair.left, pair.to_right);
        pair.left.cancel(frame);
    }
}

/// Each keeps what was written to it until it leaves.
pub fn frames_reserved_at_a_time_do_not_share_memory(rig: &mut dyn Rig) {
    let mut pair = pair(rig);
    let len = pair.left.max_payload(pair.to_right);
    let frames: Vec<_> = (0..8)
        .map(|_| reserve(&mut *pair.left, pair.to_right))
        .collect();
    for (number, frame) in frames.iter().enumerate() {
        pair.left
            .payload(frame)
            .copy_from_slice(&pattern(number, len));
    }
    for (number, frame) in frames.iter().enumerate() {
        assert!(
            *pair.left.payload(frame) == pattern(number, len),
            "frame {number} was written to by another"
        );
    }
    for frame in frames {
        pair.left
            .commit(frame, len, TrafficClass::BEST_EFFORT, None);
    }
    for (number, datagram) in collect(&mut *pair.right, &mut *pair.left, 8)
        .iter()
        .enumerate()
    {
        assert!(
            datagram.payload == pattern(number, len),
            "datagram {number} is not as it was written"
        );
    }
}
