//! A session's half that is not on the data path: requests, what is open, what happens when the runtime goes.
//!
//! One mutex and one condition variable; the [reader](crate::reader) thread owns the socket's receiving
//! side. Nothing here may be touched in a forked child, where the mutex may be locked for ever: callers
//! look at the [`Slot`] first.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use takt_session::layout::{SinkBlock, SourceBlock};
use takt_session::message::{DirectEnd, Envelope, Reply, Request};
use takt_session::unserved::Counts;
use takt_session::{ChannelId, Endpoint, Failure, Qos, SinkMode, transport};
use takt_shm::SinkBell;

use crate::attachment::Attachment;
use crate::descriptors::Registered;
use crate::direct::{self, Heard, Mail};
use crate::error::Error;
use crate::fork::{Slot, State, Status};
use crate::interrupt::Interrupt;
use crate::memory::Account;
use crate::notify::Notify;
use crate::progress::Progress;
use crate::room::{self, Room};
use crate::sys;

/// How often a wait looks whether the session is attached: the reader looks for the runtime less often.
const ATTACH_LOOK: Duration = Duration::from_millis(10);

/// How a session is opened, and opened again.
#[derive(Debug)]
pub(crate) struct Options {
    /// Where the runtime listens; `None` for a socket that came connected.
    pub(crate) path: Option<PathBuf>,
    pub(crate) name: String,
    pub(crate) tx_bytes: usize,
    pub(crate) rx_bytes: usize,
    pub(crate) reconnect: bool,
    pub(crate) request_timeout: Duration,
    /// The lowest number that its descriptors may have; `None`: any.
    pub(crate) descriptors_from: Option<RawFd>,
}

impl Options {
    /// A descriptor of the session's, where its numbers begin if there is room.
    pub(crate) fn moved(&self, fd: OwnedFd) -> OwnedFd {
        let moved = |lowest| rustix::io::fcntl_dupfd_cloexec(&fd, lowest).ok();
        self.descriptors_from.and_then(moved).unwrap_or(fd)
    }
}

/// What the user's handles and the reader thread share.
pub(crate) struct Shared {
    pub(crate) slot: &'static Slot,
    pub(crate) options: Options,
    pub(crate) progress: Option<Arc<dyn Progress>>,
    control: Mutex<Control>,
    /// An answer came, or the session's state changed.
    changed: Condvar,
    /// Before the descriptor, which it ends before.
    _registered: Registered,
    /// Changes whenever there is something in [`Control::mail`].
    pub(crate) news: AtomicU64,
    /// Wakes the reader.
    pub(crate) wake: OwnedFd,
    /// The sources that wait for room.
    pub(crate) room: Arc<Room>,
    /// What an attachment, by its generation, has been told of datagrams that the runtime did not get.
    pub(crate) unserved: Mutex<(u64, Counts)>,
}

/// What the mutex guards.
#[derive(Default)]
pub(crate) struct Control {
    pub(crate) link: Option<Link>,
    /// The runtime's number of this link, or of the last one; 0: there was none.
    pub(crate) number: u64,
    pub(crate) ended: Option<Failure>,
    next_request: u32,
    next_key: u32,
    /// Requests on their way, with their answers.
    pub(crate) pending: HashMap<u32, Option<Answer>>,
    /// Streams that have moved between their opening and their record, by the runtime's number: where to, and why.
    moved: HashMap<u32, (String, String)>,
    pub(crate) streams: BTreeMap<u32, StreamRecord>,
    pub(crate) sources: BTreeMap<u32, SourceRecord>,
    pub(crate) sinks: BTreeMap<u32, SinkRecord>,
    pub(crate) lingering: Vec<Lingering>,
    /// What is told of rings.
    pub(crate) mail: Mail,
    /// The last handle is gone.
    pub(crate) closing: bool,
}

/// A connection to a runtime.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) socket: Arc<Connection>,
    pub(crate) attachment: Arc<Attachment>,
    /// The runtime's number of the session.
    pub(crate) number: u64,
}

