//! A sink's descriptor for event loops: the same one for the sink's whole life.
//!
//! It is an epoll instance with two descriptors in it: the one that the runtime signals, which changes
//! when the session attaches anew, and an eventfd that tells of such changes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, epoll};
use rustix::net::RecvFlags;

/// An eventfd: readable from a signal until it is drained.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(rustix::event::eventfd(0, flags)?))
    }

    /// Not readable until the next signal.
    pub(crate) fn drain(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub(crate) fn signal(&self) {
        // EAGAIN: the counter is full, so it is readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What an event loop watches for a sink.
#[derive(Debug)]
pub(crate) struct Notify {
    epoll: OwnedFd,
    event: Event,
    signal: Mutex<Option<OwnedFd>>,
}

impl Notify {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = Event::new()?;
        epoll::add(
            &epoll,
            &event,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )?;
        Ok(Self {
            epoll,
            event,
            signal: Mutex::new(None),
        })
    }

    /// Watches the runtime's descriptor in the place of a former one.
    pub(crate) fn watch(&self, signal: OwnedFd) -> io::Result<()> {
        epoll::add(
            &self.epoll,
            &signal,
            epoll::EventData::new_u64(1),
            epoll::EventFlags::IN,
        )?;
        self.replace(Some(signal));
        Ok(())
    }

    /// The runtime is gone: its end of the descriptor would be readable for ever.
    pub(crate) fn forget(&self) {
        self.replace(None);
    }

    fn replace(&self, signal: Option<OwnedFd>) {
        let mut guard = self.signal.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = guard.as_ref() {
            // It may have copies in forked children, so closing it would not remove it.
            let _ = epoll::delete(&self.epoll, old);
        }
        *guard = signal;
    }

    /// Makes it readable: the session's state has changed.
    pub(crate) fn event(&self) {
        self.event.signal();
    }

    /// Takes all signals: not readable until the next.
    pub(crate) fn drain(&self) {
        self.event.drain();
        let guard = self.signal.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(signal) = guard.as_ref() {
            let mut bytes = [0; 64];
            while rustix::net::recv(signal, &mut bytes[..], RecvFlags::DONTWAIT)
                .is_ok_and(|(count, _)| count == bytes.len())
            {}
        }
    }
}

impl AsFd for Notify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
