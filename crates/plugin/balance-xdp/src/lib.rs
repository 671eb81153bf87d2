//! Load management of any service of a host: bundles of flows go to cores and to neighbours before the kernel's stack.
//!
//! An XDP program takes the packets of services ([`Service`]) at an interface and sends each to the core of its bundle (`CPUMAP`: the
//! kernel's stack goes on there), or to a neighbour: with its hardware address, or in VXLAN (RFC 7348). *Where* a bundle is to go is
//! decided by [`takt_balance`], here in user space, and written into a map: the next packet goes by it. *When* it may is decided in
//! the program, packet by packet, by the same two guards that `takt_balance` has: silence for δ, and what the core has
//! done. So no flow is reordered, whatever is written and whoever writes it.
//!
//! [`Balancer`] is the user-space half, driven by whoever calls [`Balancer::tick`]. [`look`] is for everybody else: status,
//! and assignments by map writes. Nothing is pinned: the program, its maps and the queues go with the process, however it ends.
//!
//! # Limits
//! - Native XDP alone. In generic mode a queue may be run by several processors at a time.
//! - Fragments and packets behind IPv6 extension headers take the kernel's way, and may overtake others of their flow or be overtaken.
//! - Neighbours tell no watermark: towards them δ alone keeps the order. It has to be longer than paths' latencies differ.
//! - VXLAN over IPv4, and neighbours on the link or behind a gateway of the kernel's routes, not behind a VLAN interface.
//! - A veth delivers redirected frames only if its other end has NAPI on: an XDP program, or `ethtool -K … gro on`. Frames that come in
//!   by a veth must have their checksums: `ethtool -K … tx off` where they are sent. Network cards need neither.
//! - What comes back from a service at a neighbour goes to the client directly: the neighbour has the service's address, too.
//!
//! Linux 5.18 at least (native XDP, CPUMAP with a program, `BPF_F_MMAPABLE`).
//!
//! Source: section IV.A of "SmartNIC-based load management and network health monitoring for time sensitive
//! applications", NOMS 2022; Linux `Documentation/bpf/map_cpumap.rst`.

mod balancer;
pub mod beat;
mod error;
mod flow;
mod hear;
pub mod look;
mod maps;
mod program;
#[cfg(test)]
mod tests;

pub use balancer::{Balancer, Config, Event, Neighbour, Way};
pub use error::Error;
pub use flow::{Service, hash, hash_of_stream};
pub use maps::{COUNTERS, Counters};
