//! What the kernel says of a socket: read back, not kept track of, so that it holds for sockets that were
//! inherited, received or set up through another descriptor.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::abi::{self, SockTxtime, timestamping};
use crate::address;
use crate::kernel::{self, option, option_length};
use crate::kind::Kind;
use crate::launch::Clock;
use crate::multicast;

/// What the kernel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The socket's number in the kernel, never used again.
    pub cookie: u64,
    /// The number of its network namespace; 0: the kernel cannot say.
    pub network: u64,
    /// What it sends.
    pub kind: Kind,
    /// The clock of its transmission times; `None`: one that we do not take, or no such times.
    pub clock: Option<Clock>,
    /// Transmission times are deadlines.
    pub deadline: bool,
    /// Drops are reported.
    pub report_errors: bool,
    /// Time stamps: `SOF_TIMESTAMPING_*`.
    pub timestamping: u32,
    /// They were asked for by `SO_TIMESTAMPING_NEW`, and are told so.
    pub timestamping_new: bool,
    /// `SO_SELECT_ERR_QUEUE`: the error queue is urgent data, too.
    pub select_errors: bool,
    /// `SO_PRIORITY`.
    pub priority: u32,
    /// `SO_MARK`.
    pub mark: u32,
    /// The interface that it is bound to, 0: none.
    pub interface: u32,
    /// Bytes that wait to be read at most, error queue included.
    pub receive_bytes: usize,
    /// Longest wait for room, in nanoseconds; 0: for ever.
    pub send_timeout: i64,
    /// What only UDP sockets have.
    pub udp: UdpOptions,
    /// `SO_ZEROCOPY`.
    pub zero_copy: bool,
    /// A packet socket's protocol, an EtherType.
    pub protocol: u16,
    /// Something is set that frames of ours would not have: the kernel sends everything.
    pub kernel_only: bool,
}

/// What only UDP sockets have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdpOptions {
    /// The address that it is bound to; the port is 0 before it is.
    pub local: Option<SocketAddr>,
    /// The address that it is connected to.
    pub peer: Option<SocketAddr>,
    /// `IP_TOS`: DSCP and ECN of IPv4 packets.
    pub tos: u8,
    /// `IPV6_TCLASS`.
    pub traffic_class: u8,
    /// `IP_TTL`.
    pub ttl: u8,
    /// `IP_MULTICAST_TTL`.
    pub multicast_ttl: u8,
    /// `IPV6_UNICAST_HOPS`.
    pub hops: u8,
    /// `IPV6_MULTICAST_HOPS`.
    pub multicast_hops: u8,
    /// The interface of multicast packets, 0: by route.
    pub multicast_interface: u32,
    /// `IP_MULTICAST_IF`: the source of IPv4 multicast packets if the socket has none.
    pub multicast_source: Option<Ipv4Addr>,
    /// `IP_UNICAST_IF` or `IPV6_UNICAST_IF`: the interface of all other packets, 0: by route.
    pub unicast_interface: u32,
    /// `IP_MULTICAST_LOOP`: groups of IPv4 have members in this network namespace, too.
    pub loops: bool,
    /// `IPV6_MULTICAST_LOOP`.
    pub loops_six: bool,
    /// IPv4 datagrams have no checksum.
    pub no_checksum: bool,
    /// `SO_BROADCAST`.
    pub broadcast: bool,
    /// `IP_PKTINFO` or `IPV6_RECVPKTINFO`.
    pub packet_info: bool,
}

/// The hop limit of packets when neither program nor system sets another (RFC 1700).
const HOP_LIMIT: u8 = 64;

