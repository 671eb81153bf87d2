//! Topics where things go wrong: daemons that are killed, programs that are, slow subscribers, a link that loses datagrams.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use takt::{Outcome, Qos, Reliability, SlowSinks, Wait};
use takt_messaging::{Participant, Publisher, PublisherOptions, Subscriber, SubscriberOptions};
use takt_testing::{PATIENCE, until, until_true};

use crate::crashes::open_files;
use crate::long_messages::{Filter, nodes};
use crate::support::{Datapath, Node, Pair, attach, number_of, skip};

const WAIT: Wait = Wait::For(PATIENCE);

fn participant(node: &Node, name: &str) -> Participant {
    let opened = Participant::builder(attach(node, name)).name(name).open();
    opened.expect("a participant")
}

fn publish(publisher: &Publisher, number: u64) {
    let published = publisher.publish(&number.to_le_bytes(), WAIT);
    published.unwrap_or_else(|error| panic!("message {number}: {error}"));
}

fn next(subscriber: &Subscriber) -> u64 {
    number_of(&subscriber.take(WAIT).expect("a sample"))
}

/// What may fail while a daemon is away.
fn is_away(error: &takt_messaging::Error) -> bool {
    matches!(
        error,
        takt_messaging::Error::Channel(takt::Error::Disconnected | takt::Error::TimedOut)
    )
}

/// Publishes from `number` on until one arrives; the number behind it.
fn meet_again(publisher: &Publisher, subscriber: &Subscriber, mut number: u64) -> u64 {
    until("messages arrive again", || {
        match publisher.publish(&number.to_le_bytes(), WAIT) {
            Ok(_) => number += 1,
            Err(error) => assert!(is_away(&error), "{error}"),
        }
        match subscriber.take(Wait::For(Duration::from_millis(20))) {
            Ok(_) => Some(()),
            Err(error) if is_away(&error) => None,
            Err(error) => panic!("{error}"),
        }
    });
    number
}

#[test]
fn topics_go_on_after_either_daemon_was_killed_with_history_and_the_list_of_who_is_there() {
    if skip() {
        return;
    }
    let Pair {
        nodes: [mut near, mut far],
        lab: _lab,
    } = Pair::over(Datapath::Udp);
    let (writer, reader) = (participant(&near, "writer"), participant(&far, "reader"));
    let options = PublisherOptions {
        history: 3,
        ..PublisherOptions::new(Qos::slow().reliable())
    };
    let publisher = writer
        .publisher_with("plant/1", options)
        .expect("a publisher");
    let subscriber = reader
        .subscriber("plant/*", Qos::slow())
        .expect("a subscriber");
    let mut number = meet_again(&publisher, &subscriber, 0);
    for _ in 0..2 {
        for node in [&mut near, &mut far] {
            node.kill();
            node.restart();
            number = meet_again(&publisher, &subscriber, number);
            until_true("both are listed", || {
                let topics = reader.topics().expect("topics");
                topics.iter().any(|topic| {
                    topic.name == "plant/1"
                        && topic.publishers == ["writer"]
                        && topic.subscribers == ["reader"]
                })
            });
        }
    }
    let late = SubscriberOptions {
        history: 3,
        ..SubscriberOptions::new(Qos::slow())
    };
    let late = reader
        .subscriber_with("plant/1", late)
        .expect("a subscriber");
    for kept in number - 3..number {
        assert_eq!(next(&late), kept);
    }
}

