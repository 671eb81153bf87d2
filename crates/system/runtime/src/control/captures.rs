//! Captures that operators begin and end.

use std::collections::HashMap;

use super::Control;
use crate::capture::{self, CaptureError, MOST_CAPTURES, Source};
use crate::lane::Command;

/// Longest datagram, or frame, that is captured whole: the longest that UDP can carry.
const LONGEST: usize = 1 << 16;

/// The captures that run.
#[derive(Default)]
pub(super) struct Captures {
    numbers: Vec<u64>,
    last: u64,
}

impl Control {
    /// The identity of each tenant, by its number.
    pub(super) fn identities(&self) -> HashMap<u32, String> {
        let listeners = self.listeners.iter();
        let listeners = listeners.map(|(id, listener)| (*id, &listener.policy.identity));
        let sessions = self.sessions.values();
        let sessions = sessions.map(|session| (session.tenant, &session.policy.identity));
        let all = listeners.chain(sessions);
        all.map(|(id, identity)| (id, identity.clone())).collect()
    }

    /// Begins a capture of what the tenants with these identities send and get; of all, if none is named. Its number, and a ring
    /// of each lane.
    pub(super) fn begin_capture(
        &mut self,
        wanted: &[String],
        snap: usize,
    ) -> Result<(u64, Vec<Source>), CaptureError> {
        if self.captures.numbers.len() >= MOST_CAPTURES {
            return Err(CaptureError::TooMany);
        }
        let identities = self.identities();
        let has = |name: &String| identities.values().any(|identity| identity == name);
        if let Some(unknown) = wanted.iter().find(|name| !has(name)) {
            return Err(CaptureError::Unknown(unknown.clone()));
        }
        let tenants = identities.iter();
        let tenants = tenants.filter(|(_, identity)| wanted.contains(identity));
        let tenants: Box<[u32]> = tenants.map(|(tenant, _)| *tenant).collect();
        self.captures.last += 1;
        let number = self.captures.last;
        self.captures.numbers.push(number);
        let sources = self.lanes.iter().map(|lane| {
            let (tap, source) = capture::ends(number, tenants.clone(), snap, LONGEST);
            lane.handle.send(Command::Tap(tap));
            source
        });
        tracing::info!(capture = number, identities = ?wanted, "a capture of what tenants send and get begins");
        Ok((number, sources.collect()))
    }

    /// Ends a capture.
    pub(super) fn end_capture(&mut self, number: u64) {
        self.captures.numbers.retain(|other| *other != number);
        for lane in &self.lanes {
            lane.handle.send(Command::EndTap(number));
        }
        tracing::info!(capture = number, "the capture has ended");
    }
}
