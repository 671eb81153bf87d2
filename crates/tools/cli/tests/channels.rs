//! `takt pub` and `takt sub`: over a daemon, and with the runtime inside.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use rustix::process::Signal;
use support::{Daemon, Running, takt};

/// Starts `takt sub` and waits until the daemon knows its sink.
fn subscriber(daemon: &Daemon, arguments: &[&str]) -> Running {
    let sub = daemon.spawn(arguments);
    let start = std::time::Instant::now();
    loop {
        let sessions = daemon.takt(&["status", "sessions", "--json"]).json();
        let sinks = &sessions[0]["streams"][0]["sinks"];
        if sinks.as_array().is_some_and(|sinks| !sinks.is_empty()) {
            return sub;
        }
        assert!(start.elapsed() < takt_testing::PATIENCE, "{sessions}");
    }
}

#[test]
fn a_message_goes_from_pub_to_sub() {
    let daemon = Daemon::start("");
    let sub = subscriber(&daemon, &["sub", "7", "--count", "3"]);
    let ran = daemon.takt(&["pub", "7", "hello", "--count", "2"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.err.contains("channel 7 over udp: 2 sent in "),
        "{ran:?}"
    );
    let ran = daemon.takt(&["pub", "7", "--size", "3", "--json"]);
    let json = ran.json();
    assert_eq!((&json["emitted"], &json["sent"]), (&1.into(), &1.into()));
    let ran = sub.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.out, "hello\nhello\n000000\n");
    assert!(
        ran.err.contains("3 message(s) received on channel 7"),
        "{ran:?}"
    );
}

#[test]
fn a_message_that_nobody_reads_is_told_and_waited_for_on_demand() {
    let daemon = Daemon::start("");
    let ran = daemon.takt(&["pub", "8", "hello"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("0 sent, 1 without a sink in "), "{ran:?}");
    let ran = daemon.takt(&["pub", "8", "hello", "--wait", "20ms"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("takt sub 8"), "{ran:?}");
    let publisher = daemon.spawn(&["pub", "9", "at last", "--wait", "1min", "--json"]);
    let sub = daemon.takt(&["sub", "9", "--count", "1"]);
    assert_eq!(sub.out, "at last\n");
    let ran = publisher.end();
    assert_eq!((ran.code, &ran.json()["emitted"]), (Some(0), &1.into()));
}

#[test]
fn lines_of_standard_input_become_messages_and_json_tells_about_them() {
    let daemon = Daemon::start("");
    let sub = subscriber(&daemon, &["sub", "5", "--count", "2", "--json"]);
    let mut publisher = daemon.command(&["pub", "5", "--stdin", "--class", "3"]);
    let mut publisher = publisher
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("takt");
    let mut input = publisher.stdin.take().expect("piped");
    input.write_all(b"one\n\xff\x00\n").expect("written");
    drop(input);
    assert!(publisher.wait().expect("an end").success());
    let ran = sub.end();
    let lines: Vec<serde_json::Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    assert_eq!(lines.len(), 2, "{ran:?}");
    assert_eq!(
        (&lines[0]["text"], &lines[0]["class"]),
        (&"one".into(), &3.into())
    );
    assert_eq!(
        (&lines[1]["hex"], &lines[1]["bytes"]),
        (&"ff00".into(), &2.into())
    );
    assert_eq!(
        lines[1]["sequence"].as_u64(),
        lines[0]["sequence"].as_u64().map(|sequence| sequence + 1)
    );
    assert!(
        lines[0]["age_ns"].as_i64().is_some_and(|age| age >= 0),
        "{ran:?}"
    );
}

#[test]
fn a_signal_ends_sub_with_its_summary() {
    let daemon = Daemon::start("");
    let sub = subscriber(&daemon, &["sub", "7", "--quiet"]);
    sub.signal(Signal::INT);
    let ran = sub.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("0 message(s) received"), "{ran:?}");
}

#[test]
fn who_has_no_number_in_the_daemons_process_namespace_is_served_and_missed_when_killed() {
    let daemon = Daemon::start_apart("");
    let mut sub = subscriber(&daemon, &["sub", "7"]);
    let ran = daemon.takt(&["pub", "7", "hello"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut line = String::new();
    let out = sub.0.stdout.as_mut().expect("its output");
    BufReader::new(out).read_line(&mut line).expect("a line");
    assert_eq!(line, "hello\n");
    sub.signal(Signal::KILL);
    takt_testing::until_true("its session has ended", || {
        let sessions = daemon.takt(&["status", "sessions", "--json"]).json();
        sessions.as_array().is_some_and(Vec::is_empty)
    });
}

#[test]
fn silence_is_told_by_code_1() {
    let daemon = Daemon::start("");
    let ran = daemon.takt(&["sub", "7", "--timeout", "10ms"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.err.contains("no message on channel 7 for 10ms"),
        "{ran:?}"
    );
}

#[test]
fn a_session_can_be_ended_and_the_application_says_why() {
    let daemon = Daemon::start("");
    let sub = subscriber(&daemon, &["sub", "7"]);
    let sessions = daemon.takt(&["session", "list", "--json"]).json();
    assert_eq!(sessions[0]["name"], "takt sub");
    let number = sessions[0]["session"].to_string();
    let ran = daemon.takt(&["session", "end", &number, "--reason", "maintenance"]);
    assert_eq!(
        (ran.code, ran.out),
        (Some(0), format!("session {number} ended\n"))
    );
    let ran = sub.end();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("maintenance"), "{ran:?}");
    let ran = daemon.takt(&["session", "end", &number]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("takt session list"), "{ran:?}");
}

#[test]
fn a_fast_stream_that_falls_back_says_so_and_works() {
    let daemon = Daemon::start("");
    let ran = daemon.takt(&["pub", "7", "hello", "--qos", "fast", "--unlimited"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.err.contains("warning: ") && ran.err.contains("over udp"),
        "{ran:?}"
    );
}

#[test]
fn two_processes_without_a_daemon_talk_to_each_other() {
    let (a, b) = (takt_testing::free_port(), takt_testing::free_port());
    let embedded = |arguments: &[&str], own: u16, other: u16| {
        let mut command = takt(arguments);
        command
            .args(["--embedded", "--address", "127.0.0.1"])
            .args(["--port", &own.to_string()])
            .args(["--peer", &format!("127.0.0.1:{other}")])
            .env("TAKT_GROUP_KEY", takt_testing::GROUP_KEY)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Running(command.spawn().expect("takt"))
    };
    let mut sub = embedded(&["sub", "7", "--count", "1"], a, b);
    let publisher = embedded(&["pub", "7", "hello", "--wait", "60s"], b, a);
    let mut line = String::new();
    let out = sub.0.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).expect("a line");
    assert_eq!(line, "hello\n", "{:?}", sub.end());
    let ran = publisher.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(sub.end().code, Some(0));
}
