//! The control thread: everything that is not the data path.
//!
//! It accepts applications, answers their requests, watches their processes, speaks the peering
//! protocol, keeps the lanes' tables up to date and answers operators. It may block, allocate and lock;
//! lanes never wait for it.

mod account;
pub mod admission;
mod balancing;
mod captures;
mod credentials;
mod direct;
mod drain;
mod ended;
mod ends;
mod events;
mod faults;
mod handle;
mod host;
mod interests;
mod listener;
mod local;
mod log_budget;
mod mapping;
mod moves;
mod network;
mod networks;
mod quality;
mod questions;
mod reaper;
mod rings;
mod routes;
mod schedules;
pub mod scout;
mod serve;
mod session;
mod start;
mod status;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use takt_clock::{Clock, ClockStatus};
use takt_datapath::{Capabilities, DatapathKind, Resolver};
use takt_session::{ErrorCode, Failure};

use crate::config::{Config, KeptSchedule};
use crate::counters::{ChannelCounters, DepartureCounters, LaneCounters, PortTraffic};
use crate::delays::DelayCounters;
use crate::ids::SessionId;
use crate::lane::{Command, Event, LaneHandle};
use crate::peering::keys::Numbers;
use crate::peering::message::LaneAnnouncement;
use crate::peering::message::Subscription;
use crate::peering::scout::SCOUT_EVERY;
use crate::peering::{Change, Effects, HELLO_EVERY, Peering};
use crate::slots::SinkSlot;

pub use crate::config::ListenerConfig;
pub use balancing::Stays;
use drain::Drain;
use events::{Token, tokens, wait_for};
use faults::Faults;
pub use handle::{Runtime, RuntimeHandle, Stopped, Unresponsive};
use interests::{Interests, Sources};
pub use listener::ListenError;
use listener::Listener;
pub use mapping::MapChannelError;
use networks::Networks;
pub use networks::StationError;
use reaper::Reaper;
use routes::Routes;
pub use schedules::ScheduleError;
use session::{Session, SessionIds};
pub use start::{InlineLane, StartError, Unavailable};

/// A connection that has not attached after this long is closed.
const ATTACH_WITHIN: Duration = Duration::from_secs(5);
/// How often the host's tables are looked at, where there is a network.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// How soon again, where the kernel reports changes.
const FOLLOW_SOONEST: Duration = Duration::from_millis(50);
/// Announcements of nodes on the link taken in one turn of the loop.
const PEERING_BURST: usize = 64;
/// Questions of operators answered in one turn.
const JOB_BURST: usize = 64;
/// Events of lanes taken in one turn.
const EVENT_BURST: usize = 1024;
/// How long applications are served in one turn before peers, operators and what is due are looked at; and peers are heard.
const SERVE_FOR: Duration = Duration::from_millis(5);
/// The control thread's name.
const CONTROL_THREAD: &str = "takt-control";
/// Applications with news that are taken note of at a time.
const READY: usize = 64;
/// A lane as the control thread knows it.
struct LaneInfo {
    handle: LaneHandle,
    counters: Arc<LaneCounters>,
    delays: Arc<DelayCounters>,
    ports: Vec<PortInfo>,
    announcement: LaneAnnouncement,
    sessions: usize,
}

impl LaneInfo {
    /// Which of its ports carries a datapath.
    fn port_of(&self, kind: DatapathKind) -> Option<usize> {
        let mut ports = self.ports.iter();
        ports.position(|port| port.kind == kind && !port.between_lanes)
    }
}

struct PortInfo {
    kind: DatapathKind,
    local: SocketAddr,
    traffic: Arc<PortTraffic>,
    departures: Option<Arc<DepartureCounters>>,
    /// Exchanges datagrams with ports of other technologies that do as well.
    speaks_udp: bool,
    /// Connects lanes of this node.
    between_lanes: bool,
    /// Asks for the ways to peers that its lane would wait for.
    resolver: Option<Box<dyn Resolver>>,
}

