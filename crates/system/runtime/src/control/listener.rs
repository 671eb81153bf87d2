//! Listening sockets: who may attach, and with which rights.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{SocketAddrUnix, SocketFlags};
use takt_session::{ErrorCode, Failure};
use takt_wire::ethernet::MacAddress;

use super::account::{Account, Charge, Memory};
use super::admission::StreamsMisfit;
use super::credentials::Credentials;
use super::log_budget::{LogBudget, Verdict};
use super::session::{Finish, Session};
use super::{Control, Token};
use crate::config::ListenerConfig;
use crate::ids::SessionId;
use crate::lane::Command;
use crate::policing::{Flow, Policer};
use crate::policy::{Policy, Rates};
use crate::slots::Slots;
use crate::waking::Waking;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;
/// Numbers of tenants from here on are of those who come by no listener.
pub(super) const FIRST_WITHOUT: u32 = 1 << 31;
/// Connections accepted on one socket before others are looked at.
const BURST: usize = 16;
/// How long a socket is left alone on which nothing can be accepted for now.
const PAUSE: Duration = Duration::from_millis(100);
/// Ended sessions and refused connections of a tenant that may wait to be released.
const MOST_PENDING: usize = 256;
/// Descriptors that are kept from tenants: for operators, metrics, ports, logs.
const RESERVE: usize = 128;

/// Why a listening socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody answers on the path.
    #[error("another runtime listens on {0}: stop it, or configure another path")]
    InUse(PathBuf),
    /// The path holds something that is no socket.
    #[error("{0} exists and is no socket: remove it, or configure another path")]
    NoSocket(PathBuf),
    /// The endpoint is in no network of this node.
    #[error("endpoint.network: {0}")]
    Network(#[from] super::StationError),
    /// A lane is named that there is not.
    #[error("lanes: there is no lane {lane}: this node has lanes 0 to {last}")]
    NoSuchLane {
        /// As asked for.
        lane: usize,
        /// The last lane's number.
        last: usize,
    },
    /// Another tenant has the address.
    #[error(
        "endpoint: {address} is the address of tenant `{other}` in the same network: give each its own"
    )]
    Taken {
        /// The address, of either kind.
        address: String,
        /// Who has it.
        other: String,
    },
    /// Its streams do not fit the windows of a schedule.
    #[error("stream: {0}")]
    Streams(#[from] StreamsMisfit),
    /// A system call failed.
    #[error("cannot {action} {path}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A listening socket.
pub struct Listener {
    pub config: ListenerConfig,
    pub policy: Arc<Policy>,
    /// What all its sessions may send together.
    pub rates: Arc<Rates>,
    /// What its declared streams may send.
    pub policer: Arc<Policer>,
    pub refused: u64,
    /// What its sessions hold.
    pub account: Arc<Account>,
    log: LogBudget,
    /// Nothing is accepted until then.
    paused_until: Option<Duration>,
    socket: OwnedFd,
}

impl Listener {
    /// Opens the socket of a configuration; takes over a path that a dead runtime has left.
    pub fn open(config: ListenerConfig, memory: &Arc<Memory>) -> Result<Self, ListenError> {
        let path = config.path.clone();
        let failed = |action| {
            let path = path.clone();
            move |source: io::Error| ListenError::System {
                action,
                path,
                source,
            }
        };
        if let Some(directory) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            std::fs::create_dir_all(directory).map_err(failed("make the directory of"))?;
        }
        let address = SocketAddrUnix::new(&path).map_err(|e| failed("use the path")(e.into()))?;
        let socket = takt_session::transport::socket().map_err(failed("make a socket for"))?;
        match std::fs::symlink_metadata(&path) {
            Ok(found) if !found.file_type().is_socket() => return Err(ListenError::NoSocket(path)),
            Ok(_) => {
                let probe = takt_session::transport::socket().map_err(failed("probe"))?;
                rustix::io::ioctl_fionbio(&probe, true).map_err(|e| failed("probe")(e.into()))?;
                // EAGAIN: somebody listens, and has more to accept than it can.
                if let Ok(()) | Err(rustix::io::Errno::AGAIN) =
                    rustix::net::connect(&probe, &address)
                {
                    return Err(ListenError::InUse(path));
                }
                std::fs::remove_file(&path).map_err(failed("remove the stale socket"))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("examine")(error)),
        }
        rustix::net::bind(&socket, &address).map_err(|e| failed("bind")(e.into()))?;
        set_mode(&path, config.mode)?;
        rustix::net::listen(&socket, BACKLOG).map_err(|e| failed("listen on")(e.into()))?;
        rustix::io::ioctl_fionbio(&socket, true).map_err(|e| failed("prepare")(e.into()))?;
        let policy = Arc::new(config.policy.clone());
        let rates = Arc::new(Rates::new(&policy));
        let policer = Arc::new(Policer::new(&policy, &Policer::default()));
        Ok(Self {
            config,
            policy,
            rates,
            policer,
            refused: 0,
            account: Account::within(memory),
            log: LogBudget::default(),
            paused_until: None,
            socket,
        })
    }

    /// Removes the path: nobody can find the socket any more.
    pub fn unlink(&self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.config.path);
    }
}

