//! The session socket with descriptors, both ways: a runtime that an application sends any packets with any
//! descriptors, and an application whose runtime answers with any. Nothing panics or hangs; the runtime takes none of
//! the descriptors, serves another application as before, and keeps nothing.
//!
//! Input: which side is hostile and whether the application is in a trust domain, and its packets, see [`Input`]. One
//! runtime serves all inputs, as a daemon's would; in the domain others exchange messages all the while.

#![no_main]

use std::io::PipeReader;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::SocketAddrUnix;
use takt::{Session, Sink, Source, Wait};
use takt_datapath::Datapath;
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_runtime::Runtime;
use takt_runtime::config::{Config, LaneConfig, ListenerConfig};
use takt_runtime::peering::keys::Security;
use takt_runtime::policy::{Policy, Trust};
use takt_session::layout::{
    ARENA_MAGIC, ArenaMap, MAGIC_OFFSET, SinkBlock, SourceBlock, VERSION_OFFSET,
};
use takt_session::message::{DirectEnd, Envelope, Reply, Request};
use takt_session::transport::{self, MAX_DESCRIPTORS};
use takt_session::{ChannelId, ErrorCode, Failure, PROTOCOL_VERSION, Qos};
use takt_shm::Arena;

/// Packets of an input; more only take time.
const MOST_PACKETS: usize = 48;
/// The client waits for nothing that does not come at once.
const AT_ONCE: Duration = Duration::from_millis(20);
/// What has not happened then never will.
const PATIENCE: Duration = Duration::from_secs(8);
/// Between two looks whether descriptors have been kept, and how many may be under way.
const LOOK_EVERY: u64 = 256;
const UNDER_WAY: usize = 64;

/// Of those beside.
const ALONE: ChannelId = ChannelId(u64::MAX);
const IN_DOMAIN: ChannelId = ChannelId(u64::MAX - 1);
const REGION: usize = 64 << 10;
const RINGS: usize = 1 << 20;

/// What an input says, a byte at a time; zeros behind its end.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// Mostly small, and sometimes anything.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
            254 => 1 << (self.byte() % 64),
            small => small.into(),
        }
    }

    fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes
    }
}

/// Descriptors of all kinds.
struct Kinds {
    arena: Arena,
    others: Vec<OwnedFd>,
}

impl Kinds {
    fn new() -> Self {
        let map = map();
        let arena = Arena::create("fuzzed", map.total()).expect("an arena");
        for (offset, word) in [
            (MAGIC_OFFSET, ARENA_MAGIC),
            (VERSION_OFFSET, PROTOCOL_VERSION.into()),
        ] {
            let place = arena.atomic_u32(offset).expect("within");
            place.store(word, std::sync::atomic::Ordering::Relaxed);
        }
        let memory = |bytes: usize, seals: SealFlags| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let memory = memfd_create("fuzzed", flags).expect("a memfd");
            ftruncate(&memory, bytes as u64).expect("its size");
            fcntl_add_seals(&memory, seals).expect("its seals");
            memory
        };
        let whole = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).expect("a connection");
        let (reader, writer): (PipeReader, _) = std::io::pipe().expect("a pipe");
        // Its other end is closed.
        drop(writer);
        let (closed, other) = transport::pair().expect("a pair");
        drop(other);
        let others = vec![
            eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("an eventfd"),
            // Unsealed; too small; sealed against writing; empty.
            memory(map.total(), SealFlags::empty()),
            memory(4096, whole),
            memory(map.total(), whole | SealFlags::WRITE),
            memory(0, whole),
            reader.into(),
            stream.into(),
            listener.into(),
            closed,
        ];
        Self { arena, others }
    }

    fn pick(&self, number: u8) -> BorrowedFd<'_> {
        match usize::from(number) % (self.others.len() + 1) {
            0 => self.arena.fd(),
            other => self.others[other - 1].as_fd(),
        }
    }

    /// Those that go with a packet.
    fn some(&self, input: &mut Input<'_>) -> Vec<BorrowedFd<'_>> {
        let count = usize::from(input.byte()) % (MAX_DESCRIPTORS + 1);
        (0..count).map(|_| self.pick(input.byte())).collect()
    }
}

