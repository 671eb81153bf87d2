//! A network inside this process: the contract of a datapath without any technology below it.
//!
//! Used between the lanes of one node, and by tests, which may ask it to lose, double, swap and spoil
//! datagrams. A network is a virtual address space: a port is reached at the address it was opened with,
//! whatever addresses the machine has. Datagrams move by handing buffers over through bounded lock-free
//! queues; none is copied (but by the fault that doubles it) and nothing is allocated after opening.
//!
//! Not for: other processes, other nodes, launch times.

mod bell;
mod faults;
mod inbox;
mod port;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::{Capabilities, Datapath, DatapathKind, OpenError, Port, PortRequest};

pub use faults::{FaultCounters, Faults};
use faults::{FaultTally, Injector};
use inbox::Inbox;
use port::MemoryPort;

/// The first port given to who asks for port 0 (RFC 6335, section 6: the dynamic ports).
const FIRST_DYNAMIC_PORT: u16 = 49_152;

/// Sizes and behaviour of a [`MemoryNetwork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNetworkConfig {
    /// Most payload bytes of a datagram.
    pub max_payload: usize,
    /// Datagrams that wait at a receiver, and frames that a sender has; at least 1.
    pub queue_depth: usize,
    /// What goes wrong; by default nothing.
    pub faults: Faults,
}

impl Default for MemoryNetworkConfig {
    fn default() -> Self {
        Self {
            max_payload: 9216,
            queue_depth: 1024,
            faults: Faults::default(),
        }
    }
}

/// A network of ports in this process. Clones are the same network.
#[derive(Clone, Debug)]
pub struct MemoryNetwork {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: MemoryNetworkConfig,
    registry: RwLock<Registry>,
    /// Counts changes of the registry, so that senders look their peers up again only after one.
    changes: AtomicU64,
    faults: FaultTally,
}

#[derive(Debug, Default)]
struct Registry {
    inboxes: HashMap<SocketAddr, Arc<Inbox>>,
    /// Ports ever opened: the stream of faults that each one meets.
    opened: u64,
}

impl MemoryNetwork {
    /// The technology's name.
    pub const KIND: DatapathKind = DatapathKind("memory");

    /// A network without ports.
    pub fn new(config: MemoryNetworkConfig) -> Self {
        let config = MemoryNetworkConfig {
            queue_depth: config.queue_depth.max(1),
            ..config
        };
        let shared = Shared {
            config,
            registry: RwLock::default(),
            changes: AtomicU64::new(0),
            faults: FaultTally::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The network as a datapath. [`PortRequest::bind`] is an address of the virtual address space; an
    /// unspecified one is reached by every address of its family.
    pub fn datapath(&self) -> Arc<dyn Datapath> {
        Arc::new(self.clone())
    }

    /// What the injected faults have done so far.
    pub fn faults(&self) -> FaultCounters {
        self.shared.faults.read()
    }
}

impl Datapath for MemoryNetwork {
    fn kind(&self) -> DatapathKind {
        Self::KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            accelerated: true,
            needs_polling: false,
            hardware_launch_time: false,
            speaks_udp: false,
            own_addresses: false,
            zero_copy: true,
            detail: format!(
                "queues of {} datagrams of up to {} bytes in this process",
                self.shared.config.queue_depth, self.shared.config.max_payload
            ),
        }
    }

    fn open(&self, request: &PortRequest) -> Result<Box<dyn Port>, OpenError> {
        let config = &self.shared.config;
        let inbox = Inbox::new(config.queue_depth, config.max_payload).map_err(|source| {
            OpenError::System {
                action: "cannot create an eventfd to wait for datagrams on".into(),
                source,
            }
        })?;
        let inbox = Arc::new(inbox);
        let (local, number) = self.shared.bind(request.bind, &inbox)?;
        let injector = Injector::new(config.faults, number);
        Ok(Box::new(MemoryPort::new(
            self.shared.clone(),
            local,
            inbox,
            injector,
        )))
    }
}

impl Shared {
    /// Registers an inbox and returns its address and the number of its port.
    fn bind(&self, wanted: SocketAddr, inbox: &Arc<Inbox>) -> Result<(SocketAddr, u64), OpenError> {
        let mut registry = self
            .registry
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let address = if wanted.port() == 0 {
            // From another one on each time: peers may still send to a number that was used before.
            let dynamic = FIRST_DYNAMIC_PORT..=u16::MAX;
            let skipped = (registry.opened % dynamic.len() as u64) as usize;
            let candidates = dynamic.clone().skip(skipped).chain(dynamic);
            candidates
                .map(|port| SocketAddr::new(wanted.ip(), port))
                .find(|candidate| !registry.is_taken(*candidate))
        } else {
            Some(wanted).filter(|candidate| !registry.is_taken(*candidate))
        };
        let address = address.ok_or_else(|| OpenError::Bind {
            address: wanted,
            source: io::Error::from(io::ErrorKind::AddrInUse),
        })?;
        registry.inboxes.insert(address, inbox.clone());
        registry.opened += 1;
        let number = registry.opened;
        // Release: pairs with the Acquire in `changes`; who sees the new count finds the new registry.
        self.changes.fetch_add(1, Ordering::Release);
        Ok((address, number))
    }

    fn unbind(&self, address: SocketAddr) {
        let mut registry = self
            .registry
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        registry.inboxes.remove(&address);
        // Release: as in `bind`.
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn changes(&self) -> u64 {
        // Acquire: pairs with the Release in `bind` and `unbind`.
        self.changes.load(Ordering::Acquire)
    }

    fn find(&self, address: SocketAddr) -> Option<Arc<Inbox>> {
        let registry = self.registry.read().unwrap_or_else(PoisonError::into_inner);
        registry
            .inboxes
            .get(&address)
            .or_else(|| registry.inboxes.get(&every_address(address)))
            .cloned()
    }
}

impl Registry {
    /// Whether a port with this address would take datagrams away from another one.
    fn is_taken(&self, address: SocketAddr) -> bool {
        if address.ip().is_unspecified() {
            let family = address.is_ipv4();
            self.inboxes
                .keys()
                .any(|other| other.port() == address.port() && other.is_ipv4() == family)
        } else {
            self.inboxes.contains_key(&address)
                || self.inboxes.contains_key(&every_address(address))
        }
    }
}

/// The address of the port that takes every address of the family at this port.
fn every_address(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, address.port()).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, address.port()).into(),
    }
}
