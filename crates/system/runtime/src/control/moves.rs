//! Sessions that are moved to other lanes: they are ended there, attach again, and are served by the lane that was named.

use std::collections::VecDeque;
use std::time::Duration;

use takt_session::{ErrorCode, Failure};

use super::Control;
use super::listener::FIRST_WITHOUT;
use super::session::Session;
use crate::ids::SessionId;

/// How long the lane waits for a session that is to come back: several of a client's attempts to connect.
const WAITED_FOR: Duration = Duration::from_secs(10);
/// Sessions that are waited for at a time, of all tenants.
const MOST: usize = 1024;

/// A session that is to come back, by what is known of it before it opens anything.
#[derive(Debug)]
struct Expected {
    tenant: u32,
    pid: i32,
    name: String,
    lane: usize,
    since: Duration,
    until: Duration,
}

/// Sessions that are to come back.
#[derive(Debug, Default)]
pub struct Moves(VecDeque<Expected>);

impl Moves {
    fn expect(&mut self, session: &Session, lane: usize, now: Duration) {
        self.0.retain(|one| one.until > now);
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(Expected {
            tenant: session.tenant,
            pid: session.pid,
            name: session.name.clone(),
            lane,
            since: now,
            until: now + WAITED_FOR,
        });
    }

    /// The lane that a session is moved to, if it is one that was waited for.
    pub(super) fn take(&mut self, session: &Session, now: Duration) -> Option<usize> {
        self.0.retain(|one| one.until > now);
        let is_it = |one: &Expected| {
            let known = (one.tenant, one.pid) == (session.tenant, session.pid);
            known && one.name == session.name && session.since >= one.since
        };
        let at = self.0.iter().position(is_it)?;
        self.0.remove(at).map(|one| one.lane)
    }
}

impl Control {
    /// Ends a session so that it comes back on another lane, which has to carry all that it has open.
    pub(super) fn move_session(&mut self, id: SessionId, lane: usize) -> Result<(), Failure> {
        let refuse = |code, text: String| Err(Failure::new(code, text));
        let there = |session: &&Session| session.arena.is_some() && session.goes_on();
        let Some(session) = self.sessions.get(&id).filter(there) else {
            return refuse(
                ErrorCode::NotFound,
                format!("there is no session {id}: see `takt session list`"),
            );
        };
        if session.tenant >= FIRST_WITHOUT {
            return refuse(
                ErrorCode::NotPermitted,
                format!("session {id} did not come by a listener's socket and cannot come again"),
            );
        }
        let lanes = self.lanes_of(&session.policy);
        if !lanes.contains(&lane) {
            return refuse(
                ErrorCode::NotPermitted,
                format!(
                    "lanes {lanes:?} serve tenant `{}`: name one of them, or extend `lanes` of its listener",
                    session.policy.identity
                ),
            );
        }
        if session.unplaced.is_none() && session.lane == lane {
            return refuse(
                ErrorCode::InvalidArgument,
                format!("session {id} is on lane {lane}"),
            );
        }
        self.check_carries(lane, session)?;
        let now = self.now();
        self.moves.expect(session, lane, now);
        let text = format!("moved to lane {lane} by the operator: attach again");
        let reason = Failure::new(ErrorCode::Disconnected, text);
        self.end_here(id, Some(reason), true);
        Ok(())
    }
}
