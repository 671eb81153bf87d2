//! A lane: one polling thread, run to completion, single writer of everything it touches.
//!
//! A round takes what the datapaths have received, what the applications have emitted, and sends what
//! has come together: it never waits to fill a batch (naaas-thesis-2024, section 3.5). No lock, no
//! allocation and no system call but the datapath's own on this path; what changes the lane's tables
//! comes as a [`Command`] from the control thread.

mod channel;
pub mod departure;
mod egress;
mod fair;
pub mod forward;
mod guard;
pub mod idle;
mod ingress;
mod members;
pub mod network;
mod reassembly;
mod receive;
mod remote;
pub mod session;
mod tenants;
#[cfg(test)]
mod tests;
mod track;

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::time::Timespec;
use slab::Slab;
use takt_clock::Clock;
use takt_datapath::{DatapathKind, PeerHandle, Port};
use takt_session::layout::{FLAG_LAUNCH_TIME, TxDescriptor};
use takt_session::layout::{SinkBlock, SourceBlock};
use takt_session::{ChannelId, ErrorCode, Failure};
use takt_time::{TaiTime, TrafficClass};
use takt_wire::channel::Protection;

use crate::config::Limits;
use crate::counters::{ChannelCounters, Counter, DepartureCounters, LaneCounters, PortTraffic};
use crate::peering::message::SourceProgress;
use channel::Channels;
use departure::{Departures, Destination, ScheduleChange, WakeMargin};
use guard::Guard;
pub use guard::LaneKeys;
use network::{Network, NetworkTable, Owner};
use reassembly::Reassembly;
use remote::Remote;
use session::{LaneSession, LaneSource, Target};
use tenants::Tenants;
use track::{Tracks, sender_number};

/// Most datagrams taken from one port in a round.
const RECEIVE_BUDGET: usize = 64;
/// What they may cost, in the unit of [`fair`]: fewer are taken after a round in which they cost more.
const RECEIVE_COST: i64 = 4 * fair::QUANTUM;
/// A port whose empty poll is a system call is polled in one round of so many, at the rarest, while
/// a port whose poll is free shares the lane.
const RAREST_POLL: u32 = 64;
/// Commands taken in a round: the control thread may have very many at once.
const MOST_COMMANDS: usize = 64;
/// Longest sleep of a lane that holds messages back for their tenant's rates: those may be raised.
const THROTTLE_CHECK: Duration = Duration::from_millis(100);
/// Rounds in which the last datagrams of a peer that leaves are taken.
const LAST_ROUNDS: usize = 64;
/// One round with work of so many is timed, and counts for all: the clock is a good part of a short one.
const TIME_EVERY: u64 = 16;
/// Edges of doorbells taken at a time, and how often at most after a sleep: applications may ring all the time.
const EDGES: usize = 64;
const MOST_TAKES: usize = 16;
/// Rounds between two publications of the ports' counters.
const PUBLISH_EVERY: u32 = 256;

/// Longest datagram that may be decrypted: the longest that UDP can carry.
const LONGEST_DATAGRAM: usize = 1 << 16;

/// What the control thread tells a lane.
pub enum Command {
    /// A new session.
    AddSession(Box<LaneSession>),
    /// The application has left: send what it had emitted, then hand the session back.
    LeaveSession(u64),
    /// The session has ended: hand it back.
    RemoveSession(u64),
    /// A new source of a session.
    AddSource {
        session: u64,
        source: usize,
        block: SourceBlock,
        target: SourceTarget,
        port: usize,
    },
    /// No more will be emitted at this source; what is in its ring is still sent.
    CloseSource { session: u64, source: usize },
    /// A new sink of a session.
    AddSink {
        session: u64,
        sink: usize,
        block: SinkBlock,
        channel: ChannelId,
        notify: Option<OwnedFd>,
        /// What its session emits is not for it.
        no_local: bool,
    },
    /// Count the readers of a source's channel.
    Readers {
        session: u64,
        source: usize,
        request: u32,
    },
    /// The sink takes no more.
    CloseSink { session: u64, sink: usize },
    /// A lane elsewhere, with its address at each of this lane's ports.
    AddRemote {
        id: u64,
        incarnation: u32,
        label: u32,
        protection: Protection,
        address: Option<IpAddr>,
        endpoints: Vec<Option<SocketAddr>>,
    },
    /// That lane is gone. `clean`: it has told how far its sources were.
    RemoveRemote { id: u64, clean: bool },
    /// Datagrams to and from a remote lane may be protected by these keys.
    Keys { remote: u64, keys: Box<LaneKeys> },
    /// Datagrams to a remote lane are protected by the keys of this number.
    SendKeys { remote: u64, number: u8 },
    /// The keys of this number are void.
    RetireKeys { remote: u64, number: u8 },
    /// Channels on which a remote lane has sinks from now on, and no more.
    Subscriptions {
        remote: u64,
        add: Vec<u64>,
        remove: Vec<u64>,
    },
    /// How far the sources of a remote lane are.
    Progress {
        remote: u64,
        sources: Vec<SourceProgress>,
    },
    /// Another schedule for a port.
    Schedule { port: usize, change: ScheduleChange },
    /// Where the stations of a network are, from now on.
    Network { network: usize, table: NetworkTable },
    /// The way to a destination behind this host as a router; none any more.
    Route {
        network: usize,
        destination: std::net::IpAddr,
        routed: Option<network::Routed>,
    },
}

