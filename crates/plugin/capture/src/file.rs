//! Reads pcap and pcapng of any byte order and resolution.

use std::io::Read;

use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{Block, PcapBlockOwned, PcapError, create_reader};

use crate::Meta;

/// What is read at once.
const BUFFER: usize = 1 << 18;
/// The longest block.
const MAX_BLOCK: usize = 1 << 24;
/// The most interfaces of a section.
const MAX_INTERFACES: usize = 1 << 16;

/// Why a file cannot be read, or not further.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It has another format.
    #[error("neither pcap nor pcapng")]
    Format,
    /// It ends where a packet goes on.
    #[error("the file ends within packet {packet}: what is before it was read")]
    Truncated {
        /// From 1.
        packet: u64,
    },
    /// A block is wrong.
    #[error("malformed at packet {packet}: what is before it was read")]
    Malformed {
        /// From 1.
        packet: u64,
    },
    /// A block is longer than any packet can be.
    #[error(
        "packet {packet} says that it is longer than {MAX_BLOCK} bytes: what is before it was read"
    )]
    TooLong {
        /// From 1.
        packet: u64,
    },
    /// The kernel's answer.
    #[error("cannot read on at packet {packet}")]
    Io {
        /// From 1.
        packet: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link_type: i32,
    /// Units in a second.
    resolution: u64,
    offset_s: i64,
    snap: u32,
}

/// A capture in a file, or in a pipe.
pub struct Reader {
    inner: Box<dyn PcapReaderIterator>,
    interfaces: Vec<Interface>,
    buffer: usize,
    packets: u64,
    /// Packets of interfaces that were never described, and simple packets without one.
    orphans: u64,
    bytes: u64,
}

fn of_header(error: &PcapError<&[u8]>) -> ReadError {
    match error {
        PcapError::Eof | PcapError::Incomplete(_) | PcapError::UnexpectedEof => {
            ReadError::Truncated { packet: 1 }
        }
        PcapError::ReadError => ReadError::Io { packet: 1 },
        _ => ReadError::Format,
    }
}

