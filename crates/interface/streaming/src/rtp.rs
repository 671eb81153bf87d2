//! Frames as RTP packets of uncompressed video (RFC 4175), as other programs send and show them. Pure: sockets are the
//! caller's.
//!
//! Progressive pictures of 8 bits: `RGB`, `RGBA`, `BGR`, `BGRA`, `YCbCr-4:2:2`.

use std::time::{Duration, Instant};

use fixedbitset::FixedBitSet;

use crate::error::Error;
use crate::format::{Format, Pixels};

/// Bytes of the headers of RTP (RFC 3550, section 5.1) and of the payload with one line (RFC 4175, section 4.2).
const HEADERS: usize = 12 + 2 + 6;
/// Shortest and longest packet, in bytes.
const PACKETS: [usize; 2] = [HEADERS + 8, 65_507];
/// Lines and pixels of a line are numbered with 15 bits.
const MOST: u32 = 0x7fff;
/// Packets of a frame at most.
const MOST_PACKETS: u64 = 1 << 20;
/// After so many packets one after another that are older than the frame under way their sender counts anew.
const MOST_BEHIND: u32 = 64;
/// Another source is taken when the present one is silent for so long.
const SILENT: Duration = Duration::from_secs(1);
const VERSION_2: u8 = 0x80;
const MARKER: u8 = 0x80;
/// Ticks of the time stamps in a second.
pub const CLOCK_RATE: u64 = 90_000;

/// Bytes and pixels that belong together (RFC 4175, section 4.3), and the name of the sampling.
fn group(format: Format) -> Result<(usize, u32, &'static str), Error> {
    let told = match format.pixels() {
        Pixels::Rgb => (3, 1, "RGB"),
        Pixels::Bgr => (3, 1, "BGR"),
        Pixels::Rgba => (4, 1, "RGBA"),
        Pixels::Bgra => (4, 1, "BGRA"),
        Pixels::Uyvy => (4, 2, "YCbCr-4:2:2"),
        Pixels::Bytes | Pixels::Gray => {
            return Err(Error::Option(format!(
                "RTP has no raw video of {}: use rgb, rgba, bgr, bgra or uyvy",
                format.pixels().name()
            )));
        }
    };
    if format.width() > MOST || format.height() > MOST {
        return Err(Error::Option(format!(
            "RTP has no raw video of {format}: width and height are at most {MOST}"
        )));
    }
    Ok(told)
}

/// What a receiver must know, as GStreamer's caps (`udpsrc caps=…`).
///
/// # Errors
/// [`Error::Option`] for a format that RFC 4175 does not have.
pub fn caps(format: Format, payload_type: u8) -> Result<String, Error> {
    let (_, _, sampling) = group(format)?;
    Ok(format!(
        "application/x-rtp,media=(string)video,clock-rate=(int){CLOCK_RATE},encoding-name=(string)RAW,\
         sampling=(string){sampling},depth=(string)8,width=(string){},height=(string){},colorimetry=(string)BT709-2,\
         payload=(int){payload_type}",
        format.width(),
        format.height()
    ))
}

/// Cuts frames into packets.
#[derive(Clone, Debug)]
pub struct Packetizer {
    format: Format,
    group: (usize, u32),
    packet: usize,
    payload_type: u8,
    source: u32,
    sequence: u32,
}

impl Packetizer {
    /// For frames of this format, in packets of so many bytes at most (without the headers of IP and UDP). `source` is the
    /// synchronisation source: choose it at random.
    ///
    /// # Errors
    /// [`Error::Option`]: a format that RFC 4175 does not have, a length or a payload type out of range.
    pub fn new(
        format: Format,
        packet: usize,
        payload_type: u8,
        source: u32,
    ) -> Result<Self, Error> {
        let (bytes, pixels, _) = group(format)?;
        let [least, most] = PACKETS;
        if !(least..=most).contains(&packet) {
            return Err(Error::Option(format!(
                "packets of {packet} bytes are not possible: write {least} to {most}"
            )));
        }
        if payload_type > 127 {
            return Err(Error::Option(format!(
                "the payload type {payload_type} is not possible: write 96 to 127"
            )));
        }
        Ok(Self {
            format,
            group: (bytes, pixels),
            packet,
            payload_type,
            source,
            sequence: 0,
        })
    }

