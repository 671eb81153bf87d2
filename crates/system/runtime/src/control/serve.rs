//! Answers the requests of an application.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use takt_session::message::{Envelope, Reply, Request};
use takt_session::{ChannelId, ErrorCode, Failure, Reliability, transport};

use super::Control;
use super::account::Usage;
use super::direct::Arrival;
use super::ends::End;
use super::session::{Finish, OpeningSink, Session, notify_pair};
use crate::ids::SessionId;
use crate::lane::session::LaneSession;
use crate::lane::{Command, SourceTarget, sender_number};
use crate::policy::Policy;
use crate::slots::{SinkSlot, SourceSlot, StreamSlot};

/// Requests answered for one application before others are looked at.
const BURST: usize = 4;

impl Control {
    /// Checks that a tenant may have another sink of a channel: what one message brings from elsewhere is copied to all of
    /// them in one go, so that they are bounded whatever number of sessions it has.
    fn check_crowd(&self, id: SessionId, channel: ChannelId) -> Result<(), Failure> {
        let Some(own) = self.sessions.get(&id) else {
            return Ok(());
        };
        let most = own.policy.channel_sinks();
        let of_tenant =
            |session: &&Session| session.tenant == own.tenant && !session.ending && !session.moving;
        let sessions = self.sessions.values().filter(of_tenant);
        let sinks = sessions.flat_map(|session| session.sinks.iter());
        let on_channel = sinks.filter(|sink| sink.channel == Some(channel) && !sink.closing);
        if on_channel.take(most).count() < most {
            return Ok(());
        }
        Err(Failure::new(
            ErrorCode::Limit,
            format!(
                "tenant `{}` has {most} sinks of channel {channel} and may have no more: close some, use several channels, or ask the operator to raise `endpoints`",
                own.policy.identity
            ),
        ))
    }

