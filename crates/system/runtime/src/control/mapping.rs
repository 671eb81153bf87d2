//! Which datapath carries a stream: when it is opened, and again when the mapping or what the node has changes.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use takt_datapath::{Capabilities, DatapathKind};
use takt_session::message::{Envelope, Reply};
use takt_session::{ErrorCode, Failure, Qos, transport};

use super::session::Stream;
use super::{Control, Token};
use crate::lane::Command;
use crate::policy::Mapping;

/// Sessions that are mapped anew before others are served.
const SESSIONS_IN_TURN: usize = 16;

/// What lanes carry, and what they do not carry and why.
struct Choice {
    carried: Vec<(DatapathKind, Capabilities)>,
    unavailable: Vec<(String, String)>,
}

impl Control {
    /// What there is to choose from for sessions of these lanes.
    fn choice(&self, lanes: &[usize]) -> Choice {
        let carrier = |kind| {
            let mut lanes = lanes.iter().copied();
            lanes.any(|lane| self.lanes[lane].port_of(kind).is_some())
        };
        let (carried, elsewhere): (Vec<_>, Vec<_>) =
            (self.datapaths.iter()).partition(|(kind, _)| carrier(*kind));
        let mut unavailable = self.unavailable.clone();
        unavailable.extend(elsewhere.iter().map(|(kind, _)| {
            let name = kind.to_string();
            let why = format!(
                "only lanes {:?} carry it, and this session is on {lanes:?}: open a stream that needs it first, in a session of its own",
                self.config.lanes_of(&name)
            );
            (name, why)
        }));
        Choice {
            carried: carried.into_iter().cloned().collect(),
            unavailable,
        }
    }

    /// Maps a stream to one of what there is.
    fn map(&self, qos: Qos, choice: &Choice) -> Result<(DatapathKind, String), Failure> {
        let scheduled = |kind| self.schedules.contains_key(&kind);
        let (carried, unavailable) = (&choice.carried, &choice.unavailable);
        let Mapping { datapath, warning } =
            (self.config.mapping).map(qos, carried, unavailable, scheduled)?;
        Ok((carried[datapath].0, warning))
    }

    /// Opens a stream on the best datapath that the session's lane carries. The first one chooses the lane, among
    /// those of its tenant.
    pub(super) fn open_stream(&mut self, id: u32, qos: Qos) -> Result<(Reply, String), Failure> {
        let Some(session) = self.sessions.get(&id) else {
            return Err(ErrorCode::Closed.into());
        };
        session.policy.check_class(qos)?;
        let lanes = match session.unplaced {
            Some(_) => self.lanes_of(&session.policy),
            None => vec![session.lane],
        };
        let choice = self.choice(&lanes);
        if choice.carried.is_empty() {
            return Err(Failure::new(
                ErrorCode::NotPermitted,
                format!(
                    "lanes {lanes:?}, which serve tenant `{}`, carry no datapath: ask the operator for another lane in `lanes` of its listener",
                    session.policy.identity
                ),
            ));
        }
        let (kind, warning) = self.map(qos, &choice)?;
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
            moved: 0,
            untold: false,
        })?;
        if let Some(unplaced) = session.unplaced.take() {
            self.lanes[session.lane].sessions -= 1;
            session.lane = lane;
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

    /// Maps every open stream anew, in turns between which others are served. Messages that a lane has begun to send
    /// still leave as they were begun; those after them leave by the new datapath.
    pub(super) fn map_again(&mut self) {
        self.to_map = self.sessions.keys().copied().collect();
    }

    /// Maps the streams of some of the sessions that are to be mapped anew.
    pub(super) fn map_some(&mut self) {
        for _ in 0..SESSIONS_IN_TURN {
            let Some(id) = self.to_map.pop() else { return };
            self.map_session_again(id);
        }
    }

    fn map_session_again(&mut self, id: u32) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        if session.ending || session.unplaced.is_some() || session.arena.is_none() {
            return;
        }
        let lane = session.lane;
        let choice = self.choice(&[lane]);
        let mut moves = Vec::new();
        for (number, stream) in session.streams.iter().enumerate() {
            let Some(stream) = stream else { continue };
            let mapped = self.map(stream.qos, &choice).and_then(|(kind, warning)| {
                let port = self.lanes[lane].port_of(kind).ok_or(ErrorCode::Closed)?;
                Ok((port, kind.to_string(), warning))
            });
            let (port, datapath, warning) = match mapped {
                Ok(mapped) => mapped,
                // It asked for that one and no other: it keeps its port, and reaches nobody meanwhile.
                Err(failure) => (stream.port, stream.datapath.clone(), failure.message),
            };
            if (&datapath, &warning) != (&stream.datapath, &stream.warning) {
                moves.push((number, port, datapath, warning));
            }
        }
        for (number, port, datapath, warning) in moves {
            self.move_stream(id, number, port, datapath, warning);
        }
        self.tell_moves(id);
    }

    /// Tells an application where its streams are by now, as far as that fits beside what it is answered; the rest, of
    /// each stream the last, when it has taken some of it.
    pub(super) fn tell_moves(&mut self, id: u32) {
        let Some(session) = self.sessions.get_mut(&id).filter(|s| !s.ending) else {
            return;
        };
        let mut left = false;
        for (number, stream) in session.streams.iter_mut().enumerate() {
            let Some(stream) = stream.as_mut().filter(|stream| stream.untold) else {
                continue;
            };
            let moved = Envelope {
                request: 0,
                message: Reply::StreamMoved {
                    stream: number as u32,
                    datapath: stream.datapath.clone(),
                    warning: stream.warning.clone(),
                },
            };
            // The kernel says so while a quarter of the socket's buffer is taken at most.
            left = !is_writable(&session.socket)
                || matches!(
                    transport::send(&session.socket, &moved.encode(), &[], false),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock
                );
            if left {
                break;
            }
            // Of any other failure its socket tells by itself: it has gone.
            stream.untold = false;
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

    fn move_stream(
        &mut self,
        id: u32,
        number: usize,
        port: usize,
        datapath: String,
        warning: String,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(Some(stream)) = session.streams.get_mut(number) else {
            return;
        };
        if stream.datapath != datapath {
            stream.moved += 1;
            self.streams_moved += 1;
            tracing::info!(session = id, application = %session.name, stream = number, from = %stream.datapath, to = %datapath, %warning, "a stream has moved");
        }
        stream.port = port;
        (stream.datapath, stream.warning) = (datapath, warning);
        stream.untold = true;
        let carrier = stream.carrier();
        let handle = &self.lanes[session.lane].handle;
        let sources = session.sources.iter().enumerate();
        for (source, endpoint) in sources {
            if endpoint.is_some_and(|endpoint| endpoint.stream as usize == number) {
                handle.send(Command::Carry {
                    session: id.into(),
                    source,
                    carrier,
                });
            }
        }
    }
}

fn is_writable(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    let now = Timespec::default();
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::OUT)
}