/// Nanoseconds of an instant in units of a second's `resolution`-th part; held at the ends of the scale.
fn nanos(units: u64, resolution: u64, offset_s: i64) -> i64 {
    let nanos = i128::from(units) * 1_000_000_000 / i128::from(resolution.max(1))
        + i128::from(offset_s) * 1_000_000_000;
    nanos.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

impl Reader {
    /// Begins to read.
    ///
    /// # Errors
    /// [`ReadError`], if the beginning is that of no capture.
    pub fn new(file: impl Read + Send + 'static) -> Result<Self, ReadError> {
        let inner = create_reader(BUFFER, file).map_err(|error| of_header(&error))?;
        Ok(Self {
            inner,
            interfaces: Vec::new(),
            buffer: BUFFER,
            packets: 0,
            orphans: 0,
            bytes: 0,
        })
    }

    /// How many packets were read.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Packets that named an interface which the file does not describe.
    pub fn orphans(&self) -> u64 {
        self.orphans
    }

    /// How many bytes of the file were read.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Puts the next packet's bytes into `packet`, in the place of what was there; `None` at the end.
    ///
    /// # Errors
    /// [`ReadError`]; nothing more can be read then.
    pub fn next(&mut self, packet: &mut Vec<u8>) -> Result<Option<Meta>, ReadError> {
        loop {
            let number = self.packets + 1;
            match self.inner.next() {
                Ok((length, block)) => {
                    let found = match block {
                        PcapBlockOwned::LegacyHeader(header) => {
                            let nano = header.is_nanosecond_precision();
                            self.interfaces = vec![Interface {
                                link_type: header.network.0,
                                resolution: if nano { 1_000_000_000 } else { 1_000_000 },
                                offset_s: 0,
                                snap: header.snaplen,
                            }];
                            None
                        }
                        PcapBlockOwned::Legacy(block) => {
                            let interface = self.interfaces.first();
                            interface.map(|interface| {
                                let units = u64::from(block.ts_sec) * interface.resolution
                                    + u64::from(block.ts_usec);
                                let data = block.data.get(..block.caplen as usize);
                                packet.clear();
                                packet.extend_from_slice(data.unwrap_or(block.data));
                                Meta {
                                    utc_ns: nanos(units, interface.resolution, 0),
                                    length: block.origlen,
                                    link_type: interface.link_type,
                                }
                            })
                        }
                        PcapBlockOwned::NG(block) => {
                            of_block(&block, &mut self.interfaces, &mut self.orphans, packet)
                        }
                    };
                    self.inner.consume(length);
                    self.bytes += length as u64;
                    if let Some(meta) = found {
                        self.packets += 1;
                        return Ok(Some(meta));
                    }
                }
                Err(PcapError::Eof) => return Ok(None),
                Err(PcapError::Incomplete(wanted)) => {
                    if wanted > MAX_BLOCK {
                        return Err(ReadError::TooLong { packet: number });
                    }
                    let before = self.inner.data().len();
                    match self.inner.refill() {
                        Ok(()) => {}
                        Err(PcapError::BufferTooSmall) => self.grow(number)?,
                        Err(_) => return Err(ReadError::Io { packet: number }),
                    }
                    if self.inner.data().len() == before && self.inner.reader_exhausted() {
                        if before == 0 {
                            return Ok(None);
                        }
                        return Err(ReadError::Truncated { packet: number });
                    }
                }
                Err(PcapError::BufferTooSmall) => self.grow(number)?,
                Err(PcapError::UnexpectedEof) => {
                    return Err(ReadError::Truncated { packet: number });
                }
                Err(PcapError::ReadError) => return Err(ReadError::Io { packet: number }),
                Err(_) => return Err(ReadError::Malformed { packet: number }),
            }
        }
    }

    fn grow(&mut self, packet: u64) -> Result<(), ReadError> {
        self.buffer *= 2;
        match self.buffer <= MAX_BLOCK * 2 && self.inner.grow(self.buffer) {
            true => Ok(()),
            false => Err(ReadError::TooLong { packet }),
        }
    }
}

/// Takes a block of pcapng; a packet if it is one.
fn of_block(
    block: &Block<'_>,
    interfaces: &mut Vec<Interface>,
    orphans: &mut u64,
    packet: &mut Vec<u8>,
) -> Option<Meta> {
    match block {
        Block::SectionHeader(_) => interfaces.clear(),
        Block::InterfaceDescription(description) if interfaces.len() < MAX_INTERFACES => {
            let resolution = match description.if_tsresol {
                power @ 0..=19 => 10_u64.pow(u32::from(power)),
                power @ 128..=191 => 1 << (power - 128),
                _ => 1_000_000,
            };
            interfaces.push(Interface {
                link_type: description.linktype.0,
                resolution,
                offset_s: description.if_tsoffset,
                snap: description.snaplen,
            });
        }
        Block::EnhancedPacket(block) => {
            let Some(interface) = interfaces.get(block.if_id as usize) else {
                *orphans += 1;
                return None;
            };
            let units = u64::from(block.ts_high) << 32 | u64::from(block.ts_low);
            let data = block.data.get(..block.caplen as usize);
            packet.clear();
            packet.extend_from_slice(data.unwrap_or(block.data));
            return Some(Meta {
                utc_ns: nanos(units, interface.resolution, interface.offset_s),
                length: block.origlen,
                link_type: interface.link_type,
            });
        }
        Block::SimplePacket(block) => {
            let Some(interface) = interfaces.first() else {
                *orphans += 1;
                return None;
            };
            let snap = if interface.snap == 0 {
                u32::MAX
            } else {
                interface.snap
            };
            let length = block.origlen.min(snap) as usize;
            packet.clear();
            packet.extend_from_slice(block.data.get(..length).unwrap_or(block.data));
            // It has no time.
            return Some(Meta {
                utc_ns: 0,
                length: block.origlen,
                link_type: interface.link_type,
            });
        }
        _ => {}
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcapng::Writer;
    use proptest::prelude::*;

    fn all(bytes: Vec<u8>) -> Result<Vec<(Meta, Vec<u8>)>, ReadError> {
        let mut reader = Reader::new(std::io::Cursor::new(bytes))?;
        let (mut packet, mut found) = (Vec::new(), Vec::new());
        while let Some(meta) = reader.next(&mut packet)? {
            found.push((meta, packet.clone()));
        }
        Ok(found)
    }

    fn written(packets: &[(Meta, Vec<u8>)]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), 65_535).expect("written");
        for (meta, bytes) in packets {
            writer.packet(meta, bytes).expect("written");
        }
        writer.into_inner()
    }

    fn legacy(magic: u32, packets: &[(u32, u32, &[u8])]) -> Vec<u8> {
        let mut bytes = magic.to_le_bytes().to_vec();
        bytes.extend([2, 0, 4, 0]);
        bytes.extend([0; 8]);
        bytes.extend(65_535_u32.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        for (seconds, part, data) in packets {
            for word in [*seconds, *part, data.len() as u32, 100] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend_from_slice(data);
        }
        bytes
    }

    #[test]
    fn micro_and_nanoseconds_are_told_apart() {
        for (magic, expected) in [(0xa1b2_c3d4, 3_000_005_000), (0xa1b2_3c4d, 3_000_000_005)] {
            let found = all(legacy(magic, &[(3, 5, &[1, 2, 3])])).expect("a capture");
            assert_eq!(found[0].0.utc_ns, expected);
            assert_eq!(
                (found[0].0.length, found[0].1.as_slice()),
                (100, &[1, 2, 3][..])
            );
        }
    }

    #[test]
    fn a_file_that_ends_within_a_packet_gives_what_is_before_it() {
        let whole = legacy(0xa1b2_c3d4, &[(3, 5, &[1; 50]), (4, 5, &[2; 50])]);
        for cut in [whole.len() - 1, whole.len() - 49, whole.len() - 60] {
            let mut reader =
                Reader::new(std::io::Cursor::new(whole[..cut].to_vec())).expect("a capture");
            let mut packet = Vec::new();
            assert!(reader.next(&mut packet).expect("the first").is_some());
            let error = reader.next(&mut packet).expect_err("the second");
            assert!(
                matches!(error, ReadError::Truncated { packet: 2 }),
                "{error}"
            );
        }
        assert!(matches!(
            all(b"hello, this is no capture at all".to_vec()),
            Err(ReadError::Format)
        ));
        assert!(all(Vec::new()).is_err());
    }

    #[test]
    fn a_packet_that_says_it_is_gigabytes_long_is_refused() {
        let mut bytes = legacy(0xa1b2_c3d4, &[(3, 5, &[1; 50])]);
        bytes[32..36].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
        bytes.extend(vec![0; 1 << 20]);
        assert!(all(bytes).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            packets in proptest::collection::vec(
                (0..i64::MAX / 2, proptest::collection::vec(any::<u8>(), 0..300), prop_oneof![Just(1), Just(101)]), 0..20),
        ) {
            let packets: Vec<_> = packets
                .into_iter()
                .map(|(utc_ns, bytes, link_type)| {
                    (Meta { utc_ns, length: bytes.len() as u32 + 7, link_type }, bytes)
                })
                .collect();
            prop_assert_eq!(all(written(&packets)).expect("a capture"), packets);
        }

        #[test]
        fn no_bytes_make_it_panic_or_go_on_for_ever(
            noise in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
            cut in any::<prop::sample::Index>(),
        ) {
            let meta = Meta { utc_ns: 5, length: 60, link_type: 1 };
            for mut bytes in [
                written(&[(meta, vec![7; 60]), (meta, vec![8; 60])]),
                legacy(0xa1b2_c3d4, &[(1, 2, &[7; 60]), (3, 4, &[8; 60])]),
            ] {
                for (at, byte) in &noise {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
                bytes.truncate(cut.index(bytes.len() + 1));
                let _ = all(bytes);
            }
        }
    }
}
