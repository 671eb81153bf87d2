//! Frames from slices, in whatever order they come. Pure: memory and time come in as arguments.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use fixedbitset::FixedBitSet;

use crate::slice::Header;

/// Frames that are put together at the same time: slices are overtaken now and then, but not by far.
pub(crate) const AT_ONCE: usize = 2;
/// After so many slices of the next frame a frame gets no more.
const OVERTAKEN_BY: usize = 32;
/// Servers before the present one whose slices may still come.
const FORMER: usize = 16;
/// A former server is heard again when the present one is silent for so long.
const SILENT: Duration = Duration::from_secs(1);

/// What became of slices and frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Frames of which no slice came, between others and before the end.
    pub lost: u64,
    /// Frames for which there was no memory.
    pub no_memory: u64,
    /// Frames longer than the client takes.
    pub too_large: u64,
    /// Slices that came again, or after their frame was given up.
    pub late: u64,
    /// Slices of another server than the one that is followed.
    pub other_server: u64,
    /// Slices that contradict those of their frame that came before.
    pub malformed: u64,
}

/// Where frames are put together.
pub(crate) trait Memory {
    /// As many bytes or more, of any content. `None`: there are none, the frame is passed over.
    fn take(&mut self, bytes: usize) -> Option<Vec<u8>>;
    /// Takes a frame that will get no more slices; `memory` is what [`take`](Self::take) gave.
    fn finish(&mut self, frame: Assembled);
}

/// A frame that will get no more slices.
#[derive(Debug)]
pub(crate) struct Assembled {
    pub memory: Vec<u8>,
    /// Who sent it.
    pub server: u32,
    /// Of one of its slices.
    pub header: Header,
    /// What did not come, in order, neighbours together.
    pub holes: Vec<Range<usize>>,
}

/// A frame under way.
struct Assembly {
    server: u32,
    header: Header,
    /// `None`: it is passed over.
    memory: Option<Vec<u8>>,
    has: FixedBitSet,
    missing: usize,
}

impl Assembly {
    fn finish(self, to: &mut impl Memory) {
        let Some(memory) = self.memory else {
            return;
        };
        let slice = self.header.slice as usize;
        let mut holes: Vec<Range<usize>> = Vec::new();
        if self.missing > 0 {
            for index in self.has.zeroes() {
                let hole = index * slice..((index + 1) * slice).min(self.header.format.bytes());
                match holes.last_mut() {
                    Some(last) if last.end == hole.start => last.end = hole.end,
                    _ => holes.push(hole),
                }
            }
        }
        to.finish(Assembled {
            memory,
            server: self.server,
            header: self.header,
            holes,
        });
    }
}

pub(crate) struct Assembler {
    most_bytes: usize,
    server: Option<u32>,
    heard: Option<Instant>,
    former: VecDeque<u32>,
    /// Oldest first, at most [`AT_ONCE`].
    under_way: VecDeque<Assembly>,
    /// The latest frame that was begun or passed over.
    latest: Option<u64>,
    /// The frame in the middle of which it was joined.
    joined: Option<u64>,
    pub counters: Counters,
}

impl Assembler {
    pub(crate) fn new(most_bytes: usize) -> Self {
        Self {
            most_bytes,
            server: None,
            heard: None,
            former: VecDeque::new(),
            under_way: VecDeque::with_capacity(AT_ONCE),
            latest: None,
            joined: None,
            counters: Counters::default(),
        }
    }

    /// Takes a slice in. False: it is of no use.
    pub(crate) fn slice(
        &mut self,
        server: u32,
        header: &Header,
        bytes: &[u8],
        now: Instant,
        to: &mut impl Memory,
    ) -> bool {
        if !self.follows(server, now, to) {
            self.counters.other_server += 1;
            return false;
        }
        if self.latest.is_none_or(|latest| header.frame > latest) && !self.begin(server, header, to)
        {
            return false;
        }
        let place = self
            .under_way
            .iter()
            .position(|of| of.header.frame == header.frame);
        let Some(place) = place else {
            self.counters.late += u64::from(self.joined != Some(header.frame));
            return false;
        };
        let assembly = &mut self.under_way[place];
        let known = Header {
            offset: header.offset,
            ..assembly.header
        };
        if known != *header {
            self.counters.malformed += 1;
            return false;
        }
        if assembly.has.put(header.index()) {
            self.counters.late += 1;
            return false;
        }
        assembly.missing -= 1;
        if let Some(memory) = &mut assembly.memory {
            let at = header.offset as usize;
            memory[at..at + bytes.len()].copy_from_slice(bytes);
        }
        let (complete, came) = (assembly.missing == 0, assembly.has.len() - assembly.missing);
        // In order: those before it first, if it is time for it or for them.
        if complete || came >= OVERTAKEN_BY {
            for earlier in self.under_way.drain(..place) {
                earlier.finish(to);
            }
            if complete {
                // Those before are out.
                self.finish_first(to);
            }
        }
        true
    }

