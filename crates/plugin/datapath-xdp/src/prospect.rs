//! What stands in the way of AF_XDP on an interface, found out without touching it.

use takt_datapath::OpenError;
use takt_datapath::stack::NextHops;

use crate::interface::Device;
use crate::port::open_error;
use crate::{XdpDatapath, privilege, socket};

/// What an interface offers to AF_XDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prospect {
    /// Name of the driver, or "unknown".
    pub driver: String,
    /// Receive queues in use.
    pub queues: u32,
    /// Largest IP packet in bytes.
    pub mtu: u32,
}

impl XdpDatapath {
    /// Looks at what [`probe`](Self::probe) and [`open`](takt_datapath::Datapath::open) need of an interface, but attaches
    /// nothing: some cards lose their link for a moment when a program is attached. Whether the driver runs it is not
    /// told. Belongs to the calling thread's network namespace.
    ///
    /// # Errors
    /// [`OpenError`], as [`probe`](Self::probe); and where the interface is down or has no address.
    pub fn examine(interface: &str) -> Result<Prospect, OpenError> {
        privilege::check()?;
        let device = Device::probe(interface)?;
        socket::create().map_err(|error| open_error(error, "this kernel"))?;
        let untold = |error: takt_datapath::stack::StackError| OpenError::System {
            action: format!("cannot follow the routing tables for {interface}"),
            source: std::io::Error::other(error),
        };
        let tables = NextHops::start().map_err(untold)?;
        let state = tables.watch_interface(device.ifindex).map_err(untold)?;
        let refused = |why: String| Err(OpenError::Unavailable(why));
        let Some(state) = state.state() else {
            return refused(format!(
                "there is no interface {interface:?} any more: see `ip link`"
            ));
        };
        if state.mac.is_none() {
            return refused(format!(
                "{interface} is not an Ethernet interface: AF_XDP is for those"
            ));
        }
        if !state.up {
            return refused(format!(
                "{interface} is down: `ip link set dev {interface} up`, and look at its cable or the other end"
            ));
        }
        if state.addresses.is_empty() {
            return refused(format!("{interface} has no address: `ip address add` one"));
        }
        Ok(Prospect {
            driver: device.driver,
            queues: device.queues,
            mtu: state.mtu,
        })
    }
}
