//! The protocol between an application and the runtime: control messages on a Unix socket, and the
//! layout of the arena that both map.
//!
//! Nothing here decides anything: the runtime's half is in `takt-runtime`, the application's in
//! `takt`. The protocol is versioned and length-checked; every byte from the other side is hostile.
//! Drawn in `docs/reference/session-protocol.md`.

#![deny(unsafe_code)] // but for the three `Pod` promises in `layout`

pub mod contention;
pub mod endpoint;
pub mod error;
pub mod layout;
pub mod message;
pub mod place;
pub mod qos;
pub mod transport;
pub mod unserved;

pub use endpoint::Endpoint;
pub use error::{ErrorCode, Failure};
pub use qos::{
    Acceleration, DatapathName, NotADatapathName, Qos, Reliability, ResourceUse, SinkMode,
    SlowSinks, TimeSensitivity,
};

use std::fmt;

use sha2::{Digest, Sha256};

/// A name that somebody else chose, fit for logs and terminals: what would move a cursor, hide text or turn its
/// direction is written as an escape.
pub fn printable(name: &str) -> String {
    let mut printed = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            _ if is_unseen(character) => printed.extend(character.escape_unicode()),
            _ if character.is_control() => printed.extend(character.escape_default()),
            _ => printed.push(character),
        }
    }
    printed
}

/// Marks of direction, what has no width or no ink though it is no plain space, and ends of lines that are no control
/// characters.
pub fn is_unseen(character: char) -> bool {
    matches!(
        character,
        '\u{a0}'
            | '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{1680}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{2000}'..='\u{200f}'
            | '\u{2028}'..='\u{202f}'
            | '\u{205f}'..='\u{206f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// The version of protocol and layout. A runtime refuses any other, naming both.
pub const PROTOCOL_VERSION: u16 = 3;

/// Where `taktd` listens unless the configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/takt/takt.sock";

/// The environment variable that names the runtime's socket for an application.
pub const SOCKET_VARIABLE: &str = "TAKT_SOCKET";

/// A channel: a numbered, unidirectional flow of messages between sources and sinks on any nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ChannelId(pub u64);

impl ChannelId {
    /// The lowest number of a channel that has a name.
    pub const FIRST_NAMED: Self = Self(1 << 63);
    /// The longest name of a channel, octets.
    pub const LONGEST_NAME: usize = 255;

    /// The channel of that name: the first eight octets, big-endian, of the SHA-256 of the name, with the highest bit
    /// set. So names are in the upper half of all channels, and numbers that people write in the lower one.
    ///
    /// Two names share a channel with a probability of 2^-63; among a million names the odds are one to 18 millions.
    /// Nothing detects it: a reader of one would get the messages of the other as well.
    ///
    /// # Errors
    /// [`BadName`].
    pub fn named(name: &str) -> Result<Self, BadName> {
        let bad = |problem| {
            Err(BadName {
                name: name.chars().take(40).collect(),
                problem,
            })
        };
        if name.is_empty() {
            return bad("it is empty");
        }
        if name.len() > Self::LONGEST_NAME {
            return bad("it is longer than 255 octets");
        }
        if name.chars().any(char::is_control) {
            return bad("it has a control character");
        }
        if name.bytes().all(|byte| byte.is_ascii_digit()) {
            return bad("it is a number");
        }
        let digest = Sha256::digest(name);
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Ok(Self(u64::from_be_bytes(first) | Self::FIRST_NAMED.0))
    }
}

/// A text that names no channel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot use {name:?} as the name of a channel: {problem}; write 1 to 255 octets of text, such as weather"
)]
pub struct BadName {
    /// The text, or its beginning.
    pub name: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_channel_that_other_languages_compute_alike() {
        // python3 -c 'import hashlib; print(int.from_bytes(hashlib.sha256(b"weather").digest()[:8], "big") | 1 << 63)'
        assert_eq!(
            ChannelId::named("weather"),
            Ok(ChannelId(16566258043935549734))
        );
        assert!(ChannelId::named("weather").expect("a name") >= ChannelId::FIRST_NAMED);
        assert_ne!(ChannelId::named("Weather"), ChannelId::named("weather"));
    }

    #[test]
    fn what_is_no_name_is_refused_with_what_is_wrong() {
        for (text, problem) in [
            ("", "empty"),
            ("7", "number"),
            ("a\nb", "control"),
            (&"a".repeat(256), "255"),
        ] {
            let error = ChannelId::named(text).expect_err(text).to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_name_moves_no_cursor_and_turns_no_direction() {
        assert_eq!(printable("Presse 3 – süd"), "Presse 3 – süd");
        assert_eq!(
            printable("a\u{1b}[2J\r\nready\u{9b}\u{202e}x"),
            "a\\u{1b}[2J\\r\\nready\\u{9b}\\u{202e}x"
        );
    }
}
