//! The admin API over its socket, of a daemon with a runtime over kernel UDP on loopback.

mod support;

use std::os::unix::fs::PermissionsExt;

use prost::Message as _;
use support::{Daemon, LISTENER};
use takt::{ChannelId, Error, Qos, Session, TrafficClass, Wait};
use takt_clock::{Clock as _, SystemTai};
use takt_testing::{PATIENCE, until};
use taktd::admin::client::{self, Client, ConnectError, connect};
use taktd::admin::proto::{
    self, AddPeerRequest, EndSessionRequest, GetStatusRequest, InstallScheduleRequest,
    ListChannelsRequest, ListDatapathsRequest, ListListenersRequest, ListPeersRequest,
    ListSchedulesRequest, ListSessionsRequest, Listener, MoveSessionRequest, NextKeyRequest,
    PeerState, RemoveListenerRequest, RemovePeerRequest, RemoveScheduleRequest, SetListenerRequest,
    SwitchKeyRequest, WatchRequest,
};
use tonic::Code;

async fn node(client: &mut Client) -> proto::Node {
    let response = client
        .get_status(GetStatusRequest {})
        .await
        .expect("status");
    response.into_inner().node.expect("a node")
}

async fn sessions(client: &mut Client, identity: &str) -> Vec<proto::Session> {
    let identity = identity.to_owned();
    let request = ListSessionsRequest {
        identity,
        ..ListSessionsRequest::default()
    };
    let response = client.list_sessions(request).await.expect("sessions");
    response.into_inner().sessions
}

async fn peers(client: &mut Client) -> Vec<proto::Peer> {
    let response = client.list_peers(ListPeersRequest {}).await.expect("peers");
    response.into_inner().peers
}

#[tokio::test]
async fn status_tells_what_runs() {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    let node = node(&mut client).await;
    assert_eq!((node.name.as_str(), node.draining), ("test", false));
    assert_eq!(node.version, env!("CARGO_PKG_VERSION"));
    assert_ne!(node.incarnation, 0);
    assert!(node.address.starts_with("127.0.0.1:"), "{}", node.address);
    assert!(!node.address.ends_with(":0"), "{}", node.address);
    assert_eq!(node.lanes.len(), 1);
    assert_eq!(node.lanes[0].ports[0].datapath, "udp");
    let mode = std::fs::metadata(daemon.directory.join("admin.sock"))
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn long_lists_are_had_in_pages_of_what_was_asked_for_and_followed_to_their_end() {
    const SESSIONS: usize = 70;
    const CHANNELS: u64 = 600;
    let listener = format!("{LISTENER}identity = \"press\"\ntotal_endpoints = 700\n");
    let daemon = Daemon::start(&listener);
    let mut client = daemon.client().await;
    let opened: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let session = Session::builder().socket(daemon.directory.join("takt.sock"));
            let session = session.tx_bytes(1 << 20).rx_bytes(1 << 20).open();
            let session = session.expect("a session");
            let stream = session.stream(Qos::slow()).expect("a stream");
            (session, stream)
        })
        .collect();
    let sinks = (0..CHANNELS).map(|channel| {
        let (_, stream) = &opened[channel as usize % SESSIONS];
        stream.sink(ChannelId(channel)).expect("a sink")
    });
    let _sinks: Vec<_> = sinks.collect();

    let whole: Vec<u64> = sessions(&mut client, "")
        .await
        .iter()
        .map(|s| s.session)
        .collect();
    assert_eq!(whole.len(), SESSIONS);
    for (identity, many) in [("", SESSIONS), ("press", SESSIONS), ("nobody", 0)] {
        let followed = client::sessions(&mut client, identity)
            .await
            .expect("sessions");
        let followed: Vec<u64> = followed.iter().map(|s| s.session).collect();
        assert_eq!(followed, whole[..many], "{identity}");
    }
    let (mut paged, mut first) = (Vec::new(), 0);
    loop {
        let request = ListSessionsRequest {
            first,
            limit: 7,
            ..ListSessionsRequest::default()
        };
        let page = client
            .list_sessions(request)
            .await
            .expect("a page")
            .into_inner();
        assert!(page.sessions.len() <= 7);
        paged.extend(page.sessions.iter().map(|s| s.session));
        match page.next {
            0 => break,
            next => first = next,
        }
    }
    assert_eq!(paged, whole);
    let followed = client::channels(&mut client).await.expect("channels");
    let followed: Vec<u64> = followed.iter().map(|c| c.channel).collect();
    assert_eq!(followed, (0..CHANNELS).collect::<Vec<_>>());
    let told = node(&mut client).await;
    assert_eq!(
        (told.sessions, told.channels),
        (SESSIONS as u32, CHANNELS as u32)
    );
}

