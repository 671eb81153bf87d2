//! The host's own tables: its devices, what bridges and VXLAN devices forward, and the ways that it routes.
//!
//! Looked at once a second and whenever the kernel reports a change; [`networks`](super::networks) makes of it
//! where frames of tenants leave by. The kernel answers under a lock of its own (`rtnl_lock`), which it holds for
//! seconds while many network namespaces come and go: the control thread never waits for it.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use takt_datapath::stack::{
    Destination, Device, DeviceKind, Forwarding, NextHops, StackError, Tables,
};
use takt_wire::ethernet::MacAddress;

/// Why packets to a destination do not leave by way of the runtime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
    /// The kernel has not answered yet.
    #[error("the kernel has been asked for the way, and has not answered yet")]
    Asked,
    /// The kernel has no route, or forwards nothing.
    #[error(
        "the host has no route for forwarded packets: see `ip route get` and net.ipv4.ip_forward"
    )]
    NoRoute,
    /// The next hop does not answer yet.
    #[error("the next hop's MAC address is not resolved, or its interface is down")]
    Unresolved,
    /// The followed device has no tunnel endpoint for the next hop.
    #[error("the device that is followed has no tunnel endpoint for {0}: see `bridge fdb`")]
    NoEndpoint(MacAddress),
    /// It is routed beyond the network.
    #[error(
        "the host routes it by {0}, beyond the network: add its prefix to the network's `routed` \
         if packets need no translation on that way"
    )]
    Beyond(String),
}

/// What the kernel's tables say.
type Seen = std::io::Result<(Vec<Device>, Forwarding)>;

/// Reads the kernel's tables in a thread of its own, which ends when this is dropped and its look is over.
struct Reader {
    requests: Sender<()>,
    answers: Receiver<Seen>,
}

impl Reader {
    /// Starts the thread, which calls `read` for each request, and `ready` with each answer.
    fn start(
        mut read: impl FnMut() -> Seen + Send + 'static,
        ready: impl Fn() + Send + 'static,
    ) -> std::io::Result<Self> {
        let (requests, requested) = channel();
        let (answer, answers) = channel();
        std::thread::Builder::new()
            .name("takt-host-tables".into())
            .spawn(move || {
                while requested.recv().is_ok() {
                    if answer.send(read()).is_err() {
                        return;
                    }
                    ready();
                }
            })?;
        Ok(Self { requests, answers })
    }

    /// Reads by netlink, in the calling thread's network namespace.
    fn of_kernel(wake: Arc<OwnedFd>) -> std::io::Result<Self> {
        let mut tables = Some(Tables::open()?);
        let read = move || {
            let mut open = match tables.take() {
                Some(open) => open,
                None => Tables::open()?,
            };
            let devices = open.devices()?;
            let forwarding = open.forwarding()?;
            // Kept only here: a socket whose answers are in disorder is of no use any more.
            tables = Some(open);
            Ok((devices, forwarding))
        };
        Self::start(read, move || tell(&wake))
    }
}

/// Wakes the control thread.
fn tell(wake: &OwnedFd) {
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}

/// The host as last seen.
pub(super) struct Host {
    reader: Option<Reader>,
    /// Looks that have begun, and that are over: they differ by one at most.
    begun: u64,
    over: u64,
    next_hops: Option<NextHops>,
    /// The ways to tenants' own addresses.
    arrivals: HashMap<IpAddr, Destination>,
    pub(super) devices: Vec<Device>,
    /// Their addresses.
    macs: HashSet<MacAddress>,
    pub(super) forwarding: Forwarding,
    /// Set by the monitor of the kernel's tables, which then wakes the control thread.
    changed: Arc<AtomicBool>,
    /// Set by answers to questions about ways, which then wake it too.
    answered: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
}

impl Host {
    pub(super) fn new(wake: Arc<OwnedFd>) -> Self {
        Self {
            reader: None,
            begun: 0,
            over: 0,
            next_hops: None,
            arrivals: HashMap::new(),
            devices: Vec::new(),
            macs: HashSet::new(),
            forwarding: Forwarding::default(),
            changed: Arc::default(),
            answered: Arc::default(),
            wake,
        }
    }

    /// Whether the kernel has reported changes since the last question.
    pub(super) fn take_changed(&self) -> bool {
        // Pairs with the Release store of the monitor's notice.
        self.changed.swap(false, Ordering::Acquire)
    }

    /// Whether the kernel has answered questions about ways since this was last asked.
    pub(super) fn take_answered(&self) -> bool {
        // Pairs with the Release store of the notice.
        self.answered.swap(false, Ordering::Acquire)
    }

