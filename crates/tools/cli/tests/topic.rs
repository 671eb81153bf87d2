//! `takt topic`: over a daemon, and without one.

mod support;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use support::{Daemon, Running, User};
use takt::{ChannelId, Qos, Session, Wait};
use takt_messaging::{DIRECTORY, Participant, Publisher};
use takt_testing::{PATIENCE, until, until_true};

/// Bytes that a pipe takes.
const PIPE: u64 = 65_536;

/// The topics that the daemon's applications tell of.
fn listed(daemon: &Daemon) -> serde_json::Value {
    let ran = daemon.takt(&["topic", "list", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.json()
}

#[test]
fn topics_are_published_echoed_and_listed() {
    let daemon = Daemon::start("");
    let echo = daemon.spawn(&["topic", "echo", "plant/*", "--count", "2"]);
    let publish =
        |topic, text| daemon.takt(&["topic", "pub", topic, text, "--wait", "1min", "--reliable"]);
    for (topic, text) in [("plant/1", "warm"), ("plant/2", "cold")] {
        let ran = publish(topic, text);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.err.contains(&format!("topic {topic} over ")), "{ran:?}");
        assert!(ran.err.contains(": 1 sent in "), "{ran:?}");
    }
    let ran = echo.end();
    assert_eq!(
        (ran.code, &*ran.out),
        (Some(0), "plant/1: warm\nplant/2: cold\n"),
        "{ran:?}"
    );

    let kept = daemon.spawn(&[
        "topic",
        "pub",
        "config",
        "{\"a\": 1}",
        "--encoding",
        "json",
        "--history",
        "1",
    ]);
    let topic = until("the topic is listed", || {
        listed(&daemon)
            .as_array()?
            .iter()
            .find(|topic| topic["name"] == "config")
            .cloned()
    });
    assert_eq!(topic["publishers"], serde_json::json!(["takt topic pub"]));
    assert_eq!(topic["encodings"], serde_json::json!(["json"]));
    let table = daemon.takt(&["topic", "list"]);
    assert!(
        table
            .out
            .starts_with("TOPIC   PUBLISHERS  SUBSCRIBERS  ENCODING\n"),
        "{table:?}"
    );
    let late = [
        "topic",
        "echo",
        "config",
        "--history",
        "1",
        "--count",
        "1",
        "--json",
    ];
    let line = daemon.takt(&late).json();
    assert_eq!(
        (&line["text"], &line["history"]),
        (&"{\"a\": 1}".into(), &true.into()),
        "{line}"
    );
    assert_eq!(line.get("age_ns"), None, "{line}");
    kept.signal(Signal::INT);
    let ran = kept.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(listed(&daemon), serde_json::json!([]));
}

#[test]
fn rates_and_bandwidths_are_measured() {
    let daemon = Daemon::start("");
    for (command, unit) in [("hz", " messages/s, min "), ("bw", "/s, mean 8 B, ")] {
        let measure = daemon.spawn(&["topic", command, "clock", "--count", "5"]);
        let ran = daemon.takt(&[
            "topic",
            "pub",
            "clock",
            "--size",
            "8",
            "--count",
            "5",
            "--interval",
            "1ms",
            "--reliable",
            "--wait",
            "1min",
        ]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let ran = measure.end();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(
            ran.out.contains(unit) && ran.out.ends_with(", of 5\n"),
            "{ran:?}"
        );
    }
}

#[test]
fn programs_of_a_user_find_each_others_topics_without_a_daemon() {
    let Some(user) = User::new(65_530) else {
        return;
    };
    let echo = user.spawn(&["topic", "echo", "**", "--count", "1"]);
    let ran = user.takt(&["topic", "pub", "weather/today", "warm", "--wait", "1min"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = echo.end();
    assert_eq!(
        (ran.code, &*ran.out),
        (Some(0), "weather/today: warm\n"),
        "{ran:?}"
    );
}

#[test]
fn nobody_and_nothing_are_told_with_what_to_do() {
    let daemon = Daemon::start("");
    let ran = daemon.takt(&["topic", "list"]);
    assert_eq!((ran.code, &*ran.out), (Some(0), ""), "{ran:?}");
    assert!(
        ran.err.contains("nobody publishes or subscribes"),
        "{ran:?}"
    );
    let ran = daemon.takt(&["topic", "echo", "a", "--timeout", "10ms"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err.contains("no message on topic a for 10ms"),
        "{ran:?}"
    );
    // What came before is told as well.
    let kept = daemon.spawn(&["topic", "pub", "kept", "hello", "--history", "1"]);
    until("it is published", || {
        let listed = daemon.takt(&["topic", "list"]);
        listed.out.contains("kept").then_some(())
    });
    let echo = ["topic", "echo", "kept", "--history", "1", "--count", "2"];
    let ran = daemon.takt(&[&echo[..], &["--timeout", "10s"]].concat());
    assert_eq!((ran.code, &*ran.out), (Some(1), "hello\n"), "{ran:?}");
    assert!(
        ran.err.contains("1 message(s) received on topic kept"),
        "{ran:?}"
    );
    drop(kept);
    let ran = daemon.takt(&["topic", "pub", "a", "hello", "--wait", "10ms"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err
            .contains("nobody reads topic a yet: start `takt topic echo a`"),
        "{ran:?}"
    );
    for (arguments, told) in [
        (["topic", "pub", "/a"], "it has an empty level"),
        (["topic", "pub", "a/*"], "`*` is of patterns"),
        (["topic", "echo", "a*"], "stand for whole levels"),
        (["topic", "hz", "a/b*"], "stand for whole levels"),
    ] {
        let ran = daemon.takt(&arguments);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(told), "{ran:?}");
    }
    // What is no JSON is not declared as such; `message 0` is none either.
    let reader = daemon.spawn(&["topic", "echo", "config"]);
    for text in [&["{bad"][..], &[]] {
        let declared = [
            "topic",
            "pub",
            "config",
            "--encoding",
            "json",
            "--wait",
            "60s",
        ];
        let ran = daemon.takt(&[&declared[..3], text, &declared[3..]].concat());
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains("with --encoding json"), "{ran:?}");
    }
    drop(reader);
}

#[test]
fn the_first_signal_ends_what_waits_and_sums_up() {
    let daemon = Daemon::start("");
    let history = ["--history", "1"];
    let slowly = ["hi", "--count", "1000", "--interval", "1h"];
    let stdin = ["--stdin"];
    let cases: [&[&str]; 4] = [
        &[&slowly[..], &history].concat(),
        &slowly,
        &[&stdin[..], &history].concat(),
        &stdin,
    ];
    for more in cases {
        let arguments = [&["topic", "pub", "idle", "--json"][..], more].concat();
        let mut command = daemon.command(&arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        let mut publisher = Running(command.spawn().expect("takt"));
        // It stays open.
        let _input = publisher.0.stdin.take();
        until_true("the topic is listed", || {
            let listed = listed(&daemon);
            listed.as_array().expect("topics").len() == 1
        });
        publisher.signal(Signal::INT);
        let ran = publisher.end();
        assert_eq!(ran.code, Some(0), "{more:?}: {ran:?}");
        let sent = u64::from(more.contains(&"hi"));
        let json = ran.json();
        assert_eq!(json["emitted"], sent, "{more:?}: {ran:?}");
        assert!(json["datapath"].is_string(), "{more:?}: {ran:?}");
        // For people.
        assert!(!ran.err.contains(" sent in "), "{more:?}: {ran:?}");
        until_true("it is gone", || listed(&daemon) == serde_json::json!([]));
    }
}

#[test]
fn what_is_ended_while_it_waits_for_a_reader_has_not_done_what_it_was_to_do() {
    let daemon = Daemon::start("");
    for more in [&[][..], &["--json"]] {
        let told = ["topic", "pub", "nobody", "hi", "--wait", "1min"];
        let publisher = daemon.spawn(&[&told, more].concat());
        until_true("the topic is listed", || {
            listed(&daemon).as_array().expect("topics").len() == 1
        });
        publisher.signal(Signal::INT);
        let ran = publisher.end();
        assert_eq!(ran.code, Some(1), "{more:?}: {ran:?}");
        let told =
            "nobody reads topic nobody yet, and nothing was sent: start `takt topic echo nobody`";
        assert!(ran.err.contains(told), "{ran:?}");
        match more {
            [] => assert!(ran.err.contains(": 0 sent in "), "{ran:?}"),
            _ => assert_eq!(ran.json()["emitted"], 0, "{ran:?}"),
        }
        until_true("it is gone", || listed(&daemon) == serde_json::json!([]));
    }
}

#[test]
fn lines_of_standard_input_are_messages_however_they_come() {
    let daemon = Daemon::start("");
    let echo = daemon.spawn(&["topic", "echo", "lines", "--count", "4"]);
    let mut command = daemon.command(&["topic", "pub", "lines", "--stdin", "--reliable"]);
    command.args(["--wait", "1min"]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut publisher = Running(command.spawn().expect("takt"));
    let mut input = publisher.0.stdin.take().expect("piped");
    for part in ["one\ntwo", " parts\n", "\nno end"] {
        input.write_all(part.as_bytes()).expect("written");
    }
    drop(input);
    let ran = publisher.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(echo.end().out, "one\ntwo parts\n\nno end\n");
}

#[test]
fn a_signal_ends_what_nobody_reads_and_a_second_one_ends_it_at_once() {
    let daemon = Daemon::start("");
    for signals in [1, 2] {
        let mut echo = daemon.spawn(&["topic", "echo", "full"]);
        let size = PIPE.to_string();
        let publish = ["topic", "pub", "full", "--size", &size, "--wait", "1min"];
        let ran = daemon.takt(&publish);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        // Nobody reads its output, which is twice as long as what the pipe takes: the call does not return.
        let output = echo.0.stdout.as_ref().expect("piped");
        until_true("its pipe is full", || {
            rustix::io::ioctl_fionread(output).expect("a pipe") == PIPE
        });
        for _ in 0..signals {
            echo.signal(Signal::INT);
        }
        let status = echo.0.wait().expect("an end");
        assert_eq!(status.signal(), Some(Signal::INT.as_raw()), "{status}");
    }
}

/// A participant of the daemon.
fn participant(daemon: &Daemon) -> Participant {
    let socket = daemon.directory.join("takt.sock");
    let session = Session::builder().socket(socket).open().expect("a session");
    Participant::builder(session).open().expect("a participant")
}

#[test]
fn late_joiners_that_do_not_get_what_is_kept_are_told_by_who_keeps_it() {
    let daemon = Daemon::start("");
    let mut publisher = daemon.spawn(&["topic", "pub", "config", "x", "--history", "1"]);
    until_true("it is listed", || {
        let listed = listed(&daemon);
        listed.as_array().expect("topics").len() == 1
    });
    let forger = participant(&daemon);
    let stream = forger
        .session()
        .stream(Qos::default().reliable())
        .expect("a stream");
    let channel = ChannelId::named(DIRECTORY).expect("a name");
    let directory = stream.source(channel).expect("a source");
    let say = |what: serde_json::Value| {
        let text = what.to_string();
        let buffer = directory.buffer_wait(text.len(), Wait::For(PATIENCE));
        let mut buffer = buffer.expect("memory");
        buffer.copy_from_slice(text.as_bytes());
        buffer.emit().expect("emitted");
    };
    // Somebody who asks for what is kept, and reads no inbox.
    let wants = serde_json::json!({
        "id": 8, "topic": "config", "role": "subscriber", "encoding": 0, "history": 1, "inbox": 9
    });
    say(serde_json::json!({
        "say": "update", "participant": 7, "name": "nobody", "from": 0, "to": 1, "add": [wants], "remove": []
    }));
    std::thread::scope(|scope| {
        let told = scope.spawn(|| publisher.line_with("1 late joiner(s) did not get all"));
        while !told.is_finished() {
            say(serde_json::json!({"say": "alive", "participant": 7, "version": 1}));
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    publisher.signal(Signal::INT);
    assert_eq!(publisher.end().code, Some(0));
}

#[test]
fn a_pattern_reads_as_many_topics_as_a_session_has_sinks_for() {
    let daemon = Daemon::start("");
    let echo = daemon.spawn(&["topic", "echo", "many/*", "--count", "100"]);
    let writer = participant(&daemon);
    let mut expected = Vec::new();
    let mut publishers = Vec::new();
    for number in 0..100 {
        let topic = format!("many/{number}");
        let publisher: Publisher = writer
            .publisher(&topic, Qos::slow().reliable())
            .expect("a publisher");
        publisher
            .wait_subscriber(Wait::For(PATIENCE))
            .expect("a subscriber");
        publisher
            .publish(b"hello", Wait::For(PATIENCE))
            .expect("published");
        publishers.push(publisher);
        expected.push(format!("{topic}: hello"));
    }
    let ran = echo.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut lines: Vec<_> = ran.out.lines().collect();
    lines.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn topics_that_a_pattern_cannot_open_are_told_while_it_reads() {
    let daemon = Daemon::start("endpoints = 8\n");
    let mut echo = daemon.spawn(&["topic", "echo", "many/*"]);
    let writers = [participant(&daemon), participant(&daemon)];
    let mut publishers = Vec::new();
    for (writer, names) in writers.iter().zip([0..5, 5..10]) {
        for number in names {
            let topic = format!("many/{number}");
            publishers.push(writer.publisher(&topic, Qos::slow()).expect("a publisher"));
        }
    }
    echo.line_with("topic(s) could not be opened, such as \"many/");
    echo.signal(Signal::INT);
    assert_eq!(echo.end().code, Some(0));
}

#[test]
fn readers_that_get_less_than_they_asked_for_are_told() {
    let daemon = Daemon::start("");
    let told = |command: &[&str]| {
        let end = ["--qos", "fast", "--timeout", "1ms"];
        let ran = daemon.takt(&[command, &end].concat());
        let mut warnings = ran.err.lines();
        warnings
            .find(|line| line.starts_with("takt: warning: "))
            .unwrap_or_else(|| panic!("no warning of {command:?}: {ran:?}"))
            .to_owned()
    };
    let expected = told(&["sub", "a"]);
    for command in ["echo", "hz", "bw"] {
        assert_eq!(told(&["topic", command, "a"]), expected);
    }
}

#[test]
fn names_that_are_not_what_they_seem_are_printed_escaped() {
    let daemon = Daemon::start("");
    let topic = "a/\u{202e}b";
    let echo = daemon.spawn(&["topic", "echo", "a/*", "--count", "1"]);
    let ran = daemon.takt(&["topic", "pub", topic, "hello", "--wait", "1min"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("topic a/\\u{202e}b over "), "{ran:?}");
    assert_eq!(echo.end().out, "a/\\u{202e}b: hello\n");
    // What a message says is no more trusted than its name.
    let writer = participant(&daemon);
    let publisher = writer
        .publisher("said", Qos::default().reliable())
        .expect("opened");
    let echo = daemon.spawn(&["topic", "echo", "said", "--count", "1"]);
    publisher
        .wait_subscriber(Wait::For(PATIENCE))
        .expect("a reader");
    let text = "a\u{202e}b\u{2028}c\u{200d}d\u{e0041}\u{3164}\u{a0}\te";
    publisher
        .publish(text.as_bytes(), Wait::For(PATIENCE))
        .expect("published");
    assert_eq!(
        echo.end().out,
        "a\\u{202e}b\\u{2028}c\\u{200d}d\\u{e0041}\\u{3164}\\u{a0}\te\n"
    );
    let _echo = daemon.spawn(&["topic", "echo", topic]);
    until_true("it is listed", || {
        let ran = daemon.takt(&["topic", "list"]);
        assert!(!ran.out.contains('\u{202e}'), "{ran:?}");
        ran.out.contains("a/\\u{202e}b ")
    });
}

#[test]
fn what_was_not_received_is_told_as_json_too() {
    let daemon = Daemon::start("");
    for command in ["echo", "hz", "bw"] {
        let ran = daemon.takt(&["topic", command, "a", "--json", "--timeout", "1ms"]);
        let summary = ran.err.lines().find(|line| line.starts_with('{'));
        let summary: serde_json::Value =
            serde_json::from_str(summary.expect("a summary")).expect("JSON");
        let counted = ["received", "lost", "dropped"].map(|what| summary[what].as_u64());
        assert_eq!(counted, [Some(0); 3], "{ran:?}");
        assert_eq!(summary["topic"], "a");
    }
}
