//! Trust domains: sessions of one listener and user that exchange messages in memory of each other's, without a lane. What
//! they promise, and what their enemies get.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use takt::{ChannelId, Outcome, Qos, Session, Sink, SinkOptions, Source, Wait};
use takt_clock::{Clock, SystemTai};
use takt_lab::{Lab, LabConfig};
use takt_session::layout::{ArenaMap, DirectBlock, Release, RxDescriptor};
use takt_session::message::{DirectEnd, Envelope, Reply, Request};
use takt_session::{SinkMode, transport};
use takt_shm::{Arena, Consumer, Producer, Region, SinkBellHost};
use takt_testing::{PATIENCE, until, until_true};
use taktd::admin::proto;

use crate::support::{
    Client, Node, Stops, attach_at, introduce, number_of, put, put_at, skip, take,
};

const CHANNEL: ChannelId = ChannelId(5);
const OTHER: ChannelId = ChannelId(6);

/// Two domains that may do the same, and a listener that is none.
const LISTENERS: &str = "\
[[listener]]
path = \"DIR/domain.sock\"
mode = \"0666\"
identity = \"domain\"
trust = \"user\"
[[listener]]
path = \"DIR/other.sock\"
identity = \"other\"
trust = \"user\"
[[listener]]
path = \"DIR/none.sock\"
identity = \"none\"
";

fn lab() -> (Lab, Node) {
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    let node = Node::start(&lab.hosts()[0], &[], LISTENERS);
    // Whoever is not root finds it as well.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(node.directory.join(""), open).expect("the directory's mode");
    (lab, node)
}

fn member(node: &Node, listener: &str, name: &str) -> Session {
    attach_at(&node.directory.join(&format!("{listener}.sock")), name)
}

/// An application of its own process in the domain.
fn client(node: &Node) -> Client {
    let socket = node.directory.join("domain.sock");
    Client::at_work(&socket, OTHER, CHANNEL, Stdio::inherit())
}

/// Two of the domain, with a source of the one and a sink of the other.
fn two(node: &Node) -> ([Session; 2], Source, Sink) {
    let members = ["from", "to"].map(|name| member(node, "domain", name));
    let (source, sink) = ends(&members[0], &members[1], CHANNEL);
    (members, source, sink)
}

fn ends(from: &Session, to: &Session, channel: ChannelId) -> (Source, Sink) {
    let source = from.stream(Qos::slow()).expect("a stream");
    let sink = to.stream(Qos::slow()).expect("a stream");
    (
        source.source(channel).expect("a source"),
        sink.sink(channel).expect("a sink"),
    )
}

/// Waits until the source has so many rings.
fn await_rings(source: &Source, count: usize) {
    until_true("the source has its rings", || {
        // A source goes over to a node that has come back when it is used, not when it is asked what it has.
        source.buffer(8).is_ok() && source.direct_sinks() == count
    });
}

fn named(node: &Node, name: &str) -> proto::Session {
    let sessions = node.admin().sessions();
    let found = sessions.into_iter().find(|session| session.name == name);
    found.expect("the session")
}

/// Messages that its lane has had of a session.
fn by_lane(node: &Node, name: &str) -> u64 {
    named(node, name)
        .counters
        .map_or(0, |counters| counters.emitted)
}

/// Waits until the lane has told a source that nobody but these sinks listens: how many messages it has had until then.
fn await_alone(node: &Node, name: &str, source: &Source, sinks: &[&Sink]) -> u64 {
    until_true("nobody but members listens", || {
        let before = named(node, name).direct_messages;
        put(source, 1, 8);
        sinks.iter().for_each(|sink| assert_eq!(take(sink), 1));
        named(node, name).direct_messages > before
    });
    // What it was given before, it may not have taken yet.
    until_true("the lane has all of it", || source.pending() == 0);
    by_lane(node, name)
}

