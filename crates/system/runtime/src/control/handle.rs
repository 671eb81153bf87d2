//! A running runtime, and what operators may ask of it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use takt_session::{ErrorCode, Failure};

use super::admission::Check;
use super::balancing::Stays;
use super::listener::ListenError;
use super::{Control, Job};
use crate::capture::{Capture, CaptureError};
use crate::config::{Balance, KeyMissing, ListenerConfig};
use crate::ids::SessionId;
use crate::lane::LaneHandle;
use crate::peering::keys::{PeerConfig, PrivateKey};
use crate::peering::{AcceptNet, Effects};
use crate::policy::{MappingPolicy, Policy};
use crate::status::{
    ChannelStatus, DatapathStatus, ListenerStatus, NodeStatus, Page, PeerStatus, SessionStatus,
    TenantStatus,
};

/// How often a lane that was asked is looked at for its answer.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How long an operator's change waits for lanes that do not carry it out. One that hangs is the watchdog's business.
const SETTLE: Duration = Duration::from_secs(10);

/// A running runtime. Dropping it stops it at once; [`RuntimeHandle::drain`] first for a clean exit.
pub struct Runtime {
    pub(super) handle: RuntimeHandle,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) lanes: Vec<LaneHandle>,
    pub(super) threads: Vec<std::thread::JoinHandle<()>>,
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
    pub(super) jobs: Sender<Job>,
    pub(super) wake: Arc<OwnedFd>,
    pub(super) lanes: Arc<[LaneHandle]>,
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

