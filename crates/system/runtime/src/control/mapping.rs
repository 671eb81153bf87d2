//! Which datapath carries a stream: when it is opened, and again when the mapping or what the node has changes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use takt_datapath::{Capabilities, DatapathKind};
use takt_session::message::{Envelope, Reply};
use takt_session::{ChannelId, ErrorCode, Failure, Qos, transport};

use super::session::{Session, Stream};
use super::{Control, RuntimeHandle, SERVE_FOR, Stopped, Token};
use crate::ids::SessionId;
use crate::lane::Command;
use crate::policy::Mapping;
use crate::slots::StreamSlot;

/// Sessions that are mapped anew before others are served.
const SESSIONS_IN_TURN: usize = 16;
/// Channels that are mapped to a datapath.
const MOST_CHANNELS: usize = 4096;

/// Why a channel is not mapped to a datapath.
#[derive(Debug, thiserror::Error)]
pub enum MapChannelError {
    /// No such datapath.
    #[error("there is no datapath `{name}` here: this node has {have}")]
    Datapath {
        /// As asked for.
        name: String,
        /// Those there are.
        have: String,
    },
    /// The table is full.
    #[error("{MOST_CHANNELS} channels are mapped to datapaths, the limit: map some back")]
    Full,
}

impl RuntimeHandle {
    /// Has the streams with sources of a channel carried by a datapath, those that are opened later as well, until the channel is
    /// mapped back (`None`) or the node restarts. Streams whose applications have asked for one datapath and no other stay, and while
    /// the datapath does not work, or a stream's lane does not carry it, the node's mapping decides. Returns when streams have moved: how many may.
    ///
    /// # Errors
    /// [`Stopped`]; inside, [`MapChannelError`]: then nothing has changed.
    pub fn map_channel(
        &self,
        channel: u64,
        datapath: Option<String>,
    ) -> Result<Result<usize, MapChannelError>, Stopped> {
        let mapped = self.ask(move |c| c.map_channel(channel, datapath))?;
        if mapped.is_ok() {
            self.await_moves()?;
        }
        Ok(mapped)
    }
}

/// What lanes carry, and what they do not carry and why.
struct Choice {
    carried: Vec<(DatapathKind, Capabilities)>,
    unavailable: Vec<(String, String)>,
    /// No datapath at all is on these lanes.
    nothing: bool,
}

/// What a stream is mapped to.
struct Mapped {
    port: usize,
    datapath: String,
    warning: String,
    rule: String,
}

/// A session is to be mapped anew, behind the others, once.
fn line_up(to_map: &mut VecDeque<SessionId>, session: &mut Session) {
    if !std::mem::replace(&mut session.to_map, true) {
        to_map.push_back(session.id);
    }
}

impl Choice {
    /// Nothing but this datapath, if there is a choice of it.
    fn of(&self, kind: DatapathKind) -> Option<Self> {
        let found = self.carried.iter().find(|(known, _)| *known == kind)?;
        Some(Self {
            carried: vec![found.clone()],
            unavailable: self.unavailable.clone(),
            nothing: false,
        })
    }
}

impl Control {
    /// What there is to choose from for sessions of these lanes, for streams that ask for one and no other or for those
    /// that do not.
    fn choice(&self, lanes: &[usize], explicit: bool) -> Choice {
        let carrier = |kind| {
            let mut lanes = lanes.iter().copied();
            lanes.any(|lane| self.lanes[lane].port_of(kind).is_some())
        };
        let mut unavailable = self.unavailable.clone();
        let mut carried = Vec::new();
        let mut nothing = true;
        for (kind, capabilities) in &self.datapaths {
            let name = kind.to_string();
            if !carrier(*kind) {
                let why = format!(
                    "only lanes {:?} carry it, and this session is on {lanes:?}: open a stream that needs it first, in a session of its own",
                    self.config.lanes_of(&name)
                );
                unavailable.push((name, why));
                continue;
            }
            nothing = false;
            match self.faults.fault(*kind, explicit) {
                None => carried.push((*kind, capabilities.clone())),
                Some(why) => unavailable.push((name, why)),
            }
        }
        if carried.is_empty() && !explicit && !nothing {
            // Nothing but what has just returned.
            return self.choice(lanes, true);
        }
        Choice {
            carried,
            unavailable,
            nothing,
        }
    }