fn map() -> ArenaMap {
    ArenaMap {
        ring_bytes: RINGS,
        tx_bytes: REGION,
        rx_bytes: REGION,
    }
}

/// An application that works beside the hostile ones.
struct Beside {
    source: Source,
    sink: Sink,
    number: u64,
}

impl Beside {
    /// The source in one session, the sink in another.
    fn new(channel: ChannelId, write: &Session, read: &Session) -> Self {
        let open = |session: &Session| session.stream(Qos::slow()).expect("a stream");
        Self {
            sink: open(read).sink(channel).expect("a sink"),
            source: open(write).source(channel).expect("a source"),
            number: 0,
        }
    }

    fn check(&mut self) {
        self.number += 1;
        let wait = Wait::For(PATIENCE);
        let mut buffer = self.source.buffer_wait(8, wait).expect("memory");
        buffer.copy_from_slice(&self.number.to_le_bytes());
        buffer.emit().expect("emitted");
        let message = self.sink.consume(wait).expect("a message");
        assert_eq!(message[..], self.number.to_le_bytes());
    }
}

/// A runtime, and those beside the hostile ones: one without a trust domain, one in it.
struct Scene {
    runtime: Runtime,
    domain: PathBuf,
    _held: OwnedFd,
    beside: [Beside; 2],
    checks: u64,
    descriptors: usize,
}

fn descriptors() -> usize {
    let directory = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    directory.count()
}

/// A runtime on a free port of loopback, with a listener whose sessions are a trust domain.
fn start(domain: &Path) -> Runtime {
    let udp: Arc<dyn Datapath> = Arc::new(UdpDatapath::new(UdpConfig::default()));
    let config = |port| Config {
        name: "fuzzed".into(),
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        port,
        security: Security::none(),
        lanes: vec![LaneConfig::default()],
        listeners: vec![ListenerConfig {
            path: domain.to_owned(),
            mode: 0o600,
            policy: Policy {
                trust: Trust::User,
                ..policy()
            },
        }],
        ..Config::default()
    };
    (12_000..32_000)
        .step_by(16)
        .find_map(|port| Runtime::start(config(port), std::slice::from_ref(&udp), Vec::new()).ok())
        .expect("a free port")
}

impl Scene {
    fn new() -> Self {
        let file = std::env::temp_dir().join(format!("takt-fuzzed-{}", std::process::id()));
        let runtime = start(&file);
        // Nobody removes it in the end: it is used by a descriptor.
        let held = rustix::fs::open(&file, OFlags::PATH, Mode::empty()).expect("the socket");
        std::fs::remove_file(&file).expect("removed");
        let domain = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
        let alone = Session::over(attach(&runtime), None).expect("a session");
        let one_more = || {
            Session::builder()
                .socket(&domain)
                .open()
                .expect("a session")
        };
        Self {
            beside: [
                Beside::new(ALONE, &alone, &alone),
                Beside::new(IN_DOMAIN, &one_more(), &one_more()),
            ],
            domain,
            _held: held,
            runtime,
            checks: 0,
            descriptors: descriptors(),
        }
    }

    /// What a hostile application sends to.
    fn socket(&self, in_domain: bool) -> OwnedFd {
        if !in_domain {
            return attach(&self.runtime);
        }
        let socket = transport::socket().expect("a socket");
        let address = SocketAddrUnix::new(&self.domain).expect("a path");
        rustix::net::connect(&socket, &address).expect("a listener");
        socket
    }

