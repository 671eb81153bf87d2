//! Sessions of trust domains that do what no client library would.

mod support;

use std::os::fd::OwnedFd;

use rustix::net::SocketAddrUnix;
use support::{App, listening, reply, send};
use takt_runtime::config::ListenerConfig;
use takt_runtime::policy::{Policy, Trust};
use takt_session::message::{DirectEnd, Reply, Request};
use takt_session::{ChannelId, ErrorCode, Failure, Qos, transport};
use takt_shm::{Region, SinkBell};
use takt_testing::until_true;

fn domain() -> Policy {
    Policy {
        trust: Trust::User,
        ..Policy::default()
    }
}

fn member(address: &SocketAddrUnix) -> (App, OwnedFd) {
    let socket = transport::socket().expect("a socket");
    rustix::net::connect(&socket, address).expect("somebody listens");
    App::in_domain(socket)
}

fn refused(app: &mut App, qos: Qos) -> Failure {
    let stream = app.stream(qos);
    let answer = app.ask(Request::OpenSource {
        stream,
        channel: ChannelId(5),
        depth: 0,
        origin: 0,
        first: 0,
    });
    answer.expect_err("refused")
}

/// What the lane reads of a region without pages would be memory of the runtime's, for as long as anybody has the region
/// open.
#[test]
fn a_session_whose_region_is_a_hole_has_no_sources() {
    let (_runtime, _directory, address) = listening(domain());
    let (mut app, region) = member(&address);
    Region::protect(&region).expect("sealed");
    for qos in [Qos::slow(), Qos::slow().reliable()] {
        let failure = refused(&mut app, qos);
        assert_eq!(failure.code, ErrorCode::NotPermitted, "{failure}");
        assert!(failure.message.contains("memory for 0 of"), "{failure}");
        assert!(failure.message.contains("MADV_POPULATE_WRITE"), "{failure}");
    }
    // A page that is missing is a hole as well, and it can be filled afterwards.
    app.populate();
    let stream = app.stream(Qos::slow());
    app.source(stream, 5, 0);
}

/// Pages that it has touched it could give back, and let the lane have them.
#[test]
fn a_session_that_could_make_holes_in_its_region_has_no_sources() {
    let (_runtime, _directory, address) = listening(domain());
    let (mut app, region) = member(&address);
    app.populate();
    let failure = refused(&mut app, Qos::slow());
    assert_eq!(failure.code, ErrorCode::NotPermitted, "{failure}");
    assert!(failure.message.contains("F_SEAL_FUTURE_WRITE"), "{failure}");
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&region, flags, 4096, 4096).expect("a hole");
    Region::protect(&region).expect("sealed");
    let failure = refused(&mut app, Qos::slow());
    assert!(failure.message.contains("memory for"), "{failure}");
    app.populate();
    let error = rustix::fs::fallocate(&region, flags, 4096, 4096).expect_err("no more holes");
    assert_eq!(error, rustix::io::Errno::PERM);
    let stream = app.stream(Qos::slow());
    app.source(stream, 5, 0);
}

/// Each source gives to each sink of its channel in another session, whoever came first; who closes has no ring any more, and
/// who comes under its number has rings of its own.
#[test]
fn each_pair_of_a_domain_has_one_ring() {
    let (runtime, _directory, address) = listening(domain());
    let (mut writer, region) = member(&address);
    writer.populate();
    Region::protect(&region).expect("sealed");
    let (mut reader, _) = member(&address);
    let rings = || -> Vec<u32> {
        let sessions = runtime.handle().sessions().expect("running");
        let all = sessions.iter().flat_map(|session| &session.direct);
        let begun = all.filter(|ring| ring.ended.is_empty());
        begun.map(|ring| ring.ring).collect()
    };
    let until = |count: usize| until_true("so many rings", || rings().len() == count);
    let (stream, readers) = (writer.stream(Qos::slow()), reader.stream(Qos::slow()));
    let first = writer.source(stream, 5, 0);
    let sink = reader.sink(readers, 5, 0);
    until(1);
    reader.sink(readers, 5, 0);
    until(2);
    writer.source(stream, 5, 0);
    until(4);
    // The lane serves these.
    let reliable = writer.stream(Qos::slow().reliable());
    writer.source(reliable, 5, 0);
    writer.source(stream, 6, 0);
    writer.sink(stream, 5, 0);
    until(4);
    // One that is told of room by a descriptor: what it is given back there, no lane sees.
    let told = writer.source(stream, 5, 0);
    until(6);
    let asked = writer.ask(Request::TellRoom(told.id));
    assert_eq!(asked, Ok(Reply::RoomTold));
    until(4);
    let closed = writer.ask(Request::CloseSource(told.id));
    assert_eq!(closed, Ok(Reply::Closed));
    let before = rings();
    let closed = reader.ask(Request::CloseSink(sink.id));
    assert_eq!(closed, Ok(Reply::Closed));
    until(2);
    let closed = writer.ask(Request::CloseSource(first.id));
    assert_eq!(closed, Ok(Reply::Closed));
    until(1);
    assert_eq!(writer.source(stream, 5, 0).id, first.id);
    until(2);
    let new: Vec<u32> = rings()
        .into_iter()
        .filter(|ring| !before.contains(ring))
        .collect();
    assert_eq!(new.len(), 1, "{before:?}, then {new:?}");
    drop(reader);
    until(0);
}

