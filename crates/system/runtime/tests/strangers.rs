//! Applications that send what nobody asked for, hold what they should release, and come by the hundred: what they
//! do makes neither a lane nor the control thread wait, and what they hold together is bounded.

mod support;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::epoll;
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{
    App, Sink, attach, config, free_port, listening, listening_with, refusal, reply, send, start,
};
use takt_clock::{Clock, SystemTai};
use takt_runtime::RuntimeHandle;
use takt_runtime::config::Config;
use takt_runtime::control::Unresponsive;
use takt_runtime::policy::{MappingPolicy, Policy};
use takt_session::message::{Envelope, Reply, Request};
use takt_session::{ChannelId, ErrorCode, Failure, Qos, transport};
use takt_testing::{PATIENCE, until_true};
use takt_time::TaiTime;

/// Whoever closes one last waits for ten minutes: its peer takes nothing.
struct Lingering {
    sockets: Vec<TcpStream>,
    /// Keeps the other ends open.
    _peers: Vec<TcpStream>,
}

impl Lingering {
    fn new(count: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("an address");
        let (mut sockets, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let mut socket = TcpStream::connect(address).expect("connect");
            peers.push(listener.accept().expect("accept").0);
            socket.set_nonblocking(true).expect("nonblocking");
            while socket.write(&[0; 65536]).is_ok() {}
            let linger = Some(Duration::from_secs(600));
            rustix::net::sockopt::set_socket_linger(&socket, linger).expect("linger");
            sockets.push(socket);
        }
        Self {
            sockets,
            _peers: peers,
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd).collect()
    }

    /// Whoever still has them has them alone.
    fn let_go(&mut self) {
        // The last to close one waits: on a thread that nobody waits for, where these are.
        let sockets = std::mem::take(&mut self.sockets);
        std::thread::spawn(move || drop(sockets));
    }
}

/// A clock that stands still for a thread while told to, and with it the thread.
#[derive(Debug)]
struct Sticky {
    thread: &'static str,
    stuck: Mutex<bool>,
    held: AtomicBool,
    changed: Condvar,
}

impl Sticky {
    fn new(thread: &'static str) -> Arc<Self> {
        Arc::new(Self {
            thread,
            stuck: Mutex::new(false),
            held: AtomicBool::new(false),
            changed: Condvar::new(),
        })
    }

    fn set(&self, stuck: bool) {
        let mut now = self.stuck.lock().expect("a lock");
        self.held.store(false, Ordering::Relaxed);
        *now = stuck;
        drop(now);
        self.changed.notify_all();
    }

    /// Holds the control thread while `act` acts.
    fn while_held(&self, handle: &RuntimeHandle, act: impl FnOnce()) {
        self.set(true);
        let asking = handle.clone();
        // Reads the clock.
        let asked = std::thread::spawn(move || asking.schedules().expect("running").len());
        until_true("the thread is held", || self.held.load(Ordering::Relaxed));
        act();
        self.set(false);
        assert!(asked.join().expect("answered") > 0);
    }
}

impl Clock for Sticky {
    fn now(&self) -> TaiTime {
        if std::thread::current().name() == Some(self.thread) {
            let stuck = self.stuck.lock().expect("a lock");
            self.held.store(*stuck, Ordering::Relaxed);
            drop(self.changed.wait_while(stuck, |stuck| *stuck));
        }
        SystemTai.now()
    }
}

fn connect(address: &SocketAddrUnix) -> OwnedFd {
    let socket = transport::socket().expect("a socket");
    rustix::net::connect(&socket, address).expect("connected");
    socket
}

/// The control thread and the lanes are at work.
fn at_work(handle: &RuntimeHandle) {
    handle.heartbeat(PATIENCE).expect("all answer");
}

#[test]
fn an_operators_change_is_answered_when_the_lanes_have_carried_it_out() {
    let clock = Sticky::new("takt-lane-0");
    let (runtime, _directory, _) = listening_with(Policy::default(), clock.clone());
    let handle = runtime.handle();
    let mut app = support::App::attach(handle);
    let stream = app.stream(Qos::slow());
    let mut source = app.source(stream, 1, 16);
    let session = handle.sessions().expect("running")[0].session;
    clock.set(true);
    app.emit(&mut source, 0, b"look at the clock", 0);
    until_true("the lane is held", || clock.held.load(Ordering::Relaxed));
    let released = Arc::new(AtomicBool::new(false));
    let (changing, before) = (handle.clone(), released.clone());
    let changed = std::thread::spawn(move || {
        let ended = changing.end_session(session, "tested".into());
        (ended, before.load(Ordering::SeqCst))
    });
    until_true("the control thread has done its part", || {
        handle.sessions().expect("running").is_empty()
    });
    released.store(true, Ordering::SeqCst);
    clock.set(false);
    assert_eq!(changed.join().expect("answered"), (Ok(true), true));
}