    /// Maps a tenant's stream to one of what there is.
    fn map(
        &self,
        tenant: &str,
        qos: Qos,
        choice: &Choice,
    ) -> Result<(DatapathKind, Mapping), Failure> {
        let scheduled = |kind| self.schedules.contains_key(&kind);
        let (carried, unavailable) = (&choice.carried, &choice.unavailable);
        let policy = &self.config.mapping;
        let mapping = policy.map(tenant, qos, carried, unavailable, scheduled)?;
        Ok((carried[mapping.datapath].0, mapping))
    }

    /// Of these lanes those that serve streams of a class; refused where none does.
    pub(super) fn lanes_of_class(
        &self,
        lanes: &[usize],
        qos: Qos,
        placed: bool,
    ) -> Result<Vec<usize>, Failure> {
        let class = qos.time_sensitivity.class();
        let Some(given) = self.config.class_lanes.get(&class.number()) else {
            return Ok(lanes.to_vec());
        };
        let both: Vec<usize> = lanes
            .iter()
            .copied()
            .filter(|l| given.contains(l))
            .collect();
        if !both.is_empty() {
            return Ok(both);
        }
        let remedy = match placed {
            true => "open it first, in a session of its own",
            false => "ask the operator for one of them in `lanes` of its listener",
        };
        Err(Failure::new(
            ErrorCode::NotPermitted,
            format!(
                "lanes {given:?} serve streams of class {class}, and this session is on {lanes:?}: {remedy}"
            ),
        ))
    }

    /// Checks that a lane may serve the streams of a session, and carries a datapath for each.
    pub(super) fn check_carries(&self, lane: usize, session: &Session) -> Result<(), Failure> {
        for stream in session.streams.iter() {
            self.lanes_of_class(&[lane], stream.qos, false)?;
            let choice = self.choice(&[lane], stream.qos.datapath.is_some());
            if choice.nothing {
                return Err(Failure::new(
                    ErrorCode::NotPermitted,
                    format!("lane {lane} carries no datapath: name another"),
                ));
            }
            self.map(&session.policy.identity, stream.qos, &choice)?;
        }
        Ok(())
    }

    /// The best datapath for a tenant's stream of those that lanes carry.
    fn choose(
        &self,
        tenant: &str,
        qos: Qos,
        lanes: &[usize],
    ) -> Result<(DatapathKind, Mapping), Failure> {
        let choice = self.choice(lanes, qos.datapath.is_some());
        if choice.nothing {
            return Err(Failure::new(
                ErrorCode::NotPermitted,
                format!(
                    "lanes {lanes:?}, which serve tenant `{tenant}`, carry no datapath: ask the operator for another lane in `lanes` of its listener",
                ),
            ));
        }
        self.map(tenant, qos, &choice)
    }

    /// Opens a stream on the best datapath that the session's lane carries. The first one chooses the lane, among
    /// those of its tenant and its class.
    pub(super) fn open_stream(
        &mut self,
        id: SessionId,
        qos: Qos,
    ) -> Result<(Reply, String), Failure> {
        let Some(session) = self.sessions.get(&id) else {
            return Err(ErrorCode::Closed.into());
        };
        session.policy.check_class(qos)?;
        let lanes = match session.unplaced {
            Some(_) => self.lanes_of(&session.policy),
            None => vec![session.lane],
        };
        let mut lanes = self.lanes_of_class(&lanes, qos, session.unplaced.is_none())?;
        let now = self.now();
        let wished = match session.unplaced {
            Some(_) => self.moves.wished(session, now),
            None => None,
        };
        let wished = wished.filter(|lane| lanes.contains(lane));
        let tenant = &session.policy.identity;
        // What that lane carries, as the session's streams were checked for it, unless it has failed since.
        let there = wished.and_then(|lane| Some((lane, self.choose(tenant, qos, &[lane]).ok()?)));
        let (kind, Mapping { warning, rule, .. }) = match there {
            Some((lane, chosen)) => {
                lanes = vec![lane];
                chosen
            }
            None => self.choose(tenant, qos, &lanes)?,
        };
        let place = lanes
            .iter()
            .filter_map(|&lane| Some((lane, self.lanes[lane].port_of(kind)?)))
            // It counts at the lane that it was given when it came.
            .min_by_key(|(lane, _)| {
                self.lanes[*lane].sessions - usize::from(*lane == session.lane)
            });
        let Some((lane, port)) = place else {
            return Err(ErrorCode::Closed.into());
        };
        let Some(session) = self.sessions.get_mut(&id) else {
            return Err(ErrorCode::Closed.into());
        };
        let datapath = kind.to_string();
        let stream = session.add_stream(Stream {
            qos,
            port,
            datapath: datapath.clone(),
            warning: warning.clone(),
            rule,
            moved: 0,
            untold: false,
        })?;
        if let Some(unplaced) = session.unplaced.take() {
            self.lanes[session.lane].sessions -= 1;
            session.lane = lane;
            let moved = self.moves.take(session, now);
            let waits = moved.as_ref().is_some_and(|moved| self.follow(id, moved));
            if let Some(session) = self.sessions.get_mut(&id) {
                (session.moved, session.waits) = (moved, waits);
            }
            self.lanes[lane].sessions += 1;
            self.lanes[lane].handle.send(Command::AddSession(unplaced));
        }
        let reply = Reply::StreamOpened {
            stream,
            datapath,
            warning: warning.clone(),
        };
        Ok((reply, warning))
    }

