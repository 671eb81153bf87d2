//! Packets with file descriptors over a `SOCK_SEQPACKET` Unix socket: what both sides do alike.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::message::MAX_MESSAGE_BYTES;

/// Most descriptors that travel with one packet.
pub const MAX_DESCRIPTORS: usize = 4;

/// A packet as received.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The descriptors that came with it: fewer than were sent where this process may have no more.
    pub descriptors: Vec<OwnedFd>,
}

/// Sends one packet; `wait` tells whether to wait for room in the peer's buffer.
///
/// # Errors
/// The kernel's; `WouldBlock` without room.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    wait: bool,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many descriptors for one packet",
        ));
    }
    let mut flags = SendFlags::NOSIGNAL;
    if !wait {
        flags |= SendFlags::DONTWAIT;
    }
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags)
    })?;
    Ok(())
}

/// Receives one packet; `wait` tells whether to wait for one. `None` at the end of the connection.
///
/// # Errors
/// The kernel's; `InvalidData` for a packet longer than a message may be (its descriptors are closed).
pub fn receive(socket: impl AsFd, wait: bool) -> io::Result<Option<Packet>> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    if !wait {
        flags |= RecvFlags::DONTWAIT;
    }
    let mut receive = || {
        rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(
                &socket,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut control,
                flags,
            )
        })
    };
    let result = match receive() {
        // The other side hung up without reading everything. The kernel says so once, ahead of the
        // packets that it had sent before: its last one is the reason.
        Err(rustix::io::Errno::CONNRESET) => receive()?,
        result => result?,
    };
    let descriptors: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        })
        .flatten()
        .collect();
    if result.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("packet longer than {MAX_MESSAGE_BYTES} bytes"),
        ));
    }
    if result.bytes == 0 {
        return Ok(None);
    }
    bytes.truncate(result.bytes);
    Ok(Some(Packet { bytes, descriptors }))
}

/// Receives one packet that may carry no descriptors, without waiting. `None` at the end of the connection.
///
/// For the runtime, which asks applications for none. One that was sent all the same never becomes this
/// process's: the packet is looked at first, and left in the socket. To close a stranger's descriptor can take
/// as long as it likes (SO_LINGER), and whoever receives it closes it, also where it finds no room.
///
/// # Errors
/// The kernel's; `WouldBlock` if there is none; `InvalidData` for a packet with descriptors, which stays in the
/// socket: close that where waiting hurts nobody; `InvalidData` for one longer than a message may be.
pub fn receive_bytes(socket: impl AsFd) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut look = || {
        rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(
                &socket,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut RecvAncillaryBuffer::default(),
                RecvFlags::PEEK | RecvFlags::DONTWAIT,
            )
        })
    };
    let seen = match look() {
        // As in `receive`.
        Err(rustix::io::Errno::CONNRESET) => look()?,
        result => result?,
    };
    if seen.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "packet with descriptors, of which applications send none",
        ));
    }
    let (_, length) = rustix::io::retry_on_intr(|| {
        rustix::net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT)
    })?;
    if seen.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("packet longer than {MAX_MESSAGE_BYTES} bytes"),
        ));
    }
    if length == 0 {
        return Ok(None);
    }
    bytes.truncate(length);
    Ok(Some(bytes))
}

/// A new socket of the protocol's kind, close-on-exec.
///
/// # Errors
/// The kernel's.
pub fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// A new socket that is connected to whoever listens on a path. It does not wait: where as many connections are to be
/// accepted as the listener has room for, the kernel would let it sleep until one is, for ever if the listener is stopped.
///
/// # Errors
/// The kernel's; `WouldBlock` where the listener has no room.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket()?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    rustix::net::connect(&socket, &address)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// Two connected sockets, for the embedded form and for tests.
///
/// # Errors
/// The kernel's.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn descriptors_arrive_with_their_packet_and_the_end_is_none() {
        let (a, b) = pair().expect("socketpair");
        send(&a, b"hello", &[a.as_fd(), b.as_fd()], true).expect("send");
        let packet = receive(&b, true).expect("receive").expect("packet");
        assert_eq!(packet.bytes, b"hello");
        assert_eq!(packet.descriptors.len(), 2);
        drop(packet);
        drop(a);
        assert!(receive(&b, true).expect("end").is_none());
    }

    #[test]
    fn the_last_packet_of_a_side_that_hung_up_without_reading_is_received() {
        let (a, b) = pair().expect("socketpair");
        send(&b, b"never read", &[], true).expect("send");
        send(&a, b"the reason", &[], true).expect("send");
        drop(a);
        let packet = receive(&b, true).expect("receive").expect("packet");
        assert_eq!(packet.bytes, b"the reason");
        assert!(receive(&b, true).expect("end").is_none());
    }

    #[test]
    fn descriptors_that_nobody_asked_for_stay_where_they_are() {
        let (a, b) = pair().expect("socketpair");
        send(&a, b"plain", &[], true).expect("send");
        let many: Vec<BorrowedFd<'_>> = (0..MAX_DESCRIPTORS).map(|_| a.as_fd()).collect();
        send(&a, b"unasked", &many, true).expect("send");
        assert_eq!(
            receive_bytes(&b).expect("receive").expect("packet"),
            b"plain"
        );
        for _ in 0..2 {
            let refused = receive_bytes(&b).expect_err("descriptors");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(descriptors_of(&a), 1);
        drop(receive(&b, false).expect("receive").expect("packet"));
        assert_eq!(
            receive_bytes(&b).expect_err("nothing").kind(),
            io::ErrorKind::WouldBlock
        );
        send(&a, &vec![1; MAX_MESSAGE_BYTES + 1], &[], true).expect("send");
        assert_eq!(
            receive_bytes(&b).expect_err("too long").kind(),
            io::ErrorKind::InvalidData
        );
        drop(a);
        assert!(receive_bytes(&b).expect("end").is_none());
    }

    /// How many descriptors of this process lead to the same socket.
    fn descriptors_of(socket: &OwnedFd) -> usize {
        let own = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let own = std::fs::read_link(own).expect("a link");
        std::fs::read_dir("/proc/self/fd")
            .expect("descriptors")
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .filter(|link| *link == own)
            .count()
    }

    #[test]
    fn who_has_no_room_for_a_connection_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("takt-backlog-{}", std::process::id()));
        let listener = socket().expect("socket");
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).expect("path")).expect("bind");
        rustix::net::listen(&listener, 0).expect("listen");
        let first = connect(&path).expect("room for one");
        let flags = rustix::fs::fcntl_getfl(&first).expect("flags");
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
        let more: Vec<_> = std::iter::from_fn(|| connect(&path).ok()).collect();
        let refused = connect(&path).expect_err("no room");
        std::fs::remove_file(&path).expect("the socket");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop((first, more, listener));
    }

    #[test]
    fn a_packet_longer_than_any_message_is_refused() {
        let (a, b) = pair().expect("socketpair");
        send(&a, &vec![1; MAX_MESSAGE_BYTES + 1], &[], true).expect("send");
        assert_eq!(
            receive(&b, true).expect_err("too long").kind(),
            io::ErrorKind::InvalidData
        );
        send(&a, b"next", &[], true).expect("send");
        assert_eq!(
            receive(&b, true).expect("receive").expect("packet").bytes,
            b"next"
        );
    }
}
