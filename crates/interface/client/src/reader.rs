//! The session's background thread: reads what the runtime says, and finds it again when it is gone.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use takt_session::message::{Envelope, Reply, Request};
use takt_session::{ErrorCode, Failure, transport};

use crate::connect;
use crate::control::{Answer, Link, Shared, poll, wake_endpoints};
use crate::direct::Mail;
use crate::error::Error;
use crate::fork::{State, Status};
use crate::room;

/// First and longest pause between two attempts to reach the runtime.
const BACKOFF: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// First and longest pause between two looks at sources that linger.
const LINGER: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

/// Why a connection is over.
enum End {
    /// The session is closed.
    Closing,
    /// The connection broke.
    Lost,
    /// The runtime said so.
    Ended(Failure),
}

/// Runs until the session is closed or has ended for good.
pub(crate) fn run(shared: &Arc<Shared>) {
    loop {
        let Some(link) = shared.lock().link.clone() else {
            return;
        };
        let end = serve(shared, &link);
        drop(link);
        let last = match (end, &shared.options.path) {
            (End::Closing, _) => Some(Failure::from(ErrorCode::Closed)),
            (End::Ended(failure), Some(_)) => {
                let error = Error::Ended(failure.clone());
                (!shared.options.reconnect || !connect::is_passing(&error)).then_some(failure)
            }
            (End::Ended(failure), None) => Some(failure),
            (End::Lost, Some(_)) if shared.options.reconnect => None,
            (End::Lost, _) => Some(Failure::new(
                ErrorCode::Disconnected,
                "the runtime went away, and this session does not reconnect",
            )),
        };
        let ended = last.is_some();
        detach(shared, last);
        if ended || !reconnect(shared) {
            return;
        }
    }
}

/// The link is gone: everything that waits wakes and learns why.
fn detach(shared: &Shared, ended: Option<Failure>) {
    let mut control = shared.lock();
    let status = if ended.is_some() {
        Status::Ended
    } else {
        Status::Disconnected
    };
    shared
        .slot
        .set(State::new(shared.slot.state().generation(), status));
    let link = control.link.take();
    // Sinks may keep the connection.
    let socket = link
        .as_ref()
        .map_or(-1, |link| link.socket.as_fd().as_raw_fd());
    shared.slot.guard([socket, -1, -1]);
    if !control.closing
        && let Some(link) = &link
    {
        link.socket.hang_up();
    }
    control.ended = ended;
    control.pending.clear();
    control.lingering.clear();
    control.mail = Mail::default();
    control.streams.retain(|_, record| !record.closing);
    for record in control.sinks.values() {
        if let Some(notify) = &record.notify {
            notify.forget();
        }
    }
    wake_endpoints(shared, &control);
    drop(control);
    shared.notify();
    drop(link);
}

/// Looks for the runtime until it is found. False: the session is closed or over.
fn reconnect(shared: &Shared) -> bool {
    let [mut pause, longest] = BACKOFF;
    let Some(path) = &shared.options.path else {
        return false;
    };
    let timeout = shared.options.request_timeout;
    loop {
        let connected = connect::connect(path, timeout, |pause| shared.pause(pause));
        match connected.and_then(|socket| connect::attach(shared, socket)) {
            Ok(()) => {
                wake_endpoints(shared, &shared.lock());
                return true;
            }
            Err(Error::Closed) => return false,
            Err(error) if connect::is_passing(&error) => {}
            Err(error) => {
                let failure = match error {
                    Error::Ended(failure) | Error::Refused(failure) => failure,
                    other => Failure::new(other.code(), other.to_string()),
                };
                detach(shared, Some(failure));
                return false;
            }
        }
        if shared.pause(pause).is_err() {
            return false;
        }
        pause = (pause * 2).min(longest);
    }
}