#[test]
fn members_exchange_messages_of_every_length_without_a_lane() {
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let ([_from, _to], source, sink) = two(&node);
    await_rings(&source, 1);
    let lane = await_alone(&node, "from", &source, &[&sink]);
    let before = named(&node, "from").direct_messages;
    let lengths = [8, 9, 64, 256, 257, 4096, 65_536, 1 << 20];
    for (number, length) in (0u64..4000).zip(lengths.into_iter().cycle()) {
        let token = put(&source, number, length);
        let message = sink.consume(Wait::For(PATIENCE)).expect("a message");
        assert_eq!((number_of(&message), message.len()), (number, length));
        assert_eq!(message.sequence(), token.number());
        assert_eq!(source.outcome(token), Outcome::Sent);
    }
    assert_eq!((by_lane(&node, "from"), sink.direct_sources()), (lane, 1));
    let status = named(&node, "from");
    assert_eq!(status.direct_messages, before + 4000);
    let [ring] = status.direct.as_slice() else {
        panic!("{:?}", status.direct)
    };
    assert_eq!((ring.name.as_str(), ring.ended.as_str()), ("to", ""));
    assert_eq!(ring.channel, CHANNEL.0);
    let counters = sink.counters();
    let delivered = before + 4000 + lane;
    assert_eq!((counters.delivered, counters.dropped_full), (delivered, 0));
    drop(sink);
    await_rings(&source, 0);
    assert!(named(&node, "from").direct.is_empty());
}

#[test]
fn a_member_that_sleeps_is_woken_by_its_source_and_by_the_lane() {
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let ([_from, _to], source, sink) = two(&node);
    await_rings(&source, 1);
    let stranger = member(&node, "none", "stranger");
    let by_lane = stranger.stream(Qos::slow()).expect("a stream");
    let by_lane = by_lane.source(CHANNEL).expect("a source");
    let (answers, answered) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..400 {
                answers.send(take(&sink)).expect("somebody listens");
            }
        });
        for number in 0..400u64 {
            // Long enough for the sink to be asleep, sometimes.
            std::thread::sleep(Duration::from_micros(number % 5 * 60));
            put(if number % 2 == 0 { &source } else { &by_lane }, number, 64);
            assert_eq!(answered.recv_timeout(PATIENCE), Ok(number));
        }
    });
}

#[test]
fn one_emit_serves_members_and_strangers_and_each_in_order() {
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let from = member(&node, "domain", "from");
    let members = [1, 2, 3].map(|_| member(&node, "domain", "to"));
    let stranger = member(&node, "none", "stranger");
    let source = from
        .stream(Qos::slow())
        .expect("a stream")
        .source(CHANNEL)
        .expect("a source");
    let open = |session: &Session| {
        let stream = session.stream(Qos::slow()).expect("a stream");
        stream.sink(CHANNEL).expect("a sink")
    };
    let [first, second, third] = &members;
    let (first, second) = (open(first), open(second));
    await_rings(&source, 2);
    let lane = await_alone(&node, "from", &source, &[&first, &second]);
    let mut number = 0;
    let mut exchange = |sinks: &[&Sink]| {
        for _ in 0..200 {
            number += 1;
            put(&source, number, 300);
            for sink in sinks {
                assert_eq!(take(sink), number);
            }
        }
    };
    exchange(&[&first, &second]);
    assert_eq!(by_lane(&node, "from"), lane);
    let strangers = open(&stranger);
    exchange(&[&first, &strangers, &second]);
    assert_eq!(by_lane(&node, "from"), lane + 200);
    // One of the source's own session, one of a member that waits with a descriptor: both by the lane.
    let own = open(&from);
    let evented = members[2].stream(Qos::slow()).expect("a stream");
    let options = SinkOptions {
        notify_fd: true,
        ..SinkOptions::default()
    };
    let evented = evented.sink_with(CHANNEL, options).expect("a sink");
    exchange(&[&own, &first, &evented, &strangers]);
    drop((own, evented, strangers, second));
    let third = open(third);
    await_rings(&source, 2);
    until_true("nobody but members listens", || {
        let before = by_lane(&node, "from");
        exchange(&[&first, &third]);
        by_lane(&node, "from") == before
    });
    for sink in [&first, &third] {
        let counters = sink.counters();
        assert_eq!((counters.lost, counters.dropped_full), (0, 0));
    }
}

