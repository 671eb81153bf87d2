//! Control messages of a send (`cmsg(3)`), read as the kernel reads them (`net/core/sock.c`,
//! `net/ipv4/ip_sockglue.c`, `net/ipv6/datagram.c`): bytes in, plain values out.
//!
//! What is malformed the kernel refuses. What is not known here is noted, and the rest is read on: whether there is
//! a launch time decides what becomes of the send.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::abi::{self, timestamping};
use crate::kind::Kind;

/// `struct cmsghdr`: length, level, type.
pub const HEADER: usize = 16;
/// What messages are aligned to.
pub const ALIGN: usize = 8;

/// What one send asks for, beyond the options of its socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// `SCM_TXTIME`, in the socket's clock.
    pub launch: Option<u64>,
    /// `SO_TIMESTAMPING`: stamps to take.
    pub timestamping: Option<u32>,
    /// `SCM_TS_OPT_ID`: the number for stamps.
    pub number: Option<u32>,
    /// `SO_PRIORITY`, or what follows from `IP_TOS`.
    pub priority: Option<Priority>,
    /// `IP_TOS` or `IPV6_TCLASS`.
    pub traffic_octet: Option<u8>,
    /// `IP_TTL` or `IPV6_HOPLIMIT`.
    pub hop_limit: Option<u8>,
    /// `IP_PKTINFO` or `IPV6_PKTINFO`: the source address.
    pub source: Option<IpAddr>,
    /// Of the same: the interface.
    pub interface: Option<u32>,
    /// There is a message that is not known here.
    pub unknown: bool,
}

/// A priority, and whether the kernel has a say in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// The program has asked for it: above 6 it takes a capability.
    Asked(u32),
    /// It follows from the type of service.
    Implied(u32),
}

/// The kernel refuses such messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// A message: level, type, content.
pub type Message<'a> = (c_int, c_int, &'a [u8]);

/// Takes one message off the front of `rest`; `None`: there is none. The kernel looks at a message as long as
/// a header is left, and refuses lengths that are below it or beyond the end.
pub fn next<'a>(rest: &mut &'a [u8]) -> Option<Result<Message<'a>, Malformed>> {
    let (header, _) = rest.split_first_chunk::<HEADER>()?;
    let field = |at: usize| {
        c_int::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let length = abi::message_length(&[
        header[0], header[1], header[2], header[3], header[4], header[5], header[6], header[7],
    ]);
    let Some(content) = rest.get(HEADER..length) else {
        return Some(Err(Malformed));
    };
    let end = length.next_multiple_of(ALIGN);
    let message = (field(8), field(12), content);
    *rest = rest.get(end..).unwrap_or_default();
    Some(Ok(message))
}

fn exactly<const N: usize>(content: &[u8]) -> Result<[u8; N], Malformed> {
    content.try_into().map_err(|_| Malformed)
}

fn int(content: &[u8]) -> Result<c_int, Malformed> {
    exactly(content).map(c_int::from_ne_bytes)
}

/// An octet that is written as an integer.
fn octet(content: &[u8]) -> Result<u8, Malformed> {
    u8::try_from(int(content)?).map_err(|_| Malformed)
}

/// The same for IPv6, where -1 stands for the usual value.
fn octet_or_usual(content: &[u8]) -> Result<Option<u8>, Malformed> {
    match int(content)? {
        -1 => Ok(None),
        _ => octet(content).map(Some),
    }
}