    /// The runtime works, and keeps nothing of those that are gone.
    fn check(&mut self) {
        let handle = self.runtime.handle();
        handle.heartbeat(PATIENCE).expect("all answer");
        for beside in &mut self.beside {
            beside.check();
        }
        self.checks += 1;
        if self.checks.is_multiple_of(LOOK_EVERY) {
            let deadline = Instant::now() + PATIENCE;
            while descriptors() > self.descriptors + UNDER_WAY {
                assert!(Instant::now() < deadline, "{} descriptors", descriptors());
                std::thread::yield_now();
            }
            // Those that are gone are forgotten, and nobody has ended what is between others.
            let sessions = handle.sessions().expect("running");
            let count = sessions.len();
            assert!(count <= 2 * UNDER_WAY, "{count} sessions");
            let rings = sessions.iter().flat_map(|session| &session.direct);
            let mut between = rings.filter(|ring| ring.ring == 1 && ring.ended.is_empty());
            assert!(between.next().is_some(), "no ring between those beside");
        }
    }
}

fn policy() -> Policy {
    Policy {
        identity: "fuzzed".into(),
        sessions: 1024,
        total_memory: 4 << 30,
        ..Policy::default()
    }
}

fn attach(runtime: &Runtime) -> OwnedFd {
    let socket = runtime.handle().connect(policy()).expect("running");
    socket.expect("room")
}

/// Often that of those beside.
fn channel(input: &mut Input<'_>) -> ChannelId {
    match input.number() {
        0 => ALONE,
        1 => IN_DOMAIN,
        other => ChannelId(other),
    }
}

/// Something that an application may ask, or nearly.
fn request(input: &mut Input<'_>) -> Request {
    let kind = input.byte();
    let stream = input.number() as u32;
    match kind % 12 {
        _ if kind >= 240 => Request::EndDirect {
            ring: stream,
            reason: DirectEnd::ALL[usize::from(kind) % DirectEnd::ALL.len()],
        },
        0 => Request::Attach {
            name: String::from_utf8_lossy(input.bytes()).into_owned(),
            tx_bytes: input.number(),
            rx_bytes: input.number(),
            domain: kind & 128 != 0,
        },
        1 => Request::OpenStream(Qos::slow()),
        2 => Request::CloseStream(stream),
        3 => Request::OpenSource {
            stream,
            channel: channel(input),
            depth: input.number() as u32,
            origin: 0,
            first: input.number(),
        },
        4 => Request::CloseSource(stream),
        5 | 6 => Request::OpenSink {
            stream,
            channel: channel(input),
            depth: input.number() as u32,
            notify_fd: kind >= 128,
            mode: takt_session::SinkMode {
                no_local: kind & 64 != 0,
                latest: kind & 32 != 0,
            },
        },
        7 => Request::CloseSink(stream),
        8 => Request::OpenFrameSource { stream, depth: 0 },
        9 => Request::Readers(stream),
        10 => Request::Unserved(std::array::from_fn(|_| input.number())),
        _ => Request::End,
    }
}

/// What a runtime may answer, or nearly.
fn reply(input: &mut Input<'_>) -> Reply {
    let kind = input.byte();
    let number = input.number() as u32;
    let place = |input: &mut Input<'_>| (input.number() as usize, input.number() as u32);
    match kind % 10 {
        _ if kind >= 250 => Reply::DirectEnded {
            ring: number,
            epoch: input.number() as u16,
            free: kind.is_multiple_of(2),
        },
        _ if kind >= 245 => Reply::DirectSink {
            sink: number,
            ring: input.number() as u32,
            sender: input.number() as u32,
            depth: input.number() as u32,
            session: input.number(),
            region_bytes: input.number() as usize,
        },
        _ if kind >= 240 => Reply::DirectSource {
            source: number,
            ring: input.number() as u32,
            epoch: input.number() as u16,
            depth: input.number() as u32,
        },
        0 | 1 => Reply::Attached {
            session: 1,
            map: match kind & 128 {
                0 => map(),
                _ => ArenaMap {
                    ring_bytes: input.number() as usize,
                    tx_bytes: input.number() as usize,
                    rx_bytes: input.number() as usize,
                },
            },
            max_message: number,
            domain: kind & 64 != 0,
        },
        2 => Reply::StreamOpened {
            stream: number,
            datapath: "fuzzed".into(),
            warning: String::new(),
        },
        3 | 4 => {
            let (offset, depth) = place(input);
            let block = SourceBlock { offset, depth };
            Reply::SourceOpened {
                source: number,
                block,
            }
        }
        5 | 6 => {
            let (offset, depth) = place(input);
            let block = SinkBlock { offset, depth };
            Reply::SinkOpened {
                sink: number,
                block,
            }
        }
        7 => Reply::Readers(number),
        8 => Reply::Closed,
        _ => Reply::Ended(Failure::from(ErrorCode::Closed)),
    }
}

