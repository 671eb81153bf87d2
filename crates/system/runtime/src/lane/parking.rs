//! How a lane sleeps without missing anything: what it looks at before, what wakes it, and what it does after.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::time::Timespec;
use takt_time::TaiTime;

use super::Lane;
use crate::slots::SessionSlot;

/// Longest sleep of a lane that holds messages back for their tenant's rates: those may be raised.
const THROTTLE_CHECK: Duration = Duration::from_millis(100);
/// What is registered for the doorbell of the first session; below is the mailbox.
pub(super) const FIRST_BELL: u64 = 1;
/// Edges of doorbells taken at a time, and how often at most in a go: applications may ring all the time.
const EDGES: usize = 64;
const MOST_TAKES: usize = 16;

/// Sleeps until a lane has work. The ports' descriptors are looked at only then: a standing registration
/// would cost each datagram a callback in the kernel.
pub struct Sleeper {
    fds: Vec<OwnedFd>,
    more: Vec<OwnedFd>,
    /// How often ports had changed theirs then.
    changes: u32,
}

impl Sleeper {
    /// Also wakes when this becomes readable.
    pub fn watch(&mut self, fd: OwnedFd) {
        self.more.push(fd);
    }

    /// Takes over descriptors that ports have changed.
    pub fn follow(&mut self, lane: &Lane) {
        if self.changes != lane.wait_fd_changes()
            && let Ok(fresh) = lane.sleeper()
        {
            (self.fds, self.changes) = (fresh.fds, fresh.changes);
        }
    }

    /// Sleeps until there is work or `timeout` has passed, or for no reason.
    pub fn sleep(&self, timeout: Option<Duration>) {
        let mut fds: Vec<PollFd<'_>> = self
            .fds
            .iter()
            .chain(&self.more)
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        // Interrupted: the lane looks, and sleeps again.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
    }
}

impl Lane {
    /// What a parked lane sleeps on.
    ///
    /// # Errors
    /// The kernel's, when descriptors cannot be copied.
    pub fn sleeper(&self) -> std::io::Result<Sleeper> {
        let mut fds = vec![self.epoll.try_clone()?];
        for port in &self.ports {
            for fd in port.port.wait_fds() {
                fds.push(fd.try_clone_to_owned()?);
            }
        }
        Ok(Sleeper {
            fds,
            more: Vec::new(),
            changes: self.wait_fd_changes(),
        })
    }

    fn wait_fd_changes(&self) -> u32 {
        let changes = self.ports.iter().map(|port| port.port.wait_fd_changes());
        changes.fold(0, u32::wrapping_add)
    }

    /// Prepares to sleep: tells every application so, then looks once more. `None`: there is work.
    /// Otherwise how long to sleep at most (see [`Sleeper`]); call [`unpark`](Self::unpark) afterwards.
    pub fn park(&mut self) -> Option<Option<Duration>> {
        let tenants = &self.state.tenants;
        if self.mailbox.full.load(Ordering::Acquire)
            || self.ports.iter().any(|p| p.dirty)
            || tenants.turns.any()
            || tenants.has_pending()
            || tenants.has_failed()
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
        let ports = ports.filter_map(|departures| departures.wake());
        if let Some(due) = ports.chain(self.state.due_here()).min() {
            let now = TaiTime::from_nanos(self.state.round.read());
            timeout = Some(self.margin.sleep(due, now)?);
        }
        self.publish();
        self.state.tenants.park();
        if self.state.tenants.listen() && self.state.tenants.turns.any() {
            self.unpark();
            return None;
        }
        if let Some(until) = self.state.tenants.throttled_until() {
            let now = self.state.round.read_steady();
            let wait = Duration::from_nanos(until.saturating_sub(now).max(1_000) as u64);
            let wait = wait.min(THROTTLE_CHECK);
            timeout = Some(timeout.map_or(wait, |t: Duration| t.min(wait)));
        }
        if let Some(at) = self.state.reassembly.next_check() {
            let now = self.state.round.read_steady();
            let wait = Duration::from_nanos(at.saturating_sub(now).max(1_000) as u64);
            timeout = Some(timeout.map_or(wait, |t: Duration| t.min(wait)));
        }
        if let Some(at) = self.state.reliable.due_ns() {
            let now = self.state.round.read_steady();
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
        self.state.tenants.unpark();
        self.take_edges();
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.mailbox.wake, &mut count);
    }

    /// Takes the edges of the doorbells: the descriptor that gathers them stays readable until then. Sessions that
    /// are not watched have rung.
    pub(super) fn take_edges(&mut self) {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EDGES];
        for _ in 0..MOST_TAKES {
            let Ok((ready, _)) =
                epoll::wait(&self.epoll, &mut events[..], Some(&Timespec::default()))
            else {
                return;
            };
            for event in &*ready {
                let data = event.data;
                if let Some(at) = data.u64().checked_sub(FIRST_BELL) {
                    self.state.tenants.woken(SessionSlot(at as usize));
                }
            }
            if ready.len() < EDGES {
                return;
            }
        }
    }
}
