//! `recvmsg` with `MSG_ERRQUEUE`: an entry of the error queue in the form in which the kernel tells it
//! (`ip_recv_error`, `ipv6_recv_error`, `sock_recv_errqueue`).

use std::ffi::c_int;
use std::net::IpAddr;

use libc::{iovec, msghdr, ssize_t};

use crate::abi::{self, ExtendedError, timestamping};
use crate::address;
use crate::control;
use crate::kind::Kind;
use crate::launch;
use crate::memory;
use crate::options::Options;
use crate::process::{self, Inside};
use crate::reports::{Entry, Stamp};
use crate::socket::{Socket, State};

/// Control messages as the kernel lays them down in a buffer of limited size (`put_cmsg`).
struct Messages {
    bytes: Vec<u8>,
    room: usize,
    truncated: bool,
}

impl Messages {
    fn new(room: usize) -> Self {
        Self {
            bytes: Vec::new(),
            room,
            truncated: false,
        }
    }

    fn put(&mut self, level: c_int, name: c_int, content: &[u8]) {
        let left = self.room - self.bytes.len();
        if left < control::HEADER {
            self.truncated = true;
            return;
        }
        let whole = control::HEADER + content.len();
        let length = whole.min(left);
        self.truncated |= length < whole;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(level.to_ne_bytes());
        self.bytes.extend(name.to_ne_bytes());
        self.bytes.extend(&content[..length - control::HEADER]);
        let end = self.bytes.len().next_multiple_of(control::ALIGN);
        self.bytes.resize(end.min(self.room), 0);
    }
}

/// The control messages of an entry.
fn messages(options: &Options, entry: &Entry, room: usize) -> Messages {
    let mut messages = Messages::new(room);
    // Of software, one that has gone out of use, and of hardware: by the network's clock.
    let stamp = match entry.stamp {
        Some(Stamp::Software(instant)) if options.timestamping & timestamping::SOFTWARE != 0 => {
            Some((0, launch::to_realtime(instant)))
        }
        Some(Stamp::Hardware(instant))
            if options.timestamping & timestamping::RAW_HARDWARE != 0 =>
        {
            Some((2, launch::to_timespec(instant.as_nanos())))
        }
        _ => None,
    };
    if let Some((place, stamp)) = stamp {
        let mut content = [0; 48];
        let (seconds, nanoseconds) = content[16 * place..][..16].split_at_mut(8);
        seconds.copy_from_slice(&stamp.tv_sec.to_ne_bytes());
        nanoseconds.copy_from_slice(&stamp.tv_nsec.to_ne_bytes());
        let name = match options.timestamping_new {
            true => abi::SO_TIMESTAMPING_NEW,
            false => abi::SO_TIMESTAMPING_OLD,
        };
        messages.put(libc::SOL_SOCKET, name, &content);
    }
    let error = entry.error.bytes();
    match options.kind {
        Kind::Frames | Kind::Packets => {
            messages.put(libc::SOL_PACKET, abi::PACKET_TX_TIMESTAMP, &error);
        }
        Kind::Udp { six } => udp(&mut messages, options, entry, &error, six),
    }
    messages
}

fn udp(
    messages: &mut Messages,
    options: &Options,
    entry: &Entry,
    error: &[u8; ExtendedError::SIZE],
    six: bool,
) {
    let wanted = six || options.timestamping & timestamping::OPT_CMSG != 0;
    let ends = entry.ends.filter(|_| wanted);
    if six {
        let mut offender = [0; address::INET6];
        if let Some(ends) = ends {
            offender = address::inet6(ends.source);
            if options.udp.packet_info {
                let address = match ends.source {
                    IpAddr::V4(_) => ends.source,
                    IpAddr::V6(_) => ends.destination.ip(),
                };
                let mut content = address::inet6(address)[8..24].to_vec();
                content.extend(ends.interface.to_ne_bytes());
                messages.put(libc::SOL_IPV6, libc::IPV6_PKTINFO, &content);
            }
        }
        let content = [&error[..], &offender].concat();
        messages.put(libc::SOL_IPV6, abi::IPV6_RECVERR, &content);
    } else {
        let mut offender = [0; address::INET];
        if let Some(ends) = ends
            && let (IpAddr::V4(source), IpAddr::V4(destination)) =
                (ends.source, ends.destination.ip())
        {
            offender = address::inet(source);
            if options.udp.packet_info {
                let mut content = ends.interface.to_ne_bytes().to_vec();
                content.extend(source.octets());
                content.extend(destination.octets());
                messages.put(libc::SOL_IP, libc::IP_PKTINFO, &content);
            }
        }
        let content = [&error[..], &offender].concat();
        messages.put(libc::SOL_IP, libc::IP_RECVERR, &content);
    }
}

