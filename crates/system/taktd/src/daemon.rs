//! From the command line to the exit code: start, serve, reload on SIGHUP, drain on SIGTERM.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use takt_runtime::control::{RuntimeHandle, Stopped, Unresponsive};
use takt_session::place;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::admin::SocketError;
use crate::admin::server::AdminApi;
use crate::config::{ConfigError, Settings};
use crate::logging::LogLevel;
use crate::metrics::{BindError, MOST_CONNECTIONS, MetricsServer};
use crate::node::Node;
use crate::outline;

/// Exit codes, signals and files, as printed below the help.
pub const HELP: &str = "\
Signals:
  SIGTERM, SIGINT  stop cleanly: send what applications have emitted, tell them and the peers;
                   a second one stops at once
  SIGHUP           read the configuration again

Exit codes:
  0  stopped cleanly; with --check: the configuration is good
  1  cannot start, stopped before everything was sent, or hangs (--watchdog)
  2  wrong arguments
  4  the configuration cannot be read or is at fault

Environment:
  TAKT_SOCKET        where applications attach, unless the configuration names a `listener.path`
  TAKT_ADMIN_SOCKET  where `takt` asks, unless the configuration names an `admin.socket`; without
                     them the sockets are in /run/takt, or in $XDG_RUNTIME_DIR/takt for a user who
                     may not write there
  RUST_LOG           overrides `log.level` of the configuration
  NOTIFY_SOCKET      where to tell readiness, reloads and stopping (see sd_notify(3))";

/// The exit code of a configuration that cannot be used.
pub const EXIT_CONFIG: u8 = 4;

/// How often the control thread and the lanes must answer, unless systemd's watchdog wants it more often.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often what is free of the heap is given back.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(5);
/// How often is looked whether a schedule has begun, to note it for the next start.
const KEEP_EVERY: Duration = Duration::from_secs(1);
/// How long callers of the admin API, and then the threads of the runtime, get to finish.
const FAREWELL: Duration = Duration::from_secs(2);
/// Calls that wait for the control thread at a time; others queue behind them.
const MOST_CALLS: usize = 16;

/// What both `taktd` and `takt run` take.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Options {
    /// Configuration file; without it /etc/takt/takt.toml, or the defaults if that is not there
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Who ends a daemon that hangs.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Watchdog {
    /// End with status 1 when a lane or the control thread has not answered for so long, for a supervisor that starts it again
    /// and is not systemd, whose watchdog (WatchdogSec=) does the same
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    watchdog: Option<u32>,
}

/// The daemon of a Takt node: applications attach to it by its sockets, and it carries their messages.
#[derive(clap::Parser)]
#[command(name = "taktd", version, after_help = HELP)]
pub struct Arguments {
    /// As `takt run` has them.
    #[command(flatten)]
    pub options: Options,
    /// As `takt run` has it.
    #[command(flatten)]
    pub watchdog: Watchdog,
    /// Check the configuration, print what would run, and exit
    #[arg(long)]
    pub check: bool,
}

/// Why the daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The runtime.
    #[error("cannot start: {0}")]
    Start(#[from] crate::node::NodeError),
    /// The admin API.
    #[error("cannot start: {0}")]
    Admin(#[from] SocketError),
    /// Metrics.
    #[error("cannot start: {0}")]
    Metrics(#[from] BindError),
    /// The user's own directory for sockets.
    #[error("cannot start: {0}")]
    Directory(std::io::Error),
    /// Any other system call.
    #[error("cannot serve: {0}")]
    System(#[from] std::io::Error),
    /// The runtime does not answer any more.
    #[error("the control thread has ended: restart the daemon, and report what it logged")]
    ControlEnded,
    /// A second signal did not let it finish.
    #[error("stopped at once: messages may not have been sent")]
    NotDrained,
    /// It took longer than `drain_seconds`.
    #[error(
        "stopped after {0} s (`drain_seconds` in [node]) before everything was sent: what was left is lost, as for launch times later than that, or sinks without room"
    )]
    DrainedInPart(u64),
}

impl DaemonError {
    /// The exit code that tells it, see [`HELP`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => EXIT_CONFIG,
            _ => 1,
        }
    }
}

/// Checks the configuration. Returns what would run, for people.
///
/// # Errors
/// [`DaemonError::Config`].
pub fn check(options: &Options) -> Result<String, DaemonError> {
    let settings = Settings::load(options.config.as_deref())?;
    Ok(outline::of(&settings))
}

/// Runs the daemon in the foreground until a signal stops it.
///
/// # Errors
/// [`DaemonError`].
pub fn run(options: &Options, watchdog: Watchdog) -> Result<(), DaemonError> {
    let settings = Settings::load(options.config.as_deref())?;
    let log = LogLevel::install(&settings.file.log);
    raise_descriptor_limit();
    own_directory(&settings)?;
    let settings = settings.with_keys()?;
    // Administration and metrics are rare and small: one thread serves them.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Scrapes of metrics take nobody else's turn.
        .max_blocking_threads(MOST_CALLS + MOST_CONNECTIONS)
        .build()?
        .block_on(serve(settings, options.config.clone(), log, watchdog))
}

