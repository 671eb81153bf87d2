//! A running runtime with what it was configured from, and what a reload changes of it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use takt_runtime::config::{KeptSchedule, LinkSchedule, ListenerConfig};
use takt_runtime::control::{ListenError, ScheduleError, Stopped};
use takt_runtime::peering::PeerStatus;
use takt_runtime::{Runtime, RuntimeHandle, StartError};
use takt_time::TaiTime;

use crate::admin::{listener, proto};
use crate::config::{self, ConfigError, Settings};
use crate::datapaths::{Assembled, assemble};
use crate::kept::{self, KeptError};
use crate::logging::LogLevel;
use crate::other_traffic::{OtherTraffic, Problem, Told};
use crate::security::{self, KeyFileError, PrivateKey, PublicKey};

/// A node in operation. Dropping it stops it at once.
pub struct Node {
    handle: RuntimeHandle,
    /// Stops when it is dropped.
    runtime: Mutex<Option<Runtime>>,
    started: Instant,
    /// The file named by the operator, if any.
    file: Option<PathBuf>,
    settings: Mutex<Settings>,
    /// Listeners that come back at the next start, as they were set. Held while one is set or removed, so that what is
    /// written down is what is there.
    kept: Mutex<Vec<proto::Listener>>,
    /// Schedules as they were last written down. Held from when the runtime is asked for them until then, so that nothing
    /// older is written over it.
    kept_schedules: Mutex<Vec<KeptSchedule>>,
    /// Held while a schedule is installed or removed, so that the kernel has the gates that the runtime has.
    other_traffic: Mutex<OtherTraffic>,
    log: Option<LogLevel>,
}

/// Why a schedule is not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The runtime refuses it.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The kernel does not keep what others send.
    #[error("other traffic: {0}; or choose `port`, and `takt uplink` for it")]
    OtherTraffic(#[from] Problem),
}

/// Why a listener is not set, or not kept.
#[derive(Debug, thiserror::Error)]
pub enum SetListenerError {
    /// The runtime refuses it.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// There is no place to keep it.
    #[error(
        "keep: this node keeps nothing over a restart: set `node.state` to a directory in its configuration"
    )]
    NoState,
    /// It is set, and not written down.
    #[error("done, but not for the next start of the node: {0}")]
    NotKept(std::io::Error),
    /// There is no runtime any more.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a node does not get another key.
#[derive(Debug, thiserror::Error)]
pub enum NodeKeyError {
    /// There are none.
    #[error(
        "this node authenticates nobody (`security.protection = \"none\"`): it has no key to change"
    )]
    Off,
    /// It has none of its own.
    #[error(
        "this node has no key of its own: configure a `security.key_file` that it may write, and restart it"
    )]
    None,
    /// None was made.
    #[error(
        "this node has no next key, and its key is {0}: if that is the one that was made, it has it already; else `takt key rotate` \
         (NextKey) makes one, for its peers to list"
    )]
    NoNext(PublicKey),
    /// Another one was made.
    #[error("the next key of this node is {next}, not {wanted}: let its peers list that one")]
    Another {
        /// Which is wanted.
        wanted: PublicKey,
        /// Which is there.
        next: PublicKey,
    },
    /// Somebody has changed the file.
    #[error(
        "{0} holds another key than the one that was made: `takt key rotate` (NextKey) takes it, for its peers to list"
    )]
    Changed(PathBuf),
    /// Its file.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// There is no runtime any more.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The runtime.
    #[error(transparent)]
    Start(#[from] StartError),
    /// What was installed before.
    #[error(transparent)]
    Kept(#[from] KeptError),
}

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// What has changed, a line each.
    pub changed: Vec<String>,
    /// Sections and keys of the file that differ and have no effect before a restart.
    pub needs_restart: Vec<String>,
    /// What could not be changed, and why; everything else was.
    pub failed: Vec<String>,
}

