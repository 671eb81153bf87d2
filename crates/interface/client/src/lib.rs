//! The channel API of an application (naaas-thesis-2024, sections 6.3.1 and 6.3.2).
//!
//! A [`Session`] attaches the application to the runtime of its node. A [`Stream`] is a set of quality
//! requirements ([`Qos`]); within it, [`Source`]s write channels and [`Sink`]s read them, on this node or
//! elsewhere. Messages are written and read in place: a [`Buffer`] is memory of the runtime's to send from,
//! a [`Message`] is memory of the runtime's that was received into.
//!
//! ```no_run
//! use takt::{ChannelId, Qos, Session, Wait};
//!
//! let session = Session::open()?;
//! let stream = session.stream(Qos::fast())?;
//! let source = stream.source(ChannelId(7))?;
//! let sink = stream.sink(ChannelId(7))?;
//!
//! let mut buffer = source.buffer(5)?;
//! buffer.copy_from_slice(b"hello");
//! buffer.emit()?;
//!
//! let message = sink.consume(Wait::Forever)?;
//! assert_eq!(&*message, b"hello");
//! # Ok::<(), takt::Error>(())
//! ```
//!
//! # Threads
//! [`Session`] and [`Stream`] are shared freely. A [`Source`] or [`Sink`] may move between threads, and one
//! thread at a time uses it: threads open one each.
//!
//! # Signals
//! A wait that sleeps when a signal handler runs on its thread fails with [`Error::Interrupted`], whether or not
//! the handler was installed with `SA_RESTART`. A handler that runs in the microseconds before the sleep is not
//! noticed, as with any blocking call. [`Waker::wake`] ends a wait from another thread and is always noticed.
//!
//! # When the runtime goes away
//! Calls under way fail with [`Error::Disconnected`]. The session looks for the runtime, attaches again and
//! opens its streams, sources and sinks again by itself; handles stay valid. Messages that were on their
//! way are counted: [`Source::lost_at_disconnect`], [`SinkCounters::lost_at_disconnect`].
//!
//! # fork and exec
//! A session belongs to the process that opened it. In a forked child every call fails with
//! [`Error::Forked`], and buffers and messages must not be touched: their memory is not there. The child
//! may drop what it inherited, and open a session of its own. All descriptors are close-on-exec.
//!
//! Not here: any runtime. The embedded form is the crate `takt-embedded`.

#![deny(unsafe_code)] // but for `sys`, `payload` and `fork::handler`

mod attachment;
mod callback;
mod connect;
mod control;
#[doc(hidden)] // for the preload
pub mod descriptors;
mod direct;
mod error;
mod fork;
mod frame;
mod gaps;
#[doc(hidden)] // for the preload and its command
pub mod grid;
mod interrupt;
mod lent;
mod mapping;
mod memory;
mod notify;
mod owner;
mod payload;
mod progress;
mod reader;
mod room;
mod session;
mod sink;
mod source;
mod stream;
mod sys;
#[cfg(test)]
mod testing;
mod wait;
mod wake;

pub use callback::CallbackSink;
pub use error::Error;
#[doc(hidden)] // for the preload
pub use fork::after_fork;
#[doc(hidden)] // for threads of what stands on the channels
pub use fork::forks;
pub use frame::{FrameBuffer, FrameOptions, FrameSource};
pub use mapping::Mapping;
pub use progress::Progress;
pub use session::{Session, SessionBuilder};
pub use sink::{Message, Sink, SinkCounters, SinkOptions};
pub use source::{Buffer, NotForwarded, Outcome, Source, SourceOptions, Token};
pub use stream::Stream;
#[doc(hidden)] // as `forks`
pub use sys::without_signals;
pub use wait::Wait;
pub use wake::Waker;

pub use takt_session::unserved;
pub use takt_session::{
    Acceleration, BadName, ChannelId, DEFAULT_SOCKET, DatapathName, Endpoint, ErrorCode, Failure,
    NotADatapathName, Qos, Reliability, ResourceUse, SOCKET_VARIABLE, SlowSinks, TimeSensitivity,
    place,
};
pub use takt_time::{TaiTime, TrafficClass};
