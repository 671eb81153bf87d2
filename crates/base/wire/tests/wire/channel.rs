//! The channel datagram: known bytes, round trips, refusals.

use proptest::collection::vec;
use proptest::prelude::*;
use takt_time::TrafficClass;
use takt_wire::channel::{
    ChannelError, DatagramCursor, DatagramHeader, FRAGMENT_HEADER_LEN, HEADER_LEN, Kind,
    MOST_FRAGMENTS, Protection, RECORD_HEADER_LEN, Record, RecordHeader, TAG_LEN,
};

/// Two records: the second fragment of a 5-byte message cut every 3 bytes, then an empty message.
#[rustfmt::skip]
const KNOWN: [u8; 88] = [
    // version, protection, two records, sender, send time
    2, 0, 2, 0,  0xef, 0xbe, 0xad, 0xde,  0x15, 0xcd, 0x5b, 0x07, 0, 0, 0, 0,
    // key and counter
    0x0c, 0, 0, 0, 0, 0, 0, 0x21,
    // channel, source, sequence, message length, stride, class, 0
    8, 7, 6, 5, 4, 3, 2, 1,  0xcc, 0xbb, 0, 0,  9, 0, 0, 0x80,  5, 0, 0, 0,  3, 0,  7,  0,
    // index, 0
    1, 0, 0, 0,  0, 0, 0, 0,
    // two bytes of payload, six of padding
    b'l', b'o', 0, 0, 0, 0, 0, 0,
    42, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0,  1, 0, 0, 0,  0, 0, 0, 0,  0, 0,  0,  0,
];
const COUNTER: u64 = 0x2100_0000_0000_000c;

fn class(number: u8) -> TrafficClass {
    TrafficClass::new(number).unwrap()
}

fn known_headers() -> [RecordHeader; 2] {
    [
        RecordHeader {
            channel: 0x0102_0304_0506_0708,
            source: 0xbbcc,
            sequence: 0x8000_0009,
            message_length: 5,
            fragment_index: 1,
            fragment_stride: 3,
            class: class(7),
            kind: Kind::Message,
        },
        whole(42, 1, 0),
    ]
}

fn whole(channel: u64, sequence: u32, message_length: u32) -> RecordHeader {
    RecordHeader {
        channel,
        source: 0,
        sequence,
        message_length,
        fragment_index: 0,
        fragment_stride: 0,
        class: class(0),
        kind: Kind::Message,
    }
}

/// Builds a datagram in a buffer that starts dirty, so that forgotten padding shows.
fn build(records: &[(RecordHeader, Vec<u8>)], sender: u32, send_time_ns: i64) -> Vec<u8> {
    let mut buf = vec![0xff; 1 << 16];
    let mut cursor = DatagramCursor::new();
    for (header, payload) in records {
        cursor
            .push(&mut buf, header)
            .unwrap()
            .copy_from_slice(payload);
    }
    let len = cursor.finish(&mut buf, Protection::None, sender, send_time_ns, COUNTER);
    buf.truncate(len);
    buf
}

fn errors(datagram: &[u8]) -> Vec<ChannelError> {
    match DatagramHeader::parse(datagram) {
        Err(error) => vec![error],
        Ok((header, body)) => header
            .records(body.records)
            .filter_map(Result::err)
            .collect(),
    }
}

fn known_with(offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut datagram = KNOWN.to_vec();
    datagram[offset..offset + bytes.len()].copy_from_slice(bytes);
    datagram
}

#[test]
fn the_known_datagram_is_written_byte_for_byte() {
    let [fragment, empty] = known_headers();
    let records = [(fragment, b"lo".to_vec()), (empty, vec![])];
    assert_eq!(build(&records, 0xdead_beef, 123_456_789), KNOWN);
}

#[test]
fn the_known_datagram_is_read() {
    let (header, body) = DatagramHeader::parse(&KNOWN).unwrap();
    let expected = DatagramHeader {
        protection: Protection::None,
        records: 2,
        sender: 0xdead_beef,
        send_time_ns: 123_456_789,
        counter: COUNTER,
    };
    let records = header.records(body.records);
    assert_eq!(header, expected);
    let [fragment, empty] = known_headers();
    let expected = [
        Ok(Record {
            header: fragment,
            payload: b"lo",
        }),
        Ok(Record {
            header: empty,
            payload: b"",
        }),
    ];
    assert_eq!(records.collect::<Vec<_>>(), expected);
    assert_eq!(fragment.fragment_offset(), 3);
    assert_eq!(fragment.fragment_count(), 2);
    assert!(fragment.is_fragment() && fragment.is_last());
    assert!(!empty.is_fragment() && empty.is_last());
}

