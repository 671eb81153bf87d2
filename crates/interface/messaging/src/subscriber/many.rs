//! Reading several channels as one: those of a pattern, and what publishers have kept.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use elsa::FrozenVec;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use takt::{Message, Sink, SinkCounters, Wait};

use super::{Reading, Refused, Sample, SubscriberOptions, Twice};
use crate::directory::{Entry, LEASE, Role, Watch, inbox};
use crate::error::Error;
use crate::header::{self, Header, Strange};
use crate::participant::Participant;
use crate::topic::{Name, Pattern};

/// Marks the watch among what epoll tells of.
const WATCH: u64 = u64::MAX;
/// First and longest pause before a topic that could not be opened is tried again.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Failures after which one look tries no more topics: what is refused for lack of room is so for all of them.
const MOST_FAILURES: usize = 16;
/// Topics that are opened in one look: messages of the others wait no longer.
const MOST_OPENED: usize = 256;
/// Messages between two looks at what else is there.
const LOOK: u32 = 64;

/// What has a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Reading(usize),
    Inbox(usize),
}

impl Place {
    fn number(self) -> u64 {
        match self {
            Self::Reading(at) => (at as u64) << 1,
            Self::Inbox(at) => (at as u64) << 1 | 1,
        }
    }

    fn of(number: u64) -> Self {
        let at = usize::try_from(number >> 1).unwrap_or(usize::MAX);
        match number & 1 {
            0 => Self::Reading(at),
            _ => Self::Inbox(at),
        }
    }
}

/// Where what was kept comes, of topics that were opened before it: see the directory's joiners.
struct Inbox {
    number: u64,
    sink: Sink,
}

/// A topic that could not be opened.
#[derive(Debug)]
struct Unopened {
    why: String,
    again: Instant,
    pause: Duration,
}

/// Topics that are read, until they are [pruned](Many::prune): also one that nobody writes any more, for it may come back.
pub(super) struct Many {
    participant: Participant,
    options: SubscriberOptions,
    pattern: Option<(Pattern, u64)>,
    epoll: OwnedFd,
    watch: Arc<Watch>,
    /// Samples refer to them: nothing is taken out but by `prune`.
    readings: FrozenVec<Box<Reading>>,
    inboxes: FrozenVec<Box<Inbox>>,
    /// The readings' places by the check of their messages.
    places: RefCell<HashMap<u64, usize>>,
    /// Topics that match and could not be opened, or not with what was kept.
    unopened: RefCell<BTreeMap<String, Unopened>>,
    /// When topics are looked at again, though none comes or goes: the runtime was away, or did not answer.
    look_from: Cell<Option<Instant>>,
    twice: RefCell<Twice>,
    /// Those that may have something; the others are armed.
    ready: RefCell<VecDeque<Place>>,
    /// Messages until the next look at the watch and at the others.
    until_look: Cell<u32>,
    /// Topics may have come or gone since the last look for those that nobody writes.
    changed: Cell<bool>,
    /// Since when such topics were seen to have no publisher, by the check of their messages.
    unwritten: HashMap<u64, Instant>,
    /// When the next look for them is worth while, if there are any, though no topic comes or goes.
    prune_from: Option<Instant>,
    /// Of readings that were pruned.
    pruned: SinkCounters,
}

impl Many {
    fn new(
        participant: &Participant,
        options: &SubscriberOptions,
        what: &'static str,
    ) -> Result<Self, Error> {
        let service = participant.service(what)?;
        let make_epoll = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let many = Self {
            participant: participant.clone(),
            options: *options,
            pattern: None,
            epoll: make_epoll().map_err(Error::system("make an epoll instance"))?,
            watch: service.watch()?,
            readings: FrozenVec::new(),
            inboxes: FrozenVec::new(),
            places: RefCell::default(),
            unopened: RefCell::default(),
            look_from: Cell::new(None),
            twice: RefCell::default(),
            ready: RefCell::default(),
            until_look: Cell::new(0),
            changed: Cell::new(false),
            unwritten: HashMap::new(),
            prune_from: None,
            pruned: SinkCounters::default(),
        };
        many.add(&many.watch, WATCH)?;
        Ok(many)
    }

    /// A topic with what was kept.
    pub(super) fn of_name(
        participant: &Participant,
        name: Name,
        options: &SubscriberOptions,
    ) -> Result<Self, Error> {
        let many = Self::new(participant, options, "history")?;
        many.read(Box::new(Reading::open(participant, name, options, true)?))?;
        many.open_inbox()?;
        Ok(many)
    }