    fn map_channel(
        &mut self,
        channel: u64,
        datapath: Option<String>,
    ) -> Result<usize, MapChannelError> {
        match datapath {
            None => _ = self.mapped_channels.remove(&channel),
            Some(name) => {
                let Some(kind) = self.kind_of(&name) else {
                    let have = self.kinds();
                    return Err(MapChannelError::Datapath { name, have });
                };
                let known = self.mapped_channels.contains_key(&channel);
                if !known && self.mapped_channels.len() >= MOST_CHANNELS {
                    return Err(MapChannelError::Full);
                }
                self.mapped_channels.insert(channel, kind);
            }
        }
        let mut streams = 0;
        for session in self.sessions.values_mut() {
            let written = session.streams_that_write(channel);
            if !written.is_empty() {
                line_up(&mut self.to_map, session);
            }
            let free = written.iter().filter_map(|at| session.streams.get(*at));
            streams += free.filter(|stream| stream.qos.datapath.is_none()).count();
        }
        Ok(streams)
    }

    /// A source has come to a channel, or is gone: its stream may be carried by another datapath than before.
    pub(super) fn map_writer_again(&mut self, id: SessionId, channel: Option<ChannelId>) {
        let mapped = channel.is_some_and(|channel| self.mapped_channels.contains_key(&channel.0));
        if let Some(session) = self.sessions.get_mut(&id).filter(|_| mapped) {
            line_up(&mut self.to_map, session);
        }
    }

    /// The datapaths that the channels of a session's streams are mapped to; the lowest channel's, where those of a stream differ.
    fn mapped_by_channel(&self, session: &Session) -> BTreeMap<StreamSlot, (u64, DatapathKind)> {
        let mut mapped = BTreeMap::new();
        if self.mapped_channels.is_empty() {
            return mapped;
        }
        for source in session.sources.iter().filter(|source| !source.closing) {
            if let Some(ChannelId(id)) = source.channel
                && let Some(kind) = self.mapped_channels.get(&id)
            {
                let stream = StreamSlot(source.stream as usize);
                let lowest = mapped.entry(stream).or_insert((id, *kind));
                if id < lowest.0 {
                    *lowest = (id, *kind);
                }
            }
        }
        mapped
    }

    /// Maps every open stream anew, in turns between which others are served. Messages that a lane has begun to send
    /// still leave as they were begun; those after them leave by the new datapath.
    pub(super) fn map_again(&mut self) {
        for session in self.sessions.values_mut() {
            line_up(&mut self.to_map, session);
        }
    }

    /// Maps the streams of some of the sessions that are to be mapped anew.
    pub(super) fn map_some(&mut self) {
        let until = self.now() + SERVE_FOR;
        for _ in 0..SESSIONS_IN_TURN {
            // Tenants cause some of it, by opening sources of channels that are mapped.
            if self.now() >= until {
                return;
            }
            let Some(id) = self.to_map.pop_front() else {
                return;
            };
            self.map_session_again(id);
        }
    }

