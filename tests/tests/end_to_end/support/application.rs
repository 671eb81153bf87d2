//! What applications do in these tests: numbered messages, checked one by one.

use std::path::Path;
use std::time::Duration;

use takt::{Buffer, Error, Message, Session, Sink, Source, TaiTime, Token, Wait};

use super::Node;
use takt_testing::{PATIENCE, until};

/// Numbers from here on introduce a source to its sinks.
const INTRODUCTIONS: u64 = 1 << 63;

/// An application of a node.
pub fn attach(node: &Node, name: &str) -> Session {
    attach_at(&node.socket(), name)
}

/// An application at a socket.
pub fn attach_at(socket: &Path, name: &str) -> Session {
    Session::builder()
        .socket(socket)
        .name(name)
        .tx_bytes(8 << 20)
        .rx_bytes(16 << 20)
        .request_timeout(PATIENCE)
        .open()
        .expect("a session")
}

/// Sends a number in `length` bytes, at least 8, all of which depend on it.
pub fn put(source: &Source, number: u64, length: usize) -> Token {
    write(source, number, length).expect("emitted")
}

/// As [`put`], to leave at an instant.
pub fn put_at(source: &Source, number: u64, length: usize, launch: TaiTime) -> Token {
    let buffer = filled(source, number, length);
    buffer
        .and_then(|buffer| buffer.emit_at(launch))
        .expect("emitted")
}

/// As [`put`], where it may fail.
pub fn write(source: &Source, number: u64, length: usize) -> Result<Token, Error> {
    filled(source, number, length)?.emit()
}

fn filled(source: &Source, number: u64, length: usize) -> Result<Buffer<'_>, Error> {
    let mut buffer = source.buffer_wait(length, Wait::For(PATIENCE))?;
    for (word, bytes) in (0u64..).zip(buffer.chunks_mut(8)) {
        bytes.copy_from_slice(&word_of(number, word).to_le_bytes()[..bytes.len()]);
    }
    Ok(buffer)
}

/// The first word is the number itself.
fn word_of(number: u64, word: u64) -> u64 {
    number ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The number in a message, every byte of which is checked.
pub fn number_of(message: &[u8]) -> u64 {
    let first = message.first_chunk::<8>().expect("a number");
    let number = u64::from_le_bytes(*first);
    for (word, bytes) in (0u64..).zip(message.chunks(8)) {
        let expected = word_of(number, word).to_le_bytes();
        assert!(
            bytes == &expected[..bytes.len()],
            "message {number} of {} bytes is not what was sent, from byte {} on",
            message.len(),
            word * 8
        );
    }
    number
}

/// The next number, and what came with it.
pub fn take(sink: &Sink) -> u64 {
    let message = sink.consume(Wait::For(PATIENCE)).expect("a message");
    number_of(&message)
}

/// Sends until all sinks hear, and leaves nothing of it in them.
pub fn introduce(source: &Source, sinks: &[&Sink]) {
    let mut number = INTRODUCTIONS;
    until("the sinks hear the source", || {
        number += 1;
        write(source, number, 8).ok()?;
        let heard = sinks.iter().all(|sink| hears(sink, number));
        heard.then_some(())
    });
}

/// Whether this number comes soon. What was sent before it is taken as well.
fn hears(sink: &Sink, number: u64) -> bool {
    loop {
        match sink.consume(Wait::For(Duration::from_millis(100))) {
            Ok(message) if number_of(&message) == number => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

/// Whether the message is of [`introduce`].
pub fn is_introduction(message: &Message<'_>) -> bool {
    number_of(message) >= INTRODUCTIONS
}

/// Sends `count` numbers from `first` on, each after the one before was heard by all.
pub fn exchange(source: &Source, sinks: &[&Sink], first: u64, count: u64) {
    for number in first..first + count {
        put(source, number, 64);
        for sink in sinks {
            assert_eq!(take(sink), number, "lost, doubled or out of order");
        }
    }
}

/// Waits until the runtime has told what became of everything.
pub fn settled(source: &Source) {
    until("everything is sent", || {
        (source.pending() == 0).then_some(())
    });
}
