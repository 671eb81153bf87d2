//! Netlink messages, reduced to what a frame header needs (Linux `rtnetlink(7)`).

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::AddressAttribute;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, VlanProtocol,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use takt_wire::ethernet::MacAddress;

use super::{BridgeEntry, DeviceKind, TunnelEntry};

/// `RTM_NEWNEIGH` and `RTM_DELNEIGH` of `linux/rtnetlink.h`.
const NEIGHBOUR_EVENTS: std::ops::RangeInclusive<u16> = 28..=29;
/// `RTM_NEWLINK`, `RTM_DELLINK`, `RTM_NEWADDR` and `RTM_DELADDR`: events that change an
/// [`super::InterfaceState`] too.
const INTERFACE_EVENTS: std::ops::RangeInclusive<u16> = 16..=21;
/// `RTM_DELLINK`: `struct ifinfomsg` behind the header has a family first, and an index at 4.
const LINK_GONE: u16 = 17;
const HEADER: usize = 16;

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
    /// Transmit queues.
    pub(super) queues: u16,
    pub(super) up: bool,
    /// For a VLAN interface: the interface below and the VLAN identifier.
    pub(super) vlan: Option<(u32, u16)>,
    pub(super) kind: DeviceKind,
    /// The bridge (or other device) that it is a port of.
    pub(super) controller: Option<u32>,
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
    /// This interface has gone, be there another of its index by now or not; otherwise as
    /// [`Interface`](Self::Interface).
    Gone(u32),
    /// A route, rule or next-hop object: any next hop.
    Route,
    /// An entry of a forwarding table of a bridge or of a VXLAN device.
    Forwarding,
}

pub(super) fn read_event(message: &[u8]) -> Option<Event> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    if kind == LINK_GONE
        && let Some(ifindex) = read_gone(message)
    {
        return Some(Event::Gone(ifindex));
    }
    if INTERFACE_EVENTS.contains(&kind) {
        return Some(Event::Interface);
    }
    if !NEIGHBOUR_EVENTS.contains(&kind) {
        return Some(Event::Route);
    }
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message).ok()?;
    let NetlinkPayload::InnerMessage(
        RouteNetlinkMessage::NewNeighbour(entry) | RouteNetlinkMessage::DelNeighbour(entry),
    ) = message.payload
    else {
        return None;
    };
    // Forwarding entries come by the same group.
    if entry.header.family == AddressFamily::Bridge {
        return Some(Event::Forwarding);
    }
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

/// The interface that has gone. That one has left a bridge is told by the same message, with the family of bridges.
fn read_gone(message: &[u8]) -> Option<u32> {
    let unspecified = libc::AF_UNSPEC as u8;
    (*message.get(HEADER)? == unspecified).then_some(())?;
    let index = message.get(HEADER + 4..HEADER + 8)?;
    Some(u32::from_ne_bytes(index.try_into().ok()?))
}

/// An entry of a forwarding table: of a VXLAN device, or of a bridge.
pub(super) enum Forwarding {
    Tunnel(TunnelEntry),
    Bridge(BridgeEntry),
    Stacked(u32, MacAddress),
}

/// Reads an entry that names a tunnel endpoint, or a port of a bridge.
pub(super) fn read_forwarding(entry: &NeighbourMessage) -> Option<Forwarding> {
    let (mut mac, mut endpoint, mut bridge) = (None, None, None);
    for attribute in &entry.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(address) => mac = read_mac(address),
            NeighbourAttribute::Controller(ifindex) => bridge = Some(*ifindex),
            NeighbourAttribute::Destination(address) => {
                // The library reads an address by the family of the entry, here that of bridges.
                endpoint = match address {
                    NeighbourAddress::Inet(address) => Some((*address).into()),
                    NeighbourAddress::Inet6(address) => Some((*address).into()),
                    NeighbourAddress::Other(octets) => match octets.len() {
                        4 => <[u8; 4]>::try_from(&octets[..]).ok().map(IpAddr::from),
                        16 => <[u8; 16]>::try_from(&octets[..]).ok().map(IpAddr::from),
                        _ => None,
                    },
                    _ => None,
                };
            }
            _ => {}
        }
    }
    let mac = mac?;
    let device = entry.header.ifindex;
    let permanent = entry.header.state == NeighbourState::Permanent;
    let reachable = |endpoint: &IpAddr| !endpoint.is_unspecified() && !endpoint.is_multicast();
    match (endpoint.filter(reachable), bridge) {
        (Some(endpoint), None) => Some(Forwarding::Tunnel(TunnelEntry {
            device,
            mac,
            endpoint,
            learned: !permanent,
        })),
        // A permanent entry is the port's own address.
        (None, Some(bridge)) if !permanent && !mac.is_multicast() => {
            Some(Forwarding::Bridge(BridgeEntry {
                bridge,
                port: device,
                mac,
            }))
        }
        // The kernel lists what an interface receives for besides its own address (`dev_uc_add`) as its own entries.
        (None, None) if endpoint.is_none() && permanent && mac.is_unicast() => {
            Some(Forwarding::Stacked(device, mac))
        }
        _ => None,
    }
}

