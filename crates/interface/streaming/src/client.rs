//! Receiving frames.

use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use takt::{Qos, TaiTime, Wait};
use takt_messaging::{Participant, SubscriberCounters, SubscriberOptions, SubscriberWaker};

use crate::assembly::{self, AT_ONCE, Assembled, Assembler, Memory};
use crate::error::Error;
use crate::format::Format;
use crate::slice::Header;
use crate::slices::{self, Came, Slices};

/// The longest frame that is taken, if not told otherwise.
const MOST_BYTES: usize = 256 << 20;
/// Bytes of memory for frames, if not told otherwise.
const MEMORY: usize = 1 << 30;
/// Frames that wait or are held, if not told otherwise, and at most.
const FRAMES: [u32; 2] = [4, 1024];
/// Slices that wait until they are put into their frame.
const DEPTH: u32 = 4096;
/// A frame under way gets no more slices when none has come for so long, or for two periods, and some were lost since the frame
/// before it; else they are on their way still.
const SILENT: Duration = Duration::from_millis(200);
/// Or when none has come for so long, whatever was lost: its server may be gone.
const GIVEN_UP: Duration = Duration::from_secs(10);
/// Memory that is far too long for so many frames one after another is given back.
const KEPT_LONG: u32 = 100;
/// Slices after which counters are shown, if no frame is finished or passed over.
const COUNTED_EVERY: u32 = 256;

/// Which frames a client keeps while its application is busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Keep {
    /// The latest one; those before it are counted as skipped. For pictures that somebody looks at.
    #[default]
    Latest,
    /// All, up to [`ClientOptions::frames`]. Then no slices are taken until the application gives a frame back, and what
    /// comes waits as the server's [`Qos`] has it: of a reliable server the server may have to wait, of another it is lost
    /// and counted. For frames that each count.
    All,
}

/// How to connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientOptions {
    /// How it waits.
    pub qos: Qos,
    /// Which frames it keeps.
    pub keep: Keep,
    /// Most frames that wait or are held by the application, at most 1024; 0: 4. The client has memory for two more, which
    /// are under way.
    pub frames: u32,
    /// Whether frames that lack slices are delivered, with their [`holes`](Frame::holes). If not they are dropped and
    /// counted.
    pub holes: bool,
    /// The longest frame that is taken, in bytes; 0: 256 MiB.
    pub most_bytes: usize,
    /// Bytes of memory for frames, those that wait, are held or are under way together; 0: 1 GiB, or what three of the
    /// longest frames need, if that is more. A frame that does not fit is passed over and counted.
    pub memory: usize,
    /// Most slices that wait until they are put into their frame, a power of two up to 65536; 0: 4096.
    pub depth: u32,
}

impl ClientOptions {
    /// The usual ones, with this quality.
    pub fn new(qos: Qos) -> Self {
        Self {
            qos,
            ..Self::default()
        }
    }

    /// The same, keeping all frames.
    #[must_use]
    pub fn all(mut self) -> Self {
        self.keep = Keep::All;
        self
    }
}

/// What happened to the frames and slices of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Frames delivered, those with holes among them.
    pub frames: u64,
    /// Frames delivered with holes.
    pub with_holes: u64,
    /// Frames dropped because slices of them were lost.
    pub incomplete: u64,
    /// Frames of which no slice came at all, those before the end of the stream among them.
    pub lost: u64,
    /// Whole frames that the application was too slow for: a later one came.
    pub skipped: u64,
    /// Frames for which there was no memory: all was in use, or the system had none.
    pub no_memory: u64,
    /// Frames longer than the client takes.
    pub too_large: u64,
    /// Slices that came twice or after their frame had been given up.
    pub late: u64,
    /// Slices of another server of the same stream.
    pub other_server: u64,
    /// Of the slices, as messages of a topic.
    pub slices: SubscriberCounters,
}

