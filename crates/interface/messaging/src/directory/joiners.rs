//! How late joiners get what a participant's publishers have kept.
//!
//! A subscriber opens the channel of its topic first and its inbox after that, and runtimes tell each other of sinks in
//! the order of their opening: once the inbox is seen to have a reader, what is emitted on the topic reaches the
//! subscriber too. What was kept until then, and is looked up only then, is what it misses: while a publisher emits a
//! message and keeps it nobody looks. What comes both ways the subscriber tells by its numbers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use takt::{Outcome, Qos, Reliability, Session, SlowSinks, Source, SourceOptions, Stream, Token};

use super::service::{Shared, State, inbox};
use super::{Entry, HEARTBEAT};
use crate::header;
use crate::history::{History, Next, Reader};

/// How long a late joiner is looked for from its first turn on, and how long one may take nothing.
const JOINS_WITHIN: Duration = Duration::from_secs(10);
/// Late joiners that are served at a time: each has a source meanwhile. And topics of those that wait for it.
const SERVED: usize = 16;
const WAITING: usize = 4096;
/// How long one of them may be out of reach before the next has its turn, and how long its first turn is when others
/// wait. The next ones are twice as long each: what it has begun with begins again, and it gets all of it at last.
const ABSENT: Duration = Duration::from_millis(20);
const SLOW: Duration = HEARTBEAT;
/// How often one of them is looked at before the others are.
const ROUNDS: usize = 64;
/// How long after a message was not taken it is known that its subscriber has left.
const SETTLES: Duration = HEARTBEAT;
/// Messages on their way to one of them.
const DEPTH: u32 = 64;

/// Reliable, and a late joiner that takes what was kept slowly gets it all the same: nobody else waits for it.
const QOS: Qos = Qos::slow().with_reliability(Reliability::Reliable {
    deadline: None,
    slow_sinks: SlowSinks::Evict(JOINS_WITHIN),
});

/// All of them.
pub(super) struct Joiners {
    stream: Stream,
    served: Vec<Served>,
    waiting: VecDeque<Joiner>,
    /// Subscribers that did not get something, by their ids: counted then, if they are there still. Who leaves is
    /// told of a moment later than what it did not take.
    doubtful: VecDeque<(u64, Instant)>,
}

/// An inbox, and what its subscriber wants there.
#[derive(Debug)]
struct Joiner {
    inbox: u64,
    wants: VecDeque<Want>,
    /// It is given up with the first turn that ends after this instant. `None`: it has had no turn.
    until: Option<Instant>,
    /// How long its next turn is, if it takes something.
    turn: Duration,
}

/// What the publishers of a topic have kept.
#[derive(Clone, Debug)]
struct Want {
    /// The subscriber.
    id: u64,
    topic: Arc<str>,
    most: usize,
}

/// One that is served.
struct Served {
    joiner: Joiner,
    source: Source,
    /// Of the first topic that it wants, those that it has not got.
    messages: Option<VecDeque<Reader>>,
    /// What has been emitted and of which it is not known yet whether it has got it.
    emitted: VecDeque<Emitted>,
    /// It goes without some of the topic that is emitted.
    misses: bool,
    /// The same of the first topic of which that is not known yet.
    failed: bool,
    /// Subscribers that went without something.
    doubtful: Vec<u64>,
    /// It has got something in this turn.
    got: bool,
    /// Another has its turn then.
    turn: Instant,
}

#[derive(Debug)]
enum Emitted {
    Message(Token),
    /// That was all of these, without some or not.
    All(Want, bool),
}

enum Step {
    /// It has everything.
    Done,
    /// It is there, and has got something.
    Got,
    /// It takes nothing now, or is not there yet.
    Waits,
}