/// An application sends what it likes, and what comes back is thrown away.
fn hostile_application(scene: &mut Scene, kinds: &Kinds, in_domain: bool, input: &mut Input<'_>) {
    let socket = scene.socket(in_domain);
    for number in 1..=MOST_PACKETS as u32 {
        if input.0.is_empty() {
            break;
        }
        let bytes = match input.byte() {
            255 => input.bytes().to_vec(),
            _ => Envelope {
                request: number,
                message: request(input),
            }
            .encode(),
        };
        let with = match input.byte() % 4 {
            0 => kinds.some(input),
            _ => Vec::new(),
        };
        if transport::send(&socket, &bytes, &with, false).is_err() {
            break;
        }
        if input.byte().is_multiple_of(2) {
            // Answers that nobody takes end a session as well.
            while let Ok(Some(_)) = transport::receive(&socket, false) {}
        }
    }
    drop(socket);
    scene.check();
}

/// A runtime answers what it likes, in advance, and hangs up.
fn hostile_runtime(kinds: &Kinds, input: &mut Input<'_>) {
    let (ours, theirs) = transport::pair().expect("a pair");
    for number in 1..=MOST_PACKETS as u32 {
        if input.0.is_empty() {
            break;
        }
        let bytes = match input.byte() {
            255 => input.bytes().to_vec(),
            _ => Envelope {
                request: number,
                message: reply(input),
            }
            .encode(),
        };
        let with = match input.byte() % 4 {
            // As a runtime does.
            0 => vec![kinds.arena.fd(), kinds.others[0].as_fd()],
            1 => Vec::new(),
            _ => kinds.some(input),
        };
        if transport::send(&ours, &bytes, &with, false).is_err() {
            break;
        }
    }
    let _ = rustix::net::shutdown(&ours, rustix::net::Shutdown::Write);
    let opened = Session::builder()
        .request_timeout(AT_ONCE)
        .over(theirs, None);
    let Ok(session) = opened else { return };
    if let Ok(stream) = session.stream(Qos::slow()) {
        let source = stream.source(ChannelId(1));
        let sink = stream.sink(ChannelId(1));
        if let Ok(source) = &source
            && let Ok(buffer) = source.buffer(8)
        {
            let _ = buffer.emit();
        }
        if let Ok(sink) = &sink {
            let length = sink.consume(Wait::Never).map(|message| {
                message.iter().map(|byte| usize::from(*byte)).sum::<usize>() + message.len()
            });
            drop((length, sink.counters(), sink.available()));
        }
    }
    session.end();
}

fuzz_target!(|input: &[u8]| {
    static SCENE: Mutex<Option<(Scene, Kinds)>> = Mutex::new(None);
    let mut held = SCENE.lock().unwrap_or_else(PoisonError::into_inner);
    let (scene, kinds) = held.get_or_insert_with(|| {
        let kinds = Kinds::new();
        (Scene::new(), kinds)
    });
    let mut input = Input(input);
    let first = input.byte();
    match first % 2 {
        0 => hostile_application(scene, kinds, first & 2 != 0, &mut input),
        _ => hostile_runtime(kinds, &mut input),
    }
});
