//! A node whose process has no descriptors left. One test: the limit is that of the process.

mod support;

use std::fs::File;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{App, attach, connect, listening, refusal, send};
use takt_runtime::policy::Policy;
use takt_session::message::Request;
use takt_session::{ChannelId, ErrorCode, Qos, SinkMode, transport};
use takt_testing::PATIENCE;

#[test]
fn who_comes_when_no_descriptor_is_left_waits_or_is_told_and_others_go_on() {
    let (runtime, directory, address) = listening(Policy::default());
    let path = directory.join("tenant.sock");
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
    rustix::net::connect(&waits, &address).expect("it waits in the queue");
    send(&waits, 1, attach(1 << 20), &[]);
    goes_on(&mut at_work, 5);
    // One is free, but for a reserve: who is not at work yet is told what to do, and the other with it.
    taken.pop();
    for refused in [&waits, &told] {
        if std::ptr::eq(refused, &told) {
            rustix::net::connect(refused, &address).expect("connected");
        }
        let failure = refusal(refused);
        assert_eq!(failure.code, ErrorCode::Limit);
        assert!(failure.message.contains("raise LimitNOFILE"), "{failure}");
    }
    goes_on(&mut at_work, 6);
    // With less than the reserve left nobody has descriptors opened, who is at work neither.
    taken.truncate(taken.len() - 50);
    let with_descriptor = |channel| Request::OpenSink {
        stream,
        channel: ChannelId(channel),
        depth: 0,
        notify_fd: true,
        mode: SinkMode::default(),
    };
    let refused = at_work.ask(with_descriptor(9)).expect_err("a reserve");
    assert_eq!(refused.code, ErrorCode::Limit, "{refused}");
    assert!(refused.message.contains("raise LimitNOFILE"), "{refused}");
    goes_on(&mut at_work, 8);
    drop(taken);
    at_work.ask(with_descriptor(9)).expect("room");
    let mut again = App::over(connect(&path));
    again.stream(Qos::slow());
    goes_on(&mut at_work, 7);
}
