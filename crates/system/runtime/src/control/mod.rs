//! The control thread: everything that is not the data path.
//!
//! It accepts applications, answers their requests, watches their processes, speaks the peering
//! protocol, keeps the lanes' tables up to date and answers operators. It may block, allocate and lock;
//! lanes never wait for it.

mod account;
mod credentials;
mod host;
mod interests;
mod listener;
mod log_budget;
mod networks;
mod quality;
mod reaper;
mod routes;
mod schedules;
mod serve;
mod session;
mod start;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
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
use crate::peering::keys::{PeerConfig, Security};
use crate::peering::message::LaneAnnouncement;
use crate::peering::message::Subscription;
use crate::peering::{AcceptNet, Change, Effects, HELLO_EVERY, Peering};
use crate::policy::{MappingPolicy, Policy};
use crate::status::{
    ChannelStatus, DatapathStatus, LaneStatus, ListenerStatus, NodeStatus, PeerStatus, PortStatus,
    SessionStatus, StreamStatus, TenantStatus,
};

pub use crate::config::ListenerConfig;
use interests::{Interests, Sources};
pub use listener::ListenError;
use listener::Listener;
pub use networks::StationError;
use reaper::Reaper;
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
/// Datagrams of the peering protocol taken in one turn of the loop.
const PEERING_BURST: usize = 64;
/// Questions of operators answered in one turn.
const JOB_BURST: usize = 64;
/// Events of lanes taken in one turn.
const EVENT_BURST: usize = 1024;
/// How long applications are served in one turn before peers, operators and what is due are looked at.
const SERVE_FOR: Duration = Duration::from_millis(5);
/// Applications with news that are taken note of at a time.
const READY: usize = 64;
/// How often a lane that was asked is looked at for its answer.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

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
    /// Some application: which of them, `strangers` says.
    Strangers,
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
            Token::Strangers => (5, 0),
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
            5 => Token::Strangers,
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
    /// Listeners, sessions and their processes: an epoll instance of their own, so that however many of them
    /// have news, the others in `epoll` are seen in every turn.
    strangers: OwnedFd,
    /// Those that had news and are still to be served, in turn.
    ready: VecDeque<Token>,
    reaper: Reaper,
    wake: Arc<OwnedFd>,
    events: Receiver<Event>,
    jobs: Receiver<Job>,
    lanes: Vec<LaneInfo>,
    datapaths: Vec<(DatapathKind, Capabilities)>,
    unavailable: Vec<(String, String)>,
    socket: UdpSocket,
    peering: Peering,
    routes: Routes,
    interests: Interests,
    sources: Sources,
    next_progress: Duration,
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
    /// Sinks have come or gone since peers were last told which channels are wanted.
    wants_changed: std::collections::BTreeSet<u32>,
    /// Sinks that their lanes deliver to, whose applications are still to be told: session and sink.
    opened_sinks: Vec<(u32, usize)>,
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
    lanes: Arc<[LaneHandle]>,
}

/// What did not answer in time: it hangs, or its core is somebody else's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unresponsive {
    /// The runtime has stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The control thread.
    #[error("the control thread has not answered for {0:?}")]
    Control(Duration),
    /// These lanes.
    #[error("lanes {lanes:?} have not answered for {within:?}")]
    Lanes {
        /// Their numbers.
        lanes: Vec<usize>,
        /// How long they had.
        within: Duration,
    },
}

/// The runtime has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the runtime has stopped")]
pub struct Stopped;

/// A peer cannot be authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyMissing {
    /// It has no key, and there is no group key.
    #[error(
        "peer {0} has no key: give its `key` (`takt key show` there tells it), configure a group key on all nodes (`security.group_key_file`), or set `security.protection = \"none\"`"
    )]
    Peer(SocketAddr),
    /// It has a key, but this node has none.
    #[error(
        "peer {0} has a key, but this node has none to answer with: configure `security.key_file` (`takt key generate` makes it)"
    )]
    Node(SocketAddr),
    /// Peers are accepted, and there is no group key.
    #[error(
        "peers are accepted from networks without a group key: configure `security.group_key_file` on all nodes, or set `security.protection = \"none\"`"
    )]
    Accept,
}

