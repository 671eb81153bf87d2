//! The sessions of a lane, and what all paths do with them: deliver, count, wake, end.

use slab::Slab;
use takt_session::Failure;

use super::channel::Channel;
use super::session::{Delivery, LaneSession, Meta};
use crate::counters::ChannelCounters;

/// Sessions with what the present round has changed in them.
#[derive(Debug, Default)]
pub struct Tenants {
    pub sessions: Slab<LaneSession>,
    /// Sinks with entries to show at the end of the round: indices of session and sink, each once.
    pending: Vec<(usize, usize)>,
    /// Sessions that broke the protocol in this round.
    failed: Vec<(usize, Failure)>,
}

impl Tenants {
    /// Puts a message into every sink of a channel: one copy each.
    #[inline]
    pub fn deliver_bytes(&mut self, channel: &Channel, meta: &Meta, payload: &[u8]) {
        for &(at, sink) in &channel.sinks {
            let Some(session) = self.sessions.get_mut(at) else {
                continue;
            };
            let result = match session.place(sink, payload.len()) {
                Ok(Ok(chunk)) => {
                    let copied = session.placed(chunk, payload.len()).write_from(0, payload);
                    debug_assert!(copied.is_ok(), "placed memory is as long as asked for");
                    session.deliver(sink, chunk, meta)
                }
                Ok(Err(dropped)) => Ok(dropped),
                Err(failure) => Err(failure),
            };
            self.account(at, sink, &channel.counters, result);
        }
    }

    /// Puts an emitted message into every sink of its channel on this lane: no copy within its own
    /// session, one copy into each other.
    #[inline]
    pub fn deliver_emitted(&mut self, from: usize, chunk: u32, channel: &Channel, meta: &Meta) {
        for &(at, sink) in &channel.sinks {
            let result = if at == from {
                self.deliver_own(at, sink, chunk, meta)
            } else {
                self.deliver_copy(from, at, sink, chunk, meta)
            };
            self.account(at, sink, &channel.counters, result);
        }
    }

    fn deliver_own(
        &mut self,
        at: usize,
        sink: usize,
        chunk: u32,
        meta: &Meta,
    ) -> Result<Delivery, Failure> {
        let Some(session) = self.sessions.get_mut(at) else {
            return Ok(Delivery::DroppedFull);
        };
        if let Some(delivery) = session.deliver_own(sink, chunk, meta)? {
            return Ok(delivery);
        }
        match session.place(sink, meta.length as usize)? {
            Ok(place) => {
                let payload = session.emitted(chunk, meta.length);
                let copied = payload.copy_to(session.placed(place, meta.length as usize));
                debug_assert!(copied.is_ok(), "placed memory is as long as asked for");
                session.deliver(sink, place, meta)
            }
            Err(dropped) => Ok(dropped),
        }
    }

    fn deliver_copy(
        &mut self,
        from: usize,
        at: usize,
        sink: usize,
        chunk: u32,
        meta: &Meta,
    ) -> Result<Delivery, Failure> {
        let Some((source, session)) = self.sessions.get2_mut(from, at) else {
            return Ok(Delivery::DroppedFull);
        };
        match session.place(sink, meta.length as usize)? {
            Ok(place) => {
                let payload = source.emitted(chunk, meta.length);
                let copied = payload.copy_to(session.placed(place, meta.length as usize));
                debug_assert!(copied.is_ok(), "placed memory is as long as asked for");
                session.deliver(sink, place, meta)
            }
            Err(dropped) => Ok(dropped),
        }
    }

    /// Books what became of a message at a sink.
    #[inline]
    pub fn account(
        &mut self,
        at: usize,
        sink: usize,
        counters: &ChannelCounters,
        result: Result<Delivery, Failure>,
    ) {
        match result {
            Ok(delivery) => {
                match delivery {
                    Delivery::Delivered => counters.delivered.add(1),
                    Delivery::DroppedFull => counters.dropped_full.add(1),
                    Delivery::DroppedMemory => counters.dropped_memory.add(1),
                }
                self.mark_pending(at, sink);
            }
            Err(failure) => self.fail(at, failure),
        }
    }

    /// Corrects the count of lost messages of a channel's sinks.
    pub fn add_lost(&mut self, channel: &Channel, change: i64) {
        for &(at, sink) in &channel.sinks {
            if let Some(session) = self.sessions.get_mut(at) {
                session.add_lost(sink, change);
                self.mark_pending(at, sink);
            }
        }
    }

    #[inline]
    fn mark_pending(&mut self, at: usize, sink: usize) {
        if let Some(session) = self.sessions.get_mut(at)
            && let Some(Some(s)) = session.sinks.get_mut(sink)
            && !s.pending
        {
            s.pending = true;
            // Room was made when the sink was added.
            self.pending.push((at, sink));
        }
    }

    /// Makes room for one more sink in the round's list.
    pub fn reserve_pending(&mut self) {
        let sinks: usize = self.sessions.iter().map(|(_, s)| s.sinks.len()).sum();
        self.pending.reserve(sinks + 1);
    }

    /// Notes that a session broke the protocol: it ends with the round.
    pub fn fail(&mut self, at: usize, failure: Failure) {
        if !self.failed.iter().any(|(known, _)| *known == at) {
            self.failed.push((at, failure));
        }
    }

    /// Shows what the round has put into sinks, and wakes who waits.
    #[inline]
    pub fn show(&mut self) {
        for (at, sink) in self.pending.drain(..) {
            if let Some(session) = self.sessions.get_mut(at) {
                session.show(sink);
            }
        }
    }

    /// Sessions to end.
    pub fn take_failed(&mut self) -> Vec<(usize, Failure)> {
        std::mem::take(&mut self.failed)
    }

    /// Whether a session is to be ended.
    pub fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }
}