impl Control {
    /// As [`set_admitted_listener`](Self::set_admitted_listener), for one whose streams are still to be checked.
    pub(super) fn set_listener(&mut self, config: ListenerConfig) -> Result<(), ListenError> {
        for check in self.checks_of_streams(&config.policy, Some(&config.path), None) {
            check.run()?;
        }
        self.set_admitted_listener(config)
    }

    /// Sets a listener, and takes the streams that it has by their names from the one at `from`, in one step.
    pub(super) fn move_admitted_streams(
        &mut self,
        config: ListenerConfig,
        from: Option<&Path>,
    ) -> Result<(), ListenError> {
        let others = from.filter(|from| *from != config.path);
        let others =
            others.and_then(|from| self.listeners.values().find(|l| l.config.path == from));
        let others = others.map(|listener| ListenerConfig {
            policy: listener.policy.without_streams_of(&config.policy),
            ..listener.config.clone()
        });
        self.set_admitted_listener(config)?;
        others.map_or(Ok(()), |others| self.set_admitted_listener(others))
    }

    pub(super) fn set_admitted_listener(
        &mut self,
        config: ListenerConfig,
    ) -> Result<(), ListenError> {
        self.check_endpoint(&config)?;
        let last = self.lanes.len() - 1;
        if let Some(&lane) = config.policy.lanes.iter().find(|&&lane| lane > last) {
            return Err(ListenError::NoSuchLane { lane, last });
        }
        self.admissions += 1;
        let descriptors = config.policy.descriptors;
        if let Some((&tenant, listener)) = self
            .listeners
            .iter_mut()
            .find(|(_, l)| l.config.path == config.path)
        {
            // Whatever fails does so before anything has changed.
            if listener.config.mode != config.mode {
                set_mode(&config.path, config.mode)?;
            }
            let old = listener.policy.clone();
            listener.policy = Arc::new(config.policy.clone());
            listener.rates.set(&config.policy);
            listener.config = config;
            let policy = listener.policy.clone();
            let policer = Arc::new(Policer::new(&policy, &listener.policer));
            listener.policer = policer.clone();
            // The priorities of tags are classes.
            let tags = policy
                .endpoint
                .as_ref()
                .is_some_and(|endpoint| !endpoint.vlans.is_empty());
            if policy.endpoint != old.endpoint
                || policy.ether_types != old.ether_types
                || tags && policy.classes != old.classes
            {
                self.end_senders_of_frames(tenant);
            }
            self.replace_policy(tenant, &policy);
            if policy.trust != old.trust {
                let theirs = self.sessions.values().filter(|s| s.tenant == tenant);
                let theirs: Vec<SessionId> = theirs.map(|s| s.id).collect();
                theirs.into_iter().for_each(|id| self.leave_domain(id));
            }
            let streams = !(old.streams.is_empty() && policy.streams.is_empty());
            if streams || policy.classes != old.classes {
                self.police(tenant, &policer);
            }
            // Its messages may be held back for the rates it had.
            self.lanes.iter().for_each(|lane| lane.handle.wake());
            self.check_descriptors_of_listeners(descriptors.saturating_sub(old.descriptors));
            return Ok(());
        }
        let listener = Listener::open(config, &self.memory)?;
        let id = self.next_listener;
        self.next_listener += 1;
        let path = listener.config.path.clone();
        let identity = listener.policy.identity.as_str();
        self.watch(listener.socket.as_fd(), Token::Listener(id))
            .map_err(|source| {
                listener.unlink();
                ListenError::System {
                    action: "watch",
                    path,
                    source,
                }
            })?;
        if there(&self.listeners, &self.sessions).all(|other| other != identity) {
            self.ended.begin(identity);
        }
        self.listeners.insert(id, listener);
        self.check_descriptors_of_listeners(descriptors);
        Ok(())
    }