#[tokio::test]
async fn sessions_streams_and_channels_are_told_and_a_session_can_be_ended() {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    let session = daemon.application("press");
    let class = TrafficClass::new(5).expect("a class");
    let stream = session
        .stream(Qos::fast().unlimited().time_sensitive(class))
        .expect("a stream");
    let _sink = stream.sink(ChannelId(7)).expect("a sink");
    let source = stream.source(ChannelId(7)).expect("a source");
    source.buffer(3).expect("a buffer").emit().expect("emitted");

    let list = sessions(&mut client, "").await;
    assert_eq!(list.len(), 1);
    let told = &list[0];
    assert_eq!(
        (told.name.as_str(), told.identity.as_str()),
        ("press", "default")
    );
    assert_eq!(told.pid, std::process::id() as i32);
    assert!(told.arena_bytes > 0);
    let told_stream = &told.streams[0];
    assert_eq!(told_stream.acceleration(), proto::Acceleration::Fast);
    assert_eq!(told_stream.resource_use(), proto::ResourceUse::Unlimited);
    assert_eq!(told_stream.traffic_class, Some(5));
    assert_eq!(told_stream.datapath, "udp");
    assert!(
        told_stream.warning.contains("kernel UDP"),
        "{}",
        told_stream.warning
    );
    assert_eq!(
        (&told_stream.sources[..], &told_stream.sinks[..]),
        (&[7][..], &[7][..])
    );
    assert!(sessions(&mut client, "another").await.is_empty());

    let start = std::time::Instant::now();
    loop {
        let request = ListChannelsRequest::default();
        let channels = client.list_channels(request).await.expect("channels");
        let channels = channels.into_inner().channels;
        assert_eq!(channels.len(), 1);
        let channel = &channels[0];
        assert_eq!((channel.channel, channel.sources, channel.sinks), (7, 1, 1));
        let counters = channel.counters.expect("counters");
        if (counters.emitted, counters.delivered) == (1, 1) {
            assert_eq!(counters.emitted_bytes, 3);
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{counters:?}");
    }
    let beyond = ListChannelsRequest { first: 8, limit: 0 };
    let page = client.list_channels(beyond).await.expect("channels");
    assert!(page.into_inner().channels.is_empty());

    let number = told.session;
    let end = |session, reason: &str| EndSessionRequest {
        session,
        reason: reason.into(),
    };
    let ended = client.end_session(end(number, "maintenance")).await;
    assert!(ended.expect("an answer").into_inner().ended);
    let reason = until("the session has ended", || {
        match session.stream(Qos::slow()) {
            Err(Error::Ended(failure)) => Some(failure.message),
            _ => None,
        }
    });
    assert!(reason.contains("maintenance"), "{reason}");
    let again = client.end_session(end(number, "")).await;
    assert!(!again.expect("an answer").into_inner().ended);
}

#[tokio::test]
async fn a_session_is_moved_to_another_lane_with_all_that_it_has_open() {
    let daemon = Daemon::start(&format!("[[lane]]\n[[lane]]\n{LISTENER}"));
    let mut client = daemon.client().await;
    let socket = daemon.directory.join("takt.sock");
    let session = Session::builder().socket(socket).name("press").open();
    let session = session.expect("a session");
    let stream = session.stream(Qos::slow()).expect("a stream");
    let sink = stream.sink(ChannelId(7)).expect("a sink");
    let source = stream.source(ChannelId(7)).expect("a source");
    let emit = |text: &[u8]| {
        until("it is emitted", || {
            let mut buffer = source.buffer(text.len()).ok()?;
            buffer.copy_from_slice(text);
            buffer.emit().ok()
        })
    };
    emit(b"before");
    until("it is delivered", || (sink.available() == 1).then_some(()));
    let told = sessions(&mut client, "").await.remove(0);
    let other = 1 - told.lane;
    let moved = |session, lane| MoveSessionRequest { session, lane };
    let refused = [
        (moved(told.session, told.lane), "is on lane"),
        (
            moved(told.session, 2),
            "lanes [0, 1] serve tenant `default`",
        ),
    ];
    for (request, why) in refused {
        let status = client.move_session(request).await.expect_err("refused");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains(why), "{status}");
    }
    let status = client.move_session(moved(1 << 40, other)).await;
    assert_eq!(status.expect_err("no such session").code(), Code::NotFound);

    let answer = client.move_session(moved(told.session, other)).await;
    answer.expect("moved");
    until("it is back", || {
        (session.attachments() == 2 && session.is_attached()).then_some(())
    });
    let list = sessions(&mut client, "").await;
    let again = list.iter().find(|s| s.session != told.session);
    let again = again.expect("the session");
    assert_eq!((again.lane, &again.name[..]), (other, "press"));
    assert_eq!(
        (again.streams[0].sources[0], again.streams[0].sinks[0]),
        (7, 7)
    );
    // What was delivered before is there, and what comes now.
    emit(b"behind");
    for text in [&b"before"[..], b"behind"] {
        let received = until("a message", || {
            let message = sink.consume(Wait::Never).ok()?;
            Some(message.to_vec())
        });
        assert_eq!(received, text);
    }
}

