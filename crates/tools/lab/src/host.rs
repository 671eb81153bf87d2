//! One host of a lab.

use std::ffi::OsStr;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::config::{ENCAPSULATION, Overlay};
use crate::iproute::ip;
use crate::link;
use crate::namespace::{self, Inside};
use crate::record::RECORDS;
use crate::{LabConfig, LabError};

/// The name of a host's interface, inside its namespace.
pub(crate) const INTERFACE: &str = "eth0";

/// A host of a lab: a network namespace with one addressed interface.
///
/// A value of its own: it may outlive the [`Lab`](crate::Lab) it came from and go to other threads.
/// Once the lab is down, its operations fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    namespace: String,
    name_from: usize,
    address: Ipv4Addr,
    prefix_length: u8,
    mac: [u8; 6],
    mtu: u32,
    /// Namespace and interface of the other end of the cable.
    far: (String, String),
}

impl Host {
    /// Host `index` of the lab `lab`, as `config` numbers it.
    pub(crate) fn new(lab: &str, index: usize, config: &LabConfig) -> Self {
        let address = config.network.host(index);
        let [a, b, c, d] = address.octets();
        let far = if config.bridged() {
            (switch_of(lab), host_name(index))
        } else {
            (namespace_of(lab, 1 - index), INTERFACE.to_owned())
        };
        Self {
            namespace: namespace_of(lab, index),
            name_from: lab.len() + 1,
            address,
            prefix_length: config.network.prefix_length(),
            // Locally administered, and telling of the address.
            mac: [0x02, 0x00, a, b, c, d],
            mtu: config.mtu,
            far,
        }
    }

    /// Container `index` of host `host` of the lab `lab`.
    pub(crate) fn container(lab: &str, host: usize, index: usize, config: &LabConfig) -> Self {
        let [host_octet, number] = [host, index].map(|index| index as u8 + 1);
        let (octet, prefix_length) = match config.overlay.routed() {
            // The first address is the gateway's.
            true => (number + 1, 24),
            false => (number, 16),
        };
        let namespace = namespace_of(lab, host);
        Self {
            namespace: format!("{namespace}c{number}"),
            name_from: lab.len() + 1,
            address: Ipv4Addr::new(10, 88, host_octet, octet),
            prefix_length,
            mac: [0x02, 0x00, 10, 88, host_octet, octet],
            mtu: match config.overlay {
                Overlay::HostGateway => config.mtu,
                Overlay::Bridged | Overlay::Flannel => config.mtu - ENCAPSULATION,
            },
            far: (namespace, format!("c{number}")),
        }
    }

    /// Namespace and interface of the other end of the cable.
    pub(crate) fn far(&self) -> (&str, &str) {
        (&self.far.0, &self.far.1)
    }

    /// The name within the lab: `h1` is the first host, `h1c1` its first container.
    pub fn name(&self) -> &str {
        &self.namespace[self.name_from..]
    }

    /// The name of the network namespace, for `ip netns exec`.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The host's IPv4 address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The prefix length of the lab's network.
    pub fn prefix_length(&self) -> u8 {
        self.prefix_length
    }

    /// The hardware address of the interface.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// The MTU of the interface, octets.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// The name of the interface, inside the host.
    pub fn interface(&self) -> &'static str {
        INTERFACE
    }

    /// Moves the calling thread into the host until the guard is dropped.
    ///
    /// # Errors
    /// When the lab is down, or without CAP_SYS_ADMIN.
    pub fn enter(&self) -> Result<Inside, LabError> {
        namespace::enter(&self.namespace)
    }

    /// A command that will run `program` inside the host, with a `/sys` of the host's own.
    ///
    /// # Errors
    /// When the lab is down. What is wrong only when the child starts (no such program, no
    /// privilege) comes from [`Command::spawn`].
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        namespace::command(&self.namespace, program.as_ref())
    }

    /// As [`command`](Self::command), for people: the program also finds the host's name as its `hostname`, and in its
    /// environment the sockets of the host's own node. A container finds the socket that the node has for it.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn login(&self, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        let mut command = self.command(program)?;
        namespace::name_host(&mut command, self.name());
        let directory = self.directory();
        command
            .env("TAKT_SOCKET", self.socket())
            .env("TAKT_ADMIN_SOCKET", directory.join("admin.sock"));
        Ok(command)
    }

    /// Where programs of this host, or of this container, attach to the host's node.
    pub fn socket(&self) -> PathBuf {
        let name = self.name();
        let name = if name.contains('c') { name } else { "takt" };
        self.directory().join(format!("{name}.sock"))
    }

    /// Where the node of this host has its sockets. All hosts share the file system: each has a directory of its own.
    pub fn directory(&self) -> PathBuf {
        let lab = &self.namespace[..self.name_from - 1];
        let host = self.name().split('c').next().unwrap_or_default();
        Path::new(RECORDS).join(lab).join(host)
    }

    /// Plugs the host's cable in or pulls it. Addresses stay. Once plugged in at both ends, it carries
    /// frames when this returns.
    ///
    /// # Errors
    /// When `ip` refuses, or the link does not become operational.
    pub fn link(&self, state: LinkState) -> Result<(), LabError> {
        let purpose = format!("set the link of {} {state}", self.namespace);
        ip(
            &purpose,
            &[
                "-n",
                &self.namespace,
                "link",
                "set",
                INTERFACE,
                &state.to_string(),
            ],
        )?;
        match state {
            LinkState::Up => self.wait_for_link(),
            LinkState::Down => Ok(()),
        }
    }

    /// Waits until frames pass, if both ends of the cable are plugged in.
    pub(crate) fn wait_for_link(&self) -> Result<(), LabError> {
        link::wait_until_operational((&self.namespace, INTERFACE), self.far())
    }
}

/// The namespace of the bridge.
pub(crate) fn switch_of(lab: &str) -> String {
    format!("{lab}-switch")
}

fn host_name(index: usize) -> String {
    format!("h{}", index + 1)
}

fn namespace_of(lab: &str, index: usize) -> String {
    format!("{lab}-{}", host_name(index))
}

/// Whether a host's link is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Plugged in.
    Up,
    /// Pulled: nothing is sent or received, and the far end loses its carrier.
    Down,
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Down => "down",
        })
    }
}
