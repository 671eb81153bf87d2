//! Nothing emitted is lost by ending, however a program ends: a sink of its node and one of another get it all.

use std::process::Command;

use takt_client::{ChannelId, Qos, Session, Sink, SinkOptions, Wait};
use takt_testing::PATIENCE;

use super::support::{Language, Node, Program, source};

const CHANNEL: ChannelId = ChannelId(5);
const MESSAGES: u32 = 1000;
/// Room for all of them behind those that looked for the sinks, however many a busy machine takes.
const DEPTH: u32 = 16_384;

/// A sink of a node that hears the leaving program, with its session.
fn listen(node: &Node) -> Sink {
    let session = Session::builder().socket(node.socket()).open();
    let stream = session.expect("a session").stream(Qos::slow());
    let options = SinkOptions {
        depth: DEPTH,
        ..SinkOptions::default()
    };
    let sink = stream.expect("a stream").sink_with(CHANNEL, options);
    sink.expect("a sink")
}

fn hears_all(sink: &Sink, how: &str) {
    let mut number = 0;
    while number < MESSAGES {
        let message = sink
            .consume(Wait::For(PATIENCE))
            .unwrap_or_else(|error| panic!("{how}: message {number}: {error}"));
        // An embedded program looks for readers with empty ones.
        if !message.is_empty() {
            assert_eq!(*message, number.to_ne_bytes(), "{how}");
            number += 1;
        }
    }
}

/// Waits until a source of the node reaches both sinks.
fn introduce(node: &Node, sinks: &[Sink]) {
    let session = Session::builder().socket(node.socket()).open();
    let stream = session.expect("a session").stream(Qos::slow());
    let source = stream.expect("a stream").source(CHANNEL).expect("a source");
    takt_testing::until_true("the sinks hear the source", || {
        let buffer = source.buffer_wait(0, Wait::For(PATIENCE));
        buffer.and_then(|buffer| buffer.emit()).expect("emitted");
        sinks.iter().all(|sink| sink.available() > 0)
    });
}

/// The ways in which the Rust program ends.
const WAYS: [&str; 7] = [
    "return",
    "exit",
    "_exit",
    "panic",
    "abort",
    "kill",
    "terminate",
];

fn raise(signal: i32) {
    // SAFETY: it has no preconditions. The process ends.
    unsafe { libc::raise(signal) };
}

/// Not a test: the program of the one below, when it runs this file again.
#[test]
#[ignore = "run by rust_programs_lose_nothing_however_they_end"]
fn program_that_leaves() {
    let Ok(way) = std::env::var("TAKT_TEST_END") else {
        return;
    };
    let session = Session::open().expect("a session");
    let stream = session.stream(Qos::slow()).expect("a stream");
    let source = stream.source(CHANNEL).expect("a source");
    for number in 0..MESSAGES {
        let mut buffer = source
            .buffer_wait(4, Wait::For(PATIENCE))
            .expect("a buffer");
        buffer.copy_from_slice(&number.to_ne_bytes());
        buffer.emit_more().expect("emitted");
    }
    match &*way {
        "return" => {}
        "panic" => panic!("enough"),
        "exit" => std::process::exit(0),
        // SAFETY: it has no preconditions.
        "_exit" => unsafe { libc::_exit(0) },
        "abort" => std::process::abort(),
        "kill" => raise(libc::SIGKILL),
        "terminate" => raise(libc::SIGTERM),
        way => panic!("{way} is no way to end"),
    }
}

#[test]
fn rust_programs_lose_nothing_however_they_end() {
    let nodes = Node::pair();
    let sinks = [&nodes[0], &nodes[1]].map(listen);
    introduce(&nodes[0], &sinks);
    for how in WAYS {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", "leaving::program_that_leaves", "--ignored"])
            .env("TAKT_SOCKET", nodes[0].socket())
            .env("TAKT_TEST_END", how);
        command.output().expect("it starts");
        sinks.iter().for_each(|sink| hears_all(sink, how));
    }
}

#[test]
fn whatever_way_a_program_ends_all_that_it_emitted_arrives() {
    let nodes = Node::pair();
    let sinks = [&nodes[0], &nodes[1]].map(listen);
    introduce(&nodes[0], &sinks);
    for (language, ways) in [
        (
            Language::C,
            &[
                "return",
                "exit",
                "_exit",
                "abort",
                "terminate",
                "kill",
                "fault",
                "session",
                "all",
            ][..],
        ),
        (Language::Cpp, &["return", "exit", "exception"][..]),
    ] {
        let program = Program::compile(language, &[source("leave.c")]);
        for how in ways {
            let mut command = program.command();
            command.env("TAKT_SOCKET", nodes[0].socket()).arg(how);
            command.output().expect("the program starts");
            sinks.iter().for_each(|sink| hears_all(sink, how));
        }
    }
}

#[test]
fn a_program_with_the_runtime_inside_sends_what_it_emitted_before_it_exits() {
    let node = Node::start();
    let sink = listen(&node);
    let program = Program::compile(Language::C, &[source("leave.c")]);
    for how in ["return", "exit", "session", "all"] {
        let mut command = program.command();
        command
            .env("TAKT_SOCKET", "/nonexistent/takt.sock")
            .env("TAKT_ADDRESS", "127.0.0.1")
            .env("TAKT_PEERS", node.address().to_string())
            .arg(format!("embedded {how}"));
        let output = command.output().expect("the program starts");
        assert!(output.status.success(), "{how}: {output:?}");
        hears_all(&sink, how);
    }
}
