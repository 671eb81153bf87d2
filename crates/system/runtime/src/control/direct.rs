//! Rings between the sessions of a trust domain: who gets one, and when it ends.
//!
//! A trust domain is the sessions of one listener, with `trust = "user"`, and of one user. A source there gives its messages
//! to each sink of the channel by a ring of their own, and the sink reads them where the source has written them; no lane is
//! asked. What the runtime does is here: it makes the ring, hands the descriptors to both, and tells both, and the lane, when
//! it is over. It keeps none of it. Decision 20 says why it is so.
//!
//! Each change of the rings of a source has a number there, its epoch. The source stamps what it gives to the lane with the
//! last one that it has heard of, so the lane knows which sinks have a message already, however late the source hears.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::LazyLock;

use takt_session::layout::DirectBlock;
use takt_session::message::{DirectEnd, Envelope, Reply};
use takt_session::{ErrorCode, Failure, Reliability};
use takt_shm::Arena;

use super::Control;
use super::account::Usage;
use super::listener::FIRST_WITHOUT;
use super::mapping::is_writable;
use super::rings::{Direct, MOST_RINGS, SinkPlace, SourcePlace};
use super::session::{Endpoint, Session};
use crate::ids::SessionId;
use crate::lane::Command;
use crate::policy::Trust;
use crate::slots::{Slot, Slots};
use crate::status::DirectStatus;

/// A ring that begins has a number below; those that are there end, and have one each then, below the largest.
const MOST_EPOCHS: u16 = u16::MAX - 1 - MOST_RINGS as u16;
/// What stands for users that have no number here, unless the operator has set another: different ones may have it.
const NOBODY: u32 = 65534;
/// What the operator has set it to (`kernel.overflowuid`); it counts when a user connects.
static OVERFLOW: LazyLock<u32> = LazyLock::new(|| {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(NOBODY)
});
/// Of what a session is to be told and does not take, so much is kept.
const MOST_UNTOLD: usize = 8192;

/// An endpoint that may have come to have others to share with.
#[derive(Clone, Copy, Debug)]
pub enum Arrival {
    Source(SourcePlace),
    Sink(SinkPlace),
}

/// Whether different users may look like this one.
fn is_nobody(uid: u32, overflow: u32) -> bool {
    uid == NOBODY || uid == overflow
}

fn endpoint<S: Slot>(list: &Slots<S, Endpoint>, at: S) -> Option<&Endpoint> {
    list.get(at).filter(|endpoint| !endpoint.closing)
}

impl Session {
    /// Whether rings may lead to it and from it.
    pub(super) fn is_in_domain(&self) -> bool {
        let there = self.goes_on() && self.leaving_until.is_none();
        there
            && self.unplaced.is_none()
            && self.policy.trust == Trust::User
            && self.tenant < FIRST_WITHOUT
            && !is_nobody(self.uid, *OVERFLOW)
            && self.region().is_some()
    }

    /// Whether a source of it has rings, if there are sinks that take them. Its region is sealed: it would have no source.
    fn gives_rings(&self, source: &Endpoint) -> bool {
        let stream = self.stream(source.stream);
        let best_effort =
            stream.is_ok_and(|stream| stream.qos.reliability == Reliability::BestEffort);
        best_effort && !source.by_lane
    }

    /// The file of its transmit region, if it has one of its own.
    fn region(&self) -> Option<&OwnedFd> {
        self.arena.as_ref()?.region.as_ref()
    }
}

impl Control {
    /// Gives sources and sinks that have just come their rings.
    pub(super) fn share(&mut self) {
        for arrival in std::mem::take(&mut self.arrivals) {
            let found = match arrival {
                Arrival::Source(place) => self.pairs_of_source(place),
                Arrival::Sink(place) => self.pairs_of_sink(place),
            };
            for (source, sink) in found.unwrap_or_default() {
                if let Err(failure) = self.connect_pair(source, sink) {
                    tracing::debug!(source = %source.0, sink = %sink.0, reason = %failure, "no ring: the lane serves the sink");
                }
            }
        }
    }

    fn pairs_of_source(&self, place: SourcePlace) -> Option<Vec<(SourcePlace, SinkPlace)>> {
        let session = self.sessions.get(&place.0).filter(|s| s.is_in_domain())?;
        let source = endpoint(&session.sources, place.1)?;
        if !session.gives_rings(source) {
            return None;
        }
        let others = self.sessions.values();
        let others = others.filter(|other| Self::is_one_domain(session, other));
        let sinks = others.flat_map(|other| {
            let sinks = other.sinks.places().map(|at| (other.id, at));
            sinks.filter(|(_, at)| {
                endpoint(&other.sinks, *at).is_some_and(|s| s.takes_rings(source))
            })
        });
        Some(sinks.map(|sink| (place, sink)).collect())
    }

