//! What the kernel says of an interface beyond the routing tables.

use takt_datapath::OpenError;
use takt_xdp::Namespace;

/// An interface of the calling thread's network namespace.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) ifindex: u32,
    /// Name of the driver, or "unknown".
    pub(crate) driver: String,
    /// Receive queues in use.
    pub(crate) queues: u32,
    /// The network namespace.
    pub(crate) namespace: Namespace,
}

impl Device {
    pub(crate) fn probe(name: &str) -> Result<Self, OpenError> {
        let ifindex = takt_xdp::index(name).ok_or_else(|| {
            OpenError::Unavailable(format!(
                "there is no interface {name:?} in this network namespace: see `ip link`"
            ))
        })?;
        let namespace = takt_xdp::namespace().map_err(|source| OpenError::System {
            action: format!("cannot identify the network namespace of {name}"),
            source,
        })?;
        Ok(Self {
            name: name.into(),
            ifindex,
            driver: takt_xdp::driver(name).unwrap_or_else(|_| "unknown".into()),
            // A driver that does not tell has one.
            queues: takt_xdp::receive_queues(name).unwrap_or(1).max(1),
            namespace,
        })
    }
}
