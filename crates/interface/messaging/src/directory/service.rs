//! The thread of a participant that tells others of its topics, hears of theirs, and hands what publishers have kept to
//! late joiners.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use takt::{ChannelId, Qos, Reliability, Session, Sink, SlowSinks, Source, Stream, Wait, Waker};

use super::{DIRECTORY, Directory, Entry, HEARTBEAT, Heard, Said, Topic};
use crate::error::Error;
use crate::header;
use crate::history::History;
use crate::topic::{Asked, Pattern};

/// Longest wait for memory to say something; it is said later then.
const SAY: Duration = Duration::from_secs(1);
/// Shortest time between two questions, and between two answers that tell everything.
const PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between two updates: who opens thousands of topics one by one tells of many at once.
const UPDATE_PAUSE: Duration = Duration::from_millis(5);
/// Between two looks whether a late joiner can be reached.
const LOOK: Duration = Duration::from_millis(5);
/// How long that is looked for, and how long one may take nothing.
const JOINS_WITHIN: Duration = Duration::from_secs(10);
/// Late joiners that are served at a time, and that wait for it.
const SERVED: usize = 16;
const WAITING: usize = 4096;

/// Reliable, and nobody is waited for: who takes nothing asks when it is back.
const QOS: Qos = Qos::slow().with_reliability(Reliability::Reliable {
    deadline: None,
    slow_sinks: SlowSinks::Drop,
});

/// Reliable, and a late joiner that takes what was kept slowly gets it all the same: nobody else waits for it.
const JOINER_QOS: Qos = Qos::slow().with_reliability(Reliability::Reliable {
    deadline: None,
    slow_sinks: SlowSinks::Evict(JOINS_WITHIN),
});

/// The channel on which the subscriber with this number gets what publishers have kept.
pub(crate) fn inbox(subscriber: u64) -> ChannelId {
    ChannelId::named(&format!("topic-inbox/{subscriber:016x}")).expect("a name of a channel")
}

/// Tells a subscriber of a pattern that topics came or went.
#[derive(Debug)]
pub(crate) struct Watch {
    event: OwnedFd,
    changed: AtomicBool,
    woken: AtomicBool,
}

