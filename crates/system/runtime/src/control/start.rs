//! Brings a runtime up: ports, lanes, sockets, threads; undoes everything if one fails.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use rand::Rng;
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd};
use takt_datapath::memory::{MemoryNetwork, MemoryNetworkConfig};
use takt_datapath::{Datapath, OpenError, PortRequest};

use super::account::Memory;
use super::balancing::Balancing;
use super::captures::Captures;
use super::faults::Faults;
use super::host::Host;
use super::interests::{Interests, Sources};
use super::listener::ListenError;
use super::networks::Networks;
use super::reaper::Reaper;
use super::routes::Routes;
use super::schedules::{Origin, ScheduleError};
use super::scout::Scouting;
use super::session::SessionIds;
use super::{CONTROL_THREAD, Control, LaneInfo, PortInfo, Runtime, RuntimeHandle, Token};
use crate::config::{Config, Departure, KeptSchedule, KeyMissing, LaneConfig};
use crate::lane::idle::{self, IdleStrategy, Step};
use crate::lane::{EventSender, Lane, LaneHandle, LanePort, PASSED_ON_LEN};
use crate::peering::message::{Endpoint, LaneAnnouncement, MAX_LANES};
use crate::peering::{Effects, Local, Peering};
use crate::policy::most_of_memory;

/// Bytes of datagrams of the peering protocol that wait for the control thread.
const PEERING_BUFFER: usize = 4 << 20;

