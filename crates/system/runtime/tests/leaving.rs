//! What an application had emitted when it left, in whatever way: its socket closes, nothing else is said.

mod support;

use std::time::Duration;

use support::{App, Source, config, free_port, start};
use takt_clock::{Clock, SystemTai};
use takt_runtime::RuntimeHandle;
use takt_runtime::config::{Config, Limits};
use takt_runtime::policy::Policy;
use takt_runtime::status::TenantStatus;
use takt_session::layout::{FLAG_LAUNCH_TIME, TxDescriptor};
use takt_session::message::{Reply, Request};
use takt_session::{ErrorCode, Qos};
use takt_testing::until_true;

const MESSAGES: u32 = 1000;
/// What looks for the other node's sink.
const SCOUT: &[u8] = b"there?";

fn tenant(handle: &RuntimeHandle, identity: &str) -> Option<TenantStatus> {
    let tenants = handle.tenants().expect("running");
    tenants.into_iter().find(|t| t.identity == identity)
}

fn policy(identity: &str) -> Policy {
    Policy {
        identity: identity.into(),
        ..Policy::default()
    }
}

/// Numbered messages, and no doorbell: whoever is killed between the two leaves it so.
fn emit_silently(app: &App, source: &mut Source, launch_time_ns: Option<i64>) {
    for number in 0..MESSAGES {
        let offset = app.map.tx_offset() + number as usize * takt_shm::CHUNK;
        app.arena
            .slice(offset, 4)
            .and_then(|window| window.write_from(0, &number.to_le_bytes()))
            .expect("in bounds");
        let descriptor = TxDescriptor {
            chunk: number,
            length: 4,
            token: number,
            flags: launch_time_ns.map_or(0, |_| FLAG_LAUNCH_TIME),
            launch_time_ns: launch_time_ns.unwrap_or(0),
            ..TxDescriptor::default()
        };
        assert!(source.tx.push(descriptor).expect("ring"), "full");
    }
}

fn all_arrive(app: &App, sink: &mut support::Sink) {
    let mut number = 0;
    while number < MESSAGES {
        let (_, bytes) = app.receive(sink);
        if bytes != SCOUT {
            assert_eq!(bytes, number.to_le_bytes());
            number += 1;
        }
    }
}

/// Two nodes that know each other, an application with a sink on each, and one that is to leave.
fn leaves(policy: Policy, launch_in: Option<Duration>) {
    let (pa, pb) = (free_port(), free_port());
    let nodes = [start(config(pa, &[pb])), start(config(pb, &[pa]))];
    let [mut here, mut there] = [&nodes[0], &nodes[1]].map(|node| App::attach(node.handle()));
    let (sh, st) = (here.stream(Qos::slow()), there.stream(Qos::slow()));
    let mut sinks = (here.sink(sh, 5, 4096), there.sink(st, 5, 4096));
    let mut scout = App::attach(nodes[0].handle());
    let ss = scout.stream(Qos::slow());
    let mut known = scout.source(ss, 5, 0);
    until_true("the other node's sink is known", || {
        scout.emit(&mut known, 0, SCOUT, 0);
        scout.completion(&mut known);
        there.take(&mut sinks.1).is_some()
    });
    let mut leaving = App::attach_with(nodes[0].handle(), policy);
    let stream = leaving.stream(Qos::slow());
    let mut source = leaving.source(stream, 5, 1024);
    let launch = launch_in.map(|ahead| SystemTai.now().as_nanos() + ahead.as_nanos() as i64);
    emit_silently(&leaving, &mut source, launch);
    drop(source);
    drop(leaving);
    all_arrive(&here, &mut sinks.0);
    all_arrive(&there, &mut sinks.1);
    until_true("nothing of it is left", || {
        tenant(nodes[0].handle(), "leaving").is_some_and(|t| (t.sessions, t.ended) == (0, 1))
    });
    let counters = tenant(nodes[0].handle(), "leaving").expect("seen").counters;
    assert_eq!((counters.emitted, counters.abandoned), (1000, 0));
}

#[test]
fn what_was_emitted_before_an_application_left_arrives() {
    leaves(policy("leaving"), None);
}

#[test]
fn what_waits_for_its_launch_time_arrives_after_its_application_left() {
    leaves(policy("leaving"), Some(Duration::from_millis(300)));
}

#[test]
fn what_a_rate_limit_holds_back_arrives_after_its_application_left() {
    let slow = Policy {
        messages_per_second: 2000,
        ..policy("leaving")
    };
    leaves(slow, None);
}