impl Joiners {
    pub(super) fn new(session: &Session) -> Result<Self, takt::Error> {
        Ok(Self {
            stream: session.stream(QOS)?,
            served: Vec::new(),
            waiting: VecDeque::new(),
            doubtful: VecDeque::new(),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.served.is_empty() && self.waiting.is_empty() && self.doubtful.is_empty()
    }

    /// How many more topics may wait.
    pub(super) fn room(&self) -> usize {
        let waiting: usize = self.waiting.iter().map(|joiner| joiner.wants.len()).sum();
        WAITING.saturating_sub(waiting)
    }

    /// Takes in subscribers that want what was kept, if this participant has a publisher that keeps it.
    pub(super) fn add(&mut self, state: &mut State, joined: Vec<Entry>) {
        let mut room = self.room();
        let places = self.waiting.iter().enumerate();
        let mut places: HashMap<u64, usize> =
            places.map(|(at, joiner)| (joiner.inbox, at)).collect();
        for entry in joined {
            if state.histories(&entry.topic).is_empty() {
                continue;
            }
            let Some(less) = room.checked_sub(1) else {
                state.given_up += 1;
                continue;
            };
            room = less;
            let inbox = entry.inbox();
            let want = Want {
                id: entry.id,
                topic: entry.topic.into(),
                most: usize::try_from(entry.history).unwrap_or(usize::MAX),
            };
            // Those of a pattern have one inbox.
            match places.get(&inbox).and_then(|at| self.waiting.get_mut(*at)) {
                Some(joiner) => joiner.wants.push_back(want),
                None => {
                    places.insert(inbox, self.waiting.len());
                    self.waiting.push_back(Joiner {
                        inbox,
                        wants: VecDeque::from([want]),
                        until: None,
                        turn: SLOW,
                    });
                }
            }
        }
    }

    /// Hands over what was kept, as far as there is memory.
    pub(super) fn serve(&mut self, shared: &Shared, now: Instant) {
        self.count_doubtful(shared, now);
        self.admit(shared, now);
        // As many turns end as there are others for.
        let mut others = self.waiting.len();
        for at in (0..self.served.len()).rev() {
            let one = &mut self.served[at];
            let step = one.serve(shared);
            let doubtful = one.doubtful.drain(..).map(|id| (id, now + SETTLES));
            self.doubtful.extend(doubtful);
            match step {
                Step::Done => {
                    self.served.swap_remove(at);
                    continue;
                }
                Step::Got => {
                    one.joiner.until = Some(now + JOINS_WITHIN);
                    if !one.got {
                        (one.got, one.turn) = (true, now + one.joiner.turn);
                    }
                }
                Step::Waits => {}
            }
            let over = one.joiner.until.is_some_and(|until| now >= until);
            if over || (now >= one.turn && others > 0) {
                // Its source is another's now. What it has not got all of begins again: it knows what it has got.
                let Served {
                    mut joiner,
                    got,
                    emitted,
                    ..
                } = self.served.swap_remove(at);
                for unsure in emitted.into_iter().rev() {
                    if let Emitted::All(want, _) = unsure {
                        joiner.wants.push_front(want);
                    }
                }
                if over {
                    give_up(shared, &joiner);
                    continue;
                }
                others -= 1;
                if got {
                    joiner.turn *= 2;
                }
                self.waiting.push_back(joiner);
            }
        }
        self.admit(shared, now);
    }

    /// Counts those that did not get something and have not left since.
    fn count_doubtful(&mut self, shared: &Shared, now: Instant) {
        while let Some((id, _)) = self.doubtful.pop_front_if(|(_, due)| *due <= now) {
            let mut state = shared.lock();
            state.given_up += u64::from(state.directory.has(id));
        }
    }

    /// Begins with those that wait, as far as there is room and the session has sources.
    fn admit(&mut self, shared: &Shared, now: Instant) {
        while self.served.len() < SERVED {
            let Some(mut joiner) = self.waiting.pop_front() else {
                return;
            };
            let until = *joiner.until.get_or_insert(now + JOINS_WITHIN);
            let options = SourceOptions {
                depth: DEPTH,
                ..SourceOptions::default()
            };
            match self.stream.source_with(inbox(joiner.inbox), options) {
                Ok(source) => self.served.push(Served {
                    joiner,
                    source,
                    messages: None,
                    emitted: VecDeque::new(),
                    misses: false,
                    failed: false,
                    doubtful: Vec::new(),
                    got: false,
                    turn: now + ABSENT,
                }),
                // The session has no source or no memory now, or its policy never.
                Err(_) if now < until => {
                    self.waiting.push_back(joiner);
                    return;
                }
                Err(_) => give_up(shared, &joiner),
            }
        }
    }
}

/// Counts those that are there still, and have not got everything.
fn give_up(shared: &Shared, joiner: &Joiner) {
    let mut state = shared.lock();
    let left = joiner.wants.iter();
    let there = left.filter(|want| state.directory.has(want.id)).count() as u64;
    state.given_up += there;
}

impl Served {
    fn serve(&mut self, shared: &Shared) -> Step {
        let mut step = Step::Waits;
        for _ in 0..ROUNDS {
            if self.look_back() {
                step = Step::Got;
            }
            if self.joiner.wants.is_empty() {
                return match self.emitted.is_empty() {
                    true => Step::Done,
                    false => step,
                };
            }
            if self.emitted.len() >= DEPTH as usize || !matches!(self.source.readers(), Ok(1..)) {
                return step;
            }
            if !self.emit(shared, &mut step) {
                return step;
            }
        }
        step
    }

    /// Takes in what has become of what was emitted. True if it has got something.
    fn look_back(&mut self) -> bool {
        let mut got = false;
        while let Some(first) = self.emitted.front() {
            match first {
                Emitted::Message(token) => match self.source.outcome(*token) {
                    Outcome::Pending => return got,
                    Outcome::Sent => got = true,
                    // The runtime went away: it gets all that is kept again.
                    Outcome::Lost => {}
                    _ => self.failed = true,
                },
                Emitted::All(want, misses) => {
                    if std::mem::take(&mut self.failed) | *misses {
                        self.doubtful.push(want.id);
                    }
                }
            }
            self.emitted.pop_front();
        }
        got
    }

    /// Emits what it wants, as far as that is on its way without looking back. False: there is no memory now.
    fn emit(&mut self, shared: &Shared, step: &mut Step) -> bool {
        while let Some(want) = self.joiner.wants.front() {
            let messages = self.messages.get_or_insert_with(|| {
                let histories = shared.lock().histories(&want.topic).to_vec();
                let last = |history: &Arc<History>| history.last(want.most);
                histories.iter().map(last).collect()
            });
            while let Some(reader) = messages.front_mut() {
                if self.emitted.len() >= DEPTH as usize {
                    // Outcomes are remembered for twice as many.
                    return true;
                }
                let message = match reader.next() {
                    Next::Message(message) => message,
                    Next::Gone => {
                        self.misses = true;
                        continue;
                    }
                    Next::End => {
                        messages.pop_front();
                        continue;
                    }
                };
                let bytes = header::kept_bytes(message.len(), &want.topic);
                match self.source.buffer(bytes) {
                    Ok(mut buffer) => {
                        header::write_kept(&mut buffer, &message, &want.topic);
                        let Ok(token) = buffer.emit() else {
                            return false;
                        };
                        self.emitted.push_back(Emitted::Message(token));
                        *step = Step::Got;
                    }
                    // The runtime came back with a lower limit than it had when this was published.
                    Err(takt::Error::TooLarge { .. }) => self.misses = true,
                    Err(_) => return false,
                }
                reader.advance();
            }
            self.messages = None;
            let misses = std::mem::take(&mut self.misses);
            let want = self.joiner.wants.pop_front();
            self.emitted
                .extend(want.map(|want| Emitted::All(want, misses)));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use takt_embedded::{Embedded, Settings};
    use takt_testing::{Directory, until_true};

    use super::*;
    use crate::directory::{Role, Said};

    fn session() -> (Directory, Embedded, Session) {
        let directory = Directory::private();
        let settings = Settings {
            rendezvous: Some(directory.join("nodes")),
            ..Settings::local()
        };
        let runtime = Embedded::start(settings).expect("a runtime");
        let session = runtime.session("one").expect("a session");
        (directory, runtime, session)
    }

    /// Keeps a message of this length that begins with a header and its number.
    fn keep(history: &History, number: u64, len: usize) {
        let mut message = vec![0; header::BYTES + len];
        message[header::BYTES..][..8].copy_from_slice(&number.to_le_bytes());
        let kept = history.keep(message.into(), || Ok::<_, ()>(()));
        kept.expect("kept");
    }

    /// One that wants what this publisher of the topic has kept.
    fn joins(joiners: &mut Joiners, shared: &Shared, history: &Arc<History>) {
        let mut state = shared.lock();
        state.histories.insert("log".into(), vec![history.clone()]);
        let joined = Entry {
            id: 1,
            topic: "log".into(),
            role: Role::Subscriber,
            encoding: 0,
            history: 1000,
            inbox: 1,
            of: 0,
        };
        let said = Said::Update {
            participant: 1,
            name: String::new(),
            from: 0,
            to: 1,
            add: vec![joined.clone()],
            remove: Vec::new(),
        };
        state.directory.hear(Instant::now(), said);
        joiners.add(&mut state, vec![joined]);
    }

    /// Nobody is served any more.
    fn is_over(joiners: &Joiners) -> bool {
        joiners.served.is_empty() && joiners.waiting.is_empty()
    }

    /// Serves it to the end; the numbers of what has come, so many at least.
    fn served(joiners: &mut Joiners, shared: &Shared, sink: &takt::Sink, least: usize) -> Vec<u64> {
        let (mut numbers, now) = (Vec::new(), Instant::now());
        until_true("it is served", || {
            joiners.serve(shared, now);
            while let Ok(message) = sink.consume(takt::Wait::Never) {
                let number = message[header::BYTES..][..8].try_into().expect("8 bytes");
                numbers.push(u64::from_le_bytes(number));
            }
            is_over(joiners) && numbers.len() >= least
        });
        joiners.serve(shared, now + SETTLES);
        assert!(joiners.is_empty());
        numbers
    }

    #[test]
    fn what_has_become_too_long_is_passed_over_and_counted() {
        let (_directory, _runtime, session) = session();
        let mut joiners = Joiners::new(&session).expect("joiners");
        let shared = Shared::default();
        let sink = joiners.stream.sink(inbox(1)).expect("a sink");
        let longest = joiners.stream.source(inbox(2)).expect("a source");
        let history = Arc::new(History::new(10, usize::MAX));
        keep(&history, 0, 8);
        // As it is emitted, but with no room for the topic's name.
        keep(&history, 1, longest.max_message() - header::BYTES);
        keep(&history, 2, 8);
        joins(&mut joiners, &shared, &history);
        assert_eq!(served(&mut joiners, &shared, &sink, 2), [0, 2]);
        assert_eq!(shared.lock().given_up, 1);
    }

    #[test]
    fn what_is_not_kept_any_more_when_its_turn_comes_is_passed_over_and_counted() {
        const KEPT: u64 = 500;
        let (_directory, _runtime, session) = session();
        let mut joiners = Joiners::new(&session).expect("joiners");
        let (shared, now) = (Shared::default(), Instant::now());
        let few = takt::SinkOptions {
            depth: 16,
            ..takt::SinkOptions::default()
        };
        let sink = joiners.stream.sink_with(inbox(1), few).expect("a sink");
        let bytes = (header::BYTES + 8) * KEPT as usize;
        let history = Arc::new(History::new(KEPT as usize, bytes));
        for number in 0..KEPT {
            keep(&history, number, 8);
        }
        joins(&mut joiners, &shared, &history);
        until_true("it is there", || {
            joiners.serve(&shared, now);
            sink.available() > 0
        });
        for number in KEPT..3 * KEPT {
            keep(&history, number, 8);
        }
        // It gets those that were on their way, and nothing that was published after it came.
        let numbers = served(&mut joiners, &shared, &sink, 1);
        assert_eq!(numbers, Vec::from_iter(0..numbers.len() as u64));
        assert!((numbers.len() as u64) < KEPT);
        assert_eq!(shared.lock().given_up, 1);
    }

    #[test]
    fn what_one_that_takes_nothing_does_without_is_counted() {
        let (_directory, runtime, session) = session();
        let mut joiners = Joiners::new(&session).expect("joiners");
        let (shared, now) = (Shared::default(), Instant::now());
        let few = takt::SinkOptions {
            depth: 16,
            ..takt::SinkOptions::default()
        };
        let other = runtime.session("other").expect("a session");
        let stream = other.stream(QOS).expect("a stream");
        let sink = stream.sink_with(inbox(1), few).expect("a sink");
        let history = Arc::new(History::new(60, usize::MAX));
        (0..60).for_each(|number| keep(&history, number, 8));
        joins(&mut joiners, &shared, &history);
        until_true("the runtime does without it", || {
            joiners.serve(&shared, now);
            is_over(&joiners)
        });
        assert_eq!((sink.available(), shared.lock().given_up), (16, 0));
        // It is there still.
        joiners.serve(&shared, now + SETTLES);
        assert_eq!(shared.lock().given_up, 1);
    }

    /// One that wants what was kept of a topic, and has no inbox.
    fn nobody(id: u64) -> Joiner {
        let want = Want {
            id,
            topic: "log".into(),
            most: 1,
        };
        Joiner {
            inbox: id,
            wants: VecDeque::from([want]),
            until: None,
            turn: SLOW,
        }
    }

    #[test]
    fn who_has_its_first_turn_late_behind_others_that_nobody_is_gets_what_was_kept() {
        let (_directory, _runtime, session) = session();
        let mut joiners = Joiners::new(&session).expect("joiners");
        let (shared, mut now) = (Shared::default(), Instant::now());
        joiners.waiting = (100..200).map(nobody).collect();
        let sink = joiners.stream.sink(inbox(1)).expect("a sink");
        let history = Arc::new(History::new(10, usize::MAX));
        keep(&history, 7, 8);
        joins(&mut joiners, &shared, &history);
        // As when all take long.
        while !joiners.served.iter().any(|one| one.joiner.inbox == 1) {
            assert!(joiners.waiting.iter().any(|one| one.inbox == 1));
            now += JOINS_WITHIN;
            joiners.serve(&shared, now);
        }
        until_true("it is served", || {
            joiners.serve(&shared, now);
            sink.available() > 0
        });
    }

    #[test]
    fn who_waits_too_long_is_counted() {
        const ALL: u64 = 20;
        let (_directory, _runtime, session) = session();
        let mut joiners = Joiners::new(&session).expect("joiners");
        let (shared, now) = (Shared::default(), Instant::now());
        // Two of them are not there any more when they are given up.
        let add = (2..ALL).map(|id| Entry {
            id,
            topic: "log".into(),
            role: Role::Subscriber,
            encoding: 0,
            history: 1,
            inbox: 0,
            of: 0,
        });
        let said = Said::Update {
            participant: 1,
            name: String::new(),
            from: 0,
            to: 1,
            add: add.collect(),
            remove: Vec::new(),
        };
        shared.lock().directory.hear(now, said);
        joiners.waiting = (0..ALL).map(nobody).collect();
        joiners.serve(&shared, now);
        let waiting = joiners.waiting.len();
        assert_eq!((joiners.served.len(), waiting), (SERVED, 4));
        for turn in 1..=2 {
            joiners.serve(&shared, now + turn * JOINS_WITHIN);
        }
        assert!(joiners.is_empty());
        assert_eq!(shared.lock().given_up, ALL - 2);
    }
}
