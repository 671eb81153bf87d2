//! Datapath over libfabric: RDMA where there is a device, TCP and shared memory elsewhere.
//!
//! Each port is a reliable endpoint without connections of its own (`FI_EP_RDM`) that exchanges two-sided messages:
//! receives are posted ahead, into the memory that is lent to who receives; frames are sent from the memory that they
//! were written in. Both are registered once.
//!
//! A message has a small header in front, with its sender.
//!
//! # Limits
//! - Order is kept from port to port. What a port sends to two addresses of one other port goes two ways.
//! - A peer that takes nothing for a second loses what waits for it, counted. What waits for it makes room for frames
//!   to others when there are no more.
//! - Shared memory wakes nobody: a sleeping lane looks every 100 µs. It reaches ports of other processes of this host,
//!   network namespace and user. Its provider has locks in that memory: a peer that is killed or stopped while it
//!   holds one stops who shares it, so it is for programs that end together.
//! - No one-sided operations.
//!
//! libfabric 1.17 at least. Source: naaas-thesis-2024, section 5.1.3 (plugins).

mod arena;
#[doc(hidden)]
pub mod bare;
mod config;
mod endpoint;
mod ffi;
mod header;
mod peers;
mod port;
mod waiting;
mod watch;

use std::sync::Arc;

use takt_datapath::{Capabilities, Datapath, DatapathKind, Health, OpenError, Port, PortRequest};

pub use config::{FabricConfig, Provider};

use config::refused;
use endpoint::text;
use port::FabricPort;
use watch::{Failures, Ports};

/// A provider of libfabric.
#[derive(Clone, Debug)]
pub struct FabricDatapath {
    provider: Provider,
    config: FabricConfig,
    detail: String,
    failures: Arc<Failures>,
}

impl FabricDatapath {
    /// The technology's name.
    pub const KIND: DatapathKind = DatapathKind("fabric");

    /// Finds the provider.
    ///
    /// # Errors
    /// [`OpenError::Unavailable`]: which providers are not there, and why.
    pub fn probe(config: &FabricConfig) -> Result<Self, OpenError> {
        config.check()?;
        let asked = config;
        let named = config.provider.as_ref().map(std::slice::from_ref);
        let mut missing: Vec<String> = Vec::new();
        for &provider in named.unwrap_or(&Provider::TRIED) {
            let config = asked.with(provider);
            match endpoint::probe(provider, &config) {
                Ok(traits) => {
                    let (major, minor) = endpoint::version();
                    let mut detail = format!(
                        "{} of libfabric {major}.{minor}, frames of {} bytes",
                        text(&traits.provider),
                        config.frame_size
                    );
                    if provider == Provider::Shm {
                        detail += ", this host only, looks every 100 µs when asleep, stops when a peer is killed";
                    }
                    for reason in &missing {
                        detail += "; not ";
                        detail += reason.as_str();
                    }
                    return Ok(Self {
                        provider,
                        config,
                        detail,
                        failures: Arc::new(Failures::new()),
                    });
                }
                Err(reason) => missing.push(format!("{}: {reason}", provider.name())),
            }
        }
        Err(refused(format!(
            "libfabric has no provider for it: {}; `fi_info -l` lists what is installed",
            missing.join("; ")
        )))
    }

    /// The provider that is used.
    pub fn provider(&self) -> Provider {
        self.provider
    }
}

impl Datapath for FabricDatapath {
    fn kind(&self) -> DatapathKind {
        Self::KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // TCP is the kernel's stack, whoever calls it.
            accelerated: self.provider != Provider::Tcp,
            needs_polling: self.provider == Provider::Shm,
            hardware_launch_time: false,
            speaks_udp: false,
            own_addresses: false,
            // The layer of reliable datagrams copies what is received; shared memory is copied into and out of.
            zero_copy: false,
            detail: self.detail.clone(),
        }
    }

    fn open(&self, request: &PortRequest) -> Result<Box<dyn Port>, OpenError> {
        Ok(Box::new(FabricPort::open(
            self.provider,
            &self.config,
            request.bind,
            Arc::clone(&self.failures),
        )?))
    }

    fn health(&self, _changed: Box<dyn Fn() + Send>) -> Option<Box<dyn Health>> {
        Some(Box::new(Ports(Arc::clone(&self.failures))))
    }
}

takt_datapath::export_datapath!("fabric", env!("CARGO_PKG_VERSION"), |options| {
    let options = options.0.iter();
    let config =
        FabricConfig::from_options(options.map(|(key, value)| (key.as_str(), value.as_str())))?;
    Ok(Box::new(FabricDatapath::probe(&config)?) as Box<dyn Datapath>)
});
