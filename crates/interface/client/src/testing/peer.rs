//! The runtime's half: accepts one session at a time, lays out its arena, and moves messages from its
//! sources to its sinks. No policy, no network.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::net::{SendFlags, SocketAddrUnix, SocketFlags};
use takt_session::layout::{
    ABILITIES_OFFSET, ARENA_MAGIC, ArenaMap, CAN_TELL_ROOM, Completion, DEFAULT_DEPTH,
    HEADER_BYTES, LANE_DIRTY_OFFSET, LANE_STATE_OFFSET, MAGIC_OFFSET, Outcome, ROOM_OFFSET,
    RxDescriptor, SinkBlock, SinkCounter, SourceBlock, TX_REGION, TxDescriptor, VERSION_OFFSET,
};
use takt_session::message::{Envelope, Reply, Request};
use takt_session::{ChannelId, Endpoint, ErrorCode, Failure, PROTOCOL_VERSION, transport};
use takt_shm::{
    Arena, Buddy, CHUNK, Consumer, LaneBellHost, Producer, Region, RingLayout, SinkBellHost, Wake,
};

const RING_BYTES: usize = 8 << 20;

pub struct PeerSource {
    pub channel: ChannelId,
    tx: Consumer<TxDescriptor>,
    pub completions: Producer<Completion>,
    block: SourceBlock,
    /// Messages taken and given to the sinks.
    given: u64,
    closing: Option<u32>,
    rings: u32,
}

pub struct PeerSink {
    pub channel: ChannelId,
    pub rx: Producer<RxDescriptor>,
    release: Consumer<u32>,
    bell: SinkBellHost,
    notify: Option<OwnedFd>,
    block: SinkBlock,
    /// Chunks delivered and not released, as in the descriptors.
    outstanding: Vec<u32>,
    delivered: u64,
    dropped: u64,
    rings: u32,
}

impl PeerSink {
    fn show(&self, arena: &Arena) {
        for (counter, value) in [
            (SinkCounter::Delivered, self.delivered),
            (SinkCounter::DroppedFull, self.dropped),
        ] {
            let word = arena.atomic_u64(self.block.counter(counter));
            word.expect("counter").store(value, Ordering::Relaxed);
        }
    }
}

/// An attached session.
pub struct Served {
    pub socket: OwnedFd,
    pub arena: Arc<Arena>,
    pub map: ArenaMap,
    bell: LaneBellHost,
    rings: Buddy,
    rx: Buddy,
    /// Per chunk of the transmit region: holders, source, token.
    held: Vec<(u16, usize, u32)>,
    pub sources: Vec<Option<PeerSource>>,
    pub sinks: Vec<Option<PeerSink>>,
    /// The transmit region of a session in a trust domain.
    pub region: Option<OwnedFd>,
    /// The request to end the session: answered when the last source is gone.
    end: Option<u32>,
    /// Both ends of the descriptor that tells of room, and its word.
    pub room: Option<(OwnedFd, OwnedFd, SinkBellHost)>,
}

/// The peer's state. Switches are set by the tests.
pub struct Host {
    listener: Option<OwnedFd>,
    connection: Option<OwnedFd>,
    pub served: Option<Served>,
    /// Take nothing out of the rings.
    pub frozen: bool,
    /// Give sinks the very memory of the source.
    pub zero_copy: bool,
    /// The next messages carry these sequence numbers; counted on.
    pub sequence: u64,
    pub sender: u32,
    /// Answer no requests.
    pub mute: bool,
    /// Refuse requests of which this says why.
    pub refuse: fn(&Request) -> Option<Failure>,
    pub warning: String,
    /// What it says unasked before it answers this request.
    pub before: fn(&Request) -> Option<Reply>,
    /// Every request that came.
    pub log: Vec<Request>,
    /// Connections that ended on the application's side.
    pub ended: usize,
    pub tx_bytes: usize,
    pub rx_bytes: usize,
    /// Sessions are in a trust domain.
    pub domain: bool,
    /// It says that it can tell of room at sources.
    pub tells_room: bool,
    stop: bool,
}

