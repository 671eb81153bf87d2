//! What stands before the bytes of every message of a topic.
//!
//! | offset | size | field | |
//! |---|---|---|---|
//! | 0 | u8 | version | 1 |
//! | 1 | u8 | flags | bit 0: kept for late joiners, and sent again to this one: the topic's name follows, and its length |
//! | 2 | u16 | encoding | of the bytes that follow, see [`Encoding`] |
//! | 4 | u32 | publisher | random |
//! | 8 | u64 | number | of the message among those of its publisher, from 0 |
//! | 16 | u64 | check | the second hash of the topic's name |
//!
//! Little-endian. 24 bytes: what follows lies as the channel's message does, to 8 bytes.

/// Bytes of a header.
pub(crate) const BYTES: usize = 24;

const VERSION: u8 = 1;
const HISTORY: u8 = 1;

/// How the bytes of a topic's messages are to be read: what its publisher declares, and subscribers see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Encoding(pub u16);

impl Encoding {
    /// Bytes of which nothing is said.
    pub const BYTES: Self = Self(0);
    /// UTF-8.
    pub const TEXT: Self = Self(1);
    /// RFC 8259.
    pub const JSON: Self = Self(2);
    /// RFC 8949.
    pub const CBOR: Self = Self(3);
    /// Slices of frames, of the crate `takt-streaming`.
    pub const SLICES: Self = Self(4);
    /// From here on they are the programs' own.
    pub const FIRST_OWN: Self = Self(256);
}

impl std::fmt::Display for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::BYTES => f.write_str("bytes"),
            Self::TEXT => f.write_str("text"),
            Self::JSON => f.write_str("json"),
            Self::CBOR => f.write_str("cbor"),
            Self::SLICES => f.write_str("slices"),
            Self(number) => number.fmt(f),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub history: bool,
    pub encoding: Encoding,
    pub publisher: u32,
    pub number: u64,
    pub check: u64,
}

/// Why a message is not one of the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strange {
    /// It has no header that this version knows.
    Malformed,
    /// It is of another topic, with this check.
    Foreign(u64),
}

impl Header {
    /// # Panics
    /// When `bytes` is shorter than a header.
    #[inline]
    pub(crate) fn write(&self, bytes: &mut [u8]) {
        bytes[0] = VERSION;
        bytes[1] = if self.history { HISTORY } else { 0 };
        bytes[2..4].copy_from_slice(&self.encoding.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.publisher.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.check.to_le_bytes());
    }

    /// The header of a message of the topic with this check.
    #[inline]
    pub(crate) fn read(message: &[u8], check: u64) -> Result<Self, Strange> {
        let (header, _) = message
            .split_first_chunk::<BYTES>()
            .ok_or(Strange::Malformed)?;
        let [version, flags, e0, e1, p0, p1, p2, p3, rest @ ..] = *header;
        if version != VERSION || flags & !HISTORY != 0 {
            return Err(Strange::Malformed);
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&rest[at..at + 8]);
            u64::from_le_bytes(word)
        };
        if word(8) != check {
            return Err(Strange::Foreign(word(8)));
        }
        Ok(Self {
            history: flags & HISTORY != 0,
            encoding: Encoding(u16::from_le_bytes([e0, e1])),
            publisher: u32::from_le_bytes([p0, p1, p2, p3]),
            number: word(0),
            check,
        })
    }
}

/// Bytes of a message of so many that was kept, as it is sent to a late joiner: followed by its topic's name and, in one
/// byte, the length of that.
pub(crate) fn kept_bytes(message: usize, topic: &str) -> usize {
    message + topic.len() + 1
}

/// Writes it.
///
/// # Panics
/// When `bytes` are not as many as [`kept_bytes`] says.
pub(crate) fn write_kept(bytes: &mut [u8], message: &[u8], topic: &str) {
    let (first, rest) = bytes.split_at_mut(message.len());
    let (name, last) = rest.split_at_mut(topic.len());
    first.copy_from_slice(message);
    first[1] |= HISTORY;
    name.copy_from_slice(topic.as_bytes());
    // The name of a topic has 200 bytes at most.
    last.copy_from_slice(&[u8::try_from(topic.len()).unwrap_or(0)]);
}

