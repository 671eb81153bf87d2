//! Programs that publish and subscribe, with a runtime inside each.

use std::sync::mpsc;
use std::time::Duration;

use takt::{ChannelId, Outcome, Qos, Reliability, Session, SlowSinks, Wait};
use takt_embedded::{Embedded, Settings};
use takt_messaging::{
    Encoding, Error, Participant, Publisher, PublisherOptions, Subscriber, SubscriberOptions,
};
use takt_testing::{Directory, repository, until_true};

#[path = "../../client/examples/topics.rs"]
#[allow(dead_code)] // its main
mod example;

const PATIENCE: Wait = Wait::For(Duration::from_secs(60));

/// Programs of one user.
struct Programs {
    directory: Directory,
    runtimes: Vec<Embedded>,
}

impl Programs {
    fn new() -> Self {
        Self {
            directory: Directory::private(),
            runtimes: Vec::new(),
        }
    }

    fn session(&mut self, name: &str) -> Session {
        let settings = Settings {
            rendezvous: Some(self.directory.join("nodes")),
            ..Settings::local()
        };
        let runtime = Embedded::start(settings).expect("a runtime");
        let session = runtime.session(name).expect("a session");
        self.runtimes.push(runtime);
        session
    }

    fn participant(&mut self, name: &str) -> Participant {
        let session = self.session(name);
        let opened = Participant::builder(session).name(name).open();
        opened.expect("a participant")
    }
}

/// Publishes once somebody reads it.
fn publish(publisher: &Publisher, text: &str) {
    publisher.wait_subscriber(PATIENCE).expect("a subscriber");
    let published = publisher.publish(text.as_bytes(), PATIENCE);
    published.expect("published");
}

/// Publishes and waits until the runtime has taken it: whoever joins then has it from what was kept.
fn publish_to_nobody(publisher: &Publisher, bytes: &[u8]) {
    let token = publisher.publish(bytes, PATIENCE).expect("published");
    until_true("the runtime takes it", || {
        publisher.outcome(token) != Outcome::Pending
    });
}

fn text(subscriber: &Subscriber) -> (String, String) {
    let sample = subscriber.take(PATIENCE).expect("a sample");
    (
        sample.topic().to_owned(),
        String::from_utf8_lossy(&sample).into_owned(),
    )
}

#[test]
fn a_message_is_filled_once_where_it_is_sent_from_and_read_where_it_was_received() {
    let mut programs = Programs::new();
    let (one, other) = (programs.participant("one"), programs.participant("other"));
    let subscriber = other
        .subscriber("plant/7", Qos::slow())
        .expect("a subscriber");
    let options = PublisherOptions {
        encoding: Encoding::JSON,
        ..PublisherOptions::new(Qos::slow().reliable())
    };
    let publisher = one.publisher_with("plant/7", options).expect("a publisher");
    publisher.wait_subscriber(PATIENCE).expect("a subscriber");
    let mut filled = 0;
    let fill = |memory: &mut [u8]| {
        filled += 1;
        memory.copy_from_slice(b"[1, 2]");
    };
    publisher.fill(6, PATIENCE, fill).expect("published");
    assert_eq!(filled, 1);
    publisher
        .publish_json(&("a", 5), PATIENCE)
        .expect("published");
    {
        let first = subscriber.take(PATIENCE).expect("a sample");
        let second = subscriber.take(PATIENCE).expect("a second beside it");
        assert_eq!(
            (&*first, first.number(), first.topic()),
            (&b"[1, 2]"[..], 0, "plant/7")
        );
        assert_eq!(
            second.json::<(String, u8)>().expect("JSON"),
            ("a".into(), 5)
        );
        assert_eq!((second.number(), second.encoding()), (1, Encoding::JSON));
        assert_eq!(first.publisher(), second.publisher());
        assert!(second.json::<u8>().is_err());
    }
    let counters = subscriber.counters();
    assert_eq!(
        (
            counters.foreign,
            counters.malformed,
            counters.channels.delivered
        ),
        (0, 0, 2)
    );
}