/// A runtime for tests.
pub struct Peer {
    pub path: PathBuf,
    host: Arc<Mutex<Host>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

fn lock(host: &Mutex<Host>) -> MutexGuard<'_, Host> {
    host.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(path: &PathBuf) -> OwnedFd {
    let _ = std::fs::remove_file(path);
    let listener = transport::socket().expect("socket");
    rustix::net::bind(&listener, &SocketAddrUnix::new(path).expect("path")).expect("bind");
    rustix::net::listen(&listener, 8).expect("listen");
    listener
}

impl Peer {
    /// A peer that listens on a path of its own.
    pub fn start() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("takt-peer-{}-{number}", std::process::id()));
        let listener = listen(&path);
        Self::run(path, Some(listener), None)
    }

    /// A peer at the other end of `connection`.
    pub fn over(connection: OwnedFd) -> Self {
        Self::run(PathBuf::new(), None, Some(connection))
    }

    fn run(path: PathBuf, listener: Option<OwnedFd>, connection: Option<OwnedFd>) -> Self {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags).expect("eventfd"));
        let host = Arc::new(Mutex::new(Host {
            listener,
            connection,
            served: None,
            frozen: false,
            zero_copy: false,
            sequence: 0,
            sender: 77,
            mute: false,
            refuse: |_| None,
            warning: String::new(),
            before: |_| None,
            log: Vec::new(),
            ended: 0,
            tx_bytes: 1 << 20,
            rx_bytes: 1 << 20,
            domain: false,
            tells_room: true,
            stop: false,
        }));
        let (for_thread, woken) = (host.clone(), wake.clone());
        let thread = std::thread::spawn(move || serve(&for_thread, &woken));
        Self {
            path,
            host,
            wake,
            thread: Some(thread),
        }
    }

    pub fn session(&self) -> crate::Session {
        crate::Session::builder()
            .socket(&self.path)
            .name("test")
            .open()
            .expect("session")
    }

    /// Does something with the peer's state, between two rounds.
    pub fn with<T>(&self, what: impl FnOnce(&mut Host) -> T) -> T {
        let result = what(&mut lock(&self.host));
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        result
    }

    /// One round of the lane on the calling thread.
    pub fn round(&self) {
        let mut host = lock(&self.host);
        let Host {
            served,
            zero_copy,
            sequence,
            sender,
            ..
        } = &mut *host;
        if let Some(served) = served {
            served.round(*zero_copy, *sender, sequence);
        }
    }

    /// Goes away: the connection breaks and nobody listens.
    pub fn vanish(&self) {
        self.with(|host| {
            host.served = None;
            host.connection = None;
            host.listener = None;
        });
        let _ = std::fs::remove_file(&self.path);
    }

    /// Is back after [`vanish`](Self::vanish).
    pub fn come_back(&self) {
        let listener = listen(&self.path);
        self.with(|host| host.listener = Some(listener));
    }

    /// Tells the application that its session has ended, and closes it.
    pub fn end(&self, failure: Failure) {
        self.with(|host| {
            let served = host.served.take().expect("a session");
            host.connection = None;
            reply(&served.socket, 0, Reply::Ended(failure), &[]);
        });
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.with(|host| host.stop = true);
        let joined = self.thread.take().map(JoinHandle::join);
        if !self.path.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.path);
        }
        if !std::thread::panicking() {
            joined.expect("thread").expect("the peer has panicked");
        }
    }
}

