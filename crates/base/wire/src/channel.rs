//! The Takt channel datagram: what one runtime sends another inside UDP.
//!
//! A datagram is a 24-byte header, one or more records and, if it is protected, a 16-byte tag; a record is
//! a 24-byte header (32 bytes for a fragment or a reliable source's), the bytes of a whole message or of one fragment, and
//! padding that starts the next record on a multiple of 8. All integers are little-endian. The format is
//! drawn in `docs/reference/wire-format.md`.
//!
//! Not here: the keys and the check of the tag, what peers say to each other to find and keep each other,
//! reassembly, and limits on the length of a message, which are the receiver's.

use takt_time::TrafficClass;

/// The version of the format that this module reads and writes.
pub const VERSION: u8 = 2;
/// Bytes of a datagram's header.
pub const HEADER_LEN: usize = 24;
/// Bytes of the header of a record that holds a whole message.
pub const RECORD_HEADER_LEN: usize = 24;
/// Bytes of the header of a record that holds a fragment, or is a reliable source's.
pub const FRAGMENT_HEADER_LEN: usize = 32;
/// Bytes of the tag at the end of a protected datagram.
pub const TAG_LEN: usize = 16;
/// Every record starts at a multiple of this many bytes from the datagram's start.
pub const RECORD_ALIGNMENT: usize = 8;

/// Most records of a message: one of the greatest length in fragments of 256 bytes. No path is so narrow that more are
/// sent, and receivers can tell what comes before what while numbers of records wrap at 2^32.
pub const MOST_FRAGMENTS: u32 = 1 << 24;

/// Why a datagram or one of its records is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The datagram is shorter than its header.
    #[error("datagram of {0} bytes is shorter than its header of {HEADER_LEN}")]
    HeaderTruncated(usize),
    /// The sender speaks another version.
    #[error("datagram version {0} is not {VERSION}, the one spoken here")]
    Version(u8),
    /// The datagram is protected in a way that this version does not define.
    #[error("datagram protection {0} is none of none (0), integrity (1) and encrypt (2)")]
    Protection(u8),
    /// A protected datagram has no room for its tag.
    #[error("{0} bytes behind the header of a protected datagram, its tag has {TAG_LEN}")]
    TagTruncated(usize),
    /// A datagram announces no record.
    #[error("datagram announces 0 records, at least 1 is due")]
    NoRecords,
    /// The datagram ends inside a record's header.
    #[error(
        "{0} bytes are left for a record header of {RECORD_HEADER_LEN} or {FRAGMENT_HEADER_LEN}"
    )]
    RecordTruncated(usize),
    /// A whole message cannot have an index. Only a header made by hand can be so.
    #[error("fragment index {0} without a stride, a whole message has index 0")]
    IndexWithoutStride(u32),
    /// The fragment starts at or behind the end of its message.
    #[error("fragment at offset {offset} is outside its message of {message_length} bytes")]
    FragmentOutsideMessage {
        /// Index times stride.
        offset: u64,
        /// Bytes of the whole message, as announced.
        message_length: u32,
    },
    /// The message is cut into more fragments than one may have.
    #[error("a message in {0} fragments: at most {MOST_FRAGMENTS}")]
    TooManyFragments(u32),
    /// The record's payload does not fit into what is left of the datagram.
    #[error("record payload of {payload} bytes in a datagram with {left} bytes left")]
    PayloadTruncated {
        /// Bytes that the record header asks for.
        payload: usize,
        /// Bytes that the datagram still has.
        left: usize,
    },
    /// The record's traffic class does not exist. Only this record is lost.
    #[error("traffic class {0} is above 7")]
    Class(u8),
    /// The record is of a kind that this version does not define. How long its header is, is not known.
    #[error(
        "record of kind {0}: message (0), reliable (1), announce (2) and acknowledge (3) are known"
    )]
    Kind(u8),
    /// What peers say of a reliable source is in one piece. Only a header made by hand can be so.
    #[error("an announcement or acknowledgement in fragments, each is one record")]
    FragmentedControl,
}