    /// What the sessions of a tenant send is held to its streams as they are now.
    fn police(&mut self, tenant: u32, policer: &Arc<Policer>) {
        for session in self.sessions.values_mut().filter(|s| s.tenant == tenant) {
            session.policer = policer.clone();
            if let Some(unplaced) = &mut session.unplaced {
                unplaced.take_policer(policer.clone());
            }
        }
        for lane in &self.lanes {
            let policer = policer.clone();
            lane.handle.send(Command::Police { tenant, policer });
        }
    }

    pub(super) fn remove_listener(&mut self, path: &Path) -> bool {
        let Some(id) = self
            .listeners
            .iter()
            .find(|(_, l)| l.config.path == path)
            .map(|(id, _)| *id)
        else {
            return false;
        };
        if let Some(listener) = self.listeners.remove(&id) {
            listener.unlink();
            self.end_senders_of_frames(id);
            self.take_endpoint(id, &listener.policy);
            // Who waits for events holds what it looks at: it would be the last to close a socket that is closed
            // meanwhile, and wait.
            let _ = rustix::event::epoll::delete(&self.strangers, &listener.socket);
            // What waits to be accepted goes with it.
            self.reaper.release(id, listener);
        }
        true
    }

    /// Addresses belong to one tenant of a network.
    fn check_endpoint(&self, config: &ListenerConfig) -> Result<(), ListenError> {
        let Some(endpoint) = &config.policy.endpoint else {
            return Ok(());
        };
        self.networks.number(&endpoint.network)?;
        for listener in self.listeners.values() {
            let Some(other) = &listener.policy.endpoint else {
                continue;
            };
            if listener.config.path == config.path || other.network != endpoint.network {
                continue;
            }
            let taken = |address: String| ListenError::Taken {
                address,
                other: listener.policy.identity.clone(),
            };
            if other.mac == endpoint.mac {
                return Err(taken(MacAddress(endpoint.mac).to_string()));
            }
            let theirs = |address| other.addresses.iter().any(|(other, _)| *other == address);
            let mut ours = endpoint.addresses.iter().map(|(address, _)| *address);
            if let Some(address) = ours.find(|address| theirs(*address)) {
                return Err(taken(address.to_string()));
            }
        }
        Ok(())
    }

    /// Ends the sessions that send frames with the rights of a listener that has others now, or has gone:
    /// its addresses may be another's.
    fn end_senders_of_frames(&mut self, tenant: u32) {
        let sends =
            |s: &&Session| s.tenant == tenant && s.sources.iter().any(|e| e.channel.is_none());
        let senders: Vec<SessionId> = self
            .sessions
            .values()
            .filter(sends)
            .map(|session| session.id)
            .collect();
        for id in senders {
            let text = "the endpoint of its listener has changed: attach again";
            self.end_session(id, Some(Failure::new(ErrorCode::Disconnected, text)));
        }
    }

    /// Sessions that are left of a listener that has gone may not begin to send frames with its addresses: they may be another's.
    /// Streams of such frames need no place in a schedule any more.
    fn take_endpoint(&mut self, tenant: u32, policy: &Policy) {
        if policy.endpoint.is_none() {
            return;
        }
        let mut left = Policy {
            endpoint: None,
            ..policy.clone()
        };
        left.streams
            .retain(|stream| matches!(stream.flow, Flow::Channel(_)));
        self.replace_policy(tenant, &Arc::new(left));
    }

    /// Gives the sessions of a tenant another policy.
    fn replace_policy(&mut self, tenant: u32, policy: &Arc<Policy>) {
        for session in self.sessions.values_mut().filter(|s| s.tenant == tenant) {
            session.policy = policy.clone();
        }
    }