fn reply(
    socket: &OwnedFd,
    request: u32,
    message: Reply,
    descriptors: &[std::os::fd::BorrowedFd<'_>],
) {
    let _ = transport::send(
        socket,
        &Envelope { request, message }.encode(),
        descriptors,
        true,
    );
}

fn serve(host: &Mutex<Host>, wake: &OwnedFd) {
    loop {
        let mut guard = lock(host);
        if guard.stop {
            return;
        }
        while guard.step() {}
        // Descriptors are copied so that the lock is free while we sleep.
        let mut watched = vec![];
        let sources = [
            guard
                .listener
                .as_ref()
                .filter(|_| guard.connection.is_none() && guard.served.is_none())
                .map(AsFd::as_fd),
            guard
                .connection
                .as_ref()
                .filter(|_| !guard.mute)
                .map(AsFd::as_fd),
            guard
                .served
                .as_ref()
                .filter(|_| !guard.mute)
                .map(|s| s.socket.as_fd()),
            guard
                .served
                .as_ref()
                .filter(|_| !guard.frozen)
                .map(|s| s.bell.fd()),
        ];
        for fd in sources.into_iter().flatten() {
            watched.push(fd.try_clone_to_owned().expect("copy"));
        }
        if let Some(served) = guard.served.as_ref().filter(|_| !guard.frozen) {
            served.bell.park();
            if served.bell.take_dirty() {
                served.bell.unpark();
                continue;
            }
        }
        drop(guard);
        let mut fds: Vec<PollFd<'_>> = watched
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        fds.push(PollFd::new(wake, PollFlags::IN));
        let _ = rustix::event::poll(&mut fds, None);
        drop(fds);
        drop(watched);
        let _ = rustix::io::read(wake, &mut [0; 8]);
        if let Some(served) = &lock(host).served {
            served.bell.unpark();
            let _ = rustix::io::read(served.bell.fd(), &mut [0; 8]);
        }
    }
}

impl Host {
    fn step(&mut self) -> bool {
        let mut worked = false;
        if self.connection.is_none()
            && self.served.is_none()
            && let Some(listener) = &self.listener
        {
            let mut fds = [PollFd::new(listener, PollFlags::IN)];
            let now = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            if rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0) {
                let accepted = rustix::net::accept_with(listener, SocketFlags::CLOEXEC);
                self.connection = Some(accepted.expect("accept"));
                worked = true;
            }
        }
        if !self.mute {
            worked |= self.requests();
        }
        if !self.frozen
            && let Some(served) = &mut self.served
        {
            worked |= served.bell.take_dirty();
            worked |= served.round(self.zero_copy, self.sender, &mut self.sequence);
        }
        worked
    }

    fn requests(&mut self) -> bool {
        let socket = match (&self.served, &self.connection) {
            (Some(served), _) => &served.socket,
            (None, Some(connection)) => connection,
            _ => return false,
        };
        let packet = match transport::receive(socket, false) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
            Ok(Some(packet)) => packet,
            _ => {
                self.served = None;
                self.connection = None;
                self.ended += 1;
                return true;
            }
        };
        let Envelope { request, message } =
            Envelope::<Request>::decode(&packet.bytes).expect("a request");
        self.log.push(message.clone());
        if let Some(failure) = (self.refuse)(&message) {
            reply(socket, request, Reply::Failed(failure), &[]);
            return true;
        }
        if let Request::Attach { .. } = message {
            let connection = self.connection.take().expect("not attached yet");
            self.served = Some(Served::attach(
                connection,
                request,
                (self.tx_bytes, self.rx_bytes),
                self.domain,
                self.tells_room,
            ));
        } else {
            let warning = self.warning.clone();
            let said = (self.before)(&message);
            let served = self.served.as_mut().expect("attached");
            if let Some(said) = said {
                served.tell(said, &[]);
            }
            served.answer(request, message, warning);
        }
        true
    }
}

fn place<T>(list: &mut Vec<Option<T>>, value: T) -> usize {
    let at = list.iter().position(Option::is_none).unwrap_or(list.len());
    if at == list.len() {
        list.push(None);
    }
    list[at] = Some(value);
    at
}

impl Served {
    fn attach(
        socket: OwnedFd,
        request: u32,
        (tx_bytes, rx_bytes): (usize, usize),
        domain: bool,
        tells_room: bool,
    ) -> Self {
        let map = ArenaMap {
            ring_bytes: RING_BYTES,
            tx_bytes,
            rx_bytes,
        };
        let mut arena = Arena::create("takt-test", map.total()).expect("arena");
        let region = domain.then(|| {
            let region = Region::create("takt-test-region", tx_bytes).expect("region");
            let overlaid = arena.overlay(&region, map.tx_offset(), tx_bytes, true);
            overlaid.expect("overlaid");
            region
        });
        let arena = Arc::new(arena);
        let set = |offset, value| {
            arena
                .atomic_u32(offset)
                .expect("header")
                .store(value, Ordering::Relaxed);
        };
        set(MAGIC_OFFSET, ARENA_MAGIC);
        set(VERSION_OFFSET, PROTOCOL_VERSION.into());
        if tells_room {
            set(ABILITIES_OFFSET, CAN_TELL_ROOM);
        }
        let bell = LaneBellHost::new(&arena, LANE_STATE_OFFSET, LANE_DIRTY_OFFSET).expect("bell");
        let attached = Reply::Attached {
            session: 1,
            map,
            max_message: tx_bytes as u32,
            domain,
        };
        let mut descriptors = vec![arena.fd(), bell.fd()];
        descriptors.extend(region.as_ref().map(AsFd::as_fd));
        reply(&socket, request, attached, &descriptors);
        Self {
            socket,
            arena,
            map,
            bell,
            rings: Buddy::new(RING_BYTES),
            rx: Buddy::new(rx_bytes),
            held: vec![(0, 0, 0); tx_bytes / CHUNK],
            sources: Vec::new(),
            sinks: Vec::new(),
            region,
            end: None,
            room: None,
        }
    }