/// Receives the frames of a stream, with a thread that puts them together.
///
/// `Send` and `Sync`.
#[derive(Debug)]
pub struct Client {
    name: String,
    shared: Arc<Shared>,
    reader: Option<(JoinHandle<()>, SubscriberWaker)>,
    process: u32,
}

/// A frame. Dropping it gives its memory back to the client.
pub struct Frame {
    data: Vec<u8>,
    about: About,
    shared: Arc<Shared>,
}

#[derive(Clone, Debug)]
struct About {
    server: u32,
    header: Header,
    holes: Vec<Range<usize>>,
    completed: TaiTime,
}

/// What the reader and the application share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// The reader may go on.
    room: Condvar,
    /// Readable while something waits.
    ready: OwnedFd,
    ends: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Item>,
    free: Vec<Vec<u8>>,
    /// Pieces of memory for frames, wherever they are, and their bytes.
    pieces: usize,
    bytes: usize,
    /// Frames that the application holds.
    held: usize,
    interrupted: bool,
    failure: Option<String>,
    frames: u64,
    with_holes: u64,
    incomplete: u64,
    skipped: u64,
    slices: SubscriberCounters,
    assembler: assembly::Counters,
}

#[derive(Debug)]
enum Item {
    Frame(Vec<u8>, About),
    End,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the descriptor readable, or not, as it is now. It is changed under the lock alone.
    fn signal(&self, state: &State) {
        let something = !state.queue.is_empty() || state.interrupted || state.failure.is_some();
        // It has room for a count, and none is no error that anybody could mend.
        let _ = if something {
            rustix::io::write(&self.ready, &1u64.to_ne_bytes())
        } else {
            rustix::io::read(&self.ready, &mut [0; 8])
        };
    }
}

/// How the reader gets memory and gets rid of frames.
struct Hands<'c> {
    shared: &'c Shared,
    keep: Keep,
    /// Pieces of memory at most, and bytes.
    most: usize,
    most_bytes: usize,
    holes: bool,
    /// Frames one after another that took memory which is far too long for them.
    long: u32,
    /// A frame was finished since this was looked at.
    finished: bool,
}

impl Memory for Hands<'_> {
    fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        if bytes > self.most_bytes {
            return None;
        }
        let mut state = self.shared.state();
        let memory = loop {
            // The shortest that is long enough, if there is one.
            let free = state.free.iter().enumerate();
            let fitting = free.filter(|(_, memory)| memory.len() >= bytes);
            let shortest = fitting.min_by_key(|(_, memory)| memory.len());
            if let Some((at, memory)) = shortest {
                let far_too_long = memory.len() / 2 > bytes;
                let memory = state.free.swap_remove(at);
                self.long = if far_too_long { self.long + 1 } else { 0 };
                // Not kept for ever, but while lengths change.
                if self.long < KEPT_LONG {
                    break memory;
                }
                state.bytes -= memory.len();
                state.pieces -= 1;
                continue;
            }
            if let Some(memory) = state.free.pop() {
                state.bytes -= memory.len();
                state.pieces -= 1;
                continue;
            }
            if state.pieces < self.most && state.bytes + bytes <= self.most_bytes {
                state.pieces += 1;
                state.bytes += bytes;
                break Vec::new();
            }
            if self.keep == Keep::Latest {
                // The oldest frame that waits gives way.
                let oldest = state
                    .queue
                    .iter()
                    .position(|item| matches!(item, Item::Frame(..)));
                let Some(Item::Frame(memory, _)) = oldest.and_then(|at| state.queue.remove(at))
                else {
                    return None;
                };
                state.skipped += 1;
                self.shared.signal(&state);
                state.free.push(memory);
                continue;
            }
            // What is under way itself is not waited for: no frame is given back for it.
            let waits = |item: &Item| matches!(item, Item::Frame(..));
            let given_back = state.held > 0 || state.queue.iter().any(waits);
            if !given_back || self.shared.ends.load(Ordering::Relaxed) {
                return None;
            }
            let waited = self.shared.room.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        if !memory.is_empty() {
            return Some(memory);
        }
        // One slice says how long its frame is: pages come with what is written.
        let memory = crate::zeroed(bytes);
        if memory.is_none() {
            let mut state = self.shared.state();
            state.pieces -= 1;
            state.bytes -= bytes;
        }
        memory
    }

    fn finish(&mut self, frame: Assembled) {
        let completed = crate::now();
        self.finished = true;
        let whole = frame.holes.is_empty();
        let mut state = self.shared.state();
        if !whole && !self.holes {
            state.incomplete += 1;
            state.free.push(frame.memory);
            return;
        }
        state.with_holes += u64::from(!whole);
        if self.keep == Keep::Latest {
            let State {
                queue,
                free,
                skipped,
                ..
            } = &mut *state;
            // That the stream has ended between two frames is told all the same.
            for item in std::mem::take(queue) {
                match item {
                    Item::Frame(memory, _) => {
                        *skipped += 1;
                        free.push(memory);
                    }
                    Item::End if queue.is_empty() => queue.push_back(Item::End),
                    Item::End => {}
                }
            }
        }
        let about = About {
            server: frame.server,
            header: frame.header,
            holes: frame.holes,
            completed,
        };
        state.queue.push_back(Item::Frame(frame.memory, about));
        self.shared.signal(&state);
    }
}

