//! The keys of a pair of lanes: datagrams get a tag, and those that come are checked, before anything in them counts.
//!
//! AES-256-GCM with the datagram's counter as nonce; with `integrity` all of the datagram is additional data (the
//! GMAC of NIST SP 800-38D), with `encrypt` all behind its header is encrypted. Keys come from the control thread;
//! several are accepted at a time, so that none is lost while they change. Each counter is taken once (RFC 6479).

use aws_lc_rs::aead::{Aad, LessSafeKey};
use takt_wire::channel::{DatagramHeader, HEADER_LEN, Protection, TAG_LEN};

use crate::peering::association::nonce;
use crate::peering::replay::ReplayWindow;

/// Bits of a datagram's counter below the number of its key.
const COUNTER_BITS: u32 = 56;

/// Keys of a pair of lanes, from one session of their nodes.
pub struct LaneKeys {
    number: u8,
    send: LessSafeKey,
    receive: LessSafeKey,
    counter: u64,
    window: ReplayWindow,
}

impl std::fmt::Debug for LaneKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LaneKeys({})", self.number)
    }
}

impl LaneKeys {
    /// The keys of a session, unused.
    pub fn new(number: u8, (send, receive): (LessSafeKey, LessSafeKey)) -> Self {
        Self {
            number,
            send,
            receive,
            counter: 0,
            window: ReplayWindow::default(),
        }
    }
}

/// Why a datagram is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Not protected as it must be, or its tag is wrong.
    Unauthentic,
    /// Its counter was used before.
    Replayed,
}

/// How datagrams to and from a remote lane are protected.
#[derive(Debug)]
pub struct Guard {
    protection: Protection,
    keys: Vec<LaneKeys>,
    sending: Option<usize>,
}

impl Guard {
    /// Without keys: nothing passes but what needs none.
    pub fn new(protection: Protection) -> Self {
        Self {
            protection,
            keys: Vec::new(),
            sending: None,
        }
    }

    /// Accepts datagrams under these keys.
    pub fn accept(&mut self, keys: Box<LaneKeys>) {
        self.retire(keys.number);
        self.keys.push(*keys);
    }

    /// Sends under the keys of this number.
    pub fn send_under(&mut self, number: u8) {
        self.sending = self.keys.iter().position(|keys| keys.number == number);
    }

    /// Forgets the keys of this number.
    pub fn retire(&mut self, number: u8) {
        let sending = self.sending.and_then(|at| Some(self.keys.get(at)?.number));
        self.keys.retain(|keys| keys.number != number);
        self.sending = self
            .keys
            .iter()
            .position(|keys| Some(keys.number) == sending);
    }

    /// How datagrams are protected, and what that adds to them.
    #[inline]
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// Whether there is a key to send under, if one is needed.
    #[inline]
    pub fn sends(&self) -> bool {
        self.protection == Protection::None || self.sending.is_some()
    }

    /// The counter of the next datagram. `None`: there is no key to send under.
    #[inline]
    pub fn next(&mut self) -> Option<u64> {
        if self.protection == Protection::None {
            return Some(0);
        }
        let keys = self.keys.get_mut(self.sending?)?;
        let counter = keys.counter;
        if counter >> COUNTER_BITS != 0 {
            return None;
        }
        keys.counter += 1;
        Some((u64::from(keys.number) << COUNTER_BITS) | counter)
    }

    /// Protects the datagram of `len` bytes in `buf`, which has this counter: its length then.
    #[inline]
    pub fn seal(&self, buf: &mut [u8], len: usize, counter: u64) -> Option<usize> {
        if self.protection == Protection::None {
            return Some(len);
        }
        let key = &self.keys.get(self.sending?)?.send;
        let (datagram, rest) = buf.split_at_mut_checked(len)?;
        let place = rest.first_chunk_mut::<TAG_LEN>()?;
        let tag = match self.protection {
            Protection::Encrypt => {
                let (header, body) = datagram.split_at_mut_checked(HEADER_LEN)?;
                key.seal_in_place_separate_tag(nonce(counter), Aad::from(&*header), body)
            }
            _ => key.seal_in_place_separate_tag(nonce(counter), Aad::from(&*datagram), &mut []),
        };
        place.copy_from_slice(tag.ok()?.as_ref());
        Some(len + TAG_LEN)
    }