/// The socket of a session. Until it is closed the runtime leaves the memory as it is: sinks keep it for the messages
/// that they have handed out.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Before the descriptor, which it ends before.
    _registered: Registered,
    socket: OwnedFd,
    slot: &'static Slot,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, slot: &'static Slot) -> Self {
        Self {
            _registered: Registered::new(socket.as_raw_fd()),
            socket,
            slot,
        }
    }

    /// Ends it for all that still keep it.
    pub(crate) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.slot.unguard(self.socket.as_raw_fd());
    }
}

/// An answer of the runtime.
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// What a stream was opened as.
#[derive(Clone, Debug)]
pub(crate) struct OpenStream {
    pub(crate) id: u32,
    pub(crate) datapath: String,
    pub(crate) warning: String,
}

/// What a sink was opened as.
#[derive(Clone, Debug)]
pub(crate) struct OpenSink {
    pub(crate) id: u32,
    pub(crate) block: SinkBlock,
    /// It keeps the newest message alone.
    pub(crate) latest: bool,
    pub(crate) bell: Arc<SinkBell>,
}

/// What a source was opened as.
#[derive(Clone, Debug)]
pub(crate) struct OpenSource {
    /// Its number at the runtime.
    pub(crate) id: u32,
    /// Where its rings are.
    pub(crate) block: SourceBlock,
    /// Of a source of frames: where they come from.
    pub(crate) endpoint: Option<Endpoint>,
}

/// What a source writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Messages of a channel.
    Channel(ChannelId),
    /// Frames of the tenant's endpoint.
    Endpoint,
}

impl Target {
    /// The request that opens a source of it. `emitted`: how many messages it has emitted before.
    pub(crate) fn open(self, stream: u32, depth: u32, origin: u64, emitted: u64) -> Request {
        match self {
            Self::Channel(channel) => Request::OpenSource {
                stream,
                channel,
                depth,
                origin,
                first: emitted,
            },
            Self::Endpoint => Request::OpenFrameSource { stream, depth },
        }
    }
}

/// Reads the answer to [`Target::open`].
pub(crate) fn source_opened(answer: Answer) -> Result<OpenSource, Error> {
    match answer.reply {
        Reply::SourceOpened { source, block } => Ok(OpenSource {
            id: source,
            block,
            endpoint: None,
        }),
        Reply::FrameSourceOpened {
            source,
            block,
            endpoint,
        } => Ok(OpenSource {
            id: source,
            block,
            endpoint: Some(endpoint),
        }),
        other => Err(unexpected(&other)),
    }
}

/// Reads the answer to [`Request::TellRoom`]: the first of an attachment is kept.
pub(crate) fn room_told(
    answer: Answer,
    attachment: &Attachment,
    options: &Options,
) -> Result<(), Error> {
    if answer.reply != Reply::RoomTold {
        return Err(unexpected(&answer.reply));
    }
    let Some(signal) = answer.descriptors.into_iter().next() else {
        // It always sends one, and the kernel takes it away where there is no room for it.
        return Err(Error::system("receive the descriptor that tells of room")(
            Errno::MFILE.into(),
        ));
    };
    // A further one is the same again.
    let _ = attachment.room_signal.set(options.moved(signal));
    Ok(())
}

/// What the runtime made of opening something again, by the key of the record.
pub(crate) type Reopened<T> = Vec<(u32, Result<T, Failure>)>;

/// A stream, to be opened again. `opened` is of the latest attachment; a refusal stays with it.
pub(crate) struct StreamRecord {
    pub(crate) qos: Qos,
    pub(crate) opened: Result<OpenStream, Failure>,
    /// Its handle is gone: closed once no source of it lingers.
    pub(crate) closing: bool,
}

/// A source, to be opened again.
pub(crate) struct SourceRecord {
    pub(crate) stream: u32,
    pub(crate) target: Target,
    pub(crate) depth: u32,
    /// By what a runtime that comes back knows it again.
    pub(crate) origin: u64,
    /// Messages emitted ever; written by the source.
    pub(crate) emitted: Arc<AtomicU64>,
    /// It is told of room by a descriptor.
    pub(crate) tells_room: bool,
    pub(crate) opened: Result<OpenSource, Failure>,
}