/// What a record is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A message, or a fragment of one: sent once.
    #[default]
    Message,
    /// The same of a reliable source: acknowledged, and sent again as it was if it is lost.
    Reliable {
        /// Its number among the records of its source, modulo 2^32: fragments of one message follow each other.
        number: u32,
    },
    /// What the sender of a reliable source says of it.
    Announce,
    /// What a receiver of a reliable source says to its sender. Channel and source are the sender's.
    Acknowledge,
}

impl Kind {
    /// By its number in a header. The record's own follows there.
    #[inline]
    const fn from_wire(kind: u8) -> Option<Self> {
        match kind {
            0 => Some(Self::Message),
            1 => Some(Self::Reliable { number: 0 }),
            2 => Some(Self::Announce),
            3 => Some(Self::Acknowledge),
            _ => None,
        }
    }

    /// Its number in a header, and that of the record.
    #[inline]
    const fn to_wire(self) -> (u8, u32) {
        match self {
            Self::Message => (0, 0),
            Self::Reliable { number } => (1, number),
            Self::Announce => (2, 0),
            Self::Acknowledge => (3, 0),
        }
    }
}

/// How a datagram is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Protection {
    /// Not at all: whoever can send to the node can forge it.
    None = 0,
    /// A tag proves the sender and every byte; everybody on the path can read it.
    #[default]
    Integrity = 1,
    /// In addition, what follows the header is encrypted.
    Encrypt = 2,
}

impl Protection {
    /// Bytes that the tag adds to a datagram.
    #[inline]
    pub const fn tag_len(self) -> usize {
        match self {
            Self::None => 0,
            _ => TAG_LEN,
        }
    }
}

/// The header of a datagram. Its version is always [`VERSION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatagramHeader {
    /// How the datagram is protected.
    pub protection: Protection,
    /// How many records follow; at least 1.
    pub records: u16,
    /// The sending lane's number, made known to the peer by the hello.
    pub sender: u32,
    /// When the sending lane took the first of the datagram's messages, TAI nanoseconds.
    pub send_time_ns: i64,
    /// Which key (bits 63 to 56) and the number of the datagram under it (bits 55 to 0): the nonce. 0
    /// without protection.
    pub counter: u64,
}

/// What follows a datagram's header, apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body<'a> {
    /// The records, encrypted if the header says so.
    pub records: &'a [u8],
    /// The tag; empty without protection.
    pub tag: &'a [u8],
}

impl DatagramHeader {
    /// Reads a datagram's header and hands out what follows it. Nothing behind the header may be looked at
    /// before the tag is checked; then see [`records`](Self::records).
    ///
    /// # Errors
    /// [`ChannelError`] if the header is cut short, of another version or protection, or announces no
    /// record, or the tag is missing.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<(Self, Body<'_>), ChannelError> {
        let Some((header, body)) = datagram.split_first_chunk::<HEADER_LEN>() else {
            return Err(ChannelError::HeaderTruncated(datagram.len()));
        };
        let [version, protection, ..] = *header;
        if version != VERSION {
            return Err(ChannelError::Version(version));
        }
        let protection = match protection {
            0 => Protection::None,
            1 => Protection::Integrity,
            2 => Protection::Encrypt,
            other => return Err(ChannelError::Protection(other)),
        };
        let header = Self {
            protection,
            records: u16::from_le_bytes(field(header, 2)),
            sender: u32::from_le_bytes(field(header, 4)),
            send_time_ns: i64::from_le_bytes(field(header, 8)),
            counter: u64::from_le_bytes(field(header, 16)),
        };
        if header.records == 0 {
            return Err(ChannelError::NoRecords);
        }
        let Some(at) = body.len().checked_sub(protection.tag_len()) else {
            return Err(ChannelError::TagTruncated(body.len()));
        };
        let (records, tag) = body.split_at(at);
        Ok((header, Body { records, tag }))
    }

    /// The records of a datagram whose tag is checked, as clear bytes. They are checked one by one as they
    /// are iterated.
    #[inline]
    pub const fn records<'a>(&self, bytes: &'a [u8]) -> Records<'a> {
        Records {
            bytes,
            left: Some(self.records),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, header: &mut [u8; HEADER_LEN]) {
        header[0] = VERSION;
        header[1] = self.protection as u8;
        header[2..4].copy_from_slice(&self.records.to_le_bytes());
        header[4..8].copy_from_slice(&self.sender.to_le_bytes());
        header[8..16].copy_from_slice(&self.send_time_ns.to_le_bytes());
        header[16..24].copy_from_slice(&self.counter.to_le_bytes());
    }
}

