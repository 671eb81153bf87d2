//! Reading topics.

mod many;
mod task;

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use serde::de::DeserializeOwned;
use takt::{Mapping, Message, Qos, Sink, SinkCounters, SinkOptions, TaiTime, Wait};

pub use task::SubscriberTask;

use self::many::Many;
use crate::directory::{Entry, Role};
use crate::error::Error;
use crate::header::{BYTES, Encoding, Header, Strange};
use crate::participant::{Claim, Participant, Registered};
use crate::publisher::depth;
use crate::topic::{Asked, Name};

/// How to open a subscriber.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscriberOptions {
    /// How it waits.
    pub qos: Qos,
    /// Most messages of a topic that wait or are held at once, a power of two up to 65536; 0:
    /// [`DEPTH`](crate::DEPTH).
    pub depth: u32,
    /// A descriptor for an event loop is wanted: [`Subscriber::fd`].
    pub notify_fd: bool,
    /// What this very session publishes is not for this subscriber.
    pub no_local: bool,
    /// The newest message of each topic alone, of whichever publisher: it takes the place of one that was not taken, so that
    /// whoever looks seldom sees what is, not what was. `depth`, if it is 0, is 16 then: how many may be held.
    pub latest: bool,
    /// How many of the last messages of each publisher it wants to begin with, of those that publishers keep.
    pub history: u32,
}

impl SubscriberOptions {
    /// The usual ones, with this quality.
    pub fn new(qos: Qos) -> Self {
        Self {
            qos,
            ..Self::default()
        }
    }

    fn sink(&self, notify_fd: bool) -> SinkOptions {
        SinkOptions {
            depth: match self.latest {
                true => self.depth,
                false => depth(self.depth),
            },
            notify_fd,
            no_local: self.no_local,
            latest: self.latest,
        }
    }

    /// The sink of what was kept, which holds all of it whatever the topics' own sinks hold.
    fn inbox(&self) -> SinkOptions {
        SinkOptions {
            depth: depth(self.depth),
            notify_fd: true,
            ..SinkOptions::default()
        }
    }
}

/// What happened to the messages of a subscriber.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscriberCounters {
    /// Of its channels.
    pub channels: SinkCounters,
    /// Refused: they were written by another topic with the same channel.
    pub foreign: u64,
    /// Refused: no publisher has written them.
    pub malformed: u64,
    /// Topics that a pattern matches now and that could not be opened, by policy or for lack of endpoints or memory, or not
    /// with what was kept: [`Subscriber::warning`] says which.
    pub unopened: u64,
}

/// A message of a topic, read in place. Dropping it gives its memory back.
#[derive(Debug)]
pub struct Sample<'s> {
    message: Message<'s>,
    header: Header,
    topic: &'s str,
}

impl Sample<'_> {
    /// Its topic.
    pub fn topic(&self) -> &str {
        self.topic
    }

    /// How it is to be read.
    pub fn encoding(&self) -> Encoding {
        self.header.encoding
    }

    /// Which publisher wrote it: a number that is random at each opening.
    pub fn publisher(&self) -> u32 {
        self.header.publisher
    }

    /// How many messages the publisher had written before. A gap is a loss, or what was [superseded](SubscriberOptions::latest).
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// It was published before the subscriber joined, and kept for it. It may come after messages that were published
    /// later.
    pub fn is_history(&self) -> bool {
        self.header.history
    }

    /// When the publisher's runtime took the message; one that was kept ([`is_history`](Self::is_history)): when it took it again, for
    /// this subscriber. When it was published first is not known.
    pub fn send_time(&self) -> TaiTime {
        self.message.send_time()
    }

    /// What keeps its memory mapped also when the message is gone.
    pub fn mapping(&self) -> Option<Mapping> {
        self.message.mapping()
    }

    /// Reads it as JSON, which its publisher has declared it to be.
    ///
    /// # Errors
    /// [`Error::Encoding`]; [`Error::Json`].
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        Error::unless_json("message", self.topic, self.header.encoding)?;
        Ok(serde_json::from_slice(self)?)
    }
}

impl std::ops::Deref for Sample<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.message[BYTES..]
    }
}

/// Reads a topic, or all topics that a pattern matches. Each subscriber of a topic gets every message.
///
/// `Send`, not `Sync`: one thread at a time.
pub struct Subscriber {
    asked: String,
    reads: Reads,
    refused: RefCell<Refused>,
    registered: Registered,
}