/// A sink, to be opened again.
pub(crate) struct SinkRecord {
    pub(crate) stream: u32,
    pub(crate) channel: ChannelId,
    pub(crate) depth: u32,
    pub(crate) mode: SinkMode,
    pub(crate) notify: Option<Arc<Notify>>,
    pub(crate) opened: Result<OpenSink, Failure>,
}

/// A source whose handle is gone and whose messages are not all completed: its blocks would be lost
/// if it were closed now.
pub(crate) struct Lingering {
    pub(crate) stream: u32,
    pub(crate) id: u32,
    pub(crate) attachment: Arc<Attachment>,
    pub(crate) account: Arc<Account>,
    pub(crate) emitted: u64,
}

impl Lingering {
    /// Whether its last message is completed.
    pub(crate) fn is_done(&self) -> bool {
        // Nothing impossible is repaired here: the session will find out at its next use.
        let _ = self.attachment.memory.settle(&self.account);
        self.account.completed() >= self.emitted
    }
}

/// Sends one packet, waiting for room until the deadline.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], deadline: Instant) -> io::Result<()> {
    loop {
        match transport::send(&socket, bytes, &[], false) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(left))?;
            }
            result => return result,
        }
    }
}

/// Polls; an interruption counts as nothing found.
pub(crate) fn poll(of: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    // A timeout that is too long for the kernel is no timeout.
    let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
    match rustix::event::poll(of, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Shared {
    pub(crate) fn new(
        options: Options,
        progress: Option<Arc<dyn Progress>>,
    ) -> Result<Self, Error> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags)
            .map_err(|e| Error::system("create an eventfd")(e.into()))?;
        let wake = options.moved(wake);
        let slot = Slot::claim(options.descriptors_from)
            .map_err(Error::system("install the fork handler"))?;
        Ok(Self {
            slot,
            options,
            progress,
            control: Mutex::default(),
            changed: Condvar::new(),
            _registered: Registered::new(wake.as_raw_fd()),
            news: AtomicU64::new(0),
            wake,
            room: Arc::default(),
            unserved: Mutex::default(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Control> {
        // A thread that panicked here was to insert or remove one record: either is consistent.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Takes note of what the runtime says of rings, and what is to be answered.
    pub(crate) fn hear(
        &self,
        control: &mut Control,
        attachment: &Attachment,
        message: &Reply,
        descriptors: Vec<OwnedFd>,
    ) -> Option<Request> {
        control.mail.opens(message);
        let heard = direct::hear(&mut control.mail, attachment, message, descriptors);
        let end = |ring, reason| Some(Request::EndDirect { ring, reason });
        let (sink, answer) = match heard {
            Heard::Other => return None,
            Heard::Unusable(ring) => return end(ring, DirectEnd::Unusable),
            Heard::Unused(ring) => (None, end(ring, DirectEnd::Done)),
            Heard::News(sink) => (sink, None),
        };
        // Release: partner are the loads by handles, which look under the lock then.
        self.news.fetch_add(1, Ordering::Release);
        let records = control.sinks.values();
        let mut opened = records.filter_map(|record| record.opened.as_ref().ok());
        if let Some(open) = opened.find(|open| Some(open.id) == sink) {
            open.bell.wake_local();
        }
        answer
    }

    /// Wakes the reader thread.
    pub(crate) fn wake_reader(&self) {
        // EAGAIN: the counter is full, so it is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The reader was woken. [`Error::Closed`]: as the session closes.
    pub(crate) fn woken(&self) -> Result<(), Error> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        match self.lock().closing {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    /// The reader has nothing to do for so long, unless it is woken.
    pub(crate) fn pause(&self, length: Duration) -> Result<(), Error> {
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
        // Fails only for lack of memory: then without a pause.
        let _ = poll(&mut fds, Some(length));
        self.woken()
    }

    /// Why the session cannot be used now.
    pub(crate) fn unavailable(&self, control: &Control) -> Error {
        match &control.ended {
            Some(failure) => Error::Ended(failure.clone()),
            None => Error::Disconnected,
        }
    }

    /// Why the session cannot be used now, if it cannot.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.slot.state().status() {
            Status::Attached => Ok(()),
            Status::Forked => Err(Error::Forked),
            Status::Disconnected | Status::Ended => Err(self.unavailable(&self.lock())),
        }
    }

    /// Waits until the session is attached, its end, the deadline, or an interrupt.
    pub(crate) fn await_attached(
        &self,
        deadline: Option<Instant>,
        interrupt: &Interrupt,
    ) -> Result<(), Error> {
        loop {
            if self.slot.forked() {
                return Err(Error::Forked);
            }
            interrupt.take()?;
            let control = self.lock();
            if control.link.is_some() {
                return Ok(());
            }
            if control.ended.is_some() {
                return Err(self.unavailable(&control));
            }
            drop(control);
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::Disconnected);
            }
            // Not on the condition variable, which sleeps on through signals.
            sys::sleep(left.map_or(ATTACH_LOOK, |left| left.min(ATTACH_LOOK)))?;
        }
    }

    /// Waits for a change; `None` when the deadline has passed.
    pub(crate) fn wait<'a>(
        &self,
        control: MutexGuard<'a, Control>,
        deadline: Option<Instant>,
    ) -> Option<MutexGuard<'a, Control>> {
        let Some(deadline) = deadline else {
            return Some(
                self.changed
                    .wait(control)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let (control, _) = self
            .changed
            .wait_timeout(control, left)
            .unwrap_or_else(PoisonError::into_inner);
        Some(control)
    }

    /// Asks the runtime, and waits for its answer; also says under which attachment it is valid.
    pub(crate) fn request(&self, message: Request) -> Result<(Answer, State), Error> {
        self.request_until(message, Instant::now() + self.options.request_timeout)
    }

    /// As [`request`](Self::request), with a deadline.
    pub(crate) fn request_until(
        &self,
        message: Request,
        deadline: Instant,
    ) -> Result<(Answer, State), Error> {
        self.request_of(None, message, deadline)
    }

    /// Asks the runtime in the attachment of this generation, or in no other: [`Error::Disconnected`].
    pub(crate) fn request_in(&self, generation: u64, message: Request) -> Result<Answer, Error> {
        let deadline = Instant::now() + self.options.request_timeout;
        let (answer, _) = self.request_of(Some(generation), message, deadline)?;
        Ok(answer)
    }

    fn request_of(
        &self,
        generation: Option<u64>,
        message: Request,
        deadline: Instant,
    ) -> Result<(Answer, State), Error> {
        self.check()?;
        let mut control = self.lock();
        let Some(link) = control.link.clone() else {
            return Err(self.unavailable(&control));
        };
        if generation.is_some_and(|wanted| wanted != link.attachment.state.generation()) {
            return Err(Error::Disconnected);
        }
        let request = control.number();
        control.pending.insert(request, None);
        drop(control);
        let sent = send(
            &*link.socket,
            &Envelope { request, message }.encode(),
            deadline,
        );
        let mut control = self.lock();
        if let Err(error) = sent {
            control.pending.remove(&request);
            return Err(match error.kind() {
                io::ErrorKind::TimedOut => Error::TimedOut,
                // The reader will find out as well.
                _ => Error::Disconnected,
            });
        }
        loop {
            match control.pending.get_mut(&request).map(Option::take) {
                // Given up by the reader.
                None => return Err(self.unavailable(&control)),
                Some(Some(answer)) => {
                    control.pending.remove(&request);
                    if control.link.as_ref().map(|l| l.attachment.state)
                        != Some(link.attachment.state)
                    {
                        return Err(self.unavailable(&control));
                    }
                    return match answer.reply {
                        Reply::Failed(failure) => Err(Error::Refused(failure)),
                        _ => Ok((answer, link.attachment.state)),
                    };
                }
                Some(None) => {}
            }
            control = match self.wait(control, Some(deadline)) {
                Some(control) => control,
                None => {
                    self.lock().pending.remove(&request);
                    return Err(Error::TimedOut);
                }
            };
        }
    }

    /// Tells the runtime without waiting for its answer. Lost if the session is not attached, and then
    /// of no consequence.
    pub(crate) fn post(&self, message: Request) {
        self.post_if(|_| true, message);
    }

    /// As [`post`](Self::post) if the session is attached under this state: elsewhere the number of a ring is another's.
    pub(crate) fn post_in(&self, state: State, message: Request) {
        self.post_if(|attachment| attachment.state == state, message);
    }

    fn post_if(&self, wanted: impl FnOnce(&Attachment) -> bool, message: Request) {
        let mut control = self.lock();
        let request = control.number();
        let Some(link) = control.link.clone().filter(|l| wanted(&l.attachment)) else {
            return;
        };
        drop(control);
        let deadline = Instant::now() + self.options.request_timeout;
        let _ = send(
            &*link.socket,
            &Envelope { request, message }.encode(),
            deadline,
        );
    }

    /// The runtime showed something impossible: gives the connection up, if it is still that one.
    #[cold]
    pub(crate) fn violated(&self, state: State, what: String) -> Error {
        let control = self.lock();
        if let Some(link) = &control.link
            && link.attachment.state == state
        {
            // The reader finds the end of the connection and goes on from there.
            link.socket.hang_up();
        }
        Error::Protocol(what)
    }

    /// The present attachment and what a source has there.
    pub(crate) fn source(&self, key: u32) -> Result<(Arc<Attachment>, OpenSource), Error> {
        self.check()?;
        let control = self.lock();
        let attachment = self.attachment(&control)?;
        match control.sources.get(&key).map(|record| &record.opened) {
            Some(Ok(open)) => Ok((attachment, open.clone())),
            Some(Err(failure)) => Err(Error::Refused(failure.clone())),
            None => Err(Error::Closed),
        }
    }

    /// The present link and what a sink has there.
    pub(crate) fn sink(&self, key: u32) -> Result<(Link, OpenSink), Error> {
        self.check()?;
        let control = self.lock();
        let Some(link) = control.link.clone() else {
            return Err(self.unavailable(&control));
        };
        match control.sinks.get(&key).map(|record| &record.opened) {
            Some(Ok(open)) => Ok((link, open.clone())),
            Some(Err(failure)) => Err(Error::Refused(failure.clone())),
            None => Err(Error::Closed),
        }
    }

    fn attachment(&self, control: &Control) -> Result<Arc<Attachment>, Error> {
        match &control.link {
            Some(link) => Ok(link.attachment.clone()),
            None => Err(self.unavailable(control)),
        }
    }

    /// Has the runtime tell of room at a source that was opened in the attachment of this state.
    pub(crate) fn tell_room(&self, state: State, source: u32) -> Result<(), Error> {
        let attachment = self.attachment(&self.lock())?;
        if attachment.state != state {
            return Err(Error::Disconnected);
        }
        if !attachment.can_tell_room() {
            return Err(room::not_available());
        }
        let answer = self.request_in(state.generation(), Request::TellRoom(source))?;
        room_told(answer, &attachment, &self.options)?;
        // It watches the descriptor from now on.
        self.wake_reader();
        Ok(())
    }

    /// A key for a new record, if the attachment under which it was opened is still the present one.
    pub(crate) fn record(
        &self,
        state: State,
        insert: impl FnOnce(&mut Control, u32, &Attachment) -> Result<(), Error>,
    ) -> Result<u32, Error> {
        let mut control = self.lock();
        let Some(link) = control.link.clone().filter(|l| l.attachment.state == state) else {
            return Err(self.unavailable(&control));
        };
        let key = control.next_key;
        control.next_key += 1;
        insert(&mut control, key, &link.attachment)?;
        Ok(key)
    }
}

impl Control {
    /// A request number: never 0, which is for what the runtime says unasked.
    fn number(&mut self) -> u32 {
        self.next_request = self.next_request.checked_add(1).unwrap_or(1);
        self.next_request
    }

    /// Request numbers up to this one are used on the present connection.
    pub(crate) fn start_after(&mut self, request: u32) {
        self.next_request = request;
    }

    /// The runtime has moved a stream to another datapath.
    pub(crate) fn stream_moved(&mut self, stream: u32, datapath: String, warning: String) {
        let records = self.streams.values_mut();
        let mut open = records.filter_map(|record| record.opened.as_mut().ok());
        if let Some(open) = open.find(|open| open.id == stream) {
            (open.datapath, open.warning) = (datapath, warning);
            return;
        }
        // It was opened just now: who waits for it has not recorded it.
        self.moved.insert(stream, (datapath, warning));
    }

    /// The same of a session that is being attached: what is recorded of the one before has other streams of these numbers.
    pub(crate) fn stream_moved_meanwhile(
        &mut self,
        stream: u32,
        datapath: String,
        warning: String,
    ) {
        self.moved.insert(stream, (datapath, warning));
    }

    /// The runtime has opened a stream. What was said of one of its number concerned another that is gone.
    pub(crate) fn stream_opens(&mut self, stream: u32) {
        self.moved.remove(&stream);
    }

    /// A stream as it is now, with what has been said of it since it was opened.
    pub(crate) fn up_to_date(&mut self, mut opened: OpenStream) -> OpenStream {
        if let Some(moved) = self.moved.remove(&opened.id) {
            (opened.datapath, opened.warning) = moved;
        }
        opened
    }

    /// The requests that close streams whose handles are gone and of which no source lingers.
    pub(crate) fn take_closed_streams(&mut self) -> Vec<Request> {
        let lingering: Vec<u32> = self.lingering.iter().map(|l| l.stream).collect();
        let done: Vec<u32> = self
            .streams
            .iter()
            .filter(|(key, record)| record.closing && !lingering.contains(key))
            .map(|(key, _)| *key)
            .collect();
        done.iter()
            .filter_map(|key| self.streams.remove(key)?.opened.ok())
            .map(|open| Request::CloseStream(open.id))
            .collect()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.slot.free();
    }
}

/// A reply of another kind than the request asks for.
pub(crate) fn unexpected(reply: &Reply) -> Error {
    Error::Protocol(format!(
        "the runtime answered with {reply:?}, which was not asked for"
    ))
}

/// Attaches to the doorbell of a sink that was just opened.
pub(crate) fn open_sink(
    attachment: &Attachment,
    id: u32,
    (block, latest): (SinkBlock, bool),
    descriptors: Vec<OwnedFd>,
    notify: Option<&Notify>,
) -> Result<OpenSink, Error> {
    let bell = SinkBell::attach(&attachment.arena, block.bell())
        .map_err(|e| Error::Protocol(format!("the sink's doorbell: {e}")))?;
    if let Some(notify) = notify {
        let Some(signal) = descriptors.into_iter().next() else {
            // It always sends one, and the kernel takes it away where there is no room for it.
            return Err(Error::system("receive the sink's descriptor")(
                Errno::MFILE.into(),
            ));
        };
        notify
            .watch(signal)
            .map_err(Error::system("watch the sink's descriptor"))?;
    }
    Ok(OpenSink {
        id,
        block,
        latest,
        bell: Arc::new(bell),
    })
}

/// Wakes everything that waits on a sink, and whoever waits for room at a source: the session's state has changed.
pub(crate) fn wake_endpoints(shared: &Shared, control: &Control) {
    shared.room.came();
    for record in control.sinks.values() {
        if let Ok(open) = &record.opened {
            open.bell.wake_local();
        }
        if let Some(notify) = &record.notify {
            notify.event();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_moves_before_it_is_recorded_is_recorded_where_it_is() {
        let open = || OpenStream {
            id: 3,
            datapath: "udp".into(),
            warning: String::new(),
        };
        let mut control = Control::default();
        // Of a former stream of this number.
        control.stream_moved(3, "old".into(), String::new());
        control.stream_opens(3);
        assert_eq!(control.up_to_date(open()).datapath, "udp");
        control.stream_opens(3);
        control.stream_moved(3, "xdp".into(), String::new());
        control.stream_moved(3, "dpdk".into(), "why".into());
        let opened = control.up_to_date(open());
        assert_eq!(
            (opened.datapath.as_str(), opened.warning.as_str()),
            ("dpdk", "why")
        );
        assert_eq!(control.up_to_date(open()).datapath, "udp", "told once");
    }
}
