//! Why a call failed, with its number in the C interface.

use std::io;
use std::path::PathBuf;

use takt_session::{ErrorCode, Failure};

/// Why a call failed. [`code`](Error::code) gives the number that the C interface uses.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answers on the runtime's socket.
    #[error(
        "cannot reach the runtime at {}: {source}; start taktd, set TAKT_SOCKET, or use the embedded form",
        path.display()
    )]
    NoRuntime {
        /// The socket that was tried.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The runtime went away during the call or before it. The session re-attaches by itself.
    #[error("the runtime went away; the session re-attaches by itself, repeat the call")]
    Disconnected,
    /// The runtime has ended the session for good, or it is gone and reconnecting is switched off.
    #[error("the session has ended: {0}; open a new one once the cause is mended")]
    Ended(Failure),
    /// The runtime refused what was asked; nothing changed.
    #[error("the runtime refused: {0}")]
    Refused(Failure),
    /// No message waits, or no buffer is free.
    #[error("nothing available now; try again or wait")]
    WouldBlock,
    /// The deadline passed.
    #[error("the deadline passed")]
    TimedOut,
    /// A signal handler ran during the wait, or somebody called [`wake`](crate::Waker::wake).
    #[error("a signal or another thread interrupted the wait; repeat it, or end")]
    Interrupted,
    /// An argument is out of range; the text names it.
    #[error("{0}")]
    InvalidArgument(String),
    /// The message is longer than the session can carry.
    #[error(
        "a message of {length} bytes is longer than this session can carry: at most {max} bytes"
    )]
    TooLarge {
        /// Bytes asked for.
        length: usize,
        /// Bytes possible.
        max: usize,
    },
    /// The process has forked since the session was opened.
    #[error("the session belongs to the parent process; open a new one after fork")]
    Forked,
    /// The runtime showed something impossible. The connection is given up and made anew.
    #[error("the runtime broke the session protocol: {0}")]
    Protocol(String),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The sink was closed during the call.
    #[error("the sink is closed")]
    Closed,
}

impl Error {
    /// The number of this error in the C interface.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoRuntime { .. } => ErrorCode::NoRuntime,
            Self::Disconnected => ErrorCode::Disconnected,
            Self::Ended(failure) | Self::Refused(failure) => failure.code,
            Self::WouldBlock => ErrorCode::WouldBlock,
            Self::TimedOut => ErrorCode::TimedOut,
            Self::Interrupted => ErrorCode::Interrupted,
            Self::InvalidArgument(_) => ErrorCode::InvalidArgument,
            Self::TooLarge { .. } => ErrorCode::TooLarge,
            Self::Forked => ErrorCode::Forked,
            Self::Protocol(_) => ErrorCode::Protocol,
            Self::System { .. } => ErrorCode::System,
            Self::Closed => ErrorCode::Closed,
        }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