/// What a new source writes.
pub enum SourceTarget {
    /// Messages of a channel.
    Channel(ChannelId),
    /// Frames of a network.
    Network(Arc<Owner>),
}

/// What a lane tells the control thread.
pub enum Event {
    /// The application broke the protocol: end the session.
    SessionFailed { session: u64, failure: Failure },
    /// Answer to `RemoveSession`: nothing of it is left here.
    SessionRemoved(Box<LaneSession>),
    /// Answer to `Readers`.
    Readers {
        session: u64,
        request: u32,
        count: u32,
    },
    /// The sink gets what is emitted from now on.
    SinkOpened { session: u64, sink: usize },
    /// A source writes a channel under this number; `left` counts the messages that have left the lane.
    SourceOpened {
        lane: usize,
        channel: u64,
        number: u32,
        left: Arc<Counter>,
    },
    /// The source is gone, its block is free.
    SourceClosed { session: u64, source: usize },
    /// No source writes under this number any more.
    SourceEnded { lane: usize, number: u32 },
    /// The sink is gone, its block is free.
    SinkClosed { session: u64, sink: usize },
    /// A channel came into use.
    ChannelOpened {
        lane: usize,
        channel: u64,
        counters: Arc<ChannelCounters>,
    },
    /// A channel went out of use.
    ChannelClosed { lane: usize, channel: u64 },
}

/// How to reach a lane.
#[derive(Clone)]
pub struct LaneHandle {
    commands: Sender<Command>,
    mailbox: Arc<Mailbox>,
}

struct Mailbox {
    full: AtomicBool,
    wake: OwnedFd,
    /// How often the lane was asked whether it is at work, and the last of it that it has seen.
    asked: AtomicU64,
    answered: AtomicU64,
}

impl LaneHandle {
    /// Gives the lane a command. False if the lane is gone.
    pub fn send(&self, command: Command) -> bool {
        let sent = self.commands.send(command).is_ok();
        self.mailbox.full.store(true, Ordering::Release); // Partner: `commands` in the lane.
        self.wake();
        sent
    }

    /// Asks the lane whether it is at work: the number that [`answered`](Self::answered) will reach.
    pub fn ask(&self) -> u64 {
        let asked = self.mailbox.asked.fetch_add(1, Ordering::Relaxed) + 1;
        self.mailbox.full.store(true, Ordering::Release); // Partner: `commands` in the lane.
        self.wake();
        asked
    }

    /// The last question that the lane has answered.
    pub fn answered(&self) -> u64 {
        self.mailbox.answered.load(Ordering::Relaxed)
    }

    /// Wakes the lane if it sleeps.
    pub fn wake(&self) {
        // EAGAIN: the counter is full, so it is awake.
        let _ = rustix::io::write(&self.mailbox.wake, &1u64.to_ne_bytes());
    }
}

/// How a lane reaches the control thread.
#[derive(Clone)]
pub struct EventSender {
    /// The events.
    pub events: Sender<Event>,
    /// An eventfd that wakes the control thread.
    pub wake: Arc<OwnedFd>,
}

