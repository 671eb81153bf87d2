//! A packet of the session socket, from an application or from the runtime: what is accepted has one
//! encoding, which is these very bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_session::message::{Envelope, MAX_MESSAGE_BYTES, MAX_TEXT_BYTES, Reply, Request};

fuzz_target!(|packet: &[u8]| {
    if let Ok(request) = Envelope::<Request>::decode(packet) {
        if let Request::Attach { name, .. } = &request.message {
            assert!(name.len() <= MAX_TEXT_BYTES);
        }
        assert_eq!(request.encode(), packet);
        assert!(packet.len() <= MAX_MESSAGE_BYTES);
    }
    if let Ok(reply) = Envelope::<Reply>::decode(packet) {
        assert_eq!(reply.encode(), packet);
        assert!(packet.len() <= MAX_MESSAGE_BYTES);
    }
});
