//! A channel datagram from a peer: every record is consistent and inside the datagram, and a
//! datagram without a fault is written back to the same records.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_wire::channel::{DatagramCursor, DatagramHeader, MOST_FRAGMENTS, TAG_LEN};

fuzz_target!(|datagram: &[u8]| {
    let Ok((header, body)) = DatagramHeader::parse(datagram) else {
        return;
    };
    assert_eq!(body.tag.len(), header.protection.tag_len());
    // As if the tag had been good and nothing encrypted.
    let mut records = header.records(body.records);
    let mut good = Vec::new();
    let mut faults = 0;
    for record in records.by_ref() {
        match record {
            Ok(record) => good.push(record),
            Err(_) => faults += 1,
        }
    }
    assert_eq!(records.next(), None);
    assert!(good.len() + faults <= usize::from(header.records) + 1);
    for record in &good {
        let h = &record.header;
        assert_eq!(h.check(), Ok(()));
        assert_eq!(record.payload.len(), h.payload_len());
        assert!(h.fragment_offset() + h.payload_len() <= h.message_length as usize);
        assert!(h.fragment_index < h.fragment_count());
        assert!(h.fragment_count() <= MOST_FRAGMENTS);
    }
    if faults != 0 {
        return;
    }
    let mut again = vec![0xff; datagram.len()];
    let mut cursor = DatagramCursor::new();
    for record in &good {
        let payload = cursor
            .push(&mut again, &record.header)
            .expect("the records fitted before");
        payload.copy_from_slice(record.payload);
    }
    let len = cursor.finish(
        &mut again,
        header.protection,
        header.sender,
        header.send_time_ns,
        header.counter,
    );
    again.truncate(len);
    again.extend_from_slice(body.tag);
    assert!(body.tag.is_empty() || body.tag.len() == TAG_LEN);
    let (header_again, body) = DatagramHeader::parse(&again).expect("it was just written");
    assert_eq!(header_again, header);
    assert!(header.records(body.records).eq(good.into_iter().map(Ok)));
});
