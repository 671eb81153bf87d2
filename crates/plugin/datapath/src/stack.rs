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
mod taprio;
#[cfg(test)]
mod tests;
mod watch;

#[cfg(fuzzing)]
pub use messages::read_anything;

pub use launch::{Etf, LaunchQueues, egress_interface, launch_queues, offloading_queues};
pub use netdev::{takes_redirected, xsk_launch_time};
pub use taprio::{Attached, OWN_PRIORITY, Root, Taprio, TaprioError, attached, programmed, root};
pub use watch::{Destination, Generations, Interface, NextHops};

use std::net::IpAddr;

use takt_wire::ethernet::MacAddress;

/// How frames reach a destination, as the kernel's tables say now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The route's interface itself.
    pub device: u32,
    /// What it is.
    pub kind: DeviceKind,
    /// The router that the route leads by; none on the link.
    pub gateway: Option<IpAddr>,
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

/// Kinds of network devices that tenants' frames pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A bridge (IEEE 802.1Q).
    Bridge,
    /// One end of a pair.
    Veth,
    /// A tunnel device (RFC 7348).
    Vxlan,
    /// Any other.
    Other,
}

/// A network device of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its index.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Its MAC address; `None` when it is not an Ethernet interface.
    pub mac: Option<MacAddress>,
    /// What it is.
    pub kind: DeviceKind,
    /// The bridge that it is a port of.
    pub bridge: Option<u32>,
}

/// An entry of the forwarding table of a VXLAN device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelEntry {
    /// The VXLAN device.
    pub device: u32,
    /// A station; zero: whatever has no entry of its own.
    pub mac: MacAddress,
    /// The tunnel endpoint that it is behind.
    pub endpoint: IpAddr,
    /// Learnt from what arrived, by the kernel or by a control plane that lets entries age; not entered for good.
    pub learned: bool,
}

/// A station that a bridge has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeEntry {
    /// The bridge.
    pub bridge: u32,
    /// Its port that the station is behind.
    pub port: u32,
    /// The station.
    pub mac: MacAddress,
}

/// Questions to the tables of the network namespace that it was opened in.
pub struct Tables(netlink::Netlink);

/// All forwarding tables of a host.
#[derive(Debug, Default)]
pub struct Forwarding {
    /// Of VXLAN devices, in the kernel's order.
    pub tunnels: Vec<TunnelEntry>,
    /// Of bridges, in the kernel's order.
    pub bridges: Vec<BridgeEntry>,
    /// Other addresses that interfaces receive for: the interface, and the station on it, such as a macvlan device in
    /// whatever network namespace.
    pub stacked: Vec<(u32, MacAddress)>,
}

impl Tables {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> std::io::Result<Self> {
        netlink::Netlink::open().map(Self)
    }

    /// All network devices.
    ///
    /// # Errors
    /// The kernel's.
    pub fn devices(&mut self) -> std::io::Result<Vec<Device>> {
        let device = |link: messages::Link| Device {
            ifindex: link.ifindex,
            name: link.name,
            mac: link.mac,
            kind: link.kind,
            bridge: link.controller,
        };
        Ok(self.0.links()?.into_iter().map(device).collect())
    }

    /// The forwarding tables of all bridges and VXLAN devices.
    ///
    /// # Errors
    /// The kernel's.
    pub fn forwarding(&mut self) -> std::io::Result<Forwarding> {
        let mut tables = Forwarding::default();
        for entry in self.0.forwarding()? {
            match entry {
                messages::Forwarding::Tunnel(entry) => tables.tunnels.push(entry),
                messages::Forwarding::Bridge(entry) => tables.bridges.push(entry),
                messages::Forwarding::Stacked(interface, mac) => {
                    tables.stacked.push((interface, mac));
                }
            }
        }
        Ok(tables)
    }
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").finish_non_exhaustive()
    }
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
