//! The control thread: everything that is not the data path.
//!
//! It accepts applications, answers their requests, watches their processes, speaks the peering
//! protocol, keeps the lanes' tables up to date and answers operators. It may block, allocate and lock;
//! lanes never wait for it.

mod host;
mod listener;
mod networks;
mod quality;
mod routes;
mod schedules;
mod serve;
mod session;
mod start;

use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use takt_clock::{Clock, ClockStatus};
use takt_datapath::{Capabilities, DatapathKind};
use takt_session::{ErrorCode, Failure};

use crate::config::Config;
use crate::counters::{
    ChannelCounters, ChannelReading, DepartureCounters, LaneCounters, PortTraffic, SessionReading,
};
use crate::lane::{Command, Event, LaneHandle};
use crate::peering::message::LaneAnnouncement;
use crate::peering::{AcceptNet, Change, Outbox, Peering};
use crate::policy::{MappingPolicy, Policy};
use crate::status::{
    ChannelStatus, DatapathStatus, LaneStatus, ListenerStatus, NodeStatus, PeerStatus, PortStatus,
    SessionStatus, StreamStatus, TenantStatus,
};

pub use crate::config::ListenerConfig;
pub use listener::ListenError;
use listener::Listener;
pub use networks::StationError;
use routes::Routes;
pub use schedules::ScheduleError;
use session::Session;
pub use start::{InlineLane, StartError, Unavailable};

/// A connection that has not attached after this long is closed.
const ATTACH_WITHIN: Duration = Duration::from_secs(5);
/// How often the host's tables are looked at, where there is a network.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// How soon again, where the kernel reports changes.
const FOLLOW_SOONEST: Duration = Duration::from_millis(50);
/// Datagrams of the peering protocol taken in one go.
const PEERING_BURST: usize = 256;

/// A lane as the control thread knows it.
struct LaneInfo {
    handle: LaneHandle,
    counters: Arc<LaneCounters>,
    ports: Vec<PortInfo>,
    announcement: LaneAnnouncement,
    sessions: usize,
}

struct PortInfo {
    kind: DatapathKind,
    local: SocketAddr,
    traffic: Arc<PortTraffic>,
    departures: Option<Arc<DepartureCounters>>,
    /// Connects lanes of this node.
    between_lanes: bool,
}

/// Whose news a readable descriptor brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Wake,
    Peering,
    Listener(u32),
    Session(u32),
    Process(u32),
}

impl Token {
    fn pack(self) -> u64 {
        let (kind, value) = match self {
            Token::Wake => (0, 0),
            Token::Peering => (1, 0),
            Token::Listener(value) => (2, value),
            Token::Session(value) => (3, value),
            Token::Process(value) => (4, value),
        };
        (kind << 32) | u64::from(value)
    }

    fn unpack(packed: u64) -> Option<Self> {
        let value = packed as u32;
        Some(match packed >> 32 {
            0 => Token::Wake,
            1 => Token::Peering,
            2 => Token::Listener(value),
            3 => Token::Session(value),
            4 => Token::Process(value),
            _ => return None,
        })
    }
}

/// The control thread's state. Operators reach it through [`RuntimeHandle`].
pub struct Control {
    config: Config,
    incarnation: u64,
    started: Instant,
    clock: Arc<dyn Clock>,
    /// How good it is, as last told.
    clock_status: Option<ClockStatus>,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    events: Receiver<Event>,
    jobs: Receiver<Job>,
    lanes: Vec<LaneInfo>,
    datapaths: Vec<(DatapathKind, Capabilities)>,
    unavailable: Vec<(String, String)>,
    socket: UdpSocket,
    peering: Peering,
    routes: Routes,
    networks: Vec<networks::Network>,
    /// The kernel's tables that they follow.
    host: host::Host,
    /// Questions about ways that tenants have asked.
    questions: u64,
    listeners: HashMap<u32, Listener>,
    next_listener: u32,
    /// The last number given to a tenant that came by no listener.
    next_without: u32,
    sessions: HashMap<u32, Session>,
    next_session: u32,
    schedules: HashMap<DatapathKind, schedules::Installed>,
    /// Per tenant: sessions that have ended, and what they counted.
    ended: BTreeMap<String, (u64, SessionReading)>,
    /// Per channel: the counters of each lane that knows it.
    channels: BTreeMap<u64, Vec<(usize, Arc<ChannelCounters>)>>,
    /// What channels counted on lanes that have forgotten them, while others or sessions remain.
    next_tick: Duration,
    next_follow: Duration,
    drain: Option<Drain>,
    stop: Arc<AtomicBool>,
}

