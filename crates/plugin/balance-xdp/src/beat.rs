//! Beats: what a neighbour tells, in a UDP datagram, and what it lives by.
//!
//! 48 bytes, integers in network byte order:
//!
//! | bytes | |
//! |---|---|
//! | 0–3 | `TKBT` |
//! | 4 | version, 2 |
//! | 5–7 | 0 |
//! | 8–11 | load, in packets that wait before a new one |
//! | 12–15 | the sender: a number that it draws when it starts |
//! | 16–23 | functions that it provides, a bit for each |
//! | 24–31 | sequence: larger than that of the beat before; a time will do |
//! | 32–47 | [`Tag`] by the common key of the bytes before and of the addresses that it is sent [from and to](Ends), of 16 bytes each (those of IPv4
//! as `::ffff:a.b.c.d`); 0 without a key |
//!
//! What a neighbour has sent is no other one's so, and nothing at another receiver.

use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use aws_lc_rs::{constant_time, hmac, rand};

use crate::error::Error;

/// Bytes of a beat.
pub const LENGTH: usize = 48;
/// UDP port of beats unless said otherwise: none that IANA has given away.
pub const PORT: u16 = 7484;
const MAGIC: [u8; 4] = *b"TKBT";
const VERSION: u8 = 2;
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
    /// Who counts: see [`new_sender`].
    pub sender: u32,
    /// What it provides: a bit for each function.
    pub functions: u64,
    /// Larger than that of the beat before.
    pub sequence: u64,
}

/// Between which addresses a beat goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The sender's.
    pub from: IpAddr,
    /// The receiver's.
    pub to: IpAddr,
}

/// What a sender calls itself until it ends, so that one that is started again is another: whatever its clock says then, nobody takes its
/// beats for those that were recorded of it before.
///
/// # Errors
/// [`Error::Config`]: there is no randomness.
pub fn new_sender() -> Result<u32, Error> {
    let mut bytes = [0; 4];
    let told = |_| Error::Config("the machine has no random numbers for a sender".into());
    rand::fill(&mut bytes).map_err(told)?;
    Ok(u32::from_ne_bytes(bytes))
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
    /// Its tag is another key's, or that of other ends.
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

/// What the tag is of.
fn signed(bytes: &[u8; LENGTH], ends: Ends) -> [u8; SIGNED + 32] {
    let mut signed = [0; SIGNED + 32];
    signed[..SIGNED].copy_from_slice(&bytes[..SIGNED]);
    for (at, address) in [(SIGNED, ends.from), (SIGNED + 16, ends.to)] {
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        signed[at..at + 16].copy_from_slice(&address.octets());
    }
    signed
}

impl Beat {
    /// As it is sent.
    pub fn write(&self, key: Option<&Key>, ends: Ends) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[8..12].copy_from_slice(&self.load.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.sender.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.functions.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_be_bytes());
        if let Some(key) = key {
            let tag = key.tag(&signed(&bytes, ends));
            bytes[SIGNED..].copy_from_slice(&tag);
        }
        bytes
    }

    /// From a datagram.
    ///
    /// # Errors
    /// [`NoBeat`].
    pub fn read(bytes: &[u8], key: Option<&Key>, ends: Ends) -> Result<Self, NoBeat> {
        let bytes: &[u8; LENGTH] = bytes.try_into().map_err(|_| NoBeat::Other)?;
        if bytes[..4] != MAGIC {
            return Err(NoBeat::Other);
        }
        if bytes[4] != VERSION {
            return Err(NoBeat::Version(bytes[4]));
        }
        if let Some(key) = key
            && !key.proves(&signed(bytes, ends), &bytes[SIGNED..])
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
            sender: long(8) as u32,
            functions: long(16),
            sequence: long(24),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const BEAT: Beat = Beat {
        load: 7,
        sender: 9,
        functions: 5,
        sequence: 0x0102_0304_0506_0708,
    };

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 4));
    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const ENDS: Ends = Ends { from: A, to: HERE };

    #[test]
    fn the_tag_of_a_beat_is_wrong_at_any_other_ends() {
        let key = Key::new(&[1; 16]).expect("a key");
        let bytes = BEAT.write(Some(&key), ENDS);
        for (from, to) in [(B, HERE), (A, B), (HERE, A)] {
            let read = Beat::read(&bytes, Some(&key), Ends { from, to });
            assert_eq!(read, Err(NoBeat::Tag), "from {from} to {to}");
        }
        // A socket of IPv6 says the same of IPv4.
        let wide = |address: IpAddr| match address {
            IpAddr::V4(address) => IpAddr::V6(address.to_ipv6_mapped()),
            address => address,
        };
        let ends = Ends {
            from: wide(A),
            to: wide(HERE),
        };
        assert_eq!(Beat::read(&bytes, Some(&key), ends), Ok(BEAT));
    }

    #[test]
    fn a_beat_is_read_as_it_was_written_and_with_its_key_alone() {
        let key = Key::new(&[1; 16]).expect("a key");
        let other = Key::new(&[2; 16]).expect("a key");
        let bytes = BEAT.write(Some(&key), ENDS);
        let read = |bytes: &[u8], key: Option<&Key>| Beat::read(bytes, key, ENDS);
        assert_eq!(read(&bytes, Some(&key)), Ok(BEAT));
        assert_eq!(read(&bytes, Some(&other)), Err(NoBeat::Tag));
        let plain = BEAT.write(None, ENDS);
        assert_eq!(read(&plain, None), Ok(BEAT));
        assert_eq!(read(&plain, Some(&key)), Err(NoBeat::Tag));
        for at in 0..SIGNED {
            let mut bent = bytes;
            bent[at] ^= 1;
            assert!(read(&bent, Some(&key)).is_err(), "byte {at}");
        }
        assert_eq!(read(&bytes[..47], None), Err(NoBeat::Other));
        for version in [1, 3] {
            let mut other = plain;
            other[4] = version;
            let refused = read(&other, None).expect_err("refused");
            assert_eq!(refused, NoBeat::Version(version));
            let told = format!("a beat of version {version}; 2 is known");
            assert_eq!(refused.to_string(), told);
        }
    }

    #[test]
    fn short_keys_are_refused() {
        let error = Key::new(&[1; 15]).expect_err("refused").to_string();
        assert!(error.contains("15 bytes"), "{error}");
    }
}