/// A sink has a mapping of the memory of each source that has a ring to it, also of one that is gone. One that is not read
/// keeps a bounded number of them, and the lane serves it from then on.
#[test]
fn a_sink_has_so_many_rings_until_it_lets_go_of_some_that_have_ended() {
    let (_runtime, _directory, address) = listening(domain());
    let (mut reader, _) = member(&address);
    let stream = reader.stream(Qos::slow());
    reader.sink(stream, 5, 0);
    let publisher = || {
        let (mut writer, region) = member(&address);
        writer.populate();
        Region::protect(&region).expect("sealed");
        let stream = writer.stream(Qos::slow());
        let source = writer.source(stream, 5, 0);
        // Who gets a ring has been told when this is answered.
        for _ in 0..2 {
            writer.ask(Request::Readers(source.id)).expect("an answer");
        }
        writer
    };
    let begun = |reader: &App| match reply(&reader.socket) {
        Reply::DirectSink { ring, .. } => ring,
        other => panic!("no ring: {other:?}"),
    };
    let mut rings = Vec::new();
    for _ in 0..SinkBell::MOST_BELLS {
        let writer = publisher();
        let ring = begun(&reader);
        drop(writer);
        assert_eq!(
            reply(&reader.socket),
            Reply::DirectEnded {
                ring,
                epoch: 0,
                free: false
            }
        );
        rings.push(ring);
    }
    let without = publisher();
    let lets_go = |ring: u32| {
        let reason = DirectEnd::Done;
        send(&reader.socket, 77, Request::EndDirect { ring, reason }, &[]);
        assert_eq!(reply(&reader.socket), Reply::Noted, "no ring besides");
    };
    lets_go(rings[0]);
    drop(without);
    let _with = publisher();
    let last = begun(&reader);
    assert!(!rings.contains(&last));
    // Nobody needs it: it is not known any more.
    let answer = reader.ask(Request::EndDirect {
        ring: rings[0],
        reason: DirectEnd::Done,
    });
    assert_eq!(answer.expect_err("gone").code, ErrorCode::NotFound);
}

/// A sink that let go of its ring first would miss, and count nowhere, what it is given until the source has heard.
#[test]
fn a_sink_hears_that_its_domain_is_over_when_its_source_gives_it_nothing_more() {
    for says_so in [true, false] {
        let (runtime, directory, address) = listening(domain());
        let (mut writer, region) = member(&address);
        writer.populate();
        Region::protect(&region).expect("sealed");
        let (mut reader, _) = member(&address);
        let (stream, readers) = (writer.stream(Qos::slow()), reader.stream(Qos::slow()));
        reader.sink(readers, 5, 0);
        writer.source(stream, 5, 0);
        let Reply::DirectSink { ring, .. } = reply(&reader.socket) else {
            panic!("no ring");
        };
        assert!(matches!(
            reply(&writer.socket),
            Reply::DirectSource { epoch: 1, .. }
        ));
        let alone = ListenerConfig {
            path: directory.join("tenant.sock"),
            mode: 0o600,
            policy: Policy::default(),
        };
        let set = runtime.handle().set_listener(alone);
        set.expect("running").expect("possible");
        let ended = |epoch| Reply::DirectEnded {
            ring,
            epoch,
            free: false,
        };
        assert_eq!(reply(&writer.socket), ended(2));
        send(&reader.socket, 70, Request::OpenStream(Qos::slow()), &[]);
        let next = reply(&reader.socket);
        assert!(matches!(next, Reply::StreamOpened { .. }), "{next:?}");
        if says_so {
            let reason = DirectEnd::Done;
            send(&writer.socket, 71, Request::EndDirect { ring, reason }, &[]);
            assert_eq!(reply(&writer.socket), Reply::Noted);
        } else {
            drop(writer);
        }
        assert_eq!(reply(&reader.socket), ended(0));
    }
}