#[test]
fn every_truncation_of_a_valid_datagram_is_refused() {
    for len in 0..KNOWN.len() {
        assert_eq!(errors(&KNOWN[..len]).len(), 1, "cut to {len} bytes");
    }
}

#[test]
fn bytes_behind_the_last_record_are_padding() {
    let mut datagram = KNOWN[..HEADER_LEN + FRAGMENT_HEADER_LEN + 2].to_vec();
    datagram[2] = 1;
    for length in datagram.len()..datagram.len() + 40 {
        datagram.resize(length, 0);
        assert_eq!(errors(&datagram), []);
    }
}

#[test]
fn a_padded_datagram_has_its_records_and_the_length_asked_for() {
    let mut buf = vec![0xff; 256];
    let mut cursor = DatagramCursor::new();
    cursor.push(&mut buf, &whole(5, 1, 3)).unwrap().fill(7);
    cursor.pad(&mut buf, 100);
    cursor.pad(&mut buf, 50);
    cursor.pad(&mut buf, 1000);
    let len = cursor.finish(&mut buf, Protection::None, 9, 0, 0);
    assert_eq!(len, 100);
    assert!(
        buf[HEADER_LEN + RECORD_HEADER_LEN + 3..100]
            .iter()
            .all(|&byte| byte == 0)
    );
    assert_eq!(errors(&buf[..len]), []);
}

#[test]
fn a_record_behind_padding_is_read_as_any_other() {
    let mut buf = vec![0xff; 256];
    let mut cursor = DatagramCursor::new();
    cursor.push(&mut buf, &whole(5, 1, 3)).unwrap().fill(7);
    cursor.pad(&mut buf, 100);
    cursor.push(&mut buf, &whole(5, 2, 3)).unwrap().fill(8);
    let len = cursor.finish(&mut buf, Protection::None, 9, 0, 0);
    assert_eq!(len, 100);
    assert_eq!(errors(&buf[..len]), []);
    let (header, body) = DatagramHeader::parse(&buf[..len]).unwrap();
    let payloads: Vec<u8> = header
        .records(body.records)
        .map(|r| r.unwrap().payload[0])
        .collect();
    assert_eq!(payloads, [7, 8]);
}

#[test]
fn a_bad_datagram_header_is_refused_with_the_value_at_fault() {
    assert_eq!(errors(&known_with(0, &[1])), [ChannelError::Version(1)]);
    assert_eq!(errors(&known_with(1, &[9])), [ChannelError::Protection(9)]);
    assert_eq!(
        errors(&known_with(1, &[1])[..HEADER_LEN + TAG_LEN - 1]),
        [ChannelError::TagTruncated(TAG_LEN - 1)]
    );
    assert_eq!(errors(&known_with(2, &[0, 0])), [ChannelError::NoRecords]);
    assert_eq!(
        errors(&known_with(2, &[3, 0])),
        [ChannelError::RecordTruncated(0)]
    );
}

#[test]
fn a_record_that_contradicts_itself_ends_the_datagram() {
    // Offsets of the first record's fields in the datagram.
    let (length, stride, index) = (40, 44, 48);
    let outside = |offset, message_length| ChannelError::FragmentOutsideMessage {
        offset,
        message_length,
    };
    assert_eq!(errors(&known_with(length, &[3])), [outside(3, 3)]);
    assert_eq!(
        errors(&known_with(
            stride,
            &[0xff, 0xff, 7, 0, 0xff, 0xff, 0xff, 0xff]
        )),
        [outside(0xffff_ffff * 0xffff, 5)]
    );
    assert_eq!(errors(&known_with(index, &[2])), [outside(6, 5)]);
    let short = ChannelError::PayloadTruncated {
        payload: 0x0102_0304,
        left: 40,
    };
    assert_eq!(errors(&known_with(length, &[4, 3, 2, 1, 0, 0])), [short]);
}

#[test]
fn an_unknown_class_costs_only_its_own_record() {
    let datagram = known_with(46, &[8]);
    let (header, body) = DatagramHeader::parse(&datagram).unwrap();
    let records = header.records(body.records);
    let expected = [
        Err(ChannelError::Class(8)),
        Ok(Record {
            header: known_headers()[1],
            payload: b"",
        }),
    ];
    assert_eq!(records.collect::<Vec<_>>(), expected);
}

