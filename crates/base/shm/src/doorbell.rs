//! Doorbells: how one side wakes the other when it sleeps, at no cost when it does not.
//!
//! - Application to lane: [`LaneBell`] and [`LaneBellHost`]. A word in the arena says whether the lane
//!   is parked; only then is the eventfd written.
//! - Lane to application: [`SinkBell`] and [`SinkBellHost`]. A futex word per sink says whether a
//!   thread sleeps on it or a file descriptor is armed.
//!
//! Both follow one pattern. The sleeper announces itself, fences, looks once more for work, and only
//! then sleeps; the other side makes work visible, fences, and looks for the announcement. Of two
//! sequentially consistent fences one comes first, so at least one side sees the other: no wake-up is
//! lost. A side that lies about its words loses its own wake-ups and nothing else.

mod lane;
mod sink;

use thiserror::Error;

use crate::arena::OutOfBounds;

pub use lane::{LaneBell, LaneBellHost, PARKED, RUNNING};
pub use sink::{FD_ARMED, IDLE, SLEEPING, SinkBell, SinkBellHost, WaitOutcome, Wake};

/// Why a doorbell cannot be attached or made.
#[derive(Debug, Error)]
pub enum BellError {
    /// A word of the bell does not lie in the arena, or is not aligned to 4 bytes.
    #[error("doorbell word does not fit its arena: {0}")]
    OutOfBounds(#[from] OutOfBounds),
    /// The kernel gives no eventfd.
    #[error("cannot create an eventfd for the doorbell: {0}")]
    EventFd(#[source] std::io::Error),
}
