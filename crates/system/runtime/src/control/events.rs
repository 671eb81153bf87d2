//! Whose news a readable descriptor brings.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll;

use crate::ids::SessionId;

/// Whose news a readable descriptor brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Wake,
    Peering,
    /// Nodes on the link that announce themselves.
    Scout,
    /// Some application: which of them, `strangers` says.
    Strangers,
    Listener(u32),
    Session(SessionId),
    /// That of a session's application.
    Process(SessionId),
}

impl Token {
    pub(super) fn pack(self) -> u64 {
        let (kind, value) = match self {
            Token::Wake => (0, 0),
            Token::Peering => (1, 0),
            Token::Listener(value) => (2, value),
            Token::Session(value) => (3, value.0),
            Token::Process(value) => (4, value.0),
            Token::Strangers => (5, 0),
            Token::Scout => (6, 0),
        };
        (kind << 32) | u64::from(value)
    }

    fn unpack(packed: u64) -> Option<Self> {
        let value = packed as u32;
        Some(match packed >> 32 {
            0 => Token::Wake,
            1 => Token::Peering,
            2 => Token::Listener(value),
            3 => Token::Session(SessionId(value)),
            4 => Token::Process(SessionId(value)),
            5 => Token::Strangers,
            6 => Token::Scout,
            _ => return None,
        })
    }
}

/// Waits for events of `epoll`, or for `within`.
pub(super) fn wait_for(
    epoll: &OwnedFd,
    events: &mut Vec<epoll::Event>,
    within: Duration,
) -> Result<(), rustix::io::Errno> {
    let timeout = rustix::time::Timespec {
        tv_sec: within.as_secs() as i64,
        tv_nsec: i64::from(within.subsec_nanos()),
    };
    events.clear();
    let room = rustix::buffer::spare_capacity(events);
    match epoll::wait(epoll, room, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whose news these are.
pub(super) fn tokens(events: &[epoll::Event]) -> impl Iterator<Item = Token> {
    events.iter().filter_map(|event| {
        let data = event.data;
        Token::unpack(data.u64())
    })
}
