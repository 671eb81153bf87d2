//! Topics where things go wrong: daemons that are killed, programs that are, slow subscribers, a link that loses datagrams.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use takt::{Qos, Reliability, SlowSinks, Wait};
use takt_messaging::{Participant, Publisher, PublisherOptions, Subscriber, SubscriberOptions};
use takt_testing::{PATIENCE, until, until_true};

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