#[test]
fn launch_times_and_reliable_streams_stay_with_the_lane_and_lose_nothing() {
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let ([from, to], source, sink) = two(&node);
    let reliable = from.stream(Qos::slow().reliable()).expect("a stream");
    let reliable = reliable.source(OTHER).expect("a source");
    let others = to.stream(Qos::slow().reliable()).expect("a stream");
    let others = others.sink(OTHER).expect("a sink");
    await_rings(&source, 1);
    await_alone(&node, "from", &source, &[&sink]);
    let before = named(&node, "from").direct_messages;
    for number in 0..100 {
        put(&reliable, number, 64);
        assert_eq!(take(&others), number);
        match number % 2 {
            0 => put(&source, number, 64),
            _ => put_at(&source, number, 64, SystemTai.now()),
        };
        assert_eq!(take(&sink), number);
    }
    assert_eq!(reliable.direct_sinks(), 0);
    assert_eq!(named(&node, "from").direct_messages, before + 50);
}

#[test]
fn whatever_way_messages_go_a_sink_gets_them_in_the_order_they_were_emitted_in() {
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let ([from, to], source, sink) = two(&node);
    let stranger = member(&node, "none", "stranger");
    let (to_forward, inbox) = ends(&stranger, &from, OTHER);
    let second = to.stream(Qos::slow()).expect("a stream");
    let second = second.sink(CHANNEL).expect("a sink");
    await_rings(&source, 2);
    await_alone(&node, "from", &source, &[&sink, &second]);
    introduce(&to_forward, &[&inbox]);
    let before = named(&node, "from").direct_messages;
    let mut first = 0;
    for round in 0..100u64 {
        let burst = first..first + 60;
        first = burst.end;
        let is_forwarded = |number: u64| number % 7 == round % 7;
        for number in burst.clone().filter(|number| is_forwarded(*number)) {
            put(&to_forward, number, 64);
        }
        // Sinks read nothing before all of it is emitted.
        for number in burst.clone() {
            let kind = (number + round / 7) % 5;
            source.set_at_once_here(kind == 0);
            let now = SystemTai.now();
            if is_forwarded(number) {
                let message = inbox.consume(Wait::For(PATIENCE)).expect("a message");
                let forwarded = source.forward(message, Wait::For(PATIENCE));
                forwarded.map_err(|not| not.error).expect("forwarded");
            } else if kind == 0 {
                put_at(&source, number, 64, now);
            } else if kind == 1 {
                // In no order with the rest, which it is told apart from by its length.
                put_at(&source, number, 16, now);
            } else {
                put(&source, number, 64);
            }
        }
        for sink in [&sink, &second] {
            let (mut all, mut in_order) = (Vec::new(), Vec::new());
            for _ in burst.clone() {
                let message = sink.consume(Wait::For(PATIENCE)).expect("a message");
                let number = number_of(&message);
                in_order.extend((message.len() == 64).then_some(number));
                all.push(number);
            }
            assert!(in_order.is_sorted(), "{in_order:?}");
            all.sort_unstable();
            assert!(all.into_iter().eq(burst.clone()));
        }
    }
    let direct = named(&node, "from").direct_messages;
    assert!(direct > before, "none went by the rings");
}

#[test]
fn a_member_that_keeps_a_message_of_its_own_goes_on_when_another_subscribes() {
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let [from, to] = ["from", "to"].map(|name| member(&node, "domain", name));
    let (source, own) = ends(&from, &from, CHANNEL);
    put(&source, 0, 8);
    let kept = own.consume(Wait::For(PATIENCE)).expect("a message");
    let other = to.stream(Qos::slow()).expect("a stream");
    let other = other.sink(CHANNEL).expect("a sink");
    await_rings(&source, 1);
    for number in 1..3000 {
        put(&source, number, 64);
        assert_eq!((take(&own), take(&other)), (number, number));
    }
    assert_eq!((number_of(&kept), other.direct_sources()), (0, 1));
    let counters = other.counters();
    assert_eq!((counters.delivered, counters.lost), (2999, 0));
}

