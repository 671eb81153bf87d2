//! What the two ends say, as bytes: little-endian, of one length each, drawn in `docs/reference/wire-format.md`.

use crate::{Acknowledgement, Announce, SPAN};

/// Bytes of an [`Announce`].
pub const ANNOUNCE_LEN: usize = 24;
/// Bytes of an [`Acknowledgement`].
pub const ACKNOWLEDGEMENT_LEN: usize = 72;

/// Why bytes are none of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes: an announcement has {ANNOUNCE_LEN}, an acknowledgement {ACKNOWLEDGEMENT_LEN}")]
pub struct Malformed(pub usize);

impl Announce {
    /// As bytes.
    pub fn encode(&self) -> [u8; ANNOUNCE_LEN] {
        let mut bytes = [0; ANNOUNCE_LEN];
        bytes[0..4].copy_from_slice(&self.oldest.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.next.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.round_trip_ns.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.stamp_ns.to_le_bytes());
        bytes
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`Malformed`], for any other length.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; ANNOUNCE_LEN] = bytes.try_into().map_err(|_| Malformed(bytes.len()))?;
        Ok(Self {
            oldest: u32::from_le_bytes(field(bytes, 0)),
            next: u32::from_le_bytes(field(bytes, 4)),
            round_trip_ns: i64::from_le_bytes(field(bytes, 8)),
            stamp_ns: i64::from_le_bytes(field(bytes, 16)),
        })
    }
}

impl Acknowledgement {
    /// As bytes.
    pub fn encode(&self) -> [u8; ACKNOWLEDGEMENT_LEN] {
        let mut bytes = [0; ACKNOWLEDGEMENT_LEN];
        bytes[0..4].copy_from_slice(&self.next.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.limit.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.span.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.lacking.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.stamp_ns.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.held_ns.to_le_bytes());
        bytes[64..68].copy_from_slice(&self.messages.to_le_bytes());
        bytes[68..72].copy_from_slice(&self.bytes.to_le_bytes());
        let (spaces, _) = bytes[32..64].as_chunks_mut();
        for (word, space) in self.here.iter().zip(spaces) {
            *space = word.to_le_bytes();
        }
        bytes
    }

    /// Reads it. Whether it makes sense, [`Sender::acknowledge`](crate::Sender::acknowledge) finds out.
    ///
    /// # Errors
    /// [`Malformed`], for any other length.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; ACKNOWLEDGEMENT_LEN] =
            bytes.try_into().map_err(|_| Malformed(bytes.len()))?;
        let mut here = [0; SPAN as usize / 64];
        for (at, word) in here.iter_mut().enumerate() {
            *word = u64::from_le_bytes(field(bytes, 32 + 8 * at));
        }
        Ok(Self {
            next: u32::from_le_bytes(field(bytes, 0)),
            limit: u32::from_le_bytes(field(bytes, 4)),
            span: u32::from_le_bytes(field(bytes, 8)),
            here,
            lacking: u32::from_le_bytes(field(bytes, 12)),
            stamp_ns: i64::from_le_bytes(field(bytes, 16)),
            held_ns: i64::from_le_bytes(field(bytes, 24)),
            messages: u32::from_le_bytes(field(bytes, 64)),
            bytes: u32::from_le_bytes(field(bytes, 68)),
        })
    }
}

/// The `N` bytes that start at `at`.
fn field<const N: usize, const L: usize>(bytes: &[u8; L], at: usize) -> [u8; N] {
    std::array::from_fn(|byte| bytes[at + byte])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            numbers in any::<[u32; 6]>(), times in any::<[i64; 2]>(), here in any::<[u64; 4]>(),
        ) {
            let [next, limit, span, lacking, messages, bytes] = numbers;
            let [stamp_ns, held_ns] = times;
            let said = Acknowledgement {
                next, limit, span, here, lacking, stamp_ns, held_ns, messages, bytes,
            };
            prop_assert_eq!(Acknowledgement::decode(&said.encode()), Ok(said));
            let said = Announce { oldest: next, next: limit, round_trip_ns: held_ns, stamp_ns };
            prop_assert_eq!(Announce::decode(&said.encode()), Ok(said));
        }

        #[test]
        fn any_other_length_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(Announce::decode(&bytes).is_ok(), bytes.len() == ANNOUNCE_LEN);
            prop_assert_eq!(Acknowledgement::decode(&bytes).is_ok(), bytes.len() == ACKNOWLEDGEMENT_LEN);
        }
    }

    #[test]
    fn known_bytes() {
        let said = Acknowledgement {
            next: 0x0403_0201,
            limit: 0x0807_0605,
            span: 70,
            here: [1, 0x20, 0, 0],
            lacking: 6,
            stamp_ns: 9,
            held_ns: 10,
            messages: 0x0c0b,
            bytes: 0x0e0d,
        };
        let bytes = said.encode();
        assert_eq!(
            bytes[..16],
            [1, 2, 3, 4, 5, 6, 7, 8, 70, 0, 0, 0, 6, 0, 0, 0]
        );
        assert_eq!(
            (bytes[16], bytes[24], bytes[32], bytes[40]),
            (9, 10, 1, 0x20)
        );
        assert_eq!(bytes[64..], [0x0b, 0x0c, 0, 0, 0x0d, 0x0e, 0, 0]);
    }
}
