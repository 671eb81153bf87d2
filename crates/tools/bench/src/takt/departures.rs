//! How exactly messages leave at their launch times, beside a bare loop that only sleeps and spins to the same
//! instants, and then sends: the machine's floor.
//!
//! The runtimes of both hosts are in this process, each with its lane on a core of its own: as a daemon has it
//! (a thread polls the lane), or embedded (the application drives it while it waits, a thread otherwise). A
//! port around the datapath's own takes the time of each hand-over to the technology: the instant
//! that the runtime's own histogram counts, but exactly, and the one that the bare loop ends at. What a program says of
//! itself is checked at the other end of the cable, by that kernel's stamps.

use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use takt::{ChannelId, Outcome, Qos, Session, TaiTime, TrafficClass, Wait};
use takt_clock::{Clock, SystemTai};
use takt_datapath::{
    Capabilities, ConnectError, Datagram, Datapath as Technology, DatapathKind, Frame, OpenError,
    PeerHandle, Port, PortCounters, PortRequest, ReserveError,
};
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_datapath_xdp::{XdpConfig, XdpDatapath};
use takt_lab::Host;
pub use takt_runtime::config::Idle;
use takt_runtime::config::{Config, LaneConfig};
use takt_runtime::peering::keys::Security;
use takt_runtime::policy::Policy;
use takt_runtime::{InlineLane, Runtime};

use super::wire::Wire;
use super::{Datapath, Form, PORT, TaktError};
use crate::application::rendezvous;
use crate::awake::pin_to;
use crate::experiment::Sample;
use crate::peers::Pair;
use crate::statistics::Latencies;

/// A figure that a run gives besides the errors: by the runtime's own count.
pub const LATE: &str = "later than 100 µs";
/// The median of the errors as they come by at the other end of the cable.
pub const WIRE_P50: &str = "on the wire p50 µs";
/// The same, of 99 of 100.
pub const WIRE_P99: &str = "on the wire p99 µs";
/// How many came by before their time.
pub const EARLY: &str = "early on the wire";

const CHANNEL: ChannelId = ChannelId(7);
const CLASS: TrafficClass = match TrafficClass::new(7) {
    Some(class) => class,
    None => TrafficClass::BEST_EFFORT,
};
/// Octets of the launch time that a message begins with.
const STAMP: usize = 8;
/// How long ahead of its launch time a message is emitted, in periods.
const AHEAD: i64 = 5;
/// How long before its instant the bare loop wakes up.
const BARE_MARGIN: Duration = Duration::from_micros(250);
/// The port that it sends to.
const BARE_PORT: u16 = 7300;
const SILENCE: Duration = Duration::from_secs(5);

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Time between two instants.
    pub period: Duration,
    /// Instants to measure; a tenth more warm up.
    pub count: u32,
    /// Octets of each message, 8 at least.
    pub payload: usize,
}

impl Run {
    fn warm_up(&self) -> usize {
        self.count as usize / 10
    }

    /// The instants, from a multiple of the period on that leaves `head` periods of time.
    fn instants(&self, head: i64) -> impl Iterator<Item = TaiTime> + use<> {
        let period = i64::try_from(self.period.as_nanos()).unwrap_or(i64::MAX);
        let now = SystemTai.now().as_nanos();
        let first = now - now.rem_euclid(period) + head.saturating_mul(period);
        let all = self.warm_up() as i64 + i64::from(self.count);
        (0..all).map(move |at| TaiTime::from_nanos(first + at * period))
    }

    /// The errors of the instants after the warm-up: pairs of when something was to be and when it was.
    fn errors(&self, pairs: impl Iterator<Item = (TaiTime, TaiTime)>) -> Latencies {
        let mut errors = Latencies::new();
        for (planned, left) in pairs.skip(self.warm_up()) {
            errors.record_ns(left.nanos_since(planned).unsigned_abs());
        }
        errors
    }
}

