//! Connecting to a runtime, attaching, and opening again what a session had open.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use takt_session::layout::{COMES_BACK, SAYS_BEFORE};
use takt_session::message::{Envelope, Reply, Request};
use takt_session::{ErrorCode, Failure, transport};
use takt_shm::SinkBell;

use crate::attachment::Attachment;
use crate::control::{
    Answer, Connection, Link, OpenSink, OpenSource, OpenStream, Reopened, Shared, open_sink, poll,
    room_told, send, source_opened, unexpected,
};
use crate::direct::Mail;
use crate::error::Error;
use crate::fork::{State, Status};
use crate::room;

/// First and longest pause between two attempts to connect to a runtime that has too many connections to accept.
const BUSY: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];

/// Connects to the runtime's socket. One that accepts nothing, as it is stopped, is waited for as long as for an answer, by
/// `pause`.
pub(crate) fn connect(
    path: &Path,
    timeout: Duration,
    mut pause: impl FnMut(Duration) -> Result<(), Error>,
) -> Result<OwnedFd, Error> {
    let deadline = Instant::now() + timeout;
    let [mut next, longest] = BUSY;
    loop {
        match transport::connect(path) {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Error::TimedOut);
                }
                pause(next.min(left))?;
                next = (next * 2).min(longest);
            }
            Err(error) => return Err(no_connection(path, error)),
        }
    }
}

/// Why there is no connection to be had.
fn no_connection(path: &Path, source: io::Error) -> Error {
    let found = std::fs::metadata(path);
    match source.kind() {
        _ if found
            .as_ref()
            .is_ok_and(|found| !found.file_type().is_socket()) =>
        {
            Error::NoRuntime {
                path: path.to_owned(),
                source: io::Error::other("that is no socket"),
            }
        }
        io::ErrorKind::PermissionDenied => Error::Refused(Failure::new(
            ErrorCode::NotPermitted,
            format!(
                "this user may not connect to {}{}: ask the operator of the node for access to the socket (`mode` of its \
                 `[[listener]]`, and the group of the file), or use another node with TAKT_SOCKET",
                path.display(),
                found.map_or_else(
                    |_| String::new(),
                    |found| {
                        let mode = found.mode() & 0o7777;
                        format!(
                            " (mode {mode:04o}, user {}, group {})",
                            found.uid(),
                            found.gid()
                        )
                    }
                )
            ),
        )),
        _ => Error::NoRuntime {
            path: path.to_owned(),
            source,
        },
    }
}

/// Whether a later attempt may go better.
pub(crate) fn is_passing(error: &Error) -> bool {
    match error {
        Error::NoRuntime { .. }
        | Error::Disconnected
        | Error::TimedOut
        | Error::System { .. }
        | Error::Protocol(_) => true,
        Error::Ended(failure) | Error::Refused(failure) => matches!(
            failure.code,
            ErrorCode::Disconnected
                | ErrorCode::ShuttingDown
                | ErrorCode::System
                | ErrorCode::NoMemory
                | ErrorCode::Limit
        ),
        _ => false,
    }
}

/// One request after the other on a socket that nobody else reads yet.
struct Dialogue<'a> {
    shared: &'a Shared,
    socket: &'a OwnedFd,
    request: u32,
    /// What it is about, once it is known.
    attachment: Option<Arc<Attachment>>,
    /// What is to be said of rings as soon as the session is attached.
    answers: Vec<Request>,
}