    /// What an answer about a way does.
    fn notice(&self) -> impl Fn() + Send + Sync + 'static {
        let (answered, wake) = (self.answered.clone(), self.wake.clone());
        move || {
            // Pairs with the Acquire swap in `take_answered`.
            answered.store(true, Ordering::Release);
            tell(&wake);
        }
    }

    /// The monitor of the host's tables, started when it is first needed.
    fn next_hops(&mut self) -> Result<&NextHops, StackError> {
        if self.next_hops.is_none() {
            let (changed, wake) = (self.changed.clone(), self.wake.clone());
            let monitor = NextHops::start_notifying(move || {
                // Pairs with the Acquire swap in `take_changed`.
                changed.store(true, Ordering::Release);
                tell(&wake);
            })?;
            self.next_hops = Some(monitor);
        }
        self.next_hops.as_ref().ok_or(StackError::Stopped)
    }

    /// Has devices and forwarding tables looked at, unless that is under way: [`take_seen`](Self::take_seen) has
    /// them after the control thread is woken.
    pub(super) fn begin_look(&mut self) -> Result<(), String> {
        if self.is_looking() {
            return Ok(());
        }
        // Before the look, so that changes after it are reported.
        self.next_hops().map_err(|error| error.to_string())?;
        if self.reader.is_none() {
            let reader = Reader::of_kernel(self.wake.clone());
            self.reader = Some(reader.map_err(|error| error.to_string())?);
        }
        if let Some(reader) = &self.reader
            && reader.requests.send(()).is_ok()
        {
            self.begun += 1;
        }
        Ok(())
    }

    fn is_looking(&self) -> bool {
        self.begun > self.over
    }

    /// The look that sees what is there now: of those that have begun none, for its answer may be under way.
    pub(super) fn next_look(&self) -> u64 {
        self.begun + 1
    }

    /// Looks that are over.
    pub(super) fn looks(&self) -> u64 {
        self.over
    }

    /// Takes over what the last look has seen, if it has just ended, or ends `within` this time.
    pub(super) fn take_seen(&mut self, within: Duration) -> Option<Result<(), String>> {
        let reader = self.reader.as_ref()?;
        let seen = match reader.answers.recv_timeout(within) {
            Ok(seen) => seen,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => {
                self.reader = None;
                Err(std::io::Error::other("its thread has failed"))
            }
        };
        self.over = self.begun;
        Some(match seen {
            Ok((devices, forwarding)) => {
                self.macs = devices.iter().filter_map(|device| device.mac).collect();
                self.devices = devices;
                self.forwarding = forwarding;
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        })
    }

    /// Whether a device has this address.
    pub(super) fn has(&self, mac: MacAddress) -> bool {
        self.macs.contains(&mac)
    }

    pub(super) fn device(&self, ifindex: u32) -> Option<&Device> {
        self.devices.iter().find(|device| device.ifindex == ifindex)
    }

    pub(super) fn named(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    pub(super) fn is_tunnel(&self, ifindex: u32) -> bool {
        self.device(ifindex)
            .is_some_and(|device| device.kind == DeviceKind::Vxlan)
    }

    /// The name of a device, or its number where it has gone.
    pub(super) fn name(&self, ifindex: u32) -> String {
        self.device(ifindex)
            .map_or_else(|| format!("interface {ifindex}"), |d| d.name.clone())
    }

    /// The device by which this host reaches an address on the link, where packets from there arrive; `None` inside:
    /// there is none. `None`: the kernel has been asked, and the control thread is woken by its answer.
    pub(super) fn arrival(&mut self, address: IpAddr) -> Option<Option<u32>> {
        if !self.arrivals.contains_key(&address) {
            let notice = self.notice();
            let next_hops = self.next_hops().ok();
            let way = next_hops.and_then(|n| n.ask(address, None, 0, notice).ok());
            let Some(way) = way else { return Some(None) };
            self.arrivals.insert(address, way);
        }
        let way = self.arrivals.get(&address).filter(|way| way.is_known())?;
        let hop = way.next_hop().filter(|hop| hop.gateway.is_none());
        Some(hop.map(|hop| hop.device))
    }

    /// Keeps following the ways to these addresses of tenants only.
    pub(super) fn keep_arrivals(&mut self, of: impl Fn(&IpAddr) -> bool) {
        self.arrivals.retain(|address, _| of(address));
    }

    /// Follows the way that this host forwards packets, and has the control thread woken when it is known.
    pub(super) fn follow_forwarded(
        &mut self,
        destination: IpAddr,
        source: IpAddr,
        arrival: u32,
    ) -> Result<Destination, StackError> {
        let notice = self.notice();
        self.next_hops()?
            .ask_forwarded(destination, source, arrival, notice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eventfd() -> Arc<OwnedFd> {
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        Arc::new(rustix::event::eventfd(0, flags).expect("an eventfd"))
    }

    #[test]
    fn who_looks_does_not_wait_for_a_kernel_that_is_slow_to_answer() {
        let wake = eventfd();
        let mut host = Host::new(wake.clone());
        let (answer, kernel) = channel::<Seen>();
        let (woken, wakes) = channel();
        let read = move || kernel.recv().expect("an answer");
        let ready = move || {
            tell(&wake);
            woken.send(()).expect("told");
        };
        host.reader = Some(Reader::start(read, ready).expect("a thread"));
        host.begin_look().expect("begun");
        let asked_during = host.next_look();
        host.begin_look().expect("still the same one");
        assert!(
            host.take_seen(Duration::ZERO).is_none(),
            "the kernel has not answered"
        );
        assert_eq!((host.begun, host.looks()), (1, 0));

        answer.send(Ok(Default::default())).expect("sent");
        wakes.recv().expect("woken");
        assert_eq!(host.take_seen(Duration::ZERO), Some(Ok(())));
        assert!(
            host.looks() < asked_during,
            "what was asked during a look waits for the next"
        );
        assert!(host.take_seen(Duration::ZERO).is_none());

        host.begin_look().expect("begun");
        answer
            .send(Err(std::io::Error::other("the kernel is out of memory")))
            .expect("sent");
        wakes.recv().expect("woken");
        let seen = host.take_seen(Duration::ZERO);
        assert_eq!(seen, Some(Err("the kernel is out of memory".into())));
        assert_eq!(host.looks(), asked_during);
    }

    #[test]
    fn a_reader_that_fails_is_replaced() {
        let mut host = Host::new(eventfd());
        let read = || panic!("a fault in reading, meant by this test");
        host.reader = Some(Reader::start(read, || ()).expect("a thread"));
        host.begin_look().expect("begun");
        let seen = std::iter::from_fn(|| Some(host.take_seen(Duration::ZERO)))
            .inspect(|_| std::thread::yield_now())
            .find_map(|seen| seen);
        assert!(seen.is_some_and(|seen| seen.is_err()));
        assert!(!host.is_looking());
        assert!(host.reader.is_none());
    }
}
