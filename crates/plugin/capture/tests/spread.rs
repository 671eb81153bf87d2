//! Which of several sockets the kernel gives a packet to.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use takt_capture::socket::PacketSocket;
use takt_capture::spread::Spread;
use takt_testing::until_true;

const SOCKETS: usize = 4;
const PAIRS: usize = 40;
/// At the beginning of what is sent here.
const MARK: &[u8] = b"takt spread ";

/// Two sockets at neighbouring ports, the first one even, as RTP and RTCP have them.
fn pair(address: IpAddr) -> [UdpSocket; 2] {
    loop {
        let Ok(even) = UdpSocket::bind((address, 0)) else {
            continue;
        };
        let port = even.local_addr().expect("an address").port();
        if port % 2 == 0
            && let Ok(odd) = UdpSocket::bind((address, port + 1))
        {
            return [even, odd];
        }
    }
}

#[test]
fn flows_are_spread_and_rtp_stays_with_its_reports() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: packet sockets need root");
        return;
    }
    let mut sockets =
        PacketSocket::open_several("lo", 8, false, (SOCKETS, Spread::Tuples)).expect("sockets");
    for address in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
        let pairs: Vec<_> = (0..PAIRS).map(|_| (pair(address), pair(address))).collect();
        for (number, (from, to)) in pairs.iter().enumerate() {
            // Both of RTP and of RTCP, there and back.
            for (one, other) in from.iter().zip(to) {
                for (sender, receiver) in [(one, other), (other, one)] {
                    let text = [MARK, &[number as u8]].concat();
                    let to = receiver.local_addr().expect("an address");
                    sender.send_to(&text, to).expect("sent");
                }
            }
        }
        // By pair: which sockets got packets of it, and how many.
        let mut seen: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
        until_true("all are captured", || {
            for (at, socket) in sockets.iter_mut().enumerate() {
                let taken = socket.take(10, |_, bytes, _| {
                    let begins = bytes.windows(MARK.len()).position(|window| window == MARK);
                    if let Some(begin) = begins {
                        let number = bytes[begin + MARK.len()];
                        seen.entry(number).or_default().push(at);
                    }
                });
                taken.expect("captured");
            }
            seen.len() == PAIRS && seen.values().all(|at| at.len() >= 4)
        });
        let mut used = [0; SOCKETS];
        for (number, at) in &seen {
            assert!(
                at.len() == 4 && at.iter().all(|one| *one == at[0]),
                "{number}: {seen:?}"
            );
            used[at[0]] += 1;
        }
        assert!(
            used.iter().filter(|pairs| **pairs > 0).count() > 1,
            "{used:?}"
        );
    }
}