/// The errors of messages with these launch times on the wire, all of which have been sent.
fn on_wire(
    wire: &Wire,
    run: &Run,
    planned: &[TaiTime],
) -> Result<BTreeMap<String, f64>, TaktError> {
    let captured = wire.captured()?;
    let of = |launch: &TaiTime| Some((*launch, *captured.get(&launch.as_nanos())?));
    let pairs: Vec<(TaiTime, TaiTime)> = planned.iter().filter_map(of).collect();
    if pairs.len() < planned.len() {
        let missing = planned.len() - pairs.len();
        let reason = format!("{missing} messages have left and were not seen on the wire");
        return Err(TaktError::runtime("measure departures")(reason));
    }
    let early = pairs.iter().filter(|(launch, at)| at < launch).count();
    let mut figures = BTreeMap::from([(EARLY.to_owned(), early as f64)]);
    if let Some(percentiles) = run.errors(pairs.into_iter()).percentiles() {
        figures.insert(WIRE_P50.to_owned(), percentiles.p50 / 1e3);
        figures.insert(WIRE_P99.to_owned(), percentiles.p99 / 1e3);
    }
    Ok(figures)
}

/// The bare loop on the near core, which sends a datagram at each instant.
///
/// # Errors
/// When its thread cannot be placed, or a datagram is not sent or not seen on the wire.
pub fn bare(run: &Run, pair: &Pair<'_>) -> Result<Sample, TaktError> {
    let bind = |host: &Host| {
        let _inside = host.enter()?;
        let socket = UdpSocket::bind((host.address(), BARE_PORT));
        socket.map_err(TaktError::io("open a socket"))
    };
    // The far one only is there.
    let (near, far) = (bind(pair.near)?, bind(pair.far)?);
    let connected = far.local_addr().and_then(|address| near.connect(address));
    connected.map_err(TaktError::io("connect a socket"))?;
    let mut message = vec![0; run.payload];
    let mut send = |stamp: i64| {
        message[..STAMP].copy_from_slice(&stamp.to_le_bytes());
        near.send(&message)
            .map(drop)
            .map_err(TaktError::io("send a datagram"))
    };
    // The kernel asks for the far side's address first.
    send(0)?;
    let wire = Wire::of(pair.near, BARE_PORT)?;
    let pairs = spin(run, pair.near_core, |instant| send(instant.as_nanos()))?;
    let planned: Vec<TaiTime> = pairs.iter().map(|(instant, _)| *instant).collect();
    let mut sample = Sample::from(run.errors(pairs.into_iter()));
    sample.figures = on_wire(&wire, run, &planned)?;
    Ok(sample)
}

/// Sleeps and spins to the instants, and does something there: the instants, and when it was there.
fn spin(
    run: &Run,
    core: usize,
    mut there: impl FnMut(TaiTime) -> Result<(), TaktError> + Send,
) -> Result<Vec<(TaiTime, TaiTime)>, TaktError> {
    on_core(core, || {
        // Exact timers, as lanes have them.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))
            .map_err(|errno| TaktError::io("have exact timers")(errno.into()))?;
        let mut pairs = Vec::with_capacity(run.warm_up() + run.count as usize);
        for instant in run.instants(2) {
            let wait = instant.nanos_since(SystemTai.now());
            if let Ok(wait) = u64::try_from(wait) {
                std::thread::sleep(Duration::from_nanos(wait).saturating_sub(BARE_MARGIN));
            }
            let mut now = SystemTai.now();
            while now < instant {
                std::hint::spin_loop();
                now = SystemTai.now();
            }
            pairs.push((instant, now));
            there(instant)?;
        }
        Ok(pairs)
    })
}