#[test]
fn the_tag_of_a_protected_datagram_is_handed_out_apart_from_its_records() {
    for protection in [Protection::Integrity, Protection::Encrypt] {
        let mut datagram = known_with(1, &[protection as u8]);
        datagram.extend([0x5a; TAG_LEN]);
        let (header, body) = DatagramHeader::parse(&datagram).unwrap();
        assert_eq!(header.protection, protection);
        assert_eq!(
            (body.records, body.tag),
            (&KNOWN[HEADER_LEN..], &[0x5a; TAG_LEN][..])
        );
        assert_eq!(header.records(body.records).flatten().count(), 2);
    }
}

#[test]
fn a_record_fits_exactly_when_its_payload_is_no_longer_than_the_room() {
    let mut buf = [0; 108];
    let mut cursor = DatagramCursor::new();
    assert_eq!(cursor.room(buf.len()), 60);
    assert_eq!(cursor.push(&mut buf, &whole(1, 1, 61)), None);
    assert_eq!(
        cursor.push(&mut buf, &whole(1, 1, 13)).map(|p| p.len()),
        Some(13)
    );
    assert_eq!(cursor.datagram_len(), 61);
    assert_eq!(cursor.room(buf.len()), 20);
    assert_eq!(cursor.push(&mut buf, &whole(1, 2, 21)), None);
    assert_eq!(
        cursor.push(&mut buf, &whole(1, 2, 20)).map(|p| p.len()),
        Some(20)
    );
    assert_eq!(cursor.room(buf.len()), 0);
    assert_eq!(cursor.push(&mut buf, &whole(1, 3, 0)), None);
    assert_eq!(
        (
            cursor.records(),
            cursor.finish(&mut buf, Protection::None, 1, 1, 0)
        ),
        (2, 108)
    );
}

#[test]
fn an_empty_or_inconsistent_datagram_is_never_written() {
    let mut buf = [0xaa; 64];
    let mut cursor = DatagramCursor::default();
    assert_eq!(
        cursor.push(
            &mut buf,
            &RecordHeader {
                fragment_index: 1,
                ..whole(1, 1, 1)
            }
        ),
        None
    );
    assert_eq!(
        cursor.push(
            &mut buf,
            &RecordHeader {
                fragment_stride: 8,
                ..whole(1, 1, 0)
            }
        ),
        None
    );
    assert_eq!(cursor.push(&mut buf[..8], &whole(1, 1, 0)), None);
    assert_eq!(cursor.finish(&mut buf, Protection::None, 1, 1, 0), 0);
    assert_eq!((cursor, buf), (DatagramCursor::new(), [0xaa; 64]));
}

#[test]
fn a_reliable_record_has_its_number_behind_its_header_and_an_unknown_kind_ends_the_datagram() {
    let header = RecordHeader {
        kind: Kind::Reliable {
            number: 0xa1b2_c3d4,
        },
        ..whole(42, 7, 2)
    };
    let mut datagram = build(&[(header, b"ok".to_vec())], 1, 1);
    let raw = &datagram[HEADER_LEN..];
    assert_eq!(raw[23], 1);
    assert_eq!(raw[24..32], [0, 0, 0, 0, 0xd4, 0xc3, 0xb2, 0xa1]);
    assert_eq!(&raw[32..], b"ok");
    datagram[HEADER_LEN + 23] = 4;
    assert_eq!(errors(&datagram), [ChannelError::Kind(4)]);
    let control = RecordHeader {
        kind: Kind::Acknowledge,
        fragment_stride: 8,
        ..whole(42, 7, 2)
    };
    assert_eq!(control.check(), Err(ChannelError::FragmentedControl));
    // Cut short inside the number.
    datagram[HEADER_LEN + 23] = 1;
    datagram.truncate(HEADER_LEN + 30);
    assert_eq!(errors(&datagram), [ChannelError::RecordTruncated(30)]);
}

#[test]
fn a_message_has_no_more_fragments_than_can_be_told_apart() {
    let most = RecordHeader {
        message_length: MOST_FRAGMENTS,
        fragment_stride: 1,
        kind: Kind::Reliable { number: 5 },
        ..whole(42, 7, 1)
    };
    let mut datagram = build(&[(most, b"x".to_vec())], 1, 1);
    assert_eq!(errors(&datagram), []);
    for length in [MOST_FRAGMENTS + 1, 0xc000_0000, u32::MAX] {
        datagram[HEADER_LEN + 16..][..4].copy_from_slice(&length.to_le_bytes());
        let refused = ChannelError::TooManyFragments(length);
        assert_eq!(errors(&datagram), [refused]);
    }
}