#[test]
fn nothing_is_filled_when_there_is_no_memory_and_nothing_published_when_filling_fails() {
    let mut programs = Programs::new();
    let one = programs.participant("one");
    let publisher = one.publisher("a", Qos::slow()).expect("a publisher");
    let subscriber = one.subscriber("a", Qos::slow()).expect("a subscriber");
    let error = publisher.fill(usize::MAX, Wait::Never, |_| unreachable!("filled"));
    let error = error.expect_err("too large");
    assert!(
        matches!(error, Error::Channel(takt::Error::TooLarge { .. })),
        "{error}"
    );
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        publisher.fill(1, PATIENCE, |_| panic!("as the test wants it"))
    }));
    assert!(panicked.is_err());
    publish(&publisher, "after");
    let sample = subscriber.take(PATIENCE).expect("a sample");
    assert_eq!((&*sample, sample.number()), (&b"after"[..], 0));
    assert!(
        subscriber
            .take(Wait::Never)
            .expect_err("nothing more")
            .is_would_block()
    );
    let waited = subscriber.take(Wait::For(Duration::from_millis(1)));
    assert!(waited.expect_err("nothing more").is_timed_out());
}

#[test]
fn a_message_for_which_there_is_no_memory_has_no_number_and_is_not_kept() {
    let mut programs = Programs::new();
    let (one, other) = (programs.participant("one"), programs.participant("other"));
    let waits = Reliability::Reliable {
        deadline: None,
        slow_sinks: SlowSinks::Wait,
    };
    let writes = PublisherOptions {
        depth: 4,
        history: 1,
        ..PublisherOptions::new(Qos::slow().with_reliability(waits))
    };
    let narrow = SubscriberOptions {
        depth: 4,
        ..SubscriberOptions::default()
    };
    let slow = other.subscriber_with("a", narrow).expect("a subscriber");
    let publisher = one.publisher_with("a", writes).expect("a publisher");
    publisher.wait_subscriber(PATIENCE).expect("a subscriber");
    publisher.reserve(8, PATIENCE).expect("memory");
    // On a busy machine what others hold up may look like the end of the memory: it is one if nothing moves three times.
    let (mut published, mut failed) = (0u64, 0);
    while failed < 3 {
        let wait = Wait::For(Duration::from_secs(2));
        match publisher.publish(&published.to_le_bytes(), wait) {
            Ok(_) => (published, failed) = (published + 1, 0),
            Err(error) => {
                assert!(error.is_timed_out(), "{error}");
                failed += 1;
            }
        }
    }
    for (wait, told) in [
        (Wait::Never, Error::is_would_block as fn(&Error) -> bool),
        (Wait::For(Duration::from_millis(1)), Error::is_timed_out),
    ] {
        let failed = publisher.fill(8, wait, |_| panic!("there is no memory"));
        assert!(told(&failed.expect_err("no memory")));
    }
    // Who joins gets the last one that was published.
    let keeps = SubscriberOptions {
        history: 1,
        ..SubscriberOptions::default()
    };
    let late = one.subscriber_with("a", keeps).expect("a subscriber");
    let kept = late.take(PATIENCE).expect("a sample");
    assert!(kept.is_history());
    assert_eq!(*kept, (published - 1).to_le_bytes());
    // The one that had its memory put aside, and no other.
    let too_long = publisher.fill_reserved(9, None, |_| panic!("it is too short"));
    assert!(too_long.expect_err("refused").is_would_block());
    drop(kept);
    for number in 0..published {
        let sample = slow.take(PATIENCE).expect("a sample");
        assert_eq!(
            (sample.number(), &*sample),
            (number, &number.to_le_bytes()[..])
        );
    }
    publisher.reserve(8, PATIENCE).expect("memory");
    let fill = |memory: &mut [u8]| memory.copy_from_slice(b"reserved");
    publisher.fill_reserved(8, None, fill).expect("published");
    let again = publisher.fill_reserved(8, None, fill).expect_err("once");
    assert!(again.is_would_block());
    let sample = slow.take(PATIENCE).expect("a sample");
    assert_eq!((sample.number(), &*sample), (published, &b"reserved"[..]));
}

#[test]
fn what_another_topic_or_no_topic_wrote_is_refused_and_counted() {
    let mut programs = Programs::new();
    let session = programs.session("one");
    let participant = Participant::new(session.clone()).expect("a participant");
    let subscriber = participant
        .subscriber("a", Qos::slow())
        .expect("a subscriber");
    let channel = ChannelId::named("topic/a").expect("the topic's channel");
    let stream = session.stream(Qos::slow()).expect("a stream");
    let source = stream.source(channel).expect("a source");
    let emit = |message: &[u8]| {
        let mut buffer = source
            .buffer_wait(message.len(), PATIENCE)
            .expect("a buffer");
        buffer.copy_from_slice(message);
        buffer.emit().expect("emitted");
    };
    source.wait_reader(PATIENCE).expect("a reader");
    emit(b"short");
    emit(&[0xff; 100]);
    // As a topic whose channel is the same would write it: its check is another.
    let mut foreign = [0; 30];
    foreign[0] = 1;
    emit(&foreign);
    let publisher = participant
        .publisher("a", Qos::slow())
        .expect("a publisher");
    publish(&publisher, "own");
    assert_eq!(text(&subscriber).1, "own");
    let counters = subscriber.counters();
    assert_eq!((counters.foreign, counters.malformed), (1, 2));
}