impl RuntimeHandle {
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }

    /// Runs `job` on the control thread and waits for its answer.
    pub(super) fn ask<R: Send + 'static>(
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

    /// As [`ask`](Self::ask), of what changes something that lanes know: returns when they have carried it out.
    pub(super) fn change<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Control) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let answer = self.ask(job)?;
        let told: Vec<u64> = self.lanes.iter().map(LaneHandle::told).collect();
        let deadline = Instant::now() + SETTLE;
        if let Err(late) = self.await_lanes(deadline, |lane, at| lane.done() >= told[at]) {
            tracing::error!(
                lanes = ?late,
                "a change has been taken, and these lanes have not carried it out after {} s: what they do is as before until they go on",
                SETTLE.as_secs()
            );
        }
        Ok(answer)
    }

    /// Waits until all lanes are `ready`.
    ///
    /// # Errors
    /// The numbers of those that are not at the deadline.
    fn await_lanes(
        &self,
        deadline: Instant,
        ready: impl Fn(&LaneHandle, usize) -> bool,
    ) -> Result<(), Vec<usize>> {
        loop {
            let late = self.lanes.iter().enumerate();
            let late = late.filter(|(at, lane)| !ready(lane, *at));
            let late: Vec<usize> = late.map(|(at, _)| at).collect();
            if late.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(late);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
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
        self.await_lanes(deadline, |lane, at| lane.answered() >= asked[at])
            .map_err(|lanes| Unresponsive::Lanes { lanes, within })
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
        self.sessions_of(None, 0)
    }

    /// All sessions from this number on, of one tenant or of all. However many they are, the control thread does other things in between: what has
    /// come or gone meanwhile may be in it or not.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn sessions_of(
        &self,
        identity: Option<&str>,
        first: u64,
    ) -> Result<Vec<SessionStatus>, Stopped> {
        let (mut all, mut first) = (Vec::new(), Some(first));
        while let Some(from) = first {
            let page = self.session_page(identity, from, usize::MAX)?;
            all.extend(page.entries);
            first = page.next;
        }
        Ok(all)
    }

    /// Sessions from this number on: so many at most, or fewer, or none, where they have much open or others are looked at in
    /// between. What the control thread does for it does not grow with how many there are.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn session_page(
        &self,
        identity: Option<&str>,
        first: u64,
        limit: usize,
    ) -> Result<Page<SessionStatus>, Stopped> {
        let identity = identity.map(str::to_owned);
        self.ask(move |c| c.session_page(identity.as_deref(), first, limit))
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
        self.channels_from(0, usize::MAX)
    }

    /// Channels in use from this one on, so many at most. However many they are, the control thread does other things in between.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn channels_from(&self, first: u64, limit: usize) -> Result<Vec<ChannelStatus>, Stopped> {
        let (mut all, mut first) = (Vec::new(), Some(first));
        while let Some(from) = first {
            let left = limit - all.len();
            let page = self.ask(move |c| c.channel_page(from, left))?;
            all.extend(page.entries);
            first = page.next.filter(|_| all.len() < limit);
        }
        Ok(all)
    }

    /// All peers.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn peers(&self) -> Result<Vec<PeerStatus>, Stopped> {
        self.ask(|c| {
            let mut peers = c.peering.status(c.now());
            for outage in peers.iter_mut().flat_map(|peer| &mut peer.failed) {
                // Whoever sent it chose it.
                outage.datapath = takt_session::printable(&outage.datapath);
            }
            peers
        })
    }

    /// All datapaths, also those that are configured and not available.
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

    /// Adds a peer; false if it is there already. A peer without a key has the group's. As every change here, it is
    /// answered when all lanes have carried it out.
    ///
    /// # Errors
    /// [`Stopped`]; inside, which key is missing.
    pub fn add_peer(&self, peer: PeerConfig) -> Result<Result<bool, KeyMissing>, Stopped> {
        self.change(move |c| {
            KeyMissing::check(&c.config.security, &peer)?;
            let mut effects = Effects::default();
            let added = c.peering.add(peer, c.now(), &mut effects);
            c.apply(effects);
            c.tick();
            Ok(added)
        })
    }

    /// Says which key the node is going to have: peers may know it by that one as well from now on.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn set_next_key(&self, key: PrivateKey) -> Result<(), Stopped> {
        self.ask(move |c| {
            c.config.security.next = Some(key.clone());
            c.peering.set_next_key(key);
        })
    }

    /// The next key is the node's from now on; false if there is none. Peers come to know it soon, while what is under way
    /// to them and from them goes on.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn switch_key(&self) -> Result<bool, Stopped> {
        self.ask(|c| {
            c.config.security.switch();
            c.peering.switch_key(c.now())
        })
    }

    /// Removes a peer; false if there is none.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn remove_peer(&self, address: SocketAddr) -> Result<bool, Stopped> {
        self.change(move |c| {
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
        self.move_streams(config, None)
    }

    /// As [`set_listener`](Self::set_listener); the streams that it has are taken, by their names, from the listener at
    /// `from` in the same step: nobody else can get their place meanwhile.
    ///
    /// # Errors
    /// [`Stopped`]; inside, why the socket cannot be opened.
    pub fn move_streams(
        &self,
        config: ListenerConfig,
        from: Option<PathBuf>,
    ) -> Result<Result<(), ListenError>, Stopped> {
        loop {
            let (asked, taken) = (config.clone(), from.clone());
            let (seen, checks) = self.ask(move |c| {
                let (path, from) = (Some(&*asked.path), taken.as_deref());
                let checks = c.checks_of_streams(&asked.policy, path, from);
                (c.admissions, checks)
            })?;
            if let Err(misfit) = checks.iter().try_for_each(Check::run) {
                return Ok(Err(misfit.into()));
            }
            let (asked, taken) = (config.clone(), from.clone());
            // Unless streams or schedules have changed meanwhile.
            let set = self.change(move |c| {
                (c.admissions == seen).then(|| c.move_admitted_streams(asked, taken.as_deref()))
            })?;
            if let Some(answer) = set {
                return Ok(answer);
            }
        }
    }

    /// Closes a listening socket; its sessions go on. False if there is none.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn remove_listener(&self, path: PathBuf) -> Result<bool, Stopped> {
        self.change(move |c| c.remove_listener(&path))
    }

    /// Replaces the mapping policy, by which all streams are mapped anew, and the networks that are accepted: peers that came by others
    /// are told goodbye and forgotten. Returns when the streams have moved.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn reload(&self, mapping: MappingPolicy, accept: Vec<AcceptNet>) -> Result<(), Stopped> {
        self.ask(move |c| {
            c.config.mapping = mapping;
            let mut effects = Effects::default();
            c.peering.set_accept(accept, &mut effects);
            c.apply(effects);
            c.map_again();
        })?;
        self.await_moves()
    }

    /// Waits until streams that are to be mapped anew have moved.
    pub(super) fn await_moves(&self) -> Result<(), Stopped> {
        let deadline = Instant::now() + SETTLE;
        while !self.ask(|c| c.to_map.is_empty())? && Instant::now() < deadline {
            std::thread::sleep(LOOK_AGAIN);
        }
        self.change(|_| ())
    }

    /// Ends a session for a reason; false if there is none.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn end_session(&self, session: u64, reason: String) -> Result<bool, Stopped> {
        self.change(move |c| match u32::try_from(session) {
            Ok(id) if c.sessions.get(&SessionId(id)).is_some_and(|s| !s.ending) => {
                c.end_session(SessionId(id), Some(Failure::new(ErrorCode::Closed, reason)));
                true
            }
            _ => false,
        })
    }

    /// Moves a session to another lane: its application is told to attach again, as by itself it does, and its session is served
    /// by that lane then. Inside, why it cannot be: there is no such session, or the lane is not its tenant's, or does not carry
    /// what it has open.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn move_session(&self, session: u64, lane: usize) -> Result<Result<(), Failure>, Stopped> {
        self.change(move |c| {
            let id = u32::try_from(session).unwrap_or(u32::MAX);
            c.move_session(SessionId(id), lane)
        })
    }

    /// Has the sessions that write a channel, or those that read it, leave their lanes for others that serve them better, because a
    /// rule of network health says so: how many do, and why others stay.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn relieve_channel(
        &self,
        channel: u64,
        readers: bool,
        rule: String,
    ) -> Result<(usize, Option<Stays>), Stopped> {
        self.change(move |c| c.relieve_channel(channel, readers, &rule))
    }

    /// Puts other figures in force of when sessions leave lanes by themselves.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn set_balance(&self, balance: Balance) -> Result<(), Stopped> {
        self.ask(move |c| c.set_balance(balance))
    }

    /// Attaches an application without a listening socket: the socket for its session. For the
    /// embedded form.
    ///
    /// # Errors
    /// [`Stopped`]; inside, the kernel's, or that its declared streams do not fit a schedule.
    pub fn connect(&self, policy: Policy) -> Result<std::io::Result<OwnedFd>, Stopped> {
        loop {
            let asked = policy.clone();
            let (seen, checks) = self.ask(move |c| {
                let checks = c.checks_of_streams(&asked, None, None);
                (c.admissions, checks)
            })?;
            if let Err(misfit) = checks.iter().try_for_each(Check::run) {
                return Ok(Err(std::io::Error::other(misfit)));
            }
            let (asked, unchecked) = (policy.clone(), checks.is_empty());
            let connected = self.ask(move |c| {
                // Unless streams or schedules have changed meanwhile: who has none does not mind.
                if c.admissions != seen && !(unchecked && asked.streams.is_empty()) {
                    return None;
                }
                Some(takt_session::transport::pair().and_then(|(ours, theirs)| {
                    c.admit_embedded(ours, asked)?;
                    Ok(theirs)
                }))
            })?;
            if let Some(answer) = connected {
                return Ok(answer);
            }
        }
    }

    /// Begins a capture of what the tenants with these identities send to other nodes and get from them, past the kernel; of all
    /// tenants, if none is named. Of each datagram or frame, `snap` bytes are kept.
    ///
    /// # Errors
    /// [`Stopped`]; inside, why there is none.
    pub fn capture(
        &self,
        identities: Vec<String>,
        snap: usize,
    ) -> Result<Result<Capture, CaptureError>, Stopped> {
        let runtime = self.clone();
        self.change(move |c| {
            let (number, sources) = c.begin_capture(&identities, snap)?;
            Ok(Capture {
                number,
                sources,
                identities: c.identities(),
                runtime,
            })
        })
    }

    /// Ends a capture, some time soon.
    pub(crate) fn end_capture(&self, number: u64) {
        // A runtime that has stopped captures nothing.
        let _ = (self.jobs).send(Box::new(move |control| control.end_capture(number)));
        self.wake();
    }

    /// The identity of each tenant, by its number.
    ///
    /// # Errors
    /// [`Stopped`].
    pub(crate) fn identities(&self) -> Result<HashMap<u32, String>, Stopped> {
        self.ask(|c| c.identities())
    }

    /// Leaves cleanly: takes no more applications, sends what they have emitted, tells them and the
    /// peers. Returns when that is done, or after `within`: whether everything was sent.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn drain(&self, within: Duration) -> Result<bool, Stopped> {
        let (done, wait) = channel();
        self.ask(move |c| c.begin_drain(within, done))?;
        wait.recv().map_err(|_| Stopped)
    }
}