impl KeyMissing {
    /// Whether a peer can be authenticated.
    ///
    /// # Errors
    /// Which key is missing.
    pub fn check(security: &Security, peer: &PeerConfig) -> Result<(), Self> {
        match peer.key {
            _ if !security.is_on() => Ok(()),
            None if security.group.is_none() => Err(Self::Peer(peer.address)),
            Some(_) if security.node.is_none() => Err(Self::Node(peer.address)),
            _ => Ok(()),
        }
    }

    /// Whether all peers of a configuration can be authenticated.
    ///
    /// # Errors
    /// Which key is missing first.
    pub fn check_all(config: &Config) -> Result<(), Self> {
        let security = &config.security;
        if security.is_on() && !config.accept.is_empty() && security.group.is_none() {
            return Err(Self::Accept);
        }
        let mut peers = config.peers.iter();
        peers.try_for_each(|peer| Self::check(security, peer))
    }
}

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

    /// Asks the control thread and every lane whether they are at work, and waits for their answers. Returns as
    /// soon as all have answered.
    ///
    /// # Errors
    /// [`Unresponsive`]: who has not answered `within` this time.
    pub fn heartbeat(&self, within: Duration) -> Result<(), Unresponsive> {
        let deadline = Instant::now() + within;
        let asked: Vec<u64> = self.lanes.iter().map(LaneHandle::ask).collect();
        let (sender, receiver) = channel();
        let job: Job = Box::new(move |_| {
            // The asker may have given up.
            let _ = sender.send(());
        });
        self.jobs.send(job).map_err(|_| Stopped)?;
        self.wake();
        match receiver.recv_timeout(within) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Stopped.into()),
            Err(RecvTimeoutError::Timeout) => return Err(Unresponsive::Control(within)),
        }
        loop {
            let silent = self.lanes.iter().zip(&asked).enumerate();
            let silent = silent.filter(|(_, (lane, asked))| lane.answered() < **asked);
            let lanes: Vec<usize> = silent.map(|(at, _)| at).collect();
            if lanes.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Unresponsive::Lanes { lanes, within });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
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
        self.ask(|c| {
            let mut peers = c.peering.status(c.now());
            for peer in &mut peers {
                // Whoever sent it chose it.
                peer.name = takt_session::printable(&peer.name);
            }
            peers
        })
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

    /// Adds a peer; false if it is there already. A peer without a key has the group's.
    ///
    /// # Errors
    /// [`Stopped`]; inside, which key is missing.
    pub fn add_peer(&self, peer: PeerConfig) -> Result<Result<bool, KeyMissing>, Stopped> {
        self.ask(move |c| {
            KeyMissing::check(&c.config.security, &peer)?;
            let mut effects = Effects::default();
            let added = c.peering.add(peer, c.now(), &mut effects);
            c.apply(effects);
            c.tick();
            Ok(added)
        })
    }

    /// Removes a peer; false if there is none.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn remove_peer(&self, address: SocketAddr) -> Result<bool, Stopped> {
        self.ask(move |c| {
            let mut effects = Effects::default();
            let removed = c.peering.remove(address, &mut effects);
            c.apply(effects);
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
            c.admit_embedded(ours, policy)?;
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
        let mut events: Vec<epoll::Event> = Vec::with_capacity(READY);
        while !self.stop.load(Ordering::Acquire) {
            let wait = match self.ready.is_empty() {
                true => self
                    .next_tick
                    .saturating_sub(self.now())
                    .max(Duration::from_millis(1)),
                false => Duration::ZERO,
            };
            if let Err(error) = wait_for(&self.epoll, &mut events, wait) {
                tracing::error!(%error, "control thread cannot wait for events");
                break;
            }
            for token in tokens(&events) {
                match token {
                    Token::Wake => self.jobs(),
                    Token::Peering => self.receive_peering(),
                    Token::Strangers => self.look_at_strangers(),
                    Token::Listener(_) | Token::Session(_) | Token::Process(_) => {}
                }
            }
            self.lane_events();
            if self.now() >= self.next_tick {
                self.tick();
            }
            self.serve_strangers();
        }
        self.say_goodbye();
        for listener in self.listeners.values() {
            listener.unlink();
        }
        for (id, session) in std::mem::take(&mut self.sessions) {
            serve::end_connection(&session.socket, &Failure::from(ErrorCode::ShuttingDown));
            tracing::debug!(session = id, "told that the runtime stops");
            self.reaper.release(session.tenant, session);
        }
        for (id, listener) in std::mem::take(&mut self.listeners) {
            self.reaper.release(id, listener);
        }
    }

    fn jobs(&mut self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        if self.host.take_changed() {
            let soonest = self
                .next_follow
                .saturating_sub(FOLLOW_EVERY - FOLLOW_SOONEST);
            self.next_follow = self.next_follow.min(soonest);
            self.next_tick = self.next_tick.min(self.next_follow);
        }
        for _ in 0..JOB_BURST {
            match self.jobs.try_recv() {
                Ok(job) => job(self),
                Err(_) => return,
            }
        }
        self.look_again();
    }

    /// There is more for [`Token::Wake`] than one turn takes.
    fn look_again(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Notes which applications have news, unless those noted before are still to be served.
    fn look_at_strangers(&mut self) {
        if !self.ready.is_empty() {
            return;
        }
        let mut events: Vec<epoll::Event> = Vec::with_capacity(READY);
        match wait_for(&self.strangers, &mut events, Duration::ZERO) {
            Ok(()) => self.ready.extend(tokens(&events)),
            Err(error) => tracing::error!(%error, "cannot tell which applications have news"),
        }
    }

    /// Serves applications in turn, for a while.
    fn serve_strangers(&mut self) {
        let until = self.now() + SERVE_FOR;
        while let Some(token) = self.ready.pop_front() {
            match token {
                Token::Listener(id) => self.accept(id),
                Token::Session(id) => self.serve(id),
                Token::Process(id) => self.end_session(id, None),
                Token::Wake | Token::Peering | Token::Strangers => {}
            }
            if self.now() >= until {
                break;
            }
        }
        self.publish_changes();
    }

    fn watch(&self, fd: impl AsFd, token: Token) -> std::io::Result<()> {
        let epoll = match token {
            Token::Wake | Token::Peering | Token::Strangers => &self.epoll,
            Token::Listener(_) | Token::Session(_) | Token::Process(_) => &self.strangers,
        };
        epoll::add(
            epoll,
            fd,
            epoll::EventData::new_u64(token.pack()),
            epoll::EventFlags::IN,
        )?;
        Ok(())
    }

    fn lane_events(&mut self) {
        for taken in 0.. {
            if taken == EVENT_BURST {
                self.look_again();
                break;
            }
            let Ok(event) = self.events.try_recv() else {
                break;
            };
            match event {
                Event::SessionFailed { session, failure } => {
                    self.end_session(session as u32, Some(failure))
                }
                Event::SessionRemoved(removed) => self.session_removed(removed),
                Event::SourceClosed { session, source } => {
                    self.source_closed(session as u32, source)
                }
                Event::SourceOpened {
                    lane,
                    channel,
                    number,
                    left,
                } => self.sources.open(lane, number, channel, left),
                Event::SourceEnded { lane, number } => self.sources.end(lane, number),
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
        self.publish_changes();
        self.check_drain();
    }

    fn receive_peering(&mut self) {
        let mut buffer = [0u8; 2048];
        let mut effects = Effects::default();
        for _ in 0..PEERING_BURST {
            match self.socket.recv_from(&mut buffer) {
                Ok((length, source)) => {
                    let now = self.now();
                    self.peering
                        .receive(source, &buffer[..length], now, &mut effects);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                // A peer's port that is not open yet answers by ICMP: nothing was received.
                Err(_) => {}
            }
        }
        self.apply(effects);
    }

    fn tick(&mut self) {
        let mut effects = Effects::default();
        let now = self.now();
        if now >= self.next_progress {
            self.next_progress = now + HELLO_EVERY;
            self.peering
                .announce(&self.sources.progress(), &mut effects);
        }
        self.next_tick = self.peering.tick(now, &mut effects);
        self.next_tick = self.next_tick.min(self.next_progress);
        self.apply(effects);
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
        self.reaper.tidy();
        self.resume_listeners(now);
        if let Some(drain) = &self.drain {
            self.next_tick = self
                .next_tick
                .min(drain.deadline)
                .min(now + Duration::from_millis(10));
        }
        self.check_drain();
    }

    /// Passes changes on to the lanes and sends datagrams.
    fn apply(&mut self, effects: Effects) {
        // Lanes first: who is told of our wishes may answer with messages at once.
        for change in effects.changes {
            match &change {
                Change::Lanes { peer, lanes, .. } => {
                    tracing::info!(%peer, lanes = lanes.len(), "peer up");
                }
                Change::Gone { peer, clean } => tracing::info!(
                    %peer,
                    "{}",
                    if *clean { "peer left" } else { "peer gone: messages behind the last that it told of may be lost" }
                ),
                _ => {}
            }
            let commands = self.routes.change(change, &self.lanes);
            self.command_all(commands);
        }
        for (destination, bytes) in effects.datagrams {
            // A failure is a lost datagram: the protocol repeats.
            if let Err(error) = self.socket.send_to(&bytes, destination) {
                tracing::debug!(%destination, %error, "cannot send a peering message");
            }
        }
    }

    /// Tells peers how far the sources are, and goodbye.
    fn say_goodbye(&mut self) {
        let mut effects = Effects::default();
        self.peering
            .announce(&self.sources.progress(), &mut effects);
        self.peering.leave(&mut effects);
        self.apply(effects);
    }

    fn command_all(&self, commands: Vec<(usize, Command)>) {
        for (lane, command) in commands {
            if let Some(lane) = self.lanes.get(lane) {
                lane.handle.send(command);
            }
        }
    }

    /// Tells who asked for sinks that they have them, and peers and sibling lanes which channels are wanted here:
    /// once for all that has changed in a turn.
    fn publish_changes(&mut self) {
        for id in std::mem::take(&mut self.wants_changed) {
            self.publish_subscriptions(id);
        }
        for (id, sink) in std::mem::take(&mut self.opened_sinks) {
            self.answer_opened(id, sink);
        }
    }

    /// Tells peers and sibling lanes what has changed in what a session wants.
    fn publish_subscriptions(&mut self, id: u32) {
        let mut wanted = std::collections::BTreeSet::new();
        if let Some(session) = self.sessions.get(&id).filter(|s| !s.ending) {
            let sinks = session.sinks.iter().flatten().filter(|s| !s.closing);
            wanted.extend(sinks.filter_map(|sink| {
                Some(Subscription {
                    channel: sink.channel?.0,
                    lane: session.lane as u8,
                })
            }));
        }
        let now = self.now();
        let mut effects = Effects::default();
        for (entry, wanted) in self.interests.replace(id, wanted) {
            let commands = self.routes.want(entry, wanted);
            self.command_all(commands);
            self.peering.want(entry, wanted, now, &mut effects);
        }
        self.apply(effects);
        self.next_tick = now;
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
        self.say_goodbye();
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
            protection: self.config.security.protection,
            key: self.config.security.node.as_ref().map(|key| key.public()),
            group: self.config.security.group.is_some(),
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
            .map(|l| {
                let held = l.account.usage();
                ListenerStatus {
                    path: l.config.path.clone(),
                    mode: l.config.mode,
                    policy: (*l.policy).clone(),
                    sessions: held.sessions,
                    memory: held.memory,
                    endpoints: held.endpoints,
                    descriptors: held.descriptors,
                    refused: l.refused,
                }
            })
            .collect()
    }
}

/// Waits for events of `epoll`, or for `within`.
fn wait_for(
    epoll: &OwnedFd,
    events: &mut Vec<epoll::Event>,
    within: Duration,
) -> Result<(), rustix::io::Errno> {
    let timeout = rustix::time::Timespec {
        tv_sec: within.as_secs() as i64,
        tv_nsec: i64::from(within.subsec_nanos()),
    };
    events.clear();
    let room = rustix::buffer::spare_capacity(events);
    match epoll::wait(epoll, room, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whose news these are.
fn tokens(events: &[epoll::Event]) -> impl Iterator<Item = Token> {
    events.iter().filter_map(|event| {
        let data = event.data;
        Token::unpack(data.u64())
    })
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