#[test]
fn descriptors_on_the_session_socket_end_the_session_and_hold_nobody_up() {
    let clock = Sticky::new("takt-control");
    let (runtime, _directory, address) = listening_with(Policy::default(), clock.clone());
    let mut lingering = Lingering::new(4);
    let later = connect(&address);
    send(&later, 1, attach(0), &[]);
    assert!(matches!(reply(&later), Reply::Attached { .. }));
    let before_attaching = connect(&address);
    clock.while_held(runtime.handle(), || {
        send(&before_attaching, 1, attach(0), &lingering.descriptors());
        let open = Request::OpenStream(Qos::slow());
        send(&later, 2, open, &lingering.descriptors());
        // This one is gone before anybody has looked.
        let gone = connect(&address);
        send(&gone, 1, attach(0), &lingering.descriptors());
        drop(gone);
        lingering.let_go();
    });
    for socket in [&before_attaching, &later] {
        let failure = refusal(socket);
        assert_eq!(failure.code, ErrorCode::Protocol);
        assert!(failure.message.contains("descriptors"), "{failure}");
    }
    at_work(runtime.handle());
    until_true("their sessions are gone", || {
        runtime.handle().sessions().expect("running").is_empty()
    });
    // What it releases last holds its end up as little.
    drop(runtime);
}

#[test]
fn descriptors_of_a_refused_user_or_of_one_who_is_not_accepted_hold_nobody_up() {
    let nobody = Policy {
        uids: vec![u32::MAX - 7],
        ..Policy::default()
    };
    let clock = Sticky::new("takt-control");
    let (runtime, directory, address) = listening_with(nobody, clock.clone());
    let mut lingering = Lingering::new(2);
    let path = directory.join("tenant.sock");
    for removed in [false, true] {
        let handle = runtime.handle();
        let mut removing = None;
        clock.while_held(handle, || {
            for _ in 0..3 {
                let refused = connect(&address);
                send(&refused, 1, attach(0), &lingering.descriptors());
            }
            if removed {
                lingering.let_go();
            }
            let (handle, path) = (handle.clone(), path.clone());
            removing = removed.then(|| std::thread::spawn(move || handle.remove_listener(path)));
        });
        if let Some(removing) = removing {
            assert_eq!(removing.join().expect("asked"), Ok(true));
        }
    }
    at_work(runtime.handle());
}

/// A sink on channel 5, and the descriptor to wait on.
fn sink_with_descriptor(app: &mut App) -> (Sink, OwnedFd) {
    let stream = app.stream(Qos::slow());
    let bytes = Envelope {
        request: 77,
        message: Request::OpenSink {
            stream,
            channel: ChannelId(5),
            depth: 64,
            notify_fd: true,
            mode: takt_session::SinkMode::default(),
        },
    }
    .encode();
    transport::send(&app.socket, &bytes, &[], true).expect("sent");
    let packet = transport::receive(&app.socket, true).expect("a packet");
    let packet = packet.expect("an answer");
    let answer = Envelope::<Reply>::decode(&packet.bytes).expect("a reply");
    let [notify]: [OwnedFd; 1] = packet
        .descriptors
        .try_into()
        .expect("the descriptor to wait on");
    (app.opened_sink(Ok(answer.message)), notify)
}

/// Who makes a socket readable walks over all that waits on it: with so many copies in epoll, for milliseconds.
/// One test at a time: what a user may have in epoll is bounded.
fn waited_on_by_thousands(socket: &OwnedFd) -> (Vec<OwnedFd>, MutexGuard<'static, ()>) {
    const WAITING: usize = 320_000;
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).expect("a limit");
    let copies = current.map_or(8_000, |most| (most as usize / 2).min(8_000));
    let instance = |_| epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    let mut all: Vec<OwnedFd> = (0..WAITING / copies).map(instance).collect();
    let waits = all.len();
    for _ in 0..copies {
        let copy = socket.try_clone().expect("a copy");
        for waits in &all[..waits] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(waits, &copy, data, epoll::EventFlags::IN).expect("room");
        }
        all.push(copy);
    }
    (all, one)
}