    /// A server has ended that has begun so many frames. False: it is not the one that is followed.
    pub(crate) fn end(&mut self, server: u32, frames: u64, to: &mut impl Memory) -> bool {
        if self.server != Some(server) {
            return false;
        }
        self.flush(to);
        // One that is followed has been heard of by a frame. What comes of the others after the end is late.
        if let (Some(latest), Some(last)) = (self.latest, frames.checked_sub(1))
            && last > latest
        {
            self.counters.lost = self.counters.lost.saturating_add(last - latest);
            self.latest = Some(last);
        }
        self.heard = None;
        true
    }

    /// Nothing has come for long: what is under way gets no more slices.
    pub(crate) fn flush(&mut self, to: &mut impl Memory) {
        while !self.under_way.is_empty() {
            self.finish_first(to);
        }
    }

    fn finish_first(&mut self, to: &mut impl Memory) {
        if let Some(first) = self.under_way.pop_front() {
            first.finish(to);
        }
    }

    /// Whether a slice of this server counts: of the one that came last, and of the others when that one is silent.
    fn follows(&mut self, server: u32, now: Instant, to: &mut impl Memory) -> bool {
        if self.server == Some(server) {
            self.heard = Some(now);
            return true;
        }
        let silent = self
            .heard
            .is_none_or(|heard| now.saturating_duration_since(heard) >= SILENT);
        if !silent && self.former.contains(&server) {
            return false;
        }
        self.flush(to);
        self.former.retain(|&former| former != server);
        if self.former.len() >= FORMER {
            self.former.pop_front();
        }
        self.former.extend(self.server);
        (self.server, self.heard) = (Some(server), Some(now));
        (self.latest, self.joined) = (None, None);
        true
    }

    /// Begins with a frame that is later than all before. False: this slice is not needed.
    fn begin(&mut self, server: u32, header: &Header, to: &mut impl Memory) -> bool {
        let before = self.latest.replace(header.frame);
        match before {
            None if header.offset != 0 => {
                self.joined = Some(header.frame);
                return false;
            }
            None => {}
            // Numbers are the server's word: any may come.
            Some(before) => {
                let between = header.frame - before - 1;
                self.counters.lost = self.counters.lost.saturating_add(between);
            }
        }
        while self.under_way.len() >= AT_ONCE {
            self.finish_first(to);
        }
        let bytes = header.format.bytes();
        let memory = if bytes > self.most_bytes {
            self.counters.too_large += 1;
            None
        } else {
            let memory = to.take(bytes);
            self.counters.no_memory += u64::from(memory.is_none());
            memory
        };
        let missing = header.slices();
        self.under_way.push_back(Assembly {
            server,
            header: *header,
            has: FixedBitSet::with_capacity(missing),
            memory,
            missing,
        });
        true
    }
}