    /// Packets of a frame.
    pub fn packets(&self) -> usize {
        self.format.line_bytes().div_ceil(self.payload()) * self.format.height() as usize
    }

    fn payload(&self) -> usize {
        (self.packet - HEADERS) / self.group.0 * self.group.0
    }

    /// Hands each packet of a frame to `send`, in order, until one fails. Each holds a part of one line.
    ///
    /// # Errors
    /// That of `send`.
    ///
    /// # Panics
    /// When the frame is not one of the format.
    pub fn packetize<E>(
        &mut self,
        frame: &[u8],
        captured: Duration,
        mut send: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        assert_eq!(frame.len(), self.format.bytes(), "a frame of the format");
        let ticks = captured.as_nanos() * u128::from(CLOCK_RATE) / 1_000_000_000;
        let (bytes, pixels) = self.group;
        let payload = self.payload();
        let line_bytes = self.format.line_bytes();
        let last_line = self.format.height() as usize - 1;
        let mut packet = vec![0; HEADERS + payload];
        for (line, data) in frame.chunks_exact(line_bytes).enumerate() {
            for (part, data) in data.chunks(payload).enumerate() {
                let at = part * payload;
                let marker = line == last_line && at + data.len() == line_bytes;
                let offset = (at / bytes) as u32 * pixels;
                packet[0] = VERSION_2;
                packet[1] = self.payload_type | if marker { MARKER } else { 0 };
                packet[2..4].copy_from_slice(&(self.sequence as u16).to_be_bytes());
                packet[4..8].copy_from_slice(&(ticks as u32).to_be_bytes());
                packet[8..12].copy_from_slice(&self.source.to_be_bytes());
                packet[12..14].copy_from_slice(&((self.sequence >> 16) as u16).to_be_bytes());
                packet[14..16].copy_from_slice(&(data.len() as u16).to_be_bytes());
                packet[16..18].copy_from_slice(&(line as u16).to_be_bytes());
                packet[18..20].copy_from_slice(&(offset as u16).to_be_bytes());
                packet[HEADERS..HEADERS + data.len()].copy_from_slice(data);
                self.sequence = self.sequence.wrapping_add(1);
                send(&packet[..HEADERS + data.len()])?;
            }
        }
        Ok(())
    }
}

/// What happened to packets and frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepacketizerCounters {
    /// Whole frames.
    pub frames: u64,
    /// Frames dropped because packets of them were lost.
    pub incomplete: u64,
    /// Packets that are none of raw video of this format.
    pub malformed: u64,
    /// Packets of another source than the one that is followed.
    pub strays: u64,
}

/// Puts frames together from packets: of one source, until it is silent for a second.
#[derive(Debug)]
pub struct Depacketizer {
    format: Format,
    group: (usize, u32),
    frame: Vec<u8>,
    /// The frame under way.
    timestamp: Option<u32>,
    source: Option<u32>,
    /// When a packet of the source came.
    heard: Option<Instant>,
    /// Bytes of it that came.
    came: usize,
    has: FixedBitSet,
    /// The last sequence number, with as many bits as are needed; and that of the first packet of the frame under way,
    /// once it is known from the end of the one before.
    last: u64,
    first: Option<u64>,
    /// Packets since the last that was not behind the frame under way.
    behind: u32,
    counters: DepacketizerCounters,
}

impl Depacketizer {
    /// For frames of this format.
    ///
    /// # Errors
    /// [`Error::Option`] for a format that RFC 4175 does not have, and where there is no memory for a frame.
    pub fn new(format: Format) -> Result<Self, Error> {
        let (bytes, pixels, _) = group(format)?;
        let frame = crate::zeroed(format.bytes()).ok_or_else(|| {
            Error::Option(format!(
                "there is no memory for a frame of {format}, which has {} bytes: take smaller pictures, or give the program more",
                format.bytes()
            ))
        })?;
        Ok(Self {
            format,
            group: (bytes, pixels),
            frame,
            timestamp: None,
            source: None,
            heard: None,
            came: 0,
            has: FixedBitSet::new(),
            last: 0,
            first: None,
            behind: 0,
            counters: DepacketizerCounters::default(),
        })
    }

    /// What happened so far.
    pub const fn counters(&self) -> DepacketizerCounters {
        self.counters
    }