/// Tells the application when the reader panics: it waits for no more frames then.
struct TellPanic(Arc<Shared>);

impl Drop for TellPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.state();
            state.failure = Some("the thread of the stream panicked".to_owned());
            self.0.signal(&state);
        }
    }
}

/// What the reader's thread does.
struct Reader {
    slices: Slices,
    assembler: Assembler,
    shared: Arc<Shared>,
    keep: Keep,
    most: usize,
    most_bytes: usize,
    holes: bool,
}

impl Reader {
    fn run(mut self) {
        let shared = self.shared.clone();
        let _told = TellPanic(shared.clone());
        let mut hands = Hands {
            shared: &shared,
            keep: self.keep,
            most: self.most,
            most_bytes: self.most_bytes,
            holes: self.holes,
            long: 0,
            finished: false,
        };
        let mut silent = SILENT;
        let mut uncounted = 0;
        let mut passed_over = (0, 0);
        // When the last slice of use came, and until when the next one is waited for.
        let mut heard = Instant::now();
        let mut due = heard + silent;
        // What was lost when the last frame had got its slices.
        let mut lost = self.lost();
        // Relaxed: the wake-up after the store is what orders the two.
        while !shared.ends.load(Ordering::Relaxed) {
            let mut quiet = false;
            match self.slices.next(Wait::Until(due)) {
                Ok(Came::Slice(slice)) => {
                    let header = slice.header();
                    let (server, now) = (slice.server(), Instant::now());
                    let of_use = self
                        .assembler
                        .slice(server, header, &slice, now, &mut hands);
                    if of_use {
                        silent =
                            slices::period(header).map_or(SILENT, |period| SILENT.max(2 * period));
                        // It may have waited for memory.
                        heard = Instant::now();
                        due = heard + silent;
                    } else {
                        quiet = now >= due;
                    }
                    uncounted += 1;
                    let assembly::Counters {
                        no_memory,
                        too_large,
                        ..
                    } = self.assembler.counters;
                    let before = std::mem::replace(&mut passed_over, (no_memory, too_large));
                    let counted = uncounted >= COUNTED_EVERY || passed_over != before;
                    if !quiet && !counted && !hands.finished {
                        continue;
                    }
                }
                Ok(Came::End { server, frames }) => {
                    if self.assembler.end(server, frames, &mut hands) {
                        // Who hears of the end finds all of it counted.
                        self.count(&shared);
                        let mut state = shared.state();
                        if !matches!(state.queue.back(), Some(Item::End)) {
                            state.queue.push_back(Item::End);
                        }
                        shared.signal(&state);
                    }
                }
                Err(error) if error.is_timed_out() => quiet = true,
                // The next call waits for the runtime.
                Err(Error::Topic(takt_messaging::Error::Channel(
                    takt::Error::Disconnected | takt::Error::Protocol(_) | takt::Error::Interrupted,
                ))) => {}
                Err(error) => {
                    let mut state = shared.state();
                    state.failure = Some(error.to_string());
                    shared.signal(&state);
                    return;
                }
            }
            if quiet {
                due = Instant::now() + silent;
                if self.lost() != lost || heard.elapsed() >= GIVEN_UP {
                    self.assembler.flush(&mut hands);
                }
            }
            if std::mem::take(&mut hands.finished) {
                lost = self.lost();
            }
            uncounted = 0;
            self.count(&shared);
        }
    }

