//! Captures, pcap and pcapng: whatever is in them, reading ends, and what is read is not longer than the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_capture::file::Reader;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = Reader::new(std::io::Cursor::new(bytes.to_vec())) else {
        return;
    };
    let (mut packet, mut total) = (Vec::new(), 0);
    while let Ok(Some(_)) = reader.next(&mut packet) {
        total += packet.len();
    }
    assert!(total <= bytes.len());
});