#[tokio::test]
async fn peers_that_are_added_find_each_other_carry_messages_and_can_be_removed() {
    let (a, b) = (Daemon::start(LISTENER), Daemon::start(LISTENER));
    let (mut at_a, mut at_b) = (a.client().await, b.client().await);
    let address_a = node(&mut at_a).await.address;
    let address_b = node(&mut at_b).await.address;
    let add = |address: &str| AddPeerRequest {
        address: address.into(),
        ..AddPeerRequest::default()
    };
    assert!(
        at_a.add_peer(add(&address_b))
            .await
            .expect("added")
            .into_inner()
            .added
    );
    assert!(
        !at_a
            .add_peer(add(&address_b))
            .await
            .expect("there")
            .into_inner()
            .added
    );
    assert!(
        at_b.add_peer(add(&address_a))
            .await
            .expect("added")
            .into_inner()
            .added
    );
    for client in [&mut at_a, &mut at_b] {
        let start = std::time::Instant::now();
        loop {
            let peers = peers(client).await;
            assert_eq!(peers.len(), 1);
            if peers[0].state() == PeerState::Up {
                assert_eq!(peers[0].name, "test");
                assert!(peers[0].configured);
                assert_ne!(peers[0].incarnation, 0);
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{peers:?}");
        }
    }
    let (from, to) = (a.application("from"), b.application("to"));
    let reader = to.stream(Qos::slow()).expect("a stream");
    let sink = reader.sink(ChannelId(9)).expect("a sink");
    let writer = from.stream(Qos::slow()).expect("a stream");
    let source = writer.source(ChannelId(9)).expect("a source");
    let message = until("a message crosses", || {
        let mut buffer = source.buffer(5).ok()?;
        buffer.copy_from_slice(b"hello");
        buffer.emit().ok()?;
        sink.consume(Wait::For(std::time::Duration::from_millis(10)))
            .ok()
    });
    assert_eq!(&*message, b"hello");

    let remove = |address: &str| RemovePeerRequest {
        address: address.into(),
    };
    let removed = at_a.remove_peer(remove(&address_b)).await.expect("removed");
    assert!(removed.into_inner().removed);
    assert!(peers(&mut at_a).await.is_empty());
    let again = at_a
        .remove_peer(remove(&address_b))
        .await
        .expect("an answer");
    assert!(!again.into_inner().removed);
}

#[tokio::test]
async fn the_node_gets_another_key_when_it_is_told_to_and_has_it_at_the_next_start() {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    let file = daemon.directory.join("node.key");
    let mode = |path: &std::path::Path| {
        let there = std::fs::metadata(path).expect("a key");
        there.permissions().mode() & 0o7777
    };
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).expect("its mode");
    let old = node(&mut client).await.key;
    let switch = |key: &str| SwitchKeyRequest { key: key.into() };
    let refused = client.switch_key(switch("")).await.expect_err("none yet");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("takt key rotate"), "{refused}");
    let mut made = Vec::new();
    for _ in 0..2 {
        let answer = client.next_key(NextKeyRequest {}).await.expect("a key");
        made.push(answer.into_inner().key);
    }
    let next = made.remove(0);
    assert_eq!(
        (&made[0], &node(&mut client).await.next_key),
        (&next, &next)
    );
    let waiting = taktd::security::next_file(&file);
    assert_eq!(mode(&waiting), 0o640, "as the key");
    // The runtime does not take it for a peer's.
    let address = "127.0.0.2".to_owned();
    let own = AddPeerRequest {
        address,
        key: next.clone(),
        ..AddPeerRequest::default()
    };
    let refused = client.add_peer(own).await.expect_err("its own");
    assert!(refused.message().contains("this node's own"), "{refused}");
    // A crash: it waits still.
    drop(client);
    daemon.signal(9);
    let (_, _, directory) = daemon.end();
    let daemon = Daemon::start_in(directory);
    let mut client = daemon.client().await;
    let status = node(&mut client).await;
    assert_eq!((&status.key, &status.next_key), (&old, &next));
    let another = taktd::security::PrivateKey::generate().public().to_string();
    let refused = client.switch_key(switch(&another)).await;
    assert!(refused.expect_err("another").message().contains(&next));
    // The file has gone: nothing is lost by that.
    std::fs::remove_file(&waiting).expect("it was there");
    for switched in [true, false] {
        let answer = client.switch_key(switch(&next)).await.expect("its key");
        let answer = answer.into_inner();
        assert_eq!((&answer.key, answer.switched), (&next, switched));
    }
    assert_eq!(mode(&file), 0o640);
    assert!(!waiting.exists());
    drop(client);
    daemon.signal(9);
    let (_, _, directory) = daemon.end();
    let daemon = Daemon::start_in(directory);
    let status = node(&mut daemon.client().await).await;
    assert_eq!((status.key, &*status.next_key), (next, ""));
}