/// A configured datapath that is unavailable, and why.
#[derive(Clone, Debug)]
pub struct Unavailable {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// Why a runtime cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No lanes, or too many.
    #[error("{0} lanes are not possible: configure 1 to {MAX_LANES}")]
    Lanes(usize),
    /// The inline form has one lane.
    #[error("the embedded form has one lane, {0} are configured")]
    InlineLanes(usize),
    /// A lane is named that there is not, or none.
    #[error("{what} names {lanes:?} as its lanes: this node has 0 to {last}")]
    NoSuchLane {
        /// The datapath or class.
        what: String,
        /// As configured.
        lanes: Vec<usize>,
        /// The last lane's number.
        last: usize,
    },
    /// There must be kernel UDP to fall back to.
    #[error("no datapath is configured: kernel UDP must be there")]
    NoDatapath,
    /// Kernel UDP cannot be opened.
    #[error("cannot open a port of lane {lane} on datapath {datapath}: {source}")]
    Port {
        /// The lane.
        lane: usize,
        /// The datapath.
        datapath: String,
        /// Why.
        source: OpenError,
    },
    /// A peer cannot be authenticated.
    #[error(transparent)]
    Key(#[from] KeyMissing),
    /// A schedule of the configuration, or one that was installed before, cannot run.
    #[error("cannot install the schedule of {datapath}: {source}")]
    Schedule {
        /// The datapath.
        datapath: String,
        /// Why.
        source: ScheduleError,
    },
    /// The peering socket cannot be opened.
    #[error(
        "cannot bind the peering port {address}: {source} ({})", remedy(.source)
    )]
    Peering {
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A listening socket cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Nodes on the link cannot be looked for.
    #[error("cannot scout on the interface {interface}: {source}")]
    Scout {
        /// The interface.
        interface: String,
        /// Why.
        source: std::io::Error,
    },
    /// Any other system call.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// Frames between two lanes.
const MESH_DEPTH: usize = 1024;
/// Largest datagram between two lanes where no port of theirs takes longer ones: a jumbo frame's.
const MESH_PAYLOAD: usize = 9216;

/// Who polls the lanes.
enum Form {
    /// A thread for each.
    Threads,
    /// The application, and a thread when it does not.
    Inline,
}

impl Runtime {
    /// Starts a runtime whose lanes are polled by threads of their own.
    ///
    /// `datapaths`: the first must be kernel UDP. One that cannot be opened is left out, and streams that
    /// would have used it are told so.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left behind.
    pub fn start(
        config: Config,
        datapaths: &[Arc<dyn Datapath>],
        unavailable: Vec<Unavailable>,
    ) -> Result<Runtime, StartError> {
        start(config, datapaths, unavailable, Form::Threads).map(|(runtime, _)| runtime)
    }

    /// Starts a runtime whose only lane the application drives while it waits for messages; a thread
    /// drives it otherwise.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left behind.
    pub fn start_inline(
        config: Config,
        datapaths: &[Arc<dyn Datapath>],
        unavailable: Vec<Unavailable>,
    ) -> Result<(Runtime, Arc<InlineLane>), StartError> {
        let lanes = config.lanes.len();
        match start(config, datapaths, unavailable, Form::Inline)? {
            (runtime, Some(lane)) => Ok((runtime, lane)),
            _ => Err(StartError::InlineLanes(lanes)),
        }
    }
}

fn start(
    config: Config,
    datapaths: &[Arc<dyn Datapath>],
    unavailable: Vec<Unavailable>,
    form: Form,
) -> Result<(Runtime, Option<Arc<InlineLane>>), StartError> {
    let count = config.lanes.len();
    if count == 0 || count > MAX_LANES {
        return Err(StartError::Lanes(count));
    }
    if matches!(form, Form::Inline) && count != 1 {
        return Err(StartError::InlineLanes(count));
    }
    if datapaths.is_empty() {
        return Err(StartError::NoDatapath);
    }
    check_lanes(&config)?;
    KeyMissing::check_all(&config)?;
    if !config.security.is_on() {
        tracing::warn!(
            "peers are NOT authenticated (`security.protection = \"none\"`): whoever can send to this node can read and write its channels"
        );
    }
    let control_address = SocketAddr::new(config.address, config.port);
    let socket = UdpSocket::bind(control_address).map_err(|source| StartError::Peering {
        address: control_address,
        source,
    })?;
    socket.set_nonblocking(true)?;
    // As far as it is permitted: what others flood it with leaves room for peers.
    let asked = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, PEERING_BUFFER);
    let _ = asked
        .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(&socket, PEERING_BUFFER));

    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let wake = Arc::new(eventfd(0, flags).map_err(std::io::Error::from)?);
    let (event_sender, events) = channel();
    let event_sender = EventSender {
        events: event_sender,
        wake: wake.clone(),
    };

    let mut unavailable: Vec<(String, String)> = unavailable
        .into_iter()
        .map(|u| (u.name, u.reason))
        .collect();
    let opened = open_ports(&config, datapaths, &mut unavailable)?;
    let mut rng = rand::rng();
    // The same after a restart, so that sinks know the sources of before again.
    let numbers = config.security.numbers();
    let label = numbers.number(&[
        b"label",
        config.name.as_bytes(),
        control_address.to_string().as_bytes(),
    ]);
    let mut lanes = Vec::new();
    let mut infos = Vec::new();
    let mut mesh_addresses = Vec::new();
    for (index, ports) in opened.into_iter().enumerate() {
        let incarnation = rng.random_range(1..=u32::MAX);
        let mut endpoints = Vec::new();
        let mut port_infos = Vec::new();
        for port in &ports {
            let local = port.port.local();
            let traits = datapaths.iter().find(|d| d.kind() == port.kind);
            let traits = traits.map(|datapath| datapath.capabilities());
            let speaks_udp = traits.as_ref().is_some_and(|traits| traits.speaks_udp);
            if port.trusted {
                mesh_addresses.push(local);
            } else {
                let own = traits.is_some_and(|traits| traits.own_addresses);
                let takes = port.port.longest_received();
                endpoints.push(Endpoint {
                    datapath: port.kind.0.into(),
                    port: local.port(),
                    takes: u16::try_from(takes).unwrap_or(u16::MAX),
                    udp: speaks_udp,
                    address: own.then(|| local.ip()),
                });
            }
            port_infos.push(PortInfo {
                kind: port.kind,
                local,
                traffic: port.traffic.clone(),
                departures: port.departure_counters(),
                speaks_udp,
                between_lanes: port.trusted,
                resolver: port.port.resolver(),
            });
        }
        let counters = Arc::default();
        let (mut lane, handle) = Lane::new(
            index,
            incarnation,
            label,
            ports,
            &config.limits,
            config.clock.clone(),
            Arc::clone(&counters),
            event_sender.clone(),
        )?;
        let delays = lane.delays();
        lane.set_departure(config.departure);
        lanes.push(lane);
        infos.push(LaneInfo {
            handle,
            counters,
            delays,
            ports: port_infos,
            announcement: LaneAnnouncement {
                incarnation,
                endpoints,
            },
            sessions: 0,
        });
    }

    let node = rng.random_range(1..=u64::MAX);
    let announcements = infos.iter().map(|i| i.announcement.clone()).collect();
    let local = Local {
        incarnation: node,
        name: config.name.clone(),
        label,
        lanes: announcements,
    };
    let scout = match &config.scout {
        Some(scout) => Some(
            Scouting::open(scout, socket.local_addr()?).map_err(|source| StartError::Scout {
                interface: scout.interface.clone(),
                source,
            })?,
        ),
        None => None,
    };
    let mut peering = Peering::new(local, config.security.clone(), config.accept.clone());
    peering.set_meeting(config.meeting.clone());
    for peer in &config.peers {
        peering.add(*peer, Duration::ZERO, &mut Effects::default());
    }
    let mut routes = Routes::new(label, config.security.protection, wake.clone());
    let between = routes.connect_lanes(&infos, &mesh_addresses);
    let (jobs_sender, jobs) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let there = datapaths
        .iter()
        .filter(|d| !unavailable.iter().any(|(name, _)| name == d.kind().0));
    let faults = Faults::watch(there.clone(), &wake);
    let there = there.map(|d| (d.kind(), d.capabilities())).collect();
    let listeners = config.listeners.clone();
    let configured = config.schedules.clone().into_iter();
    let kept = config.kept_schedules.clone().into_iter();
    let lane_configs = config.lanes.clone();
    let networks = Networks::new(config.networks.clone(), count, Host::new(wake.clone()));
    let balancing = Balancing::new(config.balance, count);
    let mut control = Control {
        clock: config.clock.clone(),
        clock_status: None,
        numbers,
        config,
        incarnation: node,
        started: Instant::now(),
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?,
        strangers: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?,
        ready: VecDeque::new(),
        reaper: Reaper::default(),
        wake: wake.clone(),
        events,
        jobs,
        lanes: infos,
        datapaths: there,
        unavailable,
        faults,
        socket,
        scout,
        peering,
        routes,
        interests: Interests::default(),
        sources: Sources::default(),
        next_progress: Duration::ZERO,
        networks,
        memory: Memory::new(most_of_memory()),
        listeners: HashMap::new(),
        next_listener: 0,
        next_without: super::listener::FIRST_WITHOUT,
        sessions: BTreeMap::new(),
        ends: Default::default(),
        session_ids: SessionIds::default(),
        schedules: HashMap::new(),
        absent_schedules: Vec::new(),
        streams_moved: 0,
        mapped_channels: BTreeMap::new(),
        moves: Default::default(),
        balancing,
        to_map: VecDeque::new(),
        admissions: 0,
        ended: Default::default(),
        channels: BTreeMap::new(),
        wants_changed: std::collections::BTreeSet::new(),
        opened_sinks: Vec::new(),
        direct: Default::default(),
        last_ring: 0,
        direct_given_up: 0,
        arrivals: Vec::new(),
        label,
        next_tick: Duration::ZERO,
        captures: Captures::default(),
        drain: None,
        incomplete: false,
        stop: stop.clone(),
    };
    control.watch(wake.as_fd(), Token::Wake)?;
    control.watch(control.socket.as_fd(), Token::Peering)?;
    control.watch(control.strangers.as_fd(), Token::Strangers)?;
    if let Some(scout) = &control.scout {
        control.watch(scout.as_fd(), Token::Scout)?;
    }
    control.command_all(between);
    let configured = configured.map(|asked| (asked, Origin::Configured));
    let kept = kept.map(|KeptSchedule { asked, running }| (asked, Origin::Kept { running }));
    for (asked, origin) in configured.chain(kept) {
        let datapath = asked.datapath.clone();
        match control.install_schedule(asked.clone(), origin) {
            Ok(_) => {}
            // Nothing leaves by a datapath that is not there.
            Err(error @ ScheduleError::Datapath { .. }) => {
                let Origin::Kept { running } = origin else {
                    tracing::warn!(datapath, "schedule not installed: {error}");
                    continue;
                };
                tracing::warn!(
                    datapath,
                    "schedule not installed, and kept for a start with its datapath (`takt schedule remove --datapath {datapath}` forgets it): {error}"
                );
                let kept = KeptSchedule { asked, running };
                control.absent_schedules.push(kept);
            }
            Err(source) => return Err(StartError::Schedule { datapath, source }),
        }
    }
    let networks = control.networks.all();
    control.command_all(networks);
    // One that cannot be opened is no reason to keep the others from their work.
    let mut failed = None;
    for listener in listeners {
        let path = listener.path.clone();
        if let Err(error) = control.set_listener(listener) {
            tracing::error!(path = %path.display(), %error, "listener left out: mend it and reload");
            failed = failed.or(Some(error));
        }
    }
    if let Some(error) = failed
        && control.listeners.is_empty()
    {
        return Err(error.into());
    }

    let lane_handles: Vec<LaneHandle> = control.lanes.iter().map(|l| l.handle.clone()).collect();
    let mut threads = Vec::new();
    let mut inline = None;
    for (index, (lane, lane_config)) in lanes.into_iter().zip(lane_configs).enumerate() {
        let stop = stop.clone();
        let builder = std::thread::Builder::new().name(format!("takt-lane-{index}"));
        threads.push(match form {
            Form::Threads => builder.spawn(move || idle::run(lane, &lane_config, &stop))?,
            Form::Inline => {
                let lane = Arc::new(InlineLane::new(lane)?);
                inline = Some(lane.clone());
                builder.spawn(move || lane.run(&lane_config, &stop))?
            }
        });
    }
    threads.push(
        std::thread::Builder::new()
            .name(CONTROL_THREAD.into())
            .spawn(move || control.run())?,
    );
    let handle = RuntimeHandle {
        jobs: jobs_sender,
        wake,
        lanes: lane_handles.clone().into(),
    };
    Ok((
        Runtime {
            handle,
            stop,
            lanes: lane_handles,
            threads,
        },
        inline,
    ))
}