    pub(super) fn accept(&mut self, id: u32) {
        for _ in 0..BURST {
            // Who floods the socket waits for what it has left behind, and nobody else does.
            if self.reaper.pending(id) >= MOST_PENDING {
                return self.pause(id);
            }
            let Some(listener) = self.listeners.get_mut(&id) else {
                return;
            };
            let socket = match rustix::net::accept_with(&listener.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED) => return,
                Err(error) => {
                    if self.may_log(id) {
                        let path = self
                            .listeners
                            .get(&id)
                            .map(|l| l.config.path.display().to_string());
                        tracing::warn!(path, %error, "cannot accept an application: trying again soon");
                    }
                    return self.pause(id);
                }
            };
            let (policy, account) = (listener.policy.clone(), listener.account.clone());
            let tenant = (id, listener.rates.clone(), listener.policer.clone());
            let admitted = check_descriptors([&socket])
                .and_then(|()| {
                    Credentials::of(&socket).map_err(|error| {
                        Failure::new(
                            ErrorCode::System,
                            format!("cannot tell who connects: {error}"),
                        )
                    })
                })
                .and_then(|peer| {
                    check_user(peer.uid, &policy)?;
                    Ok((peer, Charge::session(&account, &policy)?))
                });
            let refusal = match admitted {
                Ok((peer, charge)) => match self.admit(socket, peer, policy, tenant, charge) {
                    Ok(()) => continue,
                    Err((socket, error)) => {
                        let text = format!("cannot take the application: {error}");
                        (socket, Failure::new(ErrorCode::System, text))
                    }
                },
                Err(failure) => (socket, failure),
            };
            let (socket, failure) = refusal;
            if let Some(listener) = self.listeners.get_mut(&id) {
                listener.refused += 1;
            }
            super::serve::end_connection(&socket, &failure);
            self.reaper.release(id, socket);
        }
    }

    /// Says so if applications may need more descriptors than this process has, since the last listeners with `newly` of them are
    /// there: the last of the applications are refused then.
    pub(super) fn check_descriptors_of_listeners(&self, newly: usize) {
        let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current
        else {
            return;
        };
        let wanted: usize = self.listeners.values().map(|l| l.policy.descriptors).sum();
        let (before, wanted) = (wanted.saturating_sub(newly), wanted);
        let [before, wanted] = [before, wanted].map(|count| (count + RESERVE) as u64);
        if before <= limit && wanted > limit {
            tracing::warn!(
                wanted,
                limit,
                "all listeners together may need more descriptors than the process has: raise LimitNOFILE of its unit, or lower `descriptors` of listeners"
            );
        }
    }

    /// Leaves a listening socket alone for a while.
    fn pause(&mut self, id: u32) {
        let until = self.now() + PAUSE;
        if let Some(listener) = self.listeners.get_mut(&id) {
            let _ = rustix::event::epoll::delete(&self.strangers, &listener.socket);
            listener.paused_until = Some(until);
            self.next_tick = self.next_tick.min(until);
        }
    }

    /// Looks at paused sockets again whose time has come.
    pub(super) fn resume_listeners(&mut self, now: Duration) {
        let mut next = Duration::MAX;
        let mut resumed = Vec::new();
        for (&id, listener) in &self.listeners {
            match listener.paused_until {
                Some(until) if now >= until => resumed.push(id),
                Some(until) => next = next.min(until),
                None => {}
            }
        }
        for id in resumed {
            let Some(listener) = self.listeners.get(&id) else {
                continue;
            };
            let watched = self.watch(listener.socket.as_fd(), Token::Listener(id));
            let again = watched.is_err().then(|| now + PAUSE);
            next = next.min(again.unwrap_or(Duration::MAX));
            if let Some(listener) = self.listeners.get_mut(&id) {
                listener.paused_until = again;
            }
        }
        self.next_tick = self.next_tick.min(next);
    }

    /// Whether a tenant may write another line to the log.
    pub(super) fn may_log(&mut self, tenant: u32) -> bool {
        let now = self.now();
        let Some(listener) = self.listeners.get_mut(&tenant) else {
            return true;
        };
        match listener.log.ask(now) {
            Verdict::LeaveOut => false,
            Verdict::Write(0) => true,
            Verdict::Write(left_out) => {
                tracing::info!(identity = %listener.policy.identity, left_out, "lines about this tenant's applications were left out");
                true
            }
        }
    }

    /// Which tenant those are who come by no listener, one for each name, and what they may send together.
    fn tenant_without(&mut self, policy: &Policy) -> (u32, Arc<Rates>, Arc<Policer>) {
        let mut without = self.sessions.values().filter(|s| s.tenant >= FIRST_WITHOUT);
        if let Some(known) = without.find(|s| s.policy.identity == policy.identity) {
            return (known.tenant, known.rates.clone(), known.policer.clone());
        }
        self.next_without = self.next_without.checked_add(1).unwrap_or(FIRST_WITHOUT);
        let policer = Policer::new(policy, &Policer::default());
        let rates = Arc::new(Rates::new(policy));
        (self.next_without, rates, Arc::new(policer))
    }

    /// Takes an application of this very process: its end needs no watching.
    pub(super) fn admit_embedded(&mut self, socket: OwnedFd, policy: Policy) -> io::Result<()> {
        let charge = Charge::session(&Arc::default(), &policy)
            .map_err(|failure| io::Error::other(failure.message))?;
        let peer = Credentials {
            process: None,
            ..Credentials::of(&socket)?
        };
        self.admissions += u64::from(!policy.streams.is_empty());
        let tenant = self.tenant_without(&policy);
        self.admit(socket, peer, Arc::new(policy), tenant, charge)
            .map_err(|(_, error)| error)
    }

    /// Takes a connected application; it attaches by its first request. On failure the socket is given back.
    fn admit(
        &mut self,
        socket: OwnedFd,
        peer: Credentials,
        policy: Arc<Policy>,
        (tenant, rates, policer): (u32, Arc<Rates>, Arc<Policer>),
        charge: Charge,
    ) -> Result<(), (OwnedFd, io::Error)> {
        let id = self.session_ids.next(|id| self.sessions.contains_key(&id));
        if let Err(error) = self.watch(socket.as_fd(), Token::Session(id)) {
            return Err((socket, error));
        }
        if let Some(process) = &peer.process
            && let Err(error) = self.watch(process, Token::Process(id))
        {
            let _ = rustix::event::epoll::delete(&self.strangers, &socket);
            return Err((socket, error));
        }
        // Its first stream may say otherwise.
        let lanes = self.lanes_of(&policy).into_iter();
        let lane = lanes.min_by_key(|&lane| self.lanes[lane].sessions);
        let lane = lane.unwrap_or(0);
        self.lanes[lane].sessions += 1;
        let session = Session {
            id,
            socket,
            waking: Waking::default(),
            process: peer.process,
            pid: peer.pid,
            uid: peer.uid,
            name: String::new(),
            policy,
            tenant,
            rates,
            policer,
            lane,
            moved: None,
            moving: false,
            waits: false,
            unplaced: None,
            since: self.now(),
            arena: None,
            streams: Slots::default(),
            sources: Slots::default(),
            sinks: Slots::default(),
            counters: Arc::default(),
            to_map: false,
            ending: false,
            finish: Finish::No,
            leaving_until: None,
            opening_sinks: Vec::new(),
            untold: Default::default(),
            room: None,
            direct_before: [0; 2],
            telling: false,
            unserved: Default::default(),
            charge,
        };
        self.sessions.insert(id, session);
        self.next_tick = self.next_tick.min(self.now() + super::ATTACH_WITHIN);
        Ok(())
    }
}

