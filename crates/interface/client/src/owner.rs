//! What holds a session and its streams open: the last handle of either closes it.

use std::convert::Infallible;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use takt_session::Qos;
use takt_session::message::Request;

use crate::control::Shared;

/// How long closing a session waits for what was emitted to be sent.
const FLUSH: Duration = Duration::from_secs(1);

/// Holds a session open.
pub(crate) struct Owner {
    pub(crate) shared: Arc<Shared>,
    /// Ends when the background thread has ended.
    gone: Mutex<Receiver<Infallible>>,
}

/// Holds a stream open.
pub(crate) struct StreamCore {
    pub(crate) owner: Arc<Owner>,
    pub(crate) key: u32,
    pub(crate) qos: Qos,
}

impl Owner {
    /// `gone` ends when the background thread has ended.
    pub(crate) fn new(shared: Arc<Shared>, gone: Receiver<Infallible>) -> Self {
        Self {
            shared,
            gone: Mutex::new(gone),
        }
    }

    /// Sends what was emitted, and ends the session.
    pub(crate) fn end(&self) {
        if self.shared.slot.forked() {
            // The parent's: not ours to close, and no thread of it is here.
            return;
        }
        let mut control = self.shared.lock();
        let lingering = std::mem::take(&mut control.lingering);
        let idle = lingering.is_empty() && control.sources.is_empty() && control.sinks.is_empty();
        drop(control);
        if !idle {
            let deadline = Instant::now() + FLUSH;
            // Answered once everything that was emitted is sent.
            let _ = self.shared.request_until(Request::End, deadline);
        }
        self.shared.lock().closing = true;
        self.shared.wake_reader();
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        // An error is the end that is waited for: nothing is ever sent.
        let _ = gone.recv();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.end();
    }
}

impl Drop for StreamCore {
    fn drop(&mut self) {
        let shared = &self.owner.shared;
        if shared.slot.forked() {
            return;
        }
        let mut control = shared.lock();
        if let Some(record) = control.streams.get_mut(&self.key) {
            record.closing = true;
        }
        let closed = control.take_closed_streams();
        drop(control);
        for request in closed {
            shared.post(request);
        }
    }
}