#[test]
fn a_pattern_reads_the_topics_that_are_there_and_those_that_come() {
    let mut programs = Programs::new();
    let (one, other) = (programs.participant("one"), programs.participant("other"));
    let early = one
        .publisher("plant/1/temperature", Qos::slow())
        .expect("a publisher");
    let beside = one
        .publisher("plant/1/pressure", Qos::slow())
        .expect("a publisher");
    let subscriber = other
        .subscriber("plant/*/temperature", Qos::slow())
        .expect("a subscriber");
    // What it matches it reads once it has heard of it: while it waits.
    let waker = subscriber.waker();
    let early = std::thread::scope(|scope| {
        let publishing = scope.spawn(move || {
            publish(&early, "1");
            early
        });
        assert_eq!(
            text(&subscriber),
            ("plant/1/temperature".into(), "1".into())
        );
        publishing.join().expect("published")
    });
    let late = one
        .publisher("plant/2/temperature", Qos::slow())
        .expect("a publisher");
    let late = std::thread::scope(|scope| {
        let publishing = scope.spawn(move || {
            publish(&late, "2");
            late
        });
        assert_eq!(
            text(&subscriber),
            ("plant/2/temperature".into(), "2".into())
        );
        publishing.join().expect("published")
    });
    // One that is busy does not hide another.
    for _ in 0..200 {
        early.publish(b"busy", PATIENCE).expect("published");
    }
    publish(&late, "not hidden");
    until_true("the other one is heard", || {
        text(&subscriber).1 == "not hidden"
    });
    assert!(beside.wait_subscriber(Wait::Never).is_err());

    // Whatever is left: the wait after it ends.
    waker.wake();
    until_true("the wait ends", || {
        subscriber
            .take(PATIENCE)
            .is_err_and(|error| error.is_interrupted())
    });
}

#[test]
fn late_joiners_get_what_publishers_have_kept_once_and_in_order() {
    let mut programs = Programs::new();
    let (one, other) = (programs.participant("one"), programs.participant("other"));
    let options = PublisherOptions {
        history: 3,
        ..PublisherOptions::new(Qos::slow().reliable())
    };
    let publisher = one.publisher_with("log/1", options).expect("a publisher");
    for number in 0..5 {
        publish_to_nobody(&publisher, format!("{number}").as_bytes());
    }
    for asked in ["log/1", "log/*"] {
        let options = SubscriberOptions {
            history: 2,
            ..SubscriberOptions::new(Qos::slow())
        };
        let late = other.subscriber_with(asked, options).expect("a subscriber");
        for kept in ["3", "4"] {
            let sample = late.take(PATIENCE).expect("a sample");
            assert_eq!(
                (&*sample, sample.topic()),
                (kept.as_bytes(), "log/1"),
                "{asked}"
            );
            assert!(sample.is_history());
        }
        publish(&publisher, "now");
        let sample = late.take(PATIENCE).expect("a sample");
        assert_eq!(&*sample, b"now");
        assert!(!sample.is_history());
        // So that the second one finds the same.
        for number in 3..5 {
            publisher
                .publish(format!("{number}").as_bytes(), PATIENCE)
                .expect("published");
            assert_eq!(text(&late).1, format!("{number}"));
        }
    }
    let most = PublisherOptions {
        history: 65_537,
        ..options
    };
    let error = one.publisher_with("log/1", most).expect_err("too many");
    let told = "a history of 65537 messages is too long: write at most 65536";
    assert_eq!(error.to_string(), told);
}