#[test]
fn what_is_published_while_either_daemon_is_away_comes_from_what_is_kept_once() {
    const KEPT: u32 = 4096;
    if skip() {
        return;
    }
    let Pair {
        nodes: [mut near, mut far],
        lab: _lab,
    } = Pair::over(Datapath::Udp);
    let (writer, reader) = (participant(&near, "writer"), participant(&far, "reader"));
    let options = PublisherOptions {
        history: KEPT,
        ..PublisherOptions::new(Qos::slow())
    };
    let publisher = writer
        .publisher_with("plant/1", options)
        .expect("a publisher");
    let options = SubscriberOptions {
        history: KEPT,
        ..SubscriberOptions::new(Qos::slow())
    };
    let by_name = reader.subscriber_with("plant/1", options);
    let by_pattern = reader.subscriber_with("plant/*", options);
    let subscribers = [by_name, by_pattern].map(|opened| opened.expect("a subscriber"));
    let mut got = [(); 2].map(|()| BTreeMap::<u64, u32>::new());
    let mut number = 0;
    let mut take = |published: u64| {
        for (subscriber, got) in subscribers.iter().zip(&mut got) {
            loop {
                match subscriber.take(Wait::Never) {
                    Ok(sample) => *got.entry(sample.number()).or_default() += 1,
                    Err(takt_messaging::Error::Channel(takt::Error::WouldBlock)) => break,
                    Err(error) if is_away(&error) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        got.iter().all(|got| got.len() as u64 == published)
    };
    let mut publish_some = |more: u64| {
        for _ in 0..more {
            until_true("it is published", || {
                let published = publisher.publish(&[], Wait::For(Duration::from_millis(100)));
                match published {
                    Ok(_) => true,
                    Err(error) if is_away(&error) => false,
                    Err(error) => panic!("{error}"),
                }
            });
            number += 1;
        }
        number
    };
    for round in 0..4 {
        let published = publish_some(20);
        until_true("all of them have come", || take(published));
        let node = match round % 2 {
            0 => &mut far,
            _ => &mut near,
        };
        node.kill();
        if round % 2 == 0 {
            publish_some(20);
        }
        node.restart();
        let published = publish_some(20);
        until_true("what was missed has come", || take(published));
    }
    assert!(got.iter().all(|got| got.values().all(|times| *times == 1)));
}

#[test]
fn a_publisher_that_is_killed_while_it_fills_has_published_nothing_more_and_is_gone() {
    if skip() {
        return;
    }
    let pair = Pair::over(Datapath::Udp);
    let reader = participant(&pair.nodes[1], "reader");
    let subscriber = reader
        .subscriber("plant/2", Qos::slow())
        .expect("a subscriber");
    let mut victim = Command::new(env!("CARGO_BIN_EXE_takt-test-client"))
        .arg(pair.nodes[0].socket())
        .args(["--topic", "plant/2"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the client");
    let mut line = String::new();
    let output = victim.stdout.take().expect("its output");
    let read = BufReader::new(output).read_line(&mut line);
    read.expect("its output");
    assert_eq!(line, "ready\n");
    let publishers = || {
        let topics = reader.topics().expect("topics");
        topics
            .iter()
            .map(|topic| topic.publishers.len())
            .sum::<usize>()
    };
    until_true("it is known", || publishers() == 1);
    victim.kill().expect("it runs");
    victim.wait().expect("it ends");
    for number in 0..10 {
        assert_eq!(next(&subscriber), number);
    }
    until_true("it is forgotten", || publishers() == 0);
    let more = subscriber.take(Wait::Never).expect_err("nothing more");
    assert!(more.is_would_block(), "{more}");
}

#[test]
fn a_subscriber_that_takes_next_to_nothing_takes_nothing_from_another() {
    if skip() {
        return;
    }
    let pair = Pair::over(Datapath::Udp);
    let (writer, reader) = (
        participant(&pair.nodes[0], "writer"),
        participant(&pair.nodes[1], "reader"),
    );
    let drops = Reliability::Reliable {
        deadline: None,
        slow_sinks: SlowSinks::Drop,
    };
    let qos = Qos::slow().with_reliability(drops);
    let publisher = writer.publisher("plant/3", qos).expect("a publisher");
    let narrow = SubscriberOptions {
        depth: 4,
        ..SubscriberOptions::new(Qos::slow())
    };
    let slow = participant(&pair.nodes[1], "slow");
    let slow = slow
        .subscriber_with("plant/3", narrow)
        .expect("a subscriber");
    let fast = reader
        .subscriber("plant/3", Qos::slow())
        .expect("a subscriber");
    publisher.wait_subscriber(WAIT).expect("a subscriber");
    let mut taken = 0;
    for number in 0..2000 {
        publish(&publisher, number);
        assert_eq!(next(&fast), number);
        if number % 100 == 0 && slow.take(Wait::Never).is_ok() {
            taken += 1;
        }
    }
    let channels = slow.counters().channels;
    assert!(
        taken > 0 && channels.dropped_full > 1000,
        "{taken}, {channels:?}"
    );
    assert_eq!(
        channels.delivered + channels.dropped_full,
        2000,
        "{channels:?}"
    );
}

#[test]
fn every_message_of_a_topic_arrives_in_order_over_a_link_that_loses_a_twentieth() {
    if skip() {
        return;
    }
    let (pair, [near, far]) = nodes(Datapath::Udp, "");
    let [writer, reader] =
        [near, far].map(|session| Participant::new(session).expect("a participant"));
    let subscriber = reader
        .subscriber("plant/4", Qos::slow())
        .expect("a subscriber");
    let publisher = writer
        .publisher("plant/4", Qos::slow().reliable())
        .expect("a publisher");
    publisher.wait_subscriber(WAIT).expect("a subscriber");
    let filter = Filter::losing(format!("{}-switch", pair.lab.name()), 5);
    const MESSAGES: u64 = 5000;
    std::thread::scope(|scope| {
        scope.spawn(move || (0..MESSAGES).for_each(|number| publish(&publisher, number)));
        for number in 0..MESSAGES {
            assert_eq!(next(&subscriber), number);
        }
    });
    assert!(filter.dropped() > 0);
    let counters = subscriber.counters().channels;
    assert_eq!(
        (counters.lost, counters.dropped_full),
        (0, 0),
        "{counters:?}"
    );
}

#[test]
fn the_newest_message_arrives_over_a_link_that_loses_a_third_and_nobody_waits_for_the_others() {
    if skip() {
        return;
    }
    let (pair, [near, far]) = nodes(Datapath::Udp, "");
    let [writer, reader] =
        [near, far].map(|session| Participant::new(session).expect("a participant"));
    let newest = SubscriberOptions {
        latest: true,
        ..SubscriberOptions::default()
    };
    let subscriber = reader
        .subscriber_with("plant/5", newest)
        .expect("a subscriber");
    let publisher = writer
        .publisher("plant/5", Qos::slow().latest())
        .expect("a publisher");
    publisher.wait_subscriber(WAIT).expect("a subscriber");
    let filter = Filter::losing(format!("{}-switch", pair.lab.name()), 33);
    let (mut last, mut taken) = (None, 0);
    for burst in 0..30 {
        for number in burst * 40..(burst + 1) * 40 {
            publish(&publisher, number);
        }
        until_true("the newest arrives", || {
            if let Ok(sample) = subscriber.take(Wait::For(Duration::from_millis(20))) {
                let number = number_of(&sample);
                assert!(last < Some(number), "{number} after {last:?}");
                (last, taken) = (Some(number), taken + 1);
            }
            last == Some(burst * 40 + 39)
        });
    }
    assert!(filter.dropped() > 0);
    let counters = subscriber.counters().channels;
    assert_eq!(
        (counters.delivered, counters.delivered + counters.lost),
        (taken + counters.superseded, 1200),
        "{counters:?}"
    );
}

fn with(reliability: Reliability) -> Qos {
    Qos::slow().with_reliability(reliability)
}

/// What became of the messages of a topic that were published over a link that lost a twentieth.
struct Passed {
    published: u64,
    /// Outcomes that say that somebody did without.
    undelivered: u64,
    taken: u64,
    counters: takt::SinkCounters,
}

/// Publishes while every twentieth datagram is lost, and then without loss until a message arrives: all gaps are seen by then.
fn pass(qos: Qos) -> Passed {
    const MESSAGES: u64 = 3000;
    let (pair, [near, far]) = nodes(Datapath::Udp, "");
    let [writer, reader] =
        [near, far].map(|session| Participant::new(session).expect("a participant"));
    // Room for all: what is missing was lost on the way.
    let reads = SubscriberOptions {
        depth: 4096,
        ..SubscriberOptions::new(Qos::slow())
    };
    let writes = PublisherOptions {
        depth: 4096,
        ..PublisherOptions::new(qos)
    };
    let subscriber = reader
        .subscriber_with("plant/6", reads)
        .expect("a subscriber");
    let publisher = writer
        .publisher_with("plant/6", writes)
        .expect("a publisher");
    publisher.wait_subscriber(WAIT).expect("a subscriber");
    publish(&publisher, 0);
    assert_eq!(next(&subscriber), 0);
    let filter = Filter::losing(format!("{}-switch", pair.lab.name()), 5);
    let publish = |number: u64| {
        let published = publisher.publish(&number.to_le_bytes(), WAIT);
        published.expect("published")
    };
    let tokens = Vec::from_iter((1..=MESSAGES).map(publish));
    until_true("all of them are done with", || {
        publisher.source().pending() == 0
    });
    let outcomes = tokens.into_iter().map(|token| publisher.outcome(token));
    let undelivered = outcomes.filter(|outcome| match outcome {
        Outcome::Sent => false,
        Outcome::Undelivered => true,
        other => panic!("{other:?}"),
    });
    let undelivered = undelivered.count() as u64;
    assert!(filter.dropped() > 0);
    drop(filter);
    let (mut published, mut taken, mut last) = (MESSAGES + 1, 1, 0);
    until_true("one arrives that was not lost", || {
        publish(published);
        published += 1;
        while let Ok(sample) = subscriber.take(Wait::For(Duration::from_millis(50))) {
            let number = number_of(&sample);
            assert!(last < number, "{number} after {last}");
            (last, taken) = (number, taken + 1);
        }
        last == published - 1
    });
    Passed {
        published,
        undelivered,
        taken,
        counters: subscriber.counters().channels,
    }
}

#[test]
fn what_best_effort_loses_of_a_topic_is_counted_one_by_one() {
    if skip() {
        return;
    }
    let passed = pass(Qos::slow());
    let counters = passed.counters;
    assert!(counters.lost > 0, "{counters:?}");
    assert_eq!(passed.undelivered, 0, "it does not ask");
    assert_eq!(counters.delivered, passed.taken, "{counters:?}");
    assert_eq!(
        passed.taken + counters.lost + counters.dropped_full + counters.dropped_memory,
        passed.published,
        "{counters:?}"
    );
}

#[test]
fn what_cannot_be_repaired_in_time_is_dropped_and_counted_at_both_ends_of_a_topic() {
    if skip() {
        return;
    }
    let within = |deadline| {
        with(Reliability::Reliable {
            deadline: Some(deadline),
            slow_sinks: SlowSinks::Wait,
        })
    };
    // Shorter than any way there and back.
    let late = pass(within(Duration::from_micros(1)));
    let counters = late.counters;
    assert!(counters.lost > 0, "{counters:?}");
    assert!(late.undelivered >= counters.lost, "{}", late.undelivered);
    assert_eq!(counters.delivered, late.taken, "{counters:?}");
    assert_eq!(
        late.taken + counters.lost + counters.dropped_full + counters.dropped_memory,
        late.published,
        "{counters:?}"
    );
    let in_time = pass(within(PATIENCE));
    assert_eq!(
        (in_time.undelivered, in_time.counters.lost, in_time.taken),
        (0, 0, in_time.published),
    );
}

/// As deep as few messages.
fn narrow() -> SubscriberOptions {
    SubscriberOptions {
        depth: 4,
        ..SubscriberOptions::new(Qos::slow())
    }
}

/// Publishes, and takes what one subscriber has got, until there is no memory: how many were published.
fn until_held_up(publisher: &Publisher, fast: &Subscriber) -> u64 {
    let mut published = 0u64;
    let held_up = loop {
        match publisher.publish(
            &published.to_le_bytes(),
            Wait::For(Duration::from_millis(500)),
        ) {
            Ok(_) => published += 1,
            Err(error) => break error,
        }
        while fast.take(Wait::Never).is_ok() {}
        assert!(published < 100_000, "nobody holds it up");
    };
    assert!(held_up.is_timed_out(), "{held_up}");
    published
}

#[test]
fn a_publisher_that_waits_for_slow_subscribers_waits_until_they_have_everything() {
    if skip() {
        return;
    }
    let pair = Pair::over(Datapath::Udp);
    let writer = participant(&pair.nodes[0], "writer");
    let [slow, fast] = ["slow", "fast"].map(|name| participant(&pair.nodes[1], name));
    let slow = slow
        .subscriber_with("plant/7", narrow())
        .expect("a subscriber");
    let fast = fast
        .subscriber("plant/7", Qos::slow())
        .expect("a subscriber");
    let waits = with(Reliability::Reliable {
        deadline: None,
        slow_sinks: SlowSinks::Wait,
    });
    let publisher = writer.publisher("plant/7", waits).expect("a publisher");
    publisher.wait_subscriber(WAIT).expect("a subscriber");
    let published = until_held_up(&publisher, &fast);
    for number in 0..published {
        assert_eq!(next(&slow), number);
        // It is waited for, too.
        while fast.take(Wait::Never).is_ok() {}
    }
    let channels = slow.counters().channels;
    assert_eq!(
        (channels.delivered, channels.lost, channels.dropped_full),
        (published, 0, 0)
    );
    until_true("all is known to have arrived", || {
        publisher.source().pending() == 0
    });
    let after = publisher.publish(b"after", WAIT).expect("published");
    assert_eq!(&*slow.take(WAIT).expect("a sample"), b"after");
    until_true("that, too", || publisher.outcome(after) == Outcome::Sent);
}

#[test]
fn a_subscriber_that_takes_nothing_for_too_long_does_without_until_it_takes_again() {
    if skip() {
        return;
    }
    const MESSAGES: u64 = 1000;
    let pair = Pair::over(Datapath::Udp);
    let writer = participant(&pair.nodes[0], "writer");
    let [slow, fast] = ["slow", "fast"].map(|name| participant(&pair.nodes[1], name));
    let slow = slow
        .subscriber_with("plant/8", narrow())
        .expect("a subscriber");
    let fast = fast
        .subscriber("plant/8", Qos::slow())
        .expect("a subscriber");
    let evicts = with(Reliability::Reliable {
        deadline: None,
        // A node that gets no time for a while is not one that takes nothing.
        slow_sinks: SlowSinks::Evict(Duration::from_secs(10)),
    });
    let writes = PublisherOptions {
        depth: 1024,
        ..PublisherOptions::new(evicts)
    };
    let publisher = writer
        .publisher_with("plant/8", writes)
        .expect("a publisher");
    publisher.wait_subscriber(WAIT).expect("a subscriber");
    let mut tokens = Vec::new();
    for number in 0..MESSAGES {
        let published = publisher.publish(&number.to_le_bytes(), WAIT);
        tokens.push(published.expect("published"));
        assert_eq!(next(&fast), number);
    }
    until_true("all are done with", || publisher.source().pending() == 0);
    let outcomes = tokens.into_iter().map(|token| publisher.outcome(token));
    let undelivered = outcomes
        .filter(|outcome| *outcome == Outcome::Undelivered)
        .count();
    let channels = slow.counters().channels;
    assert_eq!(
        (
            channels.delivered,
            channels.delivered + channels.dropped_full
        ),
        (4, MESSAGES),
        "{channels:?}"
    );
    assert!(undelivered as u64 >= channels.dropped_full, "{undelivered}");
    for number in 0..4 {
        assert_eq!(next(&slow), number);
    }
    let mut number = MESSAGES;
    until_true("it has room again, and gets what is new", || {
        publish(&publisher, number);
        assert_eq!(next(&fast), number);
        number += 1;
        slow.take(Wait::For(Duration::from_millis(20))).is_ok()
    });
    let channels = fast.counters().channels;
    assert_eq!((channels.lost, channels.dropped_full), (0, 0));
}

/// Starts a program that subscribes, takes one message and holds that.
fn holding(node: &Node, topic: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_takt-test-client"))
        .arg(node.socket())
        .args(["--hold", topic])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the client")
}

#[test]
fn a_subscriber_that_is_killed_holds_up_no_publisher_and_its_memory_is_back_whatever_the_policy() {
    if skip() {
        return;
    }
    let pair = Pair::over(Datapath::Udp);
    let [near, far] = &pair.nodes;
    let (writer, reader) = (participant(near, "writer"), participant(far, "reader"));
    let mut admin = far.admin();
    // Longer than the test may take: nothing but its end sets the publisher free.
    let forever = Duration::from_secs(3600);
    for (at, slow_sinks) in [SlowSinks::Wait, SlowSinks::Evict(forever), SlowSinks::Drop]
        .into_iter()
        .enumerate()
    {
        let topic = format!("plant/9/{at}");
        let fast = reader
            .subscriber(&topic, Qos::slow())
            .expect("a subscriber");
        let held = |admin: &mut crate::support::node::Admin| {
            let status = admin.listener_status(&far.socket());
            (
                status.sessions,
                status.memory_bytes,
                status.endpoints,
                status.descriptors,
            )
        };
        let before = (held(&mut admin), open_files(far, "/memfd:takt"));
        let qos = with(Reliability::Reliable {
            deadline: None,
            slow_sinks,
        });
        let publisher = writer.publisher(&topic, qos).expect("a publisher");
        let mut victim = holding(far, &topic);
        let mut line = String::new();
        let mut output = BufReader::new(victim.stdout.take().expect("its output"));
        output.read_line(&mut line).expect("its output");
        assert_eq!(line, "subscribed\n");
        publisher.wait_subscriber(WAIT).expect("a subscriber");
        publish(&publisher, u64::MAX);
        line.clear();
        output.read_line(&mut line).expect("its output");
        assert_eq!(line, "holding\n");
        assert_eq!(next(&fast), u64::MAX);
        let published = match slow_sinks {
            SlowSinks::Drop => {
                for number in 0..1000 {
                    publish(&publisher, number);
                    assert_eq!(next(&fast), number);
                }
                1000
            }
            _ => until_held_up(&publisher, &fast),
        };
        victim.kill().expect("it runs");
        victim.wait().expect("it ends");
        // What was under way when it was killed comes first.
        for number in published..published + 500 {
            publish(&publisher, number);
            until_true("the other one goes on", || next(&fast) == number);
        }
        until_true("nothing of it is left", || {
            (held(&mut admin), open_files(far, "/memfd:takt")) == before
        });
        until_true("the publisher has its memory back", || {
            publisher.source().pending() == 0
        });
        let channels = fast.counters().channels;
        assert_eq!((channels.lost, channels.dropped_full), (0, 0), "{topic}");
    }
}

#[test]
fn what_a_restart_of_either_daemon_loses_of_a_topic_is_counted() {
    if skip() {
        return;
    }
    let Pair {
        nodes: [mut near, mut far],
        lab: _lab,
    } = Pair::over(Datapath::Udp);
    let (writer, reader) = (participant(&near, "writer"), participant(&far, "reader"));
    let subscriber = reader
        .subscriber_with("plant/10", narrow())
        .expect("a subscriber");
    let publisher = writer
        .publisher("plant/10", Qos::slow())
        .expect("a publisher");
    publisher.wait_subscriber(WAIT).expect("a subscriber");
    for number in 0..100 {
        publish(&publisher, number);
        assert_eq!(next(&subscriber), number);
    }
    far.kill();
    for number in 100..600 {
        publish(&publisher, number);
    }
    far.restart();
    let (mut published, mut taken) = (600, 100);
    until_true("the last message arrives", || {
        publish(&publisher, published);
        published += 1;
        let mut last = 0;
        while let Ok(sample) = subscriber.take(Wait::For(Duration::from_millis(20))) {
            (last, taken) = (number_of(&sample), taken + 1);
        }
        last == published - 1
    });
    let channels = subscriber.counters().channels;
    assert!(channels.lost_at_disconnect >= 500, "{channels:?}");
    assert_eq!(
        taken + channels.lost_at_disconnect + channels.lost + channels.dropped_full,
        published,
        "{channels:?}"
    );

    // What the publisher's own daemon had not delivered.
    let waits = with(Reliability::Reliable {
        deadline: None,
        slow_sinks: SlowSinks::Wait,
    });
    let topic = "plant/11";
    let _holds = reader
        .subscriber_with(topic, narrow())
        .expect("a subscriber");
    let publisher = writer.publisher(topic, waits).expect("a publisher");
    publisher.wait_subscriber(WAIT).expect("a subscriber");
    let mut tokens = Vec::new();
    while let Ok(token) = publisher.publish(b"held up", Wait::For(Duration::from_secs(5))) {
        tokens.push(token);
    }
    near.kill();
    near.restart();
    until_true("it publishes again", || {
        publisher.publish(b"again", WAIT).is_ok()
    });
    let outcomes = Vec::from_iter(tokens.into_iter().map(|token| publisher.outcome(token)));
    let lost = outcomes.iter().filter(|it| **it == Outcome::Lost).count() as u64;
    assert!(lost > 0, "{outcomes:?}");
    assert_eq!(lost, publisher.source().lost_at_disconnect());
    assert!(!outcomes.contains(&Outcome::Pending), "{outcomes:?}");
}