impl Dialogue<'_> {
    fn ask(&mut self, message: Request) -> Result<Answer, Error> {
        let deadline = Instant::now() + self.shared.options.request_timeout;
        self.request += 1;
        let request = self.request;
        let bytes = Envelope { request, message }.encode();
        match send(self.socket, &bytes, deadline) {
            // It has hung up; why, is to be read.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent.map_err(|_| Error::Disconnected)?,
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut);
            }
            let mut fds = [
                PollFd::new(self.socket, PollFlags::IN),
                PollFd::new(&self.shared.wake, PollFlags::IN),
            ];
            poll(&mut fds, Some(left)).map_err(Error::system("wait for the runtime"))?;
            if !fds[1].revents().is_empty() {
                self.shared.woken()?;
            }
            let packet = match transport::receive(self.socket, false) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) | Ok(None) => return Err(Error::Disconnected),
                Ok(Some(packet)) => packet,
            };
            let reply = Envelope::<Reply>::decode(&packet.bytes)
                .map_err(|e| Error::Refused(Failure::from(e)))?;
            match reply.message {
                Reply::Ended(failure) => return Err(Error::Ended(failure)),
                Reply::Failed(failure) if reply.request == request => {
                    return Err(Error::Refused(failure));
                }
                Reply::StreamMoved {
                    stream,
                    datapath,
                    warning,
                } => {
                    let mut control = self.shared.lock();
                    control.stream_moved_meanwhile(stream, datapath, warning);
                }
                message if reply.request == request => {
                    let mut control = self.shared.lock();
                    if let Reply::StreamOpened { stream, .. } = message {
                        control.stream_opens(stream);
                    }
                    control.mail.opens(&message);
                    drop(control);
                    return Ok(Answer {
                        reply: message,
                        descriptors: packet.descriptors,
                    });
                }
                message => {
                    if let Some(attachment) = &self.attachment {
                        let mut control = self.shared.lock();
                        let shared = self.shared;
                        let heard =
                            shared.hear(&mut control, attachment, &message, packet.descriptors);
                        drop(control);
                        self.answers.extend(heard);
                    }
                }
            }
        }
    }
}

/// What is open after all, or the refusal that an endpoint keeps.
fn settled<T>(result: Result<T, Error>) -> Result<Result<T, Failure>, Error> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Error::Refused(failure)) => Ok(Err(failure)),
        // One endpoint for which this process has no room is no reason to do without all.
        Err(error @ Error::System { .. }) => {
            Ok(Err(Failure::new(ErrorCode::System, error.to_string())))
        }
        Err(error) => Err(error),
    }
}

/// Attaches over a connected socket and opens everything that the session has on record. The session
/// is attached when this returns.
pub(crate) fn attach(shared: &Shared, socket: OwnedFd) -> Result<(), Error> {
    let socket = shared.options.moved(socket);
    let state = State::new(shared.slot.state().generation() + 1, Status::Attached);
    let mut dialogue = Dialogue {
        shared,
        socket: &socket,
        request: 0,
        attachment: None,
        answers: Vec::new(),
    };
    shared.lock().mail = Mail::of(state);
    let options = &shared.options;
    let answer = dialogue.ask(Request::Attach {
        name: options.name.clone(),
        tx_bytes: options.tx_bytes as u64,
        rx_bytes: options.rx_bytes as u64,
        // Whoever drives a lane itself has it at hand.
        domain: shared.progress.is_none() && SinkBell::can_wait_for_several(),
    })?;
    let Reply::Attached {
        session,
        map,
        max_message,
        domain,
        ..
    } = answer.reply
    else {
        return Err(unexpected(&answer.reply));
    };
    let descriptors = answer.descriptors.into_iter();
    let attachment = Arc::new(Attachment::new(
        map,
        max_message,
        domain,
        descriptors.map(|fd| options.moved(fd)).collect(),
        state,
        shared.room.clone(),
    )?);

    let comes_back = options.reconnect && options.path.is_some();
    let before = shared.lock().number;
    attachment.tell_before(before);
    // An application that opens another session by hand does not know which one it was.
    let says_before = match comes_back || before != 0 {
        true => SAYS_BEFORE,
        false => 0,
    };
    attachment.tell_abilities(says_before | if comes_back { COMES_BACK } else { 0 });
    dialogue.attachment = Some(attachment.clone());

    let mut streams = Vec::new();
    let mut sources = Vec::new();
    let mut sinks = Vec::new();
    {
        let control = shared.lock();
        for (&key, record) in control.streams.iter().filter(|(_, r)| !r.closing) {
            streams.push((key, record.qos));
        }
        for (&key, r) in &control.sources {
            sources.push((
                key,
                r.stream,
                r.target,
                r.depth,
                r.origin,
                r.emitted.clone(),
                r.tells_room,
            ));
        }
        for (&key, r) in &control.sinks {
            sinks.push((key, r.stream, r.channel, r.depth, r.mode, r.notify.clone()));
        }
    }
    let mut opened = Vec::new();
    for (key, qos) in streams {
        let stream = settled(
            dialogue
                .ask(Request::OpenStream(qos))
                .and_then(stream_opened),
        )?;
        opened.push((key, stream));
    }
    let stream_id = |stream: u32| match opened.iter().find(|(key, _)| *key == stream) {
        Some((_, Ok(open))) => Ok(open.id),
        Some((_, Err(failure))) => Err(failure.clone()),
        None => Err(Failure::from(ErrorCode::NotFound)),
    };
    let mut opened_sources = Vec::new();
    let mut orphans = Vec::new();
    for (key, stream, target, depth, origin, emitted, tells_room) in sources {
        let source = match stream_id(stream) {
            Err(failure) => Err(failure),
            Ok(_) if tells_room && !attachment.can_tell_room() => {
                settled(Err(room::not_available()))?
            }
            Ok(stream) => {
                // Nothing is emitted while the session is not attached.
                let emitted = emitted.load(Ordering::Relaxed);
                let answer = dialogue.ask(target.open(stream, depth, origin, emitted));
                let opened = settled(answer.and_then(source_opened))?;
                match opened {
                    Ok(open) if tells_room => {
                        let answer = dialogue.ask(Request::TellRoom(open.id));
                        let told =
                            settled(answer.and_then(|told| room_told(told, &attachment, options)))?;
                        if told.is_err() {
                            // Nobody uses it.
                            orphans.push(Request::CloseSource(open.id));
                        }
                        told.map(|()| open)
                    }
                    opened => opened,
                }
            }
        };
        opened_sources.push((key, source));
    }
    let mut opened_sinks = Vec::new();
    for (key, stream, channel, depth, mode, notify) in sinks {
        let sink = match stream_id(stream) {
            Err(failure) => Err(failure),
            Ok(stream) => {
                let notify_fd = notify.is_some();
                let answer = dialogue.ask(Request::OpenSink {
                    stream,
                    channel,
                    depth,
                    notify_fd,
                    mode,
                });
                settled(answer.and_then(|answer| match answer.reply {
                    Reply::SinkOpened { sink, block } => open_sink(
                        &attachment,
                        sink,
                        (block, mode.latest),
                        answer.descriptors,
                        notify.as_deref(),
                    ),
                    other => Err(unexpected(&other)),
                }))?
            }
        };
        opened_sinks.push((key, sink));
    }
    let last_request = dialogue.request;
    orphans.extend(dialogue.answers);
    install(
        shared,
        orphans,
        Link {
            socket: Arc::new(Connection::new(socket, shared.slot)),
            attachment,
            number: session,
        },
        last_request,
        opened,
        opened_sources,
        opened_sinks,
    );
    Ok(())
}

