//! The admin API: gRPC over a Unix socket, as `proto/takt/admin/v1/admin.proto` defines it.
//!
//! [`server`] answers, [`client`] asks, [`convert`](self) turns the runtime's snapshots into messages. Every call
//! is answered from a snapshot that the runtime's control thread takes; lanes never notice.

mod capture;
pub mod client;
mod clock;
mod convert;
mod incoming;
pub mod json;
pub(crate) mod listener;
mod network;
pub(crate) mod schedule;
pub mod server;
mod socket;
mod watch;

pub use socket::SocketError;

/// What turns messages of operators into what the runtime takes, for fuzz targets.
#[cfg(fuzzing)]
#[allow(missing_docs)]
pub mod fuzzing {
    pub use super::listener::{from_message as listener, mac};
    pub use super::network::{from_message as station, vtep};
    pub use super::schedule::from_request as schedule;
}

/// The messages, clients and servers generated from the contract.
#[allow(
    missing_docs,
    reason = "generated; the comments of the contract are kept"
)]
pub mod proto {
    tonic::include_proto!("takt.admin.v1");
}

/// Most bytes of an answer that a client accepts.
pub const LONGEST_ANSWER: usize = 64 << 20;
