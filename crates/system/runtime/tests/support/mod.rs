//! An application at the level of the session protocol: what a client library does, bare, so that tests
//! can also do what no client library would.

#![allow(dead_code)] // each test program uses its part

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::SocketAddrUnix;
use takt_clock::{Clock, SystemTai};
use takt_datapath::Datapath;
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_runtime::config::{Config, LaneConfig, Limits, ListenerConfig};
use takt_runtime::peering::keys::Security;
use takt_runtime::policy::Policy;
use takt_runtime::{Runtime, RuntimeHandle};
use takt_session::layout::{
    ArenaMap, Completion, LANE_DIRTY_OFFSET, LANE_STATE_OFFSET, Outcome, Release, RxDescriptor,
    SinkBlock, SourceBlock, TX_REGION, TxDescriptor,
};
use takt_session::message::{Envelope, Reply, Request};
use takt_session::{ChannelId, Failure, Qos, transport};
use takt_shm::{Arena, CHUNK, Consumer, LaneBell, Producer, SinkBell};
pub use takt_testing::free_port;
use takt_testing::{Directory, GROUP_KEY, until_true};

/// A node on loopback.
pub fn config(port: u16, peers: &[u16]) -> Config {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Config {
        name: format!("node-{port}"),
        address,
        port,
        peers: peers
            .iter()
            .map(|&port| SocketAddr::new(address, port).into())
            .collect(),
        security: Security::group(GROUP_KEY.parse().expect("a key")),
        limits: Limits {
            tx_bytes: 32 << 20,
            rx_bytes: 64 << 20,
            ..Limits::default()
        },
        lanes: vec![LaneConfig::default()],
        ..Config::default()
    }
}

/// Starts a node over kernel UDP.
pub fn start(config: Config) -> Runtime {
    let udp: Arc<dyn Datapath> = Arc::new(UdpDatapath::new(UdpConfig::default()));
    Runtime::start(config, &[udp], Vec::new()).expect("runtime starts")
}

/// A runtime with a listening socket of this policy.
pub fn listening(policy: Policy) -> (Runtime, Directory, SocketAddrUnix) {
    listening_with(policy, Arc::new(SystemTai))
}

/// The same with a clock of its own.
pub fn listening_with(
    policy: Policy,
    clock: Arc<dyn Clock>,
) -> (Runtime, Directory, SocketAddrUnix) {
    let directory = Directory::new();
    let path = directory.join("tenant.sock");
    let runtime = start(Config {
        listeners: vec![ListenerConfig {
            path: path.clone(),
            mode: 0o600,
            policy,
        }],
        clock,
        ..config(free_port(), &[])
    });
    let address = SocketAddrUnix::new(path).expect("a path");
    (runtime, directory, address)
}

/// The question with which a session begins, with so many bytes each way.
pub fn attach(bytes: u64) -> Request {
    Request::Attach {
        name: "stranger".into(),
        tx_bytes: bytes,
        rx_bytes: bytes,
        domain: false,
    }
}