impl Reloaded {
    /// Writes it to the log.
    pub fn log(&self) {
        for line in &self.changed {
            tracing::info!("reload: {line}");
        }
        for name in &self.needs_restart {
            tracing::warn!("reload: `{name}` differs and needs a restart");
        }
        for line in &self.failed {
            tracing::error!("reload: {line}");
        }
        if *self == Self::default() {
            tracing::info!("reload: nothing differs");
        }
    }
}

/// Why nothing was reloaded.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file is not usable; the node runs on as it was.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no runtime any more.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl Node {
    /// Starts a node. `file` is read again at a reload; the default one if `None`.
    ///
    /// # Errors
    /// [`NodeError`]; nothing is left behind.
    pub fn start(
        settings: Settings,
        file: Option<PathBuf>,
        log: Option<LogLevel>,
    ) -> Result<Self, NodeError> {
        let Assembled {
            datapaths,
            unavailable,
            priorities,
        } = assemble(&settings);
        let mut config = settings.runtime.clone();
        if let Some(state) = &settings.state {
            config.kept_schedules =
                kept::restore(state, config.clock.now(), &mut config.schedules)?;
        }
        let kept_schedules = Mutex::new(config.kept_schedules.clone());
        let runtime = Runtime::start(config, &datapaths, unavailable)?;
        let kept = restore_listeners(&settings, runtime.handle());
        let xdp_queues = settings.xdp.as_ref().and_then(|xdp| xdp.queues.clone());
        let mut other_traffic = OtherTraffic::new(priorities, xdp_queues);
        if let Ok(links) = runtime.handle().schedules() {
            other_traffic.follow(&links);
        }
        Ok(Self {
            other_traffic: Mutex::new(other_traffic),
            kept: Mutex::new(kept),
            kept_schedules,
            handle: runtime.handle().clone(),
            runtime: Mutex::new(Some(runtime)),
            started: Instant::now(),
            file,
            settings: Mutex::new(settings),
            log,
        })
    }

    /// Asks and changes the runtime.
    pub fn handle(&self) -> &RuntimeHandle {
        &self.handle
    }

    /// Time since the start.
    pub fn since_start(&self) -> Duration {
        self.started.elapsed()
    }

    /// Stops at once; [`RuntimeHandle::drain`] first for a clean exit. Every question is answered by
    /// [`Stopped`] afterwards.
    pub fn stop(&self) {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        drop(runtime.take());
        self.lock_other_traffic().release_all();
    }

    fn lock_other_traffic(&self) -> MutexGuard<'_, OtherTraffic> {
        // Whatever is half done is looked at again.
        let lock = self.other_traffic.lock();
        lock.unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a schedule on the link of a datapath, and has the kernel keep what others send by it, if that is wanted: when
    /// it begins.
    ///
    /// # Errors
    /// [`Stopped`]; inside, [`InstallError`]: then nothing has changed.
    pub fn install_schedule(
        &self,
        asked: LinkSchedule,
    ) -> Result<Result<TaiTime, InstallError>, Stopped> {
        let mut other_traffic = self.lock_other_traffic();
        if let Err(error) = self.handle.check_schedule(asked.clone())? {
            return Ok(Err(error.into()));
        }
        let links = self.handle.schedules()?;
        let link = links.iter().find(|link| link.datapath == asked.datapath);
        let address = link.and_then(|link| link.address);
        if let Err(problem) = other_traffic.install(address, &asked) {
            return Ok(Err(problem.into()));
        }
        let installed = self.handle.install_schedule(asked)?;
        // It may have been refused after all, and need not be the one that the kernel is to have now.
        other_traffic.follow(&self.handle.schedules()?);
        Ok(installed.map_err(InstallError::from))
    }

    /// Opens all gates of a datapath's link again; false if it has no schedule.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn remove_schedule(&self, datapath: String) -> Result<bool, Stopped> {
        let mut other_traffic = self.lock_other_traffic();
        let removed = self.handle.remove_schedule(datapath)?;
        other_traffic.follow(&self.handle.schedules()?);
        Ok(removed)
    }

    /// Has the kernel follow the schedules that have begun or ended.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn follow_schedules(&self) -> Result<(), Stopped> {
        let mut other_traffic = self.lock_other_traffic();
        other_traffic.follow(&self.handle.schedules()?);
        Ok(())
    }

    /// What of the kernel keeps what others send by the link of a datapath.
    pub fn other_traffic(&self, datapath: &str) -> Told {
        self.lock_other_traffic().told(datapath)
    }

    /// The datapaths of links where the kernel is to keep what others send, and whether it does.
    pub fn other_traffic_kept(&self) -> Vec<(String, bool)> {
        self.lock_other_traffic().kept()
    }

    /// Sets a listener; as `message` at the next start of the node as well, if that is wanted. Its streams are taken from the
    /// listener at `from` in the same step, if one is named.
    ///
    /// # Errors
    /// [`SetListenerError`].
    pub fn set_listener(
        &self,
        config: ListenerConfig,
        message: proto::Listener,
        keep: bool,
        from: Option<PathBuf>,
    ) -> Result<(), SetListenerError> {
        let state = self.settings().state;
        if keep && state.is_none() {
            return Err(SetListenerError::NoState);
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        self.handle.move_streams(config, from.clone())??;
        let mut wanted = kept.clone();
        let from = from.filter(|from| *from != Path::new(&message.path));
        let taken = |there: &&mut proto::Listener| from.as_deref() == Some(Path::new(&there.path));
        if let Some(there) = wanted.iter_mut().find(taken) {
            let moved = |name: &String| message.streams.iter().any(|s| s.name == *name);
            there.streams.retain(|stream| !moved(&stream.name));
        }
        match wanted.iter_mut().find(|there| there.path == message.path) {
            Some(there) if keep => *there = message,
            Some(_) => wanted.retain(|there| there.path != message.path),
            None if keep => wanted.push(message),
            None => {}
        }
        keep_listeners(state.as_deref(), &mut kept, wanted)
    }

    /// Closes a listener, also at the next start of the node. Whether there was one.
    ///
    /// # Errors
    /// [`SetListenerError::NotKept`], [`SetListenerError::Stopped`].
    pub fn remove_listener(&self, path: PathBuf) -> Result<bool, SetListenerError> {
        let state = self.settings().state;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = kept.clone();
        wanted.retain(|there| Path::new(&there.path) != path);
        let forgotten = wanted.len() < kept.len();
        let removed = self.handle.remove_listener(path)?;
        keep_listeners(state.as_deref(), &mut kept, wanted)?;
        Ok(removed || forgotten)
    }

    /// Writes down for the next start which schedules were installed by command and which of them run, if that has changed.
    ///
    /// # Errors
    /// [`Stopped`]; inside, the kernel's.
    pub fn keep_schedules(&self) -> Result<std::io::Result<()>, Stopped> {
        let Some(state) = self.settings().state else {
            return Ok(Ok(()));
        };
        let kept = self.kept_schedules.lock();
        let mut kept = kept.unwrap_or_else(PoisonError::into_inner);
        let wanted = self.handle.kept_schedules()?;
        if *kept != wanted {
            if let Err(error) = kept::write(&state, &wanted) {
                return Ok(Err(error));
            }
            *kept = wanted;
        }
        Ok(Ok(()))
    }

    /// The public key that the node is going to have: its key is made and kept if it is not there yet.
    ///
    /// # Errors
    /// [`NodeKeyError`].
    pub fn next_key(&self) -> Result<PublicKey, NodeKeyError> {
        let mut settings = self.lock();
        let file = key_file(&settings)?;
        let security = &mut settings.runtime.security;
        let next = security::next(&file, security.next.as_ref())?;
        if security.next.as_ref() != Some(&next) {
            self.handle.set_next_key(next.clone())?;
            tracing::info!(public = %next.public(), "made the next key of this node");
        }
        let public = next.public();
        security.next = Some(next);
        Ok(public)
    }

    /// The next key is the node's from now on, in its file first. `wanted`: no other one. The public key, and whether it was
    /// another before.
    ///
    /// # Errors
    /// [`NodeKeyError`]; the key is the one before.
    pub fn switch_key(&self, wanted: Option<PublicKey>) -> Result<(PublicKey, bool), NodeKeyError> {
        let mut settings = self.lock();
        let file = key_file(&settings)?;
        let security = &mut settings.runtime.security;
        let own = security.node.as_ref().map(PrivateKey::public);
        if let Some(wanted) = wanted.filter(|_| wanted == own) {
            return Ok((wanted, false));
        }
        let next = security.next.as_ref().map(PrivateKey::public);
        let Some(next) = next else {
            return Err(own.map_or(NodeKeyError::None, NodeKeyError::NoNext));
        };
        if let Some(wanted) = wanted.filter(|wanted| *wanted != next) {
            return Err(NodeKeyError::Another { wanted, next });
        }
        // The file may have gone, or have been changed.
        if security::next(&file, security.next.as_ref())?.public() != next {
            return Err(NodeKeyError::Changed(security::next_file(&file)));
        }
        security::switch(&file)?;
        security.switch();
        self.handle.switch_key()?;
        tracing::info!(public = %next, "this node has its next key");
        Ok((next, true))
    }

    /// What the node runs with, as of the last reload.
    pub fn settings(&self) -> Settings {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Settings> {
        // A reload that panicked has left whole settings: they are replaced by one assignment.
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the configuration again and puts in force what can change while the node runs: listeners,
    /// peers, `node.accept`, `node.drain_seconds`, `[balance]`, `[mapping]` and `log.level`. Peers and listeners that
    /// were added by the admin API, and not by the file, stay.
    ///
    /// # Errors
    /// [`ReloadError`]; an unusable file changes nothing.
    pub fn reload(&self) -> Result<Reloaded, ReloadError> {
        let new = Settings::load(self.file.as_deref())?;
        let mut settings = self.lock();
        let mut report = Reloaded {
            needs_restart: needs_restart(&settings, &new),
            ..Reloaded::default()
        };
        self.reload_listeners(&settings, &new, &mut report)?;
        self.reload_peers(&settings, &new, &mut report)?;
        let (old_file, new_file) = (&settings.file, &new.file);
        if old_file.node.accept != new_file.node.accept || old_file.mapping != new_file.mapping {
            self.handle
                .reload(new.runtime.mapping.clone(), new.runtime.accept.clone())?;
        }
        if old_file.balance != new_file.balance {
            self.handle.set_balance(new.runtime.balance)?;
        }
        for (what, same) in [
            ("balance", old_file.balance == new_file.balance),
            ("node.accept", old_file.node.accept == new_file.node.accept),
            ("mapping", old_file.mapping == new_file.mapping),
            (
                "node.drain_seconds",
                old_file.node.drain_seconds == new_file.node.drain_seconds,
            ),
        ] {
            if !same {
                report.changed.push(format!("{what} changed"));
            }
        }
        self.reload_log(&settings, &new, &mut report);
        // What needs a restart is compared with what runs, not with what was last read.
        let mut in_force = new;
        keep_unchangeable(&mut in_force, &settings);
        *settings = in_force;
        Ok(report)
    }

    fn reload_listeners(
        &self,
        old: &Settings,
        new: &Settings,
        report: &mut Reloaded,
    ) -> Result<(), Stopped> {
        // What the file says of a path holds at the next start, too: rights that it has taken away do not come back with a
        // listener that was kept there.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = kept.clone();
        let mut forget = |path: &Path| left.retain(|there| Path::new(&there.path) != path);
        let there = self.handle.listeners()?;
        let wanted: HashSet<&Path> = new
            .runtime
            .listeners
            .iter()
            .map(|l| l.path.as_path())
            .collect();
        for gone in &old.runtime.listeners {
            if wanted.contains(gone.path.as_path()) {
                continue;
            }
            forget(&gone.path);
            if self.handle.remove_listener(gone.path.clone())? {
                report
                    .changed
                    .push(format!("listener {} removed", gone.path.display()));
            }
        }
        for listener in &new.runtime.listeners {
            let path = listener.path.display();
            let verb = match there.iter().find(|l| l.path == listener.path) {
                Some(same) if same.policy == listener.policy && same.mode == listener.mode => {
                    forget(&listener.path);
                    continue;
                }
                Some(_) => "changed",
                None => "added",
            };
            match self.handle.set_listener(listener.clone())? {
                Ok(()) => {
                    forget(&listener.path);
                    report.changed.push(format!("listener {path} {verb}"));
                }
                Err(error) => report.failed.push(listen_failed(&error)),
            }
        }
        if let Err(error) = keep_listeners(old.state.as_deref(), &mut kept, left) {
            report.failed.push(format!("listener: {error}"));
        }
        Ok(())
    }

    fn reload_peers(
        &self,
        old: &Settings,
        new: &Settings,
        report: &mut Reloaded,
    ) -> Result<(), Stopped> {
        for gone in &old.runtime.peers {
            let address = gone.address;
            let there = new.runtime.peers.iter().any(|peer| peer.address == address);
            if !there && self.handle.remove_peer(address)? {
                report.changed.push(format!("peer {address} removed"));
            }
        }
        let there = self.handle.peers()?;
        for peer in &new.runtime.peers {
            let is_there = |p: &PeerStatus| p.configured && p.address == peer.address;
            // One that has another key since, by the admin API, keeps that.
            if old.runtime.peers.contains(peer) && there.iter().any(is_there) {
                continue;
            }
            match self.handle.add_peer(*peer)? {
                Ok(true) => report.changed.push(format!("peer {} added", peer.address)),
                Ok(false) => {}
                Err(error) => report.failed.push(error.to_string()),
            }
        }
        Ok(())
    }

    fn reload_log(&self, old: &Settings, new: &Settings, report: &mut Reloaded) {
        if old.file.log.level == new.file.log.level {
            return;
        }
        match &self.log {
            Some(log) if log.change(&new.file.log.level) => {
                report.changed.push("log.level changed".into());
            }
            Some(_) => report.failed.push(format!(
                "log.level: the variable {} overrides it; restart without it",
                crate::logging::LEVEL_VARIABLE
            )),
            None => report
                .failed
                .push("log.level: this process logs by another logger".into()),
        }
    }
}

/// Writes down which listeners to keep, if that has changed.
fn keep_listeners(
    state: Option<&Path>,
    kept: &mut Vec<proto::Listener>,
    wanted: Vec<proto::Listener>,
) -> Result<(), SetListenerError> {
    if let Some(state) = state.filter(|_| *kept != wanted) {
        kept::write_listeners(state, kept, &wanted).map_err(SetListenerError::NotKept)?;
        *kept = wanted;
    }
    Ok(())
}

/// Opens the listeners of before whose directories are still there. One whose streams do not fit the schedules of now is
/// opened without them and without their classes: it keeps what has no place in a schedule. One that cannot be opened is
/// told in the log. Both are tried again at the next start.
fn restore_listeners(settings: &Settings, handle: &RuntimeHandle) -> Vec<proto::Listener> {
    let Some(state) = &settings.state else {
        return Vec::new();
    };
    let mut kept = kept::listeners(state);
    kept.retain(|message| {
        let directory = Path::new(&message.path).parent();
        let there = directory.is_some_and(Path::is_dir);
        if !there {
            tracing::info!(
                path = message.path,
                "a kept listener's directory has gone, and so does it"
            );
        }
        there
    });
    let open = |message: proto::Listener| {
        let config = listener::from_message(message, &settings.admin.0);
        let config = config.map_err(|problem| (problem, false))?;
        let set = handle.set_listener(config);
        set.map_err(|stopped| (stopped.to_string(), false))?
            .map_err(|error| (error.to_string(), matches!(error, ListenError::Streams(_))))
    };
    let goes_before = |message: &proto::Listener| {
        let kept = listener::from_message(message.clone(), &settings.admin.0);
        let mut configured = settings.runtime.listeners.iter();
        kept.is_ok_and(|kept| configured.any(|there| there.path == kept.path && *there != kept))
    };
    for message in &kept {
        let mut opened = open(message.clone());
        if let Err((misfit, true)) = &opened {
            tracing::error!(
                path = message.path,
                "the streams of a kept listener have no place any more, and it is opened without them and their classes: {misfit}"
            );
            opened = open(without_streams(message.clone()));
        }
        match opened {
            Err((problem, _)) => tracing::error!(
                path = message.path,
                "a kept listener cannot be opened: {problem}"
            ),
            Ok(()) if goes_before(message) => tracing::warn!(
                path = message.path,
                "the configured listener is not in force: another was set by command and kept, and goes before it until the configuration is read again (`takt reload`)"
            ),
            Ok(()) => {}
        }
    }
    kept
}

/// A listener without its streams, and without the classes that nothing else bounds then.
fn without_streams(mut listener: proto::Listener) -> proto::Listener {
    let streams = std::mem::take(&mut listener.streams);
    let of_streams = |class: &u32| streams.iter().any(|s| s.traffic_class == *class);
    listener.classes.retain(|class| !of_streams(class));
    if listener.classes.is_empty() {
        // Its pod keeps its socket, for best effort.
        listener.classes.push(0);
    }
    listener
}

/// The file of the node's own key.
fn key_file(settings: &Settings) -> Result<PathBuf, NodeKeyError> {
    let security = &settings.runtime.security;
    match (security.is_on(), &security.node) {
        (false, _) => Err(NodeKeyError::Off),
        (true, None) => Err(NodeKeyError::None),
        (true, Some(_)) => {
            let file = settings.file.security.key_file.clone();
            Ok(file.unwrap_or_else(security::default_key_file))
        }
    }
}

fn listen_failed(error: &ListenError) -> String {
    format!("listener: {error}")
}

/// The sections and keys that differ and cannot change while the node runs.
fn needs_restart(old: &Settings, new: &Settings) -> Vec<String> {
    let (old, new) = (&old.file, &new.file);
    [
        ("node.name", old.node.name == new.node.name),
        ("node.address", old.node.address == new.node.address),
        ("node.port", old.node.port == new.node.port),
        ("security", old.security == new.security),
        ("scout", old.scout == new.scout),
        ("node.state", old.node.state == new.node.state),
        ("lane", old.lane == new.lane),
        ("class", old.class == new.class),
        ("schedule", old.schedule == new.schedule),
        ("network", old.network == new.network),
        ("limits", old.limits == new.limits),
        ("departure", old.departure == new.departure),
        ("clock", old.clock == new.clock),
        ("datapath.udp", old.datapath.udp == new.datapath.udp),
        ("datapath.xdp", old.datapath.xdp == new.datapath.xdp),
        (
            "datapath",
            old.datapath.plugins == new.datapath.plugins && old.node.plugins == new.node.plugins,
        ),
        ("admin", old.admin == new.admin),
        ("metrics", old.metrics == new.metrics),
        ("log.format", old.log.format == new.log.format),
    ]
    .into_iter()
    .filter(|(_, same)| !same)
    .map(|(name, _)| name.to_owned())
    .collect()
}

/// Takes over from `running` what [`needs_restart`] compares.
fn keep_unchangeable(new: &mut Settings, running: &Settings) {
    let mut file = new.file.clone();
    let old = running.file.clone();
    file.node.name = old.node.name;
    file.node.address = old.node.address;
    file.node.port = old.node.port;
    file.node.plugins = old.node.plugins;
    file.node.state = old.node.state;
    file.security = old.security;
    file.scout = old.scout;
    file.lane = old.lane;
    file.class = old.class;
    file.schedule = old.schedule;
    file.network = old.network;
    file.limits = old.limits;
    file.departure = old.departure;
    file.clock = old.clock;
    file.datapath = old.datapath;
    file.admin = old.admin;
    file.metrics = old.metrics;
    file.log.format = old.log.format;
    *new = config::Settings::from(file);
    new.runtime.security = running.runtime.security.clone();
}