/// Puts an entry where the program wants it; how many bytes of its packet, or the errno.
///
/// The entry is gone in any case, as in the kernel.
fn tell(options: &Options, entry: &Entry, message: *mut msghdr) -> Result<usize, c_int> {
    let mut header = memory::read(message)?;
    let parts = memory::read_parts(header.msg_iov, abi::parts(&header))?;
    let (length, truncated) = tell_packet(entry, &parts)?;
    let messages = messages(options, entry, abi::control_length(&header));
    memory::write_bytes(&messages.bytes, header.msg_control)?;
    header.msg_namelen = 0;
    header.msg_controllen = messages.bytes.len() as _;
    header.msg_flags = libc::MSG_ERRQUEUE | truncated;
    if messages.truncated {
        header.msg_flags |= libc::MSG_CTRUNC;
    }
    memory::write(&header, message)?;
    Ok(length)
}

/// The packet alone; how many bytes of it, and `MSG_TRUNC` if that is not all.
fn tell_packet(entry: &Entry, parts: &[iovec]) -> Result<(usize, c_int), c_int> {
    let room = memory::total(parts).ok_or(libc::EINVAL)?;
    memory::scatter(&entry.packet, parts)?;
    let length = entry.packet.len().min(room);
    let truncated = match length < entry.packet.len() {
        true => libc::MSG_TRUNC,
        false => 0,
    };
    Ok((length, truncated))
}

/// Takes the first entry of a socket's error queue, if it has one; the kernel may have others.
fn take(socket: &'static Socket, fd: c_int, inside: &Inside) -> Option<(Options, Entry)> {
    let mut state = socket.current(fd, inside)?;
    look(socket, &mut state);
    let entry = state.reports.take()?;
    Some((state.options.clone()?, entry))
}

/// Brings a socket's error queue up to date.
pub fn look(socket: &Socket, state: &mut State) {
    let Some(options) = &state.options else {
        return;
    };
    let limit = options.receive_bytes;
    socket.add_edges(state.reports.look(state.source.as_ref(), limit));
}

fn finish(result: Result<usize, c_int>) -> ssize_t {
    match result {
        Ok(length) => length as ssize_t,
        Err(errno) => {
            process::set_errno(errno);
            -1
        }
    }
}

/// `recvmsg` of an entry of ours; `None`: there is none.
pub fn receive_message(
    socket: &'static Socket,
    fd: c_int,
    message: *mut msghdr,
) -> Option<ssize_t> {
    let result = process::inside(|inside| {
        let (options, entry) = take(socket, fd, inside)?;
        Some(tell(&options, &entry, message))
    });
    result.flatten().map(finish)
}

/// `recv` of an entry of ours, whose packet alone is told; `None`: there is none.
pub fn receive(socket: &'static Socket, fd: c_int, part: iovec) -> Option<ssize_t> {
    let result = process::inside(|inside| {
        let (_, entry) = take(socket, fd, inside)?;
        Some(tell_packet(&entry, &[part]).map(|(length, _)| length))
    });
    result.flatten().map(finish)
}

/// Gives a time stamp of the kernel's the number that the program has counted: the kernel has numbered only
/// what it has sent itself.
pub fn renumber(socket: &'static Socket, fd: c_int, message: *mut msghdr) {
    process::inside(|inside| {
        let state = socket.current(fd, inside)?;
        let header = memory::read(message).ok()?;
        let mut bytes = vec![0; abi::control_length(&header)];
        memory::read_bytes(&mut bytes, header.msg_control).ok()?;
        let at = number_in(&bytes)?;
        let number: &mut [u8; 4] = bytes.get_mut(at..)?.first_chunk_mut()?;
        *number = state
            .reports
            .number_of(u32::from_ne_bytes(*number))
            .to_ne_bytes();
        memory::write_bytes(&bytes, header.msg_control).ok()
    });
}

