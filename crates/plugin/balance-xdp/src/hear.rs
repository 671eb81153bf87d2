//! What is heard of neighbours: which beats count.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use crate::balancer::Event;
use crate::beat::{Beat, Ends, Key, NoBeat};

/// How far the time that a sender counts from may be from ours when it counts from less than another one before it.
const NEAR_NS: u64 = 10_000_000_000;
/// Senders of one neighbour that are remembered: one that is started again is another.
const SENDERS: usize = 16;

/// A neighbour's beats so far.
#[derive(Debug)]
struct Heard {
    address: IpAddr,
    /// Its senders, by what they call themselves, with what each has counted to. The present one is the last.
    senders: Vec<(u32, u64)>,
    /// What was told since the last beat that counted.
    told: Vec<Event>,
    /// Beats that counted.
    beats: u64,
}

impl Heard {
    /// Whether a beat is none that has come before, and of nobody who has been followed by another.
    fn is_new(&self, beat: &Beat, dead: bool, utc_ns: u64) -> bool {
        let known = self.senders.iter().rposition(|of| of.0 == beat.sender);
        match known {
            Some(at) => {
                let is_present = at + 1 == self.senders.len();
                (is_present || dead) && beat.sequence > self.senders[at].1
            }
            // Started again. Where its clock was set back meanwhile, what it sends could be what was recorded of it before: of a
            // sender that is not remembered any more, and of no more than these seconds.
            None => {
                self.senders.iter().all(|of| beat.sequence > of.1)
                    || (dead && beat.sequence.abs_diff(utc_ns) <= NEAR_NS)
            }
        }
    }

    fn note(&mut self, beat: &Beat) {
        self.senders.retain(|of| of.0 != beat.sender);
        if self.senders.len() == SENDERS {
            self.senders.remove(0);
        }
        self.senders.push((beat.sender, beat.sequence));
        self.told.clear();
        self.beats += 1;
    }
}

/// Whose beats are listened for, and what was heard.
#[derive(Debug)]
pub(crate) struct Ears {
    key: Option<Key>,
    neighbours: Vec<Heard>,
    /// Beats that did not count, and what was none.
    pub(crate) refused: u64,
}

impl Ears {
    pub(crate) fn new(key: Option<Key>, neighbours: impl Iterator<Item = IpAddr>) -> Self {
        let neighbours = neighbours.map(|address| Heard {
            address,
            senders: Vec::new(),
            told: Vec::new(),
            beats: 0,
        });
        Self {
            key,
            neighbours: neighbours.collect(),
            refused: 0,
        }
    }

    /// Beats that counted, of each neighbour.
    pub(crate) fn beats(&self) -> impl Iterator<Item = u64> {
        self.neighbours.iter().map(|heard| heard.beats)
    }

    /// Takes a datagram; whose beat it is, if it counts. Why one of a neighbour's address does not is told once.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        ends: Ends,
        utc_ns: u64,
        is_dead: impl Fn(u16) -> bool,
        events: &mut Vec<Event>,
    ) -> Option<(u16, Beat)> {
        let from = ends.from.to_canonical();
        let mut neighbours = (0..).zip(&mut self.neighbours);
        // Whoever is no neighbour costs no look at a tag.
        let Some((number, heard)) = neighbours.find(|(_, heard)| heard.address == from) else {
            self.refused += 1;
            return None;
        };
        let why = match Beat::read(bytes, self.key.as_ref(), ends) {
            Ok(beat) => {
                let dead = is_dead(number);
                let last = heard.senders.last();
                // Without a key a sequence proves nothing: one that is dead lives by any other.
                let by_any =
                    self.key.is_none() && dead && last.is_some_and(|last| beat.sequence != last.1);
                if by_any || heard.is_new(&beat, dead, utc_ns) {
                    heard.note(&beat);
                    return Some((number, beat));
                }
                let is_known = heard.senders.iter().any(|of| of.0 == beat.sender);
                (dead && !is_known).then_some(Event::Older(number))
            }
            Err(NoBeat::Tag) => Some(Event::OtherKey(number)),
            Err(NoBeat::Version(version)) => Some(Event::OtherVersion(number, version)),
            Err(NoBeat::Other) => None,
        };
        self.refused += 1;
        // One of each kind, whatever version: anybody who can write a neighbour's address says that he has one.
        let kind = std::mem::discriminant::<Event>;
        if let Some(why) = why
            && !heard.told.iter().any(|told| kind(told) == kind(&why))
        {
            heard.told.push(why);
            events.push(why);
        }
        None
    }
}

