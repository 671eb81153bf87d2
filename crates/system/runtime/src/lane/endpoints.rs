//! How sessions, sources, sinks and the channels between them come and go in a lane's tables.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll;
use takt_session::layout::{SinkBlock, SourceBlock};
use takt_session::{ChannelId, ErrorCode, Failure, Reliability, SinkMode};

use super::Lane;
use super::mailbox::{Event, SourceTarget};
use super::parking::FIRST_BELL;
use super::remote::Carrier;
use super::session::{self, LaneSession, LaneSource};
use super::track::sender_number;
use crate::ids::SessionId;
use crate::slots::{ChannelSlot, SessionSlot, SinkSlot, SourceSlot};

/// Looks that it counts as to free what a closed sink holds of a message, and to end a session beside what it has: a system
/// call, and all lists of its tenant.
const OF_MESSAGE: usize = 8;
pub(super) const OF_SESSION: usize = 1024;

/// Messages that are let go of in later rounds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Closing {
    /// What a closed sink holds. `keep`: sources may have emitted it.
    Sink {
        session: SessionId,
        sink: SinkSlot,
        keep: bool,
    },
    /// What was kept of closed sinks of a session.
    Kept(SessionId),
}

impl Lane {
    /// Takes a session in.
    pub(super) fn add_session(&mut self, session: LaneSession) {
        let id = session.id;
        let at = self.state.tenants.insert(session);
        // Never read: edge-triggered, so that no application can block the lane through it.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(FIRST_BELL + at.0 as u64);
        let sessions = &self.state.tenants.sessions;
        let added = sessions.get(at).map_or(Ok(()), |session| {
            epoll::add(&self.epoll, session.bell.fd(), data, flags)
        });
        let tenants = self.state.tenants.numbers();
        self.state.local.set_tenants(tenants);
        for port in &mut self.ports {
            if let Some(departures) = &mut port.departures {
                departures.set_tenants(tenants);
            }
        }
        self.by_session.insert(id, at);
        if let Err(error) = added {
            let text = format!("cannot watch the session's doorbell: {error}");
            self.state
                .tenants
                .fail(at, Failure::new(ErrorCode::System, text));
        }
    }

    /// Takes a source in. `None`: there is none of this number.
    #[allow(clippy::too_many_arguments)] // the fields of one command
    pub(super) fn add_source(
        &mut self,
        session: SessionId,
        source: SourceSlot,
        block: SourceBlock,
        target: SourceTarget,
        carrier: Carrier,
        (number, first): (u32, u64),
        reliability: Reliability,
    ) -> Option<()> {
        let &at = self.by_session.get(&session)?;
        let target = match target {
            SourceTarget::Channel(channel) => {
                session::Target::Channel(self.open_channel(channel.0))
            }
            SourceTarget::Network(owner) => session::Target::Network(owner),
        };
        let s = self.state.tenants.sessions.get_mut(at)?;
        let names = (number, sender_number(self.state.label, number));
        match LaneSource::new(s.arena(), block, target.clone(), carrier, names, first) {
            Ok(new) => {
                let left = new.left();
                s.sources.put(source, new);
                if let session::Target::Channel(channel) = target
                    && let Some(channel) = self.state.channels.get_mut(channel)
                {
                    channel.sources += 1;
                    self.events.send(Event::SourceOpened {
                        lane: self.index,
                        channel: channel.id,
                        number,
                        left,
                    });
                }
                self.make_reliable(at, source, reliability);
                // Its doorbell may have been taken while there was no ring to look at.
                self.state.tenants.wait(at);
                Some(())
            }
            Err(error) => {
                let text = format!("cannot attach source {source}: {error}");
                self.state
                    .tenants
                    .fail(at, Failure::new(ErrorCode::System, text));
                None
            }
        }
    }

    /// Nothing is taken from a source's ring for now. It was added with the same command: nothing was taken before.
    pub(super) fn hold(&mut self, session: SessionId, source: SourceSlot) {
        let at = self.by_session.get(&session);
        let session = at.and_then(|&at| self.state.tenants.sessions.get_mut(at));
        if let Some(source) = session.and_then(|session| session.sources.get_mut(source)) {
            source.waits = true;
        }
    }