fn serve(shared: &Shared, link: &Link) -> End {
    let [shortest, longest] = LINGER;
    let mut linger = shortest;
    let mut room_ended = false;
    loop {
        let timeout = if close_lingering(shared) {
            linger = (linger * 2).min(longest);
            Some(linger)
        } else {
            linger = shortest;
            None
        };
        let signal = link.attachment.room_signal.get().filter(|_| !room_ended);
        let mut fds = [
            PollFd::new(&*link.socket, PollFlags::IN),
            PollFd::new(&shared.wake, PollFlags::IN),
            // Without one nothing comes of this place that does not of the one before.
            PollFd::new(signal.unwrap_or(&shared.wake), PollFlags::IN),
        ];
        if poll(&mut fds, timeout).is_err() {
            return End::Lost;
        }
        let room = fds[2].revents();
        if let Some(signal) = signal.filter(|_| !room.is_empty()) {
            // Before the sources are told: what is signalled from then on is another time.
            room::drain(signal);
            shared.room.came();
            // It would be readable for ever. The socket tells what has become of the runtime.
            room_ended = room.intersects(PollFlags::HUP | PollFlags::ERR);
        }
        if !fds[1].revents().is_empty() {
            let _ = rustix::io::read(&shared.wake, &mut [0; 8]);
            if shared.lock().closing {
                return End::Closing;
            }
            linger = shortest;
        }
        if !fds[0].revents().is_empty()
            && let Some(end) = receive(shared, link)
        {
            return end;
        }
    }
}

fn receive(shared: &Shared, link: &Link) -> Option<End> {
    let packet = match transport::receive(&*link.socket, false) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
        Err(_) | Ok(None) => return Some(End::Lost),
        Ok(Some(packet)) => packet,
    };
    let Ok(Envelope { request, message }) = Envelope::<Reply>::decode(&packet.bytes) else {
        return Some(End::Lost);
    };
    if let Reply::Ended(failure) = message {
        return Some(End::Ended(failure));
    }
    if let Reply::StreamMoved {
        stream,
        datapath,
        warning,
    } = message
    {
        shared.lock().stream_moved(stream, datapath, warning);
        return None;
    }
    let mut control = shared.lock();
    if let Reply::StreamOpened { stream, .. } = message {
        control.stream_opens(stream);
    }
    let mut descriptors = packet.descriptors;
    if request == 0 {
        let answer = shared.hear(&mut control, &link.attachment, &message, descriptors);
        drop(control);
        if let Some(answer) = answer {
            shared.post(answer);
        }
        return None;
    }
    control.mail.opens(&message);
    if let Some(place) = control.pending.get_mut(&request) {
        *place = Some(Answer {
            reply: message,
            descriptors: std::mem::take(&mut descriptors),
        });
        drop(control);
        shared.notify();
        return None;
    }
    if let Reply::SinkOpened { sink, .. } = message {
        let state = link.attachment.state;
        control.mail.forget_sink(state, sink);
    }
    drop(control);
    // Nobody waits for it any more: what was opened is closed again.
    match message {
        Reply::StreamOpened { stream, .. } => shared.post(Request::CloseStream(stream)),
        Reply::SourceOpened { source, .. } => shared.post(Request::CloseSource(source)),
        Reply::SinkOpened { sink, .. } => shared.post(Request::CloseSink(sink)),
        _ => {}
    }
    None
}

/// Closes lingering sources whose messages are completed. True: some are left.
pub(crate) fn close_lingering(shared: &Shared) -> bool {
    let mut control = shared.lock();
    if control.lingering.is_empty() && control.streams.values().all(|stream| !stream.closing) {
        return false;
    }
    let mut done = Vec::new();
    control.lingering.retain(|source| {
        let is_done = source.is_done();
        if is_done {
            done.push(Request::CloseSource(source.id));
        } else {
            // Completions that a sink's end has made possible are shown when the lane looks again.
            source.attachment.bell.ring();
        }
        !is_done
    });
    done.append(&mut control.take_closed_streams());
    let left = !control.lingering.is_empty();
    drop(control);
    for request in done {
        shared.post(request);
    }
    left
}