/// A node that gives up what an application that left has emitted after this long.
fn patient_for(linger: Duration) -> Config {
    let config = config(free_port(), &[]);
    Config {
        limits: Limits {
            linger,
            ..config.limits
        },
        ..config
    }
}

/// A rate at which nothing more goes for a long while.
fn stuck(identity: &str) -> Policy {
    Policy {
        messages_per_second: 1,
        ..policy(identity)
    }
}

#[test]
fn what_cannot_be_sent_in_time_is_given_up_and_counted() {
    let runtime = start(patient_for(Duration::from_millis(50)));
    let mut app = App::attach_with(runtime.handle(), stuck("stuck"));
    let stream = app.stream(Qos::slow());
    let mut source = app.source(stream, 5, 1024);
    emit_silently(&app, &mut source, None);
    drop(source);
    drop(app);
    until_true("it is given up", || {
        tenant(runtime.handle(), "stuck").is_some_and(|t| t.ended == 1)
    });
    let counters = tenant(runtime.handle(), "stuck").expect("seen").counters;
    assert_eq!(counters.emitted, 1000);
    assert!((900..=1000).contains(&counters.abandoned));
}

#[test]
fn a_session_that_the_runtime_ends_counts_what_it_had_not_sent() {
    let runtime = start(patient_for(Duration::from_secs(60)));
    let mut app = App::attach_with(runtime.handle(), stuck("ended"));
    let stream = app.stream(Qos::slow());
    let mut source = app.source(stream, 5, 1024);
    emit_silently(&app, &mut source, None);
    let session = runtime.handle().sessions().expect("running")[0].session;
    assert!(
        runtime
            .handle()
            .end_session(session, "enough".into())
            .expect("running")
    );
    until_true("it has ended", || {
        tenant(runtime.handle(), "ended").is_some_and(|t| t.ended == 1)
    });
    let counters = tenant(runtime.handle(), "ended").expect("seen").counters;
    assert_eq!(counters.emitted, 1000);
    assert!((900..=1000).contains(&counters.abandoned));
}

#[test]
fn who_goes_on_emitting_after_leaving_is_not_listened_to() {
    let runtime = start(config(free_port(), &[]));
    let mut here = App::attach(runtime.handle());
    let stream = here.stream(Qos::slow());
    let mut sink = here.sink(stream, 5, 4096);
    let mut app = App::attach_with(runtime.handle(), policy("ghost"));
    let stream = app.stream(Qos::slow());
    let mut source = app.source(stream, 5, 1024);
    emit_silently(&app, &mut source, None);
    let App {
        socket,
        arena,
        bell,
        ..
    } = app;
    drop(socket);
    // Its arena is still mapped, and it writes on as fast as it can.
    until_true("its session is gone", || {
        let _ = source.tx.push(TxDescriptor::default());
        bell.ring();
        while here.take(&mut sink).is_some() {}
        tenant(runtime.handle(), "ghost").is_some_and(|t| t.ended == 1)
    });
    drop(arena);
}

#[test]
fn sessions_that_left_take_no_places_and_have_no_more_than_there_are() {
    let directory = takt_testing::Directory::new();
    let runtime = start(patient_for(Duration::from_secs(3600)));
    let path = directory.join("takt.sock");
    let listener = takt_runtime::config::ListenerConfig {
        path: path.clone(),
        mode: 0o600,
        policy: Policy {
            sessions: 1,
            ..stuck("crashes")
        },
    };
    runtime
        .handle()
        .set_listener(listener)
        .expect("running")
        .expect("a socket");
    for round in 0..4 {
        let mut app = App::over(support::connect(&path));
        let stream = app.stream(Qos::slow());
        let mut source = app.source(stream, 5, 1024);
        emit_silently(&app, &mut source, None);
        drop(source);
        drop(app);
        // The one before gives way to this one, which would wait for an hour.
        until_true("it has left", || {
            runtime.handle().sessions().expect("running").is_empty()
                && tenant(runtime.handle(), "crashes").is_some_and(|t| t.ended == round)
        });
    }
    let counters = tenant(runtime.handle(), "crashes").expect("seen").counters;
    assert!(counters.abandoned > 2 * u64::from(MESSAGES));
}

