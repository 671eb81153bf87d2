//! Scouting on a link: the sockets of the multicast group ([`crate::peering::scout`] has what is said there).
//!
//! Both sockets are bound to one interface: what is said stays on its link (a TTL of 1), and what comes from elsewhere is
//! not heard.

use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{SockaddrStorage, setsockopt, sockopt};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use crate::config::ScoutConfig;
use crate::peering::AcceptNet;

/// UDP port of the multicast group, unless another is configured.
pub const PORT: u16 = 7398;
/// The group, unless another is configured: within the organisation (RFC 2365), and within the link (RFC 4291, 2.7).
pub const GROUPS: (Ipv4Addr, Ipv6Addr) = (
    Ipv4Addr::new(239, 255, 116, 107),
    Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x7461, 0x6b74),
);

/// A node's place in the group.
pub struct Scouting {
    receive: UdpSocket,
    send: UdpSocket,
    group: SocketAddr,
    /// The peering address that is announced.
    own: SocketAddr,
    /// When it is announced next.
    pub next: Duration,
    /// The last announcement could not be sent: that has been said.
    silent: bool,
}

/// The addresses of an interface, with the lengths of their prefixes. Those that hold on their link only are left out.
///
/// # Errors
/// The kernel's; there is no such interface.
pub fn addresses(interface: &str) -> Result<Vec<AcceptNet>> {
    let ip = |address: Option<SockaddrStorage>| {
        let address = address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    let mut there = false;
    let mut found = Vec::new();
    for entry in getifaddrs()?.filter(|entry| entry.interface_name == interface) {
        there = true;
        let (Some(address), Some(mask)) = (ip(entry.address), ip(entry.netmask)) else {
            continue;
        };
        if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
            continue;
        }
        let prefix = match mask {
            IpAddr::V4(mask) => mask.to_bits().leading_ones(),
            IpAddr::V6(mask) => mask.to_bits().leading_ones(),
        };
        let prefix = prefix as u8;
        found.push(AcceptNet { address, prefix });
    }
    match there {
        true => Ok(found),
        false => Err(Error::new(
            ErrorKind::NotFound,
            "there is no such interface",
        )),
    }
}

impl Scouting {
    /// Joins the group, for a node whose peering socket has the address `local`.
    ///
    /// # Errors
    /// The kernel's; the interface has no address of the node's family.
    pub fn open(config: &ScoutConfig, local: SocketAddr) -> Result<Self> {
        let found = addresses(&config.interface)?;
        let index = nix::net::if_::if_nametoindex(config.interface.as_str())?;
        let mut found = found.iter().map(|net| net.address);
        let ip = match local.ip() {
            ip if !ip.is_unspecified() => found.find(|other| *other == ip),
            ip => found.find(|other| other.is_ipv4() == ip.is_ipv4()),
        };
        let ip = ip.ok_or_else(|| {
            let text = "it has no address that the node has too (`node.address`)";
            Error::new(ErrorKind::AddrNotAvailable, text)
        })?;
        let (group, any) = match (config.group, ip) {
            (Some(group), _) if group.is_ipv4() != ip.is_ipv4() => {
                let text = format!("the group {group} is of another address family than {ip}");
                return Err(Error::new(ErrorKind::InvalidInput, text));
            }
            (Some(group), _) => (group, ip),
            (None, IpAddr::V4(_)) => (SocketAddr::new(GROUPS.0.into(), PORT), ip),
            (None, IpAddr::V6(_)) => (SocketAddr::new(GROUPS.1.into(), PORT), ip),
        };
        let socket = |address: SocketAddr| -> Result<UdpSocket> {
            let family = match address {
                SocketAddr::V4(_) => AddressFamily::INET,
                SocketAddr::V6(_) => AddressFamily::INET6,
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
            // Several nodes of one host hear the group.
            rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
            setsockopt(
                &socket,
                sockopt::BindToDevice,
                &config.interface.as_str().into(),
            )?;
            bind(&socket, &address)?;
            Ok(UdpSocket::from(socket))
        };
        let scoped = |address: SocketAddr| match address {
            SocketAddr::V6(mut address) if address.ip().is_multicast() => {
                address.set_scope_id(index);
                SocketAddr::V6(address)
            }
            address => address,
        };
        let group = scoped(group);
        let receive = socket(group)?;
        match group.ip() {
            IpAddr::V4(group) => rustix::net::sockopt::set_ip_add_membership_with_ifindex(
                &receive,
                &group,
                &Ipv4Addr::UNSPECIFIED,
                index,
            )?,
            IpAddr::V6(group) => receive.join_multicast_v6(&group, index)?,
        }
        Ok(Self {
            receive,
            send: socket(SocketAddr::new(any, 0))?,
            group,
            own: SocketAddr::new(ip, local.port()),
            next: Duration::ZERO,
            silent: false,
        })
    }

    /// What to wait on for datagrams.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.receive.as_fd()
    }

    /// The next datagram, with where it came from.
    ///
    /// # Errors
    /// The kernel's; `WouldBlock`: there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
        self.receive.recv_from(buffer)
    }

    /// The peering address that is announced.
    pub fn own(&self) -> SocketAddr {
        self.own
    }

    /// Sends announcements; says once that it cannot.
    pub fn announce(&mut self, datagrams: &[Vec<u8>]) {
        for datagram in datagrams {
            let sent = self.send.send_to(datagram, self.group);
            if let Err(error) = &sent
                && !self.silent
            {
                tracing::warn!(group = %self.group, %error, "cannot announce this node");
            }
            self.silent = sent.is_err();
        }
    }
}
