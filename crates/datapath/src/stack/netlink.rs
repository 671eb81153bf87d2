//! Questions to the kernel's routing, neighbour, link and address tables, and their change events.
//!
//! Synchronous rtnetlink (RFC 3549; Linux `rtnetlink(7)`), used by the monitor thread alone. Answers keep only
//! what a frame header needs.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::AddressAttribute;
use netlink_packet_route::link::{
    InfoData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
    VlanProtocol,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr as NetlinkAddr};
use takt_wire::ethernet::MacAddress;

/// Multicast groups of `linux/rtnetlink.h` whose events may change a next hop.
const GROUPS: [u32; 9] = [
    1,  // RTNLGRP_LINK
    3,  // RTNLGRP_NEIGH
    5,  // RTNLGRP_IPV4_IFADDR
    7,  // RTNLGRP_IPV4_ROUTE
    8,  // RTNLGRP_IPV4_RULE
    9,  // RTNLGRP_IPV6_IFADDR
    11, // RTNLGRP_IPV6_ROUTE
    19, // RTNLGRP_IPV6_RULE
    32, // RTNLGRP_NEXTHOP
];

/// `RTM_NEWNEIGH` and `RTM_DELNEIGH` of `linux/rtnetlink.h`.
const NEIGHBOUR_EVENTS: std::ops::RangeInclusive<u16> = 28..=29;
/// `RTM_NEWLINK`, `RTM_DELLINK`, `RTM_NEWADDR` and `RTM_DELADDR`: events that change an [`super::InterfaceState`] too.
const INTERFACE_EVENTS: std::ops::RangeInclusive<u16> = 16..=21;

/// Length of `struct nlmsghdr`.
const NLMSG_HEADER: usize = 16;

/// A unicast route to one destination.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) ifindex: u32,
    pub(super) gateway: Option<IpAddr>,
    pub(super) src_ip: Option<IpAddr>,
    pub(super) mtu: Option<u32>,
}

/// What a frame needs to know of an interface.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) ifindex: u32,
    pub(super) name: String,
    /// `None`: not an Ethernet interface.
    pub(super) mac: Option<MacAddress>,
    pub(super) mtu: u32,
    pub(super) up: bool,
    /// For a VLAN interface: the interface below and the VLAN identifier.
    pub(super) vlan: Option<(u32, u16)>,
}

/// A neighbour table entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    pub(super) mac: MacAddress,
    /// The kernel has not seen it confirmed lately and will forget it unless it is used.
    pub(super) stale: bool,
}

/// What a change event touches.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The neighbour `address` on `ifindex`.
    Neighbour {
        /// The interface.
        ifindex: u32,
        /// The neighbour's address.
        address: IpAddr,
    },
    /// A link or an address: any next hop and any interface.
    Interface,
    /// A route, rule or next-hop object: any next hop.
    Route,
}

