//! The way to a destination: which source address, which next hop, which headers; or that it is the kernel's.
//!
//! Found out with the kernel's tables and the runtime's, at the first send to it; then followed by a thread of its own
//! ([`follower`](crate::follower)).

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use crate::follower::{self, Answers};
use crate::frame::{Flow, Headers};
use crate::kernel;
use crate::netlink::{Found, Netlink, Question, Reach, Route};
use crate::news::Station;
use crate::options::Options;
use crate::remembered::Remembered;
use crate::runtime::{Refusal, Source};
use crate::unserved::Reason;

/// How long a way is believed, in nanoseconds. It is found out anew about once a second; what the follower cannot do, for
/// want of processor time, no send does in its place for so long.
const BELIEVED: i64 = 60_000_000_000;
/// How long without anybody who follows.
const ALONE: i64 = 1_000_000_000;
/// How long it is believed that the next hop is unknown: the kernel is finding it out.
const UNRESOLVED: i64 = 10_000_000;
/// What tells one way from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The receiver.
    pub destination: SocketAddr,
    /// The source address that the send names or the socket has; `None`: by route.
    pub source: Option<IpAddr>,
    /// The socket's port.
    pub port: u16,
    /// The interface that the send names or the socket has, 0: by route.
    pub interface: u32,
    /// `SO_MARK`.
    pub mark: u32,
    /// It has a checksum.
    pub checksum: bool,
    /// DSCP and ECN.
    pub traffic_octet: u8,
    /// Hops.
    pub hop_limit: u8,
}

/// A way.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// The kernel's, and why.
    Kernel(Reason),
    /// The runtime's.
    Runtime {
        /// The frames' headers.
        headers: Headers,
        /// Most bytes of an IP packet.
        mtu: usize,
        /// The interface that the kernel would have taken.
        interface: u32,
        /// Who sends.
        source: IpAddr,
        /// The next hop has told its hardware address; else it is zero in the headers.
        resolved: bool,
    },
}

/// The ways to the latest destinations of a socket.
pub type Destinations = Remembered<Key, Way>;
/// What is known of the stations of a packet socket: why the runtime does not reach them, or the longest packet.
pub type Stations = Remembered<Station, Result<usize, Reason>>;

impl Destinations {
    /// The way to a destination, remembered, or found and from now on `watched`, which is told whether its next hop is
    /// unknown; that is asked only then, so that nobody hears of its answer who does not know what it is for.
    ///
    /// # Errors
    /// The runtime's.
    pub fn way(
        &mut self,
        fd: c_int,
        options: &Options,
        source: &Source,
        key: Key,
        watched: impl FnOnce(Key, Arc<AtomicI64>, i64, bool),
    ) -> Result<Way, Refusal> {
        let now = kernel::monotonic();
        if let Some(way) = self.known(&key, now) {
            return Ok(way);
        }
        let (way, neighbour) = match Netlink::open(fd) {
            Ok(mut netlink) => find(fd, options, source, &key, &mut netlink, &mut Answers::new())?,
            // This thread is in another network namespace. The socket's next sender need not be.
            Err(_) => return Ok(Way::Kernel(Reason::Route)),
        };
        let used = self.remember(key, way, now, now + believed(&way, options.network));
        watched(key, used, now, is_unknown(&way));
        if let (true, Some((interface, address))) = (is_unknown(&way), neighbour) {
            kernel::ask_neighbour(interface, address);
        }
        Ok(way)
    }
}

/// Whether a way's next hop has not told its hardware address yet.
pub fn is_unknown(way: &Way) -> bool {
    matches!(
        way,
        Way::Runtime {
            resolved: false,
            ..
        }
    )
}

/// For how long a way is good, of a socket in this network namespace.
pub fn believed(way: &Way, network: u64) -> i64 {
    match is_unknown(way) {
        true => UNRESOLVED,
        false => believed_if_known(network),
    }
}

/// For how long what is known of a next hop is good.
pub fn believed_if_known(network: u64) -> i64 {
    match follower::follows(network) {
        true => BELIEVED,
        false => ALONE,
    }
}

/// A neighbour: the interface and its address.
pub type Neighbour = (u32, IpAddr);