#[test]
fn a_member_that_is_read_seldom_gets_what_those_have_published_who_are_gone() {
    const PUBLISHERS: u64 = 100;
    /// No other test of this process has regions of it.
    const TX_BYTES: usize = 260 << 10;
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let to = member(&node, "domain", "to");
    let sink = to.stream(Qos::slow()).expect("a stream");
    let sink = sink.sink(CHANNEL).expect("a sink");
    for number in 0..PUBLISHERS {
        let from = Session::builder()
            .socket(node.directory.join("domain.sock"))
            .tx_bytes(TX_BYTES)
            .open()
            .expect("a session");
        let source = from.stream(Qos::slow()).expect("a stream");
        let source = source.source(CHANNEL).expect("a source");
        put(&source, number, 64);
        drop(source);
        drop(from);
    }
    // As many as a sink has rings; the lane has brought the rest.
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    let regions = maps.lines().filter(|line| {
        let (first, end) = line
            .split_once(' ')
            .and_then(|(range, _)| range.split_once('-'))
            .expect("a range");
        let address = |text| usize::from_str_radix(text, 16).expect("an address");
        line.contains("takt-region-") && address(end) - address(first) == TX_BYTES
    });
    let regions = regions.count();
    assert!((1..=64).contains(&regions), "{regions} regions");
    let mut numbers: Vec<u64> = (0..PUBLISHERS).map(|_| take(&sink)).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..PUBLISHERS));
    let counters = sink.counters();
    assert_eq!((counters.dropped_full, counters.dropped_memory), (0, 0));
    // It has let go of all of them: there are rings again.
    let from = member(&node, "domain", "from");
    let source = from.stream(Qos::slow()).expect("a stream");
    let source = source.source(CHANNEL).expect("a source");
    await_rings(&source, 1);
}

/// Sends as a bare application, and what it is told unasked.
struct Raw {
    socket: OwnedFd,
    /// Mapped for as long as it lives: its region could be written otherwise.
    _arena: Arena,
    map: ArenaMap,
    domain: bool,
    request: u32,
    unasked: Vec<(Reply, Vec<OwnedFd>)>,
}

impl Raw {
    /// As this user, of whom the kernel tells.
    fn attach(node: &Node, listener: &str, user: u32, domain: bool, protects: bool) -> Self {
        let path = node.directory.join(&format!("{listener}.sock"));
        // Of this thread alone.
        let socket = std::thread::spawn(move || {
            let user = rustix::process::Uid::from_raw(user);
            rustix::thread::set_thread_uid(user).expect("another user");
            let socket = transport::socket().expect("a socket");
            let address = rustix::net::SocketAddrUnix::new(&path).expect("a path");
            rustix::net::connect(&socket, &address).expect("somebody listens");
            socket
        });
        let socket = socket.join().expect("connected");
        let message = Request::Attach {
            name: "raw".into(),
            tx_bytes: 1 << 20,
            rx_bytes: 1 << 20,
            domain,
        };
        let bytes = Envelope {
            request: 1,
            message,
        }
        .encode();
        transport::send(&socket, &bytes, &[], true).expect("sent");
        let packet = transport::receive(&socket, true)
            .expect("a packet")
            .expect("an answer");
        let reply = Envelope::<Reply>::decode(&packet.bytes)
            .expect("an answer")
            .message;
        let Reply::Attached { map, domain, .. } = reply else {
            panic!("{reply:?}")
        };
        let mut descriptors = packet.descriptors;
        let region = (descriptors.len() == 3).then(|| descriptors.remove(2));
        assert_eq!(region.is_some(), domain);
        let mut arena = Arena::open(descriptors.remove(0), map.total()).expect("the arena");
        if let Some(region) = region {
            arena
                .overlay(&region, map.tx_offset(), map.tx_bytes, false)
                .expect("mapped");
            arena
                .populate(map.tx_offset(), map.tx_bytes)
                .expect("there is memory");
            if protects {
                Region::protect(&region).expect("protected");
            }
        }
        Self {
            socket,
            _arena: arena,
            map,
            domain,
            request: 1,
            unasked: Vec::new(),
        }
    }