/// Makes the user's own directory for sockets where that is where they are, and says so.
fn own_directory(settings: &Settings) -> Result<(), DaemonError> {
    let directory = place::user_directory();
    let listeners = settings.runtime.listeners.iter();
    let sockets = listeners.map(|listener| listener.path.as_path());
    let mut sockets = sockets.chain([settings.admin.0.as_path()]);
    if sockets.any(|socket| socket.parent() == Some(&directory)) {
        place::make_private(&directory).map_err(DaemonError::Directory)?;
        tracing::info!(
            "not run by root: sockets are in {}, for programs of this user",
            directory.display()
        );
    }
    Ok(())
}

/// The signals that the daemon acts on.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn serve(
    settings: Settings,
    file: Option<PathBuf>,
    log: LogLevel,
    Watchdog { watchdog }: Watchdog,
) -> Result<(), DaemonError> {
    let watchdog = watchdog.map(|seconds| Duration::from_secs(seconds.into()));
    // Before anything is there that a signal could leave behind.
    let mut signals = Signals::new()?;
    let (socket, mode) = settings.admin.clone();
    let admin = AdminApi::bind(&socket, mode)?;
    let metrics = match settings.metrics {
        Some(address) => Some(MetricsServer::bind(address).await?),
        None => None,
    };
    let node = Arc::new(Node::start(settings, file, Some(log))?);
    let (stop, stopping) = watch::channel(false);
    let mut servers = JoinSet::new();
    servers.spawn({
        let (node, stopping) = (node.clone(), stopping.clone());
        async move {
            if let Err(error) = admin.serve(node, stopping).await {
                tracing::error!(%error, "the admin API has ended");
            }
        }
    });
    if let Some(metrics) = metrics {
        servers.spawn(metrics.serve(node.clone(), stopping));
    }
    let mut clock = crate::clock::Watch::new(node.clone());
    // Whoever installs a schedule as soon as the node is ready is answered by what is so.
    clock.look().await;
    tokio::spawn(clock.run());
    tokio::spawn(give_memory_back());
    tokio::spawn(keep_schedules(node.clone()));
    greet(&node, &socket);
    tell(&[NotifyState::Ready, NotifyState::Status("ready")]);

    let ended = begin_heartbeat(node.handle().clone(), watchdog)?;
    let outcome = tokio::select! {
        _ = ended => Err(DaemonError::ControlEnded),
        outcome = attend(&node, &mut signals) => outcome,
    };

    stop.send_replace(true);
    // Callers that do not finish are hung up on.
    let _ = tokio::time::timeout(FAREWELL, async {
        while servers.join_next().await.is_some() {}
    })
    .await;
    let stopping = node.clone();
    let stopped = blocking(move || stopping.stop());
    if tokio::time::timeout(FAREWELL, stopped).await.is_err() {
        tracing::error!("a thread of the runtime does not stop: leaving without it");
        std::process::exit(1);
    }
    tracing::info!("stopped");
    outcome
}

/// Acts on signals until one of them asks to stop and everything is sent.
async fn attend(node: &Arc<Node>, signals: &mut Signals) -> Result<(), DaemonError> {
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            _ = signals.hangup.recv() => {
                tokio::spawn(reload(node.clone()));
            }
        }
    }
    tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
    let within = node.settings().drain;
    tracing::info!(seconds = within.as_secs(), "draining");
    tokio::select! {
        sent = drain(node.handle().clone(), within)? => match sent {
            Ok(false) => Err(DaemonError::DrainedInPart(within.as_secs())),
            // Stopped, and nothing is left to drain.
            Ok(true) | Err(_) => Ok(()),
        },
        () = signals.stop() => Err(DaemonError::NotDrained),
    }
}

/// Drains in a thread of its own, which waits for no other caller: whether everything was sent; an error: the runtime has stopped.
fn drain(handle: RuntimeHandle, within: Duration) -> std::io::Result<oneshot::Receiver<bool>> {
    let (done, drained) = oneshot::channel();
    std::thread::Builder::new()
        .name("taktd-drain".into())
        .spawn(move || {
            if let Ok(sent) = handle.drain(within) {
                // Who asked is in a hurry, and has gone.
                let _ = done.send(sent);
            }
        })?;
    Ok(drained)
}

/// Begins to ask the control thread and the lanes whether they are at work, in a thread of its own, which waits for no other
/// caller of theirs: the receiver is told when there is no control thread any more.
fn begin_heartbeat(
    handle: RuntimeHandle,
    watchdog: Option<Duration>,
) -> std::io::Result<oneshot::Receiver<()>> {
    let (alive, ended) = oneshot::channel();
    std::thread::Builder::new()
        .name("taktd-heartbeat".into())
        .spawn(move || {
            heartbeat(&handle, watchdog);
            drop(alive);
        })?;
    Ok(ended)
}

