//! Error codes that cross the session socket and the C interface.

use std::fmt;

macro_rules! codes {
    ($( $(#[$doc:meta])* $name:ident = $value:literal, $text:literal; )*) => {
        /// Why a call failed. The numbers are part of the C interface: additive only.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum ErrorCode { $( $(#[$doc])* $name = $value, )* }

        impl ErrorCode {
            /// Every code, for tables and tests.
            pub const ALL: &'static [ErrorCode] = &[ $( ErrorCode::$name, )* ];

            /// The code with this number.
            pub fn from_number(number: i32) -> Option<Self> {
                match number { $( $value => Some(Self::$name), )* _ => None }
            }

            /// What it means and what to do, one lower-case line.
            pub fn text(self) -> &'static str {
                match self { $( Self::$name => $text, )* }
            }
        }
    };
}

codes! {
    /// The runtime went away during the call.
    Disconnected = -1, "the runtime went away; the session re-attaches by itself, repeat the call";
    /// No message waits, or no buffer is free.
    WouldBlock = -2, "nothing available now; try again or wait";
    /// The deadline passed.
    TimedOut = -3, "the deadline passed";
    /// An argument is out of range.
    InvalidArgument = -4, "an argument is out of range";
    /// The policy of the socket does not allow it.
    NotPermitted = -5, "the policy of this socket does not allow it; ask the operator of the node";
    /// The arena or the node's memory for it is exhausted.
    NoMemory = -6, "out of buffer memory; release buffers, wait for emitted ones, or ask for a larger arena";
    /// The message is longer than the session can carry.
    TooLarge = -7, "the message is longer than this session can carry";
    /// Application and runtime speak different protocol versions.
    Version = -8, "application and runtime speak different protocol versions; upgrade the older one";
    /// The other side broke the protocol.
    Protocol = -9, "the session protocol was broken; the session has ended";
    /// No such stream, source or sink.
    NotFound = -10, "no such stream, source or sink in this session";
    /// A limit on streams, sources, sinks or sessions is reached.
    Limit = -11, "a limit of this session or node is reached; close what is unused";
    /// A system call failed.
    System = -12, "a system call failed";
    /// The process forked; a session belongs to the process that opened it.
    Forked = -13, "the session belongs to the parent process; open a new one after fork";
    /// No runtime answers on the socket.
    NoRuntime = -14, "no runtime answers; start taktd, set TAKT_SOCKET, or allow the embedded form";
    /// The runtime is shutting down.
    ShuttingDown = -15, "the runtime is shutting down";
    /// The session was closed, or ended by the runtime.
    Closed = -16, "the session is closed";
    /// A signal or another thread interrupted a wait.
    Interrupted = -17, "a signal or another thread interrupted the wait; repeat it, or end";
    /// The node does not have what the call names.
    NotAvailable = -18, "this node does not have what is asked for; ask for something else, or its operator";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A refusal: the code and a sentence that names the value at fault and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The class of error.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
}

impl Failure {
    /// A refusal with its sentence.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

impl From<ErrorCode> for Failure {
    fn from(code: ErrorCode) -> Self {
        Self::new(code, code.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_its_number_and_is_negative() {
        for &code in ErrorCode::ALL {
            assert!((code as i32) < 0);
            assert_eq!(ErrorCode::from_number(code as i32), Some(code));
        }
        assert_eq!(ErrorCode::from_number(0), None);
    }
}