    fn receive(&mut self) -> (u32, Reply, Vec<OwnedFd>) {
        let packet = transport::receive(&self.socket, true)
            .expect("a packet")
            .expect("an answer");
        let envelope = Envelope::<Reply>::decode(&packet.bytes).expect("an answer");
        (envelope.request, envelope.message, packet.descriptors)
    }

    fn ask(&mut self, message: Request) -> Reply {
        self.request += 1;
        let request = self.request;
        let bytes = Envelope { request, message }.encode();
        transport::send(&self.socket, &bytes, &[], true).expect("sent");
        loop {
            match self.receive() {
                (0, unasked, descriptors) => self.unasked.push((unasked, descriptors)),
                (_, reply, _) => return reply,
            }
        }
    }

    /// The next that it is told unasked.
    fn told(&mut self) -> (Reply, Vec<OwnedFd>) {
        if self.unasked.is_empty() {
            let (_, reply, descriptors) = self.receive();
            return (reply, descriptors);
        }
        self.unasked.remove(0)
    }

    fn stream(&mut self) -> u32 {
        match self.ask(Request::OpenStream(Qos::slow())) {
            Reply::StreamOpened { stream, .. } => stream,
            other => panic!("{other:?}"),
        }
    }

    fn open_source(&mut self, channel: ChannelId) -> Reply {
        let stream = self.stream();
        self.ask(Request::OpenSource {
            stream,
            channel,
            depth: 16,
            origin: 0,
            first: 0,
        })
    }

    fn source(&mut self, channel: ChannelId) -> u32 {
        match self.open_source(channel) {
            Reply::SourceOpened { source, .. } => source,
            other => panic!("{other:?}"),
        }
    }

    fn sink(&mut self, channel: ChannelId) -> u32 {
        let stream = self.stream();
        let open = Request::OpenSink {
            stream,
            channel,
            depth: 16,
            notify_fd: false,
            mode: SinkMode::default(),
        };
        match self.ask(open) {
            Reply::SinkOpened { sink, .. } => sink,
            other => panic!("{other:?}"),
        }
    }

    /// Its rings as a source: number and memory.
    fn rings_of_source(&mut self) -> (u32, Arc<Arena>, DirectBlock) {
        loop {
            if let (Reply::DirectSource { ring, depth, .. }, mut files) = self.told() {
                let block = DirectBlock { depth };
                let arena = Arena::open(files.remove(0), block.bytes()).expect("the ring");
                return (ring, Arc::new(arena), block);
            }
        }
    }
}

#[test]
fn who_is_of_another_listener_or_user_never_gets_a_descriptor() {
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let ([_from, _to], source, sink) = two(&node);
    await_rings(&source, 1);
    let enemies = [
        ("other", 0, true, true, true),
        ("none", 0, true, false, true),
        ("domain", 65_533, true, true, true),
        // Users without a number of their own look alike.
        ("domain", 65_534, true, true, true),
        // It does not ask for it; or does not protect what others would read.
        ("domain", 0, false, false, true),
    ];
    let mut number = 0;
    for (listener, user, asks, gets, protects) in enemies {
        let mut enemy = Raw::attach(&node, listener, user, asks, protects);
        assert_eq!(enemy.domain, gets, "{listener} {user}");
        let theirs = enemy.source(CHANNEL);
        enemy.sink(CHANNEL);
        // Rings that are others', or nobody's.
        for ring in 0..200 {
            for reason in DirectEnd::ALL {
                let reply = enemy.ask(Request::EndDirect { ring, reason });
                assert!(matches!(reply, Reply::Failed(_)), "{reply:?}");
            }
        }
        // Everything that it was to be told is there before this answer.
        let readers = enemy.ask(Request::Readers(theirs));
        assert!(matches!(readers, Reply::Readers(_)), "{readers:?}");
        assert!(
            enemy.unasked.is_empty(),
            "{listener} {user}: {:?}",
            enemy.unasked
        );
        for _ in 0..50 {
            number += 1;
            put(&source, number, 64);
            assert_eq!(take(&sink), number);
        }
        assert_eq!(source.direct_sinks(), 1);
    }
    // Whoever could still write what it shows as read-only has no source.
    let mut open = Raw::attach(&node, "domain", 0, true, false);
    let refused = open.open_source(CHANNEL);
    assert!(matches!(refused, Reply::Failed(_)), "{refused:?}");
    let as_source = |(told, _): &(Reply, _)| matches!(told, Reply::DirectSource { .. });
    assert!(!open.unasked.iter().any(as_source));
    // A ring that is given up is never another's.
    let named = named(&node, "from");
    assert!(named.direct.iter().all(|ring| ring.ended.is_empty()));
}

