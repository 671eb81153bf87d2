//! What chronyd says about its source: the `tracking` report of its monitoring protocol, version 6, as `chronyc
//! tracking` shows it.
//!
//! A codec of our own, because the only library for it (chrony-candm) has a licence that programs under ours
//! cannot link (GPL-2.0). Requests and replies are structures of fixed layout in network order; a request is as long
//! as its reply, so that nobody can use a chronyd to multiply traffic. Monitoring is open to everyone on the
//! machine, over UDP port 323 of loopback or the Unix socket of chronyd.

mod tracking;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::datagram::Asker;

pub use tracking::{Leap, Reference, ReplyError, Tracking, parse, request};

/// Where chronyd takes questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `cmdport` on `bindcmdaddress`: 127.0.0.1:323 by default.
    Udp(SocketAddr),
    /// Its Unix socket: /run/chrony/chronyd.sock by default. Needs the right to write next to it.
    Unix(PathBuf),
}

impl Default for Address {
    fn default() -> Self {
        Self::Udp(SocketAddr::from(([127, 0, 0, 1], 323)))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Why chronyd has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ChronyError {
    /// Nobody listens, or no answer came.
    #[error("chronyd at {address} does not answer: {source}")]
    Silent {
        /// Where.
        address: Address,
        /// The kernel's words.
        source: io::Error,
    },
    /// The answer is none.
    #[error("chronyd at {address} answers {source}")]
    Reply {
        /// Where.
        address: Address,
        /// What is wrong with it.
        source: ReplyError,
    },
}

impl ChronyError {
    /// Whether there is no chronyd, rather than one that does not work.
    pub fn nobody(&self) -> bool {
        matches!(self, Self::Silent { source, .. } if crate::observer::nobody(source))
    }
}

/// Asks chronyd.
///
/// # Errors
/// [`ChronyError`].
pub fn read(address: &Address) -> Result<Tracking, ChronyError> {
    let silent = |source| ChronyError::Silent {
        address: address.clone(),
        source,
    };
    let asker = match address {
        Address::Udp(address) => Asker::udp(*address),
        Address::Unix(path) => Asker::unix(path),
    }
    .map_err(silent)?;
    // Tells this answer from a late one to someone who had the port before.
    let sequence = std::process::id() ^ (crate::sys::tai().as_nanos() as u32);
    asker.send(&request(sequence)).map_err(silent)?;
    let answer = asker.receive(|reply| match parse(reply, sequence) {
        Err(ReplyError::Sequence { .. }) => None,
        answer => Some(answer),
    });
    answer
        .map_err(silent)?
        .map_err(|source| ChronyError::Reply {
            address: address.clone(),
            source,
        })
}