impl Control {
    /// Reads the control messages of a send on a socket of this kind.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(kind: Kind, mut bytes: &[u8]) -> Result<Self, Malformed> {
        let mut control = Self::default();
        while let Some(message) = next(&mut bytes) {
            let (level, name, content) = message?;
            match (level, kind) {
                (libc::SOL_SOCKET, _) => control.socket(name, content)?,
                (libc::SOL_IP, Kind::Udp { six: false }) => control.ip(name, content)?,
                (libc::SOL_IPV6, Kind::Udp { six: true }) => control.ip6(name, content)?,
                // Among others UDP_SEGMENT, by which one send makes many datagrams.
                _ => control.unknown = true,
            }
        }
        Ok(control)
    }

    fn socket(&mut self, name: c_int, content: &[u8]) -> Result<(), Malformed> {
        match name {
            libc::SCM_TXTIME => self.launch = Some(u64::from_ne_bytes(exactly(content)?)),
            abi::SO_TIMESTAMPING_OLD | abi::SO_TIMESTAMPING_NEW => {
                let flags = int(content)? as u32;
                if flags & !timestamping::TX_RECORD != 0 {
                    return Err(Malformed);
                }
                self.timestamping = Some(flags);
            }
            abi::SCM_TS_OPT_ID => self.number = Some(int(content)? as u32),
            libc::SO_PRIORITY => self.priority = Some(Priority::Asked(int(content)? as u32)),
            // Of Unix sockets: the kernel passes them over.
            libc::SCM_RIGHTS | libc::SCM_CREDENTIALS => {}
            _ => self.unknown = true,
        }
        Ok(())
    }

    fn ip(&mut self, name: c_int, content: &[u8]) -> Result<(), Malformed> {
        match name {
            libc::IP_TTL => match octet(content)? {
                0 => return Err(Malformed),
                limit => self.hop_limit = Some(limit),
            },
            libc::IP_TOS => {
                // The kernel takes a byte or an integer.
                let tos = match content {
                    &[tos] => tos,
                    content => octet(content)?,
                };
                self.traffic_octet = Some(tos);
                self.priority = Some(Priority::Implied(priority_of(tos)));
            }
            libc::IP_PKTINFO => {
                // Interface, source address, and a third field that only receivers use.
                let [a, b, c, d, e, f, g, h, ..] = exactly::<12>(content)?;
                self.interface_and_source(
                    u32::from_ne_bytes([a, b, c, d]),
                    Ipv4Addr::new(e, f, g, h).into(),
                );
            }
            _ => self.unknown = true,
        }
        Ok(())
    }

    fn ip6(&mut self, name: c_int, content: &[u8]) -> Result<(), Malformed> {
        match name {
            libc::IPV6_HOPLIMIT => self.hop_limit = octet_or_usual(content)?,
            libc::IPV6_TCLASS => self.traffic_octet = octet_or_usual(content)?,
            libc::IPV6_PKTINFO => {
                let content = exactly::<20>(content)?;
                let (address, interface) = content.split_first_chunk::<16>().ok_or(Malformed)?;
                let address = Ipv6Addr::from(*address);
                self.interface_and_source(
                    u32::from_ne_bytes(exactly(interface)?),
                    address
                        .to_ipv4_mapped()
                        .map_or(IpAddr::V6(address), IpAddr::V4),
                );
            }
            _ => self.unknown = true,
        }
        Ok(())
    }

    fn interface_and_source(&mut self, interface: u32, source: IpAddr) {
        self.interface = (interface != 0).then_some(interface);
        self.source = (!source.is_unspecified()).then_some(source);
    }
}