    /// Slices that were sent and will not come.
    fn lost(&self) -> u64 {
        let of = self.slices.counters().channels;
        // What sources of a trust domain say is anything.
        [of.lost_at_disconnect, of.dropped_full, of.dropped_memory]
            .into_iter()
            .fold(of.lost, u64::saturating_add)
    }

    /// Shows what was counted.
    fn count(&self, shared: &Shared) {
        let slices = self.slices.counters();
        let mut state = shared.state();
        (state.slices, state.assembler) = (slices, self.assembler.counters);
    }
}

impl Client {
    /// Connects to the stream of this name, whether or not it has a server yet.
    ///
    /// # Errors
    /// As [`Slices::connect`]; [`Error::Option`].
    pub fn connect(
        participant: &Participant,
        name: &str,
        options: ClientOptions,
    ) -> Result<Self, Error> {
        let or = |asked: u32, usual: u32| if asked == 0 { usual } else { asked };
        let [usual, most] = FRAMES;
        let frames = or(options.frames, usual);
        if frames > most {
            return Err(Error::Option(format!(
                "{frames} frames are too many to wait: write at most {most}"
            )));
        }
        let slices = Slices::connect(
            participant,
            name,
            SubscriberOptions {
                depth: or(options.depth, DEPTH),
                ..SubscriberOptions::new(options.qos)
            },
        )?;
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("make an event descriptor"))?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            room: Condvar::new(),
            ready,
            ends: AtomicBool::new(false),
        });
        let waker = slices.waker();
        let longest = match options.most_bytes {
            0 => MOST_BYTES,
            most => most,
        };
        let reader = Reader {
            slices,
            assembler: Assembler::new(longest),
            most_bytes: match options.memory {
                0 => MEMORY.max(longest.saturating_mul(1 + AT_ONCE)),
                memory => memory,
            },
            shared: shared.clone(),
            keep: options.keep,
            most: frames as usize + AT_ONCE,
            holes: options.holes,
        };
        let thread = takt::without_signals(|| {
            std::thread::Builder::new()
                .name("takt-stream".into())
                .spawn(|| reader.run())
        });
        let thread = thread.map_err(|source| takt_messaging::Error::System {
            what: "start the stream's thread",
            source,
        })?;
        Ok(Self {
            name: name.to_owned(),
            shared,
            reader: Some((thread, waker)),
            process: std::process::id(),
        })
    }

    /// The stream's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next frame.
    ///
    /// # Errors
    /// [`Error::EndOfStream`] once when the server has ended; [`Error::Failed`]; and [`Error::Topic`] with
    /// [`WouldBlock`](takt::Error::WouldBlock), [`TimedOut`](takt::Error::TimedOut),
    /// [`Interrupted`](takt::Error::Interrupted), [`Forked`](takt::Error::Forked).
    pub fn next(&self, wait: Wait) -> Result<Frame, Error> {
        if self.process != std::process::id() {
            return Err(takt::Error::Forked.into());
        }
        let deadline = wait.deadline();
        loop {
            let mut state = self.shared.state();
            if std::mem::take(&mut state.interrupted) {
                self.shared.signal(&state);
                return Err(takt::Error::Interrupted.into());
            }
            if let Some(item) = state.queue.pop_front() {
                self.shared.signal(&state);
                return match item {
                    Item::End => Err(Error::EndOfStream),
                    Item::Frame(data, about) => {
                        state.frames += 1;
                        state.held += 1;
                        Ok(Frame {
                            data,
                            about,
                            shared: self.shared.clone(),
                        })
                    }
                };
            }
            if let Some(failure) = &state.failure {
                return Err(Error::Failed(failure.clone()));
            }
            drop(state);
            if wait == Wait::Never {
                return Err(takt::Error::WouldBlock.into());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(takt::Error::TimedOut.into());
            }
            // None: longer than the kernel can count.
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [PollFd::new(&self.shared.ready, PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => return Err(takt::Error::Interrupted.into()),
                Err(errno) => return Err(Error::system("wait for a frame")(errno)),
            }
        }
    }

    /// A descriptor that is readable while [`next`](Self::next) has something to say.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.ready.as_fd()
    }

    /// The wait that is under way, or the next one if none is, fails with
    /// [`Interrupted`](takt::Error::Interrupted).
    pub fn wake(&self) {
        let mut state = self.shared.state();
        state.interrupted = true;
        self.shared.signal(&state);
    }

    /// What happened to frames and slices since it was opened; to slices until the client last took one, which it does not while
    /// [all](Keep::All) frames that it may keep wait.
    pub fn counters(&self) -> ClientCounters {
        let state = self.shared.state();
        let assembly::Counters {
            lost,
            no_memory,
            too_large,
            late,
            other_server,
            malformed,
        } = state.assembler;
        let mut slices = state.slices;
        slices.malformed += malformed;
        ClientCounters {
            frames: state.frames,
            with_holes: state.with_holes,
            incomplete: state.incomplete,
            lost,
            skipped: state.skipped,
            no_memory,
            too_large,
            late,
            other_server,
            slices,
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let Some((thread, waker)) = self.reader.take() else {
            return;
        };
        if self.process != std::process::id() {
            // Of the parent: its handle means nothing here, not even to be freed.
            std::mem::forget(thread);
            return;
        }
        {
            // Under the lock: the reader looks at it there before it waits for room.
            let _state = self.shared.state();
            self.shared.ends.store(true, Ordering::Relaxed);
        }
        self.shared.room.notify_all();
        waker.wake();
        // A panic has been printed.
        let _ = thread.join();
    }
}