    pub(super) fn of_pattern(
        participant: &Participant,
        pattern: Pattern,
        options: &SubscriberOptions,
        id: u64,
    ) -> Result<Self, Error> {
        let mut many = Self::new(participant, options, "a pattern")?;
        many.pattern = Some((pattern, id));
        Ok(many)
    }

    /// The number of the one inbox of a whole name.
    pub(super) fn inbox_of_name(&self) -> u64 {
        self.inboxes.get(0).map_or(0, |inbox| inbox.number)
    }

    fn add(&self, what: &impl AsFd, data: u64) -> Result<(), Error> {
        let data = epoll::EventData::new_u64(data);
        epoll::add(&self.epoll, what.as_fd(), data, epoll::EventFlags::IN)
            .map_err(Error::system("watch a channel"))
    }

    fn add_sink(&self, sink: &Sink, place: Place) -> Result<(), Error> {
        let fd = sink.fd().expect("a sink with a descriptor");
        self.add(&fd, place.number())?;
        self.ready.borrow_mut().push_back(place);
        Ok(())
    }

    /// Reads one topic more.
    fn read(&self, reading: Box<Reading>) -> Result<(), Error> {
        let place = self.readings.len();
        self.add_sink(&reading.sink, Place::Reading(place))?;
        self.places.borrow_mut().insert(reading.name.check, place);
        self.readings.push(reading);
        Ok(())
    }

    /// Opens an inbox, and gives its number.
    fn open_inbox(&self) -> Result<u64, Error> {
        let number = rand::random::<u64>().max(1);
        let stream = self.participant.stream(self.options.qos)?;
        let sink = stream.sink_with(inbox(number), self.options.inbox())?;
        self.add_sink(&sink, Place::Inbox(self.inboxes.len()))?;
        self.inboxes.push(Box::new(Inbox { number, sink }));
        Ok(number)
    }

    /// Reads topics that match and were not there before.
    fn look(&self) -> Result<(), Error> {
        self.until_look.set(LOOK);
        self.watch.drain();
        let past = |from| Instant::now() >= from;
        let due = self.look_from.get().is_some_and(past);
        if due {
            self.look_from.set(None);
        }
        if !self.watch.take_change() && !due {
            return Ok(());
        }
        let Some((pattern, id)) = &self.pattern else {
            return Ok(());
        };
        self.changed.set(true);
        let matching = self.participant.service("a pattern")?.matching(pattern);
        let open = |name| Reading::open(&self.participant, name, &self.options, true);
        let opened = self.open_all(matching, Instant::now(), open);
        let opened = opened.and_then(|opened| self.begin(opened, *id));
        if opened.is_err() {
            // The next look is at all of them.
            self.watch.tell();
        }
        opened
    }

    /// Opens those of these topics that are not read, and notes which cannot be. The names are in order.
    fn open_all(
        &self,
        topics: Vec<String>,
        now: Instant,
        open: impl Fn(Name) -> Result<Reading, Error>,
    ) -> Result<Vec<Reading>, Error> {
        let mut unopened = self.unopened.borrow_mut();
        unopened.retain(|topic, _| topics.binary_search(topic).is_ok());
        let (mut opened, mut failures, mut why) = (Vec::new(), 0, String::new());
        let mut away = false;
        for topic in topics {
            let Ok(name) = Name::new(&topic) else {
                continue;
            };
            let before = unopened.get(&topic);
            if self.places.borrow().contains_key(&name.check)
                || before.is_some_and(|before| now < before.again)
            {
                continue;
            }
            if opened.len() >= MOST_OPENED {
                // The next look is at the others.
                self.watch.tell();
                break;
            }
            if failures < MOST_FAILURES {
                match open(name) {
                    Ok(reading) => {
                        unopened.remove(&topic);
                        opened.push(reading);
                        continue;
                    }
                    Err(error)
                        if is_without_room(&error) || matches!(error, Error::Collision { .. }) =>
                    {
                        failures += 1;
                        why = error.to_string();
                    }
                    Err(error) if is_away(&error) => {
                        // So it is for all of them.
                        failures = MOST_FAILURES;
                        why = error.to_string();
                        away = true;
                    }
                    Err(error) if opened.is_empty() => return Err(error),
                    Err(_) => {
                        // It is told at the next look: those that were opened are read.
                        self.watch.tell();
                        break;
                    }
                }
            }
            let pause = match before {
                Some(before) if !away => (before.pause * 2).min(RETRY[1]),
                _ => RETRY[0],
            };
            let (why, again) = (why.clone(), now + pause);
            unopened.insert(topic, Unopened { why, again, pause });
        }
        if away {
            self.look_again();
        }
        Ok(opened)
    }