    /// Sources of a session that have waited do no more.
    pub(super) fn begin(&mut self, session: SessionId) {
        let Some(&at) = self.by_session.get(&session) else {
            return;
        };
        if let Some(session) = self.state.tenants.sessions.get_mut(at) {
            session.begin();
        }
        self.state.tenants.wait(at);
    }

    /// Something else carries what is taken from a source's ring from now on, and what is sent again.
    pub(super) fn carry(&mut self, session: SessionId, source: SourceSlot, carrier: Carrier) {
        let at = self.by_session.get(&session);
        let session = at.and_then(|&at| self.state.tenants.sessions.get_mut(at));
        let Some(source) = session.and_then(|session| session.sources.get_mut(source)) else {
            return;
        };
        source.carrier = carrier;
        if let Some(entry) = source.reliable {
            self.state.carry_reliable(entry, carrier);
        }
    }

    /// No more will be emitted at a source.
    pub(super) fn close_source(&mut self, session: SessionId, source: SourceSlot) {
        let Some(&at) = self.by_session.get(&session) else {
            return;
        };
        let Some(s) = self.state.tenants.sessions.get_mut(at) else {
            return;
        };
        match s.close_source(source) {
            Ok(()) => self.state.tenants.wait(at),
            Err(failure) => self.state.tenants.fail(at, failure),
        }
    }

    pub(super) fn add_sink(
        &mut self,
        session: SessionId,
        sink: SinkSlot,
        block: SinkBlock,
        channel: ChannelId,
        notify: Option<OwnedFd>,
        mode: SinkMode,
    ) {
        let Some(&at) = self.by_session.get(&session) else {
            return;
        };
        let channel = self.open_channel(channel.0);
        let Some(s) = self.state.tenants.sessions.get_mut(at) else {
            return;
        };
        match s.add_sink(sink, block, channel, notify, mode) {
            Ok(()) => {
                let tenant = s.tenant;
                self.state.channels.add_sink(channel, tenant, at, sink);
                self.state.tenants.sink_added(at);
                // Before it is said to be there: from then on it gets what is emitted.
                self.state.listener_came(channel, Some((at, sink)));
                self.events.send(Event::SinkOpened { session, sink });
            }
            Err(error) => {
                let text = format!("cannot attach sink {sink}: {error}");
                self.state
                    .tenants
                    .fail(at, Failure::new(ErrorCode::System, text));
            }
        }
    }

    /// A source gives its messages to a sink itself, from this epoch on, or does no more.
    pub(super) fn direct(
        &mut self,
        (session, source): (SessionId, SourceSlot),
        sink: (SessionId, SinkSlot),
        epoch: u16,
        begins: bool,
    ) {
        let at = (
            self.by_session.get(&session).copied(),
            self.by_session.get(&sink.0),
        );
        let (Some(at), reader) = at else { return };
        let reader = reader.map(|reader| (*reader, sink.1));
        let sessions = &mut self.state.tenants.sessions;
        let Some(s) = sessions.get_mut(at).and_then(|s| s.sources.get_mut(source)) else {
            return;
        };
        let session::Target::Channel(channel) = s.target else {
            return;
        };
        let Some(channel) = self.state.channels.get_mut(channel) else {
            return;
        };
        if s.direct.epoch == 0 {
            channel.direct.push((at, source));
        }
        let direct = Arc::make_mut(&mut s.direct);
        direct.epoch = direct.epoch.max(epoch);
        // Who has gone is nobody's concern any more.
        direct.retain(|number| channel.sinks.get(number).is_some());
        let number = reader.and_then(|reader| channel.sinks.number_of(reader));
        match number {
            Some(number) if begins => direct.begin(number, epoch),
            Some(number) => direct.end(number, epoch),
            None => {}
        }
        self.state.looks += channel.sinks.len();
        self.state.count_listeners((at, source));
        let sessions = &mut self.state.tenants.sessions;
        if begins
            && let Some((reader, sink)) = reader
            && let Some(session) = sessions.get_mut(reader)
        {
            // It has got it and may not have been shown it: there may be many to be woken.
            session.publish(sink);
        }
        if let Some(session) = sessions.get(at) {
            session.tell_given(source);
        }
    }

    /// A session is told by this descriptor when messages are complete.
    pub(super) fn tell_room(&mut self, session: SessionId, notify: OwnedFd) {
        let Some(&at) = self.by_session.get(&session) else {
            return;
        };
        let session = self.state.tenants.sessions.get_mut(at);
        if let Some(Err(failure)) = session.map(|session| session.tell_room(notify)) {
            self.state.tenants.fail(at, failure);
        }
    }

