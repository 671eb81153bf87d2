//! Messages that were missed while the session was detached, as far as sequence numbers tell.
//!
//! The runtime counts what is lost while it is there. When it comes back it knows nothing of before; the
//! sink does, for the senders that it heard last.

/// Senders that are remembered.
const SENDERS: usize = 8;

/// The last number of a sender: messages with launch times come in another order than they were numbered.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    sender: u32,
    sequence: u32,
    /// The session was detached since.
    detached: bool,
    used: bool,
}

impl Last {
    /// A message with this number was received.
    #[inline]
    fn note(&mut self, sequence: u32) {
        if (sequence.wrapping_sub(self.sequence) as i32) > 0 {
            self.sequence = sequence;
        }
    }
}

/// What a sink heard last of its latest senders.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    last: [Last; SENDERS],
    /// The entry of the sender heard last.
    at: usize,
    lost: u64,
    /// Of what the runtime has counted as lost since it came back, what was missed here as well.
    counted: u64,
}

impl Gaps {
    /// A message was received. `counted`: what the runtime has counted as lost since it came back.
    #[inline]
    pub(crate) fn note(&mut self, sender: u32, sequence: u64, counted: impl FnOnce() -> u64) {
        let sequence = sequence as u32;
        if let Some(last) = self.last.get_mut(self.at)
            && last.sender == sender
            && !last.detached
            && last.used
        {
            last.note(sequence);
            return;
        }
        self.note_other(sender, sequence, counted);
    }

    fn note_other(&mut self, sender: u32, sequence: u32, counted: impl FnOnce() -> u64) {
        match self
            .last
            .iter()
            .position(|last| last.used && last.sender == sender)
        {
            Some(at) => {
                self.at = at;
                let last = &mut self.last[at];
                if !last.detached {
                    return last.note(sequence);
                } else {
                    // Sequence numbers go on where they were, unless the sender has begun anew as well.
                    let missed = sequence.wrapping_sub(last.sequence).wrapping_sub(1);
                    if missed < 1 << 31 {
                        // The sender may have told the new runtime of the last of them.
                        let both = counted().saturating_sub(self.counted);
                        let both = both.min(missed.into());
                        self.counted += both;
                        self.lost += u64::from(missed) - both;
                    }
                }
            }
            None => self.at = (self.at + 1) % SENDERS,
        }
        self.last[self.at] = Last {
            sender,
            sequence,
            detached: false,
            used: true,
        };
    }

    /// The session was detached.
    pub(crate) fn detached(&mut self) {
        self.counted = 0;
        for last in &mut self.last {
            last.detached = true;
        }
    }

    /// Messages missed so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gaps_across_a_detachment_count() {
        let mut gaps = Gaps::default();
        gaps.note(0, 1, || 0);
        gaps.note(0, 5, || 0);
        gaps.note(7, u64::from(u32::MAX) - 1, || 0);
        assert_eq!(gaps.lost(), 0);
        gaps.detached();
        gaps.note(0, 9, || 0); // 6, 7, 8
        gaps.note(7, 1 << 32, || 0); // u32::MAX
        gaps.note(3, 1000, || 0);
        gaps.note(0, 20, || 0);
        assert_eq!(gaps.lost(), 4);
        gaps.detached();
        gaps.note(3, 4, || 0); // has begun anew
        gaps.note(0, 21, || 0);
        assert_eq!(gaps.lost(), 4);
    }

    #[test]
    fn what_the_runtime_that_came_back_has_counted_is_not_counted_again() {
        let mut gaps = Gaps::default();
        gaps.note(0, 1, || 0);
        gaps.note(7, 1, || 0);
        gaps.detached();
        gaps.note(0, 12, || 4); // 2 to 11, of which the runtime has counted 4
        gaps.note(7, 5, || 4);
        assert_eq!(gaps.lost(), 6 + 3);
        gaps.detached();
        gaps.note(7, 8, || 100);
        assert_eq!(gaps.lost(), 6 + 3);
    }

    #[test]
    fn what_came_later_than_what_was_numbered_behind_it_was_not_missed() {
        let mut gaps = Gaps::default();
        for sender in [0, 7] {
            for sequence in [1, 5, 2, 4, 3] {
                gaps.note(sender, sequence, || 0);
            }
        }
        gaps.note(0, u64::from(u32::MAX), || 0); // far back
        gaps.detached();
        gaps.note(0, 6, || 0);
        gaps.note(7, 7, || 0);
        assert_eq!(gaps.lost(), 1);
    }

    #[test]
    fn more_senders_than_are_remembered_are_no_loss() {
        let mut gaps = Gaps::default();
        for round in 0..3 {
            for sender in 0..3 * SENDERS as u32 {
                gaps.note(sender, round * 100, || 0);
            }
        }
        assert_eq!(gaps.lost(), 0);
    }
}