#[test]
fn who_comes_under_the_name_of_one_that_has_gone_begins_to_count_anew() {
    let directory = takt_testing::Directory::new();
    let runtime = start(config(free_port(), &[]));
    let handle = runtime.handle();
    let listen = |name: &str| {
        let listener = takt_runtime::config::ListenerConfig {
            path: directory.join(name),
            mode: 0o600,
            policy: policy("pod"),
        };
        let path = listener.path.clone();
        handle
            .set_listener(listener)
            .expect("running")
            .expect("a socket");
        path
    };
    let ended = || tenant(handle, "pod").map_or(0, |tenant| tenant.ended);
    let come_and_go = |path: &std::path::Path| {
        let before = ended();
        drop(App::over(support::connect(path)));
        until_true("it has left", || ended() == before + 1);
    };
    let first = listen("first.sock");
    come_and_go(&first);
    // While there is one of the name, another one of it is the same tenant.
    let second = listen("second.sock");
    assert_eq!(ended(), 1);
    come_and_go(&second);
    for path in [first, second] {
        assert!(handle.remove_listener(path).expect("running"));
    }
    assert_eq!(ended(), 2, "told until somebody has looked");
    let third = listen("first.sock");
    assert_eq!(ended(), 0);
    come_and_go(&third);
}

#[test]
fn the_memory_of_a_session_that_has_ended_is_given_back_though_somebody_has_it_mapped() {
    let runtime = start(config(free_port(), &[]));
    let app = App::attach(runtime.handle());
    let bytes = vec![7; 1 << 20];
    for offset in [app.map.tx_offset(), app.map.rx_offset()] {
        let window = app.arena.slice(offset, bytes.len()).expect("in bounds");
        window.write_from(0, &bytes).expect("fits");
    }
    let kept = || {
        let state = rustix::fs::fstat(app.arena.fd()).expect("it is open");
        state.st_blocks * 512
    };
    assert!(kept() >= 2 << 20);
    // As a child process would, this one keeps the memory when the connection is gone.
    rustix::net::shutdown(&app.socket, rustix::net::Shutdown::Both).expect("connected");
    until_true("its memory is given back", || kept() == 0);
}

/// A session over a tenant's socket, with a message received and not released, and where that is.
fn holding(path: &std::path::Path, channel: u64) -> (App, takt_session::layout::RxDescriptor) {
    let mut app = App::over(support::connect(path));
    let stream = app.stream(Qos::slow());
    let mut sink = app.sink(stream, channel, 16);
    let mut source = app.source(stream, channel, 16);
    app.emit(&mut source, 3, b"held", 0);
    let mut held = None;
    until_true("a message", || {
        held = sink.rx.pop().expect("ring");
        held.is_some()
    });
    (app, held.expect("message"))
}

#[test]
fn an_application_that_has_ended_its_session_reads_on_and_is_charged_until_it_hangs_up() {
    let runtime = start(config(free_port(), &[]));
    let handle = runtime.handle();
    let directory = takt_testing::Directory::new();
    let path = directory.join("takt.sock");
    let policy = Policy {
        sessions: 1,
        ..policy("reader")
    };
    let listener = takt_runtime::config::ListenerConfig {
        path: path.clone(),
        mode: 0o600,
        policy,
    };
    let set = handle.set_listener(listener).expect("running");
    set.expect("a socket");
    let held = || {
        let listeners = handle.listeners().expect("running");
        let [of] = &listeners[..] else {
            panic!("one listener: {listeners:?}");
        };
        (of.sessions, of.memory, of.endpoints)
    };
    let (mut first, message) = holding(&path, 5);
    assert_eq!(first.ask(Request::End), Ok(Reply::Closed));
    // The message is as it was; everything but the memory is free.
    assert_eq!(first.read(&message), b"held");
    assert_eq!(held(), (0, first.map.total(), 0));
    assert!(handle.sessions().expect("running").is_empty());
    let refused = first.ask(Request::OpenStream(Qos::slow()));
    assert_eq!(refused.expect_err("it is over").code, ErrorCode::Closed);
    // Its place is another's.
    let (mut second, other) = holding(&path, 5);
    assert_eq!(held().1, first.map.total() + second.map.total());
    // Of two that have ended there is one too many for this tenant: the memory of the older one goes.
    assert_eq!(second.ask(Request::End), Ok(Reply::Closed));
    let ended = first.ended();
    assert_eq!(ended.code, ErrorCode::Limit, "{ended}");
    assert!(ended.message.contains("`sessions`"), "{ended}");
    until_true("its memory is given back", || {
        held().1 == second.map.total() && first.read(&message) == [0; 4]
    });
    assert_eq!(second.read(&other), b"held");
    drop(second);
    until_true("nothing is charged", || held() == (0, 0, 0));
}