impl EventSender {
    fn send(&self, event: Event) {
        // Without a control thread the runtime is being dropped: nobody wants to know.
        let _ = self.events.send(event);
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

/// A port with what its lane knows of it.
pub struct LanePort {
    /// Its technology.
    pub kind: DatapathKind,
    /// The port.
    pub port: Box<dyn Port>,
    /// Connects lanes of this node: the sender's address means nothing.
    pub trusted: bool,
    /// UDP ports of the other lanes behind the same device, with their handles on the port between lanes.
    pub siblings: Vec<(u16, PeerHandle)>,
    /// Its counters as others see them.
    pub traffic: Arc<PortTraffic>,
    /// It keeps some launch times itself, by the lane's clock.
    kept: bool,
    /// Its scheduler; none between lanes, where there is no link.
    departures: Option<Box<Departures>>,
    /// Remote lanes with a datagram being filled here.
    open: Vec<usize>,
    /// Frames may be waiting for `flush`.
    dirty: bool,
    interval: u32,
    skipped: u32,
    /// Datagrams taken from it at a time, after what they cost lately.
    budget: usize,
    /// The last look at it found less than the budget: nothing waits that its descriptor does not show.
    drained: bool,
}

impl LanePort {
    /// A port, ready to be polled. `kept`: it keeps some launch times itself, by the lane's clock.
    pub fn new(
        kind: DatapathKind,
        port: Box<dyn Port>,
        trusted: bool,
        traffic: Arc<PortTraffic>,
        departures: Option<&crate::config::Departure>,
        kept: bool,
    ) -> Self {
        Self {
            kept,
            departures: departures.map(|how| Box::new(Departures::new(how, kept, Arc::default()))),
            kind,
            port,
            trusted,
            siblings: Vec::new(),
            traffic,
            open: Vec::new(),
            dirty: false,
            interval: 1,
            skipped: 0,
            budget: RECEIVE_BUDGET,
            drained: false,
        }
    }

    fn publish(&self) {
        self.traffic.set(&self.port.counters());
        if let Some(departures) = &self.departures {
            departures.publish();
        }
    }

    /// The counters of its scheduler.
    pub fn departure_counters(&self) -> Option<Arc<DepartureCounters>> {
        Some(self.departures.as_ref()?.counters().clone())
    }

    /// Whether frames of this class to this peer are handed over ahead of their start.
    #[inline]
    fn keeps(&self, peer: PeerHandle, class: TrafficClass) -> bool {
        self.kept && self.port.keeps_launch_time(peer, class)
    }

    /// Whether it has a frame that it could not hand over: nothing is put behind it.
    #[inline]
    fn waits(&self) -> bool {
        self.departures.as_ref().is_some_and(|d| d.waits())
    }

    /// Whether what has no launch time lets others go first: a frame is to leave in a moment, or has not left.
    #[inline]
    fn yields(&self, now: TaiTime) -> bool {
        self.departures
            .as_ref()
            .is_some_and(|d| d.waits() || d.is_near(now, egress::GUARD_NS))
    }

    /// Whether a message passes the scheduler.
    #[inline]
    fn schedules(&self, descriptor: &TxDescriptor) -> bool {
        self.departures.as_ref().is_some_and(|departures| {
            departures.scheduled() || descriptor.flags & FLAG_LAUNCH_TIME != 0
        })
    }
}

/// Sleeps until a lane has work. The ports' descriptors are looked at only then: a standing registration
/// would cost each datagram a callback in the kernel.
pub struct Sleeper(Vec<OwnedFd>);

impl Sleeper {
    /// Also wakes when this becomes readable.
    pub fn watch(&mut self, fd: OwnedFd) {
        self.0.push(fd);
    }

    /// Sleeps until there is work or `timeout` has passed, or for no reason.
    pub fn sleep(&self, timeout: Option<Duration>) {
        let mut fds: Vec<PollFd<'_>> = self
            .0
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        // Interrupted: the lane looks, and sleeps again.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
        if let [bells, ..] = &fds[..]
            && !bells.revents().is_empty()
        {
            self.take_edges();
        }
    }

    /// Takes the edges of the doorbells: the descriptor that gathers them stays readable until then.
    fn take_edges(&self) {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EDGES];
        for _ in 0..MOST_TAKES {
            match epoll::wait(&self.0[0], &mut events[..], Some(&Timespec::default())) {
                Ok((ready, _)) if ready.len() == EDGES => {}
                _ => return,
            }
        }
    }
}

/// When the present round found its first work: a round that finds none reads no clock.
struct RoundTime {
    clock: Arc<dyn Clock>,
    began_ns: Option<i64>,
    /// Its duration is wanted.
    timed: bool,
    /// Rounds with work so far.
    busy: u64,
}

impl RoundTime {
    fn read(&self) -> i64 {
        self.clock.now().as_nanos()
    }

    #[inline]
    fn begin(&mut self) {
        self.began_ns = None;
        self.timed = self.busy.is_multiple_of(TIME_EVERY);
    }

    /// There is work.
    #[inline]
    fn work(&mut self) {
        if self.timed {
            self.now_ns();
        }
    }

    /// After a round with work: the nanoseconds that this one and those not timed took.
    #[inline]
    fn busy_ns(&mut self) -> u64 {
        self.busy += 1;
        if !self.timed {
            return 0;
        }
        let began = self.now_ns();
        self.read().saturating_sub(began).max(0) as u64 * TIME_EVERY
    }

