//! Leaving cleanly: what applications have emitted is sent, and everybody is told.

use std::sync::mpsc::Sender;
use std::time::Duration;

use takt_session::{ErrorCode, Failure};

use super::Control;
use crate::ids::SessionId;
use crate::lane::Command;

/// A drain under way.
pub(super) struct Drain {
    pub(super) deadline: Duration,
    /// Told whether everything was sent.
    done: Sender<bool>,
}

impl Control {
    pub(super) fn begin_drain(&mut self, within: Duration, done: Sender<bool>) {
        self.drain = Some(Drain {
            deadline: self.now() + within,
            done,
        });
        let paths: Vec<_> = self
            .listeners
            .values()
            .map(|l| l.config.path.clone())
            .collect();
        for path in paths {
            self.remove_listener(&path);
        }
        // What is in the rings of a source that closes is still sent.
        for session in self.sessions.values_mut() {
            for (at, source) in session.sources.entries_mut() {
                if !std::mem::replace(&mut source.closing, true) {
                    self.lanes[session.lane].handle.send(Command::CloseSource {
                        session: session.id,
                        source: at,
                    });
                }
            }
        }
        self.next_tick = self.now();
        self.check_drain();
    }

    pub(super) fn check_drain(&mut self) {
        let Some(drain) = &self.drain else { return };
        let busy = self
            .sessions
            .values()
            .filter(|s| !s.ending || s.leaving_until.is_some())
            .any(|s| !s.sources.is_empty());
        if busy && self.now() < drain.deadline {
            return;
        }
        // Peers that believe it complete would not count what is given up.
        self.incomplete |= busy;
        let ids: Vec<SessionId> = self
            .sessions
            .values()
            .filter(|s| !s.ending)
            .map(|s| s.id)
            .collect();
        for id in ids {
            self.end_session(id, Some(Failure::from(ErrorCode::ShuttingDown)));
        }
        self.say_goodbye();
        if let Some(drain) = self.drain.take() {
            // Whoever asked may have gone.
            let _ = drain.done.send(!busy);
        }
    }
}
