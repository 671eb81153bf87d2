//! Throw-away hosts in network namespaces, for tests, benches and demos.
//!
//! A [`Lab`] is a handful of hosts on one machine: each host is a persistent network namespace (as
//! `ip netns add` makes it, so `ip netns exec` works on it), joined to the others by one veth cable,
//! or, from three hosts on, by cables to a bridge in a namespace of its own. Offloads, queueing
//! disciplines and neighbour discovery are what the kernel gives by default, so that what runs in a
//! lab meets the same stack as on a machine.
//!
//! Hosts may have containers: namespaces behind a bridge and a VXLAN over all hosts
//! ([`LabConfig::containers`]), which is what a container network makes of pods.
//!
//! Nothing runs in the background: a lab is found again from the names of its namespaces and a
//! small record under [`RECORDS`]. Root is required, and iproute2 (`ip`, `tc`).
//!
//! Not for: containers, process isolation, emulating loss or delay.
//!
//! ```no_run
//! use takt_lab::{Lab, LabConfig};
//!
//! let lab = Lab::scratch(&LabConfig::default())?;
//! let target = lab.host(1).address().to_string();
//! lab.host(0).command("ping")?.args(["-c", "1", &target]).status()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod capture;
mod config;
mod error;
mod host;
mod iproute;
mod lab;
mod link;
mod namespace;
mod record;

pub use capture::{Capture, Captured, HEAD};
pub use config::{LabConfig, Network, Overlay, ParseNetworkError, Wiring};
pub use error::LabError;
pub use host::{Host, LinkState};
pub use lab::{Gates, Lab, OVERLAY_DEVICE, OVERLAY_ID, Queues};
pub use namespace::Inside;
pub use record::RECORDS;
