//! What stands in front of each payload, for a fabric does not tell reliably who has sent a message.
//!
//! ```text
//!  0  magic "TKF", version 1
//!  4  kind: 0 datagram, 1 probe (nothing follows)
//!  5  address family: 4 or 6
//!  6  the sender's port, big-endian
//!  8  the sender's address: 16 octets, or 4 and 12 zeros
//! 24  payload
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Octets of a header.
pub(crate) const LEN: usize = 24;

const MAGIC: [u8; 4] = *b"TKF\x01";

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Datagram = 0,
    /// Finds out whether the peer is there.
    Probe = 1,
}

pub(crate) fn write(kind: Kind, source: SocketAddr) -> [u8; LEN] {
    let mut header = [0; LEN];
    header[..4].copy_from_slice(&MAGIC);
    header[4] = kind as u8;
    header[6..8].copy_from_slice(&source.port().to_be_bytes());
    match source.ip() {
        IpAddr::V4(address) => {
            header[5] = 4;
            header[8..12].copy_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            header[5] = 6;
            header[8..].copy_from_slice(&address.octets());
        }
    }
    header
}

/// Who has sent a message to the port at `local`, and what follows. `None`: no message of ours, or from nobody that
/// could be answered.
#[inline]
pub(crate) fn read(message: &[u8], local: SocketAddr) -> Option<(Kind, SocketAddr, &[u8])> {
    let (header, payload) = message.split_first_chunk::<LEN>()?;
    if header[..4] != MAGIC {
        return None;
    }
    let kind = match header[4] {
        0 => Kind::Datagram,
        1 if payload.is_empty() => Kind::Probe,
        _ => return None,
    };
    let port = u16::from_be_bytes([header[6], header[7]]);
    let source = match (header[5], local) {
        (4, SocketAddr::V4(_)) if header[12..] == [0; 12] => {
            let address = Ipv4Addr::new(header[8], header[9], header[10], header[11]);
            let possible =
                !address.is_unspecified() && !address.is_multicast() && !address.is_broadcast();
            possible.then(|| SocketAddr::from((address, port)))
        }
        (6, SocketAddr::V6(local)) => {
            let octets: [u8; 16] = header[8..].try_into().ok()?;
            let address = Ipv6Addr::from(octets);
            let scope = if address.is_unicast_link_local() {
                local.scope_id()
            } else {
                0
            };
            let possible = !address.is_unspecified()
                && !address.is_multicast()
                && address.to_ipv4_mapped().is_none();
            possible.then(|| SocketAddrV6::new(address, port, 0, scope).into())
        }
        _ => None,
    };
    let source = source.filter(|source| source.port() != 0)?;
    Some((kind, source, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn what_is_written_is_read() {
        for (source, local) in [
            ("192.0.2.1:7", "192.0.2.2:8"),
            ("[2001:db8::1]:65535", "[2001:db8::2]:8"),
        ] {
            let mut message = write(Kind::Datagram, address(source)).to_vec();
            message.extend(b"payload");
            let read = read(&message, address(local));
            assert_eq!(
                read,
                Some((Kind::Datagram, address(source), &b"payload"[..]))
            );
        }
    }

    #[test]
    fn link_local_senders_are_of_the_own_link() {
        let message = write(Kind::Probe, address("[fe80::1]:7"));
        let (_, source, _) = read(&message, address("[fe80::2%5]:8")).expect("a header");
        assert_eq!(source, address("[fe80::1%5]:7"));
    }

    /// Every octet of a header counts, but for those of the address and the port.
    #[test]
    fn no_other_octets_are_a_header() {
        let local = address("192.0.2.2:8");
        let good = write(Kind::Datagram, address("192.0.2.1:7"));
        assert!(read(&good, local).is_some());
        for length in 0..LEN {
            assert_eq!(read(&good[..length], local), None);
        }
        for place in (0..6).chain(12..LEN) {
            for value in 0..=u8::MAX {
                let mut bad = good;
                bad[place] = value;
                let probe = place == 4 && value == Kind::Probe as u8;
                assert_eq!(
                    read(&bad, local).is_some(),
                    bad == good || probe,
                    "{value} at {place}"
                );
            }
        }
        let mut probe = write(Kind::Probe, address("192.0.2.1:7")).to_vec();
        probe.push(0);
        assert_eq!(read(&probe, local), None, "a probe with a payload");
    }

    #[test]
    fn senders_that_nobody_could_answer_are_refused() {
        for (source, local) in [
            ("0.0.0.0:7", "192.0.2.2:8"),
            ("255.255.255.255:7", "192.0.2.2:8"),
            ("224.0.0.1:7", "192.0.2.2:8"),
            ("192.0.2.1:0", "192.0.2.2:8"),
            ("[2001:db8::1]:7", "192.0.2.2:8"),
            ("192.0.2.1:7", "[2001:db8::2]:8"),
            ("[::]:7", "[2001:db8::2]:8"),
            ("[ff02::1]:7", "[2001:db8::2]:8"),
            ("[::ffff:192.0.2.1]:7", "[2001:db8::2]:8"),
        ] {
            let message = write(Kind::Datagram, address(source));
            assert_eq!(read(&message, address(local)), None, "{source}");
        }
    }
}