    fn pairs_of_sink(&self, place: SinkPlace) -> Option<Vec<(SourcePlace, SinkPlace)>> {
        let session = self.sessions.get(&place.0).filter(|s| s.is_in_domain())?;
        let sink = endpoint(&session.sinks, place.1)?;
        let others = self.sessions.values();
        let others = others.filter(|other| Self::is_one_domain(session, other));
        let sources = others.flat_map(|other| {
            let sources = other.sources.places().map(|at| (other.id, at));
            sources.filter(|(_, at)| {
                endpoint(&other.sources, *at)
                    .is_some_and(|source| sink.takes_rings(source) && other.gives_rings(source))
            })
        });
        Some(sources.map(|source| (source, place)).collect())
    }

    /// Whether two sessions are of one domain, and of one lane.
    fn is_one_domain(one: &Session, other: &Session) -> bool {
        one.id != other.id
            && other.is_in_domain()
            && (one.tenant, one.uid, one.lane) == (other.tenant, other.uid, other.lane)
    }

    /// Makes the ring of a pair, unless it has one.
    fn connect_pair(&mut self, source: SourcePlace, sink: SinkPlace) -> Result<(), Failure> {
        let refuse = |text: &str| Failure::new(ErrorCode::Limit, text);
        if self.direct.has(source, sink) {
            return Ok(());
        }
        if let Some(why) = self.direct.refuses(source, sink) {
            return Err(refuse(why));
        }
        let (Some(from), Some(to)) = (self.sessions.get(&source.0), self.sessions.get(&sink.0))
        else {
            return Ok(());
        };
        let ends = (
            endpoint(&from.sources, source.1),
            endpoint(&to.sinks, sink.1),
        );
        let (Some(s), Some(k), Some(region)) = (ends.0, ends.1, from.region()) else {
            return Ok(());
        };
        // Epochs do not come back: a source of very many changes is served by its lane.
        if s.epoch >= MOST_EPOCHS {
            return Err(refuse("the source has had too many rings"));
        }
        let epoch = s.epoch + 1;
        let system = |what: &str, error: &dyn std::fmt::Display| {
            Failure::new(ErrorCode::System, format!("cannot {what}: {error}"))
        };
        let block = DirectBlock { depth: k.depth };
        let (sender, lane, policy) = (s.sender, from.lane, to.policy.clone());
        let region_bytes = from.arena.as_ref().map_or(0, |arena| arena.map.tx_bytes);
        let region = region
            .try_clone()
            .map_err(|e| system("copy a descriptor", &e))?;
        let number = self.next_ring();
        let ring = Arena::create(&format!("takt-ring-{number}"), block.bytes())
            .map_err(|e| system("make a ring", &e))?;
        let usage = Usage {
            memory: ring.len(),
            ..Usage::default()
        };
        let fd = ring.fd().try_clone_to_owned();
        let fd = fd.map_err(|e| system("copy a descriptor", &e))?;
        drop(ring);
        let Some(to) = self.sessions.get_mut(&sink.0) else {
            return Ok(());
        };
        to.charge.add(&policy, usage)?;
        let told = Reply::DirectSink {
            sink: sink.1.0 as u32,
            ring: number,
            sender,
            depth: block.depth,
            session: source.0.0.into(),
            region_bytes,
        };
        // Whoever does not take what it is told is served by its lane.
        if let Err(error) = tell(to, &told, &[&fd, &region]) {
            to.charge.subtract(usage);
            return Err(system("tell the sink", &error));
        }
        if let Some(s) = self.endpoint_of_source(source) {
            s.epoch = epoch;
        }
        // Before the source hears of it: what it stamps with the epoch, the lane understands.
        self.lanes[lane].handle.send(Command::Direct {
            source,
            sink,
            epoch,
            begins: true,
        });
        let ring = Direct {
            source,
            sink,
            usage,
            ended: None,
            sink_told: false,
            let_go: false,
            epoch,
        };
        self.direct.insert(number, ring);
        let told = Reply::DirectSource {
            source: source.1.0 as u32,
            ring: number,
            epoch,
            depth: block.depth,
        };
        let from = self.sessions.get_mut(&source.0);
        let told = from.map_or(Ok(()), |from| tell(from, &told, &[&fd]));
        if let Err(error) = told {
            // The sink keeps the region until it has heard of the end: as of a source that is closed.
            self.end_direct(number, "its source does not take what it is told", false);
            self.close_all(vec![number]);
            return Err(system("tell the source", &error));
        }
        tracing::debug!(ring = number, ?source, ?sink, "ring");
        Ok(())
    }