/// Sets the permission bits of a listening socket. Tenants may be able to write its directory: nothing else that lies at the
/// path, or that a link there names, is touched.
fn set_mode(path: &Path, mode: u32) -> Result<(), ListenError> {
    let failed = |source: io::Error| ListenError::System {
        action: "set the mode of",
        path: path.to_owned(),
        source,
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
    let found = rustix::fs::fstat(&file).map_err(|e| failed(e.into()))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(ListenError::NoSocket(path.to_owned()));
    }
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    let permissions = std::fs::Permissions::from_mode(mode);
    match std::fs::set_permissions(same, permissions.clone()) {
        // Without /proc, as below `chroot`: by its name, where it was found to be a socket just now.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::set_permissions(path, permissions)
        }
        set => set,
    }
    .map_err(failed)
}

fn check_user(uid: u32, policy: &Policy) -> Result<(), Failure> {
    if policy.uids.is_empty() || policy.uids.contains(&uid) {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::NotPermitted,
        format!(
            "user {uid} may not attach as tenant `{}`: ask the operator to extend `uids`",
            policy.identity
        ),
    ))
}

/// The names of tenants that have a listener or a session.
pub(super) fn there<'a>(
    listeners: &'a HashMap<u32, Listener>,
    sessions: &'a BTreeMap<SessionId, Session>,
) -> impl Iterator<Item = &'a str> {
    let listening = listeners.values().map(|listener| &listener.policy);
    let attached = sessions.values().map(|session| &session.policy);
    listening
        .chain(attached)
        .map(|policy| policy.identity.as_str())
}

/// Keeps a reserve of the process's descriptors from what applications have it open: the kernel gives out the lowest that is
/// free, so the numbers of new ones tell how many are in use, at least.
pub(super) fn check_descriptors<'a>(
    new: impl IntoIterator<Item = &'a OwnedFd>,
) -> Result<(), Failure> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let Some(limit) = limit else { return Ok(()) };
    let highest = new.into_iter().map(AsRawFd::as_raw_fd).max();
    let number = highest.and_then(|number| u64::try_from(number).ok());
    if number.unwrap_or_default() + (RESERVE as u64) < limit {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::Limit,
        format!(
            "the runtime has used its {limit} descriptors but for a reserve: ask the operator to raise LimitNOFILE of its unit, or to lower `descriptors` of listeners"
        ),
    ))
}