#[tokio::test]
async fn a_key_that_cannot_be_changed_stays_and_the_reason_is_told() {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    let old = node(&mut client).await.key;
    let waiting = taktd::security::next_file(&daemon.directory.join("node.key"));
    // Something else is in its place.
    std::fs::write(&waiting, "no key").expect("written");
    std::fs::set_permissions(&waiting, PermissionsExt::from_mode(0o600)).expect("its mode");
    let refused = client
        .next_key(NextKeyRequest {})
        .await
        .expect_err("no key");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused.message().contains("node.key.next holds no key"),
        "{refused}"
    );
    std::fs::remove_file(&waiting).expect("it was there");
    client.next_key(NextKeyRequest {}).await.expect("a key");
    // Another one than was told.
    let another = taktd::security::PrivateKey::generate();
    std::fs::write(&waiting, another.reveal()).expect("written");
    let refused = client.switch_key(SwitchKeyRequest::default()).await;
    let refused = refused.expect_err("another");
    assert!(refused.message().contains("holds another key"), "{refused}");
    assert_eq!(node(&mut client).await.key, old);
    let taken = client
        .next_key(NextKeyRequest {})
        .await
        .expect("it is taken");
    assert_eq!(taken.into_inner().key, another.public().to_string());
}

#[tokio::test]
async fn a_peer_that_cannot_be_one_is_refused_with_what_would_be_right() {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    for (address, remedy) in [
        ("node2", "names are not looked up"),
        ("10.0.0.1:0", "an IP address"),
        ("[fd00::1]:7400", "another address family"),
    ] {
        let address = address.to_owned();
        let refused = client
            .add_peer(AddPeerRequest {
                address,
                ..AddPeerRequest::default()
            })
            .await
            .expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(remedy), "{refused}");
    }
    assert!(peers(&mut client).await.is_empty());
}

#[tokio::test]
async fn listeners_can_be_set_changed_and_removed() {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    let path = daemon.directory.join("press.sock");
    let everything = || {
        vec![proto::ChannelRange {
            first: 0,
            last: u64::MAX,
        }]
    };
    let mut press = Listener {
        path: path.display().to_string(),
        mode: 0o600,
        identity: "press".into(),
        write: vec![proto::ChannelRange { first: 1, last: 9 }],
        read: everything(),
        classes: vec![0],
        memory_bytes: 32 << 20,
        total_memory_bytes: 64 << 20,
        total_endpoints: 9,
        descriptors: 10,
        sessions: 1,
        ..Listener::default()
    };
    let set = |listener: &Listener| SetListenerRequest {
        listener: Some(listener.clone()),
        keep: false,
        ..SetListenerRequest::default()
    };
    client.set_listener(set(&press)).await.expect("set");
    let mode = std::fs::metadata(&path)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);

    let open = || Session::builder().socket(&path).reconnect(false).open();
    let session = open().expect("a session");
    let stream = session.stream(Qos::slow()).expect("a stream");
    assert!(matches!(
        stream.source(ChannelId(10)),
        Err(Error::Refused(_))
    ));
    assert!(stream.source(ChannelId(9)).is_ok());
    assert!(open().is_err(), "one session at a time");

    press.write = everything();
    client.set_listener(set(&press)).await.expect("changed");
    assert!(stream.source(ChannelId(10)).is_ok());

    let list = client.list_listeners(ListListenersRequest {}).await;
    let list = list.expect("listeners").into_inner().listeners;
    assert_eq!(list.len(), 2);
    let told = list
        .iter()
        .find(|l| l.listener.as_ref().is_some_and(|l| l.identity == "press"))
        .expect("told");
    assert_eq!((told.sessions, told.refused), (1, 1));
    let mut expected = press.clone();
    expected.endpoints = 256;
    assert_eq!(told.listener.as_ref(), Some(&expected));

    let remove = || RemoveListenerRequest {
        path: path.display().to_string(),
    };
    let removed = client.remove_listener(remove()).await.expect("removed");
    assert!(removed.into_inner().removed);
    assert!(!path.exists());
    assert!(stream.source(ChannelId(11)).is_ok(), "its sessions go on");
    let again = client.remove_listener(remove()).await.expect("an answer");
    assert!(!again.into_inner().removed);
}