    fn next_ring(&mut self) -> u32 {
        loop {
            self.last_ring = self.last_ring.wrapping_add(1);
            if self.direct.get(self.last_ring).is_none() {
                return self.last_ring;
            }
        }
    }

    fn endpoint_of_source(&mut self, source: SourcePlace) -> Option<&mut Endpoint> {
        let session = self.sessions.get_mut(&source.0)?;
        session.sources.get_mut(source.1)
    }

    /// A ring is over. `free`: the sink reads none of its messages any more; otherwise it may until its session has gone.
    fn end_direct(&mut self, number: u32, why: &'static str, free: bool) {
        self.end_at_source(number, why, free);
        self.end_at_sink(number);
        if free {
            self.direct.remove(number);
        }
    }

    /// A ring is over for its sink, which may let go of it as soon as nothing is in it.
    fn end_at_sink(&mut self, number: u32) {
        let Some(sink) = self.direct.tell_sink(number) else {
            return;
        };
        let ended = Reply::DirectEnded {
            ring: number,
            epoch: 0,
            free: false,
        };
        if let Some(to) = self.sessions.get_mut(&sink.0) {
            tell_later(to, ended);
        }
    }

    /// A ring is over for its source, which gives it nothing more as soon as it has heard so.
    fn end_at_source(&mut self, number: u32, why: &'static str, free: bool) {
        let Some(ring) = self.direct.get(number) else {
            return;
        };
        let (source, sink, usage, mut epoch) = (ring.source, ring.sink, ring.usage, ring.epoch);
        if self.direct.end(number, why) {
            if let Some(s) = self.endpoint_of_source(source) {
                s.epoch = s.epoch.saturating_add(1);
                epoch = s.epoch;
            }
            self.direct.set_epoch(number, epoch);
            if let Some(from) = self.sessions.get(&source.0) {
                self.lanes[from.lane].handle.send(Command::Direct {
                    source,
                    sink,
                    epoch,
                    begins: false,
                });
            }
            if let Some(to) = self.sessions.get_mut(&sink.0) {
                to.charge.subtract(usage);
            }
        }
        let ended = Reply::DirectEnded {
            ring: number,
            epoch,
            free,
        };
        let told = self
            .sessions
            .get_mut(&source.0)
            .is_none_or(|from| tell_later(from, ended));
        if !told {
            let text = "the application does not take what it is told";
            self.end_session(source.0, Some(Failure::new(ErrorCode::Protocol, text)));
        }
    }

    fn end_all(&mut self, numbers: Vec<u32>, why: &'static str, free: bool) {
        for number in numbers {
            if free || self.direct.get(number).is_some_and(|r| r.ended.is_none()) {
                self.end_direct(number, why, free);
            }
        }
    }

    /// A source gives messages to no sink itself any more.
    pub(super) fn end_direct_of(&mut self, source: SourcePlace) {
        const WHY: &str = "the source waits for room by a descriptor";
        self.end_all(self.direct.of_source(source), WHY, false);
    }

    /// A source is closed. What it has given to sinks they still take.
    pub(super) fn end_direct_from(&mut self, source: SourcePlace) {
        self.end_all(self.direct.of_source(source), "the source is closed", false);
        // Its number may be another's soon; its session is still to hear when its sinks are gone.
        self.close_all(self.direct.of_source(source));
    }

    /// The sources of rings that have ended are closed. A sink may still have messages of theirs.
    fn close_all(&mut self, numbers: Vec<u32>) {
        for number in numbers {
            self.end_at_sink(number);
            self.direct.close(number);
            if self.direct.get(number).is_some_and(|ring| ring.let_go) {
                self.end_direct(number, "the source is closed", true);
            }
        }
    }

    /// A sink is closed: it has given everything back, or never will.
    pub(super) fn end_direct_to(&mut self, sink: SinkPlace) {
        self.end_all(self.direct.of_sink(sink), "the sink is closed", true);
    }

    /// A session's listener is no trust domain any more, or is one of another kind. Sources go on: a sink that let go of a ring
    /// before its source has heard would lose, and not count, what it is given meanwhile.
    pub(super) fn leave_domain(&mut self, id: SessionId) {
        const WHY: &str = "the listener's trust was changed";
        let mut rings = self.direct.of_sources_session(id);
        rings.extend(self.direct.of_sinks_session(id));
        for number in rings {
            if self.direct.get(number).is_some_and(|r| r.ended.is_none()) {
                self.end_at_source(number, WHY, false);
            }
        }
    }

    /// A session ends: it may still read what it has got.
    pub(super) fn end_direct_with(&mut self, id: SessionId) {
        const WHY: &str = "a session has ended";
        self.end_all(self.direct.of_sources_session(id), WHY, false);
        self.end_all(self.direct.of_sinks_session(id), WHY, false);
        // They are kept for their sinks: each counts until the sink has let go of the session's memory.
        self.close_all(self.direct.of_sources_session(id));
    }