/// The control thread's state. Operators reach it through [`RuntimeHandle`].
pub struct Control {
    config: Config,
    /// What the sources of this node are numbered by for sinks.
    label: u32,
    numbers: Numbers,
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
    faults: Faults,
    socket: UdpSocket,
    scout: Option<scout::Scouting>,
    peering: Peering,
    routes: Routes,
    interests: Interests,
    sources: Sources,
    next_progress: Duration,
    networks: Networks,
    /// What the sessions of all listeners hold of the memory.
    memory: Arc<account::Memory>,
    listeners: HashMap<u32, Listener>,
    next_listener: u32,
    /// The last number given to a tenant that came by no listener.
    next_without: u32,
    sessions: BTreeMap<SessionId, Session>,
    session_ids: SessionIds,
    schedules: HashMap<DatapathKind, schedules::Installed>,
    /// Kept ones whose datapaths are not there: they are kept on.
    absent_schedules: Vec<KeptSchedule>,
    /// How often streams were mapped to another datapath than before.
    streams_moved: u64,
    /// Channels whose streams operators have mapped to a datapath.
    mapped_channels: BTreeMap<u64, DatapathKind>,
    /// Sessions that are to come back to another lane.
    moves: moves::Moves,
    balancing: balancing::Balancing,
    /// Sessions whose streams are to be mapped anew, each once, in turn.
    to_map: VecDeque<SessionId>,
    /// How often streams or schedules were added: what was checked beside those before is to be checked again.
    admissions: u64,
    /// Per tenant: sessions that have ended, and what they counted.
    ended: ended::Ended,
    /// The sources and sinks of each channel.
    ends: ends::Ends,
    /// Per channel: the counters of each lane that knows it.
    channels: BTreeMap<u64, Vec<(usize, Arc<ChannelCounters>)>>,
    /// Sinks have come or gone since peers were last told which channels are wanted.
    wants_changed: std::collections::BTreeSet<SessionId>,
    /// Sinks that their lanes deliver to, whose applications are still to be told: session and sink.
    opened_sinks: Vec<(SessionId, SinkSlot)>,
    /// Rings between sessions of a trust domain, by number; the last number given.
    direct: rings::Rings,
    last_ring: u32,
    /// How many of them one of the ends has given up.
    direct_given_up: u64,
    /// Sources and sinks that are still to get their rings.
    arrivals: Vec<direct::Arrival>,
    next_tick: Duration,
    captures: captures::Captures,
    drain: Option<Drain>,
    /// A drain has given up messages: peers are told nothing any more that would let them believe that they have all.
    incomplete: bool,
    stop: Arc<AtomicBool>,
}

/// Work for the control thread.
type Job = Box<dyn FnOnce(&mut Control) + Send>;

impl Control {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The datapath of this name, if it is there.
    fn kind_of(&self, name: &str) -> Option<DatapathKind> {
        let mut kinds = self.datapaths.iter().map(|(kind, _)| *kind);
        kinds.find(|kind| kind.0 == name)
    }

    /// The names of those there are.
    fn kinds(&self) -> String {
        let kinds: Vec<&str> = self.datapaths.iter().map(|(kind, _)| kind.0).collect();
        kinds.join(", ")
    }

