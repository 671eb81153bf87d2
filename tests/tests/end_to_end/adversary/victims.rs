//! Those who are not to be disturbed: each counts what it sends and what comes, one by one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use takt::{ChannelId, Outcome, Qos, Sink, Source, TaiTime, Wait};

use super::{EVERY, launched, next_instant};
use crate::support::application::settled;
use crate::support::{Pair, attach, introduce, number_of, put, put_at, take};
use takt_testing::until;

/// Of messages that are sent once.
pub const MESSAGES: ChannelId = ChannelId(5);
/// Of those that leave at an instant.
pub const LAUNCHED: ChannelId = ChannelId(6);
/// Of those of a reliable source.
const RELIABLE: ChannelId = ChannelId(8);
/// Octets of reliable messages: some share a datagram, some are cut. So many are under way at a time.
const LENGTHS: [usize; 8] = [16, 900, 1400, 20_000, 64, 64, 3000, 8];
/// Messages that wait for their instants at a time.
const WAITING: usize = 6;
/// Sessions that the operator asks for at a time, as `takt` does.
const PAGE: u32 = 64;
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(200);

/// How long things took, nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Vec<u32>);

impl Latencies {
    pub fn note(&mut self, nanoseconds: u128) {
        self.0.push(nanoseconds.try_into().unwrap_or(u32::MAX));
    }

    pub fn add(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The half, the 99th of a hundred, and the longest, in microseconds.
    pub fn told(&mut self) -> [f64; 3] {
        self.0.sort_unstable();
        let last = self.0.len() - 1;
        let at = |share: usize| f64::from(self.0[(self.0.len() * share / 100).min(last)]) / 1000.0;
        [50, 99, 100].map(at)
    }
}

/// What one of them has: where it sends, and where that is read, at its own node and at the other.
type Flow = (Source, [Sink; 2]);

pub struct Victims {
    messages: Flow,
    reliable: Flow,
    launched: (Source, [Reader; 2]),
    /// The instants of all messages with one, by their numbers.
    launches: Vec<i64>,
    /// Numbers of the next of the others.
    next: [u64; 2],
}

/// How long it took: an answer to the operator, a message to both nodes, a burst of reliable ones.
pub struct Took {
    pub answered: Latencies,
    pub exchanged: Latencies,
    pub repeated: Latencies,
}

impl Victims {
    pub fn new(pair: &Pair) -> Self {
        let talker = attach(&pair.nodes[0], "victim");
        let readers = [0, 1].map(|at| attach(&pair.nodes[at], "reader"));
        let open = |channel, qos: Qos| {
            let source = talker.stream(qos).and_then(|stream| stream.source(channel));
            let source = source.expect("a source");
            let sinks = readers.each_ref().map(|reader| {
                let sink = reader.stream(qos).and_then(|stream| stream.sink(channel));
                sink.expect("a sink")
            });
            introduce(&source, &sinks.each_ref());
            (source, sinks)
        };
        let (source, sinks) = open(LAUNCHED, launched());
        Self {
            messages: open(MESSAGES, Qos::slow()),
            reliable: open(RELIABLE, Qos::slow().reliable()),
            launched: (source, sinks.map(Reader::new)),
            launches: Vec::new(),
            next: [0; 2],
        }
    }

    /// The instant of each message that has one.
    pub fn launches(&self) -> &[i64] {
        &self.launches
    }

    /// At work while `on`: every message is awaited at every sink, and each operator's question answered.
    pub fn work(&mut self, pair: &Pair, on: impl Fn() -> bool + Sync) -> Took {
        let on = &on;
        let (messages, reliable, launched) =
            (&mut self.messages, &mut self.reliable, &mut self.launched);
        let launches = &mut self.launches;
        let [next_message, next_reliable] = &mut self.next;
        std::thread::scope(|scope| {
            let answered = scope.spawn(move || ask(pair, on));
            let exchanged = scope.spawn(move || exchange(messages, next_message, &[64], on));
            let repeated = scope.spawn(move || exchange(reliable, next_reliable, &LENGTHS, on));
            let departed = scope.spawn(move || depart(launched, launches, on));
            departed.join().expect("the victim with launch times");
            Took {
                answered: answered.join().expect("the operator"),
                exchanged: exchanged.join().expect("the victim with messages"),
                repeated: repeated.join().expect("the victim with a reliable stream"),
            }
        })
    }

