//! Messages that were missed while the session was detached, as far as sequence numbers tell.
//!
//! The runtime counts what is lost while it is there. When it comes back it knows nothing of before; the
//! sink does, for the senders that it heard last.

/// Senders that are remembered.
const SENDERS: usize = 8;

/// The last number of a sender.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    sender: u32,
    sequence: u32,
    /// The session was detached since.
    detached: bool,
    used: bool,
}

/// What a sink heard last of its latest senders.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    last: [Last; SENDERS],
    /// The entry of the sender heard last.
    at: usize,
    lost: u64,
}

impl Gaps {
    /// A message was received.
    #[inline]
    pub(crate) fn note(&mut self, sender: u32, sequence: u64) {
        let sequence = sequence as u32;
        if let Some(last) = self.last.get_mut(self.at)
            && last.sender == sender
            && !last.detached
            && last.used
        {
            last.sequence = sequence;
            return;
        }
        self.note_other(sender, sequence);
    }

    fn note_other(&mut self, sender: u32, sequence: u32) {
        match self
            .last
            .iter()
            .position(|last| last.used && last.sender == sender)
        {
            Some(at) => {
                self.at = at;
                let last = &mut self.last[at];
                if last.detached {
                    // Sequence numbers go on where they were, unless the sender has begun anew as well.
                    let missed = sequence.wrapping_sub(last.sequence).wrapping_sub(1);
                    if missed < 1 << 31 {
                        self.lost += u64::from(missed);
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
        gaps.note(0, 1);
        gaps.note(0, 5);
        gaps.note(7, u64::from(u32::MAX) - 1);
        assert_eq!(gaps.lost(), 0);
        gaps.detached();
        gaps.note(0, 9); // 6, 7, 8
        gaps.note(7, 1 << 32); // u32::MAX
        gaps.note(3, 1000);
        gaps.note(0, 20);
        assert_eq!(gaps.lost(), 4);
        gaps.detached();
        gaps.note(3, 4); // has begun anew
        gaps.note(0, 21);
        assert_eq!(gaps.lost(), 4);
    }

    #[test]
    fn more_senders_than_are_remembered_are_no_loss() {
        let mut gaps = Gaps::default();
        for round in 0..3 {
            for sender in 0..3 * SENDERS as u32 {
                gaps.note(sender, round * 100);
            }
        }
        assert_eq!(gaps.lost(), 0);
    }
}
