//! What applications can do wrong: each gets its own clear error, and nobody else notices.

use std::os::fd::OwnedFd;

use rustix::net::SocketAddrUnix;
use takt::{ChannelId, Error, ErrorCode, Qos, Session, Source, SourceOptions, Wait};
use takt_lab::{Lab, LabConfig};
use takt_session::message::{Envelope, Reply, Request};
use takt_session::{Failure, PROTOCOL_VERSION, transport};

use crate::support::{Node, attach, exchange, introduce, skip};
use takt_testing::{PATIENCE, until};

const CHANNEL: ChannelId = ChannelId(5);

/// A node with two applications at work, and a socket for a tenant with little memory.
struct Scene {
    source: Source,
    sink: takt::Sink,
    number: u64,
    node: Node,
    _lab: Lab,
}

const SMALL: &str = "\
[[listener]]
path = \"DIR/small.sock\"
identity = \"small\"
write = [\"1-9\"]
read = [\"1-9\"]
classes = [0]
memory = \"24 MiB\"
sessions = 2
endpoints = 2
";

impl Scene {
    fn new() -> Option<Self> {
        if skip() {
            return None;
        }
        let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
        let node = Node::start(lab.host(0), &[], SMALL);
        let [writer, reader] = ["writer", "reader"].map(|name| {
            let session = attach(&node, name);
            session.stream(Qos::slow()).expect("a stream")
        });
        let source = writer.source(CHANNEL).expect("a source");
        let sink = reader.sink(CHANNEL).expect("a sink");
        introduce(&source, &[&sink]);
        Some(Self {
            source,
            sink,
            number: 0,
            node,
            _lab: lab,
        })
    }

    /// The others are undisturbed, and the daemon runs as if nothing had been.
    fn undisturbed(&mut self) {
        exchange(&self.source, &[&self.sink], self.number, 100);
        self.number += 100;
        let mut admin = self.node.admin();
        until("only the two are left", || {
            (admin.sessions().len() == 2).then_some(())
        });
        assert!(self.node.runs());
    }

    fn small(&self) -> takt::SessionBuilder {
        Session::builder()
            .socket(self.node.directory.join("small.sock"))
            .reconnect(false)
            .request_timeout(PATIENCE)
    }

    /// A connection to the session socket without a library behind it.
    fn raw(&self) -> OwnedFd {
        let socket = transport::socket().expect("a socket");
        let address = SocketAddrUnix::new(self.node.socket()).expect("a short path");
        rustix::net::connect(&socket, &address).expect("the daemon listens");
        socket
    }
}

/// The first answer to these bytes; `None` if the connection ends without one.
fn answer(socket: &OwnedFd, bytes: &[u8]) -> Option<Reply> {
    transport::send(socket, bytes, &[], true).expect("sent");
    let packet = transport::receive(socket, true).ok().flatten()?;
    let reply = Envelope::<Reply>::decode(&packet.bytes).expect("a reply");
    Some(reply.message)
}

fn refusal(reply: Option<Reply>) -> Failure {
    match reply {
        Some(Reply::Failed(failure) | Reply::Ended(failure)) => failure,
        other => panic!("not refused: {other:?}"),
    }
}

fn attach_request() -> Vec<u8> {
    let message = Request::Attach {
        name: "raw".into(),
        tx_bytes: 0,
        rx_bytes: 0,
        domain: false,
    };
    Envelope {
        request: 1,
        message,
    }
    .encode()
}

#[test]
fn another_version_of_the_session_protocol_is_refused_with_both_numbers() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    for version in [0, PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1, u16::MAX] {
        let mut bytes = attach_request();
        bytes[..2].copy_from_slice(&version.to_le_bytes());
        let failure = refusal(answer(&scene.raw(), &bytes));
        assert_eq!(failure.code, ErrorCode::Version);
        for part in [
            &*format!("version {version}"),
            &format!("here {PROTOCOL_VERSION}"),
            "upgrade",
        ] {
            assert!(failure.message.contains(part), "{}", failure.message);
        }
    }
    scene.undisturbed();
}

#[test]
fn lengths_that_exceed_their_packet_or_the_longest_one_are_refused() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    // The name's length, behind the header of 8 bytes, says more than there is.
    let mut bytes = attach_request();
    for length in [u16::MAX, 4000] {
        bytes[8..10].copy_from_slice(&length.to_le_bytes());
        let failure = refusal(answer(&scene.raw(), &bytes));
        assert_eq!(failure.code, ErrorCode::Protocol, "{failure}");
    }
    // A packet longer than any message, a part of one, and none at all.
    let long = [attach_request(), vec![0; 64 << 10]].concat();
    for bytes in [&long[..], &attach_request()[..5], &[7; 8]] {
        let reply = answer(&scene.raw(), bytes);
        assert!(
            matches!(&reply, None | Some(Reply::Failed(_) | Reply::Ended(_))),
            "{reply:?}"
        );
    }
    // Well-formed, and impossible.
    let socket = scene.raw();
    assert!(matches!(
        answer(&socket, &attach_request()),
        Some(Reply::Attached { .. })
    ));
    let requests = [
        Request::OpenStream(Qos::slow()),
        Request::OpenSource {
            stream: 0,
            channel: CHANNEL,
            depth: u32::MAX,
            origin: 0,
            first: 0,
        },
        Request::OpenSource {
            stream: u32::MAX,
            channel: CHANNEL,
            depth: 0,
            origin: 0,
            first: 0,
        },
        Request::CloseSink(u32::MAX),
    ];
    for (at, message) in requests.into_iter().enumerate() {
        let request = 2 + at as u32;
        let reply = answer(&socket, &Envelope { request, message }.encode());
        match at {
            0 => assert!(matches!(reply, Some(Reply::StreamOpened { .. }))),
            _ => assert!(!refusal(reply).message.is_empty()),
        }
    }
    drop(socket);
    scene.undisturbed();
}

