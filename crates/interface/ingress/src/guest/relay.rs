//! Between a VMM and the library that serves it: messages are passed on whole, behind one of ours.
//!
//! QEMU (7.2 and others) with several queue pairs enables the first one before it has set any features; the library (`vhost` 0.18)
//! refuses that, as nobody has agreed on rings that can be enabled. Saying so first, for the VMM, is all that is needed: what the VMM says
//! later counts.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use vhost::vhost_user::Listener;

/// Octets of the header of a message: what is asked, flags, and how many octets follow.
const HEADER: usize = 12;
/// The longest message: as the library takes at most.
const LONGEST: usize = 4096;
/// The most descriptors with one.
const DESCRIPTORS: usize = 32;
/// `VHOST_USER_SET_FEATURES`, its flags (version 1), its length, and the features that there are rings to be enabled and, which
/// the VMM's own say anew, that the driver is of virtio 1.
const RINGS_CAN_BE_ENABLED: [u8; 20] = {
    let mut message = [0; 20];
    message[0] = 2;
    message[4] = 1;
    message[8] = 8;
    message[12 + 3] = 1 << 6;
    message[12 + 4] = 1;
    message
};

/// `VHOST_USER_SET_VRING_KICK`, `_CALL` and `_ERR`, with an event each.
const EVENTS: [u32; 3] = [12, 13, 14];

/// A listener for the library with a connection that waits at it, and the other end of that connection.
pub(super) fn inner() -> io::Result<(Listener, UnixStream)> {
    // Nobody else can come to it: only we may look into the directory.
    let directory = tempfile::tempdir()?;
    let place = directory.path().join("vhost-user");
    let listener = UnixListener::bind(&place)?;
    let mut stream = UnixStream::connect(&place)?;
    stream.write_all(&RINGS_CAN_BE_ENABLED)?;
    Ok((Listener::from(listener), stream))
}

/// Has both directions end. Each waits for both ends, of which one may take nothing any more.
pub(super) fn end(vmm: &UnixStream, library: &UnixStream) {
    for stream in [vmm, library] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Passes on what a VMM says until either end has gone.
///
/// # Errors
/// The VMM has sent what is no message.
pub(super) fn requests(vmm: &UnixStream, library: &UnixStream) -> io::Result<()> {
    let result = pass_on(vmm, library);
    let _ = library.shutdown(Shutdown::Both);
    result
}

fn pass_on(vmm: &UnixStream, library: &UnixStream) -> io::Result<()> {
    let mut message = [0; LONGEST];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut message[..HEADER])];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let length = match rustix::net::recvmsg(vmm, &mut into, &mut ancillary, flags) {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if length == 0 {
            return Ok(());
        }
        let descriptors: Vec<OwnedFd> = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        let mut vmm = vmm;
        vmm.read_exact(&mut message[length..HEADER])?;
        let told = u32::from_ne_bytes([message[8], message[9], message[10], message[11]]);
        let end = HEADER.saturating_add(told as usize);
        let Some(body) = message.get_mut(HEADER..end) else {
            return Err(io::Error::other(format!(
                "a message of {end} octets, {LONGEST} are taken at most"
            )));
        };
        vmm.read_exact(body)?;
        let asked = u32::from_ne_bytes([message[0], message[1], message[2], message[3]]);
        if EVENTS.contains(&asked) {
            // A kick that somebody else has taken, or a call that takes no more, is not to be waited for.
            for event in &descriptors {
                rustix::io::ioctl_fionbio(event, true)?;
            }
        }
        send(library, &message[..end], &descriptors)?;
    }
}

/// Sends a message with its descriptors, which go with its first octet.
fn send(to: &UnixStream, message: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::Error::other("more descriptors than a message has"));
    }
    let sent = rustix::net::sendmsg(
        to,
        &[IoSlice::new(message)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    let mut to = to;
    to.write_all(&message[sent..])
}

/// Passes on what the library answers until either end has gone.
pub(super) fn answers(library: &UnixStream, vmm: &UnixStream) {
    let (mut from, mut to) = (library, vmm);
    // An end that has gone is known by the other direction.
    let _ = io::copy(&mut from, &mut to);
    end(vmm, library);
}