#[test]
fn an_application_that_takes_milliseconds_to_be_told_of_its_streams_is_ended() {
    let runtime = start(config(free_port(), &[]));
    let mut app = App::attach(runtime.handle());
    app.stream(Qos::fast());
    let waits = waited_on_by_thousands(&app.socket);
    let told = (0..64).find_map(|round| {
        // What is told of the stream: which datapath is missing.
        let mapping = MappingPolicy {
            fast_frugal: vec![format!("missing-{}", round % 2)],
            ..MappingPolicy::default()
        };
        let reloaded = runtime.handle().reload(mapping, Vec::new());
        reloaded.expect("running");
        match reply(&app.socket) {
            Reply::StreamMoved { .. } => None,
            other => Some(other),
        }
    });
    let Some(Reply::Ended(failure)) = told else {
        panic!("it is woken for ever, or: {told:?}");
    };
    assert!(
        failure.message.contains("takes more than 1 ms"),
        "{failure}"
    );
    drop(waits);
    at_work(runtime.handle());
}

#[test]
fn an_application_that_takes_milliseconds_to_be_woken_is_ended() {
    let runtime = start(config(free_port(), &[]));
    let mut app = App::attach(runtime.handle());
    let (sink, notify) = sink_with_descriptor(&mut app);
    let waits = waited_on_by_thousands(&notify);
    let mut other = App::attach(runtime.handle());
    let stream = other.stream(Qos::slow());
    let mut source = other.source(stream, 5, 0);
    for number in 0.. {
        if runtime.handle().sessions().expect("running").len() < 2 {
            break;
        }
        assert!(number < 64, "it is woken for ever");
        sink.bell.arm_fd(|| false);
        other.emit(&mut source, number, b"wake", number);
        other.completion(&mut source);
        let mut bytes = [0; 64];
        let _ = rustix::net::recv(&notify, &mut bytes[..], RecvFlags::DONTWAIT);
    }
    let failure = app.ended();
    assert!(
        failure.message.contains("takes more than 1 ms"),
        "{failure}"
    );
    drop(waits);
    at_work(runtime.handle());
}

#[test]
fn descriptors_on_the_end_of_a_sinks_notification_hold_no_lane_up() {
    let runtime = start(config(free_port(), &[]));
    let mut lingering = Lingering::new(1);
    let mut app = App::attach(runtime.handle());
    let (_, notify) = sink_with_descriptor(&mut app);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let descriptors = lingering.descriptors();
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = rustix::net::sendmsg(
        &notify,
        &[std::io::IoSlice::new(b"x")],
        &mut control,
        SendFlags::NOSIGNAL,
    );
    assert_eq!(
        sent,
        Err(rustix::io::Errno::PIPE),
        "the lane's end takes nothing"
    );
    lingering.sockets.iter().for_each(|socket| {
        // Nobody took it: this test would wait.
        rustix::net::sockopt::set_socket_linger(socket, None).expect("no linger");
    });
    lingering.let_go();
    drop(app);
    until_true("the session is gone", || {
        runtime.handle().sessions().expect("running").is_empty()
    });
    at_work(runtime.handle());
}

#[test]
fn a_lane_that_hangs_is_named() {
    let clock = Sticky::new("takt-lane-1");
    let runtime = start(Config {
        clock: clock.clone(),
        lanes: vec![Default::default(); 2],
        ..config(free_port(), &[])
    });
    at_work(runtime.handle());
    // One on each lane; their messages make both read the clock.
    let mut apps = [(); 2].map(|()| App::attach(runtime.handle()));
    let mut sources = apps.each_mut().map(|app| {
        let stream = app.stream(Qos::slow());
        app.source(stream, 5, 64)
    });
    clock.set(true);
    for (app, source) in apps.iter().zip(&mut sources) {
        for number in 0..32 {
            app.emit(source, number, b"x", 0);
        }
    }
    let mut named = None;
    until_true("the lane is missed", || {
        named = runtime.handle().heartbeat(Duration::from_millis(50)).err();
        matches!(&named, Some(Unresponsive::Lanes { lanes, .. }) if *lanes == [1])
    });
    assert!(named.expect("missed").to_string().contains("[1]"));
    clock.set(false);
    at_work(runtime.handle());
}