    /// Sinks here that get what the source emits, and lanes elsewhere.
    pub(super) fn readers(&mut self, session: SessionId, source: SourceSlot) -> u32 {
        let mut looks = 0;
        let mut count = || {
            let &at = self.by_session.get(&session)?;
            let session = self.state.tenants.sessions.get(at)?;
            let session::Target::Channel(channel) = session.sources.get(source)?.target else {
                return None;
            };
            let channel = self.state.channels.get(channel)?;
            let sinks = channel.sinks.iter();
            looks += channel.sinks.len();
            let here = sinks.filter(|&(other, sink)| other != at || session.hears_itself(sink));
            u32::try_from(here.count() + channel.destinations.len()).ok()
        };
        let count = count().unwrap_or(0);
        self.state.looks += looks;
        count
    }

    pub(super) fn open_channel(&mut self, id: u64) -> ChannelSlot {
        let (at, new) = self.state.channels.open(id);
        if new && let Some(channel) = self.state.channels.get(at) {
            let counters = channel.counters.clone();
            self.events.send(Event::ChannelOpened {
                lane: self.index,
                channel: id,
                counters,
            });
        }
        at
    }

    pub(super) fn close_channel_if_unused(&mut self, at: ChannelSlot) {
        let unused = self.state.channels.get(at).is_some_and(|c| c.is_unused());
        if !unused {
            return;
        }
        while let Some(assembly) = self.state.reassembly.matching(|key| key.channel == at) {
            self.state.abandon(assembly);
        }
        if let Some(channel) = self.state.channels.close_unused(at) {
            self.state.last_channel = None;
            self.events.send(Event::ChannelClosed {
                lane: self.index,
                channel,
            });
        }
    }

    pub(super) fn remove_source(&mut self, at: SessionSlot, source: SourceSlot) {
        let session_at = at;
        let Some(session) = self.state.tenants.sessions.get_mut(at) else {
            return;
        };
        let Some(removed) = session.sources.remove(source) else {
            return;
        };
        removed.end();
        if let Some(entry) = removed.reliable {
            self.state.reliable.remove_source(entry);
        }
        if let session::Target::Channel(at) = removed.target {
            if let Some(channel) = self.state.channels.get_mut(at) {
                channel.sources -= 1;
                if removed.direct.epoch > 0 {
                    channel
                        .direct
                        .retain(|place| *place != (session_at, source));
                }
                channel
                    .reliable
                    .retain(|other| Some(*other) != removed.reliable);
                // A copy that was begun will not be ended.
                let given = removed.current.iter().chain(removed.due.front());
                for copying in given.filter_map(|message| message.copying) {
                    if let Some((session, sink)) = channel.sinks.get(copying.number)
                        && let Some(session) = self.state.tenants.sessions.get_mut(session)
                    {
                        session.withdraw(sink, copying.chunk);
                    }
                }
            }
            self.close_channel_if_unused(at);
        }
        self.events.send(Event::SourceEnded {
            lane: self.index,
            number: removed.number,
        });
    }

    pub(super) fn remove_sink(&mut self, at: SessionSlot, sink: SinkSlot) {
        let others = |session, other| session != at || other != sink;
        let reassembly = &mut self.state.reassembly;
        self.state.looks += reassembly.retain_targets(|target| others(target.session, target.sink));
        let Some(session) = self.state.tenants.sessions.get_mut(at) else {
            return;
        };
        let Some((removed, looks, keep)) = session.remove_sink(sink) else {
            return;
        };
        self.state.looks += looks;
        let session = session.id;
        self.state.closing.push_back(Closing::Sink {
            session,
            sink,
            keep,
        });
        self.state.retain_reliable_targets(removed.channel, others);
        self.state.tenants.sinks_removed(at, 1);
        let channel = self.state.channels.get(removed.channel);
        self.state.looks += channel.map_or(0, |channel| channel.sinks.len());
        // What waited for memory of its own session may be complete now.
        self.state.tenants.wait(at);
        let channels = &mut self.state.channels;
        if channels.retain_sinks(removed.channel, |entry| *entry != (at, sink)) {
            self.state.forget_reliable_on(removed.channel);
        } else {
            self.state.move_reliable_places(removed.channel);
        }
        self.state.listeners_went(removed.channel);
        self.close_channel_if_unused(removed.channel);
    }