#[derive(Clone, Debug, Default)]
struct Refused {
    foreign: u64,
    malformed: u64,
    /// The topic on whose channel another one was first written, and the check of that.
    first_foreign: Option<(Name, u64)>,
}

impl Refused {
    #[cold]
    fn count(&mut self, strange: Strange, name: Option<&Name>) {
        match strange {
            Strange::Foreign(check) => {
                self.foreign += 1;
                if self.first_foreign.is_none() {
                    self.first_foreign = name.map(|name| (name.clone(), check));
                }
            }
            Strange::Malformed => self.malformed += 1,
        }
    }
}

enum Reads {
    /// One topic, as it comes.
    One(Box<Reading>),
    /// Topics of a pattern, or one with what was kept.
    Many(Box<Many>),
}

/// A topic that is read.
struct Reading {
    name: Name,
    sink: Sink,
    /// With what was kept: others are told that it reads, and where it gets that.
    inbox: Option<(u64, Registered)>,
    _claim: Claim,
}

impl Reading {
    fn open(
        participant: &Participant,
        name: Name,
        options: &SubscriberOptions,
        notify_fd: bool,
    ) -> Result<Self, Error> {
        let claim = participant.claim(&name)?;
        let stream = participant.stream(options.qos)?;
        Ok(Self {
            sink: stream.sink_with(name.channel, options.sink(notify_fd))?,
            name,
            inbox: None,
            _claim: claim,
        })
    }
}

/// Which messages were delivered, where what was kept may come beside what comes.
#[derive(Debug, Default)]
struct Twice {
    /// Publishers heard of since the others were, each with the check of its topic.
    newer: HashMap<(u64, u32), Delivered>,
    older: HashMap<(u64, u32), Delivered>,
}

#[derive(Clone, Debug, Default)]
struct Delivered {
    /// Those that came as they were published.
    live: Runs,
    /// Those that had been kept.
    kept: Runs,
}

/// Numbers of messages: runs without a gap, the one that grew last at the end.
#[derive(Clone, Debug, Default)]
struct Runs(Vec<(u64, u64)>);

impl Runs {
    /// Runs that are remembered: there is a gap only where a message was lost, or not kept any more.
    const MOST: usize = 64;

    #[inline]
    fn has(&self, number: u64) -> bool {
        self.0.iter().any(|run| within(run, number))
    }

    #[inline]
    fn add(&mut self, (mut from, mut to): (u64, u64)) {
        if let Some((_, last)) = self.0.last_mut()
            && last.checked_add(1) == Some(from)
            && from == to
        {
            *last = to;
            return;
        }
        self.0.retain(|&(first, last)| {
            let apart = to.saturating_add(1) < first || last.saturating_add(1) < from;
            if !apart {
                (from, to) = (from.min(first), to.max(last));
            }
            apart
        });
        if self.0.len() >= Self::MOST {
            self.0.remove(0);
        }
        self.0.push((from, to));
    }
}

fn within((first, last): &(u64, u64), number: u64) -> bool {
    (*first..=*last).contains(&number)
}

impl Twice {
    /// Publishers that are remembered, of those heard of last; and up to as many more.
    const MOST: usize = 32_768;

    /// Whether it has come before.
    fn is(&mut self, header: &Header) -> bool {
        let publisher = (header.check, header.publisher);
        if self.newer.len() >= Self::MOST && !self.newer.contains_key(&publisher) {
            self.older = std::mem::take(&mut self.newer);
        }
        let delivered = self
            .newer
            .entry(publisher)
            .or_insert_with(|| self.older.remove(&publisher).unwrap_or_default());
        let number = header.number;
        if delivered.kept.has(number) {
            return true;
        }
        if header.history {
            if delivered.live.has(number) {
                return true;
            }
            delivered.kept.add((number, number));
        } else {
            delivered.live.add((number, number));
        }
        false
    }

    /// Topics are not read any more. Should they be again, what their publishers have kept until then comes anew, without
    /// what was delivered.
    fn left(&mut self, is: impl Fn(u64) -> bool) {
        let all = self.newer.iter_mut().chain(&mut self.older);
        for (_, delivered) in all.filter(|((check, _), _)| is(*check)) {
            for live in std::mem::take(&mut delivered.live).0 {
                delivered.kept.add(live);
            }
        }
    }
}