#[test]
fn arenas_beyond_the_policy_are_refused_and_say_what_is_allowed() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let wishes = [
        scene.small().rx_bytes(1 << 30),
        scene.small().tx_bytes(1 << 30),
        scene.small().tx_bytes(usize::MAX),
        scene.small().tx_bytes(9 << 20).rx_bytes(9 << 20),
    ];
    for wish in wishes {
        match wish.open() {
            Err(Error::Refused(failure)) => {
                assert_eq!(failure.code, ErrorCode::NoMemory);
                assert!(
                    failure.message.contains("small") && failure.message.contains("`memory`"),
                    "{}",
                    failure.message
                );
            }
            other => panic!("{other:?}"),
        }
    }
    scene.undisturbed();
}

#[test]
fn messages_longer_than_the_session_carries_are_refused_with_the_longest_length() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let session = scene.small().open().expect("a session");
    let stream = session.stream(Qos::slow()).expect("a stream");
    let source = stream.source(CHANNEL).expect("a source");
    let longest = source.max_message();
    for length in [longest + 1, 17 << 20, usize::MAX] {
        match source.buffer(length) {
            Err(Error::TooLarge { length: told, max }) => {
                assert_eq!((told, max), (length, longest));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(source.buffer(longest).is_ok());
    drop((source, stream, session));
    scene.undisturbed();
}

#[test]
fn a_session_whose_buffers_are_all_taken_would_block_until_one_is_free() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let session = scene.small().tx_bytes(64 << 10).open().expect("a session");
    let stream = session.stream(Qos::slow()).expect("a stream");
    let source = stream.source(ChannelId(6)).expect("a source");
    let mut buffers = Vec::new();
    let error = loop {
        match source.buffer(1000) {
            Ok(buffer) => buffers.push(buffer),
            Err(error) => break error,
        }
        assert!(buffers.len() < 100, "more buffers than memory");
    };
    assert!(matches!(error, Error::WouldBlock), "{error}");
    assert!(!buffers.is_empty());
    buffers.pop();
    buffers.push(source.buffer(1000).expect("the one that came back"));
    buffers.clear();
    drop(buffers);

    // A ring that is full as well: the sink of the same session holds what is delivered.
    let options = SourceOptions {
        depth: 4,
        ..SourceOptions::default()
    };
    let narrow = stream.source_with(ChannelId(7), options).expect("a source");
    let held: Vec<_> = (0..4)
        .map(|_| narrow.buffer(8).expect("a buffer"))
        .collect();
    assert!(matches!(narrow.buffer(8), Err(Error::WouldBlock)));
    drop(held);
    assert!(narrow.buffer(8).is_ok());
    // The third source of two.
    match stream.source(ChannelId(8)) {
        Err(Error::Refused(failure)) => {
            assert_eq!(failure.code, ErrorCode::Limit, "{failure}");
            assert!(failure.message.contains("2 sources"), "{failure}");
        }
        other => panic!("{other:?}"),
    }
    drop((source, narrow, stream, session));
    scene.undisturbed();
}

#[test]
fn a_reader_that_never_gives_memory_back_loses_its_own_messages_only() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let session = scene.small().rx_bytes(64 << 10).open().expect("a session");
    let stream = session.stream(Qos::slow()).expect("a stream");
    let hoarder = stream.sink(CHANNEL).expect("a sink");
    introduce(&scene.source, &[&hoarder, &scene.sink]);
    let mut held = Vec::new();
    // What comes after the memory is used up is dropped.
    until("its memory is used up", || {
        exchange(&scene.source, &[&scene.sink], scene.number, 100);
        scene.number += 100;
        while let Ok(message) = hoarder.consume(Wait::Never) {
            held.push(message);
        }
        (hoarder.counters().dropped_memory > 0).then_some(())
    });
    assert!(!held.is_empty());
    held.clear();
    drop(held);
    introduce(&scene.source, &[&hoarder, &scene.sink]);
    drop((hoarder, stream, session));
    scene.undisturbed();
}

#[test]
fn channels_classes_and_sessions_outside_the_policy_are_refused_by_name() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let sessions = [0, 1].map(|_| scene.small().open().expect("a session"));
    match scene.small().open() {
        Err(Error::Refused(failure)) => {
            assert_eq!(failure.code, ErrorCode::Limit, "{failure}");
            assert!(failure.message.contains("sessions"), "{failure}");
        }
        other => panic!("{other:?}"),
    }
    let class = takt::TrafficClass::new(5).expect("a class");
    let stream = sessions[0].stream(Qos::slow()).expect("a stream");
    let refusals = [
        (
            sessions[0]
                .stream(Qos::slow().time_sensitive(class))
                .map(|_| ()),
            "class 5",
        ),
        (stream.source(ChannelId(10)).map(|_| ()), "channel 10"),
        (stream.sink(ChannelId(0)).map(|_| ()), "channel 0"),
    ];
    for (refused, name) in refusals {
        match refused {
            Err(Error::Refused(failure)) => {
                assert_eq!(failure.code, ErrorCode::NotPermitted);
                assert!(failure.message.contains(name), "{failure}");
                assert!(failure.message.contains("ask the operator"), "{failure}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    drop((stream, sessions));
    scene.undisturbed();
}