/// The topic of a message that was kept, and how many of its bytes are the message: a header at least, which its name
/// therefore does not overlap.
pub(crate) fn read_kept(bytes: &[u8]) -> Option<(&str, usize)> {
    let (length, rest) = bytes.split_last()?;
    let message = rest.len().checked_sub(usize::from(*length))?;
    if message < BYTES {
        return None;
    }
    let topic = std::str::from_utf8(&rest[message..]).ok()?;
    Some((topic, message))
}

/// Reads anything; what is read is written as it was.
#[doc(hidden)]
pub fn fuzz(message: &[u8]) {
    let Some(check) = message.get(16..BYTES) else {
        assert_eq!(Header::read(message, 0), Err(Strange::Malformed));
        return;
    };
    let check = u64::from_le_bytes(check.try_into().expect("8 bytes"));
    if let Some((topic, bytes)) = read_kept(message) {
        assert_eq!(kept_bytes(bytes, topic), message.len());
        // What is delivered of it stands behind a header, whatever topic the header says it is of.
        assert!(bytes >= BYTES);
        assert_eq!(
            Header::read(&message[..bytes], check),
            Header::read(message, check)
        );
    }
    if let Ok(header) = Header::read(message, check) {
        let mut again = [0; BYTES];
        header.write(&mut again);
        assert_eq!(again, message[..BYTES]);
    }
    assert!(Header::read(message, check ^ 1).is_err());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_known_header_is_written_byte_for_byte() {
        let header = Header {
            history: true,
            encoding: Encoding::JSON,
            publisher: 0x0403_0201,
            number: 0x0c0b_0a09_0807_0605,
            check: 0x1413_1211_100f_0e0d,
        };
        let mut bytes = [0; BYTES];
        header.write(&mut bytes);
        let mut expected = [0; BYTES];
        expected[..4].copy_from_slice(&[1, 1, 2, 0]);
        for (number, byte) in (1..).zip(&mut expected[4..]) {
            *byte = number;
        }
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_kept_message_whose_name_overlaps_its_header_is_none() {
        // The last octet of the check is the first of the name.
        let name = (0..)
            .map(|number| crate::topic::Name::new(&format!("plant/{number}")).expect("a name"))
            .find(|name| name.check.to_le_bytes()[7] == b'p')
            .expect("one in 256");
        let mut message = vec![0; BYTES];
        Header {
            history: true,
            encoding: Encoding::BYTES,
            publisher: 1,
            number: 0,
            check: name.check,
        }
        .write(&mut message);
        message.truncate(BYTES - 1);
        message.extend(name.text.as_bytes());
        message.push(name.text.len() as u8);
        assert!(Header::read(&message, name.check).is_ok());
        assert_eq!(read_kept(&message), None);
        fuzz(&message);
    }

    proptest! {
        #[test]
        fn headers_are_read_as_they_were_written(
            history: bool, encoding: u16, publisher: u32, number: u64, check: u64, rest: Vec<u8>,
        ) {
            let header = Header { history, encoding: Encoding(encoding), publisher, number, check };
            let mut message = vec![0; BYTES];
            header.write(&mut message);
            message.extend(rest);
            prop_assert_eq!(Header::read(&message, check), Ok(header));
            prop_assert_eq!(Header::read(&message, !check), Err(Strange::Foreign(check)));
            prop_assert_eq!(Header::read(&message[..BYTES - 1], check), Err(Strange::Malformed));
            let mut kept = vec![0; kept_bytes(message.len(), "plant/7")];
            write_kept(&mut kept, &message, "plant/7");
            prop_assert_eq!(read_kept(&kept), Some(("plant/7", message.len())));
            prop_assert_eq!(Header::read(&kept, check), Ok(Header { history: true, ..header }));
        }

        #[test]
        fn anything_may_come(message: Vec<u8>) {
            fuzz(&message);
        }
    }
}