    /// Takes a packet; gives a frame when it completes one.
    pub fn packet(&mut self, packet: &[u8]) -> Option<&[u8]> {
        self.packet_at(packet, Instant::now())
    }

    fn packet_at(&mut self, packet: &[u8], now: Instant) -> Option<&[u8]> {
        let complete = self.take(packet, now).unwrap_or_else(|| {
            self.counters.malformed += 1;
            false
        });
        complete.then_some(&self.frame[..])
    }

    /// `None`: malformed.
    fn take(&mut self, packet: &[u8], now: Instant) -> Option<bool> {
        let (header, rest) = packet.split_first_chunk::<12>()?;
        let (first, kind) = (header[0], header[1]);
        if first & 0xc0 != VERSION_2 {
            return None;
        }
        // Padding, extension, contributing sources (RFC 3550, section 5.1).
        let mut rest = rest.get(usize::from(first & 0xf) * 4..)?;
        if first & 0x10 != 0 {
            let words = u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]);
            rest = rest.get(4 + 4 * usize::from(words)..)?;
        }
        if first & 0x20 != 0 {
            let padding = usize::from(*rest.last()?);
            rest = rest.get(..rest.len().checked_sub(padding.max(1))?)?;
        }
        let sequence = u16::from_be_bytes([header[2], header[3]]);
        let timestamp = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let source = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        // Checked before anything is changed.
        self.lines(rest, |_, _| ())?;
        let silent = |heard| now.saturating_duration_since(heard) >= SILENT;
        let other = self.source != Some(source);
        if other && !self.heard.is_none_or(silent) {
            self.counters.strays += 1;
            return Some(false);
        }
        (self.source, self.heard) = (Some(source), Some(now));
        if other || self.behind > MOST_BEHIND {
            self.resynchronise();
            // Far from 0: packets may be overtaken.
            self.last = 1 << 32 | u64::from(sequence);
        }
        let ahead = sequence.wrapping_sub(self.last as u16).cast_signed();
        let number = self.last.wrapping_add_signed(ahead.into());
        let older = |now: u32| timestamp.wrapping_sub(now).cast_signed() < 0;
        if self.first.is_some_and(|first| number < first) || self.timestamp.is_some_and(older) {
            // Again, or of a frame that was given up.
            self.behind += 1;
            return Some(false);
        }
        self.behind = 0;
        self.last = self.last.max(number);
        let before = self.timestamp.replace(timestamp);
        if before.is_some_and(|before| before != timestamp) {
            // The end of the frame before was lost: what has come since may be of either.
            self.give_up();
        }
        // The first frame's beginning is not known.
        let begins = self
            .first
            .or((self.came == 0 && self.is_begin(rest)).then_some(number));
        let Some(begins) = begins else {
            self.end(kind, number);
            return Some(false);
        };
        self.first = Some(begins);
        let index = number
            .checked_sub(begins)
            .filter(|&index| index < MOST_PACKETS)?;
        let index = index as usize;
        if index >= self.has.len() {
            self.has.grow((index + 1).next_multiple_of(1024));
        }
        if self.has.put(index) {
            return Some(false);
        }
        let mut frame = std::mem::take(&mut self.frame);
        let mut came = 0;
        self.lines(rest, |at, data| {
            frame[at..at + data.len()].copy_from_slice(data);
            came += data.len();
        });
        self.frame = frame;
        self.came += came;
        // As many bytes as a frame has, each packet counted once: all of it, unless lines were sent twice.
        if self.came == self.frame.len() {
            self.counters.frames += 1;
            self.timestamp = None;
            self.begin_next(Some(self.last + 1));
            return Some(true);
        }
        if self.came > self.frame.len() {
            self.give_up();
            return None;
        }
        Some(false)
    }

    /// Calls `each` with where each part of a line belongs and its bytes. `None`: malformed.
    fn lines(&self, payload: &[u8], mut each: impl FnMut(usize, &[u8])) -> Option<()> {
        let word = |at: usize| {
            Some(u16::from_be_bytes([
                *payload.get(at)?,
                *payload.get(at + 1)?,
            ]))
        };
        // Behind the extended sequence number.
        let mut headers = 1;
        while word(2 + headers * 6 - 2)? & 0x8000 != 0 {
            headers += 1;
        }
        let mut data = payload.get(2 + headers * 6..)?;
        let (bytes, pixels) = self.group;
        let stride = self.format.line_bytes();
        for header in 0..headers {
            let at = 2 + header * 6;
            let (length, line, offset) = (word(at)?, word(at + 2)?, word(at + 4)? & 0x7fff);
            let length = usize::from(length);
            let offset = u32::from(offset);
            let start = (offset / pixels) as usize * bytes;
            // The highest bit of the line says that it is of a second field: interlaced pictures are not taken.
            let sound = u32::from(line) < self.format.height()
                && length > 0
                && length.is_multiple_of(bytes)
                && offset.is_multiple_of(pixels)
                && start + length <= stride;
            if !sound {
                return None;
            }
            let (part, after) = data.split_at_checked(length)?;
            each(usize::from(line) * stride + start, part);
            data = after;
        }
        Some(())
    }

    /// Whether a packet has the upper left of a frame.
    fn is_begin(&self, payload: &[u8]) -> bool {
        let mut begins = false;
        self.lines(payload, |at, _| begins |= at == 0);
        begins
    }

    /// The last packet of a frame tells where the next begins.
    fn end(&mut self, kind: u8, number: u64) {
        if kind & MARKER != 0 {
            self.begin_next(Some(number + 1));
            self.timestamp = None;
        }
    }

    /// Another sender, or one that has begun anew.
    fn resynchronise(&mut self) {
        self.timestamp = None;
        self.behind = 0;
        self.give_up();
    }

    fn begin_next(&mut self, first: Option<u64>) {
        self.first = first;
        self.came = 0;
        self.has.clear();
    }

    fn give_up(&mut self) {
        if self.came > 0 {
            self.counters.incomplete += 1;
        }
        self.begin_next(None);
    }
}