impl Options {
    /// `None`: not a socket of ours, or not one any more.
    pub fn read(fd: c_int) -> Option<Self> {
        let socket = |name| option::<c_int>(fd, libc::SOL_SOCKET, name);
        let domain = socket(libc::SO_DOMAIN).ok()?;
        let kind = socket(libc::SO_TYPE).ok()?;
        let kind = match (domain, kind) {
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM)
                if socket(libc::SO_PROTOCOL).ok()? == libc::IPPROTO_UDP =>
            {
                Kind::Udp {
                    six: domain == libc::AF_INET6,
                }
            }
            (libc::AF_PACKET, libc::SOCK_RAW) => Kind::Frames,
            (libc::AF_PACKET, libc::SOCK_DGRAM) => Kind::Packets,
            _ => return None,
        };
        let cookie = option(fd, libc::SOL_SOCKET, libc::SO_COOKIE).ok()?;
        let txtime: SockTxtime = option(fd, libc::SOL_SOCKET, libc::SO_TXTIME).ok()?;
        let timeout: libc::timeval = option(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO).ok()?;
        let stamps = socket(abi::SO_TIMESTAMPING_OLD).unwrap_or(0) as u32;
        let mut options = Self {
            cookie,
            network: kernel::network(fd),
            kind,
            clock: Clock::new(txtime.clockid),
            deadline: txtime.flags & abi::TXTIME_DEADLINE != 0,
            report_errors: txtime.flags & abi::TXTIME_REPORT_ERRORS != 0,
            timestamping: stamps,
            timestamping_new: socket(abi::SO_TIMESTAMPING_NEW).unwrap_or(0) != 0,
            select_errors: socket(libc::SO_SELECT_ERR_QUEUE) == Ok(1),
            priority: socket(libc::SO_PRIORITY).unwrap_or(0) as u32,
            mark: socket(libc::SO_MARK).unwrap_or(0) as u32,
            interface: socket(libc::SO_BINDTOIFINDEX).unwrap_or(0) as u32,
            receive_bytes: socket(libc::SO_RCVBUF).unwrap_or(0).max(0) as usize,
            send_timeout: timeout.tv_sec * 1_000_000_000 + timeout.tv_usec * 1000,
            udp: UdpOptions::default(),
            zero_copy: socket(libc::SO_ZEROCOPY) == Ok(1),
            protocol: 0,
            kernel_only: false,
        };
        match kind {
            Kind::Udp { six } => options.read_udp(fd, six)?,
            Kind::Frames | Kind::Packets => options.read_packet(fd)?,
        }
        Some(options)
    }

    fn read_udp(&mut self, fd: c_int, six: bool) -> Option<()> {
        let ip = |name| option::<c_int>(fd, libc::SOL_IP, name);
        let ip6 = |name| option::<c_int>(fd, libc::SOL_IPV6, name);
        let octet = |value: Result<c_int, c_int>| value.unwrap_or(0) as u8;
        let limit = |value: Result<c_int, c_int>| match value {
            Ok(limit @ 0..=255) => limit as u8,
            _ => HOP_LIMIT,
        };
        self.udp = UdpOptions {
            local: address::parse(&kernel::local_name(fd).ok()?),
            peer: kernel::peer_name(fd)
                .ok()
                .and_then(|name| address::parse(&name)),
            tos: octet(ip(libc::IP_TOS)),
            ttl: limit(ip(libc::IP_TTL)),
            multicast_ttl: limit(ip(libc::IP_MULTICAST_TTL)),
            loops: ip(libc::IP_MULTICAST_LOOP) != Ok(0),
            no_checksum: option(fd, libc::SOL_SOCKET, libc::SO_NO_CHECK) == Ok(1),
            broadcast: option(fd, libc::SOL_SOCKET, libc::SO_BROADCAST) == Ok(1),
            ..UdpOptions::default()
        };
        let udp = &mut self.udp;
        // Headers that we do not write, and datagrams that are put together from parts.
        self.kernel_only = option_length(fd, libc::SOL_IP, libc::IP_OPTIONS) != Ok(0)
            || option(fd, libc::SOL_UDP, libc::UDP_CORK) == Ok(1)
            || option(fd, libc::SOL_UDP, abi::UDP_SEGMENT).is_ok_and(|bytes: c_int| bytes != 0)
            || ip(libc::IP_TRANSPARENT) == Ok(1);
        if six {
            udp.traffic_class = octet(ip6(libc::IPV6_TCLASS));
            udp.hops = limit(ip6(libc::IPV6_UNICAST_HOPS));
            udp.loops_six = ip6(libc::IPV6_MULTICAST_LOOP) != Ok(0);
            udp.multicast_hops = limit(ip6(libc::IPV6_MULTICAST_HOPS));
            udp.multicast_interface = ip6(libc::IPV6_MULTICAST_IF).unwrap_or(0) as u32;
            // In the order of bytes of the network.
            udp.unicast_interface =
                ip6(libc::IPV6_UNICAST_IF).map_or(0, |index| u32::from_be(index as u32));
            udp.packet_info = ip6(libc::IPV6_RECVPKTINFO) == Ok(1);
            self.kernel_only |= ip6(libc::IPV6_FLOWINFO_SEND) == Ok(1)
                || option(fd, libc::SOL_UDP, abi::UDP_NO_CHECK6_TX) == Ok(1)
                || [
                    libc::IPV6_HOPOPTS,
                    libc::IPV6_RTHDR,
                    libc::IPV6_DSTOPTS,
                    libc::IPV6_RTHDRDSTOPTS,
                ]
                .into_iter()
                .any(|name| option_length(fd, libc::SOL_IPV6, name).is_ok_and(|length| length > 0));
        } else {
            udp.packet_info = ip(libc::IP_PKTINFO) == Ok(1);
            udp.unicast_interface =
                ip(libc::IP_UNICAST_IF).map_or(0, |index| u32::from_be(index as u32));
            // The kernel tells the address, and the interface only of one that has it.
            let source = ip(libc::IP_MULTICAST_IF).map_or(Ipv4Addr::UNSPECIFIED, |address| {
                Ipv4Addr::from(address.to_ne_bytes())
            });
            udp.multicast_source = (!source.is_unspecified()).then_some(source);
            udp.multicast_interface = multicast::interface(fd, self.cookie, udp.multicast_source);
        }
        Some(())
    }

    fn read_packet(&mut self, fd: c_int) -> Option<()> {
        let bound = address::parse_link(&kernel::local_name(fd).ok()?)?;
        self.interface = bound.interface;
        self.protocol = bound.protocol;
        let packet = |name| option::<c_int>(fd, libc::SOL_PACKET, name);
        self.kernel_only = packet(abi::PACKET_VNET_HDR).is_ok_and(|on| on != 0)
            || packet(abi::PACKET_QDISC_BYPASS).is_ok_and(|on| on != 0);
        Some(())
    }

    /// With transmission times of which the kernel does not know.
    pub fn with_times(self, times: &SockTxtime) -> Self {
        Self {
            clock: Clock::new(times.clockid),
            deadline: times.flags & abi::TXTIME_DEADLINE != 0,
            report_errors: times.flags & abi::TXTIME_REPORT_ERRORS != 0,
            ..self
        }
    }

    /// Whether something comes to its error queue from what it sends.
    pub fn reports(&self) -> bool {
        self.report_errors || self.timestamping & timestamping::TX_RECORD != 0
    }

    /// Whether the kernel numbers what it sends.
    pub fn numbers(&self) -> bool {
        self.timestamping & timestamping::OPT_ID != 0
    }

    /// The traffic class octet of packets to `address`.
    pub fn traffic_octet(&self, address: IpAddr) -> u8 {
        match address {
            IpAddr::V4(_) => self.udp.tos,
            IpAddr::V6(_) => self.udp.traffic_class,
        }
    }

    /// The hop limit of packets to `address`.
    pub fn hop_limit(&self, address: IpAddr) -> u8 {
        match (address, address.is_multicast()) {
            (IpAddr::V4(_), false) => self.udp.ttl,
            (IpAddr::V4(_), true) => self.udp.multicast_ttl,
            (IpAddr::V6(_), false) => self.udp.hops,
            (IpAddr::V6(_), true) => self.udp.multicast_hops,
        }
    }
}
