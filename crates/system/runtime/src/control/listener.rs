//! Listening sockets: who may attach, and with which rights.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::{SocketAddrUnix, SocketFlags};
use takt_session::{ErrorCode, Failure};
use takt_wire::ethernet::MacAddress;

use super::session::Session;
use super::{Control, Token};
use crate::config::ListenerConfig;
use crate::policy::{Policy, Rates};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;
/// Numbers of tenants from here on are of those who come by no listener.
pub(super) const FIRST_WITHOUT: u32 = 1 << 31;

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
    pub refused: u64,
    socket: OwnedFd,
}

impl Listener {
    /// Opens the socket of a configuration; takes over a path that a dead runtime has left.
    pub fn open(config: ListenerConfig) -> Result<Self, ListenError> {
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
                if rustix::net::connect(&probe, &address).is_ok() {
                    return Err(ListenError::InUse(path));
                }
                std::fs::remove_file(&path).map_err(failed("remove the stale socket"))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("examine")(error)),
        }
        rustix::net::bind(&socket, &address).map_err(|e| failed("bind")(e.into()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(config.mode))
            .map_err(failed("set the mode of"))?;
        rustix::net::listen(&socket, BACKLOG).map_err(|e| failed("listen on")(e.into()))?;
        rustix::io::ioctl_fionbio(&socket, true).map_err(|e| failed("prepare")(e.into()))?;
        let policy = Arc::new(config.policy.clone());
        let rates = Arc::new(Rates::new(&policy));
        Ok(Self {
            config,
            policy,
            rates,
            refused: 0,
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
    pub(super) fn set_listener(&mut self, config: ListenerConfig) -> Result<(), ListenError> {
        self.check_endpoint(&config)?;
        if let Some(listener) = self
            .listeners
            .values_mut()
            .find(|l| l.config.path == config.path)
        {
            let old = listener.policy.clone();
            listener.policy = Arc::new(config.policy.clone());
            listener.rates.set(&config.policy);
            if listener.config.mode != config.mode {
                std::fs::set_permissions(
                    &config.path,
                    std::fs::Permissions::from_mode(config.mode),
                )
                .map_err(|source| ListenError::System {
                    action: "set the mode of",
                    path: config.path.clone(),
                    source,
                })?;
            }
            listener.config = config;
            let policy = listener.policy.clone();
            if policy.endpoint != old.endpoint || policy.ether_types != old.ether_types {
                self.end_senders_of_frames(&old);
            }
            for session in self
                .sessions
                .values_mut()
                .filter(|s| Arc::ptr_eq(&s.policy, &old))
            {
                session.policy = policy.clone();
            }
            // Its messages may be held back for the rates it had.
            self.lanes.iter().for_each(|lane| lane.handle.wake());
            return Ok(());
        }
        let listener = Listener::open(config)?;
        let id = self.next_listener;
        self.next_listener += 1;
        let path = listener.config.path.clone();
        self.watch(listener.socket.as_fd(), Token::Listener(id))
            .map_err(|source| {
                listener.unlink();
                ListenError::System {
                    action: "watch",
                    path,
                    source,
                }
            })?;
        self.listeners.insert(id, listener);
        Ok(())
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
            self.end_senders_of_frames(&listener.policy);
        }
        true
    }

    /// Addresses belong to one tenant of a network.
    fn check_endpoint(&self, config: &ListenerConfig) -> Result<(), ListenError> {
        let Some(endpoint) = &config.policy.endpoint else {
            return Ok(());
        };
        self.network(&endpoint.network)?;
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
    fn end_senders_of_frames(&mut self, policy: &Arc<Policy>) {
        let sends = |s: &&Session| {
            Arc::ptr_eq(&s.policy, policy)
                && s.sources.iter().flatten().any(|e| e.channel.is_none())
        };
        let senders: Vec<u32> = self
            .sessions
            .values()
            .filter(sends)
            .map(|session| session.id as u32)
            .collect();
        for id in senders {
            let text = "the endpoint of its listener has changed: attach again";
            self.end_session(id, Some(Failure::new(ErrorCode::Disconnected, text)));
        }
    }

    pub(super) fn accept(&mut self, id: u32) {
        while let Some(listener) = self.listeners.get(&id) {
            let socket = match rustix::net::accept_with(&listener.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(rustix::io::Errno::AGAIN) => return,
                Err(error) => {
                    tracing::warn!(path = %listener.config.path.display(), %error, "cannot accept an application");
                    return;
                }
            };
            let policy = listener.policy.clone();
            let refusal = match rustix::net::sockopt::socket_peercred(&socket) {
                Ok(peer) => {
                    let uid = peer.uid.as_raw();
                    let there = self
                        .sessions
                        .values()
                        // Those that left are bounded by `leave`.
                        .filter(|s| Arc::ptr_eq(&s.policy, &policy) && s.leaving_until.is_none())
                        .count();
                    if !policy.uids.is_empty() && !policy.uids.contains(&uid) {
                        Some(Failure::new(
                            ErrorCode::NotPermitted,
                            format!(
                                "user {uid} may not attach as tenant `{}`: ask the operator to extend `uids`",
                                policy.identity
                            ),
                        ))
                    } else if there >= policy.sessions {
                        Some(Failure::new(
                            ErrorCode::Limit,
                            format!(
                                "tenant `{}` has {there} sessions, its limit: close some, or ask the operator to raise `sessions`",
                                policy.identity
                            ),
                        ))
                    } else {
                        None
                    }
                }
                Err(error) => Some(Failure::new(
                    ErrorCode::System,
                    format!("cannot tell who connects: {error}"),
                )),
            };
            if let Some(failure) = refusal {
                if let Some(listener) = self.listeners.get_mut(&id) {
                    listener.refused += 1;
                }
                super::serve::end_connection(&socket, &failure);
                continue;
            }
            if let Err(error) = self.admit(socket, policy, Some(id)) {
                tracing::warn!(%error, "cannot take an application");
            }
        }
    }

    /// Which tenant those are who come by a listener, and what they may send together. Those who come by none
    /// are one for each name.
    fn tenant_of(&mut self, listener: Option<u32>, policy: &Policy) -> (u32, Arc<Rates>) {
        if let Some(id) = listener
            && let Some(listener) = self.listeners.get(&id)
        {
            return (id, listener.rates.clone());
        }
        let mut without = self.sessions.values().filter(|s| s.tenant >= FIRST_WITHOUT);
        if let Some(known) = without.find(|s| s.policy.identity == policy.identity) {
            return (known.tenant, known.rates.clone());
        }
        self.next_without = self.next_without.checked_add(1).unwrap_or(FIRST_WITHOUT);
        (self.next_without, Arc::new(Rates::new(policy)))
    }

    /// Takes a connected application; it attaches by its first request.
    pub(super) fn admit(
        &mut self,
        socket: OwnedFd,
        policy: Arc<Policy>,
        listener: Option<u32>,
    ) -> io::Result<()> {
        let peer = rustix::net::sockopt::socket_peercred(&socket)?;
        // The embedded form's application is this very process: its end needs no watching.
        let pidfd = match listener {
            Some(_) => {
                rustix::process::pidfd_open(peer.pid, rustix::process::PidfdFlags::empty()).ok()
            }
            None => None,
        };
        let id = self.next_session;
        self.next_session = self.next_session.wrapping_add(1).max(1);
        self.watch(socket.as_fd(), Token::Session(id))?;
        if let Some(pidfd) = &pidfd {
            self.watch(pidfd, Token::Process(id))?;
        }
        let (tenant, rates) = self.tenant_of(listener, &policy);
        let lane = (0..self.lanes.len())
            .min_by_key(|&lane| self.lanes[lane].sessions)
            .unwrap_or(0);
        self.lanes[lane].sessions += 1;
        let session = Session {
            id: id.into(),
            socket,
            pidfd,
            pid: peer.pid.as_raw_nonzero().get(),
            uid: peer.uid.as_raw(),
            name: String::new(),
            policy,
            tenant,
            rates,
            lane,
            since: self.now(),
            arena: None,
            streams: Vec::new(),
            sources: Vec::new(),
            sinks: Vec::new(),
            counters: Arc::default(),
            ending: false,
            leaving_until: None,
            opening_sinks: Vec::new(),
            closing_sources: Vec::new(),
            closing_sinks: Vec::new(),
        };
        self.sessions.insert(id, session);
        self.next_tick = self.next_tick.min(self.now() + super::ATTACH_WITHIN);
        Ok(())
    }
}
