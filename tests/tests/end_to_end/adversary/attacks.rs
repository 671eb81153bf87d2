//! What a hostile tenant and a host without a key can think of.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};
use rustix::net::SocketAddrUnix;
use takt::{ChannelId, Qos, Session, Sink, Wait};
use takt_lab::Host;
use takt_session::layout::{
    ArenaMap, HEADER_BYTES, LANE_DIRTY_OFFSET, LANE_STATE_OFFSET, Release, TxDescriptor,
};
use takt_session::message::{Envelope, Reply, Request};
use takt_session::transport;
use takt_shm::{Arena, LaneBell, Producer};

use super::{HOSTILE, Tried, Work, launch_at};
use crate::support::node::PORT;

/// How long before the victim's instants the launch times are that aim at them, nanoseconds.
const BEFORE: i64 = 2_000;

/// All that the tenant does, at once.
pub const ALL: [Tried; 7] = [
    ("scribble", scribble),
    ("twice", twice),
    ("ring", ring),
    ("half open", half_open),
    ("endpoints", endpoints),
    ("never consumed", never_consumed),
    ("aim", aim),
];

/// A session without a library, which does what no library would.
struct Raw {
    socket: OwnedFd,
    arena: Arc<Arena>,
    map: ArenaMap,
    bell: LaneBell,
    request: u32,
}

fn connect(path: &Path) -> Option<OwnedFd> {
    let socket = transport::socket().ok()?;
    let address = SocketAddrUnix::new(path).expect("a short path");
    rustix::net::connect(&socket, &address).ok()?;
    Some(socket)
}

fn request(socket: &OwnedFd, request: u32, message: Request) -> Option<transport::Packet> {
    let bytes = Envelope { request, message }.encode();
    transport::send(socket, &bytes, &[], true).ok()?;
    transport::receive(socket, true).ok()?
}

fn attach_request(bytes: u64) -> Request {
    Request::Attach {
        name: "\u{1b}[2Jhostile\n".into(),
        tx_bytes: bytes,
        rx_bytes: bytes,
        domain: false,
    }
}

impl Raw {
    /// None: refused, as one may be who asks so often.
    fn attach(path: &Path) -> Option<Self> {
        let socket = connect(path)?;
        let packet = request(&socket, 1, attach_request(8 << 20))?;
        let Ok(Reply::Attached { map, .. }) =
            Envelope::<Reply>::decode(&packet.bytes).map(|envelope| envelope.message)
        else {
            return None;
        };
        let [arena, bell]: [OwnedFd; 2] = packet.descriptors.try_into().ok()?;
        let arena = Arc::new(Arena::open(arena, map.total()).ok()?);
        let bell = LaneBell::attach(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET, bell).ok()?;
        Some(Self {
            socket,
            arena,
            map,
            bell,
            request: 1,
        })
    }

    fn ask(&mut self, message: Request) -> Option<Reply> {
        self.request += 1;
        let packet = request(&self.socket, self.request, message)?;
        Some(Envelope::<Reply>::decode(&packet.bytes).ok()?.message)
    }

    fn stream(&mut self) -> Option<u32> {
        match self.ask(Request::OpenStream(Qos::slow()))? {
            Reply::StreamOpened { stream, .. } => Some(stream),
            _ => None,
        }
    }

    fn source(&mut self, stream: u32) -> Option<Producer<TxDescriptor>> {
        let open = Request::OpenSource {
            stream,
            channel: ChannelId(HOSTILE),
            depth: 64,
            origin: 0,
            first: 0,
        };
        match self.ask(open)? {
            Reply::SourceOpened { block, .. } => {
                Producer::attach(&self.arena, block.tx_ring(), block.depth).ok()
            }
            _ => None,
        }
    }