/// Asks as no client library would: with descriptors.
pub fn send(socket: &OwnedFd, request: u32, message: Request, descriptors: &[BorrowedFd<'_>]) {
    let bytes = Envelope { request, message }.encode();
    transport::send(socket, &bytes, descriptors, true).expect("sent");
}

/// Waits for an answer.
pub fn reply(socket: &OwnedFd) -> Reply {
    let packet = transport::receive(socket, true).expect("a packet");
    let packet = packet.expect("an answer before the end");
    Envelope::<Reply>::decode(&packet.bytes)
        .expect("an answer")
        .message
}

/// Waits for an answer that is a refusal.
pub fn refusal(socket: &OwnedFd) -> Failure {
    match reply(socket) {
        Reply::Failed(failure) | Reply::Ended(failure) => failure,
        other => panic!("not refused: {other:?}"),
    }
}

/// A connection to a listening socket.
pub fn connect(path: &std::path::Path) -> OwnedFd {
    let socket = transport::socket().expect("a socket");
    let address = SocketAddrUnix::new(path).expect("a path");
    rustix::net::connect(&socket, &address).expect("somebody listens");
    socket
}

pub struct App {
    pub socket: OwnedFd,
    pub arena: Arc<Arena>,
    pub map: ArenaMap,
    pub bell: LaneBell,
    pub max_message: u32,
    request: u32,
}

pub struct Source {
    pub id: u32,
    pub block: SourceBlock,
    pub tx: Producer<TxDescriptor>,
    pub completions: Consumer<Completion>,
}

pub struct Sink {
    pub id: u32,
    pub block: SinkBlock,
    pub rx: Consumer<RxDescriptor>,
    pub release: Producer<Release>,
    pub bell: SinkBell,
}

impl App {
    pub fn attach(handle: &RuntimeHandle) -> Self {
        Self::attach_with(handle, Policy::default())
    }

    pub fn attach_with(handle: &RuntimeHandle, policy: Policy) -> Self {
        Self::over(
            handle
                .connect(policy)
                .expect("running")
                .expect("socket pair"),
        )
    }

    /// Attaches over a connected socket.
    pub fn over(socket: OwnedFd) -> Self {
        Self::attach_over(socket, false).0
    }

    /// Attaches over a connected socket to take part in a trust domain. What it does with its transmit region, whose
    /// file this is as well, is its affair.
    pub fn in_domain(socket: OwnedFd) -> (Self, OwnedFd) {
        let (app, region) = Self::attach_over(socket, true);
        (app, region.expect("a trust domain"))
    }

    fn attach_over(socket: OwnedFd, domain: bool) -> (Self, Option<OwnedFd>) {
        let attach = Request::Attach {
            name: "test".into(),
            tx_bytes: 0,
            rx_bytes: 0,
            domain,
        };
        let bytes = Envelope {
            request: 1,
            message: attach,
        }
        .encode();
        transport::send(&socket, &bytes, &[], true).expect("send");
        let packet = transport::receive(&socket, true)
            .expect("receive")
            .expect("reply");
        let reply = Envelope::<Reply>::decode(&packet.bytes)
            .expect("decode")
            .message;
        let Reply::Attached {
            map, max_message, ..
        } = reply
        else {
            panic!("refused: {reply:?}")
        };
        let mut descriptors = packet.descriptors.into_iter();
        let mut next = || descriptors.next();
        let (arena, bell) = (next().expect("an arena"), next().expect("a doorbell"));
        let region = next();
        let mut arena = Arena::open(arena, map.total()).expect("arena");
        if let Some(region) = &region {
            arena
                .overlay(region, map.tx_offset(), map.tx_bytes, true)
                .expect("the transmit region");
        }
        let arena = Arc::new(arena);
        let bell =
            LaneBell::attach(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET, bell).expect("bell");
        let app = Self {
            socket,
            arena,
            map,
            bell,
            max_message,
            request: 1,
        };
        (app, region)
    }

    /// Touches every page of its transmit region, so that the memory is its own: what an application of a trust domain
    /// does before it seals the region.
    pub fn populate(&self) {
        let (offset, bytes) = (self.map.tx_offset(), self.map.tx_bytes);
        let region = self.arena.slice(offset, bytes).expect("in bounds");
        (0..bytes).step_by(4096).for_each(|at| {
            region.write_from(at, &[0]).expect("fits");
        });
    }

    /// Asks and waits for the answer; what it is told of rings meanwhile is passed over.
    pub fn ask(&mut self, message: Request) -> Result<Reply, Failure> {
        self.request += 1;
        let bytes = Envelope {
            request: self.request,
            message,
        }
        .encode();
        transport::send(&self.socket, &bytes, &[], true).expect("send");
        loop {
            match reply(&self.socket) {
                Reply::Failed(failure) | Reply::Ended(failure) => return Err(failure),
                Reply::DirectSource { .. }
                | Reply::DirectSink { .. }
                | Reply::DirectEnded { .. } => {}
                reply => return Ok(reply),
            }
        }
    }

    /// The reason for which the runtime ends the session.
    pub fn ended(&self) -> Failure {
        let packet = transport::receive(&self.socket, true)
            .expect("receive")
            .expect("a reason before the end");
        match Envelope::<Reply>::decode(&packet.bytes)
            .expect("decode")
            .message
        {
            Reply::Ended(failure) => failure,
            other => panic!("expected the end, got {other:?}"),
        }
    }

    pub fn stream(&mut self, qos: Qos) -> u32 {
        match self.ask(Request::OpenStream(qos)) {
            Ok(Reply::StreamOpened { stream, .. }) => stream,
            other => panic!("no stream: {other:?}"),
        }
    }

    pub fn source(&mut self, stream: u32, channel: u64, depth: u32) -> Source {
        match self.ask(Request::OpenSource {
            stream,
            channel: ChannelId(channel),
            depth,
            origin: 0,
            first: 0,
        }) {
            Ok(Reply::SourceOpened { source, block }) => Source {
                id: source,
                block,
                tx: Producer::attach(&self.arena, block.tx_ring(), block.depth).expect("ring"),
                completions: Consumer::attach(&self.arena, block.completion_ring(), block.depth)
                    .expect("ring"),
            },
            other => panic!("no source: {other:?}"),
        }
    }

    pub fn sink(&mut self, stream: u32, channel: u64, depth: u32) -> Sink {
        let opened = self.ask(Request::OpenSink {
            stream,
            channel: ChannelId(channel),
            depth,
            notify_fd: false,
            mode: takt_session::SinkMode::default(),
        });
        self.opened_sink(opened)
    }

    /// The sink of this answer.
    pub fn opened_sink(&self, opened: Result<Reply, Failure>) -> Sink {
        match opened {
            Ok(Reply::SinkOpened { sink, block }) => Sink {
                id: sink,
                block,
                rx: Consumer::attach(&self.arena, block.rx_ring(), block.depth).expect("ring"),
                release: Producer::attach(&self.arena, block.release_ring(), block.depth)
                    .expect("ring"),
                bell: SinkBell::attach(&self.arena, block.bell()).expect("bell"),
            },
            other => panic!("no sink: {other:?}"),
        }
    }

    pub fn emit(&self, source: &mut Source, chunk: u32, payload: &[u8], token: u32) {
        let descriptor = TxDescriptor {
            chunk,
            token,
            ..TxDescriptor::default()
        };
        self.emit_as(source, payload, descriptor);
    }

    /// The same with a descriptor that says more than where and which.
    pub fn emit_as(&self, source: &mut Source, payload: &[u8], descriptor: TxDescriptor) {
        let offset = self.map.tx_offset() + descriptor.chunk as usize * CHUNK;
        self.arena
            .slice(offset, payload.len())
            .expect("in bounds")
            .write_from(0, payload)
            .expect("fits");
        let descriptor = TxDescriptor {
            length: payload.len() as u32,
            ..descriptor
        };
        assert!(
            source.tx.push(descriptor).expect("ring"),
            "transmit ring full"
        );
        self.bell.ring();
    }

    /// Waits for the next completion.
    pub fn completion(&self, source: &mut Source) -> Completion {
        let mut found = None;
        until_true("completion", || {
            found = source.completions.pop().expect("ring");
            found.is_some()
        });
        source.completions.release();
        found.expect("completion")
    }

    /// Emits until somebody listens.
    pub fn emit_until_heard(&self, source: &mut Source, payload: &[u8]) {
        until_true("a sink is known", || {
            self.emit(source, 0, payload, 7);
            let completion = self.completion(source);
            assert_eq!((completion.chunk, completion.token), (0, 7));
            Outcome::from_number(completion.outcome) == Some(Outcome::Sent)
        });
    }

    /// Takes a message without waiting, copies and releases it.
    pub fn take(&self, sink: &mut Sink) -> Option<(RxDescriptor, Vec<u8>)> {
        let descriptor = sink.rx.pop().expect("ring")?;
        sink.rx.release();
        let bytes = self.read(&descriptor);
        assert!(sink.release.push(descriptor.chunk).expect("ring"));
        self.bell.ring();
        Some((descriptor, bytes))
    }

    /// The payload of a received message.
    pub fn read(&self, descriptor: &RxDescriptor) -> Vec<u8> {
        let (region, chunk) = match descriptor.chunk & TX_REGION {
            0 => (self.map.rx_offset(), descriptor.chunk),
            _ => (self.map.tx_offset(), descriptor.chunk & !TX_REGION),
        };
        let mut bytes = vec![0; descriptor.length as usize];
        let slice = self
            .arena
            .slice(region + chunk as usize * CHUNK, bytes.len())
            .expect("in bounds");
        slice.read_into(0, &mut bytes).expect("in bounds");
        bytes
    }

    /// Waits for a message.
    pub fn receive(&self, sink: &mut Sink) -> (RxDescriptor, Vec<u8>) {
        let mut found = None;
        until_true("a message", || {
            found = self.take(sink);
            found.is_some()
        });
        found.expect("message")
    }
}
