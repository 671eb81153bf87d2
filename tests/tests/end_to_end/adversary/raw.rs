//! A session without a library, which does what no library would.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::net::SocketAddrUnix;
use takt::{ChannelId, Qos};
use takt_session::SinkMode;
use takt_session::layout::{
    ArenaMap, Completion, LANE_DIRTY_OFFSET, LANE_STATE_OFFSET, Release, SinkBlock, SourceBlock,
    TxDescriptor,
};
use takt_session::message::{Envelope, Reply, Request};
use takt_session::transport;
use takt_shm::{Arena, Consumer, LaneBell, Producer};

/// Entries of its rings.
pub const DEPTH: u32 = 64;

pub struct Raw {
    pub socket: OwnedFd,
    pub arena: Arc<Arena>,
    pub map: ArenaMap,
    pub bell: LaneBell,
    request: u32,
}

pub struct Source {
    pub block: SourceBlock,
    pub tx: Producer<TxDescriptor>,
    pub completions: Consumer<Completion>,
}

pub struct Sink {
    pub block: SinkBlock,
    pub release: Producer<Release>,
}

pub fn connect(path: &Path) -> Option<OwnedFd> {
    let socket = transport::socket().ok()?;
    let address = SocketAddrUnix::new(path).expect("a short path");
    rustix::net::connect(&socket, &address).ok()?;
    Some(socket)
}

/// The question with which a session begins, with so many bytes each way.
pub fn attach_request(bytes: u64) -> Vec<u8> {
    let message = Request::Attach {
        name: "\u{1b}[2Jhostile\n".into(),
        tx_bytes: bytes,
        rx_bytes: bytes,
        domain: false,
    };
    let request = 1;
    Envelope { request, message }.encode()
}

impl Raw {
    /// None: refused, as one may be who asks so often.
    pub fn attach(path: &Path, bytes: u64) -> Option<Self> {
        let socket = connect(path)?;
        transport::send(&socket, &attach_request(bytes), &[], true).ok()?;
        let packet = transport::receive(&socket, true).ok()??;
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
        let request = self.request;
        let bytes = Envelope { request, message }.encode();
        transport::send(&self.socket, &bytes, &[], true).ok()?;
        let packet = transport::receive(&self.socket, true).ok()??;
        Some(Envelope::<Reply>::decode(&packet.bytes).ok()?.message)
    }

    pub fn stream(&mut self, qos: Qos) -> Option<u32> {
        match self.ask(Request::OpenStream(qos))? {
            Reply::StreamOpened { stream, .. } => Some(stream),
            _ => None,
        }
    }

    pub fn source(&mut self, stream: u32, channel: ChannelId) -> Option<Source> {
        let open = Request::OpenSource {
            stream,
            channel,
            depth: DEPTH,
            origin: 0,
            first: 0,
        };
        let Reply::SourceOpened { block, .. } = self.ask(open)? else {
            return None;
        };
        Some(Source {
            block,
            tx: Producer::attach(&self.arena, block.tx_ring(), block.depth).ok()?,
            completions: Consumer::attach(&self.arena, block.completion_ring(), block.depth)
                .ok()?,
        })
    }

    pub fn sink(&mut self, stream: u32, channel: ChannelId, notify_fd: bool) -> Option<Sink> {
        self.sink_with(stream, channel, notify_fd, SinkMode::default())
    }

    pub fn sink_with(
        &mut self,
        stream: u32,
        channel: ChannelId,
        notify_fd: bool,
        mode: SinkMode,
    ) -> Option<Sink> {
        let open = Request::OpenSink {
            stream,
            channel,
            depth: DEPTH,
            notify_fd,
            mode,
        };
        let Reply::SinkOpened { block, .. } = self.ask(open)? else {
            return None;
        };
        let release = Producer::attach(&self.arena, block.release_ring(), block.depth).ok()?;
        Some(Sink { block, release })
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let slice = self.arena.slice(offset, bytes.len()).expect("in bounds");
        slice.write_from(0, bytes).expect("fits");
    }

    /// Whether the runtime has ended it.
    pub fn has_ended(&self) -> bool {
        let looked = transport::receive(&self.socket, false);
        !matches!(looked, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    }
}
