//! What stands before the bytes of every slice of a frame, behind the topic's header.
//!
//! | offset | size | field | |
//! |---|---|---|---|
//! | 0 | u8 | version | 1 |
//! | 1 | u8 | flags | bit 0: the stream has ended; no bytes follow, and all that is below is 0 but for `frame` |
//! | 2 | u16 | 0 | |
//! | 4 | u32 | slice | bytes of each slice of the frame but the last, 256 or more |
//! | 8 | u64 | frame | number of the frame among those of its server, from 0 |
//! | 16 | i64 | captured | TAI nanoseconds |
//! | 24 | u32 | bytes | of the frame |
//! | 28 | u32 | offset | of the slice in the frame, a multiple of `slice` |
//! | 32 | u32 | pixels | 0 bytes, 1 rgb, 2 rgba, 3 bgr, 4 bgra, 5 uyvy, 6 gray |
//! | 36 | u32 | width | pixels |
//! | 40 | u32 | height | lines |
//! | 44 | u32 | period | nanoseconds from frame to frame, 0: unknown |
//!
//! Little-endian. 48 bytes.

use takt::TaiTime;

use crate::format::{Format, Pixels};

/// Bytes of a header.
pub(crate) const BYTES: usize = 48;
/// Fewest bytes of a slice that is not the only one: so what a client keeps of a frame's slices stays small beside the frame.
pub(crate) const LEAST: u32 = 256;

const VERSION: u8 = 1;
const END: u8 = 1;

/// A slice of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub frame: u64,
    pub captured: TaiTime,
    pub format: Format,
    /// Bytes of each slice but the last.
    pub slice: u32,
    pub offset: u32,
    pub period_ns: u32,
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    Slice(Header),
    /// The stream has ended; so many frames were sent.
    End(u64),
}

impl Header {
    /// Which of the frame's slices it is.
    pub(crate) fn index(&self) -> usize {
        (self.offset / self.slice) as usize
    }

    /// How many slices the frame has.
    pub(crate) fn slices(&self) -> usize {
        self.format.bytes().div_ceil(self.slice as usize)
    }

    /// Bytes of this slice.
    pub(crate) fn len(&self) -> usize {
        (self.format.bytes() - self.offset as usize).min(self.slice as usize)
    }
}

/// # Panics
/// When `bytes` is shorter than a header.
pub(crate) fn write(says: &Says, bytes: &mut [u8]) {
    let bytes = &mut bytes[..BYTES];
    bytes.fill(0);
    bytes[0] = VERSION;
    let header = match says {
        Says::Slice(header) => header,
        Says::End(frames) => {
            bytes[1] = END;
            bytes[8..16].copy_from_slice(&frames.to_le_bytes());
            return;
        }
    };
    let format = header.format;
    bytes[8..16].copy_from_slice(&header.frame.to_le_bytes());
    bytes[16..24].copy_from_slice(&header.captured.as_nanos().to_le_bytes());
    for (at, word) in [
        (4, header.slice),
        // Formats have no more.
        (24, u32::try_from(format.bytes()).unwrap_or(u32::MAX)),
        (28, header.offset),
        (32, format.pixels().number()),
        (36, format.width()),
        (40, format.height()),
        (44, header.period_ns),
    ] {
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
}

/// Reads a message and gives the bytes of its slice. `None`: no server has written it.
pub(crate) fn read(message: &[u8]) -> Option<(Says, &[u8])> {
    let (header, bytes) = message.split_first_chunk::<BYTES>()?;
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let [version, flags, 0, 0, ..] = *header else {
        return None;
    };
    if version != VERSION || flags & !END != 0 {
        return None;
    }
    if flags & END != 0 {
        let rest = header[4..8].iter().chain(&header[16..]);
        let nothing = bytes.is_empty() && rest.copied().all(|byte| byte == 0);
        return nothing.then_some((Says::End(long(8)), bytes));
    }
    let pixels = Pixels::from_number(word(32))?;
    let read = Header {
        frame: long(8),
        captured: TaiTime::from_nanos(long(16).cast_signed()),
        format: Format::picture(pixels, word(36), word(40)).ok()?,
        slice: word(4),
        offset: word(28),
        period_ns: word(44),
    };
    let whole = read.format.bytes();
    let sound = whole == word(24) as usize
        && (read.slice >= LEAST || read.slice as usize >= whole && read.slice > 0)
        && (read.offset as usize) < whole
        && read.offset.is_multiple_of(read.slice)
        && bytes.len() == read.len();
    sound.then_some((Says::Slice(read), bytes))
}

/// Reads anything; what is read is written as it was.
#[doc(hidden)]
pub fn fuzz(message: &[u8]) {
    if let Some((says, bytes)) = read(message) {
        let mut again = vec![0; BYTES];
        write(&says, &mut again);
        again.extend(bytes);
        assert_eq!(again, message);
        if let Says::Slice(header) = says {
            assert!(header.index() < header.slices());
            assert!(header.offset as usize + bytes.len() <= header.format.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_known_header_is_written_byte_for_byte() {
        let header = Header {
            frame: 0x0102_0304_0506_0708,
            captured: TaiTime::from_nanos(0x1112_1314_1516_1718),
            format: Format::picture(Pixels::Rgb, 320, 240).expect("a format"),
            slice: 960,
            offset: 1920,
            period_ns: 16_666_667,
        };
        let mut message = vec![0; BYTES + 960];
        write(&Says::Slice(header), &mut message);
        let mut expected = vec![1, 0, 0, 0, 0xc0, 3, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1];
        expected.extend([0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
        expected.extend([0x00, 0x84, 3, 0, 0x80, 7, 0, 0, 1, 0, 0, 0]);
        expected.extend([0x40, 1, 0, 0, 0xf0, 0, 0, 0, 0x2b, 0x50, 0xfe, 0]);
        assert_eq!(message[..BYTES], expected);
        assert_eq!(
            read(&message),
            Some((Says::Slice(header), &message[BYTES..]))
        );
        // Anything of it otherwise is refused, or says something else.
        for at in (0..8).chain(24..44) {
            for bit in 0..8 {
                message[at] ^= 1 << bit;
                let (read, same) = (read(&message), Some(Says::Slice(header)));
                assert_ne!(read.map(|read| read.0), same, "{at} {bit}");
                message[at] ^= 1 << bit;
            }
        }
        assert_eq!(read(&message[..BYTES + 959]), None);
    }

    proptest! {
        #[test]
        fn headers_are_read_as_they_were_written(
            frame: u64, captured: i64, width in 1u32..5000, height in 1u32..3000, slice in LEAST..100_000, part in 0f64..1.0,
            period_ns: u32,
        ) {
            let format = Format::picture(Pixels::Bgra, width, height).expect("a format");
            let slices = format.bytes().div_ceil(slice as usize);
            let offset = (part * slices as f64) as u32 * slice;
            let header = Header { frame, captured: TaiTime::from_nanos(captured), format, slice, offset, period_ns };
            let mut message = vec![0; BYTES + header.len()];
            write(&Says::Slice(header), &mut message);
            prop_assert_eq!(read(&message).map(|read| read.0), Some(Says::Slice(header)));
            fuzz(&message);
            message.pop();
            prop_assert_eq!(read(&message), None);
        }

        #[test]
        fn anything_may_come(message: Vec<u8>) {
            fuzz(&message);
        }
    }
}