    /// Looks again when those that were not opened may be tried again.
    fn look_again(&self) {
        self.look_from.set(Some(Instant::now() + RETRY[0]));
    }

    /// Begins to read topics by a pattern, whose channels are open.
    fn begin(&self, opened: Vec<Reading>, pattern: u64) -> Result<(), Error> {
        let inbox = match self.options.history {
            0 => None,
            _ if opened.is_empty() => None,
            _ => match self.open_inbox() {
                Ok(inbox) => Some(inbox),
                Err(error) if is_without_room(&error) => {
                    let now = Instant::now();
                    let unopened = opened.iter().map(|reading| {
                        let why = format!("what was kept of it does not come: {error}");
                        let (again, pause) = (now, RETRY[0]);
                        let unopened = Unopened { why, again, pause };
                        (reading.name.text.clone(), unopened)
                    });
                    self.unopened.borrow_mut().extend(unopened);
                    None
                }
                Err(error) if is_away(&error) => {
                    // They are opened again, with what was kept.
                    let (why, pause) = (error.to_string(), RETRY[0]);
                    let again = Instant::now() + pause;
                    let unopened = opened.into_iter().map(|reading| {
                        let why = why.clone();
                        (reading.name.text, Unopened { why, again, pause })
                    });
                    self.unopened.borrow_mut().extend(unopened);
                    self.look_again();
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
        };
        for mut reading in opened {
            if let Some(inbox) = inbox {
                let entry = Entry {
                    id: rand::random(),
                    topic: reading.name.text.clone(),
                    role: Role::Subscriber,
                    encoding: 0,
                    history: self.options.history,
                    inbox,
                    of: pattern,
                };
                reading.inbox = Some((inbox, self.participant.register(entry, None)));
            }
            self.read(Box::new(reading))?;
        }
        Ok(())
    }

    pub(super) fn take(&self, wait: Wait, refused: &RefCell<Refused>) -> Result<Sample<'_>, Error> {
        let wait = wait.from_now();
        loop {
            match self.until_look.get().checked_sub(1) {
                Some(left) => self.until_look.set(left),
                None => {
                    self.look()?;
                    self.poll(Some(Timespec::default()))?;
                }
            }
            if wait != Wait::Never && self.watch.take_wake() {
                return Err(takt::Error::Interrupted.into());
            }
            let next = self.ready.borrow_mut().pop_front();
            let Some(place) = next else {
                self.look()?;
                if !self.ready.borrow().is_empty() {
                    continue;
                }
                if !self.sleep(wait)? {
                    return Err(match wait {
                        Wait::Never => takt::Error::WouldBlock.into(),
                        _ => takt::Error::TimedOut.into(),
                    });
                }
                continue;
            };
            match self.take_from(place, refused) {
                Ok(Some(sample)) => return Ok(sample),
                Ok(None) => {}
                Err(error) => {
                    self.ready.borrow_mut().push_back(place);
                    return Err(error);
                }
            }
        }
    }

    fn sink(&self, place: Place) -> Option<&Sink> {
        match place {
            Place::Reading(at) => self.readings.get(at).map(|reading| &reading.sink),
            Place::Inbox(at) => self.inboxes.get(at).map(|inbox| &inbox.sink),
        }
    }

    /// A message of the sink at this place, if it has one; otherwise it is armed. With one, and whenever there may be
    /// more, the place is ready again.
    fn take_from(
        &self,
        place: Place,
        refused: &RefCell<Refused>,
    ) -> Result<Option<Sample<'_>>, Error> {
        let Some(sink) = self.sink(place) else {
            return Ok(None);
        };
        let mut message = match sink.consume(Wait::Never) {
            Ok(message) => message,
            Err(takt::Error::WouldBlock | takt::Error::Disconnected | takt::Error::Protocol(_)) => {
                if !sink.arm() {
                    self.ready.borrow_mut().push_back(place);
                }
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        self.ready.borrow_mut().push_back(place);
        let reading = match place {
            Place::Reading(at) => self.readings.get(at),
            Place::Inbox(_) => None,
        };
        let read = match reading {
            Some(reading) => {
                Header::read(&message, reading.name.check).map(|header| (header, reading))
            }
            None => self.kept(&mut message),
        };
        match read {
            Ok((header, _)) if self.options.history > 0 && self.twice.borrow_mut().is(&header) => {
                Ok(None)
            }
            Ok((header, reading)) => Ok(Some(Sample {
                message,
                header,
                topic: &reading.name.text,
            })),
            Err(strange) => {
                let name = reading.map(|reading| &reading.name);
                refused.borrow_mut().count(strange, name);
                Ok(None)
            }
        }
    }

    /// The header and topic of a message that was kept, which is cut to what was published.
    fn kept(&self, message: &mut Message<'_>) -> Result<(Header, &Reading), Strange> {
        let (topic, bytes) = header::read_kept(message).ok_or(Strange::Malformed)?;
        let name = Name::new(topic).map_err(|_| Strange::Malformed)?;
        let read = Header::read(message, name.check)?;
        let place = self.places.borrow().get(&read.check).copied();
        let reading = place.and_then(|place| self.readings.get(place));
        let reading = reading.ok_or(Strange::Foreign(read.check))?;
        message.truncate(bytes);
        match read.history {
            true => Ok((read, reading)),
            false => Err(Strange::Malformed),
        }
    }

    /// Gives back what belongs to topics that had no publisher at a look ten seconds ago, and still have none: as long
    /// as a participant may be silent before it is gone, and its last messages on their way. How many topics there were.
    pub(super) fn prune(&mut self, now: impl Fn() -> Instant) -> usize {
        let Some((pattern, _)) = &self.pattern else {
            return 0;
        };
        if !self.changed.take() && self.prune_from.is_none_or(|from| now() < from) {
            return 0;
        }
        let Ok(service) = self.participant.service("a pattern") else {
            return 0;
        };
        let (written, now) = (service.matching(pattern), now());
        self.unwritten
            .retain(|check, _| self.places.borrow().contains_key(check));
        let mut gone = Vec::new();
        for (at, reading) in self.readings.iter().enumerate() {
            let check = reading.name.check;
            if written.binary_search(&reading.name.text).is_ok() {
                self.unwritten.remove(&check);
                continue;
            }
            let since = *self.unwritten.entry(check).or_insert(now);
            if now.saturating_duration_since(since) >= LEASE && reading.sink.available() == 0 {
                gone.push(at);
            }
        }
        if !gone.is_empty() {
            self.remove(&gone);
        }
        // One that is due still has messages that were not taken.
        let looks = self.unwritten.values().map(|since| match *since + LEASE {
            due if due > now => due,
            _ => now + RETRY[0],
        });
        self.prune_from = looks.min();
        gone.len()
    }

    /// Takes readings out, whose places are in order, and inboxes that no reading has any more.
    fn remove(&mut self, gone: &[usize]) {
        let inboxes = std::mem::take(&mut self.inboxes).into_vec();
        let readings = std::mem::take(&mut self.readings).into_vec();
        self.places.get_mut().clear();
        self.ready.get_mut().clear();
        for (at, reading) in readings.into_iter().enumerate() {
            let old = Place::Reading(at);
            if gone.binary_search(&at).is_ok() {
                self.forget(&reading.sink);
                self.unwritten.remove(&reading.name.check);
                continue;
            }
            let place = self.readings.len();
            self.moved(&reading.sink, old, Place::Reading(place));
            self.places.get_mut().insert(reading.name.check, place);
            self.readings.push(reading);
        }
        for (at, inbox) in inboxes.into_iter().enumerate() {
            let used = |reading: &Reading| {
                let has = reading.inbox.as_ref();
                has.is_some_and(|(number, _)| *number == inbox.number)
            };
            if self.readings.iter().any(used) {
                let place = Place::Inbox(self.inboxes.len());
                self.moved(&inbox.sink, Place::Inbox(at), place);
                self.inboxes.push(inbox);
            } else {
                self.forget(&inbox.sink);
            }
        }
        let places = self.places.get_mut();
        let twice = self.twice.get_mut();
        twice.left(|check| !places.contains_key(&check));
    }

    /// A sink is about to be closed. Its descriptor may live on in the runtime.
    fn forget(&mut self, sink: &Sink) {
        add(&mut self.pruned, sink.counters());
        if let Some(fd) = sink.fd() {
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// A sink is told of by another place from now on, and looked at.
    fn moved(&mut self, sink: &Sink, from: Place, to: Place) {
        self.ready.get_mut().push_back(to);
        if from != to
            && let Some(fd) = sink.fd()
        {
            let data = epoll::EventData::new_u64(to.number());
            let _ = epoll::modify(&self.epoll, fd, data, epoll::EventFlags::IN);
        }
    }

    pub(super) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(super) fn arm(&self) -> bool {
        self.ready.borrow().is_empty()
    }

    pub(super) fn counters(&self) -> (SinkCounters, u64) {
        let mut sum = self.pruned;
        let readings = self.readings.iter().map(|reading| &reading.sink);
        let inboxes = self.inboxes.iter().map(|inbox| &inbox.sink);
        for sink in readings.chain(inboxes) {
            add(&mut sum, sink.counters());
        }
        (sum, self.unopened.borrow().len() as u64)
    }

    /// Which topics could not be opened, and why.
    pub(super) fn warning(&self) -> Option<String> {
        let unopened = self.unopened.borrow();
        let (topic, first) = unopened.first_key_value()?;
        let count = unopened.len();
        Some(format!(
            "{count} topic(s) could not be opened, such as {topic:?}: {}",
            first.why
        ))
    }

    /// Waits until something is ready, or the watch has something. False: there was nothing as long as `wait` says.
    fn sleep(&self, wait: Wait) -> Result<bool, Error> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let timeout = match wait {
            Wait::Forever => None,
            Wait::Never => Some(Duration::ZERO),
            Wait::For(duration) => Some(duration),
            Wait::Until(deadline) => Some(left(deadline)),
        };
        // The next look may be sooner.
        let look = self.look_from.get().map(left);
        let sooner = look.filter(|look| timeout.is_none_or(|timeout| *look < timeout));
        let timeout = sooner.or(timeout);
        let told = self.poll(timeout.and_then(|timeout| Timespec::try_from(timeout).ok()))?;
        Ok(told || sooner.is_some())
    }

    /// Takes in what is ready. Whether there was something.
    fn poll(&self, timeout: Option<Timespec>) -> Result<bool, Error> {
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 64];
        let told = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((told, _)) => told,
            Err(Errno::INTR) => return Err(takt::Error::Interrupted.into()),
            Err(errno) => return Err(Error::system("wait for channels")(errno)),
        };
        let mut ready = self.ready.borrow_mut();
        for event in &*told {
            match event.data.u64() {
                WATCH => self.until_look.set(0),
                place => {
                    let place = Place::of(place);
                    if !ready.contains(&place) {
                        ready.push_back(place);
                    }
                }
            }
        }
        Ok(!told.is_empty())
    }
}

/// Whether the runtime refuses a channel, or this process has no room for one: others may be open.
fn is_without_room(error: &Error) -> bool {
    matches!(
        error,
        Error::Channel(takt::Error::Refused(_) | takt::Error::System { .. }) | Error::System { .. }
    )
}

/// Whether the runtime is away, or does not answer: it may later.
fn is_away(error: &Error) -> bool {
    matches!(
        error,
        Error::Channel(
            takt::Error::Disconnected | takt::Error::TimedOut | takt::Error::Protocol(_)
        )
    )
}

fn add(sum: &mut SinkCounters, counters: SinkCounters) {
    sum.delivered += counters.delivered;
    sum.dropped_full += counters.dropped_full;
    sum.dropped_memory += counters.dropped_memory;
    sum.lost += counters.lost;
    sum.lost_at_disconnect += counters.lost_at_disconnect;
    sum.superseded += counters.superseded;
}

#[cfg(test)]
mod tests {
    use takt::Qos;
    use takt_embedded::{Embedded, Settings};
    use takt_testing::{Directory, until_true};