#[test]
fn a_late_joiner_with_little_room_gets_all_that_was_kept() {
    const KEPT: u32 = 1000;
    let mut programs = Programs::new();
    let (one, other) = (programs.participant("one"), programs.participant("other"));
    let options = PublisherOptions {
        history: KEPT,
        ..PublisherOptions::default()
    };
    let publisher = one.publisher_with("log", options).expect("a publisher");
    for number in 0..KEPT {
        publish_to_nobody(&publisher, &number.to_le_bytes());
    }
    let options = SubscriberOptions {
        history: KEPT,
        depth: 16,
        ..SubscriberOptions::default()
    };
    let late = other.subscriber_with("log", options).expect("a subscriber");
    for number in 0..KEPT {
        let sample = late.take(PATIENCE).expect("a sample");
        assert_eq!(&*sample, &number.to_le_bytes());
        if number % 100 == 0 {
            // It takes its time.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(late.counters().channels.dropped_full, 0);
}

#[test]
fn what_was_kept_of_each_topic_comes_beside_the_newest_message() {
    let mut programs = Programs::new();
    let (one, other) = (programs.participant("one"), programs.participant("other"));
    let keeps = PublisherOptions {
        history: 3,
        ..PublisherOptions::new(Qos::slow().latest())
    };
    let topics = ["state/1", "state/2"];
    let publishers = topics.map(|topic| one.publisher_with(topic, keeps).expect("a publisher"));
    for publisher in &publishers {
        for number in 0..3u8 {
            publish_to_nobody(publisher, &[number]);
        }
    }
    let newest = SubscriberOptions {
        latest: true,
        history: 3,
        ..SubscriberOptions::default()
    };
    let late = other.subscriber_with("state/*", newest).expect("opened");
    let mut kept = Vec::new();
    // It looks when all is there.
    until_true("all was handed over", || {
        if kept.is_empty()
            && let Ok(sample) = late.take(Wait::Never)
        {
            kept.push((sample.topic().to_owned(), sample[0]));
        }
        let counters = late.counters().channels;
        assert_eq!(counters.superseded, 0);
        counters.delivered == 6
    });
    while kept.len() < 6 {
        let sample = late.take(PATIENCE).expect("a sample");
        kept.push((sample.topic().to_owned(), sample[0]));
    }
    kept.sort();
    let all = topics.map(|topic| (0..3).map(move |number| (topic.to_owned(), number)));
    assert_eq!(kept, Vec::from_iter(all.into_iter().flatten()));
}

/// Takes messages, each of which has its number in it, from 0 to the last one: none is missing and none comes twice.
fn takes_all(subscriber: &Subscriber, last: u64) -> Result<(), String> {
    let mut got = std::collections::BTreeSet::new();
    while got.len() as u64 <= last {
        let sample = subscriber.take(PATIENCE);
        let sample = sample.map_err(|error| {
            let (first, last) = (got.first(), got.last());
            format!("{error}: {} from {first:?} to {last:?}", got.len())
        })?;
        let number = u64::from_le_bytes(sample[..8].try_into().expect("8 bytes"));
        if !got.insert(number) {
            return Err(format!("{number} comes twice"));
        }
    }
    Ok(())
}

/// Late joiners of a publisher that never pauses, on its node or on another, by name or by pattern.
fn join_at_full_speed(near: bool) {
    const MESSAGES: u64 = 30_000;
    const JOINS: usize = 4;
    let mut programs = Programs::new();
    let one = programs.participant("one");
    let other = match near {
        true => {
            let session = programs.runtimes[0].session("other").expect("a session");
            Participant::new(session).expect("a participant")
        }
        false => programs.participant("other"),
    };
    // Nobody is given up who gets no time on a busy machine.
    let waits = Reliability::Reliable {
        deadline: None,
        slow_sinks: SlowSinks::Wait,
    };
    let options = PublisherOptions {
        // All that may have been published while somebody joins.
        history: 65_536,
        ..PublisherOptions::new(Qos::slow().with_reliability(waits))
    };
    let publisher = one.publisher_with("log/1", options).expect("a publisher");
    let joined = std::sync::atomic::AtomicUsize::new(0);
    let results = std::thread::scope(|scope| {
        let joiners = Vec::from_iter((0..JOINS).map(|at| {
            let (other, joined) = (&other, &joined);
            scope.spawn(move || {
                let asked = if at % 2 == 0 { "log/1" } else { "log/*" };
                let options = SubscriberOptions {
                    history: 65_536,
                    depth: 4096,
                    ..SubscriberOptions::new(Qos::slow())
                };
                let late = other.subscriber_with(asked, options).expect("a subscriber");
                joined.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                takes_all(&late, MESSAGES - 1).map_err(|error| format!("{asked}: {error}"))
            })
        }));
        for number in 0..MESSAGES {
            publisher
                .publish(&number.to_le_bytes(), PATIENCE)
                .expect("published");
        }
        Vec::from_iter(
            joiners
                .into_iter()
                .map(|joiner| joiner.join().expect("joined")),
        )
    });
    assert_eq!(results, vec![Ok(()); JOINS]);
    assert_eq!(one.problem(), None);
}

#[test]
fn who_joins_a_publisher_of_its_node_at_full_speed_misses_nothing() {
    join_at_full_speed(true);
}

#[test]
fn who_joins_a_publisher_of_another_node_at_full_speed_misses_nothing() {
    join_at_full_speed(false);
}

#[test]
fn a_pattern_that_waits_gets_all_that_a_new_publisher_keeps() {
    const MESSAGES: u64 = 100;
    let mut programs = Programs::new();
    let (one, other) = (programs.participant("one"), programs.participant("other"));
    let options = SubscriberOptions {
        history: 1000,
        ..SubscriberOptions::default()
    };
    let waits = other.subscriber_with("log/*", options).expect("opened");
    let seen = |participant: &Participant| participant.topics().expect("topics").len();
    // A topic of its own, so that it is certain that the pattern is known.
    let marker = other.publisher("marker", Qos::slow()).expect("opened");
    until_true("it is known", || seen(&one) == 1);
    let keeps = PublisherOptions {
        history: 1000,
        ..PublisherOptions::new(Qos::slow().reliable())
    };
    for (round, topic) in ["log/1", "log/2", "log/1"].into_iter().enumerate() {
        // It publishes at once, before anybody can have heard of it.
        let publisher = one.publisher_with(topic, keeps).expect("a publisher");
        for number in 0..MESSAGES {
            publish_to_nobody(&publisher, &number.to_le_bytes());
        }
        takes_all(&waits, MESSAGES - 1).unwrap_or_else(|error| panic!("{round}: {error}"));
    }
    drop(marker);
}

/// Says something on the channel of the directory.
struct Liar(takt::Source);

impl Liar {
    fn new(session: &Session) -> Self {
        let channel = ChannelId::named(takt_messaging::DIRECTORY).expect("a channel");
        let stream = session.stream(Qos::slow().reliable()).expect("a stream");
        let source = stream.source(channel).expect("a source");
        source.wait_reader(PATIENCE).expect("a participant");
        Self(source)
    }

    fn say(&self, text: &str) {
        let mut buffer = self.0.buffer_wait(text.len(), PATIENCE).expect("a buffer");
        buffer.copy_from_slice(text.as_bytes());
        buffer.emit().expect("emitted");
    }
}

#[test]
fn late_joiners_that_nobody_is_take_no_endpoints_and_no_others_turn() {
    let mut programs = Programs::new();
    let (one, liar) = (programs.participant("one"), programs.session("liar"));
    let keeps = PublisherOptions {
        history: 10,
        ..PublisherOptions::default()
    };
    let publisher = one.publisher_with("log", keeps).expect("a publisher");
    publish_to_nobody(&publisher, b"kept");
    let liar = Liar::new(&liar);
    for page in 0..40 {
        let entries = Vec::from_iter((0..100).map(|at| {
            let id = 1000 + page * 100 + at;
            format!(r#"{{"id":{id},"topic":"log","role":"subscriber","history":10}}"#)
        }));
        let (from, to, add) = (page, page + 1, entries.join(","));
        liar.say(&format!(
            r#"{{"say":"update","participant":7,"name":"liar","from":{from},"to":{to},"add":[{add}],"remove":[]}}"#
        ));
    }
    until_true("all are known", || {
        let topics = one.topics().expect("topics");
        topics.iter().any(|topic| topic.subscribers.len() == 4000)
    });
    let other = programs.participant("other");
    let late = SubscriberOptions {
        history: 10,
        ..SubscriberOptions::default()
    };
    let late = other.subscriber_with("log", late).expect("a subscriber");
    let opened = Vec::from_iter((0..200).map(|at| {
        let least = PublisherOptions {
            depth: 16,
            ..PublisherOptions::default()
        };
        one.publisher_with(&format!("many/{at}"), least)
            .expect("a publisher")
    }));
    assert_eq!(text(&late).1, "kept");
    drop(opened);
    // Those that are there still, as they say, have not got it: that is told. The liar is gone before it can be so.
    liar.say(r#"{"say":"leave","participant":7}"#);
}

#[test]
fn late_joiners_that_take_slowly_leave_others_their_turn() {
    const SLOW: u64 = 16;
    let mut programs = Programs::new();
    let (one, liar) = (programs.participant("one"), programs.session("liar"));
    let keeps = PublisherOptions {
        history: 10_000,
        ..PublisherOptions::default()
    };
    let publisher = one.publisher_with("log", keeps).expect("a publisher");
    for number in 0..10_000u64 {
        publisher
            .publish(&number.to_le_bytes(), PATIENCE)
            .expect("published");
    }
    let stream = liar.stream(Qos::slow()).expect("a stream");
    let slow = Vec::from_iter((1..=SLOW).map(|id| {
        let inbox = ChannelId::named(&format!("topic-inbox/{id:016x}")).expect("a channel");
        stream.sink(inbox).expect("a sink")
    }));
    let entries =
        Vec::from_iter((1..=SLOW).map(|id| {
            format!(r#"{{"id":{id},"topic":"log","role":"subscriber","history":10000}}"#)
        }));
    let add = entries.join(",");
    Liar::new(&liar).say(&format!(
        r#"{{"say":"update","participant":7,"name":"slow","from":0,"to":1,"add":[{add}],"remove":[]}}"#
    ));
    for sink in &slow {
        drop(sink.consume(PATIENCE).expect("a message"));
    }
    let other = programs.participant("other");
    let options = SubscriberOptions {
        history: 1,
        ..SubscriberOptions::default()
    };
    let late = other.subscriber_with("log", options).expect("opened");
    let begin = std::time::Instant::now();
    let sample = loop {
        // Each of the others takes a few in a second, and never nothing for long.
        for sink in &slow {
            drop(sink.consume(Wait::Never));
        }
        if let Ok(sample) = late.take(Wait::For(Duration::from_millis(20))) {
            break sample;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "it has no turn");
    };
    assert_eq!(*sample, 9_999u64.to_le_bytes());
}

#[test]
fn another_topic_with_the_same_channel_is_told_by_name() {
    let mut programs = Programs::new();
    let session = programs.session("one");
    let one = Participant::new(session.clone()).expect("a participant");
    let other = programs.participant("other");
    let subscriber = one.subscriber("a", Qos::slow()).expect("a subscriber");
    let beside = other.publisher("b", Qos::slow()).expect("a publisher");
    until_true("it is known", || one.topics().expect("topics").len() == 2);
    assert_eq!(subscriber.warning(), None);
    // As the publisher of `b` would write if the two had one channel.
    let message = {
        let b = one.subscriber("b", Qos::slow()).expect("a subscriber");
        let stream = session.stream(Qos::slow()).expect("a stream");
        let channel = ChannelId::named("topic/b").expect("a channel");
        let sink = stream.sink(channel).expect("a sink");
        publish(&beside, "of b");
        assert_eq!(text(&b).1, "of b");
        sink.consume(PATIENCE).expect("a message").to_vec()
    };
    let stream = session.stream(Qos::slow()).expect("a stream");
    let source = stream.source(ChannelId::named("topic/a").expect("a channel"));
    let source = source.expect("a source");
    source.wait_reader(PATIENCE).expect("a reader");
    let mut buffer = source.buffer_wait(message.len(), PATIENCE).expect("memory");
    buffer.copy_from_slice(&message);
    buffer.emit().expect("emitted");
    let publisher = one.publisher("a", Qos::slow()).expect("a publisher");
    publish(&publisher, "of a");
    assert_eq!(text(&subscriber).1, "of a");
    assert_eq!(subscriber.counters().foreign, 1);
    let told = "the topics \"a\" and \"b\" have the same channel: rename one of them";
    assert_eq!(subscriber.warning().as_deref(), Some(told));
    assert_eq!(publisher.warning(), None);
}

#[test]
fn what_is_not_declared_as_json_is_neither_written_nor_read_as_json() {
    let mut programs = Programs::new();
    let one = programs.participant("one");
    let subscriber = one.subscriber("a", Qos::slow()).expect("a subscriber");
    let publisher = one.publisher("a", Qos::slow()).expect("a publisher");
    let told = "of \"a\" has the encoding bytes, not json: open the publisher with Encoding::JSON";
    let error = publisher.publish_json(&1, PATIENCE).expect_err("refused");
    assert_eq!(error.to_string(), format!("the publisher {told}"));
    publish(&publisher, "1");
    let sample = subscriber.take(PATIENCE).expect("a sample");
    let error = sample.json::<u8>().expect_err("refused");
    assert_eq!(error.to_string(), format!("the message {told}"));
}

#[test]
fn a_function_that_panics_is_told_of() {
    let mut programs = Programs::new();
    let one = programs.participant("one");
    let panics = |_: &takt_messaging::Sample<'_>| panic!("as the test wants it");
    let task = one.subscribe("a", SubscriberOptions::default(), panics);
    let task = task.expect("a task");
    let publisher = one.publisher("a", Qos::slow()).expect("a publisher");
    publish(&publisher, "hello");
    until_true("it is told", || task.failure().is_some());
    assert_eq!(task.failure().as_deref(), Some("the function panicked"));
}

#[test]
fn participants_know_of_each_others_topics_until_they_go() {
    let mut programs = Programs::new();
    let (one, other) = (programs.participant("one"), programs.participant("other"));
    let seen = || -> Vec<(String, usize, usize)> {
        let topics = other.topics().expect("topics");
        topics
            .into_iter()
            .map(|topic| (topic.name, topic.publishers.len(), topic.subscribers.len()))
            .collect()
    };
    let publisher = one.publisher("a/b", Qos::slow()).expect("a publisher");
    let subscriber = other.subscriber("a/b", Qos::slow()).expect("a subscriber");
    let pattern = other.subscriber("a/*", Qos::slow()).expect("a subscriber");
    until_true("all are known", || seen() == [("a/b".to_owned(), 1, 2)]);
    drop(pattern);
    until_true("one is gone", || seen() == [("a/b".to_owned(), 1, 1)]);
    let topics = other.discover(Duration::from_millis(10), Duration::from_secs(1));
    assert_eq!(topics.expect("topics")[0].publishers, ["one"]);
    drop(publisher);
    until_true("only the subscriber is left", || {
        seen() == [("a/b".to_owned(), 0, 1)]
    });
    let again = one.publisher("a/c", Qos::slow()).expect("a publisher");
    until_true("it is known", || seen().len() == 2);
    drop((again, one));
    until_true("all of it is gone", || seen().len() == 1);
    drop(subscriber);
    until_true("nothing is left", || seen().is_empty());
}

#[test]
fn a_function_gets_every_message_until_it_is_dropped() {
    let mut programs = Programs::new();
    let (one, other) = (programs.participant("one"), programs.participant("other"));
    let (told, heard) = mpsc::channel();
    for (asked, topic) in [("a", "a"), ("b/*", "b/1")] {
        let told = told.clone();
        let receive = move |sample: &takt_messaging::Sample<'_>| {
            let _ = told.send(sample.to_vec());
        };
        let options = SubscriberOptions::new(Qos::slow());
        let task = other.subscribe(asked, options, receive).expect("a task");
        let publisher = one
            .publisher(topic, Qos::slow().reliable())
            .expect("a publisher");
        publish(&publisher, "first");
        publish(&publisher, "second");
        for expected in ["first", "second"] {
            let message = heard.recv_timeout(takt_testing::PATIENCE);
            assert_eq!(message.expect("a message"), expected.as_bytes(), "{asked}");
        }
        assert_eq!((task.topic(), task.failure()), (asked, None));
        drop(task);
    }
    drop(told);
    assert!(heard.recv().is_err(), "the functions are gone");
}

#[test]
fn without_a_directory_whole_names_work_and_the_rest_is_refused_by_name() {
    let mut programs = Programs::new();
    let session = programs.session("one");
    let participant = Participant::builder(session)
        .directory(false)
        .open()
        .expect("opened");
    let publisher = participant
        .publisher("a", Qos::slow())
        .expect("a publisher");
    let subscriber = participant
        .subscriber("a", Qos::slow())
        .expect("a subscriber");
    publish(&publisher, "hello");
    assert_eq!(text(&subscriber).1, "hello");
    let kept = PublisherOptions {
        history: 1,
        ..PublisherOptions::default()
    };
    for error in [
        participant.subscriber("*", Qos::slow()).err(),
        participant.publisher_with("b", kept).err(),
        participant.topics().err(),
    ] {
        let error = error.expect("refused");
        assert!(matches!(error, Error::NoDirectory { .. }), "{error}");
    }
    assert!(participant.problem().is_some());
}

#[test]
fn publishers_and_subscribers_that_come_and_go_leave_nothing() {
    let mut programs = Programs::new();
    let one = programs.participant("one");
    let writes = PublisherOptions {
        depth: 64,
        ..PublisherOptions::default()
    };
    let reads = SubscriberOptions {
        depth: 64,
        ..SubscriberOptions::default()
    };
    // More, all in all, than a session may have at a time.
    for round in 0..20 {
        let topics = Vec::from_iter((0..100).map(|number| format!("round/{round}/{number}")));
        let publishers = topics.iter().map(|topic| one.publisher_with(topic, writes));
        let publishers: Result<Vec<_>, _> = publishers.collect();
        let subscribers = topics.iter().map(|topic| one.subscriber_with(topic, reads));
        let subscribers: Result<Vec<_>, _> = subscribers.collect();
        publish(&publishers.expect("publishers")[round], "hello");
        assert_eq!(text(&subscribers.expect("subscribers")[round]).1, "hello");
    }
    until_true("no topic is left", || {
        one.topics().expect("topics").is_empty()
    });
}

#[test]
fn the_core_of_a_messaging_middleware_takes_fewer_lines_than_the_thesis_has() {
    let example = repository().join("crates/interface/client/examples/topics.rs");
    let lines = std::fs::read_to_string(example).expect("the example");
    assert!(lines.lines().count() <= 135);

    let mut programs = Programs::new();
    let (one, other) = (programs.session("one"), programs.session("other"));
    let messaging = |session| example::Messaging::new(session, Qos::slow().reliable());
    let (mut one, mut other) = (
        messaging(&one).expect("one"),
        messaging(&other).expect("other"),
    );
    let (told, heard) = mpsc::channel();
    let receive = move |message: &[u8]| told.send(message.to_vec()).expect("the test");
    other.subscribe("plant/7", receive).expect("a subscription");
    for text in [&b"first"[..], b"second"] {
        let filled = |memory: &mut [u8]| memory.copy_from_slice(text);
        one.publish("plant/7", text.len(), filled)
            .expect("published");
        let message = heard.recv_timeout(takt_testing::PATIENCE);
        assert_eq!(message.expect("a message"), text);
    }
}

#[test]
fn ten_thousand_topics_are_written_by_one_program_and_read_by_another() {
    const TOPICS: usize = 10_000;
    const EACH: usize = 1000;
    let mut programs = Programs::new();
    programs.session("one");
    programs.session("other");
    // A session has room for some thousand.
    let participants = |program: usize| -> Vec<Participant> {
        let session = || programs.runtimes[program].session("many");
        let participant =
            |_| Participant::new(session().expect("a session")).expect("a participant");
        (0..TOPICS / EACH).map(participant).collect()
    };
    let (write, read) = (participants(0), participants(1));
    let writes = PublisherOptions {
        depth: 16,
        ..PublisherOptions::default()
    };
    let reads = SubscriberOptions {
        depth: 16,
        ..SubscriberOptions::default()
    };
    let name = |number: usize| format!("many/{number}");
    let subscribers =
        (0..TOPICS).map(|number| read[number / EACH].subscriber_with(&name(number), reads));
    let subscribers: Result<Vec<_>, _> = subscribers.collect();
    let publishers =
        (0..TOPICS).map(|number| write[number / EACH].publisher_with(&name(number), writes));
    let publishers: Result<Vec<_>, _> = publishers.collect();
    let (subscribers, publishers) = (
        subscribers.expect("subscribers"),
        publishers.expect("publishers"),
    );
    for number in (0..TOPICS).step_by(997) {
        publish(&publishers[number], &name(number));
        assert_eq!(text(&subscribers[number]), (name(number), name(number)));
    }
    until_true("all are known", || {
        write[0].topics().expect("topics").len() == TOPICS
    });
}

#[test]
fn who_looks_seldom_sees_the_newest_message_and_how_many_it_took_the_place_of() {
    const MESSAGES: u64 = 3000;
    let mut programs = Programs::new();
    let (one, other) = (programs.participant("one"), programs.participant("other"));
    let publisher = one
        .publisher("position", Qos::slow().latest())
        .expect("a publisher");
    let newest = SubscriberOptions {
        latest: true,
        ..SubscriberOptions::default()
    };
    // Elsewhere, and in the very session that writes.
    let far = other.subscriber_with("position", newest).expect("opened");
    let near = one.subscriber_with("position", newest).expect("opened");
    until_true("both are there", || {
        publisher.wait_subscriber(PATIENCE).expect("a subscriber") == 2
    });
    for number in 0..MESSAGES {
        let published = publisher.publish(&number.to_le_bytes(), PATIENCE);
        published.expect("a source that never waits");
    }
    for subscriber in [&far, &near] {
        let told = || subscriber.counters().channels;
        until_true("all came or are lost", || {
            told().delivered + told().lost == MESSAGES
        });
        let sample = subscriber.take(PATIENCE).expect("a sample");
        assert_eq!(&*sample, &(MESSAGES - 1).to_le_bytes());
        assert_eq!(sample.number(), MESSAGES - 1);
        let none = subscriber.take(Wait::Never).expect_err("one alone");
        assert!(none.is_would_block(), "{none}");
        assert_eq!(told().superseded, told().delivered - 1, "{:?}", told());
        assert_eq!((told().dropped_full, told().dropped_memory), (0, 0));
    }
}