    #[inline]
    fn now_ns(&mut self) -> i64 {
        match self.began_ns {
            Some(began) => began,
            None => {
                let now = self.read();
                *self.began_ns.insert(now)
            }
        }
    }
}

/// Everything of a lane but its ports: what a received datagram may change.
struct State {
    incarnation: u32,
    /// What its sources are numbered by for sinks.
    label: u32,
    /// Number of the next source.
    next_source: u32,
    tracks: Tracks,
    /// Where a datagram is decrypted.
    scratch: Vec<u8>,
    round: RoundTime,
    tenants: Tenants,
    channels: Channels,
    networks: Vec<Network>,
    remotes: Slab<Remote>,
    by_incarnation: HashMap<u32, usize, foldhash::fast::RandomState>,
    last_sender: Option<(u32, usize)>,
    last_channel: Option<(u64, usize)>,
    reassembly: Reassembly,
    /// What has been received from the port that is being looked at, in the unit of [`fair`].
    received_cost: i64,
    max_message: usize,
    finished_sources: Vec<(usize, usize)>,
    /// Some source waits for room in a scheduler.
    held: bool,
    counters: Arc<LaneCounters>,
}

/// A lane.
pub struct Lane {
    index: usize,
    ports: Vec<LanePort>,
    state: State,
    by_session: HashMap<u64, usize>,
    by_remote: HashMap<u64, usize>,
    commands: Receiver<Command>,
    mailbox: Arc<Mailbox>,
    events: EventSender,
    epoll: OwnedFd,
    /// Some port's poll is a memory read: others are polled more rarely.
    mixed: bool,
    margin: WakeMargin,
    tick: u32,
}

impl Lane {
    /// A lane with these ports; the last one connects lanes of this node if `trusted`.
    ///
    /// # Errors
    /// The kernel's, for epoll and eventfd.
    #[allow(clippy::too_many_arguments)] // built in one place
    pub fn new(
        index: usize,
        incarnation: u32,
        label: u32,
        ports: Vec<LanePort>,
        limits: &Limits,
        clock: Arc<dyn Clock>,
        counters: Arc<LaneCounters>,
        events: EventSender,
    ) -> std::io::Result<(Self, LaneHandle)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = rustix::event::eventfd(
            0,
            rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
        )?;
        epoll::add(
            &epoll,
            &wake,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )?;
        let mailbox = Arc::new(Mailbox {
            full: AtomicBool::new(false),
            wake,
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        });
        let (sender, commands) = std::sync::mpsc::channel();
        let mixed = ports
            .iter()
            .any(|p| !p.trusted && !p.port.receive_costs_syscall());
        let lane = Self {
            index,
            ports,
            state: State {
                incarnation,
                label,
                next_source: 0,
                tracks: Tracks::default(),
                scratch: vec![0; LONGEST_DATAGRAM],
                round: RoundTime {
                    clock,
                    began_ns: None,
                    timed: false,
                    busy: 0,
                },
                tenants: Tenants::default(),
                channels: Channels::default(),
                networks: Vec::new(),
                remotes: Slab::new(),
                by_incarnation: HashMap::default(),
                last_sender: None,
                last_channel: None,
                reassembly: Reassembly::new(
                    limits.reassemblies,
                    limits.max_message,
                    limits.reassembly_timeout,
                ),
                received_cost: 0,
                max_message: limits.max_message,
                finished_sources: Vec::new(),
                held: false,
                counters,
            },
            by_session: HashMap::new(),
            by_remote: HashMap::new(),
            commands,
            mailbox: mailbox.clone(),
            events,
            epoll,
            mixed,
            margin: WakeMargin::default(),
            tick: 0,
        };
        Ok((
            lane,
            LaneHandle {
                commands: sender,
                mailbox,
            },
        ))
    }

    /// What a parked lane sleeps on.
    ///
    /// # Errors
    /// The kernel's, when descriptors cannot be copied.
    pub fn sleeper(&self) -> std::io::Result<Sleeper> {
        let mut fds = vec![self.epoll.try_clone()?];
        for port in &self.ports {
            fds.push(port.port.wait_fd().try_clone_to_owned()?);
        }
        Ok(Sleeper(fds))
    }

    /// One round. True if there was anything to do.
    #[inline]
    pub fn poll(&mut self) -> bool {
        self.tick = self.tick.wrapping_add(1);
        let counters = &self.state.counters;
        counters.polls.add(1);
        self.state.round.begin();
        // Partner: `LaneHandle::send`.
        if self.mailbox.full.load(Ordering::Relaxed)
            && self.mailbox.full.swap(false, Ordering::Acquire)
        {
            self.commands();
        }
        let mut worked = self.receive();
        // What is to leave at an instant goes before what is taken now.
        worked |= self.state.depart(&mut self.ports);
        worked |= self.state.egress(&mut self.ports);
        worked |= self.state.depart(&mut self.ports);
        worked |= self.flush();
        if self.state.tenants.has_pending() {
            self.state.tenants.show();
        }
        if let Some(at) = self.state.reassembly.next_check() {
            let now_ns = self.state.round.now_ns();
            if now_ns >= at {
                self.state.expire(now_ns);
            }
        }
        if self.state.tenants.has_failed() || !self.state.finished_sources.is_empty() {
            self.clear();
        }
        if self.tick.is_multiple_of(PUBLISH_EVERY) {
            self.publish();
        }
        if worked {
            let counters = &self.state.counters;
            counters.busy_polls.add(1);
            counters.busy_nanos.add(self.state.round.busy_ns());
        }
        worked
    }

    #[inline]
    fn receive(&mut self) -> bool {
        let mut worked = false;
        for at in 0..self.ports.len() {
            let (before, rest) = self.ports.split_at_mut(at);
            let Some((port, after)) = rest.split_first_mut() else {
                break;
            };
            let costly = self.mixed && port.port.receive_costs_syscall();
            if costly {
                port.skipped += 1;
                if port.skipped < port.interval {
                    port.drained = false;
                    continue;
                }
                port.skipped = 0;
            }
            let state = &mut self.state;
            let (trusted, siblings) = (port.trusted, &port.siblings);
            let own = port.port.local().port();
            // The port between lanes, if there is one, is the last.
            let mut mesh = after.last_mut().or(before.last_mut()).filter(|p| p.trusted);
            let budget = port.budget;
            state.received_cost = 0;
            let received = port.port.receive(budget, &mut |datagram| {
                if trusted || datagram.destination_port == own || siblings.is_empty() {
                    state.ingress(&datagram, trusted);
                } else if state.admits(&datagram) {
                    forward(&state.counters, mesh.as_deref_mut(), siblings, &datagram);
                }
            });
            worked |= received > 0;
            port.drained = received < budget;
            if state.received_cost > RECEIVE_COST {
                let fewer = received as i64 * RECEIVE_COST / state.received_cost;
                port.budget = (fewer as usize).max(1);
            } else if budget < RECEIVE_BUDGET && received > 0 {
                port.budget = (budget * 2).min(RECEIVE_BUDGET);
            }
            if costly {
                port.interval = if received > 0 {
                    1
                } else {
                    (port.interval * 2).min(RAREST_POLL)
                };
            }
        }
        worked
    }

