//! Datapath over DPDK: network cards and virtual devices that a user-space driver polls.
//!
//! Devices are named as DPDK names them: a PCI address, or a virtual device such as
//! `net_af_packet0,iface=eth1`, `net_memif0,role=server,socket=/run/m.sock` or
//! `net_virtio_user0,path=/run/vhost.sock`. DPDK's environment is started once in a process, without files,
//! telemetry or threads on our way, and with huge pages where there are any.
//!
//! On an `net_af_packet` device the kernel keeps addresses, routes and neighbours, and has all other traffic. On
//! any other device, or where addresses are configured, the datapath answers for them by itself: ARP, neighbour
//! discovery, echo, one gateway for each address family.
//!
//! # Limits
//! - A UDP port number is one port's, also on a device with several addresses.
//! - IP fragments, IPv6 extension headers and, without a kernel interface, VLAN tags are not served.
//! - Launch times are the runtime's: none is given to the device.
//! - Only sockets of `net_af_packet` wake a lane. With other devices a sleeping lane looks every 100 µs.
//! - A device that takes nothing for 100 ms (no peer at the other end) loses what waits, counted.
//!
//! DPDK 22.11 at least. Source: naaas-thesis-2024, section 5.1.3 (plugins).

pub mod bare;
mod config;
mod device;
mod eal;
mod ffi;
mod kernel;
mod neighbours;
mod peers;
mod port;
mod transmit;

use std::sync::Arc;

use takt_datapath::{Capabilities, Datapath, DatapathKind, Health, OpenError, Port, PortRequest};

pub use config::{DpdkConfig, HugePages, Subnet};

use device::Device;
use port::DpdkPort;

/// A device of DPDK. It runs as long as this or one of its ports lives.
#[derive(Debug)]
pub struct DpdkDatapath {
    device: Arc<Device>,
}

impl DpdkDatapath {
    /// The technology's name.
    pub const KIND: DatapathKind = DatapathKind("dpdk");

    /// Starts DPDK, if need be, and the device. An interface that is named belongs to the calling thread's
    /// network namespace, which ports are to be opened in as well.
    ///
    /// # Errors
    /// [`OpenError`] with what DPDK says and what to do about it.
    pub fn probe(config: &DpdkConfig) -> Result<Self, OpenError> {
        config.check()?;
        Ok(Self {
            device: Device::get(config)?,
        })
    }
}

impl Datapath for DpdkDatapath {
    fn kind(&self) -> DatapathKind {
        Self::KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // A packet socket's frames pass the kernel's stack on their way out, and are copied.
            accelerated: true,
            needs_polling: !self.device.wakes(),
            hardware_launch_time: false,
            speaks_udp: true,
            own_addresses: self.device.has_own_addresses(),
            zero_copy: false,
            detail: self.device.detail(),
        }
    }

    fn open(&self, request: &PortRequest) -> Result<Box<dyn Port>, OpenError> {
        Ok(Box::new(DpdkPort::open(&self.device, request)?))
    }

    fn health(&self, _changed: Box<dyn Fn() + Send>) -> Option<Box<dyn Health>> {
        Some(Box::new(Link(Arc::clone(&self.device))))
    }
}

/// The device's link, as its ports see it.
struct Link(Arc<Device>);

impl Health for Link {
    fn fault(&self) -> Option<String> {
        self.0.fault()
    }
}

takt_datapath::export_datapath!("dpdk", env!("CARGO_PKG_VERSION"), |options| {
    let options = options.0.iter();
    let config =
        DpdkConfig::from_options(options.map(|(key, value)| (key.as_str(), value.as_str())))?;
    Ok(Box::new(DpdkDatapath::probe(&config)?) as Box<dyn Datapath>)
});
