//! The trailer that `takt stamp` puts behind IP packets of others: when they left, and which of their flow they are
//! (docs/reference/wire-format.md).
//!
//! It is no part of the packet: IP says how long that is. All its words add up to nothing, as checksums of the Internet add
//! (RFC 1071), so that a checksum over what is in front of it is right with it, too.

use crate::checksum::PartialSum;

/// Bytes of a trailer.
pub const TRAILER_LEN: usize = 18;
/// What it begins with, and which version it is.
const MAGIC: [u8; 4] = *b"TkS1";

/// A trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Which of its flow the packet is, from 0, modulo 2^32.
    pub sequence: u32,
    /// When it was at the device's egress, TAI nanoseconds since 1970.
    pub sent_ns: i64,
}

impl Trailer {
    /// Reads what is behind an IP packet; what follows the trailer is padding. `None`: there is none.
    #[inline]
    pub fn parse(behind: &[u8]) -> Option<Self> {
        let trailer = behind.first_chunk::<TRAILER_LEN>()?;
        let (magic, fields) = trailer.split_first_chunk::<4>()?;
        let (sequence, fields) = fields.split_first_chunk::<4>()?;
        let (sent, _) = fields.split_first_chunk::<8>()?;
        (*magic == MAGIC && PartialSum::of(trailer).is_intact()).then(|| Self {
            sequence: u32::from_be_bytes(*sequence),
            sent_ns: i64::from_be_bytes(*sent),
        })
    }

    /// Its bytes.
    pub fn emit(&self) -> [u8; TRAILER_LEN] {
        let mut trailer = [0; TRAILER_LEN];
        trailer[..4].copy_from_slice(&MAGIC);
        trailer[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        trailer[8..16].copy_from_slice(&self.sent_ns.to_be_bytes());
        let rest = PartialSum::of(&trailer).checksum();
        trailer[16..].copy_from_slice(&rest.to_be_bytes());
        trailer
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_emitted_is_read_and_changes_no_checksum(
            sequence: u32, sent_ns: i64, front in proptest::collection::vec(any::<u8>(), 1..60), at in 0..TRAILER_LEN, bit in 0..8_u8
        ) {
            let trailer = Trailer { sequence, sent_ns };
            let mut bytes = trailer.emit();
            prop_assert_eq!(Trailer::parse(&bytes), Some(trailer));
            // A sum of 0 is the one that does not tell +0 from -0; no IP packet has it.
            prop_assume!(front.iter().any(|byte| *byte != 0));
            let sum = |bytes: &[u8]| PartialSum::of(bytes).checksum();
            prop_assert_eq!(sum(&[&front[..], &bytes].concat()), sum(&front));
            bytes[at] ^= 1_u8 << bit;
            prop_assert_eq!(Trailer::parse(&bytes), None);
            prop_assert_eq!(Trailer::parse(&bytes[..at]), None);
        }
    }
}