/// Finds a way, and the neighbour that is to be asked whether it is there, if there is one.
pub fn find(
    fd: c_int,
    options: &Options,
    source: &Source,
    key: &Key,
    netlink: &mut Netlink,
    answers: &mut Answers,
) -> Result<(Way, Option<Neighbour>), Refusal> {
    let kernel = |reason| Ok((Way::Kernel(reason), None));
    let destination = key.destination;
    if destination.ip().is_loopback() || destination.ip().is_unspecified() {
        return kernel(Reason::Local);
    }
    let question = Question {
        destination: destination.ip(),
        source: key.source,
        interface: key.interface,
        mark: key.mark,
        traffic_octet: key.traffic_octet,
    };
    let route = match netlink.route(&question) {
        Ok(Found::Way(route)) => route,
        Ok(Found::Local) => return kernel(Reason::Local),
        Ok(Found::Foreign) | Err(_) => return kernel(Reason::Route),
    };
    let endpoint = source.endpoint()?;
    if kernel::hardware_address(fd, route.interface) != Some(endpoint.mac) {
        // Of a descriptor that is closed meanwhile there is nothing to tell.
        if kernel::option(fd, libc::SOL_SOCKET, libc::SO_COOKIE) == Ok(options.cookie) {
            Reason::Interface.tell(|| {
                format!(
                    "packets to {} leave by interface {}, which has not the hardware address of the endpoint (network {})",
                    destination.ip(),
                    kernel::interface_name(fd, route.interface).unwrap_or_else(|| route.interface.to_string()),
                    endpoint.network
                )
            });
        }
        return kernel(Reason::Interface);
    }
    let Some(address) = key.source.or(route.source) else {
        return kernel(Reason::Source);
    };
    if !endpoint.addresses.iter().any(|(own, _)| *own == address) {
        Reason::Source.tell(|| {
            format!(
                "{address} is not an address of the endpoint that this program may send from (network {})",
                endpoint.network
            )
        });
        return kernel(Reason::Source);
    }
    if route.reach == Reach::All && !options.udp.broadcast {
        return kernel(Reason::Malformed); // The kernel says that this is not permitted.
    }
    if has_members_here(options, &route, destination.ip()) {
        Reason::Local.tell(|| {
            format!(
                "sockets of this network namespace are members of {}, and the runtime sends to others only; without \
                 IP_MULTICAST_LOOP (IPV6_MULTICAST_LOOP), it sends them",
                destination.ip()
            )
        });
        return kernel(Reason::Local);
    }
    let next_hop = route.gateway.unwrap_or(destination.ip());
    let (via, fresh) = link_address(netlink, &route, destination.ip());
    let to_be_asked = (!fresh).then_some((route.interface, next_hop));
    let resolved = match answers.get(&(destination.ip(), next_hop, via)) {
        Some(answer) => *answer,
        None => {
            let answer = source.resolve(destination.ip(), next_hop, via)?;
            answers.insert((destination.ip(), next_hop, via), answer);
            answer
        }
    };
    if resolved.is_none() && via.is_some() {
        return Ok((Way::Kernel(Reason::Station), to_be_asked));
    }
    // Whom the runtime knows by itself need not be asked.
    let to_be_asked = to_be_asked.filter(|_| via.is_some() || resolved.is_none());
    let headers = Headers::new(&Flow {
        source_mac: endpoint.mac,
        destination_mac: resolved.unwrap_or_default(),
        source: (address, key.port).into(),
        destination,
        traffic_octet: key.traffic_octet,
        hop_limit: key.hop_limit,
        checksum: key.checksum,
    });
    let Some(headers) = headers else {
        return kernel(Reason::Malformed); // Without a hop to take.
    };
    let limits = [
        Some(endpoint.mtu.into()),
        route.mtu.map(|mtu| mtu as usize),
        kernel::interface_mtu(fd, route.interface),
    ];
    let mtu = limits.into_iter().flatten().min().unwrap_or(0);
    let way = Way::Runtime {
        headers,
        mtu,
        interface: route.interface,
        source: address,
        resolved: resolved.is_some(),
    };
    Ok((way, to_be_asked))
}

/// Whether the runtime reaches a station from an interface, and with packets of which length.
pub fn station(
    fd: c_int,
    source: &Source,
    (interface, station): Station,
) -> Result<Result<usize, Reason>, Refusal> {
    // The runtime sends from one interface.
    let endpoint = source.endpoint()?;
    if kernel::hardware_address(fd, interface) != Some(endpoint.mac) {
        return Ok(Err(Reason::Interface));
    }
    if !source.reaches(station)? {
        return Ok(Err(Reason::Station));
    }
    let mtu = usize::from(endpoint.mtu);
    Ok(Ok(
        kernel::interface_mtu(fd, interface).map_or(mtu, |limit| limit.min(mtu))
    ))
}

/// Whether the kernel would deliver a packet to members of its group in this network namespace as well.
fn has_members_here(options: &Options, route: &Route, group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.is_multicast() && options.udp.loops && route.here,
        IpAddr::V6(group) => {
            group.is_multicast()
                && options.udp.loops_six
                && kernel::is_member(route.interface, group)
        }
    }
}

/// The station that packets of a route go to, as far as the kernel knows, and whether that is beyond doubt.
fn link_address(
    netlink: &mut Netlink,
    route: &Route,
    destination: IpAddr,
) -> (Option<[u8; 6]>, bool) {
    let station = match (route.reach, destination) {
        (Reach::All, _) => [0xff; 6],
        // RFC 1112, section 6.4.
        (Reach::Group, IpAddr::V4(group)) => {
            let [_, b, c, d] = group.octets();
            [1, 0, 0x5e, b & 0x7f, c, d]
        }
        // RFC 2464, section 7. Kernels route IPv6 groups as they do stations.
        (Reach::Group | Reach::One, IpAddr::V6(group)) if group.is_multicast() => {
            let octets = group.octets();
            [0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]
        }
        _ => {
            let next_hop = route.gateway.unwrap_or(destination);
            return match netlink.neighbour(route.interface, next_hop) {
                Some((station, fresh)) => (Some(station), fresh),
                None => (None, false),
            };
        }
    };
    (Some(station), true)
}