    fn map_session_again(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.to_map = false;
        }
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        if session.ending || session.unplaced.is_some() || session.arena.is_none() {
            return;
        }
        let lane = session.lane;
        let tenant = &session.policy.identity;
        let [choice, explicit] = [false, true].map(|explicit| self.choice(&[lane], explicit));
        let by_channel = self.mapped_by_channel(session);
        let mut moves = Vec::new();
        for (number, stream) in session.streams.entries() {
            let (choice, by_channel) = match stream.qos.datapath {
                Some(_) => (&explicit, None),
                None => (&choice, by_channel.get(&number)),
            };
            let alone = by_channel.and_then(|(channel, kind)| Some((channel, choice.of(*kind)?)));
            let choice = alone.as_ref().map_or(choice, |(_, alone)| alone);
            let mapped = self.map(tenant, stream.qos, choice);
            let mapped = mapped.and_then(|(kind, Mapping { warning, rule, .. })| {
                let rule = match &alone {
                    Some((channel, _)) => format!("channel {channel}"),
                    None => rule,
                };
                Ok(Mapped {
                    port: self.lanes[lane].port_of(kind).ok_or(ErrorCode::Closed)?,
                    datapath: kind.to_string(),
                    warning,
                    rule,
                })
            });
            let mapped = mapped.unwrap_or_else(|failure| Mapped {
                // It asked for that one and no other, or there is none: it keeps its port, and reaches nobody meanwhile.
                port: stream.port,
                datapath: stream.datapath.clone(),
                warning: failure.message,
                rule: stream.rule.clone(),
            });
            let now = (&mapped.datapath, &mapped.warning, &mapped.rule);
            if now != (&stream.datapath, &stream.warning, &stream.rule) {
                moves.push((number, mapped));
            }
        }
        for (number, mapped) in moves {
            self.move_stream(id, number, mapped);
        }
        self.tell_moves(id);
    }

    /// Tells an application where its streams are by now, as far as that fits beside what it is answered; the rest, of
    /// each stream the last, when it has taken some of it.
    pub(super) fn tell_moves(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id).filter(|s| !s.ending) else {
            return;
        };
        let (mut left, mut failure) = (false, None);
        for (number, stream) in session.streams.entries_mut() {
            if !stream.untold {
                continue;
            }
            failure = session.waking.failure();
            if failure.is_some() {
                break;
            }
            let moved = Envelope {
                request: 0,
                message: Reply::StreamMoved {
                    stream: number.0 as u32,
                    datapath: stream.datapath.clone(),
                    warning: stream.warning.clone(),
                },
            };
            // The kernel says so while a quarter of the socket's buffer is taken at most.
            left = !is_writable(&session.socket)
                || matches!(
                    session.waking.by(|| transport::send(&session.socket, &moved.encode(), &[], false)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock
                );
            if left {
                break;
            }
            // Of any other failure its socket tells by itself: it has gone.
            stream.untold = false;
        }
        if failure.is_some() {
            return self.end_session(id, failure);
        }
        if std::mem::replace(&mut session.telling, left) != left {
            let token = Token::Session(id).pack();
            let flags = match left {
                true => EventFlags::IN | EventFlags::OUT,
                false => EventFlags::IN,
            };
            let data = epoll::EventData::new_u64(token);
            // Without it, it is told with its next request.
            let _ = epoll::modify(&self.strangers, &session.socket, data, flags);
        }
    }

    fn move_stream(&mut self, id: SessionId, number: StreamSlot, to: Mapped) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(stream) = session.streams.get_mut(number) else {
            return;
        };
        if stream.datapath != to.datapath {
            stream.moved += 1;
            self.streams_moved += 1;
            tracing::info!(session = %id, application = %session.name, stream = %number, from = %stream.datapath, to = %to.datapath, warning = %to.warning, "a stream has moved");
        }
        stream.untold |= (&stream.datapath, &stream.warning) != (&to.datapath, &to.warning);
        stream.port = to.port;
        (stream.datapath, stream.warning, stream.rule) = (to.datapath, to.warning, to.rule);
        let carrier = stream.carrier();
        let handle = &self.lanes[session.lane].handle;
        let sources = session.sources.entries();
        for (source, endpoint) in sources {
            if endpoint.stream as usize == number.0 {
                handle.send(Command::Carry {
                    session: id,
                    source,
                    carrier,
                });
            }
        }
    }
}

pub(super) fn is_writable(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    let now = Timespec::default();
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::OUT)
}
