//! Questions to the routing and neighbour tables of the program's network (RFC 3549; Linux `rtnetlink(7)`).
//!
//! The socket is opened for each conversation: a process that has none going on has no descriptor for it.

use std::ffi::c_int;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr};

use crate::kernel;
use crate::own::Own;

/// The kernel delivers the packet here, too (`RTCF_LOCAL` of Linux `in_route.h`).
const RTCF_LOCAL: u32 = 0x8000_0000;

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Out of this interface.
    pub interface: u32,
    /// To this router, or straight to their destination.
    pub gateway: Option<IpAddr>,
    /// From this address, if the socket has none.
    pub source: Option<IpAddr>,
    /// No longer than this, if the route says so.
    pub mtu: Option<u32>,
    /// To whom.
    pub reach: Reach,
    /// To this network namespace, too: it has members of the group, or the address is everybody's. Of IPv4 only.
    pub here: bool,
}

/// What is found of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A way out.
    Way(Route),
    /// It is this machine.
    Local,
    /// Nowhere, or by a tunnel of the kernel's.
    Foreign,
}

/// To whom a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To one station.
    One,
    /// To a group.
    Group,
    /// To all stations of a network.
    All,
}

/// What a route is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Where to.
    pub destination: IpAddr,
    /// From where, if the socket or the send says so.
    pub source: Option<IpAddr>,
    /// Out of which interface, if they do; 0: any.
    pub interface: u32,
    /// `SO_MARK`.
    pub mark: u32,
    /// DSCP, by which routes may differ.
    pub traffic_octet: u8,
}

/// A conversation with the kernel.
pub struct Netlink {
    socket: Own<Socket>,
    sequence: u32,
}

fn family_of(address: IpAddr) -> (AddressFamily, u8) {
    match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    }
}

impl Netlink {
    /// Begins one about the network that the socket `fd` is in.
    ///
    /// # Errors
    /// The kernel's; [`io::ErrorKind::Unsupported`] when the calling thread is in another network.
    pub fn open(fd: c_int) -> io::Result<Self> {
        let mut socket = Own::netlink()?;
        let (theirs, ours) = (kernel::network(fd), kernel::network(socket.as_raw_fd()));
        // A kernel that cannot say leaves the usual case.
        if theirs != 0 && ours != 0 && theirs != ours {
            return Err(io::ErrorKind::Unsupported.into());
        }
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// One question, one answer. The kernel answers before the sending call returns, so nothing blocks.
    fn ask(&mut self, message: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answer = Vec::with_capacity(4096);
        self.socket.recv(&mut answer, libc::MSG_DONTWAIT)?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        match answer.payload {
            NetlinkPayload::InnerMessage(inner) => Ok(inner),
            NetlinkPayload::Error(error) => Err(error.to_io()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The route that the kernel would take.
    ///
    /// # Errors
    /// The kernel's, also when there is no route.
    pub fn route(&mut self, question: &Question) -> io::Result<Found> {
        let mut message = RouteMessage::default();
        let (family, bits) = family_of(question.destination);
        message.header.address_family = family;
        message.header.destination_prefix_length = bits;
        // Routes do not differ by ECN.
        message.header.tos = question.traffic_octet & !3;
        let attributes = &mut message.attributes;
        attributes.push(RouteAttribute::Destination(question.destination.into()));
        if let Some(source) = question.source {
            message.header.source_prefix_length = bits;
            attributes.push(RouteAttribute::Source(source.into()));
        }
        if question.interface != 0 {
            attributes.push(RouteAttribute::Oif(question.interface));
        }
        if question.mark != 0 {
            attributes.push(RouteAttribute::Mark(question.mark));
        }
        match self.ask(RouteNetlinkMessage::GetRoute(message))? {
            RouteNetlinkMessage::NewRoute(route) => Ok(read_route(&route)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The hardware address of a neighbour, if the kernel knows it, and whether it has been confirmed lately.
    pub fn neighbour(&mut self, interface: u32, address: IpAddr) -> Option<([u8; 6], bool)> {
        let mut message = NeighbourMessage::default();
        message.header.family = family_of(address).0;
        message.header.ifindex = interface;
        message
            .attributes
            .push(NeighbourAttribute::Destination(match address {
                IpAddr::V4(address) => NeighbourAddress::Inet(address),
                IpAddr::V6(address) => NeighbourAddress::Inet6(address),
            }));
        match self.ask(RouteNetlinkMessage::GetNeighbour(message)).ok()? {
            RouteNetlinkMessage::NewNeighbour(entry) => read_neighbour(&entry),
            _ => None,
        }
    }
}

fn read_address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

fn read_route(route: &RouteMessage) -> Found {
    let reach = match route.header.kind {
        RouteType::Unicast => Reach::One,
        RouteType::Multicast => Reach::Group,
        RouteType::Broadcast => Reach::All,
        RouteType::Local => return Found::Local,
        _ => return Found::Foreign,
    };
    let mut read = Route {
        interface: 0,
        gateway: None,
        source: None,
        mtu: None,
        reach,
        here: route.header.flags.bits() & RTCF_LOCAL != 0,
    };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(interface) => read.interface = *interface,
            RouteAttribute::Gateway(address) => read.gateway = read_address(address),
            RouteAttribute::Via(RouteVia::Inet(address)) => read.gateway = Some((*address).into()),
            RouteAttribute::Via(RouteVia::Inet6(address)) => read.gateway = Some((*address).into()),
            RouteAttribute::PrefSource(address) => read.source = read_address(address),
            RouteAttribute::Metrics(metrics) => {
                read.mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) if *mtu != 0 => Some(*mtu),
                    _ => None,
                });
            }
            // Labels and other tunnels that the kernel puts around packets.
            RouteAttribute::EncapType(_) | RouteAttribute::Encap(_) => return Found::Foreign,
            _ => {}
        }
    }
    match read.interface {
        0 => Found::Foreign,
        _ => Found::Way(read),
    }
}

fn read_neighbour(entry: &NeighbourMessage) -> Option<([u8; 6], bool)> {
    // Entries that are not known to be wrong: the kernel, too, sends to a stale one.
    if !matches!(
        entry.header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
    ) {
        return None;
    }
    let station = entry
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(mac) => mac.as_slice().try_into().ok(),
            _ => None,
        })?;
    Some((station, entry.header.state != NeighbourState::Stale))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> std::net::UdpSocket {
        std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket")
    }

    fn question(destination: &str) -> Question {
        Question {
            destination: destination.parse().expect("an address"),
            source: None,
            interface: 0,
            mark: 0,
            traffic_octet: 0,
        }
    }

    #[test]
    fn this_machine_is_no_way_out() {
        let socket = socket();
        let mut netlink = Netlink::open(socket.as_raw_fd()).expect("netlink");
        assert_eq!(
            netlink.route(&question("127.0.0.1")).expect("a route"),
            Found::Local
        );
    }

    #[test]
    fn an_unknown_neighbour_is_none() {
        let socket = socket();
        let mut netlink = Netlink::open(socket.as_raw_fd()).expect("netlink");
        assert_eq!(netlink.neighbour(1, "192.0.2.77".parse().unwrap()), None);
        assert_eq!(
            netlink.neighbour(u32::MAX, "192.0.2.77".parse().unwrap()),
            None
        );
    }
}