    fn run(mut self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(READY);
        self.take_first_of_host();
        while !self.stop.load(Ordering::Acquire) {
            let wait = match self.ready.is_empty() && self.to_map.is_empty() {
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
                    Token::Scout => self.hear(),
                    Token::Strangers => self.look_at_strangers(),
                    Token::Listener(_) | Token::Session(_) | Token::Process(_) => {}
                }
            }
            self.lane_events();
            if self.now() >= self.next_tick {
                self.tick();
            }
            self.serve_strangers();
            self.map_some();
        }
        self.say_goodbye();
        for listener in self.listeners.values() {
            listener.unlink();
        }
        for (id, session) in std::mem::take(&mut self.sessions) {
            serve::end_connection(&session.socket, &Failure::from(ErrorCode::ShuttingDown));
            tracing::debug!(session = %id, "told that the runtime stops");
            self.reaper.release(session.tenant, session);
        }
        for (id, listener) in std::mem::take(&mut self.listeners) {
            self.reaper.release(id, listener);
        }
    }

    fn jobs(&mut self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        self.take_ways();
        self.networks.note_changes();
        self.take_host(Duration::ZERO);
        self.look_at_datapaths();
        for _ in 0..JOB_BURST {
            match self.jobs.try_recv() {
                Ok(job) => job(self),
                Err(_) => return,
            }
        }
        self.look_again();
    }

    /// Lets the lanes send to peers whose ways have become known, or are not waited for any longer.
    fn take_ways(&mut self) {
        let now = self.now();
        let commands = self.routes.take_known(&self.lanes, now);
        self.command_all(commands);
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
                Token::Wake | Token::Peering | Token::Scout | Token::Strangers => {}
            }
            if self.now() >= until {
                break;
            }
        }
        self.publish_changes();
    }

    fn watch(&self, fd: impl AsFd, token: Token) -> std::io::Result<()> {
        let epoll = match token {
            Token::Wake | Token::Peering | Token::Scout | Token::Strangers => &self.epoll,
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
                    self.end_session(session, Some(failure))
                }
                Event::SessionRemoved(removed) => self.session_removed(removed),
                Event::SourceClosed { session, source } => self.source_closed(session, source),
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
                } => self.readers_counted(session, request, count),
                Event::SinkOpened { session, sink } => self.sink_opened(session, sink),
                Event::SinkClosed { session, sink } => self.sink_closed(session, sink),
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
                Event::TapEnded(tap) => drop(tap),
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
        // All that is there, as a rule: peers that are heard late count as gone.
        let began = self.now();
        while self.now().saturating_sub(began) < SERVE_FOR {
            match self.socket.recv_from(&mut buffer) {
                Ok((length, source)) => {
                    let now = self.now();
                    let behind = self.routes.are_behind(source, &self.lanes);
                    self.peering.set_behind(behind);
                    self.peering
                        .receive(source, &buffer[..length], now, &mut effects);
                    if !effects.changes.is_empty() {
                        self.apply(std::mem::take(&mut effects));
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                // A peer's port that is not open yet answers by ICMP: nothing was received.
                Err(_) => {}
            }
        }
        self.apply(effects);
    }

    /// Takes what nodes on the link announce.
    fn hear(&mut self) {
        let Some(scout) = &self.scout else { return };
        let mut buffer = [0u8; 2048];
        let mut effects = Effects::default();
        for _ in 0..PEERING_BURST {
            match scout.receive(&mut buffer) {
                Ok((length, source)) => {
                    let now = self.started.elapsed();
                    self.peering
                        .hear(source, &buffer[..length], now, &mut effects);
                }
                Err(_) => break,
            }
        }
        self.apply(effects);
    }

    /// Announces the node when that is due.
    fn announce_itself(&mut self, now: Duration) {
        let Some(scout) = &mut self.scout else { return };
        if now >= scout.next {
            scout.announce(&self.peering.announcements(scout.own()));
            // Those that were started together spread.
            let early = Duration::from_millis(rand::random_range(0..400));
            scout.next = now + SCOUT_EVERY - early;
        }
        self.next_tick = self.next_tick.min(scout.next);
    }

    fn tick(&mut self) {
        let mut effects = Effects::default();
        let now = self.now();
        if now >= self.next_progress {
            self.next_progress = now + HELLO_EVERY;
            let (listeners, sessions) = (&self.listeners, &self.sessions);
            self.ended
                .forget(now, || listener::there(listeners, sessions).collect());
            if !self.incomplete {
                self.peering
                    .announce(&self.sources.progress(), &mut effects);
            }
        }
        self.next_tick = self.peering.tick(now, &mut effects);
        self.next_tick = self.next_tick.min(self.next_progress);
        self.announce_itself(now);
        self.take_ways();
        self.apply(effects);
        self.follow_host();
        self.look_at_datapaths();
        self.balance_lanes(now);
        let late: Vec<SessionId> = self
            .sessions
            .values()
            .filter(|s| s.arena.is_none() && !s.ending && now >= s.since + ATTACH_WITHIN)
            .map(|s| s.id)
            .collect();
        for id in late {
            let text = format!("not attached within {} s", ATTACH_WITHIN.as_secs());
            self.end_session(id, Some(Failure::new(ErrorCode::TimedOut, text)));
        }
        self.end_overdue(now);
        self.begin_overdue(now);
        let untold = self.sessions.values().filter(|s| !s.untold.is_empty());
        let untold: Vec<SessionId> = untold.map(|s| s.id).collect();
        untold.into_iter().for_each(|id| self.tell_untold(id));
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
        let now = self.now();
        for change in effects.changes {
            match &change {
                Change::Lanes { peer, lanes, .. } => {
                    tracing::info!(%peer, lanes = lanes.len(), "peer up");
                }
                Change::Back { .. } => self.sources.tell_again(),
                Change::Gone { peer, clean } => tracing::info!(
                    %peer,
                    "{}",
                    if *clean { "peer left" } else { "peer gone: messages behind the last that it told of may be lost" }
                ),
                // It may say so as often as it likes.
                Change::Failed { peer, datapaths } => {
                    tracing::debug!(%peer, failed = ?datapaths, "what is for a peer goes by other datapaths than these");
                }
                _ => {}
            }
            let commands = self.routes.change(change, &self.lanes, now);
            self.command_all(commands);
        }
        if let Some(overdue) = self.routes.overdue() {
            self.next_tick = self.next_tick.min(overdue);
        }
        for (peer, clash) in effects.clashes {
            tracing::warn!(%peer, "{clash}");
        }
        for (destination, bytes) in effects.datagrams {
            // A failure is a lost datagram: the protocol repeats.
            if let Err(error) = self.socket.send_to(&bytes, destination) {
                tracing::debug!(%destination, %error, "cannot send a peering message");
            }
        }
    }

    /// Tells peers how far the sources are, and goodbye, if that is all that there is.
    fn say_goodbye(&mut self) {
        if self.incomplete {
            return;
        }
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
    fn publish_subscriptions(&mut self, id: SessionId) {
        let mut wanted = std::collections::BTreeSet::new();
        if let Some(session) = self.sessions.get(&id).filter(|s| !s.ending) {
            let sinks = session.sinks.iter().filter(|s| !s.closing);
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
}