#[tokio::test]
async fn a_listener_that_cannot_be_is_refused_and_nothing_changes() {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    let missing = client.set_listener(SetListenerRequest::default()).await;
    assert_eq!(missing.expect_err("refused").code(), Code::InvalidArgument);
    let mut listener = Listener {
        path: "relative.sock".into(),
        identity: "x".into(),
        classes: vec![0],
        ..Listener::default()
    };
    let set = |listener: &Listener| SetListenerRequest {
        listener: Some(listener.clone()),
        keep: false,
        ..SetListenerRequest::default()
    };
    let refused = client
        .set_listener(set(&listener))
        .await
        .expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("path"), "{refused}");
    listener.path = daemon.file().display().to_string();
    let refused = client
        .set_listener(set(&listener))
        .await
        .expect_err("no socket");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("is no socket"), "{refused}");
    listener.path = daemon.directory.join("admin.sock").display().to_string();
    let refused = client
        .set_listener(set(&listener))
        .await
        .expect_err("the admin socket");
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_kept_listener_comes_back_after_a_crash_while_its_directory_is_there() {
    let without = Daemon::start(LISTENER);
    let keep = |path: &std::path::Path, keep: bool| SetListenerRequest {
        listener: Some(Listener {
            path: path.display().to_string(),
            identity: "pod".into(),
            classes: vec![0, 5],
            ..Listener::default()
        }),
        keep,
        ..SetListenerRequest::default()
    };
    let refused = without
        .client()
        .await
        .set_listener(keep(&without.directory.join("pod.sock"), true))
        .await
        .expect_err("refused");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("node.state"), "{refused}");
    assert!(!without.directory.join("pod.sock").exists());

    let directory = takt_testing::Directory::new();
    let state = format!("state = \"{}\"\n", directory.join("state").display());
    let text = support::configuration(&directory, LISTENER);
    std::fs::write(
        directory.join("takt.toml"),
        text.replacen("[node]\n", &format!("[node]\n{state}"), 1),
    )
    .expect("written");
    let daemon = Daemon::start_in(directory);
    let mut client = daemon.client().await;
    let path = |name: &str| daemon.directory.join(name);
    let [stays, goes, removed, once] =
        ["stays/a.sock", "goes/a.sock", "removed.sock", "once.sock"].map(path);
    for path in [&stays, &goes, &removed] {
        client.set_listener(keep(path, true)).await.expect("set");
    }
    client.set_listener(keep(&once, true)).await.expect("set");
    client.set_listener(keep(&once, false)).await.expect("set");
    let remove = RemoveListenerRequest {
        path: removed.display().to_string(),
    };
    client.remove_listener(remove).await.expect("removed");
    std::fs::remove_dir_all(daemon.directory.join("goes")).expect("removed");
    daemon.signal(9);
    let (_, _, directory) = daemon.end();
    let daemon = Daemon::start_in(directory);
    let mut client = daemon.client().await;
    let list = client.list_listeners(ListListenersRequest {}).await;
    let list = list.expect("listeners").into_inner().listeners;
    let there: Vec<_> = list.iter().filter_map(|l| l.listener.as_ref()).collect();
    let paths: Vec<&str> = there.iter().map(|l| l.path.as_str()).collect();
    let usual = daemon.directory.join("takt.sock");
    assert_eq!(
        paths,
        [&stays, &usual].map(|path| path.to_str().expect("text"))
    );
    assert_eq!(there[0].classes, [0, 5]);
    Session::builder()
        .socket(&stays)
        .reconnect(false)
        .open()
        .expect("a session");
    // What is in the way of one keeps no other and not the node from starting.
    daemon.signal(9);
    let (_, _, directory) = daemon.end();
    std::fs::remove_file(&stays).expect("removed");
    std::fs::write(&stays, b"no socket").expect("written");
    let daemon = Daemon::start_in(directory);
    let remove = RemoveListenerRequest {
        path: stays.display().to_string(),
    };
    let mut client = daemon.client().await;
    let answer = client.remove_listener(remove).await.expect("an answer");
    assert!(answer.into_inner().removed, "it is not kept any more");
}