struct Drain {
    deadline: Duration,
    done: Sender<()>,
}

/// Work for the control thread.
type Job = Box<dyn FnOnce(&mut Control) + Send>;

/// A running runtime. Dropping it stops it at once; [`RuntimeHandle::drain`] first for a clean exit.
pub struct Runtime {
    handle: RuntimeHandle,
    stop: Arc<AtomicBool>,
    lanes: Vec<LaneHandle>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Runtime {
    /// For operators.
    pub fn handle(&self) -> &RuntimeHandle {
        &self.handle
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for lane in &self.lanes {
            lane.wake();
        }
        self.handle.wake();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

/// Asks the control thread; cheap to clone.
#[derive(Clone)]
pub struct RuntimeHandle {
    jobs: Sender<Job>,
    wake: Arc<OwnedFd>,
}

/// The runtime has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the runtime has stopped")]
pub struct Stopped;

impl RuntimeHandle {
    fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Runs `job` on the control thread and waits for its answer.
    fn ask<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Control) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let (sender, receiver) = channel();
        let job: Job = Box::new(move |control| {
            // The asker may have gone.
            let _ = sender.send(job(control));
        });
        self.jobs.send(job).map_err(|_| Stopped)?;
        self.wake();
        receiver.recv().map_err(|_| Stopped)
    }

    /// The runtime as a whole.
    ///
    /// # Errors
    /// [`Stopped`], as of every method here.
    pub fn status(&self) -> Result<NodeStatus, Stopped> {
        self.ask(|c| c.status())
    }

    /// All sessions.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn sessions(&self) -> Result<Vec<SessionStatus>, Stopped> {
        self.ask(|c| c.session_status())
    }