    /// Reads and answers what an application has asked.
    pub(super) fn serve(&mut self, id: SessionId) {
        if self
            .sessions
            .get(&id)
            .is_some_and(|session| session.telling && !session.moving)
        {
            self.tell_moves(id);
        }
        self.tell_untold(id);
        for _ in 0..BURST {
            let Some(session) = self.sessions.get(&id) else {
                return;
            };
            if session.ending {
                return;
            }
            let moving = session.moving;
            match transport::receive_bytes(&session.socket) {
                // Whoever asks has not heard yet, and asks again when it is back.
                Ok(Some(_)) if moving => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                _ if moving => return self.end_here(id, None, true),
                Ok(Some(bytes)) => {
                    let envelope = match Envelope::<Request>::decode(&bytes) {
                        Ok(envelope) => envelope,
                        Err(error) => return self.end_session(id, Some(error.into())),
                    };
                    if let Err(failure) = self.answer(id, envelope) {
                        return self.end_session(id, Some(failure));
                    }
                }
                Ok(None) => return self.end_session(id, None),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return self.end_session(
                        id,
                        Some(Failure::new(ErrorCode::Protocol, error.to_string())),
                    );
                }
                Err(_) => return self.end_session(id, None),
            }
        }
    }

    /// Answers one request. An error ends the session.
    fn answer(&mut self, id: SessionId, envelope: Envelope<Request>) -> Result<(), Failure> {
        let request = envelope.request;
        let attaching = matches!(envelope.message, Request::Attach { .. });
        match self.perform(id, request, envelope.message) {
            Ok(Some((reply, descriptors))) => {
                self.reply(id, request, reply, &descriptors)?;
                self.share();
                Ok(())
            }
            // The lane's answer brings the reply.
            Ok(None) => Ok(()),
            Err(failure) if failure.code == ErrorCode::Protocol || attaching => Err(failure),
            Err(failure) => self.reply(id, request, Reply::Failed(failure), &[]),
        }
    }

    pub(super) fn reply<'a>(
        &self,
        id: SessionId,
        request: u32,
        message: Reply,
        descriptors: impl IntoIterator<Item = &'a OwnedFd>,
    ) -> Result<(), Failure> {
        let Some(session) = self.sessions.get(&id) else {
            return Ok(());
        };
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.into_iter().map(AsFd::as_fd).collect();
        let sent = session.send(&Envelope { request, message }.encode(), &borrowed);
        match sent {
            // It has gone, as applications may at any time: its socket says so by itself.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(Failure::new(
                ErrorCode::Protocol,
                format!("the application does not take its replies: {error}"),
            )),
            Ok(()) => Ok(()),
        }
    }

    fn perform(
        &mut self,
        id: SessionId,
        request: u32,
        message: Request,
    ) -> Result<Option<(Reply, Vec<OwnedFd>)>, Failure> {
        let lane = match self.sessions.get(&id) {
            Some(session) if session.finish != Finish::No => return Err(ErrorCode::Closed.into()),
            Some(session) => session.lane,
            None => return Ok(None),
        };
        if self.drain.is_some() {
            return Err(ErrorCode::ShuttingDown.into());
        }
        let handle = self.lanes[lane].handle.clone();
        match message {
            Request::Attach {
                name,
                tx_bytes,
                rx_bytes,
                domain,
            } => {
                let limits = self.config.limits;
                let Some(session) = self.sessions.get_mut(&id) else {
                    return Ok(None);
                };
                let (reply, descriptors) =
                    session.attach(name, tx_bytes, rx_bytes, domain, &limits)?;
                let (name, identity) = (session.name.clone(), session.policy.identity.clone());
                let (tenant, pid) = (session.tenant, session.pid);
                if self.may_log(tenant) {
                    tracing::info!(session = %id, %name, %identity, pid, "application attached");
                }
                Ok(Some((reply, descriptors)))
            }
            Request::OpenStream(qos) => {
                let (reply, warning) = self.open_stream(id, qos)?;
                let tenant = self.sessions.get(&id).map(|session| session.tenant);
                if !warning.is_empty() && tenant.is_some_and(|tenant| self.may_log(tenant)) {
                    tracing::info!(session = %id, %warning, "stream did not get what it asked for");
                }
                Ok(Some((reply, Vec::new())))
            }
            Request::CloseStream(stream) => {
                self.close_stream(id, stream)?;
                Ok(Some((Reply::Closed, Vec::new())))
            }
            Request::OpenSource {
                stream,
                channel,
                depth,
                origin,
                first,
            } => {
                let Some(session) = self.sessions.get_mut(&id) else {
                    return Ok(None);
                };
                session.policy.check_write(channel)?;
                let (source, block) = session.add_source(stream, Some(channel), depth)?;
                self.ends.open(channel, End::Source);
                let (carrier, reliability) = {
                    let stream = session.stream(stream)?;
                    (stream.carrier(), stream.qos.reliability)
                };
                let waits = session.waits;
                let number = self.number(id, origin);
                let sender = sender_number(self.label, number);
                let session = self.sessions.get_mut(&id);
                if let Some(endpoint) = session.and_then(|s| s.sources.get_mut(source)) {
                    endpoint.sender = sender;
                }
                self.arrivals.push(Arrival::Source((id, source)));
                self.map_writer_again(id, Some(channel));
                handle.send(Command::AddSource {
                    session: id,
                    source,
                    block,
                    target: SourceTarget::Channel(channel),
                    carrier,
                    number,
                    first,
                    reliability,
                    waits,
                });
                Ok(Some((
                    Reply::SourceOpened {
                        source: source.0 as u32,
                        block,
                    },
                    Vec::new(),
                )))
            }
            Request::OpenFrameSource { stream, depth } => {
                let Some(session) = self.sessions.get(&id) else {
                    return Ok(None);
                };
                let (endpoint, owner) = self.networks.owner(&session.policy)?;
                let Some(session) = self.sessions.get_mut(&id) else {
                    return Ok(None);
                };
                let (source, block) = session.add_source(stream, None, depth)?;
                let carrier = session.stream(stream)?.carrier();
                let (tenant, waits) = (session.tenant, session.waits);
                let number = self.sources.number(tenant, 0);
                handle.send(Command::AddSource {
                    session: id,
                    source,
                    block,
                    target: SourceTarget::Network(Arc::new(owner)),
                    carrier,
                    number,
                    first: 0,
                    reliability: Reliability::BestEffort,
                    waits,
                });
                let reply = Reply::FrameSourceOpened {
                    source: source.0 as u32,
                    block,
                    endpoint,
                };
                Ok(Some((reply, Vec::new())))
            }
            Request::Resolve {
                destination,
                next_hop,
                known,
            } => {
                let reply = self.resolve(id, request, destination, next_hop, known)?;
                Ok(reply.map(|reply| (reply, Vec::new())))
            }
            Request::OpenSink {
                stream,
                channel,
                depth,
                notify_fd,
                mode,
            } => {
                self.check_crowd(id, channel)?;
                let Some(session) = self.sessions.get_mut(&id) else {
                    return Ok(None);
                };
                let (ours, theirs) = if notify_fd {
                    let (ours, theirs) = notify_pair("the sink's descriptor")?;
                    (Some(ours), Some(theirs))
                } else {
                    (None, None)
                };
                let (sink, block) = session.add_sink(stream, channel, depth, notify_fd, mode)?;
                self.ends.open(channel, End::Sink);
                handle.send(Command::AddSink {
                    session: id,
                    sink,
                    block,
                    channel,
                    notify: ours,
                    mode,
                });
                // An application that has a sink gets what is emitted from then on: not before the lane has it.
                session.opening_sinks.push(OpeningSink {
                    sink,
                    request,
                    block,
                    notify: theirs,
                });
                Ok(None)
            }
            Request::Unserved(counts) => {
                let Some(session) = self.sessions.get_mut(&id) else {
                    return Ok(None);
                };
                session.note_unserved(&counts);
                Ok(Some((Reply::Noted, Vec::new())))
            }
            Request::End => self.finish_session(id, request),
            Request::EndDirect { ring, reason } => {
                self.give_direct_up(id, ring, reason)?;
                Ok(Some((Reply::Noted, Vec::new())))
            }
            Request::TellRoom(source) => self.tell_room(id, SourceSlot(source as usize)),
            Request::Readers(source) => {
                let Some(session) = self.sessions.get_mut(&id) else {
                    return Ok(None);
                };
                let at = SourceSlot(source as usize);
                if session.sources.get(at).is_none() {
                    return Err(Failure::new(
                        ErrorCode::NotFound,
                        format!("the session has no source {source}"),
                    ));
                }
                // Its lane answers: whom it counts gets what is emitted from then on.
                handle.send(Command::Readers {
                    session: id,
                    source: at,
                    request,
                });
                Ok(None)
            }
            Request::CloseSource(source) => {
                let Some(session) = self.sessions.get_mut(&id) else {
                    return Ok(None);
                };
                let at = SourceSlot(source as usize);
                let endpoint = session.sources.get_mut(at);
                // One answer to each: who asks again and again fills nothing.
                let Some(endpoint) = endpoint.filter(|endpoint| endpoint.asked.is_none()) else {
                    return Err(Failure::new(
                        ErrorCode::NotFound,
                        format!("the session has no source {source} that it has not closed"),
                    ));
                };
                endpoint.asked = Some(request);
                if !std::mem::replace(&mut endpoint.closing, true) {
                    handle.send(Command::CloseSource {
                        session: id,
                        source: at,
                    });
                    self.end_direct_from((id, at));
                }
                Ok(None)
            }
            Request::CloseSink(sink) => {
                let Some(session) = self.sessions.get_mut(&id) else {
                    return Ok(None);
                };
                let at = SinkSlot(sink as usize);
                let endpoint = session.sinks.get_mut(at);
                // One answer to each: who asks again and again fills nothing.
                let Some(endpoint) = endpoint.filter(|endpoint| endpoint.asked.is_none()) else {
                    return Err(Failure::new(
                        ErrorCode::NotFound,
                        format!("the session has no sink {sink} that it has not closed"),
                    ));
                };
                endpoint.asked = Some(request);
                if !std::mem::replace(&mut endpoint.closing, true) {
                    handle.send(Command::CloseSink {
                        session: id,
                        sink: at,
                    });
                    self.end_direct_to((id, at));
                    self.wants_changed.insert(id);
                }
                Ok(None)
            }
        }
    }

    /// An application is to be told when there is room at a source.
    fn tell_room(
        &mut self,
        id: SessionId,
        source: SourceSlot,
    ) -> Result<Option<(Reply, Vec<OwnedFd>)>, Failure> {
        let Some(session) = self.sessions.get_mut(&id) else {
            return Ok(None);
        };
        if let Some(notify) = session.tell_room(source)? {
            let handle = &self.lanes[session.lane].handle;
            handle.send(Command::TellRoom {
                session: id,
                notify,
            });
        }
        let copied = session.room.as_ref().map(OwnedFd::try_clone).transpose();
        let copied = copied.map_err(|e| {
            Failure::new(
                ErrorCode::System,
                format!("cannot copy the descriptor that tells of room: {e}"),
            )
        })?;
        self.end_direct_of((id, source));
        Ok(Some((Reply::RoomTold, copied.into_iter().collect())))
    }

    /// A number for a new source of a session: the same when its application opens it again after a restart, so that
    /// sinks know what they have missed. No tenant can choose the number of another's.
    fn number(&mut self, id: SessionId, origin: u64) -> u32 {
        let session = self.sessions.get(&id);
        let (tenant, identity) = session
            .map(|session| (session.tenant, session.policy.identity.clone()))
            .unwrap_or_default();
        let purpose: [&[u8]; 3] = [b"source", &origin.to_le_bytes(), identity.as_bytes()];
        let wished = self.numbers.number(&purpose);
        self.sources.number(tenant, wished)
    }

    /// The lanes that may serve sessions of a policy.
    pub(super) fn lanes_of(&self, policy: &Policy) -> Vec<usize> {
        let all = 0..self.lanes.len();
        match policy.lanes.is_empty() {
            true => all.collect(),
            false => all.filter(|lane| policy.lanes.contains(lane)).collect(),
        }
    }

    /// Closes a stream with its sources and sinks.
    fn close_stream(&mut self, id: SessionId, stream: u32) -> Result<(), Failure> {
        let Some(session) = self.sessions.get_mut(&id) else {
            return Ok(());
        };
        session.stream(stream)?;
        let handle = &self.lanes[session.lane].handle;
        let (mut sources, mut sinks) = (Vec::new(), Vec::new());
        for (at, source) in session.sources.entries_mut() {
            if source.stream == stream && !source.closing {
                source.closing = true;
                sources.push((id, at));
                handle.send(Command::CloseSource {
                    session: session.id,
                    source: at,
                });
            }
        }
        for (at, sink) in session.sinks.entries_mut() {
            if sink.stream == stream && !sink.closing {
                sink.closing = true;
                sinks.push((id, at));
                handle.send(Command::CloseSink {
                    session: session.id,
                    sink: at,
                });
            }
        }
        session.streams.remove(StreamSlot(stream as usize));
        sources
            .into_iter()
            .for_each(|place| self.end_direct_from(place));
        sinks
            .into_iter()
            .for_each(|place| self.end_direct_to(place));
        self.wants_changed.insert(id);
        Ok(())
    }

    /// The lane delivers to a new sink.
    pub(super) fn sink_opened(&mut self, id: SessionId, sink: SinkSlot) {
        self.wants_changed.insert(id);
        self.opened_sinks.push((id, sink));
    }

    /// Tells an application that it has a sink: peers know by now.
    pub(super) fn answer_opened(&mut self, id: SessionId, sink: SinkSlot) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(at) = session.opening_sinks.iter().position(|o| o.sink == sink) else {
            return;
        };
        let opening = session.opening_sinks.swap_remove(at);

        let reply = Reply::SinkOpened {
            sink: sink.0 as u32,
            block: opening.block,
        };
        if let Err(failure) = self.reply(id, opening.request, reply, &opening.notify) {
            return self.end_session(id, Some(failure));
        }
        let session = self.sessions.get_mut(&id);
        if let Some(sink) = session.and_then(|session| session.sinks.get_mut(sink)) {
            sink.told = true;
        }
        self.arrivals.push(Arrival::Sink((id, sink)));
        self.share();
    }

    /// The lane has counted the readers of a source's channel.
    pub(super) fn readers_counted(&mut self, id: SessionId, request: u32, count: u32) {
        if let Err(failure) = self.reply(id, request, Reply::Readers(count), &[]) {
            self.end_session(id, Some(failure));
        }
    }

    /// The lane has sent the last message of a source.
    pub(super) fn source_closed(&mut self, id: SessionId, source: SourceSlot) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let freed = session.free_source(source);
        if let Some(endpoint) = freed.as_ref().filter(|_| !session.ending) {
            self.ends.close(endpoint.channel, End::Source);
        }
        self.map_writer_again(id, freed.and_then(|endpoint| endpoint.channel));
        self.say_closed(id, freed.and_then(|endpoint| endpoint.asked));
    }

    /// The lane has released a sink.
    pub(super) fn sink_closed(&mut self, id: SessionId, sink: SinkSlot) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let freed = session.free_sink(sink);
        if let Some(endpoint) = freed.as_ref().filter(|_| !session.ending) {
            self.ends.close(endpoint.channel, End::Sink);
        }
        self.say_closed(id, freed.and_then(|endpoint| endpoint.asked));
    }

    fn say_closed(&self, id: SessionId, requests: impl IntoIterator<Item = u32>) {
        for request in requests {
            // An application that does not take replies is ended with its next request.
            let _ = self.reply(id, request, Reply::Closed, &[]);
        }
    }

    pub(super) fn say_ended(&self, id: SessionId, failure: &Failure) {
        if let Some(session) = self.sessions.get(&id) {
            end_connection(&session.socket, failure);
        }
    }

    /// Ends a session: with a reason that the application is told, or because it has gone.
    pub(super) fn end_session(&mut self, id: SessionId, reason: Option<Failure>) {
        self.end_here(id, reason, false);
    }

    /// As [`end_session`](Self::end_session). Of one that has `moved`, what was emitted is sent, and what was delivered can be read.
    pub(super) fn end_here(&mut self, id: SessionId, reason: Option<Failure>, moved: bool) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if std::mem::replace(&mut session.ending, true) {
            return;
        }
        self.ends.close_all(session);
        let (name, identity, attached, tenant, left, finish) = (
            session.name.clone(),
            session.policy.identity.clone(),
            session.arena.is_some() && session.unplaced.is_none(),
            session.tenant,
            reason.is_none() || moved,
            session.finish,
        );
        self.end_direct_with(id);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        // No more news from it: its descriptors would stay readable.
        let _ = rustix::event::epoll::delete(&self.strangers, &session.socket);
        if let Some(process) = &session.process {
            let _ = rustix::event::epoll::delete(&self.strangers, process);
        }
        // An application that an operator ends may still read what was delivered to it: no tenant can bring that about. Of
        // the others a child process may hold the memory, or whoever broke the protocol.
        let by_operator =
            |failure: &Failure| matches!(failure.code, ErrorCode::Closed | ErrorCode::ShuttingDown);
        let reads_on = moved || reason.as_ref().is_some_and(by_operator);
        if let Some(arena) = &mut session.arena {
            arena.abandoned = !reads_on;
        }
        if self.may_log(tenant) {
            match &reason {
                Some(failure) => {
                    tracing::warn!(session = %id, %name, %identity, reason = %failure, "session ended by the runtime");
                }
                None => tracing::info!(session = %id, %name, %identity, "application left"),
            }
        }
        if let Some(failure) = reason {
            self.say_ended(id, &failure);
        }
        match (attached, finish, left) {
            // No lane has it.
            (false, _, _) | (_, Finish::Done(_), _) => self.forget_session(id),
            (true, Finish::No, true) => self.leave(id),
            // Its lane sends what was emitted already.
            (true, Finish::Asked(_), true) => {}
            (true, _, false) => self.remove_session(id),
        }
        self.wants_changed.insert(id);
    }

    /// The application ends its session, and keeps the connection for as long as it reads what it has received.
    fn finish_session(
        &mut self,
        id: SessionId,
        request: u32,
    ) -> Result<Option<(Reply, Vec<OwnedFd>)>, Failure> {
        let Some(session) = self.sessions.get_mut(&id) else {
            return Ok(None);
        };
        if session.arena.is_none() {
            return Err(Failure::new(
                ErrorCode::Protocol,
                "the first request of a session must be to attach",
            ));
        }
        session.finish = Finish::Asked(request);
        let endpoints = session.sources.iter_mut().chain(session.sinks.iter_mut());
        endpoints.for_each(|endpoint| endpoint.closing = true);
        self.wants_changed.insert(id);
        let unplaced = session.unplaced.take();
        self.end_direct_with(id);
        self.leave(id);
        if let Some(unplaced) = unplaced {
            // No lane has heard of it.
            self.session_removed(unplaced);
        }
        Ok(None)
    }

    /// Its lane has released a session of which the application keeps the connection: its memory counts on, and
    /// nothing else of it.
    fn session_finished(&mut self, id: SessionId, request: u32) {
        let now = self.now();
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.finish = Finish::Done(session.leaving_until.take().unwrap_or(now));
        if !session.ending {
            self.ends.close_all(session);
        }
        let asked = session.free_all();
        self.say_closed(id, asked.into_iter().chain([request]));
    }

    /// The application has left: its lane sends what it had emitted, for a while. A tenant has as many
    /// such sessions as it may have others: the oldest one gives way.
    fn leave(&mut self, id: SessionId) {
        let until = self.now() + self.config.limits.linger;
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.leaving_until = Some(until);
        // It takes no place of the tenant's any more; what it holds counts on.
        session.charge.subtract(Usage {
            sessions: 1,
            ..Usage::default()
        });
        let policy = session.policy.clone();
        let lane = &self.lanes[session.lane].handle;
        lane.send(Command::LeaveSession(id));
        self.next_tick = self.next_tick.min(until);
        let of_tenant = |s: &&Session| Arc::ptr_eq(&s.policy, &policy);
        let leaving = self.sessions.values().filter(of_tenant);
        let leaving = leaving.filter_map(|s| match s.finish {
            Finish::Done(until) => Some((until, s.id)),
            _ => Some((s.leaving_until?, s.id)),
        });
        let (count, oldest) = leaving.fold((0, None), |(count, oldest), one| {
            (count + 1, Some(oldest.map_or(one, |other| one.min(other))))
        });
        if let Some((_, oldest)) = oldest.filter(|_| count > policy.sessions) {
            let over = self.sessions.get(&oldest).map(|s| s.finish);
            if matches!(over, Some(Finish::Done(_))) {
                let text = format!(
                    "tenant `{}` has ended more than {} sessions of which it still holds messages: release them, or ask the operator to raise `sessions`",
                    policy.identity, policy.sessions
                );
                self.end_session(oldest, Some(Failure::new(ErrorCode::Limit, text)));
            } else {
                self.remove_session(oldest);
            }
        }
    }

    /// Ends the sessions of applications that left and whose messages were not all sent in time.
    pub(super) fn end_overdue(&mut self, now: Duration) {
        let leaving = self
            .sessions
            .values()
            .filter_map(|s| Some((s.leaving_until?, s.id)));
        let (overdue, waiting): (Vec<_>, Vec<_>) = leaving.partition(|(until, _)| now >= *until);
        for (_, id) in overdue {
            self.remove_session(id);
        }
        if let Some((until, _)) = waiting.into_iter().min() {
            self.next_tick = self.next_tick.min(until);
        }
    }

    fn remove_session(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.leaving_until = None;
            let lane = &self.lanes[session.lane].handle;
            lane.send(Command::RemoveSession(id));
        }
    }

    /// Nothing of the session is left on its lane.
    pub(super) fn session_removed(&mut self, removed: Box<LaneSession>) {
        let id = removed.id;
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        self.reaper.release(session.tenant, removed);
        match session.finish {
            Finish::Asked(request) if !session.ending => self.session_finished(id, request),
            _ => self.forget_session(id),
        }
    }

    pub(super) fn forget_session(&mut self, id: SessionId) {
        let now = self.now();
        let abandoned = self.sessions.get(&id).and_then(|s| s.arena.as_ref());
        let reads_on = abandoned.is_some_and(|arena| !arena.abandoned);
        self.forget_direct(id, !reads_on);
        self.begin_after(id);
        // A session that its lane ended by itself says why in an event before this one.
        if let Some(mut session) = self.sessions.remove(&id) {
            if !session.ending {
                self.ends.close_all(&session);
            }
            session.charge.end_session();
            self.lanes[session.lane].sessions -= 1;
            let abandoned = session.counters.abandoned.get();
            if abandoned > 0 && self.may_log(session.tenant) {
                tracing::warn!(session = %id, name = %session.name, identity = %session.policy.identity, abandoned, "messages of a session that has ended were given up");
            }
            if session.arena.is_some() {
                let (identity, counters) = (&session.policy.identity, session.counters.read());
                self.ended.note(identity, counters, now);
            }
            self.reaper.release(session.tenant, session);
        }
    }
}

/// Tells an application why it is over, if it listens, and hangs up.
pub(super) fn end_connection(socket: &OwnedFd, failure: &Failure) {
    let ended = Envelope {
        request: 0,
        message: Reply::Ended(failure.clone()),
    }
    .encode();
    let _ = transport::send(socket, &ended, &[], false);
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
}