/// The priority that the kernel gives packets of a type of service (`net/ipv4/route.c`, `ip_tos2prio`):
/// best effort, bulk, interactive, interactive bulk.
fn priority_of(tos: u8) -> u32 {
    match tos >> 3 & 3 {
        0 => 0,
        1 => 2,
        2 => 6,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const FOUR: Kind = Kind::Udp { six: false };
    const SIX: Kind = Kind::Udp { six: true };

    fn message(level: c_int, name: c_int, content: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER + content.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(name.to_ne_bytes());
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        bytes
    }

    fn launch(time: u64) -> Vec<u8> {
        message(libc::SOL_SOCKET, libc::SCM_TXTIME, &time.to_ne_bytes())
    }

    #[test]
    fn nothing_asks_for_nothing() {
        assert_eq!(Control::parse(FOUR, &[]), Ok(Control::default()));
        // Too short for a header: the kernel does not look at it.
        assert_eq!(Control::parse(FOUR, &[0xff; 15]), Ok(Control::default()));
    }

    #[test]
    fn a_transmission_time_is_found_among_other_messages() {
        let mut bytes = message(libc::SOL_SOCKET, libc::SO_PRIORITY, &5u32.to_ne_bytes());
        bytes.extend(launch(1 << 60));
        bytes.extend(message(libc::SOL_IP, libc::IP_TTL, &9u32.to_ne_bytes()));
        let control = Control::parse(FOUR, &bytes).expect("all known");
        assert_eq!(control.launch, Some(1 << 60));
        assert_eq!(control.priority, Some(Priority::Asked(5)));
        assert_eq!(control.hop_limit, Some(9));
    }

    #[test]
    fn the_last_of_two_messages_holds() {
        let bytes = [launch(1), launch(2)].concat();
        assert_eq!(
            Control::parse(Kind::Frames, &bytes).expect("known").launch,
            Some(2)
        );
    }

    #[test]
    fn a_last_message_need_not_be_padded() {
        let bytes = message(libc::SOL_IP, libc::IP_TOS, &[0x10]);
        let control = Control::parse(FOUR, &bytes[..HEADER + 1]).expect("known");
        assert_eq!(control.traffic_octet, Some(0x10));
        assert_eq!(control.priority, Some(Priority::Implied(6)));
    }

    #[test]
    fn lengths_that_the_kernel_refuses_are_malformed() {
        for length in [0, 1, HEADER - 1, HEADER + 9, 1 << 40, usize::MAX] {
            let mut bytes = launch(7);
            bytes[0..8].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(Control::parse(FOUR, &bytes), Err(Malformed), "{length}");
        }
        for content in [&[0u8; 4][..], &[0; 7], &[0; 9], &[0; 16]] {
            let bytes = message(libc::SOL_SOCKET, libc::SCM_TXTIME, content);
            assert_eq!(Control::parse(FOUR, &bytes), Err(Malformed));
        }
    }

    #[test]
    fn unknown_messages_are_noted_wherever_the_time_is() {
        for (level, name) in [
            (libc::SOL_SOCKET, libc::SO_MARK),
            (libc::SOL_UDP, abi::UDP_SEGMENT),
            (libc::SOL_IP, libc::IP_RETOPTS),
            (libc::SOL_IPV6, libc::IPV6_RTHDR),
        ] {
            let other = message(level, name, &[0; 4]);
            for bytes in [
                [launch(7), other.clone()].concat(),
                [other, launch(7)].concat(),
            ] {
                let control = Control::parse(SIX, &bytes).expect("well formed");
                assert_eq!(
                    (control.launch, control.unknown),
                    (Some(7), true),
                    "{level} {name}"
                );
            }
        }
        let bytes = message(libc::SOL_IP, libc::IP_TTL, &9u32.to_ne_bytes());
        assert!(
            Control::parse(Kind::Frames, &bytes)
                .expect("well formed")
                .unknown
        );
        let rights = message(libc::SOL_SOCKET, libc::SCM_RIGHTS, &[0; 4]);
        let control = Control::parse(FOUR, &rights).expect("well formed");
        assert!(!control.unknown, "the kernel passes them over");
    }

    #[test]
    fn source_and_interface_come_with_packet_information() {
        let mut content = 3u32.to_ne_bytes().to_vec();
        content.extend([10, 0, 0, 1, 0, 0, 0, 0]);
        let control = Control::parse(FOUR, &message(libc::SOL_IP, libc::IP_PKTINFO, &content));
        let control = control.expect("known");
        assert_eq!(control.interface, Some(3));
        assert_eq!(control.source, Some("10.0.0.1".parse().unwrap()));
        let address: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let mut content = address.octets().to_vec();
        content.extend(0u32.to_ne_bytes());
        let control = Control::parse(SIX, &message(libc::SOL_IPV6, libc::IPV6_PKTINFO, &content));
        let control = control.expect("known");
        assert_eq!(
            (control.interface, control.source),
            (None, Some(address.into()))
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_read_beyond_them(
            bytes in vec(any::<u8>(), 0..300),
            kind in prop::sample::select(&[FOUR, SIX, Kind::Frames, Kind::Packets]),
        ) {
            let _ = Control::parse(kind, &bytes);
        }

        #[test]
        fn plausible_messages_with_any_length_neither(
            parts in vec(
                (
                    0usize..80,
                    prop::sample::select(&[libc::SOL_SOCKET, libc::SOL_IP, libc::SOL_IPV6, libc::SOL_UDP]),
                    prop::sample::select(&[
                        libc::SCM_TXTIME, libc::SO_PRIORITY, libc::IP_TTL, libc::IP_TOS, libc::IP_PKTINFO,
                        libc::IPV6_PKTINFO, libc::IPV6_TCLASS, abi::SO_TIMESTAMPING_OLD,
                    ]),
                    vec(any::<u8>(), 0..40),
                ),
                0..5,
            ),
            kind in prop::sample::select(&[FOUR, SIX, Kind::Frames]),
        ) {
            let mut bytes = Vec::new();
            for (length, level, name, content) in parts {
                let mut part = message(level, name, &content);
                part[0..8].copy_from_slice(&length.to_ne_bytes());
                bytes.extend(part);
            }
            let _ = Control::parse(kind, &bytes);
        }

        #[test]
        fn whatever_else_is_asked_for_the_time_is_kept(time: u64, priority: u32, hops in 1u32..256) {
            let mut bytes = message(libc::SOL_SOCKET, libc::SO_PRIORITY, &priority.to_ne_bytes());
            bytes.extend(message(libc::SOL_IPV6, libc::IPV6_HOPLIMIT, &hops.to_ne_bytes()));
            bytes.extend(launch(time));
            let control = Control::parse(SIX, &bytes).expect("all known");
            prop_assert_eq!(control.launch, Some(time));
            prop_assert_eq!(control.priority, Some(Priority::Asked(priority)));
            prop_assert_eq!(control.hop_limit, Some(hops as u8));
        }
    }
}