/// Where in control messages the number of a time stamp is.
fn number_in(bytes: &[u8]) -> Option<usize> {
    /// Where `ee_origin` and `ee_data` are in an extended error.
    const ORIGIN: usize = 4;
    const DATA: usize = 12;
    let mut rest = bytes;
    loop {
        let at = bytes.len() - rest.len() + control::HEADER;
        let (level, name, content) = control::next(&mut rest)?.ok()?;
        let tells = matches!(
            (level, name),
            (libc::SOL_IP, libc::IP_RECVERR)
                | (libc::SOL_IPV6, abi::IPV6_RECVERR)
                | (libc::SOL_PACKET, abi::PACKET_TX_TIMESTAMP)
        );
        if tells
            && content.len() >= ExtendedError::SIZE
            && content[ORIGIN] == abi::EE_ORIGIN_TIMESTAMPING
        {
            return Some(at + DATA);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::UdpOptions;
    use crate::reports::{self, Ends};
    use takt::TaiTime;

    fn options(kind: Kind) -> Options {
        Options {
            cookie: 1,
            network: 0,
            kind,
            clock: None,
            deadline: false,
            report_errors: true,
            timestamping: timestamping::SOFTWARE | timestamping::OPT_CMSG,
            timestamping_new: false,
            select_errors: false,
            priority: 0,
            mark: 0,
            interface: 0,
            receive_bytes: 1 << 16,
            send_timeout: 0,
            udp: UdpOptions {
                packet_info: true,
                ..UdpOptions::default()
            },
            zero_copy: false,
            protocol: 0,
            kernel_only: false,
        }
    }

    fn entry() -> Entry {
        Entry {
            error: reports::missed(1 << 40),
            stamp: Some(Stamp::Software(TaiTime::from_nanos(5_000_000_007))),
            packet: b"packet".to_vec(),
            ends: Some(Ends {
                interface: 4,
                source: "10.0.0.1".parse().unwrap(),
                destination: "10.0.0.2:9".parse().unwrap(),
            }),
        }
    }

    type Parsed = (c_int, c_int, Vec<u8>);

    fn parsed(messages: &Messages) -> Vec<Parsed> {
        let mut rest = &messages.bytes[..];
        let mut all = Vec::new();
        while let Some(message) = control::next(&mut rest) {
            let (level, name, content) = message.expect("well formed");
            all.push((level, name, content.to_vec()));
        }
        all
    }

    #[test]
    fn a_datagrams_entry_has_its_stamp_its_ends_and_the_error_in_this_order() {
        let messages = messages(&options(Kind::Udp { six: false }), &entry(), 256);
        assert!(!messages.truncated);
        let [stamp, ends, error] = &parsed(&messages)[..] else {
            panic!("three messages");
        };
        assert_eq!(
            (stamp.0, stamp.1, stamp.2.len()),
            (libc::SOL_SOCKET, 37, 48)
        );
        assert_eq!((ends.0, ends.1), (libc::SOL_IP, libc::IP_PKTINFO));
        assert_eq!(ends.2, [4, 0, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        assert_eq!(
            (error.0, error.1, error.2.len()),
            (libc::SOL_IP, libc::IP_RECVERR, 32)
        );
        assert_eq!(error.2[16..24], [2, 0, 0, 0, 10, 0, 0, 1]);
    }

    #[test]
    fn a_stamp_is_where_its_kind_has_its_place_if_it_is_to_be_told() {
        let mut entry = entry();
        entry.stamp = Some(Stamp::Hardware(TaiTime::from_nanos(5_000_000_007)));
        let mut options = options(Kind::Frames);
        assert_eq!(parsed(&messages(&options, &entry, 256)).len(), 1);
        options.timestamping = timestamping::RAW_HARDWARE;
        let [stamp, _] = &parsed(&messages(&options, &entry, 256))[..] else {
            panic!("two messages");
        };
        assert_eq!(stamp.2[..32], [0; 32]);
        assert_eq!(stamp.2[32..40], 5u64.to_ne_bytes());
        assert_eq!(stamp.2[40..], 7u64.to_ne_bytes());
    }

    #[test]
    fn ipv6_sockets_and_packet_sockets_have_forms_of_their_own() {
        let mut entry = entry();
        entry.stamp = None;
        let six = messages(&options(Kind::Udp { six: true }), &entry, 256);
        let [ends, error] = &parsed(&six)[..] else {
            panic!("two messages");
        };
        assert_eq!(
            (ends.0, ends.1, ends.2.len()),
            (libc::SOL_IPV6, libc::IPV6_PKTINFO, 20)
        );
        assert_eq!((error.0, error.1, error.2.len()), (libc::SOL_IPV6, 25, 44));
        let packet = messages(&options(Kind::Frames), &entry, 256);
        let [(libc::SOL_PACKET, 16, error)] = &parsed(&packet)[..] else {
            panic!("one message");
        };
        assert_eq!(error[..], entry.error.bytes());
    }

    #[test]
    fn what_has_no_room_is_cut_and_said_to_be() {
        // Stamp, ends with four bytes of padding, error.
        for room in 0..256 {
            let cut = messages(&options(Kind::Udp { six: false }), &entry(), room);
            assert!(cut.bytes.len() <= room);
            // Padding behind the last message is not content.
            assert_eq!(cut.truncated, room < 64 + 32 + 48, "{room}");
        }
    }

    #[test]
    fn an_entry_goes_into_the_programs_memory() {
        process::start();
        let (mut first, mut second, mut control) = ([0u8; 4], [0u8; 8], [0u8; 256]);
        let mut parts = [
            iovec {
                iov_base: first.as_mut_ptr().cast(),
                iov_len: 4,
            },
            iovec {
                iov_base: second.as_mut_ptr().cast(),
                iov_len: 8,
            },
        ];
        // SAFETY: plain integers and pointers.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = 2;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = control.len();
        message.msg_namelen = 16;
        assert_eq!(tell(&options(Kind::Frames), &entry(), &mut message), Ok(6));
        assert_eq!((&first, &second[..2]), (b"pack", &b"et"[..]));
        assert_eq!(message.msg_flags, libc::MSG_ERRQUEUE);
        assert_eq!((message.msg_namelen, message.msg_controllen), (0, 64 + 32));
        message.msg_iovlen = 1;
        message.msg_controllen = 8;
        assert_eq!(tell(&options(Kind::Frames), &entry(), &mut message), Ok(4));
        let flags = libc::MSG_ERRQUEUE | libc::MSG_TRUNC | libc::MSG_CTRUNC;
        assert_eq!((message.msg_flags, message.msg_controllen), (flags, 0));
    }

    #[test]
    fn memory_that_is_not_there_is_a_fault() {
        process::start();
        let nowhere: *mut iovec = std::ptr::without_provenance_mut(16);
        // SAFETY: plain integers and pointers.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        let options = options(Kind::Frames);
        assert_eq!(tell(&options, &entry(), nowhere.cast()), Err(libc::EFAULT));
        (message.msg_iov, message.msg_iovlen) = (nowhere, 1);
        assert_eq!(tell(&options, &entry(), &mut message), Err(libc::EFAULT));
        message.msg_iovlen = usize::MAX;
        assert_eq!(tell(&options, &entry(), &mut message), Err(libc::EMSGSIZE));
        message.msg_iovlen = 0;
        (message.msg_control, message.msg_controllen) = (nowhere.cast(), 64);
        assert_eq!(tell(&options, &entry(), &mut message), Err(libc::EFAULT));
    }

    #[test]
    fn the_number_of_a_time_stamp_is_found_in_what_the_kernel_wrote() {
        let mut entry = entry();
        entry.error.origin = abi::EE_ORIGIN_TIMESTAMPING;
        entry.error.data = 0x0102_0304;
        for kind in [
            Kind::Udp { six: false },
            Kind::Udp { six: true },
            Kind::Frames,
        ] {
            let messages = messages(&options(kind), &entry, 256);
            let at = number_in(&messages.bytes).expect("a number");
            assert_eq!(messages.bytes[at..at + 4], 0x0102_0304u32.to_ne_bytes());
        }
        entry.error.origin = abi::EE_ORIGIN_TXTIME;
        let messages = messages(&options(Kind::Frames), &entry, 256);
        assert_eq!(number_in(&messages.bytes), None);
    }
}