    /// Nothing of a session is left. `free`: its application reads nothing any more.
    pub(super) fn forget_direct(&mut self, id: SessionId, free: bool) {
        self.end_direct_with(id);
        let rings = self.direct.of_sinks_session(id);
        match free {
            true => self.end_all(rings, "a session has ended", true),
            false => rings.into_iter().for_each(|ring| self.direct.remove(ring)),
        }
    }

    /// One end has given a ring up.
    pub(super) fn give_direct_up(
        &mut self,
        id: SessionId,
        number: u32,
        reason: DirectEnd,
    ) -> Result<(), Failure> {
        let ring = self.direct.get(number);
        let Some(ring) = ring.filter(|ring| ring.source.0 == id || ring.sink.0 == id) else {
            return Err(Failure::new(
                ErrorCode::NotFound,
                format!("the session has no ring {number}"),
            ));
        };
        if ring.ended.is_some() {
            if reason != DirectEnd::Done {
                return Ok(());
            }
            if ring.source.0 == id {
                self.end_at_sink(number);
            } else if self.direct.let_go(number) {
                self.end_direct(number, "the sink is done with it", true);
            }
            return Ok(());
        }
        let (source, sink) = (ring.source, ring.sink);
        self.direct_given_up += 1;
        let tenant = self.sessions.get(&id).map_or(0, |session| session.tenant);
        if self.may_log(tenant) {
            tracing::warn!(source = %source.0, sink = %sink.0, by = %id, %reason, "a ring was given up: the lane serves the sink");
        }
        let why = match reason {
            DirectEnd::Unusable => "an end could not map it",
            DirectEnd::Slow => "the sink gave nothing back for too long",
            DirectEnd::Impossible => "an end wrote what cannot be",
            DirectEnd::Noise => "the source rang for nothing",
            DirectEnd::Done => "an end wants no more of it",
        };
        self.end_direct(number, why, false);
        Ok(())
    }

    /// Tells an application what it had no room for.
    pub(super) fn tell_untold(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        while let Some(message) = session.untold.pop_front() {
            if let Err(error) = tell(session, &message, &[])
                && error.kind() == io::ErrorKind::WouldBlock
            {
                session.untold.push_front(message);
                return;
            }
        }
    }

    /// The rings of a session's sources.
    pub(super) fn direct_status(&self, id: SessionId) -> Vec<DirectStatus> {
        let rings = self.direct.of_sources_session(id).into_iter();
        let mut all: Vec<DirectStatus> = rings
            .filter_map(|number| {
                let ring = self.direct.get(number)?;
                let session = self.sessions.get(&id)?;
                let source = session.sources.get(ring.source.1)?;
                Some(DirectStatus {
                    ring: number,
                    channel: source.channel?.0,
                    session: ring.sink.0.0.into(),
                    name: self.sessions.get(&ring.sink.0)?.name.clone(),
                    ended: ring.ended.unwrap_or_default().into(),
                })
            })
            .collect();
        all.sort_by_key(|direct| direct.ring);
        all
    }
}

/// Tells an application something unasked, if it has room beside what it is answered.
fn tell(session: &Session, message: &Reply, descriptors: &[&OwnedFd]) -> io::Result<()> {
    // The kernel says so while a quarter of the socket's buffer is taken at most.
    if !is_writable(&session.socket) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let bytes = Envelope {
        request: 0,
        message: message.clone(),
    }
    .encode();
    let descriptors: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
    session.send(&bytes, &descriptors)
}

/// As [`tell`], or when there is room. False: it has not taken very much by now.
fn tell_later(session: &mut Session, message: Reply) -> bool {
    let blocked = session
        .untold
        .is_empty()
        .then(|| tell(session, &message, &[]));
    match blocked {
        // Of any other failure its socket tells by itself: it has gone.
        Some(Ok(())) => true,
        Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => true,
        _ => {
            session.untold.push_back(message);
            session.untold.len() < MOST_UNTOLD
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_be_several_users_is_in_no_domain() {
        assert!(is_nobody(65534, 65534));
        // The operator has set another: of before there may still be files and processes with the usual one.
        assert!(is_nobody(65534, 99) && is_nobody(99, 99));
        assert!(!is_nobody(1000, 99));
    }

    #[test]
    fn what_the_kernel_says_stands_for_users_without_a_number() {
        let said = std::fs::read_to_string("/proc/sys/kernel/overflowuid").expect("proc");
        assert_eq!(said.trim(), OVERFLOW.to_string());
    }
}