    /// Commits what was filled and sends what was committed. True if anything was.
    #[inline]
    fn flush(&mut self) -> bool {
        let mut worked = false;
        let state = &mut self.state;
        for (at, port) in self.ports.iter_mut().enumerate() {
            if !port.dirty {
                continue;
            }
            worked = true;
            if !port.waits() {
                state.flush(at, port);
            }
        }
        worked
    }

    /// Ends sessions that broke the protocol, and sources that are closed and empty.
    #[cold]
    fn clear(&mut self) {
        for (at, source) in std::mem::take(&mut self.state.finished_sources) {
            let Some(session) = self.state.tenants.sessions.get(at).map(|s| s.id) else {
                continue;
            };
            self.remove_source(at, source);
            self.events.send(Event::SourceClosed { session, source });
            self.remove_if_left(at);
        }
        for (at, failure) in self.state.tenants.take_failed() {
            let Some(session) = self.state.tenants.sessions.get(at).map(|s| s.id) else {
                continue;
            };
            self.events.send(Event::SessionFailed { session, failure });
            self.remove_session(session);
        }
    }

    #[cold]
    fn publish(&self) {
        for port in &self.ports {
            port.publish();
        }
    }

    /// Prepares to sleep: tells every application so, then looks once more. `None`: there is work.
    /// Otherwise how long to sleep at most (see [`Sleeper`]); call [`unpark`](Self::unpark) afterwards.
    pub fn park(&mut self) -> Option<Option<Duration>> {
        let tenants = &self.state.tenants;
        if self.mailbox.full.load(Ordering::Acquire)
            || self.ports.iter().any(|p| p.dirty)
            || tenants.turns.any()
            || tenants.has_pending()
        {
            return None;
        }
        if self.ports.iter().any(|p| !p.drained) {
            // Look at every port in the next round.
            self.ports.iter_mut().for_each(|p| p.skipped = p.interval);
            return None;
        }
        let mut timeout = None;
        let ports = self.ports.iter().filter_map(|p| p.departures.as_ref());
        if let Some(due) = ports.filter_map(|departures| departures.wake()).min() {
            let now = TaiTime::from_nanos(self.state.round.read());
            timeout = Some(self.margin.sleep(due, now)?);
        }
        self.publish();
        for (_, session) in &self.state.tenants.sessions {
            session.bell.park();
        }
        if self.state.tenants.listen() && self.state.tenants.turns.any() {
            self.unpark();
            return None;
        }
        if let Some(until) = self.state.tenants.throttled_until() {
            let now = self.state.round.read();
            let wait = Duration::from_nanos(until.saturating_sub(now).max(1_000) as u64);
            let wait = wait.min(THROTTLE_CHECK);
            timeout = Some(timeout.map_or(wait, |t: Duration| t.min(wait)));
        }
        if let Some(at) = self.state.reassembly.next_check() {
            let now = self.state.round.read();
            let wait = Duration::from_nanos(at.saturating_sub(now).max(1_000) as u64);
            timeout = Some(timeout.map_or(wait, |t: Duration| t.min(wait)));
        }
        self.state.counters.parks.add(1);
        Some(timeout)
    }