    /// All tenants that have or had sessions.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn tenants(&self) -> Result<Vec<TenantStatus>, Stopped> {
        self.ask(|c| c.tenant_status())
    }

    /// All channels in use.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn channels(&self) -> Result<Vec<ChannelStatus>, Stopped> {
        self.ask(|c| c.channel_status())
    }

    /// All peers.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn peers(&self) -> Result<Vec<PeerStatus>, Stopped> {
        self.ask(|c| c.peering.status(c.now()))
    }

    /// All datapaths, also those that are configured and not to be had.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn datapaths(&self) -> Result<Vec<DatapathStatus>, Stopped> {
        self.ask(|c| c.datapath_status())
    }

    /// All listening sockets.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn listeners(&self) -> Result<Vec<ListenerStatus>, Stopped> {
        self.ask(|c| c.listener_status())
    }

    /// Adds a peer; false if it is there already.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn add_peer(&self, address: SocketAddr) -> Result<bool, Stopped> {
        self.ask(move |c| {
            let added = c.peering.add(address, c.now());
            c.tick();
            added
        })
    }

    /// Removes a peer; false if there is none.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn remove_peer(&self, address: SocketAddr) -> Result<bool, Stopped> {
        self.ask(move |c| {
            let (mut outbox, mut changes) = (Outbox::new(), Vec::new());
            let removed = c.peering.remove(address, &mut outbox, &mut changes);
            c.apply(outbox, changes);
            removed
        })
    }

    /// Opens a listening socket, or changes the rights of the one at this path: sessions that come
    /// from then on get them; rates change for those that are there as well.
    ///
    /// # Errors
    /// [`Stopped`]; inside, why the socket cannot be opened.
    pub fn set_listener(&self, config: ListenerConfig) -> Result<Result<(), ListenError>, Stopped> {
        self.ask(move |c| c.set_listener(config))
    }

    /// Closes a listening socket; its sessions go on. False if there is none.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn remove_listener(&self, path: std::path::PathBuf) -> Result<bool, Stopped> {
        self.ask(move |c| c.remove_listener(&path))
    }

    /// Replaces the mapping policy for streams opened from now on, and the networks that are accepted.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn reload(&self, mapping: MappingPolicy, accept: Vec<AcceptNet>) -> Result<(), Stopped> {
        self.ask(move |c| {
            c.config.mapping = mapping;
            c.peering.set_accept(accept);
        })
    }

    /// Ends a session for a reason; false if there is none.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn end_session(&self, session: u64, reason: String) -> Result<bool, Stopped> {
        self.ask(move |c| match u32::try_from(session) {
            Ok(id) if c.sessions.get(&id).is_some_and(|s| !s.ending) => {
                c.end_session(id, Some(Failure::new(ErrorCode::Closed, reason)));
                true
            }
            _ => false,
        })
    }

    /// Attaches an application without a listening socket: the socket for its session. For the
    /// embedded form.
    ///
    /// # Errors
    /// [`Stopped`]; inside, the kernel's.
    pub fn connect(&self, policy: Policy) -> Result<std::io::Result<OwnedFd>, Stopped> {
        self.ask(move |c| {
            let (ours, theirs) = takt_session::transport::pair()?;
            c.admit(ours, Arc::new(policy), None)?;
            Ok(theirs)
        })
    }

    /// Leaves cleanly: takes no more applications, sends what they have emitted, tells them and the
    /// peers. Returns when that is done, or after `within`.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn drain(&self, within: Duration) -> Result<(), Stopped> {
        let (done, wait) = channel();
        self.ask(move |c| c.begin_drain(within, done))?;
        wait.recv().map_err(|_| Stopped)
    }
}