#[test]
fn a_source_that_writes_what_cannot_be_or_rings_for_nothing_is_cut_off() {
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let to = member(&node, "domain", "to");
    let honest = member(&node, "domain", "honest");
    let (source, sink) = ends(&honest, &to, CHANNEL);
    await_rings(&source, 1);
    let mut number = 0;
    for attack in 0..5 {
        let mut enemy = Raw::attach(&node, "domain", 0, true, true);
        enemy.source(CHANNEL);
        let (ring, memory, block) = enemy.rings_of_source();
        let mut messages =
            Producer::<RxDescriptor>::attach(&memory, DirectBlock::MESSAGES, block.depth)
                .expect("the ring");
        let chunks = (enemy.map.tx_bytes / 256) as u32;
        let bell = SinkBellHost::attach(&memory, DirectBlock::BELL).expect("the bell");
        let impossible = match attack {
            0 => Some((chunks, 1)),
            1 => Some((chunks - 1, 257)),
            2 => Some((u32::MAX, u32::MAX)),
            _ => None,
        };
        if let Some((chunk, length)) = impossible {
            let message = RxDescriptor {
                chunk,
                length,
                ..RxDescriptor::default()
            };
            assert_eq!(messages.push(message), Ok(true));
            bell.ring();
        } else if attack == 3 {
            let index = memory.atomic_u32(DirectBlock::MESSAGES).expect("the index");
            index.store(u32::MAX / 2, std::sync::atomic::Ordering::Release);
            bell.ring();
        }
        let mut given_up = false;
        while !given_up {
            if attack == 4 {
                bell.ring();
            }
            number += 1;
            put(&source, number, 64);
            assert_eq!(take(&sink), number);
            if attack == 4 {
                let nothing = sink.consume(Wait::For(Duration::from_micros(300)));
                assert!(nothing.is_err());
            }
            let told = transport::receive(&enemy.socket, false);
            if let Ok(Some(packet)) = told {
                let reply = Envelope::<Reply>::decode(&packet.bytes)
                    .expect("a reply")
                    .message;
                given_up = matches!(reply, Reply::DirectEnded { ring: ended, .. } if ended == ring);
            }
            // Ringing is cut off when there was very much of it.
            if attack == 4 && number % 64 == 0 {
                for _ in 0..100 {
                    let _ = std::thread::scope(|scope| {
                        let ringing = scope.spawn(|| {
                            (0..200).for_each(|_| {
                                bell.ring();
                                std::thread::yield_now();
                            });
                        });
                        let nothing = sink.consume(Wait::For(Duration::from_millis(1)));
                        assert!(nothing.is_err());
                        ringing.join()
                    });
                }
            }
        }
        assert_eq!(source.direct_sinks(), 1, "attack {attack}");
    }
}

