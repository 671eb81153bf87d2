//! The host's own tables: its devices, what bridges and VXLAN devices forward, and the ways that it routes.
//!
//! Looked at once a second and whenever the kernel reports a change; [`networks`](super::networks) makes of it
//! where frames of tenants leave by.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use takt_datapath::stack::{Device, DeviceKind, Forwarding, NextHops, StackError, Tables};
use takt_wire::ethernet::MacAddress;

/// Why packets to a destination do not leave by way of the runtime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
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

/// The host as last seen.
pub(super) struct Host {
    tables: Option<Tables>,
    next_hops: Option<NextHops>,
    pub(super) devices: Vec<Device>,
    pub(super) forwarding: Forwarding,
    /// Set by the monitor of the kernel's tables, which then wakes the control thread.
    changed: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
}

impl Host {
    pub(super) fn new(wake: Arc<OwnedFd>) -> Self {
        Self {
            tables: None,
            next_hops: None,
            devices: Vec::new(),
            forwarding: Forwarding::default(),
            changed: Arc::default(),
            wake,
        }
    }

    /// Whether the kernel has reported changes since the last question.
    pub(super) fn take_changed(&self) -> bool {
        // Pairs with the Release store of the monitor's notice.
        self.changed.swap(false, Ordering::Acquire)
    }

    /// The monitor of the host's tables, started when it is first needed.
    pub(super) fn next_hops(&mut self) -> Result<&NextHops, StackError> {
        if self.next_hops.is_none() {
            let (changed, wake) = (self.changed.clone(), self.wake.clone());
            let monitor = NextHops::start_notifying(move || {
                // Pairs with the Acquire swap in `take_changed`.
                changed.store(true, Ordering::Release);
                let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
            })?;
            self.next_hops = Some(monitor);
        }
        self.next_hops.as_ref().ok_or(StackError::Stopped)
    }

    /// Looks at devices and forwarding tables.
    pub(super) fn look(&mut self) -> std::io::Result<()> {
        if self.tables.is_none() {
            self.tables = Some(Tables::open()?);
        }
        let Some(tables) = &mut self.tables else {
            return Ok(());
        };
        let seen = tables.devices().and_then(|devices| {
            let forwarding = tables.forwarding()?;
            Ok((devices, forwarding))
        });
        match seen {
            Ok((devices, forwarding)) => {
                self.devices = devices;
                self.forwarding = forwarding;
                Ok(())
            }
            Err(error) => {
                // A socket whose answers are in disorder is of no use any more.
                self.tables = None;
                Err(error)
            }
        }
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

    /// The device by which this host reaches an address on the link: where packets from there arrive.
    pub(super) fn arrival(&mut self, address: IpAddr) -> Option<u32> {
        let way = self.next_hops().ok()?.watch(address, None, 0).ok()?;
        let hop = way.next_hop()?;
        hop.gateway.is_none().then_some(hop.device)
    }
}