    /// Compares what was seen with what the runtime counts. How many messages with launch times are missing at the other node,
    /// which are sent once: a link has lost them.
    pub fn compare(&mut self) -> u64 {
        let lost = |sink: &Sink| {
            let of = sink.counters();
            (of.lost, of.dropped_full, of.dropped_memory)
        };
        for (source, sinks) in [&self.messages, &self.reliable] {
            for sink in sinks {
                assert_eq!(lost(sink), (0, 0, 0));
                assert_eq!(sink.counters().lost_at_disconnect, 0);
            }
            assert_eq!(source.pending(), 0);
        }
        let sent = self.launches.len() as u64;
        let [near, far] = &mut self.launched.1;
        let missing = |reader: &mut Reader| {
            until("all that is missing is counted", || {
                reader.drain();
                let (gone, full, memory) = lost(&reader.sink);
                assert!(gone + reader.received <= sent);
                (gone + reader.received == sent && full + memory == 0).then_some(gone)
            })
        };
        assert_eq!(missing(near), 0, "at its own node");
        missing(far)
    }
}

fn ask(pair: &Pair, on: &dyn Fn() -> bool) -> Latencies {
    let mut admin = pair.nodes[0].admin();
    let mut took = Latencies::default();
    while on() {
        // Through all pages, however many there are: each is a question that has to be answered soon.
        let mut first = 0;
        loop {
            let began = Instant::now();
            let page = admin.session_page(first, PAGE);
            took.note(began.elapsed().as_nanos());
            std::thread::sleep(BETWEEN_QUESTIONS);
            match page.next {
                next if next > 0 && on() => first = next,
                _ => break,
            }
        }
    }
    took
}

/// Messages of these lengths, awaited at all sinks before the next ones.
fn exchange(
    (source, sinks): &mut Flow,
    next: &mut u64,
    lengths: &[usize],
    on: &dyn Fn() -> bool,
) -> Latencies {
    let mut took = Latencies::default();
    while on() {
        let began = Instant::now();
        for (number, length) in (*next..).zip(lengths) {
            put(source, number, *length);
        }
        let numbers = *next..*next + lengths.len() as u64;
        for sink in &*sinks {
            for number in numbers.clone() {
                assert_eq!(take(sink), number, "lost, doubled or out of order");
            }
        }
        took.note(began.elapsed().as_nanos());
        *next = numbers.end;
    }
    // Whether a reliable one has arrived is told a moment later.
    settled(source);
    took
}

/// A sink of messages that are sent once, with how many have come and the number of the next.
struct Reader {
    sink: Sink,
    received: u64,
    next: u64,
}

impl Reader {
    fn new(sink: Sink) -> Self {
        Self {
            sink,
            received: 0,
            next: 0,
        }
    }

    fn note(&mut self, number: u64) {
        assert!(number >= self.next, "{number} is doubled or out of order");
        self.next = number + 1;
        self.received += 1;
    }

    /// Takes what comes until it is of this number or of a later one.
    fn read_to(&mut self, end: &AtomicU64) {
        while self.next <= end.load(Relaxed) {
            let number = take(&self.sink);
            self.note(number);
        }
    }

    /// Takes what is there.
    fn drain(&mut self) {
        let take = |sink: &Sink| sink.consume(Wait::Never).ok().map(|m| number_of(&m));
        while let Some(number) = take(&self.sink) {
            self.note(number);
        }
    }
}

/// Messages for one instant after the other, some ahead of time, until those that were sent while `on` have come or later ones
/// have.
fn depart(
    (source, readers): &mut (Source, [Reader; 2]),
    launches: &mut Vec<i64>,
    on: &dyn Fn() -> bool,
) {
    let end = &AtomicU64::new(u64::MAX);
    std::thread::scope(|scope| {
        let reading: Vec<_> = readers
            .iter_mut()
            .map(|reader| scope.spawn(|| reader.read_to(end)))
            .collect();
        let mut waiting = VecDeque::new();
        loop {
            if !on() && end.load(Relaxed) == u64::MAX {
                end.store(launches.len() as u64, Relaxed);
            }
            if reading.iter().all(|one| one.is_finished()) && waiting.is_empty() {
                return;
            }
            while waiting.len() < WAITING && !reading.iter().all(|one| one.is_finished()) {
                let soon = next_instant().as_nanos();
                let launch = launches.last().map_or(soon, |last| soon.max(last + EVERY));
                let number = launches.len() as u64;
                let token = put_at(source, number, 8, TaiTime::from_nanos(launch));
                launches.push(launch);
                waiting.push_back((number, token));
            }
            let Some((number, token)) = waiting.pop_front() else {
                continue;
            };
            until("it is told", || match source.outcome(token) {
                Outcome::Pending => None,
                Outcome::Sent => Some(()),
                other => panic!("message {number} was {other:?}"),
            });
        }
    });
}