    fn open_source(&mut self, channel: ChannelId, depth: u32) -> (u32, SourceBlock) {
        let depth = if depth == 0 { DEFAULT_DEPTH } else { depth };
        let chunk = self
            .rings
            .allocate(SourceBlock::bytes(depth))
            .expect("room for rings");
        let block = SourceBlock {
            offset: HEADER_BYTES + chunk as usize * CHUNK,
            depth,
        };
        RingLayout::reset(&self.arena, block.tx_ring()).expect("ring");
        RingLayout::reset(&self.arena, block.completion_ring()).expect("ring");
        let source = PeerSource {
            channel,
            tx: Consumer::attach(&self.arena, block.tx_ring(), depth).expect("ring"),
            completions: Producer::attach(&self.arena, block.completion_ring(), depth)
                .expect("ring"),
            block,
            given: 0,
            closing: None,
            rings: chunk,
        };
        let words = self.arena.slice(block.listeners(), RingLayout::ALIGN);
        let cleared = words.expect("words").write_from(0, &[0; RingLayout::ALIGN]);
        cleared.expect("words");
        (place(&mut self.sources, source) as u32, block)
    }

    fn answer(&mut self, request: u32, message: Request, warning: String) {
        let depth = |depth| if depth == 0 { DEFAULT_DEPTH } else { depth };
        match message {
            Request::Attach { .. } => panic!("attached twice"),
            Request::EndDirect { .. } => reply(&self.socket, request, Reply::Noted, &[]),
            Request::OpenStream(_) => {
                let opened = Reply::StreamOpened {
                    stream: 4,
                    datapath: "loop".into(),
                    warning,
                };
                reply(&self.socket, request, opened, &[]);
            }
            Request::OpenSource { channel, depth, .. } => {
                let (source, block) = self.open_source(channel, depth);
                reply(
                    &self.socket,
                    request,
                    Reply::SourceOpened { source, block },
                    &[],
                );
            }
            Request::OpenFrameSource { depth, .. } => {
                let (source, block) = self.open_source(ChannelId(0), depth);
                let opened = Reply::FrameSourceOpened {
                    source,
                    block,
                    endpoint: Endpoint {
                        network: "pods".into(),
                        mac: [2, 0, 0, 0, 0, 1],
                        addresses: Vec::new(),
                        mtu: 1500,
                        vlans: Vec::new(),
                    },
                };
                reply(&self.socket, request, opened, &[]);
            }
            Request::TellRoom(source) => {
                assert!(self.sources[source as usize].is_some(), "no such source");
                let (_, theirs, _) = self.room.get_or_insert_with(|| {
                    let (ours, theirs) = transport::pair().expect("pair");
                    let bell = SinkBellHost::attach(&self.arena, ROOM_OFFSET).expect("bell");
                    (ours, theirs, bell)
                });
                reply(&self.socket, request, Reply::RoomTold, &[theirs.as_fd()]);
            }
            Request::Unserved(_) => reply(&self.socket, request, Reply::Noted, &[]),
            Request::OpenSink {
                channel,
                depth: asked,
                notify_fd,
                ..
            } => {
                let depth = depth(asked);
                let chunk = self
                    .rings
                    .allocate(SinkBlock::bytes(depth))
                    .expect("room for rings");
                let block = SinkBlock {
                    offset: HEADER_BYTES + chunk as usize * CHUNK,
                    depth,
                };
                let header = self.arena.slice(block.offset, 128).expect("header");
                header.write_from(0, &[0; 128]).expect("header");
                RingLayout::reset(&self.arena, block.rx_ring()).expect("ring");
                RingLayout::reset(&self.arena, block.release_ring()).expect("ring");
                let (ours, theirs) = match notify_fd {
                    true => transport::pair()
                        .map(|(a, b)| (Some(a), Some(b)))
                        .expect("pair"),
                    false => (None, None),
                };
                let sink = PeerSink {
                    channel,
                    rx: Producer::attach(&self.arena, block.rx_ring(), depth).expect("ring"),
                    release: Consumer::attach(&self.arena, block.release_ring(), depth)
                        .expect("ring"),
                    bell: SinkBellHost::attach(&self.arena, block.bell()).expect("bell"),
                    notify: ours,
                    block,
                    outstanding: Vec::new(),
                    delivered: 0,
                    dropped: 0,
                    rings: chunk,
                };
                let sink = place(&mut self.sinks, sink) as u32;
                let fds: Vec<_> = theirs.iter().map(AsFd::as_fd).collect();
                reply(
                    &self.socket,
                    request,
                    Reply::SinkOpened { sink, block },
                    &fds,
                );
            }
            Request::CloseSource(source) => {
                self.sources[source as usize]
                    .as_mut()
                    .expect("source")
                    .closing = Some(request);
            }
            Request::CloseSink(sink) => {
                self.releases();
                self.close_sink(sink as usize);
                reply(&self.socket, request, Reply::Closed, &[]);
            }
            // As if one reader came with each sink.
            Request::Readers(_) => {
                let sinks = self.sinks.iter().flatten().count();
                reply(&self.socket, request, Reply::Readers(sinks as u32), &[]);
            }
            Request::CloseStream(_) => reply(&self.socket, request, Reply::Closed, &[]),
            Request::End => {
                self.end = Some(request);
                self.releases();
                (0..self.sinks.len()).for_each(|sink| self.close_sink(sink));
            }
            Request::Resolve { .. } => {
                let refused = Failure::from(ErrorCode::NotPermitted);
                reply(&self.socket, request, Reply::Failed(refused), &[]);
            }
        }
    }