impl Watch {
    fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            event: rustix::event::eventfd(0, flags).map_err(Error::system("make an eventfd"))?,
            // What is there already has not been looked at.
            changed: AtomicBool::new(true),
            woken: AtomicBool::new(false),
        })
    }

    /// Topics came or went.
    pub(crate) fn tell(&self) {
        self.changed.store(true, Ordering::Release);
        self.signal();
    }

    /// Ends the wait that is under way, or the next.
    pub(crate) fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.signal();
    }

    /// Makes its descriptor readable.
    fn signal(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Takes the signals: its descriptor is readable with the next. Before the two that follow.
    pub(crate) fn drain(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Whether topics came or went since the last look.
    pub(crate) fn take_change(&self) -> bool {
        // Acquire: partner is the store in `tell`.
        self.changed.swap(false, Ordering::Acquire)
    }

    /// Whether a wait is to end.
    pub(crate) fn take_wake(&self) -> bool {
        // Acquire: partner is the store in `wake`.
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::Acquire)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// What the thread and its participant share.
#[derive(Debug, Default)]
struct State {
    own: BTreeMap<u64, (Entry, Option<Arc<History>>)>,
    /// Since the last update that was said.
    added: Vec<u64>,
    removed: Vec<u64>,
    directory: Directory,
    watches: Vec<Weak<Watch>>,
    /// Changes that were heard of.
    heard: u64,
    full: bool,
    stop: bool,
    failure: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Topics came or went.
    fn tell(&self, state: &mut State) {
        state.heard += 1;
        state.watches.retain(|watch| {
            let watch = watch.upgrade();
            if let Some(watch) = &watch {
                watch.tell();
            }
            watch.is_some()
        });
        self.changed.notify_all();
    }
}

/// The thread, as its participant has it.
pub(crate) struct Service {
    shared: Arc<Shared>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Service {
    pub(crate) fn start(session: &Session, name: &str) -> Result<Self, takt::Error> {
        let channel = ChannelId::named(DIRECTORY).expect("a name of a channel");
        let (stream, joiners_stream) = (session.stream(QOS)?, session.stream(JOINER_QOS)?);
        let source = stream.source(channel)?;
        let sink = stream.sink(channel)?;
        let waker = sink.waker();
        let shared = Arc::new(Shared::default());
        let now = Instant::now();
        let speaker = Speaker {
            shared: shared.clone(),
            participant: rand::random(),
            name: name.to_owned(),
            joiners_stream,
            source,
            version: 0,
            whole: true,
            heartbeat: now + HEARTBEAT,
            ask_from: now,
            answer_from: now,
            update_from: now,
            answer: false,
            joiners: VecDeque::new(),
        };
        let thread = takt::without_signals(|| {
            std::thread::Builder::new()
                .name("takt-topics".into())
                .spawn(move || speaker.run(&sink))
        })
        .map_err(|source| takt::Error::System {
            what: "start the thread of the directory of topics",
            source,
        })?;
        Ok(Self {
            shared,
            waker,
            thread: Some(thread),
            process: std::process::id(),
        })
    }

    /// Tells others of a publisher or subscriber.
    pub(crate) fn add(&self, entry: Entry, history: Option<Arc<History>>) {
        let mut state = self.shared.lock();
        state.added.push(entry.id);
        state.own.insert(entry.id, (entry, history));
        drop(state);
        self.waker.wake();
    }

    /// Tells others that it is gone.
    pub(crate) fn remove(&self, id: u64) {
        if self.forked() {
            return;
        }
        let mut state = self.shared.lock();
        state.own.remove(&id);
        // Of one that nobody was told of there is nothing to tell.
        match state.added.iter().position(|added| *added == id) {
            Some(untold) => drop(state.added.swap_remove(untold)),
            None => state.removed.push(id),
        }
        drop(state);
        self.waker.wake();
    }

    pub(crate) fn watch(&self) -> Result<Arc<Watch>, Error> {
        let watch = Arc::new(Watch::new()?);
        self.shared.lock().watches.push(Arc::downgrade(&watch));
        Ok(watch)
    }

    /// Names of topics that are written and match.
    pub(crate) fn matching(&self, pattern: &Pattern) -> Vec<String> {
        let state = self.shared.lock();
        let written = state.directory.written();
        let matching = written.into_iter().filter(|name| pattern.matches(name));
        matching.map(str::to_owned).collect()
    }

    pub(crate) fn topics(&self) -> Vec<Topic> {
        self.shared.lock().directory.topics()
    }

    /// Waits until nothing new has been heard of for `quiet`, `most` at the longest.
    pub(crate) fn settle(&self, quiet: Duration, most: Duration) {
        let end = Instant::now() + most;
        let mut state = self.shared.lock();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let heard = state.heard;
            let (after, timeout) = self
                .shared
                .changed
                .wait_timeout_while(state, quiet.min(left), |state| state.heard == heard)
                .unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                return;
            }
            state = after;
        }
    }

    /// Why others are told nothing any more, or not everything is known, if so.
    pub(crate) fn problem(&self) -> Option<String> {
        let state = self.shared.lock();
        let full = || "there are more topics than are remembered".to_owned();
        state.failure.clone().or_else(|| state.full.then(full))
    }

    fn forked(&self) -> bool {
        self.process != std::process::id()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        if self.forked() {
            // Of the parent: its handle means nothing here.
            std::mem::forget(thread);
            return;
        }
        self.shared.lock().stop = true;
        self.waker.wake();
        // A panic of it has been printed.
        let _ = thread.join();
    }
}

/// What the thread works on.
struct Speaker {
    shared: Arc<Shared>,
    participant: u64,
    name: String,
    joiners_stream: Stream,
    source: Source,
    /// The version that was said last.
    version: u64,
    /// The next update tells everything.
    whole: bool,
    heartbeat: Instant,
    /// When the next question may be asked, the next answer be given, and the next update be said.
    ask_from: Instant,
    answer_from: Instant,
    update_from: Instant,
    /// Somebody has asked.
    answer: bool,
    joiners: VecDeque<Joiner>,
}

/// A late joiner, and what it has not got yet.
struct Joiner {
    subscriber: u64,
    /// With their topics.
    messages: VecDeque<(Arc<str>, Arc<[u8]>)>,
    source: Option<Source>,
    until: Instant,
}

impl Speaker {
    fn run(mut self, sink: &Sink) {
        self.say(&Said::Ask { participant: None });
        loop {
            self.speak();
            self.serve();
            if self.shared.lock().stop {
                let participant = self.participant;
                self.say(&Said::Leave { participant });
                return;
            }
            match sink.consume(Wait::Until(self.next())) {
                Ok(message) => {
                    let said = serde_json::from_slice(&message);
                    drop(message);
                    if let Ok(said) = said {
                        self.hear(said);
                    }
                }
                Err(
                    takt::Error::TimedOut
                    | takt::Error::Interrupted
                    | takt::Error::Disconnected
                    | takt::Error::Protocol(_),
                ) => {}
                Err(error) => {
                    let mut state = self.shared.lock();
                    state.failure = Some(error.to_string());
                    self.shared.tell(&mut state);
                    return;
                }
            }
        }
    }

    /// When there is something to do, whatever is heard.
    fn next(&self) -> Instant {
        let mut next = self.heartbeat;
        if self.answer {
            next = next.min(self.answer_from);
        }
        let state = self.shared.lock();
        if !state.added.is_empty() || !state.removed.is_empty() {
            next = next.min(self.update_from);
        }
        drop(state);
        if !self.joiners.is_empty() {
            next = next.min(Instant::now() + LOOK);
        }
        next
    }

    /// Says what is due.
    fn speak(&mut self) {
        let now = Instant::now();
        let answer = self.answer && now >= self.answer_from;
        if answer {
            self.answer = false;
            self.answer_from = now + PAUSE;
        }
        let mut state = self.shared.lock();
        if state.directory.expire(now) {
            self.shared.tell(&mut state);
        }
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        if self.whole || answer || now >= self.update_from {
            std::mem::swap(&mut added, &mut state.added);
            std::mem::swap(&mut removed, &mut state.removed);
        }
        let changed = !added.is_empty() || !removed.is_empty();
        let whole = self.whole || answer;
        if changed || whole {
            let add = match whole {
                true => state.own.values().map(|(entry, _)| entry.clone()).collect(),
                false => added
                    .iter()
                    .filter_map(|id| state.own.get(id))
                    .map(|(entry, _)| entry.clone())
                    .collect(),
            };
            drop(state);
            let to = match changed || self.version == 0 {
                true => self.version + 1,
                false => self.version,
            };
            let update = Said::Update {
                participant: self.participant,
                name: self.name.clone(),
                from: if whole { 0 } else { self.version },
                to,
                add,
                remove: if whole { Vec::new() } else { removed },
            };
            self.version = to;
            self.whole = !self.say(&update);
            self.heartbeat = now + HEARTBEAT;
            self.update_from = now + UPDATE_PAUSE;
        } else {
            drop(state);
            if now >= self.heartbeat {
                self.heartbeat = now + HEARTBEAT;
                let (participant, version) = (self.participant, self.version);
                self.say(&Said::Alive {
                    participant,
                    version,
                });
            }
        }
    }

    fn hear(&mut self, said: Said) {
        let now = Instant::now();
        let mut state = self.shared.lock();
        match state.directory.hear(now, said) {
            Heard::Nothing => {}
            Heard::Full => state.full = true,
            Heard::Changed(joined) => {
                self.shared.tell(&mut state);
                for subscriber in joined {
                    self.joiners.extend(Joiner::all(&state, &subscriber, now));
                }
                drop(state);
                self.joiners.truncate(WAITING);
            }
            Heard::Asked(of) => self.answer |= of.is_none_or(|of| of == self.participant),
            Heard::Unknown(participant) => {
                drop(state);
                // What it is now is asked for; what comes meanwhile is asked for when it says that it is there.
                if participant != self.participant && now >= self.ask_from {
                    self.ask_from = now + PAUSE / 5;
                    let participant = Some(participant);
                    self.say(&Said::Ask { participant });
                }
            }
        }
    }

    /// Whether it could be said.
    fn say(&self, said: &Said) -> bool {
        let Ok(text) = serde_json::to_vec(said) else {
            return false;
        };
        let buffer = self.source.buffer_wait(text.len(), Wait::For(SAY));
        let emitted = buffer.and_then(|mut buffer| {
            buffer.copy_from_slice(&text);
            buffer.emit()
        });
        emitted.is_ok()
    }

    /// Hands late joiners what was kept, as far as there is memory.
    fn serve(&mut self) {
        let now = Instant::now();
        let served = self.joiners.len().min(SERVED);
        for _ in 0..served {
            let Some(mut joiner) = self.joiners.pop_front() else {
                return;
            };
            if joiner.serve(&self.joiners_stream, now) && now < joiner.until {
                self.joiners.push_back(joiner);
            }
        }
    }
}

impl Joiner {
    /// What each of a participant's own publishers has kept for a subscriber.
    fn all(state: &State, subscriber: &Entry, now: Instant) -> Option<Self> {
        let asked = Asked::new(&subscriber.topic).ok()?;
        let most = usize::try_from(subscriber.history).unwrap_or(usize::MAX);
        let kept = state.own.values().filter_map(|(entry, history)| {
            let wanted = match &asked {
                Asked::Name(name) => name.text == entry.topic,
                Asked::Pattern(pattern) => pattern.matches(&entry.topic),
            };
            let history = history.as_ref().filter(|_| wanted)?;
            Some((Arc::<str>::from(&*entry.topic), history.last(most)))
        });
        let messages: VecDeque<_> = kept
            .flat_map(|(topic, last)| {
                last.into_iter()
                    .map(move |message| (topic.clone(), message))
            })
            .collect();
        (!messages.is_empty()).then(|| Self {
            subscriber: subscriber.id,
            messages,
            source: None,
            until: now + JOINS_WITHIN,
        })
    }

    /// Whether there is more to do.
    fn serve(&mut self, stream: &Stream, now: Instant) -> bool {
        let source = match &mut self.source {
            Some(source) => source,
            none => match stream.source(inbox(self.subscriber)) {
                Ok(source) => none.insert(source),
                // Not for this tenant, or no memory: it may look again.
                Err(takt::Error::Refused(_)) => return false,
                Err(_) => return true,
            },
        };
        match source.readers() {
            Ok(0) => return true,
            Ok(_) => {}
            Err(_) => return true,
        }
        while let Some((topic, message)) = self.messages.front() {
            let Ok(mut buffer) = source.buffer(header::kept_bytes(message, topic)) else {
                return true;
            };
            header::write_kept(&mut buffer, message, topic);
            if buffer.emit().is_err() {
                return true;
            }
            self.messages.pop_front();
            self.until = now + JOINS_WITHIN;
        }
        false
    }
}