    use super::*;
    use crate::publisher::{Publisher, PublisherOptions};

    const HISTORY: SubscriberOptions = SubscriberOptions {
        qos: Qos::slow(),
        depth: 0,
        notify_fd: false,
        no_local: false,
        latest: false,
        history: 1,
    };

    fn participants() -> (Directory, Embedded, [Participant; 2]) {
        let directory = Directory::private();
        let settings = Settings {
            rendezvous: Some(directory.join("nodes")),
            ..Settings::local()
        };
        let runtime = Embedded::start(settings).expect("a runtime");
        let participants = ["one", "other"].map(|name| {
            let session = runtime.session(name).expect("a session");
            Participant::new(session).expect("a participant")
        });
        (directory, runtime, participants)
    }

    fn pattern(participant: &Participant, pattern: &str) -> Many {
        let pattern = Pattern::new(pattern).expect("a pattern");
        Many::of_pattern(participant, pattern, &HISTORY, 1).expect("opened")
    }

    /// The next message's topic and text.
    fn next(many: &Many) -> Option<(String, String)> {
        let sample = many.take(Wait::Never, &RefCell::default()).ok()?;
        let text = String::from_utf8_lossy(&sample).into_owned();
        Some((sample.topic().to_owned(), text))
    }

    fn writes(participant: &Participant, topic: &str) -> Publisher {
        let options = PublisherOptions {
            history: 1,
            ..PublisherOptions::default()
        };
        let publisher = participant.publisher_with(topic, options);
        let publisher = publisher.expect("a publisher");
        let wait = Wait::For(Duration::from_secs(60));
        publisher
            .publish(topic.as_bytes(), wait)
            .expect("published");
        publisher
    }

