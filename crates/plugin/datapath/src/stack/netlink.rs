//! Questions to the kernel's routing, neighbour, link and address tables, and their change events.
//!
//! Synchronous rtnetlink (RFC 3549; Linux `rtnetlink(7)`), used by the monitor thread alone.
//! Answers keep only what a frame header needs.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::{NeighbourFlags, NeighbourMessage};
use netlink_packet_route::route::{RouteAttribute, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr as NetlinkAddr};

use super::launch::{find, u16_at, u32_at};
use super::messages::{
    Event, Forwarding, Link, Neighbour, Route, family_of, neighbour_message, read_address,
    read_event, read_forwarding, read_link, read_neighbour, read_route, says_no_route,
};
use super::watch::Query;

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

/// Length of `struct nlmsghdr`.
pub(super) const NLMSG_HEADER: usize = 16;

/// Kinds of messages of `linux/netlink.h` that end an answer.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLM_F_ACK_TLVS`: behind the error and the header that it is about come attributes, of which `NLMSGERR_ATTR_MSG` has words.
const ACK_TLVS: u16 = 0x200;
const ERROR_WORDS: u16 = 1;

/// What the kernel does not do.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) error: io::Error,
    /// The kernel's own words; empty where it has none.
    pub(super) words: String,
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        let words = String::new();
        Self { error, words }
    }
}

/// A socket for questions.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// For questions about routing, neighbours, links and addresses.
    pub(super) fn open() -> io::Result<Self> {
        Self::open_to(NETLINK_ROUTE)
    }

    /// For [`dump`](Self::dump)s of generic netlink's families.
    pub(super) fn open_generic() -> io::Result<Self> {
        Self::open_to(NETLINK_GENERIC)
    }

    fn open_to(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddr::new(0, 0))?;
        // The kernel answers within the request; the limit only keeps a kernel fault from hanging
        // the monitor.
        let limit = libc::timeval {
            tv_sec: 2,
            tv_usec: 0,
        };
        // SAFETY: the descriptor is open for the call and `limit` is a `timeval` of the length
        // given.
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

    /// Sends one request and collects the answers; an error answer becomes an [`io::Error`] with
    /// its errno.
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

    /// Asks for all entries of a kind that the library does not know, and passes each answer on with its header.
    pub(super) fn dump(
        &mut self,
        kind: u16,
        body: &[u8],
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.send(kind, NLM_F_REQUEST | NLM_F_DUMP, body)?;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for message in messages(&datagram).filter(|message| self.answers(message)) {
                match u16_at(message, 4) {
                    Some(NLMSG_DONE) => return Ok(()),
                    Some(NLMSG_ERROR) => {
                        return read_refusal(message).map_or(Ok(()), |refusal| Err(refusal.error));
                    }
                    _ => take(message),
                }
            }
        }
    }

    /// Asks for a change of a kind that the library does not know, and waits until it is done.
    pub(super) fn change(&mut self, kind: u16, flags: u16, body: &[u8]) -> Result<(), Refusal> {
        // Where a kernel has no words, its number says as much as ever.
        let _ = self.socket.set_ext_ack(true);
        let _ = self.socket.set_cap_ack(true);
        self.send(kind, NLM_F_REQUEST | NLM_F_ACK | flags, body)?;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            for message in messages(&datagram).filter(|message| self.answers(message)) {
                if u16_at(message, 4) == Some(NLMSG_ERROR) {
                    return read_refusal(message).map_or(Ok(()), Err);
                }
            }
        }
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut packet = Vec::with_capacity(NLMSG_HEADER + body.len());
        packet.extend(((NLMSG_HEADER + body.len()) as u32).to_ne_bytes());
        packet.extend(kind.to_ne_bytes());
        packet.extend(flags.to_ne_bytes());
        packet.extend(self.sequence.to_ne_bytes());
        packet.extend([0; 4]);
        packet.extend(body);
        self.socket.send(&packet, 0).map(drop)
    }

    /// Whether a message is about the last request, and not left over from one that timed out.
    fn answers(&self, message: &[u8]) -> bool {
        u32_at(message, 8) == Some(self.sequence)
    }

    /// The route that the kernel would take, or `None` when there is no unicast route.
    pub(super) fn route(&mut self, query: Query) -> io::Result<Option<Route>> {
        let Query {
            destination,
            source,
            oif,
            iif,
        } = query;
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
        if iif != 0 {
            message.attributes.push(RouteAttribute::Iif(iif));
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

    /// The entries of all forwarding tables of bridges and VXLAN devices.
    pub(super) fn forwarding(&mut self) -> io::Result<Vec<Forwarding>> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        let answers = self.request(RouteNetlinkMessage::GetNeighbour(message), NLM_F_DUMP)?;
        let entries = answers.iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewNeighbour(entry) => read_forwarding(entry),
            _ => None,
        });
        Ok(entries.collect())
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
            // ENOENT: no such entry; ENODEV, ENXIO: the interface has gone or has no neighbour
            // table.
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

    /// Passes each waiting event to `note`; lost events count as [`Event::Interface`], which
    /// touches everything.
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

/// What an error message says, with its header; `None`: all is well.
fn read_refusal(message: &[u8]) -> Option<Refusal> {
    let code = u32_at(message, NLMSG_HEADER).map_or(-libc::EBADMSG, |code| code as i32);
    if code == 0 {
        return None;
    }
    // Behind the code is the header of the request, alone since that is what was asked for.
    let told = u16_at(message, 6).is_some_and(|flags| flags & ACK_TLVS != 0);
    let attributes = message.get(2 * NLMSG_HEADER + 4..).filter(|_| told);
    let words = attributes.and_then(|attributes| find(attributes, ERROR_WORDS));
    let words = words.map(|words| words.strip_suffix(b"\0").unwrap_or(words));
    Some(Refusal {
        error: io::Error::from_raw_os_error(code.saturating_neg()),
        words: String::from_utf8_lossy(words.unwrap_or_default()).into_owned(),
    })
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