    /// Lets go of what closed sinks hold, until so much was looked at in this round. Each is closed, and its number free, when it holds nothing.
    pub(super) fn let_go_of_sinks(&mut self, most: usize) {
        while self.state.looks < most
            && let Some(&closing) = self.state.closing.front()
        {
            self.state.looks += 1;
            let (Closing::Sink { session: id, .. } | Closing::Kept(id)) = closing;
            let at = self.by_session.get(&id).copied();
            let session = at.and_then(|at| self.state.tenants.sessions.get_mut(at));
            let Some(session) = session else {
                // It went with its session.
                self.state.closing.pop_front();
                continue;
            };
            let most = most.saturating_sub(self.state.looks) / OF_MESSAGE + 1;
            let (gone, all) = match closing {
                Closing::Sink { sink, keep, .. } => session.let_go(sink, keep, most),
                Closing::Kept(_) => {
                    self.state.looks += session.sources.count();
                    session.free_orphans(most)
                }
            };
            self.state.looks += gone * OF_MESSAGE;
            if !all {
                continue;
            }
            self.state.closing.pop_front();
            if let Closing::Sink { sink, keep, .. } = closing {
                self.events.send(Event::SinkClosed { session: id, sink });
                if keep {
                    self.state.closing.push_back(Closing::Kept(id));
                }
            }
        }
    }

    /// The application has left: nobody reads its sinks any more, and what it had emitted is sent.
    pub(super) fn leave_session(&mut self, id: SessionId) {
        let Some(&at) = self.by_session.get(&id) else {
            return;
        };
        let Some(session) = self.state.tenants.sessions.get_mut(at) else {
            return;
        };
        let left = session.leave();
        self.remove_sinks(at);
        self.state.tenants.wait(at);
        match left {
            Ok(()) => self.remove_if_left(at),
            Err(failure) => self.state.tenants.fail(at, failure),
        }
    }

    pub(super) fn remove_if_left(&mut self, at: SessionSlot) {
        let session = self.state.tenants.sessions.get(at);
        if let Some(id) = session.filter(|s| s.has_left()).map(|s| s.id) {
            self.remove_session(id);
        }
    }

    pub(super) fn remove_session(&mut self, id: SessionId) {
        let Some(at) = self.by_session.remove(&id) else {
            return;
        };
        self.remove_sinks(at);
        let Some(session) = self.state.tenants.sessions.get_mut(at) else {
            return;
        };
        session.abandon();
        self.state.looks += OF_SESSION + session.sources.count();
        let sources = session.sources.places();
        if session.departing > 0 {
            self.withdraw(|piece| piece.session == at);
            self.state.withdraw_here(at);
        }
        for source in sources {
            self.remove_source(at, source);
        }
        let Some(session) = self.state.tenants.remove(at) else {
            return;
        };
        // Fails only if adding did.
        let _ = epoll::delete(&self.epoll, session.bell.fd());
        self.events.send(Event::SessionRemoved(Box::new(session)));
    }

    /// Takes all sinks of a session whose application has left out of their channels, each channel once.
    pub(super) fn remove_sinks(&mut self, at: SessionSlot) {
        let reassembly = &mut self.state.reassembly;
        self.state.looks += reassembly.retain_targets(|target| target.session != at);
        let Some(session) = self.state.tenants.sessions.get_mut(at) else {
            return;
        };
        let (mut channels, own) = session.remove_sinks();
        self.state.looks += own;
        self.state.tenants.sinks_removed(at, channels.len());
        channels.sort_unstable();
        channels.dedup();
        for index in channels {
            self.state
                .retain_reliable_targets(index, |session, _| session != at);
            let sinks = self.state.channels.get(index).map(|c| c.sinks.len());
            self.state.looks += sinks.unwrap_or(0) + 1;
            let channels = &mut self.state.channels;
            if channels.retain_sinks(index, |(session, _)| *session != at) {
                self.state.forget_reliable_on(index);
            } else {
                self.state.move_reliable_places(index);
            }
            self.state.listeners_went(index);
            self.close_channel_if_unused(index);
        }
    }
}