#[test]
fn a_flood_of_connections_keeps_no_operator_waiting() {
    let nobody = Policy {
        uids: vec![u32::MAX - 7],
        ..Policy::default()
    };
    let (runtime, _directory, address) = listening(nobody);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let socket = transport::socket().expect("a socket");
                    let _ = rustix::net::connect(&socket, &address);
                }
            });
        }
        let handle = runtime.handle();
        until_true("the flood has come", || {
            handle.listeners().expect("running")[0].refused > 100
        });
        // Each is answered while the flood goes on: it ends only after them.
        let (done, wait) = channel();
        scope.spawn(move || {
            for _ in 0..50 {
                at_work(handle);
            }
            done.send(()).expect("somebody waits");
        });
        let answered = wait.recv_timeout(PATIENCE);
        stop.store(true, Ordering::Relaxed);
        answered.expect("the operator is answered");
    });
}

#[test]
fn the_descriptor_that_tells_of_room_counts_once_for_a_session() {
    let with = |descriptors| {
        let (runtime, directory, address) = listening(Policy {
            descriptors,
            ..Policy::default()
        });
        let mut app = App::over(connect(&address));
        let stream = app.stream(Qos::slow());
        let sources = [5, 6].map(|channel| app.source(stream, channel, 0).id);
        (runtime, directory, app, sources)
    };
    let (runtime, _directory, mut app, sources) = with(4 + 2);
    let held = || {
        runtime
            .handle()
            .listeners()
            .expect("running")
            .remove(0)
            .descriptors
    };
    assert_eq!(held(), 4);
    for source in sources.into_iter().cycle().take(10) {
        assert_eq!(app.ask(Request::TellRoom(source)), Ok(Reply::RoomTold));
        assert_eq!(held(), 4 + 2);
    }
    let none = app.ask(Request::TellRoom(9)).expect_err("no such source");
    assert_eq!(none.code, ErrorCode::NotFound);
    drop(app);
    until_true("they are released", || held() == 0);

    let (_runtime, _directory, mut app, [source, _]) = with(4 + 1);
    let refused = app.ask(Request::TellRoom(source)).expect_err("too many");
    assert_eq!(refused.code, ErrorCode::Limit);
    assert!(refused.message.contains("`descriptors`"), "{refused}");
    let stream = app.stream(Qos::slow());
    app.source(stream, 7, 0);
}