    fn sink(&mut self, stream: u32, notify_fd: bool) -> Option<Producer<Release>> {
        let open = Request::OpenSink {
            stream,
            channel: ChannelId(HOSTILE),
            depth: 64,
            notify_fd,
            mode: takt_session::SinkMode::default(),
        };
        match self.ask(open)? {
            Reply::SinkOpened { block, .. } => {
                Producer::attach(&self.arena, block.release_ring(), block.depth).ok()
            }
            _ => None,
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let slice = self.arena.slice(offset, bytes.len()).expect("in bounds");
        slice.write_from(0, bytes).expect("fits");
    }
}

/// Random bytes all over rings and memory, also while a message is being taken from there.
fn scribble(work: &Work) {
    let mut rng = StdRng::seed_from_u64(1);
    while work.on() {
        let Some(mut raw) = Raw::attach(&work.near) else {
            std::thread::yield_now();
            continue;
        };
        let Some(stream) = raw.stream() else { continue };
        let mut sources: Vec<_> = (0..3).filter_map(|_| raw.source(stream)).collect();
        let _sinks: Vec<_> = (0..3).filter_map(|_| raw.sink(stream, false)).collect();
        for round in 0..200u32 {
            for source in &mut sources {
                let honest = TxDescriptor {
                    chunk: round % 64,
                    length: 200,
                    ..TxDescriptor::default()
                };
                let _ = source.push(honest);
            }
            raw.bell.ring();
            let end = if rng.random_bool(0.8) {
                HEADER_BYTES + (64 << 10)
            } else {
                raw.map.total()
            };
            let mut junk = [0u8; 64];
            rng.fill(&mut junk[..]);
            if rng.random_bool(0.5) {
                junk[1..].fill(0);
            }
            raw.write(rng.random_range(0..end - 64), &junk);
        }
        work.did();
    }
}

/// Blocks that are emitted twice, released twice or never received, and descriptors that point anywhere.
fn twice(work: &Work) {
    let mut rng = StdRng::seed_from_u64(2);
    while work.on() {
        let Some(mut raw) = Raw::attach(&work.near) else {
            std::thread::yield_now();
            continue;
        };
        let Some(stream) = raw.stream() else { continue };
        let (Some(mut source), Some(mut release)) = (raw.source(stream), raw.sink(stream, true))
        else {
            continue;
        };
        let one = TxDescriptor {
            chunk: rng.random_range(0..4),
            length: rng.random_range(0..1024),
            ..TxDescriptor::default()
        };
        let _ = source.push(one);
        match rng.random_range(0..4) {
            0 => {
                let _ = source.push(one);
            }
            1 => {
                let _ = release.push(rng.random());
            }
            2 => {
                let _ = release.push(0);
                let _ = release.push(0);
            }
            _ => {
                let anything = TxDescriptor {
                    chunk: rng.random(),
                    length: rng.random(),
                    flags: rng.random(),
                    class: rng.random(),
                    ..one
                };
                let _ = source.push(anything);
            }
        }
        raw.bell.ring();
        work.did();
    }
}

/// The doorbell, as fast as it goes.
fn ring(work: &Work) {
    while work.on() {
        // Others of the tenant may hold all its places.
        let Some(raw) = Raw::attach(&work.near) else {
            std::thread::yield_now();
            continue;
        };
        while work.on() {
            raw.bell.ring();
            work.did();
        }
    }
}

/// Connections that say nothing, that say half of something, or that leave at once; by the hundred.
fn half_open(work: &Work) {
    while work.on() {
        let sockets: Vec<_> = (0..200).filter_map(|_| connect(&work.near)).collect();
        for (at, socket) in sockets.iter().enumerate() {
            match at % 3 {
                0 => drop(transport::send(socket, &[1], &[], false)),
                1 => {
                    // With descriptors that nobody has asked for.
                    let all = [socket.as_fd(); transport::MAX_DESCRIPTORS];
                    let _ = transport::send(socket, b"take these", &all, false);
                }
                _ => {}
            }
        }
        work.did();
    }
}

/// Sources and sinks until no more are available, and then all over again.
fn endpoints(work: &Work) {
    while work.on() {
        let mut sessions = Vec::new();
        while let Some(mut raw) = Raw::attach(&work.near).filter(|_| work.on()) {
            let Some(stream) = raw.stream() else { break };
            while work.on() && raw.source(stream).is_some() && raw.sink(stream, true).is_some() {
                work.did();
            }
            sessions.push(raw);
            if sessions.len() == 4 {
                break;
            }
        }
    }
}

/// Messages of a megabyte and more to many sinks that take none.
fn never_consumed(work: &Work) {
    let open = || {
        let session = Session::builder()
            .socket(&work.near)
            .tx_bytes(32 << 20)
            .rx_bytes(32 << 20)
            .reconnect(false)
            .open()
            .ok()?;
        let stream = session.stream(Qos::slow()).ok()?;
        let channel = ChannelId(HOSTILE + 1);
        let sinks: Vec<Sink> = (0..64).filter_map(|_| stream.sink(channel).ok()).collect();
        Some((stream.source(channel).ok()?, sinks))
    };
    while work.on() {
        let Some((source, _sinks)) = open() else {
            std::thread::yield_now();
            continue;
        };
        for length in [16 << 20, 1 << 20, 64 << 10].into_iter().cycle().take(64) {
            if !work.on() {
                break;
            }
            let Ok(buffer) = source.buffer_wait(length, Wait::For(Duration::from_millis(50)))
            else {
                continue;
            };
            if buffer.emit().is_ok() {
                work.did();
            }
        }
    }
}

/// Launch times just before those of the victim, in its class and on its link.
fn aim(work: &Work) {
    let channel = ChannelId(HOSTILE + 2);
    launch_at(work, channel, -BEFORE);
}

/// Hellos, messages and junk from another host, to every port of the node.
pub fn forge(host: &Host, node: &Host, work: &Work) {
    let inside = host.enter().expect("the lab is up");
    let socket = UdpSocket::bind((host.address(), 0)).expect("bind");
    drop(inside);
    let mut rng = StdRng::seed_from_u64(3);
    let mut heard: Vec<Vec<u8>> = Vec::new();
    socket.set_nonblocking(true).expect("nonblocking");
    while work.on() {
        for port in PORT..PORT + 3 {
            let to = SocketAddr::from((node.address(), port));
            let mut bytes = vec![0; rng.random_range(1..200)];
            rng.fill(&mut bytes[..]);
            // What begins as a message of the protocol gets further.
            match rng.random_range(0..4) {
                // A hello of a node without lanes, as `docs/reference/wire-format.md` has it, or something else
                // of that protocol.
                0 => {
                    bytes.splice(..0, *b"TKTP\x03\x01\0\0");
                    bytes.truncate(16);
                    bytes.extend([0; 16]);
                    bytes.extend(*b"\x06forged\0");
                }
                1 => {
                    bytes.splice(..0, *b"TKTP\x03");
                }
                2 => bytes[0] = 2,
                _ => {}
            }
            if let Some(again) = heard.last() {
                let _ = socket.send_to(again, to);
            }
            if socket.send_to(&bytes, to).is_ok() {
                work.did();
            }
        }
        let mut answer = [0; 2048];
        if let Ok(length) = socket.recv(&mut answer) {
            heard.push(answer[..length].to_vec());
        }
    }
}
