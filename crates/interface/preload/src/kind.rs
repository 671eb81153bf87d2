//! Which sockets the preload knows how to read. Apart from how a socket's kind is found out, so that a fuzz target can
//! include it.

/// What a socket sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// UDP; `six`: of the family AF_INET6, which sends over both versions of IP.
    Udp {
        /// See there.
        six: bool,
    },
    /// Whole frames.
    Frames,
    /// What is behind the Ethernet header.
    Packets,
}