pub(super) fn family_of(address: IpAddr) -> (AddressFamily, u8) {
    match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    }
}

/// The kernel's ways to say that there is no route: unreachable, prohibit and blackhole routes, a
/// source address that is not local, an interface that is gone.
pub(super) fn says_no_route(error: &io::Error) -> bool {
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

pub(super) fn read_route(route: &RouteMessage) -> Option<Route> {
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

pub(super) fn read_link(message: &RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = message else {
        return None;
    };
    let flags = message.header.flags;
    let mut link = Link {
        ifindex: message.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        queues: 0,
        up: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        vlan: None,
        kind: DeviceKind::Other,
        controller: None,
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
            LinkAttribute::NumTxQueues(count) => {
                link.queues = u16::try_from(*count).unwrap_or(u16::MAX);
            }
            LinkAttribute::Link(ifindex) => below = Some(*ifindex),
            LinkAttribute::Controller(ifindex) => link.controller = Some(*ifindex),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    if let LinkInfo::Kind(kind) = info {
                        link.kind = match kind {
                            InfoKind::Bridge => DeviceKind::Bridge,
                            InfoKind::Veth => DeviceKind::Veth,
                            InfoKind::Vxlan => DeviceKind::Vxlan,
                            _ => DeviceKind::Other,
                        };
                    }
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

pub(super) fn read_address(message: &RouteNetlinkMessage) -> Option<(u32, IpAddr)> {
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

pub(super) fn neighbour_message(ifindex: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family_of(address).0;
    message.header.ifindex = ifindex;
    message
        .attributes
        .push(NeighbourAttribute::Destination(address.into()));
    message
}

pub(super) fn read_neighbour(entry: &NeighbourMessage) -> Option<Neighbour> {
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

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::LinkMessage;

    use super::*;

    fn link(vlan: Vec<InfoVlan>) -> Link {
        let mut message = LinkMessage::default();
        message.header.index = 7;
        message.header.link_layer_type = LinkLayerType::Ether;
        message.header.flags = LinkFlags::Up | LinkFlags::LowerUp;
        message.attributes = vec![
            LinkAttribute::IfName("eth0.5".into()),
            LinkAttribute::Address(vec![2, 0, 0, 0, 0, 1]),
            LinkAttribute::Mtu(1500),
            LinkAttribute::Link(3),
        ];
        if !vlan.is_empty() {
            let data = LinkInfo::Data(InfoData::Vlan(vlan));
            message.attributes.push(LinkAttribute::LinkInfo(vec![data]));
        }
        read_link(&RouteNetlinkMessage::NewLink(message)).expect("a link")
    }

    #[test]
    fn a_vlan_interface_tells_its_identifier_and_the_interface_below() {
        let link = link(vec![
            InfoVlan::Id(5),
            InfoVlan::Protocol(VlanProtocol::Ieee8021Q),
        ]);
        assert_eq!(link.vlan, Some((3, 5)));
        assert_eq!(link.mac, Some(MacAddress([2, 0, 0, 0, 0, 1])));
        assert!(link.up);
    }

    #[test]
    fn a_service_vlan_interface_is_none_that_frames_can_be_written_for() {
        let link = link(vec![
            InfoVlan::Id(5),
            InfoVlan::Protocol(VlanProtocol::Ieee8021Ad),
        ]);
        assert_eq!((link.vlan, link.mac), (None, None));
    }

    #[test]
    fn the_far_end_of_a_pair_is_not_an_interface_below() {
        assert_eq!(link(Vec::new()).vlan, None);
    }

    #[test]
    fn an_interface_that_leaves_a_bridge_has_not_gone() {
        let event = |family: libc::c_int| {
            let mut message = [0; HEADER + 16];
            message[4..6].copy_from_slice(&LINK_GONE.to_ne_bytes());
            message[HEADER] = family as u8;
            message[HEADER + 4..HEADER + 8].copy_from_slice(&7_u32.to_ne_bytes());
            read_event(&message)
        };
        assert_eq!(event(libc::AF_UNSPEC), Some(Event::Gone(7)));
        assert_eq!(event(libc::AF_BRIDGE), Some(Event::Interface));
    }
}

/// Reads a netlink message as every answer and event that it may be, for fuzz targets.
#[cfg(fuzzing)]
pub fn read_anything(message: &[u8]) {
    read_event(message);
    let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message) else {
        return;
    };
    let NetlinkPayload::InnerMessage(message) = message.payload else {
        return;
    };
    read_link(&message);
    read_address(&message);
    match &message {
        RouteNetlinkMessage::NewRoute(route) => drop(read_route(route)),
        RouteNetlinkMessage::NewNeighbour(entry) => {
            read_neighbour(entry);
            read_forwarding(entry);
        }
        _ => {}
    }
}