    /// After a sleep: applications need not wake the lane any more.
    pub fn unpark(&mut self) {
        let round = &self.state.round;
        self.margin.woken(|| TaiTime::from_nanos(round.read()));
        for (_, session) in &self.state.tenants.sessions {
            session.bell.unpark();
        }
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.mailbox.wake, &mut count);
    }

    #[cold]
    fn commands(&mut self) {
        let asked = self.mailbox.asked.load(Ordering::Relaxed);
        self.mailbox.answered.store(asked, Ordering::Relaxed);
        for _ in 0..MOST_COMMANDS {
            match self.commands.try_recv() {
                Ok(command) => self.command(command),
                Err(_) => return,
            }
        }
        // There may be more.
        self.mailbox.full.store(true, Ordering::Relaxed);
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::AddSession(session) => {
                let id = session.id;
                // Never read: edge-triggered, so that no application can block the lane through it.
                let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                let added = epoll::add(
                    &self.epoll,
                    session.bell.fd(),
                    epoll::EventData::new_u64(2),
                    flags,
                );
                let at = self.state.tenants.insert(*session);
                let tenants = self.state.tenants.numbers();
                for port in &mut self.ports {
                    if let Some(departures) = &mut port.departures {
                        departures.set_tenants(tenants);
                    }
                }
                self.by_session.insert(id, at);
                if let Err(error) = added {
                    let text = format!("cannot watch the session's doorbell: {error}");
                    self.state
                        .tenants
                        .fail(at, Failure::new(ErrorCode::System, text));
                }
            }
            Command::LeaveSession(id) => self.leave_session(id),
            Command::RemoveSession(id) => self.remove_session(id),
            Command::AddSource {
                session,
                source,
                block,
                target,
                port,
            } => {
                let Some(&at) = self.by_session.get(&session) else {
                    return;
                };
                let target = match target {
                    SourceTarget::Channel(channel) => Target::Channel(self.open_channel(channel.0)),
                    SourceTarget::Network(owner) => Target::Network(owner),
                };
                let Some(s) = self.state.tenants.sessions.get_mut(at) else {
                    return;
                };
                let number = self.state.next_source;
                let sender = sender_number(self.state.label, number);
                match LaneSource::new(s.arena(), block, target.clone(), port, number, sender) {
                    Ok(new) => {
                        self.state.next_source = number.wrapping_add(1);
                        let left = new.left();
                        place(&mut s.sources, source, new);
                        if let Target::Channel(channel) = target
                            && let Some(channel) = self.state.channels.get_mut(channel)
                        {
                            channel.sources += 1;
                            self.events.send(Event::SourceOpened {
                                lane: self.index,
                                channel: channel.id,
                                number,
                                left,
                            });
                        }
                        // Its doorbell may have been taken while there was no ring to look at.
                        self.state.tenants.wait(at);
                    }
                    Err(error) => {
                        let text = format!("cannot attach source {source}: {error}");
                        self.state
                            .tenants
                            .fail(at, Failure::new(ErrorCode::System, text));
                    }
                }
            }
            Command::CloseSource { session, source } => {
                let Some(&at) = self.by_session.get(&session) else {
                    return;
                };
                let Some(s) = self.state.tenants.sessions.get_mut(at) else {
                    return;
                };
                match s.close_source(source) {
                    Ok(()) => self.state.tenants.wait(at),
                    Err(failure) => self.state.tenants.fail(at, failure),
                }
            }
            Command::AddSink {
                session,
                sink,
                block,
                channel,
                notify,
                no_local,
            } => {
                let Some(&at) = self.by_session.get(&session) else {
                    return;
                };
                let channel = self.open_channel(channel.0);
                let Some(s) = self.state.tenants.sessions.get_mut(at) else {
                    return;
                };
                match s.add_sink(sink, block, channel, notify, no_local) {
                    Ok(()) => {
                        self.state.channels.add_sink(channel, at, sink);
                        self.state.tenants.sink_added(at);
                        self.events.send(Event::SinkOpened { session, sink });
                    }
                    Err(error) => {
                        let text = format!("cannot attach sink {sink}: {error}");
                        self.state
                            .tenants
                            .fail(at, Failure::new(ErrorCode::System, text));
                    }
                }
            }
            Command::Readers {
                session,
                source,
                request,
            } => {
                let count = self.readers(session, source);
                self.events.send(Event::Readers {
                    session,
                    request,
                    count,
                });
            }
            Command::CloseSink { session, sink } => {
                let Some(&at) = self.by_session.get(&session) else {
                    return;
                };
                self.remove_sink(at, sink);
                self.events.send(Event::SinkClosed { session, sink });
            }
            Command::AddRemote {
                id,
                incarnation,
                label,
                protection,
                address,
                endpoints,
            } => {
                self.remove_remote(id, false);
                let via = self
                    .ports
                    .iter_mut()
                    .zip(endpoints)
                    .map(|(port, endpoint)| match port.port.connect(endpoint?) {
                        Ok(handle) => Some(handle),
                        Err(error) => {
                            tracing::warn!(datapath = %port.kind, %error, "peer not reachable through this datapath");
                            None
                        }
                    })
                    .collect();
                let own = self.state.incarnation;
                let remote = Remote::new(own, incarnation, label, address, protection, via);
                let at = self.state.remotes.insert(remote);
                self.by_remote.insert(id, at);
                self.state.by_incarnation.insert(incarnation, at);
            }
            Command::RemoveRemote { id, clean } => {
                // A peer says goodbye behind its last messages: take those first.
                self.ports.iter_mut().for_each(|p| p.skipped = p.interval);
                for _ in 0..LAST_ROUNDS {
                    if !self.receive() {
                        break;
                    }
                }
                self.remove_remote(id, clean);
            }
            Command::Keys { remote, keys } => self.guard(remote, |guard| guard.accept(keys)),
            Command::SendKeys { remote, number } => {
                self.guard(remote, |guard| guard.send_under(number));
            }
            Command::RetireKeys { remote, number } => {
                self.guard(remote, |guard| guard.retire(number));
            }
            Command::Subscriptions {
                remote,
                add,
                remove,
            } => self.subscriptions(remote, &add, &remove),
            Command::Progress { remote, sources } => {
                if let Some(&at) = self.by_remote.get(&remote) {
                    self.state.progress(at, &sources);
                }
            }
            Command::Network { network, table } => self.network(network, &table),
            Command::Route {
                network,
                destination,
                routed,
            } => {
                if let Some(network) = self.state.networks.get_mut(network) {
                    network.route(destination, routed, &mut self.ports);
                }
            }
            Command::Schedule { port, change } => {
                if let Some(departures) =
                    self.ports.get_mut(port).and_then(|p| p.departures.as_mut())
                {
                    departures.change(change);
                }
            }
        }
    }

    /// Sinks here that get what the source emits, and lanes elsewhere.
    fn readers(&self, session: u64, source: usize) -> u32 {
        let count = || {
            let &at = self.by_session.get(&session)?;
            let session = self.state.tenants.sessions.get(at)?;
            let Target::Channel(channel) = session.sources.get(source)?.as_ref()?.target else {
                return None;
            };
            let channel = self.state.channels.get(channel)?;
            let sinks = channel.sinks.iter();
            let here = sinks.filter(|&(other, sink)| other != at || session.hears_itself(sink));
            u32::try_from(here.count() + channel.destinations.len()).ok()
        };
        count().unwrap_or(0)
    }

    fn open_channel(&mut self, id: u64) -> usize {
        let (at, new) = self.state.channels.open(id);
        if new && let Some(channel) = self.state.channels.get(at) {
            let counters = channel.counters.clone();
            self.events.send(Event::ChannelOpened {
                lane: self.index,
                channel: id,
                counters,
            });
        }
        at
    }

    fn close_channel_if_unused(&mut self, at: usize) {
        let unused = self.state.channels.get(at).is_some_and(|c| c.is_unused());
        if !unused {
            return;
        }
        while let Some(assembly) = self.state.reassembly.matching(|key| key.channel == at) {
            self.state.abandon(assembly);
        }
        if let Some(channel) = self.state.channels.close_unused(at) {
            self.state.last_channel = None;
            self.events.send(Event::ChannelClosed {
                lane: self.index,
                channel,
            });
        }
    }

    fn remove_source(&mut self, at: usize, source: usize) {
        let Some(session) = self.state.tenants.sessions.get_mut(at) else {
            return;
        };
        let Some(removed) = session.sources.get_mut(source).and_then(Option::take) else {
            return;
        };
        removed.end();
        if let Target::Channel(at) = removed.target {
            if let Some(channel) = self.state.channels.get_mut(at) {
                channel.sources -= 1;
                // A copy that was begun will not be ended.
                let copying = removed.current.and_then(|message| message.copying);
                if let Some(copying) = copying
                    && let Some((session, sink)) = channel.sinks.get(copying.number)
                    && let Some(session) = self.state.tenants.sessions.get_mut(session)
                {
                    session.withdraw(sink, copying.chunk);
                }
            }
            self.close_channel_if_unused(at);
        }
        self.events.send(Event::SourceEnded {
            lane: self.index,
            number: removed.number,
        });
    }

    fn remove_sink(&mut self, at: usize, sink: usize) {
        self.state
            .reassembly
            .retain_targets(|target| target.session != at || target.sink != sink);
        let Some(session) = self.state.tenants.sessions.get_mut(at) else {
            return;
        };
        let Some(removed) = session.remove_sink(sink) else {
            return;
        };
        self.state.tenants.sinks_removed(at, 1);
        // What waited for memory of its own session may be complete now.
        self.state.tenants.wait(at);
        if let Some(channel) = self.state.channels.get_mut(removed.channel) {
            channel.sinks.retain(|entry| *entry != (at, sink));
        }
        self.close_channel_if_unused(removed.channel);
    }

    /// The application has left: nobody reads its sinks any more, and what it had emitted is sent.
    fn leave_session(&mut self, id: u64) {
        let Some(&at) = self.by_session.get(&id) else {
            return;
        };
        let Some(session) = self.state.tenants.sessions.get_mut(at) else {
            return;
        };
        let left = session.leave();
        self.remove_sinks(at);
        self.state.tenants.wait(at);
        match left {
            Ok(()) => self.remove_if_left(at),
            Err(failure) => self.state.tenants.fail(at, failure),
        }
    }

    fn remove_if_left(&mut self, at: usize) {
        let session = self.state.tenants.sessions.get(at);
        if let Some(id) = session.filter(|s| s.has_left()).map(|s| s.id) {
            self.remove_session(id);
        }
    }

    fn remove_session(&mut self, id: u64) {
        let Some(at) = self.by_session.remove(&id) else {
            return;
        };
        let Some(session) = self.state.tenants.sessions.get(at) else {
            return;
        };
        let sources = session.sources.len();
        self.remove_sinks(at);
        let Some(session) = self.state.tenants.sessions.get_mut(at) else {
            return;
        };
        session.abandon();
        if session.departing > 0 {
            self.withdraw(|piece| piece.session == at);
        }
        for source in 0..sources {
            self.remove_source(at, source);
        }
        let Some(session) = self.state.tenants.remove(at) else {
            return;
        };
        // Fails only if adding did.
        let _ = epoll::delete(&self.epoll, session.bell.fd());
        self.events.send(Event::SessionRemoved(Box::new(session)));
    }

    /// Takes all sinks of a session whose application has left out of their channels, each channel once.
    fn remove_sinks(&mut self, at: usize) {
        self.state
            .reassembly
            .retain_targets(|target| target.session != at);
        let Some(session) = self.state.tenants.sessions.get_mut(at) else {
            return;
        };
        let mut channels = session.remove_sinks();
        self.state.tenants.sinks_removed(at, channels.len());
        channels.sort_unstable();
        channels.dedup();
        for index in channels {
            if let Some(channel) = self.state.channels.get_mut(index) {
                channel.sinks.retain(|(session, _)| *session != at);
            }
            self.close_channel_if_unused(index);
        }
    }

    fn guard(&mut self, remote: u64, change: impl FnOnce(&mut Guard)) {
        let remote = self.by_remote.get(&remote);
        if let Some(remote) = remote.and_then(|&at| self.state.remotes.get_mut(at)) {
            change(&mut remote.guard);
        }
    }

    fn remove_remote(&mut self, id: u64, clean: bool) {
        let Some(at) = self.by_remote.remove(&id) else {
            return;
        };
        let wanted = self
            .state
            .remotes
            .get_mut(at)
            .map(|r| std::mem::take(&mut r.channels));
        for channel in wanted.into_iter().flatten() {
            self.remove_destination(channel, at);
        }
        while let Some(assembly) = self.state.reassembly.matching(|key| key.remote == at) {
            self.state.abandon(assembly);
        }
        self.state.forget_sources(at, clean);
        self.withdraw(
            |piece| matches!(piece.destination, Destination::Remote { remote, .. } if remote == at),
        );
        let Some(mut remote) = self.state.remotes.try_remove(at) else {
            return;
        };
        self.state.by_incarnation.remove(&remote.incarnation);
        self.state.last_sender = None;
        for i in 0..self.ports.len() {
            let port = &mut self.ports[i];
            port.open.retain(|&open| open != at);
            if remote.close(i, port.port.as_mut(), None) {
                self.state.counters.tx_datagrams.add(1);
            }
            port.dirty = true;
            if let Some(handle) = remote.via[i] {
                self.disconnect(i, handle);
            }
        }
    }

    /// Takes a network's table. Networks come in the order of their numbers.
    fn network(&mut self, at: usize, table: &NetworkTable) {
        if at == self.state.networks.len() {
            self.state.networks.push(Network::new(table));
        }
        let Some(network) = self.state.networks.get_mut(at) else {
            return;
        };
        for exit in network.update(table, &mut self.ports) {
            self.withdraw(|piece| {
                matches!(piece.destination, Destination::Network { network, exit: of } if network == at && of == exit)
            });
            let handles = self.state.networks[at].remove(exit);
            for (i, handle) in handles.into_iter().enumerate() {
                if let Some(handle) = handle {
                    self.disconnect(i, handle);
                }
            }
        }
    }

    /// Lets a port forget a peer that nobody sends to any more.
    fn disconnect(&mut self, port: usize, handle: PeerHandle) {
        let mut remotes = self.state.remotes.iter();
        let used = remotes.any(|(_, other)| other.via[port] == Some(handle))
            || self.state.networks.iter().any(|n| n.uses(port, handle));
        if !used {
            self.ports[port].port.disconnect(handle);
        }
    }

    /// Takes frames out of the schedulers: whom they are for, or from, is gone.
    fn withdraw(&mut self, unwanted: impl Fn(&departure::Piece) -> bool) {
        self.state.room_available();
        for port in &mut self.ports {
            if let Some(departures) = &mut port.departures {
                let state = &mut self.state;
                departures.remove(&unwanted, |piece| {
                    state.departed(&piece, Err(takt_session::layout::Outcome::Unreachable));
                });
            }
        }
    }

    /// When the next frame of a scheduler is to be dealt with.
    pub fn due(&self) -> Option<TaiTime> {
        let ports = self.ports.iter().filter_map(|p| p.departures.as_ref());
        ports.filter_map(|departures| departures.due()).min()
    }

    fn subscriptions(&mut self, remote: u64, add: &[u64], remove: &[u64]) {
        let Some(&at) = self.by_remote.get(&remote) else {
            return;
        };
        for &id in add {
            let index = self.open_channel(id);
            if let Some(remote) = self.state.remotes.get_mut(at)
                && remote.channels.insert(index)
                && let Some(channel) = self.state.channels.get_mut(index)
            {
                channel.destinations.push(at);
            }
        }
        for &id in remove {
            if let Some(index) = self.state.channels.find(id)
                && let Some(remote) = self.state.remotes.get_mut(at)
                && remote.channels.remove(&index)
            {
                self.remove_destination(index, at);
            }
        }
    }

    /// A remote lane wants a channel no more.
    fn remove_destination(&mut self, index: usize, remote: usize) {
        if let Some(channel) = self.state.channels.get_mut(index) {
            channel
                .destinations
                .retain(|&destination| destination != remote);
        }
        self.close_channel_if_unused(index);
    }
}

