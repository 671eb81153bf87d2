//! Streams of raw frames, as cameras make them (naaas-thesis-2024, section 6.3.4: Lunar Streaming), on topics alone.
//!
//! A [`Server`] cuts each frame into slices and publishes them; with [`Pace::Spread`] each slice has a launch time, so that a
//! frame is spread over its period and does not burst (as SMPTE ST 2110-21 asks of senders). Any number of [`Client`]s put
//! the frames together again, each at its own pace: one that is slow gets fewer frames, whole ones, and disturbs nobody.
//! [`Slices`] hands out the slices themselves as they come, in place, for who begins to work at the first lines.
//!
//! ```no_run
//! use takt::{Qos, Session, Wait};
//! use takt_messaging::Participant;
//! use takt_streaming::{Client, ClientOptions, Format, Pixels, Server, ServerOptions};
//!
//! let participant = Participant::new(Session::open()?)?;
//! let client = Client::connect(&participant, "camera/1", ClientOptions::new(Qos::fast()))?;
//!
//! let format = Format::picture(Pixels::Rgb, 1280, 720)?;
//! let mut server = Server::open(&participant, "camera/1", format, ServerOptions::new(Qos::fast()))?;
//! server.send(&vec![0; format.bytes()], Wait::Forever)?;
//!
//! let frame = client.next(Wait::Forever)?;
//! assert_eq!((frame.format(), frame.len()), (format, 1280 * 720 * 3));
//! # Ok::<(), takt_streaming::Error>(())
//! ```
//!
//! # What is lost
//! A stream delivers as its server's [`Qos`](takt::Qos) says. With
//! [`Reliable`](takt::Reliability::Reliable) and a deadline lost slices are sent again while they can arrive in time. A
//! frame that lacks slices is dropped and counted, or delivered with its [`holes`](Frame::holes), as the client wishes.
//!
//! # Clocks
//! Capture times are of the server's TAI clock and completion times of the client's: their difference is a latency where both
//! are synchronised.

#![forbid(unsafe_code)]

mod assembly;
mod client;
mod error;
mod format;
pub mod rtp;
mod server;
mod slice;
mod slices;

pub use client::{Client, ClientCounters, ClientOptions, Frame, Keep};
pub use error::Error;
pub use format::{Format, Pixels};
pub use server::{Pace, Server, ServerOptions};
pub use slices::{Slice, Slices};

use takt::TaiTime;
use takt_messaging::Encoding;

/// What the directory of topics says of a stream's encoding.
pub const ENCODING: Encoding = Encoding::SLICES;

/// The time of this node's TAI clock, which capture and completion times are of.
pub fn now() -> TaiTime {
    use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};
    // Every Linux since 3.10 has it.
    let now = clock_gettime_dynamic(DynamicClockId::Tai)
        .unwrap_or_else(|_| clock_gettime(ClockId::Realtime));
    TaiTime::from_nanos(now.tv_sec.saturating_mul(1_000_000_000) + now.tv_nsec)
}

/// So many bytes of 0, which cost no memory until they are written. `None`: there is none.
fn zeroed(bytes: usize) -> Option<Vec<u8>> {
    // Tried first, because the other ends the program where there is none.
    Vec::<u8>::new().try_reserve_exact(bytes).ok()?;
    Some(vec![0; bytes])
}

#[doc(hidden)] // for its fuzz target
pub mod fuzzing {
    pub use crate::assembly::fuzz as assembly;
    pub use crate::rtp::fuzz as rtp;
    pub use crate::slice::fuzz as slice;
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_that_is_not_there_ends_no_program() {
        assert!(crate::zeroed(isize::MAX as usize).is_none());
        assert_eq!(crate::zeroed(7), Some(vec![0; 7]));
    }
}