impl Subscriber {
    pub(crate) fn open(
        participant: &Participant,
        topic: &str,
        options: SubscriberOptions,
    ) -> Result<Self, Error> {
        let mut entry = Entry {
            id: rand::random(),
            topic: topic.to_owned(),
            role: Role::Subscriber,
            encoding: 0,
            history: options.history,
            inbox: 0,
            of: 0,
        };
        let reads = match Asked::new(topic)? {
            Asked::Name(name) if options.history == 0 => {
                let reading = Reading::open(participant, name, &options, options.notify_fd)?;
                Reads::One(Box::new(reading))
            }
            Asked::Name(name) => {
                let many = Many::of_name(participant, name, &options)?;
                entry.inbox = many.inbox_of_name();
                Reads::Many(Box::new(many))
            }
            Asked::Pattern(pattern) => {
                // Of each topic that it reads others are told then.
                entry.history = 0;
                let many = Many::of_pattern(participant, pattern, &options, entry.id)?;
                Reads::Many(Box::new(many))
            }
        };
        Ok(Self {
            asked: topic.to_owned(),
            reads,
            refused: RefCell::default(),
            // Now that it reads: what publishers have kept comes from here on.
            registered: participant.register(entry, None),
        })
    }

    /// What it asked for: the name of a topic, or a pattern.
    pub fn topic(&self) -> &str {
        &self.asked
    }

    /// The next message. Several may be held at once; dropping one releases it.
    ///
    /// # Errors
    /// [`Error::Channel`], as [`Sink::consume`]: [`WouldBlock`](takt::Error::WouldBlock) with [`Wait::Never`] and none.
    pub fn take(&self, wait: Wait) -> Result<Sample<'_>, Error> {
        match &self.reads {
            Reads::One(reading) => self.take_one(reading, wait),
            Reads::Many(many) => many.take(wait, &self.refused),
        }
    }

    #[inline]
    fn take_one<'s>(&self, reading: &'s Reading, wait: Wait) -> Result<Sample<'s>, Error> {
        let wait = wait.from_now();
        loop {
            let message = reading.sink.consume(wait)?;
            match Header::read(&message, reading.name.check) {
                Ok(header) => {
                    return Ok(Sample {
                        message,
                        header,
                        topic: &reading.name.text,
                    });
                }
                Err(strange) => self
                    .refused
                    .borrow_mut()
                    .count(strange, Some(&reading.name)),
            }
        }
    }

    /// Waits for messages and yields them, until a wait fails: with `wait` the time for each.
    pub fn samples(&self, wait: Wait) -> impl Iterator<Item = Sample<'_>> {
        std::iter::from_fn(move || self.take(wait).ok())
    }

    /// A descriptor that becomes readable when there is something to do, with [`SubscriberOptions::notify_fd`] or a
    /// pattern: as [`Sink::fd`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.reads {
            Reads::One(reading) => reading.sink.fd(),
            Reads::Many(many) => Some(many.fd()),
        }
    }

    /// Asks for the descriptor to become readable. False: there is something to take already, as [`Sink::arm`].
    pub fn arm(&self) -> bool {
        match &self.reads {
            Reads::One(reading) => reading.sink.arm(),
            Reads::Many(many) => many.arm(),
        }
    }

    /// Ends this subscriber's waits from other threads.
    pub fn waker(&self) -> SubscriberWaker {
        SubscriberWaker(match &self.reads {
            Reads::One(reading) => Wakes::One(reading.sink.waker()),
            Reads::Many(many) => Wakes::Many(many.watch().clone()),
        })
    }

    /// Gives back the channels of topics that a pattern has matched and that have had no publisher for ten seconds; how many
    /// there were. Without it, a pattern holds a channel for each topic that it has ever read. A [`SubscriberTask`] does it
    /// by itself.
    pub fn prune(&mut self) -> usize {
        match &mut self.reads {
            Reads::One(_) => 0,
            Reads::Many(many) => many.prune(Instant::now),
        }
    }

    /// What it does not get, if anything, and why: topics of a pattern that could not be opened, and topics with the same
    /// channel as one that it reads.
    pub fn warning(&self) -> Option<String> {
        let collision = self.refused.borrow().first_foreign.clone();
        let collision = collision.map(|(name, check)| {
            let service = self.registered.participant.service("the name of a topic").ok();
            let other = service
                .and_then(|service| service.other_topic(&name, |other| other.check == check));
            match other {
                Some(other) => Error::Collision {
                    name: name.text,
                    other,
                }
                .to_string(),
                None => format!(
                    "another topic, which the directory does not know, is written on the channel of {:?}",
                    name.text
                ),
            }
        });
        let unopened = match &self.reads {
            Reads::One(_) => None,
            Reads::Many(many) => many.warning(),
        };
        let warnings: Vec<String> = [collision, unopened].into_iter().flatten().collect();
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }

    /// What happened to its messages since it was opened.
    pub fn counters(&self) -> SubscriberCounters {
        let refused = self.refused.borrow();
        let (channels, unopened) = match &self.reads {
            Reads::One(reading) => (reading.sink.counters(), 0),
            Reads::Many(many) => many.counters(),
        };
        SubscriberCounters {
            channels,
            foreign: refused.foreign,
            malformed: refused.malformed,
            unopened,
        }
    }
}