#[test]
fn a_datagram_holds_no_more_records_than_its_header_can_count() {
    let mut buf = vec![0; HEADER_LEN + RECORD_HEADER_LEN * (1 << 16)];
    let mut cursor = DatagramCursor::new();
    for sequence in 0..u32::from(u16::MAX) {
        assert!(cursor.push(&mut buf, &whole(1, sequence, 0)).is_some());
    }
    assert_eq!(cursor.push(&mut buf, &whole(1, 0, 0)), None);
    assert_eq!(cursor.room(1 << 30), 0);
    let len = cursor.finish(&mut buf, Protection::None, 1, 1, 0);
    assert_eq!(
        errors(&buf[..len]).len()
            + DatagramHeader::parse(&buf[..len])
                .map_or(0, |(h, b)| h.records(b.records).flatten().count()),
        65_535
    );
}

/// A consistent record of at most 200 bytes: whole, or any fragment of a message of any length.
fn record() -> impl Strategy<Value = (RecordHeader, Vec<u8>)> {
    let kind = prop_oneof![
        Just(Kind::Message),
        any::<u32>().prop_map(|number| Kind::Reliable { number }),
        Just(Kind::Announce),
        Just(Kind::Acknowledge),
    ];
    let cut = prop_oneof![
        (0u32..200).prop_map(|length| (length, 0, 0)),
        (1u16..200, 1u32..).prop_flat_map(|(stride, length)| {
            let length = length.min(u32::from(stride) * MOST_FRAGMENTS);
            (
                Just(length),
                0..length.div_ceil(u32::from(stride)),
                Just(stride),
            )
        }),
    ];
    (any::<u64>(), any::<u32>(), 0u8..8, any::<u32>(), kind, cut)
        .prop_map(
            |(
                channel,
                sequence,
                number,
                source,
                kind,
                (message_length, fragment_index, fragment_stride),
            )| {
                // What peers say of a source is whole.
                let kind = match kind {
                    Kind::Announce | Kind::Acknowledge if fragment_stride != 0 => Kind::Message,
                    kind => kind,
                };
                RecordHeader {
                    channel,
                    source,
                    sequence,
                    message_length,
                    fragment_index,
                    fragment_stride,
                    class: class(number),
                    kind,
                }
            },
        )
        .prop_flat_map(|header| (Just(header), vec(any::<u8>(), header.payload_len())))
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        sent in vec(record(), 1..20), sender: u32, send_time_ns: i64,
    ) {
        let datagram = build(&sent, sender, send_time_ns);
        let (header, body) = DatagramHeader::parse(&datagram).unwrap();
        let records = header.records(body.records);
        prop_assert_eq!(header.records as usize, sent.len());
        prop_assert_eq!((header.sender, header.send_time_ns), (sender, send_time_ns));
        let received: Result<Vec<_>, _> = records.collect();
        let received: Vec<_> =
            received.unwrap().iter().map(|r| (r.header, r.payload.to_vec())).collect();
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn fragments_tile_their_message(stride in 1u16.., message_length in 1u32..300_000) {
        let stride = stride.max(16);
        let first = RecordHeader { fragment_stride: stride, ..whole(1, 1, message_length) };
        let mut end = 0;
        for fragment_index in 0..first.fragment_count() {
            let fragment = RecordHeader { fragment_index, ..first };
            prop_assert_eq!(fragment.check(), Ok(()));
            prop_assert_eq!(fragment.fragment_offset(), end);
            end += fragment.payload_len();
            prop_assert_eq!(fragment.is_last(), end == message_length as usize);
        }
        prop_assert_eq!(end, message_length as usize);
        let behind = RecordHeader { fragment_index: first.fragment_count(), ..first };
        prop_assert!(behind.check().is_err());
        prop_assert_eq!(behind.payload_len(), 0);
    }

    #[test]
    fn no_bytes_make_the_parser_panic_or_run_away(
        mut bytes in vec(any::<u8>(), 0..300), well_begun: bool,
    ) {
        if well_begun && bytes.len() > 3 {
            bytes[..4].copy_from_slice(&[2, 0, 200, 0]);
        }
        if let Ok((header, body)) = DatagramHeader::parse(&bytes) {
            let mut records = header.records(body.records);
            prop_assert!(records.by_ref().count() <= usize::from(header.records) + 1);
            prop_assert_eq!(records.next(), None);
        }
    }
}