/// A socket for questions.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddr::new(0, 0))?;
        // The kernel answers within the request; the limit only keeps a kernel fault from hanging the monitor.
        let limit = libc::timeval {
            tv_sec: 2,
            tv_usec: 0,
        };
        // SAFETY: the descriptor is open for the call and `limit` is a `timeval` of the length given.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const limit).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Sends one request and collects the answers; an error answer becomes an [`io::Error`] with its errno.
    fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        let dump = flags & NLM_F_DUMP == NLM_F_DUMP;
        let mut answers = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for part in messages(&datagram) {
                let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(part) else {
                    // An entry that the library cannot read is not one that frames can use.
                    if dump {
                        continue;
                    }
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "cannot read the kernel's netlink answer",
                    ));
                };
                if message.header.sequence_number != self.sequence {
                    continue; // left over from a request that timed out
                }
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(error) => {
                        return match error.code {
                            None => Ok(answers),
                            Some(_) => Err(error.to_io()),
                        };
                    }
                    NetlinkPayload::InnerMessage(inner) => {
                        answers.push(inner);
                        if !dump && flags & NLM_F_ACK == 0 {
                            return Ok(answers);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// The route that the kernel would take to `destination` (from `source`, out of `oif` unless 0), or `None`
    /// when there is no unicast route.
    pub(super) fn route(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
        oif: u32,
    ) -> io::Result<Option<Route>> {
        let mut message = RouteMessage::default();
        let (family, bits) = family_of(destination);
        message.header.address_family = family;
        message.header.destination_prefix_length = bits;
        message
            .attributes
            .push(RouteAttribute::Destination(destination.into()));
        if let Some(source) = source {
            message.header.source_prefix_length = bits;
            message
                .attributes
                .push(RouteAttribute::Source(source.into()));
        }
        if oif != 0 {
            message.attributes.push(RouteAttribute::Oif(oif));
        }
        let answers = match self.request(RouteNetlinkMessage::GetRoute(message), 0) {
            Ok(answers) => answers,
            Err(error) if says_no_route(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        for answer in answers {
            if let RouteNetlinkMessage::NewRoute(route) = answer {
                return Ok(read_route(&route));
            }
        }
        Ok(None)
    }

    /// The interface `ifindex`, or `None` when there is none.
    pub(super) fn link(&mut self, ifindex: u32) -> io::Result<Option<Link>> {
        let mut message = LinkMessage::default();
        message.header.index = ifindex;
        match self.request(RouteNetlinkMessage::GetLink(message), 0) {
            Ok(answers) => Ok(answers.iter().find_map(read_link)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All interfaces.
    pub(super) fn links(&mut self) -> io::Result<Vec<Link>> {
        let answers = self.request(
            RouteNetlinkMessage::GetLink(LinkMessage::default()),
            NLM_F_DUMP,
        )?;
        Ok(answers.iter().filter_map(read_link).collect())
    }

    /// All addresses with the interface that has them.
    pub(super) fn addresses(&mut self) -> io::Result<Vec<(u32, IpAddr)>> {
        let answers = self.request(
            RouteNetlinkMessage::GetAddress(Default::default()),
            NLM_F_DUMP,
        )?;
        Ok(answers.iter().filter_map(read_address).collect())
    }

    /// The usable neighbour entry of `address` on `ifindex`.
    pub(super) fn neighbour(
        &mut self,
        ifindex: u32,
        address: IpAddr,
    ) -> io::Result<Option<Neighbour>> {
        match self.request(
            RouteNetlinkMessage::GetNeighbour(neighbour_message(ifindex, address)),
            0,
        ) {
            Ok(answers) => Ok(answers.iter().find_map(|answer| match answer {
                RouteNetlinkMessage::NewNeighbour(entry) => read_neighbour(entry),
                _ => None,
            })),
            // ENOENT: no such entry; ENODEV, ENXIO: the interface has gone or has no neighbour table.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Has the kernel resolve or revalidate `address`, as traffic of a socket would.
    pub(super) fn use_neighbour(&mut self, ifindex: u32, address: IpAddr) -> io::Result<()> {
        let mut message = neighbour_message(ifindex, address);
        message.header.flags = NeighbourFlags::Use;
        self.request(
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_ACK | NLM_F_CREATE,
        )
        .map(drop)
    }
}

/// A socket that hears of changes.
pub(super) struct Events {
    socket: Socket,
}

impl Events {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        socket.set_rx_buf_sz(1u32 << 20)?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        Ok(Self { socket })
    }

    /// Passes each waiting event to `note`; lost events count as [`Event::Interface`], which touches everything.
    pub(super) fn drain(&self, mut note: impl FnMut(Event)) -> io::Result<()> {
        // Bounded, so that a storm of events cannot keep the monitor from its work.
        for _ in 0..4096 {
            match self.socket.recv_from_full() {
                Ok((datagram, _)) => messages(&datagram)
                    .filter_map(read_event)
                    .for_each(&mut note),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => note(Event::Interface),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as `self` lives, and so as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) }
    }
}

/// The netlink messages in a datagram, each with its header; stops at the first malformed length.
fn messages(datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
        if length < NLMSG_HEADER {
            return None;
        }
        let message = rest.get(..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

fn read_event(message: &[u8]) -> Option<Event> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    if INTERFACE_EVENTS.contains(&kind) {
        return Some(Event::Interface);
    }
    if !NEIGHBOUR_EVENTS.contains(&kind) {
        return Some(Event::Route);
    }
    // Bridge forwarding entries come by the same group; they have no IP address and concern nobody here.
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message).ok()?;
    let NetlinkPayload::InnerMessage(
        RouteNetlinkMessage::NewNeighbour(entry) | RouteNetlinkMessage::DelNeighbour(entry),
    ) = message.payload
    else {
        return None;
    };
    entry
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => {
                Some(Event::Neighbour {
                    ifindex: entry.header.ifindex,
                    address: (*address).into(),
                })
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => {
                Some(Event::Neighbour {
                    ifindex: entry.header.ifindex,
                    address: (*address).into(),
                })
            }
            _ => None,
        })
}

fn family_of(address: IpAddr) -> (AddressFamily, u8) {
    match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    }
}

/// The kernel's ways to say that there is no route: unreachable, prohibit and blackhole routes, a source
/// address that is not local, an interface that is gone.
fn says_no_route(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::EACCES
                | libc::EINVAL
                | libc::ENODEV
                | libc::ENETDOWN
                | libc::EADDRNOTAVAIL
        )
    )
}

fn read_route(route: &RouteMessage) -> Option<Route> {
    if route.header.kind != RouteType::Unicast {
        return None;
    }
    let mut read = Route {
        ifindex: 0,
        gateway: None,
        src_ip: None,
        mtu: None,
    };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(ifindex) => read.ifindex = *ifindex,
            RouteAttribute::Gateway(address) => read.gateway = read_route_address(address),
            RouteAttribute::Via(RouteVia::Inet(address)) => read.gateway = Some((*address).into()),
            RouteAttribute::Via(RouteVia::Inet6(address)) => read.gateway = Some((*address).into()),
            RouteAttribute::PrefSource(address) => read.src_ip = read_route_address(address),
            RouteAttribute::Source(address) if read.src_ip.is_none() => {
                read.src_ip = read_route_address(address)
            }
            RouteAttribute::Metrics(metrics) => {
                read.mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) if *mtu != 0 => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    (read.ifindex != 0).then_some(read)
}

fn read_route_address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

fn read_link(message: &RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = message else {
        return None;
    };
    let flags = message.header.flags;
    let mut link = Link {
        ifindex: message.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        up: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        vlan: None,
    };
    let (mut below, mut vlan, mut customer_tag) = (None, None, true);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(mac)
                if message.header.link_layer_type == LinkLayerType::Ether =>
            {
                link.mac = read_mac(mac);
            }
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Link(ifindex) => below = Some(*ifindex),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    let LinkInfo::Data(InfoData::Vlan(data)) = info else {
                        continue;
                    };
                    for item in data {
                        match item {
                            InfoVlan::Id(id) => vlan = Some(*id),
                            InfoVlan::Protocol(protocol) => {
                                customer_tag = *protocol == VlanProtocol::Ieee8021Q
                            }
                            _ => {}
                        }
                    }
                }
            }
            _ => {}
        }
    }
    match (below, vlan) {
        (Some(below), Some(id)) if customer_tag => link.vlan = Some((below, id)),
        // An 802.1ad service tag is not one that we write.
        (_, Some(_)) => link.mac = None,
        _ => {}
    }
    Some(link)
}

