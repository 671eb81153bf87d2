//! Who holds the messages in a receive region, and all that each holds: who goes is asked for that and nothing else.

use crate::slots::SinkSlot;

/// Nobody's.
const NOBODY: u16 = 0;
/// The session emits the message itself.
const EMITTED: u16 = u16::MAX;
/// Its sink is closed, and a source may still emit it.
const ORPHAN: u16 = u16::MAX - 1;

/// Per chunk of a receive region, who holds the message that starts there. What a sink holds is a list through the chunks, and so is
/// what closed sinks have left behind.
#[derive(Debug)]
pub struct Placed {
    /// 1 + the sink, or one of the above.
    holders: Vec<u16>,
    /// The chunks before and behind in the list of the holder, 1 + each; 0: none. Zero pages until touched.
    links: Vec<[u32; 2]>,
    /// 1 + the first chunk of each list: of orphans, then of sinks.
    firsts: Vec<u32>,
}

/// Who holds a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    Sink(SinkSlot),
    Orphan,
}

impl Holder {
    fn number(self) -> u16 {
        match self {
            Self::Sink(sink) => sink.0 as u16 + 1,
            Self::Orphan => ORPHAN,
        }
    }

    fn list(self) -> usize {
        match self {
            Self::Sink(sink) => sink.0 + 1,
            Self::Orphan => 0,
        }
    }
}

impl Placed {
    /// For a region of so many chunks.
    pub fn new(chunks: usize) -> Self {
        Self {
            holders: vec![NOBODY; chunks],
            links: vec![[0; 2]; chunks],
            firsts: vec![0],
        }
    }

    /// Makes room for the list of a sink.
    pub fn open(&mut self, sink: SinkSlot) {
        let lists = Holder::Sink(sink).list() + 1;
        if self.firsts.len() < lists {
            self.firsts.resize(lists, 0);
        }
    }

    /// Who holds what starts at a chunk; `None`: nobody does.
    #[inline]
    pub fn holder(&self, chunk: u32) -> Option<Holder> {
        match *self.holders.get(chunk as usize)? {
            NOBODY | EMITTED => None,
            ORPHAN => Some(Holder::Orphan),
            sink => Some(Holder::Sink(SinkSlot(usize::from(sink) - 1))),
        }
    }

    /// A message that nobody holds is somebody's.
    #[inline]
    pub fn give(&mut self, chunk: u32, to: Holder) {
        let first = &mut self.firsts[to.list()];
        let behind = std::mem::replace(first, chunk + 1);
        self.links[chunk as usize] = [0, behind];
        if behind > 0 {
            self.links[behind as usize - 1][0] = chunk + 1;
        }
        self.holders[chunk as usize] = to.number();
    }

    /// Takes a message from whoever holds it.
    #[inline]
    pub fn take(&mut self, chunk: u32) {
        let Some(holder) = self.holder(chunk) else {
            return;
        };
        self.holders[chunk as usize] = NOBODY;
        let [before, behind] = self.links[chunk as usize];
        match before {
            0 => self.firsts[holder.list()] = behind,
            before => self.links[before as usize - 1][1] = behind,
        }
        if behind > 0 {
            self.links[behind as usize - 1][0] = before;
        }
    }

    /// Takes a message of whoever holds any. `None`: that holds none.
    pub fn take_any(&mut self, of: Holder) -> Option<u32> {
        let first = *self.firsts.get(of.list())?;
        let chunk = first.checked_sub(1)?;
        self.take(chunk);
        Some(chunk)
    }

    /// Whether somebody holds none.
    #[inline]
    pub fn has_none(&self, holder: Holder) -> bool {
        self.firsts
            .get(holder.list())
            .is_none_or(|first| *first == 0)
    }

    /// The session emits the message: it is in no list.
    #[inline]
    pub fn emit(&mut self, chunk: u32) {
        self.take(chunk);
        self.holders[chunk as usize] = EMITTED;
    }

    /// What was emitted is nobody's.
    #[inline]
    pub fn emitted(&mut self, chunk: u32) {
        self.holders[chunk as usize] = NOBODY;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_holds_what_it_was_given_and_no_more(
            acts in proptest::collection::vec((0u32..64, 0usize..4, 0u8..4), 0..400),
        ) {
            let holder = |at: usize| match at {
                0 => Holder::Orphan,
                at => Holder::Sink(SinkSlot(at - 1)),
            };
            let mut placed = Placed::new(64);
            (0..3).for_each(|sink| placed.open(SinkSlot(sink)));
            let mut expected = [None; 64];
            for (chunk, at, act) in acts {
                match act {
                    0 => {
                        placed.take(chunk);
                        expected[chunk as usize] = None;
                    }
                    1 if expected[chunk as usize].is_some() => {
                        placed.emit(chunk);
                        placed.emitted(chunk);
                        expected[chunk as usize] = None;
                    }
                    2 => match placed.take_any(holder(at)) {
                        Some(chunk) => {
                            prop_assert_eq!(expected[chunk as usize].take(), Some(at));
                        }
                        None => prop_assert!(!expected.contains(&Some(at))),
                    },
                    _ if expected[chunk as usize].is_none() => {
                        placed.give(chunk, holder(at));
                        expected[chunk as usize] = Some(at);
                    }
                    _ => {}
                }
                for chunk in 0..64 {
                    prop_assert_eq!(placed.holder(chunk), expected[chunk as usize].map(holder));
                }
            }
            for at in 0..4 {
                let mut held = Vec::from_iter(std::iter::from_fn(|| placed.take_any(holder(at))));
                held.sort_unstable();
                let all = (0..64).filter(|chunk| expected[*chunk as usize] == Some(at));
                prop_assert_eq!(held, Vec::from_iter(all));
                prop_assert!(placed.has_none(holder(at)));
            }
        }
    }
}