#[test]
fn a_sink_that_gives_back_what_it_does_not_have_is_cut_off_and_costs_nobody_a_message() {
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let ([_from, _to], source, sink) = two(&node);
    await_rings(&source, 1);
    let mut number = 0;
    for attack in 0..4 {
        let mut enemy = Raw::attach(&node, "domain", 0, true, true);
        enemy.sink(CHANNEL);
        let (depth, mut files) = loop {
            if let (Reply::DirectSink { depth, .. }, files) = enemy.told() {
                break (depth, files);
            }
        };
        let block = DirectBlock { depth };
        let region = files.remove(1);
        // What it reads, it cannot write.
        assert!(Arena::open(region.try_clone().expect("a copy"), 1 << 20).is_err());
        assert!(rustix::io::pwrite(region.as_fd(), b"x", 0).is_err());
        let memory = Arc::new(Arena::open(files.remove(0), block.bytes()).expect("the ring"));
        let mut messages =
            Consumer::<RxDescriptor>::attach(&memory, DirectBlock::MESSAGES, depth).expect("ring");
        let mut returns =
            Producer::<Release>::attach(&memory, block.returns(), depth).expect("the ring");
        await_rings(&source, 2);
        let mut cut_off = false;
        while !cut_off {
            number += 1;
            put(&source, number, 64);
            assert_eq!(take(&sink), number);
            while let Ok(Some(message)) = messages.pop() {
                messages.release();
                let given: &[u32] = match attack {
                    0 => &[u32::MAX],
                    1 => &[message.chunk ^ 1],
                    2 => &[message.chunk, message.chunk],
                    _ => &[],
                };
                for chunk in given {
                    let _ = returns.push(*chunk);
                }
                if attack == 3 {
                    let index = memory.atomic_u32(block.returns()).expect("the index");
                    index.store(0x7000_0000, std::sync::atomic::Ordering::Release);
                }
            }
            cut_off = source.direct_sinks() == 1;
        }
        let impossible = |ring: &proto::Direct| ring.ended == "an end wrote what cannot be";
        until_true(&format!("the node knows of attack {attack}"), || {
            named(&node, "from").direct.iter().any(impossible)
        });
        drop(enemy);
        until_true("the enemy is gone", || {
            named(&node, "from").direct.len() == 1
        });
    }
    assert_eq!(sink.counters().dropped_memory, 0);
}

#[test]
fn a_sink_that_is_stopped_costs_a_bounded_part_of_the_memory_and_is_cut_off() {
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let ([_from, _to], source, sink) = two(&node);
    let client = client(&node);
    await_rings(&source, 2);
    client.stop();
    let mut number = 0;
    // Half of its memory at most is with others: what is left serves the honest sink all the time.
    let length = 100_000;
    until_true("the source has cut it off", || {
        for _ in 0..100 {
            number += 1;
            put(&source, number, length);
            assert_eq!(take(&sink), number);
        }
        source.direct_sinks() == 1
    });
    let largest = 2 << 20;
    put(&source, number + 1, largest);
    assert_eq!(take(&sink), number + 1);
    let slow = |ring: &proto::Direct| ring.ended == "the sink gave nothing back for too long";
    until_true("the node knows", || {
        named(&node, "from").direct.iter().any(slow)
    });
    // It goes on, and is served by the lane; what it holds, it gives back, or its end does.
    client.signal(Signal::CONT);
    put(&source, number + 2, length);
    assert_eq!(take(&sink), number + 2);
    drop(client);
    until_true("nothing is left of it", || {
        named(&node, "from").direct.len() == 1
    });
    assert_eq!(sink.counters().dropped_memory, 0);
    // All of the memory is there again.
    let whole = until("the largest message has room", || {
        source.buffer(4 << 20).ok()
    });
    drop(whole);
}

#[test]
fn a_source_that_is_killed_in_an_emit_leaves_whole_messages_and_others_take_its_place() {
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let to = member(&node, "domain", "to");
    let sink = to
        .stream(Qos::slow())
        .expect("a stream")
        .sink(OTHER)
        .expect("a sink");
    for _ in 0..8 {
        let mut client = client(&node);
        until_true("it has a ring", || {
            while let Ok(message) = sink.consume(Wait::Never) {
                assert_eq!(message.len(), 8);
            }
            sink.direct_sources() == 1
        });
        let held: Vec<_> = (0..16)
            .map(|_| sink.consume(Wait::For(PATIENCE)).expect("a message"))
            .collect();
        let before: Vec<Vec<u8>> = held.iter().map(|message| message.to_vec()).collect();
        client.kill();
        until_true("the node knows", || sink.direct_sources() == 0);
        let mut last = 0;
        while let Ok(message) = sink.consume(Wait::Never) {
            let number = u64::from_le_bytes(message[..].try_into().expect("eight bytes"));
            assert!(number > last);
            last = number;
        }
        // What is held stays readable, and as it was.
        for (message, before) in held.iter().zip(&before) {
            assert_eq!(&message[..], &before[..]);
        }
    }
}