/// The header of a record: which message, and which part of it the record carries.
///
/// A header that came out of [`Records`] is consistent; one made by hand may be tried with
/// [`check`](Self::check), as [`DatagramCursor::push`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordHeader {
    /// The channel's number.
    pub channel: u64,
    /// The source's number, never used twice by its lane. A source writes one channel.
    pub source: u32,
    /// Low 32 bits of the message's number among those of its source.
    pub sequence: u32,
    /// Bytes of the whole message.
    pub message_length: u32,
    /// Which fragment this is, from 0; 0 for a whole message.
    pub fragment_index: u32,
    /// Bytes of every fragment but the last; 0 if the record carries the whole message.
    pub fragment_stride: u16,
    /// The traffic class that the message was sent in.
    pub class: TrafficClass,
    /// What the record is.
    pub kind: Kind,
}

impl RecordHeader {
    /// Reads the header that a record begins with. What is behind it may be less than the record's payload: for copies that were
    /// cut short.
    ///
    /// # Errors
    /// What is wrong with the header.
    pub fn parse(record: &[u8]) -> Result<(Self, &[u8]), ChannelError> {
        let (header, class, rest) = Self::split(record)?;
        match TrafficClass::new(class) {
            Some(_) => Ok((header, rest)),
            None => Err(ChannelError::Class(class)),
        }
    }

    /// The header, its class as it stands there, and what is behind it.
    #[inline]
    fn split(record: &[u8]) -> Result<(Self, u8, &[u8]), ChannelError> {
        let truncated = ChannelError::RecordTruncated(record.len());
        let Some((raw, mut body)) = record.split_first_chunk::<RECORD_HEADER_LEN>() else {
            return Err(truncated);
        };
        let class = raw[22];
        let kind = Kind::from_wire(raw[23]).ok_or(ChannelError::Kind(raw[23]))?;
        let mut header = Self {
            channel: u64::from_le_bytes(field(raw, 0)),
            source: u32::from_le_bytes(field(raw, 8)),
            sequence: u32::from_le_bytes(field(raw, 12)),
            message_length: u32::from_le_bytes(field(raw, 16)),
            fragment_index: 0,
            fragment_stride: u16::from_le_bytes(field(raw, 20)),
            class: TrafficClass::new(class).unwrap_or_default(),
            kind,
        };
        if header.header_len() == FRAGMENT_HEADER_LEN {
            let Some((more, rest)) =
                body.split_first_chunk::<{ FRAGMENT_HEADER_LEN - RECORD_HEADER_LEN }>()
            else {
                return Err(truncated);
            };
            header.fragment_index = u32::from_le_bytes(field(more, 0));
            if let Kind::Reliable { number } = &mut header.kind {
                *number = u32::from_le_bytes(field(more, 4));
            }
            body = rest;
        }
        header.check()?;
        Ok((header, class, body))
    }

    /// Whether index, stride and length go together.
    ///
    /// # Errors
    /// [`ChannelError::IndexWithoutStride`], [`ChannelError::FragmentOutsideMessage`],
    /// [`ChannelError::TooManyFragments`] or [`ChannelError::FragmentedControl`].
    #[inline]
    pub const fn check(&self) -> Result<(), ChannelError> {
        if matches!(self.kind, Kind::Announce | Kind::Acknowledge) && self.fragment_stride != 0 {
            return Err(ChannelError::FragmentedControl);
        }
        if self.fragment_stride == 0 {
            return match self.fragment_index {
                0 => Ok(()),
                index => Err(ChannelError::IndexWithoutStride(index)),
            };
        }
        let (offset, message_length) = (self.offset(), self.message_length);
        if offset >= message_length as u64 {
            return Err(ChannelError::FragmentOutsideMessage {
                offset,
                message_length,
            });
        }
        match self.fragment_count() {
            0..=MOST_FRAGMENTS => Ok(()),
            count => Err(ChannelError::TooManyFragments(count)),
        }
    }

    /// Index times stride; 48 bits at most, so it cannot overflow.
    #[inline]
    const fn offset(&self) -> u64 {
        self.fragment_index as u64 * self.fragment_stride as u64
    }