/// Puts an endpoint at its number.
fn place<T>(list: &mut Vec<Option<T>>, at: usize, value: T) {
    if list.len() <= at {
        list.resize_with(at + 1, || None);
    }
    list[at] = Some(value);
}

/// Passes a datagram on to the lane that it was meant for: a device's queues know nothing of lanes.
fn forward(
    counters: &LaneCounters,
    mesh: Option<&mut LanePort>,
    siblings: &[(u16, PeerHandle)],
    datagram: &takt_datapath::Datagram<'_>,
) {
    let sent = mesh.is_some_and(|mesh| {
        let Some((_, peer)) = siblings
            .iter()
            .find(|(port, _)| *port == datagram.destination_port)
        else {
            return false;
        };
        let Ok(frame) = mesh.port.reserve(*peer) else {
            return false;
        };
        let length = datagram.payload.len();
        let Some(space) = mesh.port.payload(&frame).get_mut(..length) else {
            mesh.port.cancel(frame);
            return false;
        };
        space.copy_from_slice(datagram.payload);
        mesh.port
            .commit(frame, length, TrafficClass::BEST_EFFORT, None);
        mesh.dirty = true;
        true
    });
    if sent {
        counters.rx_forwarded.add(1)
    } else {
        counters.rx_misdirected.add(1)
    }
}