/// Whether all lanes that datapaths and classes name are there.
fn check_lanes(config: &Config) -> Result<(), StartError> {
    let last = config.lanes.len() - 1;
    let datapaths = config.datapath_lanes.iter();
    let datapaths = datapaths.map(|(name, lanes)| (format!("datapath {name}"), lanes));
    let classes = config.class_lanes.iter();
    let classes = classes.map(|(class, lanes)| (format!("class {class}"), lanes));
    for (what, lanes) in datapaths.chain(classes) {
        if lanes.is_empty() || lanes.iter().any(|&lane| lane > last) {
            let lanes = lanes.clone();
            return Err(StartError::NoSuchLane { what, lanes, last });
        }
    }
    Ok(())
}

/// Opens the ports of every lane that carries a datapath; a datapath that fails on one lane is given up on all, unless it is the first.
fn open_ports(
    config: &Config,
    datapaths: &[Arc<dyn Datapath>],
    unavailable: &mut Vec<(String, String)>,
) -> Result<Vec<Vec<LanePort>>, StartError> {
    let count = config.lanes.len();
    let mut lanes: Vec<Vec<LanePort>> = (0..count).map(|_| Vec::new()).collect();
    for (at, datapath) in datapaths.iter().enumerate() {
        let mut opened = Vec::new();
        let carriers = config.lanes_of(datapath.kind().0);
        for (number, &lane) in carriers.iter().enumerate() {
            let address = match (datapath.capabilities().own_addresses, config.address) {
                (false, address) => address,
                (true, IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
                (true, IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let bind = SocketAddr::new(address, config.data_port(at, lane));
            let request = PortRequest {
                lane: number as u16,
                lanes: carriers.len() as u16,
                bind,
            };
            match datapath.open(&request) {
                Ok(port) => opened.push((lane, port)),
                Err(source) if at == 0 => {
                    return Err(StartError::Port {
                        lane,
                        datapath: datapath.kind().to_string(),
                        source,
                    });
                }
                Err(error) => {
                    tracing::warn!(datapath = %datapath.kind(), %error, "datapath left out");
                    unavailable.push((datapath.kind().to_string(), error.to_string()));
                    opened.clear();
                    break;
                }
            }
        }
        // A device knows no clock but the kernel's.
        let kept = datapath.capabilities().hardware_launch_time && config.clock.is_the_kernels();
        for (lane, port) in opened {
            lanes[lane].push(LanePort::new(
                datapath.kind(),
                port,
                false,
                Arc::default(),
                Some(&config.departure),
                kept,
            ));
        }
    }
    if count > 1 {
        connect(&mut lanes, &config.departure)?;
    }
    Ok(lanes)
}

/// Gives each lane a port to the others, and tells each which of their traffic may reach it.
fn connect(lanes: &mut [Vec<LanePort>], departure: &Departure) -> Result<(), StartError> {
    // Whoever takes datagrams of any length, as kernel sockets do, has none for other lanes.
    let ports = lanes.iter().flatten();
    let longest = ports.map(|port| port.port.longest_received());
    let longest = longest
        .filter(|&longest| longest < usize::from(u16::MAX))
        .max();
    let network = MemoryNetwork::new(MemoryNetworkConfig {
        max_payload: (longest.unwrap_or(0) + PASSED_ON_LEN).max(MESH_PAYLOAD),
        queue_depth: MESH_DEPTH,
        ..MemoryNetworkConfig::default()
    });
    let datapath = network.datapath();
    let address = |lane: usize| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), lane as u16 + 1);
    let count = lanes.len();
    let mut mesh = Vec::new();
    for lane in 0..count {
        let request = PortRequest {
            lane: lane as u16,
            lanes: count as u16,
            bind: address(lane),
        };
        let port = datapath.open(&request).map_err(|source| StartError::Port {
            lane,
            datapath: datapath.kind().to_string(),
            source,
        })?;
        mesh.push(LanePort::new(
            datapath.kind(),
            port,
            true,
            Arc::default(),
            Some(departure),
            false,
        ));
    }
    for (lane, mesh) in mesh.iter_mut().enumerate() {
        for other in (0..count).filter(|&other| other != lane) {
            let Ok(peer) = mesh.port.connect(address(other)) else {
                continue;
            };
            for at in 0..lanes[lane].len() {
                // Kernel sockets never get another lane's datagrams; queues of a device do.
                let kind = lanes[lane][at].kind;
                if let Some(port) = lanes[other].iter().find(|port| port.kind == kind) {
                    let port = port.port.local().port();
                    lanes[lane][at].siblings.push((port, peer));
                }
            }
        }
    }
    for (lane, mesh) in lanes.iter_mut().zip(mesh) {
        lane.push(mesh);
    }
    Ok(())
}

/// A lane that the application drives while it waits, and a thread drives otherwise.
pub struct InlineLane {
    lane: Mutex<Lane>,
    /// Rounds of the application. Several of its threads may miss some: only that it changes matters.
    driven: AtomicU64,
    /// The thread has told the applications that the lane sleeps.
    parked: AtomicBool,
    /// Frames wait for their launch time: the thread sees to them whoever drives the lane.
    timed: AtomicBool,
    /// The thread stays away, as long as it is not called.
    away: AtomicBool,
    /// The application sleeps since it drove the lane last.
    handed_back: AtomicBool,
    /// Wakes the thread when it stays away.
    call: OwnedFd,
}

/// The thread stays away for this long after it has seen the application at it, and longer while it
/// sees it again and again: each look takes the core from the application.
const APPLICATION_DRIVES: std::ops::Range<Duration> =
    Duration::from_millis(1)..Duration::from_millis(4);

/// How soon the thread looks again while frames wait and the application drives the lane.
const LOOK_AGAIN: Duration = Duration::from_micros(20);

impl InlineLane {
    fn new(lane: Lane) -> std::io::Result<Self> {
        Ok(Self {
            lane: Mutex::new(lane),
            driven: AtomicU64::new(0),
            parked: AtomicBool::new(false),
            timed: AtomicBool::new(false),
            away: AtomicBool::new(false),
            handed_back: AtomicBool::new(false),
            call: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// One round, unless another thread is at it. True if there was work.
    #[inline]
    pub fn drive(&self) -> bool {
        // Also when the thread is at it: it then leaves the lane to the application.
        let rounds = self.driven.load(Ordering::Relaxed);
        self.driven.store(rounds.wrapping_add(1), Ordering::Relaxed);
        let mut lane = match self.lane.try_lock() {
            Ok(lane) => lane,
            Err(TryLockError::WouldBlock) => {
                // Whoever is at it may be waiting for this very core.
                rustix::thread::sched_yield();
                return false;
            }
            Err(TryLockError::Poisoned(_)) => idle::panicked(0),
        };
        // Written with the lane in hand only: no exchange is needed.
        if self.parked.load(Ordering::Relaxed) {
            self.parked.store(false, Ordering::Relaxed);
            lane.unpark();
            // That took away what would have woken the thread, which may sleep on: but this thread drives one round, and
            // a long message takes several.
            self.call_thread();
        }
        let worked = lane.poll();
        if worked && lane.due().is_some() && !self.timed.load(Ordering::Relaxed) {
            self.timed.store(true, Ordering::Relaxed);
            self.call_thread();
        }
        worked
    }

    /// The application drives the lane no more: it goes to sleep, and the thread sees to what comes from now on.
    pub fn hand_back(&self) {
        // Partner: `stay_away`, which does the same in the other order: one of the two sees the other.
        self.handed_back.store(true, Ordering::SeqCst);
        if self.away.load(Ordering::SeqCst) {
            self.call_thread();
        }
    }

    fn call_thread(&self) {
        // EAGAIN: the counter is full, so the thread is called.
        let _ = rustix::io::write(&self.call, &1u64.to_ne_bytes());
    }

    /// The thread stays away, unless it is called.
    fn stay_away(&self, time: Duration) {
        if self.timed.load(Ordering::Relaxed) {
            return;
        }
        let timeout = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        self.away.store(true, Ordering::SeqCst);
        if !self.handed_back.load(Ordering::SeqCst) {
            let mut fds = [PollFd::new(&self.call, PollFlags::IN)];
            // Interrupted: the thread looks a little earlier.
            let _ = rustix::event::poll(&mut fds, Some(&timeout));
        }
        self.away.store(false, Ordering::SeqCst);
        self.called();
    }

    /// The thread has heard the call.
    fn called(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.call, &mut count);
    }

    /// Whether the application has driven the lane since `seen` was up to date.
    fn driven_by_application(&self, seen: &mut u64) -> bool {
        let now = self.driven.load(Ordering::Relaxed);
        std::mem::replace(seen, now) != now
    }

    /// The thread's part, until `stop`.
    fn run(&self, config: &LaneConfig, stop: &AtomicBool) {
        let _guard = idle::EndsWithProcess(0);
        idle::place_thread(config, 0);
        let mut idle = IdleStrategy::new(config.idle);
        let sleeper = self.lane.lock().map(|lane| {
            let mut sleeper = lane.sleeper()?;
            // The application unparks the lane without waking this thread.
            sleeper.watch(self.call.try_clone()?);
            Ok::<_, std::io::Error>(sleeper)
        });
        let mut sleeper = match sleeper {
            Ok(Ok(sleeper)) => sleeper,
            _ => {
                return tracing::error!(
                    "cannot copy the lane's descriptors: it is driven by the application alone"
                );
            }
        };
        let mut seen = 0;
        let mut away = APPLICATION_DRIVES.start;
        while !stop.load(Ordering::Relaxed) {
            let driven = self.driven_by_application(&mut seen)
                && !self.handed_back.swap(false, Ordering::SeqCst);
            if driven && !self.timed.load(Ordering::Relaxed) {
                self.stay_away(away);
                away = (away * 2).min(APPLICATION_DRIVES.end);
                continue;
            }
            away = APPLICATION_DRIVES.start;
            // Never waits for the lock: each release of it would then be a system call.
            let Ok(mut lane) = self.lane.try_lock() else {
                if self.timed.load(Ordering::Relaxed) {
                    // The application is at it now; it may leave before something is due.
                    std::thread::sleep(LOOK_AGAIN);
                } else {
                    self.stay_away(away);
                }
                continue;
            };
            self.timed.store(lane.due().is_some(), Ordering::Relaxed);
            if lane.poll() {
                idle.worked(lane.has_more());
            } else if idle.idled() == Step::Park
                && let Some(timeout) = lane.park()
            {
                self.parked.store(true, Ordering::Relaxed);
                sleeper.follow(&lane);
                drop(lane);
                sleeper.sleep(timeout);
                self.called();
                idle.slept();
                if self.driven_by_application(&mut seen) {
                    continue;
                }
                if let Ok(mut lane) = self.lane.try_lock()
                    && self.parked.load(Ordering::Relaxed)
                {
                    self.parked.store(false, Ordering::Relaxed);
                    lane.unpark();
                }
            }
        }
    }
}

/// What to do about a peering port that cannot be bound.
fn remedy(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrNotAvailable => {
            "no interface of this machine has the address: `ip address` shows those that there are"
        }
        std::io::ErrorKind::PermissionDenied => "configure a `port` from 1024 on",
        _ => "is another runtime on this node? configure another `port`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> Lane {
        let (events, _) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"));
        let (lane, _handle) = Lane::new(
            0,
            1,
            2,
            Vec::new(),
            &crate::config::Limits::default(),
            Arc::new(takt_clock::SystemTai),
            Arc::default(),
            EventSender { events, wake },
        )
        .expect("a lane");
        lane
    }

    #[test]
    fn an_application_that_takes_over_a_sleeping_lane_wakes_its_thread() {
        let lane = InlineLane::new(lane()).expect("an eventfd");
        let called = || rustix::io::read(&lane.call, &mut [0; 8]).is_ok();

        lane.drive();
        assert!(!called(), "the thread is awake");
        lane.lane.lock().expect("the lane").park();
        lane.parked.store(true, Ordering::Relaxed);
        lane.drive();
        assert!(called(), "what woke the thread was taken away");
        lane.drive();
        assert!(!called(), "once is enough");
    }

    #[test]
    fn an_application_that_goes_to_sleep_calls_the_thread_back() {
        let lane = Arc::new(InlineLane::new(lane()).expect("an eventfd"));
        let called = || rustix::io::read(&lane.call, &mut [0; 8]).is_ok();
        lane.drive();
        lane.hand_back();
        assert!(!called(), "the thread is at it");
        // It sees that before it stays away.
        lane.stay_away(Duration::from_millis(900));
        assert!(lane.handed_back.swap(false, Ordering::SeqCst));
        // The thread stays away already.
        lane.away.store(true, Ordering::SeqCst);
        lane.hand_back();
        assert!(called(), "it is called");
    }
}