    /// Bytes of message in this record. 0 if the header is not consistent.
    #[inline]
    pub const fn payload_len(&self) -> usize {
        if self.fragment_stride == 0 {
            return self.message_length as usize;
        }
        let left = (self.message_length as u64).saturating_sub(self.offset());
        let stride = self.fragment_stride as u64;
        (if left < stride { left } else { stride }) as usize
    }

    /// Where in the message the payload belongs, in bytes. The message's length if the header is
    /// not consistent.
    #[inline]
    pub const fn fragment_offset(&self) -> usize {
        let (offset, length) = (self.offset(), self.message_length as u64);
        (if offset < length { offset } else { length }) as usize
    }

    /// Bytes of this header: a fragment's tells its index, a reliable record's its number.
    #[inline]
    pub const fn header_len(&self) -> usize {
        if self.fragment_stride == 0 && !matches!(self.kind, Kind::Reliable { .. }) {
            RECORD_HEADER_LEN
        } else {
            FRAGMENT_HEADER_LEN
        }
    }

    /// Whether the record carries a message, or a fragment of one, and not what peers say of a source.
    #[inline]
    pub const fn is_message(&self) -> bool {
        matches!(self.kind, Kind::Message | Kind::Reliable { .. })
    }

    /// Whether the message was cut into fragments, though it may be into one.
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.fragment_stride != 0
    }

    /// How many records carry the message: 1 for a whole one, [`MOST_FRAGMENTS`] at most if the header is consistent.
    #[inline]
    pub const fn fragment_count(&self) -> u32 {
        match self.fragment_stride {
            0 => 1,
            stride => self.message_length.div_ceil(stride as u32),
        }
    }

    /// Whether no later fragment of the message exists. True for a whole message.
    #[inline]
    pub const fn is_last(&self) -> bool {
        self.fragment_index as u64 + 1 >= self.fragment_count() as u64
    }

    /// Writes the header; `header` has [`header_len`](Self::header_len) bytes.
    #[inline]
    fn emit(&self, header: &mut [u8]) {
        header[0..8].copy_from_slice(&self.channel.to_le_bytes());
        header[8..12].copy_from_slice(&self.source.to_le_bytes());
        header[12..16].copy_from_slice(&self.sequence.to_le_bytes());
        header[16..20].copy_from_slice(&self.message_length.to_le_bytes());
        header[20..22].copy_from_slice(&self.fragment_stride.to_le_bytes());
        let (kind, number) = self.kind.to_wire();
        header[22] = self.class.number();
        header[23] = kind;
        if let Some(fragment) = header.get_mut(24..FRAGMENT_HEADER_LEN) {
            fragment[..4].copy_from_slice(&self.fragment_index.to_le_bytes());
            fragment[4..].copy_from_slice(&number.to_le_bytes());
        }
    }
}

/// A record as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its header, consistent.
    pub header: RecordHeader,
    /// Exactly [`RecordHeader::payload_len`] bytes.
    pub payload: &'a [u8],
}

/// The records of a datagram, checked one by one.
///
/// [`ChannelError::Class`] costs its own record only and the iteration goes on. After any other
/// error nothing behind it can be found, and the iteration ends.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    /// What was not read yet.
    bytes: &'a [u8],
    /// Records still announced; `None` once the iteration is over.
    left: Option<u16>,
}

impl<'a> Records<'a> {
    #[inline]
    fn end(&mut self, error: ChannelError) -> Option<Result<Record<'a>, ChannelError>> {
        self.left = None;
        Some(Err(error))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, ChannelError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let Some(left) = self.left?.checked_sub(1) else {
            // What follows the last record is padding.
            self.left = None;
            return None;
        };
        self.left = Some(left);
        let (header, class, body) = match RecordHeader::split(self.bytes) {
            Ok(split) => split,
            Err(error) => return self.end(error),
        };
        let Some((payload, rest)) = body.split_at_checked(header.payload_len()) else {
            return self.end(ChannelError::PayloadTruncated {
                payload: header.payload_len(),
                left: body.len(),
            });
        };
        // The last record of a datagram may go without its padding; any other is followed by a
        // header, whose absence the next call reports.
        let padding = payload.len().next_multiple_of(RECORD_ALIGNMENT) - payload.len();
        self.bytes = rest.get(padding..).unwrap_or_default();
        Some(match TrafficClass::new(class) {
            Some(_) => Ok(Record { header, payload }),
            None => Err(ChannelError::Class(class)),
        })
    }
}