#[tokio::test]
async fn a_kept_listener_whose_streams_have_no_place_any_more_comes_back_without_them_and_their_class()
 {
    let directory = takt_testing::Directory::new();
    let state = format!("state = \"{}\"\n", directory.join("state").display());
    let base = support::configuration(&directory, LISTENER);
    let base = base.replacen("[node]\n", &format!("[node]\n{state}"), 1);
    std::fs::write(directory.join("takt.toml"), &base).expect("written");
    let daemon = Daemon::start_in(directory);
    let path = daemon.directory.join("pod.sock");
    let stream = proto::DeclaredStream {
        name: "claim".into(),
        traffic_class: 5,
        channel: Some(1),
        period_ns: 1_000_000,
        frame: 1514,
        ..proto::DeclaredStream::default()
    };
    let wanted = Listener {
        path: path.display().to_string(),
        identity: "pod".into(),
        classes: vec![0, 5],
        write: vec![proto::ChannelRange { first: 1, last: 1 }],
        streams: vec![stream],
        ..Listener::default()
    };
    let set = SetListenerRequest {
        listener: Some(wanted.clone()),
        keep: true,
        ..SetListenerRequest::default()
    };
    daemon.client().await.set_listener(set).await.expect("set");
    // And one that has nothing else.
    let alone = Listener {
        path: daemon.directory.join("alone.sock").display().to_string(),
        identity: "alone".into(),
        classes: vec![5],
        ..wanted.clone()
    };
    let set = SetListenerRequest {
        listener: Some(alone),
        keep: true,
        ..SetListenerRequest::default()
    };
    daemon.client().await.set_listener(set).await.expect("set");
    async fn of(daemon: &Daemon, identity: &str) -> (Vec<u32>, usize) {
        let list = daemon
            .client()
            .await
            .list_listeners(ListListenersRequest {})
            .await;
        let list = list.expect("listeners").into_inner().listeners;
        let mut found = list.into_iter().filter_map(|l| l.listener);
        let found = found.find(|l| l.identity == identity).expect("it is there");
        (found.classes, found.streams.len())
    }
    assert_eq!(of(&daemon, "pod").await, (vec![0, 5], 1));
    let again = |daemon: Daemon, text: &str| {
        daemon.signal(9);
        let (_, _, directory) = daemon.end();
        std::fs::write(directory.join("takt.toml"), text).expect("written");
        Daemon::start_in(directory)
    };
    // The operator takes the window of its class away.
    let schedule = daemon.directory.join("closed");
    std::fs::write(
        &schedule,
        "tc qdisc replace dev eth0 parent root taprio num_tc 2 map 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 \
         queues 1@0 1@1 base-time 0 sched-entry S 01 1000000 clockid CLOCK_TAI",
    )
    .expect("written");
    let closed = format!(
        "[[schedule]]\ndatapath = \"udp\"\nfile = \"{}\"\n",
        schedule.display()
    );
    let daemon = again(daemon, &format!("{base}\n{closed}"));
    assert_eq!(of(&daemon, "pod").await, (vec![0], 0));
    assert_eq!(of(&daemon, "alone").await, (vec![0], 0));
    Session::builder()
        .socket(&path)
        .reconnect(false)
        .open()
        .expect("a session");
    // As it was, when that is.
    let daemon = again(daemon, &base);
    assert_eq!(of(&daemon, "pod").await, (vec![0, 5], 1));
    // What has moved to another is kept there, and there alone.
    let moved = SetListenerRequest {
        listener: Some(Listener {
            path: daemon.directory.join("other.sock").display().to_string(),
            identity: "other".into(),
            ..wanted
        }),
        keep: true,
        take_streams_from: path.display().to_string(),
    };
    let mut client = daemon.client().await;
    client.set_listener(moved).await.expect("moved");
    assert_eq!(of(&daemon, "pod").await.1, 0);
    let daemon = again(daemon, &base);
    assert_eq!(of(&daemon, "pod").await, (vec![0, 5], 0));
    assert_eq!(of(&daemon, "other").await, (vec![0, 5], 1));
}

#[tokio::test]
async fn a_datapath_that_is_not_to_be_had_is_told_with_its_reason() {
    let more = format!("[datapath.xdp]\ninterface = \"takt-t-none\"\n{LISTENER}");
    let daemon = Daemon::start(&more);
    let mut client = daemon.client().await;
    let list = client.list_datapaths(ListDatapathsRequest {}).await;
    let list = list.expect("datapaths").into_inner().datapaths;
    let names: Vec<(&str, bool)> = list
        .iter()
        .map(|d| (d.name.as_str(), d.available))
        .collect();
    assert_eq!(names, [("udp", true), ("xdp", false)]);
    assert!(list[1].reason.contains("takt-t-none"), "{}", list[1].reason);
    let session = daemon.application("fast");
    let stream = session.stream(Qos::fast()).expect("a stream");
    let warning = stream.warning().expect("a warning");
    assert!(warning.contains("takt-t-none"), "{warning}");
}