impl Frame {
    /// Its number among those of its server. A gap is a loss, or frames that the application was too slow for.
    pub const fn number(&self) -> u64 {
        self.about.header.frame
    }

    /// Which server sent it: a number that is random at each opening.
    pub const fn server(&self) -> u32 {
        self.about.server
    }

    /// What it is.
    pub const fn format(&self) -> Format {
        self.about.header.format
    }

    /// When it was captured, by the server's clock.
    pub const fn captured(&self) -> TaiTime {
        self.about.header.captured
    }

    /// When its last slice was in place, by this node's clock.
    pub const fn completed(&self) -> TaiTime {
        self.about.completed
    }

    /// From frame to frame, if the server knows.
    pub fn period(&self) -> Option<Duration> {
        slices::period(&self.about.header)
    }

    /// What is missing, in order, as ranges of bytes: their content is arbitrary, often that of an earlier frame.
    pub fn holes(&self) -> &[Range<usize>] {
        &self.about.holes
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data[..self.format().bytes()]
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frame")
            .field("number", &self.number())
            .field("format", &self.format())
            .field("holes", &self.about.holes)
            .finish_non_exhaustive()
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.held -= 1;
        state.free.push(std::mem::take(&mut self.data));
        drop(state);
        self.shared.room.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Shared {
        Shared {
            state: Mutex::default(),
            room: Condvar::new(),
            ready: eventfd(0, EventfdFlags::NONBLOCK).expect("an event descriptor"),
            ends: AtomicBool::new(false),
        }
    }

    fn hands(shared: &Shared, most_bytes: usize) -> Hands<'_> {
        Hands {
            shared,
            keep: Keep::Latest,
            most: 6,
            most_bytes,
            holes: false,
            long: 0,
            finished: false,
        }
    }

