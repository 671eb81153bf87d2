//! Nothing emitted is lost by ending, however a program ends: a sink of its node and one of another get it all.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use takt_client::{ChannelId, Outcome, Qos, Session, Sink, SinkOptions, Wait};
use takt_embedded::{Embedded, Security, Settings};
use takt_testing::{Directory, PATIENCE, repository, until_true};

use super::bindings::{build_go, libraries};
use super::support::{LANGUAGES, Language, Node, Program, ended_well, source};

const CHANNEL: ChannelId = ChannelId(5);
const MESSAGES: u32 = 1000;
/// Room for all of them behind those that looked for the sinks, however many a busy machine takes.
const DEPTH: u32 = 16_384;
/// Looks at a node after which who has gone in order has said goodbye, or has given up in the second that it has.
const LOOKS: u32 = 500;

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

/// The ways in which leave.c ends, and whether something of the library runs then.
fn ways_of(language: Language) -> impl Iterator<Item = (&'static str, bool)> {
    let orderly = ["return", "exit", "session", "all"].map(|way| (way, true));
    let sudden = ["_exit", "abort", "terminate", "kill", "fault"].map(|way| (way, false));
    let thrown = ["exception", "std::terminate"].map(|way| (way, false));
    let thrown = thrown
        .into_iter()
        .filter(move |_| matches!(language, Language::Cpp));
    orderly.into_iter().chain(sudden).chain(thrown)
}

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
    // With the runtime inside, if a channel is named.
    let channel = std::env::var("TAKT_TEST_CHANNEL");
    let embedded = channel.as_ref().ok().map(|_| {
        let peers = std::env::var("TAKT_PEERS").expect("a peer");
        Embedded::start(Settings {
            address: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            peers: vec![peers.parse::<SocketAddr>().expect("an address").into()],
            security: Security::group(takt_testing::GROUP_KEY.parse().expect("a key")),
            ..Settings::default()
        })
        .expect("a runtime")
    });
    let session = match &embedded {
        Some(embedded) => embedded.session("leaves").expect("a session"),
        None => Session::open().expect("a session"),
    };
    let channel = channel.map_or(CHANNEL, |channel| {
        ChannelId(channel.parse().expect("a number"))
    });
    let stream = session.stream(Qos::slow()).expect("a stream");
    let source = stream.source(channel).expect("a source");
    if embedded.is_some() {
        source.wait_reader(Wait::For(PATIENCE)).expect("a reader");
    }
    for number in 0..MESSAGES {
        let mut buffer = source
            .buffer_wait(4, Wait::For(PATIENCE))
            .expect("a buffer");
        buffer.copy_from_slice(&number.to_ne_bytes());
        // The runtime is not even told of them.
        let token = buffer.emit_more().expect("emitted");
        if number == 0 && embedded.is_some() {
            // But what nobody has heard of nobody can miss.
            until_true("the first is sent", || {
                source.outcome(token) == Outcome::Sent
            });
        }
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
    for language in LANGUAGES {
        let program = Program::compile(language, &[source("leave.c")]);
        for (how, _) in ways_of(language) {
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

/// A program with the runtime inside, and whether something of it runs at its end.
struct Leaving {
    name: String,
    command: Command,
    orderly: bool,
}

/// Programs of all languages in all ways that they may end. The directories are theirs.
fn leaving() -> (Vec<Leaving>, [Program; 2], Directory) {
    let (mut all, libraries) = (Vec::new(), libraries());
    let mut add = |language: &str, way: &str, mut command: Command, orderly: bool| {
        command
            .env("LD_LIBRARY_PATH", libraries.path())
            .env("TAKT_LIBRARY", libraries.join("libtakt.so.0"))
            .env("TAKT_TEST_END", way);
        all.push(Leaving {
            name: format!("{language}: {way}"),
            command,
            orderly,
        });
    };
    let compiled = LANGUAGES.map(|language| {
        let program = Program::compile(language, &[source("leave.c")]);
        for (way, orderly) in ways_of(language) {
            let mut command = program.command();
            command.arg(format!("embedded {way}"));
            add(&format!("{language:?}"), way, command, orderly);
        }
        program
    });
    for way in WAYS {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "leaving::program_that_leaves", "--ignored"]);
        add(
            "Rust",
            way,
            command,
            ["return", "exit", "panic"].contains(&way),
        );
    }
    for (way, orderly) in [
        ("", true),
        ("sys.exit(1)", true),
        ("raise RuntimeError", true),
        ("os.kill(os.getpid(), signal.SIGINT)", true),
        ("source.close()", true),
        ("os._exit(0)", false),
        ("os.kill(os.getpid(), signal.SIGTERM)", false),
        ("os.kill(os.getpid(), signal.SIGKILL)", false),
        ("os.abort()", false),
    ] {
        let mut command = Command::new("python3");
        let code = format!(
            "import os, signal, sys, takt\n\
            signal.signal(signal.SIGINT, signal.default_int_handler)\n\
            source = takt.Session(embedded=True).stream().source(int(os.environ['TAKT_TEST_CHANNEL']))\n\
            source.wait_reader(60)\n\
            first = source.send((0).to_bytes(4, 'little'))\n\
            while source.outcome(first) == takt.Outcome.PENDING: pass\n\
            for number in range(1, 1000): source.send(number.to_bytes(4, 'little'))\n{way}"
        );
        command
            .args(["-c", &code])
            .env("PYTHONPATH", repository().join("bindings/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        add("Python", way, command, orderly);
    }
    let program = libraries.join("leaves");
    let mut build = Command::new("go");
    build.current_dir(repository().join("bindings/go"));
    build_go(&mut build, &libraries).args(["test", "-c", "-o"]);
    ended_well(build.arg(&program).output());
    // Go runs no exit handlers of libraries.
    for way in ["close", "exit", "panic", "kill", "terminate"] {
        add("Go", way, Command::new(&program), way == "close");
    }
    (all, compiled, libraries)
}

#[test]
fn programs_with_the_runtime_inside_lose_nothing_uncounted_however_they_end() {
    let node = Node::start();
    let (programs, _compiled, _libraries) = leaving();
    // One by one: loopback drops what a busy node does not take, also the first of a source.
    for (channel, mut leaving) in (1000..).zip(programs) {
        let session = Session::builder().socket(node.socket()).open();
        let stream = session.expect("a session").stream(Qos::slow());
        let options = SinkOptions {
            depth: 4096,
            ..SinkOptions::default()
        };
        let sink = stream
            .expect("a stream")
            .sink_with(ChannelId(channel), options);
        let sink = sink.expect("a sink");
        let ended = leaving
            .command
            .env("TAKT_SOCKET", "/nonexistent/takt.sock")
            .env("TAKT_ADDRESS", "127.0.0.1")
            .env("TAKT_PORT", "0")
            .env("TAKT_GROUP_KEY", takt_testing::GROUP_KEY)
            .env("TAKT_PEERS", node.address().to_string())
            .env("TAKT_TEST_CHANNEL", channel.to_string())
            .output()
            .expect("the program starts");
        until_true(&format!("{}: {ended:?}", leaving.name), || {
            sink.counters().delivered > 0
        });
        let (mut heard, mut unknown, mut looks) = (0, false, 0);
        until_true(&leaving.name, || {
            looks += 1;
            if !leaving.orderly || looks > LOOKS {
                // As the node does itself, a minute after it has last heard of it.
                node.forget_peers();
            }
            while let Ok(message) = sink.consume(Wait::Never) {
                heard += u64::from(!message.is_empty());
            }
            let told = sink.counters();
            unknown = node.counters(channel).unknown_tails > 0;
            heard + told.lost + told.dropped_full >= MESSAGES.into() || unknown
        });
        assert!(heard <= MESSAGES.into(), "{}: {heard} came", leaving.name);
        assert!(
            !unknown || !leaving.orderly || looks > LOOKS,
            "{}: {heard} came",
            leaving.name
        );
    }
}
