//! The thread of a participant that tells others of its topics, hears of theirs, and hands what publishers have kept to
//! late joiners.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use takt::{ChannelId, Qos, Reliability, Session, Sink, SlowSinks, Source, Wait, Waker};

use super::joiners::Joiners;
use super::{DIRECTORY, Directory, Entry, HEARTBEAT, Heard, LEASE, Role, Said, Topic};
use crate::error::Error;
use crate::history::History;
use crate::topic::{Name, Pattern};

/// Longest wait for memory to say something; it is said later then.
const SAY: Duration = Duration::from_secs(1);
/// Shortest time between two questions, and between two answers that tell everything.
const PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between two updates: who opens thousands of topics one by one tells of many at once.
const UPDATE_PAUSE: Duration = Duration::from_millis(5);
/// Between two looks whether a late joiner can be reached.
const LOOK: Duration = Duration::from_millis(5);
/// Entries that are told in one message: 200 octets of name each, and about as many around it.
const PAGE: usize = 128;

/// Reliable, and nobody is waited for: who takes nothing asks when it is back.
const QOS: Qos = Qos::slow().with_reliability(Reliability::Reliable {
    deadline: None,
    slow_sinks: SlowSinks::Drop,
});

/// The channel of the inbox with this number, on which a subscriber gets what publishers have kept.
pub(crate) fn inbox(number: u64) -> ChannelId {
    ChannelId::named(&format!("topic-inbox/{number:016x}")).expect("a name of a channel")
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
pub(super) struct State {
    /// By the numbers under which they were added: others are told an `id`, which may be another one later.
    own: BTreeMap<u64, (Entry, Option<Arc<History>>)>,
    /// Since the last update that was said: numbers of those that came, and `id`s of those that went.
    added: Vec<u64>,
    removed: Vec<u64>,
    /// What publishers keep, by topic.
    pub(super) histories: HashMap<String, Vec<Arc<History>>>,
    /// Topics that have a publisher more which keeps messages: subscribers that are there already want them too.
    kept: HashSet<String>,
    pub(super) directory: Directory,
    watches: Vec<Weak<Watch>>,
    /// Changes that were heard of.
    heard: u64,
    /// When something was last not remembered for lack of room: as long as that is so it happens every few seconds.
    full: Option<Instant>,
    /// The list could not be told.
    untold: Option<String>,
    /// Late joiners that did not get, or not all of, what was kept.
    pub(super) given_up: u64,
    stop: bool,
    failure: Option<String>,
}

impl State {
    /// The runtime was away: subscribers may have missed what was published meanwhile, and what publishers kept of it is theirs. A
    /// subscriber gets it as one that has joined.
    fn begin_anew(&mut self) {
        let untold: HashSet<u64> = self.added.iter().copied().collect();
        for (number, (entry, history)) in &mut self.own {
            if history.is_some() {
                self.kept.insert(entry.topic.clone());
            }
            if entry.role == Role::Subscriber && entry.history > 0 {
                if !untold.contains(number) {
                    self.removed.push(entry.id);
                    self.added.push(*number);
                }
                entry.id = rand::random();
            }
        }
    }

    /// What this participant's publishers of a topic have kept.
    pub(super) fn histories(&self, topic: &str) -> &[Arc<History>] {
        self.histories.get(topic).map_or(&[], Vec::as_slice)
    }
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
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
        let stream = session.stream(QOS)?;
        let joiners = Joiners::new(session)?;
        let source = stream.source(channel)?;
        let sink = stream.sink(channel)?;
        let waker = sink.waker();
        let shared = Arc::new(Shared::default());
        let now = Instant::now();
        let speaker = Speaker {
            shared: shared.clone(),
            participant: rand::random(),
            name: name.to_owned(),
            session: session.clone(),
            attachments: session.attachments(),
            joiners,
            source,
            version: 0,
            whole: true,
            whole_from: now,
            heartbeat: now + HEARTBEAT,
            ask_from: now,
            answer_from: now,
            update_from: now,
            answer: false,
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
        if let Some(history) = &history {
            let histories = state.histories.entry(entry.topic.clone());
            histories.or_default().push(history.clone());
            state.kept.insert(entry.topic.clone());
        }
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
        let removed = state.own.remove(&id);
        let said = removed.as_ref().map(|(entry, _)| entry.id);
        if let Some((entry, Some(history))) = removed
            && let Some(histories) = state.histories.get_mut(&entry.topic)
        {
            histories.retain(|other| !Arc::ptr_eq(other, &history));
            if histories.is_empty() {
                state.histories.remove(&entry.topic);
            }
        }
        // Of one that nobody was told of there is nothing to tell.
        match state.added.iter().position(|added| *added == id) {
            Some(untold) => drop(state.added.swap_remove(untold)),
            None => state.removed.extend(said),
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
        let matching = state
            .directory
            .written()
            .filter(|name| pattern.matches(name));
        matching.map(str::to_owned).collect()
    }

    pub(crate) fn topics(&self) -> Vec<Topic> {
        // The list is made without the lock: the thread goes on meanwhile.
        let all = self.shared.lock().directory.snapshot();
        super::topics(&all)
    }

    /// Another topic that meets a condition, of those that are known.
    pub(crate) fn other_topic(&self, name: &Name, is: impl Fn(&Name) -> bool) -> Option<String> {
        self.shared.lock().directory.other_topic(name, is)
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

    /// Why others are told nothing any more, or not everything is known or was handed over, if so.
    pub(crate) fn problem(&self) -> Option<String> {
        let state = self.shared.lock();
        if state.failure.is_some() {
            return state.failure.clone();
        }
        let full = state.full.is_some_and(|full| full.elapsed() < LEASE);
        let problems = [
            full.then(|| "there are more topics than are remembered".to_owned()),
            state.untold.clone(),
            (state.given_up > 0).then(|| {
                format!(
                    "{} late joiner(s) did not get all that was kept for them",
                    state.given_up
                )
            }),
        ];
        let problems: Vec<String> = problems.into_iter().flatten().collect();
        (!problems.is_empty()).then(|| problems.join("; "))
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
    session: Session,
    /// How often that had been attached at the last look.
    attachments: u64,
    joiners: Joiners,
    source: Source,
    /// The version that was said last.
    version: u64,
    /// Everything is to be told, and from when on: again, if it could not be.
    whole: bool,
    whole_from: Instant,
    heartbeat: Instant,
    /// When the next question may be asked, the next answer be given, and the next update be said.
    ask_from: Instant,
    answer_from: Instant,
    update_from: Instant,
    /// Somebody has asked.
    answer: bool,
}

impl Speaker {
    fn run(mut self, sink: &Sink) {
        let _told = TellPanic(self.shared.clone());
        let _ = self.say(&Said::Ask { participant: None });
        loop {
            self.speak();
            self.joiners.serve(&self.shared, Instant::now());
            if self.shared.lock().stop {
                let participant = self.participant;
                let _ = self.say(&Said::Leave { participant });
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
        if self.whole {
            next = next.min(self.whole_from);
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
        let whole = (self.whole && now >= self.whole_from) || answer;
        let attachments = self.session.attachments();
        let came_back = std::mem::replace(&mut self.attachments, attachments) != attachments;
        let mut state = self.shared.lock();
        if came_back {
            state.begin_anew();
        }
        if state.directory.expire(now) {
            self.shared.tell(&mut state);
        }
        if !state.kept.is_empty() {
            // As many topics as may wait, if each is wanted once: the others follow.
            let some: HashSet<String> = state
                .kept
                .iter()
                .take(self.joiners.room())
                .cloned()
                .collect();
            state.kept.retain(|topic| !some.contains(topic));
            let wanting = state.directory.wanting(&some);
            self.joiners.add(&mut state, wanting);
        }
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        if whole || now >= self.update_from {
            std::mem::swap(&mut added, &mut state.added);
            std::mem::swap(&mut removed, &mut state.removed);
        }
        let changed = !added.is_empty() || !removed.is_empty();
        if changed || whole {
            let add: Vec<Entry> = match whole {
                true => state.own.values().map(|(entry, _)| entry.clone()).collect(),
                false => added
                    .iter()
                    .filter_map(|id| state.own.get(id))
                    .map(|(entry, _)| entry.clone())
                    .collect(),
            };
            drop(state);
            self.answer &= !whole;
            let told = self.tell(whole, changed, add, removed);
            self.heartbeat = now + HEARTBEAT;
            self.update_from = now + UPDATE_PAUSE;
            self.whole = told.is_err();
            self.whole_from = now + SAY;
            self.shared.lock().untold = told
                .err()
                .map(|error| format!("others are not told of all topics: {error}"));
        } else {
            drop(state);
            if now >= self.heartbeat {
                self.heartbeat = now + HEARTBEAT;
                let (participant, version) = (self.participant, self.version);
                let _ = self.say(&Said::Alive {
                    participant,
                    version,
                });
            }
        }
    }

    /// Tells what changed, or the whole list, in as many messages as it takes.
    fn tell(
        &mut self,
        whole: bool,
        changed: bool,
        add: Vec<Entry>,
        remove: Vec<u64>,
    ) -> Result<(), takt::Error> {
        let remove = if whole { Vec::new() } else { remove };
        let pages = add.len().div_ceil(PAGE).max(remove.len().div_ceil(PAGE));
        if whole {
            // The longer the list the seldomer it is told: whoever asks costs the channel no more than that.
            let pages = u32::try_from(pages).unwrap_or(u32::MAX);
            self.answer_from = Instant::now() + PAUSE.max((PAUSE / 8).saturating_mul(pages));
        }
        let (mut add, mut remove) = (add.into_iter(), remove.into_iter());
        for page in 0..pages.max(1) {
            // What has not changed keeps its version, if it is told at once.
            let to = match changed || self.version == 0 || pages > 1 {
                true => self.version + 1,
                false => self.version,
            };
            let update = Said::Update {
                participant: self.participant,
                name: self.name.clone(),
                from: if whole && page == 0 { 0 } else { self.version },
                to,
                add: add.by_ref().take(PAGE).collect(),
                remove: remove.by_ref().take(PAGE).collect(),
            };
            self.version = to;
            self.say(&update)?;
        }
        Ok(())
    }

    fn hear(&mut self, said: Said) {
        let now = Instant::now();
        let mut state = self.shared.lock();
        match state.directory.hear(now, said) {
            Heard::Nothing => {}
            Heard::Full(joined) => {
                state.full = Some(now);
                self.shared.tell(&mut state);
                self.joiners.add(&mut state, joined);
            }
            Heard::Changed(joined) => {
                self.shared.tell(&mut state);
                self.joiners.add(&mut state, joined);
            }
            Heard::Asked(of) => self.answer |= of.is_none_or(|of| of == self.participant),
            Heard::Unknown(participant) => {
                drop(state);
                // What it is now is asked for; what comes meanwhile is asked for when it says that it is there.
                if participant != self.participant && now >= self.ask_from {
                    self.ask_from = now + PAUSE / 5;
                    let participant = Some(participant);
                    let _ = self.say(&Said::Ask { participant });
                }
            }
        }
    }

    fn say(&self, said: &Said) -> Result<(), takt::Error> {
        // Texts and numbers: there is nothing that JSON has not.
        let text = serde_json::to_vec(said).unwrap_or_default();
        let mut buffer = self.source.buffer_wait(text.len(), Wait::For(SAY))?;
        buffer.copy_from_slice(&text);
        buffer.emit()?;
        Ok(())
    }
}

/// Tells the participant when the thread panics.
struct TellPanic(Arc<Shared>);

impl Drop for TellPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.lock();
            state.failure = Some("the thread of the directory of topics panicked".to_owned());
            self.0.tell(&mut state);
        }
    }
}
