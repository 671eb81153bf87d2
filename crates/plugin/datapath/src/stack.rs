//! The packet stack of frame datapaths: which frame header reaches an IP address.
//!
//! A datapath that writes Ethernet frames by itself must know, for every peer, the interface, the
//! two MAC addresses, the source address and the MTU. This module takes all of it from the kernel's
//! tables, by netlink (RFC 3549): routes (so that policy routing, gateways and path MTUs come for
//! free), neighbours, links and addresses, of the network namespace that [`NextHops::start`] was
//! called in. It follows every change and publishes the result for lanes to read without a lock.
//!
//! It is not a network stack: ARP, neighbour discovery and ICMP stay the kernel's own. When a
//! neighbour is missing or stale this module merely asks the kernel to resolve it, as a socket's
//! traffic would.
//!
//! A lane remembers [`NextHops::generation`] and looks at its [`Destination`]s and [`Interface`]s
//! again only when that number has changed: one load of a word that is seldom written.

mod launch;
mod messages;
mod monitor;
mod netdev;
mod netlink;
#[cfg(test)]
mod tests;
mod watch;

pub use launch::{Etf, LaunchQueues, egress_interface, launch_queues, offloading_queues};
pub use netdev::xsk_launch_time;
pub use watch::{Destination, Generations, Interface, NextHops};

use std::net::IpAddr;

use takt_wire::ethernet::MacAddress;

/// How frames reach a destination, as the kernel's tables say now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The interface that frames leave by; for a route over a VLAN interface the one below it.
    pub ifindex: u32,
    /// The VLAN identifier (IEEE 802.1Q) when the route leaves by a VLAN interface on
    /// [`ifindex`](Self::ifindex).
    pub vlan: Option<u16>,
    /// The MAC address of the route's interface.
    pub src_mac: MacAddress,
    /// The MAC address of the gateway or, on the link, of the destination; `None` until it is
    /// resolved.
    pub dst_mac: Option<MacAddress>,
    /// The source address that the kernel would choose.
    pub src_ip: IpAddr,
    /// Largest IP packet in bytes: the interface's MTU or the route's where that is smaller.
    pub mtu: u32,
    /// The interface is administratively up and has a carrier.
    pub up: bool,
}

/// An interface as the kernel's tables show it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceState {
    /// Its name.
    pub name: String,
    /// Its MAC address; `None` when it is not an Ethernet interface.
    pub mac: Option<MacAddress>,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// It is administratively up and has a carrier.
    pub up: bool,
    /// Its addresses and those of the VLAN interfaces on it, in the kernel's order.
    pub addresses: Vec<IpAddr>,
}

/// The forwarding table of a VXLAN device in this thread's network namespace: stations with the tunnel
/// endpoints that they are behind, the address zero for whatever has no entry of its own. In order.
///
/// # Errors
/// The kernel's; `NotFound` when there is no such device.
pub fn forwarding_table(device: &str) -> std::io::Result<Vec<(MacAddress, IpAddr)>> {
    let mut netlink = netlink::Netlink::open()?;
    let links = netlink.links()?;
    let link = links.iter().find(|link| link.name == device);
    let link = link.ok_or_else(|| {
        std::io::Error::new(std::io::ErrorKind::NotFound, "there is no such interface")
    })?;
    let mut entries = netlink.forwarding(link.ifindex)?;
    entries.sort_unstable();
    entries.dedup();
    Ok(entries)
}

/// Why the kernel's tables cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// A netlink socket could not be opened or used.
    #[error("cannot {action}: {source}")]
    Netlink {
        /// What was tried, for instance "open a netlink socket".
        action: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The monitor thread has ended; the process is going down or the thread has failed.
    #[error("the next-hop monitor is not running")]
    Stopped,
}