impl Control {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn run(mut self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        while !self.stop.load(Ordering::Acquire) {
            let wait = self
                .next_tick
                .saturating_sub(self.now())
                .max(Duration::from_millis(1));
            let timeout = rustix::time::Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: i64::from(wait.subsec_nanos()),
            };
            events.clear();
            let ready = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&timeout),
            );
            if let Err(error) = ready
                && error != rustix::io::Errno::INTR
            {
                tracing::error!(%error, "control thread cannot wait for events");
                break;
            }
            for event in &events {
                let data = event.data;
                if let Some(token) = Token::unpack(data.u64()) {
                    self.ready(token);
                }
            }
            self.lane_events();
            if self.now() >= self.next_tick {
                self.tick();
            }
        }
        let mut outbox = Outbox::new();
        self.peering.leave(&mut outbox);
        self.apply(outbox, Vec::new());
        for listener in self.listeners.values() {
            listener.unlink();
        }
        let ids: Vec<u32> = self.sessions.keys().copied().collect();
        for id in ids {
            self.say_ended(id, &Failure::from(ErrorCode::ShuttingDown));
        }
    }

    fn ready(&mut self, token: Token) {
        match token {
            Token::Wake => {
                let mut count = [0u8; 8];
                let _ = rustix::io::read(&*self.wake, &mut count);
                while let Ok(job) = self.jobs.try_recv() {
                    job(self);
                }
                if self.host.take_changed() {
                    let soonest = self
                        .next_follow
                        .saturating_sub(FOLLOW_EVERY - FOLLOW_SOONEST);
                    self.next_follow = self.next_follow.min(soonest);
                    self.next_tick = self.next_tick.min(self.next_follow);
                }
            }
            Token::Peering => self.receive_peering(),
            Token::Listener(id) => self.accept(id),
            Token::Session(id) => self.serve(id),
            Token::Process(id) => self.end_session(id, None),
        }
    }

    fn watch(&self, fd: impl AsFd, token: Token) -> std::io::Result<()> {
        epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(token.pack()),
            epoll::EventFlags::IN,
        )?;
        Ok(())
    }

    fn lane_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::SessionFailed { session, failure } => {
                    self.end_session(session as u32, Some(failure))
                }
                Event::SessionRemoved(removed) => self.forget_session(removed.id as u32),
                Event::SourceClosed {
                    session, source, ..
                } => self.source_closed(session as u32, source),
                Event::SourceOpened { .. } => {}
                Event::Readers {
                    session,
                    request,
                    count,
                } => self.readers_counted(session as u32, request, count),
                Event::SinkOpened { session, sink } => self.sink_opened(session as u32, sink),
                Event::SinkClosed { session, sink } => self.sink_closed(session as u32, sink),
                Event::ChannelOpened {
                    lane,
                    channel,
                    counters,
                } => {
                    self.channels
                        .entry(channel)
                        .or_default()
                        .push((lane, counters));
                }
                Event::ChannelClosed { lane, channel } => {
                    if let Some(lanes) = self.channels.get_mut(&channel) {
                        lanes.retain(|(known, _)| *known != lane);
                        if lanes.is_empty() {
                            self.channels.remove(&channel);
                        }
                    }
                }
            }
        }
        self.check_drain();
    }

    fn receive_peering(&mut self) {
        let mut buffer = [0u8; 2048];
        let (mut outbox, mut changes) = (Outbox::new(), Vec::new());
        for _ in 0..PEERING_BURST {
            match self.socket.recv_from(&mut buffer) {
                Ok((length, source)) => {
                    let now = self.now();
                    self.peering
                        .receive(source, &buffer[..length], now, &mut outbox, &mut changes);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                // A peer's port that is not open yet answers by ICMP: nothing was received.
                Err(_) => {}
            }
        }
        self.apply(outbox, changes);
    }

    fn tick(&mut self) {
        let (mut outbox, mut changes) = (Outbox::new(), Vec::new());
        let now = self.now();
        self.next_tick = self.peering.tick(now, &mut outbox, &mut changes);
        self.apply(outbox, changes);
        if self.follows_networks() {
            if now >= self.next_follow {
                self.follow_networks();
                self.next_follow = now + FOLLOW_EVERY;
            }
            self.next_tick = self.next_tick.min(self.next_follow);
        }
        let late: Vec<u32> = self
            .sessions
            .values()
            .filter(|s| s.arena.is_none() && !s.ending && now >= s.since + ATTACH_WITHIN)
            .map(|s| s.id as u32)
            .collect();
        for id in late {
            let text = format!("not attached within {} s", ATTACH_WITHIN.as_secs());
            self.end_session(id, Some(Failure::new(ErrorCode::TimedOut, text)));
        }
        self.end_overdue(now);
        if let Some(drain) = &self.drain {
            self.next_tick = self
                .next_tick
                .min(drain.deadline)
                .min(now + Duration::from_millis(10));
        }
        self.check_drain();
    }

    /// Sends datagrams and passes changes on to the lanes.
    fn apply(&mut self, outbox: Outbox, changes: Vec<Change>) {
        // Lanes first: who is told of our wishes may answer with messages at once.
        for change in changes {
            let commands = self.routes.change(&change, &self.lanes);
            if let Change::Lanes { peer, lanes } = &change {
                tracing::info!(%peer, lanes = lanes.len(), "{}", if lanes.is_empty() { "peer gone" } else { "peer up" });
            }
            self.command_all(commands);
        }
        for (destination, bytes) in outbox {
            // A failure is a lost datagram: the protocol repeats.
            if let Err(error) = self.socket.send_to(&bytes, destination) {
                tracing::debug!(%destination, %error, "cannot send a peering message");
            }
        }
    }

    fn command_all(&self, commands: Vec<(usize, Command)>) {
        for (lane, command) in commands {
            if let Some(lane) = self.lanes.get(lane) {
                lane.handle.send(command);
            }
        }
    }

    /// Tells peers and sibling lanes which channels are wanted here.
    fn publish_subscriptions(&mut self) {
        let mut wanted = std::collections::BTreeSet::new();
        for session in self.sessions.values().filter(|s| !s.ending) {
            for sink in session.sinks.iter().flatten().filter(|s| !s.closing) {
                wanted.extend(
                    sink.channel
                        .map(|channel| crate::peering::message::Subscription {
                            channel: channel.0,
                            lane: session.lane as u16,
                        }),
                );
            }
        }
        let commands = self.routes.subscribe(&wanted, self.lanes.len());
        self.command_all(commands);
        let mut outbox = Outbox::new();
        self.peering.subscribe(wanted, self.now(), &mut outbox);
        self.apply(outbox, Vec::new());
        self.next_tick = self.now();
    }

    fn begin_drain(&mut self, within: Duration, done: Sender<()>) {
        self.drain = Some(Drain {
            deadline: self.now() + within,
            done,
        });
        let paths: Vec<_> = self
            .listeners
            .values()
            .map(|l| l.config.path.clone())
            .collect();
        for path in paths {
            self.remove_listener(&path);
        }
        // What is in the rings of a source that closes is still sent.
        for session in self.sessions.values_mut() {
            for (at, source) in session.sources.iter_mut().enumerate() {
                if let Some(source) = source.as_mut().filter(|s| !s.closing) {
                    source.closing = true;
                    self.lanes[session.lane].handle.send(Command::CloseSource {
                        session: session.id,
                        source: at,
                    });
                }
            }
        }
        self.next_tick = self.now();
        self.check_drain();
    }

    fn check_drain(&mut self) {
        let Some(drain) = &self.drain else { return };
        let busy = self
            .sessions
            .values()
            .filter(|s| !s.ending || s.leaving_until.is_some())
            .any(|s| s.sources.iter().any(Option::is_some));
        if busy && self.now() < drain.deadline {
            return;
        }
        let ids: Vec<u32> = self
            .sessions
            .values()
            .filter(|s| !s.ending)
            .map(|s| s.id as u32)
            .collect();
        for id in ids {
            self.end_session(id, Some(Failure::from(ErrorCode::ShuttingDown)));
        }
        let mut outbox = Outbox::new();
        self.peering.leave(&mut outbox);
        self.apply(outbox, Vec::new());
        if let Some(drain) = self.drain.take() {
            // Whoever asked may have gone.
            let _ = drain.done.send(());
        }
    }

    fn status(&self) -> NodeStatus {
        NodeStatus {
            name: self.config.name.clone(),
            incarnation: self.incarnation,
            control_address: self
                .socket
                .local_addr()
                .unwrap_or_else(|_| SocketAddr::new(self.config.address, self.config.port)),
            uptime_seconds: self.started.elapsed().as_secs(),
            draining: self.drain.is_some(),
            lanes: self
                .lanes
                .iter()
                .enumerate()
                .map(|(lane, info)| LaneStatus {
                    lane,
                    counters: info.counters.read(),
                    sessions: info.sessions,
                    ports: info
                        .ports
                        .iter()
                        .map(|p| PortStatus {
                            datapath: p.kind.0,
                            local: p.local,
                            counters: p.traffic.read(),
                        })
                        .collect(),
                })
                .collect(),
            peering: self.peering.counters(),
        }
    }

    fn datapath_status(&self) -> Vec<DatapathStatus> {
        let there = self
            .datapaths
            .iter()
            .map(|(kind, capabilities)| DatapathStatus {
                name: kind.0.into(),
                state: Ok(capabilities.clone()),
            });
        let missing = self.unavailable.iter().map(|(name, why)| DatapathStatus {
            name: name.clone(),
            state: Err(why.clone()),
        });
        there.chain(missing).collect()
    }

    fn session_status(&self) -> Vec<SessionStatus> {
        let mut all: Vec<SessionStatus> = self
            .sessions
            .values()
            .filter(|s| s.arena.is_some() && !s.ending)
            .map(session_status)
            .collect();
        all.sort_by_key(|s| s.session);
        all
    }

    fn tenant_status(&self) -> Vec<TenantStatus> {
        let mut all: BTreeMap<&str, TenantStatus> = BTreeMap::new();
        let entry = |identity: &str| TenantStatus {
            identity: identity.to_owned(),
            sessions: 0,
            ended: 0,
            counters: SessionReading::default(),
        };
        for (identity, (ended, counters)) in &self.ended {
            let tenant = all.entry(identity).or_insert_with(|| entry(identity));
            tenant.ended += ended;
            tenant.counters += *counters;
        }
        for session in self.sessions.values().filter(|s| s.arena.is_some()) {
            let identity = session.policy.identity.as_str();
            let tenant = all.entry(identity).or_insert_with(|| entry(identity));
            tenant.sessions += 1;
            tenant.counters += session.counters.read();
        }
        all.into_values().collect()
    }

    fn channel_status(&self) -> Vec<ChannelStatus> {
        let mut all: BTreeMap<u64, ChannelStatus> = BTreeMap::new();
        let entry = |channel: u64| ChannelStatus {
            channel,
            sources: 0,
            sinks: 0,
            peers: self.routes.peers_of(channel),
            counters: ChannelReading::default(),
        };
        for (&channel, lanes) in &self.channels {
            let status = all.entry(channel).or_insert_with(|| entry(channel));
            for (_, counters) in lanes {
                status.counters += counters.read();
            }
        }
        for session in self.sessions.values().filter(|s| !s.ending) {
            for channel in session.sources.iter().flatten().filter_map(|e| e.channel) {
                all.entry(channel.0)
                    .or_insert_with(|| entry(channel.0))
                    .sources += 1;
            }
            for channel in session.sinks.iter().flatten().filter_map(|e| e.channel) {
                all.entry(channel.0)
                    .or_insert_with(|| entry(channel.0))
                    .sinks += 1;
            }
        }
        all.into_values().collect()
    }

    fn listener_status(&self) -> Vec<ListenerStatus> {
        self.listeners
            .values()
            .map(|l| ListenerStatus {
                path: l.config.path.clone(),
                mode: l.config.mode,
                policy: (*l.policy).clone(),
                sessions: self
                    .sessions
                    .values()
                    .filter(|s| Arc::ptr_eq(&s.policy, &l.policy))
                    .count(),
                refused: l.refused,
            })
            .collect()
    }
}

fn session_status(session: &Session) -> SessionStatus {
    let channels = |list: &[Option<session::Endpoint>], stream: usize| {
        list.iter()
            .flatten()
            .filter(|e| e.stream as usize == stream)
            .filter_map(|e| Some(e.channel?.0))
            .collect()
    };
    SessionStatus {
        session: session.id,
        name: session.name.clone(),
        identity: session.policy.identity.clone(),
        pid: session.pid,
        uid: session.uid,
        lane: session.lane,
        arena_bytes: session.arena.as_ref().map_or(0, |a| a.map.total()),
        streams: session
            .streams
            .iter()
            .enumerate()
            .filter_map(|(at, stream)| {
                stream.as_ref().map(|stream| StreamStatus {
                    stream: at as u32,
                    qos: stream.qos,
                    datapath: stream.datapath.clone(),
                    warning: stream.warning.clone(),
                    sources: channels(&session.sources, at),
                    sinks: channels(&session.sinks, at),
                })
            })
            .collect(),
        counters: session.counters.read(),
    }
}