/// Messages with launch times from the near host to the far one, which a bridge joins: at the end of a cable between them, the
/// far AF_XDP would take what is to be seen.
///
/// # Errors
/// When a runtime cannot be started or used, or a message does not leave.
pub fn departures(
    form: Form,
    path: Datapath,
    idle: Idle,
    pair: &Pair<'_>,
    run: &Run,
) -> Result<Sample, TaktError> {
    // The thread that makes the runtimes goes into their hosts, and its threads with it.
    on_core(pair.far_core, || {
        let far = Node::start(
            Form::Daemon,
            path,
            Idle::default(),
            (pair.far, pair.far_core),
            pair.near,
            None,
        )?;
        let log = Arc::new(Log::new(run));
        let near = Node::start(
            form,
            path,
            idle,
            (pair.near, pair.near_core),
            pair.far,
            Some((&log, run.payload)),
        )?;
        let wire = Wire::of_lane(pair.near, path)?;
        let (planned, late) = talk(&near, &far, path, run, &log)
            .map_err(|error| TaktError::runtime("send at instants")(error.to_string()))?;
        let left = log.of(&planned).ok_or_else(|| {
            let reason = "a message was emitted and did not leave";
            TaktError::runtime("measure departures")(reason.into())
        })?;
        let figures = on_wire(&wire, run, &planned)?;
        let mut sample = Sample::from(run.errors(planned.into_iter().zip(left)));
        sample.figures = figures;
        sample.figures.insert(LATE.to_owned(), late as f64);
        Ok(sample)
    })
}

/// Emits the messages and waits until all have left: their launch times, and how many were late.
fn talk(
    near: &Node,
    far: &Node,
    path: Datapath,
    run: &Run,
    log: &Log,
) -> Result<(Vec<TaiTime>, u64), Box<dyn std::error::Error + Send + Sync>> {
    let qos = match path {
        Datapath::Udp => Qos::slow(),
        Datapath::Xdp => Qos::fast(),
    };
    let qos = qos.time_sensitive(CLASS);
    let (session, far_session) = (near.session()?, far.session()?);
    let stream = session.stream(qos)?;
    let wanted = match path {
        Datapath::Udp => UdpDatapath::KIND,
        Datapath::Xdp => XdpDatapath::KIND,
    };
    if stream.datapath() != wanted.0 {
        return Err(stream.warning().unwrap_or_default().into());
    }
    let source = stream.source(CHANNEL)?;
    let sink = far_session.stream(qos)?.sink(CHANNEL)?;
    rendezvous(&source, run.payload)?;
    let period = run.period.as_nanos() as i64;
    let mut planned = Vec::with_capacity(run.warm_up() + run.count as usize);
    let mut tokens = Vec::with_capacity(planned.capacity());
    for launch in run.instants(2 * AHEAD) {
        let emit = launch.saturating_add_nanos(-AHEAD * period);
        if let Ok(wait) = u64::try_from(emit.nanos_since(SystemTai.now())) {
            std::thread::sleep(Duration::from_nanos(wait));
        }
        let mut buffer = source.buffer_wait(run.payload, Wait::For(SILENCE))?;
        buffer[..STAMP].copy_from_slice(&launch.as_nanos().to_le_bytes());
        tokens.push(buffer.emit_at(launch)?);
        planned.push(launch);
        // What has come is released, so that the far side does not count it as lost.
        while sink.consume(Wait::Never).is_ok() {}
    }
    let end = Instant::now() + SILENCE;
    while log.of(&planned).is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    let lost = tokens.iter().filter(|token| {
        matches!(
            source.outcome(**token),
            Outcome::Late | Outcome::NotScheduled
        )
    });
    let lost = lost.count();
    if lost > 0 {
        return Err(format!("{lost} messages were refused or dropped").into());
    }
    let classes = near.runtime.handle().schedules()?;
    let late = classes
        .iter()
        .map(|status| status.classes[usize::from(CLASS.number())].frames.sent_late);
    Ok((planned, late.sum()))
}

/// A runtime in one of the hosts.
struct Node {
    runtime: Runtime,
    lane: Option<Arc<InlineLane>>,
}