/// Plays a script of slices: each frame that comes out is what its slices say, once and in order.
#[doc(hidden)]
pub fn fuzz(script: &[u8]) {
    use crate::format::Format;
    use takt::TaiTime;

    struct Out {
        latest: Option<u64>,
        taken: usize,
    }
    impl Memory for Out {
        fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
            self.taken += 1;
            (!self.taken.is_multiple_of(5)).then(|| vec![0xff; bytes])
        }

        fn finish(&mut self, frame: Assembled) {
            let number = frame.header.frame;
            assert!(self.latest.is_none_or(|latest| number > latest));
            self.latest = Some(number);
            assert_eq!(frame.memory.len(), frame.header.format.bytes());
            for (at, &byte) in frame.memory.iter().enumerate() {
                let hole = frame.holes.iter().any(|hole| hole.contains(&at));
                assert_eq!(byte, if hole { 0xff } else { number as u8 & 0x7f });
            }
        }
    }
    let mut assembler = Assembler::new(4000);
    let mut out = Out {
        latest: None,
        taken: 0,
    };
    let now = Instant::now();
    for step in script.as_chunks::<3>().0 {
        // The first of its frame's slices or another, of a frame near or far, of one of several lengths.
        let frame = u64::from(step[0]) >> 1;
        let length = 1 + usize::from(step[1] & 0xf0) * 24;
        let Ok(format) = Format::of_bytes(length) else {
            continue;
        };
        let slice = 256 + u32::from(step[0] & 1);
        let header = Header {
            frame,
            captured: TaiTime::from_nanos(0),
            format,
            slice,
            offset: u32::from(step[2]) * slice % (length as u32).next_multiple_of(slice),
            period_ns: 0,
        };
        let bytes = vec![frame as u8 & 0x7f; header.len()];
        match step[1] & 0xf {
            0 => assembler.flush(&mut out),
            _ => drop(assembler.slice(7, &header, &bytes, now, &mut out)),
        }
        assert!(assembler.under_way.len() <= AT_ONCE);
    }
    assembler.flush(&mut out);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use takt::TaiTime;

    use super::*;
    use crate::format::Format;

    const BYTES: usize = 256 * 39 + 100; // 40 slices

    #[derive(Default)]
    struct Out {
        frames: Vec<(u64, Vec<Range<usize>>)>,
        full: bool,
    }

    impl Memory for Out {
        fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
            (!self.full).then(|| vec![0; bytes])
        }

        fn finish(&mut self, frame: Assembled) {
            for (index, chunk) in frame.memory.chunks(256).enumerate() {
                let hole = frame.holes.iter().any(|hole| hole.contains(&(index * 256)));
                let written = if hole {
                    0
                } else {
                    frame.header.frame as u8 + 1
                };
                assert!(chunk.iter().all(|&byte| byte == written));
            }
            self.frames.push((frame.header.frame, frame.holes));
        }
    }

    fn header(frame: u64, index: u32) -> Header {
        Header {
            frame,
            captured: TaiTime::from_nanos(0),
            format: Format::of_bytes(BYTES).expect("a format"),
            slice: 256,
            offset: index * 256,
            period_ns: 0,
        }
    }

    struct Play {
        assembler: Assembler,
        out: Out,
        now: Instant,
    }

    impl Play {
        fn new() -> Self {
            Self {
                assembler: Assembler::new(BYTES),
                out: Out::default(),
                now: Instant::now(),
            }
        }

        fn slice(&mut self, server: u32, frame: u64, index: u32) {
            let header = header(frame, index);
            let bytes = vec![frame as u8 + 1; header.len()];
            let (now, out) = (self.now, &mut self.out);
            self.assembler.slice(server, &header, &bytes, now, out);
        }

        fn slices(&mut self, server: u32, frame: u64, indices: impl IntoIterator<Item = u32>) {
            for index in indices {
                self.slice(server, frame, index);
            }
        }

        fn frames(&mut self) -> Vec<(u64, Vec<Range<usize>>)> {
            std::mem::take(&mut self.out.frames)
        }
    }

    #[test]
    fn frames_come_out_whole_or_with_their_holes_in_order() {
        let mut play = Play::new();
        // Joined in the middle of the first.
        play.slices(1, 4, 7..40);
        assert_eq!(play.frames(), []);
        play.slices(1, 5, (0..40).rev());
        assert_eq!(play.frames(), [(5, vec![])]);
        // 6 lacks three; 7 is whole before it is known that they are lost: 6 comes first nevertheless.
        play.slices(1, 6, (0..40).filter(|index| ![3, 4, 39].contains(index)));
        play.slices(1, 7, 0..39);
        assert_eq!(play.frames(), [(6, vec![768..1280, 9984..BYTES])]);
        play.slice(1, 6, 3);
        play.slice(1, 7, 39);
        assert_eq!(play.frames(), [(7, vec![])]);
        // Again, late, and two frames of which nothing came.
        play.slice(1, 7, 0);
        play.slices(1, 10, 0..40);
        assert_eq!(play.frames(), [(10, vec![])]);
        let counters = play.assembler.counters;
        assert_eq!((counters.late, counters.lost), (2, 2));
        // Nothing more comes.
        play.slices(1, 11, 1..3);
        play.assembler.flush(&mut play.out);
        assert_eq!(play.frames(), [(11, vec![0..256, 768..BYTES])]);
    }

    #[test]
    fn the_end_of_a_frame_may_be_overtaken_by_the_next_ones_begin() {
        let mut play = Play::new();
        play.slices(1, 0, 0..38);
        play.slices(1, 1, 0..31);
        play.slices(1, 0, 38..40);
        assert_eq!(play.frames(), [(0, vec![])]);
        play.slices(1, 2, 0..5);
        play.slices(1, 1, 31..40);
        play.slices(1, 2, 5..40);
        assert_eq!(play.frames(), [(1, vec![]), (2, vec![])]);
        assert_eq!(play.assembler.counters, Counters::default());
    }

    #[test]
    fn the_server_that_came_last_is_followed_until_it_is_silent() {
        let mut play = Play::new();
        play.slices(1, 100, 0..40);
        play.slices(2, 0, 0..40);
        play.slices(1, 101, 0..40);
        play.slices(2, 1, 0..40);
        let numbers: Vec<u64> = play.frames().iter().map(|frame| frame.0).collect();
        assert_eq!(numbers, [100, 0, 1]);
        assert_eq!(play.assembler.counters.other_server, 40);
        play.now += SILENT;
        play.slices(1, 102, 0..40);
        assert_eq!(play.frames(), [(102, vec![])]);
    }

    #[test]
    fn frames_that_are_lost_before_the_end_are_counted_once() {
        let mut play = Play::new();
        play.slices(1, 4, 0..40);
        play.slices(1, 5, 0..3);
        let mut end = |server, frames| {
            let ended = play.assembler.end(server, frames, &mut play.out);
            (ended, play.assembler.counters.lost)
        };
        // 6 to 9 did not come at all.
        assert_eq!(end(1, 10), (true, 4));
        assert_eq!(end(1, 10), (true, 4));
        // Numbers are the server's word.
        for frames in [0, 5, 10] {
            assert_eq!(end(1, frames), (true, 4));
        }
        assert_eq!(end(2, 100), (false, 4));
        assert_eq!(end(1, u64::MAX), (true, u64::MAX - 6));
        let incomplete = 768..BYTES;
        assert_eq!(play.frames(), [(4, vec![]), (5, vec![incomplete])]);
        // One that was joined in the middle of its last frame has lost nothing, and the next begins anew.
        play.slices(2, 7, 30..40);
        assert!(play.assembler.end(2, 8, &mut play.out));
        play.slices(3, 0, 0..40);
        assert!(play.assembler.end(3, 1, &mut play.out));
        assert_eq!(play.frames(), [(0, vec![])]);
        assert_eq!(play.assembler.counters.lost, u64::MAX - 6);
    }

    #[test]
    fn numbers_of_frames_may_be_anything() {
        let mut play = Play::new();
        for server in [1, 2, 1, 2, 1] {
            play.now += SILENT;
            play.slices(server, 0, 0..40);
            // The helper writes the number and one.
            play.slices(server, u64::MAX - 1, 0..40);
        }
        assert_eq!(play.frames().len(), 10);
        assert_eq!(play.assembler.counters.lost, u64::MAX);
    }

    #[test]
    fn frames_without_memory_and_long_ones_are_passed_over_and_counted() {
        let mut play = Play::new();
        play.out.full = true;
        play.slices(1, 0, 0..40);
        play.out.full = false;
        play.slices(1, 1, 0..40);
        let mut long = header(2, 0);
        long.format = Format::of_bytes(BYTES + 1).expect("a format");
        let (now, out) = (play.now, &mut play.out);
        play.assembler.slice(1, &long, &[0; 256], now, out);
        // What contradicts it, too.
        play.slice(1, 2, 1);
        play.slices(1, 3, 0..40);
        assert_eq!(play.frames(), [(1, vec![]), (3, vec![])]);
        let counters = play.assembler.counters;
        assert_eq!(
            (counters.no_memory, counters.too_large, counters.malformed),
            (1, 1, 1)
        );
    }

    proptest! {
        #[test]
        fn anything_may_come(script: Vec<u8>) {
            fuzz(&script);
        }

        #[test]
        fn frames_whose_slices_come_a_little_out_of_order_are_whole(
            offsets in proptest::collection::vec(0u64..20, 40 * 10),
        ) {
            let mut play = Play::new();
            let mut order: Vec<_> = offsets.iter().enumerate().map(|(at, off)| (at as u64 + off, at)).collect();
            order.sort_unstable();
            // The first one is known by its first slice.
            play.slice(1, 0, 0);
            for (_, at) in order {
                if at > 0 {
                    play.slice(1, at as u64 / 40, at as u32 % 40);
                }
            }
            let frames = play.frames();
            prop_assert_eq!(frames.len(), 10);
            prop_assert!(frames.iter().all(|frame| frame.1.is_empty()));
        }
    }
}