#[tokio::test]
async fn a_watcher_gets_pictures_until_the_node_stops() {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    let wrong = client.watch(WatchRequest { period_ms: 5 }).await;
    let wrong = wrong.expect_err("too often");
    assert_eq!(wrong.code(), Code::InvalidArgument);
    let watch = client.watch(WatchRequest { period_ms: 100 }).await;
    let mut pictures = watch.expect("pictures").into_inner();
    let first = pictures.message().await.expect("one").expect("a picture");
    assert!(first.sessions.is_empty());
    let _session = daemon.application("seen");
    let mut last = first.monotonic_ns;
    loop {
        let next = pictures.message().await.expect("one").expect("a picture");
        assert!(next.monotonic_ns > last);
        last = next.monotonic_ns;
        if next.sessions.len() == 1 {
            break;
        }
    }
    daemon.signal(15);
    let end = loop {
        match pictures.message().await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    // The farewell, unless the connection was faster.
    assert!(!matches!(end, Err(status) if status.code() == Code::Internal));
    let (code, log, _directory) = daemon.end();
    assert_eq!(code, Some(0), "{log}");
}

#[tokio::test]
async fn without_a_daemon_the_error_says_what_to_do() {
    let error = connect(std::path::Path::new("/nonexistent/admin.sock"))
        .await
        .expect_err("nobody there");
    assert!(matches!(error, ConnectError::NoDaemon { .. }));
    assert!(error.to_string().contains("takt run"), "{error}");
}

#[tokio::test]
async fn a_schedule_is_installed_told_and_removed_and_a_wrong_one_is_refused_by_field() {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    let link = async |client: &mut Client| {
        let answer = client.list_schedules(ListSchedulesRequest {}).await;
        let links = answer.expect("schedules").into_inner().links;
        assert_eq!(links.len(), 1);
        links[0].clone()
    };
    let before = link(&mut client).await;
    assert_eq!((before.datapath.as_str(), before.classes.len()), ("udp", 8));
    assert!(before.operational.is_none() && before.pending.is_none());

    let schedule = proto::GateSchedule {
        cycle_time_ns: 1_000_000,
        entries: vec![
            proto::GateEntry {
                gates: 0x80,
                interval_ns: 300_000,
            },
            proto::GateEntry {
                gates: 0x7f,
                interval_ns: 700_000,
            },
        ],
        max_sdu: vec![0; 8],
        initial_gates: Some(0xff),
        ..proto::GateSchedule::default()
    };
    let install = |datapath: &str, schedule: Option<proto::GateSchedule>| InstallScheduleRequest {
        datapath: datapath.into(),
        schedule,
        link_rate_bps: 1_000_000_000,
        ..InstallScheduleRequest::default()
    };
    let begins = client.install_schedule(install("udp", Some(schedule.clone())));
    let begins = begins.await.expect("installed").into_inner().begins_ns;
    assert_eq!(begins % 1_000_000, 0);
    let start = std::time::Instant::now();
    let told = loop {
        let told = link(&mut client).await;
        if told.operational.is_some() {
            break told;
        }
        assert_eq!(told.pending, Some(schedule.clone()));
        assert_eq!(told.pending_begins_ns, Some(begins));
        assert!(start.elapsed() < PATIENCE);
    };
    assert_eq!(told.operational, Some(schedule.clone()));
    assert_eq!((told.link_rate_bps, told.changes), (1_000_000_000, 1));
    assert!(told.warnings.is_empty(), "{:?}", told.warnings);
    assert!(told.cycle.is_some() && told.cycle_start_ns >= Some(begins));

    // What runs, but not as anybody means it, is told.
    let mut never_open = schedule.clone();
    never_open.entries[0].gates = 0;
    let taken = client.install_schedule(install("udp", Some(never_open)));
    taken.await.expect("installed");
    let warnings = link(&mut client).await.warnings;
    assert!(
        warnings[0].starts_with("error: class 7 is never open"),
        "{warnings:?}"
    );
    let taken = client.install_schedule(install("udp", Some(schedule.clone())));
    taken.await.expect("installed");

    let mut octet = schedule.clone();
    octet.entries[0].gates = 0x100;
    let mut many = schedule.clone();
    many.max_sdu = vec![0; 9];
    let mut empty = schedule.clone();
    empty.entries.clear();
    let mut cut = schedule.clone();
    cut.cycle_time_ns = 900_000;
    let mut never = schedule.clone();
    never.cycle_time_ns = 300_000;
    let mut no_frame = schedule.clone();
    no_frame.cycle_time_ns = 500;
    for (request, field) in [
        (install("udp", None), "schedule"),
        (install("dpdk", Some(schedule.clone())), "dpdk"),
        (install("udp", Some(octet)), "entries.gates"),
        (install("udp", Some(many)), "max_sdu"),
        (install("udp", Some(empty)), "takt schedule check"),
        (
            install("udp", Some(cut)),
            "entry 1 overlaps the next cycle: 100 µs of its 700 µs are cut",
        ),
        (
            install("udp", Some(never)),
            "entry 1 would begin 300 µs into",
        ),
        (
            install("udp", Some(no_frame)),
            "the cycle of 500 ns is shorter than the smallest frame",
        ),
    ] {
        let refused = client.install_schedule(request).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(field), "{}", refused.message());
    }
    assert_eq!(link(&mut client).await.warnings, Vec::<String>::new());

    let remove = |datapath: &str| RemoveScheduleRequest {
        datapath: datapath.into(),
    };
    for expected in [true, false] {
        let removed = client.remove_schedule(remove("udp")).await;
        assert_eq!(removed.expect("an answer").into_inner().removed, expected);
    }
    assert!(link(&mut client).await.operational.is_none());
}

#[tokio::test]
async fn a_schedule_whose_other_traffic_cannot_be_kept_is_refused_by_name_and_with_auto_taken_and_told()
 {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    let link = async |client: &mut Client| {
        let answer = client.list_schedules(ListSchedulesRequest {}).await;
        answer.expect("schedules").into_inner().links.remove(0)
    };
    // Long enough for a packet of the loopback's MTU at the speed that taprio takes it to have.
    let install = |who: &str| InstallScheduleRequest {
        other_traffic: who.into(),
        ..open_all("udp", 1_000_000_000)
    };
    for (who, code, why) in [
        (
            "taprio",
            Code::FailedPrecondition,
            "lo: it has 1 transmit queue(s)",
        ),
        (
            "taprio-offload",
            Code::FailedPrecondition,
            "lo has no clock of its own",
        ),
        (
            "htb",
            Code::InvalidArgument,
            "known are port, taprio, taprio-offload, auto",
        ),
    ] {
        let refused = client
            .install_schedule(install(who))
            .await
            .expect_err("refused");
        assert_eq!(refused.code(), code);
        assert!(refused.message().contains(why), "{}", refused.message());
        let link = link(&mut client).await;
        assert!(
            link.operational.is_none() && link.pending.is_none(),
            "{link:?}"
        );
    }
    client
        .install_schedule(install("auto"))
        .await
        .expect("taken");
    let told = link(&mut client).await;
    assert_eq!(
        (told.other_traffic.as_str(), told.other_traffic_by.as_str()),
        ("auto", "")
    );
    assert!(
        told.other_traffic_problem.contains("1 transmit queue"),
        "{told:?}"
    );
    assert_eq!(told.interface, "lo");
    let remove = RemoveScheduleRequest {
        datapath: "udp".into(),
    };
    client.remove_schedule(remove).await.expect("removed");
    let told = link(&mut client).await;
    assert_eq!(
        (
            told.other_traffic.as_str(),
            told.other_traffic_problem.as_str()
        ),
        ("", "")
    );
}

