//! A node whose process has no descriptors left. One test: the limit is that of the process.

mod support;

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::net::SocketAddrUnix;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{App, config, connect, free_port, start};
use takt_runtime::config::{Config, ListenerConfig};
use takt_runtime::policy::Policy;
use takt_session::message::{Envelope, Reply, Request};
use takt_session::{ErrorCode, Qos, transport};
use takt_testing::{Directory, PATIENCE};

fn ask_to_attach(socket: &OwnedFd) {
    let message = Request::Attach {
        name: "late".into(),
        tx_bytes: 1 << 20,
        rx_bytes: 1 << 20,
    };
    let bytes = Envelope {
        request: 1,
        message,
    }
    .encode();
    transport::send(socket, &bytes, &[], true).expect("sent");
}

fn answer(socket: &OwnedFd) -> Reply {
    let packet = transport::receive(socket, true).expect("a packet");
    let packet = packet.expect("an answer before the end");
    let answer = Envelope::<Reply>::decode(&packet.bytes);
    answer.expect("an answer").message
}

#[test]
fn who_comes_when_no_descriptor_is_left_waits_or_is_told_and_others_go_on() {
    let directory = Directory::new();
    let path = directory.join("tenant.sock");
    let runtime = start(Config {
        listeners: vec![ListenerConfig {
            path: path.clone(),
            mode: 0o600,
            policy: Policy::default(),
        }],
        ..config(free_port(), &[])
    });
    let mut at_work = App::over(connect(&path));
    let stream = at_work.stream(Qos::slow());
    let goes_on = |at_work: &mut App, channel| {
        runtime.handle().heartbeat(PATIENCE).expect("all answer");
        let mut source = at_work.source(stream, channel, 0);
        let mut sink = at_work.sink(stream, channel, 0);
        at_work.emit(&mut source, 0, b"still here", 1);
        assert_eq!(at_work.receive(&mut sink).1, b"still here");
        assert_eq!(at_work.completion(&mut source).token, 1);
    };
    // The client's ends are in this process too: they are there before the descriptors are gone.
    let waits = transport::socket().expect("a socket");
    let told = transport::socket().expect("a socket");
    let limit = Rlimit {
        current: Some(1024),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).expect("a limit");
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(!taken.is_empty());
    let address = SocketAddrUnix::new(path.clone()).expect("a path");
    rustix::net::connect(&waits, &address).expect("it waits in the queue");
    ask_to_attach(&waits);
    goes_on(&mut at_work, 5);
    // One is free, but for a reserve: who is not at work yet is told what to do, and the other with it.
    taken.pop();
    for refused in [&waits, &told] {
        if std::ptr::eq(refused, &told) {
            rustix::net::connect(refused, &address).expect("connected");
        }
        match answer(refused) {
            Reply::Ended(failure) | Reply::Failed(failure) => {
                assert_eq!(failure.code, ErrorCode::Limit);
                assert!(failure.message.contains("raise LimitNOFILE"), "{failure}");
            }
            other => panic!("not refused: {other:?}"),
        }
    }
    goes_on(&mut at_work, 6);
    drop(taken);
    let mut again = App::over(connect(&path));
    again.stream(Qos::slow());
    goes_on(&mut at_work, 7);
}