    /// The records of a datagram that is authentic and new; decrypted into `scratch` if need be.
    #[inline]
    pub fn open<'a>(
        &mut self,
        header: &DatagramHeader,
        datagram: &'a [u8],
        scratch: &'a mut [u8],
    ) -> Result<&'a [u8], Refused> {
        let sufficient = match self.protection {
            Protection::None => header.protection == Protection::None,
            Protection::Integrity => header.protection != Protection::None,
            Protection::Encrypt => header.protection == Protection::Encrypt,
        };
        let body = datagram.get(HEADER_LEN..).ok_or(Refused::Unauthentic)?;
        if !sufficient {
            return Err(Refused::Unauthentic);
        }
        if header.protection == Protection::None {
            return Ok(body);
        }
        let number = (header.counter >> COUNTER_BITS) as u8;
        let keys = self.keys.iter_mut().find(|keys| keys.number == number);
        let keys = keys.ok_or(Refused::Unauthentic)?;
        let nonce = nonce(header.counter);
        let records = if header.protection == Protection::Encrypt {
            let place = scratch.get_mut(..body.len()).ok_or(Refused::Unauthentic)?;
            place.copy_from_slice(body);
            let aad = Aad::from(&datagram[..HEADER_LEN]);
            &*keys
                .receive
                .open_in_place(nonce, aad, place)
                .map_err(|_| Refused::Unauthentic)?
        } else {
            let (tagged, tag) = datagram
                .split_last_chunk::<TAG_LEN>()
                .filter(|(tagged, _)| tagged.len() >= HEADER_LEN)
                .ok_or(Refused::Unauthentic)?;
            let mut tag = *tag;
            keys.receive
                .open_in_place(nonce, Aad::from(tagged), &mut tag)
                .map_err(|_| Refused::Unauthentic)?;
            &tagged[HEADER_LEN..]
        };
        if keys
            .window
            .accept(header.counter & ((1 << COUNTER_BITS) - 1))
        {
            Ok(records)
        } else {
            Err(Refused::Replayed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peering::association::aead;
    use takt_time::TrafficClass;
    use takt_wire::channel::{DatagramCursor, RecordHeader};

    fn keys(number: u8, send: u8, receive: u8) -> Box<LaneKeys> {
        Box::new(LaneKeys::new(
            number,
            (aead(&[send; 32]), aead(&[receive; 32])),
        ))
    }

    /// Two ends of a pair with the keys of session 7.
    fn pair(protection: Protection) -> (Guard, Guard) {
        let (mut a, mut b) = (Guard::new(protection), Guard::new(protection));
        a.accept(keys(7, 1, 2));
        b.accept(keys(7, 2, 1));
        a.send_under(7);
        (a, b)
    }

    fn datagram(guard: &mut Guard, text: &[u8]) -> Vec<u8> {
        let mut buf = vec![0; 256];
        let mut cursor = DatagramCursor::new();
        let header = RecordHeader {
            channel: 5,
            source: 1,
            sequence: 0,
            message_length: text.len() as u32,
            fragment_index: 0,
            fragment_stride: 0,
            class: TrafficClass::BEST_EFFORT,
            kind: Default::default(),
        };
        cursor
            .push(&mut buf, &header)
            .expect("room")
            .copy_from_slice(text);
        let counter = guard.next().expect("a key");
        let len = cursor.finish(&mut buf, guard.protection(), 70, 0, counter);
        let len = guard.seal(&mut buf, len, counter).expect("room for a tag");
        buf.truncate(len);
        buf
    }

    fn open(guard: &mut Guard, datagram: &[u8]) -> Result<Vec<u8>, Refused> {
        let (header, _) = DatagramHeader::parse(datagram).map_err(|_| Refused::Unauthentic)?;
        let mut scratch = [0; 512];
        let records = guard.open(&header, datagram, &mut scratch)?;
        let record = header.records(records).next().expect("a record");
        Ok(record.expect("well-formed").payload.to_vec())
    }

    #[test]
    fn what_is_sealed_is_opened_once_and_any_changed_bit_is_refused() {
        for protection in [Protection::Integrity, Protection::Encrypt] {
            let (mut a, mut b) = pair(protection);
            let good = datagram(&mut a, b"a message");
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(open(&mut b, &bad), Err(Refused::Unauthentic), "bit {bit}");
            }
            let shown = good.windows(9).any(|part| part == b"a message");
            assert_eq!(shown, protection == Protection::Integrity);
            assert_eq!(open(&mut b, &good).as_deref(), Ok(&b"a message"[..]));
            assert_eq!(open(&mut b, &good), Err(Refused::Replayed));
        }
    }

    #[test]
    fn a_datagram_is_good_for_one_pair_of_lanes_and_one_direction() {
        let (mut a, _) = pair(Protection::Integrity);
        let good = datagram(&mut a, b"x");
        let mut other = Guard::new(Protection::Integrity);
        other.accept(keys(7, 2, 3));
        assert_eq!(open(&mut other, &good), Err(Refused::Unauthentic));
        assert_eq!(open(&mut a, &good), Err(Refused::Unauthentic), "sent back");
    }

    #[test]
    fn less_protection_than_configured_is_refused_and_more_is_taken() {
        let (mut plain, mut plain_end) = pair(Protection::None);
        let (mut signed, mut signed_end) = pair(Protection::Integrity);
        let (mut secret, mut secret_end) = pair(Protection::Encrypt);
        let none = datagram(&mut plain, b"x");
        assert!(open(&mut plain_end, &none).is_ok());
        assert_eq!(open(&mut signed_end, &none), Err(Refused::Unauthentic));
        assert_eq!(open(&mut secret_end, &none), Err(Refused::Unauthentic));
        let integrity = datagram(&mut signed, b"x");
        assert_eq!(open(&mut secret_end, &integrity), Err(Refused::Unauthentic));
        assert!(open(&mut signed_end, &integrity).is_ok());
        let encrypted = datagram(&mut secret, b"x");
        let (_, mut fresh) = pair(Protection::Integrity);
        assert!(open(&mut fresh, &encrypted).is_ok());
    }

    #[test]
    fn while_keys_change_datagrams_of_both_are_taken() {
        let (mut a, mut b) = pair(Protection::Integrity);
        let old = datagram(&mut a, b"old");
        a.accept(keys(8, 3, 4));
        b.accept(keys(8, 4, 3));
        let still = datagram(&mut a, b"still");
        a.send_under(8);
        let new = datagram(&mut a, b"new");
        assert_eq!(open(&mut b, &new).as_deref(), Ok(&b"new"[..]));
        assert_eq!(open(&mut b, &old).as_deref(), Ok(&b"old"[..]));
        b.retire(7);
        assert_eq!(open(&mut b, &still), Err(Refused::Unauthentic));
        a.retire(7);
        assert!(
            open(&mut b, &datagram(&mut a, b"on")).is_ok(),
            "the one in use stays"
        );
    }

    #[test]
    fn without_a_key_nothing_leaves() {
        let mut guard = Guard::new(Protection::Integrity);
        assert_eq!((guard.sends(), guard.next()), (false, None));
    }

    /// Prints what a datagram costs at both ends together, best of some runs. Build it with `--release`.
    #[test]
    #[ignore = "a measurement"]
    fn cost_of_protection() {
        for protection in [Protection::None, Protection::Integrity, Protection::Encrypt] {
            for size in [64, 1024, 8192] {
                let (mut a, mut b) = pair(protection);
                let mut buf = vec![0; 16 << 10];
                let mut scratch = vec![0; 16 << 10];
                let mut best = u128::MAX;
                for _ in 0..50 {
                    let start = std::time::Instant::now();
                    for _ in 0..1000 {
                        let mut cursor = DatagramCursor::new();
                        let header = RecordHeader {
                            channel: 5,
                            source: 1,
                            sequence: 0,
                            message_length: size,
                            fragment_index: 0,
                            fragment_stride: 0,
                            class: TrafficClass::BEST_EFFORT,
                            kind: Default::default(),
                        };
                        assert!(cursor.push(&mut buf, &header).is_some());
                        let counter = a.next().expect("a key");
                        let len = cursor.finish(&mut buf, protection, 70, 0, counter);
                        let len = a.seal(&mut buf, len, counter).expect("room");
                        let (header, _) = DatagramHeader::parse(&buf[..len]).expect("good");
                        assert!(b.open(&header, &buf[..len], &mut scratch).is_ok());
                    }
                    best = best.min(start.elapsed().as_nanos() / 1000);
                }
                println!("{protection:?} {size} bytes: {best} ns to send and to take");
            }
        }
    }
}