impl std::fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscriber")
            .field("topic", &self.asked)
            .finish_non_exhaustive()
    }
}

/// Ends a subscriber's waits from another thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SubscriberWaker(Wakes);

#[derive(Clone, Debug)]
enum Wakes {
    One(takt::Waker),
    Many(std::sync::Arc<crate::directory::Watch>),
}

impl SubscriberWaker {
    /// The wait that is under way, or the next one if none is, fails with
    /// [`Interrupted`](takt::Error::Interrupted).
    pub fn wake(&self) {
        match &self.0 {
            Wakes::One(waker) => waker.wake(),
            Wakes::Many(watch) => watch.wake(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(history: bool, number: u64) -> Header {
        Header {
            history,
            encoding: Encoding::BYTES,
            publisher: 1,
            number,
            check: 0,
        }
    }

    #[test]
    fn a_message_is_no_repetition_of_a_later_one_that_was_kept() {
        let mut twice = Twice::default();
        // 5 and 6 are under way when one joins that wants the last one.
        for (history, number, repeated) in [
            (true, 6, false),
            (false, 5, false),
            (false, 6, true),
            (true, 5, true),
            (false, 7, false),
            // Again, and one more that has not come yet.
            (true, 7, true),
            (true, 8, false),
            (false, 8, true),
            // Whoever may write its inbox keeps nothing else from it.
            (true, u64::MAX, false),
            (false, u64::MAX, true),
            (true, 9, false),
            (false, 9, true),
            (false, 10, false),
            (true, 6, true),
        ] {
            let is = twice.is(&header(history, number));
            assert_eq!(is, repeated, "{history} {number}");
        }
        // However many gaps there are little is remembered, and the latest of it.
        for number in 0..1000 {
            assert!(!twice.is(&header(true, 100 + 2 * number)));
            assert!(twice.is(&header(true, 100 + 2 * number)));
        }
        let runs = twice.newer.values().map(|of| of.kept.0.len());
        assert_eq!(runs.collect::<Vec<_>>(), [Runs::MOST]);
    }

    #[test]
    fn what_was_missed_between_others_is_delivered_when_it_comes_from_what_was_kept() {
        let mut twice = Twice::default();
        // 3 to 5 are missed, as when the runtime was away.
        for number in [0, 1, 2, 6, 7] {
            assert!(!twice.is(&header(false, number)));
        }
        let kept: Vec<bool> = (0..8)
            .map(|number| twice.is(&header(true, number)))
            .collect();
        assert_eq!(kept, [true, true, true, false, false, false, true, true]);
        assert!((0..8).all(|number| twice.is(&header(true, number))));
        assert!(!twice.is(&header(false, 8)));
    }

    #[test]
    fn what_was_kept_and_what_comes_are_delivered_once() {
        let mut twice = Twice::default();
        // Kept 3, 4, 5; as they are published 5, 6; in any order of the two.
        for (history, number, repeated) in [
            (true, 3, false),
            (false, 5, false),
            (true, 4, false),
            (true, 5, true),
            (false, 6, false),
        ] {
            assert_eq!(
                twice.is(&header(history, number)),
                repeated,
                "{history} {number}"
            );
        }
        let mut twice = Twice::default();
        for (history, number, repeated) in [
            (true, 3, false),
            (true, 4, false),
            (true, 5, false),
            (false, 5, true),
            (false, 6, false),
            (true, 5, true),
        ] {
            assert_eq!(
                twice.is(&header(history, number)),
                repeated,
                "{history} {number}"
            );
        }
        // It is not read for a while, 7 and 8 come then, and all is kept. Another topic is none of it.
        twice.left(|check| check == 0);
        for (number, repeated) in [(5, true), (6, true), (7, false), (8, false)] {
            assert_eq!(twice.is(&header(true, number)), repeated, "{number}");
        }
        assert!(twice.is(&header(false, 8)));
        assert!(!twice.is(&header(false, 9)));
        let other = Header {
            check: 1,
            ..header(true, 3)
        };
        assert!(!twice.is(&other));
    }
}