/// Asks them again and again. Tells systemd's watchdog as long as all of them answer, and ends the process when they have not for
/// `watchdog`; ends when there is no control thread any more.
fn heartbeat(handle: &RuntimeHandle, watchdog: Option<Duration>) {
    let of_systemd = sd_notify::watchdog_enabled();
    // An answer may take as long again.
    let every = of_systemd.into_iter().chain(watchdog).min();
    let every = every.map_or(HEARTBEAT, |within| within / 3);
    let mut silent_for = Duration::ZERO;
    loop {
        let began = Instant::now();
        match handle.heartbeat(every) {
            Ok(()) => {
                silent_for = Duration::ZERO;
                if of_systemd.is_some() {
                    tell(&[NotifyState::Watchdog]);
                }
            }
            Err(Unresponsive::Stopped(_)) => return,
            Err(silent) => {
                tracing::error!(reason = %silent, "the runtime hangs");
                // Not by the clock: this process may have been stopped meanwhile.
                silent_for += every;
                if watchdog.is_some_and(|watchdog| silent_for >= watchdog) {
                    tracing::error!("ending, so that it is started again (--watchdog)");
                    std::process::exit(1);
                }
            }
        }
        std::thread::sleep(every.saturating_sub(began.elapsed()));
    }
}

/// Has the kernel follow schedules that have begun, and writes down anew which ones run, so that it does at the next start even if the clock has fallen
/// behind by then.
async fn keep_schedules(node: Arc<Node>) {
    let mut times = tokio::time::interval(KEEP_EVERY);
    times.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut failed = false;
    loop {
        times.tick().await;
        let keeping = node.clone();
        let look = move || {
            keeping.follow_schedules()?;
            keeping.keep_schedules()
        };
        let kept = match blocking(look).await {
            Ok(Ok(kept)) => kept,
            Ok(Err(Stopped)) | Err(_) => return,
        };
        if let Err(error) = &kept
            && !failed
        {
            tracing::error!("schedules are not kept for the next start of the node: {error}");
        }
        failed = kept.is_err();
    }
}

/// Gives the kernel what ended sessions have left free of the heap, again and again.
async fn give_memory_back() {
    let mut times = tokio::time::interval(GIVE_BACK_EVERY);
    times.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        if blocking(takt_shm::heap::give_back).await.is_err() {
            return;
        }
    }
}

/// The first lines of an operator's log: what carries messages, and what runs where.
fn greet(node: &Node, admin: &std::path::Path) {
    let handle = node.handle();
    let (Ok(status), Ok(datapaths), Ok(listeners)) =
        (handle.status(), handle.datapaths(), handle.listeners())
    else {
        return;
    };
    let datapaths = datapaths.iter().map(|datapath| match &datapath.state {
        Ok(capabilities) => format!("{} ({})", datapath.name, capabilities.detail),
        Err(reason) => format!("no {} ({reason})", datapath.name),
    });
    tracing::info!("datapaths: {}", datapaths.collect::<Vec<_>>().join("; "));
    for (name, mtu) in narrow_interfaces() {
        tracing::warn!(
            "{name} has an MTU of {mtu}: peers do not find each other over it below {LEAST_MTU}; ip link set dev {name} mtu 1500"
        );
    }
    let sockets = listeners
        .iter()
        .map(|listener| listener.path.display().to_string());
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        node = status.name,
        address = %status.control_address,
        lanes = status.lanes.len(),
        applications = sockets.collect::<Vec<_>>().join(","),
        admin = %admin.display(),
        "ready"
    );
}

/// Sessions need descriptors: as many as whoever started the daemon allows.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, current = limit.current, "cannot raise the limit of descriptors");
    }
}

/// The smallest MTU that hellos of peers and first fragments surely fit into: that of IPv6 (RFC 8200, section 5).
pub const LEAST_MTU: u32 = 1280;

/// Network interfaces with a smaller one, and theirs.
fn narrow_interfaces() -> Vec<(String, u32)> {
    let interfaces = std::fs::read_dir("/sys/class/net").into_iter().flatten();
    let interfaces = interfaces.flatten().filter_map(|interface| {
        let mtu = std::fs::read_to_string(interface.path().join("mtu")).ok()?;
        let mtu = mtu.trim_end().parse().ok()?;
        Some((interface.file_name().to_string_lossy().into_owned(), mtu))
    });
    interfaces.filter(|(_, mtu)| *mtu < LEAST_MTU).collect()
}

/// Waits for the control thread without holding up the others.
async fn blocking<R: Send + 'static>(
    job: impl FnOnce() -> R + Send + 'static,
) -> Result<R, tokio::task::JoinError> {
    tokio::task::spawn_blocking(job).await
}

/// A reload by signal: its outcome goes to the log.
async fn reload(node: Arc<Node>) {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
    match blocking(move || node.reload()).await {
        Ok(Ok(report)) => report.log(),
        Ok(Err(error)) => tracing::error!(%error, "nothing reloaded"),
        Err(error) => tracing::error!(%error, "reload failed"),
    }
    tell(&[NotifyState::Ready]);
}

/// Tells the service manager, if there is one.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot tell the service manager: check NOTIFY_SOCKET");
    }
}
