//! Programs that publish and subscribe, with a runtime inside each.

use std::sync::mpsc;
use std::time::Duration;

use takt::{ChannelId, Outcome, Qos, Session, Wait};
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