    #[test]
    fn a_pattern_gives_back_the_topics_that_nobody_writes_any_more() {
        const EACH: usize = 50;
        let (_directory, _runtime, [one, other]) = participants();
        let mut many = pattern(&other, "many/*");
        let stays = writes(&one, "many/stays");
        let go = Vec::from_iter((0..EACH).map(|at| writes(&one, &format!("many/{at}"))));
        let mut got = 0;
        until_true("all are read", || {
            while let Some((topic, text)) = next(&many) {
                assert_eq!(topic, text);
                got += 1;
            }
            got == EACH + 1
        });
        assert_eq!(many.prune(Instant::now), 0);
        // Nothing comes or goes, and no look is worth while.
        assert_eq!(many.prune_from, None);
        drop(go);
        until_true("nobody writes them", || {
            assert_eq!(next(&many), None);
            assert_eq!(many.prune(Instant::now), 0);
            many.unwritten.len() == EACH
        });
        let due = many.prune_from.expect("a time");
        assert_eq!(many.prune(|| due - Duration::from_millis(1)), 0);
        assert_eq!(many.prune(|| due + LEASE), EACH);
        assert_eq!((many.prune_from, many.readings.len()), (None, 1));
        assert_eq!(many.counters().0.delivered, EACH as u64 + 1);
        let wait = Wait::For(Duration::from_secs(60));
        stays.publish(b"still", wait).expect("published");
        until_true("it is read", || {
            next(&many).is_some_and(|(_, text)| text == "still")
        });
        let _again = writes(&one, "many/0");
        until_true("it is read again", || {
            next(&many).is_some_and(|(_, text)| text == "many/0")
        });
    }