fn read_address(message: &RouteNetlinkMessage) -> Option<(u32, IpAddr)> {
    let RouteNetlinkMessage::NewAddress(message) = message else {
        return None;
    };
    // On point-to-point interfaces IFA_ADDRESS is the far end and IFA_LOCAL ours (rtnetlink(7)).
    let mut address = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(local) => {
                address = Some(*local);
                break;
            }
            AddressAttribute::Address(other) => address = Some(*other),
            _ => {}
        }
    }
    Some((message.header.index, address?))
}

fn neighbour_message(ifindex: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family_of(address).0;
    message.header.ifindex = ifindex;
    message
        .attributes
        .push(NeighbourAttribute::Destination(address.into()));
    message
}

fn read_neighbour(entry: &NeighbourMessage) -> Option<Neighbour> {
    let stale = match entry.header.state {
        NeighbourState::Stale => true,
        NeighbourState::Reachable
        | NeighbourState::Delay
        | NeighbourState::Probe
        | NeighbourState::Permanent => false,
        _ => return None,
    };
    entry
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(mac) => Some(Neighbour {
                mac: read_mac(mac)?,
                stale,
            }),
            _ => None,
        })
}

fn read_mac(bytes: &[u8]) -> Option<MacAddress> {
    bytes.try_into().ok().map(MacAddress)
}