#[test]
fn what_a_tenants_sessions_hold_together_is_bounded_and_can_be_had_again() {
    const MEBIBYTE: u64 = 1 << 20;
    let policy = Policy {
        identity: "press".into(),
        sessions: 3,
        // Two sessions of eight MiB of rings and two MiB of regions each.
        total_memory: 24 << 20,
        total_endpoints: 3,
        descriptors: 3 * 4 + 2,
        ..Policy::default()
    };
    let (runtime, _directory, address) = listening(policy);
    let status = || runtime.handle().listeners().expect("running").remove(0);
    let mut sessions: Vec<OwnedFd> = (0..2)
        .map(|_| {
            let socket = connect(&address);
            send(&socket, 1, attach(MEBIBYTE), &[]);
            assert!(matches!(reply(&socket), Reply::Attached { .. }));
            socket
        })
        .collect();
    let third = connect(&address);
    send(&third, 1, attach(4 * MEBIBYTE), &[]);
    let failure = refusal(&third);
    assert_eq!(failure.code, ErrorCode::NoMemory);
    assert!(failure.message.contains("total_memory"), "{failure}");
    // It ended at once; its descriptors are closed where that may take its time.
    until_true("it is released", || {
        (status().sessions, status().descriptors) == (2, 2 * 4)
    });

    // Half open connections count as well.
    let half_open = connect(&address);
    until_true("it is there", || status().sessions == 3);
    let fourth = connect(&address);
    assert!(refusal(&fourth).message.contains("`sessions`"));
    drop(half_open);

    let sink = |stream, notify_fd| Request::OpenSink {
        stream,
        channel: ChannelId(5),
        depth: 64,
        notify_fd,
        mode: takt_session::SinkMode::default(),
    };
    let mut opened = Vec::new();
    for socket in &sessions {
        send(socket, 2, Request::OpenStream(Qos::slow()), &[]);
        let Reply::StreamOpened { stream, .. } = reply(socket) else {
            panic!("no stream")
        };
        opened.push(stream);
    }
    send(&sessions[0], 3, sink(opened[0], true), &[]);
    assert!(matches!(reply(&sessions[0]), Reply::SinkOpened { .. }));
    until_true("the half open one is released", || {
        (status().sessions, status().descriptors) == (2, 2 * 4 + 2)
    });
    for number in 0..2 {
        send(&sessions[1], 4 + number, sink(opened[1], false), &[]);
        assert!(matches!(reply(&sessions[1]), Reply::SinkOpened { .. }));
    }
    let held = status();
    assert_eq!((held.endpoints, held.descriptors), (3, 2 * 4 + 2));
    send(&sessions[1], 7, sink(opened[1], false), &[]);
    assert!(refusal(&sessions[1]).message.contains("`total_endpoints`"));

    // Who re-attaches has the old memory no longer, and no more than that for a while.
    for _ in 0..20 {
        drop(sessions.remove(0));
        until_true("there is room again", || {
            let socket = connect(&address);
            let attach = Envelope {
                request: 1,
                message: attach(MEBIBYTE),
            };
            // Who comes too soon may be turned away before it has said anything: the refusal is there all the same.
            let _ = transport::send(&socket, &attach.encode(), &[], true);
            let attached = match reply(&socket) {
                Reply::Attached { .. } => true,
                Reply::Failed(refused) | Reply::Ended(refused) => {
                    let Failure { code, message } = refused;
                    assert!(
                        matches!(code, ErrorCode::Limit | ErrorCode::NoMemory),
                        "{message}"
                    );
                    false
                }
                other => panic!("neither attached nor refused: {other:?}"),
            };
            if attached {
                sessions.push(socket);
            }
            attached
        });
        assert!(status().memory <= 24 << 20);
    }
    sessions.clear();
    until_true("nothing is held", || {
        let held = status();
        (held.sessions, held.memory, held.endpoints, held.descriptors) == (0, 0, 0, 0)
    });
}

#[test]
fn a_tenant_has_so_many_sinks_of_a_channel_whatever_number_of_sessions_it_opens() {
    let (_runtime, _directory, address) = listening(Policy {
        identity: "press".into(),
        ..Policy::default()
    });
    let most = Policy::default().channel_sinks();
    let sink = |stream, channel| Request::OpenSink {
        stream,
        channel: ChannelId(channel),
        depth: 8,
        notify_fd: false,
        mode: takt_session::SinkMode::default(),
    };
    let sessions: Vec<(OwnedFd, u32)> = (0..2)
        .map(|_| {
            let socket = connect(&address);
            send(&socket, 1, attach(1 << 20), &[]);
            assert!(matches!(reply(&socket), Reply::Attached { .. }));
            send(&socket, 2, Request::OpenStream(Qos::slow()), &[]);
            let Reply::StreamOpened { stream, .. } = reply(&socket) else {
                panic!("no stream")
            };
            (socket, stream)
        })
        .collect();
    let mut last = None;
    for number in 0..most {
        let (socket, stream) = &sessions[number % 2];
        send(socket, 3, sink(*stream, 5), &[]);
        let Reply::SinkOpened { sink, .. } = reply(socket) else {
            panic!("sink {number} is refused")
        };
        last = Some(sink);
    }
    let (socket, stream) = &sessions[1];
    send(socket, 4, sink(*stream, 5), &[]);
    let failure = refusal(socket);
    assert_eq!(failure.code, ErrorCode::Limit);
    assert!(failure.message.contains("`endpoints`"), "{failure}");
    // Of another channel it may have some, and of this one when it has closed one.
    send(socket, 5, sink(*stream, 6), &[]);
    assert!(matches!(reply(socket), Reply::SinkOpened { .. }));
    let closing = last.expect("some");
    send(socket, 6, Request::CloseSink(closing), &[]);
    reply(socket);
    send(socket, 7, sink(*stream, 5), &[]);
    assert!(matches!(reply(socket), Reply::SinkOpened { .. }));
}