    #[test]
    fn topics_that_could_not_be_opened_while_the_runtime_was_away_are_tried_again() {
        let (_directory, _runtime, [one, other]) = participants();
        let many = pattern(&other, "many/*");
        let _publisher = writes(&one, "many/1");
        let _other = writes(&one, "many/2");
        let matching = || {
            let service = other.service("a pattern").expect("a directory");
            service.matching(&many.pattern.as_ref().expect("a pattern").0)
        };
        until_true("they are known", || matching().len() == 2);
        many.watch.drain();
        many.watch.take_change();
        let tried = Cell::new(0);
        let away = |_| {
            tried.set(tried.get() + 1);
            Err(takt::Error::TimedOut.into())
        };
        let opened = many.open_all(matching(), Instant::now(), away);
        assert!(opened.expect("no failure").is_empty());
        assert_eq!((tried.get(), many.counters().1), (1, 2));
        // Whatever comes or goes before.
        many.watch.tell();
        let mut got = Vec::from_iter((0..2).map(|_| {
            let wait = Wait::For(Duration::from_secs(60));
            let refused = RefCell::default();
            let sample = many.take(wait, &refused).expect("a sample");
            sample.topic().to_owned()
        }));
        got.sort();
        assert_eq!(got, ["many/1", "many/2"]);
        assert_eq!((many.look_from.get(), many.counters().1), (None, 0));
    }
}
