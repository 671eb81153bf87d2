//! Beats: what a neighbour tells, in a UDP datagram, and what it lives by.
//!
//! 48 bytes, integers in network byte order:
//!
//! | bytes | |
//! |---|---|
//! | 0–3 | `TKBT` |
//! | 4 | version, 1 |
//! | 5–7 | 0 |
//! | 8–11 | load, in packets that wait before a new one |
//! | 12–15 | 0 |
//! | 16–23 | functions that it provides, a bit for each |
//! | 24–31 | sequence: larger than that of the beat before; a time will do |
//! | 32–47 | [`Tag`] of the bytes before, by the common key; 0 without one |

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use aws_lc_rs::{constant_time, hmac};

use crate::error::Error;

/// Bytes of a beat.
pub const LENGTH: usize = 48;
/// UDP port of beats unless said otherwise: none that IANA has given away.
pub const PORT: u16 = 7484;
const MAGIC: [u8; 4] = *b"TKBT";
const VERSION: u8 = 1;
const SIGNED: usize = LENGTH - TAG_LENGTH;
/// Bytes of a [`Tag`].
pub const TAG_LENGTH: usize = 16;
/// Bytes of a key's file that are read.
const LONGEST_KEY: u64 = 4096;
const SHORTEST_KEY: usize = 16;

/// What proves that bytes come from who has the key: the first half of their HMAC-SHA-256 (RFC 2104).
pub type Tag = [u8; TAG_LENGTH];

/// What a neighbour tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Packets that wait before a new one.
    pub load: u32,
    /// What it provides: a bit for each function.
    pub functions: u64,
    /// Larger than that of the beat before.
    pub sequence: u64,
}

/// A key that a node and its neighbours share.
#[derive(Clone, Debug)]
pub struct Key(hmac::Key);

/// Why a datagram is no beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoBeat {
    /// Of another length, or not ours.
    #[error("no beat")]
    Other,
    /// Of a version that is not known.
    #[error("a beat of version {0}; {VERSION} is known")]
    Version(u8),
    /// Its tag is another key's.
    #[error("a beat whose tag is wrong")]
    Tag,
}

impl Key {
    /// From a secret of at least 16 bytes.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(secret: &[u8]) -> Result<Self, Error> {
        match secret.len() >= SHORTEST_KEY {
            true => Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, secret))),
            false => Err(Error::Config(format!(
                "a key of {} bytes: at least {SHORTEST_KEY} are needed, as `(umask 077; head -c 32 /dev/urandom > FILE)` makes them",
                secret.len()
            ))),
        }
    }

    /// All bytes of a file, which is not everybody's to read.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let name = path.display();
        let mut secret = Vec::new();
        let mut read = || {
            let file = std::fs::File::open(path)?;
            let mode = file.metadata()?.mode() & 0o7777;
            file.take(LONGEST_KEY).read_to_end(&mut secret)?;
            Ok(mode)
        };
        let mode = read().map_err(|error: std::io::Error| {
            Error::Config(format!("cannot read the key {name}: {error}"))
        })?;
        if mode & 0o007 != 0 {
            return Err(Error::Config(format!(
                "the key {name} has mode {mode:04o}: anybody can read it; chmod 600 {name}"
            )));
        }
        Self::new(&secret)
    }

    /// The tag of these bytes.
    pub fn tag(&self, bytes: &[u8]) -> Tag {
        let mut tag = [0; TAG_LENGTH];
        tag.copy_from_slice(&hmac::sign(&self.0, bytes).as_ref()[..TAG_LENGTH]);
        tag
    }

    /// Whether this is the tag of these bytes, in a time that does not tell how much of it is.
    pub fn proves(&self, bytes: &[u8], tag: &[u8]) -> bool {
        constant_time::verify_slices_are_equal(&self.tag(bytes), tag).is_ok()
    }
}

impl Beat {
    /// As it is sent.
    pub fn write(&self, key: Option<&Key>) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[8..12].copy_from_slice(&self.load.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.functions.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_be_bytes());
        if let Some(key) = key {
            let tag = key.tag(&bytes[..SIGNED]);
            bytes[SIGNED..].copy_from_slice(&tag);
        }
        bytes
    }

    /// From a datagram.
    ///
    /// # Errors
    /// [`NoBeat`].
    pub fn read(bytes: &[u8], key: Option<&Key>) -> Result<Self, NoBeat> {
        let bytes: &[u8; LENGTH] = bytes.try_into().map_err(|_| NoBeat::Other)?;
        if bytes[..4] != MAGIC {
            return Err(NoBeat::Other);
        }
        if bytes[4] != VERSION {
            return Err(NoBeat::Version(bytes[4]));
        }
        if let Some(key) = key
            && !key.proves(&bytes[..SIGNED], &bytes[SIGNED..])
        {
            return Err(NoBeat::Tag);
        }
        let long = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(word)
        };
        Ok(Self {
            load: (long(8) >> 32) as u32,
            functions: long(16),
            sequence: long(24),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Beat = Beat {
        load: 7,
        functions: 5,
        sequence: 0x0102_0304_0506_0708,
    };

    #[test]
    fn a_beat_is_read_as_it_was_written_and_with_its_key_alone() {
        let key = Key::new(&[1; 16]).expect("a key");
        let other = Key::new(&[2; 16]).expect("a key");
        let bytes = BEAT.write(Some(&key));
        assert_eq!(Beat::read(&bytes, Some(&key)), Ok(BEAT));
        assert_eq!(Beat::read(&bytes, Some(&other)), Err(NoBeat::Tag));
        let plain = BEAT.write(None);
        assert_eq!(Beat::read(&plain, None), Ok(BEAT));
        assert_eq!(Beat::read(&plain, Some(&key)), Err(NoBeat::Tag));
        for at in 0..SIGNED {
            let mut bent = bytes;
            bent[at] ^= 1;
            assert!(Beat::read(&bent, Some(&key)).is_err(), "byte {at}");
        }
        assert_eq!(Beat::read(&bytes[..47], None), Err(NoBeat::Other));
        let mut newer = plain;
        newer[4] = 2;
        assert_eq!(Beat::read(&newer, None), Err(NoBeat::Version(2)));
    }

    #[test]
    fn short_keys_are_refused() {
        let error = Key::new(&[1; 15]).expect_err("refused").to_string();
        assert!(error.contains("15 bytes"), "{error}");
    }
}