/// Reads anything; a frame is as long as its format says.
#[doc(hidden)]
pub fn fuzz(script: &[u8]) {
    let Ok(format) = Format::picture(Pixels::Uyvy, 16, 8) else {
        return;
    };
    let Ok(mut depacketizer) = Depacketizer::new(format) else {
        return;
    };
    let mut rest = script;
    while let Some((length, after)) = rest.split_first() {
        let (packet, after) = after.split_at(after.len().min(usize::from(*length)));
        if let Some(frame) = depacketizer.packet(packet) {
            assert_eq!(frame.len(), format.bytes());
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn picture(number: usize, format: Format) -> Vec<u8> {
        (0..format.bytes())
            .map(|at| (at * 7 + number * 31) as u8)
            .collect()
    }

    fn packets(of: &mut Packetizer, number: usize) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let frame = picture(number, of.format);
        let captured = Duration::from_millis(number as u64 * 20);
        let Ok(()) = of.packetize(&frame, captured, |packet| {
            packets.push(packet.to_vec());
            Ok::<(), std::convert::Infallible>(())
        });
        packets
    }

    #[test]
    fn a_packet_is_as_rfc_4175_says() {
        let format = Format::picture(Pixels::Uyvy, 6, 2).expect("a format");
        let mut packetizer = Packetizer::new(format, HEADERS + 8, 96, 0x0102_0304).expect("ok");
        packetizer.sequence = 0x0001_ffff;
        assert_eq!(packetizer.packets(), 4);
        let packets = packets(&mut packetizer, 1);
        // 20 ms are 1800 ticks; pixels 4 and 5 of line 0, then pixels 0 to 3 of line 1, then the end.
        let mut second = vec![
            0x80, 96, 0, 0, 0, 0, 7, 8, 1, 2, 3, 4, 0, 2, 0, 4, 0, 0, 0, 4,
        ];
        second.extend(&picture(1, format)[8..12]);
        assert_eq!(packets[1], second);
        assert_eq!(packets[0][..4], [0x80, 96, 0xff, 0xff]);
        assert_eq!(packets[0][12..20], [0, 1, 0, 8, 0, 0, 0, 0]);
        assert_eq!(packets[2][12..20], [0, 2, 0, 8, 0, 1, 0, 0]);
        assert_eq!(packets[3][1], 96 | MARKER);
        let told = caps(format, 96).expect("caps");
        assert!(told.contains("sampling=(string)YCbCr-4:2:2"), "{told}");
        for wrong in [
            caps(Format::of_bytes(5).expect("a format"), 96).map(drop),
            Packetizer::new(format, 20, 96, 0).map(drop),
            Packetizer::new(format, 1400, 128, 0).map(drop),
        ] {
            assert!(wrong.is_err());
        }
    }

    #[test]
    fn frames_with_lost_packets_are_dropped_and_counted() {
        let format = Format::picture(Pixels::Rgb, 100, 20).expect("a format");
        let mut packetizer = Packetizer::new(format, 120, 96, 1).expect("a packetizer");
        let mut depacketizer = Depacketizer::new(format).expect("a depacketizer");
        let mut play = |packets: &[Vec<u8>]| -> Option<Vec<u8>> {
            let mut frame = None;
            for packet in packets {
                frame = depacketizer.packet(packet).map(<[u8]>::to_vec).or(frame);
            }
            frame
        };
        let frames: Vec<_> = (0..8)
            .map(|number| packets(&mut packetizer, number))
            .collect();
        // Joined in the middle.
        assert_eq!(play(&frames[0][30..]), None);
        assert_eq!(play(&frames[1]), Some(picture(1, format)));
        // Without one in the middle, without the end, without the beginning.
        let mut lossy = frames[2].clone();
        lossy.remove(7);
        assert_eq!(play(&lossy), None);
        assert_eq!(play(&frames[3]), Some(picture(3, format)));
        assert_eq!(play(&frames[4][..50]), None);
        assert_eq!(play(&frames[5][2..]), None);
        assert_eq!(play(&frames[6]), Some(picture(6, format)));
        // Twice, and noise.
        let mut twice: Vec<_> = frames[7]
            .iter()
            .flat_map(|packet| [packet.clone(), packet.clone()])
            .collect();
        twice.insert(9, vec![0x80; 30]);
        assert_eq!(play(&twice), Some(picture(7, format)));
        let counters = depacketizer.counters();
        assert_eq!((counters.frames, counters.malformed), (4, 1));
    }

    #[test]
    fn a_source_is_followed_until_it_is_silent_and_strays_are_counted() {
        let format = Format::picture(Pixels::Rgb, 100, 20).expect("a format");
        let mut depacketizer = Depacketizer::new(format).expect("a depacketizer");
        let [mut one, mut other] =
            [1, 2].map(|source| Packetizer::new(format, 120, 96, source).expect("a packetizer"));
        let mut now = Instant::now();
        let mut whole = 0;
        for number in 0..5 {
            let stray = packets(&mut other, number).swap_remove(3);
            for packet in packets(&mut one, number) {
                whole += u32::from(depacketizer.packet_at(&packet, now).is_some());
                depacketizer.packet_at(&stray, now);
            }
        }
        assert_eq!(whole, 5);
        let strays = depacketizer.counters().strays;
        assert_eq!(strays, 5 * one.packets() as u64);
        now += SILENT;
        for number in 5..7 {
            for packet in packets(&mut other, number) {
                whole += u32::from(depacketizer.packet_at(&packet, now).is_some());
            }
        }
        assert_eq!((whole, depacketizer.counters().strays), (7, strays));
    }

    proptest! {
        #[test]
        fn anything_may_come(script: Vec<u8>) {
            fuzz(&script);
        }

        #[test]
        fn frames_are_put_together_from_packets_in_any_order_within_a_frame(
            width in 1u32..60, height in 1u32..20, packet in HEADERS + 8..200usize, start: u32, seed: u64,
        ) {
            let format = Format::picture(Pixels::Uyvy, width * 2, height).expect("a format");
            let mut packetizer = Packetizer::new(format, packet, 96, 1).expect("a packetizer");
            packetizer.sequence = start;
            let mut depacketizer = Depacketizer::new(format).expect("a depacketizer");
            for packet in packets(&mut packetizer, 0) {
                depacketizer.packet(&packet);
            }
            for number in 1..4 {
                let mut packets = packets(&mut packetizer, number);
                packets.sort_by_key(|packet| (u64::from(packet[3]) + 1).wrapping_mul(seed | 1));
                let mut whole = None;
                for packet in &packets {
                    prop_assert!(whole.is_none());
                    whole = depacketizer.packet(packet).map(<[u8]>::to_vec);
                }
                prop_assert_eq!(whole, Some(picture(number, format)));
            }
        }
    }
}