#[test]
fn a_node_that_is_killed_and_comes_back_connects_its_domains_again() {
    if skip() {
        return;
    }
    let (_lab, mut node) = lab();
    let ([from, to], source, sink) = two(&node);
    for round in 0..3u64 {
        await_rings(&source, 1);
        introduce(&source, &[&sink]);
        let held = {
            put(&source, round, 5000);
            sink.consume(Wait::For(PATIENCE)).expect("a message")
        };
        for number in 0..500 {
            put(&source, number, 64);
            assert_eq!(take(&sink), number);
        }
        let lane = await_alone(&node, "from", &source, &[&sink]);
        put(&source, 500, 64);
        assert_eq!((take(&sink), by_lane(&node, "from")), (500, lane));
        node.kill();
        node.restart();
        until_true("both are attached again", || {
            let _ = sink.consume(Wait::Never);
            source.buffer(8).is_ok() && from.is_attached() && to.is_attached()
        });
        assert_eq!(number_of(&held), round, "of the node before");
    }
}

#[test]
fn a_change_of_trust_loses_no_message_that_is_not_counted() {
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let path = node.directory.join("domain.sock");
    let trust = |user| {
        let mut admin = node.admin();
        let mut listener = admin.listener(&path);
        listener.trust_user = user;
        admin.set_listener(listener).expect("set");
    };
    let counted = |sink: &Sink| {
        let counters = sink.counters();
        counters.delivered + counters.dropped_full + counters.dropped_memory
    };
    for _ in 0..10 {
        trust(true);
        let (_members, source, sink) = two(&node);
        await_rings(&source, 1);
        introduce(&source, &[&sink]);
        let before = counted(&sink);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stops = Stops(&[&stop]);
            let emitting = scope.spawn(|| {
                let source = source;
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    put(&source, number, 64);
                    number += 1;
                }
                (source, number)
            });
            let some = || (0..1000).for_each(|_| assert_ne!(take(&sink), u64::MAX));
            some();
            trust(false);
            until_true("the lane serves the sink", || {
                some();
                sink.direct_sources() == 0
            });
            some();
            drop(stops);
            let (_source, emitted) = emitting.join().expect("no panic");
            until_true("all of it is counted", || {
                while sink.consume(Wait::Never).is_ok() {}
                counted(&sink) - before == emitted
            });
        });
    }
}

#[test]
fn a_source_that_emits_without_a_pause_does_not_overtake_itself_when_sinks_come() {
    if skip() {
        return;
    }
    let (_lab, node) = lab();
    let [from, to] = ["from", "to"].map(|name| member(&node, "domain", name));
    let source = from.stream(Qos::slow()).expect("a stream");
    let source = source.source(CHANNEL).expect("a source");
    let stream = to.stream(Qos::slow()).expect("a stream");
    // Somebody without a ring: the lane has messages of the source under way all the time.
    let stranger = member(&node, "none", "stranger");
    let by_lane = stranger.stream(Qos::slow()).expect("a stream");
    let by_lane = by_lane.sink(CHANNEL).expect("a sink");
    introduce(&source, &[&by_lane]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stops(&[&stop]);
        scope.spawn(|| {
            let source = source;
            for number in 0..u64::MAX {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // The lane copies all of it, this thread writes next to nothing: it is always ahead.
                let buffer = source.buffer_wait(16 << 10, Wait::For(PATIENCE));
                let mut buffer = buffer.expect("memory");
                buffer[..8].copy_from_slice(&number.to_le_bytes());
                buffer.emit().expect("emitted");
            }
        });
        for _ in 0..20 {
            let sink = stream.sink(CHANNEL).expect("a sink");
            let (mut last, mut direct) = (None, 0);
            // The ring comes while messages do.
            while direct < 4000 {
                let message = sink.consume(Wait::For(PATIENCE)).expect("a message");
                let number = message.first_chunk().map(|n| u64::from_le_bytes(*n));
                assert!(last < number, "{number:?} after {last:?}");
                last = number;
                direct += u64::from(sink.direct_sources() == 1 && sink.counters().delivered > 0);
            }
        }
    });
}