    fn close_sink(&mut self, sink: usize) {
        let Some(closed) = self.sinks[sink].take() else {
            return;
        };
        self.rings.free(closed.rings).expect("rings");
        for chunk in closed.outstanding {
            self.take_back(chunk);
        }
    }

    /// Moves what there is.
    fn round(&mut self, zero_copy: bool, sender: u32, sequence: &mut u64) -> bool {
        let mut worked = self.releases();
        for source in 0..self.sources.len() {
            while let Some(s) = &mut self.sources[source]
                && let Some(descriptor) = s.tx.pop().expect("transmit ring")
            {
                worked = true;
                s.given += 1;
                let channel = s.channel;
                self.forward(source, channel, &descriptor, zero_copy, sender, *sequence);
                *sequence += 1;
            }
            let Some(s) = &mut self.sources[source] else {
                continue;
            };
            s.tx.release();
            s.completions.publish();
            if let Some((ours, _, bell)) = &self.room
                && bell.ring() == Wake::Fd
            {
                let _ = rustix::net::send(ours, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
            let given = self.arena.atomic_u64(s.block.given()).expect("a word");
            given.store(s.given, Ordering::Release);
            let closing = s.closing;
            if closing.is_some() || self.end.is_some() {
                self.rings.free(s.rings).expect("rings");
                self.sources[source] = None;
            }
            if let Some(request) = closing {
                reply(&self.socket, request, Reply::Closed, &[]);
            }
        }
        if let Some(request) = self.end.take() {
            reply(&self.socket, request, Reply::Closed, &[]);
        }
        worked
    }

    fn forward(
        &mut self,
        source: usize,
        channel: ChannelId,
        descriptor: &TxDescriptor,
        zero_copy: bool,
        sender: u32,
        sequence: u64,
    ) {
        let at = descriptor.chunk as usize;
        assert_eq!(self.held[at].0, 0, "chunk {at} emitted twice");
        self.held[at] = (1, source, descriptor.token);
        let mut outcome = Outcome::NoSink;
        for sink in 0..self.sinks.len() {
            let Some(s) = &mut self.sinks[sink] else {
                continue;
            };
            if s.channel != channel {
                continue;
            }
            outcome = Outcome::Sent;
            let length = descriptor.length as usize;
            let chunk = if s.outstanding.len() == s.block.depth as usize {
                None
            } else if zero_copy {
                self.held[at].0 += 1;
                Some(descriptor.chunk | TX_REGION)
            } else {
                self.rx.allocate(length)
            };
            let Some(chunk) = chunk else {
                s.dropped += 1;
                s.show(&self.arena);
                continue;
            };
            if !zero_copy {
                let from = self.map.tx_offset() + at * CHUNK;
                let to = self.map.rx_offset() + chunk as usize * CHUNK;
                let from = self.arena.slice(from, length).expect("payload");
                from.copy_to(self.arena.slice(to, length).expect("room"))
                    .expect("copy");
            }
            s.outstanding.push(chunk);
            s.delivered += 1;
            let entry = RxDescriptor {
                chunk,
                length: descriptor.length,
                class: descriptor.class.into(),
                sender,
                sequence,
                send_time_ns: 1_000 + sequence as i64,
            };
            assert!(s.rx.push(entry).expect("receive ring"), "receive ring full");
            s.show(&self.arena);
            if s.bell.ring() == Wake::Fd
                && let Some(notify) = &s.notify
            {
                let _ = rustix::net::send(notify, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
        }
        self.let_go(descriptor.chunk, outcome);
    }

    fn let_go(&mut self, chunk: u32, outcome: Outcome) {
        let (holders, source, token) = &mut self.held[chunk as usize];
        *holders = holders.checked_sub(1).expect("released, but not held");
        if *holders > 0 {
            return;
        }
        let s = self.sources[*source]
            .as_mut()
            .expect("the source of a held message is open");
        let completion = Completion {
            chunk,
            token: *token,
            outcome: outcome as u32,
            departed_ns_low: 0,
        };
        assert!(
            s.completions.stage(completion).expect("completion ring"),
            "completion ring full"
        );
    }

    fn releases(&mut self) -> bool {
        let mut worked = false;
        for sink in 0..self.sinks.len() {
            while let Some(s) = &mut self.sinks[sink]
                && let Some(chunk) = s.release.pop().expect("release ring")
            {
                worked = true;
                s.release.release();
                let at = s.outstanding.iter().position(|&held| held == chunk);
                s.outstanding
                    .swap_remove(at.expect("released, but not received"));
                self.take_back(chunk);
            }
        }
        worked
    }

    fn take_back(&mut self, chunk: u32) {
        if chunk & TX_REGION == 0 {
            self.rx.free(chunk).expect("released, but not received");
        } else {
            self.let_go(chunk & !TX_REGION, Outcome::Sent);
        }
    }

    /// So many messages of a source are with its sinks.
    pub fn show_given(&mut self, source: usize, count: u64) {
        let source = self.sources[source].as_mut().expect("source");
        source.given = count;
        let word = self.arena.atomic_u64(source.block.given());
        word.expect("a word").store(count, Ordering::Release);
    }

    /// Nobody listens to a source but the sinks of its rings of this epoch.
    pub fn show_alone(&self, source: usize, epoch: u16) {
        let source = self.sources[source].as_ref().expect("source");
        let word = self.arena.atomic_u64(source.block.listeners());
        let alone = u64::from(epoch) << 32;
        word.expect("a word").store(alone, Ordering::Release);
    }

    /// Says something unasked.
    pub fn tell(&self, message: Reply, descriptors: &[std::os::fd::BorrowedFd<'_>]) {
        reply(&self.socket, 0, message, descriptors);
    }

    /// Whether a thread sleeps on a sink.
    pub fn sleeps(&self, sink: usize) -> bool {
        let sink = self.sinks[sink].as_ref().expect("sink");
        let bell = self.arena.atomic_u32(sink.block.bell()).expect("bell");
        bell.load(Ordering::Relaxed) == takt_shm::doorbell::SLEEPING
    }

    /// The next descriptor of a source, taken from its ring and put to its sinks as usual.
    pub fn peek(&mut self, source: usize) -> TxDescriptor {
        let s = self.sources[source].as_mut().expect("source");
        let descriptor = s.tx.pop().expect("transmit ring").expect("a descriptor");
        let channel = s.channel;
        self.forward(source, channel, &descriptor, false, 0, 0);
        descriptor
    }

    /// Messages that the application holds or has waiting.
    pub fn outstanding(&mut self) -> usize {
        self.releases();
        self.sinks
            .iter()
            .flatten()
            .map(|sink| sink.outstanding.len())
            .sum()
    }
}

/// A failure for tests.
pub fn failure(code: ErrorCode, text: &str) -> Failure {
    Failure::new(code, text)
}

/// Whether an event loop would find the descriptor readable now.
pub fn readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
}
