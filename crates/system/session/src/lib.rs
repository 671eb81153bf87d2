//! The protocol between an application and the runtime: control messages on a Unix socket, and the
//! layout of the arena that both map.
//!
//! Nothing here decides anything: the runtime's half is in `takt-runtime`, the application's in
//! `takt`. The protocol is versioned and length-checked; every byte from the other side is hostile.
//! Drawn in `docs/reference/session-protocol.md`.

#![deny(unsafe_code)] // but for the three `Pod` promises in `layout`

pub mod endpoint;
pub mod error;
pub mod layout;
pub mod message;
pub mod qos;
pub mod transport;

pub use endpoint::Endpoint;
pub use error::{ErrorCode, Failure};
pub use qos::{Acceleration, Qos, ResourceUse, TimeSensitivity};

use std::fmt;

/// The version of protocol and layout. A runtime refuses any other, naming both.
pub const PROTOCOL_VERSION: u16 = 1;

/// Where `taktd` listens unless the configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/takt/takt.sock";

/// The environment variable that names the runtime's socket for an application.
pub const SOCKET_VARIABLE: &str = "TAKT_SOCKET";

/// A channel: a numbered, unidirectional flow of messages between sources and sinks on any nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ChannelId(pub u64);

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