    fn frame(memory: Vec<u8>) -> Assembled {
        let header = Header {
            frame: 0,
            captured: TaiTime::from_nanos(0),
            format: Format::of_bytes(memory.len()).expect("a format"),
            slice: 256,
            offset: 0,
            period_ns: 0,
        };
        let holes = Vec::new();
        Assembled {
            memory,
            server: 1,
            header,
            holes,
        }
    }

    #[test]
    fn memory_is_bounded_in_bytes_and_long_pieces_are_given_back() {
        let shared = shared();
        let mut hands = hands(&shared, 1000);
        assert!(hands.take(1001).is_none());
        let first = hands.take(600).expect("memory");
        assert!(hands.take(600).is_none(), "all of it is in use");
        hands.finish(frame(first));
        // What waits gives way, and is not kept for what is far shorter.
        let short = hands.take(100).expect("memory");
        assert_eq!((short.len(), shared.state().bytes), (100, 700));
        let other = hands
            .take(900)
            .expect("memory in the place of the one that waits");
        assert_eq!((other.len(), shared.state().bytes), (900, 1000));
        assert_eq!(shared.state().skipped, 1);
    }

    #[test]
    fn memory_is_not_given_back_while_lengths_change_and_is_when_frames_stay_short() {
        let shared = shared();
        let mut hands = hands(&shared, 10_000);
        let mut take = |bytes: usize| {
            let memory = hands.take(bytes).expect("memory");
            let at = memory.as_ptr();
            shared.state().free.push(memory);
            at
        };
        let first = take(1000);
        for _ in 0..2 * KEPT_LONG {
            assert_eq!((take(10), take(1000)), (first, first));
        }
        for _ in 0..KEPT_LONG {
            take(10);
        }
        assert_eq!(shared.state().bytes, 10);
    }

    #[test]
    fn memory_of_a_frame_of_which_little_has_come_is_not_touched() {
        let resident = || {
            let all = std::fs::read_to_string("/proc/self/status").expect("the kernel's figures");
            let line = all.lines().find(|line| line.starts_with("VmRSS:"));
            let kib = line.and_then(|line| line.split_whitespace().nth(1));
            kib.expect("a figure").parse::<usize>().expect("a number") << 10
        };
        let shared = shared();
        let mut hands = hands(&shared, 1 << 30);
        let before = resident();
        let memory = hands.take(1 << 30).expect("memory");
        assert!(resident().saturating_sub(before) < 1 << 28);
        assert_eq!((memory.len(), memory[1 << 29]), (1 << 30, 0));
    }

    #[test]
    fn the_end_of_a_server_is_no_frame_whose_memory_comes_back() {
        let shared = Arc::new(shared());
        // A server has ended, which the application does not know yet, and a frame of the next one is under way.
        shared.state().queue.push_back(Item::End);
        let taking = std::thread::spawn({
            let shared = shared.clone();
            move || {
                let mut hands = Hands {
                    keep: Keep::All,
                    ..hands(&shared, 1000)
                };
                let first = hands.take(600).expect("memory");
                (first.len(), hands.take(600).is_none())
            }
        });
        takt_testing::until_true("nothing is waited for", || taking.is_finished());
        assert_eq!(taking.join().expect("taken"), (600, true));
    }

    #[test]
    fn the_end_of_a_server_is_told_before_the_first_frame_of_the_next() {
        let shared = shared();
        let mut hands = hands(&shared, 1000);
        hands.finish(frame(vec![0; 10]));
        shared.state().queue.push_back(Item::End);
        hands.finish(frame(vec![0; 10]));
        let state = shared.state();
        assert!(matches!(state.queue[0], Item::End));
        assert!(matches!(state.queue[1], Item::Frame(..)));
        assert_eq!(state.queue.len(), 2);
    }
}