impl Node {
    fn start(
        form: Form,
        path: Datapath,
        idle: Idle,
        (host, core): (&Host, usize),
        peer: &Host,
        watched: Option<(&Arc<Log>, usize)>,
    ) -> Result<Self, TaktError> {
        let config = Config {
            name: host.name().to_owned(),
            address: host.address().into(),
            port: PORT,
            lanes: vec![LaneConfig {
                idle,
                core: Some(core),
                ..LaneConfig::default()
            }],
            peers: vec![SocketAddr::from((peer.address(), PORT)).into()],
            security: Security::none(),
            ..Config::default()
        };
        let _inside = host.enter()?;
        let mut technologies: Vec<Arc<dyn Technology>> =
            vec![Arc::new(UdpDatapath::new(UdpConfig::default()))];
        if path == Datapath::Xdp {
            let xdp = XdpDatapath::probe(XdpConfig::new(host.interface()))
                .map_err(|error| TaktError::runtime("use AF_XDP")(error.to_string()))?;
            technologies.push(Arc::new(xdp));
        }
        // The last one is the one that is measured.
        if let (Some((log, payload)), Some(last)) = (watched, technologies.last_mut()) {
            *last = Arc::new(Watched {
                inner: last.clone(),
                log: log.clone(),
                payload,
            });
        }
        let failed = |error: takt_runtime::StartError| {
            TaktError::runtime("start a runtime")(error.to_string())
        };
        let (runtime, lane) = match form {
            Form::Daemon => (
                Runtime::start(config, &technologies, Vec::new()).map_err(failed)?,
                None,
            ),
            Form::Embedded => {
                let started = Runtime::start_inline(config, &technologies, Vec::new());
                let (runtime, lane) = started.map_err(failed)?;
                (runtime, Some(lane))
            }
        };
        Ok(Self { runtime, lane })
    }

    fn session(&self) -> Result<Session, Box<dyn std::error::Error + Send + Sync>> {
        let socket: OwnedFd = self.runtime.handle().connect(Policy::default())??;
        let lane = self.lane.clone();
        let progress = lane.map(|lane| Arc::new(Drive(lane)) as Arc<dyn takt::Progress>);
        Ok(Session::builder().name("bench").over(socket, progress)?)
    }
}

/// Lets a waiting application drive the lane.
struct Drive(Arc<InlineLane>);

impl takt::Progress for Drive {
    fn progress(&self) {
        self.0.drive();
    }

    fn sleeps(&self) {
        self.0.hand_back();
    }
}

/// When messages were handed over: what they begin with, and the instant.
struct Log(Mutex<Vec<(i64, TaiTime)>>);

impl Log {
    fn new(run: &Run) -> Self {
        let expected = run.warm_up() + run.count as usize;
        // And those by which the sides find each other.
        Self(Mutex::new(Vec::with_capacity(2 * expected + 1024)))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(i64, TaiTime)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the messages with these launch times were handed over; `None`: not all were.
    fn of(&self, launches: &[TaiTime]) -> Option<Vec<TaiTime>> {
        let left: HashMap<i64, TaiTime> = self.lock().iter().copied().collect();
        let of = |launch: &TaiTime| left.get(&launch.as_nanos()).copied();
        launches.iter().map(of).collect()
    }
}

/// A technology whose ports note when frames are handed over.
struct Watched {
    inner: Arc<dyn Technology>,
    log: Arc<Log>,
    /// Octets of a message.
    payload: usize,
}

impl Technology for Watched {
    fn kind(&self) -> DatapathKind {
        self.inner.kind()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open(&self, request: &PortRequest) -> Result<Box<dyn Port>, OpenError> {
        Ok(Box::new(WatchedPort {
            inner: self.inner.open(request)?,
            log: self.log.clone(),
            payload: self.payload,
            committed: Vec::with_capacity(64),
        }))
    }
}

struct WatchedPort {
    inner: Box<dyn Port>,
    log: Arc<Log>,
    payload: usize,
    /// What the messages begin with that wait for the next flush.
    committed: Vec<i64>,
}

impl Port for WatchedPort {
    fn local(&self) -> std::net::SocketAddr {
        self.inner.local()
    }

