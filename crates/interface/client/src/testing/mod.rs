//! Tests of the client against a peer that plays the runtime's half over real sockets and arenas.

mod callback;
mod data;
mod direct;
mod events;
mod fork;
mod memory;
mod peer;
mod reconnect;
mod rings;
mod room;
mod session;
mod waiting;

use std::time::Duration;

pub use peer::readable;

use crate::{Error, Message, Sink, Source, Wait};

/// Long enough for anything on a busy machine: a wait this long that fails has hung.
pub const LONG: Wait = Wait::For(Duration::from_secs(60));

/// Emits these bytes.
pub fn emit(source: &Source, bytes: &[u8]) -> Result<crate::Token, Error> {
    let mut buffer = source.buffer_wait(bytes.len(), LONG)?;
    buffer.copy_from_slice(bytes);
    buffer.emit()
}

/// The next message, however long it takes, on whichever attachment.
pub fn next(sink: &Sink) -> Message<'_> {
    loop {
        match sink.consume(LONG) {
            Ok(message) => return message,
            Err(Error::Disconnected) => {}
            Err(error) => panic!("no message: {error}"),
        }
    }
}

/// Calls until the session has changed its state, as `until` sees it.
pub fn settle<T>(mut until: impl FnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = until() {
            return value;
        }
        assert!(std::time::Instant::now() < deadline, "nothing changed");
        std::thread::yield_now();
    }
}