/// Makes a new link the session's. What lost its handle meanwhile is closed; `orphans` are to be said then, too.
fn install(
    shared: &Shared,
    mut orphans: Vec<Request>,
    link: Link,
    last_request: u32,
    streams: Reopened<OpenStream>,
    sources: Reopened<OpenSource>,
    sinks: Reopened<OpenSink>,
) {
    let mut control = shared.lock();
    control.start_after(last_request);
    for (key, opened) in sources {
        match (control.sources.get_mut(&key), opened) {
            (Some(record), opened) => record.opened = opened,
            (None, Ok(open)) => orphans.push(Request::CloseSource(open.id)),
            (None, Err(_)) => {}
        }
    }
    for (key, opened) in sinks {
        match (control.sinks.get_mut(&key), opened) {
            (Some(record), opened) => record.opened = opened,
            (None, Ok(open)) => {
                control.mail.forget_sink(link.attachment.state, open.id);
                orphans.push(Request::CloseSink(open.id));
            }
            (None, Err(_)) => {}
        }
    }
    for (key, opened) in streams {
        let opened = opened.map(|open| control.up_to_date(open));
        match (control.streams.get_mut(&key), opened) {
            (Some(record), opened) => record.opened = opened,
            (None, Ok(open)) => orphans.push(Request::CloseStream(open.id)),
            (None, Err(_)) => {}
        }
    }
    let [arena, bell] = link.attachment.descriptors;
    let socket = link.socket.as_fd().as_raw_fd();
    shared.slot.guard([socket, arena, bell]);
    let state = link.attachment.state;
    control.number = link.number;
    control.link = Some(link);
    shared.slot.set(state);
    drop(control);
    shared.notify();
    for request in orphans {
        shared.post(request);
    }
}

/// Reads the answer to `OpenStream`.
pub(crate) fn stream_opened(answer: Answer) -> Result<OpenStream, Error> {
    match answer.reply {
        Reply::StreamOpened {
            stream,
            datapath,
            warning,
        } => Ok(OpenStream {
            id: stream,
            datapath,
            warning,
        }),
        other => Err(unexpected(&other)),
    }
}