/// The `N` bytes of a header that start at `at`.
#[inline]
fn field<const N: usize, const H: usize>(header: &[u8; H], at: usize) -> [u8; N] {
    std::array::from_fn(|byte| header[at + byte])
}

/// Builds a datagram of messages, record by record, in a buffer that it does not hold: the state
/// between two pushes is this small value, so the buffer may be borrowed anew for each call.
///
/// All calls of one datagram must be given the same buffer. A copy taken before a push undoes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramCursor {
    len: usize,
    /// Length with the padding behind the last record; 0: there is none.
    padded: usize,
    records: u16,
}

impl DatagramCursor {
    /// The cursor of an empty datagram.
    pub const fn new() -> Self {
        Self {
            len: HEADER_LEN,
            padded: 0,
            records: 0,
        }
    }

    /// Bytes of the datagram so far, its header included, without padding behind the last record.
    #[inline]
    pub const fn datagram_len(&self) -> usize {
        self.len
    }

    /// How many records were pushed.
    #[inline]
    pub const fn records(&self) -> u16 {
        self.records
    }

    /// Bytes of a whole message that still fit in a further record of a buffer of `buf_len` bytes. 0 also when
    /// not even a record's header fits: whether an empty message fits, [`push`](Self::push) tells.
    #[inline]
    pub const fn room(&self, buf_len: usize) -> usize {
        if self.records == u16::MAX {
            return 0;
        }
        buf_len.saturating_sub(self.len.next_multiple_of(RECORD_ALIGNMENT) + RECORD_HEADER_LEN)
    }

    /// Writes a record's header and hands out its payload, [`RecordHeader::payload_len`] bytes that
    /// the caller must fill. `None`, and nothing changes, if the record does not fit or if
    /// [`RecordHeader::check`] refuses it.
    #[inline]
    pub fn push<'a>(&mut self, buf: &'a mut [u8], header: &RecordHeader) -> Option<&'a mut [u8]> {
        header.check().ok()?;
        let records = self.records.checked_add(1)?;
        let start = self.len.next_multiple_of(RECORD_ALIGNMENT);
        let payload_len = header.payload_len();
        let end = (start + header.header_len()).checked_add(payload_len)?;
        let (padding, record) = buf.get_mut(self.len..end)?.split_at_mut(start - self.len);
        let (raw, payload) = record.split_at_mut(header.header_len());
        padding.fill(0);
        header.emit(raw);
        self.len = end;
        self.records = records;
        Some(payload)
    }

    /// Extends the datagram to `len` bytes with zeros that receivers ignore; no effect if it is longer or
    /// `buf` is shorter. Datagrams of one length can leave as one train. A further record takes the place of the zeros.
    pub fn pad(&mut self, buf: &mut [u8], len: usize) {
        if let Some(padding) = buf.get_mut(self.len..len) {
            padding.fill(0);
            self.padded = self.padded.max(len);
        }
    }

    /// Writes the datagram's header and returns the datagram's length in bytes, without the tag: what to
    /// protect and send is `buf[..length]`. Returns 0 and writes nothing if no record was pushed.
    /// `counter`: 0 without protection.
    ///
    /// # Panics
    /// If records were pushed into another, longer buffer and `buf` does not even hold a header.
    #[inline]
    pub fn finish(
        &self,
        buf: &mut [u8],
        protection: Protection,
        sender: u32,
        send_time_ns: i64,
        counter: u64,
    ) -> usize {
        if self.records == 0 {
            return 0;
        }
        let header = DatagramHeader {
            protection,
            records: self.records,
            sender,
            send_time_ns,
            counter,
        };
        let raw = buf
            .first_chunk_mut()
            .expect("the buffer that records were pushed into holds a header");
        header.emit(raw);
        self.len.max(self.padded)
    }
}

impl Default for DatagramCursor {
    fn default() -> Self {
        Self::new()
    }
}