/// Listens for beats; each is told with the address that it was sent to.
pub(crate) fn listen(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    let (level, option) = match address {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    let on: libc::c_int = 1;
    let length = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the option is an integer of this length.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const on).cast(),
            length,
        )
    };
    match set {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The next datagram: how many bytes, and between whom. `None`: there is none.
pub(crate) fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> Option<(usize, Ends)> {
    // Room for the longer one of both, aligned as its header is.
    let mut control = [0_u64; 8];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: integers and null pointers.
    let (mut from, mut message): (libc::sockaddr_in6, libc::msghdr) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of_val(&from) as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: all that is pointed to is as long as said, and outlives the call.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let length = usize::try_from(length).ok()?;
    let v4 = |address: libc::in_addr| IpAddr::V4(u32::from_be(address.s_addr).into());
    let v6 = |address: libc::in6_addr| IpAddr::V6(address.s6_addr.into());
    let from = match libc::c_int::from(from.sin6_family) {
        libc::AF_INET => {
            // SAFETY: an address of IPv4 is shorter, and has this family.
            v4(unsafe { (&raw const from).cast::<libc::sockaddr_in>().read() }.sin_addr)
        }
        _ => v6(from.sin6_addr),
    };
    let mut to = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    // SAFETY: the kernel has written these headers, within the length that it has put into the message.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: as above; what follows a header is of its kind, at whatever address.
        unsafe {
            let data = libc::CMSG_DATA(next);
            match ((*next).cmsg_level, (*next).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    to = v4(data.cast::<libc::in_pktinfo>().read_unaligned().ipi_addr);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    to = v6(data.cast::<libc::in6_pktinfo>().read_unaligned().ipi6_addr);
                }
                _ => {}
            }
            next = libc::CMSG_NXTHDR(&raw const message, next);
        }
    }
    Some((length, Ends { from, to }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 4));
    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const NOW: u64 = 1_800_000_000_000_000_000;
    const SECOND: u64 = 1_000_000_000;

    /// A balancer's ears with two neighbours, and what they have told.
    struct Site {
        ears: Ears,
        key: Option<Key>,
        dead: bool,
        events: Vec<Event>,
    }

    impl Site {
        fn new(key: Option<Key>) -> Self {
            Self {
                ears: Ears::new(key.clone(), [A, B].into_iter()),
                key,
                dead: true,
                events: Vec::new(),
            }
        }

        fn key() -> Option<Key> {
            Some(Key::new(&[1; 16]).expect("a key"))
        }

        fn beat(sender: u32, sequence: u64) -> Beat {
            Beat {
                load: 1,
                sender,
                functions: 1,
                sequence,
            }
        }

        fn take(&mut self, bytes: &[u8], from: IpAddr) -> Option<u16> {
            let (dead, ends) = (self.dead, Ends { from, to: HERE });
            let taken = (self.ears).take(bytes, ends, NOW, |_| dead, &mut self.events);
            taken.map(|(number, _)| number)
        }

        /// Whether A's beat counts.
        fn hears(&mut self, sender: u32, sequence: u64) -> bool {
            let ends = Ends { from: A, to: HERE };
            let bytes = Self::beat(sender, sequence).write(self.key.as_ref(), ends);
            self.take(&bytes, A).is_some()
        }
    }

    #[test]
    fn the_beats_of_one_neighbour_keep_no_other_one_alive() {
        let mut site = Site::new(Site::key());
        let bytes = Site::beat(7, NOW).write(site.key.as_ref(), Ends { from: A, to: HERE });
        assert_eq!(site.take(&bytes, B), None);
        assert_eq!(site.events, [Event::OtherKey(1)]);
        assert_eq!(site.take(&bytes, A), Some(0));
        // Nor do those that this host sends to B itself, or that A sends to another one.
        let own = Site::beat(8, NOW).write(site.key.as_ref(), Ends { from: HERE, to: B });
        assert_eq!(site.take(&own, B), None);
        let to_b = Site::beat(7, NOW + 1).write(site.key.as_ref(), Ends { from: A, to: B });
        assert_eq!(site.take(&to_b, A), None);
        let beats: Vec<_> = site.ears.beats().collect();
        assert_eq!((beats, site.ears.refused), (vec![1, 0], 3));
    }

    #[test]
    fn a_beat_of_another_version_is_told_once() {
        for key in [None, Site::key()] {
            let mut site = Site::new(key);
            let mut bytes = Site::beat(7, NOW).write(site.key.as_ref(), Ends { from: A, to: HERE });
            bytes[4] = 1;
            for version in [1, 1, 3] {
                bytes[4] = version;
                assert_eq!(site.take(&bytes, A), None);
            }
            assert_eq!(site.events, [Event::OtherVersion(0, 1)]);
            assert!(site.hears(7, NOW));
            site.take(&bytes, A);
            assert_eq!(site.events.len(), 2, "told again");
        }
    }

    #[test]
    fn a_neighbour_that_is_started_again_with_its_clock_set_back_lives_when_the_one_before_is_silent()
     {
        let mut site = Site::new(Site::key());
        // Its clock was an hour ahead.
        let ahead = NOW + 3_600 * SECOND;
        assert!(site.hears(1, ahead));
        site.dead = false;
        assert!(!site.hears(2, NOW));
        assert!(site.hears(1, ahead + 1));
        site.dead = true;
        assert!(site.hears(2, NOW + 1));
        site.dead = false;
        assert!(site.hears(2, NOW + 2) && !site.hears(2, NOW + 2));
        assert!(site.events.is_empty());
    }

    #[test]
    fn what_was_recorded_of_a_neighbour_does_not_keep_it_alive_though_it_was_started_again() {
        let mut site = Site::new(Site::key());
        let beats = |sender: u32| (0..3).map(move |at| (sender, NOW + u64::from(sender) * 10 + at));
        let senders = 1..SENDERS as u32;
        let recorded: Vec<_> = senders.flat_map(beats).collect();
        for (sender, sequence) in &recorded {
            assert!(site.hears(*sender, *sequence), "{sender}");
        }
        for dead in [false, true] {
            site.dead = dead;
            for (sender, sequence) in &recorded {
                assert!(!site.hears(*sender, *sequence), "{sender}");
            }
        }
        // The one before the last has lived on where it could not be heard.
        assert!(site.hears(3, NOW + 1000));
    }

    #[test]
    fn older_beats_of_a_sender_whose_clock_is_wrong_are_refused_and_told_once() {
        let mut site = Site::new(Site::key());
        assert!(site.hears(1, NOW));
        for at in 0..3 {
            assert!(!site.hears(2, NOW - 11 * SECOND + at));
        }
        assert_eq!(site.events, [Event::Older(0)]);
        assert!(site.hears(2, NOW - 9 * SECOND));
        // Without a key one that is dead lives by any other.
        let mut site = Site::new(None);
        assert!(site.hears(1, NOW));
        assert!(!site.hears(1, NOW) && site.hears(1, NOW - 11 * SECOND) && site.hears(2, 5));
        site.dead = false;
        assert!(!site.hears(2, 4) && !site.hears(3, 4));
    }

    #[test]
    fn datagrams_are_told_with_the_addresses_that_they_are_between() {
        for (any, to) in [
            ("0.0.0.0:0", "127.0.0.2"),
            ("[::]:0", "::1"),
            // Of IPv4, by a socket that takes both.
            ("[::]:0", "127.0.0.2"),
        ] {
            let to: IpAddr = to.parse().expect("an address");
            let socket = listen(any.parse().expect("an address")).expect("listens");
            let port = socket.local_addr().expect("bound").port();
            let from = if to.is_ipv4() {
                "127.0.0.3:0"
            } else {
                "[::1]:0"
            };
            let sender = UdpSocket::bind(from).expect("bound");
            sender.send_to(b"beat", (to, port)).expect("sent");
            let mut bytes = [0; 64];
            let (length, ends) = loop {
                if let Some(received) = receive(&socket, &mut bytes) {
                    break received;
                }
                std::thread::yield_now();
            };
            assert_eq!(&bytes[..length], b"beat");
            let from = sender.local_addr().expect("bound").ip();
            assert_eq!(
                (ends.from.to_canonical(), ends.to.to_canonical()),
                (from, to)
            );
            assert!(receive(&socket, &mut bytes).is_none());
        }
    }
}