    fn connect(&mut self, remote: std::net::SocketAddr) -> Result<PeerHandle, ConnectError> {
        self.inner.connect(remote)
    }

    fn connect_link(&mut self, interface: Option<u32>) -> Result<PeerHandle, ConnectError> {
        self.inner.connect_link(interface)
    }

    fn disconnect(&mut self, peer: PeerHandle) {
        self.inner.disconnect(peer);
    }

    fn max_payload(&self, peer: PeerHandle) -> usize {
        self.inner.max_payload(peer)
    }

    fn reserve(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        self.inner.reserve(peer)
    }

    fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        self.inner.payload(frame)
    }

    fn commit(
        &mut self,
        frame: Frame,
        len: usize,
        class: TrafficClass,
        launch_time: Option<TaiTime>,
    ) {
        // A datagram ends with its message.
        let datagram = &self.inner.payload(&frame)[..len];
        let message = datagram.get(len.saturating_sub(self.payload)..);
        if let Some(stamp) = message.and_then(|message| message.first_chunk::<STAMP>()) {
            self.committed.push(i64::from_le_bytes(*stamp));
        }
        self.inner.commit(frame, len, class, launch_time);
    }

    fn cancel(&mut self, frame: Frame) {
        self.inner.cancel(frame);
    }

    fn flush(&mut self) -> bool {
        if !self.committed.is_empty() {
            let at = SystemTai.now();
            let committed = self.committed.drain(..);
            self.log.lock().extend(committed.map(|stamp| (stamp, at)));
        }
        self.inner.flush()
    }

    fn receive(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        self.inner.receive(budget, deliver)
    }

    fn receive_costs_syscall(&self) -> bool {
        self.inner.receive_costs_syscall()
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.wait_fds()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

/// Does it in a thread of its own on `core`: the caller's thread stays where it is.
fn on_core<R: Send>(
    core: usize,
    job: impl FnOnce() -> Result<R, TaktError> + Send,
) -> Result<R, TaktError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            pin_to(core).map_err(TaktError::io(format!("pin a thread to core {core}")))?;
            job()
        });
        thread.join().unwrap_or_else(|_| {
            Err(TaktError::runtime("measure departures")(
                "the measuring thread broke down".into(),
            ))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Run = Run {
        period: Duration::from_millis(1),
        count: 100,
        payload: 64,
    };

    #[test]
    fn instants_are_multiples_of_the_period_ahead_of_now() {
        let now = SystemTai.now();
        let instants: Vec<TaiTime> = RUN.instants(3).collect();
        assert_eq!(instants.len(), 110);
        assert!(instants[0] > now);
        for (at, instant) in instants.iter().enumerate() {
            assert_eq!(instant.as_nanos() % 1_000_000, 0);
            assert_eq!(instant.nanos_since(instants[0]), at as i64 * 1_000_000);
        }
    }

    #[test]
    fn errors_count_on_both_sides_and_without_the_warm_up() {
        let pairs = RUN.instants(1).enumerate().map(|(at, instant)| {
            let off = [1_000_000, -30, 30][usize::from(at >= 10) + usize::from(at >= 60)];
            (instant, instant.saturating_add_nanos(off))
        });
        let errors = RUN.errors(pairs);
        assert_eq!(errors.count(), 100);
        let percentiles = errors.percentiles().expect("errors");
        assert_eq!((percentiles.min, percentiles.max), (30.0, 30.0));
    }

    #[test]
    fn the_bare_loop_is_never_early() {
        let cores = crate::awake::usable_cores().expect("cores");
        let pairs = spin(&RUN, cores[0], |_| Ok(())).expect("instants");
        assert_eq!(pairs.len(), 110);
        assert!(pairs.iter().all(|(instant, at)| at >= instant));
    }
}