/// All gates, in cycles of so many nanoseconds.
fn open_all(datapath: &str, cycle_ns: u32) -> InstallScheduleRequest {
    InstallScheduleRequest {
        datapath: datapath.into(),
        schedule: Some(proto::GateSchedule {
            cycle_time_ns: cycle_ns.into(),
            entries: vec![proto::GateEntry {
                gates: 0xff,
                interval_ns: cycle_ns,
            }],
            ..proto::GateSchedule::default()
        }),
        ..InstallScheduleRequest::default()
    }
}

#[tokio::test]
async fn schedules_are_kept_as_they_are_whoever_asks_at_once_and_run_at_the_next_start_whatever_the_clock_says()
 {
    let directory = takt_testing::Directory::new();
    let state = format!("state = \"{}\"\n", directory.join("state").display());
    let text = support::configuration(&directory, LISTENER);
    let text = text.replacen("[node]\n", &format!("[node]\n{state}"), 1);
    std::fs::write(directory.join("takt.toml"), text).expect("written");
    let daemon = Daemon::start_in(directory);
    let file = daemon.directory.join("state/schedules");
    let kept = || {
        let bytes = std::fs::read(&file).expect("a file");
        proto::InstalledSchedules::decode(bytes.as_slice()).expect("schedules")
    };
    let cycles = |kept: &proto::InstalledSchedules| {
        let schedules = kept.schedules.iter();
        let schedules = schedules.filter_map(|kept| kept.schedule.as_ref());
        schedules.map(|s| s.cycle_time_ns).collect::<Vec<_>>()
    };
    let link = async |client: &mut Client| {
        let answer = client.list_schedules(ListSchedulesRequest {}).await;
        answer.expect("schedules").into_inner().links.remove(0)
    };
    let mut all = Vec::new();
    for caller in 1..=8 {
        let mut client = daemon.client().await;
        all.push(tokio::spawn(async move {
            for turn in 1..=10 {
                let asked = open_all("udp", caller * 1_000_000 + turn * 1_000);
                client.install_schedule(asked).await.expect("kept");
            }
        }));
    }
    for caller in all {
        caller.await.expect("a caller");
    }
    // The last one, whoever was answered last, and before long that it runs.
    let mut client = daemon.client().await;
    until("it is noted that it runs", || {
        let kept = kept();
        (kept.schedules.len() == 1 && kept.running == [0]).then_some(())
    });
    let operational = link(&mut client).await.operational.expect("it runs");
    assert_eq!(cycles(&kept()), [operational.cycle_time_ns]);

    // An hour ahead of the clock, as if that had fallen behind, and beside one whose datapath is not there.
    daemon.signal(9);
    let (_, _, directory) = daemon.end();
    let mut behind = kept();
    let schedule = behind.schedules[0].schedule.as_mut().expect("a schedule");
    schedule.base_time_ns = SystemTai.now().as_nanos() + 3_600_000_000_000;
    behind.schedules.push(open_all("xdp", 7_000_000));
    std::fs::write(&file, behind.encode_to_vec()).expect("written");
    let daemon = Daemon::start_in(directory);
    let mut client = daemon.client().await;
    let told = link(&mut client).await;
    assert_eq!(told.operational, behind.schedules[0].schedule);
    let absent = async |client: &mut Client| {
        let answer = client.list_schedules(ListSchedulesRequest {}).await;
        let absent = answer.expect("schedules").into_inner().absent.into_iter();
        let told = absent.map(|absent| {
            let schedule = absent.schedule.expect("a schedule");
            (absent.datapath, schedule.cycle_time_ns)
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(absent(&mut client).await, [("xdp".into(), 7_000_000)]);
    client
        .install_schedule(open_all("udp", 9_000_000))
        .await
        .expect("installed");
    let left = cycles(&kept());
    assert!(left.ends_with(&[9_000_000, 7_000_000]), "{left:?}");
    for (datapath, left) in [("udp", &[7_000_000][..]), ("xdp", &[])] {
        let datapath = datapath.into();
        let removed = client
            .remove_schedule(RemoveScheduleRequest { datapath })
            .await;
        assert!(removed.expect("an answer").into_inner().removed);
        assert_eq!(cycles(&kept()), left);
    }
    assert_eq!(absent(&mut client).await, []);
}
